//! Spaces of a gallery: rows of `rehang.space`, and tables that come and go while an application writes.

use std::time::Duration;

use rehang_core::check::expect_width;
use rehang_core::{Distance, Error, ErrorKind, Provenance, Remedy, Result, Space};
use rehang_store::check::{
    another_serves, new_space, next_version, no_such_space, same_epoch, same_space, serving_space_stays,
};
use rehang_store::{Document, Epoch, SpaceRecord};
use tokio_postgres::Row;

use crate::connection::{Connection, Mode, Step};
use crate::guard::{self, Whose};
use crate::handle::Handle;
use crate::paid;
use crate::pgvector::Pgvector;
use crate::row_security;
use crate::schema::{self, SpaceRow};
use crate::serving;
use crate::table::{Table, quoted};
use crate::trigger_function::trigger_function;
use crate::values::provenance;

/// Items that are listed in one transaction. An application that writes one of them waits
/// until the transaction ends.
const LISTED_TOGETHER: i64 = 5_000;
/// How long statements that began before a change of the triggers may go on before the
/// wait for them is given up.
const WRITERS: Duration = Duration::from_mins(1);

const SELECT: &str = "SELECT number, name, dimension, distance, normalised, written_as, epoch, in_column, listed FROM rehang.space";

/// Returns the query for the space of a gallery, `$1`, with a name, `$2`.
pub(crate) fn of_name() -> String {
    format!("{SELECT} WHERE gallery = $1 AND name = $2 AND listed")
}

/// Reads a space from its row of `rehang.space`.
pub(crate) fn read(row: &Row) -> Step<SpaceRow> {
    let (name, distance): (String, String) = (row.try_get("name")?, row.try_get("distance")?);
    let dimension = row.try_get::<_, i32>("dimension")?.max(0) as usize;
    let distance: Distance = distance.parse()?;
    Ok(SpaceRow {
        number: row.try_get("number")?,
        record: SpaceRecord {
            space: Space::new(name, dimension, distance, row.try_get("normalised")?),
            written_as: provenance(&row.try_get::<_, String>("written_as")?)?,
            epoch: Epoch::new(row.try_get::<_, i64>("epoch")?.max(0) as u64),
        },
        in_column: row.try_get("in_column")?,
        is_listed: row.try_get("listed")?,
    })
}

/// Returns the query for every space of a gallery, `$1`, in the order of creation, also one that is still
/// being made.
pub(crate) fn of_gallery() -> String {
    format!("{SELECT} WHERE gallery = $1 ORDER BY number")
}

/// Reads every space in the order of creation, also one that is still being made.
pub(crate) fn all(connection: &mut Connection, gallery: i32) -> Step<Vec<SpaceRow>> {
    connection.query(&of_gallery(), &[&gallery])?.iter().map(read).collect()
}

pub(crate) fn find(connection: &mut Connection, handle: &Handle, name: &str) -> Step<SpaceRow> {
    find_locked(connection, handle, name, "")
}

/// Finds a space by its name, and keeps it from being dropped until the transaction ends.
pub(crate) fn find_kept(connection: &mut Connection, handle: &Handle, name: &str) -> Step<SpaceRow> {
    find_locked(connection, handle, name, "FOR KEY SHARE")
}

/// Finds a space by its name, and keeps it from being dropped and its row from an [`advance`]
/// until the transaction ends. It is for the last statement of a transaction, since nobody's
/// rollback waits for a client.
pub(crate) fn find_shared(connection: &mut Connection, handle: &Handle, name: &str) -> Step<SpaceRow> {
    find_locked(connection, handle, name, "FOR SHARE")
}

fn find_locked(connection: &mut Connection, handle: &Handle, name: &str, lock: &str) -> Step<SpaceRow> {
    let sql = format!("{} {lock}", of_name());
    if let Some(row) = connection.query_opt(&sql, &[&handle.number, &name])? {
        let mut space = read(&row)?;
        if handle.out_of_step.is_some() {
            // The column goes by its present name.
            space.in_column = space.in_column.and(handle.table.options.vector.clone());
        }
        return Ok(space);
    }
    let spaces = all(connection, handle.number)?;
    let names = spaces.iter().map(|space| space.record.space.name.as_str());
    Err(no_such_space(name, &handle.name(), names).into())
}

