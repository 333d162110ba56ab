//! Power cuts: a gallery on a machine that loses power keeps all that was acknowledged, and nothing that
//! never was.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

#[path = "../../rehang-files/tests/disk/mod.rs"]
mod disk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use disk::{Disk, Watch};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_sqlite::{SearchOptions, SqliteStore};
use rehang_store::{
    Examined, Filter, Index, Item, ItemKey, ItemWrite, Ledger, ManualLeaseClock, NewVector, Priority, Queue,
    QueueBand, Record, Revision, Scan, Select, VectorWrite, find_space,
};
use rusqlite::types::Value;
use rusqlite::{Connection, params};

/// Variable that says how often the power is cut in all.
const CUTS: &str = "REHANG_CUTS";
const CUTS_DEFAULT: usize = 1000;
/// Cuts of one history.
const CUTS_A_HISTORY: usize = 50;
/// Calls of one history, after the gallery was made and filled.
const CALLS: usize = 40;

const GALLERY: &str = "gallery.db";
const DIMENSION: usize = 4;
/// Names of the spaces, and the provenance of vectors that applications write to them. The third space comes
/// and goes.
const SPACES: [(&str, Provenance); 3] =
    [("old", Provenance::Old), ("new", Provenance::Native), ("third", Provenance::Native)];
const WORKERS: [&str; 2] = ["left", "right"];
const LEASE: Duration = Duration::from_secs(10);
/// Options by which spaces so small have a graph, which looks at all of their vectors.
const OPTIONS: SearchOptions =
    SearchOptions { exact_max: 16, merge_at: 8, connectivity: 16, expansion_add: 256, expansion_search: 256 };

/// Promise of a call, where power is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One transaction; its writes are there once the call has returned.
    Durable,
    /// One transaction that may be forgotten.
    Light,
    /// Several transactions; the same call after a loss of power does the rest.
    Several(&'static str),
    /// No change of the truth; it leaves an index that the next process need not make again.
    Flush,
}

/// Call that returned: after how many operations of the disk it began and returned, and the gallery after it.
#[derive(Debug)]
struct Call {
    what: String,
    kind: Kind,
    began: usize,
    returned: usize,
    after: String,
}

/// Gallery that lives, and all that was done to it.
struct History {
    path: PathBuf,
    watch: Watch,
    /// The gallery's store; `None` for a moment while it is opened again.
    store: Option<SqliteStore>,
    /// Connection of an application that knows nothing of rehang.
    sql: Option<Connection>,
    clock: ManualLeaseClock,
    random: ChaCha8Rng,
    calls: Vec<Call>,
    given_ids: usize,
    seed: u64,
}

fn open(path: &Path, clock: &ManualLeaseClock) -> SqliteStore {
    let store = SqliteStore::open_or_create(path).unwrap_or_else(|error| panic!("it does not open: {error}"));
    store.with_search(OPTIONS).with_clock(std::sync::Arc::new(clock.clone()))
}

fn space(name: &str) -> Space {
    Space::new(name, DIMENSION, Distance::L2, false)
}

fn vector(random: &mut ChaCha8Rng) -> Vec<f32> {
    (0..DIMENSION).map(|_| random.random_range(-1.0..1.0)).collect()
}

impl History {
    /// Makes a gallery, fills it, and makes so many calls more.
    fn new(folder: &Path, seed: u64, calls: usize) -> Self {
        let folder = folder.canonicalize().unwrap();
        let path = folder.join(GALLERY);
        let mut history = Self {
            watch: Watch::new(&folder),
            store: None,
            sql: None,
            clock: ManualLeaseClock::default(),
            random: ChaCha8Rng::seed_from_u64(seed),
            calls: Vec::new(),
            given_ids: 0,
            seed,
            path,
        };
        history.call("create the gallery".into(), Kind::Several("create"), |history| {
            history.store = Some(open(&history.path, &history.clock));
        });
        history.sql = Some(Connection::open(&history.path).unwrap());
        for (name, written_as) in &SPACES[..2] {
            history.call(format!("create {name}"), Kind::Several(name), |history| {
                history.store().create_space(&space(name), *written_as).unwrap();
            });
        }
        history.put(40);
        history.adapt(24);
        for _ in 0..calls {
            history.step();
        }
        history
    }

