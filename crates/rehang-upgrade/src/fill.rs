//! Filling the new space with adapted vectors: `h(old)`, σ² and a place in the queue for every item.
//!
//! Pages are read and transformed on one thread and written on another, so that the store's writing is what bounds it.
//! Memory is bounded by a few pages. All writes are conditional; a fill that died goes on where the store says something
//! is lacking.

use std::sync::mpsc::sync_channel;
use std::thread;

use rand::rand_core::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang::adapter::{Adapter, Applier, input_drift};
use rehang::order::{self, OrderInput, Policy};
use rehang::{Error, Head, Matrix, Progress, Provenance, Result};
use rehang_store::{ItemKey, Outcome, Record, Revision, Scan, Select, Store, VectorWrite};

use crate::faults::{Faults, Place};
use crate::record::{OrderSettings, Recorded, UpgradeRecord};

/// Numbers that a page holds at most, so that wide vectors do not take more memory than narrow ones.
const PAGE_NUMBERS: usize = 1 << 19;
/// Items of a page at most: a page is one transaction, and the application's own writes wait for it.
const PAGE_ITEMS_MAX: usize = 2048;
/// Pages between the thread that transforms and the one that writes.
const PAGES_AHEAD: usize = 2;
/// Items that the order `coverage` looks at; a larger gallery is sampled, so that memory stays bounded.
const COVER_SAMPLE_MAX: usize = 20_000;
/// One item of this many covers, as in [`rehang::order`].
const COVER_SHARE: usize = 10;
/// Places of covering items begin here: above every score that an item can have.
const COVER_FIRST: f64 = 1e12;
/// Places of the sample that merged searches are scaled by begin here: above every covering item.
pub(crate) const SAMPLE_FIRST: f64 = 1e14;
/// Place of items that came or changed during the upgrade: before everything else.
pub(crate) const NEW_OR_CHANGED: f64 = 1e15;
/// Vectors that are looked at before an adapter is applied to a whole gallery.
const DRIFT_SAMPLE: usize = 512;
/// Places of the gallery that a sample is taken from.
const SAMPLE_PARTS: u64 = 8;

/// An adapter made ready for the items of a gallery.
pub struct Filler<'a> {
    applier: Applier,
    head: Option<&'a Head>,
    old: String,
    new: String,
    order: OrderSettings,
    since: Option<Revision>,
    /// What has to be there still at every write; `None` where the caller sees to that.
    bound: Option<Bound>,
}

/// What of an upgrade has to be as it was for whoever writes adapted vectors: these replace adapted ones, so whoever went on with
/// an adapter of before would leave a mixture.
enum Bound {
    /// The whole plan: neither planned in another way, nor rolled back, nor finished.
    Plan(UpgradeRecord),
    /// Its spaces and its adapter.
    Adapter(UpgradeRecord),
}

impl<'a> Filler<'a> {
    /// Makes an adapter ready to fill space `new` from space `old`.
    ///
    /// # Errors
    ///
    /// Missing input where the adapter reads side information (a live gallery has none to give) or the order needs a
    /// head that the adapter does not carry; an invalid option for the order `oracle`, which nobody can have live.
    pub fn new(adapter: &'a Adapter, old: &str, new: &str, order: OrderSettings) -> Result<Self> {
        if adapter.side_dimension().is_some() {
            return Err(Error::missing("side information for every item", "this adapter")
                .context("a live upgrade has old vectors only; fit an adapter without side information"));
        }
        let head = adapter.uncertainty.head();
        match order.policy {
            Policy::Oracle => {
                return Err(Error::option(
                    "[order] policy",
                    "oracle",
                    "an order that can be known before the backfill is done (coverage, sigma, random, …)",
                ));
            }
            Policy::LeastConfidence | Policy::Margin | Policy::Entropy if head.is_none() => {
                return Err(Error::missing(
                    "an adapter that carries a classifier head",
                    format!("[order] policy {:?}", order.policy.name()),
                ));
            }
            _ => {}
        }
        Ok(Self {
            applier: Applier::new(adapter)?,
            head,
            old: old.into(),
            new: new.into(),
            order,
            since: None,
            bound: None,
        })
    }

