//! Pages of items, random samples, the queue of the backfill and who works on what of it.
//!
//! Leases are points of the collection of ours, one an item and space. A lease belongs to one revision of its item: what the application
//! changes or deletes is not held any more, also where it wrote past us.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rehang::{Error, Provenance, Result};
use rehang_store::{
    Among, AtWork, Claimed, Drawn, FirstKeys, ItemKey, Queue, QueueBand, Record, Revision, Sample, Scan,
    Select, lease_end,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::With;
use crate::items::{has_source, list};
use crate::meta::{self, SpaceSlot};
use crate::points::{Point, REVISION, all_of, has_id, hashed, id_of, is, is_empty, none_of};
use crate::store::Inner;

/// A filter for items that the backfill can take: with a source and without a failure.
fn queueable(space: &SpaceSlot) -> [Value; 2] {
    [has_source(true), is_empty(&space.path("f"))]
}

fn record(inner: &Inner, point: &Point, space: &SpaceSlot, vectors_of: Option<&SpaceSlot>) -> Option<Record> {
    let has_own = space.is_applications || vectors_of.is_some_and(|other| other.slot == space.slot);
    Some(Record {
        item: point.item(&inner.options)?,
        state: point.record(space, has_own, false),
        vector: vectors_of.and_then(|other| point.record(other, true, true)),
    })
}

/// What comes along for a record.
fn with_of(inner: &Inner, space: &SpaceSlot, vectors_of: Option<&SpaceSlot>) -> With {
    let own = Some(space)
        .filter(|space| space.is_applications && vectors_of.is_none_or(|other| other.slot != space.slot));
    inner.with(own.into_iter().chain(vectors_of))
}

pub(crate) fn scan(inner: &Inner, scan: &Scan) -> Result<Vec<Record>> {
    let (meta, name) = (meta::read(inner)?, inner.name());
    let space = meta.find(&scan.space, &name)?;
    let vectors_of = scan.vectors_of.as_deref().map(|other| meta.find(other, &name)).transpose()?;
    list(inner)?;
    let with = with_of(inner, space, vectors_of);
    let filter = match scan.select {
        Select::All => all_of([none_of([is_empty(REVISION)])]),
        Select::Provenance(provenance) => space.made_by(&[provenance]),
        Select::Lacking => json!({"must_not": [is_empty(REVISION), space.present()]}),
        Select::WithoutSource => all_of([has_source(false), space.waiting()]),
        Select::WorstFirst => {
            let mut records = Vec::new();
            walk_queue(inner, space, &with, scan.limit, &[], &mut |points| {
                let queued = points.iter().filter_map(|point| record(inner, point, space, vectors_of));
                records.extend(queued.filter(|record| record.item.source.is_some()));
                Ok(records.len() < scan.limit)
            })?;
            records.truncate(scan.limit);
            return Ok(records);
        }
    };
    let points = inner.client.scroll(inner.collection(), &filter, scan.after, scan.limit, &with)?;
    Ok(points.iter().filter_map(|point| record(inner, point, space, vectors_of)).collect())
}

/// Gives the queue of the backfill, part by part, until `each` has enough: items that lack a vector by key; those with a place by band
/// and score; those without one by key. A part is about as long as `wanted`, then longer and longer. Items of `held` are left out.
fn walk_queue(
    inner: &Inner,
    space: &SpaceSlot,
    with: &With,
    wanted: usize,
    held: &[ItemKey],
    each: &mut dyn FnMut(Vec<Point>) -> Result<bool>,
) -> Result<()> {
    let collection = inner.collection();
    let queueable = |space: &SpaceSlot| {
        let mut conditions = queueable(space).to_vec();
        if !held.is_empty() {
            conditions.push(none_of([has_id(held.iter().copied())]));
        }
        conditions
    };
    let adapted = || space.made_by(&[Provenance::Adapted]);
    let mut goes_on = wanted > 0;
    let lacking = [queueable(space), vec![space.lacking()]].concat();
    if goes_on {
        inner.client.each_page(collection, &all_of(lacking), None, usize::MAX, with, &mut |points| {
            goes_on = each(points)?;
            Ok(goes_on)
        })?;
    }
    for band in (0..QueueBand::ALL.len()).rev() {
        let filter = [queueable(space), vec![adapted(), is(&space.path("b"), band)]].concat();
        let (mut limit, mut seen) = (wanted, 0);
        while goes_on {
            let points = inner.client.scroll_down(
                collection,
                &all_of(filter.clone()),
                &space.path("q"),
                limit,
                with,
            )?;
            let is_last = points.len() < limit;
            let given = points.len();
            goes_on = each(points.into_iter().skip(seen).collect())?;
            if is_last {
                break;
            }
            (seen, limit) = (given, limit.saturating_mul(4));
        }
    }
    let unranked = [queueable(space), vec![adapted(), is_empty(&space.path("b"))]].concat();
    if goes_on {
        inner.client.each_page(collection, &all_of(unranked), None, usize::MAX, with, each)?;
    }
    Ok(())
}

/// The keys that a sample is drawn from.
fn among(space: &SpaceSlot, among: Among) -> Value {
    match among {
        Among::All => none_of([is_empty(REVISION)]),
        Among::Adapted => space.made_by(&[Provenance::Adapted]),
        Among::Embeddable => {
            let [sourced, not_failed] = queueable(space);
            let waits = all_of([sourced, not_failed, space.waiting()]);
            json!({"should": [waits, space.made_by(&[Provenance::Native])]})
        }
    }
}

/// The first keys of a shuffle, and how many are in it: a pass over all ids, since the server cannot order by a hash of them.
fn first(inner: &Inner, space: &SpaceSlot, of: Among, seed: u64, size: usize) -> Result<(Vec<ItemKey>, u64)> {
    let mut first = FirstKeys::new(seed, size);
    let filter = among(space, of);
    inner.client.each_page(
        inner.collection(),
        &filter,
        None,
        usize::MAX,
        &With::default(),
        &mut |points| {
            for point in points {
                first.take(point.key);
            }
            Ok(true)
        },
    )?;
    Ok(first.keys())
}

pub(crate) fn sample(inner: &Inner, sample: &Sample) -> Result<Drawn> {
    let (meta, name) = (meta::read(inner)?, inner.name());
    let space = meta.find(&sample.space, &name)?;
    let vectors_of = sample.vectors_of.as_deref().map(|other| meta.find(other, &name)).transpose()?;
    list(inner)?;
    let (keys, of) = first(inner, space, sample.among, sample.seed, sample.size)?;
    let points = in_order(inner, &keys, &with_of(inner, space, vectors_of))?;
    Ok(Drawn {
        records: points.iter().filter_map(|point| record(inner, point, space, vectors_of)).collect(),
        of,
    })
}

/// Points by key, in the order of the keys.
fn in_order(inner: &Inner, keys: &[ItemKey], with: &With) -> Result<Vec<Point>> {
    let found = inner.client.retrieve(inner.collection(), keys.iter().copied(), with)?;
    let mut found: BTreeMap<ItemKey, Point> = found.into_iter().map(|point| (point.key, point)).collect();
    Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
}

/// Who holds an item, and until when.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Lease {
    slot: u32,
    /// The item's key, as text: it may have 128 bits.
    item: String,
    revision: Revision,
    worker: String,
    until: u64,
    /// Leases of the item in a row, before this one, that ran out.
    lost: u32,
    /// Of the claim that took it.
    name: String,
}