pub(crate) fn records(handle: &Handle) -> Result<Vec<SpaceRecord>> {
    handle.database.run(Mode::ReadAtOnce, |connection| {
        let spaces = all(connection, handle.number)?;
        Ok(spaces.into_iter().filter(|space| space.is_listed).map(|space| space.record).collect())
    })
}

/// Makes a space: its row and tables, the triggers that keep it, and then a state for every item that is
/// there. A process that dies meanwhile leaves a space that nobody sees, and the next call goes on with it.
pub(crate) fn create(handle: &Handle, space: &Space, written_as: Provenance) -> Result<()> {
    new_space(space, written_as)?;
    if space.dimension > VECTOR_MAX {
        let expected = format!("at most {VECTOR_MAX}, which is what pgvector stores");
        return Err(Error::option(
            format!("the dimension of space {:?}", space.name),
            space.dimension,
            expected,
        ));
    }
    let in_column = handle.column_of(&space.name);
    let dimension = i32::try_from(space.dimension).unwrap_or(i32::MAX);
    let row = handle.database.run(Mode::Write, |connection| {
        // Spaces are made one at a time: the function of the triggers is written from all spaces.
        handle.lock(connection)?;
        let rows = all(connection, handle.number)?;
        if let Some(row) = rows.into_iter().find(|row| row.record.space.name == space.name) {
            same_space(&row.record, space, written_as)?;
            return Ok(row);
        }
        expect_no_newer(connection, handle)?;
        // Something that another role put where the gallery's tables are to be is not taken for one of them.
        guard::expect_ours(connection, &handle.table, Whose::Mine)?;
        if let Some(column) = &in_column {
            expect_column_width(connection, &handle.table, &handle.pgvector, space, column)?;
        }
        connection.execute(
            "INSERT INTO rehang.space (gallery, name, dimension, distance, normalised, written_as, in_column)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            &[
                &handle.number,
                &space.name,
                &dimension,
                &space.distance.name(),
                &space.normalised,
                &written_as.name(),
                &in_column,
            ],
        )?;
        let spaces = all(connection, handle.number)?;
        let row = spaces
            .last()
            .cloned()
            .ok_or_else(|| Error::corrupt(handle.name(), "a space that was made is not there"))?;
        connection.batch(&schema::space_tables(row.number, space, in_column.as_deref(), &handle.pgvector))?;
        connection.batch(&row_security::of_space(handle.number, row.number))?;
        // Spaces that were there before have no such table in a gallery of an earlier version
        // that was not adopted since.
        connection.batch(&paid::tables(&handle.table, &spaces, &handle.pgvector))?;
        connection.batch(&trigger_function(handle.number, &handle.table, &spaces))?;
        connection.batch(schema::KEEP)?;
        // The view has to take the vectors of every space before one of another type may serve.
        let serving = lock_serving(connection, handle)?;
        if let Some(serving) = spaces.iter().find(|space| serving.as_ref() == Some(&space.record.space.name))
        {
            renew_view_for(connection, handle, serving, true)?;
        }
        Ok(row)
    })?;
    if row.is_listed {
        return Ok(());
    }
    wait_for_writers(handle)?;
    list_states(handle, &row)?;
    handle.database.run(Mode::Write, |connection| {
        connection.execute("UPDATE rehang.space SET listed = true WHERE number = $1", &[&row.number])?;
        if lock_serving(connection, handle)?.is_none() {
            serve(connection, handle, &row)?;
        }
        connection.batch(&format!("ANALYZE rehang.state_{}", row.number))
    })
}

/// Fails where a later version made the gallery's functions: a space that comes or goes rewrites the
/// function of the triggers.
fn expect_no_newer(connection: &mut Connection, handle: &Handle) -> Step<()> {
    Ok(guard::expect_no_newer(guard::versions(connection, handle.number)?, &handle.table.options.table)?)
}

