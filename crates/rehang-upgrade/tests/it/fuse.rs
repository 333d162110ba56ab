//! Tests of searches while a backfill writes or an upgrade is finished. An item that becomes native between
//! any two reads of a search is found, once; a fused search finds what a slow twin does; and a handicap does
//! to a ranking what it should.

use std::collections::BTreeMap;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rehang_core::{Distance, Fusion, Matrix, Provenance, Result, Space};
use rehang_sqlite::SqliteStore;
use rehang_store::{
    Filter, Found, Index, Item, ItemKey, ItemWrite, Ledger, NewVector, Scan, Select, Store, VectorWrite,
    WriteOutcome,
};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Gallery, Limits, Recorded, Serving, Unobserved, finish, rollback, start, switch};

use crate::common::{self, hooked::Hooked};
use crate::common::{TestEncoder, World, fill, new_model, old_model};

/// Returns a store in which something happens right before the n-th read of a search (counted from 1), and
/// its count of reads.
fn before_read(
    store: &MemoryStore,
    read: u64,
    act: impl Fn(&MemoryStore) -> Result<()> + Send + Sync + 'static,
) -> (Hooked, Arc<AtomicU64>) {
    let reads = Arc::<AtomicU64>::default();
    let count = Arc::clone(&reads);
    let hooked = Hooked::new(store, move |store, call| {
        let is_read = matches!(call, "search" | "provenances" | "vectors");
        if is_read && count.fetch_add(1, Ordering::SeqCst) + 1 == read { act(store) } else { Ok(()) }
    });
    (hooked, reads)
}

/// Handicap that the adapter of the half-way gallery asks for; exact in binary.
const HANDICAP: f32 = 0.25;

/// Makes a gallery that serves the new model, `budget` of its items native.
fn backfilled(items: usize, budget: u64, serving: Serving) -> (MemoryStore, World) {
    let (store, mut world) = (MemoryStore::new(), World::new());
    world.adapter.handicap = f64::from(HANDICAP);
    world.adapter.fusion = world.adapter.fusion.map(|fusion| Fusion { weight: 0.4, ..fusion });
    fill(&store, items);
    start(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), serving, &Unobserved).unwrap();
    let limits = Limits { budget: Some(budget), ..Limits::default() };
    world.backfill(&store, &TestEncoder::new(), limits).unwrap();
    (store, world)
}

/// Makes a gallery of which 60 of 100 items are native. The first item that is not becomes native before a
/// read; its key and source are returned.
fn half_way(serving: Serving, read: u64) -> (Hooked, Arc<AtomicU64>, ItemKey, String) {
    let store = backfilled(100, 60, serving).0;
    let item = first_adapted(&store);
    let (key, source) = (item.key, item.source.clone().unwrap());
    let write = VectorWrite::native(&item, new_model(&source));
    let (store, reads) = before_read(&store, read, move |store| {
        assert_eq!(store.write_vectors("new-model", None, from_ref(&write))?, [WriteOutcome::Written]);
        Ok(())
    });
    (store, reads, key, source)
}

fn first_adapted(store: &MemoryStore) -> Item {
    let adapted = Select::Provenance(Provenance::Adapted);
    store.scan(&Scan::new("new-model", adapted, 1)).unwrap().remove(0).item
}

#[test]
fn an_item_that_becomes_native_meanwhile_is_found_once() {
    let mut moments = 0;
    for read in 1.. {
        let (store, reads, key, source) = half_way(Serving::Fused, read);
        let (old, new) = by_both(&source);
        let both = [("old-model", &old), ("new-model", &new)];
        let found = common::gallery(&store).search(&both, 5, &Filter::default()).unwrap().found.remove(0);
        // The item is among the nearest by either model.
        let mut keys: Vec<ItemKey> = found.iter().map(|hit| hit.key).collect();
        assert!(keys.contains(&key), "before read {read}: {found:?}");
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 5, "before read {read}: {found:?}");
        if reads.load(Ordering::SeqCst) < read {
            break;
        }
        moments += 1;
    }
    assert!(moments >= 4, "{moments} moments");
}

