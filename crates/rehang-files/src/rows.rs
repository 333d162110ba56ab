//! Rows of vectors, read or written a few at a time, whatever the format.

use rehang_core::Result;
use rehang_core::check::check_finite;

/// Whether ids are whole numbers or text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// Whole numbers of 64 bits.
    Integer,
    /// Text.
    Text,
}

/// Ids of items, one a row. They keep the type that their file has, so that a copy of the file keeps it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ids {
    /// Whole numbers.
    Integers(Vec<i64>),
    /// Text.
    Texts(Vec<String>),
}

impl Ids {
    /// Returns an empty list of ids of a kind.
    pub fn none(kind: IdKind) -> Self {
        match kind {
            IdKind::Integer => Self::Integers(Vec::new()),
            IdKind::Text => Self::Texts(Vec::new()),
        }
    }

    /// Kind of these ids.
    pub fn kind(&self) -> IdKind {
        match self {
            Self::Integers(_) => IdKind::Integer,
            Self::Texts(_) => IdKind::Text,
        }
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(ids) => ids.len(),
            Self::Texts(ids) => ids.len(),
        }
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the ids of `other`; numbers become text where the kinds differ.
    pub fn append(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Integers(ids), Self::Integers(more)) => ids.extend(more),
            (Self::Texts(ids), more) => ids.extend(more.into_strings()),
            (Self::Integers(ids), Self::Texts(more)) => {
                let mut texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
                texts.extend(more);
                *self = Self::Texts(texts);
            }
        }
    }

    /// Converts all ids to text.
    pub fn into_strings(self) -> Vec<String> {
        match self {
            Self::Integers(ids) => ids.into_iter().map(|id| id.to_string()).collect(),
            Self::Texts(ids) => ids,
        }
    }
}

/// A few rows of a file. One batch is handed to every call of [`RowReader::next_batch`], so its memory is
/// used again.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct RowBatch {
    /// Number of the first row, counted from 0 over everything that the reader reads.
    pub first_row: u64,
    /// The numbers, row after row: `[rows, width]`.
    pub vectors: Vec<f32>,
    /// The ids, where the file has a column of them.
    pub ids: Option<Ids>,
}

impl RowBatch {
    /// Empties the batch, for rows that begin at `first_row`.
    pub(super) fn begin(&mut self, first_row: u64) {
        self.first_row = first_row;
        self.vectors.clear();
        self.ids = None;
    }

    /// Fails on the first NaN or infinite number. The error names `what`, the row in the whole file, and the
    /// column.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFinite`](rehang_core::ErrorKind::NotFinite).
    pub fn check_finite(&self, what: &str, width: usize) -> Result<()> {
        check_finite(what, &self.vectors, width.max(1), self.first_row as usize)
    }
}

/// Reader of vectors, from front to back.
pub trait RowReader: Send {
    /// Number of coordinates in a row; at least 1.
    fn width(&self) -> usize;

    /// Number of all rows; at least 1.
    fn rows_total(&self) -> u64;

    /// The kind of the ids, where the file has a column `id` beside the vectors.
    fn id_kind(&self) -> Option<IdKind>;

    /// Fails where the file has a column `id` beside the vectors that cannot be ids. [`RowReader::id_kind`]
    /// then gives `None`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](rehang_core::ErrorKind::Corrupt), with the columns that the file has.
    fn check_ids(&self) -> Result<()> {
        Ok(())
    }

    /// Replaces the content of `batch` by the next rows: at most `rows_max`, and at least 1. Returns their
    /// number; 0 at the end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](rehang_core::ErrorKind::Io), and [`ErrorKind::Corrupt`](rehang_core::ErrorKind::Corrupt), with
    /// the row, where the file turns out to be damaged. After an error the reader must not be used any more.
    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize>;
}

/// Writer of vectors, from front to back. The file appears, whole, at [`RowWriter::commit`].
pub trait RowWriter: Send {
    /// Appends rows: `vectors` is `[rows, width]`; `ids` and `sigma2` are `[rows]`. Each of these two is
    /// given if, and only if, the [`Columns`] that the file was created with have it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](rehang_core::ErrorKind::Io), for example when the disk is full.
    fn write(&mut self, vectors: &[f32], ids: Option<&Ids>, sigma2: Option<&[f32]>) -> Result<()>;

    /// Makes the file durable and visible, and returns its number of rows. A writer that is dropped instead
    /// leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](rehang_core::ErrorKind::Io).
    fn commit(self: Box<Self>) -> Result<u64>;
}

/// Columns of a file that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Coordinates of a vector.
    pub width: usize,
    /// Ids beside the vectors, as column `id`; Parquet only.
    pub ids: Option<IdKind>,
    /// σ² beside the vectors, as `f32` column `sigma2`; Parquet only.
    pub sigma2: bool,
}

impl Columns {
    /// Returns the columns of a file that holds vectors alone.
    pub fn vectors(width: usize) -> Self {
        Self { width, ids: None, sigma2: false }
    }
}
