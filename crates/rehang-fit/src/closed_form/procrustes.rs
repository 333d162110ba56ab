//! Centred orthogonal Procrustes: the best rotation (and reflection) from the old space to the new one.

use std::collections::BTreeMap;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj,
};
use faer::linalg::qr::no_pivoting::factor::{qr_in_place, qr_in_place_scratch, recommended_block_size};
use faer::{Conj, Mat, Par, Spec};
use rayon::prelude::*;
use rehang_core::adapter::{InputScaling, Map};
use rehang_core::{Pairs, Progress, Result};

use super::{ClosedForm, best, best_scaling, centring_bias, layer, scaling_name};
use crate::left_out::{LeavesOut, Refit};
use crate::linear_algebra::{Centred, eigen, gram, product, singular_values};

/// Fits `h(o) = s·Rᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`.
///
/// With the singular value decomposition `U Σ Vᵀ` of the cross-covariance `Σᵢ (oᵢ − ō)(vᵢ − v̄)ᵀ`, `R = U Vᵀ`
/// (Schönemann 1966). Where widths differ R has orthonormal rows (new space wider) or columns (narrower): it
/// is the rotation for the narrower vectors padded with zeros. The scale is `s = tr Σ / Σᵢ ‖Rᵀ(oᵢ − ō)‖²`, or
/// 1 where old vectors do not vary.
///
/// Directions in which old and new do not vary together get some rotation that the data cannot fix; it is the
/// same for the same pairs.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where the decomposition fails, [`rehang_core::ErrorKind::Cancelled`].
pub fn fit(pairs: &Pairs, progress: &Progress) -> Result<ClosedForm> {
    fit_with(pairs, None, progress)
}

/// Fits as [`fit`], and returns also what the map would be without some of the pairs: turned anew, by the
/// same scaling of old vectors.
pub(crate) fn fit_leaving_out(
    pairs: &Pairs,
    progress: &Progress,
) -> Result<(ClosedForm, impl LeavesOut + use<>)> {
    let closed = fit(pairs, progress)?;
    let scaling = closed.map.input;
    let quiet = Progress::default();
    let again = Refit(move |part: &Pairs| Ok(fit_with(part, Some(scaling), &quiet)?.map));
    Ok((closed, again))
}

pub(crate) fn fit_with(
    pairs: &Pairs,
    scaling: Option<InputScaling>,
    progress: &Progress,
) -> Result<ClosedForm> {
    progress.check()?;
    if pairs.len() < pairs.old().dimension().min(pairs.new_vectors().dimension())
        && let Some(fitted) = fit_few(pairs, scaling, progress)?
    {
        return Ok(fitted);
    }
    fit_by_covariance(pairs, scaling)
}

/// Fits as [`fit`], with fewer pairs than coordinates of either space; `None` where old and new vectors span
/// spaces of different dimensions.
///
/// The first axes of one basis span the old vectors, those of another one the new vectors. In these axes the
/// cross-covariance is a small matrix, whose polar factor turns the spans. What is orthogonal to the old span
/// goes to what is orthogonal to the new one, axis by axis.
fn fit_few(pairs: &Pairs, scaling: Option<InputScaling>, progress: &Progress) -> Result<Option<ClosedForm>> {
    let count = pairs.len() as f64;
    let new = Span::from_centred(&Centred::from_rows(pairs.new_vectors().matrix(), InputScaling::AsIs))?;
    let (scaling, (old, turn, scale)) = best(pairs, scaling, |scaling| {
        progress.check()?;
        let old = Span::from_centred(&Centred::from_rows(pairs.old().matrix(), scaling))?;
        if old.rank() != new.rank() {
            // An error of −∞ ends the choice.
            return Ok((f64::NEG_INFINITY, (old, Mat::zeros(0, 0), 1.0)));
        }
        let (turn, trace) = polar(&product(old.coordinates.as_ref(), new.coordinates.transpose()))?;
        let trace = trace / count;
        // A rotation leaves lengths as they are.
        let spread = old.squared_lengths / count;
        let scale = if spread > 0.0 { trace / spread } else { 1.0 };
        let error = new.squared_lengths / count - 2.0 * scale * trace + scale * scale * spread;
        Ok((error, (old, turn, scale)))
    })?;
    if old.rank() != new.rank() {
        return Ok(None);
    }
    let (rank, d_old, d_new) = (old.rank(), old.means.len(), new.means.len());
    let turn = Mat::from_fn(d_old, d_new, |i, j| match (i < rank, j < rank) {
        (true, true) => scale * turn[(i, j)],
        (false, false) if i == j => scale,
        _ => 0.0,
    });
    let rotation = new.out_of_axes(old.out_of_axes(turn).transpose().to_owned()).transpose().to_owned();
    Ok(Some(closed_form(scaling, scale, &rotation, (&old.means, &new.means))))
}

