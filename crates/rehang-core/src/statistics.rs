//! Statistics that a report is made from: rank correlation, intervals, spread, calibration.

use rand::rand_core::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Deserializer, Serialize};

use crate::check::{check_finite, expect_count};
use crate::error::{Error, ErrorKind, Result};

/// An estimate with the interval around it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate from all the data.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Mean and standard deviation over repetitions (seeds).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeanSd {
    /// Number of values.
    pub count: usize,
    /// Mean of the values.
    pub mean: f64,
    /// Standard deviation of the values, with the divisor count − 1; 0 for a single value.
    pub sd: f64,
}

/// Computes mean and standard deviation; `None` without values.
///
/// ```
/// let spread = rehang_core::statistics::mean_sd(&[1.0, 2.0, 3.0]).unwrap();
/// assert_eq!((spread.mean, spread.sd), (2.0, 1.0));
/// assert_eq!(rehang_core::statistics::mean_sd(&[4.0]).unwrap().sd, 0.0);
/// assert_eq!(rehang_core::statistics::mean_sd(&[]), None);
/// ```
pub fn mean_sd(values: &[f64]) -> Option<MeanSd> {
    if values.is_empty() {
        return None;
    }
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let sd = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
    Some(MeanSd { count, mean, sd })
}

/// Computes percentile bootstrap intervals of column means: `[rows, columns]`, row after row → one interval a
/// column.
///
/// Rows (queries) are drawn with replacement `resamples` times, the same rows for every column. The interval
/// runs between the `(1 − level)/2` and `(1 + level)/2` quantiles of the resampled means (Efron 1979;
/// quantiles are interpolated linearly). Resample i has a random stream of its own, so the answer depends on
/// the seed alone and not on the number of threads.
///
/// # Errors
///
/// [`ErrorKind::Empty`] without rows or columns, [`ErrorKind::InvalidOption`] for no resamples or a level
/// outside (0, 1), [`ErrorKind::NotFinite`] for NaN.
///
/// ```
/// let values: Vec<f64> = (0..100).map(f64::from).collect();
/// let interval = rehang_core::statistics::bootstrap_means(&values, 1, 1000, 0.95, 1)?[0];
/// assert_eq!(interval.estimate, 49.5);
/// // The standard error of this mean is 2.9.
/// assert!((interval.high - interval.low - 3.92 * 2.9).abs() < 1.5);
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub fn bootstrap_means(
    values: &[f64],
    columns: usize,
    resamples: usize,
    level: f64,
    seed: u64,
) -> Result<Vec<Interval>> {
    let rows = values.len().checked_div(columns).unwrap_or(0);
    if rows == 0 || rows * columns != values.len() {
        return Err(ErrorKind::Empty { what: "the table of values to resample".into() }.into());
    }
    if resamples == 0 {
        return Err(Error::option("resamples", resamples, "1 or more"));
    }
    if !(level > 0.0 && level < 1.0) {
        return Err(Error::option("level", level, "a number between 0 and 1"));
    }
    check_finite("values to resample", values, columns, 0)?;
    let estimates = means_of_rows(values, columns, 0..rows);
    let drawn = resampled_means(values, columns, resamples, seed);
    Ok((0..columns)
        .map(|column| {
            let mut means: Vec<f64> = drawn.iter().map(|means| means[column]).collect();
            means.sort_unstable_by(f64::total_cmp);
            Interval {
                estimate: estimates[column],
                low: quantile(&means, (1.0 - level) / 2.0),
                high: quantile(&means, f64::midpoint(1.0, level)),
            }
        })
        .collect())
}

/// Computes the mean of every column of `[rows, columns]` over some rows.
fn means_of_rows(values: &[f64], columns: usize, rows: impl ExactSizeIterator<Item = usize>) -> Vec<f64> {
    let (mut sums, count) = (vec![0.0; columns], rows.len());
    for row in rows {
        for (sum, value) in sums.iter_mut().zip(&values[row * columns..]) {
            *sum += value;
        }
    }
    for sum in &mut sums {
        *sum /= count as f64;
    }
    sums
}

