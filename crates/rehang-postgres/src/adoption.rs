//! Adoption of an application's table as a gallery, and opening of one: checks of the server and the table,
//! then every row becomes an item.

use std::collections::BTreeMap;
use std::sync::Mutex;

use rehang_core::{Error, ErrorKind, Remedy, Result, Space};
use rehang_store::TableFindings;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use crate::connection::{Connection, Database, Mode, Step, StepError};
use crate::guard::{self, SEARCH_PATH, Whose};
use crate::handle::{Handle, Pace};
use crate::locks::without_vacuum;
use crate::partitions::{self, Leaves, leaves, renew_vectors};
use crate::pgvector::Pgvector;
use crate::reading::Reading;
use crate::schema::{self, FORMAT, NEXT_REVISION};
use crate::serving::{drop_view, functions};
use crate::table::{Table, TableOptions, literal, quoted};
use crate::trigger_function::trigger_function;
use crate::{paid, reading, row_security, search, serving, spaces};

/// Oldest server that will do.
const SERVER_MIN: i32 = 140_000;
/// Oldest pgvector that will do.
const PGVECTOR_MIN: (u32, u32) = (0, 7);
/// Number of rows that become items in one transaction.
const ADOPTED_TOGETHER: i64 = 5_000;
/// Number of the advisory lock of adoptions.
const ADOPTION: i64 = 0x7265_6861_6e67;

pub(crate) fn inspect(address: &str, options: &TableOptions) -> Result<TableFindings> {
    let database = Database::open(address, options.root_certificates.as_deref())?;
    let pgvector = expect_server(&database)?;
    expect_of_its_row(&database, options)?;
    database.run(Mode::Read, |connection| {
        let table = Table::inspect(connection, options)?;
        let columns = connection.query(
            "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
             WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            &[&table.oid],
        )?;
        let (mut texts, mut vectors) = (Vec::new(), Vec::new());
        for row in &columns {
            let (name, kind): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            match kind.rsplit('.').next() {
                Some("text" | "character varying") => texts.push(name),
                Some("vector" | "halfvec") => vectors.push(name),
                _ => {}
            }
        }
        let mut dimension = table.dimension;
        if let (None, Some(column)) = (dimension, &options.vector) {
            let sql = format!(
                "SELECT {2}(t.{0}) FROM {1} AS t WHERE t.{0} IS NOT NULL AND {3} LIMIT 1",
                quoted(column),
                table.qualified,
                pgvector.named("vector_dims"),
                table.is_item("t")
            );
            dimension = match connection.query_opt(&sql, &[])? {
                Some(row) => Some(row.try_get::<_, i32>(0)?.max(0) as usize),
                None => None,
            };
        }
        let id = table.key.iter().map(|column| column.name.clone()).collect();
        Ok(TableFindings { dimension, id, texts, vectors, graphs: 0 })
    })
}

pub(crate) fn statements(address: &str, options: &TableOptions) -> Result<String> {
    let database = Database::open(address, options.root_certificates.as_deref())?;
    let pgvector = expect_server(&database)?;
    expect_of_its_row(&database, options)?;
    database.run(Mode::Read, |connection| {
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Trusted)?;
        expect_unpublished(connection, &table)?;
        let number = find_gallery(connection, &table)?.map_or(1, |entry| entry.number);
        // All statements are one transaction: until its end nobody else may call the function of the
        // triggers. They use the names that the gallery's own sessions see.
        Ok([
            format!("BEGIN;\nSET LOCAL search_path = {SEARCH_PATH};"),
            schema::base(),
            serving::tables(&pgvector),
            functions(&pgvector),
            register(&table),
            schema::item_table(number, &table),
            row_security::functions(number, &table),
            row_security::of_items(number, &table),
            schema::comment(number, &table),
            trigger_function(number, &table, &[]),
            reading::row_reader_function(number, &table),
            schema::KEEP.to_owned(),
            schema::triggers(number, &table),
            "COMMIT;".to_owned(),
        ]
        .join("\n"))
    })
}

/// Fails where a table's old vectors do not fit a space, before anything is made in the database. Where the
/// table is a gallery already, its triggers check the width of each row.
pub(crate) fn expect_vectors(address: &str, options: &TableOptions, space: &Space) -> Result<()> {
    let Some(column) = &options.vector else { return Ok(()) };
    let database = Database::open(address, options.root_certificates.as_deref())?;
    let pgvector = expect_server(&database)?;
    database.run(Mode::Read, |connection| {
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Mine)?;
        if find_gallery(connection, &table)?.is_some() {
            return Ok(());
        }
        spaces::expect_column_width(connection, &table, &pgvector, space, column)
    })
}

