//! A place with room for so many threads.

use std::sync::{Condvar, Mutex, PoisonError};

/// Lets so many threads in at a time.
#[derive(Debug)]
pub struct Gate {
    free: Mutex<usize>,
    changed: Condvar,
}

/// A place behind a [`Gate`], which the next thread gets when this is dropped.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// A gate with places for so many threads, 1 or more.
    pub const fn new(places: usize) -> Self {
        Self { free: Mutex::new(places), changed: Condvar::new() }
    }

    /// Waits until a place is free, and takes it.
    pub fn enter(&self) -> Pass<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}
