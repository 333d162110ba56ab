//! Schema of a gallery: everything that is added to a database, as SQL, in one schema and by triggers on
//! the application's table.
//!
//! - `rehang.gallery`, `rehang.space` and `rehang.document` say which tables are galleries, which spaces they
//!   have, and where an upgrade is.
//! - `rehang.bridge` has the bridge over which queries go to an old space, while one is in use; `rehang.map`
//!   has the map that old vectors are adapted by, and `rehang.matrix_row` the matrices of both.
//! - `rehang.item_G` has a row for every item of gallery G: its key, which is never given
//!   again, and its revision.
//! - `rehang.state_N` has a row for every item in space N: who made its vector, or `lacking`, and its place
//!   in the queue. It is apart from the vectors, so that a change of what is in an index rewrites no vector.
//! - `rehang.vector_N` has the vectors of space N; those of a space that is a column of the
//!   application's table stay there.
//! - `rehang.paid_N` has native vectors of space N whose items are gone, for items that come back.
//! - `rehang.failure_N` says what could not be embedded, and `rehang.claim_N` which worker
//!   re-embeds which item.
//! - `rehang.serving_G` is a view of the vectors that searches go to.
//!
//! The application's table gets three triggers and nothing else. A write of it that changes no content does
//! not touch the gallery's tables, and a write of the gallery's tables does not touch the application's.
//!
//! On a partitioned table the server gives each partition these triggers, also partitions to come. Only the
//! trigger of `TRUNCATE` each partition has of its own. A fourth trigger sees which row moves to another
//! partition, and `rehang.moving_G` keeps that until the row is there.

use rehang_core::{Distance, Space};
use rehang_store::PAIRS_SEED;

use crate::guard::{EQUALS, FUNCTIONS, SEARCH_PATH, VERSION_MARK};
use crate::paid;
use crate::pgvector::Pgvector;
use crate::table::{Table, literal, quoted};

/// The form of the tables. Any other one is refused.
pub(crate) const FORMAT: i32 = 2;

/// Expression for a revision that was never given. Its upper part rises with time, except for
/// transactions that run side by side. The lower 24 bits are random, by no generator that a session could
/// set. A database that is set back gives the same upper parts again, and what was on its way to one item
/// must not fit another one.
pub(crate) const NEXT_REVISION: &str = "pg_catalog.int8or(pg_catalog.int8shl(pg_catalog.nextval('rehang.revision'), 24), \
     pg_catalog.concat('x', pg_catalog.substr(pg_catalog.gen_random_uuid()::text, 1, 6))::bit(24)::bigint)";

/// Returns the revision that the source of an item came with, for a row of items or states: it is kept where
/// it is not the revision itself.
pub(crate) fn source_revision(row: &str) -> String {
    format!("coalesce({row}.source_revision, {row}.revision)")
}

/// Returns the statements that make the tables every database with galleries has.
pub(crate) fn base() -> String {
    let names = Distance::ALL.map(|distance| literal(distance.name())).join(", ");
    include_str!("sql/base.sql").replace("DISTANCES", &names)
}

/// Statement that takes from everybody but the owner the rights which default privileges may have given with
/// a new table or function. A trigger of another role on a table of the gallery would run with our rights,
/// and nobody else is to call the function of the triggers.
pub(crate) const KEEP: &str = include_str!("sql/keep.sql");

/// Takes away what every database with galleries has. The server refuses it where something of an
/// application's depends on it.
pub(crate) const DROP_BASE: &str = include_str!("sql/drop_base.sql");

/// Space as its row in the database says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpaceRow {
    pub(crate) number: i32,
    pub(crate) record: rehang_store::SpaceRecord,
    /// The application's column that the space's vectors are in; `None` where they are in
    /// a table of the gallery.
    pub(crate) in_column: Option<String>,
    pub(crate) is_listed: bool,
}

impl SpaceRow {
    /// Whether a search that was prepared for this row fits `other`: the epoch goes on with every plan, and
    /// nothing else changes except the column's name.
    pub(crate) fn is_searched_as(&self, other: &Self) -> bool {
        (self.number, &self.record.space, &self.in_column)
            == (other.number, &other.record.space, &other.in_column)
    }
}

