//! Adapters as files: safetensors with metadata (`docs/formats.md`, "Adapter file").

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use serde::{Deserialize, Serialize};

use crate::adapter_network::to_network;
use crate::atomic::AtomicFile;
use crate::onnx::Port;
use crate::paths::expect_apart;
use crate::tensors::{
    self, Detail, FileKind, HALVES, Metadata, Tensor, is_halved, json, parse, parse_json, text,
};
use rehang_core::adapter::{
    Adapter, BranchInput, Dense, Geometry, InputScaling, InputStatistics, KernelExpansion, Map, OutOfFold,
    PerKind, RowSketch, SecondBranch, Training, Uncertainty,
};
use rehang_core::report::Precision;
use rehang_core::{Error, Head, HeadKind, Matrix, Result, Space};

/// Format and newest version that adapter files state; files of every older version are read too.
const KIND: FileKind = FileKind { format: "rehang-adapter", thing: "an adapter", version: 2 };

/// Returns the oldest version that can hold an adapter, which is the one that is written. So older readers go
/// on reading what they know, and the same adapter keeps its fingerprint.
fn version_of(adapter: &Adapter) -> FileKind {
    // Version 2 added kinds of old vectors with a map each, and numbers in half precision.
    let is_new = adapter.map.per_kind.is_some() || adapter.training.halves;
    FileKind { version: if is_new { 2 } else { 1 }, ..KIND }
}

/// Description of an adapter file, for people and scripts.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Inspected {
    /// The file.
    pub adapter: PathBuf,
    /// Space that the adapter reads.
    pub old: Space,
    /// Space that the adapter writes.
    pub new: Space,
    /// Name of the adapter's [`Geometry`].
    pub geometry: &'static str,
    /// Name of the adapter's [`Uncertainty`].
    pub uncertainty: &'static str,
    /// Handicap: what searches should add to the distance of every vector that the adapter makes.
    pub handicap: f64,
    /// How the adapter was made.
    pub training: Training,
}

/// Describes an adapter file: its spaces, method, seed and inputs.
///
/// # Errors
///
/// As [`load`].
pub fn inspect(path: &Path) -> Result<Inspected> {
    let Adapter { old, new, geometry, uncertainty, handicap, training, .. } = load(path)?;
    let (geometry, uncertainty) = (geometry.name(), uncertainty.name());
    Ok(Inspected { adapter: path.to_owned(), old, new, geometry, uncertainty, handicap, training })
}

/// Summary of a file that [`export_onnx`] wrote.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ExportedOnnx {
    /// The file.
    pub onnx: PathBuf,
    /// Length of the file in bytes.
    pub bytes: usize,
    /// Inputs of the network, such as `"old" [batch, 128]`.
    pub inputs: Vec<String>,
    /// Outputs of the network.
    pub outputs: Vec<String>,
}

/// Writes an adapter as an ONNX file, through [`to_network`].
///
/// # Errors
///
/// As [`load`]; [`ErrorKind::InvalidOption`](rehang_core::ErrorKind::InvalidOption) where the output is the
/// adapter; [`ErrorKind::Io`](rehang_core::ErrorKind::Io).
pub fn export_onnx(adapter: &Path, output: &PathBuf) -> Result<ExportedOnnx> {
    expect_apart(&[("output", Some(output))], &[("file", adapter.to_owned())])?;
    let network = to_network(&load(adapter)?)?;
    let bytes = network.to_bytes();
    AtomicFile::write(output, &bytes)?;
    let port_texts = |ports: &[Port]| ports.iter().map(ToString::to_string).collect();
    let (inputs, outputs) = (port_texts(&network.inputs), port_texts(&network.outputs));
    Ok(ExportedOnnx { onnx: output.clone(), bytes: bytes.len(), inputs, outputs })
}

/// Source of an adapter for a verb: a file, or the caller's memory.
///
/// ```
/// use rehang_files::adapter_file::AdapterSource;
///
/// let source = AdapterSource::from("map.safetensors");
/// assert_eq!((source.to_string().as_str(), source.file().is_some()), ("map.safetensors", true));
/// assert!(source.load().is_err(), "there is no such file");
/// ```
#[derive(Debug, Clone)]
pub enum AdapterSource {
    /// A file that holds the adapter.
    File(PathBuf),
    /// An adapter that the caller holds in memory, behind the caller's name for it.
    Given(String, Arc<Adapter>),
}

