//! What a map gives for rows of old vectors, while adapters are being fitted.

use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};
use rayon::prelude::*;
use rehang::adapter::{BranchInput, Dense, Geometry, KernelExpansion, Map};
use rehang::files::expect_width;
use rehang::study::true_errors;
use rehang::{Matrix, Pairs, Result};

use crate::linear_algebra::scaled;
use crate::objectives::squared::total_variance;

/// What errors of width are about.
const INPUT: &str = "the input of an adapter's layer";
/// Rows that are computed together; a row's result does not depend on it.
const PANEL_ROWS: usize = 256;

/// Raw outputs of a map, `[n, d_old] → [n, d_new]`.
///
/// # Errors
///
/// [`rehang::ErrorKind::WidthMismatch`] where a layer does not fit the width that reaches it, [`rehang::ErrorKind::MissingInput`] for
/// a map that reads side information where there is none.
pub fn raw_outputs(map: &Map, old: &Matrix, side: Option<&Matrix>) -> Result<Matrix> {
    let parts: Vec<Result<Matrix>> = (0..old.rows())
        .collect::<Vec<_>>()
        .par_chunks(PANEL_ROWS)
        .map(|rows| {
            let side = side.map(|side| side.select(rows));
            panel(map, &old.select(rows), side)
        })
        .collect();
    let mut data = Vec::new();
    let mut columns = 0;
    for part in parts {
        let part = part?;
        columns = part.columns();
        data.extend(part.into_data());
    }
    Matrix::new(columns, data)
}

fn panel(map: &Map, old: &Matrix, side: Option<Matrix>) -> Result<Matrix> {
    let old = scaled(old, map.input);
    let kernel = map.kernel.as_ref().map(|kernel| expansion(kernel, &old)).transpose()?;
    let skipped = map.skip.as_ref().map(|skip| layer(skip, &old)).transpose()?;
    let mut joined = layers(&map.branch, old.clone())?;
    if let Some(second) = &map.second {
        let input = match second.input {
            BranchInput::Old => old,
            BranchInput::Side => {
                side.ok_or_else(|| rehang::Error::missing("side information", "this adapter"))?
            }
        };
        let other = layers(&second.layers, input)?;
        let first = joined.columns();
        joined = Matrix::from_fn(joined.rows(), first + other.columns(), |row, column| {
            if column < first { joined.row(row)[column] } else { other.row(row)[column - first] }
        });
    }
    let mut out = layers(&map.mixer, joined)?;
    for more in [skipped, kernel].into_iter().flatten() {
        out.as_mut_slice().iter_mut().zip(more.as_slice()).for_each(|(value, more)| *value += more);
    }
    Ok(out)
}

/// `Σ_j a_j · exp(−γ‖x − c_j‖²)` for every row x.
fn expansion(kernel: &KernelExpansion, x: &Matrix) -> Result<Matrix> {
    expect_width(INPUT, kernel.centres.columns(), x.columns())?;
    let square = |row: &[f32]| row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>();
    let mut weights = Matrix::zeros(x.rows(), kernel.centres.rows());
    multiply_transposed(x.as_slice(), x.rows(), &kernel.centres, weights.as_mut_slice());
    let lengths: Vec<f64> =
        (0..kernel.centres.rows()).map(|centre| square(kernel.centres.row(centre))).collect();
    for row in 0..x.rows() {
        let length = square(x.row(row));
        for (weight, centre) in weights.row_mut(row).iter_mut().zip(&lengths) {
            let distance = (length + centre - 2.0 * f64::from(*weight)).max(0.0);
            *weight = (-f64::from(kernel.gamma) * distance).exp() as f32;
        }
    }
    let coefficients = &kernel.coefficients;
    let mut out = Matrix::zeros(x.rows(), coefficients.columns());
    let a = MatRef::from_row_major_slice(weights.as_slice(), x.rows(), coefficients.rows());
    let b =
        MatRef::from_row_major_slice(coefficients.as_slice(), coefficients.rows(), coefficients.columns());
    let target = MatMut::from_row_major_slice_mut(out.as_mut_slice(), x.rows(), coefficients.columns());
    matmul(target, Accum::Replace, a, b, 1.0_f32, Par::Seq);
    Ok(out)
}

fn layers(layers: &[Dense], input: Matrix) -> Result<Matrix> {
    layers.iter().try_fold(input, |x, dense| layer(dense, &x))
}

fn layer(dense: &Dense, x: &Matrix) -> Result<Matrix> {
    let (inputs, outputs) = (dense.weight.columns(), dense.weight.rows());
    expect_width(INPUT, inputs, x.columns())?;
    let mut y = Matrix::zeros(x.rows(), outputs);
    multiply_transposed(x.as_slice(), x.rows(), &dense.weight, y.as_mut_slice());
    for row in 0..y.rows() {
        for (value, bias) in y.row_mut(row).iter_mut().zip(&dense.bias) {
            *value += bias;
            if dense.relu {
                *value = value.max(0.0);
            }
        }
    }
    Ok(y)
}

/// `out = x weightᵀ` for `x [rows, d]`, `weight [outputs, d]`, `out [rows, outputs]`, on this thread.
pub(crate) fn multiply_transposed(x: &[f32], rows: usize, weight: &Matrix, out: &mut [f32]) {
    let x = MatRef::from_row_major_slice(x, rows, weight.columns());
    let w = MatRef::from_row_major_slice(weight.as_slice(), weight.rows(), weight.columns());
    let out = MatMut::from_row_major_slice_mut(out, rows, weight.rows());
    matmul(out, Accum::Replace, x, w.transpose(), 1.0_f32, Par::Seq);
}

/// Puts one raw output into the new space, in place.
pub(crate) fn conform(geometry: &Geometry, row: &mut [f32]) {
    match geometry {
        Geometry::Raw => {}
        Geometry::Sphere { fallback } => {
            if !rehang::normalise(row) {
                row.copy_from_slice(fallback);
            }
        }
        Geometry::MatchedNorms { raw, native } => {
            let length = rehang::norm(row);
            if length > 0.0 {
                let factor = f64::from(matched(raw, native, length as f32)) / length;
                for value in row.iter_mut() {
                    *value = (f64::from(*value) * factor) as f32;
                }
            }
        }
    }
}

/// Piecewise linear from the quantiles `raw` to the quantiles `native`, constant outside.
fn matched(raw: &[f32], native: &[f32], length: f32) -> f32 {
    let (Some(&first), Some(&last)) = (native.first(), native.last()) else { return length };
    let above = raw.partition_point(|&quantile| quantile <= length);
    if above == 0 {
        return first;
    }
    if above >= raw.len() {
        return last;
    }
    let (low, high) = (raw[above - 1], raw[above]);
    let share = if high > low { (length - low) / (high - low) } else { 0.0 };
    native[above - 1] + share * (native[above] - native[above - 1])
}

/// Conformed outputs of every row.
pub(crate) fn conformed(geometry: &Geometry, mut raw: Matrix) -> Matrix {
    for row in 0..raw.rows() {
        conform(geometry, raw.row_mut(row));
    }
    raw
}

/// The squared error relative to the variance of the new vectors: 0 is perfect, 1 is as good as their mean.
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

    #[test]
    fn lengths_between_quantiles_are_interpolated_and_clamped_outside() {
        let (raw, native) = ([1.0, 2.0, 4.0], [10.0, 20.0, 30.0]);
        for (length, expected) in [(0.5, 10.0), (1.5, 15.0), (3.0, 25.0), (9.0, 30.0)] {
            assert_eq!(matched(&raw, &native, length), expected);
        }
    }
}
