//! `.fvecs`, `.bvecs` and `.ivecs`: every row is its width as a little-endian `int32`, then its numbers.

use std::io::Read;
use std::path::Path;

use crate::element::{Element, Meaning};
use crate::given::Scalars;
use crate::opened::open;
use crate::raw::{Layout, PREFIX_BYTES, RawRows};
use crate::source::{Format, WIDTH_MAX};
use rehang::{Error, Result};

/// The rows of such a file.
pub(super) fn open_rows(path: &Path, format: Format) -> Result<RawRows> {
    let mut opened = open(path)?;
    if opened.bytes == 0 {
        return Err(opened.empty());
    }
    let corrupt = |detail: String| Error::corrupt(path.display(), detail);
    let (meaning, bytes) = match format {
        Format::Bvecs => (Meaning::Unsigned, 1),
        Format::Ivecs => (Meaning::Signed, 4),
        _ => (Meaning::Float, 4),
    };
    let element =
        Element::new(meaning, bytes, false).ok_or_else(|| corrupt("its number type is not known".into()))?;
    let mut first = [0; PREFIX_BYTES];
    opened
        .file
        .read_exact(&mut first)
        .map_err(|_| corrupt("it ends inside the width of the first row".into()))?;
    let width = i32::from_le_bytes(first);
    let Some(width) = usize::try_from(width).ok().filter(|width| (1..=WIDTH_MAX).contains(width)) else {
        return Err(corrupt(format!(
            "its first row claims {width} coordinates; it is no {format} file, or damaged"
        )));
    };
    let record = (PREFIX_BYTES + width * bytes) as u64;
    if !opened.bytes.is_multiple_of(record) {
        return Err(corrupt(format!(
            "{} bytes are no whole number of rows of {width} coordinates ({record} bytes each): it is truncated, \
             or its rows differ in width",
            opened.bytes
        )));
    }
    let rows = (opened.bytes / record) as usize;
    Ok(RawRows::new(path.to_path_buf(), opened.file, 0, (rows, width), element, Layout::Prefixed))
}

/// One number a row, or a single row of numbers.
pub(super) fn read_scalars(path: &Path, format: Format) -> Result<Scalars> {
    let rows = open_rows(path, format)?;
    if rows.columns != 1 && rows.rows != 1 {
        let (rows, columns) = (rows.rows, rows.columns);
        let detail = format!("it has {rows} rows of {columns} numbers; one value a row is needed");
        return Err(Error::corrupt(path.display(), detail));
    }
    rows.scalars()
}
