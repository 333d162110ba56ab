//! Release of a gallery: the vectors that serve move into the application's table, and everything of
//! the gallery is taken out.

use rehang_core::{Error, ErrorKind, Remedy, Result};
use rehang_store::Released;
use tokio_postgres::Row;

use crate::adoption::{expect_format, has_galleries};
use crate::connection::{Connection, Database, Mode, Step};
use crate::dependents;
use crate::guard::{self, EQUALS, Whose};
use crate::handle::Handle;
use crate::ignored::{Event, expect_no_rules, held_back, remark};
use crate::locks::{lock_in_turn, without_vacuum};
use crate::schema::{self, ColumnOfVectors};
use crate::table::{TableOptions, literal, quoted};
use crate::{reading, row_security, search, serving, spaces};

/// First words of the comment of a column that vectors are being moved into. Alone, they say that the
/// column was there before.
const SETTLING: &str = "rehang moves vectors into this column";
/// Comment of a column that vectors are being moved into and that rehang made.
const MADE: &str = "rehang moves vectors into this column, which it made";
/// Rows that get their vectors in one transaction; an application that writes one of
/// them waits until it ends.
const MOVED_TOGETHER: i64 = 500;
/// Number of changes below which the rest is moved while everybody waits.
const LAST_MOVES: u64 = 50;
/// How often changes are caught up with before everybody waits.
const CATCH_UPS: usize = 10_000;

/// Bytes of a name that the server keeps.
const NAME_MAX: usize = 63;
/// End of the name of the table that says which rows have adapted vectors after a release.
const ADAPTED: &str = "_adapted";

