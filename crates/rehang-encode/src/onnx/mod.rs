//! ONNX model, run in this process, as an encoder.

mod image;
mod model;
mod pooling;
mod tags;
#[cfg(test)]
mod tests;
#[cfg_attr(not(feature = "tokenizers"), path = "text_left_out.rs")]
mod text;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use rehang_core::finding::Finding;
use rehang_core::{Error, Result, Semaphore, Space};
use rehang_files::{expect_no_lfs_pointer, folder_of};
use rten::{Model, NodeId, RunOptions, Value, ValueOrView};
use rten_tensor::Layout as _;

use crate::check::Check;
use crate::config::keys::{at_least_one, resolve};
use crate::config::{ImageInput, OnnxConfig, OnnxInput, Pooling, VectorInput};
use crate::contract::{Answer, Encoder, Input, ItemFailure, Reads, Spent};
use crate::fingerprint::Fingerprint;
use crate::meter::Meter;
use crate::source::Sources;
use model::{fixed, inputs, only_input, positions, shown};
use tags::Tags;
#[cfg(feature = "tokenizers")]
pub(crate) use text::Reader;
use text::Texts;
use threads::Threads;

/// Encoder behind [`OnnxConfig`].
pub(crate) struct Onnx {
    check: Check,
    model: Model,
    /// Paths of the model and the tokeniser, which a fingerprint reads.
    files: Vec<PathBuf>,
    /// Keys of the input, without those that change no vector of an item.
    input: OnnxInput,
    kind: Kind,
    sources: Sources,
    output: (NodeId, String),
    batch: usize,
    /// Items of every run, where the model was exported for one number of them only.
    batch_fixed: Option<usize>,
    threads: Option<usize>,
    pool: Threads,
    meter: Meter,
    answered: AtomicBool,
}

/// Kind of sources, with all that turns them into what the model reads.
enum Kind {
    Image { config: ImageInput, node: NodeId, memory: Semaphore, tags: Tags },
    Text(Box<Texts>),
    Vector { node: NodeId, width: Option<usize> },
}

/// Item as the model reads it.
enum Ready {
    Numbers(Vec<f32>),
    Tokens(Vec<u32>),
}

impl Onnx {
    pub(crate) fn open(config: &OnnxConfig, space: &Space, base: &Path) -> Result<Self> {
        at_least_one("batch", config.batch)?;
        if let Some(threads) = config.threads {
            at_least_one("threads", threads)?;
        }
        let path = resolve(base, &config.model);
        let name = path.display().to_string();
        let model = load(&path)?;
        let sources = Sources::new(
            resolve(base, config.root.as_deref().unwrap_or(Path::new(""))),
            config.outside_root,
        )?;
        let output = find_output(&model, config.output.as_deref(), &name)?;
        let inputs = inputs(&model, &name)?;
        let batch_fixed = inputs.iter().find_map(|input| fixed(&input.shape, 0));
        if batch_fixed == Some(0) {
            return Err(Error::corrupt(&name, "its input has room for 0 items"));
        }
        let check = Check::new(space, format!("the model {name}"), config.normalise);
        let kind = match &config.input {
            OnnxInput::Text(text) => {
                Kind::Text(Box::new(Texts::open(text, base, &inputs, (&name, positions(&model)))?))
            }
            OnnxInput::Image(image) => {
                let input = only_input(&inputs, &name)?;
                image.check(&input.shape, &name)?;
                Kind::Image {
                    config: image.clone(),
                    node: input.node,
                    memory: Semaphore::new(image::DECODING_BYTES_MAX),
                    tags: Tags::default(),
                }
            }
            OnnxInput::Vector(VectorInput {}) => {
                let input = only_input(&inputs, &name)?;
                if input.shape.len() > 2 {
                    return Err(Error::option(
                        "kind of input",
                        "vector",
                        format!("another kind: {name} reads {}", shown(&input.shape)),
                    ));
                }
                Kind::Vector { node: input.node, width: fixed(&input.shape, 1) }
            }
        };
        let tokenizer = match &config.input {
            OnnxInput::Text(text) => Some(resolve(base, &text.tokenizer)),
            OnnxInput::Image(_) | OnnxInput::Vector(_) => None,
        };
        let mut input = config.input.clone();
        match &mut input {
            OnnxInput::Text(text) => text.query_prefix = None,
            OnnxInput::Image(image) => image.exif_orientation = image.exif_orientation.filter(|&flag| flag),
            OnnxInput::Vector(_) => {}
        }
        let encoder = Self {
            check,
            model,
            files: std::iter::once(path).chain(tokenizer).collect(),
            input,
            kind,
            sources,
            output,
            batch: config.batch,
            batch_fixed,
            threads: config.threads,
            pool: Threads::new(),
            meter: Meter::default(),
            answered: AtomicBool::new(false),
        };
        encoder.check_output()?;
        Ok(encoder)
    }

