//! Partitioned tables as one gallery: rows that move, partitions that come and go, and how the server handles
//! triggers and indexes there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;
use rehang_core::{Distance, Error, Matrix, Provenance, Space};
use rehang_postgres::PostgresStore;
use rehang_store::{Epoch, Examined, Filter, Index, Ledger, Queue, Scan, Select, VectorWrite, WriteOutcome};

use crate::notes::options;
use crate::refusals::{as_user, role};
use crate::server;

/// Statements that make ten rows of two languages: one partition has its columns in another order, the other
/// has partitions of its own.
const TABLE: &str = "CREATE TABLE notes (language varchar(2), id bigint, body text, seen int DEFAULT 0, embedding vector(2), PRIMARY KEY (language, id)) PARTITION BY LIST (language);
     CREATE TABLE english (embedding vector(2), gone int, body text, seen int DEFAULT 0, id bigint NOT NULL, language varchar(2) NOT NULL);
     ALTER TABLE english DROP COLUMN gone; ALTER TABLE notes ATTACH PARTITION english FOR VALUES IN ('en');
     CREATE TABLE german PARTITION OF notes FOR VALUES IN ('de') PARTITION BY HASH (id);
     CREATE TABLE german_0 PARTITION OF german FOR VALUES WITH (MODULUS 2, REMAINDER 0);
     CREATE TABLE german_1 PARTITION OF german FOR VALUES WITH (MODULUS 2, REMAINDER 1);
     INSERT INTO notes SELECT l, n, l || ' ' || n, 0, format('[%s,1]', n)::vector FROM unnest('{en,de}'::text[]) AS l, generate_series(1, 5) AS n";

struct Place {
    address: String,
    client: Client,
    store: PostgresStore,
}

fn adopt(address: &str) -> Result<PostgresStore, Error> {
    PostgresStore::adopt(address, &options(), Some("old"), &|_, _| true)
}

impl Place {
    /// Makes a gallery of a table that SQL makes; each row has an old and a native vector.
    fn with_table(table: &str) -> Option<Self> {
        let address = server::server()?.database();
        let mut client = server::client(&address);
        client.batch_execute(table).unwrap();
        let store = adopt(&address).unwrap();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
        let place = Self { address, client, store };
        place.make_native();
        Some(place)
    }

    fn new() -> Option<Self> {
        Self::with_table(TABLE)
    }

    fn make_native(&self) {
        let records = self.store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
        let write = |item| VectorWrite::native(item, vec![1.0, 2.0, 3.0]);
        let writes: Vec<VectorWrite> = records.iter().map(|record| write(&record.item)).collect();
        let written = self.store.write_vectors("new", None, &writes).unwrap();
        assert_eq!(written, vec![WriteOutcome::Written; writes.len()]);
    }

