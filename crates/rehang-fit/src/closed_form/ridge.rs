//! Ridge regression from old to new vectors, its penalty chosen by generalised cross-validation.

use std::collections::BTreeMap;

use faer::Mat;
use rehang::adapter::{InputScaling, Map};
use rehang::{Pairs, Progress, Result};

use super::{ClosedForm, best_scaling, centring_bias, layer, scaling_name};
use crate::linear_algebra::{Moments, eigen, product};

/// The penalties that are tried, relative to the mean diagonal of the old vectors' covariance. The largest is first: where
/// two score the same, the larger one is kept.
pub const PENALTIES: [f64; 15] =
    [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6];

/// Fits `h(o) = Wᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`, with `W = (S + λ·s̄·I)⁻¹ C`.
///
/// S is the covariance of the old vectors, C their covariance with the new ones, s̄ the mean of S's diagonal. All
/// penalties share one eigendecomposition of S, so that choosing λ costs no more than a fit: the score of λ is
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
    let (scaling, (solution, bias)) = best_scaling(pairs, scaling, |moments| {
        let solution = solve(moments, penalties)?;
        let bias = centring_bias(moments, &solution.weight);
        Ok((solution.score, (solution, bias)))
    })?;
    let choices = BTreeMap::from([
        ("input".into(), scaling_name(scaling)),
        ("penalty".into(), format!("{}", solution.penalty)),
    ]);
    Ok(ClosedForm { map: Map::of_layers(scaling, vec![layer(solution.weight.as_ref(), &bias)]), choices })
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
    let (values, vectors) = eigen(moments.xx.as_ref(), "ridge eigendecomposition")?;
    let z = product(vectors.transpose(), moments.xy.as_ref());
    let energy: Vec<f64> =
        (0..z.nrows()).map(|i| (0..z.ncols()).map(|j| z[(i, j)] * z[(i, j)]).sum()).collect();
    let unit = moments.mean_diagonal();
    let scored = penalties.iter().map(|&penalty| (penalty, score(moments, &values, &energy, penalty * unit)));
    let (penalty, score) = scored
        .reduce(|best, next| if next.1 < best.1 { next } else { best })
        .expect("at least one penalty is tried");
    let mut scaled = z;
    for (i, value) in values.iter().enumerate() {
        // Without any variance `unit` is 0 and so is z: the weight is 0, not 0/0.
        let divisor = value + penalty * unit;
        let factor = if divisor > 0.0 { 1.0 / divisor } else { 0.0 };
        for j in 0..scaled.ncols() {
            scaled[(i, j)] *= factor;
        }
    }
    Ok(Solution { weight: product(vectors.as_ref(), scaled.as_ref()), penalty, score })
}

/// The generalised cross-validation score of an absolute penalty; infinite where the fit would use up every pair.
fn score(moments: &Moments, values: &[f64], energy: &[f64], penalty: f64) -> f64 {
    let mut residual = moments.yy;
    let mut degrees = 1.0;
    for (&value, &energy) in values.iter().zip(energy) {
        let divisor = value + penalty;
        if divisor > 0.0 {
            residual -= energy * (2.0 / divisor - value / (divisor * divisor));
            degrees += value / divisor;
        }
    }
    let left = 1.0 - degrees / moments.count.max(1.0);
    // Less than one pair in a hundred left over: the quotient is rounding noise, not an estimate.
    if left < 0.01 { f64::INFINITY } else { residual.max(0.0) / (left * left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, largest_difference, pairs, random_matrix};
    use rehang::Matrix;

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
