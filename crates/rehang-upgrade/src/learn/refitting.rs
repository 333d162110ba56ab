//! Asks whether refits of an upgrade pay, beside a run or for a person, and makes them.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Error, Progress, Result, in_parallel};
use rehang_fit::Method;
use rehang_store::Counts;

use crate::kept::{self, Kind};
use crate::learn::pairs::DrawnPairs;
use crate::learn::refit::{Refit, compare, decide, decided_not_recorded, due, keep, pairs_of, refit, refits};
use crate::learn::{fit, report};
use crate::live::backfill::Ending;
use crate::live::faults::Place;
use crate::live::refit_turn::RefitTurn;
use crate::live::run::{Counted, Summary};
use crate::live::watch::{CancellableObserver, watched};
use crate::observe::{Observation, Observer, RefitStage, expect_going};
use crate::places::location::Location;
use crate::record::{Phase, Recorded, UpgradeRecord};
use crate::setup::UpgradeSetup;
use crate::upgrade::Upgrade;

/// Result of the refits beside a run.
#[derive(Debug, Default)]
pub(crate) struct Refitted {
    /// Questions that were answered, and refits that were continued.
    pub(crate) refits: Vec<Refit>,
    /// Findings that a person should know.
    pub(crate) findings: Vec<Finding>,
}

/// Refits of one upgrade: asks whether they pay, and makes them. As an observer it passes on their stages
/// alone, for the run beside it has the progress bar.
pub(crate) struct Refitting<'a> {
    upgrade: &'a Upgrade,
    observer: &'a dyn Observer,
    /// Progress of fits and reports, which end where it is cancelled.
    progress: &'a Progress,
    /// Set when a forecast of the map in use was made, or tried in vain.
    forecast: OnceLock<()>,
    /// Fingerprint of the map that the upgrade was filled with first, and the number of its pairs: its file
    /// is read once.
    first: OnceLock<(String, Option<usize>)>,
    /// Error by which a test has this process die.
    death: OnceLock<Error>,
}

impl Observer for Refitting<'_> {
    fn observe(&self, observation: &Observation<'_>) {
        if matches!(observation, Observation::Refitting { .. }) {
            self.observer.observe(observation);
        }
    }

    fn wants_stop(&self) -> bool {
        self.observer.wants_stop() || self.progress.check().is_err()
    }

    fn reach(&self, place: Place) -> Result<()> {
        self.observer.reach(place).inspect_err(|error| drop(self.death.set(error.clone())))
    }
}

impl<'a> Refitting<'a> {
    pub(crate) fn new(upgrade: &'a Upgrade, observer: &'a dyn Observer, progress: &'a Progress) -> Self {
        let (forecast, first, death) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { upgrade, observer, progress, forecast, first, death }
    }

    /// Runs a backfill and, if it `asks`, answers questions beside it. A run that ends while a question is
    /// being answered waits for the answer, unless it was told to stop, paused or rolled back, or nothing
    /// adapted is left.
    pub(crate) fn beside(
        &self,
        asks: bool,
        run: impl FnOnce(&Counted<'_>) -> Result<Summary>,
    ) -> Result<(Summary, Refitted)> {
        if !asks {
            return Ok((run(&|_| {})?, Refitted::default()));
        }
        thread::scope(|scope| {
            let (sender, receiver) = channel();
            let asking = scope.spawn(move || in_parallel(move || self.answer(&receiver)));
            let summary = {
                // Sending fails only where the thread that answers has ended. The channel ends with this block.
                let tell = move |counts: &Counts| {
                    sender.send(*counts).ok();
                };
                run(&tell)
            };
            let is_over = summary.as_ref().map_or(true, |summary| {
                let is_held_up =
                    matches!(summary.ending, Ending::Paused | Ending::Stopped | Ending::RolledBack);
                is_held_up || summary.native == summary.items
            });
            if is_over || self.observer.wants_stop() {
                self.progress.cancel();
            }
            let refitted = asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (summary, self.death.get()) {
                (Ok(_), Some(death)) => Err(death.clone()),
                (summary, _) => Ok((summary?, refitted)),
            }
        })
    }

    /// Answers the question that is due whenever the run has counted.
    fn answer(&self, receiver: &Receiver<Counts>) -> Refitted {
        let mut refitted = Refitted::default();
        while let Ok(mut counts) = receiver.recv() {
            while let Ok(newer) = receiver.try_recv() {
                counts = newer;
            }
            match self.step(&counts) {
                Ok(answered) => {
                    refitted.findings.extend(answered.iter().flat_map(Refit::findings));
                    refitted.refits.extend(answered);
                }
                Err(error) if self.death.get().is_some() || error.is_cancelled() => break,
                // Another process is at it, or the upgrade is planned anew: the next count will tell.
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    let message =
                        format!("whether a refit pays could not be found out, so the map stays: {error}");
                    refitted.findings.push(Finding::warning(FindingCode::RefitFailed, message));
                    break;
                }
            }
        }
        refitted
    }

