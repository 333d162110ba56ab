//! The live half of the demo: a gallery file whose images are embedded again by a real encoder. Meanwhile one
//! thread searches, and another writes, changes and deletes.

#![allow(clippy::disallowed_methods, reason = "the demo measures how long searches and writes take")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use image::GrayImage;
use rehang_core::{Adapter, Error, Matrix, Progress, Provenance, Result};
use rehang_encode::{Encoder, EncoderConfig, Input};
use rehang_files::{AtomicFile, VectorSource};
use rehang_store::{Filter, ItemWrite, NewVector, Scan, Select, Store};
use rehang_upgrade::{Gallery, Location, RunOptions, Serving, Summary, Upgrade};
use serde::Serialize;
use serde_json::Value;

use crate::{DemoStep, RATE};

/// Number of query images. The encoders were trained on them; the gallery does not hold them.
const QUERIES: usize = 200;
/// Nearest neighbours that each query asks for.
const DEPTH: usize = 10;
/// Time between two writes of the application.
const WRITE_EVERY: Duration = Duration::from_millis(15);
/// Searches that tell how fast an idle gallery answers.
const IDLE_SEARCHES: usize = 2000;

/// Searches that ran: how long each took, and why some failed (an error, too few hits, or a hit that had been
/// deleted).
#[derive(Default)]
struct Searches {
    milliseconds: Vec<f64>,
    failed: Vec<String>,
}

/// Writes that the application made, and how long each took.
#[derive(Default)]
struct Written {
    done: Writes,
    milliseconds: Vec<f64>,
}

/// The images of the demo: 8 × 8 pixels each, with values from 0 to 16.
struct Images {
    pixels: Matrix,
    labels: Vec<i64>,
    gallery: Vec<usize>,
    outside_gallery: Vec<usize>,
}

impl Images {
    fn read(folder: &Path) -> Result<Self> {
        let source = |name: &str| VectorSource::path(folder.join(name));
        let pixels = rehang_files::read_matrix(&source("images.npy"))?;
        let labels = rehang_files::read_labels(&source("label.npy"))?;
        let roles = rehang_files::read_labels(&source("role.npy"))?;
        let of_role = |wanted: i64| (0..roles.len()).filter(|&row| roles[row] == wanted).collect();
        Ok(Self { pixels, labels, gallery: of_role(1), outside_gallery: of_role(0) })
    }

    fn name(row: usize) -> String {
        format!("digit-{row:04}.png")
    }

    /// Writes every image as a file. A step of the pixel values becomes 15 grey levels, which keeps all 17
    /// values apart and exact.
    fn write(&self, folder: &Path) -> Result<()> {
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        for row in 0..self.pixels.rows() {
            let bytes = self.pixels.row(row).iter().map(|&value| (value * 15.0) as u8).collect();
            let path = folder.join(Self::name(row));
            let image = GrayImage::from_raw(8, 8, bytes)
                .ok_or_else(|| Error::corrupt("images.npy", "an image has not 64 pixels"))?;
            image
                .save(&path)
                .map_err(|error| Error::io("write", &path, &std::io::Error::other(error.to_string())))?;
        }
        Ok(())
    }
}

/// Measurements of a live upgrade.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Live {
    /// Share of the ten nearest neighbours that show the query's digit, in percent.
    pub precision_at_10: Stages,
    /// Share of the true ten nearest that searches of the upgraded gallery find, 0–1.
    pub index_recall_at_10: f64,
    /// Number of images that are native at the end.
    pub native: u64,
    /// Number of images in the gallery at the end.
    pub items: u64,
    /// Seconds that the backfill took.
    pub seconds: f64,
    /// Number of searches that ran during the backfill.
    pub searches: usize,
    /// Number of failures among the searches: an error, fewer hits than asked for, or a hit that had been
    /// deleted.
    pub failed_searches: usize,
    /// Milliseconds that 99 % of searches stay below.
    pub search_p99_ms: Load,
    /// Writes that the application made during the backfill.
    pub writes: Writes,
    /// Milliseconds that the slowest write took.
    pub longest_write_ms: f64,
    /// Reason why the first search failed. A live upgrade must not make a single one fail.
    #[serde(skip)]
    pub first_failure: Option<String>,
}

