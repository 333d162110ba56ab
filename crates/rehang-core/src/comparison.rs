//! Data of a comparison: every method of upgrading side by side, over seeds, parts of the data and orders.
//!
//! Everything is measured with the new model's queries, each leaving itself out, by the study's distance, and
//! given in percent. `rehang-train` makes the measurements, and `rehang-report` shows them.

use serde::{Deserialize, Serialize};

use crate::gains::{criterion_met, gain_down, gain_up, update_gain};
use crate::statistics::{MeanSd, mean_sd};

/// Top-1 and mAP of one ranking, in percent.
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
    /// Name of the order.
    pub order: String,
    /// Mean over all fractions, M̃.
    pub area: Quality,
    /// Lowest point of each metric.
    pub min: Quality,
    /// NFR@1 against the gallery at the start of the backfill: its mean over all fractions.
    pub negative_flips: f64,
    /// NFR@1 at the worst fraction.
    pub negative_flips_max: f64,
    /// Top-1 at 101 fractions, 0 % to 100 %, to three decimals.
    pub top1: Vec<f64>,
    /// mAP at the same fractions as `top1`.
    pub map: Vec<f64>,
    /// CMC top-5 at the same fractions as `top1`; empty in records from before it was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top5: Vec<f64>,
    /// Mean of top-5 over all fractions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area_top5: Option<f64>,
    /// NFR@1 at the same fractions as `top1`.
    pub negative_flip_rate: Vec<f64>,
}

/// Result of one method by a protocol of a paper, such as TAR at a rate, in percent. `None` where the part
/// cannot show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProtocolOutcome {
    /// Name of the protocol with its rate or depth, such as `tar@0.001`.
    pub protocol: String,
    /// Result of old queries in the old gallery.
    pub old_old: Option<f64>,
    /// Result of new queries in the gallery as it stands at the switch.
    pub new_old: Option<f64>,
    /// Result of new queries in the gallery after the whole backfill.
    pub new_new: Option<f64>,
    /// Result of the independent model by itself.
    pub best_best: Option<f64>,
}

/// Outcome of one method on one part with one seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MethodOutcome {
    /// Name of the method, such as `bct`, `dmu + ψ` or `fastfill`.
    pub method: String,
    /// Seed of the method.
    pub seed: u64,
    /// Name of the part of the data, such as `test` or `unseen`.
    pub part: String,
    /// Name of the new encoder, where the method has another one than the independent model; `None` where it
    /// has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<String>,
    /// M(old, old): doing nothing.
    pub old_old: Quality,
    /// M(new, old): new queries in the gallery as it stands at the switch, adapted where the method adapts
    /// it.
    pub new_old: Quality,
    /// M(new, new): after the whole backfill.
    pub new_new: Quality,
    /// M(new*, new*): the new model trained with no regard to the old one.
    pub best_best: Quality,
    /// Backfills by the method, one in each order.
    pub backfills: Vec<OrderOutcome>,
    /// Results by the protocols that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protocols: Vec<ProtocolOutcome>,
}

/// A whole comparison of methods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Subject of the comparison, in one line.
    pub title: String,
    /// Setting of the comparison, one sentence each: data, encoders, epochs.
    pub setting: Vec<String>,
    /// Version of rehang that made it.
    pub version: String,
    /// Outcomes of all methods, parts and seeds.
    pub outcomes: Vec<MethodOutcome>,
    /// Warnings that a reader has to know, one sentence each.
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
    /// Value of one metric.
    pub fn value(self, measure: Measure) -> f64 {
        match measure {
            Measure::Top1 => self.top1,
            Measure::Map => self.map,
        }
    }
}

impl MethodOutcome {
    /// Backfill in the order of a name.
    pub fn backfill(&self, order: &str) -> Option<&OrderOutcome> {
        self.backfills.iter().find(|backfill| backfill.order == order)
    }

    /// Result by the protocol of a name.
    pub fn protocol(&self, name: &str) -> Option<&ProtocolOutcome> {
        self.protocols.iter().find(|outcome| outcome.protocol == name)
    }

    /// BCT's empirical criterion (2): M(new, old) > M(old, old).
    pub fn criterion_met(&self, measure: Measure) -> bool {
        criterion_met(self.new_old.value(measure), self.old_old.value(measure))
    }

    /// DMU's Δ↑ (6) in percent.
    pub fn gain_up(&self, measure: Measure) -> Option<f64> {
        gain_up(self.new_old.value(measure), self.old_old.value(measure))
    }

