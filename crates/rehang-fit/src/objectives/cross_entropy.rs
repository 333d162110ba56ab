//! Cross-entropy with label smoothing, from logits.
//!
//! With logits `z` over `K` classes, `p = softmax(z)`, the true class `y` and smoothing `ε`
//! (Szegedy et al. 2016, as PyTorch has it):
//!
//! ```text
//! q_k = ε/K + (1 − ε)·[k = y]        L = −Σ q_k·log p_k        ∂L/∂z = p − q
//! ```
//!
//! FastFill's `L_disc` is this loss for heads trained with softmax (`papers/fastfill.txt`, before equation
//! (3)): the logits are `κ_new(h(o))`, and κ_new is frozen.

/// Returns the loss of one row of logits `[classes]` for the true class `label`; the logits are replaced by
/// the derivative.
///
/// `label` must be below the number of classes and `smoothing` in [0, 1]. Logits may be of any size: the
/// largest is subtracted first. NaN or infinite logits give NaN.
///
/// ```
/// use rehang_fit::objectives::cross_entropy::cross_entropy_row;
///
/// let mut logits = [0.0, 0.0, 0.0, 0.0];
/// let loss = cross_entropy_row(&mut logits, 1, 0.1);
/// assert!((loss - 4f64.ln()).abs() < 1e-6);
/// // p − q: a quarter each, less 0.1/4 for every class and 0.9 for the true one.
/// assert!((logits[0] - 0.225).abs() < 1e-6 && (logits[1] + 0.675).abs() < 1e-6);
/// ```
pub fn cross_entropy_row(logits: &mut [f32], label: usize, smoothing: f32) -> f64 {
    let classes = logits.len() as f64;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let true_logit = f64::from(logits[label] - largest);
    let (mut exponentials, mut shifted) = (0.0_f64, 0.0_f64);
    for logit in &mut *logits {
        let centred = *logit - largest;
        shifted += f64::from(centred);
        *logit = centred.exp();
        exponentials += f64::from(*logit);
    }
    let smoothing = f64::from(smoothing);
    let loss = exponentials.ln() - (1.0 - smoothing) * true_logit - smoothing * shifted / classes;
    let (scale, floor) = ((1.0 / exponentials) as f32, (smoothing / classes) as f32);
    for logit in &mut *logits {
        *logit = *logit * scale - floor;
    }
    logits[label] -= (1.0 - smoothing) as f32;
    loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::finite_differences::{check, numbers};

    #[test]
    fn gradients_agree_with_finite_differences() {
        for smoothing in [0.0, 0.1, 1.0] {
            let logits: Vec<f32> = numbers(6, 3).into_iter().map(|value| 3.0 * value).collect();
            let mut gradient = logits.clone();
            cross_entropy_row(&mut gradient, 4, smoothing);
            check(&logits, &gradient, 2e-4, |at| cross_entropy_row(&mut at.to_vec(), 4, smoothing));
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut logits = [1000.0, -1000.0];
        assert!(cross_entropy_row(&mut logits, 0, 0.0).abs() < 1e-9);
        let mut logits = [1000.0, -1000.0];
        assert!((cross_entropy_row(&mut logits, 1, 0.0) - 2000.0).abs() < 1e-6);
    }
}
