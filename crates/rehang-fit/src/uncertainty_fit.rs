//! Learns σ² from out-of-fold residuals.
//!
//! Uncertainty that is trained on the pairs that the map was trained on is over-optimistic: there the map is
//! right. So the map is fitted several times, each time without a part of the pairs. Its outputs for the part
//! left out ([`cross_fit`]) say how wrong it is on items like these. A regression of the log squared error on
//! a few features that are known for any old vector ([`rehang_core::adapter::OutOfFold`]) carries that to the
//! gallery ([`fit`]).
//!
//! Two kinds of leaving out give two signals. Items left out at random tell how wrong the map is on a new
//! item of a known kind. Whole classes (or clusters) left out tell how wrong it is on a kind that it never
//! saw. A gallery holds both, so the regression learns from both; its level is set by the first.

use faer::{Mat, MatRef};
use rayon::prelude::*;
use rehang_core::adapter::{
    Geometry, InputScaling, LOG_VARIANCE_LIMIT, Map, NearestAnchors, OutOfFold, Uncertainty, true_errors,
};
use rehang_core::check::expect_count;
use rehang_core::statistics::SigmaQuality;
use rehang_core::{Error, Head, HeadKind, Matrix, Pairs, Progress, Result, squared_distance};

use crate::folds::{folds, parted, shuffled};
use crate::linear_algebra::{column_means, eigen, product, scaled};

/// Fits once for every fold, without the fold's pairs, and returns the raw outputs of these maps on the pairs
/// that each had not seen: `[n, d_new]`, in the order of the pairs.
///
/// `fold` names the fold of every pair (see [`crate::folds::folds`] and [`crate::folds::group_folds`]); `fit`
/// gets the pairs to fit on and which of all pairs they are.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::CountMismatch`] where there is not one fold for each pair,
/// [`rehang_core::ErrorKind::InvalidOption`] where a fold holds every pair, errors of `fit`, and
/// [`rehang_core::ErrorKind::Cancelled`].
pub fn cross_fit(
    pairs: &Pairs,
    fold: &[usize],
    mut fit: impl FnMut(&Pairs, &[usize]) -> Result<Map>,
    progress: &Progress,
) -> Result<Matrix> {
    expect_count("pairs", pairs.len(), "folds", fold.len())?;
    let count = fold.iter().max().map_or(0, |last| last + 1);
    let mut outputs = Matrix::zeros(pairs.len(), pairs.new_vectors().dimension());
    for f in 0..count {
        progress.check()?;
        let (left_out, fitted) = parted(fold, f);
        if left_out.is_empty() {
            continue;
        }
        if fitted.is_empty() {
            return Err(Error::option("folds", count, "at least two that hold pairs"));
        }
        let map = fit(&pairs.select(&fitted), &fitted).map_err(|error| error.context(format!("fold {f}")))?;
        let held_out = pairs.select(&left_out);
        let raw = map.outputs(held_out.old().matrix(), held_out.side())?;
        for (row, &item) in left_out.iter().enumerate() {
            outputs.row_mut(item).copy_from_slice(raw.row(row));
        }
    }
    Ok(outputs)
}

/// Number of nearest anchors whose residuals are averaged.
const NEIGHBOURS: usize = 10;
/// Largest number of pairs that are kept in the adapter as anchors.
const ANCHORS_MAX: usize = 4096;
/// Largest number of pairs that the regression is fitted on.
const SAMPLE_MAX: usize = 20_000;

/// Out-of-fold evidence about a map: its outputs for pairs that it was not fitted on.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Raw outputs with items left out at random, `[n, d_new]`.
    pub items_left_out: &'a Matrix,
    /// Raw outputs with whole classes or clusters left out, `[n, d_new]`.
    pub groups_left_out: Option<&'a Matrix>,
    /// Class or cluster of every pair, `[n]`; negative where it is not known. Read with `groups_left_out`
    /// only.
    pub groups: &'a [i64],
    /// Way in which outputs conform to the new space.
    pub geometry: &'a Geometry,
    /// Scaling of old vectors at the input of the map that σ² is for.
    pub input: InputScaling,
    /// A classifier head of the new space, whose doubt about h(o) is a feature.
    pub head: Option<&'a Head>,
    /// Whether each pair is of the smaller kind, `[n]`, where pairs are of two kinds. σ² is then right for
    /// each kind by itself, as far as old vectors tell them apart.
    pub small_kind: Option<&'a [bool]>,
}

