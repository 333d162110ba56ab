//! Studies adapters and orders on a gallery whose native vectors are known, and tells the result as a
//! [`Report`].
//!
//! The gallery of a study stands for the one that will be upgraded. Its items must not be among the pairs
//! that an adapter was fitted on ([`overlap`](rehang_core::adapter::overlap) counts those that are). Every adapter
//! is applied. Every order is made from what a real upgrade will know (σ², adapted vectors, the new head; the
//! oracle alone sees true errors). The exact curve then says what each percent of re-embedding buys.

use std::collections::{BTreeMap, BTreeSet};

use rehang_core::adapter::{self, Adapted, Adapter, true_errors};
use rehang_core::curve::{
    Curve, CurveInput, CurveOptions, DoNothing, Evaluation, Line, Metric, Relevance, TOP1, curve, evaluate,
    evaluate_today,
};
use rehang_core::order::{OrderInput, Policy, group_shares, order};
use rehang_core::report::{
    AdapterCalibration, CreatedBy, CurveBand, CurveSeries, FittedOn, FlipCurves, GroupCurves, GroupStudy,
    KendallTau, MeasuredSet, MetricCurve, NumberWithSpread, Precision, Report, Scores, ShownMetric, Spaces,
    Spread, display_points, percent_rounded_up,
};
use rehang_core::statistics::{BINS, Interval, calibration, kendall_tau_b, mean_sd};
use rehang_core::verdict::{Verdict, is_below};
use rehang_core::{
    Bridge, ErrorKind, Finding, FindingCode, Head, HeadKind, Matrix, Progress, Result, Severity, Vectors,
    distinct,
};

pub use crate::queries::StudyQueries;
use crate::sizes::{expect_widths, sizes};
use crate::whole::Whole;

/// Level of every interval.
pub(crate) const LEVEL: f64 = 0.95;
/// Number of cuts at which bands are drawn from the queries. Between two cuts a band's distance from the
/// curve is interpolated.
const BAND_CUTS: usize = 41;
/// Number of counted queries below which every number is noise.
pub const QUERIES_MIN: usize = 300;
/// Widest range of a forecast at the switch, in percent, that still says something.
const WIDEST: f64 = 50.0;
/// Dip below the start that is worth a warning, in percent.
const DIP: f64 = 0.5;

/// Gallery that a study is made on, with its queries and right answers. Where its items ask for each other,
/// it is the caller who leaves out [copies](rehang_core::copies).
#[derive(Debug, Clone, Copy)]
pub struct StudyInput<'a> {
    /// Old vectors, `[n, d_old]`.
    pub old: &'a Vectors,
    /// Native vectors of the new model, `[n, d_new]`.
    pub new: &'a Vectors,
    /// Side information, `[n, d_side]`, where an adapter reads some.
    pub side: Option<&'a Matrix>,
    /// Separate queries; `None` where the gallery is its own query set and each query leaves itself out.
    pub queries: Option<StudyQueries<'a>>,
    /// Rule that makes an item a right answer; without it agreement with the fully native gallery is
    /// measured.
    pub relevance: Option<Relevance<'a>>,
    /// Whether the labels were names. Names were numbered while reading, so their numbers say nothing about
    /// the head's classes.
    pub labels_are_names: bool,
    /// A group of each query, `[m]`; negative means none.
    pub groups: Option<&'a [i64]>,
    /// The new model's head, for the orders and errors that look through it.
    pub head: Option<&'a Head>,
    /// Whole gallery that these items are a random sample of. Curves and levels are then a forecast of it,
    /// and not those of the sample.
    pub gallery: Option<StudyGallery<'a>>,
}

/// Whole gallery that the items of a study are a sample of.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StudyGallery<'a> {
    /// Old vectors of the whole gallery, `[N, d_old]`, or of a random part of it that includes the items of
    /// the study.
    pub old: &'a Vectors,
    /// Number of items of the whole gallery, N.
    pub items: usize,
    /// Row in `old` of every item of the study, `[n]`.
    pub rows: &'a [usize],
    /// Rule that makes an item of the whole gallery a right answer; without it agreement is forecast.
    pub relevance: Option<Relevance<'a>>,
    /// A bridge that was not fitted on items of the study, to say what it brings.
    pub bridge: Option<&'a Bridge>,
}

/// An adapter that takes part in a study, with its name.
#[derive(Debug, Clone)]
pub struct StudyAdapter<'a> {
    /// Name of the adapter in the report.
    pub name: String,
    /// The adapter itself.
    pub adapter: &'a Adapter,
}

/// Settings of a study: which orders are compared, and what is measured.
///
/// | name | default | purpose |
/// |---|---|---|
/// | `policies` | coverage, sigma, random, oracle | orders to compare |
/// | `random_orders` | 3 | random orders that the random line is averaged over |
/// | `bootstrap` | 1000 | resamples of the queries for intervals and bands; 0 for none |
/// | `k` | 10 | depth of mAP@k, nDCG@k, recall@k and agreement@k |
/// | `seed` | 0 | of everything random |
/// | `widths` | none | widths of new vectors that are evaluated beside the model's own |
/// | `precisions` | none | precisions of new vectors that are evaluated beside single precision |
///
/// The first of `policies` that is not [for evaluation only](Policy::is_evaluation_only) carries the verdict,
/// or the first where all are.
#[derive(Debug, Clone)]
pub struct StudyOptions {
    /// Orders to compare.
    pub policies: Vec<Policy>,
    /// Number of random orders that the random line is averaged over.
    pub random_orders: u64,
    /// Number of resamples of the queries.
    pub bootstrap: usize,
    /// Depth of the metrics that have one.
    pub k: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Widths that new vectors are cut to.
    pub widths: Vec<usize>,
    /// Precisions that new vectors are rounded to.
    pub precisions: Vec<Precision>,
}

impl Default for StudyOptions {
    fn default() -> Self {
        Self {
            policies: vec![Policy::Coverage, Policy::Sigma, Policy::Random, Policy::Oracle],
            random_orders: 3,
            bootstrap: 1000,
            k: 10,
            seed: 0,
            widths: Vec::new(),
            precisions: Vec::new(),
        }
    }
}

