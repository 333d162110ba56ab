//! Tensors in `.safetensors`: 8 bytes of header length, a JSON header, then the numbers of all tensors.

use std::io::Read;

use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;

use crate::element::{Element, Meaning};
use crate::given::Scalars;
use crate::opened::open;
use crate::raw::{Layout, RawRows};
use crate::source::VectorSource;
use rehang_core::{Error, Result};

/// Longest header in bytes that is read; the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Length of the header that is written, with the 8 bytes in front. It has room for any shape, and the
/// numbers begin aligned.
const HEADER_BYTES: usize = 192;

/// Name of the tensor that is written.
const TENSOR: &str = "vectors";

/// Opens the named tensor, or else the only one whose number of axes is among `dimensions`.
fn open_tensor(source: &VectorSource, dimensions: &[usize], wanted: &str) -> Result<(RawRows, Vec<usize>)> {
    let path = source.file();
    let mut opened = open(path)?;
    if opened.bytes == 0 {
        return Err(opened.empty());
    }
    let corrupt = |detail: String| Error::corrupt(source, detail);
    let mut prefix = [0; 8];
    opened
        .file
        .read_exact(&mut prefix)
        .map_err(|_| corrupt("it is no safetensors file (shorter than 8 bytes)".into()))?;
    let length = u64::from_le_bytes(prefix);
    if length > HEADER_BYTES_MAX || length > opened.bytes - 8 {
        return Err(corrupt(format!(
            "its header claims {length} bytes and {} follow: it is truncated, or no safetensors file",
            opened.bytes - 8
        )));
    }
    let mut json = vec![0; length as usize];
    opened.file.read_exact(&mut json).map_err(|error| Error::io("read", path, &error))?;
    let metadata: Metadata = serde_json::from_slice(&json)
        .map_err(|error| corrupt(format!("its header is no safetensors header ({error})")))?;
    let names = metadata.offset_keys();
    let listed = || {
        let tensor_text = |name: &String| {
            metadata.info(name).map(|info| format!("{name} {:?} of {}", info.shape, info.dtype))
        };
        let tensors: Vec<String> = names.iter().filter_map(tensor_text).collect();
        if tensors.is_empty() { "no tensors".into() } else { tensors.join(", ") }
    };
    let name = if let Some(name) = &source.column {
        name
    } else {
        let mut fitting = names
            .iter()
            .filter(|name| metadata.info(name).is_some_and(|info| dimensions.contains(&info.shape.len())));
        match (fitting.next(), fitting.next()) {
            (Some(name), None) => name,
            (None, _) => return Err(corrupt(format!("there is no {wanted}; it holds {}", listed()))),
            (Some(_), Some(_)) => {
                return Err(corrupt(format!(
                    "there are several {wanted}s; name one as {}#TENSOR: it holds {}",
                    path.display(),
                    listed()
                )));
            }
        }
    };
    let Some(info) = metadata.info(name) else {
        return Err(corrupt(format!("there is no tensor {name:?}; it holds {}", listed())));
    };
    if !dimensions.contains(&info.shape.len()) {
        return Err(corrupt(format!(
            "tensor {name:?} has shape {:?} where a {wanted} is needed",
            info.shape
        )));
    }
    let meaning = match info.dtype {
        Dtype::F16 | Dtype::F32 | Dtype::F64 => Some(Meaning::Float),
        Dtype::BF16 => Some(Meaning::BrainFloat),
        Dtype::BOOL => Some(Meaning::Boolean),
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => Some(Meaning::Unsigned),
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => Some(Meaning::Signed),
        _ => None,
    };
    let element = meaning.and_then(|meaning| Element::new(meaning, info.dtype.bitsize() / 8, false));
    let Some(element) = element else {
        return Err(corrupt(format!(
            "tensor {name:?} is of type {}; save it as F32 or an integer type",
            info.dtype
        )));
    };
    // Parsing the header has checked that sizes fit their shapes and follow each other without gaps.
    let (begin, _) = info.data_offsets;
    let (needed, held) = (metadata.data_len() as u64, opened.bytes - 8 - length);
    if needed != held {
        let problem = if held < needed { "it is truncated" } else { "there is more in the file" };
        return Err(corrupt(format!("its tensors need {needed} bytes and {held} are there: {problem}")));
    }
    let shape = info.shape.clone();
    let rows = shape[0];
    let columns = shape.get(1).copied().unwrap_or(1);
    if columns == 0 {
        return Err(corrupt(format!("the rows of tensor {name:?} have no coordinates")));
    }
    if rows == 0 {
        return Err(opened.empty());
    }
    let offset = 8 + length + begin as u64;
    let block = RawRows::new(path.to_owned(), opened.file, offset, (rows, columns), element, Layout::Rows);
    Ok((block, shape))
}

/// Opens a two-dimensional tensor as rows.
pub(super) fn open_rows(source: &VectorSource) -> Result<RawRows> {
    open_tensor(source, &[2], "two-dimensional tensor").map(|(rows, _)| rows)
}

/// Reads a one-dimensional tensor, or a named one of shape `[n, 1]`.
pub(super) fn read_scalars(source: &VectorSource) -> Result<Scalars> {
    // A file with one matrix and one column beside it has one answer, so only a named tensor may be [n, 1].
    let dimensions: &[usize] = if source.column.is_some() { &[1, 2] } else { &[1] };
    let (rows, shape) = open_tensor(source, dimensions, "one-dimensional tensor")?;
    if rows.columns != 1 {
        let detail = format!("its shape is {shape:?}; one value a row is needed, [rows]");
        return Err(Error::corrupt(source, detail));
    }
    rows.scalars()
}

/// Makes the header of a file with one tensor, `vectors`.
pub(super) fn header(rows: u64, width: usize) -> Vec<u8> {
    let bytes = rows * width as u64 * 4;
    let json =
        format!(r#"{{"{TENSOR}":{{"dtype":"F32","shape":[{rows},{width}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut header = ((HEADER_BYTES - 8) as u64).to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    // The format allows spaces behind the header, which makes its length known in advance.
    header.resize(HEADER_BYTES, b' ');
    header
}
