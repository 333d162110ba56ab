//! The end of a gallery: everything of ours is taken out of the server.

use rehang::{Error, Result};
use serde_json::{Value, json};

use crate::filters::{any_of, is_empty, none_of};
use crate::handle::Handle;
use crate::payload::{NO_SOURCE, REVISION, TAG};
use crate::slot::SpaceSlot;
use crate::{meta, vectors};

pub(crate) fn release(handle: &Handle) -> Result<()> {
    let meta = meta::read_any(handle)?;
    if let Some(serving) = meta.serving.as_ref().filter(|_| !meta.is_leaving()) {
        let counts = vectors::counts(handle, serving)?;
        if counts.adapted > 0 {
            let what = format!("taking the gallery out of {}", handle.name());
            let why = format!(
                "{} vectors of {serving:?} are adapted, and nothing would say so; embed them first, or switch back",
                counts.adapted
            );
            return Err(Error::conflict(what, why));
        }
    }
    let meta = meta::leave(handle)?;
    let stays = |space: &SpaceSlot| meta.serving.as_ref() == Some(&space.record.space.name);
    for space in meta.spaces.iter().filter(|space| !stays(space)).chain(&meta.dropped) {
        if !space.is_applications {
            handle.client.ask("DELETE", &handle.vector_path(&space.vector), &Value::Null)?;
        }
    }
    let untag = [untag()];
    handle.client.change(handle.collection(), &untag)?;
    let indexes = handle.facts()?.indexes;
    let is_asked_for = |field: &str| [REVISION, NO_SOURCE].contains(&field);
    for field in indexes.iter().filter(|field| !is_asked_for(field)) {
        if field.starts_with("rehang_tag.") || meta.indexed.contains(field) {
            handle.drop_index(field)?;
        }
    }
    handle.client.ask("DELETE", &format!("/collections/{}", handle.ours), &Value::Null)?;
    // What a call that was under way has tagged since. These two go last: the server may want an index of every field of a filter.
    handle.client.change(handle.collection(), &untag)?;
    indexes.iter().filter(|field| is_asked_for(field)).try_for_each(|field| handle.drop_index(field))
}

/// Takes our two fields out of every point that has one of them.
pub(crate) fn untag() -> Value {
    let tagged = [REVISION, NO_SOURCE].map(|field| none_of([is_empty(field)]));
    json!({"delete_payload": {"keys": [REVISION, TAG], "filter": any_of(tagged.to_vec())}})
}
