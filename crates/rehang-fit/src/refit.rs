//! Tells whether a map that is fitted again on more pairs is worth having: two maps, measured on the same
//! items.
//!
//! While a gallery is re-embedded, natives come that a map may be fitted on again. A new map makes all
//! adapted vectors anew, so it is taken only where it is seen to be better. [`RefitGain`] compares squared
//! errors on items that neither map was fitted on, and that are a random sample of the gallery; natives as
//! they come would be those that an order took for the hardest. `cargo lab study refit` measures what the
//! rule is worth; its record is `laboratory/bench/runs/refit.md`.

use rehang_core::Result;
use rehang_core::statistics::mean_sd;
use serde::{Deserialize, Serialize};

/// Shares of native items at which a run asks whether a refit pays. These two bring most of what asking at 5,
/// 10, 20 and 40 % brings.
pub const ASKED_AT: [f64; 2] = [0.1, 0.4];
/// Number of its standard errors that the mean fall of the squared error has to exceed.
const Z_MIN: f64 = 1.0;
/// Smallest part of the error by which it has to fall: less changes no ranking that anybody sees, and costs
/// every adapted vector a write.
const FALL_MIN: f64 = 0.005;
/// Number of items below which nothing is said: a standard error of fewer says little.
pub const MEASURED_MIN: usize = 30;

/// Returns how many items of a gallery are kept for measuring: one of a hundred, at least 200 and at most
/// 2,000, whose error is known to two percent. In a small gallery it is one of twenty: the run is for
/// re-embedding what is worst.
pub fn kept_for_measuring(items: usize) -> usize {
    (items / 100).clamp(200, 2000).min(items / 20)
}

/// Squared errors `‖v − h(o)‖²` of two maps on the same items, whose native vectors are v.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RefitGain {
    /// Number of items measured.
    pub items: usize,
    /// Mean squared error of the map in use.
    pub before: f64,
    /// Mean squared error of the map that was fitted again.
    pub after: f64,
    /// Standard error of `before − after`: the spread of the items' differences, over the root of their
    /// number.
    pub spread: f64,
    /// Standard errors of `before` and of `after`.
    pub spreads: [f64; 2],
}

impl RefitGain {
    /// Compares the errors of two maps, item by item; items whose errors are not finite are passed over.
    /// `None` below 30 items.
    ///
    /// ```
    /// use rehang_fit::refit::RefitGain;
    ///
    /// let before: Vec<f64> = (0..100).map(|item| 1.0 + f64::from(item % 7)).collect();
    /// let halved: Vec<f64> = before.iter().map(|error| error / 2.0).collect();
    /// let gain = RefitGain::compared(&before, &halved)?.unwrap();
    /// assert!(gain.pays() && gain.fall() == 0.5);
    /// // Which map is the better one depends on the item.
    /// let moved: Vec<f64> = before.iter().rev().copied().collect();
    /// assert!(!RefitGain::compared(&before, &moved)?.unwrap().pays());
    /// assert_eq!(RefitGain::compared(&before[..29], &halved[..29])?, None);
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A count mismatch where there are not as many errors of both.
    pub fn compared(before: &[f64], after: &[f64]) -> Result<Option<Self>> {
        rehang_core::check::expect_count("errors of one map", before.len(), "of the other", after.len())?;
        let finite_items =
            || before.iter().zip(after).filter(|(before, after)| before.is_finite() && after.is_finite());
        let falls: Vec<f64> = finite_items().map(|(before, after)| before - after).collect();
        let of_before: Vec<f64> = finite_items().map(|(before, _)| *before).collect();
        let of_after: Vec<f64> = finite_items().map(|(_, after)| *after).collect();
        let means = [MeanError::from_errors(&of_before), MeanError::from_errors(&of_after)];
        let (Some(fall), [Some(before), Some(after)]) = (mean_sd(&falls), means) else { return Ok(None) };
        Ok(Some(Self {
            items: before.items,
            before: before.mean,
            after: before.mean - fall.mean,
            spread: fall.sd / (before.items as f64).sqrt(),
            spreads: [before.spread, after.spread],
        }))
    }