/// Moves the vectors that serve into a column, where they stay when the gallery is released.
pub(crate) fn settle(
    handle: &Handle,
    column: &str,
    with_adapted: bool,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<Released> {
    let space = served_beside(handle)?;
    if handle.table.options.vector.as_deref() == Some(column) {
        // A write of the column of old vectors would be a change of content.
        let expected = "a column of its own, which may take the other one's name when all is done";
        return Err(Error::option("column", column, expected));
    }
    let n = space.number;
    let standing = Standing::read(handle, n)?;
    if !with_adapted {
        standing.expect_none_adapted(&space.record.space.name)?;
    }
    let into = column_for(handle, column, &space)?;
    let moves = Moves::new(handle, n, &into, with_adapted);
    handle.database.run(Mode::Write, |connection| begin_move(connection, handle, &into, &moves))?;
    moves.move_all(handle, standing.items, advance)?;
    if into.can_be_indexed() {
        search::index_column(handle, &into, &space)?;
    }
    moves.catch_up(handle)?;
    let adapted_in = if with_adapted {
        Some(handle.database.run(Mode::Read, |connection| moves.adapted_table(connection))?)
    } else {
        None
    };
    Ok(Standing::read(handle, n)?.released(with_adapted, adapted_in))
}

/// Makes the column that vectors move into, or takes the one that is there, and begins to note what changes.
fn begin_move(
    connection: &mut Connection,
    handle: &Handle,
    into: &ColumnOfVectors,
    moves: &Moves,
) -> Step<()> {
    if moves.with_adapted {
        moves.expect_no_table(connection)?;
    }
    expect_no_rules(connection, &moves.on, "moving the vectors that serve into the table")?;
    without_vacuum(connection, &[moves.on.clone(), format!("rehang.vector_{}", moves.n)])?;
    let row = connection.query_opt(
        "SELECT format_type(atttypid, atttypmod), col_description(attrelid, attnum) FROM pg_attribute
             WHERE attrelid = $1 AND attname = $2 AND NOT attisdropped",
        &[&moves.oid, &moves.column],
    )?;
    match row {
        None => add_column(connection, handle, into)?,
        Some(row) => take_column(connection, moves, &into.kind(), (row.try_get(0)?, row.try_get(1)?))?,
    }
    moves.expect_log(connection)
}

/// Adds a column to the application's table, with what the old one has.
fn add_column(connection: &mut Connection, handle: &Handle, into: &ColumnOfVectors) -> Step<()> {
    let Handle { table, pgvector, .. } = handle;
    let (on, name, kind) = (&table.qualified, quoted(&into.name), pgvector.named(&into.kind()));
    if let Some(root) = &table.root {
        let why = format!(
            "one that is there, since {} is a partition and its columns are those of the whole: ALTER TABLE {root} ADD COLUMN {name} {kind}",
            table.options.table
        );
        return Err(Error::option("column", &into.name, why).into());
    }
    let carried_over = dependents::carried_over(connection, table, into)?;
    connection.batch(&format!(
        "ALTER TABLE {on} ADD COLUMN {name} {kind}; COMMENT ON COLUMN {on}.{name} IS {}; {carried_over}",
        literal(MADE)
    ))
}

/// Takes a column that is there, by its type and its comment. It has to be of the type that is `wanted`, and
/// without vectors of the application's.
fn take_column(
    connection: &mut Connection,
    moves: &Moves,
    wanted: &str,
    (kind, comment): (String, Option<String>),
) -> Step<()> {
    let (on, column, name) = (&moves.on, &moves.column, quoted(&moves.column));
    let refuse = |why: String| -> Step<()> {
        Err(Error::option("column", column, format!("a new column, {why}")).into())
    };
    let kind = kind.rsplit('.').next().unwrap_or(&kind);
    if kind != wanted {
        return refuse(format!("or one of type {wanted}, not {kind}"));
    }
    let is_this_column = |(settling, _): &(String, String)| settling == column;
    if comment.is_some() && settling(connection, moves.g, on)?.iter().any(is_this_column) {
        return Ok(());
    }
    let is_used = format!("SELECT EXISTS (SELECT 1 FROM {on} WHERE {name} IS NOT NULL)");
    if connection.query_one(&is_used, &[])?.try_get::<_, bool>(0)? {
        return refuse("or one without a vector: what is in this one would be lost".into());
    }
    connection.batch(&format!("COMMENT ON COLUMN {on}.{name} IS {}", literal(SETTLING)))
}

/// Counts of the items of the space that serves, by what a release makes of them.
#[derive(Default)]
struct Standing {
    items: u64,
    /// Adapted items that have a source.
    adapted: u64,
    adapted_without_source: u64,
    /// Items that have a source and lack a vector.
    lacking: u64,
    lacking_without_source: u64,
}

impl Standing {
    fn read(handle: &Handle, n: i32) -> Result<Self> {
        handle.database.run(Mode::Read, |connection| {
            let mut standing = Self::default();
            let sql = format!("SELECT provenance, sourced, count(*) FROM rehang.state_{n} GROUP BY 1, 2");
            for row in connection.query(&sql, &[])? {
                let (provenance, sourced): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
                let count = row.try_get::<_, i64>(2)?.max(0) as u64;
                standing.items += count;
                match (provenance.as_str(), sourced) {
                    ("adapted", true) => standing.adapted += count,
                    ("adapted", false) => standing.adapted_without_source += count,
                    ("lacking", true) => standing.lacking += count,
                    ("lacking", false) => standing.lacking_without_source += count,
                    _ => {}
                }
            }
            Ok(standing)
        })
    }

    /// Fails where an item of a space is adapted and could be embedded.
    fn expect_none_adapted(&self, space: &str) -> Result<()> {
        if self.adapted == 0 {
            return Ok(());
        }
        let what = format!("moving the vectors of {space:?} into the table");
        let why = format!(
            "{} items with a source are adapted, and nothing in the table would say so",
            self.adapted
        );
        Err(Error::conflict(what, why).advise(Remedy::EmbedOrTakeAlong))
    }

    fn released(&self, with_adapted: bool, adapted_in: Option<String>) -> Released {
        let adapted = self.adapted + self.adapted_without_source;
        let lacking = self.lacking + self.lacking_without_source;
        let taken = if with_adapted { adapted } else { 0 };
        let without_source =
            self.lacking_without_source + if with_adapted { 0 } else { self.adapted_without_source };
        let vectors = self.items - lacking - (adapted - taken);
        Released {
            vectors,
            adapted: taken,
            without_source,
            waiting: self.items - vectors - without_source,
            adapted_in,
            empty: None,
        }
    }
}

/// Chooses the column that the vectors of a space move into. It is one that is there and takes them, of
/// `vector` or `halfvec`; otherwise one is to be made, of the old column's type.
fn column_for(handle: &Handle, column: &str, space: &schema::SpaceRow) -> Result<ColumnOfVectors> {
    let dimension = space.record.space.dimension;
    let new_column = ColumnOfVectors::beside(handle.table.is_halfvec, column, dimension);
    let column_kind = handle.database.run(Mode::Read, |connection| {
        let row = connection.query_opt(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1 AND attname = $2 AND NOT attisdropped",
            &[&handle.table.oid, &column],
        )?;
        Ok(row.map(|row| row.try_get::<_, String>(0)).transpose()?)
    })?;
    let column_kind = column_kind.as_deref().and_then(|kind| kind.rsplit('.').next());
    let other = ColumnOfVectors { is_halfvec: !new_column.is_halfvec, ..new_column.clone() };
    Ok(if column_kind == Some(&other.kind()) { other } else { new_column })
}

/// Move of a space's vectors into a column, with notes of what has changed of either since it began.
///
/// **Invariant**: triggers note each change of a vector in the gallery's table, and of the column, in the
/// transaction that makes it. They do so from before the first vector is moved until the gallery is released.
/// So a note that is there has its change there, and where no note is left the column holds what serves.
struct Moves {
    g: i32,
    n: i32,
    on: String,
    column: String,
    /// Whether adapted vectors are moved too; otherwise their rows get none.
    with_adapted: bool,
    oid: u32,
    /// The columns of an item's key under the names that they have in the application's table.
    key: String,
    /// The type of the column, by its full name.
    kind: String,
    is_of: String,
    /// The number of the column of old vectors.
    old: Option<i16>,
    /// The statements that make the table and the triggers of the notes.
    make: String,
}

impl Moves {
    fn new(handle: &Handle, n: i32, column: &ColumnOfVectors, with_adapted: bool) -> Self {
        let columns = handle.table.key.iter().zip(1..);
        let key: Vec<String> =
            columns.map(|(column, at)| format!("i.k{at} AS {}", quoted(&column.name))).collect();
        Self {
            with_adapted,
            oid: handle.table.oid,
            key: key.join(", "),
            g: handle.number,
            n,
            on: handle.table.qualified.clone(),
            column: column.name.clone(),
            kind: handle.pgvector.named(&column.kind()),
            is_of: handle.table.is_of("i", "t"),
            old: handle.table.options.vector.as_ref().and_then(|old| handle.table.numbers.get(old)).copied(),
            make: schema::moves(handle.number, n, &handle.table, &column.name),
        }
    }

    /// Returns the comment of the notes' table, which says which move they belong to.
    fn what(&self) -> String {
        format!(
            "rehang: what has changed since the vectors of space {}{} began to move into column {}",
            self.n,
            if self.with_adapted { ", adapted ones too," } else { "" },
            self.column
        )
    }

    /// Returns the join of the vectors that are moved, as `v`, to the items `i`. A row whose vector is
    /// adapted gets none, unless adapted ones are moved too.
    fn vectors(&self) -> String {
        let Self { n, .. } = self;
        let but = if self.with_adapted {
            String::new()
        } else {
            format!(
                " AND NOT EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item {EQUALS} i.key AND s.provenance {EQUALS} 'adapted')"
            )
        };
        format!("LEFT JOIN rehang.vector_{n} AS v ON v.item {EQUALS} i.key{but}")
    }

    /// Returns the name of the table beside the application's that says which rows have
    /// adapted vectors, as SQL.
    fn adapted_table(&self, connection: &mut Connection) -> Step<String> {
        let row = connection.query_one(
            "SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = $1",
            &[&self.oid],
        )?;
        let (schema, mut name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        name.truncate(name.floor_char_boundary(NAME_MAX - ADAPTED.len()));
        let sql = "SELECT format('%I.%I', $1::text, $2::text)";
        Ok(connection.query_one(sql, &[&schema, &(name + ADAPTED)])?.try_get(0)?)
    }

    /// Fails where something of the application's has the name of the table of adapted rows.
    fn expect_no_table(&self, connection: &mut Connection) -> Step<()> {
        let name = self.adapted_table(connection)?;
        if connection.query_one("SELECT to_regclass($1) IS NULL", &[&name])?.try_get(0)? {
            return Ok(());
        }
        let why = "there already, and a release would put the keys of rows with adapted vectors into a table of that name; rename it, or drop it";
        Err(Error::conflict(name, why).into())
    }

    /// Makes the table of rows with adapted vectors, which belongs to the owner of the application's table.
    /// It has keys alone: another column of the application's table would be in the way of its inserts, and a
    /// view would need the schema `rehang`, which goes.
    fn list_adapted(&self, connection: &mut Connection) -> Step<()> {
        let Self { g, n, key, on, column, .. } = self;
        let name = self.adapted_table(connection)?;
        let owner = connection.query_one(
            "SELECT c.relowner::regrole::text, r.rolname = current_user, c.relrowsecurity FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner
             WHERE c.oid = $1",
            &[&self.oid],
        )?;
        let (owner, is_own, has_policies): (String, bool, bool) =
            (owner.try_get(0)?, owner.try_get(1)?, owner.try_get(2)?);
        let mut sql = format!(
            "CREATE TABLE {name} AS SELECT {key} FROM rehang.item_{g} AS i JOIN rehang.state_{n} AS s ON s.item = i.key WHERE s.provenance = 'adapted';
             COMMENT ON TABLE {name} IS {};",
            literal(&format!(
                "Rows of {on} whose vector in column {column} an adapter made of the old model's, when rehang released the table"
            ))
        );
        if has_policies {
            // A role that may not see a row is not to read its key here.
            sql += &format!("ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;");
        }
        if !is_own {
            sql += &format!("ALTER TABLE {name} OWNER TO {owner};");
        }
        connection.batch(&sql)
    }

    fn has_log(&self, connection: &mut Connection) -> Step<bool> {
        let sql = "SELECT obj_description(to_regclass($1), 'pg_class') IS NOT DISTINCT FROM $2 AND to_regprocedure($1 || '()') IS NOT NULL";
        let name = format!("rehang.moved_{}", self.g);
        Ok(connection.query_one(sql, &[&name, &self.what()])?.try_get(0)?)
    }

    /// Makes the notes, from which on nothing is missed. To make the triggers, the server waits until nobody
    /// is in the middle of a write.
    fn expect_log(&self, connection: &mut Connection) -> Step<()> {
        if self.has_log(connection)? {
            return Ok(());
        }
        // The application's table is locked first: its writers come to the gallery's tables afterwards, and
        // nobody goes the other way.
        connection.batch(&format!(
            "SET LOCAL lock_timeout = '500ms'; LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE; {} {} COMMENT ON TABLE rehang.moved_{} IS {}",
            self.on,
            schema::drop_moves(self.g, Some(&self.on)),
            self.make,
            self.g,
            literal(&self.what())
        ))
    }

    /// Begins a transaction that moves vectors. It gives up before an application that waits for it is
    /// ended, and is made again.
    fn begin(connection: &mut Connection) -> Step<()> {
        connection
            .batch("SET LOCAL lock_timeout = '50ms'; SELECT set_config('rehang.moving', 'on', true)")?;
        guard::see_as_application(connection)
    }

    /// Moves the vectors of every item, page by page. `advance` is told how many of about `items` are done.
    fn move_all(&self, handle: &Handle, items: u64, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        let page = format!(
            "WITH page AS (SELECT key AS item FROM rehang.item_{g} WHERE key > $1 ORDER BY key LIMIT {MOVED_TOGETHER}),
             {moved}
         SELECT array_agg(item ORDER BY item), (SELECT count(*) FROM moved) FROM page",
            g = self.g,
            moved = self.moved("page")
        );
        let (mut after, mut done) = (-1_i64, 0);
        loop {
            let (last, moved) = handle.database.run(Mode::Write, |connection| {
                Self::begin(connection)?;
                let row = connection.query_one(&page, &[&after])?;
                let keys = row.try_get::<_, Option<Vec<i64>>>(0)?.unwrap_or_default();
                self.expect_moved(connection, &keys, row.try_get(1)?)?;
                Ok((keys.last().copied(), keys.len() as u64))
            })?;
            let Some(last) = last else { return Ok(()) };
            after = last;
            done += moved;
            if !advance(done, items.max(done)) {
                return Err(ErrorKind::Cancelled.into());
            }
        }
    }

    /// Returns the part of a statement that writes the vectors of items into their rows, where they differ.
    fn moved(&self, items: &str) -> String {
        let Self { g, on, is_of, kind, .. } = self;
        let (column, vectors) = (quoted(&self.column), self.vectors());
        format!(
            "moved AS (UPDATE {on} AS t SET {column} = v.value::{kind} FROM {items} JOIN rehang.item_{g} AS i ON i.key {EQUALS} {items}.item
                 {vectors}
                 WHERE {is_of} AND pg_catalog.record_image_ne(ROW(t.{column}), ROW(v.value::{kind})) RETURNING i.key)"
        )
    }

    /// Fails where a trigger of the application has held back the vectors of some of these items, `moved` of
    /// which were moved. Vectors that others have changed in the same moment are moved once more, and are the
    /// release's from then on.
    fn expect_moved(&self, connection: &mut Connection, items: &[i64], moved: i64) -> Step<()> {
        if moved >= items.len() as i64 {
            return Ok(());
        }
        let Self { g, on, is_of, kind, .. } = self;
        let vectors = self.vectors();
        let differ = format!(
            "SELECT pg_catalog.count(*) FROM rehang.item_{g} AS i JOIN {on} AS t ON {is_of} {vectors}
             WHERE i.key {EQUALS} ANY ($1::bigint[]) AND pg_catalog.record_image_ne(ROW(t.{}), ROW(v.value::{kind}))",
            quoted(&self.column)
        );
        let again = format!(
            "WITH again AS (SELECT item FROM pg_catalog.unnest($1::bigint[]) AS again(item)), {} SELECT pg_catalog.count(*) FROM moved",
            self.moved("again")
        );
        let items = items.to_vec();
        for _ in 0..3 {
            if connection.count(&differ, &[&items])? == 0 {
                return Ok(());
            }
            connection.count(&again, &[&items])?;
        }
        let doing = format!("moving the vectors that serve into column {:?}", self.column);
        guard::see_as_ours(connection)?;
        Err(held_back(connection, on, Event::Update, &doing)?.into())
    }

    /// Moves the vectors of at most `limit` notes, and returns how many notes that were.
    fn catch_up_with(&self, connection: &mut Connection, limit: &str) -> Step<u64> {
        let g = self.g;
        let sql = format!(
            "WITH gone AS (DELETE FROM rehang.moved_{g} WHERE ctid {EQUALS} ANY (ARRAY(SELECT ctid FROM rehang.moved_{g} LIMIT {limit})) RETURNING item),
                 changed AS (SELECT DISTINCT item FROM gone),
                 {}
             SELECT (SELECT pg_catalog.count(*) FROM gone), (SELECT pg_catalog.array_agg(item) FROM changed), (SELECT pg_catalog.count(*) FROM moved)",
            self.moved("changed")
        );
        let row = connection.query_one(&sql, &[])?;
        let items = row.try_get::<_, Option<Vec<i64>>>(1)?.unwrap_or_default();
        self.expect_moved(connection, &items, row.try_get(2)?)?;
        Ok(row.try_get::<_, i64>(0)?.max(0) as u64)
    }

    /// Moves what has changed until little is left.
    fn catch_up(&self, handle: &Handle) -> Result<()> {
        for _ in 0..CATCH_UPS {
            let caught_up = handle.database.run(Mode::Write, |connection| {
                Self::begin(connection)?;
                self.catch_up_with(connection, &MOVED_TOGETHER.to_string())
            })?;
            if caught_up <= LAST_MOVES {
                break;
            }
        }
        Ok(())
    }
}

/// Reads the space that serves, whose vectors have to be in a table of the gallery.
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
    let Some(column) = settled else { return remove(&handle.database, handle.number, None) };
    let space = served_beside(handle)?;
    let into = column_for(handle, column, &space)?;
    let is_settled = |moves: &Moves| handle.database.run(Mode::Read, |connection| moves.has_log(connection));
    let mut settled = None;
    for moves in [false, true].map(|with_adapted| Moves::new(handle, space.number, &into, with_adapted)) {
        if is_settled(&moves)? {
            settled = Some(moves);
        }
    }
    let Some(moves) = settled else {
        let why = "the vectors that serve were not moved into it before";
        return Err(Error::conflict(format!("column {column:?} of {}", handle.table.options.table), why));
    };
    moves.catch_up(handle)?;
    remove(&handle.database, handle.number, Some(&moves))
}

