//! σ² from out-of-fold residuals: the errors on similar pairs that the map had not seen.

use std::ops::Range;

use rayon::prelude::*;

use super::kernel::{Begin, Packed, RowsRef, TILE};
use super::uncertainty::variance_of_log;
use crate::check::{expect_count, expect_finite, expect_width};
use crate::error::{Error, ErrorKind, Result};
use crate::head::{Head, HeadKind};
use crate::length::{norm, squared_distance};
use crate::vectors::Matrix;

/// `log σ²` as a linear function of a few features, each known when the adapter is applied.
///
/// Features of an item with (scaled) old vector `o`, in this order ([`OutOfFold::features`]):
/// 1. one a column of `anchor_values`: the mean of that column over the `neighbours` nearest anchors (by
///    Euclidean distance in the scaled old space; the first ones among equals),
/// 2. the log of the mean Euclidean distance to these anchors,
/// 3. the log of the raw output's length `‖raw(o)‖`,
/// 4. the log of the raw output's distance from the mean of the new vectors, `‖raw(o) − centre‖`,
/// 5. where there is a head: the entropy (in nats) of the head's softmax at h(o), and
/// 6. one minus its largest probability.
///
/// `log σ² = intercept + Σ coefficient·(feature − mean)`, clamped to `[log_minimum, log_maximum]` (and to
/// ±[`LOG_VARIANCE_LIMIT`](super::LOG_VARIANCE_LIMIT), whatever these say).
///
/// Where there are fewer anchors than `neighbours`, all of them count. A length of 0 counts as the smallest
/// normal single-precision number, so that its log is finite.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OutOfFold {
    /// Old vectors (scaled as the map's input) whose out-of-fold residual is known, `[m, d_old]`, m ≥ 1.
    pub anchors: Matrix,
    /// Known values of every anchor, `[m, values]`, such as the log of its out-of-fold squared error.
    pub anchor_values: Matrix,
    /// Number of nearest anchors that are averaged, 1 to 1,024.
    pub neighbours: usize,
    /// Mean of the new vectors, `[d_new]`.
    pub centre: Vec<f32>,
    /// Constant term of `log σ²`.
    pub intercept: f32,
    /// One coefficient for each feature: the columns of `anchor_values` and 3, and 2 more with a head.
    pub coefficients: Vec<f32>,
    /// Mean of each feature over the pairs: as many as coefficients.
    pub means: Vec<f32>,
    /// Smallest `log σ²` that is given.
    pub log_minimum: f32,
    /// Largest `log σ²` that is given.
    pub log_maximum: f32,
    /// Head that the last two features look through. Its temperature is already divided into weight and bias.
    pub head: Option<Head>,
}

/// Most nearest anchors that may be asked for: each row of a panel keeps as many candidates.
const NEIGHBOURS_MAX: usize = 1024;

/// Number of features besides the anchors' values and the head's.
const FEATURES: usize = 3;

/// Number of features where an anchor has so many values.
pub(super) fn features(values: usize, has_head: bool) -> usize {
    values + FEATURES + 2 * usize::from(has_head)
}

impl OutOfFold {
    /// Lists the features of one item from its measurements, in the order of the documentation of
    /// [`OutOfFold`]. The fit of the coefficients calls this function too, so that both sides mean the same
    /// numbers.
    ///
    /// `head` holds the entropy and the largest probability, where there is a head.
    pub fn features(
        mean_values: impl IntoIterator<Item = f64>,
        mean_distance: f64,
        raw_norm: f64,
        centre_distance: f64,
        head: Option<(f64, f64)>,
    ) -> impl Iterator<Item = f64> {
        let log = |length: f64| length.max(f64::from(f32::MIN_POSITIVE)).ln();
        mean_values
            .into_iter()
            .chain([log(mean_distance), log(raw_norm), log(centre_distance)])
            .chain(head.into_iter().flat_map(|(entropy, largest)| [entropy, 1.0 - largest]))
    }

