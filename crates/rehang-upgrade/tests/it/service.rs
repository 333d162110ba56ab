//! Tests of a backfill whose embedding service serves nobody for a while, or is brought down by a single
//! text.

use std::path::Path;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use rehang_core::{Matrix, Provenance, Result};
use rehang_encode::{Encoder, EncoderConfig, Function, Watched, open};
use rehang_store::{Ledger, Scan, Select};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Ending, Limits, Place, Summary, Unobserved, put_back, status};
use serde_json::{Value, json};

use crate::common::{DieAt, ManualClock, World, new_model, new_space, started};
use crate::stub::{Reply, Seen, Stub, good_of};

const ITEMS: usize = 40;

fn good(seen: &Seen) -> Reply {
    Reply::Body(good_of(seen, new_model, |_| {}))
}

/// Runs a backfill as a process of its own: nothing of an earlier one is known to its encoder.
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
        // A service that says that it is loading, 503, is waited for.
        || Reply::Status(502, vec![], String::new()),
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
        // Once the service is well, the same run goes on with all items.
        let well = Stub::start(|_, seen| good(seen));
        let summary = run(&store, &world, &well).unwrap();
        assert_eq!((summary.ending, summary.native), (Ending::NothingLeft, ITEMS as u64), "case {at}");
        assert_eq!((summary.done.native, summary.done.failed), (20, 0), "case {at}");
    }
}

/// A service that asks one worker to wait for an hour ends the run, and so the shorter wait of the other.
#[test]
fn what_ends_a_run_is_what_the_service_said_to_one_of_its_workers() {
    let (store, world) = started(ITEMS);
    let both_asked = Barrier::new(2);
    let stub = Stub::start(move |number, _| {
        if number < 2 {
            both_asked.wait();
        }
        let wait = if number == 0 { "3600" } else { "200" };
        Reply::Status(429, vec![("Retry-After", wait.into())], String::new())
    });
    let limits = Limits { batch: 8, workers: 2, ..Limits::default() };
    let error = world.backfill(&store, &*endpoint(&stub), limits).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("3600 s"), "{error}");
}

#[test]
fn a_budget_is_that_of_all_runs_together() {
    let (store, world) = started(ITEMS);
    let stub = Stub::start(|_, seen| good(seen));
    let first = run_within(&store, &world, &stub, Some(13)).unwrap();
    assert_eq!((first.ending, first.done.native), (Ending::EncoderBudgetSpent, 12), "and one to compare");
    // A budget that is raised is raised for all: what the first run has used is gone from it.
    let second = run_within(&store, &world, &stub, Some(20)).unwrap();
    assert_eq!((second.ending, second.done.native, second.spent.items), (Ending::EncoderBudgetSpent, 6, 7));
    assert_eq!(status(&store, 0).unwrap().spent.items, 20);
    let third = run_within(&store, &world, &stub, Some(20)).unwrap();
    assert_eq!((third.ending, third.done.native), (Ending::EncoderBudgetSpent, 0));
    assert!(third.encoder_said.unwrap().contains("20 items"));
    // Nothing is sent either to compare what is there.
    let asked = stub.seen().len();
    let compared = run_with(&store, &world, &json!({"url": stub.url, "budget_items": 20})).unwrap();
    assert_eq!((compared.ending, compared.spent.items), (Ending::EncoderBudgetSpent, 0));
    assert_eq!(stub.seen().len(), asked);
    let last = run_within(&store, &world, &stub, Some(1000)).unwrap();
    assert_eq!((last.ending, last.native), (Ending::NothingLeft, ITEMS as u64));
    let spent = status(&store, 0).unwrap().spent.items - ITEMS as u64;
    assert!((3..=4).contains(&spent), "each run has compared, {spent} times in all");
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
    // Nothing is known of another model.
    assert!(run("another").0 >= 1);
}

/// A run may cost two requests at its start beside its texts, and a text that rides along with every 32.
#[test]
fn a_good_service_costs_two_requests_and_the_riders() {
    const NATIVE: usize = 320;
    // With few texts a request, the last ones are compared in one of their own.
    for (batch, alone) in [(16, 1), (64, 0)] {
        let (store, world) = started(2 * NATIVE);
        let stub = Stub::start(|_, seen| good(seen));
        let config = json!({"kind": "http", "url": stub.url, "model": "m", "batch": batch, "concurrency": 4});
        let config: EncoderConfig = serde_json::from_value(config).unwrap();
        // At first nothing is native. Then 16 items are embedded again and compared, with a rider of their
        // own.
        for compared in [0, 16] {
            let before = stub.seen().len();
            let encoder = open(&config, &new_space(), Path::new(".")).unwrap();
            let limits =
                Limits { batch: encoder.batch_max(), budget: Some(NATIVE as u64), ..Limits::default() };
            assert_eq!(world.backfill(&store, &*encoder, limits).unwrap().done.native, NATIVE as u64);
            let seen = stub.seen().split_off(before);
            let texts: usize = seen.iter().map(|seen| seen.texts().len()).sum();
            assert!(seen.len() <= NATIVE / batch + 2 + alone, "{} requests of {batch}", seen.len());
            assert!(texts <= NATIVE + compared + NATIVE / 32 + 2 * alone, "{texts} texts");
        }
        assert_eq!(store.counts("new-model").unwrap().native, 2 * NATIVE as u64);
    }
}