    /// Returns the mean error of the map in use.
    pub fn error_before(&self) -> MeanError {
        MeanError { items: self.items, mean: self.before, spread: self.spreads[0] }
    }

    /// Returns the mean error of the new map.
    pub fn error_after(&self) -> MeanError {
        MeanError { items: self.items, mean: self.after, spread: self.spreads[1] }
    }

    /// Returns the part of the error that the new map takes away; below 0 where it adds to it, and 0 where
    /// there was none.
    pub fn fall(&self) -> f64 {
        if self.before > 0.0 { (self.before - self.after) / self.before } else { 0.0 }
    }

    /// Returns whether the new map pays: the error falls by more than its standard error, and by half a
    /// percent or more.
    pub fn pays(&self) -> bool {
        self.before - self.after > Z_MIN * self.spread && self.fall() >= FALL_MIN
    }
}

/// Ratio of errors above which a gallery is not what a map was made for. The logarithm of the ratio has to be
/// above 0 by [`DRIFT_Z`] standard errors as well.
const DRIFT_MIN: f64 = 1.2;
const DRIFT_Z: f64 = 3.0;
/// Part by which the σ² of a gallery has to be above that of pairs, where nothing is measured; the standard
/// errors are [`DRIFT_Z`] here too.
const OUTGROWN_MIN: f64 = 0.05;

/// Mean squared error of a map on items that it was not fitted on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanError {
    /// Number of items.
    pub items: usize,
    /// Mean of the squared errors.
    pub mean: f64,
    /// Standard error of the mean.
    pub spread: f64,
}

impl MeanError {
    /// Averages squared errors, but for those that are not finite. `None` below 30.
    pub fn from_errors(errors: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = errors.iter().copied().filter(|error| error.is_finite()).collect();
        let items = finite.len();
        let errors = mean_sd(&finite).filter(|_| items >= MEASURED_MIN)?;
        Some(Self { items, mean: errors.mean, spread: errors.sd / (items as f64).sqrt() })
    }

    /// Returns how many times another one it is; 1 where both are 0.
    pub fn times(&self, other: &Self) -> f64 {
        if self.mean == other.mean { 1.0 } else { self.mean / other.mean.max(f64::MIN_POSITIVE) }
    }

    /// Returns whether a gallery has drifted from what a map was fitted for: `self` is measured on the
    /// gallery, `expected` on what the map was fitted for. Errors then are above `expected` by a fifth, and
    /// the logarithm of their ratio is above 0 by three standard errors. `cargo lab study drift` measures
    /// what that says of galleries that have drifted and of others.
    ///
    /// ```
    /// use rehang_fit::refit::MeanError;
    ///
    /// let error = |mean| MeanError { items: 200, mean, spread: 0.03 * mean };
    /// assert!(error(1.25).has_drifted_from(&error(1.0)));
    /// assert!(!error(1.18).has_drifted_from(&error(1.0)) && !error(0.5).has_drifted_from(&error(1.0)));
    /// let few = MeanError { items: 30, spread: 0.1, ..error(1.0) };
    /// assert!(!error(1.25).has_drifted_from(&few));
    /// ```
    pub fn has_drifted_from(&self, expected: &Self) -> bool {
        self.times(expected) > DRIFT_MIN && self.is_above(expected)
    }

