//! Vectors of spaces with their states, and the conditional writes of an upgrade.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use pgvector::{HalfVector, Vector};
use rehang_core::{Error, ErrorKind, Provenance, Result};
use rehang_store::{
    Counts, Epoch, Failure, ItemKey, NewVector, Priority, Revision, VectorRecord, VectorWrite, WriteOutcome,
    check,
};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use crate::connection::{BoundStatement, Connection, Mode, Parameters, Step, StepError};
use crate::handle::{Handle, Searched};
use crate::ignored::{Event, held_back};
use crate::parameter::{self, Many, Parameter};
use crate::schema::{self, SpaceRow, source_revision};
use crate::spaces::{self, find};
use crate::table::quoted;
use crate::values::{band_and_score, int, key, priority, provenance, row_limit, row_of, rows_of};

/// Returns the columns of a state `s`, and of its vector where one is wanted, for [`read`].
pub(crate) fn columns(handle: &Handle, space: &SpaceRow, state: &str, with_vector: bool) -> String {
    let value = if with_vector { value_of(space, &format!("v{}", space.number)) } else { "NULL".into() };
    let value = handle.pgvector.sent(&value);
    format!(
        "{state}.provenance AS {state}_provenance, {state}.revision AS {state}_revision, {state}.sigma2 AS {state}_sigma2, {state}.band AS {state}_band,
             {state}.score AS {state}_score, {state}.squared_error AS {state}_squared_error, {value} AS {state}_vector"
    )
}

/// Returns the expression for the vector of a space, from its own table or the application's row `t`.
fn value_of(space: &SpaceRow, vectors: &str) -> String {
    match &space.in_column {
        Some(column) => format!("t.{}", quoted(column)),
        None => format!("{vectors}.value"),
    }
}

/// Returns the join of the state of an item `i` in a space as `s`, and of its vector where that is in
/// a table of the gallery.
pub(crate) fn join(space: &SpaceRow, state: &str, with_vector: bool) -> String {
    let n = space.number;
    let vectors = if with_vector && space.in_column.is_none() {
        format!(" LEFT JOIN rehang.vector_{n} AS v{n} ON v{n}.item = {state}.item")
    } else {
        String::new()
    };
    // There is no condition on the provenance here: which items lack a vector changes faster than
    // the planner's statistics.
    format!("LEFT JOIN rehang.state_{n} AS {state} ON {state}.item = i.key{vectors}")
}

/// Reads a vector with its state `s` from their [`columns`]. `None` where the space has none, also where a
/// state says that it has one: the doctor tells that, and a write of the vector mends it.
pub(crate) fn read(row: &Row, state: &str, with_vector: bool) -> Step<Option<VectorRecord>> {
    let column = |name: &str| format!("{state}_{name}");
    let made_by: Option<String> = row.try_get(column("provenance").as_str())?;
    let Some(made_by) = made_by.filter(|made_by| made_by != "lacking") else { return Ok(None) };
    let vector =
        if with_vector { parameter::vector(row, column("vector").as_str())? } else { Some(Vec::new()) };
    let Some(vector) = vector else { return Ok(None) };
    Ok(Some(VectorRecord {
        provenance: provenance(&made_by)?,
        revision: row.try_get::<_, i64>(column("revision").as_str())?.max(0) as u64,
        sigma2: row.try_get(column("sigma2").as_str())?,
        priority: priority(row.try_get(column("band").as_str())?, row.try_get(column("score").as_str())?),
        squared_error: row.try_get(column("squared_error").as_str())?,
        vector,
    }))
}

