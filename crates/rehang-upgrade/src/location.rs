//! Where a gallery lies and how it is opened: the one place of this crate that names particular stores.
//!
//! Everything else knows [`Store`] alone. Another database is another kind of [`Location`], here.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rehang::{Error, Remedy, Result, Space};
use rehang_files::{folder_of, is_same_file};
use rehang_sqlite::SqliteStore;
use rehang_store::{Examined, Looked, Store};
use tempfile::{TempDir, TempPath};

use crate::collection::CollectionLocation;
use crate::observe::Observer;
use crate::table::{Adopted, TableLocation};

/// Where a gallery lies: in a SQLite file, in a table of PostgreSQL, or in a collection of Qdrant.
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

/// A lock of an upgrade, held until it is dropped; see [`Location::hold`].
pub type Held = Box<dyn Send>;

impl Location {
    /// A gallery in a SQLite file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// Opens the gallery, which has to be there.
    ///
    /// # Errors
    ///
    /// An I/O error where it is not there or not readable; corrupt where it is no gallery; as [`TableLocation::open`] and
    /// [`CollectionLocation::open`].
    pub fn open(&self) -> Result<Arc<dyn Examined>> {
        match self {
            Self::File(path) => Ok(Arc::new(SqliteStore::open(path)?)),
            Self::Table(table) => table.open(),
            Self::Collection(collection) => collection.open(),
        }
    }

    /// Whether something is there. A table or a collection that is named is there, or is not ours to make.
    pub fn exists(&self) -> bool {
        match self {
            Self::File(path) => path.exists(),
            Self::Table(_) | Self::Collection(_) => true,
        }
    }

    /// Whether two locations are one gallery, however their paths are spelled and whichever links lead there.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => is_same_file(one, other),
            (Self::Table(one), Self::Table(other)) => one == other,
            (Self::Collection(one), Self::Collection(other)) => one == other,
            _ => false,
        }
    }

    /// Makes an empty gallery where there is none, out of sight until it is [published](NewGallery::publish).
    ///
    /// # Errors
    ///
    /// A conflict where the log of an earlier gallery lies in the way; an invalid option for a table or a collection, which
    /// the application makes; I/O errors.
    pub fn make(&self) -> Result<NewGallery> {
        NewGallery::begin(self.expect_file("a new gallery")?)
    }

    /// The file of the gallery.
    fn expect_file(&self, what: &str) -> Result<&Path> {
        match self {
            Self::File(path) => Ok(path),
            other => Err(Error::option(what, other, "a gallery in a file")),
        }
    }

    fn is_a_file<T>(path: &Path) -> Result<T> {
        let expected = "\"postgres\" or \"qdrant\": what an application made, and no file";
        Err(Error::option("[gallery] kind", path.display(), expected))
    }

    /// Looks at an application's table or collection. Writes nothing.
    ///
    /// # Errors
    ///
    /// As [`TableLocation::look`] and [`CollectionLocation::look`]; an invalid option for a file.
    pub fn look(&self) -> Result<Looked> {
        match self {
            Self::File(path) => Self::is_a_file(path),
            Self::Table(table) => table.look(),
            Self::Collection(collection) => collection.look(),
        }
    }

    /// Every statement that [`Location::adopt`] runs in a database before it lists items and vectors. Writes nothing.
    ///
    /// # Errors
    ///
    /// As [`TableLocation::statements`]; an invalid option for anything but a table.
    pub fn statements(&self) -> Result<String> {
        match self {
            Self::Table(table) => table.statements(),
            other => Err(Error::option("the gallery", other, "a table: nothing else has statements to read")),
        }
    }

    /// Makes a gallery of an application's table or collection, with the old space in its own vectors. Ends one that was begun, and does
    /// nothing where all is done.
    ///
    /// # Errors
    ///
    /// As [`TableLocation::adopt`] and [`CollectionLocation::adopt`]; an invalid option for a file.
    pub fn adopt(&self, old: &Space, observer: &dyn Observer) -> Result<Adopted> {
        match self {
            Self::File(path) => Self::is_a_file(path),
            Self::Table(table) => table.adopt(old, observer),
            Self::Collection(collection) => collection.adopt(old, observer),
        }
    }

    /// Takes everything of ours out again: a table is left as it was found, but for the column that the vectors of the space that
    /// serves are moved into, if one is named; a collection, but for the named vector of that space.
    ///
    /// # Errors
    ///
    /// As [`TableLocation::release`] and [`CollectionLocation::release`]; an invalid option for a file, and for a column of a collection.
    pub fn release(&self, into: Option<&str>, observer: &dyn Observer) -> Result<()> {
        match (self, into) {
            (Self::File(path), _) => Self::is_a_file(path),
            (Self::Table(table), into) => table.release(into, observer),
            (Self::Collection(collection), None) => collection.release(),
            (Self::Collection(_), Some(into)) => Err(Error::option(
                "into",
                into,
                "left out: the vectors are in the collection, and stay there",
            )),
        }
    }

    /// The column that the vectors of the space that serves move into before a [release](Location::release), where none is named.
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

    /// Takes the lock of the upgrade, until what is given is dropped: held while a process fills or finishes, so that two
    /// do not do the same work. The system, or the server, lets go of it when the process ends, however it ends; correctness does not
    /// depend on it.
    ///
    /// # Errors
    ///
    /// A conflict where another process has it; I/O errors.
    pub fn hold(&self) -> Result<Held> {
        let gallery = match self {
            Self::File(path) => path,
            Self::Table(table) => return table.hold(),
            Self::Collection(collection) => return collection.hold(),
        };
        let path = beside(gallery, ".upgrade-lock");
        let file = fs_err::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| Error::io("open", &path, &error))?
            .into_file();
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(std::fs::TryLockError::WouldBlock) => Err(Error::conflict(
                format!("another process is at work on the upgrade of {self}"),
                "two would do the same work",
            )
            .advise(Remedy::AwaitOtherProcess)),
            Err(std::fs::TryLockError::Error(error)) => Err(Error::io("lock", &path, &error)),
        }
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

