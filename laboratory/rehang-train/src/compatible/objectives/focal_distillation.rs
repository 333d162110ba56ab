//! Focal distillation (Yan et al. 2020, positive-congruent training), a baseline against flips: what the old
//! model had right is distilled more.
//!
//! ```text
//! features        L = 1/|B| Σ_B (α + β·1[old right on x])·‖φ_new(x) − φ_old(x)‖²
//! probabilities   L = 1/|K| Σ_K (α + β·1[old right on x])·T²·KL(softmax(z_old(φ_old(x))/T) ‖ softmax(z_new(φ_new(x))/T))
//! ```
//!
//! RACT and DMU compare themselves with it and print no formula; DMU's prose speaks of probabilities. K are
//! the rows whose class the old head knows; the old model is right on no others. `z_new` are the new head's
//! logits of the old head's classes. Probabilities regularise what the model says of classes, not where its
//! vectors lie. So they do not make vectors compatible by themselves.

use serde::{Deserialize, Serialize};

use super::super::heads::HeadWeights;
use super::super::rows::as_wide_as;
use super::head_distillation::divergence;
use super::vector_distance::distance;
use super::{Loss, Objective};

/// Side of the new model that focal distillation draws towards the old model's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FocalForm {
    /// Vectors, by their squared distance.
    #[default]
    Features,
    /// Probabilities of classes, by their divergence at a temperature, as DMU's prose has it.
    Probabilities,
}

/// Makes the objective. `old_head` is ω_old, `base` the weight α of every row, `focus` the further weight β
/// of rows that the old model has right, `temperature` T of probabilities.
pub(crate) fn focal_distillation(
    old_head: HeadWeights,
    form: FocalForm,
    base: f32,
    focus: f32,
    temperature: f32,
) -> Objective {
    Objective::new("focal", move |batch| {
        let classes = old_head.classes().min(batch.head.classes());
        let old = as_wide_as(&old_head.pass(&batch.old).logits, classes);
        let right = |row: usize, label: usize| {
            label < classes && old.row(row).iter().all(|&other| other <= old.row(row)[label])
        };
        let mut weights: Vec<f32> = (batch.labels.iter().enumerate())
            .map(|(row, &label)| if right(row, label) { base + focus } else { base })
            .collect();
        if form == FocalForm::Features {
            let rows = batch.labels.len().max(1) as f32;
            for weight in &mut weights {
                *weight /= rows;
            }
            return distance(batch, &weights);
        }
        let known = batch.labels.iter().filter(|&&label| label < classes).count().max(1) as f32;
        for (weight, &label) in weights.iter_mut().zip(&batch.labels) {
            *weight = if label < classes { *weight / known } else { 0.0 };
        }
        let pass = batch.head.pass(&batch.new);
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
        for form in [FocalForm::Features, FocalForm::Probabilities] {
            Plain::usual().check(&focal_distillation(old_head.clone(), form, 1.0, 5.0, 2.0));
        }
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
        let objective_of = |form, focus| focal_distillation(old_head.clone(), form, 1.0, focus, 1.0);
        let objective = |focus| objective_of(FocalForm::Probabilities, focus);
        // KL of (σ(1), σ(−1)) against its mirror image is tanh(½); the second row's is 0.
        let divergence = 0.5_f64.tanh();
        assert!((plain.value(&objective(0.0)) - 0.5 * divergence).abs() < 1e-5);
        assert!((plain.value(&objective(5.0)) - 3.0 * divergence).abs() < 1e-5);
        // The first row's vector stands √2 from its old one, the second on it.
        let features = |focus| plain.value(&objective_of(FocalForm::Features, focus));
        assert!((features(0.0) - 1.0).abs() < 1e-5 && (features(5.0) - 6.0).abs() < 1e-5);
        // A row of a class that the old head does not know is drawn, too, and is not right.
        let unknown = Plain { labels: vec![7, 0], ..plain.clone() };
        assert!((unknown.value(&objective_of(FocalForm::Features, 5.0)) - 1.0).abs() < 1e-5);
    }
}