/// Takes a gallery out by what the gallery's own tables say of it: its table may have another name by now,
/// have other columns or rules, or be gone.
pub(crate) fn take_out(address: &str, options: &TableOptions) -> Result<()> {
    let database = Database::open(address, options.root_certificates.as_deref())?;
    let table = options.table.as_str();
    let galleries = database.run(Mode::Read, |connection| {
        let oid = guard::seen_by_application(connection, table)?;
        guard::expect_ours_beside(connection, oid, Whose::Trusted)?;
        if !has_galleries(connection)? {
            return Ok(Vec::new());
        }
        // The table that has the name now comes first; else the one that had it when it was made a gallery.
        let sql = "SELECT number, format, relation = $2 AS has_name, NOT EXISTS (SELECT 1 FROM pg_class WHERE pg_class.oid = relation) AS is_gone
             FROM rehang.gallery WHERE relation = $2 OR name = $1 ORDER BY relation = $2 DESC NULLS LAST, number";
        let rows = connection.query(sql, &[&table, &oid])?;
        let read = |row: &Row| -> Step<(i32, i32, bool, bool)> {
            let has_name_now = row.try_get::<_, Option<bool>>("has_name")?.unwrap_or(false);
            Ok((row.try_get("number")?, row.try_get("format")?, has_name_now, row.try_get("is_gone")?))
        };
        rows.iter().map(read).collect::<Step<Vec<_>>>()
    })?;
    // Galleries of that name whose tables are gone are taken out too.
    let (without_table, with_table): (Vec<_>, Vec<_>) = galleries.into_iter().partition(|gallery| gallery.3);
    let number = match with_table[..] {
        [] => None,
        [(number, format, ..)] | [(number, format, true, _), ..] => {
            expect_format(table, format)?;
            Some(number)
        }
        _ => {
            let why =
                "several tables had that name when they were made galleries; name one as it is called now";
            return Err(Error::conflict(format!("the gallery in {table}"), why));
        }
    };
    if number.is_none() && without_table.is_empty() {
        if database.run(Mode::Write, |connection| drop_strays(connection, table))? {
            return Ok(());
        }
        return Err(Error::not_found("gallery", table, database.name()).advise(Remedy::AdoptTable));
    }
    for (number, format, ..) in without_table {
        expect_format(table, format)?;
        remove(&database, number, None)?;
    }
    number.map_or(Ok(()), |number| remove(&database, number, None))
}

