//! k-means: it makes pseudo-classes where there are no labels, and clusters for orders that cover a gallery.

use rand::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::curve::{Panels, QueryTiles, distances};
use crate::error::{Error, ErrorKind, Result};
use crate::processor::Processor;
use crate::progress::Progress;
use crate::space::Distance;
use crate::statistics::below;
use crate::vectors::Matrix;

/// Number of items whose distances to the centres are computed together.
const BLOCK: usize = 64;
/// Most items per cluster on which centres are found.
const SAMPLE_PER_CLUSTER: usize = 64;

/// A partition of items into clusters.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Clusters {
    /// Centre of each cluster, `[k, d]`.
    pub centres: Matrix,
    /// Number of each item's cluster, `[n]`.
    pub of_item: Vec<u32>,
}

/// Clusters items by k-means (Lloyd's algorithm) in squared Euclidean distance: `[n, d] → k` clusters.
///
/// Centres are found on an evenly spaced sample of at most 64 items a cluster. They start at `count` items
/// drawn without replacement. They move at most `rounds` times to the mean of their items, until no item of
/// the sample changes its cluster. Then every item goes to its nearest centre (equal distances: the lower
/// number). A cluster without items keeps its centre. `count` is lowered to the number of items. The same
/// input and seed give the same bits, whatever the number of threads.
///
/// # Errors
///
/// [`ErrorKind::Empty`] without items, [`ErrorKind::InvalidOption`] for 0 clusters, [`ErrorKind::NotFinite`],
/// [`ErrorKind::Cancelled`].
///
/// ```
/// use rehang_core::{Matrix, Progress, k_means};
///
/// let vectors = Matrix::new(1, vec![0.0, 0.1, 9.0, 9.1])?;
/// let clusters = k_means(&vectors, 2, 5, 1, &Progress::default())?;
/// assert_eq!(clusters.of_item[0], clusters.of_item[1]);
/// assert_ne!(clusters.of_item[0], clusters.of_item[2]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub fn k_means(
    vectors: &Matrix,
    count: usize,
    rounds: usize,
    seed: u64,
    progress: &Progress,
) -> Result<Clusters> {
    weighted_k_means(vectors, &vec![1.0; vectors.rows()], count, rounds, seed, progress)
}

/// Clusters as [`k_means`] does, with centres at the weighted means of their items: where weights are large,
/// centres lie denser.
///
/// Weights must be positive; `[n]`.
pub(crate) fn weighted_k_means(
    vectors: &Matrix,
    weights: &[f64],
    count: usize,
    rounds: usize,
    seed: u64,
    progress: &Progress,
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
        let drawn_place = place + below(&mut random, sample_size - place);
        drawn.swap(place, drawn_place);
    }
    let mut centres = vectors.select(&drawn[..count]);
    let mut settled: Vec<Nearest> = Vec::new();
    // Nothing is known of any item before the first round.
    let mut moved: Vec<usize> = (0..count).collect();
    progress.begin("clustering", "rounds", rounds as u64 + 1);
    for _ in 0..rounds {
        let of_sample = nearest_centres(vectors, &sample, &centres, (&settled, &moved), progress)?;
        let place = |nearest: &Nearest| nearest.place;
        if of_sample.iter().map(place).eq(settled.iter().map(place)) {
            break;
        }
        let members = sample.iter().zip(&of_sample);
        let before = centres.clone();
        move_centres(
            vectors,
            members.map(|(&item, nearest)| (item, nearest.place as usize, weights[item])),
            &mut centres,
        );
        moved = (0..count).filter(|&centre| before.row(centre) != centres.row(centre)).collect();
        settled = of_sample;
        progress.advance(1);
    }
    let all: Vec<usize> = (0..items).collect();
    let last_round = if sample_size == items { (&settled[..], &moved[..]) } else { (&[][..], &[][..]) };
    let of_item = nearest_centres(vectors, &all, &centres, last_round, progress)?;
    Ok(Clusters { centres, of_item: of_item.into_iter().map(|nearest| nearest.place).collect() })
}

/// Computes the mean of the rows of every class, `[count, d]`, summed in `f64` in the order of the rows.
///
/// `classes` names the class of every row, `[n]`, each below `count`; a row of `None` has no part. The mean
/// of a class without rows is 0.
pub fn class_means(vectors: &Matrix, classes: &[Option<usize>], count: usize) -> Matrix {
    let mut means = Matrix::zeros(count, vectors.columns());
    let members = classes.iter().enumerate().filter_map(|(row, class)| Some((row, (*class)?, 1.0)));
    move_centres(vectors, members, &mut means);
    means
}

/// Moves every centre to the weighted mean of its members, given as (row, centre, weight). A centre without
/// members stays.
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

/// Centre that is nearest to an item, and its distance.
#[derive(Debug, Clone, Copy)]
struct Nearest {
    distance: f64,
    place: u32,
}

