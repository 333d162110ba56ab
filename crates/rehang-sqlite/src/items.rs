//! Items: as an application writes them, and as it reads them.

use std::collections::{BTreeMap, BTreeSet};

use rehang_core::{Provenance, Result};
use rehang_store::check::no_such_space;
use rehang_store::{Item, ItemWrite, Revision, check};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use crate::connection::Database;
use crate::ignored::{expect_changed, ignored_error};
use crate::paid;
use crate::spaces;
use crate::trouble::Step;
use crate::values::{as_bytes, key, place};

/// Columns that [`read_item`] reads, of a table called `item`.
pub(crate) const ITEM_COLUMNS: &str = "item.key, item.id, item.source, item.label, item.payload, item.revision, ifnull(item.source_revision, item.revision)";

/// Reads an item from the first columns of a row.
pub(crate) fn read_item(row: &Row<'_>) -> rusqlite::Result<Item> {
    let payload = match row.get_ref(4)?.as_str_or_null()? {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(4, rusqlite::types::Type::Text, Box::new(error))
        })?,
    };
    Ok(Item {
        key: key(row, 0)?,
        id: row.get(1)?,
        source: row.get(2)?,
        label: row.get(3)?,
        payload,
        revision: row.get(5)?,
        source_revision: row.get(6)?,
    })
}

pub(crate) fn put(database: &Database, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    // A new item has nothing that must be removed, so it needs no trigger; galleries are filled this way.
    if let Some(revisions) = database.write_without_triggers(|transaction| put_new(transaction, writes))? {
        return Ok(revisions);
    }
    database.write(|transaction| {
        let spaces = checked_spaces(transaction, writes)?;
        let mut find = transaction.prepare_cached("SELECT key FROM item WHERE id = ?1")?;
        let mut update = transaction.prepare_cached(
            "UPDATE item SET source = ?2, label = ?3, payload = ?4, revision = ?5,
                 source_revision = CASE WHEN source = ?2 THEN ifnull(source_revision, revision) END WHERE key = ?1",
        )?;
        let mut next = first_number(transaction, writes, &spaces)?;
        let mut revisions = Vec::with_capacity(writes.len());
        for write in writes {
            let revision = next;
            let existing_key: Option<i64> = find.query_row([&write.id], |row| row.get(0)).optional()?;
            let mut change = revision + 1;
            let key = if let Some(key) = existing_key {
                let changed =
                    update.execute(params![key, write.source, write.label, payload(write), revision])?;
                expect_changed(transaction, changed, "item", || writing(write))?;
                make_room(transaction, &spaces, write, key)?;
                key
            } else {
                let key = insert_item(transaction, write, revision)?;
                give_paid(transaction, &spaces, write, key, revision, &mut change)?;
                key
            };
            next = insert_vectors(transaction, &spaces, write, key, revision, change)?;
            revisions.push(revision);
        }
        Ok(revisions)
    })
}

type Spaces = BTreeMap<String, spaces::SpaceRow>;

/// Writes items if none of them is there yet; `None` where one is, or is given twice.
fn put_new(connection: &Connection, writes: &[ItemWrite]) -> Step<Option<Vec<Revision>>> {
    let spaces = checked_spaces(connection, writes)?;
    let mut ids = BTreeSet::new();
    let mut find = connection.prepare_cached("SELECT 1 FROM item WHERE id = ?1")?;
    for write in writes {
        if !ids.insert(&write.id) || find.exists([&write.id])? {
            return Ok(None);
        }
    }
    let mut next = first_number(connection, writes, &spaces)?;
    let mut revisions = Vec::with_capacity(writes.len());
    for write in writes {
        let revision = next;
        let key = insert_item(connection, write, revision)?;
        let mut change = revision + 1;
        let given_spaces = give_paid(connection, &spaces, write, key, revision, &mut change)?;
        next = insert_vectors(connection, &spaces, write, key, revision, change)?;
        for (name, space) in &spaces {
            if write.vectors.iter().all(|new| new.space != *name) && !given_spaces.contains(&space.number) {
                let listed = connection
                    .prepare_cached(&format!(
                        "INSERT OR IGNORE INTO lacking_{} (item, sourced) VALUES (?1, ?2)",
                        space.number
                    ))?
                    .execute(params![key, write.source.is_some()])?;
                // Where triggers fire, those of the gallery have listed it.
                let table = format!("lacking_{}", space.number);
                if listed == 0 && !has_row(connection, &table, key)? {
                    return Err(ignored_error(connection, &table, &writing(write))?.into());
                }
            }
        }
        revisions.push(revision);
    }
    Ok(Some(revisions))
}

