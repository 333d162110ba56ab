//! Whether σ² still means what it says, told from the items that were backfilled.

use rehang_core::Result;
use rehang_core::statistics::kendall_tau_b;
use rehang_store::Ledger;
use serde::{Deserialize, Serialize};

/// Native vectors whose σ² is compared with their true error.
const SAMPLE: usize = 2000;
/// Fewest backfilled items from which anything is said.
const ITEMS_MIN: usize = 50;
/// Factor between mean σ² and mean squared error, either way, above which σ² is said to be wrong.
const RATIO_MAX: f64 = 3.0;
/// Rank correlation below which σ² is said to order items the wrong way round.
const TAU_MIN: f64 = -0.1;

/// Comparison of σ² with `‖native − adapted‖²`, of the items that were backfilled last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SigmaHealth {
    /// Items compared.
    pub items: usize,
    /// Items that were passed over, since their σ² or their error is not finite.
    #[serde(default)]
    pub passed_over: usize,
    /// Mean σ².
    pub mean_sigma2: f64,
    /// Mean true squared error.
    pub mean_squared_error: f64,
    /// Kendall τ-b between the two; `None` where all errors are equal. Worst-first orders take the items
    /// with large σ² first, so early on this is the correlation among those alone, which is lower than
    /// that of the gallery.
    pub tau: Option<f64>,
    /// Whether σ² and the errors disagree: the means by more than a factor of 3, or the ranks the wrong way
    /// round (τ below −0.1).
    pub alarm: bool,
}

/// Compares σ² with the true errors of the natives of a space that were written last.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn health_of(store: &dyn Ledger, space: &str) -> Result<Option<SigmaHealth>> {
    Ok(sigma_health(&store.errors(space, SAMPLE)?))
}

/// Compares `(σ², squared error)` of backfilled items. `None` below 50 of them, and where σ² is the same for
/// all, as of an adapter that tells no item from another. Pairs that are not finite, as a vector whose
/// length has no square in `f32` leaves them, are counted and passed over: a figure about the gallery's
/// health fails no verb.
pub fn sigma_health(errors: &[(f32, f32)]) -> Option<SigmaHealth> {
    let error_count = errors.len();
    let errors: Vec<(f32, f32)> =
        errors.iter().copied().filter(|(sigma2, error)| sigma2.is_finite() && error.is_finite()).collect();
    let passed_over = error_count - errors.len();
    if errors.len() < ITEMS_MIN || errors.iter().all(|(sigma2, _)| *sigma2 == errors[0].0) {
        return None;
    }
    let sigma2: Vec<f64> = errors.iter().map(|(sigma2, _)| f64::from(*sigma2)).collect();
    let squared: Vec<f64> = errors.iter().map(|(_, squared)| f64::from(*squared)).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_sigma2, mean_squared_error) = (mean(&sigma2), mean(&squared));
    // All numbers are finite and both lists of one length, so nothing can be wrong with them.
    let tau = kendall_tau_b(&sigma2, &squared).ok().flatten();
    let ratio = mean_sigma2 / mean_squared_error.max(f64::MIN_POSITIVE);
    // Items that did not change at all (an adapter that is exact) give no ratio worth an alarm.
    let is_off = mean_squared_error > 0.0 && !(1.0 / RATIO_MAX..=RATIO_MAX).contains(&ratio);
    let alarm = is_off || tau.is_some_and(|tau| tau < TAU_MIN);
    Some(SigmaHealth { items: errors.len(), passed_over, mean_sigma2, mean_squared_error, tau, alarm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_items_say_nothing() {
        let line = |count: u8| (0..count).map(|at| (f32::from(at), 1.0)).collect::<Vec<_>>();
        assert_eq!(sigma_health(&line(49)), None);
        assert!(sigma_health(&line(50)).is_some());
    }

    #[test]
    fn one_sigma_for_all_says_nothing_of_any() {
        assert_eq!(sigma_health(&[(1.0, 240.0); 60]), None);
    }

    #[test]
    fn what_is_not_finite_is_passed_over_and_counted() {
        let mut errors: Vec<(f32, f32)> = (0..60_u8).map(|at| (f32::from(at), 1.0)).collect();
        errors[7].1 = f32::INFINITY;
        errors[9].0 = f32::NAN;
        let health = sigma_health(&errors).unwrap();
        assert_eq!((health.items, health.passed_over, health.mean_squared_error), (58, 2, 1.0));
    }

    #[test]
    fn an_alarm_rings_where_the_scale_or_the_ranks_are_wrong() {
        let line =
            |f: fn(f32) -> f32| -> Vec<(f32, f32)> { (1..=100).map(|i| (i as f32, f(i as f32))).collect() };
        assert!(!sigma_health(&line(|x| x * 1.5)).unwrap().alarm);
        assert!(sigma_health(&line(|x| x * 4.0)).unwrap().alarm);
        assert!(sigma_health(&line(|x| 101.0 - x)).unwrap().alarm);
        // An exact adapter rings nothing.
        assert!(!sigma_health(&line(|_| 0.0)).unwrap().alarm);
    }
}
