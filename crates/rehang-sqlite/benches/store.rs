//! Measures the embedded gallery on this machine: writing, searching, memory and file size.
//!
//! `cargo bench -p rehang-sqlite --bench store -- [VECTORS [FOLDER [WIDTH]]]`: 100,000, a temporary one, 128
//!
//! Every search is asserted on: the recall of all three ways is measured against brute force on the same
//! queries.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::path::Path;
use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_sqlite::SqliteStore;
use rehang_store::{
    Epoch, Examined, Filter, Index, ItemKey, ItemWrite, Ledger, NewVector, Priority, Scan, Select,
    VectorWrite, WriteOutcome,
};
use usearch::{Index as Graph, IndexOptions, MetricKind, ScalarKind};

const BATCH: usize = 4096;
const QUERIES: usize = 1000;
const K: usize = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cargo adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let n: usize = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let temporary = tempfile::tempdir()?;
    let folder = arguments.next().map_or_else(|| temporary.path().to_path_buf(), Into::into);
    let width: usize = arguments.next().map_or(Ok(128), |text| text.parse())?;
    let path = folder.join("bench.db");
    let vectors = clustered(n + QUERIES, width, 1);
    let queries = vectors.select(&(n..n + QUERIES).collect::<Vec<_>>());
    println!("{n} vectors × {width}, {QUERIES} queries, k = {K}");

    let store = SqliteStore::create(&path)?;
    let unit = |name: &str| Space::new(name, width, Distance::Cosine, true);
    store.create_space(&unit("old"), Provenance::Old)?;
    timed("put items with an old vector", n, || -> rehang_core::Result<()> {
        for start in (0..n).step_by(BATCH) {
            let writes: Vec<ItemWrite> = (start..(start + BATCH).min(n))
                .map(|id| {
                    ItemWrite::new(
                        format!("item-{id}"),
                        Some(format!("images/{id}.jpg")),
                        vec![NewVector::from_model("old", vectors.row(id).to_vec(), Provenance::Old)],
                    )
                })
                .collect();
            store.put(&writes)?;
        }
        Ok(())
    })?;
    store.create_space(&unit("new"), Provenance::Native)?;
    let revisions: Vec<u64> = {
        let mut revisions = Vec::with_capacity(n);
        let mut after = None;
        loop {
            let page = store.scan(&Scan::new("new", Select::Lacking, BATCH).after(after))?;
            let Some(last) = page.last() else { break };
            after = Some(last.item.key);
            revisions.extend(page.iter().map(|record| record.item.revision));
        }
        revisions
    };
    let write = |at: usize, provenance: Provenance| VectorWrite {
        key: ItemKey::from(at as u64 + 1),
        revision: revisions[at],
        provenance,
        sigma2: (provenance == Provenance::Adapted).then_some((at * 7919 % n) as f32),
        priority: (provenance == Provenance::Adapted).then_some(Priority::ordinary((at * 7919 % n) as f64)),
        squared_error: None,
        vector: vectors.row(at).to_vec(),
    };
    for batch in [1000, BATCH] {
        if batch != 1000 {
            store.drop_space("new")?;
            store.create_space(&unit("new"), Provenance::Native)?;
        }
        timed(&format!("write adapted vectors in batches of {batch}"), n, || -> rehang_core::Result<()> {
            for start in (0..n).step_by(batch) {
                let end = (start + batch).min(n);
                let writes: Vec<VectorWrite> =
                    (start..end).map(|at| write(at, Provenance::Adapted)).collect();
                let outcomes = store.write_vectors("new", Some(Epoch::FIRST), &writes)?;
                assert!(outcomes.iter().all(|&outcome| outcome == WriteOutcome::Written));
            }
            Ok(())
        })?;
    }
    let tenth = n / 10;
    timed("the worst first, made native in batches of 1000", tenth, || -> rehang_core::Result<()> {
        for _ in 0..tenth.div_ceil(1000) {
            let page = store.scan(&Scan::new("new", Select::Queued, 1000))?;
            let writes: Vec<VectorWrite> = page
                .iter()
                .map(|record| write(record.item.key.bits() as usize - 1, Provenance::Native))
                .collect();
            let outcomes = store.write_vectors("new", Some(Epoch::FIRST), &writes)?;
            assert!(outcomes.iter().all(|&outcome| outcome == WriteOutcome::Written));
        }
        Ok(())
    })?;
    timed("one page of 100, worst first", 1, || store.scan(&Scan::new("new", Select::Queued, 100)))?;
    timed("counts", 1, || store.counts("new"))?;

    timed("build and save the graph", n, || store.rebuild("old"))?;
    let truth: Vec<Vec<u64>> = brute_force(&vectors, n, &queries);
    let all: Vec<usize> = (0..QUERIES).collect();
    let recall = |found: &[Vec<u64>]| -> f64 {
        let hits: usize = found
            .iter()
            .zip(&truth)
            .map(|(found, truth)| found.iter().filter(|key| truth.contains(key)).count())
            .sum();
        hits as f64 / (truth.len() * K) as f64
    };
    let one_by_one = |name: &str, one: &(dyn Fn(usize) -> Vec<u64> + Sync)| {
        let start = Instant::now();
        let found: Vec<Vec<u64>> = all.iter().map(|&at| one(at)).collect();
        let single = QUERIES as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        let together: Vec<Vec<u64>> = all.par_iter().map(|&at| one(at)).collect();
        let parallel = QUERIES as f64 / start.elapsed().as_secs_f64();
        assert_eq!(found, together, "the same answers from many threads");
        let recall = recall(&found);
        assert!(recall > 0.9, "{name}: recall {recall}");
        println!("{name:<52} {single:>10.0} QPS, {parallel:>8.0} QPS on all cores, recall@{K} {recall:.4}");
    };
    let embedded = |at: usize| -> Vec<u64> {
        let query = queries.select(&[at]);
        let found = store.search("old", &query, K, &Filter::default()).expect("a search succeeds");
        found[0].iter().map(|found| found.key.bits() as u64).collect()
    };
    one_by_one("search: embedded store", &embedded);
    let index = Graph::new(&IndexOptions {
        dimensions: width,
        metric: MetricKind::Cos,
        quantization: ScalarKind::F32,
        connectivity: 16,
        expansion_add: 128,
        expansion_search: 128,
        multi: false,
    })?;
    index.reserve_capacity_and_threads(n, 16)?;
    timed("build the graph: usearch alone", n, || {
        (0..n)
            .into_par_iter()
            .try_for_each(|at| index.add(at as u64 + 1, vectors.row(at)))
            .map_err(|error| rehang_core::Error::corrupt("usearch", error))
    })?;
    one_by_one("search: usearch alone", &|at| {
        index.search(queries.row(at), K).expect("a search succeeds").keys
    });
    drop(index);
    let some = queries.select(&(0..50).collect::<Vec<_>>());
    let start = Instant::now();
    let slow = brute_force(&vectors, n, &some);
    assert_eq!(slow, truth[..50]);
    println!(
        "{:<52} {:>10.0} QPS on all cores, recall 1",
        "search: brute force",
        50.0 / start.elapsed().as_secs_f64()
    );

    let health = store.index_health("old")?;
    println!("{:<52} {:>10.1} MB", "index of one space in memory", health.bytes as f64 / 1e6);
    println!(
        "{:<52} {:>10.1} MB",
        "resident memory of this process, vectors included",
        resident_bytes() / 1e6
    );
    let index_path = store.index_path("old")?;
    drop(store);
    for (what, path) in
        [("gallery file, two spaces", path.as_path()), ("side file of one space", &index_path)]
    {
        println!("{what:<52} {:>10.1} MB", file_bytes(path) / 1e6);
    }
    let start = Instant::now();
    let store = SqliteStore::open(&path)?;
    store.search("old", &queries.select(&[0]), K, &Filter::default())?;
    println!("{:<52} {:>10.3} s", "opening, with the first search", start.elapsed().as_secs_f64());
    Ok(())
}

