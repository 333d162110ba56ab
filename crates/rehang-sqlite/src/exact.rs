//! Exact nearest neighbours over vectors in memory: the reference of every search, and the whole of it in
//! small galleries.
//!
//! A coarse pass in `f32` bounds every distance. Every vector that may be among the `k` nearest, within that
//! pass's largest rounding error, is measured again in `f64`. So the answer is that of a slow loop in `f64`,
//! at the speed of `f32`.

use std::collections::HashMap;

use rehang_core::Distance;
use rehang_store::exact::{by_distance, distance};

/// Item as indexes in memory number it: half as wide as a key of the contract.
pub(crate) type RowKey = u64;

/// Vector that was found: its distance and its item.
pub(crate) type Near = (f32, RowKey);

/// Sorts what was found by distance and keeps the `k` nearest.
pub(crate) fn keep_nearest(near: &mut Vec<Near>, k: usize) {
    if k == 0 {
        near.clear();
        return;
    }
    if near.len() > k {
        near.select_nth_unstable_by(k - 1, by_distance);
        near.truncate(k);
    }
    near.sort_unstable_by(by_distance);
}

/// Vectors by item, in one piece of memory: `[n, d]`, in no particular order.
#[derive(Debug, Clone)]
pub(crate) struct Flat {
    dimension: usize,
    keys: Vec<RowKey>,
    rows: Vec<f32>,
    norms: Vec<f32>,
    places: HashMap<RowKey, usize>,
}

impl Flat {
    /// Makes a set without vectors, for vectors with so many coordinates.
    pub(crate) fn new(dimension: usize) -> Self {
        Self { dimension, keys: Vec::new(), rows: Vec::new(), norms: Vec::new(), places: HashMap::new() }
    }

