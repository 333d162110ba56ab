//! Report data: everything that a report says, before it is put into HTML, Markdown or JSON.
//!
//! The data are plain values. The crate `rehang-report` renders them and needs to know nothing else; their
//! serde form is the JSON report. The names of the fields are part of that format, and [`FORMAT_VERSION`]
//! counts its changes.
//!
//! # Units
//!
//! Qualities (top-1, mAP, flips, …) and shares of groups are in percent, 0–100. Fractions of a gallery are in
//! `[0, 1]`. A number that is not defined is NaN here and `null` in JSON; reading `null` gives NaN again.
//!
//! # Metrics have names, not fields
//!
//! A labelled gallery has top-1, top-5 and mAP. One with graded relevance has nDCG@10 and recall@k; one
//! without labels has only agreement@k. So a [`Report`] lists its [`ShownMetric`]s, and every measurement is
//! a map from [`ShownMetric::id`] to a value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Space;
use crate::curve::Metric;
use crate::finding::Finding;
use crate::statistics::Calibration;
use crate::verdict::Verdict;

/// Version of the JSON form. It grows when a field changes its meaning or goes away, not when one is added.
///
/// Version 1 had one `calibration`, of the first adapter, in place of `calibrations`, and fields that never
/// said anything (`comparison`, and `unit` in every metric). Until version 2 a warning had `id` for `code`,
/// `try` for `remedy`, and the severities `caution` for `warning` and `severe` for `problem`. Reports of both
/// versions are still read.
pub const FORMAT_VERSION: u32 = 3;

/// Most points of an exact curve that a report keeps: one every half percent.
pub const DISPLAY_POINTS: usize = 201;

/// One value for each metric, by [`ShownMetric::id`].
pub type Scores = BTreeMap<String, f64>;

crate::named! {
    /// Number format in which a database keeps the coordinates of vectors.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Precision ("precision") {
        /// Single precision: four bytes a coordinate.
        F32 = "f32",
        /// Half precision (pgvector's `halfvec`, Qdrant's `float16`): two bytes.
        F16 = "f16",
        /// One byte: 127 steps on either side of 0. The largest coordinate of the gallery has the last step.
        I8 = "i8",
    }
}

impl Precision {
    /// Number of bytes that a coordinate takes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::I8 => 1,
        }
    }
}

/// Quality of new vectors that are kept at one width and precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizeScores {
    /// Number of coordinates that are kept. Vectors with fewer than the model's are scaled to length 1.
    pub width: usize,
    /// Number format of each coordinate.
    pub precision: Precision,
    /// Number of bytes of a vector.
    pub bytes: usize,
    /// Quality of a gallery that is fully native, with queries cut and rounded likewise.
    #[serde(deserialize_with = "nullable::map")]
    pub new_model: Scores,
    /// Quality at the switch, with the headline's adapter; empty without right answers.
    #[serde(default, deserialize_with = "nullable::map")]
    pub at_the_switch: Scores,
}

/// A whole report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of the format that the report was written in ([`FORMAT_VERSION`]).
    pub format_version: u32,
    /// Subject of the report, in a few words.
    pub title: String,
    /// Program, command and seeds that made the report.
    pub created_by: CreatedBy,
    /// The two spaces of the upgrade.
    pub spaces: Spaces,
    /// Files that were read, with their fingerprints.
    #[serde(default)]
    pub inputs: Vec<InputRecord>,
    /// Sets of items that adapters were fitted on and that was measured on.
    #[serde(default)]
    pub measured_on: Vec<MeasuredSet>,
    /// Metrics in the order in which they are shown; the first one carries the verdict.
    #[serde(default)]
    pub metrics: Vec<ShownMetric>,
    /// Quality of today's gallery and queries: old queries on old vectors.
    #[serde(default, deserialize_with = "nullable::map")]
    pub do_nothing: Scores,
    /// Quality of a gallery that is fully native: new queries on new vectors.
    #[serde(default, deserialize_with = "nullable::map")]
    pub new_model: Scores,
    /// Backfilling curves, one for each method and order.
    #[serde(default)]
    pub curves: Vec<CurveSeries>,
    /// Index in `curves` of the curve that the verdict speaks about.
    #[serde(default)]
    pub headline: usize,
    /// How well σ² of each adapter predicts the true error.
    #[serde(default)]
    pub calibrations: Vec<AdapterCalibration>,
    /// Quality by group of items.
    #[serde(default)]
    pub groups: Option<GroupStudy>,
    /// Quality of new vectors at other widths and precisions, where that was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeScores>,
    /// Gallery that `do_nothing`, `new_model` and `curves` are a forecast of; `None` where they were measured
    /// on the items themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gallery: Option<WholeGallery>,
    /// Floors of an application's searches, carried over to the new model, in the report of a whole gallery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floors: Option<Floors>,
    /// Findings that the reader should be careful about.
    #[serde(default)]
    pub warnings: Vec<Finding>,
}

