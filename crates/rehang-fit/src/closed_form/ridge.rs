//! Ridge regression from old to new vectors, its penalty chosen by generalised cross-validation.

use std::collections::BTreeMap;

use faer::Mat;
use rayon::prelude::*;
use rehang::adapter::{InputScaling, Map};
use rehang::{Matrix, Pairs, Progress, Result};

use super::{ClosedForm, best, centring_bias, layer, scaling_name, scalings};
use crate::folds::LeftOut;
use crate::linear_algebra::{Centred, Moments, eigen, product};

/// The penalties that are tried, relative to the mean diagonal of the old vectors' covariance. The largest is first: where
/// two score the same, the larger one is kept.
pub const PENALTIES: [f64; 15] =
    [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6];

/// Fits `h(o) = Wᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`, with `W = (S + λ·s̄·I)⁻¹ C`.
///
/// S is the covariance of the old vectors, C their covariance with the new ones, s̄ the mean of S's diagonal. All
/// penalties share one eigendecomposition, of S or (of fewer pairs than coordinates) of their products with each other, which has the
/// same eigenvalues. So choosing λ costs no more than a fit: the score of λ is
/// `GCV(λ) = RSS(λ)/n / (1 − df(λ)/n)²` with `df = 1 + Σ sᵢ/(sᵢ + λ·s̄)` (Golub, Heath and Wahba 1979).
/// Old vectors that do not vary give the constant map to v̄.
///
/// # Errors
///
/// [`rehang::ErrorKind::Diverged`] where the decomposition fails, [`rehang::ErrorKind::Cancelled`].
pub fn fit(pairs: &Pairs, progress: &Progress) -> Result<ClosedForm> {
    fit_with(pairs, None, &PENALTIES, progress)
}

/// As [`fit`], with the best of other penalties and, where it is given, one scaling of old vectors.
pub(crate) fn fit_with(
    pairs: &Pairs,
    scaling: Option<InputScaling>,
    penalties: &[f64],
    progress: &Progress,
) -> Result<ClosedForm> {
    progress.check()?;
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    let (choices, map) = if old.rows() < old.columns() {
        let new = Centred::of(new, InputScaling::AsIs);
        let (scaling, (chosen, solved, old)) = best(pairs, scaling, |scaling| {
            progress.check()?;
            let old = Centred::of(old, scaling);
            let solved = Dual::of(products(&old), old.rows.ncols(), &new.rows)?;
            let chosen = solved.spectrum.choose(penalties);
            Ok((chosen.score, (chosen, solved, old)))
        })?;
        let weight = product(old.rows.transpose(), solved.coefficients(chosen.penalty).as_ref());
        let bias = centring_bias(&old.means, &new.means, &weight);
        (record(scaling, chosen), Map::of_layers(scaling, vec![layer(weight.as_ref(), &bias)]))
    } else {
        let (scaling, (chosen, solved, moments)) = best(pairs, scaling, |scaling| {
            progress.check()?;
            let moments = Moments::of(old, new, None, scaling);
            let solved = Primal::of(&moments)?;
            let chosen = solved.spectrum.choose(penalties);
            Ok((chosen.score, (chosen, solved, moments)))
        })?;
        let weight = solved.weight(chosen.penalty);
        let bias = centring_bias(&moments.mean_x, &moments.mean_y, &weight);
        (record(scaling, chosen), Map::of_layers(scaling, vec![layer(weight.as_ref(), &bias)]))
    };
    Ok(ClosedForm { map, choices })
}

fn record(scaling: InputScaling, chosen: Chosen) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("input".into(), scaling_name(scaling)),
        ("penalty".into(), format!("{}", chosen.penalty)),
    ])
}

