//! FastFill's tables from the units of the vector sets, and its table 7 from a study with encoders of our
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rehang_core::comparison::{Comparison, Measure, MethodOutcome, OrderOutcome};
use rehang_core::order::Policy;
use rehang_core::statistics::mean_sd;
use rehang_core::{Error, Result};

use super::compatible::Studies;
use super::table::{markdown, spread, with_paper};
use super::units::{
    FLIPS_AT, LOSS, METHODS, PARTS, Row, SETS, SETS_WITH_SIDE, SETS_WITH_STEPS, WITH_SIDE, WITH_STEPS,
};

/// Rows of table 1: method, its name and order in the study, then top-1 and mAP areas on ImageNet-1k.
const TABLE_1: [(&str, &str, &str, Option<[f64; 2]>); 6] = [
    ("BCT", "bct", "random", Some([58.92, 37.02])),
    ("RACT", "ract", "entropy", Some([60.91, 39.47])),
    ("FCT", "fct", "random", Some([62.80, 40.47])),
    ("FastFill", "fastfill-reference", "sigma", Some([66.49, 44.84])),
    ("`fastfill`, σ² of left-out pairs", "fastfill", "sigma", None),
    ("rehang's default (`auto`, coverage)", "auto", "coverage", None),
];

/// Rows of table 4, of which the paper prints the old model as well.
const TABLE_4: [(&str, &str, &str, Option<[f64; 2]>); 5] = [
    ("BCT", "bct", "random", Some([59.26, 36.56])),
    ("RACT", "ract", "entropy", Some([64.80, 42.04])),
    ("FCT", "fct", "random", Some([64.91, 43.43])),
    ("FastFill", "fastfill-reference", "sigma", Some([67.77, 45.94])),
    ("rehang's default (`auto`, coverage)", "auto", "coverage", None),
];
const OLD_OF_TABLE_4: [f64; 2] = [54.04, 26.41];

/// Rows of figure 7: method and order without and with side information, then areas of top-1, top-5 and mAP
/// on ImageNet-1k.
const FIGURE_7: [(&str, &str, &str, Option<[f64; 3]>); 4] = [
    ("FCT", "fct", "random", None),
    ("FCT, side information", "fct+side", "random", Some([64.72, 82.35, 42.55])),
    ("FastFill", "fastfill-reference", "sigma", None),
    ("FastFill, side information", "fastfill-reference+side", "sigma", Some([67.81, 84.23, 46.23])),
];

/// Rows of table 5: the paper's words, method and order here, top-1 and mAP area there.
const TABLE_5: [(&str, &str, &str, [f64; 2]); 8] = [
    ("(l2)-random", "fct", "random", [62.80, 40.47]),
    ("(disc)-random", "disc", "random", [65.51, 39.45]),
    ("(l2+disc)-random", "l2+disc", "random", [65.06, 41.95]),
    ("(l2+uncert.)-random", "label-free", "random", [62.58, 40.08]),
    ("(l2+disc+uncert.)-random", "fastfill-reference", "random", [64.51, 42.05]),
    ("(l2+uncert.)-sigma", "label-free", "sigma", [65.76, 43.61]),
    ("(disc+uncert.)-sigma", "disc+uncertainty", "sigma", [55.21, 27.59]),
    ("(l2+disc+uncert.)-sigma", "fastfill-reference", "sigma", [66.49, 44.84]),
];

/// Rows of table 7: method, uncertainty, method and order of the study, then top-1 and mAP areas on `[:500]`,
/// `[500:]` and `[:1000]`.
const TABLE_7: [(&str, &str, &str, &str, [f64; 6]); 7] = [
    ("Old Model", "", "", "", [50.7, 12.41, 29.32, 29.13, 2.47, 14.9]),
    ("FastFill", "Bayesian", "fastfill-reference", "sigma", [75.27, 17.9, 43.0, 53.88, 4.68, 26.44]),
    (
        "FastFill-ablation",
        "Entropy",
        "fastfill-reference",
        "entropy",
        [74.26, 15.22, 40.78, 53.48, 4.13, 25.74],
    ),
    (
        "FastFill-ablation",
        "Margin Conf.",
        "fastfill-reference",
        "margin",
        [74.21, 15.17, 40.66, 53.21, 4.01, 25.56],
    ),
    (
        "FastFill-ablation",
        "Least Conf.",
        "fastfill-reference",
        "least-confidence",
        [74.28, 15.18, 40.74, 53.38, 4.07, 25.65],
    ),
    ("FCT", "", "fct", "random", [71.15, 14.94, 38.77, 48.61, 3.7, 23.4]),
    ("RACT", "Entropy", "ract", "entropy", [66.88, 13.65, 36.65, 41.6, 3.3, 20.4]),
];

