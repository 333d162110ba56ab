//! What an encoder is trained on: images or vectors with a class each, who may see which of them, and in what form.
//!
//! | Part | Holds |
//! |---|---|
//! | [`Examples`], [`ExamplesSource`] | rows with a class each, out of image folders, arrays, CIFAR or vectors |
//! | [`Allocation`] | which rows the old and the new model are trained on, and which neither sees |
//! | [`Augmentation`], [`Augmenter`] | rows as numbers of the encoder, varied while it is trained |
//! | [`SamplerParameters`], [`Sampler`] | which rows make a batch |
//!
//! ```
//! use rehang::Matrix;
//! use rehang_train::examples::{
//!     Allocation, AllocationKind, AllocationParameters, Augmentation, Augmenter, Examples, Inputs, Normalisation,
//!     Sampler, SamplerParameters,
//! };
//!
//! // Forty vectors of four classes, as an encoder of ready-made features reads them.
//! let features = Matrix::from_fn(40, 3, |row, column| (row % 4 + column) as f32);
//! let labels: Vec<u32> = (0..40).map(|row| row % 4).collect();
//! let classes = ["ash", "birch", "fir", "oak"].map(str::to_string).to_vec();
//! let examples = Examples::new(Inputs::Features(features), labels, classes)?;
//!
//! // The old model is trained on half of the classes, the new one on all; a tenth of every class is for the test.
//! let parameters = AllocationParameters::new(AllocationKind::ExtendedClass, 0.5);
//! let allocation = Allocation::draw(&examples, &parameters)?;
//! assert_eq!((allocation.old.len(), allocation.new.len(), allocation.test.len()), (18, 36, 4));
//!
//! let normalisation = Normalisation::measured(&examples.inputs, &allocation.old)?;
//! let augmenter = Augmenter::new(Augmentation::default(), normalisation, &examples.inputs, 7)?;
//! let sampler = Sampler::new(&SamplerParameters::shuffled(6), &examples.labels, &allocation.old, 7)?;
//! let mut batch = Vec::new();
//! for rows in sampler.batches(0) {
//!     augmenter.batch(&examples.inputs, &rows, 0, 0, &mut batch);
//!     assert_eq!(batch.len(), rows.len() * 3);
//! }
//! # Ok::<(), rehang::Error>(())
//! ```
//!
//! # Same seed, same bytes
//!
//! Everything that is drawn here is a function of a seed, and of the epoch, the row and the view where it is drawn
//! while a model is trained; never of the number of threads, nor of what was drawn before.

mod allocation;
mod arrays;
mod augmentation;
mod cifar;
mod folder;
mod geometry;
mod normalisation;
// The very decoder of `rehang-encode`; depending on that crate would bring a runtime of models, tokenisers and HTTP along.
#[path = "../../../rehang-encode/src/onnx/image/picture.rs"]
mod picture;
mod sampler;
mod source;
#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rehang::check::expect_count;
use rehang::{Error, ErrorKind, Matrix, Result};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

pub use allocation::{Allocation, AllocationKind, AllocationParameters, ClassLists};
pub use augmentation::{Affine, Augmentation, Augmenter, Border, ColourJitter, ResizedCrop};
pub use normalisation::Normalisation;
pub(crate) use sampler::Sisters;
pub use sampler::{LastBatch, Sampler, SamplerParameters};
pub use source::{CifarLabels, ExamplesSource, ImageLayout};

/// Longest side of an image; anything above is a slip of the keyboard or damage.
pub(crate) const SIDE_MAX: usize = 1 << 14;

/// What an encoder is trained on or embeds: rows with a class each.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples {
    /// The rows themselves.
    pub inputs: Inputs,
    /// The class of every row, `[n]`, as a number in `0..classes.len()`.
    pub labels: Vec<u32>,
    /// What the classes are called at their source, in the order of their numbers.
    pub classes: Vec<String>,
    /// What could not be read and is left out. The caller has to say so, since training sees the rows alone.
    pub refused: Vec<Refusal>,
}

/// The rows of [`Examples`].
#[derive(Debug, Clone, PartialEq)]
pub enum Inputs {
    /// Images of one size.
    Images(Images),
    /// Vectors, `[n, d]`.
    Features(Matrix),
}

/// Images of one size, a byte a channel of a pixel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Pixels a row.
    pub width: usize,
    /// `[n, channels, height, width]`.
    pub pixels: Vec<u8>,
}

