//! Parts of the gallery's files: each is a point of its own in the gallery's collection. The state would not
//! do, since every change writes it anew.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rehang_core::{Error, Result};
use rehang_store::ItemKey;
use serde_json::{Value, json};

use crate::handle::Handle;
use crate::ids::{hashed, id_of};
use crate::scroll::With;

fn point_of(name: &str) -> ItemKey {
    hashed(format!("file {name}").as_bytes())
}

pub(crate) fn chunk(handle: &Handle, name: &str) -> Result<Option<Vec<u8>>> {
    let with = With { payload: Value::Bool(true), vectors: Vec::new() };
    let points = handle.client.retrieve(&handle.ours, [point_of(name)].into_iter(), &with)?;
    let Some(point) = points.into_iter().next() else { return Ok(None) };
    let text = point.payload.get("chunk").and_then(Value::as_str).unwrap_or_default();
    BASE64_STANDARD
        .decode(text)
        .map(Some)
        .map_err(|error| Error::corrupt(format!("{name} in {}", handle.name()), error))
}

pub(crate) fn set_chunk(handle: &Handle, name: &str, bytes: Option<&[u8]>) -> Result<()> {
    let id = id_of(point_of(name));
    let operation = match bytes {
        Some(bytes) => {
            let payload = json!({"file": name, "chunk": BASE64_STANDARD.encode(bytes)});
            json!({"upsert": {"points": [{"id": id, "vector": {}, "payload": payload}]}})
        }
        None => json!({"delete": {"points": [id]}}),
    };
    handle.client.change(&handle.ours, &[operation])
}
