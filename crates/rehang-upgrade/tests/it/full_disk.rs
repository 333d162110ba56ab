//! Test on a file system that is really full, at every step of an upgrade: nothing of the call that met it is
//! written, what was there stays whole and is searched on, and with room the upgrade goes on to the same end.
//!
//! The test needs a small file system of its own, so it runs by hand:
//!
//! ```text
//! mount -t tmpfs -o size=64m tmpfs /mnt/small
//! REHANG_SMALL_DISK=/mnt/small cargo test --release -p rehang-upgrade --test it full_disk -- --ignored --nocapture
//! ```
//!
//! Two limits are tested everywhere: one on the pages of the file, in the tests of the store, and one on what
//! the files of the binary may grow to, in those of the command line.

#![allow(clippy::print_stdout, reason = "run by hand, it says what it does")]

use std::path::{Path, PathBuf};

use rehang_core::{Error, Matrix};
use rehang_sqlite::{SearchOptions, SqliteStore};
use rehang_store::{Examined, Filter, Index, ItemWrite, Ledger};
use rehang_upgrade::{Limits, Serving, Unobserved, start, status, switch};

use crate::common::{self, TestEncoder, World, check};

const BATCH: usize = 200;

/// Ballast on a file system: it takes all the room there is, and gives it back.
struct Ballast(PathBuf);

impl Ballast {
    /// Fills the file system to its last block, but for `left` bytes.
    fn fill(&self, left: usize) {
        use std::io::Write as _;
        let mut file = fs_err::File::create(&self.0).unwrap();
        let block = vec![1_u8; 4096];
        let mut bytes = 0_usize;
        while file.write_all(&block).is_ok() {
            bytes += block.len();
        }
        file.set_len(bytes.saturating_sub(left) as u64).unwrap();
    }

    fn remove(&self) {
        fs_err::remove_file(&self.0).unwrap();
    }
}

fn is_full(error: &Error) {
    let text = error.to_string();
    assert!(text.contains("disk is full") && text.contains("make room"), "{text}");
    assert!(error.is_retryable(), "{text}");
    println!("  {text}");
}

/// Checks that a gallery is whole, and still searched.
fn whole(store: &SqliteStore, items: usize, query: usize) {
    assert_eq!(store.check().unwrap(), vec![]);
    assert_eq!(store.counts("old-model").unwrap().items, items as u64);
    check(store, &[common::adapter()]);
    let source = format!("source {query} version 0");
    let one = Matrix::new(common::D_OLD, common::old_model(&source)).unwrap();
    let found = store.search("old-model", &one, 1, &Filter::default()).unwrap();
    assert_eq!((found[0][0].id.as_str(), found[0][0].distance), (common::id(query).as_str(), 0.0));
}

#[test]
#[ignore = "needs a small file system of its own; the first lines of this file say how to make one"]
fn a_full_file_system_costs_nothing_but_time() {
    let folder = std::env::var("REHANG_SMALL_DISK").expect("REHANG_SMALL_DISK names a small file system");
    let folder = Path::new(&folder);
    let ballast = Ballast(folder.join("ballast"));
    let path = folder.join("gallery.db");
    // The gallery has few vectors, which have a graph only where one is asked for; its file meets the full
    // disk too.
    let options = SearchOptions { exact_max: 500, ..SearchOptions::default() };
    let store = SqliteStore::create(&path).unwrap().with_search(options);
    store.create_space(&common::old_space(), rehang_core::Provenance::Old).unwrap();
    let batch = |first: usize| -> Vec<ItemWrite> {
        (first..first + BATCH).map(|number| common::item(number, 0)).collect()
    };

    println!("importing until the disk is full:");
    ballast.fill(3 << 20);
    let mut items = 0;
    let error = loop {
        match store.put(&batch(items)) {
            Ok(_) => items += BATCH,
            Err(error) => break error,
        }
        assert!(items < 100_000, "a disk of a few MiB is full sooner");
    };
    is_full(&error);
    whole(&store, items, items / 2);
    assert!(store.put(&batch(items)).is_err(), "full is full");
    ballast.remove();
    store.put(&batch(items)).unwrap();
    items += BATCH;
    whole(&store, items, items - 1);
    println!("  {items} items");

    println!("starting:");
    let world = World::new();
    ballast.fill(512 << 10);
    is_full(&start(&store, &world.setup(), &Unobserved).unwrap_err());
    whole(&store, items, 3);
    ballast.remove();
    start(&store, &world.setup(), &Unobserved).unwrap();
    whole(&store, items, 3);
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();

    println!("backfilling:");
    let encoder = TestEncoder::new();
    let run = || world.backfill(&store, &encoder, Limits { batch: 50, ..Limits::default() });
    ballast.fill(1 << 20);
    is_full(&run().unwrap_err());
    let done = status(&store, 0).unwrap().counts.native;
    println!("  {done} items were made native before it");
    whole(&store, items, 4);
    println!("saving an index:");
    ballast.remove();
    ballast.fill(0);
    is_full(&store.rebuild("new-model").unwrap_err());
    let index = store.index_path("new-model").unwrap();
    assert!(!index.exists(), "no half of an index");
    whole(&store, items, 5);
    ballast.remove();
    store.rebuild("new-model").unwrap();
    assert!(index.exists());
    run().unwrap();
    whole(&store, items, 5);
    let status = status(&store, 9).unwrap();
    assert_eq!((status.counts.native, status.counts.failed), (items as u64, 0), "{:?}", status.failures);
    let twice = encoder.count() as usize - items;
    assert!(twice <= 50, "{twice} items were embedded twice");
    println!("  {items} items are native, {twice} of them were embedded twice");

    println!("opening on a full disk:");
    drop(store);
    ballast.fill(0);
    // SQLite keeps two files beside a gallery that is open, and there is no room for them.
    is_full(&SqliteStore::open(&path).unwrap_err());
    ballast.remove();
    whole(&SqliteStore::open(&path).unwrap(), items, 6);
}
