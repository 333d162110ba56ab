//! Items: the application's points, once they have a revision.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rehang_core::{Error, ErrorKind, Provenance, Result};
use rehang_store::{Item, ItemKey, ItemWrite, Revision, check};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::client::PATIENCE;
use crate::collection;
use crate::filters::{all_of, any_of, has_id, is, is_empty, none_of};
use crate::handle::Handle;
use crate::ids::{id_of, key_of, key_of_name};
use crate::indexes;
use crate::leases::end_leases;
use crate::meta::{self, Meta};
use crate::payload::{NEW_OLD_VECTOR, NO_SOURCE, REVISION, TAG, WITNESS, put_at, without_nulls};
use crate::points::{Point, band_and_score};
use crate::scroll::With;
use crate::slot::{BYTES_OF_A_NUMBER, Numbers, SpaceSlot};
use crate::vectors;

/// Points of one upsert.
const UPSERT: usize = 256;
/// How often in turn a point is met without a tag before indexes are made anew. An application that replaces
/// a point all the time makes it appear so, too.
const TIMES_SEEN: usize = 3;
/// Pause between a round of tagging that failed and the next one.
const PAUSE: Duration = Duration::from_millis(100);

/// Builds a filter for points that have no tag.
fn untagged() -> Value {
    is_empty(REVISION)
}

/// Builds a filter for points of which the application says that it has written the old vector and
/// left the source as it was.
fn has_new_old_vector() -> Value {
    is(REVISION, NEW_OLD_VECTOR)
}

/// Makes the operations that give items their next revision where only the old vector was written. Natives
/// stay, and so do native vectors that are being written. Vectors that were made from the earlier old vector
/// go. An item without a source has nothing that stays the same: it becomes a point without a tag.
fn with_new_old_vector(handle: &Handle, meta: &Meta, keys: &[ItemKey]) -> Result<Vec<Value>> {
    let these = || vec![has_id(keys.iter().copied()), has_new_old_vector()];
    let with = |conditions: Vec<Value>| all_of([these(), conditions].concat());
    let mut operations = Vec::new();
    for space in meta.spaces.iter().filter(|space| !space.is_applications) {
        // A reservation has an epoch where the vector to come is adapted.
        let is_reserved = all_of([is(&space.path("p"), "pending"), none_of([is_empty(&space.path("l"))])]);
        let made_of_old = any_of([is(&space.path("p"), "adapted"), is_reserved]);
        let none = json!({"p": "none", "k": null, "u": null, "l": null});
        let key = format!("{TAG}.{}", space.field());
        operations
            .push(json!({"set_payload": {"payload": none, "key": key, "filter": with(vec![made_of_old])}}));
        let gone = with(vec![is(&space.path("p"), "none")]);
        operations.push(json!({"delete_vectors": {"filter": gone, "vector": [space.vector]}}));
    }
    let revision = meta::revisions(handle, 1)?;
    let next = json!({REVISION: revision[0]});
    operations.push(json!({"set_payload": {"payload": next, "filter": with(vec![has_source(true)])}}));
    operations.push(json!({"set_payload": {"payload": {REVISION: null}, "filter": with(Vec::new())}}));
    Ok(operations)
}

/// Builds a filter for items that have a source (`yes`), or those that have none.
pub(crate) fn has_source(yes: bool) -> Value {
    is(NO_SOURCE, !yes)
}