    /// Items with a later revision came or changed during the upgrade: they go to the front of the queue. `None`: nothing is
    /// known of that, and only [`Filler::catch_up`] puts items there.
    #[must_use]
    pub fn since(mut self, revision: Option<Revision>) -> Self {
        self.since = revision;
        self
    }

    /// Writes nothing any more once the upgrade is planned in another way, rolled back or finished.
    #[must_use]
    pub(crate) fn while_planned(mut self, plan: &UpgradeRecord) -> Self {
        self.bound = Some(Bound::Plan(plan.clone()));
        self
    }

    /// Writes nothing any more once the upgrade is planned with another adapter, or another one took its place.
    #[must_use]
    pub(crate) fn while_filled_by(mut self, plan: &UpgradeRecord) -> Self {
        self.bound = Some(Bound::Adapter(plan.clone()));
        self
    }

    /// Fails where that is not so any more.
    fn expect_bound(&self, store: &dyn Store) -> Result<()> {
        match &self.bound {
            None => Ok(()),
            Some(Bound::Plan(plan)) => Recorded::expect_planned(store, plan).map(drop),
            Some(Bound::Adapter(plan)) => Recorded::expect_filled_by(store, plan),
        }
    }

    /// Items of a page.
    pub fn page(&self) -> usize {
        page_items(self.applier.d_old().max(self.applier.d_new()))
    }

