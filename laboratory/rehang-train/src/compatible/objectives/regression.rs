//! DMU's regression variant (equation 14 put into 10 and 11), a baseline: vectors shall point where their
//! partners point.
//!
//! ```text
//! L = Σ_x λ(x)·(1 − cos(φ_new(x), φ_old(x))) + 1/|B| Σ_x (1 − cos(ψ(φ_old(x)), φ_new(x)))
//! ```
//!
//! λ as in [`super::selective`] among the rows whose class the old head knows, which have |K|/|B| of the
//! whole; all others weigh 1/|B| each, as all rows do without an old head. The second part is there where ψ
//! is trained. As printed, it draws both of its sides to each other; with `stop_gradient` φ_new(x) is a
//! target there and gets no gradient, so that ψ follows the encoder and not the other way round.

use rehang_core::Matrix;

use super::super::heads::HeadWeights;
use super::super::rows::{Unit, as_wide_as, dot};
use super::selective::{RowWeighting, weights};
use super::{Loss, Objective, shares};

/// Computes `Σ weight·(1 − cos)` of the rows of two matrices of one width, and its derivatives with respect
/// to both.
fn apart(left: &Unit, right: &Unit, weights: &[f32]) -> (f64, [Matrix; 2]) {
    let towards = |rows: &Unit| {
        Matrix::from_fn(rows.rows.rows(), rows.rows.columns(), |row, column| {
            -weights[row] * rows.rows.row(row)[column]
        })
    };
    let away = |row: usize| 1.0 - dot(left.rows.row(row), right.rows.row(row));
    let value = weights.iter().enumerate().map(|(row, &weight)| f64::from(weight) * away(row)).sum();
    (value, [left.backward(&towards(right)), right.backward(&towards(left))])
}

/// Makes the objective; `old_head` is ω_old, for λ.
pub(crate) fn regression(
    old_head: Option<HeadWeights>,
    selection: RowWeighting,
    stop_gradient: bool,
) -> Objective {
    Objective::new("regression", move |batch| {
        let rows = batch.labels.len();
        let even = shares(&vec![true; rows]);
        let mut lambda = even.clone();
        if let Some(head) = &old_head {
            let known = batch.labels.iter().filter(|&&label| head.knows(label)).count() as f32;
            let selected = weights(head, &batch.old, &batch.labels, selection, None);
            for ((weight, selected), &label) in lambda.iter_mut().zip(selected).zip(&batch.labels) {
                if head.knows(label) {
                    *weight = selected * known / rows as f32;
                }
            }
        }
        let new = Unit::from_rows(&as_wide_as(&batch.new, batch.old.columns()));
        let (value, [backward, _]) = apart(&new, &Unit::from_rows(&batch.old), &lambda);
        let backward = as_wide_as(&backward, batch.new.columns());
        let mut loss = Loss { value, new: Some(backward), ..Loss::default() };
        if let Some(adapted) = &batch.adapted {
            let (value, [adapted, new]) =
                apart(&Unit::from_rows(adapted), &Unit::from_rows(&batch.new), &even);
            let new = Some(new).filter(|_| !stop_gradient);
            loss.add(1.0, Loss { value, new, adapted: Some(adapted), ..Loss::default() });
        }
        loss
    })
}

#[cfg(test)]
mod tests {
    use super::super::Batch;
    use super::super::tests::{Plain, frozen};
    use super::*;
    use crate::compatible::heads::HeadForm;
    use crate::finite_differences::{check, numbers};

    #[test]
    fn gradients_agree_with_finite_differences_where_they_flow() {
        let head = frozen(&numbers(3 * 4, 9), 4, HeadForm::Softmax);
        for old_head in [None, Some(head)] {
            let plain = Plain::usual();
            plain.check(&regression(old_head.clone(), RowWeighting::Entropy, false));
            let objective = regression(old_head, RowWeighting::Entropy, true);
            let [new, adapted, head] = plain.gradients(&objective);
            assert!(head.iter().all(|&value| value == 0.0));
            check(&plain.adapted, &adapted, 1e-2, |at| {
                Plain { adapted: at.to_vec(), ..plain.clone() }.value(&objective)
            });
            // ψ's part moves with φ_new as a target only; the encoder's gradient is that of the first part
            // alone.
            check(&plain.new, &new, 1e-2, |at| {
                let moved = Plain { new: at.to_vec(), ..plain.clone() };
                let whole = moved.value(&objective);
                let first = objective.evaluate(&Batch { adapted: None, ..moved.batch() }).value;
                assert!(whole >= first - 1e-6);
                first
            });
        }
    }

    #[test]
    fn known_rows_are_selected_and_others_weigh_alike() {
        // Old vectors (ln 3, 0) and (0, ln 2): p = (¾, ¼) and (⅓, ⅔) of class 0; a third row is of a class it
        // does not know.
        let old_head = Some(frozen(&[1.0, 0.0, 0.0, 1.0], 2, HeadForm::Softmax));
        let rows = Plain {
            new: vec![0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
            old: vec![3.0f32.ln(), 0.0, 0.0, 2.0f32.ln(), 0.0, 1.0],
            adapted: vec![1.0; 6],
            labels: vec![0, 0, 7],
            ..Plain::on_axes()
        };
        let share = 0.75_f64.exp() / (0.75_f64.exp() + (1.0_f64 / 3.0).exp());
        // All three pairs are at right angles, so each costs its weight; a half turn of the first makes its
        // weight visible.
        let objective = regression(old_head, RowWeighting::LeastConfidence, false);
        let value = |rows: &Plain| objective.evaluate(&Batch { adapted: None, ..rows.batch() }).value;
        assert!((value(&rows) - 1.0).abs() < 1e-5);
        let turned = Plain { new: vec![-1.0, 0.0, 1.0, 0.0, 1.0, 0.0], ..rows };
        let expected = 1.0 + share * 2.0 / 3.0;
        assert!((value(&turned) - expected).abs() < 1e-5);
    }

    #[test]
    fn vectors_that_point_alike_cost_nothing() {
        let together =
            Plain { old: vec![1.0, 0.0, 0.0, 5.0], adapted: vec![7.0, 0.0, 0.0, 1.0], ..Plain::on_axes() };
        let objective = regression(None, RowWeighting::Even, false);
        assert!(together.value(&objective).abs() < 1e-6);
        // Turned by a right angle, 1 each: half a batch of the first part.
        let turned = Plain { old: vec![1.0, 0.0, 5.0, 0.0], ..together };
        assert!((turned.value(&objective) - 0.5).abs() < 1e-6);
    }
}
