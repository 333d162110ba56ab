//! What an application searches and writes through: right at every stage of an upgrade.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rehang::adapter::Adapter;
use rehang::{Error, ErrorKind, Matrix, Provenance, Result};
use rehang_store::{Filter, Found, ItemWrite, NewVector, Revision, Store, find_space};
use serde::Serialize;

use crate::fill::{Filler, NEW_OR_CHANGED};
use crate::merge::Merge;
use crate::record::{OrderSettings, Phase, Recorded, Serving, UpgradeRecord};

/// Queries, as both models see them. Before the switch the old ones are used, after it the new ones; a merged search
/// needs both.
#[derive(Debug, Clone, Copy, Default)]
pub struct Queries<'a> {
    /// The queries embedded by the old model, `[n, d_old]`.
    pub old: Option<&'a Matrix>,
    /// The same queries embedded by the new model, `[n, d_new]`.
    pub new: Option<&'a Matrix>,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The space (or both, for a merged search) that was searched.
    pub spaces: Vec<String>,
    /// The nearest items of each query, nearest first.
    pub found: Vec<Vec<Found>>,
}

/// A gallery under an application's searches and writes.
pub struct Gallery<'a> {
    store: &'a dyn Store,
    adapter: Option<&'a Adapter>,
    merge: Option<Merge>,
    /// The adapter made ready, for the upgrade that was live when an item was written last.
    filler: Mutex<Option<(FilledAs, Arc<Filler<'a>>)>>,
}

/// What a filler depends on: an upgrade that is planned again, or another one, differs in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FilledAs {
    old: String,
    new: String,
    adapter: String,
    order: OrderSettings,
}

impl<'a> Gallery<'a> {
    /// A gallery. With the upgrade's adapter, items written before the switch are found after it without any lag. The adapter
    /// is made ready once, at the first write that needs it, and again when the upgrade is planned anew; so keep the gallery.
    pub fn new(store: &'a dyn Store, adapter: Option<&'a Adapter>) -> Self {
        Self { store, adapter, merge: None, filler: Mutex::default() }
    }

    /// Learns the scale of merged searches anew from what is native by now; see [`Merge::learn`]. Until it was called for the
    /// first time, a merged search is the old search. Worth repeating as the backfill goes on.
    ///
    /// # Errors
    ///
    /// Not found where there is no upgrade; those of the store.
    pub fn calibrate(&mut self) -> Result<()> {
        let record = Recorded::expect(self.store)?.record;
        if record.phase == Phase::Finished {
            // The old space is gone; nothing is left to merge with.
            self.merge = None;
            return Ok(());
        }
        self.merge = Some(Merge::learn(self.store, &record.old, &record.new)?);
        Ok(())
    }

    /// The `k` nearest items to each query in what serves now, ties by key.
    ///
    /// The distance of an adapted vector is raised by the [handicap](UpgradeRecord::handicap) of the upgrade that made it, in
    /// the ranking and in what is given back. An upgrade that serves merged searches is searched by [`Merge::search`], with the
    /// scale of the last [`Gallery::calibrate`]; before the first one, as the old search.
    ///
    /// # Errors
    ///
    /// Missing input where the queries of the model that serves now are not given, or for a merged search those of either
    /// model; then also a count mismatch where there are not as many of both. Width mismatch; not found for a gallery without
    /// spaces.
    pub fn search(&self, queries: &Queries<'_>, k: usize, filter: &Filter) -> Result<Answer> {
        let serving =
            self.store.serving()?.ok_or_else(|| Error::not_found("space", "serving", self.store.name()))?;
        let recorded = Recorded::read(self.store)?;
        let record = recorded.as_ref().map(|recorded| &recorded.record);
        let handicap = record.map_or(0.0, |record| record.handicap_of(&serving));
        let upgraded = record.filter(|record| record.new.model == serving);
        let Some(record) = upgraded else {
            // No upgrade, before the switch, or after a rollback: whichever queries there are belong to what serves.
            let queries = queries.old.or(if record.is_none() { queries.new } else { None });
            let queries = queries.ok_or_else(|| needs(&serving))?;
            let found = search_space(self.store, &serving, queries, k, filter, handicap)?;
            return Ok(Answer { spaces: vec![serving], found });
        };
        let new = queries.new.ok_or_else(|| needs(&serving))?;
        if record.serving == Serving::Merged && record.phase != Phase::Finished {
            let old = queries.old.ok_or_else(|| needs(&record.old.model))?;
            if old.rows() != new.rows() {
                return Err(ErrorKind::CountMismatch {
                    left: "queries of the old model".into(),
                    left_count: old.rows(),
                    right: "queries of the new one".into(),
                    right_count: new.rows(),
                }
                .into());
            }
            // Adapted vectors that rank below doing nothing are why somebody asked for merged searches: without a scale they
            // are the old search.
            let unscaled = Merge::default();
            let merge = self.merge.as_ref().unwrap_or(&unscaled);
            let found = merge.search(self.store, record, old, new, k, filter)?;
            return Ok(Answer { spaces: vec![record.old.model.clone(), serving], found });
        }
        let found = search_space(self.store, &serving, new, k, filter, handicap)?;
        Ok(Answer { spaces: vec![serving], found })
    }

