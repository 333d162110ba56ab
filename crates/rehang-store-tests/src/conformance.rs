//! Suite of everything that a store must do: any implementation of the contracts can run it, also one outside
//! of this repository.
//!
//! A [`Bench`] says how galleries are opened and how time passes; [`suite`] does the rest and panics with the
//! promise that is broken. For a store in memory:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use rehang_store_tests::conformance::{Bench, suite};
//! use rehang_store::ManualLeaseClock;
//! use rehang_store_tests::MemoryStore;
//!
//! #[derive(Default)]
//! struct Memory {
//!     galleries: Mutex<BTreeMap<String, MemoryStore>>,
//!     clock: ManualLeaseClock,
//! }
//!
//! impl Bench for Memory {
//!     type Store = MemoryStore;
//!
//!     fn open(&self, gallery: &str) -> MemoryStore {
//!         let mut galleries = self.galleries.lock().unwrap();
//!         let new = || MemoryStore::new().with_clock(Arc::new(self.clock.clone()));
//!         galleries.entry(gallery.to_owned()).or_insert_with(new).clone()
//!     }
//!
//!     fn pass(&self, time: Duration) {
//!         self.clock.pass(time);
//!     }
//! }
//!
//! suite(&Memory::default());
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rehang_core::{Distance, ErrorKind, Matrix, Provenance, Result, Space};
use rehang_store::{
    ALONE_AFTER, Among, AtWork, Counts, Epoch, Files, Filter, Found, Item, ItemKey, ItemWrite, NewVector,
    Priority, Queue, QueueBand, Record, Revision, Sample, Scan, Select, Store, VectorWrite, WriteOutcome,
};
use serde_json::json;

/// Test bench of a store: it opens galleries and lets time pass.
pub trait Bench {
    /// The store.
    type Store: Store;

    /// Opens a gallery by name: a new, empty one at the first call with a name, and another handle on the
    /// same gallery at every further one.
    fn open(&self, gallery: &str) -> Self::Store;

    /// Lets time pass by the clock that leases run out by; a store with a clock of its own may sleep.
    fn pass(&self, time: Duration);
}

/// Level of the contracts that a store keeps. Every promise belongs to one level; a store keeps those of its
/// level and of all below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContractLevel {
    /// Promises about one item, one space and one document, however many write.
    ///
    /// Of a call with many items, some may be written when it fails or another reader looks. An item is known
    /// by the application's own id, also when it was deleted and comes back.
    PerItem,
    /// All other promises: a call is one transaction, and a key is never used again.
    Transactional,
}

/// Runs all promises of the contracts.
///
/// # Panics
///
/// Where a promise is not kept: the message says which one.
pub fn suite<B: Bench>(bench: &B) {
    suite_of(bench, ContractLevel::Transactional);
}

/// Runs the promises of the contracts up to a level.
///
/// # Panics
///
/// Where a promise is not kept: the message says which one.
pub fn suite_of<B: Bench>(bench: &B, level: ContractLevel) {
    let is_kept = |of: ContractLevel| of <= level;
    for (at, (of, promise)) in PROMISES.into_iter().enumerate() {
        if is_kept(of) {
            promise(&bench.open(&format!("gallery-{at}")));
        }
    }
    for (at, promise) in PROMISES_OF_TWO.into_iter().enumerate() {
        let open = || bench.open(&format!("shared-gallery-{at}"));
        promise(&open(), &open(), &|time| bench.pass(time));
    }
}

/// Promise about one handle on a gallery.
type One = fn(&dyn Store);

const PROMISES: [(ContractLevel, One); 27] = [
    (ContractLevel::PerItem, an_empty_gallery_answers),
    (ContractLevel::PerItem, spaces_are_made_once_and_dropped),
    (ContractLevel::PerItem, the_serving_space_is_switched_in_one_step),
    (ContractLevel::PerItem, a_put_is_a_change_of_content),
    (ContractLevel::PerItem, what_a_source_paid_for_stays_with_it),
    (ContractLevel::Transactional, what_comes_back_has_what_was_paid_for),
    (ContractLevel::PerItem, what_is_on_its_way_meets_the_source_it_was_made_from),
    (ContractLevel::PerItem, without_a_source_nothing_is_the_same),
    (ContractLevel::PerItem, a_put_is_all_or_nothing),
    (ContractLevel::PerItem, revisions_are_never_given_twice),
    (ContractLevel::Transactional, keys_are_never_given_twice),
    (ContractLevel::PerItem, conditional_writes_do_no_harm),
    (ContractLevel::PerItem, vectors_are_checked_at_the_door),
    (ContractLevel::PerItem, what_has_no_direction_is_near_to_nothing),
    (ContractLevel::PerItem, scans_select_and_page),
    (ContractLevel::PerItem, the_worst_come_first),
    (ContractLevel::PerItem, failures_are_set_aside),
    (ContractLevel::PerItem, searches_are_exact_enough_fresh_and_filtered),
    (ContractLevel::PerItem, errors_are_newest_first),
    (ContractLevel::PerItem, documents_are_compared_and_set),
    (ContractLevel::PerItem, files_are_there_whole_or_not_at_all),
    (ContractLevel::PerItem, two_workers_never_harm),
    (ContractLevel::PerItem, questions_are_answered_without_a_walk),
    (ContractLevel::PerItem, samples_are_uniform_and_stable),
    (ContractLevel::PerItem, what_an_earlier_plan_writes_is_refused),
    (ContractLevel::PerItem, natives_are_forgotten_where_they_can_be_made_again),
    (ContractLevel::PerItem, an_id_is_one_line),
];

/// Promise about two handles on one gallery, and how time passes.
type Two = fn(&dyn Store, &dyn Store, &dyn Fn(Duration));

const PROMISES_OF_TWO: [Two; 6] = [
    what_one_handle_writes_the_other_sees,
    an_item_is_leased_to_one_worker,
    a_lease_ends_with_what_it_was_for,
    a_lease_outlives_a_write_of_the_old_vector,
    what_its_workers_end_with_goes_alone,
    a_plan_fences_every_handle,
];

const OLD: &str = "old-model";
const NEW: &str = "new-model";

fn an_empty_gallery_answers(store: &dyn Store) {
    assert!(!store.name().is_empty(), "a store has a name");
    assert_eq!(store.spaces(), Ok(vec![]), "a new gallery has no spaces");
    assert_eq!(store.serving(), Ok(None), "a new gallery serves nothing");
    assert_eq!(store.get(&["nobody"]), Ok(vec![None]), "an unknown id gives None");
    assert_eq!(store.delete(&["nobody"]), Ok(0), "an unknown id is passed over");
    assert_eq!(store.put(&[]), Ok(vec![]), "nothing written gives no revisions");
    assert_eq!(store.document("nothing"), Ok(None), "an unknown document gives None");
    assert_eq!(store.drop_space("nothing"), Ok(()), "dropping a space that does not exist is fine");
    let not_found = |what: &str, result: Result<()>| {
        let error = result.expect_err(&format!("{what} of an unknown space must fail"));
        assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{what}: {error}");
        assert!(error.to_string().contains("nothing"), "{what}: the error names the space: {error}");
    };
    let query = matrix(&[[1.0, 0.0]]);
    let (key, first) = (ItemKey::from(1), Priority::ordinary(1.0));
    not_found("vectors", store.vectors("nothing", &[key]).map(drop));
    not_found("provenances", store.provenances("nothing", &[key]).map(drop));
    not_found("write_vectors", store.write_vectors("nothing", None, &[native(key, 1, [1.0, 0.0])]).map(drop));
    not_found("set_priorities", store.set_priorities("nothing", Epoch::FIRST, &[(key, 1, first)]).map(drop));
    not_found("advance", store.advance("nothing", Epoch::FIRST, "plan", None, "x").map(drop));
    assert_eq!(store.document("plan"), Ok(None), "an epoch that does not begin writes no document");
    not_found("sample", store.sample(&sample("nothing", Among::All, 1)).map(drop));
    not_found("count_lag", store.count_lag("nothing", "nothing").map(drop));
    not_found("claim", store.claim("nothing", Queue::All, "worker", 1, LEASE).map(drop));
    not_found("renew", store.renew("nothing", "worker", LEASE).map(drop));
    not_found("release", store.release("nothing", "worker", None).map(drop));
    not_found("at_work", store.at_work("nothing").map(drop));
    not_found("scan", store.scan(&Scan::new("nothing", Select::All, 1)).map(drop));
    not_found("search", store.search("nothing", &query, 1, &Filter::default()).map(drop));
    not_found("counts", store.counts("nothing").map(drop));
    not_found("record_failures", store.record_failures("nothing", &[(key, 1, "x".into())]));
    not_found("failures", store.failures("nothing", None, 1).map(drop));
    not_found("clear_failures", store.clear_failures("nothing").map(drop));
    not_found("errors", store.errors("nothing", 1).map(drop));
    not_found("recall", store.recall("nothing", 1, 1).map(drop));
    not_found("rebuild", store.rebuild("nothing"));
    not_found("put", store.put(&[write("a", Some("a"), &[("nothing", [1.0, 0.0])])]).map(drop));
    assert_eq!(store.get(&["a"]), Ok(vec![None]), "a put that failed wrote nothing");
    assert_eq!(store.newest_revision(), Ok(0), "no item, no revision");
    assert_eq!(store.count_without_source(), Ok(0));
    assert_eq!(store.serving_and_document("nothing"), Ok((None, None)));
    assert_eq!(store.flush(), Ok(()), "flushing an empty store is fine");
    store.create_space(&space(OLD), Provenance::Old).unwrap();
    not_found("vectors_of", store.scan(&Scan::new(OLD, Select::All, 1).with_vectors_of("nothing")).map(drop));
    assert_eq!(store.counts(OLD), Ok(Counts::default()), "nothing is counted in an empty space");
    let hits = store.search(OLD, &query, 3, &Filter::default());
    assert_eq!(hits, Ok(vec![vec![]]), "a search in an empty space finds nothing");
    assert_eq!(store.recall(OLD, 5, 5), Ok(1.0), "nothing is missed where nothing is");
}

fn spaces_are_made_once_and_dropped(store: &dyn Store) {
    store.create_space(&space(OLD), Provenance::Old).unwrap();
    assert_eq!(store.create_space(&space(OLD), Provenance::Old), Ok(()), "the very same space again is fine");
    let other = Space::new(OLD, 3, Distance::L2, false);
    let error = store.create_space(&other, Provenance::Old).expect_err("a name has one meaning");
    assert!(error.is_conflict(), "another space of the same name is a conflict: {error}");
    let error = store.create_space(&space(OLD), Provenance::Native).expect_err("a name has one meaning");
    assert!(error.is_conflict(), "another provenance of the same space is a conflict: {error}");
    assert!(store.create_space(&space("x"), Provenance::Adapted).is_err(), "nobody writes adapted vectors");
    assert!(
        store.create_space(&Space::new("x", 0, Distance::L2, false), Provenance::Old).is_err(),
        "a space has coordinates"
    );
    store.create_space(&space(NEW), Provenance::Native).unwrap();
    let names =
        || -> Vec<String> { store.spaces().unwrap().into_iter().map(|record| record.space.name).collect() };
    assert_eq!(names(), [OLD, NEW], "spaces are listed in the order of creation");
    let records = store.spaces().unwrap();
    assert_eq!(records[0].space, space(OLD), "a space comes back as it was made");
    assert_eq!(records[1].written_as, Provenance::Native, "and so does its provenance");
    store.put(&[write("a", None, &[(OLD, [1.0, 0.0]), (NEW, [0.0, 1.0])])]).unwrap();
    assert_eq!(records[0].epoch, Epoch::FIRST, "a space begins in its first epoch");
    assert!(store.drop_space(OLD).expect_err("it serves").is_conflict(), "the serving space is not dropped");
    store.drop_space(NEW).unwrap();
    assert_eq!(names(), [OLD]);
    store.create_space(&space(NEW), Provenance::Native).unwrap();
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.native, counts.lacking), (0, 1), "a dropped space leaves no vector behind");
}

