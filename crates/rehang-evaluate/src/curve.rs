//! The exact backfilling curve of one adapted gallery and one order, from files.

use std::path::{Path, PathBuf};

use crate::study::{StudyOptions, may_be_other_items};
use rehang_core::adapter::{lookalikes, true_errors};
use rehang_core::check::{expect_count, expect_normalised, expect_width};
use rehang_core::curve::{
    ByMetric, COUNT_MAX, Curve, CurveInput, CurveOptions, DoNothing, Flips, Line, MAP, Metric, Relevance,
    TOP1, TOP5, curve as exact_curve,
};
use rehang_core::finding::{Finding, FindingCode, Severity, with_messages};
use rehang_core::report::InputRecord;
use rehang_core::statistics::{Interval, SigmaQuality};
use rehang_core::{Adapter, Distance, Error, Matrix, Progress, Result, Verdict};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::{
    Columns, InputReader, Join, JoinFiles, RowSelection, VectorSource, expect_same_items, joined_names,
    stream,
};
use rehang_fit::guards::{CurveSummary, gain};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::answers::{AnswerFiles, Answers};
use crate::guards::{adapter_findings, among_pairs};

/// Coverage of every interval.
pub const LEVEL: f64 = 0.95;
/// Seed of the bootstrap.
const SEED: u64 = 0;

/// Files that a curve is computed from, and settings of what is computed.
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `distance` | the adapter's of the new space, or L2 | |
/// | `old_distance` | `distance`, or else the adapter's of the old space | |
/// | `handicap` | the adapter's, or 0 | 0 or more, in the unit of `distance` |
/// | `grid` | none | 2 points or more |
/// | `bootstrap` | 1000 samples | 0 for no intervals |
#[derive(Debug, Clone)]
pub struct CurveFiles {
    /// New vectors of the gallery, one file below the other.
    pub new: Vec<VectorSource>,
    /// Adapted vectors of the gallery.
    pub adapted: Vec<VectorSource>,
    /// Order in which items are re-embedded.
    pub order: VectorSource,
    /// Old vectors of the gallery, for the do-nothing line.
    pub old: Vec<VectorSource>,
    /// Join of old and new vectors, by ids or by position.
    pub join: JoinFiles,
    /// Rows of the gallery that take part; the selection holds for all files that go with its items.
    pub rows: Option<RowSelection>,
    /// The adapter that made the adapted vectors: its handicap and distances are used. With `old`,
    /// [`curve()`] also checks which items are among its pairs, and whether it goes from old to new.
    pub adapter: Option<AdapterSource>,
    /// Right answers, queries and groups.
    pub answers: AnswerFiles,
    /// σ² of every item. It adds Kendall's τ-b and the calibration against the true errors.
    pub sigma: Vec<VectorSource>,
    /// Distance of the new space.
    pub distance: Option<Distance>,
    /// Distance of the old space, for the do-nothing line.
    pub old_distance: Option<Distance>,
    /// Handicap: what searches add to the distance of every item that is still adapted.
    pub handicap: Option<f64>,
    /// Equally spaced fractions at which values are given beside the whole curve.
    pub grid: Option<usize>,
    /// Number of bootstrap samples of the queries, for intervals.
    pub bootstrap: usize,
    /// File for the value of every measure at every fraction, `[n + 1, columns]`.
    pub points: Option<PathBuf>,
}

impl CurveFiles {
    /// Returns the input of a curve, without right answers yet.
    pub fn new(new: VectorSource, adapted: VectorSource, order: VectorSource) -> Self {
        Self {
            new: vec![new],
            adapted: vec![adapted],
            order,
            old: Vec::new(),
            join: JoinFiles::default(),
            rows: None,
            adapter: None,
            answers: AnswerFiles::default(),
            sigma: Vec::new(),
            distance: None,
            old_distance: None,
            handicap: None,
            grid: None,
            bootstrap: StudyOptions::default().bootstrap,
            points: None,
        }
    }
}

