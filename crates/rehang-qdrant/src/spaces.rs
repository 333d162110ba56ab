//! Spaces of a gallery, the one that serves, and documents: changes of the state beside the points.

use rehang_core::{Error, Provenance, Remedy, Result, Space};
use rehang_store::{Document, Epoch, SpaceRecord, check};
use serde_json::{Value, json};

use crate::collection::{Facts, name_of};
use crate::filters::{all_of, any_of, is, is_empty, none_of};
use crate::handle::Handle;
use crate::meta::{self, Meta};
use crate::payload::{TAG, WITNESS};
use crate::slot::SpaceSlot;
use crate::{indexes, leases, vectors};

pub(crate) fn create(handle: &Handle, space: &Space, written_as: Provenance) -> Result<()> {
    check::new_space(space, written_as)?;
    let conflict = |why: String| Error::conflict(format!("space {:?}", space.name), why);
    let their_vector = handle.options.vector.clone().filter(|_| handle.old.as_ref() == Some(&space.name));
    let is_applications = their_vector.is_some();
    // The server takes no name with one of these letters.
    let vector =
        their_vector.unwrap_or_else(|| space.name.replace(|letter| "<>:\"/\\|?*\0".contains(letter), "_"));
    if vector == WITNESS {
        return Err(Error::option(
            "[new] name",
            &space.name,
            "another one: a gallery needs a vector of that name for its own",
        ));
    }
    let is_there = |meta: &Meta| {
        if let Some(existing) = meta.spaces.iter().find(|existing| existing.record.space.name == space.name) {
            return check::same_space(&existing.record, space, written_as).map(|()| true);
        }
        match meta.spaces.iter().find(|existing| existing.vector == vector) {
            Some(other) => {
                Err(conflict(format!("its vectors would be those of space {:?}", other.record.space.name)))
            }
            None => Ok(false),
        }
    };
    if is_there(&meta::read(handle)?)? {
        return Ok(());
    }
    let facts = handle.facts()?;
    let bytes = |width: usize| facts.points.saturating_mul(4 * width as u64);
    let all = facts.vectors.iter().map(|(_, width, _)| bytes(*width)).sum::<u64>();
    let namesake = facts.vectors.iter().find(|(name, ..)| *name == vector).cloned();
    let has_namesake = namesake.is_some();
    if namesake.is_none() && all.saturating_add(bytes(space.dimension + 1)) > facts.limits.vector_bytes {
        return Err(Error::option(
            format!("max_collection_vector_size_bytes of collection {}", handle.collection()),
            format!("{} in its strict mode", facts.limits.vector_bytes),
            format!(
                "{} or more: so many bytes have the vectors of all points with those of space {:?}",
                all.saturating_add(bytes(space.dimension + 1)),
                space.name
            ),
        ));
    }
    // Counts points that have a vector where the new ones are to lie. It belongs to a space that was dropped,
    // or is not ours to write over.
    let filled = if namesake.is_some() && !is_applications {
        handle.client.count(handle.collection(), &all_of([json!({"has_vector": vector})]))?
    } else {
        0
    };
    if let Some((_, size, distance)) = namesake
        && (size, distance) != (space.dimension, space.distance)
    {
        return Err(conflict(format!(
            "the collection's vector {vector:?} is {size}-d, {distance}; the space is {space}"
        )));
    }
    let lost_slot = if filled > 0 { slot_left(handle, &vector)? } else { None };
    let slot = meta::change(handle, |meta| {
        if is_there(meta)? {
            return Ok(None);
        }
        if lost_slot.is_some() {
            return Ok(lost_slot);
        }
        let was_ours = meta.dropped.iter().any(|other| !other.is_applications && other.vector == vector);
        if filled > 0 && !was_ours {
            return Err(conflict(format!(
                "{filled} points have a vector {vector:?} that is not of the gallery, and what is in it would be lost; \
                 delete that vector, or give the new space another name"
            )));
        }
        meta.slots += 1;
        Ok(Some(meta.slots))
    })?;
    let Some(slot) = slot else { return Ok(()) };
    let was_ours =
        lost_slot.is_some() || meta::read(handle)?.dropped.iter().any(|slot| slot.vector == vector);
    let was_there = has_namesake && !was_ours;
    let record = SpaceRecord { space: space.clone(), written_as, epoch: Epoch::FIRST };
    // Natives of a gallery of an earlier version may have no witness.
    let is_witnessed = !is_applications && (lost_slot.is_none() || facts.has_witness);
    let new = SpaceSlot { record, slot, vector: vector.clone(), is_applications, is_witnessed, was_there };
    for (field, kind) in indexes::indexed_fields(&new, &facts.limits) {
        handle.client.index(handle.collection(), &field, kind)?;
    }
    // Made after the indexes: the server rearranges its points when vectors are configured, and may lose an
    // index that comes about meanwhile.
    if !has_namesake {
        make_like_old(handle, &facts, &vector, space)?;
    }
    if !is_applications && !facts.has_witness {
        make_witness(handle, &facts)?;
    }
    if lost_slot.is_some() {
        take_natives(handle, &new)?;
    }
    meta::change(handle, |meta| {
        if is_there(meta)? {
            return Ok(());
        }
        meta.dropped.retain(|other| other.vector != vector);
        meta.spaces.push(new.clone());
        meta.serving.get_or_insert_with(|| space.name.clone());
        Ok(())
    })
}