pub(crate) fn adopt(
    address: &str,
    options: &TableOptions,
    old: Option<&str>,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<Handle> {
    let database = Database::open(address, options.root_certificates.as_deref())?;
    let pgvector = expect_server(&database)?;
    let table_and_number = database.run(Mode::Write, |connection| {
        // Two processes that adopt at once come one after the other.
        take_turn(connection)?;
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Mine)?;
        if let Some(entry) = find_gallery(connection, &table)? {
            let renamed = entry.renamed(connection, table.oid)?;
            expect_options(&entry, &renamed, options, Some(&table))?;
            guard::expect_no_newer(guard::versions(connection, entry.number)?, &options.table)?;
            renew(connection, &entry, &renamed, &table, &pgvector)?;
            return Ok((table, entry.number));
        }
        table.expect_of_its_row(connection)?;
        expect_unpublished(connection, &table)?;
        connection.batch(&schema::base())?;
        // Another role may have made the schema a moment ago.
        guard::expect_ours(connection, &table, Whose::Mine)?;
        connection.batch(&serving::tables(&pgvector))?;
        connection.batch(&functions(&pgvector))?;
        connection.batch(&register(&table))?;
        let number = find_gallery(connection, &table)?
            .ok_or_else(|| Error::corrupt(database.name(), "the gallery that was made is not there"))?
            .number;
        connection.batch(&schema::item_table(number, &table))?;
        connection.batch(&row_security::functions(number, &table))?;
        connection.batch(&row_security::of_items(number, &table))?;
        connection.batch(&schema::comment(number, &table))?;
        connection.batch(&trigger_function(number, &table, &[]))?;
        connection.batch(&reading::row_reader_function(number, &table))?;
        connection.batch(schema::KEEP)?;
        // The triggers come last, since writers of the table wait from here on.
        connection.batch(&schema::triggers(number, &table))?;
        Ok((table, number))
    });
    let (table, number) = table_and_number.map_err(|error| or_renamed(&database, options, error))?;
    let handle = handle_on(database, table, number, old, pgvector);
    search::index_shuffle(&handle)?;
    spaces::renew_view(&handle)?;
    list_items(&handle, advance)?;
    Ok(handle)
}

/// Waits until no other adoption by our role is at work, and keeps the turn until the transaction ends.
/// There is no row yet to lock. An advisory lock of another role is ignored, since a role may hold one that
/// may do nothing but connect.
fn take_turn(connection: &mut Connection) -> Step<()> {
    let sql = "SELECT pg_try_advisory_xact_lock($1) OR NOT EXISTS (SELECT 1 FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.datname = current_database() AND a.usename = current_user
                 AND l.classid::bigint << 32 | l.objid::bigint = $1)";
    if connection.query_one(sql, &[&ADOPTION])?.try_get(0)? { Ok(()) } else { Err(StepError::Busy) }
}

/// Opens a gallery. Where its table is not what it was made of any more, what is known of it can still be
/// read, and searches can be led back.
pub(crate) fn open(address: &str, options: &TableOptions, old: Option<&str>) -> Result<Handle> {
    let database = Database::open(address, options.root_certificates.as_deref())?;
    let pgvector = expect_server(&database)?;
    let table_and_entry = database.run(Mode::Read, |connection| {
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Trusted)?;
        let Some(entry) = find_gallery(connection, &table)? else { return Ok((table, None)) };
        let renamed = entry.renamed(connection, table.oid)?;
        let versions = guard::versions(connection, entry.number)?;
        Ok((table, Some((entry, renamed, versions))))
    });
    let (table, entry) = match table_and_entry.map_err(|error| or_renamed(&database, options, error)) {
        Ok(table_and_entry) => table_and_entry,
        Err(error) => return remembered(database, options, old, pgvector, error),
    };
    let not_yet = || Error::not_found("gallery", &options.table, database.name()).advise(Remedy::AdoptTable);
    let (entry, renamed, versions) = entry.ok_or_else(not_yet)?;
    let expected = expect_options(&entry, &renamed, options, None);
    // Under its earlier name, a column may be another one by now.
    if renamed.is_empty() || expect_options(&entry, &Renamed::new(), options, None).is_err() {
        expected?;
    }
    entry.expect_whole(&options.table)?;
    guard::expect_functions(versions, &options.table)?;
    if let Err(error) = expect_options(&entry, &renamed, options, Some(&table))
        && renamed.is_empty()
    {
        // With another primary key since, the items would be other rows.
        return remembered(database, options, old, pgvector, error);
    }
    if !renamed.is_empty() {
        let why = format!("not what its triggers were made for: {}", words_of(&renamed));
        let error =
            Error::wrong_phase(format!("the table {}", options.table), why).advise(Remedy::AdoptTable);
        return remembered(database, options, old, pgvector, error);
    }
    Ok(handle_on(database, table, entry.number, old, pgvector))
}

