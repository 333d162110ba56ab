//! Files that sources name.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rehang::files::{VectorSource, read_f32_column, read_matrix};
use rehang::{Error, Result};

use crate::contract::ItemFailure;

/// Largest file that is read for one item.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// Finds and reads the files that sources name.
pub(super) struct Sources {
    root: PathBuf,
}

impl Sources {
    /// Sources below a folder.
    pub(super) fn new(root: PathBuf) -> Result<Self> {
        match fs_err::metadata(&root) {
            Ok(found) if found.is_dir() => Ok(Self { root }),
            Ok(_) => Err(Error::option("root", root.display(), "a folder")),
            Err(error) => Err(Error::io("read", root, &error)),
        }
    }

    /// The file that a source names, and what it holds.
    pub(super) fn read(&self, source: &str) -> Result<(PathBuf, Vec<u8>), ItemFailure> {
        let path = self.path(source)?;
        let failed = |error: &std::io::Error| self.failure(&path, error);
        let found = fs_err::metadata(&path).map_err(|error| failed(&error))?;
        if !found.is_file() {
            return Err(ItemFailure::Permanent(format!("{} is no file", path.display())));
        }
        if found.len() > FILE_BYTES_MAX {
            let bytes = found.len();
            return Err(ItemFailure::Permanent(format!(
                "{} has {bytes} bytes; at most {FILE_BYTES_MAX} are read",
                path.display()
            )));
        }
        let bytes = fs_err::read(&path).map_err(|error| failed(&error))?;
        Ok((path, bytes))
    }

    /// The vector that a source is, or that the `.npy` file it names holds.
    pub(super) fn vector(&self, source: &str, width: Option<usize>) -> Result<Vec<f32>, ItemFailure> {
        let vector: Vec<f32> = if source.trim_start().starts_with('[') {
            serde_json::from_str(source).map_err(|error| {
                ItemFailure::Permanent(format!("the source is no JSON array of numbers: {error}"))
            })?
        } else {
            let (path, _) = self.read(source)?;
            let file = VectorSource::path(path);
            let failed = |error: &Error| ItemFailure::Permanent(error.to_string());
            match read_matrix(&file) {
                Ok(matrix) if matrix.rows() == 1 => matrix.into_data(),
                Ok(matrix) => {
                    let rows = matrix.rows();
                    return Err(ItemFailure::Permanent(format!(
                        "{file} has {rows} vectors where one is needed"
                    )));
                }
                // A single vector may be saved with one side, [n], as well as with two, [1, n].
                Err(_) => read_f32_column(&file).map_err(|error| failed(&error))?,
            }
        };
        match width {
            Some(width) if width != vector.len() => Err(ItemFailure::Permanent(format!(
                "the source is a vector of {} numbers where the model reads {width}",
                vector.len()
            ))),
            _ if vector.is_empty() => {
                Err(ItemFailure::Permanent("the source is a vector of no numbers".into()))
            }
            _ => Ok(vector),
        }
    }

    fn path(&self, source: &str) -> Result<PathBuf, ItemFailure> {
        let refuse = |what: &str| ItemFailure::Permanent(format!("the source {source:?} {what}"));
        let Some(address) = source.strip_prefix("file://") else {
            if source.contains("://") {
                return Err(refuse("is an address; a model reads files"));
            }
            return if source.is_empty() { Err(refuse("names no file")) } else { Ok(self.root.join(source)) };
        };
        let path = address.strip_prefix("localhost").unwrap_or(address);
        if !path.starts_with('/') {
            return Err(refuse("names a file of another machine"));
        }
        let decoded = percent_decoded(path).ok_or_else(|| refuse("has a % that is no %20 or the like"))?;
        // file:///C:/x names C:/x.
        let decoded = if cfg!(windows) { decoded.trim_start_matches('/') } else { &decoded };
        Ok(PathBuf::from(decoded))
    }

    /// What the failure to read a file means for its item.
    fn failure(&self, path: &Path, error: &std::io::Error) -> ItemFailure {
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let reason = format!("cannot read {}: {cause}", path.display());
        match error.kind() {
            // A whole folder that is gone is a disk that is not mounted, not a million items that have vanished.
            ErrorKind::NotFound if !self.root.is_dir() => {
                ItemFailure::Temporary(format!("{reason}; the folder {} is gone too", self.root.display()))
            }
            ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidFilename => ItemFailure::Permanent(reason),
            _ => ItemFailure::Temporary(reason),
        }
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_name_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs_err::write(root.join("a b.png"), "x").unwrap();
        let sources = Sources::new(root.to_path_buf()).unwrap();
        let absolute = root.join("a b.png").display().to_string();
        let address = absolute.replace(' ', "%20");
        for source in
            ["a b.png", &absolute, &format!("file://{address}"), &format!("file://localhost{address}")]
        {
            assert_eq!(sources.read(source).unwrap().1, b"x", "{source}");
        }
        for (source, word) in [
            ("https://host/a.png", "address"),
            ("file://host/a.png", "another machine"),
            ("file:///a%2", "%20"),
            ("file:///a%zz", "%20"),
            ("", "no file"),
            (".", "no file"),
            ("gone.png", "gone.png"),
            ("a b.png/c", "a b.png/c"),
            ("nul\0.png", "nul"),
        ] {
            let failure = sources.read(source).unwrap_err();
            assert!(
                matches!(&failure, ItemFailure::Permanent(why) if why.contains(word)),
                "{source}: {failure:?}"
            );
        }
    }

    #[test]
    fn a_folder_that_is_gone_is_no_fate_of_its_items() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources::new(folder.path().to_path_buf()).unwrap();
        folder.close().unwrap();
        assert!(matches!(sources.read("a.png"), Err(ItemFailure::Temporary(_))));
        assert!(Sources::new(PathBuf::from("/no/such/folder")).is_err());
    }

    #[test]
    fn vectors_are_arrays_or_files() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources::new(folder.path().to_path_buf()).unwrap();
        rehang::files::write_f32(folder.path().join("one.npy"), &[1.0, 2.0]).unwrap();
        let row = rehang::Matrix::new(2, vec![3.0, 4.0]).unwrap();
        rehang::files::write_matrix(folder.path().join("row.npy"), &row, None).unwrap();
        rehang::files::write_matrix(folder.path().join("two.npy"), &rehang::Matrix::zeros(2, 2), None)
            .unwrap();
        assert_eq!(sources.vector(" [1, 2.5]", Some(2)).unwrap(), [1.0, 2.5]);
        assert_eq!(sources.vector("one.npy", Some(2)).unwrap(), [1.0, 2.0]);
        assert_eq!(sources.vector("row.npy", None).unwrap(), [3.0, 4.0]);
        for source in ["[]", "[1]", "[1, \"x\"]", "[1, 2", "two.npy", "gone.npy"] {
            assert!(matches!(sources.vector(source, Some(2)), Err(ItemFailure::Permanent(_))), "{source}");
        }
    }
}
