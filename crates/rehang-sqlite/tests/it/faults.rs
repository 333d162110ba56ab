//! Faults: files that are no galleries, files that cannot be written, and processes that die.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rehang_core::{Distance, ErrorKind, Provenance, Result, Space};
use rehang_sqlite::SqliteStore;
use rehang_store::{Examined, Index, ItemWrite, Ledger, NewVector, Scan, Select, VectorWrite, WriteOutcome};
use rusqlite::Connection;

#[test]
fn what_is_no_gallery_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs_err::write(path("text.db"), "this is a text, and a rather long one so that it is no header").unwrap();
    fs_err::write(path("empty.db"), "").unwrap();
    Connection::open(path("foreign.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let good = path("good.db");
    drop(gallery(&good));
    let bytes = fs_err::read(&good).unwrap();
    fs_err::write(path("truncated.db"), &bytes[..bytes.len() / 3]).unwrap();
    fs_err::write(path("newer.db"), &bytes).unwrap();
    Connection::open(path("newer.db")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    for (name, words) in [
        ("missing.db", "No such file"),
        ("", "not a file"),
        ("text.db", "no gallery"),
        ("empty.db", "no gallery"),
        ("foreign.db", "no gallery"),
        ("newer.db", "newer rehang"),
    ] {
        let error = SqliteStore::open(path(name)).expect_err(name).to_string();
        assert!(error.contains(words) && error.contains(name), "{name}: {error}");
    }
    let truncated = SqliteStore::open(path("truncated.db"))
        .and_then(|store| store.scan(&Scan::new("old", Select::All, 99)));
    assert!(truncated.expect_err("a part is missing").is_corrupt());
    assert!(SqliteStore::open(path("newer.db")).unwrap_err().is_conflict());
    for (name, words) in [
        ("good.db", "already"),
        ("newer.db", "already"),
        ("text.db", "already"),
        ("foreign.db", "already"),
        ("", "folder"),
        ("missing/gallery.db", "no folder"),
    ] {
        let error = SqliteStore::create(path(name)).expect_err(name).to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    assert_eq!(fs_err::read(&good).unwrap(), bytes, "what was refused was not touched");
    for name in ["text.db", "foreign.db", "newer.db"] {
        assert!(SqliteStore::open_or_create(path(name)).is_err(), "{name} is somebody else's");
    }
    assert!(SqliteStore::open_or_create(path("empty.db")).is_ok(), "an empty file may become a gallery");
    assert_eq!(SqliteStore::open_or_create(&good).unwrap().counts("old").unwrap().items, 3);
}

#[test]
fn what_a_process_leaves_that_was_killed_while_it_made_a_gallery_becomes_one() {
    let folder = tempfile::tempdir().unwrap();
    let left = |name: &str| {
        let path = folder.path().join(name);
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "page_size", 8192).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        (path, connection)
    };
    let makers: [fn(PathBuf) -> Result<SqliteStore>; 2] = [SqliteStore::create, SqliteStore::open_or_create];
    for make in makers {
        let (path, connection) = left("killed.db");
        drop(connection);
        assert_eq!(fs_err::metadata(&path).unwrap().len(), 8192, "it is no empty file");
        let error = SqliteStore::open(&path).unwrap_err().to_string();
        assert!(error.contains("no gallery") && error.contains("create"), "{error}");
        let store = make(path.clone()).unwrap();
        assert_eq!(store.check().unwrap(), vec![]);
        drop(store);
        assert_eq!(SqliteStore::open_or_create(&path).unwrap().spaces().unwrap(), vec![]);
        assert!(SqliteStore::create(&path).unwrap_err().is_conflict(), "it is a gallery now");
        fs_err::remove_file(path).unwrap();
    }
    // A file that somebody else has begun stays theirs: it has a mark of their own, or a table that only the
    // log has yet.
    for (name, sql) in [
        ("marked.db", "PRAGMA application_id = 7"),
        ("versioned.db", "PRAGMA user_version = 3"),
        ("theirs.db", "CREATE TABLE t (x)"),
    ] {
        let (path, connection) = left(name);
        connection.execute_batch(sql).unwrap();
        for make in makers {
            assert!(make(path.clone()).is_err(), "{name}");
        }
        let tables: u64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert!(tables <= 1, "{name} was written to");
    }
}

#[test]
fn several_may_make_the_same_gallery_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = folder.path().join(format!("{round}.db"));
        let start = std::sync::Barrier::new(4);
        let make = || {
            start.wait();
            SqliteStore::open_or_create(&path).map(drop)
        };
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            for maker in makers {
                maker.join().unwrap().unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        });
        assert_eq!(SqliteStore::open(&path).unwrap().check().unwrap(), vec![]);
    }
}

