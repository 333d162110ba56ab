//! Items: the application's points, once they have a revision.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rehang::{Error, Result};
use rehang_store::{Item, ItemKey, ItemWrite, Revision, check, clock};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::client::{PAGE, PATIENCE, With};
use crate::collection::put_at;
use crate::meta::{self, Meta, SpaceSlot};
use crate::points::{
    REVISION, TAG, all_of, has_id, id_of, is, is_empty, key_of_name, none_of, nothing, place_of,
};
use crate::queue;
use crate::store::{Inner, cancelled};

/// Points of one upsert.
const UPSERT: usize = 256;
/// Between a listing that failed and the next one.
const PAUSE: Duration = Duration::from_millis(100);

/// The condition that no tag is on a point.
fn untagged() -> Value {
    is_empty(REVISION)
}

/// A filter for items without a source, or with one.
pub(crate) fn has_source(yes: bool) -> Value {
    is("rehang_tag.n", !yes)
}

/// Gives every point without a tag one: what the application wrote since becomes an item with a new revision. Vectors of our spaces in
/// such a point belong to its content before, and are taken out first. `each` is told how many there were so far and says whether to go
/// on. Gives how many points cannot be items, of the first thousand.
///
/// All of a page that have a source get the same revision, and all others another one: with the key it still says which state of the
/// item it is, since each revision is given by one operation, which the server applies once.
pub(crate) fn sweep(inner: &Inner, each: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
    let collection = inner.collection();
    let mut done = 0;
    let mut failing: Option<Instant> = None;
    loop {
        let (page, others) = inner.client.first_page(collection, &all_of([untagged()]))?;
        if page.is_empty() {
            return Ok(others);
        }
        let first = meta::reserve(inner, 2)?;
        let these = || [has_id(page.iter().map(|point| point.key)), untagged()];
        let stale: Vec<String> = meta::read(inner)?
            .spaces
            .into_iter()
            .filter(|space| !space.is_applications)
            .map(|space| space.vector)
            .collect();
        let mut operations = Vec::new();
        if !stale.is_empty() {
            operations.push(json!({"delete_vectors": {"filter": all_of(these()), "vector": stale}}));
        }
        let no_source = inner.options.source.as_deref().map(is_empty);
        let tag = |no_source: bool| json!({REVISION: first + u64::from(no_source), TAG: {"n": no_source}});
        if let Some(no_source) = &no_source {
            let filter = json!({"must": these(), "must_not": [no_source]});
            operations.push(json!({"set_payload": {"payload": tag(false), "filter": filter}}));
        }
        // What has a source by now was written since: it is of the next page.
        let others_of_page: Vec<Value> = these().into_iter().chain(no_source).collect();
        operations.push(json!({"set_payload": {"payload": tag(true), "filter": all_of(others_of_page)}}));
        if let Err(error) = inner.client.change_once(collection, &operations) {
            // Sent again as it is, it could give a revision that a worker has read to what the application wrote since.
            let began = *failing.get_or_insert_with(clock::now);
            if !error.is_retryable() || began.elapsed() >= PATIENCE {
                return Err(error);
            }
            clock::wait(PAUSE);
            continue;
        }
        failing = None;
        done += page.len() as u64;
        if !each(done) {
            return Err(cancelled());
        }
        if page.len() as u64 + others < PAGE as u64 {
            // All that was there when it was read. An application that writes all the time would never let this come to an end.
            return Ok(others);
        }
    }
}

/// The same where all that matters is that it is done.
pub(crate) fn list(inner: &Inner) -> Result<()> {
    sweep(inner, &mut |_| true).map(drop)
}

/// Points by key, every one with a tag.
pub(crate) fn tagged(
    inner: &Inner,
    keys: &[ItemKey],
    with: &With,
) -> Result<BTreeMap<ItemKey, crate::points::Point>> {
    loop {
        let found = inner.client.retrieve(inner.collection(), keys.iter().copied(), with)?;
        if found.iter().all(crate::points::Point::has_tag) {
            return Ok(found.into_iter().map(|point| (point.key, point)).collect());
        }
        list(inner)?;
    }
}

pub(crate) fn get(inner: &Inner, ids: &[&str]) -> Result<Vec<Option<Item>>> {
    let keys: Vec<ItemKey> = ids.iter().map(|id| key_of_name(id).0).collect();
    let found = tagged(inner, &keys, &inner.with([]))?;
    let item = |key: &ItemKey| found.get(key).and_then(|point| point.item(&inner.options));
    Ok(keys.iter().map(item).collect())
}

/// A point of an upsert.
#[derive(Serialize)]
struct NewPoint<'a> {
    id: Value,
    vector: BTreeMap<&'a str, &'a [f32]>,
    payload: Map<String, Value>,
}

#[derive(Serialize)]
struct Upsert<'a> {
    points: &'a [NewPoint<'a>],
}

