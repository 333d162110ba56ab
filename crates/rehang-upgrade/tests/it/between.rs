//! Tests of what others do between two steps of a verb, or after it died there: applications that write,
//! operators that call another verb, and the next upgrade of the same gallery.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rehang_core::order::Policy;
use rehang_core::{Distance, Provenance, Remedy, Result, Space};
use rehang_sqlite::SqliteStore;
use rehang_store::{Files, ItemWrite, Ledger, Queue, Store};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Ending, Leftovers, Limits, Observer, OrderSettings, Phase, Place, Recorded,
    Request, Serving, Started, Summary, Unobserved, Until, UpgradeSetup, backfill, finish, request, rollback,
    start, status, switch,
};

use crate::common::{self, hooked::Hooked};
use crate::common::{D_NEW, DieAt, ManualClock, TestEncoder, World, check, fill, new_model, started};

const ITEMS: usize = 60;
/// Number of items that take two pages of a fill.
const PAGES: usize = 3000;

/// Observer that makes something happen at the first visit of a place.
struct At<F> {
    place: Place,
    act: F,
    happened: AtomicBool,
}

fn at<F: Fn() -> Result<()> + Send + Sync>(place: Place, act: F) -> At<F> {
    At { place, act, happened: AtomicBool::new(false) }
}

impl<F: Fn() -> Result<()> + Send + Sync> Observer for At<F> {
    fn reach(&self, place: Place) -> Result<()> {
        if place == self.place && !self.happened.swap(true, Ordering::SeqCst) {
            (self.act)()?;
        }
        Ok(())
    }
}

fn begin(store: &dyn Store, world: &World, faults: &dyn Observer) -> Result<Started> {
    start(store, &world.setup(), faults)
}

fn run(store: &MemoryStore, world: &World) -> Result<Summary> {
    world.backfill(store, &TestEncoder::new(), Limits::default())
}

fn switched() -> (MemoryStore, World) {
    let (store, world) = started(ITEMS);
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    (store, world)
}

/// Returns who made the vector of an item in a space; `None` where no search of it finds the item.
fn made_by(store: &MemoryStore, space: &str, number: usize) -> Option<Provenance> {
    let key = store.get(&[&common::id(number)]).unwrap()[0].as_ref().unwrap().key;
    store.provenances(space, &[key]).unwrap()[0]
}

#[test]
fn a_file_that_another_process_takes_for_a_dead_ones_leaves_no_chunk_of_its_first_write() {
    let large: Vec<u8> = (0..500_000_u32).map(|at| (at / 7 % 251) as u8).collect();
    // The directory is written first, then the chunks 0, 1 and 2, then the directory again.
    for moment in 1..=4 {
        let (store, writes) = (MemoryStore::new(), AtomicU64::new(0));
        let hooked = Hooked::new(&store, move |store, call| {
            if call == "set_document" && writes.fetch_add(1, Ordering::SeqCst) == moment {
                Files::in_ledger(store).retain(|_| true)?;
            }
            Ok(())
        });
        Files::in_ledger(&hooked).write("map", &large).unwrap();
        let has = |write: u64| -> Vec<bool> {
            let name = |at: u64| format!("chunk {at} of write {write}");
            (0..3).map(|at| store.chunk(&name(at)).unwrap().is_some()).collect()
        };
        assert_eq!((has(0), has(1)), (vec![false; 3], vec![true; 3]), "before write {moment}");
        assert_eq!(Files::in_ledger(&store).read("map").unwrap().as_ref(), Some(&large));
    }
}

