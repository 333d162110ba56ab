//! Normalisation from bytes and coordinates to numbers of about one size.

use rehang_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::dataset::ExampleInputs;

/// Mean that is taken off each channel, and deviation that it is then divided by.
///
/// A pixel becomes `(value / 255 − mean) / std`, channel by channel; a coordinate of a vector becomes
/// `(value − mean) / std`, coordinate by coordinate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// Means, `[channels]`, or `[coordinates]`.
    pub mean: Vec<f32>,
    /// Standard deviations, of the same shape as `mean`; never 0.
    pub std: Vec<f32>,
}

impl Normalisation {
    /// Measures mean and standard deviation (over n, not n − 1) of some rows: those that are trained on, and
    /// no others.
    ///
    /// A channel that is the same everywhere has the deviation 1 here, so that it becomes 0.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Empty`] where no row is named; [`ErrorKind::NotFinite`] for vectors with NaN;
    /// [`ErrorKind::NotFound`] for a row that is not there.
    pub fn measured(inputs: &ExampleInputs, rows: &[usize]) -> Result<Self> {
        if rows.is_empty() {
            return Err(Error::empty("the list of rows to measure"));
        }
        if let Some(row) = rows.iter().find(|&&row| row >= inputs.len()) {
            return Err(Error::not_found("row", row, format!("{} examples", inputs.len())));
        }
        let channels = channels(inputs);
        let mut mean = vec![0.0_f32; channels];
        let mut std = vec![1.0_f32; channels];
        match inputs {
            ExampleInputs::Images(images) => {
                let plane = images.height * images.width;
                // Counts of bytes give the exact sums in one pass.
                let mut counts = vec![[0_u64; 256]; channels];
                for &row in rows {
                    for (counts, plane) in counts.iter_mut().zip(images.image(row).chunks_exact(plane)) {
                        for &pixel in plane {
                            counts[usize::from(pixel)] += 1;
                        }
                    }
                }
                let total = (rows.len() * plane) as f64;
                for (channel, counts) in counts.iter().enumerate() {
                    let sum = |of: &dyn Fn(f64) -> f64| {
                        counts
                            .iter()
                            .enumerate()
                            .map(|(value, &n)| of(value as f64 / 255.0) * n as f64)
                            .sum::<f64>()
                            / total
                    };
                    let middle = sum(&|value| value);
                    let variance = sum(&|value| (value - middle).powi(2));
                    mean[channel] = middle as f32;
                    // The mean of one and the same value may be a rounding away from it, which is no
                    // deviation.
                    if counts.iter().filter(|&&n| n > 0).count() > 1 {
                        std[channel] = deviation(variance);
                    }
                }
            }
            ExampleInputs::Features(features) => {
                let total = rows.len() as f64;
                let mut sums = vec![0.0_f64; channels];
                for &row in rows {
                    for (column, &value) in features.row(row).iter().enumerate() {
                        if !value.is_finite() {
                            return Err(
                                ErrorKind::NotFinite { what: "the features".into(), row, column }.into()
                            );
                        }
                        sums[column] += f64::from(value);
                    }
                }
                let middle: Vec<f64> = sums.iter().map(|sum| sum / total).collect();
                let mut squares = vec![0.0_f64; channels];
                for &row in rows {
                    for ((square, &value), middle) in squares.iter_mut().zip(features.row(row)).zip(&middle) {
                        *square += (f64::from(value) - middle).powi(2);
                    }
                }
                for (channel, (middle, square)) in middle.iter().zip(squares).enumerate() {
                    mean[channel] = *middle as f32;
                    std[channel] = deviation(square / total);
                }
            }
        }
        Ok(Self { mean, std })
    }

    /// Fails where there is not one finite mean and one deviation above 0 a channel.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`].
    pub fn check(&self, inputs: &ExampleInputs) -> Result<()> {
        let channels = channels(inputs);
        let wrong = |option: &str, values: &[f32], rule: &str| {
            let given =
                if values.len() > 8 { format!("{} numbers", values.len()) } else { format!("{values:?}") };
            Err(Error::option(option, given, format!("{rule}, one for each of {channels} channels")))
        };
        if self.mean.len() != channels || self.mean.iter().any(|value| !value.is_finite()) {
            return wrong("mean", &self.mean, "finite numbers");
        }
        if self.std.len() != channels || self.std.iter().any(|&value| !value.is_finite() || value <= 0.0) {
            return wrong("std", &self.std, "finite numbers above 0");
        }
        Ok(())
    }

    /// Normalises pixels of a channel, which are on the scale of bytes before.
    pub(super) fn pixels(&self, channel: usize, values: &mut [f32]) {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        for value in values {
            *value = (*value / 255.0 - mean) / std;
        }
    }

    /// Normalises a coordinate of a vector.
    pub(super) fn coordinate(&self, column: usize, value: f32) -> f32 {
        (value - self.mean[column]) / self.std[column]
    }
}

fn channels(inputs: &ExampleInputs) -> usize {
    match inputs {
        ExampleInputs::Images(images) => images.channels,
        ExampleInputs::Features(features) => features.columns(),
    }
}

fn deviation(variance: f64) -> f32 {
    let std = variance.sqrt() as f32;
    if std > 0.0 { std } else { 1.0 }
}
