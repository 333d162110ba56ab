//! Filling a space beside what the server does bare for the same bytes, then the index and searches:
//! `cargo run --release -p rehang-postgres --example bench_postgres -- ADDRESS [ROWS] [D_OLD] [D_NEW]` in an empty database with pgvector.
//!
//! Bare is a binary COPY of key and vector into a staging table and one UPDATE of the application's rows from it, without any index on the
//! vectors. Ours is pages of what lacks a vector and `write_vectors` in batches of 5,000, from one thread. Both are timed in turns, three times.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, which prints what it finds and reads the clock"
)]

use std::time::{Duration, Instant};

use pgvector::Vector;
use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::Type;
use postgres::{Client, NoTls};
use rehang::{Distance, Matrix, Provenance, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Filter, Index, Ledger, Priority, Queue, Scan, Select, VectorWrite};

const BATCH: usize = 5_000;

/// Points in clusters, as embeddings are.
fn vector(row: usize, d: usize) -> Vec<f32> {
    let noise = |seed: usize| ((seed as f64 * 12.9898).sin() * 43_758.547).fract() as f32;
    (0..d).map(|column| noise(row % 500 * 7919 + column) + 0.5 * noise(row * 104_729 + column * 31)).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("the address of an empty database");
    let mut number =
        |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (rows, d_old, d_new) = (number(200_000), number(128), number(256));
    let mut client = Client::connect(&address, NoTls).unwrap();
    let vectors: Vec<Vec<f32>> = (0..rows).map(|row| vector(row, d_new)).collect();
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    let mut last = None;
    for turn in 0..3 {
        let (copy, table) = (format!("bare_{turn}"), format!("documents_{turn}"));
        make(&mut client, &copy, rows, d_old);
        client.batch_execute("CHECKPOINT").unwrap();
        bare.push(rows as f64 / fill_bare(&mut client, &copy, &vectors, d_new));
        client.batch_execute(&format!("DROP TABLE {copy}")).unwrap();
        make(&mut client, &table, rows, d_old);
        let began = Instant::now();
        let store = PostgresStore::adopt(&address, &options(&table), Some("old"), &|_, _| true).unwrap();
        store.create_space(&Space::new("old", d_old, Distance::Cosine, false), Provenance::Old).unwrap();
        let adopted = began.elapsed().as_secs_f64();
        store.create_space(&Space::new("new", d_new, Distance::Cosine, false), Provenance::Native).unwrap();
        client.batch_execute("CHECKPOINT").unwrap();
        ours.push(rows as f64 / fill(&store, &vectors));
        println!(
            "turn {turn}: bare {:.0} rows/s, ours {:.0} rows/s; adopted in {adopted:.1} s",
            bare[turn], ours[turn]
        );
        if let Some(earlier) = last.replace(store) {
            PostgresStore::release(earlier, None).unwrap();
        }
    }
    bare.sort_by(f64::total_cmp);
    ours.sort_by(f64::total_cmp);
    println!("medians: bare {:.0}, ours {:.0} rows/s, ratio {:.2}", bare[1], ours[1], ours[1] / bare[1]);
    look(&last.expect("three turns"), &vectors);
}

