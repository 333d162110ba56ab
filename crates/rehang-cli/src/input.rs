//! Reads the files that the command line names, and keeps a record of them for reports.

use rehang::files::join::{self, MissingPolicy};
use rehang::files::{self, VectorSource};
use rehang::report::Input;
use rehang::{Error, ErrorKind, Head, HeadKind, Labels, Matrix, Result};

use crate::arguments::{HeadFiles, IdFiles, RowSelection};
use crate::commands::say;

/// Files that were read, with their fingerprints, and the rows that take part.
#[derive(Debug, Default)]
pub struct Inputs {
    /// What was read, in order.
    pub read: Vec<Input>,
    rows: Option<Vec<usize>>,
    rows_of: usize,
    rows_path: String,
}

impl Inputs {
    /// Reads the file of `--rows`, where it is given.
    pub fn new(selection: &RowSelection) -> Result<Self> {
        let Some(text) = &selection.rows else { return Ok(Self::default()) };
        let (path, values) = parse_rows(text)?;
        let tags = files::read_labels(&VectorSource::parse(&path)?)?;
        check_values(&path, &tags, &values)?;
        let rows = (0..tags.len()).filter(|&row| values.contains(&tags[row])).collect();
        Ok(Self { read: Vec::new(), rows: Some(rows), rows_of: tags.len(), rows_path: path })
    }

    /// Rows of one file, or of several below each other, of which `--rows` takes part.
    pub fn matrix(&mut self, role: &str, paths: &[String]) -> Result<Matrix> {
        let whole = whole_matrix(paths)?;
        let matrix = match &self.rows {
            None => whole,
            Some(rows) => {
                self.expect_rows(&paths.join(", "), whole.rows())?;
                whole.select(rows)
            }
        };
        self.note(role, &paths.join(", "), matrix.rows(), Some(matrix.columns()), matrix.fingerprint());
        Ok(matrix)
    }

    /// Rows of a file to which `--rows` does not apply (queries, heads).
    pub fn matrix_as_it_is(&mut self, role: &str, path: &str) -> Result<Matrix> {
        let matrix = whole_matrix(&[path.to_owned()])?;
        self.note(role, path, matrix.rows(), Some(matrix.columns()), matrix.fingerprint());
        Ok(matrix)
    }

    /// Labels or groups, of which `--rows` takes part.
    pub fn labels(&mut self, role: &str, path: &str) -> Result<Labels> {
        let whole = files::read_labels(&VectorSource::parse(path)?)?;
        self.part_of_labels(role, path, whole)
    }

    /// The gallery's labels, of which `--rows` takes part, and those of the queries, to which it does not apply: a name is the
    /// same class in both.
    pub fn labels_and_queries(&mut self, gallery: &str, queries: &str) -> Result<(Labels, Labels)> {
        let (whole, labels) =
            files::read_labels_of_both(&VectorSource::parse(gallery)?, &VectorSource::parse(queries)?)?;
        let part = self.part_of_labels("labels", gallery, whole)?;
        self.note("query labels", queries, labels.len(), None, fingerprint(&labels));
        Ok((part, labels))
    }

    fn part_of_labels(&mut self, role: &str, path: &str, whole: Labels) -> Result<Labels> {
        let labels = self.part(path, whole)?;
        self.note(role, path, labels.len(), None, fingerprint(&labels));
        Ok(labels)
    }

    /// Ids, of which `--rows` takes part.
    pub fn ids(&self, path: &str) -> Result<Vec<String>> {
        self.part(path, ids_of(path)?)
    }

    /// What a file has for every row, of which `--rows` takes part.
    fn part<T: Clone>(&self, path: &str, whole: Vec<T>) -> Result<Vec<T>> {
        let Some(rows) = &self.rows else { return Ok(whole) };
        self.expect_rows(path, whole.len())?;
        Ok(rows.iter().map(|&row| whole[row].clone()).collect())
    }

    /// Labels or groups of a file to which `--rows` does not apply.
    pub fn labels_as_they_are(&mut self, role: &str, path: &str) -> Result<Labels> {
        let labels = files::read_labels(&VectorSource::parse(path)?)?;
        self.note(role, path, labels.len(), None, fingerprint(&labels));
        Ok(labels)
    }

