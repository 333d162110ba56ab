//! `.fvecs`, `.bvecs` and `.ivecs`: every row is its width as a little-endian `int32`, then its numbers.
//! `.fbin`, `.u8bin` and `.i8bin`: the number of rows and the number of coordinates as little-endian
//! `uint32`, then all rows.

use std::io::Read;
use std::path::Path;

use crate::element::{Element, Meaning};
use crate::given::Scalars;
use crate::opened::open;
use crate::raw::{Layout, PREFIX_BYTES, RawRows};
use crate::source::{Format, WIDTH_MAX};
use rehang_core::{Error, Result};

/// Opens a file of `.fvecs`, `.bvecs` or `.ivecs`, in which every row has its width in front.
pub(super) fn open_rows(path: &Path, format: Format) -> Result<RawRows> {
    let mut opened = open(path)?;
    if opened.bytes == 0 {
        return Err(opened.empty());
    }
    let corrupt = |detail: String| Error::corrupt(path.display(), detail);
    let (element, bytes) = element(format, path)?;
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

/// Number type of a format, and the bytes of one number.
fn element(format: Format, path: &Path) -> Result<(Element, usize)> {
    let (meaning, bytes) = match format {
        Format::Bvecs | Format::U8bin => (Meaning::Unsigned, 1),
        Format::I8bin => (Meaning::Signed, 1),
        Format::Ivecs => (Meaning::Signed, 4),
        _ => (Meaning::Float, 4),
    };
    let element = Element::new(meaning, bytes, false);
    let element = element.ok_or_else(|| Error::corrupt(path.display(), "its number type is not known"))?;
    Ok((element, bytes))
}

/// Opens a file of `.fbin`, `.u8bin` or `.i8bin`, which says in front how many rows there are, and how wide.
pub(super) fn open_block(path: &Path, format: Format) -> Result<RawRows> {
    let mut opened = open(path)?;
    if opened.bytes == 0 {
        return Err(opened.empty());
    }
    let corrupt = |detail: String| Error::corrupt(path.display(), detail);
    let (element, bytes) = element(format, path)?;
    let mut read = || -> Result<u32> {
        let mut number = [0; 4];
        let read = opened.file.read_exact(&mut number);
        read.map_err(|_| corrupt("it ends inside the numbers of its rows and coordinates".into()))?;
        Ok(u32::from_le_bytes(number))
    };
    let (rows, width) = (read()? as usize, read()? as usize);
    if rows == 0 && opened.bytes == 8 {
        return Err(opened.empty());
    }
    let needed = 8 + rows as u128 * width as u128 * bytes as u128;
    if !(1..=WIDTH_MAX).contains(&width) || needed != u128::from(opened.bytes) {
        return Err(corrupt(format!(
            "it claims {rows} rows of {width} coordinates ({needed} bytes) and has {} bytes: it is no {format} file, or damaged",
            opened.bytes
        )));
    }
    Ok(RawRows::new(path.to_path_buf(), opened.file, 8, (rows, width), element, Layout::Rows))
}

/// Reads a file of one number a row, or of a single row of numbers.
pub(super) fn read_scalars(path: &Path, format: Format) -> Result<Scalars> {
    one_a_row(open_rows(path, format)?, path)
}

/// Reads the numbers of open rows, of which each holds one number, or of a single row.
pub(super) fn one_a_row(rows: RawRows, path: &Path) -> Result<Scalars> {
    if rows.columns != 1 && rows.rows != 1 {
        let (rows, columns) = (rows.rows, rows.columns);
        let detail = format!("it has {rows} rows of {columns} numbers; one value a row is needed");
        return Err(Error::corrupt(path.display(), detail));
    }
    rows.scalars()
}