/// Spaces by name, once everything that is to be written has been checked against them.
fn checked_spaces(connection: &Connection, writes: &[ItemWrite]) -> Step<Spaces> {
    let spaces: Spaces =
        spaces::list(connection)?.into_iter().map(|space| (space.space.name.clone(), space)).collect();
    for write in writes {
        check::item_write(write, |name| {
            let names = spaces.keys().map(String::as_str);
            let missing = || no_such_space(name, connection.path().unwrap_or_default(), names);
            spaces.get(name).map(|space| &space.space).ok_or_else(missing)
        })?;
        for (new, epoch) in write.vectors.iter().filter_map(|new| Some((new, new.epoch?))) {
            check::epoch(&new.space, epoch, spaces.get(&new.space).map_or(epoch, |space| space.epoch))?;
        }
    }
    Ok(spaces)
}

/// Takes as many numbers from the counter as the writes have items and vectors, and gives the first of them.
///
/// Vectors that items may be given back are counted too. Triggers that remove stale vectors count on after
/// these numbers, which harms no order.
fn first_number(connection: &Connection, writes: &[ItemWrite], spaces: &Spaces) -> Step<u64> {
    let numbers = writes.iter().map(|write| 1 + write.vectors.len() + spaces.len()).sum::<usize>();
    Ok(spaces::count(connection, numbers)? - numbers as u64 + 1)
}

fn payload(write: &ItemWrite) -> Option<String> {
    match &write.payload {
        Value::Null => None,
        payload => Some(payload.to_string()),
    }
}

fn insert_item(connection: &Connection, write: &ItemWrite, revision: Revision) -> Step<i64> {
    // The key comes from the row itself: where a trigger ignores the write, the last key of the connection is
    // another item's.
    let key = connection
        .prepare_cached(
            "INSERT INTO item (id, source, label, payload, revision) VALUES (?1, ?2, ?3, ?4, ?5) RETURNING key",
        )?
        .query_row(params![write.id, write.source, write.label, payload(write), revision], |row| row.get(0))
        .optional()?;
    key.map_or_else(|| Err(ignored_error(connection, "item", &writing(write))?.into()), Ok)
}

fn writing(write: &ItemWrite) -> String {
    format!("the write of item {:?}", write.id)
}

/// Whether an item has a row in a table of a space.
fn has_row(connection: &Connection, table: &str, key: i64) -> Step<bool> {
    Ok(connection.prepare_cached(&format!("SELECT 1 FROM {table} WHERE item = ?1"))?.exists([key])?)
}

/// Removes an item's vectors, left there by the triggers, in spaces for which the write brings an old or
/// native one.
fn make_room(connection: &Connection, spaces: &Spaces, write: &ItemWrite, key: i64) -> Step<()> {
    for new in write.vectors.iter().filter(|new| new.provenance != Provenance::Adapted) {
        if let Some(space) = spaces.get(&new.space) {
            let delete = format!("DELETE FROM vector_{} WHERE item = ?1", space.number);
            connection.prepare_cached(&delete)?.execute([key])?;
        }
    }
    Ok(())
}

