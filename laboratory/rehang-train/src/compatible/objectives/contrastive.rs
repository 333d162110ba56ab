//! RACT's regression-alleviating compatibility as contrast (equations 5, 6, 13; temperatures as in Table 7).
//!
//! All vectors are scaled to length 1. `N(x) = B ∖ p(x)`, the rows of another class than x.
//!
//! ```text
//! pos = ⟨v, o⟩/τ     old(k) = ⟨v, o_k⟩/τ     new(k) = ⟨v, v_k⟩/τ_new        k ∈ N(x)
//! vanilla (5):   −log e^pos / (e^pos + Σ e^old(k))
//! RACT (6):      −log e^pos / (e^pos + Σ e^old(k) + Σ e^new(k))
//! split (13):    −log e^pos / (e^pos + Σ e^old(k)) − η·log e^pos / (e^pos + Σ e^new(k))
//! ∂/∂⟨v, o⟩ = (p_pos − 1)/τ     ∂/∂⟨v, o_k⟩ = p_old(k)/τ     ∂/∂⟨v, v_k⟩ = p_new(k)/τ_new     p the softmax over a denominator
//! ```
//!
//! The loss is the mean over B. With `hardest = K` only the K largest negatives of each of the two sets
//! count. The gradient flows through `v` and `v_k`, never through `o`. Where the new vectors are wider than
//! the old ones, `v` is cut beside `o`, and whole beside `v_k`. The positive is the row's own `o`; where
//! positives are drawn, it is that of another row of its class (RACT table 6).

use rehang_core::Matrix;
use rehang_fit::objectives::cross_entropy::cross_entropy_row;

use super::cosines::{Cosines, others};
use super::{Loss, Objective, shares};

/// Negatives that stand in the denominator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Negatives {
    /// Old ones (5).
    Old,
    /// Old and new ones together (6).
    OldAndNew,
    /// Old ones, and with a weight η of their own new ones (13).
    Split { eta: f32 },
}

/// Temperatures of both kinds of negatives, and how many of each kind count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contrast {
    /// Temperature τ of old negatives and of the positive.
    temperature: f32,
    /// Temperature τ_new of new-to-new negatives.
    temperature_new: f32,
    /// Number of the nearest negatives of each set that count; all where none is given.
    hardest: Option<usize>,
}

impl Contrast {
    /// Takes τ for τ_new where that is not given.
    pub(crate) fn new(temperature: f32, temperature_new: Option<f32>, hardest: Option<usize>) -> Self {
        Self { temperature, temperature_new: temperature_new.unwrap_or(temperature), hardest }
    }
}

