//! An application writes plain requests beside a gallery. The gallery says the right thing, and the
//! application loses nothing.

#![allow(clippy::disallowed_methods, reason = "tests wait for a server, and let time pass while it is away")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rehang_core::{Distance, ErrorKind, Matrix, Provenance, Remedy, Space};
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{
    Epoch, Examined, Filter, Index, ItemKey, ItemWrite, Ledger, NewVector, Priority, Queue, Released, Scan,
    Select, VectorWrite, WriteOutcome,
};
use serde_json::{Value, json};

use crate::server::{self, Server, send};

const WIDTH: usize = 4;
/// Number of points that are written while an application writes, too.
const POINTS: u64 = 40;
const NEW: &str = "org/new.model";

fn options(collection: &str) -> CollectionOptions {
    CollectionOptions {
        collection: collection.to_owned(),
        source: Some("body".into()),
        label: Some("topic".into()),
        payload: None,
        vector: Some("embedding".into()),
    }
}

fn point(id: u64, body: &str) -> Value {
    json!({"id": id, "vector": {"embedding": [id, 1, 0, 0]}, "payload": {"body": body, "topic": "t", "count": 0}})
}

fn upsert(server: &Server, collection: &str, points: &[Value]) {
    send(
        &server.url,
        "PUT",
        &format!("/collections/{collection}/points?wait=true"),
        &json!({"points": points}),
    );
}

fn payload_of(server: &Server, collection: &str, id: u64) -> Value {
    let path = format!("/collections/{collection}/points");
    let found =
        send(&server.url, "POST", &path, &json!({"ids": [id], "with_payload": true, "with_vector": true}));
    found[0].clone()
}

fn gallery(server: &Server, name: &str, points: u64) -> (String, QdrantStore) {
    let name = server::fresh(name);
    server::collection(&server.url, &name, WIDTH);
    let all: Vec<Value> = (1..=points).map(|id| point(id, &format!("text {id}"))).collect();
    if !all.is_empty() {
        upsert(server, &name, &all);
    }
    let store = QdrantStore::adopt(&server.address(), &options(&name), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", WIDTH, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new(NEW, WIDTH, Distance::Cosine, true), Provenance::Native).unwrap();
    (name, store)
}

fn write(key: u64, revision: u64, provenance: Provenance) -> VectorWrite {
    VectorWrite {
        key: ItemKey::from(key),
        revision,
        provenance,
        sigma2: Some(0.25),
        priority: (provenance == Provenance::Adapted).then(|| Priority::ordinary(1.0)),
        squared_error: None,
        vector: vec![0.0, 0.0, 1.0, 0.0],
    }
}

fn revision(store: &QdrantStore, id: u64) -> u64 {
    store.get(&[&id.to_string()]).unwrap()[0].as_ref().expect("it is there").revision
}

fn provenance(store: &QdrantStore, id: u64) -> Option<Provenance> {
    store.provenances(NEW, &[ItemKey::from(id)]).unwrap()[0]
}

#[test]
fn a_collection_becomes_a_gallery_and_is_given_back_as_it_was() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "adopted", 5);
    let before = server::fresh("before");
    server::collection(&server.url, &before, WIDTH);
    let looked = QdrantStore::inspect(&server.address(), &options(&before)).unwrap();
    assert_eq!((looked.dimension, &looked.vectors[..]), (Some(WIDTH), &["embedding".to_owned()][..]));

    let counts = store.counts("old").unwrap();
    assert_eq!((counts.items, counts.old, counts.lacking), (5, 5, 0), "what was there is old");
    let records = store.scan(&Scan::new(NEW, Select::Queued, 9).with_vectors_of("old")).unwrap();
    assert_eq!(records.len(), 5);
    let third = &records[2];
    assert_eq!((third.item.id.as_str(), third.item.source.as_deref()), ("3", Some("text 3")));
    assert_eq!(third.vector.as_ref().expect("it has an old vector").vector, [3.0, 1.0, 0.0, 0.0]);
    assert_eq!(third.item.payload, json!({"count": 0}));
    let query = Matrix::new(WIDTH, vec![3.0, 1.0, 0.0, 0.0]).unwrap();
    let found = store.search("old", &query, 1, &Filter::default()).unwrap().remove(0);
    assert_eq!((found[0].id.as_str(), found[0].provenance), ("3", Provenance::Old));

    let again = QdrantStore::open(&server.address(), &options(&name), Some("old")).unwrap();
    let outcome = again.write_vectors(NEW, None, &[write(1, revision(&again, 1), Provenance::Native)]);
    assert_eq!(outcome, Ok(vec![WriteOutcome::Written]));
    assert_eq!(store.check().unwrap(), []);
    store.release(false).unwrap();
    let left = payload_of(server, &name, 1);
    assert_eq!(
        left["payload"],
        json!({"body": "text 1", "topic": "t", "count": 0}),
        "nothing of ours is left"
    );
    assert_eq!(left["vector"], json!({"embedding": [1.0, 1.0, 0.0, 0.0]}));
    let error = QdrantStore::open(&server.address(), &options(&name), None).unwrap_err();
    assert!(error.to_string().contains("gallery"), "{error}");
}

/// The names of a collection's vectors.
fn vectors_of(server: &Server, collection: &str) -> Vec<String> {
    let there = send(&server.url, "GET", &format!("/collections/{collection}"), &Value::Null);
    there["config"]["params"]["vectors"].as_object().unwrap().keys().cloned().collect()
}