/// Measures every adapter with every order and puts the numbers into a report.
///
/// The report's inputs and command are left to the caller, who knows the files.
///
/// # Errors
///
/// [`ErrorKind::MissingInput`] for an order whose evidence is not given, [`ErrorKind::SpaceMismatch`] where
/// an adapter writes another space than the gallery's. Others as [`curve()`], [`order()`] and
/// [`adapter::apply`].
pub fn study(
    ground: &StudyInput<'_>,
    contenders: &[StudyAdapter<'_>],
    options: &StudyOptions,
    progress: &Progress,
) -> Result<Report> {
    if contenders.is_empty() {
        return Err(ErrorKind::Empty { what: "the list of adapters".into() }.into());
    }
    expect_widths(&options.widths, ground.new.matrix().columns())?;
    let levels = Levels::measure(ground, options, progress)?;
    let mut report = report_of_levels(ground, contenders, &levels, options);
    for contender in contenders {
        let applied = Applied::new(ground, contender, progress)?;
        if report.calibrations.is_empty() {
            report.sizes = sizes(ground, applied.adapted.vectors.matrix(), options, progress)?;
        }
        report.calibrations.push(applied.calibration(ground)?);
        let whole_gallery = ground
            .gallery
            .map(|gallery| Whole::new(gallery, contender, ground.side, progress))
            .transpose()?;
        if let Some(whole_gallery) = whole_gallery.as_ref().filter(|_| report.floors.is_none()) {
            report.floors = whole_gallery.floors(ground, progress)?;
        }
        for &policy in &options.policies {
            let head = policy.head(contender.adapter.uncertainty.head(), ground.head);
            let groups = ground.groups.filter(|_| ground.relevance.is_some());
            if let Some(whole_gallery) = whole_gallery.as_ref().filter(|_| !policy.is_evaluation_only()) {
                whole_gallery.add(&mut report, ground, (policy, head), options, progress)?;
            }
            if whole_gallery.is_some() && groups.is_none() {
                continue;
            }
            let Applied { adapted, variance, errors, .. } = &applied;
            let orders = orders(head, policy, adapted, variance, Some(errors), options, progress)?;
            let curves = applied.curves(ground, &orders, options, progress)?;
            if whole_gallery.is_none() {
                report.curves.push(series(contender, policy, &curves, &report.do_nothing, options)?);
            }
            if let Some(groups) = groups {
                let shown = group_curve(contender, policy, &curves, groups, &orders, ground)?;
                let group_study =
                    report.groups.get_or_insert_with(|| levels.by_group(groups, &curves[0], ground));
                group_study.curves.push(shown);
            }
        }
    }
    // A live upgrade cannot follow an order that is for evaluation only. Curves of the first adapter stand
    // first, in the order of the policies.
    let followed = options.policies.iter().position(|policy| !policy.is_evaluation_only());
    // The report of a whole gallery has no curves of orders that are for evaluation only.
    report.headline = followed.filter(|_| ground.gallery.is_none()).unwrap_or(0);
    if let Some(groups) = report.groups.as_mut() {
        groups.headline = followed.unwrap_or(0);
    }
    report.warnings = warnings(&report, ground, contenders, options);
    Ok(report)
}

/// Returns whether the `overlapping` items may well be other items than the pairs', although their old
/// vectors are among the pairs' and the old model cannot tell them apart: they are few, or no more than the
/// gallery has [`lookalikes`](rehang_core::adapter::lookalikes).
pub fn may_be_other_items(overlapping: usize, items: usize, lookalikes: usize) -> bool {
    overlapping * 100 <= items || overlapping <= lookalikes
}

/// Returns the warning about a number of overlapping items, for [`Report::warnings`]: severe unless they [may
/// be other items](may_be_other_items). `is_exact` says whether the number was counted or estimated from a
/// sample of the pairs. `lookalikes` is that of the gallery's old vectors.
pub fn overlap_warning(overlapping: usize, items: usize, is_exact: bool, lookalikes: usize) -> Finding {
    let about = if is_exact { "" } else { "About " };
    let are_other_items = may_be_other_items(overlapping, items, lookalikes);
    let observation = format!(
        "{about}{overlapping} of the {items} items of the gallery have an old vector that is among the pairs."
    );
    let severity = if are_other_items { Severity::Note } else { Severity::Problem };
    Finding::new(severity, FindingCode::Overlap, observation)
        .may_mean(if are_other_items {
            format!(
                "They are duplicates, or the old model cannot tell them apart, as it cannot tell {lookalikes} items of the gallery \
                 from others of it."
            )
        } else {
            "The adapter has seen their new vectors, so every curve here is too good.".into()
        })
        .remedy("Measure on items that the fit never saw, for example on other rows.")
}

/// Returns what makes an item a right answer: by default the first `k` that the native gallery gives.
pub(crate) fn relevance<'a>(ground: &StudyInput<'a>, options: &StudyOptions) -> Relevance<'a> {
    ground.relevance.unwrap_or(Relevance::Nearest(options.k))
}

pub(crate) fn depths(ground: &StudyInput<'_>, options: &StudyOptions) -> CurveOptions {
    CurveOptions {
        metrics: metrics(ground, options),
        // Queries keep their own values at these cuts, for bands.
        kept_cuts: if options.bootstrap > 0 { BAND_CUTS } else { 0 },
        ..CurveOptions::default()
    }
}

/// Begins a report with what depends on no adapter and no order: the metrics, both levels, and the items that
/// are measured.
fn report_of_levels(
    ground: &StudyInput<'_>,
    contenders: &[StudyAdapter<'_>],
    levels: &Levels,
    options: &StudyOptions,
) -> Report {
    let spaces = Spaces { old: ground.old.space().clone(), new: ground.new.space().clone() };
    let mut report = Report::new("", CreatedBy::default(), spaces);
    report.metrics =
        Metric::for_report(metrics(ground, options)).into_iter().map(ShownMetric::from).collect();
    report.do_nothing = levels.today.as_ref().map(scores).unwrap_or_default();
    report.new_model = levels.native.as_ref().map(scores).unwrap_or_default();
    if ground.relevance.is_none() {
        // The fully native gallery agrees with itself.
        report.new_model.insert(Metric::agreement_at(options.k).id(), 100.0);
    }
    let fitted_on =
        |of: &StudyAdapter<'_>| FittedOn { method: of.name.clone(), pairs: of.adapter.training.pairs };
    let items = ground.new.len();
    report.measured_on = vec![MeasuredSet {
        name: "evaluation".into(),
        pairs: contenders[0].adapter.training.pairs,
        fitted: contenders.iter().map(fitted_on).collect(),
        items,
        queries: ground.queries.map_or(items, |queries| queries.new.rows()),
        leave_one_out: ground.queries.is_none(),
        classes: classes(ground),
        left_out_queries: levels
            .native
            .as_ref()
            .map_or(0, |evaluation| evaluation.queries.given - evaluation.queries.counted),
        ..MeasuredSet::default()
    }];
    report
}

/// Levels that curves are held against: the search as it is today, and that of the fully native gallery.
struct Levels {
    /// Evaluation of old queries on old vectors; `None` where it is not measured.
    today: Option<Evaluation>,
    /// Evaluation of new queries on new vectors; `None` where it is not measured.
    native: Option<Evaluation>,
}

impl Levels {
    /// Evaluates both levels. The forecast of a whole gallery gives both itself; its sample may hold no right
    /// answer at all.
    fn measure(ground: &StudyInput<'_>, options: &StudyOptions, progress: &Progress) -> Result<Self> {
        let is_forecast = ground.gallery.is_some()
            && ground.groups.is_none()
            && options.policies.iter().any(|policy| !policy.is_evaluation_only());
        if is_forecast {
            return Ok(Self { today: None, native: None });
        }
        let today = today(ground, options, progress)?;
        let queries = ground.queries.map(|queries| queries.new);
        let evaluate_native = |relevance| {
            let (distance, depths) = (ground.new.space().distance, depths(ground, options));
            evaluate(ground.new.matrix(), queries, relevance, distance, &depths, progress)
        };
        Ok(Self { today, native: ground.relevance.map(evaluate_native).transpose()? })
    }

    /// Splits both levels by group: those of the counted queries, which are the same along every `curve`.
    fn by_group(&self, groups: &[i64], curve: &Curve, ground: &StudyInput<'_>) -> GroupStudy {
        let names: Vec<i64> = curve.groups.iter().map(|group| group.group).collect();
        let grouped = groups.iter().filter(|&&group| group >= 0).count();
        let top1 = |evaluation: Option<&Evaluation>| -> Vec<f64> {
            let Some(evaluation) = evaluation else { return Vec::new() };
            let ranks = &evaluation.per_query;
            let of_group = |&name: &i64| {
                let all = ranks.queries.iter().zip(&ranks.first_rank);
                let group_ranks: Vec<_> = all.filter(|&(&query, _)| groups[query] == name).collect();
                100.0 * group_ranks.iter().filter(|&&(_, &rank)| rank == 1).count() as f64
                    / group_ranks.len() as f64
            };
            names.iter().map(of_group).collect()
        };
        let share = |&name: &i64| {
            100.0 * groups.iter().filter(|&&group| group == name).count() as f64 / grouped as f64
        };
        GroupStudy {
            metric: TOP1.id(),
            // Groups are of queries; which group an item of the gallery belongs to is known only where the
            // queries are its items.
            gallery_share: if ground.queries.is_none() {
                names.iter().map(share).collect()
            } else {
                Vec::new()
            },
            do_nothing: top1(self.today.as_ref()),
            new_model: top1(self.native.as_ref()),
            names: names.iter().map(ToString::to_string).collect(),
            curves: Vec::new(),
            headline: 0,
        }
    }
}

/// Evaluates the search as it is today; `None` without old vectors of separate queries, since its quality is
/// unknown then.
fn today(ground: &StudyInput<'_>, options: &StudyOptions, progress: &Progress) -> Result<Option<Evaluation>> {
    let old = match ground.queries.map(|queries| queries.old) {
        None => None,
        Some(None) => return Ok(None),
        Some(old) => old,
    };
    let today =
        DoNothing { gallery: ground.old.matrix(), queries: old, distance: ground.old.space().distance };
    let (queries, distance) = (ground.queries.map(|queries| queries.new), ground.new.space().distance);
    let (relevance, depths) = (relevance(ground, options), depths(ground, options));
    evaluate_today(today, ground.new.matrix(), queries, relevance, distance, &depths, progress).map(Some)
}

/// Adapter of a study, applied to the gallery.
struct Applied<'a> {
    contender: &'a StudyAdapter<'a>,
    adapted: Adapted,
    /// σ² of every item.
    variance: Vec<f64>,
    /// True squared error of every item.
    errors: Vec<f64>,
}

