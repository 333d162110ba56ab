//! Pointers of Git LFS: small texts that stand in for large files where a repository was cloned without them.

use std::io::Read as _;
use std::path::Path;

use rehang_core::{Error, Result};

const START: &[u8] = b"version https://git-lfs.github.com/spec/v1";

/// Whether a file of these bytes is a pointer of Git LFS.
///
/// ```
/// assert!(rehang_files::is_lfs_pointer(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n"));
/// assert!(!rehang_files::is_lfs_pointer(b"version"));
/// ```
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(START)
}

/// Fails where a file is a pointer of Git LFS, which means that its content was never fetched.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Corrupt`], with the command that fetches the content. A file that cannot be read is
/// no pointer: whoever reads it says why.
pub fn expect_no_lfs_pointer(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let mut start = Vec::new();
    let read =
        fs_err::File::open(path).and_then(|file| file.take(START.len() as u64).read_to_end(&mut start));
    if read.is_ok() && is_lfs_pointer(&start) {
        return Err(Error::corrupt(path.display(), LFS_POINTER));
    }
    Ok(())
}

/// Words of the error about a pointer of Git LFS.
pub const LFS_POINTER: &str = "it is a pointer of Git LFS and not the file itself: run `git lfs pull` in its repository, or download the file";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_named_whatever_the_file_should_be() {
        let folder = tempfile::tempdir().unwrap();
        let pointer =
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 90387606\n";
        for name in ["a.npy", "a.safetensors", "a.fvecs", "a.txt", "a.jsonl", "a.csv"] {
            let path = folder.path().join(name);
            fs_err::write(&path, pointer).unwrap();
            let source = crate::VectorSource::from(path.as_path());
            let read = match name {
                "a.txt" | "a.jsonl" | "a.csv" => crate::read_ids(&source).map(drop),
                _ => crate::read_matrix(&source).map(drop),
            };
            let error = read.unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("git lfs pull"), "{error}");
            assert!(expect_no_lfs_pointer(&path).is_err());
            fs_err::write(&path, "version").unwrap();
            assert!(expect_no_lfs_pointer(&path).is_ok());
        }
    }
}
