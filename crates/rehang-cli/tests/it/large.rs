//! A gallery that is large enough for a graph, through a whole upgrade: no search makes an index, no switch
//! goes without one, and the disk gets its room back.

use std::process::Output;

use rand::{RngExt as _, SeedableRng as _};
use rehang_core::Matrix;

use crate::common::{self, Place, words};

/// More than are compared one by one.
const ITEMS: usize = 20_500;
const D: usize = 8;

fn place() -> Place {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let old = Matrix::from_fn(ITEMS, D, |_, _| random.random_range(-1.0..1.0));
    let place =
        common::upgrade::place(&old, &Matrix::from_fn(ITEMS, D, |row, column| old.row(row)[D - 1 - column]));
    place.write_matrix("query.npy", &old.select(&[7]));
    place
}

#[test]
fn searches_have_an_index_at_every_stage() {
    let place = place();
    let json = |line: &str| place.json(&words(line, &[]));
    let run = |line: &str| -> Output { place.run(&words(line, &[])) };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let search = || {
        let output = run("search --gallery G.db --vectors query.npy -k 1");
        assert_eq!(output.status.code(), Some(0));
        said(&output)
    };
    json("gallery import --gallery G.db --space first --vectors old.npy --items items.jsonl --distance l2");
    assert!(
        search().contains("`rehang gallery index`"),
        "an index is not made by a search, and that is said"
    );
    assert!(search().contains("`rehang gallery index`"));
    let indexed = json("gallery index --gallery G.db");
    assert!(indexed["made"] == true && indexed["recall"].as_f64().unwrap() > 0.9, "{indexed}");
    assert_eq!(json("gallery index --gallery G.db")["made"], false);
    assert_eq!(search(), "");

    let started = json("upgrade start --config rehang.toml");
    assert!(started["recall"].as_f64().unwrap() > 0.9, "{started}");
    let file = |name: &str| place.path(name);
    let index = file("G.db.2.usearch");
    fs_err::rename(&index, file("away")).unwrap();
    let refused = run("upgrade switch --config rehang.toml");
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("`rehang gallery index`"), "{}", said(&refused));
    assert_eq!(json("search --gallery G.db --vectors query.npy -k 1")["space"], "first");
    json("upgrade switch --config rehang.toml --anyway");
    fs_err::rename(file("away"), &index).unwrap();
    assert_eq!(search(), "", "an index that is back is as good as it was");

    // Half of the vectors and more are replaced.
    let ran = json("upgrade run --config rehang.toml");
    assert_eq!((&ran["indexed"], &ran["native"]), (&true.into(), &ITEMS.into()));
    assert_eq!(search(), "");
    let finished = json("upgrade finish --config rehang.toml");
    assert_eq!(finished["indexed"], false);
    let compacted = json("gallery compact --gallery G.db");
    let bytes = |key: &str| compacted[key].as_u64().unwrap();
    assert!(bytes("bytes") < bytes("bytes_before") * 3 / 4, "{compacted}");
    assert_eq!(fs_err::metadata(file("G.db")).unwrap().len(), bytes("bytes"));
    assert_eq!(search(), "", "the index fits the file that was written again");
    let nearest = json("search --gallery G.db --vectors query.npy -k 1");
    assert_eq!(nearest["results"][0].as_array().unwrap().len(), 1);
    assert_eq!(json("doctor --gallery G.db")["bad"], 0);
}