/// What [`fit`] without the pairs of a split would give for others: `asked` rows after fitting on `fitted` ones, for every split;
/// `None` where there are more pairs than coordinates, so that a fit is cheap.
///
/// With x the scaled old vectors, `outputs = v̄ + X_asked X_fittedᵀ A`: only products of old vectors are needed, and those of all
/// pairs are made once. About the mean of the fitted rows they are sums of themselves.
///
/// # Errors
///
/// As [`fit`].
pub(crate) fn left_out(
    pairs: &Pairs,
    splits: &[LeftOut],
    progress: &Progress,
) -> Result<Option<Vec<Matrix>>> {
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    if old.rows() >= old.columns() {
        return Ok(None);
    }
    let new = Centred::of(new, InputScaling::AsIs);
    let of_scaling: Vec<Mat<f64>> =
        scalings(pairs, None).into_iter().map(|scaling| products(&Centred::of(old, scaling))).collect();
    let outputs = |split: &LeftOut| -> Result<Matrix> {
        let mut kept: Option<(f64, Mat<f64>)> = None;
        let (targets, means) = about_fitted(&new, &split.fitted);
        for products in &of_scaling {
            progress.check()?;
            let (own, across) = about(products, &split.fitted, &split.asked);
            let solved = Dual::of(own, old.columns(), &targets)?;
            let chosen = solved.spectrum.choose(&PENALTIES);
            if kept.as_ref().is_none_or(|(smallest, _)| chosen.score < *smallest) {
                let outputs = product(across.as_ref(), solved.coefficients(chosen.penalty).as_ref());
                kept = Some((chosen.score, outputs));
            }
        }
        let (_, outputs) = kept.expect("at least one scaling is tried");
        Ok(Matrix::from_fn(outputs.nrows(), outputs.ncols(), |i, j| (outputs[(i, j)] + means[j]) as f32))
    };
    splits.par_iter().map(outputs).collect::<Result<_>>().map(Some)
}

/// `X Xᵀ`.
pub(super) fn products(old: &Centred) -> Mat<f64> {
    product(old.rows.as_ref(), old.rows.transpose())
}

/// Products about the mean of the `fitted` rows: of these with each other, and of the `asked` rows with these.
pub(super) fn about(products: &Mat<f64>, fitted: &[usize], asked: &[usize]) -> (Mat<f64>, Mat<f64>) {
    let count = fitted.len().max(1) as f64;
    let mean_of = |&row: &usize| fitted.iter().map(|&other| products[(other, row)]).sum::<f64>() / count;
    let of_fitted: Vec<f64> = fitted.iter().map(mean_of).collect();
    let of_asked: Vec<f64> = asked.iter().map(mean_of).collect();
    let of_all = of_fitted.iter().sum::<f64>() / count;
    let own = Mat::from_fn(fitted.len(), fitted.len(), |i, j| {
        products[(fitted[i], fitted[j])] - of_fitted[i] - of_fitted[j] + of_all
    });
    let across = Mat::from_fn(asked.len(), fitted.len(), |i, j| {
        products[(asked[i], fitted[j])] - of_asked[i] - of_fitted[j] + of_all
    });
    (own, across)
}

/// The new vectors of the `fitted` rows about their mean, and that mean.
pub(super) fn about_fitted(new: &Centred, fitted: &[usize]) -> (Mat<f64>, Vec<f64>) {
    let count = fitted.len().max(1) as f64;
    let off: Vec<f64> = (0..new.rows.ncols())
        .map(|column| fitted.iter().map(|&row| new.rows[(row, column)]).sum::<f64>() / count)
        .collect();
    let rows = Mat::from_fn(fitted.len(), off.len(), |i, j| new.rows[(fitted[i], j)] - off[j]);
    (rows, off.iter().zip(&new.means).map(|(off, mean)| off + mean).collect())
}

/// A ridge solution about the means.
pub(crate) struct Solution {
    /// W, `[d_old, d_new]`.
    pub weight: Mat<f64>,
    /// The relative penalty that was used.
    pub penalty: f64,
    /// Its generalised cross-validation score: an estimate of the squared error on new pairs.
    pub score: f64,
}

/// Solves for the penalty with the best score.
pub(crate) fn solve(moments: &Moments, penalties: &[f64]) -> Result<Solution> {
    let solved = Primal::of(moments)?;
    let Chosen { penalty, score } = solved.spectrum.choose(penalties);
    Ok(Solution { weight: solved.weight(penalty), penalty, score })
}

/// A penalty, and its score.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub penalty: f64,
    pub score: f64,
}

