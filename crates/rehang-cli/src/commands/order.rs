//! `rehang order`.

use rehang::{Error, Result};
use rehang_evaluate::{OrderFiles, order};
use rehang_files::VectorSource;
use rehang_files::thresholds::{SigmaSource, ThresholdFiles, find_thresholds};

use super::{Outcome, say_findings};
use crate::arguments::Order;
use crate::places;

/// Orders a gallery and writes the permutation.
pub fn run(arguments: &Order, json: bool) -> Result<Outcome> {
    if !arguments.first.is_empty() {
        return cuts(arguments, json);
    }
    let ordered = order(&OrderFiles {
        policy: arguments.policy.parse()?,
        sigma: arguments.sigma.clone(),
        adapted: arguments.adapted.clone(),
        new: arguments.new.clone(),
        join: arguments.ids.files(),
        adapter: arguments.adapter.clone().map(Into::into),
        head: arguments.head.files()?,
        seed: arguments.seed,
        output: Some(arguments.output.clone()),
    })?;
    say_findings(&ordered.findings);
    let (policy, items, path) = (&ordered.policy, ordered.items, arguments.output.display());
    Outcome::Done.print(json, &ordered, &format!("Order {policy} of {items} items written to {path}\n"))
}

/// Finds where the first items of the order by σ² end.
fn cuts(arguments: &Order, json: bool) -> Result<Outcome> {
    if arguments.policy != "sigma" {
        let expected =
            "sigma, the order that can be cut without sorting; leave out `first` for an order of all items";
        return Err(Error::option("policy", &arguments.policy, expected));
    }
    let first = arguments.first.iter().map(|first| first.parse()).collect::<Result<_>>()?;
    let sigma = |source: &VectorSource| {
        Ok(match places::folder_there(&source.path)? {
            Some(folder) => SigmaSource::Folder(folder, source.column.clone()),
            None => SigmaSource::File(places::here(std::slice::from_ref(source))?.remove(0)),
        })
    };
    let sigma = arguments.sigma.iter().map(sigma).collect::<Result<_>>()?;
    let files = ThresholdFiles { sigma, first, output: arguments.output.clone() };
    let paths = arguments.sigma.iter().map(|source| source.path.as_path());
    let made = places::with_bar(paths, |progress| find_thresholds(&files, progress))?;
    let mut text = format!("Cuts of {} items written to {}\n", made.items, arguments.output.display());
    for cut in &made.cuts {
        let (first, items, threshold) = (&cut.first, cut.items, cut.threshold);
        text += &format!("{first}: {items} items: the {} with σ² above {threshold}", cut.above);
        text += &format!(", and {} of the {} at it\n", cut.ties_taken, cut.ties);
    }
    Outcome::Done.print(json, &made, &text)
}
