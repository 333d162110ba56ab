//! Tables with a history: row security, partitions, several collections in one table, schemas of others'
//! tools, and changes that their owners make in the middle of an upgrade.

use postgres::Client;
use postgres::error::SqlState;
use rehang_core::{Distance, Error, Provenance, Remedy, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined, Filter, Index, Ledger, Queue, Scan, Select, VectorWrite, WriteOutcome};

use crate::notes::labelled;
use crate::refusals::{as_user, role};
use crate::server;

fn make_spaces(store: &PostgresStore) {
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
}

fn adopt(address: &str, options: &TableOptions) -> Result<PostgresStore, Error> {
    PostgresStore::adopt(address, options, Some("old"), &|_, _| true)
}

fn make_native(store: &PostgresStore) {
    let records = store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
    let writes: Vec<VectorWrite> =
        records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
    assert_eq!(store.write_vectors("new", None, &writes).unwrap(), vec![WriteOutcome::Written; writes.len()]);
}

fn fresh(sql: &str) -> Option<(String, Client)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client.batch_execute(sql).unwrap();
    Some((address, client))
}

/// Database in which `owner` has what `sql` makes and `app` may search it; both names contain the database's.
struct Guarded {
    address: String,
    client: Client,
    owner: String,
    app: String,
}

impl Guarded {
    fn new(sql: &str) -> Option<Self> {
        let (address, mut client) = fresh("")?;
        let (owner, app) = (role(&address, "owner"), role(&address, "app"));
        client
            .batch_execute(&format!(
                "DROP ROLE IF EXISTS {owner}, {app}; CREATE ROLE {owner} LOGIN; CREATE ROLE {app} LOGIN;
                 GRANT ALL ON SCHEMA public TO {owner}; SET ROLE {owner}; {}",
                sql.replace("$app", &app)
            ))
            .unwrap();
        let database: String = client.query_one("SELECT current_database()::text", &[]).unwrap().get(0);
        client.batch_execute(&format!("RESET ROLE; GRANT CREATE ON DATABASE {database} TO {owner}")).unwrap();
        Some(Self { address, client, owner, app })
    }

    fn owners(&self) -> String {
        as_user(&self.address, &self.owner)
    }

    /// Grants what the page says that a role needs which searches and writes.
    fn grant(&mut self) {
        let sql = "GRANT USAGE ON SCHEMA rehang TO $app; GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO $app;
            GRANT UPDATE ON rehang.state_2 TO $app; GRANT INSERT, UPDATE ON rehang.vector_2 TO $app; GRANT DELETE ON rehang.failure_2, rehang.claim_2 TO $app";
        self.client.batch_execute(&sql.replace("$app", &self.app)).unwrap();
    }

    fn app(&self) -> Client {
        let mut client = server::client(&as_user(&self.address, &self.app));
        client.batch_execute("SET app.tenant = '1'").unwrap();
        client
    }

    fn end(mut self) {
        let Self { owner, app, .. } = &self;
        let sql = format!("DROP OWNED BY {owner}, {app} CASCADE; DROP ROLE {owner}, {app}");
        self.client.batch_execute(&sql).unwrap();
    }
}

const TENANTS: &str = "CREATE TABLE notes (id bigint PRIMARY KEY, tenant int, body text, topic text, embedding vector(2));
    CREATE POLICY own ON notes FOR SELECT TO $app USING (tenant = current_setting('app.tenant')::int);
    INSERT INTO notes SELECT n, n % 4, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 40) AS n;
    GRANT SELECT ON notes TO $app;";

/// Compares what a role is shown by every way with what it may see: how many rows, and how many of them of
/// another tenant than the first. `id` is the key's column with the number, and `at` its place in the key.
fn expect_shown(client: &mut Client, query: &str, (id, at): (&str, usize), all: i64, others: i64) {
    let of_search = if at == 1 { id.to_owned() } else { format!("{id}::jsonb ->> {}", at - 1) };
    let item = |table: &str| {
        format!("SELECT i.k{at} FROM rehang.{table} AS s JOIN rehang.item_1 AS i ON i.key = s.item")
    };
    for sql in [
        format!("SELECT ({of_search})::bigint FROM rehang.search('notes', '{query}', 100)"),
        format!("SELECT {id} FROM rehang.serving_1"),
        format!("SELECT k{at} FROM rehang.item_1"),
        item("state_2"),
        item("vector_2"),
    ] {
        let counted =
            format!("SELECT count(*), count(*) FILTER (WHERE id % 4 <> 1) FROM ({sql}) AS shown(id)");
        let row = client.query_one(&counted, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (all, others), "{sql}");
    }
    // The tables are counted without the items, whose policy would hide the rows.
    for table in ["state_2", "vector_2"] {
        let row = client.query_one(&format!("SELECT count(*) FROM rehang.{table}"), &[]).unwrap();
        assert_eq!(row.get::<_, i64>(0), all, "{table}");
    }
}

const ID: (&str, usize) = ("id", 1);

