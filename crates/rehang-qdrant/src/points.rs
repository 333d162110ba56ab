//! Points of the application's collection, with the gallery's fields in their payload: the tag.
//!
//! The tag is two fields. `rehang` is the item's revision. `rehang_tag` holds:
//! - `id`: the item's name, where the application gave one that is no id of a point;
//! - `n`: whether the item has no source;
//! - `r`: the revision that its source came with;
//! - `s7`: what is known of the item in the space of slot 7.
//!
//! An application that replaces the point, or its payload, takes the tag away. So the gallery knows nothing
//! of the content of a point without a revision.
//!
//! The revision is not in the object, since an application may take it away by itself. And a server of 1.18
//! that deletes an object from a payload leaves the object's content in the indexes of its fields.

use std::collections::BTreeMap;

use rehang_core::{Error, Provenance, Result};
use rehang_store::{Item, ItemKey, Priority, Revision, VectorRecord};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::collection::CollectionOptions;
use crate::ids::{key_of, text_of};
use crate::payload::{NEW_OLD_VECTOR, REVISION, TAG, at_path, text_in};
use crate::slot::SpaceSlot;

/// Point as an answer has it.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) key: ItemKey,
    pub(crate) payload: Map<String, Value>,
    vectors: BTreeMap<String, Vec<f32>>,
    /// The payload number by which the answer ordered the point.
    pub(crate) order_value: f64,
    /// How near the point is to a query, as the server counts; `None` where there is no query, or the
    /// server found no number.
    pub(crate) score: Option<f64>,
}

#[derive(Deserialize)]
struct RawPoint {
    id: Value,
    payload: Option<Map<String, Value>>,
    vector: Option<RawVectors>,
    order_value: Option<f64>,
    score: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawVectors {
    /// The unnamed vector, where no other came along.
    Unnamed(Vec<f32>),
    Named(BTreeMap<String, Vec<f32>>),
}

/// A space's part of a tag: what is known of an item's vector in that space.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Mark {
    /// A provenance; `pending` while a vector is being written, `none` where it was taken out.
    #[serde(rename = "p")]
    pub(crate) provenance: Option<String>,
    /// The epoch of an adapted vector.
    #[serde(rename = "e")]
    pub(crate) epoch: Option<u64>,
    #[serde(rename = "v")]
    sigma2: Option<f32>,
    #[serde(rename = "b")]
    band: Option<usize>,
    #[serde(rename = "q")]
    score: Option<f64>,
    #[serde(rename = "x")]
    pub(crate) squared_error: Option<f32>,
    /// Length that the vector was written with, where the server has scaled it.
    #[serde(rename = "m")]
    length: Option<f64>,
    /// Reason why the item could not be embedded.
    #[serde(rename = "f")]
    pub(crate) failure: Option<String>,
    /// Name of the write that has reserved the vector.
    #[serde(rename = "k")]
    pub(crate) reserved_by: Option<String>,
    /// Name of the write that wrote the vector last.
    #[serde(rename = "w")]
    pub(crate) written_by: Option<String>,
}

impl Mark {
    pub(crate) fn sigma2(&self) -> Option<f32> {
        self.sigma2
    }

    /// Scales a vector of the server back to the length that it was written with.
    fn at_length(&self, vector: &[f32]) -> Vec<f32> {
        let length = self.length.unwrap_or(1.0);
        vector.iter().map(|value| (f64::from(*value) * length) as f32).collect()
    }

    /// Returns the provenance of the vector in a space, where the tag and the point say so. `has_vector` says
    /// whether the point has it, where that is known.
    pub(crate) fn made_by(&self, space: &SpaceSlot, has_vector: Option<bool>) -> Option<Provenance> {
        let made_by = match self.provenance.as_deref() {
            Some("old") => Some(Provenance::Old),
            Some("adapted") => Some(Provenance::Adapted),
            Some("native") => Some(Provenance::Native),
            // No tag speaks of the application's own vectors until the gallery writes one.
            None if space.is_applications => has_vector.unwrap_or(false).then_some(space.record.written_as),
            _ => None,
        };
        made_by.filter(|_| has_vector != Some(false))
    }
}

impl Point {
    /// Reads the points of an answer. Leaves out points that cannot be items: UUIDs whose first half is zero
    /// would be taken for numbers.
    pub(crate) fn list(answer: Value, whose: &str) -> Result<Vec<Self>> {
        let raw: Vec<RawPoint> = serde_json::from_value(answer)
            .map_err(|error| Error::corrupt(format!("an answer of {whose}"), error))?;
        let point = |raw: RawPoint| {
            let vectors = match raw.vector {
                Some(RawVectors::Unnamed(vector)) => BTreeMap::from([(String::new(), vector)]),
                Some(RawVectors::Named(vectors)) => vectors,
                None => BTreeMap::new(),
            };
            Some(Self {
                key: key_of(&raw.id)?,
                payload: raw.payload.unwrap_or_default(),
                vectors,
                order_value: raw.order_value.unwrap_or_default(),
                score: raw.score,
            })
        };
        Ok(raw.into_iter().filter_map(point).collect())
    }

