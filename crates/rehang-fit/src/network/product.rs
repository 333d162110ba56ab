//! Matrix products of networks, on the `gemm` crate, without a copy of any operand.
//!
//! # Threads and bits
//!
//! `gemm` cuts the output into tiles and gives whole tiles to threads; how a tile is summed depends on the
//! shapes alone. So the result is the same for any number of threads (a test below asserts it).

use gemm::{Parallelism, gemm};

/// An operand of a product: numbers, the steps from row to row and from column to column, and a factor.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    data: &'a [f32],
    row_step: usize,
    column_step: usize,
    factor: f32,
}

impl<'a> Operand<'a> {
    /// Returns the operand of a row-major matrix, with `step` numbers from one row to the next.
    #[inline]
    pub fn rows(data: &'a [f32], step: usize) -> Self {
        Self { data, row_step: step, column_step: 1, factor: 1.0 }
    }

    /// Returns the transpose of a row-major matrix with `step` numbers from one of its rows to the next.
    #[inline]
    pub fn columns(data: &'a [f32], step: usize) -> Self {
        Self { data, row_step: 1, column_step: step, factor: 1.0 }
    }

    /// Multiplies all numbers of the operand by `factor`.
    #[must_use]
    pub fn times(self, factor: f32) -> Self {
        Self { factor: self.factor * factor, ..self }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        (rows - 1) * self.row_step + (columns - 1) * self.column_step < self.data.len()
    }
}