/// Number of items of a gallery whose encoder becomes another model in the middle.
const MANY: usize = 600;

/// Returns a model that turns into another one after so many texts.
fn turning(after: usize) -> impl Fn(&str) -> Vec<f32> + Send + Sync + 'static {
    let seen = AtomicUsize::new(0);
    move |text: &str| {
        let mut vector = new_model(text);
        if seen.fetch_add(1, Ordering::SeqCst) >= after {
            vector[3] += 1.0;
        }
        vector
    }
}

/// Makes an encoder of a function without a fingerprint, as Python's callables and programs without a
/// revision are.
fn watched(model: impl Fn(&str) -> Vec<f32> + Send + Sync + 'static) -> Watched {
    let embed = move |sources: &[&str]| {
        Matrix::new(4, sources.iter().flat_map(|source| model(source)).collect::<Vec<_>>())
    };
    Watched::new(Box::new(Function::new(&new_space(), 8, false, None, embed)))
}

/// Opens an endpoint that takes few texts a request.
fn endpoint(stub: &Stub) -> Box<dyn Encoder> {
    let config = json!({"kind": "http", "url": stub.url, "model": "m", "batch": 8, "concurrency": 2});
    open(&serde_json::from_value(config).unwrap(), &new_space(), Path::new(".")).unwrap()
}

/// Counts the native items; checks that each is right, and that every other item is adapted.
fn right_natives(store: &MemoryStore) -> usize {
    crate::common::check(store, &[crate::common::adapter()]);
    let scan = Scan::new("new-model", Select::All, MANY).with_vectors_of("new-model");
    let records = store.scan(&scan).unwrap();
    let count_with = |provenance| {
        let is_of = |record: &&rehang_store::Record| record.vector.as_ref().unwrap().provenance == provenance;
        records.iter().filter(is_of).count()
    };
    let native = count_with(Provenance::Native);
    assert_eq!((records.len(), native + count_with(Provenance::Adapted)), (MANY, MANY));
    native
}

#[test]
fn an_encoder_that_becomes_another_model_leaves_nothing_wrong() {
    for (is_service, workers, after) in
        [(false, 1, 300), (false, 1, 129), (false, 3, 300), (true, 1, 300), (true, 1, 9), (true, 3, 300)]
    {
        let (store, world) = started(MANY);
        let model = Arc::new(turning(after));
        let by_stub = Arc::clone(&model);
        let stub = Stub::start(move |_, seen| Reply::Body(good_of(seen, |text| by_stub(text), |_| {})));
        let encoder: Box<dyn Encoder> =
            if is_service { endpoint(&stub) } else { Box::new(watched(move |text| model(text))) };
        let limits = Limits { batch: 16, workers, ..Limits::default() };
        let said = world.backfill(&store, &*encoder, limits).unwrap_err();
        let native = right_natives(&store);
        let case = format!("service {is_service}, {workers} workers, after {after}: {said}");
        assert!(said.is_conflict() && said.to_string().contains("has changed"), "{case}");
        assert!(said.to_string().contains(&format!("{native} items were made native")), "{case}");
        assert!(said.to_string().contains("stay as they were"), "{case}");
        let lost = if is_service { 32 + 16 } else { 128 + 16 } * workers + 16;
        assert!(native <= after && native + lost >= after, "{case}");
        // All that was sent is on the account.
        let spent = status(&store, 0).unwrap().spent.items;
        assert_eq!(spent, encoder.spent().items, "{case}");
        let sent: usize = stub.seen().iter().map(|seen| seen.texts().len()).sum();
        assert!(!is_service || spent as usize == sent, "{case}");
        // The model of the beginning goes on.
        let summary = world.backfill(&store, &watched(new_model), limits).unwrap();
        assert_eq!((summary.ending, right_natives(&store)), (Ending::NothingLeft, MANY), "{case}");
    }
}

