//! Tells a comparison of methods as a document: every part of the data with its tables and charts.
//!
//! Every number is a mean over seeds. The best of a column stands in bold where there is a choice: among at
//! least two methods, not all of which show one number, and only of those that have the number for every
//! seed.

use std::collections::BTreeSet;

use rehang_core::comparison::{Comparison, Measure, MethodOutcome, OrderOutcome, ProtocolOutcome, Quality};
use rehang_core::statistics::{MeanSd, mean_sd};

use crate::chart::{Axis, Chart, ChartLine, Look};
use crate::document::{
    Block, Cell, Document, Kind, Row, Table, capitalised, chart_along, colophon, column, columns, levels,
    section, tenths_table,
};
use crate::numbers::{UNDEFINED, counted, decimal, shown};

/// Largest number of lines of a chart; more cannot be read.
const LINES_MOST: usize = 10;

/// Order that charts and the first sentence are about, where it was measured.
const PREFERRED_ORDER: &str = "random";

/// Heading of the column of negative flips.
const FLIPS: &str = "NFR@1";
/// Measures in the order in which they are told. mAP says more about a gallery than its first answers, so it
/// comes first.
const MEASURES: [Measure; 2] = [Measure::Map, Measure::Top1];

/// Tells `comparison` as a document.
pub(crate) fn document(comparison: &Comparison) -> Document<'_> {
    let parts = parts(comparison);
    let (advice, verdict) = verdict(&parts);
    let mut sections = Vec::new();
    let setting = comparison.setting.join(" ");
    if !setting.trim().is_empty() {
        sections.push(section("setting", "Setting", vec![Block::Text(setting)]));
    }
    sections.extend(parts.iter().enumerate().map(|(number, part)| {
        let title = if part.name.is_empty() { "Results".into() } else { format!("Part: {}", part.name) };
        section(format!("part-{}", number + 1), title, part_blocks(part))
    }));
    if !parts.is_empty() {
        sections.push(section("numbers", "What the numbers say", vec![Block::Table(explanations())]));
    }
    if !comparison.warnings.is_empty() {
        let warnings = comparison.warnings.iter().cloned().map(Block::Text).collect();
        sections.push(section("warnings", "Warnings", warnings));
    }
    Document {
        title: &comparison.title,
        subtitle: subtitle(comparison),
        advice,
        verdict,
        key_numbers: Vec::new(),
        severe: Vec::new(),
        warnings: comparison.warnings.len(),
        sections,
        colophon: colophon(&comparison.version),
    }
}

/// One part of the data, and what was measured on it.
struct Part<'a> {
    comparison: &'a Comparison,
    name: &'a str,
    methods: Vec<&'a str>,
    orders: Vec<&'a str>,
    /// Number of seeds of the method that has most.
    seeds: usize,
}

impl<'a> Part<'a> {
    fn outcomes(&self) -> impl Iterator<Item = &'a MethodOutcome> {
        self.comparison.outcomes.iter().filter(|outcome| outcome.part == self.name)
    }

    /// Returns mean and spread of a number over the seeds for which it is defined.
    fn over_seeds(&self, method: &str, number: impl Fn(&MethodOutcome) -> Option<f64>) -> Option<MeanSd> {
        self.comparison.over_seeds(method, self.name, |outcome| number(outcome).and_then(shown))
    }

    /// Returns a number over the seeds as a table shows it. A method that is not there for a seed lacks the
    /// number for that seed.
    fn entry(&self, method: &str, number: impl Fn(&MethodOutcome) -> Option<f64>) -> Entry {
        Entry::from_mean(self.over_seeds(method, number), self.seeds)
    }

    /// Returns mean and spread of a number that does not depend on the method; `None` where it does, or is
    /// not defined.
    fn common(&self, number: impl Fn(&MethodOutcome) -> f64) -> Option<MeanSd> {
        let mut of_seeds: Vec<(u64, f64)> = Vec::new();
        for outcome in self.outcomes() {
            let value = shown(number(outcome))?;
            match of_seeds.iter().find(|(seed, _)| *seed == outcome.seed) {
                Some((_, earlier)) if (earlier - value).abs() > 1e-6 => return None,
                Some(_) => {}
                None => of_seeds.push((outcome.seed, value)),
            }
        }
        mean_sd(&of_seeds.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
    }

    /// Returns the order that charts show.
    fn chart_order(&self) -> Option<&'a str> {
        let preferred = self.orders.iter().find(|order| **order == PREFERRED_ORDER);
        preferred.or(self.orders.first()).copied()
    }

    /// Returns the order that charts show for one method: its own first one where it lacks that of the
    /// others.
    fn order_of(&self, method: &'a str) -> Option<&'a str> {
        let order = self.chart_order()?;
        let mut backfills =
            self.comparison.outcomes(method, self.name).flat_map(|outcome| &outcome.backfills);
        let first = backfills.next()?;
        if first.order == order || backfills.any(|backfill| backfill.order == order) {
            Some(order)
        } else {
            Some(&first.order)
        }
    }
}

