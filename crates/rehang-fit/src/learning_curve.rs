//! Measures how many pairs are enough: what a map gains as its pairs double, on the pairs that are there.

use rayon::prelude::*;
use rehang_core::{Pairs, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::candidate::closed_form_candidates;
use crate::folds::{folds, parted};
use crate::geometry::{self, GeometryKind};
use crate::method::Method;
use crate::retrieval::{AGREEMENT, Criterion};

/// Number of parts that pairs are dealt into: one is left out and measured. The others are fitted on, all of
/// them and half of them.
const PARTS: usize = 5;
/// Smallest number of left-out items that are measured in all: few pairs are dealt out anew more often.
const MEASURED: usize = 600;
/// Smallest and largest number of times that the pairs are dealt out anew: the spread is over these.
const REPEATS: (usize, usize) = (3, 12);
/// Number of pairs below which nothing is measured: half of those that are not left out have to be worth
/// fitting on.
const PAIRS_MIN: usize = 60;
/// Largest number of pairs that are measured: time goes by more than their square.
const PAIRS_MAX: usize = 4000;
/// Maps of which the best counts, in the best geometry: the number of pairs decides which one that is.
const MAPS: [Method; 3] = [Method::Procrustes, Method::Ridge, Method::KernelRidge];
/// Points behind the best map from which on a map is not fitted again after the first time. It has to be so
/// far behind both for half of the pairs and for all: repeats spread by less.
const BEHIND: f64 = 5.0;
/// Share of the last doubling's gain that is expected of the next one.
const KEPT: f64 = 0.9;

/// Learning curve of a map: its quality with half of the pairs and with all, and the gain expected from twice
/// as many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LearningCurve {
    /// Name of the criterion: the agreement of the first ten results with those of the native gallery, with
    /// everything adapted, on pairs that the map has not seen. The map is the best one with a formula for so
    /// many pairs.
    pub criterion: String,
    /// Numbers of pairs fitted on, and the criterion in percent, ascending: half and all of the pairs that
    /// are not left out.
    pub points: Vec<(usize, f64)>,
    /// Points that the last doubling has brought.
    pub gain: f64,
    /// Points that the next doubling is expected to bring.
    pub next: f64,
    /// Standard error of `next`, over pairs that were dealt out anew.
    pub spread: f64,
}

/// Measures what pairs are worth; `None` where there are fewer than 60.
///
/// With `g` the gain from half of the pairs to all, the next doubling is expected to bring `0.9 · g`: gains
/// of a learning curve `a − b n^−c` shrink by the same factor `2^−c` with every doubling.
/// `cargo lab study learning` compares that with what the next doubling brought.
///
/// # Errors
///
/// Errors of the fits; [`rehang_core::ErrorKind::Cancelled`].
pub fn learning_curve(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Option<LearningCurve>> {
    if pairs.len() < PAIRS_MIN {
        return Ok(None);
    }
    let all = pairs.len();
    let sampled = (all > PAIRS_MAX).then(|| {
        let (sample, _) = parted(&folds(all, all.div_ceil(PAIRS_MAX), seed), 0);
        pairs.select(&sample)
    });
    let pairs = sampled.as_ref().unwrap_or(pairs);
    let candidates = closed_form_candidates(seed);
    let maps: Vec<_> = candidates.iter().filter(|candidate| MAPS.contains(&candidate.method)).collect();
    let criterion = Criterion::by_agreement(None);
    let repeats = (MEASURED * PARTS).div_ceil(pairs.len()).clamp(REPEATS.0, REPEATS.1);
    let kinds = GeometryKind::options(pairs.new_vectors().space());
    progress.begin("measuring what pairs are worth", "maps", (repeats * maps.len() * SIZES.len()) as u64);
    // Values by size, then by map and geometry; none for a map that is not fitted.
    let values = |repeat: u64, is_fitted: &[bool]| -> Result<Vec<Vec<Option<f64>>>> {
        let seed = seed ^ (repeat << 32);
        let (left_out, remaining_rows) = parted(&folds(pairs.len(), PARTS, seed), 0);
        let (left_out, remaining_pairs) = (pairs.select(&left_out), pairs.select(&remaining_rows));
        let native = left_out.new_vectors();
        let of_size = |divisor: usize| {
            let part = remaining_pairs.select(&parted(&folds(remaining_pairs.len(), divisor, seed), 0).0);
            let mut values = Vec::with_capacity(maps.len() * kinds.len());
            for (candidate, is_fitted) in maps.iter().zip(is_fitted) {
                progress.check()?;
                if *is_fitted {
                    // A pair's group only says what is left out together with it, and nothing here looks at
                    // that.
                    let map = (candidate.fit)(&part, &vec![-1; part.len()], &Progress::default())?.map;
                    let raw = map.outputs(left_out.old().matrix(), None)?;
                    for &kind in kinds {
                        let outputs = geometry::fit(kind, &raw, part.new_vectors()).conformed(raw.clone());
                        values.push(Some(criterion.upgrade(native, outputs, seed)?.start));
                    }
                } else {
                    values.extend(kinds.iter().map(|_| None));
                }
                progress.advance(1);
            }
            Ok(values)
        };
        SIZES.into_iter().map(of_size).collect()
    };
    let mut measured: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); maps.len() * kinds.len()]; SIZES.len()];
    add(&mut measured, values(0, &vec![true; maps.len()])?);
    let is_fitted = near_the_best(&measured, kinds.len());
    let others: Vec<_> = (1..repeats as u64)
        .into_par_iter()
        .map(|repeat| values(repeat, &is_fitted))
        .collect::<Result<_>>()?;
    for repeat in others {
        add(&mut measured, repeat);
    }
    let best: Vec<&[f64]> = measured.iter().map(|of_maps| best(of_maps, repeats)).collect();
    let gains: Vec<f64> = best[1].iter().zip(best[0]).map(|(all, half)| all - half).collect();
    let gain = mean(&gains);
    let squares: f64 = gains.iter().map(|value| (value - gain).powi(2)).sum();
    let error = (squares / (repeats * (repeats - 1)) as f64).sqrt();
    let fitted = all - all / PARTS;
    Ok(Some(LearningCurve {
        criterion: format!("agreement@{AGREEMENT}"),
        points: SIZES.iter().zip(&best).map(|(divisor, values)| (fitted / divisor, mean(values))).collect(),
        gain,
        next: (KEPT * gain).max(0.0),
        spread: KEPT * error,
    }))
}

