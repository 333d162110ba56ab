//! Queries that people asked, embedded by both models, and their clicks as judgements, kept as
//! files of the gallery.
//!
//! Where queries are kept, the choice of a map and the forecast go by them. A click names its query by the
//! place in the file, and its item by the id. So items may come and go: a click counts where the gallery, or
//! its pairs, have its item when something is measured.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rehang_core::curve::Qrels;
use rehang_core::{Adapter, Error, Matrix, Result, Space};
use rehang_files::{Clicked, VectorSource, read_clicks};
use rehang_store::{Files, Ledger};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::observe::Observer;
use crate::serve::query::{self, Query, QueryEncoders};

/// Items that are looked up at a time.
const ITEMS_PAGE: usize = 2048;

/// A line of a file of queries: a text or an image, with the id that clicks name it by.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryLine {
    id: Option<Value>,
    text: Option<String>,
    image: Option<PathBuf>,
}

/// A query, and the name that clicks give it: its id, or else its text or the path of its image as
/// the file writes it.
struct Named {
    name: String,
    query: Query,
}

/// Reads queries, one JSON object a line: `{"text": "…"}`, or `{"image": "FILE"}` seen from the folder of the
/// file; either may have an `"id"`.
fn read_queries(path: &Path) -> Result<Vec<Named>> {
    let folder = rehang_files::folder_of(path);
    let lines = rehang_files::read_lines(path)?;
    let queries = lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(|(at, line)| {
        let corrupt = |error: &str| {
            let detail = format!("line {}: {error}; {{\"text\": …}} or {{\"image\": …}} is expected", at + 1);
            Error::corrupt(path.display(), detail)
        };
        let line: QueryLine = serde_json::from_str(line).map_err(|error| {
            // serde_json counts lines within this one line, which would read as another line of the file.
            let error = error.to_string();
            corrupt(error.split_once(" at line ").map_or(error.as_str(), |(error, _)| error))
        })?;
        let (written_name, query) = match (line.text, line.image) {
            (Some(text), None) => (text.clone(), Query::Text(text)),
            (None, Some(image)) => (image.display().to_string(), Query::Image(folder.join(image))),
            (Some(_), Some(_)) => return Err(corrupt("it has a text and an image")),
            (None, None) => return Err(corrupt("it has neither a text nor an image")),
        };
        let name = match line.id {
            None => written_name,
            Some(Value::String(id)) => id,
            Some(Value::Number(id)) if id.is_i64() || id.is_u64() => id.to_string(),
            Some(_) => return Err(corrupt("its id is neither text nor a whole number")),
        };
        Ok(Named { name, query })
    });
    queries.collect()
}

/// Click on an item in answer to a query, with its gain.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Click {
    /// Place of the query among all that are asked.
    pub query: usize,
    pub item: String,
    pub gain: f64,
}

/// Queries that people asked, and their clicks on the answers.
pub(crate) struct Asked {
    /// File that errors about these queries name.
    path: PathBuf,
    pub queries: Vec<Query>,
    pub clicks: Option<Vec<Click>>,
    /// Number of clicks whose query is not among `queries`.
    unknown_queries: usize,
}