/// Reads the name of the space that serves, which stays so until the transaction ends.
fn lock_serving(connection: &mut Connection, handle: &Handle) -> Step<Option<String>> {
    let sql = "SELECT serving FROM rehang.gallery WHERE number = $1 FOR NO KEY UPDATE";
    Ok(connection.query_one(sql, &[&handle.number])?.try_get(0)?)
}

/// Writes in an open transaction which space serves, and makes the view follow.
fn serve(connection: &mut Connection, handle: &Handle, space: &SpaceRow) -> Step<()> {
    connection.execute(
        "UPDATE rehang.gallery SET serving = $2 WHERE number = $1",
        &[&handle.number, &space.record.space.name],
    )?;
    renew_view_for(connection, handle, space, true)
}

/// Makes the view give the vectors of a space. Where the view has other columns, it is made anew, with the
/// rights that others have in it. Where something of the application's depends on the view, or `is_wanted` is
/// not set, it is made anew only if it has to be.
fn renew_view_for(
    connection: &mut Connection,
    handle: &Handle,
    space: &SpaceRow,
    is_wanted: bool,
) -> Step<()> {
    let name = format!("rehang.serving_{}", handle.number);
    let view_row = connection.query_one(
        "SELECT coalesce(array_agg(attname::text ORDER BY attnum), '{}'), coalesce(array_agg(format_type(atttypid, atttypmod) ORDER BY attnum), '{}'),
             EXISTS (SELECT 1 FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
                 WHERE d.refobjid = to_regclass($1) AND r.ev_class <> to_regclass($1))
         FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0",
        &[&name],
    )?;
    let (names, kinds): (Vec<String>, Vec<String>) = (view_row.try_get(0)?, view_row.try_get(1)?);
    let kind = kinds.get(handle.table.key.len()).and_then(|kind| kind.rsplit('.').next());
    let spaces = all(connection, handle.number)?;
    let mut wanted = serving::vector_type(handle, &spaces);
    let has_names = names == serving::view_columns(handle);
    // Any vector can be cast to the plain type.
    if has_names && kind == Some("vector") && (!is_wanted || view_row.try_get::<_, bool>(2)?) {
        "vector".clone_into(&mut wanted);
    }
    if has_names && kind == Some(wanted.as_str()) {
        return connection.batch(&serving::view(handle, space, &wanted));
    }
    let rights = connection.query(
        "SELECT format('GRANT %s ON %s TO %s;', a.privilege_type, $1, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
         FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = to_regclass($1) AND a.grantee <> c.relowner",
        &[&name],
    )?;
    let rights: Vec<String> =
        rights.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?;
    connection.batch(&format!(
        "{} {} {}",
        serving::drop_view(handle.number),
        serving::view(handle, space, &wanted),
        rights.concat()
    ))
}

/// Makes the view follow what has become of the spaces, and makes the view of an earlier version anew.
pub(crate) fn renew_view(handle: &Handle) -> Result<()> {
    let renew = |is_wanted: bool| {
        handle.database.run(Mode::Write, |connection| {
            let Some(name) = lock_serving(connection, handle)? else { return Ok(()) };
            let space = find(connection, handle, &name)?;
            renew_view_for(connection, handle, &space, is_wanted)
        })
    };
    // A transaction that has read the view and stays open keeps it as it is.
    renew(true).or_else(|error| if error.is_retryable() { renew(false) } else { Err(error) })
}

/// Fails where a column declares another width than a space's, or has vectors of items of another width.
pub(crate) fn expect_column_width(
    connection: &mut Connection,
    table: &Table,
    pgvector: &Pgvector,
    space: &Space,
    column: &str,
) -> Step<()> {
    let mut width = table.dimension;
    if width.is_none() {
        let sql = format!(
            "SELECT {dims}(t.{0}) FROM {1} AS t WHERE {dims}(t.{0}) <> {2} AND {3} LIMIT 1",
            quoted(column),
            table.qualified,
            space.dimension,
            table.is_item("t"),
            dims = pgvector.named("vector_dims")
        );
        let other = connection.query_opt(&sql, &[])?.map(|row| row.try_get::<_, i32>(0)).transpose()?;
        width = other.map(|width| width.max(0) as usize);
    }
    let what = format_args!("column {column:?} of {}", table.options.table);
    Ok(width.map_or(Ok(()), |width| expect_width(what, space.dimension, width))?)
}

