//! Guards against vectors of the wrong side: by their space, by their width, and by what they look like.

use super::{Adapter, expect_finite, expect_width};
use crate::error::{ErrorKind, Result};
use crate::space::Space;
use crate::vectors::{Matrix, norm};

impl Adapter {
    /// Succeeds only where vectors of `space` are what this adapter reads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDirection`] where the vectors already are of the new space, or have its width and not the
    /// old one's; [`ErrorKind::WidthMismatch`] for any other width; [`ErrorKind::SpaceMismatch`] for another space of
    /// the right width.
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

    /// Succeeds only where rows of `columns` coordinates can be what this adapter reads: for files that do not say
    /// their space.
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

/// What the old vectors looked like that an adapter was fitted on, coordinate by coordinate.
#[derive(Debug, Clone, PartialEq)]
pub struct InputStatistics {
    /// Mean vector, `[d_old]`.
    pub mean: Vec<f32>,
    /// Standard deviation of each coordinate (divided by n), `[d_old]`.
    pub standard_deviation: Vec<f32>,
    /// Mean length.
    pub mean_norm: f32,
}

impl InputStatistics {
    /// The statistics of old vectors `[n, d_old]`, not scaled; zeros for no rows.
    pub fn of(rows: &Matrix) -> Self {
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
    let count = rows.rows().max(1) as f64;
    let mut mean = vec![0.0; rows.columns()];
    for row in 0..rows.rows() {
        for (sum, &value) in mean.iter_mut().zip(rows.row(row)) {
            *sum += f64::from(value);
        }
    }
    mean.iter_mut().for_each(|sum| *sum /= count);
    let mut squares = vec![0.0; rows.columns()];
    for row in 0..rows.rows() {
        for ((sum, &value), &mean) in squares.iter_mut().zip(rows.row(row)).zip(&mean) {
            *sum += (f64::from(value) - mean) * (f64::from(value) - mean);
        }
    }
    squares.iter_mut().for_each(|sum| *sum = (*sum / count).sqrt());
    (mean, squares)
}

/// How far vectors are from the old vectors that an adapter was fitted on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    /// Mean over coordinates of `min(|mean − fitted mean| / fitted standard deviation, 10)`.
    pub mean_shift: f64,
    /// Mean over coordinates of `min(|ln(standard deviation / fitted standard deviation)|, 10)`.
    pub spread_shift: f64,
}

/// Largest [`Drift::mean_shift`] that is not suspicious.
pub const MEAN_SHIFT_MAX: f64 = 0.8;

/// Largest [`Drift::spread_shift`] that is not suspicious.
pub const SPREAD_SHIFT_MAX: f64 = 0.6;

/// Fewest rows whose means and spreads say anything.
pub const DRIFT_ROWS_MIN: usize = 64;

impl Drift {
    /// Whether the vectors do not look like the ones fitted on: above [`MEAN_SHIFT_MAX`] or [`SPREAD_SHIFT_MAX`].
    pub fn is_suspicious(&self) -> bool {
        self.mean_shift > MEAN_SHIFT_MAX || self.spread_shift > SPREAD_SHIFT_MAX
    }
}

/// Compares vectors `[n, d_old]` with the statistics of the old vectors that an adapter was fitted on: a warning
/// against vectors of another model (or of the new one) where widths agree and nobody declared a space.
///
/// `None` where that cannot be told: the adapter keeps no statistics, or there are fewer than [`DRIFT_ROWS_MIN`] rows.
///
/// # What it can and cannot see
///
/// Only means and spreads of coordinates are compared. Two models whose coordinates are alike in both (whitened
/// embeddings, say) look the same to it. Other items of the same model lie well below the thresholds unless they are
/// of a single kind: a gallery of one class is legitimately suspicious, so this is a warning and never an error.
///
/// A coordinate that hardly varied while fitting counts with a hundredth of the typical standard deviation, so that a
/// dead coordinate does not decide.
///
/// # Errors
///
/// As [`Adapter::expect_input_width`]; [`ErrorKind::NotFinite`].
pub fn input_drift(adapter: &Adapter, rows: &Matrix) -> Result<Option<Drift>> {
    const LIMIT: f64 = 10.0;
    adapter.expect_input_width(rows.columns())?;
    rows.check_finite("old vectors")?;
    let Some(fitted) = &adapter.input_statistics else { return Ok(None) };
    if rows.rows() < DRIFT_ROWS_MIN {
        return Ok(None);
    }
    let columns = rows.columns() as f64;
    let typical = norm(&fitted.standard_deviation) / columns.sqrt();
    // Where nothing varied at all, any positive floor makes every difference count fully.
    let floor = (typical * 0.01).max(f64::from(f32::MIN_POSITIVE));
    let (means, deviations) = moments(rows);
    let (mut mean_shift, mut spread_shift) = (0.0, 0.0);
    for column in 0..rows.columns() {
        let deviation = f64::from(fitted.standard_deviation[column]).max(floor);
        mean_shift += ((means[column] - f64::from(fitted.mean[column])).abs() / deviation).min(LIMIT);
        spread_shift += (deviations[column].max(floor) / deviation).ln().abs().min(LIMIT);
    }
    Ok(Some(Drift { mean_shift: mean_shift / columns, spread_shift: spread_shift / columns }))
}