impl Asked {
    /// Reads queries and clicks from their files. Without a file of queries, the queries are those that the
    /// clicks name, and each name is the text. `None` without either file.
    ///
    /// # Errors
    ///
    /// What is wrong with a file, naming it and its line; corrupt where no click is of one of the queries.
    pub fn read(queries: Option<&Path>, clicks: Option<&Path>) -> Result<Option<Self>> {
        let Some(path) = queries.or(clicks) else { return Ok(None) };
        let named = queries.map(read_queries).transpose()?;
        let Some(log) = clicks else {
            let queries = named.into_iter().flatten().map(|named| named.query).collect();
            return Ok(Some(Self { path: path.to_owned(), queries, clicks: None, unknown_queries: 0 }));
        };
        let clicked = read_clicks(log)?;
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut all_queries = Vec::new();
        let is_given = named.is_some();
        for Named { name, query } in named.into_iter().flatten() {
            // Clicks of a query that stands in the file twice go to the first of the two.
            places.entry(name).or_insert(all_queries.len());
            all_queries.push(query);
        }
        let (mut clicks, mut unknown_queries) = (Vec::new(), 0);
        for Clicked { query, item, gain } in clicked {
            let place = match places.get(&query) {
                Some(&place) => place,
                None if is_given => {
                    unknown_queries += 1;
                    continue;
                }
                None => {
                    places.insert(query.clone(), all_queries.len());
                    all_queries.push(Query::Text(query));
                    all_queries.len() - 1
                }
            };
            clicks.push(Click { query: place, item, gain });
        }
        if clicks.is_empty() {
            let detail = format!(
                "none of its {unknown_queries} clicks is of a query of {}: a click names its query by the id, or else the text, that stands there",
                path.display()
            );
            return Err(Error::corrupt(log.display(), detail));
        }
        Ok(Some(Self { path: path.to_owned(), queries: all_queries, clicks: Some(clicks), unknown_queries }))
    }

    /// Counts the clicks whose item the gallery has, and those that say nothing of it; `None` where no
    /// clicks were given.
    ///
    /// # Errors
    ///
    /// Corrupt where the gallery has none of the clicked items; those of the store.
    pub fn clicks(&self, store: &dyn Ledger) -> Result<Option<ClicksKept>> {
        let Some(clicks) = &self.clicks else { return Ok(None) };
        let mut unknown_items = 0;
        for page in clicks.chunks(ITEMS_PAGE) {
            let ids: Vec<&str> = page.iter().map(|click| click.item.as_str()).collect();
            unknown_items += store.get(&ids)?.iter().filter(|item| item.is_none()).count();
        }
        if unknown_items == clicks.len() {
            let first = clicks.first().map_or("", |click| &click.item);
            let detail = format!(
                "none of its {unknown_items} clicks is of an item of {} (the first is of {first:?}); a click names its item by the gallery's id",
                store.name()
            );
            return Err(Error::corrupt("the file of clicks", detail));
        }
        let clicks_kept = clicks.len() - unknown_items;
        Ok(Some(ClicksKept { kept: clicks_kept, unknown_items, unknown_queries: self.unknown_queries }))
    }
}

/// Counts of the clicks that choice and forecast go by, each query and item once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClicksKept {
    /// Clicks of items that the gallery has.
    pub kept: usize,
    /// Clicks of items that the gallery does not have.
    pub unknown_items: usize,
    /// Clicks of queries that are not among those of the file of queries.
    pub unknown_queries: usize,
}

/// Click as a line of the gallery's file of clicks.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct KeptClick {
    /// Place of the query among all that were asked.
    query: usize,
    /// Row of the query among the vectors; `None` where one of the models could not embed it.
    row: Option<usize>,
    item: String,
    gain: f64,
}

/// Name of the file that says whose vectors are kept: the new and the old model, then every
/// query, a line each.
const ASKED: &str = "queries.txt";
/// Name of the file of query vectors by the old model: numbers of single precision, one row after the other,
/// the first byte the least. `BY_NEW` names those by the new model.
const BY_OLD: &str = "queries-old.f32";
const BY_NEW: &str = "queries-new.f32";
/// Name of the file of clicks, a line of JSON each; there is none where no clicks were given.
const CLICKED: &str = "queries-clicked.jsonl";
/// Beginning of the names of files with vectors that were paid for, a line each: one file a batch, with a
/// number at the end.
const EMBEDDED: &str = "queries-embedded-";

/// Vectors of the same queries by both models, a row a query.
pub(crate) struct ByBoth {
    pub old: Matrix,
    pub new: Matrix,
}

impl ByBoth {
    /// Gives the queries by the old and by the new model as inputs held in memory, in the place of files.
    pub fn sources(self) -> (VectorSource, VectorSource) {
        (
            VectorSource::given("queries by the old model", self.old),
            VectorSource::given("queries by the new model", self.new),
        )
    }
}

