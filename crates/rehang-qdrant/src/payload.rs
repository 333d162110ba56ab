//! The payload of points: which fields of it are ours, and the values at paths of the application's.

use serde_json::{Map, Value};

/// The payload field with the revision.
pub(crate) const REVISION: &str = "rehang";
/// The payload field with everything else of ours.
pub(crate) const TAG: &str = "rehang_tag";

/// The vector of one number that every write of ours puts beside a vector of ours. Whoever replaces a point takes it away, and whoever replaces its payload
/// alone does not: so it tells a vector that came with a point of the application's from one of ours whose tag is gone.
///
/// It is no sparse vector: a server that was killed while it wrote down which ones are absent takes one that is written later for absent too
/// (seen in 1.18.0 and 1.18.3).
pub(crate) const WITNESS: &str = "rehang";

/// The payload field that stays after a release where a vector is adapted.
pub(crate) const ADAPTED: &str = "rehang_adapted";

/// The path of whether an item has no source: every tag says so.
pub(crate) const NO_SOURCE: &str = "rehang_tag.n";
/// The path of the revision that the source came with.
pub(crate) const SOURCE_REVISION: &str = "rehang_tag.r";
/// The revision that an application writes to say that it has written the old vector, and left the source as it was.
pub(crate) const NEW_OLD_VECTOR: u64 = 0;

/// Fields of ours that filters ask for, with the kind of their index.
pub(crate) const FIELDS: [(&str, &str); 2] = [(REVISION, "integer"), (NO_SOURCE, "bool")];
/// Fields of a space's part of the tag that filters ask for, with the kind of their index.
pub(crate) const FIELDS_OF_A_SPACE: [(&str, &str); 5] =
    [("p", "keyword"), ("q", "float"), ("b", "integer"), ("t", "integer"), ("f", "keyword")];

/// The kind of the index of a field that has one always.
pub(crate) fn kind_of(path: &str) -> &'static str {
    let ends = |field: &str| path.rsplit_once('.').is_some_and(|(_, last)| last == field);
    let of_space = FIELDS_OF_A_SPACE.iter().find(|(field, _)| ends(field));
    let of_gallery = FIELDS.iter().find(|(field, _)| *field == path);
    of_gallery.or(of_space).map_or("integer", |(_, kind)| kind)
}

/// What a payload's value says in words: the server takes null and an empty list for nothing, and so does this.
pub(crate) fn text_in(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(values) if values.iter().all(Value::is_null) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The value at a path of a payload.
pub(crate) fn at_path<'a>(payload: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut parts = path.split('.');
    let first = payload.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

/// Puts a value at a path of a payload.
pub(crate) fn put_at(payload: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(payload.insert(path.to_owned(), value)),
        Some((first, rest)) => {
            let inner = payload.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Value::Object(inner) = inner {
                put_at(inner, rest, value);
            }
        }
    }
}

/// An object without its empty fields.
pub(crate) fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}
