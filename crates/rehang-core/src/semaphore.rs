//! A counting semaphore: places that threads take and give back.

use std::sync::{Condvar, Mutex, PoisonError};

/// Semaphore that lets threads in while there are places. Places may be threads at a time, or bytes that
/// threads hold together.
#[derive(Debug)]
pub struct Semaphore {
    free: Mutex<usize>,
    changed: Condvar,
}

/// Places of a [`Semaphore`] that a thread has taken. Other threads get them when this value is dropped.
#[derive(Debug)]
pub struct Permit<'a>(&'a Semaphore, usize);

impl Semaphore {
    /// Makes a semaphore with so many places, 1 or more.
    pub const fn new(places: usize) -> Self {
        Self { free: Mutex::new(places), changed: Condvar::new() }
    }

    /// Waits until a place is free, and takes it.
    pub fn acquire(&self) -> Permit<'_> {
        self.acquire_many(1)
    }

    /// Waits until so many places are free, and takes them. A call for more places than the semaphore has
    /// never returns. A thread that holds places must not ask for more: two such threads could wait for each
    /// other for ever.
    pub fn acquire_many(&self, places: usize) -> Permit<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free < places {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= places;
        Permit(self, places)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += self.1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_places_are_taken_than_there_are() {
        let (semaphore, taken) = (Semaphore::new(10), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for places in [1, 4, 4, 10, 7, 3] {
                let (semaphore, taken) = (&semaphore, &taken);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let permit = semaphore.acquire_many(places);
                        assert!(taken.fetch_add(places, Ordering::SeqCst) + places <= 10);
                        taken.fetch_sub(places, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        drop(semaphore.acquire_many(10));
    }
}