#[test]
fn a_fused_search_that_a_finish_overtakes_is_one_of_what_serves_then() {
    let mut moments = 0;
    for read in 1.. {
        let (store, world) = backfilled(100, 60, Serving::Fused);
        let source = first_adapted(&store).source.unwrap();
        let (store, reads) = before_read(&store, read, move |store| {
            finish(store, &world.setup(), true, &Unobserved).map(drop)
        });
        let gallery = common::gallery(&store);
        let (old, new) = by_both(&source);
        let both = [("old-model", &old), ("new-model", &new)];
        let answer = gallery.search(&both, 5, &Filter::default()).unwrap();
        if reads.load(Ordering::SeqCst) < read {
            assert_eq!(answer.spaces, ["old-model", "new-model"]);
            break;
        }
        let after = common::gallery(&store.store).search(&both, 5, &Filter::default()).unwrap();
        assert_eq!(after.spaces, ["new-model"]);
        assert_eq!(answer, after, "before read {read}");
        moments += 1;
    }
    assert!(moments >= 4, "{moments} moments");
}

/// Embeds a query by both models.
fn by_both(source: &str) -> (Matrix, Matrix) {
    let old = Matrix::new(common::D_OLD, old_model(source)).unwrap();
    (old, Matrix::new(common::D_NEW, new_model(source)).unwrap())
}

/// Distance of two cosine spaces: an old vector of length 0 has no place there, and nothing is made of it.
const COSINES: Distance = Distance::Cosine;

/// Judges every item by its vectors in both spaces, one by one.
fn twin(
    store: &dyn Store,
    fusion: &Fusion,
    distance: Distance,
    (old, new): (&[f32], &[f32]),
    provenances: &[Provenance],
) -> Vec<(f64, ItemKey)> {
    let all = |space: &str| -> BTreeMap<ItemKey, (Provenance, Vec<f32>)> {
        let records = store.scan(&Scan::new(space, Select::All, 9999).with_vectors_of(space)).unwrap();
        let vectors = records.into_iter().filter_map(|record| Some((record.item.key, record.vector?)));
        vectors.map(|(key, vector)| (key, (vector.provenance, vector.vector))).collect()
    };
    let (in_old, in_new) = (all("old-model"), all("new-model"));
    let away =
        |query: &[f32], vector: &[f32]| distance.can_place(vector).then(|| distance.between(query, vector));
    let mut found = Vec::new();
    for key in in_old.keys().chain(in_new.keys().filter(|key| !in_old.contains_key(key))) {
        let now = in_new.get(key);
        let provenance = now.map_or(Provenance::Old, |now| now.0);
        let by_new = now.and_then(|now| away(new, &now.1));
        let by_old = in_old.get(key).and_then(|before| away(old, &before.1));
        let judged = if provenance == Provenance::Native {
            by_new
        } else {
            by_old.map(|by_old| fusion.distance(by_old, by_new))
        };
        let Some(judged) = judged else { continue };
        if provenances.is_empty() || provenances.contains(&provenance) {
            found.push((judged, *key));
        }
    }
    found.sort_by(|a, b| a.partial_cmp(b).unwrap());
    found
}

/// Makes a fused gallery half-way in any store: natives, adapted items, one that waits for its vector, one
/// that only the new model knows, two that are the same to both models and, where cosines count, one without
/// a direction.
fn mixed_up(store: &dyn Store, weight: f64, distance: Distance, native: u64) -> World {
    let space = |space: Space| Space { distance, ..space };
    let mut world = World::between(space(common::old_space()), space(common::new_space()));
    let pairs: Vec<(f64, f64)> = (0..400)
        .map(|number| {
            let (q_old, q_new) = by_both(&format!("query {}", number % 20));
            let source = format!("pair {number}");
            let mut adapted = old_model(&source);
            adapted.push(0.0);
            let old = distance.between(q_old.row(0), &old_model(&source));
            (old, distance.between(q_new.row(0), &adapted))
        })
        .collect();
    let fusion = Fusion::from_distances(weight, &pairs).unwrap();
    world.adapter.fusion = Some(Fusion { handicap: 0.25, ..fusion });
    store.create_space(&world.old, Provenance::Old).unwrap();
    let mut writes: Vec<ItemWrite> = (0..300).map(|number| common::item(number, 0)).collect();
    for twin in [101, 203] {
        writes[twin] = ItemWrite { id: writes[twin].id.clone(), ..writes[7].clone() };
    }
    if distance == COSINES {
        writes[50].vectors[0].vector = vec![0.0; common::D_OLD];
    }
    store.put(&writes).unwrap();
    start(store, &world.setup(), &Unobserved).unwrap();
    switch(store, &world.setup(), Serving::Fused, &Unobserved).unwrap();
    let limits = Limits { budget: Some(native), ..Limits::default() };
    let encoder = TestEncoder { space: Some(world.new.clone()), ..TestEncoder::new() };
    if native > 0 {
        world.backfill(store, &encoder, limits).unwrap();
    }
    let mut fresh = common::item(900, 0);
    let vector = new_model(fresh.source.as_ref().unwrap());
    fresh.vectors = vec![NewVector::from_model("new-model", vector, Provenance::Native)];
    store.put(&[common::item(500, 0), fresh]).unwrap();
    world
}

