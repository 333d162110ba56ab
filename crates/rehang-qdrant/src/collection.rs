//! The application's collection: how it is configured, and which parts of it a gallery is made of.

use rehang_core::{Distance, Error, Result, one_of};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::Client;
use crate::payload::{REVISION, TAG, WITNESS};

/// Oldest server that will do: since this version, a collection in use can be given another named vector.
const SERVER_MIN: (u64, u64) = (1, 18);

/// Choice of the collection, payload fields and vector that a gallery is made of.
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
    pub(crate) health: Health,
    pub(crate) vectors: Vec<(String, usize, Distance)>,
    /// Names of vectors that are lists of vectors (multivectors).
    lists: Vec<String>,
    /// Vectors of the collection as the server describes them: all by name, or the unnamed one.
    pub(crate) described: Value,
    /// Whether the collection has the vector of [witnesses](WITNESS).
    pub(crate) has_witness: bool,
    /// Whether it has the sparse witness vector of an earlier version.
    pub(crate) has_sparse_witness: bool,
    /// Payload fields that have an index.
    pub(crate) indexes: Vec<String>,
    pub(crate) limits: Limits,
}

impl Facts {
    pub(crate) fn has(&self, vector: &str) -> bool {
        self.vectors.iter().any(|(name, ..)| name == vector)
    }

    /// Fails where the collection lacks the old model's vector.
    pub(crate) fn expect_vector(&self, options: &CollectionOptions) -> Result<()> {
        let Some(name) = options.vector.as_ref().filter(|name| !self.has(name)) else { return Ok(()) };
        if self.lists.contains(name) {
            let why = "a vector with one row a point: this one is a list of vectors (a multivector), which has no place in a space";
            return Err(Error::option("vector", name, why));
        }
        let names: Vec<String> = self.vectors.iter().map(|(name, ..)| format!("{name:?}")).collect();
        let place = format!(
            "collection {}, which has {} of {}",
            options.collection,
            if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            one_of(&Distance::ALL.map(name_of))
        );
        Err(Error::not_found("vector", name, place))
    }
}

/// Names a distance as the server does.
pub(crate) fn name_of(distance: Distance) -> &'static str {
    match distance {
        Distance::L2 => "Euclid",
        Distance::Cosine => "Cosine",
        Distance::Dot => "Dot",
    }
}

/// State of the server's work on a collection's indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nothing is left to do.
    Green,
    /// The server is making indexes.
    Yellow,
    /// The server would make indexes and waits for a change of the collection: since it
    /// restarted, it has begun none.
    Grey,
    /// The server has given up, for this reason.
    Red(String),
}

/// Limits that a collection's strict mode and its quotas set to requests; [`Limits::NONE`]
/// where no strict mode is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Points that a page may have, and neighbours that a search may ask for.
    pub(crate) query: usize,
    /// Points that an upsert or a write of vectors may have.
    pub(crate) write: usize,
    /// Conditions that a filter may have.
    pub(crate) conditions: usize,
    /// Payload indexes that the collection may have.
    pub(crate) indexes: usize,
    /// Bytes that the vectors of all points may take.
    pub(crate) vector_bytes: u64,
    /// Whether every field that a filter asks for needs an index.
    pub(crate) wants_indexes: bool,
}

impl Limits {
    /// Limits of a collection without a strict mode: none.
    pub(crate) const NONE: Self = Self {
        query: usize::MAX,
        write: usize::MAX,
        conditions: usize::MAX,
        indexes: usize::MAX,
        vector_bytes: u64::MAX,
        wants_indexes: false,
    };

    /// Reads the limits of a collection's strict mode. Refuses a limit that would end an upgrade half-way.
    fn from_strict_mode(strict: &Value, what: &str) -> Result<Self> {
        if strict["enabled"].as_bool() != Some(true) {
            return Ok(Self::NONE);
        }
        let limit = |name: &str| strict[name].as_u64().unwrap_or(u64::MAX);
        let count = |name: &str| usize::try_from(limit(name)).unwrap_or(usize::MAX);
        let refused = |name: &str, why: &str| {
            let value = format!("{} in its strict mode", strict[name]);
            Error::option(format!("{name} of {what}"), value, why)
        };
        if strict["search_allow_exact"].as_bool() == Some(false) {
            let why = "true: an upgrade counts exactly what is left to do";
            return Err(refused("search_allow_exact", why));
        }
        for (name, least, why) in [
            ("condition_max_size", CONDITION_SIZE, "1000 or more: a page of points is named by its ids"),
            ("filter_max_conditions", CONDITIONS_MIN, "64 or more: each write of an upgrade has conditions"),
        ] {
            if count(name) < least {
                return Err(refused(name, why));
            }
        }
        let is_forbidden = |name: &str| strict[name].as_bool() == Some(false);
        Ok(Self {
            query: count("max_query_limit"),
            write: count("upsert_max_batchsize"),
            conditions: count("filter_max_conditions"),
            indexes: count("max_payload_index_count"),
            vector_bytes: limit("max_collection_vector_size_bytes"),
            wants_indexes: is_forbidden("unindexed_filtering_update")
                || is_forbidden("unindexed_filtering_retrieve"),
        })
    }
}

