//! Tells a report as a document: sections of paragraphs, tables and charts, which HTML and Markdown only
//! write down.
//!
//! Everything that is said is decided here, once, so that the two forms cannot say different things.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::order::Policy;
use rehang_core::report::{
    AdapterCalibration, CurveBand, CurveSeries, FittedOn, FlipCurves, FloorAt, Floors, GroupCurves,
    GroupStudy, MeasuredSet, MetricCurve, NumberWithSpread, Report, Scores, ShownMetric, Spread,
    WholeGallery,
};
use rehang_core::verdict::{Verdict, is_below};

use crate::chart::{Axis, Chart, ChartLine, Level, Look, Note};
use crate::numbers::{
    UNDEFINED, count, counted, decimal, fraction, fraction_rounded_up, metric, metric_with_unit, range,
    shown, significant, spread,
};
use crate::scale::Scale;

/// Heading of the column that names the curves.
const CURVE: &str = "method · order";

/// A whole document, ready to be written in any form.
pub(crate) struct Document<'a> {
    pub(crate) title: &'a str,
    /// Names of the old and the new space, and the number of items.
    pub(crate) subtitle: String,
    /// Advice in one to three words.
    pub(crate) advice: &'static str,
    /// Reason for the advice, in one sentence.
    pub(crate) verdict: String,
    pub(crate) key_numbers: Vec<KeyNumber>,
    /// Warnings that stand at the top.
    pub(crate) severe: Vec<&'a Finding>,
    /// Number of warnings further down.
    pub(crate) warnings: usize,
    pub(crate) sections: Vec<Section<'a>>,
    /// Line that says what made the report.
    pub(crate) colophon: String,
}

/// One of the numbers at the top.
pub(crate) struct KeyNumber {
    pub(crate) label: &'static str,
    pub(crate) value: String,
    /// Unit of the number and the metric it is of: `% mAP`.
    pub(crate) unit: String,
    /// Values of this number by the other metrics.
    pub(crate) others: Vec<String>,
}

pub(crate) struct Section<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) title: Cow<'a, str>,
    pub(crate) blocks: Vec<Block<'a>>,
}

pub(crate) enum Block<'a> {
    Text(String),
    Table(Table),
    /// A chart with the tables that hold its numbers.
    Chart(Box<Chart>, Vec<Table>),
    Warning(&'a Finding),
}

/// A table; its unit is said once, in the caption.
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Column {
    pub(crate) heading: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Code,
}

#[derive(Default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<Cell>,
    /// Whether this row matters most.
    pub(crate) strong: bool,
}

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// Spread or place of the number, written smaller.
    pub(crate) aside: String,
    /// Whether this cell matters most in its column.
    pub(crate) strong: bool,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Row {
    /// Returns a row that begins with a name.
    pub(crate) fn new<C: Into<Cell>>(name: impl Into<Cell>, cells: impl IntoIterator<Item = C>) -> Self {
        let cells = std::iter::once(name.into()).chain(cells.into_iter().map(C::into)).collect();
        Self { cells, strong: false }
    }
}

pub(crate) fn section<'a>(
    id: impl Into<Cow<'a, str>>,
    title: impl Into<Cow<'a, str>>,
    blocks: Vec<Block<'a>>,
) -> Section<'a> {
    Section { id: id.into(), title: title.into(), blocks }
}

/// Tells `report` as a document.
pub(crate) fn document(report: &Report) -> Document<'_> {
    let (primary, further): (Vec<&ShownMetric>, Vec<&ShownMetric>) =
        measured_metrics(report).into_iter().partition(|metric| metric.primary);
    let sections = [
        report.gallery.as_ref().and_then(|gallery| forecast_section(report, gallery)),
        report.floors.as_ref().and_then(floors_section),
        curves_section(report, &primary),
        areas_section(report),
        flips_section(report),
        calibration_section(&report.calibrations),
        report.groups.as_ref().and_then(|groups| groups_section(report, groups)),
        sizes_section(report, &primary),
        further_section(report, &further),
        measured_section(report),
        warnings_section(report),
        Some(provenance_section(report)),
    ];
    let (mut advice, mut verdict) = verdict(report);
    // A metric that gets worse at once is told before those that get better.
    if let Some(falls) =
        report.warnings.iter().find(|warning| warning.code == FindingCode::AnotherMetricFalls)
    {
        verdict = format!("{} {verdict}", falls.seen);
        if report.verdict() == Verdict::SwitchNow {
            advice = "Decide first";
        }
    }
    Document {
        title: &report.title,
        subtitle: format!("{} → {}", report.spaces.old, report.spaces.new),
        advice,
        verdict,
        key_numbers: key_numbers(report),
        severe: report.warnings.iter().filter(|warning| warning.severity == Severity::Problem).collect(),
        warnings: report.warnings.len(),
        sections: sections.into_iter().flatten().collect(),
        colophon: colophon(&report.created_by.version),
    }
}

/// Makes the chart of one metric along every curve of a report, with bands and with the lines of doing
/// nothing and of the new model. `None` where no curve has that metric.
pub(crate) fn metric_chart(report: &Report, id: &str) -> Option<Chart> {
    let metric = report.metrics.iter().find(|metric| metric.id == id)?;
    let curves = curves_of(report, id);
    if curves.is_empty() {
        return None;
    }
    let level = |scores: &Scores| shown(*scores.get(id)?);
    let note =
        curves.first().filter(|(_, first, _)| is_headline(report, first)).and_then(|(_, series, curve)| {
            let at = curve.passes_do_nothing_at.filter(|&at| at > 0.0)?;
            let nearest = series.fractions.iter().position(|&fraction| fraction >= at)?;
            Some(Note {
                x: at * 100.0,
                y: *curve.values.get(nearest)?,
                text: format!("better than doing nothing from {}", fraction_rounded_up(at)),
            })
        });
    let lines = curves.iter().map(|(place, series, curve)| ChartLine {
        name: series.name(),
        points: against_percent(&series.fractions, &curve.values),
        band: curve.band.as_ref().map_or_else(Vec::new, |band| band_points(&series.fractions, band)),
        look: look(*place),
    });
    Some(Chart {
        levels: levels(
            level(&report.do_nothing),
            bridge_of(report, id),
            "new model",
            level(&report.new_model),
        ),
        note,
        ..chart_along(
            format!("{} while the gallery is re-embedded", metric.name),
            Axis::percent(format!("{}, %", metric.name)),
            lines.collect(),
        )
    })
}

