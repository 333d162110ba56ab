//! Ridge regression from old to new vectors, its penalty chosen by generalised cross-validation.

use std::collections::BTreeMap;

use faer::{Mat, MatRef};
use rayon::prelude::*;
use rehang_core::adapter::{InputScaling, Map};
use rehang_core::{Matrix, Pairs, Progress, Result};

use super::{ClosedForm, best, centring_bias, layer, scaling_name};
use crate::folds::LeftOut;
use crate::left_out::LeavesOut;
use crate::linear_algebra::{Centred, Moments, eigen, factorise, gram, product, scaled, solve_factorised};

/// Penalties that are tried, relative to the mean diagonal of the old vectors' covariance. The largest is
/// first: where two score the same, the larger one is kept.
pub const PENALTIES: [f64; 15] =
    [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6];

/// Fits `h(o) = Wᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`, with `W = (S + λ·s̄·I)⁻¹ C`.
///
/// S is the covariance of the old vectors, C their covariance with the new ones, s̄ the mean of S's diagonal.
/// All penalties share one eigendecomposition: of S, or with fewer pairs than coordinates of the old vectors'
/// products with each other, which have the same eigenvalues. So choosing λ costs no more than a fit. The
/// score of λ is `GCV(λ) = RSS(λ)/n / (1 − df(λ)/n)²` with `df = 1 + Σ sᵢ/(sᵢ + λ·s̄)` (Golub, Heath and
/// Wahba 1979). Old vectors that do not vary give the constant map to v̄.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where the decomposition fails, [`rehang_core::ErrorKind::Cancelled`].
pub fn fit(pairs: &Pairs, progress: &Progress) -> Result<ClosedForm> {
    fit_with(pairs, None, &PENALTIES, progress)
}

/// Fits as [`fit`], with the best of other penalties and, where it is given, one scaling of old vectors.
pub(crate) fn fit_with(
    pairs: &Pairs,
    scaling: Option<InputScaling>,
    penalties: &[f64],
    progress: &Progress,
) -> Result<ClosedForm> {
    Ok(fit_leaving_out(pairs, scaling, penalties, progress)?.0)
}

/// Fits as [`fit_with`], and returns also what the map would be without some of the pairs.
pub(crate) fn fit_leaving_out(
    pairs: &Pairs,
    scaling: Option<InputScaling>,
    penalties: &[f64],
    progress: &Progress,
) -> Result<(ClosedForm, RidgeLeavingOut)> {
    progress.check()?;
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    if old.rows() < old.columns() {
        let new = Centred::from_rows(new, InputScaling::AsIs);
        let (scaling, (chosen, solved, old)) = best(pairs, scaling, |scaling| {
            progress.check()?;
            let old = Centred::from_rows(old, scaling);
            let solved = Dual::from_products(products(&old), old.rows.ncols(), &new.rows)?;
            let chosen = solved.spectrum.choose(penalties);
            Ok((chosen.score, (chosen, solved, old)))
        })?;
        let coefficients = solved.coefficients(chosen.penalty);
        let weight = product(old.rows.transpose(), coefficients.as_ref());
        let bias = centring_bias(&old.means, &new.means, &weight);
        let closed = closed_form(scaling, chosen, &weight, &bias);
        Ok((closed, solved.leaving_out(chosen.penalty, new.rows, &coefficients)))
    } else {
        let (scaling, (chosen, solved, moments)) = best(pairs, scaling, |scaling| {
            progress.check()?;
            let moments = Moments::from_pairs(old, new, None, scaling);
            let solved = Primal::from_moments(&moments)?;
            let chosen = solved.spectrum.choose(penalties);
            Ok((chosen.score, (chosen, solved, moments)))
        })?;
        let (weight, axes) = solved.weight(chosen.penalty);
        let bias = centring_bias(&moments.mean_x, &moments.mean_y, &weight);
        let closed = closed_form(scaling, chosen, &weight, &bias);
        let Moments { mean_x, mean_y, .. } = moments;
        Ok((closed, RidgeLeavingOut::Covariance { scaling, mean_x, mean_y, axes, weight }))
    }
}

fn closed_form(scaling: InputScaling, chosen: Chosen, weight: &Mat<f64>, bias: &[f64]) -> ClosedForm {
    let choices = BTreeMap::from([
        ("input".into(), scaling_name(scaling)),
        ("penalty".into(), format!("{}", chosen.penalty)),
    ]);
    ClosedForm { map: Map::from_layers(scaling, vec![layer(weight.as_ref(), bias)]), choices }
}