    pub(super) fn check(&self, d_old: usize, d_new: usize) -> Result<()> {
        if self.anchors.rows() == 0 {
            return Err(ErrorKind::Empty { what: "anchors of σ²".into() }.into());
        }
        expect_width("anchors of σ²", d_old, self.anchors.columns())?;
        self.anchors.check_finite("anchors of σ²")?;
        expect_count("anchors of σ²", self.anchors.rows(), "their values", self.anchor_values.rows())?;
        self.anchor_values.check_finite("values of the anchors of σ²")?;
        expect_width("centre of σ²", d_new, self.centre.len())?;
        expect_finite("centre of σ²", &self.centre)?;
        if !(1..=NEIGHBOURS_MAX).contains(&self.neighbours) {
            let expected = format!("1 to {NEIGHBOURS_MAX}");
            return Err(Error::option("neighbours of σ²", self.neighbours, expected));
        }
        let features = features(self.anchor_values.columns(), self.head.is_some());
        expect_count("features of σ²", features, "their coefficients", self.coefficients.len())?;
        expect_count("features of σ²", features, "their means", self.means.len())?;
        expect_finite("coefficients of σ²", &self.coefficients)?;
        expect_finite("feature means of σ²", &self.means)?;
        expect_finite("intercept and limits of σ²", &[self.intercept, self.log_minimum, self.log_maximum])?;
        if self.log_minimum > self.log_maximum {
            let range = format!("{} to {}", self.log_minimum, self.log_maximum);
            return Err(Error::option("limits of log σ²", range, "a minimum that is not above the maximum"));
        }
        if let Some(head) = &self.head {
            expect_width("head of σ²", d_new, head.dimension())?;
            if let HeadKind::ArcFace { scale, margin } | HeadKind::CosFace { scale, margin } = head.kind() {
                expect_finite("scale and margin of the head of σ²", &[scale, margin])?;
            }
        }
        Ok(())
    }
}

/// Number of columns of products that are made at a time, so that memory does not grow with the anchors or
/// the classes.
const COLUMNS: usize = 8 * TILE;

/// Buffers of one thread. They grow to what the first panel needs and stay.
#[derive(Default)]
pub(super) struct Scratch {
    block: Vec<f32>,
    nearest: Vec<Candidates>,
    entropies: Vec<RunningEntropy>,
    neighbours: Vec<(f64, usize)>,
}

/// Calls `visit(row, columns, values)` for the products of every row with every weight, [`COLUMNS`] at
/// a time.
fn for_each_product(
    packed: &Packed,
    rows: RowsRef<'_>,
    count: usize,
    block: &mut Vec<f32>,
    mut visit: impl FnMut(usize, Range<usize>, &[f32]),
) {
    block.resize(block.len().max(count * COLUMNS), 0.0);
    for start in (0..packed.outputs()).step_by(COLUMNS) {
        let columns = start..(start + COLUMNS).min(packed.outputs());
        packed.multiply(rows, count, columns.clone(), block, COLUMNS, Begin::Bias, false);
        for row in 0..count {
            visit(row, columns.clone(), &block[row * COLUMNS..row * COLUMNS + columns.len()]);
        }
    }
}

/// Anchors prepared for finding the nearest ones.
///
/// The blocked product `⟨o, a⟩ − ‖a‖²/2` (the nearer, the larger), in single precision, finds a few more
/// candidates than asked for. Their Euclidean distances are then computed in double precision and decide.
/// Equal distances are ordered by index.
pub struct NearestAnchors {
    anchors: Matrix,
    packed: Packed,
}

/// Number of candidates beyond those asked for, since single precision may swap anchors that are almost
/// equally near.
pub const SPARE_CANDIDATES: usize = 8;

/// Best scores of one row so far, best first.
#[derive(Default)]
struct Candidates(Vec<(f32, u32)>);

impl Candidates {
    fn offer(&mut self, limit: usize, first: usize, scores: &[f32], leave_out: impl Fn(usize) -> bool) {
        let mut worst = if self.0.len() < limit { f32::NEG_INFINITY } else { self.0[limit - 1].0 };
        for (offset, &score) in scores.iter().enumerate() {
            if (score > worst || self.0.len() < limit) && !leave_out(first + offset) {
                let at = self.0.partition_point(|&(held_score, _)| held_score >= score);
                self.0.truncate(limit - 1);
                self.0.insert(at, (score, (first + offset) as u32));
                worst = if self.0.len() < limit { f32::NEG_INFINITY } else { self.0[limit - 1].0 };
            }
        }
    }
}

impl NearestAnchors {
    /// Checks anchors `[m, d]` and packs them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Empty`] without anchors, [`ErrorKind::NotFinite`] for NaN or infinite numbers.
    pub fn new(anchors: &Matrix) -> Result<Self> {
        if anchors.rows() == 0 {
            return Err(ErrorKind::Empty { what: "anchors".into() }.into());
        }
        anchors.check_finite("anchors")?;
        let bias: Vec<f32> = (0..anchors.rows())
            .map(|row| {
                let length = norm(anchors.row(row));
                (-0.5 * length * length) as f32
            })
            .collect();
        let packed = Packed::new(
            anchors.rows(),
            anchors.columns(),
            |anchor, column| anchors.row(anchor)[column],
            &bias,
        );
        Ok(Self { anchors: anchors.clone(), packed })
    }

