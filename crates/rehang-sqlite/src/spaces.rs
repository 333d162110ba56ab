//! The spaces of a gallery, which one serves, its documents, and the counter that revisions and changes come
//! from.

use rehang_core::{Provenance, Result, Space};
use rehang_store::check::{
    another_serves, next_version, no_such_space, same_epoch, same_space, serving_space_stays,
};
use rehang_store::{Document, Epoch, SpaceRecord, check};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::connection::Database;
use crate::ignored::{expect_changed, ignored_error};
use crate::schema;
use crate::trouble::Step;

/// Space as the file has it.
#[derive(Debug, Clone)]
pub(crate) struct SpaceRow {
    /// Number in the names of the space's tables.
    pub(crate) number: i64,
    pub(crate) space: Space,
    pub(crate) written_as: Provenance,
    /// Value of the counter when the space was made.
    pub(crate) created: u64,
    /// Count up to which removals are forgotten: an index that knows less must be made again.
    pub(crate) trimmed: u64,
    pub(crate) epoch: Epoch,
}

impl SpaceRow {
    /// Reads the count of the last write to the space's vectors; two look-ups in indexes.
    pub(crate) fn change(&self, connection: &Connection) -> Step<u64> {
        let n = self.number;
        let mut statement = connection.prepare_cached(&format!(
            "SELECT max(ifnull((SELECT max(change) FROM vector_{n}), 0), ifnull((SELECT max(change) FROM removed_{n}), 0))"
        ))?;
        let change: u64 = statement.query_row([], |row| row.get(0))?;
        Ok(change.max(self.created).max(self.trimmed))
    }

    /// Counts the rows of one of the space's tables.
    pub(crate) fn count<T: FromSql>(&self, connection: &Connection, table: &str) -> Step<T> {
        let sql = format!("SELECT count(*) FROM {table}_{}", self.number);
        Ok(connection.query_row(&sql, [], |row| row.get(0))?)
    }
}

/// Looks up a space by name.
pub(crate) fn find(connection: &Connection, name: &str) -> Step<SpaceRow> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE name = ?1"))?;
    if let Some(space) = statement.query_row([name], read).optional()? {
        return space.map_err(Into::into);
    }
    let spaces = list(connection)?;
    let names = spaces.iter().map(|space| space.space.name.as_str());
    Err(no_such_space(name, connection.path().unwrap_or_default(), names).into())
}

/// Every space in the order of creation.
pub(crate) fn list(connection: &Connection) -> Step<Vec<SpaceRow>> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} ORDER BY number"))?;
    let rows: Vec<Result<SpaceRow>> = statement.query_map([], read)?.collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| row.map_err(Into::into)).collect()
}

pub(crate) fn all(database: &Database) -> Result<Vec<SpaceRecord>> {
    database.read(|transaction| {
        let records = list(transaction)?.into_iter().map(|row| SpaceRecord {
            space: row.space,
            written_as: row.written_as,
            epoch: row.epoch,
        });
        Ok(records.collect())
    })
}

/// Begins the epoch after `from`, inside a transaction that names it in a document.
fn begin_epoch(connection: &Connection, space: &str, from: Epoch) -> Step<()> {
    let row = find(connection, space)?;
    same_epoch(space, from, row.epoch)?;
    let changed = connection.execute(
        "UPDATE space SET epoch = ?2 WHERE number = ?1",
        params![row.number, from.next().number()],
    )?;
    expect_changed(connection, changed, "space", || format!("the next plan of space {space:?}"))
}

/// Items that are listed as lacking in one transaction: an application that writes meanwhile waits for no
/// more. Few in tests, so that there are several turns.
const LISTED_TOGETHER: usize = if cfg!(test) { 7 } else { 10_000 };
/// Rows that are removed in one transaction, where there may be millions.
pub(crate) const REMOVED_TOGETHER: usize = if cfg!(test) { 3 } else { 500 };

pub(crate) fn create(database: &Database, space: &Space, written_as: Provenance) -> Result<()> {
    check::new_space(space, written_as)?;
    remove_left(database)?;
    let number = begin(database, space, written_as)?;
    list_items(database, number)
}