/// The index, searches, and what a backfill does, in a space that is filled.
fn look(store: &PostgresStore, vectors: &[Vec<f32>]) {
    let time = |what: &str, work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        println!("{what}: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    };
    let counts = store.counts("new").unwrap();
    assert_eq!((counts.adapted, counts.lacking), (vectors.len() as u64, 0), "everything was written");
    assert_eq!(store.check().unwrap(), []);
    assert!(vectors.len() <= 20_000 || !store.is_ready("new").unwrap());
    time("index", &mut || store.prepare("new", &|_, _| true).unwrap());
    assert!(store.is_ready("new").unwrap());
    println!("recall@10: {:.4}", store.recall("new", 100, 10).unwrap());
    let mut times = Vec::new();
    for row in (0..vectors.len()).step_by(vectors.len() / 300) {
        let query = Matrix::new(vectors[row].len(), vectors[row].clone()).unwrap();
        let began = Instant::now();
        let found = store.search("new", &query, 10, &Filter::default()).unwrap().remove(0);
        times.push(began.elapsed().as_secs_f64() * 1e3);
        assert!(found.len() == 10 && found[0].distance < 1e-5, "a vector finds itself");
    }
    times.sort_by(f64::total_cmp);
    println!(
        "a search: median {:.2} ms, p99 {:.2} ms",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
    for _ in 0..3 {
        let mut claimed = Vec::new();
        time("a claim of 64", &mut || {
            claimed = store.claim("new", Queue::All, "bench", 64, Duration::from_mins(1)).unwrap().records;
        });
        let natives: Vec<VectorWrite> = claimed
            .iter()
            .map(|record| VectorWrite {
                key: record.item.key,
                revision: record.item.revision,
                provenance: Provenance::Native,
                sigma2: None,
                priority: None,
                squared_error: Some(0.1),
                vector: record.vector.as_ref().unwrap().vector.iter().map(|value| value * 1.01).collect(),
            })
            .collect();
        time("their native vectors, with the index live", &mut || {
            store.write_vectors("new", None, &natives).map(drop).unwrap();
        });
    }
    time("counts", &mut || assert_eq!(store.counts("new").unwrap().native, 192));
    time("a switch", &mut || store.switch_serving("old", "new").unwrap());
    time("back", &mut || store.switch_serving("new", "old").unwrap());
}

fn options(table: &str) -> TableOptions {
    TableOptions {
        table: table.to_owned(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

fn make(client: &mut Client, table: &str, rows: usize, d: usize) {
    let columns = format!("id bigint PRIMARY KEY, body text, embedding vector({d})");
    client.batch_execute(&format!("CREATE TABLE {table} ({columns})")).unwrap();
    let types = [Type::INT8, Type::TEXT, vector_type(client)];
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN BINARY")).unwrap();
    let mut writer = BinaryCopyInWriter::new(sink, &types);
    for row in 0..rows {
        writer.write(&[&(row as i64), &format!("text {row}"), &Vector::from(vector(row, d))]).unwrap();
    }
    writer.finish().unwrap();
    client.batch_execute(&format!("VACUUM ANALYZE {table}")).unwrap();
}

fn vector_type(client: &mut Client) -> Type {
    client.prepare("SELECT NULL::vector").unwrap().columns()[0].type_().clone()
}

/// Seconds that the server takes bare.
fn fill_bare(client: &mut Client, table: &str, vectors: &[Vec<f32>], d: usize) -> f64 {
    let types = [Type::INT8, vector_type(client)];
    let began = Instant::now();
    client
        .batch_execute(&format!(
            "ALTER TABLE {table} ADD COLUMN new vector({d}); CREATE UNLOGGED TABLE staging (id bigint, value vector({d}))"
        ))
        .unwrap();
    let sink = client.copy_in("COPY staging FROM STDIN BINARY").unwrap();
    let mut writer = BinaryCopyInWriter::new(sink, &types);
    for (row, vector) in vectors.iter().enumerate() {
        writer.write(&[&(row as i64), &Vector::from(vector.clone())]).unwrap();
    }
    writer.finish().unwrap();
    let update = format!("UPDATE {table} AS t SET new = s.value FROM staging AS s WHERE s.id = t.id");
    client.batch_execute(&update).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    client.batch_execute("DROP TABLE staging").unwrap();
    seconds
}

/// Seconds that the contract's calls take.
fn fill(store: &PostgresStore, vectors: &[Vec<f32>]) -> f64 {
    let epoch = store.spaces().unwrap()[1].epoch;
    let began = Instant::now();
    let mut after = None;
    loop {
        let page = store.scan(&Scan::new("new", Select::Lacking, BATCH).after(after)).unwrap();
        let Some(end) = page.last() else { return began.elapsed().as_secs_f64() };
        after = Some(end.item.key);
        let writes: Vec<VectorWrite> = page
            .iter()
            .map(|record| {
                let row: usize = record.item.id.parse().unwrap();
                VectorWrite {
                    key: record.item.key,
                    revision: record.item.revision,
                    provenance: Provenance::Adapted,
                    sigma2: Some(0.1),
                    priority: Some(Priority::ordinary((row % 1000) as f64)),
                    squared_error: None,
                    vector: vectors[row].clone(),
                }
            })
            .collect();
        store.write_vectors("new", Some(epoch), &writes).unwrap();
    }
}
