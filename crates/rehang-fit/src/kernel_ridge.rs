//! Kernel ridge regression: the closed form of a non-linear map.
//!
//! `raw(o) = m + Σ_j a_j · exp(−γ‖x − x_j‖² / s²)`, where x is the scaled old vector, x_j those of the pairs
//! (the *centres*), m the mean new vector, and s² the total variance of the x_j, which makes γ free of units.
//! The coefficients solve `(K + λ I) A = V − m` (Schölkopf & Smola, *Learning with Kernels*, 2002, §4; the
//! same numbers as the mean of a Gaussian process).
//!
//! On every gallery measured it matches the mixer network at a hundredth of its cost. Its **leave-one-out**
//! predictions are exact and free, so that σ² is learned from honest residuals without a single refit.
//!
//! Some rows g are left out: one pair, or a whole group (a class the adapter never saw). With P = (K + λI)⁻¹
//! and m fixed, what is left of v_g is `P_gg⁻¹ a_g` (Wahba 1990). The mean leaves with them: without n_g of n
//! rows it moves by `−n_g ȳ_g / (n − n_g)`, where y = v − m. A map that falls back to the mean everywhere but
//! near its centres moves by that times what is left of a constant, `P_gg⁻¹ (P 1)_g`. So the residual is
//! `P_gg⁻¹ (a_g + n_g/(n − n_g) · (P 1)_g ȳ_gᵀ)`.
//!
//! # Large sets of pairs
//!
//! Above [`EXACT_PAIRS_MAX`] pairs, a seeded choice of [`CENTRES_MAX`] of them become centres. The
//! least-squares problem over all pairs (at most 32,768 of them) is solved on these (Nyström, "subset of
//! regressors": Smola & Schölkopf 2000). Residuals are then those of the centres' own leave-one-out fit.

use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, Mat, MatRef, Par};
use rand::seq::index;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rehang_core::adapter::{Dense, InputScaling, KernelExpansion, Map};
use rehang_core::{Error, Matrix, Progress, Result};

use crate::linear_algebra::{column_means, factorise, gram, product, scaled, solve_factorised, sum_blocks};
use crate::objectives::squared::total_variance;

/// Largest number of pairs of which every one is a centre (solving takes about 2.4 GB there).
pub const EXACT_PAIRS_MAX: usize = 10_000;
/// Number of centres that are kept of a larger set of pairs.
pub const CENTRES_MAX: usize = 4_096;
/// Largest number of pairs that the coefficients of a larger set are solved on: more change the map little
/// and cost time in proportion.
const SOLVED_PAIRS_MAX: usize = 32_768;
/// Largest number of pairs on which γ and λ are chosen; both are free of units and hardly move with the
/// number of pairs.
const SELECTION_PAIRS_MAX: usize = 2_000;
/// Number of coordinates of the new vectors that γ and λ are chosen on; wider vectors are replaced by so many
/// random combinations. The squared length of a residual is kept in the mean, and over r directions of n
/// residuals to a part √(2 / (128 r)), 2 % where r is 50, for all settings alike.
const SELECTION_COORDINATES_MAX: usize = 128;
/// Grid of γ (per total variance of the old vectors).
const GAMMAS: [f64; 4] = [0.125, 0.25, 0.5, 1.0];
/// Grid of λ (the kernel is 1 at distance 0).
const LAMBDAS: [f64; 4] = [0.01, 0.03, 0.1, 0.3];
/// Number of columns of a right-hand side that are solved together; independent of the number of threads.
const SOLVE_COLUMNS: usize = 64;

/// A fitted kernel map with all that leave-one-out needs.
#[derive(Debug, Clone)]
pub struct KernelRidge {
    /// Kernel map itself.
    pub map: Map,
    /// γ, chosen on leave-one-out errors.
    pub gamma: f64,
    /// λ, chosen on leave-one-out errors.
    pub lambda: f64,
    /// Rows of the pairs that are centres.
    pub centres: Vec<usize>,
    /// System of the centres alone, from which leave-one-out comes.
    system: System,
}