/// Computes `out = left · right`, or `out += left · right` where `accumulate`, for
/// `[rows, depth] · [depth, columns]`; `out` is row-major with `step` numbers from row to row.
pub fn multiply(
    (rows, columns, depth): (usize, usize, usize),
    (out, step): (&mut [f32], usize),
    left: Operand<'_>,
    right: Operand<'_>,
    accumulate: bool,
    threads: usize,
) {
    if rows == 0 || columns == 0 || depth == 0 {
        assert!(depth > 0 || accumulate, "a product over nothing");
        return;
    }
    assert!(columns <= step && (rows - 1) * step + columns <= out.len());
    assert!(left.holds(rows, depth) && right.holds(depth, columns));
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: all three matrices were asserted to lie inside their slices; `out` is borrowed mutably and
    // overlaps neither of the others.
    unsafe {
        gemm(
            rows,
            columns,
            depth,
            out.as_mut_ptr(),
            1,
            step as isize,
            accumulate,
            left.data.as_ptr(),
            left.column_step as isize,
            left.row_step as isize,
            right.data.as_ptr(),
            right.column_step as isize,
            right.row_step as isize,
            1.0,
            left.factor * right.factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A matrix inside a longer slice: row `r` begins at `offset + r·stride` and has `columns` numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// Place where the first row begins.
    pub offset: usize,
    /// Number of places from the beginning of one row to the beginning of the next.
    pub stride: usize,
    /// Number of columns: numbers that a row has.
    pub columns: usize,
}

impl Window {
    /// Returns the window of a matrix whose rows follow each other without a gap.
    pub fn dense(columns: usize) -> Self {
        Self { offset: 0, stride: columns, columns }
    }

    fn rows(self, data: &[f32]) -> Operand<'_> {
        Operand::rows(&data[self.offset..], self.stride)
    }

    fn target(self, data: &mut [f32]) -> (&mut [f32], usize) {
        (&mut data[self.offset..], self.stride)
    }
}

/// Computes `out[n, outputs] = factor · input[n, inputs] · weightᵀ`, added to `out` where `accumulate`.
pub fn forward(
    rows: usize,
    (input, input_window): (&[f32], Window),
    weight: &[f32],
    (out, out_window): (&mut [f32], Window),
    factor: f32,
    accumulate: bool,
) {
    let (inputs, outputs) = (input_window.columns, out_window.columns);
    assert_eq!(weight.len(), inputs * outputs);
    let (left, right) = (input_window.rows(input), Operand::columns(weight, inputs).times(factor));
    let threads = rayon::current_num_threads();
    multiply((rows, outputs, inputs), out_window.target(out), left, right, accumulate, threads);
}

/// Computes `input_gradient[n, inputs] = factor · gradient[n, outputs] · weight`, added where `accumulate`.
pub fn input_gradient(
    rows: usize,
    (gradient, gradient_window): (&[f32], Window),
    weight: &[f32],
    (out, out_window): (&mut [f32], Window),
    factor: f32,
    accumulate: bool,
) {
    let (inputs, outputs) = (out_window.columns, gradient_window.columns);
    assert_eq!(weight.len(), inputs * outputs);
    let (left, right) = (gradient_window.rows(gradient), Operand::rows(weight, inputs).times(factor));
    let threads = rayon::current_num_threads();
    multiply((rows, inputs, outputs), out_window.target(out), left, right, accumulate, threads);
}

/// Computes `weight_gradient[outputs, inputs] = factor · gradientᵀ · input`, added where `accumulate`.
pub fn weight_gradient(
    rows: usize,
    (gradient, gradient_window): (&[f32], Window),
    (input, input_window): (&[f32], Window),
    out: &mut [f32],
    factor: f32,
    accumulate: bool,
) {
    let (inputs, outputs) = (input_window.columns, gradient_window.columns);
    assert_eq!(out.len(), inputs * outputs);
    let left = Operand::columns(&gradient[gradient_window.offset..], gradient_window.stride);
    let right = input_window.rows(input).times(factor);
    multiply((outputs, inputs, rows), (out, inputs), left, right, accumulate, rayon::current_num_threads());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::finite_differences::numbers;

    #[test]
    fn products_agree_with_the_triple_loop_through_windows() {
        for (n, inputs, outputs) in [(1, 1, 1), (3, 5, 2), (17, 33, 9), (64, 70, 131)] {
            let input_window = Window { offset: 2, stride: inputs + 3, columns: inputs };
            let out_window = Window { offset: 1, stride: outputs + 4, columns: outputs };
            let x = numbers(input_window.offset + n * input_window.stride, 1);
            let w = numbers(inputs * outputs, 2);
            let mut y = numbers(out_window.offset + n * out_window.stride, 3);
            let before = y.clone();
            forward(n, (&x, input_window), &w, (&mut y, out_window), 0.5, true);
            for r in 0..n {
                for o in 0..outputs {
                    let sum: f32 = (0..inputs).map(|i| x[2 + r * (inputs + 3) + i] * w[o * inputs + i]).sum();
                    let at = 1 + r * (outputs + 4) + o;
                    assert!((before[at] + 0.5 * sum - y[at]).abs() < 1e-4);
                }
            }
            let mut dx = vec![0.0; x.len()];
            input_gradient(n, (&y, out_window), &w, (&mut dx, input_window), 1.0, false);
            let mut dw = vec![0.0; w.len()];
            weight_gradient(n, (&y, out_window), (&x, input_window), &mut dw, 2.0, false);
            for i in 0..inputs {
                for r in 0..n {
                    let sum: f32 =
                        (0..outputs).map(|o| y[1 + r * (outputs + 4) + o] * w[o * inputs + i]).sum();
                    assert!((sum - dx[2 + r * (inputs + 3) + i]).abs() < 1e-3);
                }
                for o in 0..outputs {
                    let sum: f32 =
                        (0..n).map(|r| y[1 + r * (outputs + 4) + o] * x[2 + r * (inputs + 3) + i]).sum();
                    assert!((2.0 * sum - dw[o * inputs + i]).abs() < 1e-3);
                }
            }
        }
    }

    #[test]
    fn products_are_the_same_bits_for_any_number_of_threads() {
        let (n, inputs, outputs) = (300, 257, 391);
        let (x, w) = (numbers(n * inputs, 4), numbers(inputs * outputs, 5));
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut y = vec![0.0; n * outputs];
                let (a, b) = (Window::dense(inputs), Window::dense(outputs));
                forward(n, (&x, a), &w, (&mut y, b), 1.0, false);
                let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
                input_gradient(n, (&y, b), &w, (&mut dx, a), 1.0, false);
                weight_gradient(n, (&y, b), (&x, a), &mut dw, 1.0, false);
                (y, dx, dw)
            })
        };
        let on_one_thread = run(1);
        for threads in [2, 3, 5] {
            assert!(run(threads) == on_one_thread, "{threads} threads gave other bits than one");
        }
    }
}
