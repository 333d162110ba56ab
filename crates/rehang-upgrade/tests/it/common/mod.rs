//! Small world for tests: two models that are known functions of the source, an adapter between them, a
//! gallery.
#![allow(dead_code, reason = "each of the two test programs uses a part of it")]

pub mod hooked;
mod padding;
pub mod plain;
pub mod room;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use rehang_clock::ManualClock;
use rehang_core::order::Policy;
use rehang_core::{Adapter, Distance, Error, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_store::{ItemWrite, Ledger, NewVector, Scan, Select, Store};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Clock, Gallery, Limits, Observer, OrderSettings, Place, Summary,
    Unobserved, UpgradeSetup, backfill, start,
};
use serde_json::Value;

use padding::padding;

pub const D_OLD: usize = 3;
pub const D_NEW: usize = 4;

pub fn old_space() -> Space {
    Space::new("old-model", D_OLD, Distance::L2, false)
}

pub fn new_space() -> Space {
    Space::new("new-model", D_NEW, Distance::L2, false)
}

/// Returns a number in [−1, 1) from a text and a place: it stands for a model here.
fn feature(text: &str, place: u64) -> f32 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ place.wrapping_mul(0xff51_afd7_ed55_8ccd);
    for byte in text.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        state ^= state >> 29;
    }
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
}

/// Embeds a source by the old model.
pub fn old_model(source: &str) -> Vec<f32> {
    (0..D_OLD as u64).map(|place| feature(source, place)).collect()
}

/// Embeds a source by the new model: the old model's features and one of its own.
pub fn new_model(source: &str) -> Vec<f32> {
    let mut vector = old_model(source);
    vector.push(feature(source, 99));
    vector
}

/// Returns an adapter whose h pads with 0; σ² is a function of the raw output, so that items differ.
pub fn adapter() -> Adapter {
    adapter_between(old_space(), new_space())
}

fn adapter_between(old: Space, new: Space) -> Adapter {
    padding(old, new, vec![1.0, 0.5, 0.0, 0.0], -1.0)
}

/// Returns an adapter that differs from [`adapter`] between the same spaces: its last coordinate is 0.5.
pub fn other_adapter() -> Adapter {
    let mut adapter = adapter();
    adapter.map.mixer[0].bias[3] = 0.5;
    adapter
}

#[derive(Clone)]
pub struct World {
    pub old: Space,
    pub new: Space,
    pub adapter: Adapter,
}

impl World {
    pub fn new() -> Self {
        Self::between(old_space(), new_space())
    }

    /// Returns an upgrade of a gallery from any space to another.
    pub fn between(old: Space, new: Space) -> Self {
        let adapter = adapter_between(old.clone(), new.clone());
        Self { old, new, adapter }
    }

    pub fn setup(&self) -> UpgradeSetup<'_> {
        let order = OrderSettings { policy: Policy::Sigma, seed: 3 };
        UpgradeSetup { old: &self.old, new: &self.new, adapter: Some(&self.adapter), order }
    }

    /// Runs a backfill by one worker.
    pub fn backfill(&self, store: &dyn Store, encoder: &dyn Encoder, limits: Limits) -> Result<Summary> {
        self.backfill_observed(store, encoder, limits, &ManualClock::default(), &Unobserved)
    }

    pub fn backfill_observed(
        &self,
        store: &dyn Store,
        encoder: &dyn Encoder,
        limits: Limits,
        clock: &dyn Clock,
        observer: &dyn Observer,
    ) -> Result<Summary> {
        let scope = BackfillScope::Gallery(Some(&self.adapter));
        backfill(&BackfillSetup { store, encoder, scope, limits, clock, worker: "worker" }, observer)
    }
}

/// Makes a gallery of some items in an upgrade that has begun.
pub fn started(items: usize) -> (MemoryStore, World) {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, items);
    start(&store, &world.setup(), &Unobserved).unwrap();
    (store, world)
}

/// Returns an item's id: a number, since that is what Qdrant's points are called, and as long as any other,
/// so that both sort alike.
pub fn id(number: usize) -> String {
    format!("{}", 1_000 + number)
}

