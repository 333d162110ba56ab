//! Deaths at every named place, at several visits: die, begin again, finish. The final gallery equals the one
//! of an upgrade that never died.

use rehang_core::Result;
use rehang_sqlite::SqliteStore;
use rehang_store::Store;
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Limits, Observer, Place, Serving, Unobserved, Until, finish, rollback, start, switch};

use crate::common::{self, DieAt, ManualClock, TestEncoder, World, check, fill, snapshot};

const ITEMS: usize = 150;
const BATCH: usize = 8;

/// Makes a whole upgrade, rollback and second switch included; every part may be repeated.
fn upgrade(store: &dyn Store, world: &World, encoder: &TestEncoder, faults: &dyn Observer) -> Result<()> {
    let clock = ManualClock::default();
    let run = |until: Until| {
        let limits = Limits { batch: BATCH, workers: 2, until, rest_ms: 1, ..Limits::default() };
        world.backfill_observed(store, encoder, limits, &clock, faults)
    };
    start(store, &world.setup(), faults)?;
    run(Until::Fraction(0.3))?;
    switch(store, &world.setup(), Serving::Mixed, faults)?;
    // The application goes on writing: changed, new and deleted items.
    store.put(&[common::item(3, 1), common::item(ITEMS, 0), common::item(ITEMS + 1, 0)])?;
    store.delete(&[&common::id(5)])?;
    run(Until::Fraction(0.6))?;
    rollback(store, &world.setup(), faults)?;
    switch(store, &world.setup(), Serving::Fused, faults)?;
    run(Until::All)?;
    finish(store, &world.setup(), true, faults)?;
    Ok(())
}

/// Returns an encoder for which some items break, so that failures are recorded too.
fn encoder() -> TestEncoder {
    let mut encoder = TestEncoder { vouches_after: 24, ..TestEncoder::new() };
    encoder.broken = vec!["source 17 version 0".into(), "source 90 version 0".into()];
    encoder.flaky.get_mut().unwrap().insert("source 40 version 0".into(), 2);
    encoder
}

fn undisturbed(store: &dyn Store) -> Vec<String> {
    let (world, encoder) = (World::new(), encoder());
    fill(store, ITEMS);
    upgrade(store, &world, &encoder, &Unobserved).unwrap();
    check(store, &[common::adapter()]);
    assert_eq!(store.counts("new-model").unwrap().native, (ITEMS + 2 - 1 - 2) as u64);
    snapshot(store)
}

#[test]
fn whatever_it_dies_of_a_gallery_in_memory_ends_the_same() {
    die_everywhere(&[1, 2, 3, 7], |_| Box::new(MemoryStore::new()));
}

#[test]
fn whatever_it_dies_of_a_gallery_on_disk_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    die_everywhere(&[1, 3], |number| {
        Box::new(SqliteStore::create(folder.path().join(format!("{number}.db"))).unwrap())
    });
}

fn die_everywhere(visits: &[u64], make: impl Fn(usize) -> Box<dyn Store>) {
    let expected = undisturbed(make(0).as_ref());
    let mut number = 0;
    // Deaths of a refit are tested by the random histories and in `refit.rs`.
    let is_of_refit = |place: &Place| matches!(place, Place::RefitDecided | Place::RefitRecorded);
    for &place in Place::ALL.iter().filter(|place| !is_of_refit(place)) {
        let mut deaths = 0;
        for &visit in visits {
            number += 1;
            let (store, world, encoder) = (make(number), World::new(), encoder());
            let store = store.as_ref();
            fill(store, ITEMS);
            let dying = DieAt::new(place, visit);
            let outcome = upgrade(store, &world, &encoder, &dying);
            assert_eq!(outcome.is_err(), dying.died(), "{place:?} visit {visit}: {outcome:?}");
            if outcome.is_ok() {
                // The place is not visited that often.
                continue;
            }
            deaths += 1;
            check(store, &[common::adapter()]);
            // The next process starts from the beginning, on the same store. Whatever is done is not done
            // again.
            resume(store, &world, &encoder);
            check(store, &[common::adapter()]);
            assert_eq!(snapshot(store), expected, "{place:?} visit {visit}");
            // Three kinds of items are paid for twice at most: the batch that each of the two workers had
            // been given, items that were tried again on purpose, and one of eight that lay in documents.
            let twice = encoder.embedded.lock().unwrap().values().filter(|count| **count > 1).count();
            assert!(
                twice <= 2 * BATCH + 3 + (24 + 2 * BATCH) / 8,
                "{place:?} visit {visit}: {twice} embedded twice"
            );
        }
        assert!(deaths > 0, "{place:?} is never reached");
    }
}

/// Completes an upgrade after a death. The application's writes of the middle are made again where they are
/// missing: they are the application's business, and a death of ours must not lose those that were
/// acknowledged.
fn resume(store: &dyn Store, world: &World, encoder: &TestEncoder) {
    let done = rehang_upgrade::Recorded::read(store)
        .unwrap()
        .is_some_and(|recorded| recorded.record.phase == rehang_upgrade::Phase::Finished);
    if done {
        finish(store, &world.setup(), true, &Unobserved).unwrap();
        return;
    }
    let written = store.get(&[&common::id(ITEMS + 1)]).unwrap()[0].is_some();
    if written {
        start(store, &world.setup(), &Unobserved).unwrap();
        switch(store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        let limits = Limits { batch: BATCH, workers: 2, rest_ms: 1, ..Limits::default() };
        world.backfill(store, encoder, limits).unwrap();
        finish(store, &world.setup(), true, &Unobserved).unwrap();
    } else {
        upgrade(store, world, encoder, &Unobserved).unwrap();
    }
}
