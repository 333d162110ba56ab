//! Trained encoder: what it computes, with what numbers, on what inputs; as a value and as a file.

use std::collections::BTreeMap;
use std::path::Path;

use rehang_core::adapter::Training;
use rehang_core::{Distance, Error, Head, HeadKind, Matrix, Progress, Result, Space, Vectors};
use rehang_files::AtomicFile;
use rehang_files::tensors::{self, Detail, FileKind, Metadata, Tensor, json, parse, parse_json, text};
use rehang_fit::network::State;

use super::{EncoderArchitecture, Graph, Mode, Passes, Shape};
use crate::compatible::HeadForm;
use crate::examples::{Augmentation, Augmenter, ExampleInputs, Normalisation};

/// Format that every encoder file names.
const KIND: FileKind = FileKind { format: "rehang-encoder", thing: "an encoder", version: 1 };

/// Number of rows that are embedded together.
const BATCH: usize = 128;

/// An encoder with its classification head.
///
/// Its file is safetensors with metadata (`laboratory/docs/formats.md`): parameters are called as PyTorch's
/// torchvision calls them (`conv1.weight`, `layer1.0.bn1.running_mean`, `fc.bias`), the head `head.weight`
/// and `head.bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedEncoder {
    /// Name of the model and of its space.
    pub model: String,
    /// Architecture, which says what the encoder computes.
    pub architecture: EncoderArchitecture,
    /// Shape of one input.
    pub input: Shape,
    /// Normalisation that inputs pass first.
    pub normalisation: Normalisation,
    /// Parameters and running statistics.
    pub(crate) state: State,
    /// The head that it was trained with, `[classes, d]`.
    pub head: Head,
    /// Form of that head's logits.
    pub form: HeadForm,
    /// Name of every class of the head.
    pub classes: Vec<String>,
    /// Record of its training; `pairs` counts the rows that it saw.
    pub training: Training,
}

impl TrainedEncoder {
    /// Space of the encoder's vectors: as they come out, compared by cosine.
    pub fn space(&self) -> Space {
        Space::new(self.model.clone(), self.architecture.outputs(), Distance::Cosine, false)
    }

    /// Makes the graph of the encoder's operations.
    ///
    /// # Errors
    ///
    /// As [`EncoderArchitecture::graph`].
    pub fn graph(&self) -> Result<Graph> {
        self.architecture.graph(self.input)
    }

    /// Embeds inputs, `[n, …] → [n, d]`, without any augmentation.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::WidthMismatch`] for inputs of another shape, [`rehang_core::ErrorKind::NotFinite`] for
    /// vectors that left the finite numbers, [`rehang_core::ErrorKind::Cancelled`].
    pub fn embed(&self, inputs: &ExampleInputs, progress: &Progress) -> Result<Vectors> {
        let rows: Vec<usize> = (0..inputs.len()).collect();
        progress.begin("embedding", "items", rows.len() as u64);
        let vectors = self.vectors_of(inputs, &rows, progress)?;
        Vectors::new(self.space(), vectors, &self.model)
    }

    /// Embeds some rows, in their order, without any augmentation; counts them as done.
    pub(crate) fn vectors_of(
        &self,
        inputs: &ExampleInputs,
        rows: &[usize],
        progress: &Progress,
    ) -> Result<Matrix> {
        expect_shape(self.input, inputs)?;
        let mut passes = Passes::new(&self.graph()?);
        let augmenter = Augmenter::new(Augmentation::default(), self.normalisation.clone(), inputs, 0)?;
        embed_rows(&mut passes, &mut self.state.clone(), &augmenter, inputs, rows, progress)
    }