fn the_serving_space_is_switched_in_one_step(store: &dyn Store) {
    two_spaces(store);
    assert_eq!(store.serving(), Ok(Some(OLD.into())), "the first space that is made serves");
    let error = store.switch_serving(OLD, "nothing").expect_err("there is no such space");
    assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{error}");
    assert!(store.switch_serving("nothing", NEW).expect_err("another one serves").is_conflict());
    assert_eq!(store.switch_serving(OLD, NEW), Ok(()));
    assert_eq!(store.serving(), Ok(Some(NEW.into())));
    assert_eq!(store.switch_serving(OLD, NEW), Ok(()), "a switch that has happened already is fine");
    assert!(store.drop_space(NEW).is_err(), "the serving space is not dropped");
    assert_eq!(store.drop_space(OLD), Ok(()), "the other one can be dropped now");
}

fn a_put_is_a_change_of_content(store: &dyn Store) {
    two_spaces(store);
    let mut first = write("a", Some("a.jpg"), &[(OLD, [1.0, 0.0])]);
    first.label = Some("cat".into());
    first.payload = json!({"rooms": 3, "tags": ["x", null]});
    let revision = store.put(&[first]).unwrap()[0];
    let item = store.get(&["a"]).unwrap().remove(0).expect("what was put is there");
    assert_eq!((item.id.as_str(), item.revision), ("a", revision));
    assert_eq!(item.source.as_deref(), Some("a.jpg"));
    assert_eq!(item.label.as_deref(), Some("cat"));
    assert_eq!(item.payload, json!({"rooms": 3, "tags": ["x", null]}), "a payload comes back as it was");
    let outcome = write_to(store, NEW, &[adapted(item.key, revision, [0.0, 1.0], 0.5, 1.0)]);
    assert_eq!(outcome, Ok(vec![WriteOutcome::Written]));
    store.record_failures(NEW, &[(item.key, revision, "no".into())]).unwrap();

    let again = store.put(&[write("a", Some("b.jpg"), &[(OLD, [0.0, 1.0])])]).unwrap()[0];
    assert!(again != revision, "a new write has a new revision");
    let changed = store.get(&["a"]).unwrap().remove(0).expect("it is still there");
    assert_eq!((changed.key, changed.label), (item.key, None), "the key stays, what is not given is gone");
    assert_eq!(store.vectors(NEW, &[item.key]), Ok(vec![None]), "a vector of the content before is removed");
    let vector = store.vectors(OLD, &[item.key]).unwrap().remove(0).expect("the new one is there");
    assert_eq!((vector.vector, vector.revision), (vec![0.0, 1.0], again));
    assert_eq!(vector.provenance, Provenance::Old);
    assert_eq!(store.failures(NEW, None, 9), Ok(vec![]), "a failure of the content before is forgotten");

    let twice = [write("b", None, &[(OLD, [1.0, 0.0])]), write("b", Some("last"), &[])];
    let revisions = store.put(&twice).unwrap();
    assert!(revisions[0] != revisions[1], "an id that is twice in a call is written twice");
    let b = store.get(&["b"]).unwrap().remove(0).expect("b is there");
    assert_eq!((b.source.as_deref(), b.revision), (Some("last"), revisions[1]), "the last one stays");
    assert_eq!(store.vectors(OLD, &[b.key]), Ok(vec![None]), "and its vectors are those of the last one");
    assert_eq!(store.delete(&["b", "b", "nobody"]), Ok(1), "who existed is counted once");
    assert_eq!(store.vectors(OLD, &[b.key]), Ok(vec![None]));
}

fn what_a_source_paid_for_stays_with_it(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let (b, b1) = put_one(store, "b", Some("b"));
    let mut paid = native(a, a1, [0.6, 0.8]);
    paid.squared_error = Some(0.75);
    write_to(store, NEW, &[adapted(a, a1, [1.0, 0.0], 0.5, 1.0), adapted(b, b1, [1.0, 0.0], 0.5, 1.0)])
        .unwrap();
    write_to(store, NEW, &[paid]).unwrap();
    let of = |space: &str, key: ItemKey| store.vectors(space, &[key]).unwrap().remove(0);
    let item = |id: &str| store.get(&[id]).unwrap().remove(0).expect("it was put");
    let old_again =
        |id: &str, vector: [f32; 2]| store.put(&[write(id, Some(id), &[(OLD, vector)])]).unwrap()[0];

    let (a2, b2) = (old_again("a", [0.0, 1.0]), old_again("b", [0.0, 1.0]));
    assert_eq!(
        (item("a").revision, item("a").source_revision),
        (a2, a1),
        "the source came with the first write"
    );
    let stayed = of(NEW, a).expect("a native vector depends on the source alone");
    assert_eq!((stayed.vector, stayed.provenance, stayed.revision), (vec![0.6, 0.8], Provenance::Native, a2));
    assert_eq!((stayed.sigma2, stayed.squared_error), (Some(0.5), Some(0.75)), "with what is known of it");
    assert_eq!(of(OLD, a).expect("it was written").vector, [0.0, 1.0]);
    assert_eq!(of(NEW, b), None, "an adapted vector was made of the old one before");
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.native, counts.adapted, counts.lacking), (1, 0, 1));
    let queue = store.scan(&Scan::new(NEW, Select::Queued, 9)).unwrap();
    assert_eq!(
        queue.iter().map(|record| record.item.id.as_str()).collect::<Vec<_>>(),
        ["b"],
        "it waits again"
    );
    let hits = store.search(NEW, &matrix(&[[0.6, 0.8]]), 9, &Filter::default()).unwrap().remove(0);
    let hits: Vec<_> = hits.iter().map(|hit| (hit.key, hit.provenance, hit.revision)).collect();
    assert_eq!(hits, [(a, Provenance::Native, a2)], "searches find what stayed, and nothing else");
    assert_eq!(store.errors(NEW, 9), Ok(vec![(0.5, 0.75)]));
    let outcome = write_to(store, NEW, &[adapted(b, b2, [0.0, 1.0], 0.25, 2.0)]);
    assert_eq!(outcome, Ok(vec![WriteOutcome::Written]), "and the new old vector is adapted");

    // An application that writes an adapted vector along, as a gallery with an adapter does, replaces no
    // native one.
    let mut with_adapted = write("a", Some("a"), &[(OLD, [1.0, 0.0])]);
    with_adapted.vectors.push(NewVector {
        provenance: Provenance::Adapted,
        sigma2: Some(1.0),
        priority: Some(Priority::ordinary(1.0)),
        epoch: Some(epoch_of(store, NEW)),
        ..new_vector(NEW, [9.0, 9.0])
    });
    store.put(&[with_adapted.clone()]).unwrap();
    assert_eq!(of(NEW, a).expect("it stays").vector, [0.6, 0.8]);
    store.put(&[ItemWrite { id: "b".into(), source: Some("b".into()), ..with_adapted }]).unwrap();
    assert_eq!(of(NEW, b).expect("it came along").vector, [9.0, 9.0], "where none is native it counts");
    store.put(&[write("a", Some("a"), &[])]).unwrap();
    assert_eq!((of(OLD, a), of(NEW, a).is_some()), (None, true), "an old vector that is not given is gone");
    store.put(&[write("a", Some("a"), &[(NEW, [1.0, 0.0])])]).unwrap();
    assert_eq!(
        of(NEW, a).expect("it is there").vector,
        [1.0, 0.0],
        "the new model's own word takes its place"
    );
    let a9 = store.put(&[write("a", Some("other"), &[(OLD, [1.0, 0.0])])]).unwrap()[0];
    assert_eq!(of(NEW, a), None, "another source, another item to embed");
    assert_eq!((item("a").revision, item("a").source_revision), (a9, a9));
    assert_eq!(store.errors(NEW, 9), Ok(vec![]));
}

fn what_comes_back_has_what_was_paid_for(store: &dyn Store) {
    two_spaces(store);
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let (key, revision) = put_one(store, id, Some("text"));
        let vector = [0.6 + at as f32, 0.8];
        match id {
            "c" => write_to(store, NEW, &[adapted(key, revision, vector, 0.5, 1.0)]).unwrap(),
            _ => write_to(store, NEW, &[native(key, revision, vector)]).unwrap(),
        };
    }
    let before: Vec<Item> = store.get(&["a", "b", "c"]).unwrap().into_iter().flatten().collect();
    let of = |id: &str| {
        let item = store.get(&[id]).unwrap().remove(0).expect("it is there");
        (item.clone(), store.vectors(NEW, &[item.key]).unwrap().remove(0))
    };
    let search = || store.search(NEW, &matrix(&[[0.6, 0.8]]), 9, &Filter::default()).unwrap().remove(0);
    assert_eq!(store.delete(&["a", "b", "c"]), Ok(3));
    assert_eq!(search(), [], "what is deleted is found by no search");
    assert_eq!(store.counts(NEW), Ok(Counts::default()), "and counts for nothing");

    let rows = [("a", "text"), ("b", "other"), ("c", "text"), ("d", "text")];
    store.put(&rows.map(|(id, source)| write(id, Some(source), &[(OLD, [0.0, 1.0])]))).unwrap();
    let (a, vector) = of("a");
    let vector = vector.expect("with its id and its source it comes back to what was paid for");
    assert_eq!((vector.vector, vector.provenance), (vec![0.6, 0.8], Provenance::Native));
    assert_eq!((vector.revision, vector.sigma2, vector.priority), (a.revision, None, None));
    assert!(a.key != before[0].key && a.revision > before[0].revision, "as another item");
    for (id, why) in [("b", "of another source"), ("c", "never paid for"), ("d", "of another id")] {
        assert_eq!(of(id).1, None, "{why}");
    }
    let hits: Vec<_> = search().into_iter().map(|hit| (hit.key, hit.provenance)).collect();
    assert_eq!(hits, [(a.key, Provenance::Native)], "and searches find it at once");
    let late = write_to(store, NEW, &[native(before[0].key, before[0].revision, [9.0, 9.0])]);
    assert_eq!(late, Ok(vec![WriteOutcome::Deleted]), "what was on its way to the item of before is not its");
    let queue = store.scan(&Scan::new(NEW, Select::Queued, 9)).unwrap();
    assert!(queue.iter().all(|record| record.item.id != "a") && queue.len() == 3, "nobody pays for it again");

    // The last vector that was paid for counts, and one that a write brings counts more.
    store.put(&[write("a", Some("text"), &[(NEW, [1.0, 0.0])])]).unwrap();
    store.delete(&["a"]).unwrap();
    store.put(&[write("a", Some("text"), &[])]).unwrap();
    assert_eq!(of("a").1.expect("it came back").vector, [1.0, 0.0]);
    store.delete(&["a"]).unwrap();
    store.put(&[write("a", Some("text"), &[(NEW, [0.0, 1.0])])]).unwrap();
    assert_eq!(of("a").1.expect("it was written").vector, [0.0, 1.0]);
    store.delete(&["a"]).unwrap();
    // All natives are taken out, as where another model has made them.
    store.forget_natives(NEW, epoch_of(store, NEW), 9).unwrap();
    store.put(&[write("a", Some("text"), &[])]).unwrap();
    assert_eq!(of("a").1, None, "what is forgotten does not come back");
}