/// Divisors of the pairs that are not left out, one for each size that is fitted on: half and all.
const SIZES: [usize; 2] = [2, 1];

/// Adds the values of a repeat to those by size, then by map and geometry.
fn add(measured: &mut [Vec<Vec<f64>>], repeat: Vec<Vec<Option<f64>>>) {
    for (measured, values) in measured.iter_mut().zip(repeat) {
        for (measured, value) in measured.iter_mut().zip(values) {
            measured.extend(value);
        }
    }
}

/// Returns which maps are no more than [`BEHIND`] behind the best one at one size at least. `measured` holds
/// for each size the values by map and `kinds` geometries.
fn near_the_best(measured: &[Vec<Vec<f64>>], kinds: usize) -> Vec<bool> {
    let largest = |rows: &[Vec<f64>]| rows.iter().map(|row| row[0]).fold(f64::NEG_INFINITY, f64::max);
    let of_map = |map: usize| {
        measured.iter().any(|rows| largest(&rows[map * kinds..][..kinds]) >= largest(rows) - BEHIND)
    };
    (0..measured[0].len() / kinds).map(of_map).collect()
}

/// Returns the values with the largest mean, of those that were measured every time.
fn best(of_maps: &[Vec<f64>], repeats: usize) -> &[f64] {
    let complete = of_maps.iter().filter(|values| values.len() == repeats);
    complete.max_by(|a, b| mean(a).total_cmp(&mean(b))).map_or(&[], Vec::as_slice)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Matrix, Vectors};

    use super::*;
    use crate::tests::test_data::random_matrix;

    /// Makes new vectors that are the old ones' coordinates in another order, each as wide as its place, with
    /// noise.
    fn pairs(count: usize, width: usize, noise: f32) -> Pairs {
        let (old, error) = (random_matrix(count, width, 1), random_matrix(count, width, 2));
        let new = Matrix::from_fn(count, width, |row, column| {
            (1 + column) as f32 * old.row(row)[(column + 1) % width] + noise * error.row(row)[column]
        });
        let vectors = |name: &str, rows| Vectors::measured(name, Distance::L2, rows, name).unwrap();
        Pairs::new(vectors("old", old), vectors("new", new), None, None).unwrap()
    }

    fn measured(pairs: &Pairs) -> LearningCurve {
        learning_curve(pairs, 0, &Progress::default()).unwrap().unwrap()
    }

    #[test]
    fn what_is_learned_from_few_pairs_needs_no_more() {
        let curve = measured(&pairs(400, 4, 0.01));
        assert!(curve.points[1].1 > 90.0 && curve.next < 0.5, "{curve:?}");
        assert_eq!(curve.points.iter().map(|point| point.0).collect::<Vec<_>>(), [160, 320]);
    }

    #[test]
    fn a_map_of_many_coordinates_and_few_pairs_gains_by_more() {
        let curve = measured(&pairs(100, 64, 0.01));
        assert!(curve.gain > 5.0 && curve.next > 1.5, "{curve:?}");
        assert_eq!(curve.next, KEPT * curve.gain);
    }

    #[test]
    fn a_map_that_is_far_behind_at_both_sizes_is_not_fitted_again() {
        // Three maps have two geometries each, at two sizes.
        let half = [50.0, 60.0, 64.9, 10.0, 65.1, 10.0].map(|value| vec![value]).to_vec();
        let all = [75.0, 60.0, 70.0, 70.0, 80.0, 20.0].map(|value| vec![value]).to_vec();
        assert_eq!(near_the_best(&[half.clone(), all.clone()], 2), [true, true, true]);
        let all = [all[0].clone(), all[1].clone(), vec![84.9], vec![70.0], vec![90.0], vec![20.0]].to_vec();
        assert_eq!(near_the_best(&[half, all], 2), [false, true, true]);
        let of_maps = [vec![1.0, 5.0], vec![90.0], vec![4.0, 4.0]];
        assert_eq!(best(&of_maps, 2), [4.0, 4.0]);
    }

    #[test]
    fn a_handful_of_pairs_says_nothing() {
        let few = pairs(PAIRS_MIN - 1, 4, 0.1);
        assert_eq!(learning_curve(&few, 0, &Progress::default()).unwrap(), None);
    }
}
