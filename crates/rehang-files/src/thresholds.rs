//! Thresholds of σ² for a gallery that is too large to sort: the exact value at which a budget of its worst
//! items ends.
//!
//! A pipeline does not need a permutation of a billion items, only the σ² above which items are re-embedded.
//! σ² is read twice, a partition at a time. The first pass counts items by the upper 16 bits of their σ². The
//! second pass looks at the bucket in which a budget ends, and counts its items by the lower 16 bits, which
//! leaves one value. Nothing is estimated and nothing is sorted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;

use crate::atomic::AtomicFile;
use crate::folders::{Folder, LocalFolder, expect_partitions};
use crate::paths::{expect_apart, is_same_file};
use crate::source::{VectorSource, joined_names};
use crate::values::read_f32_column;
use rehang_core::{Error, ErrorKind, Progress, Result};

/// Number of buckets of a pass: one for every value of half the bits of a number.
const BUCKETS: usize = 1 << 16;

/// Budget of items that come first: a share of all items, `10%`, or a number, `50000`.
///
/// ```
/// use rehang_files::thresholds::Budget;
///
/// assert_eq!("10%".parse::<Budget>()?.count(25)?, 3);
/// assert_eq!("7".parse::<Budget>()?.count(25)?, 7);
/// assert!("0%".parse::<Budget>().is_err() && "0.1".parse::<Budget>().is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Percent of the items, above 0 and at most 100. A fraction of an item counts as a whole one.
    Percent(f64),
    /// Number of items, 1 or more.
    Items(u64),
}

impl Budget {
    /// Number of items, out of `items`, that the budget allows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a budget of more items than there are.
    pub fn count(self, items: u64) -> Result<u64> {
        match self {
            Self::Percent(percent) => Ok(((percent / 100.0 * items as f64).ceil() as u64).clamp(1, items)),
            Self::Items(first) if first <= items => Ok(first),
            Self::Items(_) => {
                Err(Error::option("first", self, format!("at most the {items} items there are")))
            }
        }
    }
}

impl FromStr for Budget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let first = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse().ok().map(Self::Percent),
            None => text.parse().ok().map(Self::Items),
        };
        first
            .filter(|first| match *first {
                Self::Percent(percent) => percent > 0.0 && percent <= 100.0,
                Self::Items(items) => items > 0,
            })
            .ok_or_else(|| {
                Error::option("first", text, "a share such as 10% or a number of items such as 50000")
            })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Items(items) => write!(f, "{items}"),
        }
    }
}

/// Files of σ², budgets, and the file for the thresholds.
#[derive(Debug, Clone)]
pub struct ThresholdFiles {
    /// Sources of the gallery's σ²: files, and folders of partitions, one below the other.
    pub sigma: Vec<SigmaSource>,
    /// Budgets; one or more.
    pub first: Vec<Budget>,
    /// JSON file for the thresholds.
    pub output: PathBuf,
}

/// Source of the σ² of a gallery, or of a part of it.
#[derive(Debug, Clone)]
pub enum SigmaSource {
    /// A single file.
    File(VectorSource),
    /// The partitions of a folder, and the column that holds σ² where it has to be named.
    Folder(Arc<dyn Folder>, Option<String>),
}

/// A folder of this machine, where one stands at the source's path; otherwise a file.
impl From<VectorSource> for SigmaSource {
    fn from(source: VectorSource) -> Self {
        if source.is_file() && source.path.is_dir() {
            Self::Folder(Arc::new(LocalFolder::new(source.path)), source.column)
        } else {
            Self::File(source)
        }
    }
}

impl fmt::Display for SigmaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(source) => source.fmt(f),
            Self::Folder(folder, _) => folder.address().display().fmt(f),
        }
    }
}

/// File of σ² that is open only while it is read.
struct Part<'a> {
    source: &'a SigmaSource,
    /// Name of the file in its folder.
    name: PathBuf,
}