/// σ² with the proof of how good it is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FittedUncertainty {
    /// Uncertainty that goes into the adapter.
    pub uncertainty: Uncertainty,
    /// Quality of σ² on pairs that the regression left out.
    pub calibration: SigmaQuality,
    /// Pairs, by row, with the σ² that a regression without them gives; empty where σ² is the same for every
    /// item.
    pub left_out: Vec<(usize, f64)>,
}

/// Smallest number of pairs that a regression is fitted on; below it, σ² is the mean squared error for every
/// item.
const PAIRS_MIN: usize = 30;

/// Learns σ² from out-of-fold evidence on the pairs.
///
/// 1. The target of pair i is `log ‖vᵢ − h₋ᵢ(oᵢ)‖²`, h₋ᵢ being fitted without it. Where there is evidence
///    with groups left out, every pair counts a second time with its error of that evidence, so that the
///    regression knows items of classes that no pair is of.
/// 2. Features are those of [`OutOfFold`]; a pair is never its own neighbour, and where its group is left out
///    no pair of the group is. Values of an anchor are three: the log of its squared error, the log of its
///    squared error with its group left out (where that evidence is given), and the log of how far the new
///    vectors of its neighbourhood are from its own. Where similar old vectors scatter in the new space, no
///    map can be right. The head's logits are divided by the temperature under which its softmax on
///    out-of-fold outputs best fits its own answer on the native vectors.
/// 3. A linear regression on standardised features is penalised lightly (10⁻³ of their variance). Its
///    predictions for other pairs stay within a factor of e² of the errors that it learned from.
/// 4. The constant is moved so that the mean of σ² is the mean squared error, both measured on pairs that the
///    regression left out. With two kinds of pairs, the kind is one more value of an anchor, and its
///    coefficient is moved so that this holds for each of them. σ² is clamped to the range of what was
///    predicted there, widened by a factor of two. The calibration is measured with the constant of the other
///    folds.
///
/// With fewer than 30 pairs, or errors that are all the same, σ² is the mean squared error for every item.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::CountMismatch`] for evidence of other pairs, [`rehang_core::ErrorKind::Cancelled`].
pub fn fit(
    pairs: &Pairs,
    evidence: Evidence<'_>,
    seed: u64,
    progress: &Progress,
) -> Result<FittedUncertainty> {
    progress.check()?;
    let grouped = evidence.groups_left_out.map(Matrix::rows);
    let groups = grouped.map(|_| evidence.groups.len());
    for rows in [Some(evidence.items_left_out.rows()), grouped, groups].into_iter().flatten() {
        expect_count("pairs", pairs.len(), "out-of-fold outputs", rows)?;
    }
    let new = pairs.new_vectors().matrix();
    let outputs = evidence.geometry.conformed(evidence.items_left_out.clone());
    let errors = true_errors(new, &outputs);
    let mean_error = errors.iter().sum::<f64>() / errors.len() as f64;
    let varies = errors.iter().any(|&error| (error - mean_error).abs() > 1e-9 * mean_error);
    if pairs.len() < PAIRS_MIN || !varies {
        let variance = (mean_error as f32).max(f32::MIN_POSITIVE);
        let calibration = SigmaQuality::compare(&vec![f64::from(variance); errors.len()], &errors)?;
        let uncertainty = Uncertainty::Constant { variance };
        return Ok(FittedUncertainty { uncertainty, calibration, left_out: Vec::new() });
    }
    let log_error = |error: f64| error.max(1e-9 * mean_error).ln();

    let anchors = sample(pairs.len(), ANCHORS_MAX, seed);
    let old = scaled(pairs.old().matrix(), evidence.input);
    let anchor_rows = old.select(&anchors);
    let search = NearestAnchors::new(&anchor_rows)?;
    let mut values: Vec<Vec<f32>> =
        vec![anchors.iter().map(|&item| log_error(errors[item]) as f32).collect()];
    if let Some(raw) = evidence.groups_left_out {
        let errors = true_errors(&new.select(&anchors), &evidence.geometry.conformed(raw.select(&anchors)));
        values.push(errors.into_iter().map(|error| log_error(error) as f32).collect());
    }
    values.push(local_spread(&search, &anchor_rows, &new.select(&anchors))?);
    let kind_feature = evidence.small_kind.map(|kind| {
        values.push(anchors.iter().map(|&item| f32::from(u8::from(kind[item]))).collect());
        values.len() - 1
    });
    let anchor_values = Matrix::from_fn(anchors.len(), values.len(), |anchor, value| values[value][anchor]);

    let rows = sample(pairs.len(), SAMPLE_MAX, seed.wrapping_add(1));
    let head =
        evidence.head.map(|head| sharpened(head, &outputs.select(&rows), &new.select(&rows))).transpose()?;
    let mut fitted = OutOfFold {
        anchors: anchor_rows,
        anchor_values,
        neighbours: NEIGHBOURS,
        centre: column_means(new).into_iter().map(|mean| mean as f32).collect(),
        intercept: 0.0,
        coefficients: Vec::new(),
        means: Vec::new(),
        log_minimum: f32::NEG_INFINITY,
        log_maximum: f32::INFINITY,
        head,
    };
    progress.check()?;
    let old = old.select(&rows);
    let itself = |row: usize, anchor: usize| anchors[anchor] == rows[row];
    let mut features = features(
        &fitted,
        &search,
        &old,
        &evidence.items_left_out.select(&rows),
        &outputs.select(&rows),
        itself,
    )?;
    let actual: Vec<f64> = rows.iter().map(|&item| errors[item]).collect();
    let mut targets: Vec<f64> = actual.iter().map(|&error| log_error(error)).collect();
    if let Some(raw) = evidence.groups_left_out {
        let raw = raw.select(&rows);
        let outputs = evidence.geometry.conformed(raw.clone());
        let its_group = |row: usize, anchor: usize| {
            let (row, anchor) = (rows[row], anchors[anchor]);
            row == anchor || (evidence.groups[row] >= 0 && evidence.groups[row] == evidence.groups[anchor])
        };
        features.extend(self::features(&fitted, &search, &old, &raw, &outputs, its_group)?);
        targets.extend(true_errors(&new.select(&rows), &outputs).into_iter().map(log_error));
    }

    let kinds: Option<Vec<(bool, f64)>> = evidence.small_kind.zip(kind_feature).map(|(kind, feature)| {
        rows.iter().enumerate().map(|(row, &item)| (kind[item], features[row][feature])).collect()
    });
    let checked = Checked::cross_validated(&features, &targets, (&actual, kinds.as_deref()), seed)?;
    let all: Vec<usize> = (0..targets.len()).collect();
    let regression = Regression::fit(&features, &targets, &all)?;
    let Level { all: level, of_kind } = checked.level;
    let mut intercept = regression.intercept + level;
    fitted.coefficients = regression.coefficients.iter().map(|&value| value as f32).collect();
    if let Some(feature) = kind_feature {
        fitted.coefficients[feature] += of_kind as f32;
        intercept += of_kind * regression.means[feature];
    }
    fitted.intercept = intercept as f32;
    fitted.means = regression.means.iter().map(|&value| value as f32).collect();
    fitted.log_minimum = (checked.smallest / 2.0).ln() as f32;
    fitted.log_maximum = (checked.largest * 2.0).ln() as f32;
    Ok(FittedUncertainty {
        uncertainty: Uncertainty::OutOfFold(fitted),
        calibration: SigmaQuality::compare(&checked.honest, &actual)?,
        left_out: rows.into_iter().zip(checked.honest).collect(),
    })
}

