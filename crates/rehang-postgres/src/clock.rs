//! The door to elapsed time: how long to wait for a server or for other transactions, never what is stored or found.

#![allow(clippy::disallowed_methods, reason = "the door to elapsed time")]

use std::time::{Duration, Instant};

/// The system's time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits that long.
pub(crate) fn wait(duration: Duration) {
    std::thread::sleep(duration);
}
