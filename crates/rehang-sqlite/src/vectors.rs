//! Vectors of a space: reading them, the upgrade's conditional writes, failures, counts.

use std::collections::BTreeMap;

use rehang_core::{Error, Provenance, Result};
use rehang_store::{
    Counts, Epoch, Failure, ItemKey, Priority, Revision, VectorRecord, VectorWrite, WriteOutcome, check,
};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};

use crate::connection::Database;
use crate::ignored::ignored_error;
use crate::paid;
use crate::schema::SOURCE_REVISION;
use crate::spaces::{self, REMOVED_TOGETHER, SpaceRow, in_turns};
use crate::trouble::Step;
use crate::values::{as_bytes, int, key, place, priority, provenance, read_value, row_of};

pub(crate) fn get(database: &Database, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>> {
    database.read(|transaction| {
        let records = states(transaction, &spaces::find(transaction, space)?, keys, true)?;
        Ok(keys.iter().map(|key| records.get(key).cloned()).collect())
    })
}

pub(crate) fn provenances(
    database: &Database,
    space: &str,
    keys: &[ItemKey],
) -> Result<Vec<Option<Provenance>>> {
    database.read(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let mut select =
            transaction.prepare_cached(&format!("SELECT provenance FROM vector_{n} WHERE item = ?1"))?;
        let mut provenance_of = |key| select.query_row([row_of(key)], |row| provenance(row, 0)).optional();
        Ok(keys.iter().map(|&key| provenance_of(key)).collect::<rusqlite::Result<_>>()?)
    })
}

pub(crate) fn write(
    database: &Database,
    space: &str,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
) -> Result<Vec<WriteOutcome>> {
    // The properties that vectors are checked against cannot change while the name stays; the transaction
    // looks the name up again.
    let row = database.read(|transaction| spaces::find(transaction, space))?;
    for write in writes {
        check::vector_write(&row.space, epoch, write)?;
    }
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    // The bytes are made before the lock is taken, so that writers hold it only for what needs it.
    let values: Vec<Vec<u8>> = writes.iter().map(|write| as_bytes(&write.vector)).collect();
    database.write_without_triggers(|transaction| {
        let again = spaces::find(transaction, space)?;
        if again.number != row.number {
            return Err(Error::conflict(
                format!("space {space:?}"),
                "it was dropped and made again in the meantime; look at the gallery, then decide again",
            )
            .into());
        }
        if let Some(epoch) = epoch {
            check::epoch(space, epoch, again.epoch)?;
        }
        let mut writer = Writer::prepare(transaction, &row)?;
        let first = spaces::count(transaction, writes.len())? - writes.len() as u64 + 1;
        let numbered = (first..).zip(writes.iter().zip(&values));
        numbered.map(|(change, (write, value))| writer.write(write, value, change)).collect()
    })
}

/// Statements that write vectors of a space, prepared once for many writes.
struct Writer<'c> {
    connection: &'c Connection,
    space: &'c SpaceRow,
    update: CachedStatement<'c>,
    insert: CachedStatement<'c>,
    revisions: CachedStatement<'c>,
    lacking: CachedStatement<'c>,
    forgive: CachedStatement<'c>,
    unclaim: CachedStatement<'c>,
    stays: CachedStatement<'c>,
    /// Whether some item is listed as failed.
    any_failure: bool,
    /// Whether an insert is tried before an update.
    insert_first: bool,
}

