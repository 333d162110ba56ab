//! Reading and writing of whole files: vectors, and one value a row.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use rehang_core::{Error, Labels, Matrix, Result};

use crate::atomic::AtomicFile;
use crate::given::Scalars;
use crate::source::{Format, IDS, VectorSource, Wish, expect_npy, joined_names};
use crate::stream::{self, Columns, Ids, RowBatch};
use crate::text::read_lines;
use crate::{npy, parquet, safetensors, text, vecs};

/// Numbers that a batch holds when a whole file is read: 4 MiB of `f32`.
const BATCH_NUMBERS: usize = 1 << 20;

const LABELS: Wish = Wish { what: "labels", names: &["label", "labels"], accepts: [true, false, true] };
const NUMBERS: Wish = Wish { what: "numbers", names: &["sigma2"], accepts: [true, true, false] };
const ORDER: Wish = Wish { what: "an order", names: &["order"], accepts: [true, false, false] };

/// Reads one value a row from any file, or from memory.
fn read_scalars(source: &VectorSource, wish: &Wish) -> Result<Scalars> {
    if let Some(content) = &source.given {
        return content.scalars(source);
    }
    let format = source.format(wish.what, Format::VALUES)?;
    source.check_column(format)?;
    match format {
        Format::Npy => npy::read_scalars(source.file()),
        Format::Parquet => parquet::read_scalars(source, wish),
        Format::Fvecs | Format::Bvecs | Format::Ivecs => vecs::read_scalars(source.file(), format),
        Format::Fbin | Format::U8bin | Format::I8bin => {
            vecs::one_a_row(vecs::open_block(source.file(), format)?, source.file())
        }
        Format::Safetensors => safetensors::read_scalars(source),
        Format::Text => text::read_scalars(source.file()),
        Format::JsonLines => text::read_json_scalars(source.file(), wish.names),
    }
}

/// Reads the vectors of one file, `[n, d]`, as `f32`.
///
/// Numbers of other types are rounded to the nearest `f32`. NaN and infinite numbers are read as they are;
/// [`rehang_core::Vectors::new`] and [`Matrix::check_finite`] name them.
///
/// # Errors
///
/// As [`stream::open`]; [`Corrupt`](rehang_core::ErrorKind::Corrupt) with the row where rows differ in width or
/// lack numbers.
pub fn read_matrix(source: &VectorSource) -> Result<Matrix> {
    read_matrices(std::slice::from_ref(source))
}

/// Reads the vectors of several files, one below the other in the given order.
///
/// # Errors
///
/// As [`read_matrix`]; [`WidthMismatch`](rehang_core::ErrorKind::WidthMismatch), naming the file that is not as
/// wide as the first.
pub fn read_matrices(sources: &[VectorSource]) -> Result<Matrix> {
    let mut reader = stream::open_all(sources)?;
    let width = reader.width();
    let mut data = Vec::new();
    let needed = usize::try_from(reader.rows_total()).ok().and_then(|rows| rows.checked_mul(width));
    if needed.is_none_or(|numbers| data.try_reserve_exact(numbers).is_err()) {
        let detail = format!("{} rows of {width} numbers do not fit into memory", reader.rows_total());
        return Err(Error::corrupt(joined_names(sources), detail));
    }
    let mut batch = RowBatch::default();
    while reader.next_batch((BATCH_NUMBERS / width).max(1), &mut batch)? > 0 {
        data.extend_from_slice(&batch.vectors);
    }
    Matrix::new(width, data)
}

/// Reads the ids of a file's items, one a row, as text; `None` where the file holds vectors alone.
///
/// In Parquet they are the named column, or else `id`, or else `_id`. In text there is one a line. In
/// `.jsonl` they are `_id`, or else `id`. In `.npy` and `.ivecs` they are a one-dimensional array of integers
/// or text.
///
/// # Errors
///
/// As [`stream::open`]; [`Corrupt`](rehang_core::ErrorKind::Corrupt) for ids that are neither whole numbers nor
/// text, or that are missing in a row.
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
        // Lines stay text, because an id such as 007 would lose its zeros as a number.
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

/// Reads labels (or groups), one a row.
///
/// Whole numbers are taken as they are, whatever their type (2.0 is 2). Texts are numbered in the order in
/// which they first appear. In Parquet the labels are the named column, or else `label`, or else the only
/// column that can hold labels; it must be of integers or text.
///
/// # Errors
///
/// As [`stream::open`]; [`Corrupt`](rehang_core::ErrorKind::Corrupt) for numbers that are not whole, or so large
/// that their type leaves out some whole numbers (from 2²⁴ on in `f32`).
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

/// Reads labels as they are written, for callers that need the names: texts are not numbered. Columns are
/// found as by [`read_labels`].
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

/// Turns floating-point numbers into labels: tables with a gap somewhere often have 2.0 in the place of 2.
/// From `end` on their type leaves out some whole numbers, so two labels may have become one; such a label
/// is an error.
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

