//! DMU's regression variant (equation 14 put into 10 and 11), a baseline: vectors shall point where their partners point.
//!
//! ```text
//! L = Σ_x λ(x)·(1 − cos(φ_new(x), φ_old(x))) + 1/|B| Σ_x (1 − cos(ψ(φ_old(x)), φ_new(x)))
//! ```
//!
//! λ as in [`super::selective`]; without an old head all rows weigh alike, as do rows of classes that it does not know.
//! In the second part, which is there where ψ is trained, φ_new(x) is a target and gets no gradient: ψ follows the
//! encoder, not the other way round.

use burn::tensor::Tensor;

use super::super::heads::HeadTensors;
use super::contrastive::both_unit;
use super::selective::{Selection, weights};
use super::{Batch, Objective, rowwise, unit, weighted};

pub(crate) struct Regression {
    /// ω_old, for λ.
    pub old_head: Option<HeadTensors>,
    pub selection: Selection,
}

impl Objective for Regression {
    fn name(&self) -> &'static str {
        "regression"
    }

    fn loss(&self, batch: &Batch) -> Tensor<1> {
        let rows = batch.labels.len();
        let even = vec![1.0 / rows.max(1) as f32; rows];
        let lambda = match &self.old_head {
            Some(head) if batch.labels.iter().all(|&label| head.knows(label)) => {
                weights(head, &batch.old, &batch.labels, self.selection)
            }
            _ => even.clone(),
        };
        let (new, old) = both_unit(batch);
        let away = |cosines: Tensor<2>| cosines.neg().add_scalar(1.0);
        let backward = weighted(away(rowwise(new, old)), &lambda);
        match &batch.adapted {
            Some(adapted) => {
                let target = unit(batch.new.clone()).detach();
                backward + weighted(away(rowwise(unit(adapted.clone()), target)), &even)
            }
            None => backward,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, frozen};
    use super::*;
    use crate::compatible::heads::HeadForm;
    use crate::objectives::finite_differences::{check, numbers};

    #[test]
    fn gradients_agree_with_finite_differences_where_they_flow() {
        let head = frozen(&numbers(3 * 4, 9), 4, HeadForm::Softmax);
        for old_head in [None, Some(head)] {
            let objective = Regression { old_head, selection: Selection::Entropy };
            let plain = Plain::usual();
            let [new, adapted, head] = plain.gradients(&objective);
            assert!(head.iter().all(|&value| value == 0.0));
            check(&plain.adapted, &adapted, 1e-2, |at| {
                Plain { adapted: at.to_vec(), ..plain.clone() }.value(&objective)
            });
            // ψ's part moves with φ_new as a target only; the encoder's gradient is that of the first part alone.
            check(&plain.new, &new, 1e-2, |at| {
                let mut moved = Plain { new: at.to_vec(), ..plain.clone() };
                let whole = moved.value(&objective);
                let (mut batch, _) = moved.batch();
                batch.adapted = None;
                moved.adapted.clear();
                let first = crate::burn_network::read(objective.loss(&batch)).unwrap()[0];
                assert!(whole >= f64::from(first) - 1e-6);
                f64::from(first)
            });
        }
    }

    #[test]
    fn vectors_that_point_alike_cost_nothing() {
        let together =
            Plain { old: vec![1.0, 0.0, 0.0, 5.0], adapted: vec![7.0, 0.0, 0.0, 1.0], ..Plain::on_axes() };
        let objective = Regression { old_head: None, selection: Selection::Even };
        assert!(together.value(&objective).abs() < 1e-6);
        // Turned by a right angle, 1 each: half a batch of the first part.
        let turned = Plain { old: vec![1.0, 0.0, 5.0, 0.0], ..together };
        assert!((turned.value(&objective) - 0.5).abs() < 1e-6);
    }
}
