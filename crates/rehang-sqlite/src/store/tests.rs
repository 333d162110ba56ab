//! Tests of the embedded gallery that need its insides; the tests of what can be seen from outside are in
//! `tests/`.

use super::*;
use crate::keeper::SavePlace;
use rehang_store::IndexKind;
use rehang_store::ManualLeaseClock;
use rehang_store::Select;
use rehang_store_tests::conformance;

/// Test bench of galleries in a folder.
struct Folder {
    place: tempfile::TempDir,
    options: SearchOptions,
    clock: ManualLeaseClock,
}

impl conformance::Bench for Folder {
    type Store = SqliteStore;

    fn open(&self, gallery: &str) -> SqliteStore {
        let path = self.place.path().join(format!("{gallery}.db"));
        let store = SqliteStore::open_or_create(path).unwrap();
        store.with_search(self.options).with_clock(Arc::new(self.clock.clone()))
    }

    fn pass(&self, time: Duration) {
        self.clock.pass(time);
    }
}

fn keeps_the_contracts(options: SearchOptions) {
    let folder = tempfile::tempdir().unwrap();
    conformance::suite(&Folder { place: folder, options, clock: ManualLeaseClock::default() });
}

#[test]
fn the_embedded_gallery_keeps_the_contracts() {
    keeps_the_contracts(SearchOptions::default());
}

#[test]
fn it_keeps_the_contracts_with_a_graph_too() {
    keeps_the_contracts(SearchOptions { exact_max: 2, merge_at: 1, ..SearchOptions::default() });
}

const DIMENSION: usize = 8;

fn space(name: &str) -> Space {
    Space::new(name, DIMENSION, rehang_core::Distance::L2, false)
}

/// Makes reproducible vectors in a few clusters.
fn vector(seed: u64) -> Vec<f32> {
    use rand::{RngExt, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..DIMENSION).map(|_| rng.random_range(-1.0..1.0_f32) + (seed % 5) as f32).collect()
}

fn item(id: usize, seed: u64) -> ItemWrite {
    ItemWrite {
        id: id.to_string(),
        source: Some("x".into()),
        label: id.is_multiple_of(100).then(|| "rare".into()),
        payload: serde_json::Value::Null,
        vectors: vec![rehang_store::NewVector::from_model("m", vector(seed), Provenance::Old)],
    }
}

const GRAPH: SearchOptions =
    SearchOptions { exact_max: 100, merge_at: 50, connectivity: 16, expansion_add: 64, expansion_search: 64 };

fn filled(path: &Path, count: usize) -> SqliteStore {
    let store = SqliteStore::create(path).unwrap().with_search(GRAPH);
    store.create_space(&space("m"), Provenance::Old).unwrap();
    let items: Vec<ItemWrite> = (0..count).map(|id| item(id, id as u64)).collect();
    store.put(&items).unwrap();
    store
}

/// Bulk writes do without triggers where a gallery has none but its own: the count of these is right, spaces
/// and all.
#[test]
fn a_gallery_knows_its_own_triggers_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 1);
    let has_others = || {
        let ask = |transaction: &rusqlite::Transaction<'_>| {
            Ok(transaction.query_row(&crate::schema::HAS_OTHER_TRIGGERS, [], |row| row.get::<_, bool>(0))?)
        };
        store.database.read(ask).unwrap()
    };
    store.create_space(&space("another"), Provenance::Native).unwrap();
    assert!(!has_others());
    let other = "CREATE TRIGGER other AFTER INSERT ON item BEGIN SELECT 1; END";
    store.database.writer().execute_batch(other).unwrap();
    assert!(has_others());
}

fn number(key: ItemKey) -> u64 {
    key.bits() as u64
}

const FIRST: Option<Epoch> = Some(Epoch::FIRST);

fn nearest(store: &SqliteStore, query: &[f32], k: usize, filter: &Filter) -> Vec<(u64, f32)> {
    let queries = Matrix::new(DIMENSION, query.to_vec()).unwrap();
    let hits = store.search("m", &queries, k, filter).unwrap().remove(0);
    hits.into_iter().map(|hit| (number(hit.key), hit.distance)).collect()
}

