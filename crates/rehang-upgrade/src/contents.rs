//! Contents of a gallery, and changes of single items and spaces by hand.

use rehang_core::{Error, Remedy, Result, Space};
use rehang_store::{Counts, Item, ItemKey, ItemWrite, NewVector, Revision, Store, expect_space};
use serde::Serialize;
use serde_json::Value;

use crate::learn::fit;
use crate::places::location::Location;
use crate::places::transfer::expect_id;
use crate::record::{Phase, Recorded};
use crate::serve::gallery::Gallery;

/// An item as a person writes it; a field that is `None` stays as it was.
#[derive(Debug, Clone, Default)]
pub struct Put {
    /// Id of the item.
    pub id: String,
    /// Source of the item, from which it can be embedded again.
    pub source: Option<String>,
    /// Class, tag or group of the item.
    pub label: Option<String>,
    /// Anything that is kept beside the item.
    pub payload: Option<Value>,
    /// Vectors of the item, by space. Every put is a change of the content: vectors that are not given belong
    /// to the content before and are removed, but for native ones where the source stays.
    pub vectors: Vec<(String, Vec<f32>)>,
}

/// Result of [`put`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PutItem {
    /// Id of the item.
    pub id: String,
    /// Revision of the item after the put.
    pub revision: Revision,
    /// Spaces in which the item had a vector of the content before, and has none now: no
    /// search finds it there.
    pub removed_from: Vec<String>,
}

/// Puts one item, new or changed, as an application would: through [`Gallery::put`], which adapts it
/// for a live upgrade.
///
/// # Errors
///
/// An invalid option for an id that is empty or holds control characters; not found for a space that is not
/// there; what [`Gallery::put`] says.
pub fn put(store: &dyn Store, gallery: &Gallery, item: &Put) -> Result<PutItem> {
    expect_id(&item.id)?;
    let before = store.get(&[&item.id])?.into_iter().next().flatten();
    let earlier_field = |of: fn(&Item) -> Option<String>| before.as_ref().and_then(of);
    let mut vectors = Vec::new();
    for (space, vector) in &item.vectors {
        let provenance = expect_space(store, space)?.written_as;
        let (space, vector) = (space.clone(), vector.clone());
        vectors.push(NewVector::from_model(space, vector, provenance));
    }
    let payload = || before.as_ref().map_or(Value::Null, |item| item.payload.clone());
    let write = ItemWrite {
        id: item.id.clone(),
        source: item.source.clone().or_else(|| earlier_field(|item| item.source.clone())),
        label: item.label.clone().or_else(|| earlier_field(|item| item.label.clone())),
        payload: item.payload.clone().unwrap_or_else(payload),
        vectors,
    };
    // An item keeps its key for as long as it lives.
    let spaces = || before.as_ref().map_or_else(|| Ok(Vec::new()), |item| spaces_with(store, item.key));
    let spaces_before = spaces()?;
    let revision = gallery.put(&[write])?.first().copied().unwrap_or_default();
    let spaces_now = spaces()?;
    let removed_from = spaces_before.into_iter().filter(|space| !spaces_now.contains(space)).collect();
    Ok(PutItem { id: item.id.clone(), revision, removed_from })
}

/// Lists the spaces in which an item has a vector.
fn spaces_with(store: &dyn Store, key: ItemKey) -> Result<Vec<String>> {
    let mut spaces = Vec::new();
    for space in store.spaces()? {
        if store.provenances(&space.space.name, &[key])?.iter().any(Option::is_some) {
            spaces.push(space.space.name);
        }
    }
    Ok(spaces)
}

/// Result of [`delete`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Number of items that were there.
    pub deleted: usize,
    /// Ids of which there was no item.
    pub missing: Vec<String>,
}

/// Deletes items.
///
/// # Errors
///
/// Those of the store.
pub fn delete(store: &dyn Store, ids: &[&str]) -> Result<Deleted> {
    let items = store.get(ids)?;
    let missing = ids.iter().zip(items).filter(|(_, item)| item.is_none()).map(|(id, _)| (*id).to_owned());
    let missing = missing.collect();
    Ok(Deleted { deleted: store.delete(ids)?, missing })
}

