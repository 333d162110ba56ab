//! The live half of `rehang demo`: a gallery file, images that are embedded again by a real encoder, and meanwhile a thread
//! that searches and one that writes, changes and deletes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use image::GrayImage;
use rehang::files::{self, VectorSource};
use rehang::{Adapter, Error, Matrix, Progress, Provenance, Result};
use rehang_encode::{Encoder, EncoderConfig, Input};
use rehang_store::{Filter, ItemWrite, NewVector, Scan, Select, SqliteStore, Store};
use rehang_upgrade::{
    BackfillSetup, Configuration, Gallery, Limits, NoFaults, Queries, Serving, Summary, SystemClock,
    backfill, start, switch,
};
use serde_json::{Value, json};

use super::{Outcome, one_decimal, say, write_text};

/// Images whose nearest neighbours are asked for; the encoders have seen them, the gallery does not hold them.
const QUERIES: usize = 200;
/// Neighbours of each.
const DEPTH: usize = 10;
/// Items a second: fast enough for a demo, slow enough to be watched.
const RATE: f64 = 250.0;
/// Time between two writes of the application.
const WRITE_EVERY: Duration = Duration::from_millis(15);
/// Searches that tell how fast an idle gallery answers.
const IDLE_SEARCHES: usize = 2000;

/// A search that found what was not there any more, or nothing, or failed.
#[derive(Default)]
struct Searches {
    milliseconds: Vec<f64>,
    failed: Vec<String>,
}

/// What the application did, and how long it waited.
#[derive(Default)]
struct Writes {
    puts: usize,
    changes: usize,
    deletions: usize,
    milliseconds: Vec<f64>,
}

/// The images of the demo: 8 x 8 pixels each, from 0 to 16.
struct Images {
    pixels: Matrix,
    labels: Vec<i64>,
    gallery: Vec<usize>,
    others: Vec<usize>,
}

impl Images {
    fn read(folder: &Path) -> Result<Self> {
        let source = |name: &str| VectorSource::path(folder.join(name));
        let pixels = files::read_matrix(&source("images.npy"))?;
        let labels = files::read_labels(&source("label.npy"))?;
        let roles = files::read_labels(&source("role.npy"))?;
        let of_role = |wanted: i64| (0..roles.len()).filter(|&row| roles[row] == wanted).collect();
        Ok(Self { pixels, labels, gallery: of_role(1), others: of_role(0) })
    }

    fn name(row: usize) -> String {
        format!("digit-{row:04}.png")
    }