/// Computes the means of the columns of `[rows, columns]` over as many rows, drawn with replacement,
/// `resamples` times. Resample i has a random stream of its own.
pub(crate) fn resampled_means(values: &[f64], columns: usize, resamples: usize, seed: u64) -> Vec<Vec<f64>> {
    let rows = values.len() / columns;
    (0..resamples)
        .into_par_iter()
        .map(|resample| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(resample as u64);
            means_of_rows(values, columns, (0..rows).map(|_| below(&mut random, rows)))
        })
        .collect()
}

/// Draws a random index below `bound`, from the high half of a 128-bit product; the bias is below
/// `bound / 2^64`.
pub(crate) fn below(random: &mut impl Rng, bound: usize) -> usize {
    ((u128::from(random.next_u64()) * bound as u128) >> 64) as usize
}

/// Permutes the values at random.
pub(crate) fn shuffle<T>(values: &mut [T], random: &mut impl Rng) {
    for place in 0..values.len() {
        values.swap(place, place + below(random, values.len() - place));
    }
}

/// Computes the q-quantile of ascending values, at least one, interpolated linearly.
///
/// ```
/// assert_eq!(rehang_core::statistics::quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
/// ```
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let low = place.floor() as usize;
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// Computes Kendall's τ-b between two lists, in O(n log n). `None` where one of them is constant (τ-b is 0/0
/// there).
///
/// `τ_b = (C − D) / sqrt((n₀ − n₁)(n₀ − n₂))` with C concordant and D discordant pairs, `n₀ = n(n − 1)/2`,
/// and n₁ and n₂ the pairs tied in the first and in the second list (Kendall 1945; counted by merge sort,
/// Knight 1966).
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`] for lists of different length, [`ErrorKind::NotFinite`] for NaN or infinity.
///
/// ```
/// use rehang_core::statistics::kendall_tau_b;
///
/// assert_eq!(kendall_tau_b(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0])?, Some(1.0));
/// assert_eq!(kendall_tau_b(&[1.0, 2.0, 3.0], &[5.0, 5.0, 5.0])?, None);
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub fn kendall_tau_b(first: &[f64], second: &[f64]) -> Result<Option<f64>> {
    check_pair("the first list", first, "the second list", second)?;
    let pairs = |count: u64| count * count.saturating_sub(1) / 2;
    // Adding 0 turns −0 into 0, so that the two tie.
    let mut value_pairs: Vec<(f64, f64)> =
        first.iter().zip(second).map(|(a, b)| (a + 0.0, b + 0.0)).collect();
    value_pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let tied_first: u64 = value_pairs.chunk_by(|a, b| a.0 == b.0).map(|run| pairs(run.len() as u64)).sum();
    let tied_both: u64 = value_pairs.chunk_by(|a, b| a == b).map(|run| pairs(run.len() as u64)).sum();
    let mut values: Vec<f64> = value_pairs.into_iter().map(|(_, b)| b).collect();
    let discordant = sort_counting_swaps(&mut values);
    let tied_second: u64 = values.chunk_by(|a, b| a == b).map(|run| pairs(run.len() as u64)).sum();
    let all = pairs(first.len() as u64);
    if tied_first == all || tied_second == all {
        return Ok(None);
    }
    // All untied pairs are concordant or discordant; pairs tied in both lists were subtracted twice.
    let untied = all + tied_both - tied_first - tied_second;
    let numerator = untied as f64 - 2.0 * discordant as f64;
    Ok(Some(numerator / ((all - tied_first) as f64 * (all - tied_second) as f64).sqrt()))
}

