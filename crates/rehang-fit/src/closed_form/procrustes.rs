//! Centred orthogonal Procrustes: the best rotation (and reflection) from the old space to the new one.

use std::collections::BTreeMap;

use faer::Mat;
use rehang::adapter::{InputScaling, Map};
use rehang::{Pairs, Progress, Result};

use super::{ClosedForm, best, best_scaling, centring_bias, layer, scaling_name};
use crate::candidate::{Again, LeavesOut};
use crate::linear_algebra::{Centred, eigen, product, singular_values};

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
    fit_with(pairs, None, progress)
}

/// As [`fit`], with what it would be without some of the pairs: turned anew, by the same scaling of old vectors.
pub(crate) fn fit_leaving_out(
    pairs: &Pairs,
    progress: &Progress,
) -> Result<(ClosedForm, impl LeavesOut + use<>)> {
    let closed = fit(pairs, progress)?;
    let scaling = closed.map.input;
    let quiet = Progress::default();
    let again = Again(move |part: &Pairs| Ok(fit_with(part, Some(scaling), &quiet)?.map));
    Ok((closed, again))
}

fn fit_with(pairs: &Pairs, scaling: Option<InputScaling>, progress: &Progress) -> Result<ClosedForm> {
    progress.check()?;
    if pairs.len() < pairs.old().dimension().min(pairs.new_vectors().dimension())
        && let Some(fitted) = fit_few(pairs, scaling, progress)?
    {
        return Ok(fitted);
    }
    fit_by_covariance(pairs, scaling)
}

/// [`fit`] of fewer pairs than coordinates of either space; `None` where old and new vectors span spaces of different dimensions.
///
/// With `X Xᵀ = U Λ Uᵀ`, the columns of `P = Xᵀ U Λ^(−½)` span the old vectors; likewise for the new ones. The cross-covariance is
/// `P_old M P_newᵀ` with a small M, whose singular vectors say where P_old goes. What is orthogonal to it goes wherever a reflection
/// puts it that takes P to the first axes ([`Reflection`]).
fn fit_few(
    pairs: &Pairs,
    scaling: Option<InputScaling>,
    progress: &Progress,
) -> Result<Option<ClosedForm>> {
    let count = pairs.len() as f64;
    let new = Span::of(Centred::of(pairs.new_vectors().matrix(), InputScaling::AsIs))?;
    let (scaling, (old, turn, scale)) = best(pairs, scaling, |scaling| {
        progress.check()?;
        let old = Span::of(Centred::of(pairs.old().matrix(), scaling))?;
        if old.rank() != new.rank() {
            // It ends the choice.
            return Ok((f64::NEG_INFINITY, (old, Mat::zeros(0, 0), 1.0)));
        }
        let small = product(old.coordinates.transpose(), new.coordinates.as_ref());
        let (u, values, v) = singular_values(small.as_ref(), "Procrustes rotation")?;
        let trace = values.iter().sum::<f64>() / count;
        // A rotation leaves lengths as they are.
        let spread = old.centred.rows.squared_norm_l2() / count;
        let scale = if spread > 0.0 { trace / spread } else { 1.0 };
        let error = new.centred.rows.squared_norm_l2() / count - 2.0 * scale * trace + scale * scale * spread;
        Ok((error, (old, product(u.as_ref(), v.transpose()), scale)))
    })?;
    if old.rank() != new.rank() {
        return Ok(None);
    }
    let (first, last) = (Reflection::of(&old.axes)?, Reflection::of(&new.axes)?);
    let turn = product(product(first.corner.as_ref(), turn.as_ref()).as_ref(), last.corner.transpose());
    let rank = turn.nrows();
    let (d_old, d_new) = (old.axes.nrows(), new.axes.nrows());
    let turn = Mat::from_fn(d_old, d_new, |i, j| match (i < rank, j < rank) {
        (true, true) => turn[(i, j)],
        (false, false) if i == j => 1.0,
        _ => 0.0,
    });
    let mut rotation = last.after(&first.before(turn));
    for column in 0..d_new {
        for row in 0..d_old {
            rotation[(row, column)] *= scale;
        }
    }
    Ok(Some(closed_form(scaling, scale, &rotation, (&old.centred.means, &new.centred.means))))
}

