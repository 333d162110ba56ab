//! The gallery in a table: opening it, making it one, and taking everything of ours out again.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang::{Error, Matrix, Provenance, Remedy, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Document, Drawn, Epoch, Examined, Failure, Filter, Found, Index, IndexHealth,
    Item, ItemKey, ItemWrite, Ledger, Looked, Priority, Problem, Queue, Record, Revision, Sample, Scan,
    SpaceRecord, VectorRecord, VectorWrite, WriteOutcome,
};

use crate::connection::{Connection, Database, Mode, Step};
use crate::schema::{self, FORMAT};
use crate::serving::{self, functions};
use crate::table::{Table, TableOptions, literal, quoted};
use crate::{doctor, items, pages, search, spaces, vectors};

/// Oldest server and oldest pgvector that will do.
const SERVER_MIN: i32 = 140_000;
const PGVECTOR_MIN: (u32, u32) = (0, 7);
/// From this pgvector on an index is asked on where a filter leaves too few.
const PGVECTOR_ITERATIVE: (u32, u32) = (0, 8);
/// The comment of a column that vectors are being moved into.
const SETTLING: &str = "rehang moves vectors into this column";
/// Rows that become items in one transaction.
const ADOPTED_TOGETHER: i64 = 5_000;
/// Rows that get their vectors in one transaction; an application that writes one of them waits until it ends.
const MOVED_TOGETHER: i64 = 500;

/// A gallery that lies in a table of PostgreSQL with pgvector, for any number of threads, processes and machines at once. A clone is
/// another handle on the same gallery.
///
/// The application's table stays as it is, but for three triggers; everything else of ours is in the schema `rehang`: see
/// `docs/postgres.md`.
#[derive(Debug, Clone)]
pub struct PostgresStore(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) database: Database,
    pub(crate) number: i32,
    pub(crate) table: Table,
    /// The name that the space in the application's column has or will have.
    old: Option<String>,
    /// What the triggers' function sees names by.
    pub(crate) search_path: String,
    /// pgvector's type by its full name.
    pub(crate) vector_type: String,
    pub(crate) has_iterative_scan: bool,
}

impl Inner {
    /// What the gallery is, for people.
    pub(crate) fn name(&self) -> String {
        format!("postgresql://{} {}", self.database.name(), self.table.options.table)
    }

    /// The application's column with the vectors of a space.
    pub(crate) fn column_of(&self, space: &str) -> Option<String> {
        self.old.as_deref().filter(|old| *old == space).and(self.table.options.vector.clone())
    }

    /// Keeps others from changing spaces until the transaction ends.
    pub(crate) fn lock(&self, connection: &mut Connection) -> Step<()> {
        connection
            .query("SELECT 1 FROM rehang.gallery WHERE number = $1 FOR UPDATE", &[&self.number])
            .map(drop)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.name()).finish()
    }
}

