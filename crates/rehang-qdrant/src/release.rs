//! Release of a gallery: takes everything of the gallery's out of the server.

use rehang_core::{Error, Provenance, Remedy, Result};
use rehang_store::Released;
use serde_json::{Value, json};

use crate::filters::{all_of, any_of, is_empty, none_of};
use crate::handle::Handle;
use crate::items::{has_source, tag_all};
use crate::meta;
use crate::payload::{ADAPTED, NO_SOURCE, REVISION, TAG, WITNESS};
use crate::slot::SpaceSlot;
use crate::vectors;

pub(crate) fn release(handle: &Handle, with_adapted: bool) -> Result<Released> {
    let meta = meta::read_any(handle)?;
    if meta.is_listed {
        tag_all(handle)?;
    }
    // A release that has begun goes on as it was.
    let with_adapted = meta.with_adapted.unwrap_or(with_adapted);
    let stays = |space: &SpaceSlot| meta.serving.as_ref() == Some(&space.record.space.name);
    // The application's own space holds no vectors of the gallery's.
    let serving = meta.spaces.iter().find(|space| stays(space) && !space.is_applications);
    let adapted_now = serving
        .map(|space| expect_decided(handle, space, with_adapted, meta.is_leaving()))
        .transpose()?
        .unwrap_or_default();
    let meta = meta::leave(handle, with_adapted)?;
    if let Some(space) = serving {
        // Done while the tags still say which vectors are adapted. A call that goes on after a
        // death does it once more.
        if with_adapted {
            handle.change_each(
                &space.made_by(&[Provenance::Adapted]),
                |page| json!({"set_payload": {"payload": {ADAPTED: true}, "filter": page}}),
            )?;
        } else {
            handle.change_each(
                &space.made_by(&[Provenance::Adapted]),
                |page| json!({"delete_vectors": {"filter": page, "vector": [space.vector]}}),
            )?;
        }
    }
    for space in meta.spaces.iter().filter(|space| !stays(space)).chain(&meta.dropped) {
        vectors::take_out(handle, space)?;
    }
    let facts = handle.facts()?;
    if facts.has_witness || facts.has_sparse_witness {
        handle.client.ask("DELETE", &handle.vector_path(WITNESS), &Value::Null)?;
    }
    untag(handle)?;
    let adapted = if with_adapted { adapted_now } else { 0 };
    let released = serving.map(|space| left_there(handle, space, adapted)).transpose()?.unwrap_or_default();
    let indexes = handle.facts()?.indexes;
    let is_asked_for = |field: &str| [REVISION, NO_SOURCE].contains(&field);
    for field in indexes.iter().filter(|field| !is_asked_for(field)) {
        if field.starts_with("rehang_tag.") || meta.indexed.contains(field) {
            handle.drop_index(field)?;
        }
    }
    let empty = end_ours(handle)?;
    // Tags that a call under way has set since go too. These two indexes go last: the server may want an
    // index of every field of a filter.
    untag(handle)?;
    indexes.iter().filter(|field| is_asked_for(field)).try_for_each(|field| handle.drop_index(field))?;
    let adapted_in = (serving.is_some() && with_adapted).then(|| ADAPTED.to_owned());
    Ok(Released { adapted_in, empty, ..released })
}

/// Deletes the gallery's own collection. Where the key is for that collection alone, it deletes everything in
/// it and returns its name.
fn end_ours(handle: &Handle) -> Result<Option<String>> {
    match handle.client.ask("DELETE", &format!("/collections/{}", handle.ours), &Value::Null) {
        Err(error) if error.is_unauthorised() => {
            handle.client.change(&handle.ours, &[json!({"delete": {"filter": {}}})])?;
            Ok(Some(handle.ours.clone()))
        }
        deleted => deleted.map(|_| None),
    }
}

/// Builds a filter for items that have an adapted vector: with a source, or without.
fn adapted(space: &SpaceSlot, sourced: bool) -> Value {
    all_of([has_source(sourced), space.made_by(&[Provenance::Adapted])])
}

/// Counts the items of the serving space that have an adapted vector. Fails where items with a source have no
/// native vector and adapted ones are not to be taken along. An application that still writes by the old
/// model makes such items all the time, and nothing would follow it any more. A release that has begun goes
/// on, since nothing is known of the points that it has untagged.
fn expect_decided(handle: &Handle, space: &SpaceSlot, with_adapted: bool, is_decided: bool) -> Result<u64> {
    let count = |filter: Value| handle.client.count(handle.collection(), &filter);
    let (embeddable, bare) = (count(adapted(space, true))?, count(adapted(space, false))?);
    let found_by_nobody = count(all_of([has_source(true), space.lacking(), none_of([is_empty(REVISION)])]))?;
    if embeddable + found_by_nobody > 0 && !with_adapted && !is_decided {
        let what = format!("taking the gallery out of {}", handle.name());
        let mut why = Vec::new();
        if embeddable > 0 {
            why.push(format!(
                "{embeddable} items with a source have adapted vectors, and nothing would say so"
            ));
        }
        if found_by_nobody > 0 {
            why.push(format!(
                "{found_by_nobody} items with a source have no vector, and no search would find them"
            ));
        }
        let why = format!("in {:?}, {}", space.record.space.name, why.join("; "));
        return Err(Error::conflict(what, why).advise(Remedy::EmbedOrTakeAlong));
    }
    Ok(embeddable + bare)
}

/// Counts the vectors of the serving space when nothing else of the gallery is left. It does not use tags, so
/// it is right after a death, and for what the application has written meanwhile.
fn left_there(handle: &Handle, space: &SpaceSlot, adapted: u64) -> Result<Released> {
    let count = |filter: Value| handle.client.count(handle.collection(), &filter);
    let has_none = none_of([space.has_vector()]);
    let vectors = count(all_of([space.has_vector()]))?;
    let lacking = count(has_none.clone())?;
    let without_source = match &handle.options.source {
        Some(source) => count(all_of([has_none, is_empty(source)]))?,
        None => lacking,
    };
    let waiting = lacking.saturating_sub(without_source);
    Ok(Released { vectors, adapted, without_source, waiting, ..Released::default() })
}

/// Takes the two fields of the gallery out of every point that has one of them.
fn untag(handle: &Handle) -> Result<()> {
    let tagged = any_of([REVISION, NO_SOURCE].map(|field| none_of([is_empty(field)])).to_vec());
    handle.change_each(&tagged, |page| json!({"delete_payload": {"keys": [REVISION, TAG], "filter": page}}))
}
