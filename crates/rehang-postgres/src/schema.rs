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
use rehang_store::{PAIRS_SEED, QueueBand};

use crate::guard::{EQUALS, FUNCTIONS, SAME_TEXT, SEARCH_PATH, VERSION_MARK};
use crate::paid;
use crate::pgvector::Pgvector;
use crate::table::{Table, hash_of_source, hash_of_vector, literal, quoted};

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
/// written as in [`trigger_function`].
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

/// Returns the function of the triggers, which keeps the items and every space right, whoever writes the
/// table. It runs with its owner's rights, so that the application's role needs none on the gallery's schema.
/// So nobody else may call it, and it works for its gallery's table alone, whoever made a trigger of it.
/// Every name in it is the server's: where an operator cannot be named in full (`IN`, `IS DISTINCT FROM`),
/// its operands are of the server's own types.
///
/// Nothing of pgvector's is named: an extension moves to another schema (`ALTER EXTENSION vector SET
/// SCHEMA`), and the application writes on.
pub(crate) fn trigger_function(g: i32, table: &Table, spaces: &[SpaceRow]) -> String {
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
        let forget_of = |tables: &[String]| -> String {
            tables
                .iter()
                .map(|table| format!("            DELETE FROM {table} WHERE item = this;\n"))
                .collect()
        };
        let forget = forget_of(&tables_of(n, row));
        let of_source = forget_of(&tables_of(n, row)[..2]);
        truncate += &format!(", rehang.state_{n}, {}", tables_of(n, row).join(", "));
        if row.in_column.is_none() {
            gone += &paid::keep(n, table);
        }
        gone += &format!(
            "            DELETE FROM rehang.state_{n} WHERE item = this;
            IF NOT FOUND AND older THEN
                INSERT INTO rehang.state_{n} (item, revision, provenance, sourced) VALUES (this, 0, 'lacking', false)
                    ON CONFLICT (item) DO UPDATE SET revision = 0;
                DELETE FROM rehang.state_{n} WHERE item = this;
            END IF;
{forget}"
        );
        let of_source = format!(
            "        IF NOT keeps{} THEN\n{of_source}        END IF;\n",
            match row.in_column {
                None => String::new(),
                Some(_) => format!(
                    " OR EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = this AND s.provenance <> 'lacking')"
                ),
            }
        );
        let state = |stays: &str, provenance: &str, [sigma2, band, score]: [&str; 3]| {
            format!(
                "INSERT INTO rehang.state_{n} AS s (item, revision, source_revision, provenance, sourced, sigma2, band, score)
         VALUES (this, now, with_source, {provenance}, has_source, {sigma2}, {band}, {score})
         ON CONFLICT (item) DO UPDATE SET revision = now, sourced = EXCLUDED.sourced,
             source_revision = with_source, failed = keeps AND s.failed AND EXCLUDED.provenance IN ('lacking', 'adapted'),
             provenance = CASE WHEN {stays} THEN s.provenance ELSE EXCLUDED.provenance END,
             sigma2 = CASE WHEN {stays} THEN s.sigma2 ELSE EXCLUDED.sigma2 END, band = CASE WHEN {stays} THEN s.band ELSE EXCLUDED.band END,
             score = CASE WHEN {stays} THEN s.score ELSE EXCLUDED.score END, squared_error = CASE WHEN {stays} THEN s.squared_error END,
             change = CASE WHEN {stays} THEN s.change ELSE 0 END;\n"
            )
        };
        let nothing = ["NULL", "0", "NULL"];
        added += &if row.in_column.is_some() {
            // A vector in a column is of this content only if it came with it.
            let provenance = format!(
                    "CASE WHEN new_vector IS NULL OR stale OR pg_catalog.cardinality(new_vector) <> {} OR (is_update AND {SAME_VECTOR})
                         THEN 'lacking' ELSE '{}' END",
                    row.record.space.dimension,
                    row.record.written_as.name(),
                );
            format!(
                "    {}    IF is_update THEN\n{of_source}    END IF;\n",
                state("false", &provenance, nothing)
            )
        } else {
            let stays = "keeps AND s.provenance = 'native'";
            let front = (QueueBand::NewOrChanged as i16).to_string();
            format!(
                    "    IF made_in = {n} THEN
        BEGIN
        {adapted}        INSERT INTO rehang.vector_{n} (item, value) SELECT this, made FROM rehang.state_{n} AS s
            WHERE s.item = this AND s.provenance = 'adapted' ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value;
        EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            made_in := NULL;
        END;
    END IF;
    IF made_in IS DISTINCT FROM {n} THEN
        {lacking}    END IF;
    IF is_update THEN
        DELETE FROM rehang.vector_{n} AS v WHERE v.item = this
            AND NOT EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = this AND s.provenance IN ('adapted', 'native'));
{of_source}    END IF;
",
                    adapted = state(stays, "'adapted'", ["made_sigma2", &front, "0"]),
                    lacking = state(stays, "'lacking'", nothing),
                )
        };
        if row.in_column.is_none() {
            added += &paid::give_back_sql(n, table);
        }
    }
    let key_condition = |row: &str| {
        let equal: Vec<String> =
            (1..=table.key.len()).map(|at| format!("k{at} {EQUALS} {row}_{at}")).collect();
        equal.join(" AND ")
    };
    let of_key = |part: &dyn Fn(usize) -> String, between: &str| -> String {
        (1..=table.key.len()).map(part).collect::<Vec<_>>().join(between)
    };
    let same_key = of_key(&|at| format!("old_{at} IS NOT DISTINCT FROM new_{at}"), " AND ");
    let new_key = of_key(&|at| format!("k{at} = new_{at}"), ", ");
    let has_vector = table.options.vector.is_some();
    let mut same = SAME_SOURCE.to_owned();
    if has_vector {
        same += &format!(" AND {SAME_VECTOR}");
    }
    // The old vector of a row does not become one of its new content by another key, or by
    // coming to meet the condition.
    let in_column = spaces.iter().find_map(|row| row.in_column.as_ref().map(|_| row.number));
    let by_key = in_column.map_or(String::new(), |m| {
        format!(
            "
            OR was AND NOT ({same_key}) AND EXISTS (SELECT 1 FROM rehang.item_{g} AS i JOIN rehang.state_{m} AS s ON s.item = i.key
                WHERE {} AND s.provenance = 'lacking')",
            key_condition("old"),
        )
    });
    let stale = format!(
        "    IF is_update THEN
        stale := {SAME_VECTOR} AND (NOT ({SAME_SOURCE}){by_key});
    END IF;
"
    );
    let stale = if has_vector { stale } else { String::new() };
    // The function only reads, and takes no number of a transaction. Where it cannot be asked, the item lacks
    // a vector until somebody catches up with it.
    let adapt = format!(
        "    IF new_vector IS NOT NULL AND NOT stale AND NOT (is_update AND {SAME_VECTOR}) THEN
        BEGIN
            SELECT a.space, a.value, a.sigma2 INTO made_in, made, made_sigma2 FROM rehang.adapted({g}, new_vector) AS a;
        EXCEPTION WHEN OTHERS THEN
            made_in := NULL;
        END;
    END IF;
"
    );
    let adapt = if has_vector { adapt } else { String::new() };
    let parts = Parts::for_table(g, table, spaces);
    format!(
        "CREATE OR REPLACE FUNCTION rehang.changed_{g}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {SEARCH_PATH}{parts_settings} AS $rehang$
#variable_conflict use_column
DECLARE
    this bigint;
    now bigint;
    has_source boolean;
    is_update boolean := TG_OP = 'UPDATE';
    was boolean := false;
    renamed boolean := false;
    keeps boolean := false;
    with_source bigint;
    stale boolean := false;
    made_in int;
    made pg_catalog.float4[];
    made_sigma2 pg_catalog.float4;
    meets boolean;
    old_id text;
    new_id text;
    old_source text COLLATE pg_catalog.\"C\";
    new_source text COLLATE pg_catalog.\"C\";
    names text;
    said text;
    called boolean;
{variables}{parts_variables}    older boolean := pg_catalog.current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
    -- By number, which every snapshot sees. Out of a dump the table has another one. A table that was restored alone has our triggers and no
    -- gallery: its writes are none of ours, and none of them fails.
{parts_whole}    IF {is_other} THEN
{parts_detached}        RETURN NULL;
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
{parts_truncate}{keep_all}        {truncate};
        RETURN NULL;
    END IF;
    -- A column may have taken the name of another.
    called := {this_table} <> {oid} OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = {oid} AND ({others}));
    IF TG_OP <> 'INSERT' THEN
{read_old}    END IF;
    IF TG_OP <> 'DELETE' THEN
{read_new}    END IF;
{parts_before}    IF said IS NOT NULL THEN
        -- Once: the doctor tells it. By a name of the transaction's own, so that nobody's write waits for another's.
        INSERT INTO rehang.document (gallery, name, version, text)
            SELECT {g}, pg_catalog.concat('{UNREAD}', pg_catalog.pg_current_xact_id()), 1, pg_catalog.concat(pg_catalog.now(), ': ', said)
            WHERE NOT EXISTS (SELECT 1 FROM rehang.document AS there WHERE there.gallery = {g} AND pg_catalog.starts_with(there.name, '{UNREAD}'))
            ON CONFLICT DO NOTHING;
        IF TG_OP = 'DELETE' THEN
            was := coalesce(was, true);
        ELSIF meets IS NULL OR (is_update AND was IS NULL) THEN
            RETURN NULL;
        END IF;
    END IF;
{parts_moved}{stale}    -- Another key is another name of the same item, which keeps what is known of it.
    IF is_update AND was AND NOT ({same_key}) AND meets THEN
        UPDATE rehang.item_{g} AS i SET id = new_id, {new_key} WHERE {of_old}
            AND NOT EXISTS (SELECT 1 FROM rehang.item_{g} WHERE {of_new});
        renamed := FOUND;
    END IF;
    IF TG_OP = 'DELETE' OR (is_update AND was AND NOT (({same_key} OR renamed) AND meets)) THEN
        DELETE FROM rehang.item_{g} WHERE {of_old} RETURNING key INTO this;
        -- A snapshot from before the item was listed does not see it: the server says so here, and the transaction is made again.
        IF this IS NULL AND was AND older THEN
            INSERT INTO rehang.item_{g} (id, {key_names}, revision, sourced) VALUES (old_id, {old_key}, 0, false)
                ON CONFLICT ({key_names}) DO UPDATE SET revision = 0;
            DELETE FROM rehang.item_{g} WHERE {of_old};
        END IF;
        IF this IS NOT NULL THEN
{gone}            NULL;
        END IF;
        was := false;
    END IF;
    is_update := is_update AND was;
    IF TG_OP = 'DELETE' OR NOT meets THEN
        RETURN NULL;
    END IF;
    IF is_update AND {same} THEN
        RETURN NULL;
    END IF;
    now := {NEXT_REVISION};
    has_source := new_source IS NOT NULL;
    -- What was made from the source alone stays with it.
    keeps := is_update AND has_source AND {SAME_SOURCE};
    INSERT INTO rehang.item_{g} AS i (id, {key_names}, revision, sourced{hash_names}) VALUES (new_id, {key}, now, has_source{hashes})
         ON CONFLICT ({key_names}) DO UPDATE SET revision = now, sourced = EXCLUDED.sourced,{hash_updates}
             source_revision = CASE WHEN keeps THEN {source_revision} END RETURNING i.key, i.source_revision INTO this, with_source;
{adapt}{added}    RETURN NULL;
END
$rehang$;
REVOKE ALL ON FUNCTION rehang.changed_{g}() FROM PUBLIC;
{comment}",
        keep_all = paid::keep_all(g, table, spaces),
        oid = table.oid,
        this_table = if table.is_partitioned { "whole" } else { "TG_RELID" },
        is_other = if table.is_partitioned {
            "whole IS NULL".to_owned()
        } else {
            format!(
                "TG_RELID <> {} AND NOT EXISTS (SELECT 1 FROM rehang.gallery AS ours WHERE ours.number = {g} AND ours.relation = TG_RELID)",
                table.oid
            )
        },
        parts_settings = parts.settings,
        parts_variables = parts.variables,
        parts_whole = parts.whole_table,
        parts_detached = parts.detached,
        parts_truncate = parts.truncate,
        parts_before = parts.before,
        parts_moved = parts.moved,
        hash_names = parts.hash_names,
        hashes = parts.hashes,
        hash_updates = parts.hash_updates,
        comment = function_comment(
            &format!("rehang.changed_{g}()"),
            &format!("keeps the gallery of {} right, whoever writes the table", table.options.table)
        ),
        others = table
            .trigger_columns()
            .map(|(name, number)| format!("a.attnum = {number} AND a.attname <> {}", literal(name)))
            .collect::<Vec<_>>()
            .join(" OR "),
        variables = variables(table),
        read_old = read_row(table, "old"),
        read_new = read_row(table, "new"),
        of_old = key_condition("old"),
        of_new = key_condition("new"),
        source_revision = source_revision("i"),
        key_names = table.key_names(),
        key = of_key(&|at| format!("new_{at}"), ", "),
        old_key = of_key(&|at| format!("old_{at}"), ", "),
    )
}

