//! Galleries that lie in tables of an application: how they are named, and made.

use std::fmt;
use std::sync::Arc;

use rehang::{Result, Space};
use rehang_store::{Examined, Looked};
use serde::{Deserialize, Serialize};

use crate::location::Held;
use crate::observe::Observer;

/// A table of PostgreSQL that is, or will be, a gallery: `[gallery]` of a configuration.
///
/// Another process may write and read the table at any time. What stands in the configuration is what a gallery was made by: other
/// columns would make other items of the same rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableLocation {
    /// The server and the database, `postgresql://user@host/database`; a password is better kept where libpq finds it.
    pub url: Option<String>,
    /// The variable of the environment that holds it.
    pub url_env: Option<String>,
    /// The table, `schema.name` or `name`.
    pub table: String,
    /// Columns that say which item a row is; the primary key where there are none.
    pub id: Vec<String>,
    /// What can be embedded again: a column, or an SQL expression of the table's columns.
    pub source: Option<String>,
    /// A column with a class, tag or group.
    pub label: Option<String>,
    /// A column of type `jsonb` that is kept beside an item; all other columns where there is none.
    pub payload: Option<String>,
    /// The column with the vectors of the old model.
    pub vector: Option<String>,
    /// An SQL condition: rows that do not meet it are no items.
    pub condition: Option<String>,
    /// Name of the old space, whose vectors are in the column.
    pub old: String,
    /// Name of the new space.
    pub new: String,
    /// The column that the new vectors move into at the end; see [`TableLocation::new_column`].
    pub column: Option<String>,
}

/// Bytes of a name in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

impl TableLocation {
    /// The column that the new vectors move into at the end: the one that was given, or else one named after the column of the old
    /// vectors and the new space, `embedding_large` for `embedding` and `large`.
    pub fn new_column(&self) -> String {
        let made = || {
            let old = self.vector.as_deref().unwrap_or("vector");
            // Names of models have dots and dashes, and a column with them would have to be quoted for ever.
            let new = self.new.to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
            let mut name = format!("{old}_{new}");
            name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
            name
        };
        self.column.clone().unwrap_or_else(made)
    }
}

/// What making a gallery of a table did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// The gallery.
    pub gallery: String,
    /// Rows that are items now.
    pub items: u64,
    /// Those of them that have an old vector.
    pub vectors: u64,
}

impl fmt::Display for TableLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.table)
    }
}

/// The variable that holds the address where a configuration names none.
pub const URL_ENV: &str = "DATABASE_URL";

#[cfg(feature = "postgres")]
mod postgres {
    use rehang::{Error, Provenance};
    use rehang_postgres::{PostgresStore, TableOptions};
    use rehang_store::{Ledger, find_space};

