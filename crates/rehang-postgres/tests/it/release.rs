//! Release of a gallery: vectors move into a column of the application's table while it is written, and
//! everybody waits for a moment only.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use postgres::Client;
use rehang_core::{Distance, Provenance, Remedy, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined, Ledger, Priority, Released, Scan, Select, VectorWrite, WriteOutcome};

use crate::notes::options;
use crate::server;

fn adopt(address: &str, width: usize) -> PostgresStore {
    let store = PostgresStore::adopt(address, &options(), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", width, Distance::L2, false), Provenance::Native).unwrap();
    store
}

/// Makes eight rows, each with a native vector of a gallery that serves the new space.
fn served() -> Option<(String, Client, PostgresStore)> {
    served_beside("vector(2)")
}

/// Makes a gallery like [`served`]'s with old vectors in a column of another type.
fn served_beside(old: &str) -> Option<(String, Client, PostgresStore)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client
        .batch_execute(&format!(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding {old});
             INSERT INTO notes SELECT n, 'body ' || n, format('[%s,1]', n)::vector FROM generate_series(1, 8) AS n"
        ))
        .unwrap();
    let store = adopt(&address, 3);
    make_native(&store, 1.0);
    store.switch_serving("old", "new").unwrap();
    Some((address, client, store))
}

/// Gives every item that lacks one a native vector.
fn make_native(store: &PostgresStore, first: f32) {
    let records = store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
    let writes: Vec<VectorWrite> =
        records.iter().map(|record| VectorWrite::native(&record.item, vec![first, 2.0, 3.0])).collect();
    assert_eq!(store.write_vectors("new", None, &writes).unwrap(), vec![WriteOutcome::Written; writes.len()]);
}

/// Reads the column, row by row.
fn column(client: &mut Client) -> Vec<(i64, Option<String>)> {
    let sql = "SELECT id, embedding_new::text FROM notes ORDER BY id";
    client.query(sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn is_clean(client: &mut Client) -> bool {
    let sql = "SELECT to_regnamespace('rehang') IS NULL AND NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname ~ 'rehang')";
    client.query_one(sql, &[]).unwrap().get(0)
}

#[test]
fn whatever_changes_while_vectors_move_the_column_has_what_served() {
    let Some((address, mut client, store)) = served() else { return };
    let changes =
        "UPDATE notes SET body = 'other' WHERE id = 1; UPDATE notes SET embedding_new = NULL WHERE id = 2;
         UPDATE notes SET embedding_new = '[7,7,7]' WHERE id = 3; DELETE FROM notes WHERE id = 4;
         INSERT INTO notes VALUES (9, 'nine', '[9,1]', '[7,7,7]'); UPDATE notes SET id = 10 WHERE id = 5;
         UPDATE notes SET body = 'again' WHERE id = 6; UPDATE notes SET embedding = '[3,3]' WHERE id = 7;";
    // The first page is moved, and the process dies.
    assert!(store.settle("embedding_new", &|_, _| false).unwrap_err().is_cancelled());
    client.batch_execute(changes).unwrap();
    store.settle("embedding_new", &|_, _| true).unwrap();
    let moved = |vector: &str| Some(vector.to_owned());
    assert_eq!(
        column(&mut client),
        [1, 2, 3, 6, 7, 8, 9, 10].map(|id| (id, moved("[1,2,3]").filter(|_| ![1, 6, 9].contains(&id))))
    );
    assert_eq!(store.check().unwrap(), [], "the triggers of a release are ours");
    // The application writes between the last pass and the end. Item 6 gets its vector late.
    client
        .batch_execute(
            "UPDATE notes SET body = 'once more' WHERE id = 2; UPDATE notes SET embedding_new = '[7,7,7]' WHERE id = 3;
             UPDATE notes SET embedding_new = NULL WHERE id = 8; INSERT INTO notes VALUES (11, 'eleven', '[9,1]')",
        )
        .unwrap();
    make_native(&store, 5.0);
    client.batch_execute("UPDATE notes SET body = 'the last' WHERE id = 9").unwrap();
    let oracle: Vec<(i64, Option<String>)> = client
        .query(
            "SELECT t.id, v.value::text FROM notes AS t JOIN rehang.item_1 AS i ON i.k1 = t.id LEFT JOIN rehang.vector_2 AS v ON v.item = i.key
             ORDER BY t.id",
            &[],
        )
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(
        oracle.iter().filter(|(_, vector)| vector.as_deref() == Some("[5,2,3]")).count(),
        4,
        "{oracle:?}"
    );
    PostgresStore::open(&address, &options(), Some("old")).unwrap().release(Some("embedding_new")).unwrap();
    assert_eq!(column(&mut client), oracle);
    assert!(is_clean(&mut client));
}

/// Makes eight rows that the new space serves: 2 and 3 have no source, and 3 to 5 have adapted vectors,
/// `[9,9,9]`; 2 has none.
fn half_adapted() -> Option<(String, Client, PostgresStore)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2));
             INSERT INTO notes SELECT n, CASE WHEN n NOT IN (2, 3) THEN 'body ' || n END, format('[%s,1]', n)::vector FROM generate_series(1, 8) AS n",
        )
        .unwrap();
    let store = adopt(&address, 3);
    assert_eq!(store.count_without_source().unwrap(), 2);
    let epoch = store.spaces().unwrap()[1].epoch;
    let adapted: Vec<VectorWrite> = store
        .get(&["3", "4", "5"])
        .unwrap()
        .iter()
        .map(|item| {
            let item = item.as_ref().unwrap();
            VectorWrite::adapted(item, vec![9.0, 9.0, 9.0], 1.0, Priority::ordinary(1.0))
        })
        .collect();
    store.write_vectors("new", Some(epoch), &adapted).unwrap();
    let native: Vec<VectorWrite> = store
        .get(&["1", "6", "7", "8"])
        .unwrap()
        .iter()
        .map(|item| VectorWrite::native(item.as_ref().unwrap(), vec![1.0, 2.0, 3.0]))
        .collect();
    store.write_vectors("new", None, &native).unwrap();
    store.switch_serving("old", "new").unwrap();
    Some((address, client, store))
}