impl AdapterSource {
    /// The adapter's file; `None` for an adapter in memory.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Given(..) => None,
        }
    }

    /// Loads the adapter.
    ///
    /// # Errors
    ///
    /// As [`load`].
    pub fn load(&self) -> Result<Arc<Adapter>> {
        match self {
            Self::File(path) => load(path).map(Arc::new),
            Self::Given(_, adapter) => Ok(Arc::clone(adapter)),
        }
    }
}

impl<P: Into<PathBuf>> From<P> for AdapterSource {
    fn from(path: P) -> Self {
        Self::File(path.into())
    }
}

impl fmt::Display for AdapterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Given(name, _) => f.write_str(name),
        }
    }
}

/// Serialises the adapter to the bytes of its file. The same adapter gives the same bytes.
///
/// ```
/// use rehang_core::{Adapter, Distance, Space};
/// use rehang_files::adapter_file::{from_bytes, to_bytes};
///
/// let space = |name| Space::new(name, 2, Distance::Cosine, false);
/// let adapter = Adapter::identity(space("v1"), space("v2"), None)?;
/// assert_eq!(from_bytes(&to_bytes(&adapter)?, "a.safetensors")?, adapter);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`Adapter::check`]: an adapter that could not be applied is not written.
pub fn to_bytes(adapter: &Adapter) -> Result<Vec<u8>> {
    adapter.check()?;
    let (metadata, kind) = (describe(adapter)?, version_of(adapter));
    let mut adapter = adapter.clone();
    let mut head = HeadParts::taken_from(&mut adapter);
    let parts = Parts::from_adapter(&mut adapter, head.as_mut()).0;
    let tensors: Vec<_> = parts.iter().map(|(name, part)| part.tensor(name.clone())).collect();
    tensors::write(&kind, metadata, &tensors)
}

/// Returns the adapter with every number of its matrices rounded to half precision, which halves its file.
/// From here on h(o), σ² and the fingerprint are those of the rounded numbers, in memory as well as in the
/// file.
///
/// ```
/// use rehang_core::{Adapter, Distance, Space};
/// use rehang_files::adapter_file::{from_bytes, halved, to_bytes};
///
/// let space = |name| Space::new(name, 64, Distance::Cosine, true);
/// let adapter = Adapter::identity(space("v1"), space("v2"), None)?;
/// let halves = halved(&adapter)?;
/// let bytes = to_bytes(&halves)?;
/// assert!(bytes.len() + 2 * 64 * 64 <= to_bytes(&adapter)?.len() + 64);
/// assert_eq!(from_bytes(&bytes, "a.safetensors")?, halves);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`](rehang_core::ErrorKind::InvalidOption) for a number that half precision cannot
/// hold (above 65,504).
pub fn halved(adapter: &Adapter) -> Result<Adapter> {
    let mut adapter = adapter.clone();
    let mut head = HeadParts::taken_from(&mut adapter);
    for (name, part) in Parts::from_adapter(&mut adapter, head.as_mut()).0 {
        let Part::Matrix(matrix) = part else { continue };
        for value in matrix.as_mut_slice() {
            let rounded = f16::from_f32(*value).to_f32();
            if !rounded.is_finite() {
                let allowed =
                    format!("f32: {name} holds {value}, and half precision ends at {}", f16::MAX.to_f32());
                return Err(Error::option("precision", Precision::F16, &allowed));
            }
            *value = rounded;
        }
    }
    if let Some(head) = head {
        head.put_back(&mut adapter)?;
    }
    adapter.training.halves = true;
    Ok(adapter)
}

/// Fingerprint of the whole adapter, as 16 hexadecimal digits. Equal files have equal fingerprints.
///
/// # Errors
///
/// As [`to_bytes`].
pub fn fingerprint(adapter: &Adapter) -> Result<String> {
    Ok(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&to_bytes(adapter)?)))
}

/// Reads the adapter from the bytes of a file; `what` names the file in errors.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](rehang_core::ErrorKind::Corrupt) for anything that is not a whole, undamaged adapter
/// file of a version known to this rehang: truncated, of another format, from a newer version, with a check
/// sum that does not match, or with a tensor that is missing, left over or of another shape or type. As
/// [`Adapter::check`] for numbers that do not make an adapter.
pub fn from_bytes(bytes: &[u8], what: &str) -> Result<Adapter> {
    let adapter = read(bytes).map_err(|detail| Error::corrupt(what, detail))?;
    adapter.check().map_err(|error| error.context(format!("reading {what}")))?;
    Ok(adapter)
}

