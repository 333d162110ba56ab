//! Files that are read together: which rows take part, which rows are one item, and a record of everything
//! that was read.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::adapter_file::{self, AdapterSource};
use crate::join::{self, MissingPolicy};
use crate::paths::expect_apart;
use crate::qrels::read_qrels;
use crate::source::{VectorSource, joined_names};
use crate::stream;
use crate::text::read_lines;
use crate::values::{Names, read_f32_column, read_ids, read_labels, read_matrices, read_order};
use rehang_core::adapter::Adapter;
use rehang_core::check::expect_count;
use rehang_core::curve::Qrels;
use rehang_core::report::InputRecord;
use rehang_core::{Error, ErrorKind, Finding, FindingCode, Head, HeadKind, Labels, Matrix, Result, Severity};

/// Selection of the rows that take part: those where a file of whole numbers, one a row, has one of the
/// values.
///
/// Its text form is `FILE=VALUES`.
///
/// ```
/// use rehang_files::RowSelection;
///
/// let gallery: RowSelection = "role.npy=1,2".parse()?;
/// assert_eq!((gallery.file.to_string().as_str(), &gallery.values[..]), ("role.npy", &[1, 2][..]));
/// assert!("role.npy".parse::<RowSelection>().is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSelection {
    /// File of whole numbers, one a row.
    pub file: VectorSource,
    /// Values whose rows take part.
    pub values: Vec<i64>,
}

impl FromStr for RowSelection {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || Error::option("rows", text, "FILE=VALUES, for example role.npy=0 or role.npy=1,2");
        let (path, values) = text.rsplit_once('=').ok_or_else(refused)?;
        let values = values
            .split(',')
            .map(|value| value.trim().parse().map_err(|_| refused()))
            .collect::<Result<_>>()?;
        Ok(Self { file: VectorSource::parse(path)?, values })
    }
}

impl RowSelection {
    /// Reads the file. Fails for a value that no row has, since a typo there would cost a night.
    ///
    /// # Errors
    ///
    /// As [`read_labels`](crate::read_labels); [`ErrorKind::InvalidOption`] for a value that no row has.
    pub fn read(&self) -> Result<RowMask> {
        let tags = read_labels(&self.file)?;
        if let Some(value) = self.values.iter().find(|value| !tags.contains(value)) {
            return Err(Error::option("rows", value, format!("a value that stands in {}", self.file)));
        }
        let takes = tags.iter().map(|tag| self.values.contains(tag)).collect();
        Ok(RowMask { file: self.file.to_string(), fingerprint: fingerprint(&tags), takes })
    }
}

/// Mask of the rows that take part: one answer a row.
#[derive(Debug, Clone)]
pub struct RowMask {
    file: String,
    fingerprint: String,
    takes: Vec<bool>,
}

impl RowMask {
    /// Fails where `what` has another number of rows than the mask.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CountMismatch`].
    pub fn expect_rows(&self, what: &str, rows: usize) -> Result<()> {
        expect_count(&self.file, self.takes.len(), what, rows)
    }

    /// Places, within `rows`, of the rows that take part.
    pub fn places(&self, rows: std::ops::Range<usize>) -> Vec<usize> {
        let first = rows.start;
        rows.filter(|&row| self.takes[row]).map(|row| row - first).collect()
    }
}

/// Files of ids that say which old and new rows are one item. Without any, rows are paired by position.
#[derive(Debug, Clone, Default)]
pub struct JoinFiles {
    /// Files with the ids of the old vectors, one below the other. Everything made from old vectors, and
    /// everything that goes with items, has the rows of the old vectors.
    pub old_ids: Vec<VectorSource>,
    /// Files with the ids of the new vectors.
    pub new_ids: Vec<VectorSource>,
    /// Whether items that only one side has are left out; otherwise they are an error.
    pub keep_common: bool,
}

impl JoinFiles {
    /// Whether rows are paired by position.
    pub fn is_by_position(&self) -> bool {
        self.old_ids.is_empty() || self.new_ids.is_empty()
    }
}

