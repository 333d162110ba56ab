//! `cargo xtask merge [FOLDER] [SET…]`: what searches find at every stage of a live upgrade, in three ways of serving.
//!
//! Mixed: the new query over native and adapted vectors. Merged: native vectors by the new query, all others by the old
//! query. Doing nothing: the old query over old vectors. The gallery's own items are the queries, each leaves itself out.

use std::sync::Arc;

use std::path::PathBuf;

use rehang::order::Policy;
use rehang::{Matrix, Progress, Provenance, Result};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};
use rehang_store::{Filter, ItemWrite, Ledger, NewVector, Record, Scan, Select, VectorWrite, WriteOutcome};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Gallery, OrderSettings, Serving, Unobserved, UpgradeSetup, start, switch};
use serde_json::Value;

use crate::papers::units::{Part, Set};

const SETS: [&str; 4] = ["img_omniglot", "img_caltech101", "text_clinc150", "text_banking77"];
const STAGES: [f64; 9] = [0.0, 0.02, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0];
const DEPTH: usize = 10;

/// Prints one table: top-1 / precision@10 in percent at each stage.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = PathBuf::from(arguments.first().copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 1 { arguments[1..].to_vec() } else { SETS.to_vec() };
    let header: Vec<String> = STAGES.iter().map(|stage| format!("{} %", 100.0 * stage)).collect();
    println!("| gallery | part | adapter | served | {} |", header.join(" | "));
    println!("|---|---|---|---|{}", "---|".repeat(STAGES.len()));
    for set in sets {
        let (data, head) = (Set::read(&folder, set)?, Set::head(&folder, set)?);
        for method in [Method::Procrustes, Method::KernelRidge] {
            let parameters = FitParameters { method, compare: false, ..FitParameters::default() };
            let fitted = fit_adapter(
                &data.pairs,
                Some(&head),
                &parameters,
                &NetworkOptions::default(),
                &Progress::default(),
            )?;
            for part in &data.parts {
                stages(set, part, &fitted.adapter)?;
            }
        }
    }
    Ok(())
}

fn stages(set: &str, part: &Part, adapter: &rehang::Adapter) -> Result<()> {
    let row = |name: &str, line: &[String]| {
        println!("| {set} | {} | {} | {name} | {} |", part.name, adapter.training.method, line.join(" | "));
    };
    let store = gallery(part, adapter)?;
    row("do nothing", &vec![percent(quality(&store, adapter, part, None)?); STAGES.len()]);
    let (old, new) = (&adapter.old, &adapter.new);
    let order = OrderSettings { policy: Policy::Coverage, seed: 0 };
    let setup = UpgradeSetup { old, new, adapter, order };
    // Each in a gallery of its own: merged searches have their sample re-embedded first.
    for (name, serving) in [("merged", Serving::Merged), ("mixed", Serving::Mixed)] {
        let store = gallery(part, adapter)?;
        start(&store, &setup, &Unobserved)?;
        switch(&store, &setup, serving, &Unobserved)?;
        let mut native = 0;
        let mut line = Vec::new();
        for stage in STAGES {
            let wanted = (stage * part.old.len() as f64).round() as usize;
            native += backfill(&store, &new.name, part, wanted - native)?;
            line.push(percent(quality(&store, adapter, part, Some(serving))?));
        }
        row(name, &line);
    }
    Ok(())
}

/// A gallery of the part's items with their old vectors.
fn gallery(part: &Part, adapter: &rehang::Adapter) -> Result<MemoryStore> {
    let store = MemoryStore::new();
    store.create_space(&adapter.old, Provenance::Old)?;
    let writes: Vec<ItemWrite> = (0..part.old.len())
        .map(|row| ItemWrite {
            id: row.to_string(),
            source: Some(row.to_string()),
            label: Some(part.labels[row].to_string()),
            payload: Value::Null,
            vectors: vec![NewVector::of_model(
                adapter.old.name.clone(),
                part.old.matrix().row(row).to_vec(),
                Provenance::Old,
            )],
        })
        .collect();
    store.put(&writes)?;
    Ok(store)
}

/// Makes the next items native, worst first: what the table knows is written as an encoder's answer would be.
fn backfill(store: &MemoryStore, space: &str, part: &Part, items: usize) -> Result<usize> {
    if items == 0 {
        return Ok(0);
    }
    let records = store.scan(&Scan::new(space, Select::WorstFirst, items))?;
    let writes: Vec<VectorWrite> = records
        .iter()
        .map(|Record { item, .. }| {
            let row = item.id.parse().unwrap_or_default();
            VectorWrite::native(item, part.new.matrix().row(row).to_vec())
        })
        .collect();
    let outcomes = store.write_vectors(space, None, &writes)?;
    Ok(outcomes.iter().filter(|outcome| **outcome == WriteOutcome::Written).count())
}

/// Top-1 and precision@10 by label, each item leaving itself out.
fn quality(
    store: &MemoryStore,
    adapter: &rehang::Adapter,
    part: &Part,
    serving: Option<Serving>,
) -> Result<(f64, f64)> {
    let gallery = Gallery::new(Arc::new(store.clone()), Some(Arc::new(adapter.clone())));
    if serving == Some(Serving::Merged) {
        gallery.calibrate()?;
    }
    let new: &Matrix = part.new.matrix();
    let queries = [(adapter.old.name.as_str(), part.old.matrix()), (adapter.new.name.as_str(), new)];
    let found = gallery.search(&queries, DEPTH + 1, &Filter::default())?.found;
    let (mut top, mut precision) = (0.0, 0.0);
    for (row, hits) in found.iter().enumerate() {
        let own = row.to_string();
        let right: Vec<bool> = hits
            .iter()
            .filter(|hit| hit.id != own)
            .take(DEPTH)
            .map(|hit| hit.id.parse::<usize>().is_ok_and(|item| part.labels[item] == part.labels[row]))
            .collect();
        top += f64::from(u8::from(right.first() == Some(&true)));
        precision += right.iter().filter(|right| **right).count() as f64 / DEPTH as f64;
    }
    let count = found.len() as f64;
    Ok((100.0 * top / count, 100.0 * precision / count))
}

fn percent((top, precision): (f64, f64)) -> String {
    format!("{top:.1} / {precision:.1}")
}
