//! A study: adapters and orders measured on a gallery whose native vectors are known, told as a [`Report`].
//!
//! The gallery of a study stands for the one that will be upgraded: its items must not be among the pairs that an
//! adapter was fitted on ([`overlap`] counts those that are). Every adapter is applied, every order is made from what
//! will be known then (σ², adapted vectors, the new head; the oracle alone sees true errors), and the exact curve says
//! what each percent of re-embedding buys.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::adapter::{self, Adapted, Adapter};
use crate::curve::{
    Curve, CurveInput, CurveOptions, DoNothing, Evaluation, Line, Relevance, agreement, curve, evaluate,
};
use crate::error::{ErrorKind, Result};
use crate::head::{Head, HeadKind};
use crate::order::{OrderInput, Policy, group_places, order};
use crate::progress::Progress;
use crate::report::{
    Band, Calibration, CalibrationBin, CreatedBy, CurveSeries, Estimate, Flips, GroupCurves, GroupStudy,
    KendallTau, MeasuredSet, Metric, MetricCurve, Report, Scores, Severity, Spaces, Spread, Warning,
    display_points,
};
use crate::statistics::{Interval, calibration, kendall_tau_b, mean_sd};
use crate::vectors::{Matrix, Vectors};

/// Level of every interval.
const LEVEL: f64 = 0.95;
/// Cuts at which bands are drawn from the queries; between them they are interpolated.
const BAND_CUTS: usize = 41;
/// Bins of the calibration table.
const CALIBRATION_BINS: usize = 10;
/// Fewer counted queries than this make every number noise.
const QUERIES_MIN: usize = 300;
/// A dip below the start that is worth a warning, in percent.
const DIP: f64 = 0.5;

/// The gallery that a study is made on.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// Old vectors, `[n, d_old]`.
    pub old: &'a Vectors,
    /// Native vectors of the new model, `[n, d_new]`.
    pub new: &'a Vectors,
    /// Side information, `[n, d_side]`, where an adapter reads some.
    pub side: Option<&'a Matrix>,
    /// Separate queries; `None` where the gallery is its own query set and each query leaves itself out.
    pub queries: Option<Queries<'a>>,
    /// What is a right answer; without it agreement with the fully native gallery is measured.
    pub relevance: Option<Relevance<'a>>,
    /// A group of each query, `[m]`; negative means none.
    pub groups: Option<&'a [i64]>,
    /// The new model's head, for the orders and errors that look through it.
    pub head: Option<&'a Head>,
}

/// Separate queries, embedded by both models.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// By the new model, `[m, d_new]`.
    pub new: &'a Matrix,
    /// By the old model, `[m, d_old]`, for the do-nothing line.
    pub old: Option<&'a Matrix>,
}

/// An adapter that takes part.
#[derive(Debug, Clone)]
pub struct Contender<'a> {
    /// Its name in the report.
    pub name: String,
    /// The adapter.
    pub adapter: &'a Adapter,
}

/// What is measured.
///
/// | name | default | purpose |
/// |---|---|---|
/// | `policies` | coverage, sigma, random, oracle | orders to compare; the first one carries the verdict |
/// | `random_orders` | 3 | random orders that the random line is averaged over |
/// | `bootstrap` | 1000 | resamples of the queries for intervals and bands; 0 for none |
/// | `k` | 10 | depth of mAP@k, nDCG@k, recall@k and agreement@k |
/// | `seed` | 0 | of everything random |
#[derive(Debug, Clone)]
pub struct StudyOptions {
    /// Orders to compare.
    pub policies: Vec<Policy>,
    /// Random orders that the random line is averaged over.
    pub random_orders: u64,
    /// Resamples of the queries.
    pub bootstrap: usize,
    /// Depth of the metrics with a depth.
    pub k: usize,
    /// Seed.
    pub seed: u64,
}

