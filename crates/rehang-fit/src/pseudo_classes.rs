//! Pseudo-classes for pairs without labels: k-means clusters of the new vectors.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rehang::{Error, ErrorKind, Head, HeadKind, Labels, Matrix, Progress, Result};

use crate::head_fit::class_numbers;
use crate::linear_algebra::BLOCK_ROWS;
use crate::outputs::multiply_transposed;

/// Items a cluster that centres are learned from at most; more make centres no better and the fit slower.
const SAMPLE_PER_CLUSTER: usize = 256;

/// How clusters are made.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `clusters` | n / 30 within 2 and 256 | how many pseudo-classes | 1 ..= n |
/// | `iterations_max` | 50 | rounds of Lloyd's algorithm | ≥ 1 |
/// | `seed` | 0 | the first centres | – |
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterParameters {
    /// How many clusters; `None` makes one for every 30 items, at least 2 and at most 256.
    pub clusters: Option<usize>,
    /// The most rounds; `None` means 50.
    pub iterations_max: Option<usize>,
    /// Draws the sample and the first centres.
    pub seed: u64,
}

/// Clusters of a set of vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Clusters {
    /// The cluster of every item, `[n]`, as labels `0..k`. A cluster may be empty where vectors are equal.
    pub labels: Labels,
    /// The centre of every cluster, `[k, d]`.
    pub centres: Matrix,
}

/// Clusters vectors `[n, d]` by k-means: first centres by k-means++ (Arthur and Vassilvitskii 2007), then Lloyd's
/// rounds until no item changes its cluster.
///
/// Centres are learned on at most 256 items a cluster (a seeded sample), then every item goes to its nearest centre;
/// between centres equally near, to the first. The distance is the squared Euclidean one: on normalised vectors it
/// orders as the cosine does. A centre that loses all its items stays where it is. With more clusters than different
/// vectors some clusters are empty. The result is the same for any number of threads.
///
/// # Errors
///
/// [`rehang::ErrorKind::InvalidOption`] for no cluster or more clusters than items,
/// [`rehang::ErrorKind::Cancelled`].
pub fn k_means(vectors: &Matrix, parameters: &ClusterParameters, progress: &Progress) -> Result<Clusters> {
    let n = vectors.rows();
    let k = parameters.clusters.unwrap_or_else(|| (n / 30).clamp(2, 256).min(n));
    if k == 0 || k > n {
        return Err(Error::option("clusters", k, format!("a number from 1 to {n}")));
    }
    let mut random = ChaCha8Rng::seed_from_u64(parameters.seed);
    let mut order: Vec<usize> = (0..n).collect();
    order.shuffle(&mut random);
    order.truncate(k.saturating_mul(SAMPLE_PER_CLUSTER));
    order.sort_unstable();
    let sample = vectors.select(&order);

    let rounds = parameters.iterations_max.unwrap_or(50);
    progress.begin("finding pseudo-classes", "rounds", rounds as u64);
    let mut centres = first_centres(&sample, k, &mut random);
    let mut labels: Vec<usize> = Vec::new();
    for _ in 0..rounds {
        progress.check()?;
        let next = nearest(&sample, &centres);
        progress.advance(1);
        if next == labels {
            break;
        }
        labels = next;
        move_centres(&sample, &labels, &mut centres);
    }
    let labels = nearest(vectors, &centres).into_iter().map(|label| label as i64).collect();
    Ok(Clusters { labels, centres })
}

/// A head from class means: `logit_c(v) = −‖v − mean_c‖² / variance` but for what is the same for every class, so
/// weight `2·mean_c/variance` and bias `−‖mean_c‖²/variance`, the variance being that of vectors within their class.
///
/// It needs no fitting, works for clusters as for classes, and is what σ² is learned with where a model ships without
/// a head. Negative labels are left out. Where vectors do not vary within classes, distances are taken as they are.
///
/// # Errors
///
/// [`rehang::ErrorKind::CountMismatch`] where there is not one label a vector, [`rehang::ErrorKind::MissingInput`]
/// where no label is known.
pub fn centroid_head(vectors: &Matrix, labels: &[i64]) -> Result<Head> {
    if labels.len() != vectors.rows() {
        return Err(ErrorKind::CountMismatch {
            left: "new vectors".into(),
            left_count: vectors.rows(),
            right: "labels".into(),
            right_count: labels.len(),
        }
        .into());
    }
    let (numbers, known) = class_numbers(labels);
    if known.is_empty() {
        return Err(Error::missing("labels that are not negative", "a head of class means"));
    }
    let rows: Vec<usize> = (0..labels.len()).filter(|&row| numbers[row].is_some()).collect();
    let classes: Vec<usize> = rows.iter().filter_map(|&row| numbers[row]).collect();
    let rows = vectors.select(&rows);
    let mut means = Matrix::zeros(known.len(), vectors.columns());
    move_centres(&rows, &classes, &mut means);
    let within =
        (0..rows.rows()).map(|row| squared_distance(rows.row(row), means.row(classes[row]))).sum::<f64>()
            / rows.rows() as f64;
    let factor = if within > 0.0 { 1.0 / within } else { 1.0 };
    let bias = means.norms().iter().map(|norm| (-norm * norm * factor) as f32).collect();
    means.as_mut_slice().iter_mut().for_each(|value| *value = (2.0 * f64::from(*value) * factor) as f32);
    Head::new(means, Some(bias), HeadKind::Softmax)
}

