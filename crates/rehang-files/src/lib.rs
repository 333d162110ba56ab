//! Files of rehang, and the places they lie in: vectors, labels, ids, orders and adapters, in and out.
//!
//! This crate knows every file format and no metric: it builds the data of the core and measures nothing.
//!
//! | Extension | Vectors | One value a row (labels, σ², orders, ids) |
//! |---|---|---|
//! | `.npy` | read and written | read; `f32` and `int64` written |
//! | `.parquet`, `.pq` | read and written, with ids | read |
//! | `.fvecs` | read and written | read (`f32`) |
//! | `.bvecs`, `.ivecs` | read | read (integers) |
//! | `.safetensors` | read and written | read |
//! | `.txt`, `.tsv`, `.csv`, `.ids` | no | one a line |
//! | `.jsonl` | no | ids: field `_id`, or else `id`; labels: field `label`, or else `labels` |
//!
//! A column of a Parquet file and a tensor of a safetensors file are named behind a `#`: `gallery.parquet#embedding`.
//! The name may be left out where there is one answer only. The exact rules stand in `docs/formats.md`.
//!
//! Sizes that a header claims are held against the length of the file before anything is allocated. Outputs appear
//! whole or not at all, see [`AtomicFile`]. Files that are larger than memory are for [`stream`].

pub mod adapter_file;
pub mod adapter_network;
mod atomic;
pub mod cuts;
mod element;
pub mod folders;
mod given;
mod inputs;
pub mod join;
pub mod lists;
mod npy;
pub mod onnx;
mod parquet;
pub mod partitions;
pub mod qrels;
mod raw;
mod safetensors;
pub mod stream;
pub mod tensors;
mod text;
pub mod transform;
mod vecs;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fs_err::File;

use crate::folders::Fetched;
use rehang::{Error, ErrorKind, Labels, Matrix, Result};

pub use atomic::AtomicFile;
pub use given::{Given, GivenRows, Scalars};
pub use inputs::{
    HeadFiles, Inputs, Join, JoinFiles, Names, RowMask, RowSelection, expect_apart, expect_same_items,
    is_same_file, said,
};
pub use npy::{Array, ArrayNumbers, array_from_bytes, read_array};
pub use stream::{Columns, IdKind, Ids};
use text::{for_each_line, split_csv};
pub use text::{next_line, read_lines};

/// Widest vector that is read from a file that states its width itself; anything wider is taken for damage.
const WIDTH_MAX: usize = 1 << 20;

/// Numbers a batch holds when a whole file is read: 4 MiB of `f32`.
const BATCH_NUMBERS: usize = 1 << 20;

/// The whole number from which on not every one is an `f64`.
const WHOLE_END: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

/// The formats, by what a file's name ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Npy,
    Parquet,
    Fvecs,
    Bvecs,
    Ivecs,
    Safetensors,
    Text,
    JsonLines,
}

impl Format {
    /// What a file of vectors may be called.
    const VECTORS: &'static str =
        "a name that ends in .npy, .parquet, .pq, .fvecs, .bvecs, .ivecs or .safetensors";
    /// What a file of one value a row may be called.
    const VALUES: &'static str = "a name that ends in .npy, .parquet, .pq, .fvecs, .bvecs, .ivecs, .safetensors, .txt, .tsv, .csv, \
                                  .ids, .jsonl or .ndjson";

    fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "npy" => Self::Npy,
            "parquet" | "pq" => Self::Parquet,
            "fvecs" => Self::Fvecs,
            "bvecs" => Self::Bvecs,
            "ivecs" => Self::Ivecs,
            "safetensors" => Self::Safetensors,
            "txt" | "tsv" | "csv" | "ids" => Self::Text,
            "jsonl" | "ndjson" => Self::JsonLines,
            _ => return None,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Npy => ".npy",
            Self::Parquet => ".parquet",
            Self::Fvecs => ".fvecs",
            Self::Bvecs => ".bvecs",
            Self::Ivecs => ".ivecs",
            Self::Safetensors => ".safetensors",
            Self::Text => "text",
            Self::JsonLines => ".jsonl",
        })
    }
}