/// Tags every point that has no tag: what the application wrote since becomes an item with a new revision. A
/// vector of one of the new spaces that came with the point is native, since the application made it. A
/// vector with a witness was written by the gallery, belongs to earlier content, and is taken out first.
/// `advance` is told how many points there were so far and says whether to go on. Returns how many points
/// were met that cannot be items.
///
/// All points of a page that have a source get the same revision, and all others another one. Together with
/// the key, a revision still tells the states of an item apart: each revision is given by one operation,
/// which the server applies once.
pub(crate) fn tag_new_points(handle: &Handle, advance: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
    let collection = handle.collection();
    let mut done = 0;
    let mut failing: Option<Instant> = None;
    loop {
        let changed = any_of([untagged(), has_new_old_vector()]);
        let (page, is_last, foreign_points) = handle.client.first_page(collection, &changed)?;
        if page.is_empty() {
            return Ok(foreign_points);
        }
        let meta = meta::read_begun(handle)?;
        let renewed = page.iter().filter(|point| point.has_new_old_vector());
        let renewed: Vec<ItemKey> = renewed.map(|point| point.key).collect();
        let mut operations =
            if renewed.is_empty() { Vec::new() } else { with_new_old_vector(handle, &meta, &renewed)? };
        let revisions = meta::revisions(handle, 2)?;
        let keys: Vec<ItemKey> = page.iter().map(|point| point.key).collect();
        let these = || vec![has_id(keys.iter().copied()), untagged()];
        let ours = meta.spaces.iter().filter(|space| !space.is_applications);
        let (witnessed, others_of_ours): (Vec<_>, Vec<_>) = ours.partition(|space| space.is_witnessed);
        let names = |of: &[&SpaceSlot]| of.iter().map(|space| space.vector.clone()).collect::<Vec<_>>();
        if !others_of_ours.is_empty() {
            operations.push(
                json!({"delete_vectors": {"filter": all_of(these()), "vector": names(&others_of_ours)}}),
            );
        }
        if !witnessed.is_empty() {
            let ours = all_of([these(), vec![json!({"has_vector": WITNESS})]].concat());
            // The witness stays: a server that is killed applies this once more to what it had flushed, and
            // would not find the vector without the witness.
            operations.push(json!({"delete_vectors": {"filter": ours, "vector": names(&witnessed)}}));
        }
        let came = any_of(witnessed.iter().map(|space| space.came_with_point()).collect::<Vec<_>>());
        let has_came = !witnessed.is_empty()
            && handle.client.count(collection, &all_of([these(), vec![came]].concat()))? > 0;
        let no_source = handle.options.source.as_deref().map(is_empty);
        // Every combination of spaces that a vector came for; the empty combination comes first.
        let combinations = if has_came { 1_usize << witnessed.len() } else { 1 };
        for has_no_source in if no_source.is_some() { &[false, true][..] } else { &[true] } {
            for combination in 0..combinations {
                let revision = revisions[usize::from(*has_no_source)];
                let mut tag = json!({"n": has_no_source, "r": revision});
                let (mut must, mut must_not) = (these(), Vec::new());
                for (at, space) in witnessed.iter().enumerate() {
                    if combination >> at & 1 == 1 {
                        must.push(space.came_with_point());
                        tag[space.field()] = json!({"p": Provenance::Native.name()});
                    } else {
                        must_not.push(space.has_vector());
                    }
                }
                // A point whose source came or went since was written meanwhile: it belongs to the next page.
                match &no_source {
                    Some(no_source) if *has_no_source => must.push(no_source.clone()),
                    Some(no_source) => must_not.push(no_source.clone()),
                    None => {}
                }
                let filter = json!({"must": must, "must_not": must_not});
                operations.push(
                    json!({"set_payload": {"payload": {REVISION: revision, TAG: tag}, "filter": filter}}),
                );
            }
        }
        if let Err(error) = handle.client.change_once(collection, &operations) {
            // A second attempt with these operations could give a revision that a worker has read to what the
            // application wrote since.
            let began = *failing.get_or_insert_with(rehang_clock::now);
            if !error.is_retryable() || began.elapsed() >= PATIENCE {
                return Err(error);
            }
            rehang_clock::wait(PAUSE);
            continue;
        }
        failing = None;
        if has_came {
            // From here on these vectors are like those that the gallery wrote.
            let native = witnessed.iter().map(|space| is(&space.path("p"), Provenance::Native.name()));
            let of_page = revisions.iter().map(|revision| is(REVISION, *revision));
            let filter = all_of([any_of(of_page.collect::<Vec<_>>()), any_of(native.collect::<Vec<_>>())]);
            vectors::put_witnesses(handle, &keys, &filter)?;
        }
        done += page.len() as u64;
        if !advance(done) {
            return Err(ErrorKind::Cancelled.into());
        }
        if is_last {
            // Everything that was there when it was read is tagged. With an application that writes all the
            // time, the loop would never end.
            return Ok(foreign_points);
        }
    }
}

/// Tags every point that has no tag, for callers that need no counts.
pub(crate) fn tag_all(handle: &Handle) -> Result<()> {
    tag_new_points(handle, &mut |_| true).map(drop)
}