impl Report {
    /// Makes a report on two spaces in which nothing is measured yet.
    pub fn new(title: impl Into<String>, created_by: CreatedBy, spaces: Spaces) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            title: title.into(),
            created_by,
            spaces,
            inputs: Vec::new(),
            measured_on: Vec::new(),
            metrics: Vec::new(),
            do_nothing: Scores::new(),
            new_model: Scores::new(),
            curves: Vec::new(),
            headline: 0,
            calibrations: Vec::new(),
            groups: None,
            sizes: Vec::new(),
            gallery: None,
            floors: None,
            warnings: Vec::new(),
        }
    }

    /// Curve that the verdict speaks about; `None` where there is no curve.
    pub fn headline_curve(&self) -> Option<&CurveSeries> {
        self.curves.get(self.headline).or_else(|| self.curves.first())
    }

    /// Metric that the verdict speaks about: the first one that the headline curve has.
    pub fn headline_metric(&self) -> Option<&ShownMetric> {
        let curve = self.headline_curve()?;
        self.metrics.iter().find(|metric| curve.metrics.contains_key(&metric.id))
    }

    /// Verdict of the headline curve on the headline metric.
    pub fn verdict(&self) -> Verdict {
        let (Some(series), Some(metric)) = (self.headline_curve(), self.headline_metric()) else {
            return Verdict::NotMeasured;
        };
        self.verdict_of(series, &metric.id)
    }

    /// Verdict of one curve on one metric.
    pub fn verdict_of(&self, series: &CurveSeries, id: &str) -> Verdict {
        match (series.metrics.get(id), self.do_nothing.get(id)) {
            (Some(curve), Some(line)) if line.is_finite() => Verdict::passing(curve.passes_do_nothing_at),
            _ => Verdict::NotMeasured,
        }
    }
}

/// A whole gallery whose upgrade a report forecasts, from a few items whose new vectors are known
/// ([`crate::curve::forecast()`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WholeGallery {
    /// Number of items in the gallery.
    pub items: usize,
    /// Number of items whose new vectors are known, and which no adapter was fitted on.
    pub held_out: usize,
    /// Number of items that the values hold for; fewer than `items` where a random part of the vectors was
    /// read.
    pub speaks_of: usize,
    /// Quality when nothing is done, by [`ShownMetric::id`]; with an interval where not every query was
    /// asked.
    pub do_nothing: BTreeMap<String, NumberWithSpread>,
    /// Quality when old vectors and their index stay, and queries go to them over a [bridge](crate::Bridge),
    /// by [`ShownMetric::id`]. Empty without a bridge or without right answers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bridge: BTreeMap<String, NumberWithSpread>,
}

/// Floors of an application's searches, carried over to the new model. A floor is a bound such as a
/// similarity of 0.30, below which nothing is shown. Each new floor lets as many answers through as today's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floors {
    /// Measure of today's floors, such as `cosine similarity`.
    pub today: String,
    /// Measure of the new model's floors.
    pub then: String,
    /// Number of queries whose answers were counted.
    pub queries: usize,
    /// Number of items whose native vectors the floors of a native gallery come from.
    pub natives: usize,
    /// Floors of today, each with the ones that take its place.
    pub rows: Vec<Floor>,
}

