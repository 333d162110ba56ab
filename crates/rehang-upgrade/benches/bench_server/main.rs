//! An upgrade of a table of PostgreSQL or of a collection of Qdrant, measured: `cargo bench -p rehang-upgrade
//! --features postgres,qdrant --bench bench_server -- ADDRESS [ROWS
//! [fill|beside|deaths|searches|both|policies|claims|promises …]]`, with the address of an empty database
//! with pgvector, or of a server of Qdrant (`http://…`). `WIDTHS=1536x3072` before it: vectors of these
//! widths, in place of 128 and 256.
//!
//! 1. Filling beside what the server does bare for the same bytes, in turns, three times: bare is a binary
//!    COPY of key and vector into a staging table and one UPDATE of the application's rows from it, without
//!    any index on the vectors and without any row of ours; in Qdrant updates of the new vector, 256 points a
//!    request.
//! 2. A whole upgrade while an application writes and searches by plain SQL or plain requests: how long its
//!    calls take before, during the start, after the switch, during a backfill and after the rollback.
//! 3. A backfill by one, two and four workers, each with an encoder of its own that takes 200 ms for 64
//!    items.
//! 4. A whole gallery embedded by four processes while the application writes and searches, two of them
//!    killed, and the end held against what it wrote.
//! 5. `searches`, in PostgreSQL and only where it is named: searches with a handicap at every share of
//!    natives, beside a plain query of pgvector.
//! 6. `both`, the same: searches by queries of both models, over a bridge and fused, beside those of one.
//! 7. `policies`, the same: what row security costs a search by a role, beside a plain query under the same
//!    policy.
//! 8. `claims`, the same: what counting, a claim of pairs and a claim of the queue cost in a large gallery of
//!    short vectors.
//! 9. `promises`, in Qdrant and only where it is named: bare writes that promise more and more of what a fill
//!    promises.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, which prints what it finds and reads the clock"
)]

mod costs;
mod deaths;
mod postgresql;
mod qdrant;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::adapter::{Dense, InputScaling, Map, Uncertainty};
use rehang_core::order::Policy;
use rehang_core::{Adapter, Distance, Matrix, Progress, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_store::{Epoch, Problem, Select, Store};
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Filler, Limits, OrderSettings, Serving, SystemClock, Unobserved,
    UpgradeSetup, backfill, rollback, start, switch,
};

const BATCH: usize = 64;
const ENCODER_TAKES: Duration = Duration::from_millis(200);
const ORDER: OrderSettings = OrderSettings { policy: Policy::Sigma, seed: 0 };

/// Widths of the old and the new space: `WIDTHS=1536x3072` in the environment, or 128 and 256.
static WIDTHS: LazyLock<(usize, usize)> = LazyLock::new(|| {
    let Ok(widths) = std::env::var("WIDTHS") else { return (128, 256) };
    let read = widths.split_once('x').and_then(|(old, new)| Some((old.parse().ok()?, new.parse().ok()?)));
    read.expect("WIDTHS as OLDxNEW")
});

fn d_old() -> usize {
    WIDTHS.0
}

fn d_new() -> usize {
    WIDTHS.1
}

/// Points in clusters, as embeddings are.
fn vector(row: usize, d: usize) -> Vec<f32> {
    let noise = |seed: usize| ((seed as f64 * 12.9898).sin() * 43_758.547).fract() as f32;
    (0..d).map(|column| noise(row % 500 * 7919 + column) + 0.5 * noise(row * 104_729 + column * 31)).collect()
}

fn space(name: &str, d: usize) -> Space {
    Space::new(name, d, Distance::Cosine, false)
}

/// A server, with an application's rows or points in it: `documents`, with a text and an old vector each.
trait Server: Sync {
    /// Makes so many of them under a name.
    fn make(&self, name: &str, rows: usize);
    /// Makes the index of an application that searches `documents`.
    fn index(&self);
    fn remove(&self, name: &str);
    fn count(&self) -> u64;
    /// Lets the server write down what it has in hand, so that no measurement pays for another one.
    fn rest(&self, name: &str);
    /// Seconds that the server takes to put a new vector into each of `bare`.
    fn fill_bare(&self, vectors: &[Vec<f32>]) -> f64;
    /// A gallery of `documents`, with its old space.
    fn adopt(&self) -> Box<dyn Store>;
    fn check(&self) -> Vec<Problem>;
    fn release(&self);
    /// State of a thread of an application.
    fn application(&self) -> Box<dyn Application + '_>;
}