/// A file that holds the whole curve.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Points {
    /// Path of the file.
    pub file: PathBuf,
    /// Names of the file's columns.
    pub columns: Vec<String>,
}

/// Curve that [`curve()`] computed, with its intervals, findings and the files behind it.
#[derive(Debug, Clone)]
pub struct CurveAnswer {
    /// Number of items of the gallery.
    pub items: usize,
    /// Cut-off k of mAP@k, nDCG@k, recall@k and agreement@k.
    pub k: usize,
    /// Exact curve; without right answers it says how much of the fully native gallery's answers is given.
    pub curve: Curve,
    /// Intervals of the areas over queries, where asked for.
    pub intervals: Option<ByMetric<Interval>>,
    /// Number of bootstrap samples behind the intervals.
    pub samples: usize,
    /// Number of points of the grid, where asked for.
    pub grid: Option<usize>,
    /// Names of the groups, by number; empty where groups are numbers.
    pub group_names: Vec<String>,
    /// Quality of σ², where σ² was given.
    pub sigma: Option<SigmaQuality>,
    /// File of the whole curve, where asked for.
    pub points: Option<Points>,
    /// Items among the pairs, and what is wrong with the adapter, for JSON; empty where no adapter was
    /// checked.
    guarded: Map<String, Value>,
    /// Findings that make the curve no reason to upgrade.
    pub warnings: Vec<Finding>,
    /// All findings that the reader should know, in order.
    pub findings: Vec<Finding>,
    /// Whether the numbers are not to be relied on: items are among the pairs, or the adapter's direction is
    /// wrong.
    pub is_refused: bool,
    /// Distance of the new space.
    pub distance: Distance,
    /// Handicap: what searches add to the distance of every adapted item.
    pub handicap: f64,
    /// Files that were read.
    pub inputs: Vec<InputRecord>,
}