/// Parts of table 7: name in a study, word in its heading.
const PARTS_OF_TABLE_7: [(&str, &str); 3] = [("test", "seen"), ("unseen", "unseen"), ("union", "union")];

/// Kendall τ of appendix E: what the network learned from, then τ with L_l2, L_disc and their sum.
const TAUS: [(&str, &str, [Option<f64>; 3]); 4] = [
    ("l2", "label-free", [Some(0.73), Some(0.56), None]),
    ("disc", "disc+uncertainty", [Some(0.34), Some(0.62), None]),
    ("l2+disc", "fastfill-reference", [Some(0.65), Some(0.63), Some(0.67)]),
    ("rehang's default (`auto`), on left-out pairs", "auto", [None; 3]),
];

/// Makes one of the tables of FastFill's page.
pub fn table(name: &str, units: &[Row], studies: &Studies) -> Result<String> {
    match name {
        "table-1" => Ok(table_1(studies.get("fastfill-drawn")?, &TABLE_1)),
        "table-4" => table_4(studies),
        "figure-7" => Ok(figure_7(units)),
        "table-5" => Ok(table_5(units)),
        "steps" => Ok(steps(units)),
        "table-7" => Ok(table_7(studies.get("fastfill-drawn")?, &[0, 1, 2])),
        "table-7-shift" => Ok(table_7(studies.get("fastfill")?, &[1])),
        "flips" => Ok(flips(units)),
        "taus" => Ok(taus(units)),
        "oracles" => Ok(oracles(units)),
        "sets" => Ok(sets(units)),
        _ => Err(Error::option("a table of FastFill", name, "one that fastfill.rs knows")),
    }
}

/// Row of a table by galleries: two cells that name it, then method and order.
type Named = ([String; 2], String, &'static str);

/// Makes a table of top-1 and mAP areas by galleries, with the default as its last row.
fn by_galleries(units: &[Row], sets: &[&str], heads: [&str; 2], mut named: Vec<Named>) -> String {
    let places: Vec<(&str, &str)> =
        sets.iter().flat_map(|set| PARTS.iter().map(move |part| (*set, *part))).collect();
    let headings: Vec<String> = places.iter().map(|(set, part)| format!("{set}, {part}")).collect();
    let mut columns = heads.to_vec();
    columns.extend(headings.iter().map(String::as_str));
    let default = ["rehang's default (`auto`, coverage)", "–"].map(String::from);
    named.push((default, "auto".into(), Policy::Coverage.name()));
    let row = |(names, method, order): Named| {
        let cells = places.iter().map(|(set, part)| both(areas(units, set, part, &method, order)));
        names.into_iter().chain(cells).collect()
    };
    markdown(&columns, &named.into_iter().map(row).collect::<Vec<_>>())
}

fn table_5(units: &[Row]) -> String {
    let row = |(label, method, order, paper): (&str, &str, &'static str, [f64; 2])| {
        ([label.to_owned(), format!("{:.1} / {:.1}", paper[0], paper[1])], method.to_owned(), order)
    };
    by_galleries(units, &SETS, ["Method", "paper"], TABLE_5.map(row).into())
}

/// Makes the table of the published networks by the number of their epochs, beside the default.
fn steps(units: &[Row]) -> String {
    let networks = [("FCT", "fct", "random"), ("FastFill", "fastfill-reference", "sigma")];
    let row = |(label, method, order): (&str, &str, &'static str)| {
        [("80", ""), ("320", " ×4"), ("1,280", " ×16")].map(|(epochs, factor)| {
            ([label.to_owned(), epochs.to_owned()], format!("{method}{factor}"), order)
        })
    };
    by_galleries(units, &SETS_WITH_STEPS, ["top1~ / mAP~", "epochs"], networks.map(row).concat())
}

/// Makes the table of a study's areas on seen classes; of top-5 where the record has it. The paper draws
/// top-5 and prints none.
fn table_1(study: &Comparison, rows: &[(&str, &str, &str, Option<[f64; 2]>)]) -> String {
    let mut backfills = study.outcomes.iter().flat_map(|outcome| &outcome.backfills);
    let has_top5 = backfills.any(|backfill| backfill.area_top5.is_some());
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|(label, method, order, paper)| {
            let cell = |of: &dyn Fn(&OrderOutcome) -> Option<f64>, paper: Option<f64>| {
                let number = study.over_seeds(method, "test", |outcome| of(outcome.backfill(order)?));
                with_paper(number, paper)
            };
            let mut row =
                vec![(*label).to_owned(), cell(&|of| Some(of.area.top1), paper.map(|paper| paper[0]))];
            row.push(cell(&|of| Some(of.area.map), paper.map(|paper| paper[1])));
            row.extend(has_top5.then(|| cell(&|of| of.area_top5, None)));
            row
        })
        .collect();
    let columns = ["Method", "top1~", "mAP~", "top5~"];
    markdown(&columns[..if has_top5 { 4 } else { 3 }], &rows)
}