    /// Continues what a dead process has begun, or asks the question that is due; nothing where there is
    /// neither.
    fn step(&self, counts: &Counts) -> Result<Option<Refit>> {
        let upgrade = self.upgrade;
        let new = &upgrade.configuration().new.name;
        let Some((record, refits)) = self.filled()? else { return Ok(None) };
        let pairs = self.pairs_of(&refits, &record.adapter)?;
        let asked_at = due(&refits, counts, pairs);
        let is_begun = record.refitting || decided_not_recorded(&refits, &record).is_some();
        if asked_at.is_none() && !is_begun && !self.lacks_forecast(&refits, &record)? {
            return Ok(None);
        }
        let _lock = upgrade.configuration().gallery.lock()?;
        // Another process may have answered since.
        let counts = upgrade.store().counts(new)?;
        self.answered(|refits, pairs| due(refits, &counts, pairs).map(Some))
    }

    /// Returns how many pairs a map of the upgrade was fitted on.
    fn pairs_of(&self, refits: &[Refit], map: &str) -> Result<usize> {
        pairs_of(refits, map, || {
            if let Some((first_map, pairs)) = self.first.get()
                && first_map == map
            {
                return Ok(*pairs);
            }
            let pairs = kept::adapter(self.upgrade.store(), map)?.map(|adapter| adapter.training.pairs);
            self.first.set((map.into(), pairs)).ok();
            Ok(pairs)
        })
    }

    /// Reads the record of this upgrade and all questions; `None` where it is not filled.
    fn filled(&self) -> Result<Option<(UpgradeRecord, Vec<Refit>)>> {
        let (store, configuration) = (self.upgrade.store(), self.upgrade.configuration());
        let record = Recorded::expect(store)?.record;
        let (old, new) = (&configuration.old.name, &configuration.new.name);
        if record.phase != Phase::Filled || !record.is_between(old, new) {
            return Ok(None);
        }
        Ok(Some((record, refits(store, new)?)))
    }

    /// Continues a refit that is begun, or answers the question that `ask` returns as due. `ask` is given
    /// the questions so far and the number of pairs of the map in use. The caller holds the lock of the
    /// upgrade.
    ///
    /// # Errors
    ///
    /// Superseded where another process has decided meanwhile that the work is to end; cancelled where the
    /// observer wants a stop.
    pub(crate) fn answered(
        &self,
        ask: impl FnOnce(&[Refit], usize) -> Option<Option<f64>>,
    ) -> Result<Option<Refit>> {
        let Some((record, refits)) = self.filled()? else { return Ok(None) };
        // The lock of a collection keeps nobody out.
        let is_alone = !matches!(self.upgrade.configuration().gallery, Location::Collection(_));
        let turn = RefitTurn::new(self.upgrade.store(), self.observer, &record, is_alone)?;
        watched(self, self.progress, &|| turn.look(), |progress| {
            let observer = CancellableObserver { observer: self, progress };
            Answering { refitting: self, turn: &turn, observer }.answer((&record, &refits), ask)
        })
    }

    /// Whether a refit was taken up, and its process died before it made the forecast.
    fn lacks_forecast(&self, refits: &[Refit], record: &UpgradeRecord) -> Result<bool> {
        let is_taken = refits.iter().any(|refit| refit.taken && refit.after == record.adapter);
        Ok(self.forecast.get().is_none()
            && is_taken
            && !kept::has(self.upgrade.store(), Kind::Report, &record.adapter)?)
    }
}

/// Answer that is being worked out.
struct Answering<'a> {
    refitting: &'a Refitting<'a>,
    turn: &'a RefitTurn<'a>,
    observer: CancellableObserver<'a>,
}

