//! `cargo xtask learning [FOLDER] [SET…]`: what the learning curve promises of twice as many pairs, against what they brought.

use std::path::PathBuf;

use rehang::{Progress, Result};
use rehang_fit::folds::folds;
use rehang_fit::{LearningCurve, learning_curve};

use crate::papers::units::Set;

const SETS: [&str; 5] = ["toy_digits", "img_omniglot", "img_caltech101", "text_clinc150", "text_banking77"];
/// Samples, as `rehang upgrade pairs` draws them.
const SAMPLES: [usize; 5] = [250, 500, 1000, 2000, 4000];

/// Prints one line a set and sample.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = PathBuf::from(arguments.first().copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 1 { arguments[1..].to_vec() } else { SETS.to_vec() };
    println!("| set | pairs | agreement@10 at the switch | last doubling | promised of the next | brought |");
    println!("|---|---|---|---|---|---|");
    for set in sets {
        let pairs = Set::read(&folder, set)?.pairs;
        // As many folds as pairs are a random order of them.
        let place = folds(pairs.len(), pairs.len(), 0);
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by_key(|&item| place[item]);
        let mut promised: Option<(usize, LearningCurve)> = None;
        for sample in SAMPLES.into_iter().filter(|&sample| sample <= pairs.len()) {
            let drawn = pairs.select(&order[..sample]);
            let Some(curve) = learning_curve(&drawn, 0, &Progress::default())? else { continue };
            if let Some((pairs, before)) = promised {
                line(set, pairs, &before, Some(curve.gain));
            }
            promised = Some((sample, curve));
        }
        if let Some((pairs, last)) = promised {
            line(set, pairs, &last, None);
        }
    }
    Ok(())
}

fn line(set: &str, pairs: usize, curve: &LearningCurve, brought: Option<f64>) {
    let at = curve.points.last().map_or(f64::NAN, |point| point.1);
    let brought = brought.map_or("–".into(), |gain| format!("{gain:+.1}"));
    println!(
        "| {set} | {pairs} | {at:.1} | {:+.1} | {:.1} ± {:.1} | {brought} |",
        curve.gain, curve.next, curve.spread
    );
}
