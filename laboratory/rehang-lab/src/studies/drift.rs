//! `cargo lab study drift [METHOD [FOLDER [SET…]]]`: errors of adapted vectors against σ² and against
//! held-out pairs, in galleries that the pairs were drawn from and in others.
//!
//! Pairs are drawn from the training part of a set, of all classes or of every second one. Natives that are
//! kept for measuring are drawn from the rest of the training part (the same gallery), from items of the same
//! classes that came later, from the classes that were left out, and from classes of the future. So the rule
//! that says that a gallery has drifted is held against what it should say. Beside it stands what can be said
//! before anything is embedded: by σ², and by the distance to the nearest pair.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rehang_core::adapter::{self, true_errors};
use rehang_core::order::distances_to_nearest;
use rehang_core::{Adapter, Error, Progress, Result, Vectors};
use rehang_fit::Method;
use rehang_fit::refit::{MeanError, SigmaScale};

use crate::studies::papers::units::{SETS, Set};
use crate::studies::refit::{fit, shuffled};

/// Numbers of pairs, a fifth of which is held out, and of natives that are kept for measuring.
const SIZES: [(usize, usize); 3] = [(500, 200), (1000, 200), (2000, 500)];
/// Number of old vectors that are looked at, at most, where nothing is embedded.
const LOOKED_AT: usize = 2000;
/// Number of draws of each size.
const DRAWS: u64 = 10;