    /// The classifier head, where one is given.
    pub fn head(&mut self, head: &HeadFiles) -> Result<Option<Head>> {
        let kind = head_kind(&head.head_kind)?;
        let Some(path) = &head.head_weight else { return Ok(None) };
        let weight = self.matrix_as_it_is("head", path)?;
        let bias = match &head.head_bias {
            None => None,
            Some(path) => Some(files::read_f32_column(&VectorSource::parse(path)?)?),
        };
        Head::new(weight, bias, kind).map(Some).map_err(|error| error.context(path.clone()))
    }

    /// Adds a file to the record.
    pub fn note(
        &mut self,
        role: &str,
        path: &str,
        rows: usize,
        dimension: Option<usize>,
        fingerprint: String,
    ) {
        self.read.push(Input { role: role.into(), path: path.into(), rows, dimension, fingerprint });
    }

    fn expect_rows(&self, path: &str, rows: usize) -> Result<()> {
        expect_count(&self.rows_path, self.rows_of, path, rows)
    }
}

/// Fails where a file has vectors of another width than is needed.
pub fn expect_width(what: &str, expected: usize, received: usize) -> Result<()> {
    if received == expected {
        return Ok(());
    }
    Err(ErrorKind::WidthMismatch { what: what.into(), expected, received }.into())
}

/// All rows of one file, or of several below each other.
fn whole_matrix(paths: &[String]) -> Result<Matrix> {
    let sources: Vec<VectorSource> =
        paths.iter().map(|path| VectorSource::parse(path)).collect::<Result<_>>()?;
    let matrix = files::read_matrices(&sources)?;
    matrix.check_finite(&paths.join(", "))?;
    Ok(matrix)
}

/// Fails for a value of `--rows` that no row has: a value that matches nothing is a typo that costs a night.
pub fn check_values(path: &str, tags: &[i64], values: &[i64]) -> Result<()> {
    match values.iter().find(|value| !tags.contains(value)) {
        Some(value) => Err(Error::option("--rows", value, format!("a value that stands in {path}"))),
        None => Ok(()),
    }
}

/// The file and the values of `--rows FILE=VALUES`.
pub fn parse_rows(text: &str) -> Result<(String, Vec<i64>)> {
    let expected = "FILE=VALUES, for example role.npy=0 or role.npy=1,2";
    let (path, values) = text.rsplit_once('=').ok_or_else(|| Error::option("--rows", text, expected))?;
    let values = values
        .split(',')
        .map(|value| value.trim().parse().map_err(|_| Error::option("--rows", text, expected)))
        .collect::<Result<_>>()?;
    Ok((path.to_owned(), values))
}

/// Fails where two things that go row by row have different numbers of rows.
pub fn expect_count(left: &str, left_count: usize, right: &str, right_count: usize) -> Result<()> {
    if left_count == right_count {
        return Ok(());
    }
    Err(ErrorKind::CountMismatch { left: left.into(), left_count, right: right.into(), right_count }.into())
}

/// Which rows of the old and of the new side are the same items: by position, or by `--old-ids` and `--new-ids`.
#[derive(Debug, Default)]
pub struct Join(Option<Rows>);

/// Rows of one item side by side, and how many rows the old side has in all.
#[derive(Debug)]
struct Rows {
    old: Vec<usize>,
    new: Vec<usize>,
    old_count: usize,
}

impl Join {
    /// Reads the ids, where they are given, of `old_count` rows on the old side and `new_count` on the new one.
    pub fn read(ids: &IdFiles, old_count: usize, new_count: usize, selection: &RowSelection) -> Result<Self> {
        let (Some(old_ids), Some(new_ids)) = (&ids.old_ids, &ids.new_ids) else { return Ok(Self(None)) };
        if selection.rows.is_some() {
            return Err(Error::option(
                "--rows",
                "given",
                "nothing beside --old-ids: select rows in the files",
            ));
        }
        let joined = join_by_id((old_ids, old_count), (new_ids, new_count), ids.keep_common)?;
        let dropped = joined.left_only.len() + joined.right_only.len();
        if dropped > 0 {
            say(&format!("{dropped} items that only one side has are left out."));
        }
        let (old, new) = joined.rows.iter().copied().unzip();
        Ok(Self(Some(Rows { old, new, old_count })))
    }

