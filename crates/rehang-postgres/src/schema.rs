//! Everything that is added to a database, as SQL: one schema, and triggers on the application's table.
//!
//! - `rehang.gallery`, `rehang.space` and `rehang.document` say which tables are galleries, which spaces they have, and where an upgrade is.
//! - `rehang.item_G` has a row for every item of gallery G: its key, which is never given again, and its revision.
//! - `rehang.state_N` has a row for every item in space N: who made its vector, or `lacking`, and its place in the queue. What is in an
//!   index stays narrow, so that a change of it rewrites no vector.
//! - `rehang.vector_N` has the vectors of space N; those of a space that is a column of the application's table stay there.
//! - `rehang.failure_N` and `rehang.claim_N` say what could not be embedded, and who works on what.
//! - `rehang.serving_G` is a view of the vectors that searches go to.
//!
//! The application's table gets three triggers and nothing else. A write of it that changes no content does not touch our tables, and
//! a write of ours does not touch the application's.

use rehang::{Distance, Space};

use crate::table::{Table, literal, quoted};

/// The form of the tables; another one is refused.
pub(crate) const FORMAT: i32 = 1;

/// The tables every database with galleries has.
pub(crate) const BASE: &str = "
CREATE SCHEMA IF NOT EXISTS rehang;
CREATE SEQUENCE IF NOT EXISTS rehang.revision;
CREATE TABLE IF NOT EXISTS rehang.gallery (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation regclass NOT NULL UNIQUE,
    name text NOT NULL,
    options text NOT NULL,
    joined text NOT NULL,
    format int NOT NULL,
    serving text,
    listed boolean NOT NULL DEFAULT false,
    columns text
);
CREATE TABLE IF NOT EXISTS rehang.space (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    name text NOT NULL,
    dimension int NOT NULL CHECK (dimension > 0),
    distance text NOT NULL CHECK (distance IN ('l2', 'cosine', 'dot')),
    normalised boolean NOT NULL,
    written_as text NOT NULL CHECK (written_as IN ('old', 'native')),
    epoch bigint NOT NULL DEFAULT 0,
    in_column text,
    listed boolean NOT NULL DEFAULT false,
    UNIQUE (gallery, name)
);
CREATE TABLE IF NOT EXISTS rehang.document (
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    name text NOT NULL,
    version bigint NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (gallery, name)
);
";

/// Makes `rehang.gallery.relation` a `regclass` in a database in which an earlier version made it an `oid`. A dump writes an `oid` as a number,
/// and the restored table has another number; a `regclass` is written as the table's name. Gives the table the columns that it has had since.
pub(crate) const RELATION_BY_NAME: &str = "
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'rehang.gallery'::regclass AND attname = 'relation' AND atttypid = 'oid'::regtype) THEN
        ALTER TABLE rehang.gallery ALTER COLUMN relation TYPE regclass;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'rehang.gallery'::regclass AND attname = 'columns') THEN
        ALTER TABLE rehang.gallery ADD COLUMN columns text;
    END IF;
END $$;
";

/// Takes away what every database with galleries has. The server refuses it where something of an application's depends on it.
pub(crate) const DROP_BASE: &str = "
DROP FUNCTION IF EXISTS rehang.serving, rehang.search, rehang.write;
DROP TABLE rehang.document, rehang.space, rehang.gallery;
DROP SEQUENCE rehang.revision;
DROP SCHEMA rehang;
";

/// A space as its row says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpaceRow {
    pub(crate) number: i32,
    pub(crate) record: rehang_store::SpaceRecord,
    /// The application's column that its vectors are in; `None` where they are in a table of ours.
    pub(crate) in_column: Option<String>,
    pub(crate) is_listed: bool,
}

/// The items of a gallery.
pub(crate) fn item_table(g: i32, table: &Table) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS rehang.item_{g} (
             key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             id text NOT NULL,
             {}revision bigint NOT NULL,
             sourced boolean NOT NULL,
             UNIQUE ({})
         );
         CREATE INDEX IF NOT EXISTS item_{g}_id ON rehang.item_{g} (id);
         CREATE INDEX IF NOT EXISTS item_{g}_revision ON rehang.item_{g} (revision);
         CREATE INDEX IF NOT EXISTS item_{g}_unsourced ON rehang.item_{g} (key) WHERE NOT sourced;",
        table.key_columns(),
        table.key_names()
    )
}