#[test]
fn a_release_leaves_rows_without_a_source_empty_and_takes_no_adapted_vector_along_unasked() {
    let Some((_, mut client, store)) = half_adapted() else { return };
    let error = store.settle("embedding_new", &|_, _| true).unwrap_err();
    assert!(error.to_string().starts_with("moving the vectors"), "{error}");
    assert!(error.to_string().contains("2 items with a source are adapted"), "{error}");
    assert_eq!(error.remedy(), Some(&Remedy::EmbedOrTakeAlong));
    // The remedy is followed: items with a source are embedded. And an item comes that
    // nobody has embedded yet.
    let waiting: Vec<VectorWrite> = store
        .get(&["4", "5"])
        .unwrap()
        .iter()
        .map(|item| VectorWrite::native(item.as_ref().unwrap(), vec![4.0, 4.0, 4.0]))
        .collect();
    store.write_vectors("new", None, &waiting).unwrap();
    client.batch_execute("INSERT INTO notes VALUES (9, 'nine', '[9,1]')").unwrap();
    let released = store.settle("embedding_new", &|_, _| true).unwrap();
    let expected =
        Released { vectors: 6, adapted: 0, without_source: 2, waiting: 1, adapted_in: None, empty: None };
    assert_eq!(released, expected);
    store.release(Some("embedding_new")).unwrap();
    let vectors: Vec<Option<String>> = column(&mut client).into_iter().map(|(_, vector)| vector).collect();
    let moved = |vector: &str| Some(vector.to_owned());
    let native = moved("[1,2,3]");
    assert_eq!(
        vectors,
        [
            native.clone(),
            None,
            None,
            moved("[4,4,4]"),
            moved("[4,4,4]"),
            native.clone(),
            native.clone(),
            native,
            None
        ]
    );
    assert!(is_clean(&mut client));
}