    fn sql(&mut self, sql: &str) {
        self.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    fn number(&mut self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Returns each item with the provenances of its vectors in the old and in the new space.
    /// The doctor finds nothing.
    fn items(&self) -> BTreeMap<String, (Option<Provenance>, Option<Provenance>)> {
        assert_eq!(self.store.check().unwrap(), []);
        self.looks()
    }

    fn looks(&self) -> BTreeMap<String, (Option<Provenance>, Option<Provenance>)> {
        let scan = |space: &str| self.store.scan(&Scan::new(space, Select::All, 1_000)).unwrap();
        let both = scan("old").into_iter().zip(scan("new"));
        both.map(|(old, new)| {
            assert_eq!(old.item.key, new.item.key);
            let made_by = |state: Option<rehang_store::VectorRecord>| state.map(|state| state.provenance);
            (new.item.id, (made_by(old.state), made_by(new.state)))
        })
        .collect()
    }

    /// Reads all items of a selection page by page, and returns their ids in order.
    fn walk(&self, select: Select, limit: usize) -> Vec<String> {
        let (mut ids, mut walk) = (Vec::new(), Some(Scan::new("new", select, limit)));
        while let Some(page) = walk {
            let records = self.store.scan(&page).unwrap();
            walk = page.following(&records);
            ids.extend(records.into_iter().map(|record| record.item.id));
        }
        ids.sort();
        ids
    }

    /// Returns the ids of the rows that meet a condition, in order.
    fn ids_of_rows(&mut self, condition: &str) -> Vec<String> {
        let sql = format!("SELECT language, id FROM notes WHERE {condition}");
        let rows = self.client.query(&sql, &[]).unwrap();
        let mut ids: Vec<String> = rows.iter().map(|row| id(row.get(0), row.get(1))).collect();
        ids.sort();
        ids
    }

    fn adopt(&mut self) {
        self.store = adopt(&self.address).unwrap();
    }

    fn problems(&self) -> Vec<String> {
        self.store.check().unwrap().into_iter().map(|problem| problem.what).collect()
    }
}

const OLD: Option<Provenance> = Some(Provenance::Old);
const NATIVE: Option<Provenance> = Some(Provenance::Native);

fn id(language: &str, id: i64) -> String {
    format!("[\"{language}\", \"{id}\"]")
}

#[test]
fn a_partitioned_table_goes_the_whole_way() {
    let Some(mut place) = Place::new() else { return };
    assert_eq!(place.items().len(), 10);
    let key = |place: &Place, id: &str| place.store.get(&[id]).unwrap()[0].as_ref().unwrap().key;
    let before = key(&place, &id("en", 1));
    // The application writes through the whole, through a part of it and at the very table.
    place.sql(
        "INSERT INTO notes VALUES ('en', 6, 'en 6', 0, '[6,1]'); INSERT INTO german VALUES ('de', 6, 'de 6', 0, '[6,1]');
         INSERT INTO english (language, id, body, embedding) VALUES ('en', 7, 'en 7', '[7,1]');
         DELETE FROM german WHERE id = 2; UPDATE english SET body = 'other' WHERE id = 2; UPDATE notes SET seen = seen + 1;
         UPDATE notes SET embedding = '[9,9]' WHERE language = 'en' AND id = 3",
    );
    let items = place.items();
    assert_eq!(items.len(), 12);
    assert_eq!(items[&id("en", 6)], (OLD, None));
    assert_eq!((items[&id("en", 2)], items[&id("en", 3)]), ((None, None), (OLD, NATIVE)));
    // A row that moves keeps what was paid for it.
    place.sql("UPDATE notes SET language = 'de', id = 11 WHERE language = 'en' AND id = 1");
    let items = place.items();
    assert_eq!((items.get(&id("en", 1)), items[&id("de", 11)]), (None, (OLD, NATIVE)));
    assert_eq!(key(&place, &id("de", 11)), before);
    assert_eq!(place.number("SELECT count(*) FROM rehang.moving_1"), 0);
    place.store.switch_serving("old", "new").unwrap();
    place.make_native();
    let search = "SELECT count(*) FROM rehang.search('notes', '[1,2,3]', 100)";
    assert_eq!(place.number(search), 12);
    assert_eq!(place.number("SELECT count(*) FROM notes JOIN rehang.serving_1 USING (language, id)"), 12);
    let query = Matrix::new(2, vec![1.0, 1.0]).unwrap();
    assert_eq!(
        place.store.search("old", &query, 100, &Filter::default()).unwrap()[0].len(),
        11,
        "all but one"
    );
    place.store.switch_serving("new", "old").unwrap();
    assert_eq!(place.number("SELECT count(*) FROM rehang.search('notes', '[1,1]', 100)"), 11);
    place.store.switch_serving("old", "new").unwrap();
    place.store.drop_space("old").unwrap();
    place.store.settle("larger", &|_, _| true).unwrap();
    // One row moves meanwhile, and one comes.
    place.sql("UPDATE notes SET language = 'en' WHERE id = 11; UPDATE english SET body = 'again' WHERE id = 3; CREATE TABLE french PARTITION OF notes FOR VALUES IN ('fr')");
    assert_eq!(place.store.check().unwrap(), []);
    let invalid = "SELECT count(*) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
         WHERE m.amname = 'hnsw' AND (NOT indisvalid OR indrelid <> 'notes'::regclass AND NOT c.relispartition)";
    let indexes = "SELECT count(*) FROM pg_index WHERE indisvalid AND indrelid IN (SELECT relid FROM pg_partition_tree('notes')) AND NOT indisprimary";
    assert_eq!((place.number(invalid), place.number(indexes)), (0, 6), "of the whole, and of each partition");
    let Place { store, mut client, .. } = place;
    store.release(Some("larger")).unwrap();
    let left = "SELECT count(*) FROM pg_trigger WHERE tgname ~ 'rehang'";
    for (sql, expected) in [
        (left, 0),
        ("SELECT count(*) FROM notes WHERE larger = '[1,2,3]'", 11),
        ("SELECT count(*) FROM notes WHERE larger IS NULL AND body = 'again'", 1),
        ("SELECT count(*) FROM pg_namespace WHERE nspname = 'rehang'", 0),
    ] {
        assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, i64>(0), expected, "{sql}");
    }
}

/// Triggers of the application may do anything: a row that moves is neither lost nor there
/// twice, and no write fails.
#[test]
fn a_row_moves_whatever_triggers_of_the_application_make_of_it() {
    let function = |name: &str, body: &str| {
        format!("CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;")
    };
    // Each case has the trigger, the write, and the expected state of English item 1, by its id afterwards.
    for (trigger, write, then, expected) in [
        ("", "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'", id("de", 9), (OLD, NATIVE)),
        (
            "BEFORE UPDATE ON notes: NEW.id := NEW.id + 20; RETURN NEW;",
            "UPDATE notes SET language = 'de' WHERE id = 1 AND language = 'en'",
            id("de", 21),
            (OLD, NATIVE),
        ),
        // The text is another one, while the old vector belongs to the earlier text.
        (
            "BEFORE UPDATE ON notes: NEW.body := 'x'; RETURN NEW;",
            "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'",
            id("de", 9),
            (None, None),
        ),
        (
            "BEFORE INSERT ON notes: NEW.body := 'x'; RETURN NEW;",
            "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'",
            id("de", 9),
            (None, None),
        ),
        (
            "BEFORE INSERT ON notes: NEW.embedding := '[7,7]'; RETURN NEW;",
            "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'",
            id("de", 9),
            (OLD, NATIVE),
        ),
        // The row stays.
        (
            "BEFORE DELETE ON notes: RETURN NULL;",
            "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'",
            id("en", 1),
            (OLD, NATIVE),
        ),
        // The row goes, and does not come.
        (
            "BEFORE INSERT ON notes: RETURN NULL;",
            "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'",
            String::new(),
            (None, None),
        ),
        // A row that did not move is deleted for good later in the same transaction, and another
        // row comes in its place.
        (
            "BEFORE DELETE ON notes: IF current_setting('app.stay', true) = 'yes' THEN RETURN NULL; END IF; RETURN OLD;",
            "BEGIN; SET LOCAL app.stay = 'yes'; UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'; SET LOCAL app.stay = '';
             DELETE FROM notes WHERE id = 1 AND language = 'en'; INSERT INTO notes VALUES ('de', 9, 'en 1', 0, '[1,1]'); COMMIT",
            id("de", 9),
            (OLD, None),
        ),
        (
            "AFTER DELETE ON notes: DELETE FROM notes WHERE language = 'en' AND id = 4; INSERT INTO notes VALUES ('en', 8, 'en 4', 0, '[4,1]') ON CONFLICT DO NOTHING; RETURN NULL;",
            "UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'",
            id("de", 9),
            (OLD, NATIVE),
        ),
        // The row moves twice in one transaction: away, and back.
        (
            "",
            "BEGIN; UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'; UPDATE notes SET language = 'en', id = 1 WHERE id = 9; COMMIT",
            id("en", 1),
            (OLD, NATIVE),
        ),
        (
            "",
            "BEGIN; UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'; SAVEPOINT a; DELETE FROM notes WHERE id = 9; ROLLBACK TO a; COMMIT",
            id("de", 9),
            (OLD, NATIVE),
        ),
        // A row that two statements delete and insert is another one, of the same id and source: the vector
        // that was paid for comes back.
        (
            "",
            "BEGIN; UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'; DELETE FROM notes WHERE id = 9; INSERT INTO notes VALUES ('de', 9, 'en 1', 0, '[1,1]'); COMMIT",
            id("de", 9),
            (OLD, NATIVE),
        ),
        (
            "",
            "MERGE INTO notes AS n USING (SELECT 'en' AS l, 1 AS id) AS o ON n.language = o.l AND n.id = o.id WHEN MATCHED THEN UPDATE SET language = 'de', id = 9",
            id("de", 9),
            (OLD, NATIVE),
        ),
    ] {
        let Some(mut place) = Place::new() else { return };
        if let Some((when, body)) = trigger.split_once(": ") {
            place.sql(&(function("theirs", body) + &format!("CREATE TRIGGER theirs {when} FOR EACH ROW EXECUTE FUNCTION theirs()")));
        }
        if write.starts_with("MERGE") && place.number("SELECT current_setting('server_version_num')::bigint") < 150_000 {
            continue;
        }
        place.sql(write);
        let items = place.items();
        let rows = place.number("SELECT count(*) FROM notes");
        assert_eq!(items.len() as i64, rows, "{trigger} {write}");
        assert_eq!(items.get(&then).copied().unwrap_or_default(), expected, "{trigger} {write}: {items:?}");
    }
}

/// One bulk update moves every row, with sources that are alike.
#[test]
fn all_rows_move_at_once() {
    let Some(mut place) = Place::new() else { return };
    place.sql("UPDATE notes SET body = 'the same'");
    place.make_native();
    place.sql("UPDATE notes SET language = CASE language WHEN 'en' THEN 'de' ELSE 'en' END, id = id + CASE language WHEN 'en' THEN 10 ELSE 20 END");
    let items = place.items();
    assert!(items.len() == 10 && items.values().all(|made_by| *made_by == (None, NATIVE)), "{items:?}");
    assert_eq!(place.number("SELECT count(*) FROM rehang.moving_1"), 0);
}

#[test]
fn a_truncate_of_one_partition_is_seen() {
    let Some(mut place) = Place::new() else { return };
    place.sql("TRUNCATE english");
    assert!(place.items().keys().all(|id| id.contains("de")) && place.items().len() == 5);
    assert_eq!(
        place.number("SELECT count(*) FROM rehang.vector_2")
            + place.number("SELECT count(*) FROM rehang.state_1"),
        10
    );
    place.sql("BEGIN; TRUNCATE german; ROLLBACK");
    assert_eq!(place.items().len(), 5);
    place.sql("TRUNCATE german");
    assert_eq!(place.items().len(), 0);
    place.sql("INSERT INTO notes VALUES ('en', 1, 'again', 0, '[1,1]'); TRUNCATE notes");
    assert_eq!(place.items().len(), 0);
    // A partition that came since has no trigger of TRUNCATE. The remarks tell it, and an adoption makes it.
    place.sql("CREATE TABLE french PARTITION OF notes FOR VALUES IN ('fr'); INSERT INTO notes VALUES ('fr', 1, 'un', 0, '[1,1]')");
    assert_eq!(place.items().len(), 1);
    let said = place.store.remarks().unwrap();
    assert!(said.len() == 1 && said[0].contains("public.french") && said[0].contains("TRUNCATE"), "{said:?}");
    place.adopt();
    assert_eq!(place.store.remarks().unwrap(), Vec::<String>::new());
    place.sql("TRUNCATE french");
    assert_eq!(place.items().len(), 0);
}

/// No trigger sees what a partition brings or takes along. The status and the doctor do, and an adoption that
/// is called again takes it in. Vectors that were paid for stay where their source does.
#[test]
fn partitions_that_come_and_go_are_told_and_taken_in() {
    let Some(mut place) = Place::new() else { return };
    // While the partition is away, one row changes, one goes, one comes, and two have
    // another old vector or none.
    place.sql(
        "ALTER TABLE notes DETACH PARTITION english; UPDATE english SET body = 'changed' WHERE id = 1; DELETE FROM english WHERE id = 2;
         INSERT INTO english (language, id, body, embedding) VALUES ('en', 6, 'en 6', '[6,1]'); UPDATE english SET embedding = '[7,7]' WHERE id = 3;
         UPDATE english SET embedding = NULL WHERE id = 4",
    );
    let said = place.store.remarks().unwrap();
    assert!(
        said.len() == 1 && said[0].contains("1 partitions of notes were detached or dropped"),
        "{said:?}"
    );
    assert_eq!(place.problems(), ["items without a row in the table"]);
    place.sql("TRUNCATE german_0; ALTER TABLE notes ATTACH PARTITION english FOR VALUES IN ('en')");
    let said = place.store.remarks().unwrap();
    assert!(
        said.len() == 1 && said[0].contains("attached with rows that no trigger saw (public.english)"),
        "{said:?}"
    );
    let problems = place.problems().join("; ");
    for words in [
        "rows of the table that are no items",
        "items without a row",
        "other content than when a trigger last saw",
    ] {
        assert!(problems.contains(words), "{words}: {problems}");
    }
    place.adopt();
    assert_eq!(place.store.remarks().unwrap(), Vec::<String>::new());
    let items = place.items();
    let item = |number: i64| items.get(&id("en", number)).copied();
    assert_eq!(item(1), Some((OLD, None)), "of another source");
    assert_eq!((item(2), item(6)), (None, Some((OLD, None))));
    assert_eq!(item(3), Some((OLD, NATIVE)), "what was paid for depends on the source");
    assert_eq!((item(4), item(5)), (Some((None, NATIVE)), Some((OLD, NATIVE))));
    // From here on the rows are seen again.
    place.sql("UPDATE notes SET body = 'x' WHERE id = 5 AND language = 'en'; DROP TABLE german_1");
    assert_eq!(place.looks()[&id("en", 5)], (None, None));
    place.adopt();
    assert_eq!(place.items().len(), 5);
}

/// A partition is put in the place of another, with the same keys. Adapted vectors belong to
/// the earlier old vectors.
#[test]
fn a_partition_in_the_place_of_another_leaves_nothing_stale() {
    let Some(mut place) = Place::new() else { return };
    place.store.forget_natives("new", Epoch::FIRST, 100).unwrap();
    let records = place.store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
    let adapted = |record: &rehang_store::Record| VectorWrite {
        provenance: Provenance::Adapted,
        sigma2: Some(0.5),
        revision: record.item.revision,
        ..VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])
    };
    let writes: Vec<VectorWrite> = records.iter().map(adapted).collect();
    assert!(
        place
            .store
            .write_vectors("new", Some(Epoch::FIRST), &writes)
            .unwrap()
            .iter()
            .all(|outcome| *outcome == WriteOutcome::Written)
    );
    place.sql(
        "CREATE TABLE better (LIKE notes INCLUDING ALL); INSERT INTO better SELECT language, id, body, seen, CASE WHEN id < 4 THEN '[8,8]' ELSE embedding END FROM english;
         UPDATE better SET body = 'other' WHERE id = 1; BEGIN; ALTER TABLE notes DETACH PARTITION english; ALTER TABLE notes ATTACH PARTITION better FOR VALUES IN ('en'); COMMIT",
    );
    place.adopt();
    let items = place.items();
    let adapted = Some(Provenance::Adapted);
    let made_by: Vec<_> = (1..=5).map(|number| items[&id("en", number)]).collect();
    assert_eq!(made_by, [(OLD, None), (OLD, None), (OLD, None), (OLD, adapted), (OLD, adapted)]);
    // Writes that were on their way meanwhile are of the earlier content.
    let written = place.store.write_vectors("new", Some(Epoch::FIRST), &writes).unwrap();
    let of_english = records
        .iter()
        .zip(written)
        .filter(|(record, _)| record.item.id.contains("en") && !record.item.id.contains(['4', '5']));
    assert!(of_english.into_iter().all(|(_, outcome)| outcome != WriteOutcome::Written));
}