/// The point of a lease.
fn lease_of(space: &SpaceSlot, key: ItemKey) -> ItemKey {
    hashed(format!("{} {key}", space.slot).as_bytes())
}

fn worker_filter(space: &SpaceSlot, worker: &str) -> Vec<Value> {
    vec![is("slot", space.slot), is("worker", worker)]
}

/// Leases of a space that are of an item as it is now; the others are removed.
fn leases(inner: &Inner, space: &SpaceSlot) -> Result<BTreeMap<ItemKey, Lease>> {
    let with = With { payload: Value::Bool(true), vectors: Vec::new() };
    let found =
        inner.client.scroll(&inner.ours, &all_of([is("slot", space.slot)]), None, usize::MAX, &with)?;
    let mut leases = BTreeMap::new();
    for point in found {
        let lease: Lease = serde_json::from_value(Value::Object(point.payload))
            .map_err(|error| Error::corrupt(format!("a lease of {}", inner.name()), error))?;
        let key = lease.item.parse().map(ItemKey::new);
        leases.insert(key.map_err(|error| Error::corrupt("a lease's item", error))?, lease);
    }
    let waiting = all_of([has_id(leases.keys().copied()), is_empty(&space.path("f")), space.waiting()]);
    let items = inner.client.scroll(inner.collection(), &waiting, None, usize::MAX, &inner.tag([]))?;
    let items: BTreeMap<ItemKey, Option<Revision>> =
        items.into_iter().map(|point| (point.key, point.revision())).collect();
    let is_of_now = |key: &ItemKey, lease: &Lease| items.get(key) == Some(&Some(lease.revision));
    let ended: Vec<Value> = leases
        .iter()
        .filter(|(key, lease)| !is_of_now(key, lease))
        .map(|(key, lease)| {
            let this = [has_id([lease_of(space, *key)].into_iter()), is("name", lease.name.as_str())];
            json!({"delete": {"filter": all_of(this)}})
        })
        .collect();
    inner.client.change(&inner.ours, &ended)?;
    leases.retain(|key, lease| is_of_now(key, lease));
    Ok(leases)
}

