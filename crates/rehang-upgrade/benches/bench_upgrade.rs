//! How fast an upgrade goes on the embedded store: `cargo bench -p rehang-upgrade --bench bench_upgrade --
//! [ITEMS [ROUNDS]]`.
//!
//! Prints the rate at which the store takes vectors that are ready (raw) and the rate of `start` (make the
//! space, read, adapt, order, write), in turns on copies of one gallery, with medians; how long another
//! application's writes wait beside a `start`; and how busy a backfill keeps an encoder that does one batch
//! after the other. The numbers of items written are asserted.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::adapter::{Dense, InputScaling, Map, Uncertainty};
use rehang_core::order::Policy;
use rehang_core::{Adapter, Distance, Matrix, Progress, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_sqlite::SqliteStore;
use rehang_store::{Epoch, ItemWrite, Ledger, NewVector, Priority, Scan, Select, VectorWrite};
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Limits, Observer, OrderSettings, Place, SystemClock, Unobserved,
    UpgradeSetup, backfill, start,
};

const D: usize = 128;
/// Items of one raw write: as many as a page of `start` has.
const PAGE: usize = 2048;
const ENCODED: u64 = 12_800;
const BATCH: usize = 64;
const ENCODER_TAKES: Duration = Duration::from_millis(20);
/// Work of an application between two of its writes.
const APPLICATION_RESTS: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    let number = |place: usize| std::env::args().nth(place).and_then(|text| text.parse().ok());
    let items: usize = number(1).unwrap_or(100_000);
    let rounds: usize = number(2).unwrap_or(5);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let (old, new) = (Space::new("old", D, Distance::L2, false), Space::new("new", D, Distance::L2, false));
    let began = Instant::now();
    {
        let store = SqliteStore::create(path("base.db"))?;
        store.create_space(&old, Provenance::Old)?;
        let rows: Vec<usize> = (0..items).collect();
        for page in rows.chunks(1000) {
            let writes: Vec<ItemWrite> = page.iter().map(|&row| item(row)).collect();
            store.put(&writes)?;
        }
    }
    print_rate("import", items, began.elapsed());

    // Each on a fresh copy of the same gallery, in turns, so that whatever else the machine does meets both.
    let adapter = adapter(&old, &new);
    let order = OrderSettings { policy: Policy::Sigma, seed: 0 };
    let setup = UpgradeSetup { old: &old, new: &new, adapter: Some(&adapter), order };
    let (mut raw, mut started, mut filled) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    let copy = |name: &str| -> Result<SqliteStore> {
        let to = path(&format!("{name}.db"));
        std::fs::copy(path("base.db"), &to).expect("room for a copy");
        SqliteStore::open(to)
    };
    for round in 0..rounds {
        let (store, writes) = ready(copy(&format!("raw-{round}"))?, &new)?;
        let began = Instant::now();
        for page in writes.chunks(PAGE) {
            store.write_vectors("new", Some(Epoch::FIRST), page)?;
        }
        raw.push(print_rate("raw write", items, began.elapsed()));
        assert_eq!(store.counts("new")?.adapted, items as u64);
        drop((store, writes));

        let store = copy(&format!("start-{round}"))?;
        let began = Instant::now();
        let marks = Marks::default();
        start(&store, &setup, &marks)?;
        started.push(print_rate("start", items, began.elapsed()));
        filled.push(print_rate("  of it, transform and write", items, marks.between()));
        assert_eq!(store.counts("new")?.adapted, items as u64);
        last = Some(store);
    }
    let Some(store) = last else { return Ok(()) };
    let raw_rate = median(raw);
    println!("medians of {rounds}: raw write {raw_rate:.0} a second");
    for (what, rates) in [("start", started), ("transform and write", filled)] {
        let rate = median(rates);
        println!("  {what} {rate:.0} a second, {:.3} of raw write", rate / raw_rate);
    }

    {
        let store = copy("library")?;
        let application = SqliteStore::open(store.path())?;
        let id = items.to_string();
        let mut is_there = false;
        let mut write = || {
            is_there = !is_there;
            if is_there {
                application.put(&[item(items)])?;
            } else {
                application.delete(&[&id])?;
            }
            Ok(())
        };
        beside_an_application(&store, items, &setup, "library", &mut write)?;
    }
    {
        let store = copy("sql")?;
        let application = rusqlite::Connection::open(store.path()).expect("the gallery opens");
        application.busy_timeout(Duration::from_secs(10)).expect("an option of SQLite");
        let mut is_there = false;
        let mut write = move || {
            is_there = !is_there;
            let sql = if is_there {
                "INSERT INTO item (id, source) VALUES ('of the application', 'somewhere')"
            } else {
                "DELETE FROM item WHERE id = 'of the application'"
            };
            application.execute(sql, []).expect("a write of plain SQL");
            Ok(())
        };
        beside_an_application(&store, items, &setup, "plain SQL", &mut write)?;
    }

    for (workers, takes) in [(1, ENCODER_TAKES), (2, ENCODER_TAKES), (1, 10 * ENCODER_TAKES)] {
        let encoder = Slow { space: new.clone(), takes, turn: Mutex::default() };
        let clock = SystemClock::start();
        let budget = Some(if takes > ENCODER_TAKES { ENCODED / 8 } else { ENCODED }.min(items as u64 / 3));
        let setup = BackfillSetup {
            store: &store,
            encoder: &encoder,
            scope: BackfillScope::Gallery(Some(&adapter)),
            limits: Limits { batch: BATCH, workers, budget, ..Limits::default() },
            clock: &clock,
            worker: "bench",
        };
        let summary = backfill(&setup, &Progress::default())?;
        assert_eq!(Some(summary.done.native), budget);
        let busy = encoder.turn.into_inner().expect("no worker panicked");
        println!(
            "backfill, {workers} workers, {} ms a batch: {} items in {:.2} s, encoder busy {:.1} % of the time",
            takes.as_millis(),
            summary.done.native,
            summary.elapsed_ms as f64 / 1000.0,
            100.0 * busy.as_secs_f64() * 1000.0 / summary.elapsed_ms as f64
        );
    }
    let size = |suffix: &str| {
        let path = format!("{}{suffix}", store.path().display());
        fs_size(&path) as f64 / f64::from(1 << 20)
    };
    println!("gallery file: {:.0} MiB with both spaces ({:.0} MiB log)", size(""), size("-wal"));
    Ok(())
}

