//! DMU's selective backward compatibility (equations 9, 10; least confidence 13): what the old model knew well is kept,
//! what it knew badly is let go.
//!
//! ```text
//! L_SBC = Σ_{x ∈ K} λ(x)·ℓ(φ_new(x), ω_old)_y          K = rows of B whose class the old head knows, Σ λ = 1
//! p(x)  = softmax(logits of the old head for φ_old(x))
//! entropy (9, 10):         Λ = −Σ p log p      λ = (1 − softmax_K(Λ))/(|K| − 1)
//! least confidence (13):   Λ = p_y             λ = softmax_K(Λ)
//! even (BCT, equation 4):                      λ = 1/|K|
//! ```
//!
//! (9) writes `⟨φ_old, ω_old⟩` for the logits. A head of cosines has them multiplied by its scale, without a margin: bare
//! cosines of many classes have a flat softmax, and λ would be 1/|K| to four digits whatever the old model knew. With one
//! row λ = 1. A head with synthesised weights knows their classes too.

use burn_tensor::Tensor;
use burn_tensor::activation::{log_softmax, softmax};
use rehang_fit::burn::read;
use serde::{Deserialize, Serialize};

use super::super::heads::HeadTensors;
use super::{Objective, weighted};

/// How rows are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// By the entropy of what the old head says of the old vector.
    #[default]
    Entropy,
    /// By the probability of the true class.
    LeastConfidence,
    /// All alike.
    Even,
}

/// λ(x) of every row; 0 for rows of a class that the old head does not know. They sum to 1 where any is known.
pub(crate) fn weights(
    old_head: &HeadTensors,
    old: &Tensor<2>,
    labels: &[usize],
    selection: Selection,
) -> Vec<f32> {
    let known: Vec<usize> = (0..labels.len()).filter(|&row| old_head.knows(labels[row])).collect();
    let mut weights = vec![0.0; labels.len()];
    if let [only] = known[..] {
        weights[only] = 1.0;
    }
    if known.len() < 2 {
        return weights;
    }
    let products = old_head.logits(old);
    let measure = match selection {
        Selection::Entropy => {
            let p = log_softmax(products, 1);
            (p.clone().exp() * p).sum_dim(1).neg()
        }
        Selection::LeastConfidence => {
            (softmax(products, 1) * old_head.one_hot(labels, &old.device())).sum_dim(1)
        }
        Selection::Even => {
            for row in &known {
                weights[*row] = 1.0 / known.len() as f32;
            }
            return weights;
        }
    };
    // Reading a tensor that was just computed on the processor cannot fail; even weights are the neutral answer.
    let measure = read(measure).unwrap_or_else(|_| vec![0.0; labels.len()]);
    let largest = known.iter().map(|&row| measure[row]).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = known.iter().map(|&row| f64::from(measure[row] - largest).exp()).sum();
    for &row in &known {
        let share = f64::from(measure[row] - largest).exp() / sum;
        weights[row] = match selection {
            Selection::Entropy => (1.0 - share) / (known.len() - 1) as f64,
            _ => share,
        } as f32;
    }
    weights
}