/// Takes the gallery's triggers off a table that is no gallery any more, and off its partitions. Returns
/// whether there were any.
fn drop_strays(connection: &mut Connection, table: &str) -> Step<bool> {
    let oid = guard::seen_by_application(connection, table)?;
    let rows = connection.query(
        "SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) FROM pg_trigger
         WHERE (tgrelid = $1 OR tgrelid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))) AND tgparentid = 0 AND NOT tgisinternal
             AND tgname ~ '^(00_rehang_(moved_)?[0-9]+_|zz_rehang_[0-9]+_moves$)'",
        &[&oid],
    )?;
    for row in &rows {
        connection.batch(&row.try_get::<_, String>(0)?)?;
    }
    Ok(!rows.is_empty())
}

/// Tells what is left of galleries whose tables are gone, each in a sentence.
fn orphans(connection: &mut Connection) -> Step<Vec<String>> {
    let rows = connection.query(
        "SELECT g.number, g.name FROM rehang.gallery AS g WHERE NOT EXISTS (SELECT 1 FROM pg_class AS c WHERE c.oid = g.relation) ORDER BY 1",
        &[],
    )?;
    let words = |row: &Row| -> Step<String> {
        let (number, name): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        Ok(format!(
            "gallery {number} was of a table {name} that is gone, and still has its tables (rehang.item_{number} and those of its spaces): \
             a release of {name} that is confirmed takes them away"
        ))
    };
    rows.iter().map(words).collect()
}

