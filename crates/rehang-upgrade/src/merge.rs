//! Merged searches: native vectors by the new query, all others by the old query, on one scale.
//!
//! Where an adapter is weak, its vectors rank worse than the old ones did, and a gallery that was switched early would
//! serve worse than one that was left alone. A merged search never looks at adapted vectors: an item that is native is
//! judged by the new model, any other by the old model, exactly as before the upgrade. With nothing native it is the old
//! search; with everything native it is the new one.
//!
//! Distances of two spaces cannot be compared, so both are turned into the same thing: how far an item is expected to be
//! from the front of the new model's own ranking. A native item at the q-th part of all new distances has
//!
//! ```text
//! far(q) = 1 − exp(−q n / 10)        n items, q in 0…1: 0 at the very front, 0.63 at the tenth place, then nearly 1
//! ```
//!
//! and an item that is not native has `E[far | d_old]`, learned from a random sample of items that have both vectors by isotonic regression (a
//! monotone map, so the old order among them is kept). Regressing the new distance itself instead puts native items that are
//! merely not far before the old model's best ones, and falls below doing nothing while few items are native; measured by
//! `cargo xtask merge`.

use std::collections::{BTreeMap, BTreeSet};

use rehang::{Distance, Matrix, Provenance, Result, Space};
use rehang_store::{Filter, Found, Ledger, Record, Scan, Select, Store};

use crate::record::UpgradeRecord;
use crate::sample;

/// Items that the scale is learned from, at most.
const ITEMS_MAX: usize = 600;
/// Fewest native items from which a scale is learned.
const ITEMS_MIN: usize = 50;
/// The place of the new ranking at which an item counts as 0.63 far.
const FRONT: f64 = 10.0;
/// Candidates from each space for every wanted hit.
const CANDIDATES_PER_HIT: usize = 4;
/// Candidates from each space at least.
const CANDIDATES_MIN: usize = 64;
/// Fewer items than this are compared one by one, where the candidates hold too few of them.
const COMPARED_MAX: usize = 1024;

/// Both distances on one scale.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merge {
    /// Old distances, ascending.
    old: Vec<f64>,
    /// How far items are expected to be there, ascending.
    far: Vec<f64>,
    /// A sample of new distances, ascending.
    new: Vec<f64>,
    /// Items of the gallery.
    items: f64,
}

