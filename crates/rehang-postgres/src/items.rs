//! Items: rows of the application's table, with their keys and revisions.

use std::collections::BTreeSet;

use rehang_core::{Error, Result};
use rehang_store::{Epoch, Item, ItemWrite, NewVector, Revision, check};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use crate::connection::{Connection, Mode, Step, StepError};
use crate::guard;
use crate::handle::Handle;
use crate::ignored::{Event, held_back};
use crate::parameter::Parameter;
use crate::schema::{NEXT_REVISION, SpaceRow, source_revision};
use crate::spaces;
use crate::table::{literal, quoted};
use crate::values::key;
use crate::vectors;

/// Returns the columns of an item, from `i` (the gallery's) and `t` (the application's): with its contents,
/// or with nothing in their places.
pub(crate) fn columns(handle: &Handle, contents: bool) -> String {
    if !contents {
        return format!(
            "i.key, i.id, NULL::text, NULL::text, NULL::text, i.revision, {}",
            source_revision("i")
        );
    }
    // The source of an item without one is not made, since it may be one that cannot be made.
    format!(
        "i.key, i.id, CASE WHEN i.sourced THEN {} END, {}, {}, i.revision, {}",
        handle.table.source_of("t"),
        handle.table.label_of("t"),
        handle.table.payload_of("t"),
        source_revision("i")
    )
}

/// Number of columns that [`columns`] returns.
pub(crate) const COLUMNS: usize = 7;

/// Returns `item AS i JOIN table AS t`, with the condition that joins them.
pub(crate) fn tables(handle: &Handle) -> String {
    format!(
        "rehang.item_{} AS i JOIN {} AS t ON {}",
        handle.number,
        handle.table.qualified,
        handle.table.is_of("i", "t")
    )
}

/// Reads an item's payload. The server takes JSON that no reader here does (a number beyond the largest, more
/// than 128 levels): such a payload is given as its text. So one row never keeps the others from being read.
fn payload(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

pub(crate) fn read(row: &Row) -> Step<Item> {
    Ok(Item {
        key: key(row, 0)?,
        id: row.try_get(1)?,
        source: row.try_get(2)?,
        label: row.try_get(3)?,
        payload: row.try_get::<_, Option<&str>>(4)?.map_or(Value::Null, payload),
        revision: row.try_get::<_, i64>(5)?.max(0) as u64,
        source_revision: row.try_get::<_, i64>(6)?.max(0) as u64,
    })
}

pub(crate) fn get(handle: &Handle, ids: &[&str]) -> Result<Vec<Option<Item>>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT {}, o.at FROM unnest($1::text[]) WITH ORDINALITY AS o(id, at), {} WHERE i.id = o.id",
        columns(handle, true),
        tables(handle)
    );
    handle.database.run(Mode::Read, |connection| {
        let mut items = vec![None; ids.len()];
        for row in connection.query(&sql, &[&ids])? {
            let at: i64 = row.try_get(COLUMNS)?;
            items[at.max(1) as usize - 1] = Some(read(&row)?);
        }
        Ok(items)
    })
}

/// Writes items as an application would, into its own table.
pub(crate) fn put(handle: &Handle, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
    if let Some(source) = handle.table.options.source.as_ref().filter(|_| !handle.table.is_source_column) {
        return Err(Error::option(
            "source",
            source,
            "a column, where items are written through a gallery; write the table itself",
        ));
    }
    if handle.table.options.source.is_none() && writes.iter().any(|write| write.source.is_some()) {
        return Err(Error::option("source", "given", "none: the gallery's table names no column for it"));
    }
    handle.database.run(Mode::Write, |connection| {
        let mut spaces: Vec<SpaceRow> = Vec::new();
        for write in writes {
            for new in &write.vectors {
                if !spaces.iter().any(|space| space.record.space.name == new.space) {
                    spaces.push(spaces::find_kept(connection, handle, &new.space)?);
                }
            }
        }
        let space_named = |name: &str| spaces.iter().find(|space| space.record.space.name == name);
        for write in writes {
            check::item_write(write, |name| {
                space_named(name)
                    .map(|space| &space.record.space)
                    .ok_or_else(|| Error::not_found("space", name, handle.name()))
            })?;
        }
        let revisions = writes
            .iter()
            .map(|write| put_one(connection, handle, write, &spaces))
            .collect::<Step<Vec<_>>>()?;
        let planned = writes.iter().flat_map(|write| &write.vectors);
        let planned: BTreeSet<(&str, Epoch)> =
            planned.filter_map(|new| Some((new.space.as_str(), new.epoch?))).collect();
        for (space, epoch) in planned {
            check::epoch(space, epoch, spaces::find_shared(connection, handle, space)?.record.epoch)?;
        }
        Ok(revisions)
    })
}