/// Makes the tables of a space, if it is not there yet, and gives its number; its items are not listed yet.
pub(crate) fn begin(database: &Database, space: &Space, written_as: Provenance) -> Result<i64> {
    database.write(|transaction| {
        let rows = list(transaction)?;
        if let Some(row) = rows.iter().find(|row| row.space.name == space.name) {
            let record =
                SpaceRecord { space: row.space.clone(), written_as: row.written_as, epoch: row.epoch };
            same_space(&record, space, written_as)?;
            return Ok(row.number);
        }
        let created = count(transaction, 1)?;
        let sql = "INSERT INTO space (name, dimension, distance, normalised, written_as, created, trimmed)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0) RETURNING number";
        let values = params![
            space.name,
            space.dimension,
            space.distance.name(),
            space.normalised,
            written_as.name(),
            created
        ];
        let number: Option<i64> = transaction.query_row(sql, values, |row| row.get(0)).optional()?;
        let Some(number) = number else {
            return Err(ignored_error(
                transaction,
                "space",
                &format!("the making of space {:?}", space.name),
            )?
            .into());
        };
        transaction.execute_batch(&schema::space_tables(number, space, written_as))?;
        transaction.execute(
            "UPDATE gallery SET value = ?1 WHERE name = 'serving' AND value IS NULL",
            [&space.name],
        )?;
        Ok(number)
    })
}

/// Lists the items that were there before a space as lacking in it, a page at a time. Items that come or
/// change meanwhile are the triggers' business. The gallery holds how far the listing came, so that a call
/// after a crash goes on.
fn list_items(database: &Database, number: i64) -> Result<()> {
    let marker = format!("listed-{number}");
    in_turns(|| {
        if database.read(|transaction| value::<i64>(transaction, &marker))?.is_none() {
            return Ok(true);
        }
        database.write(|transaction| {
            let Some(after) = value::<i64>(transaction, &marker)? else { return Ok(true) };
            let last: Option<i64> = transaction.query_row(
                "SELECT max(key) FROM (SELECT key FROM item WHERE key > ?1 ORDER BY key LIMIT ?2)",
                params![after, LISTED_TOGETHER],
                |row| row.get(0),
            )?;
            let Some(last) = last else {
                transaction.execute("DELETE FROM gallery WHERE name = ?1", [&marker])?;
                return Ok(true);
            };
            transaction.execute(&schema::list_lacking(number), [after, last])?;
            let marked = transaction
                .execute("UPDATE gallery SET value = ?2 WHERE name = ?1", params![marker, last])?;
            expect_changed(transaction, marked, "gallery", || "the listing of a new space".to_owned())?;
            Ok(false)
        })
    })
}

