//! A map that learns while the gallery is re-embedded: whether fitting it again pays, and adapted vectors made anew where it does.
//!
//! Natives come as the run goes on, and a map that is fitted on them too is a better one. Whether it is so much better that every adapted
//! vector is to be made anew is measured, on items that are a random sample of the gallery and that no map is fitted on: those held out
//! among the first of its shuffle. A run re-embeds them first ([`keep`]).
//!
//! What was asked and decided is a document of the gallery, one entry a question. The record says which map is in use, and takes the new
//! one up together with a new epoch of the space in one step. So a death at any moment leaves one of three states, and the next run goes on
//! from each: nothing is decided; decided, and the record has the map before; the record has the new map, and not all pages are made.
//! Which pages are done is not kept: they are begun anew.
//!
//! # Searches meanwhile
//!
//! While pages are made, adapted vectors of both maps stand in the new space. Each is an estimate of its item's vector there, by a map that
//! was fitted to give one, and the upgrade stays filled: no item loses its vector. The handicap is the new map's from the first page on.
//! It compensates how far adapted vectors are from natives on average, and the maps differ in that by less than the error that both
//! have: `cargo xtask refit` measures searches half-way, beside both ends.

use rehang::adapter::{self, Adapter, true_errors};
use rehang::finding::Finding;
use rehang::statistics::mean_sd;
use rehang::{Error, Progress, Remedy, Result, Space, Vectors};
use rehang_fit::refit::{ASKED_AT, RefitGain};
use rehang_store::{Counts, Ledger, Store};
use serde::{Deserialize, Serialize};

use crate::faults::Place;
use crate::fill::Filler;
use crate::fitting::DrawnPairs;
use crate::observe::Observer;
use crate::record::{Phase, Recorded, UpgradeRecord};
use crate::sample;
use crate::setup::{UpgradeSetup, expect_upgrade, upgrade_of};
use crate::until::Until;
use crate::verbs::{changing, fill};

/// Of kept natives, the mean squared error above which the gallery is said to be another one than the pairs: so many times what σ² says,
const DRIFT_TIMES: f64 = 1.5;
/// and above it by so many standard errors.
const DRIFT_Z: f64 = 3.0;

/// One question whether a refit pays, and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refit {
    /// The share of native items at which a run asks; `None` where a person asked.
    pub asked_at: Option<f64>,
    /// Native items when it was asked.
    pub native: u64,
    /// Items of the gallery.
    pub items: u64,
    /// Pairs that the new map was fitted on.
    pub pairs: usize,
    /// Squared errors of both maps on the natives that are kept for measuring.
    pub gain: RefitGain,
    /// Mean σ² that the map before has for them.
    pub expected: f64,
    /// Standard error of their squared error less σ².
    pub expected_spread: f64,
    /// Fingerprint of the map before.
    pub before: String,
    /// Fingerprint of the new map.
    pub after: String,
    /// Whether the new map took its place.
    pub taken: bool,
}

impl Refit {
    /// What it says of the gallery: that its items are not what the pairs of the map before were.
    pub fn drift(&self) -> Option<Finding> {
        let off = self.gain.before - self.expected;
        let is_off = self.gain.before > DRIFT_TIMES * self.expected && off > DRIFT_Z * self.expected_spread;
        is_off.then(|| {
            let seen = format!(
                "the squared error of adapted vectors is {:.1} times what σ² says, on a random sample of {} items: the gallery is not what the \
                 pairs were drawn from",
                self.gain.before / self.expected.max(f64::MIN_POSITIVE),
                self.gain.items
            );
            let way_out = if self.taken {
                "the map was fitted again, which answers to it"
            } else {
                "forecast and order speak of another gallery; `pairs` with more items, `fit`, `report` and `start` learn from what is there now"
            };
            Finding::warning("gallery-drift", seen).may_mean(way_out)
        })
    }
}

