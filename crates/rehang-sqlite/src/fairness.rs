//! Fairness: a share of the lock for writers in other processes, while this one writes thousands of vectors.
//!
//! SQLite lets one connection write at a time. The connections of one process take turns at a lock of ours.
//! Another process waits by looking again and again (with SQLite's own time-out after 1, 2, 5, 10, 15, 20,
//! 25, 25, 25, 50, 50 and then every 100 ms). Where large transactions follow each other at once, the lock is
//! free for a moment only, and most of those looks miss it. So while another process writes, the lock stays
//! free before a transaction that follows a large one, long enough for the other process to look.
//!
//! A process that never gets the lock is never seen to write. So the lock also stays free after the first
//! large transaction, and once in [`UNSEEN`], even where no other process was seen. A process that waits with
//! SQLite's own time-out gets its turn within about two seconds.

use std::mem;
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// Length of a transaction below which it leaves room enough by itself.
const SHORT: Duration = Duration::from_millis(5);
/// Shortest pause: in the first 128 ms of its wait, another process looks every 25 ms at least.
const REST_MIN: Duration = Duration::from_millis(26);
/// Longest pause: after those 128 ms it looks every 100 ms.
const REST_MAX: Duration = Duration::from_millis(101);
/// Time that the lock goes without a pause where no other process was seen to write. It is shorter than the
/// time-outs of 5 s that are usual; the pauses cost a twentieth of the time.
const UNSEEN: Duration = Duration::from_secs(2);
/// Time after a write of another process for which more of them are expected.
const EXPECTED: Duration = Duration::from_mins(1);

/// Signs of writes by other processes, as seen from the connection that writes thousands of vectors.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    /// SQLite's number of the last commit of any other connection; `None` before the first look.
    data_version: Option<i64>,
    /// Whether another connection of this process has written since the last look: its commits look like
    /// those of others.
    has_own_write: bool,
    expected_until: Option<Instant>,
    /// End of the last transaction, and how long it held the lock.
    last: Option<(Instant, Duration)>,
    /// Moment at which the lock had last been free for long enough that a process that waits has got it.
    shared: Option<Instant>,
}

impl Fairness {
    /// Time for which the lock has yet to stay free before the next transaction.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        let (ended, took) = self.last?;
        if took < SHORT {
            return None;
        }
        let expected = self.expected_until.is_some_and(|until| now < until);
        let pause = match self.shared {
            _ if expected => (took / 2).clamp(REST_MIN, REST_MAX),
            None => REST_MIN,
            Some(shared) if now.saturating_duration_since(shared) >= UNSEEN => REST_MAX,
            Some(_) => return None,
        };
        pause.checked_sub(now.saturating_duration_since(ended))
    }

    /// Notes that another connection of this process writes; that connection calls it.
    pub(crate) fn own_writes(&mut self) {
        self.has_own_write = true;
    }

    /// Looks for commits of other processes since the last transaction; called before each transaction.
    pub(crate) fn look(&mut self, connection: &Connection, now: Instant) -> rusqlite::Result<()> {
        let version = connection.pragma_query_value(None, "data_version", |row| row.get(0))?;
        let has_own_write = mem::take(&mut self.has_own_write);
        if !has_own_write && self.data_version.is_some_and(|data_version| data_version != version) {
            self.expected_until = Some(now + EXPECTED);
        }
        self.data_version = Some(version);
        if let Some((ended, _)) = self.last {
            let free = now.saturating_duration_since(ended);
            if free >= if self.shared.is_some() { REST_MAX } else { REST_MIN } {
                self.shared = Some(now);
            }
        }
        Ok(())
    }

    /// Notes the end of a transaction and how long it held the lock; called after each transaction.
    pub(crate) fn ended(&mut self, now: Instant, took: Duration) {
        self.last = Some((now, took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_left_while_others_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.db");
        let [bulk, own_writer, other_writer] = [0, 1, 2].map(|_| Connection::open(&path).unwrap());
        bulk.pragma_update(None, "journal_mode", "WAL").unwrap();
        bulk.execute_batch("CREATE TABLE number (value)").unwrap();
        let insert = |connection: &Connection| {
            connection.execute("INSERT INTO number VALUES (1)", []).unwrap();
        };
        let mut fairness = Fairness::default();
        let start = rehang_clock::now();
        let ms = Duration::from_millis;
        // Makes one transaction that takes so long, and gives the rest that is left a while later.
        let pause_after = |fairness: &mut Fairness, at: u64, took: u64, later: u64| {
            let now = start + Duration::from_secs(at);
            fairness.look(&bulk, now).unwrap();
            insert(&bulk);
            fairness.ended(now + ms(took), ms(took));
            fairness.rest(now + ms(took + later))
        };
        // At first no other process was seen, so one that waits gets one turn.
        assert_eq!(pause_after(&mut fairness, 0, 80, 0), Some(REST_MIN));
        // Nobody else writes: neither the connection's own commits nor those of the same process count.
        assert_eq!(pause_after(&mut fairness, 1, 80, 0), None);
        assert_eq!(pause_after(&mut fairness, 2, 80, 0), None);
        insert(&own_writer);
        fairness.own_writes();
        assert_eq!(pause_after(&mut fairness, 3, 80, 0), None);
        assert_eq!(pause_after(&mut fairness, 4, 80, 0), None);
        // Another process writes: room after long transactions, for a minute.
        insert(&other_writer);
        assert_eq!(pause_after(&mut fairness, 5, 80, 0), Some(ms(40)));
        assert_eq!(pause_after(&mut fairness, 6, 80, 30), Some(ms(10)));
        assert_eq!(pause_after(&mut fairness, 7, 80, 50), None, "it was free for long enough meanwhile");
        assert_eq!(pause_after(&mut fairness, 8, 1, 0), None);
        assert_eq!(pause_after(&mut fairness, 9, 5, 0), Some(REST_MIN));
        assert_eq!(pause_after(&mut fairness, 10, 9000, 0), Some(REST_MAX));
        assert_eq!(pause_after(&mut fairness, 66, 80, 0), None);
    }

    #[test]
    fn a_process_that_was_never_seen_gets_a_turn_too() {
        let connection = Connection::open_in_memory().unwrap();
        let mut fairness = Fairness::default();
        let mut now = rehang_clock::now();
        let (mut worked, mut pauses) = (Duration::ZERO, Vec::new());
        for _ in 0..200 {
            fairness.look(&connection, now).unwrap();
            let took = Duration::from_millis(25);
            now += took;
            worked += took;
            fairness.ended(now, took);
            if let Some(pause) = fairness.rest(now) {
                now += pause;
                pauses.push((worked, pause));
            }
        }
        let ms = Duration::from_millis;
        assert_eq!(pauses, [(ms(25), REST_MIN), (ms(2025), REST_MAX), (ms(4025), REST_MAX)]);
    }
}
