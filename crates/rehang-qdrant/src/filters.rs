//! Conditions on points, as requests write them.

use rehang_store::ItemKey;
use serde_json::{Value, json};

use crate::ids::id_of;

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
