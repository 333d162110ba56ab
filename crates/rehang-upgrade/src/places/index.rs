//! Makes the search indexes of a gallery ready, and measures how much of the truth they find.

use rehang_core::{Error, Result};
use rehang_store::Store;
use serde::Serialize;

use crate::observe::{Observer, counting};
use crate::places::location::Location;

/// Stored vectors that stand in as queries when an index is checked.
const RECALL_SAMPLES: usize = 100;
/// Neighbours that are compared for each query of a check.
const RECALL_DEPTH: usize = 10;

/// Measures the share of the true nearest 10 that searches of a space find.
pub(crate) fn recall(store: &dyn Store, space: &str) -> Result<f64> {
    store.recall(space, RECALL_SAMPLES, RECALL_DEPTH)
}

/// Makes the search index of a space ready, if it is not, and says whether it had to be made.
pub(crate) fn prepare_index(store: &dyn Store, space: &str, observer: &dyn Observer) -> Result<bool> {
    if store.is_ready(space)? {
        return Ok(false);
    }
    store.prepare(space, &counting(observer, "making the search index", "vectors"))?;
    Ok(true)
}

/// Result of [`index`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Indexed {
    /// Name of the space.
    pub space: String,
    /// Whether the index had to be made; otherwise it was ready.
    pub made: bool,
    /// Share of the true nearest 10 that searches find.
    pub recall: f64,
}

/// Makes the search index of a space ready, and measures its recall. Without a name it is the
/// space that serves.
///
/// # Errors
///
/// Not found where there is no such space, or no space at all; cancelled where a stop was asked for;
/// those of the store.
pub fn index(location: &Location, space: Option<&str>, observer: &dyn Observer) -> Result<Indexed> {
    let store = &*location.open()?;
    let serving = store.serving()?;
    let space =
        space.or(serving.as_deref()).ok_or_else(|| Error::not_found("space", "that serves", store.name()))?;
    let is_made = prepare_index(store, space, observer)?;
    let recall = recall(store, space)?;
    Ok(Indexed { space: space.to_owned(), made: is_made, recall })
}