/// Items of a partition that is gone stand before those that wait, and do not end a run.
#[test]
fn a_claim_passes_what_went_with_a_partition() {
    let Some(mut place) = Place::new() else { return };
    place.store.forget_natives("new", Epoch::FIRST, 100).unwrap();
    place.sql("ALTER TABLE notes DETACH PARTITION german");
    let claimed = place.store.claim("new", Queue::All, "w", 3, Duration::from_secs(100)).unwrap();
    let ids: Vec<&str> = claimed.records.iter().map(|record| record.item.id.as_str()).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.contains("en")), "{ids:?}");
    assert_eq!(place.store.counts("new").unwrap().items, 5);
}

/// A walk goes on behind items whose rows went with a partition, whatever it selects and however long its
/// pages are. A page of the queue is full where more waits.
#[test]
fn a_walk_passes_what_went_with_a_partition() {
    for gone in ["ALTER TABLE notes DETACH PARTITION german", "DROP TABLE german_0", "DROP TABLE english"] {
        let Some(mut place) = Place::new() else { return };
        // Every other item loses its source, and with that its vectors.
        place.sql("UPDATE notes SET body = NULL WHERE id % 2 = 1");
        place.sql(gone);
        for limit in [1, 2, 3, 100] {
            for (select, rows) in [
                (Select::All, "true"),
                (Select::Provenance(Provenance::Native), "id % 2 = 0"),
                (Select::Lacking, "id % 2 = 1"),
                (Select::WithoutSource, "id % 2 = 1"),
            ] {
                let what = format!("{gone}: {select:?} by pages of {limit}");
                assert_eq!(place.walk(select, limit), place.ids_of_rows(rows), "{what}");
            }
        }
        place.store.forget_natives("new", Epoch::FIRST, 100).unwrap();
        let queue = |place: &Place, limit: usize| -> Vec<String> {
            let records = place.store.scan(&Scan::new("new", Select::Queued, limit)).unwrap();
            records.into_iter().map(|record| record.item.id).collect()
        };
        let whole = queue(&place, 100);
        let mut waiting = whole.clone();
        waiting.sort();
        assert_eq!(waiting, place.ids_of_rows("id % 2 = 0"), "{gone}");
        for limit in 1..=whole.len() {
            assert_eq!(queue(&place, limit), whole[..limit], "{gone}: the first {limit}");
        }
    }
}