/// One measured number at the three stages of an upgrade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Stages {
    /// The number before the switch: old queries on old vectors.
    pub before: f64,
    /// The number at the switch: new queries on adapted vectors.
    pub at_switch: f64,
    /// The number after the backfill.
    pub after: f64,
}

/// One measured number of an idle gallery, and of the same gallery under a backfill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Load {
    /// The number before the backfill.
    pub idle: f64,
    /// The number while the backfill runs.
    pub backfill: f64,
}

/// Number of items that the application added, changed and deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Writes {
    /// New items.
    pub new: usize,
    /// Changed items.
    pub changed: usize,
    /// Deleted items.
    pub deleted: usize,
}

/// Options of [`live`](crate::live()).
///
/// | Name | Default | Purpose |
/// |---|---|---|
/// | `rate` | [`RATE`] | items that the backfill embeds per second |
/// | `report` | none | report of the adapter, seen from the folder, which is the forecast of the upgrade |
#[derive(Debug, Clone, PartialEq)]
pub struct LiveOptions {
    /// Items that the backfill embeds per second.
    pub rate: f64,
    /// Report of the adapter, seen from the folder.
    pub report: Option<String>,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self { rate: RATE, report: None }
    }
}

/// Writes the images of the demo as files into `images`, in the folder that it was [unpacked](crate::unpack)
/// into.
///
/// # Errors
///
/// I/O errors; corrupt where a file of the folder is not the demo's.
pub fn write_images(folder: &Path) -> Result<()> {
    Images::read(folder)?.write(&folder.join("images"))
}

