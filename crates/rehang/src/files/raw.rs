//! Rows of equal size that lie one after the other in a file: what `.npy` and safetensors have in common.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use fs_err::File;

use super::Ids;
use super::element::Element;
use super::stream::{IdKind, RowBatch, RowReader};
use crate::error::{Error, Result};

/// How the numbers of a matrix lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Row after row (C order).
    Rows,
    /// Column after column (Fortran order).
    Columns,
}

/// A block of numbers in a file, read a few rows at a time.
#[derive(Debug)]
pub(super) struct RawRows {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) offset: u64,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) element: Element,
    pub(super) layout: Layout,
    next_row: usize,
    buffer: Vec<u8>,
    column: Vec<f32>,
}

impl RawRows {
    /// A block of `rows × columns` numbers that begins at byte `offset`. The caller has checked that the file holds it.
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

    /// Fills the buffer with `count` numbers from the `first`-th on.
    fn fetch(&mut self, first: usize, count: usize) -> Result<()> {
        let size = self.element.bytes();
        self.buffer.resize(count * size, 0);
        self.file
            .seek(SeekFrom::Start(self.offset + (first * size) as u64))
            .and_then(|_| self.file.read_exact(&mut self.buffer))
            .map_err(|error| Error::io("read", &self.path, &error))
    }

    /// All numbers as integers; `None` where one does not fit into 64 bits with a sign.
    pub(super) fn integers(&mut self) -> Result<Option<Vec<i64>>> {
        self.fetch(0, self.rows * self.columns)?;
        let mut wide = Vec::with_capacity(self.rows * self.columns);
        self.element.append_integers(&self.buffer, &mut wide);
        Ok(wide.into_iter().map(|value| i64::try_from(value).ok()).collect())
    }

    /// All numbers as `f64`.
    pub(super) fn floats(&mut self) -> Result<Vec<f64>> {
        self.fetch(0, self.rows * self.columns)?;
        let mut values = Vec::with_capacity(self.rows * self.columns);
        self.element.append_f64(&self.buffer, &mut values);
        Ok(values)
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
        batch.begin(first as u64, None::<Ids>);
        match self.layout {
            Layout::Rows => {
                self.fetch(first * self.columns, count * self.columns)?;
                self.element.append_f32(&self.buffer, &mut batch.vectors);
            }
            Layout::Columns => {
                batch.vectors.resize(count * self.columns, 0.0);
                for column in 0..self.columns {
                    self.fetch(column * self.rows + first, count)?;
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
