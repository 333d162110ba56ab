//! Two real processes that share a queue, one of which is killed: nothing is handed out twice but what the
//! dead one held.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rehang_core::{Distance, Provenance, Space};
use rehang_sqlite::SqliteStore;
use rehang_store::{
    Epoch, Examined, ItemWrite, LeaseClock, Ledger, Priority, Queue, Record, SystemLeaseClock, VectorWrite,
};

const ITEMS: usize = 300;
/// Time longer than any test: a lease of a living process does not run out.
const LEASE: Duration = Duration::from_hours(1);

/// Variable with the gallery that the child process works on, under the name in [`WORKER`]; the child is the
/// same binary.
const GALLERY: &str = "REHANG_STORE_TEST_WORKS_ON";
const WORKER: &str = "REHANG_STORE_TEST_WORKER";

/// Clock of the time when every lease has run out.
#[derive(Debug)]
struct Later;

impl LeaseClock for Later {
    fn now_ms(&self) -> u64 {
        SystemLeaseClock.now_ms() + 2 * LEASE.as_millis() as u64
    }
}

fn write(record: &Record, provenance: Provenance) -> VectorWrite {
    let priority = (provenance == Provenance::Adapted).then_some(Priority::ordinary(1.0));
    VectorWrite { provenance, priority, ..VectorWrite::native(&record.item, vec![1.0]) }
}

#[test]
fn a_child_that_works_until_nothing_is_free() {
    let (Ok(path), Ok(worker)) = (std::env::var(GALLERY), std::env::var(WORKER)) else { return };
    let store = SqliteStore::open(path).unwrap();
    loop {
        let claimed = store.claim("new", Queue::All, &worker, 4, LEASE).unwrap().records;
        if claimed.is_empty() {
            return;
        }
        for record in &claimed {
            println!("claimed {}", record.item.id);
        }
        let writes: Vec<VectorWrite> =
            claimed.iter().map(|record| write(record, Provenance::Native)).collect();
        store.write_vectors("new", None, &writes).unwrap();
    }
}

fn start(path: &Path, worker: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "processes::a_child_that_works_until_nothing_is_free",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(GALLERY, path)
        .env(WORKER, worker)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Ids that a child says it claimed; it is killed after so many, if it gets that far.
fn claimed_by(mut child: Child, killed_after: usize) -> Vec<String> {
    let mut claimed = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // The harness writes the test's name in front of the first line.
        if let Some(at) = line.find("claimed ") {
            claimed.push(line[at + "claimed ".len()..].to_owned());
        }
        if claimed.len() == killed_after {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    claimed
}

#[test]
fn what_a_killed_process_held_is_taken_over_and_nothing_else_is_handed_out_twice() {
    let folder = tempfile::tempdir().unwrap();
    for killed_after in [1, 7, 40] {
        let path = folder.path().join(format!("{killed_after}.db"));
        let store = SqliteStore::create(&path).unwrap();
        store.create_space(&Space::new("new", 1, Distance::L2, false), Provenance::Native).unwrap();
        let items: Vec<ItemWrite> =
            (0..ITEMS).map(|at| ItemWrite::new(format!("i{at}"), Some("x".into()), vec![])).collect();
        store.put(&items).unwrap();
        let all = store.claim("new", Queue::All, "nobody", ITEMS, LEASE).unwrap().records;
        let adapted: Vec<VectorWrite> = all.iter().map(|record| write(record, Provenance::Adapted)).collect();
        store.write_vectors("new", Some(Epoch::FIRST), &adapted).unwrap();
        store.release("new", "nobody", None).unwrap();

        let (left, right) = (start(&path, "left"), start(&path, "right"));
        let (left, right) = std::thread::scope(|scope| {
            let left = scope.spawn(|| claimed_by(left, killed_after));
            let right = scope.spawn(|| claimed_by(right, usize::MAX));
            (left.join().unwrap(), right.join().unwrap())
        });
        let both: BTreeSet<&String> = left.iter().chain(&right).collect();
        assert_eq!(both.len(), left.len() + right.len(), "an item was handed out to both");
        assert_eq!(store.check().unwrap(), vec![]);
        let held = ITEMS as u64 - store.counts("new").unwrap().native;
        let at_work = store.at_work("new").unwrap();
        assert_eq!(at_work.iter().map(|worker| worker.items).sum::<u64>(), held, "{at_work:?}");
        assert!(at_work.iter().all(|worker| worker.worker == "left"), "{at_work:?}");
        let claimed = store.claim("new", Queue::All, "other", ITEMS, LEASE).unwrap();
        assert_eq!(
            (claimed.records.len(), claimed.held_by_others),
            (0, held),
            "a lease outlives its process"
        );
        drop(store);

        let later = SqliteStore::open(&path).unwrap().with_clock(Arc::new(Later));
        let claimed = later.claim("new", Queue::All, "other", ITEMS, LEASE).unwrap().records;
        assert_eq!(claimed.len() as u64, held, "what ran out is anybody's");
        let writes: Vec<VectorWrite> =
            claimed.iter().map(|record| write(record, Provenance::Native)).collect();
        later.write_vectors("new", None, &writes).unwrap();
        assert_eq!(later.counts("new").unwrap().native, ITEMS as u64);
        assert_eq!(later.check().unwrap(), vec![]);
    }
}
