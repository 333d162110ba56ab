//! An application that knows nothing of a gallery writes its own table by plain SQL, and the
//! gallery says what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;
use rehang_core::{Distance, ErrorKind, Matrix, NORMALISED_TOLERANCE, Provenance, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Epoch, Examined, Filter, Index as _, Item, ItemKey, ItemWrite, Ledger, NewVector, Priority, Queue,
    QueueBand, Revision, Scan, Select, VectorWrite, WriteOutcome,
};
use serde_json::json;

use crate::notes::labelled as options;
use crate::server;

const LEASE: Duration = Duration::from_secs(1000);

/// Table as applications make them, and its gallery: the old vectors are its column, those of the new model
/// are in a table of the gallery.
struct Application {
    address: String,
    client: Client,
    store: PostgresStore,
}

/// Facts of an item that the application's writes may change.
#[derive(Debug, Clone, PartialEq)]
struct Look {
    key: ItemKey,
    revision: Revision,
    source: Option<String>,
    old: Option<Provenance>,
    new: Option<Provenance>,
    is_failed: bool,
    is_leased: bool,
}

type Looks = BTreeMap<String, Look>;

const TABLE: &str =
    "CREATE TABLE notes (id bigint PRIMARY KEY, title text, body text, topic text, embedding vector(2))";

/// Statements that make the table of [`TABLE`] in partitions, so that rows of other keys lie elsewhere: one
/// has its columns in another order, one has partitions of its own.
const PARTITIONED: &str =
    "CREATE TABLE notes (id bigint PRIMARY KEY, title text, body text, topic text, embedding vector(2)) PARTITION BY RANGE (id);
     CREATE TABLE low PARTITION OF notes FOR VALUES FROM (MINVALUE) TO (3);
     CREATE TABLE middle (embedding vector(2), gone int, topic text, id bigint NOT NULL, body text, title text);
     ALTER TABLE middle DROP COLUMN gone; ALTER TABLE notes ATTACH PARTITION middle FOR VALUES FROM (3) TO (50);
     CREATE TABLE high PARTITION OF notes FOR VALUES FROM (50) TO (MAXVALUE) PARTITION BY HASH (id);
     CREATE TABLE even PARTITION OF high FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE odd PARTITION OF high FOR VALUES WITH (MODULUS 2, REMAINDER 1)";

fn adopt(address: &str, options: &TableOptions) -> PostgresStore {
    let store = PostgresStore::adopt(address, options, Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    store
}

impl Application {
    /// Makes the table by SQL, and a gallery of it.
    fn new(server: &server::Server, table: &str, options: &TableOptions) -> Self {
        let address = server.database();
        let mut client = server::client(&address);
        client.batch_execute(table).unwrap();
        let store = adopt(&address, options);
        Self { address, client, store }
    }

    fn sql(&mut self, sql: &str) {
        self.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Returns everything that the gallery says, after comparing it with itself and with the doctor.
    fn looks(&self) -> Looks {
        looks(&self.store, &self.address)
    }

    /// Makes rows 1 to 4 with vectors of the old model, of which nothing was paid for before. In the new
    /// space, 1 and 4 are native, 2 is adapted and leased, 3 has failed.
    fn fill(&mut self) -> Looks {
        self.sql(
            "TRUNCATE notes;
             DO $$ DECLARE kept text; BEGIN
                 FOR kept IN SELECT c.relname FROM pg_class AS c WHERE c.relname ~ '^paid_[0-9]+$' LOOP EXECUTE 'TRUNCATE rehang.' || kept; END LOOP;
             END $$;
             INSERT INTO notes SELECT n, 'title', 'body ' || n, 'topic', format('[%s,0]', n)::vector FROM generate_series(1, 4) AS n",
        );
        self.settle()
    }

    fn settle(&self) -> Looks {
        let looks = self.looks();
        let at = |id: &str| (looks[id].key, looks[id].revision);
        let store = &self.store;
        let native = [write(at("1"), Provenance::Native), write(at("4"), Provenance::Native)];
        assert_eq!(store.write_vectors("new", None, &native).unwrap(), [WriteOutcome::Written; 2]);
        let adapted = [write(at("2"), Provenance::Adapted)];
        assert_eq!(
            store.write_vectors("new", Some(Epoch::FIRST), &adapted).unwrap(),
            [WriteOutcome::Written]
        );
        let (key, revision) = at("3");
        store.record_failures("new", &[(key, revision, "no".into())]).unwrap();
        let claimed = store.claim("new", Queue::All, "worker", 10, LEASE).unwrap();
        assert_eq!(claimed.records.len(), 1);
        let settled = self.looks();
        assert!(settled["2"].is_leased && settled["3"].is_failed && !settled["1"].is_leased);
        settled
    }
}

fn write((key, revision): (ItemKey, Revision), provenance: Provenance) -> VectorWrite {
    let sigma2 = (provenance == Provenance::Adapted).then_some(0.5);
    let vector = vec![1.0, 2.0, 3.0];
    VectorWrite { key, revision, provenance, sigma2, priority: None, squared_error: None, vector }
}

fn looks(store: &PostgresStore, address: &str) -> Looks {
    assert_eq!(store.check().unwrap(), vec![]);
    let mut client = server::client(address);
    let leased: BTreeSet<i64> = {
        let number: i32 =
            client.query_one("SELECT number FROM rehang.space WHERE name = 'new'", &[]).unwrap().get(0);
        let sql = format!("SELECT item FROM rehang.claim_{number}");
        client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let failures = store.failures("new", None, 1_000_000).unwrap();
    let failed: BTreeMap<ItemKey, Revision> =
        failures.iter().map(|failure| (failure.key, failure.revision)).collect();
    let scan =
        |space: &str| store.scan(&Scan::new(space, Select::All, 1_000_000).with_vectors_of(space)).unwrap();
    let (old, new) = (scan("old"), scan("new"));
    assert_eq!(old.len(), new.len());
    let mut found = Looks::new();
    for (old, new) in old.into_iter().zip(new) {
        assert_eq!(old.item, new.item);
        let item = new.item;
        for state in [&old.vector, &new.vector].into_iter().flatten() {
            assert_eq!(state.revision, item.revision, "no vector of another revision");
            assert!(!state.vector.is_empty());
        }
        assert!(
            failed.get(&item.key).is_none_or(|revision| *revision == item.source_revision),
            "no failure of another source"
        );
        let key = i64::try_from(item.key.bits()).unwrap();
        let look = Look {
            key: item.key,
            revision: item.revision,
            source: item.source,
            old: old.state.map(|state| state.provenance),
            new: new.state.map(|state| state.provenance),
            is_failed: failed.contains_key(&item.key),
            is_leased: leased.contains(&key),
        };
        assert!(found.insert(item.id, look).is_none(), "an id is there once");
    }
    let keys: BTreeSet<i64> = found.values().map(|look| i64::try_from(look.key.bits()).unwrap()).collect();
    assert!(leased.is_subset(&keys), "a lease of an item that is gone");
    for space in ["old", "new"] {
        let counts = store.counts(space).unwrap();
        assert_eq!(counts.items as usize, found.len());
        let with_vector =
            found.values().filter(|look| if space == "old" { look.old } else { look.new }.is_some()).count();
        assert_eq!((counts.items - counts.lacking) as usize, with_vector);
        let width = if space == "old" { 2 } else { 3 };
        let query = Matrix::new(width, vec![0.0; width]).unwrap();
        let hits = store.search(space, &query, 1_000_000, &Filter::default()).unwrap().remove(0);
        assert_eq!(hits.len(), with_vector, "a search finds every vector");
        assert!(hits.iter().all(|hit| found[&hit.id].revision == hit.revision));
    }
    found
}

/// Effect of a write of the application on an item.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// The item has another revision; the flag says whether the column's vector is of this content.
    Changed(bool),
    /// The item has another revision, with its source as it was, and all that was made from the source; the
    /// flag says whether the column's vector is of this content.
    Kept(bool),
    /// The item had another id before.
    Renamed(&'static str),
    Gone,
    /// The item was not there before, or it is another one by the same id.
    New(bool),
}

/// Compares what is there now with what was there before. Items whose ids are not named
/// have to be as they were.
fn expect(before: &Looks, after: &Looks, fates: &[(&str, Fate)], what: &str) {
    let named: BTreeMap<&str, Fate> = fates.iter().copied().collect();
    for (id, was) in before {
        if !named.contains_key(id.as_str()) {
            assert_eq!(after.get(id), Some(was), "{what}: item {id} is as it was");
        }
    }
    for id in after.keys() {
        assert!(
            before.contains_key(id) || named.contains_key(id.as_str()),
            "{what}: where does {id} come from?"
        );
    }
    let keys: BTreeSet<ItemKey> = before.values().map(|look| look.key).collect();
    let revisions: BTreeSet<Revision> = before.values().map(|look| look.revision).collect();
    for (id, fate) in named {
        let now = after.get(id);
        if let Fate::Renamed(was) = fate {
            assert_eq!(now, before.get(was), "{what}: item {id} is what {was} was");
            continue;
        }
        let (Fate::Changed(has_old) | Fate::Kept(has_old) | Fate::New(has_old)) = fate else {
            assert_eq!(now, None, "{what}: item {id} is gone");
            continue;
        };
        let now = now.unwrap_or_else(|| panic!("{what}: item {id} is there"));
        match fate {
            Fate::Changed(_) | Fate::Kept(_) => {
                assert_eq!(now.key, before[id].key, "{what}: item {id} is the same one");
            }
            _ => assert!(!keys.contains(&now.key), "{what}: item {id} is another one"),
        }
        assert!(!revisions.contains(&now.revision), "{what}: item {id} has a revision that nobody had");
        assert_eq!(now.old, has_old.then_some(Provenance::Old), "{what}: item {id} in the old space");
        if let Fate::Kept(_) = fate {
            let was = &before[id];
            let native = was.new.filter(|provenance| *provenance == Provenance::Native);
            assert_eq!(now.new, native, "{what}: item {id} in the new space");
            let of_source = (now.is_failed, now.is_leased);
            assert_eq!(of_source, (was.is_failed, was.is_leased), "{what}: failure and lease of item {id}");
            continue;
        }
        assert_eq!(now.new, None, "{what}: item {id} in the new space");
        assert!(!now.is_failed && !now.is_leased, "{what}: failure and lease of item {id} are gone");
    }
}

/// Write of the application, and what becomes of the items that it touches.
struct Step {
    name: &'static str,
    run: Run,
    fates: &'static [(&'static str, Fate)],
}

enum Run {
    Sql(&'static str),
    Copy(&'static str, &'static str),
}

impl Run {
    fn run(&self, client: &mut Client) -> Result<(), postgres::Error> {
        match self {
            Self::Sql(sql) => client.batch_execute(sql),
            Self::Copy(sql, rows) => {
                let mut writer = client.copy_in(*sql)?;
                writer.write_all(rows.as_bytes()).unwrap();
                writer.finish().map(drop)
            }
        }
    }
}

const fn step(name: &'static str, sql: &'static str, fates: &'static [(&'static str, Fate)]) -> Step {
    Step { name, run: Run::Sql(sql), fates }
}

use Fate::{Changed, Gone, Kept, New, Renamed};

