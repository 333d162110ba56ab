//! Tests of the plain way: everything is embedded, then searches switch. Nothing is mapped.

use rehang_core::{Provenance, Result};
use rehang_sqlite::SqliteStore;
use rehang_store::{Ledger, Store};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Ending, Gallery, Left, Limits, Observer, Phase, Place, Recorded, Serving,
    Summary, Unobserved, UpgradeSetup, backfill, finish, left, plan, put_back, rollback, start, status,
    switch,
};

use crate::common::{
    self, DieAt, ManualClock, TestEncoder, World, check, fill, id, item, new_model, snapshot,
};

const ITEMS: usize = 60;
const BATCH: usize = 8;

fn plain(world: &World) -> UpgradeSetup<'_> {
    UpgradeSetup { adapter: None, ..world.setup() }
}

fn run(
    store: &dyn Store,
    encoder: &TestEncoder,
    budget: Option<u64>,
    faults: &dyn Observer,
) -> Result<Summary> {
    let limits = Limits { batch: BATCH, budget, rest_ms: 1, ..Limits::default() };
    let (scope, clock) = (BackfillScope::Gallery(None), &ManualClock::default());
    backfill(&BackfillSetup { store, encoder, scope, limits, clock, worker: "worker" }, faults)
}

fn stores(folder: &tempfile::TempDir) -> Vec<Box<dyn Store>> {
    let on_disk = SqliteStore::create(folder.path().join("G.db")).unwrap();
    vec![Box::new(MemoryStore::new()), Box::new(on_disk)]
}

/// Whether a search by the new model finds an item, and finds it first.
fn is_found(store: &dyn Store, source: &str, number: usize) -> bool {
    let query = rehang_core::Matrix::new(common::D_NEW, new_model(source)).unwrap();
    let found = store
        .search(&store.serving().unwrap().unwrap(), &query, 1, &rehang_store::Filter::default())
        .unwrap();
    found[0].first().is_some_and(|hit| hit.id == id(number))
}

#[test]
fn everything_is_embedded_once_and_searches_switch_and_go_back_and_forth() {
    let folder = tempfile::tempdir().unwrap();
    for store in stores(&folder) {
        let store = &*store;
        let (world, encoder) = (World::new(), TestEncoder::new());
        fill(store, ITEMS);
        let outlook = plan(store, &plain(&world)).unwrap();
        assert_eq!((outlook.plain, outlook.to_adapt, outlook.to_embed), (true, 0, ITEMS as u64));
        let started = start(store, &plain(&world), &Unobserved).unwrap();
        assert_eq!((started.plain, started.adapted, started.lacking), (true, 0, ITEMS as u64));
        assert_eq!(store.serving().unwrap().as_deref(), Some("old-model"));
        assert_eq!(run(store, &encoder, Some(20), &Unobserved).unwrap().ending, Ending::SpentBudget);
        // Items that the application writes meanwhile are no more than further items to embed.
        store.put(&[item(3, 1), item(ITEMS, 0)]).unwrap();
        store.delete(&[&id(5)]).unwrap();
        assert_eq!(run(store, &encoder, None, &Unobserved).unwrap().ending, Ending::NothingLeft);
        let counts = store.counts("new-model").unwrap();
        assert_eq!((counts.native, counts.adapted, counts.lacking), (ITEMS as u64, 0, 0));
        check(store, &[]);
        assert!(
            encoder.embedded.lock().unwrap().values().all(|&times| times == 1),
            "nothing is paid for twice"
        );
        let switched = switch(store, &plain(&world), Serving::Mixed, &Unobserved).unwrap();
        assert_eq!((switched.serving.as_str(), switched.lacking), ("new-model", 0));
        assert!(is_found(store, "source 3 version 1", 3));

        // From the switch on a new item waits to be embedded, and is said to.
        store.put(&[item(7, 1)]).unwrap();
        let stands = status(store, 0).unwrap();
        assert_eq!((stands.plain, stands.lag, stands.without_vector), (true, 0, 1));
        assert_eq!(left(store, Left::WithoutVector, None, 10).unwrap().0, [id(7)]);
        assert!(!is_found(store, "source 7 version 1", 7));
        assert_eq!(run(store, &encoder, None, &Unobserved).unwrap().done.native, 1);
        assert!(is_found(store, "source 7 version 1", 7));

        // Searches would lose items that are put back, so that comes before the switch or after a rollback.
        assert!(put_back(store, &plain(&world), &Unobserved).unwrap_err().is_conflict());
        rollback(store, &plain(&world), &Unobserved).unwrap();
        assert_eq!(store.serving().unwrap().as_deref(), Some("old-model"));
        assert_eq!(put_back(store, &plain(&world), &Unobserved).unwrap(), ITEMS as u64);
        assert_eq!(run(store, &encoder, None, &Unobserved).unwrap().done.native, ITEMS as u64);
        switch(store, &plain(&world), Serving::Mixed, &Unobserved).unwrap();
        let done = finish(store, &plain(&world), false, &Unobserved).unwrap();
        assert_eq!((done.counts.native, done.lacking), (ITEMS as u64, 0));
        assert_eq!(Recorded::expect(store).unwrap().record.phase, Phase::Finished);
        check(store, &[]);
    }
}