    /// Fills: every item of the selection that has an old vector gets an adapted one. Gives how many were written.
    ///
    /// # Errors
    ///
    /// Those of the store and of the adapter; cancelled where a stop was asked for. What was written stays.
    pub fn fill(
        &self,
        store: &dyn Store,
        select: &Select,
        faults: &dyn Faults,
        progress: &Progress,
    ) -> Result<u64> {
        let (pages, to_write) = sync_channel::<Result<Vec<VectorWrite>>>(PAGES_AHEAD);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut after = None;
                loop {
                    let page = self.next_page(store, select, &mut after, faults);
                    match page {
                        Ok(None) => break,
                        Ok(Some(writes)) => {
                            // The writer is gone after an error of its own, which it reports.
                            if pages.send(Ok(writes)).is_err() {
                                break;
                            }
                        }
                        Err(error) => {
                            drop(pages.send(Err(error)));
                            break;
                        }
                    }
                }
            });
            let mut written = 0;
            for writes in to_write {
                let writes = writes?;
                progress.check()?;
                self.expect_bound(store)?;
                let outcomes = store.write_vectors(&self.new, &writes)?;
                written += outcomes.iter().filter(|outcome| **outcome == Outcome::Written).count() as u64;
                progress.advance(writes.len() as u64);
                faults.reach(Place::FillWritten)?;
            }
            Ok(written)
        })
    }

    fn next_page(
        &self,
        store: &dyn Store,
        select: &Select,
        after: &mut Option<ItemKey>,
        faults: &dyn Faults,
    ) -> Result<Option<Vec<VectorWrite>>> {
        let scan = Scan::new(&self.new, select.clone(), self.page()).after(*after).with_vectors_of(&self.old);
        let records = store.scan(&scan)?;
        let Some(last) = records.last() else { return Ok(None) };
        *after = Some(last.item.key);
        faults.reach(Place::FillRead)?;
        Ok(Some(self.adapt(&records, None)?))
    }

    /// Adapts old vectors `[n, d_old]` that are not in a store yet: vectors, σ² and places.
    ///
    /// # Errors
    ///
    /// Those of [`Applier::apply_rows`].
    pub fn adapt_rows(&self, keys: &[ItemKey], old: &[f32]) -> Result<(Matrix, Vec<f32>, Vec<f64>)> {
        let count = keys.len();
        let mut vectors = Matrix::zeros(count, self.applier.d_new());
        let (mut variance, mut raw_norms) = (vec![0.0; count], vec![0.0; count]);
        self.applier.apply_rows(0, old, None, vectors.as_mut_slice(), &mut variance, &mut raw_norms)?;
        let priorities = self.scores(keys, &vectors, &variance)?;
        Ok((vectors, variance, priorities))
    }

    /// The writes for those records that came with an old vector, all with one place or each with its score.
    fn adapt(&self, records: &[Record], place: Option<f64>) -> Result<Vec<VectorWrite>> {
        let with_old: Vec<(&Record, &[f32])> = records
            .iter()
            .filter_map(|record| Some((record, record.vector.as_ref()?.vector.as_slice())))
            // One damaged vector must not stop the others. Its item lacks a vector, so the backfill takes it first.
            .filter(|(_, old)| is_finite(old))
            .collect();
        if with_old.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<ItemKey> = with_old.iter().map(|(record, _)| record.item.key).collect();
        let old: Vec<f32> = with_old.iter().flat_map(|(_, old)| old.iter().copied()).collect();
        let (vectors, variance, priorities) = self
            .adapt_rows(&keys, &old)
            .map_err(|error| error.context(format!("adapting items from {:?} on", with_old[0].0.item.id)))?;
        Ok(with_old
            .iter()
            .enumerate()
            .map(|(row, (record, _))| VectorWrite {
                key: record.item.key,
                revision: record.item.revision,
                provenance: Provenance::Adapted,
                sigma2: Some(variance[row]),
                priority: Some(place.or(self.front(record)).unwrap_or(priorities[row])),
                squared_error: None,
                vector: vectors.row(row).to_vec(),
            })
            .collect())
    }

    /// What each item is ranked by, before covering: larger is earlier.
    fn scores(&self, keys: &[ItemKey], vectors: &Matrix, variance: &[f32]) -> Result<Vec<f64>> {
        let sigma = || variance.iter().map(|&value| f64::from(value)).collect();
        Ok(match (self.order.policy, self.head) {
            (Policy::Random, _) => keys.iter().map(|&key| shuffled(self.order.seed, key)).collect(),
            (Policy::Sigma | Policy::Oracle, _) | (_, None) => sigma(),
            (policy, Some(head)) => order::doubts(policy, head, vectors)?,
        })
    }

    /// Gives the items that cover the gallery their places at the front, where the order is `coverage`.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn cover(&self, store: &dyn Store, progress: &Progress) -> Result<()> {
        if self.order.policy != Policy::Coverage {
            return Ok(());
        }
        let adapted = usize::try_from(store.counts(&self.new)?.adapted).unwrap_or(usize::MAX);
        if adapted < COVER_SHARE {
            return Ok(());
        }
        progress.begin("choosing what covers the gallery", "items", adapted.min(COVER_SAMPLE_MAX) as u64);
        // A draw by key: the same items for the same seed, however the pages are cut.
        let share = COVER_SAMPLE_MAX as f64 / adapted as f64;
        let mut sampled = Vec::new();
        let mut rows = Vec::new();
        let mut sigma = Vec::new();
        let mut after = None;
        loop {
            progress.check()?;
            let scan = Scan::new(&self.new, Select::Provenance(Provenance::Adapted), self.page())
                .after(after)
                .with_vectors_of(&self.new);
            let records = store.scan(&scan)?;
            let Some(last) = records.last() else { break };
            after = Some(last.item.key);
            for record in records {
                if share < 1.0 && shuffled(!self.order.seed, record.item.key) >= share {
                    continue;
                }
                if self.front(&record).is_some() {
                    continue;
                }
                let Some(vector) = record.vector else { continue };
                rows.extend(vector.vector);
                sigma.push(f64::from(vector.sigma2.unwrap_or(0.0)));
                sampled.push((record.item.key, record.item.revision));
                progress.advance(1);
            }
        }
        if sampled.is_empty() {
            return Ok(());
        }
        let vectors = Matrix::new(self.applier.d_new(), rows)?;
        let clusters = sampled.len().div_ceil(COVER_SHARE);
        let input = OrderInput {
            items: sampled.len(),
            sigma: Some(&sigma),
            classified: self.head.map(|head| (head, &vectors)),
            vectors: Some(&vectors),
            clusters: Some(clusters),
            seed: self.order.seed,
            ..OrderInput::default()
        };
        let order = order::order(Policy::Coverage, &input)?;
        let covering: Vec<(ItemKey, u64, f64)> = order
            .permutation
            .iter()
            .take(clusters)
            .enumerate()
            .map(|(place, &row)| (sampled[row].0, sampled[row].1, COVER_FIRST + (clusters - place) as f64))
            .collect();
        for page in covering.chunks(PAGE_ITEMS_MAX) {
            self.expect_bound(store)?;
            store.set_priorities(&self.new, page)?;
        }
        Ok(())
    }

    /// The place of an item that came or changed during the upgrade, or that merged searches are scaled by: it keeps it, whatever
    /// adapter or order comes next.
    fn front(&self, record: &Record) -> Option<f64> {
        if self.since.is_some_and(|since| record.item.revision > since) {
            return Some(NEW_OR_CHANGED);
        }
        let placed = record.state.as_ref().and_then(|state| state.priority);
        placed.filter(|&priority| priority >= SAMPLE_FIRST)
    }

    /// Adapts what came or changed since: items that lack a vector in the new space and have one in the old. They go to
    /// the front of the queue. Gives how many were written; what still lacks a vector afterwards has no old one either.
    ///
    /// # Errors
    ///
    /// Those of the store and of the adapter.
    pub fn catch_up(&self, store: &dyn Store, faults: &dyn Faults) -> Result<u64> {
        let mut written = 0;
        let mut after = None;
        loop {
            let scan =
                Scan::new(&self.new, Select::Lacking, self.page()).after(after).with_vectors_of(&self.old);
            let records = store.scan(&scan)?;
            let Some(last) = records.last() else { return Ok(written) };
            after = Some(last.item.key);
            faults.reach(Place::CatchUpRead)?;
            let writes = self.adapt(&records, Some(NEW_OR_CHANGED))?;
            if writes.is_empty() {
                continue;
            }
            self.expect_bound(store)?;
            let outcomes = store.write_vectors(&self.new, &writes)?;
            written += outcomes.iter().filter(|outcome| **outcome == Outcome::Written).count() as u64;
            faults.reach(Place::CatchUpWritten)?;
        }
    }
}