impl Default for StudyOptions {
    fn default() -> Self {
        Self {
            policies: vec![Policy::Coverage, Policy::Sigma, Policy::Random, Policy::Oracle],
            random_orders: 3,
            bootstrap: 1000,
            k: 10,
            seed: 0,
        }
    }
}

/// Measures every adapter with every order and puts the numbers into a report.
///
/// The report's inputs, command and comparison of methods are left to the caller, who knows the files.
///
/// # Errors
///
/// [`ErrorKind::MissingInput`] for an order whose evidence is not given, [`ErrorKind::SpaceMismatch`] where an adapter
/// writes another space than the gallery's, and as [`curve()`], [`order()`] and [`adapter::apply`].
pub fn study(
    ground: &Ground<'_>,
    contenders: &[Contender<'_>],
    options: &StudyOptions,
    progress: &Progress,
) -> Result<Report> {
    let Some(first) = contenders.first() else {
        return Err(ErrorKind::Empty { what: "the list of adapters".into() }.into());
    };
    let items = ground.new.len();
    let spaces = Spaces { old: ground.old.space().clone(), new: ground.new.space().clone() };
    let mut report = Report::new("", CreatedBy::default(), spaces);
    let today = today(ground, options, progress)?;
    let native = ground
        .relevance
        .map(|relevance| {
            evaluate(
                ground.new.matrix(),
                ground.queries.map(|queries| queries.new),
                relevance,
                ground.new.space().distance,
                &depths(ground, options),
                progress,
            )
        })
        .transpose()?;
    report.metrics = metrics(ground, options);
    report.do_nothing = today.as_ref().map(|evaluation| scores(evaluation, options)).unwrap_or_default();
    report.new_model = native.as_ref().map(|evaluation| scores(evaluation, options)).unwrap_or_default();
    report.measured_on = vec![MeasuredSet {
        name: "evaluation".into(),
        pairs: first.adapter.training.pairs,
        items,
        queries: ground.queries.map_or(items, |queries| queries.new.rows()),
        leave_one_out: ground.queries.is_none(),
        classes: classes(ground),
        left_out_queries: native
            .as_ref()
            .map_or(0, |evaluation| evaluation.queries.given - evaluation.queries.counted),
        overlapping_items: None,
        overlap_is_estimated: false,
    }];

    let mut group_curves = Vec::new();
    let mut group_names = Vec::new();
    for contender in contenders {
        let adapted = adapter::apply(contender.adapter, ground.old, ground.side, progress)
            .map_err(|error| error.context(format!("applying {}", contender.name)))?;
        // The published recipe leaves the sphere of a normalised space; it is measured all the same.
        ground
            .new
            .space()
            .expect_same(&contender.adapter.new)
            .map_err(|error| error.context(format!("measuring {} on this gallery", contender.name)))?;
        let errors = true_errors(ground.new.matrix(), adapted.vectors.matrix());
        let variance: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
        if report.calibration.is_none() {
            report.calibration = Some(study_calibration(ground, &adapted, &variance, &errors)?);
        }
        for &policy in &options.policies {
            // The adapter's own head is tempered on left-out pairs, so the coverage order looks through it.
            let own = contender.adapter.uncertainty.head();
            let head = if policy == Policy::Coverage { own.or(ground.head) } else { ground.head.or(own) };
            let orders = orders(head, policy, &adapted, &variance, &errors, options)?;
            let mut curves = Vec::new();
            for permutation in &orders {
                let handicap = contender.adapter.handicap;
                let with_today = today.is_some();
                curves.push(one_curve(
                    ground,
                    &adapted,
                    handicap,
                    permutation,
                    options,
                    with_today,
                    progress,
                )?);
            }
            report.curves.push(series(contender, policy, &curves, today.as_ref(), options)?);
            if let (Some(groups), Some(curve)) = (ground.groups, curves[0].labelled.as_ref()) {
                group_names = curve.groups.iter().map(|group| group.group).collect();
                group_curves.push(group_curve(contender, policy, curve, groups, &orders[0], ground)?);
            }
        }
    }
    report.groups = ground
        .groups
        .filter(|_| !group_curves.is_empty())
        .map(|groups| group_study(groups, &group_names, group_curves, today.as_ref(), native.as_ref()));
    if let Some(groups) = report.groups.as_mut().filter(|_| ground.queries.is_some()) {
        // They are groups of queries; which group an item of the gallery belongs to is not known.
        groups.gallery_share.clear();
    }
    report.warnings = warnings(&report, contenders, options);
    Ok(report)
}

/// Rows of `evaluation` that are bit-identical with a row of `pairs`: items that an adapter may have been fitted on.
///
/// Zero vectors are not counted: different items may well share one.
pub fn overlap(pairs: &Matrix, evaluation: &Matrix) -> usize {
    if pairs.columns() != evaluation.columns() {
        return 0;
    }
    let known: HashSet<Vec<u32>> = (0..pairs.rows()).map(|row| bits(pairs.row(row))).collect();
    (0..evaluation.rows())
        .map(|row| evaluation.row(row))
        .filter(|row| row.iter().any(|&value| value != 0.0) && known.contains(&bits(row)))
        .count()
}

/// The very numbers of a row, as something that can be looked up.
fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// How many rows have the very same numbers as another row of the same matrix: items that the model cannot tell apart.
///
/// Zero vectors are not counted, as by [`overlap`].
pub fn lookalikes(vectors: &Matrix) -> usize {
    let mut rows: HashMap<Vec<u32>, usize> = HashMap::new();
    for row in (0..vectors.rows()).map(|row| vectors.row(row)) {
        if row.iter().any(|&value| value != 0.0) {
            *rows.entry(bits(row)).or_default() += 1;
        }
    }
    rows.into_values().filter(|&count| count > 1).sum()
}

/// Whether so many items with an old vector that is among the pairs may well be other items than those of the pairs, which the
/// old model cannot tell from them: it is a few, or no more than the gallery itself has [`lookalikes`] of.
pub fn may_be_other_items(overlapping: usize, items: usize, lookalikes: usize) -> bool {
    overlapping * 100 <= items || overlapping <= lookalikes
}

/// The warning that goes with a number of overlapping items, for [`Report::warnings`]: severe unless they
/// [may be other items](may_be_other_items). `is_exact` says whether the number was counted or estimated from a sample of the
/// pairs; `lookalikes` is that of the gallery's old vectors.
pub fn overlap_warning(overlapping: usize, items: usize, is_exact: bool, lookalikes: usize) -> Warning {
    let about = if is_exact { "" } else { "About " };
    let others = may_be_other_items(overlapping, items, lookalikes);
    Warning {
        id: "overlap".into(),
        severity: if others { Severity::Note } else { Severity::Severe },
        seen: format!(
            "{about}{overlapping} of the {items} items of the gallery have an old vector that is among the pairs."
        ),
        may_mean: if others {
            format!(
                "They are duplicates, or the old model cannot tell them apart, as it cannot tell {lookalikes} items of the gallery \
                 from others of it."
            )
        } else {
            "The adapter has seen their new vectors, so every curve here is too good.".into()
        },
        remedy: "Measure on items that the fit never saw, for example with --rows.".into(),
    }
}

/// The squared error `‖v − h(o)‖²` of every item, `[n]`.
pub fn true_errors(native: &Matrix, adapted: &Matrix) -> Vec<f64> {
    (0..native.rows())
        .map(|row| {
            native
                .row(row)
                .iter()
                .zip(adapted.row(row))
                .map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2))
                .sum()
        })
        .collect()
}