const STEPS: &[Step] = &[
    step(
        "insert",
        "INSERT INTO notes (id, body, embedding) VALUES (5, 'five', '[5,0]'), (6, 'six', NULL), (7, NULL, '[7,0]'), (-8, NULL, NULL)",
        &[("5", New(true)), ("6", New(false)), ("7", New(true)), ("-8", New(false))],
    ),
    step(
        "the source changes",
        "UPDATE notes SET body = body || '!' WHERE id < 4",
        &[("1", Changed(false)), ("2", Changed(false)), ("3", Changed(false))],
    ),
    step(
        "the vector changes",
        "UPDATE notes SET embedding = '[0,9]' WHERE id < 4",
        &[("1", Kept(true)), ("2", Kept(true)), ("3", Kept(true))],
    ),
    step(
        "key and vector change",
        "UPDATE notes SET id = id, embedding = '[0,9]' WHERE id < 4; UPDATE notes SET id = 9 WHERE id = 3; UPDATE notes SET id = 3 WHERE id = 9",
        &[("1", Kept(true)), ("2", Kept(true)), ("3", Kept(true))],
    ),
    step(
        "key and source change",
        "UPDATE notes SET id = 9, body = 'x' WHERE id = 1; UPDATE notes SET id = 1 WHERE id = 9",
        &[("1", Changed(false))],
    ),
    step(
        "source and vector change",
        "UPDATE notes SET body = 'other', embedding = '[0,9]' WHERE id < 4",
        &[("1", Changed(true)), ("2", Changed(true)), ("3", Changed(true))],
    ),
    step("other columns change", "UPDATE notes SET title = 'new', topic = 'new'", &[]),
    step("nothing changes", "UPDATE notes SET id = id, body = body, embedding = embedding, title = title", &[]),
    step(
        "source and other columns change",
        "UPDATE notes SET title = 'new', body = 'new' WHERE id = 2",
        &[("2", Changed(false))],
    ),
    step(
        "the vector goes",
        "UPDATE notes SET embedding = NULL WHERE id < 4",
        &[("1", Kept(false)), ("2", Kept(false)), ("3", Kept(false))],
    ),
    step(
        "the vector goes and comes back",
        "UPDATE notes SET embedding = NULL WHERE id = 2; UPDATE notes SET embedding = '[2,0]' WHERE id = 2",
        &[("2", Kept(true))],
    ),
    step(
        "the source changes, then its vector comes",
        "UPDATE notes SET body = 'x' WHERE id = 1; UPDATE notes SET embedding = '[3,3]' WHERE id = 1",
        &[("1", Changed(true))],
    ),
    step("the source goes", "UPDATE notes SET body = NULL WHERE id = 3", &[("3", Changed(false))]),
    step("delete", "DELETE FROM notes WHERE id < 4", &[("1", Gone), ("2", Gone), ("3", Gone)]),
    step(
        "delete and insert",
        "DELETE FROM notes WHERE id < 4; INSERT INTO notes (id, body, embedding) SELECT n, 'again', '[1,1]' FROM generate_series(1, 3) AS n",
        &[("1", New(true)), ("2", New(true)), ("3", New(true))],
    ),
    step("insert and delete", "INSERT INTO notes (id) VALUES (5); DELETE FROM notes WHERE id = 5", &[]),
    step(
        "the key changes",
        "UPDATE notes SET id = id + 100 WHERE id < 4",
        &[("1", Gone), ("2", Gone), ("3", Gone), ("101", Renamed("1")), ("102", Renamed("2")), ("103", Renamed("3"))],
    ),
    step(
        "two keys change places",
        "UPDATE notes SET id = 0 WHERE id = 1; UPDATE notes SET id = 1 WHERE id = 2; UPDATE notes SET id = 2 WHERE id = 0",
        &[("1", Renamed("2")), ("2", Renamed("1"))],
    ),
    step(
        "keys move up, the last one first",
        "UPDATE notes SET id = 5 WHERE id = 4; UPDATE notes SET id = 4 WHERE id = 3",
        &[("3", Gone), ("4", Renamed("3")), ("5", Renamed("4"))],
    ),
    step(
        "insert on conflict do update",
        "INSERT INTO notes (id, body, embedding) VALUES (1, 'upsert', '[8,8]'), (5, 'upsert', '[8,8]')
         ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body",
        &[("1", Changed(false)), ("5", New(true))],
    ),
    step(
        "insert on conflict do update of all",
        "INSERT INTO notes (id, body, embedding) VALUES (2, 'upsert', '[8,8]'), (3, 'upsert', NULL)
         ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body, embedding = EXCLUDED.embedding",
        &[("2", Changed(true)), ("3", Changed(false))],
    ),
    step(
        "insert on conflict do nothing",
        "INSERT INTO notes (id, body) VALUES (1, 'upsert'), (5, 'five') ON CONFLICT DO NOTHING",
        &[("5", New(false))],
    ),
    step(
        "update from another query",
        "UPDATE notes SET body = o.body FROM notes AS o WHERE o.id = notes.id + 1",
        &[("1", Changed(false)), ("2", Changed(false)), ("3", Changed(false))],
    ),
    step(
        "a row moves in one statement",
        "WITH gone AS (DELETE FROM notes WHERE id = 1 RETURNING *) INSERT INTO notes (id, body, embedding) SELECT 51, body, embedding FROM gone",
        &[("1", Gone), ("51", New(true))],
    ),
    step("truncate", "TRUNCATE notes", &[("1", Gone), ("2", Gone), ("3", Gone), ("4", Gone)]),
    step(
        "truncate and insert",
        "TRUNCATE notes; INSERT INTO notes (id, body, embedding) VALUES (1, 'another', '[1,0]')",
        &[("1", New(true)), ("2", Gone), ("3", Gone), ("4", Gone)],
    ),
    step(
        "savepoints",
        "SAVEPOINT a; UPDATE notes SET body = 'a' WHERE id = 1; SAVEPOINT b; DELETE FROM notes WHERE id = 2; TRUNCATE notes;
         ROLLBACK TO b; UPDATE notes SET embedding = '[4,4]' WHERE id = 3; RELEASE a",
        &[("1", Changed(false)), ("3", Kept(true))],
    ),
    Step {
        name: "copy",
        run: Run::Copy("COPY notes (id, body, embedding) FROM STDIN", "5\tfive\t[5,0]\n6\tsix\t\\N\n7\t\\N\t[1,1]\n"),
        fates: &[("5", New(true)), ("6", New(false)), ("7", New(true))],
    },
];

/// Names a role of the application. Roles belong to the whole server, so the name contains the database's.
fn role(address: &str) -> String {
    format!("application_{}", address.rsplit("test_").next().unwrap().split('?').next().unwrap())
}

/// Goes through every step: undone by a rollback, undone by a savepoint, and then done.
fn go_through_the_steps(table: &str, session: &str, begin: &str) {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, table, &options());
    let role = role(&application.address);
    application.sql(&format!(
        "CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON notes TO {role}; GRANT USAGE ON SCHEMA public TO {role}"
    ));
    let mut client = server::client(&application.address);
    client.batch_execute(&session.replace("$role", &role)).unwrap();
    for step in STEPS {
        let before = application.fill();
        let what = |way: &str| format!("{} ({way}, {session}{begin})", step.name);
        let ready = |done: Result<(), postgres::Error>| {
            done.unwrap_or_else(|error| panic!("{}: {error:?}", what("run")));
        };
        ready(client.batch_execute(begin));
        ready(step.run.run(&mut client));
        ready(client.batch_execute("ROLLBACK"));
        expect(&before, &application.looks(), &[], &what("rollback"));
        ready(client.batch_execute(begin));
        ready(client.batch_execute("SAVEPOINT here"));
        ready(step.run.run(&mut client));
        ready(client.batch_execute("ROLLBACK TO here; COMMIT"));
        expect(&before, &application.looks(), &[], &what("savepoint"));
        ready(client.batch_execute(begin));
        ready(step.run.run(&mut client));
        ready(client.batch_execute("COMMIT"));
        // A row that moves with another source is another item: nothing of it stays.
        let is_another = table == PARTITIONED && step.name == "key and source change";
        let fates: &[(&str, Fate)] = if is_another { &[("1", New(false))] } else { step.fates };
        expect(&before, &application.looks(), fates, &what("commit"));
    }
    drop(client);
    application.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn writes_at_read_committed() {
    go_through_the_steps(TABLE, "", "BEGIN");
}

#[test]
fn writes_at_repeatable_read() {
    go_through_the_steps(TABLE, "", "BEGIN ISOLATION LEVEL REPEATABLE READ");
}

#[test]
fn writes_at_serializable() {
    go_through_the_steps(TABLE, "", "BEGIN ISOLATION LEVEL SERIALIZABLE");
}

#[test]
fn writes_of_a_session_that_replicates() {
    go_through_the_steps(TABLE, "SET session_replication_role = replica;", "BEGIN");
}

#[test]
fn writes_of_a_role_without_rights_on_our_schema() {
    go_through_the_steps(TABLE, "SET ROLE $role;", "BEGIN");
}

#[test]
fn writes_at_partitions() {
    go_through_the_steps(PARTITIONED, "", "BEGIN");
}

#[test]
fn writes_at_partitions_at_repeatable_read() {
    go_through_the_steps(PARTITIONED, "", "BEGIN ISOLATION LEVEL REPEATABLE READ");
}

#[test]
fn writes_at_partitions_of_a_role_without_rights_on_our_schema() {
    go_through_the_steps(
        PARTITIONED,
        "SET ROLE $role; SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'; SET enable_partition_pruning = off;",
        "BEGIN",
    );
}

#[test]
fn writes_of_a_session_that_sees_no_schema() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    let before = application.fill();
    let mut client = server::client(&application.address);
    client
        .batch_execute(
            "CREATE SCHEMA hostile; CREATE TABLE hostile.item_1 (x int); CREATE FUNCTION hostile.nextval(text) RETURNS bigint
             LANGUAGE sql AS 'SELECT 0::bigint'; SET search_path = hostile; UPDATE public.notes SET body = 'x' WHERE id = 1;
             SET search_path = ''; DELETE FROM public.notes WHERE id = 2",
        )
        .unwrap();
    expect(&before, &application.looks(), &[("1", Changed(false)), ("2", Gone)], "another path");
}

/// Runs an application whose snapshot is from before a write of the gallery. It may be asked to begin again,
/// and nothing is lost or left behind.
fn with_an_older_snapshot(
    isolation: &str,
    ours: &dyn Fn(&Application, &Looks),
    theirs: &str,
    fates: &[(&str, Fate)],
) {
    for table in [TABLE, PARTITIONED] {
        with_an_older_snapshot_of(table, isolation, ours, theirs, fates);
    }
}

fn with_an_older_snapshot_of(
    table: &str,
    isolation: &str,
    ours: &dyn Fn(&Application, &Looks),
    theirs: &str,
    fates: &[(&str, Fate)],
) {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, table, &options());
    application.fill();
    Ledger::release(&application.store, "new", "worker", None).unwrap();
    let before = application.looks();
    let mut client = server::client(&application.address);
    let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM pg_class");
    client.batch_execute(&begin).unwrap();
    ours(&application, &before);
    let middle = application.looks();
    match client.batch_execute(theirs).and_then(|()| client.batch_execute("COMMIT")) {
        Ok(()) => {}
        Err(error) => {
            // At these levels the server may ask an application to begin again, which the
            // application has to expect anyway.
            assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
            client.batch_execute("ROLLBACK").unwrap();
            assert_eq!(application.looks(), middle, "what was rolled back has changed nothing");
            client.batch_execute(&format!("{begin}; {theirs}; COMMIT")).unwrap();
        }
    }
    expect(&middle, &application.looks(), fates, isolation);
}

fn write_native(application: &Application, looks: &Looks, id: &str) {
    let look = &looks[id];
    let item = application.store.get(&[id]).unwrap().remove(0).unwrap();
    assert_eq!((item.key, item.revision), (look.key, look.revision));
    let written =
        application.store.write_vectors("new", None, &[VectorWrite::native(&item, vec![1.0, 2.0, 3.0])]);
    assert_eq!(written.unwrap(), [WriteOutcome::Written]);
}

#[test]
fn snapshots_from_before_a_vector_was_written() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let ours = |application: &Application, looks: &Looks| write_native(application, looks, "2");
        with_an_older_snapshot(
            isolation,
            &ours,
            "UPDATE notes SET body = 'x' WHERE id = 2",
            &[("2", Changed(false))],
        );
        with_an_older_snapshot(isolation, &ours, "DELETE FROM notes WHERE id = 2", &[("2", Gone)]);
        with_an_older_snapshot(isolation, &ours, "UPDATE notes SET title = 'x'", &[]);
        with_an_older_snapshot(isolation, &ours, "INSERT INTO notes (id) VALUES (9)", &[("9", New(false))]);
    }
}

#[test]
fn snapshots_from_before_a_failure_was_recorded() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let ours = |application: &Application, looks: &Looks| {
            let look = &looks["2"];
            application.store.record_failures("new", &[(look.key, look.revision, "no".into())]).unwrap();
        };
        with_an_older_snapshot(
            isolation,
            &ours,
            "UPDATE notes SET body = 'x' WHERE id = 2",
            &[("2", Changed(false))],
        );
        with_an_older_snapshot(isolation, &ours, "DELETE FROM notes WHERE id = 2", &[("2", Gone)]);
    }
}

/// An encoder's reason may hold a letter that no text of the server can.
#[test]
fn a_reason_with_a_nul_is_kept_without_it() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    let looks = application.fill();
    let (key, revision) = (looks["2"].key, looks["2"].revision);
    application.store.record_failures("new", &[(key, revision, "no\0such".into())]).unwrap();
    let failures = application.store.failures("new", None, 10).unwrap();
    let of_it = failures.iter().find(|failure| failure.key == key).unwrap();
    assert_eq!(of_it.reason, "no\u{fffd}such");
}

fn claim_all(application: &Application, _: &Looks) {
    application.store.claim("new", Queue::All, "another", 10, LEASE).unwrap();
}

#[test]
fn snapshots_from_before_an_item_was_claimed() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        // Only time ends a lease that the application's snapshot does not see. Whether a write is right
        // never depends on the lease.
        let ours = |application: &Application, looks: &Looks| {
            claim_all(application, looks);
            Ledger::release(&application.store, "new", "another", None).unwrap();
        };
        with_an_older_snapshot(
            isolation,
            &ours,
            "UPDATE notes SET body = 'x' WHERE id = 2",
            &[("2", Changed(false))],
        );
        with_an_older_snapshot(isolation, &ours, "DELETE FROM notes WHERE id = 2", &[("2", Gone)]);
    }
}

/// A claim whose items are deleted after it has read the queue hands out those behind them: an empty one ends
/// a run.
#[test]
fn a_claim_passes_items_that_are_deleted_meanwhile() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.sql("INSERT INTO notes (id, body) SELECT n, 'body ' || n FROM generate_series(1, 4) AS n");
    let mut client = server::client(&application.address);
    // The claim has read the queue where it waits for this lock.
    client.batch_execute("BEGIN; LOCK TABLE rehang.item_1 IN ACCESS EXCLUSIVE MODE").unwrap();
    let store = application.store.clone();
    let claim = std::thread::spawn(move || store.claim("new", Queue::All, "worker", 2, LEASE));
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'rehang.item_1'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while application.client.query_one(waiting, &[]).unwrap().get::<_, i64>(0) == 0 {
        rehang_clock::wait(Duration::from_millis(5));
    }
    client.batch_execute("DELETE FROM notes WHERE id < 3; COMMIT").unwrap();
    let claimed = claim.join().unwrap().unwrap();
    let ids: Vec<&str> = claimed.records.iter().map(|record| record.item.id.as_str()).collect();
    assert_eq!(ids, ["3", "4"]);
}

#[test]
fn snapshots_from_before_a_space_was_made() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let ours = |application: &Application, _: &Looks| {
            let third = Space::new("third", 2, Distance::L2, false);
            application.store.create_space(&third, Provenance::Native).unwrap();
        };
        with_an_older_snapshot(
            isolation,
            &ours,
            "UPDATE notes SET body = 'x' WHERE id = 1",
            &[("1", Changed(false))],
        );
        with_an_older_snapshot(isolation, &ours, "DELETE FROM notes WHERE id = 1", &[("1", Gone)]);
    }
}