    use super::{Adopted, Arc, Examined, Held, Looked, Observer, Result, Space, TableLocation, URL_ENV};
    use crate::observe::counting;

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
            }
        }

        /// The address, from the configuration or from the environment.
        fn address(&self) -> Result<String> {
            if let Some(url) = &self.url {
                return Ok(url.clone());
            }
            let name = self.url_env.as_deref().unwrap_or(URL_ENV);
            let found = std::env::var(name).ok().filter(|url| !url.is_empty());
            found.ok_or_else(|| {
                Error::missing(format!("the variable {name} with the address of the database"), self)
            })
        }

        /// Opens the gallery in the table.
        ///
        /// # Errors
        ///
        /// As [`PostgresStore::open`]; missing input where no address is given.
        pub fn open(&self) -> Result<Arc<dyn Examined>> {
            Ok(Arc::new(self.store()?))
        }

        fn store(&self) -> Result<PostgresStore> {
            PostgresStore::open(&self.address()?, &self.options(), Some(&self.old))
        }

        /// Takes the lock of the upgrade, which lasts as long as the connection.
        ///
        /// # Errors
        ///
        /// A conflict where another process has it.
        pub fn hold(&self) -> Result<Held> {
            Ok(Box::new(self.store()?.hold()?))
        }

        /// Looks at the table. Writes nothing.
        ///
        /// # Errors
        ///
        /// As [`PostgresStore::inspect`].
        pub fn look(&self) -> Result<Looked> {
            PostgresStore::inspect(&self.address()?, &self.options())
        }

        /// Every statement that [`TableLocation::adopt`] runs before it lists items and vectors. Writes nothing.
        ///
        /// # Errors
        ///
        /// As [`PostgresStore::inspect`].
        pub fn statements(&self) -> Result<String> {
            PostgresStore::statements(&self.address()?, &self.options())
        }

        /// Makes a gallery of the table, with the old space in its column of vectors. Ends one that was begun, and does nothing where all is
        /// done.
        ///
        /// # Errors
        ///
        /// As [`PostgresStore::adopt`]; missing input where the table has no column of old vectors.
        pub fn adopt(&self, old: &Space, observer: &dyn Observer) -> Result<Adopted> {
            if self.vector.is_none() {
                return Err(Error::missing(
                    "[gallery] vector, the column with the old model's vectors",
                    self,
                ));
            }
            let advance = counting(observer, "making a gallery of the table", "rows");
            let store = PostgresStore::adopt(&self.address()?, &self.options(), Some(&self.old), &advance)?;
            // Not where an upgrade from it is finished.
            let space = match store.serving()?.filter(|serving| *serving != old.name) {
                Some(serving) if find_space(&store, &old.name)?.is_none() => serving,
                _ => {
                    store.create_space(old, Provenance::Old)?;
                    old.name.clone()
                }
            };
            let counts = store.counts(&space)?;
            Ok(Adopted { gallery: store.name(), items: counts.items, vectors: counts.items - counts.lacking })
        }

        /// Takes everything of ours out of the database again; the table is left as it was found, but for the column that the vectors
        /// of the space that serves are moved into, if one is named.
        ///
        /// # Errors
        ///
        /// A conflict where the vectors that serve are in the table already, or some of them are adapted; as [`PostgresStore::settle`] and
        /// [`PostgresStore::release`].
        pub fn release(&self, into: Option<&str>, observer: &dyn Observer) -> Result<()> {
            let store = self.store()?;
            if let Some(column) = into {
                store.settle(column, &counting(observer, "moving vectors into the table", "vectors"))?;
            }
            store.release(into)
        }
    }
}

#[cfg(not(feature = "postgres"))]
mod left_out {
    use rehang::ErrorKind;

    use super::{Adopted, Arc, Examined, Held, Looked, Observer, Result, Space, TableLocation};

    fn missing<T>() -> Result<T> {
        Err(ErrorKind::MissingFeature { feature: "postgres" }.into())
    }

    #[allow(
        missing_docs,
        clippy::missing_errors_doc,
        clippy::unused_self,
        reason = "each only says that it is left out"
    )]
    impl TableLocation {
        pub fn open(&self) -> Result<Arc<dyn Examined>> {
            missing()
        }

        pub fn hold(&self) -> Result<Held> {
            missing()
        }

        pub fn look(&self) -> Result<Looked> {
            missing()
        }

        pub fn statements(&self) -> Result<String> {
            missing()
        }

        pub fn adopt(&self, _: &Space, _: &dyn Observer) -> Result<Adopted> {
            missing()
        }

        pub fn release(&self, _: Option<&str>, _: &dyn Observer) -> Result<()> {
            missing()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_column_is_named_after_the_old_one_and_the_model() {
        let of = |vector: Option<&str>, new: &str, column: Option<&str>| {
            let [vector, column] = [vector, column].map(|name| name.map(str::to_owned));
            TableLocation { vector, new: new.into(), column, ..TableLocation::default() }.new_column()
        };
        assert_eq!(of(Some("embedding"), "MiniLM-L6 v2.0", None), "embedding_minilm_l6_v2_0");
        assert_eq!(of(None, "large", None), "vector_large");
        assert_eq!(of(Some("embedding"), "large", Some("Mine")), "Mine");
        let long = of(Some(&"ä".repeat(40)), "large", None);
        assert_eq!(long, "ä".repeat(31), "62 of 63 bytes, since a letter is not cut");
    }
}
