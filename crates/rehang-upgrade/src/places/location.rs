//! Location of a gallery, and how the gallery is opened there.
//!
//! All other code knows [`Store`] alone. Another database would be another kind of [`Location`] here, and a
//! file beside `sqlite.rs`, `postgres.rs` and `qdrant.rs`, behind a feature of its own, which says how that
//! database does it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rehang_core::{Error, ErrorKind, Party, Result, Space};
use rehang_files::is_same_file;
use rehang_store::{Examined, Released, Store, TableFindings};
use serde::Serialize;

use crate::observe::Observer;
use crate::places::collection::CollectionLocation;
use crate::places::table::TableLocation;

/// Location of a gallery: a SQLite file, a table of PostgreSQL, or a collection of Qdrant.
///
/// A location can be read and compared in every build. Opening or making one needs its database's feature
/// (`sqlite`, `postgres` or `qdrant`); a build without it fails with [`ErrorKind::MissingFeature`].
///
/// ```
/// use rehang_upgrade::Location;
///
/// let folder = tempfile::tempdir()?;
/// let location = Location::file(folder.path().join("gallery.db"));
/// assert!(location.open().is_err(), "nothing is made by opening");
/// location.make()?.publish()?;
/// assert!(location.open()?.spaces()?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// A table of an application.
    Table(Box<TableLocation>),
    /// A collection of an application.
    Collection(Box<CollectionLocation>),
}

/// A lock of an upgrade, held until it is dropped; see [`Location::lock`].
pub type UpgradeLock = Box<dyn Send>;

/// Result of making a gallery of a table or a collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Adopted {
    /// Name of the gallery, as messages have it.
    pub gallery: String,
    /// Rows or points that are items now.
    pub items: u64,
    /// Items that have an old vector.
    pub vectors: u64,
    /// Items that have no source: they never become native.
    pub without_source: u64,
    /// Remarks on the server, for whoever runs it.
    pub remarks: Vec<String>,
}

/// Gallery in the making that appears whole or not at all. Dropped before it is published, it leaves nothing.
pub trait NewGallery {
    /// Returns the store to write into before the gallery is published.
    fn store(&self) -> &dyn Store;

    /// Gives the gallery its place. A gallery that came there in the meantime stays as it is, and is a
    /// conflict.
    ///
    /// # Errors
    ///
    /// A conflict where something is there by now; I/O errors.
    fn publish(self: Box<Self>) -> Result<()>;
}

/// Database of one kind, which does what [`Location`] is asked for.
pub(crate) trait GalleryKind {
    /// Returns the gallery's name for messages.
    fn name(&self) -> String;

    /// Opens the gallery, as [`Location::open`] says.
    fn open(&self) -> Result<Arc<dyn Examined>>;

    /// Takes the lock of the upgrade, as [`Location::lock`] says.
    fn lock(&self) -> Result<UpgradeLock>;

    /// Makes an empty gallery, as [`Location::make`] says; unless a kind says otherwise, the application
    /// makes its galleries.
    fn make(&self) -> Result<Box<dyn NewGallery>> {
        Err(Error::option("a new gallery", self.name(), "a gallery in a file"))
    }

    /// Looks at a table or a collection, as [`Location::look`] says.
    fn look(&self) -> Result<TableFindings> {
        Err(self.not_an_application())
    }

    /// Lists the statements of an adoption, as [`Location::statements`] says.
    fn statements(&self) -> Result<String> {
        Err(Error::option("the gallery", self.name(), "a table: nothing else has statements to read"))
    }

    /// Makes a gallery of a table or a collection, as [`Location::adopt`] says.
    fn adopt(&self, _: &Space, _: &dyn Observer) -> Result<Adopted> {
        Err(self.not_an_application())
    }

    /// Takes everything of ours out again, as [`Location::release`] says.
    fn release(&self, _: Option<&str>, _: bool, _: bool, _: &dyn Observer) -> Result<Option<Released>> {
        Err(self.not_an_application())
    }

    /// Returns the error for a verb that needs an application's table or collection and is given another
    /// gallery.
    fn not_an_application(&self) -> Error {
        let expected = "\"postgres\" or \"qdrant\": what an application made, and no file";
        Error::option("[gallery] kind", self.name(), expected)
    }
}

impl Location {
    /// Names a gallery in a SQLite file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// Finds the database of this location, in a build that has that database.
    fn kind(&self) -> Result<&dyn GalleryKind> {
        let (feature, kind): (_, Option<&dyn GalleryKind>) = match self {
            #[cfg(feature = "sqlite")]
            Self::File(path) => ("sqlite", Some(path)),
            #[cfg(not(feature = "sqlite"))]
            Self::File(_) => ("sqlite", None),
            #[cfg(feature = "postgres")]
            Self::Table(table) => ("postgres", Some(&**table)),
            #[cfg(not(feature = "postgres"))]
            Self::Table(_) => ("postgres", None),
            #[cfg(feature = "qdrant")]
            Self::Collection(collection) => ("qdrant", Some(&**collection)),
            #[cfg(not(feature = "qdrant"))]
            Self::Collection(_) => ("qdrant", None),
        };
        kind.ok_or_else(|| ErrorKind::MissingFeature { feature }.into())
    }

