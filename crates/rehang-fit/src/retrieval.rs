//! How well new queries find their way in a gallery that is partly adapted: what choosing among maps goes by.
//!
//! This is a small measure on held-out pairs, at five fractions. Curves for reports are `rehang`'s own exact ones.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rehang::{Distance, Matrix, Space};

use crate::linear_algebra::column_means;
use crate::outputs::multiply_transposed;

/// Fractions of native vectors at which quality is measured. A full gallery is the same for every map.
const FRACTIONS: [f64; 4] = [0.0, 0.25, 0.5, 0.75];

/// Neighbours whose agreement counts where there are no labels.
pub(crate) const AGREEMENT: usize = 10;

/// Quality in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quality {
    /// With every gallery vector adapted.
    pub start: f64,
    /// Mean over a growing part of native vectors, in random order.
    pub area: f64,
}

/// What counts as found.
#[derive(Debug, Clone)]
pub(crate) struct Relevance {
    /// Relevant gallery items of every query, increasing.
    items: Vec<Vec<usize>>,
    /// Whether quality is mean average precision (labels) or agreement of the first ten with the native gallery.
    labelled: bool,
}

impl Relevance {
    /// Items of the same known class are relevant.
    pub(crate) fn by_label(labels: &[i64]) -> Self {
        let items = (0..labels.len())
            .map(|query| {
                let same =
                    |&item: &usize| item != query && labels[item] == labels[query] && labels[query] >= 0;
                (0..labels.len()).filter(same).collect()
            })
            .collect();
        Self { items, labelled: true }
    }

    /// The ten nearest in the fully native gallery are relevant.
    pub(crate) fn by_native(native: &Matrix, space: &Space) -> Self {
        let offset = large_offset(native, space.distance);
        let distances = distances(native, native, space.distance, offset.as_deref());
        let items = (0..native.rows())
            .into_par_iter()
            .map(|query| {
                let mut nearest = ranking(query, |item| distances.row(query)[item], native.rows());
                nearest.truncate(AGREEMENT);
                nearest.sort_unstable();
                nearest
            })
            .collect();
        Self { items, labelled: false }
    }

    /// Whether any query has something to find and something to leave: without both, every ranking is as good as any other.
    pub(crate) fn tells_apart(&self) -> bool {
        let others = self.items.len().saturating_sub(1);
        self.items.iter().any(|relevant| !relevant.is_empty() && relevant.len() < others)
    }

    /// The quality of one query's ranking, in 0..=1; `None` where there is nothing to find.
    fn of(&self, query: usize, ranking: &[usize]) -> Option<f64> {
        let relevant = &self.items[query];
        if relevant.is_empty() {
            return None;
        }
        let is_relevant = |item: &usize| relevant.binary_search(item).is_ok();
        if !self.labelled {
            return Some(
                ranking.iter().take(AGREEMENT).filter(|item| is_relevant(item)).count() as f64
                    / relevant.len() as f64,
            );
        }
        let mut found = 0.0;
        let mut sum = 0.0;
        for (rank, _) in ranking.iter().enumerate().filter(|(_, item)| is_relevant(item)) {
            found += 1.0;
            sum += found / (rank + 1) as f64;
        }
        Some(sum / relevant.len() as f64)
    }
}

/// How many times the squared spread of all vectors the squared length of their mean has to be, for it to be taken out: below
/// it, `f32` keeps five digits of a squared distance.
const OFFSET_RATIO_MIN: f64 = 100.0;

/// Queries whose distances are computed together.
const ROWS: usize = 128;

/// Distances of every query from every item, `[m, n]`.
///
/// L2 does not see an offset that all vectors share, but squared lengths lose digits by it: a large one is taken out first, the
/// `offset` of the native vectors.
fn distances(queries: &Matrix, items: &Matrix, distance: Distance, offset: Option<&[f64]>) -> Matrix {
    match offset {
        None => distances_as_they_are(queries, items, distance),
        Some(offset) => distances_as_they_are(&minus(queries, offset), &minus(items, offset), distance),
    }
}

