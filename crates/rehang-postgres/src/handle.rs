//! The gallery that every call is about: its database, its number there, and the application's table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

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
}

/// What searches of a space go by: the space, and whether all of its vectors are compared. Whether they are is looked at again after a while, and
/// each search asks, in the very moment that it reads, whether the space is the same.
#[derive(Debug, Clone)]
pub(crate) struct Searched {
    pub(crate) row: SpaceRow,
    pub(crate) is_exact: bool,
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
