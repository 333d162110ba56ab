//! Tests of followers: what comes is found within a second by the clock that they are given, and nothing but
//! a wish or the end of the gallery ends them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rehang_core::{ErrorKind, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger, Store};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Clock, Ending, Limits, Observation, Observer, Place, Request, Serving,
    Summary, Unobserved, backfill, follower, request, rollback, start, status, switch,
};

use crate::common::hooked::Hooked;
use crate::common::{self, DieAt, ManualClock, TestEncoder, World, check, fill, started};

const ITEMS: usize = 30;
/// Milliseconds, by the follower's clock, within which an item that came is found.
const FOUND_WITHIN_MS: u64 = 1000;

type Act<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Script of what others do at which times while a follower is at work, and when it is asked to end.
struct Script<'a> {
    clock: &'a ManualClock,
    acts: Mutex<VecDeque<(u64, Act<'a>)>>,
    ends_ms: u64,
    /// Store whose `watched` items are looked at; `seen` has what was seen of each: when, and made by whom.
    store: &'a dyn Ledger,
    watched: Vec<String>,
    seen: Mutex<Vec<(String, u64, Option<Provenance>)>>,
    rests: Mutex<Vec<Option<Ending>>>,
}

impl<'a> Script<'a> {
    fn new(store: &'a dyn Ledger, clock: &'a ManualClock, ends_ms: u64) -> Self {
        let (acts, watched, seen, rests) = (Mutex::default(), Vec::new(), Mutex::default(), Mutex::default());
        Self { clock, acts, ends_ms, store, watched, seen, rests }
    }

    fn at(self, time_ms: u64, act: impl FnOnce() + Send + 'a) -> Self {
        self.acts.lock().unwrap().push_back((time_ms, Box::new(act)));
        self
    }

    /// Writes an item at a time as an application that knows nothing of the upgrade, and watches it.
    fn put(mut self, time_ms: u64, write: ItemWrite) -> Self {
        self.watched.push(write.id.clone());
        let store = self.store;
        self.at(time_ms, move || drop(store.put(&[write]).unwrap()))
    }

    /// Returns the time when an item was first seen with a vector by somebody, from a time on.
    fn seen(&self, number: usize, from_ms: u64, by: Provenance) -> Option<u64> {
        let seen = self.seen.lock().unwrap();
        let is_it = |(id, at, made_by): &&(String, u64, Option<Provenance>)| {
            *id == common::id(number) && *at >= from_ms && *made_by == Some(by)
        };
        seen.iter().find(is_it).map(|(_, at, _)| *at)
    }
}

impl Observer for Script<'_> {
    fn observe(&self, observation: &Observation) {
        if let Observation::Rests { because } = observation {
            self.rests.lock().unwrap().push(*because);
        }
    }

    fn wants_stop(&self) -> bool {
        let now = self.clock.now_ms();
        let mut acts = self.acts.lock().unwrap();
        while acts.front().is_some_and(|(time, _)| *time <= now) {
            let (_, act) = acts.pop_front().unwrap();
            act();
        }
        for id in &self.watched {
            let Some(item) = self.store.get(&[id]).unwrap().remove(0) else { continue };
            let made_by = self.store.provenances("new-model", &[item.key]).unwrap().remove(0);
            let mut seen = self.seen.lock().unwrap();
            if seen.iter().rev().find(|(of, ..)| of == id).is_none_or(|(.., before)| *before != made_by) {
                seen.push((id.clone(), now, made_by));
            }
        }
        now >= self.ends_ms
    }
}

fn limits() -> Limits {
    Limits { batch: 4, follow: true, ..Limits::default() }
}

fn follow(
    store: &dyn Store,
    world: &World,
    encoder: &dyn Encoder,
    limits: Limits,
    clock: &dyn Clock,
    (worker, observer): (&str, &dyn Observer),
) -> Result<Summary> {
    let scope = BackfillScope::Gallery(Some(&world.adapter));
    backfill(&BackfillSetup { store, encoder, scope, limits, clock, worker }, observer)
}

/// Returns an item with an old vector and nothing to embed: it can only be adapted.
fn without_source(number: usize) -> ItemWrite {
    ItemWrite { source: None, ..common::item(number, 0) }
}

