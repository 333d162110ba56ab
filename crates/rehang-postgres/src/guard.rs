//! Guards against others who may have a hand in what runs with our rights: names that they can give a meaning
//! to, and objects that are not ours.
//!
//! Any role that may create something in a schema of the search path decides what `=` means for two columns
//! of `varchar`. The server's own operator takes them for texts, so it is no exact match. So the gallery's
//! sessions and functions see the names of the server alone. pgvector is called by its schema. The
//! application decides which names its own triggers see.

use rehang_core::{Error, Remedy, Result};

use crate::connection::{Connection, Step};
use crate::table::Table;

/// Version of the functions that are made in a database; each function has it in its comment. It is
/// raised with every change of a function's text: a gallery whose functions are older gets them anew
/// where it is adopted once more.
pub(crate) const FUNCTIONS: i32 = 9;
/// Oldest version of the functions that is safe: earlier ones let a role that may only search get the
/// rights of their owner.
pub(crate) const FUNCTIONS_MIN: i32 = 2;
/// Mark that comes before the version at the end of a function's comment.
pub(crate) const VERSION_MARK: &str = "; functions of version ";

/// Search path of the gallery's sessions and functions. No operator and no function is ever
/// looked up in `pg_temp`.
pub(crate) const SEARCH_PATH: &str = "pg_catalog, pg_temp";

/// Settings that the gallery's transactions and the function of the triggers share, so that a source that is
/// made of dates or numbers is the same text for both.
pub(crate) const SAME_TEXT: [(&str, &str); 8] = [
    ("timezone", "'UTC'"),
    ("datestyle", "'ISO, YMD'"),
    ("intervalstyle", "'postgres'"),
    ("extra_float_digits", "'1'"),
    ("bytea_output", "'hex'"),
    ("lc_monetary", "'C'"),
    ("lc_numeric", "'C'"),
    ("lc_time", "'C'"),
];

/// Equality by its full name, for texts that are read under the caller's names, or whose operands have
/// an application's type.
pub(crate) const EQUALS: &str = "OPERATOR(pg_catalog.=)";

/// Statement that makes the rest of a transaction see what the application's sessions see, for example where
/// it writes the application's table: triggers of the application use the names of whoever writes. The
/// statement that writes has to name its own operators and functions in full.
pub(crate) const AS_APPLICATION: &str = "SELECT set_config('search_path', concat_ws(', ', 'pg_catalog', nullif(reset_val, '')), true) FROM pg_settings WHERE name = 'search_path'";

/// Makes the rest of a transaction see what the application's sessions see, by [`AS_APPLICATION`].
pub(crate) fn see_as_application(connection: &mut Connection) -> Step<()> {
    connection.batch(AS_APPLICATION)
}

/// Returns the statement that makes the rest of a transaction see again what the gallery's sessions see.
pub(crate) fn as_ours() -> String {
    format!("SET LOCAL search_path = {SEARCH_PATH}")
}

/// Makes the rest of a transaction see again what the gallery's sessions see.
pub(crate) fn see_as_ours(connection: &mut Connection) -> Step<()> {
    connection.batch(&as_ours())
}

/// Finds the table that the application means by a name, if there is one.
pub(crate) fn seen_by_application(connection: &mut Connection, name: &str) -> Step<Option<u32>> {
    see_as_application(connection)?;
    let row = connection.query_one("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", &[&name])?;
    see_as_ours(connection)?;
    Ok(row.try_get(0)?)
}

/// Owners that a gallery's schema may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The role that makes something in it.
    Mine,
    /// The role that makes something, the table's owner or a superuser: a worker may work on their tables.
    Trusted,
}

/// Fails where another role has the schema `rehang`, or something in it, or may make something there: its
/// defaults, triggers and views would run with our rights. Where there is no such schema, all is well.
pub(crate) fn expect_ours(connection: &mut Connection, table: &Table, whose: Whose) -> Step<()> {
    expect_ours_beside(connection, Some(table.oid), whose)
}

