//! `rehang curve`.

use std::fmt::Write;

use rehang::curve::{
    Curve as ExactCurve, CurveInput, CurveOptions, DoNothing, Line, Relevance, agreement, curve,
};
use rehang::files::{self, Columns, VectorSource, stream};
use rehang::finding::{Finding, Severity};
use rehang::report::stays_above_from;
use rehang::statistics::{Interval, calibration, kendall_tau_b};
use rehang::study::{lookalikes, may_be_other_items};
use rehang::{Adapter, Distance, Error, Matrix, Progress, Result};
use rehang_fit::guards::{CurveSummary, gain};
use serde_json::{Map, Value, json};

use super::{Outcome, check_grid, expect_apart, one_decimal, print, say};
use crate::arguments::{Curve, RowSelection};
use crate::bar::with_bar;
use crate::guards::{
    adapter_findings, among_pairs, among_pairs_text, among_pairs_value, findings_value, say_finding,
};
use crate::input::{
    Inputs, Join, expect_count, expect_normalised, expect_same_items, expect_width, files_of, fingerprint,
};
use crate::relevance::Loaded;

const LEVEL: f64 = 0.95;
/// Bootstrap samples where nothing else is said.
const BOOTSTRAP: usize = 1000;
/// Seed of the bootstrap.
const SEED: u64 = 0;