/// Counts items that lack a vector in a space and are not listed as such yet, and those of them without a
/// source.
///
/// There are none but while a space is being made, or where the process died that made it.
pub(crate) fn count_unlisted(connection: &Connection, n: i64) -> Step<(u64, u64)> {
    let Some(after) = value::<i64>(connection, &format!("listed-{n}"))? else { return Ok((0, 0)) };
    let mut select = connection.prepare_cached(&schema::count_unlisted(n))?;
    Ok(select.query_row([after], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// Repeats a step that holds the gallery for a moment until it says that it is done. Between steps it leaves
/// the gallery to others for as long as the step took: a process that waits to write looks again only now and
/// then.
pub(crate) fn in_turns(mut step: impl FnMut() -> Result<bool>) -> Result<()> {
    loop {
        let began = rehang_clock::now();
        if step()? {
            return Ok(());
        }
        rehang_clock::wait(began.elapsed());
    }
}

/// Drops a space and gives its number, if there was one. No call finds it from the first moment on. Its rows
/// go little by little, and after a crash with the next space that is made or dropped.
pub(crate) fn drop(database: &Database, name: &str) -> Result<Option<i64>> {
    let number = leave(database, name)?;
    remove_left(database)?;
    Ok(number)
}

/// Takes a space out of the gallery; its tables are still there.
pub(crate) fn leave(database: &Database, name: &str) -> Result<Option<i64>> {
    database.write(|transaction| {
        if serving_in(transaction)?.as_deref() == Some(name) {
            return Err(serving_space_stays(name).into());
        }
        let Some(row) = list(transaction)?.into_iter().find(|row| row.space.name == name) else {
            return Ok(None);
        };
        transaction.execute_batch(&schema::leave_space(row.number))?;
        Ok(Some(row.number))
    })
}

/// Whether tables of a dropped space are still there: it is being dropped, or the process that did so died.
pub(crate) fn is_any_left(database: &Database) -> Result<bool> {
    Ok(database.read(|transaction| dropped_but_left(transaction))?.is_some())
}

/// Number of a space that was dropped and is still there.
fn dropped_but_left(connection: &Connection) -> Step<Option<i64>> {
    let mut statement =
        connection.prepare_cached("SELECT value FROM gallery WHERE name LIKE 'left-%' LIMIT 1")?;
    Ok(statement.query_row([], |row| row.get(0)).optional()?)
}

/// Removes the tables of dropped spaces, little by little. To drop a table whole, SQLite reads every page of
/// it, and everybody waits.
pub(crate) fn remove_left(database: &Database) -> Result<()> {
    in_turns(|| {
        if !is_any_left(database)? {
            return Ok(true);
        }
        database.write(|transaction| {
            let Some(number) = dropped_but_left(transaction)? else { return Ok(true) };
            let index: Option<String> =
                transaction.query_row(&schema::an_index(number), [], |row| row.get(0)).optional()?;
            if let Some(index) = index {
                transaction.execute_batch(&format!("DROP INDEX {index}"))?;
                return Ok(false);
            }
            for table in schema::TABLES_OF_SPACE {
                let rows = format!(
                    "DELETE FROM {table}_{number} WHERE item IN (SELECT item FROM {table}_{number} LIMIT ?1)"
                );
                if transaction.execute(&rows, [REMOVED_TOGETHER])? > 0 {
                    return Ok(false);
                }
            }
            transaction.execute_batch(&schema::drop_space_tables(number))?;
            Ok(false)
        })
    })
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
        let switched = transaction.execute("UPDATE gallery SET value = ?1 WHERE name = 'serving'", [to])?;
        expect_changed(transaction, switched, "gallery", || format!("the switch of searches to {to:?}"))
    })
}

pub(crate) fn serving_and_document(
    database: &Database,
    name: &str,
) -> Result<(Option<String>, Option<Document>)> {
    database.read(|transaction| Ok((serving_in(transaction)?, document_in(transaction, name)?)))
}

fn document_in(connection: &Connection, name: &str) -> Step<Option<Document>> {
    Ok(connection
        .prepare_cached("SELECT version, text FROM document WHERE name = ?1")?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?)
}

pub(crate) fn set_document(
    database: &Database,
    name: &str,
    expected: Option<u64>,
    text: &str,
) -> Result<u64> {
    database.write(|transaction| set_document_in(transaction, name, expected, text))
}

pub(crate) fn advance(
    database: &Database,
    space: &str,
    from: Epoch,
    document: &str,
    expected: Option<u64>,
    text: &str,
) -> Result<u64> {
    database.write(|transaction| {
        begin_epoch(transaction, space, from)?;
        set_document_in(transaction, document, expected, text)
    })
}

fn set_document_in(connection: &Connection, name: &str, expected: Option<u64>, text: &str) -> Step<u64> {
    let version = document_in(connection, name)?.map(|(version, _)| version);
    let next = next_version(name, expected, version)?;
    let written = connection
        .prepare_cached("INSERT OR REPLACE INTO document (name, version, text) VALUES (?1, ?2, ?3)")?
        .execute(params![name, next, text])?;
    expect_changed(connection, written, "document", || format!("the write of document {name:?}"))?;
    Ok(next)
}

/// Moves the counter on by `n` and gives its new value: the last `n` numbers are the caller's.
pub(crate) fn count(connection: &Connection, n: usize) -> Step<u64> {
    let mut statement = connection
        .prepare_cached("UPDATE gallery SET value = value + ?1 WHERE name = 'counter' RETURNING value")?;
    let counted = statement.query_row([n], |row| row.get(0)).optional()?;
    counted.map_or_else(|| Err(ignored_error(connection, "gallery", "the next revision")?.into()), Ok)
}

/// Reads what tells the side file of a space's index from every other: the gallery, and the moments at which
/// it was saved.
///
/// An older copy of the gallery that takes its place counts its changes from there on with the same numbers,
/// but does not know of later moments.
pub(crate) fn index_identity(connection: &Connection, number: i64) -> Step<IndexIdentity> {
    let moment = |name: String| -> Step<String> { Ok(value(connection, &name)?.unwrap_or_default()) };
    Ok(IndexIdentity {
        gallery: moment("identity".into())?,
        saved: moment(format!("saved-{number}"))?,
        before: moment(format!("saved-before-{number}"))?,
    })
}

/// Identity of a space's side file: the gallery, and the moments at which the index was saved last and before
/// that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexIdentity {
    gallery: String,
    saved: String,
    before: String,
}

