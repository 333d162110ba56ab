//! Pictures of the papers' figures, from the same records as the tables: means over seeds.

use std::path::Path;

use rehang_core::Result;
use rehang_core::comparison::{Comparison, MethodOutcome, OrderOutcome, Quality};
use rehang_report::{Axis, Chart, ChartLine, Level, svg_curve};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::units::{PARTS, Row, SETS_WITH_SIDE};
use crate::studies::bias::Gaps;

/// Line of a picture from a study: its name, the method and the order.
type Drawn = (&'static str, &'static str, &'static str);
/// Lines of FastFill's figures; the product's default stands first.
const FASTFILL: [Drawn; 5] = [
    ("rehang's default", "auto", "coverage"),
    ("FastFill", "fastfill-reference", "sigma"),
    ("FCT", "fct", "random"),
    ("RACT", "ract", "entropy"),
    ("BCT", "bct", "random"),
];
/// Lines of FastFill's figure 11: its map in the orders that it is held against, on all three parts.
const ORDERS: [Drawn; 7] = [
    ("rehang's default", "auto", "coverage"),
    ("FastFill, σ²", "fastfill-reference", "sigma"),
    ("FastFill, entropy", "fastfill-reference", "entropy"),
    ("FastFill, margin", "fastfill-reference", "margin"),
    ("FastFill, least conf.", "fastfill-reference", "least-confidence"),
    ("FCT", "fct", "random"),
    ("RACT", "ract", "entropy"),
];
/// Metric: its word, the word in file names, and its points of a backfill.
type Metric = (&'static str, &'static str, fn(&OrderOutcome) -> &Vec<f64>);
const METRICS: [Metric; 3] = [
    ("top-1", "top1", |backfill| &backfill.top1),
    ("top-5", "top5", |backfill| &backfill.top5),
    ("mAP", "map", |backfill| &backfill.map),
];

/// Draws every picture whose record is there: its path from the root, and the SVG. A page that shows another
/// picture has a broken link.
pub fn pictures<'a>(
    root: &Path,
    study: impl Fn(&str) -> Option<&'a Comparison>,
    units: &[Row],
) -> Result<Vec<(String, String)>> {
    let mut charts = Vec::new();
    for (name, file, what) in [
        ("fastfill-drawn", "fastfill", "An old model of half of the classes"),
        ("fastfill-architecture", "fastfill-architecture", "Another architecture"),
    ] {
        let Some(study) = study(name) else { continue };
        for metric in METRICS {
            let title = format!("{what}: {}, seen classes", metric.0);
            charts.push((
                format!("{file}-{}", metric.1),
                Some(backfills(study, "test", title, &FASTFILL, metric)),
            ));
        }
    }
    if let Some(study) = study("fastfill-drawn") {
        for (part, classes) in
            [("test", "seen classes"), ("unseen", "unseen classes"), ("union", "all classes")]
        {
            let title = format!("Orders of the backfill: mAP, {classes}");
            let chart = backfills(study, part, title, &ORDERS, METRICS[2]);
            charts.push((format!("fastfill-orders-{part}"), Some(chart)));
        }
    }
    for (place, file) in [(0, "top1"), (2, "map")] {
        charts.push((format!("fastfill-losses-{file}"), Some(losses(units, METRICS[place].0, place))));
    }
    charts.push(("fastfill-bias".into(), bias(&read(root, "bias/gaps.jsonl")?)));
    for (place, (metric, file, _)) in METRICS.iter().enumerate() {
        charts.push((format!("fastfill-side-{file}"), Some(on_sets(units, true, metric, place))));
    }
    charts.push(("fastfill-sets-top5".into(), Some(on_sets(units, false, METRICS[1].0, 1))));
    charts.push(("ract-sequence".into(), in_a_row(&read(root, "compatible-sequence-ract/seeds.jsonl")?)));
    charts.push(("dmu-entropy".into(), entropies(&read(root, "compatible-dmu-entropies/entropies.jsonl")?)));
    charts.push((
        "bct-backfill".into(),
        Some(by_classes(&read(root, "compatible-bct-protocols/backfill.jsonl")?)),
    ));
    let drawn = |(name, chart): (String, Option<Chart>)| {
        let chart = chart.filter(|chart| !chart.is_empty())?;
        Some((format!("laboratory/docs/results/{name}.svg"), svg_curve(&chart)))
    };
    Ok(charts.into_iter().filter_map(drawn).collect())
}

/// Reads the rows of a record; none where it is not there.
fn read<T: DeserializeOwned>(root: &Path, path: &str) -> Result<Vec<T>> {
    crate::studies::records::read(&root.join("laboratory/bench/runs").join(path))
}