/// Axes of a space, the first of which span some rows about their mean: `Q`, as reflections one after the
/// other.
struct Span {
    means: Vec<f64>,
    squared_lengths: f64,
    /// Householder's vectors, `[d, rank]`; `factors` are theirs.
    reflections: Mat<f64>,
    factors: Mat<f64>,
    /// Coordinates of the rows along these axes, `[rank, rank or n]`: `Qᵀ Xᵀ` but for a rotation among the
    /// rows, which all spans of these rows share.
    coordinates: Mat<f64>,
}

impl Span {
    fn from_centred(centred: &Centred) -> Result<Self> {
        let squared_lengths = centred.rows.squared_norm_l2();
        let contrasts = contrasts(&centred.rows);
        let span = |basis: Mat<f64>, coordinates: Option<Mat<f64>>| {
            let (reflections, factors, along) = orthogonal(basis);
            Self {
                squared_lengths,
                coordinates: coordinates.map_or(along.clone(), |rows| product(along.as_ref(), rows.as_ref())),
                reflections,
                factors,
                means: centred.means.clone(),
            }
        };
        let full_span = span(contrasts.transpose().to_owned(), None);
        if full_span.is_sure() {
            return Ok(full_span);
        }
        // Some rows are sums of others: their leading directions span them all.
        let (axes, coordinates) = leading(&contrasts)?;
        Ok(span(axes, Some(coordinates)))
    }

    /// Returns whether no row is a sum of others, but for rounding.
    fn is_sure(&self) -> bool {
        /// Part of the largest length below which a direction is rounding noise.
        const LEAST: f64 = 1e-5;
        let lengths = || (0..self.rank()).map(|i| self.coordinates[(i, i)].abs());
        lengths().fold(f64::INFINITY, f64::min) > LEAST * lengths().fold(0.0, f64::max)
    }

    fn rank(&self) -> usize {
        self.reflections.ncols()
    }

    /// Returns `Q m`, in parallel over blocks of the columns of `m`, whose width is a constant.
    fn out_of_axes(&self, mut m: Mat<f64>) -> Mat<f64> {
        const COLUMNS: usize = 256;
        if self.rank() == 0 {
            return m;
        }
        m.as_mut().par_col_chunks_mut(COLUMNS).for_each(|columns| {
            let scratch = apply_block_householder_sequence_on_the_left_in_place_scratch::<f64>(
                self.reflections.nrows(),
                self.factors.nrows(),
                columns.ncols(),
            );
            apply_block_householder_sequence_on_the_left_in_place_with_conj(
                self.reflections.as_ref(),
                self.factors.as_ref(),
                Conj::No,
                columns,
                Par::Seq,
                MemStack::new(&mut MemBuffer::new(scratch)),
            );
        });
        m
    }
}

/// Returns `n − 1` rows with the same products of columns as n rows about their mean. They are reflected, so
/// that the mean's own direction comes first, and is left out.
fn contrasts(rows: &Mat<f64>) -> Mat<f64> {
    let (n, d) = rows.shape();
    if n < 2 {
        return Mat::zeros(0, d);
    }
    // I − 2 v vᵀ / (vᵀ v) takes 1/√n to the first axis; v is 1/√n less that axis.
    let of_mean = (n as f64).sqrt().recip();
    let v = |i: usize| if i == 0 { of_mean - 1.0 } else { of_mean };
    let factor = 2.0 / (2.0 - 2.0 * of_mean);
    let along: Vec<f64> =
        (0..d).map(|column| factor * (0..n).map(|row| v(row) * rows[(row, column)]).sum::<f64>()).collect();
    Mat::from_fn(n - 1, d, |i, j| rows[(i + 1, j)] - v(i + 1) * along[j])
}

