//! Costs of calls where a gallery is large, where one kind of vectors is rare, or where somebody
//! looks at an old state.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_postgres::PostgresStore;
use rehang_store::{
    Among, Claimed, Examined as _, Filter, Found, Index as _, Ledger, PAIRS_SEED, Queue, Record, Sample,
    share_found,
};

use crate::notes::labelled;
use crate::server;

const LEASE: Duration = Duration::from_secs(1000);
const ROWS: usize = 24_000;

/// Makes a table of `rows` notes with old vectors of two coordinates, and a space for new ones of eight.
fn gallery(server: &server::Server, rows: usize, distance: Distance) -> (String, Client, PostgresStore) {
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute(&format!(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, topic text, embedding vector(2));
             INSERT INTO notes SELECT n, 'body ' || n, 'topic ' || n % 2, '[1,1]' FROM generate_series(1, {rows}) AS n"
        ))
        .unwrap();
    let store = adopt(&address);
    store.create_space(&Space::new("old", 2, distance, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 8, distance, false), Provenance::Native).unwrap();
    (address, client, store)
}

fn adopt(address: &str) -> PostgresStore {
    PostgresStore::adopt(address, &labelled(), Some("old"), &|_, _| true).unwrap()
}

/// Places a point in one of 200 clusters, as embeddings lie.
fn vector(item: usize) -> Vec<f32> {
    let noise = |seed: usize| ((seed as f64 * 12.9898).sin() * 43_758.547).fract() as f32;
    (0..8).map(|at| noise(item % 200 * 7919 + at) + 0.3 * noise(item * 104_729 + at * 31)).collect()
}

fn text_of(vector: &[f32]) -> String {
    format!("{vector:?}")
}

fn fill(client: &mut Client, rows: usize) {
    let mut sink = client.copy_in("COPY rehang.vector_2 FROM STDIN").unwrap();
    for item in 1..=rows {
        sink.write_all(format!("{item}\t{}\n", text_of(&vector(item))).as_bytes()).unwrap();
    }
    sink.finish().unwrap();
}

/// Finds the `k` nearest of all vectors, compared one by one, with the handicap.
fn nearest(natives: &BTreeSet<usize>, distances: &[f64], k: usize, handicap: f64) -> Vec<Found> {
    let farther = |(at, distance): (usize, &f64)| {
        let more = if natives.contains(&(at + 1)) { 0.0 } else { handicap };
        (distance + more, at + 1)
    };
    let mut all: Vec<(f64, usize)> = distances.iter().enumerate().map(farther).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.truncate(k);
    let found = |(distance, item): (f64, usize)| Found {
        key: (item as u64).into(),
        id: item.to_string(),
        distance: distance as f32 + 1e-6,
        provenance: Provenance::Native,
        revision: 0,
    };
    all.into_iter().map(found).collect()
}