fn what_is_on_its_way_meets_the_source_it_was_made_from(store: &dyn Store) {
    two_spaces(store);
    let item = |id: &str| store.get(&[id]).unwrap().remove(0).expect("it was put");
    let put = |id: &str, source: &str, old: [f32; 2]| {
        store.put(&[write(id, Some(source), &[(OLD, old)])]).unwrap()[0]
    };
    let outcome = |write: VectorWrite| write_to(store, NEW, &[write]).unwrap()[0];
    put("a", "text", [1.0, 0.0]);
    let read = item("a");
    // Meanwhile the old vector is written, twice.
    put("a", "text", [0.0, 1.0]);
    let now = put("a", "text", [0.0, 2.0]);
    let late = VectorWrite::adapted(&read, vec![1.0, 0.0], 1.0, Priority::ordinary(1.0));
    assert_eq!(outcome(late), WriteOutcome::Changed, "made of another old vector");
    store.record_failures(NEW, &[(read.key, read.source_revision, "broken".into())]).unwrap();
    assert_eq!(
        store.failures(NEW, None, 9).unwrap()[0].revision,
        read.source_revision,
        "what failed is the source"
    );
    put("a", "text", [0.0, 3.0]);
    assert_eq!(store.counts(NEW).unwrap().failed, 1, "and it fails with any old vector");
    assert_eq!(
        outcome(VectorWrite::native(&read, vec![0.6, 0.8])),
        WriteOutcome::Written,
        "made of this source"
    );
    assert_eq!(store.counts(NEW).unwrap().failed, 0);
    let record = store.vectors(NEW, &[read.key]).unwrap().remove(0).expect("it was written");
    assert!(record.revision == item("a").revision && record.revision != now, "it is the item's as it is now");
    // A source that goes and comes back is a new one: nobody knows what it named meanwhile.
    put("b", "text", [1.0, 0.0]);
    let read = item("b");
    put("b", "other", [1.0, 0.0]);
    let stale = VectorWrite::native(&read, vec![1.0, 0.0]);
    assert_eq!(
        outcome(stale.clone()),
        WriteOutcome::Changed,
        "a vector of one source never lies beside another"
    );
    store.record_failures(NEW, &[(read.key, read.source_revision, "broken".into())]).unwrap();
    assert_eq!(store.failures(NEW, None, 9), Ok(vec![]), "nor does a failure");
    put("b", "text", [1.0, 0.0]);
    assert_eq!(outcome(stale), WriteOutcome::Changed);
    assert_eq!(outcome(VectorWrite::native(&item("b"), vec![1.0, 0.0])), WriteOutcome::Written);
}

fn without_a_source_nothing_is_the_same(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", None);
    write_to(store, NEW, &[native(a, a1, [1.0, 0.0])]).unwrap();
    let (_, a2) = put_one(store, "a", None);
    assert_eq!(store.vectors(NEW, &[a]), Ok(vec![None]), "nothing says that the content is what it was");
    let item = store.get(&["a"]).unwrap().remove(0).expect("it was put");
    assert_eq!((item.revision, item.source_revision), (a2, a2));
    let stale = write_to(store, NEW, &[native(a, a1, [1.0, 0.0])]);
    assert_eq!(stale, Ok(vec![WriteOutcome::Changed]));
}

fn a_put_is_all_or_nothing(store: &dyn Store) {
    two_spaces(store);
    let before = store.put(&[write("a", Some("before"), &[(OLD, [1.0, 0.0])])]).unwrap()[0];
    let good = write("a", Some("after"), &[(OLD, [0.0, 1.0])]);
    let bad = write("b", None, &[(OLD, [f32::NAN, 0.0])]);
    assert!(store.put(&[good.clone(), bad]).is_err(), "a NaN does not enter");
    let a = store.get(&["a"]).unwrap().remove(0).expect("a is there");
    assert_eq!(
        (a.source.as_deref(), a.revision),
        (Some("before"), before),
        "nothing of a failed put is written"
    );
    let mut doubled = write("c", None, &[(OLD, [1.0, 0.0])]);
    doubled.vectors.push(doubled.vectors[0].clone());
    assert!(store.put(&[good, doubled]).is_err(), "two vectors for one space are refused");
    assert_eq!(store.counts(OLD).unwrap().items, 1);
}

fn revisions_are_never_given_twice(store: &dyn Store) {
    two_spaces(store);
    let mut revisions = BTreeSet::new();
    for _ in 0..3 {
        let new_revisions = store.put(&[write("a", None, &[]), write("b", None, &[])]).unwrap();
        for (id, revision) in ["a", "b"].into_iter().zip(new_revisions) {
            let item = store.get(&[id]).unwrap().remove(0).expect("it was put");
            assert_eq!(item.revision, revision);
            assert!(revisions.insert(revision), "revision {revision} was given twice");
        }
        assert_eq!(store.delete(&["a", "b"]), Ok(2));
    }
    assert!(revisions.iter().next() > Some(&0), "revisions start above 0, the cursor that has seen nothing");
}

fn keys_are_never_given_twice(store: &dyn Store) {
    two_spaces(store);
    let mut keys = BTreeSet::new();
    for _ in 0..3 {
        store.put(&[write("a", None, &[]), write("b", None, &[])]).unwrap();
        for item in store.get(&["a", "b"]).unwrap() {
            let key = item.expect("it was put").key;
            assert!(keys.insert(key), "key {key} was given twice");
        }
        assert_eq!(store.delete(&["a", "b"]), Ok(2));
    }
    let (a, revision) = put_one(store, "a", None);
    store.delete(&["a"]).unwrap();
    put_one(store, "a", None);
    let outcome = write_to(store, NEW, &[native(a, revision, [1.0, 0.0])]);
    assert_eq!(outcome, Ok(vec![WriteOutcome::Deleted]), "another item of the same id is not the one before");
}

fn conditional_writes_do_no_harm(store: &dyn Store) {
    two_spaces(store);
    let (a, revision) = put_one(store, "a", Some("a"));
    let write_one = |write: VectorWrite| write_to(store, NEW, &[write]).unwrap()[0];
    assert_eq!(write_one(native(NOBODY, 1, [1.0, 0.0])), WriteOutcome::Deleted, "no such item");
    assert_eq!(write_one(native(a, revision + 1000, [1.0, 0.0])), WriteOutcome::Changed, "another revision");
    assert_eq!(store.counts(NEW).unwrap().lacking, 1, "a write that is not applied writes nothing");
    assert_eq!(write_one(adapted(a, revision, [1.0, 0.0], 0.25, 7.0)), WriteOutcome::Written);
    let vector_of = |key: ItemKey| store.vectors(NEW, &[key]).unwrap().remove(0);
    let vector = vector_of(a).expect("it was written");
    assert_eq!((vector.provenance, vector.revision), (Provenance::Adapted, revision));
    assert_eq!(
        (vector.sigma2, vector.priority, vector.squared_error),
        (Some(0.25), Some(Priority::ordinary(7.0)), None)
    );
    assert_eq!(
        write_one(adapted(a, revision, [0.0, 1.0], 0.5, 3.0)),
        WriteOutcome::Written,
        "adapted over adapted"
    );
    let mut better = native(a, revision, [0.6, 0.8]);
    better.squared_error = Some(0.75);
    assert_eq!(write_one(better.clone()), WriteOutcome::Written, "native over adapted");
    let vector = vector_of(a).expect("it was written");
    assert_eq!(vector.vector, [0.6, 0.8]);
    assert_eq!(
        (vector.provenance, vector.sigma2, vector.squared_error),
        (Provenance::Native, Some(0.5), Some(0.75)),
        "σ² is kept when a native vector takes the place"
    );
    assert_eq!(write_one(better), WriteOutcome::AlreadyThere, "a native vector is never replaced");
    assert_eq!(write_one(adapted(a, revision, [1.0, 0.0], 1.0, 1.0)), WriteOutcome::AlreadyThere);
    assert_eq!(vector_of(a).expect("still there").vector, [0.6, 0.8]);
    let old = write_to(store, OLD, &[native(a, revision, [1.0, 0.0])]);
    assert_eq!(old, Ok(vec![WriteOutcome::AlreadyThere]), "an old vector is never replaced");

    let now = store.put(&[write("a", Some("new"), &[])]).unwrap()[0];
    assert_eq!(write_one(native(a, revision, [1.0, 0.0])), WriteOutcome::Changed, "the content has changed");
    assert_eq!(vector_of(a), None);
    let batch = [
        adapted(a, now, [1.0, 0.0], 0.5, 1.0),
        native(NOBODY, 1, [1.0, 0.0]),
        native(a, now, [0.0, 1.0]),
        native(a, now, [1.0, 0.0]),
    ];
    let outcomes =
        [WriteOutcome::Written, WriteOutcome::Deleted, WriteOutcome::Written, WriteOutcome::AlreadyThere];
    assert_eq!(write_to(store, NEW, &batch).unwrap(), outcomes, "each of a batch has an outcome of its own");
    store.delete(&["a"]).unwrap();
    assert_eq!(
        write_one(native(a, now, [1.0, 0.0])),
        WriteOutcome::Deleted,
        "a deleted item never comes back"
    );
    assert_eq!(store.get(&["a"]), Ok(vec![None]));
    put_one(store, "a", None);
    let outcome = write_one(native(a, now, [1.0, 0.0]));
    assert!(
        matches!(outcome, WriteOutcome::Deleted | WriteOutcome::Changed),
        "nor as another item of the same id: {outcome:?}"
    );
}

fn vectors_are_checked_at_the_door(store: &dyn Store) {
    two_spaces(store);
    let unit = Space::new("unit", 2, Distance::Cosine, true);
    store.create_space(&unit, Provenance::Native).unwrap();
    let (a, revision) = put_one(store, "a", Some("a"));
    let refused = |space: &str, vector: Vec<f32>, why: fn(&ErrorKind) -> bool| {
        let mut bad = native(a, revision, [0.0; 2]);
        bad.vector.clone_from(&vector);
        let good = native(a, revision, [1.0, 0.0]);
        let error = write_to(store, space, &[good, bad]).expect_err("a bad vector does not enter");
        assert!(why(error.kind()), "write_vectors: {error}");
        let mut put = write("b", None, &[]);
        put.vectors.push(NewVector { vector, ..new_vector(space, [0.0; 2]) });
        let error = store.put(&[put]).expect_err("a bad vector does not enter");
        assert!(why(error.kind()), "put: {error}");
        assert_eq!(store.vectors("unit", &[a]), Ok(vec![None]), "nothing of the call is written");
    };
    refused("unit", vec![1.0], |kind| {
        matches!(kind, ErrorKind::WidthMismatch { expected: 2, received: 1, .. })
    });
    refused("unit", vec![f32::INFINITY, 0.0], |kind| matches!(kind, ErrorKind::NotFinite { column: 0, .. }));
    refused("unit", vec![0.0, f32::NAN], |kind| matches!(kind, ErrorKind::NotFinite { column: 1, .. }));
    refused("unit", vec![0.5, 0.5], |kind| matches!(kind, ErrorKind::NotNormalised { .. }));
    refused("unit", vec![0.0, 0.0], |kind| matches!(kind, ErrorKind::NotNormalised { .. }));
    let mut old = native(a, revision, [1.0, 0.0]);
    old.provenance = Provenance::Old;
    assert!(write_to(store, NEW, &[old]).is_err(), "an upgrade writes no old vectors");
    let unplanned = adapted(a, revision, [1.0, 0.0], 1.0, 1.0);
    let error = store.write_vectors(NEW, None, &[unplanned]).expect_err("an adapter works for a plan");
    assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
    let mut without_plan = write("b", None, &[]);
    let new = new_vector(NEW, [1.0, 0.0]);
    without_plan.vectors.push(NewVector { provenance: Provenance::Adapted, ..new });
    assert!(store.put(&[without_plan]).is_err(), "an adapted vector of a put carries its epoch");
    assert!(write_to(store, NEW, &[adapted(a, revision, [1.0, 0.0], f32::NAN, 1.0)]).is_err());
    assert!(write_to(store, NEW, &[adapted(a, revision, [1.0, 0.0], 1.0, f64::NAN)]).is_err());
    assert!(
        prioritise(store, &[(a, revision, Priority::ordinary(f64::NAN))]).is_err(),
        "NaN has no place in a queue"
    );
    let wide = Matrix::new(3, vec![0.0; 3]).expect("a matrix");
    let error =
        store.search(NEW, &wide, 1, &Filter::default()).expect_err("queries are as wide as the space");
    assert!(error.is_mismatch(), "{error}");
    let error = store.search(NEW, &matrix(&[[f32::NAN, 0.0]]), 1, &Filter::default());
    assert!(error.expect_err("a query is finite").is_corrupt());
}

