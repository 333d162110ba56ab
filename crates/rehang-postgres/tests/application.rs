//! An application that knows nothing of a gallery writes its own table by plain SQL, and the gallery says what is there.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;
use rehang::{Distance, Matrix, Provenance, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Band, Epoch, Filter, Index as _, ItemKey, ItemWrite, Ledger, Outcome, Priority, Queue, Revision, Scan, Select,
    VectorWrite,
};
use serde_json::json;

const LEASE: Duration = Duration::from_secs(1000);

/// A table as applications make them, and its gallery: the old vectors are its column, those of the new model are in a table of ours.
struct Application {
    address: String,
    client: Client,
    store: PostgresStore,
}

/// What of an item the application's writes may change.
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

const TABLE: &str = "CREATE TABLE notes (id bigint PRIMARY KEY, title text, body text, topic text, embedding vector(2))";

fn options() -> TableOptions {
    TableOptions {
        table: "notes".into(),
        source: Some("body".into()),
        label: Some("topic".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

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

    /// Everything that the gallery says, held against each other and against the doctor.
    fn looks(&self) -> Looks {
        looks(&self.store, &self.address)
    }

    /// Rows 1 to 4 with vectors of the old model. In the new space, 1 and 4 are native, 2 is adapted and leased, 3 has failed.
    fn fill(&mut self) -> Looks {
        self.sql(
            "TRUNCATE notes;
             INSERT INTO notes SELECT n, 'title', 'body ' || n, 'topic', format('[%s,0]', n)::vector FROM generate_series(1, 4) AS n",
        );
        self.settle()
    }

    fn settle(&self) -> Looks {
        let of = self.looks();
        let at = |id: &str| (of[id].key, of[id].revision);
        let store = &self.store;
        let native = [write(at("1"), Provenance::Native), write(at("4"), Provenance::Native)];
        assert_eq!(store.write_vectors("new", None, &native).unwrap(), [Outcome::Written; 2]);
        let adapted = [write(at("2"), Provenance::Adapted)];
        assert_eq!(store.write_vectors("new", Some(Epoch::FIRST), &adapted).unwrap(), [Outcome::Written]);
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
        let number: i32 = client.query_one("SELECT number FROM rehang.space WHERE name = 'new'", &[]).unwrap().get(0);
        let sql = format!("SELECT item FROM rehang.claim_{number}");
        client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    let failures = store.failures("new", None, 1_000_000).unwrap();
    let failed: BTreeMap<ItemKey, Revision> = failures.iter().map(|failure| (failure.key, failure.revision)).collect();
    let scan = |space: &str| {
        store.scan(&Scan::new(space, Select::All, 1_000_000).with_vectors_of(space)).unwrap()
    };
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
        assert!(failed.get(&item.key).is_none_or(|revision| *revision == item.revision), "no failure of another revision");
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
        let with_vector = found.values().filter(|look| if space == "old" { look.old } else { look.new }.is_some()).count();
        assert_eq!((counts.items - counts.lacking) as usize, with_vector);
        let width = if space == "old" { 2 } else { 3 };
        let query = Matrix::new(width, vec![0.0; width]).unwrap();
        let hits = store.search(space, &query, 1_000_000, &Filter::default()).unwrap().remove(0);
        assert_eq!(hits.len(), with_vector, "a search finds every vector");
        assert!(hits.iter().all(|hit| found[&hit.id].revision == hit.revision));
    }
    found
}

/// What a write of the application does to an item.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// Another revision of the same item; whether the column's vector is of this content.
    Changed(bool),
    Gone,
    /// An item that was not there before, or another one by the same id.
    New(bool),
}

/// Holds what is there now against what was there. Ids that are not named are as they were.
fn expect(before: &Looks, after: &Looks, fates: &[(&str, Fate)], what: &str) {
    let named: BTreeMap<&str, Fate> = fates.iter().copied().collect();
    for (id, was) in before {
        if !named.contains_key(id.as_str()) {
            assert_eq!(after.get(id), Some(was), "{what}: item {id} is as it was");
        }
    }
    for id in after.keys() {
        assert!(before.contains_key(id) || named.contains_key(id.as_str()), "{what}: where does {id} come from?");
    }
    let keys: BTreeSet<ItemKey> = before.values().map(|look| look.key).collect();
    let revisions: BTreeSet<Revision> = before.values().map(|look| look.revision).collect();
    for (id, fate) in named {
        let now = after.get(id);
        let (Fate::Changed(has_old) | Fate::New(has_old)) = fate else {
            assert_eq!(now, None, "{what}: item {id} is gone");
            continue;
        };
        let now = now.unwrap_or_else(|| panic!("{what}: item {id} is there"));
        match fate {
            Fate::Changed(_) => assert_eq!(now.key, before[id].key, "{what}: item {id} is the same one"),
            _ => assert!(!keys.contains(&now.key), "{what}: item {id} is another one"),
        }
        assert!(!revisions.contains(&now.revision), "{what}: item {id} has a revision that nobody had");
        assert_eq!(now.old, has_old.then_some(Provenance::Old), "{what}: item {id} in the old space");
        assert_eq!(now.new, None, "{what}: item {id} in the new space");
        assert!(!now.is_failed && !now.is_leased, "{what}: failure and lease of item {id} are gone");
    }
}

/// A write, and what becomes of the items that it touches.
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

use Fate::{Changed, Gone, New};

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
        &[("1", Changed(true)), ("2", Changed(true)), ("3", Changed(true))],
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
        &[("1", Changed(false)), ("2", Changed(false)), ("3", Changed(false))],
    ),
    step(
        "the vector goes and comes back",
        "UPDATE notes SET embedding = NULL WHERE id = 2; UPDATE notes SET embedding = '[2,0]' WHERE id = 2",
        &[("2", Changed(true))],
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
        &[("1", Gone), ("2", Gone), ("3", Gone), ("101", New(true)), ("102", New(true)), ("103", New(true))],
    ),
    step(
        "two keys change places",
        "UPDATE notes SET id = 0 WHERE id = 1; UPDATE notes SET id = 1 WHERE id = 2; UPDATE notes SET id = 2 WHERE id = 0",
        &[("1", New(true)), ("2", New(true))],
    ),
    step(
        "keys move up, the last one first",
        "UPDATE notes SET id = 5 WHERE id = 4; UPDATE notes SET id = 4 WHERE id = 3",
        &[("3", Gone), ("4", New(true)), ("5", New(true))],
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
        "TRUNCATE notes; INSERT INTO notes (id, body, embedding) VALUES (1, 'body 1', '[1,0]')",
        &[("1", New(true)), ("2", Gone), ("3", Gone), ("4", Gone)],
    ),
    step(
        "savepoints",
        "SAVEPOINT a; UPDATE notes SET body = 'a' WHERE id = 1; SAVEPOINT b; DELETE FROM notes WHERE id = 2; TRUNCATE notes;
         ROLLBACK TO b; UPDATE notes SET embedding = '[4,4]' WHERE id = 3; RELEASE a",
        &[("1", Changed(false)), ("3", Changed(true))],
    ),
    Step {
        name: "copy",
        run: Run::Copy("COPY notes (id, body, embedding) FROM STDIN", "5\tfive\t[5,0]\n6\tsix\t\\N\n7\t\\N\t[1,1]\n"),
        fates: &[("5", New(true)), ("6", New(false)), ("7", New(true))],
    },
];

