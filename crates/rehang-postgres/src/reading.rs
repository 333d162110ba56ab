//! Conditions and sources that fail for some rows, for example by a division by zero. Where one statement
//! reads many rows, such a row must not keep the others from being read.
//!
//! A statement is first made as it is, which is fast. Where it fails by a row, it is made once more
//! through a function that reads each row by itself. The function judges a row as the triggers do. A
//! source that cannot be made counts as none. A row whose condition cannot be read is passed over, or
//! stays the item that it was.

use crate::connection::{Connection, Step, StepError};
use crate::guard::SEARCH_PATH;
use crate::table::{Table, hash_of_source};

/// Way in which the condition and the source of a row are read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    /// The expressions stand in the statement as they are.
    Inline,
    /// The function of a gallery reads each row; with the gallery's number.
    RowByRow(i32),
}

impl Reading {
    /// Returns the condition that a row is an item; `otherwise` where that cannot be said.
    pub(crate) fn is_item(self, table: &Table, row: &str, otherwise: bool) -> String {
        match self {
            Self::Inline => table.is_item(row),
            Self::RowByRow(g) => {
                format!("coalesce((SELECT m.meets FROM rehang.read_{g}({row}) AS m), {otherwise})")
            }
        }
    }

    /// Returns the condition that a row has a source.
    pub(crate) fn has_source(self, table: &Table, row: &str) -> String {
        match self {
            Self::Inline => format!("{} IS NOT NULL", table.source_of(row)),
            Self::RowByRow(g) => format!("(SELECT m.has_source FROM rehang.read_{g}({row}) AS m)"),
        }
    }

    /// Returns the hash by which the sources of rows of a partitioned table are told apart.
    pub(crate) fn source_hash(self, table: &Table, row: &str) -> String {
        match self {
            Self::Inline => hash_of_source(&table.source_of(row)),
            Self::RowByRow(g) => format!("(SELECT m.source_hash FROM rehang.read_{g}({row}) AS m)"),
        }
    }

    /// Returns the condition that an item of a partitioned table has been seen with the
    /// source that its row has.
    pub(crate) fn has_source_of(self, table: &Table, item: &str, row: &str) -> String {
        format!("{item}.source_hash IS NOT DISTINCT FROM {}", self.source_hash(table, row))
    }
}

/// Whether a row of a table can make a statement fail that reads its condition and its source.
fn may_fail(table: &Table) -> bool {
    table.options.condition.is_some() || (table.options.source.is_some() && !table.is_source_column)
}

/// Returns the statement that makes the function which reads a row by itself; where no row may fail, the
/// statement that removes it.
pub(crate) fn row_reader_function(g: i32, table: &Table) -> String {
    if !may_fail(table) {
        return drop_function(g);
    }
    format!(
        "CREATE OR REPLACE FUNCTION rehang.read_{g}(r record, OUT meets boolean, OUT has_source boolean, OUT source_hash bigint) LANGUAGE plpgsql STABLE
SET search_path = {SEARCH_PATH} AS $rehang$
#variable_conflict use_column
BEGIN
    BEGIN
        meets := {0};
    EXCEPTION WHEN OTHERS THEN
        meets := NULL;
    END;
    has_source := false;
    BEGIN
        has_source := {1} IS NOT NULL;
        source_hash := {2};
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END
$rehang$;",
        table.is_item("r"),
        table.source_of("r"),
        if table.is_partitioned { hash_of_source(&table.source_of("r")) } else { "NULL".into() }
    )
}

/// Returns the statement that removes the function which reads a row by itself.
pub(crate) fn drop_function(g: i32) -> String {
    format!("DROP FUNCTION IF EXISTS rehang.read_{g}(record);")
}

/// Runs statements of a transaction, and runs them once more, row by row, where a row has made them fail.
pub(crate) fn of_rows<T>(
    connection: &mut Connection,
    g: i32,
    table: &Table,
    mut work: impl FnMut(&mut Connection, Reading) -> Step<T>,
) -> Step<T> {
    if !may_fail(table) {
        return work(connection, Reading::Inline);
    }
    connection.batch("SAVEPOINT of_rows")?;
    match work(connection, Reading::Inline) {
        Err(StepError::Server(error)) if error.code().is_some_and(|code| is_of_a_row(code.code())) => {
            connection.batch("ROLLBACK TO of_rows")?;
            work(connection, Reading::RowByRow(g))
        }
        Ok(done) => {
            connection.batch("RELEASE of_rows")?;
            Ok(done)
        }
        failed => failed,
    }
}

/// Whether an error comes from a row: its values (22), a limit that one of them exceeds (54), or an error
/// that a function of the application raises (P0, 38, 39).
fn is_of_a_row(code: &str) -> bool {
    ["22", "54", "P0", "38", "39"].contains(&&code[..2])
}
