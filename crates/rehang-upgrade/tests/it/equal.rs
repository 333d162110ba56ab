//! Tests of items with equal sources: a text is sent once, whoever else has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rehang_core::{Matrix, Provenance};
use rehang_encode::{Encoder, Function, HttpConfig, Watched};
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger, NewVector, Scan, Select, Store};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Ending, Limits, Unobserved, estimate, start, status};

use crate::common::{TestEncoder, World, check, id, item, new_model, new_space, old_space};

const ITEMS: usize = 300;
const TEXTS: usize = 60;

/// Returns an item whose source is one of [`TEXTS`].
fn copy(number: usize) -> ItemWrite {
    ItemWrite { id: id(number), ..item(number % TEXTS, 0) }
}

fn started(store: &dyn Store) -> World {
    let world = World::new();
    store.create_space(&old_space(), Provenance::Old).unwrap();
    store.put(&(0..ITEMS).map(copy).collect::<Vec<_>>()).unwrap();
    start(store, &world.setup(), &Unobserved).unwrap();
    world
}

fn encoder() -> TestEncoder {
    TestEncoder { reads_source_alone: true, ..TestEncoder::new() }
}

fn native(store: &dyn Store) -> u64 {
    store.counts(&new_space().name).unwrap().native
}

#[test]
fn equal_sources_are_embedded_once() {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = SqliteStore::create(folder.path().join("gallery")).unwrap();
    for store in [&MemoryStore::new() as &dyn Store, &on_disk] {
        let world = started(store);
        let encoder = encoder();
        // Some items come in an earlier run, and the rest in batches that have some of their sources, their
        // own copies and those of each other.
        let some = Limits { batch: 7, budget: Some(45), ..Limits::default() };
        assert_eq!(world.backfill(store, &encoder, some).unwrap().ending, Ending::SpentBudget);
        let first = encoder.count();
        assert!(first < 45, "{first} of 45 were sent");
        let summary = world.backfill(store, &encoder, Limits { batch: 7, ..Limits::default() }).unwrap();
        assert_eq!((summary.done.native, native(store)), (255, 300));
        assert_eq!(summary.copied, u64::from(255 - (encoder.count() - first)));
        check(store, &[world.adapter]);
        assert_eq!(encoder.count(), TEXTS as u32, "each text once");
    }
}

/// Batches that are at the encoder at the same time do not wait for each other.
#[test]
fn workers_pay_for_a_text_once_each_at_most() {
    let store = MemoryStore::new();
    let world = started(&store);
    let encoder = encoder();
    let limits = Limits { batch: 10, workers: 3, ..Limits::default() };
    world.backfill(&store, &encoder, limits).unwrap();
    check(&store, &[world.adapter]);
    assert_eq!(native(&store), 300);
    assert!(encoder.embedded.lock().unwrap().values().all(|times| *times <= 3));
}

/// A program may look at the id, too.
#[test]
fn an_encoder_that_may_read_more_is_given_every_item() {
    let store = MemoryStore::new();
    let world = started(&store);
    let encoder = TestEncoder::new();
    assert_eq!(world.backfill(&store, &encoder, Limits::default()).unwrap().copied, 0);
    assert_eq!(encoder.count(), 300);
}

#[test]
fn what_fails_fails_for_every_item_that_has_it() {
    let store = MemoryStore::new();
    let world = started(&store);
    let mut encoder = encoder();
    encoder.broken = vec!["source 4 version 0".into()];
    encoder.flaky.get_mut().unwrap().insert("source 9 version 0".into(), 2);
    let summary = world.backfill(&store, &encoder, Limits { batch: 50, ..Limits::default() }).unwrap();
    assert_eq!((summary.ending, summary.done.native, summary.done.failed), (Ending::NothingLeft, 295, 5));
    assert!(status(&store, 10).unwrap().failures.iter().all(|failure| failure.reason == "no such file"));
    check(&store, &[world.adapter]);
}

/// A vector that an item had is no vector of what it was, once an application has written the item.
#[test]
fn the_vector_of_an_item_that_was_written_since_is_not_taken() {
    let store = MemoryStore::new();
    let world = started(&store);
    let encoder = encoder();
    world.backfill(&store, &encoder, Limits { budget: Some(60), ..Limits::default() }).unwrap();
    // The items are written with a vector of the application's own, and with another source.
    let records = store.scan(&Scan::new(new_space().name, Select::Provenance(Provenance::Native), 300));
    for record in records.unwrap() {
        let number = crate::common::number(&record.item.id);
        store.put(&[item(number, 1)]).unwrap();
    }
    let own = NewVector::from_model(new_space().name, vec![9.0; 4], Provenance::Native);
    store.put(&[ItemWrite { vectors: vec![own], ..copy(3) }]).unwrap();
    store.delete(&[&id(3)]).unwrap();
    world.backfill(&store, &encoder, Limits::default()).unwrap();
    check(&store, &[world.adapter]);
}

/// Copies wait for the comparison as their originals do. Where the encoder is another one by then, nothing of
/// either is written.
#[test]
fn a_copy_is_vouched_for_as_its_original() {
    for turns_at in [usize::MAX, 30] {
        let store = MemoryStore::new();
        let world = started(&store);
        let sent = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&sent);
        let embed = move |sources: &[&str]| {
            let before = counts.fetch_add(sources.len(), Ordering::SeqCst);
            let rows = sources.iter().enumerate().flat_map(|(at, source)| {
                let mut vector = new_model(source);
                vector[3] += if before + at >= turns_at { 3.0 } else { 0.0 };
                vector
            });
            Matrix::new(4, rows.collect())
        };
        let watched = Watched::new(Box::new(Function::new(&new_space(), 8, false, None, embed)));
        assert!(watched.reads_source_alone());
        let outcome = world.backfill(&store, &watched, Limits { batch: 8, ..Limits::default() });
        check(&store, std::slice::from_ref(&world.adapter));
        if turns_at == usize::MAX {
            assert_eq!((outcome.unwrap().done.native, native(&store)), (300, 300));
            // The comparisons are sent as well.
            assert!(sent.load(Ordering::SeqCst) < TEXTS + 10, "{sent:?} were sent");
        } else {
            assert!(outcome.unwrap_err().is_conflict());
            assert!(native(&store) < 300);
        }
    }
}

/// A plan reckons with what a run pays: of equal sources one.
#[test]
fn a_plan_reckons_equal_sources_once() {
    let store = MemoryStore::new();
    let world = started(&store);
    let service = serde_json::json!({"url": "http://127.0.0.1:1", "model": "m"});
    let service: HttpConfig = serde_json::from_value(service).unwrap();
    let estimated =
        |service, items| estimate(&store, &world.setup(), items, &Limits::default(), service, None).unwrap();
    let text = |number: usize| copy(number).source.unwrap();
    let tokens: u64 = (0..TEXTS).map(|number| service.tokens(&text(number))).sum();
    let all = estimated(Some(&service), ITEMS as u64);
    assert_eq!((all.sent, all.tokens), (Some(TEXTS as u64), Some(tokens)));
    assert_eq!(estimated(Some(&service), ITEMS as u64 / 2).sent, Some(TEXTS as u64 / 2));
    assert_eq!(estimated(None, ITEMS as u64).sent, None);
}
