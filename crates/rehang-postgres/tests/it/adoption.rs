//! An adoption that fails at any of its statements leaves a database that the next adoption,
//! or a release, can take.

use postgres::Client;
use rehang_core::{Distance, Matrix, Provenance, Result, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Examined, Filter, Index, ItemWrite, Ledger, NewVector, Scan, Select, VectorWrite, WriteOutcome,
};

use crate::notes::options;
use crate::server;

/// Database with a table, and a rule that refuses the n-th statement that defines something, and no other.
struct Place {
    address: String,
    client: Client,
}

impl Place {
    fn new() -> Option<Self> {
        let address = server::server()?.database();
        let mut client = server::client(&address);
        client
            .batch_execute(
                "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2));
                 INSERT INTO notes SELECT n, 'body ' || n, format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n;
                 CREATE SEQUENCE commands; CREATE TABLE refused (nth bigint, code text); INSERT INTO refused VALUES (0, '42501');
                 CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF nextval('public.commands') = (SELECT nth FROM public.refused) THEN
                         RAISE EXCEPTION 'not %', tg_tag USING ERRCODE = (SELECT code FROM public.refused);
                     END IF;
                 END $$;
                 CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()",
            )
            .unwrap();
        Some(Self { address, client })
    }

    fn refuse(&mut self, nth: i64, code: &str) {
        self.client.execute("UPDATE refused SET nth = $1, code = $2", &[&nth, &code]).unwrap();
        self.client.execute("SELECT setval('commands', 1, false)", &[]).unwrap();
    }

    fn adopt(&self) -> Result<PostgresStore> {
        let store = PostgresStore::adopt(&self.address, &options(), Some("old"), &|_, _| true)?;
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old)?;
        Ok(store)
    }

    /// Counts what the database has of the gallery's.
    fn ours(&mut self) -> i64 {
        let sql = "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = 'rehang')
             + (SELECT count(*) FROM pg_trigger WHERE tgname ~ 'rehang') + (SELECT count(*) FROM pg_event_trigger WHERE evtname <> 'refuse')";
        self.client.query_one(sql, &[]).unwrap().get(0)
    }

    /// Writes the table as an application does, whatever else is there.
    fn write(&mut self) {
        self.client
            .batch_execute("UPDATE notes SET body = body || '!', embedding = format('[2,%s]', length(body) + 1)::vector WHERE id = 2; INSERT INTO notes VALUES (9, 'nine', '[9,1]'); DELETE FROM notes WHERE id = 9")
            .unwrap();
    }
}

fn is_whole(store: &PostgresStore) {
    assert_eq!(store.check().unwrap(), []);
    assert_eq!((store.counts("old").unwrap().items, store.counts("old").unwrap().old), (4, 4));
}

#[test]
fn an_adoption_that_is_refused_at_any_statement_goes_on_or_is_taken_out() {
    let Some(mut place) = Place::new() else { return };
    let mut nth = 0;
    loop {
        nth += 1;
        place.refuse(nth, "42501");
        let Err(first) = place.adopt() else { break };
        assert!(first.to_string().contains("one that may do this (not "), "{nth}: {first}");
        place.write();
        if nth % 2 == 0 {
            // Nothing that is left keeps the next adoption from its work.
            let store = place.adopt().unwrap_or_else(|error| panic!("{nth}, {first}: {error}"));
            is_whole(&store);
            store.release(None).unwrap_or_else(|error| panic!("{nth}, {first}: {error}"));
        } else if place.ours() > 0 {
            // Nothing that is left keeps a release from its work.
            PostgresStore::take_out(&place.address, &options())
                .unwrap_or_else(|error| panic!("{nth}, {first}: {error}"));
        }
        assert_eq!(place.ours(), 0, "{nth}, {first}");
    }
    assert!(nth > 40, "each statement was refused once: {nth}");
    // Failures of these kinds meet a gallery that is there: it stays what it is.
    for again in 1.. {
        place.refuse(again, "42501");
        let adopted = place.adopt();
        place.refuse(0, "42501");
        place.write();
        is_whole(&PostgresStore::open(&place.address, &options(), Some("old")).unwrap());
        if adopted.is_ok() {
            assert!(again > 15, "{again}");
            break;
        }
    }
}

