//! Writes that a trigger or a rule holds back: the server says so only by the count of changed rows.
//!
//! **Invariant**: wherever something builds on what a statement has changed, that is compared with what it
//! was to change. A transaction in which they differ writes nothing. Otherwise a vector would lie beside
//! content that it was not made of, or be lost with the end of a gallery.

use rehang_core::Error;

use crate::connection::{Connection, Step};
use crate::schema::IS_OF_APPLICATION;

/// Kind of change that a statement makes to rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// The statement inserts rows, or updates those that are there.
    Put,
    Update,
    Delete,
}

impl Event {
    /// Returns the bits of the triggers that the event fires, and the types of its rules.
    fn bits(self) -> (i16, [&'static str; 2]) {
        match self {
            Self::Put => (4 | 16, ["3", "2"]),
            Self::Update => (16, ["2", "2"]),
            Self::Delete => (8, ["4", "4"]),
        }
    }
}

/// Lists the triggers before rows and the rules on a table that an event meets, each in words.
fn who(connection: &mut Connection, on: &str, event: Event) -> Step<Vec<String>> {
    let (bits, types) = event.bits();
    let rows = connection.query(
        &format!("SELECT format('trigger %I', tgname), 0 FROM pg_trigger WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
             AND tgtype & 3 = 3 AND tgtype & $2::smallint <> 0 AND {IS_OF_APPLICATION}
         UNION ALL SELECT format('rule %I', rulename), 1 FROM pg_rewrite WHERE ev_class = to_regclass($1) AND ev_enabled IN ('O', 'A')
             AND ev_type::text = ANY($3) ORDER BY 2, 1"),
        &[&on, &bits, &types.map(str::to_owned).to_vec()],
    )?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// Explains why rows of a table stayed as they were though they were to change.
pub(crate) fn held_back(connection: &mut Connection, on: &str, event: Event, doing: &str) -> Step<Error> {
    let names = who(connection, on, event)?;
    let who = match &names[..] {
        [] => "something beside rehang".to_owned(),
        [name] => format!("your {name}"),
        several => format!("one of {}", several.join(", ")),
    };
    let why = format!(
        "{who} on {on} holds the row back or writes another one, so nothing of this call was written; let pass what rehang writes, or write the table \
         yourself"
    );
    Ok(Error::conflict(doing, why))
}

/// Fails where a table has rules for updates, by which the server would do something else.
pub(crate) fn expect_no_rules(connection: &mut Connection, on: &str, doing: &str) -> Step<()> {
    let rows = connection.query(
        "SELECT format('%I', rulename) FROM pg_rewrite WHERE ev_class = to_regclass($1) AND ev_enabled IN ('O', 'A') AND ev_type = '2' ORDER BY 1",
        &[&on],
    )?;
    let rules: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if rules.is_empty() {
        return Ok(());
    }
    let why = format!(
        "{on} has rules for updates ({}), and the server does what they say in their place; drop them before (a trigger does the same), or release \
         without moving and copy the vectors as you like",
        rules.join(", ")
    );
    Err(Error::conflict(doing, why).into())
}

/// Names the application's triggers and rules that may hold back writes of a table through the gallery;
/// `None` where there are none.
pub(crate) fn remark(connection: &mut Connection, oid: u32, table: &str) -> Step<Option<String>> {
    let rows = connection.query(
        &format!("SELECT format('trigger %I', t.tgname) FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
             WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND {IS_OF_APPLICATION}
             AND t.tgtype & 3 = 3 AND p.prosrc ~* 'return\\s+null'
         UNION ALL SELECT format('rule %I', rulename) FROM pg_rewrite WHERE ev_class = $1 AND ev_enabled IN ('O', 'A') AND ev_type IN ('2', '3', '4')
         ORDER BY 1"),
        &[&oid],
    )?;
    let names: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok((!names.is_empty()).then(|| {
        format!(
            "what is written of {table} may be held back by {}: your own writes go on as you mean them, and an item that is put or deleted through \
             rehang, or a release that moves the vectors, fails where its row is held back",
            names.join(", ")
        )
    }))
}