/// Writes items as an application does: whole points. The server applies them one after the other.
pub(crate) fn put(inner: &Inner, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    let meta = meta::read(inner)?;
    let name = inner.name();
    for write in writes {
        check::item_write(write, |space| Ok(&meta.find(space, &name)?.record.space))?;
        for (new, epoch) in write.vectors.iter().filter_map(|new| Some((new, new.epoch?))) {
            check::epoch(&new.space, epoch, meta.find(&new.space, &name)?.record.epoch)?;
        }
        for (option, path, is_given) in [
            ("source", &inner.options.source, write.source.is_some()),
            ("label", &inner.options.label, write.label.is_some()),
        ] {
            if path.is_none() && is_given {
                let why = "none: the gallery's collection names no field for it";
                return Err(Error::option(option, "given", why));
            }
        }
        if inner.options.payload.is_none() && !matches!(write.payload, Value::Null | Value::Object(_)) {
            let why = "an object with the point's other fields";
            return Err(Error::option("payload", &write.payload, why));
        }
    }
    let first = meta::reserve(inner, writes.len())?;
    // An id that is there twice is written once, as it was given last.
    let last: BTreeMap<ItemKey, usize> =
        writes.iter().enumerate().map(|(at, write)| (key_of_name(&write.id).0, at)).collect();
    let points: Vec<NewPoint<'_>> = last
        .iter()
        .map(|(&key, &at)| new_point(inner, &meta, key, &writes[at], first + at as u64))
        .collect::<Result<_>>()?;
    for points in points.chunks(UPSERT) {
        let path = format!("/collections/{}/points?wait=true", inner.collection());
        inner.client.ask("PUT", &path, &Upsert { points })?;
    }
    let keys: Vec<ItemKey> = last.into_keys().collect();
    for space in &meta.spaces {
        queue::end_leases(inner, space, &keys)?;
    }
    withdraw_superseded(inner, &meta, writes, &keys)?;
    Ok((0..writes.len()).map(|at| first + at as u64).collect())
}

fn new_point<'a>(
    inner: &Inner,
    meta: &'a Meta,
    key: ItemKey,
    write: &'a ItemWrite,
    revision: Revision,
) -> Result<NewPoint<'a>> {
    let mut tag = json!({"n": write.source.is_none()});
    if key_of_name(&write.id).1 {
        tag["id"] = json!(write.id);
    }
    let mut vector: BTreeMap<&str, &[f32]> = BTreeMap::new();
    for new in &write.vectors {
        let space = meta.find(&new.space, &inner.name())?;
        let (band, score) = place_of(new.priority);
        let (made_by, epoch) = (new.provenance.name(), new.epoch.map(rehang_store::Epoch::number));
        // Without a number where there is none, so that the server's indexes hold numbers alone.
        let mark = json!({"p": made_by, "e": epoch, "v": new.sigma2, "b": band, "q": score, "m": space.length_of(&new.vector)});
        tag[space.field()] = without_nulls(mark);
        vector.insert(&space.vector, &new.vector);
    }
    let mut payload = Map::new();
    match (&inner.options.payload, &write.payload) {
        (Some(path), given) if !given.is_null() => put_at(&mut payload, path, given.clone()),
        (None, Value::Object(fields)) => payload.clone_from(fields),
        _ => {}
    }
    for (path, given) in [(&inner.options.source, &write.source), (&inner.options.label, &write.label)] {
        if let (Some(path), Some(given)) = (path, given) {
            put_at(&mut payload, path, Value::String(given.clone()));
        }
    }
    payload.insert(REVISION.to_owned(), json!(revision));
    payload.insert(TAG.to_owned(), tag);
    Ok(NewPoint { id: id_of(key), vector, payload })
}

/// An object without its empty fields.
pub(crate) fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// Takes adapted vectors that were just put out again, where another plan has begun meanwhile.
fn withdraw_superseded(inner: &Inner, meta: &Meta, writes: &[ItemWrite], keys: &[ItemKey]) -> Result<()> {
    let has_adapted = |space: &SpaceSlot| {
        let new = writes.iter().flat_map(|write| &write.vectors);
        new.into_iter().any(|new| new.epoch.is_some() && new.space == space.record.space.name)
    };
    if !meta.spaces.iter().any(has_adapted) {
        return Ok(());
    }
    let now = meta::read(inner)?;
    for space in meta.spaces.iter().filter(|space| has_adapted(space)) {
        let epoch = space.record.epoch.number();
        let is_of_now =
            now.spaces.iter().any(|other| other.slot == space.slot && other.record.epoch.number() == epoch);
        if !is_of_now {
            let written =
                [has_id(keys.iter().copied()), is(&space.path("p"), "adapted"), is(&space.path("e"), epoch)];
            let out = json!({"set_payload": {"payload": {"p": "none"}, "key": format!("{TAG}.{}", space.field()), "filter": all_of(written)}});
            inner.client.change(inner.collection(), &[out])?;
        }
    }
    Ok(())
}

pub(crate) fn delete(inner: &Inner, ids: &[&str]) -> Result<usize> {
    // First, since it fails where the gallery is being released.
    let meta = meta::read(inner)?;
    let mut keys: Vec<ItemKey> = ids.iter().map(|id| key_of_name(id).0).collect();
    keys.sort_unstable();
    keys.dedup();
    let there = inner.client.retrieve(inner.collection(), keys.iter().copied(), &With::default())?;
    if there.is_empty() {
        return Ok(0);
    }
    let keys: Vec<ItemKey> = there.iter().map(|point| point.key).collect();
    let ids: Vec<Value> = keys.iter().map(|key| id_of(*key)).collect();
    inner.client.change(inner.collection(), &[json!({"delete": {"points": ids}})])?;
    for space in &meta.spaces {
        queue::end_leases(inner, space, &keys)?;
    }
    Ok(keys.len())
}

pub(crate) fn newest_revision(inner: &Inner) -> Result<Revision> {
    list(inner)?;
    let with = inner.tag([]);
    let newest = inner.client.scroll_down(inner.collection(), &none_of([nothing()]), REVISION, 1, &with)?;
    Ok(newest.first().and_then(crate::points::Point::revision).unwrap_or(0))
}

pub(crate) fn count_without_source(inner: &Inner) -> Result<u64> {
    list(inner)?;
    inner.client.count(inner.collection(), &all_of([has_source(false)]))
}
