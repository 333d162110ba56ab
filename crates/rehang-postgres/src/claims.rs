//! Claims: which worker re-embeds which item of the queue, and until when.
//!
//! Leases are written without waiting for the disk, since a lost lease costs at most an item
//! that is embedded twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rehang_core::Result;
use rehang_store::{Among, AtWork, Claimed, ItemKey, Queue};

use crate::adoption;
use crate::connection::{Connection, Mode, Step};
use crate::handle::Handle;
use crate::pages;
use crate::queue::{self, first_of_shuffle, keys};
use crate::schema;
use crate::spaces::find;
use crate::values::{key, row_limit, rows_of};

/// Takes the turn of a claim, until the transaction ends. The row is locked and never changed, so that an old
/// snapshot makes the server keep no versions of it.
fn take_turn(connection: &mut Connection, (g, n): (i32, i32)) -> Step<()> {
    let name = schema::claim_turns_document(n);
    let lock = "SELECT 1 FROM rehang.document WHERE gallery = $1 AND name = $2 FOR NO KEY UPDATE";
    if connection.query_opt(lock, &[&g, &name])?.is_none() {
        let make = "INSERT INTO rehang.document (gallery, name, version, text) VALUES ($1, $2, 1, '') ON CONFLICT DO NOTHING";
        connection.execute(make, &[&g, &name])?;
        connection.query(lock, &[&g, &name])?;
    }
    Ok(())
}

pub(crate) fn claim(
    handle: &Handle,
    space: &str,
    what: Queue,
    worker: &str,
    limit: usize,
    lease: Duration,
) -> Result<Claimed> {
    let once = || claim_once(handle, space, what, worker, limit, lease);
    let (claimed, rowless) = once()?;
    if !rowless || !claimed.records.is_empty() {
        return Ok(claimed);
    }
    // All that were next have been deleted since the queue was read, and the queue begins behind them by now.
    // Those whose rows went with a partition stay before items that wait.
    if handle.table.is_partitioned {
        adoption::take_out_rowless(handle)?;
    }
    once().map(|(claimed, _)| claimed)
}

/// Claims items once. Also says whether items that were next in the queue have no row.
fn claim_once(
    handle: &Handle,
    space: &str,
    what: Queue,
    worker: &str,
    limit: usize,
    lease: Duration,
) -> Result<(Claimed, bool)> {
    handle.database.run(Mode::WriteLightly, |connection| {
        let space = find(connection, handle, space)?;
        let n = space.number;
        let is_free = format!(
            "NOT EXISTS (SELECT 1 FROM rehang.claim_{n} AS c WHERE c.item = s.item AND c.until > clock_timestamp())"
        );
        if what == Queue::All {
            queue::look_for_front(connection, handle, n, &is_free)?;
        }
        // Claims of a space come one after the other, each in a few milliseconds. So a claim sees what the
        // one before it has taken.
        take_turn(connection, (handle.number, n))?;
        let held_by_others = connection.count(
            &format!("SELECT count(*) FROM rehang.claim_{n} WHERE until > statement_timestamp() AND worker <> $1"),
            &[&worker],
        )?;
        let mut next = match what {
            Queue::All => queue::next(connection, handle, n, &is_free, limit)?,
            Queue::Sample { seed, size } => {
                let drawn = first_of_shuffle(connection, (handle.number, n), Among::Embeddable, seed, size)?;
                let sql = format!(
                    "SELECT s.item FROM unnest($1::bigint[]) WITH ORDINALITY AS k(item, at) JOIN rehang.state_{n} AS s ON s.item = k.item
                     WHERE s.provenance <> 'native' AND {is_free} ORDER BY k.at LIMIT $2"
                );
                keys(connection, &sql, &[&rows_of(&drawn), &row_limit(limit)])?
            }
        };
        let mut lost = BTreeMap::new();
        let out = format!("SELECT item, lost FROM rehang.claim_{n} WHERE item = ANY($1) ORDER BY item");
        for row in connection.query(&format!("{out} FOR UPDATE SKIP LOCKED"), &[&rows_of(&next)])? {
            lost.insert(key(&row, 0)?, row.try_get::<_, i32>(1)?.max(0) as u32 + 1);
        }
        // A lease that another open transaction is about to end is left to that transaction, so that the
        // claim does not wait. The lease counts as held, since its item may be free a moment later.
        let mut busy = BTreeSet::new();
        for row in connection.query(&out, &[&rows_of(&next)])? {
            busy.insert(key(&row, 0)?);
        }
        let next_count = next.len();
        next.retain(|key| lost.contains_key(key) || !busy.contains(key));
        let passed_over = (next_count - next.len()) as u64;
        let records = pages::records(connection, handle, &next, &space, Some(&space), true)?;
        let rowless = records.len() < next.len();
        let claimed = Claimed::up_to_first_alone(records, &lost, held_by_others + passed_over);
        let claimed_keys: Vec<ItemKey> = claimed.records.iter().map(|record| record.item.key).collect();
        let losses: Vec<i32> = claimed_keys.iter().map(|key| lost.get(key).map_or(0, |lost| *lost as i32)).collect();
        if !claimed_keys.is_empty() {
            let sql = format!(
                "INSERT INTO rehang.claim_{n} (item, worker, until, lost)
                 SELECT w.item, $2, clock_timestamp() + make_interval(secs => $3), w.lost FROM unnest($1::bigint[], $4::int[]) AS w(item, lost)
                 ON CONFLICT (item) DO UPDATE SET worker = EXCLUDED.worker, until = EXCLUDED.until, lost = EXCLUDED.lost"
            );
            connection.execute(&sql, &[&rows_of(&claimed_keys), &worker, &lease.as_secs_f64(), &losses])?;
        }
        Ok((claimed, rowless))
    })
}

pub(crate) fn renew(handle: &Handle, space: &str, worker: &str, lease: Duration) -> Result<u64> {
    handle.database.run(Mode::WriteLightly, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "UPDATE rehang.claim_{n} SET until = clock_timestamp() + make_interval(secs => $2)
             WHERE item IN (SELECT item FROM rehang.claim_{n} WHERE worker = $1 ORDER BY item FOR UPDATE SKIP LOCKED)"
        );
        connection.execute(&sql, &[&worker, &lease.as_secs_f64()])
    })
}

pub(crate) fn release(handle: &Handle, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64> {
    let keys = keys.map(rows_of);
    handle.database.run(Mode::WriteLightly, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "DELETE FROM rehang.claim_{n} WHERE item IN (SELECT item FROM rehang.claim_{n}
                 WHERE worker = $1 AND ($2::bigint[] IS NULL OR item = ANY($2)) ORDER BY item FOR UPDATE SKIP LOCKED)"
        );
        connection.execute(&sql, &[&worker, &keys])
    })
}

pub(crate) fn at_work(handle: &Handle, space: &str) -> Result<Vec<AtWork>> {
    handle.database.run(Mode::Read, |connection| {
        let n = find(connection, handle, space)?.number;
        let sql = format!(
            "SELECT worker, count(*), (extract(epoch FROM max(until) - clock_timestamp()) * 1000)::bigint FROM rehang.claim_{n}
             WHERE until > statement_timestamp() GROUP BY worker ORDER BY worker COLLATE \"C\""
        );
        connection
            .query(&sql, &[])?
            .iter()
            .map(|row| {
                Ok(AtWork {
                    worker: row.try_get(0)?,
                    items: row.try_get::<_, i64>(1)?.max(0) as u64,
                    left_ms: row.try_get::<_, i64>(2)?.max(0) as u64,
                })
            })
            .collect()
    })
}