/// Every step, undone by a rollback and by a savepoint, and then done.
fn go_through_the_steps(session: &str, begin: &str) {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    // Roles are those of the whole server, so the name is this database's.
    let role = format!("application_{}", application.address.rsplit("test_").next().unwrap().split('?').next().unwrap());
    application.sql(&format!(
        "CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON notes TO {role}; GRANT USAGE ON SCHEMA public TO {role}"
    ));
    let mut client = server::client(&application.address);
    client.batch_execute(&session.replace("$role", &role)).unwrap();
    for step in STEPS {
        let before = application.fill();
        let what = |way: &str| format!("{} ({way}, {session}{begin})", step.name);
        let ready = |done: Result<(), postgres::Error>| done.unwrap_or_else(|error| panic!("{}: {error:?}", what("run")));
        ready(client.batch_execute(begin));
        ready(step.run.run(&mut client));
        assert_eq!(application.store.name(), format!("{} notes", application.store.name().rsplit_once(' ').unwrap().0));
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
        expect(&before, &application.looks(), step.fates, &what("commit"));
    }
    drop(client);
    application.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn writes_at_read_committed() {
    go_through_the_steps("", "BEGIN");
}

#[test]
fn writes_at_repeatable_read() {
    go_through_the_steps("", "BEGIN ISOLATION LEVEL REPEATABLE READ");
}

#[test]
fn writes_at_serializable() {
    go_through_the_steps("", "BEGIN ISOLATION LEVEL SERIALIZABLE");
}

#[test]
fn writes_of_a_session_that_replicates() {
    go_through_the_steps("SET session_replication_role = replica;", "BEGIN");
}

#[test]
fn writes_of_a_role_without_rights_on_our_schema() {
    go_through_the_steps("SET ROLE $role;", "BEGIN");
}

#[test]
fn writes_of_a_session_that_sees_no_schema() {
    // The steps name the table without its schema, so it is put before them by a schema of aliases: here only the path is hostile.
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

/// The number of a step, of the gallery's own writes, that an application with a snapshot from before it meets.
fn with_an_older_snapshot(isolation: &str, ours: &dyn Fn(&Application, &Looks), theirs: &str, fates: &[(&str, Fate)]) {
    let Some(server) = server::server() else { return };
    let mut application = Application::new(server, TABLE, &options());
    let before = application.fill();
    let mut client = server::client(&application.address);
    let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM pg_class");
    client.batch_execute(&begin).unwrap();
    ours(&application, &before);
    let middle = application.looks();
    match client.batch_execute(theirs).and_then(|()| client.batch_execute("COMMIT")) {
        Ok(()) => {}
        Err(error) => {
            // At these levels the server may ask an application to begin again, and it has to do so for its own sake, too.
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
    let written = application.store.write_vectors("new", None, &[write((look.key, look.revision), Provenance::Native)]);
    assert_eq!(written.unwrap(), [Outcome::Written]);
}

#[test]
fn snapshots_from_before_a_vector_was_written() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let ours = |application: &Application, looks: &Looks| write_native(application, looks, "2");
        with_an_older_snapshot(isolation, &ours, "UPDATE notes SET body = 'x' WHERE id = 2", &[("2", Changed(false))]);
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
        with_an_older_snapshot(isolation, &ours, "UPDATE notes SET body = 'x' WHERE id = 2", &[("2", Changed(false))]);
        with_an_older_snapshot(isolation, &ours, "DELETE FROM notes WHERE id = 2", &[("2", Gone)]);
    }
}

fn release_and_claim(application: &Application, _: &Looks) {
    Ledger::release(&application.store, "new", "worker", None).unwrap();
    application.store.claim("new", Queue::All, "another", 10, LEASE).unwrap();
}

#[test]
fn snapshots_from_before_an_item_was_claimed() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        with_an_older_snapshot(isolation, &release_and_claim, "UPDATE notes SET body = 'x' WHERE id = 2", &[("2", Changed(false))]);
        with_an_older_snapshot(isolation, &release_and_claim, "DELETE FROM notes WHERE id = 2", &[("2", Gone)]);
    }
}