impl IndexIdentity {
    /// Text that the footer of the last file has.
    pub(crate) fn text(&self) -> String {
        format!("{}/{}", self.gallery, self.saved)
    }

    /// Whether a file with this footer is of this gallery: the last one, or the one before, which is there
    /// until the last one has its name.
    pub(crate) fn has_saved(&self, text: &str) -> bool {
        text.split_once('/').is_some_and(|(gallery, moment)| {
            gallery == self.gallery && (moment == self.saved || moment == self.before)
        })
    }

    /// Makes another moment of the same gallery, of which nothing knows yet.
    ///
    /// The moment before it is that of the file that has the name now, as its footer `named` says. A process
    /// that died may have kept a moment without giving its file the name.
    pub(crate) fn next(&self, connection: &Connection, named: Option<&str>) -> Step<Self> {
        let saved = connection.query_row("SELECT lower(hex(randomblob(16)))", [], |row| row.get(0))?;
        let named = named.filter(|text| self.has_saved(text)).and_then(|text| text.split_once('/'));
        let before = named.map_or_else(|| self.saved.clone(), |(_, moment)| moment.to_owned());
        Ok(Self { gallery: self.gallery.clone(), saved, before })
    }

    /// Makes this the last moment, if the gallery still has `last`. `false` where another process has saved
    /// meanwhile.
    pub(crate) fn keep(&self, connection: &Connection, number: i64, last: &Self) -> Step<bool> {
        if index_identity(connection, number)? != *last {
            return Ok(false);
        }
        for (name, moment) in [("saved", &self.saved), ("saved-before", &self.before)] {
            connection.execute(
                "INSERT INTO gallery (name, value) VALUES (?1 || '-' || ?2, ?3) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, number, moment),
            )?;
        }
        Ok(true)
    }
}

pub(crate) fn serving_in(connection: &Connection) -> Step<Option<String>> {
    Ok(value(connection, "serving")?.flatten())
}

/// Reads the value that the gallery keeps under a name.
fn value<T: FromSql>(connection: &Connection, name: &str) -> Step<Option<T>> {
    let mut statement = connection.prepare_cached("SELECT value FROM gallery WHERE name = ?1")?;
    Ok(statement.query_row([name], |row| row.get(0)).optional()?)
}

const SELECT: &str =
    "SELECT number, name, dimension, distance, normalised, written_as, created, trimmed, epoch FROM space";

fn read(row: &Row<'_>) -> rusqlite::Result<Result<SpaceRow>> {
    let (distance, written_as): (String, String) = (row.get(3)?, row.get(5)?);
    let (number, model, dimension, normalised) =
        (row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(4)?);
    let (created, trimmed, epoch) = (row.get(6)?, row.get(7)?, Epoch::new(row.get(8)?));
    let parsed = || -> Result<SpaceRow> {
        Ok(SpaceRow {
            number,
            space: Space::new(model, dimension, distance.parse()?, normalised),
            written_as: written_as.parse()?,
            created,
            trimmed,
            epoch,
        })
    };
    Ok(parsed())
}