/// Condition that a trigger of `pg_trigger` is an application's: the gallery's triggers call
/// functions of its schema.
pub(crate) const IS_OF_APPLICATION: &str =
    "tgfoid NOT IN (SELECT oid FROM pg_proc WHERE pronamespace = to_regnamespace('rehang'))";

/// First words of the name of the document whose row orders the claims of a space. An advisory lock would not
/// do: anybody in the whole database could hold it.
const TURNS: &str = "rehang.claims ";

/// Returns the name of the document whose row orders the claims of a space.
pub(crate) fn claim_turns_document(n: i32) -> String {
    format!("{TURNS}{n}")
}

/// Returns the statements that make the table of a gallery's items.
pub(crate) fn item_table(g: i32, table: &Table) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS rehang.item_{g} (
             key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             id text NOT NULL,
             {}revision bigint NOT NULL,
             sourced boolean NOT NULL,
             source_revision bigint,{}
             UNIQUE ({})
         );
         CREATE INDEX IF NOT EXISTS item_{g}_id ON rehang.item_{g} (id);
         CREATE INDEX IF NOT EXISTS item_{g}_revision ON rehang.item_{g} (revision);
         CREATE INDEX IF NOT EXISTS item_{g}_unsourced ON rehang.item_{g} (key) WHERE NOT sourced;
         CREATE INDEX IF NOT EXISTS {};",
        table.key_columns(),
        if table.is_partitioned { " source_hash bigint, vector_hash bigint," } else { "" },
        table.key_names(),
        shuffle_index(g)
    ) + &moving_table(g, table)
}

/// Returns the statements that make the table of rows which are on their way to another partition, in the
/// transactions that move them. `o` is the earlier key, `n` the one to come, beside the content before the
/// move. Nobody but the owner sees the rows.
fn moving_table(g: i32, table: &Table) -> String {
    if !table.is_partitioned {
        return String::new();
    }
    let columns = |letter: char| table.key_columns_as(letter).replace(" NOT NULL", "");
    let names =
        |letter: char| (1..=table.key.len()).map(|at| format!("{letter}{at}")).collect::<Vec<_>>().join(", ");
    format!(
        "
         CREATE UNLOGGED TABLE IF NOT EXISTS rehang.moving_{g} (
             xact xid8 NOT NULL,
             has_gone boolean NOT NULL DEFAULT false,
             is_kept boolean NOT NULL DEFAULT false,
             {}{}id text NOT NULL,
             source text,
             vector pg_catalog.float4[]
         );
         CREATE INDEX IF NOT EXISTS moving_{g}_old ON rehang.moving_{g} ({});
         CREATE INDEX IF NOT EXISTS moving_{g}_new ON rehang.moving_{g} ({});
         ALTER TABLE rehang.moving_{g} ENABLE ROW LEVEL SECURITY;",
        columns('o'),
        columns('n'),
        names('o'),
        names('n')
    )
}

/// Returns the condition that the table which a statement names is still the gallery's: another one may have
/// taken its name. The server evaluates it once a statement.
pub(crate) fn is_named(g: i32, table: &Table) -> String {
    format!(
        "(SELECT ours.relation FROM rehang.gallery AS ours WHERE ours.number {EQUALS} {g}) {EQUALS} pg_catalog.to_regclass({})",
        literal(&table.qualified)
    )
}

/// Returns the place of an item in a shuffle, as SQL: the server's own hash of key and seed.
pub(crate) fn place_in_shuffle(key: &str, seed: u64) -> String {
    format!("pg_catalog.hashint8extended({key}, {}::bigint)", seed as i64)
}

/// Returns the index of the shuffle that pairs are drawn by, as what follows its `CREATE INDEX`. It is on the
/// items, whose rows an upgrade does not write, and not on their states, each of which it writes twice.
pub(crate) fn shuffle_index(g: i32) -> String {
    format!("item_{g}_shuffle ON rehang.item_{g} (({}), key)", place_in_shuffle("key", PAIRS_SEED))
}

