//! Plain SQL: applications may write through it, as `docs/store.md` says; here they do so to a real file.

use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_sqlite::{SearchOptions, SqliteStore};
use rehang_store::{
    Epoch, Examined, Filter, Index, Item, ItemWrite, Ledger, Priority, Scan, Select, VectorRecord,
    VectorWrite, WriteOutcome,
};
use rusqlite::{Connection, params};
use serde_json::json;

struct Gallery {
    store: SqliteStore,
    sql: Connection,
    _folder: tempfile::TempDir,
}

/// Makes a gallery with spaces `old` (1) and `new` (2), and a connection that knows nothing of rehang.
fn gallery() -> Gallery {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = SqliteStore::create(&path).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 2, Distance::L2, false), Provenance::Native).unwrap();
    let sql = Connection::open(&path).unwrap();
    Gallery { store, sql, _folder: folder }
}

impl Gallery {
    fn run(&self, sql: &str) -> rusqlite::Result<usize> {
        let done = self.sql.execute(sql, []);
        assert_eq!(self.store.check().unwrap(), vec![], "after {sql}");
        done
    }

    fn vector(&self, space: &str, id: &str) -> Option<VectorRecord> {
        let item = self.store.get(&[id]).unwrap().remove(0)?;
        let vector = self.store.vectors(space, &[item.key]).unwrap().remove(0);
        if let Some(vector) = &vector {
            assert_eq!(vector.revision, item.revision);
        }
        vector
    }

    fn revision(&self, id: &str) -> u64 {
        self.store.get(&[id]).unwrap().remove(0).unwrap().revision
    }

    fn nearest(&self, space: &str, query: [f32; 2]) -> Vec<(String, f32)> {
        let queries = Matrix::new(2, query.to_vec()).unwrap();
        let found = self.store.search(space, &queries, 9, &Filter::default()).unwrap().remove(0);
        found.into_iter().map(|found| (found.id, found.distance)).collect()
    }

    /// Adds an item with an old vector and an adapted one.
    fn adapted(&self, id: &str) {
        self.sql.execute("INSERT INTO item (id, source) VALUES (?1, ?1)", [id]).unwrap();
        self.insert("vector_1", id, [1.0, 0.0]);
        let item = self.store.get(&[id]).unwrap().remove(0).unwrap();
        let write = VectorWrite::adapted(&item, vec![0.0, 1.0], 1.0, Priority::ordinary(1.0));
        assert_eq!(
            self.store.write_vectors("new", Some(Epoch::FIRST), &[write]).unwrap(),
            [WriteOutcome::Written]
        );
    }

    fn insert(&self, table: &str, id: &str, vector: [f32; 2]) {
        let sql = format!("INSERT INTO {table} (item, value) SELECT key, ?2 FROM item WHERE id = ?1");
        assert_eq!(self.sql.execute(&sql, params![id, bytes(vector)]).unwrap(), 1);
        assert_eq!(self.store.check().unwrap(), vec![]);
    }
}