/// Fails as [`expect_ours`] does, also where the table may be gone or have another name. Without a table, the
/// schema has to belong to the role of the connection, or to a superuser.
pub(crate) fn expect_ours_beside(connection: &mut Connection, oid: Option<u32>, whose: Whose) -> Step<()> {
    let rows = connection.query(
        "SELECT o.what, o.owner::regrole::text AS owner, o.owner = me.oid AS is_mine,
             o.owner = me.oid OR r.rolsuper OR coalesce(o.owner = t.relowner, false) AS is_trusted,
             current_user::text AS me, coalesce(t.relowner::regrole::text, current_user::text) AS of_table,
             t.oid IS NULL OR o.owner = t.relowner OR r.rolsuper AS is_lent, coalesce(lender.rolsuper, false) AS is_of_superuser
         FROM (SELECT 0 AS at, 'the schema rehang' AS what, nspowner AS owner FROM pg_namespace WHERE nspname = 'rehang'
               UNION ALL SELECT 1, format('rehang.%I', relname), relowner FROM pg_class WHERE relnamespace = to_regnamespace('rehang')
               UNION ALL SELECT 1, format('rehang.%I', proname), proowner FROM pg_proc WHERE pronamespace = to_regnamespace('rehang')) AS o
         JOIN pg_roles AS r ON r.oid = o.owner JOIN pg_roles AS me ON me.rolname = current_user
         LEFT JOIN pg_class AS t ON t.oid = $1 LEFT JOIN pg_roles AS lender ON lender.oid = t.relowner ORDER BY o.at, o.what",
        &[&oid],
    )?;
    let Some(schema) = rows.first() else { return Ok(()) };
    let (what, owner): (String, String) = (schema.try_get("what")?, schema.try_get("owner")?);
    if !schema.try_get::<_, bool>(if whose == Whose::Mine { "is_mine" } else { "is_trusted" })? {
        let (me, of_table): (String, String) = (schema.try_get("me")?, schema.try_get("of_table")?);
        let lend = if schema.try_get::<_, bool>("is_lent")? {
            String::new()
        } else if schema.try_get::<_, bool>("is_of_superuser")? {
            // A role that were lent a superuser's table would be a superuser.
            format!(
                ", once this table belongs to a role that is no superuser, as {of_table} is, and that lends it to {owner}"
            )
        } else {
            format!(" (and GRANT {of_table} TO {owner}, which lends it this table)")
        };
        let why = format!(
            "it belongs to {owner}, and the connection is of {me}: one role keeps all galleries of a database. If {owner} is that role, \
             connect as {owner}{lend}; if it keeps no gallery, a superuser takes the schema away (DROP SCHEMA rehang CASCADE)"
        );
        return Err(Error::conflict(what, why).into());
    }
    for row in &rows {
        let (what, other): (String, String) = (row.try_get("what")?, row.try_get("owner")?);
        if other != owner {
            let why = format!(
                "it belongs to {other}, and its schema to {owner}, so it is no part of a gallery; its owner or a superuser takes it away"
            );
            return Err(Error::conflict(what, why).into());
        }
    }
    let makers = makers(connection)?;
    if makers.is_empty() {
        return Ok(());
    }
    let who = makers.join(", ");
    let why = format!(
        "{who} may make something in it, which would run with the rights of {owner}; {owner} runs REVOKE CREATE ON SCHEMA rehang FROM {who}"
    );
    Err(Error::conflict(what, why).into())
}

/// Lists the roles besides its owner that may make something in the schema `rehang`.
fn makers(connection: &mut Connection) -> Step<Vec<String>> {
    let rows = connection.query(
        "SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END FROM pg_namespace, aclexplode(nspacl) AS a
         WHERE nspname = 'rehang' AND a.privilege_type = 'CREATE' AND a.grantee <> nspowner ORDER BY 1",
        &[],
    )?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?)
}

