//! Rows of vectors, a few at a time, whatever they are read from or written to.

use rehang::Result;
use rehang::check::check_finite;

/// Whether ids are whole numbers or text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// Whole numbers of 64 bits.
    Integer,
    /// Text.
    Text,
}

/// Ids of items, one a row, in the type the file has them in, so that a copy of a file keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ids {
    /// Whole numbers.
    Integers(Vec<i64>),
    /// Text.
    Texts(Vec<String>),
}

impl Ids {
    /// No ids yet, of a kind.
    pub fn none(kind: IdKind) -> Self {
        match kind {
            IdKind::Integer => Self::Integers(Vec::new()),
            IdKind::Text => Self::Texts(Vec::new()),
        }
    }

    /// Their kind.
    pub fn kind(&self) -> IdKind {
        match self {
            Self::Integers(_) => IdKind::Integer,
            Self::Texts(_) => IdKind::Text,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(ids) => ids.len(),
            Self::Texts(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds those of `other` behind; numbers become text where the kinds differ.
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

    /// All of them as text.
    pub fn into_strings(self) -> Vec<String> {
        match self {
            Self::Integers(ids) => ids.into_iter().map(|id| id.to_string()).collect(),
            Self::Texts(ids) => ids,
        }
    }
}

/// A few rows of a file. It is handed to every call of [`RowReader::next_batch`], so its memory is used again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowBatch {
    /// Number of the first row, counted from 0 over everything the reader reads.
    pub first_row: u64,
    /// The numbers, row after row: `[rows, width]`.
    pub vectors: Vec<f32>,
    /// The ids, where the file has a column of them.
    pub ids: Option<Ids>,
}

impl RowBatch {
    /// Empties the batch for the rows that begin at `first_row`.
    pub(super) fn begin(&mut self, first_row: u64) {
        self.first_row = first_row;
        self.vectors.clear();
        self.ids = None;
    }

    /// Fails on the first NaN or infinite number, naming `what`, its row in the whole file, and its column.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFinite`](rehang::ErrorKind::NotFinite).
    pub fn check_finite(&self, what: &str, width: usize) -> Result<()> {
        check_finite(what, &self.vectors, width.max(1), self.first_row as usize)
    }
}

/// Vectors that are read from front to back.
pub trait RowReader: Send {
    /// Coordinates a row has; at least 1.
    fn width(&self) -> usize;

    /// Rows there are in all; at least 1.
    fn rows_total(&self) -> u64;

    /// The kind of the ids, where the file has a column `id` beside the vectors.
    fn id_kind(&self) -> Option<IdKind>;

    /// Fails where the file has a column `id` beside the vectors that cannot be ids; [`RowReader::id_kind`] then knows of none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](rehang::ErrorKind::Corrupt), with the columns that there are.
    fn check_ids(&self) -> Result<()> {
        Ok(())
    }

    /// Replaces the content of `batch` by the next rows, at most `rows_max` (and at least 1). Returns how many; 0 at
    /// the end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](rehang::ErrorKind::Io), and [`ErrorKind::Corrupt`](rehang::ErrorKind::Corrupt) where the file turns out to be damaged, with the row. After an
    /// error the reader must not be used any more.
    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize>;
}

/// Vectors that are written from front to back and appear, whole, at [`RowWriter::commit`].
pub trait RowWriter: Send {
    /// Writes rows behind those that are there: `vectors` is `[rows, width]`; `ids` and `sigma2` are `[rows]` and are
    /// given if, and only if, the [`Columns`] the file was created with have them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](rehang::ErrorKind::Io), for example when the disk is full.
    fn write(&mut self, vectors: &[f32], ids: Option<&Ids>, sigma2: Option<&[f32]>) -> Result<()>;

    /// Makes the file durable and visible. Returns how many rows it has. A writer that is dropped instead leaves
    /// nothing behind.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](rehang::ErrorKind::Io).
    fn commit(self: Box<Self>) -> Result<u64>;
}

/// What a file that is written holds.
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
    /// Vectors alone.
    pub fn vectors(width: usize) -> Self {
        Self { width, ids: None, sigma2: false }
    }
}
