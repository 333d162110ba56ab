//! Turn of a refit: what other processes see of it, and how they end it.
//!
//! A small document says since when a refit computes and at which stage, and is written anew every second. It
//! may be lost. Another process that writes the document takes the refit's turn away, and the refit ends; so
//! nobody needs to know which process makes it, or where.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rehang_core::{Error, Result};
use rehang_store::Ledger;
use serde::{Deserialize, Serialize};

use crate::live::watch::{Seen, superseded_error};
use crate::observe::{Observation, Observer, RefitStage, RefitUnderWay};
use crate::record::{Phase, Recorded, UpgradeRecord};

/// Milliseconds after which a refit that was not heard of again is over, or its process is dead.
const HEARD_WITHIN_MS: u64 = 15_000;

/// Document about a refit that computes.
#[derive(Debug, Serialize, Deserialize)]
struct Heard {
    since_ms: u64,
    at_ms: u64,
    stage: RefitStage,
}

impl Heard {
    fn is_of_now(&self) -> bool {
        self.at_ms.abs_diff(rehang_clock::unix_ms()) < HEARD_WITHIN_MS
    }
}

/// Names the document about refits of a space.
fn document(new: &str) -> String {
    format!("refit under way of {new}")
}

/// Reads the version of the document, and what it says of a refit that is alive.
fn heard(store: &dyn Ledger, new: &str) -> Result<(Option<u64>, Option<Heard>)> {
    let Some((version, text)) = store.document(&document(new))? else { return Ok((None, None)) };
    // A document that another rehang wrote in its own form is passed over.
    let heard = serde_json::from_str::<Heard>(&text).ok().filter(Heard::is_of_now);
    Ok((Some(version), heard))
}

/// Returns the refit that computes at this moment, in whichever process; `None` where there is none.
pub(crate) fn refit_at_work(store: &dyn Ledger, new: &str) -> Result<Option<RefitUnderWay>> {
    let (_, heard) = heard(store, new)?;
    Ok(heard.map(|heard| RefitUnderWay {
        stage: heard.stage,
        seconds: rehang_clock::unix_ms().saturating_sub(heard.since_ms) / 1000,
    }))
}

/// Asks the refit that computes at this moment to end, and returns whether there is one.
pub(crate) fn make_way(store: &dyn Ledger, new: &str) -> Result<bool> {
    let (version, heard) = heard(store, new)?;
    if heard.is_none() {
        return Ok(false);
    }
    match store.set_document(&document(new), version, "") {
        // The refit has just been heard of once more, or another process asks too.
        Err(error) if error.is_changed_meanwhile() => make_way(store, new),
        outcome => outcome.map(|_| true),
    }
}

/// Turn of the refit that this process is at.
pub(crate) struct RefitTurn<'a> {
    store: &'a dyn Ledger,
    observer: &'a dyn Observer,
    record: &'a UpgradeRecord,
    since_ms: u64,
    /// Map that the refit is about to take up.
    next_map: OnceLock<String>,
    state: Mutex<State>,
}

struct State {
    last_look: Seen,
    stage: Option<RefitStage>,
    /// Version of the document that this process read or wrote last.
    version: Option<u64>,
}