#[test]
fn a_release_with_adapted_vectors_says_which_they_are_in_a_table_that_stays() {
    let Some((address, mut client, store)) = half_adapted() else { return };
    client.batch_execute("CREATE TABLE notes_adapted (mine int)").unwrap();
    let error = store.settle_with_adapted("embedding_new", &|_, _| true).unwrap_err();
    assert!(error.to_string().contains("public.notes_adapted") && error.is_conflict(), "{error}");
    client.batch_execute("DROP TABLE notes_adapted").unwrap();
    let released = store.settle_with_adapted("embedding_new", &|_, _| true).unwrap();
    let expected = Released {
        vectors: 7,
        adapted: 3,
        without_source: 1,
        waiting: 0,
        adapted_in: Some("public.notes_adapted".into()),
        empty: None,
    };
    assert_eq!(released, expected);
    // Two items change before the end: one is embedded, one is deleted.
    let item = store.get(&["4"]).unwrap().remove(0).unwrap();
    store.write_vectors("new", None, &[VectorWrite::native(&item, vec![4.0, 4.0, 4.0])]).unwrap();
    client.batch_execute("DELETE FROM notes WHERE id = 5").unwrap();
    PostgresStore::open(&address, &options(), Some("old")).unwrap().release(Some("embedding_new")).unwrap();
    assert!(is_clean(&mut client));
    let there: Vec<(i64, Option<String>)> =
        column(&mut client).into_iter().filter(|(id, _)| (2..=5).contains(id)).collect();
    let moved = |vector: &str| Some(vector.to_owned());
    assert_eq!(there, [(2, None), (3, moved("[9,9,9]")), (4, moved("[4,4,4]"))]);
    let sql = "SELECT a.id, n.id IS NOT NULL FROM notes_adapted AS a LEFT JOIN notes AS n USING (id)";
    let adapted: Vec<(i64, bool)> =
        client.query(sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(adapted, [(3, true)]);
}

/// An application's own SQL casts its queries to the type of its column, and its index is of that type.
#[test]
fn the_new_column_is_of_the_old_one_s_type_or_of_the_type_that_it_was_given() {
    for (old, made_before, new) in [
        ("halfvec(2)", None, "halfvec(3)"),
        ("vector(2)", None, "vector(3)"),
        ("halfvec(2)", Some("halfvec(3)"), "halfvec(3)"),
        ("halfvec(2)", Some("vector(3)"), "vector(3)"),
        ("vector(2)", Some("halfvec(3)"), "halfvec(3)"),
    ] {
        let Some((_, mut client, store)) = served_beside(old) else { return };
        if let Some(kind) = made_before {
            client.batch_execute(&format!("ALTER TABLE notes ADD embedding_new {kind}")).unwrap();
        }
        store.settle("embedding_new", &|_, _| true).unwrap();
        client.batch_execute("UPDATE notes SET embedding_new = NULL WHERE id = 2").unwrap();
        store.release(Some("embedding_new")).unwrap();
        let sql = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attname = 'embedding_new'";
        assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, String>(0), new, "{old}, {made_before:?}");
        assert!(column(&mut client).iter().all(|(_, vector)| vector.as_deref() == Some("[1,2,3]")));
        client.batch_execute("SET enable_seqscan = off").unwrap();
        let plan = client
            .query(
                &format!("EXPLAIN SELECT id FROM notes ORDER BY embedding_new <-> '[1,2,3]'::{new} LIMIT 3"),
                &[],
            )
            .unwrap();
        assert!(
            plan.iter().any(|row| row.get::<_, String>(0).contains("Index Scan")),
            "{old}, {made_before:?}"
        );
    }
    let Some((_, mut client, store)) = served_beside("halfvec(2)") else { return };
    client.batch_execute("ALTER TABLE notes ADD embedding_new halfvec(2)").unwrap();
    let error = store.settle("embedding_new", &|_, _| true).unwrap_err().to_string();
    assert!(error.contains("halfvec(3), not halfvec(2)"), "{error}");
}

/// Returns options with the name of the column that the new vectors are to move into.
fn into_column() -> TableOptions {
    TableOptions { column: Some("embedding_new".into()), ..options() }
}

fn opened(address: &str) -> PostgresStore {
    PostgresStore::open(address, &into_column(), Some("old")).unwrap()
}

