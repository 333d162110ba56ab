//! Weighs the loss by a learned uncertainty: FastFill, equation (5).
//!
//! `papers/fastfill.txt` prints `L/σ² + (1/λ)·log σ²` with `s = log σ² = ψ(h(o))`. The reference code has it
//! as
//!
//! ```text
//! J = mean over the batch of  a·e^(−s)·L + b·s        a = b = ½,   s = ⟨ψ, h⟩ + β
//! ∂J/∂L = a·e^(−s)/n       ∂J/∂s = (b − a·e^(−s)·L)/n
//! ```
//!
//! with its optimum at `σ² = (a/b)·L`. ψ is one linear layer on the raw output, and the gradient of `s` also
//! flows into `h`.
//!
//! # The guard
//!
//! Where L is small, `e^(−s)` grows without bound and takes the fit with it. So `s` is clamped to ±`bound`
//! wherever it is used, and `∂J/∂s` is dropped where it would push `s` further out (a projected gradient):
//! inside the bounds the formula is untouched, and a sample beyond them comes back as soon as its loss asks
//! for it. The reference has no bound; a bound of 60 keeps its numbers and only stops the overflow of `f32`.
//!
//! # Warm-up
//!
//! In the warm-up, h learns from the plain mean of `a·L` while ψ learns from `J` with h held fixed, so that
//! weights are meaningful when they begin to count.

/// Loss of one sample as it is weighed, with its derivatives.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Weighed {
    /// Weighed loss `a·e^(−s)·L + b·s`.
    pub value: f64,
    /// Derivative `∂value/∂L = a·e^(−s)`.
    pub loss_slope: f32,
    /// Derivative `∂value/∂s`, 0 where it would push a clamped `s` further out.
    pub log_variance_slope: f32,
}

/// Computes `a·e^(−s)·L + b·s` and its derivatives, with `s` clamped to ±`bound`.
///
/// ```
/// use rehang_fit::objectives::likelihood::weigh;
///
/// // At the optimum σ² = L nothing pulls on s.
/// let at_optimum = weigh(4.0, 4f32.ln(), 0.5, 0.5, 60.0);
/// assert!(at_optimum.log_variance_slope.abs() < 1e-6);
/// assert!((at_optimum.value - (0.5 + 0.5 * 4f64.ln())).abs() < 1e-6);
/// // A loss near zero would send s to −∞; at the bound it stays.
/// assert_eq!(weigh(0.0, -5.0, 0.5, 0.5, 4.0).log_variance_slope, 0.0);
/// ```
pub fn weigh(loss: f32, log_variance: f32, loss_weight: f32, log_weight: f32, bound: f32) -> Weighed {
    let clamped = log_variance.clamp(-bound, bound);
    let precision = f64::from(loss_weight) * f64::from(-clamped).exp();
    let slope = (f64::from(log_weight) - precision * f64::from(loss)) as f32;
    // Descending along a positive slope lowers s, along a negative one raises it.
    let outwards = (log_variance <= -bound && slope > 0.0) || (log_variance >= bound && slope < 0.0);
    Weighed {
        value: precision * f64::from(loss) + f64::from(log_weight) * f64::from(clamped),
        loss_slope: precision as f32,
        log_variance_slope: if outwards { 0.0 } else { slope },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::finite_differences::check;

    #[test]
    fn gradients_agree_with_finite_differences_inside_the_bounds() {
        for (loss, s) in [(0.3, 0.5), (2.0, -1.2), (7.0, 1.9)] {
            let weighed = weigh(loss, s, 0.5, 0.4, 2.0);
            check(&[loss, s], &[weighed.loss_slope, weighed.log_variance_slope], 1e-4, |at| {
                weigh(at[0], at[1], 0.5, 0.4, 2.0).value
            });
        }
    }

    #[test]
    fn beyond_a_bound_only_the_way_back_is_open() {
        // A large loss calls for a larger s, which is the way back from below the lower bound.
        assert!(weigh(1e3, -3.0, 0.5, 0.5, 2.0).log_variance_slope < 0.0);
        assert_eq!(weigh(1e-6, -3.0, 0.5, 0.5, 2.0).log_variance_slope, 0.0);
        assert_eq!(weigh(1e3, 3.0, 0.5, 0.5, 2.0).log_variance_slope, 0.0);
        assert!(weigh(1e-6, 3.0, 0.5, 0.5, 2.0).log_variance_slope > 0.0);
    }

    #[test]
    fn extreme_log_variances_stay_finite() {
        for s in [-1e30, 1e30] {
            let weighed = weigh(1.0, s, 0.5, 0.5, 60.0);
            assert!(weighed.value.is_finite() && weighed.loss_slope.is_finite());
        }
    }
}