/// The triggers on the application's table: one for rows that come or go, one for updates, one for a `TRUNCATE`. They fire in sessions that replicate, too,
/// and, by their names, before triggers of the application that may write the row again.
pub(crate) fn triggers(g: i32, table: &Table) -> String {
    let on = &table.qualified;
    let columns = |row: &str| -> String {
        let source = table.options.source.iter().filter(|_| table.is_source_column);
        let used = table.key.iter().map(|column| &column.name).chain(source).chain(&table.options.vector);
        let columns: Vec<String> = used.map(|column| format!("{row}.{}", quoted(column))).collect();
        columns.join(", ")
    };
    // By their bytes, whatever a collation holds to be the same, and by no operator of pgvector, which a dump could not name.
    let differs = format!("record_image_ne(ROW({}), ROW({}))", columns("OLD"), columns("NEW"));
    // Where nothing but columns matters, an update of others does not even call the function. Elsewhere every update does, and the trigger
    // names the columns, so that the server lets nobody drop one that the function reads.
    let has_columns_only =
        table.options.condition.is_none() && (table.is_source_column || table.options.source.is_none());
    let when = if has_columns_only { differs } else { format!("true OR {differs}") };
    format!(
        "CREATE TRIGGER \"00_rehang_{g}_rows\" AFTER INSERT OR DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION rehang.changed_{g}();
         CREATE TRIGGER \"00_rehang_{g}_updates\" AFTER UPDATE ON {on} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION rehang.changed_{g}();
         CREATE TRIGGER \"00_rehang_{g}_truncate\" AFTER TRUNCATE ON {on} FOR EACH STATEMENT EXECUTE FUNCTION rehang.changed_{g}();
         ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_rows\";
         ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_updates\";
         ALTER TABLE {on} ENABLE ALWAYS TRIGGER \"00_rehang_{g}_truncate\";"
    )
}

/// Whether the triggers of a gallery on a table, by its number, are of the form that an earlier version made.
pub(crate) fn has_earlier_triggers(g: i32) -> String {
    format!(
        "SELECT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = $1 AND tgname = '00_rehang_{g}_updates'
             AND pg_get_triggerdef(oid) NOT LIKE '%record_image_ne%')"
    )
}

/// Takes the triggers off the table.
pub(crate) fn drop_triggers(g: i32, qualified: &str) -> String {
    ["rows", "updates", "truncate"]
        .map(|what| format!("DROP TRIGGER IF EXISTS \"00_rehang_{g}_{what}\" ON {qualified};"))
        .concat()
}

