//! `.fvecs`, `.bvecs` and `.ivecs`: every row is its width as a little-endian `int32`, then its numbers.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use fs_err::File;

use super::element::{Element, Meaning};
use super::stream::{IdKind, Ids, RowBatch, RowReader, RowWriter};
use super::{AtomicFile, Format, Scalars, WIDTH_MAX, open};
use crate::error::{Error, Result};

/// Bytes of the width in front of every row.
const PREFIX_BYTES: usize = 4;

/// The rows of such a file.
#[derive(Debug)]
pub(super) struct VecsRows {
    path: PathBuf,
    file: File,
    width: usize,
    rows: usize,
    element: Element,
    next_row: usize,
    buffer: Vec<u8>,
}

impl VecsRows {
    pub(super) fn open(path: &Path, format: Format) -> Result<Self> {
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
        let element = Element::new(meaning, bytes, false)
            .ok_or_else(|| corrupt("its number type is not known".into()))?;
        let mut first = [0; PREFIX_BYTES];
        opened
            .file
            .read_exact(&mut first)
            .and_then(|()| opened.file.seek(SeekFrom::Start(0)))
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
        Ok(Self {
            path: path.to_path_buf(),
            file: opened.file,
            width,
            rows: (opened.bytes / record) as usize,
            element,
            next_row: 0,
            buffer: Vec::new(),
        })
    }

    /// Reads the next rows into the buffer and checks the width of each; the slices it yields hold numbers only.
    fn fetch(&mut self, count: usize) -> Result<impl Iterator<Item = &[u8]>> {
        let record = PREFIX_BYTES + self.width * self.element.bytes();
        self.buffer.resize(count * record, 0);
        self.file.read_exact(&mut self.buffer).map_err(|error| Error::io("read", &self.path, &error))?;
        for (row, bytes) in self.buffer.chunks_exact(record).enumerate() {
            let claimed = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            if usize::try_from(claimed) != Ok(self.width) {
                return Err(Error::corrupt(
                    self.path.display(),
                    format!(
                        "row {} claims {claimed} coordinates where the first row has {}",
                        self.next_row + row,
                        self.width
                    ),
                ));
            }
        }
        self.next_row += count;
        Ok(self.buffer.chunks_exact(record).map(|bytes| &bytes[PREFIX_BYTES..]))
    }
}

impl RowReader for VecsRows {
    fn width(&self) -> usize {
        self.width
    }

    fn rows_total(&self) -> u64 {
        self.rows as u64
    }

    fn id_kind(&self) -> Option<IdKind> {
        None
    }

    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize> {
        let count = rows_max.max(1).min(self.rows - self.next_row);
        batch.begin(self.next_row as u64, None);
        let element = self.element;
        for numbers in self.fetch(count)? {
            element.append_f32(numbers, &mut batch.vectors);
        }
        Ok(count)
    }
}

/// One integer a row, or a single row of integers.
pub(super) fn read_scalars(path: &Path, format: Format) -> Result<Scalars> {
    let mut rows = VecsRows::open(path, format)?;
    if rows.width != 1 && rows.rows != 1 {
        return Err(Error::corrupt(
            path.display(),
            format!("it has {} rows of {} numbers; one value a row is needed", rows.rows, rows.width),
        ));
    }
    let (count, element) = (rows.rows, rows.element);
    if element.is_integer() {
        let mut wide = Vec::new();
        for numbers in rows.fetch(count)? {
            element.append_integers(numbers, &mut wide);
        }
        // Every type of this family has at most 32 bits.
        return Ok(Scalars::Integers(wide.into_iter().map(|value| value as i64).collect()));
    }
    let mut values = Vec::new();
    for numbers in rows.fetch(count)? {
        element.append_f64(numbers, &mut values);
    }
    Ok(Scalars::Floats(values))
}

/// Writes `.fvecs`.
#[derive(Debug)]
pub(super) struct FvecsWriter {
    file: AtomicFile,
    width: usize,
    rows: u64,
    buffer: Vec<u8>,
}

impl FvecsWriter {
    pub(super) fn create(path: &Path, width: usize) -> Result<Self> {
        Ok(Self { file: AtomicFile::create(path)?, width, rows: 0, buffer: Vec::new() })
    }
}

impl RowWriter for FvecsWriter {
    fn write(&mut self, vectors: &[f32], _ids: Option<&Ids>, _sigma2: Option<&[f32]>) -> Result<()> {
        self.buffer.clear();
        for row in vectors.chunks_exact(self.width) {
            self.buffer.extend_from_slice(&(self.width as i32).to_le_bytes());
            self.buffer.extend(row.iter().flat_map(|value| value.to_le_bytes()));
            self.rows += 1;
        }
        self.file.put(&self.buffer)
    }

    fn commit(self: Box<Self>) -> Result<u64> {
        self.file.commit()?;
        Ok(self.rows)
    }
}
