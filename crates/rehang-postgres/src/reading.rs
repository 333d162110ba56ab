//! A condition and a source that fail for some rows, as by a division by zero: where many rows are read by one statement, one of them must not
//! keep the others from being read.
//!
//! So such a statement is made as it is, which is fast, and where it fails by a row, once more through a function that reads each row by itself.
//! It says of a row what the triggers say: a source that cannot be made is none, and a row whose condition cannot be read is passed over, or
//! stays the item that it was.

use crate::connection::{Connection, Step, StepError};
use crate::guard::SEARCH_PATH;
use crate::table::{Table, hash_of_source};

/// How the condition and the source of a row are read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    /// As they are.
    Inline,
    /// By the function of a gallery, by its number.
    RowByRow(i32),
}

impl Reading {
    /// Whether a row is an item; `otherwise` where that cannot be said.
    pub(crate) fn is_item(self, table: &Table, row: &str, otherwise: bool) -> String {
        match self {
            Self::Inline => table.is_item(row),
            Self::RowByRow(g) => {
                format!("coalesce((SELECT m.meets FROM rehang.read_{g}({row}) AS m), {otherwise})")
            }
        }
    }

    /// Whether a row has a source.
    pub(crate) fn has_source(self, table: &Table, row: &str) -> String {
        match self {
            Self::Inline => format!("{} IS NOT NULL", table.source_of(row)),
            Self::RowByRow(g) => format!("(SELECT m.has_source FROM rehang.read_{g}({row}) AS m)"),
        }
    }

    /// What the source of a row of a partitioned table is told apart by.
    pub(crate) fn source_hash(self, table: &Table, row: &str) -> String {
        match self {
            Self::Inline => hash_of_source(&table.source_of(row)),
            Self::RowByRow(g) => format!("(SELECT m.source_hash FROM rehang.read_{g}({row}) AS m)"),
        }
    }

    /// Whether an item of a partitioned table has been seen with the source that its row has.
    pub(crate) fn has_source_of(self, table: &Table, item: &str, row: &str) -> String {
        format!("{item}.source_hash IS NOT DISTINCT FROM {}", self.source_hash(table, row))
    }
}

/// Whether a row of a table can make a statement fail that reads its condition and its source.
fn may_fail(table: &Table) -> bool {
    table.options.condition.is_some() || (table.options.source.is_some() && !table.is_source_column)
}

/// The function that reads a row by itself, where one may fail.
pub(crate) fn function(g: i32, table: &Table) -> String {
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

/// Takes it away.
pub(crate) fn drop_function(g: i32) -> String {
    format!("DROP FUNCTION IF EXISTS rehang.read_{g}(record);")
}

/// Makes statements of a transaction, and makes them once more, row by row, where a row has made them fail.
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

/// Whether values are to blame (22), a limit that one of them goes beyond (54), or what a function of the application raises (P0, 38, 39).
fn is_of_a_row(code: &str) -> bool {
    ["22", "54", "P0", "38", "39"].contains(&&code[..2])
}
