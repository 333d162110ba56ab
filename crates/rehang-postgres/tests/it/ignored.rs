//! Triggers and rules of an application by which a write changes nothing: a write through a gallery
//! fails then, and names them.

use postgres::Client;
use rehang_core::{Distance, Provenance, Result, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Examined, ItemWrite, Ledger, NewVector, Priority, Scan, Select, VectorWrite, WriteOutcome,
};

use crate::notes;
use crate::server;

fn gallery(options: &TableOptions) -> Option<(String, Client, PostgresStore)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2), deleted boolean NOT NULL DEFAULT false);
             INSERT INTO notes SELECT n, 'body ' || n, format('[%s,1]', n)::vector FROM generate_series(1, 3) AS n;
             CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        )
        .unwrap();
    let store = PostgresStore::adopt(&address, options, Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    let records = store.scan(&Scan::new("new", Select::Lacking, 9)).unwrap();
    let writes: Vec<VectorWrite> =
        records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
    assert_eq!(store.write_vectors("new", None, &writes).unwrap(), vec![WriteOutcome::Written; 3]);
    Some((address, client, store))
}

fn write(id: &str, body: &str) -> ItemWrite {
    let old = NewVector::from_model("old", vec![9.0, 9.0], Provenance::Old);
    let new = NewVector::from_model("new", vec![9.0, 9.0, 9.0], Provenance::Native);
    ItemWrite::new(id, Some(body.into()), vec![old, new])
}

/// Returns everything that is known of the items.
fn looks(store: &PostgresStore) -> String {
    let items = store.get(&["1", "2", "3", "4"]).unwrap();
    let keys: Vec<_> = items.iter().flatten().map(|item| item.key).collect();
    format!("{items:?} {:?} {:?}", store.vectors("old", &keys).unwrap(), store.vectors("new", &keys).unwrap())
}