/// All that the score of a penalty depends on.
pub(super) struct Spectrum {
    count: f64,
    /// The total variance of the new vectors.
    yy: f64,
    /// The mean diagonal of S, which penalties are relative to.
    unit: f64,
    /// Eigenvalues of S, without some that are 0.
    values: Vec<f64>,
    /// The squared length of C along every eigenvector.
    energy: Vec<f64>,
}

impl Spectrum {
    pub(super) fn choose(&self, penalties: &[f64]) -> Chosen {
        penalties
            .iter()
            .map(|&penalty| Chosen { penalty, score: self.score(penalty * self.unit) })
            .reduce(|best, next| if next.score < best.score { next } else { best })
            .expect("at least one penalty is tried")
    }

    /// The generalised cross-validation score of an absolute penalty; infinite where the fit would use up every pair.
    fn score(&self, penalty: f64) -> f64 {
        let mut residual = self.yy;
        let mut degrees = 1.0;
        for (&value, &energy) in self.values.iter().zip(&self.energy) {
            let divisor = value + penalty;
            if divisor > 0.0 {
                residual -= energy * (2.0 / divisor - value / (divisor * divisor));
                degrees += value / divisor;
            }
        }
        let left = 1.0 - degrees / self.count.max(1.0);
        // Less than one pair in a hundred left over: the quotient is rounding noise, not an estimate.
        if left < 0.01 { f64::INFINITY } else { residual.max(0.0) / (left * left) }
    }

    /// `1 / (sᵢ + λ)`. Without any variance both are 0 and so is what is scaled: 0, not 0/0.
    fn factor(&self, i: usize, penalty: f64) -> f64 {
        let divisor = self.values[i] + penalty * self.unit;
        if divisor > 0.0 { 1.0 / divisor } else { 0.0 }
    }
}

fn scale_rows(rows: &mut Mat<f64>, factor: impl Fn(usize) -> f64) {
    for i in 0..rows.nrows() {
        let factor = factor(i);
        for j in 0..rows.ncols() {
            rows[(i, j)] *= factor;
        }
    }
}

fn squared_lengths(rows: &Mat<f64>) -> Vec<f64> {
    (0..rows.nrows()).map(|i| (0..rows.ncols()).map(|j| rows[(i, j)] * rows[(i, j)]).sum()).collect()
}

/// The decomposition `S = V diag(s) Vᵀ`, for as many pairs as coordinates or more.
struct Primal {
    spectrum: Spectrum,
    vectors: Mat<f64>,
    /// `Vᵀ C`.
    z: Mat<f64>,
}

impl Primal {
    fn of(moments: &Moments) -> Result<Self> {
        let (values, vectors) = eigen(moments.xx.as_ref(), "ridge eigendecomposition")?;
        let z = product(vectors.transpose(), moments.xy.as_ref());
        let energy = squared_lengths(&z);
        let (count, yy, unit) = (moments.count, moments.yy, moments.mean_diagonal());
        Ok(Self { spectrum: Spectrum { count, yy, unit, values, energy }, vectors, z })
    }

    fn weight(mut self, penalty: f64) -> Mat<f64> {
        scale_rows(&mut self.z, |i| self.spectrum.factor(i, penalty));
        product(self.vectors.as_ref(), self.z.as_ref())
    }
}

/// The decomposition `X Xᵀ / n = U diag(s) Uᵀ` of as many products as there are pairs, for fewer pairs than coordinates. With
/// `X = U diag(√(n s)) Vᵀ` it has the eigenvalues of S, and `W = Xᵀ A` with `A = U diag(1 / (sᵢ + λ)) Uᵀ Y / n`.
pub(super) struct Dual {
    pub spectrum: Spectrum,
    vectors: Mat<f64>,
    /// `Uᵀ Y / n`.
    q: Mat<f64>,
}

