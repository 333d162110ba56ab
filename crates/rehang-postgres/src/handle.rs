//! The gallery that every call is about: its database, its number there, and the application's table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rehang::{Error, Result};

use crate::connection::{Connection, Database, Step};
use crate::front::Front;
use crate::pgvector::Pgvector;
use crate::schema::SpaceRow;
use crate::table::Table;

/// A gallery in a table, as the functions of this crate take it.
pub(crate) struct Handle {
    pub(crate) database: Database,
    pub(crate) number: i32,
    pub(crate) table: Table,
    /// Why the table is not what the gallery was made of any more: then nothing is read of its rows, and nothing written.
    pub(crate) out_of_step: Option<Error>,
    /// The name that the space in the application's column has or will have.
    pub(crate) old: Option<String>,
    pub(crate) pgvector: Pgvector,
    /// What searches of each space, by its name, go by.
    pub(crate) searched: Mutex<BTreeMap<String, Searched>>,
    /// Where the queue of each space begins, by the space's number, where that was slow to find.
    pub(crate) fronts: Mutex<BTreeMap<i32, Front>>,
    /// How many native vectors the next statement writes.
    pub(crate) natives: Pace,
    /// The same of adapted ones.
    pub(crate) adapted: Pace,
}

/// How many vectors a statement writes: as many as are written within [`Pace::LONG`], since an application that writes one of their items
/// waits until the statement ends. A space with an index takes in few of them, a busy server fewer.
#[derive(Debug)]
pub(crate) struct Pace {
    next: AtomicUsize,
    least: usize,
    most: usize,
}

impl Pace {
    const LONG: Duration = Duration::from_millis(50);

    /// Begins with the least.
    pub(crate) fn between(least: usize, most: usize) -> Self {
        Self { next: AtomicUsize::new(least), least, most }
    }

    pub(crate) fn now(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Learns what a statement of so many vectors took.
    pub(crate) fn learn(&self, vectors: usize, took: Duration) {
        if took > Self::LONG {
            self.next.store((vectors / 2).max(self.least), Ordering::Relaxed);
        } else if took < Self::LONG / 3 && vectors >= self.now() {
            self.next.store((vectors * 2).min(self.most), Ordering::Relaxed);
        }
    }
}

/// The space that a search goes to, and from how many neighbours on all of its vectors are compared. The number is looked at again after a while, and
/// each search asks, in the very moment that it reads, whether the space is the same.
#[derive(Debug, Clone)]
pub(crate) struct Searched {
    pub(crate) row: SpaceRow,
    pub(crate) compared_from: usize,
    pub(crate) until: Instant,
}

impl Handle {
    /// What the gallery is, for people.
    pub(crate) fn name(&self) -> String {
        format!("postgresql://{} {}", self.database.name(), self.table.options.table)
    }

    /// Refuses what reads rows, or writes anything of them, where the table is not what the gallery was made of.
    pub(crate) fn expect_in_step(&self) -> Result<()> {
        self.out_of_step.clone().map_or(Ok(()), Err)
    }

    /// The application's column with the vectors of a space.
    pub(crate) fn column_of(&self, space: &str) -> Option<String> {
        self.old.as_deref().filter(|old| *old == space).and(self.table.options.vector.clone())
    }

    /// Keeps others from changing spaces until the transaction ends. An application's open transaction, in which our triggers
    /// wrote a document since they could not read its row, locks the gallery's key alone, and this lock does not wait for it.
    pub(crate) fn lock(&self, connection: &mut Connection) -> Step<()> {
        connection
            .query("SELECT 1 FROM rehang.gallery WHERE number = $1 FOR NO KEY UPDATE", &[&self.number])
            .map(drop)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_statements_get_shorter_and_quick_ones_longer() {
        let pace = Pace::between(8, 64);
        let of = |milliseconds: u64| Duration::from_millis(milliseconds);
        for expected in [16, 32, 64, 64] {
            pace.learn(pace.now(), of(5));
            assert_eq!(pace.now(), expected);
        }
        pace.learn(64, of(30));
        assert_eq!(pace.now(), 64);
        for expected in [32, 16, 8, 8] {
            pace.learn(pace.now(), of(90));
            assert_eq!(pace.now(), expected);
        }
        // The rest of a batch says nothing of more than it had.
        pace.learn(3, of(5));
        assert_eq!(pace.now(), 8);
    }
}