/// The function of the triggers: keeps the items and every space right, whoever writes the table. It runs with its owner's rights,
/// so that the application's role needs none on our schema, and sees names as its owner did.
pub(crate) fn function(g: i32, table: &Table, spaces: &[SpaceRow], search_path: &str) -> String {
    let tables_of = |n: i32, row: &SpaceRow| {
        let vectors = if row.in_column.is_none() { vec![format!("rehang.vector_{n}")] } else { Vec::new() };
        let mut tables: Vec<String> =
            ["failure", "claim"].iter().map(|table| format!("rehang.{table}_{n}")).collect();
        tables.extend(vectors);
        tables
    };
    let mut truncate = format!("TRUNCATE rehang.item_{g}");
    let (mut gone, mut added) = (String::new(), String::new());
    for row in spaces {
        let n = row.number;
        let forget: String = tables_of(n, row)
            .iter()
            .map(|table| format!("            DELETE FROM {table} WHERE item = this;\n"))
            .collect();
        truncate += &format!(", rehang.state_{n}, {}", tables_of(n, row).join(", "));
        gone += &format!(
            "            DELETE FROM rehang.state_{n} WHERE item = this;
            IF NOT FOUND AND older THEN
                INSERT INTO rehang.state_{n} (item, revision, provenance, sourced) VALUES (this, 0, 'lacking', false)
                    ON CONFLICT (item) DO UPDATE SET revision = 0;
                DELETE FROM rehang.state_{n} WHERE item = this;
            END IF;
{forget}"
        );
        // A column's vector is of this content only if it came with it.
        let provenance = match &row.in_column {
            None => "'lacking'".to_owned(),
            Some(column) => {
                let column = quoted(column);
                let of_row = |row: &str| format!("(SELECT t.{column} FROM (SELECT {row}.*) AS t)");
                format!(
                    "CASE WHEN {new} IS NULL OR stale OR vector_dims({new}) <> {} OR (is_update AND {old} IS NOT DISTINCT FROM {new})
                         THEN 'lacking' ELSE '{}' END",
                    row.record.space.dimension,
                    row.record.written_as.name(),
                    new = of_row("NEW"),
                    old = of_row("OLD"),
                )
            }
        };
        added += &format!(
            "    INSERT INTO rehang.state_{n} AS s (item, revision, provenance, sourced) VALUES (this, now, {provenance}, has_source)
         ON CONFLICT (item) DO UPDATE SET revision = now, provenance = EXCLUDED.provenance, sourced = EXCLUDED.sourced,
             sigma2 = NULL, band = 0, score = NULL, squared_error = NULL, failed = false, change = 0;
    IF is_update THEN
{forget}    END IF;
"
        );
    }
    let of = |row: &str| {
        let columns = table.key.iter().zip(1..);
        let equal: Vec<String> =
            columns.map(|(column, at)| format!("k{at} = {row}.{}", quoted(&column.name))).collect();
        equal.join(" AND ")
    };
    let mut same: Vec<String> = table
        .key
        .iter()
        .map(|column| format!("OLD.{0} IS NOT DISTINCT FROM NEW.{0}", quoted(&column.name)))
        .collect();
    let same_key = same.join(" AND ");
    same.extend(table.options.vector.iter().map(|column| {
        let column = quoted(column);
        format!("(SELECT t.{column} FROM (SELECT OLD.*) AS t) IS NOT DISTINCT FROM (SELECT t.{column} FROM (SELECT NEW.*) AS t)")
    }));
    same.push(format!("{} IS NOT DISTINCT FROM {}", table.source_of("OLD"), table.source_of("NEW")));
    // The old vector of a row does not become one of its new content by another key, or by coming to meet the condition.
    let in_column = spaces.iter().find_map(|row| Some((row.number, row.in_column.as_deref()?)));
    let stale = in_column.map_or(String::new(), |(m, column)| {
        let column = quoted(column);
        let of_row = |row: &str| format!("(SELECT t.{column} FROM (SELECT {row}.*) AS t)");
        format!(
            "    IF is_update THEN
        stale := {} IS NOT DISTINCT FROM {} AND ({} IS DISTINCT FROM {}
            OR was AND NOT ({same_key}) AND EXISTS (SELECT 1 FROM rehang.item_{g} AS i JOIN rehang.state_{m} AS s ON s.item = i.key
                WHERE {} AND s.provenance = 'lacking'));
    END IF;
",
            of_row("OLD"),
            of_row("NEW"),
            table.source_of("OLD"),
            table.source_of("NEW"),
            of("OLD"),
        )
    });
    format!(
        "CREATE OR REPLACE FUNCTION rehang.changed_{g}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {search_path} AS $rehang$
#variable_conflict use_column
DECLARE
    this bigint;
    now bigint;
    has_source boolean;
    is_update boolean := TG_OP = 'UPDATE';
    was boolean := false;
    stale boolean := false;
    older boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        {truncate};
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        was := {was_item};
    END IF;
{stale}    IF TG_OP = 'DELETE' OR (is_update AND was AND NOT ({same_key} AND {is_item})) THEN
        DELETE FROM rehang.item_{g} WHERE {of_old} RETURNING key INTO this;
        -- A snapshot from before the item was listed does not see it: the server says so here, and the transaction is made again.
        IF this IS NULL AND was AND older THEN
            INSERT INTO rehang.item_{g} (id, {key_names}, revision, sourced) VALUES ({old_id}, {old_key}, 0, false)
                ON CONFLICT ({key_names}) DO UPDATE SET revision = 0;
            DELETE FROM rehang.item_{g} WHERE {of_old};
        END IF;
        IF this IS NOT NULL THEN
{gone}            NULL;
        END IF;
        was := false;
    END IF;
    is_update := is_update AND was;
    IF TG_OP = 'DELETE' OR NOT {is_item} THEN
        RETURN NULL;
    END IF;
    IF is_update AND {same} THEN
        RETURN NULL;
    END IF;
    now := nextval('rehang.revision');
    has_source := {source} IS NOT NULL;
    INSERT INTO rehang.item_{g} AS i (id, {key_names}, revision, sourced) VALUES ({id}, {key}, now, has_source)
         ON CONFLICT ({key_names}) DO UPDATE SET revision = now, sourced = EXCLUDED.sourced RETURNING i.key INTO this;
{added}    RETURN NULL;
END
$rehang$;",
        was_item = table.is_item("OLD"),
        // In a DELETE there is no NEW; the first half of each condition has decided then.
        is_item = table.is_item("NEW"),
        of_old = of("OLD"),
        same = same.join(" AND "),
        source = table.source_of("NEW"),
        key_names = table.key_names(),
        id = table.id_of("NEW"),
        key = table.key_of("NEW"),
        old_id = table.id_of("OLD"),
        old_key = table.key_of("OLD"),
    )
}

