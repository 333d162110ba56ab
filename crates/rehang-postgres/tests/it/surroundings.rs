//! Owners who know nothing of a gallery: names change, rules come, the table goes. And the surroundings of a
//! table: other tables that an expression reads, and publications that carry writes to other servers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use postgres::Client;
use postgres::config::Host;
use rehang_core::{Distance, ErrorKind, Matrix, Provenance, Remedy, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined, Filter, Index, Ledger, Queue, Scan, Select, VectorWrite, WriteOutcome};

use crate::notes::labelled as options;
use crate::server;

fn adopt(address: &str, options: &TableOptions) -> rehang_core::Result<PostgresStore> {
    let store = PostgresStore::adopt(address, options, Some("old"), &|_, _| true)?;
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old)?;
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native)?;
    Ok(store)
}

/// Makes a table with four rows.
fn fresh() -> Option<(String, Client)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (gone int, id bigint PRIMARY KEY, body text, topic text, embedding vector(2));
             ALTER TABLE notes DROP COLUMN gone;
             INSERT INTO notes SELECT n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n",
        )
        .unwrap();
    Some((address, client))
}

fn make_native(store: &PostgresStore) {
    let records = store.scan(&Scan::new("new", Select::All, 100)).unwrap();
    let writes: Vec<VectorWrite> =
        records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
    assert_eq!(store.write_vectors("new", None, &writes).unwrap(), vec![WriteOutcome::Written; writes.len()]);
}

fn refused(store: &PostgresStore) -> rehang_core::Error {
    store.claim("new", Queue::All, "worker", 1, Duration::from_secs(1)).unwrap_err()
}

#[test]
fn a_gallery_follows_the_names_of_its_table_and_columns() {
    let Some((address, mut client)) = fresh() else { return };
    make_native(&adopt(&address, &options()).unwrap());
    client
        .batch_execute(
            "ALTER TABLE notes RENAME id TO number; ALTER TABLE notes RENAME body TO content; ALTER TABLE notes RENAME topic TO label;
             ALTER TABLE notes RENAME embedding TO \"Old vector\"; CREATE SCHEMA archive; ALTER TABLE notes SET SCHEMA archive;
             ALTER TABLE archive.notes RENAME TO papers",
        )
        .unwrap();
    let now = TableOptions {
        table: "archive.papers".into(),
        source: Some("content".into()),
        label: Some("label".into()),
        vector: Some("Old vector".into()),
        ..options()
    };
    let old_names = TableOptions { table: "archive.papers".into(), ..options() };
    for error in [
        // The gallery's own facts can be read, and every call that needs rows is refused.
        refused(&PostgresStore::open(&address, &old_names, Some("old")).unwrap()),
        adopt(&address, &old_names).unwrap_err(),
    ] {
        let sentence = error.to_string();
        assert!(error.is_conflict() && sentence.contains("\"body\" is called \"content\" now"), "{sentence}");
    }
    let error = refused(&PostgresStore::open(&address, &now, Some("old")).unwrap());
    assert_eq!(error.remedy(), Some(&Remedy::AdoptTable), "{error}");
    let other = TableOptions { source: Some("label".into()), ..now.clone() };
    assert!(adopt(&address, &other).unwrap_err().to_string().contains("it was made with"));

    let store = adopt(&address, &now).unwrap();
    assert_eq!(store.counts("new").unwrap().native, 4, "nothing that was paid for is lost");
    client
        .batch_execute(
            "INSERT INTO archive.papers (number, content, \"Old vector\") VALUES (5, 'five', '[5,1]');
             UPDATE archive.papers SET content = 'other' WHERE number = 1; DELETE FROM archive.papers WHERE number = 2",
        )
        .unwrap();
    assert_eq!(store.check().unwrap(), []);
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.items, counts.native), (4, 2));
    let served = |client: &mut Client| -> i64 {
        client.query_one("SELECT count(*) FROM rehang.serving_1 WHERE number > 0", &[]).unwrap().get(0)
    };
    assert_eq!(served(&mut client), 3, "the item with a new source lacks an old vector");
    let found = "SELECT count(*) FROM rehang.search('archive.papers', '[1,1]', 10)";
    assert_eq!(client.query_one(found, &[]).unwrap().get::<_, i64>(0), 3);
    let store = PostgresStore::open(&address, &now, Some("old")).unwrap();
    store.switch_serving("old", "new").unwrap();
    assert_eq!(served(&mut client), 2);
    adopt(&address, &now).unwrap().release(None).unwrap();
}

