//! Making a gallery of an application's table, and opening one: what the server and the table need, and every row as an item.

use rehang::{Error, ErrorKind, Remedy, Result};
use rehang_store::Looked;

use crate::connection::{Connection, Database, Mode, Step};
use crate::guard::{self, SEARCH_PATH, Whose};
use crate::handle::Handle;
use crate::pgvector::Pgvector;
use crate::schema::{self, FORMAT, NEXT_REVISION};
use crate::serving::functions;
use crate::spaces;
use crate::table::{Table, TableOptions, literal, quoted};

/// Oldest server and oldest pgvector that will do.
const SERVER_MIN: i32 = 140_000;
const PGVECTOR_MIN: (u32, u32) = (0, 7);
/// Rows that become items in one transaction.
const ADOPTED_TOGETHER: i64 = 5_000;
/// The advisory lock of making galleries.
const ADOPTION: i64 = 0x7265_6861_6e67;

pub(crate) fn inspect(address: &str, options: &TableOptions) -> Result<Looked> {
    let database = Database::open(address)?;
    let pgvector = expect_server(&database)?;
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
                "SELECT {2}({0}) FROM {1} WHERE {0} IS NOT NULL LIMIT 1",
                quoted(column),
                table.qualified,
                pgvector.named("vector_dims")
            );
            dimension = match connection.query_opt(&sql, &[])? {
                Some(row) => Some(row.try_get::<_, i32>(0)?.max(0) as usize),
                None => None,
            };
        }
        let id = table.key.iter().map(|column| column.name.clone()).collect();
        Ok(Looked { dimension, id, texts, vectors })
    })
}

pub(crate) fn statements(address: &str, options: &TableOptions) -> Result<String> {
    let database = Database::open(address)?;
    let pgvector = expect_server(&database)?;
    database.run(Mode::Read, |connection| {
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Trusted)?;
        let number = number_of(connection, &table)?.map_or(1, |(number, ..)| number);
        // One transaction, since nobody may call the function of the triggers in between, with the names that our own sessions see.
        Ok([
            format!("BEGIN;\nSET LOCAL search_path = {SEARCH_PATH};"),
            schema::BASE.to_owned(),
            functions(&pgvector),
            register(&table),
            schema::item_table(number, &table),
            schema::comment(number, &table),
            schema::function(number, &table, &[], &pgvector),
            schema::KEEP.to_owned(),
            schema::triggers(number, &table),
            "COMMIT;".to_owned(),
        ]
        .join("\n"))
    })
}

pub(crate) fn adopt(
    address: &str,
    options: &TableOptions,
    old: Option<&str>,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<Handle> {
    let database = Database::open(address)?;
    let pgvector = expect_server(&database)?;
    let (table, number) = database.run(Mode::Write, |connection| {
        // Two that adopt at once come one after the other.
        connection.query("SELECT pg_advisory_xact_lock($1)", &[&ADOPTION])?;
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Mine)?;
        if let Some((number, known, _)) = number_of(connection, &table)? {
            expect_options(&known, options)?;
            guard::expect_no_newer(guard::versions(connection, number)?, &options.table)?;
            renew(connection, number, &table, &pgvector)?;
            return Ok((table, number));
        }
        connection.batch(schema::BASE)?;
        // Another role may have made the schema a moment ago.
        guard::expect_ours(connection, &table, Whose::Mine)?;
        connection.batch(schema::RELATION_BY_NAME)?;
        connection.batch(&functions(&pgvector))?;
        connection.batch(&register(&table))?;
        let (number, ..) = number_of(connection, &table)?
            .ok_or_else(|| Error::corrupt(database.name(), "the gallery that was made is not there"))?;
        connection.batch(&schema::item_table(number, &table))?;
        connection.batch(&schema::comment(number, &table))?;
        connection.batch(&schema::function(number, &table, &[], &pgvector))?;
        connection.batch(schema::KEEP)?;
        // Last, since from here on writers of the table wait.
        connection.batch(&schema::triggers(number, &table))?;
        Ok((table, number))
    })?;
    let handle = on(database, table, number, old, pgvector);
    spaces::renew_view(&handle)?;
    list_items(&handle, advance)?;
    Ok(handle)
}

