//! `cargo lab study papers yardstick [SET…]`: one yardstick for all maps.
//!
//! Each map serves each set in every order that applies, by L2 and by cosine, without a handicap and with the one
//! that serves it best. That one is chosen on the measured gallery itself, which no application could do: it
//! flatters every map, and the published ones no less than the product's own. The product's default has a row
//! more, with the handicap that it chose on its pairs, as its searches serve.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use rehang_core::adapter::{self, true_errors};
use rehang_core::curve::{CurveInput, CurveOptions, Distances, MAP, Relevance, TOP1, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Distance, Head, Progress, Result};
use rehang_fit::geometry::GeometryKind;
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};
use serde::{Deserialize, Serialize};

use super::table::{markdown, spread, verdict};
use super::units::{self, PARTS, Part, SETS, Set};

const RECORD: &str = "laboratory/bench/runs/results/yardstick.jsonl";
const SEEDS: u64 = 3;
/// Maps, by their names in the table. The first is the product's default; the last two are published.
const MAPS: [(Method, &str); 4] = [
    (Method::Auto, "rehang's default (`auto`)"),
    (Method::Ridge, "ridge"),
    (Method::Fct, "FCT"),
    (Method::FastfillReference, "FastFill"),
];
const PUBLISHED: [Method; 2] = [Method::Fct, Method::FastfillReference];
const ORDERS: [Policy; 3] = [Policy::Random, Policy::Sigma, Policy::Coverage];
const DISTANCES: [Distance; 2] = [Distance::L2, Distance::Cosine];
/// Handicaps that are tried, as parts of the map's mean squared error on the gallery.
const TRIED: [f64; 6] = [0.05, 0.1, 0.15, 0.2, 0.3, 0.5];

/// Handicap that adapted vectors are served with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Handicap {
    None,
    /// Handicap that the map's fit chose on left-out pairs.
    Own,
    /// Best of [`TRIED`] and none by the sum of top-1 and mAP, on the measured gallery itself.
    Best,
}

/// Areas of one map on one part, served in one way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServedMap {
    set: String,
    seed: u64,
    part: String,
    map: String,
    order: String,
    distance: Distance,
    handicap: Handicap,
    /// Top-1 and mAP, percent.
    area: [f64; 2],
}

/// Measures what is missing of the sets, and records it.
pub fn measure_missing(folder: &Path, sets: &[&str]) -> Result<()> {
    let recorded = read(Path::new("."))?;
    for seed in 0..SEEDS {
        for &set in sets {
            let is_recorded = |method: Method| {
                let is_it = |row: &ServedMap| row.set == set && row.seed == seed && row.map == method.name();
                recorded.iter().any(is_it)
            };
            let missing: Vec<Method> =
                MAPS.into_iter().map(|(method, _)| method).filter(|method| !is_recorded(*method)).collect();
            if missing.is_empty() {
                continue;
            }
            let (data, head) = (Set::read(folder, set)?, Set::head(folder, set)?);
            for method in missing {
                eprintln!("{set} seed {seed} {method} …");
                units::append(RECORD, &measure(set, &data, &head, method, seed)?)?;
            }
        }
    }
    Ok(())
}

/// Reads every row that is recorded under `root`.
pub fn read(root: &Path) -> Result<Vec<ServedMap>> {
    crate::studies::records::read(&root.join(RECORD))
}