/// Floor of today, and the floors of the new model that take its place.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// Value of the floor today.
    pub today: f64,
    /// Number of answers that the floor lets through, for a query on average.
    pub answers: f64,
    /// Floor at the switch, when all items are adapted; `None` where too few answers pass to say.
    pub adapted: Option<FloorAt>,
    /// Floor when all items are native; `None` where too few answers are held-out items to say.
    pub native: Option<FloorAt>,
}

/// Floor of the new model, with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FloorAt {
    /// Value of the floor.
    pub floor: f64,
    /// Lower end of the range that holds the floor in 95 of 100 samples of the queries.
    pub low: f64,
    /// Upper end of that range.
    pub high: f64,
    /// Share of today's answers that does not come through, from 0 to 1.
    pub changed: f64,
}

/// Share of native items from which on a metric stays at 98 % of its end ([`crate::curve::ENOUGH`]), with its
/// interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EnoughShare {
    /// Estimate of the share.
    #[serde(deserialize_with = "nullable::one")]
    pub fraction: f64,
    /// Lower end of the interval.
    #[serde(deserialize_with = "nullable::one")]
    pub low: f64,
    /// Upper end of the interval.
    #[serde(deserialize_with = "nullable::one")]
    pub high: f64,
}

/// Program, command and seeds that made a report.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CreatedBy {
    /// Version of rehang.
    pub version: String,
    /// Command that was run.
    pub command: String,
    /// Seeds of everything random, in the order of the runs.
    #[serde(default)]
    pub seeds: Vec<u64>,
}

/// The two spaces of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spaces {
    /// Space that the gallery lives in today.
    pub old: Space,
    /// Space that the gallery moves to.
    pub new: Space,
}

/// A file that went into a report.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InputRecord {
    /// Role of the file: "old", "new", "labels", "qrels", "adapter", ….
    pub role: String,
    /// Path that the file was read from.
    pub path: String,
    /// Number of rows in the file; for an adapter, the number of pairs that it was fitted on.
    pub rows: usize,
    /// Width of a row, where rows are vectors.
    #[serde(default)]
    pub dimension: Option<usize>,
    /// Fingerprint of the content: of the rows that `--rows` took, for vectors and labels.
    pub fingerprint: String,
}

impl InputRecord {
    /// Makes the role of a file that the adapter `name` was fitted on. `role` is its role in that fit: "old",
    /// "new", "labels", ….
    pub fn role_of_pairs(name: impl std::fmt::Display, role: &str) -> String {
        format!("pairs of {name}: {role}")
    }

    /// Whether an adapter was fitted on this file in the given role; see [`InputRecord::role_of_pairs`].
    pub fn is_of_pairs(&self, role: &str) -> bool {
        let name =
            self.role.strip_prefix("pairs of ").and_then(|name_and_role| name_and_role.strip_suffix(role));
        name.is_some_and(|name| name.ends_with(": "))
    }
}

/// A set of items that something was fitted or measured on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MeasuredSet {
    /// Name of the set, such as "evaluation".
    pub name: String,
    /// Number of pairs that the adapter was fitted on; with several adapters, that of the first one.
    pub pairs: usize,
    /// Pairs that each adapter was fitted on.
    #[serde(default)]
    pub fitted: Vec<FittedOn>,
    /// Number of items in the gallery that was measured.
    pub items: usize,
    /// Number of queries.
    pub queries: usize,
    /// Whether the queries are the gallery's own items, each left out of its own answer.
    #[serde(default)]
    pub leave_one_out: bool,
    /// Number of classes among the items, where they have labels.
    #[serde(default)]
    pub classes: Option<usize>,
    /// Number of queries left out of every mean because nothing in the gallery is relevant to them.
    #[serde(default)]
    pub left_out_queries: usize,
    /// Number of gallery items whose old vector is among the pairs; `None` where it was not measured.
    #[serde(default)]
    pub overlapping_items: Option<usize>,
    /// Whether `overlapping_items` is an estimate from a sample of the pairs.
    #[serde(default)]
    pub overlap_is_estimated: bool,
}