/// Kind of a pair: whether it is of the small kind, and what part of its neighbours are.
type OfKind = (bool, f64);

/// Level that is added to `log σ²`: the exponential of a mean of logs is below the mean.
#[derive(Clone, Copy, Default)]
struct Level {
    all: f64,
    /// Factor of the part of the small kind among the neighbours, where pairs are of two kinds.
    of_kind: f64,
}

impl Level {
    /// Returns the level at which the mean of σ² is the mean error over `rows`. With two kinds, it is so over
    /// each kind by itself, as far as the part of the small kind among the neighbours tells them apart.
    fn fitted(rows: &[usize], predicted: &[f64], actual: &[f64], kinds: Option<&[(bool, f64)]>) -> Self {
        /// Largest size of `of_kind`; beyond it, old vectors hardly tell the kinds apart.
        const OF_KIND_MAX: f64 = 3.0;
        let mut level = Self::default();
        let off = |level: Self, is_counted: &dyn Fn(usize) -> bool| {
            let sums =
                rows.iter().filter(|&&row| is_counted(row)).fold((0.0, 0.0), |(errors, expected), &row| {
                    (errors + actual[row], expected + (predicted[row] + level.at(row, kinds)).exp())
                });
            let off = (sums.0 / sums.1).ln();
            if off.is_finite() { off } else { 0.0 }
        };
        level.all += off(level, &|_| true);
        let Some(kinds) = kinds else { return level };
        for _ in 0..20 {
            level.of_kind += off(level, &|row| kinds[row].0);
            level.of_kind = level.of_kind.clamp(-OF_KIND_MAX, OF_KIND_MAX);
            level.all += off(level, &|row| !kinds[row].0);
        }
        // Every item is held to the level of all, whatever the kinds leave open.
        level.all += off(level, &|_| true);
        level
    }