/// Computes the exact curve of one adapted gallery and one order.
pub fn run(arguments: &Curve, json: bool) -> Result<Outcome> {
    expect_other_inputs(arguments)?;
    let adapter = arguments.adapter.as_ref().map(Adapter::load).transpose()?;
    let (distance, old_distance) = distances(arguments, adapter.as_ref())?;
    arguments.grid.map_or(Ok(()), check_grid)?;
    if let Some(path) = &arguments.points {
        drop(stream::create(path, Columns { width: 1, ids: None, sigma2: false })?);
    }
    let mut inputs = Inputs::new(&RowSelection::default())?;
    let new = inputs.matrix("new", &arguments.new)?;
    let adapted = inputs.matrix("adapted", &arguments.adapted)?;
    let given = |paths: &[String]| !paths.is_empty();
    let old = given(&arguments.old).then(|| inputs.matrix("old", &arguments.old)).transpose()?;
    let [new_path, adapted_path, old_path] =
        [&arguments.new, &arguments.adapted, &arguments.old].map(|paths| paths.join(", "));
    if let (Some(adapter), Some(path)) = (&adapter, &arguments.adapter) {
        let path = path.display().to_string();
        inputs.note("adapter", &path, adapter.training.pairs, None, adapter.fingerprint()?);
        for (space, path, vectors) in
            [(&adapter.new, &new_path, &new), (&adapter.output_space(), &adapted_path, &adapted)]
        {
            expect_width(path, space.dimension, vectors.columns())?;
            if space.normalised {
                expect_normalised(path, space.dimension, 0, vectors.as_slice())?;
            }
        }
    }
    let by_position = arguments.ids.unless_joined(&arguments.new);
    expect_same_items(&[arguments.adapted.as_slice(), arguments.old.as_slice(), by_position])?;
    // What is made from old vectors has their rows, and so has what goes with the items.
    let join = Join::read(&arguments.ids, adapted.rows(), new.rows(), &RowSelection::default())?;
    let adapted = join.old_side(&adapted_path, adapted)?;
    let new = join.new_side(new);
    let old = old.map(|old| join.old_side(&old_path, old)).transpose()?;
    expect_count(&new_path, new.rows(), &adapted_path, adapted.rows())?;
    if let Some(old) = &old {
        expect_count(&new_path, new.rows(), &old_path, old.rows())?;
    }
    let order = files::read_order(&VectorSource::parse(&arguments.order)?)?;
    let numbers: Vec<i64> = order.iter().map(|&row| row as i64).collect();
    inputs.note("order", &arguments.order, order.len(), None, fingerprint(&numbers));
    let order = join.order(&arguments.order, order)?;
    expect_count(&new_path, new.rows(), &arguments.order, order.len())?;
    let loaded = Loaded::read(&arguments.relevance, &mut inputs, &join, new.rows(), None)?;
    let k = arguments.relevance.k;
    // What can be wrong with it is found before anything is written.
    let predicted: Option<Vec<f64>> = if given(&arguments.sigma) {
        let path = arguments.sigma.join(", ");
        let sigma = join.old_values(&path, inputs.column("sigma", &arguments.sigma)?)?;
        expect_count(&new_path, new.rows(), &path, sigma.len())?;
        if let Some(item) = sigma.iter().position(|value| !value.is_finite()) {
            return Err(Error::corrupt(path, format!("σ² of item {item} is not a finite number")));
        }
        Some(sigma)
    } else {
        None
    };
    let handicap =
        arguments.handicap.unwrap_or_else(|| adapter.as_ref().map_or(0.0, |adapter| adapter.handicap));
    let guarded = match (&adapter, &old) {
        (Some(adapter), Some(old)) => Some(guard(adapter, arguments, old, &new)?),
        _ => None,
    };
    loaded.say_idle(&[("--old", old.is_some() && arguments.adapter.is_none())]);
    let (mut value, mut text, found) = with_bar(|progress| -> Result<_> {
        let Some(relevance) = loaded.relevance() else {
            let (value, text) =
                label_free(&new, &adapted, &order, &loaded, distance, handicap, k, arguments, progress)?;
            return Ok((value, text, Vec::new()));
        };
        if old.is_some() && loaded.queries.is_some() && loaded.queries_old.is_none() {
            say("Warning: no do-nothing line, since --queries has no --queries-old.");
        }
        let today = old.as_ref().filter(|_| loaded.queries.is_none() || loaded.queries_old.is_some());
        let input = CurveInput {
            native: &new,
            adapted: &adapted,
            order: &order,
            queries: loaded.queries.as_ref(),
            relevance,
            distance,
            handicap,
            groups: loaded.groups.as_deref(),
            do_nothing: today.map(|old| DoNothing {
                gallery: old,
                queries: loaded.queries_old.as_ref(),
                distance: old_distance,
            }),
        };
        let judged = loaded.is_judged().then_some(k);
        let options =
            CurveOptions { map_at: Some(k), ndcg_at: judged, recall_at: judged, ..CurveOptions::default() };
        let exact = curve(&input, &options, progress)?;
        let columns = arguments.points.as_ref().map(|path| write_points(path, &exact, k)).transpose()?;
        let (mut value, text) = labelled(&exact, arguments, &loaded, k)?;
        if let (Some(path), Some(columns)) = (&arguments.points, columns) {
            value.insert("points".into(), points_value(path, &columns));
        }
        Ok((value, text, problems(&exact, relevance, k)))
    })?;
    if let Some(predicted) = predicted {
        let errors = rehang::study::true_errors(&new, &adapted);
        let table = calibration(&predicted, &errors, 10)?;
        let tau = kendall_tau_b(&predicted, &errors)?;
        let _ = writeln!(
            text,
            "σ²: Kendall τ-b with the true error {}, mean true error / mean σ² {:.2}",
            tau.map_or("undefined".into(), |tau| format!("{tau:.2}")),
            table.ratio
        );
        value.insert("sigma".into(), json!({ "kendall_tau": tau, "calibration": table }));
    }
    // The numbers are right all the same, and scripts that compare models want them: this is said and is no failure.
    for problem in &found {
        say(&format!("Warning: {problem}"));
    }
    let refused = guarded.as_ref().is_some_and(|guarded| guarded.refused);
    if let Some(guarded) = guarded {
        value.extend(guarded.values);
    }
    value.insert("warnings".into(), findings_value(&found));
    value.insert("distance".into(), json!(distance));
    value.insert("handicap".into(), json!(handicap));
    value.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    value.insert("inputs".into(), json!(inputs.read));
    print(json, &Value::Object(value), &text)?;
    Ok(if refused { Outcome::WithRefusals } else { Outcome::Done })
}

