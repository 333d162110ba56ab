//! The one door through which time enters.

use std::time::{Duration, Instant};

use rehang_store::clock;

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
        Self(clock::now())
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn wait(&self, duration: Duration) {
        clock::wait(duration);
    }
}