/// Reads points by key, after every one of them has got a tag.
pub(crate) fn tagged(handle: &Handle, keys: &[ItemKey], with: &With) -> Result<BTreeMap<ItemKey, Point>> {
    let mut unlisted = Unlisted::default();
    loop {
        let points = handle.client.retrieve(handle.collection(), keys.iter().copied(), with)?;
        let without: Vec<ItemKey> =
            points.iter().filter(|point| !point.has_tag()).map(|point| point.key).collect();
        if without.is_empty() {
            return Ok(points.into_iter().map(|point| (point.key, point)).collect());
        }
        unlisted.mend(handle, &without)?;
        tag_all(handle)?;
    }
}

/// Count of how often points were met without a tag although listing did not find them: the server's index
/// says that they have one, as after it was killed.
#[derive(Default)]
pub(crate) struct Unlisted {
    times_seen: BTreeMap<ItemKey, usize>,
}

impl Unlisted {
    /// Notes points that had no tag after all points were listed. An application may have replaced a point
    /// since. Where a point stays so, the indexes are made anew, once.
    ///
    /// # Errors
    ///
    /// Corrupt where new indexes did not help.
    pub(crate) fn mend(&mut self, handle: &Handle, keys: &[ItemKey]) -> Result<()> {
        self.times_seen.retain(|key, _| keys.contains(key));
        for key in keys {
            *self.times_seen.entry(*key).or_default() += 1;
        }
        match self.times_seen.values().max() {
            Some(&TIMES_SEEN) => indexes::index_anew(handle),
            Some(times) if *times > 2 * TIMES_SEEN => {
                let detail = "its indexes of our fields say otherwise than its points do, also once they were made anew";
                Err(Error::corrupt(handle.name(), detail))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn get(handle: &Handle, ids: &[&str]) -> Result<Vec<Option<Item>>> {
    let keys: Vec<ItemKey> = ids.iter().map(|id| key_of_name(id).0).collect();
    let points = tagged(handle, &keys, &handle.with([]))?;
    let item = |key: &ItemKey| points.get(key).and_then(|point| point.item(&handle.options));
    Ok(keys.iter().map(item).collect())
}

/// Point as an upsert has it.
#[derive(Serialize)]
struct NewPoint<'a> {
    id: Value,
    vector: BTreeMap<&'a str, Numbers<'a>>,
    payload: Map<String, Value>,
}

/// Writes items as an application does: whole points. The server applies them one after the other.
pub(crate) fn put(handle: &Handle, writes: &[ItemWrite]) -> Result<Vec<Revision>> {
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    let meta = meta::read(handle)?;
    let name = handle.name();
    for write in writes {
        check::item_write(write, |space| Ok(&meta.find(space, &name)?.record.space))?;
        for (new, epoch) in write.vectors.iter().filter_map(|new| Some((new, new.epoch?))) {
            check::epoch(&new.space, epoch, meta.find(&new.space, &name)?.record.epoch)?;
        }
        for (option, path, is_given) in [
            ("source", &handle.options.source, write.source.is_some()),
            ("label", &handle.options.label, write.label.is_some()),
        ] {
            if path.is_none() && is_given {
                let why = "none: the gallery's collection names no field for it";
                return Err(Error::option(option, "given", why));
            }
        }
        if handle.options.payload.is_none() && !matches!(write.payload, Value::Null | Value::Object(_)) {
            let why = "an object with the point's other fields";
            return Err(Error::option("payload", &write.payload, why));
        }
    }
    let revisions = meta::revisions(handle, writes.len())?;
    // An id that stands twice in the writes is written once, as it was given last.
    let last: BTreeMap<ItemKey, usize> =
        writes.iter().enumerate().map(|(at, write)| (key_of_name(&write.id).0, at)).collect();
    let keys: Vec<ItemKey> = last.keys().copied().collect();
    // An item's source is as old as the first write that gave it.
    let mut since: BTreeMap<ItemKey, (Option<&String>, Revision)> = BTreeMap::new();
    for (write, revision) in writes.iter().zip(&revisions) {
        let (key, source) = (key_of_name(&write.id).0, write.source.as_ref());
        if !since.get(&key).is_some_and(|(earlier, _)| source.is_some() && *earlier == source) {
            since.insert(key, (source, *revision));
        }
    }
    let since = since.into_iter().map(|(key, (_, revision))| (key, revision)).collect();
    let mut of_same_source = BTreeSet::new();
    let (mut keys_left, mut some) = (keys.iter().peekable(), Vec::new());
    let mut room = handle.client.room_for(1);
    while let Some(key) = keys_left.next() {
        let write = &writes[last[key]];
        room = room.saturating_sub(bytes_of(&meta, write));
        some.push((*key, write, revisions[last[key]]));
        let is_full = some.len() == UPSERT.min(handle.limits.write);
        if is_full || keys_left.peek().is_none_or(|next| bytes_of(&meta, &writes[last[*next]]) > room) {
            of_same_source.extend(put_together(handle, &meta, std::mem::take(&mut some), &since)?);
            room = handle.client.room_for(1);
        }
    }
    for space in &meta.spaces {
        let is_held = |key: &ItemKey| of_same_source.contains(key) && !replaces(&writes[last[key]], space);
        let ended: Vec<ItemKey> = keys.iter().copied().filter(|key| !is_held(key)).collect();
        end_leases(handle, space, &ended)?;
    }
    withdraw_superseded(handle, &meta, writes, &keys)?;
    Ok(revisions)
}

/// Returns the bytes of a request that an item takes at most, with a vector of each space and the condition
/// under which it is put.
fn bytes_of(meta: &Meta, write: &ItemWrite) -> usize {
    let numbers: usize = meta.spaces.iter().map(|space| space.record.space.dimension).sum();
    let text = [&write.source, &write.label].into_iter().flatten().map(String::len).sum::<usize>();
    2048 + BYTES_OF_A_NUMBER * numbers + 2 * text + write.payload.to_string().len()
}

/// Puts different items, and returns the keys of those whose source was the same before. An upsert replaces a
/// point with all its vectors. So vectors that were made from the same source are read before and go along,
/// on the condition that the point is still as it was read.
fn put_together(
    handle: &Handle,
    meta: &Meta,
    mut writes_left: Vec<(ItemKey, &ItemWrite, Revision)>,
    since: &BTreeMap<ItemKey, Revision>,
) -> Result<BTreeSet<ItemKey>> {
    let path = format!("/collections/{}/points?wait=true", handle.collection());
    let ours = || meta.spaces.iter().filter(|space| !space.is_applications);
    let mut of_same_source = BTreeSet::new();
    while !writes_left.is_empty() {
        let sourced = writes_left.iter().filter(|(_, write, _)| write.source.is_some()).map(|(key, ..)| *key);
        let stored_points = tagged(handle, &sourced.collect::<Vec<_>>(), &handle.with(ours()))?;
        let point_of_same_source = |key: &ItemKey, write: &ItemWrite| {
            let point = stored_points.get(key)?;
            let is_same = point.item(&handle.options).is_some_and(|item| item.source == write.source);
            is_same.then_some(point)
        };
        let their_vectors = vectors_of_nobody(handle, meta, stored_points.keys().copied())?;
        let (same, of_new_source): (Vec<_>, Vec<_>) =
            writes_left.into_iter().partition(|(key, write, _)| point_of_same_source(key, write).is_some());
        let points = |of: &[(ItemKey, &'_ ItemWrite, Revision)]| -> Result<Value> {
            let new = of.iter().map(|(key, write, revision)| {
                let of_same_source = point_of_same_source(key, write);
                let mut point =
                    new_point(handle, meta, (*key, write), (*revision, since[key]), of_same_source)?;
                let theirs = of_same_source.and_then(|_| their_vectors.get(key)).into_iter().flatten();
                point
                    .vector
                    .extend(theirs.map(|(name, vector)| (name.as_str(), Numbers::Others(vector.clone()))));
                serde_json::to_value(point).map_err(|error| Error::corrupt(handle.name(), error))
            });
            new.collect::<Result<Vec<Value>>>().map(Value::Array)
        };
        if !of_new_source.is_empty() {
            handle.client.ask("PUT", &path, &json!({"points": points(&of_new_source)?}))?;
        }
        if same.is_empty() {
            break;
        }
        let as_read = same.iter().filter_map(|(key, write, _)| {
            let point = point_of_same_source(key, write)?;
            let mut as_read = vec![has_id([*key].into_iter()), is(REVISION, point.revision()?)];
            for space in ours().filter(|space| !replaces(write, space)) {
                let native = space.made_by(&[Provenance::Native]);
                as_read.push(if is_native(point, space) { native } else { none_of([native]) });
            }
            Some(all_of(as_read))
        });
        let as_read = any_of(as_read.collect::<Vec<_>>());
        handle.client.ask("PUT", &path, &json!({"points": points(&same)?, "update_filter": as_read}))?;
        let keys = same.iter().map(|(key, ..)| *key);
        let now = handle.client.retrieve(handle.collection(), keys, &handle.tag([]))?;
        let now: BTreeMap<ItemKey, Option<Revision>> =
            now.into_iter().map(|point| (point.key, point.revision())).collect();
        // Points that were written meanwhile are read again.
        let is_put =
            |key: &ItemKey, revision: Revision| now.get(key).is_none_or(|now| *now == Some(revision));
        writes_left = same.into_iter().filter(|(key, _, revision)| !is_put(key, *revision)).collect();
        of_same_source.extend(now.keys().filter(|key| writes_left.iter().all(|(other, ..)| other != *key)));
    }
    Ok(of_same_source)
}

/// Reads vectors of points that belong to no space and are not ours, by name: sparse ones of words, or those
/// of another model. A put that does not change the content keeps them.
fn vectors_of_nobody(
    handle: &Handle,
    meta: &Meta,
    keys: impl Iterator<Item = ItemKey>,
) -> Result<BTreeMap<ItemKey, Map<String, Value>>> {
    let keys: Vec<ItemKey> = keys.collect();
    let is_ours = |name: &str| name == WITNESS || meta.spaces.iter().any(|space| space.vector == name);
    let names = if keys.is_empty() {
        Vec::new()
    } else {
        collection::names_of_vectors(&handle.client, handle.collection())?
    };
    let names: Vec<String> = names.into_iter().filter(|name| !is_ours(name)).collect();
    let mut theirs = BTreeMap::new();
    if names.is_empty() {
        return Ok(theirs);
    }
    let path = format!("/collections/{}/points", handle.collection());
    for some in keys.chunks(UPSERT) {
        let ids: Vec<Value> = some.iter().map(|key| id_of(*key)).collect();
        let body = json!({"ids": ids, "with_payload": false, "with_vector": names});
        let mut answer = handle.client.ask("POST", &path, &body)?;
        for point in answer.as_array_mut().into_iter().flatten() {
            if let (Some(key), Value::Object(vectors)) = (key_of(&point["id"]), point["vector"].take()) {
                theirs.insert(key, vectors);
            }
        }
    }
    Ok(theirs)
}

/// Whether a write brings a vector for a space that takes the place of a native one.
fn replaces(write: &ItemWrite, space: &SpaceSlot) -> bool {
    let mut new = write.vectors.iter().filter(|new| new.space == space.record.space.name);
    new.any(|new| new.provenance != Provenance::Adapted)
}

fn is_native(point: &Point, space: &SpaceSlot) -> bool {
    point.mark(space).made_by(space, Some(point.vector(space).is_some())) == Some(Provenance::Native)
}

/// Builds the point of a write with its revision and the revision of its source. `of_same_source` is the
/// point that lies there with the same source.
fn new_point<'a>(
    handle: &Handle,
    meta: &'a Meta,
    (key, write): (ItemKey, &'a ItemWrite),
    (revision, since): (Revision, Revision),
    of_same_source: Option<&'a Point>,
) -> Result<NewPoint<'a>> {
    let source_revision = of_same_source.and_then(Point::source_revision).unwrap_or(since);
    let mut tag = json!({"n": write.source.is_none(), "r": source_revision});
    if key_of_name(&write.id).1 {
        tag["id"] = json!(write.id);
    }
    let mut vector: BTreeMap<&str, Numbers<'_>> = BTreeMap::new();
    for new in &write.vectors {
        let space = meta.find(&new.space, &handle.name())?;
        let (band, score) = band_and_score(new.priority);
        let (made_by, epoch) = (new.provenance.name(), new.epoch.map(rehang_store::Epoch::number));
        // Missing numbers are left out rather than null, so that the server's indexes hold numbers alone.
        let mark = json!({"p": made_by, "e": epoch, "v": new.sigma2, "b": band, "q": score, "m": space.length_of(&new.vector)});
        tag[space.field()] = without_nulls(mark);
        vector.extend(space.sent(space.at_length_1(&new.vector)));
    }
    for (space, point) in meta.spaces.iter().filter_map(|space| Some((space, of_same_source?))) {
        if replaces(write, space) {
            continue;
        }
        match point.vector(space).filter(|_| is_native(point, space)) {
            Some(native) => {
                tag[space.field()] = point.payload[TAG][space.field()].clone();
                vector.extend(space.sent(Cow::Borrowed(native)));
            }
            None => {
                if let Some(reason) = point.mark(space).failure {
                    tag[space.field()]["f"] = json!(reason);
                }
            }
        }
    }
    let mut payload = Map::new();
    match (&handle.options.payload, &write.payload) {
        (Some(path), value) if !value.is_null() => put_at(&mut payload, path, value.clone()),
        (None, Value::Object(fields)) => payload.clone_from(fields),
        _ => {}
    }
    for (path, text) in [(&handle.options.source, &write.source), (&handle.options.label, &write.label)] {
        if let (Some(path), Some(text)) = (path, text) {
            put_at(&mut payload, path, Value::String(text.clone()));
        }
    }
    payload.insert(REVISION.to_owned(), json!(revision));
    payload.insert(TAG.to_owned(), tag);
    Ok(NewPoint { id: id_of(key), vector, payload })
}

/// Takes adapted vectors that were just put out again, where another plan has begun meanwhile.
fn withdraw_superseded(handle: &Handle, meta: &Meta, writes: &[ItemWrite], keys: &[ItemKey]) -> Result<()> {
    let has_adapted = |space: &SpaceSlot| {
        let new = writes.iter().flat_map(|write| &write.vectors);
        new.into_iter().any(|new| new.epoch.is_some() && new.space == space.record.space.name)
    };
    if !meta.spaces.iter().any(has_adapted) {
        return Ok(());
    }
    let now = meta::read(handle)?;
    for space in meta.spaces.iter().filter(|space| has_adapted(space)) {
        let epoch = space.record.epoch.number();
        let is_of_now =
            now.spaces.iter().any(|other| other.slot == space.slot && other.record.epoch.number() == epoch);
        if !is_of_now {
            let written =
                [has_id(keys.iter().copied()), is(&space.path("p"), "adapted"), is(&space.path("e"), epoch)];
            let out = json!({"set_payload": {"payload": {"p": "none"}, "key": format!("{TAG}.{}", space.field()), "filter": all_of(written)}});
            handle.client.change(handle.collection(), &[out])?;
        }
    }
    Ok(())
}

pub(crate) fn delete(handle: &Handle, ids: &[&str]) -> Result<usize> {
    // The state is read first, since that fails where the gallery is being released.
    let meta = meta::read(handle)?;
    let mut keys: Vec<ItemKey> = ids.iter().map(|id| key_of_name(id).0).collect();
    keys.sort_unstable();
    keys.dedup();
    let points = handle.client.retrieve(handle.collection(), keys.iter().copied(), &With::default())?;
    if points.is_empty() {
        return Ok(0);
    }
    let keys: Vec<ItemKey> = points.iter().map(|point| point.key).collect();
    let ids: Vec<Value> = keys.iter().map(|key| id_of(*key)).collect();
    handle.client.change(handle.collection(), &[json!({"delete": {"points": ids}})])?;
    for space in &meta.spaces {
        end_leases(handle, space, &keys)?;
    }
    Ok(keys.len())
}

pub(crate) fn newest_revision(handle: &Handle) -> Result<Revision> {
    tag_all(handle)?;
    let with = handle.tag([]);
    let newest = handle.client.largest(handle.collection(), REVISION, &with)?;
    Ok(newest.as_ref().and_then(Point::revision).unwrap_or(0))
}

pub(crate) fn count_without_source(handle: &Handle) -> Result<u64> {
    tag_all(handle)?;
    handle.client.count(handle.collection(), &all_of([has_source(false)]))
}
