//! Kernel expansions: the non-linear part of kernel ridge regression, block by block of its centres.

use super::kernel::{Begin, Packed, RowsRef, TILE};
use super::{expect_count, expect_finite, expect_width};
use crate::error::{Error, ErrorKind, Result};
use crate::vectors::{Matrix, norm};

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

/// Centres that are worked on together, so that memory does not grow with them.
const CENTRES: usize = 8 * TILE;

/// A [`KernelExpansion`] made ready for many rows.
pub(super) struct PreparedExpansion {
    /// `2γ c_j` with bias `−γ‖c_j‖²`.
    centres: Packed,
    /// Coefficients of every block of [`CENTRES`] centres, as `[d_new, block]`.
    coefficients: Vec<Packed>,
    gamma: f32,
    d_new: usize,
}

impl PreparedExpansion {
    pub(super) fn new(expansion: &KernelExpansion) -> Self {
        let KernelExpansion { centres, coefficients, gamma } = expansion;
        let double = 2.0 * gamma;
        let bias: Vec<f32> = (0..centres.rows())
            .map(|row| (-f64::from(*gamma) * norm(centres.row(row)).powi(2)) as f32)
            .collect();
        let d_new = coefficients.columns();
        let blocks = (0..centres.rows())
            .step_by(CENTRES)
            .map(|first| {
                let count = CENTRES.min(centres.rows() - first);
                let weight = |output: usize, centre: usize| coefficients.row(first + centre)[output];
                Packed::new(d_new, count, weight, &vec![0.0; d_new])
            })
            .collect();
        Self {
            centres: Packed::new(
                centres.rows(),
                centres.columns(),
                |centre, at| double * centres.row(centre)[at],
                &bias,
            ),
            coefficients: blocks,
            gamma: *gamma,
            d_new,
        }
    }

    /// Adds the expansion of `count` rows to `output` `[count, d_new]`.
    pub(super) fn add(&self, rows: RowsRef<'_>, count: usize, output: &mut [f32], block: &mut Vec<f32>) {
        block.resize(block.len().max(count * CENTRES), 0.0);
        for (number, coefficients) in self.coefficients.iter().enumerate() {
            let first = number * CENTRES;
            let columns = first..first + coefficients.inputs();
            self.centres.multiply(rows, count, columns.clone(), block, CENTRES, Begin::Bias, false);
            for row in 0..count {
                let x = rows.row(row, self.centres.inputs());
                let own = self.gamma * (norm(x).powi(2) as f32);
                for value in &mut block[row * CENTRES..row * CENTRES + columns.len()] {
                    // −γ‖x − c‖² = 2γ⟨x, c⟩ − γ‖c‖² − γ‖x‖²; rounding must not make it positive.
                    *value = exponential((*value - own).min(0.0));
                }
            }
            let (hidden, d_new) = (RowsRef::new(block, CENTRES), self.d_new);
            coefficients.multiply(hidden, count, 0..d_new, output, d_new, Begin::OutputPlusBias, false);
        }
    }
}

/// `e^x` for `x ≤ 0`, to 2 units in the last place; exactly 0 below −87.
///
/// Written without a branch and without fused steps, so that the compiler makes vector instructions of it and every
/// processor gives the same bits: `e^x = 2^n · e^r` with `n = round(x / ln 2)`, `|r| ≤ ln 2 / 2`, and a polynomial of
/// degree 6 for `e^r` (its Taylor series, whose remainder is below 2e-7 of the value there).
fn exponential(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, the first of which has few bits so that its multiples are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.max(-87.0);
    let whole = (clamped * LOG2_E + ROUND) - ROUND;
    let rest = (clamped - whole * LN2_HIGH) - whole * LN2_LOW;
    let mut sum = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * rest + factor;
    }
    let power = f32::from_bits(((whole as i32 + 127) << 23) as u32);
    if x < -87.0 { 0.0 } else { sum * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_the_exponential() {
        for step in 0..=100_000 {
            let x = -86.9 * step as f32 / 100_000.0;
            let (ours, truth) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((ours - truth).abs() <= 4e-7 * truth, "{x}: {ours} against {truth}");
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
            for row in 0..4 {
                for column in 0..5 {
                    let mut expected = 1.0;
                    for centre in 0..centres {
                        let distance: f64 = rows
                            .row(row)
                            .iter()
                            .zip(expansion.centres.row(centre))
                            .map(|(&a, &b)| f64::from(a - b).powi(2))
                            .sum();
                        expected +=
                            f64::from(expansion.coefficients.row(centre)[column]) * (-0.7 * distance).exp();
                    }
                    assert!(
                        (f64::from(output[row * 5 + column]) - expected).abs() < 2e-4,
                        "{centres} centres"
                    );
                }
            }
        }
    }
}
