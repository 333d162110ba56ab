//! The state of a fit as a file, to go on from.
//!
//! A safetensors file. Its metadata MUST hold `format` = `rehang-fit-1` and `identity`, a line that names everything
//! the fit depends on; a checkpoint is only resumed by the fit whose identity is the same. Tensors: `parameters`,
//! `running_mean`, `running_variance`, `adam_first`, `adam_second` (f32), `adam_steps` (u64, one number), `history`
//! (f64, four numbers an epoch: training loss, held-out loss or NaN, learning rate, 0) and, under early stop,
//! `best_parameters`, `best_running_mean`, `best_running_variance`, `best_epoch`.

use std::collections::HashMap;
use std::path::Path;

use rehang::files::AtomicFile;
use rehang::{Error, Head, Matrix, Pairs, Result};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{EpochLoss, NetworkParameters, Snapshot};
use crate::adam::Adam;
use crate::network::{Layout, State};

const FORMAT: &str = "rehang-fit-1";

/// Where a fit stands between two epochs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checkpoint {
    pub snapshot: Snapshot,
    pub history: Vec<EpochLoss>,
    /// The best state under early stop, and its epoch.
    pub best: Option<(State, usize)>,
}

impl Checkpoint {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, history: Vec::new(), best: None }
    }

    /// Whether all epochs are done, or the early stop says so.
    pub(crate) fn is_finished(&self, parameters: &NetworkParameters) -> bool {
        let done = self.history.len();
        let stopped = match (parameters.early_stop, &self.best) {
            (Some(patience), Some((_, best))) => done > best + patience,
            _ => false,
        };
        done >= parameters.epochs || stopped
    }

    /// Whether a held-out loss is below the best one so far.
    pub(crate) fn is_better(&self, loss: f64) -> bool {
        match &self.best {
            Some((_, epoch)) => self.history[*epoch].held_out.is_none_or(|best| loss < best),
            None => true,
        }
    }
}

/// Names everything that a fit depends on.
pub(crate) fn identity(pairs: &Pairs, held_out: Option<&Pairs>, parameters: &NetworkParameters) -> String {
    // Whatever is large is named by its fingerprint.
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

/// Writes a checkpoint under a temporary name, syncs it and renames it, so that `path` always holds a whole one.
pub(crate) fn write(path: &Path, identity: &str, checkpoint: &Checkpoint) -> Result<()> {
    let Checkpoint { snapshot: Snapshot { state, adam }, history, best } = checkpoint;
    let mut tensors: Vec<(&str, Dtype, Vec<u8>)> = vec![
        ("parameters", Dtype::F32, bytes(&state.parameters)),
        ("running_mean", Dtype::F32, bytes(&state.running_mean)),
        ("running_variance", Dtype::F32, bytes(&state.running_variance)),
        ("adam_first", Dtype::F32, bytes(&adam.first)),
        ("adam_second", Dtype::F32, bytes(&adam.second)),
        ("adam_steps", Dtype::U64, adam.steps.to_le_bytes().to_vec()),
    ];
    let lines = history.iter().flat_map(|line| {
        [line.training, line.held_out.unwrap_or(f64::NAN), line.learning_rate, 0.0].map(f64::to_le_bytes)
    });
    tensors.push(("history", Dtype::F64, lines.flatten().collect()));
    if let Some((best, epoch)) = best {
        tensors.push(("best_parameters", Dtype::F32, bytes(&best.parameters)));
        tensors.push(("best_running_mean", Dtype::F32, bytes(&best.running_mean)));
        tensors.push(("best_running_variance", Dtype::F32, bytes(&best.running_variance)));
        tensors.push(("best_epoch", Dtype::U64, (*epoch as u64).to_le_bytes().to_vec()));
    }
    let whole = |detail: safetensors::SafeTensorError| Error::corrupt(path.display(), detail);
    let views = tensors
        .iter()
        .map(|(name, kind, bytes)| {
            let count = bytes.len() * 8 / kind.bitsize();
            Ok((*name, TensorView::new(*kind, vec![count], bytes).map_err(whole)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("identity".to_owned(), identity.to_owned()),
    ]);
    let bytes = serialize(views, Some(metadata)).map_err(whole)?;
    AtomicFile::write(path, &bytes)
}

/// Reads a checkpoint of the fit with the given identity.
pub(crate) fn read(path: &Path, identity: &str, layout: &Layout) -> Result<Checkpoint> {
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    let corrupt = |detail: String| Error::corrupt(path.display(), detail);
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| corrupt(error.to_string()))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    if metadata.get("format").map(String::as_str) != Some(FORMAT) {
        return Err(corrupt(format!("it is no checkpoint of a fit ({FORMAT})")));
    }
    if metadata.get("identity").map(String::as_str) != Some(identity) {
        return Err(Error::option(
            "checkpoint",
            path.display(),
            "the checkpoint of this very fit (same pairs, parameters and version); remove it to start anew",
        ));
    }
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| corrupt(error.to_string()))?;
    let tensor = |name: &str, kind: Dtype, count: Option<usize>| -> Result<&[u8]> {
        let tensor = tensors.tensor(name).map_err(|error| corrupt(error.to_string()))?;
        let received = tensor.data().len() * 8 / tensor.dtype().bitsize();
        if tensor.dtype() != kind || count.is_some_and(|count| count != received) {
            return Err(corrupt(format!("tensor {name} is not of {kind:?} with {count:?} numbers")));
        }
        Ok(tensor.data())
    };
    let floats = |name: &str, count: usize| -> Result<Vec<f32>> {
        let (numbers, _) = tensor(name, Dtype::F32, Some(count))?.as_chunks::<4>();
        Ok(numbers.iter().map(|&number| f32::from_le_bytes(number)).collect())
    };
    let whole = |name: &str| -> Result<u64> {
        let (numbers, _) = tensor(name, Dtype::U64, Some(1))?.as_chunks::<8>();
        Ok(u64::from_le_bytes(numbers[0]))
    };
    let state = |prefix: &str| -> Result<State> {
        Ok(State {
            parameters: floats(&format!("{prefix}parameters"), layout.parameter_count)?,
            running_mean: floats(&format!("{prefix}running_mean"), layout.statistics_count)?,
            running_variance: floats(&format!("{prefix}running_variance"), layout.statistics_count)?,
        })
    };
    let (numbers, _) = tensor("history", Dtype::F64, None)?.as_chunks::<8>();
    let numbers: Vec<f64> = numbers.iter().map(|&number| f64::from_le_bytes(number)).collect();
    let history: Vec<EpochLoss> = numbers
        .chunks_exact(4)
        .map(|line| EpochLoss {
            training: line[0],
            held_out: (!line[1].is_nan()).then_some(line[1]),
            learning_rate: line[2],
        })
        .collect();
    let best = if tensors.names().contains(&"best_epoch") {
        let epoch = whole("best_epoch")? as usize;
        if epoch >= history.len() {
            return Err(corrupt(format!("its best epoch {epoch} is not among its {} epochs", history.len())));
        }
        Some((state("best_")?, epoch))
    } else {
        None
    };
    let adam = Adam {
        first: floats("adam_first", layout.parameter_count)?,
        second: floats("adam_second", layout.parameter_count)?,
        steps: whole("adam_steps")?,
    };
    Ok(Checkpoint { snapshot: Snapshot { state: state("")?, adam }, history, best })
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