#[test]
fn snapshots_from_before_the_adoption() {
    let Some(server) = server::server() else { return };
    for (table, (isolation, theirs, left)) in [TABLE, PARTITIONED].into_iter().flat_map(|table| {
        [
            ("REPEATABLE READ", "DELETE FROM notes WHERE id = 1", 1),
            ("SERIALIZABLE", "DELETE FROM notes WHERE id = 1", 1),
            ("REPEATABLE READ", "UPDATE notes SET body = 'x' WHERE id = 1", 2),
            ("REPEATABLE READ", "UPDATE notes SET id = 3 WHERE id = 1", 2),
        ]
        .map(|case| (table, case))
    }) {
        let address = server.database();
        let mut client = server::client(&address);
        client
            .batch_execute(&format!("{table}; INSERT INTO notes (id, body) VALUES (1, 'one'), (2, 'two')"))
            .unwrap();
        let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM pg_class");
        client.batch_execute(&begin).unwrap();
        let store = adopt(&address, &options());
        if let Err(error) = client.batch_execute(&format!("{theirs}; COMMIT")) {
            assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
            client.batch_execute(&format!("ROLLBACK; {begin}; {theirs}; COMMIT")).unwrap();
        }
        assert_eq!(looks(&store, &address).len(), left);
    }
}

/// Runs a worker beside a transaction that has changed an item and is open.
fn with_an_open_transaction(change: &str, fates: &[(&str, Fate)]) {
    let Some(server) = server::server() else { return };
    for (table, end) in
        [(TABLE, "COMMIT"), (TABLE, "ROLLBACK"), (PARTITIONED, "COMMIT"), (PARTITIONED, "ROLLBACK")]
    {
        for is_leased in [true, false] {
            let mut application = Application::new(server, table, &options());
            application.fill();
            if is_leased {
                // A lease that has run out is there and in nobody's way.
                let number: i32 = application
                    .client
                    .query_one("SELECT number FROM rehang.space WHERE name = 'new'", &[])
                    .unwrap()
                    .get(0);
                application.sql(&format!("UPDATE rehang.claim_{number} SET until = now() - interval '1 s'"));
            } else {
                Ledger::release(&application.store, "new", "worker", None).unwrap();
            }
            let before = application.looks();
            let mut client = server::client(&application.address);
            client.batch_execute(&format!("BEGIN; {change}")).unwrap();
            // None of these calls waits for anybody: a wait would end with an error after half a minute.
            let store = &application.store;
            let at = |id: &str| (before[id].key, before[id].revision);
            let writes: Vec<VectorWrite> = ["2", "3"].map(|id| write(at(id), Provenance::Adapted)).into();
            let outcomes = store.write_vectors("new", Some(Epoch::FIRST), &writes).unwrap();
            assert_eq!(outcomes[0], WriteOutcome::Changed, "{change}");
            let priorities: Vec<_> =
                ["2", "3"].map(|id| (at(id).0, at(id).1, Priority::new(QueueBand::Sample, 1.0))).into();
            store.set_priorities("new", Epoch::FIRST, &priorities).unwrap();
            let failures: Vec<_> = ["2", "3"].map(|id| (at(id).0, at(id).1, "again".to_owned())).into();
            store.record_failures("new", &failures).unwrap();
            store.clear_failures("new").unwrap();
            let claimed = store.claim("new", Queue::All, "another", 10, LEASE).unwrap();
            assert!(claimed.records.iter().any(|record| record.item.id == "3"), "{change}: {claimed:?}");
            store.renew("new", "another", LEASE).unwrap();
            store.renew("new", "worker", LEASE).unwrap();
            store.forget_natives("new", Epoch::FIRST, 1).unwrap();
            store.at_work("new").unwrap();
            Ledger::release(store, "new", "worker", None).unwrap();
            Ledger::release(store, "new", "another", None).unwrap();
            let after_ours = application.looks();
            client.batch_execute(end).unwrap();
            let after = application.looks();
            if end == "COMMIT" {
                expect(&after_ours, &after, fates, change);
            } else {
                assert_eq!(after, after_ours, "{change} rolled back");
                assert_eq!(after["2"].new, Some(Provenance::Adapted), "{change} rolled back");
                assert!(!after["2"].is_failed);
            }
            // Every item that waits is handed out, in the end.
            Ledger::release(&application.store, "new", "worker", None).unwrap();
            let waiting = after
                .values()
                .filter(|look| look.source.is_some() && look.new != Some(Provenance::Native))
                .count();
            let claimed = application.store.claim("new", Queue::All, "worker", 10, LEASE).unwrap();
            assert_eq!(claimed.records.len(), waiting, "{change} {end}");
        }
    }
}

#[test]
fn an_open_transaction_that_has_changed_a_source_is_in_nobodys_way() {
    with_an_open_transaction("UPDATE notes SET body = 'x' WHERE id = 2", &[("2", Changed(false))]);
}

#[test]
fn an_open_transaction_that_has_changed_a_vector_is_in_nobodys_way() {
    with_an_open_transaction("UPDATE notes SET embedding = '[7,7]' WHERE id = 2", &[("2", Kept(true))]);
}

#[test]
fn an_open_transaction_that_has_deleted_an_item_is_in_nobodys_way() {
    with_an_open_transaction("DELETE FROM notes WHERE id = 2", &[("2", Gone)]);
}

#[test]
fn an_open_transaction_that_has_put_another_item_in_its_place_is_in_nobodys_way() {
    with_an_open_transaction(
        "DELETE FROM notes WHERE id = 2; INSERT INTO notes (id, body) VALUES (2, 'x')",
        &[("2", New(false))],
    );
}

#[test]
fn vectors_do_not_follow_a_row_whose_source_has_changed_since() {
    for table in [TABLE, PARTITIONED] {
        expect_no_old_vectors(table);
    }
}

fn expect_no_old_vectors(table: &str) {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, table, &options());
    for (name, id, sql) in [
        (
            "its key changes",
            "9",
            "UPDATE notes SET body = 'x' WHERE id = 2; UPDATE notes SET id = 9 WHERE id = 2",
        ),
        ("its key changes at once", "9", "UPDATE notes SET body = 'x', id = 9 WHERE id = 2"),
        (
            "another column changes",
            "2",
            "UPDATE notes SET body = 'x' WHERE id = 2; UPDATE notes SET title = 'x' WHERE id = 2",
        ),
        (
            "the source changes again",
            "2",
            "UPDATE notes SET body = 'x' WHERE id = 2; UPDATE notes SET body = 'y' WHERE id = 2",
        ),
    ] {
        application.fill();
        application.sql(sql);
        assert_eq!(
            application.looks()[id].old,
            None,
            "{name}: the vector is still that of the source before"
        );
    }
    // A vector that comes with the key is of this content.
    application.fill();
    application.sql("UPDATE notes SET body = 'x', id = 9, embedding = '[5,5]' WHERE id = 2");
    assert_eq!(application.looks()["9"].old, Some(Provenance::Old));
}

#[test]
fn vectors_do_not_follow_a_row_that_becomes_an_item_with_another_source() {
    let Some(server) = server::server() else { return };
    let options = TableOptions { condition: Some("topic = 'in'".into()), ..options() };
    let mut application = Application::new(server, TABLE, &options);
    application.sql("INSERT INTO notes VALUES (1, '', 'one', 'out', '[1,1]')");
    application.sql("UPDATE notes SET topic = 'in', body = 'other' WHERE id = 1");
    assert_eq!(application.looks()["1"].old, None);
}

#[test]
fn triggers_of_the_application_that_write_the_row_again_after_ours() {
    write_the_row_again("z_last");
}

/// Triggers fire in the order of their names: the gallery's trigger sees first what an earlier trigger has
/// written, and afterwards the write that fired that trigger.
#[test]
fn triggers_of_the_application_that_write_the_row_again_before_ours() {
    write_the_row_again("a_first");
}

fn write_the_row_again(name: &str) {
    let Some(server) = server::server() else { return };
    {
        let mut application = Application::new(server, TABLE, &options());
        application.sql(&format!(
            "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.title = 'vector' THEN UPDATE notes SET embedding = '[9,9]', title = '' WHERE id = NEW.id; END IF;
                 IF NEW.title = 'null' THEN UPDATE notes SET embedding = NULL, title = '' WHERE id = NEW.id; END IF;
                 IF NEW.title = 'source' THEN UPDATE notes SET body = NULL, title = '' WHERE id = NEW.id; END IF;
                 IF NEW.title = 'delete' THEN DELETE FROM notes WHERE id = NEW.id; END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER {name} AFTER INSERT OR UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION again()"
        ));
        application.fill();
        application.sql("INSERT INTO notes (id, title, body) VALUES (11, 'vector', 'b')");
        application.sql("INSERT INTO notes (id, title, body, embedding) VALUES (12, 'null', 'b', '[1,1]')");
        application.sql("INSERT INTO notes (id, title, body) VALUES (13, 'source', 'b')");
        application.sql("INSERT INTO notes (id, title, body) VALUES (14, 'delete', 'b')");
        application.sql("UPDATE notes SET title = 'null', embedding = '[4,4]' WHERE id = 1");
        application.sql("UPDATE notes SET title = 'delete', body = 'x' WHERE id = 2");
        let looks = application.looks();
        assert_eq!(looks["11"].old, Some(Provenance::Old), "{name}");
        assert_eq!(looks["12"].old, None, "{name}");
        assert_eq!(
            (&looks["13"].source, application.store.count_without_source().unwrap()),
            (&None, 1),
            "{name}"
        );
        assert!(!looks.contains_key("14") && !looks.contains_key("2"), "{name}");
        assert_eq!(looks["1"].old, None, "{name}");
    }
}

#[test]
fn triggers_of_the_application_that_change_the_row_before() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.sql(
        "CREATE FUNCTION trimmed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             NEW.body := trim(NEW.body); IF NEW.body = '' THEN RETURN NULL; END IF; RETURN NEW;
         END $$;
         CREATE TRIGGER trimmed BEFORE INSERT OR UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION trimmed()",
    );
    let before = application.fill();
    application
        .sql("UPDATE notes SET body = body || '  ' WHERE id = 1; UPDATE notes SET body = '' WHERE id = 2");
    application
        .sql("UPDATE notes SET body = ' x ' WHERE id = 3; INSERT INTO notes (id, body) VALUES (8, ' ')");
    expect(&before, &application.looks(), &[("3", Changed(false))], "a trigger before");
}

/// Form of a table: it is adopted with a row in it, and gets and loses others.
struct Form<'a> {
    table: &'a str,
    options: TableOptions,
    /// A row that is there before, with its id.
    first: (&'a str, &'a str),
    second: (&'a str, &'a str),
    /// A write that changes the content of the second row, and one that does not.
    change: &'a str,
    same: &'a str,
    delete: &'a str,
}

fn go_through(form: &Form<'_>) -> Option<(Application, Looks)> {
    let server = server::server()?;
    let address = server.database();
    let mut client = server::client(&address);
    client.batch_execute(form.table).unwrap();
    client.batch_execute(form.first.0).unwrap();
    let mut application = Application { store: adopt(&address, &form.options), address, client };
    application.sql(form.second.0);
    let before = application.looks();
    assert_eq!(
        before.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        [form.first.1, form.second.1].into()
    );
    for (id, look) in &before {
        write_native(&application, &before, id);
        assert_eq!(application.store.get(&[id]).unwrap()[0].as_ref().unwrap().key, look.key);
    }
    let before = application.looks();
    application.sql(form.same);
    assert_eq!(application.looks(), before, "{}", form.same);
    application.sql(form.change);
    expect(&before, &application.looks(), &[(form.second.1, Changed(false))], form.change);
    application.sql(form.delete);
    expect(&before, &application.looks(), &[(form.second.1, Gone)], form.delete);
    application.sql(form.second.0);
    expect(
        &before,
        &application.looks(),
        &[(form.second.1, New(before[form.second.1].old.is_some()))],
        "again",
    );
    assert_eq!(application.store.delete(&[form.second.1]).unwrap(), 1);
    expect(&before, &application.looks(), &[(form.second.1, Gone)], "deleted through the gallery");
    let looks = application.looks();
    Some((application, looks))
}

