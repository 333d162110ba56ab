//! k-means, for pseudo-classes where there are no labels and for orders that cover a gallery.

use rand::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::curve::{Panels, QueryTiles, distances};
use crate::error::{Error, ErrorKind, Result};
use crate::processor::Processor;
use crate::space::Distance;
use crate::statistics::below;
use crate::vectors::Matrix;

/// Items whose distances to the centres are computed together.
const BLOCK: usize = 64;
/// Centres are found on at most this many items a cluster.
const SAMPLE_PER_CLUSTER: usize = 64;

/// A partition of items into clusters.
#[derive(Debug, Clone, PartialEq)]
pub struct Clusters {
    /// Centre of each cluster, `[k, d]`.
    pub centres: Matrix,
    /// The cluster of each item, `[n]`.
    pub of_item: Vec<u32>,
}

/// k-means by Lloyd's algorithm in squared Euclidean distance: `[n, d] → k` clusters.
///
/// Centres are found on an evenly spaced sample of at most 64 items a cluster. They start at `count` items drawn without replacement and
/// move at most `rounds` times to the mean of their items, until no item of the sample changes its cluster. Then every item goes to its
/// nearest centre (equal distances: the lower number). A cluster without items keeps its centre. `count` is lowered to the number of items.
/// Same input and seed, same bits, whatever the number of threads.
///
/// # Errors
///
/// [`ErrorKind::Empty`] without items, [`ErrorKind::InvalidOption`] for 0 clusters, [`ErrorKind::NotFinite`].
///
/// ```
/// use rehang::{Matrix, k_means};
///
/// let vectors = Matrix::new(1, vec![0.0, 0.1, 9.0, 9.1])?;
/// let clusters = k_means(&vectors, 2, 5, 1)?;
/// assert_eq!(clusters.of_item[0], clusters.of_item[1]);
/// assert_ne!(clusters.of_item[0], clusters.of_item[2]);
/// # Ok::<(), rehang::Error>(())
/// ```
pub fn k_means(vectors: &Matrix, count: usize, rounds: usize, seed: u64) -> Result<Clusters> {
    weighted_k_means(vectors, &vec![1.0; vectors.rows()], count, rounds, seed)
}

/// As [`k_means`], with centres at the weighted means of their items: where weights are large, centres lie denser.
///
/// Weights must be positive; `[n]`.
pub(crate) fn weighted_k_means(
    vectors: &Matrix,
    weights: &[f64],
    count: usize,
    rounds: usize,
    seed: u64,
) -> Result<Clusters> {
    let items = vectors.rows();
    if items == 0 {
        return Err(ErrorKind::Empty { what: "the set of vectors to cluster".into() }.into());
    }
    if count == 0 {
        return Err(Error::option("clusters", count, "1 or more"));
    }
    vectors.check_finite("vectors to cluster")?;
    let count = count.min(items);
    let sample_size = items.min(count.saturating_mul(SAMPLE_PER_CLUSTER));
    let sample: Vec<usize> =
        (0..sample_size).map(|i| (i as u128 * items as u128 / sample_size as u128) as usize).collect();

    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut drawn = sample.clone();
    for place in 0..count {
        let other = place + below(&mut random, sample_size - place);
        drawn.swap(place, other);
    }
    let mut centres = vectors.select(&drawn[..count]);
    let mut settled = Vec::new();
    for _ in 0..rounds {
        let of_sample = nearest_centres(vectors, &sample, &centres);
        if of_sample == settled {
            break;
        }
        let members = sample.iter().zip(&of_sample);
        move_centres(
            vectors,
            members.map(|(&item, &cluster)| (item, cluster as usize, weights[item])),
            &mut centres,
        );
        settled = of_sample;
    }
    let all: Vec<usize> = (0..items).collect();
    let of_item = nearest_centres(vectors, &all, &centres);
    Ok(Clusters { centres, of_item })
}

