//! Leases as they lie on the server: points of the gallery's own collection, one for each item and space.
//!
//! A lease belongs to one source of its item. An item that the application changes or deletes is not held any
//! more, also where the application wrote past the gallery.

use std::collections::BTreeMap;

use rehang_core::{Error, Result};
use rehang_store::{ItemKey, Revision};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::filters::{all_of, has_id, is, is_empty};
use crate::handle::Handle;
use crate::ids::{hashed, id_of};
use crate::scroll::With;
use crate::slot::SpaceSlot;

/// Lease of a worker on one item: who re-embeds it, and until when.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) slot: u32,
    /// The item's key, as text: it may have 128 bits.
    pub(crate) item: String,
    /// The revision that the source came with.
    pub(crate) revision: Revision,
    pub(crate) worker: String,
    pub(crate) until: u64,
    /// Leases of the item in a row, before this one, that ran out.
    pub(crate) lost: u32,
    /// Name of the claim that took the lease.
    pub(crate) name: String,
}

/// Returns the key of the point that keeps the lease on an item in a space.
pub(crate) fn lease_of(space: &SpaceSlot, key: ItemKey) -> ItemKey {
    hashed(format!("{} {key}", space.slot).as_bytes())
}

/// Reads the leases of a space that fit their items as they are now, and removes the others.
pub(crate) fn leases(handle: &Handle, space: &SpaceSlot) -> Result<BTreeMap<ItemKey, Lease>> {
    let with = With { payload: Value::Bool(true), vectors: Vec::new() };
    let points =
        handle.client.scroll(&handle.ours, &all_of([is("slot", space.slot)]), None, usize::MAX, &with)?;
    let mut leases = BTreeMap::new();
    for point in points {
        let lease: Lease = serde_json::from_value(Value::Object(point.payload))
            .map_err(|error| Error::corrupt(format!("a lease of {}", handle.name()), error))?;
        let key = lease.item.parse().map(ItemKey::new);
        leases.insert(key.map_err(|error| Error::corrupt("a lease's item", error))?, lease);
    }
    let waiting = all_of([has_id(leases.keys().copied()), is_empty(&space.path("f")), space.waiting()]);
    let items = handle.client.scroll(handle.collection(), &waiting, None, usize::MAX, &handle.tag([]))?;
    let items: BTreeMap<ItemKey, Option<Revision>> =
        items.into_iter().map(|point| (point.key, point.source_revision())).collect();
    let is_of_now = |key: &ItemKey, lease: &Lease| items.get(key) == Some(&Some(lease.revision));
    let ended: Vec<Value> = leases
        .iter()
        .filter(|(key, lease)| !is_of_now(key, lease))
        .map(|(key, lease)| {
            let this = [has_id([lease_of(space, *key)].into_iter()), is("name", lease.name.as_str())];
            json!({"delete": {"filter": all_of(this)}})
        })
        .collect();
    handle.client.change(&handle.ours, &ended)?;
    leases.retain(|key, lease| is_of_now(key, lease));
    Ok(leases)
}

/// Ends the leases of items.
pub(crate) fn end_leases(handle: &Handle, space: &SpaceSlot, keys: &[ItemKey]) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let ids: Vec<Value> = keys.iter().map(|key| id_of(lease_of(space, *key))).collect();
    handle.client.change(&handle.ours, &[json!({"delete": {"points": ids}})])
}

/// Removes every lease of a space that is dropped.
pub(crate) fn forget_space(handle: &Handle, space: &SpaceSlot) -> Result<()> {
    handle.client.change(&handle.ours, &[json!({"delete": {"filter": all_of([is("slot", space.slot)])}})])
}
