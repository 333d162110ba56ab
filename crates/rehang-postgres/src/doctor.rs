//! Examination of a gallery: searches for what must never be in it, and gives room back.

use rehang_core::{ErrorKind, Result};
use rehang_store::Problem;

use crate::adoption;
use crate::connection::{Connection, Mode, Step};
use crate::guard;
use crate::guard::FUNCTIONS;
use crate::handle::Handle;
use crate::reading::{self, Reading};
use crate::row_security;
use crate::schema;
use crate::search;
use crate::spaces;
use crate::table::quoted;

pub(crate) fn check(handle: &Handle) -> Result<Vec<Problem>> {
    let (g, table) = (handle.number, &handle.table);
    if let Some(error) = &handle.out_of_step {
        let what = format!(
            "{error}; until then nothing is embedded or searched here, and what the application changes may go by unseen"
        );
        return Ok(vec![Problem { space: None, what, count: 1 }]);
    }
    let mut unseen = Vec::new();
    if let Err(error) = handle.database.run(Mode::Write, |connection| table.expect_of_its_row(connection)) {
        match error.kind() {
            ErrorKind::InvalidOption { .. } => unseen.push(error.to_string()),
            _ => return Err(error),
        }
    }
    handle.database.run(Mode::Read, |connection| {
        let mut faults = unseen.clone();
        if !table.options.published {
            faults.extend(adoption::published(connection, table)?);
        }
        let mut problems: Vec<Problem> =
            faults.into_iter().map(|what| Problem { space: None, what, count: 1 }).collect();
        let spaces = spaces::all(connection, g)?;
        let tables = spaces.iter().filter(|space| space.in_column.is_none());
        for on in tables.map(|space| format!("rehang.vector_{}", space.number)).chain([table.qualified.clone()]) {
            let indexes = search::unfinished(connection, &on, None)?;
            if !indexes.is_empty() {
                let what = format!(
                    "search indexes that were not made to their end ({}): every write goes into them and no search reads them. What made them \
                     takes them away where it is called again, as does DROP INDEX CONCURRENTLY",
                    indexes.join(", ")
                );
                problems.push(Problem { space: None, what, count: indexes.len() as u64 });
            }
        }
        if let Some(row) =
            connection.query_opt("SELECT text FROM rehang.document WHERE gallery = $1 AND starts_with(name, $2) ORDER BY text LIMIT 1", &[&g, &schema::UNREAD])?
        {
            let what = format!(
                "writes of the application that the triggers could not read in full, the first at {}: no source of theirs was seen. Mend the source \
                 or the condition, or `gallery release` and adopt it anew",
                row.try_get::<_, String>(0)?
            );
            problems.push(Problem { space: None, what, count: 1 });
        }
        let (oldest, _) = guard::versions(connection, g)?;
        let mut look = |connection: &mut Connection, space: Option<&str>, what: &str, sql: String| -> Step<()> {
            let count = connection.count(&sql, &[])?;
            if count > 0 {
                problems.push(Problem { space: space.map(str::to_owned), what: what.to_owned(), count });
            }
            Ok(())
        };
        look(
            connection,
            None,
            "triggers on the table that are missing or disabled, so that writes go by unseen: `gallery adopt` makes them anew and lists the rows \
             that came and went. An item whose content has changed meanwhile keeps the vectors of before; where that may be, `gallery release` \
             and adopt it anew",
            schema::missing_triggers(g, table),
        )?;
        look(
            connection,
            None,
            "versions that the functions of the gallery are behind: adopting it once more makes them anew",
            format!("SELECT count(*) FROM generate_series({oldest}, {FUNCTIONS} - 1)"),
        )?;
        look(
            connection,
            None,
            "roles that may call the function of the triggers, which has the rights of its owner: REVOKE takes that from them",
            format!(
                "SELECT count(*) FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
                 WHERE p.oid = to_regprocedure('rehang.changed_{g}()') AND a.grantee <> p.proowner"
            ),
        )?;
        look(
            connection,
            None,
            "triggers of others on tables of ours, which run with our rights",
            "SELECT count(*) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
             WHERE c.relnamespace = to_regnamespace('rehang') AND NOT t.tgisinternal AND NOT EXISTS (SELECT 1 FROM pg_proc AS p
                 WHERE p.oid = t.tgfoid AND p.pronamespace = to_regnamespace('rehang') AND p.proname ~ '^moved_[0-9]+$')"
                .to_owned(),
        )?;
        look(
            connection,
            None,
            "tables of ours that do not keep to the row security of the table: adopting it once more makes their policies anew",
            row_security::unguarded(g),
        )?;
        let of_rows = |reading: Reading| {
            let (on, is_of) = (&table.qualified, table.is_of("i", "t"));
            let other_content = format!(
                "SELECT count(*) FROM rehang.item_{g} AS i JOIN {on} AS t ON {is_of} WHERE {} AND NOT ({} AND {})",
                reading.is_item(table, "t", false),
                reading.has_source_of(table, "i", "t"),
                table.has_vector_of("i", "t")
            );
            [
                (
                    "rows of the table that are no items",
                    format!(
                        "SELECT count(*) FROM {on} AS t WHERE {} AND NOT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE {is_of})",
                        reading.is_item(table, "t", false)
                    ),
                ),
                (
                    "items without a row in the table",
                    format!(
                        "SELECT count(*) FROM rehang.item_{g} AS i WHERE NOT EXISTS (SELECT 1 FROM {on} AS t WHERE {is_of} AND {})",
                        reading.is_item(table, "t", true)
                    ),
                ),
                (
                    "rows whose condition cannot be read, as by a division by zero: they are no items, or stay the items that they were",
                    match reading {
                        Reading::Inline => "SELECT 0::bigint".to_owned(),
                        Reading::RowByRow(_) => {
                            format!("SELECT count(*) FROM {on} AS t WHERE (SELECT m.meets FROM rehang.read_{g}(t) AS m) IS NULL")
                        }
                    },
                ),
                (
                    "items whose rows have other content than when a trigger last saw them, as of a partition that was attached: `gallery adopt` takes it in",
                    if table.is_partitioned { other_content } else { "SELECT 0::bigint".to_owned() },
                ),
            ]
        };
        let counted = reading::of_rows(connection, g, table, |connection, reading| {
            of_rows(reading).into_iter().map(|(what, sql)| Ok((what, connection.count(&sql, &[])?))).collect::<Step<Vec<_>>>()
        })?;
        problems.extend(
            counted
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(what, count)| Problem { space: None, what: what.to_owned(), count }),
        );
        let mut look = |connection: &mut Connection, space: Option<&str>, what: &str, sql: String| -> Step<()> {
            let count = connection.count(&sql, &[])?;
            if count > 0 {
                problems.push(Problem { space: space.map(str::to_owned), what: what.to_owned(), count });
            }
            Ok(())
        };
        for space in spaces {
            let n = space.number;
            let name = Some(space.record.space.name.as_str());
            if !space.is_listed {
                look(connection, name, "it was not made to its end", "SELECT 1::bigint".to_owned())?;
                continue;
            }
            look(
                connection,
                name,
                "items without a state",
                format!("SELECT count(*) FROM rehang.item_{g} AS i WHERE NOT EXISTS (SELECT 1 FROM rehang.state_{n} WHERE item = i.key)"),
            )?;
            look(
                connection,
                name,
                "states of items that do not exist, or of another revision than theirs",
                format!(
                    "SELECT count(*) FROM rehang.state_{n} AS s LEFT JOIN rehang.item_{g} AS i ON i.key = s.item
                     WHERE i.key IS NULL OR i.revision <> s.revision
                         OR i.source_revision IS DISTINCT FROM s.source_revision"
                ),
            )?;
            let (vector_is_there, more) = match &space.in_column {
                None => (format!("EXISTS (SELECT 1 FROM rehang.vector_{n} WHERE item = s.item)"), String::new()),
                Some(column) => (
                    format!("t.{} IS NOT NULL", quoted(column)),
                    format!(" JOIN rehang.item_{g} AS i ON i.key = s.item JOIN {} AS t ON {}", table.qualified, table.is_of("i", "t")),
                ),
            };
            look(
                connection,
                name,
                "states that say there is a vector where there is none",
                format!("SELECT count(*) FROM rehang.state_{n} AS s{more} WHERE s.provenance <> 'lacking' AND NOT {vector_is_there}"),
            )?;
            if space.in_column.is_none() {
                look(
                    connection,
                    name,
                    "vectors that no state speaks of",
                    format!(
                        "SELECT count(*) FROM rehang.vector_{n} AS v
                         WHERE NOT EXISTS (SELECT 1 FROM rehang.state_{n} WHERE item = v.item AND provenance <> 'lacking')"
                    ),
                )?;
                // For a distance of directions, a vector without a direction is near to nothing.
                if space.record.space.distance.heeds_origin() {
                    let (norm, vector) = (handle.pgvector.named("vector_norm"), handle.pgvector.vector());
                    look(
                        connection,
                        name,
                        "native vectors of length 0, which searches do not find: see what the encoder makes of their sources",
                        format!(
                            "SELECT count(*) FROM rehang.state_{n} AS s JOIN rehang.vector_{n} AS v ON v.item = s.item
                             WHERE s.provenance = 'native' AND {norm}(v.value::{vector}) = 0"
                        ),
                    )?;
                }
            }
        }
        Ok(problems)
    })
}

pub(crate) fn compact(handle: &Handle) -> Result<(u64, u64)> {
    spaces::remove_left(handle)?;
    let bytes = || {
        handle.database.run(Mode::Read, |connection| {
            connection.count(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
                 WHERE relnamespace = 'rehang'::regnamespace AND relkind = 'r'",
                &[],
            )
        })
    };
    let before = bytes()?;
    let spaces = handle.database.run(Mode::Read, |connection| spaces::all(connection, handle.number))?;
    let mut session = handle.database.session()?;
    session.prepare("2s", true).map_err(|failure| handle.database.failed(failure))?;
    for space in spaces {
        for table in schema::tables_of(space.number, space.in_column.as_deref()) {
            // A table on which another process is at work, such as the server's own vacuum, is passed over.
            session
                .connection
                .batch(&format!("VACUUM (ANALYZE, SKIP_LOCKED) rehang.{table}"))
                .map_err(|failure| handle.database.failed(failure))?;
        }
    }
    Ok((before, bytes()?))
}
