//! Native vectors whose items are gone, kept for items that come back. An application that deletes all rows
//! and writes them anew, in one transaction or in two, has changed nothing that a native vector was made of.
//!
//! `rehang.paid_N` has those of space N for a day, each by a hash of the item's id and source. The triggers
//! put them there, and give them to an item of the same id and source. Nobody but the owner sees the table.
//! It is not logged: what a crash of the server takes is paid for again.
//!
//! **Invariant**: the table is no larger than that of the space's own vectors, or than [`BYTES`], so that a
//! gallery that is written anew as a whole fits. Each deletion beyond that clears away the vector that has
//! waited longest; a `TRUNCATE` clears away all that waited before it.

use rehang_core::Space;

use crate::pgvector::Pgvector;
use crate::schema::{SpaceRow, column_type};
use crate::table::Table;

/// Seconds that a vector waits for its item to come back, where nothing else is said.
const KEPT_S: u32 = 86_400;
/// Bytes that the waiting vectors of a space may take, however small the space is.
const BYTES: u32 = 64 << 20;
/// Bytes from which on a source is not compared, since the server may refuse to copy it.
const BYTES_MAX: u32 = 100_000_000;

/// Returns the moment since which a vector may wait for its item to come back, as SQL;
/// `None` where none is kept.
fn kept_since(table: &Table) -> Option<String> {
    let kept_s = table.options.keep_paid_s.unwrap_or(KEPT_S);
    (kept_s > 0).then(|| format!("pg_catalog.now() - interval '{kept_s} seconds'"))
}

/// Returns the condition that the waiting vectors of a space take more bytes than they may, as SQL.
fn is_over(n: i32) -> String {
    format!(
        "pg_catalog.pg_table_size('rehang.paid_{n}') > GREATEST(pg_catalog.pg_table_size('rehang.vector_{n}'), {BYTES})"
    )
}

/// Returns the statement that clears away some of a space's waiting vectors, without waiting for others
/// that clear away the same.
fn clear(n: i32, which: &str) -> String {
    format!(
        "DELETE FROM rehang.paid_{n} WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM rehang.paid_{n} AS p {which} FOR UPDATE SKIP LOCKED));"
    )
}

/// Returns the statement that makes the table of a space's waiting vectors. Among items with the same id, the
/// later one has the larger number.
pub(crate) fn table(n: i32, space: &Space, pgvector: &Pgvector) -> String {
    format!(
        "CREATE UNLOGGED TABLE IF NOT EXISTS rehang.paid_{n} (hash bytea NOT NULL, item bigint NOT NULL, kept timestamptz NOT NULL, value {} NOT NULL);
         CREATE INDEX IF NOT EXISTS paid_{n}_hash ON rehang.paid_{n} (hash, item);
         CREATE INDEX IF NOT EXISTS paid_{n}_kept ON rehang.paid_{n} (kept);
         ALTER TABLE rehang.paid_{n} ENABLE ROW LEVEL SECURITY;",
        pgvector.named(&column_type(space.dimension))
    )
}

/// Returns the statements that make the tables for the spaces of a gallery of an earlier version. Where none
/// is to be kept, they empty the tables.
pub(crate) fn tables(on: &Table, spaces: &[SpaceRow], pgvector: &Pgvector) -> String {
    let empty = kept_since(on).is_none();
    let ours = spaces.iter().filter(|space| space.in_column.is_none());
    ours.map(|space| {
        let n = space.number;
        // A plain `IF NOT EXISTS` would lock a table that is there.
        format!(
            "DO $rehang$ BEGIN IF to_regclass('rehang.paid_{n}') IS NULL THEN {} END IF; {} END $rehang$;",
            table(n, &space.record.space, pgvector),
            if empty { format!("DELETE FROM rehang.paid_{n};") } else { String::new() }
        )
    })
    .collect()
}

/// Returns the hash by which an item is known again, of its id and its source, as SQL. No encoding is
/// converted, so that nothing can fail.
fn hash(id: &str, source: &str) -> String {
    format!(
        "pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat(pg_catalog.length({id}), ' ', {id}, ' ', {source}), pg_catalog.getdatabaseencoding()))"
    )
}

