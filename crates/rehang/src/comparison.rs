//! The data of a comparison: every method of upgrading side by side, over seeds, parts of the data and orders.
//!
//! Everything is measured with the new model's queries, each leaving itself out, by cosine, and given in percent. What is
//! done is `rehang-train`'s work, how it looks `rehang-report`'s.

use serde::{Deserialize, Serialize};

use crate::gains::{criterion_met, gain_down, gain_up, update_gain};
use crate::statistics::{MeanSd, mean_sd};

/// Top-1 and mAP in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// CMC top-1.
    pub top1: f64,
    /// Mean average precision.
    pub map: f64,
}

/// One backfill of one method on one part with one seed, in one order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderOutcome {
    /// The order's name.
    pub order: String,
    /// Mean over all fractions, M̃.
    pub area: Quality,
    /// Lowest point of each.
    pub min: Quality,
    /// NFR@1 against the gallery at the start of the backfill: its mean over all fractions.
    pub negative_flips: f64,
    /// NFR@1 at its worst fraction.
    pub negative_flips_max: f64,
    /// Top-1 at 101 fractions, 0 % to 100 %, to three decimals.
    pub top1: Vec<f64>,
    /// mAP at the same fractions.
    pub map: Vec<f64>,
    /// NFR@1 at the same fractions.
    pub negative_flip_rate: Vec<f64>,
}

/// One method on one part with one seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MethodOutcome {
    /// The method's name, such as `bct`, `dmu + ψ` or `fastfill`.
    pub method: String,
    /// The seed.
    pub seed: u64,
    /// The part of the data, such as `test` or `unseen`.
    pub part: String,
    /// M(old, old): doing nothing.
    pub old_old: Quality,
    /// M(new, old): new queries in the gallery as it stands at the switch, adapted where the method adapts it.
    pub new_old: Quality,
    /// M(new, new): after the whole backfill.
    pub new_new: Quality,
    /// M(new*, new*): the new model trained with no regard to the old one.
    pub best_best: Quality,
    /// The backfill in every order.
    pub backfills: Vec<OrderOutcome>,
}

/// A whole comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What was compared, in a line.
    pub title: String,
    /// How, one sentence each: data, encoders, epochs.
    pub setting: Vec<String>,
    /// The version of rehang.
    pub version: String,
    /// Every outcome.
    pub outcomes: Vec<MethodOutcome>,
    /// What a reader has to know, one sentence each.
    pub warnings: Vec<String>,
}

/// One metric of a [`MethodOutcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// CMC top-1.
    Top1,
    /// Mean average precision.
    Map,
}

impl Quality {
    /// One of its numbers.
    pub fn of(self, measure: Measure) -> f64 {
        match measure {
            Measure::Top1 => self.top1,
            Measure::Map => self.map,
        }
    }
}

impl MethodOutcome {
    /// The backfill in an order.
    pub fn backfill(&self, order: &str) -> Option<&OrderOutcome> {
        self.backfills.iter().find(|backfill| backfill.order == order)
    }

    /// BCT's empirical criterion (2): M(new, old) > M(old, old).
    pub fn criterion_met(&self, measure: Measure) -> bool {
        criterion_met(self.new_old.of(measure), self.old_old.of(measure))
    }

    /// BCT's update gain Γ (9) in percent; `None` where the criterion fails.
    pub fn update_gain(&self, measure: Measure) -> Option<f64> {
        update_gain(self.new_old.of(measure), self.old_old.of(measure), self.best_best.of(measure))
    }

    /// DMU's Δ↑ (6) in percent.
    pub fn gain_up(&self, measure: Measure) -> Option<f64> {
        gain_up(self.new_old.of(measure), self.old_old.of(measure))
    }

    /// DMU's Δ↓ (7) in percent; below 0 where the method's own end is above the independent model's.
    pub fn gain_down(&self, measure: Measure) -> Option<f64> {
        gain_down(self.new_new.of(measure), self.best_best.of(measure))
    }
}

impl Comparison {
    /// Names of the parts, in the order of their first outcome.
    pub fn parts(&self) -> Vec<&str> {
        distinct(self.outcomes.iter().map(|outcome| outcome.part.as_str()))
    }

    /// Names of the methods, in the order of their first outcome.
    pub fn methods(&self) -> Vec<&str> {
        distinct(self.outcomes.iter().map(|outcome| outcome.method.as_str()))
    }

    /// Names of the orders, in the order of their first backfill.
    pub fn orders(&self) -> Vec<&str> {
        let backfills = self.outcomes.iter().flat_map(|outcome| &outcome.backfills);
        distinct(backfills.map(|backfill| backfill.order.as_str()))
    }

    /// The outcomes of a method on a part, one a seed.
    pub fn of<'a>(&'a self, method: &'a str, part: &'a str) -> impl Iterator<Item = &'a MethodOutcome> {
        self.outcomes.iter().filter(move |outcome| outcome.method == method && outcome.part == part)
    }

    /// Mean and spread over seeds of a number of a method on a part; seeds without the number are left out.
    pub fn over_seeds(
        &self,
        method: &str,
        part: &str,
        number: impl Fn(&MethodOutcome) -> Option<f64>,
    ) -> Option<MeanSd> {
        let values: Vec<f64> = self.of(method, part).filter_map(number).collect();
        mean_sd(&values)
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_those_of_the_papers_and_seeds_are_averaged() {
        let quality = |top1: f64| Quality { top1, map: top1 / 2.0 };
        let outcome = |seed: u64, new_old: f64| MethodOutcome {
            method: "bct".into(),
            seed,
            part: "test".into(),
            old_old: quality(40.0),
            new_old: quality(new_old),
            new_new: quality(78.0),
            best_best: quality(80.0),
            backfills: Vec::new(),
        };
        let comparison = Comparison {
            title: "t".into(),
            setting: Vec::new(),
            version: "0".into(),
            outcomes: vec![outcome(0, 50.0), outcome(1, 30.0)],
            warnings: Vec::new(),
        };
        let [first, second] = &comparison.outcomes[..] else { panic!() };
        assert!(first.criterion_met(Measure::Map) && !second.criterion_met(Measure::Map));
        assert_eq!((first.update_gain(Measure::Top1), second.update_gain(Measure::Top1)), (Some(25.0), None));
        assert_eq!((first.gain_up(Measure::Top1), first.gain_down(Measure::Top1)), (Some(25.0), Some(2.5)));
        assert_eq!((comparison.methods(), comparison.parts()), (vec!["bct"], vec!["test"]));
        let mean = comparison.over_seeds("bct", "test", |outcome| Some(outcome.new_old.top1)).unwrap();
        assert_eq!((mean.count, mean.mean), (2, 40.0));
        let gain =
            comparison.over_seeds("bct", "test", |outcome| outcome.update_gain(Measure::Top1)).unwrap();
        assert_eq!((gain.count, gain.mean), (1, 25.0));
    }
}
