//! State of a gallery beside its points: spaces with their epochs, which space serves, documents, and
//! the counter of revisions.
//!
//! Each state is one point in the gallery's own collection, changed by compare-and-set: an upsert on the
//! condition that the version is still the one that was read. The server's answer does not say whether the
//! condition held. So every state carries the names of the last writes, and a writer reads the state back and
//! looks for its own name.

use std::collections::BTreeMap;

use rehang_core::{Error, ErrorKind, Remedy, Result};
use rehang_store::{Document, Revision, check};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::Client;
use crate::collection::CollectionOptions;
use crate::filters::{all_of, has_id, is};
use crate::handle::Handle;
use crate::scroll::With;
use crate::slot::SpaceSlot;
use crate::tokens::random_bits;

/// Point of the state of a gallery.
const META: u64 = 1;
/// Point of the counter of revisions.
const COUNTER: u64 = 2;
/// Number of writes whose names a state carries. A writer that reads back after as many writes of others
/// does not find its own.
const NAMES: usize = 256;

/// The state of a gallery beside its items.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Options that the gallery was made with.
    pub(crate) options: Option<CollectionOptions>,
    /// The application's collection by its own name, never an alias. A gallery of an earlier
    /// version does not say it.
    #[serde(default)]
    pub(crate) collection: Option<String>,
    /// Whether every point that was there has become an item. No space is made before that, and
    /// a release sets it back.
    pub(crate) is_listed: bool,
    /// Number of slots given so far; no slot is given twice.
    pub(crate) slots: u32,
    pub(crate) spaces: Vec<SpaceSlot>,
    /// Payload fields of the application that got an index from us, for as long as the gallery lasts.
    #[serde(default)]
    pub(crate) indexed: Vec<String>,
    /// Spaces that were dropped, until nothing of them is left. No other space has their vectors meanwhile.
    #[serde(default)]
    pub(crate) dropped: Vec<SpaceSlot>,
    pub(crate) serving: Option<String>,
    /// Whether the release that has begun takes adapted vectors along.
    #[serde(default)]
    pub(crate) with_adapted: Option<bool>,
    pub(crate) documents: BTreeMap<String, Document>,
}

impl Meta {
    /// Whether a release of the gallery has begun: it has spaces and is not listed any more.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.is_listed && !self.spaces.is_empty()
    }

    /// Fails where a release has begun. Natives whose tags a release has taken away look like vectors of
    /// earlier content, and tagging would remove them.
    pub(crate) fn expect_to_stay(&self, handle: &Handle) -> Result<()> {
        if !self.is_leaving() {
            return Ok(());
        }
        let what = format!("the gallery in collection {}", handle.collection());
        Err(Error::wrong_phase(what, "being released").advise(Remedy::ReleaseAgain))
    }

    pub(crate) fn find(&self, space: &str, whose: &str) -> Result<&SpaceSlot> {
        let names = self.spaces.iter().map(|slot| slot.record.space.name.as_str());
        let slot = self.spaces.iter().find(|slot| slot.record.space.name == space);
        slot.ok_or_else(|| check::no_such_space(space, whose, names))
    }

    pub(crate) fn find_mut(&mut self, space: &str, whose: &str) -> Result<&mut SpaceSlot> {
        self.find(space, whose)?;
        let slot = self.spaces.iter_mut().find(|slot| slot.record.space.name == space);
        slot.ok_or_else(|| check::no_such_space(space, whose, std::iter::empty()))
    }

    /// Replaces a document whose version is the expected one.
    pub(crate) fn set_document(&mut self, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
        let current_version = self.documents.get(name).map(|(version, _)| *version);
        let version = check::next_version(name, expected, current_version)?;
        self.documents.insert(name.to_owned(), (version, text.to_owned()));
        Ok(version)
    }
}

/// Builds a filter for the points of the gallery's collection that keep states.
pub(crate) fn has_states() -> Value {
    has_id([META.into(), COUNTER.into()].into_iter())
}

/// State with the version and the names of writes that its compare-and-set needs.
#[derive(Debug, Clone, Default)]
struct Versioned<S> {
    version: Option<u64>,
    names: Vec<String>,
    state: S,
}

/// Reads the state of a gallery that is whole and stays. Refuses one that is still being made, or
/// whose release has begun.
pub(crate) fn read(handle: &Handle) -> Result<Meta> {
    handle.expect_same_collection()?;
    let meta = read_begun(handle)?;
    if !meta.is_listed {
        let what = format!("the gallery in collection {}", handle.collection());
        let state = "not whole yet: adopting it has not come to its end; adopt it again, which goes on, or release it";
        return Err(Error::wrong_phase(what, state).advise(Remedy::AdoptTable));
    }
    Ok(meta)
}

/// Reads the state of a gallery that is whole or still being made. Refuses one whose release has begun.
pub(crate) fn read_begun(handle: &Handle) -> Result<Meta> {
    let meta = read_any(handle)?;
    meta.expect_to_stay(handle)?;
    Ok(meta)
}

/// Reads one space of a gallery that is whole and stays.
pub(crate) fn space(handle: &Handle, space: &str) -> Result<SpaceSlot> {
    read(handle)?.find(space, &handle.name()).cloned()
}

/// Reads the state of a gallery without refusing any, unlike [`read`].
pub(crate) fn read_any(handle: &Handle) -> Result<Meta> {
    read_of(&handle.client, &handle.ours)
}