fn table_4(studies: &Studies) -> Result<String> {
    let study = studies.get("fastfill-architecture")?;
    let [top1, map] = [Measure::Top1, Measure::Map].map(|measure| {
        study.over_seeds("independent", "test", |outcome| Some(outcome.old_old.value(measure)))
    });
    let text = table_1(study, &TABLE_4);
    let [paper_top1, paper_map] = OLD_OF_TABLE_4.map(Some);
    Ok(format!(
        "{text}| Old model | {} | {} | – |\n",
        with_paper(top1, paper_top1),
        with_paper(map, paper_map)
    ))
}

/// Makes the table of areas with and without side information, on the sets that have some. Rows that were
/// recorded before top-5 was kept have none.
fn figure_7(units: &[Row]) -> String {
    let places: Vec<(&str, &str)> =
        SETS_WITH_SIDE.iter().flat_map(|set| PARTS.iter().map(move |part| (*set, *part))).collect();
    let headings: Vec<String> = places.iter().map(|(set, part)| format!("{set}, {part}")).collect();
    let mut columns = vec!["top1~ / top5~ / mAP~", "paper"];
    columns.extend(headings.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = FIGURE_7
        .iter()
        .map(|(label, method, order, paper)| {
            let paper =
                paper.map_or("–".into(), |paper| paper.map(|number| format!("{number:.1}")).join(" / "));
            let mut row = vec![(*label).to_owned(), paper];
            row.extend(places.iter().map(|(set, part)| {
                let number = |number: &dyn Fn(&Row) -> Option<f64>| {
                    let found: Vec<f64> =
                        rows_with(units, set, part, method, order).filter_map(number).collect();
                    spread(&found)
                };
                let [top1, top5, map] = [
                    number(&|row| Some(row.area[0])),
                    number(&|row| row.area_top5),
                    number(&|row| Some(row.area[1])),
                ];
                format!("{top1} / {top5} / {map}")
            }));
            row
        })
        .collect();
    markdown(&columns, &rows)
}

/// Makes table 7 with some of its parts, by their places in [`PARTS_OF_TABLE_7`].
fn table_7(study: &Comparison, parts: &[usize]) -> String {
    let measures = [(Measure::Top1, "top1~"), (Measure::Map, "mAP~")];
    let columns: Vec<_> = (0..2).flat_map(|measure| parts.iter().map(move |&part| (measure, part))).collect();
    let cells = |method: &str, order: &str, paper: Option<[f64; 6]>| {
        let cell = |&(place, part): &(usize, usize)| {
            let (measure, name) = (measures[place].0, PARTS_OF_TABLE_7[part].0);
            // The old model by itself stands in every outcome, also in that of a model with no regard to it.
            let number = if method.is_empty() {
                study.over_seeds("independent", name, |outcome| Some(outcome.old_old.value(measure)))
            } else {
                let area = |outcome: &MethodOutcome| Some(outcome.backfill(order)?.area.value(measure));
                study.over_seeds(method, name, area)
            };
            with_paper(number, paper.map(|paper| paper[3 * place + part]))
        };
        columns.iter().map(cell).collect::<Vec<_>>()
    };
    let published = TABLE_7
        .map(|(label, uncertainty, method, order, paper)| (label, uncertainty, method, order, Some(paper)));
    let more = [
        ("BCT", "", "bct", "random", None),
        ("`fastfill`, σ² of left-out pairs", "Bayesian", "fastfill", "sigma", None),
        ("rehang's default (`auto`)", "coverage", "auto", "coverage", None),
    ];
    let rows = published.into_iter().chain(more).map(|(label, uncertainty, method, order, paper)| {
        [label, uncertainty].map(String::from).into_iter().chain(cells(method, order, paper)).collect()
    });
    let head =
        |&(place, part): &(usize, usize)| format!("{} {}", measures[place].1, PARTS_OF_TABLE_7[part].1);
    let heads: Vec<String> = columns.iter().map(head).collect();
    let named = ["Method Transformation", "Uncertainty Estimation"];
    let heads: Vec<&str> = named.into_iter().chain(heads.iter().map(String::as_str)).collect();
    markdown(&heads, &rows.collect::<Vec<_>>())
}

/// Names the sets on which the published recipe has a number, which the other rows are held against.
fn sets_with_recipe(units: &[Row], is_there: impl Fn(&Row) -> bool) -> Vec<&'static str> {
    let of_recipe = |set| rows_with(units, set, "seen", "fastfill-reference", "sigma");
    SETS.into_iter().filter(|set| of_recipe(set).any(&is_there)).collect()
}

