//! Clocks that leases are measured with.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rehang_clock::millis;

/// Clock that leases are measured with. All processes that share a gallery need the same one; a ledger on a
/// server uses the server's.
pub trait LeaseClock: Debug + Send + Sync {
    /// Milliseconds since 1970. Where the clock goes back, leases last longer, and where it jumps ahead, they
    /// end early: items may then be embedded twice, and nothing else happens.
    fn now_ms(&self) -> u64;
}

/// The machine's time of day.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLeaseClock;

impl LeaseClock for SystemLeaseClock {
    fn now_ms(&self) -> u64 {
        rehang_clock::unix_ms()
    }
}

/// Clock that moves when it is told to, for tests. Its clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualLeaseClock(Arc<AtomicU64>);

impl ManualLeaseClock {
    /// Moves the clock on.
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(millis(time), Ordering::SeqCst);
    }
}

impl LeaseClock for ManualLeaseClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// End of a lease that begins now, in milliseconds since 1970, at most `i64::MAX`: databases count in `i64`.
pub fn lease_end(now_ms: u64, lease: Duration) -> u64 {
    now_ms.saturating_add(millis(lease)).min(i64::MAX as u64)
}
