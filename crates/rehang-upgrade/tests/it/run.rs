//! Tests of the backfill loop against a real encoder thread: limits are exact, failures are listed, a wrong
//! key ends it with what is done.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rehang_core::{ErrorKind, Matrix, Provenance, Remedy, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_store::{Filter, Ledger, ManualLeaseClock, Queue, QueueBand, Record, Scan, Select};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    Clock, Ending, Gallery, Limits, Observation, Observer, Place, Request, Serving, Unobserved, Until,
    begin_sampling, expect_same, finish, plan, put_back, request, rollback, start, status, switch,
};

use crate::common::hooked::Hooked;
use crate::common::{self, DieAt, ManualClock, TestEncoder, World, check, fill, started};

const ITEMS: usize = 200;

#[test]
fn fractions_and_budgets_are_met_to_the_item() {
    for workers in [1, 3] {
        let (store, world) = started(ITEMS);
        let encoder = TestEncoder::new();
        let limits = Limits { batch: 7, workers, ..Limits::default() };
        let summary =
            world.backfill(&store, &encoder, Limits { until: Until::Fraction(0.3), ..limits }).unwrap();
        assert_eq!((summary.ending, summary.native), (Ending::ReachedFraction, 60));
        assert_eq!(store.counts("new-model").unwrap().native, 60);
        let summary = world.backfill(&store, &encoder, Limits { budget: Some(33), ..limits }).unwrap();
        assert_eq!((summary.ending, summary.done.native, summary.native), (Ending::SpentBudget, 33, 93));
        let summary = world.backfill(&store, &encoder, limits).unwrap();
        assert_eq!((summary.ending, summary.native), (Ending::NothingLeft, 200));
        assert_eq!(encoder.count(), 200, "each item is embedded once");
        check(&store, &[common::adapter()]);
    }
}

/// Observer that changes the first items that are written; a while passes with each write, so that the loop
/// looks and counts.
struct TakeBack<'a>(&'a MemoryStore, &'a ManualClock, AtomicBool);

impl Observer for TakeBack<'_> {
    fn reach(&self, place: Place) -> Result<()> {
        if place != Place::BackfillWritten {
            return Ok(());
        }
        if !self.2.swap(true, Ordering::SeqCst) {
            let native = Scan::new("new-model", Select::Provenance(Provenance::Native), ITEMS);
            for record in self.0.scan(&native)? {
                let number = common::number(&record.item.id);
                self.0.put(&[common::item(number, 1)])?;
            }
        }
        self.1.wait(Duration::from_secs(6));
        Ok(())
    }
}

#[test]
fn items_that_change_after_they_were_written_do_not_count() {
    let (store, world) = started(ITEMS);
    let clock = ManualClock::default();
    let limits = Limits { batch: 10, until: Until::Fraction(0.5), ..Limits::default() };
    let faults = TakeBack(&store, &clock, AtomicBool::new(false));
    let summary = world.backfill_observed(&store, &TestEncoder::new(), limits, &clock, &faults).unwrap();
    assert_eq!((summary.ending, summary.native), (Ending::ReachedFraction, 100));
    assert_eq!(summary.done.native, 110, "ten of them twice");
    assert_eq!(store.counts("new-model").unwrap().native, 100);
}

/// Observer that counts the pages of catch-ups, each of which takes so many milliseconds.
struct SlowCatchUp<'a>(&'a ManualClock, u64, AtomicU64);

impl Observer for SlowCatchUp<'_> {
    fn reach(&self, place: Place) -> Result<()> {
        if place == Place::CatchUpRead {
            self.2.fetch_add(1, Ordering::SeqCst);
            self.0.wait(Duration::from_millis(self.1));
        }
        Ok(())
    }
}

#[test]
fn catching_up_rests_where_it_is_slow() {
    for (page_ms, passes) in [(0, 20..40), (1000, 1..5)] {
        let (store, world) = started(ITEMS);
        // An item without any vector and without a source lacks one at every look.
        let mut write = common::item(ITEMS, 0);
        (write.source, write.vectors) = (None, vec![]);
        store.put(&[write]).unwrap();
        let clock = ManualClock::default();
        let faults = SlowCatchUp(&clock, page_ms, AtomicU64::new(0));
        let limits = Limits { batch: 1, ..Limits::default() };
        let summary = world.backfill_observed(&store, &TestEncoder::new(), limits, &clock, &faults).unwrap();
        assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, ITEMS as u64));
        let passed = faults.2.load(Ordering::SeqCst);
        assert!(passes.contains(&passed), "{passed} passes of {page_ms} ms");
    }
}

#[test]
fn counting_rests_where_it_is_slow() {
    for (count_ms, counts) in [(0, 15..40), (60_000, 2..5)] {
        let (store, world) = started(ITEMS);
        let clock = Arc::new(ManualClock::default());
        let counted = Arc::new(AtomicU64::new(0));
        let (time, counter) = (Arc::clone(&clock), Arc::clone(&counted));
        let store = Hooked::new(&store, move |_, call| {
            match call {
                "counts" => {
                    counter.fetch_add(1, Ordering::SeqCst);
                    time.wait(Duration::from_millis(count_ms));
                }
                // All items are written in two minutes.
                "write_vectors" => time.wait(Duration::from_millis(600)),
                _ => {}
            }
            Ok(())
        });
        let limits = Limits { batch: 1, ..Limits::default() };
        let summary =
            world.backfill_observed(&store, &TestEncoder::new(), limits, &*clock, &Unobserved).unwrap();
        assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, ITEMS as u64));
        let counted = counted.load(Ordering::SeqCst);
        assert!(counts.contains(&counted), "{counted} counts of {count_ms} ms");
    }
}

/// Observer that notes how many items each catch-up adapts; a page of them takes a second and a half.
struct CaughtUp<'a>(&'a ManualClock, Mutex<Vec<u64>>);

impl Observer for CaughtUp<'_> {
    fn reach(&self, place: Place) -> Result<()> {
        if place == Place::CatchUpRead {
            self.0.wait(Duration::from_millis(1500));
        }
        Ok(())
    }

    fn observe(&self, observation: &Observation) {
        if let Observation::CaughtUp { items } = observation {
            self.1.lock().unwrap().push(*items);
        }
    }
}