/// Makes a chart of what happens while the gallery is re-embedded.
pub(crate) fn chart_along(title: String, y: Axis, lines: Vec<ChartLine>) -> Chart {
    Chart { title, x: Axis::percent("re-embedded, % of the gallery"), y, lines, ..Chart::default() }
}

/// Returns the value that a bridge brings by a metric, in the report of a whole gallery.
fn bridge_of(report: &Report, id: &str) -> Option<f64> {
    shown(report.gallery.as_ref()?.bridge.get(id)?.value)
}

/// Returns the levels of doing nothing, of a bridge and of a new model, where they are known.
pub(crate) fn levels(
    do_nothing: Option<f64>,
    bridge: Option<f64>,
    new_name: &str,
    new: Option<f64>,
) -> Vec<Level> {
    [("do nothing", do_nothing, false), ("bridge", bridge, false), (new_name, new, true)]
        .into_iter()
        .filter_map(|(name, value, dotted)| Some(Level { name: name.into(), value: value?, dotted }))
        .collect()
}

/// Returns the curves that have a metric, the headline curve first, each with its place among the looks.
fn curves_of<'a>(report: &'a Report, id: &str) -> Vec<(usize, &'a CurveSeries, &'a MetricCurve)> {
    ordered_curves(report)
        .into_iter()
        .enumerate()
        .filter_map(|(place, series)| Some((place, series, series.metrics.get(id)?)))
        .collect()
}

/// Returns the look of a curve by its place: the headline curve, which comes first, is the main one.
fn look(place: usize) -> Look {
    if place == 0 { Look::Main } else { Look::Numbered(place) }
}

/// Returns all curves, the headline curve first.
fn ordered_curves(report: &Report) -> Vec<&CurveSeries> {
    let headline = report.headline_curve().into_iter();
    headline.chain(report.curves.iter().filter(|series| !is_headline(report, series))).collect()
}

fn is_headline(report: &Report, series: &CurveSeries) -> bool {
    report.headline_curve().is_some_and(|headline| std::ptr::eq(headline, series))
}

/// Returns the metrics that any curve or level has.
fn measured_metrics(report: &Report) -> Vec<&ShownMetric> {
    let has = |metric: &&ShownMetric| {
        report.curves.iter().any(|series| series.metrics.contains_key(&metric.id))
            || report.do_nothing.contains_key(&metric.id)
            || report.new_model.contains_key(&metric.id)
    };
    report.metrics.iter().filter(has).collect()
}

fn verdict(report: &Report) -> (&'static str, String) {
    let (Some(series), Some(metric)) = (report.headline_curve(), report.headline_metric()) else {
        return (
            "No verdict",
            "No curve was measured, so nothing can be said about this upgrade yet.".into(),
        );
    };
    let Some(curve) = series.metrics.get(&metric.id) else { return ("No verdict", String::new()) };
    let (name, start, end) = (
        &metric.name,
        with_range(report, curve, 0.0, curve.start),
        with_range(report, curve, 1.0, curve.end),
    );
    let Some(nothing) = report.do_nothing.get(&metric.id).copied().filter(|value| value.is_finite()) else {
        return (
            "Compare with today first",
            format!(
                "{name} is {start} at the switch and {end} when everything is re-embedded; today's quality was not measured, \
                 so the report cannot say whether that is better."
            ),
        );
    };
    let nothing_range =
        report.gallery.as_ref().and_then(|gallery| gallery.do_nothing.get(&metric.id)?.interval());
    let nothing_text = nothing_range.map_or_else(
        || metric_with_unit(nothing),
        |(low, high)| format!("{} ({})", metric_with_unit(nothing), range(low, high)),
    );
    match report.verdict() {
        Verdict::NotMeasured => ("No verdict", String::new()),
        Verdict::SwitchNow => (
            "Switch now",
            format!(
                "Before anything is re-embedded, {name} is {start} against {nothing_text} for doing nothing; {}, and ends at {end}.",
                if may_be_below(report, curve, nothing) {
                    "it is not expected to fall below that line, which lies within its range"
                } else {
                    "it never falls below that line"
                }
            ),
        ),
        Verdict::ReembedFirst { until } if is_below(curve.start, nothing) => (
            "Re-embed first, then switch",
            format!(
                "At once, {name} would fall from {nothing_text} to {start}; it is better than doing nothing from {} of the \
                 gallery on, and ends at {end}.",
                fraction_rounded_up(until)
            ),
        ),
        Verdict::ReembedFirst { until } => (
            "Re-embed first, then switch",
            format!(
                "{name} starts at {start} against {nothing_text} for doing nothing, but dips below it on the way; it is better \
                 for good from {} of the gallery on, and ends at {end}.",
                fraction_rounded_up(until)
            ),
        ),
        Verdict::DoNotSwitch => (
            "Do not switch",
            format!(
                "Even with everything re-embedded, {name} is {end} against {nothing_text} for doing nothing, \
                 so this upgrade does not pay."
            ),
        ),
    }
}

/// Returns whether the range of a forecast reaches below doing nothing.
fn may_be_below(report: &Report, curve: &MetricCurve, nothing: f64) -> bool {
    let band = curve.band.as_ref().filter(|_| report.gallery.is_some());
    band.is_some_and(|band| band.low.iter().any(|&low| is_below(low, nothing)))
}

/// Writes a value of the headline curve; in a forecast with its range.
fn with_range(report: &Report, curve: &MetricCurve, at: f64, value: f64) -> String {
    let edge = |edge: &[f64]| if at > 0.0 { edge.last().copied() } else { edge.first().copied() };
    let band = curve.band.as_ref().filter(|_| report.gallery.is_some());
    match band.and_then(|band| Some((edge(&band.low)?, edge(&band.high)?))) {
        Some((low, high)) if low < high => format!("{} ({})", metric_with_unit(value), range(low, high)),
        _ => metric_with_unit(value),
    }
}

