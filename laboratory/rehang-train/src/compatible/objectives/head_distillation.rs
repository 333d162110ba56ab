//! Distillation by the old head: it shall say of new vectors what it says of old ones (Learning without
//! Forgetting, Li and Hoiem 2016). BCT §2.5 takes [`distilled`] for the classes that the old head does not
//! know, see [`super::influence`].
//!
//! ```text
//! p = softmax(z_old(φ_old(x))/T)      q = softmax(z_old(φ_new(x))/T)
//! L = T²/|B| Σ_{x ∈ B} KL(p ‖ q)
//! ```
//!
//! `z_old` are the frozen head's logits, a cosine head's with its scale, which is the temperature that BCT's
//! appendix means. The factor T² keeps the size of the gradient (Hinton et al. 2015).

use rehang_core::Matrix;

use super::super::heads::HeadWeights;
use super::super::rows::log_softmax;
use super::{Batch, Loss, Objective, shares};

/// Computes `Σ weight·T²·KL(p ‖ q)` over the rows, and its derivative with respect to the new logits:
/// `weight·T·(q − p)`.
///
/// Both logits are `[B, classes]`, `weights` is `[B]`.
pub(crate) fn divergence(old: &Matrix, new: &Matrix, temperature: f32, weights: &[f32]) -> (f64, Matrix) {
    let t = f64::from(temperature);
    let (mut value, mut slopes) = (0.0, Matrix::zeros(new.rows(), new.columns()));
    for (row, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
        let weight = f64::from(weight);
        let log_softmax =
            |logits: &Matrix| log_softmax(logits.row(row).iter().map(|&logit| f64::from(logit) / t));
        let (log_p, log_q) = (log_softmax(old), log_softmax(new));
        for (slope, (log_p, log_q)) in slopes.row_mut(row).iter_mut().zip(log_p.into_iter().zip(log_q)) {
            let p = log_p.exp();
            value += weight * t * t * p * (log_p - log_q);
            *slope = (weight * t * (log_q.exp() - p)) as f32;
        }
    }
    (value, slopes)
}

/// Distils what `old_head` says of the old vectors into the new ones: `Σ weight·T²·KL(p ‖ q)`.
pub(crate) fn distilled(old_head: &HeadWeights, batch: &Batch, temperature: f32, weights: &[f32]) -> Loss {
    let (old, new) = (old_head.pass(&batch.old), old_head.pass(&batch.new));
    let (value, slopes) = divergence(&old.logits, &new.logits, temperature, weights);
    Loss { value, new: Some(new.to_vectors(&slopes)), ..Loss::default() }
}

/// Makes the objective. `old_head` is ω_old, `temperature` T.
pub(crate) fn head_distillation(old_head: HeadWeights, temperature: f32) -> Objective {
    Objective::new("distillation", move |batch| {
        distilled(&old_head, batch, temperature, &shares(&vec![true; batch.labels.len()]))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, frozen};
    use super::*;
    use crate::compatible::heads::HeadForm;
    use crate::finite_differences::numbers;

    fn objective() -> Objective {
        head_distillation(frozen(&numbers(2 * 4, 9), 4, HeadForm::Softmax), 2.0)
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        Plain::usual().check(&objective());
    }

    #[test]
    fn a_batch_computed_by_hand() {
        // Old logits (1, 0) and (5, 0), new ones (2, 0) and (0, 0), at T = 2.
        let old_head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let objective = head_distillation(old_head, 2.0);
        let kl = |old: f64, new: f64| {
            let p = |logit: f64| [1.0 / (1.0 + (-logit / 2.0).exp()), 1.0 / (1.0 + (logit / 2.0).exp())];
            p(old).iter().zip(p(new)).map(|(p, q)| p * (p / q).ln()).sum::<f64>()
        };
        let expected = 4.0 * 0.5 * (kl(1.0, 2.0) + kl(5.0, 0.0));
        assert!((Plain::on_axes().value(&objective) - expected).abs() < 1e-5);
    }

    #[test]
    fn it_is_zero_for_the_old_vectors_themselves() {
        let mut plain = Plain::usual();
        for row in 0..6 {
            plain.new[5 * row..5 * row + 4].copy_from_slice(&plain.old.clone()[4 * row..4 * row + 4]);
        }
        assert!(plain.value(&objective()).abs() < 1e-6);
        assert!(Plain::usual().value(&objective()) > 1e-3);
    }
}