/// Lists schemas in which other roles may make something than their owners, the table's owner, ours
/// and superusers, each with such a role. An expression that names a function there may call one that
/// fits its arguments better.
pub(crate) fn open_schemas(connection: &mut Connection, oid: u32) -> Step<Vec<(String, String)>> {
    let rows = connection.query(
        "SELECT n.nspname::text, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
         FROM pg_namespace AS n, aclexplode(n.nspacl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee
         WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND r.rolsuper IS NOT TRUE AND r.rolname IS DISTINCT FROM current_user
             AND a.grantee <> (SELECT relowner FROM pg_class WHERE oid = $1)
         ORDER BY 1, 2",
        &[&oid],
    )?;
    let mut schemas = Vec::new();
    for row in &rows {
        schemas.push((row.try_get(0)?, row.try_get(1)?));
    }
    Ok(schemas)
}

/// Lists columns of a table whose type belongs to a role that is neither the table's owner, nor ours, nor a
/// superuser, each with that role. Such a role decides what a cast of its type to `text` or to `json` does,
/// and the cast would run with our rights.
pub(crate) fn strangers_types(connection: &mut Connection, oid: u32) -> Step<Vec<(String, String)>> {
    let rows = connection.query(
        "WITH RECURSIVE used(name, type) AS (
             SELECT attname, atttypid FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
             UNION
             SELECT u.name, part.type FROM used AS u JOIN pg_type AS t ON t.oid = u.type
             CROSS JOIN LATERAL (SELECT t.typelem UNION ALL SELECT t.typbasetype
                 UNION ALL SELECT atttypid FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped) AS part(type)
             WHERE part.type <> 0
         )
         SELECT DISTINCT u.name::text, r.rolname::text FROM used AS u JOIN pg_type AS t ON t.oid = u.type JOIN pg_roles AS r ON r.oid = t.typowner
         WHERE NOT r.rolsuper AND r.rolname <> current_user AND r.oid <> (SELECT relowner FROM pg_class WHERE oid = $1)
             AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE classid = 'pg_type'::regclass AND objid = coalesce(nullif(t.typelem, 0), t.oid)
                 AND deptype = 'e')
         ORDER BY 1, 2",
        &[&oid],
    )?;
    let mut columns = Vec::new();
    for row in &rows {
        columns.push((row.try_get(0)?, row.try_get(1)?));
    }
    Ok(columns)
}

/// Reads the oldest and the newest version of a gallery's functions; a function that is not there
/// counts as older than any.
pub(crate) fn versions(connection: &mut Connection, gallery: i32) -> Step<(i32, i32)> {
    let row = connection.query_one(
        "SELECT coalesce(min(v.version), 0), coalesce(max(v.version), 0) FROM (
             SELECT coalesce(substring(obj_description(p.oid, 'pg_proc') FROM $2::text || '([0-9]{1,9})$')::int, 1) AS version
             FROM unnest($1::text[]) AS wanted(name) LEFT JOIN pg_proc AS p ON p.proname = wanted.name AND p.pronamespace = to_regnamespace('rehang')
             WHERE p.oid IS NOT NULL OR wanted.name NOT LIKE 'serving~_%' ESCAPE '~') AS v",
        &[
            &vec![
                "serving".to_owned(),
                "search".to_owned(),
                "nearest".to_owned(),
                "write".to_owned(),
                format!("changed_{gallery}"),
                format!("serving_{gallery}"),
            ],
            &VERSION_MARK,
        ],
    )?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// Fails where a gallery's functions let others in, or lack what this version calls.
pub(crate) fn expect_functions((oldest, _): (i32, i32), table: &str) -> Result<()> {
    if oldest >= FUNCTIONS_MIN {
        return Ok(());
    }
    let what = format!("the functions of the gallery in {table}");
    let why = "an earlier version made them, and by them a role that may only search gets the rights of their owner";
    Err(Error::conflict(what, why).advise(Remedy::RenewFunctions))
}

/// Fails where functions of a later version would be replaced by those of this one.
pub(crate) fn expect_no_newer((_, newest): (i32, i32), table: &str) -> Result<()> {
    if newest <= FUNCTIONS {
        return Ok(());
    }
    let what = format!("the functions of the gallery in {table}");
    let why = format!(
        "they are of version {newest}, and this rehang makes version {FUNCTIONS}; use the rehang that made them"
    );
    Err(Error::conflict(what, why))
}
