//! Guards against vectors of the wrong side, recognised by their space, their width and their statistics.

use super::definition::{Adapter, InputScaling};
use crate::check::{expect_finite, expect_width};
use crate::error::{ErrorKind, Result};
use crate::length::norm;
use crate::space::Space;
use crate::vectors::{Matrix, column_means};

impl Adapter {
    /// Succeeds only where this adapter reads vectors of `space`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDirection`] where the vectors already are of the new space, or have its width and
    /// not that of the old one; [`ErrorKind::WidthMismatch`] for any other width;
    /// [`ErrorKind::SpaceMismatch`] for another space of the right width.
    pub fn expect_input(&self, space: &Space) -> Result<()> {
        if *space == self.old {
            return Ok(());
        }
        if *space == self.new {
            let evidence = format!("the vectors given are of {space}, the space that the adapter writes");
            return Err(ErrorKind::WrongDirection { evidence }.into());
        }
        self.expect_input_width(space.dimension)?;
        self.old.expect_same(space)
    }

    /// Succeeds only where this adapter can read rows of `columns` coordinates. It serves files that do not
    /// state their space.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDirection`] for the width of the new space where the old one has another,
    /// [`ErrorKind::WidthMismatch`] for any other wrong width.
    pub fn expect_input_width(&self, columns: usize) -> Result<()> {
        let (d_old, d_new) = (self.old.dimension, self.new.dimension);
        if columns == d_new && columns != d_old {
            let evidence = format!(
                "the adapter reads {} and the vectors given have {d_new} coordinates, as {} has",
                self.old, self.new
            );
            return Err(ErrorKind::WrongDirection { evidence }.into());
        }
        expect_width("old vectors", d_old, columns)
    }
}

/// Statistics of the old vectors that an adapter was fitted on, coordinate by coordinate.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct InputStatistics {
    /// Mean vector, `[d_old]`.
    pub mean: Vec<f32>,
    /// Standard deviation of each coordinate (divided by n), `[d_old]`.
    pub standard_deviation: Vec<f32>,
    /// Mean length of the vectors.
    pub mean_norm: f32,
}

impl InputStatistics {
    /// Computes the statistics of old vectors `[n, d_old]` as they are, not scaled; zeros where there are no
    /// rows.
    pub fn from_rows(rows: &Matrix) -> Self {
        let (mean, standard_deviation) = moments(rows);
        let count = rows.rows().max(1) as f64;
        Self {
            mean: mean.into_iter().map(|value| value as f32).collect(),
            standard_deviation: standard_deviation.into_iter().map(|value| value as f32).collect(),
            mean_norm: (rows.norms().iter().sum::<f64>() / count) as f32,
        }
    }

    pub(super) fn check(&self, d_old: usize) -> Result<()> {
        expect_width("mean of the fitted old vectors", d_old, self.mean.len())?;
        expect_width("standard deviation of the fitted old vectors", d_old, self.standard_deviation.len())?;
        expect_finite("mean of the fitted old vectors", &self.mean)?;
        expect_finite("standard deviation of the fitted old vectors", &self.standard_deviation)?;
        expect_finite("mean length of the fitted old vectors", &[self.mean_norm])
    }
}

/// Mean and standard deviation of every coordinate, in double precision.
fn moments(rows: &Matrix) -> (Vec<f64>, Vec<f64>) {
    let means = column_means(rows, |value, _| value);
    let squares = column_means(rows, |value, column| (value - means[column]) * (value - means[column]));
    (means, squares.into_iter().map(f64::sqrt).collect())
}

/// Likeness of vectors to the old vectors that an adapter was fitted on.
///
/// Every model has a pattern in its coordinates: some have a larger mean than others, some vary more. This
/// pattern differs little between sets of items, and entirely between models.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Drift {
    /// Correlation, over coordinates, of the mean vector with the fitted one. `None` where the fitted means
    /// differ too little from each other to be recognised.
    pub mean_correlation: Option<f64>,
    /// Correlation, over coordinates, of the logs of the standard deviations. `None` where the fitted ones
    /// differ too little from each other.
    pub spread_correlation: Option<f64>,
    /// Mean length divided by the fitted one. `None` where the adapter scales its inputs to length 1, so that
    /// lengths do not matter.
    pub norm_ratio: Option<f64>,
}

/// Correlation from which on a pattern counts as recognised.
///
/// Measured on five real galleries of 64 to 128 coordinates. Other items of the same model, those of unseen
/// classes included: 0.79 to 1.00. Vectors of another model, or the same vectors with coordinates in another
/// order: −0.23 to 0.23.
pub const DRIFT_CORRELATION_MIN: f64 = 0.4;

/// Largest factor between mean lengths, either way, that is not suspicious.
pub const DRIFT_NORM_RATIO_MAX: f64 = 3.0;

/// Fewest rows whose pattern says anything.
pub const DRIFT_ROWS_MIN: usize = 64;

/// Fewest coordinates whose pattern says anything: among 16 unrelated ones a correlation of 0.4 is already
/// rare.
pub const DRIFT_COLUMNS_MIN: usize = 16;