fn parts(comparison: &Comparison) -> Vec<Part<'_>> {
    let part = |name| {
        let outcomes = || comparison.outcomes.iter().filter(move |outcome| outcome.part == name);
        let has = |order: &&str| outcomes().any(|outcome| outcome.backfill(order).is_some());
        Part {
            comparison,
            name,
            methods: comparison
                .methods()
                .into_iter()
                .filter(|method| outcomes().any(|outcome| outcome.method == *method))
                .collect(),
            orders: comparison.orders().into_iter().filter(has).collect(),
            seeds: outcomes().map(|outcome| outcome.seed).collect::<BTreeSet<_>>().len(),
        }
    };
    comparison.parts().into_iter().map(part).collect()
}

fn subtitle(comparison: &Comparison) -> String {
    let seeds: BTreeSet<u64> = comparison.outcomes.iter().map(|outcome| outcome.seed).collect();
    let (parts, orders) = (comparison.parts(), comparison.orders());
    let mut words = vec![
        counted(comparison.methods().len(), "method", "methods"),
        counted(seeds.len(), "seed", "seeds"),
        counted(parts.len(), "part", "parts"),
    ];
    if !orders.is_empty() {
        words.push(format!("{}: {}", if orders.len() == 1 { "order" } else { "orders" }, orders.join(", ")));
    }
    words.join(" · ")
}

