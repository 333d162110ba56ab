//! Embeds queries as people ask them: a text or an image.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rehang_core::check::expect_width;
use rehang_core::{Error, ErrorKind, Matrix, Party, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Reads};
use serde_json::Value;

use crate::live::encoding::encode;
use crate::observe::{Observation, Observer, expect_going};
use crate::setup::mismatch;

/// Most characters of a text that an error repeats.
const SHOWN_MAX: usize = 60;

/// Query as people ask it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// Text with at least one character that is no space.
    Text(String),
    /// File of an image.
    Image(PathBuf),
}

/// Function that gives the encoder for queries of a space. It is asked for the models that a search needs and
/// no others, and again at every search: a process that searches often keeps its encoders and gives the same
/// ones.
pub type QueryEncoders<'a> = dyn Fn(&Space) -> Result<Arc<dyn Encoder>> + 'a;

impl Query {
    /// Returns the source that an encoder is given for the query. An image is named by its whole path, since
    /// a program runs in a folder of its own.
    fn source(&self) -> Result<String> {
        match self {
            Self::Text(text) if text.trim().is_empty() => {
                Err(Error::option("texts", text, "a text with a word in it"))
            }
            Self::Text(text) => Ok(text.clone()),
            Self::Image(path) => {
                let whole_path =
                    fs_err::canonicalize(path).map_err(|error| Error::io("open", path, &error))?;
                let whole_path = whole_path.to_str().map(str::to_owned);
                whole_path.ok_or_else(|| Error::option("images", path.display(), "a path in UTF-8"))
            }
        }
    }

    /// Fails where an encoder does not read queries of this kind: a text model would embed the words of a
    /// path.
    fn expect_read_by(&self, encoder: &dyn Encoder) -> Result<()> {
        let expected = match (self, encoder.reads()) {
            (Self::Text(_), Reads::Images) => "an image",
            (Self::Image(_), Reads::Texts) => "a text",
            _ => return Ok(()),
        };
        let space = encoder.space();
        Err(self.cannot_be(format!("{expected}, which is all that the encoder of {space} reads")))
    }

