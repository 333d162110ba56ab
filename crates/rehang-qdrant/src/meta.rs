//! What is kept beside the points: spaces with their epochs, what serves, documents, and the counter of revisions.
//!
//! Each is one point in a collection of ours, changed by compare-and-set: an upsert on the condition that the version is still the
//! one that was read. The answer does not say whether the condition held, so every state carries the names of the last writes, and
//! it is read back.

use std::collections::BTreeMap;

use rehang::{Distance, Error, Provenance, Result};
use rehang_store::{Document, SpaceRecord, check, clock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::With;
use crate::points::{all_of, any_of, has_id, is, is_empty, none_of};
use crate::store::Inner;

/// The points of these states.
const META: u64 = 1;
const COUNTER: u64 = 2;
/// Writes whose names a state carries: a writer that reads back after as many others does not find its own.
const NAMES: usize = 256;

/// The state of a gallery beside its items.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// How the gallery was made.
    pub(crate) options: Option<crate::CollectionOptions>,
    /// Whether every point that was there has become an item. No space is made before, and a release takes it back.
    pub(crate) is_listed: bool,
    /// Slots that were given so far; none is given twice.
    pub(crate) slots: u32,
    pub(crate) spaces: Vec<SpaceSlot>,
    /// Spaces that were dropped, until nothing of them is left; their vectors are those of no other space.
    #[serde(default)]
    pub(crate) dropped: Vec<SpaceSlot>,
    pub(crate) serving: Option<String>,
    pub(crate) documents: BTreeMap<String, Document>,
}

/// A space and where it lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpaceSlot {
    pub(crate) record: SpaceRecord,
    /// Names its part of the tag: the space's own name may be of any letters, and may be another space's later.
    pub(crate) slot: u32,
    /// Its named vector.
    pub(crate) vector: String,
    /// Whether that is the application's own.
    pub(crate) is_applications: bool,
}

impl SpaceSlot {
    /// The length of a vector, where it has to be kept beside it: the server scales vectors of the cosine distance to length 1.
    pub(crate) fn length_of(&self, vector: &[f32]) -> Option<f64> {
        let space = &self.record.space;
        let is_scaled = space.distance == Distance::Cosine && !space.normalised && !self.is_applications;
        is_scaled.then(|| vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt())
    }
}

impl Meta {
    /// Whether a release of the gallery has begun: then there are spaces, and it is not listed any more.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.is_listed && !self.spaces.is_empty()
    }

    /// Natives whose tags a release has taken away look like those of content before, which a sweep would remove.
    fn expect_to_stay(&self, inner: &Inner) -> Result<()> {
        if !self.is_leaving() {
            return Ok(());
        }
        let what = format!("the gallery in collection {}", inner.collection());
        Err(Error::wrong_phase(what, "being released; release it once more, which goes on where that ended"))
    }

    pub(crate) fn find(&self, space: &str, whose: &str) -> Result<&SpaceSlot> {
        let names = self.spaces.iter().map(|there| there.record.space.name.as_str());
        let found = self.spaces.iter().find(|there| there.record.space.name == space);
        found.ok_or_else(|| check::no_such_space(space, whose, names))
    }

    pub(crate) fn find_mut(&mut self, space: &str, whose: &str) -> Result<&mut SpaceSlot> {
        self.find(space, whose)?;
        let found = self.spaces.iter_mut().find(|there| there.record.space.name == space);
        found.ok_or_else(|| check::no_such_space(space, whose, std::iter::empty()))
    }

    /// Replaces a document whose version is the expected one.
    pub(crate) fn set_document(&mut self, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
        let there = self.documents.get(name).map(|(version, _)| *version);
        let version = check::next_version(name, expected, there)?;
        self.documents.insert(name.to_owned(), (version, text.to_owned()));
        Ok(version)
    }
}

impl SpaceSlot {
    /// Its part of the tag.
    pub(crate) fn field(&self) -> String {
        format!("s{}", self.slot)
    }

    /// The path of a field in its part of the tag.
    pub(crate) fn path(&self, field: &str) -> String {
        format!("rehang_tag.s{}.{field}", self.slot)
    }

    pub(crate) fn has_vector(&self) -> Value {
        json!({"has_vector": self.vector})
    }

