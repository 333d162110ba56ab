//! Table of vectors that are already computed, as an encoder.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rehang_core::check::expect_count;
use rehang_core::{Error, Matrix, Result, Space};
use rehang_files::{VectorSource, read_ids, read_matrix};

use crate::check::Check;
use crate::config::TableConfig;
use crate::config::keys::resolve;
use crate::contract::{Answer, Encoder, Input, ItemFailure, Spent};
use crate::fingerprint::Fingerprint;
use crate::meter::Meter;

/// Inputs of one call. A look-up costs next to nothing, so this only bounds what a caller holds at once.
const BATCH: usize = 1024;

/// Encoder behind [`TableConfig`].
pub(crate) struct Table {
    check: Check,
    name: String,
    vectors: Matrix,
    /// Row of every id; without ids a source names its row.
    rows: Option<HashMap<String, usize>>,
    /// Whether a source has named a row so far.
    row_seen: AtomicBool,
    meter: Meter,
}

impl Table {
    pub(crate) fn open(config: &TableConfig, space: &Space, base: &Path) -> Result<Self> {
        let source = source(base, &config.vectors)?;
        let name = source.to_string();
        let vectors = read_matrix(&source)?;
        let check = Check::new(space, format!("the table {name}"), config.normalise);
        check.width(vectors.columns())?;
        let (ids, ids_name) = match &config.ids {
            Some(text) => {
                let ids_source = self::source(base, text)?;
                let ids = read_ids(&ids_source)?
                    .ok_or_else(|| Error::missing("a column of ids", format!("ids = {text:?}")))?;
                (Some(ids), ids_source.to_string())
            }
            // A name behind `#` means the vectors; the ids stand in a column of their own.
            None if is_parquet(&source.path) => (read_ids(&VectorSource::path(&source.path))?, name.clone()),
            None => (None, name.clone()),
        };
        let rows = ids.map(|ids| index(ids, &ids_name, vectors.rows(), &name)).transpose()?;
        Ok(Self { check, name, vectors, rows, row_seen: AtomicBool::new(false), meter: Meter::default() })
    }

    /// Finds the row of an item, or says why it has none.
    fn row(&self, input: &Input<'_>) -> Result<usize, ItemFailure> {
        let (table, count) = (&self.name, self.vectors.rows());
        let row = match (&self.rows, row_number(input.source)) {
            (Some(rows), _) => rows
                .get(input.id)
                .copied()
                .ok_or_else(|| format!("the table {table} has no item {:?}", input.id)),
            (None, Some(row)) if row < count => Ok(row),
            (None, Some(row)) => {
                Err(format!("row {row} is not in the table {table}, which has {count} rows"))
            }
            (None, None) => Err(format!("the source {:?} is no row number", input.source)),
        };
        row.map_err(ItemFailure::Permanent)
    }
}

impl Encoder for Table {
    fn space(&self) -> &Space {
        self.check.space()
    }

    fn batch_max(&self) -> usize {
        BATCH
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.meter.sent(inputs.len());
        if inputs.iter().any(|input| row_number(input.source).is_some()) {
            self.row_seen.store(true, Ordering::Relaxed);
        }
        // One odd source is the item's own trouble. Sources none of which has ever been a row number are a
        // table without the ids it needs, and a million failures would not say it better than one error.
        if let Some(first) = inputs.first()
            && self.rows.is_none()
            && !self.row_seen.load(Ordering::Relaxed)
        {
            return Err(Error::missing(
                format!(
                    "ids (without them a source is a row number such as 17 or row:17, and item {:?} has {:?})",
                    first.id, first.source
                ),
                format!("the table {}", self.name),
            ));
        }
        inputs
            .iter()
            .map(|input| match self.row(input) {
                Ok(row) => self.check.vector(input.id, self.vectors.row(row).to_vec()),
                Err(failure) => Ok(Err(failure)),
            })
            .collect()
    }

    fn spent(&self) -> Spent {
        self.meter.spent()
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        let rows: Option<BTreeMap<&String, &usize>> = self.rows.as_ref().map(|rows| rows.iter().collect());
        let fingerprint = Fingerprint::new("table").with(&self.vectors.fingerprint()).with(&rows);
        Ok(Some(fingerprint.with(&self.check.normalises()).text()))
    }
}

/// Turns the value of a key into the file that it names, seen from the folder of the configuration.
fn source(base: &Path, text: &str) -> Result<VectorSource> {
    let path = resolve(base, text);
    if path.is_file() {
        return Ok(VectorSource::path(path));
    }
    let mut source = VectorSource::parse(text)?;
    source.path = resolve(base, &source.path);
    Ok(source)
}

fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        extension.eq_ignore_ascii_case("parquet") || extension.eq_ignore_ascii_case("pq")
    })
}

fn index(ids: Vec<String>, name: &str, rows: usize, table: &str) -> Result<HashMap<String, usize>> {
    expect_count(name, ids.len(), table, rows)?;
    let mut index = HashMap::with_capacity(rows);
    for (row, id) in ids.into_iter().enumerate() {
        if index.contains_key(&id) {
            return Err(Error::duplicate(name, format_args!("id {id:?}")));
        }
        index.insert(id, row);
    }
    Ok(index)
}