/// Computes the exact curve of one adapted gallery and one order.
///
/// ```
/// use rehang_core::curve::TOP1;
/// use rehang_files::VectorSource;
/// use rehang_core::{Matrix, Progress};
/// use rehang_evaluate::{AnswerFiles, CurveFiles, curve};
///
/// let folder = tempfile::tempdir()?;
/// let place = |name: &str| folder.path().join(name);
/// // Two classes; the map carries one item of the first among those of the second.
/// let new = Matrix::new(1, vec![0.0, 0.1, 9.0, 9.1])?;
/// let adapted = Matrix::new(1, vec![0.0, 9.02, 9.0, 9.1])?;
/// rehang_files::write_matrix(place("new.npy"), &new, None)?;
/// rehang_files::write_matrix(place("adapted.npy"), &adapted, None)?;
/// rehang_files::write_order(place("order.npy"), &[1, 0, 2, 3])?;
/// rehang_files::write_labels(place("labels.npy"), &[0, 0, 1, 1])?;
/// let source = |name: &str| VectorSource::path(place(name));
/// let wanted = CurveFiles {
///     answers: AnswerFiles { labels: vec![source("labels.npy")], ..AnswerFiles::default() },
///     ..CurveFiles::new(source("new.npy"), source("adapted.npy"), source("order.npy"))
/// };
/// let answer = curve(&wanted, &Progress::default())?;
/// let top1 = &answer.curve.lines[TOP1];
/// assert!(top1.start() < 100.0);
/// assert_eq!((top1.values()[1], top1.end()), (100.0, 100.0));
/// assert_eq!(answer.to_json()["n"], 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Errors of a file, or between two files, name them. [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for
/// a grid or a distance that cannot be, and for points that would be written over an input.
pub fn curve(files: &CurveFiles, progress: &Progress) -> Result<CurveAnswer> {
    let mut inputs = InputReader::new(files.rows.as_ref())?;
    let adapter = files.adapter.as_ref().map(|path| inputs.adapter(path)).transpose()?;
    let (distance, old_distance) = distances(files, adapter.as_deref())?;
    files.grid.map_or(Ok(()), check_grid)?;
    if let Some(path) = &files.points {
        drop(stream::create(path, Columns { width: 1, ids: None, sigma2: false })?);
    }
    let vectors = CurveVectors::read(files, adapter.as_deref(), &mut inputs)?;
    let CurveVectors { new, adapted, .. } = &vectors;
    let old = vectors.old.as_ref();
    let order = vectors.order(&files.order, &mut inputs)?;
    let answers = Answers::read(&files.answers, &mut inputs, &vectors.join, new.rows(), None)?;
    // Errors of σ² are found before anything is written.
    let predicted = vectors.variance(&files.sigma, &mut inputs)?;
    inputs.expect_apart(&[("points", files.points.as_ref())])?;
    let handicap = files.handicap.unwrap_or_else(|| adapter.as_ref().map_or(0.0, |adapter| adapter.handicap));
    let (mut is_refused, mut guarded) = (false, Map::new());
    if let (Some(adapter), Some(old)) = (&adapter, old) {
        adapter.expect_input_width(old.columns()).map_err(|error| error.context(vectors.old_name.clone()))?;
        is_refused = guard(adapter, old, new, &mut inputs, &mut guarded)?;
    }
    answers.warn_idle(&mut inputs, &[("old", old.is_some() && files.adapter.is_none())]);
    let do_nothing = do_nothing(&answers, old, old_distance, &mut inputs);
    let (k, samples, queries) = (files.answers.k, files.bootstrap, answers.queries.as_ref());
    // A ranking may hold fewer items than were asked for.
    let nearest =
        || Relevance::Nearest(k.min(new.rows().saturating_sub(usize::from(queries.is_none()))).max(1));
    let relevance = answers.relevance().unwrap_or_else(nearest);
    let input = CurveInput {
        native: new,
        adapted,
        order: &order,
        queries,
        relevance,
        distance,
        handicap,
        groups: answers.groups.as_deref(),
        do_nothing,
        known: None,
    };
    let options = CurveOptions { metrics: Metric::measurable(relevance, k), ..CurveOptions::default() };
    let curve = exact_curve(&input, &options, progress)?;
    let points = files.points.as_ref().map(|path| write_points(path, &curve)).transpose()?;
    let warnings = problems(&curve, relevance);
    let intervals = (samples > 0).then(|| curve.area_intervals(samples, LEVEL, SEED)).transpose()?;
    let sigma = predicted
        .map(|predicted| SigmaQuality::compare(&predicted, &true_errors(new, adapted)))
        .transpose()?;
    // Warnings become findings and no failure: the numbers are right all the same, and scripts that compare
    // models want them.
    let warning_findings =
        warnings.iter().map(|warning| Finding { severity: Severity::Warning, ..warning.clone() });
    inputs.findings.extend(warning_findings);
    Ok(CurveAnswer {
        items: new.rows(),
        k,
        curve,
        intervals,
        samples,
        grid: files.grid,
        group_names: answers.group_names,
        sigma,
        points,
        guarded,
        warnings,
        findings: inputs.findings,
        is_refused,
        distance,
        handicap,
        inputs: inputs.read,
    })
}

/// Vectors of the gallery that a curve is of, as they were read: one row an item.
struct CurveVectors {
    join: Join,
    new: Matrix,
    adapted: Matrix,
    old: Option<Matrix>,
    new_name: String,
    old_name: String,
}