/// Pairs that one adapter was fitted on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FittedOn {
    /// Method of the adapter, as in [`CurveSeries::method`].
    pub method: String,
    /// Number of pairs that the adapter was fitted on.
    pub pairs: usize,
}

/// A metric as a report shows it: a quality in percent, more is better, and how to speak about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShownMetric {
    /// Key of the metric in every map of this report: `top1`, `top5`, `map`, `ndcg@10`, ….
    pub id: String,
    /// Name of the metric for people.
    pub name: String,
    /// Meaning of the metric, in one sentence.
    pub about: String,
    /// Whether the metric belongs with the first charts; the others come under "further metrics".
    #[serde(default)]
    pub primary: bool,
}

impl From<Metric> for ShownMetric {
    fn from(metric: Metric) -> Self {
        Self { id: metric.id(), name: metric.name(), about: metric.about(), primary: metric.is_primary() }
    }
}

/// A number with what is known about its spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NumberWithSpread {
    /// The number.
    #[serde(deserialize_with = "nullable::one")]
    pub value: f64,
    /// Spread of the number, where it was measured.
    #[serde(default)]
    pub spread: Option<Spread>,
}

impl NumberWithSpread {
    /// Interval around the number, `(low, high)`; `None` where its spread is not an interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        match self.spread {
            Some(Spread::Interval { low, high, .. }) => Some((low, high)),
            _ => None,
        }
    }
}

impl From<f64> for NumberWithSpread {
    fn from(value: f64) -> Self {
        Self { value, spread: None }
    }
}

/// Spread of a number: how far it may be off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Spread {
    /// Standard deviation over several runs; the number is their mean.
    Deviation {
        /// Standard deviation.
        #[serde(deserialize_with = "nullable::one")]
        deviation: f64,
        /// Number of runs.
        runs: usize,
    },
    /// Interval over the queries: of their bootstrap, or of a forecast.
    Interval {
        /// Lower end.
        #[serde(deserialize_with = "nullable::one")]
        low: f64,
        /// Upper end.
        #[serde(deserialize_with = "nullable::one")]
        high: f64,
        /// Coverage, such as 0.95.
        level: f64,
    },
}

/// The backfilling curve of one method and one order, for every metric that was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CurveSeries {
    /// Method of the adapter, such as `fastfill`.
    pub method: String,
    /// Order in which items are re-embedded, such as `sigma`.
    pub order: String,
    /// Fractions of the gallery that are re-embedded, increasing from 0 to 1, at most [`DISPLAY_POINTS`].
    #[serde(deserialize_with = "nullable::many")]
    pub fractions: Vec<f64>,
    /// Curve of each metric at these fractions, by [`ShownMetric::id`].
    pub metrics: BTreeMap<String, MetricCurve>,
    /// Handicap: what was added to the distance of every item that was still adapted
    /// ([`Adapter::handicap`](crate::adapter::Adapter::handicap)).
    #[serde(default)]
    pub handicap: f64,
}

impl CurveSeries {
    /// Names method and order in a few words.
    pub fn name(&self) -> String {
        match (self.method.is_empty(), self.order.is_empty()) {
            (_, true) => self.method.clone(),
            (true, false) => self.order.clone(),
            (false, false) => format!("{} · {}", self.method, self.order),
        }
    }
}

