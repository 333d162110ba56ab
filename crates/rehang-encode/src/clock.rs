//! The one door to time: what waits for seconds or minutes does it through a [`Clock`], so that tests need not wait. Deadlines of
//! other programs are of the system's own time.

#![allow(clippy::disallowed_methods, reason = "the door through which time enters this crate")]

use std::time::{Duration, Instant};

/// The longest piece of a wait after which it is looked whether the wait is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Time that passes, and waiting for it.
pub(crate) trait Clock: Send + Sync {
    /// Time since some moment before the first call. Never goes back.
    fn now(&self) -> Duration;

    /// Returns at that time, or at once if it is past; soon after `ends` says so in any case.
    fn sleep_until(&self, time: Duration, ends: &dyn Fn() -> bool);
}

/// The system's clock.
pub(crate) struct SystemClock(Instant);

impl SystemClock {
    pub(crate) fn new() -> Self {
        Self(now())
    }
}

/// The system's time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits that long.
pub(crate) fn wait(duration: Duration) {
    std::thread::sleep(duration);
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep_until(&self, time: Duration, ends: &dyn Fn() -> bool) {
        while self.now() < time && !ends() {
            wait(time.saturating_sub(self.now()).min(LOOK));
        }
    }
}

/// A clock that jumps to whatever is waited for, and remembers it.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct FakeClock(std::sync::Mutex<(Duration, Vec<Duration>)>);

#[cfg(test)]
impl FakeClock {
    /// How long each wait took, in the order of the waits. Waits that were over at once are left out.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        crate::meter::lock(&self.0).1.clone()
    }
}

#[cfg(test)]
impl Clock for FakeClock {
    fn now(&self) -> Duration {
        crate::meter::lock(&self.0).0
    }

    fn sleep_until(&self, time: Duration, ends: &dyn Fn() -> bool) {
        if ends() {
            return;
        }
        let mut state = crate::meter::lock(&self.0);
        if time > state.0 {
            let wait = time.saturating_sub(state.0);
            state.1.push(wait);
            state.0 = time;
        }
    }
}