/// A role is asked through `rehang.search`, the view and the gallery's own tables: with no policy, and with
/// one that is switched on in the middle of an upgrade.
#[test]
fn a_role_is_shown_what_its_policies_show_it() {
    let Some(mut place) = Guarded::new(TENANTS) else { return };
    let store = adopt(&place.owners(), &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    place.grant();
    let mut app = place.app();
    expect_shown(&mut app, "[1,1]", ID, 40, 30);
    place.client.batch_execute("ALTER TABLE notes ENABLE ROW LEVEL SECURITY").unwrap();
    // The session has planned all of these statements before.
    expect_shown(&mut app, "[1,1]", ID, 10, 0);
    assert_eq!(app.query("SELECT * FROM rehang.serving_1", &[]).unwrap().len(), 10, "of the old vectors");
    store.switch_serving("old", "new").unwrap();
    expect_shown(&mut app, "[1,2,3]", ID, 10, 0);
    let write = "SELECT rehang.write('notes', $1, '[3,2,1]', 'new')";
    let error = app.query_one(write, &[&"1"]).unwrap_err();
    assert_eq!(
        error.code(),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE),
        "who may not update the row: {error:?}"
    );
    place
        .client
        .batch_execute(&format!(
            "CREATE POLICY change ON notes FOR UPDATE TO {0} USING (tenant = current_setting('app.tenant')::int); GRANT UPDATE ON notes TO {0}",
            place.app
        ))
        .unwrap();
    let mut write = |id: &str| -> bool { app.query_one(write, &[&id]).unwrap().get(0) };
    assert_eq!((write("1"), write("2")), (true, false), "nor is a vector of a hidden row written");
    // The owner is not subject to the policies: all steps go on.
    let store = PostgresStore::open(&place.owners(), &labelled(), Some("old")).unwrap();
    assert_eq!(store.check().unwrap(), []);
    assert_eq!(
        store.claim("new", Queue::All, "w", 1, std::time::Duration::from_secs(1)).unwrap().records.len(),
        0
    );
    assert_eq!(store.counts("new").unwrap().items, 40);
    // The session becomes another tenant. A role that may not read the table sees nothing.
    app.batch_execute("SET app.tenant = '2'").unwrap();
    expect_shown(&mut app, "[1,2,3]", ID, 10, 10);
    place.client.batch_execute(&format!("REVOKE SELECT ON notes FROM {}", place.app)).unwrap();
    let error = app.query("SELECT * FROM rehang.search('notes', '[1,2,3]', 100)", &[]).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{error:?}");
    // A policy that is taken off a table of the gallery is found, and made anew.
    place.client.batch_execute("ALTER TABLE rehang.vector_2 DISABLE ROW LEVEL SECURITY").unwrap();
    let found = store.check().unwrap();
    assert!(found.len() == 1 && found[0].what.contains("row security") && found[0].count == 1, "{found:?}");
    let store = adopt(&place.owners(), &labelled()).unwrap();
    assert_eq!(store.check().unwrap(), []);
    store.release(None).unwrap();
    place.end();
}

/// Every role may read all rows, and each writes its own. A role that may write vectors writes those of rows
/// that it may update, by every way.
#[test]
fn a_role_writes_what_its_policies_let_it_update() {
    let Some(mut place) = Guarded::new(
        "CREATE TABLE notes (id bigint PRIMARY KEY, tenant int, body text, topic text, embedding vector(2));
         CREATE POLICY shown ON notes FOR SELECT TO $app USING (true); CREATE POLICY made ON notes FOR INSERT TO $app WITH CHECK (tenant = 1);
         CREATE POLICY changed ON notes FOR UPDATE TO $app USING (tenant = 1);
         ALTER TABLE notes ENABLE ROW LEVEL SECURITY; GRANT SELECT, INSERT, UPDATE ON notes TO $app;
         INSERT INTO notes SELECT n, n % 4, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 40) AS n",
    ) else {
        return;
    };
    let store = adopt(&place.owners(), &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    place.grant();
    let mut app = place.app();
    assert_eq!(app.query("SELECT * FROM rehang.serving_1", &[]).unwrap().len(), 40);
    for (sql, changed) in [
        ("SELECT rehang.write('notes', '2', '[7,7,7]', 'new')", 0),
        ("UPDATE rehang.vector_2 SET value = '[7,7,7]'", 10),
        ("UPDATE rehang.state_2 SET provenance = 'lacking'", 10),
        ("SELECT rehang.write('notes', '1', '[7,7,7]', 'new')", 1),
        ("INSERT INTO notes VALUES (41, 1, 'more'); SELECT rehang.write('notes', '41', '[7,7,7]', 'new')", 1),
    ] {
        app.batch_execute("BEGIN").unwrap();
        app.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let sql = "SELECT count(*), count(*) FILTER (WHERE n.tenant <> 1) FROM notes AS n JOIN rehang.item_1 AS i ON i.k1 = n.id
             JOIN rehang.state_2 AS s ON s.item = i.key JOIN rehang.vector_2 AS v ON v.item = i.key
             WHERE s.provenance = 'lacking' OR v.value = '[7,7,7]'";
        let row = app.query_one(sql, &[]).unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (changed, 0), "{sql}");
        app.batch_execute("ROLLBACK").unwrap();
    }
    // The role's writes of its own rows keep nobody from theirs.
    app.batch_execute(
        "UPDATE rehang.state_2 SET provenance = 'adapted', band = 32767, score = 'NaN', sigma2 = 'NaN'",
    )
    .unwrap();
    place.client.batch_execute("DELETE FROM rehang.vector_2 WHERE item % 8 = 1").unwrap();
    let claimed = store.claim("new", Queue::All, "w", 20, std::time::Duration::from_secs(9)).unwrap();
    let writes: Vec<_> =
        claimed.records.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0])).collect();
    assert_eq!(store.write_vectors("new", None, &writes).unwrap(), [WriteOutcome::Written; 10]);
    assert_eq!(store.check().unwrap(), []);
    let others = "INSERT INTO rehang.vector_2 SELECT key, '[7,7,7]' FROM rehang.item_1 WHERE id = '2' ON CONFLICT (item) DO UPDATE SET value = EXCLUDED.value";
    assert_eq!(app.batch_execute(others).unwrap_err().code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    // Policies of an earlier version are told, and made anew.
    place.client.batch_execute("DROP POLICY rehang_updates ON rehang.vector_2").unwrap();
    assert_eq!(store.check().unwrap().len(), 1);
    assert_eq!(adopt(&place.owners(), &labelled()).unwrap().check().unwrap(), []);
    drop(store);
    place.end();
}

