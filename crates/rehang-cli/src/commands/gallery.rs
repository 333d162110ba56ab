//! `rehang gallery import|export|put|delete|drop-space|info`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use rehang::files::stream::{self, Columns, RowBatch};
use rehang::files::{self, AtomicFile, VectorSource};
use rehang::{Distance, Error, ErrorKind, Matrix, NORMALISED_TOLERANCE, Provenance, Result, Space, norm};
use rehang_store::{
    Item, ItemKey, ItemWrite, NewVector, Scan, Select, SqliteStore, Store, expect_space, find_space,
};
use rehang_upgrade::{Gallery as LiveGallery, Phase, Recorded, expect_same};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::{TempDir, TempPath};

use super::{Outcome, expect_apart, print, say, upgrade};
use crate::arguments::{Delete, DropSpace, Export, Gallery, Import, Info, Put};
use crate::bar::with_bar;
use crate::configuration::Configuration;

/// Items of one transaction while importing.
const IMPORT_ITEMS: usize = 1000;
/// Items of one page while exporting.
const EXPORT_ITEMS: usize = 2000;

/// Runs one of the verbs.
pub fn run(arguments: &Gallery, json: bool) -> Result<Outcome> {
    match arguments {
        Gallery::Import(import) => run_import(import, json),
        Gallery::Export(export) => run_export(export, json),
        Gallery::Put(put) => run_put(put, json),
        Gallery::Delete(delete) => run_delete(delete, json),
        Gallery::DropSpace(space) => run_drop_space(space, json),
        Gallery::Info(info) => run_info(info, json),
    }
}

/// One line of an items file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemLine {
    id: Text,
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    label: Option<Text>,
    #[serde(default)]
    payload: Value,
}

/// Ids and labels may be numbers in people's files.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Number(serde_json::Number),
}

impl Text {
    fn into_string(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        }
    }
}

fn run_import(arguments: &Import, json: bool) -> Result<Outcome> {
    let distance: Distance = arguments.distance.parse()?;
    let source = VectorSource::parse(&arguments.vectors)?;
    let ids = read_ids(&arguments.items)?;
    let (dimension, normalised) = survey(&source, ids.len(), &arguments.items)?;
    let contents = (dimension, normalised, distance);
    if arguments.gallery.exists() {
        let store = SqliteStore::open(&arguments.gallery)?;
        fill_gallery(&store, arguments, &source, contents, &ids)?;
    } else {
        let new = NewGallery::begin(&arguments.gallery)?;
        fill_gallery(&new.store, arguments, &source, contents, &ids)?;
        new.publish()?;
    }
    let space = Space::new(&arguments.space, dimension, distance, normalised);
    let value = json!({
        "gallery": arguments.gallery.display().to_string(),
        "space": arguments.space,
        "items": ids.len(),
        "dimension": dimension,
        "distance": distance.name(),
        "normalised": normalised,
    });
    let text = format!("{}: {} items with vectors of {space}\n", arguments.gallery.display(), ids.len());
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}

/// A gallery that appears whole or not at all: it is made in a hidden folder of its own beside its place, and moved there
/// at the end. Dropped before, it leaves nothing.
struct NewGallery<'a> {
    place: &'a Path,
    store: SqliteStore,
    partial: PathBuf,
    /// Removed with everything in it when dropped.
    _folder: TempDir,
}

impl<'a> NewGallery<'a> {
    /// Makes an empty gallery whose place is still free.
    fn begin(place: &'a Path) -> Result<Self> {
        expect_no_log(place)?;
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let folder = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".partial")
            .tempdir_in(parent)
            .map_err(|error| Error::io("create", place, &error))?;
        let partial = folder.path().join("gallery.db");
        Ok(Self { place, store: SqliteStore::create(&partial)?, partial, _folder: folder })
    }

    /// Gives the gallery its place. Whatever came there in the meantime stays as it is, and is a conflict.
    fn publish(self) -> Result<()> {
        let Self { place, store, partial, _folder } = self;
        // SQLite keeps the newest pages beside the file: they have to be in it before it is moved.
        store.close()?;
        expect_no_log(place)?;
        TempPath::try_from_path(&partial)
            .and_then(|partial| partial.persist_noclobber(place).map_err(|error| error.error))
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => Error::conflict(
                    format!("{} was made by somebody else during this import", place.display()),
                    "it is untouched and nothing was imported; run the import again to add to it, or give another name",
                ),
                _ => Error::io("create", place, &error),
            })
    }
}

