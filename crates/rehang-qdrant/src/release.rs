//! The end of a gallery: everything of ours is taken out of the server.

use rehang::{Error, Result};
use serde_json::{Value, json};

use crate::filters::{is_empty, none_of};
use crate::handle::Handle;
use crate::payload::{REVISION, TAG};
use crate::slot::SpaceSlot;
use crate::{collection, meta, vectors};

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
    let tagged = json!({"should": [none_of([is_empty(TAG)]), none_of([is_empty(REVISION)])]});
    let untag = [json!({"delete_payload": {"keys": [REVISION, TAG], "filter": tagged}})];
    handle.client.change(handle.collection(), &untag)?;
    let there = collection::look(&handle.client, handle.collection())?.unwrap_or_default();
    for field in there["payload_schema"].as_object().into_iter().flat_map(|schema| schema.keys()) {
        if *field == REVISION || field.starts_with("rehang_tag.") {
            let path = format!("/collections/{}/index/{field}?wait=true", handle.collection());
            handle.client.ask("DELETE", &path, &Value::Null)?;
        }
    }
    handle.client.ask("DELETE", &format!("/collections/{}", handle.ours), &Value::Null)?;
    // What a call that was under way has tagged since.
    handle.client.change(handle.collection(), &untag)
}