/// Queries of an upgrade and their clicks, as files of the gallery keep them.
#[derive(Clone, Copy)]
pub(crate) struct KeptQueries<'a> {
    files: Files<'a>,
}

/// Role of the clicks among the inputs that a map was fitted by.
pub(crate) const CLICKS: &str = "clicks";

/// Names a query in the gallery's files, by its `Debug` form.
pub(crate) fn name_of(query: &Query) -> String {
    format!("{query:?}")
}

/// Line of a file with vectors that were paid for.
#[derive(Debug, Serialize, Deserialize)]
struct Embedded {
    model: String,
    query: String,
    vector: Vec<f32>,
}

impl<'a> KeptQueries<'a> {
    pub fn for_store(store: &'a dyn Ledger) -> Self {
        Self { files: Files::in_ledger(store) }
    }

    /// Reads the query vectors by both models of an upgrade; `None` where there are none, or they are
    /// of another upgrade.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn vectors(&self, old: &Space, new: &Space) -> Result<Option<ByBoth>> {
        let list = self.text(ASKED)?.unwrap_or_default();
        let mut models = list.lines();
        // The written form of a space says whether its vectors have length 1, which was
        // perhaps not known yet.
        let mut is_next_of = |space: &Space| {
            models.next().is_some_and(|model| {
                let written_form = |normalised| format!("{} ", Space { normalised, ..space.clone() });
                model.starts_with(&written_form(true)) || model.starts_with(&written_form(false))
            })
        };
        if !(is_next_of(new) && is_next_of(old)) {
            return Ok(None);
        }
        let (Some(by_old), Some(by_new)) = (self.files.read(BY_OLD)?, self.files.read(BY_NEW)?) else {
            return Ok(None);
        };
        let matrix = |space: &Space, bytes: &[u8]| {
            Matrix::new(
                space.dimension,
                bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            )
        };
        Ok(Some(ByBoth { old: matrix(old, &by_old)?, new: matrix(new, &by_new)? }))
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.files.read(name)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|error| Error::corrupt(name, error))
    }

    /// Whether the kept vectors are of exactly these queries; some may lack one, since a model
    /// could not embed them.
    fn are_of(&self, queries: &[Query]) -> Result<bool> {
        let list = self.text(ASKED)?.unwrap_or_default();
        Ok(list.lines().skip(2).eq(queries.iter().map(name_of)))
    }

    /// Reads the clicks that are kept; `None` where there are none.
    fn clicks(&self) -> Result<Option<Vec<KeptClick>>> {
        let Some(text) = self.text(CLICKED)? else { return Ok(None) };
        let click = |line: &str| serde_json::from_str(line).map_err(|error| Error::corrupt(CLICKED, error));
        text.lines().map(click).collect::<Result<_>>().map(Some)
    }

    /// Whether the clicks that are kept are these, in the same order; for `None`, whether there are none.
    fn have_clicks(&self, clicks: Option<&[Click]>) -> bool {
        let is_same = |line: &KeptClick, click: &Click| {
            // The last digit of a gain may change on the way through a file.
            let is_alike = (line.gain - click.gain).abs() <= 1e-9 * click.gain;
            is_alike && line.query == click.query && line.item == click.item
        };
        match (self.clicks(), clicks) {
            (Ok(None), None) => true,
            (Ok(Some(lines)), Some(clicks)) => {
                lines.len() == clicks.len()
                    && lines.iter().zip(clicks).all(|(line, click)| is_same(line, click))
            }
            _ => false,
        }
    }

    /// Lists the items that were clicked, each once, in the order of the clicks.
    ///
    /// # Errors
    ///
    /// Those of the store; corrupt where the file cannot be read.
    pub fn clicked_items(&self) -> Result<Vec<String>> {
        let mut distinct = HashSet::new();
        let clicks = self.clicks()?.unwrap_or_default().into_iter();
        let items = clicks.filter(|click| click.row.is_some()).map(|click| click.item);
        Ok(items.filter(|item| distinct.insert(item.clone())).collect())
    }

    /// Reads the clicks as judgements of `queries` queries on the items of these ids, numbered by their
    /// place. `None` where no clicks are kept.
    ///
    /// # Errors
    ///
    /// Those of the store; corrupt where the file is of other queries.
    pub fn judged<'b>(
        &self,
        ids: impl IntoIterator<Item = &'b str>,
        queries: usize,
    ) -> Result<Option<Qrels>> {
        let Some(clicks) = self.clicks()? else { return Ok(None) };
        let places: HashMap<&str, usize> =
            ids.into_iter().enumerate().map(|(place, id)| (id, place)).collect();
        let mut judged = vec![Vec::new(); queries];
        for KeptClick { row, item, gain, .. } in clicks {
            let (Some(row), Some(&place)) = (row, places.get(item.as_str())) else { continue };
            let clicks_of_query = judged
                .get_mut(row)
                .ok_or_else(|| Error::corrupt(CLICKED, format!("query {row} is clicked of {queries}")))?;
            clicks_of_query.push((place, gain));
        }
        Qrels::new(judged).map(Some)
    }

    /// Fingerprint of the clicks that are kept; `None` where there are none.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn clicks_fingerprint(&self) -> Result<Option<String>> {
        let Some(bytes) = self.files.read(CLICKED)? else { return Ok(None) };
        // Every byte is exact as f32.
        let rows = Matrix::new(1, bytes.into_iter().map(f32::from).collect())?;
        Ok(Some(rows.fingerprint()))
    }

    /// Writes the file of clicks, or removes it where there are none. `rows` has the row of each query
    /// among the vectors.
    fn keep_clicks(&self, clicks: Option<&[Click]>, rows: &[Option<usize>]) -> Result<()> {
        let Some(clicks) = clicks else { return self.files.retain(|name| name != CLICKED) };
        let mut text = String::new();
        for Click { query, item, gain } in clicks {
            let line = KeptClick { query: *query, row: rows[*query], item: item.clone(), gain: *gain };
            text += &serde_json::to_string(&line).map_err(|error| Error::corrupt(CLICKED, error))?;
            text.push('\n');
        }
        self.files.write(CLICKED, text.as_bytes())
    }

    /// Reads the vectors that were paid for: by model, then by query.
    fn embedded(&self) -> Result<BTreeMap<String, BTreeMap<String, Vec<f32>>>> {
        let mut embedded = BTreeMap::<_, BTreeMap<_, _>>::new();
        for name in self.files.names()?.iter().filter(|name| name.starts_with(EMBEDDED)) {
            for line in self.files.read(name)?.unwrap_or_default().split(|&byte| byte == b'\n') {
                if let Ok(Embedded { model, query, vector }) = serde_json::from_slice(line) {
                    embedded.entry(model).or_default().insert(query, vector);
                }
            }
        }
        Ok(embedded)
    }

    /// Adds a file with vectors that were paid for now.
    fn add(&self, lines: &[Embedded]) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for line in lines {
            text += &serde_json::to_string(line).map_err(|error| Error::corrupt(EMBEDDED, error))?;
            text.push('\n');
        }
        self.files.add(EMBEDDED, text.as_bytes())
    }
}