/// Upgrades the gallery of a folder that holds the demo's files and the adapter `adapter.safetensors`, live.
/// Images are embedded again while one thread searches and another writes. At the end every vector of the
/// upgraded gallery is compared with what the new encoder says of its image. Files of an earlier demo in the
/// folder are replaced. `steps` is told each step before it is taken; the gallery is there from
/// [`DemoStep::Start`] on.
///
/// # Errors
///
/// Corrupt where the gallery is not what it has to be at the end; the errors of an upgrade's verbs, and those
/// of `steps`.
pub fn live(
    folder: &Path,
    adapter: &Adapter,
    options: &LiveOptions,
    steps: &dyn Fn(&DemoStep) -> Result<()>,
    progress: &Progress,
) -> Result<Live> {
    let images = Images::read(folder)?;
    images.write(&folder.join("images"))?;
    let config_path = folder.join("rehang.toml");
    AtomicFile::write(&config_path, configuration(adapter, options.report.as_deref()))?;
    let database = folder.join("gallery.db");
    for suffix in ["", "-wal", "-shm"] {
        // A demo begins anew.
        drop(fs_err::remove_file(format!("{}{suffix}", database.display())));
    }
    let old_encoder = rehang_encode::open(&encoder_config("old_encoder.onnx")?, &adapter.old, folder)?;

    steps(&DemoStep::Import)?;
    let new = Location::file(&database).make()?;
    new.store().create_space(&adapter.old, Provenance::Old)?;
    let sources: Vec<String> = images.gallery.iter().map(|&row| Images::name(row)).collect();
    let vectors = embed(old_encoder.as_ref(), &sources)?;
    let writes: Vec<ItemWrite> = images
        .gallery
        .iter()
        .zip(vectors)
        .map(|(&row, vector)| item(adapter, &Images::name(row), &images, row, Some(vector)))
        .collect();
    new.store().put(&writes)?;
    new.publish()?;

    let upgrade = Upgrade::open(&config_path)?;
    let store = upgrade.store();
    let new_encoder = upgrade.open_encoder()?;
    let queries: Vec<usize> = images.outside_gallery.iter().copied().take(QUERIES).collect();
    let query_sources: Vec<String> = queries.iter().map(|&row| Images::name(row)).collect();
    let old_queries = matrix(&embed(old_encoder.as_ref(), &query_sources)?)?;
    let new_queries = matrix(&embed(new_encoder.as_ref(), &query_sources)?)?;
    let gallery = upgrade.gallery();
    let labels: BTreeMap<String, i64> =
        (0..images.labels.len()).map(|row| (Images::name(row), images.labels[row])).collect();
    let quality = |stage: &str| -> Result<f64> {
        let model_queries =
            [(adapter.old.name.as_str(), &old_queries), (adapter.new.name.as_str(), &new_queries)];
        let hits_by_query = gallery.search(&model_queries, DEPTH, &Filter::default())?.found;
        let mut right = 0;
        for (hits, &row) in hits_by_query.iter().zip(&queries) {
            let of_class = |id: &str| labels.get(id).copied() == Some(images.labels[row]);
            right += hits.iter().filter(|hit| of_class(&hit.id)).count();
        }
        if hits_by_query.iter().any(Vec::is_empty) {
            return Err(Error::corrupt("the demo's gallery", format!("a search {stage} found nothing")));
        }
        Ok(100.0 * right as f64 / (DEPTH * queries.len()) as f64)
    };
    let before = quality("before the switch")?;

    steps(&DemoStep::Start)?;
    upgrade.start(&Progress::default())?;
    steps(&DemoStep::Switch)?;
    upgrade.switch(Some(Serving::Mixed), false)?;
    let at_switch = quality("at the switch")?;
    let space_queries = (adapter.new.name.as_str(), &new_queries);
    let idle = search_idle(&gallery, space_queries)?;

    steps(&DemoStep::Run)?;
    let application = Application {
        adapter,
        images: &images,
        old_encoder: old_encoder.as_ref(),
        deleted: Mutex::default(),
    };
    let (summary, searches, writes) =
        upgrade_live(&upgrade, &application, new_encoder.as_ref(), space_queries, options.rate, progress)?;
    let deleted = application.deleted.into_inner().unwrap_or_else(PoisonError::into_inner);
    verify(store, adapter, new_encoder.as_ref(), &deleted)?;
    let after = quality("after the backfill")?;
    Ok(Live {
        precision_at_10: Stages { before, at_switch, after },
        index_recall_at_10: store.recall(&adapter.new.name, 100, DEPTH)?,
        native: summary.native,
        items: summary.items,
        seconds: summary.elapsed_ms as f64 / 1000.0,
        searches: searches.milliseconds.len(),
        failed_searches: searches.failed.len(),
        search_p99_ms: Load {
            idle: percentile(&idle, 0.99),
            backfill: percentile(&searches.milliseconds, 0.99),
        },
        writes: writes.done,
        longest_write_ms: percentile(&writes.milliseconds, 1.0),
        first_failure: searches.failed.into_iter().next(),
    })
}

/// The application that writes into the gallery while it is upgraded. It still embeds with the old model.
struct Application<'a> {
    adapter: &'a Adapter,
    images: &'a Images,
    old_encoder: &'a dyn Encoder,
    deleted: Mutex<BTreeSet<String>>,
}

/// Backfills while one thread searches and another writes.
fn upgrade_live(
    upgrade: &Upgrade,
    application: &Application<'_>,
    encoder: &dyn Encoder,
    space_queries: ModelQueries<'_>,
    rate: f64,
    progress: &Progress,
) -> Result<(Summary, Searches, Written)> {
    let over = AtomicBool::new(false);
    let options = RunOptions { batch: Some(32), rate: Some(rate), ..RunOptions::default() };
    let run = |progress: &Progress| upgrade.run(&options, Some(encoder), progress);
    let (searched, filled) = (upgrade.gallery(), upgrade.gallery());
    let (summary, searches, writes) = thread::scope(|scope| {
        let searcher = scope.spawn(|| {
            let mut searches = Searches::default();
            let mut query = 0;
            while !over.load(Ordering::Relaxed) {
                query = (query + 1) % space_queries.1.rows();
                search_once(&searched, space_queries, query, &application.deleted, &mut searches);
            }
            searches
        });
        let writer = scope.spawn(|| {
            let mut writes = Written::default();
            let mut turn = 0;
            while !over.load(Ordering::Relaxed) {
                application.write_once(&filled, turn, &mut writes)?;
                turn += 1;
                thread::sleep(WRITE_EVERY);
            }
            Ok(writes)
        });
        let run = run(progress);
        over.store(true, Ordering::Relaxed);
        let died = || Error::conflict("a thread of the demo", "it died; this is a defect");
        let searches = searcher.join().map_err(|_| died())?;
        let writes: Result<Written> = writer.join().map_err(|_| died())?;
        Ok::<_, Error>((run?.summary, searches, writes?))
    })?;
    // Backfills what the application wrote in the last moments, now that it writes no more.
    let last = run(&Progress::default())?.summary;
    Ok((Summary { items: last.items, native: last.native, ..summary }, searches, writes))
}