#[test]
fn a_space_whose_making_was_interrupted_is_listed_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("g.db"), 40);
    let new = space("new");
    spaces::begin(&store.database, &new, Provenance::Native).unwrap();
    // Meanwhile one item comes, one goes, one changes, one comes again, and one gets a vector of the new
    // space.
    store.put(&[item(40, 40), item(2, 99)]).unwrap();
    store.delete(&["3"]).unwrap();
    let plainly = |sql: &str| store.database.writer().execute_batch(sql).unwrap();
    plainly("INSERT OR REPLACE INTO item (id, source) VALUES ('4', 'y')");
    let records = store.scan(&Scan::new("m", Select::All, 100)).unwrap();
    let five = records.iter().find(|record| record.item.id == "5").unwrap().item.clone();
    let native = VectorWrite::native(&five, vector(5));
    assert_eq!(store.write_vectors("new", None, &[native]).unwrap(), [WriteOutcome::Written]);
    plainly("UPDATE item SET source = NULL WHERE id = '30'");
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.items, counts.native, counts.lacking, counts.without_source), (40, 1, 39, 1));
    store.create_space(&new, Provenance::Native).unwrap();
    assert_eq!(store.counts("new").unwrap(), counts, "listed or not, an item lacks its vector");
    assert_eq!(store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap().len(), 39);
    assert_eq!(store.check().unwrap(), []);
    store.create_space(&new, Provenance::Native).unwrap();
    assert_eq!(store.counts("new").unwrap(), counts);
}

#[test]
fn what_is_left_of_a_dropped_space_goes_with_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("g.db"), 20);
    store.create_space(&space("new"), Provenance::Native).unwrap();
    let tables = || -> u64 {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%\\_2%' ESCAPE '\\'";
        store.database.writer().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    let table_count = tables();
    assert!(table_count > 10);
    assert_eq!(spaces::leave(&store.database, "new").unwrap(), Some(2));
    assert!(store.has_dropped_rows().unwrap());
    // The process might have died here: nobody finds the space, and items come and go without it.
    assert!(tables() > 0 && store.counts("new").is_err());
    store.put(&[item(20, 20)]).unwrap();
    store.delete(&["0"]).unwrap();
    assert_eq!(store.check().unwrap(), []);
    store.create_space(&space("new"), Provenance::Native).unwrap();
    assert_eq!(tables(), 0);
    assert_eq!(store.counts("new").unwrap().lacking, 20);
    store.drop_space("new").unwrap();
    let sql = "SELECT count(*) FROM gallery WHERE name LIKE 'left-%' OR name LIKE 'listed-%'";
    let rows_left: u64 = store.database.writer().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(rows_left, 0);
}

/// A process that dies while it saves an index leaves one that is loaded, and nothing that takes room for
/// ever.
#[test]
fn a_save_that_dies_leaves_an_index_that_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 1000);
    store.prepare("m", &|_, _| true).unwrap();
    let mut newest = 5000;
    for place in [SavePlace::Written, SavePlace::Recorded, SavePlace::Named] {
        // The save dies twice in a row, and once more after a save that came to its end.
        for ends in [false, false, true] {
            let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
            newest += 1;
            store.put(&[item(3, newest)]).unwrap();
            nearest(&store, &vector(newest), 1, &Filter::default());
            store.wait_for_indexes();
            store.keeper.die_at("m", (!ends).then_some(place));
            assert_eq!(store.flush().is_ok(), ends);
            drop(store);
            let again = SqliteStore::open(&path).unwrap().with_search(GRAPH);
            let hits = nearest(&again, &vector(newest), 1, &Filter::default());
            assert_eq!(hits, [(4, 0.0)], "what was written since the save is caught up with");
            let health = again.index_health("m").unwrap();
            assert_eq!(
                (health.kind, health.built),
                (IndexKind::Graph, 1000),
                "{place:?}: it was loaded, not built"
            );
        }
    }
    // Two processes save at once: whichever saves last, the file is one of theirs.
    let stores = [(); 2].map(|()| SqliteStore::open(&path).unwrap().with_search(GRAPH));
    for store in &stores {
        // An index that was never searched is not saved.
        nearest(store, &vector(1), 1, &Filter::default());
    }
    for round in 0..6 {
        std::thread::scope(|scope| {
            for (at, store) in stores.iter().enumerate() {
                scope.spawn(move || {
                    store.put(&[item(10 + at, 6000 + 2 * round + at as u64)]).unwrap();
                    store.flush().unwrap();
                });
            }
        });
        let again = SqliteStore::open(&path).unwrap().with_search(GRAPH);
        nearest(&again, &vector(1), 1, &Filter::default());
        assert_eq!(again.index_health("m").unwrap().kind, IndexKind::Graph, "round {round}");
    }
    // The next save removes the file of a killed process.
    let name = stores[0].index_path("m").unwrap();
    let partial = name.with_file_name(format!(".{}.999999999.partial", name.file_name().unwrap().display()));
    fs_err::write(&partial, "half a graph").unwrap();
    stores[0].put(&[item(20, 7000)]).unwrap();
    stores[0].flush().unwrap();
    assert!(cfg!(not(target_os = "linux")) || !partial.exists());
}