#[test]
fn a_composite_key_and_quoted_names() {
    let options = TableOptions {
        table: r#""Big ""Shop"""."Order""#.into(),
        source: Some(r#"weird "name"#.into()),
        label: Some("Übersicht".into()),
        vector: Some("Em'bed\\ding".into()),
        ..TableOptions::default()
    };
    let Some((mut application, seen)) = go_through(&Form {
        table: r#"CREATE SCHEMA "Big ""Shop"""; CREATE TABLE "Big ""Shop"""."Order" ("user" uuid, "Part no" varchar(12), at smallint,
            "weird ""name" text, "Übersicht" int, "Em'bed\ding" vector(2), other text, "payload" numeric, PRIMARY KEY (at, "user", "Part no"))"#,
        options: options.clone(),
        first: (
            r#"INSERT INTO "Big ""Shop"""."Order" VALUES ('00000000-0000-0000-0000-0000000000aa', 'a"b', 7, 'x', 5, '[1,2]')"#,
            r#"["7", "00000000-0000-0000-0000-0000000000aa", "a\"b"]"#,
        ),
        second: (
            r#"INSERT INTO "Big ""Shop"""."Order" VALUES ('00000000-0000-0000-0000-0000000000aa', ' \', 7, 'x', 5, '[1,2]')"#,
            r#"["7", "00000000-0000-0000-0000-0000000000aa", " \\"]"#,
        ),
        change: r#"UPDATE "Big ""Shop"""."Order" SET "weird ""name" = 'y' WHERE "Part no" = ' \'"#,
        same: r#"UPDATE "Big ""Shop"""."Order" SET other = 'other', "Übersicht" = 6, payload = 1.50"#,
        delete: r#"DELETE FROM "Big ""Shop"""."Order" WHERE "Part no" = ' \'"#,
    }) else {
        return;
    };
    let id = seen.keys().next().unwrap().as_str();
    let item = application.store.get(&[id]).unwrap().remove(0).unwrap();
    assert_eq!(item.label.as_deref(), Some("6"));
    assert_eq!(item.payload, json!({"other": "other", "payload": 1.50}));
    // The gallery writes the row, too.
    let put = ItemWrite {
        id: r#"["-3", "00000000-0000-0000-0000-0000000000bb", "é"]"#.into(),
        source: Some("put".into()),
        label: None,
        payload: json!({"other": null, "payload": 2.0}),
        vectors: Vec::new(),
    };
    application.store.put(std::slice::from_ref(&put)).unwrap();
    let got = application.store.get(&[&put.id]).unwrap().remove(0).unwrap();
    assert_eq!((got.source.as_deref(), got.payload), (Some("put"), json!({"other": null, "payload": 2.0})));
    // Another handle finds the gallery again, by another form of the name.
    application.sql(r#"SET search_path = "Big ""Shop""""#);
    let again = PostgresStore::open(&application.address, &options, Some("old")).unwrap();
    assert_eq!(looks(&again, &application.address), application.looks());
    again.release(None).unwrap();
    assert_eq!(left_of_us(&mut application.client), 0);
}

#[test]
fn a_uuid_a_halfvec_and_a_label() {
    go_through(&Form {
        table: "CREATE TABLE t (id uuid PRIMARY KEY, source text, topic text, embedding halfvec(2))",
        options: TableOptions {
            table: "t".into(),
            source: Some("source".into()),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        },
        first: (
            "INSERT INTO t VALUES ('00000000-0000-0000-0000-00000000000A', 'a', 'x', '[1,2]')",
            "00000000-0000-0000-0000-00000000000a",
        ),
        second: (
            "INSERT INTO t VALUES ('00000000-0000-0000-0000-00000000000B', 'a', 'x', '[1,2]')",
            "00000000-0000-0000-0000-00000000000b",
        ),
        change: "UPDATE t SET source = 'b' WHERE id = '00000000-0000-0000-0000-00000000000B'",
        same: "UPDATE t SET topic = 'y'",
        delete: "DELETE FROM t WHERE id = '00000000-0000-0000-0000-00000000000B'",
    });
}

#[test]
fn a_source_that_is_an_expression() {
    let form = |expression: &'static str| Form {
        table: "CREATE TABLE t (id text COLLATE \"C\" PRIMARY KEY, title text, body text, now text, price int, embedding vector(2))",
        options: TableOptions {
            table: "t".into(),
            source: Some(expression.into()),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        },
        first: ("INSERT INTO t VALUES ('B', 'a', 'x')", "B"),
        second: ("INSERT INTO t VALUES ('a', 'a', 'x', 'x', 1, '[1,2]')", "a"),
        change: "UPDATE t SET title = 'b' WHERE id = 'a'",
        same: "UPDATE t SET price = 7; UPDATE t SET embedding = embedding",
        delete: "DELETE FROM t WHERE id = 'a'",
    };
    for expression in [
        "title || ' ' || body",
        "concat_ws(' ', title, body) -- both",
        "lower(this.title) || to_char(0, '9') || (this IS NULL)",
    ] {
        let Some((mut application, looks)) = go_through(&form(expression)) else { return };
        assert!(looks["B"].source.as_deref().is_some_and(|source| source.starts_with('a')));
        let write = ItemWrite::new("c", Some("x".into()), Vec::new());
        assert!(application.store.put(&[write]).unwrap_err().to_string().contains("write the table itself"));
        application.sql("UPDATE t SET title = NULL, body = NULL WHERE id = 'B'");
        application.looks();
    }
}

/// The server drops no column under a gallery that reads it, since writes of the application would fail then.
#[test]
fn a_column_that_a_gallery_reads_stays() {
    let Some(server) = server::server() else { return };
    for (source, condition) in
        [("body", None), ("lower(body)", None), ("body", Some("topic IS DISTINCT FROM 'draft'"))]
    {
        let options = TableOptions {
            source: Some(source.into()),
            condition: condition.map(str::to_owned),
            ..options()
        };
        let mut application = Application::new(server, TABLE, &options);
        let drop = "ALTER TABLE notes DROP COLUMN embedding";
        let error = application.client.batch_execute(drop).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST), "{source}: {error:?}");
        application.sql("INSERT INTO notes (id, body) VALUES (1, 'one'); UPDATE notes SET title = 'x'");
        assert_eq!(application.looks().len(), 1, "{source}");
        let Application { store, mut client, .. } = application;
        store.release(None).unwrap();
        client.batch_execute(drop).unwrap();
    }
}

/// Columns have the names of variables in the triggers' function.
#[test]
fn columns_by_any_name() {
    let Some(server) = server::server() else { return };
    for name in [
        "this",
        "now",
        "was",
        "is_update",
        "has_source",
        "found",
        "tg_op",
        "old",
        "new",
        "key",
        "item",
        "t",
        "i",
        "s",
        "k1",
        "id",
        "value",
    ] {
        let address = server.database();
        let mut client = server::client(&address);
        let key = if name == "id" { "number" } else { "id" };
        client
            .batch_execute(&format!(
                "CREATE TABLE t ({key} int PRIMARY KEY, \"{name}\" text, embedding vector(2))"
            ))
            .unwrap();
        let options = TableOptions {
            table: "t".into(),
            source: Some(format!("\"{name}\" || '!'")),
            condition: Some(format!("\"{name}\" <> 'no'")),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        };
        let mut application = Application { store: adopt(&address, &options), address, client };
        application.sql("INSERT INTO t VALUES (1, 'a', '[1,2]'), (2, 'no', '[1,2]'), (3, 'x', NULL)");
        application
            .sql(&format!("UPDATE t SET \"{name}\" = 'b' WHERE {key} < 3; DELETE FROM t WHERE {key} = 3"));
        let looks = application.looks();
        assert_eq!(looks.keys().collect::<Vec<_>>(), ["1", "2"], "{name}");
        assert_eq!(looks["1"].source.as_deref(), Some("b!"), "{name}");
    }
}

#[test]
fn rows_that_come_to_meet_a_condition_and_cease_to() {
    let Some(server) = server::server() else { return };
    let options = TableOptions { condition: Some("topic <> 'draft' AND body <> ''".into()), ..options() };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(&format!(
            "{TABLE}; INSERT INTO notes VALUES (1, '', 'one', 'in', '[1,1]'), (2, '', 'two', 'draft', '[2,2]'), (3, '', 'three', NULL, NULL),
             (4, '', 'four', 'in', NULL)"
        ))
        .unwrap();
    let mut application = Application { store: adopt(&address, &options), address, client };
    let before = application.looks();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["1", "4"]);
    write_native(&application, &before, "1");
    let mut before = application.looks();
    for (sql, fates) in [
        ("UPDATE notes SET topic = 'draft' WHERE id = 1", &[("1", Gone)][..]),
        ("UPDATE notes SET body = 'other' WHERE id IN (1, 2, 3)", &[]),
        (
            "DELETE FROM notes WHERE id = 3; INSERT INTO notes (id, body, topic) VALUES (3, 'x', 'draft'), (5, '', 'in')",
            &[],
        ),
        (
            "UPDATE notes SET topic = 'in', embedding = '[3,3]' WHERE id < 4",
            &[("1", New(true)), ("2", New(true)), ("3", New(true))],
        ),
        ("UPDATE notes SET topic = 'out'", &[]),
        ("UPDATE notes SET topic = 'draft', id = 9 WHERE id = 1", &[("1", Gone)]),
        ("UPDATE notes SET topic = 'in', id = 1 WHERE id = 9", &[("1", New(true))]),
        (
            "UPDATE notes SET topic = 'draft', body = 'last' WHERE id = 2; UPDATE notes SET topic = 'in' WHERE id = 3",
            &[("2", Gone)],
        ),
        ("DELETE FROM notes WHERE topic = 'draft'", &[]),
        ("TRUNCATE notes", &[("1", Gone), ("3", Gone), ("4", Gone)]),
    ] {
        application.sql(sql);
        let after = application.looks();
        expect(&before, &after, fates, sql);
        before = after;
    }
    // A write through the gallery has to meet the condition, too.
    let write = |label: Option<&str>| ItemWrite {
        id: "20".into(),
        source: Some("x".into()),
        label: label.map(str::to_owned),
        payload: json!(null),
        vectors: Vec::new(),
    };
    assert!(application.store.put(&[write(Some("draft"))]).unwrap_err().to_string().contains("condition"));
    assert_eq!(application.looks(), before);
    application.store.put(&[write(Some("in"))]).unwrap();
    assert!(application.store.put(&[write(None)]).is_err());
    assert_eq!(application.looks().len(), 1);
}

#[test]
fn generated_columns_and_identities() {
    let Some(server) = server::server() else { return };
    let kind = "STORED";
    {
        let address = server.database();
        let mut client = server::client(&address);
        client
            .batch_execute(&format!(
                "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, title text, body text, embedding vector(2),
                     both_of text GENERATED ALWAYS AS (title || ' ' || body) {kind}, size int GENERATED ALWAYS AS (length(title)) {kind});
                 INSERT INTO t (title, body, embedding) VALUES ('a', 'b', '[1,2]')"
            ))
            .unwrap();
        let options = TableOptions {
            table: "t".into(),
            source: Some("both_of".into()),
            label: Some("size".into()),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        };
        let mut application = Application { store: adopt(&address, &options), address, client };
        application.sql("INSERT INTO t (title, body, embedding) VALUES ('c', 'd', '[1,2]')");
        let before = application.looks();
        assert_eq!(before["2"].source.as_deref(), Some("c d"), "{kind}");
        application.sql("UPDATE t SET title = 'x' WHERE id = 2");
        let after = application.looks();
        expect(&before, &after, &[("2", Changed(false))], kind);
        assert_eq!(after["2"].source.as_deref(), Some("x d"), "{kind}");
        application.sql("UPDATE t SET body = NULL WHERE id = 2");
        expect(&after, &application.looks(), &[("2", Changed(false))], kind);
        assert_eq!(application.store.count_without_source().unwrap(), 1, "{kind}");
        let item = application.store.get(&["1"]).unwrap().remove(0).unwrap();
        assert_eq!(
            (item.label.as_deref(), item.payload),
            (Some("1"), json!({"title": "a", "body": "b"})),
            "{kind}"
        );
    }
}

/// A trigger sees nothing of a column that is generated when it is read. Such a column can be no source, and
/// is a payload like any other.
#[test]
fn virtual_columns() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    let table = "CREATE TABLE t (id int PRIMARY KEY, title text, \"Both\" text GENERATED ALWAYS AS (title || '!') VIRTUAL)";
    if client.batch_execute(table).is_err() {
        eprintln!("skipped: a server without virtual columns");
        return;
    }
    let options = TableOptions { table: "t".into(), source: Some("title".into()), ..TableOptions::default() };
    for (source, condition) in
        [("Both", None), ("lower(\"Both\")", None), ("title", Some("\"Both\" <> 'x!'"))]
    {
        let options = TableOptions {
            source: Some(source.into()),
            condition: condition.map(str::to_owned),
            ..options.clone()
        };
        let error = PostgresStore::adopt(&address, &options, None, &|_, _| true).unwrap_err().to_string();
        assert!(error.contains("no virtual column (\"Both\"), which triggers do not see"), "{error}");
    }
    let store = PostgresStore::adopt(&address, &options, None, &|_, _| true).unwrap();
    client.batch_execute("INSERT INTO t VALUES (1, 'a')").unwrap();
    assert_eq!(store.get(&["1"]).unwrap()[0].as_ref().unwrap().payload, json!({"Both": "a!"}));
}

#[test]
fn items_are_put_into_a_table_that_numbers_its_rows() {
    let Some(server) = server::server() else { return };
    for identity in ["GENERATED ALWAYS AS IDENTITY", "GENERATED BY DEFAULT AS IDENTITY", "DEFAULT 7"] {
        let table = format!(
            "CREATE TABLE notes (id bigint {identity} PRIMARY KEY, body text, topic text, embedding vector(2))"
        );
        let application = Application::new(server, &table, &options());
        let write = |source: &str| ItemWrite::new("12", Some(source.into()), Vec::new());
        application.store.put(&[write("a")]).unwrap();
        let first = application.looks();
        application.store.put(&[write("b")]).unwrap();
        expect(&first, &application.looks(), &[("12", Changed(false))], identity);
    }
}