fn what_comes_is_found(store: &dyn Store) {
    let world = World::new();
    fill(store, ITEMS);
    start(store, &world.setup(), &Unobserved).unwrap();
    switch(store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    let (clock, encoder) = (ManualClock::default(), TestEncoder::new());
    let script = Script::new(store, &clock, 20_000)
        .put(3010, common::item(100, 0))
        .put(5020, common::item(3, 1))
        .put(7030, without_source(101))
        .put(9040, common::item(100, 2));
    let summary = follow(store, &world, &encoder, limits(), &clock, ("worker", &script)).unwrap();
    assert_eq!((summary.ending, summary.caught_up, summary.done.failed), (Ending::Dismissed, 4, 0));
    for (number, came, stays) in [(100, 3010, false), (3, 5020, false), (101, 7030, true), (100, 9040, false)]
    {
        let found = script.seen(number, came, Provenance::Adapted).expect("it is adapted first");
        assert!(found - came <= FOUND_WITHIN_MS, "{number} came at {came} and was found at {found}");
        let native = script.seen(number, came, Provenance::Native);
        assert_eq!(native.is_none(), stays, "{number}");
        assert!(native.is_none_or(|native| native - came <= 2 * FOUND_WITHIN_MS));
    }
    assert_eq!(store.counts("new-model").unwrap().native, ITEMS as u64 + 1);
    assert_eq!(encoder.count() as usize, ITEMS + 3, "each content once");
    assert_eq!(follower(store).unwrap(), None, "it left in order");
    let rests = script.rests.into_inner().unwrap();
    assert_eq!(rests.iter().filter(|rest| **rest == Some(Ending::NothingLeft)).count(), 4, "{rests:?}");
    check(store, &[common::adapter()]);
}

#[test]
fn what_an_old_writer_writes_is_found_within_a_second() {
    what_comes_is_found(&MemoryStore::new());
    let folder = tempfile::tempdir().unwrap();
    what_comes_is_found(&SqliteStore::create(folder.path().join("gallery.db")).unwrap());
}

#[test]
fn while_it_may_not_embed_it_goes_on_adapting() {
    let (store, world) = started(ITEMS);
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    let (clock, encoder) = (ManualClock::default(), TestEncoder::new());
    let setup = world.setup();
    let ask = |asked| assert!(request(&store, setup.old, setup.new, asked).is_ok());
    let script = Script::new(&store, &clock, 200_000)
        .at(5000, || ask(Request::Pause))
        .put(10_000, common::item(100, 0))
        .at(50_000, || ask(Request::Run))
        .at(60_000, || ask(Request::Stop))
        .put(70_000, common::item(101, 0))
        .at(80_000, || ask(Request::Run))
        // Searches are in the old space, where the item is found.
        .at(100_000, || drop(rollback(&store, &world.setup(), &Unobserved).unwrap()))
        .put(110_000, common::item(102, 0))
        .at(150_000, || drop(switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap()));
    let summary = follow(&store, &world, &encoder, limits(), &clock, ("worker", &script)).unwrap();
    assert_eq!((summary.ending, summary.native), (Ending::Dismissed, ITEMS as u64 + 3));
    for (number, came, from) in [(100, 10_000, 50_000), (101, 70_000, 80_000)] {
        let found = script.seen(number, 0, Provenance::Adapted).unwrap();
        assert!((came..=came + FOUND_WITHIN_MS).contains(&found), "{number} at {found}");
        let native = script.seen(number, 0, Provenance::Native).unwrap();
        assert!((from..=from + 2 * FOUND_WITHIN_MS).contains(&native), "{number} at {native}");
    }
    assert_eq!(script.seen(102, 0, Provenance::Native).map(|native| native / 10_000), Some(15));
    let rests = script.rests.into_inner().unwrap();
    for because in [Ending::Paused, Ending::Stopped, Ending::RolledBack, Ending::NothingLeft] {
        assert!(rests.contains(&Some(because)), "{because:?}: {rests:?}");
    }
}

#[test]
fn a_spent_budget_ends_its_embedding_and_nothing_else() {
    let by_run = (limits(), TestEncoder::new());
    let by_encoder = (limits(), TestEncoder { spent_at: Some(9), ..TestEncoder::new() });
    for ((limits, encoder), because) in [
        ((Limits { budget: Some(ITEMS as u64), ..by_run.0 }, by_run.1), Ending::SpentBudget),
        (by_encoder, Ending::EncoderBudgetSpent),
    ] {
        let (store, world) = started(ITEMS);
        let clock = ManualClock::default();
        let script = Script::new(&store, &clock, 3_000_000).put(10_000, common::item(100, 0));
        let summary = follow(&store, &world, &encoder, limits, &clock, ("worker", &script)).unwrap();
        assert_eq!((summary.ending, summary.native), (Ending::Dismissed, ITEMS as u64), "{because:?}");
        assert!(script.seen(100, 0, Provenance::Adapted).unwrap() <= 10_000 + FOUND_WITHIN_MS);
        assert_eq!(script.rests.into_inner().unwrap().last(), Some(&Some(because)));
        assert!(encoder.calls.into_inner() <= 9, "it is not asked again and again");
    }
}

/// Encoder that does not answer for a while.
struct Away<'a>(TestEncoder, &'a ManualClock, std::ops::Range<u64>, Mutex<u32>);