/// Parts of the function of the triggers for a partitioned table: there it fires for the
/// tables that the rows lie in.
#[derive(Default)]
struct Parts {
    settings: String,
    variables: String,
    /// Code that finds which table of the gallery the trigger is about.
    whole_table: String,
    /// Code for a table that is no partition any more.
    detached: &'static str,
    truncate: String,
    /// Code for a row that may be about to move to another partition.
    before: String,
    /// Code for a row that went by such a move, or came by one.
    moved: String,
    hash_names: &'static str,
    hashes: String,
    hash_updates: &'static str,
}

impl Parts {
    fn for_table(g: i32, table: &Table, spaces: &[SpaceRow]) -> Self {
        if !table.is_partitioned {
            return Self::default();
        }
        let count = table.key.len();
        let of_key = |part: &dyn Fn(usize) -> String, between: &str| -> String {
            (1..=count).map(part).collect::<Vec<_>>().join(between)
        };
        let of_row =
            |letter: char, row: &str| of_key(&|at| format!("m.{letter}{at} {EQUALS} {row}_{at}"), " AND ");
        let mine = "m.xact = pg_catalog.pg_current_xact_id()";
        // The rows that go are read by their own table's name, since nobody else uses them
        // and they are still there.
        let rows = format!(
            "WITH gone AS (DELETE FROM rehang.item_{g} AS i USING ONLY %s AS t WHERE {} RETURNING i.key) SELECT pg_catalog.array_agg(gone.key) FROM gone",
            table.is_of("i", "t").replace('%', "%%")
        );
        let of_spaces: String = spaces
            .iter()
            .flat_map(|space| {
                let tables = ["state", "failure", "claim"].into_iter();
                tables.chain(space.in_column.is_none().then_some("vector")).map(|name| {
                    format!(
                        "                DELETE FROM rehang.{name}_{} AS s WHERE s.item = ANY (these);\n",
                        space.number
                    )
                })
            })
            .collect();
        let arrived = format!(
            "SELECT pg_catalog.count(*) > 0 FROM %s AS t WHERE {} AND {} AND {} IS NOT DISTINCT FROM ${}",
            table
                .key
                .iter()
                .zip(1..)
                .map(|(column, at)| format!("t.{} {EQUALS} ${at}", quoted(&column.name)).replace('%', "%%"))
                .collect::<Vec<_>>()
                .join(" AND "),
            table.is_item("t").replace('%', "%%"),
            table.source_of("t").replace('%', "%%"),
            count + 1
        );
        let vector_hash =
            if table.options.vector.is_some() { hash_of_vector("new_vector") } else { "NULL::bigint".into() };
        Self {
            // The table of moving rows was empty when its plan was made, and may be full a moment later. A
            // partition that has another owner has no policy that would be asked with our rights.
            settings: SAME_TEXT.map(|(name, value)| format!(" SET {name} = {value}")).concat()
                + " SET enable_seqscan = off SET row_security = off",
            variables: "    whole oid;\n    these bigint[];\n    moving record;\n".into(),
            whole_table: format!(
                "    whole := (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(TG_RELID) AS a
        WHERE a.relid = {0} OR a.relid = (SELECT ours.relation FROM rehang.gallery AS ours WHERE ours.number = {g}) ORDER BY a.relid <> {0} LIMIT 1);\n",
                table.oid
            ),
            // A trigger before an update that returned no row would hold the update back.
            detached: "        IF TG_WHEN = 'BEFORE' AND TG_OP = 'UPDATE' THEN
            RETURN NEW;
        END IF;\n",
            truncate: format!(
                "        IF TG_RELID <> whole THEN
            -- One partition: the items of its rows go. There are none where the whole is truncated.
            BEGIN
                IF EXISTS (SELECT 1 FROM rehang.item_{g}) THEN
                    EXECUTE pg_catalog.format({}, TG_RELID::pg_catalog.regclass) INTO these;
{of_spaces}                END IF;
            EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
                RAISE;
            WHEN OTHERS THEN
                INSERT INTO rehang.document (gallery, name, version, text)
                    SELECT {g}, pg_catalog.concat('{UNREAD}', pg_catalog.pg_current_xact_id()), 1,
                        pg_catalog.concat(pg_catalog.now(), ': ', SQLSTATE, ' at the TRUNCATE of ', TG_RELID::pg_catalog.regclass)
                    WHERE NOT EXISTS (SELECT 1 FROM rehang.document AS there WHERE there.gallery = {g} AND pg_catalog.starts_with(there.name, '{UNREAD}'))
                    ON CONFLICT DO NOTHING;
            END;
            RETURN NULL;
        END IF;\n",
                literal(&rows)
            ),
            // The statement's effect on the row is seen when it is over. Moves that an earlier statement did
            // not make are forgotten here.
            before: format!(
                "    IF TG_WHEN = 'BEFORE' THEN
        IF said IS NULL AND was AND meets THEN
            DELETE FROM rehang.moving_{g} AS m WHERE {};
            INSERT INTO rehang.moving_{g} (xact, {}, {}, id, source, vector)
                VALUES (pg_catalog.pg_current_xact_id(), {}, {}, new_id, old_source, old_vector);
        END IF;
        RETURN NEW;
    END IF;\n",
                of_row('o', "old"),
                of_key(&|at| format!("o{at}"), ", "),
                of_key(&|at| format!("n{at}"), ", "),
                of_key(&|at| format!("old_{at}"), ", "),
                of_key(&|at| format!("new_{at}"), ", "),
            ),
            moved: format!(
                "    IF is_update AND NOT ({same_key}) THEN
        DELETE FROM rehang.moving_{g} AS m WHERE {mine} AND {old};
    ELSIF TG_OP = 'DELETE' AND was THEN
        -- A row that moves to another partition is deleted here and inserted there, by one statement, which is over: it is there already.
        SELECT m.* INTO moving FROM rehang.moving_{g} AS m WHERE {mine} AND {old} LIMIT 1;
        IF FOUND THEN
            IF called THEN
                BEGIN
                    EXECUTE pg_catalog.format({arrived}, whole::pg_catalog.regclass) INTO renamed USING {moving_new}, moving.source;
                EXCEPTION WHEN OTHERS THEN
                    renamed := false;
                END;
            END IF;
            IF renamed THEN
                UPDATE rehang.item_{g} AS i SET id = moving.id, {new_key} WHERE {of_old}
                    AND NOT EXISTS (SELECT 1 FROM rehang.item_{g} WHERE {of_new});
                renamed := FOUND;
            END IF;
            UPDATE rehang.moving_{g} AS m SET has_gone = true, is_kept = renamed WHERE {mine} AND {old};
            IF renamed THEN
                RETURN NULL;
            END IF;
        END IF;
    ELSIF TG_OP = 'INSERT' THEN
        DELETE FROM rehang.moving_{g} AS m WHERE {mine} AND m.has_gone AND {new} RETURNING m.* INTO moving;
        IF FOUND THEN
            -- As by an update in place: of another key, and where its source is another one too, of all content.
            is_update := true;
            was := moving.is_kept;
            old_source := moving.source;
            old_vector := moving.vector;
            IF was THEN
                old_id := new_id;
                {old_is_new}
            END IF;
        END IF;
    END IF;\n",
                old = of_row('o', "old"),
                new = of_row('n', "new"),
                arrived = literal(&arrived),
                moving_new = of_key(&|at| format!("moving.n{at}"), ", "),
                new_key = of_key(&|at| format!("k{at} = moving.n{at}"), ", "),
                of_old = of_key(&|at| format!("k{at} {EQUALS} old_{at}"), " AND "),
                of_new = of_key(&|at| format!("k{at} {EQUALS} moving.n{at}"), " AND "),
                old_is_new = of_key(&|at| format!("old_{at} := new_{at};"), " "),
                same_key = of_key(&|at| format!("old_{at} IS NOT DISTINCT FROM new_{at}"), " AND "),
            ),
            hash_names: ", source_hash, vector_hash",
            hashes: format!(", {}, {}", hash_of_source("new_source"), vector_hash),
            hash_updates: " source_hash = EXCLUDED.source_hash, vector_hash = EXCLUDED.vector_hash,",
        }
    }
}

