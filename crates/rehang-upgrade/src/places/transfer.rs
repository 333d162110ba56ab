//! Imports whole galleries from files, and exports spaces into files.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use rehang_core::check::expect_count;
use rehang_core::{
    Distance, Error, ErrorKind, NORMALISED_TOLERANCE, Provenance, Remedy, Result, Space, norm,
};
use rehang_files::stream::{self, Columns, Ids, RowBatch};
use rehang_files::{AtomicFile, VectorSource, other_items};
use rehang_store::{ItemWrite, NewVector, Scan, Select, Store, expect_space, find_space, rounded_number};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::observe::{Observation, Observer, expect_going};
use crate::places::location::Location;

/// Items that one transaction of an import writes.
const IMPORT_ITEMS: usize = 1000;
/// Items that one page of an export reads.
const EXPORT_ITEMS: usize = 2000;

/// Files that [`import`] puts into a gallery, and the space of their vectors.
#[derive(Debug, Clone)]
pub struct Import {
    /// Name of the model that made the vectors.
    pub space: String,
    /// Distance of the model.
    pub distance: Distance,
    /// Vectors, one row an item, `[n, d]`. Ids beside them (columns `id` or `_id` of Parquet) have to be
    /// those of the items, row by row.
    pub vectors: VectorSource,
    /// Items, one JSON object a line: `{"id": "…", "source": "…", "label": …, "payload": …}`. Only the id is
    /// required; an item without a source cannot be embedded again.
    pub items: PathBuf,
}

/// Result of an [`import`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Imported {
    /// Name of the gallery.
    pub gallery: String,
    /// Name of the space.
    pub space: String,
    /// Items that were written.
    pub items: usize,
    /// Width of the vectors, in coordinates.
    pub dimension: usize,
    /// Distance of the space.
    pub distance: &'static str,
    /// Whether all vectors have length 1.
    pub normalised: bool,
    /// Space that the vectors belong to.
    #[serde(skip)]
    pub of: Space,
}

/// Puts vectors and their items into a gallery. Where there is none it makes one, which appears whole or not
/// at all. Both files are read to their end before anything is written, and once more to write it.
///
/// # Errors
///
/// Corrupt, duplicate, empty and count mismatches of the files. Unmatched where the vectors have ids of their
/// own, and these are in another order than the items. Changed meanwhile where the second reading finds other
/// contents; a gallery that was there has some of the items then. A mismatch where the gallery has the space
/// with other properties. A conflict where items of the import have vectors of another space, which a change
/// of their content would remove. Cancelled where a stop was asked for.
pub fn import(location: &Location, import: &Import, observer: &dyn Observer) -> Result<Imported> {
    let ids = read_ids(&import.items)?;
    let (dimension, normalised) = survey(&import.vectors, &ids, &import.items)?;
    let space = Space::new(&import.space, dimension, import.distance, normalised);
    if location.exists() {
        fill(&*location.open()?, import, space.clone(), &ids, observer)?;
    } else {
        let new = location.make()?;
        fill(new.store(), import, space.clone(), &ids, observer)?;
        new.publish()?;
    }
    Ok(Imported {
        gallery: location.to_string(),
        space: import.space.clone(),
        items: ids.len(),
        dimension,
        distance: import.distance.name(),
        normalised,
        of: space,
    })
}

/// Line of an items file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemLine {
    #[serde(alias = "_id")]
    pub id: Text,
    #[serde(default)]
    pub source: Option<String>,
    #[serde(default)]
    pub label: Option<Text>,
    #[serde(default)]
    pub payload: Value,
}

/// Text that may be a number in people's files, such as an id or a label.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Text {
    Text(String),
    Number(serde_json::Number),
}

