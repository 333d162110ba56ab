//! Files that belong to a name, written as `NAME=FILE`.

use std::collections::BTreeSet;

use rehang_core::{Error, ErrorKind, Result};

use crate::source::VectorSource;

/// A file that belongs to a name: a model's vectors, or an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The name.
    pub name: String,
    /// The file.
    pub file: VectorSource,
}

impl NamedFile {
    /// Parses `NAME=FILE`; `parameter` is where the text was given.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for another form.
    pub fn parse(parameter: &str, text: &str) -> Result<Self> {
        let (name, file) =
            text.split_once('=')
                .filter(|(name, file)| !name.is_empty() && !file.is_empty())
                .ok_or_else(|| Error::option(parameter, text, "NAME=FILE, for example old=old.npy"))?;
        Ok(Self { name: name.into(), file: VectorSource::parse(file)? })
    }
}

/// Fails where two files have one name; `parameter` is where the files were given.
///
/// # Errors
///
/// [`Duplicate`](rehang_core::ErrorKind::Duplicate).
pub fn expect_distinct(parameter: &str, files: &[NamedFile]) -> Result<()> {
    let mut names = BTreeSet::new();
    match files.iter().find(|named| !names.insert(&named.name)) {
        None => Ok(()),
        Some(NamedFile { name, .. }) => {
            let what = format!("`{parameter}`");
            Err(ErrorKind::Duplicate { what, value: format!("the name {name:?}") }.into())
        }
    }
}