/// Fails where the points would be written over a file that they are computed from.
fn expect_other_inputs(arguments: &Curve) -> Result<()> {
    let mut named = vec![
        ("--new", arguments.new.as_slice()),
        ("--adapted", arguments.adapted.as_slice()),
        ("--order", std::slice::from_ref(&arguments.order)),
        ("--old", arguments.old.as_slice()),
        ("--sigma", arguments.sigma.as_slice()),
    ];
    named.extend(arguments.ids.files());
    named.extend(arguments.relevance.files());
    let mut inputs = files_of(&named)?;
    inputs.extend(arguments.adapter.iter().map(|path| ("--adapter", path.clone())));
    expect_apart(&[("--points", arguments.points.as_ref())], &inputs)
}

/// The distances of the new and of the old space: those that are asked for, or else the adapter's.
fn distances(arguments: &Curve, adapter: Option<&Adapter>) -> Result<(Distance, Distance)> {
    let asked = arguments.distance.as_deref().map(str::parse::<Distance>).transpose()?;
    let asked_old = arguments.old_distance.as_deref().map(str::parse::<Distance>).transpose()?;
    let distance = asked.or(adapter.map(|adapter| adapter.new.distance)).unwrap_or(Distance::L2);
    let declared_old = adapter.map_or(distance, |adapter| adapter.old.distance);
    if let Some(adapter) = adapter
        && arguments.handicap.is_none()
        && adapter.handicap > 0.0
        && adapter.new.distance != distance
    {
        return Err(Error::option(
            "--distance",
            distance,
            format!(
                "{}, the unit of the adapter's handicap ({}); or give --handicap in the unit of this one",
                adapter.new.distance, adapter.handicap
            ),
        ));
    }
    Ok((distance, asked_old.or(asked).unwrap_or(declared_old)))
}

