//! Sources of examples, as a configuration names them.

use std::path::PathBuf;

use rehang_core::Result;
use serde::{Deserialize, Serialize};

use super::arrays::{self, ArrayLayout};
use super::cifar::{self, CifarLabels};
use super::dataset::Examples;
use super::folder;

/// Source that examples come from.
///
/// | `kind` | Keys | Rows |
/// |---|---|---|
/// | `folder` | `path`, `size`, `channels` (3) | the PNG and JPEG files of one folder a class |
/// | `arrays` | `images`, `labels`, `size`, `layout`, `scale`, `invert` (`false`) | images in one array |
/// | `cifar` | `paths`, `set` | the binary files of CIFAR-10 or CIFAR-100 |
/// | `features` | `vectors`, `labels` | vectors of a file, for an encoder of ready-made features |
///
/// Paths are relative to the working folder.
///
/// ```
/// use rehang_train::examples::ExamplesSource;
///
/// let source: ExamplesSource = toml::from_str(
///     "kind = 'arrays'\nimages = 'characters.npz#x_train'\nlabels = 'characters.npz#y_train'\nscale = 255.0",
/// )?;
/// assert!(matches!(source, ExamplesSource::Arrays { scale: Some(255.0), invert: false, .. }));
/// assert!(toml::from_str::<ExamplesSource>("kind = 'features'\nvectors = 'a.npy'\nlabel = 'b.npy'").is_err());
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ExamplesSource {
    /// Image files in one folder a class.
    ///
    /// Every folder in `path` is a class of that name; classes are numbered in the order of their names.
    /// Files that end in `.png`, `.jpg` or `.jpeg` are read, from the folders inside a class too; other
    /// files, and whatever has a name that begins with a dot, are passed over. An image is made grey or
    /// coloured, scaled until its shorter side fits `size`, and its middle is cut out, as by the encoder's
    /// `resize = "shorter-side-crop"`. Rows go by class, then by path. A file that cannot be read as an image
    /// (it is damaged, cut off, or too large to decode and scale in 1 GiB of memory), and a class without
    /// one, is listed in [`Examples::refused`].
    Folder {
        /// Folder of folders.
        path: PathBuf,
        /// Height and width that images get.
        size: [usize; 2],
        /// Number of channels: 3 for colours, 1 for grey.
        #[serde(default = "colours")]
        channels: usize,
    },
    /// Images in one array, labels in another.
    ///
    /// Both are `.npy` files, or `.npz` archives in which an entry may be named behind a `#`:
    /// `digits.npz#x_train`. Without a name, the only entry is taken, or else the first of `images`, `image`,
    /// `x_train`, `x`, `data`, `arr_0` (`labels`, `label`, `y_train`, `y`, `target`, `arr_1`) that is there.
    /// Labels may also stand in any other file that [`rehang_files::read_labels`] reads. They are whole
    /// numbers, not negative, and numbered in their order, or text, numbered in the order of the alphabet.
    Arrays {
        /// File of the images: `[n, height, width]`, `[n, height, width, channels]` or
        /// `[n, channels, height, width]`; or `[n, height·width]` with `size`.
        images: PathBuf,
        /// File of the labels, `[n]`.
        labels: PathBuf,
        /// Height and width of grey images that stand in the array as flat rows; for these only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<[usize; 2]>,
        /// Place of the channels in a four-dimensional array; found by itself unless both places could be it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        layout: Option<ArrayLayout>,
        /// Factor of a pixel, which becomes `value · scale`, rounded, and must then lie in 0 to 255. 1 for
        /// integers unless it is given; floating-point images need it: 255 for values from 0 to 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scale: Option<f64>,
        /// Whether light and dark are turned around, after scaling.
        #[serde(default)]
        invert: bool,
    },
    /// The binary version of CIFAR-10 or CIFAR-100 (Krizhevsky 2009): 32 × 32 pixels of three channels.
    Cifar {
        /// Files, for example `data_batch_1.bin` to `data_batch_5.bin`; rows go in this order.
        paths: Vec<PathBuf>,
        /// Set of CIFAR, with the labels of it that count.
        set: CifarLabels,
    },
    /// Vectors of any file that [`rehang_files::read_matrix`] reads, or of an entry of a `.npz` archive,
    /// which must be finite.
    Features {
        /// File of the vectors, `[n, d]`.
        vectors: PathBuf,
        /// File of the labels, `[n]`, as for arrays.
        labels: PathBuf,
    },
}

impl ExamplesSource {
    /// Lists the files and folders that the source names, with their keys in a configuration.
    pub(crate) fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        match self {
            Self::Folder { path, .. } => vec![("data.path", path)],
            Self::Arrays { images, labels, .. } => vec![("data.images", images), ("data.labels", labels)],
            Self::Cifar { paths, .. } => paths.iter_mut().map(|path| ("data.paths", path)).collect(),
            Self::Features { vectors, labels } => vec![("data.vectors", vectors), ("data.labels", labels)],
        }
    }

    /// Reads the rows, before they are checked as a whole.
    pub(super) fn read(&self) -> Result<Examples> {
        match self {
            Self::Folder { path, size, channels } => folder::read(path, *size, *channels),
            Self::Arrays { images, labels, size, layout, scale, invert } => {
                arrays::read_images(images, labels, *size, *layout, *scale, *invert)
            }
            Self::Cifar { paths, set } => cifar::read(paths, *set),
            Self::Features { vectors, labels } => arrays::read_features(vectors, labels),
        }
    }
}

impl Examples {
    /// Reads rows from where the source says; see [`ExamplesSource`] for each kind.
    ///
    /// A single class is enough to embed; what training needs is checked by [`Examples::check_trainable`].
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`], [`rehang_core::ErrorKind::Empty`] where not one row is left,
    /// [`rehang_core::ErrorKind::Corrupt`] for files that are not what they should be (an image in a folder is
    /// listed in `refused` instead), [`rehang_core::ErrorKind::CountMismatch`] where there is not one label a row,
    /// [`rehang_core::ErrorKind::NotFinite`] for vectors with NaN, and [`rehang_core::ErrorKind::InvalidOption`] or
    /// [`rehang_core::ErrorKind::MissingInput`] for a source that does not fit its files.
    pub fn read(source: &ExamplesSource) -> Result<Self> {
        let examples = source.read()?;
        examples.check()?;
        Ok(examples)
    }
}

fn colours() -> usize {
    3
}