/// Files of a classifier head. Without a weight there is no head.
#[derive(Debug, Clone, Default)]
pub struct HeadFiles {
    /// File of the weight, `[classes, d_new]`.
    pub head_weight: Option<VectorSource>,
    /// File of the bias, `[classes]`; zeros without it.
    pub head_bias: Option<VectorSource>,
    /// Kind of the head: how it makes logits.
    pub head_kind: HeadKind,
}

/// Reader of files that records what was read, with fingerprints, and knows which rows take part.
///
/// ```
/// use rehang_files::{InputReader, VectorSource};
/// use rehang_core::Matrix;
///
/// let folder = tempfile::tempdir()?;
/// let place = |name: &str| folder.path().join(name);
/// rehang_files::write_matrix(place("old.npy"), &Matrix::from_fn(3, 2, |row, _| row as f32), None)?;
/// rehang_files::write_labels(place("role.npy"), &[0, 1, 0])?;
/// let rows = format!("{}=0", place("role.npy").display()).parse()?;
/// let mut inputs = InputReader::new(Some(&rows))?;
/// let old = inputs.matrix("old", &[VectorSource::path(place("old.npy"))])?;
/// assert_eq!(old.as_slice(), [0.0, 0.0, 2.0, 2.0]);
/// assert_eq!((inputs.read[0].role.as_str(), inputs.read[0].rows), ("old", 2));
/// // What was read is never written over.
/// assert!(inputs.expect_apart(&[("output", Some(&place("./old.npy")))]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct InputReader {
    /// Records of the vectors, labels and numbers that were read, in order.
    pub read: Vec<InputRecord>,
    /// Records of what was read besides them: ids, judgements, the bias of a head, in order.
    pub beside: Vec<InputRecord>,
    /// Findings about the inputs that the reader of the result should know.
    pub findings: Vec<Finding>,
    /// Every file that was read, with the parameter that names it.
    files: Vec<(String, PathBuf)>,
    rows: Option<RowMask>,
}

impl InputReader {
    /// Makes a reader. It reads the file that says which rows take part; without one, all rows do.
    ///
    /// # Errors
    ///
    /// As [`RowSelection::read`].
    pub fn new(rows: Option<&RowSelection>) -> Result<Self> {
        let Some(selection) = rows else { return Ok(Self::default()) };
        let mut inputs = Self { rows: Some(selection.read()?), ..Self::default() };
        inputs.note_files("rows", std::slice::from_ref(&selection.file));
        Ok(inputs)
    }

    /// Reads one file, or several below each other, and keeps the rows that take part. `role` is the
    /// parameter that names the files.
    ///
    /// # Errors
    ///
    /// As [`read_matrices`](crate::read_matrices); [`ErrorKind::NotFinite`]; [`ErrorKind::CountMismatch`]
    /// where the file of the rows that take part has another number of rows.
    pub fn matrix(&mut self, role: &str, sources: &[VectorSource]) -> Result<Matrix> {
        let mut matrix = self.finite(role, sources)?;
        if let Some(mask) = &self.rows {
            mask.expect_rows(&joined_names(sources), matrix.rows())?;
            matrix = matrix.select(&mask.places(0..matrix.rows()));
        }
        self.note(role, &joined_names(sources), matrix.rows(), Some(matrix.columns()), matrix.fingerprint());
        Ok(matrix)
    }

    /// Reads all rows of a file to which the selection of rows does not apply (queries, heads).
    ///
    /// # Errors
    ///
    /// As [`read_matrices`](crate::read_matrices); [`ErrorKind::NotFinite`].
    pub fn whole_matrix(&mut self, role: &str, source: &VectorSource) -> Result<Matrix> {
        let matrix = self.finite(role, std::slice::from_ref(source))?;
        self.note(role, &source.to_string(), matrix.rows(), Some(matrix.columns()), matrix.fingerprint());
        Ok(matrix)
    }

