//! Items and documents.

use std::collections::BTreeMap;

use rehang::{Error, Result};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::connection::{Database, Step};
use super::spaces;
use super::vectors::as_bytes;
use crate::check;
use crate::contract::{Item, ItemWrite, Revision};
use crate::memory::{document_changed, no_such_space};

/// The columns that [`read_item`] reads, of a table called `item`.
pub(crate) const ITEM_COLUMNS: &str =
    "item.key, item.id, item.source, item.label, item.payload, item.revision";

/// An item from the first columns of a row.
pub(crate) fn read_item(row: &Row<'_>) -> rusqlite::Result<Item> {
    let payload = match row.get_ref(4)?.as_str_or_null()? {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(4, rusqlite::types::Type::Text, Box::new(error))
        })?,
    };
    Ok(Item {
        key: row.get(0)?,
        id: row.get(1)?,
        source: row.get(2)?,
        label: row.get(3)?,
        payload,
        revision: row.get(5)?,
    })
}

pub(crate) fn put(database: &Database, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    database.write(|transaction| {
        let spaces: BTreeMap<String, spaces::SpaceRow> =
            spaces::list(transaction)?.into_iter().map(|space| (space.space.model.clone(), space)).collect();
        let names: Vec<&str> = spaces.keys().map(String::as_str).collect();
        for write in writes {
            check::item_write(write, |name| {
                let missing = || no_such_space(name, &database.path().display().to_string(), &names);
                spaces.get(name).map(|space| &space.space).ok_or_else(missing)
            })?;
        }
        let mut find = transaction.prepare_cached("SELECT key FROM item WHERE id = ?1")?;
        let mut update = transaction.prepare_cached(
            "UPDATE item SET source = ?2, label = ?3, payload = ?4, revision = ?5 WHERE key = ?1",
        )?;
        let mut insert = transaction.prepare_cached(
            "INSERT INTO item (id, source, label, payload, revision) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let numbers = writes.iter().map(|write| 1 + write.vectors.len()).sum::<usize>();
        // Triggers that remove stale vectors count too; they come after these, which harms no order.
        let mut next = spaces::count(transaction, numbers)? - numbers as u64;
        let mut number = || {
            next += 1;
            next
        };
        let mut revisions = Vec::with_capacity(writes.len());
        for write in writes {
            let payload = match &write.payload {
                Value::Null => None,
                payload => Some(payload.to_string()),
            };
            let there: Option<i64> = find.query_row([&write.id], |row| row.get(0)).optional()?;
            let revision = number();
            let key = if let Some(key) = there {
                update.execute(params![key, write.source, write.label, payload, revision])?;
                key
            } else {
                insert.execute(params![write.id, write.source, write.label, payload, revision])?;
                transaction.last_insert_rowid()
            };
            for new in &write.vectors {
                let Some(space) = spaces.get(&new.space) else { continue };
                let change = number();
                transaction
                    .prepare_cached(&format!(
                        "INSERT INTO vector_{}
                         (item, revision, provenance, sigma2, priority, sourced, failed, change, value)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8)",
                        space.number
                    ))?
                    .execute(params![
                        key,
                        revision,
                        new.provenance.name(),
                        new.sigma2,
                        new.priority,
                        write.source.is_some(),
                        change,
                        as_bytes(&new.vector)
                    ])?;
            }
            revisions.push(revision);
        }
        Ok(revisions)
    })
}

pub(crate) fn delete(database: &Database, ids: &[&str]) -> Result<usize> {
    if ids.is_empty() {
        return Ok(0);
    }
    database.write(|transaction| {
        let mut delete = transaction.prepare_cached("DELETE FROM item WHERE id = ?1")?;
        let mut deleted = 0;
        for id in ids {
            deleted += delete.execute([id])?;
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

pub(crate) fn document(database: &Database, name: &str) -> Result<Option<(u64, String)>> {
    database.read(|transaction| {
        Ok(transaction
            .prepare_cached("SELECT version, text FROM document WHERE name = ?1")?
            .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?)
    })
}

pub(crate) fn set_document(
    database: &Database,
    name: &str,
    expected: Option<u64>,
    text: &str,
) -> Result<u64> {
    database.write(|transaction| {
        let there = version(transaction, name)?;
        if there != expected {
            return Err(document_changed(name, expected, there).into());
        }
        let next = there.unwrap_or(0).checked_add(1).ok_or_else(|| {
            Error::corrupt(database.path().display(), format!("document {name:?} has no version after this"))
        })?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO document (name, version, text) VALUES (?1, ?2, ?3)")?
            .execute(params![name, next, text])?;
        Ok(next)
    })
}

fn version(connection: &Connection, name: &str) -> Step<Option<u64>> {
    Ok(connection
        .prepare_cached("SELECT version FROM document WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?)
}
