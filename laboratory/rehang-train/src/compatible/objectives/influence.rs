//! BCT's influence loss (equation 8): the new vectors must be told apart by the OLD, frozen head.
//!
//! ```text
//! L_influence = 1/|K| Σ_{x ∈ K} ℓ(φ_new(x), ω_old)_y          K = rows of B whose class the old head knows
//! ```
//!
//! With T_BCT = the old training set, K is only those of them that the old model was trained on.
//!
//! Classes that the old head does not know are left out; with synthesised weights there are none. With
//! distillation (BCT §2.5) they count too, by what the head says of their old and of their new vector, in one
//! mean with the others:
//!
//! ```text
//! L_influence = 1/|K ∪ U| (Σ_{x ∈ K} ℓ(φ_new(x), ω_old)_y + Σ_{x ∈ U} KL(softmax z_old(φ_old(x)) ‖ softmax z_old(φ_new(x))))
//! U = rows of B whose class the old head does not know
//! ```

use super::super::heads::HeadWeights;
use super::super::method::{InfluenceSet, NewClasses};
use super::head_distillation::distilled;
use super::{Loss, Objective, shares};

/// Makes the objective. `old_head` is ω_old, `set` T_BCT; rows of `new_classes` are left out unless they are
/// distilled.
pub(crate) fn influence(old_head: HeadWeights, set: InfluenceSet, new_classes: NewClasses) -> Objective {
    Objective::new("influence", move |batch| {
        let is_distilled = new_classes == NewClasses::Distillation;
        let known = |row: usize| old_head.knows(batch.labels[row]);
        let is_told = |row: usize| known(row) && (batch.of_old[row] || set == InfluenceSet::New);
        let rows = 0..batch.labels.len();
        let counts: Vec<bool> = rows.map(|row| is_told(row) || (is_distilled && !known(row))).collect();
        // Both kinds of rows stand in one mean.
        let shares = shares(&counts);
        let shares_of = |kind: bool| -> Vec<f32> {
            shares
                .iter()
                .enumerate()
                .map(|(row, &share)| if known(row) == kind { share } else { 0.0 })
                .collect()
        };
        let pass = old_head.pass_with_margin(&batch.new, &batch.labels);
        let (value, slopes) = pass.cross_entropy(&batch.labels, 0.0, &shares_of(true));
        let mut loss = Loss { value, new: Some(pass.to_vectors(&slopes)), ..Loss::default() };
        if is_distilled {
            loss.add(1.0, distilled(&old_head, batch, 1.0, &shares_of(false)));
        }
        loss
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
                for new_classes in [NewClasses::LeaveOut, NewClasses::Distillation] {
                    let old_head = frozen(&numbers(2 * 4, 9), 4, form);
                    Plain::usual().check(&influence(old_head, set, new_classes));
                }
            }
        }
    }

    #[test]
    fn a_batch_computed_by_hand() {
        // Logits (2, 0) and (0, 0) of an old head of two classes: losses ln(1 + e⁻²) for class 0 and ln 2 for
        // class 1.
        let old_head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let expected = 0.5 * ((1.0 + (-2.0_f64).exp()).ln() + 2.0_f64.ln());
        let influence = |set| influence(old_head.clone(), set, NewClasses::LeaveOut);
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
        let objective = influence(old_head, InfluenceSet::New, NewClasses::LeaveOut);
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

    #[test]
    fn what_is_distilled_stands_in_one_mean_with_the_others() {
        // Two rows of a known class and one of an unknown one: a third of everything, and not a mean of each
        // kind.
        let old_head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let plain = Plain {
            labels: vec![0, 0, 7],
            of_old: vec![true; 3],
            new: vec![2.0, 0.0, 0.0, 3.0, 1.0, 0.0],
            old: vec![1.0, 0.0, 5.0, 0.0, 3.0, 0.0],
            adapted: vec![1.0; 6],
            ..Plain::on_axes()
        };
        let objective = influence(old_head, InfluenceSet::New, NewClasses::Distillation);
        // Old logits (3, 0) of the third row's old vector, (1, 0) of its new one.
        let p = |logit: f64| [1.0 / (1.0 + (-logit).exp()), 1.0 / (1.0 + logit.exp())];
        let kl: f64 = p(3.0).iter().zip(p(1.0)).map(|(p, q)| p * (p / q).ln()).sum();
        let expected = ((1.0 + (-2.0_f64).exp()).ln() + 2.0_f64.ln() + kl) / 3.0;
        assert!((plain.value(&objective) - expected).abs() < 1e-5);
    }
}