    /// DMU's Δ↓ (7) in percent; below 0 where the method's own end is above the independent model's.
    pub fn gain_down(&self, measure: Measure) -> Option<f64> {
        gain_down(self.new_new.value(measure), self.best_best.value(measure))
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

    /// Names of the protocols, in the order of their first outcome.
    pub fn protocols(&self) -> Vec<&str> {
        let protocols = self.outcomes.iter().flat_map(|outcome| &outcome.protocols);
        distinct(protocols.map(|outcome| outcome.protocol.as_str()))
    }

    /// Outcomes of a method on a part, one for each seed.
    pub fn outcomes<'a>(&'a self, method: &'a str, part: &'a str) -> impl Iterator<Item = &'a MethodOutcome> {
        self.outcomes.iter().filter(move |outcome| outcome.method == method && outcome.part == part)
    }

    /// M(new*, new*) of BCT's (9): the best M(new, new) of the variants of an outcome's new model. The
    /// variants are all methods with its encoder on the same part with the same seed, and the independent
    /// model.
    pub fn best_variant(&self, outcome: &MethodOutcome, measure: Measure) -> f64 {
        let ends = self.variants(outcome).map(|variant| variant.new_new.value(measure));
        ends.fold(outcome.best_best.value(measure), f64::max)
    }

    /// Outcomes of all methods with the encoder, the part and the seed of a given outcome.
    fn variants<'a>(&'a self, outcome: &'a MethodOutcome) -> impl Iterator<Item = &'a MethodOutcome> {
        self.outcomes.iter().filter(move |variant| {
            (variant.seed, &variant.part, &variant.encoder) == (outcome.seed, &outcome.part, &outcome.encoder)
        })
    }

    /// BCT's update gain Γ (9) of an outcome in percent, measured against [`Comparison::best_variant`].
    /// `None` where the criterion fails.
    pub fn update_gain(&self, outcome: &MethodOutcome, measure: Measure) -> Option<f64> {
        let best = self.best_variant(outcome, measure);
        update_gain(outcome.new_old.value(measure), outcome.old_old.value(measure), best)
    }

    /// BCT's update gain Γ (9) of an outcome by a protocol, in percent. `None` where the criterion fails, or
    /// where the part cannot show it.
    pub fn update_gain_by(&self, outcome: &MethodOutcome, protocol: &str) -> Option<f64> {
        let by_protocol = outcome.protocol(protocol)?;
        let ends = self.variants(outcome).filter_map(|variant| variant.protocol(protocol)?.new_new);
        update_gain(by_protocol.new_old?, by_protocol.old_old?, ends.fold(by_protocol.best_best?, f64::max))
    }

    /// Mean and spread, over seeds, of a number of a method on a part. Seeds without the number are left out.
    pub fn over_seeds(
        &self,
        method: &str,
        part: &str,
        number: impl Fn(&MethodOutcome) -> Option<f64>,
    ) -> Option<MeanSd> {
        let values: Vec<f64> = self.outcomes(method, part).filter_map(number).collect();
        mean_sd(&values)
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct_names: Vec<&str> = Vec::new();
    for name in names {
        if !distinct_names.contains(&name) {
            distinct_names.push(name);
        }
    }
    distinct_names
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
            encoder: None,
            old_old: quality(40.0),
            new_old: quality(new_old),
            new_new: quality(78.0),
            best_best: quality(80.0),
            backfills: Vec::new(),
            protocols: Vec::new(),
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
        let gains = [first, second].map(|outcome| comparison.update_gain(outcome, Measure::Top1));
        assert_eq!(gains, [Some(25.0), None]);
        assert_eq!((first.gain_up(Measure::Top1), first.gain_down(Measure::Top1)), (Some(25.0), Some(2.5)));
        assert_eq!((comparison.methods(), comparison.parts()), (vec!["bct"], vec!["test"]));
        let mean = comparison.over_seeds("bct", "test", |outcome| Some(outcome.new_old.top1)).unwrap();
        assert_eq!((mean.count, mean.mean), (2, 40.0));
        let gain = comparison
            .over_seeds("bct", "test", |outcome| comparison.update_gain(outcome, Measure::Top1))
            .unwrap();
        assert_eq!((gain.count, gain.mean), (1, 25.0));
    }

    /// BCT says of (9): M(new*) is "the best accuracy level we can achieve from any variants of the new
    /// model".
    #[test]
    fn the_whole_of_an_update_gain_is_the_best_variant_of_the_seed_and_encoder() {
        let quality = |map: f64| Quality { top1: map, map };
        let outcome = |method: &str, seed: u64, part: &str, encoder: Option<&str>, end: f64| MethodOutcome {
            method: method.into(),
            seed,
            part: part.into(),
            encoder: encoder.map(String::from),
            old_old: quality(40.0),
            new_old: quality(50.0),
            new_new: quality(end),
            best_best: quality(80.0),
            backfills: Vec::new(),
            protocols: Vec::new(),
        };
        let comparison = Comparison {
            title: "t".into(),
            setting: Vec::new(),
            version: "0".into(),
            outcomes: vec![
                outcome("weaker", 0, "test", None, 70.0),
                outcome("stronger", 0, "test", None, 90.0),
                outcome("larger", 0, "test", Some("width 48"), 240.0),
                outcome("smaller", 0, "test", Some("width 8"), 60.0),
                outcome("weaker", 1, "test", None, 70.0),
                outcome("weaker", 0, "unseen", None, 70.0),
            ],
            warnings: Vec::new(),
        };
        let gains: Vec<Option<f64>> =
            comparison.outcomes.iter().map(|of| comparison.update_gain(of, Measure::Map)).collect();
        assert_eq!(gains, [20.0, 20.0, 5.0, 25.0, 25.0, 25.0].map(Some));
        // The update gain by a protocol; an outcome whose part cannot show it has no gain.
        let mut by_protocol = comparison.clone();
        for outcome in &mut by_protocol.outcomes {
            outcome.protocols = vec![ProtocolOutcome {
                protocol: "tar@0.1".into(),
                old_old: Some(outcome.old_old.map),
                new_old: Some(outcome.new_old.map).filter(|_| outcome.seed == 0),
                new_new: Some(outcome.new_new.map),
                best_best: Some(outcome.best_best.map),
            }];
        }
        assert_eq!(by_protocol.protocols(), ["tar@0.1"]);
        let gains: Vec<Option<f64>> =
            by_protocol.outcomes.iter().map(|of| by_protocol.update_gain_by(of, "tar@0.1")).collect();
        assert_eq!(gains, [Some(20.0), Some(20.0), Some(5.0), Some(25.0), None, Some(25.0)]);
        // Records from before encoders were named are read. No encoder is written where it is the usual one.
        let text = serde_json::to_string(&comparison).unwrap();
        assert_eq!(
            (text.matches("\"encoder\"").count(), serde_json::from_str(&text).ok()),
            (2, Some(comparison))
        );
    }
}