/// A column that the old space is read by is renamed in the middle of an upgrade, and searches are
/// led back. SQL finds what it found before. The library says what to do until the gallery is
/// adopted by the present names.
#[test]
fn searches_are_led_back_after_a_column_was_renamed() {
    for (rename, now) in [
        (
            "embedding TO \"old \"\"one\"\"\"",
            TableOptions { vector: Some("old \"one\"".into()), ..options() },
        ),
        ("id TO \"Number\"", options()),
    ] {
        let Some((address, mut client)) = fresh() else { return };
        let search = |store: &PostgresStore| {
            store.search("old", &Matrix::new(2, vec![1.0, 1.0]).unwrap(), 10, &Filter::default())
        };
        let by_sql = |client: &mut Client| -> Vec<String> {
            let sql =
                "SELECT id || provenance FROM rehang.search('notes', '[1,1]', 10) ORDER BY distance, id";
            client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
        };
        let before = adopt(&address, &options()).unwrap();
        make_native(&before);
        let (found, sql_found) = (search(&before).unwrap().remove(0), by_sql(&mut client));
        assert_eq!((found.len(), sql_found.len()), (4, 4));
        before.switch_serving("old", "new").unwrap();
        client.batch_execute(&format!("ALTER TABLE notes RENAME {rename}")).unwrap();
        let opened = PostgresStore::open(&address, &options(), Some("old")).unwrap();
        opened.switch_serving("new", "old").unwrap();
        assert_eq!(opened.serving().unwrap().as_deref(), Some("old"));
        assert_eq!(by_sql(&mut client), sql_found, "{rename}");
        for store in [&before, &opened] {
            let error = search(store).unwrap_err();
            let says = error.remedy() == Some(&Remedy::AdoptTable)
                || error.to_string().contains("then adopt it again");
            assert!(error.is_conflict() && says, "{error}");
        }
        let store = adopt(&address, &now).unwrap();
        assert_eq!(search(&store).unwrap().remove(0), found, "{rename}");
        assert_eq!(by_sql(&mut client), sql_found, "{rename}");
        store.switch_serving("old", "new").unwrap();
        assert_eq!(store.check().unwrap(), []);
        if rename.starts_with("embedding") {
            // Nothing reads a column that is gone; the error says which steps are left.
            store.switch_serving("new", "old").unwrap();
            client.batch_execute("ALTER TABLE notes DROP COLUMN \"old \"\"one\"\"\" CASCADE").unwrap();
            let error = client.query("SELECT * FROM rehang.search('notes', '[1,1]', 10)", &[]).unwrap_err();
            let said = error.as_db_error().unwrap();
            assert!(
                said.message().contains("is gone")
                    && said.hint().is_some_and(|hint| hint.contains("switched to another space")),
                "{said:?}"
            );
            let error = search(&store).unwrap_err();
            assert_eq!(error.remedy(), Some(&Remedy::AdoptTable), "{error}");
        }
    }
}

/// Whether the database has nothing of the gallery.
fn is_clean(client: &mut Client) -> bool {
    let sql = "SELECT to_regnamespace('rehang') IS NULL AND NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname ~ 'rehang')";
    client.query_one(sql, &[]).unwrap().get(0)
}

