//! Random applications, operators and deaths against a small oracle: a deleted item never returns, a changed item never
//! carries a stale vector, no reader sees an untagged one, two workers do no harm, and in the end all is native.

mod common;

use std::collections::BTreeMap;
use std::thread;

use common::{DieAt, TestClock, TestEncoder, World, check, fill, new_model, old_model, other_adapter};
use proptest::prelude::*;
use rehang::{Adapter, Matrix, Progress, Provenance};
use rehang_store::{Filter, ItemWrite, MemoryStore, NewVector, SqliteStore, Store};
use rehang_upgrade::{
    BackfillSetup, Faults, Gallery, Limits, NoFaults, Place, Queries, Serving, backfill, rollback, start,
    switch,
};

#[derive(Debug, Clone)]
enum Operation {
    /// A new or changed item with an old vector, written through the gallery.
    Put(usize),
    /// The same by an application that knows nothing of the upgrade.
    PutPlainly(usize),
    /// An item that the application embedded with the new model.
    PutNative(usize),
    /// An item without any vector.
    PutBare(usize),
    Delete(usize),
    Search(usize),
    /// A backfill of a few items.
    Tick(u64),
    /// A backfill that dies.
    Crash(usize, u64),
    /// Two backfills at once.
    TwoWorkers(u64),
    /// Start again: catches up, or goes on after a death.
    Start,
    /// Start again with the other adapter.
    Replan,
    Switch,
    Rollback,
}

fn operation() -> impl Strategy<Value = Operation> {
    let item = 0..12_usize;
    prop_oneof![
        3 => item.clone().prop_map(Operation::Put),
        2 => item.clone().prop_map(Operation::PutPlainly),
        1 => item.clone().prop_map(Operation::PutNative),
        1 => item.clone().prop_map(Operation::PutBare),
        2 => item.clone().prop_map(Operation::Delete),
        3 => item.prop_map(Operation::Search),
        4 => (1..5_u64).prop_map(Operation::Tick),
        2 => (0..Place::ALL.len(), 1..4_u64).prop_map(|(place, visit)| Operation::Crash(place, visit)),
        1 => (1..6_u64).prop_map(Operation::TwoWorkers),
        2 => Just(Operation::Start),
        1 => Just(Operation::Replan),
        1 => Just(Operation::Switch),
        1 => Just(Operation::Rollback),
    ]
}

struct Model {
    store: Box<dyn Store>,
    world: World,
    encoder: TestEncoder,
    /// The sources of the items there are.
    oracle: BTreeMap<String, String>,
    versions: usize,
}

impl Model {
    fn new(store: Box<dyn Store>) -> Self {
        fill(store.as_ref(), 8);
        let oracle = (0..8).map(|n| (common::id(n), format!("source {n} version 0"))).collect();
        Self { store, world: World::new(), encoder: TestEncoder::new(), oracle, versions: 0 }
    }

    fn adapters() -> [Adapter; 2] {
        [common::adapter(), other_adapter()]
    }

    fn write(&mut self, number: usize) -> ItemWrite {
        self.versions += 1;
        let write = common::item(number, self.versions);
        self.oracle.insert(write.id.clone(), write.source.clone().unwrap());
        write
    }

    fn backfill(&self, budget: Option<u64>, faults: &dyn Faults) -> rehang::Result<rehang_upgrade::Summary> {
        let clock = TestClock::default();
        let setup = BackfillSetup {
            store: self.store.as_ref(),
            encoder: &self.encoder,
            adapter: Some(&self.world.adapter),
            limits: Limits { batch: 3, workers: 2, budget, ..Limits::default() },
            clock: &clock,
            faults,
        };
        backfill(&setup, &Progress::default())
    }

