//! The door to elapsed time, for stores and for what works on them: how long to wait for a server or for other writers, how fast a
//! backfill is; never what is stored or found. (The time of day enters by [`LeaseClock`](crate::LeaseClock).)

#![allow(clippy::disallowed_methods, reason = "the door to elapsed time")]

use std::time::{Duration, Instant};

/// The system's time.
pub fn now() -> Instant {
    Instant::now()
}

/// Waits that long.
pub fn wait(duration: Duration) {
    std::thread::sleep(duration);
}