#[test]
fn what_hangs_on_the_old_column_is_named_and_what_is_its_own_comes_along() {
    let Some((address, mut client, store)) = served() else { return };
    drop(store);
    assert_eq!(opened(&address).remarks().unwrap(), Vec::<String>::new());
    client
        .batch_execute(
            "CREATE INDEX ON notes USING hnsw (embedding vector_l2_ops);
             ALTER TABLE notes ADD bits bit(2) GENERATED ALWAYS AS (binary_quantize(embedding)::bit(2)) STORED;
             CREATE VIEW shown AS SELECT * FROM notes; CREATE MATERIALIZED VIEW kept AS SELECT id, embedding FROM notes;
             CREATE INDEX partial ON notes USING hnsw (embedding vector_l2_ops) WHERE id > 3;
             CREATE INDEX halved ON notes USING hnsw ((embedding::halfvec(2)) halfvec_l2_ops);
             ALTER TABLE notes ALTER embedding SET NOT NULL, ALTER embedding SET STORAGE PLAIN,
                 ADD CONSTRAINT wide CHECK (vector_dims(embedding) = 2);
             COMMENT ON COLUMN notes.embedding IS 'what it''s near to';
             CREATE ROLE reader_of_vectors; GRANT SELECT (embedding), UPDATE (embedding) ON notes TO reader_of_vectors",
        )
        .unwrap();
    let store = opened(&address);
    let remarks = store.remarks().unwrap();
    let said = remarks.iter().find(|remark| remark.contains("depends on column")).unwrap();
    for name in [
        "generated column bits",
        "view public.shown",
        "materialised view public.kept",
        "index public.partial",
        "index public.halved",
        "constraint wide",
    ] {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(!said.contains("notes_embedding_idx") && !said.contains("rehang"), "{said}");
    let said = remarks.iter().find(|remark| remark.contains("NOT NULL")).unwrap();
    assert!(said.contains("ALTER TABLE notes ALTER COLUMN \"embedding_new\" SET NOT NULL"), "{said}");
    store.settle("embedding_new", &|_, _| true).unwrap();
    store.release(Some("embedding_new")).unwrap();
    let sql = "SELECT concat_ws(' ', attstorage, col_description(attrelid, attnum), has_column_privilege('reader_of_vectors', attrelid, attnum, 'UPDATE'),
             has_column_privilege('reader_of_vectors', attrelid, attnum, 'INSERT'), attnotnull)
         FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attname = 'embedding_new'";
    assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, String>(0), "p what it's near to t f f");
    client
        .batch_execute("DROP OWNED BY reader_of_vectors; DROP ROLE reader_of_vectors; ALTER TABLE notes ALTER COLUMN embedding_new SET NOT NULL")
        .unwrap();
}

#[test]
fn vectors_that_the_new_column_has_already_are_told_before_anything_is_paid_and_taken_in() {
    let Some((address, mut client, _)) = served() else { return };
    client.batch_execute("ALTER TABLE notes ADD embedding_new vector(3)").unwrap();
    let told =
        || opened(&address).remarks().unwrap().into_iter().find(|said| said.contains("\"embedding_new\""));
    assert_eq!(told(), None);
    client.batch_execute("UPDATE notes SET embedding_new = '[4,5,6]' WHERE id = 3").unwrap();
    let said = told().unwrap();
    assert!(opened(&address).settle("embedding_new", &|_, _| true).is_err());
    let statement = said.split_once("SELECT ").unwrap().1.split_once(" takes them in").unwrap().0;
    let statement = format!("SELECT {statement}").replace("NAME OF THE NEW MODEL", "new");
    client.batch_execute(&statement).unwrap();
    client.batch_execute("UPDATE notes SET embedding_new = NULL").unwrap();
    assert_eq!(told(), None);
    let store = opened(&address);
    store.settle("embedding_new", &|_, _| true).unwrap();
    store.release(Some("embedding_new")).unwrap();
    let moved = column(&mut client);
    assert_eq!(moved[2], (3, Some("[4,5,6]".into())));
    assert_eq!(moved[3], (4, Some("[1,2,3]".into())));
}

#[test]
fn a_release_into_a_column_that_nothing_moved_into_is_refused() {
    let Some((_, mut client, store)) = served() else { return };
    client.batch_execute("ALTER TABLE notes ADD embedding_new vector(3), ADD other vector(3)").unwrap();
    store.settle("other", &|_, _| true).unwrap();
    let error = store.clone().release(Some("embedding_new")).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("were not moved into it"), "{error}");
    store.release(Some("other")).unwrap();
    assert!(is_clean(&mut client));
}

