//! Fits how raw outputs are put into the new space.
//!
//! A map that is fitted by squared error gives outputs that are too short where it is unsure. Mixed with
//! native vectors they make a gallery's quality dip below its own start. So outputs are put where native
//! vectors are: on the sphere in a normalised space, and on native lengths in a raw one.

use rehang_core::adapter::Geometry;
use rehang_core::{Matrix, Space, Vectors};
use serde::{Deserialize, Serialize};

use crate::linear_algebra::column_sums;

/// Number of ranks at which lengths are matched: every 1/32.
const RANKS: usize = 33;

rehang_core::named! {
    /// Way for outputs to conform to a new space; the ways of a raw space are compared on held-out pairs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum GeometryKind ("geometry") {
        /// Length 1; the only way in a normalised space.
        Sphere = "sphere",
        /// Outputs stay as they are.
        Raw = "raw",
        /// Every output gets the mean length of the native vectors.
        MeanNorm = "mean-norm",
        /// Every output gets the native length of its own length's rank.
        MatchedNorms = "matched-norms",
    }
}

impl GeometryKind {
    /// Returns the ways that a space leaves open.
    ///
    /// Where a raw space's distance does not [heed lengths](rehang_core::Distance::heeds_lengths), outputs
    /// get native ones without a comparison.
    pub fn options(space: &Space) -> &'static [Self] {
        match (space.normalised, space.distance.heeds_lengths()) {
            (true, _) => &[Self::Sphere],
            (false, false) => &[Self::MeanNorm],
            (false, true) => &[Self::MeanNorm, Self::MatchedNorms, Self::Raw],
        }
    }
}

/// Fits a geometry from raw outputs `[m, d_new]` (out-of-fold ones, so that their lengths are those of new
/// items) and native vectors `[n, d_new]`.
///
/// For the sphere the fallback of a zero output is the direction of the native mean (the first axis where
/// that mean is zero). A matched geometry without outputs, or between vectors that are all zero, is
/// [`Geometry::Raw`].
pub fn fit(kind: GeometryKind, raw_outputs: &Matrix, native: &Vectors) -> Geometry {
    match kind {
        GeometryKind::Raw => Geometry::Raw,
        GeometryKind::Sphere => Geometry::Sphere { fallback: mean_direction(native.matrix()) },
        GeometryKind::MeanNorm => {
            let norms = native.matrix().norms();
            let mean = (norms.iter().sum::<f64>() / norms.len().max(1) as f64) as f32;
            // Two equal native lengths make the interpolation constant, whatever the raw length.
            let matched = Geometry::MatchedNorms { raw: vec![0.0, 1.0], native: vec![mean, mean] };
            if mean > 0.0 { matched } else { Geometry::Raw }
        }
        GeometryKind::MatchedNorms => {
            let (raw, native) = (quantiles(raw_outputs.norms()), quantiles(native.matrix().norms()));
            let is_flat = raw.is_empty() || native.last().is_none_or(|&longest| longest == 0.0);
            if is_flat { Geometry::Raw } else { Geometry::MatchedNorms { raw, native } }
        }
    }
}

/// Returns the values at [`RANKS`] equally spaced ranks from the smallest to the largest.
fn quantiles(mut values: Vec<f64>) -> Vec<f32> {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return Vec::new() };
    (0..RANKS)
        .map(|rank| {
            let position = rank as f64 / (RANKS - 1) as f64 * last as f64;
            let (low, share) = (position.floor() as usize, position.fract());
            let high = (low + 1).min(last);
            (values[low] + share * (values[high] - values[low])) as f32
        })
        .collect()
}

fn mean_direction(native: &Matrix) -> Vec<f32> {
    let sum = column_sums(native.as_slice(), native.columns());
    let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
    if length > 1e-9 * native.rows() as f64 {
        sum.iter().map(|value| (value / length) as f32).collect()
    } else {
        (0..native.columns()).map(|column| f32::from(u8::from(column == 0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::random_matrix;
    use rehang_core::Distance;

    #[test]
    fn matched_outputs_have_the_native_lengths() {
        let mut outputs = random_matrix(500, 6, 1);
        outputs.as_mut_slice().iter_mut().for_each(|value| *value *= 0.3);
        let native = Vectors::measured("new", Distance::L2, random_matrix(500, 6, 2), "new").unwrap();
        let geometry = fit(GeometryKind::MatchedNorms, &outputs, &native);
        let sorted = |m: &Matrix| {
            let mut norms = m.norms();
            norms.sort_by(f64::total_cmp);
            norms
        };
        let (got, wanted) = (sorted(&geometry.conformed(outputs)), sorted(native.matrix()));
        for rank in [0, 100, 250, 400, 499] {
            assert!((got[rank] - wanted[rank]).abs() < 0.05 * wanted[rank]);
        }
    }

    #[test]
    fn the_mean_norm_is_the_same_for_every_output() {
        let native = Vectors::measured("new", Distance::L2, random_matrix(50, 3, 2), "new").unwrap();
        let geometry = fit(GeometryKind::MeanNorm, &Matrix::default(), &native);
        let mean = native.matrix().norms().iter().sum::<f64>() / 50.0;
        let mut outputs = random_matrix(20, 3, 1);
        outputs.row_mut(4).fill(0.0);
        for (row, norm) in geometry.conformed(outputs).norms().into_iter().enumerate() {
            let wanted = if row == 4 { 0.0 } else { mean };
            assert!((norm - wanted).abs() < 1e-5);
        }
    }

    #[test]
    fn a_zero_output_falls_back_to_the_mean_direction() {
        let rows = Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0]).unwrap();
        let native = Vectors::new(Space::new("new", 2, Distance::Cosine, true), rows, "new").unwrap();
        let geometry = fit(GeometryKind::Sphere, &Matrix::default(), &native);
        let out = geometry.conformed(Matrix::zeros(1, 2));
        assert!((out.row(0)[0] - 0.5_f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn native_vectors_of_length_zero_leave_outputs_alone() {
        let native = Vectors::measured("new", Distance::L2, Matrix::zeros(5, 2), "new").unwrap();
        for kind in [GeometryKind::MeanNorm, GeometryKind::MatchedNorms] {
            assert_eq!(fit(kind, &random_matrix(5, 2, 1), &native), Geometry::Raw);
        }
    }
}