fn key_numbers(report: &Report) -> Vec<KeyNumber> {
    let (Some(series), Some(first)) = (report.headline_curve(), report.headline_metric()) else {
        return Vec::new();
    };
    let other_metrics: Vec<&ShownMetric> = report
        .metrics
        .iter()
        .filter(|metric| metric.primary && metric.id != first.id && series.metrics.contains_key(&metric.id))
        .collect();
    let number = |label, value: &dyn Fn(&ShownMetric) -> f64| KeyNumber {
        label,
        value: metric(value(first)),
        unit: format!("%\u{a0}{}", first.name),
        others: other_metrics
            .iter()
            .map(|other| format!("{}\u{a0}{}", other.name, metric(value(other))))
            .collect(),
    };
    let along = |pick: fn(&MetricCurve) -> f64| {
        move |metric: &ShownMetric| series.metrics.get(&metric.id).map_or(f64::NAN, pick)
    };
    let mut numbers = vec![
        number("Doing nothing", &|metric| report.do_nothing.get(&metric.id).copied().unwrap_or(f64::NAN)),
        number("At the switch", &along(|curve| curve.start)),
        number("Fully re-embedded", &along(|curve| curve.end)),
    ];
    if report.do_nothing.get(&first.id).is_some_and(|value| value.is_finite()) {
        let passes = |metric: &ShownMetric| {
            let at = series.metrics.get(&metric.id).and_then(|curve| curve.passes_do_nothing_at);
            at.map_or_else(|| "never".into(), fraction_rounded_up)
        };
        let at = passes(first);
        let (value, unit) = at.split_once('\u{a0}').unwrap_or((&at, ""));
        numbers.push(KeyNumber {
            label: "Beats doing nothing from",
            value: value.into(),
            unit: if unit.is_empty() {
                format!("by {}", first.name)
            } else {
                format!("{unit}\u{a0}by {}", first.name)
            },
            others: other_metrics
                .iter()
                .map(|other| format!("{}\u{a0}{}", other.name, passes(other)))
                .collect(),
        });
    }
    if report.gallery.is_some() {
        let enough = |metric: &ShownMetric| {
            let share = series.metrics.get(&metric.id).and_then(|curve| curve.enough);
            share.map_or_else(|| UNDEFINED.into(), |share| decimal(100.0 * share.fraction, 0))
        };
        let of_first = series.metrics.get(&first.id).and_then(|curve| curve.enough);
        numbers.push(KeyNumber {
            label: "98 % of the end from",
            value: enough(first),
            unit: if of_first.is_some() { "%\u{a0}native" } else { "not to be told" }.into(),
            others: of_first
                .map(|share| {
                    let [low, high] = [share.low, share.high].map(|at| decimal(100.0 * at, 0));
                    format!("{low}–{high}")
                })
                .into_iter()
                .chain(other_metrics.iter().map(|other| format!("{}\u{a0}{}", other.name, enough(other))))
                .collect(),
        });
    }
    numbers
}

/// Explains the orders of the curves in one sentence that begins with a space; empty where none is known.
fn about_orders(report: &Report) -> String {
    let mut orders: Vec<&str> = Vec::new();
    for curve in &report.curves {
        if !orders.contains(&curve.order.as_str()) {
            orders.push(&curve.order);
        }
    }
    let about = orders.into_iter().filter_map(|order| {
        let says = order.parse::<Policy>().ok()?.about();
        Some(format!("{order} {says}"))
    });
    let about: Vec<String> = about.collect();
    if about.is_empty() { String::new() } else { format!(" The orders: {}.", about.join("; ")) }
}

fn curves_section<'a>(report: &Report, metrics: &[&ShownMetric]) -> Option<Section<'a>> {
    let mut blocks = metric_blocks(report, metrics);
    if blocks.is_empty() {
        return None;
    }
    let about_bands = bands_sentence(report);
    let exact = if report.gallery.is_some() { "" } else { ", and its curve is exact at every fraction" };
    let intro = format!(
        "Queries use the new model from the switch on, at 0\u{a0}%. Each line is one method and order: how good the answers are \
         while the gallery moves from adapted to native vectors{exact}.{about_bands}{}",
        about_orders(report)
    );
    blocks.insert(0, Block::Text(intro));
    Some(section("curves", "What every percent buys", blocks))
}

/// Tells what an upgrade of the whole gallery buys, by the headline curve.
fn forecast_section<'a>(report: &Report, gallery: &WholeGallery) -> Option<Section<'a>> {
    let series = report.headline_curve()?;
    let has_bridge = !gallery.bridge.is_empty();
    let of: Vec<(&ShownMetric, &MetricCurve)> =
        report.metrics.iter().filter_map(|metric| Some((metric, series.metrics.get(&metric.id)?))).collect();
    let at = |curve: &MetricCurve, place: f64| {
        let value = value_at(&series.fractions, &curve.values, place);
        let aside = curve.band.as_ref().map(|band| {
            let [low, high] = [&band.low, &band.high].map(|edge| value_at(&series.fractions, edge, place));
            range(low, high)
        });
        Cell { text: metric(value), aside: aside.unwrap_or_default(), ..Cell::default() }
    };
    let rows = of.iter().map(|(shown, curve)| {
        let level = |of: &BTreeMap<String, NumberWithSpread>| {
            of.get(&shown.id).map_or_else(|| UNDEFINED.into(), estimate_cell)
        };
        let bridge = has_bridge.then(|| level(&gallery.bridge));
        let before = std::iter::once(level(&gallery.do_nothing)).chain(bridge);
        let enough = curve.enough.map_or_else(
            || UNDEFINED.into(),
            |share| Cell {
                text: decimal(100.0 * share.fraction, 0),
                aside: format!("{}–{}", decimal(100.0 * share.low, 0), decimal(100.0 * share.high, 0)),
                ..Cell::default()
            },
        );
        let along = [0.0, 0.25, 0.5, 0.75, 1.0].map(|place| at(curve, place));
        Row::new(shown.name.clone(), before.chain(along).chain([enough]))
    });
    let headings = std::iter::once("do nothing").chain(has_bridge.then_some("over a bridge")).chain([
        "at the switch",
        "25 % native",
        "50 %",
        "75 %",
        "all native",
        "98 % of it from",
    ]);
    let table = Table {
        caption: format!("{}: the whole gallery, %", series.name()),
        columns: columns("metric", headings),
        rows: rows.collect(),
    };
    let mut text = format!(
        "{} of the gallery's {} were embedded by the new model and held out of the fit. Doing nothing and the switch are asked of the \
         whole gallery; what natives add is carried over from the held-out ones. Behind each number stands the range that holds the \
         truth in 95 of 100 samples. A share is told only where the metric gains something and the range is narrower than half of the \
         gallery.",
        count(gallery.held_out),
        counted(gallery.items, "item", "items"),
    );
    if has_bridge {
        text += " Over a bridge, old vectors and their index stay as they are, and queries by both models go to them.";
    }
    if gallery.speaks_of < gallery.items {
        let _ = write!(
            text,
            " They speak of a gallery of {} and not of more: the numbers are those of such a gallery.",
            counted(gallery.speaks_of, "item", "items")
        );
    }
    Some(section("forecast", "The whole gallery", vec![Block::Text(text), Block::Table(table)]))
}