/// Returns the number of an item.
pub fn number(id: &str) -> usize {
    id.parse::<usize>().unwrap() - 1_000
}

/// Returns an item as the application writes it before the switch: with its old vector.
pub fn item(number: usize, version: usize) -> ItemWrite {
    let source = format!("source {number} version {version}");
    ItemWrite {
        id: id(number),
        label: Some((number % 5).to_string()),
        payload: Value::Null,
        vectors: vec![NewVector::from_model(old_space().name, old_model(&source), Provenance::Old)],
        source: Some(source),
    }
}

/// Returns the gallery that an application searches and writes through; a clone of a store is another handle
/// on it.
pub fn gallery<S: Store + Clone + 'static>(store: &S) -> Gallery {
    Gallery::new(Arc::new(store.clone()))
}

/// Fills a store with `items` items that have old vectors.
pub fn fill(store: &dyn Ledger, items: usize) {
    store.create_space(&old_space(), Provenance::Old).unwrap();
    let writes: Vec<ItemWrite> = (0..items).map(|number| item(number, 0)).collect();
    store.put(&writes).unwrap();
}

/// Encoder of the new model that counts, and fails where told.
#[derive(Default)]
pub struct TestEncoder {
    pub space: Option<Space>,
    /// How often each source was embedded.
    pub embedded: Mutex<BTreeMap<String, u32>>,
    /// Sources that fail for ever.
    pub broken: Vec<String>,
    /// Sources that fail this often first.
    pub flaky: Mutex<BTreeMap<String, u32>>,
    pub calls: AtomicU64,
    /// The call that fails for good (counted from 1), as a wrong key would.
    pub fatal_at: Option<u64>,
    /// Items that are embedded by the call that fails; the others are left untried, as where the key ends
    /// half-way.
    pub tried_before: Option<usize>,
    /// The call from which on its budget is spent (counted from 1).
    pub spent_at: Option<u64>,
    /// Distance of the last coordinate from the new model's: anything but 0 is another model.
    pub by: f32,
    pub fingerprint: Option<&'static str>,
    /// Whether it says that the source alone makes a vector, as it does.
    pub reads_source_alone: bool,
    /// Texts after which the encoder compares itself and vouches for them; 0 where it always vouches.
    pub vouches_after: u64,
    /// Texts so far; `vouched` has those of them that the encoder vouches for.
    pub given: AtomicU64,
    pub vouched: AtomicU64,
}

impl TestEncoder {
    pub fn new() -> Self {
        Self { space: Some(new_space()), fingerprint: Some("the new model"), ..Self::default() }
    }

    pub fn count(&self) -> u32 {
        self.embedded.lock().unwrap().values().sum()
    }
}

impl Encoder for TestEncoder {
    fn space(&self) -> &Space {
        self.space.as_ref().unwrap()
    }

    fn reads_source_alone(&self) -> bool {
        self.reads_source_alone
    }

    fn batch_max(&self) -> usize {
        1000
    }

    fn receipt(&self) -> u64 {
        if self.vouches_after == 0 { 0 } else { self.given.load(Ordering::SeqCst) }
    }

    fn is_vouched_for(&self, receipt: u64) -> bool {
        receipt <= self.vouched.load(Ordering::SeqCst)
    }

