//! Merged searches: native vectors by the new query, all others by the old query, on one scale.
//!
//! Where an adapter is weak, its vectors rank worse than the old ones did, and a gallery that was switched early would
//! serve worse than one that was left alone. A merged search never looks at adapted vectors: an item that is native is
//! judged by the new model, any other by the old model, exactly as before the upgrade. With nothing native it is the old
//! search; with everything native it is the new one.
//!
//! Distances of two spaces cannot be compared, so old distances are mapped to the new scale by a monotone function,
//! learned from items that have both vectors: `E[d_new | d_old]`, by isotonic regression. Its value is what the new model
//! is expected to say; where the old model knows little, the expectation is nearly constant, and sure new neighbours come
//! first.

use rehang::{Distance, Matrix, Provenance, Result, Space};
use rehang_store::{Filter, Found, Scan, Select, Store};

use crate::fill::{page_items, shuffled};
use crate::record::UpgradeRecord;

/// Items that the scale is learned from, at most.
const ITEMS_MAX: usize = 600;
/// Fewest native items from which a scale is learned.
const ITEMS_MIN: usize = 20;
/// Candidates from each space for every wanted hit.
const CANDIDATES_PER_HIT: usize = 4;
/// Candidates from each space at least.
const CANDIDATES_MIN: usize = 64;

/// A monotone map from old distances to new ones.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Merge {
    /// Old distances, ascending.
    old: Vec<f64>,
    /// New distances expected there, ascending.
    new: Vec<f64>,
}

