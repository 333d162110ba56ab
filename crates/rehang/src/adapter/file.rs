//! Adapters as files: safetensors with metadata (`docs/formats.md`, "Adapter file").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    Adapter, BranchInput, Dense, Geometry, InputScaling, InputStatistics, KernelExpansion, Map, OutOfFold,
    RowSketch, SecondBranch, Training, Uncertainty,
};
use crate::error::{Error, Result};
use crate::files::AtomicFile;
use crate::files::tensors::{self, Detail, FileKind, Metadata, Tensor, json, parse, parse_json, text};
use crate::head::{Head, HeadKind};
use crate::space::Space;
use crate::vectors::Matrix;

/// What every adapter file says it is, and the version that is written; every older one is read.
const KIND: FileKind = FileKind { format: "rehang-adapter", thing: "an adapter", version: 1 };

/// What an adapter file is, for people and scripts.
#[derive(Debug, Clone, Serialize)]
pub struct Inspected {
    /// The file.
    pub adapter: PathBuf,
    /// The space that it reads.
    pub old: Space,
    /// The space that it writes.
    pub new: Space,
    /// The name of its [`Geometry`].
    pub geometry: &'static str,
    /// The name of its [`Uncertainty`].
    pub uncertainty: &'static str,
    /// What searches should add to the distance of every vector that it makes.
    pub handicap: f64,
    /// How it was made.
    pub training: Training,
}

/// Says what an adapter file is: spaces, method, seed, inputs.
///
/// # Errors
///
/// As [`Adapter::load`].
pub fn inspect(path: &Path) -> Result<Inspected> {
    let Adapter { old, new, geometry, uncertainty, handicap, training, .. } = Adapter::load(path)?;
    let (geometry, uncertainty) = (geometry.name(), uncertainty.name());
    Ok(Inspected { adapter: path.to_owned(), old, new, geometry, uncertainty, handicap, training })
}

impl Adapter {
    /// The adapter as the bytes of its file: the same adapter gives the same bytes.
    ///
    /// # Errors
    ///
    /// As [`Adapter::check`]: an adapter that could not be applied is not written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        tensors::write(&KIND, describe(self)?, &Tensors::of(self).0)
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
        AtomicFile::write(path, &bytes)
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

/// The sketch of the pairs: how many different rows there were, and the kept hashes, 16 hexadecimal digits each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SketchOutline {
    rows: usize,
    hashes: String,
}

impl SketchOutline {
    fn of(sketch: &RowSketch) -> Self {
        let hashes = sketch.hashes().iter().map(|hash| format!("{hash:016x}")).collect();
        Self { rows: sketch.rows(), hashes }
    }

    fn sketch(&self) -> Result<RowSketch, Detail> {
        let damaged = || "its \"pairs_sketch\" is damaged".to_owned();
        let number = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 16)?;
            u64::from_str_radix(digits, 16).ok()
        };
        let hashes: Option<Vec<u64>> = self.hashes.as_bytes().chunks(16).map(number).collect();
        hashes.and_then(|hashes| RowSketch::from_parts(self.rows, hashes)).ok_or_else(damaged)
    }
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
    if adapter.handicap > 0.0 {
        metadata.insert("handicap".into(), adapter.handicap.to_string());
    }
    if let Some(sketch) = &training.pairs_sketch {
        metadata.insert("pairs_sketch".into(), json(&SketchOutline::of(sketch))?);
    }
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

/// An adapter from the bytes of its file; not checked yet for numbers that do not make one.
fn read(bytes: &[u8]) -> Result<Adapter, Detail> {
    let (metadata, tensors) = tensors::read(bytes, &KIND)?;
    let mut stored = Stored(tensors);
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
        second: optional(outline.second.as_ref(), |second| {
            Ok(SecondBranch { input: second.input, layers: stored.layers("second", &second.layers)? })
        })?,
        mixer: stored.layers("mixer", &outline.mixer)?,
        skip: optional(outline.skip.then_some(()), |()| stored.dense("skip", false))?,
        kernel: optional(outline.kernel.then_some(()), |()| {
            Ok(KernelExpansion {
                centres: stored.matrix("kernel.centres")?,
                coefficients: stored.matrix("kernel.coefficients")?,
                gamma: stored.scalar("kernel.gamma")?,
            })
        })?,
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
    let has_statistics = stored.0.contains_key("input.mean").then_some(());
    let input_statistics = optional(has_statistics, |()| {
        Ok(InputStatistics {
            mean: stored.vector("input.mean")?,
            standard_deviation: stored.vector("input.standard_deviation")?,
            mean_norm: stored.scalar("input.mean_norm")?,
        })
    })?;
    let training = Training {
        method: text(metadata, "method")?.into(),
        seed: parse(metadata, "seed")?,
        pairs: parse(metadata, "pairs")?,
        inputs: parse_json(metadata, "inputs")?,
        hyper_parameters: parse_json(metadata, "hyper_parameters")?,
        version: text(metadata, "rehang_version")?.into(),
        pairs_sketch: optional(metadata.get("pairs_sketch"), |_| {
            parse_json::<SketchOutline>(metadata, "pairs_sketch")?.sketch()
        })?,
    };
    let (old, new) = (parse_json(metadata, "old_space")?, parse_json(metadata, "new_space")?);
    // Files of a rehang that did not know it have none.
    let handicap = if metadata.contains_key("handicap") { parse(metadata, "handicap")? } else { 0.0 };
    Ok(Adapter { old, new, map, geometry, uncertainty, handicap, input_statistics, training })
}

/// What `make` makes of a part that the file says it has.
fn optional<P, T>(part: Option<P>, make: impl FnOnce(P) -> Result<T, Detail>) -> Result<Option<T>, Detail> {
    part.map(make).transpose()
}

fn out_of_fold(outline: &OutOfFoldOutline, stored: &mut Stored<'_>) -> Result<OutOfFold, Detail> {
    let head = optional(outline.head.as_ref(), |kind| {
        let weight = stored.matrix("uncertainty.head.weight")?;
        let bias = stored.vector("uncertainty.head.bias")?;
        let kind = match kind {
            HeadOutline::Softmax => HeadKind::Softmax,
            HeadOutline::ArcFace => HeadKind::ArcFace {
                scale: stored.scalar("uncertainty.head.scale")?,
                margin: stored.scalar("uncertainty.head.margin")?,
            },
        };
        Head::new(weight, Some(bias), kind).map_err(|error| error.to_string())
    })?;
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
