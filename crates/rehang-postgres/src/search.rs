//! Searches of a space, by comparing all vectors or by pgvector's index, and the making of that index.

use std::sync::PoisonError;
use std::time::Duration;

use pgvector::Vector;
use rehang_core::{Distance, Error, ErrorKind, Matrix, Result, Space};
use rehang_store::{Filter, Found, FusedSpaces, IndexHealth, IndexKind, check, share_found};
use serde_json::Value;
use tokio_postgres::Row;

use crate::connection::{Connection, Mode, SHARED_MEMORY, Step};
use crate::handle::{Handle, Searched};
use crate::nearest::{CANDIDATES_MAX, SpaceVectors, candidates, index_settings};
use crate::parameter::{self, Parameter};
use crate::schema::{self, ColumnOfVectors, SpaceRow, operator};
use crate::spaces::{self, find};
use crate::values::{key, provenance, row_limit};

/// First words of the comment of an index that rehang made.
const MADE_WITH: &str = "rehang made it with ";
/// Number of vectors up to which all are compared one by one, whether there is an index or not: that takes as
/// long as reading an index.
const EXACT_MAX: i64 = 1_000;
/// Number of vectors up to which a space is searched without an index until most of them are native. Each
/// vector that is replaced under an index makes the index larger and slower, and to compare all of them takes
/// some hundredths of a second.
const UNINDEXED_MAX: i64 = 20_000;
/// Bytes of wide vectors that one process of the server compares a second, from memory, as measured at 4,096
/// coordinates: such vectors lie beside their rows, in pieces.
const COMPARED_A_SECOND: f64 = 0.5e9;

/// Returns the conditions of a filter as SQL. `labels` is how SQL names its labels, and `field` gives each of
/// its fields with the content.
fn conditions(
    handle: &Handle,
    filter: &Filter,
    labels: &str,
    field: impl Fn(usize) -> (String, String),
) -> String {
    let mut sql = "s.provenance <> 'lacking'".to_owned();
    if !filter.labels.is_empty() {
        sql += &format!(" AND {} = ANY({labels}::text[])", handle.table.label_of("t"));
    }
    if !filter.provenances.is_empty() {
        let names: Vec<&str> = filter.provenances.iter().map(|provenance| provenance.name()).collect();
        sql += &format!(" AND s.provenance = ANY('{{{}}}')", names.join(","));
    }
    for (at, (name, _)) in filter.payload.iter().enumerate() {
        let (placeholder, content) = field(at);
        sql += &format!(" AND {} = {content}", handle.table.field_of("t", name, &placeholder));
    }
    sql
}

pub(crate) fn search(
    handle: &Handle,
    space: &str,
    queries: &Matrix,
    k: usize,
    filter: &Filter,
) -> Result<Vec<Vec<Found>>> {
    search_handicapped(handle, space, queries, k, filter, 0.0)
}

pub(crate) fn search_handicapped(
    handle: &Handle,
    space: &str,
    queries: &Matrix,
    k: usize,
    filter: &Filter,
    handicap: f64,
) -> Result<Vec<Vec<Found>>> {
    let wanted = Wanted { queries, k, filter, handicap };
    let searched = handle.searched.lock().unwrap_or_else(PoisonError::into_inner).get(space).cloned();
    let is_at_once = |searched: &Searched| {
        queries.rows() <= TOGETHER
            && rehang_clock::now() < searched.until
            && check::queries(&searched.row.record.space, queries).is_ok()
    };
    if let Some(searched) = searched.filter(is_at_once) {
        let hits = handle.database.run(Mode::ReadAtOnce, |connection| {
            search_in(connection, handle, &searched, &wanted, Some(space))
        });
        match hits {
            Ok(Some(hits)) => return Ok(hits),
            // The name is of a space of another kind by now, or of none.
            Ok(None) => {}
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error),
        }
    }
    handle.database.run(Mode::Read, |connection| {
        let row = find(connection, handle, space)?;
        check::queries(&row.record.space, queries)?;
        let searched = Searched {
            exact_from: exact_from(connection, handle, &row)?,
            row,
            until: rehang_clock::now() + LOOKED_AT_FOR,
        };
        handle
            .searched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(space.to_owned(), searched.clone());
        Ok(search_in(connection, handle, &searched, &wanted, None)?.unwrap_or_default())
    })
}