    fn at(self, row: usize, kinds: Option<&[(bool, f64)]>) -> f64 {
        self.all + kinds.map_or(0.0, |kinds| self.of_kind * kinds[row].1)
    }
}

/// Results of regressions for the pairs that they left out.
struct Checked {
    level: Level,
    /// σ² with the level of the other folds. Its quality, level included, is then measured on pairs that had
    /// no part in either.
    honest: Vec<f64>,
    smallest: f64,
    largest: f64,
}

impl Checked {
    /// Fits regressions on folds and predicts the pairs that each left out. `actual` are the errors of the
    /// first rows of `features`; rows that repeat them are left out with them. `kinds` has for each pair its
    /// kind and the part of the small kind among its neighbours.
    fn cross_validated(
        features: &[Vec<f64>],
        targets: &[f64],
        (actual, kinds): (&[f64], Option<&[OfKind]>),
        seed: u64,
    ) -> Result<Self> {
        let rows = actual.len();
        let mut predicted = vec![0.0; rows];
        let fold = folds(rows, 5, seed);
        for f in 0..5 {
            let part: Vec<usize> = (0..targets.len()).filter(|&row| fold[row % rows] != f).collect();
            let regression = Regression::fit(features, targets, &part)?;
            for row in (0..rows).filter(|&row| fold[row] == f) {
                predicted[row] = regression.predict(&features[row]);
            }
        }
        let level_of = |rows: &[usize]| Level::fitted(rows, &predicted, actual, kinds);
        let level = level_of(&(0..rows).collect::<Vec<_>>());
        let levels: Vec<Level> = (0..5).map(|f| level_of(&parted(&fold, f).1)).collect();
        let honest = (0..rows).map(|row| (predicted[row] + levels[fold[row]].at(row, kinds)).exp()).collect();
        let corrected = (0..rows).map(|row| (predicted[row] + level.at(row, kinds)).exp());
        let smallest = corrected.clone().fold(f64::INFINITY, f64::min);
        Ok(Self { level, honest, smallest, largest: corrected.fold(0.0, f64::max) })
    }
}

/// Moves a jointly trained σ² into the unit of the squared error.
///
/// ψ follows the log of the loss that it was trained on (an error per coordinate, or relative to the
/// variance, with a discriminative part), and that is another unit. Its bias is moved so that the mean of σ²
/// over the pairs is their mean squared error. They are the pairs that it was trained on, so it stays as sure
/// of itself as it was published; the order that it makes does not change.
pub(crate) fn in_squared_units(
    uncertainty: Uncertainty,
    map: &Map,
    geometry: &Geometry,
    pairs: &Pairs,
) -> Result<Uncertainty> {
    let Uncertainty::Linear { weight, bias } = uncertainty else { return Ok(uncertainty) };
    let raw = map.outputs(pairs.old().matrix(), pairs.side())?;
    let expected: f64 = (0..raw.rows())
        .map(|row| {
            let products = raw.row(row).iter().zip(&weight).map(|(&a, &b)| f64::from(a) * f64::from(b));
            let log = products.sum::<f64>() + f64::from(bias);
            log.clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT).exp()
        })
        .sum();
    let actual: f64 = true_errors(pairs.new_vectors().matrix(), &geometry.conformed(raw)).into_iter().sum();
    let level = (actual / expected).ln();
    // A map that is right on every pair says nothing about a level.
    let level = if level.is_finite() { level } else { 0.0 };
    Ok(Uncertainty::Linear { weight, bias: (f64::from(bias) + level) as f32 })
}