    /// Finds the `count` nearest anchors of every query `[n, d]`, nearest first, as (Euclidean distance,
    /// anchor); fewer where there are fewer anchors. Anchors for which `leave_out(query, anchor)` holds are
    /// passed over: the query itself, where the queries are the anchors, or all anchors of its kind.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WidthMismatch`], and [`ErrorKind::NotFinite`] for NaN or infinite queries.
    pub fn search(
        &self,
        queries: &Matrix,
        count: usize,
        leave_out: impl Fn(usize, usize) -> bool + Sync,
    ) -> Result<Vec<Vec<(f64, usize)>>> {
        const QUERIES: usize = 192;
        if queries.rows() == 0 {
            return Ok(Vec::new());
        }
        expect_width("queries", self.anchors.columns(), queries.columns())?;
        queries.check_finite("queries")?;
        let width = queries.columns();
        let nearest_by_chunk = queries
            .as_slice()
            .par_chunks(QUERIES * width)
            .enumerate()
            .map_init(Scratch::default, |scratch, (chunk, rows)| {
                let (queries, first) = (RowsRef::new(rows, width), chunk * QUERIES);
                let leave_out = |row: usize, anchor: usize| leave_out(first + row, anchor);
                self.find_candidates(queries, rows.len() / width, count, scratch, leave_out);
                (0..rows.len() / width)
                    .map(|row| {
                        self.nearest_into(
                            queries.row(row, width),
                            &scratch.nearest[row],
                            &mut scratch.neighbours,
                        );
                        scratch.neighbours.iter().take(count).copied().collect()
                    })
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>();
        Ok(nearest_by_chunk.into_iter().flatten().collect())
    }

    /// Fills `scratch.nearest` with the candidates of every row.
    fn find_candidates(
        &self,
        rows: RowsRef<'_>,
        count: usize,
        wanted: usize,
        scratch: &mut Scratch,
        leave_out: impl Fn(usize, usize) -> bool,
    ) {
        let limit = wanted.saturating_add(SPARE_CANDIDATES).min(self.anchors.rows());
        let Scratch { block, nearest, .. } = scratch;
        nearest.resize_with(nearest.len().max(count), Candidates::default);
        for candidates in nearest.iter_mut() {
            candidates.0.clear();
        }
        for_each_product(&self.packed, rows, count, block, |row, columns, scores| {
            nearest[row].offer(limit, columns.start, scores, |anchor| leave_out(row, anchor));
        });
    }

    /// Sorts candidates by their distances in double precision.
    fn nearest_into(&self, query: &[f32], candidates: &Candidates, neighbours: &mut Vec<(f64, usize)>) {
        neighbours.clear();
        neighbours.extend(candidates.0.iter().map(|&(_, anchor)| {
            let anchor = anchor as usize;
            (squared_distance(query, self.anchors.row(anchor)).sqrt(), anchor)
        }));
        neighbours.sort_unstable_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    }
}

/// The entropy `−Σ p·ln p` of a softmax whose logits arrive block by block: `ln S − (Σ x·e^(x−m)) / S + m`
/// with m the largest logit and `S = Σ e^(x−m)`.
#[derive(Clone, Copy)]
struct RunningEntropy {
    largest: f64,
    sum: f64,
    weighted: f64,
}

impl RunningEntropy {
    const START: Self = Self { largest: f64::NEG_INFINITY, sum: 0.0, weighted: 0.0 };

    fn offer(&mut self, logits: &[f32], scale: f64) {
        let largest = logits.iter().fold(self.largest, |most, &logit| most.max(f64::from(logit) * scale));
        if largest > self.largest && self.sum > 0.0 {
            // `weighted` holds Σ (x − m)·e^(x−m); moving m by δ turns x − m into (x − m) − δ.
            let shift = self.largest - largest;
            self.weighted = (self.weighted + shift * self.sum) * shift.exp();
            self.sum *= shift.exp();
        }
        self.largest = largest;
        for &logit in logits {
            let below = f64::from(logit) * scale - largest;
            let power = below.exp();
            self.sum += power;
            self.weighted += below * power;
        }
    }

    fn value(&self) -> f64 {
        let entropy = self.sum.ln() - self.weighted / self.sum;
        // Rounding may give a value slightly below 0. A NaN stays NaN: `max` would turn it into perfect
        // certainty.
        if entropy < 0.0 { 0.0 } else { entropy }
    }

    /// Returns the largest probability. The largest logit's own term of the sum is 1.
    fn largest_probability(&self) -> f64 {
        1.0 / self.sum
    }
}

/// Scales the weight of a head of cosines: each row gets the length `scale`; a zero row stays zero.
pub fn cosine_weight(head: &Head, scale: f32) -> Matrix {
    let mut weight = head.weight().clone();
    for class in 0..head.classes() {
        let row = weight.row_mut(class);
        let length = norm(row);
        let factor = if length > 0.0 { f64::from(scale) / length } else { 0.0 };
        for value in row {
            *value = (f64::from(*value) * factor) as f32;
        }
    }
    weight
}

/// A head prepared for computing its entropy.
struct PreparedHead {
    packed: Packed,
    /// Whether logits are cosines, which are divided by the vector's length.
    cosine: bool,
}

impl PreparedHead {
    fn new(head: &Head) -> Self {
        let (classes, width) = (head.classes(), head.dimension());
        match head.kind().scale() {
            None => {
                let packed =
                    Packed::new(classes, width, |class, at| head.weight().row(class)[at], head.bias());
                Self { packed, cosine: false }
            }
            Some(scale) => {
                let weight = cosine_weight(head, scale);
                let at = |class: usize, at: usize| weight.row(class)[at];
                Self { packed: Packed::new(classes, width, at, &vec![0.0; classes]), cosine: true }
            }
        }
    }
}

/// Lengths of the raw outputs of a panel, measured before the outputs were put into the new space's geometry.
pub(super) struct Lengths<'a> {
    /// `‖raw(o)‖` of every row.
    pub(super) raw_norms: &'a [f32],
    /// `‖raw(o) − centre‖` of every row.
    pub(super) centre_distances: &'a [f64],
}

/// An [`OutOfFold`] prepared for many rows.
pub(super) struct PreparedOutOfFold {
    learned: OutOfFold,
    anchors: NearestAnchors,
    head: Option<PreparedHead>,
}

impl PreparedOutOfFold {
    pub(super) fn new(learned: &OutOfFold) -> Result<Self> {
        let anchors = NearestAnchors::new(&learned.anchors)?;
        // The anchors are held once, by their index.
        let learned = OutOfFold { anchors: Matrix::default(), ..learned.clone() };
        let head = learned.head.as_ref().map(PreparedHead::new);
        Ok(Self { learned, anchors, head })
    }

