//! Vectors of spaces: conditional writes of an upgrade, and what is counted of them.
//!
//! The server has no statement that writes a vector and a payload on a condition and leaves the rest of the point alone: an upsert
//! would take back what the application changes in other fields meanwhile. So a write takes three conditional steps, each decided
//! when the server applies it, each atomic for a point:
//!
//! 1. *Take the place*: where the item has the revision that was read, no native vector, and no other write in its place, the tag gets
//!    this write's name, and `pending`: for readers the item lacks a vector.
//! 2. *Write the vector* where the tag still has that name.
//! 3. *Say who made it* where the tag still has that name, and free the place.
//!
//! An application's upsert or deletion in between takes the tag with it, so that the later steps do nothing. A writer that dies in
//! between leaves `pending`, which counts as lacking; after [`HOLD_MS`] another one takes the place over, and the name keeps the first
//! one out for good. The server does not say which conditions held, so the writer reads back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rehang::{ErrorKind, Provenance, Result};
use rehang_store::{
    Counts, Epoch, Failure, ItemKey, Priority, Revision, VectorRecord, VectorWrite, WriteOutcome, check,
    clock,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::With;
use crate::items::{has_source, list, tagged};
use crate::meta::{self, SpaceSlot};
use crate::points::{Point, REVISION, TAG, all_of, any_of, has_id, id_of, is, is_empty, none_of, place_of};
use crate::queue;
use crate::store::Inner;

/// Writes whose steps are taken together.
const TOGETHER: usize = 256;
/// How long a write may hold the places of its vectors before another one may take them, in milliseconds: some ten times what it takes. A
/// worker that waits for the places of a dead one does not renew its leases meanwhile, so this is to be shorter than a lease.
const HOLD_MS: u64 = 5_000;
/// How long a write waits for others that hold its places.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest reason of a failure that is kept, in characters: it is indexed.
const REASON_MAX: usize = 500;

pub(crate) fn get(inner: &Inner, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>> {
    let space = &meta::space(inner, space)?;
    let found = tagged(inner, keys, &inner.tag([space]))?;
    Ok(keys.iter().map(|key| found.get(key)?.record(space, true, true)).collect())
}

pub(crate) fn provenances(inner: &Inner, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>> {
    let space = &meta::space(inner, space)?;
    let found = tagged(inner, keys, &inner.tag([]))?;
    // Vectors need not be read to know which points have them.
    let present = all_of([has_id(keys.iter().copied()), space.has_vector()]);
    let with_vector =
        inner.client.scroll(inner.collection(), &present, None, usize::MAX, &With::default())?;
    let with_vector: Vec<ItemKey> = with_vector.into_iter().map(|point| point.key).collect();
    let made_by = |key: &ItemKey| {
        let point = found.get(key).filter(|point| point.revision().is_some())?;
        point.mark(space).made_by(space, Some(with_vector.binary_search(key).is_ok()))
    };
    Ok(keys.iter().map(made_by).collect())
}

pub(crate) fn write(
    inner: &Inner,
    space: &str,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
) -> Result<Vec<WriteOutcome>> {
    let there = &meta::space(inner, space)?;
    for write in writes {
        check::vector_write(&there.record.space, epoch, write)?;
    }
    if let Some(epoch) = epoch {
        check::epoch(space, epoch, there.record.epoch)?;
    }
    let mut outcomes = Vec::with_capacity(writes.len());
    let mut rest = writes;
    while !rest.is_empty() {
        // An item that is there twice is written twice, one after the other.
        let mut keys = BTreeSet::new();
        let is_again = |(at, write): (usize, &VectorWrite)| at >= TOGETHER || !keys.insert(write.key);
        let (now, later) = rest.split_at(rest.iter().enumerate().position(is_again).unwrap_or(rest.len()));
        outcomes.extend(write_together(inner, there, epoch, now)?);
        rest = later;
    }
    let natives = writes.iter().zip(&outcomes).filter(|(write, outcome)| {
        write.provenance == Provenance::Native && **outcome == WriteOutcome::Written
    });
    let natives: Vec<ItemKey> = natives.map(|(write, _)| write.key).collect();
    queue::end_leases(inner, there, &natives)?;
    if let Some(epoch) = epoch.filter(|_| natives.len() < writes.len()) {
        // What came too late is what no write of the next plan has met; it takes the places of these.
        let now = meta::space(inner, space)?.record.epoch;
        check::epoch(space, epoch, now)?;
    }
    Ok(outcomes)
}

/// Writes of different items.
fn write_together(
    inner: &Inner,
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
) -> Result<Vec<WriteOutcome>> {
    let begun = clock::now();
    let mut pause = Duration::from_millis(2);
    let mut outcomes: BTreeMap<ItemKey, WriteOutcome> = BTreeMap::new();
    loop {
        let open: Vec<&VectorWrite> =
            writes.iter().filter(|write| !outcomes.contains_key(&write.key)).collect();
        if open.is_empty() {
            let outcome = |write: &VectorWrite| outcomes.get(&write.key).copied();
            return Ok(writes.iter().filter_map(outcome).collect());
        }
        let name = inner.tokens.next();
        take_places(inner, space, epoch, &open, &name)?;
        let points = read_marks(inner, space, open.iter().map(|write| write.key))?;
        let mut mine = Vec::new();
        for write in open {
            let point = points.get(&write.key);
            match refused(space, write, point) {
                Some(outcome) => drop(outcomes.insert(write.key, outcome)),
                None if point.is_some_and(|point| is_held_by(point, space, &name)) => mine.push(write),
                None => check_not_overtaken(space, epoch, write, point)?,
            }
        }
        if !mine.is_empty() {
            put_vectors(inner, space, &mine, &name)?;
            say_who(inner, space, epoch, &mine, &name)?;
            let points = read_marks(inner, space, mine.iter().map(|write| write.key))?;
            for write in mine {
                let point = points.get(&write.key);
                let is_mine = point.is_some_and(|point| {
                    point.revision() == Some(write.revision)
                        && point.mark(space).written_by.as_ref() == Some(&name)
                });
                // Where neither holds, another write has taken over, and this one waits for it.
                let outcome =
                    if is_mine { Some(WriteOutcome::Written) } else { refused(space, write, point) };
                outcomes.extend(outcome.map(|outcome| (write.key, outcome)));
            }
        } else if outcomes.len() < writes.len() {
            if begun.elapsed() > PATIENCE {
                let detail = "other writes hold the places of these vectors".to_owned();
                return Err(ErrorKind::Unavailable { service: inner.name(), detail }.into());
            }
            clock::wait(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }
}

/// Step 1: the places of vectors, where they are to be had.
fn take_places(
    inner: &Inner,
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    writes: &[&VectorWrite],
    name: &str,
) -> Result<()> {
    let now_ms = inner.clock.now_ms();
    let mut operations = Vec::new();
    for provenance in [Provenance::Adapted, Provenance::Native] {
        let mut of: BTreeMap<Revision, Vec<ItemKey>> = BTreeMap::new();
        for write in writes.iter().filter(|write| write.provenance == provenance) {
            of.entry(write.revision).or_default().push(write.key);
        }
        if of.is_empty() {
            continue;
        }
        // The epoch in which the place is taken; a native vector has none.
        let epoch = epoch.filter(|_| provenance == Provenance::Adapted).map(Epoch::number);
        let read: Vec<Value> = of
            .iter()
            .map(|(revision, keys)| all_of([has_id(keys.iter().copied()), is(REVISION, *revision)]))
            .collect();
        let mut free = vec![
            is_empty(&space.path("k")),
            json!({"key": space.path("u"), "range": {"lte": now_ms}}),
            // Time that went back, or a machine whose clock is far ahead.
            json!({"key": space.path("u"), "range": {"gt": now_ms.saturating_add(2 * HOLD_MS)}}),
        ];
        let mut not = vec![space.made_by(&[Provenance::Old, Provenance::Native])];
        if let Some(epoch) = epoch {
            // A plan's writes go over those of plans before, never the other way round.
            free.push(json!({"key": space.path("l"), "range": {"lt": epoch}}));
            not.push(json!({"key": space.path("e"), "range": {"gt": epoch}}));
        }
        let filter = json!({
            "must": [has_id(of.values().flatten().copied()), any_of(read), any_of(free)],
            "must_not": not,
        });
        let mark = json!({"p": "pending", "k": name, "u": now_ms.saturating_add(HOLD_MS), "l": epoch});
        operations.push(set(space, &mark, &filter));
    }
    inner.client.change(inner.collection(), &operations)
}

/// Points with their tags, and with the vectors of the space's presence.
fn read_marks(
    inner: &Inner,
    space: &SpaceSlot,
    keys: impl Iterator<Item = ItemKey>,
) -> Result<BTreeMap<ItemKey, Point>> {
    let with = if space.is_applications { inner.tag([space]) } else { inner.tag([]) };
    let found = inner.client.retrieve(inner.collection(), keys, &with)?;
    Ok(found.into_iter().map(|point| (point.key, point)).collect())
}

/// Why a write cannot be applied, now or ever.
fn refused(space: &SpaceSlot, write: &VectorWrite, point: Option<&Point>) -> Option<WriteOutcome> {
    let Some(point) = point else { return Some(WriteOutcome::Deleted) };
    if point.revision() != Some(write.revision) {
        return Some(WriteOutcome::Changed);
    }
    let has_vector = space.is_applications.then(|| point.vector(space).is_some());
    let made_by = point.mark(space).made_by(space, has_vector);
    matches!(made_by, Some(Provenance::Old | Provenance::Native)).then_some(WriteOutcome::AlreadyThere)
}

fn is_held_by(point: &Point, space: &SpaceSlot, name: &str) -> bool {
    point.mark(space).held_by.as_deref() == Some(name)
}

/// A vector of a later plan is not replaced.
fn check_not_overtaken(
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    write: &VectorWrite,
    point: Option<&Point>,
) -> Result<()> {
    let there = point.and_then(|point| point.mark(space).epoch).map(Epoch::new);
    match (epoch.filter(|_| write.provenance == Provenance::Adapted), there) {
        (Some(epoch), Some(there)) if there > epoch => check::epoch(&space.record.space.name, epoch, there),
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Vectors<'a> {
    points: Vec<PointVectors<'a>>,
    update_filter: Value,
}

#[derive(Serialize)]
struct PointVectors<'a> {
    id: Value,
    vector: BTreeMap<&'a str, &'a [f32]>,
}

/// Step 2. A point that is gone fails the whole request, of which a part may have been applied: it is sent again without it.
fn put_vectors(inner: &Inner, space: &SpaceSlot, writes: &[&VectorWrite], name: &str) -> Result<()> {
    let mut left: Vec<&VectorWrite> = writes.to_vec();
    let path = format!("/collections/{}/points/vectors?wait=true", inner.collection());
    while !left.is_empty() {
        let points = left.iter().map(|write| PointVectors {
            id: id_of(write.key),
            vector: BTreeMap::from([(space.vector.as_str(), write.vector.as_slice())]),
        });
        let update_filter = all_of([is(&space.path("k"), name)]);
        let body = Vectors { points: points.collect(), update_filter };
        match inner.client.ask("PUT", &path, &body) {
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound { .. }) => {
                let keys = left.iter().map(|write| write.key);
                let there = inner.client.retrieve(inner.collection(), keys, &With::default())?;
                let before = left.len();
                left.retain(|write| there.iter().any(|point| point.key == write.key));
                if left.len() == before && !there.is_empty() {
                    // It came back meanwhile, or it is not about a point at all.
                    inner.facts()?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Step 3. Writes that say the same are said together.
fn say_who(
    inner: &Inner,
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    writes: &[&VectorWrite],
    name: &str,
) -> Result<()> {
    // Puts the errors of native vectors in the order of time.
    let has_error = writes.iter().any(|write| write.squared_error.is_some());
    let time = if has_error { Some(meta::reserve(inner, 1)?) } else { None };
    let mut said: BTreeMap<String, (Value, Vec<ItemKey>)> = BTreeMap::new();
    for write in writes {
        let (band, score) = place_of(write.priority);
        let mut mark = json!({
            "p": write.provenance.name(), "w": name, "k": null, "u": null, "l": null,
            "e": epoch.filter(|_| write.provenance == Provenance::Adapted).map(Epoch::number),
            "b": band, "q": score, "x": write.squared_error, "t": write.squared_error.and(time),
            "m": space.length_of(&write.vector),
        });
        if let Some(sigma2) = write.sigma2 {
            mark["v"] = json!(sigma2);
        }
        if write.provenance == Provenance::Native {
            mark["f"] = Value::Null;
        }
        said.entry(mark.to_string()).or_insert_with(|| (mark, Vec::new())).1.push(write.key);
    }
    let operations: Vec<Value> = said
        .into_values()
        .map(|(mark, keys)| {
            let held = [has_id(keys.into_iter()), is(&space.path("k"), name)];
            set(space, &mark, &all_of(held))
        })
        .collect();
    inner.client.change(inner.collection(), &operations)
}

/// Changes a space's part of the tag of items that pass a filter.
fn set(space: &SpaceSlot, mark: &Value, filter: &Value) -> Value {
    json!({"set_payload": {"payload": mark, "key": format!("{TAG}.{}", space.field()), "filter": filter}})
}

pub(crate) fn set_priorities(
    inner: &Inner,
    space: &str,
    epoch: Epoch,
    priorities: &[(ItemKey, Revision, Priority)],
) -> Result<usize> {
    let there = &meta::space(inner, space)?;
    for (_, _, priority) in priorities {
        check::priority(Some(*priority))?;
    }
    check::epoch(space, epoch, there.record.epoch)?;
    let mut changed = 0;
    for some in priorities.chunks(TOGETHER) {
        let name = inner.tokens.next();
        let operations: Vec<Value> = some
            .iter()
            .map(|(key, revision, priority)| {
                let (band, score) = place_of(Some(*priority));
                let filter = json!({
                    "must": [has_id([*key].into_iter()), is(REVISION, *revision), is(&there.path("p"), "adapted")],
                    "must_not": [{"key": there.path("e"), "range": {"gt": epoch.number()}}],
                });
                set(there, &json!({"b": band, "q": score, "a": name}), &filter)
            })
            .collect();
        inner.client.change(inner.collection(), &operations)?;
        let ours = [has_id(some.iter().map(|(key, ..)| *key)), is(&there.path("a"), name)];
        changed += inner.client.count(inner.collection(), &all_of(ours))? as usize;
    }
    check::epoch(space, epoch, meta::space(inner, space)?.record.epoch)?;
    Ok(changed)
}

pub(crate) fn forget_natives(inner: &Inner, space: &str, epoch: Epoch, limit: usize) -> Result<usize> {
    let there = &meta::space(inner, space)?;
    check::epoch(space, epoch, there.record.epoch)?;
    let native = || vec![there.made_by(&[Provenance::Native]), has_source(true)];
    let found = inner.client.scroll(inner.collection(), &all_of(native()), None, limit, &With::default())?;
    let mut forgotten = 0;
    for some in found.chunks(TOGETHER) {
        let (name, keys) = (inner.tokens.next(), || has_id(some.iter().map(|point| point.key)));
        let mut natives = native();
        natives.push(keys());
        let out = set(there, &json!({"p": "none", "w": name, "x": null, "t": null}), &all_of(natives));
        // A vector that is said to be none is removed only while that is said.
        let gone = || all_of([keys(), is(&there.path("p"), "none"), is(&there.path("w"), name.as_str())]);
        let remove = json!({"delete_vectors": {"filter": gone(), "vector": [there.vector]}});
        inner.client.change(inner.collection(), &[out])?;
        forgotten += inner.client.count(inner.collection(), &gone())? as usize;
        inner.client.change(inner.collection(), &[remove])?;
    }
    Ok(forgotten)
}

pub(crate) fn counts(inner: &Inner, space: &str) -> Result<Counts> {
    let space = &meta::space(inner, space)?;
    list(inner)?;
    let count = |filter: Value| inner.client.count(inner.collection(), &filter);
    let made_by = |provenance: Provenance| count(space.made_by(&[provenance]));
    let failed = none_of([is_empty(&space.path("f"))]);
    Ok(Counts {
        items: count(none_of([is_empty(REVISION)]))?,
        old: made_by(Provenance::Old)?,
        adapted: made_by(Provenance::Adapted)?,
        native: made_by(Provenance::Native)?,
        lacking: count(json!({"must_not": [is_empty(REVISION), space.present()]}))?,
        failed: count(failed)?,
        without_source: count(all_of([has_source(false), space.waiting()]))?,
    })
}

pub(crate) fn count_lag(inner: &Inner, space: &str, behind: &str) -> Result<u64> {
    let meta = meta::read(inner)?;
    let (space, behind) = (meta.find(space, &inner.name())?, meta.find(behind, &inner.name())?);
    list(inner)?;
    let filter = json!({"must": [behind.present()], "must_not": [space.present(), is_empty(REVISION)]});
    inner.client.count(inner.collection(), &filter)
}

pub(crate) fn record_failures(
    inner: &Inner,
    space: &str,
    failures: &[(ItemKey, Revision, String)],
) -> Result<()> {
    let space = &meta::space(inner, space)?;
    for some in failures.chunks(TOGETHER) {
        let operations: Vec<Value> = some
            .iter()
            .map(|(key, revision, reason)| {
                let of_now = [has_id([*key].into_iter()), is(REVISION, *revision), space.waiting()];
                let reason: String = reason.chars().take(REASON_MAX).collect();
                // An empty reason would be none.
                let reason = if reason.is_empty() { " ".to_owned() } else { reason };
                set(space, &json!({"f": reason}), &all_of(of_now))
            })
            .collect();
        inner.client.change(inner.collection(), &operations)?;
        // Only leases of items that have failed end; those of others go on.
        let keys = some.iter().map(|(key, ..)| *key);
        let failed = json!({"must": [has_id(keys)], "must_not": [is_empty(&space.path("f"))]});
        let failed = inner.client.scroll(inner.collection(), &failed, None, usize::MAX, &With::default())?;
        let failed: Vec<ItemKey> = failed.into_iter().map(|point| point.key).collect();
        queue::end_leases(inner, space, &failed)?;
    }
    Ok(())
}

pub(crate) fn failures(
    inner: &Inner,
    space: &str,
    after: Option<ItemKey>,
    limit: usize,
) -> Result<Vec<Failure>> {
    let space = &meta::space(inner, space)?;
    let failed = none_of([is_empty(&space.path("f"))]);
    let points = inner.client.scroll(inner.collection(), &failed, after, limit, &inner.tag([]))?;
    let failure = |point: Point| {
        let (revision, reason) = (point.revision()?, point.mark(space).failure?);
        Some(Failure { key: point.key, id: point.id(), revision, reason })
    };
    Ok(points.into_iter().filter_map(failure).collect())
}

pub(crate) fn clear_failures(inner: &Inner, space: &str) -> Result<u64> {
    let space = &meta::space(inner, space)?;
    let failed = || none_of([is_empty(&space.path("f"))]);
    let count = inner.client.count(inner.collection(), &failed())?;
    inner.client.change(inner.collection(), &[set(space, &json!({"f": null}), &failed())])?;
    Ok(count)
}

pub(crate) fn errors(inner: &Inner, space: &str, limit: usize) -> Result<Vec<(f32, f32)>> {
    let space = &meta::space(inner, space)?;
    let filter =
        json!({"must": [space.made_by(&[Provenance::Native])], "must_not": [is_empty(&space.path("v"))]});
    let path = space.path("t");
    let points = inner.client.scroll_down(inner.collection(), &filter, &path, limit, &inner.tag([]))?;
    let error = |point: Point| {
        let mark = point.mark(space);
        Some((mark.sigma2()?, mark.squared_error?))
    };
    Ok(points.into_iter().filter_map(error).collect())
}
