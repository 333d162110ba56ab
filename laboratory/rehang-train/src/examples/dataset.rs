//! Rows with a class each: images of one size, or vectors.

use rehang_core::check::expect_count;
use rehang_core::{Error, Matrix, Result};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

/// Longest side of an image; a longer one is a slip of the keyboard or damage.
pub(crate) const SIDE_MAX: usize = 1 << 14;

/// Examples that an encoder is trained on or embeds: rows with a class each.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples {
    /// The rows themselves.
    pub inputs: ExampleInputs,
    /// Class of every row, `[n]`, as a number in `0..classes.len()`.
    pub labels: Vec<u32>,
    /// Names of the classes at their source, in the order of their numbers.
    pub classes: Vec<String>,
    /// Files that could not be read and are left out. The caller has to say so, since training sees the rows
    /// alone.
    pub refused: Vec<Refusal>,
}

/// The rows of [`Examples`].
#[derive(Debug, Clone, PartialEq)]
pub enum ExampleInputs {
    /// Images of one size.
    Images(Images),
    /// Vectors, `[n, d]`.
    Features(Matrix),
}

/// Images of one size, a byte a channel of a pixel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// Number of channels: 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// Number of rows of pixels.
    pub height: usize,
    /// Number of pixels a row.
    pub width: usize,
    /// Bytes of all pixels, `[n, channels, height, width]`.
    pub pixels: Vec<u8>,
}

/// File (or folder) that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The path.
    pub what: String,
    /// Reason why it was left out.
    pub why: String,
}

impl Examples {
    /// Takes rows of which none was refused, checked as [`Examples::check`] does.
    ///
    /// # Errors
    ///
    /// As [`Examples::check`].
    pub fn new(inputs: ExampleInputs, labels: Vec<u32>, classes: Vec<String>) -> Result<Self> {
        let examples = Self { inputs, labels, classes, refused: Vec::new() };
        examples.check()?;
        Ok(examples)
    }

    /// Counts the rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Takes the rows named, in that order, with the numbers of all classes as they are; what was refused is
    /// not carried along. A row may be named twice.
    ///
    /// # Panics
    ///
    /// For a row that is not there.
    #[must_use]
    pub fn select(&self, rows: &[usize]) -> Self {
        let inputs = match &self.inputs {
            ExampleInputs::Images(images) => ExampleInputs::Images(images.select(rows)),
            ExampleInputs::Features(features) => ExampleInputs::Features(features.select(rows)),
        };
        Self {
            inputs,
            labels: rows.iter().map(|&row| self.labels[row]).collect(),
            classes: self.classes.clone(),
            refused: Vec::new(),
        }
    }

    /// Lists the rows of every class, increasing: `[classes]` lists.
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
    /// [`rehang_core::ErrorKind::Empty`], [`rehang_core::ErrorKind::CountMismatch`], [`rehang_core::ErrorKind::NotFinite`];
    /// [`rehang_core::ErrorKind::Corrupt`] for a class number without a class, a class that is named twice or
    /// images of no size.
    pub fn check(&self) -> Result<()> {
        match &self.inputs {
            ExampleInputs::Images(images) => images.check()?,
            ExampleInputs::Features(features) => features.check_finite("the features")?,
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

    /// Fails where classes cannot be learned from these rows, and otherwise says what is odd about them:
    /// classes of a single row. One sentence each; empty where nothing is odd.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Corrupt`] where fewer than two classes have rows.
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

    /// Computes a 64-bit fingerprint of the rows, their classes and the classes' names, as 16 hexadecimal
    /// digits. Where the rows come from does not count.
    pub fn fingerprint(&self) -> String {
        let mut hasher = Xxh3::new();
        match &self.inputs {
            ExampleInputs::Images(images) => {
                for side in [images.channels, images.height, images.width] {
                    hasher.update(&(side as u64).to_le_bytes());
                }
                hasher.update(&images.pixels);
            }
            ExampleInputs::Features(features) => hasher.update(features.fingerprint().as_bytes()),
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

impl ExampleInputs {
    /// Counts the rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Images(images) => images.len(),
            Self::Features(features) => features.rows(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts the numbers that a row has: channels × height × width, or coordinates.
    pub fn width(&self) -> usize {
        match self {
            Self::Images(images) => images.size(),
            Self::Features(features) => features.columns(),
        }
    }
}

impl Images {
    /// Counts the images.
    pub fn len(&self) -> usize {
        self.pixels.len() / self.size().max(1)
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.pixels.is_empty()
    }

    /// Counts the bytes of one image: channels × height × width.
    pub fn size(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Gives the pixels of one image, `[channels, height, width]`.
    ///
    /// # Panics
    ///
    /// For a row that is not there.
    pub fn image(&self, row: usize) -> &[u8] {
        &self.pixels[row * self.size()..(row + 1) * self.size()]
    }

    /// Takes the images named, in that order; an image may be named twice.
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

/// Fails for sides and channels that no image here has.
pub(super) fn check_size([height, width]: [usize; 2], channels: usize) -> Result<()> {
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

/// Writes the first few of a list, for a message.
pub(super) fn shown(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let mut text = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}