impl Merge {
    /// Learns the scale from the native items of a random sample, which is drawn from all items that can be native. Vectors that
    /// cannot be placed are passed over. `switch` puts 200 items of the sample to the front of the queue. With too few
    /// native ones (below 50) the scale is empty, and a merged search is the old search.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn learn(store: &dyn Ledger, old: &Space, new: &Space) -> Result<Self> {
        let natives = sample::natives(store, &old.name, &new.name, ITEMS_MAX)?;
        let keys: Vec<_> = natives.iter().map(|record| record.item.key).collect();
        let olds = store.vectors(&old.name, &keys)?;
        let news = store.vectors(&new.name, &keys)?;
        let (mut old_rows, mut new_rows) = (Vec::new(), Vec::new());
        for (before, now) in olds.into_iter().zip(news) {
            if let (Some(before), Some(now)) = (before, now)
                && old.distance.can_place(&before.vector)
                && new.distance.can_place(&now.vector)
            {
                old_rows.push(before.vector);
                new_rows.push(now.vector);
            }
        }
        let count = old_rows.len();
        if count < ITEMS_MIN {
            return Ok(Self::default());
        }
        let mut pairs = Vec::with_capacity(count * (count - 1) / 2);
        for left in 0..count {
            for right in left + 1..count {
                pairs.push((
                    old.distance.between(&old_rows[left], &old_rows[right]),
                    new.distance.between(&new_rows[left], &new_rows[right]),
                ));
            }
        }
        let items = store.counts(&new.name)?.items;
        Ok(Self::of_pairs(pairs, items))
    }

    /// The scale from (old distance, new distance) of pairs of a gallery of `items`.
    pub fn of_pairs(pairs: Vec<(f64, f64)>, items: u64) -> Self {
        let mut new: Vec<f64> = pairs.iter().map(|(_, new)| *new).collect();
        new.sort_by(f64::total_cmp);
        let mut merge = Self { new, items: items as f64, ..Self::default() };
        let targets = pairs.into_iter().map(|(old, new)| (old, merge.far(new))).collect();
        (merge.old, merge.far) = isotonic(targets);
        merge
    }

    /// How far from the front a native item at a new distance is: 0 at the front, towards 1 behind.
    pub fn far(&self, new: f64) -> f64 {
        if self.new.is_empty() {
            return 1.0;
        }
        let (first, last) = (self.new[0], self.new[self.new.len() - 1]);
        let below = match self.new.partition_point(|&point| point < new) {
            // Nearer than any pair of the sample: half a pair at its edge, none at distance 0 (inner products have no 0).
            0 => 0.5 * if first > 0.0 { (new / first).max(0.0) } else { 1.0 },
            points => points as f64 - 0.5,
        };
        // Between two points of the sample, and beyond its ends, a tiny slope keeps the order of new distances.
        let slope = (new - first) / (last - first).max(f64::MIN_POSITIVE) * 1e-9;
        1.0 - (-below / self.new.len() as f64 * self.items / FRONT).exp() + slope
    }

    /// Whether too little was native to learn a scale.
    pub fn is_empty(&self) -> bool {
        self.old.is_empty()
    }

    /// How far an item at an old distance is expected to be: linear between the points learned, with a tiny slope beyond
    /// them and along flat parts, so that the order of old distances is kept everywhere.
    pub fn expected(&self, old: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.old.first(), self.old.last()) else { return old };
        let slope = (old - first) / (last - first).max(f64::MIN_POSITIVE) * 1e-9;
        let right = self.old.partition_point(|&point| point <= old);
        if right == 0 {
            // Nearer than any pair of the sample: towards the front, which is at distance 0 (inner products have no 0).
            let share = if first > 0.0 { (old / first).max(0.0) } else { 1.0 };
            return self.far[0] * share + slope;
        }
        if right == self.old.len() {
            return self.far[right - 1] + slope;
        }
        let (x0, x1) = (self.old[right - 1], self.old[right]);
        let (y0, y1) = (self.far[right - 1], self.far[right]);
        y0 + (y1 - y0) * (old - x0) / (x1 - x0).max(f64::MIN_POSITIVE) + slope
    }

    /// The `k` nearest items of each query: natives by their new distance, all others by their old one, on the common scale,
    /// which is what `distance` of the hits is then; ties by key. Without a scale (too little is native) it is the old search,
    /// in which items that only the new model has seen alternate with the others.
    ///
    /// An item that becomes native meanwhile is found once: the old hits are read first and the native ones last, and where both
    /// have it the native one counts.
    ///
    /// A provenance that the filter speaks of is that of the new space; an item without a vector there counts as
    /// [`Provenance::Old`], whichever provenance its vector has in the old space.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn search(
        &self,
        store: &dyn Store,
        record: &UpgradeRecord,
        old: &Matrix,
        new: &Matrix,
        k: usize,
        filter: &Filter,
    ) -> Result<Vec<Vec<Found>>> {
        let (old_space, new_space) = (&record.old.name, &record.new.name);
        let wanted = k.saturating_mul(CANDIDATES_PER_HIT).max(CANDIDATES_MIN);
        let passes = |provenance| filter.provenances.is_empty() || filter.provenances.contains(&provenance);
        // Without a scale a native item keeps its old place; with one it is judged by its new distance.
        let stays = |provenance| passes(provenance) && (self.is_empty() || provenance != Provenance::Native);
        let mut rests = vec![Vec::new(); old.rows()];
        if Provenance::ALL.into_iter().any(stays) {
            // The filter speaks of provenances in the new space, which the old one does not know.
            let old_filter = Filter { provenances: Vec::new(), ..filter.clone() };
            let others = |hits: Vec<Found>| -> Result<(usize, Vec<Found>)> {
                let keys: Vec<_> = hits.iter().map(|hit| hit.key).collect();
                let now = store.provenances(new_space, &keys)?;
                let count = hits.len();
                let tagged = hits
                    .into_iter()
                    .zip(now)
                    .map(|(hit, now)| Found { provenance: now.unwrap_or(Provenance::Old), ..hit });
                Ok((count, tagged.filter(|hit| stays(hit.provenance)).collect()))
            };
            // All that stay, once a query needs them, unless they are too many.
            let (mut few, mut many) = (None, false);
            for (query, first) in store.search(old_space, old, wanted, &old_filter)?.into_iter().enumerate() {
                let mut depth = wanted;
                let (mut count, mut rest) = others(first)?;
                // Natives may fill the old model's front. Few others are all compared, since a search that is to meet them
                // would read most of the gallery; of many, some come soon when it is read further.
                while rest.len() < k && count >= depth {
                    if few.is_none() && !many {
                        few = few_that_stay(store, record, &stays)?;
                        many = few.is_none();
                    }
                    if let Some(few) = &few {
                        rest = nearest_of(few, record.old.distance, old.row(query), filter);
                        break;
                    }
                    depth = depth.saturating_mul(4);
                    let mut hits = store.search(old_space, &old.select(&[query]), depth, &old_filter)?;
                    (count, rest) = others(hits.remove(0))?;
                }
                rests[query] = rest;
            }
        }
        // Last: read first, it would miss an item that becomes native before its old hit is looked at and dropped.
        let natives = if passes(Provenance::Native) {
            let filter = Filter { provenances: vec![Provenance::Native], ..filter.clone() };
            store.search(new_space, new, wanted, &filter)?
        } else {
            vec![Vec::new(); new.rows()]
        };
        let mut answers = Vec::with_capacity(natives.len());
        for (mut natives, mut rest) in natives.into_iter().zip(rests) {
            if self.is_empty() {
                let keys: Vec<_> = natives.iter().map(|hit| hit.key).collect();
                let mut in_old = store.provenances(old_space, &keys)?.into_iter();
                natives.retain(|_| in_old.next().flatten().is_none());
            }
            let native: BTreeSet<_> = natives.iter().map(|hit| hit.key).collect();
            rest.retain(|hit| !native.contains(&hit.key));
            let mut hits: Vec<(f64, Found)> = if self.is_empty() {
                // Items that only the new model has seen have no old place: they alternate with the others.
                let fresh = natives.into_iter().zip(0..).map(|(hit, place)| (f64::from(2 * place + 1), hit));
                rest.into_iter()
                    .zip(0..)
                    .map(|(hit, place)| (f64::from(2 * place), hit))
                    .chain(fresh)
                    .collect()
            } else {
                let at = |far: f64, hit: Found| (far, Found { distance: far as f32, ..hit });
                let rest = rest.into_iter().map(|hit| at(self.expected(f64::from(hit.distance)), hit));
                natives
                    .into_iter()
                    .map(|hit| at(self.far(f64::from(hit.distance)), hit))
                    .chain(rest)
                    .collect()
            };
            hits.sort_by(|(a, x), (b, y)| a.total_cmp(b).then(x.key.cmp(&y.key)));
            hits.truncate(k);
            answers.push(hits.into_iter().map(|(_, hit)| hit).collect());
        }
        Ok(answers)
    }
}