impl Text {
    pub fn into_string(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Refuses an id that is empty or has control characters: ids go into files line by line.
pub(crate) fn expect_id(id: &str) -> Result<()> {
    if id.is_empty() || id.chars().any(char::is_control) {
        let expected = "at least one character, and no line breaks or control characters";
        return Err(Error::option("id", id, expected));
    }
    Ok(())
}

/// Hashes every id of an items file, in the order of its lines, and checks each line: so nothing is written
/// for a file that is damaged at its end. The ids themselves would take 130 bytes an item, and their freed
/// memory would slow down all that comes after.
fn read_ids(path: &Path) -> Result<Vec<u64>> {
    let what = || path.display().to_string();
    let mut hashes = Vec::new();
    for id in ids_of(path)? {
        let id = id?;
        expect_id(&id).map_err(|error| error.context(what()))?;
        hashes.push(hash(&id));
    }
    if hashes.is_empty() {
        return Err(ErrorKind::Empty { what: what() }.into());
    }
    let mut sorted = hashes.clone();
    sorted.sort_unstable();
    let repeated_hashes: BTreeSet<u64> =
        sorted.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    drop(sorted);
    if repeated_hashes.is_empty() {
        return Ok(hashes);
    }
    // Two ids may have one hash, so ids whose hash stands twice are read again.
    let mut ids_so_far = BTreeSet::new();
    for id in ids_of(path)? {
        let id = id?;
        if repeated_hashes.contains(&hash(&id)) && !ids_so_far.insert(id.clone()) {
            return Err(Error::duplicate(what(), format_args!("id {id:?}")));
        }
    }
    Ok(hashes)
}

fn hash(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

/// Reads the ids of an items file, line by line.
fn ids_of(path: &Path) -> Result<impl Iterator<Item = Result<String>> + use<>> {
    Ok(item_lines(path)?.map(|line| Ok(line?.id.into_string())))
}

/// Reads the lines of an items file that are not blank, with one in memory at a time. The file may be a pipe.
pub(crate) fn item_lines(path: &Path) -> Result<impl Iterator<Item = Result<ItemLine>> + use<>> {
    let file = fs_err::File::open(path).map_err(|error| Error::io("open", path, &error))?;
    let path = path.to_owned();
    let mut reader = BufReader::new(file);
    let (mut line, mut number) = (Vec::new(), 0_u64);
    let mut next = move || -> Result<Option<ItemLine>> {
        loop {
            let is_short = rehang_files::next_line(&mut reader, &mut line)
                .map_err(|error| Error::io("read", &path, &error))?;
            if line.is_empty() {
                return Ok(None);
            }
            number += 1;
            let corrupt =
                |detail: String| Error::corrupt(format!("{}, line {number}", path.display()), detail);
            if !is_short {
                return Err(corrupt("it is longer than 16 MiB; this is no file of items".into()));
            }
            let text = line.trim_ascii_end();
            if !text.is_empty() {
                // A line that is no UTF-8 is no JSON either.
                if let Some(number) = str::from_utf8(text).ok().and_then(rounded_number) {
                    return Err(corrupt(format!(
                        "the number {number} would be rounded; write it as a text, \"{number}\""
                    )));
                }
                return serde_json::from_slice(text).map(Some).map_err(|error| {
                    corrupt(format!(
                        "{error}; a line is {{\"id\": \"…\", \"source\": \"…\", \"label\": …, \"payload\": …}}"
                    ))
                });
            }
        }
    };
    Ok(std::iter::from_fn(move || next().transpose()))
}

/// Reads all vectors once, and returns their width and whether all have length 1. Fails for NaN, for another
/// count than that of the `items`, and where the file has ids of its own that are not those of the items, row
/// by row.
fn survey(source: &VectorSource, items: &[u64], items_path: &Path) -> Result<(usize, bool)> {
    let mut reader = stream::open(source)?;
    reader.check_ids()?;
    let dimension = reader.width();
    let what = source.to_string();
    let (mut rows, mut normalised) = (0, true);
    let (mut mismatches, mut first_mismatch) = (0, None);
    let mut batch = RowBatch::default();
    loop {
        let count = reader.next_batch(IMPORT_ITEMS, &mut batch)?;
        if count == 0 {
            break;
        }
        batch.check_finite(&what, dimension)?;
        for row in batch.vectors.chunks_exact(dimension) {
            normalised &= (norm(row) - 1.0).abs() <= NORMALISED_TOLERANCE;
        }
        let vector_ids = batch.ids.take().map(Ids::into_strings).unwrap_or_default();
        for (row, id) in (rows..).zip(vector_ids) {
            if items.get(row).is_some_and(|item| *item != hash(&id)) {
                mismatches += 1;
                first_mismatch.get_or_insert((row, id));
            }
        }
        rows += count;
    }
    expect_count(&what, rows, items_path.display(), items.len())?;
    let Some((row, vector_id)) = first_mismatch else { return Ok((dimension, normalised)) };
    let item = ids_of(items_path)?.nth(row).transpose()?.unwrap_or_default();
    let way = "put the items in the order of the vectors";
    Err(other_items((&what, &items_path.display().to_string()), mismatches, (row, &vector_id, &item), way))
}

fn fill(
    store: &dyn Store,
    import: &Import,
    mut space: Space,
    ids: &[u64],
    observer: &dyn Observer,
) -> Result<()> {
    if let Some(record) = find_space(store, &import.space)? {
        // A raw space takes vectors that happen to have length 1; everything else has to agree.
        space.normalised &= record.space.normalised;
        record.space.expect_same(&space)?;
    }
    expect_no_other_vectors(store, &import.space, &import.items)?;
    store.create_space(&space, Provenance::Old)?;
    let written_as = expect_space(store, &import.space)?.written_as;
    let total = ids.len() as u64;
    observer.observe(&Observation::Began { stage: "importing", unit: "items", total });
    // The files were checked when they were read first; others may have come to their names since.
    let changed = |what: &dyn Display| {
        Error::changed_meanwhile(what, "it has changed while it was imported; import it again")
    };
    let items = import.items.display();
    let mut reader = stream::open(&import.vectors)?;
    if reader.width() != space.dimension {
        return Err(changed(&import.vectors));
    }
    let mut lines = item_lines(&import.items)?;
    let mut ids = ids.iter();
    let mut batch = RowBatch::default();
    while reader.next_batch(IMPORT_ITEMS, &mut batch)? > 0 {
        expect_going(observer)?;
        let mut writes = Vec::with_capacity(IMPORT_ITEMS);
        let mut vector_ids = batch.ids.take().map(Ids::into_strings).unwrap_or_default().into_iter();
        for row in batch.vectors.chunks_exact(space.dimension) {
            let expected = ids.next().ok_or_else(|| changed(&import.vectors))?;
            let line = lines.next().ok_or_else(|| changed(&items))??;
            let id = line.id.into_string();
            if hash(&id) != *expected {
                return Err(changed(&items));
            }
            if vector_ids.next().is_some_and(|vector_id| hash(&vector_id) != *expected) {
                return Err(changed(&import.vectors));
            }
            writes.push(ItemWrite {
                id,
                source: line.source,
                label: line.label.map(Text::into_string),
                payload: line.payload,
                vectors: vec![NewVector::from_model(import.space.clone(), row.to_vec(), written_as)],
            });
        }
        store.put(&writes)?;
        observer.observe(&Observation::Advanced { units: writes.len() as u64 });
    }
    if ids.next().is_some() {
        return Err(changed(&import.vectors));
    }
    if lines.next().transpose()?.is_some() {
        return Err(changed(&items));
    }
    Ok(())
}

/// Fails where items are in the gallery with vectors of another space. Writing such items is a change of
/// their content, which would remove those vectors.
fn expect_no_other_vectors(store: &dyn Store, space: &str, items: &Path) -> Result<()> {
    let spaces = store.spaces()?;
    let other_spaces: Vec<&str> =
        spaces.iter().map(|record| record.space.name.as_str()).filter(|name| *name != space).collect();
    if other_spaces.is_empty() {
        return Ok(());
    }
    let mut count = 0;
    let mut ids = ids_of(items)?;
    loop {
        let page = ids.by_ref().take(IMPORT_ITEMS).collect::<Result<Vec<String>>>()?;
        if page.is_empty() {
            break;
        }
        let page: Vec<&str> = page.iter().map(String::as_str).collect();
        let keys: Vec<_> = store.get(&page)?.into_iter().flatten().map(|item| item.key).collect();
        for other_space in &other_spaces {
            count += store.vectors(other_space, &keys)?.iter().filter(|vector| vector.is_some()).count();
        }
    }
    if count == 0 {
        return Ok(());
    }
    Err(Error::conflict(
        format!(
            "{count} vectors of {} in {} belong to items of this import",
            other_spaces.join(", "),
            store.name()
        ),
        "importing an item anew removes its vectors in other spaces; delete the items first if that is meant",
    )
    .advise(Remedy::WriteSingleItems))
}

/// Files that [`export`] writes, each whole or not at all, row by row in the order in which items came.
#[derive(Debug, Clone)]
pub struct Export {
    /// Name of the space.
    pub space: String,
    /// Vectors, one row an item (`.npy`).
    pub vectors: PathBuf,
    /// Ids, one a line.
    pub ids: Option<PathBuf>,
    /// Provenance of each vector, one a line.
    pub provenance: Option<PathBuf>,
}

/// Result of an [`export`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExportedSpace {
    /// Name of the space.
    pub space: String,
    /// Rows that were written.
    pub vectors: u64,
    /// Items without a vector in the space: they are not in the files.
    pub lacking: u64,
    /// Space that the vectors belong to.
    #[serde(skip)]
    pub of: Space,
}

/// Writes the vectors of a space into files. Memory is bounded by a page.
///
/// # Errors
///
/// Not found where there is no such space; I/O errors; cancelled where a stop was asked for. Nothing is left
/// under the names of the files then.
pub fn export(store: &dyn Store, export: &Export, observer: &dyn Observer) -> Result<ExportedSpace> {
    let space = expect_space(store, &export.space)?.space;
    let counts = store.counts(&export.space)?;
    // Every output is opened before the first page is read.
    let mut vectors = stream::create(&export.vectors, Columns::vectors(space.dimension))?;
    let text_file = |path: &Option<PathBuf>| path.as_ref().map(AtomicFile::create).transpose();
    let mut ids = text_file(&export.ids)?;
    let mut provenance = text_file(&export.provenance)?;
    let total = counts.items - counts.lacking;
    observer.observe(&Observation::Began { stage: "exporting", unit: "vectors", total });
    let mut written = 0;
    let page = Scan::new(&export.space, Select::All, EXPORT_ITEMS);
    let mut walk = Some(page.with_vectors_of(&export.space).without_contents());
    while let Some(page) = walk {
        expect_going(observer)?;
        let records = store.scan(&page)?;
        walk = page.following(&records);
        let mut rows = Vec::new();
        for record in records {
            let Some(vector) = record.vector else { continue };
            rows.extend(vector.vector);
            if let Some(ids) = &mut ids {
                // A gallery of an older rehang may hold such an id, by plain SQL or not.
                if record.item.id.contains(['\n', '\r']) {
                    return Err(Error::corrupt(
                        store.name(),
                        format!(
                            "the id {:?} has a line break, so a list of ids would shift against the vectors; give the item another id, \
                             or export to .parquet, where the ids stand beside the vectors",
                            record.item.id
                        ),
                    ));
                }
                ids.put(format!("{}\n", record.item.id).as_bytes())?;
            }
            if let Some(provenance) = &mut provenance {
                provenance.put(format!("{}\n", vector.provenance).as_bytes())?;
            }
            written += 1;
            observer.observe(&Observation::Advanced { units: 1 });
        }
        vectors.write(&rows, None, None)?;
    }
    vectors.commit()?;
    for file in [ids, provenance].into_iter().flatten() {
        file.commit()?;
    }
    let lacking = store.counts(&export.space)?.lacking;
    Ok(ExportedSpace { space: export.space.clone(), vectors: written, lacking, of: space })
}

#[cfg(test)]
mod tests {
    use rehang_core::Matrix;
    use rehang_files::write_matrix;

    use super::*;
    use crate::observe::Unobserved;

    /// Observer that puts another file in the place of one that was read, when the import begins to write.
    struct Replaces<'a>(&'a Path, &'a [u8]);

    impl Observer for Replaces<'_> {
        fn observe(&self, observation: &Observation<'_>) {
            if matches!(observation, Observation::Began { .. }) {
                AtomicFile::write(self.0, self.1).unwrap();
            }
        }
    }

    #[test]
    fn files_that_are_others_when_they_are_read_again_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let items = |ids: &[&str]| {
            ids.iter().map(|id| format!("{{\"id\": \"{id}\"}}\n")).collect::<String>().into_bytes()
        };
        let vectors = |rows: usize, columns: usize| {
            let matrix = Matrix::from_fn(rows, columns, |row, column| (row + column) as f32);
            write_matrix(path("other.npy"), &matrix, None).unwrap();
            fs_err::read(path("other.npy")).unwrap()
        };
        let (first_items, first_vectors) = (items(&["a", "b"]), vectors(2, 2));
        let import_files = Import {
            space: "old".into(),
            distance: Distance::L2,
            vectors: VectorSource::path(path("vectors.npy")),
            items: path("items.jsonl"),
        };
        let location = Location::file(path("gallery.db"));
        for (name, bytes) in [
            ("items.jsonl", items(&["b", "a"])),
            ("items.jsonl", items(&["a", "a"])),
            ("items.jsonl", items(&["a"])),
            ("items.jsonl", items(&["a", "b", "c"])),
            ("vectors.npy", vectors(1, 2)),
            ("vectors.npy", vectors(3, 2)),
            ("vectors.npy", vectors(1, 4)),
            ("vectors.npy", vectors(4, 1)),
        ] {
            AtomicFile::write(path("items.jsonl"), &first_items).unwrap();
            AtomicFile::write(path("vectors.npy"), &first_vectors).unwrap();
            let error = import(&location, &import_files, &Replaces(&path(name), &bytes)).unwrap_err();
            assert!(error.is_changed_meanwhile() && error.to_string().contains(name), "{error}");
            assert!(!location.exists(), "{error}");
        }
        AtomicFile::write(path("vectors.npy"), &first_vectors).unwrap();
        assert_eq!(import(&location, &import_files, &Unobserved).unwrap().items, 2);
    }

