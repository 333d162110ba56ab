//! An adoption that fails at any of its statements leaves what the next one, or a release, can take.

use postgres::Client;
use rehang::{Distance, Provenance, Result, Space};
use rehang_postgres::PostgresStore;
use rehang_store::{Examined, Ledger};

use crate::notes::options;
use crate::server;

/// A table, and a rule of the database that refuses the n-th statement that defines something, and no other.
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

    /// What is in the database of ours.
    fn ours(&mut self) -> i64 {
        let sql = "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = 'rehang')
             + (SELECT count(*) FROM pg_trigger WHERE tgname ~ 'rehang') + (SELECT count(*) FROM pg_event_trigger WHERE evtname <> 'refuse')";
        self.client.query_one(sql, &[]).unwrap().get(0)
    }

    /// A write of the application, whatever is there.
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
            // Nothing that is left keeps the next one from its work.
            let store = place.adopt().unwrap_or_else(|error| panic!("{nth}, {first}: {error}"));
            is_whole(&store);
            store.release(None).unwrap_or_else(|error| panic!("{nth}, {first}: {error}"));
        } else if place.ours() > 0 {
            // Nor a release, where anything is left at all.
            PostgresStore::take_out(&place.address, &options())
                .unwrap_or_else(|error| panic!("{nth}, {first}: {error}"));
        }
        assert_eq!(place.ours(), 0, "{nth}, {first}");
    }
    assert!(nth > 40, "each statement was refused once: {nth}");
    // The same of a gallery that is there: it stays what it is.
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
