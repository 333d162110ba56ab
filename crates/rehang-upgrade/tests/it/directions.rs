//! Tests of vectors of length 0 in a gallery whose models are compared by cosine: nothing is made of them,
//! and their items are the next ones.

use rehang_core::{Distance, Provenance, Space};
use rehang_store::{Ledger, NewVector, Scan, Select};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Limits, Unobserved, start};

use crate::common::{self, D_NEW, D_OLD, TestEncoder, World, gallery, id, item};

#[test]
fn a_vector_without_a_direction_is_not_adapted_and_its_item_comes_first() {
    let world = World::between(
        Space::new("old-model", D_OLD, Distance::Cosine, false),
        Space::new("new-model", D_NEW, Distance::Cosine, false),
    );
    let store = MemoryStore::new();
    store.create_space(&world.old, Provenance::Old).unwrap();
    // The old model had no words for three texts, say.
    let without = |number: usize| {
        let mut write = item(number, 0);
        write.vectors = vec![NewVector::from_model(&world.old.name, vec![0.0; D_OLD], Provenance::Old)];
        write
    };
    let writes: Vec<_> =
        (0..60).map(|number| if number < 3 { without(number) } else { item(number, 0) }).collect();
    store.put(&writes).unwrap();
    start(&store, &world.setup(), &Unobserved).unwrap();
    let counts = store.counts(&world.new.name).unwrap();
    assert_eq!((counts.adapted, counts.lacking), (57, 3), "no adapted vector is made of nothing");
    gallery(&store).put(&[without(99)]).unwrap();
    assert_eq!(store.counts(&world.new.name).unwrap().lacking, 4, "nor by who writes through the gallery");
    let queue = store.scan(&Scan::new(&world.new.name, Select::WorstFirst, 4)).unwrap();
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