/// Names the methods with the largest areas of each part, among those that have an area for every seed.
fn verdict(parts: &[Part<'_>]) -> (&'static str, String) {
    let sentences: Vec<String> = parts.iter().filter_map(largest_areas).collect();
    if !sentences.is_empty() {
        ("Largest area of mAP", sentences.join(" "))
    } else if parts.is_empty() {
        ("No verdict", "Nothing was measured, so nothing can be compared yet.".into())
    } else if parts.iter().any(|part| !part.orders.is_empty()) {
        ("No verdict", "No method has an area of mAP for every seed, so none can come first.".into())
    } else {
        ("No verdict", "No backfill was measured, so only its two ends can be compared.".into())
    }
}

fn largest_areas(part: &Part<'_>) -> Option<String> {
    let order = part.chart_order()?;
    let mut areas: Vec<(&str, MeanSd)> = part
        .methods
        .iter()
        .filter_map(|method| {
            Some((*method, part.over_seeds(method, |outcome| Some(outcome.backfill(order)?.area.map))?))
        })
        .filter(|(_, area)| area.count == part.seeds)
        .collect();
    areas.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
    let say = |(method, area): &(&str, MeanSd)| {
        let spread =
            if area.count > 1 { format!("\u{a0}±\u{a0}{}", decimal(area.sd, 1)) } else { String::new() };
        format!("{method} with {}{spread}\u{a0}%", decimal(area.mean, 1))
    };
    let first = say(areas.first()?);
    let second = areas.get(1).map_or_else(String::new, |area| format!(", then {}", say(area)));
    let place = if part.name.is_empty() { String::new() } else { format!("part {}, ", part.name) };
    Some(format!("{}: {first}{second}.", capitalised(&format!("{place}order {order}"))))
}

fn part_blocks<'a>(part: &Part<'a>) -> Vec<Block<'a>> {
    let spread = if part.seeds > 1 {
        format!(
            "Mean ± one standard deviation over {}; the best of each column is bold.",
            counted(part.seeds, "seed", "seeds")
        )
    } else {
        "One seed, so the spread is unknown; the best of each column is bold.".into()
    };
    let mut blocks = vec![Block::Text(format!(
        "{spread} M(new, old) is what the switch brings before anything is re-embedded, M(new, new) what the whole backfill \
         brings. Δ↓ below 0 is better than the independent new model, which was trained with no regard to the old one."
    ))];
    blocks.extend(MEASURES.map(|measure| Block::Table(methods_table(part, measure))));
    let protocols = part.comparison.protocols();
    blocks.extend(protocols.into_iter().map(|protocol| Block::Table(protocol_table(part, protocol))));
    if part.orders.is_empty() {
        return blocks;
    }
    blocks.push(Block::Text(
        "The area is the mean over all fractions of the backfill. NFR@1 is its mean over them too, and the worst is that of any \
         fraction and seed; the less the better."
            .into(),
    ));
    blocks.extend(areas_tables(part).into_iter().map(Block::Table));
    for measure in MEASURES {
        let chart = chart(part, measure);
        if !chart.is_empty() {
            if measure == Measure::Map {
                blocks.push(Block::Text(about_charts(part)));
            }
            let table = along_table(&curves(part, measure), measure);
            blocks.push(Block::Chart(Box::new(chart), vec![table]));
        }
    }
    blocks
}

/// A column of a table: one number for every method of a part.
struct Quantity<'q> {
    heading: String,
    better: Better,
    entry: Box<dyn Fn(&str) -> Entry + 'q>,
}