/// Ends the leases of items.
pub(crate) fn end_leases(inner: &Inner, space: &SpaceSlot, keys: &[ItemKey]) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let ids: Vec<Value> = keys.iter().map(|key| id_of(lease_of(space, *key))).collect();
    inner.client.change(&inner.ours, &[json!({"delete": {"points": ids}})])
}

/// Removes every lease of a space that is dropped.
pub(crate) fn forget_space(inner: &Inner, space: &SpaceSlot) -> Result<()> {
    inner.client.change(&inner.ours, &[json!({"delete": {"filter": all_of([is("slot", space.slot)])}})])
}

pub(crate) fn claim(
    inner: &Inner,
    space: &str,
    queue: Queue,
    worker: &str,
    limit: usize,
    lease: Duration,
) -> Result<Claimed> {
    let space = &meta::space(inner, space)?;
    list(inner)?;
    loop {
        let now_ms = inner.clock.now_ms();
        let leases = leases(inner, space)?;
        let is_held = |lease: &Lease| lease.until > now_ms;
        let others = leases.values().filter(|lease| is_held(lease) && lease.worker != worker);
        let held_by_others = others.count() as u64;
        let out = leases.iter().filter(|(_, lease)| !is_held(lease));
        let lost: BTreeMap<ItemKey, u32> = out.map(|(key, lease)| (*key, lease.lost + 1)).collect();
        let held: Vec<ItemKey> =
            leases.iter().filter(|(_, lease)| is_held(lease)).map(|(key, _)| *key).collect();
        let next = free_records(inner, space, queue, limit, &held)?;
        let mut claimed = Claimed::of(next, &lost, held_by_others);
        if claimed.records.is_empty() {
            return Ok(claimed);
        }
        let name = inner.tokens.next();
        let until = lease_end(now_ms, lease);
        let points: Vec<Value> = claimed
            .records
            .iter()
            .map(|Record { item, .. }| {
                let lease = Lease {
                    slot: space.slot,
                    item: item.key.to_string(),
                    revision: item.revision,
                    worker: worker.to_owned(),
                    until,
                    lost: lost.get(&item.key).copied().unwrap_or(0),
                    name: name.clone(),
                };
                json!({"id": id_of(lease_of(space, item.key)), "vector": {}, "payload": lease})
            })
            .collect();
        // New ones are made, those that ran out are replaced, and those that another one took meanwhile stay.
        let ran_out = json!({"key": "until", "range": {"lte": now_ms}});
        let body = json!({"points": points, "update_filter": all_of([ran_out])});
        inner.client.ask("PUT", &format!("/collections/{}/points?wait=true", inner.ours), &body)?;
        let ids = claimed.records.iter().map(|record| lease_of(space, record.item.key));
        let mine = all_of([has_id(ids), is("name", name)]);
        let mine = inner.client.scroll(&inner.ours, &mine, None, usize::MAX, &With::default())?;
        let mine: BTreeSet<ItemKey> = mine.into_iter().map(|point| point.key).collect();
        claimed.records.retain(|record| mine.contains(&lease_of(space, record.item.key)));
        // Since these were read, another worker may have claimed some, made them native and ended its leases.
        let keys = || claimed.records.iter().map(|record| record.item.key);
        let waits = all_of([has_id(keys()), space.waiting()]);
        let waits = inner.client.scroll(inner.collection(), &waits, None, usize::MAX, &With::default())?;
        let waits: BTreeSet<ItemKey> = waits.into_iter().map(|point| point.key).collect();
        let too_late: Vec<ItemKey> = keys().filter(|key| !waits.contains(key)).collect();
        end_leases(inner, space, &too_late)?;
        claimed.records.retain(|record| waits.contains(&record.item.key));
        // Where others took all of them, there may be more.
        if !claimed.records.is_empty() {
            return Ok(claimed);
        }
    }
}