/// A ridge fit from which pairs can be left out without fitting again.
///
/// With `μ = n λ s̄` its outputs for its own pairs are `H Y`, where `H = 1/n + Z Zᵀ` and a row of Z is
/// `x V diag(n s + μ)^(−½)`. Fitted without the pairs L, at the same μ, it would leave
/// `(I − H_LL)⁻¹ (Y − H Y)_L` of their new vectors. So scaling and μ stay what all pairs chose; everything
/// else is exact.
#[derive(Debug)]
pub(crate) enum RidgeLeavingOut {
    /// Fit with as many pairs as coordinates or more: rows of Z are made for the pairs that are asked about.
    Covariance {
        scaling: InputScaling,
        mean_x: Vec<f64>,
        mean_y: Vec<f64>,
        /// Axes `V diag(n s + μ)^(−½)`, by which a row of Z is made.
        axes: Mat<f64>,
        weight: Mat<f64>,
    },
    /// Fit with fewer pairs than coordinates.
    Products {
        /// Rows of Z for all pairs, `[n, n]`.
        influence: Mat<f64>,
        /// Residuals `Y − H Y`, `[n, d_new]`.
        residuals: Mat<f64>,
    },
}

impl RidgeLeavingOut {
    /// Returns Z with a last column `n^(−½)`, and `Y − H Y`, for some of the pairs that it was fitted on.
    fn rows(&self, pairs: &Pairs, rows: &[usize]) -> (Mat<f64>, Mat<f64>) {
        let of_constant = (pairs.len() as f64).sqrt().recip();
        let with_constant = |influence: MatRef<'_, f64>| {
            let width = influence.ncols();
            Mat::from_fn(influence.nrows(), width + 1, |i, j| {
                if j < width { influence[(i, j)] } else { of_constant }
            })
        };
        match self {
            Self::Covariance { scaling, mean_x, mean_y, axes, weight } => {
                let about = |of: &Matrix, means: &[f64]| {
                    Mat::from_fn(rows.len(), means.len(), |i, j| f64::from(of.row(i)[j]) - means[j])
                };
                let x = about(&scaled(&pairs.old().matrix().select(rows), *scaling), mean_x);
                let mut residuals = about(&pairs.new_vectors().matrix().select(rows), mean_y);
                residuals -= product(x.as_ref(), weight.as_ref());
                (with_constant(product(x.as_ref(), axes.as_ref()).as_ref()), residuals)
            }
            Self::Products { influence, residuals } => {
                let rows_of =
                    |all: &Mat<f64>| Mat::from_fn(rows.len(), all.ncols(), |i, j| all[(rows[i], j)]);
                (with_constant(rows_of(influence).as_ref()), rows_of(residuals))
            }
        }
    }

    /// Returns what is left of the new vectors of `rows` when the map is fitted on the other pairs.
    fn residuals(&self, pairs: &Pairs, rows: &[usize]) -> Result<Mat<f64>> {
        const WHAT: &str = "ridge without some pairs";
        let (z, mut residuals) = self.rows(pairs, rows);
        let without = |mut block: Mat<f64>| -> Result<Mat<f64>> {
            for j in 0..block.ncols() {
                for i in 0..block.nrows() {
                    block[(i, j)] = f64::from(u8::from(i == j)) - block[(i, j)];
                }
            }
            factorise(&mut block, WHAT)?;
            Ok(block)
        };
        if z.nrows() <= z.ncols() {
            let factor = without(gram(z.as_ref()))?;
            solve_factorised(&factor, &mut residuals);
        } else {
            // (I − z zᵀ)⁻¹ = I + z (I − zᵀ z)⁻¹ zᵀ.
            let factor = without(gram(z.transpose()))?;
            let mut inner = product(z.transpose(), residuals.as_ref());
            solve_factorised(&factor, &mut inner);
            residuals += product(z.as_ref(), inner.as_ref());
        }
        Ok(residuals)
    }
}

