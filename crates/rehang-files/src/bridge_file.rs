//! Bridges as files: safetensors with metadata (`docs/formats.md`, "Bridge file").

use std::path::Path;

use rehang_core::adapter::{Dense, InputScaling, Map, Training};
use rehang_core::{Bridge, Error, Matrix, Result};

use crate::atomic::AtomicFile;
use crate::tensors::{self, Detail, FileKind, Metadata, Tensor, json, parse, parse_json, text};

/// Format and newest version that bridge files state; files of every older version are read too.
const KIND: FileKind = FileKind { format: "rehang-bridge", thing: "a bridge", version: 1 };
const WEIGHT: &str = "weight";
const BIAS: &str = "bias";

/// Serialises the bridge to the bytes of its file. The same bridge gives the same bytes.
///
/// # Errors
///
/// As [`Bridge::check`]: a bridge that could not be applied is not written.
pub fn to_bytes(bridge: &Bridge) -> Result<Vec<u8>> {
    bridge.check()?;
    let (training, layer) = (&bridge.training, &bridge.map.mixer[0]);
    let metadata = Metadata::from([
        ("rehang_version".into(), training.version.clone()),
        ("old_space".into(), json(&bridge.old)?),
        ("new_space".into(), json(&bridge.new)?),
        ("input".into(), json(&bridge.map.input)?),
        ("share".into(), bridge.share.to_string()),
        ("length".into(), bridge.length.to_string()),
        ("method".into(), training.method.clone()),
        ("seed".into(), training.seed.to_string()),
        ("pairs".into(), training.pairs.to_string()),
        ("inputs".into(), json(&training.inputs)?),
        ("hyper_parameters".into(), json(&training.hyper_parameters)?),
    ]);
    let weight = Tensor {
        name: WEIGHT.into(),
        shape: vec![layer.weight.rows(), layer.weight.columns()],
        values: layer.weight.as_slice().into(),
    };
    let bias =
        Tensor { name: BIAS.into(), shape: vec![layer.bias.len()], values: layer.bias.as_slice().into() };
    tensors::write(&KIND, metadata, &[weight, bias])
}

/// Fingerprint of the whole bridge, as 16 hexadecimal digits. Equal files have equal fingerprints.
///
/// # Errors
///
/// As [`to_bytes`].
pub fn fingerprint(bridge: &Bridge) -> Result<String> {
    Ok(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&to_bytes(bridge)?)))
}

/// Reads the bridge from the bytes of a file; `what` names the file in errors.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](rehang_core::ErrorKind::Corrupt) for anything that is not a whole, undamaged bridge file
/// of a version known to this rehang. As [`Bridge::check`] for numbers that do not make a bridge.
pub fn from_bytes(bytes: &[u8], what: &str) -> Result<Bridge> {
    let bridge = read(bytes).map_err(|detail| Error::corrupt(what, detail))?;
    bridge.check().map_err(|error| error.context(format!("reading {what}")))?;
    Ok(bridge)
}

/// Writes the bridge to a file, which appears whole or not at all.
///
/// # Errors
///
/// As [`to_bytes`]; [`ErrorKind::Io`](rehang_core::ErrorKind::Io).
pub fn save(bridge: &Bridge, path: impl AsRef<Path>) -> Result<()> {
    AtomicFile::write(path, &to_bytes(bridge)?)
}

/// Reads a bridge from a file.
///
/// # Errors
///
/// As [`from_bytes`]; [`ErrorKind::Io`](rehang_core::ErrorKind::Io).
pub fn load(path: impl AsRef<Path>) -> Result<Bridge> {
    let path = path.as_ref();
    let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
    from_bytes(&bytes, &path.display().to_string())
}

fn read(bytes: &[u8]) -> Result<Bridge, Detail> {
    let (metadata, mut tensors) = tensors::read(bytes, &KIND)?;
    let mut tensor = |name: &str, axes: usize| {
        let tensor = tensors.remove(name).ok_or_else(|| format!("tensor {name:?} is missing"))?;
        if tensor.shape.len() != axes {
            return Err(format!("tensor {name:?} has shape {:?} where {axes} axes are needed", tensor.shape));
        }
        Ok(tensor)
    };
    let (weight, bias) = (tensor(WEIGHT, 2)?, tensor(BIAS, 1)?);
    if let Some(name) = tensors.keys().next() {
        return Err(format!("tensor {name:?} belongs to no part of a bridge"));
    }
    let weight =
        Matrix::new(weight.shape[1], weight.values.into_owned()).map_err(|error| error.to_string())?;
    let input: InputScaling = parse_json(&metadata, "input")?;
    let layer = Dense { weight, bias: bias.values.into_owned(), relu: false };
    Ok(Bridge {
        old: parse_json(&metadata, "old_space")?,
        new: parse_json(&metadata, "new_space")?,
        map: Map::from_layers(input, vec![layer]),
        share: parse(&metadata, "share")?,
        length: parse(&metadata, "length")?,
        training: Training {
            method: text(&metadata, "method")?.into(),
            seed: parse(&metadata, "seed")?,
            pairs: parse(&metadata, "pairs")?,
            inputs: parse_json(&metadata, "inputs")?,
            hyper_parameters: parse_json(&metadata, "hyper_parameters")?,
            version: text(&metadata, "rehang_version")?.into(),
            pairs_sketch: None,
            halves: false,
        },
    })
}