/// Fails where the log of an earlier gallery lies beside the place of a new one: SQLite would take it for a part of that.
/// It is not ours to remove, since the last writes of a gallery that was moved away may lie there only.
fn expect_no_log(place: &Path) -> Result<()> {
    for suffix in ["-wal", "-journal"] {
        let mut log = place.as_os_str().to_owned();
        log.push(suffix);
        let log = PathBuf::from(log);
        let is_there = fs_err::metadata(&log).is_ok_and(|metadata| metadata.len() > 0);
        // With a gallery beside it, it is that one's, and the gallery itself is in the way.
        if is_there && !place.exists() {
            return Err(Error::conflict(
                format!("the log {} of an earlier gallery is there without its gallery", log.display()),
                "bring that gallery back beside it, or remove the log if the gallery is gone for good",
            ));
        }
    }
    Ok(())
}

/// The ids of an items file, each line checked: so nothing is written for a file that is damaged at its end.
fn read_ids(path: &Path) -> Result<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut ids = Vec::new();
    for line in item_lines(path)? {
        let id = line?.id.into_string();
        check_id(&id).map_err(|error| error.context(path.display().to_string()))?;
        if !seen.insert(id.clone()) {
            return Err(ErrorKind::Duplicate {
                what: path.display().to_string(),
                value: format!("id {id:?}"),
            }
            .into());
        }
        ids.push(id);
    }
    if ids.is_empty() {
        return Err(ErrorKind::Empty { what: path.display().to_string() }.into());
    }
    Ok(ids)
}

/// Ids go into files line by line, so none may hold a line break.
fn check_id(id: &str) -> Result<()> {
    if id.is_empty() || id.chars().any(char::is_control) {
        return Err(Error::option(
            "id",
            id,
            "at least one character, and no line breaks or control characters",
        ));
    }
    Ok(())
}

fn item_lines(path: &Path) -> Result<impl Iterator<Item = Result<ItemLine>> + use<>> {
    let file = fs_err::File::open(path).map_err(|error| Error::io("open", path, &error))?;
    let path = path.to_owned();
    Ok(BufReader::new(file).lines().enumerate().filter_map(move |(number, line)| {
        let line = match line {
            Ok(line) => line,
            Err(error) => return Some(Err(Error::io("read", &path, &error))),
        };
        if line.trim().is_empty() {
            return None;
        }
        Some(serde_json::from_str(&line).map_err(|error| {
            Error::corrupt(
                format!("{}, line {}", path.display(), number + 1),
                format!(
                    "{error}; a line is {{\"id\": \"…\", \"source\": \"…\", \"label\": …, \"payload\": …}}"
                ),
            )
        }))
    }))
}

/// Reads all vectors once: their width, and whether all have length 1. Fails for NaN and for another count than `items`.
fn survey(source: &VectorSource, items: usize, items_path: &Path) -> Result<(usize, bool)> {
    let mut reader = stream::open(source)?;
    let dimension = reader.width();
    let what = source.to_string();
    let (mut rows, mut normalised) = (0, true);
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
        rows += count;
    }
    if rows != items {
        return Err(ErrorKind::CountMismatch {
            left: what,
            left_count: rows,
            right: items_path.display().to_string(),
            right_count: items,
        }
        .into());
    }
    Ok((dimension, normalised))
}