/// A partition may be on its way out, the whole may have become a part of another table, or
/// columns may have other names.
#[test]
fn no_write_of_a_partition_fails_by_us() {
    let Some(mut place) = Place::new() else { return };
    // The partition is detached while a transaction that has read the whole is open, so
    // it is neither in nor out.
    let mut open = server::client(&place.address);
    open.batch_execute("BEGIN; SELECT count(*) FROM notes").unwrap();
    let mut other = server::client(&place.address);
    let detach = std::thread::spawn(move || {
        other.batch_execute("ALTER TABLE notes DETACH PARTITION english CONCURRENTLY")
    });
    let pending = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending";
    while place.number(pending) == 0 {
        rehang_clock::wait(Duration::from_millis(10));
    }
    let writes = "INSERT INTO english (language, id, body, embedding) VALUES ('en', 9, 'nine', '[9,1]'); UPDATE english SET body = 'x' WHERE id = 1;
         UPDATE english SET id = 12 WHERE id = 2; DELETE FROM english WHERE id = 9";
    place.sql(writes);
    open.batch_execute("COMMIT").unwrap();
    detach.join().unwrap().unwrap();
    // The partition is a table of its own now, and has nothing of the gallery except what sees a TRUNCATE.
    place.sql(writes.replace("id = 12 WHERE id = 2", "id = 2 WHERE id = 12").as_str());
    place.sql("TRUNCATE english; DROP TABLE english");
    place.adopt();
    assert_eq!(place.items().len(), 5);
    place.sql("CREATE TABLE all_notes (LIKE notes INCLUDING ALL) PARTITION BY LIST (language); ALTER TABLE all_notes ATTACH PARTITION notes FOR VALUES IN ('de')");
    place.sql("INSERT INTO all_notes VALUES ('de', 20, 'zwanzig', 0, '[1,1]'); DELETE FROM all_notes WHERE id = 1; UPDATE german SET body = 'x' WHERE id = 2");
    let counts = PostgresStore::open(&place.address, &options(), Some("old")).unwrap().counts("new").unwrap();
    assert_eq!((counts.items, counts.native), (5, 3));
    place.sql("ALTER TABLE all_notes DETACH PARTITION notes; ALTER TABLE notes RENAME COLUMN body TO content; ALTER TABLE notes RENAME TO papers");
    place.sql(
        "INSERT INTO german VALUES ('de', 21, 'x', 0, '[1,1]'); UPDATE german_0 SET content = content || '!'; UPDATE german_1 SET content = content || '!';
         UPDATE papers SET id = 31 WHERE id = 21; DELETE FROM german WHERE id = 31; TRUNCATE german_0",
    );
    let store = PostgresStore::open(&place.address, &options(), Some("old")).unwrap();
    let rows = place.number("SELECT count(*) FROM papers");
    assert_eq!(store.counts("new").unwrap().items as i64, rows);
    PostgresStore::take_out(&place.address, &options()).unwrap();
    place.sql("TRUNCATE papers");
}

