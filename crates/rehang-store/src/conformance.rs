//! What every store must do, as a suite that any adapter can run.
//!
//! ```
//! rehang_store::conformance::suite(rehang_store::MemoryStore::new);
//! ```

use std::collections::BTreeSet;

use rehang::{Distance, ErrorKind, Matrix, Provenance, Result, Space};
use serde_json::{Value, json};

use crate::contract::{
    Counts, Filter, Found, ItemKey, ItemWrite, NewVector, Outcome, Revision, Scan, Select, Store, VectorWrite,
};

/// Runs everything that the contract promises against new, empty stores.
///
/// # Panics
///
/// Where a promise is not kept: the message says which one.
pub fn suite<S: Store>(make_store: impl Fn() -> S) {
    for promise in PROMISES {
        promise(&make_store());
    }
}

const PROMISES: [fn(&dyn Store); 15] = [
    an_empty_gallery_answers,
    spaces_are_made_once_and_dropped,
    the_serving_space_is_switched_in_one_step,
    a_put_is_a_change_of_content,
    a_put_is_all_or_nothing,
    keys_and_revisions_are_never_given_twice,
    conditional_writes_do_no_harm,
    vectors_are_checked_at_the_door,
    scans_select_and_page,
    the_worst_come_first,
    failures_are_set_aside,
    searches_are_exact_enough_fresh_and_filtered,
    errors_are_newest_first,
    documents_are_compared_and_set,
    two_workers_never_harm,
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
    not_found("vectors", store.vectors("nothing", &[1]).map(drop));
    not_found("provenances", store.provenances("nothing", &[1]).map(drop));
    not_found("write_vectors", store.write_vectors("nothing", &[native(1, 1, [1.0, 0.0])]).map(drop));
    not_found("set_priorities", store.set_priorities("nothing", &[(1, 1, 1.0)]).map(drop));
    not_found("scan", store.scan(&Scan::new("nothing", Select::All, 1)).map(drop));
    not_found("search", store.search("nothing", &query, 1, &Filter::default()).map(drop));
    not_found("counts", store.counts("nothing").map(drop));
    not_found("record_failures", store.record_failures("nothing", &[(1, 1, "x".into())]));
    not_found("failures", store.failures("nothing", None, 1).map(drop));
    not_found("clear_failures", store.clear_failures("nothing").map(drop));
    not_found("errors", store.errors("nothing", 1).map(drop));
    not_found("recall", store.recall("nothing", 1, 1).map(drop));
    not_found("rebuild", store.rebuild("nothing"));
    not_found("put", store.put(&[write("a", Some("a"), &[("nothing", [1.0, 0.0])])]).map(drop));
    assert_eq!(store.get(&["a"]), Ok(vec![None]), "a put that failed wrote nothing");
    assert_eq!(store.flush(), Ok(()), "flushing an empty store is fine");
    store.create_space(&space(OLD), Provenance::Old).unwrap();
    not_found("vectors_of", store.scan(&Scan::new(OLD, Select::All, 1).with_vectors_of("nothing")).map(drop));
    assert_eq!(store.counts(OLD), Ok(Counts::default()), "nothing is counted in an empty space");
    let found = store.search(OLD, &query, 3, &Filter::default());
    assert_eq!(found, Ok(vec![vec![]]), "a search in an empty space finds nothing");
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
        || -> Vec<String> { store.spaces().unwrap().into_iter().map(|record| record.space.model).collect() };
    assert_eq!(names(), [OLD, NEW], "spaces are listed in the order of creation");
    let records = store.spaces().unwrap();
    assert_eq!(records[0].space, space(OLD), "a space comes back as it was made");
    assert_eq!(records[1].written_as, Provenance::Native, "and so does its provenance");
    store.put(&[write("a", None, &[(OLD, [1.0, 0.0]), (NEW, [0.0, 1.0])])]).unwrap();
    let after = store.spaces().unwrap();
    assert!(after[0].change > records[0].change, "the change of a space grows with every write");
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
    let outcome = store.write_vectors(NEW, &[adapted(item.key, revision, [0.0, 1.0], 0.5, 1.0)]);
    assert_eq!(outcome, Ok(vec![Outcome::Written]));
    store.record_failures(NEW, &[(item.key, revision, "no".into())]).unwrap();

    let again = store.put(&[write("a", Some("b.jpg"), &[(OLD, [0.0, 1.0])])]).unwrap()[0];
    assert!(again > revision, "a new write has a new revision");
    let changed = store.get(&["a"]).unwrap().remove(0).expect("it is still there");
    assert_eq!((changed.key, changed.label), (item.key, None), "the key stays, what is not given is gone");
    assert_eq!(store.vectors(NEW, &[item.key]), Ok(vec![None]), "a vector of the content before is removed");
    let vector = store.vectors(OLD, &[item.key]).unwrap().remove(0).expect("the new one is there");
    assert_eq!((vector.vector, vector.revision), (vec![0.0, 1.0], again));
    assert_eq!(vector.provenance, Provenance::Old);
    assert_eq!(store.failures(NEW, None, 9), Ok(vec![]), "a failure of the content before is forgotten");

    let twice = [write("b", None, &[(OLD, [1.0, 0.0])]), write("b", Some("last"), &[])];
    let revisions = store.put(&twice).unwrap();
    assert!(revisions[0] < revisions[1], "an id that is twice in a call is written twice");
    let b = store.get(&["b"]).unwrap().remove(0).expect("b is there");
    assert_eq!((b.source.as_deref(), b.revision), (Some("last"), revisions[1]), "the last one stays");
    assert_eq!(store.vectors(OLD, &[b.key]), Ok(vec![None]), "and its vectors are those of the last one");
    assert_eq!(store.delete(&["b", "b", "nobody"]), Ok(1), "who existed is counted once");
    assert_eq!(store.vectors(OLD, &[b.key]), Ok(vec![None]));
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

fn keys_and_revisions_are_never_given_twice(store: &dyn Store) {
    two_spaces(store);
    let (mut keys, mut revisions) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..3 {
        let given = store.put(&[write("a", None, &[]), write("b", None, &[])]).unwrap();
        for (id, revision) in ["a", "b"].into_iter().zip(given) {
            let item = store.get(&[id]).unwrap().remove(0).expect("it was put");
            assert_eq!(item.revision, revision);
            assert!(keys.insert(item.key), "key {} was given twice", item.key);
            assert!(revisions.insert(revision), "revision {revision} was given twice");
        }
        assert_eq!(store.delete(&["a", "b"]), Ok(2));
    }
    assert!(revisions.iter().next() > Some(&0), "revisions start above 0, the cursor that has seen nothing");
}

fn conditional_writes_do_no_harm(store: &dyn Store) {
    two_spaces(store);
    let (a, revision) = put_one(store, "a", Some("a"));
    let write_one = |write: VectorWrite| store.write_vectors(NEW, &[write]).unwrap()[0];
    assert_eq!(write_one(native(a + 1000, 1, [1.0, 0.0])), Outcome::Deleted, "no such item");
    assert_eq!(write_one(native(a, revision + 1000, [1.0, 0.0])), Outcome::Changed, "another revision");
    assert_eq!(store.counts(NEW).unwrap().lacking, 1, "a write that is not applied writes nothing");
    assert_eq!(write_one(adapted(a, revision, [1.0, 0.0], 0.25, 7.0)), Outcome::Written);
    let there = |key: ItemKey| store.vectors(NEW, &[key]).unwrap().remove(0);
    let vector = there(a).expect("it was written");
    assert_eq!((vector.provenance, vector.revision), (Provenance::Adapted, revision));
    assert_eq!((vector.sigma2, vector.priority, vector.squared_error), (Some(0.25), Some(7.0), None));
    assert_eq!(
        write_one(adapted(a, revision, [0.0, 1.0], 0.5, 3.0)),
        Outcome::Written,
        "adapted over adapted"
    );
    let mut better = native(a, revision, [0.6, 0.8]);
    better.squared_error = Some(0.75);
    assert_eq!(write_one(better.clone()), Outcome::Written, "native over adapted");
    let vector = there(a).expect("it was written");
    assert_eq!(vector.vector, [0.6, 0.8]);
    assert_eq!(
        (vector.provenance, vector.sigma2, vector.squared_error),
        (Provenance::Native, Some(0.5), Some(0.75)),
        "σ² is kept when a native vector takes the place"
    );
    assert_eq!(write_one(better), Outcome::AlreadyThere, "a native vector is never replaced");
    assert_eq!(write_one(adapted(a, revision, [1.0, 0.0], 1.0, 1.0)), Outcome::AlreadyThere);
    assert_eq!(there(a).expect("still there").vector, [0.6, 0.8]);
    let old = store.write_vectors(OLD, &[native(a, revision, [1.0, 0.0])]);
    assert_eq!(old, Ok(vec![Outcome::AlreadyThere]), "an old vector is never replaced");

    let now = store.put(&[write("a", Some("new"), &[])]).unwrap()[0];
    assert_eq!(write_one(native(a, revision, [1.0, 0.0])), Outcome::Changed, "the content has changed");
    assert_eq!(there(a), None);
    let batch = [
        adapted(a, now, [1.0, 0.0], 0.5, 1.0),
        native(a + 1000, 1, [1.0, 0.0]),
        native(a, now, [0.0, 1.0]),
        native(a, now, [1.0, 0.0]),
    ];
    let outcomes = [Outcome::Written, Outcome::Deleted, Outcome::Written, Outcome::AlreadyThere];
    assert_eq!(
        store.write_vectors(NEW, &batch).unwrap(),
        outcomes,
        "each of a batch has an outcome of its own"
    );
    store.delete(&["a"]).unwrap();
    assert_eq!(write_one(native(a, now, [1.0, 0.0])), Outcome::Deleted, "a deleted item never comes back");
    assert_eq!(store.get(&["a"]), Ok(vec![None]));
    put_one(store, "a", None);
    assert_eq!(write_one(native(a, now, [1.0, 0.0])), Outcome::Deleted, "nor as another item of the same id");
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
        let error = store.write_vectors(space, &[good, bad]).expect_err("a bad vector does not enter");
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
    assert!(store.write_vectors(NEW, &[old]).is_err(), "an upgrade writes no old vectors");
    assert!(store.write_vectors(NEW, &[adapted(a, revision, [1.0, 0.0], f32::NAN, 1.0)]).is_err());
    assert!(store.write_vectors(NEW, &[adapted(a, revision, [1.0, 0.0], 1.0, f64::NAN)]).is_err());
    assert!(store.set_priorities(NEW, &[(a, revision, f64::NAN)]).is_err(), "NaN has no place in a queue");
    let wide = Matrix::new(3, vec![0.0; 3]).expect("a matrix");
    let error =
        store.search(NEW, &wide, 1, &Filter::default()).expect_err("queries are as wide as the space");
    assert!(error.is_mismatch(), "{error}");
    let error = store.search(NEW, &matrix(&[[f32::NAN, 0.0]]), 1, &Filter::default());
    assert!(error.expect_err("a query is finite").is_corrupt());
}

fn scans_select_and_page(store: &dyn Store) {
    two_spaces(store);
    let mut given: Vec<(ItemKey, Revision)> = Vec::new();
    for id in ["a", "b", "c", "d", "e", "f"] {
        given.push(put_one(store, id, Some(id)));
    }
    let sigma = [Some(0.5), None, Some(2.0), Some(0.5)];
    for (&(key, revision), sigma2) in given.iter().zip(sigma) {
        let mut write = adapted(key, revision, [1.0, 0.0], 0.0, 0.0);
        write.sigma2 = sigma2;
        assert_eq!(store.write_vectors(NEW, &[write]), Ok(vec![Outcome::Written]));
    }
    store.write_vectors(NEW, &[native(given[4].0, given[4].1, [0.0, 1.0])]).unwrap();
    let ids = |scan: Scan| -> Vec<String> {
        store.scan(&scan).unwrap().into_iter().map(|record| record.item.id).collect()
    };
    let page = |select: Select, limit: usize| ids(Scan::new(NEW, select, limit));
    assert_eq!(page(Select::All, 9), ["a", "b", "c", "d", "e", "f"], "all, by key");
    assert_eq!(page(Select::All, 2), ["a", "b"], "a page is at most as long as its limit");
    assert!(page(Select::All, 0).is_empty());
    assert_eq!(ids(Scan::new(NEW, Select::All, 2).after(Some(given[1].0))), ["c", "d"], "after a key");
    let except = BTreeSet::from([given[0].0, given[2].0]);
    let mut left_out = Scan::new(NEW, Select::All, 2).except(except.clone());
    assert_eq!(ids(left_out.clone()), ["b", "d"], "items left out do not use up the page");
    left_out.select = Select::Provenance(Provenance::Adapted);
    assert_eq!(ids(left_out), ["b", "d"]);
    assert_eq!(page(Select::Provenance(Provenance::Adapted), 9), ["a", "b", "c", "d"]);
    assert_eq!(page(Select::Provenance(Provenance::Native), 9), ["e"]);
    assert!(page(Select::Provenance(Provenance::Old), 9).is_empty());
    let after = Scan::new(NEW, Select::Provenance(Provenance::Adapted), 9).after(Some(given[1].0));
    assert_eq!(ids(after), ["c", "d"]);
    let made_by = store.provenances(NEW, &[given[4].0, 999, given[5].0, given[0].0]).unwrap();
    let (adapted_one, native_one) = (Some(Provenance::Adapted), Some(Provenance::Native));
    assert_eq!(made_by, [native_one, None, None, adapted_one], "who made each vector, in order");
    assert_eq!(page(Select::Lacking, 9), ["f"]);
    assert!(ids(Scan::new(NEW, Select::Lacking, 9).after(Some(given[5].0))).is_empty());
    assert_eq!(
        page(Select::SigmaDescending, 9),
        ["c", "a", "d", "b"],
        "σ² descending, ties by key, none last"
    );
    let sigma_except = Scan::new(NEW, Select::SigmaDescending, 2).except(except);
    assert_eq!(ids(sigma_except), ["d", "b"]);

    assert!(page(Select::WithoutSource, 9).is_empty(), "all of them have a source");
    let (bare, bare_revision) = put_one(store, "g", None);
    put_one(store, "h", None);
    let (last, last_revision) = put_one(store, "i", None);
    store.write_vectors(NEW, &[adapted(bare, bare_revision, [1.0, 0.0], 0.0, 0.0)]).unwrap();
    assert_eq!(page(Select::WithoutSource, 9), ["g", "h", "i"], "adapted and lacking ones together, by key");
    assert_eq!(page(Select::WithoutSource, 2), ["g", "h"]);
    assert_eq!(ids(Scan::new(NEW, Select::WithoutSource, 9).after(Some(bare))), ["h", "i"], "after a key");
    store.write_vectors(NEW, &[native(last, last_revision, [0.0, 1.0])]).unwrap();
    assert_eq!(page(Select::WithoutSource, 9), ["g", "h"], "a native vector needs no source");
    store.delete(&["g", "h", "i"]).unwrap();

    let seen = given[3].1;
    let (_, changed) = put_one(store, "a", Some("a"));
    let records = store.scan(&Scan::new(NEW, Select::ChangedSince(seen), 9)).unwrap();
    let revisions: Vec<Revision> = records.iter().map(|record| record.item.revision).collect();
    assert_eq!(revisions, [given[4].1, given[5].1, changed], "changed since, by revision");
    assert_eq!(page(Select::ChangedSince(seen), 1), ["e"]);
    assert!(page(Select::ChangedSince(changed), 9).is_empty());

    let records = store.scan(&Scan::new(NEW, Select::All, 9).with_vectors_of(OLD)).unwrap();
    assert_eq!(records[0].state, None, "the changed item has no vector in the scanned space any more");
    let old = records[0].vector.as_ref().expect("but one in the other space");
    assert_eq!((old.vector.as_slice(), old.revision), ([1.0, 0.0].as_slice(), changed));
    let state = records[2].state.as_ref().expect("it has one");
    assert_eq!((state.sigma2, state.provenance), (Some(2.0), Provenance::Adapted));
    assert!(state.vector.is_empty(), "the state comes without numbers");
    let own =
        store.scan(&Scan::new(NEW, Select::Provenance(Provenance::Native), 9).with_vectors_of(NEW)).unwrap();
    assert_eq!(own[0].vector.as_ref().expect("it has one").vector, [0.0, 1.0]);
    let without = store.scan(&Scan::new(NEW, Select::All, 9)).unwrap();
    assert!(without.iter().all(|record| record.vector.is_none()), "no vectors where none were asked for");
}

fn the_worst_come_first(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let (b, b1) = put_one(store, "b", Some("b"));
    let (c, c1) = put_one(store, "c", Some("c"));
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
        adapted(lost, lost1, [1.0, 0.0], 1.0, 9.0),
    ];
    assert_eq!(store.write_vectors(NEW, &writes), Ok(vec![Outcome::Written; 5]));
    let ids = |scan: Scan| -> Vec<String> {
        store.scan(&scan).unwrap().into_iter().map(|record| record.item.id).collect()
    };
    let worst = |limit: usize| ids(Scan::new(NEW, Select::WorstFirst, limit));
    assert_eq!(
        worst(9),
        ["f", "g", "b", "a", "c", "d"],
        "lacking ones by key, then by priority, ties by key, none last, nothing without a source"
    );
    assert_eq!(worst(3), ["f", "g", "b"]);
    assert_eq!(worst(1), ["f"]);
    assert_eq!(
        ids(Scan::new(NEW, Select::WorstFirst, 3).after(Some(b))),
        ["f", "g", "b"],
        "after is not used"
    );
    let in_flight = BTreeSet::from([b, a]);
    assert_eq!(ids(Scan::new(NEW, Select::WorstFirst, 4).except(in_flight)), ["f", "g", "c", "d"]);
    let changed =
        store.set_priorities(NEW, &[(a, a1, -1.0), (c, c1 + 1000, 99.0), (c + 1000, 1, 1.0), (d, d1, 8.5)]);
    assert_eq!(changed, Ok(2), "only adapted vectors of the revision that was read");
    assert_eq!(worst(9), ["f", "g", "d", "b", "c", "a"]);
    store.write_vectors(NEW, &[native(d, d1, [1.0, 0.0])]).unwrap();
    assert_eq!(store.set_priorities(NEW, &[(d, d1, 1.0)]), Ok(0), "a native vector has left the queue");
    assert_eq!(worst(9), ["f", "g", "b", "c", "a"]);
    let counts = Counts { items: 8, old: 0, adapted: 4, native: 1, lacking: 3, failed: 0, without_source: 2 };
    assert_eq!(store.counts(NEW), Ok(counts));
}