/// The next items of a queue that are not held.
fn free_records(
    inner: &Inner,
    space: &SpaceSlot,
    queue: Queue,
    limit: usize,
    held: &[ItemKey],
) -> Result<Vec<Record>> {
    let with = inner.with([space]);
    let mut records: Vec<Record> = Vec::new();
    let mut take = |points: Vec<Point>| {
        let queued = points.iter().filter_map(|point| record(inner, point, space, Some(space)));
        records.extend(queued.filter(|record| record.item.source.is_some()));
        Ok(records.len() < limit)
    };
    match queue {
        Queue::All => walk_queue(inner, space, &with, limit, held, &mut take)?,
        Queue::Sample { seed, size } => {
            let (keys, _) = first(inner, space, Among::Embeddable, seed, size)?;
            let mut waiting: Vec<Value> = queueable(space).to_vec();
            waiting.extend([space.waiting(), has_id(keys.iter().copied())]);
            let waits = inner.client.scroll(
                inner.collection(),
                &all_of(waiting),
                None,
                usize::MAX,
                &With::default(),
            )?;
            let waits: BTreeSet<ItemKey> = waits.into_iter().map(|point| point.key).collect();
            let free: Vec<ItemKey> = keys
                .into_iter()
                .filter(|key| waits.contains(key) && held.binary_search(key).is_err())
                .take(limit)
                .collect();
            take(in_order(inner, &free, &with)?)?;
        }
    }
    records.truncate(limit);
    Ok(records)
}

pub(crate) fn renew(inner: &Inner, space: &str, worker: &str, lease: Duration) -> Result<u64> {
    let space = &meta::space(inner, space)?;
    leases(inner, space)?;
    let until = lease_end(inner.clock.now_ms(), lease);
    let filter = || all_of(worker_filter(space, worker));
    let later = json!({"set_payload": {"payload": {"until": until}, "filter": filter()}});
    inner.client.change(&inner.ours, &[later])?;
    inner.client.count(&inner.ours, &filter())
}

pub(crate) fn release(inner: &Inner, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64> {
    let space = &meta::space(inner, space)?;
    leases(inner, space)?;
    let mut conditions = worker_filter(space, worker);
    if let Some(keys) = keys {
        conditions.push(has_id(keys.iter().map(|key| lease_of(space, *key))));
    }
    let count = inner.client.count(&inner.ours, &all_of(conditions.clone()))?;
    inner.client.change(&inner.ours, &[json!({"delete": {"filter": all_of(conditions)}})])?;
    Ok(count)
}

pub(crate) fn at_work(inner: &Inner, space: &str) -> Result<Vec<AtWork>> {
    let space = &meta::space(inner, space)?;
    let now_ms = inner.clock.now_ms();
    let mut workers: BTreeMap<String, AtWork> = BTreeMap::new();
    for lease in leases(inner, space)?.into_values().filter(|lease| lease.until > now_ms) {
        let left_ms = lease.until - now_ms;
        let new = AtWork { worker: lease.worker.clone(), items: 0, left_ms };
        let at_work = workers.entry(lease.worker).or_insert(new);
        at_work.items += 1;
        at_work.left_ms = at_work.left_ms.max(left_ms);
    }
    Ok(workers.into_values().collect())
}