    /// Fails where an item of the old side has no partner.
    pub fn expect_all_old(&self, what: &str) -> Result<()> {
        match &self.0 {
            Some(rows) if rows.old.len() < rows.old_count => {
                Err(Error::missing("a new vector of every item, found by its id", what))
            }
            _ => Ok(()),
        }
    }

    /// Rows of the new side.
    pub fn new_side(&self, matrix: Matrix) -> Matrix {
        match &self.0 {
            None => matrix,
            Some(rows) => matrix.select(&rows.new),
        }
    }

    /// Rows of the old side, or of what goes with it.
    pub fn old_side(&self, what: &str, matrix: Matrix) -> Result<Matrix> {
        let Some(rows) = &self.0 else { return Ok(matrix) };
        expect_count(what, matrix.rows(), "old ids", rows.old_count)?;
        Ok(matrix.select(&rows.old))
    }

    /// Values that go with the rows of the old side.
    pub fn old_values<T: Clone>(&self, what: &str, values: Vec<T>) -> Result<Vec<T>> {
        let Some(rows) = &self.0 else { return Ok(values) };
        expect_count(what, values.len(), "old ids", rows.old_count)?;
        Ok(rows.old.iter().map(|&row| values[row].clone()).collect())
    }

    /// An order of the old side's rows as one of the joined items; items that are left out drop out of it.
    pub fn order(&self, what: &str, order: Vec<usize>) -> Result<Vec<usize>> {
        let Some(rows) = &self.0 else { return Ok(order) };
        expect_count(what, order.len(), "old ids", rows.old_count)?;
        let mut place = vec![None; rows.old_count];
        for (item, &row) in rows.old.iter().enumerate() {
            place[row] = Some(item);
        }
        // A number that is no row stays what it is, for whoever checks permutations to say so.
        Ok(order.into_iter().filter_map(|row| place.get(row).copied().unwrap_or(Some(row))).collect())
    }
}

/// The ids of a file, one a row.
pub fn ids_of(path: &str) -> Result<Vec<String>> {
    files::read_ids(&VectorSource::parse(path)?)?.ok_or_else(|| Error::missing("a column of ids", path))
}

/// One number a row of one file, or of several below each other.
pub fn column(paths: &[String]) -> Result<Vec<f64>> {
    let mut values = Vec::new();
    for path in paths {
        values.extend(files::read_f32_column(&VectorSource::parse(path)?)?.into_iter().map(f64::from));
    }
    Ok(values)
}

/// Rows of the left and of the right file that hold the same ids; each has one id for each of its vectors.
fn join_by_id(
    (left, left_rows): (&str, usize),
    (right, right_rows): (&str, usize),
    keep_common: bool,
) -> Result<join::Joined> {
    let (left_ids, right_ids) = (ids_of(left)?, ids_of(right)?);
    expect_count(left, left_ids.len(), "its vectors", left_rows)?;
    expect_count(right, right_ids.len(), "its vectors", right_rows)?;
    let policy = if keep_common { MissingPolicy::KeepCommon } else { MissingPolicy::Error };
    join::by_id((left, &left_ids), (right, &right_ids), policy)
}

/// A fingerprint of whole numbers, in the form of [`Matrix::fingerprint`].
pub fn fingerprint(labels: &[i64]) -> String {
    // Two halves of 24 bits each are exact as f32 for every label below 2^48.
    let halves: Vec<f32> =
        labels.iter().flat_map(|&label| [(label >> 24) as f32, (label & 0xff_ffff) as f32]).collect();
    Matrix::new(2, halves).unwrap_or_default().fingerprint()
}

fn head_kind(text: &str) -> Result<HeadKind> {
    let expected = "softmax or arcface:SCALE,MARGIN (for example arcface:64,0.5)";
    if text == "softmax" {
        return Ok(HeadKind::Softmax);
    }
    let numbers = text.strip_prefix("arcface:").and_then(|numbers| numbers.split_once(','));
    let parsed = numbers.and_then(|(scale, margin)| Some((scale.parse().ok()?, margin.parse().ok()?)));
    match parsed {
        Some((scale, margin)) if f32::is_finite(scale) && scale > 0.0 && (0.0..1.6).contains(&margin) => {
            Ok(HeadKind::ArcFace { scale, margin })
        }
        _ => Err(Error::option("--head-kind", text, expected)),
    }
}