/// Reads one number a row, as `f32`: σ², for example. NaN and infinite numbers are read as they are.
///
/// In Parquet they are the named column, or else `sigma2`, or else the only column of numbers that is not
/// `id`.
///
/// # Errors
///
/// As [`stream::open`]; [`Corrupt`](rehang_core::ErrorKind::Corrupt) for text.
pub fn read_f32_column(source: &VectorSource) -> Result<Vec<f32>> {
    match read_scalars(source, &NUMBERS)? {
        Scalars::Integers(values) => Ok(values.into_iter().map(|value| value as f32).collect()),
        Scalars::Floats(values, _) => Ok(values.into_iter().map(|value| value as f32).collect()),
        Scalars::Texts(_) => Err(Error::corrupt(source, "it holds text where numbers are needed")),
    }
}

/// Finds the byte ranges of a Parquet file that [`read_f32_column`] reads. Only the end of the file, which
/// describes it, is looked at.
///
/// # Errors
///
/// As [`stream::open`]; [`Corrupt`](rehang_core::ErrorKind::Corrupt) where the file has no such column.
pub fn f32_column_ranges(source: &VectorSource) -> Result<Vec<Range<u64>>> {
    parquet::scalar_ranges(source, &NUMBERS)
}

/// Reads an order: every row number from 0 to n − 1 once, the row that is re-embedded first in front.
///
/// # Errors
///
/// As [`stream::open`]; [`Duplicate`](rehang_core::ErrorKind::Duplicate) for a row that is named twice;
/// [`Corrupt`](rehang_core::ErrorKind::Corrupt) for a number that is no row.
pub fn read_order(source: &VectorSource) -> Result<Vec<usize>> {
    let Scalars::Integers(numbers) = read_scalars(source, &ORDER)? else {
        return Err(Error::corrupt(source, "an order is made of whole numbers, and this is not"));
    };
    let mut named_rows = vec![false; numbers.len()];
    let mut order = Vec::with_capacity(numbers.len());
    for (position, &number) in numbers.iter().enumerate() {
        let Some(row) = usize::try_from(number).ok().filter(|&row| row < numbers.len()) else {
            let last = numbers.len() - 1;
            let detail = format!("position {position} names row {number}, and rows go from 0 to {last}");
            return Err(Error::corrupt(source, detail));
        };
        if std::mem::replace(&mut named_rows[row], true) {
            return Err(Error::duplicate(source, format!("row {number}")));
        }
        order.push(row);
    }
    Ok(order)
}

/// Writes vectors, and ids beside them where the format has columns (Parquet). The format follows the
/// extension.
///
/// # Errors
///
/// As [`stream::create`]; [`CountMismatch`](rehang_core::ErrorKind::CountMismatch) where there is not one id a
/// row.
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

/// Writes an order as a one-dimensional `.npy` of `int64`.
///
/// # Errors
///
/// [`Io`](rehang_core::ErrorKind::Io), [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for another extension
/// than `.npy`.
pub fn write_order(path: impl AsRef<Path>, order: &[usize]) -> Result<()> {
    let rows: Vec<i64> = order.iter().map(|&row| row as i64).collect();
    write_labels(path, &rows)
}

/// Fails where [`write_order`] could not write to this path at the end. Nothing is left behind.
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

/// Numbering of labels that are names, in the order in which the names first appear. Files that are read with
/// one `Names` have the same number for the same name.
#[derive(Debug, Default)]
pub struct Names {
    /// Names in the order of their numbers; empty where the files hold whole numbers.
    pub in_order: Vec<String>,
    numbers: HashMap<String, i64>,
    /// Name of the first file, and whether its labels are names.
    first: Option<(String, bool)>,
}

impl Names {
    /// Whether the labels that were read are names.
    pub fn are_names(&self) -> bool {
        self.first.as_ref().is_some_and(|(_, is_named)| *is_named)
    }

    /// Reads the labels of files, one below the other. Fails where one file holds whole numbers and another
    /// one names.
    pub(super) fn read(&mut self, sources: &[VectorSource]) -> Result<Labels> {
        let mut labels = Labels::new();
        for source in sources {
            let values = read_label_values(source)?;
            let is_named = matches!(values, LabelValues::Texts(_));
            let (first, is_first_named) = self.first.get_or_insert_with(|| (source.to_string(), is_named));
            if *is_first_named != is_named {
                let [kind, other] =
                    if is_named { ["names", "whole numbers"] } else { ["whole numbers", "names"] };
                let detail =
                    format!("its labels are {kind} and those of {first} are {other}; write both in one way");
                return Err(Error::corrupt(source, detail));
            }
            match values {
                LabelValues::Numbers(numbers) => labels.extend(numbers),
                LabelValues::Texts(names) => labels.extend(names.into_iter().map(|name| self.number(name))),
            }
        }
        Ok(labels)
    }

    fn number(&mut self, name: String) -> i64 {
        let next = self.in_order.len() as i64;
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.in_order.push(name);
        }
        number
    }
}