/// The name of a space, and queries that lie in it.
type ModelQueries<'a> = (&'a str, &'a Matrix);

fn search_once(
    gallery: &Gallery,
    (space, queries): ModelQueries<'_>,
    query: usize,
    deleted: &Mutex<BTreeSet<String>>,
    searches: &mut Searches,
) {
    let gone = deleted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let query_vector = queries.select(&[query]);
    let began = Instant::now();
    let answer = gallery.search(&[(space, &query_vector)], DEPTH, &Filter::default());
    searches.milliseconds.push(milliseconds_since(began));
    match answer {
        Err(error) => searches.failed.push(error.to_string()),
        Ok(answer) => {
            let hits = &answer.found[0];
            if hits.len() < DEPTH {
                searches.failed.push(format!("{} hits", hits.len()));
            }
            if let Some(hit) = hits.iter().find(|hit| gone.contains(&hit.id)) {
                searches.failed.push(format!("{} had been deleted", hit.id));
            }
        }
    }
}

impl Application<'_> {
    /// Makes one write: a new item, a changed item and a deletion, in turn.
    fn write_once(&self, gallery: &Gallery, turn: usize, writes: &mut Written) -> Result<()> {
        let images = self.images;
        let fresh = images.outside_gallery[(QUERIES + turn) % images.outside_gallery.len()];
        let existing = images.gallery[(turn * 37) % images.gallery.len()];
        if turn % 3 == 2 {
            let id = Images::name(existing);
            let began = Instant::now();
            gallery.delete(&[&id])?;
            writes.milliseconds.push(milliseconds_since(began));
            self.deleted.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
            writes.done.deleted += 1;
            return Ok(());
        }
        let is_new = turn.is_multiple_of(3);
        let id = if is_new { format!("new-{turn}") } else { Images::name(existing) };
        let vector = embed(self.old_encoder, &[Images::name(fresh)])?.remove(0);
        if self.deleted.lock().unwrap_or_else(PoisonError::into_inner).contains(&id) {
            return Ok(());
        }
        // Every other new item comes without any vector: the backfill embeds it before all others.
        let vector = (!turn.is_multiple_of(6)).then_some(vector);
        let write = item(self.adapter, &id, images, fresh, vector);
        let began = Instant::now();
        gallery.put(&[write])?;
        writes.milliseconds.push(milliseconds_since(began));
        if is_new {
            writes.done.new += 1;
        } else {
            writes.done.changed += 1;
        }
        Ok(())
    }
}

fn milliseconds_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

fn search_idle(gallery: &Gallery, space_queries: ModelQueries<'_>) -> Result<Vec<f64>> {
    let mut searches = Searches::default();
    let nothing = Mutex::default();
    for query in 0..IDLE_SEARCHES {
        search_once(gallery, space_queries, query % space_queries.1.rows(), &nothing, &mut searches);
    }
    match searches.failed.first() {
        Some(reason) => Err(Error::corrupt("the demo's gallery", format!("a search failed: {reason}"))),
        None => Ok(searches.milliseconds),
    }
}

