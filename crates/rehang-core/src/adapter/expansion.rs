//! Kernel expansions: the non-linear part of kernel ridge regression, computed in blocks of its centres.

use super::kernel::RowsRef;
use crate::check::{expect_count, expect_finite, expect_width};
use crate::error::{Error, ErrorKind, Result};
use crate::vectors::Matrix;

/// `Σ_j a_j · exp(−γ‖x − c_j‖²)` over centres c_j: the non-linear part of kernel ridge regression.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KernelExpansion {
    /// Centres c_j: old vectors of pairs, scaled as the map's input, `[m, d_old]`.
    pub centres: Matrix,
    /// Coefficients a_j, `[m, d_new]`.
    pub coefficients: Matrix,
    /// γ, per squared length of the scaled old vectors.
    pub gamma: f32,
}

impl KernelExpansion {
    pub(super) fn check(&self, d_old: usize, d_new: usize) -> Result<()> {
        if self.centres.rows() == 0 {
            return Err(ErrorKind::Empty { what: "centres of the kernel".into() }.into());
        }
        expect_width("centres of the kernel", d_old, self.centres.columns())?;
        expect_width("coefficients of the kernel", d_new, self.coefficients.columns())?;
        let (centres, coefficients) = (self.centres.rows(), self.coefficients.rows());
        expect_count("centres of the kernel", centres, "their coefficients", coefficients)?;
        self.centres.check_finite("centres of the kernel")?;
        self.coefficients.check_finite("coefficients of the kernel")?;
        expect_finite("γ of the kernel", &[self.gamma])?;
        if self.gamma < 0.0 {
            return Err(Error::option("γ of the kernel", self.gamma, "0 or more"));
        }
        Ok(())
    }
}

/// Number of centres that are worked on together, so that memory does not grow with their number.
const CENTRES: usize = 16 * TILE;
/// Number of outputs that are computed side by side. Their sums, for [`ROWS`] rows at a time, stay in
/// registers.
const TILE: usize = 16;
const ROWS: usize = 4;

/// A [`KernelExpansion`] prepared for many rows.
///
/// Everything is in double precision. The terms are hundreds of times larger than their sum, so in single
/// precision they would lose digits where they cancel.
pub(super) struct PreparedExpansion {
    centres: Tiles,
    /// Squared length of each centre, `‖c_j‖²`.
    lengths: Vec<f64>,
    /// Coefficients of every block of [`CENTRES`] centres.
    coefficients: Vec<Tiles>,
    gamma: f64,
    d_old: usize,
    d_new: usize,
}

/// A matrix `[depth, width]` in tiles of [`TILE`] columns, each `[depth, TILE]`; the last tile is filled up
/// with zeros.
struct Tiles {
    depth: usize,
    values: Vec<f64>,
}

impl Tiles {
    fn new(depth: usize, width: usize, value: impl Fn(usize, usize) -> f32) -> Self {
        let mut values = Vec::with_capacity(depth * width.next_multiple_of(TILE));
        for tile in (0..width).step_by(TILE) {
            for row in 0..depth {
                values.extend(
                    (tile..tile + TILE).map(
                        |column| {
                            if column < width { f64::from(value(row, column)) } else { 0.0 }
                        },
                    ),
                );
            }
        }
        Self { depth, values }
    }

    /// Numbers of the tiles from column `first`, at which a tile begins, to column `last`.
    fn columns(&self, first: usize, last: usize) -> &[f64] {
        &self.values[first * self.depth..last.next_multiple_of(TILE) * self.depth]
    }
}

impl PreparedExpansion {
    pub(super) fn new(expansion: &KernelExpansion) -> Self {
        let KernelExpansion { centres, coefficients, gamma } = expansion;
        let (d_old, d_new) = (centres.columns(), coefficients.columns());
        let blocks = (0..centres.rows()).step_by(CENTRES).map(|first| {
            let count = CENTRES.min(centres.rows() - first);
            Tiles::new(count, d_new, |centre, output| coefficients.row(first + centre)[output])
        });
        Self {
            centres: Tiles::new(d_old, centres.rows(), |at, centre| centres.row(centre)[at]),
            lengths: (0..centres.rows()).map(|row| squared_length(centres.row(row))).collect(),
            coefficients: blocks.collect(),
            gamma: f64::from(*gamma),
            d_old,
            d_new,
        }
    }

