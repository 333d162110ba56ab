//! Wide vectors: kept as `halfvec` up to 4,000 coordinates, where the view keeps their index, and
//! without any index beyond.

use postgres::Client;
use rehang_core::{Distance, Provenance, Space};
use rehang_postgres::PostgresStore;
use rehang_store::{Examined, Ledger, Scan, Select, VectorWrite};

use crate::notes::options;
use crate::refusals::role;
use crate::server;

const WIDTH: usize = 2001;

fn adopt(address: &str) -> PostgresStore {
    PostgresStore::adopt(address, &options(), Some("old"), &|_, _| true).unwrap()
}

fn gallery(kind: &str) -> Option<(String, Client, PostgresStore)> {
    let address = server::server()?.database();
    let mut client = server::client(&address);
    client
        .batch_execute(&format!("CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding {kind})"))
        .unwrap();
    client
        .batch_execute("INSERT INTO notes SELECT n, 'body ' || n FROM generate_series(1, 60) AS n")
        .unwrap();
    let store = adopt(&address);
    Some((address, client, store))
}

fn make_native(store: &PostgresStore) {
    let vector = |at: usize| (0..WIDTH).map(|coordinate| (((at + 1) * coordinate) as f32).sin()).collect();
    let records = store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
    let native_write =
        |(at, record): (usize, &rehang_store::Record)| VectorWrite::native(&record.item, vector(at));
    let writes: Vec<VectorWrite> = records.iter().enumerate().map(native_write).collect();
    store.write_vectors("new", None, &writes).unwrap();
}

/// Reads the type of `serving_vector`.
fn shown_as(client: &mut Client) -> String {
    let sql = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'rehang.serving_1'::regclass AND attname = 'serving_vector'";
    client.query_one(sql, &[]).unwrap().get(0)
}

/// Reads the plan of a search of the view by a query of a type.
fn plan(client: &mut Client, vector: &str, query: &str) -> String {
    let sql = format!(
        "EXPLAIN (COSTS off) SELECT id FROM rehang.serving_1 ORDER BY {vector} <=> array_fill(1, ARRAY[{WIDTH}])::{query} LIMIT 3"
    );
    let rows = client.query(&sql, &[]).unwrap();
    rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
}

fn old(width: usize) -> Space {
    Space::new("old", width, Distance::Cosine, false)
}

fn new(name: &str, width: usize) -> Space {
    Space::new(name, width, Distance::Cosine, false)
}

const INDEX: &str = "CREATE INDEX CONCURRENTLY made ON rehang.vector_2 USING hnsw (value halfvec_cosine_ops)";

#[test]
fn a_view_of_wide_vectors_reads_their_index() {
    let Some((address, mut client, store)) = gallery(&format!("halfvec({WIDTH})")) else { return };
    store.create_space(&old(WIDTH), Provenance::Old).unwrap();
    store.create_space(&new("new", WIDTH), Provenance::Native).unwrap();
    assert_eq!(shown_as(&mut client), format!("halfvec({WIDTH})"));
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    client.batch_execute(INDEX).unwrap();
    client.batch_execute("ANALYZE; SET enable_seqscan = off; SET enable_sort = off").unwrap();
    // The column is searched cast to the type that it has, as it is written, and by a
    // query of the plain type.
    for (vector, query) in [
        (format!("serving_vector::halfvec({WIDTH})"), format!("halfvec({WIDTH})")),
        ("serving_vector".to_owned(), "halfvec".to_owned()),
        ("serving_vector".to_owned(), "vector".to_owned()),
    ] {
        let plan = plan(&mut client, &vector, &query);
        assert!(plan.contains("Index Scan using made"), "{vector} by {query}: {plan}");
    }
    // A reader that keeps its transaction open holds up neither a rollback nor the next switch.
    let mut reader = server::client(&address);
    reader.batch_execute("BEGIN; SELECT count(*) FROM rehang.serving_1").unwrap();
    store.switch_serving("new", "old").unwrap();
    store.switch_serving("old", "new").unwrap();
    reader.batch_execute("COMMIT").unwrap();
    let shown: i64 = client
        .query_one("SELECT count(*) FROM rehang.serving_1 WHERE provenance = 'native'", &[])
        .unwrap()
        .get(0);
    assert_eq!(shown, 60);
}

#[test]
fn the_view_of_an_upgrade_to_wide_vectors_has_their_type_once_the_others_are_gone() {
    let Some((address, mut client, store)) = gallery("vector(2)") else { return };
    let reader = role(&address, "reader");
    store.create_space(&old(2), Provenance::Old).unwrap();
    store.create_space(&new("new", WIDTH), Provenance::Native).unwrap();
    client
        .batch_execute(&format!(
            "DROP ROLE IF EXISTS {reader}; CREATE ROLE {reader}; GRANT SELECT ON rehang.serving_1 TO {reader}; UPDATE notes SET embedding = '[1,2]'"
        ))
        .unwrap();
    make_native(&store);
    store.switch_serving("old", "new").unwrap();
    assert_eq!(shown_as(&mut client), "vector");
    store.switch_serving("new", "old").unwrap();
    let shown: i64 = client
        .query_one("SELECT count(*) FROM rehang.serving_1 WHERE serving_vector = '[1,2]'", &[])
        .unwrap()
        .get(0);
    assert_eq!(shown, 60);
    store.switch_serving("old", "new").unwrap();
    // A view of the application's stays as it is, and keeps the gallery's view as it is.
    client.batch_execute("CREATE VIEW mine AS SELECT id, serving_vector FROM rehang.serving_1").unwrap();
    store.drop_space("old").unwrap();
    assert_eq!(shown_as(&mut client), "vector");
    client.batch_execute("DROP VIEW mine").unwrap();
    let store = {
        drop(store);
        adopt(&address)
    };
    assert_eq!(shown_as(&mut client), format!("halfvec({WIDTH})"));
    let may: bool = client
        .query_one(&format!("SELECT has_table_privilege('{reader}', 'rehang.serving_1', 'SELECT')"), &[])
        .unwrap()
        .get(0);
    assert!(may, "rights stay");
    // The next upgrade begins with the type that takes both.
    store.create_space(&new("next", 3), Provenance::Native).unwrap();
    assert_eq!(shown_as(&mut client), "vector");
    store.drop_space("next").unwrap();
    assert_eq!(shown_as(&mut client), format!("halfvec({WIDTH})"));
    assert_eq!(store.check().unwrap(), vec![]);
    store.release(None).unwrap();
    client.batch_execute(&format!("DROP ROLE {reader}")).unwrap();
}

#[test]
fn searches_that_can_have_no_index_are_foreseen() {
    let Some((address, mut client, _)) = gallery("vector(2)") else { return };
    let store = adopt(&address);
    let foreseen = |width: usize| store.foresee_searches(&new("new", width)).unwrap();
    assert_eq!(foreseen(4001), None, "all of a small gallery are compared in any case");
    client
        .batch_execute("INSERT INTO notes SELECT n, 'body ' || n FROM generate_series(61, 20500) AS n")
        .unwrap();
    assert_eq!((foreseen(3072), foreseen(4000)), (None, None));
    let said = foreseen(4096).unwrap();
    for words in
        ["4096 coordinates", "no index", "4000 being the most", "compares all 20500", " s where their 0.3 GB"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
}
