//! Turns of requests, and room for their bodies: kept apart by kinds of routes, and shared by those who ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::options::ServeLimits;

/// Amount that callers share: none holds more than a part of it at the same time.
pub struct Shares {
    all: Arc<Semaphore>,
    /// Amount that one caller may hold.
    share: usize,
    /// Rest of a caller's share, for all who hold something.
    rests: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// Part of an amount, which a request has until it is dropped.
pub struct Held {
    of_share: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
}

impl Held {
    /// Adds another part of one amount that one caller has taken.
    pub fn merge(&mut self, other: Self) {
        self.of_share.merge(other.of_share);
        self.of_all.merge(other.of_all);
    }
}

impl Shares {
    pub fn new(all: usize, share: usize) -> Self {
        let all = all.min(Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(all)), share: share.min(all), rests: Mutex::default() }
    }

    /// Takes so much for a caller; `None` where its share, or all, has too little left.
    pub fn try_take(&self, who: &str, amount: usize) -> Option<Held> {
        let permits = u32::try_from(amount).unwrap_or(u32::MAX);
        let of_share = self.rest(who).try_acquire_many_owned(permits).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(permits).ok()?;
        Some(Held { of_share, of_all })
    }

    /// Waits until a caller may have one. Who has its share already waits for itself, and in nobody's way.
    pub async fn take(&self, who: &str) -> Option<Held> {
        let of_share = self.rest(who).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Held { of_share, of_all })
    }

    fn rest(&self, who: &str) -> Arc<Semaphore> {
        let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rest) = rests.get(who) {
            return Arc::clone(rest);
        }
        // Permits hold their semaphore: nobody has anything of one that only the table holds.
        rests.retain(|_, rest| Arc::strong_count(rest) > 1);
        let rest = Arc::new(Semaphore::new(self.share));
        rests.insert(who.to_owned(), Arc::clone(&rest));
        rest
    }
}

/// Turns of the requests of one kind of routes, and room for their bodies.
pub struct Lane {
    /// Places of requests that wait for their turn, have it, or have an answer that is being sent.
    pub places: Shares,
    /// Turns to ask the gallery.
    pub turns: Shares,
    /// Bytes of bodies that have come and are not read yet.
    pub bodies: Shares,
}

impl Lane {
    /// Makes a lane of which a caller may hold one of so many `parts`, and in any case a turn and a body.
    pub fn new(limits: &ServeLimits, parts: usize) -> Self {
        let shares = |all: usize, least: usize| Shares::new(all, (all / parts).max(least));
        let places = limits.at_once.saturating_add(limits.waiting);
        Self {
            places: shares(places, 1),
            turns: shares(limits.at_once, 1),
            bodies: shares(places.saturating_mul(limits.body), limits.body),
        }
    }
}
