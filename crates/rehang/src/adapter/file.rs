//! Adapters as files: safetensors with metadata (`docs/formats.md`, "Adapter file").

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Adapter, BranchInput, Dense, Geometry, InputScaling, InputStatistics, KernelExpansion, Map, OutOfFold,
    SecondBranch, Training, Uncertainty,
};
use crate::error::{Error, Result};
use crate::files::AtomicFile;
use crate::head::{Head, HeadKind};
use crate::vectors::Matrix;

/// What every adapter file says it is.
const FORMAT: &str = "rehang-adapter";

/// The version of the format that is written; every older one is read.
const FORMAT_VERSION: u32 = 1;

/// Metadata, by key; in the order of keys so that the same adapter makes the same bytes.
type Metadata = BTreeMap<String, String>;

impl Adapter {
    /// The adapter as the bytes of its file: the same adapter gives the same bytes.
    ///
    /// # Errors
    ///
    /// As [`Adapter::check`]: an adapter that could not be applied is not written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        let tensors = Tensors::of(self);
        let mut metadata = describe(self)?;
        metadata.insert("checksum".into(), checksum(&metadata, &tensors.0));
        container(&metadata, &tensors.0)
    }

    /// A fingerprint of the whole adapter, as 16 hexadecimal digits: equal files have equal ones.
    ///
    /// # Errors
    ///
    /// As [`Adapter::to_bytes`].
    pub fn fingerprint(&self) -> Result<String> {
        Ok(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&self.to_bytes()?)))
    }

    /// The adapter in the bytes of a file; `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for anything that is not a whole, undamaged adapter file of a
    /// version known to this rehang: truncated, of another format, from a newer version, with a tensor missing, left
    /// over or of another shape or type, with a check sum that does not match. As [`Adapter::check`] for numbers that
    /// do not make an adapter.
    pub fn from_bytes(bytes: &[u8], what: &str) -> Result<Self> {
        read(bytes).map_err(|detail| Error::corrupt(what, detail)).and_then(|adapter| {
            adapter.check().map_err(|error| error.context(format!("reading {what}")))?;
            Ok(adapter)
        })
    }

    /// Writes the adapter to a file. The file appears whole or not at all: it is written beside its place, synced
    /// and renamed, so that a reader, a crash or a full disk never meets half of one.
    ///
    /// # Errors
    ///
    /// As [`Adapter::to_bytes`]; [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let bytes = self.to_bytes()?;
        let mut file = AtomicFile::create(path)?;
        file.put(&bytes)?;
        file.commit()
    }

    /// Reads an adapter from a file.
    ///
    /// # Errors
    ///
    /// As [`Adapter::from_bytes`]; [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
        Self::from_bytes(&bytes, &path.display().to_string())
    }
}

/// What a map is made of beside its numbers; whether each layer has a ReLU stands for the layer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapOutline {
    input: InputScaling,
    branch: Vec<bool>,
    second: Option<SecondOutline>,
    mixer: Vec<bool>,
    skip: bool,
    kernel: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecondOutline {
    input: BranchInput,
    layers: Vec<bool>,
}

/// What an out-of-fold σ² is made of beside its numbers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutOfFoldOutline {
    neighbours: usize,
    head: Option<HeadOutline>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HeadOutline {
    Softmax,
    ArcFace,
}

