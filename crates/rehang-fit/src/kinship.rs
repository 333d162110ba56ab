//! Tells by the vectors alone whether they are of two models.
//!
//! Two spaces that were trained apart share no axes: the covariance of one says nothing of the other's. Their
//! kinship `tr(Σ₁Σ₂) − tr Σ₁ tr Σ₂ / d`, as a part of what halves of either have with each other, is then 0
//! but for chance. Two topics of one model share some of its axes. So the vectors are split in two where they
//! have least to do with each other, and the split is judged by the kinship of its sides.
//!
//! Two models that share their axes are not seen: a model and a rotation of itself within its leading axes,
//! another prompt, a version trained on. Counts of words have topics without a common axis. There each side
//! falls apart in turn, which the sides of two models do not.

use faer::Mat;
use rehang_core::{Matrix, Progress, Result, norm};

use crate::folds::shuffled;
use crate::kinds::leading;
use crate::linear_algebra::{gram, product};

/// Number of vectors below which nobody looks for two models.
pub const KINSHIP_MIN: usize = 400;
/// Number of coordinates below which nobody looks for two models: sides of narrower vectors may share no axes
/// by chance.
pub const KINSHIP_WIDTH_MIN: usize = 32;
/// Largest number of vectors that are looked at; `COORDINATES_MAX` is that of the coordinates of each.
const VECTORS_MAX: usize = 1_500;
const COORDINATES_MAX: usize = 512;
/// Smallest number of vectors of a kind, in each half.
const KIND_MIN: usize = 15;
/// Number of vectors from which on a side is split in turn.
const SIDE_MIN: usize = 200;
/// Largest kinship of two models (*across* in laboratory/bench/runs/identify.md).
const ACROSS_MAX: f64 = 0.2;
/// Smallest kinship of the sides of one model (*within* in laboratory/bench/runs/identify.md).
const WITHIN_MIN: f64 = 0.2;
/// Smallest excess of a covariance over that of a ball, `d ‖Σ‖² / (tr Σ)² − 1`, for axes to be spoken of.
const SHAPE_MIN: f64 = 0.2;
const ROUNDS: usize = 5;

/// Two kinds of vectors, with the kinship that tells whether they are of two models.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Kinship {
    /// Whether each vector is of the smaller kind, `[n]`.
    pub small: Vec<bool>,
    /// Kinship of the two kinds: 0 for models that were trained apart, 1 for one model.
    pub across: f64,
    /// Least kinship of the two sides that a kind by itself is split into.
    pub within: f64,
}

impl Kinship {
    /// Returns whether the kinds have so little to do with each other, and each so much with itself, that
    /// they are two models'.
    pub fn is_of_two(&self) -> bool {
        self.across.abs() <= ACROSS_MAX && self.within >= WITHIN_MIN
    }
}

/// Looks for vectors of two models, `[n, d]`. `None` where there is no sign of two, or vectors are fewer than
/// [`KINSHIP_MIN`] or have fewer than 32 coordinates. Lengths are not looked at, nor vectors of length 0,
/// which are of the larger kind.
///
/// 1. A bounded number of vectors is drawn at random. One half of them is split by the cut of the graph of
///    squared cosines, less 1/d, that parts least (Shi and Malik 2000).
/// 2. Each vector of the other half takes the side whose second moments hold more of it. The first half is
///    then split in turn by the moments of the other one.
/// 3. The sides are two kinds where their kinship is at most 0.2, and each that is split in turn falls in two
///    of more than 0.2.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where a decomposition fails, [`rehang_core::ErrorKind::Cancelled`].
pub fn kinship(vectors: &Matrix, seed: u64, progress: &Progress) -> Result<Option<Kinship>> {
    let best_split = split(vectors, seed, progress, |across| across.abs() <= ACROSS_MAX)?;
    Ok(best_split.filter(Kinship::is_of_two))
}

/// Splits any vectors into the two kinds that [`kinship`] judges, whether they are of two models or not.
/// `None` where no two have a shape to compare.
///
/// # Errors
///
/// As [`kinship`].
pub fn kinship_of_any(vectors: &Matrix, seed: u64, progress: &Progress) -> Result<Option<Kinship>> {
    split(vectors, seed, progress, |_| true)
}