    /// Writes every image as a file; 15 grey levels a step keep all 17 values apart and exact.
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

/// Runs the live upgrade in the folder of the demo; gives the numbers, the sentences about them, and how it ended.
pub fn run(folder: &Path, adapter: &Adapter, show: bool) -> Result<(Value, String, Outcome)> {
    let images = Images::read(folder)?;
    images.write(&folder.join("images"))?;
    let config_path = folder.join("rehang.toml");
    write_text(&config_path, &configuration(adapter))?;
    let database = folder.join("gallery.db");
    for suffix in ["", "-wal", "-shm"] {
        // A demo begins anew.
        drop(fs_err::remove_file(format!("{}{suffix}", database.display())));
    }
    let configuration = Configuration::read(&config_path)?;
    let store = SqliteStore::create(&database)?;
    let old_encoder = rehang_encode::open(&encoder_config("old_encoder.onnx")?, &adapter.old, folder)?;
    let new_encoder = configuration.open_encoder()?;

    step(show, "rehang gallery import --gallery gallery.db --space digits-old …");
    store.create_space(&adapter.old, Provenance::Old)?;
    let sources: Vec<String> = images.gallery.iter().map(|&row| Images::name(row)).collect();
    let vectors = embed(old_encoder.as_ref(), &sources)?;
    let writes: Vec<ItemWrite> = images
        .gallery
        .iter()
        .zip(vectors)
        .map(|(&row, vector)| item(adapter, &Images::name(row), &images, row, Some(vector)))
        .collect();
    store.put(&writes)?;
    let queries: Vec<usize> = images.others.iter().copied().take(QUERIES).collect();
    let query_sources: Vec<String> = queries.iter().map(|&row| Images::name(row)).collect();
    let old_queries = matrix(&embed(old_encoder.as_ref(), &query_sources)?)?;
    let new_queries = matrix(&embed(new_encoder.as_ref(), &query_sources)?)?;
    let gallery = Gallery::new(&store, Some(adapter));
    let labels: BTreeMap<String, i64> =
        (0..images.labels.len()).map(|row| (Images::name(row), images.labels[row])).collect();
    let quality = |stage: &str| -> Result<f64> {
        let given = Queries { old: Some(&old_queries), new: Some(&new_queries) };
        let found = gallery.search(&given, DEPTH, &Filter::default())?.found;
        let mut right = 0;
        for (hits, &row) in found.iter().zip(&queries) {
            let of_class = |id: &str| labels.get(id).copied() == Some(images.labels[row]);
            right += hits.iter().filter(|hit| of_class(&hit.id)).count();
        }
        if found.iter().any(Vec::is_empty) {
            return Err(Error::corrupt("the demo's gallery", format!("a search {stage} found nothing")));
        }
        Ok(100.0 * right as f64 / (DEPTH * queries.len()) as f64)
    };
    let before = quality("before the switch")?;

    step(show, "rehang upgrade start --config rehang.toml");
    start(&store, &configuration.setup(), &NoFaults, &Progress::default())?;
    step(show, "rehang upgrade switch --config rehang.toml");
    switch(&store, &configuration.setup(), Serving::Mixed, &NoFaults)?;
    let at_switch = quality("at the switch")?;
    let idle = search_idle(&gallery, &new_queries)?;

    step(
        show,
        &format!(
            "rehang upgrade run --config rehang.toml --rate {RATE}/s      # while people search and write"
        ),
    );
    let live =
        upgrade_live(&store, adapter, new_encoder.as_ref(), old_encoder.as_ref(), &images, &new_queries)?;
    verify(&store, adapter, new_encoder.as_ref(), &live.deleted)?;
    let after = quality("after the backfill")?;
    let recall = store.recall(&adapter.new.model, 100, DEPTH)?;
    Ok(summary(&live, before, at_switch, after, recall, &idle))
}

/// What happened while the gallery was upgraded.
struct Live {
    summary: Summary,
    searches: Searches,
    writes: Writes,
    deleted: BTreeSet<String>,
}

/// Backfills while one thread searches and another writes.
fn upgrade_live(
    store: &SqliteStore,
    adapter: &Adapter,
    new_encoder: &dyn Encoder,
    old_encoder: &dyn Encoder,
    images: &Images,
    queries: &Matrix,
) -> Result<Live> {
    let over = AtomicBool::new(false);
    let deleted = Mutex::new(BTreeSet::new());
    let clock = SystemClock::start();
    let setup = BackfillSetup {
        store,
        encoder: new_encoder,
        adapter: Some(adapter),
        limits: Limits { batch: 32, rate: Some(RATE), ..Limits::default() },
        clock: &clock,
        faults: &NoFaults,
    };
    let (summary, searches, writes) = thread::scope(|scope| {
        let searcher = scope.spawn(|| {
            let gallery = Gallery::new(store, Some(adapter));
            let mut searches = Searches::default();
            let mut query = 0;
            while !over.load(Ordering::Relaxed) {
                query = (query + 1) % queries.rows();
                search_once(&gallery, queries, query, &deleted, &mut searches);
            }
            searches
        });
        let writer = scope.spawn(|| {
            let gallery = Gallery::new(store, Some(adapter));
            let mut writes = Writes::default();
            let mut turn = 0;
            while !over.load(Ordering::Relaxed) {
                write_once(&gallery, adapter, old_encoder, images, turn, &deleted, &mut writes)?;
                turn += 1;
                thread::sleep(WRITE_EVERY);
            }
            Ok(writes)
        });
        let summary = crate::bar::with_bar(|progress| backfill(&setup, progress));
        over.store(true, Ordering::Relaxed);
        let died = || Error::conflict("a thread of the demo", "it died; this is a defect");
        let searches = searcher.join().map_err(|_| died())?;
        let writes: Result<Writes> = writer.join().map_err(|_| died())?;
        Ok::<_, Error>((summary?, searches, writes?))
    })?;
    // What was written in the last moments, now that nobody writes any more.
    let last = backfill(&setup, &Progress::default())?;
    let summary = Summary { items: last.items, native: last.native, ..summary };
    let deleted = deleted.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Live { summary, searches, writes, deleted })
}