/// All metadata but the check sum.
fn describe(adapter: &Adapter) -> Result<Metadata> {
    let relu = |layers: &[Dense]| layers.iter().map(|layer| layer.relu).collect();
    let map = MapOutline {
        input: adapter.map.input,
        branch: relu(&adapter.map.branch),
        second: adapter
            .map
            .second
            .as_ref()
            .map(|second| SecondOutline { input: second.input, layers: relu(&second.layers) }),
        mixer: relu(&adapter.map.mixer),
        skip: adapter.map.skip.is_some(),
        kernel: adapter.map.kernel.is_some(),
    };
    let training = &adapter.training;
    let mut metadata = Metadata::from([
        ("format".into(), FORMAT.into()),
        ("format_version".into(), FORMAT_VERSION.to_string()),
        ("rehang_version".into(), training.version.clone()),
        ("old_space".into(), json(&adapter.old)?),
        ("new_space".into(), json(&adapter.new)?),
        ("map".into(), json(&map)?),
        ("geometry".into(), adapter.geometry.name().into()),
        ("uncertainty".into(), adapter.uncertainty.name().into()),
        ("method".into(), training.method.clone()),
        ("seed".into(), training.seed.to_string()),
        ("pairs".into(), training.pairs.to_string()),
        ("inputs".into(), json(&training.inputs)?),
        ("hyper_parameters".into(), json(&training.hyper_parameters)?),
    ]);
    if let Uncertainty::OutOfFold(learned) = &adapter.uncertainty {
        let head = learned.head.as_ref().map(|head| match head.kind() {
            HeadKind::Softmax => HeadOutline::Softmax,
            HeadKind::ArcFace { .. } => HeadOutline::ArcFace,
        });
        metadata
            .insert("out_of_fold".into(), json(&OutOfFoldOutline { neighbours: learned.neighbours, head })?);
    }
    Ok(metadata)
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::corrupt("adapter metadata", error))
}

/// A named tensor: its shape and its numbers.
struct Tensor<'a> {
    name: String,
    shape: Vec<usize>,
    values: std::borrow::Cow<'a, [f32]>,
}

/// The tensors of an adapter, in the order of its file.
struct Tensors<'a>(Vec<Tensor<'a>>);

impl<'a> Tensors<'a> {
    fn of(adapter: &'a Adapter) -> Self {
        let mut tensors = Self(Vec::new());
        let map = &adapter.map;
        tensors.layers("branch", &map.branch);
        if let Some(second) = &map.second {
            tensors.layers("second", &second.layers);
        }
        tensors.layers("mixer", &map.mixer);
        if let Some(skip) = &map.skip {
            tensors.matrix("skip.weight", &skip.weight);
            tensors.vector("skip.bias", &skip.bias);
        }
        if let Some(kernel) = &map.kernel {
            tensors.matrix("kernel.centres", &kernel.centres);
            tensors.matrix("kernel.coefficients", &kernel.coefficients);
            tensors.scalar("kernel.gamma", kernel.gamma);
        }
        match &adapter.geometry {
            Geometry::Raw => {}
            Geometry::Sphere { fallback } => tensors.vector("geometry.fallback", fallback),
            Geometry::MatchedNorms { raw, native } => {
                tensors.vector("geometry.raw", raw);
                tensors.vector("geometry.native", native);
            }
        }
        match &adapter.uncertainty {
            Uncertainty::Constant { variance } => tensors.scalar("uncertainty.variance", *variance),
            Uncertainty::Linear { weight, bias } => {
                tensors.vector("uncertainty.weight", weight);
                tensors.scalar("uncertainty.bias", *bias);
            }
            Uncertainty::OutOfFold(learned) => {
                tensors.matrix("uncertainty.anchors", &learned.anchors);
                tensors.matrix("uncertainty.anchor_values", &learned.anchor_values);
                tensors.vector("uncertainty.centre", &learned.centre);
                tensors.scalar("uncertainty.intercept", learned.intercept);
                tensors.vector("uncertainty.coefficients", &learned.coefficients);
                tensors.vector("uncertainty.means", &learned.means);
                tensors.scalar("uncertainty.log_minimum", learned.log_minimum);
                tensors.scalar("uncertainty.log_maximum", learned.log_maximum);
                if let Some(head) = &learned.head {
                    tensors.matrix("uncertainty.head.weight", head.weight());
                    tensors.vector("uncertainty.head.bias", head.bias());
                    if let HeadKind::ArcFace { scale, margin } = head.kind() {
                        tensors.scalar("uncertainty.head.scale", scale);
                        tensors.scalar("uncertainty.head.margin", margin);
                    }
                }
            }
        }
        if let Some(statistics) = &adapter.input_statistics {
            tensors.vector("input.mean", &statistics.mean);
            tensors.vector("input.standard_deviation", &statistics.standard_deviation);
            tensors.scalar("input.mean_norm", statistics.mean_norm);
        }
        tensors
    }