/// Searches both spaces by the server's own function, in one round trip for [`TOGETHER`] queries; `None` for a filter,
/// which that function does not know.
pub(crate) fn search_fused(
    handle: &Handle,
    spaces: &FusedSpaces<'_>,
    (old, new): (&Matrix, &Matrix),
    k: usize,
    filter: &Filter,
) -> Result<Option<Vec<Vec<Found>>>> {
    if !filter.is_empty() {
        return Ok(None);
    }
    check::queries(spaces.old, old)?;
    check::queries(spaces.new, new)?;
    let fusion = serde_json::to_value(spaces.fusion).map_err(|error| Error::corrupt("the fusion", error))?;
    let vector = handle.pgvector.vector();
    let sql = format!(
        "SELECT i.key, i.id, best.distance::real, best.provenance, i.revision
         FROM rehang.fused($1, $2, $3, $4, $5, $6::{vector}, $7::{vector}, least($8::bigint, {})::int) AS best
             JOIN rehang.item_{} AS i ON i.key = best.item ORDER BY best.distance, best.item",
        i32::MAX,
        handle.number
    );
    let limit = row_limit(k);
    let vectors = |queries: &Matrix| -> Vec<Vector> {
        (0..queries.rows()).map(|row| Vector::from(queries.row(row).to_vec())).collect()
    };
    let (old_queries, new_queries) = (vectors(old), vectors(new));
    let queries: Vec<(&Vector, &Vector)> = old_queries.iter().zip(&new_queries).collect();
    let mut all = Vec::with_capacity(queries.len());
    for queries in queries.chunks(TOGETHER) {
        let statements: Vec<(&str, Vec<&dyn Parameter>)> = queries
            .iter()
            .map(|&(old, new)| {
                let parameters: Vec<&dyn Parameter> = vec![
                    &handle.number,
                    &fusion,
                    &spaces.old.name,
                    &spaces.new.name,
                    &spaces.old_handicap,
                    old,
                    new,
                    &limit,
                ];
                (sql.as_str(), parameters)
            })
            .collect();
        all.extend(handle.database.run(Mode::ReadAtOnce, |connection| {
            let answers = connection.query_all("", &statements)?;
            answers.iter().map(|answer| answer.iter().map(hit).collect()).collect::<Step<Vec<Vec<Found>>>>()
        })?);
    }
    Ok(Some(all))
}

/// Looking whether a space has an index, and many vectors, takes longer than a search.
const LOOKED_AT_FOR: Duration = Duration::from_secs(2);
/// Queries that are asked at once.
const TOGETHER: usize = 16;

/// Search that is asked for.
struct Wanted<'a> {
    queries: &'a Matrix,
    k: usize,
    filter: &'a Filter,
    /// Addition to the distance of adapted vectors.
    handicap: f64,
}

/// Finds the nearest vectors of each query. With the name that a space is known by, all is asked at once; the
/// answer is `None` where the name is of another space by now.
fn search_in(
    connection: &mut Connection,
    handle: &Handle,
    searched: &Searched,
    wanted: &Wanted<'_>,
    name: Option<&str>,
) -> Step<Option<Vec<Vec<Found>>>> {
    let is_exact = wanted.k >= searched.exact_from;
    let Statement { sql, parameters } = Statement::new(handle, &searched.row, wanted, is_exact);
    let before = if is_exact { String::new() } else { index_settings_sql(handle, wanted.k) };
    let (of_name, limit) = (spaces::of_name(), row_limit(wanted.k));
    let rows: Vec<usize> = (0..wanted.queries.rows()).collect();
    let mut all = Vec::with_capacity(rows.len());
    for rows in rows.chunks(TOGETHER) {
        let vectors: Vec<Vector> =
            rows.iter().map(|row| Vector::from(wanted.queries.row(*row).to_vec())).collect();
        let mut statements: Vec<(&str, Vec<&dyn Parameter>)> = name
            .iter()
            .map(|name| (of_name.as_str(), vec![&handle.number as &dyn Parameter, name]))
            .collect();
        statements.extend(vectors.iter().map(|query| {
            let mut of_query: Vec<&dyn Parameter> = vec![query, &limit];
            of_query.extend(parameters.iter().map(|parameter| &**parameter));
            (sql.as_str(), of_query)
        }));
        let mut answers = connection.query_all(&before, &statements)?.into_iter();
        if name.is_some() {
            let space_now = answers.next().unwrap_or_default().first().map(spaces::read).transpose()?;
            if space_now.is_none_or(|space_now| !space_now.is_searched_as(&searched.row)) {
                return Ok(None);
            }
        }
        for (row, answer) in rows.iter().zip(answers) {
            all.push(hits(wanted.queries.row(*row), &answer, searched.row.record.space.distance)?);
        }
    }
    Ok(Some(all))
}

/// Statement of a search, with its parameters behind `$1`, the query, and `$2`, the number of neighbours.
struct Statement {
    sql: String,
    parameters: Vec<Box<dyn Parameter>>,
}