/// Prints what each kind of gallery gave, over all sets and draws.
pub fn run(arguments: &[&str]) -> Result<()> {
    let method: Method = arguments.first().copied().unwrap_or("ridge").parse()?;
    let folder = PathBuf::from(arguments.get(1).copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 2 { arguments[2..].to_vec() } else { SETS.to_vec() };
    let mut seen: BTreeMap<(usize, &str), Vec<Drawn>> = BTreeMap::new();
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
                    let (held_out, fitted) = pairs.split_at(count / 5);
                    let adapter = fit(&data.pairs.select(fitted), method)?;
                    let (old, new) = (data.pairs.old(), data.pairs.new_vectors());
                    let expected = measured(&adapter, &old.select(held_out), &new.select(held_out))?;
                    let Some((expected, _)) = expected else { continue };
                    let of_fitted = old.select(fitted);
                    let of_pairs = means_without_new(&adapter, &of_fitted, &old.select(held_out))?;
                    let mut measure = |kind, old: &Vectors, new: &Vectors, from: Vec<usize>| -> Result<()> {
                        let many: Vec<usize> = from.iter().copied().take(LOOKED_AT).collect();
                        let of_gallery = means_without_new(&adapter, &of_fitted, &old.select(&many))?;
                        let from: Vec<usize> = from.into_iter().take(kept).collect();
                        if let Some((error, scale)) =
                            measured(&adapter, &old.select(&from), &new.select(&from))?
                        {
                            seen.entry((count, kind)).or_default().push(Drawn {
                                expected,
                                error,
                                scale,
                                of_pairs,
                                of_gallery,
                            });
                        }
                        Ok(())
                    };
                    let rest = |wanted: bool| {
                        let is_drawn = |row: &usize| pairs.contains(row);
                        rows.iter().filter(|row| is_in(row) == wanted && !is_drawn(row)).copied().collect()
                    };
                    if every == 2 {
                        measure("classes that were left out", old, new, rest(false))?;
                        // The first ones of classes that have pairs are pairs.
                        let all = rows.iter().rev().filter(|row| !pairs.contains(row)).copied().collect();
                        measure("half of it classes that were left out", old, new, all)?;
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
        "| pairs | natives are of | draws | error / expected: 5 % | median | 95 % | said to have drifted | error / σ²: 5 % | median | 95 % | 1 in its interval | said to be off |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for ((count, kind), draws) in &seen {
        let quantiles = |of: &dyn Fn(&Drawn) -> f64| quantiles(draws, of);
        let percent_of_draws = |is: &dyn Fn(&Drawn) -> bool| percent_of_draws(draws, is);
        println!(
            "| {count} | {kind} | {} | {} | {:.0} % | {} | {:.0} % | {:.0} % |",
            draws.len(),
            quantiles(&|draw| draw.error.times(&draw.expected)),
            percent_of_draws(&|draw| draw.error.has_drifted_from(&draw.expected)),
            quantiles(&|draw| draw.scale.ratio),
            percent_of_draws(&|draw| draw.scale.low <= 1.0 && draw.scale.high >= 1.0),
            percent_of_draws(&|draw| draw.scale.is_off())
        );
    }
    let heading =
        |what: &str| format!("{what} / of held-out pairs: 5 % | median | 95 % | said to have drifted");
    println!(
        "\n| pairs | the gallery is of | draws | {} | {} |",
        heading("σ²"),
        heading("distance to the nearest pair")
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for ((count, kind), draws) in &seen {
        let by = |which: usize| {
            let times = |draw: &Drawn| draw.of_gallery[which].times(&draw.of_pairs[which]);
            let is_said = |draw: &Drawn| draw.of_gallery[which].has_outgrown(&draw.of_pairs[which], 1.0);
            format!("{} | {:.0} %", quantiles(draws, &times), percent_of_draws(draws, &is_said))
        };
        println!("| {count} | {kind} | {} | {} | {} |", draws.len(), by(0), by(1));
    }
    Ok(())
}

/// Gives the 5 %, the median and the 95 % of a number over the draws.
fn quantiles(draws: &[Drawn], of: &dyn Fn(&Drawn) -> f64) -> String {
    let mut values: Vec<f64> = draws.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    format!("{:.2} | {:.2} | {:.2}", at(0.05), at(0.5), at(0.95))
}

/// Share of draws of which a statement is true, in percent.
fn percent_of_draws(draws: &[Drawn], is: &dyn Fn(&Drawn) -> bool) -> f64 {
    100.0 * draws.iter().filter(|draw| is(draw)).count() as f64 / draws.len() as f64
}

/// Computes means over items that the map was not fitted on, of what is known without a new vector: σ², and
/// the distance to the nearest pair that the map was fitted on.
fn means_without_new(adapter: &Adapter, fitted: &Vectors, items: &Vectors) -> Result<[MeanError; 2]> {
    let applied = adapter::apply(adapter, items, None, &Progress::default())?;
    let sigma: Vec<f64> = applied.variance.iter().map(|&value| f64::from(value)).collect();
    let unit = |of: &Vectors| {
        let mut unit = of.matrix().clone();
        unit.normalise_rows();
        unit
    };
    let apart = distances_to_nearest(&unit(items), &unit(fitted));
    let few = || Error::missing("30 items", "a mean of them");
    Ok([MeanError::from_errors(&sigma).ok_or_else(few)?, MeanError::from_errors(&apart).ok_or_else(few)?])
}

/// Numbers of one draw of pairs and natives.
struct Drawn {
    /// Mean error of held-out pairs.
    expected: MeanError,
    /// Mean error of natives.
    error: MeanError,
    scale: SigmaScale,
    /// Means of held-out pairs, by [`means_without_new`].
    of_pairs: [MeanError; 2],
    /// Means of items that are no pairs, by [`means_without_new`].
    of_gallery: [MeanError; 2],
}

/// Measures the mean error of a map's adapted vectors, and the scale of σ²; `None` of too few items.
fn measured(adapter: &Adapter, old: &Vectors, new: &Vectors) -> Result<Option<(MeanError, SigmaScale)>> {
    let applied = adapter::apply(adapter, old, None, &Progress::default())?;
    let sigma: Vec<f64> = applied.variance.iter().map(|&value| f64::from(value)).collect();
    let errors = true_errors(new.matrix(), applied.vectors.matrix());
    let scale = SigmaScale::from_errors(&errors, &sigma)?;
    Ok(MeanError::from_errors(&errors).map(|error| (error, scale)))
}