    fn layers(&mut self, part: &str, layers: &'a [Dense]) {
        for (index, layer) in layers.iter().enumerate() {
            self.matrix(&format!("{part}.{index}.weight"), &layer.weight);
            self.vector(&format!("{part}.{index}.bias"), &layer.bias);
        }
    }

    fn matrix(&mut self, name: &str, matrix: &'a Matrix) {
        let shape = vec![matrix.rows(), matrix.columns()];
        self.0.push(Tensor { name: name.into(), shape, values: matrix.as_slice().into() });
    }

    fn vector(&mut self, name: &str, values: &'a [f32]) {
        self.0.push(Tensor { name: name.into(), shape: vec![values.len()], values: values.into() });
    }

    fn scalar(&mut self, name: &str, value: f32) {
        self.0.push(Tensor { name: name.into(), shape: vec![1], values: vec![value].into() });
    }
}

/// The check sum over everything else in the file: metadata in the order of keys, then tensors in the order of names.
/// Every part is preceded by its length, so that no two different files are hashed alike.
fn checksum(metadata: &Metadata, tensors: &[Tensor<'_>]) -> String {
    let mut hasher = Xxh3::new();
    let text = |hasher: &mut Xxh3, text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "checksum") {
        text(&mut hasher, key);
        text(&mut hasher, value);
    }
    let mut by_name: Vec<&Tensor<'_>> = tensors.iter().collect();
    by_name.sort_by(|left, right| left.name.cmp(&right.name));
    for tensor in by_name {
        text(&mut hasher, &tensor.name);
        hasher.update(&(tensor.shape.len() as u64).to_le_bytes());
        for &size in &tensor.shape {
            hasher.update(&(size as u64).to_le_bytes());
        }
        for value in tensor.values.iter() {
            hasher.update(&value.to_le_bytes());
        }
    }
    format!("xxh3:{:016x}", hasher.digest())
}

/// One entry of the header of a safetensors file.
#[derive(Serialize)]
struct TensorEntry<'a> {
    dtype: &'static str,
    shape: &'a [usize],
    data_offsets: [usize; 2],
}

/// The bytes of a safetensors file. The library's own writer keeps metadata in a hash map, whose order changes from
/// run to run; the container is eight bytes, a JSON object and the numbers, so it is written here in a fixed order.
fn container(metadata: &Metadata, tensors: &[Tensor<'_>]) -> Result<Vec<u8>> {
    let mut header = format!("{{\"__metadata__\":{}", json(metadata)?);
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.values.len() * size_of::<f32>();
        let entry = TensorEntry { dtype: "F32", shape: &tensor.shape, data_offsets: [offset, end] };
        header += &[",", &json(&tensor.name)?, ":", &json(&entry)?].concat();
        offset = end;
    }
    header.push('}');
    // Padded with spaces so that the numbers begin at a multiple of eight, as the format recommends.
    let padding = header.len().next_multiple_of(8) - header.len();
    header.push_str(&" ".repeat(padding));
    let mut bytes = Vec::with_capacity(8 + header.len() + offset);
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    for tensor in tensors {
        for value in tensor.values.iter() {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    Ok(bytes)
}

/// A sentence about what is wrong with a file.
type Detail = String;

/// An adapter from the bytes of its file; not checked yet for numbers that do not make one.
fn read(bytes: &[u8]) -> Result<Adapter, Detail> {
    let (_, header) = SafeTensors::read_metadata(bytes)
        .map_err(|error| format!("it is no safetensors file, or is truncated ({error})"))?;
    let metadata: Metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    match metadata.get("format").map(String::as_str) {
        Some(FORMAT) => {}
        _ => return Err("it is a safetensors file but not an adapter of rehang".into()),
    }
    // Before anything else: what a later version changed is unknown here.
    let version: u32 = parse(&metadata, "format_version")?;
    if version == 0 || version > FORMAT_VERSION {
        return Err(format!(
            "it has format version {version} and this rehang reads up to {FORMAT_VERSION}; update rehang"
        ));
    }
    let container = SafeTensors::deserialize(bytes).map_err(|error| format!("it is damaged ({error})"))?;
    let mut stored = Stored(BTreeMap::new());
    for (name, view) in container.iter() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("tensor {name:?} is of type {:?} where F32 is needed", view.dtype()));
        }
        let values: Vec<f32> =
            view.data().as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect();
        let tensor = Tensor { name: name.into(), shape: view.shape().to_vec(), values: values.into() };
        stored.0.insert(name.into(), tensor);
    }
    let tensors: Vec<Tensor<'_>> = stored
        .0
        .values()
        .map(|tensor| Tensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            values: (&*tensor.values).into(),
        })
        .collect();
    let (written, computed) = (text(&metadata, "checksum")?, checksum(&metadata, &tensors));
    if written != computed {
        return Err(format!(
            "its check sum is {computed} where {written} was written: some bytes have changed"
        ));
    }
    drop(tensors);
    let adapter = assemble(&metadata, &mut stored)?;
    match stored.0.keys().next() {
        None => Ok(adapter),
        Some(name) => Err(format!("tensor {name:?} belongs to no part of the adapter")),
    }
}