/// Gives the mean of curves over 0 to 100 %.
fn mean<'a>(curves: impl IntoIterator<Item = &'a [f64]>) -> Vec<(f64, f64)> {
    let curves: Vec<&[f64]> = curves.into_iter().collect();
    let shortest = curves.iter().map(|curve| curve.len()).min().unwrap_or(0);
    let share = |place: usize| 100.0 * place as f64 / (shortest - 1) as f64;
    let mean = |place: usize| curves.iter().map(|curve| curve[place]).sum::<f64>() / curves.len() as f64;
    (0..shortest).map(|place| (share(place), mean(place))).collect()
}

fn along(title: String, metric: &str, lines: Vec<ChartLine>, levels: Vec<Level>) -> Chart {
    Chart {
        title,
        x: Axis::percent("re-embedded, %"),
        y: Axis::percent(format!("{metric}, %")),
        lines,
        levels,
        ..Chart::default()
    }
}

fn level(name: &str, value: Option<f64>, dotted: bool) -> Option<Level> {
    value.map(|value| Level { name: name.into(), value, dotted })
}

/// Draws methods and orders along the backfill of a part.
fn backfills(
    study: &Comparison,
    part: &str,
    title: String,
    lines: &[Drawn],
    (metric, _, of): Metric,
) -> Chart {
    let lines = lines
        .iter()
        .map(|&(name, method, order)| {
            let curves =
                study.outcomes(method, part).filter_map(|outcome| Some(&of(outcome.backfill(order)?)[..]));
            ChartLine::new(name, mean(curves))
        })
        .collect();
    // Records have no top-5 of doing nothing.
    let ends = |of: fn(&MethodOutcome) -> Quality| {
        let number = |outcome: &MethodOutcome| match metric {
            "top-1" => Some(of(outcome).top1),
            "mAP" => Some(of(outcome).map),
            _ => None,
        };
        study.over_seeds("independent", part, number).map(|spread| spread.mean)
    };
    let levels = [
        level("old model", ends(|outcome| outcome.old_old), false),
        level("new model", ends(|outcome| outcome.best_best), true),
    ];
    let levels = levels.into_iter().flatten().collect();
    along(title, metric, lines, levels)
}

/// Draws FastFill's figure 9: losses and orders, on the seen characters of Omniglot.
fn losses(units: &[Row], metric: &str, place: usize) -> Chart {
    let lines = [
        ("l2+disc+uncert., σ", "fastfill-reference", "sigma"),
        ("l2+uncert., σ", "label-free", "sigma"),
        ("disc+uncert., σ", "disc+uncertainty", "sigma"),
        ("l2+disc, random", "l2+disc", "random"),
        ("l2, random", "fct", "random"),
        ("disc, random", "disc", "random"),
    ]
    .map(|(name, method, order)| ChartLine::new(name, drawn(units, SETS_WITH_SIDE[0], method, order, place)));
    along(format!("Losses and orders on Omniglot: {metric}, seen classes"), metric, lines.into(), Vec::new())
}

/// Gives the mean of one metric's curves of a method in an order, on the seen classes of a set.
fn drawn(units: &[Row], set: &str, method: &str, order: &str, place: usize) -> Vec<(f64, f64)> {
    let rows = units
        .iter()
        .filter(|row| row.set == set && row.method == method && row.order == order && row.part == PARTS[0]);
    mean(rows.filter_map(|row| Some(&row.curves.as_ref()?[place][..])))
}

/// Draws FastFill's figures 7 and 8, on the seen characters of Omniglot and objects of Caltech: networks with
/// side information, or without.
fn on_sets(units: &[Row], with_side: bool, metric: &str, place: usize) -> Chart {
    let [title, side] =
        if with_side { ["With side information", "+side"] } else { ["Without side information", ""] };
    let lines = [
        ("FastFill, Omniglot", SETS_WITH_SIDE[0], "fastfill-reference", "sigma"),
        ("FCT, Omniglot", SETS_WITH_SIDE[0], "fct", "random"),
        ("FastFill, Caltech", SETS_WITH_SIDE[1], "fastfill-reference", "sigma"),
        ("FCT, Caltech", SETS_WITH_SIDE[1], "fct", "random"),
    ]
    .map(|(name, set, method, order)| {
        ChartLine::new(name, drawn(units, set, &format!("{method}{side}"), order, place))
    });
    let lines = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
    along(format!("{title}: {metric}, seen classes"), metric, lines, Vec::new())
}