/// Centred rows in orthonormal axes of the space that they span.
struct Span {
    centred: Centred,
    /// `[d, rank]`.
    axes: Mat<f64>,
    /// `[n, rank]`.
    coordinates: Mat<f64>,
}

impl Span {
    fn of(centred: Centred) -> Result<Self> {
        /// Of the largest eigenvalue: below, a direction is rounding noise.
        const LEAST: f64 = 1e-10;
        let products = product(centred.rows.as_ref(), centred.rows.transpose());
        let (values, vectors) = eigen(products.as_ref(), "Procrustes span")?;
        let least = LEAST * values.last().copied().unwrap_or(0.0);
        let kept: Vec<usize> = (0..values.len()).filter(|&i| values[i] > least).collect();
        let lengths: Vec<f64> = kept.iter().map(|&i| values[i].sqrt()).collect();
        let scaled = |factor: &dyn Fn(f64) -> f64| {
            let factors: Vec<f64> = lengths.iter().map(|&length| factor(length)).collect();
            Mat::from_fn(vectors.nrows(), kept.len(), |i, j| vectors[(i, kept[j])] * factors[j])
        };
        let axes = product(centred.rows.transpose(), scaled(&f64::recip).as_ref());
        Ok(Self { axes, coordinates: scaled(&|length| length), centred })
    }

    fn rank(&self) -> usize {
        self.axes.ncols()
    }
}

/// `H = I − W G⁻¹ Wᵀ`, orthogonal and symmetric, with `H P = E O`: it takes orthonormal columns P to the first axes E, turned by O.
///
/// With the first rows of P being `A diag(σ) Bᵀ`, `O = −A Bᵀ`, `W = P − E O` and `G = Wᵀ P = I + B diag(σ) Bᵀ`.
struct Reflection {
    w: Mat<f64>,
    /// `W G⁻¹`.
    scaled: Mat<f64>,
    /// O.
    corner: Mat<f64>,
}

impl Reflection {
    fn of(p: &Mat<f64>) -> Result<Self> {
        let rank = p.ncols();
        let (a, values, b) = singular_values(p.subrows(0, rank), "Procrustes completion")?;
        let mut corner = product(a.as_ref(), b.transpose());
        for j in 0..rank {
            for i in 0..rank {
                corner[(i, j)] = -corner[(i, j)];
            }
        }
        let w = Mat::from_fn(
            p.nrows(),
            rank,
            |i, j| if i < rank { p[(i, j)] - corner[(i, j)] } else { p[(i, j)] },
        );
        let b_scaled = Mat::from_fn(rank, rank, |i, j| b[(i, j)] / (1.0 + values[j]));
        let inverse = product(b_scaled.as_ref(), b.transpose());
        Ok(Self { scaled: product(w.as_ref(), inverse.as_ref()), w, corner })
    }

    /// `H m`.
    fn before(&self, mut m: Mat<f64>) -> Mat<f64> {
        m -= product(self.scaled.as_ref(), product(self.w.transpose(), m.as_ref()).as_ref());
        m
    }

    /// `m H`.
    fn after(&self, m: &Mat<f64>) -> Mat<f64> {
        m - product(product(m.as_ref(), self.scaled.as_ref()).as_ref(), self.w.transpose())
    }
}

fn closed_form(
    scaling: InputScaling,
    scale: f64,
    rotation: &Mat<f64>,
    (mean_x, mean_y): (&[f64], &[f64]),
) -> ClosedForm {
    let bias = centring_bias(mean_x, mean_y, rotation);
    let choices =
        BTreeMap::from([("input".into(), scaling_name(scaling)), ("scale".into(), format!("{scale:.6}"))]);
    ClosedForm { map: Map::of_layers(scaling, vec![layer(rotation.as_ref(), &bias)]), choices }
}