/// A point without a source gets no native vector from any model. After a release it has no vector, or all
/// adapted ones stay and a field says which they are.
#[test]
fn a_release_takes_adapted_vectors_along_where_it_is_asked_to() {
    let Some(server) = server::server() else { return };
    for with_adapted in [false, true] {
        let (name, store) = gallery(server, "adapted", 3);
        let bare = json!({"id": 4, "vector": {"embedding": [4, 1, 0, 0]}, "payload": {"topic": "t"}});
        upsert(server, &name, &[bare]);
        let epoch = store.spaces().unwrap()[1].epoch;
        let adapted: Vec<VectorWrite> =
            [3, 4].map(|id| write(id, revision(&store, id), Provenance::Adapted)).to_vec();
        store.write_vectors(NEW, Some(epoch), &adapted).unwrap();
        let natives = [1, 2].map(|id| write(id, revision(&store, id), Provenance::Native));
        store.write_vectors(NEW, None, &natives).unwrap();
        store.switch_serving("old", NEW).unwrap();
        store.drop_space("old").unwrap();
        if !with_adapted {
            let error = store.release(false).unwrap_err();
            assert_eq!(error.remedy(), Some(&Remedy::EmbedOrTakeAlong), "{error}");
            store.write_vectors(NEW, None, &[write(3, revision(&store, 3), Provenance::Native)]).unwrap();
            // An application that lags wrote this point: no search finds it, and after a release
            // nobody would see to it.
            upsert(server, &name, &[point(5, "by the old model")]);
            let error = store.release(false).unwrap_err();
            assert!(
                error.is_conflict()
                    && error.to_string().contains("model\", 1 items with a source have no vector"),
                "{error}"
            );
            store.write_vectors(NEW, None, &[write(5, revision(&store, 5), Provenance::Native)]).unwrap();
        }
        let released = store.release(with_adapted).unwrap();
        let expected = if with_adapted { (4, 2, 0, 0) } else { (4, 0, 1, 0) };
        let Released { vectors, adapted, without_source, waiting, .. } = released;
        assert_eq!((vectors, adapted, without_source, waiting), expected);
        let left = payload_of(server, &name, 4);
        assert_eq!(left["vector"].as_object().unwrap().len(), 1 + usize::from(with_adapted), "{left}");
        assert_eq!(left["payload"].get("rehang_adapted").is_some(), with_adapted, "{left}");
        assert!(payload_of(server, &name, 1)["payload"].get("rehang_adapted").is_none());
    }
}

/// A release dies before its end, or other calls are at work beside it. Everything that was paid for stays,
/// and the next release goes on.
#[test]
fn a_release_that_died_keeps_its_natives_and_goes_on() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "left", 3);
    let natives: Vec<VectorWrite> =
        (1..=3).map(|id| write(id, revision(&store, id), Provenance::Native)).collect();
    assert_eq!(store.write_vectors(NEW, None, &natives), Ok(vec![WriteOutcome::Written; 3]));
    store.switch_serving("old", NEW).unwrap();
    store.drop_space("old").unwrap();

    let address = server.address();
    let (said, heard) = std::sync::mpsc::channel();
    let url = server::before(&server.url, format!("DELETE /collections/rehang_{name} "), {
        let (name, address, url) = (name.clone(), address.clone(), server.url.clone());
        move || {
            let refusals = [
                store.counts(NEW).map(drop),
                store.create_space(&Space::new(NEW, WIDTH, Distance::Cosine, true), Provenance::Native),
                QdrantStore::adopt(&address, &options(&name), Some("old"), &|_, _| true).map(drop),
            ];
            let again = QdrantStore::open(&address, &options(&name), Some("old"));
            let released = again.and_then(|again| again.release(false));
            // A call that was under way writes this tag.
            let tag = json!({"payload": {"rehang": 7, "rehang_tag": {"n": false}}, "points": [2]});
            send(&url, "POST", &format!("/collections/{name}/points/payload?wait=true"), &tag);
            said.send((refusals, released)).unwrap();
        }
    });
    let first = QdrantStore::open(&QdrantAddress::new(&url), &options(&name), Some("old")).unwrap();
    first.release(false).unwrap();
    let (refusals, released) = heard.recv().unwrap();
    for refused in refusals {
        let error = refused.unwrap_err();
        assert!(error.is_conflict() && error.remedy() == Some(&Remedy::ReleaseAgain), "{error}");
    }
    released.unwrap();
    for id in 1..=3 {
        let left = payload_of(server, &name, id);
        let expected = json!({"body": format!("text {id}"), "topic": "t", "count": 0});
        assert_eq!(left["payload"], expected, "nothing of ours is left");
        assert_eq!(left["vector"][NEW.replace('/', "_")], json!([0.0, 0.0, 1.0, 0.0]), "natives stay");
    }
    let error = QdrantStore::open(&address, &options(&name), None).unwrap_err();
    assert!(error.to_string().contains("gallery"), "{error}");
}

/// A vector that the application made and filled is not taken for one of the gallery's. A vector that was
/// left behind by a drop that died is.
#[test]
fn a_vector_of_the_application_is_not_taken_over() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "taken", 3);
    let large = Space::new("large", WIDTH, Distance::Cosine, true);
    let dense = json!({"dense": {"size": WIDTH, "distance": "Cosine"}});
    send(&server.url, "PUT", &format!("/collections/{name}/vectors/large?wait=true"), &dense);
    let path = format!("/collections/{name}/points/vectors");
    let own = json!({"points": [{"id": 2, "vector": {"large": [1, 0, 0, 0]}}]});
    send(&server.url, "PUT", &format!("{path}?wait=true"), &own);
    let error = store.create_space(&large, Provenance::Native).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("\"large\""), "{error}");
    assert_eq!(store.spaces().unwrap().len(), 2);
    assert_eq!(payload_of(server, &name, 2)["vector"]["large"], json!([1.0, 0.0, 0.0, 0.0]));

    // An empty vector of the application's can be used, since nothing is lost.
    let out = json!({"vector": ["large"], "points": [2]});
    send(&server.url, "POST", &format!("{path}/delete?wait=true"), &out);
    store.create_space(&large, Provenance::Native).unwrap();
    let native = || write(1, revision(&store, 1), Provenance::Native);
    assert_eq!(store.write_vectors("large", None, &[native()]), Ok(vec![WriteOutcome::Written]));

    // A drop that dies before the vector is gone leaves this state.
    let die = || {
        let path = format!("/collections/rehang_{name}/points");
        let found = send(&server.url, "POST", &path, &json!({"ids": [1], "with_payload": true}));
        let text = found[0]["payload"]["state"].as_str().unwrap();
        let mut state: Value = serde_json::from_str(text).unwrap();
        state["dropped"] = json!([state["spaces"].as_array_mut().unwrap().pop()]);
        let set = json!({"payload": {"state": state.to_string()}, "points": [1]});
        send(&server.url, "POST", &format!("{path}/payload?wait=true"), &set);
    };
    die();
    store.create_space(&large, Provenance::Native).unwrap();
    assert_eq!(store.counts("large").unwrap().native, 0, "what was there is of the space of before");
    assert_eq!(store.write_vectors("large", None, &[native()]), Ok(vec![WriteOutcome::Written]));
    die();
    assert!(vectors_of(server, &name).contains(&"large".to_owned()));
    store.drop_space("large").unwrap();
    assert!(!vectors_of(server, &name).contains(&"large".to_owned()), "the drop has come to its end");
    assert_eq!(payload_of(server, &name, 1)["payload"]["rehang_tag"]["s4"], Value::Null);
}

