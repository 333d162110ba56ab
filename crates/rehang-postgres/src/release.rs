//! The end of a gallery: the vectors that serve move into the application's table, and everything of ours is taken out.

use postgres::Row;
use rehang::{Error, ErrorKind, Remedy, Result};

use crate::adoption::{expect_format, has_galleries};
use crate::connection::{Database, Mode, Step};
use crate::guard::{self, EQUALS, Whose};
use crate::handle::Handle;
use crate::schema;
use crate::table::{literal, quoted};
use crate::{search, serving, spaces, vectors};

/// The comment of a column that vectors are being moved into.
const SETTLING: &str = "rehang moves vectors into this column";
/// Rows that get their vectors in one transaction; an application that writes one of them waits until it ends.
const MOVED_TOGETHER: i64 = 500;

pub(crate) fn settle(handle: &Handle, column: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    let space = served_beside(handle)?;
    if handle.table.options.vector.as_deref() == Some(column) {
        // A write of that column is a change of content.
        let expected = "a column of its own, which may take the other one's name when all is done";
        return Err(Error::option("column", column, expected));
    }
    let counts = vectors::counts(handle, &space.record.space.name)?;
    if counts.adapted > 0 {
        let what = format!("moving the vectors of {:?} into the table", space.record.space.name);
        let why = format!(
            "{} of them are adapted, and nothing in the table would say so; embed them first",
            counts.adapted
        );
        return Err(Error::conflict(what, why));
    }
    let (n, g, on) = (space.number, handle.number, &handle.table.qualified);
    let kind = schema::column_type(space.record.space.dimension);
    let name = quoted(column);
    handle.database.run(Mode::Write, |connection| {
        let there = connection.query_opt(
            "SELECT format_type(atttypid, atttypmod), col_description(attrelid, attnum) FROM pg_attribute
             WHERE attrelid = $1 AND attname = $2 AND NOT attisdropped",
            &[&handle.table.oid, &column],
        )?;
        let ours = literal(SETTLING);
        let Some(there) = there else {
            return connection.batch(&format!(
                "ALTER TABLE {on} ADD COLUMN {name} {}; COMMENT ON COLUMN {on}.{name} IS {ours}",
                handle.pgvector.named(&kind)
            ));
        };
        let refuse = |why: String| Error::option("column", column, format!("a new column, {why}")).into();
        let (there, said): (String, Option<String>) = (there.try_get(0)?, there.try_get(1)?);
        let there = there.rsplit('.').next().unwrap_or(&there);
        if there != kind {
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
             moved AS (UPDATE {on} AS t SET {name} = v.value FROM page JOIN rehang.vector_{n} AS v ON v.item {EQUALS} page.item
                 JOIN rehang.item_{g} AS i ON i.key {EQUALS} page.item WHERE {is_of} AND pg_catalog.record_image_ne(ROW(t.{name}), ROW(v.value)))
         SELECT max(item), count(*) FROM page",
        is_of = handle.table.is_of("i", "t")
    );
    let (mut after, mut done) = (-1_i64, 0);
    loop {
        let (last, moved) = handle.database.run(Mode::Write, |connection| {
            // As where rows become items: the page gives up before an application that waits for it is ended, and is made again.
            connection.batch("SET LOCAL lock_timeout = '50ms'")?;
            guard::see_as_application(connection)?;
            let row = connection.query_one(&page, &[&after])?;
            Ok((row.try_get::<_, Option<i64>>(0)?, row.try_get::<_, i64>(1)?))
        })?;
        let Some(last) = last else { break };
        after = last;
        done += moved.max(0) as u64;
        if !advance(done, counts.native.max(done)) {
            return Err(ErrorKind::Cancelled.into());
        }
    }
    if schema::can_be_indexed(space.record.space.dimension) {
        search::index_column(handle, column, &space.record.space)?;
    }
    Ok(())
}

/// The space that serves, whose vectors are in a table of ours.
fn served_beside(handle: &Handle) -> Result<schema::SpaceRow> {
    handle.database.run(Mode::Read, |connection| {
        let serving: Option<String> = connection
            .query_one("SELECT serving FROM rehang.gallery WHERE number = $1", &[&handle.number])?
            .try_get(0)?;
        let space = spaces::find(connection, handle, &serving.unwrap_or_default())?;
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

pub(crate) fn release(handle: &Handle, settled: Option<&str>) -> Result<()> {
    let last =
        settled.map(|column| Ok::<_, Error>((quoted(column), served_beside(handle)?.number))).transpose()?;
    let move_last = last.map(|(column, n)| {
        let on = &handle.table.qualified;
        format!(
            "UPDATE {on} AS t SET {column} = v.value FROM rehang.item_{} AS i LEFT JOIN rehang.vector_{n} AS v ON v.item {EQUALS} i.key
             WHERE {} AND pg_catalog.record_image_ne(ROW(t.{column}), ROW(v.value));
             COMMENT ON COLUMN {on}.{column} IS NULL",
            handle.number,
            handle.table.is_of("i", "t")
        )
    });
    remove(&handle.database, handle.number, move_last.as_deref())
}

/// Takes a gallery out by what our own tables say of it: its table may be called otherwise by now, have other columns or rules, or be gone.
pub(crate) fn take_out(address: &str, table: &str) -> Result<()> {
    let database = Database::open(address)?;
    let found = database.run(Mode::Read, |connection| {
        let oid = guard::seen_by_application(connection, table)?;
        guard::expect_ours_beside(connection, oid, Whose::Trusted)?;
        if !has_galleries(connection)? {
            return Ok(Vec::new());
        }
        // The table of that name comes first; else the one that had it when it was made a gallery.
        let sql = "SELECT number, format, relation = $2 FROM rehang.gallery WHERE relation = $2 OR name = $1
             ORDER BY relation = $2 DESC NULLS LAST, number";
        let rows = connection.query(sql, &[&table, &oid])?;
        let read = |row: &Row| -> Step<(i32, i32, bool)> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get::<_, Option<bool>>(2)?.unwrap_or(false)))
        };
        rows.iter().map(read).collect()
    })?;
    let number = match found[..] {
        [] => {
            return Err(Error::not_found("gallery", table, database.name()).advise(Remedy::AdoptTable));
        }
        [(number, format, _)] | [(number, format, true), ..] => {
            expect_format(table, format)?;
            number
        }
        _ => {
            let why =
                "several tables had that name when they were made galleries; name one as it is called now";
            return Err(Error::conflict(format!("the gallery in {table}"), why));
        }
    };
    remove(&database, number, None)
}

/// Removes everything of a gallery in one transaction, which begins with a statement that moves what is left to move.
fn remove(database: &Database, g: i32, move_last: Option<&str>) -> Result<()> {
    database.run(Mode::Write, |connection| {
        // Keeps others from changing spaces.
        let sql = "SELECT (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE c.oid = g.relation) FROM rehang.gallery AS g WHERE g.number = $1 FOR UPDATE";
        let Some(row) = connection.query_opt(sql, &[&g])? else { return Ok(()) };
        // At once the lock that the end of the triggers takes: one that grew would be in a deadlock with a transaction that has read the
        // table and then writes it. Where others are at our tables, this gives up before the server ends one of them.
        // Searches and workers read the items, so a release that has to wait for them finds out before it compares all vectors.
        let mut triggers = String::new();
        if let Some(on) = row.try_get::<_, Option<String>>(0)? {
            connection.batch(&format!("LOCK TABLE {on} IN ACCESS EXCLUSIVE MODE"))?;
            triggers = schema::drop_triggers(g, &on);
        }
        connection.batch(&format!(
            "SET LOCAL lock_timeout = '500ms'; LOCK TABLE rehang.item_{g} IN ACCESS EXCLUSIVE MODE"
        ))?;
        if let Some(sql) = move_last {
            guard::see_as_application(connection)?;
            connection.batch(sql)?;
            guard::see_as_ours(connection)?;
        }
        let spaces = spaces::all(connection, g)?;
        let tables: String = spaces.iter().map(|space| schema::drop_space_tables(space.number)).collect();
        connection.batch(&format!(
            "{triggers}{} {tables} DROP FUNCTION rehang.changed_{g}(); DROP TABLE rehang.item_{g}; DELETE FROM rehang.gallery WHERE number = {g};",
            serving::drop_view(g)
        ))?;
        if connection.count("SELECT count(*) FROM rehang.gallery", &[])? > 0 {
            return Ok(());
        }
        let left: String = spaces::left(connection)?.into_iter().map(schema::drop_space_tables).collect();
        connection.batch(&(left + schema::DROP_BASE))
    })
}