/// Puts an adapter together, taking each tensor out of `stored`.
fn assemble(metadata: &Metadata, stored: &mut Stored<'_>) -> Result<Adapter, Detail> {
    let outline: MapOutline = parse_json(metadata, "map")?;
    let map = Map {
        input: outline.input,
        branch: stored.layers("branch", &outline.branch)?,
        second: match &outline.second {
            None => None,
            Some(second) => {
                Some(SecondBranch { input: second.input, layers: stored.layers("second", &second.layers)? })
            }
        },
        mixer: stored.layers("mixer", &outline.mixer)?,
        skip: if outline.skip { Some(stored.dense("skip", false)?) } else { None },
        kernel: if outline.kernel {
            Some(KernelExpansion {
                centres: stored.matrix("kernel.centres")?,
                coefficients: stored.matrix("kernel.coefficients")?,
                gamma: stored.scalar("kernel.gamma")?,
            })
        } else {
            None
        },
    };
    let geometry = match text(metadata, "geometry")? {
        "raw" => Geometry::Raw,
        "sphere" => Geometry::Sphere { fallback: stored.vector("geometry.fallback")? },
        "matched-norms" => Geometry::MatchedNorms {
            raw: stored.vector("geometry.raw")?,
            native: stored.vector("geometry.native")?,
        },
        other => return Err(format!("its geometry {other:?} is not known")),
    };
    let uncertainty = match text(metadata, "uncertainty")? {
        "constant" => Uncertainty::Constant { variance: stored.scalar("uncertainty.variance")? },
        "linear" => Uncertainty::Linear {
            weight: stored.vector("uncertainty.weight")?,
            bias: stored.scalar("uncertainty.bias")?,
        },
        "out-of-fold" => Uncertainty::OutOfFold(out_of_fold(&parse_json(metadata, "out_of_fold")?, stored)?),
        other => return Err(format!("its uncertainty {other:?} is not known")),
    };
    let input_statistics = if stored.0.contains_key("input.mean") {
        Some(InputStatistics {
            mean: stored.vector("input.mean")?,
            standard_deviation: stored.vector("input.standard_deviation")?,
            mean_norm: stored.scalar("input.mean_norm")?,
        })
    } else {
        None
    };
    let training = Training {
        method: text(metadata, "method")?.into(),
        seed: parse(metadata, "seed")?,
        pairs: parse(metadata, "pairs")?,
        inputs: parse_json(metadata, "inputs")?,
        hyper_parameters: parse_json(metadata, "hyper_parameters")?,
        version: text(metadata, "rehang_version")?.into(),
    };
    let (old, new) = (parse_json(metadata, "old_space")?, parse_json(metadata, "new_space")?);
    Ok(Adapter { old, new, map, geometry, uncertainty, input_statistics, training })
}