fn what_has_no_direction_is_near_to_nothing(store: &dyn Store) {
    let (old, new) = ("old-directions", "new-directions");
    let cosine = |name: &str| Space::new(name, 2, Distance::Cosine, false);
    store.create_space(&cosine(old), Provenance::Old).unwrap();
    store.create_space(&cosine(new), Provenance::Native).unwrap();
    let put = |id: &str, vector: [f32; 2]| {
        let old = NewVector::from_model(old, vector.to_vec(), Provenance::Old);
        let mut write = ItemWrite::new(id, Some(id.to_owned()), vec![old]);
        write.label = Some("all".to_owned());
        let revision = store.put(&[write]).unwrap()[0];
        (store.get(&[id]).unwrap().remove(0).expect("it was put").key, revision)
    };
    // An application may have vectors of length 0, if its model gave nothing for some texts.
    let (zero, zero1) = put("zero", [0.0, 0.0]);
    let ((near, near1), (far, far1)) = (put("near", [3.0, 4.0]), put("far", [-3.0, -4.0]));
    let record = store.vectors(old, &[zero]).unwrap().remove(0).expect("it is the application's");
    assert_eq!((record.vector, record.provenance), (vec![0.0, 0.0], Provenance::Old), "as it was given");
    assert_eq!(store.counts(old).unwrap().old, 3);
    let searched = |space: &str| {
        let filters = [
            Filter::default(),
            Filter { labels: vec!["all".to_owned()], ..Filter::default() },
            Filter {
                provenances: vec![Provenance::Old, Provenance::Adapted, Provenance::Native],
                ..Filter::default()
            },
        ];
        let ids_by_k = [9, 2].map(|k| {
            let by_filter = filters.each_ref().map(|filter| {
                let hits = store.search(space, &matrix(&[[3.0, 4.0]]), k, filter).unwrap().remove(0);
                hits.into_iter().map(|hit| hit.id).collect::<Vec<_>>()
            });
            assert!(by_filter.iter().all(|ids| *ids == by_filter[0]), "whatever it asks for: {by_filter:?}");
            by_filter[0].clone()
        });
        assert_eq!(ids_by_k[0][..2], ids_by_k[1], "one that is near to nothing takes nobody's place");
        ids_by_k[0].clone()
    };
    let placed = ["near", "far"];
    assert_eq!(searched(old), placed, "without a direction it is near to nothing, and above nobody");
    store.rebuild(old).unwrap();
    assert_eq!(searched(old), placed, "derived parts made again say the same");
    assert_eq!(store.recall(old, 3, 3), Ok(1.0), "it is nothing that a search misses");

    let good = [adapted(near, near1, [1.0, 0.0], 1.0, 5.0), adapted(far, far1, [0.0, 1.0], 1.0, 1.0)];
    for bad in [adapted(zero, zero1, [0.0, 0.0], 1.0, 9.0), native(zero, zero1, [0.0, 0.0])] {
        let writes = [good[0].clone(), bad];
        let error = write_to(store, new, &writes).expect_err("neither model nor adapter has made anything");
        assert!(matches!(error.kind(), ErrorKind::NoDirection { .. }), "{error}");
    }
    let native_zero = NewVector::from_model(new, vec![0.0, 0.0], Provenance::Native);
    let error =
        store.put(&[ItemWrite::new("native", None, vec![native_zero])]).expect_err("nor does it here");
    assert!(matches!(error.kind(), ErrorKind::NoDirection { .. }), "{error}");
    assert_eq!(store.counts(new).unwrap(), Counts { items: 3, lacking: 3, ..Counts::default() });
    assert_eq!(write_to(store, new, &good), Ok(vec![WriteOutcome::Written; 2]));
    let queue = store.scan(&Scan::new(new, Select::Queued, 9)).unwrap();
    let queue: Vec<&str> = queue.iter().map(|record| record.item.id.as_str()).collect();
    assert_eq!(queue, ["zero", "near", "far"], "what nothing could be made of is the next to be embedded");
    assert_eq!(write_to(store, new, &[native(zero, zero1, [0.6, 0.8])]), Ok(vec![WriteOutcome::Written]));
    assert_eq!(searched(new), ["zero", "far", "near"], "and found from then on");
}

fn scans_select_and_page(store: &dyn Store) {
    two_spaces(store);
    let mut items: Vec<(ItemKey, Revision)> = Vec::new();
    // Keys need not come in the order of time, so the items are numbered by key.
    for id in ["1", "2", "3", "4", "5", "6"] {
        items.push(put_one(store, id, Some(id)));
    }
    items.sort();
    let names: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
    let keys: Vec<ItemKey> = items.iter().map(|(key, _)| *key).collect();
    let name = |record: &Record| match keys.iter().position(|key| *key == record.item.key) {
        Some(at) => names[at].clone(),
        None => record.item.id.clone(),
    };
    let sigma = [Some(0.5), None, Some(2.0), Some(0.5)];
    for (&(key, revision), sigma2) in items.iter().zip(sigma) {
        let mut write = adapted(key, revision, [1.0, 0.0], 0.0, 0.0);
        write.sigma2 = sigma2;
        assert_eq!(write_to(store, NEW, &[write]), Ok(vec![WriteOutcome::Written]));
    }
    write_to(store, NEW, &[native(items[4].0, items[4].1, [0.0, 1.0])]).unwrap();
    let ids = |scan: Scan| -> Vec<String> { store.scan(&scan).unwrap().iter().map(name).collect() };
    let page = |select: Select, limit: usize| ids(Scan::new(NEW, select, limit));
    assert_eq!(page(Select::All, 9), ["a", "b", "c", "d", "e", "f"], "all, by key");
    assert_eq!(page(Select::All, 2), ["a", "b"], "a page is at most as long as its limit");
    assert!(page(Select::All, 0).is_empty());
    assert_eq!(ids(Scan::new(NEW, Select::All, 2).after(Some(items[1].0))), ["c", "d"], "after a key");
    assert_eq!(page(Select::Provenance(Provenance::Adapted), 9), ["a", "b", "c", "d"]);
    assert_eq!(page(Select::Provenance(Provenance::Native), 9), ["e"]);
    assert!(page(Select::Provenance(Provenance::Old), 9).is_empty());
    let after = Scan::new(NEW, Select::Provenance(Provenance::Adapted), 9).after(Some(items[1].0));
    assert_eq!(ids(after), ["c", "d"]);
    let made_by = store.provenances(NEW, &[items[4].0, NOBODY, items[5].0, items[0].0]).unwrap();
    let (adapted_one, native_one) = (Some(Provenance::Adapted), Some(Provenance::Native));
    assert_eq!(made_by, [native_one, None, None, adapted_one], "who made each vector, in order");
    assert_eq!(page(Select::Lacking, 9), ["f"]);
    assert!(ids(Scan::new(NEW, Select::Lacking, 9).after(Some(items[5].0))).is_empty());
    assert!(page(Select::WithoutSource, 9).is_empty(), "all of them have a source");
    let mut bare: Vec<(ItemKey, Revision)> = ["g", "h", "i"].map(|id| put_one(store, id, None)).to_vec();
    bare.sort();
    let ids_of = |some: &[(ItemKey, Revision)]| -> Vec<String> {
        let all = store.scan(&Scan::new(NEW, Select::All, 99)).unwrap();
        let of = |key: ItemKey| all.iter().find(|record| record.item.key == key).expect("it was put");
        some.iter().map(|(key, _)| of(*key).item.id.clone()).collect()
    };
    let (lost, last) = (bare[0], bare[2]);
    write_to(store, NEW, &[adapted(lost.0, lost.1, [1.0, 0.0], 0.0, 0.0)]).unwrap();
    assert_eq!(page(Select::WithoutSource, 9), ids_of(&bare), "adapted and lacking ones together, by key");
    assert_eq!(page(Select::WithoutSource, 2), ids_of(&bare[..2]));
    let after = ids(Scan::new(NEW, Select::WithoutSource, 9).after(Some(lost.0)));
    assert_eq!(after, ids_of(&bare[1..]), "after a key");
    write_to(store, NEW, &[native(last.0, last.1, [0.0, 1.0])]).unwrap();
    assert_eq!(page(Select::WithoutSource, 9), ids_of(&bare[..2]), "a native vector needs no source");
    store.delete(&["g", "h", "i"]).unwrap();

    let first = store.scan(&Scan::new(NEW, Select::All, 1)).unwrap().remove(0).item;
    let (_, changed) = put_one(store, &first.id, Some("a"));

    let records = store.scan(&Scan::new(NEW, Select::All, 9).with_vectors_of(OLD)).unwrap();
    assert_eq!(records[0].state, None, "the changed item has no vector in the scanned space any more");
    let old = records[0].vector.as_ref().expect("but one in the other space");
    assert_eq!((old.vector.as_slice(), old.revision), ([1.0, 0.0].as_slice(), changed));
    let state = records[2].state.as_ref().expect("it has one");
    assert_eq!((state.sigma2, state.provenance), (Some(2.0), Provenance::Adapted));
    assert!(state.vector.is_empty(), "the state comes without numbers");
    let natives =
        store.scan(&Scan::new(NEW, Select::Provenance(Provenance::Native), 9).with_vectors_of(NEW)).unwrap();
    assert_eq!(natives[0].vector.as_ref().expect("it has one").vector, [0.0, 1.0]);
    let without = store.scan(&Scan::new(NEW, Select::All, 9)).unwrap();
    assert!(without.iter().all(|record| record.vector.is_none()), "no vectors where none were asked for");
    let scan = Scan::new(NEW, Select::All, 9).with_vectors_of(OLD).without_contents();
    let bare = store.scan(&scan).unwrap();
    let of = |record: &Record| (record.item.key, record.item.id.clone(), record.item.revision);
    for (record, bare) in records.iter().zip(&bare) {
        assert_eq!((of(record), &record.state, &record.vector), (of(bare), &bare.state, &bare.vector));
    }
    assert_eq!(records.len(), bare.len(), "contents decide nothing");
}