/// Builds an adapter from the content of a file: its tensors, and its metadata without format, version and
/// check sum. It serves maps that other programs have trained; `what` names the map in errors.
///
/// ```
/// use rehang_core::{Adapter, Distance, Space};
/// use rehang_files::adapter_file::{from_parts, to_bytes};
/// use rehang_files::tensors::{FileKind, read};
///
/// let space = |name| Space::new(name, 2, Distance::Cosine, false);
/// let adapter = Adapter::identity(space("v1"), space("v2"), None)?;
/// let kind = FileKind { format: "rehang-adapter", thing: "an adapter", version: 1 };
/// let (metadata, tensors) = read(&to_bytes(&adapter)?, &kind).unwrap();
/// assert_eq!(from_parts(&metadata, tensors, "a map")?, adapter);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`from_bytes`].
pub fn from_parts(
    metadata: &Metadata,
    tensors: BTreeMap<String, Tensor<'static>>,
    what: &str,
) -> Result<Adapter> {
    let adapter = assembled(metadata, tensors).map_err(|detail| Error::corrupt(what, detail))?;
    adapter.check().map_err(|error| error.context(format!("making {what}")))?;
    Ok(adapter)
}

/// Writes the adapter to a file, which appears whole or not at all. It is written beside its place, synced
/// and renamed, so that a reader, a crash or a full disk never meets half of it.
///
/// # Errors
///
/// As [`to_bytes`]; [`ErrorKind::Io`](rehang_core::ErrorKind::Io).
pub fn save(adapter: &Adapter, path: impl AsRef<Path>) -> Result<()> {
    AtomicFile::write(path, &to_bytes(adapter)?)
}

/// Reads an adapter from a file.
///
/// # Errors
///
/// As [`from_bytes`]; [`ErrorKind::Io`](rehang_core::ErrorKind::Io).
pub fn load(path: impl AsRef<Path>) -> Result<Adapter> {
    let path = path.as_ref();
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    from_bytes(&bytes, &path.display().to_string())
}

/// Structure of a map without its numbers. Each layer is represented by whether it has a ReLU.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapOutline {
    input: InputScaling,
    branch: Vec<bool>,
    second: Option<SecondOutline>,
    mixer: Vec<bool>,
    skip: bool,
    kernel: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_kind: Option<PerKindOutline>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecondOutline {
    input: BranchInput,
    layers: Vec<bool>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PerKindOutline {
    gate: Box<MapOutline>,
    maps: Vec<MapOutline>,
}

impl MapOutline {
    fn from_map(map: &Map) -> Self {
        let relu = |layers: &[Dense]| layers.iter().map(|layer| layer.relu).collect();
        let second = map.second.as_ref();
        let per_kind = map.per_kind.as_ref();
        Self {
            input: map.input,
            branch: relu(&map.branch),
            second: second.map(|second| SecondOutline { input: second.input, layers: relu(&second.layers) }),
            mixer: relu(&map.mixer),
            skip: map.skip.is_some(),
            kernel: map.kernel.is_some(),
            per_kind: per_kind.map(|kinds| PerKindOutline {
                gate: Box::new(Self::from_map(&kinds.gate)),
                maps: kinds.maps.iter().map(Self::from_map).collect(),
            }),
        }
    }

    /// Number of the map's layers, those of its kinds included.
    fn layers(&self) -> usize {
        let second = self.second.as_ref().map_or(0, |second| second.layers.len());
        let kinds = self.per_kind.iter().flat_map(|kinds| kinds.maps.iter().chain([&*kinds.gate]));
        self.branch.len() + second + self.mixer.len() + kinds.map(Self::layers).sum::<usize>()
    }

    /// Builds the map, with no numbers in its parts yet.
    fn map(self) -> Map {
        let dense = |relu: bool| Dense { weight: Matrix::default(), bias: Vec::new(), relu };
        let layers = |relu: Vec<bool>| relu.into_iter().map(dense).collect();
        Map {
            input: self.input,
            branch: layers(self.branch),
            second: self.second.map(|of| SecondBranch { input: of.input, layers: layers(of.layers) }),
            mixer: layers(self.mixer),
            skip: self.skip.then(|| dense(false)),
            kernel: self.kernel.then(KernelExpansion::default),
            per_kind: self.per_kind.map(|kinds| {
                let maps = kinds.maps.into_iter().map(Self::map).collect();
                Box::new(PerKind { gate: kinds.gate.map(), maps })
            }),
        }
    }
}

/// Structure of an out-of-fold σ² without its numbers.
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
    CosFace,
}

