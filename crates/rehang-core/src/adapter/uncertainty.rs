//! σ²: the expected error of an adapter's output.

use super::kernel::dot;
use super::out_of_fold::{OutOfFold, PreparedOutOfFold};
use crate::check::{expect_finite, expect_width};
use crate::error::{Error, Result};
use crate::head::Head;
use crate::length::squared_distance;
use crate::vectors::Matrix;

/// Bound of `|log σ²|`. It keeps σ² finite and above 0 in single precision (`e^60 ≈ 1e26`), whatever a head
/// says about a vector far from what it was fitted on. It lies far outside every σ² that means something.
pub const LOG_VARIANCE_LIMIT: f64 = 60.0;

/// Source of an output's σ², which estimates the squared error `‖v − h(o)‖²` in the new space.
///
/// σ² is finite and above 0 for every vector that an adapter accepts.
#[allow(
    clippy::large_enum_variant,
    reason = "an adapter holds one of these: the room of a small variant is not worth a box"
)]
#[derive(Debug, Clone, PartialEq)]
pub enum Uncertainty {
    /// One σ² for every item, since nothing better was learned.
    Constant {
        /// σ², above 0.
        variance: f32,
    },
    /// The published head ψ (FastFill §4.2): `log σ² = ⟨weight, raw(o)⟩ + bias`, one linear layer on the raw
    /// output, limited to ±[`LOG_VARIANCE_LIMIT`].
    Linear {
        /// Weight, `[d_new]`.
        weight: Vec<f32>,
        /// Bias.
        bias: f32,
    },
    /// Learned from out-of-fold residuals (`rehang-fit::uncertainty_fit`).
    OutOfFold(OutOfFold),
}

impl Uncertainty {
    /// Head that σ² looks through, where it has one: the new model's, or one made of class means. Its
    /// temperature is divided into weight and bias, so its probabilities are those of adapted vectors.
    pub fn head(&self) -> Option<&Head> {
        match self {
            Self::OutOfFold(learned) => learned.head.as_ref(),
            Self::Constant { .. } | Self::Linear { .. } => None,
        }
    }

    /// Name of the source in files and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Constant { .. } => "constant",
            Self::Linear { .. } => "linear",
            Self::OutOfFold(_) => "out-of-fold",
        }
    }

    pub(super) fn check(&self, d_old: usize, d_new: usize) -> Result<()> {
        match self {
            Self::Constant { variance } if variance.is_finite() && *variance > 0.0 => Ok(()),
            Self::Constant { variance } => {
                Err(Error::option("constant σ²", variance, "a finite number above 0"))
            }
            Self::Linear { weight, bias } => {
                expect_width("weight of the σ² head", d_new, weight.len())?;
                expect_finite("weight of the σ² head", weight)?;
                expect_finite("bias of the σ² head", &[*bias])
            }
            Self::OutOfFold(learned) => learned.check(d_old, d_new),
        }
    }
}

/// An [`Uncertainty`] prepared for many rows.
pub(super) enum Prepared {
    Constant(f32),
    Linear { weight: Vec<f32>, bias: f32 },
    OutOfFold(Box<PreparedOutOfFold>),
}

impl Prepared {
    pub(super) fn new(uncertainty: &Uncertainty) -> Result<Self> {
        Ok(match uncertainty {
            Uncertainty::Constant { variance } => Self::Constant(*variance),
            Uncertainty::Linear { weight, bias } => Self::Linear { weight: weight.clone(), bias: *bias },
            Uncertainty::OutOfFold(learned) => Self::OutOfFold(Box::new(PreparedOutOfFold::new(learned)?)),
        })
    }
}

/// `e^log` as a σ²: limited, so that it is finite and above 0.
pub(super) fn variance_of_log(log: f64) -> f32 {
    log.clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT).exp() as f32
}

/// Computes σ² of the published head for one raw output.
pub(super) fn linear_variance(weight: &[f32], bias: f32, raw: &[f32]) -> f32 {
    variance_of_log(dot(weight, raw) + f64::from(bias))
}

/// Computes the squared error `‖v − h(o)‖²` of every item, `[n]`, which σ² estimates.
pub fn true_errors(native: &Matrix, adapted: &Matrix) -> Vec<f64> {
    (0..native.rows()).map(|row| squared_distance(native.row(row), adapted.row(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variance_is_finite_and_positive_whatever_its_log() {
        for log in [f64::NEG_INFINITY, -1e9, 0.0, 1e9, f64::INFINITY] {
            let variance = variance_of_log(log);
            assert!(variance.is_finite() && variance > 0.0, "log {log} gives {variance}");
        }
    }

    #[test]
    fn a_constant_has_to_be_above_zero() {
        for variance in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(Uncertainty::Constant { variance }.check(1, 1).is_err());
        }
    }
}
