//! A common centre that is taken out of vectors far from the origin, before their L2 distances are computed.
//!
//! Distances come from lengths and inner products ([`super::distances()`]). Where all vectors share an offset
//! that is far larger than their spread, both are large, nearly equal numbers. Their difference, the
//! distance, keeps only the digits in which they differ. An L2 distance does not change when everything moves
//! by the same amount, so the offset can be taken out first.

use std::borrow::Cow;

use crate::space::Distance;
use crate::vectors::{Matrix, column_means};

/// Ratio from which on a centre is taken out: the squared length of the gallery's mean over the mean squared
/// spread. Below it a squared distance keeps at least eleven digits, and vectors stay as they are.
const RATIO_MIN: f64 = 1e4;

/// Centre that is subtracted from every vector of a search: `[d]`, or nothing.
pub(crate) struct Centre(Option<Vec<f32>>);

impl Centre {
    /// Finds the centre of a gallery `[n, d]` that is searched together with `other_matrices` (its adapted
    /// vectors, the queries).
    ///
    /// A coordinate of the centre is the mean of the gallery, rounded to `f32`, where every single difference
    /// from it is exact in `f32`; elsewhere it is 0. So the moved vectors are the same to the last bit. There
    /// is no centre for cosine and dot products, which change with the origin, nor where the offset is not
    /// large.
    pub(crate) fn new(distance: Distance, gallery: &Matrix, other_matrices: &[&Matrix]) -> Self {
        if distance.heeds_origin() {
            return Self(None);
        }
        let means = column_means(gallery, |value, _| value);
        let spreads = column_means(gallery, |value, column| (value - means[column]).powi(2));
        let offset: f64 = means.iter().map(|mean| mean * mean).sum();
        if offset <= RATIO_MIN * spreads.iter().sum::<f64>() {
            return Self(None);
        }
        let mut centre: Vec<f32> = means.iter().map(|&mean| mean as f32).collect();
        for matrix in std::iter::once(gallery).chain(other_matrices.iter().copied()) {
            for row in matrix.as_slice().chunks_exact(matrix.columns()) {
                for (centre, &value) in centre.iter_mut().zip(row) {
                    if !is_exact(value, *centre) {
                        *centre = 0.0;
                    }
                }
            }
        }
        Self(centre.iter().any(|&value| value != 0.0).then_some(centre))
    }

    /// Subtracts the centre from vectors. They are borrowed unchanged where there is no centre.
    pub(crate) fn taken_from<'a>(&self, vectors: &'a Matrix) -> Cow<'a, Matrix> {
        let Some(centre) = &self.0 else { return Cow::Borrowed(vectors) };
        let moved = |row: usize, column: usize| vectors.row(row)[column] - centre[column];
        Cow::Owned(Matrix::from_fn(vectors.rows(), vectors.columns(), moved))
    }
}

/// Whether `value − centre` in `f32` is the true difference.
fn is_exact(value: f32, centre: f32) -> bool {
    f64::from(value - centre) + f64::from(centre) == f64::from(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(offset: f32) -> Matrix {
        Matrix::from_fn(40, 3, |row, column| offset + ((row * 7 + column * 3) % 11) as f32 / 1024.0)
    }

    fn is_taken(distance: Distance, gallery: &Matrix, other_matrices: &[&Matrix]) -> bool {
        Centre::new(distance, gallery, other_matrices).0.is_some()
    }

    #[test]
    fn only_a_large_offset_of_l2_is_taken_out() {
        assert!(is_taken(Distance::L2, &rows(10_000.0), &[]));
        assert!(!is_taken(Distance::L2, &rows(0.0), &[]));
        assert!(!is_taken(Distance::L2, &Matrix::zeros(3, 2), &[]));
        assert!(!is_taken(Distance::Cosine, &rows(10_000.0), &[]));
        assert!(!is_taken(Distance::Dot, &rows(10_000.0), &[]));
    }

    #[test]
    fn a_coordinate_that_would_have_to_round_stays() {
        let gallery = rows(10_000.0);
        let mut queries = gallery.clone();
        // The difference of these two would need more digits than f32 has.
        queries.row_mut(5)[1] = 1e-3;
        let centre = Centre::new(Distance::L2, &gallery, &[&queries]);
        let moved = centre.taken_from(&queries);
        assert_eq!(moved.row(5)[1], 1e-3);
        assert_eq!(moved.row(0)[1], queries.row(0)[1]);
        assert!(moved.row(5)[0].abs() < 1.0 && moved.row(5)[2].abs() < 1.0);
        // A zero vector among the queries hinders nothing.
        queries.row_mut(5).fill(0.0);
        assert!(Centre::new(Distance::L2, &gallery, &[&queries]).taken_from(&queries).row(0)[1].abs() < 1.0);
    }

    #[test]
    fn numbers_at_the_edge_of_f32_do_not_overflow() {
        let gallery = Matrix::new(1, vec![3e38; 9]).unwrap();
        let opposite = Matrix::new(1, vec![-3e38]).unwrap();
        let centre = Centre::new(Distance::L2, &gallery, &[&opposite]);
        assert_eq!(centre.taken_from(&opposite).row(0), opposite.row(0));
    }
}