fn fill_gallery(
    store: &SqliteStore,
    arguments: &Import,
    source: &VectorSource,
    (dimension, normalised, distance): (usize, bool, Distance),
    ids: &[String],
) -> Result<()> {
    let mut space = Space::new(&arguments.space, dimension, distance, normalised);
    if let Some(there) = find_space(store, &arguments.space)? {
        // A raw space takes vectors that happen to have length 1; everything else has to agree.
        space.normalised &= there.space.normalised;
        there.space.expect_same(&space)?;
    }
    expect_no_other_vectors(store, &arguments.space, ids)?;
    store.create_space(&space, Provenance::Old)?;
    let written_as = expect_space(store, &arguments.space)?.written_as;
    with_bar(|progress| {
        progress.begin("importing", "items", ids.len() as u64);
        let mut reader = stream::open(source)?;
        let mut lines = item_lines(&arguments.items)?;
        let mut batch = RowBatch::default();
        while reader.next_batch(IMPORT_ITEMS, &mut batch)? > 0 {
            progress.check()?;
            let mut writes = Vec::with_capacity(IMPORT_ITEMS);
            for row in batch.vectors.chunks_exact(dimension) {
                let line = lines.next().ok_or_else(|| {
                    Error::corrupt(arguments.items.display(), "it became shorter while it was read")
                })??;
                writes.push(ItemWrite {
                    id: line.id.into_string(),
                    source: line.source,
                    label: line.label.map(Text::into_string),
                    payload: line.payload,
                    vectors: vec![NewVector {
                        space: arguments.space.clone(),
                        vector: row.to_vec(),
                        provenance: written_as,
                        sigma2: None,
                        priority: None,
                    }],
                });
            }
            store.put(&writes)?;
            progress.advance(writes.len() as u64);
        }
        Ok(())
    })
}

/// Fails where items are in the gallery with vectors of another space: writing them is a change of their content, which
/// would remove those.
fn expect_no_other_vectors(store: &SqliteStore, space: &str, ids: &[String]) -> Result<()> {
    let spaces = store.spaces()?;
    let others: Vec<&str> =
        spaces.iter().map(|record| record.space.model.as_str()).filter(|name| *name != space).collect();
    let mut count = 0;
    for page in ids.chunks(IMPORT_ITEMS) {
        let page: Vec<&str> = page.iter().map(String::as_str).collect();
        let keys: Vec<_> = store.get(&page)?.into_iter().flatten().map(|item| item.key).collect();
        for other in &others {
            count += store.vectors(other, &keys)?.iter().filter(|vector| vector.is_some()).count();
        }
    }
    if count == 0 {
        return Ok(());
    }
    Err(Error::conflict(
        format!(
            "{count} vectors of {} in {} belong to items of this import",
            others.join(", "),
            store.name()
        ),
        "importing an item anew removes its vectors in other spaces; delete the items first if that is meant, or write \
         single items with `rehang gallery put`",
    ))
}

fn run_export(arguments: &Export, json: bool) -> Result<Outcome> {
    let outputs = [
        ("--vectors", Some(&arguments.vectors)),
        ("--ids", arguments.ids.as_ref()),
        ("--provenance", arguments.provenance.as_ref()),
    ];
    expect_apart(&outputs, &[("--gallery", arguments.gallery.clone())])?;
    let store = SqliteStore::open(&arguments.gallery)?;
    let space = expect_space(&store, &arguments.space)?.space;
    let counts = store.counts(&arguments.space)?;
    // Every output is opened before the first page is read.
    let mut vectors = stream::create(&arguments.vectors, Columns::vectors(space.dimension))?;
    let text_file = |path: &Option<PathBuf>| path.as_ref().map(AtomicFile::create).transpose();
    let mut ids = text_file(&arguments.ids)?;
    let mut provenance = text_file(&arguments.provenance)?;
    let written = with_bar(|progress| -> Result<u64> {
        progress.begin("exporting", "vectors", counts.items - counts.lacking);
        let mut written = 0;
        let mut after = None;
        loop {
            progress.check()?;
            let scan = Scan::new(&arguments.space, Select::All, EXPORT_ITEMS)
                .after(after)
                .with_vectors_of(&arguments.space);
            let records = store.scan(&scan)?;
            let Some(last) = records.last() else { return Ok(written) };
            after = Some(last.item.key);
            let mut rows = Vec::new();
            for record in records {
                let Some(vector) = record.vector else { continue };
                rows.extend(vector.vector);
                if let Some(ids) = &mut ids {
                    ids.put(format!("{}\n", record.item.id).as_bytes())?;
                }
                if let Some(provenance) = &mut provenance {
                    provenance.put(format!("{}\n", vector.provenance).as_bytes())?;
                }
                written += 1;
                progress.advance(1);
            }
            vectors.write(&rows, None, None)?;
        }
    })?;
    vectors.commit()?;
    for file in [ids, provenance].into_iter().flatten() {
        file.commit()?;
    }
    let lacking = store.counts(&arguments.space)?.lacking;
    let value = json!({ "space": arguments.space, "vectors": written, "lacking": lacking });
    let text = format!("{}: {written} vectors of {space}\n", arguments.vectors.display());
    print(json, &value, &text)?;
    if lacking > 0 {
        say(&format!("{lacking} items have no vector in {:?}: they are not in the files.", arguments.space));
        return Ok(Outcome::WithRefusals);
    }
    Ok(Outcome::Done)
}