    fn finite(&mut self, role: &str, sources: &[VectorSource]) -> Result<Matrix> {
        self.note_files(role, sources);
        let matrix = read_matrices(sources)?;
        matrix.check_finite(&joined_names(sources))?;
        Ok(matrix)
    }

    /// Reads labels or groups of the rows that take part. `names` turns labels that are names into numbers.
    ///
    /// # Errors
    ///
    /// As [`read_label_values`](crate::read_label_values); [`ErrorKind::Corrupt`] where one file holds whole
    /// numbers and another one names; [`ErrorKind::CountMismatch`] as in [`InputReader::matrix`].
    pub fn labels(&mut self, role: &str, sources: &[VectorSource], names: &mut Names) -> Result<Labels> {
        self.note_files(role, sources);
        let labels = self.select(&joined_names(sources), names.read(sources)?)?;
        self.note(role, &joined_names(sources), labels.len(), None, fingerprint(&labels));
        Ok(labels)
    }

    /// Reads labels or groups of files to which the selection of rows does not apply.
    ///
    /// # Errors
    ///
    /// As [`InputReader::labels`].
    pub fn whole_labels(
        &mut self,
        role: &str,
        sources: &[VectorSource],
        names: &mut Names,
    ) -> Result<Labels> {
        self.note_files(role, sources);
        let labels = names.read(sources)?;
        self.note(role, &joined_names(sources), labels.len(), None, fingerprint(&labels));
        Ok(labels)
    }

    /// Reads one number a row from one file, or from several below each other. The selection of rows does not
    /// apply.
    ///
    /// # Errors
    ///
    /// As [`read_f32_column`](crate::read_f32_column).
    pub fn column(&mut self, role: &str, sources: &[VectorSource]) -> Result<Vec<f64>> {
        self.note_files(role, sources);
        let mut values = Vec::new();
        for source in sources {
            values.extend(read_f32_column(source)?);
        }
        let column = Matrix::new(1, values)?;
        self.note(role, &joined_names(sources), column.rows(), None, column.fingerprint());
        Ok(column.as_slice().iter().copied().map(f64::from).collect())
    }

    /// Reads an order of the rows that take part. An order of all rows is accepted too; the other rows are
    /// dropped from it.
    ///
    /// # Errors
    ///
    /// As [`read_order`](crate::read_order).
    pub fn order(&mut self, role: &str, source: &VectorSource) -> Result<Vec<usize>> {
        self.note_files(role, std::slice::from_ref(source));
        let mut order = read_order(source)?;
        if let Some(mask) = self.rows.as_ref().filter(|mask| mask.takes.len() == order.len()) {
            let mut place = vec![None; order.len()];
            for (at, row) in mask.places(0..order.len()).into_iter().enumerate() {
                place[row] = Some(at);
            }
            // A number outside the rows is kept as it is, so that `check_permutation` reports it.
            order =
                order.into_iter().filter_map(|row| place.get(row).copied().unwrap_or(Some(row))).collect();
        }
        let numbers: Vec<i64> = order.iter().map(|&row| row as i64).collect();
        self.note(role, &source.to_string(), order.len(), None, fingerprint(&numbers));
        Ok(order)
    }

    /// Reads the ids of all rows from one file, or from several below each other.
    ///
    /// # Errors
    ///
    /// As [`read_ids`](crate::read_ids); [`ErrorKind::MissingInput`] for a file without ids.
    pub fn ids(&mut self, role: &str, sources: &[VectorSource]) -> Result<Vec<String>> {
        self.note_files(role, sources);
        let mut ids = Vec::new();
        for source in sources {
            ids.extend(read_ids(source)?.ok_or_else(|| Error::missing("a column of ids", source))?);
        }
        self.note_beside(role, &joined_names(sources), &ids);
        Ok(ids)
    }

    /// Reads a text file by `read`. Every line of the file goes into the record.
    ///
    /// # Errors
    ///
    /// As [`read_lines`](crate::read_lines) and as `read`.
    pub fn text<T>(&mut self, role: &str, path: &Path, read: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.files.push((role.to_owned(), path.to_owned()));
        let value = read(path)?;
        self.note_beside(role, &path.display().to_string(), &read_lines(path)?);
        Ok(value)
    }