impl LeavesOut for RidgeLeavingOut {
    fn outputs(&self, pairs: &Pairs, splits: &[LeftOut], progress: &Progress) -> Result<Vec<Matrix>> {
        let new = pairs.new_vectors().matrix();
        let of_split = |split: &LeftOut| {
            progress.check()?;
            let rows = split.unfitted(pairs.len());
            Ok(asked_of(new, split, &rows, &self.residuals(pairs, &rows)?))
        };
        splits.par_iter().map(of_split).collect()
    }
}

/// Returns the outputs that a split asks about. They are made from the residuals of the pairs `rows`
/// (increasing), which the split is not fitted on.
fn asked_of(new: &Matrix, split: &LeftOut, rows: &[usize], residuals: &Mat<f64>) -> Matrix {
    let mut outputs = Matrix::zeros(split.asked.len(), new.columns());
    for (place, &pair) in split.asked.iter().enumerate() {
        let at = rows.binary_search(&pair).expect("no pair is asked about that is fitted on");
        for (column, output) in outputs.row_mut(place).iter_mut().enumerate() {
            *output = (f64::from(new.row(pair)[column]) - residuals[(at, column)]) as f32;
        }
    }
    outputs
}

/// Returns the products of old vectors with each other, `X Xᵀ`.
pub(super) fn products(old: &Centred) -> Mat<f64> {
    gram(old.rows.as_ref())
}

/// Returns products about the mean of the `fitted` rows: of these with each other, and of the `held_out` rows
/// with them.
pub(super) fn about(products: &Mat<f64>, fitted: &[usize], held_out: &[usize]) -> (Mat<f64>, Mat<f64>) {
    let count = fitted.len().max(1) as f64;
    let mean_of = |&row: &usize| fitted.iter().map(|&other| products[(other, row)]).sum::<f64>() / count;
    let of_fitted: Vec<f64> = fitted.iter().map(mean_of).collect();
    let of_held_out: Vec<f64> = held_out.iter().map(mean_of).collect();
    let of_all = of_fitted.iter().sum::<f64>() / count;
    let among_fitted = Mat::from_fn(fitted.len(), fitted.len(), |i, j| {
        products[(fitted[i], fitted[j])] - of_fitted[i] - of_fitted[j] + of_all
    });
    let across = Mat::from_fn(held_out.len(), fitted.len(), |i, j| {
        products[(held_out[i], fitted[j])] - of_held_out[i] - of_fitted[j] + of_all
    });
    (among_fitted, across)
}

/// Returns the new vectors of the `fitted` rows about their mean, and that mean.
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
    /// Weight W, `[d_old, d_new]`.
    pub weight: Mat<f64>,
    /// Relative penalty that was used.
    pub penalty: f64,
    /// Generalised cross-validation score of the penalty: an estimate of the squared error on new pairs.
    pub score: f64,
}

/// Solves for the penalty with the best score.
pub(crate) fn solve(moments: &Moments, penalties: &[f64]) -> Result<Solution> {
    let solved = Primal::from_moments(moments)?;
    let Chosen { penalty, score } = solved.spectrum.choose(penalties);
    Ok(Solution { weight: solved.weight(penalty).0, penalty, score })
}

/// Solves for W with one penalty, without a decomposition.
pub(crate) fn weight_of(moments: &Moments, penalty: f64) -> Result<Mat<f64>> {
    let mut weight = moments.xy.clone();
    solve_with(moments.xx.clone(), penalty * moments.mean_diagonal(), &mut weight)?;
    Ok(weight)
}

/// Solves for A with one penalty, without a decomposition, from what [`Dual::from_products`] takes.
pub(super) fn coefficients_of(
    gram: Mat<f64>,
    d_old: usize,
    new: &Mat<f64>,
    penalty: f64,
) -> Result<Mat<f64>> {
    let trace: f64 = (0..gram.nrows()).map(|i| gram[(i, i)]).sum();
    let mut coefficients = new.clone();
    solve_with(gram, penalty * trace / d_old.max(1) as f64, &mut coefficients)?;
    Ok(coefficients)
}

/// Replaces b by `(S + λ I)⁻¹ b`; by 0 where both are 0.
fn solve_with(mut s: Mat<f64>, penalty: f64, b: &mut Mat<f64>) -> Result<()> {
    if penalty <= 0.0 {
        b.fill(0.0);
        return Ok(());
    }
    for i in 0..s.nrows() {
        s[(i, i)] += penalty;
    }
    factorise(&mut s, "ridge")?;
    solve_factorised(&s, b);
    Ok(())
}