/// One exact curve: with labels or judgements, or against the native gallery.
struct OneCurve {
    labelled: Option<Curve>,
    agreement: Option<Line>,
}

fn depths(ground: &Ground<'_>, options: &StudyOptions) -> CurveOptions {
    let judged = matches!(ground.relevance, Some(Relevance::Judgements(_)));
    CurveOptions {
        map_at: Some(options.k),
        ndcg_at: judged.then_some(options.k),
        recall_at: judged.then_some(options.k),
        flips_at: None,
        kept_cuts: if options.bootstrap > 0 { BAND_CUTS } else { 0 },
    }
}

fn today(ground: &Ground<'_>, options: &StudyOptions, progress: &Progress) -> Result<Option<Evaluation>> {
    let Some(relevance) = ground.relevance else { return Ok(None) };
    let queries = match ground.queries {
        None => None,
        Some(Queries { old: Some(old), .. }) => Some(old),
        // Without old query vectors nobody can say what doing nothing is worth.
        Some(_) => return Ok(None),
    };
    let old = ground.old;
    evaluate(old.matrix(), queries, relevance, old.space().distance, &depths(ground, options), progress)
        .map(Some)
}

fn one_curve(
    ground: &Ground<'_>,
    adapted: &Adapted,
    handicap: f64,
    permutation: &[usize],
    options: &StudyOptions,
    with_today: bool,
    progress: &Progress,
) -> Result<OneCurve> {
    let queries = ground.queries.map(|queries| queries.new);
    let distance = ground.new.space().distance;
    let (native, mixed) = (ground.new.matrix(), adapted.vectors.matrix());
    let Some(relevance) = ground.relevance else {
        let line =
            agreement(native, mixed, permutation, queries, distance, handicap, options.k, progress)?.line;
        return Ok(OneCurve { labelled: None, agreement: Some(line) });
    };
    let input = CurveInput {
        native,
        adapted: mixed,
        order: permutation,
        queries,
        relevance,
        distance,
        handicap,
        groups: ground.groups,
        do_nothing: with_today.then(|| DoNothing {
            gallery: ground.old.matrix(),
            queries: ground.queries.and_then(|queries| queries.old),
            distance: ground.old.space().distance,
        }),
    };
    Ok(OneCurve { labelled: Some(curve(&input, &depths(ground, options), progress)?), agreement: None })
}

