//! Loop that trains an encoder, whatever the method.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::{Adapter, Training};
use rehang_core::{Error, ErrorKind, Head, Matrix, Progress, Result};
use rehang_files::tensors::{self, Detail};
use rehang_fit::network::{State, draw_uniform};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::adapter::{adapter, adapter_graph};
use super::checkpoint::{self, Checkpoint};
use super::heads::{HeadForm, HeadWeights, synthesised};
use super::method::{OldHeads, TWO_ROWS, Terms, TrainingMethod};
use super::objectives::{Batch, Loss};
use super::old::{OldModel, OldSource};
use super::optimiser::{Moments, OptimiserKind, RateSchedule};
use crate::encoder::{
    EncoderArchitecture, Graph, Mode, Passes, TrainedEncoder, embed_rows, expect_shape, shape_of,
    take_weights,
};
use crate::examples::{
    Augmentation, Augmenter, Examples, LastBatch, Normalisation, Sampler, SamplerParameters, Sisters,
};

/// Number of rows that a trained encoder is tried on.
const CHECKED_ROWS: usize = 64;

/// Examples and rows of them that a training learns from.
#[derive(Debug, Clone, Copy)]
pub struct TrainingSet<'a> {
    /// All examples.
    pub examples: &'a Examples,
    /// Rows of them that are trained on, each once.
    pub rows: &'a [usize],
    /// Rows of them that the old model was trained on, where that is known.
    pub old_rows: Option<&'a [usize]>,
}

/// Parameters of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingParameters {
    /// Name of the new model.
    pub model: String,
    /// The encoder.
    pub architecture: EncoderArchitecture,
    /// Form of the new head's logits.
    pub head: HeadForm,
    /// Label smoothing of the new head's loss.
    pub label_smoothing: f32,
    /// The method.
    pub method: TrainingMethod,
    /// Way in which rows become batches.
    pub sampler: SamplerParameters,
    /// Way in which rows are varied.
    pub augmentation: Augmentation,
    /// Number of views. 1: the old model sees the very input that the new one sees; 2: another variation of
    /// the same row (RACT, algorithm 1). Noise and dropout of features come after each model's own
    /// normalisation: with 1 both models get the same draw, each in its own units, which is not the very same
    /// input.
    pub views: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// The optimiser.
    pub optimiser: OptimiserKind,
    /// Largest learning rate.
    pub rate: f64,
    /// Course of the rate.
    pub schedule: RateSchedule,
    /// Number of epochs of linear warm-up.
    pub warm_up_epochs: f64,
    /// Weight decay: this times its value is added to the gradient of every parameter but the new head's
    /// bias.
    pub weight_decay: f32,
    /// Length of the longest gradient, of encoder and head together and of ψ by itself; a longer one is
    /// scaled down to it. `None` for no limit.
    pub gradient_clip: Option<f64>,
    /// Seed that draws initial weights, batches and variations.
    pub seed: u64,
    /// File of weights to begin with, of rehang, or of another framework with torchvision's names. Its
    /// content, wherever it lies, tells one training from another.
    #[serde(skip)]
    pub initial: Option<PathBuf>,
    /// File in which the training's state is kept after each epoch, and taken up again.
    #[serde(skip)]
    pub checkpoint: Option<PathBuf>,
}

impl TrainingParameters {
    /// Takes the usual choices for a method: SGD with momentum 0.9, rate 0.05 on half a cosine after one
    /// epoch of warm-up, decay 1e-4 (DMU's recipe at a rate for small sets), 30 epochs of shuffled batches of
    /// 64.
    pub fn new(model: impl Into<String>, architecture: EncoderArchitecture, method: TrainingMethod) -> Self {
        Self {
            model: model.into(),
            architecture,
            head: HeadForm::Softmax,
            label_smoothing: 0.0,
            method,
            sampler: SamplerParameters::shuffled(64),
            augmentation: Augmentation::default(),
            views: 1,
            epochs: 30,
            optimiser: OptimiserKind::Sgd { momentum: 0.9 },
            rate: 0.05,
            schedule: RateSchedule::Cosine {},
            warm_up_epochs: 1.0,
            weight_decay: 1e-4,
            gradient_clip: None,
            seed: 0,
            initial: None,
            checkpoint: None,
        }
    }

    fn check(&self) -> Result<()> {
        let at_least = |option: &str, holds: bool, value: &dyn std::fmt::Display, rule: &str| {
            if holds { Ok(()) } else { Err(Error::option(option, value, rule)) }
        };
        let finite = |value: f64| value.is_finite() && value >= 0.0;
        at_least("epochs", self.epochs > 0, &self.epochs, "at least 1")?;
        // One row has no variance; a training of such batches would be over without a single step.
        let is_single = matches!(self.sampler, SamplerParameters::Shuffled { batch: 1, .. });
        at_least("batch", !is_single, &1, TWO_ROWS)?;
        at_least("views", (1..=2).contains(&self.views), &self.views, "1 or 2")?;
        at_least("rate", self.rate.is_finite() && self.rate > 0.0, &self.rate, "a finite number above 0")?;
        at_least("warm_up_epochs", finite(self.warm_up_epochs), &self.warm_up_epochs, "0 or more")?;
        at_least("weight_decay", finite(self.weight_decay.into()), &self.weight_decay, "0 or more")?;
        let smoothing = self.label_smoothing;
        at_least("label_smoothing", (0.0..1.0).contains(&smoothing), &smoothing, "0 or more and below 1")?;
        self.head.check("head")?;
        if let OptimiserKind::Sgd { momentum } = self.optimiser {
            let holds = (0.0..1.0).contains(&momentum);
            at_least("optimiser.momentum", holds, &momentum, "0 or more and below 1")?;
        }
        if let RateSchedule::Steps { factor, .. } = &self.schedule {
            let holds = factor.is_finite() && *factor > 0.0;
            at_least("schedule.factor", holds, factor, "a finite number above 0")?;
        }
        let clip = self.gradient_clip.unwrap_or(1.0);
        at_least("gradient_clip", clip.is_finite() && clip > 0.0, &clip, "a finite number above 0")
    }
}