#[test]
fn a_bulk_import_is_caught_up_with_a_while_at_a_time() {
    let (store, world) = started(ITEMS);
    let writes: Vec<_> = (ITEMS..7000).map(|number| common::item(number, 0)).collect();
    store.put(&writes).unwrap();
    let clock = ManualClock::default();
    let observer = CaughtUp(&clock, Mutex::default());
    let limits = Limits { batch: 1, budget: Some(50), ..Limits::default() };
    world.backfill_observed(&store, &TestEncoder::new(), limits, &clock, &observer).unwrap();
    let caught_up = observer.1.into_inner().unwrap();
    assert!(caught_up.len() >= 4 && caught_up.iter().all(|items| *items <= 2048), "{caught_up:?}");
    assert_eq!(store.counts("new-model").unwrap().lacking, 0);
}

#[test]
fn no_run_ends_with_items_that_it_began_to_catch_up_with() {
    let (store, world) = (MemoryStore::new(), World::new());
    store.create_space(&common::old_space(), Provenance::Old).unwrap();
    start(&store, &world.setup(), &Unobserved).unwrap();
    // Items without a source have nothing to embed, and so there is only one look.
    let writes: Vec<_> =
        (0..7000).map(|number| rehang_store::ItemWrite { source: None, ..common::item(number, 0) }).collect();
    store.put(&writes).unwrap();
    let clock = ManualClock::default();
    let observer = CaughtUp(&clock, Mutex::default());
    let encoder = TestEncoder::new();
    let summary = world.backfill_observed(&store, &encoder, Limits::default(), &clock, &observer).unwrap();
    assert_eq!((summary.ending, summary.caught_up), (Ending::NothingLeft, 7000));
    assert_eq!(store.counts("new-model").unwrap().lacking, 0);
}

/// Ascending ids come behind every page that is read: a walk that went on to an empty page never ended.
#[test]
fn verbs_end_beside_an_application_that_inserts_at_the_end_all_the_while() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, ITEMS);
    let next = AtomicU64::new(ITEMS as u64);
    let beside = Hooked::new(&store, move |store, call| {
        if call == "scan" {
            let number = next.fetch_add(1, Ordering::SeqCst) as usize;
            assert!(number < ITEMS + 200, "it goes round and round");
            store.put(&[common::item(number, 0)])?;
        }
        Ok(())
    });
    start(&beside, &world.setup(), &Unobserved).unwrap();
    switch(&beside, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    rollback(&beside, &world.setup(), &Unobserved).unwrap();
    switch(&beside, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    world
        .backfill(&beside, &TestEncoder::new(), Limits { until: Until::Fraction(0.9), ..Limits::default() })
        .unwrap();
    finish(&beside, &world.setup(), true, &Unobserved).unwrap();
    assert!(store.counts("new-model").unwrap().items > ITEMS as u64);
}

#[test]
fn the_worst_go_first() {
    let (store, world) = started(ITEMS);
    let adapted = Select::Provenance(Provenance::Adapted);
    let mut records = store.scan(&Scan::new("new-model", adapted, usize::MAX >> 1)).unwrap();
    let sigma2 = |record: &Record| record.state.as_ref().and_then(|state| state.sigma2).unwrap();
    records.sort_by(|a, b| sigma2(b).total_cmp(&sigma2(a)));
    records.truncate(10);
    let worst: Vec<String> = records.into_iter().filter_map(|record| record.item.source).collect();
    let encoder = TestEncoder::new();
    world.backfill(&store, &encoder, Limits { batch: 5, budget: Some(10), ..Limits::default() }).unwrap();
    let embedded = encoder.embedded.lock().unwrap();
    assert!(worst.iter().all(|source| embedded.contains_key(source)));
}

#[test]
fn what_cannot_be_embedded_is_listed_and_stops_nothing() {
    let (store, world) = started(ITEMS);
    let mut encoder = TestEncoder::new();
    encoder.broken = vec!["source 4 version 0".into()];
    encoder.flaky.get_mut().unwrap().insert("source 9 version 0".into(), 2);
    encoder.flaky.get_mut().unwrap().insert("source 11 version 0".into(), 99);
    let summary = world.backfill(&store, &encoder, Limits { batch: 16, ..Limits::default() }).unwrap();
    assert_eq!((summary.ending, summary.done.native, summary.done.failed), (Ending::NothingLeft, 198, 2));
    let status = status(&store, 10).unwrap();
    let failed: Vec<(&str, &str)> =
        status.failures.iter().map(|failure| (failure.id.as_str(), failure.reason.as_str())).collect();
    assert_eq!(failed, [("1004", "no such file"), ("1011", "busy")]);
    // Failed items are not tried again until somebody says so, or the item changes.
    let before = encoder.count();
    world.backfill(&store, &encoder, Limits::default()).unwrap();
    assert_eq!(encoder.count(), before);
    store.put(&[common::item(4, 1)]).unwrap();
    world.backfill(&store, &encoder, Limits::default()).unwrap();
    assert_eq!(store.counts("new-model").unwrap().native, 199);
}

#[test]
fn a_wrong_key_ends_the_run_and_keeps_what_is_done() {
    let (store, world) = started(ITEMS);
    let encoder = TestEncoder { fatal_at: Some(4), ..TestEncoder::new() };
    let limits = Limits { batch: 10, attempts: 1, ..Limits::default() };
    let error = world.backfill(&store, &encoder, limits).unwrap_err();
    assert!(error.is_unauthorised(), "{error}");
    assert!(error.to_string().contains("30 items were made native"), "{error}");
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.native, counts.failed), (30, 0), "no item is to blame");
}

#[test]
fn items_that_were_never_sent_have_not_failed() {
    // A call leaves items untried beside vectors, or leaves every item untried.
    for (tried, native) in [(4, 24), (0, 20)] {
        let (store, world) = started(ITEMS);
        let encoder = TestEncoder { fatal_at: Some(4), tried_before: Some(tried), ..TestEncoder::new() };
        let limits = Limits { batch: 10, attempts: 1, ..Limits::default() };
        let error = world.backfill(&store, &encoder, limits).unwrap_err();
        assert!(error.to_string().contains("401"), "{error}");
        let counts = store.counts("new-model").unwrap();
        assert_eq!((counts.native, counts.failed), (native, 0), "no item is to blame");
        // The next run goes on with these items.
        let summary = world.backfill(&store, &TestEncoder::new(), limits).unwrap();
        assert_eq!((summary.done.native, summary.done.failed), (200 - native, 0));
    }
}

