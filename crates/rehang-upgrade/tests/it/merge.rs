//! Searches while a backfill writes or an upgrade is finished: an item that becomes native between any two reads of one is found,
//! once; what the scale of merged searches is learned from; and what a handicap does to a ranking.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rehang::order::Policy;
use rehang::{Distance, Matrix, Provenance, Result, Space};
use rehang_store::{
    Filter, Found, Index, Item, ItemKey, Ledger, QueueBand, Scan, Select, VectorWrite, WriteOutcome,
};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    Limits, Merge, OrderSettings, Recorded, Serving, Unobserved, UpgradeSetup, finish, rollback, start,
    switch,
};

use crate::common::{self, hooked::Hooked};
use crate::common::{TestEncoder, World, fill, new_model, old_model};

/// A store in which something happens right before the n-th read of a search (counted from 1), and its count of reads.
fn before_read(
    store: &MemoryStore,
    read: u64,
    act: impl Fn(&MemoryStore) -> Result<()> + Send + Sync + 'static,
) -> (Hooked, Arc<AtomicU64>) {
    let reads = Arc::<AtomicU64>::default();
    let count = Arc::clone(&reads);
    let hooked = Hooked::new(store, move |store, call| {
        let is_read = call == "search" || call == "provenances";
        if is_read && count.fetch_add(1, Ordering::SeqCst) + 1 == read { act(store) } else { Ok(()) }
    });
    (hooked, reads)
}

/// What the adapter of the half-way gallery asks for; exact in binary.
const HANDICAP: f32 = 0.25;

/// A gallery that serves the new model, `budget` of its items native.
fn backfilled(items: usize, budget: u64, serving: Serving) -> (MemoryStore, World) {
    let (store, mut world) = (MemoryStore::new(), World::new());
    // Merged searches never look at an adapted vector; plain ones put it farther away.
    world.adapter.handicap = f64::from(HANDICAP);
    fill(&store, items);
    start(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), serving, &Unobserved).unwrap();
    let limits = Limits { budget: Some(budget), ..Limits::default() };
    world.backfill(&store, &TestEncoder::new(), limits).unwrap();
    (store, world)
}

/// A gallery of which 60 of 100 items are native. The first item that is not, of this source, becomes native before a read.
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
    for scaled in [true, false] {
        let mut moments = 0;
        for read in 1.. {
            let (store, reads, key, source) = half_way(Serving::Merged, read);
            let world = World::new();
            let merge = if scaled {
                Merge::learn(&store.store, &world.old, &world.new).unwrap()
            } else {
                Merge::default()
            };
            assert_eq!(merge.is_empty(), !scaled);
            let record = Recorded::expect(&store).unwrap().record;
            let old = Matrix::new(common::D_OLD, old_model(&source)).unwrap();
            let new = Matrix::new(common::D_NEW, new_model(&source)).unwrap();
            let found = merge.search(&store, &record, &old, &new, 5, &Filter::default()).unwrap().remove(0);
            // It is the nearest of all by either model.
            assert_eq!(found[0].key, key, "before read {read}: {found:?}");
            let mut keys: Vec<ItemKey> = found.iter().map(|hit| hit.key).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 5, "before read {read}: {found:?}");
            if reads.load(Ordering::SeqCst) < read {
                break;
            }
            moments += 1;
        }
        assert!(moments >= 3, "{moments} moments");
    }
}

#[test]
fn a_merged_search_that_a_finish_overtakes_is_one_of_what_serves_then() {
    for scaled in [true, false] {
        let mut moments = 0;
        for read in 1.. {
            let (store, world) = backfilled(100, 60, Serving::Merged);
            let source = first_adapted(&store).source.unwrap();
            let (store, reads) =
                before_read(&store, read, move |store| finish(store, &world.setup(), &Unobserved).map(drop));
            let gallery = common::gallery(&store, None);
            if scaled {
                // Its own reads do not count.
                reads.store(1 << 32, Ordering::SeqCst);
                gallery.calibrate().unwrap();
                reads.store(0, Ordering::SeqCst);
            }
            let old = Matrix::new(common::D_OLD, old_model(&source)).unwrap();
            let new = Matrix::new(common::D_NEW, new_model(&source)).unwrap();
            let both = [("old-model", &old), ("new-model", &new)];
            let answer = gallery.search(&both, 5, &Filter::default()).unwrap();
            if reads.load(Ordering::SeqCst) < read {
                assert_eq!(answer.spaces, ["old-model", "new-model"]);
                break;
            }
            let after = common::gallery(&store.store, None).search(&both, 5, &Filter::default()).unwrap();
            assert_eq!(after.spaces, ["new-model"]);
            assert_eq!(answer, after, "before read {read}");
            moments += 1;
        }
        assert!(moments >= 3, "{moments} moments");
    }
}