/// Widest vector of pgvector.
const VECTOR_MAX: usize = 16_000;

/// Gives every item a state in a space. Items that come or change meanwhile have theirs from the triggers.
fn list_states(handle: &Handle, row: &SpaceRow) -> Result<()> {
    let (n, g) = (row.number, handle.number);
    let (provenance, from) = match &row.in_column {
        None => ("'lacking'".to_owned(), String::new()),
        Some(column) => (
            format!(
                "CASE WHEN t.{} IS NULL THEN 'lacking' ELSE '{}' END",
                quoted(column),
                row.record.written_as.name()
            ),
            format!("JOIN {} AS t ON {}", handle.table.qualified, handle.table.is_of("i", "t")),
        ),
    };
    let lacks = format!("NOT EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = i.key)");
    // An item is kept while it is listed, so that it neither goes nor changes meanwhile. Items that an
    // application's open transaction uses are passed over, since two that wait for each other would end one
    // of them. They come when that transaction has ended.
    let sql = format!(
        "WITH page AS (SELECT * FROM rehang.item_{g} AS i WHERE key > $1 AND {lacks} ORDER BY key LIMIT {LISTED_TOGETHER}
                     FOR NO KEY UPDATE SKIP LOCKED),
             listed AS (INSERT INTO rehang.state_{n} (item, revision, source_revision, provenance, sourced)
                 SELECT i.key, i.revision, i.source_revision, {provenance}, i.sourced FROM page AS i {from} ON CONFLICT DO NOTHING)
         SELECT max(key) FROM page"
    );
    let left_sql = format!("SELECT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE {lacks})");
    until_writers_end(handle, || {
        let mut after = -1_i64;
        loop {
            let last = handle.database.run(Mode::Write, |connection| {
                // The planner would read the whole table of states, or of rows, for each page.
                connection.batch(&format!(
                    "LOCK TABLE {} IN ACCESS SHARE MODE; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off",
                    handle.table.qualified
                ))?;
                Ok(connection.query_one(&sql, &[&after])?.try_get::<_, Option<i64>>(0)?)
            })?;
            let Some(last) = last else { break };
            after = last;
        }
        let is_any_left = handle.database.run(Mode::Read, |connection| {
            Ok(connection.query_one(&left_sql, &[])?.try_get::<_, bool>(0)?)
        })?;
        Ok(!is_any_left)
    })
}

/// Brings up the spaces of a gallery whose triggers did not see every write: items that came get a state, and
/// of those that are gone nothing is left. A gallery that was made a moment ago has no spaces.
pub(crate) fn list_anew(handle: &Handle) -> Result<()> {
    let g = handle.number;
    for row in handle.database.run(Mode::Read, |connection| all(connection, g))? {
        let n = row.number;
        if row.is_listed {
            list_states(handle, &row)?;
        }
        let mut tables = vec!["state", "failure", "claim"];
        if row.in_column.is_none() {
            tables.push("vector");
        }
        let mut sql: String = tables
            .iter()
            .map(|table| {
                format!("DELETE FROM rehang.{table}_{n} AS s WHERE NOT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE i.key = s.item);")
            })
            .collect();
        if row.in_column.is_none() {
            sql += &format!(
                "UPDATE rehang.state_{n} AS s SET provenance = 'lacking', sigma2 = NULL, band = 0, score = NULL, squared_error = NULL
                     WHERE s.provenance <> 'lacking' AND NOT EXISTS (SELECT 1 FROM rehang.vector_{n} AS v WHERE v.item = s.item);
                 DELETE FROM rehang.vector_{n} AS v
                     WHERE NOT EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = v.item AND s.provenance <> 'lacking')"
            );
        }
        if let Some(column) = &row.in_column {
            sql += &format!(
                "UPDATE rehang.state_{n} AS s SET provenance = 'lacking' FROM rehang.item_{g} AS i JOIN {} AS t ON {}
                     WHERE i.key = s.item AND s.provenance <> 'lacking' AND t.{} IS NULL",
                handle.table.qualified,
                handle.table.is_of("i", "t"),
                quoted(column)
            );
        }
        handle.database.run(Mode::Write, |connection| connection.batch(&sql))?;
    }
    Ok(())
}

