//! Strict store in memory: the contract in its shortest words, and the twin that other stores are compared
//! with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rayon::prelude::*;
use rehang_core::{Matrix, Provenance, Result, Space};
use rehang_store::check::{self, another_serves, no_such_space, same_space, serving_space_stays};
use rehang_store::{
    Among, AtWork, Claimed, Counts, Document, Drawn, Epoch, Failure, Filter, FirstKeys, Found, Index, Item,
    ItemKey, ItemWrite, LeaseClock, Ledger, Priority, Queue, Record, Revision, Sample, Scan, Select,
    SpaceRecord, SystemLeaseClock, VectorRecord, VectorWrite, WriteOutcome, exact, lease_end,
};

/// Gallery in memory. It is lost with the process; it keeps everything else of the contract to the letter.
///
/// Every method holds one lock from its first to its last step, so each call is a transaction, and searches
/// are exact. A clone is another handle on the same gallery.
///
/// ```
/// use rehang_core::{Distance, Provenance, Space};
/// use rehang_store::Ledger;
/// use rehang_store_tests::MemoryStore;
///
/// let store = MemoryStore::new();
/// store.create_space(&Space::new("clip", 2, Distance::Cosine, true), Provenance::Old)?;
/// assert_eq!(store.serving()?.as_deref(), Some("clip"));
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn LeaseClock>,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Makes an item's key of its id and its number; `None`: the key is made of the number alone.
    key_of: Option<fn(&str, u64) -> ItemKey>,
    last_key: u64,
    counter: u64,
    items: BTreeMap<ItemKey, Item>,
    keys: BTreeMap<String, ItemKey>,
    spaces: Vec<SpaceState>,
    serving: Option<String>,
    documents: BTreeMap<String, (u64, String)>,
    /// Whether an item that was deleted and comes back has lost its native vectors.
    forgets: bool,
}

#[derive(Debug, Clone)]
struct SpaceState {
    record: SpaceRecord,
    vectors: BTreeMap<ItemKey, StoredVector>,
    failures: BTreeMap<ItemKey, (Revision, String)>,
    /// Leases by the item that they hold.
    leases: BTreeMap<ItemKey, Lease>,
    /// Native vectors of items that are gone, by id and source.
    paid: BTreeMap<(String, String), Vec<f32>>,
}

#[derive(Debug, Clone)]
struct Lease {
    worker: String,
    until_ms: u64,
    /// Leases of the item in a row, before this one, that ran out.
    lost: u32,
}

/// Vector of a space, and the count of its last write.
#[derive(Debug, Clone)]
struct StoredVector {
    vector: VectorRecord,
    change: u64,
}

impl MemoryStore {
    /// A gallery without spaces and items.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives new items the keys that `key_of` makes of an item's id and its number, counted with it. The
    /// gallery stays the same.
    ///
    /// So it can be the twin of a store whose keys are made of the ids, in tests of who writes a key.
    #[must_use]
    pub fn with_keys(self, key_of: fn(&str, u64) -> ItemKey) -> Self {
        self.state().key_of = Some(key_of);
        self
    }

    /// Makes the gallery one that [gives no native vector back](Ledger) to an item that was deleted and comes
    /// again: the twin of a store that cannot.
    #[must_use]
    pub fn forgetting(self) -> Self {
        self.state().forgets = true;
        self
    }