/// First word of the name of a document that says since when, and why, rows could not be read in full where
/// the triggers met them. Most often there is one document: those of transactions that were open at the same
/// time have a number behind the word.
pub(crate) const UNREAD: &str = "unread";

/// Condition that an update leaves the source as it is, in the variables that [`read_row`] fills.
const SAME_SOURCE: &str = "old_source IS NOT DISTINCT FROM new_source";
/// Condition that an update leaves the vector as it is: the bytes are compared, which no
/// operator can redefine.
const SAME_VECTOR: &str = "pg_catalog.record_image_eq(ROW(old_vector), ROW(new_vector))";

/// Returns the variables of the function of the triggers that hold the columns of a row.
fn variables(table: &Table) -> String {
    let of_row = |row: &str| {
        let key = table.key.iter().zip(1..).map(|(column, at)| {
            // A collation may get another name, and most collations take the same letters for equal.
            let collation = column.collation.iter().filter(|_| column.has_equals);
            let collation = collation.map(|collation| format!(" COLLATE {collation}")).collect::<String>();
            format!("    {row}_{at} {}{collation};\n", column.kind)
        });
        let key: String = key.collect();
        format!("{key}    {row}_vector pg_catalog.float4[];\n")
    };
    of_row("old") + &of_row("new")
}