fn minus(rows: &Matrix, offset: &[f64]) -> Matrix {
    Matrix::from_fn(rows.rows(), rows.columns(), |row, column| {
        (f64::from(rows.row(row)[column]) - offset[column]) as f32
    })
}

/// The mean of vectors whose L2 distances would lose digits by it; none for distances that the origin matters to.
fn large_offset(rows: &Matrix, distance: Distance) -> Option<Vec<f64>> {
    if distance != Distance::L2 {
        return None;
    }
    let mean = column_means(rows);
    let squares = |of: &dyn Fn(f64, usize) -> f64| -> f64 {
        (0..rows.rows())
            .flat_map(|row| rows.row(row).iter().enumerate())
            .map(|(column, &value)| of(f64::from(value), column).powi(2))
            .sum()
    };
    let spread = squares(&|value, column| value - mean[column]);
    let length = rows.rows() as f64 * mean.iter().map(|value| value * value).sum::<f64>();
    (length > OFFSET_RATIO_MIN * spread).then_some(mean)
}

fn distances_as_they_are(queries: &Matrix, items: &Matrix, distance: Distance) -> Matrix {
    let norms = |rows: &Matrix| -> Vec<f32> { rows.norms().iter().map(|&norm| norm as f32).collect() };
    let (query_norms, item_norms) = (norms(queries), norms(items));
    let mut out = Matrix::zeros(queries.rows(), items.rows());
    let (d, n) = (queries.columns(), items.rows());
    out.as_mut_slice().par_chunks_mut((ROWS * n).max(1)).enumerate().for_each(|(block, values)| {
        let rows = values.len() / n;
        let first = block * ROWS;
        multiply_transposed(&queries.as_slice()[first * d..(first + rows) * d], rows, items, values);
        for (row, values) in values.chunks_exact_mut(n).enumerate() {
            let query = query_norms[first + row];
            for (value, &item) in values.iter_mut().zip(&item_norms) {
                *value = match distance {
                    // The query's own length is the same for every item.
                    Distance::L2 => item * item - 2.0 * *value,
                    Distance::Dot => -*value,
                    Distance::Cosine if query > 0.0 && item > 0.0 => 1.0 - *value / (query * item),
                    Distance::Cosine => 1.0,
                };
            }
        }
    });
    out
}

/// All items but the query, nearest first; equal distances by index.
fn ranking(query: usize, distance: impl Fn(usize) -> f32, n: usize) -> Vec<usize> {
    let mut items: Vec<(f32, usize)> =
        (0..n).filter(|&item| item != query).map(|item| (distance(item), item)).collect();
    items.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    items.into_iter().map(|(_, item)| item).collect()
}

/// Quality of the gallery `adapted` for the queries `native`, which are its own items' new vectors (each leaves itself
/// out), while a random part of it becomes native.
pub(crate) fn upgrade(
    native: &Matrix,
    adapted: &Matrix,
    space: &Space,
    relevance: &Relevance,
    seed: u64,
) -> Quality {
    let n = native.rows();
    let offset = large_offset(native, space.distance);
    let from_native = distances(native, native, space.distance, offset.as_deref());
    let from_adapted = distances(native, adapted, space.distance, offset.as_deref());
    let mut order: Vec<usize> = (0..n).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut position = vec![0; n];
    order.into_iter().enumerate().for_each(|(at, item)| position[item] = at);
    let qualities = FRACTIONS.map(|fraction| {
        let done = (fraction * n as f64) as usize;
        mean_quality(relevance, n, |query, item| {
            if position[item] < done { from_native.row(query)[item] } else { from_adapted.row(query)[item] }
        })
    });
    Quality { start: qualities[0], area: qualities.iter().sum::<f64>() / FRACTIONS.len() as f64 }
}