pub(crate) fn contrastive(negatives: Negatives, of: Contrast) -> Objective {
    let Contrast { temperature, temperature_new, hardest } = of;
    // The denominators: each one's weight, and whether old and new negatives stand in it.
    let denominators = match negatives {
        Negatives::Old => vec![(1.0, true, false)],
        Negatives::OldAndNew => vec![(1.0, true, true)],
        Negatives::Split { eta } => vec![(1.0, true, false), (eta, false, true)],
    };
    Objective::new("contrast", move |batch| {
        let labels = &batch.labels;
        let cosines = Cosines::from_batch(batch, negatives != Negatives::Old);
        let mut slopes = cosines.slopes();
        let mut value = 0.0;
        for (row, share) in shares(&vec![true; labels.len()]).into_iter().enumerate() {
            for &(weight, with_old, with_new) in &denominators {
                let weight = weight * share;
                let negatives = |cosines: Option<&Matrix>, counts: bool| {
                    let cosines = cosines.filter(|_| counts).map(|cosines| cosines.row(row));
                    cosines.map_or_else(Vec::new, |cosines| others(labels, row, cosines, hardest))
                };
                let old = negatives(Some(&cosines.to_old), with_old);
                let new = negatives(cosines.to_new.as_ref(), with_new);
                let mut logits = vec![cosines.positive[row] as f32 / temperature];
                logits.extend(old.iter().map(|&other| cosines.to_old.row(row)[other] / temperature));
                if let Some(to_new) = &cosines.to_new {
                    logits.extend(new.iter().map(|&other| to_new.row(row)[other] / temperature_new));
                }
                // The positive is the true one of these.
                value += f64::from(weight) * cross_entropy_row(&mut logits, 0, 0.0);
                slopes.positive[row] += weight * logits[0] / temperature;
                let (of_old, of_new) = logits[1..].split_at(old.len());
                for (other, slope) in old.into_iter().zip(of_old) {
                    slopes.to_old.row_mut(row)[other] += weight * slope / temperature;
                }
                if let Some(to_new) = &mut slopes.to_new {
                    for (other, slope) in new.into_iter().zip(of_new) {
                        to_new.row_mut(row)[other] += weight * slope / temperature_new;
                    }
                }
            }
        }
        Loss { value, new: Some(cosines.backward(&slopes)), ..Loss::default() }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Plain;
    use super::*;
    use crate::finite_differences::numbers;

    fn contrast(negatives: Negatives, hardest: Option<usize>) -> Objective {
        contrastive(negatives, Contrast::new(0.5, Some(0.7), hardest))
    }

    fn forms() -> [Negatives; 3] {
        [Negatives::Old, Negatives::OldAndNew, Negatives::Split { eta: 0.6 }]
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        for negatives in forms() {
            Plain::usual().check(&contrast(negatives, None));
            Plain::usual().check(&contrast(negatives, Some(2)));
        }
    }

    #[test]
    fn a_batch_computed_by_hand() {
        let plain = Plain::on_axes();
        // Row 0: positive 1, old negative 1, new negative 0; row 1: positive 0, old negative 0,
        // new negative 0.
        let (two, zero) = (2.0_f64.exp(), 1.0_f64);
        let vanilla = 0.5 * ((two + two).ln() - 2.0 + (zero + zero).ln());
        assert!((plain.value(&contrast(Negatives::Old, None)) - vanilla).abs() < 1e-5);
        let ract = 0.5 * ((two + two + 1.0).ln() - 2.0 + 3.0_f64.ln());
        assert!((plain.value(&contrast(Negatives::OldAndNew, None)) - ract).abs() < 1e-5);
        let split = vanilla + 0.6 * 0.5 * ((two + 1.0).ln() - 2.0 + 2.0_f64.ln());
        assert!((plain.value(&contrast(Negatives::Split { eta: 0.6 }, None)) - split).abs() < 1e-5);
    }

    #[test]
    fn rows_of_one_class_are_no_negatives_of_each_other() {
        // Row 3 is of the class of row 0: the old vector of either is nothing to the other one.
        let objective = contrast(Negatives::Old, None);
        let alone = |plain: &Plain| {
            let keep = |values: &[f32], d: usize| values[..d].to_vec();
            let first = Plain {
                labels: vec![0],
                new: keep(&plain.new, 5),
                old: keep(&plain.old, 4),
                adapted: keep(&plain.adapted, 5),
                ..plain.clone()
            };
            first.value(&objective)
        };
        // A row without negatives has no loss.
        assert!(alone(&Plain::usual()).abs() < 1e-6);
        let all_one = Plain { labels: vec![7; 6], ..Plain::usual() };
        for negatives in forms() {
            assert!(all_one.value(&contrast(negatives, None)).abs() < 1e-5);
        }
    }

    #[test]
    fn a_row_of_the_same_class_changes_nothing_for_its_sister() {
        // Rows 0 and 1 are of one class, row 2 of another. Under new-to-old negatives the pull on row 0 is
        // its own old vector and its push row 2's old vector: row 1 may be anywhere.
        let objective = contrast(Negatives::Old, None);
        let base = Plain {
            labels: vec![0, 0, 1],
            new: numbers(3 * 5, 1),
            old: numbers(3 * 4, 2),
            adapted: numbers(3 * 5, 3),
            ..Plain::usual()
        };
        let gradient_of_row_0 = |plain: &Plain| plain.gradients(&objective)[0][..5].to_vec();
        let before = gradient_of_row_0(&base);
        let mut sister = base.clone();
        sister.old[4..8].iter_mut().for_each(|value| *value += 0.7);
        sister.new[5..10].iter_mut().for_each(|value| *value -= 0.4);
        assert_eq!(gradient_of_row_0(&sister), before);
        // Were it of a third class, its old vector would push row 0.
        let stranger = Plain { labels: vec![0, 7, 1], ..sister };
        assert_ne!(gradient_of_row_0(&stranger), before);
    }

    #[test]
    fn wider_new_vectors_are_cut_beside_old_ones_alone() {
        // The third coordinate is the new model's alone: beside old vectors it is nothing, beside new ones it
        // counts.
        let plain = Plain {
            new: vec![1.0, 0.0, 1.0, 0.0, 1.0, 1.0],
            old: vec![1.0, 0.0, 0.0, 1.0],
            adapted: vec![1.0; 6],
            head: vec![1.0; 6],
            widths: [2, 3],
            ..Plain::on_axes()
        };
        // Positives 1, old negatives 0, new negatives ½: at τ = 0.5, τ_new = 0.7.
        let (positive, old, new) = (2.0_f64.exp(), 1.0, (0.5_f64 / 0.7).exp());
        let expected = (positive + old + new).ln() - 2.0;
        assert!((plain.value(&contrast(Negatives::OldAndNew, None)) - expected).abs() < 1e-5);
        // The first coordinates alone would give cosines of 0.
        let vanilla = (positive + old).ln() - 2.0;
        assert!((plain.value(&contrast(Negatives::Old, None)) - vanilla).abs() < 1e-5);
    }

    #[test]
    fn a_positive_that_was_drawn_takes_the_place_of_the_own_one() {
        let plain = Plain { sister: Some(vec![0.0, 1.0, 0.0, 1.0]), ..Plain::on_axes() };
        // Row 0: positive 0 now, old negative 1; row 1: positive 1, old negative 0.
        let vanilla = 0.5 * ((1.0 + 2.0_f64.exp()).ln() + (2.0_f64.exp() + 1.0).ln() - 2.0);
        assert!((plain.value(&contrast(Negatives::Old, None)) - vanilla).abs() < 1e-5);
        plain.check(&contrast(Negatives::OldAndNew, None));
    }

    #[test]
    fn more_negatives_cost_more_and_enough_hardest_are_all() {
        let plain = Plain::usual();
        let all = plain.value(&contrast(Negatives::OldAndNew, None));
        assert!(all > plain.value(&contrast(Negatives::Old, None)));
        assert!(all > plain.value(&contrast(Negatives::OldAndNew, Some(1))));
        let many = plain.value(&contrast(Negatives::OldAndNew, Some(5)));
        assert!((all - many).abs() < 1e-5);
    }
}
