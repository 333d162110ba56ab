//! `cargo lab study orders [SPLITS [FOLDER [SET…]]]`: whether the order that held-out pairs choose for a
//! metric is right for galleries that they have not seen.
//!
//! Each split draws other pairs, and a half of each part as its gallery; the other half asks. *Even*: each
//! item asks once. *Zipf*: as many queries, those of a class by 1/rank, in a random ranking of the classes.
//! An adapter of all drawn pairs serves with its handicap. `rehang_fit::choose_order` sees the pairs alone.

use std::collections::BTreeMap;

use rehang_core::adapter::apply;
use rehang_core::curve::{CurveInput, CurveOptions, MAP, Metric, Relevance, TOP1, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Adapter, Error, Pairs, Progress, Result};
use rehang_fit::folds::folds;
use rehang_fit::{FitParameters, Method, ORDERS, choose_order};

use crate::studies::bridge::{cosine, draw_pairs};
use crate::studies::papers::units::SETS;
use crate::studies::refit::fit;
use crate::studies::regret::{Ground, labelled, parse_arguments};

const METHOD: Method = Method::KernelRidge;
const METRICS: [Metric; 2] = [MAP, TOP1];
const LOADS: [&str; 2] = ["even", "zipf"];
/// Student's t for 95 % of two to six splits; more splits have about 1.96.
const T: [f64; 5] = [12.706, 4.303, 3.182, 2.776, 2.571];

/// Areas of one part under one load, by split: the place in [`ORDERS`] of the order that was chosen for each
/// metric, and the areas of all orders by metric.
#[derive(Default)]
struct Row {
    chosen: Vec<[usize; 2]>,
    areas: Vec<[[f64; 3]; 2]>,
}

/// Prints which order was chosen and what it gains over each; fails where it is below another one in more
/// than one of twenty cases.
pub fn run(arguments: &[&str]) -> Result<()> {
    let (splits, folder, sets) = parse_arguments(arguments, 5, &SETS)?;
    let mut rows: BTreeMap<(String, &str), Row> = BTreeMap::new();
    let quiet = Progress::default();
    for set in sets {
        let study = labelled(&folder, set)?;
        for split in 0..splits {
            eprintln!("{set}, split {split} …");
            let pairs = draw_pairs(&study.pairs, true, None, split)?;
            let adapter = fit(&pairs, METHOD)?;
            let chosen = |metric: Metric| -> Result<usize> {
                let parameters =
                    FitParameters { method: METHOD, metric: Some(metric), ..FitParameters::default() };
                let choice = choose_order(&pairs, &parameters, &quiet)?;
                Ok(choice.map_or(0, |choice| choice.kept))
            };
            let chosen = [chosen(METRICS[0])?, chosen(METRICS[1])?];
            for ground in &study.grounds {
                for load in LOADS {
                    let row = rows.entry((format!("{set} {}", ground.name), load)).or_default();
                    row.chosen.push(chosen);
                    row.areas.push(measure(&adapter, ground, load, split)?);
                }
            }
        }
    }
    print(&rows)
}

/// Gives the rows of a part that ask: each once, or by 1/rank of their class, in turns.
fn asking(rows: &[usize], labels: &[i64], load: &str, seed: u64) -> Vec<usize> {
    let mut classes: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for &row in rows {
        classes.entry(labels[row]).or_default().push(row);
    }
    if load == LOADS[0] {
        return rows.to_vec();
    }
    let rank = folds(classes.len(), classes.len(), seed);
    let weight = |rank: usize| 1.0 / (rank + 1) as f64;
    let all: f64 = (0..classes.len()).map(weight).sum();
    let of_class = |(class, rank): (&Vec<usize>, &usize)| {
        let count = (rows.len() as f64 * weight(*rank) / all).round() as usize;
        class.iter().copied().cycle().take(count).collect::<Vec<_>>()
    };
    classes.values().zip(&rank).flat_map(of_class).collect()
}