fn the_worst_come_first(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let (b, b1) = put_one(store, "b", Some("b"));
    let (c, c1) = put_one(store, "c", Some("c"));
    let (e, e1) = put_one(store, "e", Some("e"));
    let (d, d1) = put_one(store, "d", Some("d"));
    let (lost, lost1) = put_one(store, "lost", None);
    put_one(store, "lost too", None);
    put_one(store, "f", Some("f"));
    put_one(store, "g", Some("g"));
    let mut unranked = adapted(d, d1, [1.0, 0.0], 1.0, 0.0);
    unranked.priority = None;
    let writes = [
        adapted(a, a1, [1.0, 0.0], 1.0, 1.0),
        adapted(b, b1, [1.0, 0.0], 1.0, 5.0),
        adapted(c, c1, [1.0, 0.0], 1.0, 1.0),
        unranked,
        adapted(e, e1, [1.0, 0.0], 1.0, -7.0),
        adapted(lost, lost1, [1.0, 0.0], 1.0, 9.0),
    ];
    assert_eq!(write_to(store, NEW, &writes), Ok(vec![WriteOutcome::Written; 6]));
    let ids = |scan: Scan| -> Vec<String> {
        store.scan(&scan).unwrap().into_iter().map(|record| record.item.id).collect()
    };
    let worst = |limit: usize| ids(Scan::new(NEW, Select::Queued, limit));
    assert_eq!(
        worst(9),
        [
            &by_key(store, &["f", "g"])[..],
            &["b".into()],
            &by_key(store, &["a", "c"]),
            &["e".into(), "d".into()]
        ]
        .concat(),
        "lacking ones by key, then by priority, ties by key, none last, nothing without a source"
    );
    let all = worst(9);
    assert_eq!((worst(3), worst(1)), (all[..3].to_vec(), all[..1].to_vec()), "a page is its beginning");
    let after = ids(Scan::new(NEW, Select::Queued, 3).after(Some(b)));
    assert_eq!(after, all[..3], "after is not used");
    let place = Priority::ordinary;
    let ignored = [(c, c1 + 1000, place(99.0)), (NOBODY, 1, place(1.0))];
    let changed = prioritise(store, &[(a, a1, place(-1.0)), (d, d1, place(8.5)), ignored[0], ignored[1]]);
    assert_eq!(changed, Ok(2), "only adapted vectors of the revision that was read");
    assert_eq!(worst(9)[2..], ["d", "b", "c", "a", "e"]);
    let banded = [(e, QueueBand::Covering), (a, QueueBand::NewOrChanged), (b, QueueBand::Sample)];
    let revisions = [e1, a1, b1];
    for ((key, band), revision) in banded.into_iter().zip(revisions) {
        let place = Priority::new(band, -1e6);
        assert_eq!(prioritise(store, &[(key, revision, place)]), Ok(1));
        let record = store.vectors(NEW, &[key]).unwrap().remove(0).expect("it was written");
        assert_eq!(record.priority, Some(place), "a place comes back as it was given");
    }
    assert_eq!(worst(9)[2..], ["a", "b", "e", "d", "c"], "bands first, whatever the score");
    write_to(store, NEW, &[native(d, d1, [1.0, 0.0])]).unwrap();
    assert_eq!(prioritise(store, &[(d, d1, place(1.0))]), Ok(0), "a native vector has left the queue");
    assert_eq!(worst(9)[2..], ["a", "b", "e", "c"]);
    let counts = Counts { items: 9, old: 0, adapted: 5, native: 1, lacking: 3, failed: 0, without_source: 2 };
    assert_eq!(store.counts(NEW), Ok(counts));
}

fn natives_are_forgotten_where_they_can_be_made_again(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let (b, b1) = put_one(store, "b", Some("b"));
    let (c, c1) = put_one(store, "c", None);
    let (d, d1) = put_one(store, "d", Some("d"));
    let writes = [
        native(a, a1, [1.0, 0.0]),
        native(b, b1, [0.0, 1.0]),
        native(c, c1, [1.0, 1.0]),
        adapted(d, d1, [2.0, 0.0], 1.0, 1.0),
    ];
    write_to(store, NEW, &writes).unwrap();
    let epoch = epoch_of(store, NEW);
    assert!(store.forget_natives(NEW, epoch.next(), 9).expect_err("another plan").is_superseded());
    assert_eq!(store.forget_natives(NEW, epoch, 1), Ok(1), "no more than asked for");
    assert_eq!(store.forget_natives(NEW, epoch, 9), Ok(1), "an item without a source keeps its only vector");
    assert_eq!(store.forget_natives(NEW, epoch, 9), Ok(0));
    let made_by = store.provenances(NEW, &[a, b, c, d]).unwrap();
    assert_eq!(made_by, [None, None, Some(Provenance::Native), Some(Provenance::Adapted)]);
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.native, counts.adapted, counts.lacking), (1, 1, 2));
    let queue = store.scan(&Scan::new(NEW, Select::Queued, 9)).unwrap();
    let queue: BTreeSet<ItemKey> = queue.iter().take(2).map(|record| record.item.key).collect();
    assert_eq!(queue, BTreeSet::from([a, b]), "what lacks a vector is next");
    let query = Matrix::new(2, vec![1.0, 0.0]).unwrap();
    let hits = store.search(NEW, &query, 9, &Filter::default()).unwrap().remove(0);
    assert!(hits.iter().all(|hit| hit.key != a && hit.key != b), "searches do not find them");
}

fn an_id_is_one_line(store: &dyn Store) {
    two_spaces(store);
    for id in ["a\nb", "a\r", "\n"] {
        let write = ItemWrite::new(id, None, vec![]);
        assert!(store.put(&[write]).is_err(), "{id:?} would shift every list of ids");
    }
    assert_eq!(store.counts(NEW).unwrap().items, 0);
}

fn failures_are_set_aside(store: &dyn Store) {
    two_spaces(store);
    let mut two = [("a", put_one(store, "a", Some("a"))), ("b", put_one(store, "b", Some("b")))];
    two.sort_by_key(|(_, (key, _))| *key);
    let [(first, (a, a1)), (second, (b, b1))] = two;
    let (c, c1) = put_one(store, "c", Some("c"));
    write_to(store, NEW, &[adapted(b, b1, [1.0, 0.0], 1.0, 1.0)]).unwrap();
    let failures = [
        (a, a1, "vanished".to_owned()),
        (b, b1, "first".to_owned()),
        (b, b1, "broken".to_owned()),
        (c, c1 + 1000, "of another revision".to_owned()),
        (NOBODY, 1, "of nobody".to_owned()),
    ];
    store.record_failures(NEW, &failures).unwrap();
    let listed = |after: Option<ItemKey>, limit: usize| -> Vec<(String, Revision, String)> {
        let failures = store.failures(NEW, after, limit).unwrap();
        failures.into_iter().map(|failure| (failure.id, failure.revision, failure.reason)).collect()
    };
    let (of_a, of_b) =
        ((first.to_owned(), a1, "vanished".to_owned()), (second.to_owned(), b1, "broken".to_owned()));
    assert_eq!(listed(None, 9), [of_a.clone(), of_b.clone()], "by key; the last reason counts");
    assert_eq!(listed(Some(a), 9), std::slice::from_ref(&of_b));
    assert_eq!(listed(None, 1), std::slice::from_ref(&of_a));
    assert_eq!(store.failures(OLD, None, 9), Ok(vec![]), "failures belong to a space");
    assert_eq!(store.counts(NEW).unwrap().failed, 2);
    let worst = || -> Vec<String> {
        let records = store.scan(&Scan::new(NEW, Select::Queued, 9)).unwrap();
        records.into_iter().map(|record| record.item.id).collect()
    };
    assert_eq!(worst(), ["c"], "what failed is left out");
    let lacking = store.scan(&Scan::new(NEW, Select::Lacking, 9)).unwrap();
    assert_eq!(lacking.len(), 2, "but is still lacking");
    // An upgrade that is planned anew writes so: one vector is the item's first, the other one takes
    // another's place.
    let again = [adapted(a, a1, [0.0, 1.0], 1.0, 2.0), adapted(b, b1, [0.0, 1.0], 1.0, 2.0)];
    assert_eq!(write_to(store, NEW, &again), Ok(vec![WriteOutcome::Written; 2]));
    assert_eq!(listed(None, 9), [of_a, of_b], "an adapted vector clears no failure");
    assert_eq!(worst(), ["c"], "and brings nothing back into the queue");
    write_to(store, NEW, &[native(b, b1, [1.0, 0.0])]).unwrap();
    assert_eq!(listed(None, 9).len(), 1, "a native one clears it");
    store.record_failures(NEW, &[(b, b1, "late".into())]).unwrap();
    store.record_failures(OLD, &[(b, b1, "of an old vector".into())]).unwrap();
    assert_eq!(listed(None, 9).len(), 1, "what is native meanwhile has not failed");
    assert_eq!(store.failures(OLD, None, 9), Ok(vec![]), "nor has what is old");
    assert_eq!(store.counts(NEW).unwrap().failed, 1);
    assert_eq!(store.clear_failures(NEW), Ok(1));
    assert_eq!(store.clear_failures(NEW), Ok(0));
    assert_eq!(worst(), ["c", first], "what was forgotten is tried again");
    store.record_failures(NEW, &[(a, a1, "again".into())]).unwrap();
    let (_, a2) = put_one(store, first, Some("new"));
    assert_eq!(
        (listed(None, 9), worst()),
        (vec![], by_key(store, &[first, "c"])),
        "and so is what has changed"
    );
    store.record_failures(NEW, &[(a, a2, "again".into())]).unwrap();
    store.delete(&[first]).unwrap();
    assert_eq!(listed(None, 9), [], "a deleted item has no failure");
}

fn searches_are_exact_enough_fresh_and_filtered(store: &dyn Store) {
    let distances = [Distance::L2, Distance::Cosine, Distance::Dot];
    for distance in distances {
        let name = distance.name();
        store.create_space(&Space::new(name, 2, distance, false), Provenance::Native).unwrap();
    }
    let vectors = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0]];
    let writes: Vec<ItemWrite> = vectors
        .iter()
        .enumerate()
        .map(|(at, &vector)| {
            // Where cosines are compared, [0, 0] has no direction.
            let placed = distances.into_iter().filter(|distance| distance.can_place(&vector));
            let vectors: Vec<_> = placed.map(|distance| (distance.name(), vector)).collect();
            let mut write = write(&format!("i{at}"), None, &vectors);
            write.label = (at % 2 == 0).then(|| "even".to_owned());
            write.payload = json!({"at": at, "third": at % 3 == 0});
            write
        })
        .collect();
    let revisions = store.put(&writes).unwrap();
    let query = [2.0, 1.0];
    let search = |space: &str, k: usize, filter: &Filter| -> Vec<Found> {
        store.search(space, &matrix(&[query]), k, filter).unwrap().remove(0)
    };
    let ids = |hits: &[Found]| -> Vec<String> { hits.iter().map(|hit| hit.id.clone()).collect() };
    let everything = Filter::default();
    let root = 5_f32.sqrt();
    for (distance, order, measured) in [
        (Distance::L2, &["i0", "i5", "i1", "i3", "i2", "i4"][..], &[2.0, 2.0, 5.0, 5.0, 10.0, 10.0][..]),
        (
            Distance::Cosine,
            &["i2", "i0", "i5", "i1", "i4"],
            &[1.0 - 2.0 / root, 1.0 - 2.0 / root, 1.0 - 2.0 / root, 1.0 - 1.0 / root, 1.0 + 2.0 / root],
        ),
        (Distance::Dot, &["i2", "i0", "i5", "i1", "i3", "i4"], &[-10.0, -2.0, -2.0, -2.0, 0.0, 2.0]),
    ] {
        let hits = search(distance.name(), 9, &everything);
        let mut by_key: Vec<&Found> = hits.iter().collect();
        by_key.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
        assert!(hits.iter().eq(by_key), "{distance}: nearest first, ties by key");
        for (hit, expected) in hits.iter().zip(measured) {
            let close = (hit.distance - expected).abs() <= 1e-4 * expected.abs().max(1e-2);
            assert!(close, "{distance}: {} is at {}, not at {expected}", hit.id, hit.distance);
        }
        // Ties come in the order of keys, which need not be that of time.
        let names: BTreeSet<String> = ids(&hits).into_iter().collect();
        assert_eq!(names, order.iter().map(|&id| id.to_owned()).collect(), "{distance}");
        assert_eq!(hits.len(), order.len(), "{distance}: everything is found where k is larger");
        assert_eq!(hits[0].provenance, Provenance::Native, "a hit says who made its vector");
        assert!(revisions.contains(&hits[0].revision), "and which revision it is of");
        assert_eq!(search(distance.name(), 2, &everything), hits[..2], "{distance}: the k nearest");
    }
    assert!(search("l2", 0, &everything).is_empty());
    assert_eq!(store.search("l2", &Matrix::default(), 3, &everything), Ok(vec![]), "no queries, no answers");
    let answers = store.search("l2", &matrix(&[[1.0, 0.0], [0.0, 2.0]]), 1, &everything).unwrap();
    assert_eq!((ids(&answers[0]), ids(&answers[1])), (vec!["i0".to_owned()], vec!["i1".to_owned()]));

    let even = Filter { labels: vec!["odd".into(), "even".into()], ..Filter::default() };
    assert_eq!(ids(&search("l2", 9, &even))[0], "i0", "labels");
    assert_eq!(search("l2", 9, &even).len(), 3, "labels");
    let third = Filter { payload: vec![("third".into(), json!(true))], ..Filter::default() };
    assert_eq!(ids(&search("l2", 9, &third)), ["i0", "i3"], "payload");
    let both_fields =
        Filter { payload: vec![("third".into(), json!(true)), ("at".into(), json!(3))], ..Filter::default() };
    assert_eq!(ids(&search("l2", 9, &both_fields)), ["i3"], "all fields must be equal");
    let old = Filter { provenances: vec![Provenance::Old, Provenance::Adapted], ..Filter::default() };
    assert!(search("l2", 9, &old).is_empty(), "provenances");
    let nobody = Filter { labels: vec!["nobody".into()], ..Filter::default() };
    assert!(search("l2", 9, &nobody).is_empty());

    store.delete(&["i0"]).unwrap();
    assert_eq!(ids(&search("l2", 1, &everything)), ["i5"], "a deleted item is not found");
    assert_eq!(ids(&search("l2", 3, &everything))[1..], by_key(store, &["i1", "i3"]), "ties by key");
    let moved = store.put(&[write("i4", None, &[("l2", [2.0, 1.0])])]).unwrap()[0];
    let hits = search("l2", 1, &everything);
    assert_eq!(
        (hits[0].id.as_str(), hits[0].distance, hits[0].revision),
        ("i4", 0.0, moved),
        "a write is seen"
    );
    assert_eq!(search("dot", 9, &everything).len(), 4, "and what it removed is gone");
    store.rebuild("l2").unwrap();
    store.flush().unwrap();
    assert_eq!(ids(&search("l2", 2, &everything)), ["i4", "i5"], "derived parts made again say the same");
    assert_eq!(store.recall("l2", 5, 2), Ok(1.0));
}

