//! `W x + b` on the rows of a batch; `gemm` shares one product among all threads.

use rehang_fit::network::column_sums;
use rehang_fit::network::product::{Operand, multiply};

/// `out[rows, outputs] = input[rows, inputs] · weightᵀ + bias`.
pub(super) fn forward(rows: usize, input: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32]) {
    let outputs = bias.len();
    let inputs = weight.len() / outputs;
    for row in out[..rows * outputs].chunks_exact_mut(outputs) {
        row.copy_from_slice(bias);
    }
    let (left, right) = (Operand::rows(input, inputs), Operand::columns(weight, inputs));
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
    let (left, right) = (Operand::columns(gradient, outputs), Operand::rows(input, inputs));
    let threads = rayon::current_num_threads();
    multiply((outputs, inputs, rows), (weight_gradient, inputs), left, right, true, threads);
    let sums = column_sums(&gradient[..rows * outputs], outputs);
    for (out, sum) in bias_gradient.iter_mut().zip(sums) {
        *out += sum as f32;
    }
}

/// `input_gradient[rows, inputs] = gradient · weight`.
pub(super) fn input_gradient(
    rows: usize,
    gradient: &[f32],
    weight: &[f32],
    outputs: usize,
    input_gradient: &mut [f32],
) {
    let inputs = weight.len() / outputs;
    let (left, right) = (Operand::rows(gradient, outputs), Operand::rows(weight, inputs));
    let threads = rayon::current_num_threads();
    multiply((rows, inputs, outputs), (input_gradient, inputs), left, right, false, threads);
}
