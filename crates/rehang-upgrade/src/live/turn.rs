//! Turn to adapt what comes: one of several followers has it, the others stand by.
//!
//! A small document in the store says whose turn it is. The follower that has the turn writes the document
//! again every few seconds. A follower that sees the same version for longer than that, by its own clock,
//! takes the turn over: clocks of two machines are never compared. A turn saves work and no more: every write
//! of an adapted vector is conditional, so two followers that both adapt for a moment do no harm.

use rehang_core::{Error, Result};
use rehang_store::Ledger;
use serde::{Deserialize, Serialize};

/// Name of the document that says whose turn it is.
const DOCUMENT: &str = "follower";
/// Milliseconds between two writes of the document by the follower that has the turn.
const BEAT_EVERY_MS: u64 = 2000;
/// Milliseconds without a new version of the document, after which another follower takes the turn.
const LOST_AFTER_MS: u64 = 6000;

/// Follower that adapts what comes, of all that are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Follower {
    /// Name under which the follower's items are leased: its machine, its process there, and a random part.
    pub worker: String,
    /// Time when the follower was heard of last, in milliseconds since 1970 by the clock of its machine: for
    /// people.
    pub at_ms: u64,
    /// Time since which items lack a vector of the new model without a pause, by the same clock; `None` where
    /// none did when the follower looked last.
    #[serde(default)]
    pub lacking_since_ms: Option<u64>,
}

/// Returns the follower that adapts what comes; `None` where none ever was, or the last one ended in order.
///
/// # Errors
///
/// Those of the store; corrupt where the document is none of a follower.
pub fn follower(store: &dyn Ledger) -> Result<Option<Follower>> {
    store.document(DOCUMENT)?.map_or(Ok(None), |(_, text)| parse(store, &text))
}

fn parse(store: &dyn Ledger, text: &str) -> Result<Option<Follower>> {
    let wrong = |error| Error::corrupt(format!("what {} says of its follower", store.name()), error);
    if text.is_empty() { Ok(None) } else { serde_json::from_str(text).map(Some).map_err(wrong) }
}

/// Knowledge of one follower about whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Version of the document that the follower saw or wrote last; `since_ms` is when it did so first.
    version: Option<u64>,
    since_ms: u64,
    is_ours: bool,
    /// Time since which items lack a vector, as the document will say.
    lacking_since_ms: Option<u64>,
}

impl Turn {
    /// Takes the turn where it is nobody's, and returns whether it is this follower's now.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) fn take(&mut self, store: &dyn Ledger, worker: &str, now_ms: u64) -> Result<bool> {
        let waited_ms = now_ms.saturating_sub(self.since_ms);
        if self.is_ours && waited_ms < BEAT_EVERY_MS {
            return Ok(true);
        }
        if !self.is_ours {
            let (version, text) = store.document(DOCUMENT)?.unzip();
            let holder = text.map_or(Ok(None), |text| parse(store, &text))?;
            let is_free = holder.as_ref().is_none_or(|holder| holder.worker == worker);
            let is_new = version != self.version;
            if !is_free && (is_new || waited_ms < LOST_AFTER_MS) {
                if is_new {
                    (self.version, self.since_ms) = (version, now_ms);
                }
                return Ok(false);
            }
            self.version = version;
            self.lacking_since_ms =
                holder.and_then(|holder| holder.lacking_since_ms).or(self.lacking_since_ms);
        }
        let (at_ms, lacking_since_ms) = (rehang_clock::unix_ms(), self.lacking_since_ms);
        let this_follower = Follower { worker: worker.to_owned(), at_ms, lacking_since_ms };
        let text =
            serde_json::to_string(&this_follower).map_err(|error| Error::corrupt("a follower", error))?;
        match store.set_document(DOCUMENT, self.version, &text) {
            Ok(version) => {
                *self = Self { version: Some(version), since_ms: now_ms, is_ours: true, lacking_since_ms };
                Ok(true)
            }
            // Another follower was faster, or took the turn over while this process slept.
            Err(error) if error.is_changed_meanwhile() => {
                *self = Self::default();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes whether items lack a vector at this moment.
    pub(crate) fn note_lacking(&mut self, lack: bool) {
        self.lacking_since_ms = lack.then(|| self.lacking_since_ms.unwrap_or_else(rehang_clock::unix_ms));
    }

    /// Leaves the turn to the next follower that asks. Where that fails, the others wait until it counts as
    /// lost.
    pub(crate) fn leave(&mut self, store: &dyn Ledger) {
        if std::mem::take(&mut self.is_ours) {
            drop(store.set_document(DOCUMENT, self.version, ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use rehang_store_tests::MemoryStore;

    use super::*;

    #[test]
    fn one_has_the_turn_and_another_takes_it_when_nothing_is_heard_of_the_first() {
        let store = MemoryStore::new();
        let (mut first, mut second) = (Turn::default(), Turn::default());
        assert!(first.take(&store, "first", 0).unwrap());
        for now in (0..60_000).step_by(500) {
            assert!(first.take(&store, "first", now).unwrap());
            assert!(
                !second.take(&store, "second", 7_000_000 + now).unwrap(),
                "at {now}: no clock is compared"
            );
        }
        assert_eq!(follower(&store).unwrap().unwrap().worker, "first");
        // The first one is not heard of any more.
        let began = 7_060_000;
        let taken = (began..).step_by(500).find(|now| second.take(&store, "second", *now).unwrap()).unwrap();
        assert!((LOST_AFTER_MS - BEAT_EVERY_MS..=LOST_AFTER_MS + 500).contains(&(taken - began)), "{taken}");
        // The first one comes back, and finds that its turn was taken over.
        assert!(!first.take(&store, "first", 90_000).unwrap());
        assert!(!first.take(&store, "first", 90_500).unwrap());
        second.leave(&store);
        assert_eq!(follower(&store).unwrap(), None);
        assert!(first.take(&store, "first", 91_000).unwrap(), "at once, where the last one left in order");
    }

    #[test]
    fn since_when_items_lack_a_vector_is_known_to_whoever_has_the_turn_next() {
        let store = MemoryStore::new();
        let (mut first, mut second) = (Turn::default(), Turn::default());
        let since = || follower(&store).unwrap().unwrap().lacking_since_ms;
        first.note_lacking(true);
        assert!(first.take(&store, "first", 0).unwrap());
        let began = since();
        assert!(began.is_some());
        assert!(!second.take(&store, "second", 0).unwrap());
        assert!(second.take(&store, "second", LOST_AFTER_MS).unwrap());
        second.note_lacking(true);
        assert!(second.take(&store, "second", LOST_AFTER_MS + BEAT_EVERY_MS).unwrap());
        assert_eq!(since(), began);
        second.note_lacking(false);
        assert!(second.take(&store, "second", LOST_AFTER_MS + 2 * BEAT_EVERY_MS).unwrap());
        assert_eq!(since(), None);
    }

    #[test]
    fn of_two_that_find_it_free_one_takes_it() {
        let store = MemoryStore::new();
        let mut turns = [Turn::default(), Turn::default()];
        let taken = std::thread::scope(|scope| {
            let taking = turns.each_mut().map(|turn| {
                let store = &store;
                scope.spawn(move || {
                    turn.take(store, &format!("{:?}", std::thread::current().id()), 0).unwrap()
                })
            });
            taking.map(|taking| taking.join().unwrap())
        });
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
    }
}
