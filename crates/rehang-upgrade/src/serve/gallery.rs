//! Searches and writes of an application, right at every stage of an upgrade.

use std::sync::{Arc, Mutex, PoisonError};

use rehang_core::check::expect_count;
use rehang_core::{Bridge, Error, Matrix, Provenance, Result, Space};
use rehang_store::check::expect_listed;
use rehang_store::{Filter, Found, ItemWrite, NewVector, Revision, Store, expect_space, find_space};
use serde::Serialize;

use crate::kept;
use crate::live::fill::{Filler, NEW_OR_CHANGED};
use crate::observe::{Observation, Observer, Unobserved};
use crate::record::{OrderSettings, Phase, Recorded, UpgradeRecord};
use crate::serve::fuse;
use crate::serve::query::{Query, QueryEncoders, embed};
use crate::serve::stage::{ServingState, Taken};
use crate::setup::upgrade_of;

/// Queries by the names of the spaces that their models embed into, each `[n, d]`: the same queries, embedded
/// by every model that the application has.
pub type QueriesBySpace<'a> = [(&'a str, &'a Matrix)];

/// Answer to a search of several queries.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SearchAnswer {
    /// The space (or both, for a fused search) that was searched.
    pub spaces: Vec<String>,
    /// Whether the queries went to the old space over a [bridge](rehang_core::Bridge).
    pub bridged: bool,
    /// The nearest items of each query, nearest first.
    pub found: Vec<Vec<Found>>,
}

/// Gallery under an application's searches and writes. It may be shared between threads and kept as long
/// as a process lives.
///
/// ```
/// fn may_be_kept<T: Send + Sync + 'static>() {}
/// may_be_kept::<rehang_upgrade::Gallery>();
/// may_be_kept::<rehang_upgrade::Filler>();
/// ```
pub struct Gallery {
    store: Arc<dyn Store>,
    /// The bridge of the last search that used one, with its fingerprint.
    bridge: Mutex<Option<(String, Arc<Bridge>)>>,
    /// The adapter made ready, for the upgrade that was live when an item was written last.
    filler: Mutex<Option<(FilledAs, Arc<Filler>)>>,
    observer: Arc<dyn Observer>,
}

/// Key of a filler that is kept: the names of both spaces, the order and the adapter's fingerprint. An
/// upgrade that is planned again or refitted, or another one, differs in it.
type FilledAs = (String, String, OrderSettings, String);

/// Number of times that a search is made again where a change of the upgrade overtakes it.
const SEARCHES_MAX: usize = 3;
/// Number of times that a write is made ready where changes of the upgrade overtake it, before it is
/// written as it came.
const WRITES_MAX: usize = 3;