fn put_one(
    connection: &mut Connection,
    handle: &Handle,
    write: &ItemWrite,
    spaces: &[SpaceRow],
) -> Step<Revision> {
    let table = &handle.table;
    let vector_of = |new: &NewVector| spaces.iter().find(|space| space.record.space.name == new.space);
    let in_column =
        write.vectors.iter().find(|new| vector_of(new).is_some_and(|space| space.in_column.is_some()));
    let vector = in_column.map(|new| pgvector::Vector::from(new.vector.clone()));
    // The parameters: $1 the id, $2 the source, $3 the label, $4 the payload, $5 the vector.
    let mut columns: Vec<(String, String)> = table
        .key
        .iter()
        .zip(table.key_from("$1::text"))
        .map(|(column, value)| (quoted(&column.name), value))
        .collect();
    let keys = columns.len();
    let mut add_column = |column: &Option<String>, value: &str| {
        columns.extend(column.iter().map(|column| (quoted(column), value.to_owned())));
    };
    // The value goes through the type's own input, whatever type the column has.
    let of_type = |column: &Option<String>, value: &str| {
        let name = column.as_deref().unwrap_or_default();
        let object = format!("pg_catalog.jsonb_build_object({}, {value})", literal(name));
        format!("(pg_catalog.jsonb_populate_record(NULL::{}, {object})).{}", table.qualified, quoted(name))
    };
    add_column(&table.options.source, &of_type(&table.options.source, "$2::text"));
    add_column(&table.options.label, &of_type(&table.options.label, "$3::text"));
    add_column(&table.options.payload, "$4::jsonb");
    let of_vector = format!("$5::{}", handle.pgvector.vector());
    add_column(&table.options.vector, &of_vector);
    if table.options.payload.is_none() && write.payload != Value::Null {
        let Value::Object(fields) = &write.payload else {
            return Err(
                Error::option("payload", &write.payload, "an object with the table's other columns").into()
            );
        };
        for field in fields.keys() {
            let Some(column) =
                table.others.iter().find(|column| column.name == *field && !column.is_generated)
            else {
                let expected = format!("columns of {} that may be written", table.options.table);
                return Err(Error::option("payload", field, expected).into());
            };
            let name = quoted(&column.name);
            columns.push((
                name.clone(),
                format!("(pg_catalog.jsonb_populate_record(NULL::{}, $4::jsonb)).{name}", table.qualified),
            ));
        }
    }
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let values: Vec<&str> = columns.iter().map(|(_, value)| value.as_str()).collect();
    let updates: Vec<String> =
        names.iter().skip(keys).map(|name| format!("{name} = EXCLUDED.{name}")).collect();
    let update =
        if updates.is_empty() { "NOTHING".to_owned() } else { format!("UPDATE SET {}", updates.join(", ")) };
    let payload = Some(&write.payload).filter(|payload| **payload != Value::Null);
    // Every parameter is used, so that the server knows its type.
    let sql = format!(
        "WITH given AS (SELECT $1::text, $2::text, $3::text, $4::jsonb, {of_vector})
         INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM given ON CONFLICT ({}) DO {update}",
        table.qualified,
        names.join(", "),
        values.join(", "),
        names[..keys].join(", ")
    );
    let of_id = format!("({}) = ({})", table.key_names(), table.key_from("$1::text").join(", "));
    let of_source = source_revision("i");
    let before: Option<i64> = connection
        .query_opt(
            &format!("SELECT {of_source} FROM rehang.item_{} AS i WHERE {of_id}", handle.number),
            &[&write.id],
        )?
        .map(|row| row.try_get(0))
        .transpose()?;
    guard::see_as_application(connection)?;
    let parameters: [&dyn Parameter; 5] = [&write.id, &write.source, &write.label, &payload, &vector];
    let doing = format!("the write of item {:?}", write.id);
    let written = connection.execute(&sql, &parameters).map_err(|failure| match failure {
        StepError::Server(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
            let message =
                error.as_db_error().map_or_else(|| error.to_string(), |report| report.message().to_owned());
            let why = format!(
                "the server refuses it ({message}); drop what is in its way, or write the table yourself"
            );
            Error::conflict(&doing, why).into()
        }
        failure => failure,
    })?;
    guard::see_as_ours(connection)?;
    if written == 0 {
        // The server's own trigger against updates that change nothing holds back values
        // that are there already.
        let is_half = |name: &str| {
            handle.table.is_halfvec
                && table.options.vector.as_ref().is_some_and(|vector| quoted(vector) == name)
        };
        let same = |(name, value): &(String, String)| {
            let cast =
                if is_half(name) { format!("::{}", handle.pgvector.named("halfvec")) } else { String::new() };
            format!("t.{name}::text IS NOT DISTINCT FROM ({value}{cast})::text")
        };
        // A row that is there is left alone where nothing but its key is written.
        let meant = columns.iter().map(same).collect::<Vec<_>>().join(" AND ");
        let is_there = format!(
            "WITH given AS (SELECT $1::text, $2::text, $3::text, $4::jsonb, {of_vector}) SELECT EXISTS (SELECT 1 FROM {} AS t, given WHERE {meant})",
            table.qualified
        );
        if !connection.query_one(&is_there, &parameters)?.try_get::<_, bool>(0)? {
            return Err(held_back(connection, &table.qualified, Event::Put, &doing)?.into());
        }
    }
    // The triggers have seen a change only where there was one. A put is a change in any case: of an item
    // without a source, a change of all its content.
    let revision = connection.query_opt(
        &format!(
            "UPDATE rehang.item_{} AS i SET revision = {NEXT_REVISION},
                 source_revision = CASE WHEN sourced AND {of_source} = $2 THEN {of_source} END
             WHERE {of_id} RETURNING key, revision, source_revision",
            handle.number,
        ),
        &[&write.id, &before],
    )?;
    let Some(row) = revision else {
        let why = "an item: its row is there now and does not meet the gallery's condition";
        return Err(Error::option("an item's write", &write.id, why).into());
    };
    let state = vectors::NewState {
        item: row.try_get(0)?,
        revision: row.try_get(1)?,
        kept_source: row.try_get(2)?,
        sourced: write.source.is_some(),
        is_new: before.is_none(),
    };
    for space in spaces::all(connection, handle.number)? {
        let new = write.vectors.iter().find(|new| new.space == space.record.space.name);
        vectors::replace(connection, handle, &space, &state, new)?;
    }
    Ok(state.revision.max(0) as u64)
}