    fn store(&self) -> &SqliteStore {
        self.store.as_ref().unwrap()
    }

    fn sql(&self) -> &Connection {
        self.sql.as_ref().unwrap()
    }

    fn call(&mut self, what: String, kind: Kind, work: impl FnOnce(&mut Self)) {
        let began = self.watch.count();
        work(self);
        let returned = self.watch.count();
        let after = truth(&self.path);
        self.calls.push(Call { what, kind, began, returned, after });
    }

    fn names(&self) -> Vec<String> {
        self.store().spaces().unwrap().into_iter().map(|record| record.space.name).collect()
    }

    /// Takes items in the order of a selection, from a random one on.
    fn some(&mut self, select: Select, count: usize) -> Vec<Record> {
        let mut records = self.store().scan(&Scan::new("new", select, 500)).unwrap();
        let from = self.random.random_range(0..records.len().max(1));
        let from = from.min(records.len());
        records.rotate_left(from);
        records.truncate(count);
        records
    }

    /// Makes one random call.
    fn step(&mut self) {
        let count = self.random.random_range(1..6);
        match self.random.random_range(0..19) {
            0..=2 => self.put(count),
            3 => self.adapt(count),
            4..=5 => self.make_native(count),
            6 => self.delete(count),
            7..=9 => self.lease(count),
            10 => self.fail_or_forget(count),
            11 => self.document(),
            12 => self.third(),
            13 => self.switch(),
            14..=15 => self.flush(),
            16 => self.checkpoint(),
            17 => self.plain_sql(),
            _ => self.open_again(),
        }
    }

    fn put(&mut self, count: usize) {
        let there = self.names();
        let writes: Vec<ItemWrite> = (0..count)
            .map(|at| {
                // Every third item is one that is there already.
                let id = if at % 3 == 2 && self.given_ids > 0 {
                    self.random.random_range(0..self.given_ids)
                } else {
                    self.given_ids += 1;
                    self.given_ids - 1
                };
                let random = &mut self.random;
                let with = SPACES.iter().filter(|(name, _)| {
                    there.iter().any(|space| space == name) && (*name == "old" || random.random_bool(0.2))
                });
                let with: Vec<_> = with.collect();
                let vectors =
                    with.into_iter().map(|(name, by)| NewVector::from_model(*name, vector(random), *by));
                item(&format!("item {id}"), vectors.collect())
            })
            .collect();
        self.call(format!("put {count}"), Kind::Durable, |history| {
            history.store().put(&writes).unwrap();
        });
    }

    fn adapt(&mut self, count: usize) {
        let lacking = self.some(Select::Lacking, count);
        let epoch = find_space(self.store(), "new").unwrap().unwrap().epoch;
        let writes = self.writes(&lacking, Provenance::Adapted);
        self.call(format!("adapt {}", writes.len()), Kind::Durable, |history| {
            history.store().write_vectors("new", Some(epoch), &writes).unwrap();
        });
        let places: Vec<_> = self
            .some(Select::Provenance(Provenance::Adapted), count)
            .iter()
            .map(|record| (record.item.key, record.item.revision, Priority::ordinary(self.random.random())))
            .collect();
        self.call(format!("place {}", places.len()), Kind::Durable, |history| {
            history.store().set_priorities("new", epoch, &places).unwrap();
        });
    }

    fn make_native(&mut self, count: usize) {
        let next = self.store().scan(&Scan::new("new", Select::Queued, count)).unwrap();
        let writes = self.writes(&next, Provenance::Native);
        self.call(format!("make {} native", writes.len()), Kind::Durable, |history| {
            history.store().write_vectors("new", None, &writes).unwrap();
        });
    }

    fn writes(&mut self, records: &[Record], provenance: Provenance) -> Vec<VectorWrite> {
        let is_native = provenance == Provenance::Native;
        let random = &mut self.random;
        let write = |item: &Item| {
            let vector = vector(random);
            if is_native {
                let squared_error = Some(random.random());
                return VectorWrite { squared_error, ..VectorWrite::native(item, vector) };
            }
            let (sigma2, score) = (random.random(), random.random());
            VectorWrite::adapted(item, vector, sigma2, Priority::new(QueueBand::Ordinary, score))
        };
        records.iter().map(|record| &record.item).map(write).collect()
    }