#[test]
fn a_budget_of_the_encoder_that_is_spent_is_an_orderly_end() {
    let (store, world) = started(ITEMS);
    let encoder = TestEncoder { spent_at: Some(4), ..TestEncoder::new() };
    let summary = world.backfill(&store, &encoder, Limits { batch: 10, ..Limits::default() }).unwrap();
    assert_eq!((summary.ending, summary.native), (Ending::EncoderBudgetSpent, 30));
    let said = summary.encoder_said.unwrap();
    assert!(said.contains("budget_items 30"), "{said}");
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.native, counts.failed), (30, 0), "no item is to blame");
}

/// Encoder with something that happens before each of its calls.
struct Before<'a, F>(&'a TestEncoder, F);

impl<F: Fn(&[Input<'_>]) -> Result<()> + Send + Sync> Encoder for Before<'_, F> {
    fn space(&self) -> &Space {
        self.0.space()
    }

    fn batch_max(&self) -> usize {
        self.0.batch_max()
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        (self.1)(inputs)?;
        self.0.encode(inputs)
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        self.0.fingerprint()
    }

    fn spent(&self) -> Spent {
        self.0.spent()
    }
}

#[test]
fn a_death_at_any_moment_costs_one_batch_a_worker() {
    for workers in [1, 3] {
        let (store, world) = started(ITEMS);
        let mut encoder = TestEncoder::new();
        encoder.broken = vec!["source 4 version 0".into(), "source 60 version 0".into()];
        // Items are out of the store's hands if they are given to the encoder, by all calls so far, and
        // neither native nor failed.
        let (all_given, unwritten_most) = (Mutex::new(0), AtomicU64::new(0));
        let watched = Before(&encoder, |inputs: &[Input<'_>]| {
            let mut given = all_given.lock().unwrap();
            *given += inputs.len() as u64;
            let counts = store.counts("new-model")?;
            unwritten_most.fetch_max(*given - counts.native - counts.failed, Ordering::SeqCst);
            Ok(())
        });
        let clock = ManualClock::default();
        let limits = Limits { batch: 7, workers, ..Limits::default() };
        let summary = world.backfill_observed(&store, &watched, limits, &clock, &Unobserved).unwrap();
        assert_eq!((summary.done.native, summary.done.failed), (198, 2));
        let most = unwritten_most.into_inner();
        assert!((7..=7 * workers as u64).contains(&most), "{most} items of {workers} workers");
    }
}

/// Observer that rolls an upgrade back after the first batch that is written.
struct RollBack<'a>(&'a MemoryStore, &'a World);

impl Observer for RollBack<'_> {
    fn reach(&self, place: Place) -> Result<()> {
        if place == Place::BackfillWritten {
            rollback(self.0, &self.1.setup(), &Unobserved)?;
        }
        Ok(())
    }
}

#[test]
fn a_rollback_ends_a_running_backfill_after_its_batches() {
    let (store, world) = started(ITEMS);
    let clock = ManualClock::default();
    let limits = Limits { batch: 2, ..Limits::default() };
    let summary = world
        .backfill_observed(&store, &TestEncoder::new(), limits, &clock, &RollBack(&store, &world))
        .unwrap();
    assert_eq!(summary.ending, Ending::RolledBack);
    let native = store.counts("new-model").unwrap().native;
    assert!((2..=40).contains(&native), "{native} of {ITEMS}");
    assert_eq!(summary.done.native, native, "what was embedded is written");
    // A backfill that is begun on purpose while the upgrade is rolled back runs to its end.
    let summary = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
    assert_eq!((summary.ending, summary.native), (Ending::NothingLeft, 200));
}

/// Observer that plans an upgrade anew with the other adapter after the first batch that is written, and
/// writes an item then.
struct Replan<'a>(&'a MemoryStore, AtomicBool);

impl Observer for Replan<'_> {
    fn reach(&self, place: Place) -> Result<()> {
        if place == Place::BackfillWritten && !self.1.swap(true, Ordering::SeqCst) {
            let world = World { adapter: common::other_adapter(), ..World::new() };
            start(self.0, &world.setup(), &Unobserved)?;
            let mut write = common::item(ITEMS, 0);
            write.source = None;
            self.0.put(&[write])?;
        }
        Ok(())
    }
}

#[test]
fn a_running_backfill_adapts_nothing_with_an_adapter_of_before() {
    let (store, world) = started(ITEMS);
    let clock = ManualClock::default();
    let limits = Limits { batch: 2, ..Limits::default() };
    let faults = Replan(&store, AtomicBool::new(false));
    let summary = world.backfill_observed(&store, &TestEncoder::new(), limits, &clock, &faults).unwrap();
    assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, ITEMS as u64));
    let key = store.get(&[&common::id(ITEMS)]).unwrap()[0].as_ref().unwrap().key;
    let vector = store.vectors("new-model", &[key]).unwrap()[0].clone().unwrap();
    assert_eq!(vector.provenance, Provenance::Adapted);
    // By the adapter of now, which the gallery holds.
    let now = World { adapter: common::other_adapter(), ..World::new() };
    check(&store, std::slice::from_ref(&now.adapter));
    assert_eq!(start(&store, &now.setup(), &Unobserved).unwrap().adapted, 0);
}

#[test]
fn the_end_of_a_run_says_whether_sigma_still_means_what_it_says() {
    let (store, world) = started(ITEMS);
    let few = world.backfill(&store, &TestEncoder::new(), Limits { budget: Some(20), ..Limits::default() });
    assert_eq!(few.unwrap().sigma, None, "few items say nothing");
    let all = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
    assert_eq!(all.sigma.map(|sigma| sigma.items), Some(200));
    assert_eq!(all.sigma, status(&store, 0).unwrap().sigma);
}

#[test]
fn what_a_rollback_or_a_fill_that_died_still_needs_is_not_dropped() {
    // A rollback dies before searches go back; a re-planning dies half-way.
    for place in [Place::RolledBack, Place::FillRead] {
        let (store, world) = started(ITEMS);
        switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        let now = if place == Place::FillRead {
            World { adapter: common::other_adapter(), ..World::new() }
        } else {
            world
        };
        let dying = DieAt::new(place, 1);
        let died = if place == Place::FillRead {
            start(&store, &now.setup(), &dying).map(drop)
        } else {
            rollback(&store, &now.setup(), &dying).map(drop)
        };
        died.unwrap_err();
        let error = finish(&store, &now.setup(), true, &Unobserved).unwrap_err();
        let next = if place == Place::FillRead { Remedy::ContinueFilling } else { Remedy::RollBackOrSwitch };
        assert!(matches!(error.kind(), ErrorKind::WrongPhase { .. }), "{error}");
        assert_eq!(error.remedy(), Some(&next), "{error}");
        assert_eq!(store.spaces().unwrap().len(), 2, "nothing was dropped");
        // Doing what the message says helps.
        if place == Place::FillRead {
            start(&store, &now.setup(), &Unobserved).unwrap();
        } else {
            assert_eq!(rollback(&store, &now.setup(), &Unobserved).unwrap().serving, "old-model");
            switch(&store, &now.setup(), Serving::Mixed, &Unobserved).unwrap();
        }
        finish(&store, &now.setup(), true, &Unobserved).unwrap();
    }
}