pub(crate) fn open(address: &str, options: &TableOptions, old: Option<&str>) -> Result<Handle> {
    let database = Database::open(address)?;
    let pgvector = expect_server(&database)?;
    let (table, found, versions) = database.run(Mode::Read, |connection| {
        let table = Table::inspect(connection, options)?;
        guard::expect_ours(connection, &table, Whose::Trusted)?;
        let found = number_of(connection, &table)?;
        let versions = found.as_ref().map(|(number, ..)| guard::versions(connection, *number)).transpose()?;
        Ok((table, found, versions.unwrap_or_default()))
    })?;
    let not_yet = || Error::not_found("gallery", &options.table, database.name()).advise(Remedy::AdoptTable);
    let (number, known, is_listed) = found.ok_or_else(not_yet)?;
    expect_options(&known, options)?;
    let format = database.run(Mode::Read, |connection| format_of(connection, number))?;
    if format < FORMAT {
        let what = format!("the gallery in {}", options.table);
        let now = format!(
            "of format {format}, and this rehang works in format {FORMAT}; adopting it once more brings it up"
        );
        return Err(Error::wrong_phase(what, now).advise(Remedy::AdoptTable));
    }
    if !is_listed {
        return Err(Error::wrong_phase(format!("the gallery in {}", options.table), "not whole yet")
            .advise(Remedy::AdoptTable));
    }
    guard::expect_functions(versions, &options.table)?;
    Ok(on(database, table, number, old, pgvector))
}

fn on(database: Database, table: Table, number: i32, old: Option<&str>, pgvector: Pgvector) -> Handle {
    database.is_about(&table.qualified);
    Handle { database, number, table, old: old.map(str::to_owned), pgvector }
}

/// Makes an item of every row that is there.
fn list_items(handle: &Handle, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    let Handle { database, number: g, table, .. } = handle;
    let is_listed = |connection: &mut Connection| -> Step<bool> {
        Ok(connection.query_one("SELECT listed FROM rehang.gallery WHERE number = $1", &[g])?.try_get(0)?)
    };
    if database.run(Mode::Read, is_listed)? {
        return Ok(());
    }
    spaces::wait_for_writers(handle)?;
    let key = table.key_of("t");
    // Of its own form for the first page, so that every other one is read from the index of the key.
    let page_after = |after: &str| {
        format!(
        "WITH page AS (SELECT {id} AS id, {names}, {source} IS NOT NULL AS sourced, {item} AS is_item FROM (
                 SELECT * FROM {on} AS t WHERE {after} ORDER BY {key} LIMIT {ADOPTED_TOGETHER}) AS t),
             listed AS (INSERT INTO rehang.item_{g} (id, {keys}, revision, sourced)
                 SELECT id, {keys}, {NEXT_REVISION}, sourced FROM page WHERE is_item ON CONFLICT DO NOTHING),
             last AS (SELECT id FROM page ORDER BY {keys_down} LIMIT 1)
         SELECT (SELECT id FROM last), count(*) FROM page",
        id = table.id_of("t"),
        names = table.key.iter().zip(1..).map(|(column, at)| format!("t.{} AS k{at}", quoted(&column.name))).collect::<Vec<_>>().join(", "),
        source = table.source_of("t"),
        item = table.is_item("t"),
        on = table.qualified,
        keys = table.key_names(),
        keys_down = (1..=table.key.len()).map(|at| format!("k{at} DESC")).collect::<Vec<_>>().join(", "),
    )
    };
    let first = page_after("$1::text IS NULL");
    let next = page_after(&format!("({key}) > ({})", table.key_from("$1::text").join(", ")));
    let (mut after, mut done): (Option<String>, u64) = (None, 0);
    loop {
        let page = || {
            database.run(Mode::Write, |connection| {
                // An application that waits for a page while the page waits for it would be ended after a second: the page gives up before.
                connection.batch(&format!(
                    "SET LOCAL lock_timeout = '50ms'; LOCK TABLE {} IN ACCESS SHARE MODE",
                    table.qualified
                ))?;
                let row = connection.query_one(if after.is_none() { &first } else { &next }, &[&after])?;
                Ok((row.try_get::<_, Option<String>>(0)?, row.try_get::<_, i64>(1)?))
            })
        };
        // A transaction that is open for longer than a call tries may still end.
        let (last, listed) =
            page().or_else(|error| if error.is_retryable() { page() } else { Err(error) })?;
        let Some(last) = last else { break };
        after = Some(last);
        done += listed.max(0) as u64;
        if !advance(done, done.max(table.rows)) {
            return Err(ErrorKind::Cancelled.into());
        }
    }
    // A row that was deleted, or ceased to be an item, while its page was read may have left one behind.
    spaces::wait_for_writers(handle)?;
    remove_rowless_items(handle)?;
    database.run(Mode::Write, |connection| {
        connection.batch(&format!(
            "UPDATE rehang.gallery SET listed = true WHERE number = {g}; ANALYZE rehang.item_{g};"
        ))
    })
}

