//! Location of a gallery in a table of an application, as a configuration names it.

use std::fmt;
use std::path::PathBuf;

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// Table of PostgreSQL that is, or will be, a gallery: `[gallery]` of a configuration.
///
/// Another process may write and read the table at any time. The configuration states what the gallery was
/// made with: other columns would make other items of the same rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableLocation {
    /// Address of the server and the database, `postgresql://user@host/database`; a password is better kept
    /// where libpq finds it.
    pub url: Option<String>,
    /// Variable of the environment that holds the address.
    pub url_env: Option<String>,
    /// File in the PEM format with authorities that are trusted besides the system's; the server has to prove
    /// then who it is.
    #[serde(default)]
    pub root_certificates: Option<PathBuf>,
    /// Name of the table, `schema.name` or `name`.
    pub table: String,
    /// Columns that say which item a row is; the primary key where there are none.
    pub id: Vec<String>,
    /// Source that can be embedded again: a column, or an SQL expression of the table's columns.
    pub source: Option<String>,
    /// Column with a class, tag or group.
    pub label: Option<String>,
    /// Column of type `jsonb` that is kept beside an item; all other columns where there is none.
    pub payload: Option<String>,
    /// Column with the vectors of the old model.
    pub vector: Option<String>,
    /// SQL condition: rows that do not meet it are no items.
    pub condition: Option<String>,
    /// Whether the table may be in a publication of logical replication, or all tables may: subscribers were
    /// seen to.
    #[serde(default)]
    pub published: bool,
    /// Seconds for which the native vector of a row that is gone waits for the row to come back: a day where
    /// nothing is said, and 0 keeps none.
    #[serde(default)]
    pub keep_paid_s: Option<u32>,
    /// Name of the old space, whose vectors are in the column.
    pub old: String,
    /// Name of the new space.
    pub new: String,
    /// Column that the new vectors move into at the end; see [`TableLocation::new_column`].
    pub column: Option<String>,
}

/// Most bytes that a name in PostgreSQL may have.
const NAME_BYTES_MAX: usize = 63;

impl TableLocation {
    /// Returns the column that the new vectors move into at the end: the one that was given, or else one
    /// named after the column of the old vectors and the new space, `embedding_large` for `embedding` and
    /// `large`.
    pub fn new_column(&self) -> String {
        let default_name = || {
            let old = self.vector.as_deref().unwrap_or("vector");
            // Names of models have dots and dashes, and a column with them would have to be quoted for ever.
            let new = self.new.to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
            let mut name = format!("{old}_{new}");
            name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
            name
        };
        self.column.clone().unwrap_or_else(default_name)
    }
}

impl fmt::Display for TableLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.table)
    }
}

/// Reads seconds from a text such as `1d`, `12h`, `30min` or `0`.
pub(crate) fn parse_seconds(parameter: &str, text: &str) -> Result<u32> {
    let wrong = || Error::option(parameter, text, "days, hours or minutes, such as 1d, 12h or 30min, or 0");
    let (number, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let number: u32 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "d" => 86_400,
        "h" => 3_600,
        "min" => 60,
        "" if number == 0 => 0,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).ok_or_else(wrong)
}

/// Variable of the environment that holds the address where a configuration names none.
pub const URL_ENV: &str = "DATABASE_URL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let read = |text| parse_seconds("keep_paid", text);
        assert_eq!(
            (read("1d"), read("12h"), read("30 min"), read("0")),
            (Ok(86_400), Ok(43_200), Ok(1_800), Ok(0))
        );
        for wrong in ["", "1", "d", "-1d", "1.5h", "99999999d", "1 week"] {
            assert!(read(wrong).unwrap_err().to_string().contains("12h"), "{wrong:?}");
        }
    }

    #[test]
    fn the_new_column_is_named_after_the_old_one_and_the_model() {
        let new_column = |vector: Option<&str>, new: &str, column: Option<&str>| {
            let [vector, column] = [vector, column].map(|name| name.map(str::to_owned));
            TableLocation { vector, new: new.into(), column, ..TableLocation::default() }.new_column()
        };
        assert_eq!(new_column(Some("embedding"), "MiniLM-L6 v2.0", None), "embedding_minilm_l6_v2_0");
        assert_eq!(new_column(None, "large", None), "vector_large");
        assert_eq!(new_column(Some("embedding"), "large", Some("Mine")), "Mine");
        let long = new_column(Some(&"ä".repeat(40)), "large", None);
        assert_eq!(long, "ä".repeat(31), "62 of 63 bytes, since a letter is not cut");
    }
}