impl Part<'_> {
    fn address(&self) -> PathBuf {
        match self.source {
            SigmaSource::File(source) => source.path.clone(),
            SigmaSource::Folder(folder, _) => folder.address().join(&self.name),
        }
    }

    fn open(&self) -> Result<VectorSource> {
        match self.source {
            SigmaSource::File(source) => Ok(source.clone()),
            SigmaSource::Folder(folder, column) => {
                let mut source = VectorSource::fetched(
                    self.address(),
                    folder.fetch_f32_column(&self.name, column.as_deref())?,
                );
                source.column.clone_from(column);
                Ok(source)
            }
        }
    }
}

/// Thresholds of all budgets.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Thresholds {
    /// Format of the document: `rehang-cuts`.
    pub format: &'static str,
    /// Version of the format: 1.
    pub version: u32,
    /// Number of items in the gallery.
    pub items: u64,
    /// One threshold for each budget, in the order in which the budgets were given.
    pub cuts: Vec<Threshold>,
}

/// Threshold of one budget. Its items are those whose σ² is above the threshold, and the first `ties_taken`
/// of those whose σ² is the threshold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Threshold {
    /// The budget, as it was given.
    pub first: String,
    /// Number of items within the budget.
    pub items: u64,
    /// σ² of the last item within the budget: a number of 32 bits, kept in 64 so that its text is exact for
    /// readers of either.
    pub threshold: f64,
    /// Number of items whose σ² is above the threshold.
    pub above: u64,
    /// Number of items whose σ² is the threshold.
    pub ties: u64,
    /// Number of ties within the budget, 1 or more. They are the first in the order of partitions and rows,
    /// as [`Order::by_scores`](rehang_core::order::Order::by_scores) sorts ties.
    pub ties_taken: u64,
}

/// Finds where budgets end in the order `sigma`, worst first, exactly, in two passes, and writes the
/// thresholds. Memory is bounded by σ² of the largest partition and 512 KiB a budget.
///
/// ```
/// use rehang_files::thresholds::{ThresholdFiles, find_thresholds};
/// use rehang_files::{VectorSource, write_f32};
///
/// let folder = tempfile::tempdir()?;
/// std::fs::create_dir(folder.path().join("sigma"))?;
/// write_f32(folder.path().join("sigma/a.npy"), &[0.5, 0.1, 0.9])?;
/// write_f32(folder.path().join("sigma/b.npy"), &[0.5, 0.3])?;
/// let files = ThresholdFiles {
///     sigma: vec![VectorSource::path(folder.path().join("sigma")).into()],
///     first: vec!["40%".parse()?],
///     output: folder.path().join("cuts.json"),
/// };
/// let found = &find_thresholds(&files, &rehang_core::Progress::default())?.cuts[0];
/// // 0.9 and the first of the two at 0.5.
/// assert_eq!((found.items, found.threshold, found.above, found.ties, found.ties_taken), (2, 0.5, 1, 2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`crate::read_f32_column`] and [`expect_partitions`]; [`ErrorKind::NotFinite`] for a σ² that cannot be
/// sorted; [`ErrorKind::InvalidOption`] without a budget, for a budget of more items than there are, and for
/// an output that is an input; [`ErrorKind::ChangedMeanwhile`] where the second pass reads other numbers than
/// the first.
pub fn find_thresholds(files: &ThresholdFiles, progress: &Progress) -> Result<Thresholds> {
    if files.first.is_empty() {
        return Err(Error::option("first", "nothing", "one budget or more"));
    }
    let mut parts = Vec::new();
    for source in &files.sigma {
        match source {
            SigmaSource::File(_) => parts.push(Part { source, name: PathBuf::new() }),
            SigmaSource::Folder(folder, _) => {
                let names = expect_partitions(&**folder)?;
                parts.extend(names.into_iter().map(|name| Part { source, name }));
            }
        }
    }
    if parts.is_empty() {
        return Err(Error::missing("sigma", "an order by σ²"));
    }
    // Only a file of the output's name can be the output. Asking the disk about each of a hundred thousand
    // partitions would be slow.
    let name = files.output.file_name();
    let inputs: Vec<_> = parts
        .iter()
        .map(Part::address)
        .filter(|path| path.file_name() == name || is_same_file(path, &files.output))
        .map(|path| ("sigma", path))
        .collect();
    expect_apart(&[("output", Some(&files.output))], &inputs)?;
    // The output is tried before the first pass, which may take an hour.
    drop(AtomicFile::create(&files.output)?);

    let mut upper = vec![0_u64; BUCKETS];
    pass(&parts, "counting", progress, |key| upper[key >> 16] += 1)?;
    let items = upper.iter().sum();
    let mut budgets = Vec::new();
    for first in &files.first {
        let count = first.count(items)?;
        let (bucket, before) = place(&upper, count);
        budgets.push((first, count, bucket, before));
    }
    let mut lower: Vec<Option<Vec<u64>>> = vec![None; BUCKETS];
    for &(_, _, bucket, _) in &budgets {
        lower[bucket] = Some(vec![0; BUCKETS]);
    }
    let mut again = vec![0_u64; BUCKETS];
    pass(&parts, "refining", progress, |key| {
        again[key >> 16] += 1;
        if let Some(counts) = &mut lower[key >> 16] {
            counts[key & 0xffff] += 1;
        }
    })?;
    if again != upper {
        let detail = "it was written to between the two passes; run this again when it is complete";
        return Err(Error::changed_meanwhile(joined_names(&files.sigma), detail));
    }
    let mut thresholds = Vec::new();
    for (first, count, bucket, before) in budgets {
        let counts = lower[bucket].as_deref().unwrap_or_default();
        let (low, before_within) = place(counts, count - before);
        let above = before + before_within;
        thresholds.push(Threshold {
            first: first.to_string(),
            items: count,
            threshold: f64::from(number(bucket << 16 | low)),
            above,
            ties: counts[low],
            ties_taken: count - above,
        });
    }
    let thresholds = Thresholds { format: "rehang-cuts", version: 1, items, cuts: thresholds };
    let text = serde_json::to_string_pretty(&thresholds)
        .map_err(|error| Error::corrupt(files.output.display(), error))?;
    AtomicFile::write(&files.output, format!("{text}\n"))?;
    Ok(thresholds)
}