impl CurveVectors {
    /// Reads the vectors and joins them. Fails where they do not go with each other, or with the adapter.
    fn read(files: &CurveFiles, adapter: Option<&Adapter>, inputs: &mut InputReader) -> Result<Self> {
        let new = inputs.matrix("new", &files.new)?;
        let adapted = inputs.matrix("adapted", &files.adapted)?;
        let old = (!files.old.is_empty()).then(|| inputs.matrix("old", &files.old)).transpose()?;
        let [new_name, adapted_name, old_name] =
            [&files.new, &files.adapted, &files.old].map(|at| joined_names(at));
        if let (Some(adapter), Some(path)) = (adapter, &files.adapter) {
            inputs.note_adapter(path, adapter)?;
            for (space, name, vectors) in
                [(&adapter.new, &new_name, &new), (&adapter.output_space(), &adapted_name, &adapted)]
            {
                expect_width(name, space.dimension, vectors.columns())?;
                if space.normalised {
                    expect_normalised(name, space.dimension, 0, vectors.as_slice())?;
                }
            }
        }
        let by_position = if files.join.is_by_position() { files.new.as_slice() } else { &[] };
        expect_same_items(&[&files.adapted, &files.old, by_position])?;
        // Adapted vectors and all that goes with the items have the rows of the old vectors.
        let join = inputs.join(&files.join, adapted.rows(), new.rows())?;
        let adapted = join.old_side(&adapted_name, adapted)?;
        let new = join.new_side(new);
        let old = old.map(|old| join.old_side(&old_name, old)).transpose()?;
        expect_count(&new_name, new.rows(), &adapted_name, adapted.rows())?;
        // Adapted vectors stand in the new space; narrower ones are from a file that was meant otherwise.
        expect_width(&adapted_name, new.columns(), adapted.columns())?;
        if let Some(old) = &old {
            expect_count(&new_name, new.rows(), &old_name, old.rows())?;
        }
        Ok(Self { join, new, adapted, old, new_name, old_name })
    }

    /// Reads the order in which these items are re-embedded.
    fn order(&self, source: &VectorSource, inputs: &mut InputReader) -> Result<Vec<usize>> {
        let name = source.to_string();
        let order = self.join.order(&name, inputs.order("order", source)?)?;
        expect_count(&self.new_name, self.new.rows(), &name, order.len())?;
        Ok(order)
    }

    /// Reads the σ² of every item; `None` where no file is named.
    fn variance(&self, sources: &[VectorSource], inputs: &mut InputReader) -> Result<Option<Vec<f64>>> {
        if sources.is_empty() {
            return Ok(None);
        }
        let name = joined_names(sources);
        let variance = self.join.old_values(&name, inputs.column("sigma", sources)?)?;
        expect_count(&self.new_name, self.new.rows(), &name, variance.len())?;
        if let Some(item) = variance.iter().position(|value| !value.is_finite()) {
            return Err(Error::corrupt(name, format!("σ² of item {item} is not a finite number")));
        }
        Ok(Some(variance))
    }
}

/// Returns today's search of old vectors, for the do-nothing line; `None` where nothing is a right answer, or
/// where separate queries have no old vectors, which a warning says.
fn do_nothing<'a>(
    answers: &'a Answers,
    old: Option<&'a Matrix>,
    distance: Distance,
    inputs: &mut InputReader,
) -> Option<DoNothing<'a>> {
    let gallery = old.filter(|_| answers.relevance().is_some())?;
    if answers.queries.is_some() && answers.queries_old.is_none() {
        inputs
            .warn(FindingCode::NoDoNothingLine, "no do-nothing line, since `queries` has no `queries_old`.");
        return None;
    }
    Some(DoNothing { gallery, queries: answers.queries_old.as_ref(), distance })
}

/// Fails where a grid has fewer than 2 points (no start and end), or more points than any curve.
///
/// # Errors
///
/// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption).
pub fn check_grid(points: usize) -> Result<()> {
    if (2..=COUNT_MAX).contains(&points) {
        return Ok(());
    }
    Err(Error::option("grid", points, format!("2 to {COUNT_MAX} points")))
}

