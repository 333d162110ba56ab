//! Keeps the state of a fit in a file, to go on from.
//!
//! A checkpoint is a file of named tensors: `parameters`, `running_mean`, `running_variance`, `adam_first`
//! and `adam_second`. Its metadata hold `identity`, `adam_steps` and `history`. `identity` is a line that
//! names everything the fit depends on: a checkpoint is only resumed by the fit whose identity is the same.
//! `history` has a line an epoch: training loss, held-out loss or NaN. Under early stop there are
//! `best_epoch`, `best_parameters`, `best_running_mean` and `best_running_variance`.

use std::collections::BTreeMap;
use std::path::Path;

use rehang_core::{Error, Head, Matrix, Pairs, Result};
use rehang_files::AtomicFile;
use rehang_files::tensors::{self, Detail, FileKind, Metadata, Tensor, parse, text};
use xxhash_rust::xxh3::xxh3_64;

use super::{EpochLoss, NetworkParameters, Snapshot};
use crate::adam::Adam;
use crate::network::{Layout, State};

const KIND: FileKind = FileKind { format: "rehang-fit", thing: "a checkpoint of a fit", version: 1 };

/// State of a fit between two epochs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checkpoint {
    pub snapshot: Snapshot,
    pub history: Vec<EpochLoss>,
    /// Best state under early stop, and its epoch.
    pub best: Option<(State, usize)>,
}

impl Checkpoint {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, history: Vec::new(), best: None }
    }

    /// Returns whether all epochs are done, or the early stop ends the fit.
    pub(crate) fn is_finished(&self, parameters: &NetworkParameters) -> bool {
        let done = self.history.len();
        let stopped = match (parameters.early_stop, &self.best) {
            (Some(patience), Some((_, best))) => done > best + patience,
            _ => false,
        };
        done >= parameters.epochs || stopped
    }

    /// Returns whether a held-out loss is below the best one so far.
    pub(crate) fn is_better(&self, loss: f64) -> bool {
        match &self.best {
            Some((_, epoch)) => self.history[*epoch].held_out.is_none_or(|best| loss < best),
            None => true,
        }
    }
}

/// Names everything that a fit depends on.
pub(crate) fn identity(pairs: &Pairs, held_out: Option<&Pairs>, parameters: &NetworkParameters) -> String {
    // Large parts are named by their fingerprints.
    let mut short = parameters.clone();
    let (head, skip) = (short.loss.head.take(), short.skip.take());
    let print = |matrix: Option<&Matrix>| matrix.map_or_else(|| "none".into(), Matrix::fingerprint);
    let column = |values: &[f32]| Matrix::from_fn(values.len(), 1, |row, _| values[row]).fingerprint();
    let of_pairs = |pairs: &Pairs| {
        let labels: Vec<u8> =
            pairs.labels().unwrap_or(&[]).iter().flat_map(|label| label.to_le_bytes()).collect();
        let [old, new] = [pairs.old(), pairs.new_vectors()].map(|vectors| vectors.matrix().fingerprint());
        format!("{old}/{new}/{}/{:016x}", print(pairs.side()), xxh3_64(&labels))
    };
    format!(
        "version={} pairs={} held-out={} head={}/{}/{:?} skip={}/{} {short:?}",
        env!("CARGO_PKG_VERSION"),
        of_pairs(pairs),
        held_out.map_or_else(|| "none".into(), of_pairs),
        print(head.as_ref().map(Head::weight)),
        column(head.as_ref().map_or(&[], |head| head.bias())),
        head.as_ref().map(Head::kind),
        print(skip.as_ref().map(|skip| &skip.weight)),
        column(skip.as_ref().map_or(&[], |skip| &skip.bias)),
    )
}

