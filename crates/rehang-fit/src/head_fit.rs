//! Fits a classifier head for new models that ship without one: logistic regression on new vectors and
//! labels.

use rehang_core::check::expect_count;
use rehang_core::{Error, Head, HeadKind, Matrix, Pairs, Progress, Result};

use crate::lbfgs::minimise;
use crate::linear_algebra::{column_sums, sum_blocks};
use crate::objectives::squared::{mean_row, total_variance};

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

/// Weight of `½‖W‖²` against the mean cross-entropy, for vectors scaled to variance d; the bias is not
/// penalised.
const PENALTY: f64 = 1e-3;
/// Largest number of steps of L-BFGS.
const ITERATIONS_MAX: usize = 200;
/// Largest coordinate of the gradient at which the fit counts as done.
const TOLERANCE: f64 = 1e-5;

/// Returns the labels of pairs, where at least one is known.
pub(crate) fn known_labels(pairs: &Pairs) -> Option<&[i64]> {
    pairs.labels().filter(|labels| labels.iter().any(|&label| label >= 0))
}

/// Numbers the classes of labels `0..classes` in the order of the labels, `None` for negative labels ("not
/// known"). Returns also the label of every class.
///
/// ```
/// let (classes, labels) = rehang_fit::head_fit::class_numbers(&[30, -1, 10, 30]);
/// assert_eq!(classes, [Some(1), None, Some(0), Some(1)]);
/// assert_eq!(labels, [10, 30]);
/// ```
pub fn class_numbers(labels: &[i64]) -> (Vec<Option<usize>>, Vec<i64>) {
    let mut class_labels: Vec<i64> = labels.iter().copied().filter(|&label| label >= 0).collect();
    class_labels.sort_unstable();
    class_labels.dedup();
    (labels.iter().map(|label| class_labels.binary_search(label).ok()).collect(), class_labels)
}

/// Fits a multinomial logistic regression: weight `[classes, d]` and bias `[classes]` that minimise
/// `mean cross-entropy + penalty/2·‖W‖²`, on vectors `[n, d]` and labels `[n]`.
///
/// Vectors are centred and divided by one number (the root of their mean variance) while fitting, so that the
/// penalty means the same for unit vectors of 384 coordinates and for raw ones. The head that is returned
/// takes vectors as they are. Rows with a negative label are left out. Classes with one item are fine. With a
/// single class the head answers it always. The result is the same for any number of threads.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::CountMismatch`] where there is not one label for each vector,
/// [`rehang_core::ErrorKind::MissingInput`] where no label is known, [`rehang_core::ErrorKind::InvalidOption`] for a
/// negative penalty, [`rehang_core::ErrorKind::Cancelled`].
pub fn fit_head(vectors: &Matrix, labels: &[i64], progress: &Progress) -> Result<Head> {
    expect_count("new vectors", vectors.rows(), "labels", labels.len())?;
    let (numbers, class_labels) = class_numbers(labels);
    let rows: Vec<usize> = (0..labels.len()).filter(|&row| numbers[row].is_some()).collect();
    if rows.is_empty() {
        return Err(Error::missing("labels that are not negative", "fitting a classifier head"));
    }
    let targets: Vec<usize> = rows.iter().filter_map(|&row| numbers[row]).collect();
    let mut x = vectors.select(&rows);
    let (mean, scale) = centre_and_scale(&mut x);
    let (d, classes) = (x.columns(), class_labels.len());

    progress.begin("fitting a classifier head", "evaluations", 0);
    let start = vec![0.0; classes * (d + 1)];
    let objective = |weights: &[f64], gradient: &mut [f64]| {
        progress.advance(1);
        let value = cross_entropy(&x, &targets, classes, PENALTY, weights, gradient);
        progress.note(format!("loss {value:.4}"));
        value
    };
    let solution = minimise(start, objective, TOLERANCE, ITERATIONS_MAX, progress)?;

    let weight = Matrix::from_fn(classes, d, |class, column| (solution[class * d + column] / scale) as f32);
    let bias = (0..classes)
        .map(|class| {
            let shift: f64 = (0..d).map(|column| solution[class * d + column] / scale * mean[column]).sum();
            (solution[classes * d + class] - shift) as f32
        })
        .collect();
    Head::new(weight, Some(bias), HeadKind::Softmax)
}

/// Centres the rows and divides them by the root of their mean variance; returns the mean and that root.
fn centre_and_scale(x: &mut Matrix) -> (Vec<f64>, f64) {
    let mean = mean_row(x);
    let variance = total_variance(x) / x.columns() as f64;
    let scale = if variance > 0.0 { variance.sqrt() } else { 1.0 };
    for row in 0..x.rows() {
        let row = x.row_mut(row).iter_mut().zip(&mean);
        row.for_each(|(value, mean)| *value = ((f64::from(*value) - mean) / scale) as f32);
    }
    (mean, scale)
}