/// Returns the statements that make the triggers on the application's table: one for rows that come or go,
/// one for updates, and one that comes before a `TRUNCATE`. They fire in sessions that replicate, too, and by
/// their names before triggers of the application that may write the row again.
pub(crate) fn triggers(g: i32, table: &Table) -> String {
    let on = &table.qualified;
    let columns = |row: &str| -> String {
        let source = table.options.source.iter().filter(|_| table.is_source_column);
        let used = table.key.iter().map(|column| &column.name).chain(source).chain(&table.options.vector);
        let columns: Vec<String> = used.map(|column| format!("{row}.{}", quoted(column))).collect();
        columns.join(", ")
    };
    // Rows are compared by their bytes, whatever a collation takes for equal, and by no operator of pgvector,
    // which a dump could not name.
    let differs = format!("pg_catalog.record_image_ne(ROW({}), ROW({}))", columns("OLD"), columns("NEW"));
    // Where only columns matter, an update of other columns does not even call the function. Elsewhere
    // every update does, and the trigger names the columns, so that the server lets nobody drop one
    // that the function reads.
    let has_columns_only =
        table.options.condition.is_none() && (table.is_source_column || table.options.source.is_none());
    let when = if has_columns_only { differs } else { format!("true OR {differs}") };
    if table.is_partitioned {
        // The columns of a partition key are never generated, and other generated columns have no value yet.
        let key_columns = |row: &str| -> String {
            let columns = table.key.iter().filter(|column| !column.is_generated);
            columns.map(|column| format!("{row}.{}", quoted(&column.name))).collect::<Vec<_>>().join(", ")
        };
        return format!(
            "CREATE TRIGGER \"00_rehang_{g}_rows\" AFTER INSERT OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION rehang.changed_{g}();
             CREATE TRIGGER \"00_rehang_{g}_updates\" AFTER UPDATE ON {on} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION rehang.changed_{g}();
             CREATE TRIGGER \"zz_rehang_{g}_moves\" BEFORE UPDATE ON {on} FOR EACH ROW WHEN (pg_catalog.record_image_ne(ROW({}), ROW({})))
                 EXECUTE FUNCTION rehang.changed_{g}();
             ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_rows\";
             ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_updates\";
             ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"zz_rehang_{g}_moves\";
             {}",
            key_columns("OLD"),
            key_columns("NEW"),
            truncate_triggers(g, table)
        );
    }
    format!(
        "CREATE TRIGGER \"00_rehang_{g}_rows\" AFTER INSERT OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION rehang.changed_{g}();
         CREATE TRIGGER \"00_rehang_{g}_updates\" AFTER UPDATE ON {on} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION rehang.changed_{g}();
         CREATE TRIGGER \"00_rehang_{g}_truncate\" BEFORE TRUNCATE ON {on} FOR EACH STATEMENT EXECUTE FUNCTION rehang.changed_{g}();
         ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_rows\";
         ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_updates\";
         ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_truncate\";"
    )
}

/// Returns the statement that makes the triggers of `TRUNCATE` on a partitioned table and on each table that
/// its rows lie in, where there is none. The server makes none of this kind by itself. They fire before the
/// statement, since the trigger of a partition has to read what goes.
pub(crate) fn truncate_triggers(g: i32, table: &Table) -> String {
    format!(
        "DO $rehang$ DECLARE part regclass; BEGIN
             FOR part IN SELECT p.relid FROM pg_partition_tree({on}) AS p WHERE (p.isleaf OR p.level = 0)
                 AND NOT EXISTS (SELECT 1 FROM pg_trigger AS t WHERE t.tgrelid = p.relid AND t.tgname = '00_rehang_{g}_truncate') ORDER BY p.level, 1
             LOOP
                 EXECUTE format('CREATE TRIGGER \"00_rehang_{g}_truncate\" BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION rehang.changed_{g}()', part);
                 EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER \"00_rehang_{g}_truncate\"', part);
             END LOOP;
         END $rehang$;",
        on = literal(&table.qualified)
    )
}

