//! Payload of points: which of its fields are the gallery's, and the values at paths of the application's.

use serde_json::{Map, Value};

/// The payload field that holds the revision.
pub(crate) const REVISION: &str = "rehang";
/// The payload field that holds everything else of the gallery's.
pub(crate) const TAG: &str = "rehang_tag";

/// The vector of one number that every write of the gallery puts beside a vector. An application that
/// replaces a point takes it away; one that replaces the payload alone does not. So it tells a vector that
/// came with the application's point from one of the gallery's whose tag is gone.
///
/// It is dense for a reason. A server that was killed while it wrote down which sparse vectors are absent
/// takes one that is written later for absent too (seen in 1.18.0 and 1.18.3).
pub(crate) const WITNESS: &str = "rehang";

/// The payload field that stays after a release where a vector is adapted.
pub(crate) const ADAPTED: &str = "rehang_adapted";

/// Path of the truth value that says whether an item has no source; every tag has it.
pub(crate) const NO_SOURCE: &str = "rehang_tag.n";
/// Path of the revision that the source came with.
pub(crate) const SOURCE_REVISION: &str = "rehang_tag.r";
/// Revision that an application writes to say that it has written the old vector and
/// left the source as it was.
pub(crate) const NEW_OLD_VECTOR: u64 = 0;

/// Fields of the gallery that filters ask for, with the kind of their index.
pub(crate) const FIELDS: [(&str, &str); 2] = [(REVISION, "integer"), (NO_SOURCE, "bool")];
/// Fields of a space's part of the tag that filters ask for, with the kind of their index.
pub(crate) const FIELDS_OF_A_SPACE: [(&str, &str); 5] =
    [("p", "keyword"), ("q", "float"), ("b", "integer"), ("t", "integer"), ("f", "keyword")];

/// Returns the kind of the index of a field that always has one.
pub(crate) fn kind_of(path: &str) -> &'static str {
    let ends = |field: &str| path.rsplit_once('.').is_some_and(|(_, last)| last == field);
    let of_space = FIELDS_OF_A_SPACE.iter().find(|(field, _)| ends(field));
    let of_gallery = FIELDS.iter().find(|(field, _)| *field == path);
    of_gallery.or(of_space).map_or("integer", |(_, kind)| kind)
}

/// Returns the text of a payload's value; `None` for null and an empty list, as the server takes them.
pub(crate) fn text_in(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(values) if values.iter().all(Value::is_null) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Looks up the value at a path of a payload.
pub(crate) fn at_path<'a>(payload: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut parts = path.split('.');
    let first = payload.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

/// Puts a value at a path of a payload.
pub(crate) fn put_at(payload: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(payload.insert(path.to_owned(), value)),
        Some((first, inner_path)) => {
            let inner = payload.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Value::Object(inner) = inner {
                put_at(inner, inner_path, value);
            }
        }
    }
}

/// Takes the null fields out of an object.
pub(crate) fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}