impl Gallery {
    /// Makes the gallery of a store. Searches and writes follow its upgrade: a switch and a rollback, a
    /// bridge that is made or undone, an adapter that a refit takes up. The adapter is read and prepared by
    /// the first write that needs it, and again when another one is in use: keep the gallery.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, bridge: Mutex::default(), filler: Mutex::default(), observer: Arc::new(Unobserved) }
    }

    /// Reads the bridge, where the upgrade uses one and the old space serves.
    pub(crate) fn bridge_of(&self, state: &ServingState) -> Result<Option<Arc<Bridge>>> {
        let Some(in_use) = state.bridged() else { return Ok(None) };
        let mut last_bridge = self.bridge.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((fingerprint, bridge)) = last_bridge.as_ref()
            && *fingerprint == in_use.fingerprint
        {
            return Ok(Some(Arc::clone(bridge)));
        }
        let Some(bridge) = kept::bridge(&*self.store, &in_use.fingerprint)? else { return Ok(None) };
        *last_bridge = Some((in_use.fingerprint.clone(), Arc::clone(&bridge)));
        Ok(Some(bridge))
    }

    /// Lists the spaces whose models a search needs queries of.
    fn asked(&self, state: &ServingState) -> Result<Vec<String>> {
        let bridge = self.bridge_of(state)?;
        Ok(state.asked(bridge.as_deref())?.into_iter().map(str::to_owned).collect())
    }

    /// Tells an observer of every search and every write from here on.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Finds the `k` nearest items to each query in the space, or the two, that serve now; ties go by key.
    ///
    /// Of the queries, `[("clip", &queries), …]`, those are used whose space the gallery serves now; a name
    /// that it does not serve is passed over. So the same call stays right before, during and after any
    /// number of upgrades, as long as the queries of the model that serves are among them. A fused search
    /// needs those of both models.
    ///
    /// The distance of an adapted vector is raised by the [handicap](UpgradeRecord::handicap) of the upgrade
    /// that made it, in the ranking and in what is given back. While an upgrade serves
    /// [fused](crate::Serving::Fused) searches, an item that is not native is judged by both models
    /// ([`rehang_core::Fusion`]), and its distance is the fused one.
    ///
    /// While the upgrade [uses](crate::BridgeInUse) a bridge, queries by both models go to the old space over
    /// it; those of the old model alone go there as they are, and so do all where the bridge was lost.
    ///
    /// A fused search that a finish overtakes is made once more, in what serves then, so it neither fails
    /// nor misses an item.
    ///
    /// # Errors
    ///
    /// Missing input where the queries of the model that serves now are not given, or for a fused search
    /// those of either model; then also a count mismatch where there are not as many of both. Width mismatch;
    /// not found for a gallery without spaces; what is wrong with the file of a bridge that is in use.
    pub fn search(&self, queries: &QueriesBySpace<'_>, k: usize, filter: &Filter) -> Result<SearchAnswer> {
        let state = ServingState::read(&*self.store);
        self.observed(state.and_then(|state| self.search_while_overtaken(state, queries, k, filter)))
    }

    /// Tells the observer what came of a search.
    fn observed(&self, answer: Result<SearchAnswer>) -> Result<SearchAnswer> {
        self.observer.observe(&match &answer {
            Ok(answer) => Observation::Searched {
                spaces: &answer.spaces,
                queries: answer.found.len(),
                found: answer.found.iter().map(Vec::len).sum(),
            },
            Err(_) => Observation::SearchFailed,
        });
        answer
    }

    /// Finds the `k` nearest items to each query as [`Gallery::search`] does, for queries as people ask them:
    /// each is embedded by the models that the search needs. With `before`, it also gives what the old model
    /// of the upgrade would have answered, in the old space alone. A filter of provenances applies to the
    /// space that serves, and not to that answer.
    ///
    /// # Errors
    ///
    /// Those of [`Gallery::search`]; what `encoders` says where it lacks a model that is needed; an invalid
    /// option for a text without a word, for a query that a model refuses, and for an image that a model of
    /// texts is given, or a text that one of images is; I/O errors where an image is not there; unavailable
    /// where a query could not be embedded by now. With `before`, not found where there is no upgrade, and a
    /// wrong phase where its old space is gone.
    pub fn search_source(
        &self,
        queries: &[Query],
        encoders: &QueryEncoders<'_>,
        k: usize,
        filter: &Filter,
        before: bool,
    ) -> Result<(SearchAnswer, Option<SearchAnswer>)> {
        self.search_source_from(ServingState::read(&*self.store)?, queries, encoders, k, filter, before)
    }

    /// Searches as [`Gallery::search_source`], given what served a moment ago.
    pub(crate) fn search_source_from(
        &self,
        mut state: ServingState,
        queries: &[Query],
        encoders: &QueryEncoders<'_>,
        k: usize,
        filter: &Filter,
        before: bool,
    ) -> Result<(SearchAnswer, Option<SearchAnswer>)> {
        let mut embedded: Vec<(String, Matrix)> = Vec::new();
        let before = if before {
            let record = self.replaced(&state)?;
            let old = record.old.name.clone();
            let rows = embed(queries, &expect_space(&*self.store, &old)?.space, encoders, &Unobserved)?;
            let filter = Filter { provenances: Vec::new(), ..filter.clone() };
            let hits = self.store.search_handicapped(&old, &rows, k, &filter, record.old_handicap)?;
            embedded.push((old.clone(), rows));
            Some(SearchAnswer { spaces: vec![old], bridged: false, found: hits })
        } else {
            None
        };
        loop {
            let mut names = self.asked(&state)?;
            names.retain(|name| embedded.iter().all(|(space, _)| space != name));
            // Spaces are read once for all models.
            let spaces = if names.is_empty() { Vec::new() } else { self.store.spaces()? };
            for name in names {
                let space = &expect_listed(&*self.store, &spaces, &name)?.space;
                let rows = if state.spared() == Some(&*name) {
                    let Ok(encoder) = encoders(space) else { continue };
                    embed(queries, space, &|_: &Space| Ok(Arc::clone(&encoder)), &Unobserved)?
                } else {
                    embed(queries, space, encoders, &Unobserved)?
                };
                embedded.push((name, rows));
            }
            let is_enough = |state: &ServingState| -> Result<bool> {
                let is_at_hand = |name: &String| {
                    state.spared() == Some(&**name) || embedded.iter().any(|(space, _)| space == name)
                };
                Ok(self.asked(state)?.iter().all(is_at_hand))
            };
            let state_now = ServingState::read(&*self.store);
            // After a switch while the queries were embedded, another model's are needed.
            if let Ok(state_now) = &state_now
                && !is_enough(state_now)?
            {
                state = state_now.clone();
                continue;
            }
            let embedded_queries: Vec<_> =
                embedded.iter().map(|(name, rows)| (name.as_str(), rows)).collect();
            let answer = state_now
                .and_then(|state_now| self.search_while_overtaken(state_now, &embedded_queries, k, filter));
            match self.observed(answer) {
                Ok(answer) => return Ok((answer, before)),
                Err(error) => {
                    // After a switch during the search, too, another model's are needed.
                    state = ServingState::read(&*self.store)?;
                    if is_enough(&state)? {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Finds the upgrade, as long as its old space is there.
    fn replaced<'a>(&self, state: &'a ServingState) -> Result<&'a UpgradeRecord> {
        let record = state.record.as_ref().ok_or_else(|| Recorded::missing_upgrade(&*self.store))?;
        if record.phase == Phase::Finished {
            let phase = format!("finished, so the old model's answers are gone with {:?}", record.old.name);
            return Err(Error::wrong_phase(upgrade_of(&*self.store), phase));
        }
        Ok(record)
    }

    fn search_while_overtaken(
        &self,
        mut before: ServingState,
        queries: &QueriesBySpace<'_>,
        k: usize,
        filter: &Filter,
    ) -> Result<SearchAnswer> {
        for _ in 0..SEARCHES_MAX {
            let answer = self.search_as(&before, queries, k, filter);
            if answer.is_ok() && before.fused().is_none() {
                // The search looked at one space only, which was not dropped while it served.
                return answer;
            }
            // A finish records itself before it drops the old space. So where the state is the same after a
            // fused search, the space was whole all the while; where it is another one, what was read there
            // may be half of it, or an error.
            let state_now = match ServingState::read(&*self.store) {
                Ok(state_now) => state_now,
                Err(error) => return answer.and(Err(error)),
            };
            if state_now.is_searched_as(&before) {
                return answer;
            }
            before = state_now;
        }
        self.search_as(&before, queries, k, filter)
    }

    /// Searches in what served at one moment.
    fn search_as(
        &self,
        state: &ServingState,
        queries: &QueriesBySpace<'_>,
        k: usize,
        filter: &Filter,
    ) -> Result<SearchAnswer> {
        let serving = &state.serving;
        let handicap = state.record.as_ref().map_or(0.0, |record| record.handicap_of(serving));
        let bridge = self.bridge_of(state)?;
        let queries_of =
            |space: &str| Ok(queries.iter().find(|(name, _)| *name == space).map(|(_, queries)| *queries));
        let mut spaces = vec![serving.clone()];
        let (bridged, hits) = match state.take(bridge.as_deref(), queries_of)? {
            Taken::Serving(queries) => {
                (false, self.store.search_handicapped(serving, queries, k, filter, handicap)?)
            }
            Taken::Bridged { bridge, old, new } => {
                let brought = bridge.queries(old, new)?;
                (true, self.store.search_handicapped(serving, &brought, k, filter, handicap)?)
            }
            Taken::Fused { record, fusion, old, new } => {
                expect_count("queries of the old model", old.rows(), "queries of the new one", new.rows())?;
                spaces.insert(0, record.old.name.clone());
                (false, fuse::search(&*self.store, record, fusion, (old, new), k, filter)?)
            }
        };
        Ok(SearchAnswer { spaces, bridged, found: hits })
    }

    /// Writes items. During an upgrade, while the old space is there and the new one serves or will, an item
    /// that comes with an old vector alone also gets an adapted one, in the same transaction. So no search
    /// misses it or sees its former content. Its source is re-embedded first.
    ///
    /// # Errors
    ///
    /// Those of [`Ledger::put`](rehang_store::Ledger::put); nothing is written then.
    pub fn put(&self, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
        let revisions = self.put_while_overtaken(writes)?;
        self.observer.observe(&Observation::Written { items: revisions.len() });
        Ok(revisions)
    }

    fn put_while_overtaken(&self, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
        for _ in 0..WRITES_MAX {
            match self.store.put(&self.adapted(writes.to_vec())?) {
                // The upgrade was planned anew, or rolled back, since its record was read.
                Err(error) if error.is_superseded() => {}
                outcome => return outcome,
            }
        }
        // The process that keeps planning the upgrade anew catches up with these items.
        self.store.put(writes)
    }

    /// Adds to each write an adapted vector, where it needs one.
    fn adapted(&self, mut writes: Vec<ItemWrite>) -> Result<Vec<ItemWrite>> {
        let Some(Recorded { record, .. }) = Recorded::read(&*self.store)? else { return Ok(writes) };
        let Some(filler) = self.filler_of(&record)? else { return Ok(writes) };
        let (mut places, mut old) = (Vec::new(), Vec::new());
        for (place, write) in writes.iter().enumerate() {
            if let Some(vector) = vector_to_adapt(write, &record, &filler) {
                places.push(place);
                old.extend_from_slice(vector);
            }
        }
        let (vectors, variance) = filler.adapt_rows(&old)?;
        for (row, place) in places.into_iter().enumerate() {
            if !filler.can_place(vectors.row(row)) {
                continue;
            }
            writes[place].vectors.push(NewVector {
                space: record.new.name.clone(),
                vector: vectors.row(row).to_vec(),
                provenance: Provenance::Adapted,
                sigma2: Some(variance[row]),
                priority: Some(NEW_OR_CHANGED),
                epoch: record.epoch,
            });
        }
        Ok(writes)
    }

    /// Gives the adapter made ready for what is written into an upgrade; `None` where nothing
    /// has to be adapted.
    fn filler_of(&self, record: &UpgradeRecord) -> Result<Option<Arc<Filler>>> {
        let adapts = record.epoch.is_some()
            && record.adapts_writes(&*self.store)?
            && find_space(&*self.store, &record.new.name)?.is_some();
        if adapts { self.filler(record) } else { Ok(None) }
    }

    /// Makes the adapter of an upgrade ready for it, or takes the one of the last write, as long as the
    /// upgrade is the same. `None` where there is none.
    fn filler(&self, record: &UpgradeRecord) -> Result<Option<Arc<Filler>>> {
        let wanted = (record.old.name.clone(), record.new.name.clone(), record.order, record.adapter.clone());
        let mut last_filler = self.filler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made_for, filler)) = last_filler.as_ref()
            && *made_for == wanted
        {
            return Ok(Some(Arc::clone(filler)));
        }
        let Some(adapter) = kept::adapter(&*self.store, &record.adapter)? else { return Ok(None) };
        let filler = Arc::new(Filler::new(&adapter, &wanted.0, &wanted.1, wanted.2)?);
        *last_filler = Some((wanted, Arc::clone(&filler)));
        Ok(Some(filler))
    }

    /// Deletes items; gives how many were there.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn delete(&self, ids: &[&str]) -> Result<usize> {
        let items = self.store.delete(ids)?;
        self.observer.observe(&Observation::Deleted { items });
        Ok(items)
    }
}

