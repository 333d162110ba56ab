//! Files that appear whole or not at all.

use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::paths::{folder_of, is_address};
use rehang_core::{Error, Result};

/// Number of bytes that are collected before the system is asked to write.
const BUFFER_BYTES: usize = 1 << 20;

/// An output file that becomes visible under its name only when it is complete.
///
/// Bytes go to a hidden file in the same folder (`.NAME.….partial`). [`AtomicFile::commit`] writes what is
/// buffered, waits until the disk has it, gives the file its name in one step, and waits until the disk has
/// the name too. A file that is dropped without a commit is removed, and the file that stood under the name
/// before stays as it was. Only a process that is killed or interrupted can leave the hidden file behind; it
/// is safe to delete.
///
/// A symbolic link is followed: the file it points to is replaced, not the link.
///
/// ```
/// use std::io::Write;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("answer.txt");
/// let mut file = rehang_files::AtomicFile::create(&path)?;
/// file.write_all(b"42")?;
/// assert!(!path.exists());
/// file.commit()?;
/// assert_eq!(std::fs::metadata(&path)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    target: PathBuf,
    folder: PathBuf,
    writer: BufWriter<NamedTempFile>,
}

impl AtomicFile {
    /// Opens an output. Whatever would make it fail later fails here, before any work is done.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`], naming the path: the folder is missing or cannot be written to, the path is
    /// a folder, a device or a pipe, or a file stands there that is marked read-only.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let refuse = |reason: &str| Error::refused("write", path, reason);
        let target = match fs_err::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(refuse("it is a folder; give the name of a file"));
            }
            Ok(metadata) if !metadata.is_file() => {
                return Err(refuse("it is a device or a pipe; give the name of a file"));
            }
            Ok(metadata) if metadata.permissions().readonly() => {
                return Err(refuse(
                    "the file that is there is read-only; allow writing or give another name",
                ));
            }
            Ok(_) => fs_err::canonicalize(path).map_err(|error| Error::io("write", path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_path_buf(),
            Err(error) => return Err(Error::io("write", path, &error)),
        };
        let Some(name) = target.file_name() else {
            return Err(refuse("it names no file"));
        };
        let folder = folder_of(&target).to_path_buf();
        if !folder.is_dir() && is_address(path) {
            return Err(refuse("it is an address; give the name of a file on this machine"));
        }
        if !folder.is_dir() {
            return Err(refuse(&format!("there is no folder {}; create it first", folder.display())));
        }
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".partial");
        // Temporary files are private by default. This one becomes the user's file, so the user's umask
        // decides.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(&folder).map_err(|error| Error::io("write", path, &error))?;
        Ok(Self { target, folder, writer: BufWriter::with_capacity(BUFFER_BYTES, file) })
    }

    /// Writes a whole file: bytes, or a text.
    ///
    /// # Errors
    ///
    /// The errors of [`AtomicFile::create`], [`AtomicFile::put`] and [`AtomicFile::commit`].
    pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
        let mut file = Self::create(path)?;
        file.put(bytes.as_ref())?;
        file.commit()
    }

    /// Overwrites the first bytes of the file. It serves headers that say how much follows, which is known
    /// only at the end.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`].
    pub fn overwrite_start(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.writer.write_all(bytes))
            .and_then(|()| self.writer.seek(SeekFrom::End(0)))
            .map(|_| ())
            .map_err(|error| Error::io("write", &self.target, &error))
    }

    /// Writes bytes; an error names the path.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`], for example when the disk is full.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|error| Error::io("write", &self.target, &error))
    }

    /// Makes the file durable and visible under its name.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`]; the file that stood under the name before is then unchanged.
    pub fn commit(self) -> Result<()> {
        let Self { target, folder, writer } = self;
        let named = |error: &io::Error| Error::io("write", &target, error);
        let file = writer.into_inner().map_err(|error| named(error.error()))?;
        file.as_file().sync_all().map_err(|error| named(&error))?;
        file.persist(&target).map_err(|error| named(&error.error))?;
        // The rename is durable once the folder is. On Windows folders cannot be opened like this.
        if cfg!(unix) {
            fs_err::File::open(&folder)
                .and_then(|folder| folder.sync_all())
                .map_err(|error| Error::io("sync", &folder, &error))?;
        }
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs_err::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_dropped_file_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.npy");
        let mut first = AtomicFile::create(&path).unwrap();
        first.put(b"first").unwrap();
        first.commit().unwrap();
        let mut second = AtomicFile::create(&path).unwrap();
        second.put(b"second, never finished").unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        drop(second);
        assert_eq!(names(folder.path()), ["out.npy"]);
        assert_eq!(fs_err::read(&path).unwrap(), b"first");
    }

    #[test]
    fn the_start_can_be_overwritten_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut file = AtomicFile::create(&path).unwrap();
        file.put(b"????, then the rest").unwrap();
        file.overwrite_start(b"head").unwrap();
        file.put(b"!").unwrap();
        file.commit().unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), b"head, then the rest!");
    }

    #[test]
    fn an_output_that_cannot_be_written_fails_at_once_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (path, words) in [
            (folder.path().to_path_buf(), "folder"),
            (folder.path().join("missing").join("out.npy"), "there is no folder"),
            (PathBuf::from("/dev/null"), "device"),
            (PathBuf::from(".."), "folder"),
            (PathBuf::from(""), "names no file"),
        ] {
            let message = AtomicFile::create(&path).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains(&path.display().to_string()), "{message}");
        }
        let file = folder.path().join("file");
        AtomicFile::create(&file).unwrap().commit().unwrap();
        let below = AtomicFile::create(file.join("out.npy")).unwrap_err();
        assert!(below.to_string().contains("out.npy"), "{below}");
    }

    #[cfg(unix)]
    #[test]
    fn a_read_only_file_is_not_replaced_and_a_link_is_followed() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("real");
        AtomicFile::create(&path).unwrap().commit().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = AtomicFile::create(&link).unwrap();
        file.put(b"through the link").unwrap();
        file.commit().unwrap();
        assert!(fs_err::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs_err::read(&path).unwrap(), b"through the link");
        fs_err::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
        assert!(AtomicFile::create(&path).unwrap_err().to_string().contains("read-only"));
    }
}
