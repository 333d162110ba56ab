//! Focal distillation (Yan et al. 2020, positive-congruent training), a baseline against flips: what the old model had
//! right is distilled more.
//!
//! ```text
//! L = 1/|K| Σ_{x ∈ K} (α + β·1[old right on x])·T²·KL(softmax(z_old(φ_old(x))/T) ‖ softmax(z_new(φ_new(x))/T))
//! ```
//!
//! K are the rows whose class the old head knows; `z_new` are the new head's logits of the old head's classes. It
//! regularises what the model says of classes, not where its vectors lie, and so does not make them compatible alone.

use super::super::heads::HeadWeights;
use super::super::rows::as_wide_as;
use super::head_distillation::divergence;
use super::{Loss, Objective};

/// `old_head` is ω_old, `base` the weight α of every row, `focus` the further weight β of rows that the old model has right,
/// `temperature` T.
pub(crate) fn focal_distillation(
    old_head: HeadWeights,
    base: f32,
    focus: f32,
    temperature: f32,
) -> Objective {
    Objective::new("focal", move |batch| {
        let classes = old_head.classes().min(batch.head.classes());
        let old = as_wide_as(&old_head.pass(&batch.old).logits, classes);
        let pass = batch.head.pass(&batch.new);
        let right = |row: usize, label: usize| old.row(row).iter().all(|&other| other <= old.row(row)[label]);
        let known = batch.labels.iter().filter(|&&label| label < classes).count().max(1) as f32;
        let weight = |(row, &label): (usize, &usize)| match label < classes {
            false => 0.0,
            true if right(row, label) => (base + focus) / known,
            true => base / known,
        };
        let weights: Vec<f32> = batch.labels.iter().enumerate().map(weight).collect();
        let (value, slopes) = divergence(&old, &as_wide_as(&pass.logits, classes), temperature, &weights);
        let slopes = as_wide_as(&slopes, batch.head.classes());
        let (new, head) = (pass.to_vectors(&slopes), pass.to_head(&slopes));
        Loss { value, new: Some(new), head: Some(head), ..Loss::default() }
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
        Plain::usual().check(&focal_distillation(old_head, 1.0, 5.0, 2.0));
    }

    #[test]
    fn rows_that_the_old_model_has_right_weigh_more() {
        let plain = Plain {
            labels: vec![0, 0],
            new: vec![0.0, 1.0, 0.0, 1.0],
            // The old head is the identity: the first row is right, the second wrong.
            old: vec![1.0, 0.0, 0.0, 1.0],
            adapted: vec![1.0; 4],
            head: vec![1.0, 0.0, 0.0, 1.0],
            widths: [2, 2],
            ..Plain::usual()
        };
        let old_head = frozen(&[1.0, 0.0, 0.0, 1.0], 2, HeadForm::Softmax);
        let objective = |base, focus| focal_distillation(old_head.clone(), base, focus, 1.0);
        // KL of (σ(1), σ(−1)) against its mirror image is tanh(½); the second row's is 0.
        let divergence = 0.5_f64.tanh();
        assert!((plain.value(&objective(1.0, 0.0)) - 0.5 * divergence).abs() < 1e-5);
        assert!((plain.value(&objective(1.0, 5.0)) - 3.0 * divergence).abs() < 1e-5);
    }
}