/// Searches with a handicap find, at every share of natives, what is nearest with it, by SQL and by the
/// library alike. They read as little of the index as a search without one: the kind that is rare is not
/// looked for in all of it.
#[test]
fn a_search_with_a_handicap_costs_as_much_as_one_without() {
    let Some(server) = server::server() else { return };
    let (address, mut client, store) = gallery(server, ROWS, Distance::Cosine);
    fill(&mut client, ROWS);
    client.batch_execute("UPDATE rehang.state_2 SET provenance = 'adapted'").unwrap();
    store.prepare("new", &|_, _| true).unwrap();
    store.switch_serving("old", "new").unwrap();
    let queries: Vec<Vec<f32>> = (0..4).map(|at| vector(1_000_003 + at * 37)).collect();
    let vectors: Vec<Vec<f32>> = (1..=ROWS).map(vector).collect();
    let distances: Vec<Vec<f64>> = queries
        .iter()
        .map(|query| vectors.iter().map(|vector| Distance::Cosine.between(query, vector)).collect())
        .collect();
    for natives in [0, 5, 240, 2_400, ROWS / 2, ROWS - 240, ROWS - 5, ROWS] {
        // The natives are spread over the clusters, and each set is a part of the next.
        let native_items: BTreeSet<usize> = (0..natives).map(|at| at * 7919 % ROWS + 1).collect();
        let listed = native_items.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        client
            .batch_execute(&format!(
                "UPDATE rehang.state_2 SET provenance = CASE WHEN item = ANY ('{{{listed}}}') THEN 'native' ELSE 'adapted' END"
            ))
            .unwrap();
        client.batch_execute("VACUUM ANALYZE rehang.state_2").unwrap();
        for handicap in [0.002, 0.05, 5.0] {
            let version = store.document("upgrade").unwrap().map(|(version, _)| version);
            let text = format!(r#"{{"new": {{"model": "new"}}, "handicap": {handicap}}}"#);
            store.set_document("upgrade", version, &text).unwrap();
            for k in [10, 100] {
                let what = format!("{natives} native, handicap {handicap}, {k} neighbours");
                let (mut exact, mut by_library, mut by_sql) = (Vec::new(), Vec::new(), Vec::new());
                for (query, distances) in queries.iter().zip(&distances) {
                    exact.push(nearest(&native_items, distances, k, handicap));
                    let matrix = Matrix::new(8, query.clone()).unwrap();
                    let found =
                        store.search_handicapped("new", &matrix, k, &Filter::default(), handicap).unwrap();
                    by_library.extend(found);
                    // The server's own counts tell what a transaction reads.
                    let mut client = server::client(&address);
                    let mut transaction = client.transaction().unwrap();
                    let sql = format!(
                        "SELECT id, distance, provenance FROM rehang.search('notes', '{}', {k})",
                        text_of(query)
                    );
                    let rows = transaction.query(&sql, &[]).unwrap();
                    by_sql.push(
                        rows.iter()
                            .map(|row| Found {
                                key: row.get::<_, String>(0).parse::<u64>().unwrap().into(),
                                id: row.get(0),
                                distance: row.get(1),
                                provenance: Provenance::Native,
                                revision: 0,
                            })
                            .collect::<Vec<_>>(),
                    );
                    let read = "SELECT pg_stat_get_xact_tuples_returned('rehang.vector_2_nearest'::regclass),
                        pg_stat_get_xact_tuples_returned('rehang.vector_2_pkey'::regclass)";
                    let row = transaction.query_one(read, &[]).unwrap();
                    let (walked, compared): (i64, i64) = (row.get(0), row.get(1));
                    let front = (4 * k as i64).max(100);
                    // The k-th native is the farthest that is ever walked to, where natives are too many to
                    // be compared one by one.
                    assert!(walked <= front.max(40 * k as i64), "{what}: walked over {walked}");
                    assert!(compared <= 4 * front * k as i64, "{what}: compared {compared}");
                    assert!(walked > 0, "{what}: looked into the index");
                }
                let recall = |found: &[Vec<Found>]| share_found(exact.iter().zip(found));
                assert!(recall(&by_library) >= 0.99, "{what}: {}", recall(&by_library));
                assert!(recall(&by_sql) >= 0.99, "{what}: {}", recall(&by_sql));
                let ids = |found: &[Vec<Found>]| -> Vec<BTreeSet<String>> {
                    found.iter().map(|hits| hits.iter().map(|hit| hit.id.clone()).collect()).collect()
                };
                assert_eq!(ids(&by_library), ids(&by_sql), "{what}: both go the same way");
            }
        }
    }
    // A filter holds for both kinds.
    let matrix = Matrix::new(8, queries[0].clone()).unwrap();
    let odd = Filter { labels: vec!["topic 1".into()], ..Filter::default() };
    let found = store.search_handicapped("new", &matrix, 20, &odd, 0.05).unwrap().remove(0);
    assert_eq!(found.len(), 20);
    assert!(found.iter().all(|hit| hit.id.parse::<usize>().unwrap() % 2 == 1), "{found:?}");
    let field = Filter { payload: vec![("topic".into(), "topic 0".into())], ..Filter::default() };
    let found = store.search_handicapped("new", &matrix, 20, &field, 0.05).unwrap().remove(0);
    assert!(
        found.is_empty() || found.iter().all(|hit| hit.id.parse::<usize>().unwrap() % 2 == 0),
        "{found:?}"
    );
}

/// A vector of length 0 has no direction. Under the cosine distance it is near to nothing, whoever searches,
/// and is no item's native vector.
#[test]
fn a_vector_without_a_direction_is_never_found() {
    let Some(server) = server::server() else { return };
    let (_, mut client, store) = gallery(server, 0, Distance::Cosine);
    client
        .batch_execute(
            "INSERT INTO notes SELECT n, 'body', '', CASE WHEN n % 3 = 0 THEN '[0,0]' WHEN n % 3 = 1 THEN '[3,4]' ELSE '[-3,-4]' END::vector
                 FROM generate_series(1, 30) AS n;
             INSERT INTO rehang.vector_2 SELECT item, CASE WHEN item % 3 = 0 THEN '[0,0,0,0,0,0,0,0]' WHEN item % 3 = 1 THEN '[3,4,0,0,0,0,0,0]'
                 ELSE '[-3,-4,0,0,0,0,0,0]' END::vector FROM rehang.state_2;
             UPDATE rehang.state_2 SET provenance = CASE WHEN item % 2 = 0 THEN 'native' ELSE 'adapted' END",
        )
        .unwrap();
    let directed = |ids: &[String]| ids.iter().all(|id| id.parse::<usize>().unwrap() % 3 != 0);
    for (space, d) in [("old", 2), ("new", 8)] {
        if space == "new" {
            store.switch_serving("old", "new").unwrap();
            let text = r#"{"new": {"model": "new"}, "handicap": 0.05}"#;
            store.set_document("upgrade", None, text).unwrap();
        }
        let mut query = vec![3.0, 4.0];
        query.resize(d, 0.0);
        for k in [1, 5, 10, 15, 30] {
            let wanted = k.min(20);
            for handicap in [0.0, 0.05] {
                let matrix = Matrix::new(d, query.clone()).unwrap();
                let found =
                    store.search_handicapped(space, &matrix, k, &Filter::default(), handicap).unwrap();
                let ids: Vec<String> = found[0].iter().map(|hit| hit.id.clone()).collect();
                assert!(directed(&ids) && ids.len() == wanted, "{space}, {k}, {handicap}: {ids:?}");
                assert!(found[0].iter().all(|hit| hit.distance.is_finite()));
            }
            let sql = format!("SELECT id FROM rehang.search('notes', '{}', {k})", text_of(&query));
            let ids: Vec<String> = client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
            assert!(directed(&ids) && ids.len() == wanted, "{space}, {k}: {ids:?}");
        }
    }
    let zero = text_of(&[0.0; 8]);
    let error =
        client.query(&format!("SELECT rehang.write('notes', '1', '{zero}', 'new')"), &[]).unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("no direction"), "{error:?}");
}