    /// Writes the encoder as the bytes of its file: the same encoder gives the same bytes.
    ///
    /// # Errors
    ///
    /// As [`EncoderArchitecture::graph`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let graph = self.graph()?;
        let (shape, training) = (self.input, &self.training);
        let metadata = Metadata::from([
            ("rehang_version".into(), training.version.clone()),
            ("model".into(), self.model.clone()),
            ("architecture".into(), json(&self.architecture)?),
            ("input".into(), json(&[shape.channels, shape.height, shape.width])?),
            ("normalisation".into(), json(&self.normalisation)?),
            ("head".into(), json(&self.form)?),
            ("classes".into(), json(&self.classes)?),
            ("method".into(), training.method.clone()),
            ("seed".into(), training.seed.to_string()),
            ("examples".into(), training.pairs.to_string()),
            ("inputs".into(), json(&training.inputs)?),
            ("hyper_parameters".into(), json(&training.hyper_parameters)?),
        ]);
        let mut tensors = weights(&graph, &self.state);
        let head = &self.head;
        tensors.push(Tensor {
            name: "head.weight".into(),
            shape: vec![head.classes(), head.dimension()],
            values: head.weight().as_slice().into(),
        });
        tensors.push(Tensor {
            name: "head.bias".into(),
            shape: vec![head.classes()],
            values: head.bias().into(),
        });
        tensors::write(&KIND, metadata, &tensors)
    }

    /// Reads the encoder in the bytes of a file; `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Corrupt`] for anything that is not a whole, undamaged encoder file of a version
    /// known here.
    pub fn from_bytes(bytes: &[u8], what: &str) -> Result<Self> {
        assemble(bytes).map_err(|detail| Error::corrupt(what, detail))
    }

    /// Writes the encoder to a file, whole or not at all.
    ///
    /// # Errors
    ///
    /// As [`TrainedEncoder::to_bytes`]; [`rehang_core::ErrorKind::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        AtomicFile::write(path, &self.to_bytes()?)
    }

    /// Reads an encoder from a file.
    ///
    /// # Errors
    ///
    /// As [`TrainedEncoder::from_bytes`]; [`rehang_core::ErrorKind::Io`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
        Self::from_bytes(&bytes, &path.display().to_string())
    }
}

/// Embeds some rows, in their order; counts them as done.
pub(crate) fn embed_rows(
    passes: &mut Passes,
    state: &mut State,
    augmenter: &Augmenter,
    inputs: &ExampleInputs,
    rows: &[usize],
    progress: &Progress,
) -> Result<Matrix> {
    let (mut batch, mut vectors) = (Vec::new(), Vec::new());
    for rows in rows.chunks(BATCH) {
        progress.check()?;
        augmenter.batch(inputs, rows, 0, 0, &mut batch);
        vectors.extend(passes.forward(state, &batch, rows.len(), Mode::Evaluation)?);
        progress.advance(rows.len() as u64);
    }
    let width = if rows.is_empty() { 0 } else { vectors.len() / rows.len() };
    if width == 0 {
        return Err(Error::empty("inputs to embed"));
    }
    let vectors = Matrix::new(width, vectors)?;
    vectors.check_finite("vectors of the encoder")?;
    Ok(vectors)
}

/// Fails for inputs that an encoder does not take.
pub(crate) fn expect_shape(expected: Shape, inputs: &ExampleInputs) -> Result<()> {
    let received = shape_of(inputs);
    if expected == received {
        return Ok(());
    }
    let say = |shape: Shape| format!("{} x {} x {}", shape.channels, shape.height, shape.width);
    Err(Error::option(
        "inputs",
        say(received),
        format!("inputs of {} (channels x height x width), as the encoder was made for", say(expected)),
    ))
}

/// Shape of one input.
pub(crate) fn shape_of(inputs: &ExampleInputs) -> Shape {
    match inputs {
        ExampleInputs::Images(images) => {
            Shape { channels: images.channels, height: images.height, width: images.width }
        }
        ExampleInputs::Features(features) => Shape { channels: features.columns(), height: 1, width: 1 },
    }
}

/// Gives parameters and running statistics as named tensors.
pub(crate) fn weights<'a>(graph: &Graph, state: &'a State) -> Vec<Tensor<'a>> {
    let parameters = graph.parameters.iter().map(|parameter| Tensor {
        name: parameter.name.clone(),
        shape: parameter.shape.clone(),
        values: state.parameters[parameter.range.clone()].into(),
    });
    let statistics = graph.statistics.iter().flat_map(|statistics| {
        let tensor = |kind: &str, values: &'a [f32]| Tensor {
            name: format!("{}.{kind}", statistics.name),
            shape: vec![statistics.range.len()],
            values: values[statistics.range.clone()].into(),
        };
        [tensor("running_mean", &state.running_mean), tensor("running_var", &state.running_variance)]
    });
    parameters.chain(statistics).collect()
}