/// Row that a source such as `17` or `row:17` names. Signs and spaces are no part of a row number.
fn row_number(source: &str) -> Option<usize> {
    let digits = source.strip_prefix("row:").unwrap_or(source);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rehang_core::{Distance, ErrorKind};
    use rehang_files::{Ids, write_matrix};
    use serde_json::Value;

    fn space() -> Space {
        Space::new("new", 2, Distance::L2, false)
    }

    fn input<'a>(id: &'a str, source: &'a str) -> Input<'a> {
        Input { id, source, payload: &Value::Null }
    }

    fn rows() -> Matrix {
        Matrix::from_fn(3, 2, |row, column| (10 * row + column) as f32)
    }

    fn folder(ids: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        write_matrix(folder.path().join("new.npy"), &rows(), None).unwrap();
        fs_err::write(folder.path().join("ids.txt"), ids).unwrap();
        folder
    }

    fn config(vectors: &str, ids: Option<&str>) -> TableConfig {
        TableConfig { vectors: vectors.into(), ids: ids.map(Into::into), normalise: false }
    }

    #[test]
    fn ids_name_rows() {
        let folder = folder("a\nb\nc\n");
        let table = Table::open(&config("new.npy", Some("ids.txt")), &space(), folder.path()).unwrap();
        let answers = table.encode(&[input("c", "2"), input("x", "0"), input("a", "?")]).unwrap();
        assert_eq!(answers[0], Ok(vec![20.0, 21.0]));
        assert!(matches!(&answers[1], Err(ItemFailure::Permanent(why)) if why.contains("no item \"x\"")));
        assert_eq!(answers[2], Ok(vec![0.0, 1.0]));
        assert_eq!(table.encode(&[]).unwrap(), []);
        assert_eq!(table.spent().items, 3);
    }

    #[test]
    fn json_lines_name_rows_too() {
        let folder = folder("");
        fs_err::write(
            folder.path().join("items.jsonl"),
            "{\"id\":\"a\",\"source\":\"s\"}\n{\"id\":7}\n{\"id\":\"c\"}\n",
        )
        .unwrap();
        let table = Table::open(&config("new.npy", Some("items.jsonl")), &space(), folder.path()).unwrap();
        assert_eq!(table.encode(&[input("7", "")]).unwrap(), [Ok(vec![10.0, 11.0])]);
    }

    #[test]
    fn ids_inside_a_parquet_file_are_found() {
        let folder = folder("");
        let ids = Ids::Texts(vec!["a".into(), "b".into(), "c".into()]);
        write_matrix(folder.path().join("new.parquet"), &rows(), Some(&ids)).unwrap();
        for vectors in ["new.parquet", "new.parquet#vector"] {
            let table = Table::open(&config(vectors, None), &space(), folder.path()).unwrap();
            assert_eq!(table.encode(&[input("b", "s")]).unwrap(), [Ok(vec![10.0, 11.0])]);
        }
    }

    #[test]
    fn without_ids_sources_are_rows() {
        let folder = folder("");
        let table = Table::open(&config("new.npy", None), &space(), folder.path()).unwrap();
        let error = table.encode(&[input("a", "cat.png"), input("b", "dog.png")]).unwrap_err();
        assert!(error.to_string().contains("\"cat.png\""), "{error}");
        let answers = table.encode(&[input("a", "row:1"), input("b", "dog.png"), input("c", "3")]).unwrap();
        assert_eq!(answers[0], Ok(vec![10.0, 11.0]));
        assert!(answers[1].is_err() && answers[2].is_err());
        // From now on a source that is no row number is the item's own trouble.
        assert!(table.encode(&[input("b", "dog.png")]).unwrap()[0].is_err());
    }

    #[test]
    fn tables_that_cannot_be_are_refused_when_they_are_opened() {
        let folder = folder("a\nb\nb\n");
        fs_err::write(folder.path().join("two.txt"), "a\nb\n").unwrap();
        let open = |vectors: &str, ids: Option<&str>, width: usize| {
            let space = Space::new("new", width, Distance::L2, false);
            Table::open(&config(vectors, ids), &space, folder.path()).err().unwrap()
        };
        assert!(matches!(open("new.npy", None, 3).kind(), ErrorKind::WidthMismatch { .. }));
        assert!(matches!(open("new.npy", Some("ids.txt"), 2).kind(), ErrorKind::Duplicate { .. }));
        assert!(matches!(open("new.npy", Some("two.txt"), 2).kind(), ErrorKind::CountMismatch { .. }));
        assert!(matches!(open("gone.npy", None, 2).kind(), ErrorKind::Io { .. }));
        assert!(matches!(open("new.npy", Some("gone.txt"), 2).kind(), ErrorKind::Io { .. }));
    }

    proptest! {
        /// A row number is what `usize` prints, with or without the word in front.
        #[test]
        fn row_numbers_are_whole_numbers(row: usize, text in "[ +-]?[a-z0-9]{0,5}") {
            prop_assert_eq!(row_number(&row.to_string()), Some(row));
            prop_assert_eq!(row_number(&format!("row:{row}")), Some(row));
            let plain = !text.is_empty() && text.chars().all(|character| character.is_ascii_digit());
            prop_assert_eq!(row_number(&text).is_some(), plain);
        }
    }
}
