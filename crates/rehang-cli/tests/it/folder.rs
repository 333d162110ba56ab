//! Folders of partitions through the command line.

use std::path::Path;
use std::time::Duration;

use rehang_files::Ids;

use crate::common::{Place, waves, words};

/// Makes an adapter from 3 to 4 coordinates, and a folder `in` of partitions with ids.
fn prepared(rows: &[usize]) -> Place {
    let place = Place::new();
    place.write_matrix("old.npy", &waves(80, 3, 1));
    place.write_matrix("new.npy", &waves(80, 4, 2));
    // The fit warns that so few pairs say little, which is no failure.
    let fitted = place.run(&words("fit --old old.npy --new new.npy --method ridge -o a.safetensors", &[]));
    assert!(fitted.status.code().is_some_and(|code| code < 2), "{fitted:?}");
    for (part, &rows) in rows.iter().enumerate() {
        let path = place.path(&format!("in/day={}/part-{part}.parquet", part % 2));
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        let ids = Ids::Integers((0..rows as i64).collect());
        rehang_files::write_matrix(path, &waves(rows, 3, 1), Some(&ids)).unwrap();
    }
    place
}

fn bytes(place: &Place, folder: &str, parts: usize) -> Vec<Vec<u8>> {
    let name = |part: usize| format!("{folder}/day={}/part-{part}.parquet", part % 2);
    (0..parts).map(|part| fs_err::read(place.path(&name(part))).unwrap()).collect()
}

#[test]
fn a_folder_is_transformed_resumed_and_cut() {
    let place = prepared(&[80, 60, 40]);
    let transform = ["transform", "a.safetensors", "in", "-o", "out"];
    let made = place.json(&transform);
    assert_eq!((&made["partitions"], &made["made"], &made["vectors"]), (&3.into(), &3.into(), &180.into()));
    let output = place.run(&transform);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("0 partitions") && said.contains("3 were there"),
        "{said}"
    );

    // σ² lies beside the vectors.
    let order =
        ["order", "--policy", "sigma", "--sigma", "out", "--first", "10%", "--first", "7", "-o", "cuts.json"];
    let found = place.json(&order);
    assert_eq!((&found["cuts"][0]["items"], &found["cuts"][1]["items"]), (&18.into(), &7.into()));
    let written = fs_err::read_to_string(place.path("cuts.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), found);

    let refused =
        place.run(&["order", "--policy", "random", "--sigma", "out", "--first", "7", "-o", "cuts.json"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("--policy"), "{said}");
    let refused = place.run(&["transform", "a.safetensors", "in", "-o", "in/out"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("--output"), "{said}");
    assert!(!Path::new(&place.path("in/out")).exists());
}

#[test]
fn processes_that_are_killed_at_any_moment_leave_what_the_next_one_finishes() {
    let rows = [9_000; 12];
    let place = prepared(&rows);
    place.json(&["transform", "a.safetensors", "in", "-o", "whole"]);
    let transform = ["transform", "a.safetensors", "in", "-o", "out"];
    let killed: u32 = (0..6)
        .map(|round| {
            place.kill_after(&transform, [3, 7, 12].map(|wait| Duration::from_millis(wait * (round + 1))))
        })
        .sum();
    assert!(killed > 0);
    let made = place.json(&transform);
    assert_eq!(made["partitions"], 12);
    assert!(bytes(&place, "out", 12) == bytes(&place, "whole", 12));
}