/// Name of the document with all of them.
fn document(new: &str) -> String {
    format!("refits of {new}")
}

fn read(store: &dyn Ledger, new: &str) -> Result<(Option<u64>, Vec<Refit>)> {
    let Some((version, text)) = store.document(&document(new))? else { return Ok((None, Vec::new())) };
    if text.is_empty() {
        return Ok((Some(version), Vec::new()));
    }
    let refits = serde_json::from_str(&text).map_err(|error| Error::corrupt(document(new), error))?;
    Ok((Some(version), refits))
}

fn write(store: &dyn Ledger, new: &str, version: Option<u64>, refits: &[Refit]) -> Result<()> {
    let text = serde_json::to_string(refits).map_err(|error| Error::corrupt(document(new), error))?;
    store.set_document(&document(new), version, &text).map(drop)
}

/// Every question that was asked of a space, the first one first.
///
/// # Errors
///
/// Those of the store; corrupt where the document is none of ours.
pub fn refits(store: &dyn Ledger, new: &str) -> Result<Vec<Refit>> {
    Ok(read(store, new)?.1)
}

/// Forgets them: the space is given up.
pub(crate) fn forget(store: &dyn Ledger, new: &str) -> Result<()> {
    match store.document(&document(new))? {
        Some((version, _)) => store.set_document(&document(new), Some(version), "").map(drop),
        None => Ok(()),
    }
}

/// The map in use, where refits have led to it from the one that was fitted on pairs; that one itself otherwise.
pub(crate) fn in_use(store: &dyn Ledger, new: &str, fitted: String) -> Result<String> {
    let record = Recorded::read(store)?.map(|recorded| recorded.record);
    let Some(record) = record.filter(|record| record.new.name == new && record.adapter != fitted) else {
        return Ok(fitted);
    };
    let mut reached = &fitted;
    let taken: Vec<Refit> = refits(store, new)?.into_iter().filter(|refit| refit.taken).collect();
    for refit in &taken {
        if refit.before == *reached {
            reached = &refit.after;
        }
    }
    let is_reached = taken.iter().any(|refit| refit.after == record.adapter) && *reached == record.adapter;
    Ok(if is_reached { record.adapter } else { fitted })
}

/// The question that a run has to ask, by how much is native: the last one whose share is reached, unless it or a later one was asked.
pub(crate) fn due(refits: &[Refit], counts: &Counts) -> Option<f64> {
    let asked = refits.iter().filter_map(|refit| refit.asked_at).fold(0.0, f64::max);
    let reached = |share: &&f64| counts.native >= Until::Fraction(**share).target(counts.items);
    ASKED_AT.iter().rev().find(reached).copied().filter(|share| *share > asked)
}

/// Puts what is kept for measuring, and not native yet, to the front of the queue. Nothing where a run until `target` native items comes to no
/// question: what it embeds is for the gallery alone.
///
/// # Errors
///
/// Those of the store; superseded where another plan has begun.
pub(crate) fn keep(store: &dyn Ledger, (old, new): (&Space, &Space), target: u64) -> Result<()> {
    let record = Recorded::expect(store)?.record;
    let counts = store.counts(&new.name)?;
    let at_end = Counts { native: target.min(counts.items), ..counts };
    if record.phase != Phase::Filled || due(&refits(store, &new.name)?, &at_end).is_none() {
        return Ok(());
    }
    let kept = DrawnPairs::kept(store, old, &new.name)?;
    sample::place_first(store, &new.name, record.epoch.unwrap_or_default(), &kept)
        .map_err(|error| Recorded::explain(store, &record, error))
}

/// Squared errors of a map on pairs, and what σ² says of each.
fn errors(adapter: &Adapter, old: &Vectors, new: &Vectors) -> Result<(Vec<f64>, Vec<f64>)> {
    let applied = adapter::apply(adapter, old, None, &Progress::default())?;
    let sigma = applied.variance.iter().map(|&value| f64::from(value)).collect();
    Ok((true_errors(new.matrix(), applied.vectors.matrix()), sigma))
}