    /// Reads judgements (query id, item id and gain) for `queries` queries, with files of the ids of queries
    /// and items. Judgements of items that do not take part are left out, and a finding says so. Items are
    /// joined as in `join`.
    ///
    /// # Errors
    ///
    /// As [`read_qrels`]; [`ErrorKind::CountMismatch`] where the number of ids is not that of the items or of
    /// the queries.
    pub fn judgements(
        &mut self,
        path: &Path,
        (ids, items): (&[VectorSource], usize),
        (query_ids, queries): (&VectorSource, Option<usize>),
        join: &Join,
    ) -> Result<Qrels> {
        let ids_path = joined_names(ids);
        let ids = self.ids("ids", ids)?;
        let taken = self.select(&ids_path, (0..ids.len()).collect())?;
        let taken = join.old_values(&ids_path, taken)?;
        expect_count(&ids_path, taken.len(), "the gallery", items)?;
        let asked_ids = self.ids("query ids", std::slice::from_ref(query_ids))?;
        if let Some(queries) = queries {
            expect_count(query_ids, asked_ids.len(), "the queries", queries)?;
        }
        let all = self.text("qrels", path, |path| read_qrels(path, &asked_ids, &ids))?;
        let mut place = vec![None; ids.len()];
        for (item, &row) in taken.iter().enumerate() {
            place[row] = Some(item);
        }
        let total = all.iter().map(Vec::len).sum::<usize>();
        let present = |(row, gain): (usize, f64)| Some((place[row]?, gain));
        let judged = all.into_iter().map(|rows| rows.into_iter().filter_map(present).collect());
        let judged: Vec<Vec<(usize, f64)>> = judged.collect();
        let left_out = total - judged.iter().map(Vec::len).sum::<usize>();
        if left_out > 0 {
            let message = format!("{left_out} of {total} judgements are of items that do not take part.");
            let finding = Finding::new(Severity::Note, FindingCode::LeftOutJudgements, message)
                .may_mean("They are left out.")
                .evidence(&[("left_out", left_out as f64), ("judgements", total as f64)]);
            self.findings.push(finding);
        }
        Qrels::new(judged)
    }

    /// Loads an adapter. It is not in the record yet: [`InputReader::note_adapter`] adds it.
    ///
    /// # Errors
    ///
    /// As [`AdapterSource::load`].
    pub fn adapter(&mut self, source: &AdapterSource) -> Result<Arc<Adapter>> {
        self.files.extend(source.file().map(|path| ("adapter".into(), path.to_owned())));
        source.load()
    }

    /// Adds an adapter to the record.
    ///
    /// # Errors
    ///
    /// As [`fingerprint`](crate::adapter_file::fingerprint).
    pub fn note_adapter(&mut self, source: &AdapterSource, adapter: &Adapter) -> Result<()> {
        let pairs = adapter.training.pairs;
        self.note("adapter", &source.to_string(), pairs, None, adapter_file::fingerprint(adapter)?);
        Ok(())
    }

    /// Reads the classifier head; `None` where no weight is given.
    ///
    /// # Errors
    ///
    /// As [`InputReader::whole_matrix`] and [`Head::new`].
    pub fn head(&mut self, files: &HeadFiles) -> Result<Option<Head>> {
        let Some(source) = &files.head_weight else {
            if files.head_kind != HeadKind::Softmax {
                self.warn(FindingCode::IdleParameter, "`head_kind` has no effect without `head_weight`.");
            }
            return Ok(None);
        };
        let weight = self.whole_matrix("head", source)?;
        let bias = match &files.head_bias {
            None => None,
            Some(source) => {
                self.note_files("head bias", std::slice::from_ref(source));
                let column = Matrix::new(1, read_f32_column(source)?)?;
                let path = source.to_string();
                self.beside.push(record("head bias", &path, column.rows(), None, column.fingerprint()));
                Some(column.into_data())
            }
        };
        Head::new(weight, bias, files.head_kind).map(Some).map_err(|error| error.context(source.to_string()))
    }

