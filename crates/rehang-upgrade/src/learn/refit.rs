//! Refits: whether fitting the map again pays while the gallery is re-embedded, and adapted vectors made anew
//! where it does.
//!
//! Natives come as the run goes on, and a map that is fitted on them too is a better one. Whether it is so
//! much better that every adapted vector is to be made anew is measured on items that are a random sample of
//! the gallery and that no map is fitted on. They are the held-out ones among the first items of its shuffle.
//! A run re-embeds these first ([`keep`]).
//!
//! A document of the gallery holds what was asked and decided, one entry a question. The record says which
//! map is in use; it takes the new one up together with a new epoch of the space, in one step. So a death at
//! any moment leaves one of three states, and the next run goes on from each: nothing is decided; decided,
//! and the record has the map before; the record has the new map, and not all pages are made. Which pages are
//! done is not kept: all of them are made again.
//!
//! # Searches meanwhile
//!
//! While pages are made, adapted vectors of both maps stand in the new space. Each is an estimate of its
//! item's vector there, by a map that was fitted to give one, and the upgrade stays filled: no item loses its
//! vector. The handicap is the new map's from the first page on. It compensates how far adapted vectors are
//! from natives on average, and the two maps differ in that by less than the error that both have.
//! `cargo lab study refit` measures searches half-way, beside both ends.

use rehang_core::adapter::{self, Adapter, true_errors};
use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::{Error, Progress, Remedy, Result, Space, Vectors};
use rehang_fit::refit::{ASKED_AT, MeanError, RefitGain, SigmaScale, kept_for_measuring};
use rehang_store::{Counts, Ledger, Store};
use serde::{Deserialize, Serialize};

use crate::learn::pairs::{DrawnPairs, HELD_OUT_SHARE};
use crate::live::faults::Place;
use crate::live::fill::Filler;
use crate::live::sample;
use crate::live::until::Until;
use crate::observe::Observer;
use crate::record::{OrderSettings, Phase, Recorded, UpgradeRecord};
use crate::setup::{UpgradeSetup, expect_upgrade, upgrade_of};
use crate::verbs::{changing, fill, keep_map};

/// Least ratio of pairs at hand to those that the map in use was fitted on, for a question to be asked: from
/// as many pairs a fit finds the same map.
pub(crate) const MORE_PAIRS_MIN: f64 = 1.25;

/// Question whether a refit pays, with its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refit {
    /// Share of native items at which a run asks; `None` where a person asked.
    pub asked_at: Option<f64>,
    /// Native items at the time of the question.
    pub native: u64,
    /// Items of the gallery.
    pub items: u64,
    /// Pairs that the new map was fitted on.
    pub pairs: usize,
    /// Squared errors of both maps on the natives that are kept for measuring.
    pub gain: RefitGain,
    /// Expected error of the map before. Where a refit brought that map, it is the error with which it was
    /// taken; otherwise the map's error on the held-out part of its pairs. `None` where the map was not
    /// fitted here, or too few pairs were held out.
    pub expected: Option<MeanError>,
    /// Errors of the map before compared with its σ².
    pub sigma_before: SigmaScale,
    /// Errors of the new map compared with its σ².
    pub sigma_after: SigmaScale,
    /// Fingerprint of the map before.
    pub before: String,
    /// Fingerprint of the new map.
    pub after: String,
    /// Whether the new map took the place of the map before.
    pub taken: bool,
}

impl Refit {
    /// Returns a finding where the gallery has drifted: its items are not what the pairs of the map before
    /// were.
    pub fn drift(&self) -> Option<Finding> {
        let (error, expected) = (self.gain.error_before(), self.expected?);
        error.has_drifted_from(&expected).then(|| {
            let times = error.times(&expected);
            let message = format!(
                "The squared error of adapted vectors is {times:.2} times what it was when the map was fitted, on a random sample of {} items: the gallery is \
                 not what the map was fitted for.",
                self.gain.items
            );
            let finding = Finding::warning(FindingCode::GalleryDrift, message).evidence(&[("times", times)]);
            if self.taken {
                return finding.may_mean("The map was fitted again, which answers to it.");
            }
            finding
                .may_mean("What was forecast is for the gallery as it was.")
                .remedy("A refit when more is native learns from what is there now; so does a fit on more pairs, with a report and a start after it.")
        })
    }