#[test]
fn the_payload_is_made_of_the_other_columns() {
    let Some(server) = server::server() else { return };
    let table = "CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2), more vector(3), n int, at date, tags text[], j jsonb)";
    let mut application = Application::new(server, table, &options());
    application.sql("INSERT INTO notes VALUES (1, 'a', 't', '[1,2]', '[1,2,3]', 5, '2024-02-29', '{a,b}', '{\"x\": 1}'), (2, 'b', 't', '[1,2]', NULL, NULL, NULL, NULL, NULL)");
    let before = application.looks();
    let item = |application: &Application, id: &str| application.store.get(&[id]).unwrap().remove(0).unwrap();
    assert_eq!(
        item(&application, "1").payload,
        json!({"n": 5, "at": "2024-02-29", "tags": ["a", "b"], "j": {"x": 1}})
    );
    assert_eq!(item(&application, "2").payload, json!({"n": null, "at": null, "tags": null, "j": null}));
    let hits = |application: &Application, field: &str, value: serde_json::Value| {
        let filter = Filter { payload: vec![(field.into(), value)], ..Filter::default() };
        let query = Matrix::new(2, vec![0.0, 0.0]).unwrap();
        let found = application.store.search("old", &query, 10, &filter).unwrap().remove(0);
        found.into_iter().map(|hit| hit.id).collect::<Vec<_>>()
    };
    assert_eq!(hits(&application, "n", json!(5)), ["1"]);
    assert_eq!(hits(&application, "n", json!(null)), ["2"]);
    assert_eq!(hits(&application, "j", json!({"x": 1})), ["1"]);
    // A column that comes later is unknown to a handle that is open, and known to the next one.
    application.sql("UPDATE notes SET n = 6; ALTER TABLE notes ADD COLUMN later text DEFAULT 'x'");
    assert_eq!(application.looks(), before);
    assert_eq!(hits(&application, "n", json!(6)), ["1", "2"]);
    let again = PostgresStore::open(&application.address, &options(), Some("old")).unwrap();
    assert_eq!(again.get(&["2"]).unwrap()[0].as_ref().unwrap().payload["later"], json!("x"));
    application.sql("ALTER TABLE notes DROP COLUMN later; ALTER TABLE notes RENAME TO renamed; INSERT INTO renamed (id) VALUES (3)");
    let options = TableOptions { table: "renamed".into(), ..options() };
    let again = PostgresStore::open(&application.address, &options, Some("old")).unwrap();
    assert_eq!(looks(&again, &application.address).len(), 3);
}

/// The server keeps JSON that no reader here takes, and `json` that it cannot read itself. One such row keeps
/// no other from being read, claimed or found.
#[test]
fn a_row_that_no_reader_takes_keeps_no_other_from_its_vector() {
    let Some(server) = server::server() else { return };
    let table = "CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2), n numeric, j jsonb, k json, at timestamptz)";
    for (change, payload) in [
        ("n = '1e400'", None),
        ("j = (repeat('[', 200) || repeat(']', 200))::jsonb", None),
        ("j = '{\"a\": 1e400}'", None),
        ("k = '1e999999'", None),
        ("k = '\"\\ud800\"'", None),
        ("k = '\"\\u0000\"'", Some(json!({"n": null, "j": null, "k": "\0", "at": null}))),
        ("n = 'NaN', at = '-infinity'", Some(json!({"n": "NaN", "j": null, "k": null, "at": "-infinity"}))),
    ] {
        let mut application = Application::new(server, table, &options());
        application
            .sql("INSERT INTO notes VALUES (1, 'a', 't', '[1,2]', 5, '{\"x\": 1}'); INSERT INTO notes VALUES (2, 'b', 't', '[1,2]')");
        application.sql(&format!("UPDATE notes SET {change} WHERE id = 2"));
        let claimed = application.store.claim("new", Queue::All, "w", 10, Duration::from_secs(9)).unwrap();
        assert_eq!(claimed.records.len(), 2, "{change}");
        let items: Vec<_> = application.store.get(&["1", "2"]).unwrap().into_iter().flatten().collect();
        assert_eq!(items[0].payload, json!({"n": 5, "j": {"x": 1}, "k": null, "at": null}));
        match payload {
            Some(payload) => assert_eq!(items[1].payload, payload, "{change}"),
            None => assert!(
                items[1].payload.as_str().is_some_and(|text| text.contains("\"at\":null")),
                "{change}"
            ),
        }
        let filter = Filter { payload: vec![("n".into(), json!(5))], ..Filter::default() };
        let query = Matrix::new(2, vec![0.0, 0.0]).unwrap();
        let found = application.store.search("old", &query, 10, &filter).unwrap().remove(0);
        assert_eq!(found.into_iter().map(|hit| hit.id).collect::<Vec<_>>(), ["1"], "{change}");
    }
}

/// The table has more rows than are listed in one transaction, with keys whose order
/// depends on the collation.
#[test]
fn adoption_lists_every_row_whatever_the_order_of_keys_is() {
    let Some(server) = server::server() else { return };
    for (key, value) in [
        ("bigint", "n"),
        ("text COLLATE \"C\"", "CASE n % 2 WHEN 0 THEN 'a' ELSE 'B' END || n"),
        ("text", "CASE n % 2 WHEN 0 THEN 'a-' ELSE 'A b' END || n"),
        ("numeric", "n / 7.0 - 1000"),
        ("uuid", "md5(n::text)::uuid"),
    ] {
        let address = server.database();
        let mut client = server::client(&address);
        client
            .batch_execute(&format!(
                "CREATE TABLE t (part int, id {key}, PRIMARY KEY (part, id));
                 INSERT INTO t SELECT n % 3 - 1, {value} FROM generate_series(1, 41000) AS n"
            ))
            .unwrap();
        let options = TableOptions { table: "t".into(), ..TableOptions::default() };
        let store = PostgresStore::adopt(&address, &options, None, &|_, _| true).unwrap();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        assert_eq!(store.check().unwrap(), vec![], "{key}");
        assert_eq!(store.counts("old").unwrap().items, 41_000, "{key}");
    }
}

/// Statement for a collation by which small and capital letters are equal.
const BLIND: &str =
    "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";

/// The key in the gallery's tables has the collation of the application's key, so that equal keys are equal
/// and an index finds them.
#[test]
fn keys_keep_their_collation() {
    let Some(server) = server::server() else { return };
    let table =
        "CREATE TABLE notes (id text COLLATE \"C\" PRIMARY KEY, body text, topic text, embedding vector(2))";
    let mut application = Application::new(server, table, &options());
    let collation =
        "SELECT c.collname::text FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
         WHERE a.attrelid = 'rehang.item_1'::regclass AND a.attname = 'k1'";
    assert_eq!(application.client.query_one(collation, &[]).unwrap().get::<_, String>(0), "C");
    application.sql("INSERT INTO notes (id) SELECT CASE n % 2 WHEN 0 THEN 'a' ELSE 'B' END || n FROM generate_series(1, 3000) AS n; ANALYZE rehang.item_1");
    let plan =
        "EXPLAIN (COSTS OFF) SELECT 1 FROM notes AS t, rehang.item_1 AS i WHERE t.id = 'a2' AND i.k1 = t.id";
    let lines: Vec<String> =
        application.client.query(plan, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(!lines.join("\n").contains("Seq Scan"), "{lines:#?}");
    // A server with ICU knows collations by which different keys are equal.
    if application.client.batch_execute(BLIND).is_err() {
        eprintln!("skipped: a server without ICU");
        return;
    }
    application.store.release(None).unwrap();
    application.client.batch_execute("DROP TABLE notes").unwrap();
    let table =
        "CREATE TABLE notes (id text COLLATE blind PRIMARY KEY, body text, topic text, embedding vector(2))";
    application.client.batch_execute(&format!("{table}; INSERT INTO notes VALUES ('first', 'x')")).unwrap();
    application.store = adopt(&application.address, &options());
    let before = application.looks();
    application.sql("INSERT INTO notes (id, body) VALUES ('FIRST', 'y') ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body");
    expect(&before, &application.looks(), &[("first", Changed(false))], "the same key in other letters");
    application.sql("DELETE FROM notes WHERE id = 'First'");
    assert_eq!(application.looks().len(), 0);
}

/// A source is another one when any letter of it is, also where its collation says that nothing has changed.
#[test]
fn a_source_in_other_letters_is_another_one() {
    let Some(server) = server::server() else { return };
    for source in ["body", "body || ''"] {
        let address = server.database();
        let mut client = server::client(&address);
        if client.batch_execute(BLIND).is_err() {
            eprintln!("skipped: a server without ICU");
            return;
        }
        client
            .batch_execute(
                "CREATE TABLE notes (id bigint PRIMARY KEY, title text, body text COLLATE blind, topic text, embedding vector(2));
                 INSERT INTO notes SELECT n, '', 'Cat', '', '[1,1]' FROM generate_series(1, 3) AS n",
            )
            .unwrap();
        let options = TableOptions { source: Some(source.into()), ..options() };
        let mut application = Application { store: adopt(&address, &options), address, client };
        let looks = application.looks();
        write_native(&application, &looks, "1");
        let before = application.looks();
        application.sql("UPDATE notes SET body = 'Cat', title = 'x'");
        assert_eq!(application.looks(), before, "{source}");
        application.sql("UPDATE notes SET body = 'CAT' WHERE id = 1");
        let after = application.looks();
        expect(&before, &after, &[("1", Changed(false))], source);
        application.sql("UPDATE notes SET body = 'cat', id = 9 WHERE id = 2");
        expect(&after, &application.looks(), &[("2", Gone), ("9", New(false))], source);
    }
}

#[test]
fn pgvector_in_a_schema_that_nobody_looks_into() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(
            "DROP EXTENSION vector; CREATE SCHEMA \"Extensions\"; CREATE EXTENSION vector SCHEMA \"Extensions\";
             CREATE TABLE notes (id bigint PRIMARY KEY, title text, body text, topic text, embedding \"Extensions\".vector(2));
             INSERT INTO notes (id, body, embedding) VALUES (1, 'one', '[1,1]')",
        )
        .unwrap();
    let mut application = Application { store: adopt(&address, &options()), address, client };
    application.sql("INSERT INTO notes (id, body, embedding) VALUES (2, 'two', '[1,1]'); UPDATE notes SET embedding = '[2,2]' WHERE id = 1");
    let looks = application.looks();
    write_native(&application, &looks, "1");
    let looks = application.looks();
    assert_eq!(
        (looks.len(), looks["1"].old, looks["1"].new),
        (2, Some(Provenance::Old), Some(Provenance::Native))
    );
}

/// Flag that is set when a scope is over, also where it ends by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// An application that updates rows in the opposite order of the gallery never hears of a deadlock: the
/// gallery waits for nobody.
#[test]
fn an_application_that_goes_the_other_way_is_not_in_a_deadlock() {
    for table in [TABLE, PARTITIONED] {
        an_application_goes_the_other_way(table);
    }
}

fn an_application_goes_the_other_way(table: &str) {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, table, &options());
    application.sql("INSERT INTO notes SELECT n, '', 'body', '', '[1,1]' FROM generate_series(1, 40) AS n");
    let is_over = AtomicBool::new(false);
    let (address, store) = (&application.address, &application.store);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _at_the_end = Sets(&is_over);
            let mut client = server::client(address);
            for round in 0..60 {
                client.batch_execute("BEGIN").unwrap();
                for id in (1..=40).rev() {
                    let sql = match (round + id) % 4 {
                        0 => format!("UPDATE notes SET embedding = '[{round},{id}]' WHERE id = {id}"),
                        1 => format!("DELETE FROM notes WHERE id = {id}; INSERT INTO notes (id, body) VALUES ({id}, 'again')"),
                        _ => format!("UPDATE notes SET body = '{round} {id}' WHERE id = {id}"),
                    };
                    client.batch_execute(&sql).unwrap_or_else(|error| panic!("round {round}, {sql}: {error:?}"));
                }
                client.batch_execute(if round % 5 == 0 { "ROLLBACK" } else { "COMMIT" }).unwrap();
            }
        });
        for name in ["left", "right"] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    let claimed = store.claim("new", Queue::All, name, 25, LEASE).unwrap();
                    let at: Vec<_> = claimed
                        .records
                        .iter()
                        .map(|record| (record.item.key, record.item.revision))
                        .collect();
                    let (fail, rest) = at.split_at(at.len() / 4);
                    let adapted: Vec<_> = rest.iter().map(|at| write(*at, Provenance::Adapted)).collect();
                    store.write_vectors("new", Some(Epoch::FIRST), &adapted).unwrap();
                    let places: Vec<_> =
                        rest.iter().map(|at| (at.0, at.1, Priority::ordinary(1.0))).collect();
                    store.set_priorities("new", Epoch::FIRST, &places).unwrap();
                    let failures: Vec<_> = fail.iter().map(|at| (at.0, at.1, "no".to_owned())).collect();
                    store.record_failures("new", &failures).unwrap();
                    let natives: Vec<_> =
                        rest.iter().step_by(2).map(|at| write(*at, Provenance::Native)).collect();
                    store.write_vectors("new", None, &natives).unwrap();
                    store.renew("new", name, LEASE).unwrap();
                    store.clear_failures("new").unwrap();
                    store.forget_natives("new", Epoch::FIRST, 10).unwrap();
                    Ledger::release(store, "new", name, None).unwrap();
                }
            });
        }
    });
    assert_eq!(application.looks().len(), 40);
}