/// Splits vectors into two kinds; `None` where their kinship is not to be looked at further.
fn split(
    vectors: &Matrix,
    seed: u64,
    progress: &Progress,
    may_be_two: impl Fn(f64) -> bool,
) -> Result<Option<Kinship>> {
    let d = vectors.columns().min(COORDINATES_MAX);
    if d < KINSHIP_WIDTH_MIN {
        return Ok(None);
    }
    let mut rows = shuffled(vectors.rows(), seed ^ 0x6b69_6e73);
    rows.retain(|&row| norm(&vectors.row(row)[..d]) > 0.0);
    rows.truncate(VECTORS_MAX);
    if rows.len() < KINSHIP_MIN {
        return Ok(None);
    }
    let units = units(vectors, &rows, d);
    let Some(sides) = sides(&units, seed)? else { return Ok(None) };
    let kinds = [false, true].map(|of| rows_where(&units, &sides.second, of));
    let Some(across) = kinship_of_sides(&kinds[0], &kinds[1]) else { return Ok(None) };
    if !may_be_two(across) {
        return Ok(None);
    }
    let mut within = 1.0_f64;
    for kind in kinds.iter().filter(|kind| kind.nrows() >= SIDE_MIN) {
        progress.check()?;
        // A kind that does not fall in two is one kind by all means.
        if let Some(inner) = self::sides(kind, seed)? {
            let parts = [false, true].map(|of| rows_where(kind, &inner.second, of));
            within = within.min(kinship_of_sides(&parts[0], &parts[1]).unwrap_or(0.0));
        }
    }
    let mut small = vec![false; vectors.rows()];
    let all: Vec<usize> = (0..vectors.rows()).collect();
    for block in all.chunks(VECTORS_MAX) {
        progress.check()?;
        for (&row, is_second) in block.iter().zip(sides.belongs_to_second(&self::units(vectors, block, d))) {
            small[row] = is_second;
        }
    }
    if 2 * small.iter().filter(|&&of| of).count() > small.len() {
        for (row, of) in small.iter_mut().enumerate() {
            *of = !*of && norm(&vectors.row(row)[..d]) > 0.0;
        }
    }
    Ok(Some(Kinship { small, across, within }))
}

/// Returns rows at length 1, `[rows, d]`; those of length 0 stay.
fn units(vectors: &Matrix, rows: &[usize], d: usize) -> Mat<f64> {
    let factors: Vec<f64> = rows.iter().map(|&row| norm(&vectors.row(row)[..d])).collect();
    Mat::from_fn(rows.len(), d, |i, j| {
        let value = f64::from(vectors.row(rows[i])[j]);
        if factors[i] > 0.0 { value / factors[i] } else { 0.0 }
    })
}

fn rows_where(rows: &Mat<f64>, which: &[bool], wanted: bool) -> Mat<f64> {
    let rows_of: Vec<usize> = (0..which.len()).filter(|&row| which[row] == wanted).collect();
    Mat::from_fn(rows_of.len(), rows.ncols(), |i, j| rows[(rows_of[i], j)])
}

/// Vectors split in two sides.
struct Sides {
    /// Whether each vector is of the second side.
    second: Vec<bool>,
    /// Second moments of either side, at length 1 and without those of a ball: `[d, d]`.
    moments: [Mat<f64>; 2],
}

impl Sides {
    /// Returns whether the second side holds more of each vector.
    fn belongs_to_second(&self, units: &Mat<f64>) -> Vec<bool> {
        second_holds_more(&self.moments, units)
    }
}

fn second_holds_more(moments: &[Mat<f64>; 2], units: &Mat<f64>) -> Vec<bool> {
    let [first, second] = moments.each_ref().map(|moments| {
        let outputs = product(units.as_ref(), moments.as_ref());
        let held = |i: usize| (0..units.ncols()).map(|j| outputs[(i, j)] * units[(i, j)]).sum::<f64>();
        (0..units.nrows()).map(held).collect::<Vec<f64>>()
    });
    first.iter().zip(&second).map(|(first, second)| second > first).collect()
}