    /// Returns what a person should know of the answer: [drift](Refit::drift), and where σ² of the map that
    /// is in use now is off by a factor.
    pub fn findings(&self) -> Vec<Finding> {
        let scale = if self.taken { &self.sigma_after } else { &self.sigma_before };
        let scale_finding = scale.is_off().then(|| {
            let (direction, factor) =
                if scale.ratio > 1.0 { ("small", *scale) } else { ("large", scale.inverted()) };
            let message = format!(
                "σ² of what is not native yet is {:.2} times too {direction} ({:.2} to {:.2}), by {} items that no map was fitted on.",
                factor.ratio, factor.low, factor.high, self.gain.items
            );
            Finding::note(FindingCode::SigmaScale, message)
                .may_mean("The order does not depend on it.")
                .evidence(&[("ratio", scale.ratio), ("low", scale.low), ("high", scale.high)])
        });
        self.drift().into_iter().chain(scale_finding).collect()
    }

    /// Returns the fingerprint of the map that is in use after this answer.
    fn kept_map(&self) -> &str {
        if self.taken { &self.after } else { &self.before }
    }
}

/// Returns what the last question says of a gallery as it stands. Nothing where another map is in use by now,
/// or nothing is adapted.
pub(crate) fn findings(refits: &[Refit], record: &UpgradeRecord, counts: &Counts) -> Vec<Finding> {
    let is_of_now = |last: &&Refit| last.kept_map() == record.adapter && counts.adapted > 0;
    let Some(last) = refits.last().filter(is_of_now) else { return Vec::new() };
    let mut findings = last.findings();
    // Taking a new map has answered the drift.
    findings.retain(|finding| !(last.taken && finding.severity == Severity::Warning));
    findings
}

/// Names the document with all questions of a space.
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

/// Reads every question that was asked of a space, the first one first.
///
/// # Errors
///
/// Those of the store; corrupt where the document is none of ours.
pub fn refits(store: &dyn Ledger, new: &str) -> Result<Vec<Refit>> {
    Ok(read(store, new)?.1)
}

/// Forgets all questions of a space that is given up.
pub(crate) fn forget(store: &dyn Ledger, new: &str) -> Result<()> {
    match store.document(&document(new))? {
        Some((version, _)) => store.set_document(&document(new), Some(version), "").map(drop),
        None => Ok(()),
    }
}

/// Returns the map that is in use by the record, if refits have led to it from the `fitted` one; otherwise
/// `fitted` itself.
pub(crate) fn in_use(
    store: &dyn Ledger,
    record: Option<&UpgradeRecord>,
    new: &str,
    fitted: String,
) -> Result<String> {
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
    Ok(if is_reached { record.adapter.clone() } else { fitted })
}

/// Returns the question that a run has to ask, by how much is native: the last one whose share is reached,
/// unless it or a later one was asked. None as long as a question would be in vain, because natives are few
/// beyond the `pairs` that the map in use was fitted on. Natives that are held out, or kept for measuring, do
/// not count.
pub(crate) fn due(refits: &[Refit], counts: &Counts, pairs: usize) -> Option<f64> {
    let last_asked_at = refits.iter().filter_map(|refit| refit.asked_at).fold(0.0, f64::max);
    let reached = |share: &&f64| counts.native >= Until::Fraction(**share).target(counts.items);
    let kept_items = kept_for_measuring(usize::try_from(counts.items).unwrap_or(usize::MAX)) as f64;
    let to_learn_from = counts.native as f64 - kept_items.max(HELD_OUT_SHARE * counts.native as f64);
    let is_in_vain = to_learn_from < MORE_PAIRS_MIN * pairs as f64;
    ASKED_AT.iter().rev().find(reached).copied().filter(|share| *share > last_asked_at && !is_in_vain)
}

