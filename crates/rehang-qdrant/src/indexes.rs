//! Indexes of payload fields, which filters and the order of the queue need.

use std::sync::atomic::Ordering;

use rehang_core::Result;

use crate::collection::{Facts, Limits};
use crate::handle::Handle;
use crate::meta;
use crate::payload::{FIELDS, FIELDS_OF_A_SPACE, SOURCE_REVISION};
use crate::slot::SpaceSlot;

/// Fields that filters ask for only of a few points at a time. They get an index only where the server
/// wants one of every field.
const FIELDS_OF_FEW: [(&str, &str); 6] = [
    ("k", "keyword"),
    ("u", "integer"),
    ("l", "integer"),
    ("e", "integer"),
    ("w", "keyword"),
    ("a", "keyword"),
];

/// Number of fields of a space that have an index.
pub(crate) fn fields_of_a_space(limits: &Limits) -> usize {
    FIELDS_OF_A_SPACE.len() + if limits.wants_indexes { FIELDS_OF_FEW.len() } else { 0 }
}

/// Lists the fields of a space that have an index, with its kind.
pub(crate) fn indexed_fields(space: &SpaceSlot, limits: &Limits) -> Vec<(String, &'static str)> {
    let few = if limits.wants_indexes { &FIELDS_OF_FEW[..] } else { &[] };
    FIELDS_OF_A_SPACE.iter().chain(few).map(|(field, kind)| (space.path(field), *kind)).collect()
}

/// Makes a gallery's indexes in parts of the collection that lack them: the server may lose an index that
/// came about while it rearranged points.
pub(crate) fn make_again(handle: &Handle) -> Result<()> {
    of_ours(handle, |field, kind| handle.client.index(handle.collection(), field, kind))
}

/// Makes the indexes that a gallery lacks on the application's collection, except the two of [`FIELDS`]. A
/// collection may have got a strict mode since the gallery was made; then further fields need one.
pub(crate) fn make_missing(handle: &Handle, facts: &Facts) -> Result<()> {
    if facts.limits.wants_indexes {
        handle.client.index(handle.collection(), SOURCE_REVISION, "integer")?;
        // The kind does not matter: with any kind the server notes which points lack the field. An index of
        // truth values holds no text.
        for source in handle.options.source.iter().filter(|source| !facts.indexes.contains(source)) {
            meta::change(handle, |meta| {
                if !meta.indexed.contains(source) {
                    meta.indexed.push(source.clone());
                }
                Ok(())
            })?;
            handle.client.index(handle.collection(), source, "bool")?;
        }
    }
    for space in &meta::read_begun(handle)?.spaces {
        for (field, kind) in indexed_fields(space, &facts.limits) {
            if !facts.indexes.contains(&field) {
                handle.client.index(handle.collection(), &field, kind)?;
            }
        }
    }
    Ok(())
}

/// Makes missing indexes the first time that it is called: a process that made them [anew](index_anew)
/// may have died in between.
pub(crate) fn index_once(handle: &Handle) -> Result<()> {
    if handle.is_indexed.load(Ordering::Relaxed) {
        return Ok(());
    }
    let facts = handle.facts()?;
    for (field, kind) in
        FIELDS.into_iter().filter(|(field, _)| !facts.indexes.iter().any(|indexed| indexed == field))
    {
        handle.client.index(handle.collection(), field, kind)?;
    }
    make_missing(handle, &facts)?;
    handle.is_indexed.store(true, Ordering::Relaxed);
    Ok(())
}

/// Drops and makes again every index of the gallery on the application's collection.
pub(crate) fn index_anew(handle: &Handle) -> Result<()> {
    of_ours(handle, |field, kind| {
        handle.drop_index(field)?;
        handle.client.index(handle.collection(), field, kind)
    })
}

/// Calls `apply` with every field of the gallery on the application's collection that has an
/// index, and with its kind.
fn of_ours(handle: &Handle, mut apply: impl FnMut(&str, &str) -> Result<()>) -> Result<()> {
    let meta = meta::read_any(handle)?;
    let of_spaces = meta.spaces.iter().flat_map(|space| indexed_fields(space, &handle.limits));
    let of_gallery = FIELDS.into_iter().map(|(field, kind)| (field.to_owned(), kind));
    of_gallery.chain(of_spaces).try_for_each(|(field, kind)| apply(&field, kind))
}