/// Opens a gallery whose table cannot be read as it should be, by the gallery's own tables. Its table is the
/// one of that name, or the one that had the name when it was adopted. `error` says what is out of step;
/// every call that needs rows is refused with it.
fn remembered(
    database: Database,
    options: &TableOptions,
    old: Option<&str>,
    pgvector: Pgvector,
    error: Error,
) -> Result<Handle> {
    let is_of_the_table = matches!(
        error.kind(),
        ErrorKind::InvalidOption { .. }
            | ErrorKind::NotFound { .. }
            | ErrorKind::Conflict { .. }
            | ErrorKind::WrongPhase { .. }
    );
    if !is_of_the_table {
        return Err(error);
    }
    let table_found = database.run(Mode::Read, |connection| {
        let oid = guard::seen_by_application(connection, &options.table)?;
        guard::expect_ours_beside(connection, oid, Whose::Trusted)?;
        if !has_galleries(connection)? {
            return Ok(None);
        }
        let rows = connection.query(
            "SELECT number, options, listed, format, to_jsonb(g) ->> 'columns' AS columns, joined, relation::oid AS relation, relation::text AS called
                 FROM rehang.gallery AS g
             WHERE relation = $1 OR $1 IS NULL AND name = $2 AND EXISTS (SELECT 1 FROM pg_class AS c WHERE c.oid = g.relation)",
            &[&oid, &options.table],
        )?;
        let [row] = &rows[..] else { return Ok(None) };
        let entry = Known::read(row)?;
        let Some(origin) = &entry.origin else { return Ok(None) };
        let (relation, called): (u32, String) = (row.try_get("relation")?, row.try_get("called")?);
        // A dump leaves the numbers of another server, which mean nothing here.
        if origin.relation != relation {
            return Ok(None);
        }
        let was: TableOptions = serde_json::from_str(&entry.options)
            .map_err(|error| Error::corrupt("the gallery's options", error))?;
        let was = TableOptions {
            table: options.table.clone(),
            published: options.published,
            keep_paid_s: options.keep_paid_s,
            column: options.column.clone(),
            root_certificates: options.root_certificates.clone(),
            ..was
        };
        let renamed = entry.renamed(connection, relation)?;
        if was != *options {
            expect_options(&entry, &renamed, options, None)?;
        }
        entry.expect_whole(&options.table)?;
        guard::expect_functions(guard::versions(connection, entry.number)?, &options.table)?;
        let table = Table::remembered(connection, (entry.number, entry.key.as_slice()), &was, relation, &origin.columns)?;
        Ok(table.map(|table| (table, entry.number, oid.is_none().then_some(called))))
    });
    let (table, number, called) = match table_found {
        Ok(Some(table_found)) => table_found,
        // The configuration of now describes another gallery.
        Err(other) if other.is_conflict() && !error.is_conflict() => return Err(other),
        Ok(None) | Err(_) => return Err(error),
    };
    let error = match called {
        Some(called) => {
            let why =
                format!("it is called {called} now; write that into the configuration, then adopt it again");
            Error::conflict(format!("the table {}", options.table), why)
        }
        None => error,
    };
    let handle = handle_on(database, table, number, old, pgvector);
    Ok(Handle { out_of_step: Some(error), ..handle })
}

/// Fails where an expression depends on more than its row, as an adoption does, without adopting anything.
/// The scratch table that it needs is gone when it returns.
fn expect_of_its_row(database: &Database, options: &TableOptions) -> Result<()> {
    // A plain column name depends on its row alone.
    let is_name = |text: &String| text.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    if options.condition.is_none() && options.source.iter().all(is_name) {
        return Ok(());
    }
    database.run(Mode::Write, |connection| Table::inspect(connection, options)?.expect_of_its_row(connection))
}

/// Lists the publications of logical replication that send the table, or all tables, to subscribers,
/// each with what that does.
pub(crate) fn published(connection: &mut Connection, table: &Table) -> Step<Vec<String>> {
    let rows = connection.query(
        "SELECT p.pubname::text, p.puballtables FROM pg_publication AS p WHERE p.puballtables OR EXISTS (SELECT 1
             FROM pg_publication_tables AS t JOIN pg_namespace AS n ON n.nspname = t.schemaname
             JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename WHERE t.pubname = p.pubname
                 AND (c.oid = $1 OR c.oid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))))
         ORDER BY 1",
        &[&table.oid],
    )?;
    let words = |row: &Row| -> Step<String> {
        let name: String = row.try_get(0)?;
        Ok(if row.try_get(1)? {
            format!(
                "publication {name:?} is FOR ALL TABLES: a subscriber without our tables stops at their first row, and this server keeps \
                 its log for it from then on"
            )
        } else {
            format!(
                "publication {name:?} sends the table: a subscriber that has our triggers too writes what comes from here a second time, \
                 and one without the column that `release` adds stops there"
            )
        })
    };
    rows.iter().map(words).collect()
}

/// Fails where subscribers would receive the table's rows, until somebody says that they were seen to:
/// subscribers are other servers, which cannot be seen from here.
fn expect_unpublished(connection: &mut Connection, table: &Table) -> Step<()> {
    if table.options.published {
        return Ok(());
    }
    let published = published(connection, table)?;
    if published.is_empty() {
        return Ok(());
    }
    let expected = format!("true, once its subscribers were seen to ({})", published.join("; "));
    Err(Error::option("published", false, expected).into())
}

fn handle_on(database: Database, table: Table, number: i32, old: Option<&str>, pgvector: Pgvector) -> Handle {
    database.set_table(&table.qualified, if table.is_partitioned { &guard::SAME_TEXT[..] } else { &[] });
    let old = old.map(str::to_owned);
    Handle {
        database,
        number,
        table,
        out_of_step: None,
        old,
        pgvector,
        searched: Mutex::default(),
        fronts: Mutex::default(),
        natives: Pace::between(8, 64),
        adapted: Pace::between(256, 4096),
    }
}