/// Counts the triggers of a gallery that its table lacks, or that do not fire in every session. A partition
/// that came later is told [elsewhere](without_truncate) to have none of `TRUNCATE`.
pub(crate) fn missing_triggers(g: i32, table: &Table) -> String {
    let is_there = format!(
        "EXISTS (SELECT 1 FROM pg_trigger AS t WHERE t.tgrelid = p.relid AND t.tgenabled = 'A' AND t.tgname = w.name AND t.tgfoid = to_regprocedure('rehang.changed_{g}()'))"
    );
    let names = format!("('00_rehang_{g}_rows'), ('00_rehang_{g}_updates')");
    if table.is_partitioned {
        return format!(
            "SELECT count(*) FROM pg_partition_tree({oid}::oid::regclass) AS p CROSS JOIN (VALUES {names}, ('zz_rehang_{g}_moves'), ('00_rehang_{g}_truncate')) AS w(name)
             WHERE (p.isleaf OR p.level = 0) AND NOT {is_there} AND (w.name !~ 'truncate' OR p.level = 0
                 OR EXISTS (SELECT 1 FROM pg_trigger AS t WHERE t.tgrelid = p.relid AND t.tgname = w.name))",
            oid = table.oid
        );
    }
    format!(
        "SELECT count(*) FROM (SELECT {oid}::oid AS relid) AS p CROSS JOIN (VALUES {names}, ('00_rehang_{g}_truncate')) AS w(name) WHERE NOT {is_there}",
        oid = table.oid
    )
}

/// Returns the query for the partitions of a partitioned table without a trigger of `TRUNCATE`, by name.
pub(crate) fn without_truncate(g: i32, table: &Table) -> String {
    format!(
        "SELECT p.relid::text FROM pg_partition_tree({}::oid::regclass) AS p WHERE p.isleaf AND NOT EXISTS (SELECT 1 FROM pg_trigger AS t
             WHERE t.tgrelid = p.relid AND t.tgname = '00_rehang_{g}_truncate') ORDER BY 1",
        table.oid
    )
}

/// Returns the statements that take the triggers off the table.
pub(crate) fn drop_triggers(g: i32, qualified: &str) -> String {
    let triggers =
        ["00_rehang_{g}_rows", "00_rehang_{g}_updates", "00_rehang_{g}_truncate", "zz_rehang_{g}_moves"];
    let drop = |name: &str| {
        format!("DROP TRIGGER IF EXISTS \"{}\" ON {qualified};", name.replace("{g}", &g.to_string()))
    };
    triggers.map(drop).concat()
}

/// Returns the statement that takes the triggers of `TRUNCATE` off the partitions of the table, each of which
/// has one of its own, and off tables that were partitions.
pub(crate) fn drop_truncate_triggers(g: i32) -> String {
    format!(
        "DO $rehang$ DECLARE part regclass; BEGIN
             FOR part IN SELECT t.tgrelid FROM pg_trigger AS t WHERE t.tgname = '00_rehang_{g}_truncate' AND t.tgfoid = to_regprocedure('rehang.changed_{g}()')
             LOOP
                 EXECUTE format('DROP TRIGGER \"00_rehang_{g}_truncate\" ON %s', part);
             END LOOP;
         END $rehang$;"
    )
}

/// Returns the condition that the table which a trigger fires for is a gallery's table, or a part of its
/// partitioned one. A statement that began to write before a `DETACH … CONCURRENTLY` may still go on.
fn trigger_table_condition(g: i32) -> String {
    format!(
        "EXISTS (SELECT 1 FROM rehang.gallery AS ours WHERE ours.number = {g} AND (ours.relation = TG_RELID OR EXISTS (SELECT 1
             FROM pg_catalog.pg_partition_ancestors(TG_RELID) AS whole WHERE whole.relid = ours.relation)))"
    )
}