pub(crate) fn get(handle: &Handle, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>> {
    // A search has most often looked at the space a moment ago. Then one round trip reads it again, to see
    // whether it is the same one, and the vectors.
    let searched = handle.searched.lock().unwrap_or_else(PoisonError::into_inner).get(space).cloned();
    if let Some(Searched { row, .. }) = searched {
        let (of_name, sql, rows) = (spaces::of_name(), select_of_keys(handle, &row), rows_of(keys));
        let queries = [
            (of_name.as_str(), vec![&handle.number as &dyn Parameter, &space]),
            (sql.as_str(), vec![&rows as &dyn Parameter]),
        ];
        let records = handle.database.run(Mode::ReadAtOnce, |connection| {
            let mut answers = connection.query_all("", &queries)?.into_iter();
            let space_now = answers.next().unwrap_or_default().first().map(spaces::read).transpose()?;
            if space_now.is_none_or(|space_now| !space_now.is_searched_as(&row)) {
                return Ok(None);
            }
            read_by_keys(&answers.next().unwrap_or_default(), keys).map(Some)
        });
        match records {
            Ok(Some(records)) => return Ok(records),
            // The name is of a space of another kind by now, or of none.
            Ok(None) => {}
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error),
        }
    }
    handle.database.run(Mode::Read, |connection| {
        let space = find(connection, handle, space)?;
        let rows = connection.query(&select_of_keys(handle, &space), &[&rows_of(keys)])?;
        read_by_keys(&rows, keys)
    })
}

/// Returns the query for the vectors of a space, with the keys of their items, `$1`.
fn select_of_keys(handle: &Handle, space: &SpaceRow) -> String {
    let row = if space.in_column.is_some() {
        format!("JOIN {} AS t ON {}", handle.table.qualified, handle.table.is_of("i", "t"))
    } else {
        String::new()
    };
    format!(
        "SELECT {}, i.key FROM rehang.item_{} AS i {row} {} WHERE i.key = ANY($1)",
        columns(handle, space, "s", true),
        handle.number,
        join(space, "s", true)
    )
}

/// Reads vectors from the rows of [`select_of_keys`], in the order of the keys.
fn read_by_keys(rows: &[Row], keys: &[ItemKey]) -> Step<Vec<Option<VectorRecord>>> {
    let mut records = BTreeMap::new();
    for row in rows {
        records.insert(key(row, "key")?, read(row, "s", true)?);
    }
    Ok(keys.iter().map(|key| records.get(key).cloned().flatten()).collect())
}

pub(crate) fn provenances(handle: &Handle, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>> {
    handle.database.run(Mode::Read, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "SELECT item, provenance FROM rehang.state_{n} WHERE item = ANY($1) AND provenance <> 'lacking'"
        );
        let mut provenance_by_key = BTreeMap::new();
        for row in connection.query(&sql, &[&rows_of(keys)])? {
            provenance_by_key.insert(key(&row, 0)?, provenance(&row.try_get::<_, String>(1)?)?);
        }
        Ok(keys.iter().map(|key| provenance_by_key.get(key).copied()).collect())
    })
}

/// Item that was just put.
pub(crate) struct NewState {
    pub(crate) item: i64,
    pub(crate) revision: i64,
    /// Revision of its source, where the put has left the source as it was.
    pub(crate) kept_source: Option<i64>,
    pub(crate) sourced: bool,
    /// Whether the put has made the item. Then whatever it has in a space was given to it as
    /// an item that came back.
    pub(crate) is_new: bool,
}

/// Vector that an item which was just put has in a space from then on, or the lack of one.
struct Replacement<'a> {
    space: &'a SpaceRow,
    made_by: &'static str,
    sigma2: Option<f32>,
    band: i16,
    score: Option<f64>,
    /// The vector, where those of the space are in a table of the gallery.
    vector: Option<Vector>,
    /// Whether what was made of the item's source stays with it.
    keeps: bool,
    /// Whether a native vector stays, where there is one.
    may_stay: bool,
}

impl<'a> Replacement<'a> {
    fn new(space: &'a SpaceRow, item: &NewState, vectors: &[NewVector]) -> Self {
        let new = vectors.iter().find(|new| new.space == space.record.space.name);
        let brings_none = new.is_none_or(|new| new.provenance == Provenance::Adapted);
        let keeps = item.kept_source.is_some() && brings_none;
        let (band, score) = band_and_score(new.and_then(|new| new.priority));
        let beside_column = new.filter(|_| space.in_column.is_none());
        Self {
            space,
            made_by: new.map_or("lacking", |new| new.provenance.name()),
            sigma2: new.and_then(|new| new.sigma2),
            band,
            score,
            vector: beside_column.map(|new| Vector::from(new.vector.clone())),
            keeps,
            may_stay: (keeps || item.is_new && brings_none) && space.in_column.is_none(),
        }
    }