/// An application that knows nothing of us.
trait Application {
    /// Inserts, changes or deletes one of so many.
    fn write(&mut self, at: usize, rows: usize);
    /// Searches where searches go now.
    fn search(&mut self, at: usize, to_new: bool) -> usize;
}

fn main() {
    // Cargo says --bench to every bench.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let address = arguments.next().expect("the address of an empty database, or of Qdrant");
    let rows = arguments.next();
    let server: Box<dyn Server> = if address.starts_with("http") {
        Box::new(qdrant::Qdrant::new(address.clone()))
    } else {
        Box::new(postgresql::Postgres::new(address.clone()))
    };
    if rows.as_deref() == Some("work") {
        return deaths::work(&*server.adopt(), &adapter(), &arguments.next().expect("a name"));
    }
    let rows = rows.map_or(200_000, |text| text.parse().expect("a number"));
    let parts: Vec<String> = arguments.collect();
    let unknown = parts.iter().find(|part| {
        !["fill", "beside", "deaths", "searches", "both", "policies", "claims", "promises"]
            .contains(&part.as_str())
    });
    assert!(
        unknown.is_none(),
        "no part {unknown:?}: fill, beside, deaths, searches, both, policies, claims or promises"
    );
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|name| name == part);
    if is_wanted("fill") {
        fill_in_turns(&*server, rows);
    }
    if is_wanted("beside") {
        beside_an_application(&*server, rows);
        server.release();
        server.remove("documents");
    }
    if is_wanted("deaths") {
        deaths::among_deaths(&*server, &adapter(), &address, rows);
    }
    let is_named = |part: &str| parts.iter().any(|name| name == part);
    if is_named("searches") {
        costs::searches(&address, &adapter(), rows);
    }
    if is_named("both") {
        costs::by_both_models(&address, adapter(), rows);
    }
    if is_named("policies") {
        costs::policies(&address, &adapter(), rows);
    }
    if is_named("promises") {
        qdrant::Qdrant::new(address.clone()).promises(rows);
    }
    if is_named("claims") {
        costs::claims(&address, rows);
    }
}

/// The map that doubles each coordinate's place, a little mixed.
fn adapter() -> Adapter {
    let weight = Matrix::from_fn(d_new(), d_old(), |row, column| if row / 2 == column { 1.0 } else { 0.01 });
    Adapter::new(
        space("old", d_old()),
        space("new", d_new()),
        Map::from_layers(InputScaling::AsIs, vec![Dense { weight, bias: vec![0.0; d_new()], relu: false }]),
        Uncertainty::Linear { weight: vec![0.01; d_new()], bias: 0.0 },
    )
}

fn fill_in_turns(server: &dyn Server, rows: usize) {
    let adapter = adapter();
    let filler = Filler::new(&adapter, "old", "new", ORDER).unwrap();
    let vectors: Vec<Vec<f32>> = (0..rows).map(|row| vector(row, d_new())).collect();
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for turn in 0..3 {
        server.make("bare", rows);
        server.rest("bare");
        bare.push(rows as f64 / server.fill_bare(&vectors));
        server.remove("bare");
        server.make("documents", rows);
        let began = Instant::now();
        let store = server.adopt();
        let adopted = began.elapsed().as_secs_f64();
        store.create_space(&space("new", d_new()), Provenance::Native).unwrap();
        server.rest("documents");
        let began = Instant::now();
        let written = filler.fill(&*store, Epoch::FIRST, &Select::All, &Unobserved).unwrap();
        ours.push(rows as f64 / began.elapsed().as_secs_f64());
        assert_eq!((written, store.counts("new").unwrap().adapted), (rows as u64, rows as u64));
        println!(
            "turn {turn}: bare {:.0} rows/s, ours {:.0} rows/s; adopted in {adopted:.1} s",
            bare[turn], ours[turn]
        );
        server.release();
        server.remove("documents");
    }
    bare.sort_by(f64::total_cmp);
    ours.sort_by(f64::total_cmp);
    println!("medians: bare {:.0}, ours {:.0} rows/s, ratio {:.2}", bare[1], ours[1], ours[1] / bare[1]);
}