/// Reads the state of a gallery by the name of the collection that keeps it.
pub(crate) fn read_of(client: &Client, ours: &str) -> Result<Meta> {
    Ok(read_state::<Meta>((client, ours), META)?.state)
}

fn read_state<S: DeserializeOwned + Default>(
    (client, ours): (&Client, &str),
    point: u64,
) -> Result<Versioned<S>> {
    let with = With { payload: Value::Bool(true), vectors: Vec::new() };
    let is_gone = |error: Error| {
        let is_missing = matches!(error.kind(), ErrorKind::NotFound { .. });
        if is_missing { error.advise(Remedy::AdoptTable) } else { error }
    };
    let mut points = client.retrieve(ours, [point.into()].into_iter(), &with).map_err(is_gone)?;
    let Some(state_point) = points.pop() else { return Ok(Versioned::default()) };
    let wrong = |why: String| Error::corrupt(format!("the state in {ours} of {}", client.name()), why);
    let text = state_point.payload.get("state").and_then(Value::as_str).unwrap_or_default();
    let names = state_point.payload.get("names").cloned().unwrap_or_default();
    Ok(Versioned {
        version: state_point.payload.get("version").and_then(Value::as_u64),
        names: serde_json::from_value(names).map_err(|error| wrong(error.to_string()))?,
        state: serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?,
    })
}

/// Changes the state beside the items in one step. `change` may be called more than once, each time on the
/// state that is there by then. Refuses a gallery whose release has begun.
pub(crate) fn change<T>(handle: &Handle, mut change: impl FnMut(&mut Meta) -> Result<T>) -> Result<T> {
    change_state(handle, META, |meta: &mut Meta| {
        meta.expect_to_stay(handle)?;
        change(meta)
    })
}

/// Begins a release, or finds one begun, which then goes on as it was. From here on, calls on the gallery are
/// refused. Returns the state, which says what there is to take out.
pub(crate) fn leave(handle: &Handle, with_adapted: bool) -> Result<Meta> {
    change_state(handle, META, |meta: &mut Meta| {
        meta.is_listed = false;
        meta.with_adapted.get_or_insert(with_adapted);
        Ok(meta.clone())
    })
}

/// Gives `count` revisions that were never given before; their upper part rises with time. The lower 24 bits
/// are random. A collection that is restored from a snapshot has its counter of then, and gives the same
/// upper parts again. So what was on its way to one item must not fit another one now.
pub(crate) fn revisions(handle: &Handle, count: usize) -> Result<Vec<Revision>> {
    let first = reserve(handle, count)?;
    Ok((first..first + count as u64).map(|number| (number << 24) | (random_bits() & 0xff_ffff)).collect())
}

/// Reserves `count` numbers that were never given before, and returns the first one.
pub(crate) fn reserve(handle: &Handle, count: usize) -> Result<u64> {
    change_state(handle, COUNTER, |last: &mut u64| {
        let first = *last + 1;
        *last += count as u64;
        Ok(first)
    })
}

/// Makes the next revisions larger than one that is there.
pub(crate) fn give_after(handle: &Handle, revision: Revision) -> Result<()> {
    change_state(handle, COUNTER, |last: &mut u64| {
        *last = (*last).max(revision >> 24);
        Ok(())
    })
}

fn change_state<S, T>(handle: &Handle, point: u64, mut change: impl FnMut(&mut S) -> Result<T>) -> Result<T>
where
    S: Serialize + DeserializeOwned + Default,
{
    let mut pause = std::time::Duration::from_millis(1);
    loop {
        let Versioned { version, mut names, mut state } =
            read_state::<S>((&handle.client, &handle.ours), point)?;
        let done = change(&mut state)?;
        let name = handle.tokens.next();
        names.push(name.clone());
        names.drain(..names.len().saturating_sub(NAMES));
        let text = serde_json::to_string(&state).map_err(|error| Error::corrupt(handle.name(), error))?;
        let payload = json!({"version": version.unwrap_or(0) + 1, "names": names, "state": text});
        let points = json!([{"id": point, "vector": {}, "payload": payload}]);
        let body = match version {
            Some(version) => json!({
                "points": points, "update_mode": "update_only", "update_filter": all_of([is("version", version)]),
            }),
            None => {
                json!({"points": points, "update_mode": "insert_only", "update_filter": all_of([has_id([].into_iter())])})
            }
        };
        handle.client.ask("PUT", &format!("/collections/{}/points?wait=true", handle.ours), &body)?;
        if read_state::<S>((&handle.client, &handle.ours), point)?.names.contains(&name) {
            return Ok(done);
        }
        rehang_clock::wait(pause);
        pause = (pause * 2).min(std::time::Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_before_knows_whether_it_is_leaving() {
        let space = r#"{"slot":1,"vector":"m","is_applications":false,"record":{"written_as":"old","epoch":1,
            "space":{"model":"m","dimension":2,"distance":"l2","normalised":false}}}"#;
        for (is_listed, spaces, is_leaving) in
            [(false, "", false), (true, space, false), (false, space, true)]
        {
            let text = format!(
                r#"{{"options":null,"is_listed":{is_listed},"slots":1,"spaces":[{spaces}],"serving":null,"documents":{{}}}}"#
            );
            let meta: Meta = serde_json::from_str(&text).unwrap();
            assert_eq!((meta.is_leaving(), meta.dropped.len()), (is_leaving, 0));
        }
    }
}
