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
//! The loss is the mean over B. With `hardest = K` only the K largest negatives of each of the two sets count. The
//! gradient flows through `v` and `v_k`, never through `o`. Where the new vectors are wider than the old ones, `v` is cut
//! beside `o`, and whole beside `v_k`. The positive is the row's own `o`, or where positives are drawn that of another row of its
//! class (RACT table 6).

use super::super::rows::log_sum_exp;
use super::cosines::{Cosines, others};
use super::{Loss, Objective};

/// Which negatives stand in the denominator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Negatives {
    /// Old ones (5).
    Old,
    /// Old and new ones together (6).
    OldAndNew,
    /// Old ones, and with a weight η of their own new ones (13).
    Split { eta: f32 },
}

/// What both kinds of negatives are divided by, and how many of each count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contrast {
    /// τ.
    temperature: f32,
    /// τ_new, of new-to-new negatives.
    temperature_new: f32,
    /// So many of the nearest negatives of each set; all where no number is given.
    hardest: Option<usize>,
}

impl Contrast {
    /// τ_new is τ where it is not given.
    pub(crate) fn new(temperature: f32, temperature_new: Option<f32>, hardest: Option<usize>) -> Self {
        Self { temperature, temperature_new: temperature_new.unwrap_or(temperature), hardest }
    }
}

/// One negative of a row: the row that it is, and its cosine over the temperature.
type Negative = (usize, f64);

pub(crate) fn contrastive(negatives: Negatives, of: Contrast) -> Objective {
    let Contrast { temperature, temperature_new, hardest } = of;
    let (t, t_new) = (f64::from(temperature), f64::from(temperature_new));
    // The denominators: each one's weight, and whether old and new negatives stand in it.
    let denominators = match negatives {
        Negatives::Old => vec![(1.0, true, false)],
        Negatives::OldAndNew => vec![(1.0, true, true)],
        Negatives::Split { eta } => vec![(1.0, true, false), (f64::from(eta), false, true)],
    };
    Objective::new("contrast", move |batch| {
        let labels = &batch.labels;
        let cosines = Cosines::of(batch, negatives != Negatives::Old);
        let mut slopes = cosines.slopes();
        let share = 1.0 / labels.len().max(1) as f64;
        let mut value = 0.0;
        for row in 0..labels.len() {
            let negatives = |cosines: &[f32], t: f64| -> Vec<Negative> {
                let others = others(labels, row, cosines, hardest).into_iter();
                others.map(|other| (other, f64::from(cosines[other]) / t)).collect()
            };
            let positive = cosines.positive[row] / t;
            let old = negatives(cosines.to_old.row(row), t);
            let new =
                cosines.to_new.as_ref().map_or_else(Vec::new, |to_new| negatives(to_new.row(row), t_new));
            for &(weight, with_old, with_new) in &denominators {
                let old = if with_old { &old[..] } else { &[] };
                let new = if with_new { &new[..] } else { &[] };
                let all = old.iter().chain(new).map(|&(_, logit)| logit);
                let total = log_sum_exp(std::iter::once(positive).chain(all));
                value += share * weight * (total - positive);
                let slope = |logit: f64, t: f64| (share * weight * (logit - total).exp() / t) as f32;
                slopes.positive[row] += slope(positive, t) - (share * weight / t) as f32;
                for &(other, logit) in old {
                    slopes.to_old.row_mut(row)[other] += slope(logit, t);
                }
                if let Some(to_new) = &mut slopes.to_new {
                    for &(other, logit) in new {
                        to_new.row_mut(row)[other] += slope(logit, t_new);
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
        // Row 0: positive 1, old negative 1, new negative 0; row 1: positive 0, old negative 0, new negative 0.
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
        // Rows 0 and 1 are of one class, row 2 of another. Under new-to-old negatives the pull on row 0 is its own old vector and
        // its push row 2's old vector: row 1 may be anywhere.
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
        // The third coordinate is the new model's alone: beside old vectors it is nothing, beside new ones it counts.
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
