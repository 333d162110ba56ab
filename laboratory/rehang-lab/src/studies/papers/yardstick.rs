//! One yardstick: every map in the same orders, without a handicap and with its own, by both distances.
//!
//! By L2 a published network's outputs stay as they are; by cosine they get native lengths, as the product's
//! maps do. A handicap is the one that `rehang fit` chooses on left-out pairs. Every (set, seed, map) is a
//! unit whose rows are appended to `laboratory/bench/runs/results/yardstick.jsonl` as soon as they are known;
//! a unit that is there already is not done again. A published network is fitted once, and once more a fold
//! for its handicap, for all orders, handicaps and distances.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::path::Path;

use rehang_core::adapter::{Adapter, Geometry, Uncertainty, apply};
use rehang_core::curve::{CurveInput, CurveOptions, MAP, Relevance, TOP1, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Distance, Error, Head, Pairs, Progress, Result};
use rehang_fit::folds::folds;
use rehang_fit::geometry::{self, GeometryKind};
use rehang_fit::uncertainty_fit::cross_fit;
use rehang_fit::{FitParameters, ORDERS, choose_handicap};
use serde::{Deserialize, Serialize};

use super::cells::{markdown, spread};
use super::units::{PARTS, Part, SEEDS, SETS, Set, fitted};
use crate::studies::records;

const RECORD: &str = "laboratory/bench/runs/results/yardstick.jsonl";
const MAPS: [&str; 9] = [
    DEFAULT,
    "kernel-ridge",
    "ridge",
    "procrustes",
    "do-nothing",
    "fct",
    "l2+disc",
    "fastfill-reference",
    "fastfill",
];
/// Map that the product chooses, which all others are held against.
const DEFAULT: &str = "auto";
/// Networks by the published losses, which know neither the distance of a search nor its geometry.
const PUBLISHED: [&str; 3] = ["fct", "l2+disc", "fastfill-reference"];
const DISTANCES: [Distance; 2] = [Distance::L2, Distance::Cosine];
/// Number of fits without a part of the pairs, which is that of `rehang fit` for a network.
const FOLDS: usize = 2;
/// Cell of a table where nothing is measured.
const NOTHING: &str = "–";

/// Areas of one map on one part, in one order and by one distance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MapRow {
    set: String,
    seed: u64,
    map: String,
    /// Method that was kept, for `auto`.
    kept: String,
    part: String,
    distance: Distance,
    order: Policy,
    /// Handicap that the map has of its own, in the unit of the distance.
    handicap: f64,
    /// Top-1 and mAP areas in percent, without a handicap and with it.
    areas: [[f64; 2]; 2],
}

/// Reads every row that is recorded under `root`.
pub fn read(root: &Path) -> Result<Vec<MapRow>> {
    records::read(&root.join(RECORD))
}

/// Measures what is missing of `sets`, and records it. All sets have their first seed before any has its
/// second, so that a study that is cut short has a row of each.
pub fn measure_missing(folder: &Path, sets: &[&str]) -> Result<()> {
    for seed in 0..SEEDS {
        for set in sets {
            let open = missing(&read(Path::new("."))?, set, seed);
            if open.is_empty() {
                continue;
            }
            let [l2, cosine] = DISTANCES.map(|distance| Set::read_for(folder, set, distance));
            let (data, head) = ([l2?, cosine?], Set::head(folder, set)?);
            for map in open {
                eprintln!("{set} seed {seed} {map} …");
                match measure(set, &data, &head, map, seed) {
                    Ok(unit) => records::append(RECORD, &unit)?,
                    // A network that leaves the finite numbers must not cost a night of the others; the page
                    // names it.
                    Err(error) => eprintln!("  {error}"),
                }
            }
        }
    }
    Ok(())
}

/// Lists the maps of a set that are not measured yet with a seed.
fn missing(rows: &[MapRow], set: &str, seed: u64) -> Vec<&'static str> {
    let is_there =
        |map: &str| rows.iter().any(|row| row.set == set && row.seed == seed && row.map == map);
    MAPS.into_iter().filter(|map| !is_there(map)).collect()
}