/// Tells where an application's floors lie by the new model.
fn floors_section<'a>(floors: &Floors) -> Option<Section<'a>> {
    if floors.rows.is_empty() {
        return None;
    }
    let at = |at: Option<FloorAt>| -> [Cell; 2] {
        let Some(at) = at else { return [UNDEFINED.into(), UNDEFINED.into()] };
        let aside = format!("{}–{}", decimal(at.low, 3), decimal(at.high, 3));
        [Cell { text: decimal(at.floor, 3), aside, ..Cell::default() }, fraction(at.changed).into()]
    };
    let rows = floors.rows.iter().map(|row| {
        let answers = std::iter::once(Cell::from(decimal(row.answers, 1)));
        Row::new(decimal(row.today, 3), answers.chain(at(row.adapted)).chain(at(row.native)))
    });
    let headings =
        ["answers to a query", "at the switch", "answers that change", "all native", "answers that change"];
    let table = Table {
        caption: format!("Floors of today ({}) and of the new model ({})", floors.today, floors.then),
        columns: columns("floor of today", headings),
        rows: rows.collect(),
    };
    let text = format!(
        "An application that shows only what is near enough moves its floor with its queries. Each of these lets as many answers through as the floor of \
         today, counted for {}; that of a native gallery is counted among the {} held out. Behind it stands the range that holds it in 95 of 100 samples \
         of the queries.",
        counted(floors.queries, "query", "queries"),
        count(floors.natives),
    );
    Some(section("floors", "Floors of searches", vec![Block::Text(text), Block::Table(table)]))
}

/// Tells what each metric means, with its chart and its tables.
fn metric_blocks<'a>(report: &Report, metrics: &[&ShownMetric]) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    for metric in metrics {
        if let Some(chart) = metric_chart(report, &metric.id) {
            let tables = vec![along_table(report, metric), landmarks_table(report, metric)];
            blocks.extend([Block::Text(metric.about.clone()), Block::Chart(Box::new(chart), tables)]);
        }
    }
    blocks
}

fn bands_sentence(report: &Report) -> String {
    let mut about: Vec<&str> = report
        .curves
        .iter()
        .flat_map(|series| series.metrics.values())
        .filter_map(|curve| curve.band.as_ref())
        .map(|band| band.about.as_str())
        .filter(|about| !about.is_empty())
        .collect();
    about.sort_unstable();
    about.dedup();
    if about.is_empty() { String::new() } else { format!(" Shaded: {}.", about.join("; ")) }
}

/// Tabulates eleven points of each curve of one metric.
fn along_table(report: &Report, of: &ShownMetric) -> Table {
    let curves = curves_of(report, &of.id);
    let series =
        curves.iter().map(|(_, series, curve)| (series.name(), &series.fractions[..], &curve.values[..]));
    sampled_table(&format!("{}, %", of.name), CURVE, series)
}

/// Tabulates series at 0, 10, …, 100 %: one row a series, one column a fraction, so that any number of series
/// fits on a page.
fn sampled_table<'s>(
    what: &str,
    heading: &str,
    series: impl Iterator<Item = (String, &'s [f64], &'s [f64])>,
) -> Table {
    tenths_table(
        what,
        heading,
        series.map(|(name, fractions, values)| {
            (name, move |step: u32| value_at(fractions, values, f64::from(step) / 10.0))
        }),
    )
}

/// Tabulates one row for each name, with its value at every tenth of the gallery by `at(tenths)`.
pub(crate) fn tenths_table<A: Fn(u32) -> f64>(
    what: &str,
    heading: &str,
    series: impl Iterator<Item = (String, A)>,
) -> Table {
    let row = |(name, at): (String, A)| Row::new(name, (0..=10).map(|step| metric(at(step))));
    Table {
        caption: format!("{what}, by share of the gallery that is re-embedded, %"),
        columns: columns(heading, (0..=10).map(|step| (step * 10).to_string())),
        rows: series.map(row).collect(),
    }
}

/// Returns the value at the fraction nearest to `at`; NaN where none is near.
fn value_at(fractions: &[f64], values: &[f64], at: f64) -> f64 {
    fractions
        .iter()
        .zip(values)
        .filter(|(fraction, _)| fraction.is_finite())
        .min_by(|a, b| (a.0 - at).abs().total_cmp(&(b.0 - at).abs()))
        .filter(|(fraction, _)| (*fraction - at).abs() <= 0.05)
        .map_or(f64::NAN, |(_, &value)| value)
}