    /// Makes the error for a query that can have no vector, with what is `expected` in its place.
    fn cannot_be(&self, expected: String) -> Error {
        match self {
            Self::Text(text) => Error::option("texts", shown(text), expected),
            Self::Image(path) => Error::option("images", path.display(), expected),
        }
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

/// Shortens a text for an error.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_MAX).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}

/// Embeds queries by the encoder of a space: one row each.
///
/// # Errors
///
/// As [`embed_each`], and for the first query that can have no vector.
pub(crate) fn embed(
    queries: &[Query],
    space: &Space,
    encoders: &QueryEncoders<'_>,
    observer: &dyn Observer,
) -> Result<Matrix> {
    let rows = embed_each(queries, space, encoders, observer, &mut |_| Ok(()))?;
    Matrix::new(space.dimension, rows.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// Receiver of the vectors of a batch of queries, each with the place of its query among all.
pub(crate) type Keep<'a> = dyn FnMut(&[(usize, &[f32])]) -> Result<()> + 'a;

/// Embeds each query by the encoder of a space, or says why it can have no vector. A query without a vector
/// has an I/O error for an image that is not there, or an invalid option: it is a text without a word, or the
/// encoder refuses it. `keep` is given the vectors of a batch before the next one is embedded.
///
/// # Errors
///
/// Cancelled between two batches where a stop is wanted. What the caller says where it has no such encoder,
/// and a space mismatch where it gives the encoder of another space. An invalid option for a query of a kind
/// that the encoder does not read. Unavailable where a query could not be embedded now. What the encoder and
/// `keep` say.
pub(crate) fn embed_each(
    queries: &[Query],
    space: &Space,
    encoders: &QueryEncoders<'_>,
    observer: &dyn Observer,
    keep: &mut Keep<'_>,
) -> Result<Vec<Result<Vec<f32>>>> {
    let mut vectors: Vec<Result<Vec<f32>>> = Vec::new();
    let mut to_embed = Vec::new();
    for (number, query) in queries.iter().enumerate() {
        let source = query.source();
        vectors.push(source.map(|source| {
            to_embed.push((number, format!("query {number}"), source));
            Vec::new()
        }));
    }
    if to_embed.is_empty() {
        return Ok(vectors);
    }
    let encoder = &*encoders(space)?;
    let identity = |space: &Space| (space.name.clone(), space.dimension, space.distance);
    if identity(encoder.space()) != identity(space) {
        return Err(mismatch(space, encoder.space()).context("the encoder of queries"));
    }
    queries.iter().try_for_each(|query| query.expect_read_by(encoder))?;
    let total = to_embed.len() as u64;
    observer.observe(&Observation::Began { stage: "embedding queries", unit: "queries", total });
    let inputs: Vec<Input<'_>> =
        to_embed.iter().map(|(_, id, source)| Input { id, source, payload: &Value::Null }).collect();
    let number = |place: usize| to_embed[place].0;
    let mut keep = |embedded: &[(usize, &[f32])]| {
        keep(&embedded.iter().map(|&(place, vector)| (number(place), vector)).collect::<Vec<_>>())
    };
    let named = |place: usize| queries[number(place)].to_string();
    let answers = embed_inputs(encoder, &inputs, &named, observer, &mut keep)?;
    for ((number, ..), answer) in to_embed.iter().zip(answers) {
        let expected = |reason: String| format!("one that its encoder takes: {reason}");
        vectors[*number] = answer.map_err(|reason| queries[*number].cannot_be(expected(reason)));
    }
    Ok(vectors)
}

/// Embeds each input, or says in words why the encoder refuses it. `named` gives the name of an input for
/// errors.
///
/// # Errors
///
/// As [`embed_each`], once the encoder is there.
pub(crate) fn embed_inputs(
    encoder: &dyn Encoder,
    inputs: &[Input<'_>],
    named: &dyn Fn(usize) -> String,
    observer: &dyn Observer,
    keep: &mut Keep<'_>,
) -> Result<Vec<Result<Vec<f32>, String>>> {
    let space = encoder.space();
    let mut vectors: Vec<Result<Vec<f32>, String>> = inputs.iter().map(|_| Ok(Vec::new())).collect();
    let mut places_left: Vec<usize> = (0..inputs.len()).collect();
    while !places_left.is_empty() {
        expect_going(observer)?;
        let batch: Vec<usize> =
            places_left.drain(..encoder.batch_max().clamp(1, places_left.len())).collect();
        let batch_inputs: Vec<Input<'_>> = batch.iter().map(|&place| inputs[place]).collect();
        let (mut not_now, mut untried) = (None, Vec::new());
        for (&place, answer) in batch.iter().zip(encode(encoder, &batch_inputs)?) {
            vectors[place] = match answer {
                Ok(vector) => {
                    let is_as_wide = expect_width(named(place), space.dimension, vector.len());
                    is_as_wide.map_err(|error| error.blame(Party::Encoder))?;
                    Ok(vector)
                }
                Err(ItemFailure::Permanent(reason)) => Err(reason),
                // Inputs that were not tried are asked for again with the next batch; if a batch tries none,
                // its last one says why.
                Err(ItemFailure::Untried(_)) if untried.len() + 1 < batch.len() => {
                    untried.push(place);
                    continue;
                }
                Err(ItemFailure::Temporary(detail) | ItemFailure::Untried(detail)) => {
                    let service = format!("the encoder of {space}");
                    let error = Error::from(ErrorKind::Unavailable { service, detail }).blame(Party::Encoder);
                    not_now.get_or_insert(error.context(named(place)));
                    continue;
                }
            };
        }
        let embedded = batch.iter().filter_map(|&place| Some((place, &**vectors[place].as_ref().ok()?)));
        keep(&embedded.filter(|(_, vector)| !vector.is_empty()).collect::<Vec<_>>())?;
        if let Some(error) = not_now {
            return Err(error);
        }
        let units = (batch.len() - untried.len()) as u64;
        observer.observe(&Observation::Advanced { units });
        places_left.splice(..0, untried);
    }
    Ok(vectors)
}