/// Reads parameters and running statistics out of named tensors, taking each.
pub(crate) fn take_weights(
    graph: &Graph,
    tensors: &mut BTreeMap<String, Tensor<'_>>,
) -> Result<State, Detail> {
    // Filled with what is there: a graph may claim parameters that no memory holds.
    let mut state = State { parameters: Vec::new(), running_mean: Vec::new(), running_variance: Vec::new() };
    let mut take = |name: &str, shape: &[usize], target: &mut Vec<f32>| -> Result<(), Detail> {
        let tensor = tensors.remove(name).ok_or_else(|| format!("tensor {name:?} is missing"))?;
        if tensor.shape != shape {
            return Err(format!("tensor {name:?} has shape {:?} where {shape:?} is needed", tensor.shape));
        }
        if tensor.values.iter().any(|value| !value.is_finite()) {
            return Err(format!("tensor {name:?} has numbers that are not finite"));
        }
        target.extend_from_slice(&tensor.values);
        Ok(())
    };
    for parameter in &graph.parameters {
        take(&parameter.name, &parameter.shape, &mut state.parameters)?;
    }
    for statistics in &graph.statistics {
        let shape = [statistics.range.len()];
        let name = |kind: &str| format!("{}.{kind}", statistics.name);
        take(&name("running_mean"), &shape, &mut state.running_mean)?;
        take(&name("running_var"), &shape, &mut state.running_variance)?;
    }
    Ok(state)
}

fn assemble(bytes: &[u8]) -> Result<TrainedEncoder, Detail> {
    let (metadata, mut tensors) = tensors::read(bytes, &KIND)?;
    let say = |error: Error| error.to_string();
    let architecture: EncoderArchitecture = parse_json(&metadata, "architecture")?;
    let [channels, height, width]: [usize; 3] = parse_json(&metadata, "input")?;
    let input = Shape { channels, height, width };
    if let EncoderArchitecture::Mlp { hidden, .. } = &architecture
        && hidden.len() > tensors.len()
    {
        let (held, layers) = (tensors.len(), hidden.len());
        return Err(format!("it holds {held} tensors for the {layers} hidden layers of its encoder"));
    }
    let graph = architecture.graph(input).map_err(say)?;
    let state = take_weights(&graph, &mut tensors)?;
    let form: HeadForm = parse_json(&metadata, "head")?;
    let mut take = |name: &str| tensors.remove(name).ok_or_else(|| format!("tensor {name:?} is missing"));
    let (weight, bias) = (take("head.weight")?, take("head.bias")?);
    let head = Matrix::new(architecture.outputs(), weight.values.into_owned())
        .and_then(|weight| Head::new(weight, Some(bias.values.into_owned()), form.head_kind()))
        .map_err(say)?;
    let classes: Vec<String> = parse_json(&metadata, "classes")?;
    if classes.len() != head.classes() {
        return Err(format!("it names {} classes and its head has {}", classes.len(), head.classes()));
    }
    if let Some(name) = tensors.keys().next() {
        return Err(format!("tensor {name:?} belongs to no part of the encoder"));
    }
    let normalisation: Normalisation = parse_json(&metadata, "normalisation")?;
    if normalisation.mean.len() != channels || normalisation.std.len() != channels {
        return Err(format!("its normalisation is not of {channels} channels"));
    }
    Ok(TrainedEncoder {
        model: text(&metadata, "model")?.into(),
        architecture,
        input,
        normalisation,
        state,
        head,
        form,
        classes,
        training: Training {
            method: text(&metadata, "method")?.into(),
            seed: parse(&metadata, "seed")?,
            pairs: parse(&metadata, "examples")?,
            inputs: parse_json(&metadata, "inputs")?,
            hyper_parameters: parse_json(&metadata, "hyper_parameters")?,
            version: text(&metadata, "rehang_version")?.into(),
            ..Training::default()
        },
    })
}

impl HeadForm {
    /// Gives the core's word for the form: a normalised softmax is a CosFace without a margin there.
    pub fn head_kind(self) -> HeadKind {
        match self {
            Self::Softmax => HeadKind::Softmax,
            Self::NormalisedSoftmax { scale } => HeadKind::CosFace { scale, margin: 0.0 },
            Self::CosFace { scale, margin } => HeadKind::CosFace { scale, margin },
            Self::ArcFace { scale, margin } => HeadKind::ArcFace { scale, margin },
        }
    }
}