    /// Computes `‖raw − centre‖`.
    pub(super) fn centre_distance(&self, raw: &[f32]) -> f64 {
        let differences = raw.iter().zip(&self.learned.centre).map(|(&a, &b)| f64::from(a) - f64::from(b));
        differences.map(|difference| difference * difference).sum::<f64>().sqrt()
    }

    /// Computes σ² of every row of a panel. `scaled` are its old vectors as the map reads them, `adapted` its
    /// h(o) `[n, d_new]`.
    pub(super) fn variances(
        &self,
        scaled: RowsRef<'_>,
        adapted: RowsRef<'_>,
        lengths: &Lengths<'_>,
        variance: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let count = variance.len();
        self.anchors.find_candidates(scaled, count, self.learned.neighbours, scratch, |_, _| false);
        let Scratch { block, nearest, entropies, neighbours } = scratch;
        if let Some(head) = &self.head {
            entropies.clear();
            entropies.resize(count, RunningEntropy::START);
            for_each_product(&head.packed, adapted, count, block, |row, _, logits| {
                let length = if head.cosine { norm(adapted.row(row, head.packed.inputs())) } else { 1.0 };
                // A zero vector has cosine 0 with every class.
                entropies[row].offer(logits, if length > 0.0 { 1.0 / length } else { 0.0 });
            });
        }
        for row in 0..count {
            let query = scaled.row(row, self.anchors.packed.inputs());
            self.anchors.nearest_into(query, &nearest[row], neighbours);
            neighbours.truncate(self.learned.neighbours);
            let mean = |sum: f64| sum / neighbours.len() as f64;
            let values = &self.learned.anchor_values;
            let means = (0..values.columns()).map(|column| {
                mean(neighbours.iter().map(|&(_, anchor)| f64::from(values.row(anchor)[column])).sum())
            });
            let distance: f64 = neighbours.iter().map(|&(distance, _)| distance).sum();
            let head =
                self.head.as_ref().map(|_| (entropies[row].value(), entropies[row].largest_probability()));
            variance[row] = self.variance(OutOfFold::features(
                means,
                mean(distance),
                f64::from(lengths.raw_norms[row]),
                lengths.centre_distances[row],
                head,
            ));
        }
    }

    fn variance(&self, features: impl Iterator<Item = f64>) -> f32 {
        let weights = self.learned.coefficients.iter().zip(&self.learned.means);
        let sum: f64 = features
            .zip(weights)
            .map(|(feature, (&coefficient, &mean))| f64::from(coefficient) * (feature - f64::from(mean)))
            .sum();
        let log = f64::from(self.learned.intercept) + sum;
        // Logits beyond single precision have no entropy, so nothing is known about such an item.
        let log = if log.is_nan() { f64::from(self.learned.log_maximum) } else { log };
        variance_of_log(log.clamp(f64::from(self.learned.log_minimum), f64::from(self.learned.log_maximum)))
    }
}