impl Statement {
    /// Writes the statement for a space.
    fn new(handle: &Handle, space: &SpaceRow, wanted: &Wanted<'_>, is_exact: bool) -> Self {
        let filter = wanted.filter;
        let with_row = !filter.labels.is_empty() || !filter.payload.is_empty();
        let vectors = SpaceVectors::for_space(handle, space, with_row);
        let (adapted, not_adapted) = filter.adapted_and_others();
        // The rows of an index come in the order of their distances without a handicap.
        let is_mixed = wanted.handicap != 0.0 && !adapted.is_empty() && !not_adapted.is_empty();
        if is_mixed && !is_exact {
            Self::by_walk(handle, space.number, wanted, &vectors)
        } else {
            Self::in_order(handle, wanted, &vectors, is_exact)
        }
    }

    /// Writes the statement that walks an index until no row behind can be nearer, with its handicap.
    fn by_walk(handle: &Handle, n: i32, wanted: &Wanted<'_>, vectors: &SpaceVectors) -> Self {
        let filter = wanted.filter;
        let condition =
            conditions(handle, filter, "$3", |at| (format!("($4)[{}]", at + 1), format!("($5)[{}]", at + 1)));
        let (names, contents): (Vec<String>, Vec<Value>) = filter.payload.iter().cloned().unzip();
        let sql = format!(
            "SELECT i.key, i.id, near.distance::real, near.provenance, i.revision
             FROM (SELECT * FROM rehang.nearest($3, $4, $5, $6, $1::{}, least($2::bigint, {})::int, $7, $8, $9, $10, $11) ORDER BY distance, item LIMIT $2) AS near
                 JOIN rehang.item_{} AS i ON i.key = near.item",
            handle.pgvector.vector(),
            i32::MAX,
            handle.number
        );
        let parameters: Vec<Box<dyn Parameter>> = vec![
            Box::new(vectors.walked.clone()),
            Box::new(format!("rehang.state_{n}")),
            Box::new(vectors.distance()),
            Box::new(vectors.ordered_by().to_owned()),
            Box::new(wanted.handicap),
            Box::new(condition),
            Box::new(filter.labels.clone()),
            Box::new(names),
            Box::new(contents),
        ];
        Self { sql, parameters }
    }

    /// Writes the statement that reads the nearest rows in the order of their distances, or of those that the
    /// server orders an index by.
    fn in_order(handle: &Handle, wanted: &Wanted<'_>, vectors: &SpaceVectors, is_exact: bool) -> Self {
        let Wanted { filter, handicap, .. } = wanted;
        let mut parameters: Vec<Box<dyn Parameter>> = Vec::new();
        if !filter.labels.is_empty() {
            parameters.push(Box::new(filter.labels.clone()));
        }
        let first = 3 + parameters.len();
        let place =
            |at: usize| (format!("${}::text", first + 2 * at), format!("${}::jsonb", first + 2 * at + 1));
        let conditions = conditions(handle, filter, "$3", place);
        for (name, content) in &filter.payload {
            parameters.push(Box::new(name.clone()));
            parameters.push(Box::new(content.clone()));
        }
        let mut distance = vectors.distance();
        if *handicap != 0.0 {
            distance +=
                &format!(" + CASE WHEN s.provenance = 'adapted' THEN {handicap:e}::float8 ELSE 0 END");
        }
        let order = if is_exact { "distance, i.key" } else { vectors.ordered_by() };
        let sql = format!(
            "SELECT i.key, i.id, ({distance})::real AS distance, s.provenance, i.revision FROM {} WHERE {conditions} ORDER BY {order} LIMIT $2",
            vectors.from
        );
        Self { sql, parameters }
    }
}

/// Reads the answer to a query, nearest first. A vector without a direction is near to nothing: the server
/// sorts it behind all others, and it is no hit. Nothing is nearer than anything else to a query without one.
fn hits(query: &[f32], answer: &[Row], distance: Distance) -> Step<Vec<Found>> {
    let is_blind = !distance.heeds_lengths() && query.iter().all(|number| *number == 0.0);
    let mut hits = Vec::with_capacity(answer.len());
    for row in answer {
        let mut hit = hit(row)?;
        if hit.distance.is_nan() {
            if !is_blind {
                continue;
            }
            hit.distance = 1.0;
        }
        hits.push(hit);
    }
    hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
    Ok(hits)
}

/// Hit of a row with an item's key, its id, its distance, its provenance and its revision.
fn hit(row: &Row) -> Step<Found> {
    Ok(Found {
        key: key(row, "key")?,
        id: row.try_get("id")?,
        distance: row.try_get("distance")?,
        provenance: provenance(&row.try_get::<_, String>("provenance")?)?,
        revision: row.try_get::<_, i64>("revision")?.max(0) as u64,
    })
}

/// SQL that has the searches of a transaction for `k` neighbours read the index, by the rules of
/// [`index_settings`] and [`candidates`].
fn index_settings_sql(handle: &Handle, k: usize) -> String {
    let settings: String = index_settings(handle.pgvector.has_iterative_scan())
        .map(|(name, value)| format!("SET LOCAL {name} = {value}; "))
        .collect();
    let candidates = candidates(&row_limit(k).to_string());
    format!("{settings}SELECT set_config('hnsw.ef_search', {candidates}, true)")
}