/// The mean of the rows of every class, `[count, d]`, summed in `f64` in the order of the rows.
///
/// `classes` names the class of every row, `[n]`, each below `count`; a row of `None` has no part. The mean of a class
/// without rows is 0.
pub fn class_means(vectors: &Matrix, classes: &[Option<usize>], count: usize) -> Matrix {
    let mut means = Matrix::zeros(count, vectors.columns());
    let known = classes.iter().enumerate().filter_map(|(row, class)| Some((row, (*class)?, 1.0)));
    move_centres(vectors, known, &mut means);
    means
}

/// Puts every centre on the weighted mean of its members, given as (row, centre, weight); one without members stays.
fn move_centres(vectors: &Matrix, members: impl Iterator<Item = (usize, usize, f64)>, centres: &mut Matrix) {
    let width = vectors.columns();
    let mut sums = vec![0.0; centres.rows() * width];
    let mut sizes = vec![0.0; centres.rows()];
    for (row, centre, weight) in members {
        sizes[centre] += weight;
        for (sum, &value) in sums[centre * width..].iter_mut().zip(vectors.row(row)) {
            *sum += weight * f64::from(value);
        }
    }
    for (centre, &size) in sizes.iter().enumerate().filter(|(_, size)| **size > 0.0) {
        for (value, sum) in centres.row_mut(centre).iter_mut().zip(&sums[centre * width..]) {
            *value = (sum / size) as f32;
        }
    }
}

/// The nearest centre of each named item.
fn nearest_centres(vectors: &Matrix, items: &[usize], centres: &Matrix) -> Vec<u32> {
    let all: Vec<usize> = (0..centres.rows()).collect();
    let panels = Panels::new(centres, &all);
    let processor = Processor::detect();
    let blocks: Vec<Vec<u32>> = items
        .par_chunks(BLOCK)
        .map_init(
            || (QueryTiles::default(), vec![0.0; BLOCK * centres.rows()]),
            |(tiles, out), items| {
                tiles.fill(vectors, items);
                let out = &mut out[..items.len() * centres.rows()];
                distances(processor, tiles, &panels, Distance::L2, out);
                let nearest = |line: &[f64]| {
                    let first = (f64::INFINITY, 0);
                    let step = |best: (f64, u32), (place, &value): (usize, &f64)| {
                        if value < best.0 { (value, place as u32) } else { best }
                    };
                    line.iter().enumerate().fold(first, step).1
                };
                out.chunks(centres.rows()).map(nearest).collect()
            },
        )
        .collect();
    blocks.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_found_and_threads_do_not_matter() {
        let vectors = Matrix::from_fn(300, 2, |row, column| {
            let offset = (row * 37 + column * 11) % 10;
            (row % 3) as f32 * 100.0 + offset as f32
        });
        // Lloyd's algorithm finds the blobs from centres that lie in different ones, as the first ones do with this seed.
        let run = || k_means(&vectors, 3, 20, 1).unwrap();
        let clusters = run();
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(run);
        assert_eq!(clusters, alone);
        for cluster in 0..3 {
            let members: Vec<usize> = (0..300).filter(|&item| clusters.of_item[item] == cluster).collect();
            assert_eq!(members.len(), 100, "cluster {cluster}");
            assert!(members.iter().all(|item| item % 3 == members[0] % 3), "cluster {cluster}");
        }
        // Items of one cluster are nearer to their centre than to any other.
        for item in 0..300 {
            let distance = |centre: usize| -> f32 {
                clusters.centres.row(centre).iter().zip(vectors.row(item)).map(|(a, b)| (a - b).powi(2)).sum()
            };
            let own = distance(clusters.of_item[item] as usize);
            assert!((0..3).all(|centre| own <= distance(centre)));
        }
    }

    #[test]
    fn equal_vectors_and_more_clusters_than_items_are_no_problem() {
        let vectors = Matrix::zeros(3, 2);
        assert_eq!(k_means(&vectors, 9, 4, 0).unwrap().of_item, [0, 0, 0]);
        assert!(k_means(&Matrix::default(), 2, 4, 0).is_err());
    }
}