    /// Returns the item's revision; `None` where the point has no tag yet.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.payload.get(REVISION)?.as_u64()
    }

    /// Returns the revision that the item's source came with. A tag of an earlier version does not say it;
    /// then it is the item's revision.
    pub(crate) fn source_revision(&self) -> Option<Revision> {
        let revision = self.revision()?;
        let of_source = self.payload.get(TAG).and_then(|tag| tag.get("r")).and_then(Value::as_u64);
        Some(of_source.unwrap_or(revision))
    }

    /// Whether the application says that it has written the old vector, and left the source as it was.
    pub(crate) fn has_new_old_vector(&self) -> bool {
        self.revision() == Some(NEW_OLD_VECTOR)
    }

    /// Whether the point has a tag, be it one of another form. A point with such a tag is no item, and an
    /// examination tells of it.
    pub(crate) fn has_tag(&self) -> bool {
        self.payload.get(REVISION).and_then(text_in).is_some() && !self.has_new_old_vector()
    }

    /// Reads what the tag says of a space. A tag of another form says nothing.
    pub(crate) fn mark(&self, space: &SpaceSlot) -> Mark {
        let mark = self.payload.get(TAG).and_then(|tag| tag.get(space.field()));
        mark.and_then(|mark| Mark::deserialize(mark).ok()).unwrap_or_default()
    }

    /// Returns the vector of a space, where the answer brought it along.
    pub(crate) fn vector(&self, space: &SpaceSlot) -> Option<&Vec<f32>> {
        self.vectors.get(&space.vector)
    }

    /// Returns the application's name for the item.
    pub(crate) fn id(&self) -> String {
        let named = self.payload.get(TAG).and_then(|tag| tag.get("id")).and_then(Value::as_str);
        named.map_or_else(|| text_of(self.key), str::to_owned)
    }

    /// Makes the item of a point; `None` where the point has no tag yet.
    pub(crate) fn item(&self, options: &CollectionOptions) -> Option<Item> {
        Some(self.item_of(options, self.revision()?, self.source_revision()?))
    }

    /// Makes the item of a point that has no tag yet. It becomes an item with the next call that lists
    /// points; until then it has no revision.
    pub(crate) fn new_item(&self, options: &CollectionOptions) -> Item {
        self.item_of(options, NEW_OLD_VECTOR, NEW_OLD_VECTOR)
    }

    fn item_of(&self, options: &CollectionOptions, revision: Revision, source_revision: Revision) -> Item {
        let field = |path: &Option<String>| path.as_deref().and_then(|path| at_path(&self.payload, path));
        let payload = if options.payload.is_some() {
            field(&options.payload).cloned().unwrap_or(Value::Null)
        } else {
            let is_ours = |name: &String| {
                [TAG, REVISION].contains(&name.as_str())
                    || options.source.as_ref() == Some(name)
                    || options.label.as_ref() == Some(name)
            };
            let other_fields = self.payload.iter().filter(|(name, _)| !is_ours(name));
            let other_fields: Map<String, Value> =
                other_fields.map(|(name, value)| (name.clone(), value.clone())).collect();
            if other_fields.is_empty() { Value::Null } else { Value::Object(other_fields) }
        };
        Item {
            key: self.key,
            id: self.id(),
            source: field(&options.source).and_then(text_in),
            label: field(&options.label).and_then(text_in),
            payload,
            revision,
            source_revision,
        }
    }

    /// Returns the record of the point's vector in a space, without its numbers unless they are wanted.
    /// `None` where there is no vector, or the point has no tag yet. `has_vectors` says whether the
    /// space's vectors came along.
    pub(crate) fn record(
        &self,
        space: &SpaceSlot,
        has_vectors: bool,
        with_numbers: bool,
    ) -> Option<VectorRecord> {
        let mark = self.mark(space);
        let vector = self.vector(space);
        let provenance = mark.made_by(space, has_vectors.then_some(vector.is_some()))?;
        Some(VectorRecord {
            provenance,
            revision: self.revision()?,
            sigma2: mark.sigma2,
            priority: mark.score.and_then(|score| Some(Priority::new(band_of(mark.band?)?, score))),
            squared_error: mark.squared_error,
            vector: vector.filter(|_| with_numbers).map(|vector| mark.at_length(vector)).unwrap_or_default(),
        })
    }
}

/// Finds a band by its number in the tag.
fn band_of(number: usize) -> Option<rehang_store::QueueBand> {
    rehang_store::QueueBand::ALL.get(number).copied()
}

/// Writes a priority as the tag has it. Infinite scores become the largest numbers,
/// since JSON has no infinity.
pub(crate) fn band_and_score(priority: Option<Priority>) -> (Value, Value) {
    let Some(Priority { band, score }) = priority else { return (Value::Null, Value::Null) };
    let band = rehang_store::QueueBand::ALL.iter().position(|other| *other == band);
    (json!(band), json!(score.clamp(f64::MIN, f64::MAX)))
}