    /// Pairs the rows of `old_count` old and `new_count` new vectors: by position, or by ids where they are
    /// given.
    ///
    /// # Errors
    ///
    /// As [`InputReader::ids`] and [`join::by_id`]; [`ErrorKind::CountMismatch`] where there is not one id a
    /// row; [`ErrorKind::InvalidOption`] for ids beside a selection of rows.
    pub fn join(&mut self, files: &JoinFiles, old_count: usize, new_count: usize) -> Result<Join> {
        if files.is_by_position() {
            return Ok(Join(None));
        }
        if self.rows.is_some() {
            return Err(Error::option("rows", "given", "nothing beside `old_ids`: select rows in the files"));
        }
        let (old_names, new_names) = (joined_names(&files.old_ids), joined_names(&files.new_ids));
        let old_ids = self.ids("old ids", &files.old_ids)?;
        let new_ids = self.ids("new ids", &files.new_ids)?;
        expect_count(&old_names, old_ids.len(), "its vectors", old_count)?;
        expect_count(&new_names, new_ids.len(), "its vectors", new_count)?;
        let policy = if files.keep_common { MissingPolicy::KeepCommon } else { MissingPolicy::Error };
        let joined = join::by_id((&old_names, &old_ids), (&new_names, &new_ids), policy)?;
        let dropped = joined.left_only.len() + joined.right_only.len();
        if dropped > 0 {
            let message = format!("{dropped} items that only one side has are left out.");
            self.findings.push(Finding::new(Severity::Note, FindingCode::LeftOut, message));
        }
        let (old, new) = joined.rows.iter().copied().unzip();
        Ok(Join(Some(JoinedRows { old, new, old_count, old_ids: old_names })))
    }

    /// Keeps those of `values`, one value a row of a file, that belong to the rows that take part.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CountMismatch`].
    pub fn select<T: Clone>(&self, what: &str, values: Vec<T>) -> Result<Vec<T>> {
        let Some(mask) = &self.rows else { return Ok(values) };
        mask.expect_rows(what, values.len())?;
        Ok(mask.places(0..values.len()).into_iter().map(|row| values[row].clone()).collect())
    }

    /// Fails where an output is one of the files that were read, or another output. Each output is given with
    /// the parameter that names it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`].
    pub fn expect_apart(&self, outputs: &[(&str, Option<&PathBuf>)]) -> Result<()> {
        expect_apart(outputs, &self.files)
    }

    /// Adds an input to the record.
    pub fn note(
        &mut self,
        role: &str,
        path: &str,
        rows: usize,
        dimension: Option<usize>,
        fingerprint: String,
    ) {
        self.read.push(record(role, path, rows, dimension, fingerprint));
    }

    /// Completes the record with what was read beside vectors and labels, and with the file of the rows that
    /// took part.
    pub fn note_all(&mut self) {
        self.read.append(&mut self.beside);
        if let Some(mask) = &self.rows {
            self.read.push(record("rows", &mask.file, mask.takes.len(), None, mask.fingerprint.clone()));
        }
    }

    /// Adds a warning about the inputs.
    pub fn warn(&mut self, code: FindingCode, message: impl Into<String>) {
        self.findings.push(Finding::new(Severity::Warning, code, message));
    }

    fn note_beside(&mut self, role: &str, path: &str, texts: &[String]) {
        self.beside.push(record(role, path, texts.len(), None, fingerprint_of_texts(texts)));
    }

    fn note_files(&mut self, role: &str, sources: &[VectorSource]) {
        // Three roles have another name than their parameter.
        let parameter = match role {
            "head" => "head_weight".into(),
            "old queries" => "queries_old".into(),
            "pairs" | "evaluation" => format!("{role}_old"),
            other => other.replace(' ', "_"),
        };
        let files = sources.iter().filter(|source| source.is_file());
        self.files.extend(files.map(|source| (parameter.clone(), source.path.clone())));
    }
}

