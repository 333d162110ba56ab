//! Folders of files wherever they lie: on this machine, or in a store that only fetches and keeps whole
//! objects.
//!
//! [`Folder`] is all that [`partitions`](crate::partitions) and [`thresholds`](crate::thresholds) know of a
//! place. [`LocalFolder`] is a folder of this machine, whose files are read and written where they are.
//! `rehang-objects` has the folders of object stores.

use std::fmt;
use std::fs::Metadata;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::atomic::AtomicFile;
use crate::paths::folder_of;
use rehang_core::{Error, Result};

/// Endings of the names of partitions: the formats that rehang can write as well as read.
const EXTENSIONS: [&str; 5] = ["parquet", "pq", "npy", "fvecs", "safetensors"];

/// A folder of files. A file is named by its path within the folder.
///
/// **Invariant** of every implementation: a name stands for a whole file or for none, whenever a process
/// dies. Unchanged [`Stamp`]s mean unchanged bytes.
pub trait Folder: fmt::Debug + Send + Sync {
    /// Name of the folder as people gave it: a path, or an address.
    fn address(&self) -> PathBuf;

    /// Lists the [partitions](is_partition) at any depth, in the order of their names.
    ///
    /// # Errors
    ///
    /// Whatever keeps the partitions from being listed: no such place, no permission, no route.
    fn list(&self) -> Result<Vec<PathBuf>>;

    /// State of a file; `None` where there is no such file.
    ///
    /// # Errors
    ///
    /// Whatever keeps the place from being asked.
    fn stamp(&self, name: &Path) -> Result<Option<Stamp>>;

    /// Fetches a file to read on this machine. It stays there for as long as the answer lives.
    ///
    /// # Errors
    ///
    /// Whatever keeps the file from being fetched: it is not there, no permission, no route, no room.
    fn fetch(&self, name: &Path) -> Result<Fetched>;

    /// Fetches a file of which one column of numbers is read, as [`crate::read_f32_column`] does. A place
    /// that can leave the rest out puts zeros there.
    ///
    /// # Errors
    ///
    /// As [`Folder::fetch`].
    fn fetch_f32_column(&self, name: &Path, _column: Option<&str>) -> Result<Fetched> {
        self.fetch(name)
    }

    /// Calls `make` with a path at which it writes a file, and keeps that file under `name`. The file that
    /// stood there before stays until the new one is whole.
    ///
    /// # Errors
    ///
    /// The errors of `make`, after which nothing is kept; whatever keeps the file from being written.
    fn put(&self, name: &Path, make: &mut dyn FnMut(&Path) -> Result<()>) -> Result<Stamp>;

    /// Reads a small file; `None` where there is none that can be read.
    ///
    /// # Errors
    ///
    /// Whatever keeps the place from being asked.
    fn read(&self, name: &Path) -> Result<Option<Vec<u8>>>;

    /// Writes a small file, whole or not at all.
    ///
    /// # Errors
    ///
    /// Whatever keeps the file from being written.
    fn write(&self, name: &Path, bytes: &[u8]) -> Result<()>;
}

/// State of a file: its length, and its time of writing or its version in an object store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Time of writing, in nanoseconds since 1970; 0 where the system does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
    /// Version that an object store gives the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

impl Stamp {
    fn from_metadata(metadata: &Metadata) -> Self {
        let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let written = since.map_or(0, |since| since.as_nanos() as u64);
        Self { bytes: metadata.len(), written: Some(written), etag: None }
    }
}

/// A file on this machine. If it was fetched from elsewhere, it is removed with the last copy of this handle.
#[derive(Debug, Clone)]
pub struct Fetched(Arc<Held>);

#[derive(Debug)]
struct Held {
    path: PathBuf,
    stamp: Stamp,
    /// Temporary folder that is removed with the file.
    _temporary: Option<TempDir>,
}

impl Fetched {
    /// Makes the handle of a file that was fetched into a temporary folder, with the state that the original
    /// had.
    pub fn new(path: PathBuf, stamp: Stamp, temporary: TempDir) -> Self {
        Self(Arc::new(Held { path, stamp, _temporary: Some(temporary) }))
    }

    /// Path of the file on this machine.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// State that the file had before it was read.
    pub fn stamp(&self) -> &Stamp {
        &self.0.stamp
    }
}

impl PartialEq for Fetched {
    fn eq(&self, other: &Self) -> bool {
        self.0.path == other.0.path
    }
}

impl Eq for Fetched {}

/// Whether a file is a partition, by its name from the folder: a file of vectors whose name does not begin
/// with `_` or `.`, and whose folders' names do not either. A folder `_key=value` stands for a column and
/// counts. Spark has the same rule.
///
/// ```
/// use std::path::Path;
/// use rehang_files::folders::is_partition;
///
/// assert!(["a.parquet", "day=1/b.NPY", "_day=1/c.fvecs"].iter().all(|name| is_partition(Path::new(name))));
/// assert!(!["_SUCCESS", "_rehang/a.npy", ".a.npy", "a.txt"].iter().any(|name| is_partition(Path::new(name))));
/// ```
pub fn is_partition(name: &Path) -> bool {
    let extension = name.extension().and_then(|extension| extension.to_str());
    let is_seen = folder_of(name).components().all(|folder| is_seen(folder, true));
    is_seen
        && name.components().next_back().is_some_and(|file| self::is_seen(file, false))
        && extension.is_some_and(|extension| EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()))
}