#[test]
fn a_space_is_ready_where_no_index_has_to_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 1000);
    assert!(!store.is_ready("m").unwrap());
    let largest_done = std::cell::Cell::new(0);
    let cancelled = store.prepare("m", &|_, _| false).unwrap_err();
    assert!(cancelled.is_cancelled() && !store.is_ready("m").unwrap());
    store
        .prepare("m", &|done, total| {
            largest_done.set(largest_done.get().max(done));
            assert_eq!(store.keeper.waiting(1), 0, "vectors are read from the file, a page at a time");
            total == 1000
        })
        .unwrap();
    assert!(store.is_ready("m").unwrap() && largest_done.get() == 1000);
    let open = || SqliteStore::open(&path).unwrap().with_search(GRAPH);
    assert!(open().is_ready("m").unwrap(), "its file says so, without being loaded");
    // A few vectors that wait would be merged; where many wait, a new index is made.
    store.put(&(0..200).map(|id| item(id, 5000 + id as u64)).collect::<Vec<_>>()).unwrap();
    assert!(open().is_ready("m").unwrap());
    // A vector that replaces another one waits twice, to be added and to take that one out, however it came:
    // a process that loaded this file would make the index anew.
    store
        .database
        .writer()
        .execute_batch("UPDATE vector_1 SET value = value WHERE item > 200 AND item <= 260")
        .unwrap();
    assert!(!open().is_ready("m").unwrap());
    store.put(&(200..600).map(|id| item(id, 5000 + id as u64)).collect::<Vec<_>>()).unwrap();
    assert!(!open().is_ready("m").unwrap() && !store.is_ready("m").unwrap());
    open().prepare("m", &|_, _| true).unwrap();
    assert!(open().is_ready("m").unwrap());
    assert_eq!(nearest(&open(), &vector(5300), 1, &Filter::default()), [(301, 0.0)]);
    // A gallery that is written again without the room of what is gone is the same.
    store
        .delete(
            &(0..900)
                .map(|id| id.to_string())
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        )
        .unwrap();
    let (before, after) = store.compact().unwrap();
    assert!(after < before, "{before} {after}");
    let temporary: i64 =
        store.database.writer().pragma_query_value(None, "temp_store", |row| row.get(0)).unwrap();
    assert_eq!(temporary, 2, "what is small lies in memory again");
    assert_eq!(fs_err::metadata(&path).unwrap().len(), after);
    assert!(store.check().unwrap().is_empty());
    assert_eq!(nearest(&open(), &vector(950), 1, &Filter::default()), [(951, 0.0)]);
    assert!(store.is_ready("nothing").is_err() && store.prepare("nothing", &|_, _| true).is_err());
}

/// A reader that may not read the gallery may not read its vectors beside it.
#[cfg(unix)]
#[test]
fn an_index_is_as_private_as_its_gallery() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 1000);
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    nearest(&store, &vector(1), 1, &Filter::default());
    store.flush().unwrap();
    let mode = fs_err::metadata(store.index_path("m").unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_graph_is_built_merged_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 1000);
    let everything = Filter::default();
    let before = nearest(&store, &vector(3), 1, &everything);
    assert_eq!(before, [(4, 0.0)], "while the graph is being built the answer is exact");
    store.wait_for_indexes();
    let health = store.index_health("m").unwrap();
    assert_eq!(
        (health.kind, health.vectors, health.waiting, health.built),
        (IndexKind::Graph, 1000, 0, 1000)
    );
    assert!(health.recall_at_build > Some(0.95) && health.trouble.is_none(), "{health:?}");
    assert!(store.recall("m", 50, 10).unwrap() > 0.95);

    store.put(&(0..20).map(|id| item(id, 5000 + id as u64)).collect::<Vec<_>>()).unwrap();
    store.delete(&["30", "31"]).unwrap();
    assert_eq!(nearest(&store, &vector(5007), 1, &everything), [(8, 0.0)]);
    assert_ne!(nearest(&store, &vector(30), 1, &everything)[0].1, 0.0, "deleted");
    assert_ne!(nearest(&store, &vector(7), 1, &everything)[0].1, 0.0, "overwritten");
    assert_eq!(store.index_health("m").unwrap().waiting, 20 + 22);
    store.flush().unwrap();
    let health = store.index_health("m").unwrap();
    assert_eq!((health.vectors, health.waiting, health.overwritten), (998, 0, 22));
    let side_file = store.index_path("m").unwrap();
    assert!(side_file.exists());
    let expected: Vec<_> = (0..40).map(|at| nearest(&store, &vector(at * 31), 5, &everything)).collect();
    let answers = |store: &SqliteStore| -> Vec<_> {
        (0..40).map(|at| nearest(store, &vector(at * 31), 5, &everything)).collect()
    };
    drop(store);

    let again = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    assert_eq!(answers(&again), expected);
    assert_eq!(again.index_health("m").unwrap().overwritten, 22, "it was loaded, not built");
    again.put(&[item(77, 9999)]).unwrap();
    drop(again);
    let stale = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    assert_eq!(
        nearest(&stale, &vector(9999), 1, &everything)[0].1,
        0.0,
        "what was written since is caught up"
    );
    assert_eq!(stale.index_health("m").unwrap().waiting, 2);
    drop(stale);

    // The answers are those of the truth, whatever happens to the side file.
    let good = fs_err::read(&side_file).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bad in [&good[..good.len() / 2], &flipped, b"", b"rehangix", &[&good[..], b"x"].concat()] {
        fs_err::write(&side_file, bad).unwrap();
        let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
        assert_eq!(nearest(&store, &vector(9999), 1, &everything)[0].1, 0.0);
        assert_eq!(store.index_health("m").unwrap().overwritten, 0, "it is made again");
    }
    // The index comes from another gallery of the same shape.
    let other = filled(&folder.path().join("other.db"), 300);
    nearest(&other, &vector(1), 1, &everything);
    other.flush().unwrap();
    fs_err::copy(other.index_path("m").unwrap(), &side_file).unwrap();
    let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    assert_eq!(nearest(&store, &vector(9999), 1, &everything)[0].1, 0.0);
    assert_eq!(store.index_health("m").unwrap().vectors, 998);
    store.create_space(&space("n"), Provenance::Old).unwrap();
    store.switch_serving("m", "n").unwrap();
    store.drop_space("m").unwrap();
    assert!(!side_file.exists(), "a dropped space leaves no file behind");
}

