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
use crate::schema::{self, SpaceRow};
use crate::search;
use crate::spaces;
use crate::table::{Table, quoted};

/// Looks for everything that must never be in a gallery.
pub(crate) fn check(handle: &Handle) -> Result<Vec<Problem>> {
    if let Some(error) = &handle.out_of_step {
        let what = format!(
            "{error}; until then nothing is embedded or searched here, and what the application changes may go by unseen"
        );
        return Ok(vec![Problem { space: None, what, count: 1 }]);
    }
    let unseen = changes_elsewhere(handle)?;
    handle.database.run(Mode::Read, |connection| {
        let mut examination = Examination { connection, handle, problems: Vec::new() };
        if let Some(what) = &unseen {
            examination.add(what.clone(), 1);
        }
        examination.publications()?;
        let spaces = spaces::all(examination.connection, handle.number)?;
        examination.unfinished_indexes(&spaces)?;
        examination.unread_writes()?;
        examination.guards()?;
        examination.rows()?;
        for space in &spaces {
            examination.space(space)?;
        }
        Ok(examination.problems)
    })
}

/// Tells where the source or the condition depends on more than its row: no trigger sees a change elsewhere.
fn changes_elsewhere(handle: &Handle) -> Result<Option<String>> {
    let expected = handle.database.run(Mode::Write, |connection| handle.table.expect_of_its_row(connection));
    match expected {
        Ok(()) => Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::InvalidOption { .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Examination of a gallery as of one moment, with the problems that it has found so far.
struct Examination<'a> {
    connection: &'a mut Connection,
    handle: &'a Handle,
    problems: Vec<Problem>,
}

impl Examination<'_> {
    /// Adds a problem of the whole gallery.
    fn add(&mut self, what: String, count: u64) {
        self.problems.push(Problem { space: None, what, count });
    }

    /// Adds a problem of the whole gallery where a statement counts any of it.
    fn count(&mut self, what: &str, sql: &str) -> Step<()> {
        self.count_in(None, what, sql)
    }

    /// Adds a problem of a space, or of the whole gallery, where a statement counts any of it.
    fn count_in(&mut self, space: Option<&SpaceRow>, what: &str, sql: &str) -> Step<()> {
        let count = self.connection.count(sql, &[])?;
        if count > 0 {
            let space = space.map(|space| space.record.space.name.clone());
            self.problems.push(Problem { space, what: what.to_owned(), count });
        }
        Ok(())
    }

    /// Looks for publications that nobody has seen to.
    fn publications(&mut self) -> Step<()> {
        if self.handle.table.options.published {
            return Ok(());
        }
        for what in adoption::published(self.connection, &self.handle.table)? {
            self.add(what, 1);
        }
        Ok(())
    }

    /// Looks for search indexes that were not made to their end.
    fn unfinished_indexes(&mut self, spaces: &[SpaceRow]) -> Step<()> {
        let tables = spaces.iter().filter(|space| space.in_column.is_none());
        let tables = tables.map(|space| format!("rehang.vector_{}", space.number));
        for on in tables.chain([self.handle.table.qualified.clone()]) {
            let indexes = search::unfinished(self.connection, &on, None)?;
            if !indexes.is_empty() {
                let what = format!(
                    "search indexes that were not made to their end ({}): every write goes into them and no search reads them. What made them \
                     takes them away where it is called again, as does DROP INDEX CONCURRENTLY",
                    indexes.join(", ")
                );
                self.add(what, indexes.len() as u64);
            }
        }
        Ok(())
    }

    /// Looks for writes that the triggers could not read in full.
    fn unread_writes(&mut self) -> Step<()> {
        let first = self.connection.query_opt(
            "SELECT text FROM rehang.document WHERE gallery = $1 AND starts_with(name, $2) ORDER BY text LIMIT 1",
            &[&self.handle.number, &schema::UNREAD],
        )?;
        if let Some(row) = first {
            let what = format!(
                "writes of the application that the triggers could not read in full, the first at {}: no source of theirs was seen. Mend the source \
                 or the condition, or `gallery release` and adopt it anew",
                row.try_get::<_, String>(0)?
            );
            self.add(what, 1);
        }
        Ok(())
    }

    /// Looks at what guards the gallery: its triggers, its functions, and what others may do with either.
    fn guards(&mut self) -> Step<()> {
        let g = self.handle.number;
        let (oldest, _) = guard::versions(self.connection, g)?;
        self.count(
            "triggers on the table that are missing or disabled, so that writes go by unseen: `gallery adopt` makes them anew and lists the rows \
             that came and went. An item whose content has changed meanwhile keeps the vectors of before; where that may be, `gallery release` \
             and adopt it anew",
            &schema::missing_triggers(g, &self.handle.table),
        )?;
        self.count(
            "versions that the functions of the gallery are behind: adopting it once more makes them anew",
            &format!("SELECT count(*) FROM generate_series({oldest}, {FUNCTIONS} - 1)"),
        )?;
        self.count(
            "roles that may call the function of the triggers, which has the rights of its owner: REVOKE takes that from them",
            &format!(
                "SELECT count(*) FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
                 WHERE p.oid = to_regprocedure('rehang.changed_{g}()') AND a.grantee <> p.proowner"
            ),
        )?;
        self.count(
            "triggers of others on tables of ours, which run with our rights",
            "SELECT count(*) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
             WHERE c.relnamespace = to_regnamespace('rehang') AND NOT t.tgisinternal AND NOT EXISTS (SELECT 1 FROM pg_proc AS p
                 WHERE p.oid = t.tgfoid AND p.pronamespace = to_regnamespace('rehang') AND p.proname ~ '^moved_[0-9]+$')",
        )?;
        self.count(
            "tables of ours that do not keep to the row security of the table: adopting it once more makes their policies anew",
            &row_security::unguarded(g),
        )
    }

    /// Compares the rows of the application's table with the items.
    fn rows(&mut self) -> Step<()> {
        let Handle { number: g, table, .. } = self.handle;
        let counted = reading::of_rows(self.connection, *g, table, |connection, reading| {
            let counts = counts_of_rows(*g, table, reading).into_iter();
            counts.map(|(what, sql)| Ok((what, connection.count(&sql, &[])?))).collect::<Step<Vec<_>>>()
        })?;
        for (what, count) in counted.into_iter().filter(|(_, count)| *count > 0) {
            self.add(what.to_owned(), count);
        }
        Ok(())
    }

    /// Compares the states of a space with the items and with its vectors.
    fn space(&mut self, space: &SpaceRow) -> Step<()> {
        if !space.is_listed {
            return self.count_in(Some(space), "it was not made to its end", "SELECT 1::bigint");
        }
        for (what, sql) in counts_of_states(self.handle, space) {
            self.count_in(Some(space), what, &sql)?;
        }
        if space.in_column.is_none() {
            for (what, sql) in counts_of_vectors(self.handle, space) {
                self.count_in(Some(space), what, &sql)?;
            }
        }
        Ok(())
    }
}

/// Lists what may be wrong between rows and items, each with the statement that counts it.
fn counts_of_rows(g: i32, table: &Table, reading: Reading) -> [(&'static str, String); 4] {
    let (on, is_of, is_item) = (&table.qualified, table.is_of("i", "t"), reading.is_item(table, "t", false));
    let unread = match reading {
        Reading::Inline => "SELECT 0::bigint".to_owned(),
        Reading::RowByRow(_) => {
            format!(
                "SELECT count(*) FROM {on} AS t WHERE (SELECT m.meets FROM rehang.read_{g}(t) AS m) IS NULL"
            )
        }
    };
    let of_other_content = if table.is_partitioned {
        format!(
            "SELECT count(*) FROM rehang.item_{g} AS i JOIN {on} AS t ON {is_of} WHERE {is_item} AND NOT ({} AND {})",
            reading.has_source_of(table, "i", "t"),
            table.has_vector_of("i", "t")
        )
    } else {
        "SELECT 0::bigint".to_owned()
    };
    [
        (
            "rows of the table that are no items",
            format!(
                "SELECT count(*) FROM {on} AS t WHERE {is_item} AND NOT EXISTS (SELECT 1 FROM rehang.item_{g} AS i WHERE {is_of})"
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
            unread,
        ),
        (
            "items whose rows have other content than when a trigger last saw them, as of a partition that was attached: `gallery adopt` takes it in",
            of_other_content,
        ),
    ]
}

/// Lists what may be wrong with the states of a space, each with the statement that counts it.
fn counts_of_states(handle: &Handle, space: &SpaceRow) -> [(&'static str, String); 3] {
    let (g, n, table) = (handle.number, space.number, &handle.table);
    let (vector_is_there, more) = match &space.in_column {
        None => (format!("EXISTS (SELECT 1 FROM rehang.vector_{n} WHERE item = s.item)"), String::new()),
        Some(column) => (
            format!("t.{} IS NOT NULL", quoted(column)),
            format!(
                " JOIN rehang.item_{g} AS i ON i.key = s.item JOIN {} AS t ON {}",
                table.qualified,
                table.is_of("i", "t")
            ),
        ),
    };
    [
        (
            "items without a state",
            format!(
                "SELECT count(*) FROM rehang.item_{g} AS i WHERE NOT EXISTS (SELECT 1 FROM rehang.state_{n} WHERE item = i.key)"
            ),
        ),
        (
            "states of items that do not exist, or of another revision than theirs",
            format!(
                "SELECT count(*) FROM rehang.state_{n} AS s LEFT JOIN rehang.item_{g} AS i ON i.key = s.item
                 WHERE i.key IS NULL OR i.revision <> s.revision
                     OR i.source_revision IS DISTINCT FROM s.source_revision"
            ),
        ),
        (
            "states that say there is a vector where there is none",
            format!(
                "SELECT count(*) FROM rehang.state_{n} AS s{more} WHERE s.provenance <> 'lacking' AND NOT {vector_is_there}"
            ),
        ),
    ]
}

/// Lists what may be wrong with vectors in a table of the gallery, each with the statement that counts it.
fn counts_of_vectors(handle: &Handle, space: &SpaceRow) -> Vec<(&'static str, String)> {
    let n = space.number;
    let mut counts = vec![(
        "vectors that no state speaks of",
        format!(
            "SELECT count(*) FROM rehang.vector_{n} AS v
             WHERE NOT EXISTS (SELECT 1 FROM rehang.state_{n} WHERE item = v.item AND provenance <> 'lacking')"
        ),
    )];
    // For a distance of directions, a vector without a direction is near to nothing.
    if space.record.space.distance.heeds_origin() {
        let (norm, vector) = (handle.pgvector.named("vector_norm"), handle.pgvector.vector());
        counts.push((
            "native vectors of length 0, which searches do not find: see what the encoder makes of their sources",
            format!(
                "SELECT count(*) FROM rehang.state_{n} AS s JOIN rehang.vector_{n} AS v ON v.item = s.item
                 WHERE s.provenance = 'native' AND {norm}(v.value::{vector}) = 0"
            ),
        ));
    }
    counts
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
