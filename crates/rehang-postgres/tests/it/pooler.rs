//! A pooler in transaction mode between everybody and the server. Each transaction meets another session of
//! the server, and whatever one leaves there the next one meets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::{Client, SimpleQueryMessage};
use rehang_core::{Distance, Matrix, Provenance, Remedy, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Epoch, Examined, Filter, Index, Item, Ledger, Queue, Scan, Select, VectorWrite, WriteOutcome,
};

use crate::bouncer::Pooler;
use crate::notes::options;
use crate::server;

const ROWS: i64 = 600;

/// Runs a statement without parameters in one message, and returns the first column of its rows.
fn ask(client: &mut Client, sql: &str) -> Vec<String> {
    let answer = client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    answer
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        })
        .collect()
}

/// Query for what a session of the server has that it had not when it began: settings,
/// statements, locks, tables.
const KEPT: &str = "SELECT format('%s = %s', name, setting) FROM pg_settings WHERE source = 'session'
         AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', 'transaction_isolation')
     UNION ALL SELECT format('statement %s: %s', name, statement) FROM pg_prepared_statements
     UNION ALL SELECT 'an advisory lock' FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
     UNION ALL SELECT format('temporary table %s', relname) FROM pg_class WHERE relpersistence = 't'
     UNION ALL SELECT format('cursor %s', name) FROM pg_cursors WHERE name <> ''
     UNION ALL SELECT format('channel %s', name) FROM pg_listening_channels() AS name";

/// Returns the new vector of an item, which plain SQL can make of its body, too.
fn embed(item: &Item) -> Vec<f32> {
    let source = item.source.clone().unwrap();
    let mut words = source.split(' ').skip(1).map(|word| word.parse::<f32>().unwrap());
    vec![words.next().unwrap(), words.next().unwrap(), 1.0]
}
/// Query that counts the rows whose vector in a column is not the one of their body.
const WRONG: &str = "SELECT count(*) FROM notes WHERE embedding_new IS NULL
     OR embedding_new <> format('[%s,%s,1]', split_part(body, ' ', 2), split_part(body, ' ', 3))::vector";

/// Works on the queue over connections of its own, for `batches` batches or until nothing is left.
fn work(address: &str, name: &str, batches: usize) {
    let store = PostgresStore::open(address, &options(), Some("old")).unwrap();
    for _ in 0..batches {
        let claimed = store.claim("new", Queue::All, name, 32, Duration::from_mins(1)).unwrap();
        if claimed.records.is_empty() && claimed.held_by_others == 0 {
            return;
        }
        let writes: Vec<VectorWrite> = claimed
            .records
            .iter()
            .map(|record| VectorWrite::native(&record.item, embed(&record.item)))
            .collect();
        for outcome in store.write_vectors("new", None, &writes).unwrap() {
            assert!([WriteOutcome::Written, WriteOutcome::Changed, WriteOutcome::Deleted].contains(&outcome));
        }
        let keys: Vec<_> = claimed.records.iter().map(|record| record.item.key).collect();
        Ledger::release(&store, "new", name, Some(&keys)).unwrap();
    }
}

/// Writes and reads as an application does, and looks at its session each time. Returns how often it did.
fn apply(address: &str, own: i64, changes_bodies: &AtomicBool, is_over: &AtomicBool) -> i64 {
    let mut client = server::client(address);
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) {
        rounds += 1;
        assert_eq!(ask(&mut client, KEPT), Vec::<String>::new(), "round {rounds}");
        // Two such applications never write the same row.
        let id = rounds * 2 % ROWS + own;
        let change = if changes_bodies.load(Ordering::Relaxed) {
            format!(
                "UPDATE notes SET body = format('body %s %s', id, {rounds}) WHERE id = {id};
                 DELETE FROM notes WHERE id = {gone}; INSERT INTO notes VALUES ({gone}, 'body {gone} {rounds}', 0, '[1,1]')",
                gone = (id + ROWS / 2) % ROWS
            )
        } else {
            format!("UPDATE notes SET seen = seen + 1 WHERE id = {id}")
        };
        ask(&mut client, &format!("BEGIN; SELECT body FROM notes WHERE id = {id}; {change}; COMMIT"));
        rehang_clock::wait(Duration::from_millis(2));
    }
    rounds
}

