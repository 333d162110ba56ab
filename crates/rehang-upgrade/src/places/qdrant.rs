//! Opens, makes and releases galleries in collections of Qdrant.

use std::sync::Arc;

use rehang_core::{Error, Provenance, Result, Space};
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{Examined, Ledger, Released, TableFindings};

use crate::observe::{Observer, counting};
use crate::places::collection::{CollectionLocation, QDRANT_URL_ENV};
use crate::places::location::{Adopted, GalleryKind, UpgradeLock};

/// Variable of the environment with the server's key, where a configuration names none.
const QDRANT_KEY_ENV: &str = "QDRANT_API_KEY";

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

    /// Returns the address of the server, from the configuration or from the environment.
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
        let address = QdrantAddress::new(url)
            .with_key(key)
            .with_plain_http(self.plain_http)
            .with_root_certificates(self.root_certificates.clone());
        Ok(match self.request_max {
            Some(bytes) => address.with_request_max(bytes),
            None => address,
        })
    }

    fn store(&self) -> Result<QdrantStore> {
        QdrantStore::open(&self.address()?, &self.options(), Some(&self.old))
    }
}

impl GalleryKind for CollectionLocation {
    fn name(&self) -> String {
        self.to_string()
    }

    fn open(&self) -> Result<Arc<dyn Examined>> {
        Ok(Arc::new(self.store()?))
    }

    /// Locks nothing: the server has no lock that ends with the process that holds it. Two processes that
    /// fill at once do the same work twice, and no harm.
    fn lock(&self) -> Result<UpgradeLock> {
        self.store().map(|_| Box::new(()) as UpgradeLock)
    }

    fn look(&self) -> Result<TableFindings> {
        QdrantStore::inspect(&self.address()?, &self.options())
    }

    fn adopt(&self, old: &Space, observer: &dyn Observer) -> Result<Adopted> {
        if self.vector.is_none() {
            return Err(Error::missing("[gallery] vector, the named vector of the old model", self));
        }
        let advance = counting(observer, "making a gallery of the collection", "points");
        let store = QdrantStore::adopt(&self.address()?, &self.options(), Some(&self.old), &advance)?;
        store.create_space(old, Provenance::Old)?;
        let counts = store.counts(&old.name)?;
        let vectors = counts.items - counts.lacking;
        Ok(Adopted {
            gallery: store.name(),
            items: counts.items,
            vectors,
            without_source: store.count_without_source()?,
            remarks: store.remarks()?,
        })
    }

    fn release(
        &self,
        into: Option<&str>,
        with_adapted: bool,
        _: bool,
        _: &dyn Observer,
    ) -> Result<Option<Released>> {
        match into {
            None => self.store()?.release(with_adapted).map(Some),
            Some(into) => Err(Error::option(
                "into",
                into,
                "left out: the vectors are in the collection, and stay there",
            )),
        }
    }
}