fn measure(set: &str, data: &Set, head: &Head, method: Method, seed: u64) -> Result<Vec<ServedMap>> {
    // Published networks say themselves how their outputs conform.
    let geometry = PUBLISHED.contains(&method).then_some(GeometryKind::Raw);
    let parameters = FitParameters { method, seed, compare: false, geometry, ..FitParameters::default() };
    let progress = Progress::default();
    let adapter =
        fit_adapter(&data.pairs, Some(head), &parameters, &NetworkOptions::default(), &progress)?.adapter;
    let mut rows = Vec::new();
    for part in &data.parts {
        let adapted = adapter::apply(&adapter, &part.old, None, &progress)?;
        let variance: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
        let outputs = adapted.vectors.matrix();
        for policy in ORDERS {
            let input = OrderInput {
                items: part.new.len(),
                sigma: Some(&variance),
                vectors: Some(outputs),
                seed,
                ..OrderInput::default()
            };
            let permutation = order(policy, &input)?.permutation;
            let own = if method == Method::Auto { adapter.handicap } else { 0.0 };
            for distance in DISTANCES {
                for (handicap, area) in served(part, outputs, &permutation, distance, own)? {
                    rows.push(ServedMap {
                        set: set.into(),
                        seed,
                        part: part.name.into(),
                        map: method.name().into(),
                        order: policy.name().into(),
                        distance,
                        handicap,
                        area,
                    });
                }
            }
        }
    }
    Ok(rows)
}

/// Measures areas without a handicap, with the best one and, where it is not 0, with the map's `own`.
fn served(
    part: &Part,
    outputs: &rehang_core::Matrix,
    permutation: &[usize],
    distance: Distance,
    own: f64,
) -> Result<Vec<(Handicap, [f64; 2])>> {
    let native = part.new.matrix();
    let distances = [native, outputs].map(|gallery| Distances::new(native, gallery, None, distance));
    let [to_native, to_adapted] = distances;
    let known = Some([&to_native?, &to_adapted?]);
    let relevance = Relevance::Labels { gallery: &part.labels, queries: None };
    let area = |handicap: f64| -> Result<[f64; 2]> {
        let input = CurveInput::new(native, outputs, permutation, relevance, distance);
        let made =
            curve(&CurveInput { handicap, known, ..input }, &CurveOptions::default(), &Progress::default())?;
        Ok([made.lines[TOP1].area(), made.lines[MAP].area()])
    };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let squared: Vec<f64> = native.norms().iter().map(|norm| norm * norm).collect();
    let in_unit = |squared_error: f64| distance.of_squared_error(squared_error, mean(&squared));
    let error = in_unit(mean(&true_errors(native, outputs)));
    let none = area(0.0)?;
    let mut best = none;
    for tried in TRIED {
        let here = area(tried * error)?;
        if here[0] + here[1] > best[0] + best[1] {
            best = here;
        }
    }
    let mut areas = vec![(Handicap::None, none), (Handicap::Best, best)];
    // The adapter's own is in the unit of the space's distance, which is L2.
    if own > 0.0 {
        areas.push((Handicap::Own, area(in_unit(own))?));
    }
    Ok(areas)
}

/// Way to serve: map, order, distance and handicap.
type Way<'a> = (&'a str, &'a str, &'static str, &'static str);
/// Areas over seeds of every way on one gallery: top-1 and mAP.
type Cells<'a> = BTreeMap<Way<'a>, [Vec<f64>; 2]>;

fn cells<'a>(rows: &'a [ServedMap], set: &str, part: &str) -> Cells<'a> {
    let mut cells = Cells::new();
    for row in rows.iter().filter(|row| row.set == set && row.part == part) {
        let key = (row.map.as_str(), row.order.as_str(), row.distance.name(), name(row.handicap));
        let areas = cells.entry(key).or_default();
        areas[0].push(row.area[0]);
        areas[1].push(row.area[1]);
    }
    cells
}

const fn name(handicap: Handicap) -> &'static str {
    match handicap {
        Handicap::None => "none",
        Handicap::Own => "its own",
        Handicap::Best => "the best",
    }
}

const HANDICAPS: [Handicap; 3] = [Handicap::None, Handicap::Own, Handicap::Best];