/// Returns how many pairs a map was fitted on: by the question that brought it, or by the map's own `file`.
pub(crate) fn pairs_of(
    refits: &[Refit],
    map: &str,
    file: impl FnOnce() -> Result<Option<usize>>,
) -> Result<usize> {
    match refits.iter().rev().find(|refit| refit.taken && refit.after == map) {
        Some(refit) => Ok(refit.pairs),
        None => Ok(file()?.unwrap_or(0)),
    }
}

/// Moves items that are kept for measuring, and not native yet, to the front of the queue. Does nothing where
/// a run until `target` native items comes to no question, with a map that was fitted on so many `pairs`:
/// what it embeds is for the gallery alone.
///
/// # Errors
///
/// Those of the store; superseded where another plan has begun.
pub(crate) fn keep(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    pairs: usize,
    target: u64,
) -> Result<()> {
    let record = Recorded::expect(store)?.record;
    let counts = store.counts(&new.name)?;
    let at_end = Counts { native: target.min(counts.items), ..counts };
    if record.phase != Phase::Filled || due(&refits(store, &new.name)?, &at_end, pairs).is_none() {
        return Ok(());
    }
    let kept_records = DrawnPairs::items_kept_for_measuring(store, old, &new.name)?;
    sample::place_first(store, &new.name, record.epoch.unwrap_or_default(), &kept_records, counts.items)
        .map_err(|error| Recorded::explain(store, &record, error))
}

/// Returns the squared error of a map on each pair, and σ² of each.
fn errors(
    adapter: &Adapter,
    old: &Vectors,
    new: &Vectors,
    progress: &Progress,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let applied = adapter::apply(adapter, old, None, progress)?;
    let sigma = applied.variance.iter().map(|&value| f64::from(value)).collect();
    Ok((true_errors(new.matrix(), applied.vectors.matrix()), sigma))
}

/// Compares two maps on pairs that neither was fitted on, and each map's errors with its own σ². `None` where
/// the pairs are too few.
pub(crate) fn compare(
    (before, after): (&Adapter, &Adapter),
    kept_pairs: &DrawnPairs,
    progress: &Progress,
) -> Result<Option<(RefitGain, [SigmaScale; 2])>> {
    let (old, new) = kept_pairs.vectors((&before.old, &before.new))?;
    let [of_before, of_after] = [errors(before, &old, &new, progress)?, errors(after, &old, &new, progress)?];
    let Some(gain) = RefitGain::compared(&of_before.0, &of_after.0)? else { return Ok(None) };
    let scale = |(errors, sigma): (Vec<f64>, Vec<f64>)| SigmaScale::from_errors(&errors, &sigma);
    Ok(Some((gain, [scale(of_before)?, scale(of_after)?])))
}

/// Keeps an answer in the gallery. A decision for the new map is in force from here on: whatever dies, the
/// next run takes the map up.
///
/// # Errors
///
/// Changed meanwhile where another process has answered since; those of the store.
pub(crate) fn decide(store: &dyn Ledger, new: &str, decided: &Refit) -> Result<()> {
    let (version, mut refits) = read(store, new)?;
    // Answers are compared by counts and fingerprints: other numbers may come back from the document with
    // their last digit changed.
    let answer = |refit: &Refit| (refit.native, refit.taken, refit.before.clone(), refit.after.clone());
    if refits.last().map(answer) == Some(answer(decided)) {
        return Ok(());
    }
    if let Some(other) = decided_not_recorded(&refits, &Recorded::expect(store)?.record) {
        let detail = format!("another process has decided for the map {}", other.after);
        return Err(Error::changed_meanwhile(document(new), detail));
    }
    refits.push(decided.clone());
    write(store, new, version, &refits)
}

/// Returns the refit that was decided and is not in the record yet.
pub(crate) fn decided_not_recorded<'a>(refits: &'a [Refit], record: &UpgradeRecord) -> Option<&'a Refit> {
    refits.last().filter(|last| last.taken && last.before == record.adapter && record.phase == Phase::Filled)
}

