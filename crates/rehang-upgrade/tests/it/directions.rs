//! Tests of vectors of length 0 in a gallery whose models are compared by cosine: nothing is made of them,
//! and their items are the next ones.

use rehang_core::{Distance, Provenance, Space};
use rehang_store::{ItemWrite, Ledger, NewVector, Record, Scan, Select};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Limits, Unobserved, start};

use crate::common::{self, D_NEW, D_OLD, TestEncoder, World, gallery, id, item};

/// Makes an upgrade between models that are compared by cosine.
fn cosines() -> World {
    let space = |name, dimension| Space::new(name, dimension, Distance::Cosine, false);
    World::between(space("old-model", D_OLD), space("new-model", D_NEW))
}

/// Returns an item whose old vector has no direction.
fn without(number: usize) -> ItemWrite {
    let vector = NewVector::from_model("old-model", vec![0.0; D_OLD], Provenance::Old);
    ItemWrite { vectors: vec![vector], ..item(number, 0) }
}

#[test]
fn items_that_are_written_together_are_adapted_as_each_alone() {
    let world = cosines();
    let mut native = item(5, 1);
    let source = native.source.clone().unwrap();
    let vector = common::new_model(&source);
    native.vectors.push(NewVector::from_model("new-model", vector, Provenance::Native));
    let writes = [item(3, 1), without(99), native, item(98, 0)];
    let vectors_after = |batch: usize| -> Vec<_> {
        let store = MemoryStore::new();
        store.create_space(&world.old, Provenance::Old).unwrap();
        store.put(&(0..60).map(|number| item(number, 0)).collect::<Vec<_>>()).unwrap();
        start(&store, &world.setup(), &Unobserved).unwrap();
        for writes in writes.chunks(batch) {
            gallery(&store).put(writes).unwrap();
        }
        let scan = Scan::new(&world.new.name, Select::All, 100).with_vectors_of(&world.new.name);
        let vector_of = |record: Record| {
            let vector = record.vector.map(|of| (of.provenance, of.vector, of.sigma2, of.priority));
            (record.item.id, vector)
        };
        store.scan(&scan).unwrap().into_iter().map(vector_of).collect()
    };
    let together = vectors_after(writes.len());
    assert_eq!(together, vectors_after(1));
    let made_by = |number: usize| {
        let of_item = together.iter().find(|(name, _)| *name == id(number)).unwrap();
        of_item.1.as_ref().map(|vector| vector.0)
    };
    assert_eq!([3, 98].map(made_by), [Some(Provenance::Adapted); 2]);
    assert_eq!([99, 5].map(made_by), [None, Some(Provenance::Native)]);
}

#[test]
fn a_vector_without_a_direction_is_not_adapted_and_its_item_comes_first() {
    let world = cosines();
    let store = MemoryStore::new();
    store.create_space(&world.old, Provenance::Old).unwrap();
    // The old model had no words for three texts, say.
    let writes: Vec<_> =
        (0..60).map(|number| if number < 3 { without(number) } else { item(number, 0) }).collect();
    store.put(&writes).unwrap();
    start(&store, &world.setup(), &Unobserved).unwrap();
    let counts = store.counts(&world.new.name).unwrap();
    assert_eq!((counts.adapted, counts.lacking), (57, 3), "no adapted vector is made of nothing");
    gallery(&store).put(&[without(99)]).unwrap();
    assert_eq!(store.counts(&world.new.name).unwrap().lacking, 4, "nor by who writes through the gallery");
    let queue = store.scan(&Scan::new(&world.new.name, Select::Queued, 4)).unwrap();
    let first: Vec<String> = queue.into_iter().map(|record| record.item.id).collect();
    assert_eq!(first, [id(0), id(1), id(2), id(99)], "they are the next ones");
    let encoder = TestEncoder { space: Some(world.new.clone()), ..TestEncoder::new() };
    world.backfill(&store, &encoder, Limits::default()).unwrap();
    assert_eq!(store.counts(&world.new.name).unwrap().native, 61);
    let source = common::new_model("source 1 version 0");
    let queries = rehang_core::Matrix::new(D_NEW, source).unwrap();
    let found = store_search(&store, &world.new.name, &queries);
    assert_eq!(found, id(1), "and are found");
}

fn store_search(store: &MemoryStore, space: &str, queries: &rehang_core::Matrix) -> String {
    use rehang_store::Index as _;
    store.search(space, queries, 1, &rehang_store::Filter::default()).unwrap()[0][0].id.clone()
}