/// One metric along one curve.
///
/// `area`, `start`, `end`, `minimum` and the crossing are those of the exact curve at all n+1 fractions;
/// `values` shows some of its points.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricCurve {
    /// Values of the metric at the series' fractions.
    #[serde(deserialize_with = "nullable::many")]
    pub values: Vec<f64>,
    /// Band around the curve at the same fractions.
    #[serde(default)]
    pub band: Option<CurveBand>,
    /// Mean over all fractions (the papers' M̃).
    pub area: NumberWithSpread,
    /// Value at the switch, when nothing is re-embedded yet.
    #[serde(deserialize_with = "nullable::one")]
    pub start: f64,
    /// Value when everything is re-embedded.
    #[serde(deserialize_with = "nullable::one")]
    pub end: f64,
    /// Lowest point of the curve.
    pub minimum: Point,
    /// First fraction from which on the curve never falls below the do-nothing line. `None` where it ends
    /// below the line, or where doing nothing was not measured.
    #[serde(default)]
    pub passes_do_nothing_at: Option<f64>,
    /// Queries whose answer changed, where the metric has right and wrong answers (top-1, top-5).
    #[serde(default)]
    pub flips: Option<FlipCurves>,
    /// Share of the backfill that is enough, where the curve is a forecast of a whole gallery. `None` also
    /// where nothing can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enough: Option<EnoughShare>,
}

impl MetricCurve {
    /// Makes the display form of an exact curve. `exact[k]` is the metric with `k` of the `exact.len() − 1`
    /// items re-embedded, `display` are the points to keep (see [`display_points`]), and `area` is the
    /// caller's mean.
    ///
    /// An empty curve gives NaN everywhere; indices beyond the curve are left out.
    ///
    /// ```
    /// use rehang_core::report::{MetricCurve, display_points};
    ///
    /// let exact = [30.0, 20.0, 40.0, 50.0, 60.0];
    /// let curve = MetricCurve::from_exact(&exact, 40.0.into(), Some(35.0), &display_points(exact.len()));
    /// assert_eq!((curve.start, curve.end), (30.0, 60.0));
    /// assert_eq!((curve.minimum.value, curve.minimum.fraction), (20.0, 0.25));
    /// assert_eq!(curve.passes_do_nothing_at, Some(0.5));
    /// ```
    pub fn from_exact(
        exact: &[f64],
        area: NumberWithSpread,
        do_nothing: Option<f64>,
        display: &[usize],
    ) -> Self {
        let last = exact.len().saturating_sub(1).max(1);
        let fraction = |index: usize| index as f64 / last as f64;
        let lowest =
            exact.iter().enumerate().filter(|(_, value)| !value.is_nan()).min_by(|a, b| a.1.total_cmp(b.1));
        Self {
            values: display.iter().filter_map(|&index| exact.get(index).copied()).collect(),
            band: None,
            area,
            start: exact.first().copied().unwrap_or(f64::NAN),
            end: exact.last().copied().unwrap_or(f64::NAN),
            minimum: lowest.map_or(Point { fraction: f64::NAN, value: f64::NAN }, |(index, &value)| Point {
                fraction: fraction(index),
                value,
            }),
            passes_do_nothing_at: Verdict::from_curve(exact, do_nothing).passes_at(),
            flips: None,
            enough: None,
        }
    }
}

/// Lists the indices of the points of an exact curve that a report keeps: all of them up to
/// [`DISPLAY_POINTS`], otherwise that many at equal distances, the first and the last among them.
///
/// ```
/// assert_eq!(rehang_core::report::display_points(3), [0, 1, 2]);
/// let points = rehang_core::report::display_points(10_001);
/// assert_eq!((points.len(), points[1], points[200]), (201, 50, 10_000));
/// ```
pub fn display_points(points: usize) -> Vec<usize> {
    if points <= DISPLAY_POINTS {
        return (0..points).collect();
    }
    let (steps, last) = (DISPLAY_POINTS - 1, points - 1);
    // Whole numbers are rounded, so that every platform keeps the same points.
    (0..=steps)
        .map(|step| ((step as u128 * last as u128 + steps as u128 / 2) / steps as u128) as usize)
        .collect()
}

