//! Service under load, on one machine: `cargo bench -p rehang-serve --bench load -- [--quick] [--log]`.
//!
//! Service and clients share this process and its processors. Compared, in turns, are searches over HTTP with
//! searches in process of the same store; searches beside a backfill that the service runs with searches
//! beside none; searches beside many connections that are open and silent, or slow, with searches without
//! them. Of a service whose events one listener reads and another one does not, memory is measured before and
//! after as many events as a day has seconds. Every answer is asserted to be the one that was found in
//! process at first.
//!
//! `--quick` shows in seconds that all works, and so does `cargo test -p rehang-serve --bench load`. With
//! `--log` the service writes its log on stderr, as the command does.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::error::Error;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rehang_core::order::Policy;
use rehang_core::{Distance, Matrix, Progress, Provenance, Space};
use rehang_encode::EncoderConfig;
use rehang_serve::{ServeOptions, serve};
use rehang_sqlite::SqliteStore;
use rehang_store::{Filter, ItemWrite, Ledger, NewVector};
use rehang_upgrade::{Configuration, Gallery, Limits, Location, OrderSettings, Upgrade};
use serde_json::{Value, json};

/// Result of a part of the measurement.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Extent of a measurement.
struct Extent {
    items: usize,
    dimensions: &'static [usize],
    /// Times that each comparison is made, and how long either side takes each time.
    rounds: usize,
    phase: Duration,
    /// Connections that are open beside searches.
    connections: usize,
    /// Verbs before memory is looked at first, so that the lists of operations and of changes are full, and
    /// from there on. Each makes two events.
    verbs_before: usize,
    verbs: usize,
}

const WHOLE: Extent = Extent {
    items: 20_000,
    dimensions: &[128, 768],
    rounds: 5,
    phase: Duration::from_secs(3),
    connections: 1000,
    verbs_before: 1100,
    // Two events each: one for every second of a day.
    verbs: 43_200,
};

const QUICK: Extent = Extent {
    items: 500,
    dimensions: &[16],
    rounds: 2,
    phase: Duration::from_millis(200),
    connections: 40,
    verbs_before: 10,
    verbs: 40,
};

/// Different queries, and neighbours of each.
const QUERIES: usize = 200;
const K: usize = 10;
/// Items of one transaction of the import.
const PAGE: usize = 1000;
/// Items that the encoder is given together.
const BATCH: usize = 32;
/// Clients whose searches are compared with as many threads that search in process.
const CLIENTS: [usize; 2] = [1, 4];
/// Time after which an answer is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(90);

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_given = |name: &str| arguments.iter().any(|argument| argument == name);
    if is_given("--log") {
        rehang_serve::log_to_stderr(false);
    }
    // cargo adds `--bench` to a measurement; a test has only to show that all works.
    let extent = if is_given("--quick") || !is_given("--bench") { QUICK } else { WHOLE };
    // The first of all: later the process has memory left over from before.
    let memory = (!is_given("--no-day")).then(|| memory_of_a_day(&extent)).transpose()?;
    let (mut beside_library, mut beside_backfill, mut beside_crowd) = (Vec::new(), Vec::new(), Vec::new());
    let dimensions = if is_given("--day") { &[] } else { extent.dimensions };
    for &dimension in dimensions {
        let folder = tempfile::tempdir()?;
        let served = Served::start(folder.path(), extent.items, dimension)?;
        let questions = questions(&served, "old", extent.items, dimension)?;
        beside_library.extend(compare_with_library(&served, &questions, &extent));
        println!(
            "{dimension} coordinates: {:.2} ms for a request that asks for nothing",
            empty_request(&served)?
        );
        beside_crowd.push(compare_with_crowd(&served, &questions, &extent)?);
        beside_backfill.push(compare_with_backfill(&served, &questions, &extent)?);
        served.end()?;
    }
    println!("\n{} items, {} rounds of {:?}\n", extent.items, extent.rounds, extent.phase);
    print_table(
        "Searches over HTTP and in process",
        &["coordinates", "clients", "in process, a second", "over HTTP, a second", "ratio", "goal"],
        &beside_library,
    );
    print_table("Searches beside a backfill", &HEADS_OF_TIMES, &beside_backfill);
    print_table("Searches beside idle connections", &HEADS_OF_TIMES, &beside_crowd);
    print_table(
        "Memory beside a listener that reads and one that does not",
        &["events", "before, MB", "after, MB", "most, MB", "growth, MB", "goal"],
        memory.as_slice(),
    );
    Ok(())
}