fn failures_are_set_aside(store: &dyn Store) {
    two_spaces(store);
    let (a, a1) = put_one(store, "a", Some("a"));
    let (b, b1) = put_one(store, "b", Some("b"));
    let (c, c1) = put_one(store, "c", Some("c"));
    store.write_vectors(NEW, &[adapted(b, b1, [1.0, 0.0], 1.0, 1.0)]).unwrap();
    let said = [
        (a, a1, "vanished".to_owned()),
        (b, b1, "first".to_owned()),
        (b, b1, "broken".to_owned()),
        (c, c1 + 1000, "of another revision".to_owned()),
        (c + 1000, 1, "of nobody".to_owned()),
    ];
    store.record_failures(NEW, &said).unwrap();
    let listed = |after: Option<ItemKey>, limit: usize| -> Vec<(String, Revision, String)> {
        let failures = store.failures(NEW, after, limit).unwrap();
        failures.into_iter().map(|failure| (failure.id, failure.revision, failure.reason)).collect()
    };
    let (of_a, of_b) =
        (("a".to_owned(), a1, "vanished".to_owned()), ("b".to_owned(), b1, "broken".to_owned()));
    assert_eq!(listed(None, 9), [of_a.clone(), of_b.clone()], "by key; the last reason counts");
    assert_eq!(listed(Some(a), 9), [of_b]);
    assert_eq!(listed(None, 1), [of_a]);
    assert_eq!(store.failures(OLD, None, 9), Ok(vec![]), "failures belong to a space");
    assert_eq!(store.counts(NEW).unwrap().failed, 2);
    let worst = || -> Vec<String> {
        let records = store.scan(&Scan::new(NEW, Select::WorstFirst, 9)).unwrap();
        records.into_iter().map(|record| record.item.id).collect()
    };
    assert_eq!(worst(), ["c"], "what failed is left out");
    let lacking = store.scan(&Scan::new(NEW, Select::Lacking, 9)).unwrap();
    assert_eq!(lacking.len(), 2, "but is still lacking");
    store.write_vectors(NEW, &[native(b, b1, [1.0, 0.0])]).unwrap();
    assert_eq!(listed(None, 9).len(), 1, "a written vector clears the failure");
    store.record_failures(NEW, &[(b, b1, "late".into())]).unwrap();
    store.record_failures(OLD, &[(b, b1, "of an old vector".into())]).unwrap();
    assert_eq!(listed(None, 9).len(), 1, "what is native meanwhile has not failed");
    assert_eq!(store.failures(OLD, None, 9), Ok(vec![]), "nor has what is old");
    assert_eq!(store.counts(NEW).unwrap().failed, 1);
    assert_eq!(store.clear_failures(NEW), Ok(1));
    assert_eq!(store.clear_failures(NEW), Ok(0));
    assert_eq!(worst(), ["a", "c"], "what was forgotten is tried again");
    store.record_failures(NEW, &[(a, a1, "again".into())]).unwrap();
    store.delete(&["a"]).unwrap();
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
            let mut write =
                write(&format!("i{at}"), None, &distances.map(|distance| (distance.name(), vector)));
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
    let ids = |found: &[Found]| -> Vec<String> { found.iter().map(|found| found.id.clone()).collect() };
    let everything = Filter::default();
    let root = 5_f32.sqrt();
    for (distance, order, measured) in [
        (Distance::L2, ["i0", "i5", "i1", "i3", "i2", "i4"], [2.0, 2.0, 5.0, 5.0, 10.0, 10.0]),
        (
            Distance::Cosine,
            ["i2", "i0", "i5", "i1", "i3", "i4"],
            [1.0 - 2.0 / root, 1.0 - 2.0 / root, 1.0 - 2.0 / root, 1.0 - 1.0 / root, 1.0, 1.0 + 2.0 / root],
        ),
        (Distance::Dot, ["i2", "i0", "i5", "i1", "i3", "i4"], [-10.0, -2.0, -2.0, -2.0, 0.0, 2.0]),
    ] {
        let found = search(distance.name(), 9, &everything);
        let mut by_key: Vec<&Found> = found.iter().collect();
        by_key.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
        assert!(found.iter().eq(by_key), "{distance}: nearest first, ties by key");
        for (found, expected) in found.iter().zip(measured) {
            let close = (found.distance - expected).abs() <= 1e-4 * expected.abs().max(1e-2);
            assert!(close, "{distance}: {} is at {}, not at {expected}", found.id, found.distance);
        }
        // Cosine ties of a different length are equal only up to rounding.
        if distance != Distance::Cosine && distance != Distance::Dot {
            assert_eq!(ids(&found), order, "{distance}");
        }
        assert_eq!(found.len(), order.len(), "{distance}: everything is found where k is larger");
        assert_eq!(found[0].provenance, Provenance::Native, "a hit says who made its vector");
        assert!(revisions.contains(&found[0].revision), "and which revision it is of");
        assert_eq!(search(distance.name(), 2, &everything), found[..2], "{distance}: the k nearest");
    }
    assert!(search("l2", 0, &everything).is_empty());
    assert_eq!(store.search("l2", &Matrix::default(), 3, &everything), Ok(vec![]), "no queries, no answers");
    let both = store.search("l2", &matrix(&[[1.0, 0.0], [0.0, 2.0]]), 1, &everything).unwrap();
    assert_eq!((ids(&both[0]), ids(&both[1])), (vec!["i0".to_owned()], vec!["i1".to_owned()]));

    let even = Filter { labels: vec!["odd".into(), "even".into()], ..Filter::default() };
    assert_eq!(ids(&search("l2", 2, &even)), ["i0", "i2"], "labels");
    let third = Filter { payload: vec![("third".into(), json!(true))], ..Filter::default() };
    assert_eq!(ids(&search("l2", 9, &third)), ["i0", "i3"], "payload");
    let one =
        Filter { payload: vec![("third".into(), json!(true)), ("at".into(), json!(3))], ..Filter::default() };
    assert_eq!(ids(&search("l2", 9, &one)), ["i3"], "all fields must be equal");
    let old = Filter { provenances: vec![Provenance::Old, Provenance::Adapted], ..Filter::default() };
    assert!(search("l2", 9, &old).is_empty(), "provenances");
    let nobody = Filter { labels: vec!["nobody".into()], ..Filter::default() };
    assert!(search("l2", 9, &nobody).is_empty());

    store.delete(&["i0"]).unwrap();
    assert_eq!(ids(&search("l2", 2, &everything)), ["i5", "i1"], "a deleted item is not found");
    let moved = store.put(&[write("i4", None, &[("l2", [2.0, 1.0])])]).unwrap()[0];
    let found = search("l2", 1, &everything);
    assert_eq!(
        (found[0].id.as_str(), found[0].distance, found[0].revision),
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
        store.write_vectors(NEW, &[adapted(key, revision, [1.0, 0.0], at as f32, 1.0)]).unwrap();
    }
    assert_eq!(store.errors(NEW, 9), Ok(vec![]), "no native vector, no error");
    for (id, error) in [("b", Some(20.0)), ("c", None), ("a", Some(10.0))] {
        let item = store.get(&[id]).unwrap().remove(0).expect("it was put");
        let mut write = native(item.key, item.revision, [0.0, 1.0]);
        write.squared_error = error;
        store.write_vectors(NEW, &[write]).unwrap();
    }
    assert_eq!(store.errors(NEW, 9), Ok(vec![(0.0, 10.0), (1.0, 20.0)]), "newest first");
    assert_eq!(store.errors(NEW, 1), Ok(vec![(0.0, 10.0)]));
    put_one(store, "a", Some("new"));
    assert_eq!(store.errors(NEW, 9), Ok(vec![(1.0, 20.0)]), "a changed item has no error");
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
    let worker = |value: f32| -> Vec<Outcome> {
        let items = keys.iter().zip(&revisions);
        let writes: Vec<VectorWrite> =
            items.map(|(&key, &revision)| native(key, revision, [value, 0.0])).collect();
        writes.chunks(7).flat_map(|batch| store.write_vectors(NEW, batch).unwrap()).collect()
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
                for found in
                    store.search(NEW, &matrix(&[[1.0, 0.0]]), 60, &Filter::default()).unwrap().remove(0)
                {
                    assert_eq!(found.provenance, Provenance::Native, "a reader sees who made each vector");
                }
            }
        });
        changer.join().expect("the changer did not fail");
        searcher.join().expect("the searcher did not fail");
        (left.join().expect("the worker did not fail"), right.join().expect("the worker did not fail"))
    });
    let vectors = store.vectors(NEW, &keys).unwrap();
    for at in 0..60 {
        let written = [left[at], right[at]].iter().filter(|&&outcome| outcome == Outcome::Written).count();
        assert!(written <= 1, "item {at} was written by both workers");
        if at < 40 {
            assert_eq!(written, 1, "item {at} was written by one of them");
            let value = if left[at] == Outcome::Written { 1.0 } else { 2.0 };
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

fn space(name: &str) -> Space {
    Space::new(name, 2, Distance::L2, false)
}

fn two_spaces(store: &dyn Store) {
    store.create_space(&space(OLD), Provenance::Old).unwrap();
    store.create_space(&space(NEW), Provenance::Native).unwrap();
}

fn new_vector(space: &str, vector: [f32; 2]) -> NewVector {
    let provenance = if space == OLD { Provenance::Old } else { Provenance::Native };
    NewVector { space: space.into(), vector: vector.to_vec(), provenance, sigma2: None, priority: None }
}

fn write(id: &str, source: Option<&str>, vectors: &[(&str, [f32; 2])]) -> ItemWrite {
    ItemWrite {
        id: id.into(),
        source: source.map(Into::into),
        label: None,
        payload: Value::Null,
        vectors: vectors.iter().map(|&(space, vector)| new_vector(space, vector)).collect(),
    }
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
        priority: Some(priority),
        ..native(key, revision, vector)
    }
}

fn matrix<const N: usize>(rows: &[[f32; N]]) -> Matrix {
    Matrix::from_fn(rows.len(), N, |row, column| rows[row][column])
}
