//! Learns an upgrade from its own gallery: questions and clicks, pairs, the map and its forecast, whether
//! they still hold, and which model to take.

pub(crate) mod asked;
pub(crate) mod bridge;
pub(crate) mod drift;
pub(crate) mod fit;
pub(crate) mod forecast;
pub(crate) mod identify;
pub(crate) mod models;
pub(crate) mod outgrown;
pub(crate) mod pairs;
pub(crate) mod refit;
pub(crate) mod refitting;
pub(crate) mod report;

use rehang_core::Result;
use rehang_store::Ledger;

/// Writes a document of the gallery, unless it says the same already.
fn note(store: &dyn Ledger, name: &str, text: &str) -> Result<()> {
    let before = store.document(name)?;
    if before.as_ref().is_none_or(|(_, text_before)| text_before != text) {
        store.set_document(name, before.map(|(version, _)| version), text)?;
    }
    Ok(())
}
