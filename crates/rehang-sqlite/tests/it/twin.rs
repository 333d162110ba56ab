//! Random operations on the embedded gallery and on its twin in memory: everything that can be seen is equal
//! after each.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rehang_sqlite::{SearchOptions, SqliteStore};
use rehang_store::{Among, Examined as _, Index as _, ManualLeaseClock, Sample, Scan, Select, Store};
use rehang_store_tests::MemoryStore;
use rehang_store_tests::histories::{Call, LEASE_S, apply, call, config, make_spaces, seen};

/// Operation on a gallery, or accident of its files.
#[derive(Debug, Clone)]
enum Operation {
    Call(Call),
    /// Seconds by which leases run out.
    Pass(u64),
    Rebuild(&'static str),
    Flush,
    /// Closes the handle and opens the file again; the side files may be lost in between.
    Reopen {
        lose_side_files: bool,
        damage: bool,
    },
    /// Goes on through the other handle on the file, as through another process.
    OtherHandle,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        33 => call(true).prop_map(Operation::Call),
        2 => (0..2 * LEASE_S).prop_map(Operation::Pass),
        1 => prop::sample::select(vec!["old", "new"]).prop_map(Operation::Rebuild),
        1 => Just(Operation::Flush),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(lose_side_files, damage)| Operation::Reopen { lose_side_files, damage }),
        2 => Just(Operation::OtherHandle),
    ]
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn the_embedded_gallery_is_its_twin(
        operations in prop::collection::vec(operation(), 1..40),
        graph in any::<bool>(),
    ) {
        let options = if graph {
            SearchOptions { exact_max: 3, merge_at: 2, ..SearchOptions::default() }
        } else {
            SearchOptions::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gallery.db");
        let clock = ManualLeaseClock::default();
        let leases = || Arc::new(clock.clone());
        let open = || SqliteStore::open_or_create(&path).unwrap().with_search(options).with_clock(leases());
        let twin = MemoryStore::new().with_keys(|_, number| number.into()).with_clock(leases());
        let (mut store, mut other) = (open(), open());
        make_spaces(&twin);
        make_spaces(&store);
        for operation in &operations {
            match operation {
                Operation::Reopen { lose_side_files, damage } => {
                    drop(store);
                    drop(other);
                    if *lose_side_files {
                        spoil_side_files(folder.path(), *damage);
                    }
                    store = open();
                    other = open();
                }
                Operation::Pass(seconds) => clock.pass(Duration::from_secs(*seconds)),
                Operation::OtherHandle => std::mem::swap(&mut store, &mut other),
                Operation::Rebuild(space) => store.rebuild(space).unwrap(),
                Operation::Flush => store.flush().unwrap(),
                Operation::Call(call) => prop_assert_eq!(apply(&store, call), apply(&twin, call), "{:?}", call),
            }
            // The two stores give the same numbers as well.
            prop_assert_eq!(numbers(&store), numbers(&twin), "after {:?}", operation);
            prop_assert_eq!(seen(&store), seen(&twin), "after {:?}", operation);
            prop_assert_eq!(store.check().unwrap(), vec![]);
        }
        prop_assert_eq!(seen(&other), seen(&twin));
    }
}

fn spoil_side_files(folder: &Path, damage: bool) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "usearch") {
            if damage {
                let length = fs_err::metadata(&path).unwrap().len();
                fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(length * 2 / 3).unwrap();
            } else {
                fs_err::remove_file(&path).unwrap();
            }
        }
    }
}

/// Describes what the two stores say alike beyond what [`seen`] shows: keys and versions, and the orders of
/// spaces, samples, errors and failures.
fn numbers(store: &dyn Store) -> String {
    let items = store.scan(&Scan::new("old", Select::All, 100)).unwrap();
    let keys: Vec<_> = items.into_iter().map(|record| (record.item.id, record.item.key)).collect();
    let mut lines = vec![format!("{keys:?} {:?} {:?}", store.document("plan"), store.spaces())];
    for space in ["old", "new"] {
        let failures: Vec<_> =
            store.failures(space, None, 100).unwrap().into_iter().map(|it| it.key).collect();
        lines.push(format!("{failures:?} {:?} {:?}", store.errors(space, 3), store.at_work(space)));
        for among in [Among::All, Among::Adapted, Among::Embeddable] {
            let sample = Sample { space: space.into(), among, seed: 5, size: 100, vectors_of: None };
            let drawn = store.sample(&sample).unwrap();
            let ids: Vec<_> = drawn.records.into_iter().map(|record| record.item.id).collect();
            lines.push(format!("{among:?}: {ids:?}"));
        }
    }
    lines.join("\n")
}
