//! `rehang order`.

use rehang::Result;
use rehang_evaluate::{OrderFiles, order};

use super::{Outcome, say_findings};
use crate::arguments::Order;

/// Orders a gallery and writes the permutation.
pub fn run(arguments: &Order, json: bool) -> Result<Outcome> {
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