    /// Returns the statement that leaves a native vector to the item. It changes nothing where there is none.
    fn stay<'b>(&self, item: &'b NewState) -> BoundStatement<'b> {
        let sql = format!(
            "UPDATE rehang.state_{} SET revision = $2, source_revision = $3 WHERE item = $1 AND provenance = 'native'",
            self.space.number
        );
        let parameters: Vec<&dyn Parameter> = vec![&item.item, &item.revision, &item.kept_source];
        (sql, parameters)
    }

    /// Returns the statements that give the item the vector, or take away what it has. The first word of a
    /// table's name stands before each that has to change a row there.
    fn statements<'b>(
        &'b self,
        handle: &Handle,
        item: &'b NewState,
    ) -> Vec<(Option<&'static str>, BoundStatement<'b>)> {
        let n = self.space.number;
        let delete = |table: &str| -> BoundStatement<'b> {
            (format!("DELETE FROM rehang.{table}_{n} WHERE item = $1"), vec![&item.item as &dyn Parameter])
        };
        let of_state: Vec<&dyn Parameter> = vec![
            &item.item,
            &item.revision,
            &self.made_by,
            &item.sourced,
            &self.sigma2,
            &self.band,
            &self.score,
            &item.kept_source,
            &self.keeps,
        ];
        let state = format!(
            "INSERT INTO rehang.state_{n} AS s (item, revision, source_revision, provenance, sourced, sigma2, band, score, change)
             VALUES ($1, $2, $8, $3, $4, $5, $6, $7, nextval('rehang.revision'))
             ON CONFLICT (item) DO UPDATE SET revision = EXCLUDED.revision, source_revision = EXCLUDED.source_revision,
                 provenance = EXCLUDED.provenance, sourced = EXCLUDED.sourced, sigma2 = EXCLUDED.sigma2, band = EXCLUDED.band,
                 score = EXCLUDED.score, squared_error = NULL, failed = s.failed AND $9, change = EXCLUDED.change"
        );
        let mut statements = vec![(Some("state"), (state, of_state))];
        if !self.keeps {
            statements.extend(["failure", "claim"].map(|table| (None, delete(table))));
        }
        if self.space.in_column.is_some() {
            return statements;
        }
        let Some(vector) = &self.vector else {
            statements.push((None, delete("vector")));
            return statements;
        };
        let put = format!(
            "INSERT INTO rehang.vector_{n} (item, value) VALUES ($1, $2::{})
             ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value",
            handle.pgvector.vector()
        );
        let of_vector: Vec<&dyn Parameter> = vec![&item.item, vector];
        statements.push((Some("vector"), (put, of_vector)));
        statements
    }
}

/// Gives an item that was just put its vector in each space, or none.
pub(crate) fn replace(
    connection: &mut Connection,
    handle: &Handle,
    spaces: &[SpaceRow],
    item: &NewState,
    vectors: &[NewVector],
) -> Step<()> {
    let mut replacements: Vec<Replacement<'_>> =
        spaces.iter().map(|space| Replacement::new(space, item, vectors)).collect();
    let stays: Vec<_> = replacements.iter().filter(|of| of.may_stay).map(|of| of.stay(item)).collect();
    let mut stayed = connection.execute_all(&stays)?.into_iter();
    replacements.retain(|of| !of.may_stay || stayed.next() == Some(0));
    let (mut statements, mut tables) = (Vec::new(), Vec::new());
    for replacement in &replacements {
        for (table, statement) in replacement.statements(handle, item) {
            statements.push(statement);
            tables.push(table.map(|table| (table, replacement.space)));
        }
    }
    for (changed, table) in connection.execute_all(&statements)?.into_iter().zip(tables) {
        if let Some((table, space)) = table.filter(|_| changed == 0) {
            let doing = format!("the write of an item in space {:?}", space.record.space.name);
            let on = format!("rehang.{table}_{}", space.number);
            return Err(held_back(connection, &on, Event::Put, &doing)?.into());
        }
    }
    Ok(())
}

