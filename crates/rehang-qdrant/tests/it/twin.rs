//! Random histories: an application and an upgrade change a collection, and a strict store in memory
//! goes through the same.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use rehang_core::Provenance;
use rehang_qdrant::{CollectionOptions, QdrantStore};
use rehang_store::{Examined as _, ItemKey, ItemWrite, Ledger as _, ManualLeaseClock, NewVector};
use rehang_store_tests::MemoryStore;
use rehang_store_tests::histories::{
    Call, IDS, LEASE_S, apply, call, config, label_of, make_spaces, seen_with, vector,
};
use serde_json::{Value, json};

use crate::server;

/// Steps after which everything that can be seen is compared: a comparison takes some hundred requests.
const COMPARED_EVERY: usize = 4;

#[derive(Debug, Clone)]
enum Operation {
    Call(Call),
    /// Time passes, in seconds, so that leases run out.
    Pass(u64),
    /// The steps after this one go through another handle on the gallery.
    OtherHandle,
    /// A plain upsert of the application: a point with a source or without, and a vector
    /// by either model or none.
    Upsert {
        id: usize,
        source: Option<i8>,
        vectors: [Option<i8>; 2],
    },
    /// The application replaces the payload of a point that is there, and leaves its vectors.
    Overwrite {
        id: usize,
        source: Option<i8>,
    },
    Delete(usize),
    /// The application writes the old vector of a point that is there, and says so.
    OldVector {
        id: usize,
        vector: i8,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let some = || prop::option::weighted(0.7, -3_i8..4);
    prop_oneof![
        33 => call(true).prop_map(Operation::Call),
        2 => (0..2 * LEASE_S).prop_map(Operation::Pass),
        1 => Just(Operation::OtherHandle),
        8 => (0..IDS.len(), some(), some(), prop::option::weighted(0.3, -3_i8..4))
            .prop_map(|(id, source, old, new)| Operation::Upsert { id, source, vectors: [old, new] }),
        3 => (0..IDS.len(), some()).prop_map(|(id, source)| Operation::Overwrite { id, source }),
        3 => (0..IDS.len()).prop_map(Operation::Delete),
        5 => (0..IDS.len(), -3_i8..4).prop_map(|(id, vector)| Operation::OldVector { id, vector }),
    ]
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn the_gallery_in_a_collection_is_its_twin(operations in prop::collection::vec(operation(), 1..60)) {
        let Some(server) = server::server() else { return Ok(()) };
        go_through(server, &operations)?;
    }
}

/// Rounds a distance, since the server computes it from a score of its own.
fn rounded(distance: f32) -> f32 {
    (distance * 1e3).round()
}

/// Lists the lines that only one of two texts has.
fn difference(left: &str, right: &str) -> String {
    let only = |of: &str, other: &str| -> String {
        let lines = of.lines().filter(|line| !other.lines().any(|there| there == *line));
        lines.map(|line| format!("\n{line}")).collect()
    };
    format!("the store has{}\nand the twin{}", only(left, right), only(right, left))
}

/// Payload that the application writes beside a point's vectors.
fn payload_of(id: usize, source: Option<&str>) -> Value {
    let mut payload = json!({"at": 0});
    for (field, text) in [("body", source), ("topic", label_of(id).as_deref())] {
        if let Some(text) = text {
            payload[field] = json!(text);
        }
    }
    payload
}

fn go_through(server: &server::Server, operations: &[Operation]) -> Result<(), TestCaseError> {
    let name = server::fresh("twin");
    server::collection(&server.url, &name, 2);
    let options = CollectionOptions {
        collection: name.clone(),
        source: Some("body".into()),
        label: Some("topic".into()),
        vector: Some("embedding".into()),
        ..CollectionOptions::default()
    };
    let clock = ManualLeaseClock::default();
    let address = server.address();
    let opened = |store: QdrantStore| store.with_clock(Arc::new(clock.clone()), &address).unwrap();
    let mut store = opened(QdrantStore::adopt(&address, &options, Some("old"), &|_, _| true).unwrap());
    // A point's number is its key.
    let key_of = |id: &str, _: u64| ItemKey::from(id.parse::<u64>().unwrap());
    let twin = MemoryStore::new().forgetting().with_keys(key_of).with_clock(Arc::new(clock.clone()));
    make_spaces(&twin);
    make_spaces(&store);
    let mut other = opened(QdrantStore::open(&address, &options, Some("old")).unwrap());
    let points = format!("/collections/{name}/points");
    let point = |id: usize| IDS[id].parse::<u64>().unwrap();
    for (at, operation) in operations.iter().enumerate() {
        match operation {
            // The application alone writes its own vector, and its space is not dropped.
            Operation::Call(Call::Write { space: 0, .. }) => continue,
            Operation::Call(Call::Drop) if twin.serving().unwrap().as_deref() == Some("new") => continue,
            Operation::Call(call) => {
                prop_assert_eq!(apply(&store, call), apply(&twin, call), "{:?}", call);
            }
            Operation::Pass(seconds) => clock.pass(Duration::from_secs(*seconds)),
            Operation::OtherHandle => std::mem::swap(&mut store, &mut other),
            Operation::Upsert { id, source, vectors: [old, new] } => {
                let source = source.map(|source| format!("source {source}"));
                let new = new.filter(|_| twin.spaces().unwrap().len() == 2);
                let [old, new] = [old, &new].map(|value| value.map(|value| vector(value, *id)));
                let payload = payload_of(*id, source.as_deref());
                let mut named = json!({});
                for (name, vector) in [("embedding", &old), ("new", &new)] {
                    if let Some(vector) = vector {
                        named[name] = json!(vector);
                    }
                }
                let body = json!({"points": [{"id": point(*id), "vector": named, "payload": payload}]});
                server::send(&server.url, "PUT", &format!("{points}?wait=true"), &body);
                let of_old = old.map(|old| NewVector::from_model("old", old, Provenance::Old));
                let of_new = new.map(|new| NewVector::from_model("new", new, Provenance::Native));
                let write = ItemWrite::new(IDS[*id], source, of_old.into_iter().chain(of_new).collect());
                // An upsert of the application replaces the point with all that was in it.
                twin.delete(&[IDS[*id]]).unwrap();
                twin.put(&[ItemWrite { label: label_of(*id), payload: json!({"at": 0}), ..write }]).unwrap();
                // The store's item gets its revision when it is seen; the twin's item has one already.
                store.newest_revision().unwrap();
            }
            Operation::Overwrite { id, source } => {
                let Some(there) = twin.get(&[IDS[*id]]).unwrap().remove(0) else { continue };
                let old = twin.vectors("old", &[there.key]).unwrap().remove(0);
                let source = source.map(|source| format!("source {source}"));
                let body = json!({"payload": payload_of(*id, source.as_deref()), "points": [point(*id)]});
                server::send(&server.url, "PUT", &format!("{points}/payload?wait=true"), &body);
                let of_old = old.map(|old| NewVector::from_model("old", old.vector, Provenance::Old));
                let write = ItemWrite::new(IDS[*id], source, of_old.into_iter().collect());
                twin.delete(&[IDS[*id]]).unwrap();
                twin.put(&[ItemWrite { label: label_of(*id), payload: json!({"at": 0}), ..write }]).unwrap();
                store.newest_revision().unwrap();
            }
            Operation::OldVector { id, vector: old } => {
                let Some(there) = twin.get(&[IDS[*id]]).unwrap().remove(0) else { continue };
                let old = vector(*old, *id);
                let points_of = json!([{"id": point(*id), "vector": {"embedding": old}}]);
                server::send(
                    &server.url,
                    "PUT",
                    &format!("{points}/vectors?wait=true"),
                    &json!({"points": points_of}),
                );
                let said = json!({"payload": {"rehang": 0}, "points": [point(*id)]});
                server::send(&server.url, "POST", &format!("{points}/payload?wait=true"), &said);
                let vectors = vec![NewVector::from_model("old", old, Provenance::Old)];
                let write = ItemWrite::new(IDS[*id], there.source, vectors);
                twin.put(&[ItemWrite { label: there.label, payload: there.payload, ..write }]).unwrap();
                store.newest_revision().unwrap();
            }
            Operation::Delete(id) => {
                let body = json!({"points": [point(*id)]});
                server::send(&server.url, "POST", &format!("{points}/delete?wait=true"), &body);
                twin.delete(&[IDS[*id]]).unwrap();
            }
        }
        if at % COMPARED_EVERY == COMPARED_EVERY - 1 || at + 1 == operations.len() {
            let (seen, twins) = (seen_with(&store, rounded), seen_with(&twin, rounded));
            prop_assert!(seen == twins, "after step {at}: {operation:?}: {}", difference(&seen, &twins));
        }
    }
    prop_assert_eq!(seen_with(&other, rounded), seen_with(&twin, rounded));
    prop_assert_eq!(store.check().unwrap(), vec![]);
    store.release(false).ok();
    server::send(&server.url, "DELETE", &format!("/collections/{name}"), &Value::Null);
    Ok(())
}
