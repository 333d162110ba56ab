//! Copies: items that have the source of another one, and so both of its vectors.
//!
//! An item that is asked as a query is left out of its own ranking. Its copies would stand first there, at
//! distance 0 in the old space and in the new one: such a query is answered before any model has told
//! anything apart, and doing nothing looks best of all. A copy of a query's own source is no answer to it,
//! neither a right nor a wrong one.
//!
//! So where items ask for each other, the first item of each source alone is measured, and is in the gallery
//! that is searched. Rankings and curves are then what they are in a gallery without copies. The gallery
//! loses all of its copies and not only those of the query that asks, also where it is a whole gallery of
//! which few items ask: in a forecast the held-out items stand for all others. They would not, if a source
//! counted once among them and as often as it has items in the gallery. Queries of their own are no items,
//! and nothing is left out for them.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

use crate::finding::{Finding, FindingCode};
use crate::squared_distance;
use crate::vectors::Matrix;

/// Lists the items that are no [copies](first_copies) of an earlier one, ascending.
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_core::copies::without_copies;
///
/// let old = Matrix::new(1, vec![1.0, 2.0, 1.0, 1.0])?;
/// let new = Matrix::new(1, vec![5.0, 6.0, 5.0, 7.0])?;
/// // The old model cannot tell the last item from the first, and the new one can.
/// assert_eq!(without_copies(&old, &new, &[]), [0, 1, 3]);
/// // A service may give a source another vector each time.
/// assert_eq!(without_copies(&old, &new, &[8, 9, 8, 8]), [0, 1]);
/// // Where old vectors are unlike, they were not made of the source alone.
/// assert_eq!(without_copies(&old, &new, &[8, 8, 7, 6]), [0, 1, 3]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub fn without_copies(old: &Matrix, new: &Matrix, sources: &[u64]) -> Vec<usize> {
    originals(&first_copies(old, new, sources))
}

/// Lists the items that are no copies, ascending, given the [first item](first_copies) of each.
pub fn originals(first: &[usize]) -> Vec<usize> {
    (0..first.len()).filter(|&item| first[item] == item).collect()
}

/// Finds for every item the first item that it is a copy of; itself where it is none. A copy has both vectors
/// of an earlier item, bit for bit, or [its source](BySource), where `sources` numbers these; it is empty
/// where they are not known.
pub fn first_copies(old: &Matrix, new: &Matrix, sources: &[u64]) -> Vec<usize> {
    let mut first = first_equal_rows(&[old, new]);
    let mut by_source = BySource::default();
    for (item, &source) in sources.iter().enumerate() {
        // The earlier item may be a copy of another one itself.
        let by_vectors = first[first[item]];
        let earlier = by_source.earlier(source, item, |item| old.row(item));
        first[item] = earlier.map_or(by_vectors, |earlier| first[earlier].min(by_vectors));
    }
    first
}

/// Items that were met, by the number of their source.
///
/// An item with the source of an earlier one is a copy of it where their old vectors are alike too: a table
/// of vectors, or a command that reads the payload, makes unlike vectors of one source.
#[derive(Debug, Default)]
pub struct BySource {
    items: HashMap<u64, Vec<usize>>,
}

impl BySource {
    /// Largest number of items with one source and unlike vectors that are remembered.
    const UNLIKE_MAX: usize = 8;
    /// Largest squared distance of two vectors that are alike, as a part of the squared length.
    const APART_MAX: f64 = 0.01;

    /// Finds the earlier item that an item is a copy of. An item that is none is remembered. `old_of` gives the
    /// old vectors of this item and of all earlier ones.
    pub fn earlier<'a>(
        &mut self,
        source: u64,
        item: usize,
        old_of: impl Fn(usize) -> &'a [f32],
    ) -> Option<usize> {
        let items = self.items.entry(source).or_default();
        let old = old_of(item);
        let squared_length = old.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        let is_alike =
            |&&earlier: &&usize| squared_distance(old, old_of(earlier)) <= Self::APART_MAX * squared_length;
        let earlier = items.iter().find(is_alike).copied();
        if earlier.is_none() && items.len() < Self::UNLIKE_MAX {
            items.push(item);
        }
        earlier
    }
}

/// Finds for every row the first row that has the same bits in each of `matrices`, which have as many rows.
/// Rows are compared by a hash of 64 bits.
pub fn first_equal_rows(matrices: &[&Matrix]) -> Vec<usize> {
    let rows = matrices.first().map_or(0, |matrix| matrix.rows());
    let mut first_of_hash = HashMap::new();
    let first = |row: usize| {
        let mut hasher = Xxh3::new();
        for value in matrices.iter().flat_map(|matrix| matrix.row(row)) {
            hasher.update(&value.to_le_bytes());
        }
        *first_of_hash.entry(hasher.digest()).or_insert(row)
    };
    (0..rows).map(first).collect()
}

/// Says how many of some items, which are `what`, are copies and left out; `None` where none is.
pub fn finding(copies: usize, items: usize, what: &str) -> Option<Finding> {
    let have = if copies == 1 { "has" } else { "have" };
    let observation = format!(
        "{copies} of {items} {what} {have} the source of another one; a query is not answered by its own copies."
    );
    let finding = Finding::note(FindingCode::EqualSources, observation)
        .may_mean("Where items ask for each other, the first of each source stands for all of them.")
        .evidence(&[("copies", copies as f64), ("items", items as f64)]);
    (copies > 0).then_some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_copy_is_one_of_the_first() {
        let column = |values: [f32; 4]| Matrix::new(1, values.to_vec()).unwrap();
        let (old, new) = (column([1.0, 1.0, 1.01, 2.0]), column([4.0, 4.0, 5.0, 6.0]));
        assert_eq!(first_equal_rows(&[&old]), [0, 0, 2, 3]);
        assert_eq!(without_copies(&old, &new, &[]), [0, 2, 3]);
        // The second item is a copy by its vectors, and the third one has its source; so has the last one,
        // whose old vector is another.
        assert_eq!(first_copies(&old, &new, &[1, 2, 2, 2]), [0, 0, 0, 3]);
    }

    #[test]
    fn copies_are_said_where_there_are_some() {
        assert_eq!(finding(0, 9, "pairs"), None);
        let sentence = |copies| finding(copies, 12, "pairs").unwrap().seen;
        assert!(sentence(2).starts_with("2 of 12 pairs have the source of another one; a query"));
        assert!(sentence(1).starts_with("1 of 12 pairs has the source"));
    }
}
