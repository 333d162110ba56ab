//! Items: rows of the application's table, with their keys and revisions.

use std::collections::BTreeSet;

use pgvector::Vector;
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
use crate::table::{Column, Table, TableOptions, literal, quoted};
use crate::trigger_function::WRITTEN_ITEM;
use crate::values::key;
use crate::vectors;

/// Returns the columns of an item, from `i` (the gallery's) and `t` (the application's): with its contents,
/// or with nothing in their places.
pub(crate) fn columns(handle: &Handle, contents: bool) -> String {
    if !contents {
        return format!(
            "i.key, i.id, NULL::text AS source, NULL::text AS label, NULL::text AS payload, i.revision, {} AS source_revision",
            source_revision("i")
        );
    }
    // The source of an item without one is not made, since it may be one that cannot be made.
    format!(
        "i.key, i.id, CASE WHEN i.sourced THEN {} END AS source, {} AS label, {} AS payload, i.revision, {} AS source_revision",
        handle.table.source_of("t"),
        handle.table.label_of("t"),
        handle.table.payload_of("t"),
        source_revision("i")
    )
}

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

/// Reads an item from its [`columns`].
pub(crate) fn read(row: &Row) -> Step<Item> {
    Ok(Item {
        key: key(row, "key")?,
        id: row.try_get("id")?,
        source: row.try_get("source")?,
        label: row.try_get("label")?,
        payload: row.try_get::<_, Option<&str>>("payload")?.map_or(Value::Null, payload),
        revision: row.try_get::<_, i64>("revision")?.max(0) as u64,
        source_revision: row.try_get::<_, i64>("source_revision")?.max(0) as u64,
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
    handle.database.run(Mode::ReadAtOnce, |connection| {
        let mut items = vec![None; ids.len()];
        for row in connection.query(&sql, &[&ids])? {
            let at: i64 = row.try_get("at")?;
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

/// Writes an item's row, and gives the item a new revision and its vectors. Statements that do not depend on
/// each other's answers go to the server together.
fn put_one(
    connection: &mut Connection,
    handle: &Handle,
    write: &ItemWrite,
    spaces: &[SpaceRow],
) -> Step<Revision> {
    let row = RowWrite::new(handle, write, spaces)?;
    let before = row.begin(connection)?;
    row.put(connection)?;
    let (item, spaces) = revise(connection, handle, write, before)?;
    vectors::replace(connection, handle, &spaces, &item, &write.vectors)?;
    Ok(item.revision.max(0) as u64)
}

/// Row of the application's table as an item's write makes it.
struct RowWrite<'a> {
    handle: &'a Handle,
    write: &'a ItemWrite,
    payload: Option<&'a Value>,
    /// Vector for the application's own column.
    vector: Option<Vector>,
    /// Columns that are written, each with its value as SQL; those of the key come first.
    columns: Vec<(String, String)>,
}

impl<'a> RowWrite<'a> {
    fn new(handle: &'a Handle, write: &'a ItemWrite, spaces: &[SpaceRow]) -> Result<Self> {
        let is_in_column = |new: &&NewVector| {
            let space = spaces.iter().find(|space| space.record.space.name == new.space);
            space.is_some_and(|space| space.in_column.is_some())
        };
        let vector = write.vectors.iter().find(is_in_column);
        Ok(Self {
            handle,
            write,
            payload: Some(&write.payload).filter(|payload| **payload != Value::Null),
            vector: vector.map(|new| Vector::from(new.vector.clone())),
            columns: written_columns(handle, write)?,
        })
    }

    /// Returns the parameters of its statements: the id, the source, the label, the payload and the vector.
    fn parameters(&self) -> [&dyn Parameter; 5] {
        [&self.write.id, &self.write.source, &self.write.label, &self.payload, &self.vector]
    }

    /// Returns the begin of its statements. Every parameter is used, so that the server knows its type.
    fn with_clause(&self) -> String {
        format!(
            "WITH given AS (SELECT $1::text, $2::text, $3::text, $4::jsonb, {})",
            vector_parameter(self.handle)
        )
    }

    /// Returns the statement that inserts the row, or updates the one that is there.
    fn upsert(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let values: Vec<&str> = self.columns.iter().map(|(_, value)| value.as_str()).collect();
        let (key, others) = names.split_at(self.handle.table.key.len());
        let updates: Vec<String> = others.iter().map(|name| format!("{name} = EXCLUDED.{name}")).collect();
        let update = if updates.is_empty() {
            "NOTHING".to_owned()
        } else {
            format!("UPDATE SET {}", updates.join(", "))
        };
        format!(
            "{}
         INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM given ON CONFLICT ({}) DO {update}",
            self.with_clause(),
            self.handle.table.qualified,
            names.join(", "),
            values.join(", "),
            key.join(", ")
        )
    }

    /// Returns the query for whether the table has a row with these values.
    fn is_there(&self) -> String {
        let Handle { table, pgvector, .. } = self.handle;
        let is_half = |name: &str| {
            table.is_halfvec && table.options.vector.as_ref().is_some_and(|vector| quoted(vector) == name)
        };
        let same = |(name, value): &(String, String)| {
            let cast = if is_half(name) { format!("::{}", pgvector.named("halfvec")) } else { String::new() };
            format!("t.{name}::text IS NOT DISTINCT FROM ({value}{cast})::text")
        };
        // A row that is there is left alone where nothing but its key is written.
        let meant = self.columns.iter().map(same).collect::<Vec<_>>().join(" AND ");
        format!(
            "{} SELECT EXISTS (SELECT 1 FROM {} AS t, given WHERE {meant})",
            self.with_clause(),
            table.qualified
        )
    }

    /// Reads the revision of the item's source before the write, `None` where there is no such item. The rest
    /// of the transaction names the item to the triggers, and sees what the application's sessions see.
    fn begin(&self, connection: &mut Connection) -> Step<Option<i64>> {
        let Handle { number, table, .. } = self.handle;
        let revision_of_source = format!(
            "SELECT {} FROM rehang.item_{number} AS i WHERE {}",
            source_revision("i"),
            is_of_id(table)
        );
        let name_item = format!("SELECT set_config('{WRITTEN_ITEM}', $1, true)");
        let item = format!("{number} {}", self.write.id);
        let queries = [
            (revision_of_source.as_str(), vec![&self.write.id as &dyn Parameter]),
            (name_item.as_str(), vec![&item as &dyn Parameter]),
            (guard::AS_APPLICATION, Vec::new()),
        ];
        let answers = connection.query_all("", &queries)?;
        let revision = answers.first().and_then(|rows| rows.first());
        Ok(revision.map(|row| row.try_get(0)).transpose()?)
    }

    /// Writes the row as the application would.
    fn put(&self, connection: &mut Connection) -> Step<()> {
        let doing = format!("the write of item {:?}", self.write.id);
        let written = connection.execute(&self.upsert(), &self.parameters());
        let written = written.map_err(|failure| match failure {
            StepError::Server(error) if error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                let report = error.as_db_error();
                let message = report.map_or_else(|| error.to_string(), |report| report.message().to_owned());
                let why = format!(
                    "the server refuses it ({message}); drop what is in its way, or write the table yourself"
                );
                Error::conflict(&doing, why).into()
            }
            failure => failure,
        })?;
        if written > 0 {
            return Ok(());
        }
        // The server's own trigger against updates that change nothing holds back values
        // that are there already.
        guard::see_as_ours(connection)?;
        if !connection.query_one(&self.is_there(), &self.parameters())?.try_get::<_, bool>(0)? {
            return Err(held_back(connection, &self.handle.table.qualified, Event::Put, &doing)?.into());
        }
        Ok(())
    }
}

/// Returns the parameter of a row's vector, by the full name of its type.
fn vector_parameter(handle: &Handle) -> String {
    format!("$5::{}", handle.pgvector.vector())
}

/// Lists the columns that an item's write is made of, each with its value as SQL of a [`RowWrite`]'s
/// parameters; those of the key come first.
fn written_columns(handle: &Handle, write: &ItemWrite) -> Result<Vec<(String, String)>> {
    let table = &handle.table;
    let TableOptions { source, label, payload, vector, .. } = &table.options;
    let key = table.key.iter().zip(table.key_from("$1::text"));
    let mut columns: Vec<(String, String)> =
        key.map(|(column, value)| (quoted(&column.name), value)).collect();
    for (column, text) in [(source, "$2::text"), (label, "$3::text")] {
        let Some(column) = column else { continue };
        let object = format!("pg_catalog.jsonb_build_object({}, {text})", literal(column));
        columns.push((quoted(column), of_column_type(table, column, &object)));
    }
    if let Some(payload) = payload {
        columns.push((quoted(payload), "$4::jsonb".to_owned()));
    }
    if let Some(vector) = vector {
        columns.push((quoted(vector), vector_parameter(handle)));
    }
    if payload.is_none() && write.payload != Value::Null {
        for column in payload_columns(table, &write.payload)? {
            columns.push((quoted(&column.name), of_column_type(table, &column.name, "$4::jsonb")));
        }
    }
    Ok(columns)
}

/// Returns the value that an object of JSON has for a column. It goes through the type's own input, whatever
/// type the column has.
fn of_column_type(table: &Table, column: &str, object: &str) -> String {
    format!("(pg_catalog.jsonb_populate_record(NULL::{}, {object})).{}", table.qualified, quoted(column))
}

/// Finds the columns that the fields of a payload are written into.
fn payload_columns<'a>(table: &'a Table, payload: &Value) -> Result<Vec<&'a Column>> {
    let Value::Object(fields) = payload else {
        return Err(Error::option("payload", payload, "an object with the table's other columns"));
    };
    let column_of = |field: &String| {
        let column = table.others.iter().find(|column| column.name == *field && !column.is_generated);
        column.ok_or_else(|| {
            let expected = format!("columns of {} that may be written", table.options.table);
            Error::option("payload", field, expected)
        })
    };
    fields.keys().map(column_of).collect()
}

/// Returns the condition that an item has the id `$1`.
fn is_of_id(table: &Table) -> String {
    format!("({}) = ({})", table.key_names(), table.key_from("$1::text").join(", "))
}

/// Gives an item that was just put a new revision, and reads the spaces. The triggers have seen a change only
/// where there was one, and a put is a change in any case: of an item without a source, a change of all its
/// content. `before` is what the revision of its source was. The rest of the transaction sees what the
/// gallery's sessions see.
///
/// The spaces are read for each item, once its row is written: the triggers give it a state in every space
/// that is there by then, and each of these states has to get the new revision.
fn revise(
    connection: &mut Connection,
    handle: &Handle,
    write: &ItemWrite,
    before: Option<i64>,
) -> Step<(vectors::NewState, Vec<SpaceRow>)> {
    let of_source = source_revision("i");
    let give_revision = format!(
        "UPDATE rehang.item_{} AS i SET revision = {NEXT_REVISION},
             source_revision = CASE WHEN sourced AND {of_source} = $2 THEN {of_source} END
         WHERE {} RETURNING key, revision, source_revision",
        handle.number,
        is_of_id(&handle.table)
    );
    let of_gallery = spaces::of_gallery();
    let queries = [
        (give_revision.as_str(), vec![&write.id as &dyn Parameter, &before]),
        (of_gallery.as_str(), vec![&handle.number as &dyn Parameter]),
    ];
    let mut answers = connection.query_all(&guard::as_ours(), &queries)?.into_iter();
    let Some(row) = answers.next().unwrap_or_default().into_iter().next() else {
        let why = "an item: its row is there now and does not meet the gallery's condition";
        return Err(Error::option("an item's write", &write.id, why).into());
    };
    let item = vectors::NewState {
        item: row.try_get(0)?,
        revision: row.try_get(1)?,
        kept_source: row.try_get(2)?,
        sourced: write.source.is_some(),
        is_new: before.is_none(),
    };
    let spaces = answers.next().unwrap_or_default().iter().map(spaces::read).collect::<Step<Vec<_>>>()?;
    Ok((item, spaces))
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