/// A file (or a folder) that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The path.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
}

impl Examples {
    /// Rows of which none was refused, checked as [`Examples::check`] does.
    ///
    /// # Errors
    ///
    /// As [`Examples::check`].
    pub fn new(inputs: Inputs, labels: Vec<u32>, classes: Vec<String>) -> Result<Self> {
        let examples = Self { inputs, labels, classes, refused: Vec::new() };
        examples.check()?;
        Ok(examples)
    }

    /// Reads rows from where the source says; see [`ExamplesSource`] for each kind.
    ///
    /// A single class is enough to embed; what training needs is checked by [`Examples::check_trainable`].
    ///
    /// # Errors
    ///
    /// [`rehang::ErrorKind::Io`], [`rehang::ErrorKind::Empty`] where not one row is left, [`rehang::ErrorKind::Corrupt`] for files that are
    /// not what they should be (an image in a folder is listed in `refused` instead), [`rehang::ErrorKind::CountMismatch`]
    /// where there is not one label a row, [`rehang::ErrorKind::NotFinite`] for vectors with NaN, and
    /// [`rehang::ErrorKind::InvalidOption`] or [`rehang::ErrorKind::MissingInput`] for a source that does not fit its files.
    pub fn read(source: &ExamplesSource) -> Result<Self> {
        let examples = source.read()?;
        examples.check()?;
        Ok(examples)
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The rows named, in that order, with the numbers of all classes as they are; what was refused is not carried
    /// along. A row may be named twice.
    ///
    /// # Panics
    ///
    /// For a row that is not there.
    #[must_use]
    pub fn select(&self, rows: &[usize]) -> Self {
        let inputs = match &self.inputs {
            Inputs::Images(images) => Inputs::Images(images.select(rows)),
            Inputs::Features(features) => Inputs::Features(features.select(rows)),
        };
        Self {
            inputs,
            labels: rows.iter().map(|&row| self.labels[row]).collect(),
            classes: self.classes.clone(),
            refused: Vec::new(),
        }
    }

    /// The rows of every class, increasing: `[classes]` lists.
    pub fn rows_by_class(&self) -> Vec<Vec<usize>> {
        let mut rows = vec![Vec::new(); self.classes.len()];
        for (row, &label) in self.labels.iter().enumerate() {
            rows[label as usize].push(row);
        }
        rows
    }

    /// Holds the fields against each other: sizes, counts, class numbers, finite numbers.
    ///
    /// # Errors
    ///
    /// [`rehang::ErrorKind::Empty`], [`rehang::ErrorKind::CountMismatch`], [`rehang::ErrorKind::NotFinite`]; [`rehang::ErrorKind::Corrupt`] for a
    /// class number without a class, a class that is named twice or images of no size.
    pub fn check(&self) -> Result<()> {
        match &self.inputs {
            Inputs::Images(images) => images.check()?,
            Inputs::Features(features) => features.check_finite("the features")?,
        }
        if self.is_empty() && self.inputs.is_empty() {
            return Err(Error::empty("the set of examples"));
        }
        expect_count("the examples", self.inputs.len(), "the labels", self.len())?;
        let mut names: Vec<&String> = self.classes.iter().collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::duplicate("the list of classes", twice[0]));
        }
        match self.labels.iter().position(|&label| label as usize >= self.classes.len()) {
            None => Ok(()),
            Some(row) => Err(Error::corrupt(
                "the labels",
                format!(
                    "row {row} is of class number {} and there are {} classes, counted from 0",
                    self.labels[row],
                    self.classes.len()
                ),
            )),
        }
    }

    /// Fails where classes cannot be learned from these rows, and otherwise says what is odd about them: classes of a
    /// single row. One sentence each; empty where nothing is odd.
    ///
    /// # Errors
    ///
    /// [`rehang::ErrorKind::Corrupt`] where fewer than two classes have rows.
    pub fn check_trainable(&self) -> Result<Vec<String>> {
        let counts: Vec<usize> = self.rows_by_class().iter().map(Vec::len).collect();
        let filled = counts.iter().filter(|&&count| count > 0).count();
        if filled < 2 {
            return Err(Error::corrupt(
                "the set of examples",
                format!(
                    "its {} rows are of {filled} class; training tells classes apart and needs at least two",
                    self.len()
                ),
            ));
        }
        let mut warnings = Vec::new();
        let single: Vec<&str> = (0..counts.len())
            .filter(|&class| counts[class] == 1)
            .map(|class| &*self.classes[class])
            .collect();
        if !single.is_empty() {
            warnings.push(format!(
                "{} classes have a single row ({}): they cannot be tested, and have no partner in a contrastive loss",
                single.len(),
                shown(&single)
            ));
        }
        Ok(warnings)
    }

    /// A 64-bit fingerprint of the rows, their classes and the classes' names, as 16 hexadecimal digits. Where the
    /// rows come from does not count.
    pub fn fingerprint(&self) -> String {
        let mut hasher = Xxh3::new();
        match &self.inputs {
            Inputs::Images(images) => {
                for side in [images.channels, images.height, images.width] {
                    hasher.update(&(side as u64).to_le_bytes());
                }
                hasher.update(&images.pixels);
            }
            Inputs::Features(features) => hasher.update(features.fingerprint().as_bytes()),
        }
        for label in &self.labels {
            hasher.update(&label.to_le_bytes());
        }
        for class in &self.classes {
            hasher.update(&(class.len() as u64).to_le_bytes());
            hasher.update(class.as_bytes());
        }
        format!("{:016x}", hasher.digest())
    }
}