/// An application replaces a point while points are listed. All that is read by one revision is
/// one state of the item.
#[test]
fn a_revision_is_never_given_to_what_was_written_since() {
    let Some(server) = server::server() else { return };
    // The point is replaced between the operation for points with a source and the one for points without, or
    // after the first one, whose answer is lost.
    for (is_lost, has_source) in [(false, true), (false, false), (true, true), (true, false)] {
        let (name, store) = gallery(server, "once", 1);
        upsert(server, &name, &[point(1, "new words")]);
        let (said, heard) = std::sync::mpsc::channel();
        let happens = {
            let name = name.clone();
            move || {
                let read = || payload_of(server, &name, 1)["payload"]["rehang"].as_u64();
                let read = std::iter::repeat_with(read).flatten().next().unwrap();
                let mut later = point(1, "later words");
                if !has_source {
                    later["payload"]["body"] = Value::Null;
                }
                upsert(server, &name, &[later]);
                said.send(read).unwrap();
            }
        };
        let request = format!("POST /collections/{name}/points/batch?wait={} ", !is_lost);
        let url = if is_lost {
            server::instead_of_answer(&server.url, request, happens)
        } else {
            server::before(&server.url, request, happens)
        };
        let slow = QdrantStore::open(&QdrantAddress::new(&url), &options(&name), Some("old")).unwrap();
        slow.counts(NEW).unwrap();
        let read = heard.recv().unwrap();
        assert_ne!(revision(&store, 1), read);
        let stale = store.write_vectors(NEW, None, &[write(1, read, Provenance::Native)]);
        assert_eq!(stale, Ok(vec![WriteOutcome::Changed]), "it is of the words of before");
        assert_eq!(store.counts(NEW).unwrap().without_source, u64::from(!has_source));
    }
}

/// Restoring a collection from a snapshot sets its counter of revisions back.
#[test]
fn a_counter_that_was_set_back_gives_no_revision_again() {
    let Some(server) = server::server() else { return };
    let (collection, store) = gallery(server, "set_back", 1);
    let ours = format!("/collections/rehang_{collection}/points");
    let counter = json!({"ids": [2], "with_payload": true});
    let kept = send(&server.url, "POST", &ours, &counter)[0]["payload"].clone();
    upsert(server, &collection, &[point(1, "one of before")]);
    let before = store.get(&["1"]).unwrap().remove(0).unwrap();
    let points = json!({"points": [{"id": 2, "vector": {}, "payload": kept}]});
    send(&server.url, "PUT", &format!("{ours}?wait=true"), &points);
    upsert(server, &collection, &[point(1, "another one")]);
    let now = store.get(&["1"]).unwrap().remove(0).unwrap();
    assert_eq!((now.key, now.revision >> 24), (before.key, before.revision >> 24));
    let late = [write(1, before.source_revision, Provenance::Native)];
    assert_eq!(store.write_vectors(NEW, None, &late).unwrap(), [WriteOutcome::Changed]);
}

#[test]
fn what_an_application_replaces_has_changed_and_what_it_deletes_stays_away() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "changed", 4);
    let read: Vec<u64> = (1..=4).map(|id| revision(&store, id)).collect();
    let both = [write(1, read[0], Provenance::Native), write(2, read[1], Provenance::Adapted)];
    assert_eq!(store.write_vectors(NEW, Some(Epoch::FIRST), &both), Ok(vec![WriteOutcome::Written; 2]));
    // The application writes between our read and our write.
    upsert(server, &name, &[point(1, "new words"), point(3, "new words"), point(9, "a new point")]);
    let path = format!("/collections/{name}/points/delete?wait=true");
    send(&server.url, "POST", &path, &json!({"points": [4]}));
    let late = [write(3, read[2], Provenance::Native), write(4, read[3], Provenance::Native)];
    let outcomes = store.write_vectors(NEW, None, &late).unwrap();
    assert_eq!(outcomes, [WriteOutcome::Changed, WriteOutcome::Deleted]);
    assert_eq!(payload_of(server, &name, 4), Value::Null, "a deleted point never comes back");
    assert_eq!(provenance(&store, 1), None, "its native vector was of other words");
    assert_ne!(revision(&store, 1), read[0]);
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.items, counts.adapted, counts.native, counts.lacking), (4, 1, 0, 3));
    let hits =
        store.search("old", &Matrix::new(WIDTH, vec![9.0, 1.0, 0.0, 0.0]).unwrap(), 1, &Filter::default());
    assert_eq!(hits.unwrap()[0][0].id, "9", "a new point is found at once");

    // An application that changes only the source says so in the same operation, and the
    // item is embedded again.
    let path = format!("/collections/{name}/points/payload");
    let set = |payload: Value| {
        let body = json!({"payload": payload, "points": [2]});
        send(&server.url, "POST", &format!("{path}?wait=true"), &body);
    };
    set(json!({"body": "unsaid"}));
    assert_eq!(provenance(&store, 2), Some(Provenance::Adapted), "not seen: docs/qdrant.md says so");
    set(json!({"body": "other", "rehang": null}));
    assert_eq!(provenance(&store, 2), None);
    assert_eq!(store.get(&["2"]).unwrap()[0].as_ref().unwrap().source.as_deref(), Some("other"));
    assert!(
        payload_of(server, &name, 2)["vector"][NEW.replace('/', "_")].is_null(),
        "the stale vector is gone"
    );

    // A payload that is overwritten takes the tag away, and leaves an adapted vector without a
    // tag: it does not count.
    let read = revision(&store, 2);
    store.write_vectors(NEW, Some(Epoch::FIRST), &[write(2, read, Provenance::Adapted)]).unwrap();
    send(
        &server.url,
        "PUT",
        &format!("{path}?wait=true"),
        &json!({"payload": {"body": "third"}, "points": [2]}),
    );
    let query = Matrix::new(WIDTH, vec![0.0, 0.0, 1.0, 0.0]).unwrap();
    assert_eq!(store.search(NEW, &query, 9, &Filter::default()), Ok(vec![vec![]]));
    assert_eq!(provenance(&store, 2), None);
    assert_eq!(store.check().unwrap(), []);
}

