//! Looks at the gallery: the answer to the last one, and the time of the next.

use super::events::Request;

/// Largest number of batches between two looks at the counts and the request.
const BATCHES_BETWEEN_LOOKS: u32 = 8;
/// Longest time between two looks, in milliseconds: a pause waits no longer, however slow the
/// encoder or the rate is.
const LOOK_EVERY_MS: u64 = 1000;
/// Milliseconds between two looks of a follower: half of the second within which new items are to be found.
const FOLLOW_EVERY_MS: u64 = 500;

/// State of the gallery and of the upgrade at the moment of a look.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Look {
    /// Items of the gallery.
    pub items: u64,
    /// Native items, less those that this backfill made native.
    pub native_before: i64,
    /// Request that held.
    pub request: Request,
    /// Whether the upgrade was rolled back since the backfill began.
    pub rolled_back: bool,
    /// Whether another upgrade took the place of this one.
    pub is_over: bool,
    /// Number of other workers.
    pub others: u64,
}

/// Looks of a backfill.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Looks {
    /// Answer to the last look; empty before the first one.
    pub last: Look,
    /// Whether the first look is answered.
    pub has_looked: bool,
    /// Whether an answer is waited for.
    pub is_looking: bool,
    /// Batches that came back since the last look.
    batches: u32,
    /// Time of the last look.
    last_ms: u64,
}

impl Looks {
    /// Takes in the answer to a look.
    pub fn take_in(&mut self, now_ms: u64, look: Look) {
        *self = Self { last: look, has_looked: true, is_looking: false, batches: 0, last_ms: now_ms };
    }

    /// Counts a batch that came back from the encoder.
    pub fn count_batch(&mut self) {
        self.batches += 1;
    }

    /// Begins a look where one is due, and returns whether it does.
    pub fn begin_if_due(&mut self, now_ms: u64, follows: bool) -> bool {
        let is_due =
            self.batches >= BATCHES_BETWEEN_LOOKS || now_ms.saturating_sub(self.last_ms) >= every_ms(follows);
        let begins = !self.is_looking && (!self.has_looked || is_due);
        self.is_looking |= begins;
        begins
    }

    /// Time at which the next look is due, however few batches come back.
    pub fn next_ms(&self, follows: bool) -> u64 {
        self.last_ms.saturating_add(every_ms(follows))
    }
}

/// Longest time between two looks of a backfill, which may be a follower.
fn every_ms(follows: bool) -> u64 {
    if follows { FOLLOW_EVERY_MS } else { LOOK_EVERY_MS }
}