/// A file, and the column or tensor in it where it has several: `PATH` or `PATH#NAME`.
///
/// ```
/// use rehang_files::VectorSource;
///
/// let source: VectorSource = "gallery.parquet#embedding".parse()?;
/// assert_eq!(source.path.to_str(), Some("gallery.parquet"));
/// assert_eq!(source.column.as_deref(), Some("embedding"));
/// assert_eq!(source.to_string(), "gallery.parquet#embedding");
/// # Ok::<(), rehang::Error>(())
/// ```
///
/// # Paths with a `#`
///
/// What stands in front of the last `#` is the path, unless a file exists under the whole name.
///
/// # What a caller holds in memory
///
/// [`VectorSource::given`] stands for rows or values in memory, wherever a file can stand; errors and records name it as the
/// caller does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorSource {
    /// The file; or what the caller calls the thing that it holds in memory.
    pub path: PathBuf,
    /// The column of a Parquet file, or the tensor of a safetensors file.
    pub column: Option<String>,
    /// What the caller holds in memory, in the place of a file.
    given: Option<Given>,
    /// The file that is read in the place of `path`, which is another one's address.
    fetched: Option<Fetched>,
}

impl VectorSource {
    /// The source that `PATH` or `PATH#NAME` stands for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for an empty path or an empty name.
    pub fn parse(text: &str) -> Result<Self> {
        let (path, column) = match text.rsplit_once('#') {
            Some((path, column)) if !Path::new(text).exists() => (path, Some(column)),
            _ => (text, None),
        };
        if path.is_empty() || column == Some("") {
            return Err(Error::option("an input", text, "PATH or PATH#COLUMN"));
        }
        Ok(Self { column: column.map(str::to_string), ..Self::path(path) })
    }

    /// A file in which nothing has to be named.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), column: None, given: None, fetched: None }
    }

    /// A file of a [`Folder`](crate::folders::Folder), which errors and records name by its address.
    pub fn fetched(address: impl Into<PathBuf>, fetched: Fetched) -> Self {
        Self { fetched: Some(fetched), ..Self::path(address) }
    }

    /// What a caller holds in memory under a name, most often that of the parameter.
    ///
    /// ```
    /// use rehang_files::{Scalars, VectorSource, read_labels, read_matrix};
    ///
    /// let labels = VectorSource::given("labels", Scalars::Texts(vec!["cat".into(), "dog".into(), "cat".into()]));
    /// assert_eq!(read_labels(&labels)?, [0, 1, 0]);
    /// let error = read_matrix(&labels).unwrap_err().to_string();
    /// assert_eq!(error, "cannot read labels: it holds one value a row where rows of numbers are needed");
    /// # Ok::<(), rehang::Error>(())
    /// ```
    pub fn given(name: &str, content: impl Into<Given>) -> Self {
        Self { given: Some(content.into()), ..Self::path(name) }
    }

    /// Whether it stands for a file, and not for what a caller holds in memory.
    pub fn is_file(&self) -> bool {
        self.given.is_none()
    }

    /// The file that is read.
    fn file(&self) -> &Path {
        self.fetched.as_ref().map_or(&self.path, Fetched::path)
    }

    fn format(&self, wanted: &str, expected: &str) -> Result<Format> {
        // A missing or unreadable file says so, whatever its name ends in.
        open(self.file())?;
        Format::of(&self.path)
            .ok_or_else(|| Error::option(format!("a file of {wanted}"), self.path.display(), expected))
    }

    fn check_column(&self, format: Format) -> Result<()> {
        if self.column.is_some() && !matches!(format, Format::Parquet | Format::Safetensors) {
            let expected = format!("no #NAME: a {format} file has no columns to name");
            return Err(Error::option("an input", self, expected));
        }
        Ok(())
    }
}

impl FromStr for VectorSource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl From<&Path> for VectorSource {
    fn from(path: &Path) -> Self {
        Self::path(path)
    }
}

impl fmt::Display for VectorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.column {
            Some(column) => write!(f, "#{column}"),
            None => Ok(()),
        }
    }
}