/// The permutations of one policy: several for the random one.
fn orders(
    head: Option<&Head>,
    policy: Policy,
    adapted: &Adapted,
    variance: &[f64],
    errors: &[f64],
    options: &StudyOptions,
) -> Result<Vec<Vec<usize>>> {
    let count = if policy == Policy::Random { options.random_orders.max(1) } else { 1 };
    (0..count)
        .map(|repetition| {
            let input = OrderInput {
                items: variance.len(),
                sigma: Some(variance),
                squared_errors: Some(errors),
                classified: head.map(|head| (head, adapted.vectors.matrix())),
                vectors: Some(adapted.vectors.matrix()),
                seed: options.seed.wrapping_add(repetition),
                ..OrderInput::default()
            };
            order(policy, &input).map(|order| order.permutation)
        })
        .collect()
}

fn metrics(ground: &Ground<'_>, options: &StudyOptions) -> Vec<Metric> {
    match ground.relevance {
        None => vec![Metric { primary: true, ..Metric::agreement_at(options.k) }],
        Some(Relevance::Judgements(_)) => vec![
            Metric { primary: true, ..Metric::ndcg_at(options.k) },
            Metric::map(),
            Metric::top1(),
            Metric::top5(),
            Metric::recall_at(options.k),
            Metric::map_at(options.k),
        ],
        Some(Relevance::Labels { .. }) => {
            vec![Metric::map(), Metric::top1(), Metric::top5(), Metric::map_at(options.k)]
        }
    }
}