/// Makes an item of every row that is there, until no partition has come meanwhile.
fn list_items(handle: &Handle, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    let Handle { database, number: g, table, .. } = handle;
    let is_listed = |connection: &mut Connection| -> Step<bool> {
        Ok(connection.query_one("SELECT listed FROM rehang.gallery WHERE number = $1", &[g])?.try_get(0)?)
    };
    if database.run(Mode::Read, is_listed)? {
        return Ok(());
    }
    spaces::wait_for_writers(handle)?;
    let partitions = || database.run(Mode::Read, |connection| leaves(connection, *g, table));
    loop {
        let before = partitions()?;
        list_rows(handle, advance)?;
        // A partition that came meanwhile may have rows before the page that was at work, so the
        // rows are listed once more.
        if partitions()? == before {
            let leaves = serde_json::to_string(&before).unwrap_or_default();
            return database.run(Mode::Write, |connection| {
                connection.execute(
                    "UPDATE rehang.gallery SET listed = true, columns = jsonb_set(columns::jsonb, '{leaves}', $2::text::jsonb)::text WHERE number = $1",
                    &[g, &leaves],
                )?;
                connection.batch(&format!("ANALYZE rehang.item_{g}"))
            });
        }
    }
}

/// Makes an item of every row that should be one and is none, and removes items without a row.
fn list_rows(handle: &Handle, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    let Handle { database, number: g, table, .. } = handle;
    if table.is_partitioned {
        // An item whose source is another one is removed, and its row is listed anew.
        remove_rowless_items(handle, true)?;
    }
    let key = table.key_of("t");
    // The first page has a form of its own, so that every other page is read from the index of the key.
    let page_after = |after: &str, reading: Reading| {
        // `row` is the row as it is in the table, since the function reads that.
        let (row, more) = match reading {
            Reading::Inline => ("t", ""),
            Reading::RowByRow(_) => ("t.\"rehang row\"", ", t AS \"rehang row\""),
        };
        format!(
            "WITH page AS (SELECT {id} AS id, {names}, {source} AS sourced, {item} AS is_item{hashes} FROM (
                 SELECT t.*{more} FROM {on} AS t WHERE {after} ORDER BY {key} LIMIT {ADOPTED_TOGETHER}) AS t),
             listed AS (INSERT INTO rehang.item_{g} (id, {keys}, revision, sourced{hash_names})
                 SELECT id, {keys}, {NEXT_REVISION}, sourced{hash_names} FROM page WHERE is_item ON CONFLICT DO NOTHING),
             last AS (SELECT id FROM page ORDER BY {keys_down} LIMIT 1)
         SELECT (SELECT id FROM last), count(*) FROM page",
            id = table.id_of("t"),
            names = table
                .key
                .iter()
                .zip(1..)
                .map(|(column, at)| format!("t.{} AS k{at}", quoted(&column.name)))
                .collect::<Vec<_>>()
                .join(", "),
            source = reading.has_source(table, row),
            item = reading.is_item(table, row, false),
            hash_names = if table.is_partitioned { ", source_hash, vector_hash" } else { "" },
            hashes = if table.is_partitioned {
                format!(
                    ", {} AS source_hash, {} AS vector_hash",
                    reading.source_hash(table, row),
                    table.vector_hash("t")
                )
            } else {
                String::new()
            },
            on = table.qualified,
            keys = table.key_names(),
            keys_down = (1..=table.key.len()).map(|at| format!("k{at} DESC")).collect::<Vec<_>>().join(", "),
        )
    };
    let next = format!("({key}) > ({})", table.key_from("$1::text").join(", "));
    let (mut after, mut done): (Option<String>, u64) = (None, 0);
    loop {
        let page = || {
            database.run(Mode::Write, |connection| {
                // An application that waits for a page while the page waits for it would be ended by the
                // server after a second. The page gives up before that.
                connection.batch(&format!(
                    "SET LOCAL lock_timeout = '50ms'; LOCK TABLE {} IN ACCESS SHARE MODE",
                    table.qualified
                ))?;
                let page = if after.is_none() { "$1::text IS NULL" } else { next.as_str() };
                reading::of_rows(connection, *g, table, |connection, reading| {
                    let row = connection.query_one(&page_after(page, reading), &[&after])?;
                    Ok((row.try_get::<_, Option<String>>(0)?, row.try_get::<_, i64>(1)?))
                })
            })
        };
        // A transaction may stay open for longer than a call tries, and still end.
        let (last, listed) =
            page().or_else(|error| if error.is_retryable() { page() } else { Err(error) })?;
        let Some(last) = last else { break };
        after = Some(last);
        done += listed.max(0) as u64;
        if !advance(done, done.max(table.rows)) {
            return Err(ErrorKind::Cancelled.into());
        }
    }
    // A row that was deleted, or ceased to be an item, while its page was read may have left an item behind.
    spaces::wait_for_writers(handle)?;
    remove_rowless_items(handle, table.is_partitioned)?;
    if table.is_partitioned {
        renew_vectors(handle)?;
    }
    spaces::list_anew(handle)
}