fn fit_by_covariance(pairs: &Pairs, scaling: Option<InputScaling>) -> Result<ClosedForm> {
    let (scaling, (rotation, scale, mean_x, mean_y)) = best_scaling(pairs, scaling, |moments| {
        let (mut rotation, trace) = polar(&moments.xy)?;
        let along = product(moments.xx.as_ref(), rotation.as_ref());
        let spread: f64 = (0..along.ncols())
            .map(|j| (0..along.nrows()).map(|i| along[(i, j)] * rotation[(i, j)]).sum::<f64>())
            .sum();
        let scale = if spread > 0.0 { trace / spread } else { 1.0 };
        for column in 0..rotation.ncols() {
            for row in 0..rotation.nrows() {
                rotation[(row, column)] *= scale;
            }
        }
        let error = moments.yy - 2.0 * scale * trace + scale * scale * spread;
        Ok((error, (rotation, scale, moments.mean_x.clone(), moments.mean_y.clone())))
    })?;
    Ok(closed_form(scaling, scale, &rotation, (&mean_x, &mean_y)))
}

/// `U Vᵀ` and `tr Σ` of `m = U Σ Vᵀ`.
///
/// `U Vᵀ = (m mᵀ)^(−½) m` takes the eigenvectors of the smaller side alone. Squaring costs digits in directions in which m is small,
/// so the result is made orthonormal to the last digit by steps `R ← (3 R − R Rᵀ R) / 2` (Björck and Bowie 1971). Where too few
/// digits are left to begin with, m is decomposed itself.
fn polar(m: &Mat<f64>) -> Result<(Mat<f64>, f64)> {
    /// A part of the largest eigenvalue below which a direction is decomposed by m itself.
    const LEAST: f64 = 1e-13;
    /// How far from orthonormal the result may be.
    const APART: f64 = 1e-10;
    if m.nrows() > m.ncols() {
        let (turned, trace) = polar(&m.transpose().to_owned())?;
        return Ok((turned.transpose().to_owned(), trace));
    }
    let (values, vectors) = eigen(product(m.as_ref(), m.transpose()).as_ref(), "Procrustes rotation")?;
    let largest = values.last().copied().unwrap_or(0.0);
    let smallest = values.first().copied().unwrap_or(0.0);
    if smallest <= LEAST * largest {
        let (u, values, v) = singular_values(m.as_ref(), "Procrustes rotation")?;
        return Ok((product(u.as_ref(), v.transpose()), values.iter().sum()));
    }
    let d = values.len();
    let scaled = Mat::from_fn(d, d, |i, j| vectors[(i, j)] / values[j].sqrt());
    let mut turned = product(product(scaled.as_ref(), vectors.transpose()).as_ref(), m.as_ref());
    let mut apart = f64::EPSILON * largest / smallest;
    while apart > APART {
        let mut step = product(turned.as_ref(), turned.transpose());
        for j in 0..d {
            for i in 0..d {
                step[(i, j)] = f64::from(u8::from(i == j)).mul_add(1.5, -0.5 * step[(i, j)]);
            }
        }
        turned = product(step.as_ref(), turned.as_ref());
        apart *= apart;
    }
    let trace = turned.col_iter().zip(m.col_iter()).map(|(a, b)| a.transpose() * b).sum();
    Ok((turned, trace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folds::LeftOut;
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
    fn fewer_pairs_than_coordinates_are_turned_as_by_the_covariance() {
        for (d_old, d_new) in [(40, 40), (40, 55), (55, 40)] {
            let (latent, noise) = (random_matrix(30, 6, 1), random_matrix(30, d_new, 2));
            let old = affine(&latent, &random_matrix(d_old, 6, 3), &vec![0.4; d_old]);
            let own = random_matrix(30, d_old, 4);
            let old = Matrix::from_fn(30, d_old, |r, c| old.row(r)[c] + 0.2 * own.row(r)[c]);
            let new = affine(&latent, &random_matrix(d_new, 6, 5), &vec![1.0; d_new]);
            let new = Matrix::from_fn(30, d_new, |r, c| new.row(r)[c] + 0.2 * noise.row(r)[c]);
            let data = pairs(old.clone(), new, None);
            let fast = fit_few(&data, None, &Progress::default()).unwrap().unwrap();
            let slow = fit_by_covariance(&data, None).unwrap();
            assert_eq!(fast.choices, slow.choices);
            let outputs = |fitted: &ClosedForm| fitted.map.outputs(&old, None).unwrap();
            assert!(largest_difference(&outputs(&fast), &outputs(&slow)) < 1e-3);
            // What no pair knows is turned too: all of it is a rotation.
            let weight = &fast.map.mixer[0].weight;
            let square = fast.choices["scale"].parse::<f32>().unwrap().powi(2);
            let is_wide = d_new <= d_old;
            let column = |c: usize| (0..d_new).map(|r| weight.row(r)[c]).collect::<Vec<f32>>();
            let line = |i: usize| if is_wide { weight.row(i).to_vec() } else { column(i) };
            for i in 0..40 {
                for j in 0..40 {
                    let dot: f32 = line(i).iter().zip(line(j)).map(|(a, b)| a * b).sum();
                    assert!((dot - square * f32::from(u8::from(i == j))).abs() < 1e-4 * square.max(1.0));
                }
            }
        }
    }

    #[test]
    fn a_polar_factor_is_that_of_the_singular_values() {
        // The smallest singular value is the last number of the largest one.
        for (rows, columns, smallest) in
            [(5, 5, 0.3), (4, 9, 1e-3), (9, 4, 1e-5), (6, 8, 3e-7), (6, 8, 1e-9), (3, 3, 0.0)]
        {
            let k = rows.min(columns);
            let (u, _, v) = {
                let random = random_matrix(rows, columns, 3);
                let random = Mat::from_fn(rows, columns, |i, j| f64::from(random.row(i)[j]));
                singular_values(random.as_ref(), "test").unwrap()
            };
            let sigma = |i: usize| if i + 1 == k { smallest } else { 1.0 - 0.1 * i as f64 };
            let scaled = Mat::from_fn(rows, k, |i, j| u[(i, j)] * sigma(j));
            let m = product(scaled.as_ref(), v.transpose());
            let (found, trace) = polar(&m).unwrap();
            let expected = product(u.as_ref(), v.transpose());
            assert!((trace - (0..k).map(sigma).sum::<f64>()).abs() < 1e-8);
            // A direction without any part in m gets some rotation or other.
            let digits = if smallest == 0.0 { f64::INFINITY } else { (1e-15 / smallest).max(1e-9) };
            assert!((&found - &expected).norm_max() < 100.0 * digits, "{smallest}");
            let own = if rows <= columns {
                product(found.as_ref(), found.transpose())
            } else {
                product(found.transpose(), found.as_ref())
            };
            assert!((own - Mat::<f64>::identity(k, k)).norm_max() < 1e-9, "{smallest}");
        }
    }

    #[test]
    fn what_is_left_out_is_what_turns_without_it_give() {
        for n in [12, 90] {
            let (old, noise) = (random_matrix(n, 20, 1), random_matrix(n, 30, 2));
            let new = affine(&old, &rotation(30, 20), &[0.5; 30]);
            let new = Matrix::from_fn(n, 30, |r, c| new.row(r)[c] + 0.1 * noise.row(r)[c]);
            let data = pairs(old.clone(), new, None);
            let splits = LeftOut::of_folds(&crate::folds::folds(n, 3, 1));
            let (closed, without) = fit_leaving_out(&data, &Progress::default()).unwrap();
            let found = without.outputs(&data, &splits, &Progress::default()).unwrap();
            for (split, found) in splits.iter().zip(&found) {
                let part = data.select(&split.fitted);
                let map = fit_with(&part, Some(closed.map.input), &Progress::default()).unwrap().map;
                assert_eq!(*found, map.outputs(&old.select(&split.asked), None).unwrap());
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