#[test]
fn what_is_written_between_the_record_of_a_finish_and_its_drop_is_kept() {
    for dies in [false, true] {
        let (store, world) = switched();
        run(&store, &world).unwrap();
        // A changed and a new item are written by an application that knows of the upgrade, and by one that
        // does not.
        let write = || -> Result<()> {
            let gallery = common::gallery(&store);
            gallery.put(&[common::item(1, 1), common::item(ITEMS, 0)])?;
            store.put(&[common::item(2, 1), common::item(ITEMS + 1, 0)])?;
            Ok(())
        };
        let done = if dies {
            finish(&store, &world.setup(), true, &DieAt::new(Place::BeforeDrop, 1)).unwrap_err();
            write().unwrap();
            assert_eq!(made_by(&store, "new-model", 1), Some(Provenance::Adapted), "found at once");
            assert_eq!(status(&store, 0).unwrap().lag, 2);
            finish(&store, &world.setup(), true, &Unobserved).unwrap()
        } else {
            finish(&store, &world.setup(), true, &at(Place::BeforeDrop, write)).unwrap()
        };
        for number in [1, ITEMS, 2, ITEMS + 1] {
            assert_eq!(made_by(&store, "new-model", number), Some(Provenance::Adapted), "item {number}");
        }
        assert_eq!((done.counts.adapted, done.lacking), (4, 0));
        assert_eq!(store.spaces().unwrap().len(), 1);
        check(&store, std::slice::from_ref(&world.adapter));
    }
}

#[test]
fn a_finish_that_goes_on_with_another_adapter_drops_nothing() {
    let (store, world) = switched();
    finish(&store, &world.setup(), true, &DieAt::new(Place::BeforeDrop, 1)).unwrap_err();
    store.put(&[common::item(ITEMS, 0)]).unwrap();
    let other = World { adapter: common::other_adapter(), ..World::new() };
    let error = finish(&store, &other.setup(), true, &Unobserved).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("another adapter"), "{error}");
    assert_eq!(store.spaces().unwrap().len(), 2);
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
    check(&store, std::slice::from_ref(&world.adapter));
    // A death right after the drop leaves nothing to adapt, and nothing to ask an adapter for.
    let (store, world) = switched();
    finish(&store, &world.setup(), true, &DieAt::new(Place::AfterDrop, 1)).unwrap_err();
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
}

/// Runs a backfill that has no adapter, as after a finish.
fn run_without_adapter(store: &dyn Store, encoder: &TestEncoder, limits: Limits) -> Result<Summary> {
    let (scope, clock) = (BackfillScope::Gallery(None), ManualClock::default());
    backfill(&BackfillSetup { store, encoder, scope, limits, clock: &clock, worker: "later" }, &Unobserved)
}