/// Returns the map of a setup, which a refit has to have, and the filler that applies it.
fn map_of<'a>(setup: &UpgradeSetup<'a>, order: OrderSettings) -> Result<(&'a Adapter, Filler)> {
    let missing = || Error::missing("an adapter", "a refit");
    Ok((setup.adapter.ok_or_else(missing)?, setup.filler(order)?.ok_or_else(missing)?))
}

/// Takes the map of a setup up in place of the one in use, as `decided`, and makes all adapted vectors anew
/// in a new epoch. The upgrade stays filled and searched all the while. Called again after a death, it goes
/// on. Returns how many vectors it made.
///
/// # Errors
///
/// A wrong phase where the upgrade is not filled. Superseded where another map than the one before is in use,
/// or the upgrade is planned anew or rolled back meanwhile. Those of the store. Vectors that were made stay.
pub fn refit(
    store: &dyn Store,
    setup: &UpgradeSetup<'_>,
    decided: &Refit,
    observer: &dyn Observer,
) -> Result<u64> {
    // A setup that cannot fill fails before anything is decided.
    map_of(setup, setup.order)?;
    decide(store, &setup.new.name, decided)?;
    observer.reach(Place::RefitDecided)?;
    let recorded = expect_upgrade(store, setup)?;
    let plan = record_new_map(store, recorded, setup, decided)?;
    observer.reach(Place::RefitRecorded)?;
    if !plan.refitting {
        // Another process has made all vectors.
        return Ok(0);
    }
    complete(store, setup, &plan, observer)
}

/// Completes a refit that is in the record: makes all adapted vectors, since nothing says which are done.
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
    let (_, filler) = map_of(setup, plan.order)?;
    keep_map(store, setup, plan)?;
    // Filling goes as in a plan with another adapter: all adapted vectors, then items that lack one, then the
    // places of the order.
    let again = UpgradeRecord { adapted_before: true, ..plan.clone() };
    let vectors_made = fill(store, &filler.since(plan.since), &again, false, observer)
        .map_err(|error| Recorded::explain(store, plan, error))?;
    observer.reach(Place::BeforeFilled)?;
    changing(store, plan, |mut recorded| recorded.change(store, |record| record.refitting = false))?;
    observer.reach(Place::AfterFilled)?;
    Ok(vectors_made)
}

/// Number of times that a record is read again before a change of it is given up.
const RETRIES: usize = 20;

