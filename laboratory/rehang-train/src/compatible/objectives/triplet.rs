//! RACT's compatibility as triplets (equations 14, 15), margin m.
//!
//! ```text
//! vanilla (14):  1/|N(x)| Σ_{k ∈ N(x)} max(⟨v, o_k⟩ − ⟨v, o⟩ + m, 0)
//! RACT (15):     the same, and with each k also max(⟨v, v_k⟩ − ⟨v, o⟩ + m, 0)
//! ```
//!
//! The paper prints positive minus negative, which would reward the wrong direction; the sign here is the one
//! that pulls positives in. All vectors are scaled to length 1; `N(x)` are the rows of another class; the
//! loss is the mean over the rows that have any. Where the new vectors are wider than the old ones, `v` is
//! cut beside `o_k` and whole beside `v_k`. With `hardest = K` only the K nearest negatives of each of the
//! two sets count.

use super::cosines::{Cosines, others};
use super::{Loss, Objective, shares};

/// Makes the objective. With `new_negatives` new-to-new negatives count too (15); `margin` is m. Only the
/// `hardest` negatives of each set count, all where no number is given.
pub(crate) fn triplet(new_negatives: bool, margin: f32, hardest: Option<usize>) -> Objective {
    Objective::new("triplets", move |batch| {
        let labels = &batch.labels;
        let cosines = Cosines::from_batch(batch, new_negatives);
        let mut slopes = cosines.slopes();
        let has_others: Vec<bool> =
            labels.iter().map(|label| labels.iter().any(|other| other != label)).collect();
        let mut value = 0.0;
        for (row, share) in shares(&has_others).into_iter().enumerate() {
            let sets = [
                (Some(&cosines.to_old), Some(&mut slopes.to_old)),
                (cosines.to_new.as_ref(), slopes.to_new.as_mut()),
            ];
            for (cosines_to, slopes_to) in sets {
                let (Some(cosines_to), Some(slopes_to)) = (cosines_to, slopes_to) else { continue };
                let others = others(labels, row, cosines_to.row(row), hardest);
                let share = share / others.len().max(1) as f32;
                for other in others {
                    let violation =
                        f64::from(cosines_to.row(row)[other]) - cosines.positive[row] + f64::from(margin);
                    if violation > 0.0 {
                        value += f64::from(share) * violation;
                        slopes_to.row_mut(row)[other] += share;
                        slopes.positive[row] -= share;
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

    #[test]
    fn gradients_agree_with_finite_differences() {
        for new_negatives in [false, true] {
            for hardest in [None, Some(2)] {
                Plain::usual().check(&triplet(new_negatives, 0.8, hardest));
            }
        }
    }

    #[test]
    fn a_batch_computed_by_hand() {
        let plain = Plain::on_axes();
        // Row 0: 1 − 1 + 0.8 against the old, max(0 − 1 + 0.8, 0) against the new; row 1: 0 − 0 + 0.8 twice.
        let vanilla = plain.value(&triplet(false, 0.8, None));
        assert!((vanilla - 0.8).abs() < 1e-5);
        let ract = plain.value(&triplet(true, 0.8, None));
        assert!((ract - 0.5 * (0.8 + 1.6)).abs() < 1e-5);
    }

    #[test]
    fn rows_of_one_class_cost_nothing() {
        let plain = Plain { labels: vec![4; 6], ..Plain::usual() };
        for hardest in [None, Some(2)] {
            assert_eq!(plain.value(&triplet(true, 0.8, hardest)), 0.0);
        }
    }

    #[test]
    fn the_hardest_negatives_alone_are_those_that_violate_most() {
        // Three rows of three classes: row 0 looks at old vectors with cosines 1, 0.6 and 0 to it.
        let plain = Plain {
            labels: vec![0, 1, 2],
            of_old: vec![true; 3],
            new: vec![1.0, 0.0, 0.0, 1.0, 0.0, 1.0],
            old: vec![1.0, 0.0, 0.6, 0.8, 0.0, 1.0],
            adapted: vec![1.0; 6],
            sister: None,
            head: vec![1.0; 6],
            widths: [2, 2],
            form: crate::compatible::heads::HeadForm::Softmax,
        };
        let value = |hardest| plain.value(&triplet(false, 0.8, hardest));
        // Row 0, positive 1: 0.4 and 0. Row 1, positive 0.8: 0 and 1. Row 2, positive 1: 0 and 0.6.
        assert!((value(None) - (0.4 + 1.0 + 0.6) / 2.0 / 3.0).abs() < 1e-5);
        assert!((value(Some(1)) - (0.4 + 1.0 + 0.6) / 3.0).abs() < 1e-5);
        assert_eq!(value(Some(2)), value(None));
    }
}