/// Returns orthonormal columns `[d, rank]` that span the rows `[n, d]`, and the rows in them, `[rank, n]`.
fn leading(rows: &Mat<f64>) -> Result<(Mat<f64>, Mat<f64>)> {
    /// Part of the largest eigenvalue below which a direction is rounding noise.
    const LEAST: f64 = 1e-10;
    let (values, vectors) = eigen(gram(rows.as_ref()).as_ref(), "Procrustes span")?;
    let least = LEAST * values.last().copied().unwrap_or(0.0);
    let axes: Vec<usize> = (0..values.len()).filter(|&i| values[i] > least).collect();
    let lengths: Vec<f64> = axes.iter().map(|&i| values[i].sqrt()).collect();
    let scaled = Mat::from_fn(vectors.nrows(), axes.len(), |i, j| vectors[(i, axes[j])] / lengths[j]);
    let coordinates = Mat::from_fn(axes.len(), vectors.nrows(), |i, j| vectors[(j, axes[i])] * lengths[i]);
    Ok((product(rows.transpose(), scaled.as_ref()), coordinates))
}

/// Decomposes `m = Q R` by reflections into their vectors and factors, and R.
fn orthogonal(mut m: Mat<f64>) -> (Mat<f64>, Mat<f64>, Mat<f64>) {
    let (d, rank) = m.shape();
    let block = recommended_block_size::<f64>(d, rank).max(1);
    let mut factors = Mat::zeros(block, rank);
    if rank > 0 {
        let scratch = qr_in_place_scratch::<f64>(d, rank, block, Par::Seq, Spec::default());
        let mut memory = MemBuffer::new(scratch);
        qr_in_place(m.as_mut(), factors.as_mut(), Par::Seq, MemStack::new(&mut memory), Spec::default());
    }
    let along = Mat::from_fn(rank, rank, |i, j| if i <= j { m[(i, j)] } else { 0.0 });
    (m, factors, along)
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
    ClosedForm { map: Map::from_layers(scaling, vec![layer(rotation.as_ref(), &bias)]), choices }
}