impl Answering<'_> {
    fn answer(
        &self,
        (record, refits): (&UpgradeRecord, &[Refit]),
        ask: impl FnOnce(&[Refit], usize) -> Option<Option<f64>>,
    ) -> Result<Option<Refit>> {
        let refitting = self.refitting;
        let (store, configuration) = (refitting.upgrade.store(), refitting.upgrade.configuration());
        let spaces = (&configuration.old, &configuration.new);
        if let Some(last) = refits.last()
            && (decided_not_recorded(refits, record).is_some()
                || (record.refitting && last.after == record.adapter))
        {
            self.take(last, record)?;
            return Ok(Some(last.clone()));
        }
        if refitting.lacks_forecast(refits, record)? {
            self.forecast(&record.adapter)?;
        }
        let pairs = refitting.pairs_of(refits, &record.adapter)?;
        let Some(asked_at) = ask(refits, pairs) else { return Ok(None) };
        let Some(kept_pairs) = DrawnPairs::measured(store, spaces.0, spaces.1)? else {
            // In a gallery that has grown since the run began, other items are to be kept.
            keep(store, spaces, pairs, store.counts(&spaces.1.name)?.native)?;
            return Ok(None);
        };
        let planned = configuration.planned_ongoing(store)?;
        let Some(mapped) = &planned.adapter else { return Ok(None) };
        if rehang_files::adapter_file::fingerprint(mapped)? != record.adapter {
            return Ok(None);
        }
        // Old vectors that are taken as they are have no method that could be fitted again.
        let Ok(method) = mapped.training.method.parse::<Method>() else { return Ok(None) };
        let counts = store.counts(&spaces.1.name)?;
        self.turn.begin(RefitStage::Fitting)?;
        let brought = refits.iter().rev().find(|refit| refit.taken && refit.after == record.adapter);
        let expected = match brought {
            Some(refit) => Some(refit.gain.error_after()),
            None => fit::error_on_held_out(store, &record.adapter)?,
        };
        let progress = self.observer.progress;
        let fitted = fit::fit_again(store, spaces, method, &self.observer, progress)?;
        let Some((fitted, pairs)) = fitted else { return Ok(None) };
        let adapter = &fitted.adapter;
        self.turn.begin(RefitStage::Measuring)?;
        let compared = compare((mapped, adapter), &kept_pairs, progress)?;
        let Some((gain, [sigma_before, sigma_after])) = compared else { return Ok(None) };
        let answer = Refit {
            asked_at,
            native: counts.native,
            items: counts.items,
            pairs,
            gain,
            expected,
            sigma_before,
            sigma_after,
            before: record.adapter.clone(),
            after: rehang_files::adapter_file::fingerprint(adapter)?,
            taken: gain.pays(),
        };
        if answer.taken {
            // The map is kept before anything names it, so that whoever continues after a death finds it.
            fit::keep_fitted(store, &fitted, None)?;
            self.take(&answer, record)?;
        } else {
            decide(store, &spaces.1.name, &answer)?;
        }
        Ok(Some(answer))
    }

    /// Takes a new map up, makes adapted vectors anew, and then the forecast. The forecast of the map before
    /// stays in the gallery.
    fn take(&self, decided: &Refit, record: &UpgradeRecord) -> Result<()> {
        let (store, configuration) = (self.refitting.upgrade.store(), self.refitting.upgrade.configuration());
        self.turn.begin(RefitStage::Adapting)?;
        self.turn.takes(&decided.after);
        let missing = || {
            Error::conflict(
                format!("the map {} that was taken up is missing", decided.after),
                "its file in the gallery was lost",
            )
        };
        let adapter = kept::adapter(store, &decided.after)?.ok_or_else(missing)?;
        let (old, new) = (&configuration.old, &configuration.new);
        let setup = UpgradeSetup { old, new, adapter: Some(&adapter), order: record.order };
        refit(store, &setup, decided, &self.observer)?;
        self.forecast(&decided.after)?;
        fit::clear_unused(store)
    }

    /// Makes the forecast of a map, where there is none.
    fn forecast(&self, map: &str) -> Result<()> {
        expect_going(&self.observer)?;
        let refitting = self.refitting;
        let (store, configuration) = (refitting.upgrade.store(), refitting.upgrade.configuration());
        refitting.forecast.get_or_init(|| ());
        if kept::has(store, Kind::Report, map)? {
            return Ok(());
        }
        let Some(adapter) = kept::adapter(store, map)? else { return Ok(()) };
        self.turn.begin(RefitStage::Forecasting)?;
        let spaces = (&configuration.old, &configuration.new);
        match report::measure(store, spaces, adapter, self.observer.progress) {
            // A conflict says that too few pairs are held out for a report.
            Err(error) if error.is_conflict() && self.observer.progress.check().is_ok() => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}