#[test]
fn a_run_after_the_finish_embeds_what_it_left_and_what_came_since() {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::create(folder.path().join("gallery.db")).unwrap();
    for store in [&MemoryStore::new() as &dyn Store, &file] {
        let mut world = World::new();
        world.adapter.handicap = 0.25;
        fill(store, ITEMS);
        store.put(&[ItemWrite { source: None, ..common::item(ITEMS, 0) }]).unwrap();
        begin(store, &world, &Unobserved).unwrap();
        let error = run_without_adapter(store, &TestEncoder::new(), Limits::default()).unwrap_err();
        assert!(error.to_string().contains("no adapter is given"), "{error}");
        switch(store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        let half = Limits { until: Until::Fraction(0.5), ..Limits::default() };
        world.backfill(store, &TestEncoder::new(), half).unwrap();
        finish(store, &world.setup(), true, &Unobserved).unwrap();

        // The application goes on: a new and a changed item without any vector, and one that is gone.
        let bare = |number, version| ItemWrite { vectors: vec![], ..common::item(number, version) };
        store.put(&[bare(ITEMS + 1, 0), bare(2, 1)]).unwrap();
        store.delete(&[&common::id(7)]).unwrap();
        let before = store.counts("new-model").unwrap();
        assert_eq!(before.lacking, 2);
        // A pause is asked for, as before a finish.
        request(store, &world.old, &world.new, Request::Pause).unwrap();
        let error = run_without_adapter(store, &TestEncoder::new(), Limits::default()).unwrap_err();
        assert_eq!(error.remedy(), Some(&Remedy::ResumeBackfill), "{error}");
        request(store, &world.old, &world.new, Request::Run).unwrap();

        let encoder = TestEncoder::new();
        let done = run_without_adapter(store, &encoder, Limits::default()).unwrap();
        assert_eq!((done.ending, done.items, done.native), (Ending::NothingLeft, 61, 60));
        assert_eq!(u64::from(encoder.count()), before.items - before.native - before.without_source);
        let after = store.counts("new-model").unwrap();
        assert_eq!((after.adapted, after.lacking), (1, 0), "the item without a source");
        check(store, std::slice::from_ref(&world.adapter));
        assert_eq!(Recorded::expect(store).unwrap().record.handicap, 0.25, "of the one that is adapted");
        // A second run finds nothing to do; and once nothing is adapted, no search looks for adapted vectors.
        store.delete(&[&common::id(ITEMS)]).unwrap();
        let again = run_without_adapter(store, &TestEncoder::new(), Limits::default()).unwrap();
        assert_eq!((again.ending, again.done.native), (Ending::NothingLeft, 0));
        assert_eq!(Recorded::expect(store).unwrap().record.handicap, 0.0);
        // No pairs are drawn for an upgrade that is over.
        let (scope, clock, limits) = (BackfillScope::Sample(5), ManualClock::default(), Limits::default());
        let setup = BackfillSetup { store, encoder: &encoder, scope, limits, clock: &clock, worker: "pairs" };
        assert!(backfill(&setup, &Unobserved).unwrap_err().to_string().contains("finished"));
    }
}

#[test]
fn a_finish_that_would_leave_what_a_run_embeds_is_refused_before_anything_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::create(folder.path().join("gallery.db")).unwrap();
    for store in [&MemoryStore::new() as &dyn Store, &file] {
        let world = World::new();
        fill(store, ITEMS);
        // One item has no source; another has neither a source nor a vector.
        let bare = |number| ItemWrite { source: None, ..common::item(number, 0) };
        store.put(&[bare(ITEMS), ItemWrite { vectors: vec![], ..bare(ITEMS + 1) }]).unwrap();
        begin(store, &world, &Unobserved).unwrap();
        switch(store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        let most = Limits { budget: Some(50), ..Limits::default() };
        world.backfill(store, &TestEncoder::new(), most).unwrap();
        let refused = |left: Leftovers, words: &[&str]| {
            let record = Recorded::expect(store).unwrap().record;
            assert_eq!(Leftovers::read(store, &record).unwrap(), left);
            let error = finish(store, &world.setup(), false, &Unobserved).unwrap_err();
            assert_eq!(error.remedy(), Some(&Remedy::EmbedBeforeFinish), "{error}");
            for words in words {
                assert!(error.to_string().contains(words), "{words}: {error}");
            }
            assert_eq!(Recorded::expect(store).unwrap().record.phase, Phase::Filled);
            assert_eq!(store.spaces().unwrap().len(), 2, "nothing is dropped");
        };
        let all = Leftovers { with_source: 10, failed: 0, without_source: 2, lacking: 1, only_old: 0 };
        refused(all, &["10 items with a source", "1 items have no vector", "2 items have no source"]);
        // An item is found by nobody after the finish where the application wrote its source alone.
        world.backfill(store, &TestEncoder::new(), Limits::default()).unwrap();
        store.put(&[ItemWrite { vectors: vec![], ..common::item(5, 1) }]).unwrap();
        refused(Leftovers { with_source: 1, lacking: 2, ..all }, &["2 items have no vector"]);
        world.backfill(store, &TestEncoder::new(), Limits::default()).unwrap();
        // An item without a source never becomes native: that is no reason to refuse for ever.
        finish(store, &world.setup(), false, &Unobserved).unwrap();
        assert_eq!(store.counts("new-model").unwrap().native, ITEMS as u64);
        finish(store, &world.setup(), false, &Unobserved).unwrap();
    }
}

#[test]
fn an_old_vector_that_nothing_can_be_made_of_is_not_dropped_without_a_yes() {
    let cosine = |name: &str, width| Space::new(name, width, Distance::Cosine, false);
    let world = World::between(cosine("old-model", common::D_OLD), cosine("new-model", D_NEW));
    let store = MemoryStore::new();
    store.create_space(&world.old, Provenance::Old).unwrap();
    // None of the items has a source, and the old vector of one has no direction.
    let mut items: Vec<ItemWrite> =
        (0..5).map(|number| ItemWrite { source: None, ..common::item(number, 0) }).collect();
    items[3].vectors[0].vector.fill(0.0);
    store.put(&items).unwrap();
    begin(&store, &world, &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    let error = finish(&store, &world.setup(), false, &Unobserved).unwrap_err();
    assert!(error.to_string().contains("takes the old vectors of 1 of them"), "{error}");
    assert_eq!(store.spaces().unwrap().len(), 2);
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
}

#[test]
fn a_finish_that_goes_on_long_after_a_death_asks_once_more() {
    let (store, world) = switched();
    run(&store, &world).unwrap();
    finish(&store, &world.setup(), false, &DieAt::new(Place::BeforeDrop, 1)).unwrap_err();
    store.put(&[common::item(3, 1)]).unwrap();
    let error = finish(&store, &world.setup(), false, &Unobserved).unwrap_err();
    assert_eq!(error.remedy(), Some(&Remedy::EmbedBeforeFinish), "{error}");
    assert_eq!(store.spaces().unwrap().len(), 2);
    // A run helps: then the finish goes through.
    run_without_adapter(&store, &TestEncoder::new(), Limits::default()).unwrap();
    finish(&store, &world.setup(), false, &Unobserved).unwrap();
    assert_eq!(store.spaces().unwrap().len(), 1);
}

#[test]
fn a_run_that_a_finish_meets_goes_on_to_its_end() {
    let (store, world) = switched();
    let encoder = TestEncoder::new();
    let finishes = at(Place::BackfillWritten, || finish(&store, &world.setup(), true, &Unobserved).map(drop));
    let limits = Limits { batch: 4, ..Limits::default() };
    let done = world.backfill_observed(&store, &encoder, limits, &ManualClock::default(), &finishes).unwrap();
    assert_eq!(Recorded::expect(&store).unwrap().record.phase, Phase::Finished);
    assert_eq!((done.ending, done.native), (Ending::NothingLeft, ITEMS as u64));
    assert_eq!(encoder.count(), ITEMS as u32);
}

#[test]
fn a_start_that_is_planned_anew_meanwhile_gives_way() {
    let other = World { adapter: common::other_adapter(), ..World::new() };
    for place in [Place::FillRead, Place::FillWritten, Place::BeforeFilled] {
        let (store, world) = (MemoryStore::new(), World::new());
        fill(&store, PAGES);
        // The second start dies half-way, so that anything the first one still does would stay.
        let replan = || -> Result<()> {
            begin(&store, &other, &DieAt::new(Place::FillWritten, 1)).unwrap_err();
            Ok(())
        };
        let error = begin(&store, &world, &at(place, replan)).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains("planned anew"), "{place:?}: {error}");
        let record = Recorded::expect(&store).unwrap().record;
        assert_eq!((record.phase, record.adapted_before), (Phase::Filling, true), "{place:?}");
        switch(&store, &other.setup(), Serving::Mixed, &Unobserved).unwrap_err();
        begin(&store, &other, &Unobserved).unwrap();
        check(&store, std::slice::from_ref(&other.adapter));
        assert_eq!(store.counts("new-model").unwrap().adapted, PAGES as u64);
        switch(&store, &other.setup(), Serving::Mixed, &Unobserved).unwrap();
    }
}

#[test]
fn two_starts_of_one_plan_do_no_harm() {
    for place in [Place::FillRead, Place::FillWritten, Place::BeforeFilled] {
        let (store, world) = (MemoryStore::new(), World::new());
        fill(&store, PAGES);
        let again = || begin(&store, &world, &Unobserved).map(drop);
        begin(&store, &world, &at(place, again)).unwrap();
        assert_eq!(Recorded::expect(&store).unwrap().record.phase, Phase::Filled);
        assert_eq!(store.counts("new-model").unwrap().adapted, PAGES as u64);
    }
}

#[test]
fn a_start_that_is_rolled_back_meanwhile_says_so() {
    for place in [Place::FillRead, Place::BeforeFilled] {
        let (store, world) = (MemoryStore::new(), World::new());
        fill(&store, ITEMS);
        let back = || rollback(&store, &world.setup(), &Unobserved).map(drop);
        let error = begin(&store, &world, &at(place, back)).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains("rolled back"), "{place:?}: {error}");
        assert_eq!(Recorded::expect(&store).unwrap().record.phase, Phase::Abandoned);
        // Doing what the message says helps. A pause is no reason to give up.
        let pause = || request(&store, &world.old, &world.new, Request::Pause).map(drop);
        begin(&store, &world, &at(Place::BeforeFilled, pause)).unwrap();
        let record = Recorded::expect(&store).unwrap().record;
        assert_eq!((record.phase, record.request), (Phase::Filled, Request::Pause));
        switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    }
}

