//! Conversions between columns and numbers, keys, vectors and places in the queue.

use rehang_core::{Error, Provenance};
use rehang_store::{ItemKey, Priority, QueueBand};
use rusqlite::Row;

use crate::trouble::Step;

/// Writes a vector as the file holds it: little-endian `f32`, one after the other.
pub(crate) fn as_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Reads a vector into a buffer; fails where its width is another one.
pub(crate) fn read_value(row: &Row<'_>, column: usize, dimension: usize, into: &mut Vec<f32>) -> Step<()> {
    let bytes = row.get_ref(column)?.as_blob().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Blob, Box::new(error))
    })?;
    let (values, bytes_left) = bytes.as_chunks::<4>();
    if values.len() != dimension || !bytes_left.is_empty() {
        return Err(Error::corrupt(
            "a vector of the gallery",
            format!(
                "it has {} bytes where {} are needed; run the check of the gallery",
                bytes.len(),
                4 * dimension
            ),
        )
        .into());
    }
    into.extend(values.iter().map(|&bytes| f32::from_le_bytes(bytes)));
    Ok(())
}

/// Converts a caller's number to the integers of SQLite. A larger one becomes the largest, which no row has.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a caller's key to a row number of SQLite. A larger one becomes the largest, which no row has.
pub(crate) fn row_of(key: ItemKey) -> i64 {
    i64::try_from(key.bits()).unwrap_or(i64::MAX)
}

/// Reads an item's key from a column.
pub(crate) fn key(row: &Row<'_>, column: usize) -> rusqlite::Result<ItemKey> {
    Ok(ItemKey::from(row.get::<_, u64>(column)?))
}

/// Splits a place in the queue into the values of the columns `band` and `score`.
pub(crate) fn place(priority: Option<Priority>) -> (i64, Option<f64>) {
    match priority {
        None => (0, None),
        Some(Priority { band, score }) => (band as i64, Some(score)),
    }
}

/// Reads a place in the queue from the columns `band` and `score`.
pub(crate) fn priority(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Priority>> {
    let (band, score): (i64, Option<f64>) = (row.get(column)?, row.get(column + 1)?);
    let band = usize::try_from(band).ok().and_then(|band| QueueBand::ALL.get(band)).copied();
    let Some(band) = band else { return Err(rusqlite::Error::IntegralValueOutOfRange(column, 0)) };
    Ok(score.map(|score| Priority { band, score }))
}

/// Reads a provenance from a column, where it stands as text.
pub(crate) fn provenance(row: &Row<'_>, column: usize) -> rusqlite::Result<Provenance> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|error: Error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}