/// Returns the distances of the new and of the old space: those that are asked for, or else the adapter's.
fn distances(files: &CurveFiles, adapter: Option<&Adapter>) -> Result<(Distance, Distance)> {
    let distance = files.distance.or(adapter.map(|adapter| adapter.new.distance)).unwrap_or(Distance::L2);
    let declared_old = adapter.map_or(distance, |adapter| adapter.old.distance);
    if let Some(adapter) = adapter
        && files.handicap.is_none()
        && adapter.handicap > 0.0
        && adapter.new.distance != distance
    {
        let (own_distance, handicap) = (adapter.new.distance, adapter.handicap);
        let expected = format!(
            "{own_distance}, the unit of the adapter's handicap ({handicap}); \
             or give `handicap` in the unit of this one"
        );
        return Err(Error::option("distance", distance, expected));
    }
    Ok((distance, files.old_distance.or(files.distance).unwrap_or(declared_old)))
}

/// Finds what makes a curve no reason to upgrade: a new model that is no better, or labels that cannot tell.
fn problems(exact: &Curve, relevance: Relevance<'_>) -> Vec<Finding> {
    let mut problems = Vec::new();
    if let Relevance::Labels { gallery, .. } = relevance
        && gallery.iter().all(|&label| label >= 0 && label == gallery[0])
    {
        problems.push(
            Finding::new(Severity::Problem, FindingCode::OneClass, "All items have the same label.")
                .may_mean("Every answer is right and the numbers say nothing.")
                .remedy("Give labels that tell items apart."),
        );
    }
    let today = exact.do_nothing.as_ref().map(|today| &today.evaluation);
    let Some(&metric) = Metric::for_report(exact.lines.metrics().collect()).first() else { return problems };
    let (line, today) = (&exact.lines[metric], today.map(|today| today.values[metric]));
    // Equal qualities are no warning, as in a report.
    if let (Some(do_nothing), Verdict::DoNotSwitch) = (today, Verdict::from_curve(line.values(), today)) {
        let summary = CurveSummary {
            measure: metric.name(),
            do_nothing,
            start: line.start(),
            area: line.area(),
            minimum: line.min(),
            end: line.end(),
        };
        problems.extend(gain(&summary).into_iter().filter(|finding| finding.severity == Severity::Problem));
    }
    problems
}

/// Looks for items of the gallery among the adapter's pairs, and checks the adapter's direction. Returns
/// whether the numbers of the curve are not to be relied on.
fn guard(
    adapter: &Adapter,
    old: &Matrix,
    new: &Matrix,
    inputs: &mut InputReader,
    values: &mut Map<String, Value>,
) -> Result<bool> {
    let overlap = among_pairs(adapter, old);
    let mut is_refused = false;
    values.insert("among_pairs".into(), json!(overlap));
    match overlap {
        None => inputs.findings.push(Finding::new(
            Severity::Note,
            FindingCode::PairsUnknown,
            "this adapter does not remember its pairs, so whether items are among them is not known.",
        )),
        Some(overlap) if overlap.among_pairs() > 0 => {
            is_refused = !may_be_other_items(overlap.among_pairs(), overlap.rows(), lookalikes(old));
            let (severity, meaning) = if is_refused {
                (Severity::Problem, "the numbers are too good")
            } else {
                (Severity::Note, "they are duplicates, or the old model cannot tell them apart")
            };
            let message = format!("{overlap}; {meaning}.");
            inputs.findings.push(Finding::new(severity, FindingCode::AmongPairs, message));
        }
        Some(_) => {}
    }
    // A map that reads side information is checked by a report, where that information is at hand.
    if adapter.side_dimension().is_none() {
        let findings = adapter_findings(adapter, old, new, None)?;
        is_refused |= !findings.is_empty();
        values.insert("findings".into(), with_messages(&findings));
        inputs.findings.extend(findings);
    }
    Ok(is_refused)
}

impl CurveAnswer {
    /// Returns the only line of a curve without right answers; `None` where there are right answers.
    pub fn agreement(&self) -> Option<(Metric, &Line)> {
        self.curve.lines.get(TOP1).is_none().then(|| further(&self.curve).next()).flatten()
    }