/// Returns the code that reads what matters of `OLD` or `NEW` into variables.
///
/// **Invariant**: no write of the application fails by it. A column that has another name by now is found by
/// its number. A source that cannot be made of the row counts as none. Where even the condition fails, a row
/// that is deleted is taken for an item, and any other is passed over. Both are told by the document
/// [`UNREAD`]. The blocks read only, so none of them takes a number of a transaction.
fn read_row(table: &Table, row: &str) -> String {
    let meets = if row == "old" { "was" } else { "meets" };
    // The parts of a row, each with its variable: first those that can always be read, then those that the
    // application's expressions decide.
    let parts = |of: &str, condition: &str, source: &str| -> Vec<(String, String)> {
        let key = table.key.iter().zip(1..);
        let mut parts: Vec<(String, String)> = key
            .map(|(column, at)| (format!("{row}_{at}"), format!("{of}.{}", quoted(&column.name))))
            .collect();
        parts.push((format!("{row}_id"), table.id_of(of)));
        parts.push((meets.to_owned(), condition.to_owned()));
        parts.push((format!("{row}_source"), source.to_owned()));
        parts.extend(table.options.vector.iter().map(|column| {
            let numbers =
                format!("(SELECT t.{}::pg_catalog.float4[] FROM (SELECT {of}.*) AS t)", quoted(column));
            (format!("{row}_vector"), numbers)
        }));
        parts
    };
    let record = row.to_uppercase();
    let by_name: String = parts(&record, &table.is_item(&record), &table.source_of(&record))
        .iter()
        .map(|(variable, value)| format!("            {variable} := {value};\n"))
        .collect();
    let by_number = |condition: &str, source: &str| {
        let (variables, values): (Vec<String>, Vec<String>) =
            parts("r", condition, source).into_iter().unzip();
        let sql = format!("SELECT {} FROM (SELECT ($1).*) AS r(", values.join(", ")).replace('%', "%%");
        format!(
            "EXECUTE pg_catalog.format({}, names) INTO {} USING {record};",
            literal(&(sql + "%s)")),
            variables.join(", ")
        )
    };
    // A partition has the columns of the whole by name, and by numbers of its own.
    let number = if table.is_partitioned {
        "(SELECT w.attnum FROM pg_catalog.pg_attribute AS w WHERE w.attrelid = whole AND w.attname = a.attname)"
    } else {
        "a.attnum"
    };
    let columns: serde_json::Map<String, serde_json::Value> = table
        .columns
        .iter()
        .filter(|(name, _)| !name.contains("$rehang$"))
        .map(|(name, number)| (number.to_string(), serde_json::Value::from(name.as_str())))
        .collect();
    format!(
        "        BEGIN
            IF NOT called THEN
                RAISE EXCEPTION USING ERRCODE = 'undefined_column';
            END IF;
{by_name}        EXCEPTION WHEN OTHERS THEN
            -- No value of the row goes into what is told: roles may read that which do not see the row.
            GET STACKED DIAGNOSTICS said = MESSAGE_TEXT;
            said := pg_catalog.concat(SQLSTATE, CASE WHEN SQLSTATE LIKE '42%' THEN pg_catalog.concat(' ', said) END);
            -- Out of a dump the columns have other numbers.
            names := (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(CASE WHEN {} <> {} THEN a.attname::text
                    ELSE coalesce({}::pg_catalog.jsonb ->> {}::text, pg_catalog.concat('new ', a.attname)) END), ', ' ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped);
            BEGIN
                {}
                said := NULL;
            EXCEPTION WHEN OTHERS THEN
                BEGIN
                    {}
                EXCEPTION WHEN OTHERS THEN
                    {}
                END;
            END;
        END;
",
        if table.is_partitioned { "whole" } else { "TG_RELID" },
        table.oid,
        literal(&serde_json::Value::Object(columns).to_string()),
        number,
        by_number(&table.is_item("r"), &table.source_of("r")),
        by_number(&table.is_item("r"), "NULL::text"),
        by_number("NULL::boolean", "NULL::text"),
    )
}

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

/// Returns the statement that makes the search index of a space, while everybody goes on writing.
pub(crate) fn vector_index(n: i32, space: &Space, pgvector: &Pgvector) -> String {
    format!(
        "CREATE INDEX CONCURRENTLY vector_{n}_nearest ON rehang.vector_{n} USING hnsw (value {})",
        class(type_name(space.dimension), space.distance, pgvector)
    )
}

/// Returns the statement that makes a search index over a column of the application's table, while
/// everybody goes on writing.
pub(crate) fn column_index(
    on: &str,
    column: &ColumnOfVectors,
    distance: Distance,
    pgvector: &Pgvector,
) -> String {
    let class = class(column.type_name(), distance, pgvector);
    format!("CREATE INDEX CONCURRENTLY ON {on} USING hnsw ({} {class})", quoted(&column.name))
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
