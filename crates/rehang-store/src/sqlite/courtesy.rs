//! Leaving room for writers in other processes while thousands of vectors are written.
//!
//! SQLite lets one connection write at a time. Those of one process take turns at a lock of ours; another process waits by looking
//! again and again (with SQLite's own time-out after 1, 2, 5, 10, 15, 20, 25, 25, 25, 50, 50 and then every 100 ms). Where large transactions follow each
//! other at once, the lock is free for a moment only, and most of those looks miss it. So after a large transaction the lock is left free
//! for as long as such a look takes to come round, but only while somebody else does write: alone, nothing is waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// Transactions shorter than this leave room enough by themselves.
const SHORT: Duration = Duration::from_millis(5);
/// In the first 128 ms of its wait, another process looks every 25 ms at least.
const REST_MIN: Duration = Duration::from_millis(26);
/// Later it looks every 100 ms.
const REST_MAX: Duration = Duration::from_millis(101);
/// How long after a write of another process more of them are expected.
const EXPECTED: Duration = Duration::from_mins(1);

/// Whether other processes write, as seen from the connection that writes thousands of vectors.
#[derive(Debug, Default)]
pub(crate) struct Courtesy {
    /// SQLite's number of the last commit of any other connection, `None` where it says nothing.
    seen: Option<i64>,
    expected_until: Option<Instant>,
}

impl Courtesy {
    /// To be called before a transaction. `own` says that another connection of this process has written since the last call (and
    /// is reset): its commits look like those of others.
    pub(crate) fn look(
        &mut self,
        connection: &Connection,
        own: &AtomicBool,
        now: Instant,
    ) -> rusqlite::Result<()> {
        let version = connection.pragma_query_value(None, "data_version", |row| row.get(0))?;
        let own = own.swap(false, Ordering::AcqRel);
        if !own && self.seen.is_some_and(|seen| seen != version) {
            self.expected_until = Some(now + EXPECTED);
        }
        self.seen = Some(version);
        Ok(())
    }

    /// How long the lock stays free after a transaction that took this long.
    pub(crate) fn rest(&self, took: Duration, now: Instant) -> Option<Duration> {
        let expected = self.expected_until.is_some_and(|until| now < until);
        (expected && took >= SHORT).then(|| (took / 2).clamp(REST_MIN, REST_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_left_only_while_others_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.db");
        let [bulk, own, other] = [0, 1, 2].map(|_| Connection::open(&path).unwrap());
        bulk.pragma_update(None, "journal_mode", "WAL").unwrap();
        bulk.execute_batch("CREATE TABLE number (value)").unwrap();
        let insert = |connection: &Connection| {
            connection.execute("INSERT INTO number VALUES (1)", []).unwrap();
        };
        let own_wrote = AtomicBool::new(false);
        let mut courtesy = Courtesy::default();
        let start = Instant::now();
        let long = Duration::from_millis(80);
        let mut rest = |after: Duration, took: Duration| {
            let now = start + after;
            courtesy.look(&bulk, &own_wrote, now).unwrap();
            insert(&bulk);
            courtesy.rest(took, now)
        };
        let second = Duration::from_secs(1);
        // Alone: neither its own commits nor those of the same process count.
        assert_eq!(rest(second, long), None);
        assert_eq!(rest(2 * second, long), None);
        insert(&own);
        own_wrote.store(true, Ordering::Release);
        assert_eq!(rest(3 * second, long), None);
        assert_eq!(rest(4 * second, long), None);
        // Another process writes: room after long transactions, for a minute.
        insert(&other);
        assert_eq!(rest(5 * second, long), Some(long / 2));
        assert_eq!(rest(6 * second, Duration::from_millis(1)), None);
        assert_eq!(rest(7 * second, SHORT), Some(REST_MIN));
        assert_eq!(rest(8 * second, 10 * second), Some(REST_MAX));
        assert_eq!(rest(66 * second, long), None);
    }
}