    fn delete(&mut self, count: usize) {
        let ids: Vec<String> =
            self.some(Select::All, count).into_iter().map(|record| record.item.id).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.call(format!("delete {}", ids.len()), Kind::Durable, |history| {
            assert_eq!(history.store().delete(&ids).unwrap(), ids.len());
        });
    }

    fn lease(&mut self, count: usize) {
        let worker = WORKERS[self.random.random_range(0..WORKERS.len())];
        match self.random.random_range(0..4) {
            0..=1 => self.call(format!("{worker} claims {count}"), Kind::Light, |history| {
                history.store().claim("new", Queue::All, worker, count, LEASE).unwrap();
            }),
            2 => {
                self.clock.pass(LEASE / 3);
                self.call(format!("{worker} renews"), Kind::Light, |history| {
                    history.store().renew("new", worker, LEASE).unwrap();
                });
            }
            _ => self.call(format!("{worker} releases"), Kind::Light, |history| {
                history.store().release("new", worker, None).unwrap();
            }),
        }
    }

    fn fail_or_forget(&mut self, count: usize) {
        if self.random.random() {
            let failures: Vec<_> = self
                .some(Select::Queued, count)
                .into_iter()
                .map(|record| (record.item.key, record.item.revision, "no such file".to_owned()))
                .collect();
            return self.call(format!("{} fail", failures.len()), Kind::Durable, |history| {
                history.store().record_failures("new", &failures).unwrap();
            });
        }
        let epoch = find_space(self.store(), "new").unwrap().unwrap().epoch;
        self.call(format!("forget {count} natives"), Kind::Durable, |history| {
            history.store().forget_natives("new", epoch, count).unwrap();
        });
    }

    fn document(&mut self) {
        let version = self.store().document("plan").unwrap().map(|(version, _)| version);
        let text = format!("plan {}", self.random.random::<u64>());
        if self.random.random() {
            return self.call(format!("document {version:?}"), Kind::Durable, |history| {
                history.store().set_document("plan", version, &text).unwrap();
            });
        }
        let epoch = find_space(self.store(), "new").unwrap().unwrap().epoch;
        self.call(format!("advance from {epoch}"), Kind::Durable, |history| {
            history.store().advance("new", epoch, "plan", version, &text).unwrap();
        });
    }

    /// Makes the third space, or drops it where it is there.
    fn third(&mut self) {
        let (name, written_as) = SPACES[2];
        if self.names().iter().any(|there| there == name) {
            self.call("drop third".into(), Kind::Several("drop"), |history| {
                history.store().drop_space(name).unwrap();
            });
        } else {
            self.call("create third".into(), Kind::Several(name), |history| {
                history.store().create_space(&space(name), written_as).unwrap();
            });
        }
    }

    fn switch(&mut self) {
        let from = self.store().serving().unwrap().unwrap();
        let to = if from == "old" { "new" } else { "old" };
        self.call(format!("switch to {to}"), Kind::Durable, |history| {
            history.store().switch_serving(&from, to).unwrap();
        });
    }

    fn flush(&mut self) {
        let query = Matrix::new(DIMENSION, vector(&mut self.random)).unwrap();
        self.call("search and flush".into(), Kind::Flush, |history| {
            for name in history.names() {
                history.store().search(&name, &query, 3, &Filter::default()).unwrap();
            }
            history.store().flush().unwrap();
        });
    }

    fn checkpoint(&mut self) {
        let mode = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"][self.random.random_range(0..4)];
        self.call(format!("checkpoint {mode}"), Kind::Durable, |history| {
            let sql = format!("PRAGMA wal_checkpoint({mode})");
            history.sql().query_row(&sql, [], |_| Ok(())).unwrap();
        });
    }

    fn plain_sql(&mut self) {
        let id = format!("plain {}", self.random.random::<u32>());
        let bytes: Vec<u8> = vector(&mut self.random).iter().flat_map(|value| value.to_le_bytes()).collect();
        let old = self.some(Select::All, 1).remove(0).item.id;
        self.call(format!("plain SQL: {id}, {old}"), Kind::Durable, |history| {
            let all = history.sql().unchecked_transaction().unwrap();
            all.execute("INSERT INTO item (id, source) VALUES (?1, ?1)", [&id]).unwrap();
            let insert = "INSERT INTO vector_1 (item, value) SELECT key, ?2 FROM item WHERE id = ?1";
            all.execute(insert, params![id, bytes]).unwrap();
            all.execute("UPDATE item SET source = ?2 WHERE id = ?1", [&old, &id]).unwrap();
            all.commit().unwrap();
        });
    }