/// A penalty, and its score.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub penalty: f64,
    pub score: f64,
}

/// Numbers that the score of a penalty depends on.
pub(super) struct Spectrum {
    count: f64,
    /// Total variance of the new vectors.
    yy: f64,
    /// Mean diagonal of S, which penalties are relative to.
    unit: f64,
    /// Eigenvalues of S, without some that are 0.
    values: Vec<f64>,
    /// Squared length of C along every eigenvector.
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

    /// Returns the generalised cross-validation score of an absolute penalty; infinite where the fit would
    /// use up every pair.
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
        let part_left = 1.0 - degrees / self.count.max(1.0);
        // With less than one pair in a hundred left over, the quotient is rounding noise and not an estimate.
        if part_left < 0.01 { f64::INFINITY } else { residual.max(0.0) / (part_left * part_left) }
    }

    /// Returns `1 / (sᵢ + λ)`. Without any variance both are 0, and so is what is scaled: 0, not 0/0.
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

fn scale_columns(columns: &mut Mat<f64>, factor: impl Fn(usize) -> f64) {
    for j in 0..columns.ncols() {
        let factor = factor(j);
        for i in 0..columns.nrows() {
            columns[(i, j)] *= factor;
        }
    }
}

fn squared_lengths(rows: &Mat<f64>) -> Vec<f64> {
    (0..rows.nrows()).map(|i| (0..rows.ncols()).map(|j| rows[(i, j)] * rows[(i, j)]).sum()).collect()
}

/// Decomposition `S = V diag(s) Vᵀ`, for as many pairs as coordinates or more.
struct Primal {
    spectrum: Spectrum,
    vectors: Mat<f64>,
    /// Product `Vᵀ C`, `[d_old, d_new]`.
    z: Mat<f64>,
}

impl Primal {
    fn from_moments(moments: &Moments) -> Result<Self> {
        let (values, vectors) = eigen(moments.xx.as_ref(), "ridge eigendecomposition")?;
        let z = product(vectors.transpose(), moments.xy.as_ref());
        let energy = squared_lengths(&z);
        let (count, yy, unit) = (moments.count, moments.yy, moments.mean_diagonal());
        Ok(Self { spectrum: Spectrum { count, yy, unit, values, energy }, vectors, z })
    }

    /// Returns W, and V with the factors of [`RidgeLeavingOut`].
    fn weight(mut self, penalty: f64) -> (Mat<f64>, Mat<f64>) {
        scale_rows(&mut self.z, |i| self.spectrum.factor(i, penalty));
        let weight = product(self.vectors.as_ref(), self.z.as_ref());
        let count = self.spectrum.count.max(1.0);
        let factor = |i: usize| (self.spectrum.factor(i, penalty) / count).sqrt();
        scale_columns(&mut self.vectors, factor);
        (weight, self.vectors)
    }
}

/// Decomposition `X Xᵀ / n = U diag(s) Uᵀ` of the pairs' products with each other, for fewer pairs than
/// coordinates. With `X = U diag(√(n s)) Vᵀ` it has the eigenvalues of S, and `W = Xᵀ A` with
/// `A = U diag(1 / (sᵢ + λ)) Uᵀ Y / n`.
pub(super) struct Dual {
    pub spectrum: Spectrum,
    vectors: Mat<f64>,
    /// Product `Uᵀ Y / n`, `[n, d_new]`.
    q: Mat<f64>,
}