/// Draws FastFill's §5.3: the gap between favoured and neglected classes along a backfill of the published
/// map.
fn bias(gaps: &[Gaps]) -> Option<Chart> {
    let of_map = gaps.iter().filter(|line| line.adapter == "fastfill-reference" && line.order != "oracle");
    let points = |line: &Gaps| (0..).map(f64::from).zip(line.along.iter().copied()).collect();
    let lines: Vec<ChartLine> = of_map.map(|line| ChartLine::new(line.order.clone(), points(line))).collect();
    let today = gaps.first()?.today;
    Some(Chart {
        title: "Top-1 of favoured less that of neglected alphabets, fastfill-reference".into(),
        x: Axis::percent("re-embedded, %"),
        y: Axis { label: "gap, points".into(), ..Axis::default() },
        lines,
        levels: level("old model", Some(today), false).into_iter().collect(),
        ..Chart::default()
    })
}

/// Row of `laboratory/bench/compatible/sequence.py ract`: one upgrade.
#[derive(Deserialize)]
struct Upgrade {
    part: String,
    line: String,
    generation: usize,
    no_refresh: f64,
    hot: Vec<f64>,
}

/// Draws RACT's figure 7: one upgrade after the other on one axis, a hundred percent each.
fn in_a_row(upgrades: &[Upgrade]) -> Option<Chart> {
    if upgrades.is_empty() {
        return None;
    }
    let upgrades_of = |line: &str, generation: usize| -> Vec<&Upgrade> {
        let is_it = |one: &&Upgrade| {
            (one.part.as_str(), one.line.as_str(), one.generation) == ("seen", line, generation)
        };
        upgrades.iter().filter(is_it).collect()
    };
    let mut lines = Vec::new();
    for (name, line) in [("RACT, hot refresh", "ours"), ("vanilla, hot refresh", "vanilla")] {
        let points = (1..=3).flat_map(|generation| {
            let begin = 100.0 * (generation - 1) as f64;
            mean(upgrades_of(line, generation).into_iter().map(|one| &one.hot[..]))
                .into_iter()
                .map(move |(share, value)| (begin + share, value))
        });
        lines.push(ChartLine::new(name, points.collect()));
    }
    for (name, line) in [("RACT, no refresh", "ours"), ("vanilla, no refresh", "vanilla")] {
        let points = (1..=3).flat_map(|generation| {
            let here = upgrades_of(line, generation);
            let value = here.iter().map(|one| one.no_refresh).sum::<f64>() / here.len() as f64;
            let begin = 100.0 * (generation - 1) as f64;
            [(begin, value), (begin + 100.0, value)]
        });
        lines.push(ChartLine::new(name, points.collect()));
    }
    Some(Chart {
        title: "Three upgrades in a row, 30 → 60 → 80 → 100 % of the images: seen classes".into(),
        x: Axis {
            label: "re-embedded, % of one upgrade after the other".into(),
            bounds: Some((0.0, 300.0)),
            ..Axis::default()
        },
        y: Axis::percent("mAP, %"),
        lines,
        ..Chart::default()
    })
}

/// Line of `laboratory/bench/compatible/entropies.py`.
#[derive(Deserialize)]
struct Tenths {
    part: String,
    model: String,
    before: Vec<f64>,
    after: Vec<f64>,
}

/// Draws DMU's figure 4.
fn entropies(tenths: &[Tenths]) -> Option<Chart> {
    let mut lines: Vec<ChartLine> = tenths
        .iter()
        .map(|one| {
            let points = one.before.iter().copied().zip(one.after.iter().copied());
            ChartLine::new(format!("{}, {}", one.model, one.part), points.collect())
        })
        .collect();
    let largest = tenths.iter().flat_map(|one| &one.before).copied().reduce(f64::max)?;
    lines.push(ChartLine {
        look: rehang_report::Look::Quiet,
        ..ChartLine::new("no change", vec![(0.0, 0.0), (largest, largest)])
    });
    Some(Chart {
        title: "Entropy of what the head says, before and after ψ: tenths of the gallery".into(),
        x: Axis { label: "Λ of old vectors by the old head".into(), ..Axis::default() },
        y: Axis { label: "Λ of ψ(old vectors) by the new head".into(), ..Axis::default() },
        lines,
        ..Chart::default()
    })
}

/// Line of `laboratory/bench/compatible/faces.py`: one backfill.
#[derive(Deserialize)]
struct Backfill {
    part: String,
    order: String,
    map: Vec<f64>,
}

/// Draws BCT's figure 3: whole characters one after the other, beside items in a random order.
fn by_classes(backfills: &[Backfill]) -> Chart {
    let lines = [
        ("by character, seen", "seen", "characters"),
        ("by item, seen", "seen", "items"),
        ("by character, unseen", "unseen", "characters"),
        ("by item, unseen", "unseen", "items"),
    ]
    .map(|(name, part, order)| {
        let here = backfills.iter().filter(|one| one.part == part && one.order == order);
        ChartLine::new(name, mean(here.map(|one| &one.map[..])))
    });
    along("BCT's gallery, backfilled by character and by item".into(), "mAP", lines.into(), Vec::new())
}