/// A process is killed while the server makes the index, so that both columns and indexes are left as
/// they were at that moment.
#[test]
fn a_release_that_was_killed_is_told_and_is_gone_on_with_or_taken_back() {
    for (was_there, goes_on) in [(false, false), (true, false), (false, true)] {
        let Some((address, mut client, store)) = served() else { return };
        if was_there {
            client.batch_execute("ALTER TABLE notes ADD embedding_new vector(3)").unwrap();
        }
        let before = store.remarks().unwrap();
        store.settle("embedding_new", &|_, _| true).unwrap();
        client
            .batch_execute(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'notes_embedding_new_idx'::regclass;
                 CREATE INDEX another ON notes USING hnsw (embedding_new vector_l2_ops);
                 UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'another'::regclass",
            )
            .unwrap();
        let problems = store.check().unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].count == 2 && problems[0].what.contains("public.another"), "{problems:?}");
        let remarks = store.remarks().unwrap();
        let said = remarks.iter().find(|remark| !before.contains(remark)).unwrap();
        assert!(said.contains("has begun to move the vectors into column \"embedding_new\""), "{said}");
        let indexes = "SELECT indexrelid::regclass::text, indisvalid FROM pg_index WHERE indrelid = 'notes'::regclass AND NOT indisprimary";
        let column = "SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attname = 'embedding_new'
             AND NOT attisdropped";
        if goes_on {
            store.settle("embedding_new", &|_, _| true).unwrap();
            assert_eq!(store.check().unwrap(), []);
            store.release(Some("embedding_new")).unwrap();
            let left = client.query(indexes, &[]).unwrap();
            assert!(left.len() == 1 && left[0].get::<_, bool>(1));
        } else {
            PostgresStore::take_out(&address, &options()).unwrap();
            assert_eq!(client.query(indexes, &[]).unwrap().len(), 0);
            assert_eq!(client.query(column, &[]).unwrap().len(), usize::from(was_there));
        }
        let comments = client.query(column, &[]).unwrap();
        assert!(comments.iter().all(|row| row.get::<_, Option<String>>(0).is_none()));
        assert!(is_clean(&mut client));
    }
}

/// Somebody dropped the schema `rehang` in the middle of a release, and has used its column since. The
/// column's comment is still there, and nobody may drop the column.
#[test]
fn a_column_that_a_gallery_before_began_to_fill_is_the_application_s() {
    let Some((address, mut client, store)) = served() else { return };
    store.settle("embedding_new", &|_, _| true).unwrap();
    client.batch_execute("DROP SCHEMA rehang CASCADE; UPDATE notes SET embedding_new = '[7,7,7]'").unwrap();
    let store = adopt(&address, 3);
    make_native(&store, 1.0);
    store.switch_serving("old", "new").unwrap();
    assert!(store.remarks().unwrap().iter().all(|remark| !remark.contains("has begun")));
    let error = store.settle("embedding_new", &|_, _| true).unwrap_err();
    assert!(error.to_string().contains("what is in this one would be lost"), "{error}");
    store.settle("another", &|_, _| false).unwrap_err();
    PostgresStore::take_out(&address, &options()).unwrap();
    assert!(is_clean(&mut client));
    assert!(column(&mut client).iter().all(|(_, vector)| vector.as_deref() == Some("[7,7,7]")));
    let sql = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attname = 'another' AND NOT attisdropped";
    assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, i64>(0), 0, "what this one began is taken back");
}