/// Removes everything of a gallery in one transaction, which first moves what is left to move. Where nothing
/// is to be moved, it takes back a release that had begun and did not come to its end.
fn remove(database: &Database, g: i32, last: Option<&Moves>) -> Result<()> {
    database.run(Mode::Write, |connection| {
        // The lock keeps others from changing spaces.
        let sql = "SELECT (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE c.oid = g.relation) FROM rehang.gallery AS g WHERE g.number = $1 FOR NO KEY UPDATE";
        let Some(row) = connection.query_opt(sql, &[&g])? else { return Ok(()) };
        let on: Option<String> = row.try_get(0)?;
        let spaces = spaces::all(connection, g)?;
        let ours = schema::tables_of_gallery(g, &spaces);
        without_vacuum(connection, &on.iter().cloned().chain(ours).collect::<Vec<_>>())?;
        // The strong lock that dropping the triggers needs is taken at once. A lock that grew would be in a
        // deadlock with a transaction that has read the table and then writes it. Where others use the
        // gallery's tables, this gives up before the server ends one of them.
        let mut triggers = String::new();
        if let Some(on) = &on {
            connection.batch(&format!("LOCK TABLE {on} IN ACCESS EXCLUSIVE MODE"))?;
            triggers = schema::drop_triggers(g, on);
        }
        triggers += &schema::drop_truncate_triggers(g);
        connection.batch("SET LOCAL lock_timeout = '500ms'")?;
        lock_as_searches_do(connection, g, &spaces)?;
        match (last, &on) {
            (Some(moves), _) => {
                // From here on nobody changes anything, and every change before is noted, so the notes
                // are all that is looked at.
                connection.batch("SELECT set_config('rehang.moving', 'on', true)")?;
                guard::see_as_application(connection)?;
                moves.catch_up_with(connection, "ALL")?;
                guard::see_as_ours(connection)?;
                if moves.with_adapted {
                    moves.list_adapted(connection)?;
                }
                let is_made = settling(connection, g, &moves.on)?.iter().any(|(_, comment)| comment == MADE);
                let comment = match moves.old.filter(|_| is_made) {
                    Some(old) => dependents::comment(connection, &moves.on, old)?,
                    None => None,
                };
                let comment = comment.map_or_else(|| "NULL".into(), |comment| literal(&comment));
                connection.batch(&format!("COMMENT ON COLUMN {}.{} IS {comment}", moves.on, quoted(&moves.column)))?;
            }
            (None, Some(on)) => {
                connection.batch(&schema::end_moves(g, Some(on)))?;
                undo_release(connection, g, on)?;
            }
            (None, None) => {}
        }
        let tables: String = spaces.iter().map(|space| schema::drop_space_tables(space.number)).collect();
        connection.batch(&format!(
            "{triggers}{}{} {tables} DROP FUNCTION IF EXISTS rehang.changed_{g}() CASCADE; DROP TABLE IF EXISTS rehang.item_{g}; DROP TABLE IF EXISTS rehang.moving_{g}; {}{} DELETE FROM rehang.gallery WHERE number = {g};",
            schema::drop_moves(g, on.as_deref()),
            serving::drop_view(g),
            row_security::drop_functions(g),
            reading::drop_function(g)
        ))?;
        if connection.count("SELECT count(*) FROM rehang.gallery", &[])? > 0 {
            return Ok(());
        }
        let drop_tables: String = spaces::dropped_space_numbers(connection)?.into_iter().map(schema::drop_space_tables).collect();
        connection.batch(&(drop_tables + schema::DROP_BASE))
    })
}

