//! Galleries that lie in collections of Qdrant: how they are named, and made.

use std::fmt;
use std::sync::Arc;

use rehang::{Error, Provenance, Result, Space};
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{Examined, Ledger, Looked};

use crate::location::Held;
use crate::observe::{Observer, counting};
use crate::table::Adopted;

/// The variable that holds the address where a configuration names none, and the one with the key that a server asks for.
pub const QDRANT_URL_ENV: &str = "QDRANT_URL";
pub(crate) const QDRANT_KEY_ENV: &str = "QDRANT_API_KEY";

/// A collection of Qdrant that is, or will be, a gallery: `[gallery]` of a configuration.
///
/// Another process may write and read it at any time. What stands in the configuration is what a gallery was made by.
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

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl CollectionLocation {
    fn options(&self) -> CollectionOptions {
        CollectionOptions {
            collection: self.collection.clone(),
            source: self.source.clone(),
            label: self.label.clone(),
            payload: self.payload.clone(),
            vector: self.vector.clone(),
        }
    }

    /// The address, from the configuration or from the environment.
    pub(crate) fn address(&self) -> Result<QdrantAddress> {
        let name = self.url_env.as_deref().unwrap_or(QDRANT_URL_ENV);
        let url = self.url.clone().or_else(|| variable(name));
        let url = url.ok_or_else(|| {
            Error::missing(format!("the variable {name} with the address of the server"), self)
        })?;
        let key = match &self.key_env {
            None => variable(QDRANT_KEY_ENV),
            Some(name) => {
                let missing =
                    || Error::missing(format!("the variable {name} with the key of the server"), self);
                Some(variable(name).ok_or_else(missing)?)
            }
        };
        Ok(QdrantAddress::new(url).with_key(key).with_plain_http(self.plain_http))
    }

    fn store(&self) -> Result<QdrantStore> {
        QdrantStore::open(&self.address()?, &self.options(), Some(&self.old))
    }

    /// Opens the gallery in the collection.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::open`]; missing input where no address is given.
    pub fn open(&self) -> Result<Arc<dyn Examined>> {
        Ok(Arc::new(self.store()?))
    }

    /// Holds nothing: the server has no lock that ends with the process that has it. Two that fill at once do the same work, and no harm.
    ///
    /// # Errors
    ///
    /// As [`CollectionLocation::open`].
    pub fn hold(&self) -> Result<Held> {
        self.store().map(|_| Box::new(()) as Held)
    }

    /// Looks at the collection. Writes nothing.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::inspect`].
    pub fn look(&self) -> Result<Looked> {
        QdrantStore::inspect(&self.address()?, &self.options())
    }

    /// Makes a gallery of the collection, with the old space in its vector. Ends one that was begun, and does nothing where all is done.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::adopt`]; missing input where the old model's vector is not named.
    pub fn adopt(&self, old: &Space, observer: &dyn Observer) -> Result<Adopted> {
        if self.vector.is_none() {
            return Err(Error::missing("[gallery] vector, the named vector of the old model", self));
        }
        let advance = counting(observer, "making a gallery of the collection", "points");
        let store = QdrantStore::adopt(&self.address()?, &self.options(), Some(&self.old), &advance)?;
        store.create_space(old, Provenance::Old)?;
        let counts = store.counts(&old.name)?;
        Ok(Adopted { gallery: store.name(), items: counts.items, vectors: counts.items - counts.lacking })
    }

    /// Takes everything of ours out of the server again, but for the named vector of the space that serves.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::release`].
    pub fn release(&self) -> Result<()> {
        self.store()?.release()
    }
}