    /// Closes the gallery and opens it again: the last connection that is closed writes the log back and
    /// removes it.
    fn open_again(&mut self) {
        let compacts = self.random.random_bool(0.3);
        self.call(format!("open again, compact: {compacts}"), Kind::Durable, |history| {
            if compacts {
                history.store().compact().unwrap();
            }
            history.sql = None;
            history.store = None;
            history.store = Some(open(&history.path, &history.clock));
            history.sql = Some(Connection::open(&history.path).unwrap());
        });
    }
}

fn item(id: &str, vectors: Vec<NewVector>) -> ItemWrite {
    let label = id.len().is_multiple_of(2).then(|| "even".into());
    ItemWrite { id: id.into(), source: Some(id.into()), label, payload: serde_json::Value::Null, vectors }
}

/// Every row of every table of a gallery, but for the moments at which indexes were saved and the numbers
/// that are drawn by lot when it is made.
fn truth(path: &Path) -> String {
    let sql = Connection::open(path).unwrap();
    let mut tables = sql
        .prepare(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_stat1' ORDER BY name",
        )
        .unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut lines = Vec::new();
    for table in tables {
        let which =
            if table == "gallery" { "WHERE name NOT LIKE 'saved-%' AND name <> 'identity'" } else { "" };
        let mut rows = sql.prepare(&format!("SELECT * FROM {table} {which} ORDER BY 1")).unwrap();
        let columns = rows.column_count();
        let rows =
            rows.query_map([], |row| (0..columns).map(|at| row.get(at)).collect::<Result<Vec<Value>, _>>());
        for row in rows.unwrap() {
            let line = format!("{table} {:?}", row.unwrap());
            let sum = line.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
            lines.push(if line.len() < 10_000 { line } else { format!("{}: {sum}", &line[..100]) });
        }
    }
    lines.join("\n")
}

/// Lines in which two truths differ, shortened.
fn difference(is: &str, expected: &str) -> String {
    let without = |a: &str, b: &str| -> Vec<String> {
        let b: Vec<&str> = b.lines().collect();
        let more = a.lines().filter(|line| !b.contains(line)).map(|line| line.chars().take(120).collect());
        more.take(4).collect()
    };
    format!("it has {:?} and lacks {:?}", without(is, expected), without(expected, is))
}

/// Counts of what the cuts have met, so that a test that meets nothing is noticed.
#[derive(Debug, Default)]
struct Met {
    cuts: usize,
    /// Cuts inside a call. `between` counts those that left the gallery between two of a call's transactions,
    /// `early` those that left all of a call although it had not returned.
    inside: usize,
    between: usize,
    early: usize,
    /// Calls that had returned and were forgotten: light ones.
    forgotten: usize,
    /// Cuts after which an index was loaded from beside the gallery.
    loaded: usize,
    /// True neighbours that searches were to find. `missed` counts those that they did not: a graph that was
    /// often changed does not find every vector.
    hits: usize,
    missed: usize,
}