/// Draws at most `limit` of `n` items at random, increasing.
fn sample(n: usize, limit: usize, seed: u64) -> Vec<usize> {
    if n <= limit {
        return (0..n).collect();
    }
    let mut items = shuffled(n, seed);
    items.truncate(limit);
    items.sort_unstable();
    items
}

/// Returns for every anchor the log of the mean squared distance of its new vector from those of its nearest
/// other anchors.
fn local_spread(search: &NearestAnchors, anchors: &Matrix, new: &Matrix) -> Result<Vec<f32>> {
    let nearest = search.search(anchors, NEIGHBOURS, |query, anchor| query == anchor)?;
    let spread: Vec<f64> = nearest
        .par_iter()
        .enumerate()
        .map(|(anchor, near)| {
            let distance = |&(_, other): &(f64, usize)| squared_distance(new.row(anchor), new.row(other));
            near.iter().map(distance).sum::<f64>() / near.len().max(1) as f64
        })
        .collect();
    let mean = spread.iter().sum::<f64>() / spread.len().max(1) as f64;
    let floor = (1e-9 * mean).max(f64::from(f32::MIN_POSITIVE));
    Ok(spread.into_iter().map(|value| value.max(floor).ln() as f32).collect())
}

/// Computes the features of every row: `[n][features]`.
fn features(
    model: &OutOfFold,
    search: &NearestAnchors,
    scaled: &Matrix,
    raw: &Matrix,
    outputs: &Matrix,
    leave_out: impl Fn(usize, usize) -> bool + Sync,
) -> Result<Vec<Vec<f64>>> {
    let nearest = search.search(scaled, model.neighbours, leave_out)?;
    let doubts = model.head.as_ref().map(|head| logits(head, outputs));
    let rows = nearest
        .par_iter()
        .enumerate()
        .map(|(row, near)| {
            let count = near.len().max(1) as f64;
            let mean_values = (0..model.anchor_values.columns()).map(|value| {
                near.iter().map(|&(_, anchor)| f64::from(model.anchor_values.row(anchor)[value])).sum::<f64>()
                    / count
            });
            let mean_distance = near.iter().map(|&(distance, _)| distance).sum::<f64>() / count;
            let raw = raw.row(row);
            let from_centre: Vec<f32> = raw.iter().zip(&model.centre).map(|(a, b)| a - b).collect();
            let doubt = doubts.as_ref().map(|logits| {
                let probabilities = softmax(&logits[row], 1.0);
                let entropy = probabilities.iter().map(|&p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum();
                (entropy, probabilities.iter().copied().fold(0.0, f64::max))
            });
            OutOfFold::features(
                mean_values,
                mean_distance,
                rehang_core::norm(raw),
                rehang_core::norm(&from_centre),
                doubt,
            )
            .collect()
        })
        .collect();
    Ok(rows)
}

/// Computes the logits of a head for every row, without any training margin.
pub(crate) fn logits(head: &Head, rows: &Matrix) -> Vec<Vec<f64>> {
    let d = rows.columns();
    let [wide_rows, wide_weight] = [rows, head.weight()]
        .map(|matrix| matrix.as_slice().iter().map(|&value| f64::from(value)).collect::<Vec<f64>>());
    let products = product(
        MatRef::from_row_major_slice(&wide_weight, head.classes(), d),
        MatRef::from_row_major_slice(&wide_rows, rows.rows(), d).transpose(),
    );
    let norms = head.weight().norms();
    let of_row = |row: usize| {
        let length = rehang_core::norm(rows.row(row));
        let of_class = |class: usize| match head.kind().scale() {
            None => products[(class, row)] + f64::from(head.bias()[class]),
            Some(scale) => {
                let lengths = length * norms[class];
                if lengths > 0.0 { f64::from(scale) * products[(class, row)] / lengths } else { 0.0 }
            }
        };
        (0..head.classes()).map(of_class).collect()
    };
    (0..rows.rows()).into_par_iter().map(of_row).collect()
}

/// Returns `exp(x)`, and 0 for numbers that are nothing beside 1: functions of numbers that small take many
/// times as long.
pub(crate) fn power_of_e(x: f64) -> f64 {
    if x < -60.0 { 0.0 } else { x.exp() }
}

fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| power_of_e((logit - largest) / temperature)).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// Sharpens a head: its logits are divided by the temperature T that minimises the mean cross-entropy of its
/// softmax on adapted vectors against its own answer on the native ones. T is found within e^±5 to three
/// digits.
pub(crate) fn sharpened(head: &Head, adapted: &Matrix, native: &Matrix) -> Result<Head> {
    /// Largest number of items that the temperature is found on; more make it no better.
    const ITEMS_MAX: usize = 2000;
    let step = adapted.rows().div_ceil(ITEMS_MAX).max(1);
    let rows: Vec<usize> = (0..adapted.rows()).step_by(step).collect();
    let [adapted, native] = [adapted, native].map(|all| logits(head, &all.select(&rows)));
    let answer = |logits: &Vec<f64>| {
        (0..logits.len()).fold(0, |best, class| if logits[class] > logits[best] { class } else { best })
    };
    let cases: Vec<(&Vec<f64>, usize)> = adapted.iter().zip(native.iter().map(answer)).collect();
    // The slope of the loss in 1/T, and the slope of that slope, both times the number of cases: mean and
    // variance of the logits less the answer's.
    let slopes = |log_factor: f64| -> (f64, f64) {
        let factor = log_factor.exp();
        let of_cases: Vec<(f64, f64)> = cases
            .par_iter()
            .map(|(logits, answer)| {
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut sums = [0.0; 3];
                for logit in *logits {
                    let below = logit - largest;
                    let weight = power_of_e(factor * below);
                    sums[0] += weight;
                    sums[1] += weight * below;
                    sums[2] += weight * below * below;
                }
                let mean = sums[1] / sums[0];
                (mean - (logits[*answer] - largest), sums[2] / sums[0] - mean * mean)
            })
            .collect();
        of_cases.iter().fold((0.0, 0.0), |(slope, curvature), case| (slope + case.0, curvature + case.1))
    };
    let factor = root_of_slope(slopes).exp() as f32;
    let times = |value: &f32| value * factor;
    match head.kind() {
        HeadKind::Softmax => {
            let weight = head.weight().as_slice().iter().map(times).collect();
            let bias = head.bias().iter().map(times).collect();
            Head::new(Matrix::new(head.dimension(), weight)?, Some(bias), HeadKind::Softmax)
        }
        HeadKind::ArcFace { scale, margin } => {
            let kind = HeadKind::ArcFace { scale: scale * factor, margin };
            Head::new(head.weight().clone(), Some(head.bias().to_vec()), kind)
        }
        HeadKind::CosFace { scale, margin } => {
            let kind = HeadKind::CosFace { scale: scale * factor, margin };
            Head::new(head.weight().clone(), Some(head.bias().to_vec()), kind)
        }
    }
}