    /// A filter for items whose vector was made by one of these.
    pub(crate) fn made_by(&self, provenances: &[Provenance]) -> Value {
        let names: Vec<&str> = provenances.iter().map(|provenance| provenance.name()).collect();
        let mut said = vec![json!({"key": self.path("p"), "match": {"any": names}})];
        if self.is_applications && provenances.contains(&self.record.written_as) {
            said.push(is_empty(&self.path("p")));
        }
        all_of([self.has_vector(), any_of(said)])
    }

    /// A filter for items that have a vector.
    pub(crate) fn present(&self) -> Value {
        self.made_by(&[Provenance::Old, Provenance::Adapted, Provenance::Native])
    }

    /// A filter for items that have none.
    pub(crate) fn lacking(&self) -> Value {
        none_of([self.present()])
    }

    /// A filter for items that wait for a native vector, or cannot be given one: adapted or without a vector.
    pub(crate) fn waiting(&self) -> Value {
        none_of([self.made_by(&[Provenance::Old, Provenance::Native])])
    }
}

/// A state with what its compare-and-set needs.
#[derive(Debug, Clone, Default)]
struct Versioned<S> {
    version: Option<u64>,
    names: Vec<String>,
    state: S,
}

/// The state of a gallery that stays: one whose release has begun is refused.
pub(crate) fn read(inner: &Inner) -> Result<Meta> {
    let meta = read_any(inner)?;
    meta.expect_to_stay(inner)?;
    Ok(meta)
}

/// One space of it.
pub(crate) fn space(inner: &Inner, space: &str) -> Result<SpaceSlot> {
    read(inner)?.find(space, &inner.name()).cloned()
}

/// The same as [`read`] of any gallery.
pub(crate) fn read_any(inner: &Inner) -> Result<Meta> {
    Ok(read_state::<Meta>(inner, META)?.state)
}

fn read_state<S: DeserializeOwned + Default>(inner: &Inner, point: u64) -> Result<Versioned<S>> {
    let with = With { payload: Value::Bool(true), vectors: Vec::new() };
    let mut found = inner.client.retrieve(&inner.ours, [point.into()].into_iter(), &with)?;
    let Some(found) = found.pop() else { return Ok(Versioned::default()) };
    let wrong = |why: String| Error::corrupt(format!("the state of {}", inner.name()), why);
    let text = found.payload.get("state").and_then(Value::as_str).unwrap_or_default();
    let names = found.payload.get("names").cloned().unwrap_or_default();
    Ok(Versioned {
        version: found.payload.get("version").and_then(Value::as_u64),
        names: serde_json::from_value(names).map_err(|error| wrong(error.to_string()))?,
        state: serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?,
    })
}

/// Changes the state beside the items in one step. `change` may be called more than once, on what is there by then. A gallery whose
/// release has begun is refused.
pub(crate) fn change<T>(inner: &Inner, mut change: impl FnMut(&mut Meta) -> Result<T>) -> Result<T> {
    change_state(inner, META, |meta: &mut Meta| {
        meta.expect_to_stay(inner)?;
        change(meta)
    })
}

/// Begins a release, or finds it begun. From here on calls on the gallery are refused. Gives what there is to take out.
pub(crate) fn leave(inner: &Inner) -> Result<Meta> {
    change_state(inner, META, |meta: &mut Meta| {
        meta.is_listed = false;
        Ok(meta.clone())
    })
}

/// Revisions that were never given before: the first of so many.
pub(crate) fn reserve(inner: &Inner, count: usize) -> Result<u64> {
    change_state(inner, COUNTER, |last: &mut u64| {
        let first = *last + 1;
        *last += count as u64;
        Ok(first)
    })
}

fn change_state<S, T>(inner: &Inner, point: u64, mut change: impl FnMut(&mut S) -> Result<T>) -> Result<T>
where
    S: Serialize + DeserializeOwned + Default,
{
    let mut pause = std::time::Duration::from_millis(1);
    loop {
        let Versioned { version, mut names, mut state } = read_state::<S>(inner, point)?;
        let done = change(&mut state)?;
        let name = inner.tokens.next();
        names.push(name.clone());
        names.drain(..names.len().saturating_sub(NAMES));
        let text = serde_json::to_string(&state).map_err(|error| Error::corrupt(inner.name(), error))?;
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
        inner.client.ask("PUT", &format!("/collections/{}/points?wait=true", inner.ours), &body)?;
        if read_state::<S>(inner, point)?.names.contains(&name) {
            return Ok(done);
        }
        clock::wait(pause);
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
