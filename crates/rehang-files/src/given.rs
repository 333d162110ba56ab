//! Rows and values that a caller holds in memory, in the place of a file: numbers of another program, such as
//! arrays of Python.

use std::fmt;
use std::sync::Arc;

use rehang_core::{Error, Matrix, Result};

use crate::rows::{IdKind, RowBatch, RowReader};

/// Smallest power of two from which on some whole numbers are no longer `f64`: 2⁵³.
pub(crate) const WHOLE_END: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

/// Values that a caller holds, one a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalars {
    /// Whole numbers.
    Integers(Vec<i64>),
    /// Numbers with fractions. The second field is the bound from which on some whole numbers are missing in
    /// the type that the values came in: 2⁵³ for `f64`, 2²⁴ for `f32`.
    Floats(Vec<f64>, f64),
    /// Texts.
    Texts(Vec<String>),
}

impl Scalars {
    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Integers(values) => values.len(),
            Self::Floats(values, _) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }
}

/// Rows of numbers, `[n, d]`, that the caller keeps. The caller may read them from a disk when
/// [`GivenRows::read`] is called.
pub trait GivenRows: Send + Sync {
    /// Number of rows.
    fn rows(&self) -> u64;

    /// Number of coordinates in a row.
    fn width(&self) -> usize;

    /// Appends `count` rows from `first` on to `out`, each number as the nearest `f32`. All these rows exist.
    ///
    /// # Errors
    ///
    /// Whatever keeps the caller from reading the rows.
    fn read(&self, first: u64, count: usize, out: &mut Vec<f32>) -> Result<()>;
}

impl GivenRows for Matrix {
    fn rows(&self) -> u64 {
        Matrix::rows(self) as u64
    }

    fn width(&self) -> usize {
        self.columns()
    }

    fn read(&self, first: u64, count: usize, out: &mut Vec<f32>) -> Result<()> {
        let first = first as usize * self.columns();
        out.extend_from_slice(&self.as_slice()[first..first + count * self.columns()]);
        Ok(())
    }
}

/// Content that a caller holds in memory. Copies are handles on one content and are equal; two contents are
/// never equal.
#[derive(Clone)]
pub enum Given {
    /// Rows of numbers.
    Rows(Arc<dyn GivenRows>),
    /// One value a row.
    Values(Arc<Scalars>),
}

impl Given {
    /// Returns the values, one a row; `what` is the caller's name for them.
    pub(super) fn scalars(&self, what: &impl fmt::Display) -> Result<Scalars> {
        let values = match self {
            Self::Values(values) => Scalars::clone(values),
            Self::Rows(_) => {
                return Err(Error::corrupt(what, "it holds rows of numbers where one value a row is needed"));
            }
        };
        if values.len() == 0 { Err(Error::empty(what)) } else { Ok(values) }
    }

    /// Opens the rows for reading from front to back; `what` is the caller's name for them.
    pub(super) fn open(&self, what: &impl fmt::Display) -> Result<Box<dyn RowReader>> {
        let Self::Rows(rows) = self else {
            return Err(Error::corrupt(what, "it holds one value a row where rows of numbers are needed"));
        };
        if rows.rows() == 0 || rows.width() == 0 {
            return Err(Error::empty(what));
        }
        Ok(Box::new(Reader { rows: Arc::clone(rows), first_row: 0 }))
    }
}

impl From<Matrix> for Given {
    fn from(rows: Matrix) -> Self {
        Self::Rows(Arc::new(rows))
    }
}

impl From<Scalars> for Given {
    fn from(values: Scalars) -> Self {
        Self::Values(Arc::new(values))
    }
}

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rows(a), Self::Rows(b)) => Arc::ptr_eq(a, b),
            (Self::Values(a), Self::Values(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Given {}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(rows) => write!(f, "[{}, {}]", rows.rows(), rows.width()),
            Self::Values(values) => fmt::Debug::fmt(values, f),
        }
    }
}

struct Reader {
    rows: Arc<dyn GivenRows>,
    first_row: u64,
}

impl RowReader for Reader {
    fn width(&self) -> usize {
        self.rows.width()
    }

    fn rows_total(&self) -> u64 {
        self.rows.rows()
    }

    fn id_kind(&self) -> Option<IdKind> {
        None
    }

    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize> {
        batch.begin(self.first_row);
        let count = (self.rows.rows() - self.first_row).min(rows_max as u64) as usize;
        if count > 0 {
            self.rows.read(self.first_row, count, &mut batch.vectors)?;
        }
        self.first_row += count as u64;
        Ok(count)
    }
}