fn bytes(vector: [f32; 2]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn an_item_and_its_vectors_are_inserted() {
    let gallery = gallery();
    gallery.run("INSERT INTO item (id, source, payload) VALUES ('a', 'a.jpg', '{\"rooms\": 3}')").unwrap();
    let item = gallery.store.get(&["a"]).unwrap().remove(0).unwrap();
    assert!(item.revision > 0);
    assert_eq!(item.payload, json!({"rooms": 3}));
    assert_eq!(gallery.store.counts("old").unwrap().lacking, 1);
    gallery.insert("vector_1", "a", [3.0, 4.0]);
    gallery.insert("vector_2", "a", [1.0, 0.0]);
    assert_eq!(gallery.vector("old", "a").unwrap().provenance, Provenance::Old);
    assert_eq!(gallery.vector("new", "a").unwrap().provenance, Provenance::Native);
    assert_eq!(gallery.revision("a"), item.revision, "a first vector is no change of the content");
    assert_eq!(gallery.nearest("old", [0.0, 0.0]), [("a".to_owned(), 25.0)]);
    gallery.insert("vector_1", "a", [0.0, 2.0]);
    assert!(gallery.revision("a") > item.revision, "another vector in its place is one");
    assert_eq!(gallery.nearest("old", [0.0, 0.0]), [("a".to_owned(), 4.0)]);
    let native = gallery.vector("new", "a").expect("made from the source, which is the same");
    assert_eq!((native.provenance, native.vector), (Provenance::Native, vec![1.0, 0.0]));
    let source_revision = || gallery.store.get(&["a"]).unwrap().remove(0).unwrap().source_revision;
    assert_eq!(source_revision(), item.revision);
    gallery.run("UPDATE item SET revision = 0 WHERE id = 'a'").unwrap();
    assert_eq!(gallery.vector("new", "a"), None, "the file behind the same path has changed");
    assert_eq!(source_revision(), gallery.revision("a"));
}

#[test]
fn a_changed_source_removes_what_was_made_from_it() {
    let gallery = gallery();
    gallery.adapted("a");
    assert_eq!(gallery.nearest("new", [0.0, 0.0]).len(), 1);
    let before = gallery.revision("a");
    gallery.run("UPDATE item SET label = 'cat', payload = '[1]' WHERE id = 'a'").unwrap();
    assert_eq!(gallery.revision("a"), before, "a label is no content");
    gallery.run("UPDATE item SET source = 'b' WHERE id = 'a'").unwrap();
    assert!(gallery.revision("a") > before);
    assert_eq!((gallery.vector("old", "a"), gallery.vector("new", "a")), (None, None));
    assert!(gallery.nearest("new", [0.0, 0.0]).is_empty(), "searches see it at once");
    let worst = gallery.store.scan(&Scan::new("new", Select::Queued, 9)).unwrap();
    assert_eq!(worst.len(), 1, "the backfill takes it up");

    gallery.insert("vector_1", "a", [1.0, 1.0]);
    let before = gallery.revision("a");
    gallery.run("UPDATE item SET revision = 0 WHERE id = 'a'").unwrap();
    assert!(gallery.revision("a") > before, "a file that changed behind its path is told by revision 0");
    assert_eq!(gallery.vector("old", "a"), None);
    gallery.run("UPDATE item SET source = NULL WHERE id = 'a'").unwrap();
    assert_eq!(gallery.store.counts("new").unwrap().without_source, 1);
    assert!(gallery.store.scan(&Scan::new("new", Select::Queued, 9)).unwrap().is_empty());
}

#[test]
fn a_changed_vector_is_a_changed_content() {
    let gallery = gallery();
    gallery.adapted("a");
    let before = gallery.revision("a");
    gallery.sql.execute("UPDATE vector_1 SET value = ?1", [bytes([0.0, 3.0])]).unwrap();
    assert_eq!(gallery.store.check().unwrap(), vec![]);
    assert!(gallery.revision("a") > before);
    assert_eq!(gallery.vector("new", "a"), None, "the adapted vector was made from the one before");
    assert_eq!(gallery.nearest("old", [0.0, 0.0]), [("a".to_owned(), 9.0)]);
    gallery.adapted("b");
    gallery.sql.execute("UPDATE vector_2 SET value = ?1", [bytes([5.0, 0.0])]).unwrap();
    let native = gallery.vector("new", "b").unwrap();
    assert_eq!(
        (native.provenance, native.sigma2),
        (Provenance::Native, None),
        "it is the application's own now"
    );
    assert_eq!(gallery.store.check().unwrap(), vec![]);
}

#[test]
fn a_vector_that_is_changed_to_no_number_is_passed_over() {
    let with_a_graph = SearchOptions { exact_max: 2, merge_at: 1, ..SearchOptions::default() };
    for options in [SearchOptions::default(), with_a_graph] {
        for distance in Distance::ALL {
            let mut gallery = gallery();
            gallery.store = SqliteStore::open(gallery.store.path()).unwrap().with_search(options);
            gallery.store.create_space(&Space::new("third", 2, distance, false), Provenance::Old).unwrap();
            for (id, vector) in [("a", [1.0, 0.0]), ("b", [1.0, 0.5]), ("c", [1.0, 1.0]), ("d", [0.0, 1.0])] {
                gallery.run(&format!("INSERT INTO item (id) VALUES ('{id}')")).unwrap();
                gallery.insert("vector_3", id, vector);
            }
            gallery.store.prepare("third", &|_, _| true).unwrap();
            assert_eq!(gallery.nearest("third", [1.0, 0.0]).len(), 4);
            for (id, vector, left) in
                [("a", [f32::NAN, 0.0], &["b", "c", "d"][..]), ("b", [f32::INFINITY, 0.0], &["c", "d"][..])]
            {
                let sql = "UPDATE vector_3 SET value = ?2 WHERE item = (SELECT key FROM item WHERE id = ?1)";
                assert_eq!(gallery.sql.execute(sql, params![id, bytes(vector)]).unwrap(), 1);
                let found = gallery.nearest("third", [1.0, 0.0]);
                assert!(found.iter().all(|(_, distance)| distance.is_finite()), "{distance}: {found:?}");
                let found: Vec<String> = found.into_iter().map(|(id, _)| id).collect();
                assert_eq!(found, left, "{distance}, {vector:?}");
            }
        }
    }
}

#[test]
fn deleting_and_replacing_leave_nothing_behind() {
    let gallery = gallery();
    gallery.adapted("a");
    gallery.adapted("b");
    let key = gallery.store.get(&["b"]).unwrap().remove(0).unwrap().key;
    gallery.store.record_failures("new", &[(key, gallery.revision("b"), "x".into())]).unwrap();
    gallery.run("DELETE FROM item WHERE id = 'a'").unwrap();
    assert_eq!(gallery.nearest("new", [0.0, 0.0]).len(), 1);
    gallery.run("INSERT OR REPLACE INTO item (id, source) VALUES ('b', 'other')").unwrap();
    let item = gallery.store.get(&["b"]).unwrap().remove(0).unwrap();
    assert_ne!(item.key, key, "a replaced item is another one");
    assert_eq!(gallery.vector("old", "b"), None);
    assert!(gallery.nearest("new", [0.0, 0.0]).is_empty());
    gallery.adapted("c");
    let before = gallery.revision("c");
    gallery.run("INSERT OR IGNORE INTO item (id, source) VALUES ('c', 'ignored')").unwrap();
    assert_eq!(gallery.revision("c"), before);
    gallery
        .run("INSERT INTO item (id, label) VALUES ('c', 'x') ON CONFLICT (id) DO UPDATE SET label = 'x'")
        .unwrap();
    assert_eq!(gallery.revision("c"), before);
    assert!(gallery.vector("new", "c").is_some());
    gallery
        .run("INSERT INTO item (id, source) VALUES ('c', 'y') ON CONFLICT (id) DO UPDATE SET source = excluded.source")
        .unwrap();
    assert!(gallery.revision("c") > before);
    assert!(gallery.vector("new", "c").is_none());
    gallery.run("DELETE FROM vector_1").unwrap();
    gallery.run("DELETE FROM item").unwrap();
    assert_eq!(gallery.store.counts("new").unwrap(), rehang_store::Counts::default());
}

#[test]
fn what_must_not_be_is_refused() {
    let gallery = gallery();
    gallery.adapted("a");
    for (sql, why) in [
        ("INSERT INTO item (key, id) VALUES (99, 'b')", "given by the gallery"),
        ("UPDATE item SET key = 99", "cannot be changed"),
        ("INSERT INTO item (id) VALUES ('a')", "UNIQUE"),
        ("INSERT INTO item (id) VALUES (NULL)", "NOT NULL"),
        ("INSERT INTO item (id) VALUES ('b' || char(10) || 'c')", "one line"),
        ("INSERT INTO item (id, payload) VALUES ('b', '{')", "CHECK"),
        ("INSERT INTO vector_1 (item, value) VALUES (99, zeroblob(8))", "no item"),
        ("UPDATE vector_1 SET value = zeroblob(9)", "CHECK"),
        ("UPDATE vector_1 SET value = '12345678'", "CHECK"),
        ("UPDATE vector_1 SET provenance = 'mine'", "CHECK"),
        ("UPDATE vector_1 SET provenance = NULL", "NOT NULL"),
        ("UPDATE vector_1 SET item = 99", "another item"),
    ] {
        let error = gallery.run(sql).expect_err(sql).to_string();
        assert!(error.contains(why), "{sql}: {error}");
    }
    assert_eq!(gallery.nearest("old", [1.0, 0.0]), [("a".to_owned(), 0.0)]);
}

#[test]
fn the_check_finds_what_went_around_the_triggers() {
    let gallery = gallery();
    gallery.adapted("a");
    let nan: Vec<u8> = [f32::NAN, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    for (sql, what) in [
        ("DELETE FROM lacking_1; DROP TRIGGER vector_1_removed; DELETE FROM vector_1", "not in the list"),
        ("UPDATE vector_2 SET revision = 0", "another revision"),
        (
            "PRAGMA ignore_check_constraints = 1; UPDATE vector_2 SET provenance = 'mine'",
            "unknown provenance",
        ),
        ("INSERT INTO lacking_2 (item, sourced) SELECT item, 1 FROM vector_2", "that have one"),
        ("UPDATE vector_2 SET failed = 1", "place in the queue"),
        ("UPDATE gallery SET value = 'nothing' WHERE name = 'serving'", "serving space"),
        ("UPDATE gallery SET value = 0 WHERE name = 'counter'", "never given"),
    ] {
        gallery.sql.execute_batch(sql).unwrap();
        let found: Vec<String> =
            gallery.store.check().unwrap().into_iter().map(|problem| problem.what).collect();
        assert!(found.iter().any(|found| found.contains(what)), "{sql}: {found:?}");
    }
    gallery.sql.execute("UPDATE vector_2 SET change = change + 1, value = ?1", [nan]).unwrap();
    let found: Vec<String> = gallery.store.check().unwrap().into_iter().map(|problem| problem.what).collect();
    assert!(found.iter().any(|found| found.contains("NaN")), "{found:?}");
}

#[test]
fn the_library_and_plain_sql_take_turns() {
    let gallery = gallery();
    for round in 0..20_u8 {
        let id = format!("i{}", round % 4);
        gallery.sql.execute(
            "INSERT INTO item (id, source) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET source = excluded.source",
            params![id, round.to_string()],
        ).unwrap();
        gallery.insert("vector_1", &id, [f32::from(round), 0.0]);
        assert_eq!(gallery.nearest("old", [f32::from(round), 0.0])[0], (id.clone(), 0.0));
        let write = ItemWrite {
            id,
            source: Some("library".into()),
            label: None,
            payload: json!(round),
            vectors: vec![],
        };
        if round % 3 == 0 {
            gallery.store.put(&[write]).unwrap();
        }
        assert_eq!(gallery.store.check().unwrap(), vec![]);
    }
}

/// An application's own triggers fire for what the library writes as for what the application writes itself.
#[test]
fn an_applications_own_triggers_fire_for_every_write() {
    let gallery = gallery();
    gallery
        .sql
        .execute_batch(
            "CREATE TABLE seen (what TEXT);
             CREATE TRIGGER own_insert AFTER INSERT ON item BEGIN INSERT INTO seen VALUES ('came ' || NEW.id); END;
             CREATE TRIGGER own_update AFTER UPDATE OF source ON item BEGIN INSERT INTO seen VALUES ('changed ' || NEW.id); END;
             CREATE TRIGGER own_vector AFTER UPDATE OF value ON vector_2 BEGIN INSERT INTO seen VALUES (NEW.provenance); END;",
        )
        .unwrap();
    let seen = || -> Vec<String> {
        let mut select = gallery.sql.prepare("SELECT what FROM seen ORDER BY rowid").unwrap();
        let seen = select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        gallery.sql.execute("DELETE FROM seen", []).unwrap();
        seen
    };
    let put = |id: &str| {
        let write = ItemWrite {
            id: id.to_owned(),
            source: Some(format!("source {}", gallery.store.newest_revision().unwrap())),
            label: None,
            payload: json!({}),
            vectors: vec![],
        };
        gallery.store.put(&[write]).unwrap();
        assert_eq!(gallery.store.check().unwrap(), vec![]);
    };
    put("a");
    put("a");
    assert_eq!(seen(), ["came a", "changed a"]);
    gallery.adapted("b");
    let item = gallery.store.get(&["b"]).unwrap().remove(0).unwrap();
    let write = VectorWrite::native(&item, vec![0.0, 2.0]);
    assert_eq!(gallery.store.write_vectors("new", None, &[write]).unwrap(), [WriteOutcome::Written]);
    assert_eq!(seen(), ["came b", "native"]);
    assert_eq!(gallery.store.check().unwrap(), vec![]);
    // Without the application's triggers the fast way is taken, which needs none.
    gallery
        .sql
        .execute_batch("DROP TRIGGER own_insert; DROP TRIGGER own_update; DROP TRIGGER own_vector")
        .unwrap();
    put("c");
    assert_eq!(seen(), [""; 0]);
    let counts = gallery.store.counts("new").unwrap();
    assert_eq!((counts.items, counts.lacking, counts.native), (3, 2, 1));
}

/// The gallery's triggers fire for what the library writes, too, where an application has triggers of its
/// own.
#[test]
fn an_adapted_vector_clears_no_failure_where_triggers_fire() {
    let gallery = gallery();
    gallery.run("INSERT INTO item (id, source) VALUES ('a', 'a'), ('b', 'b')").unwrap();
    let items: Vec<Item> = gallery.store.get(&["a", "b"]).unwrap().into_iter().flatten().collect();
    let failures: Vec<_> = items.iter().map(|item| (item.key, item.revision, "broken".to_owned())).collect();
    gallery.store.record_failures("new", &failures).unwrap();
    let listed = || gallery.store.failures("new", None, 9).unwrap().len();
    gallery.run("CREATE TRIGGER own AFTER INSERT ON vector_2 BEGIN SELECT 1; END").unwrap();
    let write =
        |write: VectorWrite| gallery.store.write_vectors("new", Some(Epoch::FIRST), &[write]).unwrap();
    // The first vector is new to the item, the second one takes its place.
    for _ in 0..2 {
        let adapted = VectorWrite::adapted(&items[0], vec![0.0, 1.0], 1.0, Priority::ordinary(1.0));
        assert_eq!(write(adapted), [WriteOutcome::Written]);
        assert_eq!((listed(), gallery.store.check().unwrap()), (2, vec![]));
    }
    let plainly = "INSERT INTO vector_2 (item, provenance, value)
        SELECT key, 'adapted', zeroblob(8) FROM item WHERE id = 'b'";
    gallery.run(plainly).unwrap();
    assert_eq!(listed(), 2);
    assert!(gallery.store.scan(&Scan::new("new", Select::Queued, 9)).unwrap().is_empty());
    assert_eq!(write(VectorWrite::native(&items[0], vec![0.0, 1.0])), [WriteOutcome::Written]);
    assert_eq!((listed(), gallery.store.check().unwrap()), (1, vec![]));
}

/// Makes an application's trigger that ignores writes of a table: `when` says which.
fn ignoring(gallery: &Gallery, event: &str, when: &str) {
    let sql = format!("CREATE TRIGGER quiet BEFORE {event} WHEN {when} BEGIN SELECT RAISE(IGNORE); END");
    gallery.sql.execute_batch(&sql).unwrap();
}

/// Checks that the error of a call whose write was ignored names the trigger and its table.
fn names_the_trigger<T: std::fmt::Debug>(call: rehang_core::Result<T>, table: &str) {
    let error = call.unwrap_err();
    let said = error.to_string();
    assert!(error.is_conflict(), "{said}");
    assert!(["\"quiet\"", "RAISE(IGNORE)"].iter().all(|word| said.contains(word)), "{said}");
    assert!(said.contains(&format!("table {table} ")), "{said}");
}

#[test]
fn a_write_that_a_trigger_ignores_fails_and_writes_nothing() {
    // (what is ignored, when, the call, the table that is named)
    type Call = fn(&SqliteStore, &dyn Fn(&str, &str, [f32; 2]) -> ItemWrite) -> rehang_core::Result<()>;
    let write = |id: &str, source: &str, vector: [f32; 2]| {
        ItemWrite::new(
            id,
            Some(source.into()),
            vec![rehang_store::NewVector::from_model("old", vector.to_vec(), Provenance::Old)],
        )
    };
    let new: Call = |store, write| store.put(&[write("c", "c", [9.0, 9.0])]).map(drop);
    let changed: Call = |store, write| store.put(&[write("a", "another", [9.0, 9.0])]).map(drop);
    let deleted: Call = |store, _| store.delete(&["a"]).map(drop);
    let native: Call = |store, _| {
        let item = store.get(&["b"])?.remove(0).unwrap();
        store.write_vectors("new", None, &[VectorWrite::native(&item, vec![0.5, 0.5])]).map(drop)
    };
    let failed: Call = |store, _| {
        let item = store.get(&["b"])?.remove(0).unwrap();
        store.record_failures("new", &[(item.key, item.source_revision, "broken".into())])
    };
    let claimed: Call = |store, _| {
        store.claim("new", rehang_store::Queue::All, "me", 9, std::time::Duration::from_secs(9)).map(drop)
    };
    let planned: Call = |store, _| store.advance("new", Epoch::FIRST, "upgrade", None, "{}").map(drop);
    let documented: Call = |store, _| store.set_document("upgrade", None, "{}").map(drop);
    let switched: Call = |store, _| store.switch_serving("old", "new");
    let forgotten: Call = |store, _| store.forget_natives("new", Epoch::FIRST, 9).map(drop);
    for (event, when, call, table) in [
        ("INSERT ON item", "NEW.id = 'c'", new, "item"),
        ("INSERT ON vector_1", "true", new, "vector_1"),
        ("UPDATE ON item", "NEW.id = 'a'", changed, "item"),
        ("DELETE ON item", "true", deleted, "item"),
        ("INSERT ON vector_2", "NEW.provenance = 'native'", native, "vector_2"),
        ("UPDATE ON vector_2", "NEW.provenance = 'native'", native, "vector_2"),
        ("INSERT ON failure_2", "true", failed, "failure_2"),
        ("INSERT ON claim_2", "true", claimed, "claim_2"),
        ("UPDATE ON space", "true", planned, "space"),
        ("INSERT ON document", "true", documented, "document"),
        ("UPDATE ON gallery", "NEW.name = 'serving'", switched, "gallery"),
        ("UPDATE ON gallery", "NEW.name = 'counter'", new, "gallery"),
        ("DELETE ON vector_2", "true", forgotten, "vector_2"),
    ] {
        let gallery = gallery();
        gallery.store.put(&[write("a", "a", [1.0, 0.0])]).unwrap();
        gallery.adapted("b");
        if event == "INSERT ON vector_2" {
            gallery.sql.execute("DELETE FROM vector_2", []).unwrap();
        }
        if table == "vector_2" && event == "DELETE ON vector_2" {
            native(&gallery.store, &write).unwrap();
        }
        let looks = || -> Vec<_> {
            let items = gallery.store.get(&["a", "b", "c"]).unwrap();
            let keys: Vec<_> = items.iter().flatten().map(|item| item.key).collect();
            let vectors_of = |space: &str| gallery.store.vectors(space, &keys).unwrap();
            vec![format!(
                "{items:?} {:?} {:?} {:?}",
                vectors_of("old"),
                vectors_of("new"),
                gallery.store.serving()
            )]
        };
        let before = looks();
        ignoring(&gallery, event, when);
        names_the_trigger(call(&gallery.store, &write), table);
        assert_eq!(looks(), before, "{event}: nothing is written, least of all beside another item");
        let problems = gallery.store.check().unwrap();
        assert!(problems.iter().any(|problem| problem.what.contains("\"quiet\"")), "{event}: {problems:?}");
        gallery.sql.execute_batch("DROP TRIGGER quiet").unwrap();
        assert_eq!(gallery.store.check().unwrap(), vec![]);
        call(&gallery.store, &write).unwrap();
    }
}

#[test]
fn triggers_of_an_application_that_let_writes_pass_are_in_nobodys_way() {
    let gallery = gallery();
    gallery.sql.execute_batch("CREATE TABLE seen (id TEXT)").unwrap();
    for (name, event) in [("seen", "AFTER INSERT ON item"), ("seen_again", "AFTER UPDATE ON item")] {
        let sql = format!("CREATE TRIGGER {name} {event} BEGIN INSERT INTO seen VALUES (NEW.id); END");
        gallery.sql.execute_batch(&sql).unwrap();
    }
    let write = |source: &str| {
        ItemWrite::new(
            "a",
            Some(source.into()),
            vec![rehang_store::NewVector::from_model("old", vec![1.0, 2.0], Provenance::Old)],
        )
    };
    gallery.store.put(&[write("a")]).unwrap();
    gallery.store.put(&[write("b"), write("c")]).unwrap();
    assert_eq!(gallery.store.delete(&["nobody", "a", "a"]).unwrap(), 1);
    assert_eq!(gallery.store.check().unwrap(), vec![]);
    let seen: i64 = gallery.sql.query_row("SELECT count(*) FROM seen", [], |row| row.get(0)).unwrap();
    assert!(seen >= 3);
}

/// Items that go and come back with their id and source have their native vectors, however they go and come.
#[test]
fn items_that_are_written_anew_have_what_was_paid_for() {
    let gallery = gallery();
    let native = |id: &str| {
        let vector = gallery.vector("new", id)?;
        (vector.provenance == Provenance::Native).then_some(vector.vector)
    };
    for id in ["a", "b"] {
        gallery.adapted(id);
    }
    let item = gallery.store.get(&["a"]).unwrap().remove(0).unwrap();
    gallery.store.write_vectors("new", None, &[VectorWrite::native(&item, vec![0.6, 0.8])]).unwrap();
    for (sql, comes_back) in [
        ("DELETE FROM item; INSERT INTO item (id, source) VALUES ('a', 'a'), ('b', 'b')", true),
        ("INSERT OR REPLACE INTO item (id, source) VALUES ('a', 'a'), ('b', 'b')", true),
        ("DELETE FROM item; INSERT INTO item (id, source) VALUES ('b', 'a'), ('a', 'b')", false),
        ("DELETE FROM item; INSERT INTO item (id, source, label) VALUES ('a', 'a', 'other')", true),
        // A touch of the revision says that there is another content behind the same name.
        ("UPDATE item SET revision = 0 WHERE id = 'a'", false),
        ("DELETE FROM item; INSERT INTO item (id, source) VALUES ('a', 'a')", false),
    ] {
        let before = gallery.revision("a");
        gallery.sql.execute_batch(&format!("BEGIN; {sql}; COMMIT")).unwrap();
        assert_eq!(gallery.store.check().unwrap(), vec![], "after {sql}");
        assert!(gallery.revision("a") > before, "{sql}");
        assert_eq!(native("a"), comes_back.then(|| vec![0.6, 0.8]), "{sql}");
        assert_eq!(native("b"), None, "{sql}");
        let found = gallery.nearest("new", [0.6, 0.8]);
        assert_eq!(found.first().map(|(id, _)| id.as_str()), comes_back.then_some("a"), "{sql}");
    }
    // A connection that writes over what is there meets no conflict of ours.
    gallery.insert("vector_2", "a", [1.0, 0.0]);
    for or in ["IGNORE", "FAIL", "REPLACE", "REPLACE"] {
        let sql = format!("INSERT OR {or} INTO item (id, source) VALUES ('a', 'a')");
        assert_eq!(gallery.sql.execute(&sql, []).is_err(), or == "FAIL", "{sql}");
        assert_eq!((native("a"), gallery.store.check().unwrap()), (Some(vec![1.0, 0.0]), vec![]), "{sql}");
    }
    let left: i64 =
        gallery.sql.query_row("SELECT count(*) FROM paid_2 WHERE kept > 0", [], |row| row.get(0)).unwrap();
    assert!(left > 0);
    // A day later the vector has to be paid for again, and is cleared away.
    gallery.sql.execute("UPDATE paid_2 SET kept = kept - 86401", []).unwrap();
    gallery.sql.execute("DELETE FROM vector_2", []).unwrap();
    gallery.sql.execute_batch("DELETE FROM item; INSERT INTO item (id, source) VALUES ('a', 'a')").unwrap();
    assert_eq!(native("a"), None);
    for _ in 0..left {
        gallery
            .sql
            .execute_batch("DELETE FROM item; INSERT INTO item (id, source) VALUES ('a', 'a')")
            .unwrap();
    }
    let left: i64 = gallery.sql.query_row("SELECT count(*) FROM paid_2", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
    // Where more than a million vectors wait, those that came first go.
    gallery
        .sql
        .execute_batch(
            "INSERT INTO paid_2 SELECT n, -n, 'x' || n, 'x', 4e9, x'00' FROM (SELECT 7 AS n UNION SELECT 8 UNION SELECT 1000007);
             DELETE FROM item WHERE id = 'a'",
        )
        .unwrap();
    let mut left = gallery.sql.prepare("SELECT number FROM paid_2").unwrap();
    let left: Vec<i64> = left.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(left, [8, 1_000_007]);
}
