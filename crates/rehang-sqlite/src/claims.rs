//! Claims: leases of workers on items of the queue.
//!
//! Leases are written without waiting for the disk, since a lost lease costs an item embedded twice at most.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rehang_core::Result;
use rehang_store::{Among, AtWork, Claimed, ItemKey, Queue, lease_end};
use rusqlite::params;

use crate::connection::Database;
use crate::ignored::expect_changed;
use crate::pages::Page;
use crate::queue::draw_first;
use crate::spaces;
use crate::values::{int, key, row_of};

pub(crate) fn claim(
    database: &Database,
    now_ms: u64,
    space: &str,
    queue: Queue,
    worker: &str,
    limit: usize,
    lease: Duration,
) -> Result<Claimed> {
    database.write_lightly(|transaction| {
        let space = spaces::find(transaction, space)?;
        let n = space.number;
        let (mut held_items, mut lost) = (BTreeSet::new(), BTreeMap::new());
        let mut held_by_others = 0;
        let mut select =
            transaction.prepare_cached(&format!("SELECT item, worker, until, lost FROM claim_{n}"))?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let item = key(row, 0)?;
            if row.get::<_, i64>(2)? <= int(now_ms) {
                lost.insert(item, row.get::<_, u32>(3)?.saturating_add(1));
            } else {
                held_items.insert(item);
                held_by_others +=
                    u64::from(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)? != worker);
            }
        }
        let mut page = Page::new(transaction, &space, Some(space.clone()), limit);
        match queue {
            Queue::All => page.queue(&held_items)?,
            Queue::Sample { seed, size } => {
                let (keys, _) = draw_first(transaction, &space, Among::Embeddable, seed, size)?;
                page.waiting(&keys, &held_items)?;
            }
        }
        let claimed = Claimed::up_to_first_alone(page.finish()?, &lost, held_by_others);
        let mut insert = transaction.prepare_cached(&format!(
            "INSERT OR REPLACE INTO claim_{n} (item, worker, until, lost) VALUES (?1, ?2, ?3, ?4)"
        ))?;
        for record in &claimed.records {
            let key = record.item.key;
            let lost = lost.get(&key).copied().unwrap_or(0);
            let claimed =
                insert.execute(params![row_of(key), worker, int(lease_end(now_ms, lease)), lost])?;
            // Without its lease, two workers would pay for one item.
            expect_changed(transaction, claimed, &format!("claim_{n}"), || {
                format!("the lease of item {:?}", record.item.id)
            })?;
        }
        Ok(claimed)
    })
}

pub(crate) fn renew(
    database: &Database,
    now_ms: u64,
    space: &str,
    worker: &str,
    lease: Duration,
) -> Result<u64> {
    database.write_lightly(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let mut update =
            transaction.prepare_cached(&format!("UPDATE claim_{n} SET until = ?2 WHERE worker = ?1"))?;
        Ok(update.execute(params![worker, int(lease_end(now_ms, lease))])? as u64)
    })
}

pub(crate) fn release(
    database: &Database,
    space: &str,
    worker: &str,
    keys: Option<&[ItemKey]>,
) -> Result<u64> {
    database.write_lightly(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let Some(keys) = keys else {
            let mut delete =
                transaction.prepare_cached(&format!("DELETE FROM claim_{n} WHERE worker = ?1"))?;
            return Ok(delete.execute([worker])? as u64);
        };
        let mut delete =
            transaction.prepare_cached(&format!("DELETE FROM claim_{n} WHERE item = ?1 AND worker = ?2"))?;
        let mut released = 0;
        for &key in keys {
            released += delete.execute(params![row_of(key), worker])? as u64;
        }
        Ok(released)
    })
}

pub(crate) fn at_work(database: &Database, now_ms: u64, space: &str) -> Result<Vec<AtWork>> {
    database.read(|transaction| {
        let n = spaces::find(transaction, space)?.number;
        let mut select = transaction.prepare_cached(&format!(
            "SELECT worker, count(*), max(until) - ?1 FROM claim_{n} WHERE until > ?1 GROUP BY worker ORDER BY worker"
        ))?;
        let rows = select.query_map([int(now_ms)], |row| {
            Ok(AtWork { worker: row.get(0)?, items: row.get(1)?, left_ms: row.get(2)? })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    })
}
