//! Random applications, operators and deaths against a small oracle. After every operation a reader looks: it sees no deleted
//! item, no stale vector, and none without knowing who made it; nothing native is ever lost; two workers do no harm. Whatever
//! happened, in the end all is native.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{DieAt, TestClock, TestEncoder, World, check, fill, new_model, old_model, other_adapter};
use proptest::prelude::*;
use rehang::order::Policy;
use rehang::{Adapter, Matrix, Provenance, Result};
use rehang_encode::Encoder as _;
use rehang_store::{
    Filter, Found, ItemWrite, ManualLeaseClock, MemoryStore, NewVector, Revision, Scan, Select, SqliteStore,
    Store, find_space,
};
use rehang_upgrade::{
    BackfillSetup, Gallery, Limits, Observer, OrderSettings, Phase, Place, Recorded, Request, Serving,
    Summary, Unobserved, backfill, finish, request, rollback, start, status, switch,
};

const OLD: &str = "old-model";
const NEW: &str = "new-model";
/// Numbers of the items that operations speak of.
const NUMBERS: usize = 70;
const BATCH: usize = 3;
const WORKERS: usize = 2;

/// What an application does.
#[derive(Debug, Clone)]
enum Write {
    /// A new or changed item with an old vector, written through the gallery.
    Put(usize),
    /// The same by an application that knows nothing of the upgrade.
    PutPlainly(usize),
    /// An item that the application embedded with the new model.
    PutNative(usize),
    /// An item without any vector.
    PutBare(usize),
    Delete(usize),
}

/// What an operator does.
#[derive(Debug, Clone)]
enum Verb {
    /// Start again: catches up, or goes on after a death.
    Start,
    /// Start again with the other adapter.
    Replan,
    /// Start again with another order.
    Reorder(Policy),
    Switch(Serving),
    Rollback,
    Finish,
    /// A backfill of so many items, or of all.
    Run(Option<u64>),
    Ask(Request),
}

#[derive(Debug, Clone)]
enum Operation {
    Write(Write),
    Verb(Verb),
    /// A verb whose process dies at the n-th visit of a place.
    Die(Verb, Place, u64),
    /// Two backfills at once, and meanwhile the application and the operator go on.
    Race(Option<u64>, Vec<Operation>),
}

fn write() -> impl Strategy<Value = Write> {
    // Most operations meet few items, so that they meet each other.
    let item = prop_oneof![4 => 0..12_usize, 1 => 0..NUMBERS];
    prop_oneof![
        3 => item.clone().prop_map(Write::Put),
        2 => item.clone().prop_map(Write::PutPlainly),
        1 => item.clone().prop_map(Write::PutNative),
        1 => item.clone().prop_map(Write::PutBare),
        2 => item.prop_map(Write::Delete),
    ]
}

fn verb() -> impl Strategy<Value = Verb> {
    let policy = prop_oneof![Just(Policy::Sigma), Just(Policy::Random), Just(Policy::Coverage)];
    let serving = prop_oneof![Just(Serving::Mixed), Just(Serving::Merged)];
    let asked = prop_oneof![3 => Just(Request::Run), 1 => Just(Request::Pause), 1 => Just(Request::Stop)];
    prop_oneof![
        6 => Just(Verb::Start),
        3 => Just(Verb::Replan),
        3 => policy.prop_map(Verb::Reorder),
        6 => serving.prop_map(Verb::Switch),
        3 => Just(Verb::Rollback),
        1 => Just(Verb::Finish),
        8 => (1..5_u64).prop_map(|budget| Verb::Run(Some(budget))),
        2 => (20..70_u64).prop_map(|budget| Verb::Run(Some(budget))),
        1 => Just(Verb::Run(None)),
        4 => asked.prop_map(Verb::Ask),
    ]
}

