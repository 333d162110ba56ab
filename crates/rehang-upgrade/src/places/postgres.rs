//! Opens, makes and releases galleries in tables of PostgreSQL.

use std::sync::Arc;

use rehang_core::{Error, Provenance, Remedy, Result, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined, Ledger, Released, TableFindings, find_space};

use crate::observe::{Observer, counting};
use crate::places::location::{Adopted, GalleryKind, UpgradeLock};
use crate::places::table::{TableLocation, URL_ENV};

impl TableLocation {
    fn options(&self) -> TableOptions {
        TableOptions {
            table: self.table.clone(),
            id: self.id.clone(),
            source: self.source.clone(),
            label: self.label.clone(),
            payload: self.payload.clone(),
            vector: self.vector.clone(),
            condition: self.condition.clone(),
            published: self.published,
            column: Some(self.new_column()),
            keep_paid_s: self.keep_paid_s,
            root_certificates: self.root_certificates.clone(),
        }
    }

    /// Returns the address of the database, from the configuration or from the environment.
    fn address(&self) -> Result<String> {
        if let Some(url) = &self.url {
            return Ok(url.clone());
        }
        let name = self.url_env.as_deref().unwrap_or(URL_ENV);
        let url = std::env::var(name).ok().filter(|url| !url.is_empty());
        url.ok_or_else(|| {
            Error::missing(format!("the variable {name} with the address of the database"), self)
        })
    }

    fn store(&self) -> Result<PostgresStore> {
        PostgresStore::open(&self.address()?, &self.options(), Some(&self.old))
    }

    /// Fails where the old space is gone, so that searches would have no vectors left after a release, and
    /// some of the new vectors were paid for. A gallery that cannot be opened any more passes.
    fn expect_another_way_to_search(&self) -> Result<()> {
        let Ok(store) = self.store() else { return Ok(()) };
        let Some(serving) = store.serving()?.filter(|serving| *serving != self.old) else { return Ok(()) };
        let native = store.counts(&serving)?.native;
        if native == 0 || find_space(&store, &self.old)?.is_some() {
            return Ok(());
        }
        let detail = format!(
            "{native} items have vectors of {serving:?}, which searches go to and which lie in no column of the table: the space {:?} is gone, and a \
             release that moves none drops them",
            self.old
        );
        Err(Error::conflict(self, detail).advise(Remedy::MoveOrDrop))
    }
}

impl GalleryKind for TableLocation {
    fn name(&self) -> String {
        self.to_string()
    }

    fn open(&self) -> Result<Arc<dyn Examined>> {
        Ok(Arc::new(self.store()?))
    }

    /// Takes a lease as the lock; its process renews it.
    fn lock(&self) -> Result<UpgradeLock> {
        Ok(Box::new(self.store()?.hold()?))
    }

    fn look(&self) -> Result<TableFindings> {
        PostgresStore::inspect(&self.address()?, &self.options())
    }

    fn statements(&self) -> Result<String> {
        PostgresStore::statements(&self.address()?, &self.options())
    }

    fn adopt(&self, old: &Space, observer: &dyn Observer) -> Result<Adopted> {
        if self.vector.is_none() {
            return Err(Error::missing("[gallery] vector, the column with the old model's vectors", self));
        }
        PostgresStore::expect_vectors(&self.address()?, &self.options(), old)?;
        let advance = counting(observer, "making a gallery of the table", "rows");
        let store = PostgresStore::adopt(&self.address()?, &self.options(), Some(&self.old), &advance)?;
        // The old space is not made again where an upgrade from it is finished.
        let space = match store.serving()?.filter(|serving| *serving != old.name) {
            Some(serving) if find_space(&store, &old.name)?.is_none() => serving,
            _ => {
                store.create_space(old, Provenance::Old)?;
                old.name.clone()
            }
        };
        let counts = store.counts(&space)?;
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
        anyway: bool,
        observer: &dyn Observer,
    ) -> Result<Option<Released>> {
        let Some(column) = into else {
            if with_adapted {
                let expected = "a column that they move into, too";
                return Err(Error::option("with_adapted", true, expected));
            }
            if !anyway {
                self.expect_another_way_to_search()?;
            }
            return PostgresStore::take_out(&self.address()?, &self.options()).map(|()| None);
        };
        let store = self.store()?;
        let advance = counting(observer, "moving vectors into the table", "vectors");
        let released = if with_adapted {
            store.settle_with_adapted(column, &advance)?
        } else {
            store.settle(column, &advance)?
        };
        store.release(into)?;
        Ok(Some(released))
    }
}