/// Finds the nearest centre of each named item. `nearest_before` may hold the nearest centres from
/// before some centres `moved`. Then an item whose own centre stayed is compared with the moved ones alone,
/// since all others are as far as before.
fn nearest_centres(
    vectors: &Matrix,
    items: &[usize],
    centres: &Matrix,
    (nearest_before, moved): (&[Nearest], &[usize]),
    progress: &Progress,
) -> Result<Vec<Nearest>> {
    let all: Vec<usize> = (0..centres.rows()).collect();
    let mut has_moved = vec![nearest_before.is_empty(); centres.rows()];
    for &centre in moved {
        has_moved[centre] = true;
    }
    let stays =
        |&place: &usize| nearest_before.get(place).is_some_and(|nearest| !has_moved[nearest.place as usize]);
    let (staying, unsettled): (Vec<usize>, Vec<usize>) = (0..items.len()).partition(stays);
    let far = Nearest { distance: f64::INFINITY, place: 0 };
    let mut nearest = vec![far; items.len()];
    for (places, among) in [(&unsettled, &all[..]), (&staying, moved)] {
        let start: Vec<Nearest> = places
            .iter()
            .map(|&place| nearest_before.get(place).copied().filter(|_| stays(&place)).unwrap_or(far))
            .collect();
        let of_places: Vec<usize> = places.iter().map(|&place| items[place]).collect();
        let nearer = nearer_centres(vectors, &of_places, centres, (&start, among), progress)?;
        for (&place, centre) in places.iter().zip(nearer) {
            nearest[place] = centre;
        }
    }
    Ok(nearest)
}

/// Finds, for each named item, the nearest centre among the known one of `starts` and those of `among`,
/// in the order of their numbers.
fn nearer_centres(
    vectors: &Matrix,
    items: &[usize],
    centres: &Matrix,
    (starts, among): (&[Nearest], &[usize]),
    progress: &Progress,
) -> Result<Vec<Nearest>> {
    if among.is_empty() || items.is_empty() {
        return Ok(starts.to_vec());
    }
    let panels = Panels::new(centres, among);
    let processor = Processor::detect();
    let blocks: Vec<Vec<Nearest>> = items
        .par_chunks(BLOCK)
        .zip(starts.par_chunks(BLOCK))
        .map_init(
            || (QueryTiles::default(), vec![0.0; BLOCK * among.len()]),
            |(tiles, out), (items, starts)| {
                progress.check()?;
                tiles.fill(vectors, items);
                let out = &mut out[..items.len() * among.len()];
                distances(processor, tiles, &panels, Distance::L2, out);
                let nearest = |(line, &start): (&[f64], &Nearest)| {
                    let step = |best: Nearest, (&centre, &distance): (&usize, &f64)| {
                        let place = centre as u32;
                        let is_nearer =
                            distance < best.distance || (distance == best.distance && place < best.place);
                        if is_nearer { Nearest { distance, place } } else { best }
                    };
                    among.iter().zip(line).fold(start, step)
                };
                Ok(out.chunks(among.len()).zip(starts).map(nearest).collect())
            },
        )
        .collect::<Result<_>>()?;
    Ok(blocks.into_iter().flatten().collect())
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
        // Lloyd's algorithm finds the blobs from centres that lie in different ones, as the first centres do
        // with this seed.
        let run = || k_means(&vectors, 3, 20, 1, &Progress::default()).unwrap();
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
            let own_distance = distance(clusters.of_item[item] as usize);
            assert!((0..3).all(|centre| own_distance <= distance(centre)));
        }
    }

    #[test]
    fn equal_vectors_and_more_clusters_than_items_are_no_problem() {
        let vectors = Matrix::zeros(3, 2);
        let run = |vectors: &Matrix, count| k_means(vectors, count, 4, 0, &Progress::default());
        assert_eq!(run(&vectors, 9).unwrap().of_item, [0, 0, 0]);
        assert!(run(&Matrix::default(), 2).is_err());
    }

    /// Centres that did not move are not compared again. This gives the same bits as comparing every item
    /// with every centre in every round.
    #[test]
    fn what_is_known_of_a_round_before_changes_no_bit() {
        let noise = |row: usize, column: usize| ((row * 7919 + column * 104_729) % 1009) as f32 / 1009.0;
        // Some rows are twins of others, so that distances tie.
        let vectors = Matrix::from_fn(700, 11, |row, column| noise(row % 650, column));
        let quiet = Progress::default();
        for (count, rounds) in [(90, 1), (90, 2), (90, 15), (3, 9)] {
            let clusters = k_means(&vectors, count, rounds, 5, &quiet).unwrap();
            let all: Vec<usize> = (0..700).collect();
            let plain = nearest_centres(&vectors, &all, &clusters.centres, (&[], &[]), &quiet).unwrap();
            assert!(plain.iter().map(|nearest| nearest.place).eq(clusters.of_item.iter().copied()));
            let mut moved = clusters.centres.clone();
            for centre in (0..count).step_by(4) {
                moved.row_mut(centre)[0] += 0.05;
            }
            // One centre becomes the twin of another, with a lower number.
            let twin = moved.row(count - 1).to_vec();
            moved.row_mut(0).copy_from_slice(&twin);
            let which: Vec<usize> = (0..count).step_by(4).collect();
            let quick = nearest_centres(&vectors, &all, &moved, (&plain, &which), &quiet).unwrap();
            let slow = nearest_centres(&vectors, &all, &moved, (&[], &[]), &quiet).unwrap();
            for (quick, slow) in quick.iter().zip(slow) {
                assert_eq!((quick.place, quick.distance.to_bits()), (slow.place, slow.distance.to_bits()));
            }
        }
    }

    #[test]
    fn a_stop_is_heard_in_every_round() {
        let progress = Progress::default();
        progress.cancel();
        assert!(k_means(&Matrix::zeros(9, 2), 2, 4, 0, &progress).unwrap_err().is_cancelled());
    }
}