/// The backup of the table alone, restored over it, brings the gallery's triggers to the root and to each
/// partition. One command takes them off.
#[test]
fn a_partitioned_table_that_is_restored_alone_is_released() {
    let Some(Place { address, mut client, .. }) = Place::new() else { return };
    let triggers: Vec<String> = client
        .query(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname ~ 'rehang' AND tgparentid = 0 AND NOT tgisinternal ORDER BY 1",
            &[],
        )
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(
        triggers.len() > 5 && triggers.iter().any(|trigger| trigger.contains("zz_rehang_1_moves")),
        "{triggers:?}"
    );
    client.batch_execute(&format!("DROP TABLE notes; {TABLE}; {}", triggers.join(";"))).unwrap();
    client
        .batch_execute(
            "INSERT INTO notes VALUES ('de', 9, 'neun'); UPDATE notes SET language = 'en' WHERE id = 9",
        )
        .unwrap();
    let error = adopt(&address).unwrap_err().to_string();
    assert!(error.contains("restored alone"), "{error}");
    PostgresStore::take_out(&address, &options()).unwrap();
    let left = "SELECT to_regnamespace('rehang') IS NULL AND NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname ~ 'rehang')";
    assert!(client.query_one(left, &[]).unwrap().get::<_, bool>(0));
    client
        .batch_execute("UPDATE notes SET language = 'de' WHERE id = 9; TRUNCATE german_0; TRUNCATE notes")
        .unwrap();
    assert_eq!(adopt(&address).unwrap().check().unwrap(), []);
}