fn out_of_fold(outline: &OutOfFoldOutline, stored: &mut Stored<'_>) -> Result<OutOfFold, Detail> {
    let head = match outline.head {
        None => None,
        Some(ref kind) => {
            let weight = stored.matrix("uncertainty.head.weight")?;
            let bias = stored.vector("uncertainty.head.bias")?;
            let kind = match kind {
                HeadOutline::Softmax => HeadKind::Softmax,
                HeadOutline::ArcFace => HeadKind::ArcFace {
                    scale: stored.scalar("uncertainty.head.scale")?,
                    margin: stored.scalar("uncertainty.head.margin")?,
                },
            };
            Some(Head::new(weight, Some(bias), kind).map_err(|error| error.to_string())?)
        }
    };
    Ok(OutOfFold {
        anchors: stored.matrix("uncertainty.anchors")?,
        anchor_values: stored.matrix("uncertainty.anchor_values")?,
        centre: stored.vector("uncertainty.centre")?,
        neighbours: outline.neighbours,
        intercept: stored.scalar("uncertainty.intercept")?,
        coefficients: stored.vector("uncertainty.coefficients")?,
        means: stored.vector("uncertainty.means")?,
        log_minimum: stored.scalar("uncertainty.log_minimum")?,
        log_maximum: stored.scalar("uncertainty.log_maximum")?,
        head,
    })
}

/// Tensors of a file that no part of the adapter has taken yet.
struct Stored<'a>(BTreeMap<String, Tensor<'a>>);

impl Stored<'_> {
    /// Takes a tensor of `axes` axes.
    fn take(&mut self, name: &str, axes: usize) -> Result<(Vec<usize>, Vec<f32>), Detail> {
        let tensor = self.0.remove(name).ok_or_else(|| format!("tensor {name:?} is missing"))?;
        if tensor.shape.len() != axes {
            return Err(format!("tensor {name:?} has shape {:?} where {axes} axes are needed", tensor.shape));
        }
        Ok((tensor.shape, tensor.values.into_owned()))
    }

    fn matrix(&mut self, name: &str) -> Result<Matrix, Detail> {
        let (shape, values) = self.take(name, 2)?;
        Matrix::new(shape[1], values).map_err(|error| error.to_string())
    }

    fn vector(&mut self, name: &str) -> Result<Vec<f32>, Detail> {
        Ok(self.take(name, 1)?.1)
    }

    fn scalar(&mut self, name: &str) -> Result<f32, Detail> {
        match *self.vector(name)? {
            [value] => Ok(value),
            ref values => Err(format!("tensor {name:?} has {} numbers where 1 is needed", values.len())),
        }
    }

    fn dense(&mut self, name: &str, relu: bool) -> Result<Dense, Detail> {
        let weight = self.matrix(&format!("{name}.weight"))?;
        Ok(Dense { weight, bias: self.vector(&format!("{name}.bias"))?, relu })
    }

    fn layers(&mut self, part: &str, relu: &[bool]) -> Result<Vec<Dense>, Detail> {
        relu.iter().enumerate().map(|(index, &relu)| self.dense(&format!("{part}.{index}"), relu)).collect()
    }
}

fn text<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a str, Detail> {
    metadata.get(key).map(String::as_str).ok_or_else(|| format!("metadata {key:?} is missing"))
}

fn parse<T: std::str::FromStr>(metadata: &Metadata, key: &str) -> Result<T, Detail> {
    let text = text(metadata, key)?;
    text.parse().map_err(|_| format!("metadata {key:?} cannot be {text:?}"))
}

fn parse_json<T: DeserializeOwned>(metadata: &Metadata, key: &str) -> Result<T, Detail> {
    serde_json::from_str(text(metadata, key)?)
        .map_err(|error| format!("metadata {key:?} is damaged: {error}"))
}