/// Returns the second moments of both sides; `None` where one has too few vectors.
fn moments(units: &Mat<f64>, second: &[bool]) -> Option<[Mat<f64>; 2]> {
    let count = second.iter().filter(|&&of| of).count();
    if count.min(second.len() - count) < KIND_MIN {
        return None;
    }
    Some([false, true].map(|of| {
        let rows = rows_where(units, second, of);
        let mut moments = gram(rows.transpose());
        let d = moments.nrows();
        let level = (0..d).map(|j| moments[(j, j)]).sum::<f64>() / d as f64;
        for j in 0..d {
            moments[(j, j)] -= level;
        }
        let length = moments.norm_l2().max(f64::MIN_POSITIVE);
        Mat::from_fn(d, d, |i, j| moments[(i, j)] / length)
    }))
}

/// Splits vectors in two: each half of them is split by the moments of the other one.
fn sides(units: &Mat<f64>, seed: u64) -> Result<Option<Sides>> {
    let n = units.nrows();
    let halves = [0, 1]
        .map(|first| Mat::from_fn((n - first).div_ceil(2), units.ncols(), |i, j| units[(2 * i + first, j)]));
    let mut first = cut(&halves[0], seed)?;
    for _ in 0..ROUNDS {
        let Some(of_first) = moments(&halves[0], &first) else { return Ok(None) };
        let second = second_holds_more(&of_first, &halves[1]);
        let Some(of_second) = moments(&halves[1], &second) else { return Ok(None) };
        first = second_holds_more(&of_second, &halves[0]);
    }
    let Some(of_first) = moments(&halves[0], &first) else { return Ok(None) };
    let second = second_holds_more(&of_first, &halves[1]);
    let is_second: Vec<bool> =
        (0..n).map(|row| if row % 2 == 0 { first[row / 2] } else { second[row / 2] }).collect();
    Ok(moments(units, &is_second).map(|moments| Sides { second: is_second, moments }))
}

/// Returns which vectors lie behind the normalised cut of least weight, among the cuts along the second
/// eigenvector.
fn cut(units: &Mat<f64>, seed: u64) -> Result<Vec<bool>> {
    const EIGEN_ROUNDS: usize = 40;
    let (n, d) = (units.nrows(), units.ncols());
    let mut weights = gram(units.as_ref());
    for j in 0..n {
        for i in 0..n {
            let weight = (weights[(i, j)].powi(2) - 1.0 / d as f64).max(0.0);
            weights[(i, j)] = if i == j { 0.0 } else { weight };
        }
    }
    let degrees: Vec<f64> = (0..n).map(|j| (0..n).map(|i| weights[(i, j)]).sum::<f64>().max(1e-9)).collect();
    let scaled = Mat::from_fn(n, n, |i, j| weights[(i, j)] / (degrees[i] * degrees[j]).sqrt());
    let times = |v: &Mat<f64>| product(scaled.as_ref(), v.as_ref());
    let (_, vectors) = leading(times, (n, 2), EIGEN_ROUNDS, seed)?;
    let along: Vec<f64> = (0..n).map(|i| vectors[(i, vectors.ncols() - 1)] / degrees[i].sqrt()).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| along[a].total_cmp(&along[b]).then(a.cmp(&b)));
    let total: f64 = degrees.iter().sum();
    let (mut before, mut inner, mut least, mut at) = (0.0, 0.0, f64::INFINITY, n / 2);
    for (place, &item) in order.iter().enumerate() {
        if place >= KIND_MIN && place + KIND_MIN <= n {
            let parted: f64 = before - inner;
            let value = parted / before.max(1e-12) + parted / (total - before).max(1e-12);
            if value < least {
                (least, at) = (value, place);
            }
        }
        before += degrees[item];
        inner += 2.0 * order[..place].iter().map(|&other| weights[(other, item)]).sum::<f64>();
    }
    let mut second = vec![false; n];
    for &item in &order[at..] {
        second[item] = true;
    }
    Ok(second)
}

/// Returns `(tr(Σ₁Σ₂) − tr Σ₁ tr Σ₂ / d) / √(k₁ k₂)`, k being the numerator of two halves of one side, whose
/// noise is independent; `None` where a side has no shape to compare.
fn kinship_of_sides(first: &Mat<f64>, second: &Mat<f64>) -> Option<f64> {
    let within_side = |rows: &Mat<f64>| {
        let which: Vec<bool> = (0..rows.nrows()).map(|row| row % 2 == 1).collect();
        let halves = [false, true].map(|of| covariance(&rows_where(rows, &which, of)));
        let shape = shared(&halves[0], &halves[1]);
        (shape.1 > SHAPE_MIN).then_some(shape.0)
    };
    let across = shared(&covariance(first), &covariance(second)).0;
    Some(across / (within_side(first)? * within_side(second)?).sqrt())
}

