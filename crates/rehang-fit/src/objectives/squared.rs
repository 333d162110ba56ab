//! Squared error: how far an adapted vector is from the native one.
//!
//! With `h = h(o)`, `v` the new model's vector of the same item and `d` their width:
//!
//! ```text
//! sum                     L = ‖v − h‖²                 ∂L/∂h = 2·(h − v)
//! mean over coordinates   L = ‖v − h‖² / d             ∂L/∂h = 2·(h − v)/d
//! relative to variance    L = ‖v − h‖² / V             ∂L/∂h = 2·(h − v)/V,   V = mean of ‖v − mean v‖²
//! one minus cosine        L = 1 − ⟨ĥ, v̂⟩               ∂L/∂h = (⟨ĥ, v̂⟩·ĥ − v̂)/‖h‖,   x̂ = x/‖x‖
//! ```
//!
//! The first form is `L_l2` of FCT and FastFill as it is printed (`papers/fastfill.txt`, before equation
//! (3)); the second is as the reference code has it. Their size depends on the scale of the vectors: on unit
//! vectors of 384 coordinates the mean is below 0.003 and drowns beside a cross-entropy. The last two forms
//! do not depend on the scale: predicting the mean of the new vectors costs 1 in the third and at most 1 in
//! the last.

use rayon::prelude::*;
use rehang_core::adapter::true_errors;
use rehang_core::{Matrix, Pairs};

rehang_core::named! {
    /// The unit in which the squared error is measured.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SquaredScale ("squared") {
        /// `‖v − h‖²/d` (the published code).
        MeanOverCoordinates = "mean",
        /// `‖v − h‖²` (FastFill (3) as it is printed).
        Sum = "sum",
        /// `‖v − h‖²/V`, with `V` the total variance of the new vectors of the pairs.
        RelativeToVariance = "variance",
        /// `1 − cos(h, v)`: only the direction counts.
        OneMinusCosine = "cosine",
    }
}

/// Averages the rows of `[n, d]`; every value is divided before it is added.
pub(crate) fn mean_row(rows: &Matrix) -> Vec<f64> {
    let mut mean = vec![0.0; rows.columns()];
    for row in 0..rows.rows() {
        for (mean, &value) in mean.iter_mut().zip(rows.row(row)) {
            *mean += f64::from(value) / rows.rows() as f64;
        }
    }
    mean
}

/// Returns `V = mean ‖v − mean v‖²` over the rows of `[n, d]`, in `f64`; 0 for equal rows or none.
pub fn total_variance(rows: &Matrix) -> f64 {
    let (n, mean) = (rows.rows().max(1) as f64, mean_row(rows));
    let squares = |row: usize| -> f64 {
        rows.row(row).iter().zip(&mean).map(|(&value, mean)| (f64::from(value) - mean).powi(2)).sum()
    };
    (0..rows.rows()).map(squares).sum::<f64>() / n
}

/// Adds `weight·L` of every row to `values` and its derivative to `gradient`.
///
/// `outputs` and `targets` are `[n, d]`, `values` is `[n]`. `variance` is V above and must be positive for
/// [`SquaredScale::RelativeToVariance`]; the other scales do not read it. A row whose output or target has
/// length 0 costs 1 under [`SquaredScale::OneMinusCosine`] and has no gradient there.
pub fn squared_error(
    outputs: &[f32],
    targets: &[f32],
    d: usize,
    scale: SquaredScale,
    variance: f64,
    weight: f32,
    values: &mut [f32],
    gradient: &mut [f32],
) {
    let unit = match scale {
        SquaredScale::MeanOverCoordinates => d as f64,
        SquaredScale::RelativeToVariance => variance,
        SquaredScale::Sum | SquaredScale::OneMinusCosine => 1.0,
    };
    outputs
        .par_chunks_exact(d)
        .zip(targets.par_chunks_exact(d))
        .zip(gradient.par_chunks_exact_mut(d))
        .zip(values.par_iter_mut())
        .with_min_len(64)
        .for_each(|(((output, target), gradient), value)| {
            *value += if scale == SquaredScale::OneMinusCosine {
                cosine_row(output, target, weight, gradient)
            } else {
                difference_row(output, target, f64::from(weight) / unit, gradient)
            };
        });
}