/// Tabulates start, lowest point, end and crossing of each curve of one metric.
fn landmarks_table(report: &Report, of: &ShownMetric) -> Table {
    let rows = curves_of(report, &of.id).into_iter().map(|(_, series, curve)| {
        let at = shown(curve.minimum.fraction).map(|at| format!("at {}", fraction(at)));
        let lowest =
            Cell { text: metric(curve.minimum.value), aside: at.unwrap_or_default(), ..Cell::default() };
        let passes = curve.passes_do_nothing_at.map_or_else(|| UNDEFINED.into(), fraction_rounded_up);
        let cells = [metric(curve.start).into(), lowest, metric(curve.end).into(), passes.into()];
        Row { strong: is_headline(report, series), ..Row::new(series.name(), cells) }
    });
    Table {
        caption: format!("{}, %: start, lowest point and end of each curve", of.name),
        columns: columns(CURVE, ["at the switch", "lowest", "at the end", "better than doing nothing from"]),
        rows: rows.collect(),
    }
}

fn areas_section<'a>(report: &Report) -> Option<Section<'a>> {
    let metrics: Vec<&ShownMetric> = report
        .metrics
        .iter()
        .filter(|metric| report.curves.iter().any(|series| series.metrics.contains_key(&metric.id)))
        .collect();
    if metrics.is_empty() {
        return None;
    }
    let mut rows: Vec<Row> = ordered_curves(report)
        .into_iter()
        .map(|series| {
            let area = |of: &&ShownMetric| series.metrics.get(&of.id).map(|curve| estimate_cell(&curve.area));
            let areas = metrics.iter().map(|of| area(of).unwrap_or_else(|| UNDEFINED.into()));
            Row { strong: is_headline(report, series), ..Row::new(series.name(), areas) }
        })
        .collect();
    for (name, scores) in [("do nothing", &report.do_nothing), ("new model, fully native", &report.new_model)]
    {
        if metrics.iter().any(|metric| scores.contains_key(&metric.id)) {
            let value = |of: &&ShownMetric| metric(scores.get(&of.id).copied().unwrap_or(f64::NAN));
            rows.push(Row::new(name, metrics.iter().map(value)));
        }
    }
    let areas = report.curves.iter().flat_map(|series| series.metrics.values()).map(|curve| &curve.area);
    let columns = columns(CURVE, metrics.iter().map(|metric| &metric.name));
    let table = Table { caption: "Area under each curve, %".into(), columns, rows };
    let text = format!(
        "The area is the mean over all fractions: what the gallery is worth on average while it is re-embedded.{}",
        spread_sentence(areas)
    );
    Some(section("areas", "Areas", vec![Block::Text(text), Block::Table(table)]))
}

/// Says what the ± and the ranges of the estimates mean.
fn spread_sentence<'e>(estimates: impl Iterator<Item = &'e NumberWithSpread>) -> String {
    let mut remarks: Vec<String> = estimates
        .filter_map(|estimate| match estimate.spread? {
            Spread::Deviation { runs, .. } => {
                Some(format!("± is one standard deviation over {}", counted(runs, "run", "runs")))
            }
            Spread::Interval { level, .. } => {
                Some(format!("a range is a {} bootstrap interval over the queries", fraction(level)))
            }
        })
        .collect();
    remarks.sort();
    remarks.dedup();
    if remarks.is_empty() {
        return String::new();
    }
    format!(" {}.", capitalised(&remarks.join("; ")))
}

/// Returns the text with its first letter as a capital.
pub(crate) fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    let first: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}", characters.as_str())
}

/// Selects one of the series of flips: positive, negative or the rate.
type FlipSeries = fn(&FlipCurves) -> &[f64];

fn flips_section<'a>(report: &Report) -> Option<Section<'a>> {
    let mut blocks = Vec::new();
    for of in &report.metrics {
        let curves: Vec<_> = curves_of(report, &of.id)
            .into_iter()
            .filter_map(|(place, series, curve)| Some((place, series, curve.flips.as_ref()?)))
            .collect();
        if curves.is_empty() {
            continue;
        }
        let lines = curves.iter().flat_map(|(place, series, flips)| {
            let below: Vec<f64> = flips.negative.iter().map(|value| -value).collect();
            [(series.name(), &flips.positive), (String::new(), &below)].map(|(name, values)| {
                let points = against_percent(&series.fractions, values);
                ChartLine { name, points, look: look(*place), ..ChartLine::default() }
            })
        });
        let y = Axis {
            label: "▲ became right   ▼ became wrong, % of queries".into(),
            bounds: Some((-100.0, 100.0)),
            mirrored: true,
            ..Axis::default()
        };
        let title = format!("{} flips while the gallery is re-embedded", of.name);
        let chart = Chart {
            description: format!(
                "Above zero: queries that were wrong at the switch and are right now; below zero: queries that were right and \
                 are wrong now; both in percent of all queries, by {}.",
                of.name
            ),
            ..chart_along(title, y, lines.collect())
        };
        let kinds: [(&str, FlipSeries); 3] = [
            ("▲ wrong at the switch, right now, % of all queries", |flips| &flips.positive),
            ("▼ right at the switch, wrong now, % of all queries", |flips| &flips.negative),
            ("NFR, % of the queries that were answered right at the switch", |flips| {
                &flips.negative_flip_rate
            }),
        ];
        let tables = kinds.into_iter().filter_map(|(what, pick)| {
            let measured = curves.iter().filter(|(_, _, flips)| !pick(flips).is_empty());
            let series =
                measured.map(|(_, series, flips)| (series.name(), series.fractions.as_slice(), pick(flips)));
            let table = sampled_table(&format!("{} flips: {what}", of.name), CURVE, series);
            (!table.rows.is_empty()).then_some(table)
        });
        blocks.push(Block::Chart(Box::new(chart), tables.collect()));
    }
    if blocks.is_empty() {
        return None;
    }
    let text = "A rising curve can still hurt: a flip is a query whose answer changed since the switch, from wrong to right (▲) or \
                from right to wrong (▼). NFR is the negative flip rate: of the queries that were answered right at the switch, the \
                share that is wrong now.";
    blocks.insert(0, Block::Text(text.into()));
    Some(section("flips", "Answers that change", blocks))
}

fn calibration_section<'a>(calibrations: &[AdapterCalibration]) -> Option<Section<'a>> {
    let blocks: Vec<Block<'a>> = calibrations.iter().flat_map(calibration_blocks).collect();
    (!blocks.is_empty()).then(|| section("calibration", "Does it know where it is wrong?", blocks))
}