/// A file that is open, with its length.
struct Opened {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Opened {
    fn empty(&self) -> Error {
        ErrorKind::Empty { what: self.path.display().to_string() }.into()
    }
}

/// Whether a path is the address of something that is not on this machine: `s3://bucket/name`.
///
/// ```
/// use std::path::Path;
/// use rehang_files::is_address;
///
/// assert!(is_address(Path::new("s3://bucket/old")) && !is_address(Path::new("C:/old")) && !is_address(Path::new("./s3://b")));
/// ```
pub fn is_address(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Opens a regular file. Folders, devices and pipes are refused before they are opened, since a pipe would block.
fn open(path: &Path) -> Result<Opened> {
    let named = |error: &std::io::Error| Error::io("read", path, error);
    let refuse = |reason: &str| -> Result<Opened> {
        Err(ErrorKind::Io { action: "read", path: path.to_path_buf(), reason: reason.into() }.into())
    };
    let metadata = match fs_err::metadata(path) {
        Err(_) if is_address(path) => {
            return refuse("it is an address; copy the object here and give the file");
        }
        found => found.map_err(|error| named(&error))?,
    };
    if metadata.is_dir() {
        return refuse("it is a folder; give a file");
    }
    if !metadata.is_file() {
        return refuse("it is a device or a pipe; write it to a file first");
    }
    let file = File::open(path).map_err(|error| named(&error))?;
    Ok(Opened { path: path.to_path_buf(), file, bytes: metadata.len() })
}

/// What is looked for in a file of several columns.
struct Wish {
    /// What it is, in words.
    what: &'static str,
    /// Names that are taken before any other.
    names: &'static [&'static str],
    /// Whether columns of whole numbers, of other numbers and of text can be it.
    accepts: [bool; 3],
}

const LABELS: Wish = Wish { what: "labels", names: &["label", "labels"], accepts: [true, false, true] };
const NUMBERS: Wish = Wish { what: "numbers", names: &["sigma2"], accepts: [true, true, false] };
const ORDER: Wish = Wish { what: "an order", names: &["order"], accepts: [true, false, false] };
const IDS: Wish = Wish { what: "ids", names: &["id", "_id"], accepts: [true, false, true] };

/// One value a row of any file.
fn read_scalars(source: &VectorSource, wish: &Wish) -> Result<Scalars> {
    if let Some(given) = &source.given {
        return given.scalars(source);
    }
    let format = source.format(wish.what, Format::VALUES)?;
    source.check_column(format)?;
    match format {
        Format::Npy => npy::read_scalars(source.file()),
        Format::Parquet => parquet::read_scalars(source, wish),
        Format::Fvecs | Format::Bvecs | Format::Ivecs => vecs::read_scalars(source.file(), format),
        Format::Safetensors => safetensors::read_scalars(source),
        Format::Text => text::read_scalars(source.file()),
        Format::JsonLines => text::read_json_scalars(source.file(), wish.names),
    }
}

/// Vectors of one file, `[n, d]`, as `f32`.
///
/// Numbers of other types are rounded to the nearest `f32`. NaN and infinite numbers are read as they are;
/// [`rehang::Vectors::new`] and [`Matrix::check_finite`] name them.
///
/// # Errors
///
/// As [`stream::open`]; [`ErrorKind::Corrupt`] with the row where rows differ in width or lack numbers.
pub fn read_matrix(source: &VectorSource) -> Result<Matrix> {
    read_matrices(std::slice::from_ref(source))
}

/// Vectors of several files, one below the other in the order given.
///
/// # Errors
///
/// As [`read_matrix`]; [`ErrorKind::WidthMismatch`], naming the file that is not as wide as the first.
pub fn read_matrices(sources: &[VectorSource]) -> Result<Matrix> {
    let mut reader = stream::open_all(sources)?;
    let width = reader.width();
    let mut data = Vec::new();
    let needed = usize::try_from(reader.rows_total()).ok().and_then(|rows| rows.checked_mul(width));
    if needed.is_none_or(|numbers| data.try_reserve_exact(numbers).is_err()) {
        let detail = format!("{} rows of {width} numbers do not fit into memory", reader.rows_total());
        return Err(Error::corrupt(said(sources), detail));
    }
    let mut batch = stream::RowBatch::default();
    while reader.next_batch((BATCH_NUMBERS / width).max(1), &mut batch)? > 0 {
        data.extend_from_slice(&batch.vectors);
    }
    Matrix::new(width, data)
}

/// Ids of the items of a file, one a row, as text; `None` where the file holds vectors alone.
///
/// From Parquet: the column that is named, or else `id`, or else `_id`. From text: one a line. From `.jsonl`: `_id`,
/// or else `id`. From `.npy` and `.ivecs`: a one-dimensional array of integers or text.
///
/// # Errors
///
/// As [`stream::open`]; [`ErrorKind::Corrupt`] for ids that are neither whole numbers nor text, or that are missing
/// in a row.
pub fn read_ids(source: &VectorSource) -> Result<Option<Vec<String>>> {
    if source.given.is_some() {
        return ids_of(source, read_scalars(source, &IDS)?).map(Some);
    }
    let format = source.format("ids", Format::VALUES)?;
    if format == Format::JsonLines {
        return text::read_json_field(source.file(), &["_id", "id"]).map(Some);
    }
    if format == Format::Parquet && source.column.is_none() && !parquet::has_ids(source)? {
        return Ok(None);
    }
    if format == Format::Text {
        // Ids such as 007 are text; only whole columns of other files are known to be numbers.
        return read_lines(source.file()).and_then(|lines| no_empty_ids(source, lines)).map(Some);
    }
    ids_of(source, read_scalars(source, &IDS)?).map(Some)
}

fn ids_of(source: &VectorSource, values: Scalars) -> Result<Vec<String>> {
    match values {
        Scalars::Integers(ids) => Ok(Ids::Integers(ids).into_strings()),
        Scalars::Texts(ids) => no_empty_ids(source, ids),
        Scalars::Floats(..) => {
            Err(Error::corrupt(source, "ids are whole numbers or text, and these are not"))
        }
    }
}

fn no_empty_ids(source: &VectorSource, ids: Vec<String>) -> Result<Vec<String>> {
    match ids.iter().position(String::is_empty) {
        Some(row) => Err(Error::corrupt(source, format!("the id in row {row} is empty (rows count from 0)"))),
        None => Ok(ids),
    }
}

/// Labels (or groups), one a row.
///
/// Whole numbers are taken as they are, whatever their type (2.0 is 2); text is numbered in the order in which it first
/// appears. From Parquet: the column that is named, or else `label`, or else the only column that can be one; it must be of
/// integers or text.
///
/// # Errors
///
/// As [`stream::open`]; [`ErrorKind::Corrupt`] for numbers that are not whole, or so large that their type does not hold every one
/// (from 2²⁴ on in `f32`).
pub fn read_labels(source: &VectorSource) -> Result<Labels> {
    Names::default().read(std::slice::from_ref(source))
}

/// Labels as a file has them, one a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelValues {
    /// Whole numbers.
    Numbers(Labels),
    /// Names.
    Texts(Vec<String>),
}