/// Writes the new map into the record, in an epoch of its own, unless it is there already; returns the
/// record.
fn record_new_map(
    store: &dyn Ledger,
    mut recorded: Recorded,
    setup: &UpgradeSetup<'_>,
    decided: &Refit,
) -> Result<UpgradeRecord> {
    let (adapter, _) = map_of(setup, setup.order)?;
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
            handicap: adapter.handicap,
            fusion: record.fusion.as_ref().and(adapter.fusion.clone()),
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
        let gain = RefitGain { items: 100, before: 2.0, after: 1.0, spread: 0.1, spreads: [0.1, 0.1] };
        let expected = Some(MeanError { items: 100, mean: 1.9, spread: 0.1 });
        let (before, after) = (before.into(), after.into());
        let [sigma_before, sigma_after] = [SigmaScale { ratio: 1.0, low: 0.95, high: 1.05 }; 2];
        let (native, items, pairs) = (1, 10, 5);
        Refit {
            asked_at,
            native,
            items,
            pairs,
            gain,
            expected,
            sigma_before,
            sigma_after,
            before,
            after,
            taken,
        }
    }

    #[test]
    fn a_question_is_due_once_and_a_later_one_stands_for_those_before() {
        let counts = |native| Counts { items: 1000, native, ..Counts::default() };
        let due = |refits: &[Refit], counts: &Counts| due(refits, counts, 20);
        assert_eq!(due(&[], &counts(99)), None);
        assert_eq!(due(&[], &counts(100)), Some(0.1));
        assert_eq!(due(&[], &counts(400)), Some(0.4));
        let first = refit(Some(0.1), false, ["a", "b"]);
        assert_eq!(due(std::slice::from_ref(&first), &counts(399)), None);
        assert_eq!(due(std::slice::from_ref(&first), &counts(400)), Some(0.4));
        assert_eq!(due(&[refit(Some(0.4), true, ["a", "b"])], &counts(900)), None);
        // A question by a person does not stand for one of a run.
        assert_eq!(due(&[refit(None, true, ["a", "b"])], &counts(100)), Some(0.1));
    }

    #[test]
    fn a_question_waits_until_there_is_more_to_learn_from_than_the_map_knows() {
        let counts = |items, native| Counts { items, native, ..Counts::default() };
        // Pairs were a tenth of the gallery, a fifth of them held out.
        assert_eq!(due(&[], &counts(10_000, 1000), 800), None);
        assert_eq!(due(&[], &counts(10_000, 1249), 800), None);
        assert_eq!(due(&[], &counts(10_000, 1250), 800), Some(0.1));
        // Items that are kept for measuring are not learnt from: one of twenty in a small gallery.
        assert_eq!(due(&[], &counts(2000, 200), 99), None);
        assert_eq!(due(&[], &counts(2000, 224), 99), Some(0.1));
        // The last question that is reached stands for those before.
        assert_eq!(due(&[], &counts(10_000, 4000), 3200), None);
        assert_eq!(due(&[], &counts(10_000, 5000), 3200), Some(0.4));
        // A map that was brought by a refit says there how many it knows.
        let refits = [refit(None, true, ["a", "b"]), refit(Some(0.1), false, ["b", "c"])];
        let pairs = |map| pairs_of(&refits, map, || Ok(Some(77))).unwrap();
        assert_eq!((pairs("a"), pairs("b"), pairs("c")), (77, 5, 77));
    }

    #[test]
    fn an_error_far_above_what_was_to_be_expected_is_drift() {
        let near = refit(None, true, ["a", "b"]);
        assert_eq!(near.findings(), []);
        let expected = Some(MeanError { items: 100, mean: 1.0, spread: 0.05 });
        let far = Refit { expected, ..near.clone() };
        assert_eq!(Refit { expected: None, ..near }.drift(), None);
        let drift = far.drift().unwrap().to_string();
        assert!(drift.contains("2.00 times") && drift.contains("fitted again"), "{drift}");
        let not_taken = Refit { taken: false, ..far.clone() };
        let message = not_taken.drift().unwrap().to_string();
        assert!(message.contains("more pairs"), "{message}");
        // Findings about the gallery as it stands say that the map in use is off, not that one before it was.
        let space = |name: &str| Space::new(name, 2, rehang_core::Distance::L2, false);
        let record =
            |map: &str| UpgradeRecord::new(space("old"), space("new"), map.into(), OrderSettings::default());
        let counts = Counts { adapted: 1, ..Counts::default() };
        let of_now = |refit: &Refit, map| findings(std::slice::from_ref(refit), &record(map), &counts);
        assert_eq!(
            (of_now(&not_taken, "a").len(), of_now(&not_taken, "b"), of_now(&far, "b")),
            (1, vec![], vec![])
        );
        assert_eq!(findings(&[not_taken], &record("a"), &Counts::default()), [], "nothing is adapted");
    }

    #[test]
    fn a_sigma_that_is_off_is_said_with_its_factor() {
        let near = refit(None, false, ["a", "b"]);
        let message_at = |ratio: f64| {
            let scale = SigmaScale { ratio, low: ratio * 0.95, high: ratio * 1.05 };
            // The map in use is the one before where the new one is not taken.
            let before = Refit { sigma_before: scale, ..near.clone() };
            let after = Refit { sigma_after: scale, taken: true, ..near.clone() };
            assert_eq!(before.findings(), after.findings());
            assert_eq!(Refit { taken: true, ..before }.findings(), []);
            after.findings().first().map(ToString::to_string)
        };
        assert_eq!(message_at(1.09), None);
        assert!(message_at(1.15).unwrap().contains("1.15 times too small (1.09 to 1.21)"));
        assert!(message_at(0.5).unwrap().contains("2.00 times too large (1.90 to 2.11)"));
    }
}