#[test]
fn a_paused_upgrade_refuses_to_run_and_says_how_to_go_on() {
    let (store, world) = started(ITEMS);
    request(&store, &world.old, &world.new, Request::Pause).unwrap();
    let error = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongPhase { .. }), "{error}");
    assert_eq!(error.remedy(), Some(&Remedy::ResumeBackfill), "{error}");
    request(&store, &world.old, &world.new, Request::Run).unwrap();
    world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
}

#[test]
fn a_space_whose_making_was_interrupted_is_made_to_its_end_before_pairs_are_drawn() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, ITEMS);
    let setup = world.setup();
    begin_sampling(&store, setup.old, setup.new, setup.order, &Unobserved).unwrap();
    // A store that lists items in turns may have died between two of them, and only making the space again
    // goes on with it.
    let again = common::hooked::Hooked::before(&store, "create_space", |_| {});
    begin_sampling(&again, setup.old, setup.new, setup.order, &Unobserved).unwrap();
    assert!(again.happened());
}

#[test]
fn a_pause_that_was_asked_for_while_pairs_were_drawn_outlives_the_start() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, ITEMS);
    let setup = world.setup();
    begin_sampling(&store, setup.old, setup.new, setup.order, &Unobserved).unwrap();
    request(&store, setup.old, setup.new, Request::Pause).unwrap();
    start(&store, &setup, &Unobserved).unwrap();
    let error = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap_err();
    assert!(error.to_string().contains("paused"), "{error}");
}

/// Searches are in the new space then, and what the application writes needs the adapter that filled it.
#[test]
fn no_pairs_are_drawn_where_a_finish_died() {
    let (store, world) = started(ITEMS);
    let setup = world.setup();
    switch(&store, &setup, Serving::Mixed, &Unobserved).unwrap();
    finish(&store, &setup, true, &DieAt::new(Place::BeforeDrop, 1)).unwrap_err();
    let begun = begin_sampling(&store, setup.old, setup.new, setup.order, &Unobserved);
    let error = begun.unwrap_err().to_string();
    assert!(error.contains("finish it once more"), "{error}");
    let write = common::item(1000, 0);
    common::gallery(&store).put(std::slice::from_ref(&write)).unwrap();
    let key = store.get(&[&write.id]).unwrap().remove(0).unwrap().key;
    assert_eq!(store.provenances("new-model", &[key]).unwrap(), [Some(Provenance::Adapted)]);
}

#[test]
fn another_upgrade_of_the_same_gallery_is_refused() {
    let (store, mut world) = started(ITEMS);
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    let before = common::snapshot(&store);
    world.new.name = "third-model".into();
    for error in [
        finish(&store, &world.setup(), true, &Unobserved).unwrap_err(),
        request(&store, &world.old, &world.new, Request::Pause).unwrap_err(),
        rollback(&store, &world.setup(), &Unobserved).unwrap_err(),
        expect_same(&store, &world.setup()).unwrap_err(),
    ] {
        assert!(error.is_conflict() && error.to_string().contains("another upgrade"), "{error}");
    }
    let mut encoder = TestEncoder::new();
    encoder.space.as_mut().unwrap().name = "third-model".into();
    let error = world.backfill(&store, &encoder, Limits::default()).unwrap_err();
    assert!(error.to_string().contains("third-model"), "{error}");
    world.adapter.new.name = "third-model".into();
    for error in [
        start(&store, &world.setup(), &Unobserved).unwrap_err(),
        switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap_err(),
        plan(&store, &world.setup()).unwrap_err(),
    ] {
        assert!(error.is_conflict() && error.to_string().contains("another upgrade"), "{error}");
    }
    assert_eq!(common::snapshot(&store), before, "nothing was written");
}

#[test]
fn another_adapter_than_the_recorded_one_is_refused() {
    let (store, mut world) = started(ITEMS);
    // An item is there to catch up with, so that an adapter would be used.
    store.put(&[common::item(3, 1)]).unwrap();
    let before = common::snapshot(&store);
    world.adapter = common::other_adapter();
    for error in [
        world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap_err(),
        switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap_err(),
        finish(&store, &world.setup(), true, &Unobserved).unwrap_err(),
        expect_same(&store, &world.setup()).unwrap_err(),
    ] {
        assert!(error.is_conflict(), "{error}");
        assert_eq!(error.remedy(), Some(&Remedy::PlanAnew), "{error}");
    }
    assert_eq!(common::snapshot(&store), before, "nothing was written");
    // Doing what the message says helps.
    start(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
}

/// Returns the source of the item that comes next, by one item of budget.
fn next_source(store: &MemoryStore, world: &World) -> String {
    let encoder = TestEncoder::new();
    world.backfill(store, &encoder, Limits { budget: Some(1), ..Limits::default() }).unwrap();
    let embedded = encoder.embedded.lock().unwrap();
    assert_eq!(embedded.len(), 1);
    embedded.keys().next().unwrap().clone()
}

#[test]
fn a_space_that_is_used_again_after_two_rollbacks_is_filled_by_the_adapter_of_now() {
    let (store, mut world) = started(ITEMS);
    world.backfill(&store, &TestEncoder::new(), Limits { budget: Some(20), ..Limits::default() }).unwrap();
    let again = |world: &World| start(&store, &world.setup(), &Unobserved).unwrap();
    rollback(&store, &world.setup(), &Unobserved).unwrap();
    let mut third = World::new();
    third.new.name = "third-model".into();
    third.adapter.new.name = "third-model".into();
    again(&third);
    rollback(&store, &third.setup(), &Unobserved).unwrap();
    world.adapter = common::other_adapter();
    assert_eq!(plan(&store, &world.setup()).unwrap().to_adapt, 180);
    assert_eq!(again(&world).adapted, 180, "the native ones are kept");
    check(&store, &[common::other_adapter(), common::adapter()]);
    store.drop_space("third-model").unwrap();
    check(&store, &[common::other_adapter()]);
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.native, counts.adapted), (20, 180));
    // Now it is known whose the adapted vectors are.
    assert_eq!(again(&world).adapted, 0);
}