    /// Measures leases by another clock. The gallery stays the same.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn LeaseClock>) -> Self {
        Self { clock, ..self }
    }

    /// Gives an item another id, which no other item has, as an update of a key does to a table.
    ///
    /// The item keeps its key and everything that is known of it. So the gallery can be the twin of a store
    /// with such tables.
    pub fn rename(&self, from: &str, to: &str) {
        let mut state = self.state();
        let Some(key) = state.keys.remove(from) else { return };
        state.keys.insert(to.to_owned(), key);
        if let Some(item) = state.items.get_mut(&key) {
            to.clone_into(&mut item.id);
        }
    }

    /// Makes a gallery of its own that is like this one now.
    #[must_use]
    pub fn backup(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state().clone())), clock: Arc::clone(&self.clock) }
    }

    /// Sets the gallery back to a backup. Numbers that were given since are not given again: in a store whose
    /// counter is set back with the gallery, a random part sees to that.
    pub fn set_back(&self, to: &Self) {
        let then = to.state().clone();
        let mut state = self.state();
        let (counter, last_key) = (state.counter, state.last_key);
        *state = State { last_key, counter, ..then };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic inside a lock can only come from a defect of this file; the state is checked before it is
        // changed, so it is whole even then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { state: Arc::default(), clock: Arc::new(SystemLeaseClock) }
    }
}

impl Ledger for MemoryStore {
    fn name(&self) -> String {
        "memory".into()
    }

    fn spaces(&self) -> Result<Vec<SpaceRecord>> {
        Ok(self.state().spaces.iter().map(|space| space.record.clone()).collect())
    }

    fn create_space(&self, space: &Space, written_as: Provenance) -> Result<()> {
        check::new_space(space, written_as)?;
        let mut state = self.state();
        if let Some(stored) = state.spaces.iter().find(|stored| stored.record.space.name == space.name) {
            return same_space(&stored.record, space, written_as);
        }
        state.spaces.push(SpaceState {
            record: SpaceRecord { space: space.clone(), written_as, epoch: Epoch::FIRST },
            vectors: BTreeMap::new(),
            failures: BTreeMap::new(),
            leases: BTreeMap::new(),
            paid: BTreeMap::new(),
        });
        state.serving.get_or_insert_with(|| space.name.clone());
        Ok(())
    }

    fn drop_space(&self, space: &str) -> Result<()> {
        let mut state = self.state();
        if state.serving.as_deref() == Some(space) {
            return Err(serving_space_stays(space));
        }
        state.spaces.retain(|stored| stored.record.space.name != space);
        Ok(())
    }

    fn serving_and_document(&self, document: &str) -> Result<(Option<String>, Option<Document>)> {
        let state = self.state();
        Ok((state.serving.clone(), state.documents.get(document).cloned()))
    }

    fn switch_serving(&self, from: &str, to: &str) -> Result<()> {
        let mut state = self.state();
        state.space(to)?;
        let serving = state.serving.as_deref().unwrap_or_default();
        if serving == to {
            return Ok(());
        }
        if serving != from {
            return Err(another_serves(from, to, serving));
        }
        state.serving = Some(to.to_owned());
        Ok(())
    }

    fn put(&self, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
        let mut state = self.state();
        for write in writes {
            check::item_write(write, |name| Ok(&state.space(name)?.record.space))?;
            for (new, epoch) in write.vectors.iter().filter_map(|new| Some((new, new.epoch?))) {
                check::epoch(&new.space, epoch, state.space(&new.space)?.record.epoch)?;
            }
        }
        Ok(writes.iter().map(|write| state.put(write)).collect())
    }

    fn delete(&self, ids: &[&str]) -> Result<usize> {
        let mut state = self.state();
        let mut deleted = 0;
        for &id in ids {
            let Some(key) = state.keys.remove(id) else { continue };
            if let Some(item) = state.items.remove(&key) {
                state.keep_paid(item);
            }
            state.forget(key);
            deleted += 1;
        }
        Ok(deleted)
    }

    fn get(&self, ids: &[&str]) -> Result<Vec<Option<Item>>> {
        let state = self.state();
        Ok(ids.iter().map(|&id| state.items.get(state.keys.get(id)?).cloned()).collect())
    }

