//! Location of a gallery in an application's collection of Qdrant, as a configuration names it.

use std::fmt;
use std::path::PathBuf;

/// Variable of the environment that holds the server's address where a configuration names none.
pub const QDRANT_URL_ENV: &str = "QDRANT_URL";

/// A collection of Qdrant that is, or will be, a gallery: `[gallery]` of a configuration.
///
/// Another process may write and read it at any time. The configuration states what the
/// gallery was made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectionLocation {
    /// Address of the server, such as `http://127.0.0.1:6333`.
    pub url: Option<String>,
    /// Variable of the environment that holds the server's address.
    pub url_env: Option<String>,
    /// Variable of the environment that holds the server's key.
    pub key_env: Option<String>,
    /// Whether the key is sent over `http://` to another machine, where it can be read on the way.
    pub plain_http: bool,
    /// A file in the PEM format with authorities that are trusted besides the system's.
    pub root_certificates: Option<PathBuf>,
    /// Largest size of a request in bytes, where that is less than the server takes.
    pub request_max: Option<usize>,
    /// Name of the collection.
    pub collection: String,
    /// Payload field with the source of an item, from which it can be embedded again.
    pub source: Option<String>,
    /// Payload field with a class, tag or group.
    pub label: Option<String>,
    /// Payload field that is an item's payload; all other fields where there is none.
    pub payload: Option<String>,
    /// Named vector of the old model; empty text for the unnamed one.
    pub vector: Option<String>,
    /// Name of the old space, which the collection's vectors belong to.
    pub old: String,
}

impl fmt::Display for CollectionLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "collection {}", self.collection)
    }
}