/// A second table takes the name of a gallery's table. Its rows are nobody's items, and its policies show
/// nothing of the gallery.
#[test]
fn another_table_of_the_same_name_is_not_the_gallery_s() {
    let Some(mut place) = Guarded::new(TENANTS) else { return };
    let store = adopt(&place.owners(), &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    place.grant();
    place
        .client
        .batch_execute(
            "ALTER TABLE notes ENABLE ROW LEVEL SECURITY; CREATE TABLE more (LIKE notes INCLUDING ALL);
             INSERT INTO more SELECT id + 1, tenant, body, topic, embedding FROM notes; ALTER TABLE notes RENAME TO archive; ALTER TABLE more RENAME TO notes",
        )
        .unwrap();
    place.client.batch_execute(&format!("GRANT SELECT, UPDATE ON notes TO {}", place.app)).unwrap();
    let count = |client: &mut Client, what: &str| -> i64 {
        client.query_one(&format!("SELECT count(*) FROM rehang.{what}"), &[]).unwrap().get(0)
    };
    assert_eq!(count(&mut place.client, "serving_1"), 0, "no vector of another row");
    let mut app = place.app();
    for what in ["item_1", "state_2", "vector_2", "serving_1"] {
        assert_eq!(count(&mut app, what), 0, "{what}");
    }
    assert_eq!(app.execute("UPDATE rehang.vector_2 SET value = '[7,7,7]'", &[]).unwrap(), 0);
    // By its present name the gallery is all there again.
    let options = TableOptions { table: "archive".into(), ..labelled() };
    let store = adopt(&place.owners(), &options).unwrap();
    assert_eq!(store.check().unwrap(), []);
    assert_eq!((count(&mut place.client, "serving_1"), count(&mut app, "serving_1")), (40, 10));
    drop(store);
    place.end();
}

/// A role that sees only a part of the table cannot keep its gallery, and is told who can.
#[test]
fn a_role_that_row_security_holds_for_keeps_no_gallery() {
    let Some(mut place) = Guarded::new(TENANTS) else { return };
    let store = adopt(&place.owners(), &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    let forced = "ALTER TABLE notes ENABLE ROW LEVEL SECURITY; ALTER TABLE notes FORCE ROW LEVEL SECURITY";
    place.client.batch_execute(forced).unwrap();
    let words = ["row security does not hold for", "NO FORCE ROW LEVEL SECURITY", "BYPASSRLS"];
    let says = |sentence: &str| words.iter().all(|word| sentence.contains(word));
    let error = PostgresStore::inspect(&place.owners(), &labelled()).unwrap_err().to_string();
    assert!(says(&error), "{error}");
    // The gallery's facts are told all the same, and searches go back.
    let store = PostgresStore::open(&place.owners(), &labelled(), Some("old")).unwrap();
    assert_eq!(store.counts("new").unwrap().native, 40);
    let found = store.check().unwrap();
    assert!(found.len() == 1 && says(&found[0].what), "{found:?}");
    store.switch_serving("new", "old").unwrap();
    let error = store.claim("new", Queue::All, "w", 1, std::time::Duration::from_secs(1)).unwrap_err();
    assert!(says(&error.to_string()), "{error}");
    PostgresStore::take_out(&place.owners(), &labelled()).unwrap();
    place.end();
}

/// A partition that is a gallery follows the policies of the table that the application reads.
#[test]
fn a_partition_keeps_to_the_policies_of_the_whole() {
    let Some(mut place) = Guarded::new(
        "CREATE TABLE all_notes (language text, id bigint, tenant int, body text, topic text, embedding vector(2), PRIMARY KEY (language, id))
             PARTITION BY LIST (language);
         CREATE TABLE notes PARTITION OF all_notes FOR VALUES IN ('en'); CREATE TABLE others PARTITION OF all_notes FOR VALUES IN ('de');
         CREATE POLICY own ON all_notes FOR SELECT TO $app USING (tenant = current_setting('app.tenant')::int);
         ALTER TABLE all_notes ENABLE ROW LEVEL SECURITY; GRANT SELECT ON all_notes TO $app;
         INSERT INTO all_notes SELECT l, n, n % 4, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM unnest('{en,de}'::text[]) AS l, generate_series(1, 40) AS n",
    ) else {
        return;
    };
    let store = adopt(&place.owners(), &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    place.grant();
    expect_shown(&mut place.app(), "[1,2,3]", ("id", 2), 10, 0);
    drop(store);
    place.end();
}

const PARTS: &str = "CREATE TABLE parts (language varchar(2), id bigint, body text, topic text, embedding vector(2), PRIMARY KEY (language, id))
         PARTITION BY LIST (language);
     CREATE TABLE notes PARTITION OF parts FOR VALUES IN ('en');
     INSERT INTO parts SELECT 'en', n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n";

/// The adoption says what only the whole can have, also before the end, which has no way back.
#[test]
fn a_partition_says_what_a_release_needs() {
    let Some((address, mut client)) = fresh(PARTS) else { return };
    let store = adopt(&address, &labelled()).unwrap();
    let error =
        adopt(&address, &TableOptions { table: "parts".into(), ..labelled() }).unwrap_err().to_string();
    assert!(error.contains("public.notes is a gallery and shares its rows"), "{error}");
    let said = store.remarks().unwrap();
    assert!(said.iter().any(|said| said.contains("ALTER TABLE public.parts ADD COLUMN")), "{said:?}");
    make_spaces(&store);
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    store.drop_space("old").unwrap();
    let error = store.settle("larger", &|_, _| true).unwrap_err().to_string();
    let statement = "ALTER TABLE public.parts ADD COLUMN \"larger\" \"public\".vector(3)";
    assert!(error.contains(statement), "{error}");
    client.batch_execute(statement).unwrap();
    store.settle("larger", &|_, _| true).unwrap();
    store.release(Some("larger")).unwrap();
    let there = "SELECT count(*) FROM parts WHERE larger = '[1,2,3]'";
    assert_eq!(client.query_one(there, &[]).unwrap().get::<_, i64>(0), 4);
}

/// LangChain's table: collections of several widths in one column. Rows that are no items are not looked at.
#[test]
fn collections_of_other_widths_are_nobodys_business() {
    let Some((address, mut client)) = fresh(
        "CREATE TABLE notes (id varchar PRIMARY KEY, collection_id uuid, embedding vector, document varchar, cmetadata jsonb);
         INSERT INTO notes SELECT 'b' || n, '00000000-0000-0000-0000-00000000000b', '[1,2,3,4,5]', 'b', '{}' FROM generate_series(1, 5) AS n;
         INSERT INTO notes SELECT 'a' || n, '00000000-0000-0000-0000-00000000000a', format('[%s,1]', n)::vector, 'a' || n, '{}' FROM generate_series(1, 4) AS n",
    ) else {
        return;
    };
    let options_of = |collection: char| TableOptions {
        table: "notes".into(),
        source: Some("document".into()),
        payload: Some("cmetadata".into()),
        vector: Some("embedding".into()),
        condition: Some(format!("collection_id = '00000000-0000-0000-0000-00000000000{collection}'")),
        ..TableOptions::default()
    };
    let old = Space::new("old", 2, Distance::L2, false);
    assert_eq!(PostgresStore::inspect(&address, &options_of('a')).unwrap().dimension, Some(2));
    assert_eq!(PostgresStore::inspect(&address, &options_of('b')).unwrap().dimension, Some(5));
    // The width is refused before anything is made.
    let error = PostgresStore::expect_vectors(&address, &options_of('b'), &old).unwrap_err();
    assert!(error.to_string().contains("has 5 coordinates a row where 2 are needed"), "{error}");
    PostgresStore::expect_vectors(&address, &options_of('a'), &old).unwrap();
    let store = adopt(&address, &options_of('a')).unwrap();
    make_spaces(&store);
    assert_eq!((store.counts("old").unwrap().items, store.counts("old").unwrap().old), (4, 4));
    client
        .batch_execute(
            "INSERT INTO notes SELECT 'c' || n, collection_id, '[1,2,3,4,5]', 'c', '{}' FROM notes, generate_series(1, 2) AS n WHERE id = 'b1';
             UPDATE notes SET embedding = '[5,4,3,2,1]' WHERE id = 'b2'; INSERT INTO notes SELECT 'a5', collection_id, '[5,1]', 'a5', '{}' FROM notes WHERE id = 'a1'",
        )
        .unwrap();
    assert_eq!((store.check().unwrap(), store.counts("old").unwrap().old), (vec![], 5));
    let found = "SELECT count(*) FROM rehang.search('notes', '[1,1]', 100)";
    assert_eq!(client.query_one(found, &[]).unwrap().get::<_, i64>(0), 5);
    let query = rehang_core::Matrix::new(2, vec![1.0, 1.0]).unwrap();
    assert_eq!(store.search("old", &query, 100, &Filter::default()).unwrap()[0].len(), 5);
    // Collection b has its turn after this one, and the refusal tells the two apart in words.
    let error = adopt(&address, &options_of('b')).unwrap_err().to_string();
    for word in ["condition \"collection_id", "one gallery at a time", "finished and released"] {
        assert!(error.contains(word) && !error.contains("{\"table\""), "{error}");
    }
    store.release(None).unwrap();
    let store = adopt(&address, &options_of('b')).unwrap();
    store.create_space(&Space::new("old", 5, Distance::L2, false), Provenance::Old).unwrap();
    assert_eq!(store.counts("old").unwrap().items, 7);
}

/// A tool that compares schemas drops triggers that it does not know, or makes the table anew.
#[test]
fn an_adoption_that_is_called_again_mends_the_triggers() {
    let Some((address, mut client)) = fresh(LABELLED) else { return };
    for harm in [
        "DROP TRIGGER \"00_rehang_1_rows\" ON notes; DROP TRIGGER \"00_rehang_1_updates\" ON notes; DROP TRIGGER \"00_rehang_1_truncate\" ON notes",
        "DROP TRIGGER \"00_rehang_1_rows\" ON notes",
        "ALTER TABLE notes DISABLE TRIGGER \"00_rehang_1_updates\"",
        "ALTER TABLE notes ENABLE TRIGGER \"00_rehang_1_rows\"",
    ] {
        let store = adopt(&address, &labelled()).unwrap();
        make_spaces(&store);
        make_native(&store);
        let ours = format!("_{}_", number(&mut client));
        client.batch_execute(&harm.replace("_1_", &ours)).unwrap();
        client.batch_execute("DELETE FROM notes WHERE id = 2; INSERT INTO notes VALUES (2, 'again', 'topic', '[2,1]'), (9, 'new', 'topic', '[9,1]')").unwrap();
        let found = store.check().unwrap();
        assert!(
            found.iter().any(|problem| problem.what.contains("missing or disabled")
                && problem.what.contains("`gallery adopt`")),
            "{harm}: {found:?}"
        );
        let store = adopt(&address, &labelled()).unwrap();
        assert_eq!(store.check().unwrap(), [], "{harm}");
        assert_eq!(store.counts("new").unwrap().items, 5, "{harm}");
        client
            .batch_execute(
                "DELETE FROM notes WHERE id = 9; UPDATE notes SET body = 'more' WHERE id = 1; TRUNCATE notes",
            )
            .unwrap();
        assert_eq!((store.check().unwrap(), store.counts("new").unwrap().items), (vec![], 0), "{harm}");
        store.release(None).unwrap();
        client.batch_execute("INSERT INTO notes SELECT n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n").unwrap();
    }
}

fn number(client: &mut Client) -> i32 {
    client.query_one("SELECT max(number) FROM rehang.gallery", &[]).unwrap().get(0)
}

const LABELLED: &str = "CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2));
    INSERT INTO notes SELECT n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n";

#[test]
fn what_is_left_of_a_table_that_is_gone_is_told_and_taken_away() {
    let Some((address, mut client)) = fresh(LABELLED) else { return };
    make_spaces(&adopt(&address, &labelled()).unwrap());
    client.batch_execute(&format!("DROP TABLE notes; {LABELLED}")).unwrap();
    let error = PostgresStore::open(&address, &labelled(), Some("old")).unwrap_err();
    assert_eq!(error.remedy(), Some(&Remedy::AdoptTable), "{error}");
    let store = adopt(&address, &labelled()).unwrap();
    let said = store.remarks().unwrap();
    assert!(said.len() == 1 && said[0].contains("gallery 1 was of a table notes that is gone"), "{said:?}");
    drop(store);
    PostgresStore::take_out(&address, &labelled()).unwrap();
    let left = "SELECT to_regnamespace('rehang') IS NULL";
    assert!(client.query_one(left, &[]).unwrap().get::<_, bool>(0));
}

#[test]
fn a_table_that_is_written_in_other_letters_is_named() {
    let Some((address, _client)) = fresh(
        "CREATE SCHEMA \"Shop\"; CREATE TABLE \"Shop\".\"KnowledgeItem\" (id text PRIMARY KEY, \"bodyText\" text)",
    ) else {
        return;
    };
    for name in ["KnowledgeItem", "Shop.KnowledgeItem", "knowledgeitem", "shop.\"KnowledgeItem\""] {
        let options = TableOptions { table: name.into(), ..TableOptions::default() };
        let error = PostgresStore::inspect(&address, &options).unwrap_err().to_string();
        assert!(error.contains("one is written '\"Shop\".\"KnowledgeItem\"'"), "{name}: {error}");
    }
}

/// Migrations of an application come in the middle of an upgrade. No write of its own fails by rehang, what
/// is known stays readable, searches can be led back, and the gallery can be taken out.
#[test]
fn no_write_fails_whatever_a_migration_changes() {
    // Each case has source, condition and change; how many natives stay, of two items whose source and whose
    // old vector change; and what the doctor says.
    for (source, condition, change, stay, words) in [
        ("body", None, "RENAME body TO content", 1, "\"body\" is called \"content\" now"),
        (
            "body",
            None,
            "RENAME body TO content; ALTER TABLE notes ADD COLUMN body text",
            1,
            "\"body\" is called \"content\" now",
        ),
        ("topic || body", None, "RENAME body TO content", 1, "source cannot be"),
        ("topic || body", None, "DROP COLUMN topic", 1, "label cannot be"),
        ("body", Some("live"), "RENAME live TO alive", 1, "condition cannot be"),
        ("body", Some("live"), "DROP COLUMN live", 2, "condition cannot be"),
        ("body", None, "RENAME embedding TO vector", 1, "\"embedding\" is called \"vector\" now"),
        ("body", None, "RENAME id TO number", 1, "its column \"id\" is called \"number\" now"),
        ("body", None, "DROP COLUMN topic", 1, "label cannot be"),
        ("body", None, "RENAME TO papers", 1, "it is called public.papers now"),
        ("body", None, "SET SCHEMA archive", 1, "it is called archive.notes now"),
    ] {
        let Some((address, mut client)) = fresh("CREATE SCHEMA archive; CREATE TABLE notes (id bigint PRIMARY KEY, gone int, body text, topic text, live bool DEFAULT true, embedding vector(2));
             ALTER TABLE notes DROP COLUMN gone;
             INSERT INTO notes SELECT n, 'body ' || n, 'topic', true, format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n") else { return };
        let what = format!("{source}, {condition:?}, {change}");
        let options = TableOptions {
            source: Some(source.into()),
            condition: condition.map(str::to_owned),
            ..labelled()
        };
        let store = adopt(&address, &options).unwrap();
        make_spaces(&store);
        make_native(&store);
        store.switch_serving("old", "new").unwrap();
        // The session has run the function before.
        client.batch_execute("UPDATE notes SET body = 'body 0' WHERE embedding = '[4,1]'; DELETE FROM notes WHERE embedding = '[4,1]'").unwrap();
        client.batch_execute(&format!("ALTER TABLE notes {change}")).unwrap();
        let row = client.query_one(
            "SELECT oid::regclass::text, (SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum = 1),
                 (SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum = 3), (SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum = 6)
             FROM pg_class AS c WHERE relname IN ('notes', 'papers') AND relkind = 'r'",
            &[],
        ).unwrap();
        let [on, id, body, vector]: [String; 4] = [0, 1, 2, 3].map(|at| row.get(at));
        for mut client in [client, server::client(&address)] {
            for sql in [
                format!("UPDATE {on} SET {body} = {body} || '!' WHERE {id} = 1"),
                format!("INSERT INTO {on} ({id}, {body}, {vector}) VALUES (7, 'seven', '[7,1]')"),
                format!("DELETE FROM {on} WHERE {id} IN (2, 7)"),
                format!("UPDATE {on} SET {vector} = '[3,3]' WHERE {id} = 3"),
            ] {
                client.batch_execute(&sql).unwrap_or_else(|error| panic!("{what}: {sql}: {error:?}"));
            }
        }
        let store = PostgresStore::open(&address, &options, Some("old"))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let counts = store.counts("new").unwrap();
        assert_eq!(counts.items, 2, "{what}: 1 and 3");
        assert_eq!(counts.native, stay, "{what}");
        let found = store.check().unwrap();
        assert!(found.len() == 1 && found[0].what.contains(words), "{what}: {found:?}");
        assert!(
            store
                .claim("new", Queue::All, "w", 1, std::time::Duration::from_secs(1))
                .unwrap_err()
                .to_string()
                .contains(words),
            "{what}"
        );
        store.switch_serving("new", "old").unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(store);
        PostgresStore::take_out(&address, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// A new primary key makes rows other items: vectors would be made of one row and belong to another.
#[test]
fn another_primary_key_is_no_other_name_of_the_same_items() {
    for (change, asked, made) in [
        ("DROP CONSTRAINT notes_pkey, ADD PRIMARY KEY (other)", "\"other\"", "\"id\""),
        ("DROP CONSTRAINT notes_pkey, ADD PRIMARY KEY (part)", "\"part\"", "\"id\""),
        ("DROP CONSTRAINT notes_pkey, ADD PRIMARY KEY (id, part)", "\"id, part\"", "\"id\""),
        ("DROP CONSTRAINT notes_pkey", "with a primary key", ""),
    ] {
        let Some((address, mut client)) = fresh(
            "CREATE TABLE notes (id bigint PRIMARY KEY, other bigint NOT NULL UNIQUE, part uuid NOT NULL DEFAULT gen_random_uuid(), body text, topic text,
                 embedding vector(2));
             INSERT INTO notes SELECT n, 5 - n, gen_random_uuid(), 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n",
        ) else {
            return;
        };
        let store = adopt(&address, &labelled()).unwrap();
        make_spaces(&store);
        make_native(&store);
        store.switch_serving("old", "new").unwrap();
        client.batch_execute(&format!("ALTER TABLE notes {change}")).unwrap();
        client.batch_execute("UPDATE notes SET body = 'other' WHERE id = 1").unwrap();
        let store = PostgresStore::open(&address, &labelled(), Some("old")).unwrap();
        let said = [
            store.claim("new", Queue::All, "w", 1, std::time::Duration::from_secs(1)).unwrap_err(),
            adopt(&address, &labelled()).unwrap_err(),
        ];
        for error in said {
            let said = error.to_string();
            assert!(said.contains(asked) && said.contains(made), "{change}: {said}");
        }
        assert_eq!(store.check().unwrap().len(), 1, "{change}");
        assert_eq!(store.counts("new").unwrap().native, 3, "{change}");
        // Searches go back, and give the earlier rows.
        store.switch_serving("new", "old").unwrap();
        let sql =
            "SELECT string_agg(id || ':' || serving_vector::text, ' ' ORDER BY id) FROM rehang.serving_1";
        let shown: String = client.query_one(sql, &[]).unwrap().get(0);
        assert_eq!(shown, "2:[2,1] 3:[3,1] 4:[4,1]", "{change}");
        // The configuration names the earlier key, and the upgrade goes on.
        client.batch_execute("CREATE UNIQUE INDEX ON notes (id)").unwrap();
        let named = TableOptions { id: vec!["id".into()], ..labelled() };
        let store = PostgresStore::open(&address, &named, Some("old")).unwrap();
        assert_eq!(store.check().unwrap(), [], "{change}");
        assert_eq!(adopt(&address, &named).unwrap().counts("new").unwrap().native, 3, "{change}");
        PostgresStore::take_out(&address, &labelled()).unwrap();
    }
}

/// pgvector is in another schema from one moment to the next, for example where it is moved out of `public`.
/// The application's writes go on, and an adoption makes anew what names it.
#[test]
fn pgvector_moves_to_another_schema() {
    let Some((address, mut client)) = fresh(LABELLED) else { return };
    let store = adopt(&address, &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    client.batch_execute("UPDATE notes SET body = 'before' WHERE id = 1").unwrap();
    client.batch_execute("CREATE SCHEMA extensions; ALTER EXTENSION vector SET SCHEMA extensions").unwrap();
    for (n, mut client) in [client, server::client(&address)].into_iter().enumerate() {
        client
            .batch_execute(&format!(
                "INSERT INTO notes VALUES ({}, 'more', 'topic', '[5,1]'); UPDATE notes SET body = body || '!' WHERE id = 2;
                 UPDATE notes SET embedding = '[7,7]' WHERE id = 3; DELETE FROM notes WHERE id = 4",
                10 + n
            ))
            .unwrap();
    }
    let store = adopt(&address, &labelled()).unwrap();
    assert_eq!(store.check().unwrap(), []);
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.items, counts.native, store.counts("old").unwrap().old), (5, 1, 3));
    store.switch_serving("new", "old").unwrap();
    let found = "SELECT count(*) FROM rehang.search('notes', '[1,1]'::extensions.vector, 10)";
    assert_eq!(server::client(&address).query_one(found, &[]).unwrap().get::<_, i64>(0), 3);
    store.release(None).unwrap();
}

/// The backup of the table alone is restored over it. The restored table has the gallery's triggers and
/// belongs to no gallery. Its writes go on, and one command takes out what is left.
#[test]
fn a_table_that_is_restored_alone_is_written_on() {
    let Some((address, mut client)) = fresh(LABELLED) else { return };
    let store = adopt(&address, &labelled()).unwrap();
    make_spaces(&store);
    make_native(&store);
    client
        .batch_execute(&format!(
            "DROP TABLE notes; {LABELLED};
             CREATE TRIGGER \"00_rehang_1_rows\" AFTER INSERT OR DELETE ON notes FOR EACH ROW EXECUTE FUNCTION rehang.changed_1();
             CREATE TRIGGER \"00_rehang_1_truncate\" AFTER TRUNCATE ON notes FOR EACH STATEMENT EXECUTE FUNCTION rehang.changed_1();
             ALTER TABLE notes ENABLE ALWAYS TRIGGER \"00_rehang_1_rows\"; ALTER TABLE notes ENABLE ALWAYS TRIGGER \"00_rehang_1_truncate\""
        ))
        .unwrap();
    client.batch_execute("INSERT INTO notes VALUES (9, 'nine'); DELETE FROM notes WHERE id = 1; BEGIN; TRUNCATE notes; ROLLBACK").unwrap();
    for error in [
        PostgresStore::open(&address, &labelled(), Some("old")).unwrap_err(),
        adopt(&address, &labelled()).unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(said.contains("restored alone") && said.contains("No write of it is seen"), "{said}");
    }
    PostgresStore::take_out(&address, &labelled()).unwrap();
    let left = "SELECT to_regnamespace('rehang') IS NULL AND NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname ~ 'rehang')";
    assert!(client.query_one(left, &[]).unwrap().get::<_, bool>(0));
    let store = adopt(&address, &labelled()).unwrap();
    make_spaces(&store);
    assert_eq!((store.check().unwrap(), store.counts("old").unwrap().items), (vec![], 4));
}

/// A column of the source is gone, so that no write can be read in full. A transaction that stays open after
/// such a write keeps nobody waiting: neither other writes nor a switch.
#[test]
fn an_open_transaction_whose_row_cannot_be_read_is_in_nobodys_way() {
    let Some((address, mut client)) = fresh(LABELLED) else { return };
    let options = TableOptions { source: Some("topic || body".into()), label: None, ..labelled() };
    let store = adopt(&address, &options).unwrap();
    make_spaces(&store);
    make_native(&store);
    client.batch_execute("ALTER TABLE notes DROP COLUMN topic").unwrap();
    let mut others: Vec<Client> = (0..3).map(|_| server::client(&address)).collect();
    for client in &mut others {
        client.batch_execute("SET lock_timeout = '1s'").unwrap();
    }
    // An older snapshot knows of no such document either.
    others[1].batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM notes").unwrap();
    client.batch_execute("BEGIN; UPDATE notes SET body = 'open' WHERE id = 1").unwrap();
    others[0]
        .batch_execute("UPDATE notes SET body = 'other' WHERE id = 2; DELETE FROM notes WHERE id = 3")
        .unwrap();
    let store = PostgresStore::open(&address, &options, Some("old")).unwrap();
    let began = rehang_clock::now();
    store.switch_serving("old", "new").unwrap();
    store.switch_serving("new", "old").unwrap();
    store.set_document("upgrade", None, "{}").unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(1), "{:?}", began.elapsed());
    client.batch_execute("COMMIT").unwrap();
    others[1].batch_execute("UPDATE notes SET body = 'late' WHERE id = 4; COMMIT").unwrap();
    assert_eq!(store.check().unwrap().len(), 1);
    client.batch_execute("ALTER TABLE notes ADD COLUMN topic text DEFAULT 't'").unwrap();
    assert_eq!(adopt(&address, &options).unwrap().check().unwrap(), [], "every such document is gone");
}

/// A source that cannot be made of one row counts as none. That row's write goes through, what was known of
/// it goes, and the doctor tells.
#[test]
fn a_source_that_fails_for_a_row_fails_no_write() {
    let Some((address, mut client)) = fresh(
        "CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2), parts int DEFAULT 1);
         INSERT INTO notes SELECT n, 'body ' || n, 'topic', format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n",
    ) else {
        return;
    };
    let options = TableOptions { source: Some("body || 10 / parts".into()), ..labelled() };
    let store = adopt(&address, &options).unwrap();
    make_spaces(&store);
    make_native(&store);
    client.batch_execute("UPDATE notes SET parts = 0 WHERE id = 1; INSERT INTO notes VALUES (5, 'five', 'topic', '[5,1]', 0)").unwrap();
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.items, counts.native, counts.without_source), (5, 3, 2));
    let found = store.check().unwrap_or_default();
    assert!(
        found
            .iter()
            .any(|problem| problem.what.contains("could not read in full") && problem.what.contains("22012")),
        "{found:?}"
    );
    client.batch_execute("UPDATE notes SET parts = 2 WHERE parts = 0").unwrap();
    assert_eq!(adopt(&address, &options).unwrap().check().unwrap(), []);
    assert_eq!(store.counts("new").unwrap().without_source, 0);
}

/// A row whose source or condition fails keeps no other row from being adopted, told, embedded or led back,
/// whether it was there before or came since.
#[test]
fn a_row_that_fails_keeps_no_step_from_the_others() {
    for (source, condition, there) in [
        ("body || 10 / parts", None, 4),
        ("body || repeat('x', 1000000000 * (2 - parts))", None, 4),
        ("body", Some("10 / parts > 1"), 3),
        ("body", Some("other.strictly(parts)"), 3),
    ] {
        let Some((address, mut client)) = fresh(
            "CREATE SCHEMA other; CREATE FUNCTION other.strictly(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
                 $$ BEGIN IF $1 = 0 THEN RAISE EXCEPTION 'not so'; END IF; RETURN true; END $$;
             CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2), parts int DEFAULT 2);
             INSERT INTO notes SELECT n, 'body ' || n, 'topic', format('[%s,1]', n)::vector, CASE n WHEN 3 THEN 0 ELSE 2 END FROM generate_series(1, 4) AS n",
        ) else {
            return;
        };
        let what = format!("{source}, {condition:?}");
        let options = TableOptions {
            source: Some(source.into()),
            condition: condition.map(str::to_owned),
            ..labelled()
        };
        let has = |words: &str, store: &PostgresStore| {
            store
                .check()
                .unwrap_or_else(|error| panic!("{what}: {error}"))
                .iter()
                .any(|found| found.what.contains(words))
        };
        let store = adopt(&address, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        make_spaces(&store);
        let counts = store.counts("new").unwrap();
        assert_eq!((counts.items, counts.without_source), (there, u64::from(there == 4)), "{what}");
        make_native(&store);
        assert_eq!(has("condition cannot be read", &store), there == 3, "{what}");
        store.switch_serving("old", "new").unwrap();
        // A row that was an item ceases to be readable.
        client.batch_execute("UPDATE notes SET parts = 0 WHERE id = 1").unwrap();
        assert!(has("could not read in full", &store), "{what}");
        for select in [Select::All, Select::WithoutSource, Select::Lacking] {
            let records =
                store.scan(&Scan::new("new", select, 100)).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(
                records
                    .iter()
                    .all(|record| record.item.source.is_some() || ["1", "3"].contains(&&*record.item.id))
            );
        }
        store.switch_serving("new", "old").unwrap();
        let store = adopt(&address, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(store.counts("new").unwrap().items, there, "{what}: it stays what it was");
        assert!(!has("could not read in full", &store), "{what}");
        assert!(!has("that are no items", &store) && !has("without a row", &store), "{what}");
        // The rows are mended, and no trace is left.
        client.batch_execute("UPDATE notes SET parts = 2").unwrap();
        let store = adopt(&address, &options).unwrap();
        assert_eq!(store.check().unwrap(), [], "{what}");
        let counts = store.counts("new").unwrap();
        assert_eq!((counts.items, counts.without_source), (4, 0), "{what}");
        store.release(None).unwrap();
    }
}

/// Tables as the tools make them that most people have them from: quoted names, composite keys, keys of every
/// type, `halfvec`, foreign keys.
#[test]
fn tables_of_other_peoples_tools() {
    // Each form has the tool's name, its statements that make four rows, its options (table, source,
    // vector, payload, condition) and the id of the first row. Then come its writes of a new row, of new
    // content, and of an end.
    let forms = [
        (
            "LlamaIndex",
            "CREATE TABLE data_notes (id bigserial PRIMARY KEY, text varchar NOT NULL, metadata_ json, node_id varchar, embedding vector(2));
             CREATE INDEX data_notes_idx_1 ON data_notes ((metadata_ ->> 'ref_doc_id'));
             INSERT INTO data_notes (text, metadata_, node_id, embedding) SELECT 'text ' || n, '{}', n, format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n",
            ["data_notes", "text", "embedding", "", ""],
            "1",
            ["INSERT INTO data_notes (text, embedding) VALUES ('five', '[5,1]')", "UPDATE data_notes SET text = 'other' WHERE id = 2", "DELETE FROM data_notes WHERE id = 3"],
        ),
        (
            "Django",
            "CREATE TABLE shop_author (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY);
             CREATE TABLE shop_item (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, title varchar(200) NOT NULL, \"order\" int, embedding vector(2),
                 author_id bigint REFERENCES shop_author DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO shop_author DEFAULT VALUES;
             INSERT INTO shop_item (title, embedding, author_id) SELECT 'title ' || n, format('[%s,1]', n)::vector, 1 FROM generate_series(1, 4) AS n",
            ["shop_item", "title || coalesce(\"order\"::text, '')", "embedding", "", ""],
            "1",
            ["INSERT INTO shop_item (title, embedding) VALUES ('five', '[5,1]')", "UPDATE shop_item SET \"order\" = 7 WHERE id = 2", "DELETE FROM shop_item WHERE id = 3"],
        ),
        (
            "Prisma",
            "CREATE TABLE \"CoreItem\" (id text PRIMARY KEY, \"bodyText\" text NOT NULL, \"isPublic\" boolean NOT NULL DEFAULT true, \"embeddingV1\" vector(2),
                 \"createdAt\" timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP);
             INSERT INTO \"CoreItem\" SELECT 'ck' || n, 'text ' || n, true, format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n",
            ["\"CoreItem\"", "bodyText", "embeddingV1", "", "\"isPublic\""],
            "ck1",
            ["INSERT INTO \"CoreItem\" VALUES ('ck5', 'five', true, '[5,1]'), ('ck6', 'six', false, '[6,1]')", "UPDATE \"CoreItem\" SET \"bodyText\" = 'other' WHERE id = 'ck2'", "UPDATE \"CoreItem\" SET \"isPublic\" = false WHERE id = 'ck3'"],
        ),
        (
            "immich",
            "CREATE TABLE asset (id uuid PRIMARY KEY); INSERT INTO asset SELECT format('00000000-0000-0000-0000-00000000000%s', n)::uuid FROM generate_series(1, 5) AS n;
             CREATE TABLE smart_search (\"assetId\" uuid PRIMARY KEY REFERENCES asset ON DELETE CASCADE, embedding vector(2) NOT NULL);
             ALTER TABLE smart_search ALTER COLUMN embedding SET STORAGE EXTERNAL;
             CREATE INDEX clip_index ON smart_search USING hnsw (embedding vector_cosine_ops);
             INSERT INTO smart_search SELECT id, format('[%s,1]', right(id::text, 1))::vector FROM asset WHERE id::text NOT LIKE '%5'",
            ["smart_search", "assetId", "embedding", "", ""],
            "00000000-0000-0000-0000-000000000001",
            [
                "INSERT INTO smart_search VALUES ('00000000-0000-0000-0000-000000000005', '[5,1]')",
                "DELETE FROM smart_search WHERE \"assetId\"::text LIKE '%2'; INSERT INTO smart_search VALUES ('00000000-0000-0000-0000-000000000002', '[2,1]')",
                "DELETE FROM asset WHERE id::text LIKE '%3'",
            ],
        ),
        (
            "LightRAG",
            "CREATE TABLE lightrag_doc_chunks (id varchar(255), workspace varchar(255), content text, content_vector vector, meta jsonb,
                 create_time timestamptz DEFAULT now(), CONSTRAINT lightrag_doc_chunks_pk PRIMARY KEY (workspace, id));
             INSERT INTO lightrag_doc_chunks (id, workspace, content, content_vector, meta)
                 SELECT 'chunk-' || n, 'de fault', 'text ' || n, format('[%s,1]', n)::vector, '{\"a\": 1}' FROM generate_series(1, 4) AS n;
             INSERT INTO lightrag_doc_chunks VALUES ('chunk-1', 'other', 'elsewhere', '[1,2,3]')",
            ["lightrag_doc_chunks", "content", "content_vector", "meta", "workspace = 'de fault'"],
            "[\"de fault\", \"chunk-1\"]",
            [
                "INSERT INTO lightrag_doc_chunks VALUES ('chunk-5', 'de fault', 'five', '[5,1]', '{}')",
                "UPDATE lightrag_doc_chunks SET content = 'other' WHERE id = 'chunk-2'",
                "DELETE FROM lightrag_doc_chunks WHERE id = 'chunk-3'",
            ],
        ),
    ];
    for (tool, sql, [table, source, vector, payload, condition], first, writes) in forms {
        let Some((address, mut client)) = fresh(sql) else { return };
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let options = TableOptions {
            table: table.into(),
            source: some(source),
            vector: some(vector),
            payload: some(payload),
            condition: some(condition),
            ..TableOptions::default()
        };
        let old = Space::new("old", 2, Distance::L2, false);
        PostgresStore::expect_vectors(&address, &options, &old)
            .unwrap_or_else(|error| panic!("{tool}: {error}"));
        let store = adopt(&address, &options).unwrap_or_else(|error| panic!("{tool}: {error}"));
        make_spaces(&store);
        assert_eq!(store.counts("old").unwrap().old, 4, "{tool}");
        assert!(store.get(&[first]).unwrap()[0].is_some(), "{tool}: {first}");
        make_native(&store);
        store.switch_serving("old", "new").unwrap();
        for write in writes {
            client.batch_execute(write).unwrap_or_else(|error| panic!("{tool}: {write}: {error:?}"));
        }
        let counts = store.counts("new").unwrap();
        // A row that is deleted and written anew with the same id and source keeps the
        // vector that was paid for.
        let native = if tool == "immich" { 3 } else { 2 };
        assert_eq!((store.check().unwrap(), counts.items, counts.native), (vec![], 4, native), "{tool}");
        let found =
            format!("SELECT count(*) FROM rehang.search({}, '[1,2,3]', 10)", format_args!("'{table}'"));
        assert_eq!(client.query_one(&found, &[]).unwrap().get::<_, i64>(0), native as i64, "{tool}");
        make_native(&store);
        store.drop_space("old").unwrap();
        store.settle("v 2", &|_, _| true).unwrap_or_else(|error| panic!("{tool}: {error}"));
        store.release(Some("v 2")).unwrap();
        let there = format!("SELECT count(*) FROM {table} WHERE \"v 2\" = '[1,2,3]'");
        assert_eq!(client.query_one(&there, &[]).unwrap().get::<_, i64>(0), 4, "{tool}");
    }
}
