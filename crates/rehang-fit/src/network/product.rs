//! The three matrix products of a fully connected layer, on the `gemm` crate, without a copy of any operand.
//!
//! # Threads and bits
//!
//! `gemm` cuts the output into tiles and gives whole tiles to threads; how a tile is summed depends on the shapes
//! alone. So the result is the same for any number of threads (a test below asserts it).

use gemm::{Parallelism, gemm};

/// A matrix inside a longer slice: row `r` begins at `offset + r·stride` and has `columns` numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Where the first row begins.
    pub offset: usize,
    /// Numbers from the beginning of one row to the beginning of the next.
    pub stride: usize,
    /// Numbers a row has.
    pub columns: usize,
}

impl Window {
    /// A matrix whose rows follow each other without a gap.
    pub(crate) fn dense(columns: usize) -> Self {
        Self { offset: 0, stride: columns, columns }
    }

    /// Whether `rows` rows lie inside `length` numbers.
    fn fits(self, rows: usize, length: usize) -> bool {
        rows == 0
            || (self.columns <= self.stride
                && self.offset + (rows - 1) * self.stride + self.columns <= length)
    }
}

/// One operand: its numbers, the step from row to row and from column to column.
struct Operand<'a> {
    data: &'a [f32],
    row_step: usize,
    column_step: usize,
}

/// `out = factor·(left · right) (+ out where `accumulate`)`; `out` is row-major with the given step between rows.
///
/// The callers below have checked that every element lies inside its slice.
fn multiply(
    (rows, columns, depth): (usize, usize, usize),
    out: &mut [f32],
    out_stride: usize,
    left: &Operand<'_>,
    right: &Operand<'_>,
    factor: f32,
    accumulate: bool,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let threads = rayon::current_num_threads();
    // SAFETY: the windows of the three public functions were asserted to lie inside their slices, `out` is borrowed
    // mutably and so overlaps neither operand.
    unsafe {
        gemm(
            rows,
            columns,
            depth,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            accumulate,
            left.data.as_ptr(),
            left.column_step as isize,
            left.row_step as isize,
            right.data.as_ptr(),
            right.column_step as isize,
            right.row_step as isize,
            1.0,
            factor,
            false,
            false,
            false,
            Parallelism::Rayon(threads),
        );
    }
}

/// `out[n, outputs] = factor · input[n, inputs] · weightᵀ`, added to `out` where `accumulate`.
pub(crate) fn forward(
    rows: usize,
    (input, input_window): (&[f32], Window),
    weight: &[f32],
    (out, out_window): (&mut [f32], Window),
    factor: f32,
    accumulate: bool,
) {
    let (inputs, outputs) = (input_window.columns, out_window.columns);
    assert!(input_window.fits(rows, input.len()) && out_window.fits(rows, out.len()));
    assert_eq!(weight.len(), inputs * outputs);
    multiply(
        (rows, outputs, inputs),
        &mut out[out_window.offset..],
        out_window.stride,
        &Operand { data: &input[input_window.offset..], row_step: input_window.stride, column_step: 1 },
        &Operand { data: weight, row_step: 1, column_step: inputs },
        factor,
        accumulate,
    );
}

/// `input_gradient[n, inputs] = factor · gradient[n, outputs] · weight`, added where `accumulate`.
pub(crate) fn input_gradient(
    rows: usize,
    (gradient, gradient_window): (&[f32], Window),
    weight: &[f32],
    (out, out_window): (&mut [f32], Window),
    factor: f32,
    accumulate: bool,
) {
    let (inputs, outputs) = (out_window.columns, gradient_window.columns);
    assert!(gradient_window.fits(rows, gradient.len()) && out_window.fits(rows, out.len()));
    assert_eq!(weight.len(), inputs * outputs);
    multiply(
        (rows, inputs, outputs),
        &mut out[out_window.offset..],
        out_window.stride,
        &Operand {
            data: &gradient[gradient_window.offset..],
            row_step: gradient_window.stride,
            column_step: 1,
        },
        &Operand { data: weight, row_step: inputs, column_step: 1 },
        factor,
        accumulate,
    );
}

/// `weight_gradient[outputs, inputs] = factor · gradientᵀ · input`.
pub(crate) fn weight_gradient(
    rows: usize,
    (gradient, gradient_window): (&[f32], Window),
    (input, input_window): (&[f32], Window),
    out: &mut [f32],
    factor: f32,
) {
    let (inputs, outputs) = (input_window.columns, gradient_window.columns);
    assert!(gradient_window.fits(rows, gradient.len()) && input_window.fits(rows, input.len()));
    assert_eq!(out.len(), inputs * outputs);
    multiply(
        (outputs, inputs, rows),
        out,
        inputs,
        &Operand {
            data: &gradient[gradient_window.offset..],
            row_step: 1,
            column_step: gradient_window.stride,
        },
        &Operand { data: &input[input_window.offset..], row_step: input_window.stride, column_step: 1 },
        factor,
        false,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern, the same on every run.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect()
    }

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
            weight_gradient(n, (&y, out_window), (&x, input_window), &mut dw, 2.0);
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
                weight_gradient(n, (&y, b), (&x, a), &mut dw, 1.0);
                (y, dx, dw)
            })
        };
        let one = run(1);
        for threads in [2, 3, 5] {
            assert!(run(threads) == one, "{threads} threads gave other bits than one");
        }
    }
}
