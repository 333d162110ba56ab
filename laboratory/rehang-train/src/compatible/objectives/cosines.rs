//! Cosines that contrast and triplets are made of, and the way back from their derivatives.

use rehang_core::Matrix;

use super::super::rows::{Unit, as_wide_as, dot, products, weighted_sums, weighted_sums_down};
use super::{Batch, add};

/// Cosines of a batch. Where old and new vectors differ in width, `v` is cut beside `o`, and whole beside
/// `v_k`.
pub(crate) struct Cosines {
    /// Cosine `⟨v, o⟩` of every row, `[B]`. Where positives are drawn, `o` is of the row that was drawn for
    /// it.
    pub positive: Vec<f64>,
    /// Cosines `⟨v, o_k⟩`, `[B, B]`.
    pub to_old: Matrix,
    /// Cosines `⟨v, v_k⟩`, `[B, B]`, where they are asked for.
    pub to_new: Option<Matrix>,
    /// Unit vectors `v` beside `o`.
    cut: Unit,
    /// Unit vectors `v` beside `v_k`.
    whole: Unit,
    old: Matrix,
    positives: Matrix,
    /// Number of coordinates of `v`.
    width: usize,
}

/// Derivatives with respect to the cosines, in their order.
pub(crate) struct Slopes {
    pub positive: Vec<f32>,
    pub to_old: Matrix,
    pub to_new: Option<Matrix>,
}

impl Cosines {
    pub(crate) fn from_batch(batch: &Batch, with_new: bool) -> Self {
        let (cut, whole) =
            (Unit::from_rows(&as_wide_as(&batch.new, batch.old.columns())), Unit::from_rows(&batch.new));
        let old = Unit::from_rows(&batch.old).rows;
        let positives =
            batch.sister.as_ref().map_or_else(|| old.clone(), |sister| Unit::from_rows(sister).rows);
        Self {
            positive: (0..old.rows()).map(|row| dot(cut.rows.row(row), positives.row(row))).collect(),
            to_old: products(&cut.rows, &old),
            to_new: with_new.then(|| products(&whole.rows, &whole.rows)),
            cut,
            whole,
            old,
            positives,
            width: batch.new.columns(),
        }
    }

    /// Makes zeros, for derivatives to be added to.
    pub(crate) fn slopes(&self) -> Slopes {
        let rows = self.positive.len();
        let zeros = || Matrix::zeros(rows, rows);
        let to_new = self.to_new.as_ref().map(|_| zeros());
        Slopes { positive: vec![0.0; rows], to_old: zeros(), to_new }
    }

    /// Computes the derivative with respect to the new vectors: it flows through `v` and `v_k`, never through
    /// `o`.
    pub(crate) fn backward(&self, slopes: &Slopes) -> Matrix {
        let mut beside_old = weighted_sums(&slopes.to_old, &self.old);
        for (row, &slope) in slopes.positive.iter().enumerate() {
            add(beside_old.row_mut(row), slope, self.positives.row(row));
        }
        let mut gradient = as_wide_as(&self.cut.backward(&beside_old), self.width);
        if let Some(to_new) = &slopes.to_new {
            let mut beside_new = weighted_sums(to_new, &self.whole.rows);
            let other_side = weighted_sums_down(to_new, &self.whole.rows);
            add(beside_new.as_mut_slice(), 1.0, other_side.as_slice());
            add(gradient.as_mut_slice(), 1.0, self.whole.backward(&beside_new).as_slice());
        }
        gradient
    }
}

/// Lists rows of another class than `row`, in their order. Where `hardest` is given, so many of them with the
/// largest cosines; of equal ones the first.
pub(crate) fn others(labels: &[usize], row: usize, cosines: &[f32], hardest: Option<usize>) -> Vec<usize> {
    let mut others: Vec<usize> = (0..labels.len()).filter(|&other| labels[other] != labels[row]).collect();
    if let Some(count) = hardest.filter(|&count| count < others.len()) {
        others.sort_by(|&left, &right| cosines[right].total_cmp(&cosines[left]));
        others.truncate(count);
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_negatives_the_first_are_the_hardest() {
        let labels = [0, 1, 0, 1, 1, 1];
        let cosines = [1.0, 0.2, 1.0, 0.7, 0.2, 0.7];
        assert_eq!(others(&labels, 0, &cosines, None), [1, 3, 4, 5]);
        assert_eq!(others(&labels, 0, &cosines, Some(3)), [3, 5, 1]);
        assert_eq!(others(&labels, 0, &cosines, Some(4)), [1, 3, 4, 5]);
        assert_eq!(others(&[2; 6], 0, &cosines, Some(1)), [0; 0]);
    }
}
