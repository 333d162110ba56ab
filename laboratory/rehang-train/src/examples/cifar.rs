//! The binary version of CIFAR-10 and CIFAR-100: labels of a byte each, then 3 × 32 × 32 bytes, image after
//! image.

use std::path::PathBuf;

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::arrays::{expect_file, numbered};
use super::dataset::{ExampleInputs, Examples, Images};

/// Set of CIFAR, with its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CifarLabels {
    /// The ten classes of CIFAR-10.
    #[serde(rename = "cifar-10")]
    Ten,
    /// The hundred classes of CIFAR-100.
    #[serde(rename = "cifar-100")]
    HundredFine,
    /// The twenty groups of CIFAR-100's classes, called `group 0` to `group 19`.
    #[serde(rename = "cifar-100-coarse")]
    HundredCoarse,
}

const SIDE: usize = 32;
const IMAGE_BYTES: usize = 3 * SIDE * SIDE;

/// Reads the images of some files; see [`super::ExamplesSource::Cifar`].
pub(super) fn read(paths: &[PathBuf], set: CifarLabels) -> Result<Examples> {
    if paths.is_empty() {
        return Err(Error::missing("paths", "a source of kind \"cifar\""));
    }
    // Numbers of a set: bytes of labels in front of an image, which of them counts, and how many classes
    // there are.
    let (label_bytes, wanted, classes) = match set {
        CifarLabels::Ten => (1, 0, 10),
        CifarLabels::HundredFine => (2, 1, 100),
        CifarLabels::HundredCoarse => (2, 0, 20),
    };
    let record = label_bytes + IMAGE_BYTES;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for path in paths {
        if expect_file(path, "it is no file; give the .bin files themselves")? == 0 {
            return Err(Error::empty(path.display()));
        }
        let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
        if !bytes.len().is_multiple_of(record) {
            return Err(Error::corrupt(
                path.display(),
                format!(
                    "its {} bytes are no whole number of records of {record} ({label_bytes} for labels, {IMAGE_BYTES} \
                     for the image): it is truncated, or of the other CIFAR set",
                    bytes.len()
                ),
            ));
        }
        for (index, record) in bytes.chunks_exact(record).enumerate() {
            let label = record[wanted];
            if label >= classes {
                return Err(Error::corrupt(
                    path.display(),
                    format!(
                        "image {index} has the label {label}, and labels of this set go from 0 to {}: it is damaged, or \
                         of the other CIFAR set",
                        classes - 1
                    ),
                ));
            }
            labels.push(i64::from(label));
            pixels.extend_from_slice(&record[label_bytes..]);
        }
    }
    let (labels, mut classes) = numbered(&labels, &paths[0].display())?;
    if set == CifarLabels::HundredCoarse {
        // Old and new classes are matched by name, and a group of CIFAR-100 is none of its classes.
        for class in &mut classes {
            *class = format!("group {class}");
        }
    }
    let images = Images { channels: 3, height: SIDE, width: SIDE, pixels };
    Ok(Examples { inputs: ExampleInputs::Images(images), labels, classes, refused: Vec::new() })
}
