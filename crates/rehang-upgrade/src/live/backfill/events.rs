//! Vocabulary of a backfill's pure part: events go in, actions come out, and a reason ends it.

use rehang_encode::ItemFailure;
use rehang_store::{ItemKey, Revision, WriteOutcome};
use serde::{Deserialize, Serialize};

/// Request to a running backfill: to go on, to pause or to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Go on.
    #[default]
    Run,
    /// Pause: what is being encoded is finished and written, nothing new is begun.
    Pause,
    /// Stop: as a pause, but for good.
    Stop,
}

/// Reason why a backfill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Nothing is left that can be embedded, but for items that came after the backfill began.
    NothingLeft,
    /// The wanted share of items is native.
    ReachedFraction,
    /// The budget of this run is used.
    SpentBudget,
    /// A pause was asked for.
    Paused,
    /// A stop was asked for.
    Stopped,
    /// The upgrade was rolled back meanwhile, or another one took its place.
    RolledBack,
    /// A budget of the encoder itself is spent ([`rehang_core::ErrorKind::BudgetSpent`]): the cost of going
    /// on is not granted.
    EncoderBudgetSpent,
    /// The process was asked to end (Ctrl-C), or the encoder or the store failed for good.
    Interrupted,
    /// A follower was asked to end (Ctrl-C): what it had in hand is written.
    Dismissed,
    /// The gallery that a follower was at was released.
    Released,
}

impl Ending {
    /// Whether the backfill ended before it had done what was asked of it, and not at a request.
    pub fn is_early(self) -> bool {
        matches!(self, Self::RolledBack | Self::EncoderBudgetSpent | Self::Interrupted)
    }
}

/// Failed attempt of the encoder at an item.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The item.
    pub key: ItemKey,
    /// The source revision that was tried.
    pub revision: Revision,
    /// Reason that the encoder gave.
    pub failure: ItemFailure,
}

impl Attempt {
    /// Whether another attempt is useless.
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self.failure, ItemFailure::Permanent(_))
    }
}

/// Event that [`Backfill::step`](crate::Backfill::step) takes in.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The backfill begins.
    Begin,
    /// The answer to [`Action::Look`].
    Looked {
        /// Items of the gallery.
        items: u64,
        /// Native items, less those that this backfill made native. Below 0 where the application has since
        /// changed more of those than there are other native items.
        native_before: i64,
        /// Request that holds now.
        request: Request,
        /// Whether the upgrade was rolled back since this backfill began.
        rolled_back: bool,
        /// Whether another upgrade took the place of this one, which ends a follower too.
        is_over: bool,
        /// Number of other workers that hold items, where a rate is shared with them.
        others: u64,
        /// Whether anything waits in the queue; only a follower asks, after a claim that gave nothing.
        waits: bool,
    },
    /// The answer to [`Action::Claim`]: the items that are this worker's now, in order.
    Claimed {
        /// Keys of the claimed items.
        keys: Vec<ItemKey>,
        /// Number of items that other workers hold.
        held_by_others: u64,
        /// Whether the claimed item, the only one, has to be embedded with nothing else in hand: workers have
        /// ended with it before.
        alone: bool,
        /// Whether all that waits came since the backfill began. These items are embedded, and nothing
        /// is claimed after them: an application that goes on writing would otherwise keep the
        /// backfill for ever. What others hold counts as waiting.
        late: bool,
    },
    /// The answer to [`Action::Claim`] where the item is not to be tried again: too many workers have
    /// ended with it alone.
    GivenUp(Attempt),
    /// A batch came back from the encoder; an item that is not in `failures` has a vector, or was not tried.
    Encoded {
        /// The batch.
        batch: u64,
        /// Failed attempts, one for each item that has no vector.
        failures: Vec<Attempt>,
    },
    /// A batch came back with vectors that the encoder does not
    /// [vouch for](rehang_encode::Encoder::is_vouched_for) yet. An [`Event::Encoded`], [`Event::Returned`] or
    /// [`Event::Declined`] of the same batch follows.
    Unvouched {
        /// The batch.
        batch: u64,
    },
    /// A batch came back without an answer, through no fault of its items: they wait in the store as before,
    /// and nothing new begins, since no other batch would fare better.
    Returned {
        /// The batch.
        batch: u64,
    },
    /// A follower's batch came back without an answer: the encoder is away for a while, or its budget is
    /// spent. The items go back.
    Declined {
        /// The batch.
        batch: u64,
        /// Whether the encoder gives no more vectors to this process.
        for_good: bool,
    },
    /// The answer to [`Action::Write`].
    Written {
        /// The batch.
        batch: u64,
        /// Outcome for each item that had a vector; the other items of the batch are free again.
        outcomes: Vec<(ItemKey, WriteOutcome)>,
    },
    /// The store has not taken vectors of a batch though their items are what they were, as where another
    /// transaction keeps them or a trigger has the write ignored. Comes before the batch's
    /// [`Event::Written`], which leaves these items out.
    Untaken {
        /// The batch.
        batch: u64,
        /// Keys of the items whose vectors were not taken.
        keys: Vec<ItemKey>,
    },
    /// Time has passed.
    Tick,
    /// Nothing new may begin: Ctrl-C, or an error that no item can overcome.
    Interrupt,
}

/// Action that a backfill needs next. Of actions that are due together, those that write come first, then
/// those that begin a batch, then the others, each kind in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Read the counts and the request; answer with [`Event::Looked`]. Also the moment to catch
    /// up with new items.
    Look,
    /// Lease the next items, worst first; answer with [`Event::Claimed`].
    Claim {
        /// Largest number of items to lease.
        limit: usize,
    },
    /// Give items back: any worker may claim them next.
    Release {
        /// The items.
        keys: Vec<ItemKey>,
    },
    /// Give a batch to an idle worker; answer with [`Event::Encoded`] when it is done.
    Encode {
        /// The batch.
        batch: u64,
        /// Keys of the batch's items.
        keys: Vec<ItemKey>,
    },
    /// Let the encoder be compared with itself; answer for every unvouched batch with [`Event::Encoded`] or
    /// [`Event::Returned`].
    Vouch,
    /// Write the vectors of a batch; answer with [`Event::Written`].
    Write {
        /// The batch.
        batch: u64,
    },
    /// Write vectors again that the store has not taken, as a batch of their own; answer with
    /// [`Event::Written`].
    WriteAgain {
        /// The batch.
        batch: u64,
        /// Keys of the batch's items.
        keys: Vec<ItemKey>,
    },
    /// Stop: the store has not taken the vector of an item for too long.
    GiveUp(ItemKey),
    /// List items as failed.
    RecordFailures(Vec<Attempt>),
    /// Stop: the encoder has refused every item so far for good. These are the failed attempts; none of
    /// their items is listed.
    Refuse(Vec<Attempt>),
    /// Nothing can be begun before this time, unless another event comes first.
    WaitUntil(u64),
    /// The backfill is over.
    End(Ending),
}

/// Counts of what a backfill has done so far, in items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// Items made native.
    pub native: u64,
    /// Items given up after their last attempt.
    pub failed: u64,
    /// Attempts that failed and were or will be repeated.
    pub retried: u64,
    /// Items embedded in vain: changed, deleted or made native by another process meanwhile.
    pub overtaken: u64,
}