#[test]
fn a_rollback_beside_a_switch_wins() {
    // The rollback wins too where the upgrade was rolled back before, so that nothing of its record differs.
    for (place, once_before) in [Place::BeforeSwitch, Place::SwitchRecorded]
        .into_iter()
        .flat_map(|place| [(place, false), (place, true)])
    {
        let (store, world) = started(ITEMS);
        if once_before {
            rollback(&store, &world.setup(), &Unobserved).unwrap();
        }
        let back = || rollback(&store, &world.setup(), &Unobserved).map(drop);
        let error = switch(&store, &world.setup(), Serving::Mixed, &at(place, back)).unwrap_err();
        assert!(error.is_conflict(), "{place:?}: {error}");
        assert_eq!(store.serving().unwrap().as_deref(), Some("old-model"), "{place:?}");
        assert_eq!(Recorded::expect(&store).unwrap().record.phase, Phase::RolledBack, "{place:?}");
        switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        assert_eq!(store.serving().unwrap().as_deref(), Some("new-model"), "{place:?}");
    }
}

#[test]
fn what_comes_while_a_switch_catches_up_is_told_from_what_it_left() {
    let (store, world) = started(ITEMS);
    let bare = |number: usize| ItemWrite { vectors: Vec::new(), ..common::item(number, 0) };
    // Before the switch come one item that nothing can be adapted for and one that is caught up with; one
    // more of each comes meanwhile.
    store.put(&[bare(ITEMS), common::item(ITEMS + 1, 0)]).unwrap();
    let come = || store.put(&[bare(ITEMS + 2), common::item(ITEMS + 3, 0)]).map(drop);
    let switched = switch(&store, &world.setup(), Serving::Mixed, &at(Place::CatchUpWritten, come)).unwrap();
    assert_eq!((switched.caught_up, switched.lacking, switched.came), (1, 3, 2));
}

