//! Rows that are written anew, with the ids and the sources that they had before.

use postgres::Client;
use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_postgres::PostgresStore;
use rehang_store::{Counts, Examined, Filter, Index, Ledger, Scan, Select, VectorWrite};

use crate::notes::options;
use crate::server;

const ROWS: &str =
    "INSERT INTO notes SELECT n, 'body ' || n, format('[%s,1]', n)::vector FROM generate_series(1, 30) AS n";

fn gallery(table: &str) -> Option<(PostgresStore, Client, String)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client.batch_execute(&format!("{table}; {ROWS}")).unwrap();
    let store = PostgresStore::adopt(&address, &options(), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    let records = store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
    let native = |record: &rehang_store::Record| {
        let number: f32 = record.item.source.as_ref().unwrap()[5..].parse().unwrap();
        VectorWrite::native(&record.item, vec![number, 0.0, 1.0])
    };
    store.write_vectors("new", None, &records.iter().map(native).collect::<Vec<_>>()).unwrap();
    store.switch_serving("old", "new").unwrap();
    Some((store, client, address))
}

const WHOLE: &str = "CREATE TABLE notes (id int PRIMARY KEY, body text, embedding vector(2))";
const PARTED: &str = "CREATE TABLE notes (id int PRIMARY KEY, body text, embedding vector(2)) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF notes FOR VALUES FROM (0) TO (10); CREATE TABLE high PARTITION OF notes DEFAULT";

fn counts(store: &PostgresStore) -> (u64, u64) {
    let Counts { items, native, .. } = store.counts("new").unwrap();
    (items, native)
}

#[test]
fn a_nightly_refresh_costs_nothing_and_searches_find_it_at_once() {
    for table in [WHOLE, PARTED] {
        let Some((store, mut client, _)) = gallery(table) else { return };
        for sql in [
            format!("DELETE FROM notes; {ROWS}"),
            format!("TRUNCATE notes; {ROWS}"),
            // The rows go and come in two transactions, and as a whole once more.
            "DELETE FROM notes WHERE id < 20".into(),
            format!("{ROWS} ON CONFLICT DO NOTHING"),
            "BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM notes".to_owned()
                + &format!("; {ROWS}; COMMIT"),
        ] {
            client.batch_execute(&sql).unwrap();
            if sql.contains("< 20") {
                assert_eq!(counts(&store), (11, 11), "{table}: {sql}");
                continue;
            }
            assert_eq!(counts(&store), (30, 30), "{table}: {sql}");
            let found = client.query("SELECT id FROM rehang.search('notes', '[7,0,1]', 3)", &[]).unwrap();
            let found: Vec<String> = found.iter().map(|row| row.get(0)).collect();
            assert!(found.len() == 3 && found[0].contains('7'), "{table}: {sql}: {found:?}");
            let queries = Matrix::new(3, vec![7.0, 0.0, 1.0]).unwrap();
            let found = store.search("new", &queries, 1, &Filter::default()).unwrap().remove(0);
            assert_eq!((found[0].distance, found[0].provenance), (0.0, Provenance::Native), "{table}: {sql}");
            assert_eq!(store.check().unwrap(), [], "{table}: {sql}");
        }
        // A text that differs makes another item. A rollback of the deletion keeps
        // everything that was paid for.
        client
            .batch_execute(
                "BEGIN; DELETE FROM notes; INSERT INTO notes SELECT n, 'other ' || n, '[1,1]' FROM generate_series(1, 30) AS n",
            )
            .unwrap();
        client.batch_execute("ROLLBACK").unwrap();
        assert_eq!(counts(&store), (30, 30));
        client.batch_execute("UPDATE notes SET id = id + 100; DELETE FROM notes; INSERT INTO notes SELECT n, 'body ' || n, '[1,1]' FROM generate_series(31, 60) AS n").unwrap();
        assert_eq!(counts(&store), (30, 0), "{table}");
    }
}