    fn perform(&mut self, operation: &Operation) {
        let progress = Progress::default();
        match *operation {
            Operation::Put(number) => {
                let write = self.write(number);
                Gallery::new(self.store.as_ref(), Some(&self.world.adapter)).put(vec![write]).unwrap();
            }
            Operation::PutPlainly(number) => {
                let write = self.write(number);
                self.store.put(&[write]).unwrap();
            }
            Operation::PutNative(number) => {
                let mut write = self.write(number);
                let has_new = self.store.spaces().unwrap().len() > 1;
                if has_new {
                    write.vectors = vec![NewVector {
                        space: "new-model".into(),
                        vector: new_model(write.source.as_deref().unwrap()),
                        provenance: Provenance::Native,
                        sigma2: None,
                        priority: None,
                    }];
                }
                self.store.put(&[write]).unwrap();
            }
            Operation::PutBare(number) => {
                let mut write = self.write(number);
                write.vectors.clear();
                self.store.put(&[write]).unwrap();
            }
            Operation::Delete(number) => {
                let existed = self.oracle.remove(&common::id(number)).is_some();
                assert_eq!(self.store.delete(&[&common::id(number)]).unwrap(), usize::from(existed));
            }
            Operation::Search(number) => self.search(number),
            // Before the start there is nothing to backfill, and that is said.
            Operation::Tick(budget) => drop(self.backfill(Some(budget), &NoFaults)),
            Operation::Crash(place, visit) => {
                drop(self.backfill(None, &DieAt::new(Place::ALL[place], visit)));
            }
            Operation::TwoWorkers(budget) => thread::scope(|scope| {
                let other = scope.spawn(|| drop(self.backfill(Some(budget), &NoFaults)));
                drop(self.backfill(Some(budget), &NoFaults));
                other.join().unwrap();
            }),
            Operation::Start => {
                start(self.store.as_ref(), &self.world.setup(), &NoFaults, &progress).unwrap();
                let old = self.store.counts("old-model").unwrap();
                let new = self.store.counts("new-model").unwrap();
                assert!(new.lacking <= old.lacking, "an item with an old vector was not caught up with");
            }
            Operation::Replan => {
                self.world.adapter =
                    if self.world.adapter == common::adapter() { other_adapter() } else { common::adapter() };
                let native = self.natives();
                start(self.store.as_ref(), &self.world.setup(), &NoFaults, &progress).unwrap();
                assert_eq!(self.natives(), native, "re-planning lost work");
                check(self.store.as_ref(), std::slice::from_ref(&self.world.adapter));
            }
            Operation::Switch => {
                drop(switch(self.store.as_ref(), &self.world.setup(), Serving::Mixed, &NoFaults));
            }
            Operation::Rollback => drop(rollback(self.store.as_ref(), &self.world.setup(), &NoFaults)),
        }
    }

    fn natives(&self) -> u64 {
        self.store.counts("new-model").map_or(0, |counts| counts.native)
    }

    /// A search never gives a deleted item, nor one twice, and says who made each vector.
    fn search(&self, number: usize) {
        let source = format!("source {number} version 0");
        let old = Matrix::new(common::D_OLD, old_model(&source)).unwrap();
        let new = Matrix::new(common::D_NEW, new_model(&source)).unwrap();
        let queries = Queries { old: Some(&old), new: Some(&new) };
        let gallery = Gallery::new(self.store.as_ref(), None);
        let answer = gallery.search(&queries, 5, &Filter::default()).unwrap();
        let serving = self.store.serving().unwrap().unwrap();
        let mut seen = Vec::new();
        for hit in &answer.found[0] {
            assert!(self.oracle.contains_key(&hit.id), "a deleted item returned: {}", hit.id);
            assert!(!seen.contains(&hit.id), "{} twice", hit.id);
            seen.push(hit.id.clone());
            assert_eq!(hit.provenance == Provenance::Old, serving == "old-model");
        }
    }

    fn check(&self) {
        check(self.store.as_ref(), &Self::adapters());
        for (id, source) in &self.oracle {
            let item = self.store.get(&[id]).unwrap().remove(0);
            assert_eq!(item.and_then(|item| item.source).as_ref(), Some(source));
        }
        assert_eq!(self.store.counts("old-model").unwrap().items, self.oracle.len() as u64);
    }
}

/// Performs the operations, looks at everything after each, then brings the upgrade to its end.
fn play(store: Box<dyn Store>, operations: &[Operation]) {
    let mut model = Model::new(store);
    for operation in operations {
        model.perform(operation);
        model.check();
    }
    // Whatever happened: the upgrade can be brought to its end, and every item is native once.
    model.perform(&Operation::Start);
    model.backfill(None, &NoFaults).unwrap();
    model.check();
    let counts = model.store.counts("new-model").unwrap();
    assert_eq!(counts.native, model.oracle.len() as u64);
    assert_eq!(counts.adapted + counts.lacking, 0);
    switch(model.store.as_ref(), &model.world.setup(), Serving::Mixed, &NoFaults).unwrap();
    model.search(0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_harms_a_gallery_in_memory(operations in prop::collection::vec(operation(), 1..40)) {
        play(Box::new(MemoryStore::new()), &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_harms_a_gallery_on_disk(operations in prop::collection::vec(operation(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        play(Box::new(SqliteStore::create(folder.path().join("gallery.db")).unwrap()), &operations);
    }
}