impl<'c> Writer<'c> {
    /// Prepares the statements for the tables of a space.
    fn prepare(connection: &'c Connection, space: &'c SpaceRow) -> Step<Self> {
        let n = space.number;
        // A vector that is there has its item's revision: triggers remove every other one. So one statement
        // decides.
        let update = connection.prepare_cached(&format!(
            "UPDATE vector_{n} SET provenance = ?3, sigma2 = ifnull(?4, sigma2), band = ?5, score = ?6,
                 squared_error = ?7, failed = failed AND ?3 = 'adapted', change = ?8, value = ?9
             WHERE item = ?1 AND provenance = 'adapted' AND ?2 = CASE ?3
                 WHEN 'native' THEN (SELECT {SOURCE_REVISION} FROM item WHERE key = ?1) ELSE revision END"
        ))?;
        let of_now = format!("CASE ?3 WHEN 'native' THEN {SOURCE_REVISION} ELSE item.revision END");
        let insert = connection.prepare_cached(&format!(
            "INSERT INTO vector_{n}
                 (item, revision, provenance, sigma2, band, score, squared_error, sourced, failed, change, value)
             SELECT key, revision, ?3, ?4, ?5, ?6, ?7, source IS NOT NULL,
                 ?3 = 'adapted' AND EXISTS (SELECT 1 FROM failure_{n} WHERE item = ?1), ?8, ?9 FROM item
             WHERE key = ?1 AND {of_now} = ?2 AND NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = ?1)"
        ))?;
        let select_revisions = format!("SELECT revision, {SOURCE_REVISION} FROM item WHERE key = ?1");
        let select_staying = format!("SELECT 1 FROM vector_{n} WHERE item = ?1 AND provenance <> 'adapted'");
        Ok(Self {
            connection,
            space,
            update,
            insert,
            revisions: connection.prepare_cached(&select_revisions)?,
            lacking: connection.prepare_cached(&format!("DELETE FROM lacking_{n} WHERE item = ?1"))?,
            forgive: connection.prepare_cached(&format!("DELETE FROM failure_{n} WHERE item = ?1"))?,
            unclaim: connection.prepare_cached(&format!("DELETE FROM claim_{n} WHERE item = ?1"))?,
            stays: connection.prepare_cached(&select_staying)?,
            any_failure: connection.query_row(
                &format!("SELECT EXISTS (SELECT 1 FROM failure_{n})"),
                [],
                |row| row.get(0),
            )?,
            insert_first: true,
        })
    }

    /// Carries out one write, which has a number of its own among all changes of the gallery. `value` is the
    /// vector as bytes.
    fn write(&mut self, write: &VectorWrite, value: &[u8], change: u64) -> Step<WriteOutcome> {
        if !self.put(write, value, change)? {
            return self.refusal(write);
        }
        if write.provenance == Provenance::Native {
            if self.any_failure {
                self.forgive.execute([row_of(write.key)])?;
            }
            self.unclaim.execute([row_of(write.key)])?;
        }
        Ok(WriteOutcome::Written)
    }

    /// Inserts a vector, or replaces an adapted one. Returns whether it did.
    fn put(&mut self, write: &VectorWrite, value: &[u8], change: u64) -> Step<bool> {
        let (band, score) = place(write.priority);
        let values = params![
            row_of(write.key),
            int(write.revision),
            write.provenance.name(),
            write.sigma2,
            band,
            score,
            write.squared_error,
            change,
            value
        ];
        let mut inserted = self.insert_first && self.insert.execute(values)? > 0;
        if !inserted {
            // A batch mostly holds one kind: the statement that helped last is tried first.
            self.insert_first = false;
            if self.update.execute(values)? > 0 {
                return Ok(true);
            }
            inserted = self.insert.execute(values)? > 0;
            self.insert_first = inserted;
        }
        if inserted {
            self.lacking.execute([row_of(write.key)])?;
        }
        Ok(inserted)
    }

    /// Finds why a write was not taken.
    fn refusal(&mut self, write: &VectorWrite) -> Step<WriteOutcome> {
        let of_now = usize::from(write.provenance == Provenance::Native);
        let key = [row_of(write.key)];
        Ok(match self.revisions.query_row(key, |row| row.get::<_, u64>(of_now)).optional()? {
            None => WriteOutcome::Deleted,
            Some(revision) if revision != write.revision => WriteOutcome::Changed,
            Some(_) if self.stays.exists(key)? => WriteOutcome::AlreadyThere,
            Some(_) => return Err(not_taken(self.connection, self.space, "vector", write.key)?.into()),
        })
    }
}

pub(crate) fn set_priorities(
    database: &Database,
    space: &str,
    epoch: Epoch,
    priorities: &[(ItemKey, Revision, Priority)],
) -> Result<usize> {
    for (_, _, priority) in priorities {
        check::priority(Some(*priority))?;
    }
    database.write(|transaction| {
        let row = spaces::find(transaction, space)?;
        check::epoch(space, epoch, row.epoch)?;
        let mut update = transaction.prepare_cached(&format!(
            "UPDATE vector_{} SET band = ?3, score = ?4 WHERE item = ?1 AND revision = ?2 AND provenance = 'adapted'",
            row.number
        ))?;
        let mut changed = 0;
        for &(key, revision, priority) in priorities {
            let (band, score) = place(Some(priority));
            changed += update.execute(params![row_of(key), int(revision), band, score])?;
        }
        Ok(changed)
    })
}