fn errors_are_newest_first(store: &dyn Store) {
    two_spaces(store);
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        let (key, revision) = put_one(store, id, Some(id));
        write_to(store, NEW, &[adapted(key, revision, [1.0, 0.0], at as f32, 1.0)]).unwrap();
    }
    assert_eq!(store.errors(NEW, 9), Ok(vec![]), "no native vector, no error");
    for (id, error) in [("b", Some(20.0)), ("c", None), ("a", Some(10.0))] {
        let item = store.get(&[id]).unwrap().remove(0).expect("it was put");
        let mut write = native(item.key, item.revision, [0.0, 1.0]);
        write.squared_error = error;
        write_to(store, NEW, &[write]).unwrap();
    }
    assert_eq!(store.errors(NEW, 9), Ok(vec![(0.0, 10.0), (1.0, 20.0)]), "newest first");
    assert_eq!(store.errors(NEW, 1), Ok(vec![(0.0, 10.0)]));
    put_one(store, "a", Some("new"));
    assert_eq!(store.errors(NEW, 9), Ok(vec![(1.0, 20.0)]), "a changed item has no error");
}

fn files_are_there_whole_or_not_at_all(store: &dyn Store) {
    let files = Files::in_ledger(store);
    assert_eq!((files.are_kept(), files.read("map")), (Ok(false), Ok(None)));
    // The file has more than one chunk, and no two chunks are equal.
    let large: Vec<u8> = (0..1_200_000_u32).map(|at| (at / 7 % 251) as u8).collect();
    for bytes in [&large[..], b"", &large[1..], b"small"] {
        files.write("map", bytes).unwrap();
        assert_eq!(files.read("map").unwrap().as_deref(), Some(bytes), "{} bytes", bytes.len());
    }
    let version = store.document("files").unwrap().map(|(version, _)| version);
    files.write("map", b"small").unwrap();
    assert_eq!(store.document("files").unwrap().map(|(version, _)| version), version, "it was there already");
    // Each of some writers at once gets a name of its own, and none of them loses another's.
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            scope.spawn(move || (0..5).for_each(|at| files.add("part-", &[writer, at]).unwrap()));
        }
    });
    let names = files.names().unwrap();
    let parts: BTreeSet<Vec<u8>> =
        names.iter().filter(|name| *name != "map").map(|name| files.read(name).unwrap().unwrap()).collect();
    assert_eq!((names.len(), parts.len()), (21, 20));
    files.retain(|name| name == "part-000003").unwrap();
    assert_eq!((files.names(), files.has("map")), (Ok(vec!["part-000003".into()]), Ok(false)));
    files.add("part-", b"next").unwrap();
    assert_eq!(files.read("part-000004").unwrap().as_deref(), Some(&b"next"[..]));
    // A read notices that somebody took bytes away.
    files.write("map", &large).unwrap();
    let directory = store.document("files").unwrap().unwrap().1;
    let directory: serde_json::Value = serde_json::from_str(&directory).unwrap();
    store.set_chunk(&format!("chunk 1 of write {}", directory["files"]["map"]["write"]), None).unwrap();
    assert!(files.read("map").unwrap_err().is_corrupt());
}

fn documents_are_compared_and_set(store: &dyn Store) {
    assert!(store.set_document("plan", Some(1), "x").expect_err("there is none").is_conflict());
    let first = store.set_document("plan", None, "one").unwrap();
    assert_eq!(store.document("plan"), Ok(Some((first, "one".into()))));
    assert!(store.set_document("plan", None, "x").expect_err("there is one").is_conflict());
    let second = store.set_document("plan", Some(first), "two").unwrap();
    assert!(second > first, "a version grows");
    assert!(store.set_document("plan", Some(first), "x").expect_err("somebody was faster").is_conflict());
    assert_eq!(store.document("plan"), Ok(Some((second, "two".into()))));
    assert_eq!(store.document("other"), Ok(None));
}

fn two_workers_never_harm(store: &dyn Store) {
    two_spaces(store);
    let ids: Vec<String> = (0..60).map(|at| format!("i{at}")).collect();
    let writes: Vec<ItemWrite> = ids.iter().map(|id| write(id, Some(id), &[(OLD, [1.0, 0.0])])).collect();
    let revisions = store.put(&writes).unwrap();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let keys: Vec<ItemKey> =
        store.get(&names).unwrap().into_iter().map(|item| item.expect("it was put").key).collect();
    let worker = |value: f32| -> Vec<WriteOutcome> {
        let items = keys.iter().zip(&revisions);
        let writes: Vec<VectorWrite> =
            items.map(|(&key, &revision)| native(key, revision, [value, 0.0])).collect();
        writes.chunks(7).flat_map(|batch| write_to(store, NEW, batch).unwrap()).collect()
    };
    let (left, right) = std::thread::scope(|scope| {
        let left = scope.spawn(|| worker(1.0));
        let right = scope.spawn(|| worker(2.0));
        let changer = scope.spawn(|| {
            for chunk in names[40..].chunks(3) {
                store.delete(&chunk[..1]).unwrap();
                store
                    .put(&chunk[1..].iter().map(|id| write(id, Some("new"), &[])).collect::<Vec<_>>())
                    .unwrap();
            }
        });
        let searcher = scope.spawn(|| {
            for _ in 0..10 {
                for hit in
                    store.search(NEW, &matrix(&[[1.0, 0.0]]), 60, &Filter::default()).unwrap().remove(0)
                {
                    assert_eq!(hit.provenance, Provenance::Native, "a reader sees who made each vector");
                }
            }
        });
        changer.join().expect("the changer did not fail");
        searcher.join().expect("the searcher did not fail");
        (left.join().expect("the worker did not fail"), right.join().expect("the worker did not fail"))
    });
    let vectors = store.vectors(NEW, &keys).unwrap();
    for at in 0..60 {
        let written =
            [left[at], right[at]].iter().filter(|&&outcome| outcome == WriteOutcome::Written).count();
        assert!(written <= 1, "item {at} was written by both workers");
        if at < 40 {
            assert_eq!(written, 1, "item {at} was written by one of them");
            let value = if left[at] == WriteOutcome::Written { 1.0 } else { 2.0 };
            assert_eq!(
                vectors[at].as_ref().expect("it is there").vector,
                [value, 0.0],
                "the first one stays"
            );
        } else {
            assert_eq!(vectors[at], None, "item {at} was changed or deleted: nothing stale stays");
        }
    }
}

fn questions_are_answered_without_a_walk(store: &dyn Store) {
    two_spaces(store);
    let mut newest = 0;
    for id in ["a", "b", "c", "d"] {
        let (_, revision) = put_one(store, id, (id != "d").then_some(id));
        newest = newest.max(revision);
    }
    store.put(&[write("e", None, &[])]).unwrap();
    store.delete(&["e"]).unwrap();
    assert_eq!(store.newest_revision(), Ok(newest), "of the items that there are");
    store.put(&[write("f", None, &[])]).unwrap();
    assert_eq!(store.count_without_source(), Ok(2), "d and f");
    assert_eq!(store.count_lag(NEW, OLD), Ok(4), "f has no old vector to catch up from");
    let a = store.get(&["a"]).unwrap().remove(0).expect("it was put");
    write_to(store, NEW, &[native(a.key, a.revision, [1.0, 0.0])]).unwrap();
    assert_eq!((store.count_lag(NEW, OLD), store.count_lag(OLD, NEW)), (Ok(3), Ok(0)));
    let version = store.set_document("plan", None, "x").unwrap();
    let answer = store.serving_and_document("plan");
    assert_eq!(answer, Ok((Some(OLD.into()), Some((version, "x".into())))), "both at one moment");
    assert_eq!(store.serving_and_document("other"), Ok((Some(OLD.into()), None)));
}