fn is_what_the_twin_finds(store: &Arc<dyn Store>, world: &World) {
    let gallery = Gallery::new(Arc::clone(store));
    let fusion = world.adapter.fusion.as_ref().unwrap();
    let sources = ["query 1", "query 2", "source 7 version 0", "source 50 version 0", "source 500 version 0"];
    for source in sources {
        let (old, new) = by_both(source);
        for provenances in [
            vec![],
            vec![Provenance::Adapted],
            vec![Provenance::Old],
            vec![Provenance::Native, Provenance::Old],
            vec![Provenance::Native],
        ] {
            let filter = Filter { provenances: provenances.clone(), ..Filter::default() };
            for k in [1, 7, 40] {
                let both = [("old-model", &old), ("new-model", &new)];
                let found = gallery.search(&both, k, &filter).unwrap().found.remove(0);
                let mut expected =
                    twin(&**store, fusion, world.old.distance, (old.row(0), new.row(0)), &provenances);
                expected.truncate(k);
                let keys: Vec<ItemKey> = found.iter().map(|hit| hit.key).collect();
                assert_eq!(
                    keys,
                    expected.iter().map(|of| of.1).collect::<Vec<_>>(),
                    "{source} {provenances:?} {k}"
                );
                for (hit, (distance, _)) in found.iter().zip(&expected) {
                    assert!((f64::from(hit.distance) - distance).abs() < 1e-5, "{hit:?} {distance}");
                }
            }
        }
    }
}

#[test]
fn a_fused_search_finds_what_a_look_at_every_vector_finds() {
    for distance in [Distance::L2, COSINES] {
        for (weight, native) in [(0.0, 0), (0.3, 60), (0.7, 295), (1.0, 150)] {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let world = mixed_up(&*store, weight, distance, native);
            is_what_the_twin_finds(&store, &world);
        }
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::create(folder.path().join("gallery.db")).unwrap());
        let world = mixed_up(&*store, 0.5, distance, 100);
        is_what_the_twin_finds(&store, &world);
    }
}

fn hits(found: &[Vec<Found>]) -> Vec<ItemKey> {
    found[0].iter().map(|hit| hit.key).collect()
}

#[test]
fn at_both_ends_it_is_the_search_of_one_space() {
    for native in [0, 100] {
        let (store, mut world) = (MemoryStore::new(), World::new());
        fill(&store, 100);
        // A weight of 0 says that nothing is proven of what the adapter makes.
        world.adapter.fusion = world.adapter.fusion.map(|fusion| Fusion { weight: 0.0, ..fusion });
        start(&store, &world.setup(), &Unobserved).unwrap();
        switch(&store, &world.setup(), Serving::Fused, &Unobserved).unwrap();
        if native > 0 {
            world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
        }
        for number in 0..20 {
            let (old, new) = by_both(&format!("query {number}"));
            let both = [("old-model", &old), ("new-model", &new)];
            let fused = common::gallery(&store).search(&both, 10, &Filter::default()).unwrap();
            let (space, query) = if native == 0 { ("old-model", &old) } else { ("new-model", &new) };
            let alone = store.search(space, query, 10, &Filter::default()).unwrap();
            assert_eq!(hits(&fused.found), hits(&alone));
            if native > 0 {
                assert_eq!(fused.found, alone);
            }
        }
    }
}

