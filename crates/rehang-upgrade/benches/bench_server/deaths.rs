//! Four workers, each a process of its own, embed a whole gallery while an application writes and searches
//! it; two of them are killed. In the end every item has the new model's vector of the text that the
//! application wrote last.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::{Adapter, Progress, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_store::{Scan, Select, Store};
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Ending, Limits, Serving, SystemClock, Unobserved, UpgradeSetup, backfill,
    start, switch,
};

use crate::{Ends, ORDER, Server, Waits, d_new, d_old, search_rows, space, vector, write_rows};

const WORKERS: usize = 4;
const BATCH: usize = 256;
/// Time that the items of a dead worker wait.
const LEASE_MS: u64 = 5_000;

pub fn among_deaths(server: &dyn Server, adapter: &Adapter, address: &str, rows: usize) {
    server.make("documents", rows);
    server.index();
    let store = server.adopt();
    let (old, new) = (space("old", d_old()), space("new", d_new()));
    let setup = UpgradeSetup { old: &old, new: &new, adapter: Some(adapter), order: ORDER };
    let (waits, to_new, is_over) = (Waits::default(), AtomicBool::new(false), AtomicBool::new(false));
    let mut written = 0;
    thread::scope(|scope| {
        let application = scope.spawn(|| write_rows(server, rows, &waits, &is_over));
        scope.spawn(|| search_rows(server, &waits, &to_new, &is_over));
        let ends = Ends(&is_over);
        start(&*store, &setup, &Unobserved).unwrap();
        switch(&*store, &setup, Serving::Mixed, &Unobserved).unwrap();
        to_new.store(true, Ordering::Relaxed);
        waits.print("beside the start and the switch");
        let began = Instant::now();
        let mut workers: Vec<Child> = (0..WORKERS).map(|number| spawn(address, number)).collect();
        for mut worker in workers.drain(..2) {
            thread::sleep(Duration::from_secs(3));
            assert!(worker.try_wait().unwrap().is_none(), "it is still at work");
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        for mut worker in workers {
            assert!(worker.wait().unwrap().success());
        }
        let natives = store.counts("new").unwrap().native;
        println!(
            "{WORKERS} workers, 2 of them killed: {natives} native after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        drop(ends);
        written = application.join().unwrap();
    });
    waits.print("beside four workers and two deaths");
    // Items that were written while the last worker ended.
    work(&*store, adapter, "last");
    check(&*store, rows, written);
    println!("every item has the new vector of its last text, after {written} writes of the application");
    assert_eq!(server.check(), []);
    assert_eq!(store.counts("new").unwrap().items, server.count());
}

/// Starts this program again as a worker.
fn spawn(address: &str, number: usize) -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args([address, "work", &number.to_string()]).spawn().unwrap()
}

/// Embeds until nothing is left.
pub fn work(store: &dyn Store, adapter: &Adapter, name: &str) {
    let setup = BackfillSetup {
        store,
        encoder: &OfTexts(space("new", d_new())),
        scope: BackfillScope::Gallery(Some(adapter)),
        limits: Limits { batch: BATCH, workers: 2, lease_ms: LEASE_MS, ..Limits::default() },
        clock: &SystemClock::start(),
        worker: &format!("worker {name}"),
    };
    let summary = backfill(&setup, &Progress::default()).unwrap();
    assert_eq!((summary.ending, summary.done.failed), (Ending::NothingLeft, 0));
}

/// Holds the gallery against what the application has written.
fn check(store: &dyn Store, rows: usize, written: usize) {
    let mut texts: BTreeMap<usize, usize> = (0..rows).map(|row| (row, row)).collect();
    for at in 0..written {
        let row = (at * 7919) % rows;
        match at % 4 {
            0 => drop(texts.insert(rows + at, at)),
            1 | 2 => drop(texts.get_mut(&row).map(|text| *text = at)),
            _ => drop(texts.remove(&row)),
        }
    }
    let mut after = None;
    loop {
        let scan = Scan::new("new", Select::All, 2000).after(after).with_vectors_of("new");
        let records = store.scan(&scan).unwrap();
        let Some(last) = records.last() else { break };
        after = Some(last.item.key);
        for record in records {
            let text = texts.remove(&record.item.id.parse().unwrap()).expect("a row of the application");
            assert_eq!(record.item.source, Some(format!("text {text}")), "{}", record.item.id);
            let held = record.vector.expect("a vector");
            assert_eq!(held.provenance, Provenance::Native, "{}", record.item.id);
            assert_eq!(held.vector, vector(text, d_new()), "{}", record.item.id);
        }
    }
    assert!(texts.is_empty(), "all rows of the application are there");
}

/// A model of texts, which takes no time.
struct OfTexts(Space);

impl Encoder for OfTexts {
    fn space(&self) -> &Space {
        &self.0
    }

    fn batch_max(&self) -> usize {
        BATCH
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<std::result::Result<Vec<f32>, ItemFailure>>> {
        let text = |input: &Input<'_>| input.source.trim_start_matches("text ").parse().unwrap();
        Ok(inputs.iter().map(|input| Ok(vector(text(input), d_new()))).collect())
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}