/// Checks every item of the upgraded gallery: it is native, made from its present source, and not deleted.
fn verify(
    store: &dyn Store,
    adapter: &Adapter,
    encoder: &dyn Encoder,
    deleted: &BTreeSet<String>,
) -> Result<()> {
    let name = &adapter.new.name;
    let wrong = |what: String| Err(Error::corrupt("the demo's gallery", what));
    let mut after = None;
    loop {
        let scan = Scan::new(name, Select::All, 500).after(after).with_vectors_of(name);
        let records = store.scan(&scan)?;
        let Some(last) = records.last() else { return Ok(()) };
        after = Some(last.item.key);
        let sources: Vec<String> =
            records.iter().map(|record| record.item.source.clone().unwrap_or_default()).collect();
        for (record, expected) in records.iter().zip(embed(encoder, &sources)?) {
            if deleted.contains(&record.item.id) {
                return wrong(format!("{} came back after its deletion", record.item.id));
            }
            let Some(vector) = &record.vector else {
                return wrong(format!("{} has no vector", record.item.id));
            };
            let far = vector.vector.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-4);
            if vector.provenance != Provenance::Native || far {
                return wrong(format!("{} is not what the new model says of it", record.item.id));
            }
        }
    }
}

/// The value below which a share of all values lies (the largest for a share of 1); 0 for no values.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

fn item(adapter: &Adapter, id: &str, images: &Images, row: usize, vector: Option<Vec<f32>>) -> ItemWrite {
    let old = |vector| NewVector::from_model(adapter.old.name.clone(), vector, Provenance::Old);
    ItemWrite {
        id: id.to_owned(),
        source: Some(Images::name(row)),
        label: Some(images.labels[row].to_string()),
        payload: Value::Null,
        vectors: vector.map(old).into_iter().collect(),
    }
}

fn embed(encoder: &dyn Encoder, sources: &[String]) -> Result<Vec<Vec<f32>>> {
    let mut vectors = Vec::with_capacity(sources.len());
    for chunk in sources.chunks(encoder.batch_max().max(1)) {
        let inputs: Vec<Input<'_>> =
            chunk.iter().map(|source| Input { id: source, source, payload: &Value::Null }).collect();
        for vector in encoder.encode(&inputs)? {
            vectors.push(vector.map_err(|failure| Error::corrupt("an image of the demo", failure))?);
        }
    }
    Ok(vectors)
}

fn matrix(rows: &[Vec<f32>]) -> Result<Matrix> {
    let width = rows.first().map_or(0, Vec::len);
    Matrix::new(width, rows.concat())
}

fn encoder_config(model: &str) -> Result<EncoderConfig> {
    toml::from_str(&encoder_text(model)).map_err(|error| Error::corrupt("the demo's encoder", error))
}

/// Configuration of an encoder. Pixels are divided by 16 · 15, which gives what the encoders were trained on.
fn encoder_text(model: &str) -> String {
    format!(
        "kind = \"onnx\"\nmodel = \"{model}\"\nroot = \"images\"\ninput = {{ kind = \"image\", width = 8, height = 8, \
             channels = 1, resize = \"exact\", mean = [0.0], std = [{:.8}] }}\n",
        240.0 / 255.0
    )
}

/// Configuration of the upgrade. People who compare the models on a dashboard ask the old one, too.
fn configuration(adapter: &Adapter, report: Option<&str>) -> String {
    let space = |space: &rehang_core::Space| {
        format!(
            "name = \"{}\"\ndimension = {}\ndistance = \"{}\"\n",
            space.name, space.dimension, space.distance
        )
    };
    let forecast = report.map(|report| format!("\n[forecast]\nfile = \"{report}\"\n"));
    format!(
        "[gallery]\npath = \"gallery.db\"\n\n[old]\n{}\n[old.encoder]\n{}\n[new]\n{}\n[adapter]\nfile = \"adapter.safetensors\"\n\n\
             [order]\npolicy = \"coverage\"\n\n[encoder]\n{}\n[run]\nbatch = 32\n{}",
        space(&adapter.old),
        encoder_text("old_encoder.onnx"),
        space(&adapter.new),
        encoder_text("new_encoder.onnx"),
        forecast.unwrap_or_default()
    )
}
