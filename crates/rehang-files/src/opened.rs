//! Files that are open for reading.

use std::path::{Path, PathBuf};

use fs_err::File;
use rehang_core::{Error, ErrorKind, Result};

use crate::paths::is_address;
use crate::pointer::expect_no_lfs_pointer;

/// A file that is open, with its length.
pub(crate) struct Opened {
    pub path: PathBuf,
    pub file: File,
    pub bytes: u64,
}

impl Opened {
    pub fn empty(&self) -> Error {
        ErrorKind::Empty { what: self.path.display().to_string() }.into()
    }
}

/// Opens a regular file. Folders, devices and pipes are refused before they are opened, since a pipe would
/// block.
pub(crate) fn open(path: &Path) -> Result<Opened> {
    let named = |error: &std::io::Error| Error::io("read", path, error);
    let refuse = |reason: &str| -> Result<Opened> { Err(Error::refused("read", path, reason)) };
    let metadata = match fs_err::metadata(path) {
        Err(_) if is_address(path) => {
            return refuse("it is an address; copy the object here and give the file");
        }
        metadata => metadata.map_err(|error| named(&error))?,
    };
    if metadata.is_dir() {
        let files = path.join("*");
        return refuse(&format!(
            "it is a folder; give a file, or its files one after another where several may stand ({})",
            files.display()
        ));
    }
    if !metadata.is_file() {
        return refuse("it is a device or a pipe; write it to a file first");
    }
    // Pointers of Git LFS have some hundred bytes, so larger files need no look.
    if metadata.len() < 1024 {
        expect_no_lfs_pointer(path)?;
    }
    let file = File::open(path).map_err(|error| named(&error))?;
    Ok(Opened { path: path.to_path_buf(), file, bytes: metadata.len() })
}
