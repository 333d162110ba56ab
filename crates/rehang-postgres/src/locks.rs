//! Locks of whole tables.

use crate::connection::{Connection, Step};
use crate::table::literal;

/// Ends the server's own vacuum of tables, and keeps it away until the transaction ends. A vacuum gives way
/// to somebody who waits for a lock longer than the server's `deadlock_timeout`, mostly a second. That is
/// longer than a statement of ours may wait that the application waits behind, so this waits beforehand. No
/// reader and no writer waits for this lock, nor does this lock for them. Names are SQL's; a table that is
/// not there is passed over.
pub(crate) fn without_vacuum(connection: &mut Connection, tables: &[String]) -> Step<()> {
    let was: String = connection.query_one("SELECT current_setting('lock_timeout')", &[])?.try_get(0)?;
    connection.batch("SET LOCAL lock_timeout = '10s'")?;
    lock_in_turn(connection, tables, "SHARE UPDATE EXCLUSIVE")?;
    connection.batch(&format!("SET LOCAL lock_timeout = '{was}'"))
}

/// Locks tables one after the other, except those that a person has dropped.
pub(crate) fn lock_in_turn(connection: &mut Connection, tables: &[String], mode: &str) -> Step<()> {
    let lock = |name: &String| {
        let text = literal(name);
        format!(
            "IF pg_catalog.to_regclass({text}) IS NOT NULL THEN LOCK TABLE {name} IN {mode} MODE; END IF;"
        )
    };
    let locks: String = tables.iter().map(lock).collect();
    connection.batch(&format!("DO $rehang$ BEGIN {locks} END $rehang$"))
}