/// The rights that the page gives to an application's role are all that it needs, also where
/// the spaces come later.
#[test]
fn the_rights_of_the_page_are_enough() {
    let Some(server) = server::server() else { return };
    let page = include_str!("../../../../docs/postgres.md");
    let of_page: Vec<&str> =
        page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [to_read, to_write] = of_page[..] else { panic!("the page has two lists of rights: {of_page:?}") };
    let address = server.database();
    let role = role(&address);
    let given =
        |list: &str| list.replace(" owner ", " CURRENT_USER ").replace(" TO app;", &format!(" TO {role};"));
    let mut client = server::client(&address);
    client
        .batch_execute(&format!(
            "{TABLE}; INSERT INTO notes (id, body, embedding) VALUES (1, 'one', '[1,0]'), (2, 'two', '[2,0]');
             CREATE ROLE {role}; GRANT SELECT ON notes TO {role}"
        ))
        .unwrap();
    let store = PostgresStore::adopt(&address, &options(), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    let mut application = Application { address, client, store };
    application.sql(&given(to_read));
    let mut client = server::client(&application.address);
    client.batch_execute(&format!("SET ROLE {role}")).unwrap();
    let mut found = |sql: &str| client.query(sql, &[]).map(|rows| rows.len());
    assert_eq!(found("SELECT * FROM rehang.search('notes', '[1,0]')").unwrap(), 2);
    assert_eq!(found("SELECT * FROM rehang.serving_1").unwrap(), 2);
    application.store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    let looks = application.looks();
    write_native(&application, &looks, "1");
    application.store.switch_serving("old", "new").unwrap();
    assert_eq!(found("SELECT * FROM rehang.search('notes', '[1,2,3]')").unwrap(), 1);
    assert_eq!(found("SELECT * FROM rehang.serving_1").unwrap(), 1);
    let write = "SELECT rehang.write('notes', '2', '[1,2,3]', 'new')";
    assert_eq!(found(write).unwrap_err().code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    application.sql(&given(to_write));
    found(write).unwrap();
    assert_eq!(application.looks()["2"].new, Some(Provenance::Native));
    drop(client);
    application.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// Returns the rows of the view, as `key vector provenance handicap`.
fn served(application: &mut Application) -> Vec<String> {
    let sql = "SELECT id || ' ' || serving_vector::text || ' ' || provenance || ' ' || handicap FROM rehang.serving_1 ORDER BY id";
    application.client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_view_has_the_vectors_that_serve() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.fill();
    let old = ["1 [1,0] old 0", "2 [2,0] old 0", "3 [3,0] old 0", "4 [4,0] old 0"];
    assert_eq!(served(&mut application), old);

    // A transaction that has read the view and goes on does not keep the view from following.
    let mut reader = server::client(&application.address);
    reader.batch_execute("BEGIN; SELECT * FROM rehang.serving_1; SET lock_timeout = 0").unwrap();
    application.store.switch_serving("old", "new").unwrap();
    drop(reader);
    assert_eq!(served(&mut application), ["1 [1,2,3] native 0", "2 [1,2,3] adapted 0", "4 [1,2,3] native 0"]);
    let record =
        json!({"old": {"model": "old"}, "new": {"model": "new"}, "handicap": 0.5, "old_handicap": 0.0});
    application.store.set_document("upgrade", None, &record.to_string()).unwrap();
    let new = ["1 [1,2,3] native 0", "2 [1,2,3] adapted 0.5", "4 [1,2,3] native 0"];
    assert_eq!(served(&mut application), new);

    // An application's search of the view reads the index, whichever space serves.
    application.sql(
        "CREATE INDEX nearest_new ON rehang.vector_2 USING hnsw (value vector_l2_ops);
         CREATE INDEX nearest_old ON notes USING hnsw (embedding vector_l2_ops);
         SET enable_seqscan = off; SET enable_sort = off;",
    );
    for (query, index) in [("[1,2,3]", "nearest_new"), ("[1,2]", "nearest_old")] {
        let search = format!("SELECT id FROM rehang.serving_1 ORDER BY serving_vector <-> '{query}' LIMIT 2");
        let plan = application.client.query(&format!("EXPLAIN (ANALYZE, COSTS off) {search}"), &[]).unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let ran = plan.iter().any(|line| line.contains(index) && !line.contains("never executed"));
        assert!(ran, "{plan:#?}");
        assert_eq!(application.client.query(&search, &[]).unwrap().len(), 2);
        if index == "nearest_new" {
            application.store.switch_serving("new", "old").unwrap();
            assert_eq!(served(&mut application), old);
        }
    }

    // The space that goes is not read any more, and the gallery can be released.
    application.store.switch_serving("old", "new").unwrap();
    application.store.drop_space("old").unwrap();
    assert_eq!(served(&mut application), new);
    let Application { store, mut client, .. } = application;
    store.release(None).unwrap();
    assert_eq!(left_of_us(&mut client), 0);
}

#[test]
fn vectors_move_into_a_column_that_is_new_or_empty() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.fill();
    let refused = |application: &Application, column: &str, words: &str| {
        let error = application.store.settle(column, &|_, _| true).unwrap_err().to_string();
        assert!(error.contains(words), "{error:?} lacks {words:?}");
    };
    refused(&application, "embedding_new", "its vectors are column \"embedding\" of the table already");
    application.store.switch_serving("old", "new").unwrap();
    refused(&application, "embedding_new", "1 items with a source are adapted");
    let looks = application.looks();
    write_native(&application, &looks, "2");

    application.sql("ALTER TABLE notes ADD COLUMN mine vector(3), ADD COLUMN narrow vector(2); UPDATE notes SET mine = '[7,7,7]' WHERE id = 3");
    refused(&application, "embedding", "a column of its own");
    refused(&application, "narrow", "or one of type vector(3), not vector(2)");
    refused(&application, "mine", "what is in this one would be lost");
    let column = |application: &mut Application, name: &str| -> Vec<Option<String>> {
        let sql = format!("SELECT {name}::text FROM notes ORDER BY id");
        application.client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let native = || Some("[1,2,3]".to_owned());
    assert_eq!(column(&mut application, "mine"), [None, None, Some("[7,7,7]".into()), None]);

    // An empty column will do; a second call goes on, and so does one after a stop.
    application.sql("UPDATE notes SET mine = NULL");
    assert!(application.store.settle("mine", &|_, _| false).unwrap_err().is_cancelled());
    for _ in 0..2 {
        application.store.settle("mine", &|_, _| true).unwrap();
        assert_eq!(column(&mut application, "mine"), [native(), native(), None, native()]);
    }
    let Application { address, store, mut client } = application;
    store.release(Some("mine")).unwrap();
    assert_eq!(left_of_us(&mut client), 0);

    // From then on the column is the application's.
    let mut application = Application { store: adopt(&address, &options()), address, client };
    let looks = application.looks();
    for id in ["1", "2", "3", "4"] {
        write_native(&application, &looks, id);
    }
    application.store.switch_serving("old", "new").unwrap();
    refused(&application, "mine", "what is in this one would be lost");
    application.store.settle("embedding_new", &|_, _| true).unwrap();
    assert_eq!(column(&mut application, "embedding_new"), [native(), native(), native(), native()]);
}

/// `settle` waits for a row that an application's transaction holds, and no application waits
/// for `settle` meanwhile.
#[test]
fn vectors_move_beside_a_transaction_that_is_open() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    let looks = application.fill();
    write_native(&application, &looks, "2");
    application.store.switch_serving("old", "new").unwrap();
    // The column is there, and empty again.
    application.store.settle("moved", &|_, _| false).unwrap_err();
    application.sql("UPDATE notes SET moved = NULL; SET lock_timeout = '500ms'");
    let mut holder = server::client(&application.address);
    holder.batch_execute("BEGIN; UPDATE notes SET title = 'held' WHERE id = 4").unwrap();
    let Application { store, mut client, .. } = application;
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| store.settle("moved", &|_, _| true));
        let waits = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock' AND query ~ 'moved AS')";
        while !client.query_one(waits, &[]).unwrap().get::<_, bool>(0) {}
        client.batch_execute("UPDATE notes SET title = 'free' WHERE id < 4").unwrap();
        holder.batch_execute("COMMIT").unwrap();
        settled.join().unwrap().unwrap();
    });
    let moved = "SELECT id FROM notes WHERE moved = '[1,2,3]' ORDER BY id";
    let moved: Vec<i64> = client.query(moved, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(moved, [1, 2, 4]);
}

/// A transaction that has read the table can write it while a release waits for that transaction.
#[test]
fn a_release_is_in_no_readers_way() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.fill();
    let Application { address, store, mut client } = application;
    let mut reader = server::client(&address);
    reader.batch_execute("SET lock_timeout = '300ms'; BEGIN; SELECT count(*) FROM notes").unwrap();
    std::thread::scope(|scope| {
        let released = scope.spawn(|| store.release(None));
        let waits =
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE relation = 'notes'::regclass AND NOT granted)";
        while !client.query_one(waits, &[]).unwrap().get::<_, bool>(0) {}
        reader.batch_execute("UPDATE notes SET title = 'x'; COMMIT").unwrap();
        released.join().unwrap().unwrap();
    });
    assert_eq!(left_of_us(&mut client), 0);
}

/// A release does not take away what an application has made over the gallery's functions and views.
#[test]
fn a_release_is_refused_while_a_view_reads_what_is_ours() {
    let Some(server) = server::server() else { return };
    for query in ["SELECT * FROM rehang.search('notes', '[1,0]')", "SELECT id FROM rehang.serving_1"] {
        let mut application = Application::new(server, TABLE, &options());
        let before = application.fill();
        application.sql(&format!("CREATE VIEW nearest AS {query}"));
        let error = application.store.clone().release(None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Conflict { .. }), "{error:?}");
        assert!(error.to_string().contains("view public.nearest depends on"), "{error}");
        assert_eq!(application.looks(), before);
        application.sql("DROP VIEW nearest");
        let Application { store, mut client, .. } = application;
        store.release(None).unwrap();
        assert_eq!(left_of_us(&mut client), 0);
    }
}

/// Restores a dump into a new database; `None` where there is no program that makes one.
fn restored(server: &server::Server, address: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump.sql");
    let run = |script: &str, address: &str| {
        let programs = server.programs.as_deref().unwrap_or_default();
        let script = format!("PATH=\"{programs}:$PATH\"; {script}");
        Command::new("sh").args(["-c", &script, address]).arg(&file).output().unwrap()
    };
    let dumped = run("pg_dump --file=\"$1\" \"$0\"", address);
    if !dumped.status.success() {
        return None;
    }
    let address = server.database();
    let read = run("psql -qX --file=\"$1\" \"$0\"", &address);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    Some(address)
}

/// A gallery that comes out of a dump belongs to the table which came with it.
#[test]
fn a_gallery_comes_out_of_a_dump() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, PARTITIONED, &options());
    let before = application.fill();
    if let Some(copy) = restored(server, &application.address) {
        let store = PostgresStore::open(&copy, &options(), Some("old")).unwrap();
        assert_eq!(looks(&store, &copy), before);
        let mut client = server::client(&copy);
        client.batch_execute("UPDATE notes SET id = 60 WHERE id = 1; UPDATE notes SET body = 'x' WHERE id = 4; TRUNCATE middle; DELETE FROM low WHERE id = 2").unwrap();
        let fates = [("1", Gone), ("60", Renamed("1")), ("2", Gone), ("3", Gone), ("4", Gone)];
        expect(&before, &looks(&store, &copy), &fates, "partitions after the dump");
        // An adoption notes the present numbers.
        let store = adopt(&copy, &options());
        assert_eq!((looks(&store, &copy).len(), store.remarks().unwrap()), (1, vec![]));
    }
    let mut application = Application::new(server, TABLE, &options());
    let before = application.fill();
    let Some(copy) = restored(server, &application.address) else {
        eprintln!("skipped: no pg_dump");
        return;
    };
    let store = PostgresStore::open(&copy, &options(), Some("old")).unwrap();
    assert_eq!(looks(&store, &copy), before);
    let mut client = server::client(&copy);
    assert_eq!(client.query("SELECT * FROM rehang.search('notes', '[1,0]')", &[]).unwrap().len(), 4);
    client.batch_execute("UPDATE notes SET body = 'x' WHERE id = 1").unwrap();
    expect(&before, &looks(&store, &copy), &[("1", Changed(false))], "after the dump");
    let says = |store: &PostgresStore| {
        store.remarks().unwrap().iter().any(|said| said.contains("came out of a dump"))
    };
    assert!(says(&store) && !says(&application.store));
    assert!(!says(&adopt(&copy, &options())));
}

/// A gallery whose tables another version made is left alone.
#[test]
fn a_gallery_of_another_format_is_refused() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    let before = application.fill();
    for format in [1, 3] {
        application.sql(&format!("UPDATE rehang.gallery SET format = {format}"));
        let (open, adopt) = (
            PostgresStore::open(&application.address, &options(), Some("old")),
            PostgresStore::adopt(&application.address, &options(), Some("old"), &|_, _| true),
        );
        for error in [open.unwrap_err(), adopt.unwrap_err()] {
            assert!(error.to_string().contains("use the rehang that made it"), "{error}");
        }
    }
    application.sql("UPDATE rehang.gallery SET format = 2");
    assert_eq!(application.looks(), before);
}

/// An application writes texts at once and their old vectors by a job, and embeds all texts anew at last.
#[test]
fn a_text_is_paid_for_once_whenever_its_old_vector_comes() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.fill();
    let claimed = |application: &Application| {
        let claimed = application.store.claim("new", Queue::All, "worker", 10, LEASE).unwrap();
        claimed.records.into_iter().map(|record| record.item).collect::<Vec<_>>()
    };
    let embed = |application: &Application, items: &[Item]| {
        let writes: Vec<VectorWrite> =
            items.iter().map(|item| VectorWrite::native(item, vec![1.0, 2.0, 3.0])).collect();
        application.store.write_vectors("new", None, &writes).unwrap()
    };
    application.store.clear_failures("new").unwrap();
    Ledger::release(&application.store, "new", "worker", None).unwrap();
    let rest = claimed(&application);
    embed(&application, &rest);
    application.sql("UPDATE notes SET body = 'text ' || id");
    let in_hand = claimed(&application);
    assert_eq!(in_hand.len(), 4);
    // The job comes while two items are in hand, and after the others are native.
    application.sql("UPDATE notes SET embedding = '[1,1]' WHERE id < 3");
    assert_eq!(claimed(&application), [], "they are in hand");
    assert_eq!(embed(&application, &in_hand), [WriteOutcome::Written; 4]);
    application.sql("UPDATE notes SET embedding = '[2,2]' WHERE id >= 3; UPDATE notes SET embedding = '[3,3]'; UPDATE notes SET id = id + 10");
    assert_eq!(claimed(&application), [], "nothing is left to pay for");
    let looks = application.looks();
    assert_eq!(looks.keys().map(String::as_str).collect::<Vec<_>>(), ["11", "12", "13", "14"]);
    for look in looks.values() {
        assert_eq!((look.old, look.new), (Some(Provenance::Old), Some(Provenance::Native)));
    }
    let found = application.client.query("SELECT id FROM rehang.search('notes', '[3,3]', 9)", &[]).unwrap();
    assert_eq!(found.len(), 4);
}