fn difference_row(output: &[f32], target: &[f32], factor: f64, gradient: &mut [f32]) -> f32 {
    let slope = (2.0 * factor) as f32;
    let mut sum = 0.0_f64;
    for ((gradient, &output), &target) in gradient.iter_mut().zip(output).zip(target) {
        let difference = output - target;
        sum += f64::from(difference) * f64::from(difference);
        *gradient += slope * difference;
    }
    (sum * factor) as f32
}

fn cosine_row(output: &[f32], target: &[f32], weight: f32, gradient: &mut [f32]) -> f32 {
    let (mut product, mut output_square, mut target_square) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (&output, &target) in output.iter().zip(target) {
        let (output, target) = (f64::from(output), f64::from(target));
        product += output * target;
        output_square += output * output;
        target_square += target * target;
    }
    if output_square == 0.0 || target_square == 0.0 {
        return weight;
    }
    let cosine = product / (output_square.sqrt() * target_square.sqrt());
    let along = f64::from(weight) * cosine / output_square;
    let towards = f64::from(weight) / (output_square.sqrt() * target_square.sqrt());
    for ((gradient, &output), &target) in gradient.iter_mut().zip(output).zip(target) {
        *gradient += (along * f64::from(output) - towards * f64::from(target)) as f32;
    }
    (f64::from(weight) * (1.0 - cosine)) as f32
}

/// Returns the squared error relative to the variance of the new vectors: 0 is perfect, 1 is as good as their
/// mean.
///
/// Where the new vectors do not vary it is 0 for a perfect map and infinite for any other.
pub(crate) fn relative_error(outputs: &Matrix, pairs: &Pairs) -> f64 {
    let new = pairs.new_vectors().matrix();
    let error: f64 = true_errors(new, outputs).iter().sum();
    let total = total_variance(new) * new.rows() as f64;
    if error == 0.0 { 0.0 } else { error / total }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::finite_differences::{check, numbers};

    #[test]
    fn values_computed_by_hand() {
        // h = (3, 4), v = (0, 1): ‖v − h‖² = 18, cos = 4/5.
        for (scale, expected) in SquaredScale::ALL.into_iter().zip([9.0, 18.0, 1.8, 0.2]) {
            let (mut values, mut gradient) = ([0.0], [0.0; 2]);
            squared_error(&[3.0, 4.0], &[0.0, 1.0], 2, scale, 10.0, 1.0, &mut values, &mut gradient);
            assert!((values[0] - expected).abs() < 1e-6, "{scale:?}");
        }
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let (d, n) = (7, 3);
        let (outputs, targets) = (numbers(n * d, 1), numbers(n * d, 2));
        for scale in SquaredScale::ALL {
            let total = |outputs: &[f32], gradient: &mut [f32]| -> f64 {
                let mut values = vec![0.0; n];
                squared_error(outputs, &targets, d, scale, 2.5, 0.7, &mut values, gradient);
                values.iter().map(|&value| f64::from(value)).sum()
            };
            let mut gradient = vec![0.0; n * d];
            total(&outputs, &mut gradient);
            check(&outputs, &gradient, 2e-4, |at| total(at, &mut vec![0.0; n * d]));
        }
    }

    #[test]
    fn a_zero_output_costs_one_on_the_sphere_and_pulls_nowhere() {
        let (mut values, mut gradient) = ([0.0], [0.0; 2]);
        let scale = SquaredScale::OneMinusCosine;
        squared_error(&[0.0, 0.0], &[0.0, 1.0], 2, scale, 1.0, 1.0, &mut values, &mut gradient);
        assert_eq!((values, gradient), ([1.0], [0.0, 0.0]));
    }

    #[test]
    fn predicting_the_mean_costs_one_relative_to_the_variance() {
        let targets = Matrix::new(2, vec![1.0, 0.0, -1.0, 0.0, 0.0, 3.0, 0.0, -3.0]).unwrap();
        let variance = total_variance(&targets);
        assert!((variance - 5.0).abs() < 1e-12);
        let (mut values, mut gradient) = ([0.0; 4], [0.0; 8]);
        let scale = SquaredScale::RelativeToVariance;
        squared_error(&[0.0; 8], targets.as_slice(), 2, scale, variance, 1.0, &mut values, &mut gradient);
        assert!((values.iter().sum::<f32>() / 4.0 - 1.0).abs() < 1e-6);
    }
}
