//! Galleries of formats that were released, kept as files that the rehang of their time wrote; others are refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rehang_core::Provenance;
use rehang_sqlite::SqliteStore;
use rehang_store::{Examined, Ledger, Queue, QueueBand, Scan, Select};
use rusqlite::Connection;

/// Upgrade half-way: 61 items, more than half native, one changed and one added plainly and not caught up
/// with, one without a source, one failed.
const FORMAT_5: &str = "tests/golden/format-5.db";

fn copied(golden: &str, folder: &Path) -> PathBuf {
    let path = folder.join("gallery.db");
    fs_err::copy(golden, &path).unwrap();
    path
}

#[test]
fn a_gallery_of_format_5_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(FORMAT_5, folder.path());
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.check().unwrap(), vec![]);
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.items, counts.native, counts.adapted, counts.failed), (61, 36, 23, 1));
    assert_eq!(counts.lacking, 2, "one was changed plainly, and one came");
    assert_eq!(store.count_without_source().unwrap(), 1);

    // The queue: what lacks a vector first, then the bands in their order.
    let queue = store.scan(&Scan::new("new-model", Select::Queued, 99)).unwrap();
    let lacking: Vec<&str> = queue[..2].iter().map(|record| record.item.id.as_str()).collect();
    assert_eq!(lacking, ["item-0001", "item-0060"]);
    let places: Vec<_> = queue.iter().filter_map(|record| record.state.as_ref()?.priority).collect();
    assert!(
        places.is_sorted_by(|a, b| a >= b) && places.iter().any(|place| place.band == QueueBand::Ordinary)
    );

    // Triggers are at work: a plain write ends a lease, an id has one line.
    let claim =
        |limit| store.claim("new-model", Queue::All, "worker", limit, Duration::from_mins(1)).unwrap();
    assert_eq!(claim(2).records[0].item.id, "item-0001");
    let sql = Connection::open(&path).unwrap();
    sql.execute("UPDATE item SET source = 'another' WHERE id = 'item-0001'", []).unwrap();
    assert_eq!(store.at_work("new-model").unwrap()[0].items, 1);
    let error = sql.execute("INSERT INTO item (id) VALUES ('two' || char(10) || 'lines')", []).unwrap_err();
    assert!(error.to_string().contains("one line"), "{error}");

    // An old vector that is written again keeps the native one; what was deleted and comes back has it too.
    let natives = || {
        let scan = Scan::new("new-model", Select::Provenance(Provenance::Native), 99);
        store.scan(&scan).unwrap().into_iter().map(|record| record.item.id).collect::<Vec<_>>()
    };
    let before = natives();
    sql.execute("UPDATE vector_1 SET value = value", []).unwrap();
    assert_eq!(natives(), before);
    sql.execute_batch(
        "CREATE TEMP TABLE kept AS SELECT id, source FROM item; DELETE FROM item; INSERT INTO item (id, source) SELECT * FROM kept",
    )
    .unwrap();
    assert_eq!(store.counts("new-model").unwrap().native, 36);
    assert_eq!(store.check().unwrap(), vec![]);
}

#[test]
fn a_gallery_of_another_format_is_refused_and_not_touched() {
    for (format, says) in [(4, "older than the first release"), (6, "newer rehang")] {
        let folder = tempfile::tempdir().unwrap();
        let path = copied(FORMAT_5, folder.path());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", format).unwrap();
        let bytes = fs_err::read(&path).unwrap();
        let error = SqliteStore::open(&path).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains(says), "{error}");
        assert_eq!(fs_err::read(&path).unwrap(), bytes);
    }
}