/// Tells one adapter's calibration; nothing where no number of it can be shown.
fn calibration_blocks<'a>(calibration: &AdapterCalibration) -> Vec<Block<'a>> {
    let method = &calibration.method;
    let (of, name) = (format!(" of {method}"), format!(", {method}"));
    let points: Vec<(f64, f64)> =
        calibration.table.bins.iter().map(|bin| (bin.predicted, bin.actual)).collect();
    let usable = |value: f64| shown(value).is_some_and(|value| value > 0.0);
    let all = || points.iter().filter(|(x, y)| usable(*x) && usable(*y)).flat_map(|&(x, y)| [x, y]);
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let mut sentences = Vec::new();
    if shown(calibration.table.ratio).is_some() {
        let meaning = match calibration.table.ratio {
            ratio if ratio < 0.9 => "errors are larger than predicted: over-confident",
            ratio if ratio > 1.1 => "errors are smaller than predicted: over-cautious",
            _ => "about right",
        };
        sentences.push(format!(
            "Mean predicted error{of} divided by mean true error is {} ({meaning}).",
            decimal(calibration.table.ratio, 2)
        ));
    }
    let taus = [
        ("the squared distance", calibration.kendall_tau.l2),
        ("the discriminative loss", calibration.kendall_tau.discriminative),
        ("their sum", calibration.kendall_tau.sum),
    ];
    let taus: Vec<String> = taus
        .into_iter()
        .filter_map(|(with, tau)| Some(format!("{} with {with}", decimal(tau?, 2))))
        .collect();
    if !taus.is_empty() {
        sentences.push(format!(
            "Kendall's τ of σ²{of} is {}; 1 means that σ² ranks the items exactly as their errors do, 0 that it knows nothing.",
            taus.join(", ")
        ));
    }
    if sentences.is_empty() && low > high {
        return Vec::new();
    }
    let mut blocks = vec![Block::Text(sentences.join(" "))];
    if low <= high {
        let rows = calibration.table.bins.iter().map(|bin| {
            let numbers = [significant(bin.actual), decimal(bin.actual / bin.predicted, 2), count(bin.items)];
            Row::new(significant(bin.predicted), numbers)
        });
        let headings = ["predicted (σ²)", "true", "true / predicted", "items"];
        let table = Table {
            caption: format!("Squared error in bins of σ²{name}"),
            columns: headings.map(|heading| column(heading, Kind::Number)).into(),
            rows: rows.collect(),
        };
        let logarithmic = |label: &str| Axis { label: label.into(), scale: Scale::Log, ..Axis::default() };
        let chart = Chart {
            title: format!("Predicted and true error{name}"),
            x: logarithmic("predicted squared error (σ²)"),
            y: logarithmic("true squared error"),
            lines: vec![
                ChartLine {
                    name: "bins of items".into(),
                    points,
                    look: Look::MarkedAtEveryPoint(0),
                    ..ChartLine::default()
                },
                ChartLine {
                    name: "predicted = true".into(),
                    points: vec![(low, low), (high, high)],
                    look: Look::Quiet,
                    ..ChartLine::default()
                },
            ],
            ..Chart::default()
        };
        blocks.push(Block::Chart(Box::new(chart), vec![table]));
    }
    blocks
}

fn groups_section<'a>(report: &Report, groups: &GroupStudy) -> Option<Section<'a>> {
    let headline = groups.headline_curve()?;
    let metric_name =
        report.metrics.iter().find(|of| of.id == groups.metric).map_or(groups.metric.as_str(), |of| &of.name);
    let mut blocks = vec![Block::Text(format!(
        "An order decides whose items improve first. Here the gallery is split into groups, and {metric_name} is measured on \
         the queries of each."
    ))];

    let lines_of = |values: &[Vec<f64>]| -> Vec<ChartLine> {
        let named = groups.names.iter().zip(values).enumerate();
        named
            .map(|(place, (name, values))| ChartLine {
                name: name.clone(),
                points: against_percent(&headline.fractions, values),
                look: Look::Numbered(place),
                ..ChartLine::default()
            })
            .collect()
    };
    let table_of = |what: &str, values: &[Vec<f64>]| {
        let named = groups.names.iter().zip(values);
        let series = named.map(|(name, values)| (name.clone(), &headline.fractions[..], &values[..]));
        sampled_table(what, "group", series)
    };

    let quality = chart_along(
        format!("{metric_name} by group, {}", headline.name()),
        Axis::percent(format!("{metric_name}, %")),
        lines_of(&headline.values),
    );
    if !quality.is_empty() {
        let along = table_of(&format!("{metric_name} by group, {}, %", headline.name()), &headline.values);
        let mut tables = vec![along];
        tables.extend(group_levels_table(groups, metric_name));
        blocks.push(Block::Chart(Box::new(quality), tables));
    }

    let gap_chart = gap_chart(groups, metric_name);
    if !gap_chart.is_empty() {
        let what = "Gap between the best and the worst group, percentage points";
        let series = groups.curves.iter().map(|curve| (curve.name(), &curve.fractions[..], &curve.gap[..]));
        let table = sampled_table(what, CURVE, series);
        blocks.push(Block::Chart(Box::new(gap_chart), vec![table]));
    }

    let share = chart_along(
        format!("Who is re-embedded first, {}", headline.name()),
        Axis::percent("share of each group so far, %"),
        lines_of(&headline.share),
    );
    if !share.is_empty() {
        blocks.push(Block::Text(
            "An order that does not look at groups takes each of them at its share of the gallery, where every line ends.".into(),
        ));
        let along = table_of(
            &format!("Share of each group among the items re-embedded so far, {}, %", headline.name()),
            &headline.share,
        );
        blocks.push(Block::Chart(Box::new(share), vec![along, first_items_table(groups)]));
    }
    Some(section("groups", "Groups", blocks))
}

