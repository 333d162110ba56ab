//! What an upgrade learns from its own gallery: pairs, drawn as natives of the new space, the adapter that is fitted on them, and the
//! report on those that were held out.
//!
//! Pairs have no list: they are what is native of the beginning of the gallery's shuffle ([`crate::sample`]) and has an old vector. Which
//! of them are held out depends on their old vectors alone. So nothing can disagree with the gallery, a larger sample keeps what was
//! fitted on and what was held out apart, and so does an item that is in the gallery twice. The adapter and the report are files of the upgrade's folder, by the adapter's
//! fingerprint; a document of the gallery names the last one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rehang::files::{self, AtomicFile, RowSelection, VectorSource};
use rehang::finding::Finding;
use rehang::report::Report;
use rehang::{Error, Matrix, Progress, Result, Space, Vectors};
use rehang_encode::Spent;
use rehang_evaluate::{ReportFiles, report};
use rehang_fit::{FitAnswer, FitFiles, FitParameters, LearningCurve, Method, fit_files, learning_curve};
use rehang_store::{ItemKey, Ledger, find_space, shuffled};
use serde::{Deserialize, Serialize};

use crate::backfill::Ending;
use crate::configuration::RunOptions;
use crate::fill::is_finite;
use crate::observe::Observer;
use crate::query::{self, Query, QueryEncoders};
use crate::sample;

/// Pairs that a fit takes at most: memory and time are bounded.
pub(crate) const PAIRS_MAX: usize = 20_000;
/// The share of the pairs that is held out.
const HELD_OUT: f64 = 0.2;
/// Of the shuffle that says which.
const HELD_OUT_SEED: u64 = 0x4e1d_0a7e;
/// Held-out pairs below which no report is made: every number of it would be noise.
const HELD_OUT_MIN: usize = 10;
/// The first sample; each further one is twice as large.
pub(crate) const FIRST_SAMPLE: usize = 250;

/// Name of the document that says which adapter was fitted last for a space.
fn document(new: &str) -> String {
    format!("adapter of {new}")
}

/// Fingerprint of the adapter that was fitted last for a space on the gallery's own pairs; `None` where there is none.
pub(crate) fn fitted(store: &dyn Ledger, new: &str) -> Result<Option<String>> {
    Ok(store.document(&document(new))?.map(|(_, fingerprint)| fingerprint))
}

/// Where an adapter lies in the folder of its upgrade.
pub(crate) fn adapter_file(folder: &Path, fingerprint: &str) -> PathBuf {
    folder.join(format!("adapter-{fingerprint}.safetensors"))
}

/// Where the report on it lies, as JSON.
pub(crate) fn report_file(folder: &Path, fingerprint: &str) -> PathBuf {
    folder.join(format!("report-{fingerprint}.json"))
}

/// How many pairs are drawn, and how fast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairsOptions {
    /// Items of the sample, at most: it begins with 250 and is doubled until there are so many.
    pub items: usize,
    /// Points of agreement that one more doubling has to be expected to bring, or else no more are drawn; 0 draws all `items`.
    pub worth: f64,
    /// Limits; a share of the gallery ([`RunOptions::until`]) says nothing here.
    pub run: RunOptions,
}

impl Default for PairsOptions {
    fn default() -> Self {
        Self { items: 2000, worth: 1.0, run: RunOptions::default() }
    }
}

/// A line of a file of queries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Asked {
    Text(String),
    Image(PathBuf),
}

/// Reads queries, one JSON object a line: `{"text": "…"}`, or `{"image": "FILE"}` seen from the folder of the file.
fn read_queries(path: &Path) -> Result<Vec<Query>> {
    let folder = files::folder_of(path);
    let lines = files::read_lines(path)?;
    let queries = lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(|(at, line)| {
        match serde_json::from_str(line) {
            Ok(Asked::Text(text)) => Ok(Query::Text(text)),
            Ok(Asked::Image(image)) => Ok(Query::Image(folder.join(image))),
            Err(error) => {
                let detail =
                    format!("line {}: {error}; {{\"text\": …}} or {{\"image\": …}} is expected", at + 1);
                Err(Error::corrupt(path.display(), detail))
            }
        }
    });
    queries.collect()
}

/// The queries of an upgrade in files, by both models.
struct QueryFiles {
    /// What they were made of.
    asked: PathBuf,
    old: PathBuf,
    new: PathBuf,
}

impl QueryFiles {
    fn of(folder: &Path) -> Self {
        let [asked, old, new] =
            ["queries.jsonl", "queries-old.npy", "queries-new.npy"].map(|name| folder.join(name));
        Self { asked, old, new }
    }

