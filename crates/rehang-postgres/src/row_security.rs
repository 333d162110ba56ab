//! Row security on the gallery's own tables: of them a role sees only what belongs to rows that the
//! application's policies show it.
//!
//! Each table of a gallery has a policy for reading. It lets everything through while the server applies no
//! row security to the role that asks. The server says so anew for every statement, so a policy that is
//! switched on in the middle of an upgrade holds from the next search on. Otherwise the application's row is
//! looked for with the rights of that role, and so by its policies.
//!
//! The tables of a space have three more policies, for writing. A role that changes something of an item has
//! to be one that may update the item's row, which the server checks where the row is locked. The owner of
//! the gallery's tables is not subject to the policies.

use crate::guard::EQUALS;
use crate::schema::is_named;
use crate::table::{Table, literal, quoted};

/// Tables of a space that have rows for items.
const OF_SPACE: [&str; 4] = ["state", "failure", "claim", "vector"];

/// Policies for writing to a space's tables: each with its name, its command, and the word for its condition.
const WRITES: [Write; 3] = [
    ("rehang_deletes", "DELETE", "USING"),
    ("rehang_inserts", "INSERT", "WITH CHECK"),
    ("rehang_updates", "UPDATE", "USING"),
];

type Write = (&'static str, &'static str, &'static str);

/// Returns the statements that make the functions which the policies call. `seen_all` says whether the role
/// that asks sees every row of the application's table; `NULL` where the table is gone. Rows of a partition
/// are asked for through the table that the partition belongs to. The others look for the application's row
/// of an item: `seen` by the columns of its key, `seen_item` by its number, and `changes_item` by its number
/// to update it. Their texts bind nothing to the gallery's tables, which change with versions.
pub(crate) fn functions(g: i32, table: &Table) -> String {
    let kinds: Vec<&str> = table.key.iter().map(|column| column.kind.as_str()).collect();
    let columns = table.key.iter().zip(1..);
    let mut is_row: Vec<String> =
        columns.map(|(column, at)| format!("t.{} {EQUALS} ${at}", quoted(&column.name))).collect();
    let mut is_row_of_item = vec![table.is_of("i", "t")];
    let is_named = is_named(g, table);
    let on = table.root.as_ref().map_or(&table.qualified, |root| {
        let is_part =
            format!("t.tableoid {EQUALS} {}::pg_catalog.regclass::pg_catalog.oid", literal(&table.qualified));
        is_row.push(is_part.clone());
        is_row_of_item.push(is_part);
        root
    });
    format!(
        "CREATE OR REPLACE FUNCTION rehang.seen_all_{g}() RETURNS boolean LANGUAGE plpgsql STABLE AS $rehang$
BEGIN
    RETURN (SELECT NOT (pg_catalog.row_security_active(c.oid)
            OR coalesce(pg_catalog.row_security_active(pg_catalog.pg_partition_root(c.oid)::pg_catalog.oid), false))
        FROM rehang.gallery AS g JOIN pg_catalog.pg_class AS c ON c.oid {EQUALS} g.relation::pg_catalog.oid WHERE g.number {EQUALS} {g});
END
$rehang$;
CREATE OR REPLACE FUNCTION rehang.seen_{g}({}) RETURNS boolean LANGUAGE plpgsql STABLE AS $rehang$
BEGIN
    RETURN EXISTS (SELECT 1 FROM {on} AS t WHERE {} AND {is_named});
END
$rehang$;
CREATE OR REPLACE FUNCTION rehang.seen_item_{g}(bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $rehang$
BEGIN
    RETURN EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE i.key {EQUALS} $1);
END
$rehang$;
CREATE OR REPLACE FUNCTION rehang.changes_item_{g}(bigint) RETURNS boolean LANGUAGE plpgsql AS $rehang$
BEGIN
    PERFORM 1 FROM rehang.item_{g} AS i JOIN {on} AS t ON {} WHERE i.key {EQUALS} $1 AND {is_named} FOR KEY SHARE OF t;
    RETURN FOUND;
END
$rehang$;",
        kinds.join(", "),
        is_row.join(" AND "),
        is_row_of_item.join(" AND ")
    )
}

/// Returns the statement that takes the policies' functions away, once no table has a policy that calls them.
pub(crate) fn drop_functions(g: i32) -> String {
    format!(
        "DO $rehang$ DECLARE ours regprocedure; BEGIN
             FOR ours IN SELECT oid FROM pg_proc WHERE pronamespace = 'rehang'::regnamespace AND proname IN ('seen_all_{g}', 'seen_{g}', 'seen_item_{g}', 'changes_item_{g}') LOOP
                 EXECUTE format('DROP FUNCTION %s CASCADE', ours);
             END LOOP;
         END $rehang$;"
    )
}

/// Returns the statements that give the table of items its policy.
pub(crate) fn of_items(g: i32, table: &Table) -> String {
    policies(g, &format!("item_{g}"), &format!("rehang.seen_{g}({})", table.key_names()), &[])
}

/// Returns the statements that give the tables of a space their policies.
pub(crate) fn of_space(g: i32, n: i32) -> String {
    let is_seen = format!("rehang.seen_item_{g}(item)");
    OF_SPACE.map(|name| policies(g, &format!("{name}_{n}"), &is_seen, &WRITES)).concat()
}

/// Returns the names of the policies of a table as SQL, in the order in which the server sorts them.
fn names(writes: &[Write]) -> String {
    let mut names: Vec<&str> = writes.iter().map(|(name, ..)| *name).chain(["rehang_rows"]).collect();
    names.sort_unstable();
    format!("'{{{}}}'::text[]", names.join(","))
}

/// Returns the condition that a table of the catalogue, as `c`, has exactly these policies.
fn has_policies(writes: &[Write]) -> String {
    format!(
        "(c.relrowsecurity AND (SELECT array_agg(polname::text ORDER BY polname) FROM pg_policy WHERE polrelid = c.oid) IS NOT DISTINCT FROM {})",
        names(writes)
    )
}

/// Returns the statement that gives one of the gallery's tables its policies, where the table
/// is there and lacks one.
fn policies(g: i32, on: &str, is_seen: &str, writes: &[Write]) -> String {
    let all = format!("(SELECT rehang.seen_all_{g}())");
    let more: String = writes
        .iter()
        .map(|(name, command, clause)| {
            format!(
                "DROP POLICY IF EXISTS {name} ON rehang.{on};
             CREATE POLICY {name} ON rehang.{on} AS RESTRICTIVE FOR {command} {clause} ({all} OR rehang.changes_item_{g}(item));"
            )
        })
        .collect();
    format!(
        "DO $rehang$ BEGIN IF EXISTS (SELECT 1 FROM pg_class AS c WHERE c.oid = to_regclass('rehang.{on}') AND NOT {}) THEN
             DROP POLICY IF EXISTS rehang_rows ON rehang.{on};
             CREATE POLICY rehang_rows ON rehang.{on} USING ({all} OR {is_seen});
             {more}
             ALTER TABLE rehang.{on} ENABLE ROW LEVEL SECURITY;
         END IF; END $rehang$;",
        has_policies(writes)
    )
}

/// Returns the statement that counts a gallery's tables that lack a row policy, or have another one. A role
/// that may read such a table is shown all of its rows.
pub(crate) fn unguarded(g: i32) -> String {
    format!(
        "SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = 'rehang'::regnamespace AND c.relkind = 'r'
             AND (c.relname = 'item_{g}' AND NOT {} OR substring(c.relname::text FROM '^(?:state|failure|claim|vector)_([0-9]+)$')::int
                 IN (SELECT number FROM rehang.space WHERE gallery = {g}) AND NOT {})",
        has_policies(&[]),
        has_policies(&WRITES)
    )
}