/// Returns the statements that make the notes of changes while the vectors of a space move into a
/// column of the application's table. Noted are changes of a vector in the gallery's table, and of the
/// column by anything but the move. Each item is noted in the transaction that changes it. Names are
/// written as in the [function](crate::trigger_function) of the other triggers.
pub(crate) fn moves(g: i32, n: i32, table: &Table, column: &str) -> String {
    let (on, column) = (&table.qualified, quoted(column));
    let by_others = "pg_catalog.current_setting('rehang.moving', true) IS DISTINCT FROM 'on'";
    let trigger = |name: &str, when: &str, on: &str, condition: &str| {
        format!(
            "CREATE TRIGGER \"00_rehang_moved_{g}_{name}\" AFTER {when} ON {on} FOR EACH ROW {condition} EXECUTE FUNCTION rehang.moved_{g}();
             ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_moved_{g}_{name}\";"
        )
    };
    let insert = format!("WHEN (NEW.{column} IS NOT NULL AND {by_others})");
    let update =
        format!("WHEN (pg_catalog.record_image_ne(ROW(OLD.{column}), ROW(NEW.{column})) AND {by_others})");
    format!(
        "CREATE TABLE rehang.moved_{g} (item bigint NOT NULL);
CREATE FUNCTION rehang.moved_{g}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = {SEARCH_PATH} AS $rehang$
BEGIN
    IF TG_RELID = pg_catalog.to_regclass('rehang.vector_{n}') THEN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO rehang.moved_{g} VALUES (OLD.item);
        ELSE
            INSERT INTO rehang.moved_{g} VALUES (NEW.item);
        END IF;
    ELSIF {} THEN
        INSERT INTO rehang.moved_{g} SELECT i.key FROM rehang.item_{g} AS i WHERE {};
    END IF;
    RETURN NULL;
END
$rehang$;
REVOKE ALL ON FUNCTION rehang.moved_{g}() FROM PUBLIC;
{}{}{}{KEEP}",
        trigger_table_condition(g),
        table.is_of("i", "NEW"),
        trigger("rows", "INSERT", on, &insert),
        trigger("updates", "UPDATE", on, &update),
        trigger("vectors", "INSERT OR UPDATE OR DELETE", &format!("rehang.vector_{n}"), ""),
    )
}

/// Returns the statements that remove the notes of a move, with their triggers.
pub(crate) fn drop_moves(g: i32, qualified: Option<&str>) -> String {
    format!("{} DROP TABLE IF EXISTS rehang.moved_{g};", end_moves(g, qualified))
}

/// Returns the statements that end the notes of a move. Their table stays: it says that a release had begun.
pub(crate) fn end_moves(g: i32, qualified: Option<&str>) -> String {
    let triggers = qualified.map_or_else(String::new, |on| {
        ["rows", "updates"]
            .map(|name| format!("DROP TRIGGER IF EXISTS \"00_rehang_moved_{g}_{name}\" ON {on};"))
            .concat()
    });
    format!("{triggers} DROP FUNCTION IF EXISTS rehang.moved_{g}() CASCADE;")
}

/// First word of the name of a document that says since when, and why, rows could not be read in full where
/// the triggers met them. Most often there is one document: those of transactions that were open at the same
/// time have a number behind the word.
pub(crate) const UNREAD: &str = "unread";

/// Returns the statement that writes into the comment of a function what it is for, and
/// of which version it is.
pub(crate) fn function_comment(function: &str, what: &str) -> String {
    format!(
        "COMMENT ON FUNCTION {function} IS {};",
        literal(&format!("rehang: {what}{VERSION_MARK}{FUNCTIONS}"))
    )
}

