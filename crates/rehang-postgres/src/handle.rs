//! The gallery that every call is about: its database, its number there, and the application's table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rehang_core::{Error, Result};

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
    /// Reason why the table is not what the gallery was made of any more, if so. Then nothing is read of its
    /// rows, and nothing written.
    pub(crate) out_of_step: Option<Error>,
    /// The name that the space in the application's column has or will have.
    pub(crate) old: Option<String>,
    pub(crate) pgvector: Pgvector,
    /// Facts that searches of each space use, by the space's name.
    pub(crate) searched: Mutex<BTreeMap<String, Searched>>,
    /// Place where the queue of each space begins, by the space's number, where finding it was slow.
    pub(crate) fronts: Mutex<BTreeMap<i32, Front>>,
    /// Number of native vectors that the next statement writes.
    pub(crate) natives: Pace,
    /// Number of adapted vectors that the next statement writes.
    pub(crate) adapted: Pace,
}

/// Number of vectors that a statement writes: as many as are written within [`Pace::LONG`], since an
/// application that writes one of their items waits until the statement ends. A space with an index takes in
/// few in that time, and a busy server fewer.
#[derive(Debug)]
pub(crate) struct Pace {
    next: AtomicUsize,
    least: usize,
    most: usize,
}

impl Pace {
    const LONG: Duration = Duration::from_millis(50);

    /// Begins with the least number.
    pub(crate) fn between(least: usize, most: usize) -> Self {
        Self { next: AtomicUsize::new(least), least, most }
    }

    pub(crate) fn now(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Adjusts the number by how long a statement of `vectors` vectors took.
    pub(crate) fn learn(&self, vectors: usize, took: Duration) {
        if took > Self::LONG {
            self.next.store((vectors / 2).max(self.least), Ordering::Relaxed);
        } else if took < Self::LONG / 3 && vectors >= self.now() {
            self.next.store((vectors * 2).min(self.most), Ordering::Relaxed);
        }
    }
}

/// Space that a search goes to, and the number of neighbours from which on all of its vectors are compared.
/// The number is read again after `until`. Each search asks, in the very moment that it reads, whether the
/// space is still the same.
#[derive(Debug, Clone)]
pub(crate) struct Searched {
    pub(crate) row: SpaceRow,
    pub(crate) exact_from: usize,
    pub(crate) until: Instant,
}

impl Handle {
    /// Returns the name of the gallery in messages.
    pub(crate) fn name(&self) -> String {
        format!("postgresql://{} {}", self.database.name(), self.table.options.table)
    }

    /// Fails where the table is not what the gallery was made of: then nothing may read its rows or
    /// write anything of them.
    pub(crate) fn expect_in_step(&self) -> Result<()> {
        self.out_of_step.clone().map_or(Ok(()), Err)
    }

    /// Returns the column of the application that holds the vectors of a space, if one does.
    pub(crate) fn column_of(&self, space: &str) -> Option<String> {
        self.old.as_deref().filter(|old| *old == space).and(self.table.options.vector.clone())
    }

    /// Keeps others from changing spaces until the transaction ends. An application's open transaction may
    /// hold a lock on the gallery's key alone, where the triggers wrote a document whose row they could not
    /// read. This lock does not wait for such a transaction.
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
        let milliseconds = |count: u64| Duration::from_millis(count);
        for expected in [16, 32, 64, 64] {
            pace.learn(pace.now(), milliseconds(5));
            assert_eq!(pace.now(), expected);
        }
        pace.learn(64, milliseconds(30));
        assert_eq!(pace.now(), 64);
        for expected in [32, 16, 8, 8] {
            pace.learn(pace.now(), milliseconds(90));
            assert_eq!(pace.now(), expected);
        }
        // The rest of a batch was short, so its time tells nothing about more vectors than it had.
        pace.learn(3, milliseconds(5));
        assert_eq!(pace.now(), 8);
    }
}
