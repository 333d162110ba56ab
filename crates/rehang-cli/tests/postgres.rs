//! A table of PostgreSQL is upgraded while an application writes it by plain SQL, while workers are killed (`kill -9`) in turn, and while the server
//! itself is killed and starts again. In the end every row has the new model's vector of its text of now, and nothing was embedded twice
//! beyond what a death had in hand.
//!
//! `REHANG_KILLS` sets how often workers are killed (default 24).

#![cfg(unix)]

mod common;
#[path = "../../rehang-postgres/tests/server/mod.rs"]
mod server;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::upgrade::{configure, upgrade};
use common::{Place, upgrade as world};
use postgres::{Client, NoTls};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang::Matrix;

const ITEMS: usize = 400;
const BATCH: u32 = 8;
const D_OLD: usize = 4;
const D_NEW: usize = 6;

/// The new model's vector of a text `NUMBER VERSION`; the old model says the first four coordinates.
fn model(number: usize, version: usize) -> Vec<f32> {
    (0..D_NEW).map(|column| ((number * 7 + version * 31 + column * 13) % 101) as f32 / 8.0).collect()
}

/// As a user would write it; it keeps a log of what it was asked for.
const ENCODER: &str = r#"
    while IFS= read -r line; do
        id=${line#*\"id\":\"}; id=${id%%\"*}; text=${line#*\"source\":\"}; text=${text%%\"*}
        number=${text% *}; version=${text#* }; echo "$text" >> log.txt
        vector=; column=0
        while [ $column -lt 6 ]; do
            eighths=$(( (number * 7 + version * 31 + column * 13) % 101 ))
            case $(( eighths % 8 )) in
                0) rest=000;; 1) rest=125;; 2) rest=250;; 3) rest=375;; 4) rest=500;; 5) rest=625;; 6) rest=750;; *) rest=875;;
            esac
            vector="$vector,$(( eighths / 8 )).$rest"; column=$(( column + 1 ))
        done
        printf '{"id":"%s","vector":[%s]}\n' "$id" "${vector#,}"
    done
"#;

fn text(vector: &[f32]) -> String {
    format!("{vector:?}")
}

/// The key of a row, its text, and in the new space who made its vector, and that.
type Row = (i64, String, Option<String>, Option<Vec<f32>>);

/// A table with its vectors, and an upgrade of it that was adopted, started and switched.
struct Upgraded {
    place: Place,
    address: String,
}

impl Upgraded {
    fn new(address: String) -> Self {
        let of_width = |d| Matrix::from_fn(ITEMS, d, |row, column| model(row, 0)[column]);
        let place = world::place(&of_width(D_OLD), &of_width(D_NEW));
        place.write_bytes("encode.sh", ENCODER.as_bytes());
        let encoder = "[encoder]\nkind = \"command\"\nprogram = [\"sh\", \"encode.sh\"]\nrevision = \"1\"\n[run]\nbatch = 8\nlease = 2\n";
        configure(&place, encoder);
        let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
        let gallery = format!(
            "kind = \"postgres\"\nurl = {address:?}\ntable = \"notes\"\nsource = \"body\"\nvector = \"embedding\""
        );
        place.write_bytes("rehang.toml", config.replace("path = \"G.db\"", &gallery).as_bytes());
        let mut client = server::client(&address);
        client
            .batch_execute(
                "CREATE TABLE notes (id bigint PRIMARY KEY, body text, seen int NOT NULL DEFAULT 0, embedding vector(4));
                 CREATE INDEX ON notes USING hnsw (embedding vector_l2_ops)",
            )
            .unwrap();
        for number in 0..ITEMS {
            write(&mut client, number, 0).unwrap();
        }
        let world = Self { place, address };
        world.place.finish(&["gallery", "adopt"]);
        for verb in ["start", "switch"] {
            world.place.finish(&upgrade(verb));
        }
        world
    }