/// What somebody looks for, as both models see it.
fn query() -> (Matrix, Matrix) {
    let source = "what somebody looks for";
    let old = Matrix::new(common::D_OLD, old_model(source)).unwrap();
    (old, Matrix::new(common::D_NEW, new_model(source)).unwrap())
}

#[test]
fn the_last_items_that_are_not_native_are_found_without_reading_the_gallery() {
    let (store, world) = backfilled(2000, 1990, Serving::Merged);
    // One of the ten changes, and waits to be caught up with.
    let adapted = Select::Provenance(Provenance::Adapted);
    let first = store.scan(&Scan::new("new-model", adapted, 1)).unwrap().remove(0).item;
    let number = common::number(&first.id);
    store.put(&[common::item(number, 1)]).unwrap();
    let (old, new) = query();
    let mut others: Vec<(f64, ItemKey)> = Vec::new();
    let all = store.scan(&Scan::new("new-model", Select::All, 5000).with_vectors_of("old-model")).unwrap();
    for record in &all {
        if record.state.as_ref().is_some_and(|state| state.provenance == Provenance::Native) {
            continue;
        }
        let vector = &record.vector.as_ref().unwrap().vector;
        let pairs = old.row(0).iter().zip(vector);
        let away = pairs.map(|(q, x)| (f64::from(*q) - f64::from(*x)).powi(2)).sum();
        others.push((away, record.item.key));
    }
    others.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let expected: Vec<ItemKey> = others.iter().map(|(_, key)| *key).collect();
    assert_eq!(expected.len(), 10);

    let store = Hooked::new(&store, |_, _| Ok(()));
    let record = Recorded::expect(&store).unwrap().record;
    let learned = Merge::learn(&store.store, &world.old, &world.new).unwrap();
    assert!(!learned.is_empty());
    let search = |merge: &Merge, provenances: &[Provenance]| -> Vec<ItemKey> {
        store.searched.lock().unwrap().clear();
        let filter = Filter { provenances: provenances.to_vec(), ..Filter::default() };
        let found = merge.search(&store, &record, &old, &new, 20, &filter).unwrap().remove(0);
        found.into_iter().map(|hit| hit.key).collect()
    };
    let deepest = |space: &str| {
        let searched = store.searched.lock().unwrap();
        searched.iter().filter(|(of, _)| of == space).map(|(_, k)| *k).max()
    };
    for merge in [&learned, &Merge::default()] {
        assert_eq!(search(merge, &[Provenance::Old, Provenance::Adapted]), expected);
        assert_eq!(deepest("old-model"), Some(80), "four candidates for every hit");
    }
    assert_eq!(search(&learned, &[]).len(), 20);
    assert_eq!(deepest("old-model"), Some(80));
    // Natives are judged by the new model alone.
    assert_eq!(search(&learned, &[Provenance::Native]).len(), 20);
    assert_eq!(deepest("old-model"), None);
}

#[test]
fn a_merged_search_is_the_old_search_until_a_scale_is_learned() {
    let (store, _) = backfilled(100, 60, Serving::Merged);
    let (old, new) = query();
    let gallery = common::gallery(&store, None);
    let both = [("old-model", &old), ("new-model", &new)];
    let answer = gallery.search(&both, 10, &Filter::default()).unwrap();
    assert_eq!(answer.spaces, ["old-model", "new-model"]);
    let hits = |found: &[Vec<Found>]| -> Vec<(ItemKey, f32)> {
        found[0].iter().map(|hit| (hit.key, hit.distance)).collect()
    };
    let plain = store.search("old-model", &old, 10, &Filter::default()).unwrap();
    assert_eq!(hits(&answer.found), hits(&plain));
    for calibrated in [false, true] {
        if calibrated {
            gallery.calibrate().unwrap();
            let answer = gallery.search(&both, 10, &Filter::default()).unwrap();
            assert_ne!(hits(&answer.found), hits(&plain), "natives are judged by the new model");
        }
        for (queries, missing) in [([("new-model", &new)], "old-model"), ([("old-model", &old)], "new-model")]
        {
            let error = gallery.search(&queries, 10, &Filter::default()).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
        }
    }
}