/// An application that makes the new model's vectors itself has paid for them. A vector that came with a
/// point is native, whatever else came.
#[test]
fn a_vector_that_came_with_a_point_is_native_and_one_that_stayed_behind_is_not() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "came", 3);
    let vector = NEW.replace('/', "_");
    let both = |id: u64, body: Value| {
        let mut point = point(id, "");
        (point["payload"]["body"], point["vector"][&vector]) = (body, json!([0, 1, 0, 0]));
        point
    };
    let vector_of = |id: u64| payload_of(server, &name, id)["vector"].get(&vector).cloned();
    let numbers = json!([0.0, 1.0, 0.0, 0.0]);
    let bare = json!({"id": 8, "vector": {&vector: [0, 1, 0, 0]}, "payload": {"body": "new alone"}});
    upsert(
        server,
        &name,
        &[both(1, json!("one")), both(7, json!("seven")), both(9, Value::Null), bare, point(2, "two")],
    );
    let native =
        |id| provenance(&store, id) == Some(Provenance::Native) && vector_of(id) == Some(numbers.clone());
    for id in [1, 7, 8, 9] {
        assert!(native(id), "{id}");
    }
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.items, counts.native, counts.lacking), (6, 4, 2));
    let minute = Duration::from_mins(1);
    let claimed = store.claim(NEW, Queue::All, "worker", 9, minute).unwrap().records;
    assert_eq!(claimed.len(), 2, "nothing is paid for that the application has made");
    let query = Matrix::new(WIDTH, vec![0.0, 1.0, 0.0, 0.0]).unwrap();
    assert_eq!(store.search(NEW, &query, 9, &Filter::default()).unwrap()[0].len(), 4);

    // One of the gallery's vectors is replaced by one of the application's, and the other way round.
    let read = revision(&store, 2);
    store.write_vectors(NEW, None, &[write(2, read, Provenance::Native)]).unwrap();
    upsert(server, &name, &[both(2, json!("two by itself")), point(7, "seven by the old model")]);
    assert!(native(2));
    assert_eq!((provenance(&store, 7), vector_of(7)), (None, None));
    // An overwritten payload leaves the vectors there, which nobody made of the new content.
    let path = format!("/collections/{name}/points/payload?wait=true");
    send(&server.url, "PUT", &path, &json!({"payload": {"body": "another one"}, "points": [1, 2]}));
    for id in [1, 2] {
        assert_eq!((provenance(&store, id), vector_of(id)), (None, None), "{id}");
    }
    assert_eq!(store.check().unwrap(), []);

    // A release takes no vector of the application's, and leaves nothing of the gallery's beside them.
    store.switch_serving("old", NEW).unwrap();
    store.drop_space("old").unwrap();
    let new_alone = json!({"id": 50, "vector": {&vector: [0, 1, 0, 0]}, "payload": {"body": "fifty"}});
    upsert(server, &name, &[new_alone]);
    assert_eq!(store.release(true).unwrap().vectors, 3);
    assert_eq!(
        (vector_of(50), vector_of(8), vector_of(9)),
        (Some(numbers.clone()), Some(numbers.clone()), Some(numbers.clone()))
    );
    let there = send(&server.url, "GET", &format!("/collections/{name}"), &Value::Null);
    assert!(there["config"]["params"]["vectors"]["rehang"].is_null(), "{there}");
}

/// The gallery's collection is deleted, or the application's alone is restored. Every tag says whose vector a
/// point has, and native vectors, which were paid for, are used again.
#[test]
fn natives_are_taken_in_again_where_the_state_beside_them_is_lost() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "lost", 5);
    let last = (1..=5).map(|id| revision(&store, id)).max().unwrap();
    let writes = [
        write(1, revision(&store, 1), Provenance::Native),
        write(2, revision(&store, 2), Provenance::Native),
        write(3, revision(&store, 3), Provenance::Adapted),
    ];
    store.write_vectors(NEW, Some(Epoch::FIRST), &writes).unwrap();
    let vector = NEW.replace('/', "_");
    send(&server.url, "DELETE", &format!("/collections/rehang_{name}"), &Value::Null);
    // The application goes on meanwhile: by the old model, and by both.
    let mut both = point(6, "six");
    both["vector"][&vector] = json!([0, 1, 0, 0]);
    upsert(server, &name, &[point(2, "two of today"), both]);
    assert!(QdrantStore::open(&server.address(), &options(&name), Some("old")).is_err());

    let store = QdrantStore::adopt(&server.address(), &options(&name), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", WIDTH, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new(NEW, WIDTH, Distance::Cosine, true), Provenance::Native).unwrap();
    let made_by = |id| provenance(&store, id);
    assert_eq!((made_by(1), made_by(6)), (Some(Provenance::Native), Some(Provenance::Native)));
    assert_eq!(
        [2, 3, 4, 5].map(made_by),
        [None; 4],
        "of other content, adapted by a plan that is lost, or never made"
    );
    assert!(payload_of(server, &name, 3)["vector"].get(&vector).is_none());
    assert!(revision(&store, 2) > last, "no revision is given twice");
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.items, counts.native, counts.adapted, counts.lacking), (6, 2, 0, 4));
    store
        .write_vectors(NEW, Some(Epoch::FIRST), &[write(3, revision(&store, 3), Provenance::Adapted)])
        .unwrap();
    assert_eq!(store.check().unwrap(), []);
    assert_eq!(store.counts("old").unwrap().old, 6);
}

/// A gallery stays in the collection that its alias led to when it was made, wherever the alias leads later.
#[test]
fn a_gallery_stays_with_its_collection_where_the_alias_moves() {
    let Some(server) = server::server() else { return };
    let (first, second, alias) = (server::fresh("v1"), server::fresh("v2"), server::fresh("alias"));
    for name in [&first, &second] {
        server::collection(&server.url, name, WIDTH);
        upsert(server, name, &[point(1, "one"), point(2, "two")]);
    }
    let lead = |to: &str| {
        let action = json!({"actions": [{"create_alias": {"collection_name": to, "alias_name": alias}}]});
        send(&server.url, "POST", "/collections/aliases", &action);
    };
    lead(&first);
    let adopt = |name: &str| QdrantStore::adopt(&server.address(), &options(name), Some("old"), &|_, _| true);
    let store = adopt(&alias).unwrap();
    store.create_space(&Space::new("old", WIDTH, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new(NEW, WIDTH, Distance::Cosine, true), Provenance::Native).unwrap();
    let error = adopt(&first).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains(&format!("collection = {alias:?}")), "{error}");

    lead(&second);
    // A handle that is at work goes on in the collection where it began.
    let written = store.write_vectors(NEW, None, &[write(1, revision(&store, 1), Provenance::Native)]);
    assert_eq!(written, Ok(vec![WriteOutcome::Written]));
    let moved = QdrantStore::open(&server.address(), &options(&alias), Some("old")).unwrap();
    for error in [moved.spaces().unwrap_err(), adopt(&alias).unwrap_err()] {
        let said = error.to_string();
        assert!(error.is_conflict() && said.contains(&first) && said.contains(&second), "{said}");
    }
    moved.release(false).unwrap();
    for name in [&first, &second] {
        for id in [1, 2] {
            let left = payload_of(server, name, id);
            assert!(
                left["payload"].get("rehang").is_none() && left["payload"].get("rehang_tag").is_none(),
                "{left}"
            );
        }
    }
    adopt(&alias).unwrap();
}

