//! Meter: what an encoder has used.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::contract::Spent;

/// Counter of items, tokens and money, shared by the threads of an encoder.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Spent>);

impl Meter {
    /// Counts items that were sent.
    pub(crate) fn sent(&self, items: usize) {
        self.lock().items += items as u64;
    }

    /// Counts tokens.
    pub(crate) fn tokens(&self, tokens: u64) {
        self.lock().tokens += tokens;
    }

    /// Reads all counts so far.
    pub(crate) fn spent(&self) -> Spent {
        *self.lock()
    }

    /// Locks the counts, to change several at once.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Spent> {
        lock(&self.0)
    }
}

/// Locks a mutex, also after a panic of another thread: what is behind every lock of this crate is whole at
/// any moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