/// Returns the number of neighbours from which on a search of a space compares all vectors. It is 0 where the
/// space is small or has no index. Where the space is not large, it is more than an index of pgvector looks
/// at in one walk: comparing all is no slower there, and misses nobody.
fn exact_from(connection: &mut Connection, handle: &Handle, space: &SpaceRow) -> Step<usize> {
    let vectors = count_up_to(connection, space, UNINDEXED_MAX, "<> 'lacking'")?;
    Ok(if vectors <= EXACT_MAX || index_of(connection, handle, space)?.is_none() {
        0
    } else if vectors <= UNINDEXED_MAX {
        usize::from(CANDIDATES_MAX) + 1
    } else {
        usize::MAX
    })
}

/// Counts the vectors of a space whose provenance meets a condition, up to one more than `most`.
fn count_up_to(connection: &mut Connection, space: &SpaceRow, most: i64, provenance: &str) -> Step<i64> {
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM rehang.state_{} WHERE provenance {provenance} LIMIT {}) AS few",
        space.number,
        most + 1
    );
    Ok(connection.query_one(&sql, &[])?.try_get(0)?)
}

/// Whether no index is missing: there is one, or there are few vectors, or somewhat more of which
/// most are not native yet.
fn needs_no_index(connection: &mut Connection, handle: &Handle, space: &SpaceRow) -> Step<bool> {
    let vectors = count_up_to(connection, space, UNINDEXED_MAX, "<> 'lacking'")?;
    if vectors <= EXACT_MAX || index_of(connection, handle, space)?.is_some() {
        return Ok(true);
    }
    Ok(vectors <= UNINDEXED_MAX
        && 2 * count_up_to(connection, space, UNINDEXED_MAX, "= 'native'")? <= vectors)
}

/// Finds the index of a space that searches can use, by name.
fn index_of(connection: &mut Connection, handle: &Handle, space: &SpaceRow) -> Step<Option<String>> {
    let column = space.in_column.as_deref().unwrap_or("value");
    let (on, distance) = (table_of(handle, space), space.record.space.distance);
    let index = index_over(connection, &on, column, distance)?;
    if index.is_some() || space.in_column.is_none() || !handle.table.is_partitioned {
        return Ok(index);
    }
    // An application may have made an index of each partition and none of the whole,
    // which searches use as well.
    let mut first = None;
    for row in connection.query(
        "SELECT p.relid::text FROM pg_partition_tree(to_regclass($1)) AS p WHERE p.isleaf ORDER BY 1",
        &[&on],
    )? {
        let of_part = index_over(connection, &row.try_get::<_, String>(0)?, column, distance)?;
        if of_part.is_none() {
            return Ok(None);
        }
        first = first.or(of_part);
    }
    Ok(first)
}

/// Finds an index over a column of vectors that searches by a distance can use, by name: one that rehang made
/// comes before one of the application's.
fn index_over(
    connection: &mut Connection,
    on: &str,
    column: &str,
    distance: Distance,
) -> Step<Option<String>> {
    let row = connection.query_opt(
        "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
             JOIN pg_am m ON m.oid = c.relam JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
             JOIN pg_opclass o ON o.oid = i.indclass[0]
         WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND m.amname IN ('hnsw', 'ivfflat') AND a.attname = $2
             AND o.opcname LIKE '%' || $3
         ORDER BY c.relname ~ '^vector_[0-9]+_nearest$' DESC, c.relname LIMIT 1",
        &[&on, &column, &operator(distance).class],
    )?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

fn table_of(handle: &Handle, space: &SpaceRow) -> String {
    match space.in_column {
        Some(_) => handle.table.qualified.clone(),
        None => format!("rehang.vector_{}", space.number),
    }
}

pub(crate) fn is_ready(handle: &Handle, space: &str) -> Result<bool> {
    handle.database.run(Mode::Read, |connection| {
        let row = find(connection, handle, space)?;
        // The application decides how its own column is searched.
        let is_ours = row.in_column.is_none() && schema::can_be_indexed(row.record.space.dimension);
        Ok(!is_ours || needs_no_index(connection, handle, &row)?)
    })
}

/// Makes the index of a space while everybody goes on writing. Another connection looks how far the work is.
pub(crate) fn prepare(handle: &Handle, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    if is_ready(handle, space)? {
        return Ok(());
    }
    let (row, options) = handle.database.run(Mode::Read, |connection| {
        let row = find(connection, handle, space)?;
        let options = options_clause(connection, handle, row.number)?;
        Ok((row, options))
    })?;
    let n = row.number;
    // The server's statistics are of the time when every item lacked a vector. The planner uses them where an
    // application joins the view of what serves.
    handle.database.patiently(&format!("ANALYZE rehang.state_{n}, rehang.vector_{n} (item)"))?;
    let space = &row.record.space;
    let on = format!("rehang.vector_{n}");
    let create = schema::vector_index(n, space, &handle.pgvector, &options);
    make_index(handle, &on, "value", space.distance, &create, advance)?;
    note_room(handle, n);
    Ok(())
}

/// Reads the options of the application's own HNSW index over the column of old vectors, as the end of a
/// statement that makes one: what it has chosen for its searches holds for those of new vectors. Where that
/// index is gone by now, those of the index that rehang made in space `n` are read.
fn options_clause(connection: &mut Connection, handle: &Handle, n: i32) -> Step<String> {
    let row = connection.query_opt(
        "SELECT (SELECT ' WITH (' || string_agg(format('%I = %L', o.option_name, o.option_value), ', ') || ')' FROM pg_options_to_table(c.reloptions) AS o)
         FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
             JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
         WHERE m.amname = 'hnsw' AND i.indisvalid AND i.indpred IS NULL AND (i.indrelid = to_regclass($3)
             OR a.attname = $2 AND (i.indrelid = $1 OR i.indrelid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))))
         ORDER BY i.indrelid = to_regclass($3), i.indrelid = $1 DESC, c.relname LIMIT 1",
        &[&handle.table.oid, &handle.table.options.vector, &format!("rehang.vector_{n}")],
    )?;
    let options = row.map(|row| row.try_get::<_, Option<String>>(0)).transpose()?;
    Ok(options.flatten().unwrap_or_default())
}