fn record(role: &str, path: &str, rows: usize, dimension: Option<usize>, fingerprint: String) -> InputRecord {
    InputRecord { role: role.into(), path: path.into(), rows, dimension, fingerprint }
}

/// Pairing of the old rows with the new rows that are the same items: by position, or by ids.
#[derive(Debug, Default)]
pub struct Join(Option<JoinedRows>);

/// Old and new row of each item, and the number of all old rows.
#[derive(Debug)]
struct JoinedRows {
    old: Vec<usize>,
    new: Vec<usize>,
    old_count: usize,
    /// Names of the files of the old ids.
    old_ids: String,
}

impl Join {
    /// Fails where an item of the old side has no partner; `what` says what needs all items.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingInput`].
    pub fn expect_all_old(&self, what: &str) -> Result<()> {
        match &self.0 {
            Some(rows) if rows.old.len() < rows.old_count => {
                Err(Error::missing("a new vector of every item, found by its id", what))
            }
            _ => Ok(()),
        }
    }

    /// Selects some of the `count` paired items, by their place. What is read from then on is of these alone.
    #[must_use]
    pub fn select(&self, items: &[usize], count: usize) -> Self {
        let joined = self.0.as_ref();
        let selected = |rows: Option<&Vec<usize>>| {
            items.iter().map(|&item| rows.map_or(item, |rows| rows[item])).collect()
        };
        Self(Some(JoinedRows {
            old: selected(joined.map(|rows| &rows.old)),
            new: selected(joined.map(|rows| &rows.new)),
            old_count: joined.map_or(count, |rows| rows.old_count),
            old_ids: joined.map_or_else(|| "the gallery".into(), |rows| rows.old_ids.clone()),
        }))
    }

    /// Keeps the new rows of the paired items, in their order.
    pub fn new_side(&self, matrix: Matrix) -> Matrix {
        match &self.0 {
            None => matrix,
            Some(rows) => matrix.select(&rows.new),
        }
    }

    /// Keeps the old rows of the paired items, of a matrix that has the rows of the old side.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CountMismatch`] where there is not one row for each of the old ids.
    pub fn old_side(&self, what: &str, matrix: Matrix) -> Result<Matrix> {
        let Some(rows) = &self.0 else { return Ok(matrix) };
        expect_count(what, matrix.rows(), &rows.old_ids, rows.old_count)?;
        Ok(matrix.select(&rows.old))
    }

    /// Keeps the values of the paired items, of a list that has the rows of the old side.
    ///
    /// # Errors
    ///
    /// As [`Join::old_side`].
    pub fn old_values<T: Clone>(&self, what: &str, values: Vec<T>) -> Result<Vec<T>> {
        let Some(rows) = &self.0 else { return Ok(values) };
        expect_count(what, values.len(), &rows.old_ids, rows.old_count)?;
        Ok(rows.old.iter().map(|&row| values[row].clone()).collect())
    }

    /// Turns an order of the old side's rows into an order of the joined items; items that are left out drop
    /// out of it.
    ///
    /// # Errors
    ///
    /// As [`Join::old_side`].
    pub fn order(&self, what: &str, order: Vec<usize>) -> Result<Vec<usize>> {
        let Some(rows) = &self.0 else { return Ok(order) };
        expect_count(what, order.len(), &rows.old_ids, rows.old_count)?;
        let mut place = vec![None; rows.old_count];
        for (item, &row) in rows.old.iter().enumerate() {
            place[row] = Some(item);
        }
        // A number outside the rows is kept as it is, so that `check_permutation` reports it.
        Ok(order.into_iter().filter_map(|row| place.get(row).copied().unwrap_or(Some(row))).collect())
    }
}