/// Ids that one of our conditions names at most.
const CONDITION_SIZE: usize = crate::client::PAGE;
/// Conditions that the smallest write has.
const CONDITIONS_MIN: usize = 64;

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
}

/// Returns the name of the gallery's own collection, beside the application's collection (or alias) `name`.
pub(crate) fn gallery_collection_name(name: &str) -> String {
    format!("rehang_{name}")
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

/// Lists every alias with the collection that it leads to; empty where the key may not ask.
pub(crate) fn aliases(client: &Client) -> Result<Vec<(String, String)>> {
    let answer = match client.ask("GET", "/aliases", &Value::Null) {
        Err(error) if error.is_unauthorised() => return Ok(Vec::new()),
        answer => answer?,
    };
    let name = |alias: &Value, field: &str| alias[field].as_str().unwrap_or_default().to_owned();
    let aliases = answer["aliases"].as_array().into_iter().flatten();
    Ok(aliases.map(|alias| (name(alias, "alias_name"), name(alias, "collection_name"))).collect())
}

/// Returns the names of a collection's vectors except the unnamed one: dense, sparse, and lists of vectors.
pub(crate) fn names_of_vectors(client: &Client, collection: &str) -> Result<Vec<String>> {
    let answer = look(client, collection)?.unwrap_or_default();
    let params = &answer["config"]["params"];
    let named = |kind: &str| {
        params[kind].as_object().filter(|named| !named.get("size").is_some_and(Value::is_u64)).cloned()
    };
    Ok(["vectors", "sparse_vectors"]
        .iter()
        .filter_map(|kind| named(kind))
        .flatten()
        .map(|(name, _)| name)
        .collect())
}

/// Reads how a collection is configured. Refuses one in which a gallery cannot keep its promises.
pub(crate) fn facts(client: &Client, collection: &str) -> Result<Facts> {
    let answer = look(client, collection)?;
    let answer = answer.ok_or_else(|| Error::not_found("collection", collection, client.name()))?;
    let params = &answer["config"]["params"];
    let what = format!("collection {collection}");
    if params["replication_factor"].as_u64().unwrap_or(1) > 1 {
        // Each replica decides a condition for itself, and replicas may see two writers in different orders.
        let why = "one with replication_factor 1: replicas decide conditional writes each for itself";
        return Err(Error::option(what, "with replicas", why));
    }
    if params["sharding_method"].as_str() == Some("custom") {
        let why = "one that the server shards by itself: with keys of shards of the application's, an id may be there twice, and a write \
                   has to name the key; copy the points into a collection without them";
        return Err(Error::option(what, "with custom sharding", why));
    }
    let limits = Limits::from_strict_mode(&answer["config"]["strict_mode_config"], &what)?;
    if answer["config"]["optimizer_config"]["prevent_unoptimized"].as_bool() == Some(true) {
        let why = "one without prevent_unoptimized, which hides points that were just written";
        return Err(Error::option(what, "with prevent_unoptimized", why));
    }
    let (mut vectors, mut lists) = (Vec::new(), Vec::new());
    let mut take = |name: &str, vector: &Value| {
        let is_named = |distance: &Distance| vector["distance"] == name_of(*distance);
        let Some(distance) = Distance::ALL.into_iter().find(is_named) else { return };
        let size = vector["size"].as_u64().unwrap_or(0) as usize;
        if !vector["multivector_config"].is_null() {
            lists.push(name.to_owned());
        } else if size > 0 {
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
    Ok(Facts {
        points: answer["points_count"].as_u64().unwrap_or(0),
        indexed: answer["indexed_vectors_count"].as_u64().unwrap_or(0),
        health: match answer["status"].as_str() {
            Some("green") => Health::Green,
            Some("grey") => Health::Grey,
            Some("red") => {
                let error = answer["optimizer_status"]["error"].as_str();
                Health::Red(error.unwrap_or("it says no reason").chars().take(500).collect())
            }
            _ => Health::Yellow,
        },
        has_witness: vectors.iter().any(|(name, size, _)| name == WITNESS && *size == 1),
        has_sparse_witness: !params["sparse_vectors"][WITNESS].is_null(),
        vectors,
        lists,
        described: params["vectors"].clone(),
        indexes: answer["payload_schema"]
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys().cloned())
            .collect(),
        limits,
    })
}

/// Reads a collection as the server describes it; `None` where there is none.
pub(crate) fn look(client: &Client, collection: &str) -> Result<Option<Value>> {
    let answer = client.ask("GET", &format!("/collections/{collection}/exists"), &Value::Null)?;
    if answer["exists"].as_bool() != Some(true) {
        return Ok(None);
    }
    client.ask("GET", &format!("/collections/{collection}"), &Value::Null).map(Some)
}