/// Prints a table of Markdown, and nothing where it has no rows.
fn print_table(title: &str, heads: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    println!("{title}:\n\n| {} |\n|{}", heads.join(" | "), "--:|".repeat(heads.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
    println!();
}

/// Compares searches over HTTP with searches in process; gives a row for each number of clients.
fn compare_with_library(served: &Served, questions: &[Question], extent: &Extent) -> Vec<Vec<String>> {
    let dimension = questions[0].vector.columns();
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let rate = |way: Way<'_>| {
            let began = Instant::now();
            let times = load(clients, way, questions, &lasts(extent.phase));
            times.len() as f64 / began.elapsed().as_secs_f64()
        };
        let (mut in_process, mut over_http) = (Vec::new(), Vec::new());
        for round in 0..extent.rounds {
            // Either begins in every other round.
            if round.is_multiple_of(2) {
                in_process.push(rate(served.in_process()));
                over_http.push(rate(served.over_http()));
            } else {
                over_http.push(rate(served.over_http()));
                in_process.push(rate(served.in_process()));
            }
            println!(
                "{dimension} coordinates, {clients} clients: {:.0} searches/s in process, {:.0} over HTTP",
                in_process[round], over_http[round]
            );
        }
        let pairs = over_http.iter().zip(&in_process);
        let mut ratios: Vec<f64> = pairs.map(|(over_http, in_process)| over_http / in_process).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        rows.push(vec![
            dimension.to_string(),
            clients.to_string(),
            format!("{:.0}", median(in_process)),
            format!("{:.0}", median(over_http)),
            format!("{:.2} ({least:.2} to {most:.2})", median(ratios)),
            "≥ 0.8".into(),
        ]);
    }
    rows
}

/// Median time of a request that asks for nothing, in milliseconds: what HTTP itself costs one client alone.
fn empty_request(served: &Served) -> Outcome<f64> {
    let mut client = Client::connect(served.address)?;
    let asks = request(served.address, "GET", "/healthz", "");
    let mut times = Vec::new();
    for _ in 0..500 {
        let began = Instant::now();
        assert_eq!(client.send(&asks)?.0, 200);
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times))
}