/// Fails where the application has dropped its old vector and the gallery still has the space of it.
pub(crate) fn expect_old_vector(handle: &Handle, facts: &Facts, meta: &Meta) -> Result<()> {
    let gone = meta.spaces.iter().find(|space| space.is_applications && !facts.has(&space.vector));
    gone.map_or(Ok(()), |space| {
        let why = format!(
            "the vector {:?} of space {:?} is not in the collection any more, so nothing can be made of it",
            space.vector, space.record.space.name
        );
        Err(Error::conflict(handle.name(), why).advise(Remedy::EmbedBeforeFinish))
    })
}

/// Makes named vectors of spaces that are not in the collection any more, for example where the application
/// has made the collection anew.
pub(crate) fn make_missing(handle: &Handle, facts: &Facts) -> Result<()> {
    let meta = meta::read_begun(handle)?;
    let ours = || meta.spaces.iter().filter(|space| !space.is_applications);
    for space in ours().filter(|space| !facts.has(&space.vector)) {
        // The tags are changed first: a vector that is there says that the tags are right.
        let conditions = ["adapted", "native", "pending"].map(|name| is(&space.path("p"), name));
        handle.change_each(&any_of(conditions.to_vec()), |page| {
            vectors::set_mark_operation(space, &no_vector(), &page)
        })?;
        make_like_old(handle, facts, &space.vector, &space.record.space)?;
    }
    if !facts.has_witness && ours().any(|space| space.is_witnessed) {
        make_witness(handle, facts)?;
    }
    Ok(())
}

/// Returns the part of a tag for a vector that is not there.
fn no_vector() -> Value {
    json!({"p": "none", "k": null, "u": null, "l": null, "b": null, "q": null, "e": null})
}

/// Makes a named vector that lies as the old one does: in memory or on disk, of half width,
/// quantised, with its graph.
fn make_like_old(handle: &Handle, facts: &Facts, vector: &str, space: &Space) -> Result<()> {
    let mut dense = json!({"size": space.dimension, "distance": name_of(space.distance)});
    let old = match handle.options.vector.as_deref() {
        None => &Value::Null,
        Some("") => &facts.described,
        Some(name) => &facts.described[name],
    };
    if old["datatype"] == "float16" {
        dense["datatype"] = old["datatype"].clone();
    }
    handle.client.ask("PUT", &handle.vector_path(vector), &json!({"dense": dense}))?;
    let like =
        ["hnsw_config", "quantization_config", "on_disk"].map(|field| (field.to_owned(), old[field].clone()));
    let like: serde_json::Map<String, Value> =
        like.into_iter().filter(|(_, value)| !value.is_null()).collect();
    if like.is_empty() { Ok(()) } else { configure(handle, vector, &json!(like)) }
}

/// Makes the vector of witnesses: one byte a point, without a graph where that may be configured.
fn make_witness(handle: &Handle, facts: &Facts) -> Result<()> {
    if facts.has_sparse_witness {
        handle.client.ask("DELETE", &handle.vector_path(WITNESS), &Value::Null)?;
    }
    let dense = json!({"size": 1, "distance": "Dot", "datatype": "uint8"});
    handle.client.ask("PUT", &handle.vector_path(WITNESS), &json!({"dense": dense}))?;
    match configure(handle, WITNESS, &json!({"hnsw_config": {"m": 0}})) {
        // A token for the collection alone may not configure it.
        Err(error) if error.is_unauthorised() => Ok(()),
        configured => configured,
    }
}

/// Sets what the server takes only for a named vector that is already there.
fn configure(handle: &Handle, vector: &str, set: &Value) -> Result<()> {
    let body = json!({"vectors": {vector: set}});
    handle.client.ask("PATCH", &format!("/collections/{}", handle.collection()), &body).map(drop)
}

