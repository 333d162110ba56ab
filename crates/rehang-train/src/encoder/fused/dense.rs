//! `W x + b` on the rows of a batch; `gemm` shares one product among all threads.

use super::matrix::{Matrix, multiply};

/// `out[rows, outputs] = input[rows, inputs] · weightᵀ + bias`.
pub(super) fn forward(rows: usize, input: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32]) {
    let outputs = bias.len();
    let inputs = weight.len() / outputs;
    for row in out[..rows * outputs].chunks_exact_mut(outputs) {
        row.copy_from_slice(bias);
    }
    let (left, right) = (Matrix::rows(input, inputs), Matrix::columns(weight, inputs));
    multiply((rows, outputs, inputs), (out, outputs), left, right, true, rayon::current_num_threads());
}

/// Adds `gradientᵀ · input` to the weight's gradient and the sum of `gradient` over rows to the bias's.
pub(super) fn parameter_gradient(
    rows: usize,
    input: &[f32],
    gradient: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
) {
    let outputs = bias_gradient.len();
    let inputs = weight_gradient.len() / outputs;
    let (left, right) = (Matrix::columns(gradient, outputs), Matrix::rows(input, inputs));
    let threads = rayon::current_num_threads();
    multiply((outputs, inputs, rows), (weight_gradient, inputs), left, right, true, threads);
    let mut sums = vec![0.0_f64; outputs];
    for row in gradient[..rows * outputs].chunks_exact(outputs) {
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum += f64::from(value);
        }
    }
    for (out, sum) in bias_gradient.iter_mut().zip(sums) {
        *out += sum as f32;
    }
}

/// `input_gradient[rows, inputs] = gradient · weight`, added where `accumulate`.
pub(super) fn input_gradient(
    rows: usize,
    gradient: &[f32],
    weight: &[f32],
    outputs: usize,
    input_gradient: &mut [f32],
    accumulate: bool,
) {
    let inputs = weight.len() / outputs;
    let (left, right) = (Matrix::rows(gradient, outputs), Matrix::rows(weight, inputs));
    let threads = rayon::current_num_threads();
    multiply((rows, inputs, outputs), (input_gradient, inputs), left, right, accumulate, threads);
}
