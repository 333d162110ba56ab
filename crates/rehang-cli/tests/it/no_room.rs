//! The binary where it cannot write: a file may not grow further (as on a full disk), or is read-only. Each
//! verb says so in one sentence and leaves the gallery whole; with room the same commands end as if nothing
//! had been in the way.

#![cfg(unix)]

use std::process::{Command, Output};

use rehang_core::Matrix;
use rehang_sqlite::SqliteStore;
use rehang_store::{Counts, Examined, Ledger};

use crate::common::upgrade::{IMPORT, upgrade};
use crate::common::{self, Place, words};

const ITEMS: usize = 3000;
const D_OLD: usize = 16;
const D_NEW: usize = 24;

fn native(row: usize, column: usize) -> f32 {
    ((row * 7 + column * 13) % 1009) as f32 / 8.0
}

/// A gallery, imported.
fn place() -> Place {
    let place = common::upgrade::place(
        &Matrix::from_fn(ITEMS, D_OLD, native),
        &Matrix::from_fn(ITEMS, D_NEW, native),
    );
    place.finish(&IMPORT);
    place
}

/// Runs the binary so that none of its files may grow beyond so many bytes: the system then refuses writes,
/// as on a full disk.
fn within(place: &Place, bytes: u64, arguments: &[&str]) -> Output {
    // POSIX counts in blocks of 512 bytes. Who ignores the signal gets an error from the write instead of
    // dying of it.
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", bytes.div_ceil(512));
    Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_rehang")])
        .args(arguments)
        .current_dir(place.path(""))
        .output()
        .unwrap()
}

fn refused(output: &Output, words: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.matches("Error:").count()), (Some(2), 1), "{error}");
    assert!(error.contains("G.db") && error.contains(words), "{error}");
    assert!(output.stdout.is_empty(), "half a result");
}

/// The gallery is whole, and its old space untouched.
fn whole(place: &Place) -> Option<Counts> {
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    assert_eq!(store.check().unwrap(), []);
    let old = store.counts("first").unwrap();
    assert_eq!((old.items, old.old), (ITEMS as u64, ITEMS as u64));
    store.counts("second").ok()
}

fn size(place: &Place) -> u64 {
    // Opened and closed, the log is in the file.
    drop(SqliteStore::open(place.path("G.db")).unwrap());
    fs_err::metadata(place.path("G.db")).unwrap().len()
}

/// Reads what an upgrade leaves behind, without times: vectors, ids and provenance.
fn result(place: &Place) -> (Vec<u8>, String, String) {
    let export =
        "gallery export --gallery G.db --space second --vectors V.npy --ids I.txt --provenance P.txt";
    place.json(&words(export, &[]));
    let read = |name: &str| fs_err::read_to_string(place.path(name)).unwrap();
    (fs_err::read(place.path("V.npy")).unwrap(), read("I.txt"), read("P.txt"))
}

#[test]
fn without_room_it_stops_and_with_room_it_ends_the_same() {
    let undisturbed = place();
    for verb in ["start", "switch", "run"] {
        undisturbed.json(&upgrade(verb));
    }
    let expected = result(&undisturbed);

    let place = place();
    let imported = size(&place);
    let mut adapted = 0;
    // No room for the files beside the gallery, for the first page of vectors, for the last one.
    for bytes in [16 << 10, 64 << 10, imported] {
        refused(&within(&place, bytes, &upgrade("start")), "make room");
        let counts = whole(&place).unwrap_or_default();
        assert!(counts.adapted >= adapted && counts.adapted < ITEMS as u64, "{counts:?}");
        adapted = counts.adapted;
        let search = ["search", "--gallery", "G.db", "--vectors", "old.npy", "-k", "1"];
        assert_eq!(place.json(&search)["space"], "first", "searches go on");
    }
    place.json(&upgrade("start"));
    place.json(&upgrade("switch"));
    let started = size(&place);
    let mut native = 0;
    for bytes in [16 << 10, 64 << 10, started / 2] {
        refused(&within(&place, bytes, &upgrade("run")), "make room");
        let counts = whole(&place).unwrap();
        assert!(counts.native >= native && counts.native < ITEMS as u64, "{counts:?}");
        assert_eq!((counts.native + counts.adapted, counts.failed), (ITEMS as u64, 0), "no item is to blame");
        native = counts.native;
    }
    assert!(native > 0, "what was written before it is kept");
    let run = place.json(&upgrade("run"));
    assert_eq!(run["native"], ITEMS);
    assert!(result(&place) == expected, "the gallery differs from one that always had room");
}

#[test]
fn a_read_only_gallery_is_one_clear_error_and_stays_as_it_is() {
    let place = place();
    let read_only = |on: bool| {
        let mut permissions = fs_err::metadata(place.path("G.db")).unwrap().permissions();
        #[allow(
            clippy::permissions_set_readonly_false,
            reason = "the file is in a folder of this test alone"
        )]
        permissions.set_readonly(on);
        fs_err::set_permissions(place.path("G.db"), permissions).unwrap();
    };
    for verb in ["start", "switch", "run", "pause", "rollback", "finish"] {
        match verb {
            "switch" => drop(place.json(&upgrade("start"))),
            "finish" => drop(place.json(&upgrade("switch"))),
            _ => {}
        }
        size(&place);
        read_only(true);
        let before = fs_err::read(place.path("G.db")).unwrap();
        let anyway: &[&str] = if verb == "finish" { &["--anyway"] } else { &[] };
        let output = place.run(&[&upgrade(verb)[..], anyway].concat());
        refused(&output, "read-only");
        assert!(fs_err::read(place.path("G.db")).unwrap() == before, "{verb} changed the file");
        // Verbs that only read go on.
        place.json(&["gallery", "info", "--gallery", "G.db"]);
        read_only(false);
    }
}