/// `old_head` is ω_old. It measures how far λ is from even: the largest λ(x) of a batch over 1/|K|, less 1, in percent.
///
/// By (10), λ lies between `(1 − 1)/(|K| − 1)` and `1/(|K| − 1)` and its mean is `1/|K|`, so with entropy it is at most `100/(|K| − 1)`
/// percent above even, whatever the old model knows.
pub(crate) fn selective(old_head: HeadTensors, selection: Selection) -> Objective {
    let of_measure = old_head.clone();
    Objective::new("selective", move |batch| {
        let weights = weights(&old_head, &batch.old, &batch.labels, selection);
        weighted(old_head.cross_entropy(&batch.new, &batch.labels, 0.0), &weights)
    })
    .measuring("λ above even, %", move |batch| {
        let weights = weights(&of_measure, &batch.old, &batch.labels, selection);
        let known = weights.iter().filter(|&&weight| weight > 0.0).count() as f32;
        let largest = weights.iter().copied().fold(0.0, f32::max);
        f64::from((100.0 * (largest * known - 1.0)).max(0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, frozen};
    use super::*;
    use crate::compatible::heads::HeadForm;
    use crate::finite_differences::numbers;

    fn objective(selection: Selection, form: HeadForm) -> Objective {
        selective(frozen(&numbers(2 * 4, 9), 4, form), selection)
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        for selection in [Selection::Entropy, Selection::LeastConfidence, Selection::Even] {
            Plain::usual().check(&objective(selection, HeadForm::Softmax));
            Plain::usual().check(&objective(selection, HeadForm::ArcFace { scale: 4.0, margin: 0.3 }));
        }
    }

    #[test]
    fn a_batch_computed_by_hand() {
        // Old vectors (ln 3, 0) and (0, 0): least confidence ¾ and ½. New vectors (0, 0) and (ln 3, 0): losses ln 2 and
        // ln 4/3. A third row, of a class that the head does not know, is nothing.
        let old_head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let rows = Plain {
            labels: vec![0, 0, 5],
            new: vec![0.0, 1.0, 3.0f32.ln(), 1.0, 2.0, 2.0],
            old: vec![3.0f32.ln(), 0.0, 0.0, 0.0, 1.0, 1.0],
            adapted: vec![1.0; 6],
            ..Plain::on_axes()
        };
        let share = 0.75_f64.exp() / (0.75_f64.exp() + 0.5_f64.exp());
        let expected = share * 2.0_f64.ln() + (1.0 - share) * (4.0_f64 / 3.0).ln();
        let objective = selective(old_head, Selection::LeastConfidence);
        assert!((rows.value(&objective) - expected).abs() < 1e-5);
    }

    #[test]
    fn weights_sum_to_one_over_known_rows_and_prefer_what_the_old_model_knew() {
        for selection in [Selection::Entropy, Selection::LeastConfidence, Selection::Even] {
            let old_head = frozen(&numbers(2 * 4, 9), 4, HeadForm::Softmax);
            let (batch, _) = Plain::usual().batch();
            let weights = weights(&old_head, &batch.old, &batch.labels, selection);
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5 && weights[2] == 0.0);
            assert!(weights.iter().all(|&weight| weight >= 0.0));
        }
        // By hand: logits (ln 3, 0) and (0, 0): p = (¾, ¼) and (½, ½), both rows of class 0.
        let head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let old = Tensor::<2>::from_data([[3.0f32.ln(), 0.0], [0.0, 0.0]], &burn_tensor::Device::flex());
        let (sure, unsure) = (0.75 * (4.0_f64 / 3.0).ln() + 0.25 * 4.0_f64.ln(), 2.0_f64.ln());
        let share = sure.exp() / (sure.exp() + unsure.exp());
        let by_entropy = weights(&head, &old, &[0, 0], Selection::Entropy);
        assert!((f64::from(by_entropy[0]) - (1.0 - share)).abs() < 1e-5);
        let by_confidence = weights(&head, &old, &[0, 0], Selection::LeastConfidence);
        let share = 0.75_f64.exp() / (0.75_f64.exp() + 0.5_f64.exp());
        assert!((f64::from(by_confidence[0]) - share).abs() < 1e-5);
        // The same probabilities from a head of cosines: cos = ½ and −½ at scale ln 3, and 0 twice.
        let head_of_cosines =
            frozen(&[1.0, 0.0, -1.0, 0.0], 2, HeadForm::NormalisedSoftmax { scale: 3.0f32.ln() });
        let turned = [[0.5, 0.75f32.sqrt()], [0.0, 1.0]];
        let turned = Tensor::<2>::from_data(turned, &burn_tensor::Device::flex());
        let by_cosine = weights(&head_of_cosines, &turned, &[0, 0], Selection::Entropy);
        assert!((by_cosine[0] - by_entropy[0]).abs() < 1e-5, "{by_cosine:?} {by_entropy:?}");
        assert_eq!(weights(&head, &old, &[0, 5], Selection::Entropy), [1.0, 0.0]);
        assert_eq!(weights(&head, &old, &[5, 5], Selection::Entropy), [0.0, 0.0]);
    }
}
