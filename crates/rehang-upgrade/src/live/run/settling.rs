//! Settling of a follower's writes when it rests, as the end of another backfill would.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use rehang_core::{Result, in_parallel};
use rehang_store::{Ledger, Store};

use super::setup::BackfillSetup;
use crate::live::backfill::{Backfill, Ending};
use crate::observe::{Observation, Observer};
use crate::places::index::prepare_index;
use crate::record::Recorded;

/// Rests of a follower, which the observer is told of, and what was settled in them.
pub(super) struct Settling {
    /// Channel to the thread that settles.
    wishes: Sender<()>,
    /// Reason why the follower embedded nothing when the observer was told last.
    resting: Option<Ending>,
    /// Items that this run had made native when they were settled last.
    settled: u64,
}

impl Settling {
    /// Starts the thread that settles, where the run is a follower's.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        setup: &BackfillSetup<'env>,
        space: &'env str,
        observer: &'env dyn Observer,
    ) -> Self {
        let (wishes, to_settle) = channel::<()>();
        if setup.limits.follow {
            let store = setup.store;
            scope.spawn(move || in_parallel(move || settle(store, space, &to_settle, observer)));
        }
        Self { wishes, resting: None, settled: 0 }
    }

    /// Tells the observer that a follower has begun or ceased to rest. When one begins, its writes are
    /// settled: `written` counts the items that the run has made native.
    pub fn show_rest(&mut self, state: &Backfill, written: u64, observer: &dyn Observer) {
        let rests = state.why_idle();
        if rests == self.resting || state.is_ending() {
            return;
        }
        self.resting = rests;
        observer.observe(&Observation::Rests { because: rests });
        if rests.is_some() && written > self.settled {
            self.settled = written;
            // Sending succeeds: the thread lives as long as this loop.
            self.wishes.send(()).ok();
        }
    }
}

/// Observer of work beside a follower: it says no more than whether a stop is wanted, since such work has no
/// progress bar of its own.
struct Beneath<'a>(&'a dyn Observer);

impl Observer for Beneath<'_> {
    fn wants_stop(&self) -> bool {
        self.0.wants_stop()
    }
}

/// Settles a follower's writes each time that is wished, as the end of another backfill would: makes the
/// index, and forgets the handicap where nothing is adapted any more. It runs beside the follower, so that
/// items that come meanwhile do not wait.
fn settle(store: &dyn Store, space: &str, wishes: &Receiver<()>, observer: &dyn Observer) {
    while wishes.recv().is_ok() {
        // Searches are right without an index, and the doctor says what is wrong with it.
        drop(prepare_index(store, space, &Beneath(observer)));
        if store.counts(space).is_ok_and(|counts| counts.adapted == 0) {
            drop(forget_handicap(store));
        }
    }
}

/// Sets the handicap to 0 once the last adapted vector of a finished upgrade is native. Searches then add
/// nothing and look for nothing apart: no adapted vector comes after the finish.
pub(super) fn forget_handicap(store: &dyn Ledger) -> Result<()> {
    let mut recorded = Recorded::expect(store)?;
    if !recorded.record.dropped {
        return Ok(());
    }
    match recorded.change(store, |record| record.handicap = 0.0) {
        // A change meanwhile leaves it to the next run.
        Err(error) if error.is_changed_meanwhile() => Ok(()),
        outcome => outcome,
    }
}