/// Finds t where a convex function of `exp(t)` is smallest, `-5 ≤ t ≤ 5`, from its slope and the slope of
/// that. It takes steps of Newton, and halves where these would leave the known interval or make it smaller
/// by less than half.
fn root_of_slope(slopes: impl Fn(f64) -> (f64, f64)) -> f64 {
    const SURE: f64 = 1e-4;
    let (mut low, mut high) = (-5.0_f64, 5.0_f64);
    if slopes(high).0 <= 0.0 {
        return high;
    }
    let (mut at, mut last) = (0.0, high - low);
    loop {
        let (slope, curvature) = slopes(at);
        if slope <= 0.0 {
            low = at;
        } else {
            high = at;
        }
        let newton = at - slope / (curvature * at.exp());
        let is_good = newton > low && newton < high && 2.0 * (newton - at).abs() < last;
        let next = if is_good { newton } else { 0.5 * (low + high) };
        last = (next - at).abs();
        at = next;
        if last < SURE {
            return at;
        }
    }
}

/// A linear regression on standardised features with a light penalty; coefficients are in the features' own
/// units.
struct Regression {
    means: Vec<f64>,
    coefficients: Vec<f64>,
    intercept: f64,
    /// Range of the targets, widened by [`Regression::BEYOND`].
    range: (f64, f64),
}

impl Regression {
    /// Distance by which a prediction may lie outside of the targets that were learned from. A feature that
    /// hardly varied there and does on another row (the entropy of a head that is sure of nearly everything)
    /// would carry it to any number.
    const BEYOND: f64 = 2.0;