/// A `start` while an application adds and deletes an item again and again, and how long it waits. Like
/// another process, the application has a handle of its own: it takes SQLite's lock, and not the lock that
/// the threads of one store share.
fn beside_an_application(
    store: &SqliteStore,
    items: usize,
    setup: &UpgradeSetup<'_>,
    application: &str,
    write: &mut (dyn FnMut() -> Result<()> + Send),
) -> Result<()> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<Vec<Duration>> {
            let mut waits = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                write()?;
                waits.push(began.elapsed());
                thread::sleep(APPLICATION_RESTS);
            }
            Ok(waits)
        });
        let began = Instant::now();
        let outcome = start(store, setup, &Unobserved);
        print_rate(&format!("start beside an application ({application})"), items, began.elapsed());
        is_over.store(true, Ordering::Relaxed);
        let mut waits = writer.join().expect("the application does not panic")?;
        waits.sort();
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        println!(
            "  {} writes meanwhile: median {:.1} ms, one in twenty over {:.0} ms, the longest {:.0} ms",
            waits.len(),
            at(0.5),
            at(0.95),
            at(1.0)
        );
        outcome.map(drop)
    })
}

/// The new space, and what `start` would write into it.
fn ready(store: SqliteStore, new: &Space) -> Result<(SqliteStore, Vec<VectorWrite>)> {
    store.create_space(new, Provenance::Native)?;
    let mut writes = Vec::new();
    let mut after = None;
    loop {
        let records = store.scan(&Scan::new("old", Select::All, PAGE).after(after))?;
        let Some(last) = records.last() else { return Ok((store, writes)) };
        after = Some(last.item.key);
        writes.extend(records.iter().map(|record| {
            let vector = vector(record.item.key.bits() as usize);
            let first = vector[0];
            VectorWrite::adapted(&record.item, vector, 1.0 + first, Priority::ordinary(f64::from(first)))
        }));
    }
}

/// Times at which the new space was there, and was filled.
#[derive(Default)]
struct Marks(Mutex<Vec<Instant>>);

impl Marks {
    fn between(&self) -> Duration {
        let marks = self.0.lock().expect("no thread panicked");
        marks[1] - marks[0]
    }
}

impl Observer for Marks {
    fn reach(&self, place: Place) -> Result<()> {
        if matches!(place, Place::SpaceMade | Place::PrioritiesWritten) {
            self.0.lock().expect("no thread panicked").push(Instant::now());
        }
        Ok(())
    }
}

/// The value in the middle, the lower one of two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

fn fs_size(path: &str) -> u64 {
    std::path::Path::new(path).metadata().map_or(0, |metadata| metadata.len())
}

fn print_rate(what: &str, items: usize, took: Duration) -> f64 {
    let rate = items as f64 / took.as_secs_f64();
    println!("{what}: {items} items in {:.2} s, {rate:.0} a second", took.as_secs_f64());
    rate
}

fn vector(row: usize) -> Vec<f32> {
    (0..D).map(|column| ((row * 31 + column * 17) % 1009) as f32 / 1009.0).collect()
}

fn item(row: usize) -> ItemWrite {
    ItemWrite::new(
        row.to_string(),
        Some(format!("source of item {row}")),
        vec![NewVector::from_model("old", vector(row), Provenance::Old)],
    )
}

fn adapter(old: &Space, new: &Space) -> Adapter {
    let weight = Matrix::from_fn(D, D, |row, column| if row == column { 1.0 } else { 0.01 });
    Adapter::new(
        old.clone(),
        new.clone(),
        Map::from_layers(InputScaling::AsIs, vec![Dense { weight, bias: vec![0.0; D], relu: false }]),
        Uncertainty::Linear { weight: vec![0.01; D], bias: 0.0 },
    )
}

/// An encoder that takes its time and does one batch after the other, as one graphics processor does.
struct Slow {
    space: Space,
    takes: Duration,
    /// Held while it works; how long it has worked.
    turn: Mutex<Duration>,
}

impl Encoder for Slow {
    fn space(&self) -> &Space {
        &self.space
    }

    fn batch_max(&self) -> usize {
        BATCH
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        let mut worked = self.turn.lock().expect("no worker panicked");
        let began = Instant::now();
        thread::sleep(self.takes);
        *worked += began.elapsed();
        drop(worked);
        Ok(inputs.iter().map(|input| Ok(vector(input.id.parse().unwrap_or(0)))).collect())
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}