#[test]
fn a_read_only_file_is_read_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    drop(gallery(&path));
    let mut permissions = fs_err::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs_err::set_permissions(&path, permissions).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.counts("old").unwrap().items, 3);
    let query = rehang_core::Matrix::new(2, vec![1.0, 0.0]).unwrap();
    assert_eq!(store.search("old", &query, 9, &rehang_store::Filter::default()).unwrap()[0].len(), 3);
    for error in [
        store.put(&[item("x")]).unwrap_err(),
        store.delete(&["a"]).unwrap_err(),
        store.set_document("plan", None, "x").unwrap_err(),
        store.drop_space("new").unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    store.flush().unwrap();
    assert_eq!(store.counts("old").unwrap().items, 3);
}

/// SQLite can make no file beside a gallery in a file system that is mounted read-only.
#[cfg(target_os = "linux")]
#[test]
fn a_file_in_a_read_only_file_system_is_read_and_not_written() {
    const FOLDER: &str = "REHANG_TEST_READ_ONLY_FOLDER";
    if let Some(folder) = std::env::var_os(FOLDER) {
        let path = PathBuf::from(folder).join("gallery? 1%.db");
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(store.counts("old").unwrap().items, 3);
        let query = rehang_core::Matrix::new(2, vec![1.0, 0.0]).unwrap();
        let found = store.search("old", &query, 9, &rehang_store::Filter::default()).unwrap();
        assert_eq!(found[0].len(), 3);
        let error = store.put(&[item("x")]).unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    drop(gallery(&folder.path().join("gallery? 1%.db")));
    let this = std::env::current_exe().unwrap();
    let name = "a_file_in_a_read_only_file_system_is_read_and_not_written";
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" || exit 77; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(folder.path()).arg(this);
    command.args(["--exact", &format!("faults::{name}"), "--nocapture"]).env(FOLDER, folder.path());
    match command.output() {
        Ok(output) if output.status.code() == Some(77) || output.stderr.starts_with(b"unshare:") => {
            eprintln!("skipped: nothing can be mounted here: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => eprintln!("skipped: no unshare here: {error}"),
    }
}

/// `VACUUM INTO` copies no log, and without one a writer that found no room leaves a journal that no reader
/// can take back.
#[test]
fn a_copy_without_a_log_is_given_one() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db");
    let original = folder.path().join("gallery.db");
    drop(gallery(&original));
    let sql = Connection::open(&original).unwrap();
    sql.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let log = || {
        let sql = Connection::open(&copy).unwrap();
        sql.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(log(), "delete");
    let store = SqliteStore::open(&copy).unwrap();
    assert_eq!(log(), "wal");
    // A writer in the middle of its work keeps no reader waiting.
    let writer = Connection::open(&copy).unwrap();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(store.counts("old").unwrap().items, 3);
}

#[test]
fn a_writer_that_never_ends_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    let store = gallery(&path);
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(store.counts("old").unwrap().items, 3, "readers do not wait for a writer");
    let waiting = std::thread::scope(|scope| {
        let writer = scope.spawn(|| store.put(&[item("x")]));
        assert_eq!(store.counts("old").unwrap().items, 3, "nor behind one that waits");
        other.execute_batch("COMMIT").unwrap();
        writer.join().unwrap()
    });
    assert_eq!(waiting.unwrap().len(), 1, "a writer waits for the one before");
}

/// Variable with the path for the child process, which is the same binary. The child writes without end and
/// says what has been acknowledged.
const CHILD: &str = "REHANG_STORE_TEST_WRITES_TO";

#[test]
fn a_child_that_writes_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = SqliteStore::open(&path).unwrap();
    let start = store.counts("old").unwrap().items;
    for at in start.. {
        let items: Vec<ItemWrite> = (0..5).map(|part| item(&format!("{at}-{part}"))).collect();
        store.put(&items).unwrap();
        println!("put {at}");
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        let keys = store.get(&ids).unwrap();
        let writes: Vec<VectorWrite> = keys
            .iter()
            .map(|item| VectorWrite::native(item.as_ref().unwrap(), vec![at as f32, 1.0]))
            .collect();
        assert_eq!(store.write_vectors("new", None, &writes).unwrap(), vec![WriteOutcome::Written; 5]);
        println!("native {at}");
        if at % 3 == 0 {
            assert_eq!(store.delete(&[&format!("{at}-0")]).unwrap(), 1);
            println!("deleted {at}");
        }
        if at % 5 == 0 {
            let queries = rehang_core::Matrix::new(2, vec![0.0, 1.0]).unwrap();
            store.search("new", &queries, 3, &rehang_store::Filter::default()).unwrap();
            store.flush().unwrap();
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    drop(gallery(&path));
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..20_usize {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "faults::a_child_that_writes_until_it_is_killed",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // How many lines are waited for differs from round to round; the kill falls wherever the child is by
        // then.
        let wanted = 1 + round * 7 % 23;
        let mut seen = 0;
        for line in lines {
            let line = line.unwrap();
            // The harness writes the test's name in front of the first line.
            let Some(at) = ["put ", "native ", "deleted "].iter().find_map(|word| line.find(word)) else {
                continue;
            };
            acknowledged.push(line[at..].to_owned());
            seen += 1;
            if seen == wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= wanted, "the child has failed by itself");

        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(store.check().unwrap(), vec![]);
        let there = |id: String| store.get(&[&id]).unwrap().remove(0);
        for line in &acknowledged {
            let (what, at) = line.split_once(' ').unwrap();
            let items: Vec<_> = (1..5).filter_map(|part| there(format!("{at}-{part}"))).collect();
            assert_eq!(items.len(), 4, "{line} was acknowledged");
            let keys: Vec<_> = items.iter().map(|item| item.key).collect();
            let natives = store.vectors("new", &keys).unwrap().into_iter().flatten().count();
            match what {
                "native" => assert_eq!(natives, 4, "{line} was acknowledged"),
                "deleted" => assert!(there(format!("{at}-0")).is_none(), "{line} was acknowledged"),
                _ => assert!(natives == 0 || natives == 4, "half of {line}"),
            }
        }
        // Calls are whole: of each five items either all or (after the deletion of one) four are there.
        let counts = store.counts("new").unwrap();
        assert_eq!(counts.items, counts.native + counts.lacking);
        assert!(counts.lacking <= 3 + 5 * (round as u64 + 1), "at most one call without its vectors a round");
    }
}

fn item(id: &str) -> ItemWrite {
    ItemWrite::new(id, Some(id.into()), vec![NewVector::from_model("old", vec![1.0, 0.0], Provenance::Old)])
}

/// Makes a gallery with three items and two spaces.
fn gallery(path: &std::path::Path) -> SqliteStore {
    let store = SqliteStore::create(path).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 2, Distance::L2, false), Provenance::Native).unwrap();
    store.put(&[item("a"), item("b"), item("c")]).unwrap();
    store
}