#[test]
fn an_older_copy_of_a_gallery_does_not_take_the_newer_index_for_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("gallery.db"), folder.path().join("copy.db"));
    let everything = Filter::default();
    let change = |store: &SqliteStore, ids: std::ops::Range<usize>, seed: u64| {
        let writes: Vec<ItemWrite> = ids.map(|id| item(id, seed + id as u64)).collect();
        store.put(&writes).unwrap();
        nearest(store, &vector(seed), 1, &everything);
        store.flush().unwrap();
    };
    let store = filled(&path, 300);
    change(&store, 0..10, 5000);
    store.close().unwrap();
    fs_err::copy(&path, &copy).unwrap();
    let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    change(&store, 0..60, 6000);
    store.close().unwrap();
    // The copy takes the gallery's place, the side file stays, and other items get the same numbers of
    // change.
    fs_err::copy(&copy, &path).unwrap();
    let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    let writes: Vec<ItemWrite> = (100..180).map(|id| item(id, 7000 + id as u64)).collect();
    store.put(&writes).unwrap();
    drop(store);
    let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    for id in 100..180 {
        assert_eq!(nearest(&store, &vector(7000 + id), 1, &everything)[0].1, 0.0, "item {id} is found");
    }
}

#[test]
fn an_index_that_is_too_far_behind_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 300);
    let everything = Filter::default();
    nearest(&store, &vector(5), 1, &everything);
    store.flush().unwrap();
    let other = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    assert_eq!(nearest(&other, &vector(5), 1, &everything), [(6, 0.0)]);
    other.wait_for_indexes();
    store.delete(&["5", "6"]).unwrap();
    // The feed forgets the removals, as it does after many of them.
    let change = |store: &SqliteStore| {
        store.database.read(|transaction| spaces::find(transaction, "m")?.change(transaction)).unwrap()
    };
    let last_change = change(&store);
    let forget = format!("DELETE FROM removed_1; UPDATE space SET trimmed = {last_change}");
    store.database.writer().execute_batch(&forget).unwrap();
    for store in [&store, &other, &SqliteStore::open(&path).unwrap().with_search(GRAPH)] {
        for _ in 0..2 {
            assert_ne!(nearest(store, &vector(5), 1, &everything)[0].0, 6);
            assert_eq!(store.index_health("m").unwrap().vectors, 298);
            store.rebuild("m").unwrap();
        }
        assert_eq!(change(store), last_change);
    }
}

#[test]
fn the_feed_forgets_removals_without_a_graph_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 60);
    let other = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    let everything = Filter::default();
    for store in [&store, &other] {
        assert_eq!(nearest(store, &vector(5), 1, &everything), [(6, 0.0)]);
    }
    for first in [100, 200, 300] {
        let items: Vec<ItemWrite> = (first..first + 50).map(|id| item(id, id as u64)).collect();
        store.put(&items).unwrap();
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(store.delete(&ids).unwrap(), 50);
    }
    store.delete(&["5"]).unwrap();
    store.put(&[item(7, 5000)]).unwrap();
    let removals = || -> u64 {
        let count = "SELECT count(*) FROM removed_1";
        store.database.writer().query_row(count, [], |row| row.get(0)).unwrap()
    };
    assert!(removals() > 150);
    store.flush().unwrap();
    assert_eq!(store.index_health("m").unwrap().kind, IndexKind::Exact);
    assert_eq!(removals(), 0);
    // A process that is behind, or begins, sees what is there all the same.
    for store in [&store, &other, &SqliteStore::open(&path).unwrap().with_search(GRAPH)] {
        assert_ne!(nearest(store, &vector(5), 1, &everything)[0].0, 6, "deleted");
        assert_eq!(nearest(store, &vector(5000), 1, &everything), [(8, 0.0)]);
        assert_eq!(store.index_health("m").unwrap().vectors, 59);
    }
    store.delete(&["9"]).unwrap();
    store.flush().unwrap();
    assert_eq!(removals(), 1, "a few are remembered");
    assert_ne!(nearest(&other, &vector(9), 1, &everything)[0].0, 10);
}