    /// Returns whether a gallery has outgrown the pairs that a map was fitted on, by its σ² alone, before
    /// anything is embedded. `self` is the mean σ² of items that are no pairs, `share` of the gallery, and
    /// `pairs` that of held-out pairs. The whole of the gallery then is above the pairs by 5 %, and the
    /// logarithm of the ratio is above 0 by three standard errors. σ² rises less than the error does, so less
    /// of it has to be seen. `cargo lab study drift` measures what that says of galleries that have drifted
    /// and of others.
    ///
    /// ```
    /// use rehang_fit::refit::MeanError;
    ///
    /// let sigma = |mean, spread| MeanError { items: 400, mean, spread };
    /// let pairs = sigma(1.0, 0.02);
    /// assert!(sigma(1.12, 0.01).has_outgrown(&pairs, 1.0) && !sigma(1.12, 0.01).has_outgrown(&pairs, 0.3));
    /// assert!(!sigma(1.04, 0.001).has_outgrown(&pairs, 1.0) && !sigma(1.12, 0.05).has_outgrown(&pairs, 1.0));
    /// assert!(!sigma(0.5, 0.01).has_outgrown(&pairs, 1.0));
    /// ```
    pub fn has_outgrown(&self, pairs: &Self, share: f64) -> bool {
        share * (self.times(pairs) - 1.0) > OUTGROWN_MIN && self.is_above(pairs)
    }

    /// Returns whether the logarithm of the ratio to another one is above 0 by three standard errors.
    fn is_above(&self, other: &Self) -> bool {
        let part = |of: &Self| of.spread / of.mean.max(f64::MIN_POSITIVE);
        self.times(other).ln() > DRIFT_Z * part(self).hypot(part(other))
    }
}

/// Factor from which on σ² is said to be off, either way.
const OFF_MIN: f64 = 1.1;
/// Number of standard errors of a 95 % interval.
const Z_95: f64 = 1.96;

/// Factor by which the σ² of a map is off: the mean squared error of items that it was not fitted on, over
/// their mean σ², with its 95 % interval. Above 1, σ² is too small.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SigmaScale {
    /// Ratio `Σ ‖v − h(o)‖² / Σ σ²`.
    pub ratio: f64,
    /// Lower end of the 95 % interval. The standard error of the ratio's logarithm is that of the mean of
    /// `‖v − h(o)‖² − ratio·σ²`, as a part of the mean squared error.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

impl SigmaScale {
    /// Compares squared errors with σ², item by item; items where either is not finite are passed over. The
    /// ratio is 1 for certain where all errors or all σ² are 0, or nothing is given: a map that is exact has
    /// no scale.
    ///
    /// ```
    /// use rehang_fit::refit::SigmaScale;
    ///
    /// let sigma: Vec<f64> = (0..100).map(|item| 1.0 + f64::from(item % 7)).collect();
    /// let errors: Vec<f64> = (0..100).map(|item| (2.0 + 0.2 * f64::from(item % 2)) * sigma[item as usize]).collect();
    /// let scale = SigmaScale::from_errors(&errors, &sigma)?;
    /// assert!((scale.ratio - 2.1).abs() < 0.01 && scale.low > 2.05 && scale.high < 2.15);
    /// assert!(scale.is_off());
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A count mismatch where there are not as many of both.
    pub fn from_errors(errors: &[f64], sigma: &[f64]) -> Result<Self> {
        rehang_core::check::expect_count("squared errors", errors.len(), "σ²", sigma.len())?;
        let finite_items = || {
            errors.iter().copied().zip(sigma.iter().copied()).filter(|(e, s)| e.is_finite() && s.is_finite())
        };
        let (error, expected) = finite_items().fold((0.0, 0.0), |sums, (e, s)| (sums.0 + e, sums.1 + s));
        if !(error > 0.0 && expected > 0.0) {
            return Ok(Self { ratio: 1.0, low: 1.0, high: 1.0 });
        }
        let ratio = error / expected;
        let off: Vec<f64> = finite_items().map(|(e, s)| e - ratio * s).collect();
        let count = off.len() as f64;
        let spread = mean_sd(&off).map_or(0.0, |off| off.sd / count.sqrt() / (error / count));
        Ok(Self { ratio, low: ratio * (-Z_95 * spread).exp(), high: ratio * (Z_95 * spread).exp() })
    }

    /// Returns the inverse: how much too large σ² is.
    #[must_use]
    pub fn inverted(&self) -> Self {
        Self { ratio: 1.0 / self.ratio, low: 1.0 / self.high, high: 1.0 / self.low }
    }