/// Compares searches beside a backfill of the service with searches beside none. Searches go to the space
/// that is filled. Old vectors stand there as they are, and the encoder gives the same ones, so that the
/// answers are known all the while.
fn compare_with_backfill(served: &Served, by_old: &[Question], extent: &Extent) -> Outcome<Vec<String>> {
    let dimension = by_old[0].vector.columns();
    let mut client = Client::connect(served.address)?;
    client.carry_out("start", "{}")?;
    client.carry_out("switch", r#"{"serving":"mixed","anyway":true}"#)?;
    let questions = questions(served, "new", extent.items, dimension)?;
    assert!(questions.iter().zip(by_old).all(|(new, old)| new.ids == old.ids));
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..extent.rounds {
        if round > 0 {
            let resumed = client.ask("POST", "/v1/upgrade/resume", r#"{"re_embed":true}"#, 200)?;
            assert_eq!(resumed["put_back"], extent.items, "all is to be embedded once more");
            // Searches right after so many writes are of neither state.
            load(1, served.over_http(), &questions, &lasts(extent.phase / 10));
        }
        alone.extend(load(1, served.over_http(), &questions, &lasts(extent.phase)));
        let began = Instant::now();
        let id = client.begin("run", "{}")?;
        let is_running = AtomicBool::new(true);
        let times = thread::scope(|scope| {
            let end = scope.spawn(|| {
                let end = client.await_end(&id, Duration::from_millis(20));
                is_running.store(false, Ordering::Relaxed);
                end
            });
            let goes_on = || is_running.load(Ordering::Relaxed);
            let times = load(1, served.over_http(), &questions, &goes_on);
            end.join().expect("waiting does not panic").map(|()| times)
        })?;
        println!("{dimension} coordinates, a backfill of {:?}: {} searches", began.elapsed(), times.len());
        beside.extend(times);
        let status = client.ask("GET", "/v1/status", "", 200)?;
        assert_eq!(status["counts"]["native"], extent.items, "the run has embedded everything");
    }
    Ok(row_of_times(dimension, alone, beside, "p99 ≤ 3"))
}

/// Compares searches beside many connections that ask for nothing, or take their time, with searches alone.
fn compare_with_crowd(served: &Served, questions: &[Question], extent: &Extent) -> Outcome<Vec<String>> {
    let dimension = questions[0].vector.columns();
    let count = extent.connections.min(connections_max());
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds {
        alone.extend(load(1, served.over_http(), questions, &lasts(extent.phase)));
        let crowd = Crowd::open(served.address, count)?;
        let goes_on = lasts(extent.phase);
        let times = thread::scope(|scope| {
            scope.spawn(|| crowd.drip(&goes_on));
            load(1, served.over_http(), questions, &goes_on)
        });
        let open = crowd.count_open();
        println!("{dimension} coordinates, {count} idle connections: {} searches", times.len());
        assert_eq!(open, count, "the service has closed idle connections");
        beside.extend(times);
    }
    Ok(row_of_times(dimension, alone, beside, &format!("both ≤ 1.2, {count} connections")))
}

/// Heads of what [`row_of_times`] gives.
const HEADS_OF_TIMES: [&str; 10] = [
    "coordinates",
    "searches alone",
    "beside",
    "median alone, ms",
    "beside, ms",
    "p99 alone, ms",
    "beside, ms",
    "ratio of medians",
    "of p99",
    "goal",
];

/// Compares how long searches took alone with how long they took beside something else, over all rounds.
fn row_of_times(
    dimension: usize,
    mut alone: Vec<Duration>,
    mut beside: Vec<Duration>,
    goal: &str,
) -> Vec<String> {
    alone.sort_unstable();
    beside.sort_unstable();
    let at = |times: &[Duration], share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let ms = |times: &[Duration], share: f64| at(times, share).as_secs_f64() * 1e3;
    let mut row = vec![dimension.to_string(), alone.len().to_string(), beside.len().to_string()];
    let shares = [0.5, 0.99].map(|share| (ms(&alone, share), ms(&beside, share)));
    row.extend(shares.iter().flat_map(|(alone, beside)| [format!("{alone:.2}"), format!("{beside:.2}")]));
    row.extend(shares.iter().map(|(alone, beside)| format!("{:.2}", beside / alone)));
    row.push(goal.to_owned());
    row
}

/// Measures the memory of a service whose events one listener reads and another one does not, before and
/// after as many events as a day of changes has.
fn memory_of_a_day(extent: &Extent) -> Outcome<Vec<String>> {
    // A verb writes to the disk several times, which would take most of the time; memory is what counts here.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let served = Served::start(folder.path(), 50, 8)?;
    let mut client = Client::connect(served.address)?;
    client.carry_out("start", "{}")?;
    let stalled = listen(served.address)?;
    let stream = listen(served.address)?;
    let events = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&events);
    let reader = thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            counted.fetch_add(u64::from(line == "event: operation"), Ordering::Relaxed);
        }
    });
    let mut verb = || client.carry_out("bridge", r#"{"off":true}"#);
    for _ in 0..extent.verbs_before {
        verb()?;
    }
    let before = resident();
    let mut most = before;
    for number in 1..=extent.verbs {
        verb()?;
        if number.is_multiple_of(extent.verbs / 10) {
            let now = resident();
            most = most.max(now);
            println!("{now:.1} MB after {} events", 2 * number);
        }
    }
    let after = resident();
    let sent = 2 * (extent.verbs_before + extent.verbs) as u64;
    let began = Instant::now();
    while events.load(Ordering::Relaxed) < sent {
        assert!(began.elapsed() < PATIENCE, "{events:?} of {sent} events were heard");
        thread::sleep(Duration::from_millis(10));
    }
    // A service waits for its answers to be read before it ends.
    drop(stalled);
    served.end()?;
    reader.join().expect("reading does not panic");
    let growth = after - before;
    let mut row = vec![(2 * extent.verbs).to_string()];
    row.extend([before, after, most, growth].map(|number| format!("{number:.1}")));
    row.push("growth < 10".into());
    Ok(row)
}