    fn run(&self) -> Child {
        self.place.command(&upgrade("run")).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Items that the encoder was asked for more than once with the same text, each time beyond the first.
    fn embedded_again(&self) -> u32 {
        let log = fs_err::read_to_string(self.place.path("log.txt")).unwrap();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for line in log.lines() {
            *counts.entry(line).or_default() += 1;
        }
        counts.values().map(|count| count - 1).sum()
    }

    /// The rows of the table, each with its vector in the new space and who made that, straight from the tables.
    fn rows(&self) -> Vec<Row> {
        let mut client = server::client(&self.address);
        let number: i32 =
            client.query_one("SELECT number FROM rehang.space WHERE name = 'second'", &[]).unwrap().get(0);
        let sql = format!(
            "SELECT t.id, t.body, s.provenance, v.value::text, i.key FROM notes AS t LEFT JOIN rehang.item_1 AS i ON i.k1 = t.id
             LEFT JOIN rehang.state_{number} AS s ON s.item = i.key LEFT JOIN rehang.vector_{number} AS v ON v.item = i.key"
        );
        let rows = client.query(&sql, &[]).unwrap();
        assert!(rows.iter().all(|row| row.get::<_, Option<i64>>(4).is_some()), "every row is an item");
        rows.iter()
            .map(|row| {
                let vector: Option<String> = row.get(3);
                let vector = vector.map(|text| serde_json::from_str(&text).unwrap());
                (row.get(0), row.get(1), row.get(2), vector)
            })
            .collect()
    }

    /// No vector is of another text than its row's, at any moment.
    fn check(&self) -> usize {
        let mut natives = 0;
        for (id, body, made_by, vector) in self.rows() {
            let (number, version) = body.split_once(' ').unwrap();
            let expected = model(number.parse().unwrap(), version.parse().unwrap());
            match made_by.as_deref() {
                Some("native") => {
                    natives += 1;
                    assert_eq!(vector, Some(expected), "the vector of {id}");
                }
                Some("adapted") => {
                    assert_eq!(vector.unwrap()[..D_OLD], expected[..D_OLD], "the adapted vector of {id}");
                }
                _ => assert_eq!(vector, None, "a vector that nobody speaks of: {id}"),
            }
        }
        // It may well say that items wait for their vectors.
        let output = self.place.run(&["doctor", "--config", "rehang.toml", "--json"]);
        let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            !doctor["findings"].as_array().unwrap().iter().any(|finding| finding["what"] == "store"),
            "{doctor}"
        );
        natives
    }
}

/// A row with its old vector, new or changed.
fn write(client: &mut Client, number: usize, version: usize) -> Result<u64, postgres::Error> {
    let vector = text(&model(number, version)[..D_OLD]);
    let body = format!("{number} {version}");
    client.execute(
        "INSERT INTO notes (id, body, embedding) VALUES ($1, $2, $3::text::vector)
         ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body, embedding = EXCLUDED.embedding",
        &[&(number as i64), &body, &vector],
    )
}