fn scores(evaluation: &Evaluation, options: &StudyOptions) -> Scores {
    let k = options.k;
    let mut scores = Scores::from([
        ("top1".to_owned(), evaluation.top1),
        ("top5".to_owned(), evaluation.top5),
        ("map".to_owned(), evaluation.map),
    ]);
    let further =
        [("map", evaluation.map_at), ("ndcg", evaluation.ndcg_at), ("recall", evaluation.recall_at)];
    for (name, value) in further {
        if let Some(value) = value {
            scores.insert(format!("{name}@{k}"), value);
        }
    }
    scores
}

/// Every line of one curve, by metric.
fn lines<'c>(curve: &'c OneCurve, options: &StudyOptions) -> Vec<(String, &'c Line)> {
    let mut lines = Vec::new();
    if let Some(line) = &curve.agreement {
        lines.push((format!("agreement@{}", options.k), line));
    }
    if let Some(curve) = &curve.labelled {
        lines.extend([
            ("map".to_owned(), &curve.map),
            ("top1".to_owned(), &curve.top1),
            ("top5".to_owned(), &curve.top5),
        ]);
        for (name, at) in [("map", &curve.map_at), ("ndcg", &curve.ndcg_at), ("recall", &curve.recall_at)] {
            if let Some(at) = at {
                lines.push((format!("{name}@{}", at.depth), &at.line));
            }
        }
    }
    lines
}

