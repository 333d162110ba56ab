//! Costs of searches at every share of natives, and of the calls of a worker in a large gallery, in
//! PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgvector::Vector;
use postgres::Client;
use rehang_core::adapter::{Dense, InputScaling, Map, Training};
use rehang_core::{Adapter, Bridge, Distance, Fusion, Matrix, Provenance, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Filter, Index as _, Ledger, PAIRS_SEED, Queue};
use rehang_upgrade::{Gallery, Serving, Unobserved, UpgradeSetup, set_bridge, start, switch};

use crate::postgresql::Postgres;
use crate::{ORDER, Server as _, d_new, d_old, space, vector};

const QUERIES: usize = 20;
const TURNS: usize = 5;
const SHARES: [f64; 9] = [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0];
const HANDICAPS: [f64; 3] = [0.0, 0.02, 0.2];

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn milliseconds<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = call();
    (began.elapsed().as_secs_f64() * 1e3, done)
}

/// Makes so many items native, and all others adapted.
fn make_native(items: i64) -> String {
    format!(
        "UPDATE rehang.state_2 AS s SET provenance = CASE WHEN o.at <= {items} THEN 'native' ELSE 'adapted' END
         FROM (SELECT item, row_number() OVER (ORDER BY hashint8extended(item, 5)) AS at FROM rehang.state_2) AS o WHERE o.item = s.item"
    )
}

