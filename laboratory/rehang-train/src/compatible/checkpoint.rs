//! Checkpoint: the state of a training as a file, to go on from.
//!
//! A file of named tensors whose metadata hold `identity`, a line that names everything the training depends
//! on. A checkpoint is only taken up by the training whose identity is the same. It is written under a
//! temporary name, synced and renamed: `path` always holds a whole one, of the last whole epoch.

use std::collections::BTreeMap;
use std::path::Path;

use rehang_core::{Error, Matrix, Result};
use rehang_files::AtomicFile;
use rehang_files::tensors::{self, Detail, FileKind, Metadata, Tensor, json, parse, parse_json, text};
use serde::{Deserialize, Serialize};

use super::old::OldModel;
use super::trainer::{EpochSummary, TrainingParameters, TrainingSet};

const KIND: FileKind =
    FileKind { format: "rehang-training", thing: "a checkpoint of a training", version: 1 };

/// Epoch with its numbers as text: JSON's own numbers may come back a rounding apart, and a training that
/// goes on must be the very one that was stopped.
#[derive(Serialize, Deserialize)]
struct EpochText {
    loss: String,
    terms: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    measures: Vec<(String, String)>,
    accuracy: String,
    rate: String,
}

impl EpochText {
    fn from_summary(epoch: &EpochSummary) -> Self {
        let texts = |numbers: &[(String, f64)]| {
            numbers.iter().map(|(name, value)| (name.clone(), value.to_string())).collect()
        };
        Self {
            loss: epoch.loss.to_string(),
            terms: texts(&epoch.terms),
            measures: texts(&epoch.measures),
            accuracy: epoch.accuracy.to_string(),
            rate: epoch.rate.to_string(),
        }
    }

    fn epoch(self) -> Result<EpochSummary, Detail> {
        let number =
            |text: String| text.parse::<f64>().map_err(|_| format!("its history holds {text:?} as a number"));
        let numbers = |texts: Vec<(String, String)>| -> Result<Vec<(String, f64)>, Detail> {
            texts.into_iter().map(|(name, value)| Ok((name, number(value)?))).collect()
        };
        Ok(EpochSummary {
            loss: number(self.loss)?,
            terms: numbers(self.terms)?,
            measures: numbers(self.measures)?,
            accuracy: number(self.accuracy)?,
            rate: number(self.rate)?,
        })
    }
}

/// State of a training that was read from a file.
pub(crate) struct Checkpoint {
    pub history: Vec<EpochSummary>,
    /// Number of steps of the whole training, as the optimiser counts them.
    pub steps: u64,
    pub tensors: BTreeMap<String, Tensor<'static>>,
}

/// Names everything that a training depends on; `initial` is the fingerprint of the file that it begins with.
pub(crate) fn identity(
    set: TrainingSet<'_>,
    old: Option<&OldModel>,
    parameters: &TrainingParameters,
    initial: Option<&str>,
) -> Result<String> {
    let TrainingSet { examples, rows, old_rows } = set;
    let fingerprint = |rows: &[usize]| {
        // Row numbers are split in two so that single precision holds each part exactly.
        let part = |row: usize, column: usize| if column == 0 { row >> 16 } else { row & 0xffff };
        Matrix::from_fn(rows.len(), 2, |row, column| part(rows[row], column) as f32).fingerprint()
    };
    let old = old.map_or_else(|| Ok("none".to_owned()), OldModel::fingerprint)?;
    let of_old = match old_rows {
        Some(old_rows) if parameters.method.needs_old_rows() => {
            format!("old_rows={} ", fingerprint(old_rows))
        }
        _ => String::new(),
    };
    let initial = initial.map(|initial| format!("initial={initial} ")).unwrap_or_default();
    Ok(format!(
        "version={} examples={} rows={} {of_old}old={old} {initial}{}",
        env!("CARGO_PKG_VERSION"),
        examples.fingerprint(),
        fingerprint(rows),
        json(parameters)?
    ))
}

pub(crate) fn write(
    path: &Path,
    identity: &str,
    history: &[EpochSummary],
    steps: u64,
    tensors: &[Tensor<'_>],
) -> Result<()> {
    let metadata = Metadata::from([
        ("identity".into(), identity.into()),
        ("history".into(), json(&history.iter().map(EpochText::from_summary).collect::<Vec<_>>())?),
        ("steps".into(), steps.to_string()),
    ]);
    AtomicFile::write(path, &tensors::write(&KIND, metadata, tensors)?)
}

pub(crate) fn read(path: &Path, identity: &str) -> Result<Checkpoint> {
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    let corrupt = |detail: Detail| Error::corrupt(path.display(), detail);
    let (metadata, tensors) = tensors::read(&bytes, &KIND).map_err(corrupt)?;
    if text(&metadata, "identity").map_err(corrupt)? != identity {
        return Err(Error::option(
            "checkpoint",
            path.display(),
            "the checkpoint of this very training (same examples, parameters, initial weights, old model and version); \
             remove it to start anew",
        ));
    }
    let history: Vec<EpochText> = parse_json(&metadata, "history").map_err(corrupt)?;
    Ok(Checkpoint {
        history: history.into_iter().map(EpochText::epoch).collect::<Result<_, _>>().map_err(corrupt)?,
        steps: parse(&metadata, "steps").map_err(corrupt)?,
        tensors,
    })
}
