//! Claims: which worker re-embeds which item of the queue, and until when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use rehang_core::Result;
use rehang_store::{AtWork, Claimed, ItemKey, Queue, Record, lease_end};
use serde_json::{Value, json};

use crate::filters::{all_of, has_id, is};
use crate::handle::Handle;
use crate::ids::id_of;
use crate::indexes;
use crate::items::{Unlisted, tag_all};
use crate::leases::{Lease, end_leases, lease_of, leases};
use crate::meta;
use crate::pages::{in_order, record};
use crate::points::Point;
use crate::queue::{waiting_in_sample, walk_queue};
use crate::scroll::With;
use crate::slot::SpaceSlot;

fn worker_filter(space: &SpaceSlot, worker: &str) -> Vec<Value> {
    vec![is("slot", space.slot), is("worker", worker)]
}

pub(crate) fn claim(
    handle: &Handle,
    space: &str,
    queue: Queue,
    worker: &str,
    limit: usize,
    lease: Duration,
) -> Result<Claimed> {
    let space = &meta::space(handle, space)?;
    indexes::index_once(handle)?;
    let mut unlisted = Unlisted::default();
    loop {
        tag_all(handle)?;
        let now_ms = handle.clock.now_ms();
        let leases = leases(handle, space)?;
        let is_held = |lease: &Lease| lease.until > now_ms;
        let leases_of_others = leases.values().filter(|lease| is_held(lease) && lease.worker != worker);
        let held_by_others = leases_of_others.count() as u64;
        let out = leases.iter().filter(|(_, lease)| !is_held(lease));
        let lost: BTreeMap<ItemKey, u32> = out.map(|(key, lease)| (*key, lease.lost + 1)).collect();
        let held: Vec<ItemKey> =
            leases.iter().filter(|(_, lease)| is_held(lease)).map(|(key, _)| *key).collect();
        let (next, without_tag) = free_records(handle, space, queue, limit, &held)?;
        let mut claimed = Claimed::up_to_first_alone(next, &lost, held_by_others);
        if claimed.records.is_empty() {
            if without_tag.is_empty() {
                return Ok(claimed);
            }
            // Nothing but points without a tag is left in the queue: its filter takes them for items.
            unlisted.mend(handle, &without_tag)?;
            continue;
        }
        let name = handle.tokens.next();
        let until = lease_end(now_ms, lease);
        let points: Vec<Value> = claimed
            .records
            .iter()
            .map(|Record { item, .. }| {
                let lease = Lease {
                    slot: space.slot,
                    item: item.key.to_string(),
                    revision: item.source_revision,
                    worker: worker.to_owned(),
                    until,
                    lost: lost.get(&item.key).copied().unwrap_or(0),
                    name: name.clone(),
                };
                json!({"id": id_of(lease_of(space, item.key)), "vector": {}, "payload": lease})
            })
            .collect();
        // The upsert makes new leases, replaces those that ran out, and leaves those that
        // another worker took meanwhile.
        let ran_out = json!({"key": "until", "range": {"lte": now_ms}});
        let body = json!({"points": points, "update_filter": all_of([ran_out])});
        handle.client.ask("PUT", &format!("/collections/{}/points?wait=true", handle.ours), &body)?;
        let ids = claimed.records.iter().map(|record| lease_of(space, record.item.key));
        let mine = all_of([has_id(ids), is("name", name)]);
        let mine = handle.client.scroll(&handle.ours, &mine, None, usize::MAX, &With::default())?;
        let mine: BTreeSet<ItemKey> = mine.into_iter().map(|point| point.key).collect();
        claimed.records.retain(|record| mine.contains(&lease_of(space, record.item.key)));
        // Since the records were read, another worker may have claimed some, made them
        // native and ended its leases.
        let keys = || claimed.records.iter().map(|record| record.item.key);
        let waits = all_of([has_id(keys()), space.waiting()]);
        let waits = handle.client.scroll(handle.collection(), &waits, None, usize::MAX, &With::default())?;
        let waits: BTreeSet<ItemKey> = waits.into_iter().map(|point| point.key).collect();
        let too_late: Vec<ItemKey> = keys().filter(|key| !waits.contains(key)).collect();
        end_leases(handle, space, &too_late)?;
        claimed.records.retain(|record| waits.contains(&record.item.key));
        // Where other workers took all of them, there may be more.
        if !claimed.records.is_empty() {
            return Ok(claimed);
        }
    }
}

/// Reads the next items of a queue that nobody holds, and the keys of points in it that have no
/// tag and so are no items.
fn free_records(
    handle: &Handle,
    space: &SpaceSlot,
    queue: Queue,
    limit: usize,
    held: &[ItemKey],
) -> Result<(Vec<Record>, Vec<ItemKey>)> {
    let with = handle.with([space]);
    let (mut records, mut without_tag): (Vec<Record>, Vec<ItemKey>) = (Vec::new(), Vec::new());
    let mut take = |points: Vec<Point>| {
        without_tag.extend(points.iter().filter(|point| !point.has_tag()).map(|point| point.key));
        let queued = points.iter().filter_map(|point| record(handle, point, space, Some(space)));
        records.extend(queued.filter(|record| record.item.source.is_some()));
        Ok(records.len() < limit)
    };
    match queue {
        Queue::All => walk_queue(handle, space, &with, limit, held, &mut take)?,
        Queue::Sample { seed, size } => {
            let mut drawn = handle.drawn.lock().unwrap_or_else(PoisonError::into_inner);
            let free: Vec<ItemKey> = waiting_in_sample(handle, space, &mut drawn, seed, size)?
                .into_iter()
                .filter(|key| held.binary_search(key).is_err())
                .take(limit)
                .collect();
            drop(drawn);
            take(in_order(handle, &free, &with)?)?;
        }
    }
    records.truncate(limit);
    Ok((records, without_tag))
}

pub(crate) fn renew(handle: &Handle, space: &str, worker: &str, lease: Duration) -> Result<u64> {
    let space = &meta::space(handle, space)?;
    leases(handle, space)?;
    let until = lease_end(handle.clock.now_ms(), lease);
    let filter = || all_of(worker_filter(space, worker));
    let later = json!({"set_payload": {"payload": {"until": until}, "filter": filter()}});
    handle.client.change(&handle.ours, &[later])?;
    handle.client.count(&handle.ours, &filter())
}

pub(crate) fn release(handle: &Handle, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64> {
    let space = &meta::space(handle, space)?;
    leases(handle, space)?;
    let mut conditions = worker_filter(space, worker);
    if let Some(keys) = keys {
        conditions.push(has_id(keys.iter().map(|key| lease_of(space, *key))));
    }
    let count = handle.client.count(&handle.ours, &all_of(conditions.clone()))?;
    handle.client.change(&handle.ours, &[json!({"delete": {"filter": all_of(conditions)}})])?;
    Ok(count)
}

pub(crate) fn at_work(handle: &Handle, space: &str) -> Result<Vec<AtWork>> {
    let space = &meta::space(handle, space)?;
    let now_ms = handle.clock.now_ms();
    let mut workers: BTreeMap<String, AtWork> = BTreeMap::new();
    for lease in leases(handle, space)?.into_values().filter(|lease| lease.until > now_ms) {
        let left_ms = lease.until - now_ms;
        let new = AtWork { worker: lease.worker.clone(), items: 0, left_ms };
        let at_work = workers.entry(lease.worker).or_insert(new);
        at_work.items += 1;
        at_work.left_ms = at_work.left_ms.max(left_ms);
    }
    Ok(workers.into_values().collect())
}
