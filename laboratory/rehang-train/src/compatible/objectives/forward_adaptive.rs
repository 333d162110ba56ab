//! DMU's forward adaptation (equation 11): old vectors, sent through ψ, must be told apart by the NEW head.
//!
//! ```text
//! L_FA = 1/|B_ψ| Σ_x ℓ(ψ(φ_old(x)), ω_new)_y
//! ```
//!
//! ψ and the new head learn; the encoder gets no gradient from here. B_ψ is the batch, or one that is drawn
//! for ψ alone.

use super::{Loss, Objective, shares};

pub(crate) fn forward_adaptive() -> Objective {
    Objective::new("forward-adaptive", |batch| {
        let Some(adapted) = &batch.adapted else { return Loss::default() };
        let pass = batch.head.pass_with_margin(adapted, &batch.adapted_labels);
        let weights = shares(&vec![true; batch.adapted_labels.len()]);
        let (value, slopes) = pass.cross_entropy(&batch.adapted_labels, 0.0, &weights);
        let (adapted, head) = (pass.to_vectors(&slopes), pass.to_head(&slopes));
        Loss { value, adapted: Some(adapted), head: Some(head), ..Loss::default() }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Plain;
    use super::*;
    use crate::compatible::heads::HeadForm;

    #[test]
    fn a_batch_computed_by_hand() {
        // ψ's vectors (1, 0) and (0, 2) under a new head of (1, 0) and (0, 0): logits (1, 0) of class 0, (0,
        // 0) of class 1.
        let rows =
            Plain { adapted: vec![1.0, 0.0, 0.0, 2.0], head: vec![1.0, 0.0, 0.0, 0.0], ..Plain::on_axes() };
        let expected = 0.5 * ((1.0 + (-1.0_f64).exp()).ln() + 2.0_f64.ln());
        assert!((rows.value(&forward_adaptive()) - expected).abs() < 1e-5);
    }

    #[test]
    fn gradients_agree_with_finite_differences_and_none_flows_into_the_encoder() {
        for form in [HeadForm::Softmax, HeadForm::ArcFace { scale: 4.0, margin: 0.3 }] {
            let plain = Plain { form, ..Plain::usual() };
            plain.check(&forward_adaptive());
            let [new, adapted, head] = plain.gradients(&forward_adaptive());
            assert!(new.iter().all(|&value| value == 0.0));
            assert!(adapted.iter().any(|&value| value != 0.0) && head.iter().any(|&value| value != 0.0));
        }
    }
}