impl<'a> Applied<'a> {
    /// Applies an adapter to the old vectors, and compares what it makes with the new ones.
    fn new(ground: &StudyInput<'_>, contender: &'a StudyAdapter<'a>, progress: &Progress) -> Result<Self> {
        let adapted = adapter::apply(contender.adapter, ground.old, ground.side, progress)
            .map_err(|error| error.context(format!("applying {}", contender.name)))?;
        // An adapter of the published recipe leaves the sphere of a normalised space; it is measured all the
        // same.
        ground
            .new
            .space()
            .expect_same(&contender.adapter.new)
            .map_err(|error| error.context(format!("measuring {} on this gallery", contender.name)))?;
        let errors = true_errors(ground.new.matrix(), adapted.vectors.matrix());
        let variance = adapted.variance.iter().map(|&value| f64::from(value)).collect();
        Ok(Self { contender, adapted, variance, errors })
    }

    /// Computes the exact curve along every one of `orders`.
    fn curves(
        &self,
        ground: &StudyInput<'_>,
        orders: &[Vec<usize>],
        options: &StudyOptions,
        progress: &Progress,
    ) -> Result<Vec<Curve>> {
        let depths = depths(ground, options);
        let one_curve = |permutation: &Vec<usize>| {
            let input = CurveInput {
                native: ground.new.matrix(),
                adapted: self.adapted.vectors.matrix(),
                order: permutation,
                queries: ground.queries.map(|queries| queries.new),
                relevance: relevance(ground, options),
                distance: ground.new.space().distance,
                handicap: self.contender.adapter.handicap,
                groups: ground.groups,
                // Doing nothing is the same for every curve, and the flips against it are not in the report.
                do_nothing: None,
                known: None,
            };
            curve(&input, &depths, progress)
        };
        orders.iter().map(one_curve).collect()
    }

    /// Compares σ² with the true errors, and ranks the items by it.
    fn calibration(&self, ground: &StudyInput<'_>) -> Result<AdapterCalibration> {
        let (variance, errors) = (&self.variance[..], &self.errors[..]);
        let table = calibration(variance, errors, BINS)?;
        let losses = discriminative_losses(ground, self.adapted.vectors.matrix());
        let rank = |errors: &[f64]| kendall_tau_b(variance, errors);
        let sum: Option<Vec<f64>> =
            losses.as_ref().map(|losses| losses.iter().zip(errors).map(|(a, b)| a + b).collect());
        Ok(AdapterCalibration {
            method: self.contender.name.clone(),
            table,
            kendall_tau: KendallTau {
                l2: rank(errors)?,
                discriminative: losses.as_deref().map(rank).transpose()?.flatten(),
                sum: sum.as_deref().map(rank).transpose()?.flatten(),
            },
        })
    }
}

/// Makes the permutations of one policy: several for the random one.
pub(crate) fn orders(
    head: Option<&Head>,
    policy: Policy,
    adapted: &Adapted,
    variance: &[f64],
    errors: Option<&[f64]>,
    options: &StudyOptions,
    progress: &Progress,
) -> Result<Vec<Vec<usize>>> {
    let count = if policy == Policy::Random { options.random_orders.max(1) } else { 1 };
    (0..count)
        .map(|repetition| {
            let input = OrderInput {
                items: variance.len(),
                sigma: Some(variance),
                squared_errors: errors,
                classified: head.map(|head| (head, adapted.vectors.matrix())),
                vectors: Some(adapted.vectors.matrix()),
                seed: options.seed.wrapping_add(repetition),
                progress: Some(progress),
                ..OrderInput::default()
            };
            order(policy, &input).map(|order| order.permutation)
        })
        .collect()
}

/// Lists everything that can be measured on this gallery.
fn metrics(ground: &StudyInput<'_>, options: &StudyOptions) -> Vec<Metric> {
    Metric::measurable(relevance(ground, options), options.k)
}

pub(crate) fn scores(evaluation: &Evaluation) -> Scores {
    evaluation.values.iter().map(|(metric, &value)| (metric.id(), value)).collect()
}

/// Makes one series of the report. Several curves (random orders) become their mean, flips included, with a
/// band of one deviation.
fn series(
    contender: &StudyAdapter<'_>,
    policy: Policy,
    curves: &[Curve],
    do_nothing: &Scores,
    options: &StudyOptions,
) -> Result<CurveSeries> {
    let points = curves[0].items + 1;
    let display = display_points(points);
    let last = (points - 1).max(1) as f64;
    let mut metrics = BTreeMap::new();
    for (metric, first) in curves[0].lines.iter() {
        let id = metric.id();
        let runs: Vec<&Line> = curves.iter().map(|curve| &curve.lines[metric]).collect();
        let mean = if runs.len() == 1 {
            first.values().to_vec()
        } else {
            mean_along(&runs, &(0..points).collect::<Vec<_>>(), |run, point| run.values()[point])
        };
        let areas: Vec<f64> = runs.iter().map(|run| run.area()).collect();
        let area = match mean_sd(&areas) {
            Some(spread) if spread.count > 1 => NumberWithSpread {
                value: spread.mean,
                spread: Some(Spread::Deviation { deviation: spread.sd, runs: spread.count }),
            },
            _ => areas[0].into(),
        };
        let mut curve = MetricCurve::from_exact(&mean, area, do_nothing.get(&id).copied(), &display);
        if runs.len() > 1 {
            curve.band = Some(deviation_band(&runs, &display));
        }
        metrics.insert(id, curve);
    }
    if let [only] = curves
        && options.bootstrap > 0
    {
        add_intervals(&mut metrics, only, &display, options)?;
    }
    for flipped in curves[0].flips.metrics() {
        if let Some(metric) = metrics.get_mut(&flipped.id()) {
            let percent = |count: u64| 100.0 * count as f64 / curves[0].queries.counted as f64;
            let flips: Vec<_> = curves.iter().map(|curve| &curve.flips[flipped]).collect();
            metric.flips = Some(FlipCurves {
                positive: mean_along(&flips, &display, |flips, point| percent(flips.positive[point])),
                negative: mean_along(&flips, &display, |flips, point| percent(flips.negative[point])),
                negative_flip_rate: mean_along(&flips, &display, |flips, point| flips.rate.values()[point]),
            });
        }
    }
    Ok(CurveSeries {
        method: contender.name.clone(),
        order: policy.name().into(),
        fractions: display.iter().map(|&point| point as f64 / last).collect(),
        metrics,
        handicap: contender.adapter.handicap,
    })
}

/// Averages over `runs` what each of them has at every one of `points`.
fn mean_along<R>(runs: &[R], points: &[usize], value: impl Fn(&R, usize) -> f64) -> Vec<f64> {
    points
        .iter()
        .map(|&point| runs.iter().map(|run| value(run, point)).sum::<f64>() / runs.len() as f64)
        .collect()
}

fn deviation_band(runs: &[&Line], display: &[usize]) -> CurveBand {
    let mut band = CurveBand { about: format!("± 1 sd over {} orders", runs.len()), ..CurveBand::default() };
    for &point in display {
        let values: Vec<f64> = runs.iter().map(|run| run.values()[point]).collect();
        let (mean, sd) = mean_sd(&values).map_or((f64::NAN, 0.0), |spread| (spread.mean, spread.sd));
        band.low.push(mean - sd);
        band.high.push(mean + sd);
    }
    band
}