/// Quality of one kind of vectors for its own queries: doing nothing, or the new model alone.
pub(crate) fn own(rows: &Matrix, distance: Distance, relevance: &Relevance) -> f64 {
    let offset = large_offset(rows, distance);
    let distances = distances(rows, rows, distance, offset.as_deref());
    mean_quality(relevance, rows.rows(), |query, item| distances.row(query)[item])
}

fn mean_quality(relevance: &Relevance, n: usize, distance: impl Fn(usize, usize) -> f32 + Sync) -> f64 {
    let values: Vec<Option<f64>> = (0..n)
        .into_par_iter()
        .map(|query| {
            if relevance.items[query].is_empty() {
                return None;
            }
            relevance.of(query, &ranking(query, |item| distance(query, item), n))
        })
        .collect();
    let known: Vec<f64> = values.into_iter().flatten().collect();
    if known.is_empty() { 0.0 } else { 100.0 * known.iter().sum::<f64>() / known.len() as f64 }
}

/// Top-1 in percent: how many new queries have an item of their class as the nearest other one.
#[cfg(test)]
pub(crate) fn first_results(native: &Matrix, adapted: &Matrix, distance: Distance, labels: &[i64]) -> f64 {
    let distances = distances(native, adapted, distance, large_offset(native, distance).as_deref());
    let n = native.rows();
    let right = (0..n)
        .into_par_iter()
        .filter(|&query| labels[ranking(query, |item| distances.row(query)[item], n)[0]] == labels[query])
        .count();
    100.0 * right as f64 / n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::random_matrix;

    fn space(distance: Distance) -> Space {
        Space::new("new", 4, distance, false)
    }

    #[test]
    fn a_perfect_map_agrees_everywhere_and_a_random_one_hardly() {
        let native = random_matrix(120, 4, 1);
        for distance in Distance::ALL {
            let relevance = Relevance::by_native(&native, &space(distance));
            let perfect = upgrade(&native, &native, &space(distance), &relevance, 0);
            assert_eq!((perfect.start, perfect.area), (100.0, 100.0));
            let other = upgrade(&native, &random_matrix(120, 4, 2), &space(distance), &relevance, 0);
            assert!(other.start < 25.0 && other.area > other.start);
        }
    }

    #[test]
    fn l2_does_not_see_an_offset_that_all_vectors_share() {
        let native = random_matrix(120, 4, 1);
        let adapted = Matrix::from_fn(120, 4, |row, column| native.row(row)[column] + (row % 5) as f32 * 0.1);
        // A multiple of what f32 resolves there, so that the vectors themselves lose little.
        let moved = |rows: &Matrix| Matrix::from_fn(120, 4, |row, column| rows.row(row)[column] + 4096.0);
        let labels: Vec<i64> = (0..120).map(|row| row % 7).collect();
        let relevance = Relevance::by_label(&labels);
        let measure = |native: &Matrix, adapted: &Matrix| {
            let quality = upgrade(native, adapted, &space(Distance::L2), &relevance, 0);
            [quality.start, quality.area, own(native, Distance::L2, &relevance)]
        };
        let [here, there] = [measure(&native, &adapted), measure(&moved(&native), &moved(&adapted))];
        for (here, there) in here.into_iter().zip(there) {
            assert!((here - there).abs() < 0.2, "{here} {there}");
        }
    }

    #[test]
    fn average_precision_by_label_is_the_textbook_one() {
        // Positions 0, 1, 3 on a line; items 0 and 2 share a class: the query 0 finds 1 first, then 2.
        let rows = Matrix::new(1, vec![0.0, 1.0, 3.0]).unwrap();
        let relevance = Relevance::by_label(&[5, 6, 5]);
        assert_eq!(own(&rows, Distance::L2, &relevance), 50.0);
        assert!(relevance.tells_apart());
        assert!(!Relevance::by_label(&[-1, -1]).tells_apart(), "nothing to find");
        assert!(!Relevance::by_label(&[3, 3, 3]).tells_apart(), "nothing to leave");
        assert!(!Relevance::by_label(&[1, 2, 3]).tells_apart(), "nothing to find");
    }
}
