//! DMU's selective backward compatibility (equations 9, 10; least confidence 13): what the old model knew
//! well is kept, what it knew badly is let go.
//!
//! ```text
//! L_SBC = Σ_{x ∈ K} λ(x)·ℓ(φ_new(x), ω_old)_y          K = rows of B whose class the old head knows, Σ λ = 1
//! p(x)  = softmax(logits of the old head for φ_old(x)), or of ⟨φ_old(x), ω_old⟩ as (9) is printed
//! entropy (9, 10):         Λ = −Σ p log p      λ = (1 − softmax_K(Λ))/(|K| − 1)
//! least confidence (13):   Λ = p_y             λ = softmax_K(Λ)
//! even (BCT, equation 4):                      λ = 1/|K|
//! sharper, of the same Λ:  entropy λ = softmax_K(−s·Λ), least confidence λ = softmax_K(s·Λ)
//! ```
//!
//! (9) writes `⟨φ_old, ω_old⟩` for the logits. By default a head of cosines has them multiplied by its scale,
//! without a margin: bare cosines of many classes have a flat softmax, and λ is 1/|K| to four digits whatever
//! the old model knew. With one row λ = 1. A head with synthesised weights knows their classes too.

use rehang_core::Matrix;
use serde::{Deserialize, Serialize};

use super::super::heads::HeadWeights;
use super::super::rows::log_softmax;
use super::{Loss, Objective};

/// Way in which rows are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowWeighting {
    /// Entropy of what the old head says of the old vector.
    #[default]
    Entropy,
    /// Probability of the true class.
    LeastConfidence,
    /// Even weights.
    Even,
}

/// Logits that the old head's probabilities, by which rows are weighed, are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionLogits {
    /// The logits of the old head as it was trained: cosines times its scale, or products and a bias.
    #[default]
    Head,
    /// Bare inner products, as DMU (9) is printed: cosines, or products without a bias.
    InnerProducts,
}

/// Computes λ(x) of every row; 0 for rows of a class that the old head does not know. The weights sum to 1
/// where any class is known. Without a `sharpness` s they are as printed.
pub(crate) fn weights(
    old_head: &HeadWeights,
    old: &Matrix,
    labels: &[usize],
    selection: RowWeighting,
    sharpness: Option<f32>,
) -> Vec<f32> {
    let known: Vec<usize> = (0..labels.len()).filter(|&row| old_head.knows(labels[row])).collect();
    let mut weights = vec![0.0; labels.len()];
    if let [only] = known[..] {
        weights[only] = 1.0;
    }
    if known.len() < 2 {
        return weights;
    }
    let logits = old_head.pass(old).logits;
    let measure = |row: usize| {
        let log_p = log_softmax(logits.row(row).iter().copied().map(f64::from));
        match selection {
            RowWeighting::Entropy => -log_p.iter().map(|log_p| log_p.exp() * log_p).sum::<f64>(),
            RowWeighting::LeastConfidence => log_p[labels[row]].exp(),
            RowWeighting::Even => 0.0,
        }
    };
    let factor = match (selection, sharpness) {
        (RowWeighting::Entropy, Some(sharpness)) => -f64::from(sharpness),
        (_, sharpness) => f64::from(sharpness.unwrap_or(1.0)),
    };
    let measures: Vec<f64> = known.iter().map(|&row| factor * measure(row)).collect();
    for (&row, log_share) in known.iter().zip(log_softmax(measures.into_iter())) {
        let share = log_share.exp();
        weights[row] = match (selection, sharpness) {
            (RowWeighting::Entropy, None) => (1.0 - share) / (known.len() - 1) as f64,
            _ => share,
        } as f32;
    }
    weights
}