/// Takes out items whose rows went with a partition that was detached or dropped.
pub(crate) fn take_out_rowless(handle: &Handle) -> Result<()> {
    remove_rowless_items(handle, false)?;
    spaces::list_anew(handle)
}

/// Removes the items that have no row, or whose row has another source than they were seen with. An
/// application's open transaction may be about to write the row of such an item, which is passed over until
/// that transaction has ended. The rows are looked at once more when the items are locked: a statement that
/// has waited for a lock still sees the earlier rows.
fn remove_rowless_items(handle: &Handle, or_of_another_source: bool) -> Result<()> {
    let Handle { database, number: g, table, .. } = handle;
    let has_no_row = |reading: Reading| {
        let is_same = if or_of_another_source {
            format!(" AND {}", reading.has_source_of(table, "i", "t"))
        } else {
            String::new()
        };
        format!(
            "NOT EXISTS (SELECT 1 FROM {} AS t WHERE {} AND {}{is_same})",
            table.qualified,
            table.is_of("i", "t"),
            reading.is_item(table, "t", true)
        )
    };
    spaces::until_writers_end(handle, || {
        database.run(Mode::Write, |connection| {
            connection.batch(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", table.qualified))?;
            reading::of_rows(connection, *g, table, |connection, reading| {
                let has_no_row = has_no_row(reading);
                let lock = format!(
                    "SELECT i.key FROM rehang.item_{g} AS i WHERE {has_no_row} ORDER BY i.key FOR UPDATE SKIP LOCKED"
                );
                let rows = connection.query(&lock, &[])?;
                let keys = rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<i64>, _>>()?;
                let remove = format!("DELETE FROM rehang.item_{g} AS i WHERE i.key = ANY ($1) AND {has_no_row}");
                connection.execute(&remove, &[&keys])?;
                Ok(())
            })
        })?;
        let is_any_left = database.run(Mode::Read, |connection| {
            reading::of_rows(connection, *g, table, |connection, reading| {
                let sql = format!(
                    "SELECT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE {})",
                    has_no_row(reading)
                );
                Ok(connection.query_one(&sql, &[])?.try_get::<_, bool>(0)?)
            })
        })?;
        Ok(!is_any_left)
    })
}

fn expect_server(database: &Database) -> Result<Pgvector> {
    database.run(Mode::Read, |connection| {
        let row = connection.query_one(
            "SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS version,
                 v.extversion, n.nspname::text, coalesce(one.oid, 0::oid) AS vector, coalesce(one.typarray, 0::oid) AS vectors,
                 coalesce(half.oid, 0::oid) AS halfvec, coalesce(half.typarray, 0::oid) AS halfvecs
             FROM (SELECT) AS server LEFT JOIN pg_extension AS v ON v.extname = 'vector' LEFT JOIN pg_namespace AS n ON n.oid = v.extnamespace
             LEFT JOIN pg_type AS one ON one.typnamespace = n.oid AND one.typname = 'vector'
             LEFT JOIN pg_type AS half ON half.typnamespace = n.oid AND half.typname = 'halfvec'",
            &[],
        )?;
        let (number, version): (i32, String) = (row.try_get("number")?, row.try_get("version")?);
        if number < SERVER_MIN {
            return Err(Error::option("the server", version, "PostgreSQL 14 or later").into());
        }
        let Some(version) = row.try_get::<_, Option<String>>("extversion")? else {
            let why = "a database with pgvector: its owner runs CREATE EXTENSION vector";
            return Err(Error::option("the database", database.name(), why).into());
        };
        let numbers = [
            row.try_get("vector")?,
            row.try_get("vectors")?,
            row.try_get("halfvec")?,
            row.try_get("halfvecs")?,
        ];
        let pgvector = Pgvector::new(&version, quoted(&row.try_get::<_, String>("nspname")?), numbers);
        if !pgvector.is_at_least(PGVECTOR_MIN) {
            return Err(Error::option("pgvector", version, "0.7 or later").into());
        }
        Ok(pgvector)
    })
}

/// Entry of a gallery in the gallery's own tables.
struct Known {
    number: i32,
    /// Options that the gallery was made with, as JSON.
    options: String,
    /// The columns that say which row an item is, by their earlier names: also where `options` left
    /// them to the primary key.
    key: Vec<String>,
    is_listed: bool,
    /// Form of its tables.
    format: i32,
    origin: Option<Kept>,
}

/// Table and columns that a gallery was made of, by what the server keeps through every renaming.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// Number of the table. In a database that comes out of a dump the table has another number,
    /// and so do its columns.
    relation: u32,
    /// Name of the table, as the view of what serves has it.
    name: String,
    /// Numbers of columns by their earlier names.
    columns: BTreeMap<String, i16>,
    /// Tables in which the rows of a partitioned table lay when rows and items were last compared.
    #[serde(default)]
    leaves: Leaves,
}

impl Kept {
    fn as_json(table: &Table, leaves: Leaves) -> String {
        let (name, columns) = (table.qualified.clone(), table.numbers.clone());
        let origin = Self { relation: table.oid, name, columns, leaves };
        serde_json::to_string(&origin).unwrap_or_default()
    }
}