/// Makes the table map × order × handicap × distance: means over the galleries on which all maps are measured,
/// and over seeds first.
pub fn means(rows: &[ServedMap]) -> String {
    let places = SETS.iter().flat_map(|set| PARTS.iter().map(move |part| (*set, *part)));
    let all = places.map(|(set, part)| (format!("{set}, {part}"), cells(rows, set, part)));
    let is_complete = |cells: &Cells<'_>| {
        MAPS.iter().all(|(method, _)| cells.keys().any(|(map, ..)| *map == method.name()))
    };
    let (names, galleries): (Vec<String>, Vec<Cells<'_>>) =
        all.filter(|(_, cells)| is_complete(cells)).unzip();
    let columns: Vec<(Distance, Handicap)> =
        DISTANCES.into_iter().flat_map(|distance| HANDICAPS.map(|handicap| (distance, handicap))).collect();
    let headings: Vec<String> = columns
        .iter()
        .map(|(distance, handicap)| format!("{distance}, handicap: {}", name(*handicap)))
        .collect();
    let mut table = Vec::new();
    for (method, label) in MAPS {
        for policy in ORDERS {
            let mut row = vec![label.to_owned(), policy.name().to_owned()];
            row.extend(columns.iter().map(|(distance, handicap)| {
                let key = (method.name(), policy.name(), distance.name(), name(*handicap));
                let means: Option<Vec<[f64; 2]>> = galleries
                    .iter()
                    .map(|cells| {
                        let areas = cells.get(&key)?;
                        Some([mean_sd(&areas[0])?.mean, mean_sd(&areas[1])?.mean])
                    })
                    .collect();
                means.map_or("–".into(), |means| {
                    let mean = |metric: usize| {
                        means.iter().map(|mean| mean[metric]).sum::<f64>() / means.len() as f64
                    };
                    format!("{:.1} / {:.1}", mean(0), mean(1))
                })
            }));
            table.push(row);
        }
    }
    let mut heads = vec!["map", "order"];
    heads.extend(headings.iter().map(String::as_str));
    format!("{}\nGalleries: {}.\n", markdown(&heads, &table), names.join("; "))
}

/// Makes the table of the default beside the published maps, gallery by gallery: each metric of the best of all
/// ways to serve either.
pub fn rivals(rows: &[ServedMap]) -> String {
    let mut text = String::from(
        "| set, part | default as it serves, top-1 / mAP | mAP: default, best way | published, best way | default above it? | \
         top-1: default, best way | published, best way | default above it? |\n|---|--:|---|---|---|---|---|---|\n",
    );
    let default = [Method::Auto];
    for set in SETS {
        for part in PARTS {
            let cells = cells(rows, set, part);
            let served = [Handicap::Own, Handicap::None].into_iter().find_map(|handicap| {
                let order = Policy::Coverage.name();
                cells.get(&(Method::Auto.name(), order, Distance::L2.name(), name(handicap)))
            });
            let Some(served) = served else { continue };
            let _ = write!(text, "| {set}, {part} | {} / {}", spread(&served[0]), spread(&served[1]));
            for metric in [1, 0] {
                let best = |maps: &[Method]| {
                    let mean = |areas: &[Vec<f64>; 2]| mean_sd(&areas[metric]).map_or(f64::NAN, |sd| sd.mean);
                    let of_maps =
                        cells.iter().filter(|(key, _)| maps.iter().any(|method| method.name() == key.0));
                    of_maps.max_by(|one, other| mean(one.1).total_cmp(&mean(other.1)))
                };
                let shown = |best: Option<(&Way<'_>, &[Vec<f64>; 2])>| {
                    best.map_or("–".to_owned(), |((map, order, distance, _), areas)| {
                        format!("{} ({map}, {order}, {distance})", spread(&areas[metric]))
                    })
                };
                let (own, published) = (best(&default), best(&PUBLISHED));
                let above =
                    own.zip(published).map(|(own, published)| verdict(&own.1[metric], &published.1[metric]));
                let _ = write!(
                    text,
                    " | {} | {} | {}",
                    shown(own),
                    shown(published),
                    above.unwrap_or_else(|| "–".into())
                );
            }
            text.push_str(" |\n");
        }
    }
    text
}