    /// Finds a wrong width before the first item, where the model states its width.
    fn check_output(&self) -> Result<()> {
        let shape = self.model.node_info(self.output.0).and_then(|node| node.shape()).unwrap_or_default();
        let at = if self.pooling() == Pooling::None { 1 } else { 2 };
        if shape.len() > at
            && let Some(width) = fixed(&shape, at)
        {
            self.check.width(width)?;
        }
        Ok(())
    }

    fn pooling(&self) -> Pooling {
        match &self.kind {
            Kind::Text(texts) => texts.pooling(),
            Kind::Image { .. } | Kind::Vector { .. } => Pooling::None,
        }
    }

    /// Turns an item into what the model reads.
    fn ready(&self, input: &Input<'_>) -> Result<Ready, ItemFailure> {
        match &self.kind {
            Kind::Image { config, memory, tags, .. } => {
                let (path, bytes) = self.sources.read(input.source)?;
                let (pixels, has_tag) = config.pixels(&bytes, &path, memory)?;
                tags.note(has_tag);
                Ok(Ready::Numbers(pixels))
            }
            Kind::Text(texts) => texts.tokens(input.source).map(Ready::Tokens),
            Kind::Vector { width, .. } => self.sources.vector(input.source, *width).map(Ready::Numbers),
        }
    }

    /// Number of items that may go through the model together.
    fn together(&self) -> usize {
        match self.kind {
            // Vectors of a model that does not state their width may differ in it.
            Kind::Vector { width: None, .. } => 1,
            _ => self.batch_fixed.unwrap_or(self.batch),
        }
    }