    /// Returns whether σ² is off: by more than a tenth, and 1 is not within its interval.
    pub fn is_off(&self) -> bool {
        let factor = if self.ratio < 1.0 { self.inverted() } else { *self };
        factor.ratio > OFF_MIN && factor.low > 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundredth_is_kept_within_bounds() {
        let counts = [0, 300, 1000, 10_000, 50_000, 1_000_000].map(kept_for_measuring);
        assert_eq!(counts, [0, 15, 50, 200, 500, 2000]);
    }

    #[test]
    fn a_fall_within_its_spread_or_too_small_does_not_pay() {
        let gain = |after, spread| RefitGain { items: 100, before: 2.0, after, spread, spreads: [0.0; 2] };
        assert!(gain(1.9, 0.09).pays());
        assert!(!gain(1.9, 0.11).pays(), "within its spread");
        assert!(!gain(1.995, 0.0).pays() && gain(1.99, 0.0).pays(), "half a percent");
        assert!(!gain(2.1, 0.0).pays());
        assert!(!RefitGain { before: 0.0, after: 0.0, ..gain(0.0, 0.0) }.pays(), "an exact map");
    }

    #[test]
    fn a_scale_has_the_interval_of_a_resampled_one() {
        // Errors are 1.3 σ² on average, from σ²/10 to 2.5 σ².
        let sigma: Vec<f64> = (0..400).map(|item| 0.5 + f64::from(item % 20) / 10.0).collect();
        let errors: Vec<f64> = sigma
            .iter()
            .enumerate()
            .map(|(at, s)| s * (0.1 + 2.4 * ((at * 37) % 101) as f64 / 100.0))
            .collect();
        let scale = SigmaScale::from_errors(&errors, &sigma).unwrap();
        let mut state = 1_u64;
        let mut ratios: Vec<f64> = (0..2000)
            .map(|_| {
                let (mut error, mut expected) = (0.0, 0.0);
                for _ in 0..400 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let item = (state >> 33) as usize % 400;
                    (error, expected) = (error + errors[item], expected + sigma[item]);
                }
                error / expected
            })
            .collect();
        ratios.sort_unstable_by(f64::total_cmp);
        assert!(
            (scale.low - ratios[50]).abs() < 0.02 && (scale.high - ratios[1949]).abs() < 0.02,
            "{scale:?}"
        );
        assert!(scale.is_off() && scale.inverted().is_off());
    }

    #[test]
    fn a_scale_near_one_or_within_its_interval_is_not_off() {
        let scale = |ratio, spread: f64| SigmaScale { ratio, low: ratio / spread, high: ratio * spread };
        assert!(scale(1.11, 1.05).is_off() && !scale(1.11, 1.15).is_off() && !scale(1.09, 1.01).is_off());
        assert!(scale(0.9, 1.05).is_off() && !scale(0.92, 1.01).is_off());
        for exact in [
            SigmaScale::from_errors(&[0.0; 9], &[1.0; 9]),
            SigmaScale::from_errors(&[1.0], &[0.0]),
            SigmaScale::from_errors(&[], &[]),
        ] {
            assert!(!exact.unwrap().is_off());
        }
        assert!(SigmaScale::from_errors(&[1.0], &[]).is_err());
        let [some, all] = [[f64::NAN, 2.0], [2.0, 2.0]]
            .map(|errors| SigmaScale::from_errors(&errors, &[1.0, 1.0]).unwrap());
        assert_eq!(some, all);
    }

    #[test]
    fn what_is_not_finite_is_passed_over() {
        let mut before = vec![2.0; 40];
        let after = vec![1.0; 40];
        before[3] = f64::INFINITY;
        let gain = RefitGain::compared(&before, &after).unwrap().unwrap();
        assert_eq!((gain.items, gain.before, gain.after), (39, 2.0, 1.0));
        assert_eq!(Some(gain.error_before()), MeanError::from_errors(&before));
        assert_eq!((gain.error_after().mean, MeanError::from_errors(&after[..29])), (1.0, None));
        assert!(RefitGain::compared(&before, &after[1..]).is_err());
    }
}