pub(crate) fn write(
    handle: &Handle,
    space: &str,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
) -> Result<Vec<WriteOutcome>> {
    // An item that is written twice in a call is written in two rounds, which are one transaction.
    let is_one_round = writes.iter().map(|write| write.key).collect::<BTreeSet<_>>().len() == writes.len();
    let mode = if is_one_round { Mode::Statements } else { Mode::Write };
    let (mut tries, mut is_refused) = (0_u32, false);
    let mut outcomes = vec![None; writes.len()];
    let written = handle.database.run(mode, |connection| {
        tries += 1;
        let attempt = match tries {
            1 => Attempt::First,
            TRIES.. => Attempt::Last,
            _ => Attempt::Again,
        };
        // A statement that is a transaction of its own has written its vectors, whatever
        // became of the next one.
        if !is_one_round {
            outcomes.fill(None);
        }
        let done = write_all(connection, handle, space, epoch, writes, &mut outcomes, attempt);
        is_refused = matches!(done, Err(StepError::Server(_)));
        done
    });
    match written {
        Ok(()) => Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(WriteOutcome::Changed)).collect()),
        // Unwritten vectors wait. The cause of the refusal may be mended meanwhile: a right
        // that was taken, a disk.
        Err(error) if !error.is_retryable() && (is_refused || error.is_unauthorised()) => {
            let detail = format!("vectors wait to be written: {error}");
            Err(ErrorKind::Unavailable { service: handle.name(), detail }.into())
        }
        Err(error) => Err(error),
    }
}

/// Writes the vectors that have no outcome yet.
fn write_all(
    connection: &mut Connection,
    handle: &Handle,
    space: &str,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
    outcomes: &mut [Option<WriteOutcome>],
    attempt: Attempt,
) -> Step<()> {
    let row = find(connection, handle, space)?;
    for write in writes {
        check::vector_write(&row.record.space, epoch, write)?;
    }
    if let Some(epoch) = epoch {
        check::epoch(space, epoch, row.record.epoch)?;
    }
    let is_native = writes.iter().any(|write| write.provenance == Provenance::Native);
    let pace = if is_native { &handle.natives } else { &handle.adapted };
    while let Some(first) = outcomes.iter().position(Option::is_none) {
        let mut round_keys = BTreeSet::new();
        let round: Vec<usize> = (first..writes.len())
            .filter(|at| outcomes[*at].is_none() && round_keys.insert(writes[*at].key))
            .take(pace.now())
            .collect();
        let began = rehang_clock::now();
        write_round(connection, handle, &row, epoch, writes, &round, outcomes, attempt)?;
        pace.learn(round.len(), began.elapsed());
    }
    Ok(())
}

/// How often a call is made again before it leaves alone the items that others use: about a second.
const TRIES: u32 = 8;

/// Writes vectors of different items, all of them in one statement.
#[allow(clippy::too_many_arguments, reason = "what a call is about, and what became of it")]
fn write_round(
    connection: &mut Connection,
    handle: &Handle,
    space: &SpaceRow,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
    round: &[usize],
    outcomes: &mut [Option<WriteOutcome>],
    attempt: Attempt,
) -> Step<()> {
    let n = space.number;
    let written = match &space.in_column {
        None => write_states_and_values(connection, handle, space, epoch, writes, round, attempt)?,
        Some(_) => BTreeSet::new(),
    };
    let (ready, unwritten): (Vec<usize>, Vec<usize>) =
        round.iter().copied().partition(|at| written.contains(&writes[*at].key));
    for at in ready {
        outcomes[at] = Some(WriteOutcome::Written);
    }
    if unwritten.is_empty() {
        return Ok(());
    }
    let mut states = BTreeMap::new();
    let keys: Vec<i64> = unwritten.iter().map(|at| row_of(writes[*at].key)).collect();
    let sql = format!(
        "SELECT item, s.revision, provenance, {} AS source_revision FROM rehang.state_{n} AS s WHERE item = ANY($1)",
        source_revision("s")
    );
    for row in connection.query(&sql, &[&keys])? {
        let revisions: (i64, i64) = (row.try_get("revision")?, row.try_get("source_revision")?);
        states.insert(key(&row, "item")?, (revisions, row.try_get::<_, String>("provenance")?));
    }
    for at in unwritten {
        outcomes[at] = Some(match states.get(&writes[at].key) {
            None => WriteOutcome::Deleted,
            Some((revisions, _)) if !is_of_now(*revisions, &writes[at]) => WriteOutcome::Changed,
            Some((_, made_by)) if ["old", "native"].contains(&made_by.as_str()) => WriteOutcome::AlreadyThere,
            Some(_) => {
                if let Some(column) = &space.in_column {
                    let what = format!("writing into space {:?}", space.record.space.name);
                    let why = format!(
                        "its vectors are column {column:?} of the application's table, which only the application writes"
                    );
                    return Err(Error::conflict(what, why).into());
                }
                // Most likely an application is about to change the item; if not, it stays in the queue.
                WriteOutcome::Changed
            }
        });
    }
    Ok(())
}