#[test]
fn items_of_which_none_has_an_old_vector_are_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    for store in stores(&folder) {
        let store = &*store;
        let (world, encoder) = (World::new(), TestEncoder::new());
        store.create_space(&world.old, Provenance::Old).unwrap();
        let bare = |number| rehang_store::ItemWrite { vectors: Vec::new(), ..item(number, 0) };
        store.put(&[bare(0), bare(1), bare(2)]).unwrap();
        start(store, &plain(&world), &Unobserved).unwrap();
        run(store, &encoder, None, &Unobserved).unwrap();
        switch(store, &plain(&world), Serving::Mixed, &Unobserved).unwrap();
        assert!(is_found(store, "source 1 version 0", 1));
        finish(store, &plain(&world), false, &Unobserved).unwrap();
    }
}

#[test]
fn a_write_through_the_application_is_not_adapted() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, 3);
    start(&store, &plain(&world), &Unobserved).unwrap();
    // Nothing is used of an adapter that the application still has.
    let gallery: Gallery = common::gallery(&store);
    gallery.put(&[item(3, 0)]).unwrap();
    let counts = store.counts("new-model").unwrap();
    assert_eq!((counts.adapted, counts.lacking), (0, 4));
}

#[test]
fn a_map_and_no_map_are_told_apart() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, ITEMS);
    start(&store, &plain(&world), &Unobserved).unwrap();
    run(&store, &TestEncoder::new(), Some(16), &Unobserved).unwrap();
    // Verbs with a map refuse a plain upgrade. Only a start goes over to the map, and keeps every native
    // vector.
    let error = world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("plain"), "{error}");
    assert!(switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap_err().is_conflict());
    let fused = switch(&store, &plain(&world), Serving::Fused, &Unobserved).unwrap_err();
    assert!(fused.to_string().contains("fused"), "{fused}");
    let mapped = start(&store, &world.setup(), &Unobserved).unwrap();
    assert_eq!((mapped.adapted, mapped.replanned, mapped.plain), (ITEMS as u64 - 16, true, false));
    check(&store, &[common::adapter()]);
    // The way back is closed: nothing would know the handicap of the adapted vectors.
    let before = snapshot(&store);
    let error = start(&store, &plain(&world), &Unobserved).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("44 items"), "{error}");
    assert_eq!(snapshot(&store), before);
    let error = run(&store, &TestEncoder::new(), None, &Unobserved).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("by a map"), "{error}");
    world.backfill(&store, &TestEncoder::new(), Limits::default()).unwrap();
    // With nothing adapted any more, a map and no map are the same.
    assert!(start(&store, &plain(&world), &Unobserved).unwrap().plain);
    switch(&store, &plain(&world), Serving::Mixed, &Unobserved).unwrap();
}

/// Makes a whole plain upgrade; every part may be repeated.
fn upgrade(store: &dyn Store, world: &World, encoder: &TestEncoder, faults: &dyn Observer) -> Result<()> {
    start(store, &plain(world), faults)?;
    run(store, encoder, Some(24), faults)?;
    if store.get(&[&id(ITEMS)])?[0].is_none() {
        store.put(&[item(3, 1), item(ITEMS, 0)])?;
        store.delete(&[&id(5)])?;
    }
    run(store, encoder, None, faults)?;
    switch(store, &plain(world), Serving::Mixed, faults)?;
    rollback(store, &plain(world), faults)?;
    switch(store, &plain(world), Serving::Mixed, faults)?;
    finish(store, &plain(world), false, faults)?;
    Ok(())
}

#[test]
fn whatever_it_dies_of_the_gallery_ends_the_same() {
    let whole = MemoryStore::new();
    fill(&whole, ITEMS);
    upgrade(&whole, &World::new(), &TestEncoder::new(), &Unobserved).unwrap();
    let expected = snapshot(&whole);
    let mut died = 0;
    for &place in Place::ALL {
        for visit in [1, 2, 3] {
            let (store, world, encoder) = (MemoryStore::new(), World::new(), TestEncoder::new());
            fill(&store, ITEMS);
            let faults = DieAt::new(place, visit);
            let outcome = upgrade(&store, &world, &encoder, &faults);
            assert_eq!(outcome.is_err(), faults.died(), "{place:?} {visit}");
            if !faults.died() {
                continue;
            }
            died += 1;
            let recorded = Recorded::read(&store).unwrap();
            if recorded.is_some_and(|recorded| recorded.record.phase == Phase::Finished) {
                finish(&store, &plain(&world), false, &Unobserved).unwrap();
            } else {
                upgrade(&store, &world, &encoder, &Unobserved).unwrap();
            }
            assert_eq!(snapshot(&store), expected, "{place:?} {visit}");
            // A death costs a batch at most.
            let again: u32 = encoder.embedded.lock().unwrap().values().map(|&times| times - 1).sum();
            assert!(again as usize <= BATCH, "{place:?} {visit}: {again} were paid for twice");
        }
    }
    assert!(died > 20, "{died}");
}