#[test]
fn a_fused_search_needs_both_queries_and_an_adapter_that_says_how() {
    let (store, mut world) = backfilled(100, 60, Serving::Fused);
    let (old, new) = by_both("what somebody looks for");
    let gallery = common::gallery(&store);
    for (queries, missing) in [([("new-model", &new)], "old-model"), ([("old-model", &old)], "new-model")] {
        let error = gallery.search(&queries, 10, &Filter::default()).unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
    }
    // The fusion of the adapter is in the record as long as it is used, and goes with it.
    let fusion = || Recorded::expect(&store).unwrap().record.fusion;
    assert_eq!(fusion(), world.adapter.fusion);
    let fused = gallery.search(&[("old-model", &old), ("new-model", &new)], 10, &Filter::default()).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    assert_eq!(fusion(), None);
    let mixed = gallery.search(&[("new-model", &new)], 10, &Filter::default()).unwrap();
    assert_ne!(mixed.found, fused.found);
    let (store, setup) = (MemoryStore::new(), &mut world);
    setup.adapter.fusion = None;
    fill(&store, 20);
    start(&store, &setup.setup(), &Unobserved).unwrap();
    let refused = switch(&store, &setup.setup(), Serving::Fused, &Unobserved).unwrap_err();
    assert!(refused.to_string().contains("fused searches"), "{refused}");
    assert_eq!(store.serving().unwrap().as_deref(), Some("old-model"));
}

#[test]
fn few_items_that_are_not_native_are_found_without_reading_the_gallery() {
    let (store, world) = backfilled(2000, 1990, Serving::Fused);
    let (old, new) = by_both("what somebody looks for");
    let fusion = world.adapter.fusion.as_ref().unwrap();
    let expected = twin(&store, fusion, Distance::L2, (old.row(0), new.row(0)), &[]);
    let store = Hooked::new(&store, |_, _| Ok(()));
    let both = [("old-model", &old), ("new-model", &new)];
    let found = common::gallery(&store).search(&both, 20, &Filter::default()).unwrap().found.remove(0);
    let keys: Vec<ItemKey> = found.iter().map(|hit| hit.key).collect();
    assert_eq!(keys, expected[..20].iter().map(|of| of.1).collect::<Vec<_>>());
    let searched = store.searched.lock().unwrap();
    assert_eq!(searched.iter().map(|(_, k)| *k).max(), Some(80), "four candidates for every hit");
}

#[test]
fn queries_by_name_stay_right_when_the_next_upgrade_begins() {
    let (store, world) = backfilled(100, 100, Serving::Mixed);
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
    let gallery = common::gallery(&store);
    let (old, new) = by_both("what somebody looks for");
    let known = [("old-model", &old), ("new-model", &new)];
    let finished = gallery.search(&known, 10, &Filter::default()).unwrap();
    assert_eq!(finished.spaces, ["new-model"]);
    assert_eq!(gallery.search(&[("new-model", &new)], 10, &Filter::default()).unwrap(), finished);

    let third = Space::new("third-model", common::D_NEW, Distance::L2, false);
    let next = World::between(common::new_space(), third);
    start(&store, &next.setup(), &Unobserved).unwrap();
    let begun = gallery.search(&known, 10, &Filter::default()).unwrap();
    assert_eq!(begun, finished, "what serves is as it was");
    switch(&store, &next.setup(), Serving::Fused, &Unobserved).unwrap();
    let error = gallery.search(&known, 10, &Filter::default()).unwrap_err();
    assert!(error.to_string().contains("third-model"), "{error}");
    let all = [("third-model", &new), ("old-model", &old), ("new-model", &new)];
    let fused = gallery.search(&all, 10, &Filter::default()).unwrap();
    assert_eq!(fused.spaces, ["new-model", "third-model"]);
    rollback(&store, &next.setup(), &Unobserved).unwrap();
    assert_eq!(gallery.search(&all, 10, &Filter::default()).unwrap(), finished);
}

