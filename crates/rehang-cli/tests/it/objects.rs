//! Folders of partitions in an object store, through the command line.
#![cfg(feature = "objects")]

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use rehang_files::Ids;
use rehang_files::folders::{Folder, LocalFolder};
use rehang_objects::ObjectFolder;

use crate::common::{Place, waves};
use crate::object_server::{self, Server};

/// A command with what it has to know of a server, and a temporary folder of its own.
fn command(place: &Place, server: &Server, arguments: &[&str]) -> std::process::Command {
    fs_err::create_dir_all(place.path("tmp")).unwrap();
    let mut command = place.command(arguments);
    command.envs(server.environment()).env("NO_PROXY", "127.0.0.1").env("TMPDIR", place.path("tmp"));
    command
}

fn run(place: &Place, server: &Server, arguments: &[&str]) -> Output {
    command(place, server, arguments).output().unwrap()
}

/// Runs a command that must succeed, and gives its JSON object.
fn json(place: &Place, server: &Server, arguments: &[&str]) -> serde_json::Value {
    let output = run(place, server, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// An adapter from 3 to 4 coordinates; the same partitions in the folder `in` and in the bucket.
fn prepared(server: &Server, prefix: &str, partitions: usize, rows: usize) -> (Place, String) {
    let place = Place::new();
    place.write_matrix("old.npy", &waves(80, 3, 1));
    place.write_matrix("new.npy", &waves(80, 4, 2));
    let fit = ["fit", "--old", "old.npy", "--new", "new.npy", "--method", "ridge", "-o", "a.safetensors"];
    assert!(place.run(&fit).status.code().is_some_and(|code| code < 2));
    let address = format!("s3://bucket/{prefix}");
    let there = ObjectFolder::from_store(&format!("{address}/old"), server.store()).unwrap();
    let here = LocalFolder::new(place.path("in"));
    for part in 0..partitions {
        let name = format!("day={}/part-{part:02}.parquet", part % 2);
        let ids = Ids::Integers((0..rows as i64).collect());
        for folder in [&here as &dyn Folder, &there] {
            folder
                .put(Path::new(&name), &mut |path| {
                    rehang_files::write_matrix(path, &waves(rows, 3, part), Some(&ids))
                })
                .unwrap();
        }
    }
    (place, address)
}

fn expect_same(place: &Place, server: &Server, address: &str) {
    let here = LocalFolder::new(place.path("out"));
    let there = ObjectFolder::from_store(&format!("{address}/new"), server.store()).unwrap();
    let names = here.list().unwrap();
    assert_eq!(names, there.list().unwrap());
    for name in names {
        let [a, b] = [&here as &dyn Folder, &there].map(|folder| folder.fetch(&name).unwrap());
        assert!(fs_err::read(a.path()).unwrap() == fs_err::read(b.path()).unwrap(), "{}", name.display());
    }
}

#[test]
fn a_folder_of_a_bucket_is_transformed_resumed_cut_and_fitted_on() {
    let Some(server) = object_server::server() else { return };
    let (place, address) = prepared(server, "whole", 5, 400);
    let (old, new) = (format!("{address}/old/"), format!("{address}/new"));
    let share = |share| ["transform", "a.safetensors", old.as_str(), "-o", new.as_str(), "--share", share];
    assert_eq!(json(&place, server, &share("1/2"))["made"], 3);
    assert_eq!(json(&place, server, &share("2/2"))["made"], 2);
    assert_eq!(json(&place, server, &share("1/1"))["made"], 0);
    place.finish(&["transform", "a.safetensors", "in", "-o", "out"]);
    expect_same(&place, server, &address);
    // Verbs may read objects and write files of this machine.
    json(&place, server, &["transform", "a.safetensors", &old, "-o", "down"]);
    let local = |name: &str| LocalFolder::new(place.path(name));
    let part = Path::new("day=0/part-00.parquet");
    let bytes = |name: &str| fs_err::read(local(name).fetch(part).unwrap().path()).unwrap();
    assert!(bytes("down") == bytes("out"));

    let sigma = format!("{new}#sigma2");
    let order = |sigma: &str, output: &str| {
        let order =
            ["order", "--policy", "sigma", "--sigma", sigma, "--first", "10%", "--first", "7", "-o", output];
        json(&place, server, &order)
    };
    assert_eq!(order(&sigma, "there.json"), order("out", "here.json"));

    // A single object is a file: of the pairs, and of what is transformed.
    let pairs = ObjectFolder::from_store(&format!("{address}/pairs"), server.store()).unwrap();
    for name in ["old.npy", "new.npy"] {
        pairs.write(Path::new(name), &fs_err::read(place.path(name)).unwrap()).unwrap();
    }
    let [of_old, of_new] = ["old", "new"].map(|name| format!("{address}/pairs/{name}.npy"));
    let fit = ["fit", "--old", &of_old, "--new", &of_new, "--method", "ridge", "-o", "b.safetensors"];
    assert!(run(&place, server, &fit).status.code().is_some_and(|code| code < 2));
    assert!(
        fs_err::read(place.path("a.safetensors")).unwrap()
            == fs_err::read(place.path("b.safetensors")).unwrap()
    );
    let object = format!("{old}day=0/part-00.parquet");
    json(&place, server, &["transform", "b.safetensors", &object, "-o", "one.parquet"]);
    assert!(fs_err::read(place.path("one.parquet")).unwrap() == bytes("out"));
    assert_eq!(fs_err::read_dir(place.path("tmp")).unwrap().count(), 0, "temporary files are removed");
}

#[test]
fn processes_that_are_killed_at_any_moment_leave_what_the_next_one_finishes() {
    let Some(server) = object_server::server() else { return };
    let (place, address) = prepared(server, "killed", 8, 9_000);
    place.finish(&["transform", "a.safetensors", "in", "-o", "out"]);
    let [old, new] = ["old", "new"].map(|name| format!("{address}/{name}"));
    let transform = ["transform", "a.safetensors", old.as_str(), "-o", new.as_str()];
    let mut killed = 0;
    for round in 1..6 {
        // Two processes at the same partitions.
        let start = || {
            let mut command = command(&place, server, &transform);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        for (mut child, wait) in [start(), start()].into_iter().zip([17, 29]) {
            #[allow(
                clippy::disallowed_methods,
                reason = "the processes are killed at any moment of their work"
            )]
            std::thread::sleep(Duration::from_millis(wait * round));
            killed += u32::from(child.try_wait().unwrap().is_none());
            drop(child.kill());
            child.wait().unwrap();
        }
    }
    assert!(killed > 0);
    // Ctrl-C ends a run that leaves no temporary file behind: over a folder, or over one object of it.
    #[cfg(unix)]
    {
        fs_err::create_dir(place.path("other")).unwrap();
        let object = format!("{old}/day=0/part-00.parquet");
        let one = ["transform", "a.safetensors", object.as_str(), "-o", "one.parquet"];
        for (arguments, wait) in [(&transform, 40), (&one, 10), (&one, 20), (&one, 40)] {
            let mut interrupted = command(&place, server, arguments);
            interrupted.env("TMPDIR", place.path("other")).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = interrupted.spawn().unwrap();
            #[allow(
                clippy::disallowed_methods,
                reason = "the process is interrupted at any moment of its work"
            )]
            std::thread::sleep(Duration::from_millis(wait));
            let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
            assert!(kill.is_ok_and(|status| status.success()) && child.wait().is_ok());
            assert_eq!(fs_err::read_dir(place.path("other")).unwrap().count(), 0, "{arguments:?} {wait}");
        }
    }
    assert_eq!(json(&place, server, &transform)["partitions"], 8);
    expect_same(&place, server, &address);
    assert_eq!(json(&place, server, &transform)["made"], 0);
}