#[test]
fn an_adoption_whose_statements_are_cancelled_tries_again() {
    let Some(mut place) = Place::new() else { return };
    for nth in [1, 9, 25] {
        place.refuse(nth, "57014");
        let store = place.adopt().unwrap();
        is_whole(&store);
        store.release(None).unwrap();
        assert_eq!(place.ours(), 0);
    }
}

/// Keys of several types by which other tools tell their rows apart, and a payload of type `json`.
#[test]
fn keys_of_bytes_enums_and_domains_are_ids() {
    let Some(server) = server::server() else { return };
    for (kind, ids) in [
        ("bytea", [r"\x0a", r"\xff00"]),
        ("mood", ["sad", "so so"]),
        ("isbn", ["978", "979"]),
        ("place", ["7", "8"]),
    ] {
        let address = server.database();
        let mut client = server::client(&address);
        client
            .batch_execute(&format!(
                "CREATE TYPE mood AS ENUM ('sad', 'so so', 'glad'); CREATE DOMAIN isbn AS text CHECK (VALUE ~ '^[0-9]+$'); CREATE DOMAIN place AS bigint;
                 CREATE TABLE notes (id {kind} PRIMARY KEY, body text, more json, embedding vector(2));
                 INSERT INTO notes VALUES ('{}', 'one', '{{\"n\": 1}}', '[1,1]'), ('{}', 'two', '{{\"n\": 2}}', '[2,1]');
                 SET bytea_output = 'escape'",
                ids[0], ids[1]
            ))
            .unwrap();
        let options = TableOptions { payload: Some("more".into()), ..options() };
        let store = PostgresStore::adopt(&address, &options, Some("old"), &|_, _| true).unwrap();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
        let found = store.get(&ids).unwrap();
        let sources: Vec<_> =
            found.iter().map(|item| item.as_ref().unwrap().source.as_deref().unwrap()).collect();
        assert_eq!(sources, ["one", "two"], "{kind}");
        let records = store.scan(&Scan::new("new", Select::Lacking, 9)).unwrap();
        let writes: Vec<_> =
            records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
        assert_eq!(store.write_vectors("new", None, &writes).unwrap(), [WriteOutcome::Written; 2]);
        client.batch_execute("UPDATE notes SET body = 'changed' WHERE body = 'two'").unwrap();
        assert_eq!(store.counts("new").unwrap().native, 1, "{kind}");
        let put = ItemWrite {
            payload: serde_json::json!({"n": 3}),
            ..ItemWrite::new(
                ids[1],
                Some("put".into()),
                vec![NewVector::from_model("old", vec![3.0, 1.0], Provenance::Old)],
            )
        };
        store.put(&[put]).unwrap();
        let filter = Filter { payload: vec![("n".into(), serde_json::json!(3))], ..Filter::default() };
        let query = Matrix::new(2, vec![1.0, 1.0]).unwrap();
        let hits = store.search("old", &query, 9, &filter).unwrap();
        let hits: Vec<&str> = hits[0].iter().map(|hit| hit.id.as_str()).collect();
        assert_eq!(hits, [ids[1]], "{kind}");
        let rows = client.query("SELECT id FROM rehang.search('notes', '[1,1]'::vector, 9)", &[]).unwrap();
        let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(rows, ids, "{kind}");
        let rows =
            client.query("SELECT serving_vector::text FROM rehang.serving_1 ORDER BY id", &[]).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(),
            ["[1,1]", "[3,1]"],
            "{kind}"
        );
        assert_eq!(store.check().unwrap(), [], "{kind}");
        assert_eq!(store.delete(&ids[..1]).unwrap(), 1);
        assert_eq!(client.query_one("SELECT count(*) FROM notes", &[]).unwrap().get::<_, i64>(0), 1);
    }
}