#[test]
fn what_is_written_while_the_new_space_serves_is_found_whatever_the_record_says() {
    // A rollback dies before searches go back: the one of an upgrade that is filled, and the one of an
    // upgrade that is being filled again.
    for refilling in [false, true] {
        let (store, mut world) = switched();
        if refilling {
            world.adapter = common::other_adapter();
            begin(&store, &world, &DieAt::new(Place::FillRead, 1)).unwrap_err();
        }
        rollback(&store, &world.setup(), &DieAt::new(Place::RolledBack, 1)).unwrap_err();
        let phase = Recorded::expect(&store).unwrap().record.phase;
        assert_eq!(phase, if refilling { Phase::Abandoned } else { Phase::RolledBack });
        assert_eq!(store.serving().unwrap().as_deref(), Some("new-model"));
        common::gallery(&store).put(&[common::item(3, 1)]).unwrap();
        assert_eq!(made_by(&store, "new-model", 3), Some(Provenance::Adapted));
        let error = finish(&store, &world.setup(), true, &Unobserved).unwrap_err();
        if refilling {
            assert_eq!(error.remedy(), Some(&Remedy::RollBackOrFill), "{error}");
            begin(&store, &world, &Unobserved).unwrap();
        } else {
            // An application that does not know of the upgrade writes an item that a backfill could not
            // embed.
            let write = ItemWrite { source: None, ..common::item(4, 1) };
            store.put(&[write]).unwrap();
            assert_eq!(run(&store, &world).unwrap().caught_up, 1);
            assert_eq!(made_by(&store, "new-model", 4), Some(Provenance::Adapted));
            assert_eq!(error.remedy(), Some(&Remedy::RollBackOrSwitch), "{error}");
            switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        }
        // Doing what the message says helps.
        finish(&store, &world.setup(), true, &Unobserved).unwrap();
    }
}

