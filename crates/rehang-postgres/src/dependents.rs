//! Dependents of the column of the old vectors, and what a new column beside it takes over.
//!
//! **Invariant**: whatever depends on the old column is named before anything is paid, and nothing of the
//! application's is changed for it.

use rehang_core::Result;

use crate::connection::{Connection, Step};
use crate::schema::ColumnOfVectors;
use crate::table::{Table, literal, quoted};

/// Number of rows that are checked for whether a column has vectors; beyond them the
/// server's statistics are asked.
const LOOKED_AT: u32 = 10_000;
/// Bytes of a vector up to which it is stored beside the rest of its row (`STORAGE PLAIN`), as the old one
/// is: a page holds 8,160.
const PLAIN_BYTES_MAX: u64 = 7_000;

/// Names what depends on the old column, except what is the gallery's and an index of vectors
/// that a release makes anew.
fn named(connection: &mut Connection, table: &Table, column: i16) -> Step<Vec<String>> {
    let rows = connection.query(
        "WITH found AS (SELECT d.classid, d.objid, d.objsubid,
                 CASE d.classid WHEN 'pg_rewrite'::regclass THEN (SELECT ev_class FROM pg_rewrite WHERE oid = d.objid) WHEN 'pg_class'::regclass THEN d.objid
                     WHEN 'pg_trigger'::regclass THEN (SELECT tgfoid FROM pg_trigger WHERE oid = d.objid) END AS of,
                 coalesce((SELECT adnum FROM pg_attrdef WHERE oid = d.objid AND d.classid = 'pg_attrdef'::regclass),
                     CASE WHEN d.classid = 'pg_class'::regclass AND d.objid = d.refobjid THEN d.objsubid END) AS generated
             FROM pg_depend AS d WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = $2)
         SELECT DISTINCT CASE
             WHEN generated IS NOT NULL THEN (SELECT format('generated column %I', attname) FROM pg_attribute WHERE attrelid = $1 AND attnum = generated)
             WHEN classid = 'pg_rewrite'::regclass THEN (SELECT format('%s %s', CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialised view' ELSE 'rule of' END, c.oid::regclass)
                 FROM pg_class AS c WHERE c.oid = found.of)
             WHEN classid = 'pg_class'::regclass THEN format('index %s', objid::regclass)
             ELSE pg_describe_object(classid, objid, objsubid) END
         FROM found WHERE generated IS DISTINCT FROM $2
             AND NOT EXISTS (SELECT 1 FROM pg_constraint AS c WHERE found.classid = 'pg_constraint'::regclass AND c.oid = found.objid AND c.contype = 'n')
             AND NOT EXISTS (SELECT 1 FROM pg_class AS c WHERE c.oid = found.of AND c.relnamespace = to_regnamespace('rehang'))
             AND NOT EXISTS (SELECT 1 FROM pg_proc AS p WHERE p.oid = found.of AND p.pronamespace = to_regnamespace('rehang'))
             AND NOT EXISTS (SELECT 1 FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
                 WHERE found.classid = 'pg_class'::regclass AND i.indexrelid = found.objid AND m.amname IN ('hnsw', 'ivfflat') AND i.indpred IS NULL
                     AND i.indexprs IS NULL)
         ORDER BY 1",
        &[&table.oid, &i32::from(column)],
    )?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// Tells what a release would meet at the column that it moves vectors into, and what goes with the old one,
/// each in a sentence or two.
pub(crate) fn remarks(connection: &mut Connection, table: &Table) -> Step<Vec<String>> {
    let (Some(old), Some(new)) = (&table.options.vector, &table.options.column) else {
        return Ok(Vec::new());
    };
    let mut sentences: Vec<String> = filled(connection, table, new)?.into_iter().collect();
    let Some(&number) = table.numbers.get(old) else { return Ok(sentences) };
    let name = &table.options.table;
    let hanging = named(connection, table, number)?;
    if !hanging.is_empty() {
        sentences.push(format!(
            "what depends on column {old:?} of {name} does not follow to {new:?} at the end: {}. Make it anew over {new:?} before {old:?} is dropped; the \
             server drops indexes with their column, and refuses it for the rest",
            hanging.join(", ")
        ));
    }
    let is_needed = "SELECT attnotnull FROM pg_attribute WHERE attrelid = $1 AND attnum = $2";
    if connection.query_one(is_needed, &[&table.oid, &number])?.try_get(0)? {
        sentences.push(format!(
            "column {old:?} of {name} is NOT NULL, and {new:?} is not, so that the application may write rows before it writes {new:?}: ALTER TABLE {name} \
             ALTER COLUMN {} SET NOT NULL is yours at the end",
            quoted(new)
        ));
    }
    Ok(sentences)
}

/// Tells that the column which vectors are to move into has vectors of the application's, if so.
fn filled(connection: &mut Connection, table: &Table, new: &str) -> Step<Option<String>> {
    let (name, column) = (&table.options.table, quoted(new));
    if !table.columns.iter().any(|(existing, _)| existing == new) {
        return Ok(None);
    }
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM (SELECT {column} AS value FROM {} LIMIT {LOOKED_AT}) AS seen WHERE value IS NOT NULL)
             OR EXISTS (SELECT 1 FROM pg_stats AS s JOIN pg_class AS c ON c.relname = s.tablename JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 AND n.nspname = s.schemaname WHERE c.oid = $1 AND s.attname = $2 AND s.null_frac < 1)",
        table.qualified
    );
    if !connection.query_one(&sql, &[&table.oid, &new])?.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    Ok(Some(format!(
        "column {new:?} of {name}, which the new vectors are to move into, has vectors already, and a release is refused where it has. If the new model \
         made them, they need not be paid for: as soon as the space of the new model is there (after the pairs are drawn), SELECT rehang.write({}, {}, \
         t.{column}, 'NAME OF THE NEW MODEL') FROM {name} AS t WHERE t.{column} IS NOT NULL takes them in as native. For the release name another column, \
         or empty this one",
        literal(name),
        table.id_of("t")
    )))
}