#[test]
fn what_is_kept_of_a_space_goes_when_another_process_drops_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 101);
    store.create_space(&space("n"), Provenance::Native).unwrap();
    let query = Matrix::new(DIMENSION, vector(1)).unwrap();
    let search = |name: &str| {
        store.search(name, &query, 1, &Filter::default()).unwrap();
        store.keeper.numbers()
    };
    search("m");
    assert_eq!(search("n"), [1, 2]);
    store.wait_for_indexes();
    let other = SqliteStore::open(&path).unwrap();
    other.switch_serving("m", "n").unwrap();
    other.drop_space("m").unwrap();
    // The drop is noticed with the next write that is searched.
    let mut write = item(101, 101);
    write.vectors[0].space = "n".into();
    write.vectors[0].provenance = Provenance::Native;
    other.put(&[write]).unwrap();
    assert_eq!(search("n"), [2]);
    // The next space that is made shows it too.
    other.create_space(&space("o"), Provenance::Native).unwrap();
    other.switch_serving("n", "o").unwrap();
    other.drop_space("n").unwrap();
    assert_eq!(search("o"), [3]);
}

#[test]
fn a_filter_finds_the_few_that_pass() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 1500);
    store.rebuild("m").unwrap();
    let rare = Filter { labels: vec!["rare".into()], ..Filter::default() };
    for seed in 0..20 {
        let hits = nearest(&store, &vector(seed), 4, &rare);
        let mut slow: Vec<(u64, f32)> = (0..1500_u64)
            .step_by(100)
            .map(|id| {
                (id + 1, rehang_store::exact::distance(rehang_core::Distance::L2, &vector(seed), &vector(id)))
            })
            .collect();
        slow.sort_by(|a, b| a.1.total_cmp(&b.1));
        assert_eq!(hits, slow[..4]);
    }
    assert_eq!(nearest(&store, &vector(1), 100, &rare).len(), 15, "all that there are");
}

#[test]
fn mass_overwrites_are_looked_after() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 1000);
    store.rebuild("m").unwrap();
    for round in 1..5_u64 {
        for chunk in 0..10 {
            let items: Vec<ItemWrite> = (0..40)
                .map(|at| item(chunk * 100 + at, 10_000 * round + (chunk * 100 + at) as u64))
                .collect();
            store.put(&items).unwrap();
            nearest(&store, &vector(1), 1, &Filter::default());
            store.wait_for_indexes();
        }
        let health = store.index_health("m").unwrap();
        let was_remade = health.rebuilt_because.as_ref().is_some_and(|why| why.contains("recall"));
        assert!(
            health.recall_checked.is_some() || was_remade,
            "a fifth was overwritten, so it was looked at: {health:?}"
        );
        assert_eq!(was_remade, health.rebuilt > 0);
        let recall = store.recall("m", 100, 10).unwrap();
        assert!(recall >= health.recall_at_build.unwrap() - 0.04, "recall {recall} after {health:?}");
    }
}

#[test]
fn overwrites_add_up_over_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    filled(&path, 1000).rebuild("m").unwrap();
    let mut looked = None;
    for round in 1..=5_u64 {
        // Each process lives as shortly as a search of the command line.
        let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
        let first = 60 * round as usize;
        store.put(&(first..first + 60).map(|at| item(at, 10_000 + at as u64)).collect::<Vec<_>>()).unwrap();
        nearest(&store, &vector(1), 1, &Filter::default());
        store.flush().unwrap();
        let health = store.index_health("m").unwrap();
        let checked = health.recall_checked.is_some() || health.rebuilt > 0;
        assert_eq!(checked, round >= 4, "240 of 1,000 in round 4, 180 in round 3: {health:?}");
        if round == 4 {
            looked = Some((health.recall_checked, health.rebuilt, health.rebuilt_because));
        }
    }
    // The processes after one know what it learned, and do not learn it again.
    let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    let health = store.index_health("m").unwrap();
    assert_eq!(Some((health.recall_checked, health.rebuilt, health.rebuilt_because)), looked);
}

