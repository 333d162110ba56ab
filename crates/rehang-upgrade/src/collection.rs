//! How a configuration names a gallery that lies in a collection of an application.

use std::fmt;
use std::path::PathBuf;

/// The variable that holds the address where a configuration names none.
pub const QDRANT_URL_ENV: &str = "QDRANT_URL";

/// A collection of Qdrant that is, or will be, a gallery: `[gallery]` of a configuration.
///
/// Another process may write and read it at any time. The configuration states what the gallery was made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectionLocation {
    /// The server, `http://127.0.0.1:6333`.
    pub url: Option<String>,
    /// The variable of the environment that holds it.
    pub url_env: Option<String>,
    /// The variable of the environment that holds the server's key.
    pub key_env: Option<String>,
    /// Whether the key is sent over `http://` to another machine, where it can be read on the way.
    pub plain_http: bool,
    /// A file in the PEM format with authorities that are trusted besides the system's.
    pub root_certificates: Option<PathBuf>,
    /// Bytes of a request at most, where that is less than the server takes.
    pub request_max: Option<usize>,
    /// The collection.
    pub collection: String,
    /// The payload field with what can be embedded again.
    pub source: Option<String>,
    /// A payload field with a class, tag or group.
    pub label: Option<String>,
    /// The payload field that is an item's payload; all others where there is none.
    pub payload: Option<String>,
    /// The named vector of the old model; empty text for the unnamed one.
    pub vector: Option<String>,
    /// Name of the old space, whose vectors these are.
    pub old: String,
}

impl fmt::Display for CollectionLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "collection {}", self.collection)
    }
}