/// The function of the triggers works for the tables of its gallery alone, whoever makes
/// partitions, and of which table.
#[test]
fn partitions_of_strangers_are_none_of_ours() {
    let Some(mut place) = Place::new() else { return };
    let stranger = role(&place.address, "stranger");
    place.sql(&format!(
        "DROP ROLE IF EXISTS {stranger}; CREATE ROLE {stranger} LOGIN; GRANT USAGE ON SCHEMA rehang TO {stranger}; GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO {stranger};
         GRANT SELECT, INSERT, UPDATE, DELETE ON notes TO {stranger}; GRANT CREATE ON SCHEMA public TO {stranger}"
    ));
    let mut theirs = server::client(&as_user(&place.address, &stranger));
    theirs
        .batch_execute(
            "CREATE TABLE mine (LIKE notes) PARTITION BY LIST (language); CREATE TABLE mine_en PARTITION OF mine FOR VALUES IN ('en'); CREATE TABLE alone (LIKE notes)",
        )
        .unwrap();
    let made = |client: &mut Client, on: &str, when: &str, each: &str, fire: &str| {
        client
            .batch_execute(&format!(
                "CREATE TRIGGER a {when} ON {on} FOR EACH {each} EXECUTE FUNCTION rehang.changed_1(); {fire}"
            ))
            .err()
            .map(|error| error.code().unwrap().clone())
    };
    let insert = |on: &str| format!("INSERT INTO {on} VALUES ('en', 1, 'x', 0, '[1,1]')");
    let attacks = [
        ("mine_en", "AFTER INSERT", "ROW", insert("mine")),
        ("mine", "AFTER INSERT", "ROW", insert("mine")),
        ("alone", "BEFORE TRUNCATE", "STATEMENT", "TRUNCATE alone".to_owned()),
        ("alone", "AFTER INSERT", "ROW", insert("alone")),
    ];
    for (on, when, each, fire) in &attacks {
        assert_eq!(made(&mut theirs, on, when, each, fire), Some(SqlState::INSUFFICIENT_PRIVILEGE), "{on}");
    }
    // Strangers cannot make their table a part of the gallery's, nor a gallery's table a part of theirs.
    for sql in [
        "ALTER TABLE notes ATTACH PARTITION alone FOR VALUES IN ('xx')",
        "ALTER TABLE mine ATTACH PARTITION notes FOR VALUES IN ('de')",
        "CREATE TABLE more PARTITION OF notes FOR VALUES IN ('xx')",
    ] {
        assert_eq!(
            theirs.batch_execute(sql).unwrap_err().code(),
            Some(&SqlState::INSUFFICIENT_PRIVILEGE),
            "{sql}"
        );
    }
    let before = place.items();
    // Somebody may have given a stranger the function all the same.
    place.sql(&format!("GRANT EXECUTE ON FUNCTION rehang.changed_1() TO {stranger}"));
    for (on, when, each, fire) in &attacks {
        // A write of a table that is no part of the gallery does not concern it.
        assert_eq!(made(&mut theirs, on, when, each, fire), None, "{on}");
        theirs.batch_execute(&format!("DROP TRIGGER IF EXISTS a ON {on}")).unwrap();
    }
    place.sql(&format!("REVOKE EXECUTE ON FUNCTION rehang.changed_1() FROM {stranger}"));
    assert_eq!(place.items(), before);
    // Nobody but the owner sees rows that move.
    place.sql("INSERT INTO rehang.moving_1 (xact, o1, o2, n1, n2, id) VALUES ('1', 'en', 1, 'de', 1, 'x')");
    assert_eq!(theirs.query_one("SELECT count(*) FROM rehang.moving_1", &[]).unwrap().get::<_, i64>(0), 0);
    theirs
        .batch_execute("UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'")
        .unwrap();
    assert_eq!(place.items()[&id("de", 9)], (OLD, NATIVE));
    drop(theirs);
    place.sql(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}"));
}

/// A partition may come to belong to another role, whose policies must not be asked with the rights
/// of the function's owner.
#[test]
fn policies_of_a_partition_are_not_asked_with_our_rights() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let (owner, other) = (role(&address, "owner"), role(&address, "other"));
    let mut client = server::client(&address);
    let database: String = client.query_one("SELECT current_database()::text", &[]).unwrap().get(0);
    client
        .batch_execute(&format!(
            "DROP ROLE IF EXISTS {owner}, {other}; CREATE ROLE {owner} LOGIN; CREATE ROLE {other} LOGIN; GRANT ALL ON SCHEMA public TO {owner}, {other};
             GRANT CREATE ON DATABASE {database} TO {owner}; SET ROLE {owner}; {TABLE}; RESET ROLE"
        ))
        .unwrap();
    let store = adopt(&as_user(&address, &owner)).unwrap();
    client
        .batch_execute(&format!(
            "CREATE TABLE seen_by (who text); GRANT ALL ON seen_by TO {owner}, {other}; ALTER TABLE english OWNER TO {other}; SET ROLE {other};
             CREATE FUNCTION told() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen_by VALUES (current_user); RETURN true; END $$;
             CREATE POLICY all_of_it ON english USING (told()); ALTER TABLE english ENABLE ROW LEVEL SECURITY; ALTER TABLE english FORCE ROW LEVEL SECURITY;
             GRANT ALL ON english TO {owner}; TRUNCATE english; RESET ROLE; DELETE FROM seen_by"
        ))
        .unwrap();
    client.batch_execute("INSERT INTO notes VALUES ('en', 1, 'x', 0, '[1,1]'); TRUNCATE english").unwrap();
    store.remarks().unwrap();
    let told: i64 = client.query_one("SELECT count(*) FROM seen_by", &[]).unwrap().get(0);
    assert_eq!(told, 0);
    // Rows that could not be read are told, and an adoption sees to them.
    assert!(store.check().unwrap().iter().any(|problem| problem.what.contains("could not read in full")));
    client.batch_execute(&format!("DROP TABLE english; DROP OWNED BY {other} CASCADE")).unwrap();
    let store = adopt(&as_user(&address, &owner)).unwrap();
    assert_eq!(store.check().unwrap(), []);
    drop(store);
    client.batch_execute(&format!("DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}, {other}")).unwrap();
}

