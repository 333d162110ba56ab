//! A store of one's own: a gallery of which another store keeps the truth, and which is searched by the
//! application's own means.
//!
//! `cargo run -p rehang-examples --bin own_store`

mod ledger;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang::store::{
    Filter, Found, Index, Ledger, ManualLeaseClock, Record, Scan, Select, check, expect_space,
};
use rehang::{Matrix, Result};
use rehang_store_tests::MemoryStore;
use rehang_store_tests::conformance::{Bench, suite};

/// A gallery whose items and vectors lie in a ledger, and whose searches are ours.
struct OwnStore<L>(L);

/// Nearest neighbours. Here every vector is compared; candidates of a service would be confirmed with the
/// ledger, which is never behind.
impl<L: Ledger> Index for OwnStore<L> {
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>> {
        let there = expect_space(&self.0, space)?.space;
        check::queries(&there, queries)?;
        let mut found = vec![Vec::new(); queries.rows()];
        let mut page = Scan::new(space, Select::All, 1000).with_vectors_of(space);
        loop {
            let records = self.0.scan(&page)?;
            let Some(last) = records.last() else { break };
            page = page.after(Some(last.item.key));
            for Record { item, vector, .. } in records {
                let Some(vector) = vector.filter(|vector| filter.passes(&item, vector.provenance)) else {
                    continue;
                };
                // The application may hold a vector without a direction, and it is near to nothing.
                if !there.distance.can_place(&vector.vector) {
                    continue;
                }
                for (row, found) in found.iter_mut().enumerate() {
                    let distance = there.distance.between(queries.row(row), &vector.vector) as f32;
                    let (key, id, revision) = (item.key, item.id.clone(), item.revision);
                    found.push(Found { key, id, distance, provenance: vector.provenance, revision });
                }
            }
        }
        for found in &mut found {
            found.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
            found.truncate(k);
        }
        Ok(found)
    }

    fn recall(&self, space: &str, _samples: usize, _k: usize) -> Result<f64> {
        expect_space(&self.0, space).map(|_| 1.0)
    }

    fn is_ready(&self, space: &str) -> Result<bool> {
        expect_space(&self.0, space).map(|_| true)
    }

    fn prepare(&self, space: &str, _advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        expect_space(&self.0, space).map(drop)
    }

    fn rebuild(&self, space: &str) -> Result<()> {
        expect_space(&self.0, space).map(drop)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// How the conformance suite opens galleries of this store and lets its time pass.
#[derive(Default)]
struct Galleries {
    ledgers: Mutex<BTreeMap<String, MemoryStore>>,
    clock: ManualLeaseClock,
}

impl Bench for Galleries {
    type Store = OwnStore<MemoryStore>;

    fn open(&self, gallery: &str) -> Self::Store {
        let mut ledgers = self.ledgers.lock().expect("no promise panics while it opens a gallery");
        let new = || MemoryStore::new().with_clock(Arc::new(self.clock.clone()));
        OwnStore(ledgers.entry(gallery.to_owned()).or_insert_with(new).clone())
    }

    fn pass(&self, time: Duration) {
        self.clock.pass(time);
    }
}

/// Panics with the first promise that the store does not keep. With it kept, every verb of an upgrade works
/// on this store.
fn main() {
    suite(&Galleries::default());
}

#[test]
fn it_runs() {
    main();
}