#[test]
fn a_changed_item_keeps_its_place_at_the_front_when_the_start_is_repeated() {
    let (store, world) = started(ITEMS);
    world.backfill(&store, &TestEncoder::new(), Limits { budget: Some(3), ..Limits::default() }).unwrap();
    store.put(&[common::item(150, 1)]).unwrap();
    start(&store, &world.setup(), &Unobserved).unwrap();
    assert_eq!(next_source(&store, &world), "source 150 version 1");
    // Planned anew, the item keeps its place too.
    store.put(&[common::item(151, 1)]).unwrap();
    let replanned = World { adapter: common::other_adapter(), ..World::new() };
    start(&store, &replanned.setup(), &Unobserved).unwrap();
    assert_eq!(next_source(&store, &replanned), "source 151 version 1");
}

#[test]
fn what_is_written_during_a_start_that_dies_goes_to_the_front() {
    for place in
        [Place::RecordWritten, Place::SpaceMade, Place::FillRead, Place::FillWritten, Place::BeforeFilled]
    {
        let (store, world) = (MemoryStore::new(), World::new());
        fill(&store, ITEMS);
        start(&store, &world.setup(), &DieAt::new(place, 1)).unwrap_err();
        store.put(&[common::item(150, 1)]).unwrap();
        start(&store, &world.setup(), &Unobserved).unwrap();
        assert_eq!(next_source(&store, &world), "source 150 version 1", "{place:?}");
        // Nobody else is at the front: items that were in the gallery before come in the order.
        let records = store.scan(&Scan::new("new-model", Select::Queued, ITEMS)).unwrap();
        let front = records.iter().filter(|record| {
            record.state.as_ref().unwrap().priority.is_some_and(|place| place.band == QueueBand::NewOrChanged)
        });
        assert_eq!(front.count(), 0, "{place:?}");
    }
}

/// Number of items that take two pages of a fill.
const PAGES: u64 = 3000;

/// Makes a gallery whose first `start` died when the first page was written, and counts the items of that
/// page.
fn half_filled() -> (MemoryStore, World, u64) {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, PAGES as usize);
    start(&store, &world.setup(), &DieAt::new(Place::FillWritten, 1)).unwrap_err();
    let written = store.counts("new-model").unwrap().adapted;
    assert!(written > 0 && written < PAGES);
    (store, world, written)
}

#[test]
fn a_fill_that_died_goes_on_where_it_was() {
    let (store, world, written) = half_filled();
    assert_eq!(plan(&store, &world.setup()).unwrap().to_adapt, PAGES - written);
    let started = start(&store, &world.setup(), &Unobserved).unwrap();
    assert_eq!((started.adapted, started.replanned), (PAGES - written, false));
    check(&store, &[common::adapter()]);
    assert_eq!(store.counts("new-model").unwrap().adapted, PAGES);
    // Another order gives every item another place.
    let (store, mut setup) = (half_filled().0, world.setup());
    setup.order.seed += 1;
    assert_eq!(plan(&store, &setup).unwrap().to_adapt, PAGES);
    assert_eq!(start(&store, &setup, &Unobserved).unwrap().adapted, PAGES);
}

#[test]
fn wherever_a_start_with_another_adapter_dies_no_vector_of_the_former_one_is_left() {
    let (first, other) = (World::new(), World { adapter: common::other_adapter(), ..World::new() });
    let start =
        |store: &MemoryStore, world: &World, faults: &dyn Observer| start(store, &world.setup(), faults);
    for place in [
        Place::RecordWritten,
        Place::SpaceMade,
        Place::FillRead,
        Place::FillWritten,
        Place::PrioritiesWritten,
        Place::BeforeFilled,
    ] {
        // The start with another adapter meets a fill that died too, a filled space, and one that was left
        // behind for another upgrade.
        let (left, mut third) = (started(ITEMS).0, World::new());
        rollback(&left, &first.setup(), &Unobserved).unwrap();
        third.new.name = "third-model".into();
        third.adapter.new.name = "third-model".into();
        start(&left, &third, &Unobserved).unwrap();
        rollback(&left, &third.setup(), &Unobserved).unwrap();
        for store in [half_filled().0, started(ITEMS).0, left] {
            start(&store, &other, &DieAt::new(place, 1)).unwrap_err();
            start(&store, &other, &Unobserved).unwrap();
            store.drop_space("third-model").unwrap();
            check(&store, std::slice::from_ref(&other.adapter));
            // The adapters change there and back: the first one is the other one now.
            start(&store, &first, &DieAt::new(place, 1)).unwrap_err();
            start(&store, &other, &DieAt::new(place, 1)).unwrap_err();
            start(&store, &other, &Unobserved).unwrap();
            check(&store, std::slice::from_ref(&other.adapter));
            assert_eq!(start(&store, &other, &Unobserved).unwrap().adapted, 0);
        }
    }
}

#[test]
fn a_plan_changes_nothing() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, ITEMS);
    let before = common::snapshot(&store);
    let plan = plan(&store, &world.setup()).unwrap();
    assert_eq!((plan.to_adapt, plan.to_embed, plan.without_source), (200, 200, 0));
    assert_eq!(common::snapshot(&store), before);
}

/// Sums of what an observer is told.
#[derive(Debug, Default, Clone, PartialEq)]
struct Told {
    stages: Vec<String>,
    advanced: u64,
    native: u64,
    searches: usize,
    failed_searches: usize,
    written: usize,
    deleted: usize,
}

#[derive(Default)]
struct Recorder(Mutex<Told>);

impl Observer for Recorder {
    fn observe(&self, observation: &Observation<'_>) {
        let mut told = self.0.lock().unwrap();
        match *observation {
            Observation::Began { stage, .. } => told.stages.push(stage.to_owned()),
            Observation::Advanced { units } => told.advanced += units,
            Observation::Backfilled { tally } => told.native = tally.native,
            Observation::Searched { queries, .. } => told.searches += queries,
            Observation::SearchFailed => told.failed_searches += 1,
            Observation::Written { items } => told.written += items,
            Observation::Deleted { items } => told.deleted += items,
            _ => {}
        }
    }
}