/// Sketch of the pairs: the number of different rows, and the kept hashes, 16 hexadecimal digits each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SketchOutline {
    rows: usize,
    hashes: String,
}

impl SketchOutline {
    fn from_sketch(sketch: &RowSketch) -> Self {
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

/// All metadata of an adapter's file but the check sum.
fn describe(adapter: &Adapter) -> Result<Metadata> {
    let training = &adapter.training;
    let mut metadata = Metadata::from([
        ("rehang_version".into(), training.version.clone()),
        ("old_space".into(), json(&adapter.old)?),
        ("new_space".into(), json(&adapter.new)?),
        ("map".into(), json(&MapOutline::from_map(&adapter.map))?),
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
    if let Some(fusion) = &adapter.fusion {
        metadata.insert("fusion".into(), json(fusion)?);
    }
    if training.halves {
        metadata.insert(HALVES.0.into(), HALVES.1.into());
    }
    if let Some(sketch) = &training.pairs_sketch {
        metadata.insert("pairs_sketch".into(), json(&SketchOutline::from_sketch(sketch))?);
    }
    if let Uncertainty::OutOfFold(learned) = &adapter.uncertainty {
        let head = learned.head.as_ref().map(|head| match head.kind() {
            HeadKind::Softmax => HeadOutline::Softmax,
            HeadKind::ArcFace { .. } => HeadOutline::ArcFace,
            HeadKind::CosFace { .. } => HeadOutline::CosFace,
        });
        metadata
            .insert("out_of_fold".into(), json(&OutOfFoldOutline { neighbours: learned.neighbours, head })?);
    }
    Ok(metadata)
}

/// A part of an adapter that is one tensor of its file.
enum Part<'a> {
    Matrix(&'a mut Matrix),
    Vector(&'a mut Vec<f32>),
    Scalar(&'a mut f32),
}

/// Parts of a head that is being read. A [`Head`] is whole from the beginning, so its parts are filled in
/// apart from it.
struct HeadParts {
    weight: Matrix,
    bias: Vec<f32>,
    kind: HeadKind,
}

impl HeadParts {
    fn taken_from(adapter: &mut Adapter) -> Option<Self> {
        let Uncertainty::OutOfFold(learned) = &mut adapter.uncertainty else { return None };
        let head = learned.head.take()?;
        Some(Self { weight: head.weight().clone(), bias: head.bias().to_vec(), kind: head.kind() })
    }

    fn put_back(self, adapter: &mut Adapter) -> Result<()> {
        if let Uncertainty::OutOfFold(learned) = &mut adapter.uncertainty {
            learned.head = Some(Head::new(self.weight, Some(self.bias), self.kind)?);
        }
        Ok(())
    }
}

/// The parts of an adapter by name, in the order of its file. They are written from a whole adapter, and read
/// into one of which only the metadata are known.
#[derive(Default)]
struct Parts<'a>(Vec<(String, Part<'a>)>);

impl<'a> Parts<'a> {
    fn from_adapter(adapter: &'a mut Adapter, head: Option<&'a mut HeadParts>) -> Self {
        let mut parts = Self::default();
        parts.map("", &mut adapter.map);
        match &mut adapter.geometry {
            Geometry::Raw => {}
            Geometry::Sphere { fallback } => parts.vector("geometry.fallback", fallback),
            Geometry::MatchedNorms { raw, native } => {
                parts.vector("geometry.raw", raw);
                parts.vector("geometry.native", native);
            }
        }
        match &mut adapter.uncertainty {
            Uncertainty::Constant { variance } => parts.scalar("uncertainty.variance", variance),
            Uncertainty::Linear { weight, bias } => {
                parts.vector("uncertainty.weight", weight);
                parts.scalar("uncertainty.bias", bias);
            }
            Uncertainty::OutOfFold(learned) => {
                parts.matrix("uncertainty.anchors", &mut learned.anchors);
                parts.matrix("uncertainty.anchor_values", &mut learned.anchor_values);
                parts.vector("uncertainty.centre", &mut learned.centre);
                parts.scalar("uncertainty.intercept", &mut learned.intercept);
                parts.vector("uncertainty.coefficients", &mut learned.coefficients);
                parts.vector("uncertainty.means", &mut learned.means);
                parts.scalar("uncertainty.log_minimum", &mut learned.log_minimum);
                parts.scalar("uncertainty.log_maximum", &mut learned.log_maximum);
                if let Some(head) = head {
                    parts.matrix("uncertainty.head.weight", &mut head.weight);
                    parts.vector("uncertainty.head.bias", &mut head.bias);
                    if let HeadKind::ArcFace { scale, margin } | HeadKind::CosFace { scale, margin } =
                        &mut head.kind
                    {
                        parts.scalar("uncertainty.head.scale", scale);
                        parts.scalar("uncertainty.head.margin", margin);
                    }
                }
            }
        }
        if let Some(statistics) = &mut adapter.input_statistics {
            parts.vector("input.mean", &mut statistics.mean);
            parts.vector("input.standard_deviation", &mut statistics.standard_deviation);
            parts.scalar("input.mean_norm", &mut statistics.mean_norm);
        }
        parts
    }

    fn map(&mut self, of: &str, map: &'a mut Map) {
        self.layers(&format!("{of}branch"), &mut map.branch);
        if let Some(second) = &mut map.second {
            self.layers(&format!("{of}second"), &mut second.layers);
        }
        self.layers(&format!("{of}mixer"), &mut map.mixer);
        if let Some(skip) = &mut map.skip {
            self.layer(&format!("{of}skip"), skip);
        }
        if let Some(kernel) = &mut map.kernel {
            self.matrix(&format!("{of}kernel.centres"), &mut kernel.centres);
            self.matrix(&format!("{of}kernel.coefficients"), &mut kernel.coefficients);
            self.scalar(&format!("{of}kernel.gamma"), &mut kernel.gamma);
        }
        if let Some(kinds) = &mut map.per_kind {
            self.map(&format!("{of}gate."), &mut kinds.gate);
            for (kind, map) in kinds.maps.iter_mut().enumerate() {
                self.map(&format!("{of}kind.{kind}."), map);
            }
        }
    }

    fn layers(&mut self, name: &str, layers: &'a mut [Dense]) {
        for (index, layer) in layers.iter_mut().enumerate() {
            self.layer(&format!("{name}.{index}"), layer);
        }
    }

    fn layer(&mut self, name: &str, layer: &'a mut Dense) {
        self.matrix(&format!("{name}.weight"), &mut layer.weight);
        self.vector(&format!("{name}.bias"), &mut layer.bias);
    }

    fn matrix(&mut self, name: &str, matrix: &'a mut Matrix) {
        self.0.push((name.to_owned(), Part::Matrix(matrix)));
    }

    fn vector(&mut self, name: &str, vector: &'a mut Vec<f32>) {
        self.0.push((name.to_owned(), Part::Vector(vector)));
    }

    fn scalar(&mut self, name: &str, scalar: &'a mut f32) {
        self.0.push((name.to_owned(), Part::Scalar(scalar)));
    }
}

impl Part<'_> {
    fn tensor(&self, name: String) -> Tensor<'_> {
        let (shape, values) = match self {
            Self::Matrix(matrix) => (vec![matrix.rows(), matrix.columns()], matrix.as_slice()),
            Self::Vector(vector) => (vec![vector.len()], vector.as_slice()),
            Self::Scalar(scalar) => (vec![1], std::slice::from_ref(&**scalar)),
        };
        Tensor { name, shape, values: values.into() }
    }

    fn fill(self, tensor: Tensor<'_>) -> Result<(), Detail> {
        let Tensor { name, shape, values } = tensor;
        let axes = if matches!(self, Self::Matrix(_)) { 2 } else { 1 };
        if shape.len() != axes {
            return Err(format!("tensor {name:?} has shape {shape:?} where {axes} axes are needed"));
        }
        match self {
            Self::Matrix(matrix) => {
                *matrix = Matrix::new(shape[1], values.into_owned()).map_err(|error| error.to_string())?;
            }
            Self::Vector(vector) => *vector = values.into_owned(),
            Self::Scalar(scalar) => match *values {
                [value] => *scalar = value,
                _ => return Err(format!("tensor {name:?} has {} numbers where 1 is needed", values.len())),
            },
        }
        Ok(())
    }
}

/// Reads an adapter from the bytes of its file. Whether its numbers make an adapter is not checked yet.
fn read(bytes: &[u8]) -> Result<Adapter, Detail> {
    let (metadata, tensors) = tensors::read(bytes, &KIND)?;
    assembled(&metadata, tensors)
}

/// Builds an adapter from the metadata and the tensors of a file. Whether its numbers make an adapter is not
/// checked yet.
fn assembled(metadata: &Metadata, mut tensors: BTreeMap<String, Tensor<'static>>) -> Result<Adapter, Detail> {
    let (mut adapter, mut head) = outlined(metadata, &tensors)?;
    for (name, part) in Parts::from_adapter(&mut adapter, head.as_mut()).0 {
        part.fill(tensors.remove(&name).ok_or_else(|| format!("tensor {name:?} is missing"))?)?;
    }
    if let Some(name) = tensors.keys().next() {
        return Err(format!("tensor {name:?} belongs to no part of the adapter"));
    }
    if let Some(head) = head {
        head.put_back(&mut adapter).map_err(|error| error.to_string())?;
    }
    Ok(adapter)
}

/// Builds an adapter, and the head of its σ², as the metadata describe them. Their parts hold no numbers yet.
fn outlined(
    metadata: &Metadata,
    tensors: &BTreeMap<String, Tensor<'_>>,
) -> Result<(Adapter, Option<HeadParts>), Detail> {
    let outline: MapOutline = parse_json(metadata, "map")?;
    let count = outline.layers();
    if count > tensors.len() {
        return Err(format!("it holds {} tensors for the {count} layers of its map", tensors.len()));
    }
    let geometry = match text(metadata, "geometry")? {
        "raw" => Geometry::Raw,
        "sphere" => Geometry::Sphere { fallback: Vec::new() },
        "matched-norms" => Geometry::MatchedNorms { raw: Vec::new(), native: Vec::new() },
        other => return Err(format!("its geometry {other:?} is not known")),
    };
    let mut head = None;
    let uncertainty = match text(metadata, "uncertainty")? {
        "constant" => Uncertainty::Constant { variance: 0.0 },
        "linear" => Uncertainty::Linear { weight: Vec::new(), bias: 0.0 },
        "out-of-fold" => {
            let OutOfFoldOutline { neighbours, head: outline } = parse_json(metadata, "out_of_fold")?;
            head = outline.map(|kind| HeadParts {
                weight: Matrix::default(),
                bias: Vec::new(),
                kind: match kind {
                    HeadOutline::Softmax => HeadKind::Softmax,
                    HeadOutline::ArcFace => HeadKind::ArcFace { scale: 0.0, margin: 0.0 },
                    HeadOutline::CosFace => HeadKind::CosFace { scale: 0.0, margin: 0.0 },
                },
            });
            Uncertainty::OutOfFold(OutOfFold { neighbours, ..OutOfFold::default() })
        }
        other => return Err(format!("its uncertainty {other:?} is not known")),
    };
    let sketch = |_| parse_json::<SketchOutline>(metadata, "pairs_sketch")?.sketch();
    let training = Training {
        method: text(metadata, "method")?.into(),
        seed: parse(metadata, "seed")?,
        pairs: parse(metadata, "pairs")?,
        inputs: parse_json(metadata, "inputs")?,
        hyper_parameters: parse_json(metadata, "hyper_parameters")?,
        version: text(metadata, "rehang_version")?.into(),
        pairs_sketch: metadata.get("pairs_sketch").map(sketch).transpose()?,
        halves: is_halved(metadata),
    };
    let adapter = Adapter {
        old: parse_json(metadata, "old_space")?,
        new: parse_json(metadata, "new_space")?,
        map: outline.map(),
        geometry,
        uncertainty,
        // Files of a rehang that knew no handicap hold none.
        handicap: if metadata.contains_key("handicap") { parse(metadata, "handicap")? } else { 0.0 },
        fusion: metadata.get("fusion").map(|_| parse_json(metadata, "fusion")).transpose()?,
        input_statistics: tensors.contains_key("input.mean").then(InputStatistics::default),
        training,
    };
    Ok((adapter, head))
}
