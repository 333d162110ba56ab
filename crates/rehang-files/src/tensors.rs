//! Files of named tensors in rehang's own format: safetensors with metadata and a check sum. Adapters and
//! encoders are such files.
//!
//! The metadata hold `format`, `format_version` and `checksum`, and whatever else a kind of file needs. All
//! tensors are F32, with one exception: where the metadata say `precision` `f16`, tensors of two axes are
//! F16. The same contents give the same bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::f16;
use rehang_core::{Error, Result};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;

/// Kind of a file of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// Format that the file's metadata state, such as `rehang-adapter`.
    pub format: &'static str,
    /// Name of the kind for people: "an adapter".
    pub thing: &'static str,
    /// Newest version of the format; files of every older version are read too.
    pub version: u32,
}

/// Metadata of a file, by key.
pub type Metadata = BTreeMap<String, String>;

/// Key and value of the metadata in a file whose tensors of two axes are F16.
pub const HALVES: (&str, &str) = ("precision", "f16");

/// Sentence about what is wrong with a file. The caller adds which file.
pub type Detail = String;

/// A named tensor: its shape and its numbers, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor<'a> {
    /// Name of the tensor, unique within its file.
    pub name: String,
    /// Length of every axis.
    pub shape: Vec<usize>,
    /// Numbers of the tensor, as many as its shape says.
    pub values: Cow<'a, [f32]>,
}

/// Serialises tensors and metadata to the bytes of a file. Format, version and check sum are added to
/// `metadata`.
///
/// ```
/// use rehang_files::tensors::{FileKind, Metadata, Tensor, read, write};
///
/// let kind = FileKind { format: "example", thing: "an example", version: 1 };
/// let tensor = Tensor { name: "t".into(), shape: vec![2], values: vec![1.0, 2.0].into() };
/// let bytes = write(&kind, Metadata::new(), &[tensor.clone()])?;
/// let (metadata, tensors) = read(&bytes, &kind).unwrap();
/// assert_eq!((metadata["format"].as_str(), &tensors["t"]), ("example", &tensor));
/// // A changed byte is noticed, whichever it is.
/// let mut damaged = bytes.clone();
/// *damaged.last_mut().unwrap() ^= 1;
/// assert!(read(&damaged, &kind).unwrap_err().contains("check sum"));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// In a file of [`HALVES`], the numbers of tensors of two axes have to be exact in half precision. Others are
/// rounded, and the file's check sum then does not match.
///
/// # Errors
///
/// None that contents could cause.
pub fn write(kind: &FileKind, mut metadata: Metadata, tensors: &[Tensor<'_>]) -> Result<Vec<u8>> {
    metadata.insert("format".into(), kind.format.into());
    metadata.insert("format_version".into(), kind.version.to_string());
    metadata.insert("checksum".into(), checksum(&metadata, tensors.iter()));
    container(&metadata, tensors)
}

/// Reads the metadata and the tensors of a file, and checks its format, version and check sum.
///
/// # Errors
///
/// A sentence for anything that is not a whole, undamaged file of this kind in a version known here.
pub fn read(bytes: &[u8], kind: &FileKind) -> Result<(Metadata, BTreeMap<String, Tensor<'static>>), Detail> {
    let (_, header) = SafeTensors::read_metadata(bytes)
        .map_err(|error| format!("it is no safetensors file, or is truncated ({error})"))?;
    let metadata: Metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    if metadata.get("format").map(String::as_str) != Some(kind.format) {
        return Err(format!("it is a safetensors file but not {} of rehang", kind.thing));
    }
    // The version is compared before anything else, since nothing is known here of a later version's changes.
    let version: u32 = parse(&metadata, "format_version")?;
    if version == 0 || version > kind.version {
        return Err(format!(
            "it has format version {version} and this rehang reads up to {}; update rehang",
            kind.version
        ));
    }
    let tensors = read_tensors(bytes, is_halved(&metadata))?;
    let (written, computed) = (text(&metadata, "checksum")?, checksum(&metadata, tensors.values()));
    if written != computed {
        return Err(format!(
            "its check sum is {computed} where {written} was written: some bytes have changed"
        ));
    }
    Ok((metadata, tensors))
}

/// Reads the tensors of any safetensors file, whatever its metadata; all have to be F32.
///
/// PyTorch's BatchNorm counts its batches in an I64 tensor `….num_batches_tracked`. Nothing here reads these
/// tensors, so they are passed over.
///
/// # Errors
///
/// A sentence for damaged files and tensors of another type.
pub fn plain(bytes: &[u8]) -> Result<BTreeMap<String, Tensor<'static>>, Detail> {
    read_tensors(bytes, false)
}

/// Whether the metadata say that tensors of two axes are F16.
pub(crate) fn is_halved(metadata: &Metadata) -> bool {
    metadata.get(HALVES.0).is_some_and(|precision| precision == HALVES.1)
}

/// Number type of a tensor with so many axes.
fn dtype(axes: usize, halves: bool) -> Dtype {
    if halves && axes == 2 { Dtype::F16 } else { Dtype::F32 }
}