/// Locks the gallery's tables in the order in which a search of the application reads them. In any other
/// order, a search that has read the first table would wait for the last, which this has locked, while this
/// waits for the first. The tables that all galleries share are locked only with the last gallery, which
/// takes them along. A person may have dropped some.
fn lock_as_searches_do(connection: &mut Connection, g: i32, spaces: &[schema::SpaceRow]) -> Step<()> {
    let is_last = connection.count("SELECT count(*) FROM rehang.gallery", &[])? == 1;
    let of_all = ["gallery", "space", "document", "bridge", "map", "matrix_row"];
    let mut names: Vec<String> =
        of_all.iter().filter(|_| is_last).map(|name| format!("rehang.{name}")).collect();
    names.extend(
        spaces.iter().flat_map(|space| ["vector", "state"].map(|of| format!("rehang.{of}_{}", space.number))),
    );
    names.push(format!("rehang.item_{g}"));
    lock_in_turn(connection, &names, "ACCESS EXCLUSIVE")
}

/// Undoes a release that had begun: drops the column that it made, or else the indexes that were
/// not made to their end.
fn undo_release(connection: &mut Connection, g: i32, on: &str) -> Step<()> {
    for (column, comment) in settling(connection, g, on)? {
        if comment == MADE {
            connection.batch(&format!("ALTER TABLE {on} DROP COLUMN {}", quoted(&column)))?;
            continue;
        }
        for index in search::unfinished(connection, on, Some(&column))? {
            // An index of a partitioned table takes those of its partitions along.
            connection.batch(&format!("DROP INDEX IF EXISTS {index}"))?;
        }
        connection.batch(&format!("COMMENT ON COLUMN {on}.{} IS NULL", quoted(&column)))?;
    }
    Ok(())
}