    #[test]
    fn an_id_that_stands_twice_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("items.jsonl");
        let lines = |ids: &[&str]| ids.iter().map(|id| format!("{{\"id\": \"{id}\"}}\n")).collect::<String>();
        AtomicFile::write(&path, lines(&["a", "b", "c", "b", "a"])).unwrap();
        let error = read_ids(&path).unwrap_err().to_string();
        assert!(error.contains("items.jsonl") && error.contains("id \"b\""), "{error}");
        AtomicFile::write(&path, lines(&["a", "b", "c"])).unwrap();
        assert_eq!(read_ids(&path).unwrap(), ["a", "b", "c"].map(hash));
    }

    /// Refuses an id or a payload that would be rounded, since it would be another item's.
    #[test]
    fn numbers_are_exact_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("items.jsonl");
        AtomicFile::write(&path, b"{\"id\": 18446744073709551615}\n{\"id\": \"18446744073709551616\"}\n")
            .unwrap();
        let ids = || ids_of(&path).unwrap().collect::<Result<Vec<_>>>().unwrap();
        assert_eq!(ids(), ["18446744073709551615", "18446744073709551616"]);
        for line in [
            "{\"id\": 30000000000000000001}",
            "{\"id\": \"a\", \"label\": 30000000000000000001}",
            "{\"id\": \"a\", \"payload\": {\"n\": [30000000000000000001]}}",
        ] {
            AtomicFile::write(&path, line).unwrap();
            let error = read_ids(&path).unwrap_err().to_string();
            assert!(
                error.contains("30000000000000000001 would be rounded") && error.contains("line 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_line_of_items_beyond_the_bound_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("items.jsonl");
        AtomicFile::write(&path, b"\n{\"id\": \"a\"}\r\n \t\n{\"id\": 7}").unwrap();
        assert_eq!(read_ids(&path).unwrap(), ["a", "7"].map(hash));
        let source = "x".repeat(16 << 20);
        AtomicFile::write(&path, format!("\n{{\"id\": \"a\", \"source\": \"{source}\"}}\n").as_bytes())
            .unwrap();
        let error = read_ids(&path).unwrap_err();
        assert!(
            error.is_corrupt() && error.to_string().contains("line 2: it is longer than 16 MiB"),
            "{error}"
        );
    }
}