/// Writes statements that give a new column what the old one has: how it is stored, and
/// rights on the column alone.
pub(crate) fn carried_over(
    connection: &mut Connection,
    table: &Table,
    new: &ColumnOfVectors,
) -> Step<String> {
    let Some(number) = table.options.vector.as_ref().and_then(|old| table.numbers.get(old)) else {
        return Ok(String::new());
    };
    let rows = connection.query(
        "SELECT CASE attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'x' THEN 'EXTENDED' WHEN 'm' THEN 'MAIN' END AS storage,
             NULL AS privilege, NULL AS role, NULL AS option
             FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid WHERE attrelid = $1 AND attnum = $2 AND attstorage <> typstorage
         UNION ALL SELECT NULL, r.privilege_type, CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END,
             CASE WHEN r.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
             FROM pg_attribute AS a, aclexplode(a.attacl) AS r WHERE attrelid = $1 AND attnum = $2",
        &[&table.oid, number],
    )?;
    let (on, name) = (&table.qualified, quoted(&new.name));
    let mut statements = String::new();
    for row in &rows {
        if let Some(storage) = row.try_get::<_, Option<String>>("storage")? {
            if storage != "PLAIN" || new.bytes() <= PLAIN_BYTES_MAX {
                statements += &format!("ALTER TABLE {on} ALTER COLUMN {name} SET STORAGE {storage};");
            }
            continue;
        }
        let (right, role, option): (String, String, String) =
            (row.try_get("privilege")?, row.try_get("role")?, row.try_get("option")?);
        statements += &format!("GRANT {right} ({name}) ON {on} TO {role}{option};");
    }
    Ok(statements)
}

/// Reads the comment of the old column, for the column that is made beside it.
pub(crate) fn comment(connection: &mut Connection, on: &str, old: i16) -> Step<Option<String>> {
    let sql = "SELECT col_description(to_regclass($1), $2)";
    Ok(connection.query_one(sql, &[&on, &i32::from(old)])?.try_get(0)?)
}
