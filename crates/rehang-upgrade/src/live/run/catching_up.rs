//! Catching up with items that came or changed during a run: they are adapted, so that searches find them at
//! once.

use rehang_core::Result;
use rehang_store::ItemKey;

use super::setup::BackfillSetup;
use crate::kept;
use crate::live::fill::Filler;
use crate::observe::{Observation, Observer};
use crate::record::{Phase, Recorded, UpgradeRecord};

/// Factor by which the rest after a catch-up is longer than the catch-up, so that it never takes most of a
/// run: it pages through all items that lack a vector, also those that can never be adapted.
const CATCH_UP_RESTS: u64 = 10;
/// Longest time of one catch-up: batches that came back wait for it, leases run, and a bulk import would keep
/// it busy for ever.
pub(super) const CATCH_UP_MAX_MS: u64 = 1000;

/// Catch-ups of one run.
pub(super) struct CatchUp {
    /// Filler that adapts; `None` where nothing is adapted.
    filler: Option<Filler>,
    /// Fingerprint of the filler's adapter.
    adapter: String,
    /// Time from which the next catch-up may begin.
    from_ms: u64,
    /// Item where the last catch-up stopped, if it did not come to the end.
    after: Option<ItemKey>,
    /// Items that were caught up with so far.
    pub items: u64,
}

impl CatchUp {
    /// Makes the catch-ups of a run, with the fingerprint of the filler's adapter.
    pub fn new(filler: Option<Filler>, adapter: String) -> Self {
        Self { filler, adapter, from_ms: 0, after: None, items: 0 }
    }

    /// Whether the next catch-up may begin.
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.from_ms
    }

    /// Whether the last catch-up did not come to the end.
    pub fn is_halfway(&self) -> bool {
        self.after.is_some()
    }

    /// Adapts items that came or changed meanwhile, from where the last catch-up ended, for `longest_ms` at
    /// most. `rolled_back` says whether the upgrade is rolled back.
    pub fn go_on(
        &mut self,
        setup: &BackfillSetup<'_>,
        observer: &dyn Observer,
        record: &UpgradeRecord,
        rolled_back: bool,
        longest_ms: u64,
    ) -> Result<()> {
        if self.filler.is_none() {
            return Ok(());
        }
        // Searches may still go to the new space after a rollback that died.
        let is_filled = record.phase == Phase::Filled || (rolled_back && record.is_served(setup.store)?);
        if !is_filled {
            return Ok(());
        }
        // Where the map was fitted again meanwhile and the new one is not at hand, items that lack a vector
        // are the next to be embedded, and wait for that.
        if record.adapter != self.adapter && !self.take_new_map(setup, record)? {
            return Ok(());
        }
        let Some(filler) = &self.filler else { return Ok(()) };
        let clock = setup.clock;
        let began_ms = clock.now_ms();
        let epoch = record.epoch.unwrap_or_default();
        let may_go_on = || clock.now_ms() - began_ms < longest_ms && !observer.wants_stop();
        let after = &mut self.after;
        let adapted = match filler.catch_up_from(setup.store, epoch, after, &may_go_on, observer) {
            Ok(items) => items,
            // The upgrade was planned anew since the record was read: the process that did so catches up.
            Err(error) if error.is_superseded() => 0,
            Err(error) => return Err(error),
        };
        self.items += adapted;
        if adapted > 0 {
            observer.observe(&Observation::CaughtUp { items: adapted });
        }
        let ended_ms = clock.now_ms();
        // As long as items come faster than they are caught up with, the next look continues at once.
        let rests = if adapted > 0 && self.is_halfway() { 0 } else { CATCH_UP_RESTS };
        self.from_ms = ended_ms + rests * ended_ms.saturating_sub(began_ms);
        Ok(())
    }

    /// Takes the map of a record, which was fitted again meanwhile, and returns whether it is at hand.
    ///
    /// # Errors
    ///
    /// Those of the store; for a follower a conflict where the map is not at hand: without it, a follower
    /// would leave new items for nobody to find.
    fn take_new_map(&mut self, setup: &BackfillSetup<'_>, record: &UpgradeRecord) -> Result<bool> {
        let Some(adapter) = kept::adapter(setup.store, &record.adapter)? else {
            if setup.limits.follow {
                let plan = UpgradeRecord { adapter: self.adapter.clone(), ..record.clone() };
                Recorded::expect_planned(setup.store, &plan)?;
            }
            return Ok(false);
        };
        self.filler = Some(Filler::new(&adapter, &record.old.name, &record.new.name, record.order)?);
        self.adapter.clone_from(&record.adapter);
        Ok(true)
    }
}