/// Measures the areas of each of [`ORDERS`], by metric.
fn measure(adapter: &Adapter, ground: &Ground, load: &str, seed: u64) -> Result<[[f64; 3]; 2]> {
    let quiet = Progress::default();
    let half = folds(ground.labels.len(), 2, seed);
    let [gallery, others] =
        [0, 1].map(|of| (0..half.len()).filter(|&row| half[row] == of).collect::<Vec<usize>>());
    let asking = asking(&others, &ground.labels, load, seed);
    let label = |rows: &[usize]| rows.iter().map(|&row| ground.labels[row]).collect::<Vec<_>>();
    let pairs = Pairs::new(cosine(&ground.old)?, cosine(&ground.new)?, None, None)?.select(&gallery);
    let adapted = apply(adapter, pairs.old(), None, &quiet)?;
    let sigma: Vec<f64> = adapted.variance.iter().map(|&variance| f64::from(variance)).collect();
    let vectors = adapted.vectors.matrix();
    let queries = ground.new.matrix().select(&asking);
    let (labels, query_labels) = (label(&gallery), label(&asking));
    let mut areas = [[0.0; 3]; 2];
    for (place, policy) in ORDERS.into_iter().enumerate() {
        let input = OrderInput {
            items: gallery.len(),
            sigma: Some(&sigma),
            classified: adapter.uncertainty.head().map(|head| (head, vectors)),
            vectors: Some(vectors),
            seed,
            ..OrderInput::default()
        };
        let permutation = order(policy, &input)?.permutation;
        let relevance = Relevance::Labels { gallery: &labels, queries: Some(&query_labels) };
        let native = pairs.new_vectors();
        let input = CurveInput {
            queries: Some(&queries),
            handicap: adapter.handicap,
            ..CurveInput::new(native.matrix(), vectors, &permutation, relevance, native.space().distance)
        };
        let curve = curve(&input, &CurveOptions::default(), &quiet)?;
        for (of_metric, metric) in areas.iter_mut().zip(METRICS) {
            of_metric[place] = curve.lines[metric].area();
        }
    }
    Ok(areas)
}

/// Mean, and half of the 95 % interval.
fn interval(values: &[f64]) -> (f64, f64) {
    let Some(spread) = mean_sd(values) else { return (f64::NAN, f64::NAN) };
    let t = T.get(spread.count.saturating_sub(2)).copied().unwrap_or(1.96);
    (spread.mean, t * spread.sd / (spread.count as f64).sqrt())
}

fn print(rows: &BTreeMap<(String, &str), Row>) -> Result<()> {
    let names = ORDERS.map(Policy::name);
    println!("| part, load | metric | chosen | {} |", names.map(|name| format!("over {name}")).join(" | "));
    println!("|---|---|---|{}", "--:|".repeat(ORDERS.len()));
    let (mut all, mut below) = (BTreeMap::<(usize, &str, usize), Vec<f64>>::new(), [0; 3]);
    for ((part, load), row) in rows {
        for (at, metric) in METRICS.iter().enumerate() {
            let mut cells = Vec::new();
            for rival in 0..ORDERS.len() {
                let gains: Vec<f64> = row
                    .chosen
                    .iter()
                    .zip(&row.areas)
                    .map(|(chosen, areas)| areas[at][chosen[at]] - areas[at][rival])
                    .collect();
                let (mean, half) = interval(&gains);
                below[rival] += usize::from(mean < -half);
                cells.push(format!("{mean:+.2} ± {half:.2}"));
                all.entry((at, *load, rival)).or_default().extend(gains);
            }
            let mut chosen: Vec<&str> = row.chosen.iter().map(|chosen| names[chosen[at]]).collect();
            chosen.dedup();
            println!(
                "| {part}, {load} | {} | {} | {} |",
                metric.name(),
                chosen.join(", "),
                cells.join(" | ")
            );
        }
    }
    println!("\n| all, load | metric | {} |", names.map(|name| format!("over {name}")).join(" | "));
    println!("|---|---|{}", "--:|".repeat(ORDERS.len()));
    for load in LOADS {
        for (at, metric) in METRICS.iter().enumerate() {
            let cell = |rival: usize| {
                let (mean, half) = interval(&all[&(at, load, rival)]);
                format!("{mean:+.2} ± {half:.2}")
            };
            println!("| {load} | {} | {} |", metric.name(), [0, 1, 2].map(cell).join(" | "));
        }
    }
    let count = METRICS.len() * rows.len();
    let said: Vec<String> =
        names.iter().zip(below).map(|(name, below)| format!("{name} in {below}")).collect();
    println!("\nBeyond the interval of the splits the chosen order is below {} of {count}.", said.join(", "));
    // One in forty of these 95 % intervals is above 0 by chance.
    if below.iter().any(|&below| below * 20 > count) {
        return Err(Error::corrupt("a chosen order", format!("it is below another in {below:?} of {count}")));
    }
    Ok(())
}
