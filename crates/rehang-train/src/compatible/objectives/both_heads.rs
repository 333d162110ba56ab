//! The old head's true class against all other classes of BOTH heads (OpenCompatible's way to bring RACT to a head).
//!
//! ```text
//! L = 1/|K| Σ_{x ∈ K} −log e^(z_old,y) / (Σ_j e^(z_old,j) + Σ_{j ≠ y} e^(z_new,j))
//! ```
//!
//! `z_old` are the frozen old head's logits of the NEW vector, `z_new` the new head's; K are the rows whose class the
//! old head knows. It is what (6) is to (5), with class weights in the place of vectors.

use burn_tensor::Tensor;

use super::super::heads::HeadTensors;
use super::{NEVER, Objective, log_sum_exp, mean_over};

/// `old_head` is ω_old.
pub(crate) fn both_heads(old_head: HeadTensors) -> Objective {
    Objective::new("both-heads", move |batch| {
        let device = batch.old.device();
        let old = old_head.logits_with_margin(&batch.new, &batch.labels);
        let truth = batch.head.one_hot(&batch.labels, &device);
        let new = batch.head.logits_of_taught(&batch.new) + truth.mul_scalar(NEVER);
        let positive = (old.clone() * old_head.one_hot(&batch.labels, &device)).sum_dim(1);
        let losses = log_sum_exp(Tensor::cat(vec![old, new], 1)) - positive;
        mean_over(losses, batch.labels.iter().map(|&label| old_head.knows(label)))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, frozen};
    use super::*;
    use crate::compatible::heads::HeadForm;
    use crate::finite_differences::numbers;

    #[test]
    fn gradients_agree_with_finite_differences() {
        let old_head = frozen(&numbers(2 * 4, 9), 4, HeadForm::Softmax);
        Plain::usual().check(&both_heads(old_head));
    }

    #[test]
    fn a_batch_computed_by_hand() {
        let plain = Plain {
            labels: vec![0],
            new: vec![2.0, 1.0],
            old: vec![1.0, 1.0],
            adapted: vec![1.0; 2],
            head: vec![9.0, 9.0, 3.0, 0.0],
            widths: [2, 2],
            ..Plain::usual()
        };
        // Old logits (2, 1); new logits (masked, 6).
        let old_head = frozen(&[1.0, 0.0, 0.0, 1.0], 2, HeadForm::Softmax);
        let expected = (2.0_f64.exp() + 1.0_f64.exp() + 6.0_f64.exp()).ln() - 2.0;
        assert!((plain.value(&both_heads(old_head)) - expected).abs() < 1e-5);
    }
}