/// Whether a write was made of the item as it is now, given the item's revision and that of its source.
fn is_of_now((revision, of_source): (i64, i64), write: &VectorWrite) -> bool {
    let of_now = if write.provenance == Provenance::Native { of_source } else { revision };
    of_now == int(write.revision)
}

/// Way in which a write of vectors meets rows that another transaction uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The write waits for them for a moment, and then fails. Rows are seldom in use, and locking all of them
    /// first costs a third of a fill.
    First,
    /// The write fails where it meets one: waiting while it holds other rows could keep an
    /// application from going on.
    Again,
    /// The write passes over them.
    Last,
}

/// Writes the states and the vectors of the items that still are what they were when they were read,
/// and returns their keys.
///
/// It is one statement and takes no lock before all its bytes are there. Whatever becomes of this process,
/// the server ends the statement within milliseconds, and nobody waits for a worker that is frozen, or
/// whose machine is gone.
fn write_states_and_values(
    connection: &mut Connection,
    handle: &Handle,
    space: &SpaceRow,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
    round: &[usize],
    attempt: Attempt,
) -> Step<BTreeSet<ItemKey>> {
    let n = space.number;
    let write_at = |at: &usize| &writes[*at];
    let keys: Vec<i64> = round.iter().map(|at| row_of(write_at(at).key)).collect();
    let revisions: Vec<i64> = round.iter().map(|at| int(write_at(at).revision)).collect();
    let provenances: Vec<&str> = round.iter().map(|at| write_at(at).provenance.name()).collect();
    let sigmas: Vec<Option<f32>> = round.iter().map(|at| write_at(at).sigma2).collect();
    let (bands, scores): (Vec<i16>, Vec<Option<f64>>) =
        round.iter().map(|at| band_and_score(write_at(at).priority)).unzip();
    let errors: Vec<Option<f32>> = round.iter().map(|at| write_at(at).squared_error).collect();
    let epoch = epoch.map(|epoch| int(epoch.number()));
    let is_half = schema::column_type(space.record.space.dimension).starts_with("halfvec");
    let (kind, values): (_, Box<dyn Parameter>) = if is_half {
        let values = round.iter().map(|at| HalfVector::from_f32_slice(&write_at(at).vector)).collect();
        ("halfvec", Box::new(Many::new(&handle.pgvector.halfvecs, values)))
    } else {
        let values = round.iter().map(|at| Vector::from(write_at(at).vector.clone())).collect();
        ("vector", Box::new(Many::new(&handle.pgvector.vectors, values)))
    };
    let kind = handle.pgvector.named(kind);
    let still_is = format!(
        "s.item = w.item AND w.revision = CASE w.provenance WHEN 'native' THEN {} ELSE s.revision END
             AND s.provenance IN ('lacking', 'adapted')",
        source_revision("s")
    );
    let locked = |how: &str| {
        format!(
            ", free AS (SELECT s.item FROM rehang.state_{n} AS s JOIN w ON {still_is} ORDER BY s.item FOR UPDATE OF s {how})"
        )
    };
    let (free, of_free) = match attempt {
        Attempt::First => (String::new(), ""),
        Attempt::Again => (locked("NOWAIT"), "JOIN free ON free.item = w.item"),
        Attempt::Last => (locked("SKIP LOCKED"), "JOIN free ON free.item = w.item"),
    };
    // `here` keeps `advance` and `drop_space` from the space until the statement ends; without it nothing is
    // written. A vector that is replaced goes first: `put` asks what `gone` did.
    let sql = format!(
        "WITH here AS MATERIALIZED (SELECT set_config('lock_timeout', '50ms', true) FROM rehang.space
                 WHERE number = {n} AND listed AND ($9::bigint IS NULL OR epoch = $9) FOR SHARE),
             w AS (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::real[], $5::smallint[], $6::float8[], $7::real[])
                 AS w(item, revision, provenance, sigma2, band, score, squared_error)){free},
             written AS (UPDATE rehang.state_{n} AS s SET provenance = w.provenance, sigma2 = coalesce(w.sigma2, s.sigma2), band = w.band,
                 score = w.score, squared_error = w.squared_error, failed = s.failed AND w.provenance = 'adapted',
                 change = CASE w.provenance WHEN 'native' THEN nextval('rehang.revision') ELSE s.change END
                 FROM here, w {of_free} WHERE {still_is} RETURNING s.item, s.provenance),
             native AS (SELECT item FROM written WHERE provenance = 'native'),
             gone AS (DELETE FROM rehang.vector_{n} WHERE item = ANY (ARRAY(SELECT item FROM written)) RETURNING item),
             put AS (INSERT INTO rehang.vector_{n} (item, value) SELECT v.item, v.value FROM unnest($1::bigint[], $8::{kind}[]) AS v(item, value)
                 WHERE v.item IN (SELECT item FROM written) AND (SELECT count(*) FROM gone) >= 0 RETURNING item),
             failure AS (DELETE FROM rehang.failure_{n} WHERE item = ANY (ARRAY(SELECT item FROM native))),
             claim AS (DELETE FROM rehang.claim_{n} WHERE item = ANY (ARRAY(SELECT item FROM native)))
         SELECT EXISTS (SELECT 1 FROM here), ARRAY(SELECT item FROM written),
             1 / CASE WHEN (SELECT count(*) FROM put) = (SELECT count(*) FROM written) THEN 1 ELSE 0 END"
    );
    let row = connection.query_one(
        &sql,
        &[&keys, &revisions, &provenances, &sigmas, &bands, &scores, &errors, &*values, &epoch],
    );
    let row = row.map_err(|failure| match failure {
        // Another worker wrote a vector that this statement did not see yet; the next one does.
        StepError::Server(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => StepError::Busy,
        // The statement divides by zero and fails as a whole where vectors were held back, so that no state
        // says that there is a vector where there is none.
        StepError::Server(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => {
            let why = format!(
                "a trigger on rehang.vector_{n} holds vectors back; drop it, since the table is ours"
            );
            Error::conflict(format!("a write of vectors into space {:?}", space.record.space.name), why)
                .into()
        }
        failure => failure,
    })?;
    if !row.try_get::<_, bool>(0)? {
        // Another epoch began, or the space went, since it was read: the next look says so.
        return Err(StepError::Busy);
    }
    let written: Vec<i64> = row.try_get(1)?;
    Ok(written.into_iter().map(|item| ItemKey::from(item.max(0) as u64)).collect())
}

/// Returns the part of a statement that keeps `advance` and `drop_space` from a space while the statement
/// runs. It is empty where another epoch has begun; `$1` is the epoch.
fn in_epoch(n: i32) -> String {
    format!(
        "here AS MATERIALIZED (SELECT number FROM rehang.space WHERE number = {n} AND listed AND epoch = $1 FOR SHARE)"
    )
}

/// Runs a statement that returns a count beside whether its epoch was there, and returns the count.
fn count_in_epoch(connection: &mut Connection, sql: &str, parameters: Parameters<'_>) -> Step<usize> {
    let row = connection.query_one(sql, parameters)?;
    if !row.try_get::<_, bool>(0)? {
        return Err(StepError::Busy);
    }
    Ok(row.try_get::<_, i64>(1)?.max(0) as usize)
}

pub(crate) fn set_priorities(
    handle: &Handle,
    space: &str,
    epoch: Epoch,
    priorities: &[(ItemKey, Revision, Priority)],
) -> Result<usize> {
    for (_, _, priority) in priorities {
        check::priority(Some(*priority))?;
    }
    let keys: Vec<i64> = priorities.iter().map(|(key, ..)| row_of(*key)).collect();
    let revisions: Vec<i64> = priorities.iter().map(|(_, revision, _)| int(*revision)).collect();
    let (bands, scores): (Vec<i16>, Vec<Option<f64>>) =
        priorities.iter().map(|(.., priority)| band_and_score(Some(*priority))).unzip();
    handle.database.run(Mode::Statements, |connection| {
        let row = find(connection, handle, space)?;
        check::epoch(space, epoch, row.record.epoch)?;
        let sql = format!(
            "WITH {here}, w AS (SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::smallint[], $5::float8[]) AS w(item, revision, band, score)),
                 free AS (SELECT s.item FROM rehang.state_{n} AS s JOIN w ON s.item = w.item AND s.revision = w.revision
                     WHERE s.provenance = 'adapted' ORDER BY s.item FOR UPDATE OF s SKIP LOCKED),
                 changed AS (UPDATE rehang.state_{n} AS s SET band = w.band, score = w.score FROM here, w JOIN free ON free.item = w.item
                     WHERE s.item = w.item RETURNING 1)
             SELECT EXISTS (SELECT 1 FROM here), (SELECT count(*) FROM changed)",
            here = in_epoch(row.number),
            n = row.number
        );
        count_in_epoch(connection, &sql, &[&int(epoch.number()), &keys, &revisions, &bands, &scores])
    })
}

pub(crate) fn forget_natives(handle: &Handle, space: &str, epoch: Epoch, limit: usize) -> Result<usize> {
    handle.database.run(Mode::Statements, |connection| {
        let row = find(connection, handle, space)?;
        check::epoch(space, epoch, row.record.epoch)?;
        let n = row.number;
        // Vectors that wait for items that are gone are of the same model.
        let is_kept = connection.count("SELECT count(*) FROM to_regclass($1::text) AS t WHERE t IS NOT NULL", &[&format!("rehang.paid_{n}")])? > 0;
        let forget = if is_kept { format!(", paid AS (DELETE FROM rehang.paid_{n} WHERE EXISTS (SELECT 1 FROM here))") } else { String::new() };
        let vectors = if row.in_column.is_some() { String::new() } else {
            format!(", gone AS (DELETE FROM rehang.vector_{n} WHERE item IN (SELECT item FROM forgotten))")
        };
        let sql = format!(
            "WITH {here}, free AS (SELECT item FROM rehang.state_{n} WHERE provenance = 'native' AND sourced ORDER BY item LIMIT $2
                     FOR UPDATE SKIP LOCKED),
                 forgotten AS (UPDATE rehang.state_{n} AS s SET provenance = 'lacking', sigma2 = NULL, band = 0, score = NULL,
                     squared_error = NULL FROM here, free WHERE s.item = free.item RETURNING s.item){vectors}{forget}
             SELECT EXISTS (SELECT 1 FROM here), (SELECT count(*) FROM forgotten)",
            here = in_epoch(n)
        );
        count_in_epoch(connection, &sql, &[&int(epoch.number()), &row_limit(limit)])
    })
}