/// A database that is set back gives the same keys and numbers again, to other rows.
#[test]
fn what_was_on_its_way_fits_no_row_of_a_database_that_was_set_back() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.fill();
    let Some(copy) = restored(server, &application.address) else {
        eprintln!("skipped: no pg_dump");
        return;
    };
    application.sql("INSERT INTO notes (id, body, embedding) VALUES (5, 'one of before', '[5,5]')");
    let read = application.store.get(&["5"]).unwrap().remove(0).unwrap();
    let store = PostgresStore::open(&copy, &options(), Some("old")).unwrap();
    let mut client = server::client(&copy);
    // A session may set the seed of the server's usual generator, and do so again.
    client
        .batch_execute(
            "SELECT setseed(0.5); INSERT INTO notes (id, body, embedding) VALUES (6, 'another one', '[6,6]')",
        )
        .unwrap();
    let now = store.get(&["6"]).unwrap().remove(0).unwrap();
    assert_eq!((now.key, now.revision >> 24), (read.key, read.revision >> 24), "the same key and number");
    assert_ne!(now.revision, read.revision);
    let late = [VectorWrite::native(&read, vec![1.0, 2.0, 3.0])];
    assert_eq!(store.write_vectors("new", None, &late).unwrap(), [WriteOutcome::Changed]);
    let late = [VectorWrite::adapted(&read, vec![1.0, 2.0, 3.0], 1.0, Priority::ordinary(1.0))];
    assert_eq!(store.write_vectors("new", Some(Epoch::FIRST), &late).unwrap(), [WriteOutcome::Changed]);
    store.record_failures("new", &[(read.key, read.source_revision, "late".into())]).unwrap();
    let look = &looks(&store, &copy)["6"];
    assert_eq!((look.new, look.is_failed), (None, false));
}

/// A standby only reads, until it takes over: a write waits for that.
#[test]
fn a_write_waits_until_a_standby_takes_over() {
    if server::server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let Ok(first) = server::Server::start(Some(&data)) else {
        eprintln!("skipped: no server that may be stopped");
        return;
    };
    let mut application = Application::new(&first, TABLE, &options());
    let looks = application.fill();
    let pid = first.pid.unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    while data.join("postmaster.pid").exists() {}
    fs_err::write(data.join("standby.signal"), "").unwrap();
    let _second = server::Server::start(Some(&data)).unwrap();
    let Application { address, store, .. } = application;
    let mut standby = server::client(&address);
    std::thread::scope(|scope| {
        let native = write((looks["2"].key, looks["2"].revision), Provenance::Native);
        let written = scope.spawn(|| store.write_vectors("new", None, &[native]));
        let comes = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'rehang')";
        while !written.is_finished() && !standby.query_one(comes, &[]).unwrap().get::<_, bool>(0) {}
        standby.batch_execute("SELECT pg_promote()").unwrap();
        assert_eq!(written.join().unwrap().unwrap(), [WriteOutcome::Written]);
    });
}

#[test]
fn a_view_of_a_composite_key_has_its_columns() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (provenance text, part int, body text, topic text, embedding halfvec(2), PRIMARY KEY (part, provenance));
             INSERT INTO notes VALUES ('a', 7, 'body', 'topic', '[1,2]')",
        )
        .unwrap();
    adopt(&address, &options());
    let row = client
        .query_one("SELECT part, provenance, provenance_, serving_vector::text FROM rehang.serving_1", &[]);
    let row = row.unwrap();
    let found: (i32, String, String, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!(found, (7, "a".into(), "old".into(), "[1,2]".into()));
}

/// Lists everything that an owner can see of a table, and what else is in the database.
fn form_of(client: &mut Client, with_rows: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for sql in [
        "SELECT format('column %s %s %s %s %s %s %s', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
             pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attcollation) FROM pg_attribute a
             LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = 'notes'::regclass ORDER BY a.attnum",
        "SELECT 'trigger ' || pg_get_triggerdef(oid) || tgenabled::text FROM pg_trigger WHERE tgrelid = 'notes'::regclass ORDER BY tgname",
        "SELECT 'index ' || pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'notes'::regclass ORDER BY 1",
        "SELECT 'constraint ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'notes'::regclass ORDER BY 1",
        "SELECT 'table ' || relacl::text || coalesce(reloptions::text, '') || relreplident::text || relrowsecurity::text || relpersistence::text
             FROM pg_class WHERE oid = 'notes'::regclass",
        "SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp' ORDER BY 1",
        "SELECT 'relation ' || oid::regclass::text FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
        "SELECT 'function ' || oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
        "SELECT 'event trigger ' || evtname FROM pg_event_trigger",
        "SELECT 'comment ' || objoid::text || description::text FROM pg_description WHERE objoid = 'notes'::regclass ORDER BY 1",
        "SELECT 'publication ' || pubname FROM pg_publication",
        "SELECT 'depends ' || classid::regclass::text || objid::text FROM pg_depend WHERE refobjid = 'notes'::regclass ORDER BY 1",
    ] {
        lines.extend(client.query(sql, &[]).unwrap().iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_default()));
    }
    if with_rows {
        let rows = client
            .query("SELECT n::text || xmin::text || ctid::text FROM notes AS n ORDER BY id", &[])
            .unwrap();
        lines.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    }
    lines
}

/// Counts what is left of the gallery in a database.
fn left_of_us(client: &mut Client) -> i64 {
    client
        .query_one(
            "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = 'rehang') + (SELECT count(*) FROM pg_trigger WHERE tgname ~ 'rehang')
                 + (SELECT count(*) FROM pg_proc WHERE prosrc ~ 'rehang[.]')",
            &[],
        )
        .unwrap()
        .get(0)
}

const RICH: &str = "CREATE TABLE notes (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, title text NOT NULL DEFAULT 'none', body text,
        topic text, embedding vector(2), at timestamptz NOT NULL DEFAULT '2024-01-01', UNIQUE (title, id), CHECK (length(title) < 100)) WITH (fillfactor = 80);
    CREATE INDEX notes_topic ON notes (topic) WHERE topic IS NOT NULL;
    CREATE INDEX notes_nearest ON notes USING hnsw (embedding vector_l2_ops);
    COMMENT ON TABLE notes IS 'what we noted'; COMMENT ON COLUMN notes.body IS 'the text';
    CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE TRIGGER touched BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION touched();
    CREATE VIEW titles AS SELECT id, title FROM notes; CREATE TABLE answers (note bigint REFERENCES notes ON DELETE CASCADE);
    GRANT SELECT ON notes TO PUBLIC;
    INSERT INTO notes (title, body, topic, embedding) SELECT 'title ' || n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 100) AS n;
    INSERT INTO answers VALUES (1), (2)";

#[test]
fn a_table_is_given_back_as_it_was_taken() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client.batch_execute(RICH).unwrap();
    let before = form_of(&mut client, true);
    for _ in 0..2 {
        let mut application = Application {
            store: adopt(&address, &options()),
            address: address.clone(),
            client: server::client(&address),
        };
        let looks = application.looks();
        write_native(&application, &looks, "5");
        application.store.claim("new", Queue::All, "worker", 10, LEASE).unwrap();
        application.store.set_document("plan", None, "text").unwrap();
        application.store.compact().unwrap();
        assert!(left_of_us(&mut application.client) > 0);
        application.store.release(None).unwrap();
        assert_eq!(form_of(&mut client, true), before);
        assert_eq!(left_of_us(&mut client), 0);
    }
    // Rows that go by a foreign key are seen. A table that refers to the gallery's table does not keep both
    // from being emptied together.
    let application = Application {
        store: adopt(&address, &options()),
        address: address.clone(),
        client: server::client(&address),
    };
    client.batch_execute("DELETE FROM notes WHERE id = 1; TRUNCATE notes, answers").unwrap();
    assert_eq!(application.looks().len(), 0);
}

/// Small generator, so that each run writes the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Writes as one thread of an application does all day, in rows that are its own. Returns the number of
/// transactions that it made.
fn write_until(address: &str, thread: u64, is_over: &AtomicBool) -> usize {
    let mut random = Random(thread);
    let mut client = server::client(address);
    let mut made = 0;
    while !is_over.load(Ordering::Acquire) {
        let first = 1 + thread * 1000 + random.below(900);
        let mut sql = vec!["BEGIN".to_owned()];
        // The rows go from the last to the first, against the gallery's order.
        for id in (first..first + 1 + random.below(20)).rev() {
            sql.push(match random.below(6) {
                0 => format!("DELETE FROM notes WHERE id = {id}"),
                1 => format!("INSERT INTO notes (id, body, embedding) VALUES ({id}, 'new', '[1,{id}]') ON CONFLICT (id) DO UPDATE SET body = 'again'"),
                2 => format!("UPDATE notes SET embedding = NULL WHERE id = {id}"),
                3 => format!("UPDATE notes SET embedding = '[{id},2]' WHERE id = {id}"),
                4 => format!("UPDATE notes SET id = id + 500000 WHERE id = {id} AND NOT EXISTS (SELECT 1 FROM notes WHERE id = {id} + 500000)"),
                _ => format!("UPDATE notes SET body = body || '.' WHERE id = {id}"),
            });
        }
        sql.push(if random.below(5) == 0 { "ROLLBACK" } else { "COMMIT" }.to_owned());
        for sql in &sql {
            client.batch_execute(sql).unwrap_or_else(|error| panic!("thread {thread}, {sql}: {error:?}"));
        }
        made += 1;
    }
    made
}

#[test]
fn a_gallery_comes_and_goes_while_an_application_writes() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(&format!(
            "{RICH}; INSERT INTO notes (id, body, embedding) SELECT n, 'body ' || n, format('[%s,1]', n)::vector FROM generate_series(101, 4000) AS n"
        ))
        .unwrap();
    let before = form_of(&mut client, false);
    let is_over = AtomicBool::new(false);
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (address, is_over, made) = (&address, &is_over, &made);
            scope.spawn(move || {
                made.fetch_add(write_until(address, thread, is_over), Ordering::Relaxed);
            });
        }
        // A failure here ends the writers, too.
        let _at_the_end = Sets(&is_over);
        for _ in 0..3 {
            let store = adopt(&address, &options());
            for space in ["third", "fourth"] {
                store.create_space(&Space::new(space, 2, Distance::L2, false), Provenance::Native).unwrap();
                assert_eq!(store.check().unwrap(), vec![]);
            }
            store.drop_space("third").unwrap();
            assert_eq!(store.check().unwrap(), vec![]);
            store.release(None).unwrap();
        }
        adopt(&address, &options());
    });
    assert!(made.load(Ordering::Relaxed) > 100, "the application has written meanwhile");
    let store = PostgresStore::open(&address, &options(), Some("old")).unwrap();
    let looks = looks(&store, &address);
    let rows: i64 = client.query_one("SELECT count(*) FROM notes", &[]).unwrap().get(0);
    assert_eq!(looks.len() as i64, rows);
    store.release(None).unwrap();
    assert_eq!(form_of(&mut client, false), before);
    assert_eq!(left_of_us(&mut client), 0);
}

/// Many equal vectors keep an index of pgvector from finding others: it finds a third of these. A search for
/// all of a small gallery finds all.
#[test]
fn a_search_for_all_finds_all_beside_an_index() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.sql(
        "INSERT INTO notes SELECT n, '', 'body ' || n, '', format('[%s,0]', (n % 2) * 1000)::vector FROM generate_series(1, 2400) AS n;
         CREATE INDEX of_the_application ON notes USING hnsw (embedding vector_l2_ops)",
    );
    let query = Matrix::new(2, vec![0.0, 0.0]).unwrap();
    let found = |k| application.store.search("old", &query, k, &Filter::default()).unwrap().remove(0);
    assert!(found(10).iter().all(|hit| hit.distance == 0.0));
    assert_eq!(found(5_000).len(), 2_400);
}

/// Makes a gallery of more items than a search compares one by one, each with a vector of the new space of
/// this provenance (SQL), and no index yet. The server counts and frees nothing there by itself.
fn of_many_items(server: &server::Server, provenance: &str) -> Application {
    let mut application = Application::new(server, TABLE, &options());
    application.sql(&format!(
        "INSERT INTO notes SELECT n, '', 'body ' || n, '', '[1,1]' FROM generate_series(1, 21000) AS n;
         ALTER TABLE rehang.state_2 SET (autovacuum_enabled = off);
         ALTER TABLE rehang.vector_2 SET (autovacuum_enabled = off);
         INSERT INTO rehang.vector_2 SELECT item, format('[%s,%s,1]', sin(item), cos(item * 7))::vector FROM rehang.state_2;
         UPDATE rehang.state_2 SET provenance = {provenance}"
    ));
    application
}

/// Vectors are read by what a search has seen of their space, as long as it is the same space.
#[test]
fn vectors_that_are_read_after_a_search_are_those_of_now() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    let looks = application.fill();
    let store = &application.store;
    let keys = ["2", "1", "3"].map(|id| looks[id].key);
    let before = store.vectors("new", &keys).unwrap();
    assert_eq!(before.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    let query = Matrix::new(3, vec![1.0, 2.0, 3.0]).unwrap();
    store.search("new", &query, 2, &Filter::default()).unwrap();
    assert_eq!(store.vectors("new", &keys).unwrap(), before);
    store.drop_space("new").unwrap();
    let error = store.vectors("new", &keys).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{error}");
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    assert_eq!(store.vectors("new", &keys).unwrap(), [None, None, None]);
}