/// Returns the statements that make the tables and indexes of a space.
pub(crate) fn space_tables(n: i32, space: &Space, in_column: Option<&str>, pgvector: &Pgvector) -> String {
    let vectors = match in_column {
        Some(_) => String::new(),
        None => format!(
            "CREATE TABLE IF NOT EXISTS rehang.vector_{n} (item bigint PRIMARY KEY, value {} NOT NULL);
             {}",
            pgvector.named(&column_type(space.dimension)),
            paid::table(n, space, pgvector)
        ),
    };
    format!(
        "CREATE TABLE IF NOT EXISTS rehang.state_{n} (
             item bigint PRIMARY KEY,
             revision bigint NOT NULL,
             provenance text NOT NULL CHECK (provenance IN ('lacking', 'old', 'adapted', 'native')),
             sourced boolean NOT NULL,
             failed boolean NOT NULL DEFAULT false,
             sigma2 real,
             band smallint NOT NULL DEFAULT 0,
             score float8,
             squared_error real,
             change bigint NOT NULL DEFAULT 0,
             source_revision bigint
         );
         CREATE INDEX IF NOT EXISTS state_{n}_provenance ON rehang.state_{n} (provenance, item);
         CREATE INDEX IF NOT EXISTS state_{n}_next ON rehang.state_{n} (item)
             WHERE provenance = 'lacking' AND sourced AND NOT failed;
         CREATE INDEX IF NOT EXISTS state_{n}_worst ON rehang.state_{n} (band DESC, score DESC NULLS LAST, item)
             WHERE provenance = 'adapted' AND sourced AND NOT failed;
         CREATE INDEX IF NOT EXISTS state_{n}_unsourced ON rehang.state_{n} (item)
             WHERE NOT sourced AND provenance IN ('lacking', 'adapted');
         CREATE INDEX IF NOT EXISTS state_{n}_error ON rehang.state_{n} (change)
             WHERE provenance = 'native' AND sigma2 IS NOT NULL AND squared_error IS NOT NULL;
         CREATE TABLE IF NOT EXISTS rehang.failure_{n} (item bigint PRIMARY KEY, revision bigint NOT NULL, reason text NOT NULL);
         CREATE TABLE IF NOT EXISTS rehang.claim_{n} (
             item bigint PRIMARY KEY, worker text NOT NULL, until timestamptz NOT NULL, lost int NOT NULL DEFAULT 0
         );
         {}
         {vectors}",
        lease_index(n)
    )
}

/// Returns the statement that makes the index by which leases that have not run out are counted, past all
/// that ever were. Where it is there the table is left alone: `IF NOT EXISTS` would lock it first, and each
/// write of the application would wait for that.
pub(crate) fn lease_index(n: i32) -> String {
    format!(
        "DO $rehang$ BEGIN
             IF to_regclass('rehang.claim_{n}_until') IS NULL THEN CREATE INDEX claim_{n}_until ON rehang.claim_{n} (until); END IF;
         END $rehang$;"
    )
}

/// Names the tables of a space.
pub(crate) fn tables_of(n: i32, in_column: Option<&str>) -> Vec<String> {
    let vectors = if in_column.is_none() { &["vector", "paid"][..] } else { &[] };
    ["state", "failure", "claim"].iter().chain(vectors).map(|name| format!("{name}_{n}")).collect()
}

/// Names the tables of a gallery's items and spaces, each with its schema.
pub(crate) fn tables_of_gallery(g: i32, spaces: &[SpaceRow]) -> Vec<String> {
    let of_spaces = spaces.iter().flat_map(|space| tables_of(space.number, space.in_column.as_deref()));
    of_spaces.chain([format!("item_{g}")]).map(|name| format!("rehang.{name}")).collect()
}

/// Returns the statements that remove the tables of a space.
pub(crate) fn drop_space_tables(n: i32) -> String {
    ["state", "failure", "claim", "vector", "paid"]
        .map(|table| format!("DROP TABLE IF EXISTS rehang.{table}_{n};"))
        .concat()
}

/// Widest vector that an index on `vector` takes.
const INDEXED_AS_VECTOR: usize = 2_000;
/// Widest vector that an index on `halfvec` takes: twice as wide as on `vector`.
pub(crate) const INDEXED_MAX: usize = 4_000;
/// Widest vector that a column of type `halfvec` takes.
const HALFVEC_MAX: usize = 16_000;

/// Whether vectors of a width can have an index at all.
pub(crate) fn can_be_indexed(dimension: usize) -> bool {
    dimension <= INDEXED_MAX
}

fn type_name(dimension: usize) -> &'static str {
    if dimension <= INDEXED_AS_VECTOR || !can_be_indexed(dimension) { "vector" } else { "halfvec" }
}

/// Returns the bytes of a vector of a width, as a column of the gallery's holds it.
pub(crate) fn bytes(dimension: usize) -> u64 {
    ColumnOfVectors { name: String::new(), is_halfvec: type_name(dimension) == "halfvec", dimension }.bytes()
}