/// Somebody has dropped a part of the gallery by hand. The rest can be taken out, and an adoption makes again
/// what the application's writes need.
#[test]
fn a_gallery_of_which_a_part_was_dropped_is_taken_out_or_made_whole() {
    for part in [
        "TABLE rehang.vector_2",
        "TABLE rehang.state_2",
        "TABLE rehang.item_1",
        "TABLE rehang.document",
        "FUNCTION rehang.changed_1() CASCADE",
        "FUNCTION rehang.seen_all_1() CASCADE",
        "FUNCTION rehang.search(regclass, vector, int)",
        "VIEW rehang.serving_1",
        "SEQUENCE rehang.revision",
    ] {
        let Some((address, mut client, store)) = served() else { return };
        drop(store);
        client.batch_execute(&format!("DROP {part}")).unwrap();
        PostgresStore::take_out(&address, &options()).unwrap_or_else(|error| panic!("{part}: {error}"));
        assert!(is_clean(&mut client), "{part}");
    }
    for part in [
        "DROP TABLE rehang.vector_2",
        "DROP TABLE rehang.state_2, rehang.claim_1",
        "TRUNCATE rehang.vector_2",
    ] {
        let Some((address, mut client, store)) = served() else { return };
        drop(store);
        client.batch_execute(part).unwrap();
        let store = adopt(&address, 3);
        client
            .batch_execute("UPDATE notes SET body = 'other' WHERE id = 1; DELETE FROM notes WHERE id = 2")
            .unwrap();
        if part.contains("TRUNCATE") {
            // The gallery's states say that the vectors are there, and a vector mends each of them.
            assert_eq!(store.check().unwrap()[0].count, 6);
            assert_eq!(
                store.scan(&Scan::new("new", Select::All, 100).with_vectors_of("new")).unwrap().len(),
                7
            );
            continue;
        }
        assert_eq!(store.check().unwrap(), [], "{part}");
        make_native(&store, 1.0);
        assert_eq!(store.counts("new").unwrap().native, 7, "{part}");
    }
    let Some((address, mut client, store)) = served() else { return };
    drop(store);
    client.batch_execute("DELETE FROM rehang.gallery").unwrap();
    PostgresStore::take_out(&address, &options()).unwrap();
    client.batch_execute("INSERT INTO notes VALUES (9, 'nine'); DROP SCHEMA rehang CASCADE").unwrap();
    assert!(is_clean(&mut client));
}

#[test]
fn the_triggers_that_a_release_fires_are_named() {
    let Some((_, mut client, store)) = served() else { return };
    assert!(store.remarks().unwrap().iter().all(|remark| !remark.contains("fires")));
    client
        .batch_execute(
            "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER \"Touched\" BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION seen();
             CREATE TRIGGER told AFTER INSERT OR UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION seen();
             CREATE TRIGGER of_body AFTER UPDATE OF body ON notes FOR EACH ROW EXECUTE FUNCTION seen();
             CREATE TRIGGER of_rows AFTER DELETE ON notes FOR EACH ROW EXECUTE FUNCTION seen();
             CREATE TRIGGER asleep AFTER UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION seen(); ALTER TABLE notes DISABLE TRIGGER asleep",
        )
        .unwrap();
    let remarks = store.remarks().unwrap();
    let said = remarks.iter().find(|remark| remark.contains("fires")).unwrap();
    assert!(said.contains("fires 2 triggers of yours: \"Touched\", told."), "{said}");
}

/// Measures, when run by hand, how long everybody waits for a release, and how long a comparison of all
/// vectors would take. `REHANG_RELEASED` is the number of rows.
#[test]
#[ignore = "minutes; how long it takes is what it is about"]
fn how_long_everybody_waits_for_a_release() {
    let Some(server) = server::server() else { return };
    let rows: i64 = std::env::var("REHANG_RELEASED").map_or(30_000, |rows| rows.parse().unwrap());
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(&format!(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, seen int DEFAULT 0, embedding vector(2));
             INSERT INTO notes SELECT n, 'body ' || n, 0, format('[%s,1]', n)::vector FROM generate_series(1, {rows}) AS n"
        ))
        .unwrap();
    let store = adopt(&address, 768);
    // This search index costs little; a usual one would take longer than everything else here.
    client
        .batch_execute(
            "UPDATE rehang.state_2 SET provenance = 'native';
             INSERT INTO rehang.vector_2 SELECT key, ('[' || key || repeat(',0.5', 767) || ']')::vector FROM rehang.item_1;
             ALTER TABLE notes ADD embedding_new vector(768);
             CREATE INDEX ON notes USING ivfflat (embedding_new vector_l2_ops) WITH (lists = 1)",
        )
        .unwrap();
    client.batch_execute("VACUUM ANALYZE").unwrap();
    store.switch_serving("old", "new").unwrap();
    store.settle("embedding_new", &|_, _| true).unwrap();
    let began = rehang_clock::now();
    let all = "SELECT count(*) FROM notes AS t JOIN rehang.item_1 AS i ON i.k1 = t.id LEFT JOIN rehang.vector_2 AS v ON v.item = i.key
         WHERE pg_catalog.record_image_ne(ROW(t.embedding_new), ROW(v.value))";
    client.query(all, &[]).unwrap();
    let comparison = began.elapsed();
    let (is_over, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let application = scope.spawn(|| {
            let mut id = 0;
            while !is_over.load(Ordering::Relaxed) {
                id = id % rows + 1;
                let began = rehang_clock::now();
                client
                    .execute("UPDATE notes SET seen = seen + 1, body = body || '.' WHERE id = $1", &[&id])
                    .unwrap();
                longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
        });
        rehang_clock::wait(std::time::Duration::from_millis(500));
        let before = longest.swap(0, Ordering::Relaxed);
        let released = store.release(Some("embedding_new"));
        is_over.store(true, Ordering::Relaxed);
        application.join().unwrap();
        released.unwrap();
        let longest = longest.load(Ordering::Relaxed) as f64 / 1000.0;
        println!(
            "{rows} rows of 768: an application's write waits {longest:.1} ms at most ({:.1} ms before); comparing all vectors takes {} ms",
            before as f64 / 1000.0,
            comparison.as_millis()
        );
        assert!(longest * 10.0 < comparison.as_millis() as f64);
    });
}