    fn vouch(&self) -> Result<()> {
        self.vouched.fetch_max(self.given.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(())
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if self.fatal_at == Some(call) {
            return Err(Error::from(rehang_core::ErrorKind::Unauthorised {
                service: "the test encoder".into(),
                detail: "401".into(),
            }));
        }
        let given = self.given.fetch_add(inputs.len() as u64, Ordering::SeqCst);
        if given >= self.vouched.load(Ordering::SeqCst) + self.vouches_after {
            self.vouched.fetch_max(given, Ordering::SeqCst);
        }
        let tried = if self.fatal_at == Some(call + 1) { self.tried_before } else { None };
        if self.spent_at.is_some_and(|first| call >= first) {
            return Err(Error::budget_spent("the budget of the test encoder", "budget_items 30 is spent"));
        }
        Ok(inputs
            .iter()
            .enumerate()
            .map(|(at, input)| {
                if tried.is_some_and(|tried| at >= tried) {
                    return Err(ItemFailure::Untried("401".into()));
                }
                *self.embedded.lock().unwrap().entry(input.source.to_owned()).or_default() += 1;
                if self.broken.iter().any(|broken| broken == input.source) {
                    return Err(ItemFailure::Permanent("no such file".into()));
                }
                let mut flaky = self.flaky.lock().unwrap();
                if let Some(left) = flaky.get_mut(input.source)
                    && *left > 0
                {
                    *left -= 1;
                    return Err(ItemFailure::Temporary("busy".into()));
                }
                let mut vector = new_model(input.source);
                vector[D_NEW - 1] += self.by;
                Ok(vector)
            })
            .collect())
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(self.fingerprint.map(Into::into))
    }

    fn spent(&self) -> Spent {
        Spent { items: u64::from(self.count()), ..Spent::default() }
    }
}

/// Observer that dies at the n-th visit (counted from 1) of a place.
pub struct DieAt {
    pub place: Place,
    pub visit: u64,
    visits: AtomicU64,
}

impl DieAt {
    pub fn new(place: Place, visit: u64) -> Self {
        Self { place, visit, visits: AtomicU64::new(0) }
    }

    pub fn died(&self) -> bool {
        self.visits.load(Ordering::SeqCst) >= self.visit
    }
}

impl Observer for DieAt {
    fn reach(&self, place: Place) -> Result<()> {
        if place == self.place {
            self.visits.fetch_add(1, Ordering::SeqCst);
        }
        // A dead process reaches nothing any more.
        if self.died() {
            return Err(Error::conflict("this process", format!("it died at {:?}", self.place)));
        }
        Ok(())
    }
}

/// Returns everything that can be observed of a gallery, in the order of ids: one line an item and space.
pub fn snapshot(store: &dyn Ledger) -> Vec<String> {
    let mut lines = vec![format!("serving {:?}", store.serving().unwrap())];
    for space in store.spaces().unwrap() {
        let name = &space.space.name;
        let records =
            store.scan(&Scan::new(name, Select::All, usize::MAX >> 1).with_vectors_of(name)).unwrap();
        let mut of_space: Vec<String> = records
            .into_iter()
            .map(|record| {
                let item = record.item;
                let vector = record.vector.map(|vector| {
                    assert_eq!(vector.revision, item.revision, "a vector of another revision: {}", item.id);
                    let error = vector.squared_error;
                    (vector.provenance, vector.sigma2, error, vector.vector)
                });
                format!("{name} {} {:?} {:?} {vector:?}", item.id, item.source, item.label)
            })
            .collect();
        of_space.sort();
        lines.extend(of_space);
    }
    lines
}

/// Checks what must hold of a gallery at any time: vectors are exactly what their model (or the adapter) says
/// of the source that the item has now.
pub fn check(store: &dyn Ledger, adapters: &[Adapter]) {
    for space in store.spaces().unwrap() {
        let name = &space.space.name;
        let records =
            store.scan(&Scan::new(name, Select::All, usize::MAX >> 1).with_vectors_of(name)).unwrap();
        for record in records {
            let Some(vector) = record.vector else { continue };
            let Some(source) = &record.item.source else { continue };
            assert_eq!(vector.revision, record.item.revision);
            match vector.provenance {
                Provenance::Old => assert_eq!(vector.vector, old_model(source), "{source}"),
                Provenance::Native => assert_eq!(vector.vector, new_model(source), "{source}"),
                Provenance::Adapted => {
                    let old = old_model(source);
                    let last: Vec<f32> =
                        adapters.iter().map(|adapter| adapter.map.mixer[0].bias[3]).collect();
                    assert_eq!(vector.vector[..3], old[..], "{source}");
                    assert!(last.contains(&vector.vector[3]), "{source}: {:?}", vector.vector);
                }
            }
        }
    }
}
