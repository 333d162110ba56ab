//! A gallery that is large enough for a search graph is upgraded while the binary is killed at random moments
//! and an application writes through plain SQL. After every death the gallery is whole, its searches find
//! what a search of everything finds, and none of them makes an index. In the end all is native.
//!
//! `REHANG_KILLS` sets how often (default 6; `cargo xtask chaos` kills 60 times).

#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rehang_core::{Matrix, Provenance};
use rehang_sqlite::{SearchOptions, SqliteStore};
use rehang_store::{Examined, Index as _, Ledger as _, Scan, Select};
use rusqlite::{Connection, TransactionBehavior, params};

use crate::common::Place;
use crate::common::upgrade::{self, IMPORT, upgrade};

/// Number of items that are imported: at any time more than are compared one by one.
const ITEMS: usize = 21_000;
/// Number of items that the encoder knows, which are the application's new ones too.
const KNOWN: usize = 25_000;
const D: usize = 8;
/// Share of the true nearest 10 that searches find at the least. A graph that was just made finds 1.0000 of
/// these vectors.
const RECALL: f64 = 0.995;

/// Gallery under kills, and what an application knows of its items.
struct Chaos {
    place: Place,
    old: Matrix,
    new: Matrix,
    random: ChaCha8Rng,
    /// Items that there are, and whether they have an old vector.
    items: BTreeMap<usize, bool>,
    next: usize,
    /// Items that were native and have not changed since.
    native: BTreeSet<usize>,
    wanted: u32,
    killed: u32,
    /// Recall of each graph that was looked at.
    recalls: Vec<f64>,
    slowest_search: Duration,
}

impl Chaos {
    fn new(wanted: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let old = Matrix::from_fn(KNOWN, D, |_, _| random.random_range(-1.0..1.0));
        // Not the old vectors: a search of the wrong space finds others.
        let new = Matrix::from_fn(KNOWN, D, |row, column| {
            old.row(row)[column] + 0.5 * old.row(row)[D - 1 - column].abs()
        });
        let imported: Vec<usize> = (0..ITEMS).collect();
        let place = upgrade::place(&old.select(&imported), &new);
        upgrade::configure(
            &place,
            "[encoder]\nkind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n[run]\nlease = 1\n",
        );
        place.write_matrix("query.npy", &old.select(&[ITEMS - 1]));
        Self {
            place,
            old,
            new,
            random,
            items: BTreeMap::new(),
            next: ITEMS,
            native: BTreeSet::new(),
            wanted,
            killed: 0,
            recalls: Vec::new(),
            slowest_search: Duration::ZERO,
        }
    }

    /// Runs a command up to so many times and kills it within so many milliseconds; looks at everything after
    /// each death, and lets the application write.
    fn disturb(&mut self, arguments: &[&str], times: u32, most_ms: u64) {
        for _ in 0..times {
            if self.killed >= self.wanted {
                return;
            }
            let wait = Duration::from_micros(self.random.random_range(0..most_ms * 1000));
            self.killed += self.place.kill_after(arguments, [wait]);
            if self.place.path("G.db").exists() {
                self.examine();
                self.write();
                self.search();
            }
        }
    }

    /// Checks what must hold at any time.
    fn examine(&mut self) {
        let store = SqliteStore::open(self.place.path("G.db")).unwrap();
        assert_eq!(store.check().unwrap(), [], "the store's own examination");
        let mut native = BTreeSet::new();
        for space in store.spaces().unwrap() {
            let name = &space.space.name;
            let records = store.scan(&Scan::new(name, Select::All, 2 * KNOWN).with_vectors_of(name)).unwrap();
            assert_eq!(records.len(), self.items.len(), "items are lost, or came back");
            let mut vectors = 0;
            for record in records {
                let row: usize = record.item.id[1..].parse().unwrap();
                let has_old = *self.items.get(&row).unwrap_or_else(|| panic!("i{row} came back"));
                assert!(name == "second" || record.vector.is_some() == has_old, "i{row} in {name}");
                let Some(vector) = record.vector else { continue };
                vectors += 1;
                let model = if vector.provenance == Provenance::Native { &self.new } else { &self.old };
                assert_eq!(vector.vector, model.row(row), "i{row} in {name}");
                if vector.provenance == Provenance::Native {
                    native.insert(row);
                }
            }
            let graph = vectors > SearchOptions::default().exact_max;
            if graph && store.is_ready(name).unwrap() {
                let recall = store.recall(name, 100, 10).unwrap();
                assert!(recall >= RECALL, "recall {recall} of {name} after {} kills", self.killed);
                self.recalls.push(recall);
            }
        }
        let lost: Vec<&usize> = self.native.difference(&native).collect();
        assert!(lost.is_empty(), "native vectors were lost: {lost:?}");
        self.native = native;
        drop(store);
        self.search();
    }