/// Measures one unit: fits a map and measures it on both parts by both distances.
fn measure(set: &str, data: &[Set; 2], head: &Head, map: &str, seed: u64) -> Result<Vec<MapRow>> {
    let (by_l2, by_cosine) = served(data.each_ref().map(|set| &set.pairs), head, map, seed)?;
    let template = MapRow {
        set: set.into(),
        seed,
        map: map.into(),
        kept: by_l2.training.method.clone(),
        part: String::new(),
        distance: Distance::L2,
        order: Policy::Random,
        handicap: 0.0,
        areas: [[0.0; 2]; 2],
    };
    let mut rows = Vec::new();
    for part in &data[0].parts {
        rows.extend(on_part(&template, part, &by_l2, head)?);
    }
    let again: Vec<MapRow> = match by_cosine {
        Some(adapter) => {
            let kept = adapter.training.method.clone();
            let template = MapRow { kept, distance: Distance::Cosine, ..template };
            let parts = data[1].parts.iter().map(|part| on_part(&template, part, &adapter, head));
            parts.collect::<Result<Vec<_>>>()?.concat()
        }
        None => {
            let handicap = |row: &MapRow| Distance::Cosine.of_squared_error(row.handicap, 1.0);
            let distance = Distance::Cosine;
            rows.iter().map(|row| MapRow { distance, handicap: handicap(row), ..row.clone() }).collect()
        }
    };
    rows.extend(again);
    Ok(rows)
}

/// Fits a map on pairs for searches by L2 and by cosine, with a handicap for each. There is no second adapter
/// where new vectors and outputs have length 1, so that both distances rank alike.
fn served(pairs: [&Pairs; 2], head: &Head, map: &str, seed: u64) -> Result<(Adapter, Option<Adapter>)> {
    let [by_l2, by_cosine] = pairs;
    let first = fitted(by_l2, head, map, seed)?;
    if !PUBLISHED.contains(&map) {
        let is_alike = by_l2.new_vectors().space().normalised;
        let second = (!is_alike).then(|| fitted(by_cosine, head, map, seed)).transpose()?;
        return Ok((first, second));
    }
    let quiet = Progress::default();
    let fold = folds(by_l2.len(), FOLDS, seed);
    let left_out = cross_fit(by_l2, &fold, |part, _| Ok(fitted(part, head, map, seed)?.map), &quiet)?;
    let with_handicap = |pairs: &Pairs, geometry: Geometry| -> Result<Adapter> {
        let parameters = FitParameters { seed, ..FitParameters::default() };
        let choice = choose_handicap(pairs, left_out.clone(), &geometry, &parameters, &quiet)?;
        Ok(Adapter {
            old: pairs.old().space().clone(),
            new: pairs.new_vectors().space().clone(),
            geometry,
            handicap: choice.map_or(0.0, |choice| choice.handicap()),
            ..first.clone()
        })
    };
    let native = by_cosine.new_vectors();
    let at_native_lengths = geometry::fit(GeometryKind::options(native.space())[0], &left_out, native);
    Ok((with_handicap(by_l2, Geometry::Raw)?, Some(with_handicap(by_cosine, at_native_lengths)?)))
}

/// Measures an adapter on a part in every order, without a handicap and with its own.
fn on_part(template: &MapRow, part: &Part, adapter: &Adapter, head: &Head) -> Result<Vec<MapRow>> {
    let quiet = Progress::default();
    let adapted = apply(adapter, &part.old, None, &quiet)?;
    let (native, vectors) = (part.new.matrix(), adapted.vectors.matrix());
    let variance: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
    let relevance = Relevance::Labels { gallery: &part.labels, queries: None };
    // One σ² for all items puts none before another.
    let has_sigma = !matches!(adapter.uncertainty, Uncertainty::Constant { .. });
    let mut rows = Vec::new();
    for policy in ORDERS.into_iter().filter(|policy| has_sigma || *policy != Policy::Sigma) {
        let input = OrderInput {
            items: native.rows(),
            sigma: Some(&variance),
            classified: policy.head(adapter.uncertainty.head(), Some(head)).map(|head| (head, vectors)),
            vectors: Some(vectors),
            seed: template.seed,
            ..OrderInput::default()
        };
        let permutation = order(policy, &input)?.permutation;
        let area = |handicap: f64| -> Result<[f64; 2]> {
            let input = CurveInput::new(native, vectors, &permutation, relevance, template.distance);
            let made = curve(&CurveInput { handicap, ..input }, &CurveOptions::default(), &quiet)?;
            Ok([TOP1, MAP].map(|metric| made.lines[metric].area()))
        };
        let plain = area(0.0)?;
        let with_handicap = if adapter.handicap > 0.0 { area(adapter.handicap)? } else { plain };
        rows.push(MapRow {
            part: part.name.into(),
            order: policy,
            handicap: adapter.handicap,
            areas: [plain, with_handicap],
            ..template.clone()
        });
    }
    Ok(rows)
}

