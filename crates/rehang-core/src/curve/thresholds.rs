//! The distances of one query's right answers, sorted, and a fast way to place every other distance among
//! them.

use super::registers::{Eight, LANES};

/// Mark of a table entry whose bucket holds more than one threshold.
const SEVERAL: u32 = 1 << 31;

/// Sorted keys (distance, gallery index), and a table from quantised distance to position.
///
/// The table is monotone: thresholds in lower buckets are below a distance, those in higher buckets above it.
/// So only the distance's own bucket is compared. With eight buckets a threshold, most buckets hold none or
/// one, and the place is found without a jump that depends on the data.
#[derive(Default)]
pub(crate) struct Thresholds {
    /// Ascending distances of the thresholds, and infinity as the last one.
    keys: Vec<f64>,
    /// Gallery index of each threshold, which decides between equal distances.
    items: Vec<u32>,
    /// First threshold of each bucket, marked with [`SEVERAL`]; the last two entries end it.
    table: Vec<u32>,
    low: f64,
    scale: f64,
    limit: f64,
}

impl Thresholds {
    /// Number of thresholds.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Replaces the content by keys that are sorted by (distance, gallery index).
    pub(crate) fn build(&mut self, sorted: impl ExactSizeIterator<Item = (f64, u32)>) {
        self.keys.clear();
        self.items.clear();
        for (key, item) in sorted {
            self.keys.push(key);
            self.items.push(item);
        }
        let buckets = (8 * self.keys.len()).next_power_of_two().clamp(64, 1 << 14);
        let (low, high) = (self.keys[0], self.keys[self.keys.len() - 1]);
        let scale = (buckets - 1) as f64 / (high - low);
        // Equal or nearly equal thresholds cannot be quantised, so everything goes to bucket 0, where it is
        // searched.
        (self.low, self.scale) = (low, if scale.is_finite() { scale } else { 0.0 });
        self.limit = buckets as f64;
        self.table.clear();
        self.table.resize(buckets + 2, 0);
        for &key in &self.keys {
            let [bucket, ..] = self.buckets::<[f64; LANES]>(&[key; LANES]);
            self.table[bucket as usize] += 1;
        }
        let mut start = 0;
        for entry in &mut self.table {
            let held = *entry;
            *entry = start | if held > 1 { SEVERAL } else { 0 };
            start += held;
        }
        self.keys.push(f64::INFINITY);
    }

    /// Buckets of eight distances.
    #[inline(always)]
    fn buckets<E: Eight>(&self, distances: &[f64; LANES]) -> [u32; LANES] {
        let scaled = E::load(distances).sub(E::splat(self.low)).mul(E::splat(self.scale));
        scaled.max(E::splat(0.0)).min(E::splat(self.limit)).truncate()
    }

    /// Writes, for each distance, the number of thresholds below its key (distance, gallery index). A
    /// threshold with the same key is not below.
    #[inline(always)]
    pub(crate) fn place<E: Eight>(&self, distances: &[f64], items: &[u32], places: &mut [u32]) {
        let (eights, remaining) = distances.as_chunks();
        let eights_end = eights.len() * LANES;
        for ((distances, items), places) in
            eights.iter().zip(items.chunks_exact(LANES)).zip(places.chunks_exact_mut(LANES))
        {
            self.place_eight::<E>(distances, items, places);
        }
        if !remaining.is_empty() {
            let mut last = [0.0; LANES];
            last[..remaining.len()].copy_from_slice(remaining);
            self.place_eight::<E>(&last, &items[eights_end..], &mut places[eights_end..]);
        }
    }

    /// [`Self::place`] in plain code, for callers that spend their time elsewhere.
    pub(crate) fn place_plain(&self, distances: &[f64], items: &[u32], places: &mut [u32]) {
        self.place::<[f64; LANES]>(distances, items, places);
    }

    #[inline(always)]
    fn place_eight<E: Eight>(&self, distances: &[f64; LANES], items: &[u32], places: &mut [u32]) {
        let buckets = self.buckets::<E>(distances);
        for (((place, &distance), &item), &bucket) in
            places.iter_mut().zip(distances).zip(items).zip(&buckets)
        {
            let entry = self.table[bucket as usize];
            let start = entry & !SEVERAL;
            let key = self.keys[start as usize];
            *place = if entry & SEVERAL == 0 && key != distance {
                start + u32::from(key < distance)
            } else {
                self.search(bucket, distance, item)
            };
        }
    }

    /// Place of a distance among several thresholds of one bucket, or beside an equal one.
    #[cold]
    #[inline(never)]
    fn search(&self, bucket: u32, distance: f64, item: u32) -> u32 {
        let start = (self.table[bucket as usize] & !SEVERAL) as usize;
        let end = (self.table[bucket as usize + 1] & !SEVERAL) as usize;
        let (keys, items) = (&self.keys[start..end], &self.items[start..end]);
        let nearer = keys.partition_point(|&key| key < distance);
        let equal = keys[nearer..].partition_point(|&key| key == distance);
        (start + nearer + items[nearer..nearer + equal].partition_point(|&other| other < item)) as u32
    }
}
