//! Claims of items: what was claimed and waits for an encoder, and whether another claim may give something.

use std::collections::VecDeque;

use rehang_store::ItemKey;

/// Milliseconds between two claims while all that is left is held by other workers, who may die.
const CLAIM_AGAIN_MS: u64 = 500;

/// Claims of a backfill, and the items that they gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Claims {
    /// Items that were claimed and wait for an encoder.
    pub ready: VecDeque<ItemKey>,
    /// Last item in hand, which must be embedded alone: it waits for all before it, and nothing
    /// is claimed after it.
    pub alone: Option<ItemKey>,
    /// Whether an answer is waited for.
    pub is_claiming: bool,
    /// Whether the last claim gave nothing, and nothing has changed since.
    pub last_was_empty: bool,
    /// Whether all that was there at the beginning is done or in hand.
    is_late: bool,
    /// Number of items that others held at the last claim. For their sake a claim is tried again
    /// at `again_ms`.
    held_by_others: u64,
    again_ms: u64,
}

impl Claims {
    /// Takes in the answer to a claim. With `alone`, its last item is embedded with nothing else in hand;
    /// with `late`, all that waits came since the backfill began.
    pub fn take_in(&mut self, now_ms: u64, keys: Vec<ItemKey>, held_by_others: u64, alone: bool, late: bool) {
        self.is_claiming = false;
        self.is_late |= late;
        self.alone = keys.last().copied().filter(|_| alone);
        self.last_was_empty = keys.is_empty();
        self.held_by_others = held_by_others;
        let wait_ms = if keys.is_empty() && held_by_others > 0 { CLAIM_AGAIN_MS } else { 0 };
        self.again_ms = now_ms.saturating_add(wait_ms);
        // An item that was changed while it waited is embedded once, as it is now.
        self.ready.retain(|key| !keys.contains(key));
        self.ready.extend(keys);
    }

    /// Lets another claim be tried where time alone may have freed items. Items that others hold are not
    /// free a moment later; a follower's looks say whether anything else waits.
    pub fn pass_time(&mut self, now_ms: u64, follows: bool) {
        let looks_say = follows && self.held_by_others == 0;
        self.last_was_empty &= looks_say || now_ms < self.again_ms;
    }

    /// Lets another claim be tried where a look says that something waits.
    pub fn note_look(&mut self, now_ms: u64, waits: bool) {
        self.last_was_empty &= !waits || now_ms < self.again_ms;
    }

    /// Gives the items that wait for an encoder back, to be released.
    pub fn give_back(&mut self) -> Vec<ItemKey> {
        (self.alone, self.last_was_empty) = (None, false);
        self.ready.drain(..).collect()
    }

    /// Number of items that wait and may be embedded together.
    pub fn company(&self) -> usize {
        self.ready.len().saturating_sub(usize::from(self.alone.is_some()))
    }

    /// Whether another claim may give items.
    pub fn may_go_on(&self) -> bool {
        !self.is_claiming && !self.last_was_empty && !self.is_late && self.alone.is_none()
    }

    /// Whether another claim would give nothing that the backfill has to do.
    pub fn are_done(&self) -> bool {
        self.last_was_empty || (self.is_late && !self.is_claiming)
    }

    /// Time of the next claim for the sake of what others hold. Where all that waits came since the
    /// beginning, so did what others hold of it.
    pub fn again_for_others_ms(&self) -> Option<u64> {
        (self.held_by_others > 0 && !self.is_late).then_some(self.again_ms)
    }
}