/// Result of [`drop_space`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DroppedSpace {
    /// Name of the space.
    pub dropped: String,
    /// Number of vectors that the space had.
    pub vectors: u64,
    /// The space that was dropped.
    #[serde(skip)]
    pub space: Space,
}

/// Drops a space with all its vectors: one that an upgrade left behind, or one that only has pairs so far.
/// There is no way back.
///
/// # Errors
///
/// Not found where there is no such space; a conflict where it serves, takes part in an upgrade that has
/// begun to fill it and is not finished, or is at work.
pub fn drop_space(location: &Location, name: &str) -> Result<DroppedSpace> {
    let store = &*location.open()?;
    let space = expect_space(store, name)?.space;
    // No upgrade is started into the space between the look at the record and the drop.
    let _lock = location.lock()?;
    if let Some(Recorded { record, .. }) = Recorded::read(store)?
        && record.phase != Phase::Finished
        // Pairs that nothing was made of yet may be given up.
        && !(record.phase == Phase::Sampling && record.new.name == name)
        && [record.old.name.as_str(), record.new.name.as_str()].contains(&name)
    {
        return Err(Error::conflict(
            format!(
                "space {name:?} takes part in the upgrade from {:?} to {:?}",
                record.old.name, record.new.name
            ),
            format!(
                "it is {}; finish it, or roll it back and begin another one, then drop what is left",
                record.phase.name()
            ),
        ));
    }
    if let Some(worker) = store.at_work(name)?.first() {
        let detail = format!("{} is embedding {} of its items", worker.worker, worker.items);
        return Err(Error::conflict(format!("space {name:?} is being filled"), detail)
            .advise(Remedy::AwaitOtherProcess));
    }
    let counts = store.counts(name)?;
    // An adapter that was fitted on these vectors does not belong to a later space of this name.
    fit::forget(store, name)?;
    store.drop_space(name)?;
    Ok(DroppedSpace { dropped: name.to_owned(), vectors: counts.items - counts.lacking, space })
}

/// Result of [`compact`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Compacted {
    /// Bytes of the gallery's file before.
    pub bytes_before: u64,
    /// Bytes of the gallery's file now.
    pub bytes: u64,
}

/// Gives the disk the room back that a dropped space leaves in the gallery's file.
///
/// # Errors
///
/// Unavailable where other processes keep the gallery busy; a conflict where a process fills or finishes an
/// upgrade; those of the store.
pub fn compact(location: &Location) -> Result<Compacted> {
    let _lock = location.lock()?;
    let (bytes_before, bytes) = location.open()?.compact()?;
    Ok(Compacted { bytes_before, bytes })
}

/// Contents of a gallery: its spaces, and the one that serves.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Contents {
    /// Name of the space that serves searches.
    pub serving: Option<String>,
    /// Every space, in the order of creation.
    pub spaces: Vec<SpaceContents>,
}

/// Contents of one space of a gallery.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SpaceContents {
    /// The space.
    pub space: Space,
    /// Whether the space serves searches.
    #[serde(rename = "serves")]
    pub serving: bool,
    /// Number of items, and of vectors of each provenance.
    pub counts: Counts,
}

/// Reads the spaces of a gallery and counts what they hold. Changes nothing.
///
/// # Errors
///
/// Those of the store.
pub fn contents(store: &dyn Store) -> Result<Contents> {
    let serving = store.serving()?;
    let space_contents = |space: Space| -> Result<SpaceContents> {
        let is_serving = serving.as_deref() == Some(space.name.as_str());
        Ok(SpaceContents { serving: is_serving, counts: store.counts(&space.name)?, space })
    };
    let spaces =
        store.spaces()?.into_iter().map(|record| space_contents(record.space)).collect::<Result<_>>()?;
    Ok(Contents { serving, spaces })
}