/// Removes the items that have no row. An application's open transaction may be about to write the row of one: such an item is passed
/// over until that transaction has ended. The rows are looked at once more when the items are locked: a statement that has waited
/// for a lock still sees the rows of before.
fn remove_rowless_items(handle: &Handle) -> Result<()> {
    let Handle { database, number: g, table, .. } = handle;
    let has_no_row = format!(
        "NOT EXISTS (SELECT 1 FROM {} AS t WHERE {} AND {})",
        table.qualified,
        table.is_of("i", "t"),
        table.is_item("t")
    );
    let lock = format!(
        "SELECT i.key FROM rehang.item_{g} AS i WHERE {has_no_row} ORDER BY i.key FOR UPDATE SKIP LOCKED"
    );
    let remove = format!("DELETE FROM rehang.item_{g} AS i WHERE i.key = ANY ($1) AND {has_no_row}");
    let left = format!("SELECT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE {has_no_row})");
    spaces::until_writers_end(handle, || {
        database.run(Mode::Write, |connection| {
            connection.batch(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", table.qualified))?;
            let rows = connection.query(&lock, &[])?;
            let keys = rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<i64>, _>>()?;
            connection.execute(&remove, &[&keys])?;
            Ok(())
        })?;
        let left = database
            .run(Mode::Read, |connection| Ok(connection.query_one(&left, &[])?.try_get::<_, bool>(0)?))?;
        Ok(!left)
    })
}

fn expect_server(database: &Database) -> Result<Pgvector> {
    database.run(Mode::Read, |connection| {
        let row = connection.query_one(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
                 v.extversion, n.nspname::text
             FROM (SELECT) AS server LEFT JOIN pg_extension AS v ON v.extname = 'vector' LEFT JOIN pg_namespace AS n ON n.oid = v.extnamespace",
            &[],
        )?;
        let (number, version): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        if number < SERVER_MIN {
            return Err(Error::option("the server", version, "PostgreSQL 14 or later").into());
        }
        let Some(version) = row.try_get::<_, Option<String>>(2)? else {
            let why = "a database with pgvector: its owner runs CREATE EXTENSION vector";
            return Err(Error::option("the database", database.name(), why).into());
        };
        let pgvector = Pgvector::new(&version, quoted(&row.try_get::<_, String>(3)?));
        if !pgvector.is_at_least(PGVECTOR_MIN) {
            return Err(Error::option("pgvector", version, "0.7 or later").into());
        }
        Ok(pgvector)
    })
}

/// The gallery of a table: its number, the options it was made by, and whether it is whole. `None` where the table is no gallery.
fn number_of(connection: &mut Connection, table: &Table) -> Step<Option<(i32, String, bool)>> {
    let there = connection
        .query_one("SELECT to_regclass('rehang.gallery') IS NOT NULL", &[])?
        .try_get::<_, bool>(0)?;
    if !there {
        return Ok(None);
    }
    let sql = "SELECT number, options, listed, format FROM rehang.gallery WHERE relation = $1";
    let Some(row) = connection.query_opt(sql, &[&table.oid])? else {
        let others = "SELECT count(*) FROM pg_trigger WHERE tgrelid = $1 AND tgname ~ '^00_rehang_[0-9]+_'";
        if connection.count(others, &[&table.oid])? > 0 {
            let why = "its triggers are those of a gallery that takes another table for its own, as after a dump by an earlier version; \
                       DROP SCHEMA rehang CASCADE takes all galleries out of the database, and each can be made anew";
            return Err(Error::conflict(format!("the table {}", table.options.table), why).into());
        }
        return Ok(None);
    };
    let format: i32 = row.try_get(3)?;
    if format > FORMAT {
        let what = format!("the gallery in {}", table.options.table);
        let why = format!(
            "it is of format {format}, and this rehang knows formats up to {FORMAT}; use the rehang that made it"
        );
        return Err(Error::conflict(what, why).into());
    }
    Ok(Some((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
}

/// The form of a gallery's tables, which an earlier version may have made.
fn format_of(connection: &mut Connection, number: i32) -> Step<i32> {
    let sql = "SELECT format FROM rehang.gallery WHERE number = $1";
    Ok(connection.query_one(sql, &[&number])?.try_get(0)?)
}

/// Makes the functions of a gallery anew, and brings one that an earlier version made to the present form: a dump of it would keep neither
/// which table it is of nor the trigger of its updates.
fn renew(connection: &mut Connection, number: i32, table: &Table, pgvector: &Pgvector) -> Step<()> {
    connection.batch("SET LOCAL lock_timeout = '500ms'")?;
    connection.batch(schema::RELATION_BY_NAME)?;
    connection.batch(&functions(pgvector))?;
    // Spaces neither come nor go from here on, since the function is written from all of them.
    connection.query("SELECT 1 FROM rehang.gallery WHERE number = $1 FOR UPDATE", &[&number])?;
    let spaces = spaces::all(connection, number)?;
    let is_earlier: bool =
        connection.query_one(&schema::has_earlier_triggers(number), &[&table.oid])?.try_get(0)?;
    if format_of(connection, number)? < FORMAT {
        connection.batch(&schema::bring_up(number, &spaces))?;
    }
    if is_earlier {
        connection.batch(&schema::drop_triggers(number, &table.qualified))?;
    }
    connection.batch(&schema::function(number, table, &spaces, pgvector))?;
    connection.batch(schema::KEEP)?;
    if is_earlier {
        connection.batch(&schema::triggers(number, table))?;
    }
    Ok(())
}

fn register(table: &Table) -> String {
    format!(
        "INSERT INTO rehang.gallery (relation, name, options, joined, format) VALUES ({}, {}, {}, {}, {FORMAT})
             ON CONFLICT DO NOTHING;",
        table.oid,
        literal(&table.options.table),
        literal(&as_text(&table.options)),
        literal(&table.is_of("i", "t"))
    )
}

fn as_text(options: &TableOptions) -> String {
    serde_json::to_string(options).unwrap_or_default()
}

/// A gallery is what it was made as: other columns would make other items of the same rows.
fn expect_options(known: &str, options: &TableOptions) -> Result<()> {
    let was: TableOptions =
        serde_json::from_str(known).map_err(|error| Error::corrupt("the gallery's options", error))?;
    let is_same = TableOptions { table: String::new(), ..was.clone() }
        == TableOptions { table: String::new(), ..options.clone() };
    if is_same {
        return Ok(());
    }
    Err(Error::conflict(
        format!("the gallery in {}", options.table),
        format!(
            "it was made with {known}, and not with {}; configure it as it was, or release it and make it anew",
            as_text(options)
        ),
    ))
}