/// Sorts by merging, and returns the number of pairs that stood in descending order.
fn sort_counting_swaps(values: &mut Vec<f64>) -> u64 {
    let mut swaps = 0;
    let mut merged = Vec::with_capacity(values.len());
    let mut width = 1;
    while width < values.len() {
        merged.clear();
        for run in values.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let (Some(&a), Some(&b)) = (left.first(), right.first()) {
                if a <= b {
                    merged.push(a);
                    left = &left[1..];
                } else {
                    // Everything that remains of the left run is larger than b.
                    swaps += left.len() as u64;
                    merged.push(b);
                    right = &right[1..];
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(values, &mut merged);
        width *= 2;
    }
    swaps
}

/// Calibration: how well a predicted squared error σ² fits the measured one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Items by ascending σ², in groups of (nearly) equal size.
    pub bins: Vec<CalibrationBin>,
    /// Mean σ² over mean measured error: 1 is calibrated, below 1 is over-confident, above 1 over-cautious.
    /// Infinite where every error is 0, and NaN where every σ² is 0 as well; both are `null` in JSON, which
    /// is read as NaN.
    #[serde(deserialize_with = "nullable")]
    pub ratio: f64,
    /// How many items were compared.
    pub items: usize,
    /// Mean measured error.
    #[serde(deserialize_with = "nullable")]
    pub mean_squared_error: f64,
}

/// Group of items of similar σ².
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalibrationBin {
    /// Mean σ² of the items.
    #[serde(deserialize_with = "nullable")]
    pub predicted: f64,
    /// Mean measured squared error of the items.
    #[serde(deserialize_with = "nullable")]
    pub actual: f64,
    /// Number of items.
    pub items: usize,
}

/// Quality of σ²: its calibration, for the scale, and its rank correlation with the measured errors, for the
/// order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SigmaQuality {
    /// Kendall's τ-b: 1 is the true order, 0 is chance; `None` where all σ² or all errors are equal.
    pub kendall_tau: Option<f64>,
    /// The calibration, in ten bins.
    #[serde(flatten)]
    pub calibration: Calibration,
}

impl SigmaQuality {
    /// Compares predicted errors with measured ones, item by item.
    ///
    /// # Errors
    ///
    /// The errors of [`calibration`].
    pub fn compare(predicted: &[f64], measured: &[f64]) -> Result<Self> {
        let calibration = calibration(predicted, measured, BINS)?;
        Ok(Self { kendall_tau: kendall_tau_b(predicted, measured)?, calibration })
    }
}

/// Number of bins of a calibration where nothing else is said.
pub const BINS: usize = 10;

/// A number that is `null` where it is not defined.
pub(crate) fn nullable<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Option::deserialize(from).map(|value| value.unwrap_or(f64::NAN))
}

/// Computes the calibration table of σ²: items sorted by prediction and cut into `bins` groups of equal size.
/// Levi et al. 2022 compare mean variance and mean squared error group by group in this way. There are fewer
/// groups where there are fewer items.
///
/// # Errors
///
/// [`ErrorKind::Empty`] without items, [`ErrorKind::CountMismatch`], [`ErrorKind::NotFinite`],
/// [`ErrorKind::InvalidOption`] for 0 bins.
///
/// ```
/// let table = rehang_core::statistics::calibration(&[1.0, 2.0, 3.0, 4.0], &[2.0, 4.0, 6.0, 8.0], 2)?;
/// assert_eq!((table.ratio, table.mean_squared_error), (0.5, 5.0));
/// assert_eq!((table.bins[1].predicted, table.bins[1].actual), (3.5, 7.0));
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub fn calibration(predicted: &[f64], measured: &[f64], bins: usize) -> Result<Calibration> {
    check_pair("predicted errors", predicted, "measured errors", measured)?;
    if predicted.is_empty() {
        return Err(ErrorKind::Empty { what: "the list of predicted errors".into() }.into());
    }
    if bins == 0 {
        return Err(Error::option("bins", bins, "1 or more"));
    }
    let count = predicted.len();
    let bins = bins.min(count);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| predicted[a].total_cmp(&predicted[b]));
    let mean = |items: &[usize], values: &[f64]| {
        items.iter().map(|&item| values[item]).sum::<f64>() / items.len() as f64
    };
    let table = (0..bins)
        .map(|bin| {
            let items = &order[bin * count / bins..(bin + 1) * count / bins];
            CalibrationBin {
                predicted: mean(items, predicted),
                actual: mean(items, measured),
                items: items.len(),
            }
        })
        .collect();
    let (sum_predicted, sum_measured) = (predicted.iter().sum::<f64>(), measured.iter().sum::<f64>());
    Ok(Calibration {
        bins: table,
        ratio: sum_predicted / sum_measured,
        items: count,
        mean_squared_error: sum_measured / count as f64,
    })
}

