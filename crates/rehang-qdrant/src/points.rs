//! Points of the application's collection, with what of ours is in their payload: the tag.
//!
//! The tag is two fields. `rehang` is the item's revision; `rehang_tag` holds `id`, its name where the point's id is no name that the
//! application gave, `n`, whether it has no source, and `s7`, what is known of it in the space of slot 7. An application that replaces
//! the point, or its payload, takes the tag away: so a point without a revision is one whose content nothing is known of.
//!
//! The revision is not in the object, since an application may take it away by itself, and a server of 1.18 that deletes an object from
//! a payload leaves what is in it in the indexes of its fields.

use std::collections::BTreeMap;

use rehang::{Error, Provenance, Result};
use rehang_store::{Item, ItemKey, Priority, Revision, VectorRecord};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::collection::{CollectionOptions, at_path};
use crate::meta::SpaceSlot;

/// The payload field with the revision.
pub(crate) const REVISION: &str = "rehang";
/// The payload field with everything else of ours.
pub(crate) const TAG: &str = "rehang_tag";

/// A point as an answer has it.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) key: ItemKey,
    pub(crate) payload: Map<String, Value>,
    vectors: BTreeMap<String, Vec<f32>>,
    /// The number that it was ordered by.
    pub(crate) order_value: f64,
    /// How near it is to a query, as the server counts; `None` where there is no query, or the server found no number.
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
    /// The unnamed one, where no other came along.
    Unnamed(Vec<f32>),
    Named(BTreeMap<String, Vec<f32>>),
}

/// What is known of an item in one space.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Mark {
    /// A provenance, `pending` while a vector is being written, `none` where it was taken out.
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
    /// The length that the vector was written with, where the server has scaled it.
    #[serde(rename = "m")]
    length: Option<f64>,
    /// Why it could not be embedded.
    #[serde(rename = "f")]
    pub(crate) failure: Option<String>,
    /// The write that holds the place of the vector, and the one that wrote it last.
    #[serde(rename = "k")]
    pub(crate) held_by: Option<String>,
    #[serde(rename = "w")]
    pub(crate) written_by: Option<String>,
}

impl Mark {
    pub(crate) fn sigma2(&self) -> Option<f32> {
        self.sigma2
    }

    /// A vector of the server as it was written.
    fn at_length(&self, vector: &[f32]) -> Vec<f32> {
        let length = self.length.unwrap_or(1.0);
        vector.iter().map(|value| (f64::from(*value) * length) as f32).collect()
    }

    /// Who made the vector in a space, where the tag and the point say so; `has_vector` where it is known.
    pub(crate) fn made_by(&self, space: &SpaceSlot, has_vector: Option<bool>) -> Option<Provenance> {
        let made_by = match self.provenance.as_deref() {
            Some("old") => Some(Provenance::Old),
            Some("adapted") => Some(Provenance::Adapted),
            Some("native") => Some(Provenance::Native),
            // The application's own vectors are there without a word of ours.
            None if space.is_applications => has_vector.unwrap_or(false).then_some(space.record.written_as),
            _ => None,
        };
        made_by.filter(|_| has_vector != Some(false))
    }
}

impl Point {
    /// The points of an answer. Those that cannot be items are left out: UUIDs whose first half is zero would be taken for numbers.
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

    /// The item's revision; `None` where the point has no tag yet.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.payload.get(REVISION)?.as_u64()
    }

    /// Whether a tag is on it, be it one of another form: such a point is no item, and an examination tells of it.
    pub(crate) fn has_tag(&self) -> bool {
        self.payload.get(REVISION).and_then(text_in).is_some()
    }

    /// What the tag says of a space. A tag of another form says nothing.
    pub(crate) fn mark(&self, space: &SpaceSlot) -> Mark {
        let mark = self.payload.get(TAG).and_then(|tag| tag.get(space.field()));
        mark.and_then(|mark| Mark::deserialize(mark).ok()).unwrap_or_default()
    }

    /// A vector that came along.
    pub(crate) fn vector(&self, space: &SpaceSlot) -> Option<&Vec<f32>> {
        self.vectors.get(&space.vector)
    }

    /// The application's name for it.
    pub(crate) fn id(&self) -> String {
        let named = self.payload.get(TAG).and_then(|tag| tag.get("id")).and_then(Value::as_str);
        named.map_or_else(|| text_of(self.key), str::to_owned)
    }

    /// The item; `None` where the point has no tag yet.
    pub(crate) fn item(&self, options: &CollectionOptions) -> Option<Item> {
        let field = |path: &Option<String>| path.as_deref().and_then(|path| at_path(&self.payload, path));
        let payload = if options.payload.is_some() {
            field(&options.payload).cloned().unwrap_or(Value::Null)
        } else {
            let is_ours = |name: &String| {
                [TAG, REVISION].contains(&name.as_str())
                    || options.source.as_ref() == Some(name)
                    || options.label.as_ref() == Some(name)
            };
            let others = self.payload.iter().filter(|(name, _)| !is_ours(name));
            let others: Map<String, Value> =
                others.map(|(name, value)| (name.clone(), value.clone())).collect();
            if others.is_empty() { Value::Null } else { Value::Object(others) }
        };
        Some(Item {
            key: self.key,
            id: self.id(),
            source: field(&options.source).and_then(text_in),
            label: field(&options.label).and_then(text_in),
            payload,
            revision: self.revision()?,
        })
    }

    /// The vector of a space as it lies there; without its numbers unless they are wanted. `None` where there is none, or the point has
    /// no tag yet. `has_vectors` where the space's vectors came along.
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

