//! Tells by neighbours whether old vectors are of two kinds, such as those of two models or of queries and
//! passages.
//!
//! Two items that are near each other in the new space are mostly near in the old one too. Where old vectors
//! are of two kinds, that holds for two items of one kind; two of different kinds are no nearer in the old
//! space than any two. Residuals of one map say this only where the map leaves little: between text models
//! the two kinds' residuals run into each other.
//!
//! So the pairs are coloured, by whichever of two maps fits them better. The colours are judged by the
//! neighbours of pairs that had no part in the maps. Sound pairs can be coloured too, since no map is linear
//! everywhere, but then neighbours of different colours are near in the old space, or hardly any neighbours
//! are of different colours.

use faer::Mat;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::InputScaling;
use rehang_core::{Matrix, Pairs, Progress, Result};

use crate::closed_form::{centring_bias, ridge};
use crate::folds::shuffled;
use crate::linear_algebra::{Moments, column_means, eigen, gram, product};

/// Number of pairs below which nobody looks for two kinds. Of 200 sound pairs some sets seemed to be of two
/// kinds; of 400 none did.
pub const KINDS_MIN: usize = 400;
const PAIRS_MAX: usize = 1_500;
/// Number of neighbours of an item in the new space.
const NEIGHBOURS: usize = 6;
/// Number of principal axes of either space; the two maps go from `AXES_OLD` to `AXES_NEW` of them.
const AXES: usize = 128;
const AXES_OLD: usize = 48;
const AXES_NEW: usize = 32;
/// Penalty of the two maps, relative as that of [`ridge`].
const PENALTY: f64 = 1e-2;
/// Smallest number of neighbours that a mean is taken of.
const NEIGHBOURS_MIN: usize = 20;
/// Smallest share of all items that are nearer in the old space than a neighbour of the other kind; ½ is
/// chance.
const ACROSS_MIN: f64 = 0.4;
/// Smallest difference by which fewer items are nearer than a neighbour of the same kind. Sound pairs reached
/// 0.12 at most in twenty splits of each of twenty sets, and none of these reached [`ACROSS_MIN`].
const GAP_MIN: f64 = 0.14;
/// Smallest number of neighbours of different colours, as a part of the number if colours had nothing to do
/// with the new vectors.
const MIXED_MIN: f64 = 0.4;
/// Share of the pairs that the two halves' maps have to colour alike for colours to be told.
const ALIKE_MIN: f64 = 0.8;

/// Two kinds of old vectors that were told apart by neighbours.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Kinds {
    /// Whether each pair is of the smaller kind, `[n]`, where that can be told.
    pub small: Option<Vec<bool>>,
    /// Share of all items that are nearer in the old space than a neighbour of the same kind.
    pub within: f64,
    /// Share of all items that are nearer in the old space than a neighbour of the other kind: about a half.
    pub across: f64,
}

impl Kinds {
    /// Returns the kinds of the pairs `rows`.
    pub(crate) fn select(&self, rows: &[usize]) -> Self {
        let small = self.small.as_ref().map(|small| rows.iter().map(|&row| small[row]).collect());
        Self { small, ..*self }
    }
}