    /// Number of vectors.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Bytes that the vectors and what belongs to them take.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.capacity() * 4
            + self.keys.capacity() * 8
            + self.norms.capacity() * 4
            + self.places.len() * 24
    }

    /// The vector of an item.
    pub(crate) fn get(&self, key: RowKey) -> Option<&[f32]> {
        self.places.get(&key).map(|&place| self.row(place))
    }

    /// Every item and its vector.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RowKey, &[f32])> {
        self.keys.iter().copied().zip(self.rows.chunks_exact(self.dimension))
    }

    /// The items.
    pub(crate) fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    /// Puts a vector in, in the place of the item's former one if there is one.
    pub(crate) fn insert(&mut self, key: RowKey, vector: &[f32]) {
        debug_assert_eq!(vector.len(), self.dimension);
        let norm = rehang_core::norm(vector) as f32;
        if let Some(&place) = self.places.get(&key) {
            self.rows[place * self.dimension..(place + 1) * self.dimension].copy_from_slice(vector);
            self.norms[place] = norm;
        } else {
            self.places.insert(key, self.keys.len());
            self.keys.push(key);
            self.rows.extend_from_slice(vector);
            self.norms.push(norm);
        }
    }

    /// Takes an item's vector out, and says whether there was one.
    pub(crate) fn remove(&mut self, key: RowKey) -> bool {
        let Some(place) = self.places.remove(&key) else { return false };
        let last = self.keys.len() - 1;
        if place < last {
            self.rows.copy_within(last * self.dimension.., place * self.dimension);
            self.places.insert(self.keys[last], place);
        }
        self.keys.swap_remove(place);
        self.norms.swap_remove(place);
        self.rows.truncate(last * self.dimension);
        true
    }

    /// Finds the `k` nearest vectors to a query `[d]`, nearest first, ties by key; items that `passes`
    /// refuses are left out.
    ///
    /// It uses all processors where there is enough to do, and takes no lock for it.
    pub(crate) fn nearest(
        &self,
        kind: Distance,
        query: &[f32],
        k: usize,
        passes: impl Fn(RowKey) -> bool + Sync,
    ) -> Vec<Near> {
        if k == 0 || self.keys.is_empty() {
            return Vec::new();
        }
        let mut coarse = vec![0.0_f32; self.keys.len()];
        if self.rows.len() > NUMBERS_ALONE {
            // The threads are of no pool that lends them to other work while it waits: the caller may hold a
            // lock that such work needs.
            let parts = std::thread::available_parallelism().map_or(1, usize::from);
            let rows_per_part = self.keys.len().div_ceil(parts);
            std::thread::scope(|scope| {
                for (part, out) in coarse.chunks_mut(rows_per_part).enumerate() {
                    scope.spawn(move || self.measure(kind, query, part * rows_per_part, out));
                }
            });
        } else {
            self.measure(kind, query, 0, &mut coarse);
        }
        let mut values: Vec<(f32, usize)> = coarse
            .iter()
            .enumerate()
            .filter(|&(place, _)| passes(self.keys[place]))
            .map(|(place, &value)| (value, place))
            .collect();
        if values.len() > k {
            let (_, &mut (kth, _), _) = values.select_nth_unstable_by(k - 1, |a, b| a.0.total_cmp(&b.0));
            // The true kth distance is at most `kth` plus its error. A nearer vector has a coarse value that
            // is larger than its own distance by at most that error again.
            let border = f64::from(kth) + 2.0 * self.coarse_error(kind, query, kth);
            values.retain(|&(value, _)| f64::from(value) <= border);
        }
        let mut near: Vec<Near> = values
            .into_iter()
            .map(|(_, place)| (distance(kind, query, self.row(place)), self.keys[place]))
            .collect();
        keep_nearest(&mut near, k);
        near
    }

    fn row(&self, place: usize) -> &[f32] {
        &self.rows[place * self.dimension..(place + 1) * self.dimension]
    }

    /// Measures distances in `f32` of the rows from `start` on.
    fn measure(&self, kind: Distance, query: &[f32], start: usize, out: &mut [f32]) {
        let end = start + out.len();
        let rows = &self.rows[start * self.dimension..end * self.dimension];
        match kind {
            Distance::L2 => squared_differences(query, rows, out),
            Distance::Dot => {
                products(query, rows, out);
                for value in out {
                    *value = -*value;
                }
            }
            Distance::Cosine => {
                let length = rehang_core::norm(query) as f32;
                products(query, rows, out);
                for (value, &norm) in out.iter_mut().zip(&self.norms[start..end]) {
                    let lengths = length * norm;
                    *value = if lengths > 0.0 { 1.0 - *value / lengths } else { 1.0 };
                }
            }
        }
    }

    /// Largest difference between a coarse value near `kth` and the distance, generously.
    ///
    /// A sum of `d` products in `f32` is off by at most `d·2⁻²⁴·Σ|qᵢgᵢ| ≤ d·2⁻²⁴·‖q‖·‖g‖`; lanes only make it
    /// smaller.
    fn coarse_error(&self, kind: Distance, query: &[f32], kth: f32) -> f64 {
        let unit = (self.dimension as f64 + 8.0) * f64::from(f32::EPSILON);
        match kind {
            Distance::L2 => unit * f64::from(kth.abs()),
            Distance::Cosine => unit * 2.0,
            Distance::Dot => {
                let longest = self.norms.iter().copied().fold(0.0_f32, f32::max);
                unit * rehang_core::norm(query) * f64::from(longest)
            }
        }
    }
}

/// Numbers that one thread compares alone, in about 2 ms; starting others costs a tenth of that.
const NUMBERS_ALONE: usize = 1 << 22;

/// Number of sums that run side by side, so that one addition need not wait for the one before.
const LANES: usize = 16;

rehang_core::vectorised! {
    /// `Σ (qᵢ − gᵢ)²` of every row.
    fn squared_differences(query: &[f32], rows: &[f32], out: &mut [f32]) {
        sums_of_rows(query, rows, out, |a, b| (a - b) * (a - b));
    }

    /// `Σ qᵢ·gᵢ` of every row.
    fn products(query: &[f32], rows: &[f32], out: &mut [f32]) {
        sums_of_rows(query, rows, out, |a, b| a * b);
    }
}