pub(crate) fn counts(handle: &Handle, space: &str) -> Result<Counts> {
    handle.database.run(Mode::Read, |connection| {
        let n = find(connection, handle, space)?.number;
        let mut counts = Counts::default();
        for row in connection.query(&format!("SELECT provenance, count(*) FROM rehang.state_{n} GROUP BY 1"), &[])? {
            let count = row.try_get::<_, i64>(1)?.max(0) as u64;
            counts.items += count;
            *match row.try_get::<_, String>(0)?.as_str() {
                "old" => &mut counts.old,
                "adapted" => &mut counts.adapted,
                "native" => &mut counts.native,
                _ => &mut counts.lacking,
            } = count;
        }
        counts.failed = connection.count(&format!("SELECT count(*) FROM rehang.failure_{n}"), &[])?;
        counts.without_source = connection.count(
            &format!("SELECT count(*) FROM rehang.state_{n} WHERE NOT sourced AND provenance IN ('lacking', 'adapted')"),
            &[],
        )?;
        Ok(counts)
    })
}

pub(crate) fn count_lag(handle: &Handle, space: &str, behind: &str) -> Result<u64> {
    handle.database.run(Mode::Read, |connection| {
        let (n, m) = (find(connection, handle, space)?.number, find(connection, handle, behind)?.number);
        connection.count(
            &format!(
                "SELECT count(*) FROM rehang.state_{n} AS s JOIN rehang.state_{m} AS b ON b.item = s.item
                 WHERE s.provenance = 'lacking' AND b.provenance <> 'lacking'"
            ),
            &[],
        )
    })
}