/// Finds the column of the application's table that a release of this gallery has begun to move vectors into,
/// with its comment. Where only the comment says so, the column belonged to an earlier gallery, whose schema
/// a person has dropped: the application may use it by now.
fn settling(connection: &mut Connection, g: i32, on: &str) -> Step<Vec<(String, String)>> {
    let rows = connection.query(
        "SELECT attname::text, col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0
             AND NOT attisdropped AND starts_with(col_description(attrelid, attnum), $2)
             AND right(obj_description(to_regclass($3), 'pg_class'), length(attname) + 8) = ' column ' || attname ORDER BY attnum",
        &[&on, &SETTLING, &format!("rehang.moved_{g}")],
    )?;
    let mut columns = Vec::new();
    for row in &rows {
        columns.push((row.try_get(0)?, row.try_get(1)?));
    }
    Ok(columns)
}

/// Names the triggers of the application that an update of other columns than theirs fires.
fn triggers_of_updates(connection: &mut Connection, oid: u32) -> Step<Vec<String>> {
    let rows = connection.query(
        &format!("SELECT DISTINCT format('%I', tgname) FROM pg_trigger WHERE (tgrelid = $1 OR tgrelid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass)))
             AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 16 <> 0
             AND cardinality(tgattr::int2[]) = 0 AND {} ORDER BY 1", schema::IS_OF_APPLICATION),
        &[&oid],
    )?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?)
}