/// The items that a merged search judges by their old vector, each with its provenance in the new space; `None` where one kind
/// of them has [`COMPARED_MAX`] or more.
fn few_that_stay(
    store: &dyn Ledger,
    record: &UpgradeRecord,
    stays: &impl Fn(Provenance) -> bool,
) -> Result<Option<Vec<(Provenance, Record)>>> {
    // In the order in which an upgrade changes them, so that none slips from a page that is still to come into one that was
    // read. What the application changes meanwhile goes back to the first kind, which is therefore read once more.
    let kinds = [
        (Provenance::Old, Select::Lacking),
        (Provenance::Adapted, Select::Provenance(Provenance::Adapted)),
        (Provenance::Native, Select::Provenance(Provenance::Native)),
        (Provenance::Old, Select::Lacking),
    ];
    let mut few = BTreeMap::new();
    for (provenance, select) in kinds {
        if !stays(provenance) {
            continue;
        }
        let scan = Scan::new(&record.new.name, select, COMPARED_MAX).with_vectors_of(&record.old.name);
        let records = store.scan(&scan)?;
        if records.len() >= COMPARED_MAX {
            return Ok(None);
        }
        few.extend(records.into_iter().map(|record| (record.item.key, (provenance, record))));
    }
    Ok(Some(few.into_values().collect()))
}

/// Those of the records that pass the filter, nearest first, ties by key. A vector that cannot be placed is passed over, as every
/// search does.
fn nearest_of(
    records: &[(Provenance, Record)],
    distance: Distance,
    query: &[f32],
    filter: &Filter,
) -> Vec<Found> {
    let mut hits: Vec<Found> = records
        .iter()
        .filter(|(provenance, record)| filter.passes(&record.item, *provenance))
        .filter_map(|(provenance, record)| {
            let vector = &record.vector.as_ref()?.vector;
            distance.can_place(vector).then(|| Found {
                key: record.item.key,
                id: record.item.id.clone(),
                distance: distance.between(query, vector) as f32,
                provenance: *provenance,
                revision: record.item.revision,
            })
        })
        .collect();
    hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
    hits
}

/// The non-decreasing function that is nearest to the points in squared error: pooling adjacent violators. Gives the means
/// of the pooled blocks, `(x, y)`, both ascending.
fn isotonic(mut points: Vec<(f64, f64)>) -> (Vec<f64>, Vec<f64>) {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Blocks of (sum of x, sum of y, count) whose mean y must not fall.
    let mut blocks: Vec<(f64, f64, f64)> = Vec::new();
    for (x, y) in points {
        blocks.push((x, y, 1.0));
        while let [.., before, last] = blocks.as_slice() {
            if before.1 * last.2 < last.1 * before.2 {
                break;
            }
            let (before, last) = (*before, *last);
            blocks.truncate(blocks.len() - 2);
            blocks.push((before.0 + last.0, before.1 + last.1, before.2 + last.2));
        }
    }
    blocks.into_iter().map(|(x, y, count)| (x / count, y / count)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pooling_gives_the_textbook_answer() {
        let points = vec![(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 5.0)];
        assert_eq!(isotonic(points), (vec![1.0, 2.5, 4.0], vec![1.0, 2.5, 5.0]));
    }

    proptest! {
        /// Neither scale reverses the order of its distances.
        #[test]
        fn both_scales_keep_the_order(pairs in prop::collection::vec((0.0..4.0f64, 0.0..4.0f64), 2..60),
                                      mut probes in prop::collection::vec(-1.0..5.0f64, 2..20)) {
            let merge = Merge::of_pairs(pairs, 100);
            probes.sort_by(f64::total_cmp);
            for two in probes.windows(2) {
                prop_assert!(merge.expected(two[0]) <= merge.expected(two[1]));
                prop_assert!(merge.far(two[0]) <= merge.far(two[1]));
            }
        }
    }
}
