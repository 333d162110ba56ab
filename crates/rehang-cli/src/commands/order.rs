//! `rehang order`.

use rehang_core::{Error, Result};
use rehang_evaluate::{OrderFiles, order};
use rehang_files::VectorSource;
use rehang_files::thresholds::{SigmaSource, ThresholdFiles, find_thresholds};

use super::{Exit, say_findings};
use crate::addresses;
use crate::arguments::library::options;
use crate::arguments::vectors::OrderArguments;

/// Orders a gallery and writes the permutation.
pub fn run(arguments: &OrderArguments, json: bool) -> Result<Exit> {
    if !arguments.first.is_empty() {
        return cuts(arguments, json);
    }
    let ordered = order(&options!(
        OrderFiles { sigma, adapted, new, join, adapter, head, seed } from arguments,
        policy: arguments.policy.parse()?,
        output: Some(arguments.output.clone())
    ))?;
    say_findings(&ordered.findings);
    let (policy, items, path) = (&ordered.policy, ordered.items, arguments.output.display());
    Exit::Done.print(json, &ordered, &format!("Order {policy} of {items} items written to {path}\n"))
}

/// Finds where the first items of the order by σ² end.
fn cuts(arguments: &OrderArguments, json: bool) -> Result<Exit> {
    if arguments.policy != "sigma" {
        let expected =
            "sigma, the order that can be cut without sorting; leave out `first` for an order of all items";
        return Err(Error::option("policy", &arguments.policy, expected));
    }
    let paths = arguments.sigma.iter().map(|source| source.path.as_path());
    let thresholds = addresses::with_bar(paths, |progress| {
        let sigma = |source: &VectorSource| {
            if let Some(folder) = addresses::folder_there(&source.path)? {
                return Ok(SigmaSource::Folder(folder, source.column.clone()));
            }
            Ok(SigmaSource::File(addresses::fetched(std::slice::from_ref(source), progress)?.remove(0)))
        };
        let sigma = arguments.sigma.iter().map(sigma).collect::<Result<_>>()?;
        find_thresholds(&options!(ThresholdFiles { first, output } from arguments, sigma: sigma), progress)
    })?;
    let mut text = format!("Cuts of {} items written to {}\n", thresholds.items, arguments.output.display());
    for cut in &thresholds.cuts {
        let (first, items, threshold) = (&cut.first, cut.items, cut.threshold);
        text += &format!("{first}: {items} items: the {} with σ² above {threshold}", cut.above);
        text += &format!(", and {} of the {} at it\n", cut.ties_taken, cut.ties);
    }
    Exit::Done.print(json, &thresholds, &text)
}