/// Makes an index of the application's table over a column that the vectors of a space were moved into.
pub(crate) fn index_column(handle: &Handle, column: &ColumnOfVectors, space: &SpaceRow) -> Result<()> {
    let (on, distance) = (&handle.table.qualified, space.record.space.distance);
    let options =
        handle.database.run(Mode::Read, |connection| options_clause(connection, handle, space.number))?;
    if handle.table.is_partitioned {
        return index_partitions(handle, column, distance, &options);
    }
    let create = schema::column_index(on, column, distance, &handle.pgvector, &options);
    make_index(handle, on, &column.name, distance, &create, &|_, _| true)
}

/// How often the partitions are gone through, where some come meanwhile.
const ROUNDS: usize = 8;

/// Makes an index of a partitioned table, which the server would not make while others write. First comes an
/// empty one of the whole, then one of each partition, made while everybody goes on writing and attached to
/// it. With the last of them the index of the whole is there.
fn index_partitions(handle: &Handle, of: &ColumnOfVectors, distance: Distance, options: &str) -> Result<()> {
    let (on, pgvector, column) = (&handle.table.qualified, &handle.pgvector, of.name.as_str());
    await_builders(handle, on)?;
    for _ in 0..ROUNDS {
        if handle
            .database
            .run(Mode::Read, |connection| index_over(connection, on, column, distance))?
            .is_some()
        {
            return Ok(());
        }
        // Tables from the whole down, each with the table that it is attached to.
        let tables = handle.database.run(Mode::Read, |connection| {
            let name = "(SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = ";
            let sql = format!(
                "SELECT {name} p.relid), {name} p.parentrelid), p.isleaf FROM pg_partition_tree($1::oid::regclass) AS p ORDER BY p.level, 1"
            );
            let rows = connection.query(&sql, &[&handle.table.oid])?;
            let read = |row: &Row| Step::Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
            rows.iter().map(read).collect::<Step<Vec<(String, Option<String>, bool)>>>()
        })?;
        for (table, parent, is_leaf) in &tables {
            let parent_index = parent.as_ref().map(|parent| part_index(handle, parent, column, distance));
            let parent_index = match parent_index.transpose()? {
                None => None,
                Some(Some((index, _))) => Some(index),
                // The table came with its index meanwhile: the next round sees it.
                Some(None) => continue,
            };
            let index = match part_index(handle, table, column, distance)? {
                Some((_, true)) => continue,
                Some((index, false)) => Some(index),
                None => {
                    let create = |on: &str| schema::column_index(on, of, distance, pgvector, options);
                    if *is_leaf {
                        build_index(handle, table, column, &create(table), &|_, _| true)?;
                    } else {
                        let create = create(&format!("ONLY {table}"));
                        let create = create.replacen(" CONCURRENTLY", "", 1);
                        handle.database.run(Mode::Write, |connection| connection.batch(&create))?;
                    }
                    part_index(handle, table, column, distance)?.map(|(index, _)| index)
                }
            };
            if let (Some(parent_index), Some(index)) = (parent_index, index) {
                let attach = format!("ALTER INDEX {parent_index} ATTACH PARTITION {index}");
                handle.database.run(Mode::Write, |connection| connection.batch(&attach))?;
            }
        }
    }
    let why = format!("partitions of {on} come and go; call it again when that has ended");
    Err(Error::conflict(format!("the search index of column {column:?}"), why))
}

