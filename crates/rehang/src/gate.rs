//! Places that threads take and give back.

use std::sync::{Condvar, Mutex, PoisonError};

/// Lets threads in while there are places: as many threads at a time, or as many bytes that they hold together.
#[derive(Debug)]
pub struct Gate {
    free: Mutex<usize>,
    changed: Condvar,
}

/// Places behind a [`Gate`], which other threads get when this is dropped.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate, usize);

impl Gate {
    /// A gate with so many places, 1 or more.
    pub const fn new(places: usize) -> Self {
        Self { free: Mutex::new(places), changed: Condvar::new() }
    }

    /// Waits until a place is free, and takes it.
    pub fn enter(&self) -> Pass<'_> {
        self.take(1)
    }

    /// Waits until so many places are free, and takes them. More than the gate has in all are waited for without end. A thread that
    /// holds some must not take more, since all that hold some could wait for each other.
    pub fn take(&self, places: usize) -> Pass<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free < places {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= places;
        Pass(self, places)
    }
}

impl Drop for Pass<'_> {
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
        let (gate, taken) = (Gate::new(10), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for places in [1, 4, 4, 10, 7, 3] {
                let (gate, taken) = (&gate, &taken);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let pass = gate.take(places);
                        assert!(taken.fetch_add(places, Ordering::SeqCst) + places <= 10);
                        taken.fetch_sub(places, Ordering::SeqCst);
                        drop(pass);
                    }
                });
            }
        });
        drop(gate.take(10));
    }
}