fn run_put(arguments: &Put, json: bool) -> Result<Outcome> {
    let configuration = arguments.config.as_deref().map(Configuration::read).transpose()?;
    check_id(&arguments.id)?;
    let store = SqliteStore::open(&arguments.gallery)?;
    let before = store.get(&[&arguments.id])?.into_iter().next().flatten();
    let kept = |of: fn(&Item) -> Option<String>| before.as_ref().and_then(of);
    let payload = match &arguments.payload {
        None => before.as_ref().map_or(Value::Null, |item| item.payload.clone()),
        Some(text) => serde_json::from_str(text)
            .map_err(|error| Error::option("--payload", text, format!("JSON ({error})")))?,
    };
    let mut vectors = Vec::new();
    for text in &arguments.vectors {
        let (space, vector) = parse_vector(text)?;
        let provenance = expect_space(&store, &space)?.written_as;
        vectors.push(NewVector { space, vector, provenance, sigma2: None, priority: None });
    }
    let write = ItemWrite {
        id: arguments.id.clone(),
        source: arguments.source.clone().or_else(|| kept(|item| item.source.clone())),
        label: arguments.label.clone().or_else(|| kept(|item| item.label.clone())),
        payload,
        vectors,
    };
    if let Some(configuration) = &configuration {
        expect_of_gallery(configuration, &arguments.gallery, &store)?;
    }
    let gallery =
        LiveGallery::new(&store, configuration.as_ref().map(|configuration| &configuration.adapter));
    // An item keeps its key for as long as it lives.
    let spaces = || before.as_ref().map_or_else(|| Ok(Vec::new()), |item| spaces_with(&store, item.key));
    let had = spaces()?;
    let revisions = gallery.put(vec![write])?;
    let revision = revisions.first().copied().unwrap_or_default();
    let has = spaces()?;
    let removed: Vec<&String> = had.iter().filter(|space| !has.contains(space)).collect();
    let mut text = format!("{} has revision {revision}\n", arguments.id);
    if !removed.is_empty() {
        text += &format!(
            "Its vectors in {removed:?} were of the content before and are removed; no search finds it there until it has one \
             again (`--vector`, or a live upgrade that embeds its source).\n"
        );
    }
    let value = json!({ "id": arguments.id, "revision": revision, "removed_from": removed });
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}

/// The spaces in which an item has a vector.
fn spaces_with(store: &SqliteStore, key: ItemKey) -> Result<Vec<String>> {
    let mut spaces = Vec::new();
    for space in store.spaces()? {
        if store.provenances(&space.space.model, &[key])?.iter().any(Option::is_some) {
            spaces.push(space.space.model);
        }
    }
    Ok(spaces)
}

/// Fails where a configuration names another gallery, or another upgrade than the one under way: its adapter would write
/// vectors that are not of this upgrade.
fn expect_of_gallery(configuration: &Configuration, gallery: &Path, store: &SqliteStore) -> Result<()> {
    let file = |path: &Path| fs_err::canonicalize(path).map_err(|error| Error::io("open", path, &error));
    if file(&configuration.gallery)? != file(gallery)? {
        return Err(Error::option(
            "--config",
            configuration.path.display(),
            format!(
                "the configuration of an upgrade of {}; it names {}",
                gallery.display(),
                configuration.gallery.display()
            ),
        ));
    }
    match Recorded::read(store)? {
        Some(recorded) if recorded.record.is_live() => expect_same(store, &configuration.setup()),
        _ => Ok(()),
    }
}

