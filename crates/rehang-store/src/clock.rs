//! The door to elapsed time, for those who write a store: how long to wait for a server or for other writers, never what is stored or found.
//! (The time of day enters by [`LeaseClock`](crate::LeaseClock).)

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