/// Returns the condition that a column of the gallery's holds vectors of a width as `halfvec`, as SQL.
pub(crate) fn stored_as_halfvec(dimension: &str) -> String {
    format!("{dimension} > {INDEXED_AS_VECTOR} AND {dimension} <= {INDEXED_MAX}")
}

/// Returns the type of a column of vectors of the gallery's.
pub(crate) fn column_type(dimension: usize) -> String {
    format!("{}({dimension})", type_name(dimension))
}

/// Distance as pgvector has it.
pub(crate) struct Operator {
    /// Name of the operator, which orders vectors by the distance.
    pub(crate) name: &'static str,
    /// Class of its indexes, without the type of the vectors.
    pub(crate) class: &'static str,
    /// Whether the operator gives the square root of the distance.
    pub(crate) is_root: bool,
}

/// Returns what pgvector has for a distance.
pub(crate) fn operator(distance: Distance) -> Operator {
    let (name, class, is_root) = match distance {
        Distance::L2 => ("<->", "l2_ops", true),
        Distance::Cosine => ("<=>", "cosine_ops", false),
        Distance::Dot => ("<#>", "ip_ops", false),
    };
    Operator { name, class, is_root }
}

/// Returns the statement that makes the search index of a space, while everybody goes on writing. `options`
/// is the end of the statement.
pub(crate) fn vector_index(n: i32, space: &Space, pgvector: &Pgvector, options: &str) -> String {
    format!(
        "CREATE INDEX CONCURRENTLY vector_{n}_nearest ON rehang.vector_{n} USING hnsw (value {}){options}",
        class(type_name(space.dimension), space.distance, pgvector)
    )
}

/// Returns the statement that makes a search index over a column of the application's table, while
/// everybody goes on writing. `options` is the end of the statement.
pub(crate) fn column_index(
    on: &str,
    column: &ColumnOfVectors,
    distance: Distance,
    pgvector: &Pgvector,
    options: &str,
) -> String {
    let class = class(column.type_name(), distance, pgvector);
    format!("CREATE INDEX CONCURRENTLY ON {on} USING hnsw ({} {class}){options}", quoted(&column.name))
}

fn class(type_name: &str, distance: Distance, pgvector: &Pgvector) -> String {
    pgvector.named(&format!("{type_name}_{}", operator(distance).class))
}

/// Column of the application's table that vectors move into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnOfVectors {
    pub(crate) name: String,
    pub(crate) is_halfvec: bool,
    pub(crate) dimension: usize,
}

impl ColumnOfVectors {
    /// Describes a column to be made for vectors of a width, beside a column of old ones. It has the old
    /// column's type where an index of that type takes the width.
    pub(crate) fn beside(is_halfvec: bool, name: &str, dimension: usize) -> Self {
        let is_halfvec = type_name(dimension) == "halfvec" || is_halfvec && dimension <= HALFVEC_MAX;
        Self { name: name.to_owned(), is_halfvec, dimension }
    }

    fn type_name(&self) -> &'static str {
        if self.is_halfvec { "halfvec" } else { "vector" }
    }

    /// Returns the column's type, without the schema that the type is in.
    pub(crate) fn kind(&self) -> String {
        format!("{}({})", self.type_name(), self.dimension)
    }

    /// Returns the bytes of a vector in the column.
    pub(crate) fn bytes(&self) -> u64 {
        (if self.is_halfvec { 2 } else { 4 } * self.dimension + 8) as u64
    }

    /// Whether an index over the column can be made.
    pub(crate) fn can_be_indexed(&self) -> bool {
        self.dimension <= if self.is_halfvec { INDEXED_MAX } else { INDEXED_AS_VECTOR }
    }
}

/// Returns the statement that says in a comment on the table of items what the table is,
/// for people who meet it.
pub(crate) fn comment(g: i32, table: &Table) -> String {
    format!(
        "COMMENT ON TABLE rehang.item_{g} IS {};",
        literal(&format!(
            "rehang: the items of {}, kept by the triggers 00_rehang_{g}_* on it",
            table.options.table
        ))
    )
}