impl KernelRidge {
    /// Returns the outputs that the map would have given for every centre had the centre not been among the
    /// pairs: `[m, d_new]`, raw outputs.
    ///
    /// `new` are the new vectors of the centres, in the order of [`KernelRidge::centres`].
    pub fn leave_one_out(&self, new: &Matrix) -> Matrix {
        let residuals: Vec<Vec<f64>> =
            (0..new.rows()).into_par_iter().map(|row| self.system.residual(row, new)).collect();
        Matrix::from_fn(new.rows(), new.columns(), |row, column| {
            (f64::from(new.row(row)[column]) - residuals[row][column]) as f32
        })
    }

    /// Returns the outputs that the map would have given for every centre had the centre's whole group not
    /// been among the pairs.
    ///
    /// `groups[i]` is the group of centre i; this is how the map does on classes that it never saw. γ, s² and
    /// λ stay as they are. Where all centres are of one group, the answer is the mean of all.
    pub fn leave_group_out(&self, new: &Matrix, groups: &[usize]) -> Matrix {
        let members = members(groups);
        let residuals: Vec<Mat<f64>> =
            members.par_iter().map(|rows| self.system.group_residual(rows, new)).collect();
        let mut predictions = new.clone();
        for (rows, residual) in members.iter().zip(&residuals) {
            for (position, &row) in rows.iter().enumerate() {
                for (column, value) in predictions.row_mut(row).iter_mut().enumerate() {
                    *value = (f64::from(*value) - residual[(position, column)]) as f32;
                }
            }
        }
        predictions
    }
}

/// Fits a kernel map from old vectors `[n, d_old]` to new ones `[n, d_new]`.
///
/// γ and λ minimise the leave-one-out error plus, where `groups` (a class or a cluster of every pair) are
/// given, the leave-group-out error: a gallery holds items like the pairs and items unlike any of them.
///
/// Zero vectors are ordinary inputs. The result does not depend on the number of threads.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Empty`] without pairs, [`rehang_core::ErrorKind::Diverged`] where the kernel matrix cannot
/// be factorised, [`rehang_core::ErrorKind::Cancelled`] on request.
pub fn fit_kernel_ridge(
    old: &Matrix,
    new: &Matrix,
    groups: Option<&[usize]>,
    scaling: InputScaling,
    seed: u64,
    progress: &Progress,
) -> Result<KernelRidge> {
    let n = old.rows();
    if n == 0 {
        return Err(Error::empty("pairs"));
    }
    let scaled = scaled(old, scaling);
    let variance = total_variance(&scaled);
    if variance <= f64::from(f32::EPSILON).powi(2) {
        return Err(Error::option("old vectors", "all of one direction", "at least two that differ"));
    }
    let mean = column_means(new);
    progress.begin("choosing the kernel", "settings", (GAMMAS.len() * LAMBDAS.len()) as u64);
    let subset = sample(n, SELECTION_PAIRS_MAX, seed);
    let subset_groups = groups.map(|groups| subset.iter().map(|&row| groups[row]).collect::<Vec<_>>());
    let targets = combined(&new.select(&subset), &mean, seed ^ 3);
    let subset = scaled.select(&subset);
    let settings = choose(&subset, &targets, subset_groups.as_deref(), variance, progress)?;
    solved((&scaled, scaling), new, settings, seed, progress)
}

/// Solves the kernel map of scaled old vectors with a known γ and λ.
pub(crate) fn solved(
    (scaled, scaling): (&Matrix, InputScaling),
    new: &Matrix,
    (gamma, lambda): (f64, f64),
    seed: u64,
    progress: &Progress,
) -> Result<KernelRidge> {
    let (n, variance, mean) = (scaled.rows(), total_variance(scaled), column_means(new));
    let centres = if n <= EXACT_PAIRS_MAX { (0..n).collect() } else { sample(n, CENTRES_MAX, seed ^ 1) };
    progress.begin("solving the kernel system", "steps", 3);
    let x = scaled.select(&centres);
    let kernel = kernel_of(squared_distances(&x, &x), gamma / variance);
    let system = System::solve(kernel, &new.select(&centres), &mean, lambda, progress)?;
    progress.advance(2);
    progress.check()?;
    let coefficients = if centres.len() == n {
        system.coefficients.clone()
    } else {
        let rows = sample(n, SOLVED_PAIRS_MAX, seed ^ 2);
        let pairs = (&scaled.select(&rows), &new.select(&rows));
        nystrom(pairs, &x, &mean, (gamma / variance, lambda), progress)?
    };
    progress.advance(1);
    let constant = Dense {
        weight: Matrix::zeros(new.columns(), scaled.columns()),
        bias: mean.iter().map(|&value| value as f32).collect(),
        relu: false,
    };
    let map = Map {
        kernel: Some(KernelExpansion {
            centres: x,
            coefficients: Matrix::from_fn(centres.len(), new.columns(), |row, column| {
                coefficients[(row, column)] as f32
            }),
            gamma: (gamma / variance) as f32,
        }),
        ..Map::from_layers(scaling, vec![constant])
    };
    Ok(KernelRidge { map, gamma, lambda, centres, system })
}