    fn vectors(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>> {
        let state = self.state();
        let space = state.space(space)?;
        Ok(keys.iter().map(|key| space.vectors.get(key).map(|held| held.vector.clone())).collect())
    }

    fn provenances(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>> {
        let state = self.state();
        let space = state.space(space)?;
        Ok(keys.iter().map(|key| space.vectors.get(key).map(|held| held.vector.provenance)).collect())
    }

    fn write_vectors(
        &self,
        space: &str,
        epoch: Option<Epoch>,
        writes: &[VectorWrite],
    ) -> Result<Vec<WriteOutcome>> {
        let mut state = self.state();
        let record = &state.space(space)?.record;
        for write in writes {
            check::vector_write(&record.space, epoch, write)?;
        }
        if let Some(epoch) = epoch {
            check::epoch(space, epoch, record.epoch)?;
        }
        let State { items, spaces, counter, .. } = &mut *state;
        let space = find_mut(spaces, space)?;
        Ok(writes
            .iter()
            .map(|write| {
                let outcome = space.write(items, write, *counter + 1);
                *counter += u64::from(outcome == WriteOutcome::Written);
                outcome
            })
            .collect())
    }

    fn set_priorities(
        &self,
        space: &str,
        epoch: Epoch,
        priorities: &[(ItemKey, Revision, Priority)],
    ) -> Result<usize> {
        let mut state = self.state();
        let space = find_mut(&mut state.spaces, space)?;
        for (_, _, priority) in priorities {
            check::priority(Some(*priority))?;
        }
        check::epoch(&space.record.space.name, epoch, space.record.epoch)?;
        let mut changed = 0;
        for &(key, revision, priority) in priorities {
            if let Some(held) = space.vectors.get_mut(&key)
                && held.vector.revision == revision
                && held.vector.provenance == Provenance::Adapted
            {
                held.vector.priority = Some(priority);
                changed += 1;
            }
        }
        Ok(changed)
    }

    fn forget_natives(&self, space: &str, epoch: Epoch, limit: usize) -> Result<usize> {
        let mut state = self.state();
        let State { items, spaces, .. } = &mut *state;
        let space = find_mut(spaces, space)?;
        check::epoch(&space.record.space.name, epoch, space.record.epoch)?;
        let has_source = |key: &ItemKey| items.get(key).is_some_and(|item| item.source.is_some());
        let natives = space.vectors.iter().filter(|(_, held)| held.vector.provenance == Provenance::Native);
        let keys: Vec<ItemKey> = natives.map(|(key, _)| *key).filter(has_source).take(limit).collect();
        for key in &keys {
            space.vectors.remove(key);
        }
        space.paid.clear();
        Ok(keys.len())
    }

    fn advance(
        &self,
        space: &str,
        from: Epoch,
        document: &str,
        expected: Option<u64>,
        text: &str,
    ) -> Result<u64> {
        let mut state = self.state();
        let now = state.space(space)?.record.epoch;
        check::same_epoch(space, from, now)?;
        let version = state.set_document(document, expected, text)?;
        find_mut(&mut state.spaces, space)?.record.epoch = from.next();
        Ok(version)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<Record>> {
        let state = self.state();
        let space = state.space(&scan.space)?;
        let vectors_of = scan.vectors_of.as_deref().map(|name| state.space(name)).transpose()?;
        let after = |key: ItemKey| scan.after.is_none_or(|after| key > after);
        let is = |key: &ItemKey, provenance: Provenance| {
            space.vectors.get(key).is_some_and(|held| held.vector.provenance == provenance)
        };
        let mut items: Vec<&Item> = state.items.values().collect();
        match scan.select {
            Select::All => items.retain(|item| after(item.key)),
            Select::Provenance(provenance) => {
                items.retain(|item| after(item.key) && is(&item.key, provenance));
            }
            Select::Lacking => {
                items.retain(|item| after(item.key) && !space.vectors.contains_key(&item.key));
            }
            Select::WithoutSource => items.retain(|item| {
                after(item.key)
                    && item.source.is_none()
                    && (!space.vectors.contains_key(&item.key) || is(&item.key, Provenance::Adapted))
            }),
            Select::Queued => items = state.queue(space),
        }
        items.truncate(scan.limit);
        let mut records: Vec<Record> =
            items.into_iter().map(|item| space.record_of(item, vectors_of)).collect();
        if !scan.contents {
            for Record { item, .. } in &mut records {
                (item.source, item.label, item.payload) = (None, None, serde_json::Value::Null);
            }
        }
        Ok(records)
    }

    fn sample(&self, sample: &Sample) -> Result<Drawn> {
        let state = self.state();
        let space = state.space(&sample.space)?;
        let vectors_of = sample.vectors_of.as_deref().map(|name| state.space(name)).transpose()?;
        let (keys, drawn_from) = state.first(space, sample.among, sample.seed, sample.size);
        let items = keys.iter().filter_map(|key| state.items.get(key));
        Ok(Drawn { records: items.map(|item| space.record_of(item, vectors_of)).collect(), drawn_from })
    }

    fn newest_revision(&self) -> Result<Revision> {
        Ok(self.state().items.values().map(|item| item.revision).max().unwrap_or(0))
    }

    fn counts(&self, space: &str) -> Result<Counts> {
        let state = self.state();
        let space = state.space(space)?;
        let mut counts = Counts {
            items: state.items.len() as u64,
            failed: space.failures.len() as u64,
            ..Counts::default()
        };
        for item in state.items.values() {
            let provenance = space.vectors.get(&item.key).map(|held| held.vector.provenance);
            *match provenance {
                Some(Provenance::Old) => &mut counts.old,
                Some(Provenance::Adapted) => &mut counts.adapted,
                Some(Provenance::Native) => &mut counts.native,
                None => &mut counts.lacking,
            } += 1;
            if item.source.is_none() && matches!(provenance, None | Some(Provenance::Adapted)) {
                counts.without_source += 1;
            }
        }
        Ok(counts)
    }

    fn count_without_source(&self) -> Result<u64> {
        Ok(self.state().items.values().filter(|item| item.source.is_none()).count() as u64)
    }

    fn count_lag(&self, space: &str, behind: &str) -> Result<u64> {
        let state = self.state();
        let (space, behind) = (state.space(space)?, state.space(behind)?);
        Ok(behind.vectors.keys().filter(|key| !space.vectors.contains_key(key)).count() as u64)
    }

    fn claim(
        &self,
        space: &str,
        queue: Queue,
        worker: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Claimed> {
        let now_ms = self.clock.now_ms();
        let mut state = self.state();
        let space_state = state.space(space)?;
        let is_held = |lease: &Lease| lease.until_ms > now_ms;
        let their_leases =
            space_state.leases.values().filter(|lease| is_held(lease) && lease.worker != worker);
        let held_by_others = their_leases.count() as u64;
        let out = space_state.leases.iter().filter(|(_, lease)| !is_held(lease));
        let lost: BTreeMap<ItemKey, u32> = out.map(|(key, lease)| (*key, lease.lost + 1)).collect();
        let queue = match queue {
            Queue::All => state.queue(space_state),
            Queue::Sample { seed, size } => {
                let (keys, _) = state.first(space_state, Among::Embeddable, seed, size);
                let drawn = keys.iter().filter_map(|key| state.items.get(key));
                drawn.filter(|item| space_state.queues(item)).collect()
            }
        };
        let queue = queue.into_iter();
        let free = queue.filter(|item| !space_state.leases.get(&item.key).is_some_and(is_held));
        let next: Vec<Record> =
            free.take(limit).map(|item| space_state.record_of(item, Some(space_state))).collect();
        let claimed = Claimed::up_to_first_alone(next, &lost, held_by_others);
        let until_ms = lease_end(now_ms, lease);
        let leases = &mut find_mut(&mut state.spaces, space)?.leases;
        for Record { item, .. } in &claimed.records {
            let lost = lost.get(&item.key).copied().unwrap_or(0);
            leases.insert(item.key, Lease { worker: worker.to_owned(), until_ms, lost });
        }
        Ok(claimed)
    }

    fn renew(&self, space: &str, worker: &str, lease: Duration) -> Result<u64> {
        let until_ms = lease_end(self.clock.now_ms(), lease);
        let mut state = self.state();
        let mut held = 0;
        for lease in find_mut(&mut state.spaces, space)?.leases.values_mut() {
            if lease.worker == worker {
                lease.until_ms = until_ms;
                held += 1;
            }
        }
        Ok(held)
    }

    fn release(&self, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64> {
        let mut state = self.state();
        let leases = &mut find_mut(&mut state.spaces, space)?.leases;
        let before = leases.len();
        leases.retain(|key, lease| lease.worker != worker || keys.is_some_and(|keys| !keys.contains(key)));
        Ok((before - leases.len()) as u64)
    }

    fn at_work(&self, space: &str) -> Result<Vec<AtWork>> {
        let now_ms = self.clock.now_ms();
        let state = self.state();
        let mut workers: BTreeMap<&str, AtWork> = BTreeMap::new();
        for lease in state.space(space)?.leases.values().filter(|lease| lease.until_ms > now_ms) {
            let left_ms = lease.until_ms - now_ms;
            let worker = lease.worker.clone();
            let at_work = workers.entry(&lease.worker).or_insert(AtWork { worker, items: 0, left_ms });
            at_work.items += 1;
            at_work.left_ms = at_work.left_ms.max(left_ms);
        }
        Ok(workers.into_values().collect())
    }

    fn record_failures(&self, space: &str, failures: &[(ItemKey, Revision, String)]) -> Result<()> {
        let mut state = self.state();
        let State { items, spaces, .. } = &mut *state;
        let space = find_mut(spaces, space)?;
        for (key, revision, reason) in failures {
            let is_of_now = items.get(key).is_some_and(|item| item.source_revision == *revision);
            let provenance = space.vectors.get(key).map(|held| held.vector.provenance);
            if is_of_now && matches!(provenance, None | Some(Provenance::Adapted)) {
                space.failures.insert(*key, (*revision, reason.clone()));
                space.leases.remove(key);
            }
        }
        Ok(())
    }

    fn failures(&self, space: &str, after: Option<ItemKey>, limit: usize) -> Result<Vec<Failure>> {
        let state = self.state();
        let space = state.space(space)?;
        Ok(space
            .failures
            .iter()
            .filter(|(key, _)| after.is_none_or(|after| **key > after))
            .filter_map(|(key, (revision, reason))| {
                let id = state.items.get(key)?.id.clone();
                Some(Failure { key: *key, id, revision: *revision, reason: reason.clone() })
            })
            .take(limit)
            .collect())
    }

    fn clear_failures(&self, space: &str) -> Result<u64> {
        let mut state = self.state();
        let space = find_mut(&mut state.spaces, space)?;
        Ok(std::mem::take(&mut space.failures).len() as u64)
    }

    fn errors(&self, space: &str, limit: usize) -> Result<Vec<(f32, f32)>> {
        let state = self.state();
        let mut errors: Vec<(u64, ItemKey, (f32, f32))> = state
            .space(space)?
            .vectors
            .iter()
            .filter(|(_, held)| held.vector.provenance == Provenance::Native)
            .filter_map(|(key, held)| {
                Some((held.change, *key, (held.vector.sigma2?, held.vector.squared_error?)))
            })
            .collect();
        errors.sort_by_key(|&(change, key, _)| std::cmp::Reverse((change, key)));
        Ok(errors.into_iter().take(limit).map(|(_, _, pair)| pair).collect())
    }

    fn set_document(&self, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
        self.state().set_document(name, expected, text)
    }
}

impl Index for MemoryStore {
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>> {
        let state = self.state();
        let space = state.space(space)?;
        check::queries(&space.record.space, queries)?;
        let passing: Vec<(&Item, &VectorRecord)> = space
            .vectors
            .iter()
            .filter_map(|(key, held)| Some((state.items.get(key)?, &held.vector)))
            .filter(|(item, vector)| filter.passes(item, vector.provenance))
            .filter(|(_, vector)| space.record.space.distance.can_place(&vector.vector))
            .collect();
        Ok((0..queries.rows())
            .into_par_iter()
            .map(|row| {
                let mut hits: Vec<Found> = passing
                    .iter()
                    .map(|(item, vector)| Found {
                        key: item.key,
                        id: item.id.clone(),
                        distance: exact::distance(
                            space.record.space.distance,
                            queries.row(row),
                            &vector.vector,
                        ),
                        provenance: vector.provenance,
                        revision: item.revision,
                    })
                    .collect();
                hits.sort_by(|a, b| exact::by_distance(&(a.distance, a.key), &(b.distance, b.key)));
                hits.truncate(k);
                hits
            })
            .collect())
    }

    fn recall(&self, space: &str, _samples: usize, _k: usize) -> Result<f64> {
        self.state().space(space)?;
        Ok(1.0)
    }

    fn is_ready(&self, space: &str) -> Result<bool> {
        self.state().space(space).map(|_| true)
    }

    fn prepare(&self, space: &str, _: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        self.state().space(space).map(drop)
    }

    fn rebuild(&self, space: &str) -> Result<()> {
        self.state().space(space).map(|_| ())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

impl State {
    fn space(&self, name: &str) -> Result<&SpaceState> {
        Ok(find(&self.spaces, name)?.1)
    }

    /// Draws the first keys of a shuffle, and counts the items that are in it.
    fn first(&self, space: &SpaceState, among: Among, seed: u64, size: usize) -> (Vec<ItemKey>, u64) {
        let mut first = FirstKeys::new(seed, size);
        for item in self.items.values() {
            let provenance = space.provenance(item.key);
            let is_among = match among {
                Among::All => true,
                Among::Adapted => provenance == Some(Provenance::Adapted),
                Among::Embeddable => provenance == Some(Provenance::Native) || space.queues(item),
            };
            if is_among {
                first.take(item.key);
            }
        }
        first.keys()
    }

    /// Items of the backfill's queue, leased or not, in its order.
    fn queue(&self, space: &SpaceState) -> Vec<&Item> {
        let mut items: Vec<&Item> = self.items.values().filter(|item| space.queues(item)).collect();
        // Items that lack a vector come first, then adapted ones by priority; those without a priority come
        // last.
        let place = |item: &Item| {
            space.vectors.get(&item.key).map(|held| {
                held.vector.priority.map_or((1, None, 0.0), |priority| {
                    (0, Some(std::cmp::Reverse(priority.band)), -priority.score)
                })
            })
        };
        items.sort_by(|a, b| {
            place(a).partial_cmp(&place(b)).unwrap_or(std::cmp::Ordering::Equal).then(a.key.cmp(&b.key))
        });
        items
    }

    fn set_document(&mut self, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
        let current_version = self.documents.get(name).map(|(version, _)| *version);
        let version = check::next_version(name, expected, current_version)?;
        self.documents.insert(name.to_owned(), (version, text.to_owned()));
        Ok(version)
    }

    /// Writes one item whose vectors have been checked.
    fn put(&mut self, write: &ItemWrite) -> Revision {
        let key = self.keys.get(&write.id).copied().unwrap_or_else(|| {
            self.last_key += 1;
            // The keys have more than 64 bits, as UUIDs do.
            let counted = || ItemKey::new((1 << 64) + u128::from(self.last_key));
            self.key_of.map_or_else(counted, |key_of| key_of(&write.id, self.last_key))
        });
        self.counter += 1;
        let revision = self.counter;
        let of_same_source =
            self.items.get(&key).filter(|item| item.source.is_some() && item.source == write.source);
        let source_revision = of_same_source.map_or(revision, |item| item.source_revision);
        if source_revision == revision {
            self.forget(key);
        } else {
            for space in &mut self.spaces {
                space.keep_what_is_of_the_source(key, revision);
            }
        }
        if !self.items.contains_key(&key) {
            self.give_paid(key, write, revision);
        }
        self.keys.insert(write.id.clone(), key);
        self.items.insert(
            key,
            Item {
                key,
                id: write.id.clone(),
                source: write.source.clone(),
                label: write.label.clone(),
                payload: write.payload.clone(),
                revision,
                source_revision,
            },
        );
        for new in &write.vectors {
            if let Ok(space) = find_mut(&mut self.spaces, &new.space) {
                let vector = VectorRecord {
                    provenance: new.provenance,
                    revision,
                    sigma2: new.sigma2,
                    priority: new.priority,
                    squared_error: None,
                    vector: new.vector.clone(),
                };
                if new.provenance == Provenance::Adapted && space.provenance(key) == Some(Provenance::Native)
                {
                    continue;
                }
                space.vectors.insert(key, StoredVector { vector, change: revision });
                if new.provenance != Provenance::Adapted {
                    space.failures.remove(&key);
                    space.leases.remove(&key);
                }
            }
        }
        revision
    }

    /// Keeps the native vectors of an item that is about to go, by its id and source.
    fn keep_paid(&mut self, item: Item) {
        let (false, Some(source)) = (self.forgets, item.source) else { return };
        for space in &mut self.spaces {
            if let Some(StoredVector { vector, .. }) = space.vectors.get(&item.key)
                && vector.provenance == Provenance::Native
            {
                space.paid.insert((item.id.clone(), source.clone()), vector.vector.clone());
            }
        }
    }

    /// Gives an item that comes the native vectors that an item with its id and source had before.
    fn give_paid(&mut self, key: ItemKey, write: &ItemWrite, revision: Revision) {
        let Some(source) = &write.source else { return };
        for space in &mut self.spaces {
            let Some(vector) = space.paid.get(&(write.id.clone(), source.clone())) else { continue };
            let vector = VectorRecord {
                provenance: Provenance::Native,
                revision,
                sigma2: None,
                priority: None,
                squared_error: None,
                vector: vector.clone(),
            };
            space.vectors.insert(key, StoredVector { vector, change: revision });
        }
    }

    /// Removes everything that was made from an item's content before.
    fn forget(&mut self, key: ItemKey) {
        for space in &mut self.spaces {
            space.failures.remove(&key);
            space.leases.remove(&key);
            space.vectors.remove(&key);
        }
    }
}

impl SpaceState {
    fn provenance(&self, key: ItemKey) -> Option<Provenance> {
        self.vectors.get(&key).map(|held| held.vector.provenance)
    }

    /// Removes an item's vector unless it was made from the source alone; a vector that stays gets the new
    /// revision.
    fn keep_what_is_of_the_source(&mut self, key: ItemKey, revision: Revision) {
        if let Some(held) = self.vectors.get_mut(&key) {
            held.vector.revision = revision;
            if held.vector.provenance != Provenance::Native {
                self.vectors.remove(&key);
            }
        }
    }

    /// Whether the backfill can take an item: it has a source, no failure, and lacks a vector or is adapted.
    fn queues(&self, item: &Item) -> bool {
        item.source.is_some()
            && !self.failures.contains_key(&item.key)
            && matches!(self.provenance(item.key), None | Some(Provenance::Adapted))
    }

    fn record_of(&self, item: &Item, vectors_of: Option<&Self>) -> Record {
        let without = |held: &StoredVector| VectorRecord { vector: Vec::new(), ..held.vector.clone() };
        Record {
            item: item.clone(),
            state: self.vectors.get(&item.key).map(without),
            vector: vectors_of.and_then(|space| Some(space.vectors.get(&item.key)?.vector.clone())),
        }
    }

    /// Makes one write that has been checked, if its conditions hold.
    fn write(&mut self, items: &BTreeMap<ItemKey, Item>, write: &VectorWrite, change: u64) -> WriteOutcome {
        let Some(item) = items.get(&write.key) else { return WriteOutcome::Deleted };
        let of_now =
            if write.provenance == Provenance::Native { item.source_revision } else { item.revision };
        if of_now != write.revision {
            return WriteOutcome::Changed;
        }
        let stored = self.vectors.get(&write.key).map(|held| &held.vector);
        if stored.is_some_and(|stored| stored.provenance != Provenance::Adapted) {
            return WriteOutcome::AlreadyThere;
        }
        let vector = VectorRecord {
            provenance: write.provenance,
            revision: item.revision,
            sigma2: write.sigma2.or_else(|| stored.and_then(|stored| stored.sigma2)),
            priority: write.priority,
            squared_error: write.squared_error,
            vector: write.vector.clone(),
        };
        self.vectors.insert(write.key, StoredVector { vector, change });
        if write.provenance == Provenance::Native {
            self.failures.remove(&write.key);
            self.leases.remove(&write.key);
        }
        WriteOutcome::Written
    }
}

fn find<'a>(spaces: &'a [SpaceState], name: &str) -> Result<(usize, &'a SpaceState)> {
    spaces.iter().enumerate().find(|(_, space)| space.record.space.name == name).ok_or_else(|| {
        no_such_space(name, "memory", spaces.iter().map(|space| space.record.space.name.as_str()))
    })
}

fn find_mut<'a>(spaces: &'a mut [SpaceState], name: &str) -> Result<&'a mut SpaceState> {
    let place = find(spaces, name)?.0;
    Ok(&mut spaces[place])
}

#[cfg(test)]
mod tests {
    use rehang_core::Distance;
    use rehang_store::{ManualLeaseClock, NewVector};

    use super::*;
    use crate::conformance::{Bench, suite};

    /// Test bench of galleries in memory.
    struct Memory {
        make: fn() -> MemoryStore,
        galleries: Mutex<BTreeMap<String, MemoryStore>>,
        clock: ManualLeaseClock,
    }

    impl Bench for Memory {
        type Store = MemoryStore;

        fn open(&self, gallery: &str) -> MemoryStore {
            let mut galleries = self.galleries.lock().unwrap();
            let new = || (self.make)().with_clock(Arc::new(self.clock.clone()));
            galleries.entry(gallery.to_owned()).or_insert_with(new).clone()
        }

        fn pass(&self, time: Duration) {
            self.clock.pass(time);
        }
    }

    /// Makes a gallery whose keys are like UUIDs: 128 bits, in an order that has nothing to do with time.
    fn with_scattered_keys() -> MemoryStore {
        // An odd factor makes another key of each number.
        MemoryStore::new().with_keys(|_, number| {
            ItemKey::new(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
        })
    }

    #[test]
    fn it_keeps_the_contracts_with_any_keys() {
        for make in [MemoryStore::new, with_scattered_keys] {
            suite(&Memory { make, galleries: Mutex::default(), clock: ManualLeaseClock::default() });
        }
    }

    #[test]
    fn the_smallest_gallery_is_searched() {
        let store = MemoryStore::new();
        store.create_space(&Space::new("m", 1, Distance::L2, false), Provenance::Old).unwrap();
        let vector = NewVector::from_model("m", vec![2.0], Provenance::Old);
        let write = ItemWrite::new("a", None, vec![vector]);
        let revision = store.put(&[write]).unwrap()[0];
        let hits = store.search("m", &Matrix::new(1, vec![5.0]).unwrap(), 3, &Filter::default()).unwrap();
        let key = ItemKey::new((1 << 64) + 1);
        let expected = Found { key, id: "a".into(), distance: 9.0, provenance: Provenance::Old, revision };
        assert_eq!(hits, [[expected]]);
        assert_eq!(store.delete(&["a", "a"]).unwrap(), 1);
        assert_eq!(store.counts("m").unwrap(), Counts::default());
    }
}