fn ids(client: &mut Client, sql: &str, query: &Vector, k: i64) -> Vec<String> {
    client.query(sql, &[query, &k]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// A plain query of pgvector, `rehang.search` and the library in turns, each answer held against all vectors
/// compared one by one.
pub fn searches(address: &str, adapter: &Adapter, rows: usize) {
    let server = Postgres::new(address.into());
    server.make("documents", rows);
    let store = server.open();
    let (old, new) = (space("old", d_old()), space("new", d_new()));
    let setup = UpgradeSetup { old: &old, new: &new, adapter: Some(adapter), order: ORDER };
    let (started, _) = milliseconds(|| start(&store, &setup, &Unobserved).unwrap());
    println!("{rows} rows, {} coordinates; start: {:.1} s", d_new(), started / 1e3);
    switch(&store, &setup, Serving::Mixed, &Unobserved).unwrap();
    let mut client = server.client();
    for share in SHARES {
        // A change of the state alone: the vectors stay those of the adapter.
        let native = (share * rows as f64).round() as i64;
        client.batch_execute(&make_native(native)).unwrap();
        client.batch_execute("VACUUM ANALYZE rehang.state_2").unwrap();
        for handicap in HANDICAPS {
            let sql = "UPDATE rehang.document SET text = jsonb_set(text::jsonb, '{handicap}', to_jsonb($1::float8))::text WHERE name = 'upgrade'";
            client.execute(sql, &[&handicap]).unwrap();
            for k in [10_i64, 100] {
                client.batch_execute(&format!("SET hnsw.ef_search = {}", (4 * k).max(100))).unwrap();
                let (mut plain, mut by_sql, mut by_library) = (Vec::new(), Vec::new(), Vec::new());
                let (mut found, mut found_plainly, mut all) = (0, 0, 0);
                for turn in 0..TURNS {
                    for at in 0..QUERIES {
                        let values = vector(rows * 3 + at * 37, d_new());
                        let (query, matrix) =
                            (Vector::from(values.clone()), Matrix::new(d_new(), values).unwrap());
                        let sql = "SELECT item::text FROM rehang.vector_2 ORDER BY value <=> $1 LIMIT $2";
                        let (took, by_pgvector) = milliseconds(|| ids(&mut client, sql, &query, k));
                        plain.push(took);
                        let sql = "SELECT id FROM rehang.search('documents', $1::vector, $2::bigint::int)";
                        let (took, by_function) = milliseconds(|| ids(&mut client, sql, &query, k));
                        by_sql.push(took);
                        let search = || {
                            store
                                .search_handicapped("new", &matrix, k as usize, &Filter::default(), handicap)
                                .unwrap()
                        };
                        let (took, answer) = milliseconds(search);
                        by_library.push(took);
                        if turn > 0 {
                            continue;
                        }
                        let sql = "SELECT id::text FROM (SELECT id, (serving_vector <=> $1) + handicap AS distance FROM rehang.serving_1) AS one
                             ORDER BY distance LIMIT $2";
                        let exact = ids(&mut client, sql, &query, k);
                        let by_library: Vec<String> = answer[0].iter().map(|hit| hit.id.clone()).collect();
                        assert_eq!((by_function.len(), by_library.len()), (exact.len(), exact.len()));
                        found +=
                            by_function.iter().chain(&by_library).filter(|id| exact.contains(id)).count();
                        let sql =
                            "SELECT item::text FROM rehang.vector_2 ORDER BY (value <=> $1) + 0 LIMIT $2";
                        let exact_plainly = ids(&mut client, sql, &query, k);
                        found_plainly += by_pgvector.iter().filter(|id| exact_plainly.contains(id)).count();
                        all += exact.len();
                    }
                }
                // The graph of pgvector has a recall of its own, which no search through it can exceed by
                // much.
                let [recall, recall_plainly] =
                    [found as f64 / 2.0, found_plainly as f64].map(|found| found / all as f64);
                assert!(recall >= recall_plainly - 0.02, "recall {recall}, plain {recall_plainly}");
                let (plain, by_sql, by_library) = (median(plain), median(by_sql), median(by_library));
                println!(
                    "{:5.1} % native, handicap {handicap:4}, k {k:3}: plain {plain:5.2} ms, rehang.search {by_sql:6.2} ms ({:.2}), \
                     library {by_library:6.2} ms ({:.2}), recall {recall:.3}, plain {recall_plainly:.3}",
                    share * 100.0,
                    by_sql / plain,
                    by_library / plain
                );
            }
        }
    }
    store.release(None).unwrap();
    server.remove("documents");
}

/// Searches by queries of both models, by SQL and by the library in turns, each answer held against the other
/// one's, beside `rehang.search` by the one model that serves.
pub fn by_both_models(address: &str, mut adapter: Adapter, rows: usize) {
    let server = Postgres::new(address.into());
    server.make("documents", rows);
    server.index();
    let store = server.open();
    let (old, new) = (space("old", d_old()), space("new", d_new()));
    let query_by_both =
        |at: usize| [vector(rows * 3 + at * 37, d_old()), vector(rows * 3 + at * 37, d_new())];
    let distances: Vec<(f64, f64)> = (0..QUERIES * 500)
        .map(|at| {
            let ([by_old, by_new], item) = (query_by_both(at % QUERIES), vector(at * 13 % rows, d_old()));
            let adapted = adapter.map.outputs(&Matrix::new(d_old(), item.clone()).unwrap(), None).unwrap();
            (Distance::Cosine.between(&by_old, &item), Distance::Cosine.between(&by_new, adapted.row(0)))
        })
        .collect();
    let fusion = Fusion::from_distances(0.5, &distances).unwrap();
    adapter.fusion = Some(Fusion { handicap: 0.02, ..fusion });
    let setup = UpgradeSetup { old: &old, new: &new, adapter: Some(&adapter), order: ORDER };
    start(&store, &setup, &Unobserved).unwrap();
    let weight = Matrix::from_fn(d_old(), d_new(), |row, column| f32::from(u8::from(row == column)));
    let layer = Dense { weight, bias: vec![0.0; d_old()], relu: false };
    let bridge = Bridge {
        old: old.clone(),
        new: new.clone(),
        map: Map::from_layers(InputScaling::UnitLength, vec![layer]),
        share: 0.5,
        length: 1.0,
        training: Training::default(),
    };
    println!("{rows} rows, {} and {} coordinates", d_old(), d_new());
    let (took, _) = milliseconds(|| set_bridge(&store, &old, &new, Some(&bridge)).unwrap());
    println!("the bridge is in use after {took:.0} ms");
    let gallery = Gallery::new(Arc::new(store.clone()));
    let mut client = server.client();
    let mut compare = |what: &str| {
        let serving = store.serving().unwrap().unwrap();
        for k in [10_i32, 100] {
            let (mut by_one, mut by_sql, mut by_library) = (Vec::new(), Vec::new(), Vec::new());
            let (mut same, mut all) = (0, 0);
            for at in (0..TURNS).flat_map(|_| 0..QUERIES) {
                let rows = query_by_both(at).map(|values| Matrix::new(values.len(), values).unwrap());
                let queries = [0, 1].map(|model| Vector::from(rows[model].as_slice().to_vec()));
                let own = &queries[usize::from(serving == "new")];
                let sql = "SELECT id FROM rehang.search('documents', $1::vector, $2::int)";
                by_one.push(milliseconds(|| client.query(sql, &[own, &k]).unwrap()).0);
                let sql = "SELECT id FROM rehang.search('documents', ARRAY['old', 'new'], ARRAY[$1, $2]::vector[], $3::int)";
                let (took, found) =
                    milliseconds(|| client.query(sql, &[&queries[0], &queries[1], &k]).unwrap());
                by_sql.push(took);
                let given = [("old", &rows[0]), ("new", &rows[1])];
                let (took, answer) =
                    milliseconds(|| gallery.search(&given, k as usize, &Filter::default()).unwrap());
                by_library.push(took);
                let ids: Vec<&str> = answer.found[0].iter().map(|hit| hit.id.as_str()).collect();
                same += found.iter().filter(|row| ids.contains(&row.get(0))).count();
                all += ids.len();
            }
            println!(
                "{what}, k {k:3}: rehang.search by one model {:6.2} ms, by both {:6.2} ms, library {:6.2} ms; {:.1} % of its items are those of SQL",
                median(by_one),
                median(by_sql),
                median(by_library),
                100.0 * same as f64 / all as f64
            );
        }
    };
    compare("over the bridge");
    switch(&store, &setup, Serving::Fused, &Unobserved).unwrap();
    for share in [0.0, 0.5, 0.9] {
        let native = (share * rows as f64).round() as i64;
        server.client().batch_execute(&make_native(native)).unwrap();
        server.client().batch_execute("VACUUM ANALYZE rehang.state_2").unwrap();
        compare(&format!("fused, {:2.0} % native", share * 100.0));
    }
    store.release(None).unwrap();
    server.remove("documents");
}

/// Times a search under a policy of row security: a role that sees every second row, by a plain query of the
/// table and by `rehang.search`, each also by the owner, who sees all. What the role finds is held against
/// the rows it may see, compared one by one.
pub fn policies(address: &str, adapter: &Adapter, rows: usize) {
    const K: i64 = 10;
    let server = Postgres::new(address.into());
    server.make("documents", rows);
    server.index();
    let mut client = server.client();
    client
        .batch_execute(
            "ALTER TABLE documents ENABLE ROW LEVEL SECURITY; CREATE POLICY every_second ON documents USING (id % 2 = 0);
             DROP ROLE IF EXISTS bench_reader; CREATE ROLE bench_reader; GRANT SELECT ON documents TO bench_reader",
        )
        .unwrap();
    let store = server.open();
    let (old, new) = (space("old", d_old()), space("new", d_new()));
    let setup = UpgradeSetup { old: &old, new: &new, adapter: Some(adapter), order: ORDER };
    start(&store, &setup, &Unobserved).unwrap();
    switch(&store, &setup, Serving::Mixed, &Unobserved).unwrap();
    client
        .batch_execute("GRANT USAGE ON SCHEMA rehang TO bench_reader; GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO bench_reader")
        .unwrap();
    client.batch_execute("SET hnsw.iterative_scan = strict_order").unwrap();
    let plain = "SELECT id::text FROM documents ORDER BY embedding <=> $1 LIMIT $2";
    let ours = "SELECT id FROM rehang.search('documents', $1::vector, $2::bigint::int)";
    let mut times = BTreeMap::<_, Vec<f64>>::new();
    for at in 0..TURNS * QUERIES {
        let query = |width: usize| Vector::from(vector(rows * 3 + at * 37, width));
        for role in ["bench_reader", "NONE"] {
            client.batch_execute(&format!("SET ROLE {role}")).unwrap();
            let (took, found) = milliseconds(|| ids(&mut client, plain, &query(d_old()), K));
            assert_eq!(found.len() as i64, K, "the index goes on past rows that the policy hides");
            times.entry((role, "a plain query")).or_default().push(took);
            let (took, found) = milliseconds(|| ids(&mut client, ours, &query(d_new()), K));
            times.entry((role, "rehang.search")).or_default().push(took);
            assert_eq!(found.len() as i64, K);
            let is_seen = |id: &String| id.parse::<usize>().unwrap().is_multiple_of(2);
            assert!(role == "NONE" || found.iter().all(is_seen), "no row that the policy hides");
        }
    }
    for ((role, what), times) in times {
        let who = if role == "NONE" { "the owner" } else { "a role that sees half" };
        println!("{rows} rows, k {K}: {what} by {who}: {:.2} ms", median(times));
    }
    store.release(None).unwrap();
    client
        .batch_execute(
            "SET ROLE NONE; DROP TABLE documents CASCADE; DROP OWNED BY bench_reader; DROP ROLE bench_reader",
        )
        .unwrap();
}

/// A large gallery of short vectors: what a worker asks for again and again.
pub fn claims(address: &str, rows: usize) {
    let server = Postgres::new(address.into());
    let mut client = server.client();
    client
        .batch_execute(&format!(
            "CREATE TABLE documents (id bigint PRIMARY KEY, body text, embedding vector(4));
             INSERT INTO documents SELECT n, 'text ' || n, '[1,2,3,4]' FROM generate_series(1, {rows}) AS n"
        ))
        .unwrap();
    client.batch_execute("VACUUM ANALYZE documents").unwrap();
    let options = TableOptions {
        table: "documents".into(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    };
    let (adopted, store) = milliseconds(|| {
        let store = PostgresStore::adopt(address, &options, Some("old"), &|_, _| true).unwrap();
        store.create_space(&Space::new("old", 4, Distance::Cosine, false), Provenance::Old).unwrap();
        store
    });
    let new = Space::new("new", 4, Distance::Cosine, false);
    let (listed, ()) = milliseconds(|| store.create_space(&new, Provenance::Native).unwrap());
    println!("{rows} rows: adopted in {:.1} s, a space made in {:.1} s", adopted / 1e3, listed / 1e3);
    let update = "UPDATE rehang.state_2 SET provenance = 'adapted', sigma2 = 0.1, score = random()";
    client.batch_execute(update).unwrap();
    client.batch_execute("INSERT INTO rehang.vector_2 SELECT key, '[1,2,3,4]' FROM rehang.item_1").unwrap();
    client.batch_execute("VACUUM ANALYZE rehang.state_2").unwrap();
    let (counted, counts) = milliseconds(|| store.counts("new").unwrap());
    assert_eq!(counts.adapted, rows as u64);
    println!(
        "counting: {counted:.0} ms, after which it rests for {:.1} s at least",
        (counted * 20.0 / 1e3).max(5.0)
    );
    let claim = |queue: Queue| {
        let claim = || store.claim("new", queue, "worker", 64, Duration::from_mins(5)).unwrap();
        let (took, claimed) = milliseconds(claim);
        assert_eq!(claimed.records.len(), 64);
        (took, claimed.records.iter().map(|record| record.item.id.clone()).collect::<Vec<_>>())
    };
    let five = |queue: Queue| {
        let times: Vec<f64> = (0..5).map(|_| claim(queue).0).collect();
        Ledger::release(&store, "new", "worker", None).unwrap();
        median(times)
    };
    let pairs = Queue::Sample { seed: PAIRS_SEED, size: 4000 };
    println!("a claim of 64 pairs of 4000, from the index of the shuffle: {:.1} ms", five(pairs));
    let index = "SELECT pg_get_indexdef('rehang.item_1_shuffle'::regclass)";
    let index: String = client.query_one(index, &[]).unwrap().get(0);
    let (_, drawn) = claim(pairs);
    Ledger::release(&store, "new", "worker", None).unwrap();
    client.batch_execute("DROP INDEX rehang.item_1_shuffle").unwrap();
    println!("the same without the index: {:.1} ms", five(pairs));
    assert_eq!(claim(pairs).1, drawn, "the same pairs");
    Ledger::release(&store, "new", "worker", None).unwrap();
    let (took, ()) = milliseconds(|| client.batch_execute(&index).unwrap());
    println!("making it: {:.1} s", took / 1e3);
    println!("a claim of 64 of the queue: {:.1} ms", five(Queue::All));
    let mut dump = server.client();
    let mut snapshot =
        dump.build_transaction().isolation_level(postgres::IsolationLevel::RepeatableRead).start().unwrap();
    snapshot.query("SELECT count(*) FROM rehang.gallery", &[]).unwrap();
    let done = rows / 5;
    let natives = format!(
        "UPDATE rehang.state_2 SET provenance = 'native' WHERE item IN (SELECT item FROM rehang.state_2
             WHERE provenance = 'adapted' AND sourced AND NOT failed ORDER BY band DESC, score DESC NULLS LAST, item LIMIT {done})"
    );
    client.batch_execute(&natives).unwrap();
    let (took, first) = claim(Queue::All);
    println!("{done} made native under an old snapshot; the claim that walks over them: {took:.1} ms");
    let after: Vec<(f64, Vec<String>)> = (0..20).map(|_| claim(Queue::All)).collect();
    let times: Vec<f64> = after.iter().map(|(took, _)| *took).collect();
    let longest = times.iter().copied().fold(0.0, f64::max);
    println!("the 20 after it: median {:.1} ms, longest {longest:.1} ms", median(times));
    let order = "SELECT i.id FROM rehang.state_2 AS s JOIN rehang.item_1 AS i ON i.key = s.item WHERE s.provenance = 'adapted'
        ORDER BY s.band DESC, s.score DESC NULLS LAST, s.item LIMIT 1344";
    let order: Vec<String> = client.query(order, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    let claimed: Vec<String> = first.into_iter().chain(after.into_iter().flat_map(|(_, ids)| ids)).collect();
    assert_eq!(claimed, order, "in the order of the queue");
    drop(snapshot);
    store.release(None).unwrap();
    client.batch_execute("DROP TABLE documents").unwrap();
}
