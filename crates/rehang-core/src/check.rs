//! Checks of shapes and numbers, made where data enter and before any expensive work.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::length::{NORMALISED_TOLERANCE, norm};

/// Fails where vectors have another width than is needed.
///
/// # Errors
///
/// [`ErrorKind::WidthMismatch`].
pub fn expect_width(what: impl fmt::Display, expected: usize, received: usize) -> Result<()> {
    if received == expected {
        return Ok(());
    }
    Err(ErrorKind::WidthMismatch { what: what.to_string(), expected, received }.into())
}

/// Fails where two things that go row by row have different numbers of rows.
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`].
pub fn expect_count(
    left: impl fmt::Display,
    left_count: usize,
    right: impl fmt::Display,
    right_count: usize,
) -> Result<()> {
    if left_count == right_count {
        return Ok(());
    }
    let (left, right) = (left.to_string(), right.to_string());
    Err(ErrorKind::CountMismatch { left, left_count, right, right_count }.into())
}

/// Fails where one of the vectors `[n, width]` of a normalised space has another length than 1. `first_row`
/// is the number of the first of these rows in its file.
///
/// # Errors
///
/// [`ErrorKind::NotNormalised`].
pub fn expect_normalised(what: &str, width: usize, first_row: u64, vectors: &[f32]) -> Result<()> {
    for (row, vector) in vectors.chunks_exact(width).enumerate() {
        let norm = norm(vector);
        if (norm - 1.0).abs() > NORMALISED_TOLERANCE {
            return Err(
                ErrorKind::NotNormalised { what: what.into(), row: first_row as usize + row, norm }.into()
            );
        }
    }
    Ok(())
}

/// Fails on the first NaN or infinite number in rows of `columns` numbers. The first of these rows is row
/// `first_row`.
///
/// # Errors
///
/// [`ErrorKind::NotFinite`].
pub fn check_finite<T: Copy + Into<f64>>(
    what: &str,
    values: &[T],
    columns: usize,
    first_row: usize,
) -> Result<()> {
    let Some(at) = values.iter().position(|&value| !value.into().is_finite()) else { return Ok(()) };
    let (row, column) = (first_row + at / columns, at % columns);
    Err(ErrorKind::NotFinite { what: what.into(), row, column }.into())
}

/// Whether a vector is without NaN and infinite numbers. Every vector that came through the library is; an
/// application may have written others around it.
pub fn is_finite(vector: &[f32]) -> bool {
    vector.iter().all(|value| value.is_finite())
}

/// Fails on the first NaN or infinite number of a list.
///
/// # Errors
///
/// [`ErrorKind::NotFinite`].
pub fn expect_finite(what: &str, values: &[f32]) -> Result<()> {
    check_finite(what, values, values.len(), 0)
}

/// Fails where a handicap, which is added to the distances of adapted items, is negative or not a number.
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`].
pub fn check_handicap(handicap: f64) -> Result<()> {
    if handicap.is_finite() && handicap >= 0.0 {
        return Ok(());
    }
    Err(Error::option("handicap", handicap, "a finite number, 0 or more"))
}

/// Fails where `order` is not a permutation of `0..items`. The error names what is missing, twice or outside.
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`], [`ErrorKind::Duplicate`], [`ErrorKind::Corrupt`] for an index outside the
/// gallery.
pub fn check_permutation(order: &[usize], items: usize) -> Result<()> {
    expect_count("the order", order.len(), "the gallery", items)?;
    let mut is_listed = vec![false; items];
    for &item in order {
        match is_listed.get_mut(item) {
            None => {
                let detail = format!("item {item} is outside the gallery of {items}");
                return Err(Error::corrupt("the order", detail));
            }
            Some(true) => return Err(Error::duplicate("the order", format!("item {item}"))),
            Some(is_listed) => *is_listed = true,
        }
    }
    Ok(())
}