impl Inputs {
    /// How many rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Images(images) => images.len(),
            Self::Features(features) => features.rows(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers a row has: channels × height × width, or coordinates.
    pub fn width(&self) -> usize {
        match self {
            Self::Images(images) => images.size(),
            Self::Features(features) => features.columns(),
        }
    }
}

impl Images {
    /// How many images.
    pub fn len(&self) -> usize {
        self.pixels.len() / self.size().max(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pixels.is_empty()
    }

    /// Bytes of one image: channels × height × width.
    pub fn size(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// The pixels of one image, `[channels, height, width]`.
    ///
    /// # Panics
    ///
    /// For a row that is not there.
    pub fn image(&self, row: usize) -> &[u8] {
        &self.pixels[row * self.size()..(row + 1) * self.size()]
    }

    /// The images named, in that order; one may be named twice.
    ///
    /// # Panics
    ///
    /// For a row that is not there.
    #[must_use]
    pub fn select(&self, rows: &[usize]) -> Self {
        let mut pixels = Vec::with_capacity(rows.len() * self.size());
        for &row in rows {
            pixels.extend_from_slice(self.image(row));
        }
        Self { pixels, ..*self }
    }

    fn check(&self) -> Result<()> {
        check_size([self.height, self.width], self.channels)?;
        if self.pixels.len().is_multiple_of(self.size()) {
            return Ok(());
        }
        Err(Error::corrupt(
            "the images",
            format!("{} bytes are no whole number of images of {} bytes", self.pixels.len(), self.size()),
        ))
    }
}

/// The size of a file in bytes; fails with `reason` where something else stands there.
fn expect_file(path: &Path, reason: &str) -> Result<u64> {
    let metadata = fs_err::metadata(path).map_err(|error| Error::io("read", path, &error))?;
    if metadata.is_file() {
        return Ok(metadata.len());
    }
    Err(ErrorKind::Io { action: "read", path: path.into(), reason: reason.into() }.into())
}

/// Fails for sides and channels that no image here has.
fn check_size([height, width]: [usize; 2], channels: usize) -> Result<()> {
    for (option, side) in [("the height of an image", height), ("the width of an image", width)] {
        if !(1..=SIDE_MAX).contains(&side) {
            return Err(Error::option(option, side, format!("a number from 1 to {SIDE_MAX}")));
        }
    }
    if !matches!(channels, 1 | 3) {
        return Err(Error::option("the channels of an image", channels, "1 for grey or 3 for colours"));
    }
    Ok(())
}

/// The first few of a list, for a message.
fn shown(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let mut text = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

/// What a generator draws; each purpose has streams of its own, so that no two draws are related.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    UnseenClasses = 1,
    TestRows,
    Classes,
    Rows,
    Batches,
    View,
    Sisters,
}

/// The generator of one draw: a function of its seed, its purpose and the numbers that name the draw.
fn generator(seed: u64, purpose: Purpose, draw: [u64; 2]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, number) in key.as_chunks_mut::<8>().0.iter_mut().zip([seed, purpose as u64, draw[0], draw[1]])
    {
        *bytes = number.to_le_bytes();
    }
    ChaCha8Rng::from_seed(key)
}