/// Gives an item that has just come the native vectors that an item of its id and source had, in spaces for
/// which the write brings no old or native one. Returns the numbers of these spaces.
fn give_paid(
    connection: &Connection,
    spaces: &Spaces,
    write: &ItemWrite,
    key: i64,
    revision: Revision,
    change: &mut u64,
) -> Step<BTreeSet<i64>> {
    let mut given_spaces = BTreeSet::new();
    let Some(source) = &write.source else { return Ok(given_spaces) };
    let brings = |name: &str| {
        write.vectors.iter().any(|new| new.space == name && new.provenance != Provenance::Adapted)
    };
    for space in spaces.iter().filter(|(name, _)| !brings(name)).map(|(_, space)| space) {
        let give = paid::give(space.number);
        let gave =
            connection.prepare_cached(&give)?.execute(params![key, revision, *change, write.id, source])?;
        if gave > 0 {
            *change += 1;
            given_spaces.insert(space.number);
        }
    }
    Ok(given_spaces)
}

/// Writes an item's vectors, each with a number of its change from `change` on, and gives the number after
/// the last one.
fn insert_vectors(
    connection: &Connection,
    spaces: &Spaces,
    write: &ItemWrite,
    key: i64,
    revision: Revision,
    mut change: u64,
) -> Step<u64> {
    for new in &write.vectors {
        let Some(space) = spaces.get(&new.space) else { continue };
        // A native vector that the triggers have left there was made of the same source.
        let (band, score) = place(new.priority);
        let inserted = connection
            .prepare_cached(&format!(
                "INSERT INTO vector_{n}
                 (item, revision, provenance, sigma2, band, score, sourced, failed, change, value)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?3 = 'adapted' AND EXISTS (SELECT 1 FROM failure_{n} WHERE item = ?1), ?8, ?9
                 WHERE NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = ?1)",
                n = space.number
            ))?
            .execute(params![
                key,
                revision,
                new.provenance.name(),
                new.sigma2,
                band,
                score,
                write.source.is_some(),
                change,
                as_bytes(&new.vector)
            ])?;
        let table = format!("vector_{}", space.number);
        let is_there =
            inserted > 0 || new.provenance == Provenance::Adapted && has_row(connection, &table, key)?;
        expect_changed(connection, usize::from(is_there), &table, || writing(write))?;
        change += 1;
    }
    Ok(change)
}

pub(crate) fn delete(database: &Database, ids: &[&str]) -> Result<usize> {
    if ids.is_empty() {
        return Ok(0);
    }
    database.write(|transaction| {
        let mut delete = transaction.prepare_cached("DELETE FROM item WHERE id = ?1")?;
        let mut find = transaction.prepare_cached("SELECT 1 FROM item WHERE id = ?1")?;
        let mut deleted = 0;
        for id in ids {
            let removed = delete.execute([id])?;
            if removed == 0 && find.exists([id])? {
                return Err(
                    ignored_error(transaction, "item", &format!("the deletion of item {id:?}"))?.into()
                );
            }
            deleted += removed;
        }
        Ok(deleted)
    })
}

pub(crate) fn get(database: &Database, ids: &[&str]) -> Result<Vec<Option<Item>>> {
    database.read(|transaction| {
        let mut select =
            transaction.prepare_cached(&format!("SELECT {ITEM_COLUMNS} FROM item WHERE id = ?1"))?;
        ids.iter().map(|id| Ok(select.query_row([id], read_item).optional()?)).collect()
    })
}

pub(crate) fn newest_revision(database: &Database) -> Result<Revision> {
    count(database, "SELECT ifnull(max(revision), 0) FROM item")
}

pub(crate) fn count_without_source(database: &Database) -> Result<u64> {
    count(database, "SELECT count(*) FROM item INDEXED BY item_unsourced WHERE source IS NULL")
}

fn count(database: &Database, sql: &str) -> Result<u64> {
    database.read(|transaction| Ok(transaction.prepare_cached(sql)?.query_row([], |row| row.get(0))?))
}