/// Makes the objective. `old_head` is ω_old, `logits` what λ is read off. Its measure says how far λ is from
/// even: the largest λ(x) of a batch over 1/|K|, less 1, in percent.
///
/// By (10), λ lies between `(1 − 1)/(|K| − 1)` and `1/(|K| − 1)` and its mean is `1/|K|`, so with entropy it
/// is at most `100/(|K| − 1)` percent above even, whatever the old model knows; `sharpness` has no such
/// bound.
pub(crate) fn selective(
    old_head: HeadWeights,
    selection: RowWeighting,
    logits: SelectionLogits,
    sharpness: Option<f32>,
) -> Objective {
    let judge = match logits {
        SelectionLogits::Head => old_head.clone(),
        SelectionLogits::InnerProducts => old_head.bare(),
    };
    Objective::new("selective", move |batch| {
        let weights = weights(&judge, &batch.old, &batch.labels, selection, sharpness);
        let pass = old_head.pass_with_margin(&batch.new, &batch.labels);
        let (value, slopes) = pass.cross_entropy(&batch.labels, 0.0, &weights);
        let known = weights.iter().filter(|&&weight| weight > 0.0).count() as f32;
        let largest = weights.iter().copied().fold(0.0, f32::max);
        let above_even = f64::from((100.0 * (largest * known - 1.0)).max(0.0));
        let measure = Some(("λ above even, %", above_even));
        Loss { value, new: Some(pass.to_vectors(&slopes)), measure, ..Loss::default() }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, frozen};
    use super::*;
    use crate::compatible::heads::HeadForm;
    use crate::finite_differences::numbers;

    fn objective(selection: RowWeighting, form: HeadForm) -> Objective {
        selective(frozen(&numbers(2 * 4, 9), 4, form), selection, SelectionLogits::Head, None)
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        for selection in [RowWeighting::Entropy, RowWeighting::LeastConfidence, RowWeighting::Even] {
            Plain::usual().check(&objective(selection, HeadForm::Softmax));
            Plain::usual().check(&objective(selection, HeadForm::ArcFace { scale: 4.0, margin: 0.3 }));
        }
    }

    #[test]
    fn a_batch_computed_by_hand() {
        // Old vectors (ln 3, 0) and (0, 0): least confidence ¾ and ½. New vectors (0, 0) and (ln 3, 0):
        // losses ln 2 and ln 4/3. A third row, of a class that the head does not know, is nothing.
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
        let objective = selective(old_head, RowWeighting::LeastConfidence, SelectionLogits::Head, None);
        assert!((rows.value(&objective) - expected).abs() < 1e-5);
    }

    /// DMU (9) as it is printed: λ of a head of cosines does not see its scale, and ℓ does.
    #[test]
    fn bare_inner_products_leave_the_scale_and_the_bias_out() {
        let plain = Plain::usual();
        let head = |form| frozen(&numbers(2 * 4, 9), 4, form);
        let selection = RowWeighting::LeastConfidence;
        let arcface = HeadForm::ArcFace { scale: 4.0, margin: 0.3 };
        let batch = plain.batch();
        let weights_by = |head: &HeadWeights| weights(head, &batch.old, &batch.labels, selection, None);
        let bare = weights_by(&head(arcface).bare());
        assert_eq!(bare, weights_by(&head(HeadForm::NormalisedSoftmax { scale: 1.0 })));
        assert!(bare != weights_by(&head(arcface)));
        let mut biased = head(HeadForm::Softmax);
        biased.bias = vec![3.0, -1.0];
        assert_eq!(weights_by(&biased.bare()), weights_by(&head(HeadForm::Softmax)));
        assert!(weights_by(&biased) != weights_by(&biased.bare()));
        let printed = selective(head(arcface), selection, SelectionLogits::InnerProducts, None);
        let pass = head(arcface);
        let (expected, _) =
            pass.pass_with_margin(&batch.new, &batch.labels).cross_entropy(&batch.labels, 0.0, &bare);
        assert!((plain.value(&printed) - expected).abs() < 1e-6);
        plain.check(&printed);
    }

    #[test]
    fn weights_sum_to_one_over_known_rows_and_prefer_what_the_old_model_knew() {
        for selection in [RowWeighting::Entropy, RowWeighting::LeastConfidence, RowWeighting::Even] {
            let old_head = frozen(&numbers(2 * 4, 9), 4, HeadForm::Softmax);
            let batch = Plain::usual().batch();
            let weights = weights(&old_head, &batch.old, &batch.labels, selection, None);
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5 && weights[2] == 0.0);
            assert!(weights.iter().all(|&weight| weight >= 0.0));
        }
        // By hand: logits (ln 3, 0) and (0, 0): p = (¾, ¼) and (½, ½), both rows of class 0.
        let head = frozen(&[1.0, 0.0, 0.0, 0.0], 2, HeadForm::Softmax);
        let old = Matrix::new(2, vec![3.0f32.ln(), 0.0, 0.0, 0.0]).unwrap();
        let (sure, unsure) = (0.75 * (4.0_f64 / 3.0).ln() + 0.25 * 4.0_f64.ln(), 2.0_f64.ln());
        let share = sure.exp() / (sure.exp() + unsure.exp());
        let by_entropy = weights(&head, &old, &[0, 0], RowWeighting::Entropy, None);
        assert!((f64::from(by_entropy[0]) - (1.0 - share)).abs() < 1e-5);
        let by_confidence = weights(&head, &old, &[0, 0], RowWeighting::LeastConfidence, None);
        let share = 0.75_f64.exp() / (0.75_f64.exp() + 0.5_f64.exp());
        assert!((f64::from(by_confidence[0]) - share).abs() < 1e-5);
        // Equal probabilities come from a head of cosines: cos = ½ and −½ at scale ln 3, and 0 twice.
        let head_of_cosines =
            frozen(&[1.0, 0.0, -1.0, 0.0], 2, HeadForm::NormalisedSoftmax { scale: 3.0f32.ln() });
        let turned = Matrix::new(2, vec![0.5, 0.75f32.sqrt(), 0.0, 1.0]).unwrap();
        let by_cosine = weights(&head_of_cosines, &turned, &[0, 0], RowWeighting::Entropy, None);
        assert!((by_cosine[0] - by_entropy[0]).abs() < 1e-5, "{by_cosine:?} {by_entropy:?}");
        // Sharper: rows weigh as e^(−s·entropy), or as e^(s·p_y).
        let sharper = |selection| weights(&head, &old, &[0, 0], selection, Some(4.0));
        for (made, ratio) in [
            (sharper(RowWeighting::Entropy), 4.0 * (unsure - sure)),
            (sharper(RowWeighting::LeastConfidence), 4.0 * (0.75 - 0.5)),
        ] {
            assert!((f64::from(made[0] / made[1]).ln() - ratio).abs() < 1e-4, "{made:?}");
            assert!((made[0] + made[1] - 1.0).abs() < 1e-6);
        }
        assert_eq!(weights(&head, &old, &[0, 5], RowWeighting::Entropy, None), [1.0, 0.0]);
        assert_eq!(weights(&head, &old, &[5, 5], RowWeighting::Entropy, None), [0.0, 0.0]);
    }
}