impl Dual {
    /// Of the products of centred old vectors of `d_old` coordinates, and centred new vectors.
    pub(super) fn of(mut gram: Mat<f64>, d_old: usize, new: &Mat<f64>) -> Result<Self> {
        let count = gram.nrows().max(1) as f64;
        scale_rows(&mut gram, |_| 1.0 / count);
        let yy = new.squared_norm_l2() / count;
        let unit = (0..gram.nrows()).map(|i| gram[(i, i)]).sum::<f64>() / d_old.max(1) as f64;
        let (values, vectors) = eigen(gram.as_ref(), "ridge eigendecomposition")?;
        let mut q = product(vectors.transpose(), new.as_ref());
        scale_rows(&mut q, |_| 1.0 / count);
        // C is Vᵀ's combination of rows √(n sᵢ) qᵢ.
        let energy = squared_lengths(&q).iter().zip(&values).map(|(q, s)| count * s * q).collect();
        Ok(Self { spectrum: Spectrum { count, yy, unit, values, energy }, vectors, q })
    }

    /// A.
    pub(super) fn coefficients(mut self, penalty: f64) -> Mat<f64> {
        scale_rows(&mut self.q, |i| self.spectrum.factor(i, penalty));
        product(self.vectors.as_ref(), self.q.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, largest_difference, pairs, random_matrix};

    /// Ridge by the normal equations on centred data and Gaussian elimination: `[d_old, d_new]`.
    fn normal_equations(old: &Matrix, new: &Matrix, penalty: f64) -> Vec<Vec<f64>> {
        let (n, d, m) = (old.rows(), old.columns(), new.columns());
        let mean = |x: &Matrix, c: usize| (0..n).map(|r| f64::from(x.row(r)[c])).sum::<f64>() / n as f64;
        let x: Vec<Vec<f64>> =
            (0..d).map(|c| (0..n).map(|r| f64::from(old.row(r)[c]) - mean(old, c)).collect()).collect();
        let y: Vec<Vec<f64>> =
            (0..m).map(|c| (0..n).map(|r| f64::from(new.row(r)[c]) - mean(new, c)).collect()).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(p, q)| p * q).sum::<f64>() / n as f64;
        let unit = (0..d).map(|i| dot(&x[i], &x[i])).sum::<f64>() / d as f64;
        let mut rows: Vec<Vec<f64>> = (0..d)
            .map(|i| {
                let gram = (0..d).map(|j| dot(&x[i], &x[j]) + if i == j { penalty * unit } else { 0.0 });
                gram.chain((0..m).map(|j| dot(&x[i], &y[j]))).collect()
            })
            .collect();
        for pivot in 0..d {
            let divisor = rows[pivot][pivot];
            rows[pivot].iter_mut().for_each(|value| *value /= divisor);
            let pivot_row = rows[pivot].clone();
            for (i, row) in rows.iter_mut().enumerate() {
                let factor = if i == pivot { 0.0 } else { row[pivot] };
                row.iter_mut().zip(&pivot_row).for_each(|(value, p)| *value -= factor * p);
            }
        }
        rows.into_iter().map(|row| row[d..].to_vec()).collect()
    }

    #[test]
    fn it_solves_the_normal_equations() {
        for (n, d_old, d_new) in [(50, 5, 3), (1500, 4, 8), (6, 9, 2), (3, 1, 1)] {
            let (old, new) = (random_matrix(n, d_old, 5), random_matrix(n, d_new, 6));
            let expected = normal_equations(&old, &new, 0.1);
            let data = pairs(old, new, None);
            let fitted = fit_with(&data, Some(InputScaling::AsIs), &[0.1], &Progress::default()).unwrap();
            for (input, row) in expected.iter().enumerate() {
                for (output, value) in row.iter().enumerate() {
                    let got = f64::from(fitted.map.mixer[0].weight.row(output)[input]);
                    assert!((got - value).abs() < 1e-5, "n {n}: {got} against {value}");
                }
            }
        }
    }

    /// Fewer pairs than coordinates, of low rank with noise, with lengths that carry nothing.
    fn wide(n: usize) -> Pairs {
        let latent = random_matrix(n, 5, 1);
        let (old, new) = (
            affine(&latent, &random_matrix(40, 5, 2), &[0.3; 40]),
            affine(&latent, &random_matrix(7, 5, 3), &[1.0; 7]),
        );
        let (noise, lengths) = (random_matrix(n, 40, 4), random_matrix(n, 1, 5));
        let old =
            Matrix::from_fn(n, 40, |r, c| (old.row(r)[c] + 0.3 * noise.row(r)[c]) * lengths.row(r)[0].exp());
        pairs(old, new, None)
    }

