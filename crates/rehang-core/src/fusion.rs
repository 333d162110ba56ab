//! Fusion: the distances of one item by the old and by the new model, as one distance.

use serde::{Deserialize, Serialize};

use crate::check::check_handicap;
use crate::error::{Error, Result};
use crate::statistics::mean_sd;

/// Number of quantiles at the near side of the table, besides 0: powers of a half, up to the median.
const NEAR: u32 = 14;
/// Largest power of a half at the far side of the table: its quantiles are 1 minus these powers, and 1.
const FAR: u32 = 6;
/// Most distances that a table is made from.
const DISTANCES_MAX: usize = 200_000;

/// Fused distance of an item: the distance of the old query to its old vector and that of the new query to
/// its adapted vector, as one.
///
/// ```text
/// both  = (1 − w) d_old / s_old + w d_adapted / s_adapted
/// fused = Q(both) + c
/// ```
///
/// w is the weight, s the standard deviation of either distance, and c a handicap like
/// [`Adapter::handicap`](crate::adapter::Adapter::handicap). Q is the increasing map that gives `both` the
/// distribution of `d_adapted`, linear between common quantiles. So a fused distance can be compared with
/// that of a native vector, as an adapted one can. Measurements stand in `laboratory/docs/fused.md`.
///
/// With w = 0, items that are not native rank as by the old model alone. With w = 1, they rank as by the
/// adapted vectors alone. An item without an adapted vector (yet) gets the adapted distance at the quantile
/// of its old one.
///
/// ```
/// use rehang_core::Fusion;
///
/// // The old distances are twice the new ones, and know no more.
/// let pairs: Vec<(f64, f64)> = (1..=100).map(|i| (0.02 * f64::from(i), 0.01 * f64::from(i))).collect();
/// let fusion = Fusion::from_distances(0.5, &pairs).unwrap();
/// // Its table is of single precision.
/// assert!((fusion.distance(1.0, Some(0.5)) - 0.5).abs() < 1e-6);
/// assert!((fusion.distance(1.0, None) - 0.5).abs() < 1e-6);
/// assert!(fusion.distance(0.9, Some(0.5)) < fusion.distance(1.0, Some(0.5)));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fusion {
    /// Weight w of the adapted distance, 0 to 1.
    pub weight: f64,
    /// Handicap c, 0 or more, in the unit of the new space's distance.
    pub handicap: f32,
    /// Standard deviations `s_old` and `s_adapted`, above 0.
    pub spreads: [f32; 2],
    /// Quantiles of old distances, increasing.
    pub old: Vec<f32>,
    /// Quantiles of adapted distances at the same shares as `old`, increasing.
    pub adapted: Vec<f32>,
    /// Quantiles of `both` at the same shares as `old`, increasing.
    pub both: Vec<f32>,
}

impl Fusion {
    /// Number of knots at an end of the table whose slope continues beyond it. The slope of only two knots
    /// would be that of a few distances.
    pub const END: usize = 4;
    /// Candidates that a search reads in each space for every wanted item, before it knows whether they are
    /// enough.
    pub const CANDIDATES_PER_HIT: usize = 4;
    /// Fewest candidates that a search reads in each space.
    pub const CANDIDATES_MIN: usize = 64;
    /// Factor by which a search reads more candidates where there were too few.
    pub const FURTHER: usize = 4;
    /// Most candidates from each space, unless more items are wanted. An answer that is not proven exact by
    /// then is given as it is.
    pub const CANDIDATES_MAX: usize = 1024;

    /// Makes a fusion with a weight and without a handicap, from sample distances `(d_old, d_adapted)`, each
    /// pair of one query to one item. `None` where either distance is the same nearly everywhere, so that it
    /// says nothing.
    pub fn from_distances(weight: f64, distances: &[(f64, f64)]) -> Option<Self> {
        let step = distances.len().div_ceil(DISTANCES_MAX).max(1);
        let sample = || distances.iter().step_by(step);
        let spread = |values: &[f64]| mean_sd(values).map(|spread| spread.sd as f32).filter(|sd| *sd > 0.0);
        let (old, adapted): (Vec<f64>, Vec<f64>) = sample().copied().unzip();
        let spreads = [spread(&old)?, spread(&adapted)?];
        let blended = sample().map(|pair| blend(weight, spreads, pair.0, pair.1)).collect();
        let columns = [old, adapted, blended].map(|mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values
        });
        let last = columns[0].len() - 1;
        let near = (1..=NEAR).rev().map(|power| 0.5_f64.powi(power as i32));
        let far = (2..=FAR).map(|power| 1.0 - 0.5_f64.powi(power as i32));
        let mut table: [Vec<f32>; 3] = Default::default();
        for part in [0.0].into_iter().chain(near).chain(far).chain([1.0]) {
            let place = (part * last as f64).round() as usize;
            // A knot is kept only where all three columns rise, so that the order of each is kept.
            let knots = columns.each_ref().map(|column| column[place] as f32);
            if knots.iter().zip(&table).all(|(knot, column)| column.last().is_none_or(|before| knot > before))
            {
                knots.iter().zip(&mut table).for_each(|(&knot, column)| column.push(knot));
            }
        }
        let [old, adapted, both] = table;
        let fusion = Self { weight, handicap: 0.0, spreads, old, adapted, both };
        fusion.check().ok().map(|()| fusion)
    }

    /// Computes the fused distance of an item. `old` is from the old query to its old vector, `adapted` from
    /// the new query to its adapted one. The result rises with both.
    pub fn distance(&self, old: f64, adapted: Option<f64>) -> f64 {
        let adapted = adapted.unwrap_or_else(|| interpolate(&self.old, &self.adapted, old));
        interpolate(&self.both, &self.adapted, blend(self.weight, self.spreads, old, adapted))
            + f64::from(self.handicap)
    }

    /// Checks that the parts make a fusion: a weight from 0 to 1, spreads above 0, a table whose columns
    /// rise.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption),
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt).
    pub fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.weight) {
            return Err(Error::option("weight of a fusion", self.weight, "a number from 0 to 1"));
        }
        check_handicap(f64::from(self.handicap))?;
        if !self.spreads.iter().all(|spread| *spread > 0.0 && spread.is_finite()) {
            return Err(Error::corrupt("the fusion", "its spreads are finite numbers above 0"));
        }
        let rises = |column: &Vec<f32>| {
            column.len() >= 2
                && column.len() == self.old.len()
                && column.iter().all(|value| value.is_finite())
                && column.windows(2).all(|two| two[0] < two[1])
        };
        if ![&self.old, &self.adapted, &self.both].into_iter().all(rises) {
            return Err(Error::corrupt(
                "the fusion",
                "its quantiles rise, and there are as many in each column",
            ));
        }
        Ok(())
    }
}

