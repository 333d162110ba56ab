//! A small memory of the pairs: enough to notice that a gallery holds items that an adapter was fitted on.
//!
//! The memory is a bottom-k sketch. Every row has a 64-bit hash, and the k smallest of all different hashes
//! are kept. For a row whose hash is not above the largest kept one, the sketch knows whether the row was
//! among the pairs (except for a chance of k/2⁶⁴). Such rows are a sample of all rows that does not depend on
//! their content. With k or fewer pairs nothing is left out, and every answer is exact.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use serde::ser::{Serialize, Serializer};
use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

use crate::vectors::Matrix;

/// Sketch of the pairs: the smallest hashes of their old vectors.
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_core::adapter::RowSketch;
///
/// let pairs = Matrix::from_fn(100, 3, |row, column| (row * 3 + column) as f32);
/// let sketch = RowSketch::from_rows(&pairs);
/// let gallery = Matrix::from_fn(50, 3, |row, column| (row * 3 + column) as f32 + 240.0);
/// let overlap = sketch.overlap(&gallery);
/// assert_eq!((overlap.rows(), overlap.among_pairs(), overlap.is_exact()), (50, 20, true));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSketch {
    /// Number of different rows that are not zero.
    rows: usize,
    /// Kept hashes, ascending.
    hashes: Vec<u64>,
}

impl RowSketch {
    /// Number of hashes that are kept. With a thousandth of a large gallery among the pairs, four of them
    /// still show it.
    pub const SIZE: usize = 4096;

    /// Makes the sketch of rows `[n, d]`. Zero rows are left out, since different items may well share one.
    pub fn from_rows(rows: &Matrix) -> Self {
        let hashes: BTreeSet<u64> = row_hashes(rows).collect();
        Self { rows: hashes.len(), hashes: hashes.into_iter().take(Self::SIZE).collect() }
    }

    /// Number of different rows that are not zero.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Kept hashes, ascending.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Builds a sketch from its parts. `None` where they cannot be a sketch's: hashes that do not ascend, or
    /// more hashes than rows.
    pub fn from_parts(rows: usize, hashes: Vec<u64>) -> Option<Self> {
        let ascends = hashes.windows(2).all(|pair| pair[0] < pair[1]);
        (ascends && hashes.len() <= rows && (hashes.is_empty() == (rows == 0)))
            .then_some(Self { rows, hashes })
    }

    /// Whether the hash of every row was kept.
    pub fn is_complete(&self) -> bool {
        self.hashes.len() == self.rows
    }

    /// Counts the rows `[n, d]` that are among the pairs, bit for bit.
    pub fn overlap(&self, rows: &Matrix) -> RowOverlap {
        let mut overlap = RowOverlap::new(self);
        overlap.add(self, rows.as_slice(), rows.columns());
        overlap
    }
}

/// Count of a gallery's rows that are among the pairs, batch by batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowOverlap {
    rows: usize,
    /// Number of rows whose membership the sketch knows, and the number of members among these.
    known_rows: usize,
    members: usize,
    is_exact: bool,
}

impl RowOverlap {
    /// Begins a count.
    pub fn new(sketch: &RowSketch) -> Self {
        Self { rows: 0, known_rows: 0, members: 0, is_exact: sketch.is_complete() }
    }

    /// Counts more rows of `width` coordinates, row after row, against the same sketch.
    pub fn add(&mut self, sketch: &RowSketch, rows: &[f32], width: usize) {
        for row in rows.chunks_exact(width.max(1)) {
            self.rows += 1;
            let Some(hash) = hash(row) else { continue };
            if sketch.is_complete() || sketch.hashes.last().is_some_and(|&largest| hash <= largest) {
                self.known_rows += 1;
                self.members += usize::from(sketch.hashes.binary_search(&hash).is_ok());
            }
        }
    }

    /// Number of rows that were counted.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of counted rows that are among the pairs. Where it [is not exact](Self::is_exact), it is the
    /// share among the rows whose membership is known, times all rows.
    pub fn among_pairs(&self) -> usize {
        if self.is_exact || self.members == 0 {
            return self.members;
        }
        let estimate = self.members as f64 / self.known_rows as f64 * self.rows as f64;
        (estimate.round() as usize).max(self.members)
    }

    /// Whether the number is exact and no estimate.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }
}

/// Says the count in words, without a full stop.
impl fmt::Display for RowOverlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.is_exact { "" } else { "about " };
        let (among, rows) = (self.among_pairs(), self.rows);
        write!(f, "{about}{among} of {rows} old vectors are among the pairs that the adapter was fitted on")
    }
}

/// Writes `{rows, of, exact}`: rows among the pairs, rows that were counted, and whether the first number is
/// exact.
impl Serialize for RowOverlap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({ "rows": self.among_pairs(), "of": self.rows, "exact": self.is_exact }).serialize(serializer)
    }
}