/// Finds the index of a part of a partitioned table from which the index of the whole is made, by
/// name, and whether it is attached. It has the form of rehang's own; that of a table with rows
/// has been made to its end.
fn part_index(handle: &Handle, on: &str, column: &str, distance: Distance) -> Result<Option<(String, bool)>> {
    handle.database.run(Mode::Read, |connection| {
        let row = connection.query_opt(
            "SELECT i.indexrelid::regclass::text, c.relispartition FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                 JOIN pg_am m ON m.oid = c.relam JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
                 JOIN pg_opclass o ON o.oid = i.indclass[0]
             WHERE i.indrelid = to_regclass($1) AND (i.indisvalid OR c.relkind = 'I') AND m.amname = 'hnsw' AND a.attname = $2
                 AND o.opcname LIKE '%' || $3 AND i.indpred IS NULL
             ORDER BY c.relispartition DESC, i.indisvalid DESC, c.relname LIMIT 1",
            &[&on, &column, &operator(distance).class],
        )?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    })
}

/// Makes an index over a column of vectors while everybody goes on writing, if there is none by the time that
/// nobody else makes one.
fn make_index(
    handle: &Handle,
    on: &str,
    column: &str,
    distance: Distance,
    create: &str,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<()> {
    await_builders(handle, on)?;
    if handle.database.run(Mode::Read, |connection| index_over(connection, on, column, distance))?.is_some() {
        return Ok(());
    }
    build_index(handle, on, column, create, advance)
}

/// Makes an index over a column of vectors without looking whether there is one.
fn build_index(
    handle: &Handle,
    on: &str,
    column: &str,
    create: &str,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<()> {
    // A process that was killed may have left an unfinished index.
    drop_unfinished(handle, on, column, FOR_EVER)?;
    let built = build(handle, create, FOR_EVER, advance);
    let Err(error) = built else { return Ok(()) };
    // Where this call cannot remove it, the next one does.
    let removed = drop_unfinished(handle, on, column, A_WHILE);
    if !lacks_shared_memory(&error) || removed.is_err() {
        return Err(error);
    }
    let built = build_by(handle, create, FOR_EVER, false, advance);
    if built.is_err() {
        drop(drop_unfinished(handle, on, column, A_WHILE));
    }
    built
}

/// Whether several processes could not share the memory that a build of theirs needs, as in a container whose
/// /dev/shm is of 64 MiB. One process alone needs none.
fn lacks_shared_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict { what, .. } if what.starts_with(SHARED_MEMORY))
}

/// Lists the indexes over a column of vectors, or over any, that were not made to their end and that nobody
/// is making. Every write goes into them, and no search reads them.
pub(crate) fn unfinished(connection: &mut Connection, on: &str, column: Option<&str>) -> Step<Vec<String>> {
    let rows = connection.query(
        "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
         WHERE (i.indrelid = to_regclass($1) OR i.indrelid IN (SELECT relid FROM pg_partition_tree(to_regclass($1)))) AND NOT i.indisvalid
             AND m.amname = 'hnsw' AND ($2 IS NULL OR a.attname = $2)
             AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_create_index AS p WHERE p.index_relid = i.indexrelid
                 OR c.relkind = 'I' AND p.relid IN (SELECT relid FROM pg_partition_tree(i.indrelid)))
         ORDER BY c.relkind = 'I' DESC, 1",
        &[&on, &column],
    )?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<String>, _>>()?)
}

/// Makes the index of the shuffle where a person has dropped it, while everybody goes on writing.
pub(crate) fn index_shuffle(handle: &Handle) -> Result<()> {
    let g = handle.number;
    let is_there = || {
        handle.database.run(Mode::Read, |connection| {
            let sql = "SELECT coalesce((SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)), false)";
            Ok(connection.query_one(sql, &[&format!("rehang.item_{g}_shuffle")])?.try_get::<_, bool>(0)?)
        })
    };
    if is_there()? {
        return Ok(());
    }
    await_builders(handle, &format!("rehang.item_{g}"))?;
    if is_there()? {
        return Ok(());
    }
    // A process that was killed may have left an unfinished index.
    build(
        handle,
        &format!("DROP INDEX CONCURRENTLY IF EXISTS rehang.item_{g}_shuffle"),
        FOR_EVER,
        &|_, _| true,
    )?;
    let create = format!("CREATE INDEX CONCURRENTLY {}", schema::shuffle_index(g));
    build(handle, &create, FOR_EVER, &|_, _| true)
}

/// Waits for another process that makes an index of a table, also where the server still makes one for
/// a process that is gone.
fn await_builders(handle: &Handle, on: &str) -> Result<()> {
    handle.database.patiently(&format!("LOCK TABLE {on} IN SHARE UPDATE EXCLUSIVE MODE"))
}

