//! Writes that a trigger of the application ignores: `RAISE(IGNORE)` leaves a row as it was, and only the
//! count of changed rows shows it.
//!
//! **Invariant**: wherever something builds on a statement, the number of rows that it has changed is
//! compared with the number that it was to change. A call in which they differ writes nothing. A vector would
//! otherwise lie beside another item, or be paid for again and again.

use rehang_core::Error;
use rehang_store::Problem;
use rusqlite::Connection;

use crate::schema;
use crate::trouble::Step;

/// Fails where a statement that was to change rows of a table has changed none.
pub(crate) fn expect_changed(
    connection: &Connection,
    changed: usize,
    table: &str,
    doing: impl FnOnce() -> String,
) -> Step<()> {
    if changed > 0 {
        return Ok(());
    }
    Err(ignored_error(connection, table, &doing())?.into())
}

/// Explains why a row of a table stayed as it was though it was to change.
pub(crate) fn ignored_error(connection: &Connection, table: &str, doing: &str) -> Step<Error> {
    let triggers: Vec<String> = others(connection)?
        .into_iter()
        .filter(|(_, on, _)| on == table)
        .map(|(name, ..)| format!("{name:?}"))
        .collect();
    let who = match &triggers[..] {
        [] => "something beside the gallery".to_owned(),
        [name] => format!("your trigger {name}"),
        several => format!("one of your triggers {}", several.join(", ")),
    };
    let why = format!(
        "{who} ignores writes of table {table} (RAISE(IGNORE)), so nothing of this call was written; drop it, or let it pass what rehang writes"
    );
    Ok(Error::conflict(format!("{doing} in {}", connection.path().unwrap_or_default()), why))
}

/// Problems for the doctor: triggers of the application that ignore writes of our tables.
pub(crate) fn problems(connection: &Connection) -> Step<Vec<Problem>> {
    let ignores = |sql: &str| {
        let bare: String = sql.chars().filter(|letter| !letter.is_whitespace()).collect();
        bare.to_lowercase().contains("raise(ignore)")
    };
    let triggers =
        others(connection)?.into_iter().filter(|(_, on, sql)| schema::is_our_table(on) && ignores(sql));
    let problem = |(name, on, _): (String, String, String)| {
        let what = format!(
            "the trigger {name:?} has writes of table {on} ignored (RAISE(IGNORE)): a call of rehang whose write it ignores fails. Drop it, or let it \
             pass what rehang writes"
        );
        Problem { space: None, what, count: 1 }
    };
    Ok(triggers.map(problem).collect())
}

/// Triggers that are not the gallery's: name, table and text.
fn others(connection: &Connection) -> Step<Vec<(String, String, String)>> {
    let mut select = connection.prepare_cached(
        "SELECT name, tbl_name, ifnull(sql, '') FROM sqlite_schema WHERE type = 'trigger' ORDER BY name",
    )?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let all: Vec<(String, String, String)> = rows.collect::<rusqlite::Result<_>>()?;
    Ok(all.into_iter().filter(|(name, ..)| !schema::is_our_trigger(name)).collect())
}