#[test]
fn an_observer_is_told_what_a_fill_a_backfill_and_an_application_do() {
    let (store, world) = (Arc::new(MemoryStore::new()), World::new());
    fill(&*store, ITEMS);
    let recorder = Recorder::default();
    start(&*store, &world.setup(), &recorder).unwrap();
    let told = std::mem::take(&mut *recorder.0.lock().unwrap());
    assert_eq!(told.stages.first().map(String::as_str), Some("adapting"));
    assert!(told.advanced >= ITEMS as u64, "{told:?}");

    let limits = Limits { batch: 7, ..Limits::default() };
    world
        .backfill_observed(&*store, &TestEncoder::new(), limits, &ManualClock::default(), &recorder)
        .unwrap();
    let told = std::mem::take(&mut *recorder.0.lock().unwrap());
    assert_eq!(told.stages, ["re-embedding"]);
    assert_eq!((told.advanced, told.native), (ITEMS as u64, ITEMS as u64));

    let observer = Arc::new(recorder);
    let gallery = Gallery::new(store).observed_by(Arc::<Recorder>::clone(&observer));
    let queries = Matrix::zeros(3, world.old.dimension);
    gallery.search(&[("old-model", &queries)], 5, &Filter::default()).unwrap();
    gallery.search(&[], 5, &Filter::default()).unwrap_err();
    gallery.put(&[common::item(3, 1), common::item(4, 1)]).unwrap();
    gallery.delete(&[&common::id(3), "nothing"]).unwrap();
    let told = observer.0.lock().unwrap().clone();
    assert_eq!((told.searches, told.failed_searches, told.written, told.deleted), (3, 1, 2, 1));
}

/// Makes an encoder of the new model, a little or altogether different, behind a service that has no
/// fingerprint or with one of its own.
fn other(by: f32, fingerprint: Option<&'static str>) -> TestEncoder {
    TestEncoder { by, fingerprint, ..TestEncoder::new() }
}

#[test]
fn two_models_never_share_a_space() {
    let (store, world) = started(ITEMS);
    let limits = Limits { batch: 10, budget: Some(40), ..Limits::default() };
    world.backfill(&store, &TestEncoder::new(), limits).unwrap();
    let before = common::snapshot(&store);
    let attempt = |other: &TestEncoder| world.backfill(&store, other, Limits::default());
    // Another model is refused, with a fingerprint and as a service; the refusal costs the items that are
    // compared.
    for fingerprint in [Some("another model"), None] {
        let other = other(2.0, fingerprint);
        let error = attempt(&other).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains("another vector"), "{error}");
        assert_eq!(error.remedy(), Some(&Remedy::EmbedNativesAgain));
        assert_eq!(other.count(), 14 + 4, "some of them are compared with themselves");
        assert_eq!(common::snapshot(&store), before, "nothing is written");
    }
    // The model in another precision, or exported once more, goes on.
    for (by, fingerprint) in [(1e-4, None), (0.0, Some("the same, exported again"))] {
        let other = other(by, fingerprint);
        let limits = Limits { budget: Some(10), ..Limits::default() };
        let summary = world.backfill(&store, &other, limits).unwrap();
        assert_eq!(summary.done.native, 10);
        assert!((20..=26).contains(&other.count()), "{}", other.count());
    }
    // A model that is known by its fingerprint from now on is not compared again.
    let known = other(0.0, Some("the same, exported again"));
    assert_eq!(attempt(&known).unwrap().done.native, 140);
    assert_eq!(known.count(), 140);
}

#[test]
fn natives_are_put_back_for_another_model() {
    let (store, world) = started(ITEMS);
    let (_, key) = (store.delete(&["1007"]).unwrap(), "1008");
    // Two items only the new model has seen: one has no source, the other no old vector.
    for (id, source) in [("no source", None), (key, Some("source 8 version 0"))] {
        let vectors = vec![rehang_store::NewVector::from_model(
            "new-model",
            common::new_model(source.unwrap_or("x")),
            Provenance::Native,
        )];
        let payload = serde_json::Value::Null;
        let write = rehang_store::ItemWrite {
            id: id.into(),
            source: source.map(Into::into),
            label: None,
            payload,
            vectors,
        };
        store.put(&[write]).unwrap();
    }
    world.backfill(&store, &TestEncoder::new(), Limits { budget: Some(50), ..Limits::default() }).unwrap();
    store.claim("new-model", Queue::All, "someone", 1, Duration::from_mins(1)).unwrap();
    let error = put_back(&store, &world.setup(), &Unobserved).unwrap_err();
    assert_eq!(error.remedy(), Some(&Remedy::AwaitOtherProcess), "{error}");
    store.release("new-model", "someone", None).unwrap();
    assert_eq!(put_back(&store, &world.setup(), &Unobserved).unwrap(), 51);
    let counts = store.counts("new-model").unwrap();
    assert_eq!(
        (counts.native, counts.lacking),
        (1, 1),
        "what cannot be embedded again, and what has no old vector"
    );
    assert_eq!(plan(&store, &world.setup()).unwrap().to_adapt, 0, "what has no old vector waits for the run");
    let adapted = Scan::new("new-model", Select::Provenance(Provenance::Adapted), 999);
    for record in store.scan(&adapted).unwrap() {
        let place = record.state.unwrap().priority.unwrap();
        assert_eq!(place.band, QueueBand::Ordinary, "each has the place that the order gives it");
    }
    // A service is known by nothing, and the model before it no longer by its fingerprint.
    let limits = Limits { budget: Some(30), ..Limits::default() };
    world.backfill(&store, &other(2.0, None), limits).unwrap();
    let error = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap_err();
    assert_eq!(error.remedy(), Some(&Remedy::EmbedNativesAgain), "{error}");
    let other = other(2.0, Some("another model"));
    let summary = world.backfill(&store, &other, Limits::default()).unwrap();
    assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, 169));
    let all =
        Scan::new("new-model", Select::Provenance(Provenance::Native), 999).with_vectors_of("new-model");
    for record in store.scan(&all).unwrap().into_iter().filter(|record| record.item.source.is_some()) {
        let mut expected = common::new_model(record.item.source.as_deref().unwrap());
        expected[3] += 2.0;
        assert_eq!(record.vector.unwrap().vector, expected);
    }
}