/// Writes a checkpoint under a temporary name, syncs it and renames it, so that `path` always holds a whole
/// one.
pub(crate) fn write(path: &Path, identity: &str, checkpoint: &Checkpoint) -> Result<()> {
    let Checkpoint { snapshot: Snapshot { state, adam }, history, best } = checkpoint;
    let line = |line: &EpochLoss| format!("{} {}\n", line.training, line.held_out.unwrap_or(f64::NAN));
    let mut metadata = Metadata::from([
        ("identity".into(), identity.into()),
        ("adam_steps".into(), adam.steps.to_string()),
        ("history".into(), history.iter().map(line).collect()),
    ]);
    let mut tensors = state_tensors("", state);
    tensors.extend([tensor("adam_first", &adam.first), tensor("adam_second", &adam.second)]);
    if let Some((best, epoch)) = best {
        metadata.insert("best_epoch".into(), epoch.to_string());
        tensors.extend(state_tensors("best_", best));
    }
    AtomicFile::write(path, &tensors::write(&KIND, metadata, &tensors)?)
}

fn state_tensors<'a>(prefix: &str, state: &'a State) -> Vec<Tensor<'a>> {
    let State { parameters, running_mean, running_variance } = state;
    let parts =
        [("parameters", parameters), ("running_mean", running_mean), ("running_variance", running_variance)];
    parts.map(|(name, values)| tensor(&format!("{prefix}{name}"), values)).into()
}

fn tensor<'a>(name: &str, values: &'a [f32]) -> Tensor<'a> {
    Tensor { name: name.into(), shape: vec![values.len()], values: values.into() }
}

/// Reads a checkpoint of the fit with the given identity.
pub(crate) fn read(path: &Path, identity: &str, layout: &Layout) -> Result<Checkpoint> {
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    let corrupt =
        |detail: Detail| Error::corrupt(path.display(), format!("{detail}; remove it to start anew"));
    let (metadata, tensors) = tensors::read(&bytes, &KIND).map_err(corrupt)?;
    if text(&metadata, "identity").map_err(corrupt)? != identity {
        return Err(Error::option(
            "checkpoint",
            path.display(),
            "the checkpoint of this very fit (same pairs, parameters and version); remove it to start anew",
        ));
    }
    from_parts(&metadata, tensors, layout).map_err(corrupt)
}

fn from_parts(
    metadata: &Metadata,
    mut tensors: BTreeMap<String, Tensor<'static>>,
    layout: &Layout,
) -> Result<Checkpoint, Detail> {
    let mut floats = |name: &str, count: usize| tensors::take(&mut tensors, name, count);
    let mut state = |prefix: &str| -> Result<State, Detail> {
        Ok(State {
            parameters: floats(&format!("{prefix}parameters"), layout.parameter_count)?,
            running_mean: floats(&format!("{prefix}running_mean"), layout.statistics_count)?,
            running_variance: floats(&format!("{prefix}running_variance"), layout.statistics_count)?,
        })
    };
    let line = |line: &str| {
        let (training, held_out) = line.split_once(' ')?;
        let held_out: f64 = held_out.parse().ok()?;
        Some(EpochLoss {
            training: training.parse().ok()?,
            held_out: (!held_out.is_nan()).then_some(held_out),
        })
    };
    let history: Option<Vec<EpochLoss>> = text(metadata, "history")?.lines().map(line).collect();
    let history = history.ok_or("its history is no losses")?;
    let (now, mut best) = (state("")?, None);
    if metadata.contains_key("best_epoch") {
        let epoch: usize = parse(metadata, "best_epoch")?;
        if epoch >= history.len() {
            return Err(format!("its best epoch {epoch} is not among its {} epochs", history.len()));
        }
        best = Some((state("best_")?, epoch));
    }
    let adam = Adam {
        first: floats("adam_first", layout.parameter_count)?,
        second: floats("adam_second", layout.parameter_count)?,
        steps: parse(metadata, "adam_steps")?,
    };
    Ok(Checkpoint { snapshot: Snapshot { state: now, adam }, history, best })
}
