//! Reduced-rank regression: ridge, then only the directions in which its outputs vary most.

use std::collections::BTreeMap;

use faer::Mat;
use rehang::adapter::{InputScaling, Map};
use rehang::{Pairs, Progress, Result};

use super::ridge::{PENALTIES, solve};
use super::{ClosedForm, best_scaling, layer, scaling_name};
use crate::folds::{folds, parted};
use crate::linear_algebra::{Moments, eigen, product};

/// A measured rank may be this much worse than the best one, as a part of the new vectors' variance, if it is smaller:
/// the difference is chance, and a smaller rank is a cheaper map.
const TOLERANCE: f64 = 1e-3;

/// Fits `h(o) = V_r V_rᵀ Wᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`, as two layers through r dimensions.
///
/// W is the ridge solution ([`super::ridge::fit`]) and V_r holds the r leading eigenvectors of the covariance `Wᵀ S W`
/// of its outputs (Izenman 1975; the redundancy analysis of Davies and Tso 1982).
///
/// The rank that is measured is the smallest whose squared error on the held-out fifth is the best one's but for
/// 0.1 % of the new vectors' variance. The directions are
/// orthogonal, so each adds its own part to that error and all ranks cost one evaluation.
///
/// # Errors
///
/// [`rehang::ErrorKind::Diverged`] where a decomposition fails, [`rehang::ErrorKind::Cancelled`].
pub fn fit(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<ClosedForm> {
    fit_with(pairs, |scaling, rank_max| measured_rank(pairs, seed, scaling, rank_max), progress)
}

/// As [`fit`], through as many dimensions as `rank` says of a scaling and of the largest rank.
fn fit_with(
    pairs: &Pairs,
    rank: impl FnOnce(InputScaling, usize) -> Result<usize>,
    progress: &Progress,
) -> Result<ClosedForm> {
    progress.check()?;
    let (scaling, (solution, moments)) = best_scaling(pairs, None, |moments| {
        let solution = solve(moments, &PENALTIES)?;
        Ok((solution.score, (solution, moments.clone())))
    })?;
    let rank = rank(scaling, pairs.old().dimension().min(pairs.new_vectors().dimension()))?;
    let directions = leading_directions(&moments, &solution.weight)?;
    let directions = directions.subcols(0, rank);
    let down = product(solution.weight.as_ref(), directions);
    let down_bias: Vec<f64> = (0..rank)
        .map(|j| -(0..down.nrows()).map(|i| down[(i, j)] * moments.mean_x[i]).sum::<f64>())
        .collect();
    let layers = vec![layer(down.as_ref(), &down_bias), layer(directions.transpose(), &moments.mean_y)];
    let choices = BTreeMap::from([
        ("input".into(), scaling_name(scaling)),
        ("penalty".into(), format!("{}", solution.penalty)),
        ("rank".into(), rank.to_string()),
    ]);
    Ok(ClosedForm { map: Map::of_layers(scaling, layers), choices })
}

/// Eigenvectors of the outputs' covariance `Wᵀ S W`, the largest eigenvalue first: `[d_new, d_new]`.
fn leading_directions(moments: &Moments, weight: &Mat<f64>) -> Result<Mat<f64>> {
    let covariance = product(weight.transpose(), product(moments.xx.as_ref(), weight.as_ref()).as_ref());
    let (_, vectors) = eigen(covariance.as_ref(), "low-rank directions")?;
    let last = vectors.ncols();
    Ok(Mat::from_fn(vectors.nrows(), last, |i, j| vectors[(i, last - 1 - j)]))
}

/// The rank that does best on a held-out fifth (within [`TOLERANCE`]); the full rank where there are too few pairs to ask.
fn measured_rank(pairs: &Pairs, seed: u64, scaling: InputScaling, rank_max: usize) -> Result<usize> {
    if pairs.len() < 10 {
        return Ok(rank_max);
    }
    let (held_out, fitted) = parted(&folds(pairs.len(), 5, seed), 0);
    let moments =
        |rows: &[usize]| Moments::of(pairs.old().matrix(), pairs.new_vectors().matrix(), Some(rows), scaling);
    let (fitted, held_out) = (moments(&fitted), moments(&held_out));
    let weight = solve(&fitted, &PENALTIES)?.weight;
    let directions = leading_directions(&fitted, &weight)?;
    let down = product(weight.as_ref(), directions.as_ref());
    // On held-out pairs about the fitted means, direction j changes the squared error by E⟨down_j, x⟩² − 2 E⟨down_j, x⟩⟨v_j, y⟩.
    let offset = |held_out: &[f64], fitted: &[f64]| -> Vec<f64> {
        held_out.iter().zip(fitted).map(|(a, b)| a - b).collect()
    };
    let (off_x, off_y) = (offset(&held_out.mean_x, &fitted.mean_x), offset(&held_out.mean_y, &fitted.mean_y));
    let spread = product(held_out.xx.as_ref(), down.as_ref());
    let shared = product(held_out.xy.as_ref(), directions.as_ref());
    let mut error = 0.0;
    let mut errors = Vec::with_capacity(rank_max);
    for j in 0..rank_max {
        let dot =
            |column: &dyn Fn(usize) -> f64, n: usize| (0..n).map(|i| down[(i, j)] * column(i)).sum::<f64>();
        let mean_x: f64 = dot(&|i| off_x[i], down.nrows());
        let mean_y: f64 = (0..off_y.len()).map(|i| directions[(i, j)] * off_y[i]).sum();
        let square = dot(&|i| spread[(i, j)], down.nrows()) + mean_x * mean_x;
        let product = dot(&|i| shared[(i, j)], down.nrows()) + mean_x * mean_y;
        error += square - 2.0 * product;
        errors.push(error);
    }
    let smallest = errors.iter().copied().fold(f64::INFINITY, f64::min);
    let good_enough = smallest + TOLERANCE * held_out.yy;
    Ok(errors.iter().position(|&error| error <= good_enough).map_or(rank_max, |at| at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, largest_difference, pairs, random_matrix};
    use rehang::Matrix;

    #[test]
    fn a_map_through_three_dimensions_is_found_again() {
        let old = random_matrix(800, 10, 1);
        let hidden = affine(&old, &random_matrix(3, 10, 2), &[0.0; 3]);
        let clean = affine(&hidden, &random_matrix(8, 3, 3), &[1.0; 8]);
        let noise = random_matrix(800, 8, 4);
        let noisy = Matrix::from_fn(800, 8, |r, c| clean.row(r)[c] + 0.3 * noise.row(r)[c]);
        let fitted = fit(&pairs(old.clone(), noisy, None), 0, &Progress::default()).unwrap();
        assert_eq!(fitted.choices["rank"], "3");
        assert_eq!(fitted.map.mixer[0].weight.rows(), 3);
        assert!(largest_difference(&fitted.map.outputs(&old, None).unwrap(), &clean) < 0.5);
    }

    #[test]
    fn at_full_rank_it_is_ridge() {
        for (d_old, d_new) in [(5, 5), (5, 9), (9, 5)] {
            let (old, new) = (random_matrix(300, d_old, 5), random_matrix(300, d_new, 6));
            let data = pairs(old.clone(), new, None);
            let low = fit_with(&data, |_, rank_max| Ok(rank_max), &Progress::default());
            let full = super::super::ridge::fit(&data, &Progress::default());
            let low = low.unwrap().map.outputs(&old, None).unwrap();
            let full = full.unwrap().map.outputs(&old, None).unwrap();
            assert!(largest_difference(&low, &full) < 1e-4);
        }
    }
}