/// Adds bootstrap intervals of areas, and bands along the curve, for the metrics that queries have one by
/// one.
fn add_intervals(
    metrics: &mut BTreeMap<String, MetricCurve>,
    curve: &Curve,
    display: &[usize],
    options: &StudyOptions,
) -> Result<()> {
    let areas = curve.area_intervals(options.bootstrap, LEVEL, options.seed)?;
    let bands = curve.bands(options.bootstrap, LEVEL, options.seed)?;
    for (metric, area) in areas.iter() {
        if let Some(shown) = metrics.get_mut(&metric.id()) {
            shown.area.spread = Some(Spread::Interval { low: area.low, high: area.high, level: LEVEL });
            let (cuts, band) = (&curve.per_query.cuts, &bands[metric]);
            shown.band = Some(band_around(&shown.values, display, cuts, band));
        }
    }
    Ok(())
}

/// Draws the band around `values` at `points`: as wide as the intervals at their cuts, interpolated in
/// between.
///
/// The distances from the curve are interpolated and not the edges: a curve may rise by half between two
/// cuts, and a straight line would leave it outside. An interval holds its mean; an interval of very few
/// resamples is widened until it does.
fn band_around(values: &[f64], points: &[usize], cuts: &[usize], intervals: &[Interval]) -> CurveBand {
    let below = interpolate(cuts, intervals, points, |interval| (interval.low - interval.estimate).min(0.0));
    let above = interpolate(cuts, intervals, points, |interval| (interval.high - interval.estimate).max(0.0));
    CurveBand {
        about: format!("{:.0} % bootstrap interval over queries", 100.0 * LEVEL),
        low: values.iter().zip(below).map(|(value, below)| (value + below).max(0.0)).collect(),
        high: values.iter().zip(above).map(|(value, above)| (value + above).min(100.0)).collect(),
    }
}

/// Interpolates a value of the intervals linearly: from ascending `cuts` to `points`.
pub(crate) fn interpolate(
    cuts: &[usize],
    intervals: &[Interval],
    points: &[usize],
    value: impl Fn(&Interval) -> f64,
) -> Vec<f64> {
    points
        .iter()
        .map(|&point| {
            let right = cuts.partition_point(|&cut| cut < point).min(cuts.len() - 1);
            let left = right.saturating_sub(1);
            let (before, after) = (value(&intervals[left]), value(&intervals[right]));
            let width = cuts[right] - cuts[left];
            if width == 0 {
                return after;
            }
            let share = (point.saturating_sub(cuts[left]) as f64 / width as f64).clamp(0.0, 1.0);
            before + share * (after - before)
        })
        .collect()
}

/// Returns the loss of every adapted item by which the new head was trained, label smoothing aside. It is
/// cross-entropy; for heads of cosines, of scaled cosines with the margin on the true class. `None` unless
/// every item's label is the number of one of the head's classes.
fn discriminative_losses(ground: &StudyInput<'_>, adapted: &Matrix) -> Option<Vec<f64>> {
    if ground.labels_are_names {
        return None;
    }
    let (Some(head), Some(Relevance::Labels { gallery, .. })) = (ground.head, ground.relevance) else {
        return None;
    };
    if head.dimension() != adapted.columns()
        || gallery.iter().any(|&label| label < 0 || label as usize >= head.classes())
    {
        return None;
    }
    let (lengths, weight_lengths) = (adapted.norms(), head.weight().norms());
    let loss = |row: usize| {
        let logits: Vec<f64> = (0..head.classes())
            .map(|class| {
                let weight = head.weight().row(class);
                let product: f64 =
                    weight.iter().zip(adapted.row(row)).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let logit = match head.kind() {
                    HeadKind::Softmax => product,
                    HeadKind::ArcFace { scale, margin } => {
                        let of_length_one = (lengths[row] * weight_lengths[class]).max(f64::MIN_POSITIVE);
                        let angle = (product / of_length_one).clamp(-1.0, 1.0).acos();
                        let is_true = gallery[row] as usize == class;
                        f64::from(scale)
                            * if is_true { with_margin(angle, f64::from(margin)) } else { angle.cos() }
                    }
                    HeadKind::CosFace { scale, margin } => {
                        let of_length_one = (lengths[row] * weight_lengths[class]).max(f64::MIN_POSITIVE);
                        let less = if gallery[row] as usize == class { f64::from(margin) } else { 0.0 };
                        f64::from(scale) * ((product / of_length_one).clamp(-1.0, 1.0) - less)
                    }
                };
                logit + f64::from(head.bias()[class])
            })
            .collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        total.ln() + largest - logits[gallery[row] as usize]
    };
    Some((0..adapted.rows()).map(loss).collect())
}

/// Returns `cos(θ + m)`; beyond π − m, where that would rise again, the straight line `cos θ − m·sin m`.
fn with_margin(angle: f64, margin: f64) -> f64 {
    if angle + margin <= std::f64::consts::PI {
        (angle + margin).cos()
    } else {
        angle.cos() - margin * margin.sin()
    }
}

fn classes(ground: &StudyInput<'_>) -> Option<usize> {
    let Some(Relevance::Labels { gallery, .. }) = ground.relevance else { return None };
    Some(distinct(gallery.iter().copied()).len())
}

/// Draws the groups along one order; several curves (random orders) become their mean.
fn group_curve(
    contender: &StudyAdapter<'_>,
    policy: Policy,
    curves: &[Curve],
    groups: &[i64],
    permutations: &[Vec<usize>],
    ground: &StudyInput<'_>,
) -> Result<GroupCurves> {
    let points = curves[0].lines[TOP1].values().len();
    let display = display_points(points);
    let fractions: Vec<f64> =
        display.iter().map(|&point| point as f64 / (points - 1).max(1) as f64).collect();
    // All orders have the same groups: those of the counted queries.
    let counted: Vec<i64> = curves[0].groups.iter().map(|group| group.group).collect();
    let values = (0..counted.len())
        .map(|group| mean_along(curves, &display, |curve, point| curve.groups[group].top1.values()[point]))
        .collect();
    let gaps: Vec<&Line> = curves.iter().filter_map(|curve| curve.gap.as_ref()).collect();
    let gap = if gaps.is_empty() {
        Vec::new()
    } else {
        mean_along(&gaps, &display, |gap, point| gap.values()[point])
    };
    // An item has a query's group only where the queries are the gallery's own items.
    let share = if ground.queries.is_none() {
        let shares_in = |permutation: &Vec<usize>| group_shares(permutation, groups, &fractions);
        let shares = permutations.iter().map(shares_in).collect::<Result<Vec<_>>>()?;
        let shown: Vec<usize> = (0..fractions.len()).collect();
        (0..shares[0].len())
            // A group without a counted query has no curve, so it has no share beside one either.
            .filter(|&group| counted.contains(&shares[0][group].0))
            .map(|group| mean_along(&shares, &shown, |shares, point| 100.0 * shares[group].1[point]))
            .collect()
    } else {
        Vec::new()
    };
    Ok(GroupCurves {
        method: contender.name.clone(),
        order: policy.name().into(),
        values,
        gap,
        share,
        fractions,
    })
}

/// Names the primary metrics, beside the verdict's own, in which the headline curve starts below doing
/// nothing, in words. In a forecast the whole range of the start has to lie below.
fn worse_at_the_switch(report: &Report, verdict_of: &str) -> Vec<String> {
    let Some(series) = report.headline_curve() else { return Vec::new() };
    let other_metrics = report.metrics.iter().filter(|metric| metric.primary && metric.id != verdict_of);
    let worse = other_metrics.filter_map(|metric| {
        let (curve, line) = (series.metrics.get(&metric.id)?, *report.do_nothing.get(&metric.id)?);
        let band = curve.band.as_ref().filter(|_| report.gallery.is_some());
        let start = band.and_then(|band| band.high.first().copied()).unwrap_or(curve.start);
        if !line.is_finite() || !is_below(start, line) {
            return None;
        }
        let passes = report.verdict_of(series, &metric.id).passes_at().map_or_else(
            || "and never passes it".to_owned(),
            |at| format!("and passes it at {:.1} % native", percent_rounded_up(at)),
        );
        Some(format!("{} is {:.1}, below doing nothing ({line:.1}), {passes}", metric.name, curve.start))
    });
    worse.collect()
}

