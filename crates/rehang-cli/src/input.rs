//! Reads the files that the command line names, and keeps a record of them for reports.

use std::collections::HashMap;
use std::path::PathBuf;

use rehang::files::join::{self, MissingPolicy};
use rehang::files::{self, LabelValues, VectorSource, stream};
use rehang::report::Input;
use rehang::{Error, ErrorKind, Head, HeadKind, Labels, Matrix, NORMALISED_TOLERANCE, Result};

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

    /// Labels or groups of one file, or of several below each other, of which `--rows` takes part; `names` numbers those that
    /// are names.
    pub fn labels(&mut self, role: &str, paths: &[String], names: &mut Names) -> Result<Labels> {
        let path = paths.join(", ");
        let labels = self.part(&path, names.read(paths)?)?;
        self.note(role, &path, labels.len(), None, fingerprint(&labels));
        Ok(labels)
    }

    /// Ids, of which `--rows` takes part.
    pub fn ids(&self, paths: &[String]) -> Result<Vec<String>> {
        self.part(&paths.join(", "), ids_of(paths)?)
    }

    /// What a file has for every row, of which `--rows` takes part.
    fn part<T: Clone>(&self, path: &str, whole: Vec<T>) -> Result<Vec<T>> {
        let Some(rows) = &self.rows else { return Ok(whole) };
        self.expect_rows(path, whole.len())?;
        Ok(rows.iter().map(|&row| whole[row].clone()).collect())
    }

    /// Labels or groups of files to which `--rows` does not apply.
    pub fn labels_as_they_are(&mut self, role: &str, paths: &[String], names: &mut Names) -> Result<Labels> {
        let labels = names.read(paths)?;
        self.note(role, &paths.join(", "), labels.len(), None, fingerprint(&labels));
        Ok(labels)
    }

    /// One number a row of one file, or of several below each other.
    pub fn column(&mut self, role: &str, paths: &[String]) -> Result<Vec<f64>> {
        let mut values = Vec::new();
        for path in paths {
            values.extend(files::read_f32_column(&VectorSource::parse(path)?)?);
        }
        let column = Matrix::new(1, values)?;
        self.note(role, &paths.join(", "), column.rows(), None, column.fingerprint());
        Ok(column.as_slice().iter().copied().map(f64::from).collect())
    }

    /// The classifier head, where one is given.
    pub fn head(&mut self, head: &HeadFiles) -> Result<Option<Head>> {
        let kind = head_kind(&head.head_kind)?;
        let Some(path) = &head.head_weight else {
            if kind != HeadKind::Softmax {
                say("Warning: --head-kind has no effect without --head-weight.");
            }
            return Ok(None);
        };
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

/// Labels of one file after the other, where names are numbered in the order in which they first appear: what is read with the
/// same `Names` has the same number for the same name.
#[derive(Debug, Default)]
pub struct Names {
    /// The names, in the order of their numbers; empty where the files hold whole numbers.
    pub in_order: Vec<String>,
    numbers: HashMap<String, i64>,
    /// The first file, and whether its labels are names.
    first: Option<(String, bool)>,
}

impl Names {
    /// Whether the labels that were read are names.
    pub fn are_names(&self) -> bool {
        self.first.as_ref().is_some_and(|(_, is_named)| *is_named)
    }

    /// The labels of files, one below the other. Fails where one file holds whole numbers and another one names.
    fn read(&mut self, paths: &[String]) -> Result<Labels> {
        let mut labels = Labels::new();
        for path in paths {
            let values = files::read_label_values(&VectorSource::parse(path)?)?;
            let is_named = matches!(values, LabelValues::Texts(_));
            let (first, is_first_named) = self.first.get_or_insert_with(|| (path.clone(), is_named));
            if *is_first_named != is_named {
                let [own, other] =
                    if is_named { ["names", "whole numbers"] } else { ["whole numbers", "names"] };
                return Err(Error::corrupt(
                    path,
                    format!("its labels are {own} and those of {first} are {other}; write both in one way"),
                ));
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

/// The files behind options, each with the option that names it, for [`expect_apart`](crate::commands::expect_apart).
pub fn files_of<'a>(options: &[(&'a str, &[String])]) -> Result<Vec<(&'a str, PathBuf)>> {
    let mut files = Vec::new();
    for &(name, paths) in options {
        for path in paths {
            files.push((name, VectorSource::parse(path)?.path));
        }
    }
    Ok(files)
}

/// The file of `--rows`, where it is given.
pub fn rows_file(selection: &RowSelection) -> Result<Option<String>> {
    Ok(selection.rows.as_deref().map(parse_rows).transpose()?.map(|(path, _)| path))
}

/// Fails where files whose rows are paired by position have ids of their own, and these say that rows do not belong together.
pub fn expect_same_items(files: &[&[String]]) -> Result<()> {
    let mut with_ids: Vec<&[String]> = Vec::new();
    for &paths in files {
        if has_own_ids(paths)? {
            with_ids.push(paths);
        }
    }
    if with_ids.len() < 2 {
        return Ok(());
    }
    let known: Vec<(String, Vec<String>)> =
        with_ids.into_iter().map(|paths| Ok((paths.join(", "), own_ids(paths)?))).collect::<Result<_>>()?;
    let Some(((first, expected), others)) = known.split_first() else { return Ok(()) };
    // Another number of rows is an error of its own.
    for (other, ids) in others.iter().filter(|(_, ids)| ids.len() == expected.len()) {
        let differing: Vec<usize> = (0..ids.len()).filter(|&row| ids[row] != expected[row]).collect();
        let Some(&row) = differing.first() else { continue };
        return Err(ErrorKind::Unmatched {
            what: format!("the ids of {first} and {other}, whose rows are paired by position,"),
            count: differing.len(),
            examples: vec![format!(
                "row {row} ({:?} and {:?}; rows count from 0); put the rows in one order, or join them by their ids with \
                 --old-ids and --new-ids, which take these files too",
                expected[row], ids[row]
            )],
        }
        .into());
    }
    Ok(())
}

/// Whether there are files of vectors, and all of them have ids beside the vectors.
fn has_own_ids(paths: &[String]) -> Result<bool> {
    for path in paths {
        if stream::open(&VectorSource::parse(path)?)?.id_kind().is_none() {
            return Ok(false);
        }
    }
    Ok(!paths.is_empty())
}

/// The ids that files of vectors have beside them, one file below the other.
fn own_ids(paths: &[String]) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for path in paths {
        // A column that is named is the one of the vectors.
        let source = VectorSource::path(VectorSource::parse(path)?.path);
        let own = files::read_ids(&source)?;
        ids.extend(own.ok_or_else(|| Error::missing("a column of ids", path))?);
    }
    Ok(ids)
}

/// Fails where one of the vectors `[n, width]` of a normalised space has another length than 1; `first_row` is the number of
/// the first one in its file.
pub fn expect_normalised(what: &str, width: usize, first_row: u64, vectors: &[f32]) -> Result<()> {
    for (row, vector) in vectors.chunks_exact(width).enumerate() {
        let norm = rehang::norm(vector);
        if (norm - 1.0).abs() > NORMALISED_TOLERANCE {
            let row = first_row as usize + row;
            return Err(ErrorKind::NotNormalised { what: what.to_owned(), row, norm }.into());
        }
    }
    Ok(())
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
    /// The file of the old ids.
    old_ids: String,
}

impl Join {
    /// Reads the ids, where they are given, of `old_count` rows on the old side and `new_count` on the new one.
    pub fn read(ids: &IdFiles, old_count: usize, new_count: usize, selection: &RowSelection) -> Result<Self> {
        if ids.old_ids.is_empty() || ids.new_ids.is_empty() {
            return Ok(Self(None));
        }
        if selection.rows.is_some() {
            return Err(Error::option(
                "--rows",
                "given",
                "nothing beside --old-ids: select rows in the files",
            ));
        }
        let joined = join_by_id((&ids.old_ids, old_count), (&ids.new_ids, new_count), ids.keep_common)?;
        let dropped = joined.left_only.len() + joined.right_only.len();
        if dropped > 0 {
            say(&format!("{dropped} items that only one side has are left out."));
        }
        let (old, new) = joined.rows.iter().copied().unzip();
        Ok(Self(Some(Rows { old, new, old_count, old_ids: ids.old_ids.join(", ") })))
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
        expect_count(what, matrix.rows(), &rows.old_ids, rows.old_count)?;
        Ok(matrix.select(&rows.old))
    }

    /// Values that go with the rows of the old side.
    pub fn old_values<T: Clone>(&self, what: &str, values: Vec<T>) -> Result<Vec<T>> {
        let Some(rows) = &self.0 else { return Ok(values) };
        expect_count(what, values.len(), &rows.old_ids, rows.old_count)?;
        Ok(rows.old.iter().map(|&row| values[row].clone()).collect())
    }

    /// An order of the old side's rows as one of the joined items; items that are left out drop out of it.
    pub fn order(&self, what: &str, order: Vec<usize>) -> Result<Vec<usize>> {
        let Some(rows) = &self.0 else { return Ok(order) };
        expect_count(what, order.len(), &rows.old_ids, rows.old_count)?;
        let mut place = vec![None; rows.old_count];
        for (item, &row) in rows.old.iter().enumerate() {
            place[row] = Some(item);
        }
        // A number that is no row stays what it is, for whoever checks permutations to say so.
        Ok(order.into_iter().filter_map(|row| place.get(row).copied().unwrap_or(Some(row))).collect())
    }
}

/// The ids of one file, or of several below each other, one a row.
pub fn ids_of(paths: &[String]) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for path in paths {
        let own = files::read_ids(&VectorSource::parse(path)?)?;
        ids.extend(own.ok_or_else(|| Error::missing("a column of ids", path))?);
    }
    Ok(ids)
}

/// Rows of the left and of the right file that hold the same ids; each has one id for each of its vectors.
fn join_by_id(
    (left, left_rows): (&[String], usize),
    (right, right_rows): (&[String], usize),
    keep_common: bool,
) -> Result<join::Joined> {
    let (left_ids, right_ids) = (ids_of(left)?, ids_of(right)?);
    let (left, right) = (left.join(", "), right.join(", "));
    expect_count(&left, left_ids.len(), "its vectors", left_rows)?;
    expect_count(&right, right_ids.len(), "its vectors", right_rows)?;
    let policy = if keep_common { MissingPolicy::KeepCommon } else { MissingPolicy::Error };
    join::by_id((&left, &left_ids), (&right, &right_ids), policy)
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
