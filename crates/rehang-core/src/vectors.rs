//! Rows of numbers, with and without the space they belong to.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::check::{check_finite, expect_normalised, expect_width};
use crate::error::{Error, Result};
use crate::length::{NORMALISED_TOLERANCE, norm, normalise};
use crate::space::Space;

/// A dense matrix of `f32`, row after row: `[rows, columns]`.
///
/// It is used wherever numbers have no space of their own (weights, side information). Embeddings travel as
/// [`Vectors`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Matrix {
    columns: usize,
    data: Vec<f32>,
}

impl Matrix {
    /// Makes a matrix from its numbers, row after row.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) where `data` is no whole number of rows, or
    /// `columns` is 0 while there is data.
    pub fn new(columns: usize, data: Vec<f32>) -> Result<Self> {
        if (columns == 0 && !data.is_empty()) || (columns > 0 && !data.len().is_multiple_of(columns)) {
            let detail = format!("{} numbers do not make rows of {columns}", data.len());
            return Err(Error::corrupt("matrix", detail));
        }
        Ok(Self { columns, data })
    }

    /// Makes a matrix of zeros.
    pub fn zeros(rows: usize, columns: usize) -> Self {
        Self { columns, data: vec![0.0; rows * columns] }
    }

    /// Makes a matrix number by number, from a function of row and column.
    pub fn from_fn(rows: usize, columns: usize, mut value: impl FnMut(usize, usize) -> f32) -> Self {
        let mut data = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            for column in 0..columns {
                data.push(value(row, column));
            }
        }
        Self { columns, data }
    }

    /// Number of rows; 0 for a matrix without columns.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Number of coordinates in a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Borrows one row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.columns..(row + 1) * self.columns]
    }

    /// Borrows one row, to change it.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.columns..(row + 1) * self.columns]
    }

    /// Borrows all numbers, row after row.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// Borrows all numbers, row after row, to change them.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Takes the numbers out of the matrix, row after row.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// Selects the rows with these `indices`, in that order; an index may stand twice.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        let mut data = Vec::with_capacity(indices.len() * self.columns);
        for &index in indices {
            data.extend_from_slice(self.row(index));
        }
        Self { columns: self.columns, data }
    }

    /// Fits query vectors `[m, d]` to a gallery of `width` coordinates: wider vectors keep their first
    /// coordinates, narrower ones are filled up with zeros.
    ///
    /// ```
    /// use rehang_core::Matrix;
    ///
    /// let vectors = Matrix::new(2, vec![1.0, 2.0, 3.0, 4.0])?;
    /// assert_eq!(vectors.at_width(1).as_slice(), [1.0, 3.0]);
    /// assert_eq!(vectors.at_width(3).as_slice(), [1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    pub fn at_width(&self, width: usize) -> Cow<'_, Self> {
        if self.columns == width {
            return Cow::Borrowed(self);
        }
        let mut fitted = Self::zeros(self.rows(), width);
        let common_width = width.min(self.columns);
        for row in 0..fitted.rows() {
            fitted.row_mut(row)[..common_width].copy_from_slice(&self.row(row)[..common_width]);
        }
        Cow::Owned(fitted)
    }

    /// Fails on the first NaN or infinite number, naming its row and column.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFinite`](crate::ErrorKind::NotFinite).
    pub fn check_finite(&self, what: &str) -> Result<()> {
        check_finite(what, &self.data, self.columns, 0)
    }

    /// Computes the Euclidean length of every row, summed in `f64`: `[rows]`.
    pub fn norms(&self) -> Vec<f64> {
        (0..self.rows()).map(|row| norm(self.row(row))).collect()
    }

    /// Scales every row to length 1; rows of length 0 stay as they are. Returns the number of rows of length
    /// 0.
    pub fn normalise_rows(&mut self) -> usize {
        let mut zeros = 0;
        for row in 0..self.rows() {
            zeros += usize::from(!normalise(self.row_mut(row)));
        }
        zeros
    }

    /// Computes a 64-bit fingerprint of shape and numbers, as 16 hexadecimal digits. Equal bits give equal
    /// fingerprints.
    pub fn fingerprint(&self) -> String {
        let mut hasher = Xxh3::new();
        hasher.update(&(self.rows() as u64).to_le_bytes());
        hasher.update(&(self.columns as u64).to_le_bytes());
        for value in &self.data {
            hasher.update(&value.to_bits().to_le_bytes());
        }
        format!("{:016x}", hasher.digest())
    }
}