/// Finds what a reader must not overlook in these numbers.
fn warnings(
    report: &Report,
    ground: &StudyInput<'_>,
    contenders: &[StudyAdapter<'_>],
    options: &StudyOptions,
) -> Vec<Finding> {
    let mut warnings = query_warnings(report);
    warnings.extend(one_seed_note(report, contenders));
    warnings.extend(class_names_note(ground));
    warnings.extend(dip_warning(report));
    let Some(metric) = report.headline_metric() else { return warnings };
    warnings.extend(verdict_warning(report, metric));
    warnings.extend(wide_forecast_warning(report, metric));
    warnings.extend(other_metrics_warning(report, metric));
    warnings.extend(report.calibrations.iter().flat_map(|of| calibration_warnings(of, options)));
    warnings
}

/// Whether some band shows the spread over queries, and not the one over orders.
fn has_bands_over_queries(report: &Report) -> bool {
    report
        .curves
        .iter()
        .flat_map(|series| series.metrics.values())
        .any(|curve| matches!(curve.area.spread, Some(Spread::Interval { .. })))
}

/// Warns of queries that are too few, or for the most part without a right answer.
fn query_warnings(report: &Report) -> Vec<Finding> {
    let mut warnings = Vec::new();
    let Some(set) = report.measured_on.first() else { return warnings };
    let counted = set.queries - set.left_out_queries;
    if counted < QUERIES_MIN {
        let warning =
            Finding::warning(FindingCode::FewQueries, format!("Only {counted} queries were counted."))
                .may_mean("Differences of a few percent between curves can be chance.")
                .remedy(if has_bands_over_queries(report) {
                    "Measure on more queries, and look at the bands."
                } else {
                    "Measure on more queries."
                });
        warnings.push(warning);
    }
    if set.left_out_queries * 2 > set.queries {
        let (left_out, all) = (set.left_out_queries, set.queries);
        let observation = format!("{left_out} of {all} queries have no right answer in the gallery.");
        let warning = Finding::warning(FindingCode::LeftOutQueries, observation)
            .may_mean("The numbers speak about the smaller part of the queries.")
            .remedy("Check labels and ids; a wrong join looks like this.");
        warnings.push(warning);
    }
    warnings
}

/// Notes that no method was fitted with more than one seed, where that is so.
fn one_seed_note(report: &Report, contenders: &[StudyAdapter<'_>]) -> Option<Finding> {
    let mut seeds: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for contender in contenders {
        let training = &contender.adapter.training;
        seeds.entry(&training.method).or_default().insert(training.seed);
    }
    // Another method's other seed says nothing about the spread of either method.
    if seeds.values().any(|of_method| of_method.len() > 1) {
        return None;
    }
    let seed = contenders[0].adapter.training.seed;
    let observation = if contenders.len() == 1 {
        format!("The adapter was fitted with seed {seed} only.")
    } else if seeds.values().all(|of_method| of_method.contains(&seed)) {
        format!("Every adapter was fitted with seed {seed} only.")
    } else {
        let named = |(method, seeds): (_, &BTreeSet<u64>)| {
            seeds.iter().map(|seed| format!("{method} with seed {seed}")).collect::<Vec<_>>()
        };
        let named_fits: Vec<String> = seeds.iter().flat_map(named).collect();
        format!("No method was fitted with more than one seed: {}.", named_fits.join(", "))
    };
    let note = Finding::note(FindingCode::OneSeed, observation)
        .may_mean(if has_bands_over_queries(report) {
            "The bands show the spread over queries, not the spread over fits."
        } else {
            "How far the curves of another fit would differ is not known."
        })
        .remedy("Fit with other seeds and compare the areas.");
    Some(note)
}

/// Notes that labels are names, where a head would need them as numbers.
fn class_names_note(ground: &StudyInput<'_>) -> Option<Finding> {
    (ground.labels_are_names && ground.head.is_some()).then(|| {
        Finding::note(FindingCode::NamesForClasses, "The labels are names, and a head numbers its classes.")
            .may_mean(
                "No class of the head has a name, so Kendall's τ with the discriminative loss, and with the sum, is left out.",
            )
            .remedy("Give labels as whole numbers, in the head's numbering of the classes.")
    })
}

/// Warns where a metric falls along the headline curve before it rises.
fn dip_warning(report: &Report) -> Option<Finding> {
    let series = report.headline_curve()?;
    let falls: Vec<String> = report
        .metrics
        .iter()
        .filter_map(|metric| Some((metric, series.metrics.get(&metric.id)?)))
        .filter(|(_, curve)| curve.minimum.value < curve.start - DIP)
        .map(|(metric, curve)| {
            format!(
                "{} curve falls from {:.1} to {:.1} at {:.0} %",
                metric.name,
                curve.start,
                curve.minimum.value,
                100.0 * curve.minimum.fraction
            )
        })
        .collect();
    let rise = match falls.len() {
        0 => return None,
        1 => "it rises",
        _ => "they rise",
    };
    let warning = Finding::warning(FindingCode::Dip, format!("The {} before {rise}.", falls.join(", the ")))
        .may_mean(
            "Native and adapted vectors do not mix well: their lengths or directions differ systematically.",
        )
        .remedy("Compare other methods, and check that the distance is the one of the new model.");
    Some(warning)
}

/// Warns where the verdict is not to switch, or not yet.
fn verdict_warning(report: &Report, metric: &ShownMetric) -> Option<Finding> {
    let curve = report.headline_curve()?.metrics.get(&metric.id)?;
    let line = report.do_nothing.get(&metric.id)?;
    match report.verdict() {
        Verdict::DoNotSwitch => {
            let observation = format!(
                "Even with everything re-embedded, {} is {:.1} where doing nothing gives {line:.1}.",
                metric.name, curve.end
            );
            let problem = Finding::problem(FindingCode::NeverBetter, observation)
                .may_mean(
                    "The new model is worse than the old one on these items, or the files do not belong together.",
                )
                .remedy("Do not switch; check the pairing of rows and the distance of each space.");
            Some(problem)
        }
        Verdict::ReembedFirst { until } => {
            let observation = format!(
                "At the switch {} is {:.1}{} doing nothing ({line:.1}); the curve passes it at {:.1} %.",
                metric.name,
                curve.start,
                if is_below(curve.start, *line) { ", below" } else { ", but it falls below" },
                percent_rounded_up(until)
            );
            let note = Finding::note(FindingCode::SwitchLater, observation)
                .may_mean("Switching at once would make searches worse for a while.")
                .remedy("Re-embed up to that point before queries move to the new model.");
            Some(note)
        }
        Verdict::SwitchNow | Verdict::NotMeasured => None,
    }
}

/// Warns where the forecast of a whole gallery leaves nearly everything open at the switch.
fn wide_forecast_warning(report: &Report, metric: &ShownMetric) -> Option<Finding> {
    let gallery = report.gallery.as_ref()?;
    let band = report.headline_curve()?.metrics.get(&metric.id)?.band.as_ref()?;
    let (low, high) = (band.low.first()?, band.high.first()?);
    (high - low > WIDEST).then(|| {
        let observation = format!(
            "{} at the switch lies between {low:.1} and {high:.1}: {} held-out items say little of a gallery of {}.",
            metric.name, gallery.held_out, gallery.items
        );
        Finding::warning(FindingCode::WideForecast, observation)
            .may_mean("The middle of so wide a range is hardly more than a guess.")
            .remedy(
                "Draw more pairs; or give labels, or queries with judgements, which ask the whole gallery.",
            )
    })
}

/// Warns where other metrics than the verdict's are worse at the switch than without an upgrade.
fn other_metrics_warning(report: &Report, metric: &ShownMetric) -> Option<Finding> {
    let falling_metrics = worse_at_the_switch(report, &metric.id);
    if falling_metrics.is_empty() {
        return None;
    }
    let warning = Finding::warning(FindingCode::AnotherMetricFalls, format!("At the switch {}.", falling_metrics.join("; ")))
        .may_mean(format!(
            "The verdict speaks of {} alone. Where one metric gains and another loses, the first results get worse while the lists get better, or the \
             other way round.",
            metric.name
        ))
        .remedy(
            "Ask which of them your users feel. If it is the one that falls, re-embed up to that point before the switch, or serve fused searches.",
        );
    Some(warning)
}

/// Warns where σ² of an adapter is no measure of the true errors, or hardly ranks them.
fn calibration_warnings(calibration: &AdapterCalibration, options: &StudyOptions) -> Vec<Finding> {
    let mut warnings = Vec::new();
    let (method, ratio) = (&calibration.method, calibration.table.ratio);
    if ratio.is_finite() && !(0.5..=2.0).contains(&ratio) {
        let observation = format!("The mean σ² of {method} is {ratio:.2} times the mean true error.");
        let warning = Finding::warning(FindingCode::Calibration, observation)
            .may_mean("This gallery differs from the pairs: σ² cannot be read as an error here.")
            .remedy("Its order may still be good; compare it with the random order.");
        warnings.push(warning);
    }
    if let Some(tau) = calibration.kendall_tau.l2.filter(|&tau| tau < 0.05)
        && options.policies.contains(&Policy::Sigma)
    {
        let observation = format!("σ² of {method} hardly ranks the true errors (Kendall τ-b {tau:.2}).");
        let warning = Finding::warning(FindingCode::UninformativeSigma, observation)
            .may_mean("Worst first is no better than chance here.")
            .remedy("Use the coverage order, or add pairs that look like this gallery.");
        warnings.push(warning);
    }
    warnings
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rehang_core::adapter::{Dense, InputScaling, Map, Training, Uncertainty};
    use rehang_core::curve::Qrels;
    use rehang_core::report::Point;
    use rehang_core::{Distance, Space};
    use std::f64::consts::PI;

    fn space(model: &str) -> Space {
        Space::new(model, 1, Distance::L2, false)
    }

    /// Returns an adapter that leaves every vector as it is.
    fn identity(pairs: usize) -> Adapter {
        let layer = Dense { weight: Matrix::new(1, vec![1.0]).unwrap(), bias: vec![0.0], relu: false };
        let map = Map::from_layers(InputScaling::AsIs, vec![layer]);
        let training = Training { method: "identity".into(), pairs, ..Training::default() };
        Adapter {
            training,
            ..Adapter::new(space("old"), space("new"), map, Uncertainty::Constant { variance: 1.0 })
        }
    }

    fn vectors(model: &str, places: impl Fn(usize) -> f32) -> Vectors {
        Vectors::new(space(model), Matrix::from_fn(300, 1, |row, _| places(row)), model).unwrap()
    }

    fn options(policies: &[Policy], bootstrap: usize) -> StudyOptions {
        StudyOptions { policies: policies.to_vec(), bootstrap, ..StudyOptions::default() }
    }

    /// Makes a study of 300 items and 60 queries by two adapters. A third of the queries finds item 100 once
    /// that is native, a third item 103, and the last third finds item 200 until item 201 is native.
    fn steep(policies: &[Policy], bootstrap: usize) -> Report {
        let old = vectors("old", |item| match item {
            100 => 20.0,
            103 => -100.0,
            200 => -51.0,
            _ => 10.0,
        });
        let new = vectors("new", |item| match item {
            100 => 0.0,
            103 => 100.0,
            200 => -60.0,
            201 => -50.0,
            _ => 10.0,
        });
        let labels: Vec<i64> = (0..300)
            .map(|item| match item {
                100 => 1,
                103 => 2,
                200 => 3,
                _ => 0,
            })
            .collect();
        let queries = Matrix::from_fn(60, 1, |query, _| [0.0, 100.0, -50.0][query % 3]);
        let query_labels: Vec<i64> = (0..60).map(|query| query % 3 + 1).collect();
        let groups: Vec<i64> = (0..60).map(|query| query / 40).collect();
        let ground = StudyInput {
            old: &old,
            new: &new,
            side: None,
            queries: Some(StudyQueries { new: &queries, old: None }),
            relevance: Some(Relevance::Labels { gallery: &labels, queries: Some(&query_labels) }),
            labels_are_names: false,
            groups: Some(&groups),
            head: None,
            gallery: None,
        };
        let (one, other) = (identity(7), identity(9));
        let contenders = [
            StudyAdapter { name: "one".into(), adapter: &one },
            StudyAdapter { name: "other".into(), adapter: &other },
        ];
        study(&ground, &contenders, &options(policies, bootstrap), &Progress::default()).unwrap()
    }

    #[test]
    fn flips_and_groups_tell_what_their_curve_tells() {
        let report = steep(&[Policy::Random, Policy::Sigma], 0);
        let groups = report.groups.as_ref().unwrap();
        for (series, groups) in report.curves.iter().zip(&groups.curves) {
            let curve = &series.metrics["top1"];
            let flips = curve.flips.as_ref().unwrap();
            assert!(flips.negative.iter().any(|&lost| lost > 0.0), "{}", series.name());
            for (point, &value) in curve.values.iter().enumerate() {
                let told = curve.start + flips.positive[point] - flips.negative[point];
                assert!((value - told).abs() < 1e-9, "{} at point {point}: {value} {told}", series.name());
                let rate = 100.0 * flips.negative[point] / curve.start;
                assert!((flips.negative_flip_rate[point] - rate).abs() < 1e-9);
                // Two thirds of the queries are in the first group.
                let mean = (2.0 * groups.values[0][point] + groups.values[1][point]) / 3.0;
                assert!((value - mean).abs() < 1e-9, "{} at point {point}: {value} {mean}", series.name());
                let gap = (groups.values[0][point] - groups.values[1][point]).abs();
                assert!(
                    groups.gap[point] >= gap - 1e-9,
                    "a mean of gaps is no smaller than the gap of means"
                );
            }
        }
        let random = &report.curves[0].metrics["top1"];
        assert!(random.area.spread.is_some_and(|spread| matches!(spread, Spread::Deviation { runs: 3, .. })));
    }

    #[test]
    fn shares_of_groups_are_those_of_all_random_orders() {
        let old = vectors("old", |item| item as f32);
        let new = vectors("new", |item| item as f32);
        let labels: Vec<i64> = (0..300).map(|item| item / 3).collect();
        let groups: Vec<i64> = (0..300).map(|item| i64::from(item % 3 == 0)).collect();
        let ground = StudyInput {
            old: &old,
            new: &new,
            side: None,
            queries: None,
            relevance: Some(Relevance::Labels { gallery: &labels, queries: None }),
            labels_are_names: false,
            groups: Some(&groups),
            head: None,
            gallery: None,
        };
        let adapter = identity(7);
        let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
        let report =
            study(&ground, &contenders, &options(&[Policy::Random], 0), &Progress::default()).unwrap();
        let group_curves = &report.groups.as_ref().unwrap().curves[0];
        let shares: Vec<Vec<(i64, Vec<f64>)>> = (0..3)
            .map(|seed| {
                let input = OrderInput { items: 300, seed, ..OrderInput::default() };
                let shuffled = order(Policy::Random, &input).unwrap().permutation;
                group_shares(&shuffled, &groups, &group_curves.fractions).unwrap()
            })
            .collect();
        for group in 0..2 {
            assert!(group_curves.share[group][0].is_nan());
            for point in 1..group_curves.fractions.len() {
                let mean = shares.iter().map(|shares| 100.0 * shares[group].1[point]).sum::<f64>() / 3.0;
                assert!(
                    (group_curves.share[group][point] - mean).abs() < 1e-9,
                    "group {group} at point {point}"
                );
            }
        }
    }

    #[test]
    fn a_band_holds_its_curve_however_steep_that_is() {
        let report = steep(&[Policy::Sigma], 100);
        for (id, metric) in &report.curves[0].metrics {
            let Some(band) = &metric.band else { continue };
            assert_eq!((band.low.len(), band.high.len()), (metric.values.len(), metric.values.len()));
            for (point, value) in metric.values.iter().enumerate() {
                let (low, high) = (band.low[point], band.high[point]);
                assert!((0.0..=*value).contains(&low) && (*value..=100.0).contains(&high), "{id} at {point}");
            }
        }
        let top1 = &report.curves[0].metrics["top1"];
        // A third of the queries is gained from one displayed point to the next but one.
        assert!(top1.values.windows(3).any(|three| three[2] - three[0] > 30.0));
        let widths = top1.band.as_ref().unwrap().high.iter().zip(&top1.values);
        assert!(widths.map(|(high, value)| high - value).fold(0.0, f64::max) > 1.0);
    }

    #[test]
    fn every_adapter_is_named_and_an_order_that_nobody_can_follow_gives_no_verdict() {
        let report = steep(&[Policy::Oracle, Policy::Sigma], 0);
        assert_eq!(report.headline_curve().map(CurveSeries::name).as_deref(), Some("one · sigma"));
        let groups = report.groups.as_ref().unwrap();
        assert_eq!(groups.headline_curve().map(GroupCurves::name).as_deref(), Some("one · sigma"));
        assert_eq!(steep(&[Policy::Oracle], 0).headline, 0);

        let fitted: Vec<(&str, usize)> =
            report.measured_on[0].fitted.iter().map(|of| (of.method.as_str(), of.pairs)).collect();
        assert_eq!(fitted, [("one", 7), ("other", 9)]);
        let methods: Vec<&str> = report.calibrations.iter().map(|of| of.method.as_str()).collect();
        assert_eq!(methods, ["one", "other"]);
        let observations: Vec<&str> = report
            .warnings
            .iter()
            .filter(|warning| warning.code == FindingCode::Calibration)
            .map(|warning| warning.seen.as_str())
            .collect();
        assert_eq!(observations.len(), 2);
        assert!(
            observations[0].contains("σ² of one is") && observations[1].contains("σ² of other is"),
            "{observations:?}"
        );
    }

    #[test]
    fn bands_over_queries_are_spoken_of_where_there_are_some() {
        for bootstrap in [0, 50] {
            let report = steep(&[Policy::Sigma], bootstrap);
            let note = report.warnings.iter().find(|warning| warning.code == FindingCode::OneSeed).unwrap();
            assert_eq!(note.may_mean.contains("bands"), bootstrap > 0, "{}", note.may_mean);
        }
    }

    /// Returns a gallery that is its own set of queries, in classes where `relevance` says so.
    pub(crate) fn plain<'a>(
        old: &'a Vectors,
        new: &'a Vectors,
        relevance: Option<Relevance<'a>>,
    ) -> StudyInput<'a> {
        StudyInput {
            old,
            new,
            side: None,
            queries: None,
            relevance,
            labels_are_names: false,
            groups: None,
            head: None,
            gallery: None,
        }
    }

    #[test]
    fn losses_through_a_head_are_those_that_it_is_trained_with() {
        let (items, labels) = (vectors("new", |_| 0.0), [0_i64, 1]);
        let adapted = Matrix::new(2, vec![2.0, 0.0, 3.0, 4.0]).unwrap();
        let (scale, turned) = (2.0, |cosine: f64| (cosine.acos() + PI / 6.0).cos());
        // Logits of the true and of the other class of both items, whose cosines are (1, 0) and (0.6, 0.8).
        for (kind, logits) in [
            (HeadKind::Softmax, [[2.0, 0.0], [8.0, 3.0]]),
            (
                HeadKind::ArcFace { scale: 2.0, margin: std::f32::consts::PI / 6.0 },
                [[scale * turned(1.0), 0.0], [scale * turned(0.8), scale * 0.6]],
            ),
            (HeadKind::CosFace { scale: 2.0, margin: 0.25 }, [[1.5, 0.0], [1.1, 1.2]]),
        ] {
            let head = Head::new(Matrix::new(2, vec![1.0, 0.0, 0.0, 2.0]).unwrap(), None, kind).unwrap();
            let relevance = Some(Relevance::Labels { gallery: &labels, queries: None });
            let ground = StudyInput { head: Some(&head), ..plain(&items, &items, relevance) };
            let losses = discriminative_losses(&ground, &adapted).unwrap();
            for (loss, [right, wrong]) in losses.iter().zip(logits) {
                let expected = (1.0 + f64::exp(wrong - right)).ln();
                assert!((loss - expected).abs() < 1e-6, "{kind:?}: {loss} {expected}");
            }
        }
    }

    #[test]
    fn the_correlation_of_sigma_is_that_with_each_loss_and_with_their_sum() {
        let place = |item: usize| 3.0 * (item as f32 + 1.0) / 300.0;
        let (old, new) = (vectors("old", place), vectors("new", |item| 1.5 * place(item)));
        let labels = vec![0_i64; 300];
        let head = Head::new(Matrix::new(1, vec![1.0, -1.0]).unwrap(), None, HeadKind::Softmax).unwrap();
        let relevance = Some(Relevance::Labels { gallery: &labels, queries: None });
        let ground = StudyInput { head: Some(&head), ..plain(&old, &new, relevance) };
        // σ² grows with the place, and so does the squared error (h/2)²; ln(1 + e^(−2h)) falls.
        let uncertainty = Uncertainty::Linear { weight: vec![1.0], bias: 0.0 };
        let adapter = Adapter { uncertainty, ..identity(7) };
        let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
        let report =
            study(&ground, &contenders, &options(&[Policy::Random], 0), &Progress::default()).unwrap();
        let tau = &report.calibrations[0].kendall_tau;
        assert_eq!((tau.l2, tau.discriminative), (Some(1.0), Some(-1.0)));
        let sum = |item: usize| {
            let h = f64::from(place(item));
            h * h / 4.0 + (1.0 + (-2.0 * h).exp()).ln()
        };
        let pairs = (0..300).flat_map(|a| (0..a).map(move |b| if sum(a) > sum(b) { 1.0 } else { -1.0 }));
        let expected = pairs.sum::<f64>() / (300.0 * 299.0 / 2.0);
        assert!(tau.sum.is_some_and(|tau| (tau - expected).abs() < 1e-3), "{tau:?} {expected}");
    }

    #[test]
    fn names_are_no_classes_of_a_head() {
        let items = vectors("new", |item| item as f32);
        let labels: Vec<i64> = (0..300).map(|item| item / 100).collect();
        let head = Head::new(Matrix::new(1, vec![1.0, 0.0, -1.0]).unwrap(), None, HeadKind::Softmax).unwrap();
        let old = vectors("old", |item| item as f32);
        for labels_are_names in [false, true] {
            let relevance = Some(Relevance::Labels { gallery: &labels, queries: None });
            let ground = StudyInput { labels_are_names, head: Some(&head), ..plain(&old, &items, relevance) };
            assert_eq!(discriminative_losses(&ground, items.matrix()).is_none(), labels_are_names);
            let adapter = identity(7);
            let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
            let report =
                study(&ground, &contenders, &options(&[Policy::Random], 0), &Progress::default()).unwrap();
            let is_said = report.warnings.iter().any(|warning| warning.code == FindingCode::NamesForClasses);
            assert_eq!(is_said, labels_are_names);
        }
    }

    #[test]
    fn without_labels_the_two_lines_are_those_of_agreement() {
        // The old model sees the gallery the other way round, and a tenth of it in another place.
        let new = vectors("new", |item| item as f32);
        let old = vectors("old", |item| if item < 30 { 500.0 - item as f32 } else { -(item as f32) });
        let adapter = identity(7);
        let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
        let report_on = |ground: &StudyInput<'_>| {
            study(ground, &contenders, &options(&[Policy::Random], 0), &Progress::default()).unwrap()
        };
        let report = report_on(&plain(&old, &new, None));
        let line = report.do_nothing["agreement@10"];
        assert!(line > 90.0 && line < 100.0, "only neighbours across the border are lost: {line}");
        assert_eq!(report.new_model["agreement@10"], 100.0);
        assert!(report.curves[0].metrics["agreement@10"].passes_do_nothing_at.is_some());

        let queries = Some(StudyQueries { new: new.matrix(), old: None });
        assert!(report_on(&StudyInput { queries, ..plain(&old, &new, None) }).do_nothing.is_empty());
        let queries = Some(StudyQueries { new: new.matrix(), old: Some(new.matrix()) });
        assert!(!report_on(&StudyInput { queries, ..plain(&old, &new, None) }).do_nothing.is_empty());
    }

    #[test]
    fn every_metric_has_a_band_and_an_interval() {
        let new = vectors("new", |item| item as f32);
        let old = vectors("old", |item| (item * 7 % 300) as f32);
        let judged =
            Qrels::new((0..300).map(|item| vec![((item + 1) % 300, 2.0), ((item + 5) % 300, 1.0)]).collect());
        let judged = judged.unwrap();
        let adapter = identity(7);
        let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
        for (relevance, headline) in
            [(Some(Relevance::Judgements(&judged)), "ndcg@10"), (None, "agreement@10")]
        {
            let ground = plain(&old, &new, relevance);
            let report =
                study(&ground, &contenders, &options(&[Policy::Sigma], 50), &Progress::default()).unwrap();
            assert_eq!(report.headline_metric().unwrap().id, headline);
            for (id, metric) in &report.curves[0].metrics {
                assert!(metric.band.is_some(), "{id}");
                let Some(Spread::Interval { low, high, .. }) = metric.area.spread else { panic!("{id}") };
                assert!((low - 1e-9..=high + 1e-9).contains(&metric.area.value), "{id}");
            }
        }
    }

    #[test]
    fn seeds_of_several_methods_are_no_spread_of_one() {
        let new = vectors("new", |item| item as f32);
        let old = vectors("old", |item| item as f32);
        let seed_warning = |fitted: &[(&str, u64)]| {
            let adapters: Vec<Adapter> = fitted
                .iter()
                .map(|&(method, seed)| {
                    let mut adapter = identity(7);
                    (adapter.training.method, adapter.training.seed) = (method.into(), seed);
                    adapter
                })
                .collect();
            let contenders: Vec<StudyAdapter<'_>> =
                adapters.iter().map(|adapter| StudyAdapter { name: "one".into(), adapter }).collect();
            let ground = plain(&old, &new, None);
            let report =
                study(&ground, &contenders, &options(&[Policy::Random], 0), &Progress::default()).unwrap();
            let warning = report.warnings.into_iter().find(|warning| warning.code == FindingCode::OneSeed);
            warning.map(|warning| warning.seen)
        };
        assert_eq!(seed_warning(&[("fct", 3)]).unwrap(), "The adapter was fitted with seed 3 only.");
        assert_eq!(
            seed_warning(&[("fct", 3), ("ridge", 3)]).unwrap(),
            "Every adapter was fitted with seed 3 only."
        );
        assert_eq!(
            seed_warning(&[("ridge", 0), ("fct", 1)]).unwrap(),
            "No method was fitted with more than one seed: fct with seed 1, ridge with seed 0."
        );
        assert_eq!(seed_warning(&[("fct", 0), ("ridge", 0), ("fct", 1)]), None);
    }

    #[test]
    fn a_dip_of_any_metric_of_the_headline_curve_is_said() {
        let new = vectors("new", |item| item as f32);
        let old = vectors("old", |item| item as f32);
        let labels: Vec<i64> = (0..300).map(|item| item / 3).collect();
        let ground = plain(&old, &new, Some(Relevance::Labels { gallery: &labels, queries: None }));
        let adapter = identity(7);
        let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
        let options = options(&[Policy::Random], 0);
        let mut report = study(&ground, &contenders, &options, &Progress::default()).unwrap();
        let mut expected = [
            "The Top-1 curve falls from 60.0 to 59.0 at 25 % before it rises.",
            "The mAP curve falls from 60.0 to 59.0 at 25 %, the Top-1 curve falls from 60.0 to 59.0 at 25 % before they rise.",
        ]
        .into_iter();
        for id in ["top1", "map"] {
            assert!(!report.warnings.iter().any(|warning| warning.code == FindingCode::Dip));
            let curve = report.curves[0].metrics.get_mut(id).unwrap();
            (curve.start, curve.minimum) = (60.0, Point { fraction: 0.25, value: 59.0 });
            let findings = warnings(&report, &ground, &contenders, &options);
            let dips: Vec<&str> = findings
                .iter()
                .filter(|warning| warning.code == FindingCode::Dip)
                .map(|warning| warning.seen.as_str())
                .collect();
            assert_eq!(dips, [expected.next().unwrap()]);
        }
    }

    #[test]
    fn a_metric_that_falls_at_the_switch_beside_the_one_of_the_verdict_is_said() {
        let new = vectors("new", |item| item as f32);
        let old = vectors("old", |item| item as f32);
        let labels: Vec<i64> = (0..300).map(|item| item / 3).collect();
        let ground = plain(&old, &new, Some(Relevance::Labels { gallery: &labels, queries: None }));
        let adapter = identity(7);
        let contenders = [StudyAdapter { name: "one".into(), adapter: &adapter }];
        let options = options(&[Policy::Random], 0);
        let mut report = study(&ground, &contenders, &options, &Progress::default()).unwrap();
        let metric_warning = |report: &Report| {
            let findings = warnings(report, &ground, &contenders, &options);
            let falls = |warning: &Finding| warning.code == FindingCode::AnotherMetricFalls;
            findings.into_iter().find(falls).map(|warning| warning.seen)
        };
        report.do_nothing = [("map".to_owned(), 50.0), ("top1".to_owned(), 91.0)].into();
        let metrics = &mut report.curves[0].metrics;
        metrics.get_mut("map").unwrap().start = 60.0;
        let top1 = metrics.get_mut("top1").unwrap();
        (top1.start, top1.passes_do_nothing_at) = (91.0, Some(0.0));
        assert_eq!(metric_warning(&report), None, "as good as today");
        let top1 = report.curves[0].metrics.get_mut("top1").unwrap();
        (top1.start, top1.passes_do_nothing_at) = (71.0, Some(0.37));
        let expected =
            "At the switch Top-1 is 71.0, below doing nothing (91.0), and passes it at 37.0 % native.";
        assert_eq!(metric_warning(&report).as_deref(), Some(expected));
        // The whole range of a forecast has to lie below.
        let top1 = report.curves[0].metrics.get_mut("top1").unwrap();
        let edge = |by: f64| vec![71.0 + by; top1.values.len()];
        top1.band = Some(CurveBand { about: String::new(), low: edge(-25.0), high: edge(25.0) });
        assert_eq!(metric_warning(&report).as_deref(), Some(expected), "a band around what was measured");
        let do_nothing = [].into();
        report.gallery = Some(rehang_core::report::WholeGallery {
            items: 9000,
            held_out: 300,
            speaks_of: 9000,
            do_nothing,
            bridge: [].into(),
        });
        assert_eq!(metric_warning(&report), None);
        // A range that says hardly anything is said too, for the metric of the verdict.
        let is_wide = |report: &Report| {
            let findings = warnings(report, &ground, &contenders, &options);
            findings.iter().any(|warning| warning.code == FindingCode::WideForecast)
        };
        assert!(!is_wide(&report));
        for (high, expected) in [(70.0, false), (71.0, true)] {
            let map = report.curves[0].metrics.get_mut("map").unwrap();
            let edge = |at: f64| vec![at; map.values.len()];
            map.band = Some(CurveBand { about: String::new(), low: edge(20.0), high: edge(high) });
            assert_eq!(is_wide(&report), expected);
        }
    }

    #[test]
    fn a_margin_turns_the_angle_and_never_rises_again() {
        assert!(with_margin(PI / 3.0, PI / 6.0).abs() < 1e-12);
        assert_eq!(with_margin(0.7, 0.0), 0.7f64.cos());
        let values: Vec<f64> = (0..=100).map(|step| with_margin(PI * f64::from(step) / 100.0, 0.5)).collect();
        assert!(values.windows(2).all(|pair| pair[0] > pair[1]));
    }
}