/// Way in which a map is searched.
#[derive(Debug, Clone, Copy)]
struct Way {
    order: Policy,
    distance: Distance,
    has_handicap: bool,
}

/// Numbers of top-1 and of mAP, one for each seed.
type Columns = [Vec<f64>; 2];

/// Lists the parts of all sets.
fn places() -> impl Iterator<Item = (&'static str, &'static str)> {
    SETS.into_iter().flat_map(|set| PARTS.map(|part| (set, part)))
}

/// Gives the areas of a map on some rows, top-1 and mAP.
fn areas(rows: &[MapRow], map: &str, way: Way, is_counted: impl Fn(&MapRow) -> bool) -> Vec<[f64; 2]> {
    let is_of_way =
        |row: &&MapRow| row.map == map && row.order == way.order && row.distance == way.distance;
    let counted = rows.iter().filter(is_of_way).filter(|row| is_counted(row));
    counted.map(|row| row.areas[usize::from(way.has_handicap)]).collect()
}

/// Parts pairs of top-1 and mAP into two columns.
fn columns(areas: &[[f64; 2]]) -> Columns {
    [0, 1].map(|metric| areas.iter().map(|area| area[metric]).collect())
}

/// Gives the areas of a map on one part of a set.
fn at(rows: &[MapRow], map: &str, way: Way, (set, part): (&str, &str)) -> Columns {
    columns(&areas(rows, map, way, |row| row.set == set && row.part == part))
}

/// Gives the mean areas of a map over the parts of all sets, for each seed that has all of them.
fn over_parts(rows: &[MapRow], map: &str, way: Way) -> Columns {
    let of_seed = |seed: u64| {
        let all = columns(&areas(rows, map, way, |row| row.seed == seed && SETS.contains(&row.set.as_str())));
        let is_whole = all[0].len() == places().count();
        is_whole.then(|| all.map(|values| values.iter().sum::<f64>() / values.len() as f64))
    };
    columns(&(0..SEEDS).filter_map(of_seed).collect::<Vec<_>>())
}

/// Compares the means of two lists. They are level where they are no farther apart than the larger of the two
/// standard deviations, or than what is shown as 0.0; `None` where a list is empty.
fn compared(own: &[f64], other: &[f64]) -> Option<Ordering> {
    let (own, other) = (mean_sd(own)?, mean_sd(other)?);
    let gap = own.mean - other.mean;
    let is_level = gap.abs() <= own.sd.max(other.sd).max(0.05);
    Some(if is_level { Ordering::Equal } else { gap.total_cmp(&0.0) })
}

/// Writes top-1 and mAP of a map, each with a sign: above (+), level with (=) or below (−) the default.
fn cell(own: &Columns, of_default: Option<&Columns>) -> String {
    if own[0].is_empty() {
        return NOTHING.into();
    }
    let written = |metric: usize| {
        let sign = match of_default.and_then(|other| compared(&own[metric], &other[metric])) {
            None => "",
            Some(Ordering::Greater) => " +",
            Some(Ordering::Equal) => " =",
            Some(Ordering::Less) => " −",
        };
        format!("{}{sign}", spread(&own[metric]))
    };
    format!("{} / {}", written(0), written(1))
}

/// Makes a table or a paragraph of the record by its name.
pub fn table(words: &[&str], rows: &[MapRow]) -> Result<String> {
    match words {
        ["all"] => Ok(over_all(rows)),
        ["says"] => Ok(says(rows)),
        ["missing"] => Ok(still_missing(rows)),
        [distance, part] => Ok(by_set(rows, distance.parse()?, part)),
        _ => Err(Error::option("a table of one yardstick", words.join(" "), "one that yardstick.rs knows")),
    }
}

