//! BCT's influence loss (equation 8): the new vectors must be told apart by the OLD, frozen head.
//!
//! ```text
//! L_influence = 1/|K| Σ_{x ∈ K} ℓ(φ_new(x), ω_old)_y          K = rows of B whose class the old head knows
//! ```
//!
//! With T_BCT = the old training set, K is only those of them that the old model was trained on.
//!
//! Classes that the old head does not know are left out here; with synthesised weights there are none, and
//! distillation ([`super::head_distillation`]) is the other way to use them.

use super::super::heads::HeadTensors;
use super::super::method::InfluenceSet;
use super::{Objective, mean_over};

/// `old_head` is ω_old, `set` T_BCT.
pub(crate) fn influence(old_head: HeadTensors, set: InfluenceSet) -> Objective {
    Objective::new("influence", move |batch| {
        let losses = old_head.cross_entropy(&batch.new, &batch.labels, 0.0);
        let rows = batch.labels.iter().zip(&batch.of_old);
        let counts =
            rows.map(|(&label, &of_old)| old_head.knows(label) && (of_old || set == InfluenceSet::New));
        mean_over(losses, counts)
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
        for form in [HeadForm::Softmax, HeadForm::ArcFace { scale: 4.0, margin: 0.3 }] {
            for set in [InfluenceSet::New, InfluenceSet::Old] {
                Plain::usual().check(&influence(frozen(&numbers(2 * 4, 9), 4, form), set));
            }
        }
    }

    #[test]
    fn a_batch_computed_by_hand() {
        // Logits (2, 0) and (0, 0) of an old head of two classes: losses ln(1 + e⁻²) for class 0 and ln 2 for class 1.
        let old_head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let expected = 0.5 * ((1.0 + (-2.0_f64).exp()).ln() + 2.0_f64.ln());
        let influence = |set| influence(old_head.clone(), set);
        assert!((Plain::on_axes().value(&influence(InfluenceSet::New)) - expected).abs() < 1e-5);
        // The old model was trained on the second row alone, or on none.
        for (of_old, expected) in [([false, true], 2.0_f64.ln()), ([false, false], 0.0)] {
            let plain = Plain { of_old: of_old.to_vec(), ..Plain::on_axes() };
            assert!((plain.value(&influence(InfluenceSet::Old)) - expected).abs() < 1e-5);
        }
    }

    #[test]
    fn rows_of_unknown_classes_do_not_count_and_the_new_head_gets_no_gradient() {
        let old_head = frozen(&numbers(2 * 4, 9), 4, HeadForm::Softmax);
        let objective = influence(old_head, InfluenceSet::New);
        let plain = Plain::usual();
        let [new, adapted, head] = plain.gradients(&objective);
        assert!(adapted.iter().chain(&head).all(|&value| value == 0.0));
        // Row 2 is of class 2, which the old head does not know; the last coordinate lies beyond its width.
        assert!(new[2 * 5..3 * 5].iter().all(|&value| value == 0.0) && new[4] == 0.0 && new[0] != 0.0);
        let mut other = plain.clone();
        other.new[2 * 5] += 1.0;
        assert_eq!(plain.value(&objective), other.value(&objective));
        // With no known class at all it is 0.
        let none = Plain { labels: vec![2; 6], ..plain };
        assert_eq!(none.value(&objective), 0.0);
    }
}
