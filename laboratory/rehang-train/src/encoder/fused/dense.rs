//! Dense layers, `W x + b` on the rows of a batch; `gemm` shares one product among all threads.

use rehang_fit::network::column_sums;
use rehang_fit::network::product::{self, Window};

/// Computes `out[rows, outputs] = input[rows, inputs] · weightᵀ + bias`.
pub(super) fn forward(rows: usize, input: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32]) {
    let outputs = bias.len();
    for row in out[..rows * outputs].chunks_exact_mut(outputs) {
        row.copy_from_slice(bias);
    }
    let (of_input, of_out) = (Window::dense(weight.len() / outputs), Window::dense(outputs));
    product::forward(rows, (input, of_input), weight, (out, of_out), 1.0, true);
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
    let (of_input, of_gradient) = (Window::dense(weight_gradient.len() / outputs), Window::dense(outputs));
    product::weight_gradient(rows, (gradient, of_gradient), (input, of_input), weight_gradient, 1.0, true);
    let sums = column_sums(&gradient[..rows * outputs], outputs);
    for (out, sum) in bias_gradient.iter_mut().zip(sums) {
        *out += sum as f32;
    }
}
