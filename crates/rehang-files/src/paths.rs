//! Paths: which folder a file lies in, and whether two paths are one file.

use std::path::{Path, PathBuf};

use rehang_core::{Error, Result};

/// Returns the folder that a file lies in: `.` for a bare name, whose parent is an empty path.
///
/// ```
/// use std::path::Path;
/// use rehang_files::folder_of;
///
/// assert_eq!((folder_of(Path::new("a/b.npy")), folder_of(Path::new("b.npy"))), (Path::new("a"), Path::new(".")));
/// ```
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a path is the address of something that is not on this machine: `s3://bucket/name`.
///
/// ```
/// use std::path::Path;
/// use rehang_files::is_address;
///
/// assert!(is_address(Path::new("s3://bucket/old")) && !is_address(Path::new("C:/old")) && !is_address(Path::new("./s3://b")));
/// ```
pub fn is_address(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Fails where an output would overwrite another output or an input. Outputs and inputs are given with the
/// parameters that name them.
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`](rehang_core::ErrorKind::InvalidOption), naming both files.
pub fn expect_apart<Name: AsRef<str>>(
    outputs: &[(&str, Option<&PathBuf>)],
    inputs: &[(Name, PathBuf)],
) -> Result<()> {
    let mut taken: Vec<(&str, &PathBuf)> = inputs.iter().map(|(name, path)| (name.as_ref(), path)).collect();
    for &(name, path) in outputs {
        let Some(path) = path else { continue };
        if let Some((other, _)) = taken.iter().find(|(_, other)| is_same_file(path, other)) {
            return Err(Error::option(name, path.display(), format!("another file than `{other}`")));
        }
        taken.push((name, path));
    }
    Ok(())
}

/// Whether two paths name one file, however they are spelled and whichever links lead there. The files need
/// not exist.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        if let Ok(canonical) = fs_err::canonicalize(path) {
            return Some(canonical);
        }
        Some(fs_err::canonicalize(folder_of(path)).ok()?.join(path.file_name()?))
    };
    a == b || matches!((place(a), place(b)), (Some(a), Some(b)) if a == b) || is_hard_linked(a, b)
}

/// Whether two paths are hard links to one file on the disk.
#[cfg(unix)]
fn is_hard_linked(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let number = |path: &Path| fs_err::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    number(a).is_some_and(|a| number(b) == Some(a))
}

/// Systems other than Unix have no number of a file that could be asked for here, so hard links are not
/// recognised.
#[cfg(not(unix))]
fn is_hard_linked(_: &Path, _: &Path) -> bool {
    false
}