/// Examines the gallery that one cut has left.
fn examine(history: &History, disk: &Disk, done: usize, random: &mut ChaCha8Rng, met: &mut Met) {
    let calls = &history.calls;
    let returned = calls.iter().rposition(|call| call.returned <= done);
    let cut = calls.iter().position(|call| call.began < done && done < call.returned);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in disk.left(random) {
        fs_err::write(folder.path().join(name), bytes).unwrap();
    }
    // A file that has the name of an index is on the disk whole.
    for name in disk.may_be_named().filter(|name| name.ends_with(".usearch")) {
        disk.may_hold(name).unwrap();
    }

    let path = folder.path().join(GALLERY);
    let store = open(&path, &history.clock);
    assert_eq!(store.check().unwrap(), vec![]);
    // The last acknowledged call is there that is no light one and changed anything. A call that changes
    // nothing waits for nothing.
    let keeps =
        |&at: &usize| calls[at].kind != Kind::Light && (at == 0 || calls[at].after != calls[at - 1].after);
    let durable = (0..=returned.unwrap_or(0)).rev().find(keeps);
    let is = truth(&path);
    let last = cut.or(returned).unwrap_or(0);
    let found = (durable.unwrap_or(0)..=last).rev().find(|&at| calls[at].after == is);
    met.cuts += 1;
    met.inside += usize::from(cut.is_some());
    match (found, returned) {
        (Some(found), Some(returned)) => {
            met.early += usize::from(found > returned && calls[found].after != calls[returned].after);
            met.forgotten += returned.saturating_sub(found);
        }
        (Some(_), None) => {}
        (None, _) => {
            let kind = cut.map(|cut| calls[cut].kind);
            let Some(Kind::Several(name)) = kind else {
                let near = calls[durable.unwrap_or(0)..=last].iter();
                let near: Vec<_> = near.map(|call| (&call.what, difference(&is, &call.after))).collect();
                panic!("neither before nor after: {near:#?}");
            };
            met.between += 1;
            do_again(&store, name);
            assert_eq!(difference(&truth(&path), &calls[last].after), difference("", ""), "done again");
        }
    }
    if returned.is_some_and(|returned| calls[returned].kind == Kind::Flush) && cut.is_none() {
        for record in store.spaces().unwrap() {
            assert!(store.is_ready(&record.space.name).unwrap(), "the index of {} is there", record.space);
        }
    }
    for (name, written_as) in &SPACES[..2] {
        store.create_space(&space(name), *written_as).unwrap();
    }
    met.loaded += usize::from(store.is_ready("old").unwrap() && store.counts("old").unwrap().old > 16);
    search_all(&store, random, met);
    go_on(&store, random);
}

/// Makes the call that was cut once more.
fn do_again(store: &SqliteStore, name: &str) {
    match name {
        "create" => {}
        "drop" => store.drop_space("third").unwrap(),
        name => {
            let (_, written_as) = SPACES.into_iter().find(|(space, _)| *space == name).unwrap();
            store.create_space(&space(name), written_as).unwrap();
        }
    }
}

/// Checks that searches answer from the truth: with the true distances, and mostly with the nearest.
fn search_all(store: &SqliteStore, random: &mut ChaCha8Rng, met: &mut Met) {
    for record in store.spaces().unwrap() {
        let name = &record.space.name;
        let mut all = store.scan(&Scan::new(name, Select::All, 1000).with_vectors_of(name)).unwrap();
        all.retain(|record| record.vector.is_some());
        let queries = Matrix::new(DIMENSION, [vector(random), vector(random)].concat()).unwrap();
        for provenances in [vec![], vec![Provenance::Native]] {
            let filter = Filter { provenances, ..Filter::default() };
            let found = store.search(name, &queries, 5, &filter).unwrap();
            for (at, found) in found.iter().enumerate() {
                let passing = all.iter().filter_map(|record| {
                    let there = record.vector.as_ref()?;
                    let distance = Distance::L2.between(queries.row(at), &there.vector) as f32;
                    let is_in = filter.passes(&record.item, there.provenance);
                    is_in.then_some((distance, record.item.key, record.item.revision))
                });
                let mut exact: Vec<(f32, ItemKey, Revision)> = passing.collect();
                exact.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                let found: Vec<_> = found.iter().map(|hit| (hit.distance, hit.key, hit.revision)).collect();
                assert!(found.iter().all(|hit| exact.contains(hit)), "in {name}: {found:?}, not {exact:?}");
                exact.truncate(5);
                met.hits += exact.len();
                met.missed += exact.iter().filter(|hit| !found.contains(hit)).count();
            }
        }
        assert_eq!(store.index_health(name).unwrap().vectors, all.len(), "in {name}");
    }
}

