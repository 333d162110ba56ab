//! One yardstick: every map in the same orders, without a handicap and with its own, by both distances.
//!
//! By L2 a published network's outputs stay as they are; by cosine they get native lengths, as the product's
//! maps do. A handicap is the one that `rehang fit` chooses on left-out pairs. Every (set, seed, map) is a
//! unit whose rows are appended to `laboratory/bench/runs/results/yardstick.jsonl` as soon as they are known;
//! a unit that is there already is not done again. A published network is fitted once, and once more a fold
//! for its handicap, for all orders, handicaps and distances. On the text sets, where a network takes minutes
//! a fit, there is one seed, and how far its areas may be off is taken from its queries.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::path::Path;

use rehang_core::adapter::{Adapter, Geometry, Uncertainty, apply};
use rehang_core::curve::{CurveInput, CurveOptions, MAP, Metric, Relevance, TOP1, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Distance, Error, Head, Matrix, Pairs, Progress, Result};
use rehang_fit::folds::folds;
use rehang_fit::geometry::{self, GeometryKind};
use rehang_fit::uncertainty_fit::cross_fit;
use rehang_fit::{FitParameters, ORDERS, choose_handicap};
use serde::{Deserialize, Serialize};

use super::cells::{Measured, markdown};
use super::units::{PARTS, Part, SEEDS, SETS, Set, fitted};
use crate::studies::records;

const RECORD: &str = "laboratory/bench/runs/results/yardstick.jsonl";
const MAPS: [&str; 8] = [
    DEFAULT,
    "kernel-ridge",
    "ridge",
    "procrustes",
    "do-nothing",
    "fct",
    "l2+disc",
    "fastfill-reference",
];
/// Map that the product chooses, which all others are held against.
pub const DEFAULT: &str = "auto";
/// Networks by the published losses, which know neither the distance of a search nor its geometry.
const PUBLISHED: [&str; 3] = ["fct", "l2+disc", "fastfill-reference"];
pub const DISTANCES: [Distance; 2] = [Distance::L2, Distance::Cosine];
/// Number of fits without a part of the pairs, which is that of `rehang fit` for a network.
const FOLDS: usize = 2;
/// Cell of a table where nothing is measured.
pub const NOTHING: &str = "–";

/// Areas of one map on one part, in one order and by one distance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MapRow {
    pub set: String,
    pub seed: u64,
    pub map: String,
    /// Method that was kept, for `auto`.
    pub kept: String,
    pub part: String,
    pub distance: Distance,
    pub order: Policy,
    /// Handicap that the map has of its own, in the unit of the distance.
    pub handicap: f64,
    /// Top-1 and mAP areas in percent, without a handicap and with it.
    pub areas: [[f64; 2]; 2],
    /// Standard errors of these areas over the queries; the first rows of a set with several seeds lack them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<[[f64; 2]; 2]>,
}

impl MapRow {
    /// Begins the rows of a map that was fitted with a seed.
    pub fn of_map(set: &str, seed: u64, map: &str, adapter: &Adapter, distance: Distance) -> Self {
        Self {
            set: set.into(),
            seed,
            map: map.into(),
            kept: adapter.training.method.clone(),
            part: String::new(),
            distance,
            order: Policy::Random,
            handicap: 0.0,
            areas: [[0.0; 2]; 2],
            errors: None,
        }
    }
}

/// Counts the seeds of a set.
pub fn seeds(set: &str) -> u64 {
    if set.starts_with("text_") { 1 } else { SEEDS }
}

/// Reads every row that is recorded under `root`.
pub fn read(root: &Path) -> Result<Vec<MapRow>> {
    records::read(&root.join(RECORD))
}

