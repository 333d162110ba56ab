//! An upgrade of a table of PostgreSQL, measured:
//! `cargo run --release -p rehang-upgrade --features postgres --example bench_postgres -- ADDRESS [ROWS]` in an empty database with pgvector.
//!
//! 1. Filling beside what the server does bare for the same bytes, in turns, three times: bare is a binary COPY of key and vector into a
//!    staging table and one UPDATE of the application's rows from it, without any index on the vectors and without any row of ours.
//! 2. A whole upgrade while an application writes and searches by plain SQL: how long its calls take before, during the start, after
//!    the switch, during a backfill and after the rollback.
//! 3. A backfill by one, two and four workers, each with an encoder of its own that takes 200 ms for 64 items.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, which prints what it finds and reads the clock"
)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgvector::Vector;
use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::Type;
use postgres::{Client, NoTls};
use rehang::adapter::{Dense, Geometry, InputScaling, Map, Training, Uncertainty};
use rehang::order::Policy;
use rehang::{Adapter, Distance, Matrix, Progress, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Epoch, Index, Ledger, Select};
use rehang_upgrade::{
    BackfillSetup, Filler, Limits, OrderSettings, Part, Serving, Setup, SystemClock, Unobserved, backfill,
    rollback, start, switch,
};

const D_OLD: usize = 128;
const D_NEW: usize = 256;
const BATCH: usize = 64;
const ENCODER_TAKES: Duration = Duration::from_millis(200);
const ORDER: OrderSettings = OrderSettings { policy: Policy::Sigma, seed: 0 };

/// Points in clusters, as embeddings are.
fn vector(row: usize, d: usize) -> Vec<f32> {
    let noise = |seed: usize| ((seed as f64 * 12.9898).sin() * 43_758.547).fract() as f32;
    (0..d).map(|column| noise(row % 500 * 7919 + column) + 0.5 * noise(row * 104_729 + column * 31)).collect()
}

fn space(name: &str, d: usize) -> Space {
    Space::new(name, d, Distance::Cosine, false)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("the address of an empty database");
    let rows = arguments.next().map_or(200_000, |text| text.parse().expect("a number"));
    let mut client = Client::connect(&address, NoTls).unwrap();
    fill_in_turns(&address, &mut client, rows);
    beside_an_application(&address, &mut client, rows);
}

/// The map that doubles each coordinate's place, a little mixed.
fn adapter() -> Adapter {
    let weight = Matrix::from_fn(D_NEW, D_OLD, |row, column| if row / 2 == column { 1.0 } else { 0.01 });
    Adapter {
        old: space("old", D_OLD),
        new: space("new", D_NEW),
        map: Map {
            input: InputScaling::AsIs,
            branch: vec![],
            second: None,
            mixer: vec![Dense { weight, bias: vec![0.0; D_NEW], relu: false }],
            skip: None,
            kernel: None,
        },
        geometry: Geometry::Raw,
        uncertainty: Uncertainty::Linear { weight: vec![0.01; D_NEW], bias: 0.0 },
        handicap: 0.0,
        input_statistics: None,
        training: Training::default(),
    }
}

fn fill_in_turns(address: &str, client: &mut Client, rows: usize) {
    let adapter = adapter();
    let filler = Filler::new(&adapter, "old", "new", ORDER).unwrap();
    let vectors: Vec<Vec<f32>> = (0..rows).map(|row| vector(row, D_NEW)).collect();
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for turn in 0..3 {
        make(client, "bare", rows);
        client.batch_execute("CHECKPOINT").unwrap();
        bare.push(rows as f64 / fill_bare(client, &vectors));
        client.batch_execute("DROP TABLE bare").unwrap();
        make(client, "documents", rows);
        let began = Instant::now();
        let store = adopt(address);
        let adopted = began.elapsed().as_secs_f64();
        store.create_space(&space("new", D_NEW), Provenance::Native).unwrap();
        client.batch_execute("CHECKPOINT").unwrap();
        let began = Instant::now();
        let written = filler.fill(&store, Epoch::FIRST, &Select::All, &Unobserved).unwrap();
        ours.push(rows as f64 / began.elapsed().as_secs_f64());
        assert_eq!((written, store.counts("new").unwrap().adapted), (rows as u64, rows as u64));
        println!(
            "turn {turn}: bare {:.0} rows/s, ours {:.0} rows/s; adopted in {adopted:.1} s",
            bare[turn], ours[turn]
        );
        store.release(None).unwrap();
        client.batch_execute("DROP TABLE documents").unwrap();
    }
    bare.sort_by(f64::total_cmp);
    ours.sort_by(f64::total_cmp);
    println!("medians: bare {:.0}, ours {:.0} rows/s, ratio {:.2}", bare[1], ours[1], ours[1] / bare[1]);
}

