//! Images, vectors and labels of `.npy` files and `.npz` archives.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use rehang_core::check::expect_count;
use rehang_core::{Error, Result};
use rehang_files::{
    Array, ArrayNumbers, LabelValues, VectorSource, array_from_bytes, read_array, read_label_values,
};
use serde::{Deserialize, Serialize};
use zip::ZipArchive;

use super::dataset::{ExampleInputs, Examples, Images, check_size, shown};

/// Place of the channels among the sides of an array of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrayLayout {
    /// `[n, channels, height, width]`.
    Nchw,
    /// `[n, height, width, channels]`.
    Nhwc,
}

/// Entries of an archive that are taken for images (or vectors) and for labels where none is named.
const IMAGE_ENTRIES: [&str; 6] = ["images", "image", "x_train", "x", "data", "arr_0"];
const VECTOR_ENTRIES: [&str; 6] = ["vectors", "features", "x_train", "x", "data", "arr_0"];
const LABEL_ENTRIES: [&str; 6] = ["labels", "label", "y_train", "y", "target", "arr_1"];

/// Deflate makes at most 1032 bytes out of one; a claim above that is damage or an attack on the memory.
const GROWTH_MAX: u64 = 1040;

/// Reads images and labels; see [`super::ExamplesSource::Arrays`].
pub(super) fn read_images(
    images: &Path,
    labels: &Path,
    size: Option<[usize; 2]>,
    layout: Option<ArrayLayout>,
    scale: Option<f64>,
    invert: bool,
) -> Result<Examples> {
    if let Some(scale) = scale.filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
        return Err(Error::option("scale", scale, "a number above 0"));
    }
    let what = images.display();
    let Array { mut shape, numbers } = array(images, &IMAGE_ENTRIES)?;
    if let Some([height, width]) = size {
        match *shape {
            [rows, pixels] if height.checked_mul(width) == Some(pixels) => shape = vec![rows, height, width],
            _ => {
                let wrong = format!(
                    "its shape is {shape:?}; with size = [{height}, {width}] it must be [n, {height} · {width}], grey \
                     images as flat rows"
                );
                return Err(Error::corrupt(what, wrong));
            }
        }
    }
    let (rows, size, channels, layout) = image_shape(&shape, layout, &what)?;
    check_size(size, channels).map_err(|error| error.context(what.to_string()))?;
    let image_bytes = size[0] * size[1] * channels;
    let mut pixels = bytes(numbers, scale, image_bytes, &what)?;
    if invert {
        for pixel in &mut pixels {
            *pixel = 255 - *pixel;
        }
    }
    if layout == ArrayLayout::Nhwc && channels > 1 {
        let mixed = pixels;
        pixels = Vec::with_capacity(mixed.len());
        for image in mixed.chunks_exact(image_bytes) {
            pixels
                .extend((0..channels).flat_map(|channel| image[channel..].iter().step_by(channels).copied()));
        }
    }
    let (labels, classes) = read_classes(labels, rows, images)?;
    let images = Images { channels, height: size[0], width: size[1], pixels };
    Ok(Examples { inputs: ExampleInputs::Images(images), labels, classes, refused: Vec::new() })
}

/// Reads vectors and labels; see [`super::ExamplesSource::Features`].
pub(super) fn read_features(vectors: &Path, labels: &Path) -> Result<Examples> {
    let source = source(vectors)?;
    let features = if is_archive(&source.path) {
        entry(&source, &VECTOR_ENTRIES)?.into_matrix(vectors.display())?
    } else {
        rehang_files::read_matrix(&source)?
    };
    features.check_finite(&vectors.display().to_string())?;
    let (labels, classes) = read_classes(labels, features.rows(), vectors)?;
    Ok(Examples { inputs: ExampleInputs::Features(features), labels, classes, refused: Vec::new() })
}

/// Makes class numbers and names out of whole numbers: classes are numbered in the order of theirs.
pub(super) fn numbered(labels: &[i64], what: &dyn Display) -> Result<(Vec<u32>, Vec<String>)> {
    if let Some(row) = labels.iter().position(|&label| label < 0) {
        return Err(Error::corrupt(
            what,
            format!(
                "the label in row {row} is {}; every row needs a class, and classes are not negative (rows count from 0)",
                labels[row]
            ),
        ));
    }
    let (labels, classes) = in_order(labels);
    Ok((labels, classes.iter().map(ToString::to_string).collect()))
}