/// A gallery that appears whole or not at all: it is made in a hidden folder of its own beside its place, and moved there
/// at the end. Dropped before, it leaves nothing.
#[derive(Debug)]
pub struct NewGallery {
    place: PathBuf,
    store: SqliteStore,
    partial: PathBuf,
    /// Removed with everything in it when dropped.
    _folder: TempDir,
}

impl NewGallery {
    fn begin(place: &Path) -> Result<Self> {
        expect_no_log(place)?;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let folder = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".partial")
            .tempdir_in(folder_of(place))
            .map_err(|error| Error::io("create", place, &error))?;
        let partial = folder.path().join("gallery.db");
        Ok(Self { place: place.to_owned(), store: SqliteStore::create(&partial)?, partial, _folder: folder })
    }

    /// What is written into before it is published.
    pub fn store(&self) -> &dyn Store {
        &self.store
    }

    /// Gives the gallery its place. A gallery that came there in the meantime stays as it is, and is a conflict.
    ///
    /// # Errors
    ///
    /// A conflict where something is there by now; I/O errors.
    pub fn publish(self) -> Result<()> {
        let Self { place, store, partial, _folder } = self;
        // SQLite keeps the newest pages beside the file: they have to be in it before it is moved.
        store.close()?;
        expect_no_log(&place)?;
        TempPath::try_from_path(&partial)
            .and_then(|partial| partial.persist_noclobber(&place).map_err(|error| error.error))
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => Error::conflict(
                    format!("{} was made by another process during this import", place.display()),
                    "it is untouched and nothing was imported; run the import again to add to it, or give another name",
                ),
                _ => Error::io("create", &place, &error),
            })?;
        // Without this a loss of power may leave the folder without the name.
        #[cfg(unix)]
        fs_err::File::open(folder_of(&place))
            .and_then(|folder| folder.sync_all())
            .map_err(|error| Error::io("create", &place, &error))?;
        Ok(())
    }
}

/// Fails where the log of an earlier gallery lies beside the place of a new one: SQLite would take it for a part of that.
/// It is not ours to remove, since the last writes of a gallery that was moved away may lie there only.
fn expect_no_log(place: &Path) -> Result<()> {
    for suffix in ["-wal", "-journal"] {
        let log = beside(place, suffix);
        let is_there = fs_err::metadata(&log).is_ok_and(|metadata| metadata.len() > 0);
        // With a gallery beside it, it is that one's, and the gallery itself is in the way.
        if is_there && !place.exists() {
            return Err(Error::conflict(
                format!("the log {} of an earlier gallery is there without its gallery", log.display()),
                "bring that gallery back beside it, or remove the log if the gallery is gone for good",
            ));
        }
    }
    Ok(())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