#[test]
fn adapted_vectors_are_farther_by_the_handicap() {
    let store = backfilled(100, 60, Serving::Mixed).0;
    let gallery = common::gallery(&store);
    let all = store.scan(&Scan::new("new-model", Select::All, 1000).with_vectors_of("new-model")).unwrap();
    let mut moved = 0;
    for number in 0..30 {
        let query = new_model(&format!("query {number}"));
        let twin = |handicap: f32, provenances: &[Provenance]| -> Vec<(ItemKey, f32)> {
            let mut hits: Vec<(f32, ItemKey)> = Vec::new();
            for record in &all {
                let vector = record.vector.as_ref().unwrap();
                if !provenances.is_empty() && !provenances.contains(&vector.provenance) {
                    continue;
                }
                let away: f32 = query.iter().zip(&vector.vector).map(|(q, x)| (q - x) * (q - x)).sum();
                let adapted = vector.provenance == Provenance::Adapted;
                hits.push((away + if adapted { handicap } else { 0.0 }, record.item.key));
            }
            hits.sort_by(|a, b| a.partial_cmp(b).unwrap());
            hits.into_iter().take(7).map(|(distance, key)| (key, distance)).collect()
        };
        let queries = Matrix::new(common::D_NEW, query.clone()).unwrap();
        let queries = [("new-model", &queries)];
        for provenances in
            [vec![], vec![Provenance::Adapted], vec![Provenance::Native], Provenance::ALL.to_vec()]
        {
            let filter = Filter { provenances: provenances.clone(), ..Filter::default() };
            let found = gallery.search(&queries, 7, &filter).unwrap().found.remove(0);
            let expected = twin(HANDICAP, &provenances);
            assert_eq!(found.len(), expected.len());
            for (hit, (key, distance)) in found.iter().zip(&expected) {
                assert_eq!(hit.key, *key);
                assert!((hit.distance - distance).abs() < 1e-5);
            }
        }
        moved += usize::from(twin(0.0, &[]) != twin(HANDICAP, &[]));
    }
    assert!(moved > 0, "a handicap that moves nothing tests nothing");
}

#[test]
fn an_item_that_becomes_native_during_a_search_with_a_handicap_is_found_once() {
    let mut moments = 0;
    for read in 1.. {
        let (store, reads, key, source) = half_way(Serving::Mixed, read);
        let new = Matrix::new(common::D_NEW, new_model(&source)).unwrap();
        let queries = [("new-model", &new)];
        let found = common::gallery(&store).search(&queries, 5, &Filter::default()).unwrap().found.remove(0);
        let mut keys: Vec<ItemKey> = found.iter().map(|hit| hit.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 5, "before read {read}: {found:?}");
        assert!(keys.contains(&key), "before read {read}: {found:?}");
        if reads.load(Ordering::SeqCst) < read {
            break;
        }
        moments += 1;
    }
    assert!(moments >= 2, "{moments} moments");
}

#[test]
fn a_finished_upgrade_keeps_its_handicap_only_for_what_stayed_adapted() {
    for (budget, kept) in [(60, f64::from(HANDICAP)), (100, 0.0)] {
        let (store, world) = backfilled(100, budget, Serving::Mixed);
        finish(&store, &world.setup(), true, &Unobserved).unwrap();
        assert_eq!(Recorded::expect(&store).unwrap().record.handicap, kept);
    }
}

#[test]
fn the_next_upgrade_knows_the_handicap_of_what_the_last_one_left_adapted() {
    let (store, world) = backfilled(100, 60, Serving::Mixed);
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
    let new = Matrix::new(common::D_NEW, new_model("a query")).unwrap();
    let mixed = || {
        let queries = [("new-model", &new)];
        common::gallery(&store).search(&queries, 20, &Filter::default()).unwrap().found
    };
    let before = mixed();

    // The next upgrade goes from the new model to a third one; the gallery serves as it did.
    let next =
        World::between(common::new_space(), Space::new("third-model", common::D_NEW, Distance::L2, false));
    start(&store, &next.setup(), &Unobserved).unwrap();
    let queries = [("new-model", &new)];
    let during = common::gallery(&store).search(&queries, 20, &Filter::default()).unwrap().found;
    assert_eq!(during, before);
    let record = Recorded::expect(&store).unwrap().record;
    assert_eq!((record.old_handicap, record.handicap), (f64::from(HANDICAP), next.adapter.handicap));
    rollback(&store, &next.setup(), &Unobserved).unwrap();
    let after = common::gallery(&store).search(&queries, 20, &Filter::default()).unwrap().found;
    assert_eq!(after, before);
}