fn flips(units: &[Row]) -> String {
    let headings: Vec<String> = FLIPS_AT.iter().map(|share| format!("{share} %")).collect();
    let mut columns = vec!["Set, part, metric", "Method"];
    columns.extend(headings.iter().map(String::as_str));
    let mut rows = Vec::new();
    for set in sets_with_recipe(units, |row| row.flips.is_some()) {
        for part in PARTS {
            for (metric, place) in [("top-1", 0), ("top-5", 2)] {
                for (label, method, order) in [
                    ("FCT", "fct", "random"),
                    ("FastFill", "fastfill-reference", "sigma"),
                    ("rehang's default", "auto", Policy::Coverage.name()),
                ] {
                    let found: Vec<&Vec<[f64; 4]>> = rows_with(units, set, part, method, order)
                        .filter_map(|row| row.flips.as_ref())
                        .collect();
                    if found.is_empty() {
                        continue;
                    }
                    let mut row = vec![format!("{set}, {part}, {metric}"), label.to_owned()];
                    row.extend((0..FLIPS_AT.len()).map(|at| {
                        let side = |side: usize| {
                            spread(&found.iter().map(|flips| flips[at][place + side]).collect::<Vec<_>>())
                        };
                        format!("+{} −{}", side(0), side(1))
                    }));
                    rows.push(row);
                }
            }
        }
    }
    markdown(&columns, &rows)
}

fn taus(units: &[Row]) -> String {
    let measured = sets_with_recipe(units, |row| row.taus.is_some());
    let mut rows = Vec::new();
    for (label, method, paper) in TAUS {
        let mut row = vec![label.to_owned()];
        for set in &measured {
            let found: Vec<[f64; 3]> =
                rows_with(units, set, "seen", method, "sigma").filter_map(|row| row.taus).collect();
            for (column, paper) in paper.iter().enumerate() {
                let mean = mean_sd(&found.iter().map(|taus| taus[column]).collect::<Vec<_>>());
                row.push(match (mean, paper) {
                    (None, _) => "–".into(),
                    (Some(mean), None) => format!("{:.2}", mean.mean),
                    (Some(mean), Some(paper)) => format!("{:.2} ({paper:.2})", mean.mean),
                });
            }
        }
        rows.push(row);
    }
    let headings: Vec<String> = measured
        .iter()
        .flat_map(|set| ["L_l2", "L_disc", "sum"].map(|loss| format!("{set}, {loss}")))
        .collect();
    let mut columns = vec!["Trained with"];
    columns.extend(headings.iter().map(String::as_str));
    markdown(&columns, &rows)
}

