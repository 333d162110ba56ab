//! The verdict on an upgrade: whether queries may move to the new model, and when.
//!
//! # When a curve is below doing nothing
//!
//! Qualities are percent, and one is below another where it is smaller by more than [`ROUNDING`]. There is no
//! other tolerance: a curve adds up in fixed point and a single line does not, so the same answers may differ
//! by that much. A quality that is smaller by more counts as below, since every curve is exact; intervals say
//! how far it may be chance.

use serde::{Deserialize, Serialize};

/// Difference in percent that may lie between two sums of the same numbers.
pub const ROUNDING: f64 = 1e-9;

/// Whether a quality is below another one by more than rounding. NaN counts as below.
pub fn is_below(value: f64, line: f64) -> bool {
    value.is_nan() || value < line - ROUNDING
}

/// Verdict of one curve on an upgrade, held against the line of doing nothing.
///
/// ```
/// use rehang_core::Verdict;
///
/// let verdict = |curve: &[f64]| Verdict::from_curve(curve, Some(40.0));
/// assert_eq!(verdict(&[45.0, 50.0, 60.0]), Verdict::SwitchNow);
/// // It starts above the line and dips below it on the way.
/// assert_eq!(verdict(&[45.0, 30.0, 60.0]), Verdict::ReembedFirst { until: 1.0 });
/// assert_eq!(verdict(&[45.0, 50.0, 30.0]), Verdict::DoNotSwitch);
/// // The same answers, added up in another way.
/// assert_eq!(verdict(&[40.0 - 1e-12, 50.0]), Verdict::SwitchNow);
/// assert_eq!(Verdict::from_curve(&[45.0], None), Verdict::NotMeasured);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// No curve, or no measurement of doing nothing.
    #[default]
    NotMeasured,
    /// The curve never falls below doing nothing.
    SwitchNow,
    /// The curve stays at or above doing nothing from a fraction on, and is below it before.
    ReembedFirst {
        /// The fraction of the gallery from which on the curve stays there, above 0 and at most 1.
        until: f64,
    },
    /// Even the fully native gallery is below doing nothing.
    DoNotSwitch,
}

impl Verdict {
    /// Returns the verdict of an exact curve. `values[c]` is the quality in percent with c of the
    /// `values.len() − 1` items re-embedded. [`Verdict::NotMeasured`] where there are no values, or no finite
    /// line.
    pub fn from_curve(values: &[f64], do_nothing: Option<f64>) -> Self {
        let (Some(line), Some(last)) =
            (do_nothing.filter(|line| line.is_finite()), values.len().checked_sub(1))
        else {
            return Self::NotMeasured;
        };
        let above = values.iter().rev().take_while(|&&value| !is_below(value, line)).count();
        let cut = values.len() - above;
        Self::passing((above > 0).then(|| cut as f64 / last.max(1) as f64))
    }

    /// Returns the verdict where doing nothing was measured, and the fraction is known at which the curve
    /// passes it for good (`None` for never).
    pub fn passing(at: Option<f64>) -> Self {
        match at {
            None => Self::DoNotSwitch,
            Some(at) if at <= 0.0 => Self::SwitchNow,
            Some(until) => Self::ReembedFirst { until },
        }
    }

    /// The fraction from which on the curve stays at or above doing nothing; `None` where it never does, or
    /// where nothing was measured.
    pub fn passes_at(self) -> Option<f64> {
        match self {
            Self::SwitchNow => Some(0.0),
            Self::ReembedFirst { until } => Some(until),
            Self::NotMeasured | Self::DoNotSwitch => None,
        }
    }

    /// Whether a gallery that is switched at this fraction is worse than one that is left alone, at once or
    /// on the way to the end. `false` where nothing was measured.
    pub fn is_worse_from(self, fraction: f64) -> bool {
        match self {
            Self::NotMeasured | Self::SwitchNow => false,
            Self::ReembedFirst { until } => fraction < until,
            Self::DoNotSwitch => true,
        }
    }
}