/// Items of a page of vectors of this width.
pub(crate) fn page_items(dimension: usize) -> usize {
    (PAGE_NUMBERS / dimension.max(1)).clamp(64, PAGE_ITEMS_MAX)
}

/// A number in `[0, 1)` that depends on the seed and the key alone.
pub(crate) fn shuffled(seed: u64, key: ItemKey) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(key);
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The newest revision of a gallery's items, 0 without any: found in a few dozen pages of one item.
pub(crate) fn newest_revision(store: &dyn Store, space: &str) -> Result<Revision> {
    let after = |revision| -> Result<Option<Revision>> {
        let records = store.scan(&Scan::new(space, Select::ChangedSince(revision), 1))?;
        Ok(records.first().map(|record| record.item.revision))
    };
    // Some item has revision `newest` (or there is none); none has `beyond` or a later one, once that is known.
    let (mut newest, mut beyond) = (0, None);
    loop {
        let probe = match beyond {
            None => newest.max(1) * 2,
            Some(beyond) => newest + (beyond - newest) / 2,
        };
        match after(probe)? {
            // What is beyond was written since the first look, and is none of what was there.
            Some(found) if beyond.is_none_or(|beyond| found <= beyond) => newest = found,
            _ if probe > newest => beyond = Some(probe),
            _ => return Ok(newest),
        }
    }
}

