//! `cargo lab study fuse [FOLDER] [SET…]`: what searches find at every stage of a live upgrade, in four ways
//! of serving.
//!
//! Doing nothing: the old query over old vectors. A bridge: both queries over old vectors, before the switch.
//! Mixed: the new query over native and adapted vectors. Fused: native vectors by the new query, all others
//! by both. Some of the gallery's own items are the queries, and each leaves itself out. All vectors are
//! compared by their cosine.

use std::path::PathBuf;
use std::sync::Arc;

use rehang_core::order::Policy;
use rehang_core::statistics::mean_sd;
use rehang_core::{Bridge, Distance, Error, Matrix, Pairs, Progress, Provenance, Result, Vectors};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter, fit_bridge};
use rehang_store::{
    Filter, Found, ItemWrite, Ledger, NewVector, Record, Scan, Select, VectorWrite, WriteOutcome,
};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Gallery, OrderSettings, Serving, Unobserved, UpgradeSetup, set_bridge, start, switch};
use serde_json::Value;

use crate::studies::papers::units::{Part, SETS, Set};

const STAGES: [f64; 9] = [0.0, 0.02, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0];
const DEPTH: usize = 10;
/// Number of items that ask, at most: evenly spaced ones.
const QUERIES: usize = 600;
const WAYS: [&str; 4] = ["do nothing", "bridge", "mixed", "fused"];
/// Ways of serving before the switch, of [`WAYS`].
const BEFORE: [&str; 2] = ["do nothing", "bridge"];

/// Quality of every query: top-1 and precision@10, in percent.
type Quality = Vec<[f64; 2]>;

/// Qualities of one gallery and adapter, by way of serving and stage.
struct Row {
    found: Vec<Vec<Quality>>,
}

/// Prints one table, top-1 / precision@10 in percent at each stage, and what it says in all.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = PathBuf::from(arguments.first().copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 1 { arguments[1..].to_vec() } else { SETS.to_vec() };
    let header: Vec<String> = STAGES.iter().map(|stage| format!("{} %", 100.0 * stage)).collect();
    println!("| gallery | adapter, weight | served | {} |", header.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(STAGES.len()));
    let mut rows = Vec::new();
    for set in sets {
        let (data, head) = (Set::read(&folder, set)?, Set::head(&folder, set)?);
        let labels = data.pairs.labels().map(<[i64]>::to_vec);
        let pairs = Pairs::new(cosine(data.pairs.old())?, cosine(data.pairs.new_vectors())?, labels, None)?;
        let bridge = fit_bridge(&pairs, &FitParameters::default(), &Progress::default())?.bridge;
        for method in [Method::Procrustes, Method::KernelRidge] {
            let parameters = FitParameters { method, compare: false, ..FitParameters::default() };
            let quiet = Progress::default();
            let fitted = fit_adapter(&pairs, Some(&head), &parameters, &NetworkOptions::default(), &quiet)?;
            for part in &data.parts {
                rows.push(stages(set, part, &fitted.adapter, bridge.as_ref())?);
            }
        }
    }
    summary(&rows);
    Ok(())
}

fn cosine(of: &Vectors) -> Result<Vectors> {
    Vectors::measured(&of.space().name, Distance::Cosine, of.matrix().clone(), "vectors")
}

fn stages(set: &str, part: &Part, adapter: &rehang_core::Adapter, bridge: Option<&Bridge>) -> Result<Row> {
    let (old, new) = (&adapter.old, &adapter.new);
    let order = OrderSettings { policy: Policy::Coverage, seed: 0 };
    let setup = UpgradeSetup { old, new, adapter: Some(adapter), order };
    let fusion = adapter.fusion.as_ref().ok_or_else(|| Error::missing("a fusion", "the study"))?;
    let mut row = Row { found: Vec::new() };
    for way in WAYS {
        let store = gallery(part, adapter)?;
        let mut native = 0;
        if way != "do nothing" {
            start(&store, &setup, &Unobserved)?;
        }
        let mut found = Vec::new();
        if BEFORE.contains(&way) {
            if let Some(bridge) = bridge.filter(|_| way == "bridge") {
                set_bridge(&store, old, new, Some(bridge))?;
            }
            // The old vectors stay as they are, so every stage is the same.
            found = vec![quality(&store, adapter, part)?; STAGES.len()];
        } else {
            let serving = if way == "fused" { Serving::Fused } else { Serving::Mixed };
            switch(&store, &setup, serving, &Unobserved)?;
            for stage in STAGES {
                let wanted = (stage * part.old.len() as f64).round() as usize;
                native += backfill(&store, &new.name, part, wanted - native)?;
                found.push(quality(&store, adapter, part)?);
            }
        }
        let line: Vec<String> = found
            .iter()
            .map(|of| {
                format!("{:.1} / {:.1}", mean(of.iter().map(|of| of[0])), mean(of.iter().map(|of| of[1])))
            })
            .collect();
        println!(
            "| {set} {} | {}, {} | {way} | {} |",
            part.name,
            adapter.training.method,
            fusion.weight,
            line.join(" | ")
        );
        row.found.push(found);
    }
    Ok(row)
}

