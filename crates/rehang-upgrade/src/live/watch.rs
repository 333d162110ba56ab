//! Ends long work within a second of a decision of another process: a pause, a stop, a rollback or a finish.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rehang_core::{Error, Progress, Result};
use rehang_store::Ledger;

use crate::live::backfill::Request;
use crate::live::faults::Place;
use crate::observe::{Observation, Observer};
use crate::record::{Phase, Recorded, UpgradeRecord};
use crate::setup::upgrade_of;

/// Time between two looks whether the observer wants a stop.
const HEARD_EVERY: Duration = Duration::from_millis(100);
/// Number of looks between two readings of the record.
const READ_EVERY: u32 = 10;

/// Does `work` with a part of `whole_progress`. The work is cancelled where the observer wants a stop,
/// and where `look`, which is asked once a second, says why it is to end: that is the error then.
///
/// # Errors
///
/// Those of the work, and what `look` says.
pub(crate) fn watched<T>(
    observer: &dyn Observer,
    whole_progress: &Progress,
    look: &(dyn Fn() -> Result<Option<Error>> + Sync),
    work: impl FnOnce(&Progress) -> Result<T>,
) -> Result<T> {
    let (progress, ended) = (whole_progress.part(), OnceLock::new());
    let done = thread::scope(|scope| {
        let (over, wait) = channel::<()>();
        let (progress, ended) = (&progress, &ended);
        scope.spawn(move || {
            let mut heard = 0;
            while wait.recv_timeout(HEARD_EVERY) == Err(RecvTimeoutError::Timeout) {
                if observer.wants_stop() {
                    progress.cancel();
                }
                heard += 1;
                // A store that does not answer decides nothing; the work will say so itself.
                if heard % READ_EVERY == 0
                    && let Ok(Some(why)) = look()
                {
                    ended.set(why).ok();
                    progress.cancel();
                }
            }
        });
        let done = work(progress);
        drop(over);
        done
    });
    match (done, ended.into_inner()) {
        (Err(error), Some(why)) if error.is_cancelled() => Err(why),
        (done, _) => done,
    }
}

/// Observer of work that ends where a part of a progress is cancelled.
pub(crate) struct CancellableObserver<'a> {
    pub(crate) observer: &'a dyn Observer,
    pub(crate) progress: &'a Progress,
}

impl Observer for CancellableObserver<'_> {
    fn observe(&self, observation: &Observation<'_>) {
        self.observer.observe(observation);
    }

    fn wants_stop(&self) -> bool {
        self.progress.check().is_err() || self.observer.wants_stop()
    }

    fn counters(&self) -> Option<&Progress> {
        Some(self.progress)
    }

    fn reach(&self, place: Place) -> Result<()> {
        self.observer.reach(place)
    }
}

/// Phase and request of a record when it was looked at last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    phase: Phase,
    request: Request,
}

impl Seen {
    pub(crate) fn from_record(record: &UpgradeRecord) -> Self {
        Self { phase: record.phase, request: record.request }
    }

    /// Returns a decision since the last look that ends whatever computes for the upgrade.
    pub(crate) fn decided(&mut self, now: &UpgradeRecord) -> Option<&'static str> {
        let before = std::mem::replace(self, Self::from_record(now));
        match (now.phase, now.request) {
            (phase @ (Phase::RolledBack | Phase::Abandoned), _) if phase != before.phase => {
                Some("it was rolled back meanwhile")
            }
            (Phase::Finished, _) if before.phase != Phase::Finished => Some("it was finished meanwhile"),
            (_, Request::Pause) if before.request != Request::Pause => Some("it was paused meanwhile"),
            (_, Request::Stop) if before.request != Request::Stop => Some("it was stopped meanwhile"),
            _ => None,
        }
    }
}

/// Returns the error for work that a decision of another process ended.
pub(crate) fn superseded_error(store: &dyn Ledger, what: &str, happened: &str) -> Error {
    let what = format!("{what} for {}", upgrade_of(store));
    Error::superseded(what, format!("{happened}; nothing half is left, and the same call goes on"))
}

/// Does work for the upgrade of a gallery like [`watched`]: `what` names it in errors.
///
/// # Errors
///
/// Those of the work and of the store; superseded where another process has paused, stopped, rolled back or
/// finished the upgrade meanwhile.
pub(crate) fn watched_upgrade<T>(
    store: &dyn Ledger,
    what: &str,
    observer: &dyn Observer,
    work: impl FnOnce(&Progress) -> Result<T>,
) -> Result<T> {
    let before = Recorded::read(store)?.map(|recorded| Seen::from_record(&recorded.record));
    let last_look = Mutex::new(before);
    let look = || {
        // A start writes the first record itself.
        let Some(Recorded { record, .. }) = Recorded::read(store)? else { return Ok(None) };
        let mut last_look = last_look.lock().unwrap_or_else(PoisonError::into_inner);
        let happened = last_look.get_or_insert_with(|| Seen::from_record(&record)).decided(&record);
        Ok(happened.map(|happened| superseded_error(store, what, happened)))
    };
    let alone = Progress::default();
    watched(observer, observer.counters().unwrap_or(&alone), &look, work)
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Provenance, Space};
    use rehang_store_tests::MemoryStore;

    use super::*;
    use crate::observe::Unobserved;
    use crate::record::OrderSettings;
    use crate::verbs::{begin_sampling, request};

    fn until_it_is_stopped(progress: &Progress) -> Result<()> {
        loop {
            progress.check()?;
            thread::yield_now();
        }
    }

    #[test]
    fn work_ends_within_a_second_of_what_another_process_decides() {
        let store = MemoryStore::new();
        let [old, new] = ["old", "new"].map(|name| Space::new(name, 2, Distance::L2, false));
        store.create_space(&old, Provenance::Old).unwrap();
        begin_sampling(&store, &old, &new, OrderSettings::default(), &Unobserved).unwrap();
        let watched = |decided: Request| {
            watched_upgrade(&store, "a fit", &Unobserved, |progress| {
                request(&store, &old, &new, decided)?;
                until_it_is_stopped(progress)
            })
        };
        for decided in [Request::Pause, Request::Stop] {
            let error = watched(decided).unwrap_err();
            assert!(error.is_superseded() && error.to_string().contains("meanwhile"), "{error}");
        }
        // A decision from before the work is no news: the same call goes on.
        watched_upgrade(&store, "a fit", &Unobserved, Progress::check).unwrap();
    }

    #[test]
    fn a_wish_of_the_observer_ends_work_as_a_stop_of_the_whole_does() {
        struct Stops;
        impl Observer for Stops {
            fn wants_stop(&self) -> bool {
                true
            }
        }
        let nothing = || -> Result<Option<Error>> { Ok(None) };
        let whole_progress = Progress::default();
        let error = watched(&Stops, &whole_progress, &nothing, until_it_is_stopped).unwrap_err();
        assert!(error.is_cancelled() && whole_progress.check().is_ok());
        whole_progress.cancel();
        assert!(
            watched(&Unobserved, &whole_progress, &nothing, until_it_is_stopped).unwrap_err().is_cancelled()
        );
    }
}