/// Tables and indexes of a space.
pub(crate) fn space_tables(n: i32, space: &Space, in_column: Option<&str>) -> String {
    let vectors = match in_column {
        Some(_) => String::new(),
        None => format!(
            "CREATE TABLE IF NOT EXISTS rehang.vector_{n} (item bigint PRIMARY KEY, value {} NOT NULL);",
            column_type(space.dimension)
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
             change bigint NOT NULL DEFAULT 0
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
         {vectors}"
    )
}

/// Takes the tables of a space away.
pub(crate) fn drop_space_tables(n: i32) -> String {
    ["state", "failure", "claim", "vector"]
        .map(|table| format!("DROP TABLE IF EXISTS rehang.{table}_{n};"))
        .concat()
}

/// Widest vector that an index on `vector` takes; `halfvec` goes twice as far.
const INDEXED_AS_VECTOR: usize = 2_000;
const INDEXED_AS_HALFVEC: usize = 4_000;

/// Whether vectors of a width can have an index at all.
pub(crate) fn can_be_indexed(dimension: usize) -> bool {
    dimension <= INDEXED_AS_HALFVEC
}

fn type_name(dimension: usize) -> &'static str {
    if dimension <= INDEXED_AS_VECTOR || !can_be_indexed(dimension) { "vector" } else { "halfvec" }
}

/// Whether a column of ours holds vectors of a width as `halfvec`, as SQL.
pub(crate) fn stored_as_halfvec(dimension: &str) -> String {
    format!("{dimension} > {INDEXED_AS_VECTOR} AND {dimension} <= {INDEXED_AS_HALFVEC}")
}

/// The type of a column of vectors that is ours.
pub(crate) fn column_type(dimension: usize) -> String {
    format!("{}({dimension})", type_name(dimension))
}

/// The operator that orders vectors by a distance, and the class of its indexes.
pub(crate) fn operator(distance: Distance) -> (&'static str, &'static str) {
    match distance {
        Distance::L2 => ("<->", "l2_ops"),
        Distance::Cosine => ("<=>", "cosine_ops"),
        Distance::Dot => ("<#>", "ip_ops"),
    }
}

/// Makes the search index of a space, while everybody goes on writing.
pub(crate) fn vector_index(n: i32, space: &Space) -> String {
    format!(
        "CREATE INDEX CONCURRENTLY vector_{n}_nearest ON rehang.vector_{n} USING hnsw (value {})",
        class(space)
    )
}

/// The same over a column of the application's table.
pub(crate) fn column_index(on: &str, column: &str, space: &Space) -> String {
    format!("CREATE INDEX CONCURRENTLY ON {on} USING hnsw ({} {})", quoted(column), class(space))
}

fn class(space: &Space) -> String {
    format!("{}_{}", type_name(space.dimension), operator(space.distance).1)
}

/// Comments for people who meet the tables.
pub(crate) fn comment(g: i32, table: &Table) -> String {
    format!(
        "COMMENT ON TABLE rehang.item_{g} IS {};",
        literal(&format!(
            "rehang: the items of {}, kept by the triggers 00_rehang_{g}_* on it",
            table.options.table
        ))
    )
}