pub(crate) fn delete(handle: &Handle, ids: &[&str]) -> Result<usize> {
    if ids.is_empty() {
        return Ok(0);
    }
    let sql = format!(
        "DELETE FROM {} AS t USING rehang.item_{} AS i WHERE i.id OPERATOR(pg_catalog.=) ANY($1::text[]) AND {}",
        handle.table.qualified,
        handle.number,
        handle.table.is_of("i", "t")
    );
    let select_keys = format!("SELECT key FROM rehang.item_{} WHERE id = ANY($1::text[])", handle.number);
    let select_remaining = format!(
        "SELECT id FROM rehang.item_{} WHERE key = ANY($1::bigint[]) ORDER BY key LIMIT 1",
        handle.number
    );
    handle.database.run(Mode::Write, |connection| {
        let rows = connection.query(&select_keys, &[&ids])?;
        let keys = rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<i64>, _>>()?;
        guard::see_as_application(connection)?;
        let deleted = connection.execute(&sql, &[&ids])? as usize;
        guard::see_as_ours(connection)?;
        if deleted >= keys.len() {
            return Ok(deleted);
        }
        // A row that a trigger keeps may have ceased to be an item, which is as good.
        let Some(row) = connection.query_opt(&select_remaining, &[&keys])? else { return Ok(keys.len()) };
        let doing = format!("the deletion of item {:?}", row.try_get::<_, String>(0)?);
        Err(held_back(connection, &handle.table.qualified, Event::Delete, &doing)?.into())
    })
}

pub(crate) fn newest_revision(handle: &Handle) -> Result<Revision> {
    count(handle, &format!("SELECT coalesce(max(revision), 0) FROM rehang.item_{}", handle.number))
}

pub(crate) fn count_without_source(handle: &Handle) -> Result<u64> {
    count(handle, &format!("SELECT count(*) FROM rehang.item_{} WHERE NOT sourced", handle.number))
}

fn count(handle: &Handle, sql: &str) -> Result<u64> {
    handle.database.run(Mode::Read, |connection| connection.count(sql, &[]))
}
