//! Centred orthogonal Procrustes: the best rotation (and reflection) from the old space to the new one.

use std::collections::BTreeMap;

use faer::Mat;
use rehang::adapter::Map;
use rehang::{Pairs, Progress, Result};

use super::{ClosedForm, best_scaling, centring_bias, layer, scaling_name};
use crate::linear_algebra::{product, singular_values};

/// Fits `h(o) = s·Rᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`.
///
/// With the singular value decomposition `U Σ Vᵀ` of the cross-covariance `Σᵢ (oᵢ − ō)(vᵢ − v̄)ᵀ`, `R = U Vᵀ`
/// (Schönemann 1966). Where widths differ R has orthonormal rows (new space wider) or columns (narrower): it is the
/// rotation for the narrower vectors padded with zeros. The scale is `s = tr Σ / Σᵢ ‖Rᵀ(oᵢ − ō)‖²`, or 1 where
/// old vectors do not vary.
///
/// Directions in which old and new do not vary together get some rotation that the data cannot fix; it is the same
/// for the same pairs.
///
/// # Errors
///
/// [`rehang::ErrorKind::Diverged`] where the decomposition fails, [`rehang::ErrorKind::Cancelled`].
pub fn fit(pairs: &Pairs, progress: &Progress) -> Result<ClosedForm> {
    progress.check()?;
    let (scaling, (rotation, scale, bias)) = best_scaling(pairs, None, |moments| {
        let (u, values, v) = singular_values(moments.xy.as_ref(), "Procrustes rotation")?;
        let mut rotation: Mat<f64> = product(u.as_ref(), v.transpose());
        let trace: f64 = values.iter().sum();
        let spread = product(rotation.transpose(), product(moments.xx.as_ref(), rotation.as_ref()).as_ref());
        let spread: f64 = (0..spread.nrows()).map(|i| spread[(i, i)]).sum();
        let scale = if spread > 0.0 { trace / spread } else { 1.0 };
        for column in 0..rotation.ncols() {
            for row in 0..rotation.nrows() {
                rotation[(row, column)] *= scale;
            }
        }
        let error = moments.yy - 2.0 * scale * trace + scale * scale * spread;
        let bias = centring_bias(moments, &rotation);
        Ok((error, (rotation, scale, bias)))
    })?;
    let choices =
        BTreeMap::from([("input".into(), scaling_name(scaling)), ("scale".into(), format!("{scale:.6}"))]);
    Ok(ClosedForm { map: Map::of_layers(scaling, vec![layer(rotation.as_ref(), &bias)]), choices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, largest_difference, pairs, random_matrix};
    use rehang::Matrix;

    fn rotation(d_new: usize, d_old: usize) -> Matrix {
        // Gram-Schmidt on the rows (or, where there are more rows than columns, on the columns).
        let transpose = |m: &Matrix| Matrix::from_fn(m.columns(), m.rows(), |r, c| m.row(c)[r]);
        let mut m = random_matrix(d_new.min(d_old), d_new.max(d_old), 77);
        for i in 0..m.rows() {
            for j in 0..i {
                let dot: f32 = m.row(i).iter().zip(m.row(j)).map(|(a, b)| a * b).sum();
                let other = m.row(j).to_vec();
                m.row_mut(i).iter_mut().zip(&other).for_each(|(a, b)| *a -= dot * b);
            }
            rehang::normalise(m.row_mut(i));
        }
        if d_new <= d_old { m } else { transpose(&m) }
    }

    #[test]
    fn a_rotation_with_scale_and_shift_is_recovered() {
        let old = random_matrix(200, 6, 1);
        let mut weight = rotation(6, 6);
        weight.as_mut_slice().iter_mut().for_each(|value| *value *= 2.5);
        let new = affine(&old, &weight, &[1.0, -2.0, 0.5, 0.0, 3.0, 9.0]);
        let fitted = fit(&pairs(old.clone(), new.clone(), None), &Progress::default()).unwrap();
        assert_eq!(fitted.choices["scale"], "2.500000");
        assert!(largest_difference(&fitted.map.outputs(&old, None).unwrap(), &new) < 1e-4);
    }

    #[test]
    fn a_wider_new_space_is_recovered_through_orthonormal_columns() {
        let old = random_matrix(300, 4, 2);
        let new = affine(&old, &rotation(9, 4), &[0.5; 9]);
        let fitted = fit(&pairs(old.clone(), new.clone(), None), &Progress::default()).unwrap();
        assert!(largest_difference(&fitted.map.outputs(&old, None).unwrap(), &new) < 1e-4);
    }

    #[test]
    fn a_narrower_new_space_gets_a_map_with_orthogonal_rows_of_one_length() {
        let old = random_matrix(300, 9, 3);
        let new = affine(&old, &rotation(4, 9), &[0.0; 4]);
        let fitted = fit(&pairs(old, new, None), &Progress::default()).unwrap();
        let weight = &fitted.map.mixer[0].weight;
        let square = fitted.choices["scale"].parse::<f32>().unwrap().powi(2);
        for i in 0..4 {
            for j in 0..4 {
                let dot: f32 = weight.row(i).iter().zip(weight.row(j)).map(|(a, b)| a * b).sum();
                assert!((dot - square * f32::from(u8::from(i == j))).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn constant_old_vectors_map_to_the_mean() {
        let old = Matrix::from_fn(20, 3, |_, _| 0.5);
        let new = random_matrix(20, 3, 4);
        let fitted = fit(&pairs(old.clone(), new.clone(), None), &Progress::default()).unwrap();
        let out = fitted.map.outputs(&old, None).unwrap();
        let mean: f32 = (0..20).map(|row| new.row(row)[0]).sum::<f32>() / 20.0;
        assert!((out.row(7)[0] - mean).abs() < 1e-5);
    }
}