    /// Searches by the binary: it answers, and says so where there is no index instead of making one.
    fn search(&mut self) {
        let store = SqliteStore::open(self.place.path("G.db")).unwrap();
        let Some(space) = store.serving().unwrap() else { return };
        let ready = store.is_ready(&space).unwrap();
        let file = store.index_path(&space).unwrap();
        drop(store);
        let saved = || fs_err::metadata(&file).ok().map(|file| (file.len(), file.modified().unwrap()));
        let before = saved();
        #[allow(clippy::disallowed_methods, reason = "how long a search takes is printed")]
        let began = Instant::now();
        let output = self.place.run(&["search", "--gallery", "G.db", "--vectors", "query.npy", "-k", "10"]);
        self.slowest_search = self.slowest_search.max(began.elapsed());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 10);
        assert!(!ready || said.is_empty(), "{said}");
        assert!(ready || saved() == before, "a search made an index");
    }

    /// Writes as an application that knows nothing of rehang: it adds, deletes and changes items, in one
    /// transaction.
    fn write(&mut self) {
        let mut sql = Connection::open(self.place.path("G.db")).unwrap();
        sql.busy_timeout(Duration::from_secs(10)).unwrap();
        let transaction = sql.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let table: Option<String> = transaction
            .query_row("SELECT max('vector_' || number) FROM space WHERE name = 'first'", [], |row| {
                row.get(0)
            })
            .unwrap();
        let table = table.expect("the old space is there");
        let insert = format!("INSERT INTO {table} (item, value) SELECT key, ?2 FROM item WHERE id = ?1");
        let there: Vec<usize> = self.items.keys().copied().collect();
        for _ in 0..20 {
            let row = there[self.random.random_range(0..there.len())];
            let id = format!("i{row}");
            let (what, version) = (self.random.random_range(0..4), self.random.random::<u32>());
            match what {
                0 => {
                    transaction.execute("DELETE FROM item WHERE id = ?1", [&id]).unwrap();
                    self.items.remove(&row);
                }
                1 if self.items.contains_key(&row) => {
                    let changed = format!("text {row} version {version}");
                    transaction
                        .execute("UPDATE item SET source = ?2 WHERE id = ?1", [&id, &changed])
                        .unwrap();
                    self.items.insert(row, false);
                }
                2 if self.items.contains_key(&row) => {
                    transaction.execute(&insert, params![id, bytes(self.old.row(row))]).unwrap();
                    // A first vector is no change of the content.
                    if self.items.insert(row, true) == Some(false) {
                        continue;
                    }
                }
                _ => {}
            }
            self.native.remove(&row);
            // As many come as go.
            if what == 0 {
                let (row, id) = (self.next, format!("i{}", self.next));
                self.next += 1;
                transaction.execute("INSERT INTO item (id, source) VALUES (?1, ?1)", [&id]).unwrap();
                transaction.execute(&insert, params![id, bytes(self.old.row(row))]).unwrap();
                self.items.insert(row, true);
            }
        }
        transaction.commit().unwrap();
    }

    /// Carries out one upgrade, from the import on.
    fn upgrade(&mut self) {
        self.items = (0..ITEMS).map(|row| (row, true)).collect();
        self.next = ITEMS;
        self.native.clear();
        // A gallery appears whole or not at all.
        let times = self.random.random_range(1..3);
        for _ in 0..times {
            if !self.place.path("G.db").exists() && self.killed < self.wanted {
                let wait = Duration::from_micros(self.random.random_range(0..300_000));
                self.killed += self.place.kill_after(&IMPORT, [wait]);
            }
        }
        if !self.place.path("G.db").exists() {
            self.place.finish(&IMPORT);
        }
        self.examine();
        self.disturb(&["gallery", "index", "--gallery", "G.db"], 1, 1000);
        self.place.finish(&["gallery", "index", "--gallery", "G.db"]);
        self.examine();
        let times = self.random.random_range(1..4);
        self.disturb(&upgrade("start"), times, 1500);
        self.place.finish(&upgrade("start"));
        self.examine();
        self.disturb(&upgrade("switch"), 1, 50);
        let switched = self.place.run(&upgrade("switch"));
        // The switch says which items have no vector yet: those that the application changed.
        assert!(matches!(switched.status.code(), Some(0 | 1)), "{switched:?}");
        self.examine();
        let times = self.random.random_range(2..6);
        self.disturb(&upgrade("run"), times, 1500);
        self.place.finish(&upgrade("run"));
        self.examine();
        assert_eq!(self.native.len(), self.items.len(), "all are native");
        if self.killed < self.wanted {
            let wait = Duration::from_micros(self.random.random_range(0..300_000));
            self.killed += self.place.kill_after(&upgrade("finish"), [wait]);
        }
        self.place.finish(&upgrade("finish"));
        self.items.values_mut().for_each(|has_old| *has_old = true);
        self.examine();
        assert_eq!(self.native.len(), self.items.len(), "all stay native");
        let store = SqliteStore::open(self.place.path("G.db")).unwrap();
        assert!(store.is_ready("second").unwrap(), "searches have their graph");
    }
}

fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn killed_at_any_moment_a_large_gallery_is_searched_as_well_as_before() {
    let kills = std::env::var("REHANG_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let mut chaos = Chaos::new(kills);
    let mut upgrades = 0;
    while chaos.killed < kills {
        chaos.upgrade();
        upgrades += 1;
        for name in chaos.place.names() {
            if name.starts_with("G.db") {
                fs_err::remove_file(chaos.place.path(&name)).unwrap();
            }
        }
    }
    let lowest = chaos.recalls.iter().copied().fold(1.0, f64::min);
    println!(
        "{} kills over {upgrades} upgrades of {ITEMS} items; recall@10 of {} graphs: {lowest:.4} at the lowest; the slowest search of \
         the binary took {} ms",
        chaos.killed,
        chaos.recalls.len(),
        chaos.slowest_search.as_millis()
    );
}
