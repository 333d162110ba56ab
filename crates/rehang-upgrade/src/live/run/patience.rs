//! Patience with a store that is not available for a while: unwritten vectors wait for it.

use std::time::Duration;

use rehang_clock::Clock;
use rehang_core::{ErrorKind, Result};

use crate::observe::Observer;

/// Longest wait for anything: after it, the loop looks whether it was asked to end.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(100);
/// Time for which a store that is not available is asked again: unwritten vectors wait for it meanwhile.
const STORE_PATIENCE_MS: u64 = 600_000;
/// Rest before a store that was not available is asked again. A follower, which asks for ever, rests twice as
/// long each time, up to `STORE_RESTS_MAX`.
const STORE_RESTS: Duration = Duration::from_secs(1);
const STORE_RESTS_MAX: Duration = Duration::from_secs(15);

/// Patience of one run with its store.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    pub clock: &'a dyn Clock,
    pub observer: &'a dyn Observer,
    /// Whether the store is asked for ever, as by a follower.
    pub is_endless: bool,
}

impl Patience<'_> {
    /// Asks the store, again and again where it is not available: a transaction of another process that takes
    /// ten seconds must not cost unwritten vectors.
    pub fn ask<T>(self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let Self { clock, observer, is_endless } = self;
        let began_ms = clock.now_ms();
        let mut rest = STORE_RESTS;
        loop {
            match ask() {
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unavailable { .. })
                        && !observer.wants_stop()
                        && (is_endless || clock.now_ms() - began_ms < STORE_PATIENCE_MS) =>
                {
                    clock.sleep_until(clock.now() + rest, &|| observer.wants_stop());
                    if is_endless {
                        rest = (2 * rest).min(STORE_RESTS_MAX);
                    }
                }
                answer => return answer,
            }
        }
    }
}