#[test]
fn the_whole_way_goes_through_a_pooler_beside_an_application() {
    let Some(server) = server::server() else { return };
    for more in ["", "ignore_startup_parameters = extra_float_digits,options"] {
        let direct = server.database();
        let Some(pooler) = Pooler::before(server.address(), more) else { return };
        go_through(&direct, &pooler.through(&direct));
    }
}

fn go_through(direct: &str, address: &str) {
    let mut client = server::client(direct);
    client
        .batch_execute(&format!(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, seen int DEFAULT 0, embedding vector(2));
             INSERT INTO notes SELECT n, format('body %s 0', n), 0, format('[%s,1]', n)::vector FROM generate_series(0, {ROWS}) AS n"
        ))
        .unwrap();
    let (changes_bodies, is_over) = (AtomicBool::new(true), AtomicBool::new(false));
    let (changes_bodies, is_over) = (&changes_bodies, &is_over);
    let rounds = thread::scope(|scope| {
        let application: Vec<_> =
            (0..2).map(|own| scope.spawn(move || apply(address, own, changes_bodies, is_over))).collect();
        let way = scope.spawn(move || upgrade(address, changes_bodies));
        let went = way.join();
        is_over.store(true, Ordering::Relaxed);
        let rounds: i64 = application.into_iter().map(|thread| thread.join().unwrap()).sum();
        if let Err(panic) = went {
            std::panic::resume_unwind(panic);
        }
        rounds
    });
    assert!(rounds > 20, "the application was at work meanwhile: {rounds}");
    assert_eq!(ask(&mut client, WRONG), ["0"], "no vector is lost, and none is of another content");
    assert_eq!(ask(&mut client, "SELECT count(*) FROM notes"), [(ROWS + 1).to_string()]);
    assert_eq!(ask(&mut client, "SELECT to_regnamespace('rehang') IS NULL"), ["t"]);
    let indexes = "SELECT indisvalid FROM pg_index WHERE indrelid = 'notes'::regclass AND NOT indisprimary";
    assert_eq!(ask(&mut client, indexes), ["t"]);
}

/// Takes a table through a whole upgrade, back to a table, with every step in between.
fn upgrade(address: &str, changes_bodies: &AtomicBool) {
    PostgresStore::inspect(address, &options()).unwrap();
    let with_expression = TableOptions { source: Some("lower(body)".into()), ..options() };
    PostgresStore::statements(address, &with_expression).unwrap();
    let store = PostgresStore::adopt(address, &options(), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    let lock = store.hold().unwrap();
    let error = store.hold().unwrap_err();
    assert_eq!(error.remedy(), Some(&Remedy::AwaitOtherProcess), "{error}");
    // The start: everything that has an old vector is adapted.
    let mut after = None;
    loop {
        let page = store
            .scan(&Scan { after, vectors_of: Some("old".into()), ..Scan::new("new", Select::All, 100) })
            .unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.item.key);
        let writes: Vec<VectorWrite> = page
            .iter()
            .filter(|record| record.vector.is_some())
            .map(|record| VectorWrite {
                key: record.item.key,
                revision: record.item.revision,
                provenance: Provenance::Adapted,
                sigma2: Some(0.5),
                priority: None,
                squared_error: None,
                vector: vec![0.0, 0.0, 1.0],
            })
            .collect();
        store.write_vectors("new", Some(Epoch::FIRST), &writes).unwrap();
    }
    store.prepare("new", &|_, _| true).unwrap();
    store.switch_serving("old", "new").unwrap();
    thread::scope(|scope| {
        for name in ["one", "two"] {
            scope.spawn(move || work(address, name, 30));
        }
        for _ in 0..20 {
            let query = Matrix::new(3, vec![300.0, 0.0, 1.0]).unwrap();
            let found = store.search("new", &query, 5, &Filter::default()).unwrap();
            assert_eq!(found[0].len(), 5);
            assert_eq!(store.vectors("new", &[found[0][0].key]).unwrap().len(), 1);
        }
    });
    store.switch_serving("new", "old").unwrap();
    store.switch_serving("old", "new").unwrap();
    changes_bodies.store(false, Ordering::Relaxed);
    // Changes of the application that were open in that moment are over by the second look.
    for _ in 0..2 {
        rehang_clock::wait(Duration::from_millis(50));
        work(address, "three", usize::MAX);
    }
    assert_eq!(store.check().unwrap(), []);
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.items, counts.native), (ROWS as u64 + 1, ROWS as u64 + 1));
    store.drop_space("old").unwrap();
    store.compact().unwrap();
    drop(lock);
    store.settle("embedding_new", &|_, _| true).unwrap();
    store.release(Some("embedding_new")).unwrap();
}