/// Tells what a release will do to the application, or has begun to do, beside everything else.
pub(crate) fn remarks(handle: &Handle) -> Result<Vec<String>> {
    handle.database.run(Mode::Read, |connection| {
        let mut sentences = Vec::new();
        let triggers = triggers_of_updates(connection, handle.table.oid)?;
        if !triggers.is_empty() {
            sentences.push(format!(
                "a release that moves the vectors into {} updates every row, and so fires {}: {}. Without superuser rights nobody can leave them out; \
                 see that they may, or release without moving and copy the vectors as you like",
                handle.table.options.table,
                if triggers.len() == 1 { "a trigger of yours".to_owned() } else { format!("{} triggers of yours", triggers.len()) },
                triggers.join(", ")
            ));
        }
        sentences.extend(remark(connection, handle.table.oid, &handle.table.options.table)?);
        if let Some(root) = &handle.table.root {
            sentences.push(format!(
                "{} is a partition of {root}, and a partition alone gets no column: before a release that moves the vectors, run ALTER TABLE {root} ADD COLUMN …, \
                 with the name and the width that the new vectors are to have",
                handle.table.options.table
            ));
        }
        sentences.extend(orphans(connection)?);
        if settling(connection, handle.number, &handle.table.qualified)?.is_empty() {
            sentences.extend(dependents::remarks(connection, &handle.table)?);
        }
        let is_restored = "SELECT (to_jsonb(g) ->> 'columns')::jsonb ->> 'relation' <> g.relation::oid::text FROM rehang.gallery AS g WHERE number = $1";
        if connection.query_one(is_restored, &[&handle.number])?.try_get::<_, Option<bool>>(0)?.unwrap_or(false) {
            sentences.push(format!(
                "the gallery of {} came out of a dump: an adoption notes the numbers of its columns, by which a renaming is followed from then on",
                handle.table.options.table
            ));
        }
        for (column, _) in settling(connection, handle.number, &handle.table.qualified)? {
            sentences.push(format!(
                "a release has begun to move the vectors into column {column:?} of {} and is at work or did not come to its end: the same release goes on, \
                 and one without moving takes it back",
                handle.table.options.table
            ));
        }
        Ok(sentences)
    })
}
