//! Values as the columns of the gallery's tables hold them: numbers, keys, provenances
//! and places in the queue.

use std::fmt;

use rehang_core::{Error, Provenance, Result};
use rehang_store::{ItemKey, Priority, QueueBand};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use crate::connection::Step;

/// Converts a number of the caller to the server's kind; a number that no row can have stays one.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a key of the caller to the server's kind; a key that no row can have stays one.
pub(crate) fn row_of(key: ItemKey) -> i64 {
    i64::try_from(key.bits()).unwrap_or(i64::MAX)
}

/// Converts keys of the caller to the server's kind.
pub(crate) fn rows_of(keys: &[ItemKey]) -> Vec<i64> {
    keys.iter().map(|key| row_of(*key)).collect()
}

/// Converts a limit to the server's kind.
pub(crate) fn row_limit(limit: usize) -> i64 {
    int(limit as u64)
}

/// Reads the key of an item from a column of a row, by its number or its name.
pub(crate) fn key(row: &Row, column: impl RowIndex + fmt::Display) -> Step<ItemKey> {
    Ok(ItemKey::from(row.try_get::<_, i64>(column)?.max(0) as u64))
}

/// Reads a provenance by its name in a column.
pub(crate) fn provenance(text: &str) -> Result<Provenance> {
    let all = [Provenance::Old, Provenance::Adapted, Provenance::Native];
    let matching = all.into_iter().find(|provenance| provenance.name() == text);
    matching.ok_or_else(|| Error::corrupt("a vector of the gallery", format!("its provenance is {text:?}")))
}

/// Writes a place in the queue as the columns `band` and `score` hold it.
pub(crate) fn band_and_score(priority: Option<Priority>) -> (i16, Option<f64>) {
    priority.map_or((0, None), |Priority { band, score }| (band as i16, Some(score)))
}

/// Reads a place in the queue back from the columns `band` and `score`. A role that may write vectors by SQL
/// may write any number: an unknown band says nothing, and keeps nobody from the item.
pub(crate) fn priority(band: i16, score: Option<f64>) -> Option<Priority> {
    let band = usize::try_from(band).ok().and_then(|band| QueueBand::ALL.get(band)).copied()?;
    score.map(|score| Priority { band, score })
}