    #[test]
    fn fewer_pairs_than_coordinates_give_what_the_covariance_gives() {
        let data = wide(30);
        let (old, new) = (data.old().matrix(), data.new_vectors().matrix());
        for scaling in [InputScaling::AsIs, InputScaling::UnitLength] {
            let slow = solve(&Moments::of(old, new, None, scaling), &PENALTIES).unwrap();
            let fitted = fit_with(&data, Some(scaling), &PENALTIES, &Progress::default()).unwrap();
            assert_eq!(fitted.choices["penalty"], slow.penalty.to_string());
            let weight = &fitted.map.mixer[0].weight;
            let largest = weight.as_slice().iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (output, row) in (0..7).map(|output| (output, weight.row(output))) {
                for (input, &value) in row.iter().enumerate() {
                    let expected = slow.weight[(input, output)] as f32;
                    assert!((value - expected).abs() < 1e-5 * largest, "{value} against {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_left_out_is_what_fits_without_it_give() {
        let data = wide(35);
        let fold = crate::folds::folds(35, 4, 3);
        let splits = LeftOut::of_folds(&fold);
        let found = left_out(&data, &splits, &Progress::default()).unwrap().unwrap();
        for (split, found) in splits.iter().zip(&found) {
            let map = fit(&data.select(&split.fitted), &Progress::default()).unwrap().map;
            let expected = map.outputs(&data.old().matrix().select(&split.asked), None).unwrap();
            assert!(largest_difference(found, &expected) < 1e-4);
        }
        assert!(left_out(&wide(40), &splits, &Progress::default()).unwrap().is_none());
    }

    #[test]
    fn a_linear_map_is_recovered_and_needs_no_penalty() {
        let old = random_matrix(400, 5, 7);
        let new = affine(&old, &random_matrix(7, 5, 8), &[0.1; 7]);
        let fitted = fit(&pairs(old.clone(), new.clone(), None), &Progress::default()).unwrap();
        assert_eq!(fitted.choices["penalty"], "0.000001");
        assert_eq!(fitted.choices["input"], "as-is");
        assert!(largest_difference(&fitted.map.outputs(&old, None).unwrap(), &new) < 1e-3);
    }

    #[test]
    fn lengths_that_carry_nothing_are_scaled_away() {
        let directions = random_matrix(600, 4, 9);
        let mut unit = directions.clone();
        unit.normalise_rows();
        let new = affine(&unit, &random_matrix(4, 4, 10), &[0.0; 4]);
        let lengths = random_matrix(600, 1, 11);
        let old = Matrix::from_fn(600, 4, |r, c| unit.row(r)[c] * (lengths.row(r)[0] * 2.0).exp());
        let fitted = fit(&pairs(old, new, None), &Progress::default()).unwrap();
        assert_eq!(fitted.map.input, InputScaling::UnitLength);
    }

    #[test]
    fn noise_gets_a_large_penalty() {
        let (old, new) = (random_matrix(60, 20, 12), random_matrix(60, 5, 13));
        let fitted = fit(&pairs(old, new, None), &Progress::default()).unwrap();
        assert!(fitted.choices["penalty"].parse::<f64>().unwrap() >= 1.0);
    }

    #[test]
    fn zero_rows_and_constant_columns_are_accepted() {
        let mut old = random_matrix(50, 4, 14);
        old.row_mut(3).fill(0.0);
        for row in 0..50 {
            old.row_mut(row)[2] = 1.0;
        }
        let new = random_matrix(50, 3, 15);
        for input in [InputScaling::AsIs, InputScaling::UnitLength] {
            let data = pairs(old.clone(), new.clone(), None);
            let fitted = fit_with(&data, Some(input), &PENALTIES, &Progress::default()).unwrap();
            assert!(fitted.map.mixer[0].weight.check_finite("weight").is_ok());
        }
        let constant = Matrix::from_fn(50, 4, |_, _| 2.0);
        let fitted = fit(&pairs(constant, new, None), &Progress::default()).unwrap();
        assert!(fitted.map.mixer[0].weight.as_slice().iter().all(|&value| value == 0.0));
    }
}