/// Returns what two covariances share beyond chance, and that as a part of chance.
fn shared(first: &Mat<f64>, second: &Mat<f64>) -> (f64, f64) {
    let d = first.nrows();
    let trace = |of: &Mat<f64>| (0..d).map(|j| of[(j, j)]).sum::<f64>();
    let common: f64 = (0..d).map(|j| (0..d).map(|i| first[(i, j)] * second[(i, j)]).sum::<f64>()).sum();
    let chance = trace(first) * trace(second) / d as f64;
    (common - chance, (common - chance) / chance.max(f64::MIN_POSITIVE))
}

fn covariance(rows: &Mat<f64>) -> Mat<f64> {
    let (n, d) = (rows.nrows(), rows.ncols());
    let means: Vec<f64> = (0..d).map(|j| (0..n).map(|i| rows[(i, j)]).sum::<f64>() / n as f64).collect();
    let centred = Mat::from_fn(n, d, |i, j| rows[(i, j)] - means[j]);
    let products = gram(centred.transpose());
    Mat::from_fn(d, d, |i, j| products[(i, j)] / (n as f64 - 1.0).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::random_matrix;

    /// Makes items of ten topics, all of which have some of the same few axes, along which they are spread:
    /// as encoders have it.
    fn model(n: usize, seed: u64) -> Matrix {
        let (axes, centres) = (random_matrix(12, 48, seed), random_matrix(10, 12, seed + 1));
        let within = random_matrix(n, 12, seed + 2);
        Matrix::from_fn(n, 48, |row, column| {
            (0..12)
                .map(|axis| {
                    (0.5 * centres.row(row % 10)[axis] + within.row(row)[axis]) * axes.row(axis)[column]
                })
                .sum()
        })
    }

    fn looked_at(vectors: &Matrix) -> Option<Kinship> {
        kinship(vectors, 0, &Progress::default()).unwrap()
    }

    #[test]
    fn two_models_are_told_vector_by_vector() {
        let (one, other) = (model(1000, 1), model(1000, 50));
        for every in [2, 10, 20] {
            let is_other = |row: usize| row.is_multiple_of(every);
            let mixed = Matrix::from_fn(1000, 48, |row, column| {
                if is_other(row) { other.row(row)[column] } else { one.row(row)[column] }
            });
            let kinds = looked_at(&mixed).unwrap();
            assert!(
                kinds.across.abs() <= ACROSS_MAX && kinds.within > 0.3,
                "{} {}",
                kinds.across,
                kinds.within
            );
            let right = (0..1000).filter(|&row| kinds.small[row] == is_other(row)).count();
            assert!(right.max(if every == 2 { 1000 - right } else { 0 }) > 980, "{every}: {right}");
        }
    }

    #[test]
    fn one_model_is_passed_in_silence_and_so_are_vectors_without_a_shape() {
        for seed in [1, 20, 90] {
            assert!(looked_at(&model(900, seed)).is_none());
        }
        assert!(looked_at(&random_matrix(900, 48, 3)).is_none());
        assert!(looked_at(&Matrix::from_fn(900, 8, |_, _| 0.0)).is_none());
        assert!(looked_at(&Matrix::from_fn(900, 8, |_, _| 1.0)).is_none());
        assert!(looked_at(&model(KINSHIP_MIN - 1, 1)).is_none());
    }

    /// Linear maps of anything into few coordinates have sides without a common axis by chance: up to 12 of
    /// 20 seeds in 8 coordinates, 3 of 20 in 16.
    #[test]
    fn few_coordinates_are_not_looked_at_and_of_more_one_model_is_passed_in_silence() {
        for (d, latent) in [(4, 6), (8, 6), (8, 10), (16, 40), (32, 6), (32, 16), (32, 40)] {
            for seed in 0..20 {
                let (axes, items) =
                    (random_matrix(latent, d, 3 * seed), random_matrix(400, latent, 3 * seed + 1));
                let vectors = Matrix::from_fn(400, d, |row, column| {
                    (0..latent).map(|axis| items.row(row)[axis] * axes.row(axis)[column]).sum()
                });
                assert!(looked_at(&vectors).is_none(), "{d} of {latent}, {seed}");
            }
        }
    }
}
