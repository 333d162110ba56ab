//! What the old head says of old and of new vectors shall be the same (Learning without Forgetting, Li and Hoiem 2016; BCT §2.5
//! takes [`divergence`] for the classes that the old head does not know, see [`super::influence`]).
//!
//! ```text
//! p = softmax(z_old(φ_old(x))/T)      q = softmax(z_old(φ_new(x))/T)
//! L = T²/|B| Σ_{x ∈ B} KL(p ‖ q)
//! ```
//!
//! `z_old` are the frozen head's logits, a cosine head's with its scale, which is the temperature that BCT's appendix
//! means. The factor T² keeps the size of the gradient (Hinton et al. 2015).

use burn_tensor::Tensor;
use burn_tensor::activation::log_softmax;

use super::super::heads::HeadTensors;
use super::Objective;

/// KL(p ‖ q) of every row, `[B, 1]`, times T².
pub(crate) fn divergence(old_logits: Tensor<2>, new_logits: Tensor<2>, temperature: f32) -> Tensor<2> {
    let p = log_softmax(old_logits.div_scalar(temperature), 1);
    let q = log_softmax(new_logits.div_scalar(temperature), 1);
    (p.clone().exp() * (p - q)).sum_dim(1).mul_scalar(temperature * temperature)
}

/// `old_head` is ω_old, `temperature` T.
pub(crate) fn head_distillation(old_head: HeadTensors, temperature: f32) -> Objective {
    Objective::new("distillation", move |batch| {
        divergence(old_head.logits(&batch.old), old_head.logits(&batch.new), temperature).mean()
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