/// Gives class numbers in the order of the values, and the value of every class.
pub(super) fn in_order<T: Ord + Clone>(values: &[T]) -> (Vec<u32>, Vec<T>) {
    let mut classes = values.to_vec();
    classes.sort_unstable();
    classes.dedup();
    // Every value is among the classes, so the search always finds it.
    let labels = values.iter().map(|value| classes.binary_search(value).unwrap_or(0) as u32).collect();
    (labels, classes)
}

/// Reads the labels of `rows` rows of another file.
fn read_classes(path: &Path, rows: usize, inputs: &Path) -> Result<(Vec<u32>, Vec<String>)> {
    let source = source(path)?;
    let values = if is_archive(&source.path) {
        let fractions =
            || Error::corrupt(path.display(), "labels are whole numbers, and these are fractions");
        let Array { shape, numbers } = entry(&source, &LABEL_ENTRIES)?;
        if !matches!(shape[..], [_] | [_, 1]) {
            return Err(Error::corrupt(
                path.display(),
                format!("its shape is {shape:?}; one label a row is needed, [rows]"),
            ));
        }
        LabelValues::Numbers(match numbers {
            ArrayNumbers::Bytes(bytes) => bytes.into_iter().map(i64::from).collect(),
            ArrayNumbers::Integers(integers) => integers,
            ArrayNumbers::Floats(_) => return Err(fractions()),
        })
    } else {
        read_label_values(&source)?
    };
    let (labels, classes) = match values {
        LabelValues::Numbers(numbers) => numbered(&numbers, &path.display())?,
        LabelValues::Texts(texts) => in_order(&texts),
    };
    expect_count(inputs.display(), rows, path.display().to_string(), labels.len())?;
    Ok((labels, classes))
}

/// Finds rows, height and width, channels, and where the channels stand.
fn image_shape(
    shape: &[usize],
    layout: Option<ArrayLayout>,
    what: &dyn Display,
) -> Result<(usize, [usize; 2], usize, ArrayLayout)> {
    let wrong = |detail: &str| Error::corrupt(what, format!("its shape is {shape:?}; {detail}"));
    if shape.first() == Some(&0) {
        return Err(Error::empty(what));
    }
    match *shape {
        [rows, height, width] => Ok((rows, [height, width], 1, ArrayLayout::Nchw)),
        [rows, first, second, third] => {
            let could_be = |channels: usize| matches!(channels, 1 | 3);
            let layout = match (layout, could_be(first), could_be(third)) {
                (Some(layout), ..) => layout,
                (None, true, false) => ArrayLayout::Nchw,
                (None, false, true) => ArrayLayout::Nhwc,
                (None, true, true) => {
                    return Err(wrong(
                        "channels may be first or last; say which by layout = \"nchw\" or \"nhwc\"",
                    ));
                }
                (None, false, false) => {
                    return Err(wrong("neither the second nor the last side is 1 or 3 channels"));
                }
            };
            Ok(match layout {
                ArrayLayout::Nchw => (rows, [second, third], first, layout),
                ArrayLayout::Nhwc => (rows, [first, second], third, layout),
            })
        }
        [_, _] => Err(wrong("images as flat rows need their size = [height, width]")),
        _ => Err(wrong("images are [n, height, width] or have channels as a fourth side")),
    }
}

/// Turns numbers into bytes, each `value · scale`, rounded.
fn bytes(
    numbers: ArrayNumbers,
    scale: Option<f64>,
    image_bytes: usize,
    what: &dyn Display,
) -> Result<Vec<u8>> {
    let byte = |(at, value): (usize, f64)| {
        let scaled = (value * scale.unwrap_or(1.0)).round();
        if (0.0..=255.0).contains(&scaled) {
            return Ok(scaled as u8);
        }
        Err(Error::corrupt(
            what,
            format!(
                "image {} holds {value}, which scaled by {} is outside of 0 to 255; set another scale (rows count from 0)",
                at / image_bytes,
                scale.unwrap_or(1.0)
            ),
        ))
    };
    match numbers {
        ArrayNumbers::Bytes(bytes) if scale.is_none_or(|scale| scale == 1.0) => Ok(bytes),
        ArrayNumbers::Bytes(bytes) => bytes.into_iter().map(f64::from).enumerate().map(byte).collect(),
        ArrayNumbers::Integers(integers) => {
            integers.into_iter().map(|value| value as f64).enumerate().map(byte).collect()
        }
        ArrayNumbers::Floats(_) if scale.is_none() => Err(Error::missing(
            "scale (255 where values go from 0 to 1)",
            format!("the array of floating-point images {what}"),
        )),
        ArrayNumbers::Floats(floats) => floats.into_iter().map(f64::from).enumerate().map(byte).collect(),
    }
}