/// Memory of the process in MB; 0 where the system does not say.
fn resident() -> f64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    kilobytes * 1024.0 / 1e6
}

/// Largest number of idle connections: both ends of each are open files of this process.
fn connections_max() -> usize {
    let limits = fs_err::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let files: usize = line.split_whitespace().nth(3).and_then(|text| text.parse().ok()).unwrap_or(1024);
    files.saturating_sub(200) / 2
}

/// Service in this process, and a gallery of the same store.
struct Served {
    address: SocketAddr,
    gallery: Gallery,
    stop: Progress,
    thread: JoinHandle<rehang_core::Result<()>>,
}

impl Served {
    fn start(folder: &Path, items: usize, dimension: usize) -> Outcome<Self> {
        let upgrade = upgrade(folder, items, dimension)?;
        let (gallery, stop) = (upgrade.gallery(), Progress::default());
        let options = ServeOptions::new("127.0.0.1:0".parse()?);
        let (listens, listening) = mpsc::channel();
        let ends = stop.clone();
        let thread = thread::spawn(move || {
            serve(upgrade, &options, &ends, |address| listens.send(address).expect("an end that waits"))
        });
        let address = listening.recv()?;
        Ok(Self { address, gallery, stop, thread })
    }

    fn over_http(&self) -> Way<'_> {
        Way::OverHttp(self.address)
    }

    fn in_process(&self) -> Way<'_> {
        Way::InProcess(&self.gallery)
    }

    fn end(self) -> Outcome<()> {
        self.stop.cancel();
        self.thread.join().expect("the service does not panic")?;
        Ok(())
    }
}

/// Makes a gallery with made vectors, and opens an upgrade to a model whose vectors are the old ones.
fn upgrade(folder: &Path, items: usize, dimension: usize) -> Outcome<Upgrade> {
    let (file, table) = (folder.join("gallery.db"), folder.join("new.npy"));
    let space = |name: &str| Space::new(name, dimension, Distance::L2, false);
    let rows = Matrix::new(dimension, (0..items).flat_map(|item| vector(item, dimension)).collect())?;
    rehang_files::write_matrix(&table, &rows, None)?;
    {
        let store = SqliteStore::create(&file)?;
        store.create_space(&space("old"), Provenance::Old)?;
        let write = |item: usize| {
            let old = NewVector::from_model("old", rows.row(item).to_vec(), Provenance::Old);
            ItemWrite::new(format!("item-{item:08}"), Some(item.to_string()), vec![old])
        };
        for first in (0..items).step_by(PAGE) {
            let writes: Vec<ItemWrite> = (first..items.min(first + PAGE)).map(write).collect();
            store.put(&writes)?;
        }
    }
    let encoder = json!({ "kind": "table", "vectors": table.display().to_string() });
    let encoder: EncoderConfig = serde_json::from_value(encoder)?;
    let configuration = Configuration::new(Location::file(&file), space("old"), space("new"))?
        .with_order(OrderSettings { policy: Policy::Random, seed: 0 })
        .with_limits(Limits { batch: BATCH, ..Limits::default() })
        .with_encoder(encoder);
    Ok(Upgrade::new(configuration)?)
}

