//! A gallery whose service has a batch API: the program is killed again and again while batches are under
//! way, and what was sent comes back.

use std::collections::BTreeMap;
use std::process::Stdio;

use rehang_core::{Matrix, Provenance};
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger as _, Scan, Select};
use serde_json::{Value, json};

use crate::common::Place;
use crate::common::upgrade::{self, IMPORT, upgrade};
use crate::desk::Desk;

const ITEMS: usize = 300;
const D_OLD: usize = 3;
const D_NEW: usize = 4;
const BUDGET: usize = 150;

fn text(number: usize) -> String {
    format!("text number {number}")
}

fn model(text: &str) -> Vec<f32> {
    let number: usize = text.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    (0..D_NEW).map(|column| ((number * 7 + column * 13) % 101) as f32 + 1.0).collect()
}

fn place(desk: &Desk) -> Place {
    let old = Matrix::from_fn(ITEMS, D_OLD, |row, column| model(&text(row))[column]);
    let item = |row| json!({"id": format!("i{row}"), "source": text(row)});
    let place = upgrade::gallery(&old, &(0..ITEMS).map(item).collect::<Vec<Value>>(), D_NEW);
    let encoder = format!(
        "[encoder]\nkind = \"http\"\nurl = \"{}\"\nmodel = \"m\"\nbatch_api = true\nbatch_api_items = 100\n\
         batch_api_poll_seconds = 0.02\n[run]\nlease = 1\nworkers = 2\n",
        desk.stub.url
    );
    upgrade::configure(&place, &encoder);
    place.finish(&IMPORT);
    place.finish(&upgrade("start"));
    place
}

/// The sources of native items, each of which has the vector of its source as it is now.
fn natives(place: &Place) -> BTreeMap<String, String> {
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let scan =
        Scan::new("second", Select::Provenance(Provenance::Native), 10 * ITEMS).with_vectors_of("second");
    let records = store.scan(&scan).unwrap();
    let native = records.into_iter().map(|record| {
        let source = record.item.source.unwrap();
        assert_eq!(record.vector.unwrap().vector, model(&source), "{source}");
        (record.item.id, source)
    });
    native.collect()
}

#[test]
fn killed_while_a_batch_is_under_way_it_takes_what_was_sent_and_sends_nothing_twice() {
    let desk = Desk::good(model);
    let place = place(&desk);
    desk.books().polls = usize::MAX;
    let budget = BUDGET.to_string();
    let run = [&upgrade("run")[..], &["--budget", &budget]].concat();
    let start = || {
        desk.next_process(None);
        let mut command = place.command(&run);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        desk.wait_until(|books| books.batches.len() == 2 && !books.asked.is_empty());
        child
    };
    // More often than an item may be in the hands of a worker that dies.
    for _ in 0..5 {
        let mut child = start();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let child = start();
    // An item that has another text by then has another vector, too.
    let sent: Vec<String> = desk.books().sent.keys().cloned().collect();
    assert_eq!((sent.len(), desk.most_sent()), (BUDGET, 1));
    let changed = sent[0].rsplit(' ').next().unwrap();
    let write = ItemWrite::new(format!("i{changed}"), Some("another text 7".into()), vec![]);
    SqliteStore::open(place.path("G.db")).unwrap().put(&[write]).unwrap();
    desk.books().polls = 0;
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let there = natives(&place);
    assert!((BUDGET - 1..=BUDGET).contains(&there.len()), "{}", there.len());
    assert!(!there.values().any(|source| *source == sent[0]), "of a text that it has no more");
    assert_eq!(desk.most_sent(), 1);
    assert_eq!(desk.books().batches.len(), 2);
    assert_eq!(desk.books().sent.len(), BUDGET);
    // The rest, whose batches are over at once.
    desk.next_process(None);
    place.finish(&upgrade("run"));
    let (there, books) = (natives(&place), desk.books());
    assert_eq!(there.len(), ITEMS);
    assert_eq!(there[&format!("i{changed}")], "another text 7");
    assert!(books.sent.values().all(|times| *times == 1), "{:?}", books.sent);
    assert!(books.sent.len() + 16 >= ITEMS, "{} of them in batches", books.sent.len());
    drop(books);
    let counts = SqliteStore::open(place.path("G.db")).unwrap().counts("second").unwrap();
    assert_eq!((counts.native, counts.failed), (ITEMS as u64, 0));
}
