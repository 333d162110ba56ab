//! What the owner of a table does that knows nothing of a gallery: names change, rules come, the table goes; and what lies beside it: other
//! tables that an expression reads, and publications that carry what is written to other servers.

use postgres::Client;
use rehang::{Distance, ErrorKind, Provenance, Remedy, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined, Ledger, Scan, Select, VectorWrite, WriteOutcome};

use crate::server;

fn options() -> TableOptions {
    TableOptions {
        table: "notes".into(),
        source: Some("body".into()),
        label: Some("topic".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

fn adopt(address: &str, options: &TableOptions) -> rehang::Result<PostgresStore> {
    let store = PostgresStore::adopt(address, options, Some("old"), &|_, _| true)?;
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old)?;
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native)?;
    Ok(store)
}

/// Four rows.
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
        PostgresStore::open(&address, &old_names, Some("old")).unwrap_err(),
        adopt(&address, &old_names).unwrap_err(),
    ] {
        let sentence = error.to_string();
        assert!(error.is_conflict() && sentence.contains("\"body\" is called \"content\" now"), "{sentence}");
    }
    let error = PostgresStore::open(&address, &now, Some("old")).unwrap_err();
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

/// Whether anything of ours is in the database.
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
        // One that comes later is the doctor's to find.
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
            "CREATE TABLE author (id bigint, name text); ALTER TABLE notes ADD published timestamptz;
             CREATE FUNCTION name_of(bigint) RETURNS text LANGUAGE sql STABLE AS 'SELECT name FROM author WHERE id = $1';
             CREATE FUNCTION unmarked(text) RETURNS text LANGUAGE sql AS 'SELECT lower($1)';
             CREATE FUNCTION marked(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)'",
        )
        .unwrap();
    let with = |source: &str, condition: Option<&str>| TableOptions {
        source: Some(source.into()),
        condition: condition.map(str::to_owned),
        ..options()
    };
    for (options, words) in [
        (with("(SELECT name FROM author AS a WHERE a.id = this.id) || ' ' || body", None), "subquery"),
        (with("name_of(id) || body", None), "name_of(bigint) changes by itself"),
        (with("unmarked(body)", None), "unmarked(text) changes by itself"),
        (with("body || random()::text", None), "random() changes by itself"),
        (with("body || current_date::text", None), "CURRENT_DATE"),
        (with("body || current_setting('TimeZone')", None), "current_setting(text) changes by itself"),
        (with("body", Some("published < now()")), "now() changes by itself"),
        (
            with("lower(body)", Some("age(published) > '1 day'")),
            "age(timestamp with time zone) changes by itself",
        ),
        (with("body", Some("EXISTS (SELECT 1 FROM author AS a WHERE a.id = this.id)")), "subquery"),
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
            "format('%s %s', topic, marked(body))",
            Some("to_jsonb(this) ? 'body' AND published::date IS NULL"),
        ),
        with("to_char(published, 'YYYY') || body", Some("topic ~ 'top' -- a comment")),
    ] {
        let store = adopt(&address, &options).unwrap();
        assert_eq!(store.check().unwrap(), []);
        store.release(None).unwrap();
    }
    // One that an earlier version took is the doctor's to find.
    let store = adopt(&address, &with("marked(body)", None)).unwrap();
    client.batch_execute("ALTER FUNCTION marked VOLATILE").unwrap();
    let problems = store.check().unwrap();
    assert!(
        problems.len() == 1 && problems[0].what.contains("marked(text) changes by itself"),
        "{problems:?}"
    );
}