impl PostgresStore {
    /// Looks at a table, and whether it can be a gallery. Writes nothing.
    ///
    /// # Errors
    ///
    /// Unavailable and unauthorised where the server cannot be reached or refuses; not found and invalid options that say what a
    /// gallery needs and the table lacks.
    pub fn inspect(address: &str, options: &TableOptions) -> Result<Looked> {
        let database = Database::open(address)?;
        expect_server(&database)?;
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
                    "SELECT vector_dims({0}::vector) FROM {1} WHERE {0} IS NOT NULL LIMIT 1",
                    quoted(column),
                    table.qualified
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

    /// Every statement that [`PostgresStore::adopt`] runs before it lists items, for an owner to read, or to run by hand. Writes nothing.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`].
    pub fn statements(address: &str, options: &TableOptions) -> Result<String> {
        let database = Database::open(address)?;
        let facts = expect_server(&database)?;
        database.run(Mode::Read, |connection| {
            let table = Table::inspect(connection, options)?;
            let number = number_of(connection, &table)?.map_or(1, |(number, ..)| number);
            let path = search_path(connection, &table, &facts)?;
            Ok([
                schema::BASE.to_owned(),
                functions(&quoted(&facts.schema), facts.has_iterative_scan()),
                register(&table),
                schema::item_table(number, &table),
                schema::comment(number, &table),
                schema::function(number, &table, &[], &path),
                schema::triggers(number, &table),
            ]
            .join("\n"))
        })
    }

    /// Makes a gallery of a table: the schema `rehang`, its tables, and triggers on the table; then every row becomes an item. The table
    /// may be written and read meanwhile; its writers wait for the moment in which the triggers are made. `advance` is told `(done, total)`
    /// rows, and ends the work where it gives `false`. Where a process died, the next call goes on; where all is done, it changes nothing,
    /// but for a gallery that an earlier version made, whose triggers are made anew.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`]; an invalid option where the role may not do it; a conflict where the table is a gallery by other
    /// options; unavailable where transactions are open for so long that the triggers cannot be made.
    pub fn adopt(
        address: &str,
        options: &TableOptions,
        old: Option<&str>,
        advance: &dyn Fn(u64, u64) -> bool,
    ) -> Result<Self> {
        let database = Database::open(address)?;
        let facts = expect_server(&database)?;
        let (table, number) = database.run(Mode::Write, |connection| {
            // Two that adopt at once come one after the other.
            connection.query("SELECT pg_advisory_xact_lock($1)", &[&ADOPTION])?;
            let table = Table::inspect(connection, options)?;
            if let Some((number, known, _)) = number_of(connection, &table)? {
                expect_options(&known, options)?;
                renew_triggers(connection, number, &table, &facts)?;
                return Ok((table, number));
            }
            connection.batch(schema::BASE)?;
            connection.batch(schema::BY_NAME)?;
            connection.batch(&functions(&quoted(&facts.schema), facts.has_iterative_scan()))?;
            connection.batch(&register(&table))?;
            let (number, ..) = number_of(connection, &table)?
                .ok_or_else(|| Error::corrupt(database.name(), "the gallery that was made is not there"))?;
            let path = search_path(connection, &table, &facts)?;
            connection.batch(&schema::item_table(number, &table))?;
            connection.batch(&schema::comment(number, &table))?;
            connection.batch(&schema::function(number, &table, &[], &path))?;
            // Last, since from here on writers of the table wait.
            connection.batch(&schema::triggers(number, &table))?;
            Ok((table, number))
        })?;
        let store = Self::on(database, table, number, old, &facts)?;
        store.list_items(advance)?;
        Ok(store)
    }

    /// Opens a gallery that was [made](PostgresStore::adopt) of a table. `old` is the name of the space in the application's column.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`]; not found where the table is no gallery yet; a conflict where it is one by other options, or in
    /// another form.
    pub fn open(address: &str, options: &TableOptions, old: Option<&str>) -> Result<Self> {
        let database = Database::open(address)?;
        let facts = expect_server(&database)?;
        let (table, found) = database.run(Mode::Read, |connection| {
            let table = Table::inspect(connection, options)?;
            let found = number_of(connection, &table)?;
            Ok((table, found))
        })?;
        let not_yet =
            || Error::not_found("gallery", &options.table, database.name()).advise(Remedy::AdoptTable);
        let (number, known, is_listed) = found.ok_or_else(not_yet)?;
        expect_options(&known, options)?;
        if !is_listed {
            return Err(Error::wrong_phase(format!("the gallery in {}", options.table), "not whole yet")
                .advise(Remedy::AdoptTable));
        }
        Self::on(database, table, number, old, &facts)
    }

    fn on(database: Database, table: Table, number: i32, old: Option<&str>, facts: &Facts) -> Result<Self> {
        let search_path = database.run(Mode::Read, |connection| search_path(connection, &table, facts))?;
        database.is_about(&table.qualified);
        let has_iterative_scan = facts.has_iterative_scan();
        let vector_type = format!("{}.vector", quoted(&facts.schema));
        let old = old.map(str::to_owned);
        let inner = Inner { database, number, table, old, search_path, vector_type, has_iterative_scan };
        Ok(Self(Arc::new(inner)))
    }

    /// Makes an item of every row that is there.
    fn list_items(&self, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        let Inner { database, number: g, table, .. } = &*self.0;
        let is_listed = |connection: &mut Connection| -> Step<bool> {
            Ok(connection
                .query_one("SELECT listed FROM rehang.gallery WHERE number = $1", &[g])?
                .try_get(0)?)
        };
        if database.run(Mode::Read, is_listed)? {
            return Ok(());
        }
        spaces::wait_for_writers(&self.0)?;
        let key = table.key_of("t");
        // Of its own form for the first page, so that every other one is read from the index of the key.
        let page_after = |after: &str| {
            format!(
            "WITH page AS (SELECT {id} AS id, {names}, {source} IS NOT NULL AS sourced, {item} AS is_item FROM (
                     SELECT * FROM {on} AS t WHERE {after} ORDER BY {key} LIMIT {ADOPTED_TOGETHER}) AS t),
                 listed AS (INSERT INTO rehang.item_{g} (id, {keys}, revision, sourced)
                     SELECT id, {keys}, nextval('rehang.revision'), sourced FROM page WHERE is_item ON CONFLICT DO NOTHING),
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
                    let row =
                        connection.query_one(if after.is_none() { &first } else { &next }, &[&after])?;
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
                return Err(rehang::ErrorKind::Cancelled.into());
            }
        }
        // A row that was deleted, or ceased to be an item, while its page was read may have left one behind.
        spaces::wait_for_writers(&self.0)?;
        self.remove_rowless_items()?;
        database.run(Mode::Write, |connection| {
            connection.batch(&format!(
                "UPDATE rehang.gallery SET listed = true WHERE number = {g}; ANALYZE rehang.item_{g};"
            ))
        })
    }

    /// Removes the items that have no row. An application's open transaction may be about to write the row of one: such an item is passed
    /// over until that transaction has ended. The rows are looked at once more when the items are locked: a statement that has waited
    /// for a lock still sees the rows of before.
    fn remove_rowless_items(&self) -> Result<()> {
        let Inner { database, number: g, table, .. } = &*self.0;
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
        spaces::until_writers_end(&self.0, || {
            database.run(Mode::Write, |connection| {
                connection.batch(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", table.qualified))?;
                let rows = connection.query(&lock, &[])?;
                let keys =
                    rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<i64>, _>>()?;
                connection.execute(&remove, &[&keys])?;
                Ok(())
            })?;
            let left = database.run(Mode::Read, |connection| {
                Ok(connection.query_one(&left, &[])?.try_get::<_, bool>(0)?)
            })?;
            Ok(!left)
        })
    }

    /// Copies the vectors of the space that serves into a column of the application's table, which is made if it is not there, and makes
    /// its search index: so that [`PostgresStore::release`] leaves them there. The table may be written and read meanwhile; an update of
    /// its rows costs what an update of the application's costs. `advance` as in [`PostgresStore::adopt`]. A second call goes on.
    ///
    /// # Errors
    ///
    /// A conflict where the space that serves is a column of the table already, or adapted vectors are in it; an invalid option where
    /// the column is there with another type, or with vectors of the application's; as [`PostgresStore::adopt`].
    pub fn settle(&self, column: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        let inner = &*self.0;
        let space = self.served_beside()?;
        if inner.table.options.vector.as_deref() == Some(column) {
            // A write of that column is a change of content.
            let expected = "a column of its own, which may take the other one's name when all is done";
            return Err(Error::option("column", column, expected));
        }
        let counts = vectors::counts(inner, &space.record.space.name)?;
        if counts.adapted > 0 {
            let what = format!("moving the vectors of {:?} into the table", space.record.space.name);
            let why = format!(
                "{} of them are adapted, and nothing in the table would say so; embed them first",
                counts.adapted
            );
            return Err(Error::conflict(what, why));
        }
        let (n, g, on) = (space.number, inner.number, &inner.table.qualified);
        let kind = schema::column_type(space.record.space.dimension);
        let name = quoted(column);
        inner.database.run(Mode::Write, |connection| {
            let there = connection.query_opt(
                "SELECT format_type(atttypid, atttypmod), col_description(attrelid, attnum) FROM pg_attribute
                 WHERE attrelid = $1 AND attname = $2 AND NOT attisdropped",
                &[&inner.table.oid, &column],
            )?;
            let ours = literal(SETTLING);
            let Some(there) = there else {
                return connection.batch(&format!(
                    "ALTER TABLE {on} ADD COLUMN {name} {kind}; COMMENT ON COLUMN {on}.{name} IS {ours}"
                ));
            };
            let refuse = |why: String| Error::option("column", column, format!("a new column, {why}")).into();
            let (there, said): (String, Option<String>) = (there.try_get(0)?, there.try_get(1)?);
            if there.rsplit('.').next() != Some(kind.as_str()) {
                return Err(refuse(format!("or one of type {kind}, not {there}")));
            }
            if said.as_deref() == Some(SETTLING) {
                return Ok(());
            }
            let is_used = format!("SELECT EXISTS (SELECT 1 FROM {on} WHERE {name} IS NOT NULL)");
            if connection.query_one(&is_used, &[])?.try_get::<_, bool>(0)? {
                return Err(refuse("or one without a vector: what is in this one would be lost".into()));
            }
            connection.batch(&format!("COMMENT ON COLUMN {on}.{name} IS {ours}"))
        })?;
        let page = format!(
            "WITH page AS (SELECT item FROM rehang.vector_{n} WHERE item > $1 ORDER BY item LIMIT {MOVED_TOGETHER}),
                 moved AS (UPDATE {on} AS t SET {name} = v.value FROM page JOIN rehang.vector_{n} AS v ON v.item = page.item
                     JOIN rehang.item_{g} AS i ON i.key = page.item WHERE {is_of} AND t.{name} IS DISTINCT FROM v.value)
             SELECT max(item), count(*) FROM page",
            is_of = inner.table.is_of("i", "t")
        );
        let (mut after, mut done) = (-1_i64, 0);
        loop {
            let (last, moved) = inner.database.run(Mode::Write, |connection| {
                // As where rows become items: the page gives up before an application that waits for it is ended, and is made again.
                connection.batch("SET LOCAL lock_timeout = '50ms'")?;
                let row = connection.query_one(&page, &[&after])?;
                Ok((row.try_get::<_, Option<i64>>(0)?, row.try_get::<_, i64>(1)?))
            })?;
            let Some(last) = last else { break };
            after = last;
            done += moved.max(0) as u64;
            if !advance(done, counts.native.max(done)) {
                return Err(rehang::ErrorKind::Cancelled.into());
            }
        }
        if schema::can_be_indexed(space.record.space.dimension) {
            search::index_column(inner, column, &space.record.space)?;
        }
        Ok(())
    }

    /// The space that serves, whose vectors are in a table of ours.
    fn served_beside(&self) -> Result<schema::SpaceRow> {
        let inner = &*self.0;
        inner.database.run(Mode::Read, |connection| {
            let serving: Option<String> = connection
                .query_one("SELECT serving FROM rehang.gallery WHERE number = $1", &[&inner.number])?
                .try_get(0)?;
            let space = spaces::find(connection, inner, &serving.unwrap_or_default())?;
            match &space.in_column {
                None => Ok(space),
                Some(column) => Err(Error::conflict(
                    format!("space {:?}, which serves", space.record.space.name),
                    format!("its vectors are column {column:?} of the table already"),
                )
                .into()),
            }
        })
    }

    /// Takes everything of ours out of the database again. The application's table is left as it was found, but for a column that the
    /// vectors were [moved](PostgresStore::settle) into: what has changed since comes after them, while applications that use the table wait.
    ///
    /// # Errors
    ///
    /// Unavailable where transactions keep the table for too long; an invalid option where the role may not do it; not found where the
    /// column is not there; a conflict where something of the application's, as a view, depends on what is ours.
    pub fn release(self, settled: Option<&str>) -> Result<()> {
        let inner = &*self.0;
        let (g, on) = (inner.number, &inner.table.qualified);
        let last = settled
            .map(|column| Ok::<_, Error>((quoted(column), self.served_beside()?.number)))
            .transpose()?;
        inner.database.run(Mode::Write, |connection| {
            inner.lock(connection)?;
            // At once the lock that the end of the triggers takes: one that grew would be in a deadlock with a transaction that has read the
            // table and then writes it. Where others are at our tables, this gives up before the server ends one of them.
            // Searches and workers read the items, so a release that has to wait for them finds out before it compares all vectors.
            connection.batch(&format!(
                "LOCK TABLE {on} IN ACCESS EXCLUSIVE MODE; SET LOCAL lock_timeout = '500ms';
                 LOCK TABLE rehang.item_{g} IN ACCESS EXCLUSIVE MODE"
            ))?;
            if let Some((column, n)) = &last {
                connection.batch(&format!(
                    "UPDATE {on} AS t SET {column} = v.value FROM rehang.item_{g} AS i LEFT JOIN rehang.vector_{n} AS v ON v.item = i.key
                     WHERE {} AND t.{column} IS DISTINCT FROM v.value",
                    inner.table.is_of("i", "t")
                ))?;
                connection.batch(&format!("COMMENT ON COLUMN {on}.{column} IS NULL"))?;
            }
            let spaces = spaces::all(connection, g)?;
            let tables: String = spaces.iter().map(|space| schema::drop_space_tables(space.number)).collect();
            connection.batch(&format!(
                "{}{} {tables} DROP FUNCTION rehang.changed_{g}(); DROP TABLE rehang.item_{g}; DELETE FROM rehang.gallery WHERE number = {g};",
                schema::drop_triggers(g, on),
                serving::drop_view(g)
            ))?;
            if connection.count("SELECT count(*) FROM rehang.gallery", &[])? > 0 {
                return Ok(());
            }
            let left: String = spaces::left(connection)?.into_iter().map(schema::drop_space_tables).collect();
            connection.batch(&(left + schema::DROP_BASE))
        })
    }

    /// The application's table.
    pub fn table(&self) -> &TableOptions {
        &self.0.table.options
    }

    /// A lock of this gallery that one process has at a time, until it is dropped or its connection ends.
    ///
    /// # Errors
    ///
    /// A conflict where another process has it.
    pub fn hold(&self) -> Result<Held> {
        let mut session = self.0.database.session()?;
        let taken = session
            .query_one("SELECT pg_try_advisory_lock($1, $2)", &[&HOLD, &self.0.number])
            .and_then(|row| Ok(row.try_get::<_, bool>(0)?))
            .map_err(|failure| self.0.database.failed(failure))?;
        if !taken {
            let what = format!("another process is at work on the upgrade of {}", self.0.name());
            return Err(Error::conflict(what, "two would do the same work").advise(Remedy::AwaitOtherProcess));
        }
        Ok(Held(Mutex::new(session)))
    }
}

