//! Measures a large gallery on this machine: time, peak memory and file size of importing, filling and taking
//! the worst first.
//!
//! `cargo bench -p rehang-sqlite --bench scale -- ROWS DIMENSION FOLDER [index]`
//!
//! Vectors are computed when they are needed, so the memory that is printed is the store's own. The pages of
//! the queue are compared with the true order, found by looking at every item. `index` builds the search
//! index of one space too. While spaces are made and dropped, an application writes, and its longest wait is
//! printed.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_sqlite::SqliteStore;
use rehang_store::{
    Epoch, Examined, Filter, Index, ItemWrite, Ledger, NewVector, Priority, Scan, Select, VectorWrite,
    WriteOutcome,
};

/// Items of one transaction of the import.
const BATCH: usize = 4096;
/// Items of a page while the new space is filled, as an upgrade takes them.
const FILL_PAGE: usize = 2048;
/// Items of a page of the queue. At most `PAGES_MAX` pages are taken: a hundredth of the items.
const PAGE: usize = 1000;
const PAGES_MAX: u64 = 50;
const QUERIES: usize = 200;
const K: usize = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (rows, dimension, folder, with_index): (u64, usize, &Path, bool) = match arguments.as_slice() {
        [rows, dimension, folder] => (rows.parse()?, dimension.parse()?, Path::new(folder), false),
        [rows, dimension, folder, index] if index == "index" => {
            (rows.parse()?, dimension.parse()?, Path::new(folder), true)
        }
        _ => return Err("give ROWS DIMENSION FOLDER [index]".into()),
    };
    fs_err::create_dir_all(folder)?;
    let path = folder.join("scale.db");
    println!("{rows} items × {dimension}");
    let store = SqliteStore::create(&path)?;
    let space = |name: &str| Space::new(name, dimension, Distance::L2, false);
    store.create_space(&space("old"), Provenance::Old)?;
    measured("import", rows, || {
        for start in (1..=rows).step_by(BATCH) {
            let writes: Vec<ItemWrite> =
                (start..=rows.min(start + BATCH as u64 - 1)).map(|key| item(key, dimension)).collect();
            store.put(&writes)?;
        }
        Ok(())
    })?;
    print_size("gallery file, one space", &path);

    let made = || store.create_space(&space("new"), Provenance::Native);
    beside_a_writer("make the new space", rows, &path, made)?;
    measured("fill with adapted vectors", rows, || {
        let mut after = None;
        loop {
            let scan = Scan::new("new", Select::Lacking, FILL_PAGE).after(after).with_vectors_of("old");
            let page = store.scan(&scan)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.item.key);
            let writes: Vec<VectorWrite> = page
                .into_iter()
                .filter_map(|record| {
                    let priority = priority(record.item.key.bits() as u64);
                    let (vector, place) = (record.vector?.vector, Priority::ordinary(priority));
                    Some(VectorWrite::adapted(&record.item, vector, priority as f32, place))
                })
                .collect();
            let outcomes = store.write_vectors("new", Some(Epoch::FIRST), &writes)?;
            assert!(outcomes.iter().all(|&outcome| outcome == WriteOutcome::Written));
        }
    })?;
    print_size("gallery file, two spaces", &path);

    let pages = (rows / 100 / PAGE as u64).clamp(1, PAGES_MAX) as usize;
    let worst = worst(rows, PAGE * pages);
    let first = measured("first page of the queue", 1, || {
        store.scan(&Scan::new("new", Select::Queued, PAGE).with_vectors_of("old"))
    })?;
    assert!(first.iter().map(|record| record.item.key.bits() as u64).eq(worst.iter().copied().take(PAGE)));
    let mut seen = Vec::with_capacity(worst.len());
    measured("pages of the queue, made native", worst.len() as u64, || {
        for _ in 0..pages {
            let page = store.scan(&Scan::new("new", Select::Queued, PAGE))?;
            seen.extend(page.iter().map(|record| record.item.key.bits() as u64));
            let writes: Vec<VectorWrite> = page
                .iter()
                .map(|record| {
                    VectorWrite::native(&record.item, vector(record.item.key.bits() as u64, dimension))
                })
                .collect();
            store.write_vectors("new", Some(Epoch::FIRST), &writes)?;
        }
        Ok(())
    })?;
    assert_eq!(seen, worst, "the queue is in the order of the priorities");
    let counts = measured("counts", 1, || store.counts("new"))?;
    assert_eq!((counts.items, counts.native), (rows, worst.len() as u64));

    if with_index {
        measured("build and save the search index", rows, || store.rebuild("new"))?;
        let queries: Vec<f32> = (0..QUERIES as u64).flat_map(|at| vector(rows + 1 + at, dimension)).collect();
        let queries = Matrix::new(dimension, queries)?;
        measured("searches, one by one", QUERIES as u64, || {
            for at in 0..QUERIES {
                let found = store.search("new", &queries.select(&[at]), K, &Filter::default())?;
                assert_eq!(found[0].len(), K);
            }
            Ok(())
        })?;
        let natives = Filter { provenances: vec![Provenance::Native], ..Filter::default() };
        measured("searches among native vectors only", QUERIES as u64, || {
            for at in 0..QUERIES {
                let found = store.search("new", &queries.select(&[at]), K, &natives)?;
                assert_eq!(found[0].len(), K);
            }
            Ok(())
        })?;
        let recall = measured("recall, by comparing with all", 100, || store.recall("new", 100, K))?;
        println!("recall@{K} of 100 stored vectors: {recall:.4}");
        let health = store.index_health("new")?;
        println!("index of one space in memory: {:.0} MB", health.bytes as f64 / 1e6);
        print_size("side file of one space", &store.index_path("new")?);
    }
    store.switch_serving("old", "new")?;
    beside_a_writer("drop the old space", rows, &path, || store.drop_space("old"))?;
    Ok(())
}