fn options() -> TableOptions {
    TableOptions {
        table: "documents".into(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

fn adopt(address: &str) -> PostgresStore {
    let store = PostgresStore::adopt(address, &options(), Some("old"), &|_, _| true).unwrap();
    store.create_space(&space("old", D_OLD), Provenance::Old).unwrap();
    store
}

fn make(client: &mut Client, table: &str, rows: usize) {
    let columns = format!("id bigint PRIMARY KEY, body text, embedding vector({D_OLD})");
    client.batch_execute(&format!("CREATE TABLE {table} ({columns})")).unwrap();
    let types = [Type::INT8, Type::TEXT, vector_type(client)];
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN BINARY")).unwrap();
    let mut writer = BinaryCopyInWriter::new(sink, &types);
    for row in 0..rows {
        writer.write(&[&(row as i64), &format!("text {row}"), &Vector::from(vector(row, D_OLD))]).unwrap();
    }
    writer.finish().unwrap();
    client.batch_execute(&format!("VACUUM ANALYZE {table}")).unwrap();
}

fn vector_type(client: &mut Client) -> Type {
    client.prepare("SELECT NULL::vector").unwrap().columns()[0].type_().clone()
}

/// Seconds that the server takes bare.
fn fill_bare(client: &mut Client, vectors: &[Vec<f32>]) -> f64 {
    let types = [Type::INT8, vector_type(client)];
    let began = Instant::now();
    client
        .batch_execute(&format!(
            "ALTER TABLE bare ADD COLUMN new vector({D_NEW}); CREATE UNLOGGED TABLE staging (id bigint, value vector({D_NEW}))"
        ))
        .unwrap();
    let sink = client.copy_in("COPY staging FROM STDIN BINARY").unwrap();
    let mut writer = BinaryCopyInWriter::new(sink, &types);
    for (row, vector) in vectors.iter().enumerate() {
        writer.write(&[&(row as i64), &Vector::from(vector.clone())]).unwrap();
    }
    writer.finish().unwrap();
    client.batch_execute("UPDATE bare AS t SET new = s.value FROM staging AS s WHERE s.id = t.id").unwrap();
    let seconds = began.elapsed().as_secs_f64();
    client.batch_execute("DROP TABLE staging").unwrap();
    seconds
}

/// What an application's calls took, in milliseconds.
#[derive(Default)]
struct Waits {
    writes: Mutex<Vec<f64>>,
    searches: Mutex<Vec<f64>>,
}

impl Waits {
    /// Prints what came in since the last call.
    fn print(&self, phase: &str) {
        for (what, times) in [("writes", &self.writes), ("searches", &self.searches)] {
            let mut times = std::mem::take(&mut *times.lock().unwrap());
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            println!(
                "  {phase}: {} {what}, median {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
                times.len(),
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }
}

/// An application that inserts, changes and deletes rows, a statement each 5 ms, and knows nothing of us.
fn write_rows(address: &str, rows: usize, waits: &Waits, is_over: &AtomicBool) {
    let mut client = Client::connect(address, NoTls).unwrap();
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        let (row, value) = (((at * 7919) % rows) as i64, Vector::from(vector(at, D_OLD)));
        let body = format!("text {at}");
        let began = Instant::now();
        match at % 4 {
            0 => client.execute(
                "INSERT INTO documents (id, body, embedding) VALUES ($1, $2, $3)",
                &[&((rows + at) as i64), &body, &value],
            ),
            1 => client.execute(
                "UPDATE documents SET body = $2, embedding = $3 WHERE id = $1",
                &[&row, &body, &value],
            ),
            2 => client.execute("UPDATE documents SET body = $2 WHERE id = $1", &[&row, &body]),
            _ => client.execute("DELETE FROM documents WHERE id = $1", &[&row]),
        }
        .unwrap();
        waits.writes.lock().unwrap().push(began.elapsed().as_secs_f64() * 1e3);
        at += 1;
        thread::sleep(Duration::from_millis(5));
    }
}

/// An application that searches each 20 ms in the space that serves.
fn search_rows(address: &str, waits: &Waits, is_over: &AtomicBool) {
    let mut client = Client::connect(address, NoTls).unwrap();
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let serving: String = client.query_one("SELECT rehang.serving('documents')", &[]).unwrap().get(0);
        let d = if serving == "old" { D_OLD } else { D_NEW };
        let query = Vector::from(vector(at, d));
        let found =
            client.query("SELECT id FROM rehang.search('documents', $1::vector, 10)", &[&query]).unwrap();
        assert_eq!(found.len(), 10);
        waits.searches.lock().unwrap().push(began.elapsed().as_secs_f64() * 1e3);
        at += 1;
        thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the application also where something fails here.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn beside_an_application(address: &str, client: &mut Client, rows: usize) {
    make(client, "documents", rows);
    client.batch_execute("CREATE INDEX ON documents USING hnsw (embedding vector_cosine_ops)").unwrap();
    let store = adopt(address);
    let adapter = adapter();
    let (old, new) = (space("old", D_OLD), space("new", D_NEW));
    let setup = Setup { old: &old, new: &new, adapter: &adapter, order: ORDER };
    let (waits, is_over) = (Waits::default(), AtomicBool::new(false));
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        println!("{what}: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    };
    thread::scope(|scope| {
        scope.spawn(|| write_rows(address, rows, &waits, &is_over));
        scope.spawn(|| search_rows(address, &waits, &is_over));
        let _ends = Ends(&is_over);
        thread::sleep(Duration::from_secs(10));
        waits.print("before");
        timed("start", &mut || {
            start(&store, &setup, &Unobserved).unwrap();
        });
        waits.print("during the start");
        timed("switch", &mut || {
            switch(&store, &setup, Serving::Mixed, &Unobserved).unwrap();
        });
        thread::sleep(Duration::from_secs(10));
        waits.print("after the switch");
        println!("recall@10: {:.4}", store.recall("new", 50, 10).unwrap());
        waits.print("while the recall is measured");
        for workers in [1, 2, 4] {
            by_workers(address, &adapter, &new, workers, rows as u64 / 40);
            waits.print(&format!("beside {workers} workers"));
        }
        timed("rollback", &mut || {
            rollback(&store, &setup, &Unobserved).unwrap();
        });
        thread::sleep(Duration::from_secs(10));
        waits.print("after the rollback");
    });
    let mut one = 0.0;
    for workers in [1, 2, 4] {
        let rate = by_workers(address, &adapter, &new, workers, rows as u64 / 40);
        one = if workers == 1 { rate } else { one };
        println!("  {:.2} of linear", rate / (one * workers as f64));
    }
    assert_eq!(store.check().unwrap(), []);
    let items = client.query_one("SELECT count(*) FROM documents", &[]).unwrap().get::<_, i64>(0) as u64;
    assert_eq!(store.counts("new").unwrap().items, items);
}

/// Items a second that so many workers embed, each of them `budget` items.
fn by_workers(address: &str, adapter: &Adapter, new: &Space, workers: u64, budget: u64) -> f64 {
    let began = Instant::now();
    thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                let store = PostgresStore::open(address, &options(), Some("old")).unwrap();
                let encoder = Slow { space: new.clone(), turn: Mutex::default() };
                let setup = BackfillSetup {
                    store: &store,
                    encoder: &encoder,
                    part: Part::Gallery(adapter),
                    limits: Limits { batch: BATCH, workers: 2, budget: Some(budget), ..Limits::default() },
                    clock: &SystemClock::start(),
                    worker: &format!("worker {worker}"),
                };
                let summary = backfill(&setup, &Progress::default()).unwrap();
                assert_eq!(summary.done.native, budget);
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let rate = (workers * budget) as f64 / seconds;
    // An encoder that does one batch after the other is busy for the time that its batches take.
    let batches = (workers * budget.div_ceil(BATCH as u64)) as f64;
    println!(
        "{workers} workers: {rate:.0} items/s, encoders busy {:.1} % of the time",
        100.0 * batches * ENCODER_TAKES.as_secs_f64() / (workers as f64 * seconds)
    );
    rate
}

/// An encoder that takes its time and does one batch after the other, as one graphics processor does.
struct Slow {
    space: Space,
    turn: Mutex<()>,
}

impl Encoder for Slow {
    fn space(&self) -> &Space {
        &self.space
    }

    fn batch_max(&self) -> usize {
        BATCH
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<std::result::Result<Vec<f32>, ItemFailure>>> {
        let turn = self.turn.lock().unwrap();
        thread::sleep(ENCODER_TAKES);
        drop(turn);
        Ok(inputs.iter().map(|input| Ok(vector(input.id.parse().unwrap_or(0), D_NEW))).collect())
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}