/// Compares two maps on pairs that neither was fitted on: what [`Refit`] says of them. `None` where they are too few.
pub(crate) fn compare(
    (before, after): (&Adapter, &Adapter),
    kept: &DrawnPairs,
) -> Result<Option<(RefitGain, f64, f64)>> {
    let (old, new) = kept.vectors((&before.old, &before.new))?;
    let (of_before, sigma) = errors(before, &old, &new)?;
    let (of_after, _) = errors(after, &old, &new)?;
    let Some(gain) = RefitGain::of(&of_before, &of_after)? else { return Ok(None) };
    let off: Vec<f64> = of_before.iter().zip(&sigma).map(|(error, sigma)| error - sigma).collect();
    let (Some(off), Some(sigma)) = (mean_sd(&off), mean_sd(&sigma)) else { return Ok(None) };
    Ok(Some((gain, sigma.mean, off.sd / (off.count as f64).sqrt())))
}

/// Keeps an answer. Where the new map is to be taken, it is in force from here on: whatever dies, the next run takes it up.
///
/// # Errors
///
/// Changed meanwhile where another process has answered since; those of the store.
pub(crate) fn decide(store: &dyn Ledger, new: &str, decided: &Refit) -> Result<()> {
    let (version, mut refits) = read(store, new)?;
    // By what its numbers belong to: a number may come back from the document with its last digit changed.
    let of = |refit: &Refit| (refit.native, refit.taken, refit.before.clone(), refit.after.clone());
    if refits.last().map(of) == Some(of(decided)) {
        return Ok(());
    }
    if let Some(other) = undone(&refits, &Recorded::expect(store)?.record) {
        let detail = format!("another process has decided for the map {}", other.after);
        return Err(Error::changed_meanwhile(document(new), detail));
    }
    refits.push(decided.clone());
    write(store, new, version, &refits)
}

/// The refit that was decided and is not in the record yet.
pub(crate) fn undone<'a>(refits: &'a [Refit], record: &UpgradeRecord) -> Option<&'a Refit> {
    refits.last().filter(|last| last.taken && last.before == record.adapter && record.phase == Phase::Filled)
}

/// Takes the map of a setup up in place of the one in use, as `decided`, and makes all adapted vectors anew in a new epoch; the upgrade
/// stays filled and searched all the while. Called again after a death, it goes on. Gives how many vectors it made.
///
/// # Errors
///
/// A wrong phase where the upgrade is not filled; superseded where another map than that before is in use, or the upgrade is planned anew or
/// rolled back meanwhile; those of the store. What was made stays.
pub fn refit(
    store: &dyn Store,
    setup: &UpgradeSetup<'_>,
    decided: &Refit,
    observer: &dyn Observer,
) -> Result<u64> {
    // What cannot fill is not decided for.
    Filler::new(setup.adapter, &setup.old.name, &setup.new.name, setup.order)?;
    decide(store, &setup.new.name, decided)?;
    observer.reach(Place::RefitDecided)?;
    let recorded = expect_upgrade(store, setup)?;
    let plan = changing_map(store, recorded, setup, decided)?;
    observer.reach(Place::RefitRecorded)?;
    if !plan.refitting {
        // Another process has made all of it.
        return Ok(0);
    }
    complete(store, setup, &plan, observer)
}

/// Makes what is left of a refit that is in the record: all adapted vectors, since nothing says which are done.
///
/// # Errors
///
/// As [`refit`].
pub(crate) fn complete(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    plan: &UpgradeRecord,
    observer: &dyn Observer,
) -> Result<u64> {
    let filler = Filler::new(setup.adapter, &setup.old.name, &setup.new.name, plan.order)?;
    // As in a plan with another adapter: all that is adapted, then what lacks a vector, then the places of the order.
    let again = UpgradeRecord { adapted_before: true, ..plan.clone() };
    let made = fill(store, &filler.since(plan.since), &again, false, observer)
        .map_err(|error| Recorded::explain(store, plan, error))?;
    observer.reach(Place::BeforeFilled)?;
    changing(store, plan, |mut now| now.change(store, |record| record.refitting = false))?;
    observer.reach(Place::AfterFilled)?;
    Ok(made)
}

