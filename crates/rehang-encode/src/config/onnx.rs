//! `kind = "onnx"`, and the sources that a model reads.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::keys::number;

/// An ONNX model.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `model` | | the model, `.onnx`, with its weights inside or in files beside it | |
/// | `input` | | what sources are: a table with `kind = "image"`, `"text"` or `"vector"` and the keys of that kind | |
/// | `output` | the first | name of the output that holds the vectors | an output of the model |
/// | `batch` | 16 | items that the model runs on at once | from 1 |
/// | `threads` | the processor's cores | threads that the model runs on | from 1 |
/// | `root` | the folder of the configuration file | folder that the paths of sources are relative to, and stay in | a folder |
/// | `outside_root` | `false` | read sources that lie outside of `root` too: absolute paths, `../`, links | |
/// | `normalise` | `false` | scale vectors to length 1 | |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OnnxConfig {
    /// The model.
    pub model: PathBuf,
    /// Kind of the sources, with its keys.
    pub input: OnnxInput,
    /// Name of the output that holds the vectors.
    pub output: Option<String>,
    /// Items that the model runs on at once.
    #[serde(default = "number::<16, _>")]
    pub batch: usize,
    /// Threads that the model runs on.
    pub threads: Option<usize>,
    /// Folder that the paths of sources are relative to.
    pub root: Option<PathBuf>,
    /// Whether sources outside of that folder are read too.
    #[serde(default)]
    pub outside_root: bool,
    /// Whether vectors are scaled to length 1.
    #[serde(default)]
    pub normalise: bool,
}

/// Kind of the sources that a model reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum OnnxInput {
    /// Paths or `file://` addresses of images.
    Image(ImageInput),
    /// Texts.
    Text(TextInput),
    /// Vectors: a JSON array, or the path of a `.npy` file with one vector.
    Vector(VectorInput),
}

/// Vectors as sources; there is nothing to choose.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorInput {}

/// Images as sources. PNG, JPEG, WebP, GIF, TIFF and BMP are read, whatever their names end in; of several
/// frames the first. Images that are damaged, cut off or too large to decode in 1 GiB of memory are refused.
///
/// A pixel becomes `(value / 255 − mean) / std`, channel by channel.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `width`, `height` | | size of the model's image | 1 to 16384 |
/// | `channels` | 3 | 3 for colours (red, green, blue), 1 for grey | 1, 3 |
/// | `resize` | `"exact"` | `exact` stretches to the size; `shorter-side-crop` scales and cuts out the middle | |
/// | `shorter_side` | just enough | with `shorter-side-crop`, the shorter side before the cut | from `width` and `height` |
/// | `filter` | `"bilinear"` | how pixels are mixed when an image is scaled | `nearest`, `bilinear`, `bicubic`, `lanczos` |
/// | `mean` | `[0]` | what is taken off each channel | one number, or one a channel |
/// | `std` | `[1]` | what each channel is divided by | as `mean`; not 0 |
/// | `layout` | `"nchw"` | order of the model's image: channels first or last | `nchw`, `nhwc` |
/// | `invert` | `false` | turn light and dark around first | |
/// | `exif_orientation` | `false` | turn images as their orientation tags ask; those of TIFF files are followed in any case | |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ImageInput {
    /// Width of the model's image.
    pub width: usize,
    /// Height of the model's image.
    pub height: usize,
    /// 3 for colours, 1 for grey.
    #[serde(default = "number::<3, _>")]
    pub channels: usize,
    /// Way in which an image of another size is fitted.
    #[serde(default)]
    pub resize: ImageResize,
    /// The shorter side before the middle is cut out.
    pub shorter_side: Option<usize>,
    /// Filter that mixes pixels when an image is scaled.
    #[serde(default)]
    pub filter: ImageFilter,
    /// Number that is taken off each channel: one for all, or one a channel.
    #[serde(default)]
    pub mean: Vec<f32>,
    /// Number that each channel is divided by: one for all, or one a channel.
    #[serde(default)]
    pub std: Vec<f32>,
    /// Order of the model's image.
    #[serde(default)]
    pub layout: ImageLayout,
    /// Whether light and dark are turned around first.
    #[serde(default)]
    pub invert: bool,
    /// Whether images are turned as their orientation tags ask. `None` turns none, as `false` does, but
    /// reports that there are tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exif_orientation: Option<bool>,
}

/// Way in which an image of another size is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageResize {
    /// Stretched to the size.
    #[default]
    Exact,
    /// Scaled with its proportions, and the middle cut out.
    ShorterSideCrop,
}

/// Filter that mixes pixels when an image is scaled; each filter widens with the step when an image becomes
/// smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFilter {
    /// Value of the nearest pixel.
    Nearest,
    /// Triangle over the nearest pixels.
    #[default]
    Bilinear,
    /// Catmull and Rom's cubic.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
}

/// Order of a model's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageLayout {
    /// `[batch, channels, height, width]`.
    #[default]
    Nchw,
    /// `[batch, height, width, channels]`.
    Nhwc,
}

/// Texts as sources.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `tokenizer` | | the model's `tokenizer.json` | |
/// | `max_tokens` | the tokeniser's own limit, or else 512 | tokens that are read of a text, special ones included | from 1 to the positions that the model has |
/// | `pooling` | `"mean"` | how the tokens' states become one vector | `mean`, `cls`, `last`, `none` |
/// | `prefix` | none | text in front of every source, such as `"passage: "` | |
/// | `query_prefix` | as `prefix` | the same for queries, such as `"query: "` | |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TextInput {
    /// The model's `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// Tokens that are read of a text.
    pub max_tokens: Option<usize>,
    /// Way in which the tokens' states become one vector.
    #[serde(default)]
    pub pooling: Pooling,
    /// Text in front of every source.
    #[serde(default)]
    pub prefix: String,
    /// Text in front of every query, where it is another one;
    /// [`EncoderConfig::for_queries`](super::EncoderConfig::for_queries) puts it into the place of `prefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prefix: Option<String>,
}

/// Way in which the states of a text's tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Mean of the states, padding left out.
    #[default]
    Mean,
    /// State of the first token.
    Cls,
    /// State of the last token.
    Last,
    /// No pooling: the model gives one vector a text itself.
    None,
}