#[test]
fn who_works_on_an_upgrade_is_known_through_a_pooler_and_beside_it() {
    let Some(server) = server::server() else { return };
    let direct = server.database();
    let Some(pooler) = Pooler::before(server.address(), "") else { return };
    let mut client = server::client(&direct);
    client
        .batch_execute("CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2))")
        .unwrap();
    let store = PostgresStore::adopt(&direct, &options(), Some("old"), &|_, _| true).unwrap();
    let pooled = PostgresStore::open(&pooler.through(&direct), &options(), Some("old")).unwrap();
    for (first, second) in [(&store, &pooled), (&pooled, &store), (&pooled, &pooled), (&store, &store)] {
        let held = first.hold().unwrap();
        let error = second.hold().unwrap_err();
        assert_eq!(error.remedy(), Some(&Remedy::AwaitOtherProcess), "{error}");
        drop(held);
        drop(second.hold().unwrap());
    }
    // A holder that spoke to the server directly and is gone is not waited for; the lease of one
    // behind a pooler runs out.
    for (process, seconds) in [("'1 2'", 3600), ("NULL", 1)] {
        client
            .batch_execute(&format!(
                "INSERT INTO rehang.document VALUES (1, 'rehang.hold', 1, jsonb_build_object('holder', 'gone',
                     'until', extract(epoch FROM clock_timestamp()) + {seconds}, 'process', {process})::text)"
            ))
            .unwrap();
        drop(pooled.hold().unwrap());
    }
}

#[test]
fn a_rule_of_the_pooler_s_sessions_that_would_end_an_index_is_told() {
    let Some(server) = server::server() else { return };
    let direct = server.database();
    let Some(pooler) = Pooler::before(server.address(), "") else { return };
    let mut client = server::client(&direct);
    let name = ask(&mut client, "SELECT current_database()").remove(0);
    client
        .batch_execute(&format!(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2)); INSERT INTO notes VALUES (1, 'body', '[1,1]');
             ALTER DATABASE {name} SET statement_timeout = '7s'"
        ))
        .unwrap();
    let address = pooler.through(&direct);
    let store = PostgresStore::adopt(&address, &options(), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    store.switch_serving("new", "new").unwrap();
    let error = store.settle("embedding_new", &|_, _| true).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let sentence = error.to_string();
    assert!(
        sentence.contains("statement_timeout = 7000ms") && sentence.contains("the server itself"),
        "{sentence}"
    );
    let store = PostgresStore::open(&direct, &options(), Some("old")).unwrap();
    store.settle("embedding_new", &|_, _| true).unwrap();
    store.release(Some("embedding_new")).unwrap();
}
