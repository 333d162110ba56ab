//! Rows of vectors as heads and objectives read them: as wide as others, at length 1, multiplied with each
//! other; each with its way back for derivatives.

use rehang_core::Matrix;
use rehang_fit::network::product::{self, Window};
use rehang_fit::objectives::unit::{through_unit, unit_rows};

/// Gives the first `width` coordinates of every row, or the row and zeros. The way back is the function
/// itself.
pub(crate) fn as_wide_as(rows: &Matrix, width: usize) -> Matrix {
    if rows.columns() == width {
        return rows.clone();
    }
    let mut cut = Matrix::zeros(rows.rows(), width);
    let both = width.min(rows.columns());
    for row in 0..rows.rows() {
        cut.row_mut(row)[..both].copy_from_slice(&rows.row(row)[..both]);
    }
    cut
}

/// Rows at length 1; a zero row stays zero and passes no derivative.
pub(crate) struct Unit {
    /// Unit rows, `[n, d]`.
    pub rows: Matrix,
    /// Lengths that the rows had.
    lengths: Vec<f32>,
}

impl Unit {
    pub(crate) fn from_rows(rows: &Matrix) -> Self {
        let (n, d) = (rows.rows(), rows.columns());
        let (mut unit, mut lengths) = (Matrix::zeros(n, d), vec![0.0; n]);
        unit_rows(rows.as_slice(), d, unit.as_mut_slice(), &mut lengths);
        Self { rows: unit, lengths }
    }

    /// Computes the derivative with respect to the rows as they were, from that with respect to the rows at
    /// length 1.
    pub(crate) fn backward(&self, slopes: &Matrix) -> Matrix {
        let (n, d) = (self.rows.rows(), self.rows.columns());
        let mut gradient = Matrix::zeros(n, d);
        through_unit(self.rows.as_slice(), &self.lengths, slopes.as_slice(), d, gradient.as_mut_slice());
        gradient
    }
}

/// Computes the scalar product of every row with every row of another matrix:
/// `left [n, d] · right [m, d]ᵀ = [n, m]`.
pub(crate) fn products(left: &Matrix, right: &Matrix) -> Matrix {
    let (n, m) = (left.rows(), right.rows());
    let mut out = Matrix::zeros(n, m);
    let (wide, tall) = (Window::dense(left.columns()), Window::dense(m));
    product::forward(n, (left.as_slice(), wide), right.as_slice(), (out.as_mut_slice(), tall), 1.0, true);
    out
}

/// Computes sums of rows, each times its weight: `weights [n, m] · rows [m, d] = [n, d]`.
pub(crate) fn weighted_sums(weights: &Matrix, rows: &Matrix) -> Matrix {
    let (n, d) = (weights.rows(), rows.columns());
    let mut out = Matrix::zeros(n, d);
    let (tall, wide) = (Window::dense(weights.columns()), Window::dense(d));
    let target = (out.as_mut_slice(), wide);
    product::input_gradient(n, (weights.as_slice(), tall), rows.as_slice(), target, 1.0, true);
    out
}

/// Computes sums of rows with the weights the other way round than [`weighted_sums`]:
/// `weights [n, m]ᵀ · rows [n, d] = [m, d]`.
pub(crate) fn weighted_sums_down(weights: &Matrix, rows: &Matrix) -> Matrix {
    let (m, d) = (weights.columns(), rows.columns());
    let mut out = Matrix::zeros(m, d);
    let (tall, wide) = (Window::dense(m), Window::dense(d));
    let n = weights.rows();
    product::weight_gradient(
        n,
        (weights.as_slice(), tall),
        (rows.as_slice(), wide),
        out.as_mut_slice(),
        1.0,
        true,
    );
    out
}

/// Computes the scalar product of two rows, summed in `f64`.
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f64 {
    left.iter().zip(right).map(|(&left, &right)| f64::from(left) * f64::from(right)).sum()
}

/// Computes log Σ exp, without overflow.
pub(crate) fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + values.map(|value| (value - largest).exp()).sum::<f64>().ln()
}

/// Computes log softmax: how far every number is below log Σ exp.
pub(crate) fn log_softmax(logits: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let total = log_sum_exp(logits.clone());
    logits.map(|logit| logit - total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_or_filled_up() {
        let rows = Matrix::new(3, vec![1.0, 2.0, 3.0]).unwrap();
        assert_eq!(as_wide_as(&rows, 2).as_slice(), [1.0, 2.0]);
        assert_eq!(as_wide_as(&rows, 4).as_slice(), [1.0, 2.0, 3.0, 0.0]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        assert!((log_sum_exp([1000.0, 1000.0].into_iter()) - 1000.6931).abs() < 1e-3);
        assert!((log_softmax([1000.0, -1000.0].into_iter())[1] + 2000.0).abs() < 1e-6);
    }

    #[test]
    fn products_go_forward_and_back_and_over_no_rows() {
        let left = Matrix::new(2, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let right = Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(products(&left, &right), left);
        assert_eq!(weighted_sums(&left, &right), left);
        assert_eq!(weighted_sums_down(&left, &left).as_slice(), [35.0, 44.0, 44.0, 56.0]);
        let none = Matrix::zeros(0, 2);
        assert_eq!(products(&none, &right).rows(), 0);
        assert_eq!(weighted_sums_down(&none, &none).as_slice(), [0.0; 4]);
    }
}