/// Checks that the gallery takes one more item, keeps an index of it, and finds it.
fn go_on(store: &SqliteStore, random: &mut ChaCha8Rng) {
    let vectors: BTreeMap<&str, Vec<f32>> =
        SPACES[..2].iter().map(|(name, _)| (*name, vector(random))).collect();
    let new = SPACES[..2].iter().map(|(name, by)| NewVector::from_model(*name, vectors[name].clone(), *by));
    store.put(&[item("after the cut", new.collect())]).unwrap();
    store.flush().unwrap();
    for (name, vector) in vectors {
        let queries = Matrix::new(DIMENSION, vector).unwrap();
        let found = store.search(name, &queries, 1, &Filter::default()).unwrap();
        assert_eq!(found[0][0].id, "after the cut");
    }
    assert_eq!(store.check().unwrap(), vec![]);
}

/// Draws moments of a history, in order: half of them anywhere, half of them in a call, of which some do
/// little.
fn places(history: &History, operations: usize, random: &mut ChaCha8Rng) -> Vec<usize> {
    let mut places: Vec<usize> = (0..CUTS_A_HISTORY)
        .map(|_| {
            let Call { began, returned, .. } = history.calls[random.random_range(0..history.calls.len())];
            if random.random() {
                random.random_range(began..=returned)
            } else {
                random.random_range(0..=operations)
            }
        })
        .collect();
    places.sort_unstable();
    places
}

/// Cuts the power after so many operations each, and examines what is left.
fn cut_power(history: &History, places: &[usize], random: &mut ChaCha8Rng, met: &mut Met) {
    let operations = history.watch.operations();
    let (mut disk, mut done) = (Disk::default(), 0);
    for &place in places {
        operations[done..place].iter().for_each(|operation| disk.replay(operation));
        done = place;
        let examined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            examine(history, &disk, done, random, met);
        }));
        let begun = history.calls.iter().filter(|call| call.began < done);
        let last: Vec<_> = begun.map(|call| &call.what).rev().take(4).collect();
        let seed = history.seed;
        assert!(examined.is_ok(), "history {seed}, after {done} operations; the last calls are {last:?}");
    }
}

#[test]
fn a_power_cut_leaves_all_that_was_acknowledged_and_nothing_else() {
    let cuts = std::env::var(CUTS).map_or(CUTS_DEFAULT, |text| text.parse().unwrap());
    let mut met = Met::default();
    for seed in 0..cuts.div_ceil(CUTS_A_HISTORY) as u64 {
        let folder = tempfile::tempdir().unwrap();
        let history = History::new(folder.path(), seed, CALLS);
        let mut random = ChaCha8Rng::seed_from_u64(1_000_000 + seed);
        let places = places(&history, history.watch.count(), &mut random);
        cut_power(&history, &places, &mut random, &mut met);
    }
    println!("{met:?}");
    assert!(met.missed * 200 <= met.hits, "{met:?}");
    if cuts >= CUTS_DEFAULT {
        assert!(met.inside * 2 > met.cuts && met.loaded * 4 > met.cuts, "{met:?}");
        assert!(met.between > 0 && met.early > 0 && met.forgotten > 0, "{met:?}");
    }
}

/// A log of 32 MiB is moved into the file by whichever call commits next, and then overwritten from its
/// start.
#[test]
fn a_power_cut_while_a_light_call_moves_the_log_into_the_file_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(folder.path(), 7, 0);
    // The log stays while the connection reads.
    let reader = Connection::open(&history.path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM item").unwrap();
    history.call("put 9 large ones".into(), Kind::Durable, |history| {
        let payload = serde_json::Value::String("x".repeat(4 << 20));
        let large = |at| ItemWrite { payload: payload.clone(), ..item(&format!("large {at}"), vec![]) };
        history.store().put(&(0..9).map(large).collect::<Vec<_>>()).unwrap();
    });
    drop(reader);
    let began = history.watch.count();
    history.call("left claims".into(), Kind::Light, |history| {
        history.store().claim("new", Queue::All, "left", 3, LEASE).unwrap();
    });
    let moved = history.watch.count();
    assert!(moved - began > 4096, "it moved the log");
    (0..3).for_each(|_| history.put(2));
    let mut random = ChaCha8Rng::seed_from_u64(8);
    let ended = history.watch.count();
    let mut places: Vec<usize> = (0..6)
        .flat_map(|_| [random.random_range(began..=moved), random.random_range(moved..=ended)])
        .collect();
    places.sort_unstable();
    let mut met = Met::default();
    cut_power(&history, &places, &mut random, &mut met);
    println!("{met:?}");
}