    /// Returns the name of a group; `None` where groups are numbers.
    pub fn group_name(&self, group: i64) -> Option<&str> {
        self.group_names.get(usize::try_from(group).ok()?).map(String::as_str)
    }

    /// Returns the answer as one JSON object (`docs/formats.md`).
    pub fn to_json(&self) -> Value {
        let mut value = self.guarded.clone();
        value.insert("n".into(), json!(self.items));
        if let Some(intervals) = &self.intervals {
            value.insert("area_interval".into(), intervals_json(intervals, self.samples));
        }
        value.extend(further(&self.curve).map(|(metric, line)| (metric.id(), summary(line))));
        if let Some((_, line)) = self.agreement() {
            if let Some(points) = self.grid {
                let grid = line.grid(points);
                let mean = json!({ "agreement": grid.mean });
                let grid = json!({ "cuts": grid.cuts, "agreement": grid.values, "mean": mean });
                value.insert("grid".into(), grid);
            }
        } else {
            self.add_answers(&mut value);
        }
        for (name, of) in [("points", json!(self.points)), ("sigma", json!(self.sigma))] {
            if !of.is_null() {
                value.insert(name.into(), of);
            }
        }
        value.insert("warnings".into(), with_messages(&self.warnings));
        value.insert("distance".into(), json!(self.distance));
        value.insert("handicap".into(), json!(self.handicap));
        value.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
        value.insert("inputs".into(), json!(self.inputs));
        Value::Object(value)
    }

    fn add_answers(&self, value: &mut Map<String, Value>) {
        let (curve, lines) = (&self.curve, &self.curve.lines);
        value.insert("queries".into(), json!(curve.queries));
        value.insert("area".into(), in_table(|metric| lines[metric].area()));
        value.insert("start".into(), in_table(|metric| lines[metric].start()));
        value.insert("end".into(), in_table(|metric| lines[metric].end()));
        value.insert("min".into(), in_table(|metric| lines[metric].min()));
        let today = curve.do_nothing.as_ref().map(|today| &today.evaluation.values);
        value.insert("do_nothing".into(), json!(today.map(|today| in_table(|metric| today[metric]))));
        let passes = today.map(|today| {
            in_table(|metric| Verdict::from_curve(lines[metric].values(), Some(today[metric])).passes_at())
        });
        value.insert("passes_do_nothing_at".into(), json!(passes));
        if let Some(points) = self.grid {
            let mut grid = in_table(|metric| lines[metric].grid(points).values);
            grid["cuts"] = json!(lines[MAP].grid(points).cuts);
            grid["mean"] = in_table(|metric| lines[metric].grid(points).mean);
            value.insert("grid".into(), grid);
        }
        let mut flips = flips_at_quarters(&curve.flips, curve.items);
        if let (Some(today), Some(object)) = (&curve.do_nothing, flips.as_object_mut()) {
            object.insert("against_do_nothing".into(), flips_at_quarters(&today.flips, curve.items));
        }
        value.insert("flips".into(), flips);
        if let Some(gap) = &curve.gap {
            value.insert("gap".into(), summary(gap));
            let groups = curve.groups.iter().map(|group| {
                json!({
                    "group": group.group,
                    "name": self.group_name(group.group),
                    "queries": group.queries,
                    "top1": summary(&group.top1),
                })
            });
            value.insert("groups".into(), groups.collect());
        }
    }
}

/// Writes intervals over queries as JSON, by metric, with how they were drawn.
fn intervals_json(intervals: &ByMetric<Interval>, samples: usize) -> Value {
    let mut value = json!({ "level": LEVEL, "samples": samples, "seed": SEED });
    for (metric, of) in intervals.iter() {
        value[metric.id()] = json!([of.low, of.high]);
    }
    value
}

/// Metrics that stand beside each other in the answer; every other one stands by itself.
pub const TABLE: [Metric; 3] = [TOP1, TOP5, MAP];