/// Counts the rows of `evaluation` that have the very numbers of a row of `pairs`: items that an adapter may
/// have been fitted on.
///
/// Zero vectors are not counted, since different items may well share one. Rows are compared by a hash of 64
/// bits. A [`RowSketch`] answers the same question from a sample.
pub fn overlap(pairs: &Matrix, evaluation: &Matrix) -> usize {
    if pairs.columns() != evaluation.columns() {
        return 0;
    }
    let pair_hashes: HashSet<u64> = row_hashes(pairs).collect();
    row_hashes(evaluation).filter(|row| pair_hashes.contains(row)).count()
}

/// Counts the rows that have the very same numbers as another row of the same matrix: items that the model
/// cannot tell apart.
///
/// Zero vectors are not counted, as by [`overlap`].
pub fn lookalikes(vectors: &Matrix) -> usize {
    let mut rows: HashMap<u64, usize> = HashMap::new();
    for row in row_hashes(vectors) {
        *rows.entry(row).or_default() += 1;
    }
    rows.into_values().filter(|&count| count > 1).sum()
}

/// Hashes of the rows of a matrix, zero rows left out.
fn row_hashes(matrix: &Matrix) -> impl Iterator<Item = u64> {
    (0..matrix.rows()).filter_map(|row| hash(matrix.row(row)))
}

/// XXH3 of a row's little-endian bytes; `None` for a zero row.
fn hash(row: &[f32]) -> Option<u64> {
    if row.iter().all(|&value| value == 0.0) {
        return None;
    }
    let mut hasher = Xxh3::new();
    for value in row {
        hasher.update(&value.to_le_bytes());
    }
    Some(hasher.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(range: std::ops::Range<usize>) -> Matrix {
        Matrix::from_fn(range.len(), 5, |row, column| (range.start + row) as f32 + column as f32 / 8.0)
    }

    #[test]
    fn a_small_set_is_known_exactly() {
        let sketch = RowSketch::from_rows(&numbered(0..500));
        let overlap = sketch.overlap(&numbered(400..900));
        assert_eq!((overlap.rows(), overlap.among_pairs(), overlap.is_exact()), (500, 100, true));
        assert_eq!(sketch.overlap(&numbered(1000..1400)).among_pairs(), 0);
    }

    #[test]
    fn a_large_set_is_estimated_and_a_gallery_without_pairs_is_clean() {
        let sketch = RowSketch::from_rows(&numbered(0..40_000));
        assert_eq!((sketch.rows(), sketch.hashes().len()), (40_000, RowSketch::SIZE));
        assert_eq!(sketch, RowSketch::from_rows(&numbered(0..40_000)));
        let overlap = sketch.overlap(&numbered(30_000..60_000));
        assert!(!overlap.is_exact());
        // About 3,000 rows are known; the tolerance is four standard deviations of a third of them.
        assert!(overlap.among_pairs().abs_diff(10_000) < 1_050, "{}", overlap.among_pairs());
        assert_eq!(sketch.overlap(&numbered(50_000..90_000)).among_pairs(), 0);
        assert_eq!(sketch.overlap(&numbered(0..40_000)).among_pairs(), 40_000);
    }

    #[test]
    fn batches_count_like_the_whole() {
        let (sketch, rows) = (RowSketch::from_rows(&numbered(0..9_000)), numbered(4_000..12_000));
        let mut overlap = RowOverlap::new(&sketch);
        for batch in rows.as_slice().chunks(5 * 700) {
            overlap.add(&sketch, batch, 5);
        }
        assert_eq!(overlap, sketch.overlap(&rows));
    }

    #[test]
    fn zero_rows_and_repeated_rows_say_nothing_of_their_own() {
        let rows = Matrix::new(2, vec![0.0, 0.0, 1.0, 2.0, 1.0, 2.0, 0.0, -0.0]).unwrap();
        let sketch = RowSketch::from_rows(&rows);
        assert_eq!((sketch.rows(), sketch.overlap(&rows).among_pairs()), (1, 2));
        let nothing = RowSketch::from_rows(&Matrix::zeros(3, 2));
        assert_eq!((nothing.rows(), nothing.overlap(&rows).among_pairs()), (0, 0));
    }

    #[test]
    fn parts_that_are_no_sketch_are_refused() {
        assert!(RowSketch::from_parts(2, vec![3, 7]).is_some());
        assert!(RowSketch::from_parts(0, vec![]).is_some());
        for (rows, hashes) in [(2, vec![7, 3]), (2, vec![3, 3]), (1, vec![3, 7]), (5, vec![])] {
            assert!(RowSketch::from_parts(rows, hashes).is_none());
        }
    }
}