    /// Opens the gallery, which has to be there.
    ///
    /// # Errors
    ///
    /// An I/O error where it is not there or not readable; corrupt where it is no gallery; missing input
    /// where no address of its server is given.
    pub fn open(&self) -> Result<Arc<dyn Examined>> {
        self.kind()?.open().map_err(|error| error.blame(Party::Database))
    }

    /// Whether something lies at the location. Always true of a table or a collection, which the application
    /// makes.
    pub fn exists(&self) -> bool {
        match self {
            Self::File(path) => path.exists(),
            Self::Table(_) | Self::Collection(_) => true,
        }
    }

    /// Whether two locations are one gallery, however their paths are spelled and whichever links lead there.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(path), Self::File(other_path)) => is_same_file(path, other_path),
            (location, other) => location == other,
        }
    }

    /// Makes an empty gallery where there is none, out of sight until it is [published](NewGallery::publish).
    ///
    /// # Errors
    ///
    /// A conflict where the log of an earlier gallery lies in the way; an invalid option for a table or a
    /// collection, which the application makes; I/O errors.
    pub fn make(&self) -> Result<Box<dyn NewGallery>> {
        self.kind()?.make()
    }

    /// Looks at an application's table or collection. Writes nothing.
    ///
    /// # Errors
    ///
    /// Missing input where no address of the server is given; what the server says; an invalid option for a
    /// file.
    pub fn look(&self) -> Result<TableFindings> {
        self.kind()?.look()
    }

    /// Every statement that [`Location::adopt`] runs in a database before it lists items and vectors. Writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`Location::look`]; an invalid option for anything but a table.
    pub fn statements(&self) -> Result<String> {
        self.kind()?.statements()
    }

    /// Makes a gallery of an application's table or collection, with the old space in its own vectors.
    /// Completes an adoption that was begun, and does nothing where one is complete.
    ///
    /// # Errors
    ///
    /// As [`Location::look`]; missing input where the old model's vectors are not named; what the store
    /// refuses to make a gallery of.
    pub fn adopt(&self, old: &Space, observer: &dyn Observer) -> Result<Adopted> {
        self.kind()?.adopt(old, observer)
    }

    /// Takes everything of ours out again, and returns what became of the vectors. A table is left as it was
    /// found, except that the vectors of the serving space move into the column `into`, if one is named;
    /// where none is, the result is `None`. A collection keeps the named vector of the serving space.
    ///
    /// Items without a source whose vectors are adapted are left without a vector. With `with_adapted` all
    /// adapted vectors stay, and [`Released::adapted_in`] says where one sees which they are. With `anyway`,
    /// vectors are dropped even where searches of a table have no others.
    ///
    /// # Errors
    ///
    /// A conflict where no column is named and the serving space is the only one that is left, with vectors
    /// that were paid for. A conflict where the vectors that serve are in the table already, or where items
    /// with a source have adapted ones that are not to be taken along. An invalid option for a file, for a
    /// column of a collection, and for `with_adapted` of a table where no column is named.
    pub fn release(
        &self,
        into: Option<&str>,
        with_adapted: bool,
        anyway: bool,
        observer: &dyn Observer,
    ) -> Result<Option<Released>> {
        self.kind()?.release(into, with_adapted, anyway, observer)
    }

    /// Returns the column that the vectors of the serving space move into before a
    /// [release](Location::release), where none is named.
    ///
    /// # Errors
    ///
    /// An invalid option for anything but a table.
    pub fn new_column(&self) -> Result<String> {
        match self {
            Self::Table(table) => Ok(table.new_column()),
            other => Err(Error::option("the gallery", other, "a table, which has a column for them")),
        }
    }

    /// Takes the lock of the upgrade until the returned value is dropped: held while a process fills or
    /// finishes, so that two do not do the same work. The system, or the server, lets go of it when the
    /// process ends, however it ends (through a pooler of PostgreSQL within ten seconds). Correctness does
    /// not depend on it: a server without such a lock gives one that keeps nobody out.
    ///
    /// # Errors
    ///
    /// A conflict where another process has it; I/O errors.
    pub fn lock(&self) -> Result<UpgradeLock> {
        self.kind()?.lock()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Table(table) => table.fmt(f),
            Self::Collection(collection) => collection.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_store_names_the_feature_that_brings_it() {
        let (table, collection) = (TableLocation::default(), CollectionLocation::default());
        for (location, feature, is_built_in) in [
            (Location::file("G.db"), "sqlite", cfg!(feature = "sqlite")),
            (Location::Table(Box::new(table)), "postgres", cfg!(feature = "postgres")),
            (Location::Collection(Box::new(collection)), "qdrant", cfg!(feature = "qdrant")),
        ] {
            if let Err(error) = location.kind().map(drop) {
                assert!(!is_built_in && error.is_missing_feature(), "{error}");
                assert!(
                    error.to_string().contains(&format!("build again with --features {feature}")),
                    "{error}"
                );
                assert!(location.open().is_err_and(|error| error.is_missing_feature()));
            } else {
                assert!(is_built_in, "{feature}");
            }
        }
    }
}