/// The trigger leaves an item to the library that is writing it with its vectors, and adapts every other row
/// of that transaction. An application that says what the library says leaves its own row for a run.
#[test]
fn what_the_library_writes_itself_the_trigger_does_not_adapt() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.sql(
        "CREATE SEQUENCE adapted;
         CREATE OR REPLACE FUNCTION rehang.adapted(gallery int, given real[], OUT space int, OUT value real[], OUT sigma2 real) LANGUAGE plpgsql STABLE AS $$
             BEGIN space := 2; value := '{1,2,3}'; sigma2 := nextval('public.adapted'); END $$;
         CREATE FUNCTION twin() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO public.notes (id, body, embedding) VALUES (NEW.id + 100, NEW.body, NEW.embedding); RETURN NULL; END $$;
         CREATE TRIGGER twin AFTER INSERT ON notes FOR EACH ROW WHEN (NEW.id < 100) EXECUTE FUNCTION twin()",
    );
    let times = |application: &mut Application| -> i64 {
        let sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM adapted";
        application.client.query_one(sql, &[]).unwrap().get(0)
    };
    for version in 0..2 {
        let write = ItemWrite {
            id: "1".into(),
            source: Some(format!("version {version}")),
            label: None,
            payload: json!(null),
            vectors: vec![
                NewVector::from_model("old", vec![1.0, version as f32], Provenance::Old),
                NewVector::from_model("new", vec![4.0, 5.0, 6.0], Provenance::Native),
            ],
        };
        application.store.put(&[write]).unwrap();
        assert_eq!(times(&mut application), 1, "its twin alone, which came with the first version");
    }
    let looks = application.looks();
    let made_by = |id: &str| looks[id].new;
    assert_eq!(["1", "101"].map(made_by), [Some(Provenance::Native), Some(Provenance::Adapted)]);
    application.sql(
        "BEGIN; SELECT set_config('rehang.written_item', number || ' 7', true) FROM rehang.gallery;
         INSERT INTO notes (id, body, embedding) VALUES (7, 'seven', '[1,1]'); COMMIT;
         INSERT INTO notes (id, body, embedding) VALUES (8, 'eight', '[1,1]')",
    );
    let looks = application.looks();
    let made_by = |id: &str| looks[id].new;
    let adapted = Some(Provenance::Adapted);
    assert_eq!(["7", "107", "8", "108"].map(made_by), [None, adapted, adapted, adapted]);
}

/// The index of the new space has the options of the application's own one, and so has that of the column at
/// a release, when the application's own one is gone.
#[test]
fn an_index_has_the_options_of_the_application_s_own() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application.sql(
        "INSERT INTO notes SELECT n, '', 'body ' || n, '', format('[%s,1]', n)::vector FROM generate_series(1, 1100) AS n;
         CREATE INDEX of_the_application ON notes USING hnsw (embedding vector_l2_ops) WITH (m = 8, ef_construction = 40);
         INSERT INTO rehang.vector_2 SELECT item, format('[%s,%s,1]', sin(item), cos(item * 7))::vector FROM rehang.state_2;
         UPDATE rehang.state_2 SET provenance = 'native'",
    );
    application.store.prepare("new", &|_, _| true).unwrap();
    application.sql("DROP INDEX of_the_application");
    application.store.switch_serving("old", "new").unwrap();
    application.store.settle("embedding_new", &|_, _| true).unwrap();
    let made =
        "SELECT count(*) FROM pg_class WHERE relname IN ('vector_2_nearest', 'notes_embedding_new_idx')
         AND reloptions @> ARRAY['m=8', 'ef_construction=40']";
    assert_eq!(application.client.query_one(made, &[]).unwrap().get::<_, i64>(0), 2);
}

/// A search by SQL reads the index right after a fill, when the server's statistics still say that all items
/// lack a vector. It finds what the library's own search finds, with a handicap and without one.
#[test]
fn searches_by_sql_look_into_the_index() {
    const MADE: &str = "CASE WHEN item % 50 = 0 THEN 'native' ELSE 'adapted' END";
    let Some(server) = server::server() else { return };
    let application = of_many_items(server, MADE);
    let store = &application.store;
    store.prepare("new", &|_, _| true).unwrap();
    server::client(&application.address)
        .batch_execute(&format!(
            "UPDATE rehang.state_2 SET provenance = 'lacking'; ANALYZE rehang.state_2; UPDATE rehang.state_2 SET provenance = {MADE}"
        ))
        .unwrap();
    store.switch_serving("old", "new").unwrap();
    let query = Matrix::new(3, vec![0.3, 0.4, 1.0]).unwrap();
    let found = |provenances: &[Provenance]| {
        let filter = Filter { provenances: provenances.to_vec(), ..Filter::default() };
        store.search("new", &query, 10, &filter).unwrap().remove(0)
    };
    let looked_up = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'vector_2_nearest'";
    for handicap in [0.0_f32, 0.001] {
        let mut expected: Vec<(f32, String)> = Vec::new();
        for (kind, more) in [(Provenance::Native, 0.0), (Provenance::Adapted, handicap)] {
            expected.extend(found(&[kind]).into_iter().map(|hit| (hit.distance + more, hit.id)));
        }
        expected.sort_by(|a, b| a.0.total_cmp(&b.0));
        expected.truncate(10);
        let version = store.document("upgrade").unwrap().map(|(version, _)| version);
        let text = format!(r#"{{"new": {{"model": "new"}}, "handicap": {handicap}}}"#);
        store.set_document("upgrade", version, &text).unwrap();
        let mut client = server::client(&application.address);
        let before: i64 = client.query_one(looked_up, &[]).unwrap().get(0);
        let rows =
            client.query("SELECT id, distance FROM rehang.search('notes', '[0.3,0.4,1]', 10)", &[]).unwrap();
        let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let id_of = |(_, id): &(f32, String)| id.clone();
        assert_eq!(ids, expected.iter().map(id_of).collect::<Vec<_>>(), "handicap {handicap}");
        assert!(
            rows.iter()
                .zip(&expected)
                .all(|(row, (distance, _))| (row.get::<_, f32>(1) - distance).abs() < 1e-6)
        );
        drop(client);
        let mut client = server::client(&application.address);
        // The session that has searched reports its counts when it ends.
        while client.query_one(looked_up, &[]).unwrap().get::<_, i64>(0) == before {}
    }
}

/// The functions of a database follow the rules of the library. A search looks at as many candidates of the
/// index, and sets back what it has set. A write takes vectors that are as near to length 1.
#[test]
fn functions_of_a_database_go_by_the_rules_of_the_library() {
    let Some(server) = server::server() else { return };
    let application = of_many_items(server, "'native'");
    let store = &application.store;
    store.create_space(&Space::new("unit", 2, Distance::Cosine, true), Provenance::Native).unwrap();
    store.prepare("new", &|_, _| true).unwrap();
    store.switch_serving("old", "new").unwrap();
    let mut client = server::client(&application.address);
    let query = Matrix::new(3, vec![0.3, 0.4, 1.0]).unwrap();
    let mut transaction = client.transaction().unwrap();
    transaction.batch_execute("SET LOCAL hnsw.ef_search = 7").unwrap();
    for k in [10_i32, 400] {
        let found = store.search("new", &query, k as usize, &Filter::default()).unwrap().remove(0);
        let rows =
            transaction.query("SELECT id FROM rehang.search('notes', '[0.3,0.4,1]', $1)", &[&k]).unwrap();
        let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(ids, found.into_iter().map(|hit| hit.id).collect::<Vec<_>>(), "{k} neighbours");
    }
    let setting = transaction.query_one("SELECT current_setting('hnsw.ef_search')", &[]).unwrap();
    assert_eq!(setting.get::<_, String>(0), "7");
    drop(transaction);
    let mut write = |beyond: f64| {
        let sql = format!("SELECT rehang.write('notes', '2', '[{},0]', 'unit')", 1.0 + beyond);
        client.query_one(&sql, &[]).map(|row| row.get::<_, bool>(0))
    };
    for side in [-1.0, 1.0] {
        assert!(write(side * 0.9 * NORMALISED_TOLERANCE).unwrap());
        let said = write(side * 1.1 * NORMALISED_TOLERANCE).unwrap_err();
        assert!(said.as_db_error().unwrap().message().contains("have length 1"), "{said}");
    }
}

/// The gallery's index knows how many bytes a vector it had when it was made, also beside one that the
/// application made. The room that replaced vectors left is given back when it is made again.
#[test]
fn an_index_knows_what_it_has_grown_by() {
    let Some(server) = server::server() else { return };
    let application = of_many_items(server, "'adapted'");
    let store = &application.store;
    assert_eq!(store.index_health("new").unwrap().growth, None, "no index yet");
    store.prepare("new", &|_, _| true).unwrap();
    let made = store.index_health("new").unwrap();
    assert!((made.growth.unwrap() - 1.0).abs() < 0.01, "{made:?}");
    let mut client = server::client(&application.address);
    // The server has counted the present vectors, and a second process finds nothing to do.
    let known =
        "SELECT most_common_vals::text FROM pg_stats WHERE tablename = 'state_2' AND attname = 'provenance'";
    assert_eq!(client.query_one(known, &[]).unwrap().get::<_, String>(0), "{adapted}");
    client
        .batch_execute(
            "CREATE INDEX a_first ON rehang.vector_2 USING hnsw (value vector_l2_ops);
             DELETE FROM rehang.vector_2;
             INSERT INTO rehang.vector_2 SELECT item, format('[%s,%s,2]', sin(item), cos(item * 7))::vector FROM rehang.state_2",
        )
        .unwrap();
    let grown = store.index_health("new").unwrap();
    assert!(grown.growth.unwrap() > 1.9 && grown.bytes > made.bytes, "{grown:?}");
    store.rebuild("new").unwrap();
    let again = store.index_health("new").unwrap();
    assert!((again.growth.unwrap() - 1.0).abs() < 0.01 && again.bytes < grown.bytes, "{again:?}");
}

/// An item that was left without a row is removed at the end of the adoption, except where a transaction is
/// about to write its row.
#[test]
fn adoption_keeps_an_item_whose_row_is_being_written() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client.batch_execute(TABLE).unwrap();
    client
        .batch_execute(
            "INSERT INTO notes SELECT n, '', 'body ' || n, '', '[1,1]' FROM generate_series(1, 10) AS n",
        )
        .unwrap();
    let mut writer = server::client(&address);
    let has_stopped = |_: u64, _: u64| false;
    PostgresStore::adopt(&address, &options(), Some("old"), &has_stopped).unwrap_err();
    // Rows 11 and 12 went while their page was read, which leaves these items.
    client
        .batch_execute("INSERT INTO rehang.item_1 (id, k1, revision, sourced) VALUES ('11', 11, 1, true), ('12', 12, 1, true)")
        .unwrap();
    writer.batch_execute("BEGIN; SELECT 1 FROM rehang.item_1 WHERE k1 = 11 FOR UPDATE").unwrap();
    std::thread::scope(|scope| {
        let adopted = scope.spawn(|| adopt(&address, &options()));
        let is_at_it = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND query ~ 'item_1.*NOT EXISTS')";
        while !client.query_one(is_at_it, &[]).unwrap().get::<_, bool>(0) {}
        writer.batch_execute("INSERT INTO notes VALUES (11, '', 'again', '', '[2,2]'); COMMIT").unwrap();
        let store = adopted.join().unwrap();
        let ids: Vec<String> = looks(&store, &address).into_keys().collect();
        assert_eq!(ids.len(), 11, "{ids:?}");
        assert!(ids.contains(&"11".to_owned()) && !ids.contains(&"12".to_owned()));
    });
}

#[test]
fn spaces_come_and_go_while_an_application_writes() {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    application
        .sql("INSERT INTO notes SELECT n, '', 'body ' || n, '', '[1,1]' FROM generate_series(1, 4000) AS n");
    let (address, store) = (&application.address, &application.store);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let is_over = &is_over;
            scope.spawn(move || write_until(address, thread, is_over));
        }
        let _at_the_end = Sets(&is_over);
        for _ in 0..8 {
            for space in ["third", "fourth"] {
                store.create_space(&Space::new(space, 2, Distance::L2, false), Provenance::Native).unwrap();
                assert_eq!(store.check().unwrap(), vec![]);
            }
            store.drop_space("fourth").unwrap();
            store.drop_space("third").unwrap();
        }
    });
    application.looks();
}

/// A table is emptied while its gallery is read and written: both go on.
#[test]
fn a_table_is_emptied_while_its_gallery_is_read() {
    for (table, truncate) in [
        (TABLE, "TRUNCATE notes"),
        (PARTITIONED, "TRUNCATE notes"),
        (PARTITIONED, "TRUNCATE low; TRUNCATE middle"),
    ] {
        is_emptied_while_its_gallery_is_read(table, truncate);
    }
}

fn is_emptied_while_its_gallery_is_read(table: &str, truncate: &str) {
    let Some(server) = server::server() else { return };
    let application = Application::new(server, table, &options());
    let (address, store) = (&application.address, &application.store);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        for name in ["left", "right"] {
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    let claimed = store.claim("new", Queue::All, name, 25, LEASE).unwrap();
                    let native_write = |record: &rehang_store::Record| {
                        write((record.item.key, record.item.revision), Provenance::Native)
                    };
                    let natives: Vec<_> = claimed.records.iter().map(native_write).collect();
                    store.write_vectors("new", None, &natives).unwrap();
                    store.scan(&Scan::new("old", Select::All, 100).with_vectors_of("new")).unwrap();
                    let query = Matrix::new(2, vec![0.0; 2]).unwrap();
                    store.search("old", &query, 10, &Filter::default()).unwrap();
                    store.get(&["1", "2"]).unwrap();
                }
            });
        }
        let _at_the_end = Sets(is_over);
        let mut client = server::client(address);
        for round in 0..200 {
            let sql = format!(
                "{truncate}; INSERT INTO notes SELECT n, '', 'body', '', '[1,1]' FROM generate_series(1, 30) AS n"
            );
            client.batch_execute(&sql).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        }
    });
    assert_eq!(application.looks().len(), 30);
}