/// Copies into the gallery the queries that an earlier version kept in the folder of an upgrade.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn import_folder(store: &dyn Ledger, folder: &Path) -> Result<()> {
    let files = Files::in_ledger(store);
    let read = |name: &str| fs_err::read(folder.join(name)).ok();
    let vectors = |name: &str| {
        let rows = rehang_files::read_matrix(&VectorSource::path(folder.join(name))).ok()?;
        Some(bytes_of(&rows))
    };
    let imported = [
        ("queries-embedded-000000", read("queries-embedded.jsonl")),
        (BY_OLD, vectors("queries-old.npy")),
        (BY_NEW, vectors("queries-new.npy")),
        (CLICKED, read("queries-clicks.jsonl")),
        // The list comes last: without it the other files do not count.
        (ASKED, read("queries.jsonl")),
    ];
    imported
        .iter()
        .try_for_each(|(name, bytes)| bytes.as_ref().map_or(Ok(()), |bytes| files.write(name, bytes)))
}

fn bytes_of(rows: &Matrix) -> Vec<u8> {
    rows.as_slice().iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Whether the gallery has these queries by both models, and exactly these clicks.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn is_kept(store: &dyn Ledger, query_log: &Asked, (old, new): (&Space, &Space)) -> Result<bool> {
    let kept_queries = KeptQueries::for_store(store);
    Ok(kept_queries.are_of(&query_log.queries)?
        && kept_queries.have_clicks(query_log.clicks.as_deref())
        && kept_queries.vectors(old, new)?.is_some())
}

/// Whether an adapter was fitted by the queries and clicks that the gallery has; true where
/// it has no queries.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn is_by_queries(
    store: &dyn Ledger,
    adapter: &Adapter,
    (old, new): (&Space, &Space),
) -> Result<bool> {
    let kept_queries = KeptQueries::for_store(store);
    let Some(by_both) = kept_queries.vectors(old, new)? else { return Ok(true) };
    let inputs = &adapter.training.inputs;
    let is_of_queries = inputs.get("queries_new") == Some(&by_both.new.fingerprint());
    Ok(is_of_queries && inputs.get(CLICKS) == kept_queries.clicks_fingerprint()?.as_ref())
}