/// Some of a gallery's items, from every corner of it, each once, with their vectors of `space` or without: at most `items`, and
/// all of a gallery from which few were deleted and that has no more.
pub(crate) fn sampled(store: &dyn Store, space: &str, items: usize, vectors: bool) -> Result<Vec<Record>> {
    let first = store.scan(&Scan::new(space, Select::ChangedSince(0), 1))?.first().map_or(0, |r| r.item.key);
    let there = store.counts(space)?.items;
    let mut records: Vec<Record> = Vec::new();
    for part in 0..SAMPLE_PARTS {
        // Keys are given in the order of arrival, so equal steps of the key reach every corner of the gallery.
        let after = (first + there * part / SAMPLE_PARTS).checked_sub(1);
        let mut scan = Scan::new(space, Select::All, items / SAMPLE_PARTS as usize).after(after);
        scan.vectors_of = vectors.then(|| space.to_owned());
        // Parts of a small gallery overlap.
        let last = records.last().map(|record| record.item.key);
        let later = |record: &Record| last.is_none_or(|last| record.item.key > last);
        records.extend(store.scan(&scan)?.into_iter().filter(later));
    }
    Ok(records)
}

/// Whether a vector is without NaN and infinite numbers, as those are that came through the library.
pub(crate) fn is_finite(vector: &[f32]) -> bool {
    vector.iter().all(|value| value.is_finite())
}

/// What gives away that a gallery's old vectors are not what the adapter was fitted on; `None` where nothing does. Vectors with
/// NaN or infinite numbers are passed over.
///
/// # Errors
///
/// Those of the store; wrong direction and width mismatch as [`Adapter::expect_input_width`].
pub(crate) fn drift(store: &dyn Store, adapter: &Adapter, old: &str) -> Result<Option<String>> {
    let vectors = sampled(store, old, DRIFT_SAMPLE, true)?.into_iter().filter_map(|record| record.vector);
    // Those that the fill passes over say nothing of the others.
    let vectors = vectors.map(|vector| vector.vector).filter(|vector| is_finite(vector));
    let rows: Vec<f32> = vectors.flatten().collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let Some(drift) = input_drift(adapter, &Matrix::new(adapter.old.dimension, rows)?)? else {
        return Ok(None);
    };
    Ok(drift.is_suspicious().then(|| {
        let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
        format!(
            "the vectors of space {old:?} do not look like those that the adapter was fitted on (means of coordinates \
             correlate {}, spreads {}, lengths are {} times as large): is it the adapter of this gallery, in this \
             direction?",
            number(drift.mean_correlation),
            number(drift.spread_correlation),
            number(drift.norm_ratio)
        )
    }))
}

#[cfg(test)]
mod tests {
    use rehang::{Distance, Space};
    use rehang_store::{ItemWrite, MemoryStore};

    use super::*;

    #[test]
    fn the_newest_revision_is_found_whatever_was_deleted() {
        let store = MemoryStore::new();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        assert_eq!(newest_revision(&store, "old").unwrap(), 0);
        for number in 0..70 {
            let id = format!("item {}", number % 50);
            let write = ItemWrite {
                id: id.clone(),
                source: None,
                label: None,
                payload: serde_json::Value::Null,
                vectors: vec![],
            };
            store.put(&[write]).unwrap();
            if number % 7 == 0 {
                store.delete(&[&id]).unwrap();
            }
            let all = store.scan(&Scan::new("old", Select::All, 100)).unwrap();
            let expected = all.iter().map(|record| record.item.revision).max().unwrap_or(0);
            assert_eq!(newest_revision(&store, "old").unwrap(), expected);
        }
    }
}
