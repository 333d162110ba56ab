//! A write-only, infallible way for long work to say how far it is, and to be asked to stop.
//!
//! Libraries print nothing. They write into a [`Progress`]; the command line reads it from another thread and draws
//! a bar. Nothing here can fail: a defect in showing progress must never stop the work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{ErrorKind, Result};

/// Shared counters of one piece of long work. Cloning gives another handle on the same counters.
///
/// ```
/// let progress = rehang::Progress::default();
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
    /// The stage and its words; its counts are those below.
    words: Mutex<ProgressSnapshot>,
    done: AtomicU64,
    total: AtomicU64,
}

/// Whether work is to stop, or the whole that it is a part of.
#[derive(Debug, Default)]
struct Stop {
    asked: AtomicBool,
    of_whole: Option<Arc<Stop>>,
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.of_whole.as_ref().is_some_and(|whole| whole.is_asked())
    }
}

/// What a [`Progress`] says at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProgressSnapshot {
    /// What is being done.
    pub stage: String,
    /// What is counted.
    pub unit: &'static str,
    /// A short remark, such as the current loss.
    pub note: String,
    /// How many are done.
    pub done: u64,
    /// How many there are; 0 where that is not known.
    pub total: u64,
}

impl Progress {
    /// Begins a stage: the counter starts again at 0.
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
        self.stop.asked.store(true, Ordering::Relaxed);
    }

    /// A handle on the same counters for a part of the work, which may be asked to stop alone; where the whole is, so is the part.
    ///
    /// ```
    /// let whole = rehang::Progress::default();
    /// let part = whole.part();
    /// part.cancel();
    /// assert!(part.check().is_err() && whole.check().is_ok());
    /// whole.cancel();
    /// assert!(whole.part().check().is_err());
    /// ```
    #[must_use]
    pub fn part(&self) -> Self {
        let stop = Stop { asked: AtomicBool::new(false), of_whole: Some(Arc::clone(&self.stop)) };
        Self { counters: Arc::clone(&self.counters), stop: Arc::new(stop) }
    }

    /// Fails where a stop was asked for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.stop.is_asked() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    /// What the handle says now.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let words = self.counters.words.lock().map(|words| words.clone()).unwrap_or_default();
        ProgressSnapshot {
            done: self.counters.done.load(Ordering::Relaxed),
            total: self.counters.total.load(Ordering::Relaxed),
            ..words
        }
    }
}
