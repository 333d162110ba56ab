//! `kind = "command"`.

use serde::{Deserialize, Serialize};

use super::keys::number;

/// A program of the user.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `program` | | the program and its arguments; it runs in the folder of the configuration file | at least one word |
/// | `query_program` | as `program` | the same for queries, such as `["python3", "encode.py", "--query"]` | at least one word |
/// | `format` | `"jsonl"` | what it writes: one JSON line an item, or one `.npy` matrix a batch | `jsonl`, `npy` |
/// | `persistent` | `true` (`npy`: `false`) | one process for all batches, or a new one for each | `npy`: only `false` |
/// | `batch` | 32 | items it is given at once | from 1 |
/// | `processes` | 1 | processes at a time | from 1 |
/// | `timeout_seconds` | 300 | the longest that a batch may take, the start included | above 0, at most a day |
/// | `normalise` | `false` | scale vectors to length 1 | |
/// | `revision` | none | names what the vectors depend on, and changes with it; without it a run embeds some items again and compares | any text |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CommandConfig {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The program that embeds queries and its arguments, where it is another one;
    /// [`EncoderConfig::for_queries`](super::EncoderConfig::for_queries) puts it into the place of `program`.
    pub query_program: Option<Vec<String>>,
    /// Form of the program's output.
    #[serde(default)]
    pub format: CommandFormat,
    /// Whether one process serves all batches; by default it does unless it writes `.npy`.
    pub persistent: Option<bool>,
    /// Items that the program is given at once.
    #[serde(default = "number::<32, _>")]
    pub batch: usize,
    /// Processes at a time.
    #[serde(default = "number::<1, _>")]
    pub processes: usize,
    /// Longest time that a batch may take, in seconds.
    #[serde(default = "number::<300, _>")]
    pub timeout_seconds: f64,
    /// Whether vectors are scaled to length 1.
    #[serde(default)]
    pub normalise: bool,
    /// Text that names what the vectors depend on, and changes with it.
    pub revision: Option<String>,
}

/// Form of a program's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandFormat {
    /// One line an item: `{"id": …, "vector": […]}` or `{"id": …, "error": …}`.
    #[default]
    Jsonl,
    /// One `.npy` matrix a batch, one row an item.
    Npy,
}