#[test]
fn a_graph_says_why_it_was_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = filled(&path, 300);
    store.rebuild("m").unwrap();
    assert_eq!(store.index_health("m").unwrap().rebuilt, 0, "the first one");
    store.rebuild("m").unwrap();
    drop(store);
    let store = SqliteStore::open(&path).unwrap().with_search(GRAPH);
    let health = store.index_health("m").unwrap();
    assert_eq!((health.rebuilt, health.rebuilt_because.as_deref()), (1, Some("a caller asked for it")));
}

/// A graph is made page by page, and a page may hold no vector that a search can find.
#[test]
fn vectors_that_are_no_numbers_hide_none_after_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 4500);
    let nan = [f32::NAN; DIMENSION].map(f32::to_le_bytes).concat();
    store.database.writer().execute("UPDATE vector_1 SET value = ?1 WHERE item <= 4100", [nan]).unwrap();
    store.rebuild("m").unwrap();
    assert_eq!(nearest(&store, &vector(4400), 1, &Filter::default()), [(4401, 0.0)]);
}

#[test]
fn searches_go_on_while_everything_changes() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 600);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let searchers: Vec<_> = (0..3)
            .map(|thread| {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    let mut searches = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) || searches == 0 {
                        let queries = Matrix::from_fn(4, DIMENSION, |row, column| vector(row as u64)[column]);
                        for hits in store.search("m", &queries, 5 + thread, &Filter::default()).unwrap() {
                            assert_eq!(hits.len(), 5 + thread);
                        }
                        searches += 1;
                    }
                })
            })
            .collect();
        for round in 0..30_u64 {
            let items: Vec<ItemWrite> =
                (0..30).map(|at| item(at * 17 % 600, round * 1000 + at as u64)).collect();
            store.put(&items).unwrap();
            store.delete(&[&(round + 500).to_string()]).unwrap();
            let query = round * 1000 + 29;
            assert_eq!(nearest(&store, &vector(query), 1, &Filter::default())[0].1, 0.0, "fresh");
            if round == 15 {
                store.rebuild("m").unwrap();
                store.flush().unwrap();
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for searcher in searchers {
            searcher.join().unwrap();
        }
    });
    assert_eq!(store.check().unwrap(), vec![]);
}

#[cfg(unix)]
#[test]
fn searches_catch_up_while_an_index_is_saved() {
    use std::sync::mpsc::channel;

    // Nothing here takes so long; only a mistake does.
    let patience = std::time::Duration::from_secs(20);
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 1000);
    store.rebuild("m").unwrap();
    store.put(&[item(3, 5000)]).unwrap();
    // A pipe in the place of the file: it takes a part of the graph and no more until somebody reads it.
    let side_file = store.index_path("m").unwrap();
    let name = side_file.file_name().unwrap().to_string_lossy().into_owned();
    let pipe = side_file.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| store.flush());
        // Opening a pipe waits for whoever writes to it, hence in a thread that nobody waits for.
        let (opened, reader) = channel();
        let path = pipe.clone();
        std::thread::spawn(move || opened.send(fs_err::File::open(path)));
        let mut reader = reader.recv_timeout(patience).expect("the index is saved elsewhere").unwrap();
        let (hits_sender, hits_receiver) = channel();
        let store = &store;
        scope.spawn(move || {
            store.put(&[item(4, 6000)]).unwrap();
            hits_sender.send(nearest(store, &vector(6000), 1, &Filter::default()))
        });
        let in_time = hits_receiver.recv_timeout(patience);
        assert!(!saving.is_finished(), "the graph is larger than a pipe");
        // The save fails where it looks at its file again, which harms nobody.
        fs_err::remove_file(&pipe).unwrap();
        std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        assert_eq!(in_time.expect("a search waited for the save"), [(5, 0.0)]);
        assert!(saving.join().unwrap().is_err());
    });
    store.flush().unwrap();
    assert!(side_file.exists() && store.check().unwrap().is_empty());
}

#[test]
fn a_full_disk_leaves_the_truth_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 50);
    let pages: i64 =
        store.database.writer().pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.database.writer().pragma_update(None, "max_page_count", pages + 2).unwrap();
    let before = store.counts("m").unwrap();
    let many: Vec<ItemWrite> = (0..3000).map(|id| item(id, id as u64 + 7)).collect();
    let error = store.put(&many).unwrap_err();
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert!(error.is_retryable());
    assert_eq!(store.counts("m").unwrap(), before);
    assert_eq!(store.check().unwrap(), vec![]);
    assert_eq!(nearest(&store, &vector(1), 1, &Filter::default())[0].1, 0.0);
    store.database.writer().pragma_update(None, "max_page_count", 1_000_000).unwrap();
    assert_eq!(store.put(&many).unwrap().len(), 3000, "with room it goes on");
}

