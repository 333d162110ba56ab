//! The gallery that every call is about: its database, its number there, and the application's table.

use std::fmt;

use crate::connection::{Connection, Database, Step};
use crate::table::Table;

/// A gallery in a table, as the functions of this crate take it.
pub(crate) struct Handle {
    pub(crate) database: Database,
    pub(crate) number: i32,
    pub(crate) table: Table,
    /// The name that the space in the application's column has or will have.
    pub(crate) old: Option<String>,
    /// What the triggers' function sees names by.
    pub(crate) search_path: String,
    /// pgvector's type by its full name.
    pub(crate) vector_type: String,
    pub(crate) has_iterative_scan: bool,
}

impl Handle {
    /// What the gallery is, for people.
    pub(crate) fn name(&self) -> String {
        format!("postgresql://{} {}", self.database.name(), self.table.options.table)
    }

    /// The application's column with the vectors of a space.
    pub(crate) fn column_of(&self, space: &str) -> Option<String> {
        self.old.as_deref().filter(|old| *old == space).and(self.table.options.vector.clone())
    }

    /// A type of pgvector, `vector` or `halfvec`, by its full name.
    pub(crate) fn type_of_pgvector(&self, kind: &str) -> String {
        let schema = self.vector_type.strip_suffix("vector").unwrap_or_default();
        format!("{schema}{kind}")
    }

    /// Keeps others from changing spaces until the transaction ends.
    pub(crate) fn lock(&self, connection: &mut Connection) -> Step<()> {
        connection
            .query("SELECT 1 FROM rehang.gallery WHERE number = $1 FOR UPDATE", &[&self.number])
            .map(drop)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.name()).finish()
    }
}