impl<'q> Quantity<'q> {
    fn new(heading: impl Into<String>, better: Better, entry: impl Fn(&str) -> Entry + 'q) -> Self {
        Self { heading: heading.into(), better, entry: Box::new(entry) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Higher,
    Lower,
}

/// A cell, with the value that it competes with.
struct Entry {
    cell: Cell,
    rank: Option<f64>,
}

impl Entry {
    /// Returns a cell with a mean and its spread. A mean over fewer than all `seeds` says so and does not
    /// compete: a mean over the seeds that went well is no better than one over all.
    fn from_mean(over_seeds: Option<MeanSd>, seeds: usize) -> Self {
        let Some(over_seeds) = over_seeds else {
            return Self { cell: UNDEFINED.into(), rank: None };
        };
        let mut aside = Vec::new();
        if over_seeds.count > 1 {
            aside.push(format!("±\u{a0}{}", decimal(over_seeds.sd, 1)));
        }
        if over_seeds.count < seeds {
            aside.push(format!("{}\u{a0}of\u{a0}{seeds}", over_seeds.count));
        }
        let text = decimal(over_seeds.mean, 1);
        Self {
            cell: Cell { text, aside: aside.join(", "), ..Cell::default() },
            rank: (over_seeds.count == seeds).then_some(over_seeds.mean),
        }
    }
}

/// Tabulates one row a method, one column a quantity, the best of each column in bold.
fn quantities_table(caption: String, methods: &[&str], quantities: &[Quantity<'_>]) -> Table {
    let mut rows: Vec<Row> = methods.iter().map(|&method| Row::new(method, [""; 0])).collect();
    for quantity in quantities {
        let mut entries: Vec<Entry> = methods.iter().map(|method| (quantity.entry)(method)).collect();
        mark_best(&mut entries, quantity.better);
        for (row, entry) in rows.iter_mut().zip(entries) {
            row.cells.push(entry.cell);
        }
    }
    Table { caption, columns: columns("method", quantities.iter().map(|quantity| &quantity.heading)), rows }
}

/// Marks the best entries, and with them all that show the same number.
fn mark_best(entries: &mut [Entry], better: Better) {
    let ranked = || entries.iter().filter_map(|entry| Some((entry.rank?, &entry.cell.text)));
    let best = ranked().reduce(|best, next| {
        let wins = if better == Better::Higher { next.0 > best.0 } else { next.0 < best.0 };
        if wins { next } else { best }
    });
    let Some(best) = best.map(|(_, text)| text.clone()) else { return };
    if ranked().all(|(_, text)| *text == best) {
        return;
    }
    for entry in entries.iter_mut().filter(|entry| entry.rank.is_some()) {
        entry.cell.strong = entry.cell.text == best;
    }
}

/// Tabulates the ends of the backfill and the gains of the papers, by one measure.
fn methods_table(part: &Part<'_>, measure: Measure) -> Table {
    let quality = |heading, end: fn(&MethodOutcome) -> Quality| {
        Quantity::new(heading, Better::Higher, move |method: &str| {
            part.entry(method, |outcome| Some(end(outcome).value(measure)))
        })
    };
    let gain = |heading, better, percent: fn(&MethodOutcome, Measure) -> Option<f64>| {
        Quantity::new(heading, better, move |method: &str| {
            part.entry(method, |outcome| percent(outcome, measure))
        })
    };
    let quantities = [
        quality("M(old,\u{a0}old)", |outcome| outcome.old_old),
        quality("M(new,\u{a0}old)", |outcome| outcome.new_old),
        quality("M(new,\u{a0}new)", |outcome| outcome.new_new),
        Quantity::new("criterion met", Better::Higher, move |method| criterion(part, method, measure)),
        Quantity::new("Γ", Better::Higher, move |method: &str| {
            part.entry(method, |outcome| part.comparison.update_gain(outcome, measure))
        }),
        gain("Δ↑", Better::Higher, MethodOutcome::gain_up),
        gain("Δ↓", Better::Lower, MethodOutcome::gain_down),
    ];
    let name = measure_name(measure);
    let mut table = quantities_table(format!("Methods side by side: {name}, %"), &part.methods, &quantities);
    if let Some(best) = part.common(|outcome| outcome.best_best.value(measure)) {
        let mut row = Row::new("independent new model", quantities.map(|_| UNDEFINED));
        row.cells[3] = Entry::from_mean(Some(best), best.count).cell;
        table.rows.push(row);
    }
    table
}

/// Tabulates the ends of the backfill by a protocol of a paper.
fn protocol_table(part: &Part<'_>, protocol: &str) -> Table {
    let end = |heading, value: fn(&ProtocolOutcome) -> Option<f64>| {
        Quantity::new(heading, Better::Higher, move |method: &str| {
            part.entry(method, |outcome| value(outcome.protocol(protocol)?))
        })
    };
    let quantities = [
        end("M(old,\u{a0}old)", |outcome| outcome.old_old),
        end("M(new,\u{a0}old)", |outcome| outcome.new_old),
        end("M(new,\u{a0}new)", |outcome| outcome.new_new),
        Quantity::new("Γ", Better::Higher, move |method: &str| {
            part.entry(method, |outcome| part.comparison.update_gain_by(outcome, protocol))
        }),
    ];
    quantities_table(format!("Protocol {protocol}, %"), &part.methods, &quantities)
}

/// Counts the seeds, of all, in which the criterion is met. A seed without the method, or without both
/// numbers, does not meet it.
fn criterion(part: &Part<'_>, method: &str, measure: Measure) -> Entry {
    let seeds = part.comparison.outcomes(method, part.name).filter(|outcome| {
        shown(outcome.new_old.value(measure)).is_some() && shown(outcome.old_old.value(measure)).is_some()
    });
    let met: Vec<bool> = seeds.map(|outcome| outcome.criterion_met(measure)).collect();
    if met.is_empty() {
        return Entry::from_mean(None, 0);
    }
    let count = met.iter().filter(|met| **met).count();
    // A count of seeds is not a quality: meeting the criterion in all seeds is what every method should do.
    Entry { cell: format!("{count}/{}", part.seeds).into(), rank: None }
}

/// Tabulates areas, flips and lowest points. With one order they are the columns of one table. With more
/// orders, every one of them is a table whose columns are the orders.
fn areas_tables(part: &Part<'_>) -> Vec<Table> {
    type OfBackfill = fn(&OrderOutcome) -> f64;
    let kinds: [(&str, Better, OfBackfill); 5] = [
        ("area of mAP", Better::Higher, |backfill| backfill.area.map),
        ("area of top-1", Better::Higher, |backfill| backfill.area.top1),
        (FLIPS, Better::Lower, |backfill| backfill.negative_flips),
        ("lowest mAP", Better::Higher, |backfill| backfill.min.map),
        ("lowest top-1", Better::Higher, |backfill| backfill.min.top1),
    ];
    let entry = |kind: &str, number: OfBackfill, method: &str, order: &str| {
        let entry = part.entry(method, |outcome| outcome.backfill(order).map(number));
        if kind == FLIPS { with_worst_flips(entry, part, method, order) } else { entry }
    };
    if let &[order] = part.orders.as_slice() {
        let quantities = kinds.map(|(name, better, number)| {
            Quantity::new(name, better, move |method: &str| entry(name, number, method, order))
        });
        return vec![quantities_table(format!("Backfill in order {order}, %"), &part.methods, &quantities)];
    }
    let table = |(name, better, number): (&str, Better, OfBackfill)| {
        let of_order =
            |&order| Quantity::new(order, better, move |method: &str| entry(name, number, method, order));
        let quantities: Vec<Quantity<'_>> = part.orders.iter().map(of_order).collect();
        quantities_table(format!("{} by order, %", capitalised(name)), &part.methods, &quantities)
    };
    kinds.into_iter().map(table).collect()
}

/// Adds the worst flips of all fractions and seeds beside the mean negative flips.
fn with_worst_flips(mut entry: Entry, part: &Part<'_>, method: &str, order: &str) -> Entry {
    let worst = part
        .comparison
        .outcomes(method, part.name)
        .filter_map(|outcome| shown(outcome.backfill(order)?.negative_flips_max))
        .reduce(f64::max);
    if let Some(worst) = worst {
        let comma = if entry.cell.aside.is_empty() { "" } else { ", " };
        entry.cell.aside = format!("{}{comma}worst\u{a0}{}", entry.cell.aside, decimal(worst, 1));
    }
    entry
}

fn about_charts(part: &Part<'_>) -> String {
    let order = part.chart_order().unwrap_or_default();
    let mean = if part.seeds > 1 { ", the mean over seeds" } else { "" };
    let methods = part.methods.iter().filter(|method| part.order_of(method).is_some()).count();
    let cut = if MEASURES.iter().any(|&measure| goes_below(part, measure)) {
        " A chart is cut where it is as far below doing nothing as the new model is above it, so a line that begins or dips below \
         that has a gap there; its numbers are in the table."
    } else {
        ""
    };
    let left_out = if methods > LINES_MOST {
        format!(" Of {methods} methods, the {LINES_MOST} with the largest areas of mAP are drawn.")
    } else {
        String::new()
    };
    format!(
        "Each line is one method in order {order}{mean}, from the switch at 0\u{a0}% to the whole backfill.{cut}{left_out}"
    )
}

/// Makes the chart of one measure of every method against the fraction that is re-embedded.
fn chart(part: &Part<'_>, measure: Measure) -> Chart {
    let name = measure_name(measure);
    let floor = floor(part, measure);
    let lines = curves(part, measure).into_iter().enumerate().map(|(place, (name, points))| ChartLine {
        name,
        points: above(&points, floor),
        look: Look::Numbered(place),
        ..ChartLine::default()
    });
    let nothing = part.common(|outcome| outcome.old_old.value(measure));
    let best = part.common(|outcome| outcome.best_best.value(measure));
    let part_name = if part.name.is_empty() { String::new() } else { format!(", part {}", part.name) };
    let title = format!("{name} while the gallery is re-embedded{part_name}");
    Chart {
        levels: levels(nothing.map(|of| of.mean), None, "independent", best.map(|of| of.mean)),
        ..chart_along(title, Axis::percent(format!("{name}, %")), lines.collect())
    }
}

/// Returns the lowest value that a chart shows: as far below doing nothing as the independent new model is
/// above it. A model that knows nothing of the old gallery starts near 0, and its line would press all others
/// together.
fn floor(part: &Part<'_>, measure: Measure) -> f64 {
    let nothing = part.common(|outcome| outcome.old_old.value(measure));
    let best = part.common(|outcome| outcome.best_best.value(measure));
    match (nothing, best) {
        (Some(nothing), Some(best)) if best.mean > nothing.mean => 2.0 * nothing.mean - best.mean,
        _ => f64::NEG_INFINITY,
    }
}

fn goes_below(part: &Part<'_>, measure: Measure) -> bool {
    let floor = floor(part, measure);
    curves(part, measure).iter().any(|(_, points)| points.iter().any(|&(_, y)| y < floor))
}

/// Returns the points of a line that are not below `floor`, with those where it crosses the floor; a line
/// that is never above it is kept as it is.
fn above(points: &[(f64, f64)], floor: f64) -> Vec<(f64, f64)> {
    if points.iter().all(|&(_, y)| y.is_nan() || y < floor) {
        return points.to_vec();
    }
    let mut points_above: Vec<(f64, f64)> = Vec::with_capacity(points.len() + 1);
    let mut before: Option<(f64, f64)> = None;
    for &(x, y) in points {
        if let Some((x_before, y_before)) = before.filter(|&(_, y_before)| (y_before < floor) != (y < floor))
            && shown(y).is_some()
            && shown(y_before).is_some()
        {
            points_above.push((x_before + (x - x_before) * (floor - y_before) / (y - y_before), floor));
        }
        points_above.push((x, if y < floor { f64::NAN } else { y }));
        before = Some((x, y));
    }
    points_above
}

/// Returns the lines of a chart by name.
fn curves(part: &Part<'_>, measure: Measure) -> Vec<(String, Vec<(f64, f64)>)> {
    let named = |(method, order): (&str, &str)| {
        let common = part.chart_order() == Some(order);
        let name = if common { method.into() } else { format!("{method} · {order}") };
        (name, mean_curve(part, method, order, measure))
    };
    drawn_methods(part).into_iter().map(named).collect()
}

/// Returns the methods that a chart shows, each with its order: all, or those with the largest areas of mAP.
/// They are the same for every measure, so that a method looks alike in all charts.
fn drawn_methods<'a>(part: &Part<'a>) -> Vec<(&'a str, &'a str)> {
    let mut methods: Vec<(usize, &str, &str, f64)> = part
        .methods
        .iter()
        .enumerate()
        .filter_map(|(place, &method)| {
            let order = part.order_of(method)?;
            let area = part.over_seeds(method, |outcome| Some(outcome.backfill(order)?.area.map));
            Some((place, method, order, area.map_or(f64::NEG_INFINITY, |area| area.mean)))
        })
        .collect();
    methods.sort_by(|a, b| b.3.total_cmp(&a.3));
    methods.truncate(LINES_MOST);
    methods.sort_by_key(|method| method.0);
    methods.into_iter().map(|(_, method, order, _)| (method, order)).collect()
}

/// Returns the mean over seeds at every fraction, against percent. A mean is not defined where any seed is
/// not: a mean over other seeds from one fraction to the next would jump. Seeds with another number of
/// fractions than the first are left out.
fn mean_curve(part: &Part<'_>, method: &str, order: &str, measure: Measure) -> Vec<(f64, f64)> {
    let curves: Vec<&Vec<f64>> = part
        .comparison
        .outcomes(method, part.name)
        .filter_map(|outcome| outcome.backfill(order))
        .map(|backfill| match measure {
            Measure::Top1 => &backfill.top1,
            Measure::Map => &backfill.map,
        })
        .filter(|curve| !curve.is_empty())
        .collect();
    let Some(length) = curves.first().map(|curve| curve.len()) else { return Vec::new() };
    let curves: Vec<&Vec<f64>> = curves.into_iter().filter(|curve| curve.len() == length).collect();
    let percent = |index: usize| 100.0 * index as f64 / (length - 1).max(1) as f64;
    (0..length)
        .map(|index| {
            let sum: f64 = curves.iter().filter_map(|curve| curve.get(index)).sum();
            (percent(index), sum / curves.len() as f64)
        })
        .collect()
}

/// Tabulates curves at 0, 10, …, 100 %: one row a method.
fn along_table(curves: &[(String, Vec<(f64, f64)>)], measure: Measure) -> Table {
    let at = |points: &[(f64, f64)], mark: f64| {
        let nearest = points.iter().min_by(|a, b| (a.0 - mark).abs().total_cmp(&(b.0 - mark).abs()));
        nearest.filter(|(x, _)| (x - mark).abs() <= 5.0).map_or(f64::NAN, |&(_, y)| y)
    };
    let series = curves
        .iter()
        .map(|(name, points)| (name.clone(), move |step: u32| at(points, f64::from(step) * 10.0)));
    tenths_table(&format!("{}, %", measure_name(measure)), "method", series)
}

/// Explains every number in one sentence, with its source.
fn explanations() -> Table {
    let rows = [
        (
            "M(q, g)",
            "Top-1 or mAP with the queries of model q in a gallery of model g, each query leaving itself out.",
            "BCT eq. 2",
        ),
        (
            "criterion",
            "M(new, old) > M(old, old): new queries find more in the gallery as it stands than old queries do; in how many \
             seeds.",
            "BCT eq. 2",
        ),
        (
            "Γ",
            "(M(new, old) − M(old, old)) / (M(new*, new*) − M(old, old)): the share of a whole backfill's gain that comes without \
             any, new* being the best variant with this encoder of the seed, the independent model among them; only of \
             seeds that meet the criterion.",
            "BCT eq. 9",
        ),
        (
            "Δ↑",
            "(M(new, old) − M(old, old)) / M(old, old): what searches gain at the switch, relative to doing nothing.",
            "DMU eq. 6",
        ),
        (
            "Δ↓",
            "(M(n*, n*) − M(new, new)) / M(n*, n*), n* being the independent model: what the new model's own searches lose by being compatible; below \
             0 they gain.",
            "DMU eq. 7",
        ),
        (
            "area",
            "The mean of a metric over all fractions: what the gallery is worth on average while it is re-embedded.",
            "FastFill §5.1",
        ),
        (
            "lowest",
            "The lowest point of the same curve: the worst that users see on the way.",
            "FastFill §5.1",
        ),
        (
            "NFR@1",
            "The negative flip rate: of the queries whose first answer was right at the switch, the share whose first answer \
             is wrong now.",
            "RACT eq. 12",
        ),
    ];
    Table {
        caption: "Every number with its source; new* is the independent new model, trained with no regard to the old one".into(),
        columns: ["number", "what it says", "source"].map(|heading| column(heading, Kind::Text)).into(),
        rows: rows.map(|(number, says, source)| Row::new(number, [says, source])).into(),
    }
}

fn measure_name(measure: Measure) -> &'static str {
    match measure {
        Measure::Top1 => "top-1",
        Measure::Map => "mAP",
    }
}