    fn fit(features: &[Vec<f64>], targets: &[f64], rows: &[usize]) -> Result<Self> {
        const PENALTY: f64 = 1e-3;
        let (n, p) = (rows.len().max(1) as f64, features.first().map_or(0, Vec::len));
        let mean = |value: &dyn Fn(usize) -> f64| rows.iter().map(|&row| value(row)).sum::<f64>() / n;
        let means: Vec<f64> = (0..p).map(|j| mean(&|row| features[row][j])).collect();
        let deviations: Vec<f64> =
            (0..p).map(|j| mean(&|row| (features[row][j] - means[j]).powi(2)).sqrt()).collect();
        let intercept = mean(&|row| targets[row]);
        // A feature that does not vary gets the coefficient 0.
        let scale = |j: usize| if deviations[j] > 1e-12 { 1.0 / deviations[j] } else { 0.0 };
        let z = |row: usize, j: usize| (features[row][j] - means[j]) * scale(j);
        let gram = Mat::from_fn(p, p, |i, j| {
            mean(&|row| z(row, i) * z(row, j)) + if i == j { PENALTY } else { 0.0 }
        });
        let shared = Mat::from_fn(p, 1, |i, _| mean(&|row| z(row, i) * (targets[row] - intercept)));
        let (values, vectors) = eigen(gram.as_ref(), "regression of the log residuals")?;
        let mut projected = product(vectors.transpose(), shared.as_ref());
        for (i, value) in values.iter().enumerate() {
            projected[(i, 0)] /= value.max(PENALTY);
        }
        let solution = product(vectors.as_ref(), projected.as_ref());
        let coefficients = (0..p).map(|j| solution[(j, 0)] * scale(j)).collect();
        let bounds = rows.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &row| {
            (low.min(targets[row]), high.max(targets[row]))
        });
        let range = (bounds.0 - Self::BEYOND, bounds.1 + Self::BEYOND);
        Ok(Self { means, coefficients, intercept, range })
    }

    fn predict(&self, features: &[f64]) -> f64 {
        let terms = features.iter().zip(&self.means).zip(&self.coefficients);
        let sum = terms.map(|((value, mean), coefficient)| coefficient * (value - mean)).sum::<f64>();
        (self.intercept + sum).max(self.range.0).min(self.range.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closed_form::ridge;
    use crate::tests::test_data::{pairs as make, random_matrix};

    /// Makes old vectors in two clouds; in the second one the map has nothing to go by.
    fn two_clouds(n: usize, seed: u64) -> Pairs {
        let noise = random_matrix(n, 3, seed);
        let surprise = random_matrix(n, 2, seed + 1);
        let far = |r: usize| (r % 2) as f32;
        let old = Matrix::from_fn(n, 3, |r, c| noise.row(r)[c] + 20.0 * far(r));
        let new = Matrix::from_fn(n, 2, |r, c| noise.row(r)[c] + (0.05 + far(r)) * surprise.row(r)[c]);
        make(old, new, None)
    }

    fn ridge_map(pairs: &Pairs) -> Result<Map> {
        Ok(ridge::fit(pairs, &Progress::default())?.map)
    }

    fn evidence(raw: &Matrix, input: InputScaling) -> Evidence<'_> {
        Evidence {
            items_left_out: raw,
            groups_left_out: None,
            groups: &[],
            geometry: &Geometry::Raw,
            input,
            head: None,
            small_kind: None,
        }
    }

    #[test]
    fn a_feature_that_hardly_varied_carries_no_prediction_away() {
        let features: Vec<Vec<f64>> = (0..40).map(|row| vec![f64::from(row % 2) * 1e-9]).collect();
        let targets: Vec<f64> = (0..40).map(|row| f64::from(row % 2) - 5.0).collect();
        let regression = Regression::fit(&features, &targets, &(0..40).collect::<Vec<_>>()).unwrap();
        assert!((regression.predict(&[1e-9]) + 4.0).abs() < 0.01);
        assert_eq!(regression.predict(&[1.0]), -2.0);
        assert_eq!(regression.predict(&[-1.0]), -7.0);
    }

    #[test]
    fn out_of_fold_outputs_are_those_of_maps_that_had_not_seen_the_pair() {
        let data = two_clouds(60, 1);
        let fold = folds(60, 3, 0);
        let outputs = cross_fit(&data, &fold, |pairs, _| ridge_map(pairs), &Progress::default()).unwrap();
        let item = 17;
        let other_items: Vec<usize> = (0..60).filter(|&other| fold[other] != fold[item]).collect();
        let map = ridge_map(&data.select(&other_items)).unwrap();
        let alone = map.outputs(data.select(&[item]).old().matrix(), None).unwrap();
        assert!(crate::tests::test_data::largest_difference(&alone, &outputs.select(&[item])) < 1e-6);
        assert!(cross_fit(&data, &[0; 60], |pairs, _| ridge_map(pairs), &Progress::default()).is_err());
    }

    #[test]
    fn the_cloud_that_cannot_be_predicted_is_found_and_calibrated() {
        let data = two_clouds(900, 5);
        let map = ridge_map(&data).unwrap();
        let raw =
            cross_fit(&data, &folds(900, 5, 0), |pairs, _| ridge_map(pairs), &Progress::default()).unwrap();
        let fitted = fit(&data, evidence(&raw, map.input), 0, &Progress::default()).unwrap();
        assert!(fitted.calibration.kendall_tau > Some(0.4), "{:?}", fitted.calibration.kendall_tau);
        // The level is not fitted on the pairs that it is measured on, so the ratio is near 1 and not exactly
        // there.
        let ratio = fitted.calibration.calibration.ratio;
        assert!((0.9..1.1).contains(&ratio) && (ratio - 1.0).abs() > 1e-6, "{ratio}");
        assert!(matches!(fitted.uncertainty, Uncertainty::OutOfFold(_)), "a regression is expected");

        let fresh = two_clouds(400, 50);
        let (old, new) = (data.old().space().clone(), data.new_vectors().space().clone());
        let adapter = rehang_core::Adapter::new(old, new, map, fitted.uncertainty);
        let adapted = rehang_core::adapter::apply(&adapter, fresh.old(), None, &Progress::default()).unwrap();
        let predicted: Vec<f64> = adapted.variance.iter().map(|&variance| variance.into()).collect();
        let actual = true_errors(fresh.new_vectors().matrix(), adapted.vectors.matrix());
        let sigma = SigmaQuality::compare(&predicted, &actual).unwrap();
        assert!(sigma.kendall_tau > Some(0.4) && (0.7..1.4).contains(&sigma.calibration.ratio), "{sigma:?}");
    }

    #[test]
    fn few_pairs_and_exact_maps_get_a_constant() {
        let data = two_clouds(20, 1);
        let raw = random_matrix(20, 2, 9);
        let constant = fit(&data, evidence(&raw, InputScaling::AsIs), 0, &Progress::default());
        assert!(
            matches!(constant.unwrap().uncertainty, Uncertainty::Constant { variance } if variance > 0.0)
        );
        let data = two_clouds(100, 1);
        let exact = data.new_vectors().matrix().clone();
        let constant = fit(&data, evidence(&exact, InputScaling::AsIs), 0, &Progress::default());
        assert!(
            matches!(constant.unwrap().uncertainty, Uncertainty::Constant { variance } if variance > 0.0)
        );
    }

    #[test]
    fn the_bottom_of_a_convex_function_is_found_between_its_ends() {
        for bottom in [1e-9_f64, 0.01, 0.5, 1.0, 3.0, 140.0, 1e9] {
            let wanted = bottom.ln().clamp(-5.0, 5.0);
            let parabola = root_of_slope(|t| (t.exp() - bottom, 1.0));
            let exponential = root_of_slope(|t| {
                let decay = (-t.exp()).exp();
                ((-bottom).exp() - decay, decay)
            });
            assert!((parabola - wanted).abs() < 1e-3, "{bottom}: {parabola}");
            // Beyond 30 nothing is left of the slope.
            assert!((exponential - wanted).abs() < 1e-3 || bottom > 30.0, "{bottom}: {exponential}");
        }
    }

    #[test]
    fn a_head_is_sharpened_to_the_certainty_that_adapted_vectors_deserve() {
        let native = random_matrix(500, 3, 1);
        let noise = random_matrix(500, 3, 2);
        let adapted = Matrix::from_fn(500, 3, |r, c| native.row(r)[c] + noise.row(r)[c]);
        let weight = Matrix::from_fn(3, 3, |r, c| if r == c { 100.0 } else { 0.0 });
        let head = Head::new(weight, None, HeadKind::Softmax).unwrap();
        let soft = sharpened(&head, &adapted, &native).unwrap();
        assert!((0.3..4.0).contains(&soft.weight().row(0)[0]), "{}", soft.weight().row(0)[0]);
    }
}
