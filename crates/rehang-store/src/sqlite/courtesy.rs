//! Leaving room for writers in other processes while thousands of vectors are written.
//!
//! SQLite lets one connection write at a time. Those of one process take turns at a lock of ours; another process waits by looking
//! again and again (with SQLite's own time-out after 1, 2, 5, 10, 15, 20, 25, 25, 25, 50, 50 and then every 100 ms). Where large
//! transactions follow each other at once, the lock is free for a moment only, and most of those looks miss it. So before a
//! transaction that follows a large one, the lock stays free for as long as such a look takes to come round, but only while somebody
//! else does write: alone, nothing is waited for.

use std::mem;
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
    /// Whether another connection of this process has written since the last look: its commits look like those of others.
    own: bool,
    expected_until: Option<Instant>,
    /// When the last transaction ended, and how long it held the lock.
    last: Option<(Instant, Duration)>,
}

impl Courtesy {
    /// How long the lock has yet to stay free before the next transaction.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let (ended, took) = self.last?;
        let expected = self.expected_until.is_some_and(|until| now < until);
        if !expected || took < SHORT {
            return None;
        }
        let free = now.saturating_duration_since(ended);
        (took / 2).clamp(REST_MIN, REST_MAX).checked_sub(free)
    }

    /// To be called when another connection of this process writes.
    pub(crate) fn own_writes(&mut self) {
        self.own = true;
    }

    /// To be called before a transaction.
    pub(crate) fn look(&mut self, connection: &Connection, now: Instant) -> rusqlite::Result<()> {
        let version = connection.pragma_query_value(None, "data_version", |row| row.get(0))?;
        let own = mem::take(&mut self.own);
        if !own && self.seen.is_some_and(|seen| seen != version) {
            self.expected_until = Some(now + EXPECTED);
        }
        self.seen = Some(version);
        Ok(())
    }

    /// To be called after a transaction.
    pub(crate) fn ended(&mut self, now: Instant, took: Duration) {
        self.last = Some((now, took));
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
        let mut courtesy = Courtesy::default();
        let start = crate::clock::now();
        let ms = Duration::from_millis;
        // One transaction at a time that takes as long, and what is left of the rest a while later.
        let rest = |courtesy: &mut Courtesy, at: u64, took: u64, later: u64| {
            let now = start + Duration::from_secs(at);
            courtesy.look(&bulk, now).unwrap();
            insert(&bulk);
            courtesy.ended(now + ms(took), ms(took));
            courtesy.rest(now + ms(took + later))
        };
        // Alone: neither its own commits nor those of the same process count.
        assert_eq!(rest(&mut courtesy, 1, 80, 0), None);
        assert_eq!(rest(&mut courtesy, 2, 80, 0), None);
        insert(&own);
        courtesy.own_writes();
        assert_eq!(rest(&mut courtesy, 3, 80, 0), None);
        assert_eq!(rest(&mut courtesy, 4, 80, 0), None);
        // Another process writes: room after long transactions, for a minute.
        insert(&other);
        assert_eq!(rest(&mut courtesy, 5, 80, 0), Some(ms(40)));
        assert_eq!(rest(&mut courtesy, 6, 80, 30), Some(ms(10)));
        assert_eq!(rest(&mut courtesy, 7, 80, 50), None, "it was free for long enough meanwhile");
        assert_eq!(rest(&mut courtesy, 8, 1, 0), None);
        assert_eq!(rest(&mut courtesy, 9, 5, 0), Some(REST_MIN));
        assert_eq!(rest(&mut courtesy, 10, 9000, 0), Some(REST_MAX));
        assert_eq!(rest(&mut courtesy, 66, 80, 0), None);
    }
}
