//! Files and folders by path on this machine, and by address in an object store.

use std::path::Path;
use std::sync::Arc;

use rehang_core::{Progress, Result};
use rehang_files::folders::{Folder, LocalFolder, is_partition};
use rehang_files::{VectorSource, is_address};

use crate::bar;
use crate::commands::end_at_ctrl_c;

/// The folder at a path or an address, which need not be there yet.
pub fn folder(path: &Path) -> Result<Arc<dyn Folder>> {
    if is_address(path) { open(path) } else { Ok(Arc::new(LocalFolder::new(path))) }
}

/// The folder at a path or an address; `None` where a file lies there, or nothing on this machine.
pub fn folder_there(path: &Path) -> Result<Option<Arc<dyn Folder>>> {
    if !is_address(path) {
        return Ok(if path.is_dir() { Some(folder(path)?) } else { None });
    }
    let folder = folder(path)?;
    let may_be_file = path.file_name().is_some_and(|name| is_partition(Path::new(name)));
    let is_file = may_be_file && folder.stamp(Path::new(""))?.is_some();
    Ok((!is_file).then_some(folder))
}

/// Does `work` while its progress is shown. Where an address is among the paths, Ctrl-C leaves no temporary
/// file behind. What fetches objects is part of the work: before it, Ctrl-C would leave them.
pub fn with_bar<'a, T>(paths: impl IntoIterator<Item = &'a Path>, work: impl FnOnce(&Progress) -> T) -> T {
    let is_remote = paths.into_iter().any(is_address);
    bar::with_bar(|progress| {
        if is_remote {
            end_at_ctrl_c(progress);
        }
        work(progress)
    })
}

/// Gives sources as files of this machine; objects of an object store are fetched, inside of [`with_bar`].
pub fn fetched(sources: &[VectorSource], progress: &Progress) -> Result<Vec<VectorSource>> {
    let fetched = |source: &VectorSource| {
        if !is_address(&source.path) {
            return Ok(source.clone());
        }
        progress.check()?;
        let mut fetched = VectorSource::fetched(&source.path, folder(&source.path)?.fetch(Path::new(""))?);
        fetched.column.clone_from(&source.column);
        Ok(fetched)
    };
    sources.iter().map(fetched).collect()
}

#[cfg(feature = "objects")]
fn open(address: &Path) -> Result<Arc<dyn Folder>> {
    Ok(Arc::new(rehang_objects::ObjectFolder::open(&address.to_string_lossy())?))
}

#[cfg(not(feature = "objects"))]
fn open(address: &Path) -> Result<Arc<dyn Folder>> {
    let missing = rehang_core::Error::from(rehang_core::ErrorKind::MissingFeature { feature: "objects" });
    let doing = "lies in an object store, which may be mounted and named as a folder";
    Err(missing.context(format!("{} {doing}", address.display())))
}

#[cfg(all(test, not(feature = "objects")))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_object_stores_says_what_to_do() {
        let message = folder_there(Path::new("s3://bucket/old")).unwrap_err().to_string();
        for words in ["s3://bucket/old", "mounted", "--features objects"] {
            assert!(message.contains(words), "{message}");
        }
    }
}