fn ids_of(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.item.id.clone()).collect()
}

/// Pairs come from an index in the order of their shuffle, whatever the size of the gallery. In a gallery of
/// an earlier version they are the same, and adopting it once more makes the index.
#[test]
fn pairs_are_drawn_from_an_index() {
    let Some(server) = server::server() else { return };
    let (address, mut client, store) = gallery(server, 3_000, Distance::L2);
    client.batch_execute("UPDATE notes SET body = NULL WHERE id % 10 = 0; ANALYZE").unwrap();
    let sql = "SELECT i.id FROM rehang.item_1 AS i WHERE i.sourced ORDER BY hashint8extended(i.key, $1), i.key LIMIT 50";
    let rows = client.query(sql, &[&(PAIRS_SEED as i64)]).unwrap();
    let shuffled: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let sample = |store: &PostgresStore| {
        let sample = Sample {
            space: "new".into(),
            among: Among::Embeddable,
            seed: PAIRS_SEED,
            size: 50,
            vectors_of: None,
        };
        let drawn = store.sample(&sample).unwrap();
        let queue = Queue::Sample { seed: PAIRS_SEED, size: 50 };
        let claimed = store.claim("new", queue, "worker", 20, LEASE).unwrap();
        Ledger::release(store, "new", "worker", None).unwrap();
        (ids_of(&drawn.records), drawn.drawn_from, ids_of(&claimed.records))
    };
    assert_eq!(sample(&store), (shuffled.clone(), 2_700, shuffled[..20].to_vec()));
    let plan = client
        .query(
            &format!(
                "EXPLAIN SELECT i.key FROM rehang.state_2 AS s JOIN rehang.item_1 AS i ON i.key = s.item WHERE s.provenance <> 'native'
                 ORDER BY hashint8extended(i.key, {}::bigint), i.key LIMIT 50",
                PAIRS_SEED as i64
            ),
            &[],
        )
        .unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(plan.iter().any(|line| line.contains("item_1_shuffle")), "{plan:?}");
    let is_there = "SELECT coalesce((SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('rehang.item_1_shuffle')), false)";
    assert!(client.query_one(is_there, &[]).unwrap().get::<_, bool>(0));
    client.batch_execute("DROP INDEX rehang.item_1_shuffle; DROP INDEX rehang.claim_2_until").unwrap();
    assert_eq!(sample(&store), (shuffled.clone(), 2_700, shuffled[..20].to_vec()));
    let store = adopt(&address);
    assert!(client.query_one(is_there, &[]).unwrap().get::<_, bool>(0));
    let leases = "SELECT to_regclass('rehang.claim_2_until') IS NOT NULL";
    assert!(client.query_one(leases, &[]).unwrap().get::<_, bool>(0));
    assert_eq!(sample(&store), (shuffled.clone(), 2_700, shuffled[..20].to_vec()));
}