impl<'a> RefitTurn<'a> {
    /// Prepares a refit of the map in a record; other processes do not see it before its first stage.
    ///
    /// # Errors
    ///
    /// Those of the store; a conflict where another process is at a refit, unless the caller `is_alone` by a
    /// lock.
    pub(crate) fn new(
        store: &'a dyn Ledger,
        observer: &'a dyn Observer,
        record: &'a UpgradeRecord,
        is_alone: bool,
    ) -> Result<Self> {
        let (version, heard) = heard(store, &record.new.name)?;
        if heard.is_some() && !is_alone {
            let what = format!("another process is at a refit of {}", store.name());
            return Err(Error::conflict(what, "two would do the same work"));
        }
        let state = Mutex::new(State { last_look: Seen::from_record(record), stage: None, version });
        let since_ms = rehang_clock::unix_ms();
        Ok(Self { store, observer, record, since_ms, next_map: OnceLock::new(), state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stage of the refit.
    ///
    /// # Errors
    ///
    /// Those of the store; superseded where another process has decided meanwhile that the refit is to end.
    pub(crate) fn begin(&self, stage: RefitStage) -> Result<()> {
        self.state().stage = Some(stage);
        let ends = self.tell(stage)?;
        ends.map_or_else(|| self.look(), |why| Ok(Some(why)))?.map_or(Ok(()), Err)
    }

    /// Allows the record to name another map from now on.
    pub(crate) fn takes(&self, map: &str) {
        self.next_map.set(map.into()).ok();
    }

    /// Tells of the refit, and returns why it is to end, where another process has decided so.
    pub(crate) fn look(&self) -> Result<Option<Error>> {
        let Some(stage) = self.state().stage else { return Ok(None) };
        self.observer.observe(&Observation::Refitting { refit: self.so_far(stage) });
        let now = Recorded::expect(self.store)?.record;
        let happened = self.state().last_look.decided(&now).or_else(|| self.is_planned_anew(&now));
        match happened {
            Some(happened) => Ok(Some(superseded_error(self.store, "a refit", happened))),
            None => self.tell(stage),
        }
    }

    fn so_far(&self, stage: RefitStage) -> RefitUnderWay {
        RefitUnderWay { stage, seconds: rehang_clock::unix_ms().saturating_sub(self.since_ms) / 1000 }
    }

    /// Tells other processes of the refit; returns why it is to end, where one of them has taken its turn
    /// away.
    fn tell(&self, stage: RefitStage) -> Result<Option<Error>> {
        let heard = Heard { since_ms: self.since_ms, at_ms: rehang_clock::unix_ms(), stage };
        let name = document(&self.record.new.name);
        let text = serde_json::to_string(&heard).map_err(|error| Error::corrupt(&name, error))?;
        let mut state = self.state();
        match self.store.set_document(&name, state.version, &text) {
            Ok(version) => state.version = Some(version),
            Err(error) if error.is_changed_meanwhile() => {
                return Ok(Some(superseded_error(
                    self.store,
                    "a refit",
                    "another process needs the upgrade for itself",
                )));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    fn is_planned_anew(&self, now: &UpgradeRecord) -> Option<&'static str> {
        let before = self.record;
        let is_same = now.is_between(&before.old.name, &before.new.name)
            && now.phase == Phase::Filled
            && now.order == before.order
            && (now.adapter == before.adapter || self.next_map.get() == Some(&now.adapter));
        (!is_same).then_some("it was planned anew meanwhile")
    }
}

impl Drop for RefitTurn<'_> {
    fn drop(&mut self) {
        let state = self.state();
        // Where this fails, the refit is still shown for some seconds.
        if state.stage.is_some() {
            self.store.set_document(&document(&self.record.new.name), state.version, "").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Provenance, Space};
    use rehang_store_tests::MemoryStore;

    use super::*;
    use crate::observe::Unobserved;
    use crate::record::OrderSettings;
    use crate::verbs::begin_sampling;

    #[test]
    fn a_refit_of_a_dead_process_is_not_shown_for_ever() {
        let store = MemoryStore::new();
        let [old, new] = ["old", "new"].map(|name| Space::new(name, 2, Distance::L2, false));
        store.create_space(&old, Provenance::Old).unwrap();
        begin_sampling(&store, &old, &new, OrderSettings::default(), &Unobserved).unwrap();
        let mut recorded = Recorded::expect(&store).unwrap();
        recorded.change(&store, |record| record.phase = Phase::Filled).unwrap();
        let begin = |is_alone| RefitTurn::new(&store, &Unobserved, &recorded.record, is_alone);
        let refit = begin(false).unwrap();
        assert_eq!(refit_at_work(&store, "new").unwrap(), None);
        refit.begin(RefitStage::Measuring).unwrap();
        assert_eq!(refit_at_work(&store, "new").unwrap().unwrap().to_string(), "2 of 4 (measuring), 0 s");
        // Where no lock says who is alive, the document does.
        assert!(begin(false).is_err() && begin(true).is_ok());
        drop(refit);
        assert_eq!(refit_at_work(&store, "new").unwrap(), None);
        // A process that died said nothing at its end.
        let now = rehang_clock::unix_ms();
        let (version, _) = store.document("refit under way of new").unwrap().unwrap();
        let heard = Heard { since_ms: now - 60_000, at_ms: now - 20_000, stage: RefitStage::Fitting };
        let text = serde_json::to_string(&heard).unwrap();
        store.set_document("refit under way of new", Some(version), &text).unwrap();
        assert_eq!(refit_at_work(&store, "new").unwrap(), None);
        assert!(!make_way(&store, "new").unwrap() && begin(false).is_ok());
    }
}