#[test]
fn what_a_store_refuses_is_one_sentence_that_says_what_to_do() {
    let Some(server) = object_server::server() else { return };
    let strict = Server::start(true).unwrap();
    let (place, address) = prepared(server, "refused", 1, 10);
    let old = format!("{address}/old");
    let said = |server: &Server, changes: &[(&str, &str)], arguments: &[&str], words: &[&str]| {
        let mut command = command(&place, server, arguments);
        for (name, value) in changes {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(
            words.iter().all(|word| said.contains(word)) && !said.contains("secret"),
            "{words:?}: {said}"
        );
    };
    let transform = |old: &str, new: &str| ["transform", "a.safetensors", old, "-o", new].map(String::from);
    let check = |server: &Server, changes: &[(&str, &str)], [old, new]: [&str; 2], words: &[&str]| {
        let arguments = transform(old, new);
        said(server, changes, &arguments.each_ref().map(String::as_str), words);
    };
    check(server, &[], ["s3://nobody/old", "x"], &["no bucket \"nobody\""]);
    check(server, &[], [&old, "s3://nobody/new"], &["no bucket \"nobody\""]);
    check(server, &[], [&format!("{address}/nothing"), "x"], &["nothing", "no file that ends in"]);
    check(server, &[], [&old, &format!("{old}/new")], &["--output", "neither may lie in the other"]);
    check(server, &[], ["old.npy", "s3://bucket/x.npy"], &["s3://bucket/x.npy", "on this machine"]);
    check(server, &[], ["ftp://bucket/old", "x"], &["s3://BUCKET/PREFIX"]);
    check(&strict, &[], [&old, "x"], &[&old, "refused the credentials"]);
    let nowhere = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9")];
    check(server, &nowhere, [&old, "x"], &[&old, "does not answer"]);
    let none = [
        ("AWS_ACCESS_KEY_ID", ""),
        ("AWS_SECRET_ACCESS_KEY", ""),
        ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9"),
    ];
    check(server, &none, [&old, "x"], &[&old, "AWS_ACCESS_KEY_ID"]);
    let order = ["order", "--policy", "sigma", "--sigma", "s3://nobody/new", "--first", "1", "-o", "c.json"];
    said(server, &[], &order, &["no bucket"]);
    let fit = ["fit", "--old", "s3://bucket/nothing.npy", "--new", "new.npy", "-o", "b.safetensors"];
    said(server, &[], &fit, &["s3://bucket/nothing.npy", "no such object"]);
    for name in ["x", "c.json", "b.safetensors"] {
        assert!(!place.path(name).exists(), "{name}");
    }
}