/// A process that dies between an answer and the comparison after it has written nothing of the answer to
/// where searches look. The next process pays for the batch that was at the encoder, and for one of eight
/// items that waited, which it compares. Whatever the model became meanwhile, every native is right.
#[test]
fn a_death_before_the_comparison_costs_a_batch_and_leaves_nothing_wrong() {
    const BATCH: usize = 16;
    for (place, turns_after) in [
        (Place::BackfillEncoded, MANY),
        (Place::BackfillUnvouched, MANY),
        (Place::BackfillEncoded, 200),
        (Place::BackfillUnvouched, 200),
    ] {
        for visit in [1, 5, 9, 10, 17, 18, 22, 24] {
            let (store, world) = started(MANY);
            let die = DieAt::new(place, visit);
            let limits = Limits { batch: BATCH, ..Limits::default() };
            let encoder = watched(turning(turns_after));
            world.backfill_observed(&store, &encoder, limits, &ManualClock::default(), &die).unwrap_err();
            let native = right_natives(&store);
            let case = format!("{place:?} {visit}, turns after {turns_after}: {native}");
            assert!(native.is_multiple_of(BATCH) && native <= turns_after + 8, "{case}");
            let (first, next) = (encoder.spent().items as usize, watched(new_model));
            let summary = world.backfill(&store, &next, limits).unwrap();
            assert_eq!((summary.ending, right_natives(&store)), (Ending::NothingLeft, MANY), "{case}");
            let sent = first + next.spent().items as usize;
            // Sent besides are the riders of both processes, what the second one compares at its start, and
            // one of eight items that waited.
            let beside = 2 * (MANY / 128 + 2) + 16 + (128 + BATCH) / 8;
            let bound = MANY + BATCH + beside;
            println!("{case}: {first} + {} sent", sent - first);
            assert!(turns_after < MANY || sent <= bound, "{case}: {sent} sent, not {bound}");
            // No vector is left in a document.
            for number in 0.. {
                let Some((_, text)) = store.document(&format!("held {number} of new-model")).unwrap() else {
                    break;
                };
                assert_eq!(text, "", "{case}: document {number}");
            }
        }
    }
}

/// A run that cannot ask its service any more keeps what the service gave last. The next run compares that
/// first.
#[test]
fn the_next_run_compares_what_a_service_that_was_gone_gave_last() {
    for after in [600, 50] {
        let (store, world) = started(MANY);
        let model = turning(after);
        let stub =
            Stub::start(
                move |number, seen| {
                    if number < 9 { Reply::Body(good_of(seen, &model, |_| {})) } else { Reply::Close }
                },
            );
        let limits = Limits { batch: 16, ..Limits::default() };
        let said = world.backfill(&store, &*endpoint(&stub), limits).unwrap_err().to_string();
        assert!(said.contains("could not be compared with itself, which the next run does first"), "{said}");
        let kept = status(&store, 0).unwrap().unvouched;
        assert!(kept > 0 && said.contains(&format!("the last {kept} of them")), "{kept}: {said}");
        let next = world.backfill(&store, &watched(new_model), limits);
        if after == 600 {
            assert_eq!((next.unwrap().ending, right_natives(&store)), (Ending::NothingLeft, MANY));
            assert_eq!(status(&store, 0).unwrap().unvouched, 0);
            continue;
        }
        let said = next.unwrap_err();
        assert!(said.is_conflict() && said.to_string().contains("which was among the last ones"), "{said}");
        assert_eq!(status(&store, 0).unwrap().unvouched, kept);
        put_back(&store, &world.setup(), &Unobserved).unwrap();
        assert_eq!(status(&store, 0).unwrap().unvouched, 0);
        world.backfill(&store, &watched(new_model), limits).unwrap();
        assert_eq!(right_natives(&store), MANY);
    }
}

/// A budget has room for the comparison of what it is spent on.
#[test]
fn what_a_budget_is_spent_on_is_compared() {
    for budget in [9, 33, 50, 100, 101] {
        for after in [budget as usize - 3, MANY] {
            let (store, world) = started(MANY);
            let model = turning(after);
            let stub = Stub::start(move |_, seen| Reply::Body(good_of(seen, &model, |_| {})));
            let config = json!({"kind": "http", "url": stub.url, "model": "m", "batch": 8, "concurrency": 1, "budget_items": budget});
            let encoder =
                open(&serde_json::from_value(config).unwrap(), &new_space(), Path::new(".")).unwrap();
            let limits = Limits { batch: 16, ..Limits::default() };
            let ended = world.backfill(&store, &*encoder, limits);
            let native = right_natives(&store);
            assert!(encoder.spent().items <= budget, "{budget}");
            match ended {
                Ok(summary) => {
                    assert_eq!((summary.ending, after), (Ending::EncoderBudgetSpent, MANY), "{budget}");
                    assert!(native + budget as usize / 32 + 3 >= budget as usize, "{native} of {budget}");
                }
                Err(said) => assert!(said.is_conflict() && after < MANY, "{budget}: {said}"),
            }
        }
    }
}
