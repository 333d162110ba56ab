//! Progress of long work: a write-only, infallible way to say how far it is, and to be asked to stop.
//!
//! Libraries print nothing. They write into a [`Progress`]; the command line reads it from another thread and
//! draws a bar. Nothing here can fail: a defect in showing progress must never stop the work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{ErrorKind, Result};

/// Shared counters of one piece of long work. Cloning gives another handle on the same counters.
///
/// ```
/// let progress = rehang_core::Progress::default();
/// progress.begin("fitting", "epochs", 80);
/// progress.advance(1);
/// assert_eq!(progress.snapshot().done, 1);
/// progress.cancel();
/// assert!(progress.check().unwrap_err().is_cancelled());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Progress {
    counters: Arc<Counters>,
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct Counters {
    /// Words of the stage. Their counts are not used: `done` and `total` below hold those.
    words: Mutex<ProgressSnapshot>,
    done: AtomicU64,
    total: AtomicU64,
}

/// Request to stop a piece of work. A part of larger work also stops where the whole is asked to.
#[derive(Debug, Default)]
struct Stop {
    was_asked: AtomicBool,
    of_whole: Option<Arc<Stop>>,
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.was_asked.load(Ordering::Relaxed) || self.of_whole.as_ref().is_some_and(|stop| stop.is_asked())
    }
}

/// State of a [`Progress`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ProgressSnapshot {
    /// Stage of the work, such as "fitting".
    pub stage: String,
    /// Unit that is counted, such as "epochs".
    pub unit: &'static str,
    /// A short remark, such as the current loss.
    pub note: String,
    /// Number of units that are done.
    pub done: u64,
    /// Number of all units; 0 where it is not known.
    pub total: u64,
}

impl Progress {
    /// Begins a stage. The counter starts again at 0.
    pub fn begin(&self, stage: impl Into<String>, unit: &'static str, total: u64) {
        if let Ok(mut words) = self.counters.words.lock() {
            *words = ProgressSnapshot { stage: stage.into(), unit, ..ProgressSnapshot::default() };
        }
        self.counters.done.store(0, Ordering::Relaxed);
        self.counters.total.store(total, Ordering::Relaxed);
    }

    /// Counts `units` more as done.
    pub fn advance(&self, units: u64) {
        self.counters.done.fetch_add(units, Ordering::Relaxed);
    }

    /// Leaves a short remark, such as the current loss.
    pub fn note(&self, note: impl Into<String>) {
        if let Ok(mut words) = self.counters.words.lock() {
            words.note = note.into();
        }
    }

    /// Asks the work to stop at its next [`Progress::check`].
    pub fn cancel(&self) {
        self.stop.was_asked.store(true, Ordering::Relaxed);
    }

    /// Makes a handle on the same counters for a part of the work. The part may be asked to stop alone;
    /// asking the whole also stops the part.
    ///
    /// ```
    /// let whole = rehang_core::Progress::default();
    /// let part = whole.part();
    /// part.cancel();
    /// assert!(part.check().is_err() && whole.check().is_ok());
    /// whole.cancel();
    /// assert!(whole.part().check().is_err());
    /// ```
    #[must_use]
    pub fn part(&self) -> Self {
        let stop = Stop { was_asked: AtomicBool::new(false), of_whole: Some(Arc::clone(&self.stop)) };
        Self { counters: Arc::clone(&self.counters), stop: Arc::new(stop) }
    }

    /// Fails where the work was asked to stop.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.stop.is_asked() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    /// Returns the state of the work at this moment.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let words = self.counters.words.lock().map(|words| words.clone()).unwrap_or_default();
        ProgressSnapshot {
            done: self.counters.done.load(Ordering::Relaxed),
            total: self.counters.total.load(Ordering::Relaxed),
            ..words
        }
    }
}