/// Looks for two kinds of old vectors. `None` where there is one, or where pairs are too few to say.
///
/// 1. The pairs are halved at random. Each half is coloured, and judged on the other one.
/// 2. Some colourings to begin with are the signs of leading eigenvectors of `S_new ∘ (S_old − c·S_new)`, S
///    being the similarities of whitened vectors and c the slope between them. An entry is positive for two
///    items where old and new agree more than on the whole. Other colourings are the pairs that one map fits
///    worst.
/// 3. From each colouring, two ridge maps and the colours are fitted in turn until they settle.
/// 4. The pairs of the other half are coloured by these maps. For every neighbour in the new space, the part
///    of the items that are nearer in the old space is taken, each colour's mean removed. `across` is the
///    mean over neighbours of the other colour. `within` is the largest of the means over neighbours of the
///    first colour, of the second one, and of items among others of the other colour that they are far from.
///    The last one is at chance where these items are of no kind, but have wrong new vectors.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where a decomposition fails, [`rehang_core::ErrorKind::Cancelled`].
pub(crate) fn two_kinds(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Option<Kinds>> {
    if pairs.len() < KINDS_MIN {
        return Ok(None);
    }
    let mut order = shuffled(pairs.len(), seed ^ 0x6b69_6e64);
    let in_neither = order.split_off(order.len().min(PAIRS_MAX));
    let second = order.split_off(order.len() / 2);
    let first = order;
    let [old, new] = [pairs.old(), pairs.new_vectors()].map(|vectors| {
        let mut unit = vectors.matrix().clone();
        unit.normalise_rows();
        unit
    });
    let half = |fitted: &[usize], judged: &[usize]| Half::new(&old, &new, fitted, judged);
    let on_first = half(&first, &second)?;
    let Some(by_first) = on_first.coloured(seed, progress)? else { return Ok(None) };
    // The second half would have to say far more than this one.
    if by_first.told.gap() < 0.6 * GAP_MIN {
        return Ok(None);
    }
    let Some(by_second) = half(&second, &first)?.coloured(seed, progress)? else { return Ok(None) };
    let told = by_first.told.mean(&by_second.told);
    if told.across < ACROSS_MIN || told.gap() < GAP_MIN {
        return Ok(None);
    }
    // Each half chooses by itself which colour is which.
    let pairs_of_second = by_first.judged.iter().zip(&by_second.fitted);
    let alike = pairs_of_second.filter(|(a, b)| a == b).count() as f64 / second.len() as f64;
    let is_turned = alike < 0.5;
    let mut kinds = Kinds { small: None, within: told.within, across: told.across };
    if alike.max(1.0 - alike) >= ALIKE_MIN {
        let of_neither = on_first.colours(&by_first.maps, &old.select(&in_neither), &new.select(&in_neither));
        let mut kind = vec![false; pairs.len()];
        for (rows, colours, is_turned) in [
            (&second, &by_first.judged, false),
            (&first, &by_second.judged, is_turned),
            (&in_neither, &of_neither, false),
        ] {
            rows.iter().zip(colours).for_each(|(&row, &colour)| kind[row] = colour != is_turned);
        }
        let count = kind.iter().filter(|&&of| of).count();
        if 2 * count > kind.len() {
            for of in &mut kind {
                *of = !*of;
            }
        }
        kinds.small = Some(kind);
    }
    Ok(Some(kinds))
}

/// Numbers that neighbours tell about colours: shares of items that are nearer, within and across colours.
#[derive(Debug, Clone, Copy)]
struct Told {
    within: f64,
    across: f64,
}

impl Told {
    fn gap(&self) -> f64 {
        self.across - self.within
    }

    fn mean(&self, other: &Self) -> Self {
        Self {
            within: f64::midpoint(self.within, other.within),
            across: f64::midpoint(self.across, other.across),
        }
    }
}

/// Two maps of one half, and the colours of both halves by them.
struct Coloured {
    told: Told,
    maps: TwoMaps,
    /// Colours of the half that the maps were fitted on; `judged` are those of the other one.
    fitted: Vec<bool>,
    judged: Vec<bool>,
}

/// Vectors in their principal axes.
struct Principal {
    mean: Vec<f64>,
    /// Principal axes `[d, axes]`, the largest variance first.
    axes: Mat<f64>,
    variances: Vec<f64>,
    /// Mean variance of an axis, over all that there are.
    level: f64,
}

impl Principal {
    fn from_rows(rows: &Matrix, seed: u64) -> Result<Self> {
        const ROUNDS: usize = 4;
        let (n, d) = (rows.rows(), rows.columns());
        let mean = column_means(rows);
        let centred = Mat::from_fn(n, d, |i, j| f64::from(rows.row(i)[j]) - mean[j]);
        let times = |v: &Mat<f64>| {
            let outputs = product(centred.as_ref(), v.as_ref());
            product(centred.transpose(), outputs.as_ref())
        };
        let (values, axes) = leading(times, (d, AXES.min(d)), ROUNDS, seed)?;
        let total = centred.squared_norm_l2() / n as f64;
        let variances = values.into_iter().map(|value| value / n as f64).collect();
        Ok(Self { mean, axes, variances, level: total / d.min(n) as f64 })
    }

    /// Returns the coordinates of rows along the axes, `[n, axes]`.
    fn coordinates(&self, rows: &Matrix) -> Mat<f64> {
        let centred =
            Mat::from_fn(rows.rows(), rows.columns(), |i, j| f64::from(rows.row(i)[j]) - self.mean[j]);
        product(centred.as_ref(), self.axes.as_ref())
    }

    /// Returns cosines between coordinates whose variances are taken to the power 1 − `power`: `[n, n]`, the
    /// diagonal 0.
    fn similarities(&self, coordinates: &Mat<f64>, power: f64) -> Mat<f64> {
        const FLOOR: f64 = 1e-3;
        let factors: Vec<f64> = self
            .variances
            .iter()
            .map(|variance| (variance + FLOOR * self.level).max(f64::MIN_POSITIVE).powf(-0.5 * power))
            .collect();
        let mut rows =
            Mat::from_fn(coordinates.nrows(), coordinates.ncols(), |i, j| coordinates[(i, j)] * factors[j]);
        for i in 0..rows.nrows() {
            let length = rows.row(i).norm_l2();
            let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
            for j in 0..rows.ncols() {
                rows[(i, j)] *= factor;
            }
        }
        let mut similarities = gram(rows.as_ref());
        for i in 0..similarities.nrows() {
            similarities[(i, i)] = 0.0;
        }
        similarities
    }
}

/// Finds the leading eigenvectors of a symmetric map of `n` numbers, by orthogonal iteration, and their
/// values: the largest first.
pub(crate) fn leading(
    times: impl Fn(&Mat<f64>) -> Mat<f64>,
    (n, count): (usize, usize),
    rounds: usize,
    seed: u64,
) -> Result<(Vec<f64>, Mat<f64>)> {
    const MORE: usize = 9;
    let width = (count + MORE).min(n);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut block = Mat::from_fn(n, width, |_, _| random.random::<f64>() - 0.5);
    for _ in 0..rounds {
        block = orthonormal(&times(&block))?;
    }
    let block = orthonormal(&block)?;
    let small = product(block.transpose(), times(&block).as_ref());
    let (values, vectors) = eigen(small.as_ref(), "leading eigenvectors")?;
    let last = values.len();
    let leading_vectors = Mat::from_fn(last, count.min(last), |i, j| vectors[(i, last - 1 - j)]);
    Ok((values.into_iter().rev().take(count).collect(), product(block.as_ref(), leading_vectors.as_ref())))
}

/// Returns orthonormal columns that span the same as the columns given; zero columns where there are fewer.
fn orthonormal(block: &Mat<f64>) -> Result<Mat<f64>> {
    let gram = gram(block.transpose());
    let (values, mut vectors) = eigen(gram.as_ref(), "orthonormal columns")?;
    let least = 1e-12 * values.last().copied().unwrap_or(0.0);
    for (j, &value) in values.iter().enumerate() {
        let factor = if value > least { value.sqrt().recip() } else { 0.0 };
        for i in 0..vectors.nrows() {
            vectors[(i, j)] *= factor;
        }
    }
    Ok(product(block.as_ref(), vectors.as_ref()))
}

/// Returns the leading columns, at most `count`.
fn leading_columns(coordinates: &Mat<f64>, count: usize) -> Matrix {
    Matrix::from_fn(coordinates.nrows(), count.min(coordinates.ncols()), |i, j| coordinates[(i, j)] as f32)
}

/// An affine map between leading principal coordinates.
struct Affine {
    /// Weight of the map, `[d_old, d_new]`.
    weight: Mat<f64>,
    bias: Vec<f64>,
}

impl Affine {
    fn fit(old: &Matrix, new: &Matrix, rows: &[usize]) -> Result<Self> {
        let moments = Moments::from_pairs(old, new, Some(rows), InputScaling::AsIs);
        let weight = ridge::solve(&moments, &[PENALTY])?.weight;
        let bias = centring_bias(&moments.mean_x, &moments.mean_y, &weight);
        Ok(Self { weight, bias })
    }

    fn squared_errors(&self, old: &Matrix, new: &Matrix) -> Vec<f64> {
        let old = Mat::from_fn(old.rows(), old.columns(), |i, j| f64::from(old.row(i)[j]));
        let outputs = product(old.as_ref(), self.weight.as_ref());
        let squared_error = |row: usize| {
            let values = new.row(row).iter().enumerate();
            values.map(|(j, &value)| (f64::from(value) - outputs[(row, j)] - self.bias[j]).powi(2)).sum()
        };
        (0..new.rows()).map(squared_error).collect()
    }
}

struct TwoMaps([Affine; 2]);

impl TwoMaps {
    /// Returns for every pair whether the second map fits better, and the sum of the smaller errors.
    fn colours(&self, old: &Matrix, new: &Matrix) -> (Vec<bool>, f64) {
        let [first, second] = self.0.each_ref().map(|map| map.squared_errors(old, new));
        let smaller = first.iter().zip(&second).map(|(a, b)| a.min(*b)).sum();
        (first.iter().zip(&second).map(|(a, b)| b < a).collect(), smaller)
    }

    /// Fits maps and colours in turn, from a colouring; `None` where a colour dies out.
    fn settled(old: &Matrix, new: &Matrix, mut colours: Vec<bool>) -> Result<Option<(Self, Vec<bool>)>> {
        const ROUNDS: usize = 10;
        let n = colours.len();
        let least = 10.max(old.columns() / 4);
        let mut maps = None;
        for _ in 0..ROUNDS {
            let rows = |colour: bool| (0..n).filter(|&row| colours[row] == colour).collect::<Vec<_>>();
            let (first, second) = (rows(false), rows(true));
            if first.len().min(second.len()) < least {
                return Ok(None);
            }
            let fitted = Self([Affine::fit(old, new, &first)?, Affine::fit(old, new, &second)?]);
            let next = fitted.colours(old, new).0;
            let moved = next.iter().zip(&colours).filter(|(a, b)| a != b).count();
            colours = next;
            maps = Some(fitted);
            if moved * 300 < n {
                break;
            }
        }
        Ok(maps.map(|maps| (maps, colours)))
    }
}

/// One half of the pairs, that maps are fitted on, and the other one, that they are judged on.
struct Half {
    old: Principal,
    new: Principal,
    /// Old and new coordinates of the half that is fitted on; `judged` are those of the other half.
    fitted: [Mat<f64>; 2],
    judged: [Mat<f64>; 2],
}

impl Half {
    fn new(old: &Matrix, new: &Matrix, fitted: &[usize], judged: &[usize]) -> Result<Self> {
        let in_principal_axes = |rows: &Matrix| -> Result<(Principal, Mat<f64>, Mat<f64>)> {
            let principal = Principal::from_rows(&rows.select(fitted), 0)?;
            let [fitted, judged] = [fitted, judged].map(|half| principal.coordinates(&rows.select(half)));
            Ok((principal, fitted, judged))
        };
        let (old, new) = rayon::join(|| in_principal_axes(old), || in_principal_axes(new));
        let ((old, old_fitted, old_judged), (new, new_fitted, new_judged)) = (old?, new?);
        Ok(Self { old, new, fitted: [old_fitted, new_fitted], judged: [old_judged, new_judged] })
    }

    /// Returns whether the second map fits better, for pairs of neither half.
    fn colours(&self, maps: &TwoMaps, old: &Matrix, new: &Matrix) -> Vec<bool> {
        let (old, new) = (self.old.coordinates(old), self.new.coordinates(new));
        maps.colours(&leading_columns(&old, maps.0[0].weight.nrows()), &leading_columns(&new, AXES_NEW)).0
    }

    /// Finds the colouring that neighbours in the other half say most of; of those that say about as much,
    /// the one whose maps fit best.
    fn coloured(&self, seed: u64, progress: &Progress) -> Result<Option<Coloured>> {
        /// Part of the largest gap from which a gap is about as much.
        const AS_MUCH: f64 = 0.85;
        let old_axes = AXES_OLD.min((self.fitted[0].nrows() / 8).max(2));
        let lead =
            |[old, new]: &[Mat<f64>; 2]| (leading_columns(old, old_axes), leading_columns(new, AXES_NEW));
        let (old, new) = lead(&self.fitted);
        let (old_judged, new_judged) = lead(&self.judged);
        let neighbours = Neighbours::from_coordinates(&self.judged);
        let mut colourings: Vec<(f64, Coloured)> = Vec::new();
        for beginning in self.beginnings(&old, &new, seed)? {
            progress.check()?;
            let Some((maps, fitted)) = TwoMaps::settled(&old, &new, beginning)? else { continue };
            let (judged, error) = maps.colours(&old_judged, &new_judged);
            if let Some(told) = neighbours.judge(&judged) {
                colourings.push((error, Coloured { told, maps, fitted, judged }));
            }
        }
        let largest = colourings.iter().map(|(_, coloured)| coloured.told.gap()).fold(0.0, f64::max);
        let says_as_much = colourings.into_iter().filter(|(_, of)| of.told.gap() >= AS_MUCH * largest);
        let best = says_as_much.reduce(|best, next| if next.0 < best.0 { next } else { best });
        Ok(best.map(|(_, coloured)| coloured))
    }

    /// Makes colourings to begin with.
    fn beginnings(&self, old: &Matrix, new: &Matrix, seed: u64) -> Result<Vec<Vec<bool>>> {
        /// Powers by which the old and the new space are whitened, and the number of eigenvectors that are
        /// looked at.
        const WHITENED: [(f64, f64, usize); 2] = [(1.0, 0.5, 3), (0.5, 0.5, 2)];
        const ROUNDS: usize = 20;
        /// Parts of the pairs above which one map's errors count as its worst fits.
        const WORST: [f64; 2] = [0.8, 0.9];
        let n = old.rows();
        let mut beginnings = Vec::new();
        for (old_power, new_power, count) in WHITENED {
            let [mut agreeing, similar] =
                [(&self.old, &self.fitted[0], old_power), (&self.new, &self.fitted[1], new_power)]
                    .map(|(principal, coordinates, power)| principal.similarities(coordinates, power));
            let sum = |a: &Mat<f64>, b: &Mat<f64>| -> f64 {
                (0..n).map(|j| (0..n).map(|i| a[(i, j)] * b[(i, j)]).sum::<f64>()).sum()
            };
            let slope = sum(&agreeing, &similar) / sum(&similar, &similar).max(f64::MIN_POSITIVE);
            for j in 0..n {
                for i in 0..n {
                    agreeing[(i, j)] = similar[(i, j)] * (agreeing[(i, j)] - slope * similar[(i, j)]);
                }
            }
            let times = |v: &Mat<f64>| product(agreeing.as_ref(), v.as_ref());
            let (_, vectors) = leading(times, (n, count), ROUNDS, seed)?;
            beginnings.extend((0..vectors.ncols()).map(|j| (0..n).map(|i| vectors[(i, j)] > 0.0).collect()));
        }
        let all: Vec<usize> = (0..n).collect();
        let errors = Affine::fit(old, new, &all)?.squared_errors(old, new);
        let mut sorted = errors.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        beginnings.extend(WORST.map(|part| {
            let threshold = sorted[((part * n as f64) as usize).min(n - 1)];
            errors.iter().map(|&error| error > threshold).collect()
        }));
        Ok(beginnings)
    }
}

/// Items with their nearest ones in the new space, and their products in the old one.
struct Neighbours {
    nearest: Vec<Vec<usize>>,
    products: Mat<f64>,
}

impl Neighbours {
    /// Finds the neighbours of items by their old and new coordinates.
    fn from_coordinates([old, new]: &[Mat<f64>; 2]) -> Self {
        let n = new.nrows();
        let products = gram(new.as_ref());
        let nearest = (0..n)
            .map(|item| {
                let cosine = |other: usize| products[(other, item)] / length(products[(other, other)]);
                let mut by_cosine: Vec<(f64, usize)> =
                    (0..n).filter(|&other| other != item).map(|other| (-cosine(other), other)).collect();
                let count = NEIGHBOURS.min(by_cosine.len());
                if count < by_cosine.len() {
                    by_cosine.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                }
                by_cosine.truncate(count);
                by_cosine.into_iter().map(|(_, other)| other).collect()
            })
            .collect();
        Self { nearest, products: gram(old.as_ref()) }
    }

    /// Tells from neighbours how well colours part them; `None` where neighbours of a sort are too few, or
    /// colours follow the new vectors.
    fn judge(&self, colours: &[bool]) -> Option<Told> {
        /// Smallest number of neighbours of the other colour that an item among others has; `FAR` is how far
        /// it is from them at least.
        const OTHERS_MIN: usize = NEIGHBOURS / 2;
        const FAR: f64 = 0.3;
        let n = colours.len();
        let part = colours.iter().filter(|&&colour| colour).count() as f64 / n as f64;
        let nearer = self.nearer(colours);
        let (mut of_colour, mut across, mut among_others) =
            ([Mean::default(); 2], Mean::default(), Mean::default());
        for (item, nearest) in self.nearest.iter().enumerate() {
            let (mut same, mut other) = (Mean::default(), Mean::default());
            for (&neighbour, &nearer) in nearest.iter().zip(&nearer[item]) {
                if colours[neighbour] == colours[item] { same.add(nearer) } else { other.add(nearer) }
            }
            of_colour[usize::from(colours[item])].join(same);
            across.join(other);
            if other.count >= OTHERS_MIN && other.mean() >= FAR {
                among_others.join(same);
            }
        }
        let all = (across.count + of_colour[0].count + of_colour[1].count) as f64;
        let mixed = across.count as f64 / all / (2.0 * part * (1.0 - part));
        let means = [of_colour[0], of_colour[1], across, among_others];
        if means.iter().any(|of| of.count < NEIGHBOURS_MIN) || mixed < MIXED_MIN {
            return None;
        }
        let within = [of_colour[0], of_colour[1], among_others].map(Mean::mean);
        Some(Told { within: within.into_iter().fold(0.0, f64::max), across: across.mean() })
    }

    /// Returns the share of all items that are nearer in the old space than each neighbour is, the colours'
    /// means removed.
    fn nearer(&self, colours: &[bool]) -> Vec<Vec<f64>> {
        let n = colours.len();
        // x·y about the means of their colours is made of products alone.
        let mut counts = [0.0_f64; 2];
        let mut sums = vec![[0.0_f64; 2]; n];
        for j in 0..n {
            let of = usize::from(colours[j]);
            counts[of] += 1.0;
            for (i, sums) in sums.iter_mut().enumerate() {
                sums[of] += self.products[(i, j)];
            }
        }
        let counts = counts.map(|count| count.max(1.0));
        let mut means = [[0.0_f64; 2]; 2];
        for (sums, &colour) in sums.iter_mut().zip(colours) {
            for of in 0..2 {
                sums[of] /= counts[of];
                means[usize::from(colour)][of] += sums[of] / counts[usize::from(colour)];
            }
        }
        let centred = |i: usize, j: usize| {
            let [a, b] = [i, j].map(|item| usize::from(colours[item]));
            self.products[(j, i)] - sums[i][b] - sums[j][a] + means[a][b]
        };
        let lengths: Vec<f64> = (0..n).map(|item| length(centred(item, item))).collect();
        (0..n)
            .map(|item| {
                let similar: Vec<f64> = (0..n).map(|other| centred(item, other) / lengths[other]).collect();
                let nearer = |&neighbour: &usize| {
                    let than = similar[neighbour];
                    let count = (0..n).filter(|&other| other != item && similar[other] > than).count();
                    count as f64 / (n - 2).max(1) as f64
                };
                self.nearest[item].iter().map(nearer).collect()
            })
            .collect()
    }
}

/// Returns the root of a squared length; ∞ where it is none, so that nothing is near to it.
fn length(squared: f64) -> f64 {
    if squared > 0.0 { squared.sqrt() } else { f64::INFINITY }
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn join(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    fn mean(self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, pairs, random_matrix};

    /// Makes items in ten clusters, whose old vectors have half of what the new ones have, bent, and noise.
    fn bent(n: usize) -> (Matrix, Matrix) {
        let (centres, within) = (random_matrix(10, 24, 1), random_matrix(n, 24, 2));
        let new = Matrix::from_fn(n, 24, |row, axis| centres.row(row % 10)[axis] + within.row(row)[axis]);
        let noise = random_matrix(n, 16, 3);
        let old = affine(&new, &random_matrix(16, 24, 4), &[0.0; 16]);
        let old = Matrix::from_fn(n, 16, |row, axis| {
            (0.2 * old.row(row)[axis]).tanh() + 0.3 * noise.row(row)[axis]
        });
        (old, new)
    }

    fn turned(old: &Matrix, is_turned: impl Fn(usize) -> bool) -> Matrix {
        let sign = |axis: usize| if axis.is_multiple_of(3) { -1.0 } else { 1.0 };
        Matrix::from_fn(old.rows(), 16, |row, axis| {
            if is_turned(row) { sign(axis) * old.row(row)[(axis + 5) % 16] } else { old.row(row)[axis] }
        })
    }

    fn looked_at(old: Matrix, new: Matrix, seed: u64) -> Option<Kinds> {
        two_kinds(&pairs(old, new, None), seed, &Progress::default()).unwrap()
    }

    #[test]
    fn one_kind_is_passed_in_silence_however_bent() {
        for n in [100, 400, 1600] {
            let (old, new) = bent(n);
            for seed in 0..3 {
                assert!(looked_at(old.clone(), new.clone(), seed).is_none(), "{n}");
            }
        }
    }

    #[test]
    fn two_kinds_are_told_by_their_neighbours() {
        let (old, new) = bent(1700);
        for every in [2, 5, 10] {
            let is_turned = |row: usize| row / 10 % every == 1;
            let kinds = looked_at(turned(&old, is_turned), new.clone(), 0).unwrap();
            assert!(kinds.within < 0.35 && kinds.across > 0.4, "{} {}", kinds.within, kinds.across);
            let small = kinds.small.unwrap();
            let right = (0..1700).filter(|&row| small[row] == is_turned(row)).count();
            assert!(right.max(if every == 2 { 1700 - right } else { 0 }) > 1600, "{every}: {right}");
        }
    }
}