#[test]
fn the_scale_is_learned_from_a_random_sample_that_goes_first() {
    let (store, world) = backfilled(1000, 300, Serving::Mixed);
    let learned = || Merge::learn(&store, &world.old, &world.new).unwrap();
    let counts = || store.counts("new-model").unwrap();
    assert!(learned().is_empty(), "the worst 300 say nothing of the others");
    let front = |items: usize| -> Vec<ItemKey> {
        let records = store.scan(&Scan::new("new-model", Select::WorstFirst, items)).unwrap();
        records.iter().map(|record| record.item.key).collect()
    };
    let worst = front(700);
    switch(&store, &world.setup(), Serving::Merged, &Unobserved).unwrap();
    // The beginning of a shuffle of all items, of which some are native already; the others follow in their order.
    let first = front(700);
    let sampled = (0..=200).find(|&from| first[from..] == worst_of(&worst, &first[from..])).unwrap();
    assert!((100..200).contains(&sampled), "{sampled} of the 200 are not native yet");
    // What the application changes goes before it; a new plan leaves it where it is.
    store.put(&[common::item(7, 1)]).unwrap();
    let other = OrderSettings { policy: Policy::Random, seed: 9 };
    let replanned = UpgradeSetup { order: other, ..world.setup() };
    start(&store, &replanned, &Unobserved).unwrap();
    let changed = store.get(&[&common::id(7)]).unwrap()[0].as_ref().unwrap().key;
    let now = front(1 + sampled);
    assert_eq!(now[0], changed);
    let stays: Vec<ItemKey> = first[..sampled].iter().copied().filter(|&key| key != changed).collect();
    assert_eq!(now[1..=stays.len()], stays);

    let native = counts().native;
    let limits = Limits { budget: Some(sampled as u64 + 1), ..Limits::default() };
    world.backfill(&store, &TestEncoder::new(), limits).unwrap();
    assert_eq!(counts().native, native + sampled as u64 + 1);
    assert!(!learned().is_empty());
}

#[test]
fn a_scale_is_learned_where_many_items_can_never_be_native() {
    let (store, world, mut encoder) = (MemoryStore::new(), World::new(), TestEncoder::new());
    store.create_space(&common::old_space(), Provenance::Old).unwrap();
    let mut writes = Vec::new();
    for number in 0..400 {
        let mut write = common::item(number, 0);
        match number % 5 {
            0 => write.source = None,
            1 => encoder.broken.extend(write.source.clone()),
            _ => {}
        }
        writes.push(write);
    }
    store.put(&writes).unwrap();
    start(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Merged, &Unobserved).unwrap();
    // Nobody knows yet what the encoder will refuse; no place is spent on an item without a source.
    let adapted = Select::Provenance(Provenance::Adapted);
    let mut first = store.scan(&Scan::new("new-model", adapted, 400)).unwrap();
    first.retain(|record| {
        record
            .state
            .as_ref()
            .is_some_and(|state| state.priority.is_some_and(|place| place.band == QueueBand::Sample))
    });
    assert_eq!(first.len(), 160, "half of the 320 that have a source");
    assert!(first.iter().all(|record| record.item.source.is_some()));
    world.backfill(&store, &encoder, Limits::default()).unwrap();
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.native, counts.failed, counts.without_source), (240, 80, 80));
    assert!(!Merge::learn(&store, &world.old, &world.new).unwrap().is_empty());
}

/// Those of `worst` that are among `keys`, in the order of `worst`.
fn worst_of(worst: &[ItemKey], keys: &[ItemKey]) -> Vec<ItemKey> {
    worst.iter().copied().filter(|key| keys.contains(key)).collect()
}

#[test]
fn an_item_that_waits_in_the_second_upgrade_of_a_gallery_is_found() {
    let (store, world) = backfilled(100, 100, Serving::Mixed);
    finish(&store, &world.setup(), &Unobserved).unwrap();
    let third = Space::new("third-model", common::D_NEW, Distance::L2, false);
    let next = World::between(common::new_space(), third.clone());
    start(&store, &next.setup(), &Unobserved).unwrap();
    switch(&store, &next.setup(), Serving::Merged, &Unobserved).unwrap();
    let encoder = TestEncoder { space: Some(third), ..TestEncoder::new() };
    next.backfill(&store, &encoder, Limits { budget: Some(60), ..Limits::default() }).unwrap();
    // Native is what the model that is old by now calls its own vectors.
    let mut write = common::item(500, 0);
    let vector = new_model(write.source.as_ref().unwrap());
    write.vectors[0].space = "new-model".into();
    write.vectors[0].provenance = Provenance::Native;
    write.vectors[0].vector.clone_from(&vector);
    store.put(&[write]).unwrap();
    let merge = Merge::learn(&store, &next.old, &next.new).unwrap();
    assert!(!merge.is_empty());
    let query = Matrix::new(common::D_NEW, vector).unwrap();
    let record = Recorded::expect(&store).unwrap().record;
    let found = merge.search(&store, &record, &query, &query, 3, &Filter::default()).unwrap().remove(0);
    assert_eq!((found[0].id.as_str(), found[0].provenance), ("1500", Provenance::Old));
}