/// A token covers the collection and the gallery's own one, which somebody else has made. The whole upgrade
/// works with it, and what the token may not delete is left empty.
#[test]
fn a_token_for_two_collections_goes_the_whole_way() {
    let Some(server) = Server::start(Some("right-word")) else { return server::skipped() };
    let admin = |method: &str, path: &str, body: Value| {
        server::send_with_key(&server.url, "right-word", method, path, &body).unwrap()
    };
    admin(
        "PUT",
        "/collections/docs",
        json!({"vectors": {"embedding": {"size": WIDTH, "distance": "Euclid"}}}),
    );
    admin("PUT", "/collections/docs/points?wait=true", json!({"points": [point(1, "one"), point(2, "two")]}));
    // The token is signed with the key. It says: {"access": [{"collection": "docs", "access": "rw"},
    // {"collection": "rehang_docs", "access": "rw"}]}.
    let token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJhY2Nlc3MiOlt7ImNvbGxlY3Rpb24iOiJkb2NzIiwiYWNjZXNzIjoicncifSx7ImNvbGxlY3Rpb24iOiJyZWhhbmdfZG9jcyIsImFjY2VzcyI6InJ3In1dfQ.s2HQpJ7GutpfkyPhNkCLFQ23h-nxIro4vEYAfcr4jvU";
    let address = server.address().with_key(Some(token.into()));
    let adopt = || QdrantStore::adopt(&address, &options("docs"), Some("old"), &|_, _| true);
    let error = adopt().unwrap_err();
    assert!(error.is_unauthorised(), "nobody has made the collection of ours: {error}");
    let there = admin("POST", "/collections/docs/points", json!({"ids": [1], "with_payload": true}));
    assert!(there[0]["payload"].get("rehang").is_none(), "nothing was written");

    admin("PUT", "/collections/rehang_docs", json!({"vectors": {}}));
    for _ in 0..2 {
        let store = adopt().unwrap();
        store.create_space(&Space::new("old", WIDTH, Distance::L2, false), Provenance::Old).unwrap();
        store.create_space(&Space::new("new", WIDTH, Distance::Cosine, true), Provenance::Native).unwrap();
        let writes = [1, 2].map(|id| write(id, revision(&store, id), Provenance::Native));
        assert_eq!(store.write_vectors("new", None, &writes), Ok(vec![WriteOutcome::Written; 2]));
        assert_eq!(store.check().unwrap(), []);
        store.switch_serving("old", "new").unwrap();
        store.switch_serving("new", "old").unwrap();
        let released = store.release(false).unwrap();
        assert_eq!(released.empty.as_deref(), Some("rehang_docs"));
        let left = admin("POST", "/collections/rehang_docs/points/count", json!({"exact": true}));
        assert_eq!(left["count"], 0);
        assert!(QdrantStore::open(&address, &options("docs"), Some("old")).is_err());
    }
}

#[test]
fn leases_end_with_what_an_application_writes() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "leases", 3);
    let minute = Duration::from_mins(1);
    let claim = |worker: &str| -> Vec<String> {
        let claimed = store.claim(NEW, Queue::All, worker, 9, minute).unwrap();
        claimed.records.into_iter().map(|record| record.item.id).collect()
    };
    assert_eq!(claim("left"), ["1", "2", "3"]);
    upsert(server, &name, &[point(2, "new words")]);
    let path = format!("/collections/{name}/points/delete?wait=true");
    send(&server.url, "POST", &path, &json!({"points": [3]}));
    assert_eq!(store.counts(NEW).unwrap().items, 2);
    assert_eq!(store.at_work(NEW).unwrap()[0].items, 1);
    assert_eq!(claim("right"), ["2"]);
}

#[test]
fn an_application_loses_nothing_while_vectors_are_written() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "concurrent", POINTS);
    let (done, version) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // The application sets a field of every point to a number that grows, and replaces
        // and deletes some points.
        let application = scope.spawn(|| {
            let path = format!("/collections/{name}/points");
            while !done.load(Ordering::SeqCst) {
                let now = version.fetch_add(1, Ordering::SeqCst) + 1;
                let all: Vec<u64> = (1..=POINTS).filter(|id| id % 4 != 0).collect();
                let set = json!({"payload": {"count": now}, "points": all});
                send(&server.url, "POST", &format!("{path}/payload?wait=true"), &set);
                for id in &all {
                    let count = payload_of(server, &name, *id)["payload"]["count"].clone();
                    assert_eq!(count, json!(now), "point {id} lost what the application wrote");
                }
                let id = 4 * (now % 10 + 1);
                if now.is_multiple_of(3) {
                    send(&server.url, "POST", &format!("{path}/delete?wait=true"), &json!({"points": [id]}));
                    assert_eq!(payload_of(server, &name, id), Value::Null, "point {id} came back");
                } else {
                    upsert(server, &name, &[point(id, &format!("words {now}"))]);
                }
            }
        });
        let workers = [(), ()].map(|()| {
            let store = store.clone();
            scope.spawn(move || {
                for round in 0..15 {
                    let records = store.scan(&Scan::new(NEW, Select::Queued, 25)).unwrap();
                    let made_by = if round % 2 == 0 { Provenance::Adapted } else { Provenance::Native };
                    let writes: Vec<VectorWrite> = records
                        .iter()
                        .map(|record| write(record.item.key.bits() as u64, record.item.revision, made_by))
                        .collect();
                    store.write_vectors(NEW, Some(Epoch::FIRST), &writes).unwrap();
                    for record in store.scan(&Scan::new(NEW, Select::All, 99).with_vectors_of(NEW)).unwrap() {
                        let (state, vector) = (record.state, record.vector);
                        assert_eq!(state.is_some(), vector.is_some(), "a vector with its provenance");
                        assert!(state.is_none_or(|state| state.revision == record.item.revision));
                    }
                }
            })
        });
        for worker in workers {
            let ended = worker.join();
            done.store(true, Ordering::SeqCst);
            ended.expect("a worker did not fail");
        }
        application.join().expect("the application did not fail");
    });
    assert!(version.load(Ordering::SeqCst) > 3);
    loop {
        let records = store.scan(&Scan::new(NEW, Select::Queued, 99)).unwrap();
        if records.is_empty() {
            break;
        }
        let writes: Vec<VectorWrite> = records
            .iter()
            .map(|record| write(record.item.key.bits() as u64, record.item.revision, Provenance::Native))
            .collect();
        store.write_vectors(NEW, None, &writes).unwrap();
    }
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.native, counts.adapted, counts.lacking), (counts.items, 0, 0));
    assert_eq!(store.check().unwrap(), []);
}

