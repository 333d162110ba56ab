//! `cargo lab study learning [FOLDER] [SET…]`: what the learning curve promises of twice as many pairs,
//! against what they brought.

use std::path::{Path, PathBuf};

use rehang_core::statistics::mean_sd;
use rehang_core::{Distance, Pairs, Progress, Result, Vectors};
use rehang_files::VectorSource;
use rehang_fit::folds::folds;
use rehang_fit::{LearningCurve, learning_curve};

use crate::studies::papers::units::Set;
use crate::studies::regret::JUDGED;

const SETS: [&str; 6] =
    ["toy_digits", "img_omniglot", "img_caltech101", "text_clinc150", "text_banking77", JUDGED];
/// Sizes of samples, as `rehang upgrade pairs` draws them.
const SAMPLES: [usize; 5] = [250, 500, 1000, 2000, 4000];

/// Prints one line a set and sample, and what all steps were promised and brought.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = PathBuf::from(arguments.first().copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 1 { arguments[1..].to_vec() } else { SETS.to_vec() };
    println!("| set | pairs | agreement@10 at the switch | last doubling | promised of the next | brought |");
    println!("|---|---|---|---|---|---|");
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for set in sets {
        let pairs = if set == JUDGED { documents(&folder)? } else { Set::read(&folder, set)?.pairs };
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
                steps.push((before.next, curve.gain));
            }
            promised = Some((sample, curve));
        }
        if let Some((pairs, last)) = promised {
            line(set, pairs, &last, None);
        }
    }
    let mean = |of: fn(&(f64, f64)) -> f64| {
        mean_sd(&steps.iter().map(of).collect::<Vec<_>>()).map_or(f64::NAN, |steps| steps.mean)
    };
    println!(
        "\n{} steps: promised {:.1} a step, brought {:.1}, {:.1} apart",
        steps.len(),
        mean(|step| step.0),
        mean(|step| step.1),
        mean(|step| (step.0 - step.1).abs())
    );
    Ok(())
}

/// Reads the documents of the set with judged queries, as pairs without labels.
fn documents(folder: &Path) -> Result<Pairs> {
    let vectors = |model: &str| {
        let source = VectorSource::path(folder.join(JUDGED).join(format!("docs_{model}.npy")));
        Vectors::measured(model, Distance::L2, rehang_files::read_matrix(&source)?, model)
    };
    Pairs::new(vectors("old")?, vectors("new")?, None, None)
}

fn line(set: &str, pairs: usize, curve: &LearningCurve, brought: Option<f64>) {
    let at = curve.points.last().map_or(f64::NAN, |point| point.1);
    let brought = brought.map_or("–".into(), |gain| format!("{gain:+.1}"));
    println!(
        "| {set} | {pairs} | {at:.1} | {:+.1} | {:.1} ± {:.1} | {brought} |",
        curve.gain, curve.next, curve.spread
    );
}
