//! What a backfill makes of an embedding service that serves nobody for a while, and of one that a single text brings down.

use std::path::Path;

use rehang::Result;
use rehang_encode::{Encoder, EncoderConfig, open};
use rehang_store::Ledger;
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Ending, Limits, Summary, status};
use serde_json::{Value, json};

use crate::common::{World, new_model, new_space, started};
use crate::stub::{Reply, Seen, Stub, good_of};

const ITEMS: usize = 40;

fn good(seen: &Seen) -> Reply {
    Reply::Body(good_of(seen, new_model, |_| {}))
}

/// A run of its own process: nothing of an earlier one is known to its encoder.
fn run(store: &MemoryStore, world: &World, stub: &Stub) -> Result<Summary> {
    run_with(store, world, &json!({"url": stub.url}))
}

fn run_within(store: &MemoryStore, world: &World, stub: &Stub, budget: Option<u64>) -> Result<Summary> {
    let revision = "so that nothing is embedded again to compare";
    run_with(store, world, &json!({"url": stub.url, "budget_items": budget, "revision": revision}))
}

fn run_with(store: &MemoryStore, world: &World, more: &Value) -> Result<Summary> {
    let mut config = json!({"kind": "http", "model": "m", "batch": 4, "concurrency": 2, "attempts": 1});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let config: EncoderConfig = serde_json::from_value(config).unwrap();
    let encoder: Box<dyn Encoder> = open(&config, &new_space(), Path::new(".")).unwrap();
    world.backfill(store, &*encoder, Limits { batch: 8, ..Limits::default() })
}

#[test]
fn a_service_that_serves_nobody_ends_the_run_and_fails_no_item() {
    let down: [fn() -> Reply; 3] = [
        || Reply::Status(503, vec![], String::new()),
        || Reply::Status(429, vec![("Retry-After", "3600".into())], String::new()),
        || Reply::Close,
    ];
    for (at, down) in down.into_iter().enumerate() {
        let (store, world) = started(ITEMS);
        let stub = Stub::start(move |number, seen| if number < 5 { good(seen) } else { down() });
        let error = run(&store, &world, &stub).unwrap_err();
        assert!(error.is_retryable(), "case {at}: {error}");
        assert!(error.to_string().contains("20 items were made native"), "case {at}: {error}");
        let counts = store.counts("new-model").unwrap();
        assert_eq!((counts.native, counts.failed), (20, 0), "case {at}: no item is to blame");
        let spent = status(&store, 0).unwrap().spent.items;
        assert!(spent >= 20, "case {at}: what was embedded is on the account, not {spent}");
        assert!(stub.seen().len() < 20, "case {at}: it is left alone, not asked {} times", stub.seen().len());
        // Once it is well, the same run goes on with all of them.
        let well = Stub::start(|_, seen| good(seen));
        let summary = run(&store, &world, &well).unwrap();
        assert_eq!((summary.ending, summary.native), (Ending::NothingLeft, ITEMS as u64), "case {at}");
        assert_eq!((summary.done.native, summary.done.failed), (20, 0), "case {at}");
    }
}

#[test]
fn a_budget_is_that_of_all_runs_together() {
    let (store, world) = started(ITEMS);
    let stub = Stub::start(|_, seen| good(seen));
    let first = run_within(&store, &world, &stub, Some(13)).unwrap();
    assert_eq!((first.ending, first.done.native), (Ending::EncoderBudgetSpent, 13));
    // A budget that is raised is raised for all: what the first run has used is gone from it.
    let second = run_within(&store, &world, &stub, Some(20)).unwrap();
    assert_eq!((second.ending, second.done.native, second.spent.items), (Ending::EncoderBudgetSpent, 7, 7));
    assert_eq!(status(&store, 0).unwrap().spent.items, 20);
    let third = run_within(&store, &world, &stub, Some(20)).unwrap();
    assert_eq!((third.ending, third.done.native), (Ending::EncoderBudgetSpent, 0));
    assert!(third.encoder_said.unwrap().contains("20 items"));
    // Nor is anything sent to compare what is there.
    let asked = stub.seen().len();
    let compared = run_with(&store, &world, &json!({"url": stub.url, "budget_items": 20})).unwrap();
    assert_eq!((compared.ending, compared.spent.items), (Ending::EncoderBudgetSpent, 0));
    assert_eq!(stub.seen().len(), asked);
    let last = run_within(&store, &world, &stub, Some(1000)).unwrap();
    assert_eq!((last.ending, last.native), (Ending::NothingLeft, ITEMS as u64));
    assert_eq!(status(&store, 0).unwrap().spent.items, ITEMS as u64);
}