    /// Writes items. While an upgrade is live, an item that comes with an old vector only gets an adapted one in the same
    /// transaction, so that no search misses it and no search sees its former content. Its source is re-embedded first: also
    /// where the upgrade was planned anew with an adapter that this gallery does not have.
    ///
    /// # Errors
    ///
    /// Those of [`Store::put`]; nothing is written then.
    pub fn put(&self, mut writes: Vec<ItemWrite>) -> Result<Vec<Revision>> {
        let recorded = Recorded::read(self.store)?;
        if let (Some(adapter), Some(record)) =
            (self.adapter, recorded.as_ref().map(|recorded| &recorded.record))
            && record.is_live()
            && find_space(self.store, &record.new.model)?.is_some()
        {
            let filler = self.filler(adapter, record)?;
            for write in &mut writes {
                let has = |space: &str| write.vectors.iter().find(|vector| vector.space == space);
                let (Some(old), None) = (has(&record.old.model), has(&record.new.model)) else { continue };
                if old.vector.len() != record.old.dimension {
                    // The store says what is wrong with it.
                    continue;
                }
                let (vectors, variance, _) = filler.adapt_rows(&[0], &old.vector)?;
                write.vectors.push(NewVector {
                    space: record.new.model.clone(),
                    vector: vectors.into_data(),
                    provenance: Provenance::Adapted,
                    sigma2: variance.first().copied(),
                    priority: Some(NEW_OR_CHANGED),
                });
            }
        }
        self.store.put(&writes)
    }

    /// The adapter made ready for an upgrade: the one of the last write, as long as the upgrade is the same.
    fn filler(&self, adapter: &'a Adapter, record: &UpgradeRecord) -> Result<Arc<Filler<'a>>> {
        let wanted = FilledAs {
            old: record.old.model.clone(),
            new: record.new.model.clone(),
            adapter: record.adapter.clone(),
            order: record.order,
        };
        let mut kept = self.filler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made_for, filler)) = kept.as_ref()
            && *made_for == wanted
        {
            return Ok(Arc::clone(filler));
        }
        let filler = Arc::new(Filler::new(adapter, &wanted.old, &wanted.new, wanted.order)?);
        *kept = Some((wanted, Arc::clone(&filler)));
        Ok(filler)
    }

    /// Deletes items; gives how many there were.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn delete(&self, ids: &[&str]) -> Result<usize> {
        self.store.delete(ids)
    }
}

/// A search in which adapted vectors are farther by `handicap`: the nearest adapted ones and the nearest others, merged.
fn search_space(
    store: &dyn Store,
    space: &str,
    queries: &Matrix,
    k: usize,
    filter: &Filter,
    handicap: f64,
) -> Result<Vec<Vec<Found>>> {
    if handicap == 0.0 {
        return store.search(space, queries, k, filter);
    }
    let handicap = handicap as f32;
    let asked =
        |provenance: &Provenance| filter.provenances.is_empty() || filter.provenances.contains(provenance);
    let nearest = |provenances: Vec<Provenance>| {
        if provenances.is_empty() {
            return Ok(vec![Vec::new(); queries.rows()]);
        }
        store.search(space, queries, k, &Filter { provenances, ..filter.clone() })
    };
    let (adapted, others): (Vec<Provenance>, Vec<Provenance>) =
        Provenance::ALL.into_iter().filter(asked).partition(|&provenance| provenance == Provenance::Adapted);
    // The adapted ones first: an item that becomes native between the two searches is found by both, and never by neither.
    let adapted = nearest(adapted)?;
    let others = nearest(others)?;
    Ok(adapted
        .into_iter()
        .zip(others)
        .map(|(adapted, mut hits)| {
            let native: BTreeSet<_> = hits.iter().map(|hit| hit.key).collect();
            let farther = |hit: Found| Found { distance: hit.distance + handicap, ..hit };
            hits.extend(adapted.into_iter().filter(|hit| !native.contains(&hit.key)).map(farther));
            hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
            hits.truncate(k);
            hits
        })
        .collect())
}

fn needs(space: &str) -> Error {
    Error::missing(format!("queries embedded by {space:?}"), "a search of this gallery as it serves now")
}

#[cfg(test)]
#[path = "../tests/common/padding.rs"]
pub(crate) mod padding;

#[cfg(test)]
mod tests {
    use rehang::order::Policy;
    use rehang::{Distance, Space};

    use super::*;
    use crate::gallery::padding::padding;

    fn adapter(bias: f32) -> Adapter {
        let space = |name, dimension| Space::new(name, dimension, Distance::L2, false);
        padding(space("old-model", 3), space("new-model", 4), vec![1.0, 0.5, 0.0, 0.0], bias)
    }

    #[test]
    fn the_adapter_is_made_ready_once_for_an_upgrade_and_again_when_it_is_planned_anew() {
        let store = rehang_store::MemoryStore::new();
        let (adapter, other) = (adapter(0.0), adapter(0.5));
        let gallery = Gallery::new(&store, Some(&adapter));
        let order = OrderSettings { policy: Policy::Sigma, seed: 1 };
        let record = |adapter: &Adapter, new: &Space, order: OrderSettings| {
            UpgradeRecord::new(adapter.old.clone(), new.clone(), adapter.fingerprint().unwrap(), order)
        };
        let new = adapter.new.clone();
        let first = gallery.filler(&adapter, &record(&adapter, &new, order)).unwrap();
        let again = gallery.filler(&adapter, &record(&adapter, &new, order)).unwrap();
        assert!(Arc::ptr_eq(&first, &again), "kept between writes");
        let another_order = OrderSettings { policy: Policy::Random, seed: 1 };
        let another_space = Space { model: "third-model".into(), ..new.clone() };
        let mut last = again;
        for changed in [
            record(&other, &new, order),
            record(&adapter, &another_space, order),
            record(&adapter, &new, another_order),
        ] {
            let made = gallery.filler(&adapter, &changed).unwrap();
            assert!(!Arc::ptr_eq(&last, &made), "{changed:?}");
            last = made;
        }
    }
}