/// Reads the tensors of a file, each of which must have its [`dtype`].
fn read_tensors(bytes: &[u8], halves: bool) -> Result<BTreeMap<String, Tensor<'static>>, Detail> {
    let container = SafeTensors::deserialize(bytes).map_err(|error| format!("it is damaged ({error})"))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in container.iter() {
        if view.dtype() == Dtype::I64 && name.ends_with("num_batches_tracked") {
            continue;
        }
        let needed = dtype(view.shape().len(), halves);
        if view.dtype() != needed {
            return Err(format!("tensor {name:?} is of type {:?} where {needed:?} is needed", view.dtype()));
        }
        let values: Vec<f32> = match needed {
            Dtype::F16 => {
                view.data().as_chunks().0.iter().map(|&two| f16::from_le_bytes(two).to_f32()).collect()
            }
            _ => view.data().as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect(),
        };
        let tensor = Tensor { name: name.into(), shape: view.shape().to_vec(), values: values.into() };
        tensors.insert(name.into(), tensor);
    }
    Ok(tensors)
}

/// Removes a tensor from those of a file and returns its numbers, which must be `count`.
///
/// # Errors
///
/// A sentence where the tensor is missing or has another count.
pub fn take(
    tensors: &mut BTreeMap<String, Tensor<'static>>,
    name: &str,
    count: usize,
) -> Result<Vec<f32>, Detail> {
    let tensor = tensors.remove(name).ok_or_else(|| format!("tensor {name:?} is missing"))?;
    if tensor.values.len() != count {
        return Err(format!("tensor {name:?} has {} numbers where {count} are needed", tensor.values.len()));
    }
    Ok(tensor.values.into_owned())
}

/// Serialises a value of the metadata to JSON.
///
/// # Errors
///
/// An error for values that JSON cannot hold.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::corrupt("metadata", error))
}

/// Returns a value of the metadata as it is written.
///
/// # Errors
///
/// A sentence where the value is missing.
pub fn text<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a str, Detail> {
    metadata.get(key).map(String::as_str).ok_or_else(|| format!("metadata {key:?} is missing"))
}

/// Parses a value of the metadata that is written in plain text.
///
/// # Errors
///
/// A sentence where the value is missing or cannot be parsed.
pub fn parse<T: std::str::FromStr>(metadata: &Metadata, key: &str) -> Result<T, Detail> {
    let text = text(metadata, key)?;
    text.parse().map_err(|_| format!("metadata {key:?} cannot be {text:?}"))
}

/// Parses a value of the metadata that is written as JSON.
///
/// # Errors
///
/// A sentence where the value is missing or cannot be parsed.
pub fn parse_json<T: DeserializeOwned>(metadata: &Metadata, key: &str) -> Result<T, Detail> {
    serde_json::from_str(text(metadata, key)?)
        .map_err(|error| format!("metadata {key:?} is damaged: {error}"))
}

/// Check sum over everything else in the file: metadata in the order of keys, then tensors in the order of
/// names. Every part is preceded by its length, so that no two different files are hashed alike.
fn checksum<'a, 'b: 'a>(metadata: &Metadata, tensors: impl Iterator<Item = &'a Tensor<'b>>) -> String {
    let mut hasher = Xxh3::new();
    let text = |hasher: &mut Xxh3, text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "checksum") {
        text(&mut hasher, key);
        text(&mut hasher, value);
    }
    let mut by_name: Vec<&Tensor<'_>> = tensors.collect();
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

/// Entry of a tensor in the header of a safetensors file.
#[derive(Serialize)]
struct TensorEntry<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data_offsets: [usize; 2],
}

/// Serialises a safetensors file. The library's own writer keeps metadata in a hash map, whose order changes
/// from run to run. The container is eight bytes, a JSON object and the numbers, so it is written here in a
/// fixed order.
fn container(metadata: &Metadata, tensors: &[Tensor<'_>]) -> Result<Vec<u8>> {
    let mut header = format!("{{\"__metadata__\":{}", json(metadata)?);
    let mut offset = 0;
    let halves = is_halved(metadata);
    for tensor in tensors {
        let dtype = dtype(tensor.shape.len(), halves);
        let end = offset + tensor.values.len() * dtype.bitsize() / 8;
        let entry = TensorEntry { dtype, shape: &tensor.shape, data_offsets: [offset, end] };
        header += &[",", &json(&tensor.name)?, ":", &json(&entry)?].concat();
        offset = end;
    }
    header.push('}');
    // Spaces fill the header so that the numbers begin at a multiple of eight, as the format recommends.
    let padding = header.len().next_multiple_of(8) - header.len();
    header.push_str(&" ".repeat(padding));
    let mut bytes = Vec::with_capacity(8 + header.len() + offset);
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    for tensor in tensors {
        match dtype(tensor.shape.len(), halves) {
            Dtype::F16 => {
                bytes.extend(tensor.values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
            }
            _ => bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes())),
        }
    }
    Ok(bytes)
}
