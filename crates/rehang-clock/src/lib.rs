//! The one door through which time enters. It serves the paces and budgets of services, waiting for a server
//! or for other writers, the speed of a backfill, and the end of leases. What is stored or found never
//! depends on it.

#![allow(clippy::disallowed_methods, reason = "the door to time")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Longest sleep before a wait asks again whether it should end.
const LOOK: Duration = Duration::from_millis(100);

/// The system's monotonic time, which never goes back.
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for a duration.
pub fn wait(duration: Duration) {
    std::thread::sleep(duration);
}

/// The machine's time of day, in milliseconds since 1970; 0 before 1970.
pub fn unix_ms() -> u64 {
    millis(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Whole milliseconds of a duration; the largest number where there are more.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A clock that does not go back, and waiting by it. Code that waits for seconds or minutes takes a clock, so
/// that its tests need not wait.
pub trait Clock: Send + Sync {
    /// Time since some moment before the first call.
    fn now(&self) -> Duration;

    /// Returns when the clock shows `time`, or at once if that is past. It returns earlier, soon after `ends`
    /// gives true.
    fn sleep_until(&self, time: Duration, ends: &dyn Fn() -> bool);

    /// [`Self::now`] in milliseconds.
    fn now_ms(&self) -> u64 {
        millis(self.now())
    }

    /// Waits for a duration.
    fn wait(&self, duration: Duration) {
        self.sleep_until(self.now().saturating_add(duration), &|| false);
    }
}

/// The system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that shows 0 now.
    pub fn start() -> Self {
        Self(now())
    }
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

/// A clock for tests. It does not wait: it jumps to whatever time is waited for.
///
/// ```
/// use std::time::Duration;
///
/// use rehang_clock::{Clock, ManualClock};
///
/// let clock = ManualClock::default();
/// clock.wait(Duration::from_secs(3600));
/// clock.sleep_until(Duration::from_secs(10), &|| false);
/// assert_eq!((clock.now_ms(), clock.waits()), (3_600_000, vec![Duration::from_secs(3600)]));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(Mutex<(Duration, Vec<Duration>)>);

impl ManualClock {
    /// Length of each wait, in the order of the waits. Waits that were over at once are left out.
    pub fn waits(&self) -> Vec<Duration> {
        self.state().1.clone()
    }

    fn state(&self) -> MutexGuard<'_, (Duration, Vec<Duration>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.state().0
    }

    fn sleep_until(&self, time: Duration, ends: &dyn Fn() -> bool) {
        if ends() {
            return;
        }
        let mut state = self.state();
        if time > state.0 {
            let wait = time.saturating_sub(state.0);
            state.1.push(wait);
            state.0 = time;
        }
    }
}