/// Labels as they are written, for those who need the names: text is not numbered. Columns are found as by
/// [`read_labels`].
///
/// # Errors
///
/// As [`read_labels`].
pub fn read_label_values(source: &VectorSource) -> Result<LabelValues> {
    match read_scalars(source, &LABELS)? {
        Scalars::Integers(labels) => Ok(LabelValues::Numbers(labels)),
        Scalars::Texts(labels) => Ok(LabelValues::Texts(labels)),
        Scalars::Floats(values, end) => whole_numbers(source, &values, end).map(LabelValues::Numbers),
    }
}

/// Floating-point numbers that are whole: tables with a gap somewhere are often written with 2.0 for 2. From `end` on not every
/// whole number is of their type, so two labels may have become one.
fn whole_numbers(source: &VectorSource, values: &[f64], end: f64) -> Result<Labels> {
    let is_whole = |value: f64| value.fract() == 0.0 && value.abs() < end;
    match values.iter().position(|&value| !is_whole(value)) {
        None => Ok(values.iter().map(|&value| value as i64).collect()),
        Some(row) => {
            let value = values[row];
            let are = if value.fract() == 0.0 { "too large for their type" } else { "fractions" };
            let detail = format!(
                "labels are whole numbers or text, and these are {are} (row {row} is {value}; rows count from 0); write \
                 them as integers, -1 where a label is not known"
            );
            Err(Error::corrupt(source, detail))
        }
    }
}

/// One number a row, as `f32`: σ², for example. NaN and infinite numbers are read as they are.
///
/// From Parquet: the column that is named, or else `sigma2`, or else the only column of numbers that are not `id`.
///
/// # Errors
///
/// As [`stream::open`]; [`ErrorKind::Corrupt`] for text.
pub fn read_f32_column(source: &VectorSource) -> Result<Vec<f32>> {
    match read_scalars(source, &NUMBERS)? {
        Scalars::Integers(values) => Ok(values.into_iter().map(|value| value as f32).collect()),
        Scalars::Floats(values, _) => Ok(values.into_iter().map(|value| value as f32).collect()),
        Scalars::Texts(_) => Err(Error::corrupt(source, "it holds text where numbers are needed")),
    }
}

