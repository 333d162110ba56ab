//! Serves an application at every stage: searches, fused and over a bridge, and writes.

pub(crate) mod fuse;
pub(crate) mod gallery;
pub(crate) mod query;
pub(crate) mod search;
pub(crate) mod stage;
