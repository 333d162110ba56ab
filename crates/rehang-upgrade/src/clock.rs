//! The one door through which time enters.

#![allow(clippy::disallowed_methods, reason = "the door through which time enters this crate")]

use std::time::{Duration, Instant};

/// A clock that does not go back, and a way to wait.
pub trait Clock: Sync {
    /// Milliseconds since some moment of this clock's own.
    fn now_ms(&self) -> u64;

    /// Waits that long, or shorter.
    fn wait(&self, duration: Duration);
}

/// The system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that shows 0 now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn wait(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