/// Whether a file, or a folder on the way to it, is looked at.
fn is_seen(part: Component<'_>, is_folder: bool) -> bool {
    let name = part.as_os_str().to_string_lossy();
    part == Component::CurDir
        || !(name.starts_with('.') || (name.starts_with('_') && !(is_folder && name.contains('='))))
}

/// Lists the partitions of a folder that must have at least one.
///
/// # Errors
///
/// As [`Folder::list`]; [`ErrorKind::Empty`](rehang_core::ErrorKind::Empty).
pub fn expect_partitions(folder: &dyn Folder) -> Result<Vec<PathBuf>> {
    let partitions = folder.list()?;
    if partitions.is_empty() {
        let endings = EXTENSIONS.map(|extension| format!(".{extension}")).join(", ");
        return Err(Error::empty(format!(
            "{} (it has no file that ends in {endings})",
            folder.address().display()
        )));
    }
    Ok(partitions)
}

/// A folder of this machine. Its files are not copied.
///
/// ```
/// use std::path::Path;
/// use rehang_files::folders::{Folder, LocalFolder};
///
/// let place = tempfile::tempdir()?;
/// let folder = LocalFolder::new(place.path());
/// folder.write(Path::new("day=1/a.npy"), b"no array")?;
/// assert_eq!(folder.list()?, [Path::new("day=1/a.npy")]);
/// assert_eq!(folder.fetch(Path::new("day=1/a.npy"))?.path(), place.path().join("day=1/a.npy"));
/// assert!(folder.stamp(Path::new("day=2/a.npy"))?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LocalFolder(PathBuf);

impl LocalFolder {
    /// Returns the folder at a path, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the path of a file, and makes its folder where it does not exist.
    fn made(&self, name: &Path) -> Result<PathBuf> {
        let path = self.0.join(name);
        let folder = folder_of(&path);
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        Ok(path)
    }
}

impl Folder for LocalFolder {
    fn address(&self) -> PathBuf {
        self.0.clone()
    }

    /// Fails with [`ErrorKind::Corrupt`](rehang_core::ErrorKind::Corrupt) for a link to a folder, which could lead
    /// round in a circle.
    fn list(&self) -> Result<Vec<PathBuf>> {
        let mut partitions = Vec::new();
        let mut open = vec![PathBuf::new()];
        while let Some(inner) = open.pop() {
            let here = self.0.join(&inner);
            let refused = |error: std::io::Error| Error::io("read", &here, &error);
            for entry in fs_err::read_dir(&here).map_err(refused)? {
                let entry = entry.map_err(refused)?;
                let kind = entry.file_type().map_err(refused)?;
                let name = entry.file_name();
                if !is_seen(Component::Normal(&name), kind.is_dir()) {
                    continue;
                }
                let (path, name) = (entry.path(), inner.join(&name));
                if kind.is_dir() {
                    open.push(name);
                } else if kind.is_symlink() && path.is_dir() {
                    let detail = "it is a link to a folder, which could lead round in a circle; name that folder by itself";
                    return Err(Error::corrupt(path.display(), detail));
                } else if is_partition(&name) {
                    partitions.push(name);
                }
            }
        }
        partitions.sort();
        Ok(partitions)
    }

    fn stamp(&self, name: &Path) -> Result<Option<Stamp>> {
        Ok(fs_err::metadata(self.0.join(name)).ok().map(|metadata| Stamp::from_metadata(&metadata)))
    }

    fn fetch(&self, name: &Path) -> Result<Fetched> {
        let path = self.0.join(name);
        let metadata = fs_err::metadata(&path).map_err(|error| Error::io("read", &path, &error))?;
        Ok(Fetched(Arc::new(Held { path, stamp: Stamp::from_metadata(&metadata), _temporary: None })))
    }

    fn put(&self, name: &Path, make: &mut dyn FnMut(&Path) -> Result<()>) -> Result<Stamp> {
        make(&self.made(name)?)?;
        self.fetch(name).map(|fetched| fetched.stamp().clone())
    }

    fn read(&self, name: &Path) -> Result<Option<Vec<u8>>> {
        Ok(fs_err::read(self.0.join(name)).ok())
    }

    fn write(&self, name: &Path, bytes: &[u8]) -> Result<()> {
        AtomicFile::write(self.made(name)?, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_to_files_are_followed_and_links_to_folders_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = LocalFolder::new(place.path().join("in"));
        let name = Path::new("a.npy");
        folder.write(name, b"bytes").unwrap();
        std::os::unix::fs::symlink(place.path().join("in/a.npy"), place.path().join("in/b.npy")).unwrap();
        assert_eq!(folder.list().unwrap(), [name, Path::new("b.npy")]);
        assert_eq!(folder.stamp(name).unwrap(), folder.stamp(Path::new("b.npy")).unwrap());
        std::os::unix::fs::symlink(place.path(), place.path().join("in/again")).unwrap();
        assert!(folder.list().unwrap_err().to_string().contains("link to a folder"));
    }
}