#[test]
fn a_gallery_that_is_kept_adapts_nothing_for_the_next_upgrade() {
    let space = |name: &str| Space::new(name, D_NEW, Distance::L2, false);
    let write = |number: usize, version: usize, space: &str, provenance: Provenance| {
        let mut write = common::item(number, version);
        write.vectors[0].space = space.into();
        write.vectors[0].vector = new_model(write.source.as_deref().unwrap());
        write.vectors[0].provenance = provenance;
        write
    };
    let store = MemoryStore::new();
    store.create_space(&space("first"), Provenance::Old).unwrap();
    let items: Vec<ItemWrite> = (0..ITEMS).map(|number| write(number, 0, "first", Provenance::Old)).collect();
    store.put(&items).unwrap();
    let world = World::between(space("first"), space("second"));
    begin(&store, &world, &Unobserved).unwrap();
    let kept = common::gallery(&store);
    kept.put(&[write(1, 1, "first", Provenance::Old)]).unwrap();
    assert_eq!(made_by(&store, "second", 1), Some(Provenance::Adapted));
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    finish(&store, &world.setup(), true, &Unobserved).unwrap();

    // The widths agree, so that the adapter of the upgrade before would go unnoticed.
    let mut next = World::between(space("second"), space("third"));
    next.adapter.map.mixer[0].bias[3] = 0.5;
    begin(&store, &next, &Unobserved).unwrap();
    kept.put(&[write(2, 1, "second", Provenance::Native)]).unwrap();
    assert_eq!(made_by(&store, "third", 2), Some(Provenance::Adapted), "by the adapter of now");
    let item = store.get(&[&common::id(2)]).unwrap().remove(0).unwrap();
    let vector = store.vectors("third", &[item.key]).unwrap().remove(0).unwrap().vector;
    assert_eq!(vector[3], new_model(item.source.as_deref().unwrap())[3] + 0.5);
}

#[test]
fn a_switch_that_catches_up_gives_way_to_another_adapter() {
    let (store, world) = started(ITEMS);
    let mut other = World::new();
    other.adapter = common::other_adapter();
    // An item lacks a vector when the switch begins; before it has one, somebody plans the upgrade anew.
    store.put(&[common::item(ITEMS + 1, 1)]).unwrap();
    let anew = || begin(&store, &other, &Unobserved).map(drop);
    let error = switch(&store, &world.setup(), Serving::Mixed, &at(Place::CatchUpRead, anew)).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("planned anew"), "{error}");
    assert_eq!(store.serving().unwrap().as_deref(), Some("old-model"));
}

fn other_world() -> World {
    World { adapter: common::other_adapter(), ..World::new() }
}

/// Plans the upgrade anew as another process would, in the moment between what a process has checked and what
/// it writes.
fn planned_anew(store: &MemoryStore) {
    begin(store, &other_world(), &Unobserved).unwrap();
}

#[test]
fn another_plan_between_check_and_write_leaves_vectors_of_one_adapter() {
    // A start is met while it fills, and while it writes places in the queue.
    for (call, items) in [("write_vectors", PAGES), ("set_priorities", ITEMS)] {
        let (store, world) = (MemoryStore::new(), World::new());
        fill(&store, items);
        let hooked = Hooked::before(&store, call, planned_anew);
        let order = OrderSettings { policy: Policy::Coverage, seed: 3 };
        let setup = UpgradeSetup { order, ..world.setup() };
        let error = start(&hooked, &setup, &Unobserved).unwrap_err();
        assert!(hooked.happened(), "{call}");
        assert!(error.to_string().contains("planned anew"), "{call}: {error}");
        check(&store, &[common::other_adapter()]);
        assert_eq!(store.counts("new-model").unwrap().adapted, items as u64);
    }
    // A start is met when it has filled, before its record says so.
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, ITEMS);
    let plans_anew = at(Place::BeforeFilled, || {
        planned_anew(&store);
        Ok(())
    });
    let error = start(&store, &world.setup(), &plans_anew).unwrap_err();
    assert!(error.to_string().contains("planned anew"), "{error}");
    check(&store, &[common::other_adapter()]);
    // A switch and a finish are met while they catch up.
    for verb in ["switch", "finish"] {
        let (store, world) = if verb == "switch" { started(ITEMS) } else { switched() };
        store.put(&[common::item(ITEMS, 0)]).unwrap();
        let hooked = Hooked::before(&store, "write_vectors", planned_anew);
        let error = match verb {
            "switch" => switch(&hooked, &world.setup(), Serving::Mixed, &Unobserved).map(drop),
            _ => finish(&hooked, &world.setup(), true, &Unobserved).map(drop),
        };
        let error = error.unwrap_err();
        assert!(hooked.happened() && error.to_string().contains("planned anew"), "{verb}: {error}");
        check(&store, &[common::other_adapter()]);
    }
    // A backfill that catches up gives way and goes on with its own work.
    let (store, world) = switched();
    store.put(&[common::item(ITEMS, 0)]).unwrap();
    let hooked = Hooked::before(&store, "write_vectors", planned_anew);
    let limits = Limits { budget: Some(5), ..Limits::default() };
    assert_eq!(world.backfill(&hooked, &TestEncoder::new(), limits).unwrap().done.native, 5);
    assert!(hooked.happened());
    check(&store, &[common::other_adapter()]);
}

