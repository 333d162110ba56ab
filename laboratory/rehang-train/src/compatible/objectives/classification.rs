//! Loss of the new model itself (RACT equation 7, DMU equation 3): how well the new head tells the classes
//! apart.
//!
//! ```text
//! L_cls = 1/|B| Σ_x ℓ(φ_new(x), ω_new)_y          ℓ of the head's form, see `heads`
//! ```

use super::{Loss, Objective, shares};

/// Makes the objective; `smoothing` is the ε of label smoothing.
pub(crate) fn classification(smoothing: f32) -> Objective {
    Objective::new("classification", move |batch| {
        let pass = batch.head.pass_with_margin(&batch.new, &batch.labels);
        let weights = shares(&vec![true; batch.labels.len()]);
        let (value, slopes) = pass.cross_entropy(&batch.labels, smoothing, &weights);
        let (new, head) = (pass.to_vectors(&slopes), pass.to_head(&slopes));
        Loss { value, new: Some(new), head: Some(head), ..Loss::default() }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Plain;
    use super::*;
    use crate::compatible::heads::HeadForm;

    #[test]
    fn gradients_of_every_form_agree_with_finite_differences() {
        for form in [
            HeadForm::Softmax,
            HeadForm::NormalisedSoftmax { scale: 4.0 },
            HeadForm::CosFace { scale: 4.0, margin: 0.3 },
            HeadForm::ArcFace { scale: 4.0, margin: 0.3 },
        ] {
            Plain { form, ..Plain::usual() }.check(&classification(0.1));
        }
    }
}