/// A row ceases to meet the condition and meets it again, for example one that is hidden for a while.
#[test]
fn what_comes_back_to_the_condition_has_its_vector() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute("CREATE TABLE notes (id int PRIMARY KEY, body text, embedding vector(2), hidden bool NOT NULL DEFAULT false);
            INSERT INTO notes VALUES (1, 'body 1', '[1,1]'), (2, 'body 2', '[2,1]')")
        .unwrap();
    let options = rehang_postgres::TableOptions { condition: Some("NOT hidden".into()), ..options() };
    let store = PostgresStore::adopt(&address, &options, Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    let records = store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
    let writes: Vec<_> =
        records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
    store.write_vectors("new", None, &writes).unwrap();
    client.batch_execute("UPDATE notes SET hidden = true WHERE id = 1").unwrap();
    assert_eq!(counts(&store), (1, 1));
    client.batch_execute("UPDATE notes SET hidden = false").unwrap();
    assert_eq!(counts(&store), (2, 2));
    client
        .batch_execute("UPDATE notes SET hidden = true; UPDATE notes SET hidden = false, body = 'x'")
        .unwrap();
    assert_eq!(counts(&store), (2, 0));
    assert_eq!(store.check().unwrap(), []);
}

/// Nobody else sees anything, neither with the rights that the page gives to who searches and writes, nor
/// with what default privileges give.
#[test]
fn nobody_but_the_owner_sees_what_is_kept_and_old_rows_are_cleared_away() {
    let Some((store, mut client, address)) = gallery(WHOLE) else { return };
    let role = crate::refusals::role(&address, "app");
    client
        .batch_execute(&format!(
            "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA rehang TO {role};
             GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO {role}; GRANT SELECT, DELETE ON notes TO {role}; DELETE FROM notes WHERE id <= 20"
        ))
        .unwrap();
    let kept = |client: &mut Client| -> i64 {
        client.query_one("SELECT count(*) FROM rehang.paid_2", &[]).unwrap().get(0)
    };
    let mut app = server::client(&crate::refusals::as_user(&address, &role));
    assert_eq!((kept(&mut client), kept(&mut app)), (20, 0));
    assert_eq!(
        app.execute("DELETE FROM notes WHERE id = 21", &[]).unwrap(),
        1,
        "and its writes need no right"
    );
    client.batch_execute("UPDATE rehang.paid_2 SET kept = kept - interval '25 hours'").unwrap();
    client.batch_execute(ROWS.replace("1, 30", "1, 5").as_str()).unwrap();
    assert_eq!(counts(&store), (14, 9), "after a day it is paid for again");
    for id in 22..=30 {
        client.execute("DELETE FROM notes WHERE id = $1", &[&id]).unwrap();
    }
    assert_eq!(kept(&mut client), 21 - 2 * 9 + 9, "each deletion clears two of them away");
    drop(store);
    client.batch_execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).unwrap();
}

/// An application may delete any number of rows in a day: the vectors that wait take no more room than the
/// gallery itself, or 64 MB.
#[test]
fn what_is_kept_is_bounded_in_size() {
    let Some((store, mut client, _)) = gallery(WHOLE) else { return };
    let many = |before: &str| {
        format!(
            "INSERT INTO rehang.paid_2 SELECT sha256(n::text::bytea), -n, now() - interval '{before}', '[1,2,3]' FROM generate_series(1, 700000) AS n"
        )
    };
    let kept = |client: &mut Client| -> (i64, i64) {
        let row = client
            .query_one("SELECT count(*), count(*) FILTER (WHERE item > 0) FROM rehang.paid_2", &[])
            .unwrap();
        (row.get(0), row.get(1))
    };
    client.batch_execute(&many("2 hours")).unwrap();
    client.batch_execute("DELETE FROM notes WHERE id <= 10").unwrap();
    assert_eq!(kept(&mut client), (700_000, 10), "each deletion clears away what waited longest");
    client.batch_execute(&format!("TRUNCATE notes; {ROWS}")).unwrap();
    assert_eq!(kept(&mut client), (20, 20), "what waited before a TRUNCATE goes, since all rows wait now");
    assert_eq!(counts(&store), (30, 20));
    // Vectors that take no more room than they may wait on, until they are too old.
    client.batch_execute("VACUUM FULL rehang.paid_2").unwrap();
    client.batch_execute(&format!("TRUNCATE notes; {ROWS}")).unwrap();
    assert_eq!(kept(&mut client), (40, 40));
    client.batch_execute("UPDATE rehang.paid_2 SET kept = kept - interval '25 hours'").unwrap();
    client.batch_execute(&format!("TRUNCATE notes; {ROWS}")).unwrap();
    assert_eq!((kept(&mut client), counts(&store)), ((20, 20), (30, 20)));
    assert_eq!(store.check().unwrap(), []);
}

/// A gallery of an earlier version has no such table until it is adopted once more, and
/// loses nothing by that.
#[test]
fn a_gallery_of_an_earlier_version_gets_the_table() {
    let Some((store, mut client, address)) = gallery(WHOLE) else { return };
    client.batch_execute("DROP TABLE rehang.paid_2").unwrap();
    drop(store);
    let store = PostgresStore::adopt(&address, &options(), Some("old"), &|_, _| true).unwrap();
    client.batch_execute(&format!("TRUNCATE notes; {ROWS}")).unwrap();
    assert_eq!(counts(&store), (30, 30));
    assert_eq!(store.check().unwrap(), []);
}

/// An owner who has to have a deleted row gone at once keeps none: nothing new from the next adoption on, and
/// nothing that waited before.
#[test]
fn none_is_kept_where_none_is_to_be() {
    let Some((store, mut client, address)) = gallery(WHOLE) else { return };
    client.batch_execute("DELETE FROM notes WHERE id = 1").unwrap();
    drop(store);
    let none = rehang_postgres::TableOptions { keep_paid_s: Some(0), ..options() };
    let store = PostgresStore::adopt(&address, &none, Some("old"), &|_, _| true).unwrap();
    client.batch_execute(&format!("DELETE FROM notes WHERE id < 10; TRUNCATE notes; {ROWS}")).unwrap();
    assert_eq!(counts(&store), (30, 0));
    let kept: i64 = client.query_one("SELECT count(*) FROM rehang.paid_2", &[]).unwrap().get(0);
    assert_eq!((kept, store.check().unwrap()), (0, vec![]));
}
