//! Lower bounds of gains over doing nothing that were measured on held-out pairs, in each gallery and metric:
//! what of them is proven.
//!
//! Galleries grow by classes that no pair knew. So something counts as proven where it is proven in held-out
//! items of known classes and in items of classes that were left out. It also has to be proven in the metrics
//! that [`Criterion::guarded`] names, since mAP alone may be bought with first results.

use std::collections::BTreeMap;

use rehang_core::curve::Metric;
use rehang_core::statistics::mean_sd;
use serde::{Deserialize, Serialize};

use crate::retrieval::Criterion;

rehang_core::named! {
    /// Gallery that held-out items ask: themselves, or everything else.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum HeldOutGallery ("gallery") {
        /// Items of classes (clusters, without labels) that were fitted on.
        Known = "known",
        /// All items of classes that were not fitted on.
        LeftOut = "left-out",
        /// Everything in the gallery that is no pair, asked by held-out items of both kinds together.
        Whole = "whole",
    }
}

/// Gain over doing nothing in one held-out gallery, by one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeldOutGain {
    /// Held-out gallery that was measured.
    pub gallery: HeldOutGallery,
    /// Name of the metric.
    pub metric: String,
    /// Mean gain over the splits, in points.
    pub gain: f64,
    /// Standard error of the mean gain: over queries or over splits, whichever is larger.
    pub error: f64,
}

/// Differences of every query from doing nothing, split by split, by gallery and the place of the metric.
pub(crate) type Differences = BTreeMap<(HeldOutGallery, usize), Vec<Vec<f64>>>;

/// Returns the names of the metrics in [`Criterion::guarded`].
pub(crate) fn names_of(criterion: &Criterion<'_>) -> Vec<String> {
    let by_agreement = |metric: Metric| match metric {
        metric if metric == criterion.metric => criterion.name(),
        guard => format!("{} by agreement", guard.name()),
    };
    let name = |metric: Metric| if criterion.is_agreement() { by_agreement(metric) } else { metric.name() };
    criterion.guarded().into_iter().map(name).collect()
}

/// Adds the differences of one split's queries.
pub(crate) fn add(into: &mut Differences, of: (HeldOutGallery, usize), after: &[f64], before: &[f64]) {
    into.entry(of).or_default().push(after.iter().zip(before).map(|(a, b)| a - b).collect());
}

/// Returns the gain in each gallery and metric, and the least of all lower bounds: a gain less its standard
/// error.
pub(crate) fn gains(differences: &Differences, names: &[String]) -> (Vec<HeldOutGain>, f64) {
    let gains: Vec<HeldOutGain> = differences
        .iter()
        .map(|(&(gallery, metric), of_splits)| {
            let (gain, error) = gain_of(of_splits);
            HeldOutGain { gallery, metric: names[metric].clone(), gain, error }
        })
        .collect();
    let low = gains.iter().map(|of| of.gain - of.error).fold(f64::INFINITY, f64::min);
    (gains, low)
}

/// Chooses, of rows with their gains and the least lower bound of these, the one with the largest mean gain
/// among those with no bound below 0; the first of equals, and `None` where every row has a bound below 0.
pub(crate) fn best_of_proven<'a>(rows: impl Iterator<Item = (&'a [HeldOutGain], f64)>) -> Option<usize> {
    let proven = rows.enumerate().filter(|(_, (_, low))| *low >= 0.0);
    let larger = |best: (usize, f64), row: (usize, f64)| if row.1 > best.1 { row } else { best };
    proven.map(|(row, (gains, _))| (row, mean_gain(gains))).reduce(larger).map(|(row, _)| row)
}

/// Returns the mean of all gains, over galleries and metrics.
pub(crate) fn mean_gain(gains: &[HeldOutGain]) -> f64 {
    mean(&gains.iter().map(|of| of.gain).collect::<Vec<_>>())
}

/// Returns the standard error of the gain whose lower bound is the least.
pub(crate) fn error_of_least(gains: &[HeldOutGain]) -> f64 {
    let least = gains.iter().min_by(|a, b| (a.gain - a.error).total_cmp(&(b.gain - b.error)));
    least.map_or(f64::INFINITY, |gain| gain.error)
}

/// Returns whether gains are known for known and for left-out classes: without the second nothing is proven
/// of what comes.
pub(crate) fn is_of_both(gains: &[HeldOutGain]) -> bool {
    let has = |gallery| gains.iter().any(|gain| gain.gallery == gallery);
    has(HeldOutGallery::Known) && has(HeldOutGallery::LeftOut)
}

/// Returns the mean of all splits' means, and its standard error. The error is that over all queries, or over
/// the splits where that is larger, since queries of one split share their classes. A single query tells no
/// error: it is infinite.
fn gain_of(of_splits: &[Vec<f64>]) -> (f64, f64) {
    let error = |values: &[f64]| {
        let spread = mean_sd(values).filter(|spread| spread.count > 1);
        spread.map(|spread| spread.sd / (spread.count as f64).sqrt())
    };
    let means: Vec<f64> = of_splits.iter().map(|queries| mean(queries)).collect();
    let of_queries = error(&of_splits.concat()).unwrap_or(f64::INFINITY);
    (mean(&means), of_queries.max(error(&means).unwrap_or(0.0)))
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_the_mean_of_splits_and_its_error_the_larger_one() {
        let (gain, error) = gain_of(&[vec![1.0, 3.0], vec![5.0, 7.0]]);
        // The error over four queries is √(20/3) / 2, over two splits √8 / √2 = 2.
        assert_eq!((gain, error), (4.0, 2.0));
        let (gain, error) = gain_of(&[vec![0.0, 4.0, 2.0], vec![1.0, 3.0, 2.0]]);
        assert!(gain == 2.0 && (error - (10.0_f64 / 5.0 / 6.0).sqrt()).abs() < 1e-12);
        assert_eq!(gain_of(&[vec![1.0]]).1, f64::INFINITY);
    }
}