/// Returns the old vector of a write that brings none of the new space, where an adapted one can be made of
/// it. The store says what is wrong with one of another width. One without a direction cannot be adapted: its
/// item lacks a vector in the new space, and is the next to be embedded.
fn vector_to_adapt<'a>(write: &'a ItemWrite, record: &UpgradeRecord, filler: &Filler) -> Option<&'a [f32]> {
    if write.vectors.iter().any(|vector| vector.space == record.new.name) {
        return None;
    }
    let old: &[f32] = &write.vectors.iter().find(|vector| vector.space == record.old.name)?.vector;
    let lacks_direction = rehang_core::check::is_finite(old) && !filler.can_adapt(old);
    (old.len() == record.old.dimension && !lacks_direction).then_some(old)
}

#[cfg(test)]
#[path = "../../tests/it/common/padding.rs"]
pub(crate) mod padding;

#[cfg(test)]
mod tests {
    use rehang_core::order::Policy;
    use rehang_core::{Adapter, Distance, Space};

    use super::*;
    use crate::serve::gallery::padding::padding;

    fn adapter() -> Adapter {
        let space = |name, dimension| Space::new(name, dimension, Distance::L2, false);
        padding(space("old-model", 3), space("new-model", 4), vec![1.0, 0.5, 0.0, 0.0], 0.0)
    }