/// Milliseconds that an application's calls took.
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
            if times.is_empty() {
                continue;
            }
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

/// A write each 5 ms; gives how many there were.
fn write_rows(server: &dyn Server, rows: usize, waits: &Waits, is_over: &AtomicBool) -> usize {
    let mut application = server.application();
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        application.write(at, rows);
        waits.writes.lock().unwrap().push(began.elapsed().as_secs_f64() * 1e3);
        at += 1;
        thread::sleep(Duration::from_millis(5));
    }
    at
}

/// A search each 20 ms, in the space that serves.
fn search_rows(server: &dyn Server, waits: &Waits, to_new: &AtomicBool, is_over: &AtomicBool) {
    let mut application = server.application();
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        assert_eq!(application.search(at, to_new.load(Ordering::Relaxed)), 10);
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

fn beside_an_application(server: &dyn Server, rows: usize) {
    server.make("documents", rows);
    server.index();
    server.rest("documents");
    let store = server.adopt();
    let store = &*store;
    let adapter = adapter();
    let (old, new) = (space("old", d_old()), space("new", d_new()));
    let setup = UpgradeSetup { old: &old, new: &new, adapter: Some(&adapter), order: ORDER };
    let (waits, to_new, is_over) = (Waits::default(), AtomicBool::new(false), AtomicBool::new(false));
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        println!("{what}: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    };
    thread::scope(|scope| {
        scope.spawn(|| write_rows(server, rows, &waits, &is_over));
        scope.spawn(|| search_rows(server, &waits, &to_new, &is_over));
        let _ends = Ends(&is_over);
        thread::sleep(Duration::from_secs(10));
        waits.print("before");
        timed("start", &mut || {
            start(store, &setup, &Unobserved).unwrap();
        });
        waits.print("during the start");
        timed("switch", &mut || {
            switch(store, &setup, Serving::Mixed, &Unobserved).unwrap();
            to_new.store(true, Ordering::Relaxed);
        });
        thread::sleep(Duration::from_secs(10));
        waits.print("after the switch");
        println!("recall@10: {:.4}", store.recall("new", 50, 10).unwrap());
        waits.print("while the recall is measured");
        for workers in [1, 2, 4] {
            by_workers(server, &adapter, &new, workers, rows as u64 / 40);
            waits.print(&format!("beside {workers} workers"));
        }
        timed("rollback", &mut || {
            rollback(store, &setup, &Unobserved).unwrap();
            to_new.store(false, Ordering::Relaxed);
        });
        thread::sleep(Duration::from_secs(10));
        waits.print("after the rollback");
    });
    let mut one = 0.0;
    for workers in [1, 2, 4] {
        let rate = by_workers(server, &adapter, &new, workers, rows as u64 / 40);
        one = if workers == 1 { rate } else { one };
        println!("  {:.2} of linear", rate / (one * workers as f64));
    }
    assert_eq!(server.check(), []);
    assert_eq!(store.counts("new").unwrap().items, server.count());
}

/// Items a second that so many workers embed, each of them `budget` items.
fn by_workers(server: &dyn Server, adapter: &Adapter, new: &Space, workers: u64, budget: u64) -> f64 {
    let stores: Vec<Box<dyn Store>> = (0..workers).map(|_| server.adopt()).collect();
    let began = Instant::now();
    thread::scope(|scope| {
        for (worker, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                let encoder = Slow { space: new.clone(), turn: Mutex::default() };
                let setup = BackfillSetup {
                    store: &**store,
                    encoder: &encoder,
                    scope: BackfillScope::Gallery(Some(adapter)),
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
        Ok(inputs.iter().map(|input| Ok(vector(input.id.parse().unwrap_or(0), d_new()))).collect())
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}
