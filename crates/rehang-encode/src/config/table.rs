//! `kind = "table"`.

use serde::{Deserialize, Serialize};

/// A table of vectors.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `vectors` | | the vectors, one a row: `FILE` or `FILE#COLUMN` | any file of vectors |
/// | `ids` | those inside `vectors` | the items' ids, one a row | text with one a line, `.jsonl`, Parquet, `.npy` |
/// | `normalise` | `false` | scale vectors to length 1 | |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TableConfig {
    /// The vectors, one a row.
    pub vectors: String,
    /// The items' ids, one a row.
    pub ids: Option<String>,
    /// Whether vectors are scaled to length 1.
    #[serde(default)]
    pub normalise: bool,
}