/// Reads the array of a `.npy` file or of an entry of an archive.
fn array(path: &Path, names: &[&str]) -> Result<Array> {
    let source = source(path)?;
    if is_archive(&source.path) {
        return entry(&source, names);
    }
    if let Some(column) = &source.column {
        return Err(Error::option("an input", column, "no #NAME behind a file that is no .npz archive"));
    }
    read_array(&source.path)
}

/// Splits a path from the entry that may be named behind a `#`. A path that is not text cannot name one.
fn source(path: &Path) -> Result<VectorSource> {
    path.to_str().map_or_else(|| Ok(VectorSource::path(path)), VectorSource::parse)
}

fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npz"))
}

/// Reads an entry of an archive: the one that is named, or the only one, or the first of `names` that is
/// there.
fn entry(source: &VectorSource, names: &[&str]) -> Result<Array> {
    let path = &source.path;
    let damaged = |error: &dyn Display| Error::corrupt(path.display(), format!("as a .npz archive: {error}"));
    let bytes_of_file = expect_file(path, "it is no file; give a .npz archive")?;
    let file = fs_err::File::open(path).map_err(|error| Error::io("read", path, &error))?;
    let mut archive = ZipArchive::new(std::io::BufReader::new(file)).map_err(|error| damaged(&error))?;
    let mut there: Vec<String> = Vec::new();
    for name in archive.file_names() {
        there.push(name.map_err(|error| damaged(&error))?.into_owned());
    }
    let stem = |name: &str| name.strip_suffix(".npy").unwrap_or(name).to_owned();
    let chosen = match (&source.column, there.as_slice()) {
        (Some(wanted), _) => there.iter().find(|name| stem(name) == stem(wanted)),
        (None, [only]) => Some(only),
        (None, _) => names.iter().find_map(|&wanted| there.iter().find(|name| stem(name) == wanted)),
    };
    let Some(chosen) = chosen else {
        let stems: Vec<String> = there.iter().map(|name| stem(name)).collect();
        let stems: Vec<&str> = stems.iter().map(String::as_str).collect();
        return Err(Error::not_found(
            "array",
            source.column.as_deref().unwrap_or(names[0]),
            format!("{}, which holds {}; name one behind a #", path.display(), shown(&stems)),
        ));
    };
    let mut entry = archive.by_name(chosen).map_err(|error| damaged(&error))?;
    let claimed = entry.size();
    let packed = entry.compressed_size().min(bytes_of_file);
    if claimed > packed.saturating_mul(GROWTH_MAX).saturating_add(GROWTH_MAX) {
        return Err(damaged(&format!("the entry {chosen} claims {claimed} bytes, more than it can hold")));
    }
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(claimed as usize).is_err() {
        return Err(damaged(&format!("the {claimed} bytes of the entry {chosen} do not fit into memory")));
    }
    let taken = (&mut entry).take(claimed.saturating_add(1)).read_to_end(&mut bytes);
    taken.map_err(|error| damaged(&format!("the entry {chosen} is damaged: {error}")))?;
    drop(entry);
    array_from_bytes(&bytes, format!("{}#{}", path.display(), stem(chosen)))
}

/// Gives the size of a file in bytes; fails with `reason` where something else stands there.
pub(super) fn expect_file(path: &Path, reason: &str) -> Result<u64> {
    let metadata = fs_err::metadata(path).map_err(|error| Error::io("read", path, &error))?;
    if metadata.is_file() {
        return Ok(metadata.len());
    }
    Err(Error::refused("read", path, reason))
}
