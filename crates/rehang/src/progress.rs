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
pub struct Progress(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The stage and its words; its counts are those below.
    words: Mutex<ProgressSnapshot>,
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
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
        if let Ok(mut words) = self.0.words.lock() {
            *words = ProgressSnapshot { stage: stage.into(), unit, ..ProgressSnapshot::default() };
        }
        self.0.done.store(0, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// Counts `units` more as done.
    pub fn advance(&self, units: u64) {
        self.0.done.fetch_add(units, Ordering::Relaxed);
    }

    /// Leaves a short remark, such as the current loss.
    pub fn note(&self, note: impl Into<String>) {
        if let Ok(mut words) = self.0.words.lock() {
            words.note = note.into();
        }
    }

    /// Asks the work to stop at its next [`Progress::check`].
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Fails where a stop was asked for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.0.cancelled.load(Ordering::Relaxed) { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    /// What the handle says now.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let words = self.0.words.lock().map(|words| words.clone()).unwrap_or_default();
        ProgressSnapshot {
            done: self.0.done.load(Ordering::Relaxed),
            total: self.0.total.load(Ordering::Relaxed),
            ..words
        }
    }
}