fn fit_by_covariance(pairs: &Pairs, scaling: Option<InputScaling>) -> Result<ClosedForm> {
    let (scaling, (rotation, scale, mean_x, mean_y)) = best_scaling(pairs, scaling, |moments| {
        let (mut rotation, trace) = polar(&moments.xy)?;
        let spread = spread(&moments.xx, &rotation);
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

/// Returns `tr(Rᵀ S R)`: how much old vectors vary along what a rotation keeps of them.
fn spread(xx: &Mat<f64>, rotation: &Mat<f64>) -> f64 {
    // A rotation into as many coordinates or more keeps all.
    if rotation.nrows() <= rotation.ncols() {
        return (0..xx.nrows()).map(|i| xx[(i, i)]).sum();
    }
    let along = product(xx.as_ref(), rotation.as_ref());
    along.col_iter().zip(rotation.col_iter()).map(|(a, b)| a.transpose() * b).sum()
}

/// Returns `U Vᵀ` and `tr Σ` of `m = U Σ Vᵀ`.
///
/// `U Vᵀ = (m mᵀ)^(−½) m` takes the eigenvectors of the smaller side alone. Squaring costs digits in
/// directions in which m is small, so the result is made orthonormal to the last digit by steps
/// `R ← (3 R − R Rᵀ R) / 2` (Björck and Bowie 1971). Where too few digits are left to begin with, m is
/// decomposed itself.
fn polar(m: &Mat<f64>) -> Result<(Mat<f64>, f64)> {
    /// Part of the largest eigenvalue below which a direction is decomposed by m itself.
    const LEAST: f64 = 1e-13;
    /// Largest distance from orthonormal that the result may have.
    const APART: f64 = 1e-10;
    if m.nrows() > m.ncols() {
        let (turned, trace) = polar(&m.transpose().to_owned())?;
        return Ok((turned.transpose().to_owned(), trace));
    }
    let (values, vectors) = eigen(gram(m.as_ref()).as_ref(), "Procrustes rotation")?;
    let largest = values.last().copied().unwrap_or(0.0);
    let smallest = values.first().copied().unwrap_or(0.0);
    if smallest <= LEAST * largest {
        let (u, values, v) = singular_values(m.as_ref(), "Procrustes rotation")?;
        return Ok((product(u.as_ref(), v.transpose()), values.iter().sum()));
    }
    let d = values.len();
    // (m mᵀ)^(−½) as products of rows with each other.
    let scaled = Mat::from_fn(d, d, |i, j| vectors[(i, j)] / values[j].powf(0.25));
    let mut turned = product(gram(scaled.as_ref()).as_ref(), m.as_ref());
    let mut apart = f64::EPSILON * largest / smallest;
    while apart > APART {
        let mut step = gram(turned.as_ref());
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
    use rehang_core::Matrix;

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
            rehang_core::normalise(m.row_mut(i));
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
            let old_noise = random_matrix(30, d_old, 4);
            let old = Matrix::from_fn(30, d_old, |r, c| old.row(r)[c] + 0.2 * old_noise.row(r)[c]);
            let new = affine(&latent, &random_matrix(d_new, 6, 5), &vec![1.0; d_new]);
            let new = Matrix::from_fn(30, d_new, |r, c| new.row(r)[c] + 0.2 * noise.row(r)[c]);
            let data = pairs(old.clone(), new, None);
            let fast = fit_few(&data, None, &Progress::default()).unwrap().unwrap();
            let slow = fit_by_covariance(&data, None).unwrap();
            assert_eq!(fast.choices, slow.choices);
            let outputs = |fitted: &ClosedForm| fitted.map.outputs(&old, None).unwrap();
            assert!(largest_difference(&outputs(&fast), &outputs(&slow)) < 1e-3);
            // Directions that no pair knows are turned too: the whole map is a rotation.
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
            let (factor, trace) = polar(&m).unwrap();
            let expected = product(u.as_ref(), v.transpose());
            assert!((trace - (0..k).map(sigma).sum::<f64>()).abs() < 1e-8);
            // A direction without any part in m gets some rotation or other.
            let digits = if smallest == 0.0 { f64::INFINITY } else { (1e-15 / smallest).max(1e-9) };
            assert!((&factor - &expected).norm_max() < 100.0 * digits, "{smallest}");
            let gram = if rows <= columns {
                product(factor.as_ref(), factor.transpose())
            } else {
                product(factor.transpose(), factor.as_ref())
            };
            assert!((gram - Mat::<f64>::identity(k, k)).norm_max() < 1e-9, "{smallest}");
        }
    }

    #[test]
    fn what_is_left_out_is_what_turns_without_it_give() {
        for n in [12, 90] {
            let (old, noise) = (random_matrix(n, 20, 1), random_matrix(n, 30, 2));
            let new = affine(&old, &rotation(30, 20), &[0.5; 30]);
            let new = Matrix::from_fn(n, 30, |r, c| new.row(r)[c] + 0.1 * noise.row(r)[c]);
            let data = pairs(old.clone(), new, None);
            let splits = LeftOut::from_folds(&crate::folds::folds(n, 3, 1));
            let (closed, without) = fit_leaving_out(&data, &Progress::default()).unwrap();
            let outputs_by_split = without.outputs(&data, &splits, &Progress::default()).unwrap();
            for (split, outputs) in splits.iter().zip(&outputs_by_split) {
                let part = data.select(&split.fitted);
                let map = fit_with(&part, Some(closed.map.input), &Progress::default()).unwrap().map;
                assert_eq!(*outputs, map.outputs(&old.select(&split.asked), None).unwrap());
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
