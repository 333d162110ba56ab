//! `cargo xtask drift [METHOD [FOLDER [SET…]]]`: what the errors of adapted vectors are of what σ² says, where a gallery is what the pairs were drawn from and where not.
//!
//! Pairs are drawn from the training part of a set, of all classes or of every second one. Natives that are kept for measuring are drawn from
//! the rest of the training part (the same gallery), from items of the same classes that came later, from the classes that were left out, and from
//! classes of the future. So the rule that says that a gallery has drifted is held against what it should say.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rehang::adapter::{self, true_errors};
use rehang::{Adapter, Progress, Result, Vectors};
use rehang_fit::Method;
use rehang_fit::refit::{MEASURED_MIN, SigmaScale};

use crate::papers::units::{SETS, Set};
use crate::refit::{fit, shuffled};

/// Pairs, and natives that are kept for measuring.
const SIZES: [(usize, usize); 3] = [(400, 200), (800, 200), (1600, 500)];
/// Draws of each.
const DRAWS: u64 = 10;

/// Prints what each kind of gallery gave, over all sets and draws.
pub fn run(arguments: &[&str]) -> Result<()> {
    let method: Method = arguments.first().copied().unwrap_or("ridge").parse()?;
    let folder = PathBuf::from(arguments.get(1).copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 2 { arguments[2..].to_vec() } else { SETS.to_vec() };
    let mut seen: BTreeMap<(usize, &str), Vec<SigmaScale>> = BTreeMap::new();
    for set in sets {
        let data = Set::read(&folder, set)?;
        let labels = data.pairs.labels().unwrap_or_default();
        for (count, kept) in SIZES {
            for draw in 0..DRAWS {
                eprintln!("{set} {count} pairs, draw {draw} …");
                let rows = shuffled(labels.len(), draw);
                for every in [1, 2] {
                    let is_in = |row: &&usize| labels[**row].rem_euclid(every) == 0;
                    let pairs: Vec<usize> = rows.iter().filter(is_in).copied().take(count).collect();
                    if pairs.len() < count {
                        continue;
                    }
                    let adapter = fit(&data.pairs.select(&pairs), method)?;
                    let mut measure = |kind, old: &Vectors, new: &Vectors, from: Vec<usize>| -> Result<()> {
                        let from: Vec<usize> = from.into_iter().take(kept).collect();
                        if from.len() >= MEASURED_MIN {
                            let scale = scale(&adapter, &old.select(&from), &new.select(&from))?;
                            seen.entry((count, kind)).or_default().push(scale);
                        }
                        Ok(())
                    };
                    let (old, new) = (data.pairs.old(), data.pairs.new_vectors());
                    let rest = |wanted: bool| {
                        let is_drawn = |row: &usize| pairs.contains(row);
                        rows.iter().filter(|row| is_in(row) == wanted && !is_drawn(row)).copied().collect()
                    };
                    if every == 2 {
                        measure("classes that were left out", old, new, rest(false))?;
                        continue;
                    }
                    measure("the same gallery", old, new, rest(true))?;
                    for part in &data.parts {
                        let kind = if part.name == "seen" { "later items" } else { "classes of the future" };
                        measure(kind, &part.old, &part.new, shuffled(part.labels.len(), draw))?;
                    }
                }
            }
        }
    }
    println!(
        "| pairs | natives are of | draws | error / σ²: 5 % | median | 95 % | 1 in the interval | off | drift |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for ((count, kind), scales) in seen {
        let mut ratios: Vec<f64> = scales.iter().map(|scale| scale.ratio).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share).round() as usize];
        let share = |is: &dyn Fn(&SigmaScale) -> bool| {
            100.0 * scales.iter().filter(|scale| is(scale)).count() as f64 / scales.len() as f64
        };
        println!(
            "| {count} | {kind} | {} | {:.2} | {:.2} | {:.2} | {:.0} % | {:.0} % | {:.0} % |",
            scales.len(),
            at(0.05),
            at(0.5),
            at(0.95),
            share(&|scale| scale.low <= 1.0 && scale.high >= 1.0),
            share(&SigmaScale::is_off),
            share(&SigmaScale::is_drift)
        );
    }
    Ok(())
}

fn scale(adapter: &Adapter, old: &Vectors, new: &Vectors) -> Result<SigmaScale> {
    let applied = adapter::apply(adapter, old, None, &Progress::default())?;
    let sigma: Vec<f64> = applied.variance.iter().map(|&value| f64::from(value)).collect();
    SigmaScale::of(&true_errors(new.matrix(), applied.vectors.matrix()), &sigma)
}