/// Does something while an application, as another process would, adds and deletes an item all the time;
/// prints its longest wait.
fn beside_a_writer(
    what: &str,
    count: u64,
    path: &Path,
    work: impl FnOnce() -> rehang_core::Result<()>,
) -> rehang_core::Result<()> {
    let application = SqliteStore::open(path)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> rehang_core::Result<(u64, Duration)> {
            let (mut writes, mut longest) = (0, Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                application.put(&[ItemWrite { vectors: Vec::new(), ..item(u64::MAX, 1) }])?;
                longest = longest.max(start.elapsed());
                application.delete(&[item(u64::MAX, 1).id.as_str()])?;
                writes += 1;
                thread::sleep(Duration::from_millis(1));
            }
            Ok((writes, longest))
        });
        let outcome = measured(what, count, work);
        is_over.store(true, Ordering::Relaxed);
        let (writes, longest) = writer.join().expect("the application does not panic")?;
        println!(
            "    {writes} items added meanwhile, the longest wait {:.0} ms",
            longest.as_secs_f64() * 1e3
        );
        outcome
    })
}

/// Does something, and prints how long it took and the most memory the process had meanwhile.
fn measured<T>(
    what: &str,
    count: u64,
    work: impl FnOnce() -> rehang_core::Result<T>,
) -> rehang_core::Result<T> {
    // Linux forgets the former peak when told so; elsewhere there is no peak to print.
    let _ = fs_err::write("/proc/self/clear_refs", "5");
    let start = Instant::now();
    let value = work()?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what:<36} {seconds:>9.3} s {:>10.0} a second, peak memory {:>6.0} MB",
        count as f64 / seconds,
        peak_bytes() / 1e6
    );
    Ok(value)
}

fn print_size(what: &str, path: &Path) {
    let size = |suffix: &str| {
        let path = format!("{}{suffix}", path.display());
        fs_err::metadata(path).map_or(0.0, |metadata| metadata.len() as f64 / 1e6)
    };
    println!("{what:<36} {:>9.0} MB, log {:.0} MB", size(""), size("-wal"));
}

fn item(key: u64, dimension: usize) -> ItemWrite {
    ItemWrite::new(
        format!("item-{key:08}"),
        Some(format!("images/{key:08}.jpg")),
        vec![NewVector::from_model("old", vector(key, dimension), Provenance::Old)],
    )
}

/// Vector of an item, around one of 1,000 centres, as embeddings lie.
fn vector(key: u64, dimension: usize) -> Vec<f32> {
    let centre = mixed(key) % 1000;
    let part = |a: u64, b: u64| (mixed(a << 20 ^ b) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    (0..dimension as u64).map(|column| part(centre, column) + 0.7 * part(key + 1000, column)).collect()
}

/// Priority of an item: different for each key, in no order.
fn priority(key: u64) -> f64 {
    (mixed(key ^ 0x5157) >> 11) as f64 / (1u64 << 53) as f64
}

fn mixed(value: u64) -> u64 {
    let mut state = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The keys with the largest priorities, largest first: the slow way, in memory for as many as are wanted.
fn worst(rows: u64, count: usize) -> Vec<u64> {
    let mut heap = BinaryHeap::with_capacity(count + 1);
    for key in 1..=rows {
        // Positive numbers sort as their bits do.
        heap.push(Reverse((priority(key).to_bits(), Reverse(key))));
        if heap.len() > count {
            heap.pop();
        }
    }
    heap.into_sorted_vec().into_iter().map(|Reverse((_, Reverse(key)))| key).collect()
}

/// Most memory of the process since the peak was last forgotten; 0 where the system does not say.
fn peak_bytes() -> f64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    kilobytes * 1024.0
}