/// Fails where files whose rows are paired by position have ids of their own that say that rows do not belong
/// together.
///
/// # Errors
///
/// [`ErrorKind::Unmatched`] with the first row whose ids differ; [`ErrorKind::Corrupt`] for a column `id`
/// that cannot be ids, where other files have ids too; as [`stream::open`].
pub fn expect_same_items(files: &[&[VectorSource]]) -> Result<()> {
    let mut with_ids = Vec::new();
    for &sources in files {
        if let Some(ids) = own_ids(sources)? {
            with_ids.push((joined_names(sources), ids));
        }
    }
    // Ids on one side only can be compared with nothing, so not even unreadable ids are an error.
    if with_ids.len() < 2 {
        return Ok(());
    }
    let id_lists = with_ids.into_iter().map(|(what, ids)| Ok((what, ids?))).collect::<Result<Vec<_>>>()?;
    let Some(((first, expected), other_lists)) = id_lists.split_first() else { return Ok(()) };
    // Files with different numbers of rows are reported by the callers.
    for (other, ids) in other_lists.iter().filter(|(_, ids)| ids.len() == expected.len()) {
        let differing: Vec<usize> = (0..ids.len()).filter(|&row| ids[row] != expected[row]).collect();
        let Some(&row) = differing.first() else { continue };
        let way = "put the rows in one order, or join them by their ids with `old_ids` and `new_ids`, which take these files too";
        return Err(other_items((first, other), differing.len(), (row, &expected[row], &ids[row]), way));
    }
    Ok(())
}

/// Makes the error for two files whose rows are paired by position, although the ids of `count` rows say that
/// they are different items. It has the first such row with its id in either file, and the way out.
pub fn other_items(
    (first, other): (&str, &str),
    count: usize,
    (row, id, other_id): (usize, &str, &str),
    way: &str,
) -> Error {
    ErrorKind::Unmatched {
        what: format!("the ids of {first} and {other}, whose rows are paired by position,"),
        count,
        examples: vec![format!("row {row} ({id:?} and {other_id:?}; rows count from 0); {way}")],
    }
    .into()
}

/// Ids beside the vectors of files, one file below the other, or why they cannot be ids; `None` where a file
/// has none.
fn own_ids(sources: &[VectorSource]) -> Result<Option<Result<Vec<String>>>> {
    if sources.is_empty() {
        return Ok(None);
    }
    for source in sources {
        // Content in memory has no ids beside it.
        let reader = stream::open(source)?;
        if reader.id_kind().is_none() {
            return Ok(reader.check_ids().err().map(Err));
        }
    }
    let mut ids = Vec::new();
    for source in sources {
        // The column that the source names holds the vectors; the ids are looked for under their own names.
        let file_ids = read_ids(&VectorSource { column: None, ..source.clone() })?;
        ids.extend(file_ids.ok_or_else(|| Error::missing("a column of ids", source))?);
    }
    Ok(Some(Ok(ids)))
}

/// Fingerprint of whole numbers, in the form of [`Matrix::fingerprint`].
fn fingerprint(labels: &[i64]) -> String {
    // Two halves of 24 bits each are exact as f32 for every label below 2^48.
    let halves: Vec<f32> =
        labels.iter().flat_map(|&label| [(label >> 24) as f32, (label & 0xff_ffff) as f32]).collect();
    Matrix::new(2, halves).unwrap_or_default().fingerprint()
}

/// Fingerprint of texts, in the form of [`Matrix::fingerprint`].
fn fingerprint_of_texts(texts: &[String]) -> String {
    // Every byte is exact as f32; 256, which is no byte, marks the end of a text.
    let values = texts.iter().flat_map(|text| text.bytes().map(f32::from).chain([256.0])).collect();
    Matrix::new(1, values).unwrap_or_default().fingerprint()
}

#[cfg(test)]
mod tests {
    use super::fingerprint_of_texts;

    #[test]
    fn fingerprints_see_where_a_text_ends() {
        let fingerprint = |texts: &[&str]| {
            fingerprint_of_texts(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(fingerprint(&["a", "bc"]), fingerprint(&["a", "bc"]));
        assert_ne!(fingerprint(&["a", "bc"]), fingerprint(&["ab", "c"]));
        assert_ne!(fingerprint(&[]), fingerprint(&[""]));
    }
}