/// Returns the objective and writes its gradient. `weights` holds W `[classes, d]`, then the bias
/// `[classes]`.
///
/// Products are made in `f32` in blocks of rows; everything that adds up over blocks is `f64`.
fn cross_entropy(
    x: &Matrix,
    targets: &[usize],
    classes: usize,
    penalty: f64,
    weights: &[f64],
    gradient: &mut [f64],
) -> f64 {
    let (n, d) = (x.rows(), x.columns());
    let weight = Matrix::from_fn(classes, d, |class, column| weights[class * d + column] as f32);
    let bias = &weights[classes * d..];
    let (weight_gradient, bias_gradient) = gradient.split_at_mut(classes * d);
    let mut loss = 0.0;
    bias_gradient.fill(0.0);
    for (sum, &value) in weight_gradient.iter_mut().zip(weights) {
        loss += 0.5 * penalty * value * value;
        *sum = penalty * value;
    }
    sum_blocks(
        n,
        |start, end| {
            let rows = end - start;
            let block = &x.as_slice()[start * d..end * d];
            let mut p = vec![0.0_f32; rows * classes];
            multiply_transposed(block, rows, &weight, &mut p);
            let mut loss = 0.0;
            for (row, target) in p.chunks_exact_mut(classes).zip(&targets[start..end]) {
                loss += softmax_minus_target(row, bias, *target);
            }
            let mut gradient = vec![0.0_f32; classes * d];
            let product = MatMut::from_row_major_slice_mut(&mut gradient, classes, d);
            let left = MatRef::from_row_major_slice(&p, rows, classes);
            let right = MatRef::from_row_major_slice(block, rows, d);
            matmul(product, Accum::Replace, left.transpose(), right, 1.0_f32, Par::Seq);
            (loss, gradient, column_sums(&p, classes))
        },
        |(part, block_gradient, columns)| {
            let share = 1.0 / n as f64;
            loss += part * share;
            weight_gradient
                .iter_mut()
                .zip(&block_gradient)
                .for_each(|(sum, &g)| *sum += f64::from(g) * share);
            bias_gradient.iter_mut().zip(&columns).for_each(|(sum, g)| *sum += g * share);
        },
    );
    loss
}

/// Turns one row of `W x` into `softmax(W x + b) − one-hot(target)` and returns its cross-entropy.
fn softmax_minus_target(row: &mut [f32], bias: &[f64], target: usize) -> f64 {
    let logits: Vec<f64> = row.iter().zip(bias).map(|(&value, bias)| f64::from(value) + bias).collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let log_total = largest + total.ln();
    for (class, (value, logit)) in row.iter_mut().zip(&logits).enumerate() {
        let one_hot = if class == target { 1.0 } else { 0.0 };
        *value = ((logit - log_total).exp() - one_hot) as f32;
    }
    log_total - logits[target]
}

/// Writes `out = x weightᵀ` for `x [rows, d]`, `weight [outputs, d]`, `out [rows, outputs]`, on this thread.
fn multiply_transposed(x: &[f32], rows: usize, weight: &Matrix, out: &mut [f32]) {
    let x = MatRef::from_row_major_slice(x, rows, weight.columns());
    let w = MatRef::from_row_major_slice(weight.as_slice(), weight.rows(), weight.columns());
    let out = MatMut::from_row_major_slice_mut(out, rows, weight.rows());
    matmul(out, Accum::Replace, x, w.transpose(), 1.0_f32, Par::Seq);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::random_matrix;

    fn argmax(head: &Head, v: &[f32]) -> usize {
        let logit = |class: usize| {
            let products = head.weight().row(class).iter().zip(v);
            products.map(|(a, b)| a * b).sum::<f32>() + head.bias()[class]
        };
        (0..head.classes()).max_by(|&a, &b| logit(a).total_cmp(&logit(b))).unwrap()
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let x = random_matrix(30, 3, 1);
        let targets: Vec<usize> = (0..30).map(|item| item % 4).collect();
        let weights: Vec<f64> = random_matrix(1, 16, 2).as_slice().iter().map(|&v| f64::from(v)).collect();
        let mut gradient = vec![0.0; 16];
        cross_entropy(&x, &targets, 4, 0.1, &weights, &mut gradient);
        for i in 0..16 {
            let value = |by: f64| {
                let mut moved = weights.clone();
                moved[i] += by;
                cross_entropy(&x, &targets, 4, 0.1, &moved, &mut [0.0; 16])
            };
            let difference = (value(1e-3) - value(-1e-3)) / 2e-3;
            assert!((difference - gradient[i]).abs() < 1e-4, "{i}: {difference} against {}", gradient[i]);
        }
    }

    #[test]
    fn separated_classes_are_told_apart_whatever_their_labels_and_scale() {
        let labels: Vec<i64> = (0..200).map(|item| [7, 100, 3, -1][item % 4]).collect();
        let noise = random_matrix(200, 5, 3);
        let v = Matrix::from_fn(200, 5, |r, c| {
            1e-3 * (noise.row(r)[c] + if c == r % 4 { 8.0 } else { 0.0 }) + 5.0
        });
        let fitted = fit_head(&v, &labels, &Progress::default()).unwrap();
        let (_, class_labels) = class_numbers(&labels);
        let right = (0..200).filter(|&row| labels[row] >= 0);
        assert!(right.clone().all(|row| class_labels[argmax(&fitted, v.row(row))] == labels[row]));
    }

    #[test]
    fn one_class_one_item_and_constant_vectors_are_fine() {
        let v = Matrix::from_fn(4, 2, |_, _| 1.0);
        for labels in [[5, 5, 5, 5], [0, 1, 2, 2]] {
            let fitted = fit_head(&v, &labels, &Progress::default()).unwrap();
            assert!(fitted.bias().iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn labels_that_are_all_unknown_are_refused() {
        let v = random_matrix(3, 2, 1);
        let error = fit_head(&v, &[-1; 3], &Progress::default()).unwrap_err();
        assert!(matches!(error.kind(), rehang_core::ErrorKind::MissingInput { .. }));
        assert!(fit_head(&v, &[0; 2], &Progress::default()).is_err());
    }
}