fn samples_are_uniform_and_stable(store: &dyn Store) {
    two_spaces(store);
    let put = |ids: std::ops::Range<usize>| {
        for at in ids {
            // One in ten items cannot be embedded again.
            put_one(store, &format!("i{at}"), (at % 10 != 0).then_some("x"));
        }
    };
    put(0..400);
    let drawn = |among: Among, size: usize| -> (Vec<String>, u64) {
        let drawn = store.sample(&sample(NEW, among, size)).unwrap();
        (drawn.records.into_iter().map(|record| record.item.id).collect(), drawn.drawn_from)
    };
    let (all, of) = drawn(Among::All, 1000);
    assert_eq!((all.len(), of), (400, 400), "a sample of all is all of them");
    assert_eq!(drawn(Among::All, 30), (all[..30].to_vec(), 400), "a smaller one is its beginning");
    assert_eq!(drawn(Among::All, 0).1, 400);
    let other = Sample { seed: 8, ..sample(NEW, Among::All, 30) };
    let other: Vec<String> =
        store.sample(&other).unwrap().records.into_iter().map(|record| record.item.id).collect();
    assert_ne!(other, all[..30], "another seed, another sample");
    // A uniform sample of 100 holds 50 on average of the 200 that were put first, and 35 with odds of one in
    // a thousand.
    let early = all[..100].iter().filter(|id| id[1..].parse::<usize>().is_ok_and(|at| at < 200)).count();
    assert!((30..=70).contains(&early), "{early} of 100 are of the first half");
    let gone: Vec<&str> = all.iter().step_by(4).map(String::as_str).collect();
    store.delete(&gone).unwrap();
    put(400..450);
    let ids_left: Vec<String> = all.iter().filter(|id| !gone.contains(&id.as_str())).cloned().collect();
    let now = drawn(Among::All, 1000).0;
    let old_ones: Vec<String> = now.into_iter().filter(|id| ids_left.contains(id)).collect();
    assert_eq!(old_ones, ids_left, "as items come and go, the others keep their places");

    let sourced = ids_left.iter().filter(|id| !id.ends_with('0')).count() as u64 + 45;
    assert_eq!(drawn(Among::Embeddable, 5).1, sourced, "what lacks a vector can become native");
    assert_eq!(drawn(Among::Adapted, 5), (vec![], 0));
    let items = store.scan(&Scan::new(NEW, Select::All, 1000)).unwrap();
    let with = |source: bool| items.iter().filter(move |record| record.item.source.is_some() == source);
    let of = |record: &Record| (record.item.key, record.item.revision);
    let (bare, bare1) = with(false).map(of).next().expect("there are some");
    let [(a, a1), (b, b1), (c, c1)] = [0, 1, 2].map(|at| with(true).map(of).nth(at).expect("some"));
    let writes = [
        native(bare, bare1, [1.0, 0.0]),
        adapted(a, a1, [1.0, 0.0], 0.5, 1.0),
        adapted(b, b1, [0.0, 1.0], 0.5, 1.0),
    ];
    write_to(store, NEW, &writes).unwrap();
    let failures = [(b, b1, "broken".to_owned()), (c, c1, "broken".to_owned())];
    store.record_failures(NEW, &failures).unwrap();
    assert_eq!(drawn(Among::Embeddable, 5).1, sourced + 1 - 2, "native ones are in it, failed ones are not");
    assert_eq!(drawn(Among::Adapted, 5).1, 2);
    // A claim of a sample hands out the items of it that wait, in its order, and nothing else.
    let is_native =
        |record: &Record| record.state.as_ref().is_some_and(|state| state.provenance == Provenance::Native);
    let beginning = store.sample(&Sample { seed: 5, ..sample(NEW, Among::Embeddable, 40) }).unwrap().records;
    let (first, first1) = of(beginning.iter().find(|record| !is_native(record)).expect("some wait"));
    write_to(store, NEW, &[native(first, first1, [1.0, 0.0])]).unwrap();
    let waits = beginning.iter().filter(|record| !is_native(record) && record.item.key != first);
    let waits: Vec<&str> = waits.map(|record| record.item.id.as_str()).collect();
    let queue = Queue::Sample { seed: 5, size: 40 };
    let claim = |limit: usize| store.claim(NEW, queue, "worker", limit, LEASE).unwrap().records;
    let claimed: Vec<Record> = [claim(3), claim(100)].concat();
    assert_eq!(claimed.iter().map(|record| record.item.id.as_str()).collect::<Vec<_>>(), waits);
    assert!(claim(100).is_empty() && !waits.is_empty());
    store.release(NEW, "worker", None).unwrap();
    let with_vectors = Sample { vectors_of: Some(NEW.into()), ..sample(NEW, Among::Adapted, 5) };
    for record in store.sample(&with_vectors).unwrap().records {
        assert_eq!(record.state.expect("a state").provenance, Provenance::Adapted);
        assert_eq!(record.vector.expect("a vector").vector.len(), 2, "vectors come where they are asked for");
    }
}

fn what_an_earlier_plan_writes_is_refused(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let first = Epoch::FIRST;
    let version = store.advance(NEW, first, "plan", None, "one").unwrap();
    let now = epoch_of(store, NEW);
    assert_eq!(now, first.next(), "an epoch began");
    assert_eq!(epoch_of(store, OLD), first, "in that space only");
    assert_eq!(store.document("plan"), Ok(Some((version, "one".into()))), "with its document");
    for (from, expected) in [(first, Some(version)), (now, None), (now, Some(version + 1))] {
        let error = store.advance(NEW, from, "plan", expected, "two").expect_err("somebody was faster");
        assert!(error.is_conflict() && !error.is_superseded(), "{error}");
        assert_eq!(epoch_of(store, NEW), now, "neither without the other");
        assert_eq!(store.document("plan"), Ok(Some((version, "one".into()))), "neither without the other");
    }
    let late = adapted(a, a1, [1.0, 0.0], 1.0, 1.0);
    let refused = |error: Option<rehang_core::Error>| {
        let error = error.expect("an earlier plan writes nothing");
        assert!(error.is_superseded() && error.is_conflict(), "{error}");
        let counts = store.counts(NEW).unwrap();
        assert_eq!((counts.adapted, counts.lacking, counts.items), (0, 1, 1), "nothing of it was written");
    };
    refused(store.write_vectors(NEW, Some(first), std::slice::from_ref(&late)).err());
    refused(store.write_vectors(NEW, Some(now.next()), std::slice::from_ref(&late)).err());
    let put = |epoch: Epoch| {
        let mut put = write("a", Some("b"), &[(OLD, [0.0, 1.0])]);
        put.vectors.push(NewVector {
            provenance: Provenance::Adapted,
            sigma2: Some(0.5),
            priority: Some(Priority::new(QueueBand::NewOrChanged, 0.0)),
            epoch: Some(epoch),
            ..new_vector(NEW, [0.0, 1.0])
        });
        store.put(&[write("b", None, &[]), put])
    };
    refused(put(first).err());
    assert_eq!(store.get(&["b"]), Ok(vec![None]), "nor anything beside it");
    assert_eq!(store.write_vectors(NEW, Some(now), &[late]), Ok(vec![WriteOutcome::Written]));
    let place = [(a, a1, Priority::ordinary(9.0))];
    let error = store.set_priorities(NEW, first, &place).expect_err("nor another place");
    assert!(error.is_superseded(), "{error}");
    assert_eq!(store.set_priorities(NEW, now, &place), Ok(1));
    put(now).unwrap();
    let vector = store.vectors(NEW, &[a]).unwrap().remove(0).expect("it came with the item");
    assert_eq!((vector.provenance, vector.sigma2), (Provenance::Adapted, Some(0.5)));
    let item = store.get(&["a"]).unwrap().remove(0).expect("it is there");
    let outcome = store.write_vectors(NEW, None, &[native(a, item.revision, [1.0, 0.0])]);
    assert_eq!(outcome, Ok(vec![WriteOutcome::Written]), "what the model itself says needs no plan");
}

fn what_one_handle_writes_the_other_sees(store: &dyn Store, other: &dyn Store, _: &dyn Fn(Duration)) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    assert_eq!(other.get(&["a"]).unwrap()[0].as_ref().map(|item| item.key), Some(a));
    write_to(other, NEW, &[native(a, a1, [1.0, 0.0])]).unwrap();
    let hits = store.search(NEW, &matrix(&[[1.0, 0.0]]), 1, &Filter::default()).unwrap().remove(0);
    assert_eq!(hits[0].id, "a", "a search sees the writes of others");
    store.switch_serving(OLD, NEW).unwrap();
    assert_eq!(other.serving(), Ok(Some(NEW.into())));
    let version = store.set_document("plan", None, "x").unwrap();
    assert!(other.set_document("plan", None, "y").expect_err("there is one").is_conflict());
    other.set_document("plan", Some(version), "y").unwrap();
    assert_eq!(store.document("plan").unwrap().expect("it is there").1, "y");
}

fn an_item_is_leased_to_one_worker(store: &dyn Store, other: &dyn Store, pass: &dyn Fn(Duration)) {
    two_spaces(store);
    let mut queue = Vec::new();
    for (at, id) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let (key, revision) = put_one(store, id, Some(id));
        write_to(store, NEW, &[adapted(key, revision, [1.0, 0.0], 1.0, -(at as f64))]).unwrap();
        queue.push(id.to_owned());
    }
    put_one(store, "lost", None);
    let claim = |store: &dyn Store, worker: &str, limit: usize| -> (Vec<String>, u64) {
        let claimed = store.claim(NEW, Queue::All, worker, limit, LEASE).unwrap();
        for record in &claimed.records {
            let vector = record.vector.as_ref().expect("a claimed item comes with its vector");
            assert_eq!(
                (vector.vector.as_slice(), vector.revision),
                ([1.0, 0.0].as_slice(), record.item.revision)
            );
        }
        (claimed.records.into_iter().map(|record| record.item.id).collect(), claimed.held_by_others)
    };
    let at_work = |store: &dyn Store| -> Vec<(String, u64)> {
        let at_work = store.at_work(NEW).unwrap();
        assert!(at_work.iter().all(|worker| worker.left_ms <= LEASE.as_millis() as u64), "{at_work:?}");
        at_work.into_iter().map(|AtWork { worker, items, .. }| (worker, items)).collect()
    };
    assert_eq!(at_work(store), []);
    assert_eq!(claim(store, "left", 0), (vec![], 0));
    assert_eq!(claim(store, "left", 2), (queue[..2].to_vec(), 0), "worst first");
    assert_eq!(claim(store, "left", 1), (queue[2..3].to_vec(), 0), "its own ones neither");
    assert_eq!(claim(other, "right", 9), (queue[3..].to_vec(), 3), "nothing that another one holds");
    assert_eq!(claim(other, "right", 9), (vec![], 3), "nothing is left, and others are at work");
    assert_eq!(at_work(other), [("left".into(), 3), ("right".into(), 2)]);

    // One of the two lives on and says so; the other one has died.
    pass(LEASE / 2);
    assert_eq!(other.renew(NEW, "right", LEASE), Ok(2));
    assert_eq!(store.renew(NEW, "nobody", LEASE), Ok(0));
    pass(LEASE / 2);
    assert_eq!(at_work(store), [("right".into(), 2)], "a lease that ran out holds nothing");
    assert_eq!(claim(other, "right", 2), (queue[..2].to_vec(), 0), "and is anybody's");
    // The dead worker was but slow. Items that it held are not given back twice, and those that another one
    // holds now are not its to give back.
    let keys: Vec<ItemKey> = other
        .scan(&Scan::new(NEW, Select::Queued, 9))
        .unwrap()
        .into_iter()
        .map(|record| record.item.key)
        .collect();
    assert_eq!(store.release(NEW, "left", Some(&keys[..2])), Ok(0), "the other's stay the other's");
    assert_eq!(at_work(store), [("right".into(), 4)]);
    assert_eq!(other.release(NEW, "right", Some(&keys[..1])), Ok(1));
    assert_eq!(claim(store, "left", 9), (vec![queue[0].clone(), queue[2].clone()], 3));
    assert_eq!(store.release(NEW, "left", None), Ok(2), "all of its own");
    assert_eq!(other.release(NEW, "right", None), Ok(3));
    assert_eq!((at_work(store), claim(store, "left", 9).0), (vec![], queue), "everything is free again");
    store.drop_space(NEW).unwrap();
    other.create_space(&space(NEW), Provenance::Native).unwrap();
    assert_eq!(at_work(other), [], "a lease goes with its space");
}

