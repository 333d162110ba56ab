//! Serves an application at every stage: searches, fused and over a bridge, writes, and the indexes of
//! searches.

pub(crate) mod fuse;
pub(crate) mod gallery;
pub(crate) mod index;
pub(crate) mod query;
pub(crate) mod search;
pub(crate) mod stage;
