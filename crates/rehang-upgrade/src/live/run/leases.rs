//! Leases of a run: what it claims, renews and gives back, and what other workers hold.

use std::time::Duration;

use rehang_core::Result;
use rehang_store::{AtWork, Claimed, ItemKey};

use super::patience::{Patience, WAIT_MAX};
use super::setup::BackfillSetup;

/// Leases of one worker.
pub(super) struct Leases<'a> {
    setup: &'a BackfillSetup<'a>,
    space: &'a str,
    patience: Patience<'a>,
    /// Time when the leases were renewed last.
    renewed_ms: u64,
}

impl<'a> Leases<'a> {
    /// Makes the leases of a worker that holds none.
    pub fn new(setup: &'a BackfillSetup<'a>, space: &'a str, patience: Patience<'a>) -> Self {
        Self { setup, space, patience, renewed_ms: setup.clock.now_ms() }
    }

    /// Waits until the leases of workers that died have run out, one lease long at most: what they had sent
    /// in bulk comes first. Otherwise this run would send the same amount again beside it.
    pub fn outwait_the_dead(&self) -> Result<()> {
        let BackfillSetup { clock, limits, worker, .. } = *self.setup;
        let until_ms = clock.now_ms().saturating_add(limits.lease_ms);
        while clock.now_ms() < until_ms && !self.patience.observer.wants_stop() {
            if self.at_work()?.iter().all(|other| other.worker == worker) {
                break;
            }
            clock.wait(WAIT_MAX);
        }
        Ok(())
    }

    /// Claims items, at most `limit`.
    pub fn claim(&self, limit: usize) -> Result<Claimed> {
        let BackfillSetup { store, scope, worker, .. } = *self.setup;
        self.patience.ask(|| store.claim(self.space, scope.queue(), worker, limit, self.duration()))
    }

    /// Renews the leases, after a third of their time has passed.
    pub fn renew(&mut self) -> Result<()> {
        let BackfillSetup { store, clock, limits, worker, .. } = *self.setup;
        let now_ms = clock.now_ms();
        if now_ms.saturating_sub(self.renewed_ms) < limits.lease_ms / 3 {
            return Ok(());
        }
        self.patience.ask(|| store.renew(self.space, worker, self.duration()))?;
        self.renewed_ms = now_ms;
        Ok(())
    }

    /// Gives items back, and returns how many were held.
    pub fn give_back(&self, keys: &[ItemKey]) -> Result<u64> {
        self.patience.ask(|| self.setup.store.release(self.space, self.setup.worker, Some(keys)))
    }

    /// Gives back items that are leased to this worker without its knowing, because a connection broke before
    /// the answer to a claim came. Returns how many there were. They count as held until another claim finds
    /// them free: the answer to the release may be lost as well, and a transaction of a broken connection may
    /// still be open.
    pub fn give_back_unknown(&self) -> Result<u64> {
        let BackfillSetup { store, worker, .. } = *self.setup;
        let mut at_work = self.at_work()?.into_iter();
        let Some(unknown) = at_work.find(|at_work| at_work.worker == worker) else { return Ok(0) };
        self.patience.ask(|| store.release(self.space, worker, None))?;
        Ok(unknown.items)
    }

    /// Counts the other workers that hold items; asks the store once.
    pub fn count_others(&self) -> Result<u64> {
        let is_other = |at_work: &AtWork| at_work.worker != self.setup.worker;
        Ok(self.setup.store.at_work(self.space)?.into_iter().filter(is_other).count() as u64)
    }

    /// Workers that hold items of the space.
    fn at_work(&self) -> Result<Vec<AtWork>> {
        self.patience.ask(|| self.setup.store.at_work(self.space))
    }

    /// Time that a lease lasts.
    fn duration(&self) -> Duration {
        Duration::from_millis(self.setup.limits.lease_ms)
    }
}