#[test]
fn a_write_that_died_in_between_is_taken_over() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "died", 1);
    // The mark is what the first two steps of a write leave: a reservation that still holds, or has run out.
    for (until, provenance) in [(0, Provenance::Adapted), (1, Provenance::Native)] {
        let mark = json!({"p": "pending", "k": "of-a-dead-one", "u": until});
        let set = json!({"payload": mark, "key": "rehang_tag.s2", "points": [1]});
        send(&server.url, "POST", &format!("/collections/{name}/points/payload?wait=true"), &set);
        assert_eq!(self::provenance(&store, 1), None, "it lacks a vector meanwhile");
        let written =
            store.write_vectors(NEW, Some(Epoch::FIRST), &[write(1, revision(&store, 1), provenance)]);
        assert_eq!(written, Ok(vec![WriteOutcome::Written]));
    }
}

#[test]
fn an_item_that_became_native_meanwhile_is_not_claimed() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "claimed", 2);
    let minute = Duration::from_mins(1);
    // The slow worker reads the queue. Before it takes its lease, the quick one claims an item, makes it
    // native and ends its lease.
    let url = server::before(&server.url, format!("PUT /collections/rehang_{name}/points?wait"), {
        let store = store.clone();
        move || {
            let quick = store.claim(NEW, Queue::All, "quick", 1, minute).unwrap().records.remove(0).item;
            let native = write(quick.key.bits() as u64, quick.revision, Provenance::Native);
            assert_eq!(store.write_vectors(NEW, None, &[native]), Ok(vec![WriteOutcome::Written]));
        }
    });
    let slow = QdrantStore::open(&QdrantAddress::new(&url), &options(&name), Some("old")).unwrap();
    let claimed = slow.claim(NEW, Queue::All, "slow", 2, minute).unwrap().records;
    assert_eq!(provenance(&store, 1), Some(Provenance::Native));
    assert_eq!(claimed.iter().map(|record| record.item.id.as_str()).collect::<Vec<_>>(), ["2"]);
    assert_eq!(store.at_work(NEW).unwrap()[0].items, 1);
}

/// An application writes all the time while points are looked for that cannot be items. None of its points is
/// taken for one, and the search ends although there are always more.
#[test]
fn a_new_point_is_not_taken_for_one_that_cannot_be_an_item() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "new", 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 2.. {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                upsert(server, &name, &[point(id, "a new point")]);
            }
        });
        let began = std::time::Instant::now();
        let found: Vec<_> = (0..15).flat_map(|_| store.check().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        assert_eq!(found, []);
        assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
    });
}

#[test]
fn what_a_dead_writer_holds_is_free_after_seconds() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "held", 1);
    let mark = || payload_of(server, &name, 1)["payload"]["rehang_tag"]["s2"].clone();
    let (done, revision) = (AtomicBool::new(false), revision(&store, 1));
    // The loop catches the tag of a write that is under way, which is what the write leaves if it dies there.
    let held = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let adapted = write(1, revision, Provenance::Adapted);
                store.write_vectors(NEW, Some(Epoch::FIRST), &[adapted]).unwrap();
            }
        });
        let held = std::iter::repeat_with(mark).find(|mark| mark["p"] == "pending").unwrap();
        done.store(true, Ordering::SeqCst);
        held
    });
    let set = json!({"payload": held, "key": "rehang_tag.s2", "points": [1]});
    send(&server.url, "POST", &format!("/collections/{name}/points/payload?wait=true"), &set);
    assert_eq!(provenance(&store, 1), None);
    let began = std::time::Instant::now();
    let written = store.write_vectors(NEW, None, &[write(1, revision, Provenance::Native)]);
    assert_eq!(written, Ok(vec![WriteOutcome::Written]));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_server_that_is_killed_comes_back_with_what_was_acknowledged() {
    let Some(mut server) = Server::start(None) else {
        return server::skipped();
    };
    let (_, store) = gallery(&server, "killed", 60);
    let ids: Vec<String> = (1..=60).map(|id: u64| id.to_string()).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let items = store.get(&names).unwrap();
    let mut written = Vec::new();
    for (round, some) in items.chunks(20).enumerate() {
        let writes: Vec<VectorWrite> = some
            .iter()
            .flatten()
            .map(|item| write(item.key.bits() as u64, item.revision, Provenance::Native))
            .collect();
        let outcomes = std::thread::scope(|scope| {
            // The last round goes on while the server is away.
            let killer = (round > 0).then(|| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(4));
                    server.kill_and_restart(Duration::from_millis(700));
                })
            });
            let outcomes = store.write_vectors(NEW, None, &writes).unwrap();
            if let Some(killer) = killer {
                killer.join().unwrap();
            }
            outcomes
        });
        assert!(
            outcomes
                .iter()
                .all(|outcome| matches!(outcome, WriteOutcome::Written | WriteOutcome::AlreadyThere))
        );
        written.extend(writes.iter().map(|write| write.key));
        let there = store.provenances(NEW, &written).unwrap();
        assert!(there.iter().all(|made_by| *made_by == Some(Provenance::Native)), "round {round}: {there:?}");
    }
    assert_eq!(store.counts(NEW).unwrap().native, 60);
    assert_eq!(store.check().unwrap(), []);
}