#[test]
fn items_that_an_encoder_panics_at_are_found_and_listed() {
    let (store, world) = started(ITEMS);
    let encoder = TestEncoder::new();
    let panics = Before(&encoder, |inputs: &[Input<'_>]| {
        assert!(
            !inputs.iter().any(|input| input.source.starts_with("source 7")),
            "an index out of bounds, say"
        );
        Ok(())
    });
    let limits = Limits { batch: 16, ..Limits::default() };
    let summary = world.backfill(&store, &panics, limits).unwrap();
    assert_eq!((summary.done.native, summary.done.failed), (ITEMS as u64 - 11, 11));
    for failure in store.failures("new-model", None, 99).unwrap() {
        assert!(
            failure.reason.contains("panicked") && failure.reason.contains("out of bounds"),
            "{failure:?}"
        );
    }
    // An encoder that panics at everything says nothing about the items.
    let (store, world) = started(ITEMS);
    let panics = Before(&encoder, |_: &[Input<'_>]| panic!("an index out of bounds, say"));
    let error = world.backfill(&store, &panics, limits).unwrap_err();
    assert!(error.to_string().contains("refused each of the first"), "{error}");
    assert_eq!(store.counts("new-model").unwrap().failed, 0);
}

#[test]
fn a_wrong_source_of_everything_stops_the_run_and_lists_nothing() {
    let (store, world) = started(ITEMS);
    let broken = (0..ITEMS).map(|number| format!("source {number} version 0")).collect();
    let encoder = TestEncoder { broken, ..TestEncoder::new() };
    let error = world.backfill(&store, &encoder, Limits::default()).unwrap_err();
    assert!(error.to_string().contains("no such file") && error.to_string().contains("128 items"), "{error}");
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.failed, counts.native), (0, 0));
    assert_eq!(store.at_work("new-model").unwrap(), [], "and all are given back");
}

#[test]
fn vectors_that_are_paid_for_wait_for_a_store_that_is_busy() {
    let (store, world) = started(ITEMS);
    // The first write is that of a catch-up.
    store.put(&[common::item(ITEMS, 0)]).unwrap();
    let busy = common::hooked::Hooked::busy(&store, 30);
    let encoder = TestEncoder::new();
    let (clock, limits) = (ManualClock::default(), Limits::default());
    let summary = world.backfill_observed(&busy, &encoder, limits, &clock, &Unobserved).unwrap();
    assert_eq!((summary.done.native, encoder.count()), (ITEMS as u64 + 1, ITEMS as u32 + 1));
    assert_eq!(summary.caught_up, 1);
    assert!(clock.now_ms() >= 30_000);
}

#[test]
fn vectors_that_are_paid_for_are_written_whatever_else_the_store_refuses() {
    let (store, world) = started(ITEMS);
    let (encoder, clock) = (TestEncoder::new(), ManualClock::default());
    let (begun, refused) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (is_begun, has_refused) = (Arc::clone(&begun), Arc::clone(&refused));
    // The store refuses what a look asks for first, while all workers are at the encoder.
    let hooked = common::hooked::Hooked::new(&store, move |store, call| {
        if ["document", "serving_and_document"].contains(&call) && is_begun.load(Ordering::SeqCst) {
            has_refused.store(true, Ordering::SeqCst);
            return Err(rehang_core::Error::corrupt(store.name(), "no such column"));
        }
        Ok(())
    });
    let slow = Before(&encoder, |_: &[Input<'_>]| {
        begun.store(true, Ordering::SeqCst);
        clock.wait(Duration::from_secs(2));
        while !refused.load(Ordering::SeqCst) {
            rehang_clock::wait(Duration::from_millis(1));
        }
        Ok(())
    });
    let limits = Limits { batch: 16, workers: 3, ..Limits::default() };
    let error = world.backfill_observed(&hooked, &slow, limits, &clock, &Unobserved).unwrap_err();
    assert!(error.to_string().contains("no such column"), "{error}");
    assert_eq!((store.counts("new-model").unwrap().native, encoder.count()), (48, 48));
}

/// Encoder whose service answers in a day, unless it is interrupted.
struct InADay<'a> {
    space: Space,
    clock: &'a ManualClock,
    is_asked: Arc<AtomicBool>,
    is_interrupted: AtomicBool,
}

impl Encoder for InADay<'_> {
    fn space(&self) -> &Space {
        &self.space
    }

    fn batch_max(&self) -> usize {
        16
    }

    fn encode(&self, _: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        self.is_asked.store(true, Ordering::SeqCst);
        // A look is due.
        self.clock.wait(Duration::from_secs(2));
        for _ in 0..10_000 {
            if self.is_interrupted.load(Ordering::SeqCst) {
                break;
            }
            rehang_clock::wait(Duration::from_millis(1));
        }
        Err(ErrorKind::Cancelled.into())
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }

    fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_decision_of_another_process_does_not_wait_for_what_is_at_the_encoder() {
    let (store, world) = started(ITEMS);
    let (clock, is_asked) = (ManualClock::default(), Arc::<AtomicBool>::default());
    let is_begun = Arc::clone(&is_asked);
    // A release begins while the encoder is asked.
    let hooked = Hooked::new(&store, move |store, call| {
        if ["document", "serving_and_document"].contains(&call) && is_begun.load(Ordering::SeqCst) {
            return Err(rehang_core::Error::wrong_phase(store.name(), "being released"));
        }
        Ok(())
    });
    let encoder = InADay {
        space: common::new_space(),
        clock: &clock,
        is_asked,
        is_interrupted: AtomicBool::new(false),
    };
    let error =
        world.backfill_observed(&hooked, &encoder, Limits::default(), &clock, &Unobserved).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongPhase { .. }), "{error}");
    assert!(encoder.is_interrupted.into_inner(), "it was waited for");
}

#[test]
fn a_vector_that_the_store_does_not_take_is_written_again_and_never_paid_for_again() {
    // A transaction of the application is at some items for some seconds, say.
    let (store, world) = started(ITEMS);
    let held = AtomicU64::new(40);
    let first: Vec<_> = store.scan(&Scan::new("new-model", Select::All, 10)).unwrap();
    let keys: Vec<_> = first.iter().map(|record| record.item.key).collect();
    let ignoring = Hooked::ignoring(&store, move |key| {
        let one_less = |left: u64| left.checked_sub(1);
        keys.contains(&key) && held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    });
    let encoder = TestEncoder::new();
    let summary = world.backfill(&ignoring, &encoder, Limits::default()).unwrap();
    assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, ITEMS as u64));
    assert_eq!(encoder.count(), ITEMS as u32);
    check(&store, &[common::adapter()]);
}