/// Makes the table of means over all parts: a column a distance, without handicap and with it.
fn over_all(rows: &[MapRow]) -> String {
    let mut lines = Vec::new();
    for map in MAPS {
        for order in ORDERS.into_iter().rev() {
            let mut line = vec![map.to_owned(), order.name().to_owned()];
            for distance in DISTANCES {
                line.extend([false, true].map(|has_handicap| {
                    let of = |map| over_parts(rows, map, Way { order, distance, has_handicap });
                    cell(&of(map), (map != DEFAULT).then(|| of(DEFAULT)).as_ref())
                }));
            }
            lines.push(line);
        }
    }
    lines.retain(|line| line[2..].iter().any(|cell| cell != NOTHING));
    markdown(&["map", "order", "L2", "L2, handicap", "cosine", "cosine, handicap"], &lines)
}

/// Makes the table of one part by one distance: a column a set.
fn by_set(rows: &[MapRow], distance: Distance, part: &str) -> String {
    let mut lines = Vec::new();
    for map in MAPS {
        for order in ORDERS.into_iter().rev() {
            for (handicap, has_handicap) in [("none", false), ("its own", true)] {
                let way = Way { order, distance, has_handicap };
                let mut line = vec![map.to_owned(), order.name().to_owned(), handicap.to_owned()];
                line.extend(SETS.map(|set| {
                    let of = |map| at(rows, map, way, (set, part));
                    cell(&of(map), (map != DEFAULT).then(|| of(DEFAULT)).as_ref())
                }));
                lines.push(line);
            }
        }
    }
    lines.retain(|line| line[3..].iter().any(|cell| cell != NOTHING));
    markdown(&[&["map", "order", "handicap"][..], &SETS].concat(), &lines)
}

/// Holds the default against a map that is searched in the same way, by top-1 (0) or mAP (1): the numbers of
/// parts on which it is above, level and below, and the gaps of the means.
fn held(rows: &[MapRow], map: &str, way: Way, metric: usize) -> ([usize; 3], Vec<f64>) {
    let (mut parts, mut gaps) = ([0; 3], Vec::new());
    for place in places() {
        let [own, other] = [DEFAULT, map].map(|map| at(rows, map, way, place));
        let Some(standing) = compared(&own[metric], &other[metric]) else { continue };
        // Above is 1, level 0 and below −1.
        parts[(1 - standing as i8) as usize] += 1;
        let means = mean_sd(&own[metric]).zip(mean_sd(&other[metric]));
        gaps.extend(means.map(|(own, other)| own.mean - other.mean));
    }
    (parts, gaps)
}

/// Says in sentences how the default compares with published maps on one yardstick, and what each of the
/// three changes is worth.
fn says(rows: &[MapRow]) -> String {
    let (mut text, order) = (String::new(), Policy::Coverage);
    for (map, distance) in PUBLISHED.into_iter().flat_map(|map| DISTANCES.map(|distance| (map, distance))) {
        let standing = |metric: usize| {
            let way = Way { order, distance, has_handicap: true };
            let ([above, level, below], gaps) = held(rows, map, way, metric);
            let least = gaps.iter().copied().fold(f64::INFINITY, f64::min);
            let most = gaps.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let counts = format!("above on {above} parts, level on {level}, below on {below}");
            (!gaps.is_empty()).then(|| format!("{counts} ({least:+.1} to {most:+.1})"))
        };
        if let Some((top1, map_area)) = standing(0).zip(standing(1)) {
            let _ = writeln!(
                text,
                "- `{DEFAULT}` against `{map}` by {distance}, both in the order `{order}` and each with its \
                 own handicap: in top-1 {top1}, in mAP {map_area}."
            );
        }
    }
    text.extend([PUBLISHED[2], DEFAULT].into_iter().filter_map(|map| worth(rows, map)));
    if text.is_empty() { "No set is measured yet.".into() } else { text }
}

/// Says what cosine, the order and the handicap are worth to a map, one after the other; `None` until all
/// parts are measured.
fn worth(rows: &[MapRow], map: &str) -> Option<String> {
    let way = |order, distance, has_handicap| Way { order, distance, has_handicap };
    let steps = [
        way(Policy::Random, Distance::L2, false),
        way(Policy::Random, Distance::Cosine, false),
        way(Policy::Coverage, Distance::Cosine, false),
        way(Policy::Coverage, Distance::Cosine, true),
    ];
    let mut means: Vec<[f64; 2]> = Vec::new();
    for step in steps {
        let [top1, map_area] = over_parts(rows, map, step);
        means.push([mean_sd(&top1)?.mean, mean_sd(&map_area)?.mean]);
    }
    let gains: Vec<String> = means
        .windows(2)
        .map(|two| format!("{:+.1} / {:+.1}", two[1][0] - two[0][0], two[1][1] - two[0][1]))
        .collect();
    Some(format!(
        "- What each is worth to `{map}`, top-1 / mAP, from {:.1} / {:.1} by L2 in random order without a \
         handicap on: cosine {}, then the order `coverage` {}, then the handicap {}.\n",
        means[0][0], means[0][1], gains[0], gains[1], gains[2]
    ))
}