fn gap_chart(groups: &GroupStudy, metric_name: &str) -> Chart {
    let gap_of = |values: &[f64]| {
        let values = || values.iter().copied().filter(|value| value.is_finite());
        let (low, high) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        (low <= high).then_some(high - low)
    };
    let headline = groups.headline_curve();
    let other_curves =
        groups.curves.iter().filter(|curve| headline.is_none_or(|headline| !std::ptr::eq(headline, *curve)));
    let line =
        |curve: &GroupCurves| ChartLine::new(curve.name(), against_percent(&curve.fractions, &curve.gap));
    Chart {
        levels: levels(gap_of(&groups.do_nothing), None, "new model", gap_of(&groups.new_model)),
        ..chart_along(
            format!("Gap in {metric_name} between the best and the worst group"),
            Axis::percent("gap, percentage points"),
            headline.into_iter().chain(other_curves).map(line).collect(),
        )
    }
}

/// Tabulates each group's share of the gallery, and its quality today and in the native gallery.
fn group_levels_table(groups: &GroupStudy, metric_name: &str) -> Option<Table> {
    let (names, value_columns): (Vec<String>, Vec<&Vec<f64>>) = [
        ("share of the gallery".to_string(), &groups.gallery_share),
        (format!("{metric_name}, do nothing"), &groups.do_nothing),
        (format!("{metric_name}, new model"), &groups.new_model),
    ]
    .into_iter()
    .filter(|(_, values)| !values.is_empty())
    .unzip();
    if value_columns.is_empty() {
        return None;
    }
    let rows = groups.names.iter().enumerate().map(|(group, name)| {
        Row::new(
            name,
            value_columns.iter().map(|values| metric(values.get(group).copied().unwrap_or(f64::NAN))),
        )
    });
    Some(Table { caption: "The groups, %".into(), rows: rows.collect(), columns: columns("group", names) })
}

/// Tabulates the share of each group among the first items of every order: one row a group and order, so that
/// any number of groups fits on a page.
fn first_items_table(groups: &GroupStudy) -> Table {
    let cuts = [0.1, 0.25, 0.5];
    let mut columns = vec![column(CURVE, Kind::Text), column("group", Kind::Text)];
    columns.extend(cuts.map(|cut| column(&format!("first {}", fraction(cut)), Kind::Number)));
    columns.push(column("whole gallery", Kind::Number));
    let mut rows = Vec::new();
    for curve in groups.curves.iter().filter(|curve| !curve.share.is_empty()) {
        for (group, name) in groups.names.iter().enumerate() {
            let share = curve.share.get(group).map_or(&[][..], Vec::as_slice);
            let gallery_share = groups.gallery_share.get(group).copied().unwrap_or(f64::NAN);
            let shares =
                cuts.map(|cut| value_at(&curve.fractions, share, cut)).into_iter().chain([gallery_share]);
            rows.push(Row::new(curve.name(), [name.clone()].into_iter().chain(shares.map(metric))));
        }
    }
    Table { caption: "Share of each group among the first items of every order, %".into(), columns, rows }
}

/// Tells what vectors of fewer coordinates and bytes are worth, beside those of today.
fn sizes_section<'a>(report: &Report, metrics: &[&ShownMetric]) -> Option<Section<'a>> {
    if report.sizes.is_empty() {
        return None;
    }
    let has_switch = report.sizes.iter().any(|size| !size.at_the_switch.is_empty());
    let mut columns = vec![
        column("vectors", Kind::Text),
        column("coordinates", Kind::Number),
        column("kept as", Kind::Text),
        column("bytes", Kind::Number),
    ];
    for of in metrics {
        columns.push(column(&of.name, Kind::Number));
        if has_switch {
            columns.push(column(&format!("{}, at the switch", of.name), Kind::Number));
        }
    }
    let row =
        |name: &str, width: usize, kept_as: &str, bytes: usize, scores: &Scores, at_the_switch: &Scores| {
            let score = |scores: &Scores, id: &str| metric(scores.get(id).copied().unwrap_or(f64::NAN));
            let cells = metrics.iter().flat_map(|metric| {
                [score(scores, &metric.id)]
                    .into_iter()
                    .chain(has_switch.then(|| score(at_the_switch, &metric.id)))
            });
            Row::new(
                name,
                [count(width), kept_as.to_owned(), count(bytes)].into_iter().chain(cells.collect::<Vec<_>>()),
            )
        };
    let old = report.spaces.old.dimension;
    let today = row("old, as they are", old, "f32", 4 * old, &report.do_nothing, &Scores::new());
    let sizes = report.sizes.iter().map(|size| {
        row("new", size.width, size.precision.name(), size.bytes, &size.new_model, &size.at_the_switch)
    });
    let text = "Vectors of the new model, cut to their first coordinates and scaled to length 1, and rounded as a database rounds that keeps \
        so many bytes a coordinate; queries are cut and rounded likewise. What a gallery takes up, and what comparing it with a query costs, goes \
        with the bytes of a vector.";
    let table = Table {
        caption: "Quality of a fully re-embedded gallery, %".into(),
        columns,
        rows: std::iter::once(today).chain(sizes).collect(),
    };
    Some(section(
        "sizes",
        "Fewer coordinates, fewer bytes",
        vec![Block::Text(text.into()), Block::Table(table)],
    ))
}

fn further_section<'a>(report: &Report, metrics: &[&ShownMetric]) -> Option<Section<'a>> {
    let blocks = metric_blocks(report, metrics);
    (!blocks.is_empty()).then(|| section("further", "Further metrics", blocks))
}

fn measured_section<'a>(report: &Report) -> Option<Section<'a>> {
    if report.measured_on.is_empty() {
        return None;
    }
    // Every item agrees with itself, so agreement needs no relevant item.
    let has_right_answers =
        measured_metrics(report).iter().any(|metric| !metric.id.starts_with("agreement@"));
    let mut blocks: Vec<Block<'a>> =
        report.measured_on.iter().map(|set| Block::Text(measured_sentence(set, has_right_answers))).collect();
    if report.gallery.is_some() {
        let only = "Calibration, groups and sizes are those of these items among each other; all other numbers are a forecast of the \
                    whole gallery.";
        blocks.push(Block::Text(only.into()));
    }
    let mut methods: Vec<&CurveSeries> =
        report.curves.iter().filter(|series| series.handicap > 0.0).collect();
    methods.dedup_by(|a, b| a.method == b.method);
    blocks.extend(methods.into_iter().map(|series| {
        Block::Text(format!(
            "A vector adapted by {} counts as farther from every query by {:.4}, its handicap, as in searches during the \
             upgrade.",
            series.method, series.handicap
        ))
    }));
    Some(section("measured", "What was measured on what", blocks))
}