/// A lock that is held; see [`PostgresStore::hold`]. It lasts as long as its connection.
pub struct Held(#[allow(dead_code, reason = "it is kept, and nothing else")] Mutex<Connection>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// Advisory locks: of making galleries, and of an upgrade's work.
const ADOPTION: i64 = 0x7265_6861_6e67;
const HOLD: i32 = 0x7265_6802;

/// What a server is.
struct Facts {
    pgvector: (u32, u32),
    /// The schema that pgvector is in.
    schema: String,
}

impl Facts {
    fn has_iterative_scan(&self) -> bool {
        self.pgvector >= PGVECTOR_ITERATIVE
    }
}

fn expect_server(database: &Database) -> Result<Facts> {
    database.run(Mode::Read, |connection| {
        let row = connection.query_one(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
                 (SELECT extversion || ' ' || extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector')",
            &[],
        )?;
        let (number, version): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        if number < SERVER_MIN {
            return Err(Error::option("the server", version, "PostgreSQL 14 or later").into());
        }
        let Some(found) = row.try_get::<_, Option<String>>(2)? else {
            let why = "a database with pgvector: its owner runs CREATE EXTENSION vector";
            return Err(Error::option("the database", database.name(), why).into());
        };
        let (version, schema) = found.split_once(' ').unwrap_or((&found, "public"));
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        let pgvector = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if pgvector < PGVECTOR_MIN {
            return Err(Error::option("pgvector", version, "0.7 or later").into());
        }
        Ok(Facts { pgvector, schema: schema.trim_matches('"').to_owned() })
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
    if format != FORMAT {
        let what = format!("the gallery in {}", table.options.table);
        let why = format!(
            "it is of format {format}, and this rehang knows format {FORMAT}; use the rehang that made it"
        );
        return Err(Error::conflict(what, why).into());
    }
    Ok(Some((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
}

/// Brings a gallery that an earlier version made to the present form: a dump of it would keep neither which table it is of nor the
/// trigger of its updates.
fn renew_triggers(connection: &mut Connection, number: i32, table: &Table, facts: &Facts) -> Step<()> {
    connection.batch("SET LOCAL lock_timeout = '500ms'")?;
    connection.batch(schema::BY_NAME)?;
    let is_earlier: bool =
        connection.query_one(&schema::has_earlier_triggers(number), &[&table.oid])?.try_get(0)?;
    if !is_earlier {
        return Ok(());
    }
    // Spaces neither come nor go from here on.
    let spaces = spaces::all(connection, number)?;
    let path = search_path(connection, table, facts)?;
    connection.batch(&schema::drop_triggers(number, &table.qualified))?;
    connection.batch(&schema::function(number, table, &spaces, &path))?;
    connection.batch(&schema::triggers(number, table))
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

/// Names as the triggers' function sees them: only what must be there, unless an expression of the owner's may name more.
fn search_path(connection: &mut Connection, table: &Table, facts: &Facts) -> Step<String> {
    let mut path = vec!["pg_catalog".to_owned(), quoted(&facts.schema)];
    if table.options.condition.is_some() || (table.options.source.is_some() && !table.is_source_column) {
        let row = connection.query_one("SELECT current_schemas(false)::text[]", &[])?;
        for schema in row.try_get::<_, Vec<String>>(0)? {
            let schema = quoted(&schema);
            if !path.contains(&schema) {
                path.push(schema);
            }
        }
    }
    path.push("pg_temp".to_owned());
    Ok(path.join(", "))
}

/// Passes methods of a contract on to the functions that do their work, which take the gallery first.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty => $work:path;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Result<$out> {
            $work(&self.0, $($argument),*)
        })*
    };
}

impl Ledger for PostgresStore {
    passed_on! {
        spaces() -> Vec<SpaceRecord> => spaces::records;
        create_space(space: &Space, written_as: Provenance) -> () => spaces::create;
        drop_space(space: &str) -> () => spaces::drop_space;
        serving_and_document(document: &str) -> (Option<String>, Option<Document>) => spaces::serving_and_document;
        switch_serving(from: &str, to: &str) -> () => spaces::switch_serving;
        put(writes: &[ItemWrite]) -> Vec<Revision> => items::put;
        delete(ids: &[&str]) -> usize => items::delete;
        get(ids: &[&str]) -> Vec<Option<Item>> => items::get;
        vectors(space: &str, keys: &[ItemKey]) -> Vec<Option<VectorRecord>> => vectors::get;
        provenances(space: &str, keys: &[ItemKey]) -> Vec<Option<Provenance>> => vectors::provenances;
        write_vectors(space: &str, epoch: Option<Epoch>, writes: &[VectorWrite]) -> Vec<WriteOutcome> => vectors::write;
        set_priorities(space: &str, epoch: Epoch, priorities: &[(ItemKey, Revision, Priority)]) -> usize
            => vectors::set_priorities;
        forget_natives(space: &str, epoch: Epoch, limit: usize) -> usize => vectors::forget_natives;
        advance(space: &str, from: Epoch, document: &str, expected: Option<u64>, text: &str) -> u64 => spaces::advance;
        scan(scan: &Scan) -> Vec<Record> => pages::scan;
        sample(sample: &Sample) -> Drawn => pages::sample;
        newest_revision() -> Revision => items::newest_revision;
        counts(space: &str) -> Counts => vectors::counts;
        count_without_source() -> u64 => items::count_without_source;
        count_lag(space: &str, behind: &str) -> u64 => vectors::count_lag;
        claim(space: &str, queue: Queue, worker: &str, limit: usize, lease: Duration) -> Claimed => pages::claim;
        renew(space: &str, worker: &str, lease: Duration) -> u64 => pages::renew;
        release(space: &str, worker: &str, keys: Option<&[ItemKey]>) -> u64 => pages::release;
        at_work(space: &str) -> Vec<AtWork> => pages::at_work;
        record_failures(space: &str, failures: &[(ItemKey, Revision, String)]) -> () => vectors::record_failures;
        failures(space: &str, after: Option<ItemKey>, limit: usize) -> Vec<Failure> => vectors::failures;
        clear_failures(space: &str) -> u64 => vectors::clear_failures;
        errors(space: &str, limit: usize) -> Vec<(f32, f32)> => vectors::errors;
        set_document(name: &str, expected: Option<u64>, text: &str) -> u64 => spaces::set_document;
    }

    fn name(&self) -> String {
        self.0.name()
    }

    /// One process of the server is at work for each connection, and the application wants some of them.
    fn writers(&self) -> usize {
        2
    }
}

impl Index for PostgresStore {
    passed_on! {
        search(space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Vec<Vec<Found>> => search::search;
        recall(space: &str, samples: usize, k: usize) -> f64 => search::recall;
        is_ready(space: &str) -> bool => search::is_ready;
        prepare(space: &str, advance: &dyn Fn(u64, u64) -> bool) -> () => search::prepare;
        rebuild(space: &str) -> () => search::rebuild;
    }

    fn flush(&self) -> Result<()> {
        // What the server has committed lasts.
        Ok(())
    }
}

impl Examined for PostgresStore {
    fn check(&self) -> Result<Vec<Problem>> {
        doctor::check(&self.0)
    }

    fn index_health(&self, space: &str) -> Result<IndexHealth> {
        search::health(&self.0, space)
    }

    fn has_dropped_rows(&self) -> Result<bool> {
        Ok(!self.0.database.run(Mode::Read, spaces::left)?.is_empty())
    }

    /// The server may use the room of dead rows of our tables again.
    fn compact(&self) -> Result<(u64, u64)> {
        doctor::compact(&self.0)
    }
}