    /// Adds the expansion of `count` rows to `output` `[count, d_new]`.
    pub(super) fn add(&self, rows: RowsRef<'_>, count: usize, output: &mut [f32], scratch: &mut Vec<f64>) {
        let Self { d_old, d_new, .. } = *self;
        let width = d_new.next_multiple_of(TILE);
        scratch.clear();
        scratch.resize(count * (d_old + CENTRES + width), 0.0);
        let (x, kernels_and_sums) = scratch.split_at_mut(count * d_old);
        let (kernels, sums) = kernels_and_sums.split_at_mut(count * CENTRES);
        for (row, x) in x.chunks_exact_mut(d_old).enumerate() {
            x.iter_mut().zip(rows.row(row, d_old)).for_each(|(x, &value)| *x = f64::from(value));
        }
        for (number, coefficients) in self.coefficients.iter().enumerate() {
            let first = number * CENTRES;
            let last = first + coefficients.depth;
            kernels.fill(0.0);
            multiply(x, d_old, self.centres.columns(first, last), d_old, kernels, CENTRES);
            for (row, kernels) in kernels.chunks_exact_mut(CENTRES).enumerate() {
                let row_length = squared_length(rows.row(row, d_old));
                exponentials(
                    &mut kernels[..last - first],
                    &self.lengths[first..last],
                    row_length,
                    self.gamma,
                );
            }
            multiply(kernels, CENTRES, &coefficients.values, coefficients.depth, sums, width);
        }
        for (output, sums) in output.chunks_exact_mut(d_new).zip(sums.chunks_exact(width)) {
            output.iter_mut().zip(sums).for_each(|(value, sum)| *value = (f64::from(*value) + sum) as f32);
        }
    }
}

fn squared_length(row: &[f32]) -> f64 {
    row.iter().map(|&value| f64::from(value) * f64::from(value)).sum()
}

crate::vectorised! {
    /// `out[r] += a[r]·B` for rows of `a` `[rows, depth]` and `B` in tiles. Every sum is one chain in the
    /// order of the depth, so that a row's result does not depend on the other rows of its batch.
    fn multiply(a: &[f64], a_stride: usize, tiles: &[f64], depth: usize, out: &mut [f64], out_stride: usize) {
        for (number, tile) in tiles.chunks_exact(depth * TILE).enumerate() {
            let columns = number * TILE..(number + 1) * TILE;
            let mut rows = a.chunks_exact(a_stride).zip(out.chunks_exact_mut(out_stride));
            loop {
                let group: [_; ROWS] = std::array::from_fn(|_| rows.next());
                let mut sums = [[0.0; TILE]; ROWS];
                let mut lines: [&[f64]; ROWS] = [&[]; ROWS];
                let mut targets: [&mut [f64]; ROWS] = Default::default();
                let mut filled = 0;
                for (a, out) in group.into_iter().flatten() {
                    (lines[filled], targets[filled]) = (&a[..depth], &mut out[columns.clone()]);
                    filled += 1;
                }
                if filled == 0 {
                    break;
                }
                for row in filled..ROWS {
                    lines[row] = lines[0];
                }
                for (sums, target) in sums.iter_mut().zip(&targets[..filled]) {
                    sums.copy_from_slice(target);
                }
                for (at, weights) in tile.chunks_exact(TILE).enumerate() {
                    for row in 0..ROWS {
                        let value = lines[row][at];
                        for lane in 0..TILE {
                            sums[row][lane] = value.mul_add(weights[lane], sums[row][lane]);
                        }
                    }
                }
                for (sums, target) in sums.iter().zip(&mut targets[..filled]) {
                    target.copy_from_slice(sums);
                }
            }
        }
    }

    /// Turns `⟨x, c⟩` into `exp(−γ‖x − c‖²)`, where `lengths` are `‖c‖²` and `row_length` is `‖x‖²`.
    fn exponentials(products: &mut [f64], lengths: &[f64], row_length: f64, gamma: f64) {
        for (value, length) in products.iter_mut().zip(lengths) {
            // Rounding must not make a distance negative.
            *value = exponential(-gamma * (row_length + length - 2.0 * *value).max(0.0));
        }
    }
}