/// The server scales vectors of the cosine distance to length 1. Vectors of a model that gives other
/// lengths come back with these.
#[test]
fn vectors_of_the_cosine_distance_keep_their_length() {
    let Some(server) = server::server() else { return };
    let (_, store) = gallery(server, "lengths", 3);
    store.create_space(&Space::new("raw", WIDTH, Distance::Cosine, false), Provenance::Native).unwrap();
    // The second one is so short that the server leaves it as it is.
    let vectors = [[3.0, 0.0, 4.0, 0.0], [0.0, 1e-4, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5]];
    let writes: Vec<VectorWrite> = (1..=3)
        .zip(vectors)
        .map(|(id, vector)| VectorWrite {
            vector: vector.to_vec(),
            ..write(id, revision(&store, id), Provenance::Native)
        })
        .collect();
    assert_eq!(store.write_vectors("raw", None, &writes), Ok(vec![WriteOutcome::Written; 3]));
    let item = ItemWrite::new(
        "4",
        None,
        vec![NewVector::from_model("raw", vec![0.0, 6.0, 0.0, 8.0], Provenance::Native)],
    );
    store.put(&[item]).unwrap();
    let keys: Vec<ItemKey> = (1..=4).map(ItemKey::from).collect();
    let there = store.vectors("raw", &keys).unwrap();
    for (found, expected) in there.iter().zip(vectors.into_iter().chain([[0.0, 6.0, 0.0, 8.0]])) {
        let found = &found.as_ref().expect("it is there").vector;
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(found, expected)| (found - expected).abs() < 1e-7 + 1e-5 * expected),
            "{found:?}"
        );
    }
}

#[test]
fn indexes_that_say_otherwise_than_the_points_are_made_anew() {
    let Some(server) = server::server() else { return };
    let (name, made) = gallery(server, "indexes", 3);
    made.get(&["1"]).unwrap();
    // After a kill, the server's index said of a point that it has a tag, which the point had not.
    let open = |until| {
        let url = server::replaced_until(&server.url, "\"rehang\":", "\"xehang\":", until);
        QdrantStore::open(&QdrantAddress::new(url), &options(&name), Some("old")).unwrap()
    };
    let item = open(Some("DELETE /collections/")).get(&["1"]).unwrap().remove(0);
    assert_eq!(item.map(|item| item.id), Some("1".to_owned()), "it is found once its indexes are made anew");
    let there = send(&server.url, "GET", &format!("/collections/{name}"), &Value::Null);
    let indexes = there["payload_schema"].as_object().unwrap();
    assert!(
        ["rehang", "rehang_tag.n", "rehang_tag.s2.p", "rehang_tag.s2.q"]
            .iter()
            .all(|field| indexes.contains_key(*field))
    );
    let said = open(None).get(&["1"]).unwrap_err();
    assert!(matches!(said.kind(), ErrorKind::Corrupt { .. }), "{said}");
}

#[test]
fn collections_and_vectors_under_our_names_are_not_taken() {
    let Some(server) = server::server() else { return };
    let adopt = |name: &str| QdrantStore::adopt(&server.address(), &options(name), Some("old"), &|_, _| true);
    let count = |name: &str| {
        send(&server.url, "POST", &format!("/collections/{name}/points/count"), &json!({}))["count"].clone()
    };
    // The application has a collection by the name of the gallery's own: with points, or with vectors alone.
    for points in [vec![json!({"id": 100, "vector": {"embedding": [1, 0, 0, 0]}})], Vec::new()] {
        let name = server::fresh("theirs");
        server::collection(&server.url, &name, WIDTH);
        upsert(server, &name, &[point(1, "text")]);
        server::collection(&server.url, &format!("rehang_{name}"), WIDTH);
        if !points.is_empty() {
            upsert(server, &format!("rehang_{name}"), &points);
        }
        let said = adopt(&name).unwrap_err();
        assert!(said.is_conflict() && said.to_string().contains(&format!("rehang_{name}")), "{said}");
        assert_eq!(count(&format!("rehang_{name}")), points.len(), "it is as it was");
        assert_eq!(
            payload_of(server, &name, 1)["payload"],
            point(1, "text")["payload"],
            "nothing is written"
        );
    }
    // The application has a vector by the name of the witness, sparse or dense.
    for kind in [
        json!({"sparse_vectors": {"rehang": {}}}),
        json!({"vectors": {"rehang": {"size": 2, "distance": "Dot"}}}),
    ] {
        let name = server::fresh("witness");
        let mut made = json!({"vectors": {"embedding": {"size": WIDTH, "distance": "Euclid"}}});
        for (part, vectors) in kind.as_object().unwrap() {
            for (vector, config) in vectors.as_object().unwrap() {
                made[part][vector] = config.clone();
            }
        }
        send(&server.url, "PUT", &format!("/collections/{name}"), &made);
        upsert(server, &name, &[point(1, "text")]);
        let said = adopt(&name).unwrap_err();
        assert!(said.is_conflict() && said.to_string().contains("a vector \"rehang\""), "{said}");
        let there = send(&server.url, "GET", &format!("/collections/{name}"), &Value::Null);
        assert_eq!(there["payload_schema"], json!({}), "no index is left");
    }
    let (_, store) = gallery(server, "name", 1);
    let said =
        store.create_space(&Space::new("rehang", 2, Distance::L2, false), Provenance::Native).unwrap_err();
    assert!(said.to_string().contains("[new] name"), "{said}");
    store.create_space(&Space::new("what?*", 2, Distance::L2, false), Provenance::Native).unwrap();
}