/// Adds up a term over the coordinates of every row, in lanes that the compiler puts into registers.
#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version above")]
fn sums_of_rows(query: &[f32], rows: &[f32], out: &mut [f32], term: impl Fn(f32, f32) -> f32) {
    let (query_lanes, query_rest) = query.as_chunks::<LANES>();
    for (row, out) in rows.chunks_exact(query.len()).zip(out) {
        let mut sums = [0.0_f32; LANES];
        let (row_lanes, row_rest) = row.as_chunks::<LANES>();
        for (left, right) in query_lanes.iter().zip(row_lanes) {
            for lane in 0..LANES {
                sums[lane] += term(left[lane], right[lane]);
            }
        }
        let mut sum = 0.0_f32;
        for (&left, &right) in query_rest.iter().zip(row_rest) {
            sum += term(left, right);
        }
        *out = sum + sums.iter().sum::<f32>();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Finds the nearest by a loop that one can believe by looking.
    fn slow(flat: &Flat, kind: Distance, query: &[f32], k: usize) -> Vec<Near> {
        let mut all: Vec<Near> =
            flat.iter().map(|(key, vector)| (distance(kind, query, vector), key)).collect();
        all.sort_by(by_distance);
        all.truncate(k);
        all
    }

    fn random(rng: &mut rand_chacha::ChaCha8Rng, dimension: usize, integers: bool) -> Vec<f32> {
        (0..dimension)
            .map(|_| {
                let value: f32 = rng.random_range(-2.0..2.0);
                if integers { value.round() } else { value }
            })
            .collect()
    }

    #[test]
    fn one_vector_is_its_own_neighbour() {
        let mut flat = Flat::new(2);
        flat.insert(7, &[3.0, 4.0]);
        assert_eq!(flat.nearest(Distance::L2, &[0.0, 0.0], 3, |_| true), [(25.0, 7)]);
        assert_eq!(flat.nearest(Distance::Dot, &[1.0, 1.0], 3, |_| true), [(-7.0, 7)]);
        assert_eq!(flat.nearest(Distance::Cosine, &[0.0, 0.0], 3, |_| true), [(1.0, 7)]);
        assert!(flat.nearest(Distance::L2, &[0.0, 0.0], 0, |_| true).is_empty());
    }

    #[test]
    fn the_answer_is_that_of_a_slow_loop_ties_too() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        for (count, dimension, integers) in
            [(3, 1, true), (400, 3, true), (700, 37, false), (9000, 40, false), (9000, 500, false)]
        {
            let mut flat = Flat::new(dimension);
            for key in 0..count {
                flat.insert(key * 3 % 8191 + key, &random(&mut rng, dimension, integers));
            }
            for kind in Distance::ALL {
                for k in [1, 10, 2000] {
                    let query = random(&mut rng, dimension, integers);
                    assert_eq!(flat.nearest(kind, &query, k, |_| true), slow(&flat, kind, &query, k));
                }
            }
        }
    }

    #[test]
    fn removing_and_replacing_keep_the_rest() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
        let mut flat = Flat::new(3);
        let mut twin: BTreeMap<RowKey, Vec<f32>> = BTreeMap::new();
        for _ in 0..2000 {
            let key = rng.random_range(0..50);
            if rng.random_bool(0.4) {
                assert_eq!(flat.remove(key), twin.remove(&key).is_some());
            } else {
                let vector = random(&mut rng, 3, false);
                flat.insert(key, &vector);
                twin.insert(key, vector);
            }
            assert_eq!(flat.len(), twin.len());
        }
        for key in 0..50 {
            assert_eq!(flat.get(key), twin.get(&key).map(Vec::as_slice));
        }
    }

    #[test]
    fn refused_items_are_left_out() {
        let mut flat = Flat::new(1);
        for key in 0..10 {
            flat.insert(key, &[key as f32]);
        }
        let near = flat.nearest(Distance::L2, &[0.0], 2, |key| key % 3 == 2);
        assert_eq!(near, [(4.0, 2), (25.0, 5)]);
    }
}