/// Vector of an item, around one of 1,000 centres, as embeddings lie.
fn vector(item: usize, dimension: usize) -> Vec<f32> {
    let key = item as u64;
    let centre = mixed(key) % 1000;
    let part = |a: u64, b: u64| (mixed((a << 20) ^ b) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
    (0..dimension as u64).map(|column| part(centre, column) + 0.7 * part(key + 1000, column)).collect()
}

/// Number in the place of another, as if at random.
fn mixed(value: u64) -> u64 {
    let mut state = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Query, with the request that asks it and the ids of its answer.
struct Question {
    space: &'static str,
    vector: Matrix,
    request: Vec<u8>,
    ids: Vec<String>,
}

/// Makes queries of a space, answered in process.
fn questions(served: &Served, space: &'static str, items: usize, dimension: usize) -> Outcome<Vec<Question>> {
    let mut questions = Vec::new();
    for query in 0..QUERIES {
        let vector = vector(items + query, dimension);
        let body = format!(r#"{{"vectors":{{"{space}":[{}]}},"k":{K}}}"#, json!(vector));
        let request = request(served.address, "POST", "/v1/search", &body);
        let vector = Matrix::new(dimension, vector)?;
        let answer = served.gallery.search(&[(space, &vector)], K, &Filter::default())?;
        let ids: Vec<String> = answer.found[0].iter().map(|hit| hit.id.clone()).collect();
        assert_eq!(ids.len(), K);
        questions.push(Question { space, vector, request, ids });
    }
    Ok(questions)
}

impl Question {
    /// Compares an answer with the first one.
    fn expect<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        assert!(ids.eq(self.ids.iter().map(String::as_str)), "another answer than at first");
    }
}

/// Way that searches go.
#[derive(Clone, Copy)]
enum Way<'a> {
    OverHttp(SocketAddr),
    InProcess(&'a Gallery),
}

/// One thread's end of a way.
enum Searcher<'a> {
    OverHttp(Client),
    InProcess(&'a Gallery),
}

impl<'a> Way<'a> {
    fn open(self) -> Outcome<Searcher<'a>> {
        Ok(match self {
            Way::OverHttp(address) => Searcher::OverHttp(Client::connect(address)?),
            Way::InProcess(gallery) => Searcher::InProcess(gallery),
        })
    }
}

impl Searcher<'_> {
    /// Searches, and compares the answer with the first one.
    fn search(&mut self, question: &Question) -> Outcome<()> {
        match self {
            Searcher::OverHttp(client) => {
                let (status, body) = client.send(&question.request)?;
                assert_eq!(status, 200, "{body}");
                // Reading the whole answer as JSON would cost the client as much as the service.
                let ids = body.split(r#""id":""#).skip(1);
                question.expect(ids.map(|rest| rest.split('"').next().unwrap_or_default()));
            }
            Searcher::InProcess(gallery) => {
                let queries = [(question.space, &question.vector)];
                let answer = gallery.search(&queries, K, &Filter::default())?;
                question.expect(answer.found[0].iter().map(|hit| hit.id.as_str()));
            }
        }
        Ok(())
    }
}

/// Searches from so many threads, each of which asks again when it has its answer, as long as `goes_on` says.
/// Gives how long every search took.
fn load(
    threads: usize,
    way: Way<'_>,
    questions: &[Question],
    goes_on: &(impl Fn() -> bool + Sync),
) -> Vec<Duration> {
    let search = |number: usize| {
        let mut searcher = way.open().expect("the service takes a connection");
        let mut times = Vec::new();
        // Threads ask different queries at a time.
        let queries = questions.iter().cycle().skip(number * questions.len() / threads);
        for question in queries.take_while(|_| goes_on()) {
            let began = Instant::now();
            searcher.search(question).expect("an answer");
            times.push(began.elapsed());
        }
        times
    };
    let search = &search;
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|number| scope.spawn(move || search(number))).collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("no search fails")).collect()
    })
}

/// Says whether a time that begins now is not over.
fn lasts(time: Duration) -> impl Fn() -> bool + Sync {
    let began = Instant::now();
    move || began.elapsed() < time
}

/// Number in the middle, the lower one of two.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[(numbers.len() - 1) / 2]
}