impl Encoder for Away<'_> {
    fn space(&self) -> &Space {
        self.0.space()
    }

    fn batch_max(&self) -> usize {
        self.0.batch_max()
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        if self.2.contains(&self.1.now_ms()) {
            *self.3.lock().unwrap() += 1;
            let detail = "no answer".into();
            return Err(ErrorKind::Unavailable { service: "the service".into(), detail }.into());
        }
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
fn an_encoder_that_goes_away_is_waited_for_and_what_comes_is_adapted() {
    let (store, world) = started(ITEMS);
    let clock = ManualClock::default();
    let encoder = Away(TestEncoder::new(), &clock, 5000..3_600_000, Mutex::default());
    let script = Script::new(&store, &clock, 5_000_000).put(10_000, common::item(100, 0));
    let summary = follow(&store, &world, &encoder, limits(), &clock, ("worker", &script)).unwrap();
    assert_eq!((summary.ending, summary.done.failed), (Ending::Dismissed, 0));
    assert!(script.seen(100, 0, Provenance::Adapted).unwrap() <= 10_000 + FOUND_WITHIN_MS);
    let native = script.seen(100, 0, Provenance::Native).unwrap();
    assert!((3_600_000..=3_900_000 + FOUND_WITHIN_MS).contains(&native), "at {native}");
    let asked = encoder.3.into_inner().unwrap();
    assert!((10..30).contains(&asked), "{asked} times in an hour, with rests between");
}

#[test]
fn a_database_that_goes_away_for_an_hour_is_waited_for() {
    let (memory, world) = started(ITEMS);
    let clock = Arc::new(ManualClock::default());
    let time = Arc::clone(&clock);
    let store = Hooked::new(&memory, move |_, _| {
        if (5000..3_600_000).contains(&time.now_ms()) {
            let detail = "the server starts again".into();
            return Err(ErrorKind::Unavailable { service: "the database".into(), detail }.into());
        }
        Ok(())
    });
    let script = Script::new(&memory, &clock, 4_000_000).put(3_700_000, common::item(100, 0));
    let encoder = TestEncoder::new();
    let summary = follow(&store, &world, &encoder, limits(), &*clock, ("worker", &script)).unwrap();
    assert_eq!((summary.ending, summary.native), (Ending::Dismissed, ITEMS as u64 + 1));
    let found = script.seen(100, 0, Provenance::Adapted).unwrap();
    assert!(found <= 3_700_000 + FOUND_WITHIN_MS, "at {found}");
}

#[test]
fn a_second_follower_stands_by_and_takes_over_when_the_first_dies() {
    let (store, world) = started(ITEMS);
    let (clock, encoder) = (ManualClock::default(), TestEncoder::new());
    store.put(&[without_source(100)]).unwrap();
    let dying = DieAt::new(Place::CatchUpWritten, 1);
    follow(&store, &world, &encoder, limits(), &clock, ("first", &dying)).unwrap_err();
    assert_eq!(follower(&store).unwrap().unwrap().worker, "first");
    assert_eq!(status(&store, 0).unwrap().follower.unwrap().worker, "first");
    // For a minute somebody says in the dead follower's place that it is there.
    let clock = ManualClock::default();
    let mut script = Script::new(&store, &clock, 100_000).put(1000, without_source(101));
    for time in (0..60_000).step_by(2000) {
        script = script.at(time, || {
            let (version, text) = store.document("follower").unwrap().unwrap();
            store.set_document("follower", Some(version), &text).unwrap();
        });
    }
    script.acts.get_mut().unwrap().make_contiguous().sort_by_key(|(time, _)| *time);
    let summary = follow(&store, &world, &encoder, limits(), &clock, ("second", &script)).unwrap();
    assert_eq!((summary.ending, summary.native, summary.caught_up), (Ending::Dismissed, ITEMS as u64, 1));
    let found = script.seen(101, 0, Provenance::Adapted).unwrap();
    assert!((58_000 + 4000..=58_000 + 7500).contains(&found), "at {found}");
}

/// Observer that ends a follower when all items are native.
struct UntilAll<'a>(&'a MemoryStore);