impl Dual {
    /// Decomposes the products (`gram`) of centred old vectors of `d_old` coordinates, with centred new
    /// vectors.
    pub(super) fn from_products(mut gram: Mat<f64>, d_old: usize, new: &Mat<f64>) -> Result<Self> {
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

    /// Returns A for one penalty.
    pub(super) fn coefficients(&self, penalty: f64) -> Mat<f64> {
        let mut q = self.q.clone();
        scale_rows(&mut q, |i| self.spectrum.factor(i, penalty));
        product(self.vectors.as_ref(), q.as_ref())
    }

    /// Makes the fit from which pairs can be left out, with the centred new vectors of the decomposition, and
    /// A.
    fn leaving_out(mut self, penalty: f64, mut new: Mat<f64>, coefficients: &Mat<f64>) -> RidgeLeavingOut {
        // (X Xᵀ + μ) A = Y. Old vectors that do not vary leave all of Y.
        let mu = self.spectrum.count * penalty * self.spectrum.unit;
        if mu > 0.0 {
            new = Mat::from_fn(new.nrows(), new.ncols(), |i, j| mu * coefficients[(i, j)]);
        }
        let factor = |i: usize| (self.spectrum.values[i] * self.spectrum.factor(i, penalty)).sqrt();
        scale_columns(&mut self.vectors, factor);
        RidgeLeavingOut::Products { influence: self.vectors, residuals: new }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, largest_difference, pairs, random_matrix};

    /// Solves ridge by the normal equations on centred data and Gaussian elimination: `[d_old, d_new]`.
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

    /// Makes fewer pairs than coordinates, of low rank with noise, with lengths that carry nothing.
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
            let slow = solve(&Moments::from_pairs(old, new, None, scaling), &PENALTIES).unwrap();
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
        // Fewer pairs than coordinates and more; fewer left out than coordinates and more.
        for (n, folds) in [(35, 4), (35, 2), (90, 4), (90, 2), (41, 41)] {
            let data = wide(n);
            let splits = LeftOut::from_folds(&crate::folds::folds(n, folds, 3));
            let (closed, without) = fit_leaving_out(&data, None, &PENALTIES, &Progress::default()).unwrap();
            let outputs_by_split = without.outputs(&data, &splits, &Progress::default()).unwrap();
            let scaling = closed.map.input;
            // μ = n λ s̄ of all pairs, as a penalty relative to the fitted ones.
            let mu = |pairs: &Pairs| {
                let old = Centred::from_rows(pairs.old().matrix(), scaling);
                old.rows.squared_norm_l2() / 40.0
            };
            let penalty: f64 = closed.choices["penalty"].parse().unwrap();
            for (split, outputs) in splits.iter().zip(&outputs_by_split) {
                let part = data.select(&split.fitted);
                let same = penalty * mu(&data) / mu(&part);
                let map = fit_with(&part, Some(scaling), &[same], &Progress::default()).unwrap().map;
                let expected = map.outputs(&data.old().matrix().select(&split.asked), None).unwrap();
                assert!(largest_difference(outputs, &expected) < 1e-4, "{n} pairs, {folds} folds");
            }
        }
    }

    #[test]
    fn one_penalty_needs_no_decomposition() {
        for n in [30, 60] {
            let data = wide(n);
            let (old, new) = (data.old().matrix(), data.new_vectors().matrix());
            let moments = Moments::from_pairs(old, new, None, InputScaling::AsIs);
            let [fast, slow] = [weight_of(&moments, 0.03).unwrap(), solve(&moments, &[0.03]).unwrap().weight];
            assert!((&fast - &slow).norm_max() < 1e-9 * slow.norm_max());
            let (old, new) =
                (Centred::from_rows(old, InputScaling::AsIs), Centred::from_rows(new, InputScaling::AsIs));
            let slow = Dual::from_products(products(&old), 40, &new.rows).unwrap().coefficients(0.03);
            let fast = coefficients_of(products(&old), 40, &new.rows, 0.03).unwrap();
            assert!((&fast - &slow).norm_max() < 1e-9 * slow.norm_max());
        }
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
        let outputs_without_a_part = |data: &Pairs| {
            let without = fit_leaving_out(data, None, &PENALTIES, &Progress::default()).unwrap().1;
            let splits = LeftOut::from_folds(&crate::folds::folds(data.len(), 5, 1));
            without.outputs(data, &splits, &Progress::default()).unwrap()
        };
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
        for d_old in [4, 60] {
            let data = pairs(Matrix::from_fn(50, d_old, |_, _| 2.0), new.clone(), None);
            let fitted = fit(&data, &Progress::default()).unwrap();
            assert!(fitted.map.mixer[0].weight.as_slice().iter().all(|&value| value == 0.0));
            // A left-out pair gets the mean of the others.
            let fold = crate::folds::folds(50, 5, 1);
            for (fold_number, outputs) in outputs_without_a_part(&data).iter().enumerate() {
                let other_rows: Vec<usize> = (0..50).filter(|&row| fold[row] != fold_number).collect();
                let mean = crate::linear_algebra::column_means(&new.select(&other_rows));
                assert!((f64::from(outputs.row(0)[1]) - mean[1]).abs() < 1e-6);
            }
        }
    }
}