#[test]
fn a_release_needs_nothing_but_our_own_tables() {
    for change in [
        "ALTER TABLE notes RENAME body TO content",
        "ALTER TABLE notes RENAME id TO number",
        "ALTER TABLE notes RENAME TO papers",
        "ALTER TABLE notes RENAME TO papers; CREATE TABLE notes (id int)",
        "CREATE SCHEMA archive; ALTER TABLE notes SET SCHEMA archive",
        "ALTER TABLE notes ENABLE ROW LEVEL SECURITY; ALTER TABLE notes FORCE ROW LEVEL SECURITY",
        "CREATE TABLE child () INHERITS (notes)",
        "ALTER TABLE notes DROP COLUMN topic",
        "ALTER TABLE notes DROP CONSTRAINT notes_pkey",
        "DROP TABLE notes",
        "DROP TABLE notes; CREATE TABLE notes (id int)",
    ] {
        let Some((address, mut client)) = fresh() else { return };
        make_native(&adopt(&address, &options()).unwrap());
        client.batch_execute(change).unwrap();
        PostgresStore::take_out(&address, &options()).unwrap_or_else(|error| panic!("{change}: {error}"));
        assert!(is_clean(&mut client), "{change}");
        let error = PostgresStore::take_out(&address, &options()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{change}: {error}");
    }
}

#[test]
fn a_release_by_the_name_of_now_leaves_other_galleries_alone() {
    let Some((address, mut client)) = fresh() else { return };
    adopt(&address, &options()).unwrap();
    client
        .batch_execute("ALTER TABLE notes RENAME TO papers; CREATE TABLE notes (LIKE papers INCLUDING ALL)")
        .unwrap();
    let store = adopt(&address, &options()).unwrap();
    PostgresStore::take_out(&address, &TableOptions { table: "papers".into(), ..options() }).unwrap();
    client.batch_execute("INSERT INTO notes (id, body) VALUES (1, 'one')").unwrap();
    assert_eq!((store.counts("old").unwrap().items, store.check().unwrap()), (1, vec![]));
    PostgresStore::take_out(&address, &options()).unwrap();
    assert!(is_clean(&mut client));
}

#[test]
fn a_table_that_is_published_is_taken_when_somebody_says_so() {
    for (publication, words) in [
        ("CREATE PUBLICATION everything FOR ALL TABLES", "\"everything\" is FOR ALL TABLES"),
        ("CREATE PUBLICATION one FOR TABLE notes", "\"one\" sends the table"),
    ] {
        let Some((address, mut client)) = fresh() else { return };
        client.batch_execute(publication).unwrap();
        let error = adopt(&address, &options()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(PostgresStore::statements(&address, &options()).unwrap_err().to_string().contains(words));
        assert!(is_clean(&mut client));
        let seen_to = TableOptions { published: true, ..options() };
        let store = adopt(&address, &seen_to).unwrap();
        assert_eq!(store.check().unwrap(), []);
        store.release(None).unwrap();
        // The doctor finds a publication that comes later.
        client.batch_execute("DROP PUBLICATION IF EXISTS everything, one").unwrap();
        let store = adopt(&address, &options()).unwrap();
        assert_eq!(store.check().unwrap(), []);
        client.batch_execute(publication).unwrap();
        let problems = store.check().unwrap();
        assert!(problems.len() == 1 && problems[0].what.contains(words), "{problems:?}");
    }
}

#[test]
fn what_no_trigger_sees_is_neither_source_nor_condition() {
    let Some((address, mut client)) = fresh() else { return };
    client
        .batch_execute(
            "CREATE SCHEMA tools; CREATE TABLE tools.author (id bigint, name text); ALTER TABLE notes ADD published timestamptz;
             CREATE FUNCTION tools.name_of(bigint) RETURNS text LANGUAGE sql STABLE AS 'SELECT name FROM tools.author WHERE id = $1';
             CREATE FUNCTION tools.unmarked(text) RETURNS text LANGUAGE sql AS 'SELECT lower($1)';
             CREATE FUNCTION tools.marked(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)'",
        )
        .unwrap();
    let with = |source: &str, condition: Option<&str>| TableOptions {
        source: Some(source.into()),
        condition: condition.map(str::to_owned),
        ..options()
    };
    for (options, words) in [
        (with("(SELECT name FROM tools.author AS a WHERE a.id = this.id) || ' ' || body", None), "subquery"),
        (with("tools.name_of(id) || body", None), "tools.name_of(bigint) changes by itself"),
        (with("tools.unmarked(body)", None), "tools.unmarked(text) changes by itself"),
        (with("body || random()::text", None), "random() changes by itself"),
        (with("body || current_date::text", None), "CURRENT_DATE"),
        (with("body || current_setting('TimeZone')", None), "current_setting(text) changes by itself"),
        (with("body", Some("published < now()")), "now() changes by itself"),
        (
            with("lower(body)", Some("age(published) > '1 day'")),
            "age(timestamp with time zone) changes by itself",
        ),
        (with("body", Some("EXISTS (SELECT 1 FROM tools.author AS a WHERE a.id = this.id)")), "subquery"),
    ] {
        let errors = [
            PostgresStore::inspect(&address, &options).map(drop),
            PostgresStore::statements(&address, &options).map(drop),
            adopt(&address, &options).map(drop),
        ];
        for error in errors {
            let error = error.expect_err(words);
            let sentence = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{sentence}");
            assert!(sentence.contains(words) && sentence.contains("write what it depends on"), "{sentence}");
        }
        assert!(is_clean(&mut client));
    }
    for options in [
        with("concat_ws(' ', topic, body)", Some("published < '2030-01-01'")),
        with(
            "format('%s %s', topic, tools.marked(body))",
            Some("to_jsonb(this) ? 'body' AND published::date IS NULL"),
        ),
        with("to_char(published, 'YYYY') || body", Some("topic ~ 'top' -- a comment")),
    ] {
        let store = adopt(&address, &options).unwrap();
        assert_eq!(store.check().unwrap(), []);
        store.release(None).unwrap();
    }
    // The doctor finds a function that an earlier version accepted.
    let store = adopt(&address, &with("tools.marked(body)", None)).unwrap();
    client.batch_execute("ALTER FUNCTION tools.marked VOLATILE").unwrap();
    let problems = store.check().unwrap();
    assert!(
        problems.len() == 1 && problems[0].what.contains("tools.marked(text) changes by itself"),
        "{problems:?}"
    );
}

/// Starts a server that can publish, in a folder; `None` where there is none that may be stopped, or
/// no `pg_dump` beside it.
fn publisher(data: &Path) -> Option<server::Server> {
    server::server()?;
    let first = server::Server::start(Some(data)).ok()?;
    server::client(first.address()).batch_execute("ALTER SYSTEM SET wal_level = logical").unwrap();
    let pid = first.pid?.to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    while data.join("postmaster.pid").exists() {}
    let server = server::Server::start(Some(data)).ok()?;
    Path::new(server.programs.as_deref()?).join("pg_dump").exists().then_some(server)
}

/// The steps are in the order that `docs/reference/postgres.md` gives for a new server that is filled
/// by logical replication.
#[test]
fn a_gallery_goes_along_to_a_server_that_is_filled_by_logical_replication() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = publisher(&folder.path().join("data")) else {
        eprintln!("skipped: no server that may be stopped, or no pg_dump");
        return;
    };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2));
             INSERT INTO notes SELECT n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n;
             CREATE PUBLICATION all_of_it FOR ALL TABLES",
        )
        .unwrap();
    let options = TableOptions { published: true, ..options() };
    let store = adopt(&address, &options).unwrap();
    make_native(&store);

    let copy = server.database();
    let script = "PATH=\"$2:$PATH\"; pg_dump --schema-only --no-publications \"$0\" | psql -qX -v ON_ERROR_STOP=1 \"$1\"";
    let programs = server.programs.as_deref().unwrap();
    let restored = Command::new("sh").args(["-c", script, &address, &copy, programs]).output().unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    let mut other = server::client(&copy);
    let triggers = ["rows", "updates", "truncate"].map(|name| format!("TRIGGER \"00_rehang_1_{name}\""));
    for trigger in &triggers {
        other.batch_execute(&format!("ALTER TABLE notes DISABLE {trigger}")).unwrap();
    }
    // A subscription on the same server cannot make its slot itself.
    client.query("SELECT pg_create_logical_replication_slot('upgrade', 'pgoutput')", &[]).unwrap();
    let config: postgres::Config = address.parse().unwrap();
    let host = match &config.get_hosts()[0] {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(folder) => folder.display().to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
    other
        .batch_execute(&format!(
            "CREATE SUBSCRIPTION upgrade CONNECTION 'host={host} port={port} user={user} dbname={database}' PUBLICATION all_of_it
                 WITH (create_slot = false, slot_name = 'upgrade')"
        ))
        .unwrap();
    client
        .batch_execute(
            "INSERT INTO notes VALUES (5, 'five', 'topic', '[5,1]'); DELETE FROM notes WHERE id = 1;
             UPDATE notes SET body = 'other' WHERE id = 2; INSERT INTO notes VALUES (6, 'the last', 'topic', '[6,1]')",
        )
        .unwrap();
    let is_over = "SELECT (SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel)
         AND EXISTS (SELECT 1 FROM notes WHERE id = 6) AND (SELECT count(*) FROM rehang.state_2) = 5";
    let began = rehang_clock::now();
    while !other.query_one(is_over, &[]).unwrap().get::<_, Option<bool>>(0).unwrap_or(false) {
        assert!(began.elapsed().as_secs() < 60, "the subscription is behind");
        rehang_clock::wait(Duration::from_millis(20));
    }
    other.batch_execute("DROP SUBSCRIPTION upgrade").unwrap();
    let newest: i64 = client.query_one("SELECT last_value FROM rehang.revision", &[]).unwrap().get(0);
    other
        .batch_execute(&format!(
            "SELECT setval('rehang.revision', {newest} + 1000);
             SELECT setval(pg_get_serial_sequence('rehang.item_1', 'key'), max(key)) FROM rehang.item_1;
             SELECT setval(pg_get_serial_sequence('rehang.gallery', 'number'), max(number)) FROM rehang.gallery;
             SELECT setval(pg_get_serial_sequence('rehang.space', 'number'), max(number)) FROM rehang.space"
        ))
        .unwrap();
    for trigger in &triggers {
        other.batch_execute(&format!("ALTER TABLE notes ENABLE ALWAYS {trigger}")).unwrap();
    }
    let moved = PostgresStore::open(&copy, &options, Some("old")).unwrap();
    assert_eq!(moved.check().unwrap(), []);
    assert_eq!(moved.counts("new").unwrap(), store.counts("new").unwrap());
    let (here, there) = (moved.get(&["3"]).unwrap(), store.get(&["3"]).unwrap());
    assert_eq!(here, there, "with key and revision");
    other
        .batch_execute(
            "UPDATE notes SET body = 'new' WHERE id = 3; INSERT INTO notes (id, body) VALUES (7, 'x')",
        )
        .unwrap();
    let newer = moved.get(&["3", "7"]).unwrap();
    let (changed, came) = (newer[0].as_ref().unwrap(), newer[1].as_ref().unwrap());
    assert!(changed.revision > newest as u64 && came.key > there[0].as_ref().unwrap().key);
    assert_eq!((moved.check().unwrap(), moved.counts("new").unwrap().native), (vec![], 1));
    moved.create_space(&Space::new("third", 3, Distance::L2, false), Provenance::Native).unwrap();
}