/// Calls `count` with the key of every σ².
fn pass(parts: &[Part], stage: &str, progress: &Progress, mut count: impl FnMut(usize)) -> Result<()> {
    progress.begin(stage, "partitions", parts.len() as u64);
    for part in parts {
        progress.check()?;
        let source = part.open()?;
        match read_f32_column(&source) {
            Ok(values) => {
                for (row, value) in values.into_iter().enumerate() {
                    if !value.is_finite() {
                        let what = format!("σ² in {source}");
                        return Err(ErrorKind::NotFinite { what, row, column: 0 }.into());
                    }
                    count(key(value));
                }
            }
            // Spark writes partitions without a row.
            Err(error) if matches!(error.kind(), ErrorKind::Empty { .. }) && parts.len() > 1 => {}
            Err(error) => return Err(error),
        }
        progress.advance(1);
    }
    Ok(())
}

/// Finds the bucket that holds the `rank`-th item (from 1), counted from the largest, and the number of items
/// in larger buckets.
fn place(counts: &[u64], rank: u64) -> (usize, u64) {
    let mut before = 0;
    for (bucket, &count) in counts.iter().enumerate().rev() {
        if before + count >= rank {
            return (bucket, before);
        }
        before += count;
    }
    unreachable!("a rank is at most the number of items")
}

/// Turns a finite number into a key; keys are in the order of the numbers, and −0 counts as 0.
fn key(value: f32) -> usize {
    let bits = (value + 0.0).to_bits();
    (if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }) as usize
}

/// Returns the number that has a key.
fn number(key: usize) -> f32 {
    let key = key as u32;
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_numbers_do_and_lead_back_to_them() {
        let numbers =
            [f32::MIN, -2.5, -1.0, -f32::MIN_POSITIVE, 0.0, 1e-45, 1e-9, 1.0, 1.0 + f32::EPSILON, f32::MAX];
        assert!(numbers.windows(2).all(|two| key(two[0]) < key(two[1])));
        assert!(numbers.iter().all(|&value| number(key(value)) == value));
        assert_eq!(key(-0.0), key(0.0));
    }
}
