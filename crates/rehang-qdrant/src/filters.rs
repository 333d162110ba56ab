//! Conditions on points, as requests write them.

use rehang_store::{ItemKey, Revision};
use serde_json::{Value, json};

use crate::ids::id_of;
use crate::payload::{REVISION, SOURCE_REVISION};

/// Builds a filter for points by key.
pub(crate) fn has_id(keys: impl Iterator<Item = ItemKey>) -> Value {
    json!({"has_id": keys.map(id_of).collect::<Vec<_>>()})
}

/// Builds a filter for points in which a payload field is missing, null or an empty list.
pub(crate) fn is_empty(field: &str) -> Value {
    json!({"is_empty": {"key": field}})
}

/// Builds a filter for points in which a payload field has a value.
pub(crate) fn is(field: &str, value: impl Into<Value>) -> Value {
    json!({"key": field, "match": {"value": value.into()}})
}

/// Builds a filter for items whose source came with a revision. A tag of an earlier version has
/// no such field; there the revision itself says it. Where the revision was taken away, nothing
/// is known of the source.
pub(crate) fn is_of_source(revision: Revision) -> Value {
    let by_itself = is(SOURCE_REVISION, revision);
    let of_before = all_of([is(REVISION, revision), is_empty(SOURCE_REVISION)]);
    json!({"must": [any_of([by_itself, of_before])], "must_not": [is_empty(REVISION)]})
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