#[test]
fn snapshots_from_before_a_space_was_made() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let ours = |application: &Application, _: &Looks| {
            let third = Space::new("third", 2, Distance::L2, false);
            application.store.create_space(&third, Provenance::Native).unwrap();
        };
        with_an_older_snapshot(isolation, &ours, "UPDATE notes SET body = 'x' WHERE id = 1", &[("1", Changed(false))]);
        with_an_older_snapshot(isolation, &ours, "DELETE FROM notes WHERE id = 1", &[("1", Gone)]);
    }
}

#[test]
fn snapshots_from_before_the_adoption() {
    let Some(server) = server::server() else { return };
    for (isolation, theirs, left) in [
        ("REPEATABLE READ", "DELETE FROM notes WHERE id = 1", 1),
        ("SERIALIZABLE", "DELETE FROM notes WHERE id = 1", 1),
        ("REPEATABLE READ", "UPDATE notes SET body = 'x' WHERE id = 1", 2),
        ("REPEATABLE READ", "UPDATE notes SET id = 3 WHERE id = 1", 2),
    ] {
        let address = server.database();
        let mut client = server::client(&address);
        client.batch_execute(&format!("{TABLE}; INSERT INTO notes (id, body) VALUES (1, 'one'), (2, 'two')")).unwrap();
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
