//! Vectors of spaces: the conditional writes of an upgrade, and counts of vectors.
//!
//! The server has no statement that writes a vector and a payload on a condition and leaves the rest of the
//! point alone. An upsert would undo what the application changes in other fields meanwhile. So a write takes
//! three conditional steps. The server decides each when it applies it, and each is atomic for a point:
//!
//! 1. *Reserve the vector*. The tag gets this write's name and `pending`, where the item has the
//!    revision that was read and no native vector, and no other write has reserved it. For readers the
//!    item then lacks a vector.
//! 2. *Write the vector* where the tag still has that name.
//! 3. *Say who made it* where the tag still has that name, and end the reservation.
//!
//! An application's upsert or deletion in between takes the tag with it, so that the later steps do nothing.
//! A writer that dies in between leaves `pending`, which counts as lacking. After [`RESERVED_MS`] another
//! writer reserves the vector, and the name keeps the first one out for good. The server does not say which
//! conditions held, so the writer reads back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rehang_core::{ErrorKind, Provenance, Result};
use rehang_store::{
    Counts, Epoch, Failure, ItemKey, Priority, Revision, VectorRecord, VectorWrite, WriteOutcome, check,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::at_once;
use crate::filters::{all_of, any_of, has_id, is, is_empty, is_of_source, none_of};
use crate::handle::Handle;
use crate::ids::id_of;
use crate::items::{has_source, tag_all, tagged};
use crate::leases::end_leases;
use crate::meta;
use crate::payload::{REVISION, TAG, WITNESS};
use crate::points::{Point, band_and_score};
use crate::scroll::With;
use crate::slot::{Numbers, SpaceSlot};

/// Number of writes whose steps are taken together.
const TOGETHER: usize = 256;
/// How long a write keeps its vectors reserved before another one may reserve them, in milliseconds: some ten
/// times what a write takes. A worker that waits for what a dead one reserved does not renew its leases
/// meanwhile, so this is to be shorter than a lease.
const RESERVED_MS: u64 = 5_000;
/// How long a write waits for other writes that have reserved its vectors.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest reason of a failure that is kept, in characters: it is indexed.
const REASON_MAX: usize = 500;

pub(crate) fn get(handle: &Handle, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>> {
    let space = &meta::space(handle, space)?;
    let points = tagged(handle, keys, &handle.tag([space]))?;
    Ok(keys.iter().map(|key| points.get(key)?.record(space, true, true)).collect())
}

pub(crate) fn provenances(handle: &Handle, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>> {
    let space = &meta::space(handle, space)?;
    let points = tagged(handle, keys, &handle.tag([]))?;
    // Which points have the vector can be known without reading it.
    let present = all_of([has_id(keys.iter().copied()), space.has_vector()]);
    let with_vector =
        handle.client.scroll(handle.collection(), &present, None, usize::MAX, &With::default())?;
    let with_vector: Vec<ItemKey> = with_vector.into_iter().map(|point| point.key).collect();
    let made_by = |key: &ItemKey| {
        let point = points.get(key).filter(|point| point.revision().is_some())?;
        point.mark(space).made_by(space, Some(with_vector.binary_search(key).is_ok()))
    };
    Ok(keys.iter().map(made_by).collect())
}

pub(crate) fn write(
    handle: &Handle,
    space: &str,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
) -> Result<Vec<WriteOutcome>> {
    let slot = &meta::space(handle, space)?;
    for write in writes {
        check::vector_write(&slot.record.space, epoch, write)?;
    }
    if let Some(epoch) = epoch {
        check::epoch(space, epoch, slot.record.epoch)?;
    }
    // Each write may have a revision of its own, which takes up to six conditions beside the ten
    // that all have in common.
    let together = TOGETHER.min(handle.limits.write).min((handle.limits.conditions - 10) / 6).max(1);
    let mut outcomes = Vec::with_capacity(writes.len());
    let mut unsent = writes;
    while !unsent.is_empty() {
        // An item that stands twice in the writes is written twice, one after the other.
        let mut keys = BTreeSet::new();
        let is_again = |(at, write): (usize, &VectorWrite)| at >= together || !keys.insert(write.key);
        let (now, later) =
            unsent.split_at(unsent.iter().enumerate().position(is_again).unwrap_or(unsent.len()));
        outcomes.extend(write_together(handle, slot, epoch, now)?);
        unsent = later;
    }
    let natives = writes.iter().zip(&outcomes).filter(|(write, outcome)| {
        write.provenance == Provenance::Native && **outcome == WriteOutcome::Written
    });
    let natives: Vec<ItemKey> = natives.map(|(write, _)| write.key).collect();
    end_leases(handle, slot, &natives)?;
    if let Some(epoch) = epoch.filter(|_| natives.len() < writes.len()) {
        // A write that came after the next plan began has met none of that plan's writes;
        // that plan writes over it.
        let now = meta::space(handle, space)?.record.epoch;
        check::epoch(space, epoch, now)?;
    }
    Ok(outcomes)
}

/// Writes vectors of different items together, by the three steps of this module.
fn write_together(
    handle: &Handle,
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    writes: &[VectorWrite],
) -> Result<Vec<WriteOutcome>> {
    let begun = rehang_clock::now();
    let mut pause = Duration::from_millis(2);
    let mut outcomes: BTreeMap<ItemKey, WriteOutcome> = BTreeMap::new();
    loop {
        let open: Vec<&VectorWrite> =
            writes.iter().filter(|write| !outcomes.contains_key(&write.key)).collect();
        if open.is_empty() {
            let outcome = |write: &VectorWrite| outcomes.get(&write.key).copied();
            return Ok(writes.iter().filter_map(outcome).collect());
        }
        let name = handle.tokens.next();
        reserve(handle, space, epoch, &open, &name)?;
        let points = read_marks(handle, space, open.iter().map(|write| write.key))?;
        let mut mine = Vec::new();
        for write in open {
            let point = points.get(&write.key);
            match refused(space, write, point) {
                Some(outcome) => drop(outcomes.insert(write.key, outcome)),
                None if point.is_some_and(|point| is_reserved_by(point, space, &name)) => mine.push(write),
                None => check_not_overtaken(space, epoch, write, point)?,
            }
        }
        if !mine.is_empty() {
            put_vectors(handle, space, &mine, &name)?;
            say_who(handle, space, epoch, &mine, &name)?;
            let points = read_marks(handle, space, mine.iter().map(|write| write.key))?;
            for write in mine {
                let point = points.get(&write.key);
                let is_mine = point.is_some_and(|point| {
                    is_of_now(write, point) && point.mark(space).written_by.as_ref() == Some(&name)
                });
                // Where it is neither mine nor refused, another write has taken over,
                // and this one waits for it.
                let outcome =
                    if is_mine { Some(WriteOutcome::Written) } else { refused(space, write, point) };
                outcomes.extend(outcome.map(|outcome| (write.key, outcome)));
            }
        } else if outcomes.len() < writes.len() {
            if begun.elapsed() > PATIENCE {
                let detail = "other writes hold the places of these vectors".to_owned();
                return Err(ErrorKind::Unavailable { service: handle.name(), detail }.into());
            }
            rehang_clock::wait(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }
}

/// Step 1: reserves the vectors that no other write has reserved.
fn reserve(
    handle: &Handle,
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    writes: &[&VectorWrite],
    name: &str,
) -> Result<()> {
    let now_ms = handle.clock.now_ms();
    let mut operations = Vec::new();
    for provenance in [Provenance::Adapted, Provenance::Native] {
        let mut keys_of: BTreeMap<Revision, Vec<ItemKey>> = BTreeMap::new();
        for write in writes.iter().filter(|write| write.provenance == provenance) {
            keys_of.entry(write.revision).or_default().push(write.key);
        }
        if keys_of.is_empty() {
            continue;
        }
        // The epoch in which the vector is reserved; a native vector has none.
        let epoch = epoch.filter(|_| provenance == Provenance::Adapted).map(Epoch::number);
        let read: Vec<Value> = keys_of
            .iter()
            .map(|(revision, keys)| {
                let of_now = if provenance == Provenance::Native {
                    is_of_source(*revision)
                } else {
                    is(REVISION, *revision)
                };
                all_of([has_id(keys.iter().copied()), of_now])
            })
            .collect();
        let mut free = vec![
            is_empty(&space.path("k")),
            json!({"key": space.path("u"), "range": {"lte": now_ms}}),
            // Time that went back, or a machine whose clock is far ahead.
            json!({"key": space.path("u"), "range": {"gt": now_ms.saturating_add(2 * RESERVED_MS)}}),
        ];
        let mut not = vec![space.made_by(&[Provenance::Old, Provenance::Native])];
        if let Some(epoch) = epoch {
            // A plan's writes go over those of earlier plans, never the other way round.
            free.push(json!({"key": space.path("l"), "range": {"lt": epoch}}));
            not.push(json!({"key": space.path("e"), "range": {"gt": epoch}}));
        }
        let filter = json!({
            "must": [has_id(keys_of.values().flatten().copied()), any_of(read), any_of(free)],
            "must_not": not,
        });
        let mark = json!({"p": "pending", "k": name, "u": now_ms.saturating_add(RESERVED_MS), "l": epoch});
        operations.push(set_mark_operation(space, &mark, &filter));
    }
    handle.client.change(handle.collection(), &operations)
}

/// Reads points with their tags; in the application's own space with their vectors too, since only they say
/// which points have one.
fn read_marks(
    handle: &Handle,
    space: &SpaceSlot,
    keys: impl Iterator<Item = ItemKey>,
) -> Result<BTreeMap<ItemKey, Point>> {
    let with = if space.is_applications { handle.tag([space]) } else { handle.tag([]) };
    let points = handle.client.retrieve(handle.collection(), keys, &with)?;
    Ok(points.into_iter().map(|point| (point.key, point)).collect())
}

/// Whether a write was made of the item as it is now.
fn is_of_now(write: &VectorWrite, point: &Point) -> bool {
    let of_now =
        if write.provenance == Provenance::Native { point.source_revision() } else { point.revision() };
    of_now == Some(write.revision)
}

/// Returns the reason why a write cannot be applied, now or ever; `None` where it can.
fn refused(space: &SpaceSlot, write: &VectorWrite, point: Option<&Point>) -> Option<WriteOutcome> {
    let Some(point) = point else { return Some(WriteOutcome::Deleted) };
    if !is_of_now(write, point) {
        return Some(WriteOutcome::Changed);
    }
    let has_vector = space.is_applications.then(|| point.vector(space).is_some());
    let made_by = point.mark(space).made_by(space, has_vector);
    matches!(made_by, Some(Provenance::Old | Provenance::Native)).then_some(WriteOutcome::AlreadyThere)
}

fn is_reserved_by(point: &Point, space: &SpaceSlot, name: &str) -> bool {
    point.mark(space).reserved_by.as_deref() == Some(name)
}

/// Fails where the item has a vector of a later plan: it is not replaced.
fn check_not_overtaken(
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    write: &VectorWrite,
    point: Option<&Point>,
) -> Result<()> {
    let point_epoch = point.and_then(|point| point.mark(space).epoch).map(Epoch::new);
    match (epoch.filter(|_| write.provenance == Provenance::Adapted), point_epoch) {
        (Some(epoch), Some(later)) if later > epoch => check::epoch(&space.record.space.name, epoch, later),
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
    vector: BTreeMap<&'a str, Numbers<'a>>,
}

/// Takes the vectors of a space out of the collection: its whole named vector, or only the adapted ones where
/// the application had made the named vector.
pub(crate) fn take_out(handle: &Handle, space: &SpaceSlot) -> Result<()> {
    if space.is_applications {
        return Ok(());
    }
    if !space.was_there {
        return handle.client.ask("DELETE", &handle.vector_path(&space.vector), &Value::Null).map(drop);
    }
    let adapted = space.made_by(&[Provenance::Adapted]);
    handle.change_each(&adapted, |page| json!({"delete_vectors": {"filter": page, "vector": [space.vector]}}))
}

/// Puts a witness into the points of `keys` that pass a filter.
pub(crate) fn put_witnesses(handle: &Handle, keys: &[ItemKey], filter: &Value) -> Result<()> {
    put_where(handle, keys, filter, |_| BTreeMap::from([(WITNESS, Numbers::WITNESS)]))
}

/// Step 2: writes the vectors that this write has reserved.
fn put_vectors(handle: &Handle, space: &SpaceSlot, writes: &[&VectorWrite], name: &str) -> Result<()> {
    let write_of: BTreeMap<ItemKey, &VectorWrite> = writes.iter().map(|write| (write.key, *write)).collect();
    let keys: Vec<ItemKey> = write_of.keys().copied().collect();
    // Points that step 3 has marked pass too. A server that was killed applies this write once more to what
    // it had flushed, which may be the payload and not the witness.
    let is_this_write = any_of([is(&space.path("k"), name), is(&space.path("w"), name)]);
    put_where(handle, &keys, &is_this_write, |key| {
        space.sent(space.at_length_1(&write_of[&key].vector)).collect()
    })
}

/// Writes vectors of those points that pass a filter. A point that is gone fails the whole request, of which
/// a part may have been applied. The request is sent again without that point.
fn put_where<'a>(
    handle: &Handle,
    keys: &[ItemKey],
    filter: &Value,
    vectors: impl Fn(ItemKey) -> BTreeMap<&'a str, Numbers<'a>>,
) -> Result<()> {
    let mut keys_left = keys.to_vec();
    let path = format!("/collections/{}/points/vectors?wait=true", handle.collection());
    while !keys_left.is_empty() {
        // All points get vectors of the same spaces, so one tells the size of each.
        let bytes: usize = vectors(keys_left[0]).values().map(|vector| vector.bytes() + 256).sum();
        let some = &keys_left[..keys_left.len().min(handle.client.room_for(bytes))];
        let points = some.iter().map(|key| PointVectors { id: id_of(*key), vector: vectors(*key) });
        let body = Vectors { points: points.collect(), update_filter: all_of([filter.clone()]) };
        match handle.client.ask("PUT", &path, &body) {
            Ok(_) => drop(keys_left.drain(..some.len())),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound { .. }) => {
                let found_points = handle.client.retrieve(
                    handle.collection(),
                    keys_left.iter().copied(),
                    &With::default(),
                )?;
                let before = keys_left.len();
                keys_left.retain(|key| found_points.iter().any(|point| point.key == *key));
                if keys_left.len() == before && !found_points.is_empty() {
                    // The point came back meanwhile, or the refusal is about the collection.
                    handle.facts()?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Step 3: says who made the vectors. Writes with equal marks share one operation.
fn say_who(
    handle: &Handle,
    space: &SpaceSlot,
    epoch: Option<Epoch>,
    writes: &[&VectorWrite],
    name: &str,
) -> Result<()> {
    // Numbers the errors of native vectors in the order of time.
    let has_error = writes.iter().any(|write| write.squared_error.is_some());
    let time = if has_error { Some(meta::reserve(handle, 1)?) } else { None };
    let mut keys_by_mark: BTreeMap<String, (Value, Vec<ItemKey>)> = BTreeMap::new();
    for write in writes {
        let (band, score) = band_and_score(write.priority);
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
        keys_by_mark.entry(mark.to_string()).or_insert_with(|| (mark, Vec::new())).1.push(write.key);
    }
    let operations: Vec<Value> = keys_by_mark
        .into_values()
        .map(|(mark, keys)| {
            let reserved = [has_id(keys.into_iter()), is(&space.path("k"), name)];
            set_mark_operation(space, &mark, &all_of(reserved))
        })
        .collect();
    handle.client.change(handle.collection(), &operations)
}

/// Makes the operation that changes a space's part of the tag of items that pass a filter.
pub(crate) fn set_mark_operation(space: &SpaceSlot, mark: &Value, filter: &Value) -> Value {
    json!({"set_payload": {"payload": mark, "key": format!("{TAG}.{}", space.field()), "filter": filter}})
}

pub(crate) fn set_priorities(
    handle: &Handle,
    space: &str,
    epoch: Epoch,
    priorities: &[(ItemKey, Revision, Priority)],
) -> Result<usize> {
    let slot = &meta::space(handle, space)?;
    for (_, _, priority) in priorities {
        check::priority(Some(*priority))?;
    }
    check::epoch(space, epoch, slot.record.epoch)?;
    let mut changed = 0;
    for some in priorities.chunks(TOGETHER) {
        let name = handle.tokens.next();
        let operations: Vec<Value> = some
            .iter()
            .map(|(key, revision, priority)| {
                let (band, score) = band_and_score(Some(*priority));
                let filter = json!({
                    "must": [has_id([*key].into_iter()), is(REVISION, *revision), is(&slot.path("p"), "adapted")],
                    "must_not": [{"key": slot.path("e"), "range": {"gt": epoch.number()}}],
                });
                set_mark_operation(slot, &json!({"b": band, "q": score, "a": name}), &filter)
            })
            .collect();
        handle.client.change(handle.collection(), &operations)?;
        let ours = [has_id(some.iter().map(|(key, ..)| *key)), is(&slot.path("a"), name)];
        changed += handle.client.count(handle.collection(), &all_of(ours))? as usize;
    }
    check::epoch(space, epoch, meta::space(handle, space)?.record.epoch)?;
    Ok(changed)
}

pub(crate) fn forget_natives(handle: &Handle, space: &str, epoch: Epoch, limit: usize) -> Result<usize> {
    let slot = &meta::space(handle, space)?;
    check::epoch(space, epoch, slot.record.epoch)?;
    let native = || vec![slot.made_by(&[Provenance::Native]), has_source(true)];
    let points =
        handle.client.scroll(handle.collection(), &all_of(native()), None, limit, &With::default())?;
    let mut forgotten = 0;
    for some in points.chunks(TOGETHER) {
        let (name, keys) = (handle.tokens.next(), || has_id(some.iter().map(|point| point.key)));
        let mut natives = native();
        natives.push(keys());
        let out = set_mark_operation(
            slot,
            &json!({"p": "none", "w": name, "x": null, "t": null}),
            &all_of(natives),
        );
        // The vector is removed only while the tag still says that it is none.
        let gone = || all_of([keys(), is(&slot.path("p"), "none"), is(&slot.path("w"), name.as_str())]);
        let remove = json!({"delete_vectors": {"filter": gone(), "vector": [slot.vector]}});
        handle.client.change(handle.collection(), &[out])?;
        forgotten += handle.client.count(handle.collection(), &gone())? as usize;
        handle.client.change(handle.collection(), &[remove])?;
    }
    Ok(forgotten)
}

pub(crate) fn counts(handle: &Handle, space: &str) -> Result<Counts> {
    let space = &meta::space(handle, space)?;
    tag_all(handle)?;
    let made_by = |provenance: Provenance| space.made_by(&[provenance]);
    let filters = [
        made_by(Provenance::Old),
        made_by(Provenance::Adapted),
        made_by(Provenance::Native),
        json!({"must_not": [is_empty(REVISION), space.present()]}),
        none_of([is_empty(&space.path("f"))]),
        all_of([has_source(false), space.waiting()]),
    ];
    // The server counts each filter with one thread.
    let counted = at_once(&filters, |filter| handle.client.count(handle.collection(), filter))?;
    let [old, adapted, native, lacking, failed, without_source] = counted[..] else {
        unreachable!("a count for each filter");
    };
    let items = old + adapted + native + lacking;
    Ok(Counts { items, old, adapted, native, lacking, failed, without_source })
}

pub(crate) fn count_lag(handle: &Handle, space: &str, behind: &str) -> Result<u64> {
    let meta = meta::read(handle)?;
    let (space, behind) = (meta.find(space, &handle.name())?, meta.find(behind, &handle.name())?);
    tag_all(handle)?;
    let filter = json!({"must": [behind.present()], "must_not": [space.present(), is_empty(REVISION)]});
    handle.client.count(handle.collection(), &filter)
}

pub(crate) fn record_failures(
    handle: &Handle,
    space: &str,
    failures: &[(ItemKey, Revision, String)],
) -> Result<()> {
    let space = &meta::space(handle, space)?;
    for some in failures.chunks(TOGETHER) {
        let operations: Vec<Value> = some
            .iter()
            .map(|(key, revision, reason)| {
                let of_now = [has_id([*key].into_iter()), is_of_source(*revision), space.waiting()];
                let reason: String = reason.chars().take(REASON_MAX).collect();
                // An empty reason would count as no reason.
                let reason = if reason.is_empty() { " ".to_owned() } else { reason };
                set_mark_operation(space, &json!({"f": reason}), &all_of(of_now))
            })
            .collect();
        handle.client.change(handle.collection(), &operations)?;
        // Only leases of items that have failed end; those of others go on.
        let keys = some.iter().map(|(key, ..)| *key);
        let failed = json!({"must": [has_id(keys)], "must_not": [is_empty(&space.path("f"))]});
        let failed =
            handle.client.scroll(handle.collection(), &failed, None, usize::MAX, &With::default())?;
        let failed: Vec<ItemKey> = failed.into_iter().map(|point| point.key).collect();
        end_leases(handle, space, &failed)?;
    }
    Ok(())
}

pub(crate) fn failures(
    handle: &Handle,
    space: &str,
    after: Option<ItemKey>,
    limit: usize,
) -> Result<Vec<Failure>> {
    let space = &meta::space(handle, space)?;
    let failed = none_of([is_empty(&space.path("f"))]);
    let points = handle.client.scroll(handle.collection(), &failed, after, limit, &handle.tag([]))?;
    let failure = |point: Point| {
        let (revision, reason) = (point.source_revision()?, point.mark(space).failure?);
        Some(Failure { key: point.key, id: point.id(), revision, reason })
    };
    Ok(points.into_iter().filter_map(failure).collect())
}

pub(crate) fn clear_failures(handle: &Handle, space: &str) -> Result<u64> {
    let space = &meta::space(handle, space)?;
    let failed = || none_of([is_empty(&space.path("f"))]);
    let count = handle.client.count(handle.collection(), &failed())?;
    handle
        .client
        .change(handle.collection(), &[set_mark_operation(space, &json!({"f": null}), &failed())])?;
    Ok(count)
}

pub(crate) fn errors(handle: &Handle, space: &str, limit: usize) -> Result<Vec<(f32, f32)>> {
    let space = &meta::space(handle, space)?;
    let (filter, path) = (space.made_by(&[Provenance::Native]), space.path("t"));
    let mut wanted = limit;
    loop {
        let points =
            handle.client.scroll_down(handle.collection(), &filter, &path, wanted, &handle.tag([]))?;
        let is_all = points.len() < wanted;
        let error = |point: Point| {
            let mark = point.mark(space);
            Some((mark.sigma2()?, mark.squared_error?))
        };
        let mut errors: Vec<(f32, f32)> = points.into_iter().filter_map(error).collect();
        // Errors of items whose σ² nobody knew are passed over.
        if is_all || errors.len() >= limit {
            errors.truncate(limit);
            return Ok(errors);
        }
        wanted = wanted.saturating_mul(2);
    }
}