/// Columns that have been renamed: present names by the names from when the gallery was made.
type Renamed = BTreeMap<String, String>;

fn words_of(renamed: &Renamed) -> String {
    let words: Vec<String> =
        renamed.iter().map(|(was, now)| format!("its column {was:?} is called {now:?} now")).collect();
    words.join(", ")
}

impl Kept {
    /// Finds the columns that have other names than when the gallery was made.
    fn renamed(&self, connection: &mut Connection, oid: u32) -> Step<Renamed> {
        let mut renamed = Renamed::new();
        if self.relation != oid {
            return Ok(renamed);
        }
        for row in connection.query(
            "SELECT attnum, attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped",
            &[&oid],
        )? {
            let (number, now): (i16, String) = (row.try_get(0)?, row.try_get(1)?);
            let was = self.columns.iter().find(|(was, column)| **column == number && **was != now);
            renamed.extend(was.map(|(was, _)| (was.clone(), now)));
        }
        Ok(renamed)
    }
}

impl Known {
    /// Reads a gallery's entry from its row of `rehang.gallery`.
    fn read(row: &Row) -> Step<Self> {
        let json: Option<String> = row.try_get("columns")?;
        let origin = json.as_deref().map(serde_json::from_str).transpose();
        Ok(Self {
            number: row.try_get("number")?,
            options: row.try_get("options")?,
            key: key_of(&row.try_get::<_, String>("joined")?),
            is_listed: row.try_get("listed")?,
            format: row.try_get("format")?,
            origin: origin.map_err(|error| Error::corrupt("the gallery's columns", error))?,
        })
    }

    /// Fails for a gallery that an adoption has to bring to the present format, or to its end, before
    /// anything is done with it.
    fn expect_whole(&self, table: &str) -> Result<()> {
        let what = format!("the gallery in {table}");
        expect_format(table, self.format)?;
        if !self.is_listed {
            return Err(Error::wrong_phase(what, "not whole yet").advise(Remedy::AdoptTable));
        }
        Ok(())
    }

    fn renamed(&self, connection: &mut Connection, oid: u32) -> Step<Renamed> {
        self.origin.as_ref().map_or_else(|| Ok(Renamed::new()), |origin| origin.renamed(connection, oid))
    }
}

/// Reads the columns of a key, in order, from the condition that [`Table::is_of`] has made of them.
fn key_of(joined: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut text_left = joined;
    while let Some((_, quoted)) = text_left.split_once(" t.\"") {
        let mut name = String::new();
        let mut letters = quoted.char_indices().peekable();
        let mut end = quoted.len();
        while let Some((at, letter)) = letters.next() {
            if letter != '"' {
                name.push(letter);
            } else if letters.next_if(|(_, next)| *next == '"').is_some() {
                name.push('"');
            } else {
                end = at + 1;
                break;
            }
        }
        names.push(name);
        text_left = &quoted[end..];
    }
    names
}

/// Finds the gallery of a table; `None` where the table is none.
fn find_gallery(connection: &mut Connection, table: &Table) -> Step<Option<Known>> {
    if !has_galleries(connection)? {
        return Ok(None);
    }
    let sql = "SELECT number, options, listed, format, columns, joined FROM rehang.gallery AS g WHERE relation = $1";
    let Some(row) = connection.query_opt(sql, &[&table.oid])? else {
        expect_no_part(connection, table)?;
        let strays = "SELECT count(*) FROM pg_trigger WHERE tgrelid = $1 AND tgname ~ '^00_rehang_[0-9]+_'";
        if connection.count(strays, &[&table.oid])? > 0 {
            let why = "its triggers are those of a gallery that takes another table for its own, as where this one was restored alone. No \
                       write of it is seen. A release that is confirmed takes the triggers and what is left of that \
                       gallery away, and then it can be made anew";
            return Err(Error::conflict(format!("the table {}", table.options.table), why).into());
        }
        return Ok(None);
    };
    let entry = Known::read(&row)?;
    expect_format(&table.options.table, entry.format)?;
    Ok(Some(entry))
}

/// Fails where the table lies in another gallery, or another gallery lies in it: each row is an item once.
fn expect_no_part(connection: &mut Connection, table: &Table) -> Step<()> {
    let other = connection.query_opt(
        "SELECT g.relation::regclass::text FROM rehang.gallery AS g WHERE g.relation IN (SELECT relid FROM pg_partition_ancestors($1::oid::regclass)
             UNION ALL SELECT relid FROM pg_partition_tree($1::oid::regclass)) ORDER BY g.number LIMIT 1",
        &[&table.oid],
    )?;
    let Some(other) = other else { return Ok(()) };
    let other: String = other.try_get(0)?;
    let why = format!(
        "{other} is a gallery and shares its rows, as a partitioned table and its partitions do: finish and release that one first"
    );
    Err(Error::conflict(format!("the table {}", table.options.table), why).into())
}