pub(crate) fn counts(database: &Database, space: &str) -> Result<Counts> {
    database.read(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let count = |sql: String| -> Step<u64> {
            Ok(transaction.prepare_cached(&sql)?.query_row([], |row| row.get(0))?)
        };
        // Every count is over an index that holds nothing else.
        let count_by = |provenance: &str| {
            count(format!(
                "SELECT count(*) FROM vector_{n} INDEXED BY vector_{n}_{provenance} WHERE provenance = '{provenance}'"
            ))
        };
        let (old, adapted, native) = (count_by("old")?, count_by("adapted")?, count_by("native")?);
        let (unlisted, unlisted_unsourced) = spaces::count_unlisted(transaction, n)?;
        let lacking = unlisted + count(format!("SELECT count(*) FROM lacking_{n}"))?;
        let unsourced = count(format!(
            "SELECT count(*) FROM vector_{n} INDEXED BY vector_{n}_unsourced
             WHERE provenance = 'adapted' AND sourced = 0"
        ))?;
        let lacking_unsourced = count(format!(
            "SELECT count(*) FROM lacking_{n} WHERE sourced = 0"
        ))?;
        Ok(Counts {
            // An item either has a vector in the space or lacks one.
            items: old + adapted + native + lacking,
            old,
            adapted,
            native,
            lacking,
            failed: count(format!("SELECT count(*) FROM failure_{n}"))?,
            without_source: unsourced + lacking_unsourced + unlisted_unsourced,
        })
    })
}

pub(crate) fn count_lag(database: &Database, space: &str, behind: &str) -> Result<u64> {
    database.read(|transaction| {
        let (n, m) = (spaces::find(transaction, space)?.number, spaces::find(transaction, behind)?.number);
        let mut count = transaction.prepare_cached(&format!(
            "SELECT count(*) FROM lacking_{n} AS lacking
             WHERE EXISTS (SELECT 1 FROM vector_{m} WHERE item = lacking.item)"
        ))?;
        Ok(count.query_row([], |row| row.get(0))?)
    })
}

pub(crate) fn record_failures(
    database: &Database,
    space: &str,
    failures: &[(ItemKey, Revision, String)],
) -> Result<()> {
    database.write(|transaction| {
        let row = spaces::find(transaction, space)?;
        let n = row.number;
        // An item with a vector that the upgrade never replaces was served by another worker meanwhile.
        let wanting = format!(
            "FROM item WHERE key = ?1 AND {SOURCE_REVISION} = ?2
             AND NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = ?1 AND provenance <> 'adapted')"
        );
        let mut delete = transaction.prepare_cached(&format!(
            "DELETE FROM failure_{n} WHERE item = ?1 AND EXISTS (SELECT 1 {wanting})"
        ))?;
        let mut insert = transaction.prepare_cached(&format!(
            "INSERT INTO failure_{n} (item, revision, reason) SELECT key, ?2, ?3 {wanting}"
        ))?;
        let mut wants = transaction.prepare_cached(&format!("SELECT 1 {wanting}"))?;
        for (key, revision, reason) in failures {
            delete.execute(params![row_of(*key), int(*revision)])?;
            let listed = insert.execute(params![row_of(*key), int(*revision), reason])?;
            if listed == 0 && wants.exists(params![row_of(*key), int(*revision)])? {
                return Err(not_taken(transaction, &row, "failure", *key)?.into());
            }
        }
        Ok(())
    })
}

