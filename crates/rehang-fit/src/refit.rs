//! Whether a map that is fitted again on more pairs is worth having: two maps, measured on the same items.
//!
//! While a gallery is re-embedded, natives come that a map may be fitted on again. A new map makes all adapted vectors anew, so it is
//! taken only where it is seen to be better. [`RefitGain`] compares squared errors on items that neither map was fitted on, and that are a
//! random sample of the gallery: natives as they come are what an order took for the hardest. What the rule is worth:
//! `cargo xtask refit`, its record in `bench/runs/refit.md`.

use rehang::Result;
use rehang::statistics::mean_sd;
use serde::{Deserialize, Serialize};

/// Shares of native items at which a run asks whether a refit pays: these two have most of what asking at 5, 10, 20 and 40 % has.
pub const ASKED_AT: [f64; 2] = [0.1, 0.4];
/// The mean fall of the squared error has to be more than so many of its standard errors.
const Z_MIN: f64 = 1.0;
/// And at least this part of the error: less changes no ranking that anybody sees, and costs every adapted vector a write.
const FALL_MIN: f64 = 0.005;
/// Items below which nothing is said: a standard error of fewer says little.
pub const MEASURED_MIN: usize = 30;

/// How many items of a gallery are kept for measuring: one of a hundred, at least 200 and at most 2,000, whose error is known to two
/// percent. In a small gallery one of twenty: the run is for re-embedding what is worst.
pub fn kept_for_measuring(items: usize) -> usize {
    (items / 100).clamp(200, 2000).min(items / 20)
}

/// Squared errors `‖v − h(o)‖²` of two maps on the same items, whose native vectors are v.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RefitGain {
    /// Items measured.
    pub items: usize,
    /// Mean squared error of the map in use.
    pub before: f64,
    /// Mean squared error of the map that was fitted again.
    pub after: f64,
    /// Standard error of `before − after`: the spread of the items' differences, over the root of their number.
    pub spread: f64,
}

impl RefitGain {
    /// Compares the errors of two maps, item by item; items whose errors are not finite are passed over. `None` below 30 items.
    ///
    /// ```
    /// use rehang_fit::refit::RefitGain;
    ///
    /// let before: Vec<f64> = (0..100).map(|item| 1.0 + f64::from(item % 7)).collect();
    /// let halved: Vec<f64> = before.iter().map(|error| error / 2.0).collect();
    /// let gain = RefitGain::of(&before, &halved)?.unwrap();
    /// assert!(gain.pays() && gain.fall() == 0.5);
    /// // Which map is the better one depends on the item.
    /// let moved: Vec<f64> = before.iter().rev().copied().collect();
    /// assert!(!RefitGain::of(&before, &moved)?.unwrap().pays());
    /// assert_eq!(RefitGain::of(&before[..29], &halved[..29])?, None);
    /// # Ok::<(), rehang::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A count mismatch where there are not as many errors of both.
    pub fn of(before: &[f64], after: &[f64]) -> Result<Option<Self>> {
        rehang::check::expect_count("errors of one map", before.len(), "of the other", after.len())?;
        let both =
            || before.iter().zip(after).filter(|(before, after)| before.is_finite() && after.is_finite());
        let falls: Vec<f64> = both().map(|(before, after)| before - after).collect();
        let of_before: Vec<f64> = both().map(|(before, _)| *before).collect();
        let (Some(fall), Some(before)) = (mean_sd(&falls), mean_sd(&of_before)) else { return Ok(None) };
        let items = falls.len();
        Ok((items >= MEASURED_MIN).then(|| Self {
            items,
            before: before.mean,
            after: before.mean - fall.mean,
            spread: fall.sd / (items as f64).sqrt(),
        }))
    }

    /// The part of the error that the new map takes away; below 0 where it adds to it, and 0 where there was none.
    pub fn fall(&self) -> f64 {
        if self.before > 0.0 { (self.before - self.after) / self.before } else { 0.0 }
    }

    /// The rule: the error falls by more than its standard error, and by half a percent or more.
    pub fn pays(&self) -> bool {
        self.before - self.after > Z_MIN * self.spread && self.fall() >= FALL_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundredth_is_kept_within_bounds() {
        let kept = [0, 300, 1000, 10_000, 50_000, 1_000_000].map(kept_for_measuring);
        assert_eq!(kept, [0, 15, 50, 200, 500, 2000]);
    }

    #[test]
    fn a_fall_within_its_spread_or_too_small_does_not_pay() {
        let gain = |after, spread| RefitGain { items: 100, before: 2.0, after, spread };
        assert!(gain(1.9, 0.09).pays());
        assert!(!gain(1.9, 0.11).pays(), "within its spread");
        assert!(!gain(1.995, 0.0).pays() && gain(1.99, 0.0).pays(), "half a percent");
        assert!(!gain(2.1, 0.0).pays());
        assert!(!RefitGain { before: 0.0, after: 0.0, ..gain(0.0, 0.0) }.pays(), "an exact map");
    }

    #[test]
    fn what_is_not_finite_is_passed_over() {
        let mut before = vec![2.0; 40];
        let after = vec![1.0; 40];
        before[3] = f64::INFINITY;
        let gain = RefitGain::of(&before, &after).unwrap().unwrap();
        assert_eq!((gain.items, gain.before, gain.after), (39, 2.0, 1.0));
        assert!(RefitGain::of(&before, &after[1..]).is_err());
    }
}