/// Returns the condition that a source is compared at all, as SQL.
fn is_compared(source: &str) -> String {
    format!("pg_catalog.octet_length({source}) < {BYTES_MAX}")
}

const INTO: &str = "(hash, item, kept, value)";
const KEEPS: &str = "v.item, pg_catalog.now(), v.value";

/// Returns the part of the triggers' function that keeps the native vector of the item `this`, which is
/// about to go. Vectors that are too old are cleared away little by little, where no snapshot keeps that
/// from being done without waiting.
pub(crate) fn keep(n: i32, table: &Table) -> String {
    let Some(since) = kept_since(table) else { return String::new() };
    format!(
        "            IF {is_compared} THEN
                INSERT INTO rehang.paid_{n} {INTO} SELECT {hash}, {KEEPS}
                    FROM rehang.state_{n} AS s JOIN rehang.vector_{n} AS v ON v.item = s.item WHERE s.item = this AND s.provenance = 'native';
                IF FOUND AND NOT older THEN
                    {clear_old}
                    IF NOT FOUND AND {is_over} THEN
                        {clear_oldest}
                    END IF;
                END IF;
            END IF;\n",
        clear_old = clear(n, &format!("WHERE p.kept < {since} ORDER BY p.kept LIMIT 2")),
        is_over = is_over(n),
        clear_oldest = clear(n, "ORDER BY p.kept LIMIT 1"),
        is_compared = is_compared("old_source"),
        hash = hash("old_id", "old_source"),
    )
}

/// Returns the part of the triggers' function that gives the item `this`, which has just come, the native
/// vector of an earlier item with its id and source.
pub(crate) fn give_back_sql(n: i32, table: &Table) -> String {
    let Some(since) = kept_since(table) else { return String::new() };
    format!(
        "    IF NOT is_update AND {is_compared} THEN
        INSERT INTO rehang.vector_{n} AS v (item, value) SELECT this, p.value FROM rehang.paid_{n} AS p
            WHERE p.hash = {hash} AND p.kept >= {since} ORDER BY p.item DESC LIMIT 1
            ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value;
        IF FOUND THEN
            UPDATE rehang.state_{n} SET provenance = 'native', sigma2 = NULL, band = 0, score = NULL WHERE item = this;
        END IF;
    END IF;\n",
        is_compared = is_compared("new_source"),
        hash = hash("new_id", "new_source"),
    )
}

/// Returns the part of the triggers' function that keeps all native vectors before a `TRUNCATE`, and clears
/// away what is too old or too much. Where the rows cannot be read, they are paid for again, and the
/// application's statement goes on.
pub(crate) fn keep_all(g: i32, table: &Table, spaces: &[SpaceRow]) -> String {
    let (Some(since), Some(_)) = (kept_since(table), &table.options.source) else { return String::new() };
    let source = table.source_of("t");
    let ours = spaces.iter().filter(|space| space.in_column.is_none());
    let keep: String = ours
        .map(|space| {
            let n = space.number;
            format!(
                "            INSERT INTO rehang.paid_{n} {INTO} SELECT {hash}, {KEEPS}
                FROM rehang.state_{n} AS s JOIN rehang.vector_{n} AS v ON v.item = s.item JOIN rehang.item_{g} AS i ON i.key = s.item
                JOIN {on} AS t ON {is_of} WHERE s.provenance = 'native' AND {is_compared};
            IF NOT older THEN
                {clear}
            END IF;\n",
                hash = hash("i.id", &format!("({source})::text")),
                on = table.qualified,
                is_of = table.is_of("i", "t"),
                is_compared = is_compared(&format!("({source})::text")),
                clear = clear(
                    n,
                    &format!("WHERE p.kept < {since} OR p.kept < pg_catalog.now() AND {}", is_over(n))
                ),
            )
        })
        .collect();
    if keep.is_empty() {
        return String::new();
    }
    format!(
        "        BEGIN
{keep}        EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            NULL;
        END;\n"
    )
}