fn names<T: std::fmt::Debug>(call: Result<T>, words: &[&str]) {
    let error = call.unwrap_err();
    let said = error.to_string();
    assert!(error.is_conflict() && words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
}

#[test]
fn what_is_put_or_deleted_and_held_back_fails_and_nothing_is_written() {
    type Call = fn(&PostgresStore) -> Result<()>;
    let options = notes::options();
    let new: Call = |store| store.put(&[write("2", "body 2"), write("4", "new")]).map(drop);
    let changed: Call = |store| store.put(&[write("1", "another")]).map(drop);
    let deleted: Call = |store| store.delete(&["1"]).map(drop);
    for (made, call, name) in [
        (
            "CREATE TRIGGER quiet BEFORE INSERT ON notes FOR EACH ROW WHEN (NEW.id = 4) EXECUTE FUNCTION keep()",
            new,
            "trigger quiet",
        ),
        (
            "CREATE TRIGGER quiet BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION keep()",
            changed,
            "trigger quiet",
        ),
        (
            "CREATE TRIGGER \"Quiet\" BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION keep()",
            deleted,
            "trigger \"Quiet\"",
        ),
        ("CREATE RULE quiet AS ON DELETE TO notes DO INSTEAD NOTHING", deleted, "rule quiet"),
        ("CREATE RULE quiet AS ON UPDATE TO notes DO INSTEAD NOTHING", changed, "rules"),
        ("CREATE RULE quiet AS ON INSERT TO notes DO INSTEAD NOTHING", new, "rule quiet"),
    ] {
        let Some((_, mut client, store)) = gallery(&options) else { return };
        let before = looks(&store);
        assert!(store.remarks().unwrap().iter().all(|remark| !remark.contains("held back")));
        client.batch_execute(made).unwrap();
        names(call(&store), &[name]);
        assert_eq!(looks(&store), before, "{made}");
        let remarks = store.remarks().unwrap();
        let quiet = if made.contains("\"Quiet\"") { "\"Quiet\"" } else { "quiet" };
        assert!(
            remarks.iter().any(|remark| remark.contains("held back") && remark.contains(quiet)),
            "{remarks:?}"
        );
        assert_eq!(store.check().unwrap(), vec![]);
    }
}

#[test]
fn a_deletion_that_only_marks_the_row_is_one_where_marked_rows_are_no_items() {
    let options = TableOptions { condition: Some("NOT deleted".into()), ..notes::options() };
    let Some((_, mut client, store)) = gallery(&options) else { return };
    client
        .batch_execute(
            "CREATE FUNCTION mark() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE notes SET deleted = true WHERE id = OLD.id; RETURN NULL; END $$;
             CREATE TRIGGER mark BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION mark()",
        )
        .unwrap();
    assert_eq!(store.delete(&["1", "9", "2"]).unwrap(), 2);
    assert!(store.get(&["1"]).unwrap()[0].is_none());
    assert_eq!(store.check().unwrap(), vec![]);
}

#[test]
fn a_trigger_against_updates_that_change_nothing_is_in_nobodys_way() {
    let Some((_, mut client, store)) = gallery(&notes::options()) else { return };
    client
        .batch_execute("CREATE TRIGGER idle BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()")
        .unwrap();
    let put = |body: &str| store.put(&[write("1", body)]).unwrap()[0];
    let (first, second) = (put("another"), put("another"));
    assert_ne!(first, second, "a put is a change in any case");
    assert_eq!(store.check().unwrap(), vec![]);
}

#[test]
fn a_release_whose_vectors_are_held_back_fails_before_anything_is_lost() {
    for (made, name) in [
        (
            "CREATE TRIGGER quiet BEFORE UPDATE ON notes FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION keep()",
            "trigger quiet",
        ),
        ("CREATE RULE quiet AS ON UPDATE TO notes WHERE NEW.id = 2 DO INSTEAD NOTHING", "quiet"),
    ] {
        let Some((_, mut client, store)) = gallery(&notes::options()) else { return };
        store.switch_serving("old", "new").unwrap();
        client.batch_execute(made).unwrap();
        names(store.settle("embedding_new", &|_, _| true), &[name]);
        assert_eq!(store.counts("new").unwrap().native, 3);
        // The trigger or rule goes only at the end.
        client
            .batch_execute(if made.contains("RULE") {
                "DROP RULE quiet ON notes"
            } else {
                "DROP TRIGGER quiet ON notes"
            })
            .unwrap();
        store.settle("embedding_new", &|_, _| true).unwrap();
        if made.contains("TRIGGER") {
            client.batch_execute("UPDATE notes SET embedding_new = NULL WHERE id = 2").unwrap();
            client.batch_execute(made).unwrap();
            names(store.clone().release(Some("embedding_new")), &[name]);
            assert_eq!(store.counts("new").unwrap().native, 3, "all of it is still there");
            client.batch_execute("DROP TRIGGER quiet ON notes").unwrap();
        }
        store.release(Some("embedding_new")).unwrap();
        let moved: i64 = client
            .query_one("SELECT count(*) FROM notes WHERE embedding_new = '[1,2,3]'", &[])
            .unwrap()
            .get(0);
        assert_eq!(moved, 3);
    }
}

#[test]
fn a_trigger_on_a_table_of_ours_leaves_no_state_without_its_vector() {
    let Some((_, mut client, store)) = gallery(&notes::options()) else { return };
    client
        .batch_execute("CREATE TRIGGER quiet BEFORE INSERT ON rehang.vector_2 FOR EACH ROW WHEN (NEW.item = 2) EXECUTE FUNCTION keep()")
        .unwrap();
    client.batch_execute("UPDATE notes SET body = body || '!'").unwrap();
    let records = store.scan(&Scan::new("new", Select::Lacking, 9)).unwrap();
    let native: Vec<VectorWrite> =
        records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
    names(store.write_vectors("new", None, &native), &["rehang.vector_2"]);
    let epoch = store.spaces().unwrap()[1].epoch;
    let place = Priority::ordinary(1.0);
    let adapted: Vec<VectorWrite> = records
        .iter()
        .map(|record| VectorWrite::adapted(&record.item, vec![1.0, 2.0, 3.0], 1.0, place))
        .collect();
    names(store.write_vectors("new", Some(epoch), &adapted), &["rehang.vector_2"]);
    names(store.put(&[write("2", "x")]), &["quiet"]);
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.native, counts.adapted, counts.lacking), (0, 0, 3));
}