/// The places that a verb comes by.
fn places(verb: &Verb) -> &'static [Place] {
    match verb {
        Verb::Start | Verb::Replan | Verb::Reorder(_) => &[
            Place::RecordWritten,
            Place::SpaceMade,
            Place::FillRead,
            Place::FillWritten,
            Place::PrioritiesWritten,
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BeforeFilled,
            Place::AfterFilled,
        ],
        Verb::Switch(_) => &[
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BeforeSwitch,
            Place::SwitchRecorded,
            Place::AfterSwitch,
        ],
        Verb::Rollback => &[Place::RolledBack],
        Verb::Finish => &[Place::CatchUpRead, Place::CatchUpWritten, Place::BeforeDrop, Place::AfterDrop],
        Verb::Run(_) => &[
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BackfillClaimed,
            Place::BackfillEncoded,
            Place::BackfillWritten,
            Place::FailuresRecorded,
            Place::BackfillEnded,
        ],
        // One write: it is there or it is not.
        Verb::Ask(_) => &[],
    }
}

fn death() -> impl Strategy<Value = Operation> {
    (verb(), any::<prop::sample::Index>(), 1..4_u64).prop_map(|(verb, place, visit)| match places(&verb) {
        [] => Operation::Verb(verb),
        places => Operation::Die(verb, places[place.index(places.len())], visit),
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let simple = || {
        prop_oneof![
            3 => write().prop_map(Operation::Write),
            3 => verb().prop_map(Operation::Verb),
        ]
    };
    let budget = prop::option::of(1..30_u64);
    prop_oneof![
        6 => simple(),
        2 => death(),
        1 => (budget, prop::collection::vec(simple(), 0..6)).prop_map(|(budget, meanwhile)| Operation::Race(budget, meanwhile)),
    ]
}

/// What is known of an item.
struct Known {
    source: String,
    revision: Revision,
    has_old: bool,
}

/// The oracle: what the application was told.
struct Oracle {
    items: BTreeMap<String, Known>,
    versions: usize,
    /// Revisions that were seen native: they stay so until the item changes.
    native: BTreeSet<(String, Revision)>,
    serving: String,
    asked: Request,
}

impl Oracle {
    fn perform(&mut self, write: &Write, store: &Arc<dyn Store>, adapter: &Adapter) {
        let there = |space| store.spaces().unwrap().iter().any(|record| record.space.name == space);
        let mut next = |number: usize| {
            self.versions += 1;
            let mut write = common::item(number, self.versions);
            if !there(OLD) {
                write.vectors = vec![native(&write)];
            }
            write
        };
        let (write, revisions) = match *write {
            Write::Delete(number) => {
                let existed = self.items.remove(&common::id(number)).is_some();
                assert_eq!(store.delete(&[&common::id(number)]).unwrap(), usize::from(existed));
                return;
            }
            Write::Put(number) => {
                let write = next(number);
                let revisions = Gallery::new(Arc::clone(store), Some(Arc::new(adapter.clone())))
                    .put(std::slice::from_ref(&write))
                    .unwrap();
                if store.serving().unwrap().as_deref() == Some(NEW) {
                    assert!(has_new_vector(&**store, &write.id), "no search finds {}", write.id);
                }
                (write, revisions)
            }
            Write::PutPlainly(number) => {
                let write = next(number);
                (write.clone(), store.put(&[write]).unwrap())
            }
            Write::PutNative(number) => {
                let mut write = next(number);
                if there(NEW) {
                    write.vectors = vec![native(&write)];
                }
                (write.clone(), store.put(&[write]).unwrap())
            }
            Write::PutBare(number) => {
                let mut write = next(number);
                write.vectors.clear();
                (write.clone(), store.put(&[write]).unwrap())
            }
        };
        let has_old = write.vectors.iter().any(|vector| vector.space == OLD);
        let source = write.source.unwrap();
        self.items.insert(write.id, Known { source, revision: revisions[0], has_old });
    }

    /// What a reader sees at any moment, also while others are at work: only items that there are, once, as they are now.
    fn look(&self, store: &Arc<dyn Store>) -> (Vec<String>, Vec<Found>) {
        let source = "what somebody looks for";
        let (old, new) = (old_model(source), new_model(source));
        let rows = |row: &[f32]| Matrix::new(row.len(), row.to_vec()).unwrap();
        let (old_rows, new_rows) = (rows(&old), rows(&new));
        let queries = [(OLD, &old_rows), (NEW, &new_rows)];
        let gallery = Gallery::new(Arc::clone(store), None);
        if Recorded::read(&**store).unwrap().is_some() && store.spaces().unwrap().len() == 2 {
            gallery.calibrate().unwrap();
        }
        let mut answer = gallery.search(&queries, 2 * NUMBERS, &Filter::default()).unwrap();
        let hits = answer.found.remove(0);
        let ids: BTreeSet<&str> = hits.iter().map(|hit| hit.id.as_str()).collect();
        assert_eq!(ids.len(), hits.len(), "an item twice");
        for hit in &hits {
            let known = self.items.get(&hit.id);
            let known = known.unwrap_or_else(|| panic!("a deleted item returned: {}", hit.id));
            assert_eq!(hit.revision, known.revision, "{} as it was once", hit.id);
            if answer.spaces.len() > 1 {
                // Merged: on a scale of its own.
                continue;
            }
            assert_eq!(hit.provenance == Provenance::Old, answer.spaces == [OLD], "{}", hit.id);
            let vectors = match hit.provenance {
                Provenance::Old => vec![old_model(&known.source)],
                Provenance::Native => vec![new_model(&known.source)],
                Provenance::Adapted => adapters().map(|adapter| adapted(&adapter, &known.source)).to_vec(),
            };
            let query = if hit.provenance == Provenance::Old { &old } else { &new };
            let near = |vector: &Vec<f32>| (squared_distance(query, vector) - hit.distance).abs() < 1e-4;
            assert!(vectors.iter().any(near), "a stale vector of {}: {hit:?}", hit.id);
        }
        (answer.spaces, hits)
    }

    /// What holds between two operations.
    fn check(&mut self, store: &Arc<dyn Store>) {
        check(&**store, &adapters());
        let (spaces, hits) = self.look(store);
        let found: BTreeSet<&str> = hits.iter().map(|hit| hit.id.as_str()).collect();
        let there: Vec<String> = store.spaces().unwrap().into_iter().map(|space| space.space.name).collect();
        for (id, known) in &mut self.items {
            let item = store.get(&[id]).unwrap().remove(0).unwrap_or_else(|| panic!("{id} is lost"));
            assert_eq!((item.source.as_ref(), item.revision), (Some(&known.source), known.revision));
            known.has_old &= there.iter().any(|space| space == OLD);
        }
        let with_old = self.items.iter().filter(|(_, known)| known.has_old).map(|(id, _)| id.as_str());
        let mut expected: BTreeSet<&str> = if spaces == [NEW] { BTreeSet::new() } else { with_old.collect() };
        let mut native = BTreeSet::new();
        if there.iter().any(|space| space == NEW) {
            for record in store.scan(&Scan::new(NEW, Select::All, usize::MAX >> 1)).unwrap() {
                let Some(state) = record.state else { continue };
                let id = self.items.get_key_value(&record.item.id).expect("no item of its own").0;
                if state.provenance == Provenance::Native {
                    native.insert((id.clone(), state.revision));
                }
                if spaces == [NEW] || (spaces.len() > 1 && state.provenance == Provenance::Native) {
                    expected.insert(id.as_str());
                }
            }
        }
        assert_eq!(found, expected, "searches of {spaces:?} miss an item");
        for (id, revision) in &self.native {
            let changed = self.items.get(id).is_none_or(|known| known.revision != *revision);
            assert!(changed || native.contains(&(id.clone(), *revision)), "what {id} cost is lost");
        }
        if spaces.len() > 1 && native.is_empty() {
            let old = Matrix::new(common::D_OLD, old_model("what somebody looks for")).unwrap();
            let plain = store.search(OLD, &old, 2 * NUMBERS, &Filter::default()).unwrap().remove(0);
            assert!(plain.iter().map(|hit| &hit.id).eq(hits.iter().map(|hit| &hit.id)), "not the old search");
        }
        self.native = native;
        if let Some(recorded) = Recorded::read(&**store).unwrap() {
            assert_eq!(recorded.record.request, self.asked);
            let status = status(&**store, 3).unwrap();
            let counts = status.counts;
            assert_eq!(counts.items, self.items.len() as u64);
            assert_eq!(counts.native + counts.adapted + counts.lacking, counts.items);
            assert_eq!(status.lag + status.without_vector, counts.lacking);
            assert_eq!(counts.native, self.native.len() as u64);
        }
        assert_eq!(store.serving().unwrap().as_ref(), Some(&self.serving), "nobody switched it");
    }
}

/// Whether searches of the new space find an item.
fn has_new_vector(store: &dyn Store, id: &str) -> bool {
    let key = store.get(&[id]).unwrap().remove(0).unwrap_or_else(|| panic!("{id} is lost")).key;
    store.provenances(NEW, &[key]).unwrap()[0].is_some()
}

/// A vector of the new model that an application brings along.
fn native(write: &ItemWrite) -> NewVector {
    NewVector::of_model(NEW, new_model(write.source.as_deref().unwrap()), Provenance::Native)
}

fn adapters() -> [Adapter; 2] {
    [common::adapter(), other_adapter()]
}

/// What the adapters of these tests make of a source.
fn adapted(adapter: &Adapter, source: &str) -> Vec<f32> {
    let mut vector = old_model(source);
    vector.push(adapter.map.mixer[0].bias[3]);
    vector
}

fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn run(
    store: &dyn Store,
    encoder: &TestEncoder,
    adapter: &Adapter,
    budget: Option<u64>,
    worker: &str,
    faults: &dyn Observer,
) -> Result<Summary> {
    let clock = TestClock::default();
    let limits = Limits { batch: BATCH, workers: WORKERS, budget, ..Limits::default() };
    let setup = BackfillSetup { store, encoder, adapter, limits, clock: &clock, worker };
    backfill(&setup, faults)
}

struct Model {
    store: Arc<dyn Store>,
    world: World,
    order: OrderSettings,
    encoder: Arc<TestEncoder>,
    /// What leases run out by.
    clock: ManualLeaseClock,
    /// Deaths with a batch in hand.
    deaths: u32,
    oracle: Oracle,
}

impl Model {
    fn new(store: Arc<dyn Store>, clock: ManualLeaseClock, items: usize) -> Self {
        fill(store.as_ref(), items);
        let items = (0..items).map(|number| {
            let revision = store.get(&[&common::id(number)]).unwrap().remove(0).unwrap().revision;
            let source = format!("source {number} version 0");
            (common::id(number), Known { source, revision, has_old: true })
        });
        let oracle = Oracle {
            items: items.collect(),
            versions: 0,
            native: BTreeSet::new(),
            serving: OLD.into(),
            asked: Request::Run,
        };
        let order = OrderSettings { policy: Policy::Sigma, seed: 3 };
        let encoder = Arc::new(TestEncoder::new());
        // As an earlier run leaves it, so that none compares natives of the application, which would cost embeddings of its own.
        let known = encoder.fingerprint().unwrap().unwrap();
        store.set_document(&format!("encoder of {NEW}"), None, &known).unwrap();
        Self { store, world: World::new(), order, encoder, clock, deaths: 0, oracle }
    }

    fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    fn setup(&self) -> rehang_upgrade::Setup<'_> {
        rehang_upgrade::Setup { order: self.order, ..self.world.setup() }
    }

    /// How the upgrade stood, by the gallery's own word.
    fn phase(&self) -> Option<Phase> {
        Recorded::read(self.store()).unwrap().map(|recorded| recorded.record.phase)
    }

    /// Performs a verb; `alone`, it fails only where it must, or where its process dies.
    fn perform(&mut self, verb: &Verb, faults: &dyn Observer, alone: bool) {
        let before = self.phase();
        let has_old = self.store.spaces().unwrap().iter().any(|space| space.space.name == OLD);
        let (outcome, may) = match *verb {
            Verb::Start | Verb::Replan | Verb::Reorder(_) => {
                match *verb {
                    Verb::Replan if self.world.adapter == common::adapter() => {
                        self.world.adapter = other_adapter();
                    }
                    Verb::Replan => self.world.adapter = common::adapter(),
                    Verb::Reorder(policy) => {
                        self.order = OrderSettings { policy, seed: self.order.seed + 1 };
                    }
                    _ => {}
                }
                let outcome = start(self.store(), &self.setup(), faults);
                if has_old && before == Some(Phase::Finished) {
                    // A finish died before it dropped anything, and somebody begins once more.
                    self.oracle.asked = Request::Run;
                }
                if outcome.is_ok() && alone {
                    // Also where a worker with another adapter was at work when the upgrade was planned anew.
                    check(self.store(), std::slice::from_ref(&self.world.adapter));
                    assert_eq!(status(self.store(), 0).unwrap().lag, 0, "not caught up");
                }
                (outcome.map(drop), has_old)
            }
            Verb::Switch(serving) => {
                let outcome = switch(self.store(), &self.setup(), serving, faults);
                if self.store.serving().unwrap().as_deref() == Some(NEW) {
                    self.oracle.serving = NEW.into();
                }
                if outcome.is_ok() && alone {
                    assert_eq!(status(self.store(), 0).unwrap().lag, 0, "not caught up");
                }
                (outcome.map(drop), matches!(before, Some(Phase::Filled | Phase::RolledBack)))
            }
            Verb::Rollback => {
                let outcome = rollback(self.store(), &self.setup(), faults);
                if self.store.serving().unwrap().as_deref() == Some(OLD) {
                    self.oracle.serving = OLD.into();
                }
                if let Ok(back) = &outcome {
                    let without = self.oracle.items.values().filter(|known| !known.has_old).count();
                    assert_eq!(back.without_old_vector, without as u64);
                }
                (outcome.map(drop), before.is_some_and(|phase| phase != Phase::Finished))
            }
            Verb::Finish => {
                let serves = self.oracle.serving == NEW;
                let may = before == Some(Phase::Finished) || (before == Some(Phase::Filled) && serves);
                let outcome = finish(self.store(), &self.setup(), faults).map(drop);
                let dropped = has_old && find_space(self.store(), OLD).unwrap().is_none();
                for (id, _) in self.oracle.items.iter().filter(|(_, known)| dropped && known.has_old) {
                    assert!(has_new_vector(self.store(), id), "the last vector of {id} was dropped");
                }
                (outcome, may)
            }
            Verb::Run(budget) => {
                let (count, asked) = (self.encoder.count(), self.oracle.asked);
                let outcome = run(self.store(), &self.encoder, &self.world.adapter, budget, "alone", faults);
                let may = matches!(before, Some(Phase::Filled | Phase::RolledBack)) && asked == Request::Run;
                assert!(may || !alone || self.encoder.count() == count, "it was asked not to run");
                (outcome.map(drop), may)
            }
            Verb::Ask(asked) => {
                let outcome = request(self.store(), &self.setup(), asked);
                if outcome.is_ok() {
                    self.oracle.asked = asked;
                }
                (outcome.map(drop), before.is_some_and(|phase| phase != Phase::Finished))
            }
        };
        match outcome {
            Ok(()) => assert!(may || !alone, "{verb:?} of an upgrade that is {before:?}"),
            Err(error) => {
                let died = error.to_string().contains("it died at");
                assert!(died || !may || !alone, "{verb:?} of an upgrade that is {before:?}: {error}");
            }
        }
    }

    fn play(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(write) => {
                self.oracle.perform(write, &self.store, &self.world.adapter);
            }
            Operation::Verb(verb) => self.perform(verb, &Unobserved, true),
            Operation::Die(verb, place, visit) => {
                let dying = DieAt::new(*place, *visit);
                self.perform(verb, &dying, true);
                self.deaths += u32::from(matches!(verb, Verb::Run(_)) && dying.died());
            }
            Operation::Race(budget, meanwhile) => {
                let (store, encoder) = (Arc::clone(&self.store), Arc::clone(&self.encoder));
                let adapter = self.world.adapter.clone();
                let work =
                    |worker| drop(run(store.as_ref(), &encoder, &adapter, *budget, worker, &Unobserved));
                thread::scope(|scope| {
                    let workers = ["left", "right"].map(|worker| scope.spawn(move || work(worker)));
                    for operation in meanwhile {
                        match operation {
                            Operation::Verb(verb) => self.perform(verb, &Unobserved, false),
                            other => self.play(other),
                        }
                        self.oracle.look(&store);
                    }
                    for worker in workers {
                        worker.join().unwrap();
                    }
                });
            }
        }
    }

    /// Nothing is paid for twice but what was in hand at a death.
    fn check_bill(&self) {
        let embedded = self.encoder.embedded.lock().unwrap();
        let twice: u32 = embedded.values().map(|count| count - 1).sum();
        let in_hand = self.deaths * (BATCH * WORKERS) as u32;
        assert!(twice <= in_hand, "{twice} embedded twice after {} deaths: {embedded:?}", self.deaths);
    }

    /// Whatever happened: the upgrade can be brought to its end, and every item is native once.
    fn end(&mut self) {
        if self.store.spaces().unwrap().iter().all(|space| space.space.name != OLD) {
            // It was finished half-way. What was not native by then is kept as it was.
            return;
        }
        self.perform(&Verb::Start, &Unobserved, true);
        self.perform(&Verb::Ask(Request::Run), &Unobserved, true);
        let verbs =
            [Verb::Run(None), Verb::Switch(Serving::Merged), Verb::Switch(Serving::Mixed), Verb::Finish];
        for verb in verbs {
            self.perform(&verb, &Unobserved, true);
            self.oracle.check(&self.store);
            let counts = self.store.counts(NEW).unwrap();
            assert_eq!(counts.native, self.oracle.items.len() as u64);
            assert_eq!(counts.adapted + counts.lacking, 0);
        }
    }
}

/// Performs the operations, looks at everything after each, then brings the upgrade to its end.
fn play(store: Arc<dyn Store>, clock: ManualLeaseClock, items: usize, operations: &[Operation]) {
    let mut model = Model::new(store, clock, items);
    for operation in operations {
        model.play(operation);
        model.oracle.check(&model.store);
        model.check_bill();
        // What the dead held is anybody's by the next operation.
        model.clock.pass(Duration::from_mins(1));
    }
    model.end();
    model.check_bill();
}

/// Few items meet each other often; many are enough to learn the scale of merged searches from.
fn items() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(8), 1 => Just(60)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_harms_a_gallery_in_memory(items in items(), operations in prop::collection::vec(operation(), 1..40)) {
        let clock = ManualLeaseClock::default();
        play(Arc::new(MemoryStore::new().with_clock(Arc::new(clock.clone()))), clock, items, &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_harms_a_gallery_on_disk(items in items(), operations in prop::collection::vec(operation(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualLeaseClock::default();
        let store = SqliteStore::create(folder.path().join("gallery.db")).unwrap();
        play(Arc::new(store.with_clock(Arc::new(clock.clone()))), clock, items, &operations);
    }
}
