//! The contracts of a store on a real server: with all spaces in named vectors of the gallery, and with the
//! old one in the application's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang_qdrant::{CollectionOptions, QdrantStore};
use rehang_store::ManualLeaseClock;
use rehang_store_tests::conformance::{Bench, ContractLevel, suite_of};

use crate::server;

struct Qdrant {
    server: &'static server::Server,
    /// Name of the space that is the application's own vector.
    in_vector: Option<&'static str>,
    clock: ManualLeaseClock,
    names: Mutex<BTreeMap<String, String>>,
}

impl Bench for Qdrant {
    type Store = QdrantStore;

    fn open(&self, gallery: &str) -> QdrantStore {
        let mut names = self.names.lock().unwrap();
        let name = names.entry(gallery.to_owned()).or_insert_with(|| {
            let name = server::fresh(gallery);
            server::collection(&self.server.url, &name, 2);
            name
        });
        let options = CollectionOptions {
            collection: name.clone(),
            source: Some("source".into()),
            label: Some("label".into()),
            payload: None,
            vector: self.in_vector.map(|_| "embedding".into()),
        };
        let address = self.server.address();
        let store = QdrantStore::adopt(&address, &options, self.in_vector, &|_, _| true).unwrap();
        store.with_clock(Arc::new(self.clock.clone()), &address).unwrap()
    }

    fn pass(&self, time: Duration) {
        self.clock.pass(time);
    }
}

fn keeps(in_vector: Option<&'static str>) {
    let Some(server) = server::server() else { return };
    let bench = Qdrant { server, in_vector, clock: ManualLeaseClock::default(), names: Mutex::default() };
    suite_of(&bench, ContractLevel::PerItem);
}

#[test]
fn it_keeps_the_contracts_of_its_level_in_vectors_of_its_own() {
    keeps(None);
}

#[test]
fn it_keeps_the_contracts_of_its_level_with_the_applications_old_vectors() {
    keeps(Some("old-model"));
}