#[test]
fn a_full_disk_takes_all_vectors_of_a_write_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 2000);
    store.create_space(&space("new"), Provenance::Native).unwrap();
    let records = store.scan(&Scan::new("m", Select::All, 2000)).unwrap();
    let write = |Record { item, .. }: &Record| {
        VectorWrite::adapted(item, vector(number(item.key)), 1.0, Priority::ordinary(1.0))
    };
    let writes: Vec<VectorWrite> = records.iter().map(write).collect();
    store.write_vectors("new", FIRST, &writes[..1]).unwrap();
    let limit = |pages: i64| {
        let bulk = store.database.bulk_writer();
        bulk.as_ref().unwrap().pragma_update(None, "max_page_count", pages).unwrap();
    };
    let pages: i64 =
        store.database.writer().pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    for room in [0, 3, 20] {
        limit(pages + room);
        let error = store.write_vectors("new", FIRST, &writes).unwrap_err();
        assert!(error.to_string().contains("disk is full") && error.is_retryable(), "{error}");
        let counts = store.counts("new").unwrap();
        assert_eq!((counts.adapted, counts.lacking), (1, 1999), "half a write");
        assert_eq!(store.check().unwrap(), vec![]);
    }
    limit(1_000_000);
    store.write_vectors("new", FIRST, &writes).unwrap();
    assert_eq!(store.counts("new").unwrap().adapted, 2000, "with room it goes on");
}

/// Makes a space of adapted vectors of which some are native, in a store and in its twin.
fn backfilled(stores: &[&dyn Ledger], items: u64, native: impl Fn(u64) -> bool) {
    for store in stores {
        store.create_space(&space("m"), Provenance::Native).unwrap();
        let bare: Vec<ItemWrite> =
            (0..items).map(|id| ItemWrite { vectors: vec![], ..item(id as usize, id) }).collect();
        let revisions = store.put(&bare).unwrap();
        let write = |id: u64, provenance| VectorWrite {
            key: ItemKey::from(id + 1),
            revision: revisions[id as usize],
            provenance,
            sigma2: None,
            priority: None,
            squared_error: None,
            vector: vector(id),
        };
        let adapted: Vec<VectorWrite> = (0..items).map(|id| write(id, Provenance::Adapted)).collect();
        store.write_vectors("m", FIRST, &adapted).unwrap();
        let natives: Vec<VectorWrite> =
            (0..items).filter(|&id| native(id)).map(|id| write(id, Provenance::Native)).collect();
        store.write_vectors("m", FIRST, &natives).unwrap();
    }
}

#[test]
fn a_search_for_a_provenance_is_that_of_the_twin_at_every_share() {
    const ITEMS: u64 = 3000;
    // The shares go from nobody to everybody, spread or on one side; 3000 vectors have a graph here.
    let shares: [fn(u64) -> bool; 6] =
        [|_| false, |id| id == 77, |id| id % 100 == 3, |id| id < 400, |id| id % 2 == 0, |_| true];
    for native in shares {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::create(folder.path().join("gallery.db")).unwrap().with_search(GRAPH);
        let twin = rehang_store_tests::MemoryStore::new().with_keys(|_, number| number.into());
        backfilled(&[&store, &twin], ITEMS, native);
        store.rebuild("m").unwrap();
        let natives = (0..ITEMS).filter(|&id| native(id)).count();
        let queries = Matrix::from_fn(40, DIMENSION, |row, column| vector(row as u64 * 97)[column]);
        for provenances in [
            vec![Provenance::Native],
            vec![Provenance::Adapted],
            vec![Provenance::Old],
            vec![Provenance::Native, Provenance::Old, Provenance::Native],
        ] {
            for labels in [vec![], vec!["rare".to_owned()]] {
                let filter = Filter { labels, provenances: provenances.clone(), ..Filter::default() };
                for k in [1, 10, 70] {
                    let expected = twin.search("m", &queries, k, &filter).unwrap();
                    let answers = store.search("m", &queries, k, &filter).unwrap();
                    let place = |lists: &[Vec<rehang_store::Found>]| -> Vec<Vec<(ItemKey, f32, Provenance)>> {
                        let fields = |hit: &rehang_store::Found| (hit.key, hit.distance, hit.provenance);
                        lists.iter().map(|hits| hits.iter().map(fields).collect()).collect()
                    };
                    let (answers, expected) = (place(&answers), place(&expected));
                    let what = format!("{natives} native, {filter:?}, k = {k}");
                    let wanted = [natives, ITEMS as usize - natives];
                    let few = wanted[usize::from(provenances[0] == Provenance::Adapted)] <= 30;
                    if few || provenances == [Provenance::Old] {
                        assert_eq!(answers, expected, "{what}");
                    }
                    // A graph may miss a neighbour, and never gives one that does not pass.
                    let (mut hits, mut all) = (0, 0);
                    for (answer, expected) in answers.iter().zip(&expected) {
                        assert_eq!(answer.len(), expected.len(), "{what}");
                        hits += answer.iter().filter(|hit| expected.contains(hit)).count();
                        all += expected.len();
                    }
                    assert!(hits * 100 >= all * 95, "{what}: {hits} of {all}");
                }
            }
        }
    }
}