/// Writes, changes, deletes and searches until it is told to stop, and connects again when the server was away. What is in the table in the
/// end is what it has written: the server keeps that, whatever happens to us.
fn application(address: &str, stop: &AtomicBool, writes: &AtomicU32) {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let mut version = 0;
    while !stop.load(Ordering::SeqCst) {
        let Ok(mut client) = Client::connect(address, NoTls) else {
            wait(Duration::from_millis(50));
            continue;
        };
        while !stop.load(Ordering::SeqCst) {
            version += 1;
            let number = random.random_range(0..ITEMS + 40);
            let id = number as i64;
            let done = match random.random_range(0..10) {
                0..4 => write(&mut client, number, version),
                4 => client.execute("DELETE FROM notes WHERE id = $1", &[&id]),
                5 => client.execute(
                    "UPDATE notes SET body = $2 WHERE id = $1",
                    &[&id, &format!("{number} {version}")],
                ),
                6 => client.execute("UPDATE notes SET embedding = NULL WHERE id = $1", &[&id]),
                7 => {
                    // Some rows at once, in no order, and nothing of it stays.
                    let change = "UPDATE notes SET body = body || '0' WHERE id % 17 = 3";
                    client.batch_execute(&format!("BEGIN; {change}; ROLLBACK")).map(|()| 0)
                }
                8 => client.execute("UPDATE notes SET seen = seen + 1 WHERE id < 50", &[]),
                _ => {
                    let query = text(&model(number, 0));
                    client
                        .query("SELECT id FROM rehang.search('notes', $1::text::vector, 5)", &[&query])
                        .map(|found| found.len() as u64)
                }
            };
            if done.is_err() && client.is_closed() {
                break;
            }
            done.map(|_| writes.fetch_add(1, Ordering::Relaxed)).ok();
            wait(Duration::from_millis(2));
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "processes are killed at any moment of their work, and an application takes its time"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Starts a server that was killed. Its process may still be listed as dead, and its last sessions take a moment to end.
fn start_again(data: &Path) -> server::Server {
    let mut said = String::new();
    for _ in 0..20 {
        for left in ["postmaster.pid", ".s.PGSQL.5432.lock"] {
            drop(fs_err::remove_file(data.join(left)));
        }
        match server::Server::start(Some(data)) {
            Ok(server) => return server,
            Err(error) => said = error,
        }
        wait(Duration::from_millis(200));
    }
    panic!("the server does not start again: {said}");
}

/// Lets the application end when the test does, also by a failure.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_table_is_upgraded_whatever_dies_while_an_application_writes_it() {
    if server::server().is_none() {
        return;
    }
    let kills: u32 = std::env::var("REHANG_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let first = server::Server::start(Some(&data)).unwrap();
    let world = Upgraded::new(first.database());
    let (stop, writes) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut servers = vec![first];
    let mut deaths = 0;
    std::thread::scope(|scope| {
        let _ending = Ending(&stop);
        scope.spawn(|| application(&world.address, &stop, &writes));
        let mut random = ChaCha8Rng::seed_from_u64(20);
        for round in 0..kills {
            // Two workers at once; one of them is killed, then the other one.
            let mut workers = [world.run(), world.run()];
            for worker in &mut workers {
                wait(Duration::from_millis(random.random_range(0..200)));
                deaths += u32::from(worker.try_wait().unwrap().is_none());
                drop(worker.kill());
                worker.wait().unwrap();
            }
            if round % 8 == 3 {
                // The server dies under a worker, which waits for it and goes on.
                let worker = world.run();
                wait(Duration::from_millis(100));
                kill(servers.last().unwrap().pid.unwrap());
                wait(Duration::from_millis(200));
                servers.push(start_again(&data));
                let output = worker.wait_with_output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            world.check();
        }
    });
    // An item that one death after another has met, by chance, is listed; a person tries it again.
    world.place.finish(&[&upgrade("resume")[..], &["--retry-failed"]].concat());
    let workers = [world.run(), world.run()];
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(world.check(), world.rows().len(), "everything is native");
    let again = world.embedded_again();
    let (writes, servers) = (writes.into_inner(), servers.len() as u32 - 1);
    println!(
        "{deaths} workers and {servers} servers killed beside {writes} writes; {again} texts were embedded twice"
    );
    // What a worker had in hand when it died, or when the server died before it had answered.
    assert!(again <= (deaths + 2 * servers) * BATCH, "{again} embedded again after {deaths} deaths");
    assert!(writes > 100 && deaths > 3);
    world.place.finish(&upgrade("finish"));
    world.place.finish(&["gallery", "release", "--into", "embedding_new"]);
    let mut client = server::client(&world.address);
    let left: i64 =
        client.query_one("SELECT count(*) FROM pg_namespace WHERE nspname = 'rehang'", &[]).unwrap().get(0);
    assert_eq!(left, 0);
    for row in client.query("SELECT body, embedding_new::text FROM notes", &[]).unwrap() {
        let (body, vector): (String, String) = (row.get(0), row.get(1));
        let (number, version) = body.split_once(' ').unwrap();
        let vector: Vec<f32> = serde_json::from_str(&vector).unwrap();
        assert_eq!(vector, model(number.parse().unwrap(), version.parse().unwrap()));
    }
}
