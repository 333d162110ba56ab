//! The end of a gallery: everything of ours is taken out of the server.

use rehang::{Error, Provenance, Remedy, Result};
use rehang_store::Released;
use serde_json::{Value, json};

use crate::filters::{all_of, any_of, is_empty, none_of};
use crate::handle::Handle;
use crate::items::{has_source, tag_all};
use crate::meta;
use crate::payload::{ADAPTED, NO_SOURCE, REVISION, TAG, WITNESS};
use crate::slot::SpaceSlot;

pub(crate) fn release(handle: &Handle, with_adapted: bool) -> Result<Released> {
    let meta = meta::read_any(handle)?;
    if meta.is_listed {
        tag_all(handle)?;
    }
    let stays = |space: &SpaceSlot| meta.serving.as_ref() == Some(&space.record.space.name);
    // One that is the application's own has no vectors of ours.
    let serving = meta.spaces.iter().find(|space| stays(space) && !space.is_applications);
    let released = serving
        .map(|space| standing(handle, space, with_adapted, meta.is_leaving()))
        .transpose()?
        .unwrap_or_default();
    let meta = meta::leave(handle)?;
    if let Some(space) = serving {
        // While the tags say which they are. A call that goes on after a death does it once more.
        if with_adapted {
            handle.change_each(
                &space.made_by(&[Provenance::Adapted]),
                |page| json!({"set_payload": {"payload": {ADAPTED: true}, "filter": page}}),
            )?;
        } else {
            handle.change_each(
                &adapted(space, false),
                |page| json!({"delete_vectors": {"filter": page, "vector": [space.vector]}}),
            )?;
        }
    }
    for space in meta.spaces.iter().filter(|space| !stays(space)).chain(&meta.dropped) {
        if !space.is_applications {
            handle.client.ask("DELETE", &handle.vector_path(&space.vector), &Value::Null)?;
        }
    }
    if handle.facts()?.has_witness {
        handle.client.ask("DELETE", &handle.vector_path(WITNESS), &Value::Null)?;
    }
    untag(handle)?;
    let indexes = handle.facts()?.indexes;
    let is_asked_for = |field: &str| [REVISION, NO_SOURCE].contains(&field);
    for field in indexes.iter().filter(|field| !is_asked_for(field)) {
        if field.starts_with("rehang_tag.") || meta.indexed.contains(field) {
            handle.drop_index(field)?;
        }
    }
    let empty = end_ours(handle)?;
    // What a call that was under way has tagged since. These two go last: the server may want an index of every field of a filter.
    untag(handle)?;
    indexes.iter().filter(|field| is_asked_for(field)).try_for_each(|field| handle.drop_index(field))?;
    Ok(Released { empty, ..released })
}

/// Deletes the collection of ours; where the key is for that collection alone, everything in it, and gives its name.
fn end_ours(handle: &Handle) -> Result<Option<String>> {
    match handle.client.ask("DELETE", &format!("/collections/{}", handle.ours), &Value::Null) {
        Err(error) if error.is_unauthorised() => {
            handle.client.change(&handle.ours, &[json!({"delete": {"filter": {}}})])?;
            Ok(Some(handle.ours.clone()))
        }
        deleted => deleted.map(|_| None),
    }
}

/// A filter for items with an adapted vector, with a source or without.
fn adapted(space: &SpaceSlot, sourced: bool) -> Value {
    all_of([has_source(sourced), space.made_by(&[Provenance::Adapted])])
}

/// What becomes of the vectors of the space that serves. Refused where items with a source have none that is native, and adapted ones are not to be
/// taken along: an application that still writes by the old model makes such items all the time, and nothing would follow it any more. A release that has
/// begun goes on: of what it has untagged nothing is known.
fn standing(handle: &Handle, space: &SpaceSlot, with_adapted: bool, is_decided: bool) -> Result<Released> {
    let count = |filter: Value| handle.client.count(handle.collection(), &filter);
    let (embeddable, bare) = (count(adapted(space, true))?, count(adapted(space, false))?);
    let found_by_nobody = count(all_of([has_source(true), space.lacking(), none_of([is_empty(REVISION)])]))?;
    if embeddable + found_by_nobody > 0 && !with_adapted && !is_decided {
        let what = format!("taking the gallery out of {}", handle.name());
        let why = format!(
            "{embeddable} items with a source have adapted vectors in {:?}, and nothing would say so; {found_by_nobody} have none, and no search would \
             find them",
            space.record.space.name
        );
        return Err(Error::conflict(what, why).advise(Remedy::EmbedOrTakeAlong));
    }
    let items = count(none_of([is_empty(REVISION)]))?;
    let lacking = count(json!({"must_not": [is_empty(REVISION), space.present()]}))?;
    let without_source = count(all_of([has_source(false), space.waiting()]))?;
    let without_source = if with_adapted { without_source.saturating_sub(bare) } else { without_source };
    let taken = if with_adapted { embeddable + bare } else { 0 };
    let vectors = items.saturating_sub(lacking + embeddable + bare) + taken;
    Ok(Released {
        vectors,
        adapted: taken,
        without_source,
        waiting: items.saturating_sub(vectors + without_source),
        adapted_in: with_adapted.then(|| ADAPTED.to_owned()),
        empty: None,
    })
}

/// Takes our two fields out of every point that has one of them.
fn untag(handle: &Handle) -> Result<()> {
    let tagged = any_of([REVISION, NO_SOURCE].map(|field| none_of([is_empty(field)])).to_vec());
    handle.change_each(&tagged, |page| json!({"delete_payload": {"keys": [REVISION, TAG], "filter": page}}))
}