    /// Runs the model: one vector an item, in order, or the model's words about why there is none.
    fn run(&self, items: &[&Ready]) -> Result<Result<Vec<Vec<f32>>, String>> {
        let count = self.batch_fixed.unwrap_or(items.len());
        let feeds: Result<Vec<(NodeId, ValueOrView<'_>)>, String> = match &self.kind {
            Kind::Text(texts) => texts.feeds(&tokens(items), count),
            Kind::Image { config, node, .. } => {
                numbers(items, count, &config.shape()).map(|tensor| vec![(*node, tensor)])
            }
            Kind::Vector { node, .. } => {
                let width = tensor_width(items);
                numbers(items, count, &[width]).map(|tensor| vec![(*node, tensor)])
            }
        };
        let options = RunOptions::default().with_thread_pool(Some(self.pool.pool(self.threads)));
        let run = feeds.and_then(|feeds| {
            self.model.run(feeds, &[self.output.0], Some(options)).map_err(|error| error.to_string())
        });
        match run {
            Ok(mut values) => match values.pop() {
                Some(value) => self.rows(value, items, count).map(Ok),
                None => Ok(Err("it gave no output".into())),
            },
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// Takes the vectors of the items out of an output.
    fn rows(&self, value: Value, items: &[&Ready], count: usize) -> Result<Vec<Vec<f32>>> {
        let of_shape = |shape: &[usize]| format!("it is {shape:?} for {count} items");
        let refuse = |actual: String, expected: String| {
            Error::option(
                "output",
                &self.output.1,
                format!("{expected}: {actual}; the outputs are {}", outputs(&self.model)),
            )
        };
        let Some(tensor) = value.into_tensor::<f32>() else {
            let actual = "its numbers are of another kind".into();
            return Err(refuse(actual, "an output of f32, which `output` names".into()));
        };
        let mut shape = tensor.shape().to_vec();
        let data = tensor.into_data();
        // Image models often leave the sides of an image, 1 and 1, behind.
        while shape.len() > 2 && shape.last() == Some(&1) && self.pooling() == Pooling::None {
            shape.pop();
        }
        match (self.pooling(), shape.as_slice()) {
            (Pooling::None, &[rows, width]) if rows == count => {
                self.check.width(width)?;
                Ok(data.chunks_exact(width.max(1)).take(items.len()).map(<[f32]>::to_vec).collect())
            }
            (Pooling::None, _) => Err(refuse(of_shape(&shape), "an output with one vector an item".into())),
            (pooling, &[rows, places, width])
                if rows == count && tokens(items).iter().all(|tokens| tokens.len() <= places) =>
            {
                self.check.width(width)?;
                let states = data.chunks_exact((places * width).max(1));
                Ok(tokens(items)
                    .iter()
                    .zip(states)
                    .map(|(tokens, states)| pooling.pool(states, tokens.len(), width))
                    .collect())
            }
            (pooling, &[rows, _]) if rows == count => Err(Error::option(
                "pooling",
                format!("{pooling:?}").to_lowercase(),
                format!("none: the output {} has one vector a text already", self.output.1),
            )),
            _ => Err(refuse(of_shape(&shape), "an output with one vector a token".into())),
        }
    }

    /// Embeds items that are ready, all at once, or one by one where the model does not take them together.
    fn embed(&self, items: &[&Ready]) -> Result<Vec<Result<Vec<f32>, String>>> {
        let reason = match self.run(items)? {
            Ok(rows) => {
                self.answered.store(true, Ordering::Relaxed);
                return Ok(rows.into_iter().map(Ok).collect());
            }
            Err(reason) => reason,
        };
        if items.len() > 1 {
            let mut answers = Vec::with_capacity(items.len());
            for item in items {
                answers.extend(self.embed(std::slice::from_ref(item))?);
            }
            return Ok(answers);
        }
        if !self.answered.load(Ordering::Relaxed) {
            return Err(Error::corrupt(self.check.encoder(), format!("it cannot be run: {reason}")));
        }
        Ok(vec![Err(reason)])
    }
}

impl Encoder for Onnx {
    fn space(&self) -> &Space {
        self.check.space()
    }

    fn reads(&self) -> Reads {
        match self.kind {
            Kind::Text(_) => Reads::Texts,
            Kind::Image { .. } => Reads::Images,
            Kind::Vector { .. } => Reads::Anything,
        }
    }

    fn reads_source_alone(&self) -> bool {
        true
    }

    fn batch_max(&self) -> usize {
        self.batch
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.meter.sent(inputs.len());
        let prepare = || inputs.par_iter().map(|input| self.ready(input)).collect::<Vec<_>>();
        let ready = self.pool.pool(self.threads).run(prepare);
        let good: Vec<&Ready> = ready.iter().filter_map(|item| item.as_ref().ok()).collect();
        self.meter.tokens(tokens(&good).iter().map(|tokens| tokens.len() as u64).sum());
        let mut vectors = Vec::with_capacity(good.len());
        for items in good.chunks(self.together()) {
            vectors.extend(self.embed(items)?);
        }
        let mut vectors = vectors.into_iter();
        inputs
            .iter()
            .zip(&ready)
            .map(|(input, ready)| match ready {
                Err(failure) => Ok(Err(failure.clone())),
                Ok(_) => match vectors.next() {
                    Some(Ok(vector)) => self.check.vector(input.id, vector),
                    Some(Err(reason)) => {
                        Ok(Err(ItemFailure::Permanent(format!("{}: {reason}", self.check.encoder()))))
                    }
                    None => Ok(Err(ItemFailure::Temporary(format!(
                        "{} gave too few vectors",
                        self.check.encoder()
                    )))),
                },
            })
            .collect()
    }

    fn findings(&self) -> Vec<Finding> {
        match &self.kind {
            Kind::Text(texts) => texts.findings(),
            Kind::Image { config, tags, .. } => tags.findings(config),
            Kind::Vector { .. } => Vec::new(),
        }
    }

    fn spent(&self) -> Spent {
        self.meter.spent()
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        let mut fingerprint =
            Fingerprint::new("onnx").with(&self.input).with(&self.output.1).with(&self.check.normalises());
        for path in &self.files {
            fingerprint = fingerprint.with_file(path)?;
        }
        for path in weights_beside(&self.files[0])? {
            fingerprint = fingerprint.with_file(&path)?;
        }
        Ok(Some(fingerprint.text()))
    }
}

/// Finds the files beside a model that hold weights of it: the model names them, so each file of its folder
/// whose name stands in the model's bytes.
fn weights_beside(model: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: &std::io::Error| Error::io("read", model, error);
    let bytes = fs_err::read(model).map_err(|error| failed(&error))?;
    let mut weight_files = Vec::new();
    for entry in fs_err::read_dir(folder_of(model)).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if path != model && path.is_file() && memchr::memmem::find(&bytes, name).is_some() {
            weight_files.push(path);
        }
    }
    weight_files.sort();
    Ok(weight_files)
}

fn load(path: &Path) -> Result<Model> {
    // A missing file is the system's error; the runtime's own would not name the path.
    fs_err::metadata(path).map_err(|error| Error::io("read", path, &error))?;
    threads::reading().load_file(path).map_err(|error| {
        let beside = weights_beside(path).unwrap_or_default();
        let mut files = std::iter::once(path).chain(beside.iter().map(PathBuf::as_path));
        if let Some(error) = files.find_map(|file| expect_no_lfs_pointer(file).err()) {
            return error;
        }
        let advice = if error.to_string().contains("com.microsoft") {
            "; operators of com.microsoft are what ONNX Runtime's optimiser puts in the place of several (exports such as model_O2.onnx to \
             model_O4.onnx): take the plain export, model.onnx, which most folders have beside them"
        } else {
            ""
        };
        Error::corrupt(path.display(), format!("it is no ONNX model that can be run: {error}{advice}"))
    })
}

fn find_output(model: &Model, wanted: Option<&str>, name: &str) -> Result<(NodeId, String)> {
    let named = |&node: &NodeId| {
        (node, model.node_info(node).and_then(|info| info.name()).unwrap_or("?").to_string())
    };
    let mut all = model.output_ids().iter().map(named);
    let output = match wanted {
        Some(wanted) => all.find(|(_, name)| name == wanted),
        None => all.next(),
    };
    output.ok_or_else(|| {
        Error::not_found("output", wanted.unwrap_or("any"), format!("{name}; it has {}", outputs(model)))
    })
}

/// Names and shapes of a model's outputs.
fn outputs(model: &Model) -> String {
    let description = |&node: &NodeId| {
        let info = model.node_info(node)?;
        Some(format!("{} {}", info.name()?, shown(&info.shape().unwrap_or_default())))
    };
    model.output_ids().iter().filter_map(description).collect::<Vec<_>>().join(", ")
}

fn tokens<'a>(items: &[&'a Ready]) -> Vec<&'a [u32]> {
    items
        .iter()
        .filter_map(|item| match item {
            Ready::Tokens(tokens) => Some(tokens.as_slice()),
            Ready::Numbers(_) => None,
        })
        .collect()
}

fn tensor_width(items: &[&Ready]) -> usize {
    match items.first() {
        Some(Ready::Numbers(numbers)) => numbers.len(),
        _ => 0,
    }
}

/// Makes a tensor of `count` items of a shape; the places beyond the items are 0.
fn numbers(items: &[&Ready], count: usize, shape: &[usize]) -> Result<ValueOrView<'static>, String> {
    let size: usize = shape.iter().product();
    let mut data = Vec::with_capacity(count * size);
    for item in items {
        if let Ready::Numbers(numbers) = item {
            data.extend_from_slice(numbers);
        }
    }
    data.resize(count * size, 0.0);
    let shape: Vec<usize> = std::iter::once(count).chain(shape.iter().copied()).collect();
    Value::from_shape(shape, data).map(ValueOrView::from).map_err(|error| error.to_string())
}
