//! Partitioned tables: in which tables the rows lie, and what changed of them where no trigger could see it.
//!
//! Rows that are written are seen wherever they lie: the server gives each partition the triggers of the
//! whole. No trigger sees what a partition brings with it when it is attached, or takes along when it is
//! detached or dropped. So each item keeps a hash of its source and of its old vector, and a comparison of
//! all rows says what is new, gone or of other content. An adoption that is called again makes the comparison
//! where the partitions are others than at the last one.

use std::collections::BTreeMap;

use rehang_core::Result;

use crate::connection::{Connection, Mode, Step};
use crate::handle::Handle;
use crate::reading::{self, Reading};
use crate::schema::{self, NEXT_REVISION, source_revision};
use crate::spaces;
use crate::table::{Table, quoted};

/// Tables that rows lie in, by their numbers, each with the number of its trigger: a partition that was
/// detached and attached again has another trigger.
pub(crate) type Leaves = BTreeMap<u32, u32>;

/// Reads the tables that the rows of a gallery lie in, by the gallery's number; none where its
/// table is not partitioned.
pub(crate) fn leaves(connection: &mut Connection, g: i32, table: &Table) -> Step<Leaves> {
    if !table.is_partitioned {
        return Ok(Leaves::new());
    }
    let rows = connection.query(
        "SELECT p.relid::oid, coalesce(t.oid, 0::oid) FROM pg_partition_tree($1::oid::regclass) AS p
             LEFT JOIN pg_trigger AS t ON t.tgrelid = p.relid AND t.tgname = $2 WHERE p.isleaf",
        &[&table.oid, &format!("00_rehang_{g}_rows")],
    )?;
    let mut leaves = Leaves::new();
    for row in &rows {
        leaves.insert(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(leaves)
}

/// Takes adapted vectors from items whose old vector changed where no trigger saw it: they were made of the
/// earlier one. Native vectors, which were paid for, stay.
pub(crate) fn renew_vectors(handle: &Handle) -> Result<()> {
    const TOGETHER: i64 = 5_000;
    let (g, table) = (handle.number, &handle.table);
    let of_row = |reading: Reading| {
        format!(
            "{} AND {} AND {} AND NOT ({})",
            table.is_of("i", "t"),
            reading.is_item(table, "t", false),
            reading.has_source_of(table, "i", "t"),
            table.has_vector_of("i", "t")
        )
    };
    let has_other = |reading: Reading| {
        format!("EXISTS (SELECT 1 FROM {} AS t WHERE {})", table.qualified, of_row(reading))
    };
    let lock = |reading: Reading| {
        format!(
            "SELECT i.key FROM rehang.item_{g} AS i WHERE {} ORDER BY i.key LIMIT {TOGETHER} FOR UPDATE SKIP LOCKED",
            has_other(reading)
        )
    };
    // The rows are looked at once more when the items are locked: a statement that has waited
    // still sees the earlier rows.
    let renew = |reading: Reading| {
        format!(
            "UPDATE rehang.item_{g} AS i SET revision = {NEXT_REVISION}, source_revision = {}, vector_hash = {} FROM {} AS t WHERE i.key = ANY ($1) AND {}
             RETURNING i.key",
            source_revision("i"),
            table.vector_hash("t"),
            table.qualified,
            of_row(reading)
        )
    };
    let select_left = |reading: Reading| {
        format!("SELECT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE {})", has_other(reading))
    };
    let all = handle.database.run(Mode::Read, |connection| spaces::all(connection, g))?;
    spaces::until_writers_end(handle, || {
        loop {
            let renewed_count = handle.database.run(Mode::Write, |connection| {
                connection.batch(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", table.qualified))?;
                let keys_of = |rows: Vec<tokio_postgres::Row>| {
                    rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<i64>, _>>()
                };
                let keys = reading::of_rows(connection, g, table, |connection, reading| {
                    let keys = keys_of(connection.query(&lock(reading), &[])?)?;
                    Ok(keys_of(connection.query(&renew(reading), &[&keys])?)?)
                })?;
                for space in &all {
                    for sql in renewed(handle, space) {
                        connection.execute(&sql, &[&keys])?;
                    }
                }
                Ok(keys.len() as i64)
            })?;
            if renewed_count < TOGETHER {
                break;
            }
        }
        let is_any_left = handle.database.run(Mode::Read, |connection| {
            reading::of_rows(connection, g, table, |connection, reading| {
                Ok(connection.query_one(&select_left(reading), &[])?.try_get::<_, bool>(0)?)
            })
        })?;
        Ok(!is_any_left)
    })
}

/// Returns the statements that update a space for items whose old vector changed where no trigger saw it.
fn renewed(handle: &Handle, space: &schema::SpaceRow) -> Vec<String> {
    let (g, n, table) = (handle.number, space.number, &handle.table);
    let of_item = "i.key = ANY ($1) AND s.item = i.key";
    let Some(column) = &space.in_column else {
        return vec![
            format!(
                "UPDATE rehang.state_{n} AS s SET revision = i.revision, source_revision = i.source_revision,
                     provenance = CASE WHEN s.provenance = 'native' THEN s.provenance ELSE 'lacking' END,
                     sigma2 = CASE WHEN s.provenance = 'native' THEN s.sigma2 END, band = CASE WHEN s.provenance = 'native' THEN s.band ELSE 0 END,
                     score = CASE WHEN s.provenance = 'native' THEN s.score END,
                     squared_error = CASE WHEN s.provenance = 'native' THEN s.squared_error END,
                     change = CASE WHEN s.provenance = 'native' THEN s.change ELSE 0 END
                 FROM rehang.item_{g} AS i WHERE {of_item}"
            ),
            format!(
                "DELETE FROM rehang.vector_{n} AS v WHERE v.item = ANY ($1)
                     AND NOT EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = v.item AND s.provenance = 'native')"
            ),
        ];
    };
    let value = format!("t.{}", quoted(column));
    let forget = |name: &str| {
        format!(
            "DELETE FROM rehang.{name}_{n} AS f WHERE f.item = ANY ($1)
                 AND EXISTS (SELECT 1 FROM rehang.state_{n} AS s WHERE s.item = f.item AND s.provenance <> 'lacking')"
        )
    };
    vec![
        format!(
            "UPDATE rehang.state_{n} AS s SET revision = i.revision, source_revision = i.source_revision, provenance = CASE WHEN {value} IS NULL
                     OR {}({value}) <> {} THEN 'lacking' ELSE '{}' END
             FROM rehang.item_{g} AS i JOIN {} AS t ON {} WHERE {of_item}",
            handle.pgvector.named("vector_dims"),
            space.record.space.dimension,
            space.record.written_as.name(),
            table.qualified,
            table.is_of("i", "t")
        ),
        forget("failure"),
        forget("claim"),
    ]
}

/// Rows of a partition that are looked at to say whether it was attached with them.
const LOOKED_AT: usize = 1_000;

/// Tells what changed of the partitions since rows and items were last compared, each change in a sentence.
/// It goes by the server's catalogue, and by the first rows of partitions that came.
pub(crate) fn remarks(connection: &mut Connection, handle: &Handle, before: &Leaves) -> Step<Vec<String>> {
    let (g, table) = (handle.number, &handle.table);
    let now = leaves(connection, g, table)?;
    let again = "`gallery adopt`";
    let mut sentences = Vec::new();
    let gone = before.keys().filter(|leaf| !now.contains_key(leaf)).count();
    if gone > 0 {
        sentences.push(format!(
            "{gone} partitions of {} were detached or dropped: the items of their rows are still found until {again} takes them out",
            table.options.table
        ));
    }
    let mut attached = Vec::new();
    for (leaf, trigger) in &now {
        if before.get(leaf) == Some(trigger) {
            continue;
        }
        let sql = "SELECT $1::oid::regclass::text, has_table_privilege($1, 'SELECT') AND NOT row_security_active($1)";
        let row = connection.query_one(sql, &[leaf])?;
        let (name, may_read): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
        if before.contains_key(leaf) {
            attached.push(name);
        } else if may_read {
            let sql = format!(
                "SELECT EXISTS (SELECT 1 FROM (SELECT * FROM ONLY {name} AS t LIMIT {LOOKED_AT}) AS t WHERE {} AND NOT EXISTS (SELECT 1
                     FROM rehang.item_{g} AS i WHERE {}))",
                table.is_item("t"),
                table.is_of("i", "t")
            );
            if connection.query_one(&sql, &[])?.try_get(0)? {
                attached.push(name);
            }
        }
    }
    if !attached.is_empty() {
        sentences.push(format!(
            "partitions of {} were attached with rows that no trigger saw ({}): {again} takes them in",
            table.options.table,
            attached.join(", ")
        ));
    }
    let rows = connection.query(&schema::without_truncate(g, table), &[])?;
    let later: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?;
    if !later.is_empty() {
        sentences.push(format!(
            "partitions of {} that came later ({}) have all triggers but that of TRUNCATE, which the server makes for none: {again} makes it; until then \
             a TRUNCATE of one of them alone goes by unseen",
            table.options.table,
            later.join(", ")
        ));
    }
    Ok(sentences)
}