/// Most tables are partitioned by time: the time is a part of the key, and its text is the
/// same in every session.
#[test]
fn times_are_keys() {
    let Some(mut place) = Place::with_table(
        "CREATE TABLE notes (id bigint, at timestamptz(3), day date, hour timestamp, body text, embedding vector(2), PRIMARY KEY (at, day, hour, id)) PARTITION BY RANGE (at);
         CREATE TABLE may PARTITION OF notes FOR VALUES FROM ('2026-05-01 00:00+00') TO ('2026-06-01 00:00+00'); CREATE TABLE rest PARTITION OF notes DEFAULT;
         INSERT INTO notes SELECT n, '2026-05-01 00:00+00'::timestamptz + n * interval '10 days 1 ms', '2026-05-01'::date + n, 'infinity', at::text, format('[%s,1]', n)::vector
             FROM generate_series(1, 4) AS n, LATERAL (SELECT format('at %s', n)) AS b(at)",
    ) else {
        return;
    };
    let first = r#"["2026-05-11T00:00:00.001Z", "2026-05-02", "infinity", "1"]"#;
    assert_eq!(place.items()[first], (OLD, NATIVE));
    place.sql(
        "SET timezone = 'America/New_York'; SET datestyle = 'German'; UPDATE notes SET at = at + interval '1 month' WHERE id = 1;
         INSERT INTO notes VALUES (9, 'infinity', '-infinity', '2026-01-02 03:04:05', 'nine', '[9,1]'); DELETE FROM notes WHERE id = 2",
    );
    let items = place.items();
    assert_eq!(items[r#"["2026-06-11T00:00:00.001Z", "2026-05-02", "infinity", "1"]"#], (OLD, NATIVE));
    assert_eq!(items[r#"["infinity", "-infinity", "2026-01-02T03:04:05", "9"]"#], (OLD, None));
    assert_eq!(items.len(), 4);
    let of_date = r#"["2026-05-03T00:00:00Z", "2026-05-02", "2026-01-02T03:04:05", "12"]"#;
    let write = rehang_store::ItemWrite::new(of_date, Some("written".into()), Vec::new());
    place.store.put(&[write]).unwrap();
    assert_eq!(place.items().len(), 5);
    assert_eq!(
        place.number("SELECT count(*) FROM notes WHERE at = '2026-05-03 00:00+00' AND body = 'written'"),
        1
    );
}

/// An adoption that is called again mends triggers of the whole and of partitions.
#[test]
fn triggers_of_partitions_are_mended() {
    for harm in [
        "DROP TRIGGER \"00_rehang_1_rows\" ON notes",
        "DROP TRIGGER \"zz_rehang_1_moves\" ON notes",
        "ALTER TABLE english DISABLE TRIGGER \"00_rehang_1_updates\"",
        "ALTER TABLE german_1 ENABLE TRIGGER \"00_rehang_1_rows\"",
        "ALTER TABLE english DISABLE TRIGGER \"00_rehang_1_truncate\"",
    ] {
        let Some(mut place) = Place::new() else { return };
        place.sql(harm);
        assert!(place.problems().iter().any(|what| what.contains("missing or disabled")), "{harm}");
        place.adopt();
        assert_eq!(place.items().len(), 10, "{harm}");
        place.sql("UPDATE notes SET language = 'de', id = 9 WHERE id = 1 AND language = 'en'; UPDATE english SET body = 'x' WHERE id = 2; TRUNCATE german_1");
        assert_eq!(place.items()[&id("en", 2)], (None, None), "{harm}");
    }
}

/// A role is shown what the policies of the whole show it.
#[test]
fn row_security_of_a_partitioned_table() {
    let Some(mut place) = Place::new() else { return };
    let app = role(&place.address, "app");
    place.sql(&format!(
        "DROP ROLE IF EXISTS {app}; CREATE ROLE {app} LOGIN; GRANT SELECT ON notes TO {app}; GRANT USAGE ON SCHEMA rehang TO {app};
         GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO {app}; CREATE POLICY own ON notes FOR SELECT TO {app} USING (language = 'en'); ALTER TABLE notes ENABLE ROW LEVEL SECURITY"
    ));
    place.store.switch_serving("old", "new").unwrap();
    let mut theirs = server::client(&as_user(&place.address, &app));
    for sql in [
        "rehang.search('notes', '[1,2,3]', 100)",
        "rehang.serving_1",
        "rehang.item_1",
        "rehang.state_2",
        "rehang.vector_2",
    ] {
        let shown: i64 = theirs.query_one(&format!("SELECT count(*) FROM {sql}"), &[]).unwrap().get(0);
        assert_eq!(shown, 5, "{sql}");
    }
    drop(theirs);
    place.sql(&format!("DROP OWNED BY {app} CASCADE; DROP ROLE {app}"));
}

/// A release that ended in the middle of its indexes goes on, or is taken back.
#[test]
fn a_release_of_partitions_goes_on_or_is_taken_back() {
    for goes_on in [true, false] {
        let Some(mut place) = Place::new() else { return };
        place.sql("ALTER TABLE notes ADD COLUMN larger vector(3)");
        place.store.switch_serving("old", "new").unwrap();
        place.store.settle("larger", &|_, _| true).unwrap();
        // The state is that of a release that was killed before the last index: the index of the whole
        // is not made to its end.
        place.sql("DROP INDEX notes_larger_idx; CREATE INDEX notes_larger_idx ON ONLY notes USING hnsw (larger vector_l2_ops); CREATE INDEX loose ON english USING hnsw (larger vector_l2_ops)");
        assert!(
            place.problems().iter().any(|what| what.contains("notes_larger_idx")),
            "{:?}",
            place.problems()
        );
        let valid = "SELECT count(*) FROM pg_index WHERE indisvalid AND indexrelid IN (to_regclass('notes_larger_idx'), to_regclass('loose'))";
        if goes_on {
            place.store.settle("larger", &|_, _| true).unwrap();
            assert_eq!((place.number(valid), place.problems()), (2, vec![]));
            let Place { store, mut client, .. } = place;
            store.release(Some("larger")).unwrap();
            assert_eq!(
                client
                    .query_one("SELECT count(*) FROM notes WHERE larger = '[1,2,3]'", &[])
                    .unwrap()
                    .get::<_, i64>(0),
                10
            );
        } else {
            PostgresStore::take_out(&place.address, &options()).unwrap();
            assert_eq!(place.number("SELECT count(to_regclass('notes_larger_idx'))"), 0);
            assert_eq!(
                place.number("SELECT count(*) FROM notes WHERE larger IS NULL OR larger = '[1,2,3]'"),
                10
            );
        }
    }
}

/// An owner can run the statements of `adopt` by hand, also for a partitioned table.
#[test]
fn the_statements_for_a_partitioned_table_are_enough() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client.batch_execute(TABLE).unwrap();
    let statements = PostgresStore::statements(&address, &options()).unwrap();
    client.batch_execute(&statements).unwrap();
    let store = adopt(&address).unwrap();
    client.batch_execute("TRUNCATE english; UPDATE notes SET language = 'en' WHERE id = 1").unwrap();
    assert_eq!(store.check().unwrap(), []);
}

/// Applications move, change, delete and truncate, a partition comes and goes, and workers claim and write.
/// No write fails, and in the end every row is an item of its own content.
#[test]
fn rows_move_while_workers_write() {
    let Some(mut place) = Place::new() else { return };
    place.sql("INSERT INTO notes SELECT l, n, l || ' ' || n, 0, format('[%s,1]', n)::vector FROM unnest('{en,de}'::text[]) AS l, generate_series(6, 40) AS n");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (address, store, is_over) = (&place.address, &place.store, &is_over);
        for name in ["left", "right"] {
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    let claimed = store.claim("new", Queue::All, name, 10, Duration::from_secs(1)).unwrap();
                    let write = |record: &rehang_store::Record| {
                        VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])
                    };
                    let writes: Vec<VectorWrite> = claimed.records.iter().map(write).collect();
                    store.write_vectors("new", None, &writes).unwrap();
                }
            });
        }
        scope.spawn(move || {
            let mut client = server::client(address);
            while !is_over.load(Ordering::Acquire) {
                client.batch_execute("CREATE TABLE french PARTITION OF notes FOR VALUES IN ('fr'); INSERT INTO notes VALUES ('fr', 9999, 'un', 0, '[1,1]')").unwrap();
                client.batch_execute("DELETE FROM french; DROP TABLE french").unwrap();
            }
        });
        let writers: Vec<_> = (0..3_i64)
            .map(|writer| {
                scope.spawn(move || {
                    let mut client = server::client(address);
                    let mut next = writer + 1;
                    for round in 0..150 {
                        next = (next * 1_103_515_245 + 12_345) % 2_147_483_648;
                        let id = (next / 65_536) % 40 + 1;
                        // Each writer has ids of its own to move to, so that no key is taken.
                        let to = 100 + writer * 1_000 + round;
                        let sql = match next / 8_388_608 % 8 {
                            0 => format!("DELETE FROM notes WHERE id = {id}"),
                            1 => format!("UPDATE notes SET body = 'changed by {writer}', embedding = '[{id},2]' WHERE id = {id}"),
                            2 => format!("INSERT INTO notes VALUES ('en', {id}, 'en {id}', 0, '[{id},1]') ON CONFLICT (language, id) DO UPDATE SET body = EXCLUDED.body"),
                            3 if round % 10 == 0 => "TRUNCATE german_0".to_owned(),
                            4 => format!("UPDATE notes SET embedding = NULL WHERE id = {id}"),
                            _ => format!("UPDATE notes SET language = CASE language WHEN 'en' THEN 'de' ELSE 'en' END, id = {to} + id * 10000 WHERE id % 10000 = {id}"),
                        };
                        for _ in 0..20 {
                            match client.batch_execute(&sql) {
                                Ok(()) => break,
                                // Two sessions of the application may meet the same rows in different orders.
                                Err(error)
                                    if [Some(&SqlState::T_R_SERIALIZATION_FAILURE), Some(&SqlState::T_R_DEADLOCK_DETECTED)]
                                        .contains(&error.code()) => {}
                                Err(error) => panic!("{sql}: {error:?}"),
                            }
                        }
                    }
                })
            })
            .collect();
        let done: Vec<bool> = writers.into_iter().map(|writer| writer.join().is_ok()).collect();
        is_over.store(true, Ordering::Release);
        assert!(done.iter().all(|is_done| *is_done));
    });
    place.adopt();
    place.make_native();
    let items = place.items();
    assert_eq!(items.len() as i64, place.number("SELECT count(*) FROM notes"));
    assert!(items.values().all(|(_, new)| *new == NATIVE));
    assert_eq!(place.number("SELECT count(*) FROM rehang.moving_1"), 0);
}