#[test]
fn the_scale_of_an_upgrade_is_not_that_of_the_next_one() {
    let (store, world) = backfilled(100, 60, Serving::Merged);
    let gallery = common::gallery(&store, None);
    gallery.calibrate().unwrap();
    assert!(!Merge::learn(&store, &world.old, &world.new).unwrap().is_empty());
    let (_, new) = query();
    finish(&store, &world.setup(), &Unobserved).unwrap();
    let third = Space::new("third-model", common::D_NEW, Distance::L2, false);
    let next = World::between(common::new_space(), third);
    start(&store, &next.setup(), &Unobserved).unwrap();
    switch(&store, &next.setup(), Serving::Merged, &Unobserved).unwrap();
    let both = [("new-model", &new), ("third-model", &new)];
    let answer = gallery.search(&both, 10, &Filter::default()).unwrap();
    assert_eq!(answer.spaces, ["new-model", "third-model"]);
    // Nothing is known of it yet, so it is the old search.
    let hits = |found: &[Vec<Found>]| -> Vec<(ItemKey, f32)> {
        found[0].iter().map(|hit| (hit.key, hit.distance)).collect()
    };
    let plain = store.search("new-model", &new, 10, &Filter::default()).unwrap();
    assert_eq!(hits(&answer.found), hits(&plain));
}

#[test]
fn queries_by_name_stay_right_when_the_next_upgrade_begins() {
    let (store, world) = backfilled(100, 100, Serving::Mixed);
    finish(&store, &world.setup(), &Unobserved).unwrap();
    let gallery = common::gallery(&store, None);
    let (old, new) = query();
    let known = [("old-model", &old), ("new-model", &new)];
    let finished = gallery.search(&known, 10, &Filter::default()).unwrap();
    assert_eq!(finished.spaces, ["new-model"]);
    assert_eq!(gallery.search(&[("new-model", &new)], 10, &Filter::default()).unwrap(), finished);

    let third = Space::new("third-model", common::D_NEW, Distance::L2, false);
    let next = World::between(common::new_space(), third);
    start(&store, &next.setup(), &Unobserved).unwrap();
    let begun = gallery.search(&known, 10, &Filter::default()).unwrap();
    assert_eq!(begun, finished, "what serves is as it was");
    switch(&store, &next.setup(), Serving::Merged, &Unobserved).unwrap();
    let error = gallery.search(&known, 10, &Filter::default()).unwrap_err();
    assert!(error.to_string().contains("third-model"), "{error}");
    let all = [("third-model", &new), ("old-model", &old), ("new-model", &new)];
    let merged = gallery.search(&all, 10, &Filter::default()).unwrap();
    assert_eq!(merged.spaces, ["new-model", "third-model"]);
    rollback(&store, &next.setup(), &Unobserved).unwrap();
    assert_eq!(gallery.search(&all, 10, &Filter::default()).unwrap(), finished);
}

#[test]
fn adapted_vectors_are_farther_by_the_handicap() {
    let store = backfilled(100, 60, Serving::Mixed).0;
    let gallery = common::gallery(&store, None);
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
        let found =
            common::gallery(&store, None).search(&queries, 5, &Filter::default()).unwrap().found.remove(0);
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
        finish(&store, &world.setup(), &Unobserved).unwrap();
        assert_eq!(Recorded::expect(&store).unwrap().record.handicap, kept);
    }
}

#[test]
fn the_next_upgrade_knows_the_handicap_of_what_the_last_one_left_adapted() {
    let (store, world) = backfilled(100, 60, Serving::Mixed);
    finish(&store, &world.setup(), &Unobserved).unwrap();
    let new = Matrix::new(common::D_NEW, new_model("a query")).unwrap();
    let mixed = || {
        let queries = [("new-model", &new)];
        common::gallery(&store, None).search(&queries, 20, &Filter::default()).unwrap().found
    };
    let before = mixed();

    // From the new model to a third one; what the gallery serves stays as it was.
    let next =
        World::between(common::new_space(), Space::new("third-model", common::D_NEW, Distance::L2, false));
    start(&store, &next.setup(), &Unobserved).unwrap();
    let queries = [("new-model", &new)];
    let during = common::gallery(&store, None).search(&queries, 20, &Filter::default()).unwrap().found;
    assert_eq!(during, before);
    let record = Recorded::expect(&store).unwrap().record;
    assert_eq!((record.old_handicap, record.handicap), (f64::from(HANDICAP), next.adapter.handicap));
    rollback(&store, &next.setup(), &Unobserved).unwrap();
    let after = common::gallery(&store, None).search(&queries, 20, &Filter::default()).unwrap().found;
    assert_eq!(after, before);
}
