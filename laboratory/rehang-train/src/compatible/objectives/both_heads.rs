//! Loss of the old head's true class against all other classes of BOTH heads (OpenCompatible's way to bring
//! RACT to a head).
//!
//! ```text
//! L = 1/|K| Σ_{x ∈ K} −log e^(z_old,y) / (Σ_j e^(z_old,j) + Σ_{j ≠ y} e^(z_new,j))
//! ∂/∂z_old,j = p_old,j − 1[j = y]     ∂/∂z_new,j = p_new,j for j ≠ y     p the softmax over the whole denominator
//! ```
//!
//! `z_old` are the frozen old head's logits of the NEW vector, `z_new` the new head's; K are the rows whose
//! class the old head knows. To this loss a head is what vectors are to RACT's (6), which adds new negatives
//! to (5).

use rehang_core::Matrix;

use rehang_fit::objectives::cross_entropy::cross_entropy_row;

use super::super::heads::HeadWeights;
use super::{Loss, Objective, shares};

/// Makes the objective; `old_head` is ω_old.
pub(crate) fn both_heads(old_head: HeadWeights) -> Objective {
    Objective::new("both-heads", move |batch| {
        let rows = batch.labels.len();
        let known: Vec<bool> = batch.labels.iter().map(|&label| old_head.knows(label)).collect();
        let (old, new) = (old_head.pass_with_margin(&batch.new, &batch.labels), batch.head.pass(&batch.new));
        let mut slopes = [&old.logits, &new.logits].map(|logits| Matrix::zeros(rows, logits.columns()));
        let mut value = 0.0;
        for (row, (&label, weight)) in batch.labels.iter().zip(shares(&known)).enumerate() {
            if weight == 0.0 {
                continue;
            }
            let others: Vec<usize> =
                batch.head.taught.iter().copied().filter(|&class| class != label).collect();
            let mut all = old.logits.row(row).to_vec();
            all.extend(others.iter().map(|&class| new.logits.row(row)[class]));
            value += f64::from(weight) * cross_entropy_row(&mut all, label, 0.0);
            for slope in &mut all {
                *slope *= weight;
            }
            let (of_old, of_new) = all.split_at(old.logits.columns());
            slopes[0].row_mut(row).copy_from_slice(of_old);
            for (class, &slope) in others.into_iter().zip(of_new) {
                slopes[1].row_mut(row)[class] = slope;
            }
        }
        let mut loss = Loss { value, new: Some(old.to_vectors(&slopes[0])), ..Loss::default() };
        let (vectors, head) = (new.to_vectors(&slopes[1]), new.to_head(&slopes[1]));
        loss.add(1.0, Loss { new: Some(vectors), head: Some(head), ..Loss::default() });
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