/// Removes the indexes over a column that were not made to their end.
fn drop_unfinished(handle: &Handle, on: &str, column: &str, patience: &str) -> Result<()> {
    for name in handle.database.run(Mode::Read, |connection| unfinished(connection, on, Some(column)))? {
        build(handle, &format!("DROP INDEX CONCURRENTLY IF EXISTS {name}"), patience, &|_, _| true)?;
    }
    Ok(())
}

/// How long a statement in a session of its own waits for others. Statements that make an index wait for
/// every transaction, however long it is.
const FOR_EVER: &str = "0";
/// How long the removal of an index waits after an error or a cancellation, since somebody waits for its end.
const A_WHILE: &str = "30s";

/// Runs a statement that takes minutes over a connection of its own.
fn build(handle: &Handle, sql: &str, patience: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
    build_by(handle, sql, patience, handle.pgvector.builds_in_parallel(), advance)
}

/// Runs a statement that takes minutes over a connection of its own, by one process of
/// the server or by several.
fn build_by(
    handle: &Handle,
    sql: &str,
    patience: &str,
    in_parallel: bool,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<()> {
    let mut session = handle.database.session()?;
    let failed = |failure| handle.database.failed(failure);
    session.prepare(patience, in_parallel).map_err(failed)?;
    // The text identifies the statement: a pooler does not say in which session it runs.
    let name = "SELECT concat('/* rehang ', gen_random_uuid(), ' */')";
    let name = session.connection.query_one(name, &[]).and_then(|row| Ok(row.try_get::<_, String>(0)?));
    let name = name.map_err(failed)?;
    let sql = format!("{sql} {name}");
    let worker = std::thread::spawn(move || session.connection.batch(&sql));
    let mut is_cancelled = false;
    while !worker.is_finished() {
        rehang_clock::wait(Duration::from_millis(if is_cancelled { 20 } else { 100 }));
        // A look that fails does not keep the server from its work.
        let progress = handle.database.run(Mode::Read, |connection| {
            let row = connection.query_opt(
                // An index of vectors does not say how many vectors it takes.
                "SELECT p.tuples_done, greatest(p.tuples_total, c.reltuples)::int8, p.pid
                 FROM pg_stat_activity AS a JOIN pg_stat_progress_create_index AS p ON p.pid = a.pid JOIN pg_class AS c ON c.oid = p.relid
                 WHERE right(a.query, length($1)) = $1",
                &[&name.as_str()],
            )?;
            let read = |row: Row| Step::Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?, row.try_get::<_, i32>(2)?));
            row.map(read).transpose()
        });
        if let Some((done, total, pid)) = progress.ok().flatten()
            && !advance(done.max(0) as u64, total.max(done).max(0) as u64)
            && !is_cancelled
        {
            is_cancelled = true;
            handle.database.run(Mode::Write, |connection| {
                connection.query("SELECT pg_cancel_backend($1)", &[&pid]).map(drop)
            })?;
        }
    }
    let built =
        worker.join().map_err(|_| Error::corrupt(handle.name(), "the thread that made an index ended"))?;
    if is_cancelled {
        return Err(ErrorKind::Cancelled.into());
    }
    built.map_err(failed)
}

pub(crate) fn rebuild(handle: &Handle, space: &str) -> Result<()> {
    let index_and_number = handle.database.run(Mode::Read, |connection| {
        let row = find(connection, handle, space)?;
        if row.in_column.is_some() {
            let index = index_of(connection, handle, &row)?;
            return index.map_or(Ok(None), |index| {
                let why = format!("it is the application's own; its owner makes it again: REINDEX INDEX CONCURRENTLY {index}");
                Err(Error::conflict(format!("the index of {space:?}"), why).into())
            });
        }
        Ok(index_of(connection, handle, &row)?.map(|index| (index, row.number)))
    })?;
    let Some((index, n)) = index_and_number else { return Ok(()) };
    let sql = format!("REINDEX INDEX CONCURRENTLY {index}");
    let again = |in_parallel: bool| {
        let built = build_by(handle, &sql, FOR_EVER, in_parallel, &|_, _| true);
        if built.is_err() {
            drop(drop_unfinished(handle, &format!("rehang.vector_{n}"), "value", A_WHILE));
        }
        built
    };
    match again(handle.pgvector.builds_in_parallel()) {
        Err(error) if lacks_shared_memory(&error) => again(false)?,
        built => built?,
    }
    // The index may be one of the application's own, which gets no note.
    if index.ends_with(&format!("vector_{n}_nearest")) {
        note_room(handle, n);
    }
    Ok(())
}