/// Rounds a fraction up to a percentage with one decimal. So what holds from a fraction on also holds from
/// the number that is shown.
///
/// ```
/// use rehang_core::report::percent_rounded_up;
///
/// assert_eq!([0.0, 0.0004, 0.07, 0.1234].map(percent_rounded_up), [0.0, 0.1, 7.0, 12.4]);
/// ```
pub fn percent_rounded_up(fraction: f64) -> f64 {
    // Without the subtraction, 0.07 · 1000 comes out just above 70. Adding 0 turns −0 into 0.
    (fraction * 1000.0 - 1e-9).ceil() / 10.0 + 0.0
}

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Fraction of the gallery that is re-embedded.
    #[serde(deserialize_with = "nullable::one")]
    pub fraction: f64,
    /// Value at that fraction.
    #[serde(deserialize_with = "nullable::one")]
    pub value: f64,
}

/// A band around a curve, at the curve's fractions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CurveBand {
    /// Description of the band, such as "95 % bootstrap interval over queries" or "± 1 sd over 3 seeds".
    pub about: String,
    /// Lower edge.
    #[serde(deserialize_with = "nullable::many")]
    pub low: Vec<f64>,
    /// Upper edge.
    #[serde(deserialize_with = "nullable::many")]
    pub high: Vec<f64>,
}

/// Queries whose answer changed against the start of the curve, in percent, at the curve's fractions. Where
/// the curve is the mean of several orders, so are these. A value of the curve is its start, plus `positive`,
/// less `negative`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FlipCurves {
    /// Queries that are wrong at the start and right at each fraction, in percent of all queries.
    #[serde(deserialize_with = "nullable::many")]
    pub positive: Vec<f64>,
    /// Queries that are right at the start and wrong at each fraction, in percent of all queries.
    #[serde(deserialize_with = "nullable::many")]
    pub negative: Vec<f64>,
    /// Negative flip rate against the start of the curve (new queries in the adapted gallery, with its
    /// handicap), in percent of the queries that were right at the start (RACT eq. 12).
    #[serde(default, deserialize_with = "nullable::many")]
    pub negative_flip_rate: Vec<f64>,
}

/// Calibration of one adapter: how well its σ² predicts the true squared error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterCalibration {
    /// The adapter's method, as in [`CurveSeries::method`].
    #[serde(default)]
    pub method: String,
    /// Calibration table of the adapter.
    #[serde(flatten)]
    pub table: Calibration,
    /// Kendall's τ-b of σ² with the true errors.
    #[serde(default)]
    pub kendall_tau: KendallTau,
}

/// Kendall's τ-b of σ² with each kind of true error, in `[−1, 1]`; `None` where that error was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct KendallTau {
    /// τ-b with the squared distance `‖v − h(o)‖²`.
    #[serde(default)]
    pub l2: Option<f64>,
    /// τ-b with the discriminative loss through the new head.
    #[serde(default)]
    pub discriminative: Option<f64>,
    /// τ-b with the sum of both errors.
    #[serde(default)]
    pub sum: Option<f64>,
}

/// Quality by group of items, along the curves.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupStudy {
    /// Names of the groups, `[g]`; every list over groups has this order.
    pub names: Vec<String>,
    /// Metric that is split by group, by [`ShownMetric::id`].
    pub metric: String,
    /// Share of each group in the gallery, in percent, `[g]`; empty where the groups are those of separate
    /// queries.
    #[serde(deserialize_with = "nullable::many")]
    pub gallery_share: Vec<f64>,
    /// Quality of each group when nothing is done, `[g]`; empty where not measured.
    #[serde(default, deserialize_with = "nullable::many")]
    pub do_nothing: Vec<f64>,
    /// Quality of each group in the fully native gallery, `[g]`; empty where not measured.
    #[serde(default, deserialize_with = "nullable::many")]
    pub new_model: Vec<f64>,
    /// Curves by group, one for each method and order.
    pub curves: Vec<GroupCurves>,
    /// Index in `curves` of the curve that is shown group by group.
    #[serde(default)]
    pub headline: usize,
}