/// Finds the slot of an earlier space whose items all have this vector, where the state
/// beside the points was lost.
fn slot_left(handle: &Handle, vector: &str) -> Result<Option<u32>> {
    let meta = meta::read(handle)?;
    let taken: Vec<u32> = meta.spaces.iter().chain(&meta.dropped).map(|space| space.slot).collect();
    let mut best = None;
    for slot in (1..=meta.slots).filter(|slot| !taken.contains(slot)) {
        let condition = json!({"key": format!("{TAG}.s{slot}.p"), "match": {"any": ["adapted", "native"]}});
        let count = |filter: Value| handle.client.count(handle.collection(), &filter);
        let all = count(all_of([condition.clone()]))?;
        let with_vector = count(all_of([condition, json!({"has_vector": vector})]))?;
        if all > 0 && with_vector == all && best.is_none_or(|(most, _)| all > most) {
            best = Some((all, slot));
        }
    }
    Ok(best.map(|(_, slot)| slot))
}

/// Gives a space the natives that an earlier space left in its vector, and what the application has made
/// since. Adapted vectors go: they belonged to a plan that nobody knows.
fn take_natives(handle: &Handle, space: &SpaceSlot) -> Result<()> {
    let not_native = any_of([is(&space.path("p"), "adapted"), is(&space.path("p"), "pending")]);
    let is_none = all_of([is(&space.path("p"), "none")]);
    handle.change_each(&not_native, |page| vectors::set_mark_operation(space, &no_vector(), &page))?;
    handle.change_each(
        &is_none,
        |page| json!({"delete_vectors": {"filter": page, "vector": [space.vector]}}),
    )?;
    if space.is_witnessed {
        let unsaid = all_of([space.came_with_point(), is_empty(&space.path("p"))]);
        handle.change_each(&unsaid, |page| {
            vectors::set_mark_operation(space, &json!({"p": Provenance::Native.name()}), &page)
        })?;
    }
    Ok(())
}

/// Drops a space, and completes an earlier drop of it that died.
pub(crate) fn drop_space(handle: &Handle, space: &str) -> Result<()> {
    let is_it = |slot: &SpaceSlot| slot.record.space.name == space;
    let dropped = meta::change(handle, |meta| {
        if meta.serving.as_deref() == Some(space) {
            return Err(check::serving_space_stays(space));
        }
        meta.dropped.extend(meta.spaces.extract_if(.., |slot| is_it(slot)));
        Ok(meta.dropped.iter().filter(|slot| is_it(slot)).cloned().collect::<Vec<_>>())
    })?;
    if dropped.is_empty() {
        return Ok(());
    }
    for dropped in &dropped {
        // The application's own vectors are its own to drop.
        vectors::take_out(handle, dropped)?;
        // Filters by the fields that have an index, since the server may want one. Every vector has a field
        // that says who made it, and every other item one that says why it has none.
        let tag = format!("{TAG}.{}", dropped.field());
        let conditions = ["p", "f"].map(|field| none_of([is_empty(&dropped.path(field))]));
        handle.change_each(
            &any_of(conditions.to_vec()),
            |page| json!({"delete_payload": {"keys": [tag], "filter": page}}),
        )?;
        for field in handle.facts()?.indexes {
            if field.starts_with(&format!("{TAG}.{}.", dropped.field())) {
                handle.drop_index(&field)?;
            }
        }
        leases::forget_space(handle, dropped)?;
    }
    meta::change(handle, |meta| {
        meta.dropped.retain(|other| !dropped.contains(other));
        Ok(())
    })
}

pub(crate) fn switch_serving(handle: &Handle, from: &str, to: &str) -> Result<()> {
    meta::change(handle, |meta| {
        meta.find(to, &handle.name())?;
        let serving = meta.serving.clone().unwrap_or_default();
        if serving == to {
            return Ok(());
        }
        if serving != from {
            return Err(check::another_serves(from, to, &serving));
        }
        meta.serving = Some(to.to_owned());
        Ok(())
    })
}

pub(crate) fn advance(
    handle: &Handle,
    space: &str,
    from: Epoch,
    document: &str,
    expected: Option<u64>,
    text: &str,
) -> Result<u64> {
    meta::change(handle, |meta| {
        let name = handle.name();
        let now = meta.find(space, &name)?.record.epoch;
        check::same_epoch(space, from, now)?;
        let version = meta.set_document(document, expected, text)?;
        meta.find_mut(space, &name)?.record.epoch = from.next();
        Ok(version)
    })
}

pub(crate) fn set_document(handle: &Handle, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
    meta::change(handle, |meta| meta.set_document(name, expected, text))
}

pub(crate) fn serving_and_document(
    handle: &Handle,
    document: &str,
) -> Result<(Option<String>, Option<Document>)> {
    let mut meta = meta::read(handle)?;
    Ok((meta.serving, meta.documents.remove(document)))
}

pub(crate) fn records(handle: &Handle) -> Result<Vec<SpaceRecord>> {
    Ok(meta::read(handle)?.spaces.into_iter().map(|space| space.record).collect())
}