/// Describes what has changed of the partitions of a gallery's table, each change in a sentence.
pub(crate) fn remarks_on_partitions(handle: &Handle) -> Result<Vec<String>> {
    if !handle.table.is_partitioned || handle.out_of_step.is_some() {
        return Ok(Vec::new());
    }
    handle.database.run(Mode::Read, |connection| {
        let Some(origin) = find_gallery(connection, &handle.table)?.and_then(|entry| entry.origin) else {
            return Ok(Vec::new());
        };
        // In a database that comes out of a dump, all numbers are others.
        if origin.relation != handle.table.oid {
            return Ok(Vec::new());
        }
        partitions::remarks(connection, handle, &origin.leaves)
    })
}

/// Whether the database has galleries at all.
pub(crate) fn has_galleries(connection: &mut Connection) -> Step<bool> {
    Ok(connection.query_one("SELECT to_regclass('rehang.gallery') IS NOT NULL", &[])?.try_get(0)?)
}

/// Refuses a gallery whose tables are of a form that this version does not know.
pub(crate) fn expect_format(table: &str, format: i32) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    let why = format!(
        "it is of format {format}, and this rehang knows format {FORMAT}; use the rehang that made it"
    );
    Err(Error::conflict(format!("the gallery in {table}"), why))
}

/// Explains why a table is not what its options say, where columns that they name have been renamed since it
/// was made a gallery. Otherwise it returns the error as it is.
fn or_renamed(database: &Database, options: &TableOptions, error: Error) -> Error {
    let look = database.run(Mode::Read, |connection| {
        let oid = guard::seen_by_application(connection, &options.table)?;
        // The cause of the error may be that the schema is another role's, which nobody may read.
        guard::expect_ours_beside(connection, oid, Whose::Trusted)?;
        if !has_galleries(connection)? {
            return Ok(Renamed::new());
        }
        let sql = "SELECT g.columns FROM rehang.gallery AS g WHERE g.relation = $1";
        let Some((oid, row)) = oid.zip(connection.query_opt(sql, &[&oid])?) else {
            return Ok(Renamed::new());
        };
        let origin = row.try_get::<_, Option<String>>(0)?.and_then(|json| serde_json::from_str(&json).ok());
        origin.map_or_else(|| Ok(Renamed::new()), |origin: Kept| origin.renamed(connection, oid))
    });
    let mut renamed = look.unwrap_or_default();
    let named = [&options.source, &options.label, &options.payload, &options.vector];
    let named: Vec<&String> = options.id.iter().chain(named.into_iter().flatten()).collect();
    renamed.retain(|was, _| named.contains(&was));
    if renamed.is_empty() {
        return error;
    }
    let why = format!("{}; write that into the configuration, then adopt it again", words_of(&renamed));
    Error::conflict(format!("the gallery in {}", options.table), why)
}

/// Makes the functions of a gallery anew, by the present names of its table and columns: a function names
/// columns by the names of when it was made.
fn renew(
    connection: &mut Connection,
    entry: &Known,
    renamed: &Renamed,
    table: &Table,
    pgvector: &Pgvector,
) -> Step<()> {
    let number = entry.number;
    connection.batch("SET LOCAL lock_timeout = '500ms'")?;
    connection.batch(&serving::tables(pgvector))?;
    connection.batch(&functions(pgvector))?;
    // Spaces neither come nor go from here on, since the function is written from all of them.
    connection.query("SELECT 1 FROM rehang.gallery WHERE number = $1 FOR NO KEY UPDATE", &[&number])?;
    let spaces = spaces::all(connection, number)?;
    without_vacuum(
        connection,
        &[std::slice::from_ref(&table.qualified), &*schema::tables_of_gallery(number, &spaces)].concat(),
    )?;
    connection.batch(&paid::tables(table, &spaces, pgvector))?;
    let lacks_triggers = connection.count(&schema::missing_triggers(number, table), &[])? > 0;
    // Tables of a space that a person has dropped are made again, empty. The table of items is not: a new one
    // would give the keys of old items to new ones.
    let names: Vec<String> =
        spaces.iter().flat_map(|space| schema::tables_of(space.number, space.in_column.as_deref())).collect();
    let missing_tables = "SELECT count(*) FROM unnest($1::text[]) AS wanted(name) WHERE to_regclass('rehang.' || name) IS NULL";
    let lacks_tables = connection.count(missing_tables, &[&names])? > 0;
    if lacks_tables {
        for space in &spaces {
            let (of, column) = (&space.record.space, space.in_column.as_deref());
            connection.batch(&schema::space_tables(space.number, of, column, pgvector))?;
        }
    }
    let kept_leaves = entry
        .origin
        .as_ref()
        .filter(|origin| origin.relation == table.oid)
        .map(|origin| origin.leaves.clone());
    let kept_leaves = kept_leaves.unwrap_or_default();
    let has_others = leaves(connection, number, table)? != kept_leaves;
    let unread = "DELETE FROM rehang.document WHERE gallery = $1 AND starts_with(name, $2)";
    let was_unread = connection.execute(unread, &[&number, &schema::UNREAD])? > 0;
    if was_unread || lacks_triggers || lacks_tables || has_others {
        // Rows that came or went meanwhile are listed once more.
        connection.execute("UPDATE rehang.gallery SET listed = false WHERE number = $1", &[&number])?;
    }
    let is_known = entry.origin.as_ref().is_some_and(|origin| {
        origin.relation == table.oid && origin.name == table.qualified && origin.columns == table.numbers
    });
    if !is_known {
        connection.execute(
            "UPDATE rehang.gallery SET name = $2, options = $3, joined = $4, columns = $5 WHERE number = $1",
            &[
                &number,
                &table.options.table,
                &as_text(&table.options),
                &table.is_of("i", "t"),
                &Kept::as_json(table, kept_leaves),
            ],
        )?;
        connection.execute(
            "UPDATE rehang.space SET in_column = $2 WHERE gallery = $1 AND in_column IS NOT NULL",
            &[&number, &table.options.vector],
        )?;
    }
    if !renamed.is_empty() {
        // Triggers of a release use the earlier names; a release that was begun makes them anew.
        connection.batch(&schema::end_moves(number, Some(&table.qualified)))?;
    }
    if table.key.iter().any(|column| renamed.values().any(|now| *now == column.name)) {
        // The view has the names of the key's columns.
        connection.batch(&drop_view(number))?;
    }
    connection.batch(&spaces.iter().map(|space| schema::lease_index(space.number)).collect::<String>())?;
    // The spaces are read again, now with the columns' present names.
    let spaces = spaces::all(connection, number)?;
    if lacks_triggers {
        connection.batch(&schema::drop_triggers(number, &table.qualified))?;
        connection.batch(&schema::drop_truncate_triggers(number))?;
    }
    connection.batch(&trigger_function(number, table, &spaces))?;
    connection.batch(&reading::row_reader_function(number, table))?;
    connection.batch(&row_security::functions(number, table))?;
    connection.batch(&row_security::of_items(number, table))?;
    for space in &spaces {
        connection.batch(&row_security::of_space(number, space.number))?;
    }
    connection.batch(schema::KEEP)?;
    if lacks_triggers {
        connection.batch(&schema::triggers(number, table))?;
    } else if table.is_partitioned {
        connection.batch(&schema::truncate_triggers(number, table))?;
    }
    connection.batch(&schema::comment(number, table))
}