#[test]
fn a_search_for_a_rare_provenance_looks_at_nothing_else() {
    const ITEMS: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::create(folder.path().join("gallery.db")).unwrap().with_search(GRAPH);
    backfilled(&[&store], ITEMS, |id| id % 100 == 3);
    let looked_at = |provenances: Vec<Provenance>| {
        let filter = Filter { provenances, ..Filter::default() };
        let mut taken = 0;
        let rows = store
            .database
            .read(|transaction| {
                let row = spaces::find(transaction, "m")?;
                search::each_of_provenances(transaction, &row, &filter, &mut |_, _| taken += 1)
            })
            .unwrap();
        assert_eq!(rows, taken, "no row is read for nothing");
        rows
    };
    assert_eq!(looked_at(vec![Provenance::Native]), 30);
    assert_eq!(looked_at(vec![Provenance::Native, Provenance::Native, Provenance::Old]), 30);
    assert_eq!(looked_at(vec![Provenance::Adapted]), 2970);
}

#[test]
fn pages_come_from_indexes() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder.path().join("gallery.db"), 300);
    store.create_space(&space("n"), Provenance::Native).unwrap();
    let items = store.scan(&Scan::new("n", rehang_store::Select::Lacking, 300)).unwrap();
    let writes: Vec<VectorWrite> = items
        .iter()
        .map(|Record { item, .. }| {
            let number = number(item.key);
            VectorWrite::adapted(item, vector(number), number as f32, Priority::ordinary(number as f64))
        })
        .collect();
    store.write_vectors("n", FIRST, &writes).unwrap();
    // SQLite itself says that it neither sorts nor reads whole tables.
    for (sql, index) in [
        (
            "SELECT item.key FROM vector_2 AS state INDEXED BY vector_2_worst CROSS JOIN item ON item.key = state.item
             WHERE state.provenance = 'adapted' AND state.failed = 0 AND state.sourced = 1
             ORDER BY state.band DESC, state.score DESC, state.item",
            "vector_2_worst",
        ),
        (
            "SELECT item.key FROM lacking_2 AS lacking CROSS JOIN item ON item.key = lacking.item
             WHERE lacking.sourced = 1 AND lacking.failed = 0 ORDER BY lacking.item",
            "lacking_2_next",
        ),
        ("SELECT max(revision) FROM item", "item_revision"),
        ("SELECT key FROM item INDEXED BY item_revision", "COVERING INDEX item_revision"),
        (
            "SELECT count(*) FROM item INDEXED BY item_unsourced WHERE source IS NULL",
            "COVERING INDEX item_unsourced",
        ),
        (
            "SELECT item.key FROM vector_2 AS state INDEXED BY vector_2_adapted
             CROSS JOIN item ON item.key = state.item
             WHERE state.provenance = 'adapted' AND state.item > 5 ORDER BY state.item",
            "vector_2_adapted",
        ),
        (
            "SELECT state.item FROM vector_2 AS state INDEXED BY vector_2_unsourced
                 CROSS JOIN item ON item.key = state.item
             WHERE state.provenance = 'adapted' AND state.sourced = 0 AND state.item > 5
             UNION ALL SELECT lacking.item FROM lacking_2 AS lacking CROSS JOIN item ON item.key = lacking.item
             WHERE lacking.sourced = 0 AND lacking.item > 5 ORDER BY 1",
            "vector_2_unsourced",
        ),
        ("SELECT max(change) FROM vector_2", "vector_2_change"),
    ] {
        let connection = store.database.writer();
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan: Vec<String> =
            explain.query_map([], |row| row.get(3)).unwrap().collect::<Result<_, _>>().unwrap();
        let plan = plan.join("; ");
        assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
}

#[test]
fn every_vector_is_found_in_a_graph_that_threads_built() {
    const ITEMS: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::create(folder.path().join("gallery.db")).unwrap().with_search(GRAPH);
    backfilled(&[&store], ITEMS, |_| false);
    let queries = Matrix::from_fn(ITEMS as usize, DIMENSION, |row, column| vector(row as u64)[column]);
    // Threads meet at other moments each time.
    for _ in 0..5 {
        store.rebuild("m").unwrap();
        let hits = store.search("m", &queries, 1, &Filter::default()).unwrap();
        let lost: Vec<usize> =
            (0..ITEMS as usize).filter(|&at| number(hits[at][0].key) != at as u64 + 1).collect();
        assert_eq!(lost, Vec::<usize>::new());
    }
}
