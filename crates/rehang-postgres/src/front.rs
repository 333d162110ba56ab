//! Where a queue begins, remembered where the walk to it took long.

use std::time::{Duration, Instant};

/// From this long on, a walk to the front of a queue is not made for each claim.
pub(crate) const WALK_LONG: Duration = Duration::from_millis(250);
/// It rests this many times as long as it took. Meanwhile what comes to stand before the front waits, as what a worker gave back.
const WALK_RESTS: u32 = 20;

/// A place in the queue of adapted vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) band: i16,
    pub(crate) score: Option<f64>,
    pub(crate) item: i64,
}

/// Where a queue begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    /// Items that lack a vector and have no larger key are done.
    pub(crate) lacking: i64,
    /// So are adapted ones up to this place; `None` where it is not known.
    pub(crate) adapted: Option<Place>,
    /// When it is to be looked for again.
    pub(crate) until: Instant,
}

impl Front {
    /// What is known after a walk that took so long.
    pub(crate) fn after(lacking: i64, adapted: Option<Place>, walked: Duration) -> Option<Self> {
        (walked >= WALK_LONG).then(|| Self {
            lacking,
            adapted,
            until: rehang_clock::now() + walked * WALK_RESTS,
        })
    }
}