    /// The vectors by both models, where there are any.
    fn vectors(&self) -> Option<(VectorSource, VectorSource)> {
        let is_there = self.asked.exists() && self.old.exists() && self.new.exists();
        is_there.then(|| (VectorSource::path(&self.old), VectorSource::path(&self.new)))
    }
}

/// Embeds queries by both models and keeps them in the folder of the upgrade, where [`fit`] and [`measure`] find them; nothing is embedded
/// where the same ones are there. A log holds what no model can embed: such queries are left out. Gives how many there are, and why
/// each of the others has no vector.
///
/// # Errors
///
/// Corrupt where a line is no query, or none of them has a vector; as [`query::embed_each`].
pub(crate) fn embed_queries(
    path: &Path,
    (old, new): (&Space, &Space),
    folder: &Path,
    encoders: &QueryEncoders<'_>,
    observer: &dyn Observer,
) -> Result<(usize, Vec<String>)> {
    let queries = read_queries(path)?;
    let kept = QueryFiles::of(folder);
    let text: String = queries.iter().map(|query| format!("{query:?}\n")).collect();
    if let Some((_, by_new)) = kept.vectors()
        && fs_err::read_to_string(&kept.asked).is_ok_and(|before| before == text)
    {
        return Ok((files::read_matrix(&by_new)?.rows(), Vec::new()));
    }
    let mut left_out = Vec::new();
    let mut embedded: Vec<(Query, [Vec<f32>; 2])> =
        queries.into_iter().map(|query| (query, [const { Vec::new() }; 2])).collect();
    // The new model first: the budget is its.
    for (model, space) in [new, old].into_iter().enumerate() {
        let queries: Vec<Query> = embedded.iter().map(|(query, _)| query.clone()).collect();
        let mut answers = query::embed_each(&queries, space, encoders, observer)?.into_iter();
        embedded.retain_mut(|(_, vectors)| match answers.next().expect("an answer a query") {
            Ok(vector) => {
                vectors[model] = vector;
                true
            }
            Err(error) => {
                left_out.push(error.to_string());
                false
            }
        });
    }
    if embedded.is_empty() {
        let why = left_out.first().map_or("there is no query in it", String::as_str);
        return Err(Error::corrupt(path.display(), why));
    }
    let rows = |model: usize| embedded.iter().flat_map(|(_, vectors)| vectors[model].clone()).collect();
    let (by_new, by_old) = (Matrix::new(new.dimension, rows(0))?, Matrix::new(old.dimension, rows(1))?);
    fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    // Without the list, the vectors of other queries do not count.
    if kept.asked.exists() {
        fs_err::remove_file(&kept.asked).map_err(|error| Error::io("remove", &kept.asked, &error))?;
    }
    files::write_matrix(&kept.old, &by_old, None)?;
    files::write_matrix(&kept.new, &by_new, None)?;
    AtomicFile::write(&kept.asked, &text)?;
    Ok((embedded.len(), left_out))
}

/// Why no more pairs are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enough {
    /// One more doubling is not expected to bring what it has to.
    Learned,
    /// There are as many as were asked for.
    Asked,
    /// The sample is all of the gallery that can be embedded.
    WholeGallery,
    /// The backfill of the sample ended before: what was drawn is kept, and the next call goes on.
    Ended(Ending),
}

/// One sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairsStep {
    /// Items of the sample.
    pub items: usize,
    /// Those that are pairs: native, with an old vector.
    pub pairs: usize,
    /// Items that were embedded for it now; the others were native before.
    pub embedded: u64,
    /// What the pairs are worth to a map; `None` where they are too few to say, or where an earlier call found them wanting.
    pub learned: Option<LearningCurve>,
}

/// What [`Upgrade::pairs`](crate::Upgrade::pairs) did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairsDrawn {
    /// The samples, each twice as large as the one before.
    pub steps: Vec<PairsStep>,
    /// Why no more are drawn.
    pub enough: Enough,
    /// Pairs that there are.
    pub pairs: usize,
    /// Those that are held out of fits, for the report.
    pub held_out: usize,
    /// Items of the sample that could not be embedded, in this call.
    pub failed: u64,
    /// What the encoder used.
    pub spent: Spent,
    /// What the encoder said where a budget of its own ended it.
    pub encoder_said: Option<String>,
    /// Queries by both models that choice and forecast go by; `None` where none were given, or the sample ended early, or a budget or a stop ended them.
    pub queries: Option<usize>,
    /// Why each query of the file that was tried now and got no vector has none: choice and forecast go without it.
    pub queries_left_out: Vec<String>,
    /// Where the pairs were written, where that was asked for.
    pub folder: Option<PathBuf>,
}

impl PairsDrawn {
    /// Whether it did what it was asked for, with no item that only a person can bring home.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && !matches!(self.enough, Enough::Ended(ending) if ending.is_early())
    }
}

