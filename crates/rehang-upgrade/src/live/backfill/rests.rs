//! Rests: an encoder that does not answer, items that failed and vectors that the store does not take are
//! left alone for a while, each time for longer.

use std::collections::BTreeMap;

use rehang_store::{ItemKey, Revision};

use super::events::Attempt;
use crate::live::limits::Limits;

/// First and longest time, in milliseconds, for which a follower leaves an encoder alone that does not
/// answer. Each further time is twice as long.
const ENCODER_RESTS_MS: (u64, u64) = (5000, 300_000);
/// Milliseconds for which a vector is written again that the store does not take.
const TAKEN_WITHIN_MS: u64 = 600_000;
/// Largest number of doublings of the rest between two writes of a vector that the store does not take. The
/// first rest is that between two attempts of the encoder.
const TAKEN_DOUBLINGS_MAX: u32 = 5;

/// Rest of an encoder that does not answer a follower.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct EncoderRest {
    /// Whether the encoder has spent its budget.
    pub has_spent_budget: bool,
    /// Times in a row that the encoder has not answered. It is left alone until `until_ms`.
    times: u32,
    until_ms: u64,
}

impl EncoderRest {
    /// Notes that the encoder has answered.
    pub fn note_answer(&mut self) {
        self.times = 0;
    }

    /// Begins a rest. With `for_good`, the encoder gives no more vectors to this process.
    pub fn begin(&mut self, now_ms: u64, for_good: bool) {
        self.has_spent_budget |= for_good;
        let (first_ms, longest_ms) = ENCODER_RESTS_MS;
        let rest_ms = first_ms.saturating_mul(1 << self.times.min(16)).min(longest_ms);
        self.until_ms = now_ms.saturating_add(rest_ms);
        self.times += 1;
    }

    /// Whether the encoder may be asked.
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms
    }
}

/// Items that failed and may be tried again.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct FailedItems(BTreeMap<ItemKey, FailedItem>);

/// Rest of an item that failed, with the number of its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FailedItem {
    attempts: u32,
    until_ms: u64,
    revision: Revision,
    /// Whether the item is still leased: no other worker may try it until its rest is over.
    is_leased: bool,
}

impl FailedItems {
    /// Sends an item to rest after a failed attempt, and returns whether it has another one; otherwise it is
    /// forgotten.
    pub fn rest(&mut self, now_ms: u64, attempt: &Attempt, limits: &Limits) -> bool {
        // A changed item begins anew: another content failed before.
        let before = self.0.get(&attempt.key).filter(|item| item.revision == attempt.revision);
        let attempts = before.map_or(0, |item| item.attempts) + 1;
        if attempt.is_permanent() || attempts >= limits.attempts {
            self.forget(attempt.key);
            return false;
        }
        let rest_ms = limits.rest_ms.saturating_mul(1 << (attempts - 1).min(16));
        let until_ms = now_ms.saturating_add(rest_ms);
        let item = FailedItem { attempts, until_ms, revision: attempt.revision, is_leased: true };
        self.0.insert(attempt.key, item);
        true
    }

    /// Forgets how often an item failed.
    pub fn forget(&mut self, key: ItemKey) {
        self.0.remove(&key);
    }

    /// Ends the rests that are over and gives their items. These go back to the queue, from which they come
    /// as they are by then.
    pub fn end_rests(&mut self, now_ms: u64) -> Vec<ItemKey> {
        let mut rested = Vec::new();
        for (key, item) in &mut self.0 {
            if item.is_leased && item.until_ms <= now_ms {
                item.is_leased = false;
                rested.push(*key);
            }
        }
        rested
    }

    /// Whether no item has failed that may be tried again.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Times at which the rests of leased items end; none where no item is leased.
    pub fn ends_ms(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.values().filter(|item| item.is_leased).map(|item| item.until_ms)
    }
}

/// Items whose vectors are untaken: the store has not taken them though the items are what they were. The
/// loop has the vectors.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct UntakenItems(BTreeMap<ItemKey, UntakenItem>);

/// Rest of a vector that the store has not taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UntakenItem {
    tries: u32,
    since_ms: u64,
    /// Time at which the vector is written again.
    until_ms: u64,
    /// Whether the vector waits for that time; otherwise it is being written.
    waits: bool,
}

impl UntakenItems {
    /// Sends an item to rest whose vector the store has not taken, and returns whether it has another write.
    /// An item that has had its last one, right after the longest time, is forgotten. The first rest has
    /// `rest_ms`.
    pub fn rest(&mut self, now_ms: u64, key: ItemKey, rest_ms: u64) -> bool {
        let first = UntakenItem { tries: 0, since_ms: now_ms, until_ms: 0, waits: true };
        let item = self.0.entry(key).or_insert(first);
        let last_ms = item.since_ms.saturating_add(TAKEN_WITHIN_MS + 1);
        if now_ms >= last_ms {
            self.forget(key);
            return false;
        }
        let rest_ms = rest_ms.saturating_mul(1 << item.tries.min(TAKEN_DOUBLINGS_MAX));
        item.tries += 1;
        item.until_ms = now_ms.saturating_add(rest_ms).min(last_ms);
        item.waits = true;
        true
    }

    /// Forgets an item: its vector was taken, or is given up.
    pub fn forget(&mut self, key: ItemKey) {
        self.0.remove(&key);
    }

    /// Takes the items whose rest is over at `until_ms`, to write their vectors again.
    pub fn take_due(&mut self, until_ms: u64) -> Vec<ItemKey> {
        let mut due = Vec::new();
        for (key, item) in &mut self.0 {
            if item.waits && item.until_ms <= until_ms {
                item.waits = false;
                due.push(*key);
            }
        }
        due
    }

    /// Number of items, those whose vectors are being written among them.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Items that rest.
    pub fn resting(&self) -> impl Iterator<Item = ItemKey> + '_ {
        self.0.iter().filter(|(_, item)| item.waits).map(|(key, _)| *key)
    }

    /// Times at which the rests end.
    pub fn ends_ms(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.values().filter(|item| item.waits).map(|item| item.until_ms)
    }
}