fn a_lease_ends_with_what_it_was_for(store: &dyn Store, other: &dyn Store, pass: &dyn Fn(Duration)) {
    two_spaces(store);
    let ids = ["a", "b", "c", "d", "e", "f"];
    let items = ids.map(|id| put_one(store, id, Some(id)));
    for (key, revision) in items {
        write_to(store, NEW, &[adapted(key, revision, [1.0, 0.0], 1.0, 1.0)]).unwrap();
    }
    let claim = |store: &dyn Store, worker: &str| -> BTreeSet<String> {
        let claimed = store.claim(NEW, Queue::All, worker, 9, LEASE).unwrap();
        claimed.records.into_iter().map(|record| record.item.id).collect()
    };
    let held = || store.at_work(NEW).unwrap().iter().map(|worker| worker.items).sum::<u64>();
    assert_eq!(claim(store, "left").len(), 6);
    let [(a, a1), (b, b1), (c, c1), (d, d1), ..] = items;
    write_to(other, NEW, &[native(a, a1, [1.0, 0.0])]).unwrap();
    assert_eq!(held(), 5, "a native vector ends it, whoever wrote it");
    store.record_failures(NEW, &[(b, b1, "broken".into())]).unwrap();
    assert_eq!(held(), 4, "a recorded failure ends it");
    put_one(other, "c", Some("new"));
    assert_eq!(held(), 3, "a write of the application ends it");
    assert_eq!(claim(other, "right"), BTreeSet::from(["c".to_owned()]), "the new content is anybody's");
    let stale = write_to(store, NEW, &[native(c, c1, [1.0, 0.0])]);
    assert_eq!(stale, Ok(vec![WriteOutcome::Changed]), "the old content is nobody's");
    assert_eq!(held(), 4);
    store.delete(&["f"]).unwrap();
    assert_eq!(held(), 3, "a deletion ends it");
    write_to(other, NEW, &[adapted(d, d1, [0.0, 1.0], 1.0, 2.0)]).unwrap();
    assert_eq!(held(), 3, "an adapted vector leaves the item in the queue, and its worker at work");
    // Neither another worker's lease nor one that ran out is in the way of a write.
    pass(LEASE);
    let (e, e1) = items[4];
    let writes = [native(d, d1, [1.0, 0.0]), native(e, e1, [1.0, 0.0])];
    assert_eq!(write_to(other, NEW, &writes), Ok(vec![WriteOutcome::Written; 2]));
    store.clear_failures(NEW).unwrap();
    assert_eq!(claim(store, "left"), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
}

fn a_lease_outlives_a_write_of_the_old_vector(store: &dyn Store, other: &dyn Store, _: &dyn Fn(Duration)) {
    two_spaces(store);
    let put = |id: &str, source: &str, vectors: &[(&str, [f32; 2])]| {
        other.put(&[write(id, Some(source), vectors)]).unwrap();
    };
    // An application whose old vectors are made by a job writes so: the text first.
    for id in ["a", "b"] {
        put(id, "text", &[]);
    }
    let claim =
        |store: &dyn Store, worker: &str| store.claim(NEW, Queue::All, worker, 9, LEASE).unwrap().records;
    let claimed = claim(store, "left");
    assert_eq!(claimed.len(), 2);
    put("a", "text", &[(OLD, [1.0, 0.0])]);
    assert_eq!(claim(other, "right"), [], "the text is paid for once: it is still in hand");
    let vectors: Vec<VectorWrite> =
        claimed.iter().map(|record| VectorWrite::native(&record.item, vec![1.0, 0.0])).collect();
    assert_eq!(write_to(store, NEW, &vectors), Ok(vec![WriteOutcome::Written; 2]));
    put("b", "text", &[(OLD, [1.0, 0.0])]);
    assert_eq!(store.counts(NEW).unwrap().native, 2, "nor is it paid for again when the job comes later");
    assert_eq!((claim(store, "left"), store.at_work(NEW)), (vec![], Ok(vec![])));
    put("a", "other text", &[(NEW, [1.0, 0.0])]);
    put("b", "other text", &[]);
    assert_eq!(claim(store, "left").len(), 1);
    put("b", "other text", &[(NEW, [1.0, 0.0])]);
    assert_eq!(store.at_work(NEW), Ok(vec![]), "a native vector of the application ends a lease");
}

fn what_its_workers_end_with_goes_alone(store: &dyn Store, other: &dyn Store, pass: &dyn Fn(Duration)) {
    two_spaces(store);
    let items: Vec<_> = ["a", "b", "c", "d", "e"].map(|id| put_one(store, id, Some(id))).into();
    for (at, &(key, revision)) in items.iter().enumerate() {
        write_to(store, NEW, &[adapted(key, revision, [1.0, 0.0], 1.0, -(at as f64))]).unwrap();
    }
    let claim = |store: &dyn Store, worker: &str, limit: usize| -> (String, u32) {
        let claimed = store.claim(NEW, Queue::All, worker, limit, LEASE).unwrap();
        (claimed.records.into_iter().map(|record| record.item.id).collect(), claimed.lost)
    };
    assert_eq!(claim(store, "first", 4), ("abcd".into(), 0));
    pass(LEASE);
    store.release(NEW, "first", Some(&[items[0].0])).unwrap();
    assert_eq!(claim(other, "second", 3), ("abc".into(), 0), "of one that was given back nothing was lost");
    assert_eq!(claim(other, "second", 3), ("de".into(), 1));
    pass(LEASE);
    assert_eq!(claim(store, "third", 9), ("a".into(), 1), "those before the one that goes alone");
    assert_eq!(claim(store, "third", 9), ("b".into(), ALONE_AFTER), "only that one");
    assert_eq!(claim(store, "third", 0), (String::new(), 0));
    assert_eq!(claim(other, "fourth", 9), ("c".into(), ALONE_AFTER));
    pass(LEASE);
    assert_eq!(claim(other, "fifth", 9), ("a".into(), 2));
    assert_eq!(claim(other, "fifth", 9), ("b".into(), 3), "it is counted on");
    // Every other end of a lease begins the count anew.
    other.release(NEW, "fifth", None).unwrap();
    put_one(store, "c", Some("new"));
    let (d, d1) = items[3];
    store.record_failures(NEW, &[(d, d1, "broken".into())]).unwrap();
    store.clear_failures(NEW).unwrap();
    assert_eq!(claim(store, "sixth", 9), ("cabde".into(), 0), "the changed one lacks a vector");
    write_to(
        store,
        NEW,
        &items[..2].iter().map(|&(key, revision)| native(key, revision, [1.0, 0.0])).collect::<Vec<_>>(),
    )
    .unwrap();
    pass(LEASE);
    assert_eq!(claim(other, "seventh", 9), ("cd".into(), 1));
    assert_eq!(claim(other, "seventh", 9), ("e".into(), 2), "it was lost before");
}

fn a_plan_fences_every_handle(store: &dyn Store, other: &dyn Store, _: &dyn Fn(Duration)) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let first = epoch_of(store, NEW);
    store.write_vectors(NEW, Some(first), &[adapted(a, a1, [1.0, 0.0], 1.0, 1.0)]).unwrap();
    other.advance(NEW, first, "plan", None, "of the other").unwrap();
    let error = store.write_vectors(NEW, Some(first), &[adapted(a, a1, [0.0, 1.0], 1.0, 1.0)]);
    assert!(error.expect_err("the other one has planned anew").is_superseded());
    let error = store.advance(NEW, first, "plan", None, "of the one").expect_err("too late");
    assert!(error.is_conflict(), "{error}");
    assert_eq!(store.vectors(NEW, &[a]).unwrap()[0].as_ref().expect("it is there").vector, [1.0, 0.0]);
    let now = first.next();
    other.write_vectors(NEW, Some(now), &[adapted(a, a1, [0.0, 1.0], 1.0, 1.0)]).unwrap();
    assert_eq!(store.vectors(NEW, &[a]).unwrap()[0].as_ref().expect("it is there").vector, [0.0, 1.0]);
    // Many write while plans follow each other: each adapted vector in the end is of the last plan.
    let ids: Vec<String> = (0..40).map(|at| format!("i{at}")).collect();
    let writes: Vec<ItemWrite> = ids.iter().map(|id| write(id, Some(id), &[])).collect();
    store.put(&writes).unwrap();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let items: Vec<Item> = store.get(&names).unwrap().into_iter().flatten().collect();
    // A vector has the number of the epoch it was written in as a coordinate.
    let fill = |store: &dyn Store, epoch: Epoch| -> usize {
        let vector = [epoch.number() as f32, 1.0];
        let writes = |some: &[Item]| -> Vec<VectorWrite> {
            some.iter().map(|item| adapted(item.key, item.revision, vector, 1.0, 1.0)).collect()
        };
        items.chunks(3).filter(|some| store.write_vectors(NEW, Some(epoch), &writes(some)).is_ok()).count()
    };
    let are_planned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // An item that gets its vector or its place while a queue is read stands in two of its parts.
        let worker = scope.spawn(|| {
            while !are_planned.load(Ordering::Relaxed) {
                let claimed = store.claim(NEW, Queue::All, "worker", 50, LEASE).unwrap().records;
                let queued = store.scan(&Scan::new(NEW, Select::Queued, 50)).unwrap();
                for records in [claimed, queued] {
                    let keys: BTreeSet<ItemKey> = records.iter().map(|record| record.item.key).collect();
                    assert_eq!(keys.len(), records.len(), "an item twice");
                }
                store.release(NEW, "worker", None).unwrap();
            }
        });
        let filler = scope.spawn(|| fill(store, now));
        let planner = scope.spawn(|| {
            let version = other.document("plan").unwrap().expect("it is there").0;
            other.advance(NEW, now, "plan", Some(version), "again").unwrap();
            assert_eq!(fill(other, now.next()), items.len().div_ceil(3), "nobody fences the last plan");
        });
        let planned = [planner.join(), filler.join().map(drop)];
        are_planned.store(true, Ordering::Relaxed);
        worker.join().expect("the worker did not fail");
        for planned in planned {
            planned.expect("neither the filler nor the planner failed");
        }
    });
    let last = now.next().number() as f32;
    for vector in store.vectors(NEW, &items.iter().map(|item| item.key).collect::<Vec<_>>()).unwrap() {
        assert_eq!(vector.expect("it was written").vector, [last, 1.0], "a vector of an earlier plan");
    }
}

fn space(name: &str) -> Space {
    Space::new(name, 2, Distance::L2, false)
}

fn two_spaces(store: &dyn Store) {
    store.create_space(&space(OLD), Provenance::Old).unwrap();
    store.create_space(&space(NEW), Provenance::Native).unwrap();
}

/// Key that no item has.
const NOBODY: ItemKey = ItemKey::new(1 << 62);

const LEASE: Duration = Duration::from_secs(30);

/// Sorts ids by the keys of their items.
fn by_key(store: &dyn Store, ids: &[&str]) -> Vec<String> {
    let mut items: Vec<Item> = store.get(ids).unwrap().into_iter().flatten().collect();
    items.sort_by_key(|item| item.key);
    items.into_iter().map(|item| item.id).collect()
}

fn epoch_of(store: &dyn Store, space: &str) -> Epoch {
    rehang_store::find_space(store, space).unwrap().map_or(Epoch::FIRST, |record| record.epoch)
}

/// Writes vectors in the space's present epoch.
fn write_to(store: &dyn Store, space: &str, writes: &[VectorWrite]) -> Result<Vec<WriteOutcome>> {
    store.write_vectors(space, Some(epoch_of(store, space)), writes)
}

fn prioritise(store: &dyn Store, priorities: &[(ItemKey, Revision, Priority)]) -> Result<usize> {
    store.set_priorities(NEW, epoch_of(store, NEW), priorities)
}

fn sample(space: &str, among: Among, size: usize) -> Sample {
    Sample { space: space.into(), among, seed: 7, size, vectors_of: None }
}

fn new_vector(space: &str, vector: [f32; 2]) -> NewVector {
    let provenance = if space == OLD { Provenance::Old } else { Provenance::Native };
    NewVector::from_model(space, vector.to_vec(), provenance)
}

fn write(id: &str, source: Option<&str>, vectors: &[(&str, [f32; 2])]) -> ItemWrite {
    ItemWrite::new(
        id,
        source.map(Into::into),
        vectors.iter().map(|&(space, vector)| new_vector(space, vector)).collect(),
    )
}

/// Puts an item with an old vector and gives its key and revision.
fn put_one(store: &dyn Store, id: &str, source: Option<&str>) -> (ItemKey, Revision) {
    let revision = store.put(&[write(id, source, &[(OLD, [1.0, 0.0])])]).unwrap()[0];
    let item = store.get(&[id]).unwrap().remove(0).expect("what was put is there");
    (item.key, revision)
}

fn native(key: ItemKey, revision: Revision, vector: [f32; 2]) -> VectorWrite {
    VectorWrite {
        key,
        revision,
        provenance: Provenance::Native,
        sigma2: None,
        priority: None,
        squared_error: None,
        vector: vector.to_vec(),
    }
}

fn adapted(key: ItemKey, revision: Revision, vector: [f32; 2], sigma2: f32, priority: f64) -> VectorWrite {
    VectorWrite {
        provenance: Provenance::Adapted,
        sigma2: Some(sigma2),
        priority: Some(Priority::ordinary(priority)),
        ..native(key, revision, vector)
    }
}

fn matrix<const N: usize>(rows: &[[f32; N]]) -> Matrix {
    Matrix::from_fn(rows.len(), N, |row, column| rows[row][column])
}