impl Drift {
    /// Whether the vectors look unlike those that the adapter was fitted on: neither pattern is recognised
    /// ([`DRIFT_CORRELATION_MIN`]), or lengths are of another order ([`DRIFT_NORM_RATIO_MAX`]).
    pub fn is_suspicious(&self) -> bool {
        let mut patterns = [self.mean_correlation, self.spread_correlation].into_iter().flatten().peekable();
        let compared = patterns.peek().is_some();
        let recognised = patterns.any(|correlation| correlation >= DRIFT_CORRELATION_MIN);
        let other_lengths =
            |ratio: f64| !(1.0 / DRIFT_NORM_RATIO_MAX..=DRIFT_NORM_RATIO_MAX).contains(&ratio);
        (compared && !recognised) || self.norm_ratio.is_some_and(other_lengths)
    }
}

/// Compares vectors `[n, d_old]` with the statistics of the old vectors that an adapter was fitted on. It
/// warns of vectors of another model (or of the new one) where widths agree and no space was declared.
///
/// `None` where the likeness cannot be told: the adapter keeps no statistics, or there are fewer than
/// [`DRIFT_ROWS_MIN`] rows or [`DRIFT_COLUMNS_MIN`] coordinates.
///
/// # What the comparison can and cannot see
///
/// Only means, spreads and lengths are compared. Two models whose coordinates agree in these (whitened
/// embeddings, or a model fine-tuned from the other) cannot be told apart. A file that holds a single kind of
/// item, or whose first rows do, can look foreign without being so; give rows from all over it. So this is a
/// warning and never an error.
///
/// # Errors
///
/// As [`Adapter::expect_input_width`]; [`ErrorKind::NotFinite`].
pub fn input_drift(adapter: &Adapter, rows: &Matrix) -> Result<Option<Drift>> {
    // Weaker patterns than these drown in the noise of DRIFT_ROWS_MIN rows (0.13 for means, 0.09 for log
    // spreads).
    const MEAN_PATTERN_MIN: f64 = 0.2;
    const SPREAD_PATTERN_MIN: f64 = 0.15;
    adapter.expect_input_width(rows.columns())?;
    rows.check_finite("old vectors")?;
    let Some(fitted) = &adapter.input_statistics else { return Ok(None) };
    if rows.rows() < DRIFT_ROWS_MIN || rows.columns() < DRIFT_COLUMNS_MIN {
        return Ok(None);
    }
    let (means, deviations) = moments(rows);
    let fitted_means: Vec<f64> = fitted.mean.iter().map(|&value| f64::from(value)).collect();
    let typical = norm(&fitted.standard_deviation) / (rows.columns() as f64).sqrt();
    // A coordinate that hardly varies counts with a hundredth of the typical spread, so that a dead one
    // cannot decide.
    let floor = (typical * 0.01).max(f64::from(f32::MIN_POSITIVE));
    let fitted_logs: Vec<f64> =
        fitted.standard_deviation.iter().map(|&value| f64::from(value).max(floor).ln()).collect();
    let logs: Vec<f64> = deviations.iter().map(|value| value.max(floor).ln()).collect();
    let norm_ratio = (adapter.map.input == InputScaling::AsIs && fitted.mean_norm > 0.0)
        .then(|| rows.norms().iter().sum::<f64>() / rows.rows() as f64 / f64::from(fitted.mean_norm));
    Ok(Some(Drift {
        mean_correlation: correlation(&fitted_means, &means, MEAN_PATTERN_MIN * typical),
        spread_correlation: correlation(&fitted_logs, &logs, SPREAD_PATTERN_MIN),
        norm_ratio,
    }))
}

/// Describes how old vectors `[n, d_old]` of `what` look unlike those that an adapter was fitted on, in words
/// without a full stop. `None` where they look like them, or where that [cannot be told](input_drift).
///
/// Where both spaces have one width, such vectors may be the new model's. That is an error, unless `force`
/// says that the caller knows better.
///
/// # Errors
///
/// [`ErrorKind::WrongDirection`]; as [`input_drift`].
pub fn unlike_pairs(adapter: &Adapter, rows: &Matrix, what: &str, force: bool) -> Result<Option<String>> {
    let Some(drift) = input_drift(adapter, rows)?.filter(Drift::is_suspicious) else { return Ok(None) };
    let pattern = |correlation: Option<f64>| correlation.map_or("–".into(), |value| format!("{value:.2}"));
    let description = format!(
        "{what} does not look like the vectors that the adapter was fitted on (its coordinates' means correlate {} with those, \
         their spreads {}, lengths are {} times as large)",
        pattern(drift.mean_correlation),
        pattern(drift.spread_correlation),
        pattern(drift.norm_ratio)
    );
    if !force && adapter.old.dimension == adapter.new.dimension {
        let evidence = format!(
            "{description}, and both models have {} coordinates; \
             pass `force` if these are old vectors all the same",
            adapter.old.dimension
        );
        return Err(ErrorKind::WrongDirection { evidence }.into());
    }
    Ok(Some(description))
}

/// Pearson's correlation. `None` where the fitted values' own standard deviation is below `weakest` or 0; 0
/// where the other values are all equal.
fn correlation(fitted: &[f64], measured: &[f64], weakest: f64) -> Option<f64> {
    let count = fitted.len() as f64;
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / count;
        values.iter().map(|value| value - mean).collect()
    };
    let (fitted, measured) = (centred(fitted), centred(measured));
    let product = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(a, b)| a * b).sum::<f64>();
    let (fitted_square, measured_square) = (product(&fitted, &fitted), product(&measured, &measured));
    if fitted_square <= 0.0 || (fitted_square / count).sqrt() < weakest {
        return None;
    }
    let scale = (fitted_square * measured_square).sqrt();
    Some(if scale > 0.0 { product(&fitted, &measured) / scale } else { 0.0 })
}