/// Numbers of one epoch of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochSummary {
    /// Mean loss over its rows.
    pub loss: f64,
    /// Mean value of every term, by name, without its weight.
    pub terms: Vec<(String, f64)>,
    /// Measures that terms tell of their batches, by name: means over the epoch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<(String, f64)>,
    /// Percent of its rows whose class the new head gave first.
    pub accuracy: f64,
    /// The rate of its last step.
    pub rate: f64,
}

/// Result of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// The encoder.
    pub encoder: TrainedEncoder,
    /// Adapter ψ from old vectors to the new space, where the method trains one and it stayed finite.
    pub adapter: Option<Adapter>,
    /// Numbers of every epoch.
    pub history: Vec<EpochSummary>,
    /// Warnings of what was odd about the inputs, one sentence each.
    pub warnings: Vec<String>,
}

/// Trains an encoder.
///
/// Classes are numbered as the old head's come, then the set's other ones in its own order, so that one
/// number means one class in both heads. Classes that only the old head knows are not taught: the encoder's
/// head does not have them.
///
/// The same inputs and seed give the same encoder, bit by bit, for any number of threads.
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`] for parameters out of range, an encoder that does not take the inputs or a
/// checkpoint of another training; [`ErrorKind::MissingInput`] for an old model, head or rows that the method
/// needs; [`ErrorKind::WidthMismatch`] for an old head that is not as wide as the old vectors;
/// [`ErrorKind::CountMismatch`] for old vectors that are not one a row; [`ErrorKind::NotFound`] and
/// [`ErrorKind::Duplicate`] for rows that are not there or come twice, and for an old head's class that is
/// named twice; [`ErrorKind::Corrupt`] for sets that cannot be trained on, and for damaged initial weights
/// and checkpoints; [`ErrorKind::Io`] for such files; [`ErrorKind::NotFinite`] for NaN in the examples or the
/// old vectors, and for an encoder, old or trained, some of whose vectors are not finite;
/// [`ErrorKind::Diverged`] with the step at which the loss left the finite numbers: the checkpoint of the
/// last whole epoch is kept; [`ErrorKind::Cancelled`]. A ψ that leaves the finite numbers is no error: the
/// encoder is finished, so it comes without the adapter and with a warning.
pub fn train(
    set: TrainingSet<'_>,
    old: Option<&OldModel>,
    parameters: &TrainingParameters,
    progress: &Progress,
) -> Result<Trained> {
    train_until(set, old, parameters, parameters.epochs, progress)
}

/// Trains as [`train`] does, but ends as if it were cancelled once so many epochs are done; the state is in
/// the checkpoint then.
pub(super) fn train_until(
    set: TrainingSet<'_>,
    old: Option<&OldModel>,
    parameters: &TrainingParameters,
    stop_after: usize,
    progress: &Progress,
) -> Result<Trained> {
    parameters.check()?;
    let TrainingSet { examples, rows, old_rows } = set;
    examples.check()?;
    if let Some(row) = rows.iter().chain(old_rows.unwrap_or_default()).find(|&&row| row >= examples.len()) {
        return Err(Error::not_found("row", row, format!("{} examples", examples.len())));
    }
    let chosen = examples.select(rows);
    let method = &parameters.method;
    let old = match (method.needs_old(), old) {
        (false, _) => None,
        (true, Some(old)) => Some(old),
        (true, None) => return Err(Error::missing("an old model", format!("train {}", method.name()))),
    };
    if let Some(old) = old {
        old.check(examples)?;
        if method.needs_old_head() && old.head.is_none() {
            return Err(Error::missing("the old model's head", format!("train {}", method.name())));
        }
    }
    let numbering = Numbering::new(examples, rows, old)?;
    let mut warnings = warnings_of(&chosen, &numbering, old, parameters)?;
    let mut model = Model::new(set, old, &numbering, parameters)?;
    let mut run = Run::new(set, old, &numbering, parameters, &mut model, progress)?;
    run.finish(&mut model, stop_after.min(parameters.epochs), progress)?;
    if run.history.len() < parameters.epochs {
        return Err(ErrorKind::Cancelled.into());
    }
    let augmenter = run.augmenter.evaluation();
    {
        // Running statistics lag behind the weights: after steps that were far too long the loss may still be
        // finite and the encoder useless. A look at some rows shows it now and not when a gallery is
        // embedded.
        let (passes, state) = (&mut model.encoder.passes, &mut model.encoder.state);
        let some = &rows[..rows.len().min(CHECKED_ROWS)];
        embed_rows(passes, state, &augmenter, &examples.inputs, some, &Progress::default()).map_err(
            |error| match error.kind() {
                ErrorKind::NotFinite { .. } => run.diverged("the trained encoder's vectors"),
                _ => error,
            },
        )?;
    }
    let history = run.history;

    let mut inputs = BTreeMap::from([("examples".to_owned(), chosen.fingerprint())]);
    if let Some(old) = old {
        inputs.insert("old model".into(), old.fingerprint()?);
    }
    if let Some(initial) = model.initial {
        inputs.insert("initial".into(), initial);
    }
    let training = Training {
        method: method.name().into(),
        seed: parameters.seed,
        pairs: rows.len(),
        inputs,
        hyper_parameters: describe(parameters)?,
        version: env!("CARGO_PKG_VERSION").into(),
        ..Training::default()
    };
    let weight = Matrix::new(parameters.architecture.outputs(), model.head.parameters.clone())?;
    // Classes that only the old head knows were not learned. An encoder that named them would have the next
    // upgrade trust it.
    let taught = numbering.taught();
    let bias = taught.iter().map(|&class| model.bias.parameters[class]).collect();
    let encoder = TrainedEncoder {
        model: parameters.model.clone(),
        architecture: parameters.architecture.clone(),
        input: shape_of(&examples.inputs),
        normalisation: augmenter.normalisation().clone(),
        state: model.encoder.state.clone(),
        head: Head::new(weight.select(&taught), Some(bias), parameters.head.head_kind())?,
        form: parameters.head,
        classes: taught.iter().map(|&class| numbering.classes[class].clone()).collect(),
        training,
    };
    let adapter = match (&mut model.adapter, old) {
        (Some(part), Some(old)) => {
            progress.begin("measuring the adapter", "items", 2 * rows.len() as u64);
            let inputs = &examples.inputs;
            let (passes, state) = (&mut model.encoder.passes, &mut model.encoder.state);
            let new = embed_rows(passes, state, &augmenter, inputs, rows, progress)?;
            let vectors = old.vectors(examples, rows, progress)?;
            let labels: Vec<i64> = rows.iter().map(|&row| numbering.labels[row] as i64).collect();
            let psi = adapter(&part.graph, &part.state, old, vectors, &encoder, new, &labels, progress);
            unless_diverged(psi, &mut warnings, |_| PSI_IS_LOST.to_owned())?
        }
        _ => None,
    };
    Ok(Trained { encoder, adapter, history, warnings })
}

/// Gives a result, or nothing where it left the finite numbers: `warning` says so of the error.
pub(crate) fn unless_diverged<T>(
    result: Result<T>,
    warnings: &mut Vec<String>,
    warning: impl FnOnce(&Error) -> String,
) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Diverged { .. } | ErrorKind::NotFinite { .. }) => {
            warnings.push(warning(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Warning of a ψ that left the finite numbers.
pub(super) const PSI_IS_LOST: &str = "the adapter ψ left the finite numbers and is not kept; the encoder is finished and does without it; for ψ train again with \
     a lower rate, or set gradient_clip";

/// Gives the [`Trained::warnings`] of a training, without doing it: an encoder that is kept was trained on
/// doubtful data still.
pub(crate) fn warnings(
    set: TrainingSet<'_>,
    old: Option<&OldModel>,
    parameters: &TrainingParameters,
) -> Result<Vec<String>> {
    let old = old.filter(|_| parameters.method.needs_old());
    let numbering = Numbering::new(set.examples, set.rows, old)?;
    warnings_of(&set.examples.select(set.rows), &numbering, old, parameters)
}

fn warnings_of(
    chosen: &Examples,
    numbering: &Numbering,
    old: Option<&OldModel>,
    parameters: &TrainingParameters,
) -> Result<Vec<String>> {
    let mut warnings = chosen.check_trainable()?;
    let everyone: Vec<usize> = (0..chosen.len()).collect();
    let sampler = Sampler::new(&parameters.sampler, &chosen.labels, &everyone, parameters.seed)?;
    let left_out = sampler.left_out().len();
    if left_out > 0 {
        warnings.push(format!(
            "{left_out} rows are never trained on: each is the only one of its class, and balanced batches take two or more \
             of a class; give such classes more rows, or take kind = \"shuffled\""
        ));
    }
    warnings.extend(numbering.warning(&parameters.method));
    if let Some(old) = old {
        warnings.extend(idle_options(old, parameters));
    }
    Ok(warnings)
}

/// Warns of options that do nothing, or are easily mistaken; one sentence each.
fn idle_options(old: &OldModel, parameters: &TrainingParameters) -> Vec<String> {
    let mut sentences = Vec::new();
    if parameters.views == 2 && !parameters.method.needs_old_vectors() {
        sentences.push(format!(
            "views = 2 does nothing here: {} does not look at the old model's vectors of a batch",
            parameters.method.name()
        ));
    } else if parameters.views == 2 && old.is_fixed() {
        sentences.push(
            "views = 2 does nothing here: the old model's vectors are the same in every epoch; let an old encoder run \
             (cached = false) for a view of its own"
                .to_owned(),
        );
    }
    if old.model == parameters.model {
        sentences.push(format!(
            "the old and the new model are both called {:?}, so nothing tells their vectors apart; give the new one \
             another name",
            old.model
        ));
    }
    sentences
}

/// Writes parameters by name, as they stand in artefacts.
fn describe(parameters: &TrainingParameters) -> Result<BTreeMap<String, String>> {
    let whole = serde_json::to_value(parameters).map_err(|error| Error::corrupt("parameters", error))?;
    let mut fields = whole.as_object().cloned().unwrap_or_default();
    // Files that were written before ψ's gradient was cut by itself do not say so.
    if parameters.gradient_clip.is_some() && parameters.method.adapter_hidden().is_some() {
        fields.insert("adapter_gradient".into(), "cut by itself".into());
    }
    // Files that were written before a method's loss changed do not name a loss either.
    if let Some(loss) = parameters.method.loss_revision() {
        fields.insert("loss".into(), loss.into());
    }
    Ok(fields.into_iter().map(|(name, value)| (name, value.to_string())).collect())
}

/// Reads a file of weights to begin with, and its fingerprint, which tells its content from that of every
/// other file.
fn initial_file(path: &Path) -> Result<(Vec<u8>, String)> {
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    let fingerprint = format!("{:016x}", xxh3_64(&bytes));
    Ok((bytes, fingerprint))
}

/// Numbers of all classes.
struct Numbering {
    classes: Vec<String>,
    /// Number of every example's class; examples that are not trained on may have one that stands for
    /// nothing.
    labels: Vec<usize>,
    /// Whether a class has rows that are trained on; classes without are the old head's alone.
    is_taught: Vec<bool>,
    /// Number of trained classes that the old head knows.
    shared: usize,
}

impl Numbering {
    fn new(examples: &Examples, rows: &[usize], old: Option<&OldModel>) -> Result<Self> {
        let old_classes = old.and_then(|old| old.head.as_ref()).map(|head| head.classes.clone());
        let mut classes = old_classes.unwrap_or_default();
        let mut number: BTreeMap<String, usize> = BTreeMap::new();
        for (position, name) in classes.iter().enumerate() {
            if number.insert(name.clone(), position).is_some() {
                return Err(Error::duplicate("the classes of the old head", name));
            }
        }
        let mut present = vec![false; examples.classes.len()];
        for &row in rows {
            present[examples.labels[row] as usize] = true;
        }
        let mut shared = 0;
        for (name, _) in examples.classes.iter().zip(&present).filter(|(_, is_present)| **is_present) {
            match number.entry(name.clone()) {
                Entry::Occupied(_) => shared += 1,
                Entry::Vacant(entry) => {
                    entry.insert(classes.len());
                    classes.push(name.clone());
                }
            }
        }
        let number_of = |name: &String| number.get(name).copied().unwrap_or(usize::MAX);
        let of_class: Vec<usize> = examples.classes.iter().map(number_of).collect();
        let labels: Vec<usize> = examples.labels.iter().map(|&label| of_class[label as usize]).collect();
        let mut is_taught = vec![false; classes.len()];
        for &row in rows {
            is_taught[labels[row]] = true;
        }
        Ok(Self { classes, labels, is_taught, shared })
    }

    /// Lists the numbers of the classes that are trained on.
    fn taught(&self) -> Vec<usize> {
        (0..self.classes.len()).filter(|&class| self.is_taught[class]).collect()
    }

    fn warning(&self, method: &TrainingMethod) -> Option<String> {
        (method.needs_old_head() && self.shared == 0).then(|| {
            format!(
                "the old head knows none of the classes that are trained on ({} is the first it knows): only \
                 synthesised or distilled classes tie the new vectors to the old ones",
                self.classes.first().map_or("none", String::as_str)
            )
        })
    }
}

/// Part of what is trained: its numbers and the optimiser's.
struct TrainedPart {
    parameters: Vec<f32>,
    moments: Moments,
}

impl TrainedPart {
    fn new(parameters: Vec<f32>, kind: OptimiserKind) -> Self {
        Self { moments: Moments::new(kind, parameters.len()), parameters }
    }

    fn vectors(&mut self, name: &'static str) -> impl Iterator<Item = (String, &mut Vec<f32>)> {
        named(name, vec![("parameters", &mut self.parameters)], &mut self.moments)
    }
}

/// Names the vectors of a part and of its optimiser as a checkpoint does.
fn named<'a>(
    part: &'static str,
    vectors: Vec<(&'static str, &'a mut Vec<f32>)>,
    moments: &'a mut Moments,
) -> impl Iterator<Item = (String, &'a mut Vec<f32>)> {
    let own = vectors.into_iter().map(move |(name, vector)| (format!("{part}.{name}"), vector));
    let moments = moments.vectors().into_iter().enumerate();
    own.chain(moments.map(move |(number, vector)| (format!("{part}.moments.{number}"), vector)))
}

/// Network that is trained: what it computes, how, with which numbers.
struct Network {
    graph: Graph,
    passes: Passes,
    state: State,
    moments: Moments,
}

impl Network {
    fn new(graph: Graph, state: State, kind: OptimiserKind) -> Self {
        let moments = Moments::new(kind, state.parameters.len());
        Self { passes: Passes::new(&graph), graph, state, moments }
    }

    fn vectors(&mut self, name: &'static str) -> impl Iterator<Item = (String, &mut Vec<f32>)> {
        let State { parameters, running_mean, running_variance } = &mut self.state;
        let own = vec![
            ("parameters", parameters),
            ("running_mean", running_mean),
            ("running_variance", running_variance),
        ];
        named(name, own, &mut self.moments)
    }
}

/// Model: everything that is trained.
struct Model {
    encoder: Network,
    head: TrainedPart,
    bias: TrainedPart,
    adapter: Option<Network>,
    /// Fingerprint of the file whose weights the encoder began with.
    initial: Option<String>,
}

impl Model {
    fn new(
        set: TrainingSet<'_>,
        old: Option<&OldModel>,
        numbering: &Numbering,
        parameters: &TrainingParameters,
    ) -> Result<Self> {
        let kind = parameters.optimiser;
        let graph = parameters.architecture.graph(shape_of(&set.examples.inputs))?;
        let (state, initial) = match &parameters.initial {
            None => (graph.initial(parameters.seed), None),
            Some(path) => {
                let (bytes, fingerprint) = initial_file(path)?;
                let state = tensors::plain(&bytes)
                    .and_then(|mut tensors| take_weights(&graph, &mut tensors))
                    .map_err(|detail| Error::corrupt(path.display(), detail))?;
                (state, Some(fingerprint))
            }
        };
        let d = graph.outputs();
        let mut generator = ChaCha8Rng::seed_from_u64(parameters.seed ^ 0x6865_6164);
        let mut head = vec![0.0; numbering.classes.len() * d];
        draw_uniform(&mut head, d, &mut generator);
        let adapter = match (parameters.method.adapter_hidden(), old) {
            (Some(hidden), Some(old)) => {
                let graph = adapter_graph(old.dimension(), &hidden, d)?;
                let state = graph.initial(parameters.seed ^ 0x0070_7369);
                Some(Network::new(graph, state, kind))
            }
            _ => None,
        };
        Ok(Self {
            encoder: Network::new(graph, state, kind),
            head: TrainedPart::new(head, kind),
            bias: TrainedPart::new(vec![0.0; numbering.classes.len()], kind),
            adapter,
            initial,
        })
    }

    /// Gives all vectors that a checkpoint holds.
    fn vectors(&mut self) -> impl Iterator<Item = (String, &mut Vec<f32>)> {
        let adapter = self.adapter.iter_mut().flat_map(|adapter| adapter.vectors("adapter"));
        let parts = self.head.vectors("head").chain(self.bias.vectors("bias"));
        self.encoder.vectors("encoder").chain(adapter).chain(parts)
    }

    fn tensors(&mut self) -> Vec<tensors::Tensor<'_>> {
        self.vectors()
            .map(|(name, vector)| tensors::Tensor {
                name,
                shape: vec![vector.len()],
                values: vector.as_slice().into(),
            })
            .collect()
    }

    fn restore(&mut self, checkpoint: &mut Checkpoint) -> Result<(), Detail> {
        for (name, vector) in self.vectors() {
            *vector = tensors::take(&mut checkpoint.tensors, &name, vector.len())?;
        }
        let parts = [&mut self.encoder.moments, &mut self.head.moments, &mut self.bias.moments];
        let adapter = self.adapter.iter_mut().map(|adapter| &mut adapter.moments);
        for steps in parts.into_iter().chain(adapter).filter_map(Moments::steps) {
            *steps = checkpoint.steps;
        }
        Ok(())
    }
}

/// Training under way.
struct Run<'a> {
    set: TrainingSet<'a>,
    old: Option<&'a OldModel>,
    /// Old vectors of the set's rows, where they are the same in every epoch.
    old_vectors: Option<Matrix>,
    /// Row of `old_vectors` that belongs to each example.
    old_places: Vec<usize>,
    /// Whether the old model was trained on each example.
    of_old: Vec<bool>,
    /// Old encoder, where it embeds every batch anew, varied as it is: its passes, its parameters, and how it
    /// varies inputs.
    old_encoder: Option<(Passes, State, Augmenter)>,
    numbering: &'a Numbering,
    parameters: &'a TrainingParameters,
    terms: Terms,
    augmenter: Augmenter,
    sampler: Sampler,
    /// Sampler of ψ's batches, where it has its own.
    adapter_batches: Option<OwnBatches>,
    /// Sampler of other rows of the classes, where the method takes its positives so.
    sisters: Option<Sisters>,
    identity: String,
    history: Vec<EpochSummary>,
    steps: u64,
}

/// Batches that are drawn for ψ alone: it goes through the rows at its own pace, one batch a step of the
/// encoder.
pub(super) struct OwnBatches {
    sampler: Sampler,
    /// Epoch of ψ's own whose batches these are.
    epoch: usize,
    batches: Vec<Vec<usize>>,
}

impl OwnBatches {
    pub(super) fn new(batch: usize, labels: &[u32], rows: &[usize], seed: u64) -> Result<Self> {
        if batch > rows.len() {
            let rule = format!("at most the {} rows that are trained on", rows.len());
            return Err(Error::option("adapter_batch", batch, rule));
        }
        let whole = SamplerParameters::Shuffled { batch, last: LastBatch::Drop };
        let sampler = Sampler::new(&whole, labels, rows, seed ^ 0x0070_7369)?;
        Ok(Self { epoch: 0, batches: sampler.batches(0), sampler })
    }

    /// Gives the batch of a step and the epoch of ψ's own in which it stands. They depend on the step alone,
    /// so that a training that is resumed goes on with them.
    pub(super) fn of_step(&mut self, step: u64) -> (usize, &[usize]) {
        let (step, count) = (step as usize, self.batches.len());
        let epoch = step / count;
        if epoch != self.epoch {
            (self.epoch, self.batches) = (epoch, self.sampler.batches(epoch));
        }
        (epoch, &self.batches[step % count])
    }
}

/// Numbers of one step.
struct Step {
    loss: f64,
    terms: Vec<f64>,
    measures: Vec<(&'static str, f64)>,
    right: usize,
}

impl<'a> Run<'a> {
    fn new(
        set: TrainingSet<'a>,
        old: Option<&'a OldModel>,
        numbering: &'a Numbering,
        parameters: &'a TrainingParameters,
        model: &mut Model,
        progress: &Progress,
    ) -> Result<Self> {
        let TrainingSet { examples, rows, old_rows } = set;
        let method = &parameters.method;
        let mut of_old = vec![false; examples.len()];
        for &row in old_rows.unwrap_or_default() {
            of_old[row] = true;
        }
        if method.needs_old_rows() {
            if old_rows.is_none() {
                let what = "the rows that the old model was trained on (an allocation with its old part)";
                return Err(Error::missing(what, "influence_set = \"old\""));
            }
            if !rows.iter().any(|&row| of_old[row]) {
                let expected =
                    "\"new\", as the new model is trained on no row that the old one was trained on";
                return Err(Error::option("influence_set", "old", expected));
            }
        }
        let normalisation = Normalisation::measured(&examples.inputs, rows)?;
        let augmenter = Augmenter::new(
            parameters.augmentation.clone(),
            normalisation,
            &examples.inputs,
            parameters.seed,
        )?;
        let sampler = Sampler::new(&parameters.sampler, &examples.labels, rows, parameters.seed)?;
        let adapter_batches = method.adapter_batch();
        let adapter_batches = adapter_batches
            .map(|batch| OwnBatches::new(batch, &examples.labels, rows, parameters.seed))
            .transpose()?;
        let sisters = method.needs_sisters().then(|| Sisters::new(&examples.labels, rows, parameters.seed));
        let needs_vectors = method.needs_old_vectors();
        let old_encoder = match old.map(|old| &old.source) {
            Some(OldSource::Encoder { encoder, cached: false }) if needs_vectors => {
                expect_shape(encoder.input, &examples.inputs)?;
                let augmenter = Augmenter::new(
                    parameters.augmentation.clone(),
                    encoder.normalisation.clone(),
                    &examples.inputs,
                    parameters.seed,
                )?;
                Some((Passes::new(&encoder.graph()?), encoder.state.clone(), augmenter))
            }
            _ => None,
        };
        let is_needed = method.synthesises() || (needs_vectors && old_encoder.is_none());
        let old_vectors = match old {
            Some(old) if is_needed => {
                progress.begin("embedding with the old model", "items", rows.len() as u64);
                Some(old.vectors(examples, rows, progress)?)
            }
            _ => None,
        };
        let mut old_places = vec![0; examples.len()];
        for (place, &row) in rows.iter().enumerate() {
            old_places[row] = place;
        }
        let old_head = match old.and_then(|old| old.head.as_ref()) {
            Some(old_head) => {
                let frozen = |head: &Head| {
                    HeadWeights::new(head.weight().clone(), head.bias().to_vec(), old_head.form)
                };
                let own = frozen(&old_head.head);
                let whole = match &old_vectors {
                    Some(vectors) if method.synthesises() => {
                        let labels: Vec<usize> = rows.iter().map(|&row| numbering.labels[row]).collect();
                        let classes = numbering.classes.len();
                        frozen(&synthesised(&old_head.head, vectors, &labels, classes)?)
                    }
                    _ => own.clone(),
                };
                Some(OldHeads { own, whole })
            }
            None => None,
        };
        let terms = method.terms(parameters.label_smoothing, old_head.as_ref())?;
        let identity = checkpoint::identity(set, old, parameters, model.initial.as_deref())?;
        let mut run = Self {
            set,
            old,
            old_vectors,
            old_places,
            of_old,
            old_encoder,
            numbering,
            parameters,
            terms,
            augmenter,
            sampler,
            adapter_batches,
            sisters,
            identity,
            history: Vec::new(),
            steps: 0,
        };
        run.resume(model)?;
        Ok(run)
    }

    /// Takes up the checkpoint, where there is one.
    fn resume(&mut self, model: &mut Model) -> Result<()> {
        let Some(path) = self.parameters.checkpoint.as_ref().filter(|path| path.exists()) else {
            return Ok(());
        };
        let mut checkpoint = checkpoint::read(path, &self.identity)?;
        model.restore(&mut checkpoint).map_err(|detail| Error::corrupt(path.display(), detail))?;
        (self.history, self.steps) = (checkpoint.history, checkpoint.steps);
        Ok(())
    }

    /// Trains all epochs that are left up to `last`.
    fn finish(&mut self, model: &mut Model, last: usize, progress: &Progress) -> Result<()> {
        let epochs = self.parameters.epochs;
        // Balanced batches fill classes up, and last ones may be dropped; how many rows that makes is the
        // same in every epoch, whatever is drawn.
        let batches = self.sampler.batches(0);
        let rows = batches.iter().filter(|rows| is_trained_on(rows)).map(Vec::len).sum::<usize>() as u64;
        // Epochs of an earlier run took none of this run's time: counted as done they would make a rate that
        // is far too high.
        let left = epochs.saturating_sub(self.history.len()) as u64;
        progress.begin(format!("training {}", self.parameters.model), "items", left * rows);
        for epoch in self.history.len()..last {
            let line = self.epoch(epoch, model, progress)?;
            self.history.push(line);
            if let Some(path) = &self.parameters.checkpoint {
                checkpoint::write(path, &self.identity, &self.history, self.steps, &model.tensors())?;
            }
        }
        Ok(())
    }

    fn epoch(&mut self, epoch: usize, model: &mut Model, progress: &Progress) -> Result<EpochSummary> {
        let batches = self.sampler.batches(epoch);
        let count = batches.len();
        let (mut seen, mut loss, mut right, mut rate) = (0, 0.0, 0, 0.0);
        let mut terms = vec![0.0; self.terms.len()];
        let mut measures: Vec<(String, f64)> = Vec::new();
        for (number, rows) in batches.iter().enumerate() {
            progress.check()?;
            if !is_trained_on(rows) {
                continue;
            }
            let time = epoch as f64 + number as f64 / count as f64;
            let Self { parameters, .. } = self;
            rate =
                parameters.schedule.rate(parameters.rate, parameters.epochs, parameters.warm_up_epochs, time);
            let step = self.step(epoch, rows, rate, model)?;
            seen += rows.len();
            right += step.right;
            loss += step.loss * rows.len() as f64;
            for (sum, value) in terms.iter_mut().zip(step.terms) {
                *sum += value * rows.len() as f64;
            }
            measures.resize_with(step.measures.len(), Default::default);
            for (sum, (name, value)) in measures.iter_mut().zip(step.measures) {
                *sum = (name.to_owned(), sum.1 + value * rows.len() as f64);
            }
            progress.advance(rows.len() as u64);
            let (loss, accuracy) = (loss / seen as f64, 100.0 * right as f64 / seen as f64);
            progress.note(format!(
                "epoch {}/{}, loss {loss:.3}, accuracy {accuracy:.1} %, rate {rate:.1e}",
                epoch + 1,
                self.parameters.epochs
            ));
        }
        let seen = seen.max(1) as f64;
        Ok(EpochSummary {
            loss: loss / seen,
            terms: self
                .terms
                .iter()
                .zip(terms)
                .map(|((_, objective), sum)| (objective.name.to_owned(), sum / seen))
                .collect(),
            measures: measures.into_iter().map(|(name, sum)| (name, sum / seen)).collect(),
            accuracy: 100.0 * right as f64 / seen,
            rate,
        })
    }

    fn step(&mut self, epoch: usize, rows: &[usize], rate: f64, model: &mut Model) -> Result<Step> {
        let inputs = &self.set.examples.inputs;
        let n = rows.len();
        let mut input = Vec::new();
        self.augmenter.batch(inputs, rows, epoch, 0, &mut input);
        let encoder = &mut model.encoder;
        let new = encoder.passes.forward(&mut encoder.state, &input, n, Mode::Training)?;
        let old = self.old_batch(epoch, rows)?;
        let sisters = match self.sisters.as_ref().map(|sisters| sisters.drawn(epoch, rows)) {
            Some(sisters) => self.old_batch(epoch, &sisters)?,
            None => None,
        };
        let own = match &mut self.adapter_batches {
            Some(own) => {
                let (epoch, rows) = own.of_step(self.steps);
                Some((epoch, rows.to_vec()))
            }
            None => None,
        };
        let (adapter_rows, adapter_old) = match &own {
            Some((epoch, rows)) => (rows.as_slice(), &self.old_batch(*epoch, rows)?),
            None => (rows, &old),
        };
        let adapted = match (&mut model.adapter, adapter_old) {
            (Some(adapter), Some(old)) => {
                let rows = adapter_rows.len();
                Some(adapter.passes.forward(&mut adapter.state, old.as_slice(), rows, Mode::Training)?)
            }
            _ => None,
        };
        let class_of = |rows: &[usize]| rows.iter().map(|&row| self.numbering.labels[row]).collect();

        let d = encoder.graph.outputs();
        let batch = Batch {
            labels: class_of(rows),
            of_old: rows.iter().map(|&row| self.of_old[row]).collect(),
            new: Matrix::new(d, new)?,
            old: old.unwrap_or_default(),
            sister: sisters,
            adapted: adapted.map(|adapted| Matrix::new(d, adapted)).transpose()?,
            adapted_labels: class_of(adapter_rows),
            head: HeadWeights {
                weight: Matrix::new(d, model.head.parameters.clone())?,
                bias: model.bias.parameters.clone(),
                form: self.parameters.head,
                taught: self.numbering.taught(),
            },
        };
        let (mut values, mut measures) = (Vec::with_capacity(self.terms.len()), Vec::new());
        let mut total = Loss::default();
        for (factor, objective) in &self.terms {
            let loss = objective.evaluate(&batch);
            values.push(loss.value);
            measures.extend(loss.measure);
            total.add(*factor, loss);
        }
        if !total.value.is_finite() {
            return Err(self.diverged("the loss"));
        }
        let right = batch.head.right(&batch.new, &batch.labels);

        let none = |rows: usize| Matrix::zeros(rows, d);
        let (mut of_weight, mut of_bias) = match total.head {
            Some(head) => (head.weight.into_data(), head.bias),
            None => (vec![0.0; model.head.parameters.len()], vec![0.0; model.bias.parameters.len()]),
        };
        let of_new = total.new.unwrap_or_else(|| none(rows.len()));
        let mut of_encoder = vec![0.0; encoder.state.parameters.len()];
        encoder.passes.backward(&encoder.state, of_new.as_slice(), &mut of_encoder)?;
        let mut of_adapter = Vec::new();
        if let Some(adapter) = &mut model.adapter {
            of_adapter = vec![0.0; adapter.state.parameters.len()];
            let of_outputs = total.adapted.unwrap_or_else(|| none(adapter_rows.len()));
            adapter.passes.backward(&adapter.state, of_outputs.as_slice(), &mut of_adapter)?;
        }
        // ψ's gradient is long at first: in one norm with the encoder's it would shorten the encoder's steps.
        for part in [&mut [&mut of_encoder, &mut of_weight, &mut of_bias][..], &mut [&mut of_adapter]] {
            if !clip_gradient(part, self.parameters.gradient_clip).is_finite() {
                return Err(self.diverged("the gradient"));
            }
        }
        let decay = self.parameters.weight_decay;
        encoder.moments.step(&mut encoder.state.parameters, &of_encoder, rate, decay);
        model.head.moments.step(&mut model.head.parameters, &of_weight, rate, decay);
        model.bias.moments.step(&mut model.bias.parameters, &of_bias, rate, 0.0);
        if let Some(adapter) = &mut model.adapter {
            adapter.moments.step(&mut adapter.state.parameters, &of_adapter, rate, decay);
        }
        self.steps += 1;
        Ok(Step { loss: total.value, terms: values, measures, right })
    }

    fn diverged(&self, what: &str) -> Error {
        ErrorKind::Diverged { what: what.into(), step: self.steps as usize }.into()
    }

    /// Gives the old vectors of a batch, where the method needs them.
    fn old_batch(&mut self, epoch: usize, rows: &[usize]) -> Result<Option<Matrix>> {
        let Some(old) = self.old.filter(|_| self.parameters.method.needs_old_vectors()) else {
            return Ok(None);
        };
        if let Some((passes, state, augmenter)) = &mut self.old_encoder {
            let mut input = Vec::new();
            augmenter.batch(&self.set.examples.inputs, rows, epoch, self.parameters.views - 1, &mut input);
            let vectors = passes.forward(state, &input, rows.len(), Mode::Evaluation)?;
            return Matrix::new(old.dimension(), vectors).map(Some);
        }
        let places: Vec<usize> = rows.iter().map(|&row| self.old_places[row]).collect();
        Ok(self.old_vectors.as_ref().map(|vectors| vectors.select(&places)))
    }
}

/// Scales the parts of a gradient down to a length, where they are longer together; gives the length that
/// they had.
fn clip_gradient(parts: &mut [&mut Vec<f32>], limit: Option<f64>) -> f64 {
    let squares = |values: &[f32]| values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
    let length = parts.iter().map(|values| squares(values)).sum::<f64>().sqrt();
    if let Some(limit) = limit.filter(|&limit| length > limit && length.is_finite()) {
        let factor = (limit / length) as f32;
        for value in parts.iter_mut().flat_map(|values| values.iter_mut()) {
            *value *= factor;
        }
    }
    length
}

/// Whether a batch makes a step: `BatchNorm` over a single row of a vector is undefined, so such a remainder
/// waits for another epoch.
fn is_trained_on(rows: &[usize]) -> bool {
    rows.len() > 1
}

impl TrainedEncoder {
    /// Whether the encoder was trained with these very parameters on these very examples, from these very
    /// initial weights, beside this very old model.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] where the file of initial weights cannot be read.
    pub fn is_of(
        &self,
        parameters: &TrainingParameters,
        chosen: &Examples,
        old: Option<&OldModel>,
    ) -> Result<bool> {
        let old = old.filter(|_| parameters.method.needs_old());
        let initial = parameters.initial.as_deref().map(initial_file).transpose()?;
        let mut written = self.training.hyper_parameters.clone();
        // Older files give the path of the initial weights here, or null. The content that lay at that path
        // cannot be known any more.
        if written.get("initial").is_some_and(|path| path == "null") {
            written.remove("initial");
        }
        Ok(written == describe(parameters)?
            && self.training.inputs.get("examples") == Some(&chosen.fingerprint())
            && self.training.inputs.get("initial") == initial.map(|(_, fingerprint)| fingerprint).as_ref()
            && self.training.inputs.get("old model") == old.map(OldModel::fingerprint).transpose()?.as_ref())
    }
}
