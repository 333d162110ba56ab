//! `rehang search`.

use std::sync::Arc;

use rehang::files::VectorSource;
use rehang::{Error, Remedy, Result};
use rehang_store::{Filter, Store};
use rehang_upgrade::Configuration;
use serde_json::Value;

use super::{Outcome, location, say};
use crate::arguments::Search;
use crate::wording;

/// Searches, and prints the nearest items of every query.
pub fn run(arguments: &Search, json: bool) -> Result<Outcome> {
    let search = rehang_upgrade::Search {
        vectors: VectorSource::parse(&arguments.vectors)?,
        old_vectors: arguments.old_vectors.as_deref().map(VectorSource::parse).transpose()?,
        space: arguments.space.clone(),
        k: arguments.k,
        filter: filter(arguments)?,
    };
    let configuration = arguments.config.as_deref().map(Configuration::read).transpose()?;
    let store: Arc<dyn Store> = location(arguments.gallery.as_deref(), configuration.as_ref())?.open()?;
    let found = rehang_upgrade::search(&store, &search)?;
    for space in &found.without_index {
        say(&format!(
            "Warning: the search index of {space:?} is not ready, so every vector was compared; {}",
            wording::remedy(&Remedy::PrepareIndex)
        ));
    }
    let mut text = String::new();
    for (query, hits) in found.results.iter().enumerate() {
        for (place, hit) in hits.iter().enumerate() {
            // Rounding may leave −0.0000000001 between a vector and itself.
            let distance = if hit.distance.abs() < 5e-7 { 0.0 } else { hit.distance };
            text += &format!("{query}\t{}\t{}\t{distance:.6}\t{}\n", place + 1, hit.id, hit.provenance);
        }
    }
    Outcome::Done.print(json, &found, &text)
}

fn filter(arguments: &Search) -> Result<Filter> {
    let mut payload = Vec::new();
    for text in &arguments.payload {
        let (field, value) =
            text.split_once('=').ok_or_else(|| Error::option("payload", text, "FIELD=VALUE"))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
        payload.push((field.to_owned(), value));
    }
    let provenances = arguments.provenances.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    Ok(Filter { labels: arguments.labels.clone(), payload, provenances })
}