impl Observer for UntilAll<'_> {
    fn wants_stop(&self) -> bool {
        self.0.counts("new-model").unwrap().native == ITEMS as u64
    }
}

/// Clock of several workers. Its time passes only while all of them sleep: who sleeps alone would reach the
/// end of a lease that another one is at work under.
struct CommonClock {
    time: Mutex<CommonTime>,
    passed: Condvar,
}

#[derive(Default)]
struct CommonTime {
    now: Duration,
    awake: usize,
    wakes: Vec<Duration>,
}

impl CommonClock {
    fn for_workers(workers: usize) -> Self {
        let time = CommonTime { awake: workers, ..CommonTime::default() };
        Self { time: Mutex::new(time), passed: Condvar::new() }
    }

    /// Takes a worker out that sleeps, or ends; the last one takes the time on to where the next wakes.
    fn falls_asleep(&self, time: &mut CommonTime) {
        time.awake -= 1;
        if time.awake == 0
            && let Some(next) = time.wakes.iter().min()
        {
            time.now = *next;
            self.passed.notify_all();
        }
    }
}

impl Clock for CommonClock {
    fn now(&self) -> Duration {
        self.time.lock().unwrap().now
    }

    fn sleep_until(&self, wake: Duration, ends: &dyn Fn() -> bool) {
        if ends() {
            return;
        }
        let mut time = self.time.lock().unwrap();
        if wake <= time.now {
            return;
        }
        time.wakes.push(wake);
        self.falls_asleep(&mut time);
        let mut time = self.passed.wait_while(time, |time| time.now < wake).unwrap();
        let mine = time.wakes.iter().position(|other| *other == wake).unwrap();
        time.wakes.swap_remove(mine);
        time.awake += 1;
    }
}

#[test]
fn several_followers_share_the_work_and_nothing_is_embedded_twice() {
    let (store, world) = started(ITEMS);
    let (encoder, names) = (TestEncoder::new(), ["left", "middle", "right"]);
    let clock = CommonClock::for_workers(names.len());
    std::thread::scope(|scope| {
        for worker in names {
            let (store, world, encoder, clock) = (&store, &world, &encoder, &clock);
            scope.spawn(move || {
                let limits = Limits { batch: 1, ..limits() };
                let ended = follow(store, world, encoder, limits, clock, (worker, &UntilAll(store)));
                clock.falls_asleep(&mut clock.time.lock().unwrap());
                assert_eq!(ended.unwrap().ending, Ending::Dismissed);
            });
        }
    });
    assert_eq!(encoder.count() as usize, ITEMS);
    check(&store, &[common::adapter()]);
}

#[test]
fn an_idle_follower_asks_little() {
    let (memory, world) = started(ITEMS);
    let asked = Arc::new(Mutex::new(Vec::<String>::new()));
    let calls = Arc::clone(&asked);
    let store = Hooked::new(&memory, move |_, call| {
        calls.lock().unwrap().push(call.to_owned());
        Ok(())
    });
    let clock = ManualClock::default();
    let calls = Arc::clone(&asked);
    let script = Script::new(&memory, &clock, 80_000).at(20_000, move || calls.lock().unwrap().clear());
    follow(&store, &world, &TestEncoder::new(), limits(), &clock, ("worker", &script)).unwrap();
    let asked = asked.lock().unwrap();
    let count = |name: &str| asked.iter().filter(|call| *call == name).count();
    // In a minute there are 120 looks with two pages each, and 30 words of the follower that it is there; a
    // lease is renewed every ten seconds.
    assert!((118..=122).contains(&(count("scan") / 2)), "{} pages", count("scan"));
    assert!((28..=32).contains(&count("set_document")), "{} writes", count("set_document"));
    // The thread that settles the index may come to its turn late: its count is one, that of the end another.
    assert!(count("counts") <= 2 && count("claim") == 0 && count("renew") <= 7, "{asked:?}");
    let others = ["scan", "set_document", "counts", "renew", "serving_and_document", "document", "release"];
    let more: Vec<_> = asked.iter().filter(|call| !others.contains(&call.as_str())).collect();
    assert!(more.len() <= 3, "{more:?}");
}