/// A band by its number in the tag.
fn band_of(number: usize) -> Option<rehang_store::QueueBand> {
    rehang_store::QueueBand::ALL.get(number).copied()
}

/// A place in the queue as the tag has it. The ends of the line are numbers too, since JSON has no infinity.
pub(crate) fn place_of(priority: Option<Priority>) -> (Value, Value) {
    let Some(Priority { band, score }) = priority else { return (Value::Null, Value::Null) };
    let band = rehang_store::QueueBand::ALL.iter().position(|other| *other == band);
    (json!(band), json!(score.clamp(f64::MIN, f64::MAX)))
}

/// What a payload's value says in words: the server takes null and an empty list for nothing, and so does this.
fn text_in(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(values) if values.iter().all(Value::is_null) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The id of a point.
pub(crate) fn id_of(key: ItemKey) -> Value {
    u64::try_from(key.bits()).map_or_else(|_| Value::String(text_of(key)), Value::from)
}

/// The same as text: an item's id.
pub(crate) fn text_of(key: ItemKey) -> String {
    let bits = key.bits();
    if let Ok(number) = u64::try_from(bits) {
        return number.to_string();
    }
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The key of a point's id; `None` for a UUID whose first half is zero.
fn key_of(id: &Value) -> Option<ItemKey> {
    match id {
        Value::String(uuid) => uuid_of(uuid),
        number => number.as_u64().map(ItemKey::from),
    }
}

fn uuid_of(text: &str) -> Option<ItemKey> {
    let has_form = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| {
            if [8, 13, 18, 23].contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
    let bits = u128::from_str_radix(&text.replace('-', ""), 16).ok().filter(|_| has_form)?;
    (bits >> 64 != 0).then(|| ItemKey::new(bits))
}

/// The key of an item's id: a number, a UUID, or else one that is made from the name; and whether it was.
pub(crate) fn key_of_name(id: &str) -> (ItemKey, bool) {
    if let Some(number) = id.parse::<u64>().ok().filter(|number| number.to_string() == id) {
        return (ItemKey::from(number), false);
    }
    if let Some(key) = uuid_of(id) {
        return (key, text_of(key) != id);
    }
    (hashed(id.as_bytes()), true)
}

/// A UUID of bytes, by its form one that an application makes by a rule of its own (version 8).
pub(crate) fn hashed(bytes: &[u8]) -> ItemKey {
    let bits = xxh3_128(bytes) & !(0xf << 76) & !(0x3 << 62);
    ItemKey::new(bits | 0x8 << 76 | 0x2 << 62)
}

/// A filter for points by key.
pub(crate) fn has_id(keys: impl Iterator<Item = ItemKey>) -> Value {
    json!({"has_id": keys.map(id_of).collect::<Vec<_>>()})
}

/// A filter for points in which a payload field is missing, null or an empty list.
pub(crate) fn is_empty(field: &str) -> Value {
    json!({"is_empty": {"key": field}})
}

/// A filter for points in which a payload field has a value.
pub(crate) fn is(field: &str, value: impl Into<Value>) -> Value {
    json!({"key": field, "match": {"value": value.into()}})
}

pub(crate) fn all_of(conditions: impl Into<Value>) -> Value {
    json!({"must": conditions.into()})
}

pub(crate) fn any_of(conditions: impl Into<Value>) -> Value {
    json!({"should": conditions.into()})
}

pub(crate) fn none_of(conditions: impl Into<Value>) -> Value {
    json!({"must_not": conditions.into()})
}

/// A filter that nothing passes.
pub(crate) fn nothing() -> Value {
    json!({"must": [{"has_id": []}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_as_it_was() {
        for id in ["0", "7", "18446744073709551615", "a1b2c3d4-0000-4000-8000-00000000000f"] {
            let (key, is_name) = key_of_name(id);
            assert_eq!((text_of(key).as_str(), is_name), (id, false));
            assert_eq!(key_of(&id_of(key)), Some(key));
        }
        // Names, a number with a sign, one that is too large, and a UUID that a number could be taken for.
        for name in ["a", "", "+7", "07", "18446744073709551616", "00000000-0000-0000-0000-000000000007"] {
            let (key, is_name) = key_of_name(name);
            assert!(is_name && key.bits() >> 64 != 0, "{name}");
            assert_eq!(uuid_of(&text_of(key)), Some(key));
            assert_eq!(&text_of(key)[14..15], "8", "{name}");
        }
        assert_ne!(key_of_name("a"), key_of_name("b"));
    }
}