/// Centres new vectors about a mean. Where they have more coordinates than [`SELECTION_COORDINATES_MAX`], it
/// returns sums of these with random signs.
fn combined(new: &Matrix, mean: &[f64], seed: u64) -> Matrix {
    let (n, d) = (new.rows(), new.columns());
    if d <= SELECTION_COORDINATES_MAX {
        return Matrix::from_fn(n, d, |row, column| (f64::from(new.row(row)[column]) - mean[column]) as f32);
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let factor = (SELECTION_COORDINATES_MAX as f64).sqrt().recip();
    let signs =
        Mat::from_fn(
            d,
            SELECTION_COORDINATES_MAX,
            |_, _| {
                if random.random::<bool>() { factor } else { -factor }
            },
        );
    let about = Mat::from_fn(n, d, |row, column| f64::from(new.row(row)[column]) - mean[column]);
    let combined = product(about.as_ref(), signs.as_ref());
    Matrix::from_fn(n, SELECTION_COORDINATES_MAX, |row, column| combined[(row, column)] as f32)
}

/// Chooses the (γ, λ) of the grid with the smallest error; the smoother one where two are equal. `v` are new
/// vectors about their mean.
fn choose(
    x: &Matrix,
    v: &Matrix,
    groups: Option<&[usize]>,
    variance: f64,
    progress: &Progress,
) -> Result<(f64, f64)> {
    let mean = vec![0.0; v.columns()];
    // Every γ is twice the one before it, and its kernel is the square of the kernel before it.
    let mut kernels = vec![kernel_of(squared_distances(x, x), GAMMAS[0] / variance)];
    while kernels.len() < GAMMAS.len() {
        let last = &kernels[kernels.len() - 1];
        kernels.push(Mat::from_fn(last.nrows(), last.ncols(), |i, j| last[(i, j)] * last[(i, j)]));
    }
    let settings: Vec<(usize, f64)> = (0..GAMMAS.len())
        .flat_map(|gamma| LAMBDAS.iter().rev().map(move |&lambda| (gamma, lambda)))
        .collect();
    let errors: Vec<Result<f64>> = settings
        .par_iter()
        .map(|&(gamma, lambda)| {
            progress.check()?;
            let system = System::solve(kernels[gamma].clone(), v, &mean, lambda, progress)?;
            let mut error: f64 = (0..x.rows())
                .map(|row| system.residual(row, v).iter().map(|value| value * value).sum::<f64>())
                .sum();
            for rows in groups.map(members).unwrap_or_default() {
                error += system.group_residual(&rows, v).squared_norm_l2();
            }
            progress.advance(1);
            Ok(error)
        })
        .collect();
    let mut best = (f64::INFINITY, settings[0]);
    for (error, &setting) in errors.into_iter().zip(&settings) {
        let error = error?;
        if error < best.0 {
            best = (error, setting);
        }
    }
    let (gamma, lambda) = best.1;
    Ok((GAMMAS[gamma], lambda))
}

/// Turns squared distances into the kernel K, below the diagonal and on it; distances above stay.
fn kernel_of(mut distances: Mat<f64>, gamma: f64) -> Mat<f64> {
    distances.as_mut().par_col_chunks_mut(SOLVE_COLUMNS).enumerate().for_each(|(chunk, mut block)| {
        for column in 0..block.ncols() {
            for row in chunk * SOLVE_COLUMNS + column..block.nrows() {
                block[(row, column)] = (-gamma * block[(row, column)]).exp();
            }
        }
    });
    distances
}

/// Lists the rows of every group, by group number.
fn members(groups: &[usize]) -> Vec<Vec<usize>> {
    let mut members = vec![Vec::new(); groups.iter().max().map_or(0, |largest| largest + 1)];
    for (row, &group) in groups.iter().enumerate() {
        members[group].push(row);
    }
    members
}

/// The solved system `(K + λI) A = V − m` of one set of centres.
#[derive(Debug, Clone)]
struct System {
    /// `L⁻¹` of `K + λI = L Lᵀ`.
    inverse_factor: Mat<f64>,
    /// Coefficients A, `[m, d_new]`.
    coefficients: Mat<f64>,
    /// `(K + λI)⁻¹ 1`, `[m, 1]`: the coefficients of a constant.
    constant: Mat<f64>,
    /// Mean new vector m, `[d_new]`.
    mean: Vec<f64>,
}

impl System {
    /// Solves the system of a kernel K, whose lower triangle is read from `factor`.
    fn solve(
        mut factor: Mat<f64>,
        v: &Matrix,
        mean: &[f64],
        lambda: f64,
        progress: &Progress,
    ) -> Result<Self> {
        let m = factor.nrows();
        for i in 0..m {
            factor[(i, i)] += lambda;
        }
        factorise(&mut factor, "the kernel matrix")?;
        let inverse_factor = inverse_of_lower(&factor, progress)?;
        drop(factor);
        let targets =
            Mat::from_fn(m, v.columns(), |row, column| f64::from(v.row(row)[column]) - mean[column]);
        let solved = |right: &Mat<f64>| {
            let inverse = inverse_factor.as_ref();
            let lower = BlockStructure::TriangularLower;
            let whitened = triangular_by_columns(inverse, lower, right.as_ref(), progress)?;
            let inverse = inverse.transpose();
            triangular_by_columns(inverse, BlockStructure::TriangularUpper, whitened.as_ref(), progress)
        };
        let (coefficients, constant) = (solved(&targets)?, solved(&Mat::from_fn(m, 1, |_, _| 1.0))?);
        Ok(Self { inverse_factor, coefficients, constant, mean: mean.to_vec() })
    }

    /// Returns how far the mean moves for every unit of its group's mean when `left_out` rows leave:
    /// `n_g / (n − n_g)`, and 0 where none would stay.
    fn pull(&self, left_out: usize) -> f64 {
        let stay = self.inverse_factor.nrows() - left_out;
        if stay == 0 { 0.0 } else { left_out as f64 / stay as f64 }
    }

    /// Returns what is left of the new vector of one row when that row is left out, `[d_new]`; `v` are the
    /// new vectors of all rows.
    fn residual(&self, row: usize, v: &Matrix) -> Vec<f64> {
        let (precision, pull) = (self.precision(row), self.pull(1) * self.constant[(row, 0)]);
        let deviations = v.row(row).iter().zip(&self.mean).map(|(&value, mean)| f64::from(value) - mean);
        deviations
            .enumerate()
            .map(|(column, deviation)| (self.coefficients[(row, column)] + pull * deviation) / precision)
            .collect()
    }

    /// Returns `[(K + λI)⁻¹]_ii`: the squared length of a column of `L⁻¹`.
    fn precision(&self, row: usize) -> f64 {
        (row..self.inverse_factor.nrows()).map(|k| self.inverse_factor[(k, row)].powi(2)).sum()
    }

    /// Returns what is left of the new vectors of one group when all its rows are left out: `[|g|, d_new]`.
    fn group_residual(&self, rows: &[usize], v: &Matrix) -> Mat<f64> {
        let inverse = &self.inverse_factor;
        let size = rows.len();
        let columns = Mat::from_fn(inverse.nrows(), size, |row, i| inverse[(row, rows[i])]);
        let mut block = gram(columns.transpose());
        let pull = self.pull(size) / size.max(1) as f64;
        let moved: Vec<f64> = (0..v.columns())
            .map(|column| {
                pull * rows.iter().map(|&row| f64::from(v.row(row)[column]) - self.mean[column]).sum::<f64>()
            })
            .collect();
        let mut residual = Mat::from_fn(size, self.coefficients.ncols(), |i, column| {
            self.coefficients[(rows[i], column)] + self.constant[(rows[i], 0)] * moved[column]
        });
        // The block of a positive definite matrix is positive definite. Rounding is the only way to fail;
        // then the coefficients themselves stay in place (a larger residual than the truth by the diagonal's
        // factor).
        if factorise(&mut block, "the block of a group").is_ok() {
            solve_factorised(&block, &mut residual);
        }
        residual
    }
}

/// Solves for the coefficients on `centres` that minimise `‖V − m − K_nm A‖² + λ tr(Aᵀ K_mm A)` over all
/// pairs.
fn nystrom(
    (scaled, new): (&Matrix, &Matrix),
    centres: &Matrix,
    mean: &[f64],
    (gamma, lambda): (f64, f64),
    progress: &Progress,
) -> Result<Mat<f64>> {
    let m = centres.rows();
    let d_new = new.columns();
    let centre_distances = squared_distances(centres, centres);
    let mut left =
        Mat::from_fn(m, m, |row, column| lambda * (-gamma * centre_distances[(row, column)]).exp());
    let mut right = Mat::<f64>::zeros(m, d_new);
    sum_blocks(
        scaled.rows(),
        |start, end| {
            // A stop that was asked for adds no further blocks.
            let end = if progress.check().is_ok() { end } else { start };
            let rows: Vec<usize> = (start..end).collect();
            let distances = squared_distances(&scaled.select(&rows), centres);
            let kernel = Mat::from_fn(rows.len(), m, |row, column| (-gamma * distances[(row, column)]).exp());
            let targets = Mat::from_fn(rows.len(), d_new, |row, column| {
                f64::from(new.row(rows[row])[column]) - mean[column]
            });
            (gram(kernel.transpose()), product(kernel.transpose(), targets.as_ref()))
        },
        |(gram, cross)| {
            left += gram;
            right += cross;
        },
    );
    progress.check()?;
    // Neighbouring centres make nearly equal rows; a tiny ridge relative to the diagonal keeps the factor
    // real.
    let jitter = 1e-9 * (0..m).map(|i| left[(i, i)]).sum::<f64>() / m as f64;
    for i in 0..m {
        left[(i, i)] += jitter;
    }
    factorise(&mut left, "the Nyström system")?;
    solve_factorised(&left, &mut right);
    Ok(right)
}

/// Returns `L⁻¹` of a lower triangular factor: columns are solved in blocks of a fixed width, in parallel.
fn inverse_of_lower(factor: &Mat<f64>, progress: &Progress) -> Result<Mat<f64>> {
    let n = factor.nrows();
    let mut inverse = Mat::<f64>::zeros(n, n);
    inverse.as_mut().par_col_chunks_mut(SOLVE_COLUMNS).enumerate().for_each(|(chunk, mut block)| {
        if progress.check().is_err() {
            return;
        }
        let first = chunk * SOLVE_COLUMNS;
        for column in 0..block.ncols() {
            block[(first + column, column)] = 1.0;
        }
        // Rows above the first column of the block are zero and stay zero.
        let lower_rows = block.subrows_mut(first, n - first);
        solve_lower_triangular_in_place(
            factor.as_ref().submatrix(first, first, n - first, n - first),
            lower_rows,
            Par::Seq,
        );
    });
    progress.check()?;
    Ok(inverse)
}

/// Multiplies as [`product`] does, with a triangular `a`.
fn triangular_by_columns(
    a: MatRef<'_, f64>,
    structure: BlockStructure,
    b: MatRef<'_, f64>,
    progress: &Progress,
) -> Result<Mat<f64>> {
    let mut result = Mat::<f64>::zeros(a.nrows(), b.ncols());
    let chunks = result.as_mut().par_col_chunks_mut(SOLVE_COLUMNS).zip(b.par_col_chunks(SOLVE_COLUMNS));
    chunks.for_each(|(target, columns)| {
        if progress.check().is_err() {
            return;
        }
        let full = BlockStructure::Rectangular;
        triangular::matmul(target, full, Accum::Replace, a, structure, columns, full, 1.0, Par::Seq);
    });
    progress.check()?;
    Ok(result)
}

/// Returns `‖a_i − b_j‖²` of all rows, `[rows of a, rows of b]`, never below 0.
fn squared_distances(a: &Matrix, b: &Matrix) -> Mat<f64> {
    let wide =
        |matrix: &Matrix| -> Vec<f64> { matrix.as_slice().iter().map(|&value| f64::from(value)).collect() };
    let (left, right) = (wide(a), wide(b));
    let d = a.columns();
    let squares = |values: &[f64]| -> Vec<f64> {
        values.chunks_exact(d.max(1)).map(|row| row.iter().map(|value| value * value).sum()).collect()
    };
    let (left_squares, right_squares) = (squares(&left), squares(&right));
    let mut distances = product(
        MatRef::from_row_major_slice(&left, a.rows(), d),
        MatRef::from_row_major_slice(&right, b.rows(), d).transpose(),
    );
    distances.as_mut().par_col_chunks_mut(SOLVE_COLUMNS).enumerate().for_each(|(chunk, mut block)| {
        for column in 0..block.ncols() {
            let right_square = right_squares[chunk * SOLVE_COLUMNS + column];
            for row in 0..block.nrows() {
                block[(row, column)] =
                    (left_squares[row] + right_square - 2.0 * block[(row, column)]).max(0.0);
            }
        }
    });
    distances
}

/// Draws a seeded choice of at most `most` of `n` rows, in increasing order.
fn sample(n: usize, most: usize, seed: u64) -> Vec<usize> {
    if n <= most {
        return (0..n).collect();
    }
    let mut rows = index::sample(&mut ChaCha8Rng::seed_from_u64(seed), n, most).into_vec();
    rows.sort_unstable();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::random_matrix;

    /// Makes random vectors and a smooth non-linear function of them.
    fn curved(n: usize, seed: u64) -> (Matrix, Matrix) {
        let old = random_matrix(n, 3, seed);
        let new = Matrix::from_fn(n, 2, |row, column| {
            let x = old.row(row);
            if column == 0 { (2.0 * x[0]).sin() + x[1] } else { x[1] * x[2] }
        });
        (old, new)
    }

    /// Evaluates the map by its formula.
    fn slow(map: &Map, old: &[f32]) -> Vec<f64> {
        let kernel = map.kernel.as_ref().unwrap();
        let mut output: Vec<f64> = map.mixer[0].bias.iter().map(|&value| f64::from(value)).collect();
        for centre in 0..kernel.centres.rows() {
            let distance: f64 =
                old.iter().zip(kernel.centres.row(centre)).map(|(&a, &b)| f64::from(a - b).powi(2)).sum();
            let weight = (-f64::from(kernel.gamma) * distance).exp();
            for (value, &a) in output.iter_mut().zip(kernel.coefficients.row(centre)) {
                *value += weight * f64::from(a);
            }
        }
        output
    }

    #[test]
    fn leave_one_out_is_what_a_refit_without_the_pair_says() {
        let (old, new) = curved(60, 5);
        let fit = fit_kernel_ridge(&old, &new, None, InputScaling::AsIs, 0, &Progress::default()).unwrap();
        let quick = fit.leave_one_out(&new);
        for left_out in [0, 17, 59] {
            let refit = refit_without(&fit, &old, &new, &[left_out]);
            for column in 0..2 {
                assert!((refit[0][column] - f64::from(quick.row(left_out)[column])).abs() < 1e-4);
            }
        }
    }

    /// Returns the outputs of a map for rows that it is fitted without. It keeps γ/s² and λ of the whole fit.
    fn refit_without(fit: &KernelRidge, old: &Matrix, new: &Matrix, left_out: &[usize]) -> Vec<Vec<f64>> {
        let gamma = f64::from(fit.map.kernel.as_ref().unwrap().gamma);
        let rows: Vec<usize> = (0..old.rows()).filter(|row| !left_out.contains(row)).collect();
        let (x, v) = (old.select(&rows), new.select(&rows));
        let mean = column_means(&v);
        let kernel = kernel_of(squared_distances(&x, &x), gamma);
        let system = System::solve(kernel, &v, &mean, fit.lambda, &Progress::default()).unwrap();
        let to = squared_distances(&old.select(left_out), &x);
        let weight = |row: usize, j: usize| (-gamma * to[(row, j)]).exp();
        let value = |row: usize, column: usize| {
            mean[column]
                + (0..rows.len()).map(|j| weight(row, j) * system.coefficients[(j, column)]).sum::<f64>()
        };
        (0..left_out.len()).map(|row| (0..new.columns()).map(|column| value(row, column)).collect()).collect()
    }

    #[test]
    fn leave_group_out_is_what_a_refit_without_the_group_says() {
        // Groups of 8, 30 and 22 rows, each with a mean of its own, far from the others.
        let (old, near) = curved(60, 11);
        let groups: Vec<usize> = (0..60).map(|row| usize::from(row >= 8) + usize::from(row >= 38)).collect();
        let new = Matrix::from_fn(60, 2, |row, column| near.row(row)[column] + 5.0 * groups[row] as f32);
        let fit = fit_kernel_ridge(&old, &new, Some(&groups), InputScaling::AsIs, 0, &Progress::default());
        let fit = fit.unwrap();
        let quick = fit.leave_group_out(&new, &groups);
        for group in 0..3 {
            let left_out: Vec<usize> = (0..60).filter(|&row| groups[row] == group).collect();
            let refit = refit_without(&fit, &old, &new, &left_out);
            for (row, output) in left_out.iter().zip(refit) {
                for column in 0..2 {
                    let received = f64::from(quick.row(*row)[column]);
                    assert!((output[column] - received).abs() < 1e-3, "{received} for {}", output[column]);
                }
            }
        }
    }

    #[test]
    fn leaving_groups_of_one_out_is_leaving_one_out() {
        let (old, new) = curved(40, 6);
        let fit = fit_kernel_ridge(&old, &new, None, InputScaling::AsIs, 0, &Progress::default()).unwrap();
        let one_out = fit.leave_one_out(&new);
        let groups: Vec<usize> = (0..40).collect();
        let group = fit.leave_group_out(&new, &groups);
        for (a, b) in one_out.as_slice().iter().zip(group.as_slice()) {
            assert!((a - b).abs() < 1e-5);
        }
    }

    #[test]
    fn a_curved_map_is_learned_far_better_than_its_variance() {
        let (old, new) = curved(500, 7);
        let (test_old, test_new) = curved(100, 8);
        let fit = fit_kernel_ridge(&old, &new, None, InputScaling::AsIs, 0, &Progress::default()).unwrap();
        let error: f64 = (0..100)
            .map(|row| {
                slow(&fit.map, test_old.row(row))
                    .iter()
                    .zip(test_new.row(row))
                    .map(|(a, &b)| (a - f64::from(b)).powi(2))
                    .sum::<f64>()
            })
            .sum::<f64>()
            / 100.0;
        assert!(error < 0.05 * total_variance(&test_new), "{error} against {}", total_variance(&test_new));
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_for_any_number_of_threads() {
        let (old, new) = curved(300, 9);
        let with = |threads| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                fit_kernel_ridge(&old, &new, None, InputScaling::UnitLength, 3, &Progress::default()).unwrap()
            })
        };
        assert_eq!(with(1).map, with(3).map);
    }

    #[test]
    fn the_small_system_agrees_with_the_whole_one_when_every_pair_is_a_centre() {
        let (old, new) = curved(120, 10);
        let mean = column_means(&new);
        let distances = squared_distances(&old, &old);
        let full_system =
            System::solve(kernel_of(distances.clone(), 0.5), &new, &mean, 0.1, &Progress::default()).unwrap();
        let small = nystrom((&old, &new), &old, &mean, (0.5, 0.1), &Progress::default()).unwrap();
        let kernel = Mat::from_fn(120, 120, |i, j| (-0.5 * distances[(i, j)]).exp());
        let (a, b) = (&kernel * &full_system.coefficients, &kernel * &small);
        for row in 0..120 {
            assert!((a[(row, 0)] - b[(row, 0)]).abs() < 1e-4);
        }
    }
}
