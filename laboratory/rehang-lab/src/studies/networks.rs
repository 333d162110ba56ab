//! `cargo lab study networks [FOLDER] [SET…]`: from how many pairs on a residual network serves better than
//! kernel ridge, if ever.
//!
//! Both are fitted on the first pairs of a random order and served to test parts that no fit has seen, with
//! their own handicaps in the default order. The sets are the two largest of texts, and one that
//! `laboratory/bench/made-set.py` makes: 1,536 → 3,072 coordinates, where both spaces are curved images of
//! one latent space, so that no linear map is right.

use std::fmt::Write as _;
use std::path::Path;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rehang_core::{Pairs, Progress, Result};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};
use serde::{Deserialize, Serialize};

use crate::studies::records;
use crate::studies::regret::{Ground, labelled, served};

const RECORD: &str = "laboratory/bench/runs/networks/networks.jsonl";
const PAGE: &str = "laboratory/bench/runs/networks/README.md";
const SETS: [&str; 3] = ["text_clinc150", "text_banking77", "made_1536_3072"];
/// Numbers of pairs; where a set has fewer, all of them in place of the first that it lacks.
const PAIRS: [usize; 3] = [2_000, 10_000, 40_000];
const METHODS: [Method; 2] = [Method::KernelRidge, Method::ResidualMlp];

/// One map on one test part.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    set: String,
    part: String,
    pairs: usize,
    method: String,
    start: f64,
    area: f64,
}

/// Measures what is missing of the sets and writes the table.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = Path::new(arguments.first().copied().unwrap_or(super::DATA));
    let sets = arguments.get(1..).filter(|sets| !sets.is_empty());
    let sets = sets.unwrap_or(&SETS);
    let mut rows: Vec<Row> = records::read(Path::new(RECORD))?;
    for &set in sets {
        let study = labelled(folder, set)?;
        measure(set, &study.pairs, &study.grounds, &mut rows)?;
    }
    let text = table(&rows);
    records::write(PAGE, &text)?;
    println!("{text}");
    Ok(())
}

fn measure(set: &str, all: &Pairs, grounds: &[Ground], rows: &mut Vec<Row>) -> Result<()> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(0));
    let mut counts: Vec<usize> = PAIRS.iter().map(|&count| count.min(all.len())).collect();
    counts.dedup();
    for count in counts {
        let pairs = all.select(&order[..count]);
        for method in METHODS {
            if rows.iter().any(|row| row.set == set && row.pairs == count && row.method == method.name()) {
                continue;
            }
            let parameters = FitParameters { method, compare: false, ..FitParameters::default() };
            let fitted =
                fit_adapter(&pairs, None, &parameters, &NetworkOptions::default(), &Progress::default())?;
            for ground in grounds {
                let (start, area) = served(&fitted.adapter, ground)?;
                eprintln!("{set}, {}, {count} pairs, {method}: {start:.2} {area:.2}", ground.name);
                rows.push(Row {
                    set: set.into(),
                    part: ground.name.clone(),
                    pairs: count,
                    method: method.name().into(),
                    start,
                    area,
                });
            }
            records::write(RECORD, &records::lines(rows)?)?;
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "# Kernel ridge against a residual network, by the number of pairs\n\nMade by `cargo lab study networks`. mAP by label in percent, at the switch and over the whole backfill (area).\n\n| set | part | pairs | kernel ridge: start | area | residual-mlp: start | area | network − ridge, area |\n|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for ridge in rows.iter().filter(|row| row.method == METHODS[0].name()) {
        let Some(network) = rows.iter().find(|row| {
            row.method == METHODS[1].name()
                && (&row.set, &row.part, row.pairs) == (&ridge.set, &ridge.part, ridge.pairs)
        }) else {
            continue;
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:+.2} |",
            ridge.set,
            ridge.part,
            ridge.pairs,
            ridge.start,
            ridge.area,
            network.start,
            network.area,
            network.area - ridge.area
        );
    }
    text
}