/// Makes a gallery of the part's items with their old vectors.
fn gallery(part: &Part, adapter: &rehang_core::Adapter) -> Result<MemoryStore> {
    let store = MemoryStore::new();
    store.create_space(&adapter.old, Provenance::Old)?;
    let writes: Vec<ItemWrite> = (0..part.old.len())
        .map(|row| ItemWrite {
            id: row.to_string(),
            source: Some(row.to_string()),
            label: Some(part.labels[row].to_string()),
            payload: Value::Null,
            vectors: vec![NewVector::from_model(
                adapter.old.name.clone(),
                part.old.matrix().row(row).to_vec(),
                Provenance::Old,
            )],
        })
        .collect();
    store.put(&writes)?;
    Ok(store)
}

/// Makes the next items native, worst first: new vectors that the part knows are written as an encoder's
/// answers would be.
fn backfill(store: &MemoryStore, space: &str, part: &Part, items: usize) -> Result<usize> {
    if items == 0 {
        return Ok(0);
    }
    let records = store.scan(&Scan::new(space, Select::Queued, items))?;
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

/// Measures top-1 and precision@10 by label of every query, each item leaving itself out.
fn quality(store: &MemoryStore, adapter: &rehang_core::Adapter, part: &Part) -> Result<Quality> {
    let rows: Vec<usize> = (0..part.old.len()).step_by(part.old.len().div_ceil(QUERIES)).collect();
    let (old, new): (&Matrix, &Matrix) = (&part.old.matrix().select(&rows), &part.new.matrix().select(&rows));
    let gallery = Gallery::new(Arc::new(store.clone()));
    let queries = [(adapter.old.name.as_str(), old), (adapter.new.name.as_str(), new)];
    let found = gallery.search(&queries, DEPTH + 1, &Filter::default())?.found;
    let of_query = |(&row, hits): (&usize, &Vec<Found>)| {
        let right = right_hits(hits, row, &part.labels);
        let first = f64::from(u8::from(right.first() == Some(&true)));
        [100.0 * first, 10.0 * right.iter().take(DEPTH).filter(|right| **right).count() as f64]
    };
    Ok(rows.iter().zip(&found).map(of_query).collect())
}

/// Tells of each hit, nearest first, whether it has the label of the item that asks, which leaves itself out.
/// Items are called by their rows.
pub fn right_hits(hits: &[Found], row: usize, labels: &[i64]) -> Vec<bool> {
    let name = row.to_string();
    let is_right = |hit: &Found| hit.id.parse::<usize>().is_ok_and(|item| labels[item] == labels[row]);
    hits.iter().filter(|hit| hit.id != name).map(is_right).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    mean_sd(&values.collect::<Vec<_>>()).map_or(f64::NAN, |spread| spread.mean)
}

/// Prints differences of fused searches from each other way: their mean over galleries and adapters, and
/// where they are beyond their own interval.
fn summary(rows: &[Row]) {
    let (last, end) = (WAYS.len() - 1, STAGES.len() - 1);
    println!("\n| fused against | metric | {} | better beyond its interval | worse | worst |", {
        let header: Vec<String> = STAGES[..end].iter().map(|stage| format!("{} %", 100.0 * stage)).collect();
        header.join(" | ")
    });
    println!("|---|---|{}", "--:|".repeat(end + 3));
    for (way, name) in WAYS[..last].iter().enumerate() {
        for (metric, metric_name) in ["top-1", "precision@10"].into_iter().enumerate() {
            let (mut line, mut better, mut worse, mut worst) = (Vec::new(), 0, 0, f64::INFINITY);
            for stage in 0..end {
                let mut gains = Vec::new();
                for row in rows {
                    let both = row.found[last][stage].iter().zip(&row.found[way][stage]);
                    let apart: Vec<f64> = both.map(|(a, b)| a[metric] - b[metric]).collect();
                    let Some(spread) = mean_sd(&apart) else { continue };
                    let half = 1.96 * spread.sd / (spread.count as f64).sqrt();
                    better += usize::from(spread.mean > half);
                    worse += usize::from(spread.mean < -half);
                    worst = worst.min(spread.mean);
                    gains.push(spread.mean);
                }
                line.push(format!("{:+.1}", mean(gains.into_iter())));
            }
            let cells = rows.len() * end;
            println!(
                "| {name} | {metric_name} | {} | {better} of {cells} | {worse} | {worst:+.1} |",
                line.join(" | ")
            );
        }
    }
}