pub(crate) fn record_failures(
    handle: &Handle,
    space: &str,
    failures: &[(ItemKey, Revision, String)],
) -> Result<()> {
    // A text of the server cannot hold everything that an encoder may say. The last reason of an item counts.
    let failures: BTreeMap<(ItemKey, Revision), String> = failures
        .iter()
        .map(|(key, revision, reason)| ((*key, *revision), reason.replace('\0', "\u{fffd}")))
        .collect();
    let keys: Vec<i64> = failures.keys().map(|(key, _)| row_of(*key)).collect();
    let revisions: Vec<i64> = failures.keys().map(|(_, revision)| int(*revision)).collect();
    let reasons: Vec<&str> = failures.values().map(String::as_str).collect();
    handle.database.run(Mode::Statements, |connection| {
        let n = find(connection, handle, space)?.number;
        // Rows are locked in the order of keys, so that two workers never wait for each other.
        let sql = format!(
            "WITH w AS (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS w(item, revision, reason)),
                 free AS (SELECT s.item, w.revision, w.reason FROM rehang.state_{n} AS s JOIN w ON w.item = s.item AND w.revision = {of_source}
                     WHERE s.provenance IN ('lacking', 'adapted') ORDER BY s.item FOR UPDATE OF s SKIP LOCKED),
                 s AS (UPDATE rehang.state_{n} AS s SET failed = true FROM free WHERE s.item = free.item RETURNING free.*),
                 gone AS (DELETE FROM rehang.claim_{n} WHERE item = ANY (ARRAY(SELECT item FROM s)))
             INSERT INTO rehang.failure_{n} (item, revision, reason) SELECT item, revision, reason FROM s
             ON CONFLICT (item) DO UPDATE SET revision = EXCLUDED.revision, reason = EXCLUDED.reason",
            of_source = source_revision("s")
        );
        connection.execute(&sql, &[&keys, &revisions, &reasons])?;
        Ok(())
    })
}