/// Embeds queries by both models and keeps them in the gallery, with their clicks, where a fit and a report
/// find them. Each query is embedded once by each model, however often it is asked for and whatever ends a
/// call: vectors are kept batch by batch, and `account` is called after each batch. A log holds queries that
/// no model can embed, and these are left out. Gives the number of queries that have vectors, and the reason
/// for each one that has none.
///
/// # Errors
///
/// Corrupt where none of the queries has a vector; what the caller says where it has no such encoder; what
/// `account` says; as [`query::embed_each`].
pub(crate) fn embed_queries(
    store: &dyn Ledger,
    query_log: &Asked,
    (old, new): (&Space, &Space),
    encoders: &QueryEncoders<'_>,
    account: &dyn Fn() -> Result<()>,
    observer: &dyn Observer,
) -> Result<(usize, Vec<String>)> {
    let mut queries: Vec<(String, Query)> =
        query_log.queries.iter().map(|query| (name_of(query), query.clone())).collect();
    let all_names: Vec<String> = queries.iter().map(|(name, _)| name.clone()).collect();
    // The new model comes first, since the budget is for it.
    let mut models = Vec::new();
    for space in [new, old] {
        let encoder = encoders(space)?;
        let model = format!("{space} {}", encoder.configured()?);
        models.push((space, encoder, model));
    }
    let names = models.iter().map(|(.., model)| model).chain(queries.iter().map(|(name, _)| name));
    let text: String = names.map(|name| format!("{name}\n")).collect();
    let kept_queries = KeptQueries::for_store(store);
    if let Some(by_both) = kept_queries.vectors(old, new)?
        && kept_queries.text(ASKED)?.is_some_and(|before| before == text)
        && kept_queries.have_clicks(query_log.clicks.as_deref())
    {
        return Ok((by_both.new.rows(), Vec::new()));
    }
    let (mut embedded, mut left_out) = (kept_queries.embedded()?, Vec::new());
    for (space, encoder, model) in &models {
        let known_vectors = embedded.entry(model.clone()).or_default();
        known_vectors.retain(|_, vector| vector.len() == space.dimension);
        let wanted: BTreeMap<&String, &Query> = queries
            .iter()
            .map(|(name, query)| (name, query))
            .filter(|(name, _)| !known_vectors.contains_key(*name))
            .collect();
        let (names, wanted): (Vec<&String>, Vec<Query>) =
            wanted.into_iter().map(|(name, query)| (name, query.clone())).unzip();
        let mut waiting = Vec::new();
        let mut keep = |vectors: &[(usize, &[f32])]| {
            let line = |&(place, vector): &(usize, &[f32])| {
                let (model, query, vector) = (model.clone(), names[place].clone(), vector.to_vec());
                Embedded { model, query, vector }
            };
            waiting.extend(vectors.iter().map(line));
            if encoder.is_vouched_for(encoder.receipt()) {
                kept_queries.add(&mem::take(&mut waiting))?;
            }
            account()
        };
        let answers = query::embed_each(&wanted, space, &|_| Ok(Arc::clone(encoder)), observer, &mut keep);
        // Vectors that no comparison of the encoder with itself has followed wait for one. An encoder that
        // cannot be asked says nothing against itself.
        let is_another = answers.as_ref().is_err_and(Error::is_conflict);
        if !(waiting.is_empty() || is_another) {
            match encoder.vouch() {
                Err(error) if error.is_conflict() => return Err(error),
                _ => kept_queries.add(&waiting)?,
            }
        }
        let answers = answers?;
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(vector) => drop(known_vectors.insert(name.clone(), vector)),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        queries.retain(|(name, _)| known_vectors.contains_key(name));
    }
    if queries.is_empty() {
        let why = left_out.first().map_or("there is no query in it", String::as_str);
        return Err(Error::corrupt(query_log.path.display(), why));
    }
    // The list goes first: without it, vectors of other queries do not count.
    kept_queries.files.retain(|name| name != ASKED)?;
    for ((space, _, model), file) in models.iter().zip([BY_NEW, BY_OLD]) {
        let known_vectors = &embedded[model];
        let rows = queries.iter().flat_map(|(name, _)| known_vectors[name].iter().copied()).collect();
        let rows = Matrix::new(space.dimension, rows)?;
        kept_queries.files.write(file, &bytes_of(&rows))?;
    }
    let mut rows = 0..;
    let rows: Vec<Option<usize>> = all_names
        .iter()
        .map(|name| {
            let is_embedded = models.iter().all(|(.., model)| embedded[model].contains_key(name));
            if is_embedded { rows.next() } else { None }
        })
        .collect();
    kept_queries.keep_clicks(query_log.clicks.as_deref(), &rows)?;
    kept_queries.files.write(ASKED, text.as_bytes())?;
    Ok((queries.len(), left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clicks_are_kept_by_their_query_and_judge_by_its_row() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("clicks.csv");
        fs_err::write(&log, "query,item,weight\nred,i1,2\nblue,i2,3\nred,gone,1\nblue,i1,1\n").unwrap();
        let query_log = Asked::read(None, Some(&log)).unwrap().unwrap();
        assert_eq!(query_log.queries, ["red", "blue"].map(|text| Query::Text(text.into())));
        let store = rehang_store_tests::MemoryStore::new();
        let kept_queries = KeptQueries::for_store(&store);
        let clicks = query_log.clicks.as_deref();
        assert!(!kept_queries.have_clicks(clicks) && kept_queries.have_clicks(None));
        // No model could embed the first one.
        kept_queries.keep_clicks(clicks, &[None, Some(0)]).unwrap();
        assert!(kept_queries.have_clicks(clicks) && !kept_queries.have_clicks(None));
        let judged = kept_queries.judged(["i2", "i3", "i1"], 1).unwrap().unwrap();
        assert_eq!(judged.query(0), [(0, 3.0), (2, 1.0)]);
        assert!(kept_queries.judged(["i2"], 0).unwrap_err().is_corrupt(), "of other queries");
        let fingerprint = kept_queries.clicks_fingerprint().unwrap().unwrap();
        kept_queries.keep_clicks(clicks, &[Some(0), Some(1)]).unwrap();
        assert_ne!(kept_queries.clicks_fingerprint().unwrap(), Some(fingerprint));
        kept_queries.keep_clicks(None, &[]).unwrap();
        kept_queries.keep_clicks(None, &[]).unwrap();
        assert_eq!(
            (kept_queries.judged(["i2"], 1).unwrap(), kept_queries.clicks_fingerprint().unwrap()),
            (None, None)
        );
    }

    #[test]
    fn a_click_names_a_query_by_its_id_or_else_as_the_file_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs_err::write(&path, text).unwrap();
            path
        };
        let queries =
            file("q.jsonl", "{\"id\": 7, \"text\": \"red\"}\n{\"image\": \"b.png\"}\n{\"text\": \"blue\"}\n");
        let clicks = file("c.csv", "query,item,weight\nblue,i,1\n7,i,1\nb.png,i,1\nred,i,1\n");
        let query_log = Asked::read(Some(&queries), Some(&clicks)).unwrap().unwrap();
        let places: Vec<usize> = query_log.clicks.unwrap().iter().map(|click| click.query).collect();
        assert_eq!(
            (places, query_log.unknown_queries),
            (vec![2, 0, 1], 1),
            "a query with an id is not named by its text"
        );
        for bad in [
            "{\"id\": [1], \"text\": \"a\"}",
            "{\"id\": 1}",
            "{\"text\": \"a\", \"image\": \"b\"}",
            "{\"txt\": \"a\"}",
        ] {
            let error = Asked::read(Some(&file("bad.jsonl", bad)), None).err().unwrap().to_string();
            assert!(error.contains("line 1") && error.contains("is expected"), "{error}");
        }
        assert!(Asked::read(None, None).unwrap().is_none());
    }

    #[test]
    fn what_was_paid_for_is_there_to_the_last_bit() {
        let store = rehang_store_tests::MemoryStore::new();
        let kept_queries = KeptQueries::for_store(&store);
        let line = |query: &str, value| Embedded {
            model: "m".into(),
            query: query.into(),
            vector: vec![value, 0.1],
        };
        assert!(kept_queries.embedded().unwrap().is_empty());
        kept_queries.add(&[line("a", 1.5), line("b", 0.3)]).unwrap();
        kept_queries.add(&[]).unwrap();
        kept_queries.add(&[line("c", f32::MIN_POSITIVE)]).unwrap();
        let vectors = kept_queries.embedded().unwrap().remove("m").unwrap();
        let expected = [("a", 1.5), ("b", 0.3), ("c", f32::MIN_POSITIVE)];
        assert_eq!(vectors, expected.map(|(query, value)| (query.into(), vec![value, 0.1])).into());
    }

    #[test]
    fn queries_of_an_earlier_version_are_taken_in() {
        let folder = tempfile::tempdir().unwrap();
        let rows = Matrix::new(2, vec![1.5, 0.1, f32::MIN_POSITIVE, -1.0]).unwrap();
        for name in ["queries-old.npy", "queries-new.npy"] {
            rehang_files::write_matrix(folder.path().join(name), &rows, None).unwrap();
        }
        let [old, new] = ["old", "new"].map(|name| Space::new(name, 2, rehang_core::Distance::Cosine, false));
        let text = format!("{new} f2\n{old} f1\nText(\"a\")\nText(\"b\")\n");
        fs_err::write(folder.path().join("queries.jsonl"), text).unwrap();
        let line = r#"{"model":"m","query":"a","vector":[0.5]}"#;
        // Half a line, which a death has left, spoils no other.
        let lines = format!("\n{line}\n{{\"model\":\n{}", line.replace('a', "b"));
        fs_err::write(folder.path().join("queries-embedded.jsonl"), lines).unwrap();
        let store = rehang_store_tests::MemoryStore::new();
        import_folder(&store, folder.path()).unwrap();
        let kept_queries = KeptQueries::for_store(&store);
        let by_both = kept_queries.vectors(&old, &new).unwrap().unwrap();
        assert_eq!((&by_both.old, &by_both.new), (&rows, &rows));
        assert_eq!(kept_queries.embedded().unwrap()["m"].len(), 2);
    }

    #[test]
    fn queries_of_an_earlier_upgrade_do_not_count() {
        let store = rehang_store_tests::MemoryStore::new();
        let kept_queries = KeptQueries::for_store(&store);
        let space = |name: &str| Space::new(name, 2, rehang_core::Distance::Cosine, false);
        let [first, second, third] = ["first", "second", "third"].map(space);
        for name in [BY_OLD, BY_NEW] {
            kept_queries.files.write(name, &[]).unwrap();
        }
        assert!(kept_queries.vectors(&first, &second).unwrap().is_none());
        let normalised = Space { normalised: true, ..second.clone() };
        kept_queries
            .files
            .write(ASKED, format!("{normalised} f2\n{first} f1\nText(\"a\")\n").as_bytes())
            .unwrap();
        assert!(kept_queries.vectors(&first, &second).unwrap().is_some());
        for (old, new) in [(&second, &third), (&second, &first), (&first, &third)] {
            assert!(kept_queries.vectors(old, new).unwrap().is_none());
        }
        let are_of = |queries: &[Query]| kept_queries.are_of(queries).unwrap();
        assert!(are_of(&[Query::Text("a".into())]));
        assert!(!are_of(&[]) && !are_of(&[Query::Text("b".into())]));
    }
    /// Clicks on pairs, and on what is not there, say nothing of the others.
    #[test]
    fn clicked_items_that_are_no_pairs_come_first_among_what_is_asked() {
        use rehang_core::{Distance, Provenance};
        use rehang_store::{ItemWrite, NewVector};

        use crate::learn::pairs::DrawnPairs;

        let store = rehang_store_tests::MemoryStore::new();
        let [old, new] = ["old", "new"].map(|name| Space::new(name, 2, Distance::Cosine, false));
        store.create_space(&old, Provenance::Old).unwrap();
        store.create_space(&new, Provenance::Native).unwrap();
        for item in 0..90 {
            let vector = |name: &str, by| NewVector::from_model(name, vec![1.0, item as f32], by);
            let mut vectors = vec![vector("old", Provenance::Old)];
            vectors.extend((item < 40).then(|| vector("new", Provenance::Native)));
            store.put(&[ItemWrite::new(format!("i{item}"), Some(format!("text {item}")), vectors)]).unwrap();
        }
        let pairs = DrawnPairs::from_natives(&store, &old, &new, &crate::observe::Unobserved).unwrap();
        let kept_queries = KeptQueries::for_store(&store);
        let others = || pairs.others(&store, (&old, &new)).unwrap();
        assert_eq!((pairs.len(), others()), (40, None), "neither labels nor clicks");
        // Queries 0 to 34 are of items that are no pairs, 35 of one that is, 36 of none.
        let click = |query: usize| Click {
            query,
            item: format!("i{}", [89 - query, 3, 99][query.saturating_sub(34).min(2)]),
            gain: 2.0,
        };
        let keep = |queries: usize| {
            let clicks: Vec<Click> = (0..queries).map(click).collect();
            let rows: Vec<Option<usize>> = (0..queries).map(Some).collect();
            kept_queries.keep_clicks(Some(&clicks), &rows).unwrap();
            for name in [BY_OLD, BY_NEW] {
                kept_queries.files.write(name, &vec![0; 8 * queries]).unwrap();
            }
            let names: String = (0..queries).map(|query| format!("Text(\"{query}\")\n")).collect();
            kept_queries.files.write(ASKED, format!("{new} f2\n{old} f1\n{names}").as_bytes()).unwrap();
        };
        keep(29);
        assert_eq!(others(), None, "clicks of 29 queries prove nothing");
        keep(37);
        let others = others().unwrap();
        assert_eq!(others.old.rows(), 50);
        let judged = others.judged.unwrap();
        for query in 0..35 {
            assert_eq!(judged.query(query), [(query, 2.0)]);
            assert_eq!(others.old.row(query), [1.0, (89 - query) as f32]);
        }
        assert!(judged.query(35).is_empty() && judged.query(36).is_empty());
    }
}