/// One series of the report; several curves (random orders) become their mean with a band of one deviation.
fn series(
    contender: &Contender<'_>,
    policy: Policy,
    curves: &[OneCurve],
    today: Option<&Evaluation>,
    options: &StudyOptions,
) -> Result<CurveSeries> {
    let all: Vec<Vec<(String, &Line)>> = curves.iter().map(|curve| lines(curve, options)).collect();
    let points = all[0][0].1.values().len();
    let display = display_points(points);
    let last = (points - 1).max(1) as f64;
    let today_scores = today.map(|evaluation| scores(evaluation, options)).unwrap_or_default();
    let mut metrics = BTreeMap::new();
    for (place, (id, first)) in all[0].iter().enumerate() {
        let runs: Vec<&Line> = all.iter().map(|lines| lines[place].1).collect();
        let mean: Vec<f64> = if runs.len() == 1 {
            first.values().to_vec()
        } else {
            (0..points)
                .map(|point| runs.iter().map(|run| run.values()[point]).sum::<f64>() / runs.len() as f64)
                .collect()
        };
        let areas: Vec<f64> = runs.iter().map(|run| run.area()).collect();
        let area = match mean_sd(&areas) {
            Some(spread) if spread.count > 1 => Estimate {
                value: spread.mean,
                spread: Some(Spread::Deviation { deviation: spread.sd, runs: spread.count }),
            },
            _ => areas[0].into(),
        };
        let mut curve = MetricCurve::from_exact(&mean, area, today_scores.get(id).copied(), &display);
        if runs.len() > 1 {
            curve.band = Some(deviation_band(&runs, &display));
        }
        metrics.insert(id.clone(), curve);
    }
    if let [only] = curves
        && let Some(curve) = &only.labelled
        && options.bootstrap > 0
    {
        add_intervals(&mut metrics, curve, &display, options)?;
    }
    if let Some(curve) = &curves[0].labelled {
        let counted = curve.queries.counted as f64;
        for (id, flips) in [("top1", &curve.flips.top1), ("top5", &curve.flips.top5)] {
            if let Some(metric) = metrics.get_mut(id) {
                let percent = |counts: &[u64]| {
                    display.iter().map(|&point| 100.0 * counts[point] as f64 / counted).collect()
                };
                metric.flips = Some(Flips {
                    positive: percent(&flips.positive),
                    negative: percent(&flips.negative),
                    negative_flip_rate: display.iter().map(|&point| flips.rate.values()[point]).collect(),
                });
            }
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

fn deviation_band(runs: &[&Line], display: &[usize]) -> Band {
    let mut band = Band { about: format!("± 1 sd over {} orders", runs.len()), ..Band::default() };
    for &point in display {
        let values: Vec<f64> = runs.iter().map(|run| run.values()[point]).collect();
        let (mean, sd) = mean_sd(&values).map_or((f64::NAN, 0.0), |spread| (spread.mean, spread.sd));
        band.low.push(mean - sd);
        band.high.push(mean + sd);
    }
    band
}

/// Bootstrap intervals of areas and bands along the curve, for the metrics that queries have one by one.
fn add_intervals(
    metrics: &mut BTreeMap<String, MetricCurve>,
    curve: &Curve,
    display: &[usize],
    options: &StudyOptions,
) -> Result<()> {
    let areas = curve.area_intervals(options.bootstrap, LEVEL, options.seed)?;
    let bands = curve.bands(options.bootstrap, LEVEL, options.seed)?;
    let parts = [
        ("top1", areas.top1, &bands.top1),
        ("top5", areas.top5, &bands.top5),
        ("map", areas.map, &bands.map),
    ];
    for (id, area, band) in parts {
        if let Some(metric) = metrics.get_mut(id) {
            metric.area.spread = Some(Spread::Interval { low: area.low, high: area.high, level: LEVEL });
            metric.band = Some(Band {
                about: format!("{:.0} % bootstrap interval over queries", 100.0 * LEVEL),
                low: interpolate(&bands.cuts, band, display, |interval| interval.low),
                high: interpolate(&bands.cuts, band, display, |interval| interval.high),
            });
        }
    }
    Ok(())
}

/// Values known at ascending `cuts`, linearly interpolated at `points`.
fn interpolate(
    cuts: &[usize],
    band: &[Interval],
    points: &[usize],
    edge: impl Fn(&Interval) -> f64,
) -> Vec<f64> {
    points
        .iter()
        .map(|&point| {
            let right = cuts.partition_point(|&cut| cut < point).min(cuts.len() - 1);
            let left = right.saturating_sub(1);
            let (low, high) = (edge(&band[left]), edge(&band[right]));
            let width = cuts[right] - cuts[left];
            if width == 0 {
                return high;
            }
            let share = (point.saturating_sub(cuts[left]) as f64 / width as f64).clamp(0.0, 1.0);
            low + share * (high - low)
        })
        .collect()
}

fn study_calibration(
    ground: &Ground<'_>,
    adapted: &Adapted,
    variance: &[f64],
    errors: &[f64],
) -> Result<Calibration> {
    let table = calibration(variance, errors, CALIBRATION_BINS)?;
    let losses = discriminative_losses(ground, adapted.vectors.matrix());
    let rank = |errors: &[f64]| kendall_tau_b(variance, errors);
    let sum: Option<Vec<f64>> =
        losses.as_ref().map(|losses| losses.iter().zip(errors).map(|(a, b)| a + b).collect());
    Ok(Calibration {
        // The report says σ² over error; the table error over σ².
        ratio: 1.0 / table.ratio,
        bins: table
            .bins
            .iter()
            .map(|bin| CalibrationBin { predicted: bin.predicted, actual: bin.measured, items: bin.count })
            .collect(),
        kendall_tau: KendallTau {
            l2: rank(errors)?,
            discriminative: losses.as_deref().map(rank).transpose()?.flatten(),
            sum: sum.as_deref().map(rank).transpose()?.flatten(),
        },
    })
}

/// The loss of every adapted item that the new head was trained with, label smoothing aside: cross-entropy, for ArcFace of scaled
/// cosines with the margin on the true class; `None` unless every item's label is one of the head's.
fn discriminative_losses(ground: &Ground<'_>, adapted: &Matrix) -> Option<Vec<f64>> {
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

/// `cos(θ + m)`; beyond π − m, where that would rise again, the straight line `cos θ − m·sin m`.
fn with_margin(angle: f64, margin: f64) -> f64 {
    if angle + margin <= std::f64::consts::PI {
        (angle + margin).cos()
    } else {
        angle.cos() - margin * margin.sin()
    }
}

fn classes(ground: &Ground<'_>) -> Option<usize> {
    let Some(Relevance::Labels { gallery, .. }) = ground.relevance else { return None };
    let mut distinct: Vec<i64> = gallery.iter().copied().filter(|&label| label >= 0).collect();
    distinct.sort_unstable();
    distinct.dedup();
    Some(distinct.len())
}

fn group_curve(
    contender: &Contender<'_>,
    policy: Policy,
    curve: &Curve,
    groups: &[i64],
    permutation: &[usize],
    ground: &Ground<'_>,
) -> Result<GroupCurves> {
    let points = curve.top1.values().len();
    let display = display_points(points);
    let fractions: Vec<f64> =
        display.iter().map(|&point| point as f64 / (points - 1).max(1) as f64).collect();
    let at = |line: &Line| display.iter().map(|&point| line.values()[point]).collect::<Vec<f64>>();
    // Only where the queries are the gallery's own items does an item have a query's group.
    let share = if ground.queries.is_none() {
        let counted: Vec<i64> = curve.groups.iter().map(|group| group.group).collect();
        group_places(permutation, groups, &fractions)?
            .into_iter()
            // A group without a counted query has no curve, so it has no share beside one either.
            .filter(|places| counted.contains(&places.group))
            .map(|places| {
                let mut share: Vec<f64> = places.share.iter().map(|share| 100.0 * share).collect();
                share[0] = f64::NAN;
                share
            })
            .collect()
    } else {
        Vec::new()
    };
    Ok(GroupCurves {
        method: contender.name.clone(),
        order: policy.name().into(),
        values: curve.groups.iter().map(|group| at(&group.top1)).collect(),
        gap: curve.gap.as_ref().map(at).unwrap_or_default(),
        share,
        fractions,
    })
}

fn group_study(
    groups: &[i64],
    names: &[i64],
    curves: Vec<GroupCurves>,
    today: Option<&Evaluation>,
    native: Option<&Evaluation>,
) -> GroupStudy {
    let grouped = groups.iter().filter(|&&group| group >= 0).count();
    let top1 = |evaluation: Option<&Evaluation>| -> Vec<f64> {
        let Some(evaluation) = evaluation else { return Vec::new() };
        let ranks = &evaluation.per_query;
        names
            .iter()
            .map(|&name| {
                let own: Vec<bool> = ranks
                    .queries
                    .iter()
                    .zip(&ranks.first_rank)
                    .filter(|&(&query, _)| groups[query] == name)
                    .map(|(_, &rank)| rank == 1)
                    .collect();
                100.0 * own.iter().filter(|&&hit| hit).count() as f64 / own.len() as f64
            })
            .collect()
    };
    GroupStudy {
        metric: "top1".into(),
        gallery_share: names
            .iter()
            .map(|&name| {
                100.0 * groups.iter().filter(|&&group| group == name).count() as f64 / grouped as f64
            })
            .collect(),
        do_nothing: top1(today),
        new_model: top1(native),
        names: names.iter().map(ToString::to_string).collect(),
        curves,
        headline: 0,
    }
}

/// What a reader must not overlook in these numbers.
fn warnings(report: &Report, contenders: &[Contender<'_>], options: &StudyOptions) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |id: &str, severity, seen: String, may_mean: &str, remedy: &str| {
        warnings.push(Warning {
            id: id.into(),
            severity,
            seen,
            may_mean: may_mean.into(),
            remedy: remedy.into(),
        });
    };
    if let Some(set) = report.measured_on.first() {
        let counted = set.queries - set.left_out_queries;
        if counted < QUERIES_MIN {
            warn(
                "few-queries",
                Severity::Caution,
                format!("Only {counted} queries were counted."),
                "Differences of a few percent between curves can be chance.",
                "Measure on more queries, and look at the bands.",
            );
        }
        if set.left_out_queries * 2 > set.queries {
            warn(
                "left-out-queries",
                Severity::Caution,
                format!(
                    "{} of {} queries have no right answer in the gallery.",
                    set.left_out_queries, set.queries
                ),
                "The numbers speak about the smaller part of the queries.",
                "Check labels and ids; a wrong join looks like this.",
            );
        }
    }
    let seed = contenders[0].adapter.training.seed;
    if contenders.iter().all(|contender| contender.adapter.training.seed == seed) {
        let who = if contenders.len() == 1 { "The adapter" } else { "Every adapter" };
        warn(
            "one-seed",
            Severity::Note,
            format!("{who} was fitted with seed {seed} only."),
            "The bands show the spread over queries, not the spread over fits.",
            "Fit with other seeds and compare the areas.",
        );
    }
    let Some(metric) = report.headline_metric().cloned() else { return warnings };
    if let Some(curve) = report.headline_curve().and_then(|curve| curve.metrics.get(&metric.id)) {
        if curve.minimum.value < curve.start - DIP {
            warn(
                "dip",
                Severity::Caution,
                format!(
                    "The {} curve falls from {:.1} to {:.1} at {:.0} % before it rises.",
                    metric.name,
                    curve.start,
                    curve.minimum.value,
                    100.0 * curve.minimum.fraction
                ),
                "Native and adapted vectors do not mix well: their lengths or directions differ systematically.",
                "Compare other methods, and check that the distance is the one of the new model.",
            );
        }
        if let Some(&line) = report.do_nothing.get(&metric.id)
            && line.is_finite()
        {
            match curve.passes_do_nothing_at {
                None => warn(
                    "never-better",
                    Severity::Severe,
                    format!(
                        "Even with everything re-embedded, {} is {:.1} where doing nothing gives {line:.1}.",
                        metric.name, curve.end
                    ),
                    "The new model is worse than the old one on these items, or the files do not belong together.",
                    "Do not switch; check the pairing of rows and the distance of each space.",
                ),
                Some(fraction) if fraction > 0.0 => warn(
                    "switch-later",
                    Severity::Note,
                    format!(
                        "At the switch {} is {:.1}, below doing nothing ({line:.1}); the curve passes it at {:.1} %.",
                        metric.name,
                        curve.start,
                        100.0 * fraction
                    ),
                    "Switching at once would make searches worse for a while.",
                    "Re-embed up to that point before queries move to the new model.",
                ),
                Some(_) => {}
            }
        }
    }
    if let Some(calibration) = &report.calibration {
        if calibration.ratio.is_finite() && !(0.5..=2.0).contains(&calibration.ratio) {
            warn(
                "calibration",
                Severity::Caution,
                format!("The mean σ² is {:.2} times the mean true error.", calibration.ratio),
                "This gallery differs from the pairs: σ² cannot be read as an error here.",
                "Its order may still be good; compare it with the random order.",
            );
        }
        if calibration.kendall_tau.l2.is_some_and(|tau| tau < 0.05)
            && options.policies.contains(&Policy::Sigma)
        {
            warn(
                "uninformative-sigma",
                Severity::Caution,
                format!(
                    "σ² hardly ranks the true errors (Kendall τ-b {:.2}).",
                    calibration.kendall_tau.l2.unwrap_or_default()
                ),
                "Worst first is no better than chance here.",
                "Use the coverage order, or add pairs that look like this gallery.",
            );
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::with_margin;
    use std::f64::consts::PI;

    #[test]
    fn a_margin_turns_the_angle_and_never_rises_again() {
        assert!(with_margin(PI / 3.0, PI / 6.0).abs() < 1e-12);
        assert_eq!(with_margin(0.7, 0.0), 0.7f64.cos());
        let values: Vec<f64> = (0..=100).map(|step| with_margin(PI * f64::from(step) / 100.0, 0.5)).collect();
        assert!(values.windows(2).all(|pair| pair[0] > pair[1]));
    }
}