pub(crate) fn failures(
    handle: &Handle,
    space: &str,
    after: Option<ItemKey>,
    limit: usize,
) -> Result<Vec<Failure>> {
    handle.database.run(Mode::Read, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "SELECT f.item, i.id, f.revision, f.reason FROM rehang.failure_{n} AS f JOIN rehang.item_{} AS i ON i.key = f.item
             WHERE f.item > $1 ORDER BY f.item LIMIT $2",
            handle.number
        );
        connection
            .query(&sql, &[&after.map_or(-1, row_of), &row_limit(limit)])?
            .iter()
            .map(|row| {
                Ok(Failure {
                    key: key(row, "item")?,
                    id: row.try_get("id")?,
                    revision: row.try_get::<_, i64>("revision")?.max(0) as u64,
                    reason: row.try_get("reason")?,
                })
            })
            .collect()
    })
}

pub(crate) fn clear_failures(handle: &Handle, space: &str) -> Result<u64> {
    handle.database.run(Mode::Statements, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "WITH free AS (SELECT s.item FROM rehang.state_{n} AS s JOIN rehang.failure_{n} AS f ON f.item = s.item
                     ORDER BY s.item FOR UPDATE OF s SKIP LOCKED),
                 gone AS (DELETE FROM rehang.failure_{n} WHERE item IN (SELECT item FROM free) RETURNING item)
             UPDATE rehang.state_{n} AS s SET failed = false FROM gone WHERE s.item = gone.item"
        );
        connection.execute(&sql, &[])
    })
}

pub(crate) fn errors(handle: &Handle, space: &str, limit: usize) -> Result<Vec<(f32, f32)>> {
    handle.database.run(Mode::Read, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "SELECT sigma2, squared_error FROM rehang.state_{n}
             WHERE provenance = 'native' AND sigma2 IS NOT NULL AND squared_error IS NOT NULL ORDER BY change DESC LIMIT $1"
        );
        connection
            .query(&sql, &[&row_limit(limit)])?
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    })
}