fn register(table: &Table) -> String {
    format!(
        "INSERT INTO rehang.gallery (relation, name, options, joined, columns, format) VALUES ({}, {}, {}, {}, {}, {FORMAT})
             ON CONFLICT DO NOTHING;",
        table.oid,
        literal(&table.options.table),
        literal(&as_text(&table.options)),
        literal(&table.is_of("i", "t")),
        literal(&Kept::as_json(table, Leaves::new()))
    )
}

fn as_text(options: &TableOptions) -> String {
    serde_json::to_string(options).unwrap_or_default()
}

/// Fails where a gallery is opened or adopted with other options than it was made with. Other columns would
/// make other items of the same rows. Names that its table and its columns have got since make no difference.
///
/// Where `table` is there, its key has to be the gallery's: another primary key would make other
/// rows of the same items.
fn expect_options(
    entry: &Known,
    renamed: &Renamed,
    options: &TableOptions,
    table: Option<&Table>,
) -> Result<()> {
    let was: TableOptions = serde_json::from_str(&entry.options)
        .map_err(|error| Error::corrupt("the gallery's options", error))?;
    let name_now = |name: String| renamed.get(&name).cloned().unwrap_or(name);
    let key: Vec<String> = entry.key.iter().cloned().map(name_now).collect();
    let id_columns = match table {
        Some(table) => table.key.iter().map(|column| column.name.clone()).collect(),
        None if options.id.is_empty() => key.clone(),
        None => options.id.clone(),
    };
    let options = &TableOptions { id: id_columns, ..options.clone() };
    let was = TableOptions {
        table: options.table.clone(),
        id: key,
        source: was.source.map(name_now),
        label: was.label.map(name_now),
        payload: was.payload.map(name_now),
        vector: was.vector.map(name_now),
        condition: was.condition,
        published: options.published,
        column: options.column.clone(),
        root_certificates: options.root_certificates.clone(),
        keep_paid_s: options.keep_paid_s,
    };
    if was == *options {
        return Ok(());
    }
    let named_options = |options: &TableOptions| {
        let id = (!options.id.is_empty()).then(|| options.id.join(", "));
        [
            ("id", id),
            ("source", options.source.clone()),
            ("label", options.label.clone()),
            ("payload", options.payload.clone()),
            ("vector", options.vector.clone()),
            ("condition", options.condition.clone()),
        ]
    };
    let words = |value: Option<String>| value.map_or_else(|| "none".to_owned(), |value| format!("{value:?}"));
    let differ: Vec<String> = named_options(&was)
        .into_iter()
        .zip(named_options(options))
        .filter(|((_, was), (_, now))| was != now)
        .map(|((name, was), (_, now))| format!("{name} {}, and not {}", words(was), words(now)))
        .collect();
    // One table has one set of triggers, functions and view, so it is one gallery at a time.
    let more = if was.condition == options.condition {
        ""
    } else {
        " (a table is one gallery at a time: other rows of it can be one when this one is finished and released)"
    };
    Err(Error::conflict(
        format!("the gallery in {}", options.table),
        format!(
            "it was made with {}; configure it as it was, or release it and make it anew{more}",
            differ.join("; ")
        ),
    ))
}