fn blend(weight: f64, spreads: [f32; 2], old: f64, adapted: f64) -> f64 {
    (1.0 - weight) * old / f64::from(spreads[0]) + weight * adapted / f64::from(spreads[1])
}

/// Interpolates linearly between the knots, and goes on beyond an end with the slope of its last few.
fn interpolate(from: &[f32], to: &[f32], value: f64) -> f64 {
    let last = from.len() - 1;
    let (at, other) = match from.partition_point(|&knot| f64::from(knot) <= value) {
        0 => (0, last.min(Fusion::END)),
        right if right > last => (last, last - last.min(Fusion::END)),
        right => (right - 1, right),
    };
    let [x, y, x_other, y_other] = [from[at], to[at], from[other], to[other]].map(f64::from);
    y + (value - x) * (y_other - y) / (x_other - x)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(count: usize) -> Vec<(f64, f64)> {
        (0..count)
            .map(|i| {
                let noise = |salt: usize| ((i * 7919 + salt * 104_729) % 10_007) as f64 / 10_007.0;
                (noise(1).powi(2), 0.3 * noise(1) + 0.7 * noise(2))
            })
            .collect()
    }

    #[test]
    fn fused_distances_have_the_distribution_of_adapted_ones() {
        let pairs = pairs(5000);
        for weight in [0.0, 0.3, 1.0] {
            let fusion = Fusion::from_distances(weight, &pairs).unwrap();
            let mut fused: Vec<f64> =
                pairs.iter().map(|(old, adapted)| fusion.distance(*old, Some(*adapted))).collect();
            let mut adapted: Vec<f64> = pairs.iter().map(|(_, adapted)| *adapted).collect();
            fused.sort_unstable_by(f64::total_cmp);
            adapted.sort_unstable_by(f64::total_cmp);
            for place in [0, 50, 500, 2500, 4500, 4999] {
                assert!((fused[place] - adapted[place]).abs() < 0.02, "{weight} {place}");
            }
        }
        // The weight leaves only the adapted distance.
        let alone = Fusion::from_distances(1.0, &pairs).unwrap();
        assert!(
            pairs.iter().all(|(old, adapted)| (alone.distance(*old, Some(*adapted)) - adapted).abs() < 1e-6)
        );
        // The weight leaves nothing of the adapted vector, so it may as well be missing.
        let none = Fusion::from_distances(0.0, &pairs).unwrap();
        assert!(
            pairs
                .iter()
                .all(|(old, adapted)| none.distance(*old, Some(*adapted)) == none.distance(*old, None))
        );
    }

    #[test]
    fn what_says_nothing_is_no_fusion() {
        assert_eq!(Fusion::from_distances(0.5, &[]), None);
        assert_eq!(Fusion::from_distances(0.5, &[(0.1, 0.2)]), None);
        assert_eq!(Fusion::from_distances(0.5, &[(0.1, 0.2); 50]), None);
        let of_one: Vec<(f64, f64)> = pairs(50).into_iter().map(|(old, _)| (old, 1.0)).collect();
        assert_eq!(Fusion::from_distances(0.5, &of_one), None);
        let fusion = Fusion::from_distances(0.5, &pairs(50)).unwrap();
        for wrong in [
            Fusion { weight: 1.5, ..fusion.clone() },
            Fusion { handicap: f32::NAN, ..fusion.clone() },
            Fusion { spreads: [0.0, 1.0], ..fusion.clone() },
            Fusion { both: vec![1.0; fusion.both.len()], ..fusion.clone() },
            Fusion { old: fusion.old[1..].to_vec(), ..fusion },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        /// Fusion keeps the order of items that are not native: no order is reversed or lost, within the
        /// table and beyond it.
        #[test]
        fn it_rises_with_both_distances(weight in 0.0..=1.0f64, old in -2.0..3.0f64, adapted in -2.0..3.0f64, more in 1e-3..1.0f64) {
            let fusion = Fusion::from_distances(weight, &pairs(400)).unwrap();
            let here = fusion.distance(old, Some(adapted));
            prop_assert!(fusion.distance(old + more, Some(adapted)) >= here);
            prop_assert!(fusion.distance(old, Some(adapted + more)) >= here);
            prop_assert!(fusion.distance(old + more, Some(adapted + more)) > here);
            prop_assert!(fusion.distance(old + more, None) > fusion.distance(old, None));
        }
    }
}