/// Fails where two lists differ in length or hold NaN or infinity.
fn check_pair(left: &str, a: &[f64], right: &str, b: &[f64]) -> Result<()> {
    expect_count(left, a.len(), right, b.len())?;
    check_finite(left, a, 1, 0)?;
    check_finite(right, b, 1, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes τ-b by looking at every pair.
    fn slow_tau_b(first: &[f64], second: &[f64]) -> Option<f64> {
        let (mut difference, mut untied_first, mut untied_second) = (0.0, 0.0, 0.0);
        for i in 0..first.len() {
            for j in 0..i {
                let sign = |values: &[f64]| {
                    values[i].partial_cmp(&values[j]).map_or(0.0, |order| f64::from(order as i8))
                };
                let (a, b) = (sign(first), sign(second));
                difference += a * b;
                untied_first += a * a;
                untied_second += b * b;
            }
        }
        (untied_first * untied_second > 0.0).then(|| difference / f64::sqrt(untied_first * untied_second))
    }

    proptest! {
        #[test]
        fn tau_b_is_what_looking_at_every_pair_gives(
            lists in prop::collection::vec((-4_i8..4, -4_i8..4), 0..60)
        ) {
            let first: Vec<f64> = lists.iter().map(|pair| f64::from(pair.0)).collect();
            let second: Vec<f64> = lists.iter().map(|pair| f64::from(pair.1)).collect();
            match (kendall_tau_b(&first, &second).unwrap(), slow_tau_b(&first, &second)) {
                (Some(fast), Some(slow)) => prop_assert!((fast - slow).abs() < 1e-12),
                (fast, slow) => prop_assert_eq!(fast, slow),
            }
        }

        #[test]
        fn calibration_bins_hold_every_item_once(
            values in prop::collection::vec((0.0_f64..9.0, 0.0_f64..9.0), 1..50), bins in 1_usize..60
        ) {
            let (predicted, measured): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
            let table = calibration(&predicted, &measured, bins).unwrap();
            prop_assert_eq!(table.bins.iter().map(|bin| bin.items).sum::<usize>(), predicted.len());
            prop_assert!(table.bins.is_sorted_by(|a, b| a.predicted <= b.predicted));
            let total: f64 = table.bins.iter().map(|bin| bin.actual * bin.items as f64).sum();
            prop_assert!((total - measured.iter().sum::<f64>()).abs() < 1e-9);
            prop_assert!((total - table.mean_squared_error * table.items as f64).abs() < 1e-9);
            if total > 0.0 {
                prop_assert!((table.ratio * total - predicted.iter().sum::<f64>()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn a_nan_is_an_error_and_not_a_rank() {
        assert!(kendall_tau_b(&[1.0, f64::NAN], &[1.0, 2.0]).unwrap_err().is_corrupt());
        assert!(kendall_tau_b(&[1.0], &[1.0, 2.0]).unwrap_err().is_mismatch());
    }

    #[test]
    fn intervals_hold_the_estimate_and_do_not_depend_on_the_number_of_threads() {
        let values: Vec<f64> = (0..300).map(|i| f64::from(i * 7919 % 101)).collect();
        let run = || bootstrap_means(&values, 3, 200, 0.9, 5).unwrap();
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(run);
        assert_eq!(alone, run());
        assert!(alone.iter().all(|interval| interval.low <= interval.estimate));
        assert!(alone.iter().all(|interval| interval.estimate <= interval.high));
        assert_ne!(alone, bootstrap_means(&values, 3, 200, 0.9, 6).unwrap());
    }

    #[test]
    fn constant_values_have_an_interval_of_no_width() {
        let interval = bootstrap_means(&[2.0; 20], 1, 50, 0.95, 0).unwrap()[0];
        assert_eq!(interval, Interval { estimate: 2.0, low: 2.0, high: 2.0 });
    }
}
