//! Counts of the gallery, which a run makes from time to time and keeps up with its own writes.

use rehang_core::Result;
use rehang_store::Counts;

use super::setup::BackfillSetup;

/// Milliseconds between two counts of the gallery, since counting a large one takes a while; in between, what
/// was written is added.
const COUNT_EVERY_MS: u64 = 5000;
/// Factor by which the rest after a count is at least longer than the count: each worker counts, and of a
/// hundred million items that takes seconds.
const COUNT_RESTS: u64 = 20;

/// Hears the counts of the gallery whenever a backfill has counted it.
pub(crate) type Counted<'a> = dyn Fn(&Counts) + Sync + 'a;

/// Counts of the gallery, as one run knows them.
pub(super) struct GalleryCounts<'a> {
    listener: Option<&'a Counted<'a>>,
    /// Items of the gallery.
    pub items: u64,
    /// Native items of the gallery less those that this run made. Below 0 where these were changed since.
    pub native_before: i64,
    /// Items that this run made native.
    pub written: u64,
    /// Time from which the gallery may be counted again.
    from_ms: u64,
    /// Items made native, and items caught up with, when the gallery was counted last.
    counted_at: Option<(u64, u64)>,
}

impl<'a> GalleryCounts<'a> {
    /// Makes counts of a gallery that was not counted yet.
    pub fn new(listener: Option<&'a Counted<'a>>) -> Self {
        Self { listener, items: 0, native_before: 0, written: 0, from_ms: 0, counted_at: None }
    }

    /// Counts the gallery where that is due. An idle follower counts nothing: it need not know what it has
    /// not changed.
    pub fn count_if_due(&mut self, setup: &BackfillSetup<'_>, space: &str, caught_up: u64) -> Result<()> {
        let now_ms = setup.clock.now_ms();
        let changes = Some((self.written, caught_up));
        let may_differ = !setup.limits.follow || self.counted_at != changes;
        if !may_differ || now_ms < self.from_ms {
            return Ok(());
        }
        self.counted_at = changes;
        let counts = setup.store.counts(space)?;
        self.items = counts.items;
        // Writes of this run are counted apart: a look may come between a write and the event that tells of
        // it.
        self.native_before = counts.native as i64 - self.written as i64;
        self.tell(&counts);
        let counted_ms = setup.clock.now_ms();
        self.from_ms = (now_ms + COUNT_EVERY_MS).max(counted_ms + COUNT_RESTS * (counted_ms - now_ms));
        Ok(())
    }

    /// Tells the listener of counts.
    pub fn tell(&self, counts: &Counts) {
        if let Some(listener) = self.listener {
            listener(counts);
        }
    }

    /// Native items of the gallery, as far as this run knows.
    pub fn native(&self) -> u64 {
        u64::try_from(self.native_before).unwrap_or(0) + self.written
    }
}