/// `NAME=FILE` with one row, or `NAME=[…]`.
fn parse_vector(text: &str) -> Result<(String, Vec<f32>)> {
    let expected = "NAME=FILE or NAME=[0.1,0.2,…]";
    let (name, value) = text.split_once('=').ok_or_else(|| Error::option("--vector", text, expected))?;
    if value.trim_start().starts_with('[') {
        let vector = serde_json::from_str(value)
            .map_err(|error| Error::option("--vector", value, format!("{expected} ({error})")))?;
        return Ok((name.into(), vector));
    }
    let matrix: Matrix = files::read_matrix(&VectorSource::parse(value)?)?;
    if matrix.rows() != 1 {
        return Err(Error::option("--vector", text, format!("a file with one row, not {}", matrix.rows())));
    }
    Ok((name.into(), matrix.into_data()))
}

fn run_delete(arguments: &Delete, json: bool) -> Result<Outcome> {
    let ids: Vec<&str> = arguments.ids.iter().chain(&arguments.more_ids).map(String::as_str).collect();
    if ids.is_empty() {
        return Err(Error::missing("an id", "`rehang gallery delete`"));
    }
    let store = SqliteStore::open(&arguments.gallery)?;
    let found: Vec<Option<Item>> = store.get(&ids)?;
    let missing: Vec<&str> =
        ids.iter().zip(&found).filter(|(_, item)| item.is_none()).map(|(id, _)| *id).collect();
    let deleted = store.delete(&ids)?;
    let value = json!({ "deleted": deleted, "missing": missing });
    print(json, &value, &format!("{deleted} deleted\n"))?;
    if !missing.is_empty() {
        say(&format!("There is no item {}.", missing.join(", ")));
        return Ok(Outcome::WithRefusals);
    }
    Ok(Outcome::Done)
}

fn run_drop_space(arguments: &DropSpace, json: bool) -> Result<Outcome> {
    let name = &arguments.space;
    let store = SqliteStore::open(&arguments.gallery)?;
    let space = expect_space(&store, name)?.space;
    // No upgrade begins to use the space between the look at the record and the drop.
    let _alone = upgrade::hold_gallery(&arguments.gallery)?;
    if let Some(Recorded { record, .. }) = Recorded::read(&store)?
        && record.phase != Phase::Finished
        && [&record.old.model, &record.new.model].contains(&name)
    {
        return Err(Error::conflict(
            format!(
                "space {name:?} takes part in the upgrade from {:?} to {:?}",
                record.old.model, record.new.model
            ),
            format!(
                "it is {}; finish it, or roll it back and begin another one, then drop what is left",
                record.phase.name()
            ),
        ));
    }
    let counts = store.counts(name)?;
    store.drop_space(name)?;
    let vectors = counts.items - counts.lacking;
    let text = format!("{space} is gone from {}, with {vectors} vectors\n", arguments.gallery.display());
    print(json, &json!({ "dropped": name, "vectors": vectors }), &text)?;
    Ok(Outcome::Done)
}

fn run_info(arguments: &Info, json: bool) -> Result<Outcome> {
    let store = SqliteStore::open(&arguments.gallery)?;
    let serving = store.serving()?;
    let mut spaces = Vec::new();
    let mut text = format!("{}\n", arguments.gallery.display());
    for record in store.spaces()? {
        let counts = store.counts(&record.space.model)?;
        let serves = serving.as_deref() == Some(record.space.model.as_str());
        text += &format!(
            "  {}{}: {} items, {} old, {} adapted, {} native, {} without a vector\n",
            record.space,
            if serves { " (serving)" } else { "" },
            counts.items,
            counts.old,
            counts.adapted,
            counts.native,
            counts.lacking
        );
        spaces.push(json!({ "space": record.space, "serving": serves, "counts": counts }));
    }
    print(json, &json!({ "serving": serving, "spaces": spaces }), &text)?;
    Ok(Outcome::Done)
}