/// Writes into the comment of an index that rehang has just made how many bytes a vector it has,
/// for [`health`]. Where the server refuses the comment, the doctor cannot say how the index has
/// grown; searches are as good.
fn note_room(handle: &Handle, n: i32) {
    let noted = handle.database.run(Mode::Write, |connection| {
        let sql = format!(
            "SELECT pg_relation_size(to_regclass('rehang.vector_{n}_nearest'))::float8 / greatest(count(*), 1)
             FROM rehang.state_{n} WHERE provenance <> 'lacking'"
        );
        let Some(bytes) = connection.query_one(&sql, &[])?.try_get::<_, Option<f64>>(0)? else {
            return Ok(());
        };
        connection.batch(&format!(
            "COMMENT ON INDEX rehang.vector_{n}_nearest IS '{MADE_WITH}{bytes:.1} bytes a vector'"
        ))
    });
    drop(noted);
}

pub(crate) fn recall(handle: &Handle, space: &str, samples: usize, k: usize) -> Result<f64> {
    handle.database.run(Mode::Read, |connection| {
        let row = find(connection, handle, space)?;
        if k == 0 || samples == 0 || exact_from(connection, handle, &row)? <= k {
            return Ok(1.0);
        }
        let vectors = SpaceVectors::for_space(handle, &row, false);
        let sql = format!(
            "SELECT {} FROM {} WHERE s.provenance <> 'lacking' ORDER BY hashint8extended(s.item, 0) LIMIT $1",
            handle.pgvector.sent(&vectors.value),
            vectors.from
        );
        let mut queries = Vec::new();
        let rows = connection.query(&sql, &[&row_limit(samples)])?;
        for row in &rows {
            queries.extend(parameter::vector(row, 0)?.unwrap_or_default());
        }
        let queries = Matrix::new(row.record.space.dimension, queries)?;
        let wanted = Wanted { queries: &queries, k, filter: &Filter::default(), handicap: 0.0 };
        let until = rehang_clock::now();
        let mut found_from = |exact_from: usize| -> Step<Vec<Vec<Found>>> {
            let searched = Searched { row: row.clone(), exact_from, until };
            Ok(search_in(connection, handle, &searched, &wanted, None)?.unwrap_or_default())
        };
        Ok(share_found(found_from(0)?.iter().zip(&found_from(usize::MAX)?)))
    })
}

/// Foresees what searches of a space will cost whose vectors are too wide for any index. `None` where an
/// index is possible, and where all vectors are compared in any case.
pub(crate) fn foresee(handle: &Handle, space: &Space) -> Result<Option<String>> {
    if schema::can_be_indexed(space.dimension) || handle.column_of(&space.name).is_some() {
        return Ok(None);
    }
    let sql = format!("SELECT count(*) FROM rehang.item_{}", handle.number);
    let items = handle.database.run(Mode::Read, |connection| connection.count(&sql, &[]))?;
    if items <= UNINDEXED_MAX as u64 {
        return Ok(None);
    }
    let bytes = (items * schema::bytes(space.dimension)) as f64;
    Ok(Some(format!(
        "vectors of {} coordinates can have no index of pgvector, {} being the most: each search of {:?} compares all {items} of them, which takes some \
         {:.1} s where their {:.1} GB are in the server's memory, and longer where they are not. A model that is cut to so many coordinates has an index",
        space.dimension,
        schema::INDEXED_MAX,
        space.name,
        (bytes / COMPARED_A_SECOND).max(0.1),
        bytes / 1e9
    )))
}

/// Reports how the index of a space is, as far as the server knows.
pub(crate) fn health(handle: &Handle, space: &str) -> Result<IndexHealth> {
    handle.database.run(Mode::Read, |connection| {
        let row = find(connection, handle, space)?;
        let vectors = connection.count(
            &format!("SELECT count(*) FROM rehang.state_{} WHERE provenance <> 'lacking'", row.number),
            &[],
        )?;
        let index = index_of(connection, handle, &row)?;
        let is_exact = index.is_none() || vectors as i64 <= EXACT_MAX;
        let kind = if is_exact { IndexKind::Exact } else { IndexKind::Graph };
        let mut health = IndexHealth::new(kind, vectors as usize);
        if let Some(index) = index.filter(|_| !is_exact) {
            let statistics = connection.query_one(
                "SELECT pg_relation_size(to_regclass($1)), coalesce((SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = to_regclass($2)), 0),
                     obj_description(to_regclass($1), 'pg_class')",
                &[&index, &table_of(handle, &row)],
            )?;
            health.bytes = statistics.try_get::<_, i64>(0)?.max(0) as usize;
            health.built = vectors as usize;
            health.overwritten = statistics.try_get::<_, i64>(1)?.max(0) as usize;
            let when_made = statistics.try_get::<_, Option<String>>(2)?.and_then(|comment| {
                comment.strip_prefix(MADE_WITH)?.split_once(' ')?.0.parse::<f64>().ok()
            });
            health.growth = when_made.map(|bytes| health.bytes as f64 / vectors as f64 / bytes);
        }
        Ok(health)
    })
}
