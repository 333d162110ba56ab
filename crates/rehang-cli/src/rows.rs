//! `--rows` for files that are streamed.

use rehang::Result;
use rehang::files::{self, VectorSource};

use crate::arguments::RowSelection;
use crate::input::{check_values, expect_count, parse_rows};

/// Which rows of a streamed file take part.
#[derive(Debug)]
pub struct RowFilter(Option<(Vec<i64>, Vec<i64>)>);

impl RowFilter {
    /// Reads the file of `--rows`, which must have one tag for each of the `rows` rows of `what`.
    pub fn new(selection: &RowSelection, rows: u64, what: &str) -> Result<Self> {
        let Some(text) = &selection.rows else { return Ok(Self(None)) };
        let (path, values) = parse_rows(text)?;
        let tags = files::read_labels(&VectorSource::parse(&path)?)?;
        check_values(&path, &tags, &values)?;
        expect_count(&path, tags.len(), what, rows as usize)?;
        Ok(Self(Some((tags, values))))
    }

    /// The positions that take part in a batch of `count` rows from `first_row` on; `None` for all.
    pub fn keep(&self, first_row: u64, count: usize) -> Option<Vec<usize>> {
        let (tags, values) = self.0.as_ref()?;
        Some((0..count).filter(|&row| values.contains(&tags[first_row as usize + row])).collect())
    }
}