/// Times that a record is read again before a change of it is given up.
const RETRIES: usize = 20;

/// The record with the new map, in an epoch of its own.
fn changing_map(
    store: &dyn Ledger,
    mut recorded: Recorded,
    setup: &UpgradeSetup<'_>,
    decided: &Refit,
) -> Result<UpgradeRecord> {
    for _ in 0..RETRIES {
        let record = &recorded.record;
        if record.phase != Phase::Filled {
            return Err(
                Error::wrong_phase(upgrade_of(store), record.phase.name()).advise(Remedy::ContinueFilling)
            );
        }
        if record.adapter == decided.after {
            return Ok(recorded.record);
        }
        if record.adapter != decided.before {
            let happened = "it was planned anew meanwhile, with another adapter";
            return Err(Error::superseded(format!("a refit of {}", upgrade_of(store)), happened)
                .advise(Remedy::AwaitNewPlan));
        }
        let next = UpgradeRecord {
            adapter: decided.after.clone(),
            handicap: setup.adapter.handicap,
            fusion: record.fusion.as_ref().and(setup.adapter.fusion.clone()),
            refitting: true,
            ..record.clone()
        };
        match Recorded::begin(store, Some(&recorded), next) {
            Err(error) if error.is_changed_meanwhile() => recorded = expect_upgrade(store, setup)?,
            begun => return Ok(begun?.record),
        }
    }
    Err(Error::changed_meanwhile(upgrade_of(store), "another process keeps changing it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refit(asked_at: Option<f64>, taken: bool, [before, after]: [&str; 2]) -> Refit {
        let gain = RefitGain { items: 100, before: 2.0, after: 1.0, spread: 0.1 };
        let (before, after) = (before.into(), after.into());
        let of = Refit {
            asked_at,
            native: 1,
            items: 10,
            pairs: 5,
            gain,
            expected: 2.0,
            expected_spread: 0.1,
            before,
            after,
            taken,
        };
        assert!(of.drift().is_none());
        of
    }

    #[test]
    fn a_question_is_due_once_and_a_later_one_stands_for_those_before() {
        let counts = |native| Counts { items: 1000, native, ..Counts::default() };
        assert_eq!(due(&[], &counts(99)), None);
        assert_eq!(due(&[], &counts(100)), Some(0.1));
        assert_eq!(due(&[], &counts(400)), Some(0.4));
        let first = refit(Some(0.1), false, ["a", "b"]);
        assert_eq!(due(std::slice::from_ref(&first), &counts(399)), None);
        assert_eq!(due(std::slice::from_ref(&first), &counts(400)), Some(0.4));
        assert_eq!(due(&[refit(Some(0.4), true, ["a", "b"])], &counts(900)), None);
        // What a person asked is another question.
        assert_eq!(due(&[refit(None, true, ["a", "b"])], &counts(100)), Some(0.1));
    }

    #[test]
    fn an_error_far_above_what_sigma_says_is_drift() {
        let near = refit(None, true, ["a", "b"]);
        let far = Refit { expected: 1.0, ..near.clone() };
        let drift = far.drift().unwrap().to_string();
        assert!(drift.contains("2.0 times") && drift.contains("fitted again"), "{drift}");
        let left = Refit { taken: false, ..far.clone() }.drift().unwrap().to_string();
        assert!(left.contains("`pairs`"), "{left}");
        assert!(Refit { expected_spread: 0.5, ..far }.drift().is_none(), "within its spread");
    }
}