/// Where the numbers that [`read_f32_column`] reads lie in a Parquet file, of which only the end, which describes it, is looked at.
///
/// # Errors
///
/// As [`stream::open`]; [`ErrorKind::Corrupt`] where it has no such column.
pub fn f32_column_ranges(source: &VectorSource) -> Result<Vec<Range<u64>>> {
    parquet::scalar_ranges(source, &NUMBERS)
}

/// An order: every row number from 0 to n − 1 once, the first to be re-embedded in front.
///
/// # Errors
///
/// As [`stream::open`]; [`ErrorKind::Duplicate`] for a row that is named twice; [`ErrorKind::Corrupt`] for a number
/// that is no row.
pub fn read_order(source: &VectorSource) -> Result<Vec<usize>> {
    let Scalars::Integers(numbers) = read_scalars(source, &ORDER)? else {
        return Err(Error::corrupt(source, "an order is made of whole numbers, and this is not"));
    };
    let mut seen = vec![false; numbers.len()];
    let mut order = Vec::with_capacity(numbers.len());
    for (position, &number) in numbers.iter().enumerate() {
        let Some(row) = usize::try_from(number).ok().filter(|&row| row < numbers.len()) else {
            let last = numbers.len() - 1;
            let detail = format!("position {position} names row {number}, and rows go from 0 to {last}");
            return Err(Error::corrupt(source, detail));
        };
        if std::mem::replace(&mut seen[row], true) {
            return Err(Error::duplicate(source, format!("row {number}")));
        }
        order.push(row);
    }
    Ok(order)
}

/// Writes vectors, and ids beside them where the format has columns (Parquet); the format follows the extension.
///
/// # Errors
///
/// As [`stream::create`]; [`ErrorKind::CountMismatch`] where there is not one id a row.
pub fn write_matrix(path: impl AsRef<Path>, matrix: &Matrix, ids: Option<&Ids>) -> Result<()> {
    let columns = Columns { width: matrix.columns(), ids: ids.map(Ids::kind), sigma2: false };
    let mut writer = stream::create(path, columns)?;
    writer.write(matrix.as_slice(), ids, None)?;
    writer.commit().map(|_| ())
}

/// Writes numbers as a one-dimensional `.npy` of `f32`.
///
/// # Errors
///
/// As [`stream::F32Writer::create`].
pub fn write_f32(path: impl AsRef<Path>, values: &[f32]) -> Result<()> {
    let mut writer = stream::F32Writer::create(path)?;
    writer.write(values)?;
    writer.commit().map(|_| ())
}

/// The folder that a file lies in: `.` for a bare name, which has an empty one.
///
/// ```
/// use std::path::Path;
/// use rehang_files::folder_of;
///
/// assert_eq!((folder_of(Path::new("a/b.npy")), folder_of(Path::new("b.npy"))), (Path::new("a"), Path::new(".")));
/// ```
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes an order as a one-dimensional `.npy` of `int64`.
///
/// # Errors
///
/// [`ErrorKind::Io`], [`ErrorKind::InvalidOption`] for another extension than `.npy`.
pub fn write_order(path: impl AsRef<Path>, order: &[usize]) -> Result<()> {
    let rows: Vec<i64> = order.iter().map(|&row| row as i64).collect();
    write_labels(path, &rows)
}

/// Fails where [`write_order`] could not write to this path at the end; nothing is left behind.
///
/// # Errors
///
/// As [`write_order`].
pub fn check_order_output(path: impl AsRef<Path>) -> Result<()> {
    expect_npy(path.as_ref(), INTEGERS)?;
    AtomicFile::create(path).map(drop)
}

/// Writes labels as a one-dimensional `.npy` of `int64`.
///
/// # Errors
///
/// As [`write_order`].
pub fn write_labels(path: impl AsRef<Path>, labels: &[i64]) -> Result<()> {
    let path = path.as_ref();
    expect_npy(path, INTEGERS)?;
    npy::write_integers(path, labels)
}

const INTEGERS: &str = "an output of whole numbers";

fn expect_npy(path: &Path, what: &str) -> Result<()> {
    if Format::of(path) == Some(Format::Npy) {
        return Ok(());
    }
    Err(Error::option(what, path.display(), "a name that ends in .npy"))
}
