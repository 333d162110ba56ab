//! Front of a queue, remembered where the walk to it took long.

use std::time::{Duration, Instant};

/// Length of a walk to the front of a queue from which on it is not made for each claim.
pub(crate) const WALK_LONG: Duration = Duration::from_millis(250);
/// Factor of the rest after a walk: it rests this many times as long as it took. Items that come before the
/// front meanwhile, such as those that a worker gave back, wait for the next walk.
const WALK_RESTS: u32 = 20;

/// Place in the queue of adapted vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) band: i16,
    pub(crate) score: Option<f64>,
    pub(crate) item: i64,
}

/// Place where a queue begins, for items that lack a vector and for adapted ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    /// Largest key up to which all items that lack a vector are done.
    pub(crate) lacking: i64,
    /// Place up to which all adapted items are done; `None` where it is not known.
    pub(crate) adapted: Option<Place>,
    /// Time at which the front is to be looked for again.
    pub(crate) until: Instant,
}

impl Front {
    /// Returns the front after a walk that took `walked`; `None` where the walk was short.
    pub(crate) fn after(lacking: i64, adapted: Option<Place>, walked: Duration) -> Option<Self> {
        (walked >= WALK_LONG).then(|| Self {
            lacking,
            adapted,
            until: rehang_clock::now() + walked * WALK_RESTS,
        })
    }
}