impl GroupStudy {
    /// Curve that is shown group by group; `None` where there is no curve.
    pub fn headline_curve(&self) -> Option<&GroupCurves> {
        self.curves.get(self.headline).or_else(|| self.curves.first())
    }
}

/// Qualities of groups along one curve.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupCurves {
    /// Method of the adapter.
    pub method: String,
    /// Order in which items are re-embedded.
    pub order: String,
    /// Fractions of the gallery that are re-embedded, increasing from 0 to 1.
    #[serde(deserialize_with = "nullable::many")]
    pub fractions: Vec<f64>,
    /// Quality of each group at these fractions, `[g][fractions]`. With several orders it is their mean, as
    /// are all numbers here.
    #[serde(deserialize_with = "nullable::table")]
    pub values: Vec<Vec<f64>>,
    /// Best group minus worst group, `[fractions]`.
    #[serde(deserialize_with = "nullable::many")]
    pub gap: Vec<f64>,
    /// Share of each group among the items re-embedded so far, in percent, `[g][fractions]`; undefined at 0.
    #[serde(default, deserialize_with = "nullable::table")]
    pub share: Vec<Vec<f64>>,
}

impl GroupCurves {
    /// Names method and order in a few words.
    pub fn name(&self) -> String {
        CurveSeries { method: self.method.clone(), order: self.order.clone(), ..CurveSeries::default() }
            .name()
    }
}

/// Reading numbers that are `null` where they are not defined: JSON has no NaN.
mod nullable {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer};

    fn number(value: Option<f64>) -> f64 {
        value.unwrap_or(f64::NAN)
    }

    pub(super) use crate::statistics::nullable as one;

    pub(super) fn many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::deserialize(from)?.into_iter().map(number).collect())
    }

    pub(super) fn table<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<f64>>, D::Error> {
        let rows: Vec<Vec<Option<f64>>> = Vec::deserialize(from)?;
        Ok(rows.into_iter().map(|row| row.into_iter().map(number).collect()).collect())
    }

    pub(super) fn map<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
        let values: BTreeMap<String, Option<f64>> = BTreeMap::deserialize(from)?;
        Ok(values.into_iter().map(|(id, value)| (id, number(value))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distance;

    #[test]
    fn numbers_that_are_not_defined_survive_json() {
        let space = Space::new("model", 2, Distance::L2, false);
        let mut report =
            Report::new("title", CreatedBy::default(), Spaces { old: space.clone(), new: space });
        report.do_nothing.insert("map".into(), f64::NAN);
        let mut series = CurveSeries { fractions: vec![0.0, 1.0], ..CurveSeries::default() };
        series.metrics.insert("map".into(), MetricCurve::from_exact(&[], f64::NAN.into(), None, &[0]));
        report.curves.push(series);
        let text = serde_json::to_string(&report).unwrap();
        let back: Report = serde_json::from_str(&text).unwrap();
        assert!(back.do_nothing["map"].is_nan() && back.curves[0].metrics["map"].start.is_nan());
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
    }

    #[test]
    fn a_report_with_only_the_required_fields_can_be_read() {
        let space = r#"{"model":"m","dimension":2,"distance":"l2","normalised":false}"#;
        let text = format!(
            r#"{{"format_version":1,"title":"t","created_by":{{"version":"0","command":""}},"spaces":{{"old":{space},"new":{space}}}}}"#
        );
        let report: Report = serde_json::from_str(&text).unwrap();
        assert!(report.headline_curve().is_none() && report.headline_metric().is_none());
    }

    #[test]
    fn display_points_keep_both_ends_and_never_repeat() {
        for points in [0, 1, 2, 200, 201, 202, 203, 400, 401, 1_000_003] {
            let displayed = display_points(points);
            assert!(
                displayed.len() <= DISPLAY_POINTS && displayed.windows(2).all(|pair| pair[0] < pair[1]),
                "{points}"
            );
            assert_eq!(
                (displayed.first().copied(), displayed.last().copied()),
                ((points > 0).then_some(0), points.checked_sub(1))
            );
        }
    }
}