#[test]
fn a_put_that_changes_no_source_leaves_vectors_of_other_models() {
    let Some(server) = server::server() else { return };
    let name = server::fresh("others");
    let made = json!({
        "vectors": {"embedding": {"size": WIDTH, "distance": "Euclid"}, "other": {"size": 2, "distance": "Dot"}},
        "sparse_vectors": {"words": {}},
    });
    send(&server.url, "PUT", &format!("/collections/{name}"), &made);
    let words = json!({"indices": [3, 9], "values": [0.5, 2.0]});
    let mut whole = point(1, "text");
    (whole["vector"]["other"], whole["vector"]["words"]) = (json!([1.0, 2.0]), words.clone());
    upsert(server, &name, &[whole]);
    let store = QdrantStore::adopt(&server.address(), &options(&name), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", WIDTH, Distance::L2, false), Provenance::Old).unwrap();
    let old = NewVector::from_model("old", vec![9.0, 0.0, 0.0, 0.0], Provenance::Old);
    store.put(&[ItemWrite::new("1", Some("text".into()), vec![old.clone()])]).unwrap();
    let now = payload_of(server, &name, 1)["vector"].clone();
    assert_eq!((&now["other"], &now["words"]), (&json!([1.0, 2.0]), &words));
    assert_eq!(now["embedding"], json!([9.0, 0.0, 0.0, 0.0]));
    store.put(&[ItemWrite::new("1", Some("another text".into()), vec![old])]).unwrap();
    assert!(payload_of(server, &name, 1)["vector"]["words"].is_null(), "they were of the text before");
}

#[test]
fn a_release_says_what_lies_there_in_the_end_and_goes_on_as_it_began() {
    let Some(server) = server::server() else { return };
    for with_adapted in [true, false] {
        let (name, store) = gallery(server, "leaves", 6);
        let mut items: Vec<_> =
            (1..=6).map(|id| store.get(&[&id.to_string()]).unwrap().remove(0).unwrap()).collect();
        let last = items.split_off(5);
        let write =
            |item: &rehang_store::Item, provenance| write(item.key.bits() as u64, item.revision, provenance);
        let mut writes: Vec<VectorWrite> = items.iter().map(|item| write(item, Provenance::Native)).collect();
        writes.extend(last.iter().map(|item| write(item, Provenance::Adapted)));
        store.write_vectors(NEW, Some(Epoch::FIRST), &writes).unwrap();
        store.switch_serving("old", NEW).unwrap();
        if !with_adapted {
            store.write_vectors(NEW, None, &[write(&last[0], Provenance::Native)]).unwrap();
        }
        // An application that lags writes on while the release goes on.
        let url = server::before(&server.url, format!("DELETE /collections/{name}/vectors"), {
            let (url, name) = (server.url.clone(), name.clone());
            move || {
                let points = json!([point(1, "late"), point(50, "late")]);
                send(
                    &url,
                    "PUT",
                    &format!("/collections/{name}/points?wait=true"),
                    &json!({"points": points}),
                );
            }
        });
        let through = QdrantStore::open(&QdrantAddress::new(url), &options(&name), Some("old")).unwrap();
        let released = through.release(with_adapted).unwrap();
        assert_eq!((released.vectors, released.waiting), (5, 2), "of 1 to 6 and 50, {with_adapted}");
        assert_eq!(released.adapted, u64::from(with_adapted));
    }
}

#[test]
fn a_named_vector_that_was_there_before_stays() {
    let Some(server) = server::server() else { return };
    let name = server::fresh("before");
    let made = json!({"vectors": {
        "embedding": {"size": WIDTH, "distance": "Euclid"}, "large": {"size": 2, "distance": "Euclid"},
    }});
    send(&server.url, "PUT", &format!("/collections/{name}"), &made);
    upsert(server, &name, &[point(1, "text"), point(2, "text 2")]);
    let store = QdrantStore::adopt(&server.address(), &options(&name), Some("old"), &|_, _| true).unwrap();
    store.create_space(&Space::new("old", WIDTH, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("large", 2, Distance::L2, false), Provenance::Native).unwrap();
    let item = store.get(&["2"]).unwrap().remove(0).unwrap();
    store.write_vectors("large", None, &[VectorWrite::native(&item, vec![5.0, 6.0])]).unwrap();
    let mut own = point(1, "text");
    own["vector"]["large"] = json!([1.0, 2.0]);
    upsert(server, &name, &[own]);
    store.release(false).unwrap();
    assert_eq!(payload_of(server, &name, 1)["vector"]["large"], json!([1.0, 2.0]), "the application's own");
    assert_eq!(
        payload_of(server, &name, 2)["vector"]["large"],
        json!([5.0, 6.0]),
        "a native one may be, too"
    );
    upsert(server, &name, &[json!({"id": 3, "vector": {"large": [1, 1]}})]);
}

#[test]
fn an_application_may_drop_its_old_vector_at_the_finish() {
    let Some(server) = server::server() else { return };
    for is_early in [false, true] {
        let (name, store) = gallery(server, "old-dropped", 3);
        let all: Vec<VectorWrite> =
            [1, 2, 3].map(|id| write(id, revision(&store, id), Provenance::Native)).to_vec();
        store.write_vectors(NEW, None, &all).unwrap();
        store.switch_serving("old", NEW).unwrap();
        let drop_vector = || {
            send(
                &server.url,
                "DELETE",
                &format!("/collections/{name}/vectors/embedding?wait=true"),
                &Value::Null,
            )
        };
        let open = || QdrantStore::open(&server.address(), &options(&name), Some("old")).unwrap();
        if is_early {
            drop_vector();
            assert_eq!(open().count_lag(NEW, "old"), Ok(0));
            let refused = QdrantStore::adopt(&server.address(), &options(&name), Some("old"), &|_, _| true);
            assert_eq!(refused.unwrap_err().remedy(), Some(&Remedy::EmbedBeforeFinish));
            open().drop_space("old").unwrap();
        } else {
            store.drop_space("old").unwrap();
            drop_vector();
        }
        let new = "org_new.model";
        let late = json!({"id": 4, "vector": {new: [0, 1, 0, 0]}, "payload": {"body": "text 4"}});
        upsert(server, &name, &[late]);
        let store = open();
        let counts = store.counts(NEW).unwrap();
        assert_eq!((counts.native, counts.lacking), (4, 0));
        assert_eq!(store.check().unwrap(), []);
        assert_eq!(store.release(false).unwrap().vectors, 4);
        assert_eq!(vectors_of(server, &name), [new]);
    }
}

#[test]
fn a_collection_that_its_application_makes_anew_goes_on_after_an_adoption() {
    let Some(server) = server::server() else { return };
    let (name, store) = gallery(server, "made-anew", 3);
    let native = |store: &QdrantStore| write(1, revision(store, 1), Provenance::Native);
    store.write_vectors(NEW, None, &[native(&store)]).unwrap();
    let points: Vec<Value> = (1..=3).map(|id| point(id, &format!("text {id}"))).collect();
    for is_collection in [true, false] {
        if is_collection {
            send(&server.url, "DELETE", &format!("/collections/{name}"), &Value::Null);
            server::collection(&server.url, &name, WIDTH);
            upsert(server, &name, &points);
        } else {
            let path = format!("/collections/{name}/vectors/org_new.model?wait=true");
            send(&server.url, "DELETE", &path, &Value::Null);
        }
        let opened = QdrantStore::open(&server.address(), &options(&name), Some("old")).unwrap();
        let refused = opened.get(&["1"]).and_then(|found| {
            let revision = found[0].as_ref().expect("it is there").revision;
            opened.write_vectors(NEW, None, &[write(2, revision, Provenance::Native)])
        });
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("adopt the gallery once more"), "{error}");
        let store =
            QdrantStore::adopt(&server.address(), &options(&name), Some("old"), &|_, _| true).unwrap();
        let counts = store.counts(NEW).unwrap();
        assert_eq!((counts.items, counts.native, counts.lacking), (3, 0, 3));
        assert_eq!(store.write_vectors(NEW, None, &[native(&store)]), Ok(vec![WriteOutcome::Written]));
        assert_eq!(store.check().unwrap(), []);
    }
}