/// Measures what is missing of `sets`, and records it. All sets have their first seed before any has its
/// second, so that a study that is cut short has a row of each.
pub fn measure_missing(folder: &Path, sets: &[&str]) -> Result<()> {
    for seed in 0..SEEDS {
        for set in sets.iter().filter(|set| seed < seeds(set)) {
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
    let template = MapRow::of_map(set, seed, map, &by_l2, Distance::L2);
    let mut rows = Vec::new();
    for part in &data[0].parts {
        rows.extend(on_part(&template, part, &by_l2, head)?);
    }
    let again: Vec<MapRow> = match by_cosine {
        Some(adapter) => {
            let template = MapRow::of_map(set, seed, map, &adapter, Distance::Cosine);
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
    let first = fitted(by_l2, head, map, seed, None)?;
    if !PUBLISHED.contains(&map) {
        let is_alike = by_l2.new_vectors().space().normalised;
        let second = (!is_alike).then(|| fitted(by_cosine, head, map, seed, None)).transpose()?;
        return Ok((first, second));
    }
    let quiet = Progress::default();
    let fold = folds(by_l2.len(), FOLDS, seed);
    let left_out = cross_fit(by_l2, &fold, |part, _| Ok(fitted(part, head, map, seed, None)?.map), &quiet)?;
    let with_handicap = |pairs: &Pairs| -> Result<Adapter> {
        let adapter = published(&first, pairs);
        let parameters = FitParameters { seed, ..FitParameters::default() };
        let choice = choose_handicap(pairs, left_out.clone(), &adapter.geometry, &parameters, &quiet)?;
        Ok(Adapter { handicap: choice.map_or(0.0, |choice| choice.handicap()), ..adapter })
    };
    Ok((with_handicap(by_l2)?, Some(with_handicap(by_cosine)?)))
}

/// Makes a published network one for the spaces of pairs, without a handicap: by L2 its outputs stay as they
/// are, by cosine they get native lengths.
pub fn published(network: &Adapter, pairs: &Pairs) -> Adapter {
    let native = pairs.new_vectors();
    let geometry = if native.space().distance.heeds_lengths() {
        Geometry::Raw
    } else {
        geometry::fit(GeometryKind::options(native.space())[0], &Matrix::default(), native)
    };
    let (old, new) = (pairs.old().space().clone(), native.space().clone());
    Adapter { old, new, geometry, handicap: 0.0, ..network.clone() }
}

/// Measures an adapter on a part in every order, without a handicap and with its own.
pub fn on_part(template: &MapRow, part: &Part, adapter: &Adapter, head: &Head) -> Result<Vec<MapRow>> {
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
        // Areas of both metrics, and their standard errors over the queries.
        let area = |handicap: f64| -> Result<[[f64; 2]; 2]> {
            let input = CurveInput::new(native, vectors, &permutation, relevance, template.distance);
            let made = curve(&CurveInput { handicap, ..input }, &CurveOptions::default(), &quiet)?;
            let error = |metric: Metric| {
                let over_queries = mean_sd(&made.per_query.areas[metric]);
                over_queries.map_or(0.0, |several| several.sd / (several.count as f64).sqrt())
            };
            Ok([[TOP1, MAP].map(|metric| made.lines[metric].area()), [TOP1, MAP].map(error)])
        };
        let plain = area(0.0)?;
        let with_handicap = if adapter.handicap > 0.0 { area(adapter.handicap)? } else { plain };
        rows.push(MapRow {
            part: part.name.into(),
            order: policy,
            handicap: adapter.handicap,
            areas: [plain[0], with_handicap[0]],
            errors: Some([plain[1], with_handicap[1]]),
            ..template.clone()
        });
    }
    Ok(rows)
}

/// Way in which a map is searched.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub order: Policy,
    pub distance: Distance,
    pub has_handicap: bool,
}

/// Top-1 and mAP areas of a map.
pub type Both = [Measured; 2];

/// Lists the parts of all sets.
fn places() -> impl Iterator<Item = (&'static str, &'static str)> {
    SETS.into_iter().flat_map(|set| PARTS.map(|part| (set, part)))
}

/// Gives the areas of a map on one part of a set.
pub fn at(rows: &[MapRow], map: &str, way: Way, (set, part): (&str, &str)) -> Option<Both> {
    let is_here = |row: &&MapRow| {
        (row.map.as_str(), row.set.as_str(), row.part.as_str()) == (map, set, part)
            && (row.order, row.distance) == (way.order, way.distance)
    };
    both(&rows.iter().filter(is_here).collect::<Vec<_>>(), way.has_handicap)
}

/// Gives the areas of rows that differ in their seeds.
pub fn both(rows: &[&MapRow], has_handicap: bool) -> Option<Both> {
    let place = usize::from(has_handicap);
    let of = |metric: usize| {
        let areas: Vec<f64> = rows.iter().map(|row| row.areas[place][metric]).collect();
        let over_seeds = Measured::over_seeds(&areas)?;
        let of_queries = match rows {
            [row] => row.errors,
            _ => None,
        };
        Some(of_queries.map_or(over_seeds, |errors| Measured { spread: errors[place][metric], ..over_seeds }))
    };
    Some([of(0)?, of(1)?])
}

/// Gives the mean areas of a map over the parts of all sets, where it is measured on all of them. How far a
/// mean is off follows from how far each part is.
fn over_parts(rows: &[MapRow], map: &str, way: Way) -> Option<Both> {
    let parts: Vec<Both> = places().map(|place| at(rows, map, way, place)).collect::<Option<_>>()?;
    let count = parts.len() as f64;
    Some([0, 1].map(|metric| Measured {
        mean: parts.iter().map(|part| part[metric].mean).sum::<f64>() / count,
        spread: parts.iter().map(|part| part[metric].spread.powi(2)).sum::<f64>().sqrt() / count,
    }))
}

/// Writes top-1 and mAP of a map, each with a sign: above (+), level with (=) or below (−) the default.
pub fn cell(own: Option<Both>, of_default: Option<Both>) -> String {
    let Some(own) = own else { return NOTHING.into() };
    let written = |metric: usize| {
        let sign = match of_default.map(|other| own[metric].compared(other[metric])) {
            None => "",
            Some(Ordering::Greater) => " +",
            Some(Ordering::Equal) => " =",
            Some(Ordering::Less) => " −",
        };
        format!("{}{sign}", own[metric])
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
                    let of = |map: &str| over_parts(rows, map, Way { order, distance, has_handicap });
                    cell(of(map), (map != DEFAULT).then(|| of(DEFAULT)).flatten())
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
                    let of = |map: &str| at(rows, map, way, (set, part));
                    cell(of(map), (map != DEFAULT).then(|| of(DEFAULT)).flatten())
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
        let [default, other] = [DEFAULT, map].map(|map| at(rows, map, way, place));
        let Some((default, other)) = default.zip(other) else { continue };
        // Above is 1, level 0 and below −1.
        parts[(1 - default[metric].compared(other[metric]) as i8) as usize] += 1;
        gaps.push(default[metric].mean - other[metric].mean);
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
        means.push(over_parts(rows, map, step)?.map(|area| area.mean));
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
        let all = seeds(set);
        let open: Vec<&str> = (0..all).flat_map(|seed| missing(rows, set, seed)).collect();
        let of_map = |map: &'static str| {
            let count = open.iter().filter(|open| **open == map).count();
            (count > 0).then(|| format!("`{map}` ({count} of {all} seeds)"))
        };
        let maps: Vec<String> = MAPS.into_iter().filter_map(of_map).collect();
        if !maps.is_empty() {
            let _ = writeln!(text, "- Not measured on {set}: {}.", maps.join(", "));
        }
    }
    if text.is_empty() { "Every map is measured on every set with all its seeds.".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way { order: Policy::Random, distance: Distance::L2, has_handicap: false };

    /// Makes the rows of a map on all parts with these areas of top-1, one for each seed; mAP is half of it.
    fn rows_of(map: &str, top1: &[f64]) -> Vec<MapRow> {
        let of_seed = |(seed, &top1): (usize, &f64)| {
            let row = move |(set, part): (&str, &str)| MapRow {
                set: set.into(),
                seed: seed as u64,
                map: map.into(),
                kept: map.into(),
                part: part.into(),
                distance: WAY.distance,
                order: WAY.order,
                handicap: 0.1,
                areas: [[top1, top1 / 2.0], [top1 + 1.0, top1]],
                errors: Some([[0.4, 0.3], [0.2, 0.1]]),
            };
            places().map(row).collect::<Vec<_>>()
        };
        top1.iter().enumerate().flat_map(of_seed).collect()
    }

    #[test]
    fn the_spread_of_a_single_seed_is_that_of_its_queries() {
        let place = (SETS[0], PARTS[0]);
        let [top1, map] = at(&rows_of("fct", &[60.0]), "fct", WAY, place).unwrap();
        assert_eq!((top1.spread, map.spread), (0.4, 0.3));
        let [top1, _] = at(&rows_of("fct", &[60.0, 62.0, 64.0]), "fct", WAY, place).unwrap();
        assert_eq!(top1, Measured { mean: 62.0, spread: 2.0 });
        // Rows of before errors were kept.
        let mut earlier = rows_of("fct", &[60.0]);
        earlier.iter_mut().for_each(|row| row.errors = None);
        assert_eq!(at(&earlier, "fct", WAY, place).unwrap()[0].spread, 0.0);
    }

    #[test]
    fn a_map_without_all_parts_has_no_mean_over_them() {
        let mut rows = rows_of("fct", &[60.0]);
        let [top1, map] = over_parts(&rows, "fct", WAY).unwrap();
        assert_eq!((top1.mean, map.mean), (60.0, 30.0));
        // Ten parts, each 0.4 off.
        assert!((top1.spread - 0.4 / 10.0_f64.sqrt()).abs() < 1e-12);
        let with_handicap = Way { has_handicap: true, ..WAY };
        assert_eq!(over_parts(&rows, "fct", with_handicap).unwrap()[0].mean, 61.0);
        rows.pop();
        assert_eq!(over_parts(&rows, "fct", WAY), None);
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
        assert!(text.contains("`ridge` (1 of 1 seeds)"));
    }
}