    #[test]
    fn the_adapter_is_made_ready_once_for_an_upgrade_and_again_when_it_is_planned_anew() {
        let store = Arc::new(rehang_store_tests::MemoryStore::new());
        let adapter = Arc::new(adapter());
        let fingerprint = rehang_files::adapter_file::fingerprint(&adapter).unwrap();
        kept::keep_adapter(&*store, &fingerprint, &adapter).unwrap();
        let gallery = Gallery::new(store);
        let order = OrderSettings { policy: Policy::Sigma, seed: 1 };
        let record = |new: &Space, order: OrderSettings| {
            UpgradeRecord::new(
                adapter.old.clone(),
                new.clone(),
                rehang_files::adapter_file::fingerprint(&adapter).unwrap(),
                order,
            )
        };
        let new = adapter.new.clone();
        let filler = |record: &UpgradeRecord| gallery.filler(record).unwrap().unwrap();
        let first = filler(&record(&new, order));
        let again = filler(&record(&new, order));
        assert!(Arc::ptr_eq(&first, &again), "kept between writes");
        let another_order = OrderSettings { policy: Policy::Random, seed: 1 };
        let another_space = Space { name: "third-model".into(), ..new.clone() };
        let mut last_filler = again;
        for changed in [record(&another_space, order), record(&new, another_order)] {
            let next_filler = filler(&changed);
            assert!(!Arc::ptr_eq(&last_filler, &next_filler), "{changed:?}");
            last_filler = next_filler;
        }
        let of_another = UpgradeRecord { adapter: "another".into(), ..record(&new, order) };
        assert!(gallery.filler(&of_another).unwrap().is_none(), "it is not at hand");
    }
}