impl Merge {
    /// Learns the scale from native items whose old vector is still there. With too few of them (below 20) the scale is
    /// empty, and a merged search is the old search.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn learn(store: &dyn Store, old: &Space, new: &Space, seed: u64) -> Result<Self> {
        let native = store.counts(&new.model)?.native;
        let share = ITEMS_MAX as f64 / native.max(1) as f64;
        let (mut old_rows, mut new_rows) = (Vec::new(), Vec::new());
        let mut after = None;
        while new_rows.len() < ITEMS_MAX {
            let scan =
                Scan::new(&new.model, Select::Provenance(Provenance::Native), page_items(new.dimension))
                    .after(after);
            let records = store.scan(&scan)?;
            let Some(last) = records.last() else { break };
            after = Some(last.item.key);
            let keys: Vec<_> = records
                .iter()
                .map(|record| record.item.key)
                .filter(|&key| share >= 1.0 || shuffled(seed, key) < share)
                .collect();
            let olds = store.vectors(&old.model, &keys)?;
            let news = store.vectors(&new.model, &keys)?;
            for (before, now) in olds.into_iter().zip(news) {
                if let (Some(before), Some(now)) = (before, now) {
                    old_rows.push(before.vector);
                    new_rows.push(now.vector);
                }
            }
        }
        let count = old_rows.len().min(ITEMS_MAX);
        if count < ITEMS_MIN {
            return Ok(Self::default());
        }
        let mut pairs = Vec::with_capacity(count * (count - 1) / 2);
        for left in 0..count {
            for right in left + 1..count {
                pairs.push((
                    between(old.distance, &old_rows[left], &old_rows[right]),
                    between(new.distance, &new_rows[left], &new_rows[right]),
                ));
            }
        }
        Ok(Self::of_pairs(pairs))
    }

    /// The scale from pairs of (old distance, new distance), by pooling adjacent violators.
    pub fn of_pairs(mut pairs: Vec<(f64, f64)>) -> Self {
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        // Blocks of (sum of old, sum of new, count) whose mean new distance must not fall.
        let mut blocks: Vec<(f64, f64, f64)> = Vec::new();
        for (old, new) in pairs {
            blocks.push((old, new, 1.0));
            while let [.., before, last] = blocks.as_slice() {
                if before.1 * last.2 < last.1 * before.2 {
                    break;
                }
                let (before, last) = (*before, *last);
                blocks.truncate(blocks.len() - 2);
                blocks.push((before.0 + last.0, before.1 + last.1, before.2 + last.2));
            }
        }
        let (old, new) = blocks.into_iter().map(|(old, new, count)| (old / count, new / count)).unzip();
        Self { old, new }
    }

    /// Whether too little was native to learn a scale.
    pub fn is_empty(&self) -> bool {
        self.old.is_empty()
    }

    /// The new distance that is expected at an old distance: linear between the points learned, with the first and last
    /// slope beyond them, so that the order of old distances is kept everywhere.
    pub fn expected(&self, old: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.old.first(), self.old.last()) else { return old };
        let slope_below = 1e-6;
        if old <= first {
            return self.new[0] + (old - first) * slope_below;
        }
        if old >= last {
            return self.new[self.new.len() - 1] + (old - last) * slope_below;
        }
        let right = self.old.partition_point(|&point| point <= old);
        let (x0, x1) = (self.old[right - 1], self.old[right]);
        let (y0, y1) = (self.new[right - 1], self.new[right]);
        y0 + (y1 - y0) * (old - x0) / (x1 - x0).max(f64::MIN_POSITIVE)
    }

    /// The `k` nearest items of each query: natives by their new distance, all others by their expected one. The distances
    /// given are on the scale of the new space; ties by key.
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
        let (old_space, new_space) = (&record.old.model, &record.new.model);
        if self.is_empty() {
            return store.search(old_space, old, k, filter);
        }
        let wanted = (k * CANDIDATES_PER_HIT).max(CANDIDATES_MIN);
        // The provenance that a filter speaks of is that of the space that serves.
        let native_wanted = filter.provenances.is_empty() || filter.provenances.contains(&Provenance::Native);
        let others_wanted =
            filter.provenances.is_empty() || filter.provenances.contains(&Provenance::Adapted);
        let mut natives = vec![Vec::new(); new.rows()];
        if native_wanted {
            let filter = Filter { provenances: vec![Provenance::Native], ..filter.clone() };
            natives = store.search(new_space, new, wanted, &filter)?;
        }
        let mut others = vec![Vec::new(); old.rows()];
        if others_wanted {
            let filter = Filter { provenances: Vec::new(), ..filter.clone() };
            others = store.search(old_space, old, wanted, &filter)?;
        }
        let mut answers = Vec::with_capacity(natives.len());
        for (mut hits, others) in natives.into_iter().zip(others) {
            let keys: Vec<_> = others.iter().map(|hit| hit.key).collect();
            let states = store.vectors(new_space, &keys)?;
            for (hit, state) in others.into_iter().zip(states) {
                // A native item is judged by its new distance; if that is not among the candidates it is far.
                let provenance = match state.map(|state| state.provenance) {
                    Some(Provenance::Native) => continue,
                    Some(provenance) => provenance,
                    None => hit.provenance,
                };
                let distance = self.expected(f64::from(hit.distance)) as f32;
                hits.push(Found { distance, provenance, ..hit });
            }
            hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
            hits.truncate(k);
            answers.push(hits);
        }
        Ok(answers)
    }
}

/// The distance between two vectors of a space.
fn between(distance: Distance, a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    match distance {
        Distance::L2 => a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum(),
        Distance::Dot => -dot(a, b),
        Distance::Cosine => {
            let lengths = (dot(a, a) * dot(b, b)).sqrt();
            if lengths > 0.0 { 1.0 - dot(a, b) / lengths } else { 1.0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pooling_gives_the_textbook_answer() {
        let merge = Merge::of_pairs(vec![(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 5.0)]);
        assert_eq!((merge.old, merge.new), (vec![1.0, 2.5, 4.0], vec![1.0, 2.5, 5.0]));
    }

    proptest! {
        /// The expectation never reverses the order of old distances.
        #[test]
        fn the_expectation_is_monotone(pairs in prop::collection::vec((0.0..4.0f64, 0.0..4.0f64), 1..60),
                                       mut probes in prop::collection::vec(-1.0..5.0f64, 2..20)) {
            let merge = Merge::of_pairs(pairs);
            probes.sort_by(f64::total_cmp);
            for two in probes.windows(2) {
                prop_assert!(merge.expected(two[0]) <= merge.expected(two[1]));
            }
        }
    }
}