/// Repeats a pass, after a moment each time, until it says that it is done. A pass leaves out the items that
/// open transactions use.
///
/// # Errors
///
/// Unavailable where such a transaction stays open for longer than [`WRITERS`].
pub(crate) fn until_writers_end(handle: &Handle, mut pass: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = rehang_clock::now();
    while !pass()? {
        if began.elapsed() > WRITERS {
            let detail = format!(
                "items of it are changed by transactions that are open for longer than {} s",
                WRITERS.as_secs()
            );
            return Err(ErrorKind::Unavailable { service: handle.name(), detail }.into());
        }
        rehang_clock::wait(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until every transaction has ended that has written the application's table and may have met earlier
/// triggers. A transaction that is prepared for a commit in two phases has no process.
pub(crate) fn wait_for_writers(handle: &Handle) -> Result<()> {
    let oid = handle.table.oid;
    let writers = |connection: &mut Connection| -> Step<Vec<(String, i32)>> {
        let rows = connection.query(
            "SELECT virtualtransaction, coalesce(pid, 0) FROM pg_locks
             WHERE (relation = $1 OR relation IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))) AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND mode = 'RowExclusiveLock' AND granted AND pid IS DISTINCT FROM pg_backend_pid()",
            &[&oid],
        )?;
        let mut transactions = Vec::new();
        for row in &rows {
            transactions.push((row.try_get(0)?, row.try_get(1)?));
        }
        Ok(transactions)
    };
    let mut waiting = handle.database.run(Mode::Read, writers)?;
    let began = rehang_clock::now();
    let mut pause = Duration::from_millis(2);
    while !waiting.is_empty() {
        if began.elapsed() > WRITERS {
            let pids: Vec<String> = waiting.iter().map(|(_, pid)| pid.to_string()).collect();
            let detail = format!(
                "transactions that have written {} are open for longer than {} s (processes {} of the server)",
                handle.table.options.table,
                WRITERS.as_secs(),
                pids.join(", ")
            );
            return Err(ErrorKind::Unavailable { service: handle.name(), detail }.into());
        }
        rehang_clock::wait(pause);
        pause = (pause * 2).min(Duration::from_millis(250));
        let writers_now = handle.database.run(Mode::Read, writers)?;
        waiting.retain(|writer| writers_now.contains(writer));
    }
    Ok(())
}

pub(crate) fn drop_space(handle: &Handle, name: &str) -> Result<()> {
    let dropped = handle.database.run(Mode::Write, |connection| {
        handle.lock(connection)?;
        if lock_serving(connection, handle)?.as_deref() == Some(name) {
            return Err(serving_space_stays(name).into());
        }
        let mut spaces = all(connection, handle.number)?;
        let Some(at) = spaces.iter().position(|space| space.record.space.name == name) else {
            return Ok(None);
        };
        expect_no_newer(connection, handle)?;
        let space = spaces.remove(at);
        connection.execute("DELETE FROM rehang.space WHERE number = $1", &[&space.number])?;
        connection.execute(
            "DELETE FROM rehang.document WHERE gallery = $1 AND name = $2",
            &[&handle.number, &schema::claim_turns_document(space.number)],
        )?;
        connection.batch(&paid::tables(&handle.table, &spaces, &handle.pgvector))?;
        connection.batch(&trigger_function(handle.number, &handle.table, &spaces))?;
        Ok(Some(space.number))
    })?;
    if dropped.is_none() {
        return Ok(());
    }
    wait_for_writers(handle)?;
    remove_left(handle)?;
    renew_view(handle)
}

/// Lists the numbers of spaces that are no more and whose tables are still there, for example where a process
/// died before it removed them.
pub(crate) fn dropped_space_numbers(connection: &mut Connection) -> Step<Vec<i32>> {
    let rows = connection.query(
        "SELECT substring(relname::text FROM 7)::int FROM pg_class
         WHERE relnamespace = 'rehang'::regnamespace AND relkind = 'r' AND relname ~ '^state_[0-9]+$'
             AND substring(relname::text FROM 7)::int NOT IN (SELECT number FROM rehang.space)",
        &[],
    )?;
    let mut numbers = Vec::new();
    for row in &rows {
        numbers.push(row.try_get(0)?);
    }
    Ok(numbers)
}

/// Removes the tables of spaces that are no more, and returns the number of these spaces.
pub(crate) fn remove_left(handle: &Handle) -> Result<usize> {
    let numbers = handle.database.run(Mode::Read, dropped_space_numbers)?;
    for number in &numbers {
        handle
            .database
            .run(Mode::Write, |connection| connection.batch(&schema::drop_space_tables(*number)))?;
    }
    Ok(numbers.len())
}

pub(crate) fn serving_and_document(
    handle: &Handle,
    name: &str,
) -> Result<(Option<String>, Option<Document>)> {
    handle.database.run(Mode::ReadAtOnce, |connection| {
        let row = connection.query_opt(
            "SELECT g.serving, d.version, d.text FROM rehang.gallery AS g
             LEFT JOIN rehang.document AS d ON d.gallery = g.number AND d.name = $2 WHERE g.number = $1",
            &[&handle.number, &name],
        )?;
        // Another process has released the gallery meanwhile; the tables of other galleries are still there.
        let gone = || Error::not_found("gallery", &handle.table.options.table, handle.database.name());
        let row = row.ok_or_else(|| gone().advise(Remedy::AdoptTable))?;
        let version: Option<i64> = row.try_get(1)?;
        let text: Option<String> = row.try_get(2)?;
        Ok((row.try_get(0)?, version.zip(text).map(|(version, text)| (version.max(0) as u64, text))))
    })
}

pub(crate) fn switch_serving(handle: &Handle, from: &str, to: &str) -> Result<()> {
    handle.database.run(Mode::Write, |connection| {
        let space = find_kept(connection, handle, to)?;
        match lock_serving(connection, handle)?.unwrap_or_default() {
            serving if serving == to => Ok(()),
            serving if serving == from => serve(connection, handle, &space),
            serving => Err(another_serves(from, to, &serving).into()),
        }
    })
}

pub(crate) fn set_document(handle: &Handle, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
    handle.database.run(Mode::Write, |connection| set_document_in(connection, handle, name, expected, text))
}

pub(crate) fn advance(
    handle: &Handle,
    space: &str,
    from: Epoch,
    document: &str,
    expected: Option<u64>,
    text: &str,
) -> Result<u64> {
    handle.database.run(Mode::Write, |connection| {
        let row = find_locked(connection, handle, space, "FOR NO KEY UPDATE")?;
        same_epoch(space, from, row.record.epoch)?;
        connection.execute("UPDATE rehang.space SET epoch = epoch + 1 WHERE number = $1", &[&row.number])?;
        set_document_in(connection, handle, document, expected, text)
    })
}

fn set_document_in(
    connection: &mut Connection,
    handle: &Handle,
    name: &str,
    expected: Option<u64>,
    text: &str,
) -> Step<u64> {
    // The first writer of a document keeps others from it, also where the document is not there yet.
    connection
        .query("SELECT 1 FROM rehang.gallery WHERE number = $1 FOR NO KEY UPDATE", &[&handle.number])?;
    let row = connection.query_opt(
        "SELECT version FROM rehang.document WHERE gallery = $1 AND name = $2",
        &[&handle.number, &name],
    )?;
    let version = row.map(|row| row.try_get::<_, i64>(0)).transpose()?.map(|version| version.max(0) as u64);
    let next = next_version(name, expected, version)?;
    connection.execute(
        "INSERT INTO rehang.document (gallery, name, version, text) VALUES ($1, $2, $3, $4)
         ON CONFLICT (gallery, name) DO UPDATE SET version = EXCLUDED.version, text = EXCLUDED.text",
        &[&handle.number, &name, &(next as i64), &text],
    )?;
    Ok(next)
}