#[test]
fn a_text_that_brings_the_service_down_is_listed_and_stops_nothing() {
    let (store, world) = started(ITEMS);
    let stub = Stub::start(|_, seen| {
        if seen.texts().iter().any(|text| text == "source 7 version 0") {
            return Reply::Status(500, vec![], String::new());
        }
        good(seen)
    });
    // The second time nothing else is left that could tell the service from the text.
    for native in [39, 0] {
        let summary = run(&store, &world, &stub).unwrap();
        assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, native));
        assert_eq!((summary.done.failed, summary.native), (1, 39));
        let failures = store.failures("new-model", None, 9).unwrap();
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].id, "1007");
        assert!(failures[0].reason.contains("500"), "{}", failures[0].reason);
        assert_eq!(store.clear_failures("new-model").unwrap(), 1);
    }
}

#[test]
fn what_a_service_takes_is_learnt_once_for_all_processes() {
    let (store, world) = started(400);
    let good_to = |limit: usize| {
        Stub::start(move |_, seen| {
            if seen.texts().len() > limit { Reply::Status(413, vec![], String::new()) } else { good(seen) }
        })
    };
    let stub = good_to(10);
    let limits = Limits { batch: 64, budget: Some(100), ..Limits::default() };
    let run = |model: &str| {
        let before = stub.seen().len();
        let revision = "nothing is compared";
        let config = json!({"kind": "http", "url": stub.url, "model": model, "batch": 64, "concurrency": 1, "revision": revision});
        let config: EncoderConfig = serde_json::from_value(config).unwrap();
        let encoder = open(&config, &new_space(), Path::new(".")).unwrap();
        assert_eq!(world.backfill(&store, &*encoder, limits).unwrap().done.native, 100);
        let seen = stub.seen().split_off(before);
        (seen.iter().filter(|seen| seen.texts().len() > 10).count(), seen.len())
    };
    let (refused, _) = run("m");
    assert!((1..=5).contains(&refused), "{refused}");
    // The next process, and another worker, know it.
    let (refused, requests) = run("m");
    assert_eq!(refused, 0);
    assert!(requests <= 100_usize.div_ceil(8) + 3, "{requests}");
    // Of another model nothing is known.
    assert!(run("another").0 >= 1);
}

/// What a run may cost beside its texts: two requests at its start, and a text that rides along with every 32.
#[test]
fn a_good_service_costs_two_requests_and_the_riders() {
    const BATCH: usize = 16;
    const NATIVE: usize = 320;
    let (store, world) = started(2 * NATIVE);
    let stub = Stub::start(|_, seen| good(seen));
    let config = json!({"kind": "http", "url": stub.url, "model": "m", "batch": BATCH, "concurrency": 4});
    let config: EncoderConfig = serde_json::from_value(config).unwrap();
    // At first nothing is native. Then 16 items are embedded again and compared.
    for compared in [0, 16] {
        let before = stub.seen().len();
        let encoder = open(&config, &new_space(), Path::new(".")).unwrap();
        let limits = Limits { batch: encoder.batch_max(), budget: Some(NATIVE as u64), ..Limits::default() };
        assert_eq!(world.backfill(&store, &*encoder, limits).unwrap().done.native, NATIVE as u64);
        let seen = stub.seen().split_off(before);
        let texts: usize = seen.iter().map(|seen| seen.texts().len()).sum();
        assert!(seen.len() <= NATIVE / BATCH + 2, "{} requests", seen.len());
        assert!(texts <= NATIVE + compared + NATIVE / 32, "{texts} texts");
    }
    assert_eq!(store.counts("new-model").unwrap().native, 2 * NATIVE as u64);
}