fn in_table<T: Serialize>(value: impl Fn(Metric) -> T) -> Value {
    Value::Object(TABLE.iter().map(|&metric| (metric.id(), json!(value(metric)))).collect())
}

fn summary(line: &Line) -> Value {
    json!({ "area": line.area(), "start": line.start(), "end": line.end(), "min": line.min() })
}

/// Iterates over the metrics of a curve that are not in [`TABLE`].
pub fn further(curve: &Curve) -> impl Iterator<Item = (Metric, &Line)> {
    curve.lines.iter().filter(|(metric, _)| !TABLE.contains(metric))
}

/// Writes flips as JSON where a reader looks first: at the start, a quarter, a half, three quarters and the
/// end.
fn flips_at_quarters(by_metric: &ByMetric<Flips>, items: usize) -> Value {
    let cuts: Vec<usize> = (0..=4).map(|quarter| quarter * items / 4).collect();
    let flips_as_json = |flips: &Flips| {
        json!({
            "right_at_reference": flips.right,
            "cuts": cuts,
            "positive": cuts.iter().map(|&cut| flips.positive[cut]).collect::<Vec<_>>(),
            "negative": cuts.iter().map(|&cut| flips.negative[cut]).collect::<Vec<_>>(),
            "negative_flip_rate": cuts.iter().map(|&cut| flips.rate.values()[cut]).collect::<Vec<_>>(),
            "negative_flip_rate_area": flips.rate.area(),
        })
    };
    Value::Object(by_metric.iter().map(|(metric, flips)| (metric.id(), flips_as_json(flips))).collect())
}

/// Name of one measure in the answer, and its value at every cut of the curve.
type PointColumn<'a> = (String, Box<dyn Fn(usize) -> f64 + 'a>);

/// Lists everything that a curve holds at each of its n + 1 fractions, in the order of `docs/formats.md`.
fn point_columns(exact: &Curve) -> Vec<PointColumn<'_>> {
    fn line(name: impl Into<String>, line: &Line) -> PointColumn<'_> {
        (name.into(), Box::new(|cut| line.values()[cut]))
    }
    let in_table = |&metric: &Metric| exact.lines.get(metric).map(|along| line(metric.id(), along));
    let mut columns: Vec<_> = TABLE.iter().filter_map(in_table).collect();
    let against_today = exact.do_nothing.as_ref().map(|today| ("do_nothing_", &today.flips));
    for (reference, by_metric) in std::iter::once(("", &exact.flips)).chain(against_today) {
        for (metric, flips) in by_metric.iter() {
            let name = |what: &str| format!("{reference}{metric}_{what}");
            columns.push((name("positive_flips"), Box::new(|cut| flips.positive[cut] as f64)));
            columns.push((name("negative_flips"), Box::new(|cut| flips.negative[cut] as f64)));
            columns.push(line(name("negative_flip_rate"), &flips.rate));
        }
    }
    columns.extend(further(exact).map(|(metric, along)| line(metric.id(), along)));
    columns.extend(exact.gap.as_ref().map(|gap| line("gap_top1", gap)));
    columns.extend(exact.groups.iter().map(|group| line(format!("group_{}_top1", group.group), &group.top1)));
    columns
}

/// Writes the curve `[n + 1, columns]`, a block of fractions at a time, and names its columns.
fn write_points(path: &Path, exact: &Curve) -> Result<Points> {
    const ROWS: usize = 4096;
    let columns = point_columns(exact);
    let mut writer = stream::create(path, Columns { width: columns.len(), ids: None, sigma2: false })?;
    for first in (0..=exact.items).step_by(ROWS) {
        let cuts = first..(first + ROWS).min(exact.items + 1);
        let block: Vec<f32> =
            cuts.flat_map(|cut| columns.iter().map(move |(_, value)| value(cut) as f32)).collect();
        writer.write(&block, None, None)?;
    }
    writer.commit()?;
    Ok(Points { file: path.to_owned(), columns: columns.into_iter().map(|(name, _)| name).collect() })
}