/// Computes the mean over all rows of `term(value, column)`, column by column; zeros where there are no rows.
pub(crate) fn column_means(matrix: &Matrix, term: impl Fn(f64, usize) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; matrix.columns()];
    for row in 0..matrix.rows() {
        for (column, (sum, &value)) in sums.iter_mut().zip(matrix.row(row)).enumerate() {
            *sum += term(f64::from(value), column);
        }
    }
    sums.iter().map(|sum| sum / matrix.rows().max(1) as f64).collect()
}

/// Lists the different numbers of classes or groups, ascending. Negative numbers, which mean "none", are left
/// out.
pub fn distinct(labels: impl Iterator<Item = i64>) -> Vec<i64> {
    labels.filter(|&label| label >= 0).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Vectors with the space they belong to: `[n, d]`.
///
/// # Zero vectors
///
/// A zero vector is legal in a raw space (a text without a known word has one) and counts as an error in a
/// normalised space.
///
/// ```
/// use rehang_core::{Distance, Matrix, Space, Vectors};
///
/// let space = Space::new("clip", 2, Distance::Cosine, true);
/// let rows = Matrix::new(2, vec![1.0, 0.0, 3.0, 4.0])?;
/// // The second row has length 5, so these vectors are not of that space.
/// assert!(Vectors::new(space.clone(), rows.clone(), "new vectors").unwrap_err().is_corrupt());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors {
    space: Space,
    rows: Matrix,
}

impl Vectors {
    /// Makes vectors of a space and checks them: not empty, of the right width, finite, of length 1 where the
    /// space says so.
    ///
    /// `what` names the vectors in errors (a path, or "old vectors").
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Empty`](crate::ErrorKind::Empty),
    /// [`ErrorKind::WidthMismatch`](crate::ErrorKind::WidthMismatch),
    /// [`ErrorKind::NotFinite`](crate::ErrorKind::NotFinite),
    /// [`ErrorKind::NotNormalised`](crate::ErrorKind::NotNormalised).
    pub fn new(space: Space, rows: Matrix, what: &str) -> Result<Self> {
        if rows.rows() == 0 {
            return Err(Error::empty(what));
        }
        expect_width(what, space.dimension, rows.columns())?;
        rows.check_finite(what)?;
        if space.normalised {
            expect_normalised(what, space.dimension, 0, rows.as_slice())?;
        }
        Ok(Self { space, rows })
    }

    /// Makes vectors whose space is declared by the model's name and the distance, and measured for the rest.
    /// The width is the rows' own, and they count as normalised where every row has length 1.
    ///
    /// # Errors
    ///
    /// As [`Vectors::new`].
    pub fn measured(model: &str, distance: crate::Distance, rows: Matrix, what: &str) -> Result<Self> {
        let normalised =
            rows.rows() > 0 && rows.norms().iter().all(|norm| (norm - 1.0).abs() <= NORMALISED_TOLERANCE);
        Self::new(Space::new(model, rows.columns(), distance, normalised), rows, what)
    }

    /// Space of the vectors.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Rows of the vectors, `[n, d]`.
    pub fn matrix(&self) -> &Matrix {
        &self.rows
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.rows.rows()
    }

    /// Whether there are no vectors (never, once constructed; here for completeness).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of coordinates of a vector.
    pub fn dimension(&self) -> usize {
        self.rows.columns()
    }

    /// Selects the vectors with these `indices`, in that order.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        Self { space: self.space.clone(), rows: self.rows.select(indices) }
    }
}

/// Numbers of a class, a group or another integer tag, one for each item.
pub type Labels = Vec<i64>;

crate::named! {
    /// Provenance of a vector in a gallery. The variants stand in the order in which an upgrade goes through
    /// them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Provenance ("provenance") {
        /// Made by the old model.
        Old = "old",
        /// Made by an adapter from an old vector.
        Adapted = "adapted",
        /// Made by the new model from the source.
        Native = "native",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Distance, ErrorKind};

    #[test]
    fn a_nan_is_named_by_row_and_column() {
        let rows = Matrix::new(2, vec![0.0, 1.0, f32::NAN, 1.0]).unwrap();
        let error = Vectors::measured("m", Distance::L2, rows, "old vectors").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NotFinite { what: "old vectors".into(), row: 1, column: 0 });
    }

    #[test]
    fn fingerprints_tell_shapes_apart() {
        let a = Matrix::new(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let b = Matrix::new(4, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_ne!(a.fingerprint(), b.fingerprint());
        assert_eq!(a.fingerprint(), a.clone().fingerprint());
    }

    #[test]
    fn zero_rows_stay_zero() {
        let mut rows = Matrix::new(2, vec![3.0, 4.0, 0.0, 0.0]).unwrap();
        assert_eq!(rows.normalise_rows(), 1);
        assert_eq!(rows.as_slice(), &[0.6, 0.8, 0.0, 0.0]);
    }
}
