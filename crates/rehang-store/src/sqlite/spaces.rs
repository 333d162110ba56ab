//! The spaces of a gallery, which one serves, and the counter that revisions and changes come from.

use rehang::{Error, Provenance, Result, Space};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::connection::{Database, Step};
use super::schema;
use crate::check;
use crate::contract::SpaceRecord;
use crate::memory::{another_serves, no_such_space, same_space, serving_space_stays};

/// A space as the file has it.
#[derive(Debug, Clone)]
pub(crate) struct SpaceRow {
    /// What its tables are numbered with.
    pub(crate) number: i64,
    pub(crate) space: Space,
    pub(crate) written_as: Provenance,
    /// The counter when it was made.
    pub(crate) created: u64,
    /// Removals up to this count are forgotten: an index that knows less must be made again.
    pub(crate) trimmed: u64,
}

impl SpaceRow {
    /// The count of the last write to its vectors; two look-ups in indexes.
    pub(crate) fn change(&self, connection: &Connection) -> Step<u64> {
        let n = self.number;
        let mut statement = connection.prepare_cached(&format!(
            "SELECT max(ifnull((SELECT max(change) FROM vector_{n}), 0), ifnull((SELECT max(change) FROM removed_{n}), 0))"
        ))?;
        let change: u64 = statement.query_row([], |row| row.get(0))?;
        Ok(change.max(self.created).max(self.trimmed))
    }
}

/// The space with a name.
pub(crate) fn find(connection: &Connection, name: &str) -> Step<SpaceRow> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE name = ?1"))?;
    if let Some(space) = statement.query_row([name], read).optional()? {
        return space.map_err(Into::into);
    }
    let spaces = list(connection)?;
    let names: Vec<&str> = spaces.iter().map(|space| space.space.model.as_str()).collect();
    Err(no_such_space(name, connection.path().unwrap_or_default(), &names).into())
}

/// Every space in the order of creation.
pub(crate) fn list(connection: &Connection) -> Step<Vec<SpaceRow>> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} ORDER BY number"))?;
    let rows: Vec<Result<SpaceRow>> = statement.query_map([], read)?.collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| row.map_err(Into::into)).collect()
}

pub(crate) fn all(database: &Database) -> Result<Vec<SpaceRecord>> {
    database.read(|transaction| {
        list(transaction)?
            .into_iter()
            .map(|row| {
                let change = row.change(transaction)?;
                Ok(SpaceRecord { space: row.space, written_as: row.written_as, change })
            })
            .collect()
    })
}

pub(crate) fn create(database: &Database, space: &Space, written_as: Provenance) -> Result<()> {
    check::new_space(space, written_as)?;
    database.write(|transaction| {
        let there = list(transaction)?;
        if let Some(there) = there.iter().find(|there| there.space.model == space.model) {
            let record = SpaceRecord { space: there.space.clone(), written_as: there.written_as, change: 0 };
            return Ok(same_space(&record, space, written_as)?);
        }
        let created = count(transaction, 1)?;
        transaction.execute(
            "INSERT INTO space (name, dimension, distance, normalised, written_as, created, trimmed)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)",
            params![
                space.model,
                space.dimension,
                space.distance.name(),
                space.normalised,
                written_as.name(),
                created
            ],
        )?;
        let number = transaction.last_insert_rowid();
        transaction.execute_batch(&schema::space_tables(number, space, written_as))?;
        transaction.execute(
            "UPDATE gallery SET value = ?1 WHERE name = 'serving' AND value IS NULL",
            [&space.model],
        )?;
        Ok(())
    })
}

/// Drops a space and gives its number, if there was one.
pub(crate) fn drop(database: &Database, name: &str) -> Result<Option<i64>> {
    database.write(|transaction| {
        if serving_in(transaction)?.as_deref() == Some(name) {
            return Err(serving_space_stays(name).into());
        }
        let Some(row) = list(transaction)?.into_iter().find(|row| row.space.model == name) else {
            return Ok(None);
        };
        transaction.execute_batch(&schema::drop_space_tables(row.number))?;
        Ok(Some(row.number))
    })
}

pub(crate) fn serving(database: &Database) -> Result<Option<String>> {
    database.read(|transaction| serving_in(transaction))
}

pub(crate) fn switch_serving(database: &Database, from: &str, to: &str) -> Result<()> {
    database.write(|transaction| {
        find(transaction, to)?;
        let serving = serving_in(transaction)?.unwrap_or_default();
        if serving == to {
            return Ok(());
        }
        if serving != from {
            return Err(another_serves(from, to, &serving).into());
        }
        transaction.execute("UPDATE gallery SET value = ?1 WHERE name = 'serving'", [to])?;
        Ok(())
    })
}

/// Moves the counter on by `n` and gives its new value: the last `n` numbers are the caller's.
pub(crate) fn count(connection: &Connection, n: usize) -> Step<u64> {
    let mut statement = connection
        .prepare_cached("UPDATE gallery SET value = value + ?1 WHERE name = 'counter' RETURNING value")?;
    Ok(statement.query_row([n], |row| row.get(0))?)
}

/// What tells the side file of a space's index from every other: the gallery, and the moment it was saved. An older copy
/// of the gallery that takes its place counts its changes from there on with the same numbers, but does not know of later
/// moments.
pub(crate) fn index_identity(connection: &Connection, number: i64) -> Step<String> {
    let value = |name: String| -> Step<Option<String>> {
        let mut statement = connection.prepare_cached("SELECT value FROM gallery WHERE name = ?1")?;
        Ok(statement.query_row([name], |row| row.get(0)).optional()?)
    };
    let gallery = value("identity".into())?.unwrap_or_default();
    Ok(format!("{gallery}/{}", value(format!("saved-{number}"))?.unwrap_or_default()))
}

/// Begins another such moment.
pub(crate) fn renew_index_identity(connection: &Connection, number: i64) -> Step<String> {
    connection.execute(
        "INSERT INTO gallery (name, value) VALUES ('saved-' || ?1, lower(hex(randomblob(16)))) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [number],
    )?;
    index_identity(connection, number)
}

/// A provenance as the file writes it.
pub(crate) fn provenance(row: &Row<'_>, column: usize) -> rusqlite::Result<Provenance> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|error: Error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn serving_in(connection: &Connection) -> Step<Option<String>> {
    Ok(connection
        .prepare_cached("SELECT value FROM gallery WHERE name = 'serving'")?
        .query_row([], |row| row.get(0))
        .optional()?
        .flatten())
}

const SELECT: &str =
    "SELECT number, name, dimension, distance, normalised, written_as, created, trimmed FROM space";

fn read(row: &Row<'_>) -> rusqlite::Result<Result<SpaceRow>> {
    let (distance, written_as): (String, String) = (row.get(3)?, row.get(5)?);
    let (number, model, dimension, normalised) =
        (row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(4)?);
    let (created, trimmed) = (row.get(6)?, row.get(7)?);
    let parsed = || -> Result<SpaceRow> {
        Ok(SpaceRow {
            number,
            space: Space::new(model, dimension, distance.parse()?, normalised),
            written_as: written_as.parse()?,
            created,
            trimmed,
        })
    };
    Ok(parsed())
}