/// Claims go on from the front of the queue, in its order, where an earlier claim walked long to it. Items
/// that came before the front meanwhile are handed out by the end of the queue at the latest.
#[test]
fn a_claim_goes_on_from_where_the_queue_began() {
    let Some(server) = server::server() else { return };
    let (address, mut client, store) = gallery(server, 60, Distance::L2);
    // Ten items lack a vector, and 50 are adapted: two bands, equal scores, and some without one.
    client
        .batch_execute(
            "UPDATE rehang.state_2 SET provenance = 'adapted', band = item / 30, score = CASE WHEN item % 5 > 0 THEN item % 7 END WHERE item > 10;
             INSERT INTO rehang.vector_2 SELECT item, '[1,1,1,1,1,1,1,1]' FROM rehang.state_2 WHERE item > 10",
        )
        .unwrap();
    let order = "SELECT i.id FROM rehang.state_2 AS s JOIN rehang.item_1 AS i ON i.key = s.item
        ORDER BY (s.provenance = 'lacking') DESC, s.band DESC, s.score DESC NULLS LAST, s.item";
    let order: Vec<String> = client.query(order, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let claim = |limit: usize| -> Claimed { store.claim("new", Queue::All, "worker", limit, LEASE).unwrap() };
    // A lock is in the way of the first claim for longer than a walk may take.
    let is_locked = Arc::new(AtomicBool::new(false));
    let (told, place) = (Arc::clone(&is_locked), address.clone());
    let lock = thread::spawn(move || {
        let mut client = server::client(&place);
        let mut transaction = client.transaction().unwrap();
        transaction.batch_execute("LOCK TABLE rehang.state_2 IN ACCESS EXCLUSIVE MODE").unwrap();
        told.store(true, Ordering::SeqCst);
        rehang_clock::wait(Duration::from_millis(600));
        transaction.commit().unwrap();
    });
    while !is_locked.load(Ordering::SeqCst) {}
    let mut claimed = ids_of(&claim(7).records);
    lock.join().unwrap();
    assert_eq!(claimed, order[..7]);
    // The first item is given back, and so stands before the front.
    let first = store.get(&[claimed[0].as_str()]).unwrap().remove(0).unwrap();
    Ledger::release(&store, "new", "worker", Some(&[first.key])).unwrap();
    for limit in [2, 3, 9, 1, 4, 11, 6] {
        claimed.extend(ids_of(&claim(limit).records));
    }
    assert_eq!(claimed, order[..claimed.len()], "in the order of the queue, from its front on");
    let rest = ids_of(&claim(100).records);
    let expected: Vec<String> = [&order[..1], &order[claimed.len()..]].concat();
    assert_eq!(rest, expected, "the end of the queue leaves nothing before its front");
    assert!(claim(100).records.is_empty());
}

/// A gallery that is small enough to be searched without an index gets one when most of its vectors are
/// native. Its searches, by SQL and by the library alike, read the index from then on.
#[test]
fn a_gallery_of_some_thousand_is_indexed_once_most_of_it_is_native() {
    const SOME: usize = 2_400;
    let Some(server) = server::server() else { return };
    let (_, mut client, store) = gallery(server, SOME, Distance::L2);
    fill(&mut client, SOME);
    let native_up_to = |client: &mut Client, most: usize| {
        let sql = format!(
            "UPDATE rehang.state_2 SET provenance = CASE WHEN item <= {most} THEN 'native' ELSE 'adapted' END"
        );
        client.batch_execute(&sql).unwrap();
    };
    for (native, is_ready) in [(0, true), (SOME / 2, true), (SOME / 2 + 1, false), (SOME, false)] {
        native_up_to(&mut client, native);
        assert_eq!(store.is_ready("new").unwrap(), is_ready, "{native} native");
    }
    store.prepare("new", &|_, _| true).unwrap();
    assert!(store.is_ready("new").unwrap());
    store.switch_serving("old", "new").unwrap();
    assert_eq!(store.index_health("new").unwrap().kind, rehang_store::IndexKind::Graph);
    let query: Vec<f32> = vector(7).iter().map(|x| x + 0.01).collect();
    let distances: Vec<f64> =
        (1..=SOME).map(|item| rehang_core::squared_distance(&vector(item), &query)).collect();
    let natives: BTreeSet<usize> = (1..=SOME).collect();
    let expected = nearest(&natives, &distances, 10, 0.0);
    let read = |client: &mut Client| -> i64 {
        let sql = "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_all_indexes WHERE indexrelname ~ '^vector_2_nearest'";
        client.batch_execute("SELECT pg_stat_force_next_flush()").unwrap();
        client.query_one(sql, &[]).unwrap().get(0)
    };
    let before = read(&mut client);
    let sql = format!("SELECT id, distance FROM rehang.search('notes', '{}', 10)", text_of(&query));
    let by_sql: Vec<(String, f32)> =
        client.query(&sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(read(&mut client) > before, "it compares all");
    let ids = |found: &[Found]| found.iter().map(|found| found.id.clone()).collect::<BTreeSet<String>>();
    let of_sql: BTreeSet<String> = by_sql.iter().map(|(id, _)| id.clone()).collect();
    assert!(of_sql.intersection(&ids(&expected)).count() >= 9, "{by_sql:?} {expected:?}");
    assert!(by_sql.is_sorted_by(|a, b| a.1 <= b.1));
    let queries = Matrix::new(8, query).unwrap();
    let by_library = store.search("new", &queries, 10, &Filter::default()).unwrap().remove(0);
    assert_eq!(
        by_sql.iter().map(|(id, _)| id).collect::<Vec<_>>(),
        by_library.iter().map(|found| &found.id).collect::<Vec<_>>()
    );
}