fn search_once(
    gallery: &Gallery<'_>,
    queries: &Matrix,
    query: usize,
    deleted: &Mutex<BTreeSet<String>>,
    searches: &mut Searches,
) {
    let gone = deleted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let one = queries.select(&[query]);
    let began = Instant::now();
    let answer = gallery.search(&Queries { old: None, new: Some(&one) }, DEPTH, &Filter::default());
    searches.milliseconds.push(began.elapsed().as_secs_f64() * 1000.0);
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

/// One write of an application that still embeds with the old model: a new item, a changed one, a deletion, in turn.
fn write_once(
    gallery: &Gallery<'_>,
    adapter: &Adapter,
    old_encoder: &dyn Encoder,
    images: &Images,
    turn: usize,
    deleted: &Mutex<BTreeSet<String>>,
    writes: &mut Writes,
) -> Result<()> {
    let fresh = images.others[(QUERIES + turn) % images.others.len()];
    let existing = images.gallery[(turn * 37) % images.gallery.len()];
    let source = Images::name(fresh);
    match turn % 3 {
        0 | 1 => {
            let vector = embed(old_encoder, std::slice::from_ref(&source))?.remove(0);
            let id = if turn.is_multiple_of(3) { format!("new-{turn}") } else { Images::name(existing) };
            let gone = deleted.lock().unwrap_or_else(PoisonError::into_inner).contains(&id);
            if gone {
                return Ok(());
            }
            // Every other new item comes without any vector: the backfill embeds it first of all.
            let vector = (!turn.is_multiple_of(6)).then_some(vector);
            let write = item(adapter, &id, images, fresh, vector);
            let began = Instant::now();
            gallery.put(vec![write])?;
            writes.milliseconds.push(began.elapsed().as_secs_f64() * 1000.0);
            if turn.is_multiple_of(3) {
                writes.puts += 1;
            } else {
                writes.changes += 1;
            }
        }
        _ => {
            let id = Images::name(existing);
            let began = Instant::now();
            gallery.delete(&[&id])?;
            writes.milliseconds.push(began.elapsed().as_secs_f64() * 1000.0);
            deleted.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
            writes.deletions += 1;
        }
    }
    Ok(())
}

fn search_idle(gallery: &Gallery<'_>, queries: &Matrix) -> Result<Vec<f64>> {
    let mut searches = Searches::default();
    let nothing = Mutex::default();
    for query in 0..IDLE_SEARCHES {
        search_once(gallery, queries, query % queries.rows(), &nothing, &mut searches);
    }
    match searches.failed.first() {
        Some(reason) => Err(Error::corrupt("the demo's gallery", format!("a search failed: {reason}"))),
        None => Ok(searches.milliseconds),
    }
}

/// Looks at every item of the upgraded gallery: it is native, made from the source it has now, and not deleted.
fn verify(
    store: &SqliteStore,
    adapter: &Adapter,
    encoder: &dyn Encoder,
    deleted: &BTreeSet<String>,
) -> Result<()> {
    let name = &adapter.new.model;
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

fn summary(
    live: &Live,
    before: f64,
    at_switch: f64,
    after: f64,
    recall: f64,
    idle: &[f64],
) -> (Value, String, Outcome) {
    let Live { summary, searches, writes, .. } = live;
    let (p99_idle, p99_live) = (percentile(idle, 0.99), percentile(&searches.milliseconds, 0.99));
    let longest = percentile(&writes.milliseconds, 1.0);
    let value = json!({
        "precision_at_10": { "before": before, "at_switch": at_switch, "after": after },
        "index_recall_at_10": recall,
        "native": summary.native,
        "items": summary.items,
        "seconds": summary.elapsed_ms as f64 / 1000.0,
        "searches": searches.milliseconds.len(),
        "failed_searches": searches.failed.len(),
        "search_p99_ms": { "idle": p99_idle, "backfill": p99_live },
        "writes": { "new": writes.puts, "changed": writes.changes, "deleted": writes.deletions },
        "longest_write_ms": longest,
    });
    let mut text = format!(
        "\nLive, in {:.1} s: {} of {} images are native, while {} searches ran and {} items were added, {} changed, {} \
         deleted.\n  {} searches failed; the slowest 1 % took {p99_live:.2} ms or more ({p99_idle:.2} ms before the backfill)\n  \
         the longest write waited {longest:.1} ms\n  of 10 neighbours {} % are the same digit: {} % before, {} % at the switch\n  \
         every vector was compared with what the new encoder says of its image: all are right\n",
        summary.elapsed_ms as f64 / 1000.0,
        summary.native,
        summary.items,
        searches.milliseconds.len(),
        writes.puts,
        writes.changes,
        writes.deletions,
        searches.failed.len(),
        one_decimal(after),
        one_decimal(before),
        one_decimal(at_switch),
    );
    let Some(reason) = searches.failed.first() else { return (value, text, Outcome::Done) };
    writeln!(
        text,
        "  A live upgrade must not make a single search fail, so this demo did not succeed. The first failure: {reason}"
    )
    .ok();
    (value, text, Outcome::WithRefusals)
}

/// The value below which a share of all lies (the largest for a share of 1); 0 for none.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

fn item(adapter: &Adapter, id: &str, images: &Images, row: usize, vector: Option<Vec<f32>>) -> ItemWrite {
    let old = |vector| NewVector {
        space: adapter.old.model.clone(),
        vector,
        provenance: Provenance::Old,
        sigma2: None,
        priority: None,
    };
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

/// The keys of an encoder; pixels are divided by 16 · 15, which gives what the encoders were trained on.
fn encoder_text(model: &str) -> String {
    format!(
        "kind = \"onnx\"\nmodel = \"{model}\"\nroot = \"images\"\ninput = {{ kind = \"image\", width = 8, height = 8, \
             channels = 1, resize = \"exact\", mean = [0.0], std = [{:.8}] }}\n",
        240.0 / 255.0
    )
}

fn configuration(adapter: &Adapter) -> String {
    let space = |space: &rehang::Space| {
        format!("name = \"{}\"\ndim = {}\ndistance = \"{}\"\n", space.model, space.dimension, space.distance)
    };
    format!(
        "[gallery]\npath = \"gallery.db\"\n\n[old]\n{}\n[new]\n{}\n[adapter]\nfile = \"adapter.safetensors\"\n\n[order]\npolicy = \
         \"coverage\"\n\n[encoder]\n{}\n[run]\nbatch = 32\n",
        space(&adapter.old),
        space(&adapter.new),
        encoder_text("new_encoder.onnx")
    )
}

fn step(show: bool, command: &str) {
    if show {
        say(&format!("\n$ {command}"));
    }
}

#[cfg(test)]
mod tests {
    use rehang_encode::Spent;
    use rehang_upgrade::{Ending, Tally};

    use super::*;

    #[test]
    fn a_failed_search_is_no_success() {
        for (failed, outcome) in [(vec![], Outcome::Done), (vec!["3 hits".to_owned()], Outcome::WithRefusals)]
        {
            let live = Live {
                summary: Summary {
                    ending: Ending::NothingLeft,
                    encoder_said: None,
                    done: Tally::default(),
                    items: 1,
                    native: 1,
                    caught_up: 0,
                    spent: Spent::default(),
                    elapsed_ms: 1,
                    encoder_busy_ms: 1,
                    sigma: None,
                },
                searches: Searches { milliseconds: vec![1.0], failed },
                writes: Writes::default(),
                deleted: BTreeSet::new(),
            };
            let (_, text, ended) = summary(&live, 0.0, 0.0, 0.0, 1.0, &[1.0]);
            assert_eq!(ended, outcome);
            assert_eq!(text.contains("did not succeed") && text.contains("3 hits"), outcome != Outcome::Done);
        }
    }
}
