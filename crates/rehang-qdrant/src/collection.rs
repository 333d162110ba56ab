//! The application's collection: how it is configured, and what of it a gallery is made of.

use rehang::{Distance, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::Client;
use crate::payload::{REVISION, TAG};

/// Oldest server that will do: from here on a collection that is in use can be given another named vector.
const SERVER_MIN: (u64, u64) = (1, 18);

/// What of a collection a gallery is made of.
///
/// | Name | Default | Purpose |
/// |---|---|---|
/// | `collection` | | the collection's name |
/// | `source` | none | payload field with what can be re-embedded; a dot leads into an object (`doc.body`) |
/// | `label` | none | payload field with a class, tag or group |
/// | `payload` | all fields | payload field that is an item's payload |
/// | `vector` | none | named vector with the old model's vectors; empty text for the unnamed one |
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectionOptions {
    /// The collection's name.
    pub collection: String,
    /// Payload field with what can be re-embedded.
    pub source: Option<String>,
    /// Payload field with a class, tag or group.
    pub label: Option<String>,
    /// Payload field that is an item's payload; every field but the two above where it is not given.
    pub payload: Option<String>,
    /// Named vector with the old model's vectors; empty text for the unnamed one.
    pub vector: Option<String>,
}

/// The configuration of a collection.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) points: u64,
    pub(crate) indexed: u64,
    pub(crate) is_green: bool,
    pub(crate) vectors: Vec<(String, usize, Distance)>,
}

impl CollectionOptions {
    /// Refuses names that cannot be parts of a request, and fields that no filter can name.
    pub(crate) fn check(&self) -> Result<()> {
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= 200
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
                && ![".", ".."].contains(&name)
        };
        if !is_name(&self.collection) {
            let expected = "a name of letters, digits, '_', '-' and '.', of at most 200";
            return Err(Error::option("collection", &self.collection, expected));
        }
        for (option, path) in [("source", &self.source), ("label", &self.label), ("payload", &self.payload)] {
            let Some(path) = path else { continue };
            let is_part = |part: &str| {
                !part.is_empty()
                    && part.chars().all(|letter| letter.is_alphanumeric() || "_-".contains(letter))
            };
            if !path.split('.').all(is_part)
                || path.split('.').next().is_some_and(|first| [TAG, REVISION].contains(&first))
            {
                let expected = "a payload field of letters, digits, '_' and '-', with dots into objects, and not one of ours";
                return Err(Error::option(option, path, expected));
            }
        }
        Ok(())
    }

    /// The collection of ours beside it.
    pub(crate) fn ours(&self) -> String {
        format!("rehang_{}", self.collection)
    }
}

/// Fails where the server is older than a gallery needs.
pub(crate) fn expect_server(client: &Client) -> Result<()> {
    let answer = client.answer("GET", "/", &Value::Null)?;
    let version = answer["version"].as_str().unwrap_or_default();
    let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < SERVER_MIN {
        let shown = if version.is_empty() { "no word of a version" } else { version };
        let expected =
            "Qdrant 1.18 or later: earlier ones cannot give a collection that is in use another vector";
        return Err(Error::option("the server", shown, expected));
    }
    Ok(())
}

/// How a collection is configured; a refusal where a gallery cannot keep its promises in it.
pub(crate) fn facts(client: &Client, options: &CollectionOptions) -> Result<Facts> {
    let found = look(client, &options.collection)?;
    let found = found.ok_or_else(|| Error::not_found("collection", &options.collection, client.name()))?;
    let params = &found["config"]["params"];
    let what = format!("collection {}", options.collection);
    if params["replication_factor"].as_u64().unwrap_or(1) > 1 {
        // A condition is decided by each replica for itself, and replicas may see two writers in another order.
        let why = "one with replication_factor 1: replicas decide conditional writes each for itself";
        return Err(Error::option(what, "with replicas", why));
    }
    if found["config"]["optimizer_config"]["prevent_unoptimized"].as_bool() == Some(true) {
        let why = "one without prevent_unoptimized, which hides points that were just written";
        return Err(Error::option(what, "with prevent_unoptimized", why));
    }
    let mut vectors = Vec::new();
    let mut take = |name: &str, vector: &Value| {
        let distance = match vector["distance"].as_str() {
            Some("Euclid") => Distance::L2,
            Some("Cosine") => Distance::Cosine,
            Some("Dot") => Distance::Dot,
            _ => return,
        };
        let size = vector["size"].as_u64().unwrap_or(0) as usize;
        if vector["multivector_config"].is_null() && size > 0 {
            vectors.push((name.to_owned(), size, distance));
        }
    };
    if let Some(named) = params["vectors"].as_object() {
        if named.contains_key("size") && named["size"].is_u64() {
            take("", &params["vectors"]);
        } else {
            named.iter().for_each(|(name, vector)| take(name, vector));
        }
    }
    if let Some(name) =
        options.vector.as_ref().filter(|name| !vectors.iter().any(|(there, ..)| there == *name))
    {
        let names: Vec<String> = vectors.iter().map(|(name, ..)| format!("{name:?}")).collect();
        let place = format!(
            "{what}, which has {} of Euclid, Cosine or Dot",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        );
        return Err(Error::not_found("vector", name, place));
    }
    Ok(Facts {
        points: found["points_count"].as_u64().unwrap_or(0),
        indexed: found["indexed_vectors_count"].as_u64().unwrap_or(0),
        is_green: found["status"].as_str() == Some("green"),
        vectors,
    })
}

/// A collection as the server describes it; `None` where there is none.
pub(crate) fn look(client: &Client, collection: &str) -> Result<Option<Value>> {
    let there = client.ask("GET", &format!("/collections/{collection}/exists"), &Value::Null)?;
    if there["exists"].as_bool() != Some(true) {
        return Ok(None);
    }
    client.ask("GET", &format!("/collections/{collection}"), &Value::Null).map(Some)
}
