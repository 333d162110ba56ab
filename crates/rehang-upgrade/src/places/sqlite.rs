//! Opens and makes galleries in SQLite files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rehang_core::{Error, Remedy, Result};
use rehang_files::folder_of;
use rehang_sqlite::SqliteStore;
use rehang_store::{Examined, Store};
use tempfile::{TempDir, TempPath};

use crate::places::location::{GalleryKind, NewGallery, UpgradeLock};

impl GalleryKind for PathBuf {
    fn name(&self) -> String {
        self.display().to_string()
    }

    fn open(&self) -> Result<Arc<dyn Examined>> {
        Ok(Arc::new(SqliteStore::open(self)?))
    }

    fn make(&self) -> Result<Box<dyn NewGallery>> {
        Ok(Box::new(NewFile::begin(self)?))
    }

    /// Locks a file beside the gallery. The system lets go of its lock when the process ends.
    fn lock(&self) -> Result<UpgradeLock> {
        let path = beside(self, ".upgrade-lock");
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
                format!("another process is at work on the upgrade of {}", self.display()),
                "two would do the same work",
            )
            .advise(Remedy::AwaitOtherProcess)),
            Err(std::fs::TryLockError::Error(error)) => Err(Error::io("lock", &path, &error)),
        }
    }
}

/// Gallery in the making: a file in a hidden folder of its own beside its place, moved there at the end.
struct NewFile {
    place: PathBuf,
    store: SqliteStore,
    partial: PathBuf,
    /// Folder of `partial`, removed with everything in it when dropped.
    _folder: TempDir,
}

impl NewFile {
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
}

impl NewGallery for NewFile {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn publish(self: Box<Self>) -> Result<()> {
        let Self { place, store, partial, _folder } = *self;
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
        // Without this, a loss of power may leave the folder without the name.
        #[cfg(unix)]
        fs_err::File::open(folder_of(&place))
            .and_then(|folder| folder.sync_all())
            .map_err(|error| Error::io("create", &place, &error))?;
        Ok(())
    }
}

/// Fails where the log of an earlier gallery lies beside the place of a new one: SQLite would take it for a
/// part of the new one. The log is not ours to remove, since the last writes of a gallery that was moved away
/// may lie there only.
fn expect_no_log(place: &Path) -> Result<()> {
    for suffix in ["-wal", "-journal"] {
        let log = beside(place, suffix);
        let is_there = fs_err::metadata(&log).is_ok_and(|metadata| metadata.len() > 0);
        // A log with a gallery beside it belongs to that gallery, which itself is in the way.
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