fn oracles(units: &[Row]) -> String {
    let orders = [("random", "random"), ("σ²", "sigma"), ("‖v − h(o)‖²", "oracle"), ("loss (3)", LOSS)];
    let mut columns = vec!["Set, part"];
    columns.extend(orders.iter().map(|(label, _)| *label));
    columns.push("rehang's default");
    let mut rows = Vec::new();
    for set in SETS {
        for part in PARTS {
            let mut row = vec![format!("{set}, {part}")];
            let cell = |method: &str, order: &str| both(areas(units, set, part, method, order));
            row.extend(orders.iter().map(|(_, order)| cell("fastfill-reference", order)));
            row.push(cell("auto", Policy::Coverage.name()));
            rows.push(row);
        }
    }
    markdown(&columns, &rows)
}

fn rows_with<'a>(
    units: &'a [Row],
    set: &'a str,
    part: &'a str,
    method: &'a str,
    order: &'a str,
) -> impl Iterator<Item = &'a Row> {
    units
        .iter()
        .filter(move |row| row.set == set && row.part == part && row.method == method && row.order == order)
}

/// Gives top-1 and mAP areas of one method and order over seeds.
pub fn areas(rows: &[Row], set: &str, part: &str, method: &str, order: &str) -> Option<[Vec<f64>; 2]> {
    let found: Vec<[f64; 2]> = rows_with(rows, set, part, method, order).map(|row| row.area).collect();
    (!found.is_empty()).then(|| [0, 1].map(|metric| found.iter().map(|area| area[metric]).collect()))
}

/// Writes top-1 and mAP in one cell.
fn both(numbers: Option<[Vec<f64>; 2]>) -> String {
    numbers.map_or("–".into(), |[top1, map]| format!("{} / {}", spread(&top1), spread(&map)))
}

/// Makes the tables of every method and order, of every set and part.
fn sets(rows: &[Row]) -> String {
    let mut text = String::new();
    for set in SETS {
        for part in PARTS {
            let here: Vec<&Row> = rows.iter().filter(|row| row.set == set && row.part == part).collect();
            if here.is_empty() {
                continue;
            }
            let seeds: BTreeSet<u64> = here.iter().map(|row| row.seed).collect();
            let _ = writeln!(
                text,
                "\n## {set}, {part} classes\n\nTop-1 / mAP in percent; up to {} seeds, as the last column says.\n\n| \
                 method | order | area | start | minimum | end | τ | seeds |\n|---|---|---|---|---|---|---|---|",
                seeds.len()
            );
            let mut groups: BTreeMap<(usize, usize, String, String), Vec<&Row>> = BTreeMap::new();
            for row in here {
                let known =
                    METHODS.iter().chain(&WITH_SIDE).chain(&WITH_STEPS).position(|name| *name == row.method);
                let method = known.map_or(0, |place| place + 1);
                let order = Policy::ALL
                    .iter()
                    .position(|policy| policy.name() == row.order)
                    .unwrap_or(Policy::ALL.len());
                groups.entry((method, order, row.method.clone(), row.order.clone())).or_default().push(row);
            }
            for ((_, _, method, order), rows) in groups {
                let cell = |of: &dyn Fn(&Row) -> [f64; 2]| {
                    let part =
                        |index: usize| spread(&rows.iter().map(|row| of(row)[index]).collect::<Vec<_>>());
                    format!("{} / {}", part(0), part(1))
                };
                let taus: Vec<f64> = rows.iter().filter_map(|row| row.tau).collect();
                let tau = mean_sd(&taus).map_or("–".into(), |tau| format!("{:.2}", tau.mean));
                let kept: BTreeSet<&str> = rows.iter().map(|row| row.kept.as_str()).collect();
                let method = if method == "auto" {
                    format!("auto ({})", kept.into_iter().collect::<Vec<_>>().join(", "))
                } else {
                    method
                };
                let _ = writeln!(
                    text,
                    "| {method} | {order} | {} | {} | {} | {} | {tau} | {} |",
                    cell(&|row| row.area),
                    cell(&|row| row.start),
                    cell(&|row| row.minimum),
                    cell(&|row| row.end),
                    rows.len()
                );
            }
        }
    }
    text
}