pub(crate) fn failures(
    database: &Database,
    space: &str,
    after: Option<ItemKey>,
    limit: usize,
) -> Result<Vec<Failure>> {
    database.read(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let mut select = transaction.prepare_cached(&format!(
            "SELECT failure.item, item.id, failure.revision, failure.reason
             FROM failure_{n} AS failure JOIN item ON item.key = failure.item
             WHERE failure.item > ?1 ORDER BY failure.item LIMIT ?2"
        ))?;
        let rows = select.query_map(params![after.map_or(-1, row_of), int(limit as u64)], |row| {
            Ok(Failure { key: key(row, 0)?, id: row.get(1)?, revision: row.get(2)?, reason: row.get(3)? })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    })
}

pub(crate) fn forget_natives(database: &Database, space: &str, epoch: Epoch, limit: usize) -> Result<usize> {
    database.write(|transaction| {
        let row = spaces::find(transaction, space)?;
        check::epoch(space, epoch, row.epoch)?;
        let n = row.number;
        let forget = format!(
            "DELETE FROM vector_{n} WHERE item IN (
                 SELECT item FROM vector_{n} INDEXED BY vector_{n}_native WHERE provenance = 'native' AND sourced = 1 LIMIT ?1)"
        );
        let forgotten = transaction.execute(&forget, [int(limit as u64)])?;
        // The vectors that are kept of items that are gone were made by the same model.
        transaction.execute_batch(&paid::forget(n))?;
        let select_left = format!(
            "SELECT item FROM vector_{n} INDEXED BY vector_{n}_native WHERE provenance = 'native' AND sourced = 1 LIMIT 1"
        );
        if forgotten < limit && let Some(key_left) = transaction.query_row(&select_left, [], |row| key(row, 0)).optional()? {
            return Err(not_taken(transaction, &row, "vector", key_left)?.into());
        }
        Ok(forgotten)
    })
}

pub(crate) fn clear_failures(database: &Database, space: &str) -> Result<u64> {
    let (mut cleared, mut after) = (0, 0);
    in_turns(|| {
        database.write(|transaction| {
            let n = spaces::find(transaction, space)?.number;
            let last: Option<i64> = transaction
                .prepare_cached(&format!(
                    "SELECT max(item) FROM (SELECT item FROM failure_{n} WHERE item > ?1 ORDER BY item LIMIT ?2)"
                ))?
                .query_row(params![after, REMOVED_TOGETHER], |row| row.get(0))?;
            let Some(last) = last else { return Ok(true) };
            cleared += transaction
                .prepare_cached(&format!("DELETE FROM failure_{n} WHERE item > ?1 AND item <= ?2"))?
                .execute(params![after, last])? as u64;
            after = last;
            Ok(false)
        })
    })?;
    Ok(cleared)
}

pub(crate) fn errors(database: &Database, space: &str, limit: usize) -> Result<Vec<(f32, f32)>> {
    database.read(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let mut select = transaction.prepare_cached(&format!(
            "SELECT sigma2, squared_error FROM vector_{n} INDEXED BY vector_{n}_error
             WHERE provenance = 'native' AND sigma2 IS NOT NULL AND squared_error IS NOT NULL
             ORDER BY change DESC LIMIT ?1"
        ))?;
        let rows = select.query_map([int(limit as u64)], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    })
}

/// Explains why a table of a space has not taken a write of an item.
fn not_taken(connection: &Connection, space: &SpaceRow, table: &str, key: ItemKey) -> Step<Error> {
    let id: Option<String> = connection
        .query_row("SELECT id FROM item WHERE key = ?1", [row_of(key)], |row| row.get(0))
        .optional()?;
    let doing = format!(
        "a write of item {:?} in space {:?}",
        id.unwrap_or_else(|| key.to_string()),
        space.space.name
    );
    ignored_error(connection, &format!("{table}_{}", space.number), &doing)
}

/// Reads the vectors of some items in a space; with `with_vectors` also their coordinates.
pub(crate) fn states(
    connection: &Connection,
    space: &SpaceRow,
    keys: &[ItemKey],
    with_vectors: bool,
) -> Step<BTreeMap<ItemKey, VectorRecord>> {
    let value = if with_vectors { "value" } else { "NULL" };
    let mut select = connection.prepare_cached(&format!(
        "SELECT provenance, revision, sigma2, band, score, squared_error, {value} FROM vector_{} WHERE item = ?1",
        space.number
    ))?;
    let mut records = BTreeMap::new();
    for &key in keys {
        let mut rows = select.query([row_of(key)])?;
        if let Some(row) = rows.next()? {
            records.insert(key, state(row, space, with_vectors)?);
        }
    }
    Ok(records)
}

/// Reads a vector from a row `provenance, revision, sigma2, band, score, squared_error, value`.
fn state(row: &Row<'_>, space: &SpaceRow, with_vector: bool) -> Step<VectorRecord> {
    let mut vector = Vec::new();
    if with_vector {
        vector.reserve_exact(space.space.dimension);
        read_value(row, 6, space.space.dimension, &mut vector)?;
    }
    Ok(VectorRecord {
        provenance: provenance(row, 0)?,
        revision: row.get(1)?,
        sigma2: row.get(2)?,
        priority: priority(row, 3)?,
        squared_error: row.get(5)?,
        vector,
    })
}