/// A release takes its locks in the order of searches. So neither waits for the other in a circle, and no
/// search fails except one that comes after the end.
#[test]
fn a_release_comes_to_its_end_among_searches_that_never_pause() {
    let Some((address, mut client, store)) = served() else { return };
    store.settle("embedding_new", &|_, _| true).unwrap();
    let (ended, searches) = (AtomicBool::new(false), AtomicU64::new(0));
    let search = || {
        let mut client = server::client(&address);
        while !ended.load(Ordering::SeqCst) {
            let sql = "SELECT id FROM rehang.search('notes', ARRAY['old', 'new'], ARRAY['[1,1]', '[1,2,3]']::vector[], 8)";
            match client.query(sql, &[]) {
                Ok(found) => {
                    assert_eq!(found.len(), 8);
                    searches.fetch_add(1, Ordering::SeqCst);
                }
                // A table that was there when the query was parsed may be gone at the end of the wait.
                Err(error) => {
                    let said = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
                    assert!(
                        said.contains("does not exist") || said.contains("could not open relation"),
                        "{said}"
                    );
                    return;
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(search);
        }
        while searches.load(Ordering::SeqCst) < 40 {
            thread::yield_now();
        }
        let released = store.release(Some("embedding_new"));
        ended.store(true, Ordering::SeqCst);
        released.unwrap();
    });
    assert!(is_clean(&mut client));
    assert!(column(&mut client).iter().all(|(_, vector)| vector.as_deref() == Some("[1,2,3]")));
}

/// A vacuum of the server gives way where somebody waits for its lock longer than a second. A release that
/// waited shorter each time gave up before a long vacuum ended.
#[test]
fn a_release_does_not_wait_for_the_servers_own_vacuum() {
    if server::server().is_none_or(|server| server.pid.is_none()) {
        return;
    }
    let server = server::Server::start(None).unwrap();
    let address = server.database();
    let mut client = server::client(&address);
    client.batch_execute("ALTER SYSTEM SET autovacuum_naptime = '1s'").unwrap();
    client
        .batch_execute(
            "SELECT pg_reload_conf();
             CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2));
             INSERT INTO notes SELECT n, 'body ' || n, '[1,1]' FROM generate_series(1, 4000) AS n",
        )
        .unwrap();
    let store = adopt(&address, 3);
    for _ in 0..40 {
        make_native(&store, 1.0);
    }
    store.switch_serving("old", "new").unwrap();
    let (begun, goes_on) = (
        "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE query LIKE 'autovacuum: VACUUM%rehang.vector_2%')",
        "UPDATE rehang.vector_2 SET value = value",
    );
    // The vacuum takes 800 pages of 0.4 s: longer than a release is patient.
    let slowly = "fillfactor = 10, autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1";
    client.batch_execute(&format!("ALTER TABLE rehang.vector_2 SET ({slowly})")).unwrap();
    let mut is_vacuumed = || {
        client.batch_execute(goes_on).unwrap();
        let mut looks = (0..200_000).map(|_| client.query_one(begun, &[]).unwrap().get::<_, bool>(0));
        assert!(looks.any(|is_at_work| is_at_work), "the server vacuums nothing by itself");
    };
    is_vacuumed();
    store.settle("embedding_new", &|_, _| true).unwrap();
    is_vacuumed();
    store.release(Some("embedding_new")).unwrap();
    assert!(is_clean(&mut client));
}
