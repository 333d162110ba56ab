//! Galleries of older formats, kept as files that the rehang of their time wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rehang_core::Provenance;
use rehang_sqlite::SqliteStore;
use rehang_store::{Epoch, Examined, Ledger, ManualLeaseClock, Priority, Queue, QueueBand, Scan, Select};
use rusqlite::Connection;

/// Gallery of format 1: a merged upgrade half-way.
///
/// It has 60 items in all: a few native, one changed and one added plainly and not caught up with, one
/// without a source, one failed, and items in every band of the queue.
const FORMAT_1: &str = "tests/golden/format-1.db";

/// The gallery of [`FORMAT_1`], brought up to format 2 by the rehang of its time. An item whose id has two
/// lines came plainly, and a worker held two items.
const FORMAT_2: &str = "tests/golden/format-2.db";

/// The gallery of [`FORMAT_2`], brought up to format 3 by the rehang of its time. An item that had vectors
/// has got another label, and so lost them.
const FORMAT_3: &str = "tests/golden/format-3.db";

/// The gallery of [`FORMAT_3`], brought up to format 4 by the rehang of its time.
const FORMAT_4: &str = "tests/golden/format-4.db";

fn copied(golden: &str, folder: &Path) -> PathBuf {
    let path = folder.join("gallery.db");
    fs_err::copy(golden, &path).unwrap();
    path
}

fn format(path: &Path) -> i64 {
    Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[test]
fn a_gallery_of_format_1_is_brought_up_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(FORMAT_1, folder.path());
    assert_eq!(format(&path), 1);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(format(&path), 5);
    assert_eq!(store.check().unwrap(), vec![]);
    let spaces = store.spaces().unwrap();
    assert!(spaces.iter().all(|record| record.epoch == Epoch::FIRST), "{spaces:?}");
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.items, counts.native, counts.failed, counts.lacking), (61, 8, 1, 2));
    assert_eq!(store.count_without_source().unwrap(), 1);
    assert_eq!(store.count_lag("new-model", "old-model").unwrap(), 1);

    let queue = store.scan(&Scan::new("new-model", Select::WorstFirst, 99)).unwrap();
    let place =
        |at: usize| (queue[at].item.id.as_str(), queue[at].state.as_ref().and_then(|state| state.priority));
    assert_eq!(place(0), ("item-0007", None), "it lacks a vector");
    assert_eq!(place(1), ("item-0008", Some(Priority::new(QueueBand::NewOrChanged, 0.0))));
    assert_eq!(place(2), ("item-0006", Some(Priority::new(QueueBand::Sample, 194.0))));
    assert_eq!(place(24), ("item-0036", Some(Priority::new(QueueBand::Covering, 2.0))));
    assert_eq!(place(26), ("item-0048", Some(Priority::ordinary(1.197_808_504_104_614_3))));
    let adapted = queue.iter().filter_map(|record| record.state.as_ref()?.priority);
    assert!(adapted.is_sorted_by(|a, b| a >= b), "the order stays");

    // Triggers of this format are at work: a plain write ends a lease.
    let claimed = store.claim("new-model", Queue::All, "worker", 2, Duration::from_mins(1)).unwrap();
    assert_eq!(claimed.records[1].item.id, "item-0008");
    let sql = Connection::open(&path).unwrap();
    sql.execute("UPDATE item SET source = 'other' WHERE id = 'item-0008'", []).unwrap();
    assert_eq!(store.at_work("new-model").unwrap()[0].items, 1);
    assert_eq!(store.check().unwrap(), vec![]);
    store
        .create_space(&rehang_core::Space::new("third", 2, rehang_core::Distance::L2, false), Provenance::Native)
        .unwrap();
    store.drop_space("third").unwrap();
    drop((store, sql));
    assert_eq!(SqliteStore::open(&path).unwrap().check().unwrap(), vec![], "it is brought up once");
}

#[test]
fn a_gallery_of_format_2_counts_lost_leases_and_takes_ids_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(FORMAT_2, folder.path());
    assert_eq!(format(&path), 2);
    let clock = ManualLeaseClock::default();
    let store = SqliteStore::open(&path).unwrap().with_clock(Arc::new(clock.clone()));
    assert_eq!(format(&path), 5);
    assert_eq!(store.check().unwrap(), vec![]);
    let lease = Duration::from_secs(1);
    assert_eq!(store.at_work("new-model").unwrap(), []);
    assert_eq!(store.claim("new-model", Queue::All, "worker", 4, lease).unwrap().lost, 0);
    clock.pass(lease);
    assert_eq!(store.claim("new-model", Queue::All, "worker", 4, lease).unwrap().lost, 1);
    // An id that was there stays; no other of two lines comes.
    let sql = Connection::open(&path).unwrap();
    let insert = "INSERT INTO item (id) VALUES (?1)";
    for id in ["two\nlines of another", "two\rlines"] {
        let error = sql.execute(insert, [id]).unwrap_err().to_string();
        assert!(error.contains("one line"), "{error}");
    }
    let error = sql.execute("UPDATE item SET id = id || char(10) WHERE id = 'item-0008'", []).unwrap_err();
    assert!(error.to_string().contains("one line"), "{error}");
    let labelled =
        sql.execute("UPDATE item SET label = 'x', id = id WHERE id = 'two' || char(10) || 'lines'", []);
    assert_eq!(labelled, Ok(1));
    assert_eq!(store.delete(&["two\nlines"]), Ok(1));
    assert_eq!(store.check().unwrap(), vec![]);
}

