//! Reduced-rank regression: ridge, then only the directions in which its outputs vary most.

use std::collections::BTreeMap;

use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::{Accum, Mat, Par};
use rehang_core::adapter::{InputScaling, Map};
use rehang_core::{Pairs, Progress, Result};

use super::ridge::{self, Dual, PENALTIES, coefficients_of, solve, weight_of};
use super::{ClosedForm, best, best_scaling, layer, scaling_name};
use crate::folds::{folds, parted};
use crate::left_out::{LeavesOut, Refit};
use crate::linear_algebra::{Centred, Moments, eigen, factorise, gram, product};

/// Part of the new vectors' variance by which a measured rank may be worse than the best one, if it is
/// smaller. The difference is chance, and a smaller rank is a cheaper map.
const TOLERANCE: f64 = 1e-3;

/// Fits `h(o) = V_r V_rᵀ Wᵀ(o − ō) + v̄`, `[n, d_old] → [n, d_new]`, as two layers through r dimensions.
///
/// W is the ridge solution ([`super::ridge::fit`]) and V_r holds the r leading eigenvectors of the covariance
/// `Wᵀ S W` of its outputs (Izenman 1975; the redundancy analysis of Davies and Tso 1982).
///
/// The rank is measured: it is the smallest whose squared error on the held-out fifth is the best rank's but
/// for 0.1 % of the new vectors' variance. The directions are orthogonal, so each adds its own part to that
/// error and all ranks cost one evaluation.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where a decomposition fails, [`rehang_core::ErrorKind::Cancelled`].
pub fn fit(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<ClosedForm> {
    progress.check()?;
    if pairs.len() < pairs.old().dimension() {
        let rank = |settings, rank_max| measured_rank_of_few(pairs, seed, settings, rank_max);
        fit_few(pairs, rank, progress)
    } else {
        fit_many(pairs, |settings, rank_max| measured_rank(pairs, seed, settings, rank_max), progress)
    }
}

/// Fits as [`fit`], and returns also what the map would be without some of the pairs: fitted anew, with the
/// same scaling, penalty and rank.
pub(crate) fn fit_leaving_out(
    pairs: &Pairs,
    seed: u64,
    progress: &Progress,
) -> Result<(ClosedForm, impl LeavesOut + use<>)> {
    let closed = fit(pairs, seed, progress)?;
    let penalty = closed.choices["penalty"].parse().expect("it was written as a number");
    let settings = Settings { scaling: closed.map.input, penalty };
    let rank = closed.map.mixer[0].weight.rows();
    Ok((closed, Refit(move |part: &Pairs| Ok(fit_again(part, settings, rank)?.map))))
}

/// Settings that ridge chose.
#[derive(Debug, Clone, Copy)]
struct Settings {
    scaling: InputScaling,
    penalty: f64,
}

/// Fits as [`fit`], with fewer pairs than coordinates: everything is made of products of old vectors
/// ([`super::ridge`]).
fn fit_few(
    pairs: &Pairs,
    rank: impl FnOnce(Settings, usize) -> Result<usize>,
    progress: &Progress,
) -> Result<ClosedForm> {
    let new = Centred::from_rows(pairs.new_vectors().matrix(), InputScaling::AsIs);
    let (scaling, (penalty, solved, products, old)) = best(pairs, None, |scaling| {
        progress.check()?;
        let old = Centred::from_rows(pairs.old().matrix(), scaling);
        let products = ridge::products(&old);
        let solved = Dual::from_products(products.clone(), old.rows.ncols(), &new.rows)?;
        let chosen = solved.spectrum.choose(&PENALTIES);
        Ok((chosen.score, (chosen.penalty, solved, products, old)))
    })?;
    let settings = Settings { scaling, penalty };
    through_few(&old, &new, &products, &solved.coefficients(penalty), settings, |most| rank(settings, most))
}

fn through_few(
    old: &Centred,
    new: &Centred,
    products: &Mat<f64>,
    coefficients: &Mat<f64>,
    settings: Settings,
    rank: impl FnOnce(usize) -> Result<usize>,
) -> Result<ClosedForm> {
    let directions = Directions::of_outputs(product(products.as_ref(), coefficients.as_ref()))?;
    let directions = directions.leading(rank(directions.count())?);
    let along = product(coefficients.as_ref(), directions.as_ref());
    let down = product(old.rows.transpose(), along.as_ref());
    Ok(through(&down, &directions, (&old.means, &new.means), settings))
}

fn fit_again(pairs: &Pairs, settings: Settings, rank: usize) -> Result<ClosedForm> {
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    if pairs.len() < pairs.old().dimension() {
        let (old, new) =
            (Centred::from_rows(old, settings.scaling), Centred::from_rows(new, InputScaling::AsIs));
        let products = ridge::products(&old);
        let coefficients = coefficients_of(products.clone(), old.rows.ncols(), &new.rows, settings.penalty)?;
        through_few(&old, &new, &products, &coefficients, settings, |_| Ok(rank))
    } else {
        let moments = Moments::from_pairs(old, new, None, settings.scaling);
        let weight = weight_of(&moments, settings.penalty)?;
        let directions = Directions::of_moments(&moments, &weight)?.leading(rank);
        Ok(through_many(&moments, &weight, &directions, settings))
    }
}

/// Eigenvectors of the covariance of outputs about their mean, by increasing eigenvalues.
struct Directions {
    values: Vec<f64>,
    vectors: Mat<f64>,
    /// Rows `[n, d_new]` whose products with each other were decomposed; `None` where it was the covariance.
    outputs: Option<Mat<f64>>,
}

impl Directions {
    /// Decomposes the products of outputs `[n, d_new]` with each other.
    fn of_outputs(outputs: Mat<f64>) -> Result<Self> {
        let (values, vectors) = eigen(gram(outputs.as_ref()).as_ref(), "low-rank directions")?;
        Ok(Self { values, vectors, outputs: Some(outputs) })
    }

    /// Decomposes the covariance `Wᵀ S W`.
    fn of_moments(moments: &Moments, weight: &Mat<f64>) -> Result<Self> {
        /// Part of S's trace that is added to its diagonal: a direction without variance, of which rounding
        /// leaves something, then has a root all the same.
        const LEAST: f64 = 1e-13;
        if weight.nrows() < weight.ncols() {
            // With S = L Lᵀ the covariance is `Tᵀ T`, `T = Lᵀ W`.
            let mut factor = moments.xx.clone();
            let least = LEAST * (0..factor.nrows()).map(|i| factor[(i, i)]).sum::<f64>() + f64::MIN_POSITIVE;
            for i in 0..factor.nrows() {
                factor[(i, i)] += least;
            }
            factorise(&mut factor, "low-rank directions")?;
            let mut outputs = Mat::zeros(weight.nrows(), weight.ncols());
            triangular::matmul(
                outputs.as_mut(),
                BlockStructure::Rectangular,
                Accum::Replace,
                factor.transpose(),
                BlockStructure::TriangularUpper,
                weight.as_ref(),
                BlockStructure::Rectangular,
                1.0,
                Par::Seq,
            );
            return Self::of_outputs(outputs);
        }
        let covariance = product(weight.transpose(), product(moments.xx.as_ref(), weight.as_ref()).as_ref());
        let (values, vectors) = eigen(covariance.as_ref(), "low-rank directions")?;
        Ok(Self { values, vectors, outputs: None })
    }

    /// Counts the directions; outputs that do not vary have one all the same, which is zero.
    fn count(&self) -> usize {
        /// Part of the largest eigenvalue below which a direction is rounding noise.
        const LEAST: f64 = 1e-12;
        let Some(outputs) = &self.outputs else { return self.values.len() };
        let largest = self.values.last().copied().unwrap_or(0.0);
        let count = self.values.iter().filter(|&&value| value > LEAST * largest).count();
        count.clamp(1, outputs.ncols().max(1))
    }

    /// Returns the first `rank` of them, the largest eigenvalue first: `[d_new, up to rank]`.
    fn leading(&self, rank: usize) -> Mat<f64> {
        let (last, count) = (self.values.len(), self.count().min(rank));
        let Some(outputs) = &self.outputs else {
            return Mat::from_fn(last, count, |i, j| self.vectors[(i, last - 1 - j)]);
        };
        let factor = |value: f64| if value > 0.0 { value.sqrt().recip() } else { 0.0 };
        let factors: Vec<f64> = self.values.iter().rev().map(|&value| factor(value)).collect();
        let leading = Mat::from_fn(last, count, |i, j| self.vectors[(i, last - 1 - j)] * factors[j]);
        product(outputs.transpose(), leading.as_ref())
    }
}

/// Measures the rank as [`measured_rank`], with fewer pairs than coordinates.
fn measured_rank_of_few(pairs: &Pairs, seed: u64, settings: Settings, rank_max: usize) -> Result<usize> {
    if pairs.len() < 10 {
        return Ok(rank_max);
    }
    let (held_out, fitted) = parted(&folds(pairs.len(), 5, seed), 0);
    let old = Centred::from_rows(pairs.old().matrix(), settings.scaling);
    let new = Centred::from_rows(pairs.new_vectors().matrix(), InputScaling::AsIs);
    let (among_fitted, across) = ridge::about(&ridge::products(&old), &fitted, &held_out);
    let (targets, means) = ridge::about_fitted(&new, &fitted);
    let coefficients = coefficients_of(among_fitted.clone(), old.rows.ncols(), &targets, settings.penalty)?;
    let directions = Directions::of_outputs(product(among_fitted.as_ref(), coefficients.as_ref()))?;
    let directions = directions.leading(rank_max);
    let along = product(coefficients.as_ref(), directions.as_ref());
    let outputs = product(across.as_ref(), along.as_ref());
    let held_out_targets = Mat::from_fn(held_out.len(), means.len(), |i, j| {
        new.rows[(held_out[i], j)] + new.means[j] - means[j]
    });
    let wanted = product(held_out_targets.as_ref(), directions.as_ref());
    let count = held_out.len() as f64;
    let changes = (0..directions.ncols()).map(|j| {
        (0..held_out.len())
            .map(|i| outputs[(i, j)] * outputs[(i, j)] - 2.0 * outputs[(i, j)] * wanted[(i, j)])
            .sum::<f64>()
            / count
    });
    let of_column = |j: usize| {
        let mean = (0..held_out.len()).map(|i| held_out_targets[(i, j)]).sum::<f64>() / count;
        (0..held_out.len()).map(|i| (held_out_targets[(i, j)] - mean).powi(2)).sum::<f64>() / count
    };
    Ok(smallest_good_rank(changes, (0..held_out_targets.ncols()).map(of_column).sum()).unwrap_or(rank_max))
}

/// Returns the smallest rank whose error is the best one's but for [`TOLERANCE`] of the variance; `changes`
/// are what each direction adds to the error.
fn smallest_good_rank(changes: impl Iterator<Item = f64>, variance: f64) -> Option<usize> {
    let mut error = 0.0;
    let errors: Vec<f64> = changes
        .map(|change| {
            error += change;
            error
        })
        .collect();
    let smallest = errors.iter().copied().fold(f64::INFINITY, f64::min);
    errors.iter().position(|&error| error <= smallest + TOLERANCE * variance).map(|at| at + 1)
}

/// Makes the two layers.
fn through(
    down: &Mat<f64>,
    directions: &Mat<f64>,
    (mean_x, mean_y): (&[f64], &[f64]),
    Settings { scaling, penalty }: Settings,
) -> ClosedForm {
    let rank = down.ncols();
    let down_bias: Vec<f64> =
        (0..rank).map(|j| -(0..down.nrows()).map(|i| down[(i, j)] * mean_x[i]).sum::<f64>()).collect();
    let layers = vec![layer(down.as_ref(), &down_bias), layer(directions.transpose(), mean_y)];
    let choices = BTreeMap::from([
        ("input".into(), scaling_name(scaling)),
        ("penalty".into(), format!("{penalty}")),
        ("rank".into(), rank.to_string()),
    ]);
    ClosedForm { map: Map::from_layers(scaling, layers), choices }
}

/// Fits as [`fit`], with as many pairs as coordinates or more. `rank` chooses the number of dimensions from
/// the settings and the largest rank.
fn fit_many(
    pairs: &Pairs,
    rank: impl FnOnce(Settings, usize) -> Result<usize> + Send,
    progress: &Progress,
) -> Result<ClosedForm> {
    let (scaling, (solution, moments)) = best_scaling(pairs, None, |moments| {
        progress.check()?;
        let solution = solve(moments, &PENALTIES)?;
        Ok((solution.score, (solution, moments.clone())))
    })?;
    let settings = Settings { scaling, penalty: solution.penalty };
    let rank_max = pairs.old().dimension().min(pairs.new_vectors().dimension());
    let (rank, directions) =
        rayon::join(|| rank(settings, rank_max), || Directions::of_moments(&moments, &solution.weight));
    Ok(through_many(&moments, &solution.weight, &directions?.leading(rank?), settings))
}

fn through_many(
    moments: &Moments,
    weight: &Mat<f64>,
    directions: &Mat<f64>,
    settings: Settings,
) -> ClosedForm {
    let down = product(weight.as_ref(), directions.as_ref());
    through(&down, directions, (&moments.mean_x, &moments.mean_y), settings)
}

/// Measures the rank that does best on a held-out fifth (within [`TOLERANCE`]); the full rank where there are
/// too few pairs to ask.
fn measured_rank(pairs: &Pairs, seed: u64, settings: Settings, rank_max: usize) -> Result<usize> {
    if pairs.len() < 10 {
        return Ok(rank_max);
    }
    let (held_out, fitted) = parted(&folds(pairs.len(), 5, seed), 0);
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    let moments = |rows: &[usize]| Moments::from_pairs(old, new, Some(rows), settings.scaling);
    let (fitted, held_out) = (moments(&fitted), moments(&held_out));
    let weight = weight_of(&fitted, settings.penalty)?;
    let directions = Directions::of_moments(&fitted, &weight)?.leading(rank_max);
    let down = product(weight.as_ref(), directions.as_ref());
    // On held-out pairs about the fitted means, direction j changes the squared error by E⟨down_j, x⟩² − 2
    // E⟨down_j, x⟩⟨v_j, y⟩.
    let offset = |held_out: &[f64], fitted: &[f64]| -> Vec<f64> {
        held_out.iter().zip(fitted).map(|(a, b)| a - b).collect()
    };
    let (off_x, off_y) = (offset(&held_out.mean_x, &fitted.mean_x), offset(&held_out.mean_y, &fitted.mean_y));
    let spread = product(held_out.xx.as_ref(), down.as_ref());
    let shared = product(held_out.xy.as_ref(), directions.as_ref());
    let changes = (0..directions.ncols()).map(|j| {
        let dot =
            |column: &dyn Fn(usize) -> f64, n: usize| (0..n).map(|i| down[(i, j)] * column(i)).sum::<f64>();
        let mean_x: f64 = dot(&|i| off_x[i], down.nrows());
        let mean_y: f64 = (0..off_y.len()).map(|i| directions[(i, j)] * off_y[i]).sum();
        let square = dot(&|i| spread[(i, j)], down.nrows()) + mean_x * mean_x;
        let product = dot(&|i| shared[(i, j)], down.nrows()) + mean_x * mean_y;
        square - 2.0 * product
    });
    Ok(smallest_good_rank(changes, held_out.yy).unwrap_or(rank_max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, largest_difference, pairs, random_matrix};
    use rehang_core::Matrix;

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
    fn fewer_pairs_than_coordinates_give_what_the_covariance_gives() {
        let latent = random_matrix(60, 4, 1);
        let (noise_old, noise_new) = (random_matrix(60, 70, 2), random_matrix(60, 9, 3));
        let (old, new) = (
            affine(&latent, &random_matrix(70, 4, 4), &[0.3; 70]),
            affine(&latent, &random_matrix(9, 4, 5), &[1.0; 9]),
        );
        let old = Matrix::from_fn(60, 70, |r, c| old.row(r)[c] + 0.3 * noise_old.row(r)[c]);
        let new = Matrix::from_fn(60, 9, |r, c| new.row(r)[c] + 0.5 * noise_new.row(r)[c]);
        let data = pairs(old.clone(), new, None);
        for seed in 0..3 {
            let slow = |settings, rank_max| measured_rank(&data, seed, settings, rank_max);
            let slow = fit_many(&data, slow, &Progress::default()).unwrap();
            let fast = fit(&data, seed, &Progress::default()).unwrap();
            assert_eq!(fast.choices, slow.choices);
            let [fast, slow] = [fast, slow].map(|fitted| fitted.map.outputs(&old, None).unwrap());
            assert!(largest_difference(&fast, &slow) < 1e-4);
        }
    }

    #[test]
    fn at_full_rank_it_is_ridge() {
        for (d_old, d_new) in [(5, 5), (5, 9), (9, 5)] {
            let (old, new) = (random_matrix(300, d_old, 5), random_matrix(300, d_new, 6));
            let data = pairs(old.clone(), new, None);
            let low = fit_many(&data, |_, rank_max| Ok(rank_max), &Progress::default());
            let full = super::super::ridge::fit(&data, &Progress::default());
            let low = low.unwrap().map.outputs(&old, None).unwrap();
            let full = full.unwrap().map.outputs(&old, None).unwrap();
            assert!(largest_difference(&low, &full) < 1e-4);
        }
    }
}