/// Whether a pair is held out, by its old vector.
fn is_held_out(old: &[f32]) -> bool {
    let mixed = old.iter().fold(0, |mixed: u64, value| {
        (mixed ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    shuffled(HELD_OUT_SEED, ItemKey::from(mixed)) < HELD_OUT
}

/// Pairs of a gallery, in the order of its shuffle.
#[derive(Debug, Clone)]
pub(crate) struct DrawnPairs {
    ids: Vec<String>,
    labels: Vec<Option<String>>,
    held_out: Vec<bool>,
    old: Matrix,
    new: Matrix,
}

impl DrawnPairs {
    /// Reads the pairs among the first `items` of a gallery's shuffle. An item that changes meanwhile is no pair; nor is one with NaN or infinite numbers.
    ///
    /// # Errors
    ///
    /// Those of the store; nothing is found where there is no new space.
    pub fn read(store: &dyn Ledger, old: &Space, new: &Space, items: usize) -> Result<Self> {
        let mut pairs = Self {
            ids: Vec::new(),
            labels: Vec::new(),
            held_out: Vec::new(),
            old: Matrix::zeros(0, old.dimension),
            new: Matrix::zeros(0, new.dimension),
        };
        if find_space(store, &new.name)?.is_none() {
            return Ok(pairs);
        }
        let records = sample::natives(store, &old.name, &new.name, items)?;
        let keys: Vec<_> = records.iter().map(|record| record.item.key).collect();
        let (mut olds, mut news) = (Vec::new(), Vec::new());
        let vectors = store.vectors(&old.name, &keys)?.into_iter().zip(store.vectors(&new.name, &keys)?);
        for (record, vectors) in records.into_iter().zip(vectors) {
            let (Some(before), Some(now)) = vectors else { continue };
            let is_of_one_content = before.revision == now.revision;
            if !is_of_one_content || !is_finite(&before.vector) || !is_finite(&now.vector) {
                continue;
            }
            pairs.held_out.push(is_held_out(&before.vector));
            olds.extend(before.vector);
            news.extend(now.vector);
            pairs.ids.push(record.item.id);
            pairs.labels.push(record.item.label);
        }
        pairs.old = Matrix::new(old.dimension, olds)?;
        pairs.new = Matrix::new(new.dimension, news)?;
        Ok(pairs)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// How many are held out.
    pub fn held_out(&self) -> usize {
        self.held_out.iter().filter(|&&held_out| held_out).count()
    }

    /// Whether enough are held out to be measured on.
    pub fn may_be_reported(&self) -> bool {
        self.held_out() >= HELD_OUT_MIN
    }

    /// What they are worth to a map; `None` where they are too few to say.
    pub fn learned(&self, old: &Space, new: &Space, progress: &Progress) -> Result<Option<LearningCurve>> {
        let of = |space: &Space, rows: &Matrix| {
            Vectors::measured(&space.name, space.distance, rows.clone(), &space.name)
        };
        let pairs = rehang::Pairs::new(of(old, &self.old)?, of(new, &self.new)?, None, None)?;
        learning_curve(&pairs, 0, progress)
    }

    /// Writes them into a folder: `old.npy`, `new.npy`, `ids.txt`, `held-out.npy` (1 where a pair is held out), and `labels.npy` where
    /// items have labels: numbers of the labels in the order of their names, −1 without one.
    pub fn write(&self, folder: &Path) -> Result<PairFiles> {
        if let Some(id) = self.ids.iter().find(|id| id.contains(['\n', '\r'])) {
            let detail =
                format!("the id {id:?} has a line break, so a list of ids would shift against the vectors");
            return Err(Error::corrupt("the gallery", detail));
        }
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        let files = PairFiles::of(folder);
        files::write_matrix(&files.old, &self.old, None)?;
        files::write_matrix(&files.new, &self.new, None)?;
        let ids = self.ids.iter().fold(String::new(), |lines, id| lines + id + "\n");
        AtomicFile::write(folder.join("ids.txt"), ids)?;
        let held_out: Vec<i64> = self.held_out.iter().map(|&held_out| i64::from(held_out)).collect();
        files::write_labels(&files.held_out, &held_out)?;
        let mut numbers: BTreeMap<&str, i64> =
            self.labels.iter().flatten().map(|label| (label.as_str(), 0)).collect();
        for (number, place) in (0..).zip(numbers.values_mut()) {
            *place = number;
        }
        if numbers.is_empty() {
            return Ok(PairFiles { labels: None, ..files });
        }
        let number = |label: &Option<String>| label.as_deref().map_or(-1, |label| numbers[label]);
        let labels: Vec<i64> = self.labels.iter().map(number).collect();
        if let Some(path) = &files.labels {
            files::write_labels(path, &labels)?;
        }
        Ok(files)
    }
}

/// Pairs in files.
pub(crate) struct PairFiles {
    old: PathBuf,
    new: PathBuf,
    held_out: PathBuf,
    labels: Option<PathBuf>,
}

impl PairFiles {
    fn of(folder: &Path) -> Self {
        Self {
            old: folder.join("old.npy"),
            new: folder.join("new.npy"),
            held_out: folder.join("held-out.npy"),
            labels: Some(folder.join("labels.npy")),
        }
    }

    /// The rows that are held out, or all others.
    fn rows(&self, held_out: bool) -> RowSelection {
        RowSelection { file: VectorSource::path(&self.held_out), values: vec![i64::from(held_out)] }
    }

    fn labels(&self) -> Vec<VectorSource> {
        self.labels.iter().map(VectorSource::path).collect()
    }
}

/// Fits an adapter on those pairs that are not held out, keeps it in the folder of the upgrade, and names it in the gallery.
pub(crate) fn fit(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    folder: &Path,
    method: Method,
    progress: &Progress,
) -> Result<FitAnswer> {
    let pairs = DrawnPairs::read(store, old, new, PAIRS_MAX)?;
    if pairs.len() == pairs.held_out() {
        return Err(Error::missing("pairs", format!("an adapter from {:?} to {:?}", old.name, new.name))
            .advise(rehang::Remedy::DrawPairs));
    }
    let files = pairs.write(&folder.join("pairs"))?;
    let [of_old, of_new] = [&files.old, &files.new].map(VectorSource::path);
    let (queries_old, queries_new) = QueryFiles::of(folder).vectors().unzip();
    let mut answer = fit_files(
        &FitFiles {
            queries_old,
            queries_new,
            labels: files.labels(),
            rows: Some(files.rows(false)),
            old_model: old.name.clone(),
            new_model: new.name.clone(),
            distance: new.distance,
            old_distance: Some(old.distance),
            parameters: FitParameters { method, ..FitParameters::default() },
            ..FitFiles::new(of_old, of_new)
        },
        progress,
    )?;
    let fingerprint = answer.fitted.adapter.fingerprint()?;
    let kept = adapter_file(folder, &fingerprint);
    answer.fitted.adapter.save(&kept)?;
    answer.output = Some(kept);
    let (name, before) = (document(&new.name), store.document(&document(&new.name))?);
    if before.as_ref().is_none_or(|(_, fitted)| *fitted != fingerprint) {
        store.set_document(&name, before.map(|(version, _)| version), &fingerprint)?;
    }
    Ok(answer)
}

/// What an adapter is worth on held-out pairs.
#[derive(Debug, Clone)]
pub struct UpgradeReport {
    /// The report.
    pub report: Report,
    /// Where it lies as JSON, which a [`Forecast`](crate::Forecast) is read from.
    pub path: PathBuf,
    /// What the reader should know of the inputs beside the warnings in it.
    pub findings: Vec<Finding>,
}

/// Measures an adapter on the pairs that are held out, and keeps the report in the folder of the upgrade.
pub(crate) fn measure(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    folder: &Path,
    (adapter, fingerprint): (&Path, &str),
    progress: &Progress,
) -> Result<UpgradeReport> {
    let pairs = DrawnPairs::read(store, old, new, PAIRS_MAX)?;
    if !pairs.may_be_reported() {
        let held_out = pairs.held_out();
        let detail = format!("{held_out} of {} pairs are held out; {HELD_OUT_MIN} are needed", pairs.len());
        return Err(Error::conflict(format!("a report on pairs of {}", store.name()), detail)
            .advise(rehang::Remedy::DrawPairs));
    }
    let files = pairs.write(&folder.join("pairs"))?;
    let [of_old, of_new] = [&files.old, &files.new].map(VectorSource::path);
    let mut asked = ReportFiles::new(vec![adapter.into()], of_old, of_new);
    asked.rows = Some(files.rows(true));
    match QueryFiles::of(folder).vectors() {
        // As people ask: an item's class says nothing of what a query wanted.
        Some((by_old, by_new)) => {
            (asked.answers.queries_old, asked.answers.queries) = (Some(by_old), Some(by_new));
        }
        None => asked.answers.labels = files.labels(),
    }
    asked.title = format!("From {} to {}: what would it buy?", old.name, new.name);
    let made = report(&asked, progress)?;
    let path = report_file(folder, fingerprint);
    let text =
        serde_json::to_string_pretty(&made.report).map_err(|error| Error::corrupt("the report", error))?;
    AtomicFile::write(&path, &text)?;
    Ok(UpgradeReport { report: made.report, path, findings: made.findings })
}