#[test]
fn a_write_of_the_application_beside_another_plan_is_kept_and_adapted_by_its_map() {
    let (store, _) = switched();
    let hooked = Hooked::before(&store, "put", planned_anew);
    let write = common::item(1, 1);
    common::gallery(&hooked).put(&[write.clone(), common::item(ITEMS, 0)]).unwrap();
    assert!(hooked.happened());
    check(&store, &[common::other_adapter()]);
    assert_eq!(store.get(&[&write.id]).unwrap()[0].as_ref().unwrap().source, write.source);
    assert_eq!(made_by(&store, "new-model", 1), Some(Provenance::Adapted), "by the adapter of now");
    // An item that is written is found at once, whatever happens in between.
    let back = |store: &MemoryStore| {
        rollback(store, &other_world().setup(), &Unobserved).unwrap();
        switch(store, &other_world().setup(), Serving::Mixed, &Unobserved).unwrap();
    };
    let hooked = Hooked::before(&store, "put", back);
    common::gallery(&hooked).put(&[common::item(2, 1)]).unwrap();
    assert!(hooked.happened());
    assert_eq!(made_by(&store, "new-model", 2), Some(Provenance::Adapted));
}

#[test]
fn two_first_starts_with_two_adapters_leave_vectors_of_one() {
    // The second start comes when the first has written its record, or when it has made the space.
    for place in [Place::RecordWritten, Place::SpaceMade] {
        for dies_at in [None, Some(Place::RecordWritten), Some(Place::FillWritten)] {
            let (store, world) = (MemoryStore::new(), World::new());
            fill(&store, ITEMS);
            let second = || {
                let outcome = match dies_at {
                    None => begin(&store, &other_world(), &Unobserved),
                    Some(place) => begin(&store, &other_world(), &DieAt::new(place, 1)),
                };
                assert_eq!(outcome.is_err(), dies_at.is_some());
                Ok(())
            };
            let error = begin(&store, &world, &at(place, second)).unwrap_err();
            assert!(error.to_string().contains("planned anew"), "{place:?}: {error}");
            check(&store, &[common::other_adapter()]);
            begin(&store, &other_world(), &Unobserved).unwrap();
            check(&store, &[common::other_adapter()]);
            assert_eq!(store.counts("new-model").unwrap().adapted, ITEMS as u64);
        }
    }
}

#[test]
fn what_a_claim_leased_whose_answer_never_came_is_found_again() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, 40);
    start(&store, &world.setup(), &Unobserved).unwrap();
    let hooked = Hooked::before(&store, "claim", |store| {
        let lost = store.claim("new-model", Queue::All, "worker", 7, Duration::from_hours(1)).unwrap();
        assert_eq!(lost.records.len(), 7);
    });
    let encoder = TestEncoder::new();
    let done = world.backfill(&hooked, &encoder, Limits::default()).unwrap();
    assert!(hooked.happened());
    assert_eq!((done.ending, done.native, encoder.count()), (Ending::NothingLeft, 40, 40));
}