#[test]
fn a_vector_that_the_store_takes_at_the_last_write_ends_no_run() {
    let (store, world) = started(ITEMS);
    let one = store.scan(&Scan::new("new-model", Select::All, 1)).unwrap().remove(0).item;
    let (clock, first_ms) = (Arc::new(ManualClock::default()), OnceLock::new());
    let time = Arc::clone(&clock);
    let ignoring = Hooked::ignoring(&store, move |key| {
        let now_ms = time.now_ms();
        key == one.key && now_ms - *first_ms.get_or_init(|| now_ms) <= 600_000
    });
    let encoder = TestEncoder::new();
    let summary =
        world.backfill_observed(&ignoring, &encoder, Limits::default(), &*clock, &Unobserved).unwrap();
    assert_eq!((summary.ending, summary.done.native), (Ending::NothingLeft, ITEMS as u64));
    assert!(encoder.count() == ITEMS as u32 && clock.now_ms() > 600_000);
}

#[test]
fn a_store_that_takes_nothing_is_not_paid_for_without_end() {
    for (workers, of_all) in [(1, true), (3, true), (1, false)] {
        let (store, world) = started(ITEMS);
        let one = store.scan(&Scan::new("new-model", Select::All, 1)).unwrap().remove(0).item;
        let ignoring = Hooked::ignoring(&store, move |key| of_all || key == one.key);
        let (encoder, clock) = (TestEncoder::new(), ManualClock::default());
        let limits = Limits { batch: 16, workers, ..Limits::default() };
        let error = world.backfill_observed(&ignoring, &encoder, limits, &clock, &Unobserved).unwrap_err();
        let said = error.to_string();
        assert!(["has not taken", "trigger", "ten minutes"].iter().all(|word| said.contains(word)), "{said}");
        let paid = encoder.count() as usize;
        assert!(if of_all { paid <= 100 + 2 * 16 * workers } else { paid == ITEMS }, "{paid} embedded");
        let native = if of_all { 0 } else { ITEMS as u64 - 1 };
        assert_eq!(store.counts("new-model").unwrap().native, native);
        assert_eq!(store.at_work("new-model").unwrap(), [], "and all are given back");
        assert!(clock.now_ms() < 700_000);
    }
}

#[test]
fn one_huge_vector_fails_no_figure() {
    let (store, world) = started(ITEMS);
    let mut huge = common::item(3, 1);
    huge.vectors[0].vector = vec![1e30; common::D_OLD];
    store.put(&[huge]).unwrap();
    let summary = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
    assert_eq!(summary.done.native, ITEMS as u64);
    let (sigma, status) = (summary.sigma.unwrap(), status(&store, 10).unwrap());
    assert!(sigma.mean_squared_error.is_finite() && status.sigma == Some(sigma));
}

/// Observer of a process that dies at some moment: a dead one reaches nothing any more.
struct Mortal<'a>(&'a AtomicBool);

impl Observer for Mortal<'_> {
    fn reach(&self, _: Place) -> Result<()> {
        if self.0.load(Ordering::SeqCst) {
            return Err(rehang_core::Error::conflict("this process", "it died"));
        }
        Ok(())
    }
}

#[test]
fn an_item_that_ends_its_workers_goes_alone_and_is_listed() {
    for workers in [1, 3] {
        let (store, world) = started(ITEMS);
        let clock = ManualLeaseClock::default();
        let store = store.with_clock(Arc::new(clock.clone()));
        let encoder = TestEncoder::new();
        let limits = Limits { batch: 16, workers, ..Limits::default() };
        let (mut deaths, fatal) = (0, common::item(31, 0).source);
        let summary = loop {
            let dead = AtomicBool::new(false);
            let ends_it = Before(&encoder, |inputs: &[Input<'_>]| {
                let is_met = inputs.iter().any(|input| Some(input.source) == fatal.as_deref());
                dead.fetch_or(is_met, Ordering::SeqCst);
                Ok(())
            });
            let run =
                world.backfill_observed(&store, &ends_it, limits, &ManualClock::default(), &Mortal(&dead));
            if !dead.into_inner() {
                break run.unwrap();
            }
            assert!(run.is_err());
            deaths += 1;
            clock.pass(Duration::from_millis(limits.lease_ms));
        };
        assert_eq!(deaths, 4, "two with others in hand, two alone");
        assert_eq!((summary.ending, summary.done.failed), (Ending::NothingLeft, 1));
        let counts = store.counts("new-model").unwrap();
        assert_eq!((counts.native, counts.failed), (ITEMS as u64 - 1, 1));
        let failure = store.failures("new-model", None, 9).unwrap().remove(0);
        assert_eq!(failure.id, common::id(31));
        assert!(failure.reason.starts_with("4 workers in a row ended without a word"), "{}", failure.reason);
        // A death with other items in hand costs all of these; a death with one item costs one.
        let again = encoder.count() - ITEMS as u32;
        assert!(again <= 2 * 16 * workers as u32 + 3, "{again} embedded again");
    }
}

/// Encoder beside which an application writes whenever it is asked: ascending ids, each with its old vector.
struct Beside<'a> {
    store: &'a MemoryStore,
    encoder: TestEncoder,
    written: AtomicU64,
}

impl Encoder for Beside<'_> {
    fn space(&self) -> &Space {
        self.encoder.space()
    }

    fn batch_max(&self) -> usize {
        self.encoder.batch_max()
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        let written = self.written.fetch_add(1, Ordering::SeqCst) as usize;
        assert!(written < ITEMS, "it embeds what comes for ever");
        self.store.put(&[common::item(ITEMS + written, 0)]).unwrap();
        self.encoder.encode(inputs)
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        self.encoder.fingerprint()
    }

    fn spent(&self) -> Spent {
        self.encoder.spent()
    }
}

#[test]
fn a_run_ends_beside_an_application_that_goes_on_writing() {
    let (store, world) = started(ITEMS);
    let encoder = Beside { store: &store, encoder: TestEncoder::new(), written: AtomicU64::new(0) };
    let summary = world.backfill(&store, &encoder, Limits { batch: 7, ..Limits::default() }).unwrap();
    assert_eq!(summary.ending, Ending::NothingLeft);
    let records = store.scan(&Scan::new("new-model", Select::All, 9 * ITEMS)).unwrap();
    let (natives, others): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| {
        record.state.as_ref().is_some_and(|state| state.provenance == Provenance::Native)
    });
    assert!(
        !others.is_empty() && others.iter().all(|record| record.item.id >= common::id(ITEMS)),
        "{others:?}"
    );
    assert_eq!((natives.len() as u64, summary.native), (summary.native, summary.items - others.len() as u64));
}