/// Names what is not measured yet, set by set.
fn still_missing(rows: &[MapRow]) -> String {
    let mut text = String::new();
    for set in SETS {
        let open: Vec<&str> = (0..SEEDS).flat_map(|seed| missing(rows, set, seed)).collect();
        let of_map = |map: &'static str| {
            let seeds = open.iter().filter(|open| **open == map).count();
            (seeds > 0).then(|| format!("`{map}` ({seeds} of {SEEDS} seeds)"))
        };
        let maps: Vec<String> = MAPS.into_iter().filter_map(of_map).collect();
        if !maps.is_empty() {
            let _ = writeln!(text, "- Not measured on {set}: {}.", maps.join(", "));
        }
    }
    if text.is_empty() { "Every map is measured on every set with every seed.".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way { order: Policy::Random, distance: Distance::L2, has_handicap: false };

    /// Makes the rows of a map on all parts with these areas of top-1, one for each seed; mAP is half of it.
    fn rows_of(map: &str, top1: &[f64]) -> Vec<MapRow> {
        let of_seed = |(seed, &top1): (usize, &f64)| {
            let areas = [[top1, top1 / 2.0], [top1 + 1.0, top1]];
            let row = move |(set, part): (&str, &str)| MapRow {
                set: set.into(),
                seed: seed as u64,
                map: map.into(),
                kept: map.into(),
                part: part.into(),
                distance: WAY.distance,
                order: WAY.order,
                handicap: 0.1,
                areas,
            };
            places().map(row).collect::<Vec<_>>()
        };
        top1.iter().enumerate().flat_map(of_seed).collect()
    }

    #[test]
    fn means_within_the_larger_spread_are_level() {
        // Standard deviations are 1 and 0.
        let wide = [69.0, 70.0, 71.0];
        assert_eq!(compared(&wide, &[70.9; 3]), Some(Ordering::Equal));
        assert_eq!(compared(&[70.9; 3], &wide), Some(Ordering::Equal));
        assert_eq!(compared(&wide, &[71.1; 3]), Some(Ordering::Less));
        assert_eq!(compared(&[71.1; 3], &wide), Some(Ordering::Greater));
        assert_eq!(compared(&[70.04], &[70.0]), Some(Ordering::Equal));
        assert_eq!(compared(&wide, &[]), None);
    }

    #[test]
    fn a_seed_without_all_parts_is_in_no_mean_over_them() {
        let mut rows = rows_of("fct", &[60.0, 62.0]);
        assert_eq!(over_parts(&rows, "fct", WAY), [vec![60.0, 62.0], vec![30.0, 31.0]]);
        let with_handicap = Way { has_handicap: true, ..WAY };
        assert_eq!(over_parts(&rows, "fct", with_handicap), [vec![61.0, 63.0], vec![60.0, 62.0]]);
        rows.pop();
        assert_eq!(over_parts(&rows, "fct", WAY), [vec![60.0], vec![30.0]]);
        assert_eq!([0, 2].map(|seed| missing(&rows, SETS[0], seed).len()), [MAPS.len() - 1, MAPS.len()]);
    }

    #[test]
    fn maps_are_held_against_the_default_in_the_same_way() {
        let rows = [rows_of(DEFAULT, &[70.0; 3]), rows_of("fct", &[68.0; 3])].concat();
        assert_eq!(held(&rows, "fct", WAY, 1), ([10, 0, 0], vec![1.0; 10]));
        assert!(over_all(&rows).contains("| fct | random | 68.0 ± 0.0 − / 34.0 ± 0.0 − |"));
        assert_eq!(by_set(&rows, Distance::Cosine, "seen").lines().count(), 2);
        // Sentences are of the order `coverage` and of maps that are measured in all four ways.
        assert_eq!(says(&rows), "No set is measured yet.");
        let text = still_missing(&rows);
        assert_eq!(text.lines().count(), SETS.len());
        assert!(!text.contains("`fct`") && text.contains("`ridge` (3 of 3 seeds)"));
    }
}
