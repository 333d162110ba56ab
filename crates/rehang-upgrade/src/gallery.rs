//! What an application searches and writes through: right at every stage of an upgrade.

use rehang::adapter::Adapter;
use rehang::{Error, ErrorKind, Matrix, Provenance, Result};
use rehang_store::{Filter, Found, ItemWrite, NewVector, Revision, Store, find_space};
use serde::Serialize;

use crate::fill::{Filler, NEW_OR_CHANGED};
use crate::merge::Merge;
use crate::record::{Phase, Recorded, Serving};

/// Queries, as both models see them. Before the switch the old ones are used, after it the new ones; a merged search
/// uses both.
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
}

impl<'a> Gallery<'a> {
    /// A gallery. With the upgrade's adapter, items written before the switch are found after it without any lag.
    pub fn new(store: &'a dyn Store, adapter: Option<&'a Adapter>) -> Self {
        Self { store, adapter, merge: None }
    }

    /// Learns the scale of merged searches anew from what is native by now; see [`Merge::learn`]. Worth repeating as the
    /// backfill goes on.
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
        self.merge = Some(Merge::learn(self.store, &record.old, &record.new, record.order.seed)?);
        Ok(())
    }

    /// The `k` nearest items to each query in what serves now.
    ///
    /// # Errors
    ///
    /// Missing input where the queries of the model that serves now are not given; width mismatch; not found for a gallery
    /// without spaces.
    pub fn search(&self, queries: &Queries<'_>, k: usize, filter: &Filter) -> Result<Answer> {
        let serving =
            self.store.serving()?.ok_or_else(|| Error::not_found("space", "serving", self.store.name()))?;
        let recorded = Recorded::read(self.store)?;
        let record = recorded.as_ref().map(|recorded| &recorded.record);
        let upgraded = record.filter(|record| record.new.model == serving);
        let Some(record) = upgraded else {
            // No upgrade, before the switch, or after a rollback: whichever queries there are belong to what serves.
            let queries = queries.old.or(if record.is_none() { queries.new } else { None });
            let queries = queries.ok_or_else(|| needs(&serving))?;
            let found = self.store.search(&serving, queries, k, filter)?;
            return Ok(Answer { spaces: vec![serving], found });
        };
        let new = queries.new.ok_or_else(|| needs(&serving))?;
        if record.serving == Serving::Merged
            && record.phase != Phase::Finished
            && let Some(merge) = &self.merge
            && let Some(old) = queries.old
        {
            if old.rows() != new.rows() {
                return Err(ErrorKind::CountMismatch {
                    left: "queries of the old model".into(),
                    left_count: old.rows(),
                    right: "queries of the new one".into(),
                    right_count: new.rows(),
                }
                .into());
            }
            let found = merge.search(self.store, record, old, new, k, filter)?;
            return Ok(Answer { spaces: vec![record.old.model.clone(), serving], found });
        }
        let found = self.store.search(&serving, new, k, filter)?;
        Ok(Answer { spaces: vec![serving], found })
    }

    /// Writes items. While an upgrade is live, an item that comes with an old vector only gets an adapted one in the same
    /// transaction, so that no search misses it and no search sees its former content. Its source is re-embedded first.
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
            let filler = Filler::new(adapter, &record.old.model, &record.new.model, record.order)?;
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

    /// Deletes items; gives how many there were.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn delete(&self, ids: &[&str]) -> Result<usize> {
        self.store.delete(ids)
    }
}

fn needs(space: &str) -> Error {
    Error::missing(format!("queries embedded by {space:?}"), "a search of this gallery as it serves now")
}