#[test]
fn a_gallery_of_format_3_keeps_natives_where_the_old_vector_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(FORMAT_3, folder.path());
    assert_eq!(format(&path), 3);
    // A process of the rehang of that time has the gallery open, with a statement that it prepared.
    let earlier = Connection::open(&path).unwrap();
    let mut put = earlier.prepare("UPDATE item SET source = ?2, revision = ?3 WHERE id = ?1").unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(format(&path), 5);
    assert_eq!(store.check().unwrap(), vec![]);
    let natives = || {
        let scan = Scan::new("new-model", Select::Provenance(Provenance::Native), 99);
        let records = store.scan(&scan).unwrap().into_iter();
        records.map(|record| record.item).filter(|item| item.source.is_some()).collect::<Vec<_>>()
    };
    let before = natives();
    assert!(before.len() > 2 && before.iter().all(|item| item.revision == item.source_revision));
    let sql = Connection::open(&path).unwrap();
    let ids: Vec<&str> = before.iter().take(3).map(|item| item.id.as_str()).collect();
    for id in &ids {
        let old = "UPDATE vector_1 SET value = value WHERE item = (SELECT key FROM item WHERE id = ?1)";
        assert_eq!(sql.execute(old, [id]), Ok(1));
    }
    let after = natives();
    assert_eq!(after.len(), before.len(), "what was paid for stays");
    for (was, is) in before.iter().zip(&after).take(3) {
        assert_eq!((is.key, is.source_revision), (was.key, was.revision));
        assert!(is.revision > was.revision);
    }
    // The items get another content behind the same path, another source, and another source by the earlier
    // process.
    sql.execute("UPDATE item SET revision = 0 WHERE id = ?1", [ids[0]]).unwrap();
    sql.execute("UPDATE item SET source = 'other' WHERE id = ?1", [ids[1]]).unwrap();
    let counter = "UPDATE gallery SET value = value + 1 WHERE name = 'counter' RETURNING value";
    let revision: i64 = earlier.query_row(counter, [], |row| row.get(0)).unwrap();
    put.execute((ids[2], "other", revision)).unwrap();
    assert_eq!(natives().len(), before.len() - 3);
    for item in store.get(&ids).unwrap().into_iter().flatten() {
        assert_eq!(item.revision, item.source_revision, "{}", item.id);
    }
    assert_eq!(store.check().unwrap(), vec![]);
}

#[test]
fn a_gallery_of_format_4_gives_back_what_was_paid_for() {
    for golden in [FORMAT_1, FORMAT_4] {
        let folder = tempfile::tempdir().unwrap();
        let path = copied(golden, folder.path());
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(format(&path), 5);
        assert_eq!(store.check().unwrap(), vec![]);
        // The item has an id that no item may have any more.
        store.delete(&["two\nlines"]).unwrap();
        let natives = store.counts("new-model").unwrap().native;
        let sql = Connection::open(&path).unwrap();
        sql.execute_batch(
            "CREATE TEMP TABLE kept AS SELECT id, source FROM item; DELETE FROM item; INSERT INTO item (id, source) SELECT * FROM kept",
        )
        .unwrap();
        assert_eq!(store.check().unwrap(), vec![]);
        let without: i64 = sql
            .query_row(
                "SELECT count(*) FROM vector_2 WHERE provenance = 'native' AND sourced = 0",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!((store.counts("new-model").unwrap().native, without), (natives, 0), "{golden}");
        assert!(natives > 0);
    }
}

#[test]
fn a_gallery_of_format_1_that_cannot_be_written_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(FORMAT_1, folder.path());
    let mut permissions = fs_err::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs_err::set_permissions(&path, permissions).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("older rehang"), "{error}");
    assert_eq!(fs_err::read(&path).unwrap(), fs_err::read(FORMAT_1).unwrap(), "it was not touched");
}

#[test]
fn several_may_bring_a_gallery_up_at_once_and_a_dropped_space_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(FORMAT_1, folder.path());
    // A process of format 1 was dropping a space when it died: the tables are there, the triggers are not.
    let sql = Connection::open(&path).unwrap();
    let names = |kind: &str, suffix: &str| -> Vec<String> {
        let query =
            format!("SELECT name FROM sqlite_schema WHERE type = '{kind}' AND name LIKE '%{suffix}%'");
        let mut names = sql.prepare(&query).unwrap();
        names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    for trigger in names("trigger", "_2") {
        sql.execute_batch(&format!("DROP TRIGGER {trigger}")).unwrap();
    }
    sql.execute_batch(
        "INSERT INTO gallery (name, value) VALUES ('left-2', 2); DELETE FROM space WHERE number = 2;
         UPDATE gallery SET value = 'old-model' WHERE name = 'serving'",
    )
    .unwrap();
    drop(sql);
    let start = std::sync::Barrier::new(4);
    let open = || {
        start.wait();
        SqliteStore::open(&path).map(drop)
    };
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        for opener in openers {
            opener.join().unwrap().unwrap();
        }
    });
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.check().unwrap(), vec![]);
    store
        .create_space(&rehang_core::Space::new("third", 2, rehang_core::Distance::L2, false), Provenance::Native)
        .unwrap();
    let left: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'vector_2%'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0, "what was left of the dropped space is gone");
}
