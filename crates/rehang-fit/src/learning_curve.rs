//! How many pairs are enough: what a map gains as its pairs double, measured on the pairs that are there.

use rehang::{Pairs, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::closed_form::ridge;
use crate::folds::{folds, parted};
use crate::geometry::{self, GeometryKind};
use crate::outputs::conformed;
use crate::retrieval::{AGREEMENT, lines};
use crate::uncertainty_fit::cross_fit;

/// Parts that the pairs are dealt out to: one is left out, and what is left is fitted on whole, by half and by a quarter.
const FOLDS: usize = 5;
/// Times that the pairs are dealt out anew: the spread is over these.
const REPEATS: u64 = 3;
/// Pairs below which nothing is measured: a quarter of what is left has to be worth fitting on.
const PAIRS_MIN: usize = 60;
/// Pairs that are measured at most: time goes by their square.
const PAIRS_MAX: usize = 4000;
/// Bounds of the share of a gain that is expected of the next doubling. Without the upper one, two gains that are close by chance
/// promise that it never ends.
const KEPT: (f64, f64) = (0.3, 0.8);

/// What a map of half as many, of these and of twice as many pairs is worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearningCurve {
    /// What is measured: the agreement of the first ten results with those of the native gallery, everything adapted, by a ridge map on
    /// pairs that it has not seen.
    pub criterion: String,
    /// Pairs fitted on, and the criterion in percent, ascending: a quarter, half and all.
    pub points: Vec<(usize, f64)>,
    /// Points that the last doubling has brought.
    pub gain: f64,
    /// Points that the next doubling is expected to bring.
    pub next: f64,
    /// Standard deviation of `next` over pairs that were dealt out anew.
    pub spread: f64,
}

/// Measures what pairs are worth; `None` where there are fewer than 60.
///
/// With `g₁` the gain from a quarter to a half of the pairs and `g₂` the one from half to all, the next doubling is expected to bring
/// `g₂ · clamp(g₂ / g₁, 0.3, 0.8)`: gains of a learning curve `a − b n^−c` shrink by the same factor `2^−c` with every doubling.
///
/// # Errors
///
/// As [`ridge::fit`]; [`rehang::ErrorKind::Cancelled`].
pub fn learning_curve(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Option<LearningCurve>> {
    if pairs.len() < PAIRS_MIN {
        return Ok(None);
    }
    let sampled = (pairs.len() > PAIRS_MAX).then(|| {
        let (sample, _) = parted(&folds(pairs.len(), pairs.len().div_ceil(PAIRS_MAX), seed), 0);
        pairs.select(&sample)
    });
    let (all, pairs) = (pairs.len(), sampled.as_ref().unwrap_or(pairs));
    let native = pairs.new_vectors();
    let order: Vec<usize> = (0..pairs.len()).collect();
    let kind = GeometryKind::options(native.space())[0];
    let measure = |divisor: usize, seed: u64| -> Result<f64> {
        let fit = |fitted: &Pairs, _: &[usize]| {
            let (part, _) = parted(&folds(fitted.len(), divisor, seed), 0);
            Ok(ridge::fit(&fitted.select(&part), progress)?.map)
        };
        let raw = cross_fit(pairs, &folds(pairs.len(), FOLDS, seed), fit, progress)?;
        let outputs = conformed(&geometry::fit(kind, &raw, native), raw);
        let (line, _) = lines(None, native.matrix(), &outputs, &order, native.space().distance, 0.0)?;
        Ok(line.start())
    };
    let mut repeats = Vec::new();
    for repeat in 0..REPEATS {
        let seed = seed ^ (repeat << 32);
        repeats.push([measure(4, seed)?, measure(2, seed)?, measure(1, seed)?]);
    }
    let mean =
        |value: &dyn Fn(&[f64; 3]) -> f64| repeats.iter().map(value).sum::<f64>() / repeats.len() as f64;
    let (before, gain) = (mean(&|at| at[1] - at[0]), mean(&|at| at[2] - at[1]));
    let kept = if before > 0.0 { (gain / before).clamp(KEPT.0, KEPT.1) } else { KEPT.1 };
    let variance = mean(&|at| (at[2] - at[1] - gain).powi(2)) * REPEATS as f64 / (REPEATS - 1) as f64;
    let points =
        [4, 2, 1].into_iter().enumerate().map(|(place, divisor)| (all / divisor, mean(&|at| at[place])));
    Ok(Some(LearningCurve {
        criterion: format!("agreement@{AGREEMENT}"),
        points: points.collect(),
        gain,
        next: (gain * kept).max(0.0),
        spread: variance.sqrt() * kept,
    }))
}

#[cfg(test)]
mod tests {
    use rehang::{Distance, Matrix, Vectors};

    use super::*;
    use crate::tests::test_data::random_matrix;

    /// New vectors that are a rotation of the old ones' coordinates, with noise.
    fn pairs(count: usize, width: usize, noise: f32) -> Pairs {
        let (old, error) = (random_matrix(count, width, 1), random_matrix(count, width, 2));
        let new = Matrix::from_fn(count, width, |row, column| {
            old.row(row)[(column + 1) % width] + noise * error.row(row)[column]
        });
        let of = |name: &str, rows| Vectors::measured(name, Distance::L2, rows, name).unwrap();
        Pairs::new(of("old", old), of("new", new), None, None).unwrap()
    }

    fn measured(pairs: &Pairs) -> LearningCurve {
        learning_curve(pairs, 0, &Progress::default()).unwrap().unwrap()
    }

    #[test]
    fn what_is_learned_from_few_pairs_needs_no_more() {
        let curve = measured(&pairs(400, 4, 0.01));
        assert!(curve.points[2].1 > 90.0 && curve.next < 0.5, "{curve:?}");
        assert_eq!(curve.points.iter().map(|point| point.0).collect::<Vec<_>>(), [100, 200, 400]);
    }

    #[test]
    fn a_map_of_many_coordinates_and_few_pairs_gains_by_more() {
        let curve = measured(&pairs(200, 64, 0.01));
        assert!(curve.gain > 5.0 && curve.next > 1.5, "{curve:?}");
        assert!(curve.next <= KEPT.1 * curve.gain + 1e-9);
    }

    #[test]
    fn a_handful_of_pairs_says_nothing() {
        let few = pairs(PAIRS_MIN - 1, 4, 0.1);
        assert_eq!(learning_curve(&few, 0, &Progress::default()).unwrap(), None);
    }
}