/// What makes a curve no reason to upgrade: a new model that is no better, or labels that cannot tell.
fn problems(exact: &ExactCurve, relevance: Relevance<'_>, k: usize) -> Vec<Finding> {
    let mut problems = Vec::new();
    if let Relevance::Labels { gallery, .. } = relevance
        && gallery.iter().all(|&label| label >= 0 && label == gallery[0])
    {
        problems.push(
            Finding::new(Severity::Problem, "one-class", "All items have the same label.")
                .may_mean("Every answer is right and the numbers say nothing.")
                .remedy("Give labels that tell items apart."),
        );
    }
    let today = exact.do_nothing.as_ref().map(|today| &today.evaluation);
    let (measure, line, today) = match &exact.ndcg_at {
        Some(at) => (format!("nDCG@{k}"), &at.line, today.and_then(|today| today.ndcg_at)),
        None => ("mAP".to_owned(), &exact.map, today.map(|today| today.map)),
    };
    // As in a report, a tie is no problem.
    if let Some(do_nothing) = today.filter(|value| value.is_finite())
        && stays_above_from(line.values(), do_nothing).is_none()
    {
        let summary = CurveSummary {
            measure,
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

/// What is wrong between an adapter and the gallery, already said, and whether its numbers are not to be relied on.
struct Guarded {
    values: Map<String, Value>,
    refused: bool,
}

/// Looks for items of the gallery among the adapter's pairs, and at its direction.
fn guard(adapter: &Adapter, arguments: &Curve, old: &Matrix, new: &Matrix) -> Result<Guarded> {
    let old_path = arguments.old.join(", ");
    adapter.expect_input_width(old.columns()).map_err(|error| error.context(old_path))?;
    let overlap = among_pairs(adapter, old);
    let mut guarded = Guarded { values: Map::new(), refused: false };
    guarded.values.insert("among_pairs".into(), json!(overlap.as_ref().map(among_pairs_value)));
    match overlap {
        None => say(
            "Note: this adapter does not remember its pairs, so whether items are among them is not known.",
        ),
        Some(overlap) if overlap.among_pairs() > 0 => {
            guarded.refused = !may_be_other_items(overlap.among_pairs(), overlap.rows(), lookalikes(old));
            let (word, meaning) = if guarded.refused {
                ("Problem", "the numbers are too good")
            } else {
                ("Note", "they are duplicates, or the old model cannot tell them apart")
            };
            say(&format!("{word}: {}; {meaning}.", among_pairs_text(&overlap)));
        }
        Some(_) => {}
    }
    // A map that reads side information is looked at where that is at hand: in a report.
    if adapter.side_dimension().is_none() {
        let findings = adapter_findings(adapter, old, new, None)?;
        for finding in &findings {
            guarded.refused = true;
            say_finding(finding);
        }
        guarded.values.insert("findings".into(), findings_value(&findings));
    }
    Ok(guarded)
}

fn three(of: impl Fn(usize) -> f64) -> Value {
    json!({ "top1": of(0), "top5": of(1), "map": of(2) })
}

fn labelled(
    exact: &ExactCurve,
    arguments: &Curve,
    loaded: &Loaded,
    k: usize,
) -> Result<(Map<String, Value>, String)> {
    let lines: [&Line; 3] = [&exact.top1, &exact.top5, &exact.map];
    let mut value = Map::new();
    value.insert("n".into(), json!(exact.items));
    value.insert("queries".into(), json!(exact.queries));
    value.insert("area".into(), three(|line| lines[line].area()));
    value.insert("start".into(), three(|line| lines[line].start()));
    value.insert("end".into(), three(|line| lines[line].end()));
    value.insert("min".into(), three(|line| lines[line].min()));
    let mut text = format!(
        "{} items, {} queries counted ({} without a right answer, {} unlabelled)\n\n{:<12} {:>7} {:>7} {:>7}\n",
        exact.items,
        exact.queries.counted,
        exact.queries.without_positives,
        exact.queries.unlabelled,
        "percent",
        "top-1",
        "top-5",
        "mAP"
    );
    let mut row = |name: &str, of: &dyn Fn(usize) -> f64| {
        let [a, b, c] = [0, 1, 2].map(|line| one_decimal(of(line)));
        let _ = writeln!(text, "{name:<12} {a:>7} {b:>7} {c:>7}");
    };
    let today = exact
        .do_nothing
        .as_ref()
        .map(|today| [today.evaluation.top1, today.evaluation.top5, today.evaluation.map]);
    if let Some(today) = today {
        row("do nothing", &|line| today[line]);
    }
    row("start", &|line| lines[line].start());
    row("minimum", &|line| lines[line].min());
    row("end", &|line| lines[line].end());
    row("area", &|line| lines[line].area());
    value.insert("do_nothing".into(), today.map_or(Value::Null, |today| three(|line| today[line])));
    value.insert(
        "passes_do_nothing_at".into(),
        today.map_or(Value::Null, |today| {
            let at = |line: usize| {
                stays_above_from(lines[line].values(), today[line]).map(|cut| cut as f64 / exact.items as f64)
            };
            json!({ "top1": at(0), "top5": at(1), "map": at(2) })
        }),
    );
    let samples = arguments.bootstrap.unwrap_or(BOOTSTRAP);
    if samples > 0 {
        let intervals = exact.area_intervals(samples, LEVEL, SEED)?;
        let further =
            [("map", intervals.map_at), ("ndcg", intervals.ndcg_at), ("recall", intervals.recall_at)];
        let named = [
            ("top1".to_owned(), intervals.top1),
            ("top5".to_owned(), intervals.top5),
            ("map".to_owned(), intervals.map),
        ]
        .into_iter()
        .chain(further.into_iter().filter_map(|(name, of)| Some((format!("{name}@{k}"), of?))));
        value.insert("area_interval".into(), intervals_value(samples, named));
        let _ = writeln!(
            text,
            "area, 95 % intervals over queries: top-1 {:.1}–{:.1}, top-5 {:.1}–{:.1}, mAP {:.1}–{:.1}",
            intervals.top1.low,
            intervals.top1.high,
            intervals.top5.low,
            intervals.top5.high,
            intervals.map.low,
            intervals.map.high
        );
    }
    for (name, at) in [("map", &exact.map_at), ("ndcg", &exact.ndcg_at), ("recall", &exact.recall_at)] {
        if let Some(at) = at {
            value.insert(format!("{name}@{k}"), summary(&at.line));
            let _ = writeln!(
                text,
                "{name}@{k}: start {:.1}, end {:.1}, area {:.1}",
                at.line.start(),
                at.line.end(),
                at.line.area()
            );
        }
    }
    if let Some(points) = arguments.grid {
        let grids = lines.map(|line| line.grid(points));
        value.insert(
            "grid".into(),
            json!({
                "cuts": grids[0].cuts,
                "top1": grids[0].values,
                "top5": grids[1].values,
                "map": grids[2].values,
                "mean": three(|line| grids[line].mean),
            }),
        );
        let _ = writeln!(
            text,
            "mean of {points} points: top-1 {:.2}, top-5 {:.2}, mAP {:.2}",
            grids[0].mean, grids[1].mean, grids[2].mean
        );
    }
    // Flips are shown where a reader looks first: at a quarter, a half, three quarters and the end.
    let cuts: Vec<usize> = (0..=4).map(|quarter| quarter * exact.items / 4).collect();
    let flips = |by_depth: &rehang::curve::FlipsByDepth| {
        let one = |flips: &rehang::curve::Flips| {
            json!({
                "right_at_reference": flips.right,
                "cuts": cuts,
                "positive": cuts.iter().map(|&cut| flips.positive[cut]).collect::<Vec<_>>(),
                "negative": cuts.iter().map(|&cut| flips.negative[cut]).collect::<Vec<_>>(),
                "negative_flip_rate": cuts.iter().map(|&cut| flips.rate.values()[cut]).collect::<Vec<_>>(),
                "negative_flip_rate_area": flips.rate.area(),
            })
        };
        json!({ "top1": one(&by_depth.top1), "top5": one(&by_depth.top5) })
    };
    let mut all_flips = flips(&exact.flips);
    if let (Some(today), Some(object)) = (&exact.do_nothing, all_flips.as_object_mut()) {
        object.insert("against_do_nothing".into(), flips(&today.flips));
    }
    value.insert("flips".into(), all_flips);
    if let Some(gap) = &exact.gap {
        value.insert("gap".into(), summary(gap));
        let groups: Vec<Value> = exact
            .groups
            .iter()
            .map(|group| {
                json!({
                    "group": group.group,
                    "name": loaded.group_name(group.group),
                    "queries": group.queries,
                    "top1": summary(&group.top1),
                })
            })
            .collect();
        value.insert("groups".into(), json!(groups));
        let _ = writeln!(
            text,
            "gap between groups (top-1): start {:.1}, end {:.1}, area {:.1}",
            gap.start(),
            gap.end(),
            gap.area()
        );
    }
    Ok((value, text))
}

/// Intervals over queries, by the name of their measure, and how they were drawn.
fn intervals_value(samples: usize, named: impl IntoIterator<Item = (String, Interval)>) -> Value {
    let mut value = Map::new();
    value.insert("level".into(), json!(LEVEL));
    value.insert("samples".into(), json!(samples));
    value.insert("seed".into(), json!(SEED));
    value.extend(named.into_iter().map(|(name, of)| (name, json!([of.low, of.high]))));
    Value::Object(value)
}

fn points_value(path: &std::path::Path, columns: &[String]) -> Value {
    json!({ "file": path.display().to_string(), "columns": columns })
}

fn summary(line: &Line) -> Value {
    json!({ "area": line.area(), "start": line.start(), "end": line.end(), "min": line.min() })
}

fn label_free(
    new: &Matrix,
    adapted: &Matrix,
    order: &[usize],
    loaded: &Loaded,
    distance: Distance,
    handicap: f64,
    k: usize,
    arguments: &Curve,
    progress: &Progress,
) -> Result<(Map<String, Value>, String)> {
    let result = agreement(new, adapted, order, loaded.queries.as_ref(), distance, handicap, k, 0, progress)?;
    if let Some(path) = &arguments.points {
        let line = result.line.values();
        files::write_matrix(path, &Matrix::from_fn(line.len(), 1, |cut, _| line[cut] as f32), None)?;
    }
    let mut value = Map::new();
    if let Some(path) = &arguments.points {
        value.insert("points".into(), points_value(path, &[format!("agreement@{}", result.depth)]));
    }
    value.insert("n".into(), json!(new.rows()));
    value.insert(format!("agreement@{}", result.depth), summary(&result.line));
    if let Some(points) = arguments.grid {
        let grid = result.line.grid(points);
        value.insert(
            "grid".into(),
            json!({ "cuts": grid.cuts, "agreement": grid.values, "mean": { "agreement": grid.mean } }),
        );
    }
    let mut text = format!(
        "{} items, no labels: agreement@{} with the fully native gallery, in percent\nstart {:.1}, minimum {:.1}, end {:.1}, area {:.1}\n",
        new.rows(),
        result.depth,
        result.line.start(),
        result.line.min(),
        result.line.end(),
        result.line.area()
    );
    let samples = arguments.bootstrap.unwrap_or(BOOTSTRAP);
    if samples > 0 {
        let interval = result.area_interval(samples, LEVEL, SEED)?;
        let named = (format!("agreement@{}", result.depth), interval);
        value.insert("area_interval".into(), intervals_value(samples, [named]));
        let _ = writeln!(text, "area, 95 % interval over queries: {:.1}–{:.1}", interval.low, interval.high);
    }
    Ok((value, text))
}

/// One measure along the whole curve, and its name in the answer.
type PointColumn<'a> = (String, Box<dyn Fn(usize) -> f64 + 'a>);

/// Everything that a curve holds at each of its n + 1 fractions, in the order of `docs/formats.md`.
fn point_columns<'a>(exact: &'a ExactCurve, k: usize) -> Vec<PointColumn<'a>> {
    let mut columns: Vec<PointColumn<'a>> = Vec::new();
    let mut line = |name: String, line: &'a Line| columns.push((name, Box::new(|cut| line.values()[cut])));
    line("top1".into(), &exact.top1);
    line("top5".into(), &exact.top5);
    line("map".into(), &exact.map);
    let against_today = exact.do_nothing.as_ref().map(|today| ("do_nothing_", &today.flips));
    for (reference, by_depth) in std::iter::once(("", &exact.flips)).chain(against_today) {
        for (depth, flips) in [("top1", &by_depth.top1), ("top5", &by_depth.top5)] {
            let name = |what: &str| format!("{reference}{depth}_{what}");
            columns.push((name("positive_flips"), Box::new(|cut| flips.positive[cut] as f64)));
            columns.push((name("negative_flips"), Box::new(|cut| flips.negative[cut] as f64)));
            columns.push((name("negative_flip_rate"), Box::new(|cut| flips.rate.values()[cut])));
        }
    }
    let mut line = |name: String, line: &'a Line| columns.push((name, Box::new(|cut| line.values()[cut])));
    for (name, at) in [("map", &exact.map_at), ("ndcg", &exact.ndcg_at), ("recall", &exact.recall_at)] {
        if let Some(at) = at {
            line(format!("{name}@{k}"), &at.line);
        }
    }
    if let Some(gap) = &exact.gap {
        line("gap_top1".into(), gap);
    }
    for group in &exact.groups {
        line(format!("group_{}_top1", group.group), &group.top1);
    }
    columns
}

/// Writes the curve `[n + 1, columns]`, a block of fractions at a time, and gives the columns' names.
fn write_points(path: &std::path::Path, exact: &ExactCurve, k: usize) -> Result<Vec<String>> {
    const ROWS: usize = 4096;
    let columns = point_columns(exact, k);
    let mut writer = stream::create(path, Columns { width: columns.len(), ids: None, sigma2: false })?;
    for first in (0..=exact.items).step_by(ROWS) {
        let cuts = first..(first + ROWS).min(exact.items + 1);
        let block: Vec<f32> =
            cuts.flat_map(|cut| columns.iter().map(move |(_, value)| value(cut) as f32)).collect();
        writer.write(&block, None, None)?;
    }
    writer.commit()?;
    Ok(columns.into_iter().map(|(name, _)| name).collect())
}
