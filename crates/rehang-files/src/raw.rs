//! Rows of equal size that lie one after the other in a file, as in `.npy`, safetensors and `.fvecs`.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use fs_err::File;

use crate::atomic::AtomicFile;
use crate::element::Element;
use crate::given::Scalars;
use crate::rows::{IdKind, Ids, RowBatch, RowReader, RowWriter};
use rehang_core::{Error, Result};

/// Bytes of the width that stands in front of every row in the layout [`Layout::Prefixed`].
pub(super) const PREFIX_BYTES: usize = 4;

/// Layout of a matrix's numbers in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Row after row (C order).
    Rows,
    /// Column after column (Fortran order).
    Columns,
    /// Row after row, each behind its width as a little-endian `int32`.
    Prefixed,
}

/// Block of numbers in a file, read a few rows at a time.
#[derive(Debug)]
pub(super) struct RawRows {
    path: PathBuf,
    file: File,
    offset: u64,
    pub(super) rows: usize,
    pub(super) columns: usize,
    element: Element,
    layout: Layout,
    next_row: usize,
    buffer: Vec<u8>,
    column: Vec<f32>,
}

impl RawRows {
    /// Makes a reader of a block of `rows × columns` numbers that begins at byte `offset`. The caller has
    /// checked that the file holds the block.
    pub(super) fn new(
        path: PathBuf,
        file: File,
        offset: u64,
        (rows, columns): (usize, usize),
        element: Element,
        layout: Layout,
    ) -> Self {
        Self {
            path,
            file,
            offset,
            rows,
            columns,
            element,
            layout,
            next_row: 0,
            buffer: Vec::new(),
            column: Vec::new(),
        }
    }

    /// Fills the buffer with `length` bytes of the block, beginning at byte `first` of it.
    fn fetch(&mut self, first: usize, length: usize) -> Result<()> {
        self.buffer.resize(length, 0);
        self.file
            .seek(SeekFrom::Start(self.offset + first as u64))
            .and_then(|_| self.file.read_exact(&mut self.buffer))
            .map_err(|error| Error::io("read", &self.path, &error))
    }

    /// Fills the buffer with the numbers of `count` rows, beginning at row `first`. Widths in front of rows
    /// are checked and left out.
    fn fetch_rows(&mut self, first: usize, count: usize) -> Result<()> {
        let size = self.columns * self.element.bytes();
        if self.layout != Layout::Prefixed {
            return self.fetch(first * size, count * size);
        }
        let record = PREFIX_BYTES + size;
        self.fetch(first * record, count * record)?;
        for row in 0..count {
            let (start, mut prefix) = (row * record, [0; PREFIX_BYTES]);
            prefix.copy_from_slice(&self.buffer[start..start + PREFIX_BYTES]);
            let claimed = i32::from_le_bytes(prefix);
            if usize::try_from(claimed) != Ok(self.columns) {
                let (row, width) = (first + row, self.columns);
                let detail =
                    format!("row {row} claims {claimed} coordinates where the first row has {width}");
                return Err(Error::corrupt(self.path.display(), detail));
            }
            self.buffer.copy_within(start + PREFIX_BYTES..start + record, row * size);
        }
        self.buffer.truncate(count * size);
        Ok(())
    }

    /// Reads all numbers, for a block of one value a row.
    pub(super) fn scalars(mut self) -> Result<Scalars> {
        self.fetch_rows(0, self.rows)?;
        if !self.element.is_integer() {
            let mut values = Vec::with_capacity(self.rows * self.columns);
            self.element.append_f64(&self.buffer, &mut values);
            return Ok(Scalars::Floats(values, self.element.whole_end()));
        }
        let integers = self.element.integers(&self.buffer, &self.path.display())?;
        Ok(Scalars::Integers(integers))
    }
}

impl RowReader for RawRows {
    fn width(&self) -> usize {
        self.columns
    }

    fn rows_total(&self) -> u64 {
        self.rows as u64
    }

    fn id_kind(&self) -> Option<IdKind> {
        None
    }

    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize> {
        let first = self.next_row;
        let count = rows_max.max(1).min(self.rows - first);
        batch.begin(first as u64);
        match self.layout {
            Layout::Rows | Layout::Prefixed => {
                self.fetch_rows(first, count)?;
                self.element.append_f32(&self.buffer, &mut batch.vectors);
            }
            Layout::Columns => {
                batch.vectors.resize(count * self.columns, 0.0);
                for column in 0..self.columns {
                    let size = self.element.bytes();
                    self.fetch((column * self.rows + first) * size, count * size)?;
                    self.column.clear();
                    self.element.append_f32(&self.buffer, &mut self.column);
                    for (row, &value) in self.column.iter().enumerate() {
                        batch.vectors[row * self.columns + column] = value;
                    }
                }
            }
        }
        self.next_row += count;
        Ok(count)
    }
}

/// Function that makes the bytes in front of so many rows of a width. The length of these bytes does not
/// depend on the number of rows.
pub(super) type Header = fn(u64, usize) -> Vec<u8>;

/// Writer of rows as they come. The number of rows is put into the header at the end.
#[derive(Debug)]
pub(super) struct RawWriter {
    file: AtomicFile,
    width: usize,
    layout: Layout,
    header: Header,
    rows: u64,
    buffer: Vec<u8>,
}

impl RawWriter {
    /// Creates an output whose layout is row after row, with or without widths in front of them.
    pub(super) fn create(path: &Path, width: usize, layout: Layout, header: Header) -> Result<Self> {
        let mut file = AtomicFile::create(path)?;
        file.put(&header(0, width))?;
        Ok(Self { file, width, layout, header, rows: 0, buffer: Vec::new() })
    }

    /// Writes rows, given as the bytes of their numbers.
    pub(super) fn put<const N: usize>(
        &mut self,
        rows: usize,
        numbers: impl Iterator<Item = [u8; N]>,
    ) -> Result<()> {
        self.buffer.clear();
        self.buffer.extend(numbers.flatten());
        self.rows += rows as u64;
        self.file.put(&self.buffer)
    }

    /// Makes the file durable and visible, and returns its number of rows.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.file.overwrite_start(&(self.header)(self.rows, self.width))?;
        self.file.commit()?;
        Ok(self.rows)
    }
}

impl RowWriter for RawWriter {
    fn write(&mut self, vectors: &[f32], _ids: Option<&Ids>, _sigma2: Option<&[f32]>) -> Result<()> {
        let rows = vectors.chunks_exact(self.width);
        if self.layout != Layout::Prefixed {
            return self.put(rows.len(), vectors.iter().map(|value| value.to_le_bytes()));
        }
        let prefix = (self.width as i32).to_le_bytes();
        let record = |row| [prefix].into_iter().chain(<[f32]>::iter(row).map(|value| value.to_le_bytes()));
        self.put(rows.len(), rows.flat_map(record))
    }

    fn commit(self: Box<Self>) -> Result<u64> {
        self.finish()
    }
}