fn timed<T>(
    what: &str,
    count: usize,
    work: impl FnOnce() -> rehang_core::Result<T>,
) -> rehang_core::Result<T> {
    let (start, busy) = (Instant::now(), processor_seconds());
    let value = work()?;
    let (seconds, busy) = (start.elapsed().as_secs_f64(), processor_seconds() - busy);
    // On a machine that others use too, the second number says more than the first.
    println!(
        "{what:<52} {seconds:>10.3} s, {:>9.0} a second, {:>9.0} a processor second",
        count as f64 / seconds,
        count as f64 / busy.max(0.01)
    );
    Ok(value)
}

/// Makes vectors of length 1 around 1,000 centres, as embeddings lie.
fn clustered(n: usize, width: usize, seed: u64) -> Matrix {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let centres = Matrix::from_fn(1000, width, |_, _| rng.random_range(-1.0..1.0));
    let mut rows = Matrix::zeros(n, width);
    for row in 0..n {
        let centre = rng.random_range(0..1000);
        for (value, &middle) in rows.row_mut(row).iter_mut().zip(centres.row(centre)) {
            *value = middle + rng.random_range(-0.7..0.7);
        }
    }
    rows.normalise_rows();
    rows
}

/// Finds the keys of the nearest `K` by comparing with all: `1 − ⟨q, g⟩`, since all have length 1.
fn brute_force(vectors: &Matrix, n: usize, queries: &Matrix) -> Vec<Vec<u64>> {
    (0..queries.rows())
        .into_par_iter()
        .map(|at| {
            let query = queries.row(at);
            let mut near: Vec<(f32, u64)> = (0..n)
                .map(|row| {
                    let (left, _) = query.as_chunks::<16>();
                    let (right, _) = vectors.row(row).as_chunks::<16>();
                    let mut sums = [0.0_f32; 16];
                    for (left, right) in left.iter().zip(right) {
                        for lane in 0..16 {
                            sums[lane] += left[lane] * right[lane];
                        }
                    }
                    (-sums.iter().sum::<f32>(), row as u64 + 1)
                })
                .collect();
            near.select_nth_unstable_by(K, |a, b| a.0.total_cmp(&b.0));
            near.truncate(K);
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            near.into_iter().map(|(_, key)| key).collect()
        })
        .collect()
}

fn file_bytes(path: &Path) -> f64 {
    fs_err::metadata(path).map_or(0.0, |metadata| metadata.len() as f64)
}

/// Processor time of this process in hundredths, as the system counts it; 0 where it does not say.
fn processor_seconds() -> f64 {
    let text = fs_err::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

/// Memory that the process takes, as the system counts it; 0 where it does not say.
fn resident_bytes() -> f64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    kilobytes * 1024.0
}
