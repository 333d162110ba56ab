//! Queries as people ask them: a text, an image.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rehang::{Error, ErrorKind, Matrix, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Reads};
use serde_json::Value;

use crate::observe::{Observation, Observer, expect_going};
use crate::run::encode;
use crate::verbs::mismatch;

/// Characters of a text that an error repeats.
const SHOWN_MAX: usize = 60;

/// A query as people ask it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// A text, with at least one character that is no space.
    Text(String),
    /// The file of an image.
    Image(PathBuf),
}

/// The encoder that embeds queries of a space. It is asked for the models that a search needs and no others, and again at every search:
/// a process that searches often gives one that it keeps.
pub type QueryEncoders<'a> = dyn Fn(&Space) -> Result<Arc<dyn Encoder>> + 'a;

impl Query {
    /// What an encoder is given of it. An image is named by its whole path, since a program runs in a folder of its own.
    fn source(&self) -> Result<String> {
        match self {
            Self::Text(text) if text.trim().is_empty() => {
                Err(Error::option("texts", text, "a text with a word in it"))
            }
            Self::Text(text) => Ok(text.clone()),
            Self::Image(path) => {
                let whole = fs_err::canonicalize(path).map_err(|error| Error::io("open", path, &error))?;
                let whole = whole.to_str().map(str::to_owned);
                whole.ok_or_else(|| Error::option("images", path.display(), "a path in UTF-8"))
            }
        }
    }

    /// Fails where an encoder of queries of a space reads no such query: a text model would embed the words of a path.
    fn expect_read_by(&self, encoder: &dyn Encoder) -> Result<()> {
        let (parameter, value, expected) = match (self, encoder.reads()) {
            (Self::Text(text), Reads::Images) => ("texts", shown(text), "an image"),
            (Self::Image(path), Reads::Texts) => ("images", path.display().to_string(), "a text"),
            _ => return Ok(()),
        };
        let space = encoder.space();
        Err(Error::option(
            parameter,
            value,
            format!("{expected}, which is all that the encoder of {space} reads"),
        ))
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "the text {:?}", shown(text)),
            Self::Image(path) => write!(f, "the image {}", path.display()),
        }
    }
}

/// The start of a text.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_MAX).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}

/// Embeds queries by the encoder of a space: one row each.
///
/// # Errors
///
/// Cancelled between two batches where a stop is wanted; what the caller says where it has no such encoder; a space mismatch where it gives another one's; an invalid option for a text without a word and for what the encoder does not read; I/O errors where an image is not there; corrupt
/// where a query cannot be embedded at all; unavailable where it could not be embedded now; what the encoder says.
pub(crate) fn embed(
    queries: &[Query],
    space: &Space,
    encoders: &QueryEncoders<'_>,
    observer: &dyn Observer,
) -> Result<Matrix> {
    // Before the encoder, which may take a while to open.
    let sources = queries.iter().map(Query::source).collect::<Result<Vec<_>>>()?;
    let encoder = &*encoders(space)?;
    let of = |space: &Space| (space.name.clone(), space.dimension, space.distance);
    if of(encoder.space()) != of(space) {
        return Err(mismatch(space, encoder.space()).context("the encoder of queries"));
    }
    queries.iter().try_for_each(|query| query.expect_read_by(encoder))?;
    let ids: Vec<String> = (0..queries.len()).map(|number| format!("query {number}")).collect();
    let inputs: Vec<Input<'_>> =
        ids.iter().zip(&sources).map(|(id, source)| Input { id, source, payload: &Value::Null }).collect();
    let batch = encoder.batch_max().max(1);
    let mut rows = Vec::new();
    let total = queries.len() as u64;
    observer.observe(&Observation::Began { stage: "embedding queries", unit: "queries", total });
    for (queries, inputs) in queries.chunks(batch).zip(inputs.chunks(batch)) {
        expect_going(observer)?;
        for (query, answer) in queries.iter().zip(encode(encoder, inputs)?) {
            let vector = answer.map_err(|failure| failed(query, encoder, failure))?;
            if vector.len() != space.dimension {
                let (what, expected, received) = (query.to_string(), space.dimension, vector.len());
                return Err(ErrorKind::WidthMismatch { what, expected, received }.into());
            }
            rows.extend(vector);
        }
        observer.observe(&Observation::Advanced { units: queries.len() as u64 });
    }
    Matrix::new(space.dimension, rows)
}

/// Why there is no answer to a query.
fn failed(query: &Query, encoder: &dyn Encoder, failure: ItemFailure) -> Error {
    match failure {
        ItemFailure::Permanent(reason) => Error::corrupt(query, reason),
        ItemFailure::Temporary(detail) | ItemFailure::Untried(detail) => {
            let service = format!("the encoder of {}", encoder.space());
            Error::from(ErrorKind::Unavailable { service, detail }).context(query.to_string())
        }
    }
}