/// k-means++: each next centre is drawn with a probability in proportion to the squared distance to the centres so
/// far.
fn first_centres(sample: &Matrix, k: usize, random: &mut ChaCha8Rng) -> Matrix {
    let mut chosen = vec![random.random_range(0..sample.rows())];
    let mut distance = vec![f64::INFINITY; sample.rows()];
    while chosen.len() < k {
        let last = sample.row(*chosen.last().expect("one centre is chosen at the start"));
        distance.par_iter_mut().enumerate().for_each(|(row, distance)| {
            *distance = distance.min(squared_distance(sample.row(row), last));
        });
        let total: f64 = distance.iter().sum();
        let mut left = random.random::<f64>() * total;
        let drawn = distance.iter().position(|&weight| {
            left -= weight;
            weight > 0.0 && left <= 0.0
        });
        // Every vector is a centre already: the remaining centres repeat one.
        chosen.push(drawn.unwrap_or(chosen[0]));
    }
    sample.select(&chosen)
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(x - y) * f64::from(x - y)).sum()
}

/// The nearest centre of every row, the first one among equals: argmin of `‖c‖² − 2⟨x, c⟩`.
pub(crate) fn nearest(rows: &Matrix, centres: &Matrix) -> Vec<usize> {
    let (d, k) = (rows.columns(), centres.rows());
    let squares: Vec<f32> = centres.norms().iter().map(|norm| (norm * norm) as f32).collect();
    rows.as_slice()
        .par_chunks((BLOCK_ROWS * d).max(1))
        .flat_map_iter(|block| {
            let count = block.len() / d;
            let mut products = vec![0.0_f32; count * k];
            multiply_transposed(block, count, centres, &mut products);
            let squares = &squares;
            (0..count)
                .map(move |row| {
                    let mut best = (f32::INFINITY, 0);
                    for centre in 0..k {
                        let distance = squares[centre] - 2.0 * products[row * k + centre];
                        if distance < best.0 {
                            best = (distance, centre);
                        }
                    }
                    best.1
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Puts every centre on the mean of its items, summed in the order of the items.
fn move_centres(rows: &Matrix, labels: &[usize], centres: &mut Matrix) {
    let (k, d) = (centres.rows(), centres.columns());
    let mut sums = vec![0.0_f64; k * d];
    let mut counts = vec![0_usize; k];
    for (row, &label) in labels.iter().enumerate() {
        counts[label] += 1;
        let sum = &mut sums[label * d..(label + 1) * d];
        sum.iter_mut().zip(rows.row(row)).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    for (label, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        for (column, value) in centres.row_mut(label).iter_mut().enumerate() {
            *value = (sums[label * d + column] / count as f64) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::random_matrix;

    fn blobs() -> Matrix {
        let noise = random_matrix(90, 2, 4);
        Matrix::from_fn(90, 2, |r, c| 0.1 * noise.row(r)[c] + [[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]][r % 3][c])
    }

    #[test]
    fn separated_blobs_are_found() {
        let parameters = ClusterParameters { clusters: Some(3), ..ClusterParameters::default() };
        let clusters = k_means(&blobs(), &parameters, &Progress::default()).unwrap();
        for row in 0..90 {
            assert_eq!(clusters.labels[row], clusters.labels[row % 3]);
        }
        assert_ne!(clusters.labels[0], clusters.labels[1]);
        assert_ne!(clusters.labels[1], clusters.labels[2]);
    }

    #[test]
    fn the_nearest_centre_is_the_one_that_a_slow_search_finds() {
        let (rows, centres) = (random_matrix(2100, 5, 1), random_matrix(9, 5, 2));
        let slow: Vec<usize> = (0..2100)
            .map(|row| {
                let distance = |centre: usize| squared_distance(rows.row(row), centres.row(centre));
                (0..9).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap()
            })
            .collect();
        assert_eq!(nearest(&rows, &centres), slow);
    }

    #[test]
    fn equal_vectors_and_as_many_clusters_as_items_are_accepted() {
        let equal = Matrix::from_fn(10, 3, |_, _| 2.0);
        let parameters = ClusterParameters { clusters: Some(4), ..ClusterParameters::default() };
        let clusters = k_means(&equal, &parameters, &Progress::default()).unwrap();
        assert!(clusters.labels.iter().all(|&label| label == 0));
        let all = ClusterParameters { clusters: Some(90), ..ClusterParameters::default() };
        assert_eq!(k_means(&blobs(), &all, &Progress::default()).unwrap().centres.rows(), 90);
        for clusters in [0, 11] {
            let parameters = ClusterParameters { clusters: Some(clusters), ..ClusterParameters::default() };
            assert!(k_means(&equal, &parameters, &Progress::default()).is_err());
        }
    }

    #[test]
    fn one_item_is_one_cluster() {
        let clusters = k_means(&random_matrix(1, 3, 1), &ClusterParameters::default(), &Progress::default());
        assert_eq!(clusters.unwrap().labels, [0]);
    }
}