/// `e^x` for `x ≤ 0`, to 2 units in the last place; exactly 0 below −708.
///
/// It is written without a branch and without fused steps. So the compiler makes vector instructions of it,
/// and every processor gives the same bits. `e^x = 2^n · e^r` with `n = round(x / ln 2)` and
/// `|r| ≤ ln 2 / 2`. For `e^r` it uses a polynomial of degree 13 (the Taylor series, whose remainder there is
/// below 5e-18 of the value).
#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version of the loop above")]
pub(super) fn exponential(x: f64) -> f64 {
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    // ln 2 in two parts. The first part has few bits, so that its multiples are exact.
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding and subtracting 1.5 · 2^52 rounds to the nearest whole number, which stands in the last bits
    // meanwhile.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let clamped = x.max(-708.0);
    let shifted = clamped * LOG2_E + ROUND;
    let exponent = shifted - ROUND;
    let remainder = (clamped - exponent * LN2_HIGH) - exponent * LN2_LOW;
    let mut sum = 1.0 / 6_227_020_800.0;
    for factor in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * remainder + factor;
    }
    let power = f64::from_bits((shifted.to_bits().wrapping_add(1023)) << 52);
    if x < -708.0 { 0.0 } else { sum * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::length::norm;

    #[test]
    fn the_exponential_is_the_exponential() {
        for step in 0..=100_000 {
            let x = -707.9 * f64::from(step) / 100_000.0;
            let (ours, truth) = (exponential(x), x.exp());
            assert!((ours - truth).abs() <= 5e-16 * truth, "{x}: {ours} against {truth}");
        }
        assert_eq!(exponential(0.0), 1.0);
        assert_eq!(exponential(-1e30), 0.0);
    }

    #[test]
    fn an_expansion_is_its_formula_over_block_edges() {
        for centres in [1, 3, CENTRES - 1, CENTRES, CENTRES + 5] {
            let wave =
                |seed: usize| move |row: usize, column: usize| ((row * 7 + column * 3 + seed) as f32).sin();
            let expansion = KernelExpansion {
                centres: Matrix::from_fn(centres, 3, wave(1)),
                coefficients: Matrix::from_fn(centres, 5, wave(2)),
                gamma: 0.7,
            };
            expansion.check(3, 5).unwrap();
            let rows = Matrix::from_fn(4, 3, wave(3));
            let mut output = vec![1.0; 4 * 5];
            let prepared = PreparedExpansion::new(&expansion);
            prepared.add(RowsRef::new(rows.as_slice(), 3), 4, &mut output, &mut Vec::new());
            let added: Vec<f32> = output.iter().map(|value| value - 1.0).collect();
            expect_formula(&expansion, &rows, &added, 1e-6);
        }
    }

    #[test]
    fn large_terms_that_cancel_leave_an_exact_sum() {
        const CENTRES: usize = 2000;
        // Vectors of length 1 and coefficients of either sign, as a fit makes them.
        let unit = |seed: f32, rows: usize| {
            let mut matrix = Matrix::from_fn(rows, 48, |row, column| {
                ((row * 48 + column) as f32 * 12.9898 + seed).sin() * 43.7 % 1.0
            });
            for row in 0..rows {
                let length = norm(matrix.row(row)) as f32;
                matrix.row_mut(row).iter_mut().for_each(|value| *value /= length);
            }
            matrix
        };
        let expansion = KernelExpansion {
            centres: unit(1.0, CENTRES),
            coefficients: Matrix::from_fn(CENTRES, 2, |row, column| {
                ((row * 2 + column) as f32 * 78.233).sin()
            }),
            gamma: 0.6,
        };
        let rows = unit(2.0, 50);
        let mut output = vec![0.0; 50 * 2];
        let prepared = PreparedExpansion::new(&expansion);
        prepared.add(RowsRef::new(rows.as_slice(), 48), 50, &mut output, &mut Vec::new());
        expect_formula(&expansion, &rows, &output, 0.0);
    }

    /// Compares outputs with the formula. They may differ by one rounding to single precision, and by `more`.
    fn expect_formula(expansion: &KernelExpansion, rows: &Matrix, outputs: &[f32], more: f64) {
        let d_new = expansion.coefficients.columns();
        for (at, &output) in outputs.iter().enumerate() {
            let (row, column) = (at / d_new, at % d_new);
            let (mut expected, mut terms) = (0.0, 0.0);
            for centre in 0..expansion.centres.rows() {
                let squares = rows.row(row).iter().zip(expansion.centres.row(centre));
                let distance: f64 = squares.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
                let coefficient = f64::from(expansion.coefficients.row(centre)[column]);
                let term = coefficient * (-f64::from(expansion.gamma) * distance).exp();
                expected += term;
                terms += term.abs();
            }
            let (gap, rounding) = ((f64::from(output) - expected).abs(), f64::from(f32::EPSILON));
            let allowed = rounding * expected.abs() + 1e-12 * terms + more;
            assert!(gap <= allowed, "{gap} beside terms of {terms} and a sum of {expected}");
        }
    }
}