/// Describes one measured set in plain sentences; what the number of overlapping items means is left to its
/// warning.
fn measured_sentence(set: &MeasuredSet, has_right_answers: bool) -> String {
    let mut words = Vec::new();
    if !set.name.is_empty() {
        words.push(format!("{}:", capitalised(&set.name)));
    }
    let fitted = fitted_on(set);
    let is_fitted = fitted.is_some();
    if let Some(fitted) = fitted {
        let then = if set.items > 0 { ", measured on" } else { "." };
        words.push(format!("{fitted}{then}"));
    }
    if set.items > 0 {
        words.push(counted(set.items, "item", "items"));
        words.extend(set.classes.map(|classes| format!("of {}", counted(classes, "class", "classes"))));
        let how = if set.leave_one_out { ", each an item left out of its own answer." } else { "." };
        words.push(format!("with {}{how}", counted(set.queries, "query", "queries")));
        match set.left_out_queries {
            0 if has_right_answers => words.push("Every query has a relevant item.".into()),
            0 => {}
            left_out => words.push(format!(
                "{} without a relevant item counted in no mean.",
                counted(left_out, "query", "queries")
            )),
        }
        match set.overlapping_items {
            None if is_fitted => words.push("Whether items are among the pairs was not checked.".into()),
            Some(0) if is_fitted => words.push("No item is among the pairs.".into()),
            None | Some(0) => {}
            Some(overlap) => words.push(format!(
                "{}{} an old vector that is among the pairs.",
                if set.overlap_is_estimated { "About " } else { "" },
                counted(overlap, "item has", "items have")
            )),
        }
    }
    words.join(" ")
}

/// Says how many pairs the adapters were fitted on, each by its name where there are several; `None` where
/// nothing was fitted.
fn fitted_on(set: &MeasuredSet) -> Option<String> {
    let pairs = |count| counted(count, "pair", "pairs");
    if set.fitted.len() < 2 {
        return (set.pairs > 0).then(|| format!("fitted on {}", pairs(set.pairs)));
    }
    let method_on_pairs = |of: &FittedOn| format!("{} on {}", of.method, pairs(of.pairs));
    Some(format!("fitted {}", set.fitted.iter().map(method_on_pairs).collect::<Vec<_>>().join(", ")))
}

fn warnings_section(report: &Report) -> Option<Section<'_>> {
    if report.warnings.is_empty() {
        return None;
    }
    let mut warnings: Vec<&Finding> = report.warnings.iter().collect();
    warnings.sort_by_key(|warning| std::cmp::Reverse(warning.severity));
    let blocks = warnings.into_iter().map(Block::Warning).collect();
    Some(section("warnings", "Warnings", blocks))
}

fn provenance_section<'a>(report: &Report) -> Section<'a> {
    let rows = report.inputs.iter().map(|input| {
        let width = input.dimension.map_or_else(|| UNDEFINED.into(), count);
        Row::new(&input.role, [input.path.clone(), count(input.rows), width, input.fingerprint.clone()])
    });
    let inputs = Table {
        caption: "Inputs".into(),
        columns: vec![
            column("role", Kind::Text),
            column("path", Kind::Code),
            column("rows", Kind::Number),
            column("width", Kind::Number),
            column("fingerprint", Kind::Code),
        ],
        rows: rows.collect(),
    };
    let created_by = &report.created_by;
    let seeds: Vec<String> = created_by.seeds.iter().map(u64::to_string).collect();
    let facts = [
        ("version", created_by.version.clone()),
        ("command", created_by.command.clone()),
        (if seeds.len() == 1 { "seed" } else { "seeds" }, seeds.join(", ")),
        ("old space", report.spaces.old.to_string()),
        ("new space", report.spaces.new.to_string()),
    ];
    let known_facts = facts.into_iter().filter(|(_, value)| !value.is_empty());
    let facts = Table {
        caption: "Made by".into(),
        columns: vec![column("", Kind::Text), column("", Kind::Code)],
        rows: known_facts.map(|(name, value)| Row::new(name, [value])).collect(),
    };
    let tables = [inputs, facts].into_iter().filter(|table| !table.rows.is_empty());
    section("provenance", "Inputs and versions", tables.map(Block::Table).collect())
}

/// Names what made a page, by its version.
pub(crate) fn colophon(version: &str) -> String {
    if version.is_empty() { "Made by rehang.".into() } else { format!("Made by rehang {version}.") }
}

pub(crate) fn column(heading: &str, kind: Kind) -> Column {
    Column { heading: heading.into(), kind }
}

/// Returns a column of names, and columns of numbers.
pub(crate) fn columns<S: AsRef<str>>(names: &str, numbers: impl IntoIterator<Item = S>) -> Vec<Column> {
    let numbers = numbers.into_iter().map(|heading| column(heading.as_ref(), Kind::Number));
    std::iter::once(column(names, Kind::Text)).chain(numbers).collect()
}

fn estimate_cell(estimate: &NumberWithSpread) -> Cell {
    Cell { text: metric(estimate.value), aside: spread(estimate), ..Cell::default() }
}

/// Returns the points of a line over fractions in percent.
fn against_percent(fractions: &[f64], values: &[f64]) -> Vec<(f64, f64)> {
    fractions.iter().zip(values).map(|(fraction, &value)| (fraction * 100.0, value)).collect()
}

fn band_points(fractions: &[f64], band: &CurveBand) -> Vec<(f64, f64, f64)> {
    let edges = band.low.iter().zip(&band.high);
    fractions.iter().zip(edges).map(|(fraction, (&low, &high))| (fraction * 100.0, low, high)).collect()
}
