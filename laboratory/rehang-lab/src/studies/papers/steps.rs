//! Steps: what FCT and FastFill gain where they learn for longer than the published 80 epochs. With batches
//! of 1,024 these are 80 to 720 steps on the sets here, and some 100,000 on ImageNet.
//!
//! Every (set, seed, map, multiple of the epochs) is a unit whose rows are appended to
//! `laboratory/bench/runs/results/steps.jsonl` as soon as they are known; a unit that is there already is not
//! done again. The published number of epochs stands in the record of [`yardstick`](super::yardstick).

use std::path::Path;

use rehang_core::{Head, Result};
use rehang_fit::ORDERS;
use serde::{Deserialize, Serialize};

use super::cells::markdown;
use super::units::{PARTS, SEEDS, Set, fitted};
use super::yardstick::{DEFAULT, DISTANCES, MapRow, NOTHING, Way, at, cell, on_part, published, seeds};
use crate::studies::records;

const RECORD: &str = "laboratory/bench/runs/results/steps.jsonl";
pub const SETS: [&str; 2] = ["img_omniglot", "text_banking77"];
const MAPS: [&str; 2] = ["fct", "fastfill-reference"];
/// Number of epochs of the published recipe.
const EPOCHS: usize = 80;
/// Number of pairs a step of the published recipe.
const BATCH: usize = 1024;
/// Multiples of the published epochs that are measured, the cheaper ones first.
const TIMES: [usize; 2] = [4, 16];

/// Areas of one map that learned for a multiple of the published epochs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepRow {
    times: usize,
    /// Number of steps of the training.
    steps: usize,
    #[serde(flatten)]
    row: MapRow,
}

/// Reads every row that is recorded under `root`.
pub fn read(root: &Path) -> Result<Vec<StepRow>> {
    records::read(&root.join(RECORD))
}

/// Measures what is missing of `sets`, and records it: all sets and seeds with the smaller multiple first.
pub fn measure_missing(folder: &Path, sets: &[&str]) -> Result<()> {
    for times in TIMES {
        for seed in 0..SEEDS {
            for set in sets.iter().filter(|set| seed < seeds(set)) {
                let rows = read(Path::new("."))?;
                let is_there = |map: &str| {
                    let is_it = |of: &MapRow| of.set == *set && of.seed == seed && of.map == map;
                    rows.iter().any(|row| row.times == times && is_it(&row.row))
                };
                let open: Vec<&str> = MAPS.into_iter().filter(|map| !is_there(map)).collect();
                if open.is_empty() {
                    continue;
                }
                let [l2, cosine] = DISTANCES.map(|distance| Set::read_for(folder, set, distance));
                let (data, head) = ([l2?, cosine?], Set::head(folder, set)?);
                for map in open {
                    eprintln!("{set} seed {seed} {map}, {} epochs …", times * EPOCHS);
                    match measure(set, &data, &head, map, seed, times) {
                        Ok(unit) => records::append(RECORD, &unit)?,
                        // A network that leaves the finite numbers must not cost a night of the others.
                        Err(error) => eprintln!("  {error}"),
                    }
                }
            }
        }
    }
    Ok(())
}

/// Measures one unit: trains a map and measures it on both parts by both distances.
fn measure(
    set: &str,
    data: &[Set; 2],
    head: &Head,
    map: &str,
    seed: u64,
    times: usize,
) -> Result<Vec<StepRow>> {
    let (pairs, epochs) = (&data[0].pairs, times * EPOCHS);
    let network = fitted(pairs, head, map, seed, Some(epochs))?;
    let steps = epochs * pairs.len().div_ceil(BATCH);
    let mut rows = Vec::new();
    for (data, distance) in data.iter().zip(DISTANCES) {
        let adapter = published(&network, &data.pairs);
        let template = MapRow::of_map(set, seed, map, &adapter, distance);
        for part in &data.parts {
            let of_part = on_part(&template, part, &adapter, head)?;
            rows.extend(of_part.into_iter().map(|row| StepRow { times, steps, row }));
        }
    }
    Ok(rows)
}

/// Makes the table of a map by epochs and order, without a handicap; each cell is held against the default,
/// searched in the same way.
pub fn table(rows: &[StepRow], yardstick: &[MapRow]) -> String {
    let mut columns = vec!["map".to_owned(), "order".into(), "epochs".into()];
    for set in SETS {
        columns.extend(PARTS.iter().flat_map(|part| DISTANCES.map(|by| format!("{set}, {part}, {by}"))));
    }
    let mut lines = Vec::new();
    for map in MAPS {
        for order in ORDERS.into_iter().rev() {
            for times in [1].into_iter().chain(TIMES) {
                let longer: Vec<MapRow> =
                    rows.iter().filter(|row| row.times == times).map(|row| row.row.clone()).collect();
                let learned = if times == 1 { yardstick } else { longer.as_slice() };
                let mut line = vec![map.to_owned(), order.name().to_owned(), (times * EPOCHS).to_string()];
                for set in SETS {
                    for part in PARTS {
                        line.extend(DISTANCES.map(|distance| {
                            let way = Way { order, distance, has_handicap: false };
                            let of = |rows: &[MapRow], map: &str| at(rows, map, way, (set, part));
                            cell(of(learned, map), of(yardstick, DEFAULT))
                        }));
                    }
                }
                lines.push(line);
            }
        }
    }
    lines.retain(|line| line[3..].iter().any(|cell| cell != NOTHING));
    markdown(&columns.iter().map(String::as_str).collect::<Vec<_>>(), &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written_and_stand_beside_those_of_80_epochs() {
        let text = r#"{"set":"img_omniglot","seed":0,"map":"fct","kept":"fct","part":"seen","distance":"l2","order":"random","handicap":0.0,"areas":[[60.0,50.0],[60.0,50.0]],"errors":[[1.0,0.5],[1.0,0.5]]}"#;
        let published: MapRow = serde_json::from_str(text).unwrap();
        let longer = MapRow { areas: [[66.0, 55.0]; 2], ..published.clone() };
        let row = StepRow { times: 4, steps: 960, row: longer };
        let line = serde_json::to_string(&row).unwrap();
        assert!(line.starts_with(r#"{"times":4,"steps":960,"set":"img_omniglot""#), "{line}");
        let again: StepRow = serde_json::from_str(&line).unwrap();
        let text = table(&[again], &[published]);
        assert!(text.contains("| fct | random | 80 | 60.0 ± 1.0 / 50.0 ± 0.5 | –"), "{text}");
        assert!(text.contains("| fct | random | 320 | 66.0 ± 1.0 / 55.0 ± 0.5 | –"), "{text}");
        assert_eq!(text.lines().count(), 4);
    }
}