/// Request as it is sent.
fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// Client with one connection that is kept. It costs as little as may be, since it shares the processors with
/// the service.
struct Client {
    address: SocketAddr,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { address, stream, buffer: vec![0; 1 << 16] })
    }

    /// Sends a request; gives the status and the body of the answer.
    fn send(&mut self, request: &[u8]) -> Outcome<(u16, &str)> {
        self.stream.write_all(request)?;
        let mut length = 0;
        let mut expected: Option<(usize, usize)> = None;
        while expected.is_none_or(|(_, whole)| length < whole) {
            if length == self.buffer.len() {
                self.buffer.resize(2 * length, 0);
            }
            let count = self.stream.read(&mut self.buffer[length..])?;
            if count == 0 {
                return Err("the service has closed the connection".into());
            }
            length += count;
            expected = expected.or_else(|| lengths(&self.buffer[..length]));
        }
        let head = expected.map_or(length, |(head, _)| head);
        let text = std::str::from_utf8(&self.buffer[..length])?;
        let status = text.split_whitespace().nth(1).unwrap_or_default().parse()?;
        Ok((status, &text[head..]))
    }

    /// Asks for JSON, and expects a status.
    fn ask(&mut self, method: &str, path: &str, body: &str, expected: u16) -> Outcome<Value> {
        let request = request(self.address, method, path, body);
        let (status, text) = self.send(&request)?;
        if status != expected {
            return Err(format!("{method} {path}: {status} {text}").into());
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Asks for a verb; gives the id of its operation.
    fn begin(&mut self, verb: &str, options: &str) -> Outcome<String> {
        let operation = self.ask("POST", &format!("/v1/upgrade/{verb}"), options, 202)?;
        Ok(operation["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until an operation has ended, and expects that it was carried out.
    fn await_end(&mut self, id: &str, look: Duration) -> Outcome<()> {
        let path = format!("/v1/operations/{id}");
        loop {
            let operation = self.ask("GET", &path, "", 200)?;
            if operation["state"] == "done" {
                return Ok(());
            }
            if operation["state"] != "running" {
                return Err(operation.to_string().into());
            }
            thread::sleep(look);
        }
    }

    fn carry_out(&mut self, verb: &str, options: &str) -> Outcome<()> {
        let id = self.begin(verb, options)?;
        self.await_end(&id, Duration::from_millis(1))
    }
}

/// Lengths of an answer's head and of the whole answer, once the head is there.
fn lengths(answer: &[u8]) -> Option<(usize, usize)> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&answer[..head]).ok()?;
    let body = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    Some((head, head + body.unwrap_or(0)))
}

/// Opens a stream of events, which has everything that is told from here on.
fn listen(address: SocketAddr) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&request(address, "GET", "/v1/events", ""))?;
    let mut begin = [0; 12];
    stream.read_exact(&mut begin)?;
    assert_eq!(&begin, b"HTTP/1.1 200");
    Ok(stream)
}

/// Connections that send nothing, half a head or half a body: a fifth each. Of the others, one half sends its
/// head and one half its body slowly.
struct Crowd {
    silent: Vec<TcpStream>,
    slow: Vec<TcpStream>,
}

/// Time between two bytes of a slow connection.
const BYTE_EVERY: Duration = Duration::from_secs(1);
/// Parts of requests: either may be followed by more of the same part.
const HALF_HEAD: &str = "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ";
const HALF_BODY: &str = "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                         Content-Length: 5000\r\n\r\n{\"vectors\": ";

impl Crowd {
    fn open(address: SocketAddr, count: usize) -> Outcome<Self> {
        let mut crowd = Self { silent: Vec::new(), slow: Vec::new() };
        for number in 0..count {
            let (begin, is_slow) = match number % 5 {
                0 => ("", false),
                1 => (HALF_HEAD, false),
                2 => (HALF_BODY, false),
                3 => (HALF_HEAD, true),
                _ => (HALF_BODY, true),
            };
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(begin.as_bytes())?;
            let alike = if is_slow { &mut crowd.slow } else { &mut crowd.silent };
            alike.push(stream);
        }
        Ok(crowd)
    }

    /// Sends a byte on each slow connection, again and again.
    fn drip(&self, goes_on: &(impl Fn() -> bool + Sync)) {
        while goes_on() {
            let began = Instant::now();
            for mut stream in &self.slow {
                // A connection that was closed is noticed at the end.
                drop(stream.write_all(b"a"));
            }
            while goes_on() && began.elapsed() < BYTE_EVERY {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Counts the connections that the service neither closed nor answered.
    fn count_open(&self) -> usize {
        let is_open = |stream: &&TcpStream| {
            let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
            peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        self.silent.iter().chain(&self.slow).filter(is_open).count()
    }
}
