//! The door to elapsed time and to chance: how long to wait for a server, and names that no two writers share; never what is stored or found.

#![allow(clippy::disallowed_methods, reason = "the door to elapsed time")]

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The system's time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits that long.
pub(crate) fn wait(duration: Duration) {
    std::thread::sleep(duration);
}

/// Names that are given once, on any machine: 128 bits that the system drew, and a count.
#[derive(Debug)]
pub(crate) struct Tokens {
    drawn: String,
    given: AtomicU64,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let bits = || RandomState::new().hash_one(0_u8);
        Self { drawn: format!("{:016x}{:016x}", bits(), bits()), given: AtomicU64::new(0) }
    }

    /// The next name.
    pub(crate) fn next(&self) -> String {
        format!("{}-{}", self.drawn, self.given.fetch_add(1, Ordering::Relaxed))
    }
}
