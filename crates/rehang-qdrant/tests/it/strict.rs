//! Collections whose server allows less than a gallery would ask for: an upgrade keeps inside the limits, or
//! is refused before anything is written.

use std::collections::BTreeMap;
use std::time::Duration;

use rehang_core::{Distance, ErrorKind, Matrix, Provenance, Space};
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{
    Epoch, Examined, Filter, Index, Item, Ledger, NewVector, Priority, Queue, Scan, Select, VectorWrite,
    WriteOutcome,
};
use serde_json::{Value, json};

use crate::server::{self, Server, send};

const NEW: &str = "new";

fn options(collection: &str) -> CollectionOptions {
    CollectionOptions {
        collection: collection.to_owned(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..CollectionOptions::default()
    }
}

fn new_space() -> Space {
    Space::new(NEW, 3, Distance::Cosine, false)
}

/// Makes a collection of points with texts, and with old vectors by cosine.
fn collection(server: &Server, points: u64, more: &Value) -> String {
    let name = server::fresh("strict");
    let mut body = json!({"vectors": {"embedding": {"size": 2, "distance": "Cosine"}}});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    send(&server.url, "PUT", &format!("/collections/{name}"), &body);
    let all: Vec<Value> = (1..=points)
        .map(|id| json!({"id": id, "vector": {"embedding": [id, 1]}, "payload": {"body": format!("text {id}")}}))
        .collect();
    for some in all.chunks(8) {
        let path = format!("/collections/{name}/points?wait=true");
        send(&server.url, "PUT", &path, &json!({"points": some}));
    }
    name
}

fn limits_of(server: &Server, name: &str, strict: &Value) {
    let body = json!({"strict_mode_config": strict});
    send(&server.url, "PATCH", &format!("/collections/{name}"), &body);
}

fn indexes_of(server: &Server, name: &str) -> Vec<String> {
    let there = send(&server.url, "GET", &format!("/collections/{name}"), &Value::Null);
    there["payload_schema"].as_object().unwrap().keys().cloned().collect()
}

fn adopt(server: &Server, name: &str) -> rehang_core::Result<QdrantStore> {
    QdrantStore::adopt(&server.address(), &options(name), Some("old"), &|_, _| true)
}

/// Does everything that an upgrade does, on a gallery of 20 items.
fn upgrade(store: &QdrantStore) {
    store.create_space(&Space::new("old", 2, Distance::Cosine, false), Provenance::Old).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    let items = || -> Vec<Item> {
        let all = store.scan(&Scan::new(NEW, Select::All, 99).with_vectors_of("old")).unwrap();
        all.into_iter().map(|record| record.item).collect()
    };
    let all = items();
    assert_eq!(all.len(), 20);
    let adapted = |(at, item): (usize, &Item)| {
        VectorWrite::adapted(item, vec![1.0, at as f32, 0.0], 0.5, Priority::ordinary(at as f64))
    };
    let writes: Vec<VectorWrite> = all.iter().enumerate().map(adapted).collect();
    assert_eq!(store.write_vectors(NEW, Some(Epoch::FIRST), &writes), Ok(vec![WriteOutcome::Written; 20]));
    let place = (all[0].key, all[0].revision, Priority::ordinary(99.0));
    assert_eq!(store.set_priorities(NEW, Epoch::FIRST, &[place]), Ok(1));
    let claimed = store.claim(NEW, Queue::All, "worker", 12, Duration::from_mins(1)).unwrap().records;
    let order: Vec<&str> = claimed.iter().map(|record| record.item.id.as_str()).collect();
    assert_eq!(order, ["1", "20", "19", "18", "17", "16", "15", "14", "13", "12", "11", "10"], "worst first");
    let native = |item: &Item| VectorWrite {
        squared_error: Some(0.25),
        ..VectorWrite::native(item, vec![0.0, 1.0, 1.0])
    };
    let natives: Vec<VectorWrite> = claimed.iter().map(|record| native(&record.item)).collect();
    assert_eq!(store.write_vectors(NEW, None, &natives), Ok(vec![WriteOutcome::Written; 12]));
    store.record_failures(NEW, &[(all[4].key, all[4].source_revision, "no".into())]).unwrap();
    let counts = store.counts(NEW).unwrap();
    assert_eq!((counts.native, counts.adapted, counts.failed), (12, 8, 1));
    assert_eq!(store.errors(NEW, 99), Ok(vec![(0.5, 0.25); 12]));
    let query = Matrix::new(3, vec![0.0, 1.0, 1.0]).unwrap();
    assert_eq!(store.search(NEW, &query, 9, &Filter::default()).unwrap()[0].len(), 9);
    store.switch_serving("old", NEW).unwrap();
    assert_eq!(store.forget_natives(NEW, Epoch::FIRST, 5), Ok(5));
    let put = rehang_store::ItemWrite::new(
        "3",
        Some("text 3".into()),
        vec![NewVector::from_model("old", vec![0.0, 1.0], Provenance::Old)],
    );
    store.put(&[put]).unwrap();
    store.clear_failures(NEW).unwrap();
    let left = store.scan(&Scan::new(NEW, Select::Queued, 99)).unwrap();
    let left: Vec<VectorWrite> = left.iter().map(|record| native(&record.item)).collect();
    assert!(
        store
            .write_vectors(NEW, None, &left)
            .unwrap()
            .iter()
            .all(|outcome| *outcome == WriteOutcome::Written)
    );
    assert_eq!(store.counts(NEW).unwrap().native, 20);
    assert_eq!(store.check(), Ok(vec![]));
    store.drop_space("old").unwrap();
}

#[test]
fn a_strict_collection_is_upgraded_inside_its_limits() {
    let Some(server) = server::server() else { return };
    let strict = json!({"strict_mode_config": {
        "enabled": true, "unindexed_filtering_update": false, "unindexed_filtering_retrieve": false,
        "upsert_max_batchsize": 8, "max_query_limit": 16, "filter_max_conditions": 64, "condition_max_size": 1000,
        "max_payload_index_count": 40, "max_collection_vector_size_bytes": 1_000_000,
    }});
    let name = collection(server, 20, &strict);
    let store = adopt(server, &name).unwrap();
    upgrade(&store);
    store.release(false).unwrap();
    assert_eq!(indexes_of(server, &name), Vec::<String>::new(), "nothing of ours is left");
    let path = format!("/collections/{name}/points");
    let left = send(&server.url, "POST", &path, &json!({"ids": [7], "with_payload": true}));
    assert_eq!(left[0]["payload"], json!({"body": "text 7"}));
}

/// A collection is made strict after its adoption: the doctor says which indexes are missing, and one
/// more adoption makes them.
#[test]
fn a_gallery_that_has_become_strict_is_adopted_once_more() {
    let Some(server) = server::server() else { return };
    let name = collection(server, 20, &json!({}));
    adopt(server, &name).unwrap();
    limits_of(server, &name, &json!({"enabled": true, "unindexed_filtering_update": false}));
    upgrade(&adopt(server, &name).unwrap());
    let name = collection(server, 20, &json!({}));
    let store = adopt(server, &name).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    limits_of(server, &name, &json!({"enabled": true, "unindexed_filtering_update": false}));
    let problems = store.check().unwrap();
    assert!(problems[0].what.contains("adopt the gallery once more"), "{problems:?}");
    assert_eq!(adopt(server, &name).unwrap().check(), Ok(vec![]));
}

#[test]
fn what_would_end_an_upgrade_half_way_is_refused_before_anything_is_written() {
    let Some(server) = server::server() else { return };
    for (name, value) in [
        ("search_allow_exact", json!(false)),
        ("filter_max_conditions", json!(20)),
        ("condition_max_size", json!(100)),
        ("max_payload_index_count", json!(11)),
    ] {
        let collection = collection(server, 3, &json!({}));
        limits_of(server, &collection, &json!({"enabled": true, name: value}));
        let error = adopt(server, &collection).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(indexes_of(server, &collection), Vec::<String>::new());
        let ours = format!("/collections/rehang_{collection}/exists");
        assert_eq!(send(&server.url, "GET", &ours, &Value::Null)["exists"], json!(false));
    }
    // A limit of vectors' bytes is checked where a space is made.
    let collection = collection(server, 20, &json!({}));
    let limit = json!({"enabled": true, "max_collection_vector_size_bytes": 200});
    let store = adopt(server, &collection).unwrap();
    limits_of(server, &collection, &limit);
    let error = store.create_space(&new_space(), Provenance::Native).unwrap_err().to_string();
    assert!(error.contains("max_collection_vector_size_bytes") && error.contains("480"), "{error}");
}

/// The server may lose an index that comes about while it rearranges points.
#[test]
fn an_index_that_the_server_lost_is_made_again() {
    let Some(server) = server::server() else { return };
    let collection = collection(server, 20, &json!({}));
    let store = adopt(server, &collection).unwrap();
    store.create_space(&Space::new("old", 2, Distance::Cosine, false), Provenance::Old).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    let (before, newest) = (indexes_of(server, &collection), store.newest_revision().unwrap());
    let lose = |field: &str| {
        let path = format!("/collections/{collection}/index/{field}?wait=true");
        send(&server.url, "DELETE", &path, &Value::Null);
    };
    let fields = ["rehang", "rehang_tag.s2.q", "rehang_tag.s2.t"];
    for field in fields {
        lose(field);
    }
    assert_eq!(store.newest_revision().unwrap(), newest);
    assert_eq!(store.claim(NEW, Queue::All, "worker", 12, Duration::from_mins(1)).unwrap().records.len(), 12);
    assert_eq!(store.errors(NEW, 9), Ok(vec![]));
    assert_eq!(indexes_of(server, &collection), before);
    // Indexes by which nothing is ordered are made again once the server is at rest.
    lose("rehang_tag.s2.p");
    store.prepare(NEW, &|_, _| true).unwrap();
    assert_eq!(indexes_of(server, &collection), before);
}

/// The server refuses an adoption half-way. The adoption goes on once it may, or is taken back.
#[test]
fn an_adoption_that_failed_goes_on_or_is_released() {
    let Some(server) = server::server() else { return };
    for goes_on in [true, false] {
        let name = collection(server, 3, &json!({}));
        let url =
            server::before(&server.url, format!("POST /collections/{name}/points/batch?wait=false "), {
                let (url, name) = (server.url.clone(), name.clone());
                move || {
                    let strict =
                        json!({"strict_mode_config": {"enabled": true, "unindexed_filtering_update": false}});
                    send(&url, "PATCH", &format!("/collections/{name}"), &strict);
                }
            });
        let address = QdrantAddress::new(&url);
        let failed = QdrantStore::adopt(&address, &options(&name), Some("old"), &|_, _| true);
        assert!(failed.unwrap_err().to_string().contains("Index required"));
        let store = QdrantStore::open(&server.address(), &options(&name), Some("old")).unwrap();
        let said = store.spaces().unwrap_err().to_string();
        assert!(said.contains("not whole yet") && said.contains("release it"), "{said}");
        if goes_on {
            let store = adopt(server, &name).unwrap();
            assert!(store.newest_revision().unwrap() > 0);
            assert_eq!(store.spaces(), Ok(vec![]));
        } else {
            store.release(false).unwrap();
            assert_eq!(indexes_of(server, &name), Vec::<String>::new());
        }
    }
}

/// An application whose old vectors are on disk, of half width or quantised, has no room
/// for new ones in memory.
#[test]
fn a_new_vector_lies_as_the_old_one_does() {
    let Some(server) = server::server() else { return };
    let name = server::fresh("like");
    let like = json!({"on_disk": true, "hnsw_config": {"m": 24}, "quantization_config": {"scalar": {"type": "int8"}}});
    let mut old = like.clone();
    (old["size"], old["distance"], old["datatype"]) = (json!(4), json!("Euclid"), json!("float16"));
    send(&server.url, "PUT", &format!("/collections/{name}"), &json!({"vectors": {"embedding": old}}));
    adopt(server, &name).unwrap().create_space(&new_space(), Provenance::Native).unwrap();
    let there = send(&server.url, "GET", &format!("/collections/{name}"), &Value::Null);
    let new = &there["config"]["params"]["vectors"]["new"];
    for field in ["on_disk", "hnsw_config", "quantization_config", "datatype"] {
        assert_eq!(new[field], there["config"]["params"]["vectors"]["embedding"][field], "{field}: {new}");
    }
}

#[test]
fn collections_that_cannot_be_galleries_are_refused() {
    let Some(server) = server::server() else { return };
    let lists = json!({"vectors": {"embedding": {
        "size": 2, "distance": "Cosine", "multivector_config": {"comparator": "max_sim"},
    }}});
    let name = collection(server, 0, &lists);
    let error = adopt(server, &name).unwrap_err().to_string();
    assert!(error.contains("multivector"), "{error}");
    // The application has fields of its own under the names of the gallery's.
    for payload in [json!({"rehang": "mine"}), json!({"rehang": 7}), json!({"rehang_tag": ["mine"]})] {
        let name = collection(server, 2, &json!({}));
        let path = format!("/collections/{name}/points/payload?wait=true");
        send(&server.url, "POST", &path, &json!({"payload": payload, "points": [2]}));
        let error = adopt(server, &name).unwrap_err();
        assert!(
            error.is_conflict() && error.to_string().contains("1 points have a payload field"),
            "{error}"
        );
        assert_eq!(indexes_of(server, &name), Vec::<String>::new());
        let path = format!("/collections/{name}/points");
        let there = send(&server.url, "POST", &path, &json!({"ids": [2], "with_payload": true}));
        let (field, value) = payload.as_object().unwrap().iter().next().unwrap();
        assert_eq!(there[0]["payload"][field], *value, "it is the application's");
    }
}

/// The server keeps old vectors as bytes or half-width numbers. No vector is written twice because
/// it reads back rounded.
#[test]
fn coarse_old_vectors_are_what_the_server_says() {
    let Some(server) = server::server() else { return };
    for datatype in ["uint8", "float16"] {
        let vectors =
            json!({"vectors": {"embedding": {"size": 2, "distance": "Cosine", "datatype": datatype}}});
        let name = collection(server, 20, &vectors);
        let store = adopt(server, &name).unwrap();
        upgrade(&store);
    }
}

/// An application's own query fuses words with vectors by the filter that docs/qdrant.md names. It finds the
/// right points at every stage.
#[test]
fn a_hybrid_query_is_right_at_every_stage() {
    let Some(server) = server::server() else { return };
    let name = server::fresh("hybrid");
    let body =
        json!({"vectors": {"embedding": {"size": 2, "distance": "Cosine"}}, "sparse_vectors": {"words": {}}});
    send(&server.url, "PUT", &format!("/collections/{name}"), &body);
    let points = 12_u64;
    // By words, a greater id ranks better; by either model it is the other way round. So the order tells
    // which parts were fused.
    let at = |id: u64| f64::from(u32::try_from(id).unwrap()) / 8.0;
    let all: Vec<Value> = (1..=points)
        .map(|id| {
            let vector = json!({"embedding": [at(id).cos(), at(id).sin()], "words": {"indices": [7], "values": [id]}});
            json!({"id": id, "vector": vector, "payload": {"body": format!("text {id}")}})
        })
        .chain([json!({"id": 99, "vector": {"words": {"indices": [7], "values": [0.5]}}, "payload": {"body": "words alone"}})])
        .collect();
    let path = format!("/collections/{name}/points?wait=true");
    send(&server.url, "PUT", &path, &json!({"points": all}));
    let ask = |using: &str, query: Value, of_vectors: &Value| -> BTreeMap<u64, f64> {
        let body = json!({"limit": 20, "query": {"fusion": "rrf"}, "prefetch": [
            {"using": "words", "query": {"indices": [7], "values": [1]}, "limit": 20},
            {"using": using, "query": query, "limit": 20, "filter": of_vectors},
        ]});
        let found = send(&server.url, "POST", &format!("/collections/{name}/points/query"), &body);
        let found = found["points"].as_array().unwrap().iter();
        found.map(|hit| (hit["id"].as_u64().unwrap(), hit["score"].as_f64().unwrap())).collect()
    };
    // Ranks begin at 0; the item of words alone is last by them and has no vector.
    let expected = |constant: f64| -> BTreeMap<u64, f64> {
        let rank = |rank: u64| 1.0 / (constant + f64::from(u32::try_from(rank).unwrap()));
        let both = (1..=points).map(|id| (id, rank(points - id) + rank(id - 1)));
        both.chain([(99, rank(points))]).collect()
    };
    let old = || ask("embedding", json!([1, 0]), &json!({}));
    let ours = json!({
        "must": [{"key": "rehang_tag.s2.p", "match": {"any": ["adapted", "native"]}}],
        "must_not": [{"is_empty": {"key": "rehang"}}],
    });
    let new = || ask(NEW, json!([1, 0, 0]), &ours);
    let before = old();
    let same = |found: &BTreeMap<u64, f64>, stage: &str| {
        assert_eq!(found.len(), before.len(), "{stage}");
        for (id, score) in found {
            assert!((score - before[id]).abs() < 1e-4, "{stage}: {id} {score} {}", before[id]);
        }
    };
    let constant = 1.0 / before[&99] - f64::from(u32::try_from(points).unwrap());
    same(&expected(constant), "the formula");

    let store = adopt(server, &name).unwrap();
    same(&old(), "adopted");
    store.create_space(&Space::new("old", 2, Distance::Cosine, false), Provenance::Old).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    same(&old(), "with a new space");
    let items: Vec<Item> =
        store.scan(&Scan::new(NEW, Select::All, 99)).unwrap().into_iter().map(|record| record.item).collect();
    assert_eq!(items.len(), 13);
    let vector = |item: &Item| {
        let id = item.id.parse().unwrap();
        vec![at(id).cos() as f32, at(id).sin() as f32, 0.0]
    };
    let with_vector: Vec<&Item> = items.iter().filter(|item| item.id != "99").collect();
    let adapted: Vec<VectorWrite> = with_vector
        .iter()
        .map(|item| VectorWrite::adapted(item, vector(item), 0.5, Priority::ordinary(1.0)))
        .collect();
    store.write_vectors(NEW, Some(Epoch::FIRST), &adapted).unwrap();
    same(&old(), "filled, by the old model");
    same(&new(), "filled");
    store.switch_serving("old", NEW).unwrap();
    same(&new(), "switched");
    let natives = |some: &[&Item]| {
        let writes: Vec<VectorWrite> =
            some.iter().map(|item| VectorWrite::native(item, vector(item))).collect();
        assert_eq!(store.write_vectors(NEW, None, &writes), Ok(vec![WriteOutcome::Written; some.len()]));
    };
    natives(&with_vector[..5]);
    same(&new(), "partly native");
    // A text that the application writes anew has no vector of the new model until it is embedded. It is
    // found by its words alone.
    let point = json!({"id": 12, "vector": {"embedding": [at(12).cos(), at(12).sin()], "words": {"indices": [7], "values": [12]}},
        "payload": {"body": "other words"}});
    send(&server.url, "PUT", &path, &json!({"points": [point]}));
    let found = new();
    assert!((found[&12] - 1.0 / constant).abs() < 1e-4, "first by its words: {found:?}");
    assert_eq!(found.len(), 13);
    let queue = store.scan(&Scan::new(NEW, Select::Queued, 99)).unwrap();
    let left: Vec<&Item> = queue.iter().map(|record| &record.item).filter(|item| item.id != "99").collect();
    assert_eq!(left.len(), 7);
    natives(&left);
    same(&new(), "native");
    store.drop_space("old").unwrap();
    same(&new(), "finished");
    // The item of words alone has no vector that a release would leave behind.
    store.delete(&["99"]).unwrap();
    store.release(false).unwrap();
    let mut found = ask(NEW, json!([1, 0, 0]), &json!({}));
    assert_eq!(found.len(), 12);
    found.insert(99, before[&99]);
    same(&found, "released");
}

/// The query of docs/qdrant.md puts adapted vectors, which are estimates, farther away by the handicap. It
/// gives the order that a look at every vector gives.
#[test]
fn the_query_of_the_page_heeds_the_handicap() {
    let Some(server) = server::server() else { return };
    let name = collection(server, 60, &json!({}));
    let store = adopt(server, &name).unwrap();
    store.create_space(&Space::new("old", 2, Distance::Cosine, false), Provenance::Old).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    let items: Vec<Item> =
        store.scan(&Scan::new(NEW, Select::All, 99)).unwrap().into_iter().map(|record| record.item).collect();
    // The new model's vectors turn slowly with the id; an estimate is off to either side.
    let at = |id: u32, off: f32| {
        let angle = id as f32 / 40.0 + off;
        vec![angle.cos(), angle.sin(), 0.0]
    };
    let mut expected = Vec::new();
    let (mut adapted, mut natives) = (Vec::new(), Vec::new());
    for item in &items {
        let id: u32 = item.id.parse().unwrap();
        let is_native = id.is_multiple_of(3);
        let off = if is_native { 0.0 } else { (id as f32).sin() / 5.0 };
        let vector = at(id, off);
        expected.push((f64::from(vector[0]) - if is_native { 0.0 } else { 0.02 }, u64::from(id)));
        if is_native {
            natives.push(VectorWrite::native(item, vector));
        } else {
            adapted.push(VectorWrite::adapted(item, vector, 0.5, Priority::ordinary(1.0)));
        }
    }
    store.write_vectors(NEW, Some(Epoch::FIRST), &adapted).unwrap();
    store.write_vectors(NEW, None, &natives).unwrap();
    expected.sort_by(|a, b| b.0.total_cmp(&a.0));
    let page = include_str!("../../../../docs/qdrant.md");
    let query = page.split("```json").find(|part| part.contains("formula")).unwrap();
    let (_, body) = query.split("```").next().unwrap().trim().split_once('\n').unwrap();
    let body = body.replace("[0.1, 0.2]", "[1, 0, 0]").replace("\"large\"", &format!("{NEW:?}"));
    let found = send(
        &server.url,
        "POST",
        &format!("/collections/{name}/points/query"),
        &serde_json::from_str(&body).unwrap(),
    );
    let found: Vec<(u64, f64)> = found["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hit| (hit["id"].as_u64().unwrap(), hit["score"].as_f64().unwrap()))
        .collect();
    assert_eq!(found.len(), 10);
    for ((id, score), (similarity, nearest)) in found.iter().zip(&expected) {
        assert_eq!(id, nearest, "{found:?} {:?}", &expected[..10]);
        assert!((score - similarity).abs() < 1e-5, "{id}: {score} {similarity}");
    }
}

/// A search writes nothing. So it works for a role that may only read, and beside an application
/// that writes all the time.
#[test]
fn a_search_writes_nothing() {
    let Some(server) = server::server() else { return };
    let name = collection(server, 3, &json!({}));
    let store = adopt(server, &name).unwrap();
    store.create_space(&Space::new("old", 2, Distance::Cosine, false), Provenance::Old).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    let first = store.get(&["1"]).unwrap().remove(0).unwrap();
    let native = [VectorWrite::native(&first, vec![1.0, 0.0, 0.0])];
    assert_eq!(store.write_vectors(NEW, None, &native), Ok(vec![WriteOutcome::Written]));
    let new = json!({"id": 9, "vector": {"embedding": [-1, 0]}, "payload": {"body": "new words"}});
    send(&server.url, "PUT", &format!("/collections/{name}/points?wait=true"), &json!({"points": [new]}));
    let payload = |id: u64| {
        let path = format!("/collections/{name}/points");
        send(&server.url, "POST", &path, &json!({"ids": [id], "with_payload": true}))[0]["payload"].clone()
    };
    let query = Matrix::new(2, vec![-1.0, 0.0]).unwrap();
    let search = || store.search("old", &query, 1, &Filter::default()).unwrap().remove(0).remove(0);
    let found = search();
    assert_eq!(
        (found.id.as_str(), found.provenance, found.revision),
        ("9", Provenance::Old, 0),
        "it is found at once"
    );
    assert_eq!(payload(9), json!({"body": "new words"}), "and nothing was written");
    let only_old = Filter { provenances: vec![Provenance::Native], ..Filter::default() };
    assert_eq!(store.search("old", &query, 9, &only_old), Ok(vec![vec![]]));

    // The native vector belongs to earlier content: the source has changed, and nobody
    // has listed points since.
    let path = format!("/collections/{name}/points/payload?wait=true");
    let say = |payload: Value| send(&server.url, "POST", &path, &json!({"payload": payload, "points": [1]}));
    let query = Matrix::new(3, vec![1.0, 0.0, 0.0]).unwrap();
    let found = || store.search(NEW, &query, 9, &Filter::default()).unwrap().remove(0);
    assert_eq!(found().len(), 1);
    say(json!({"rehang": 0}));
    assert_eq!(found().len(), 1, "another old vector: the source is the same");
    say(json!({"body": "other words", "rehang": null}));
    assert_eq!(found(), [], "no vector of a source before");
    store.newest_revision().unwrap();
    assert_eq!(found(), []);
    assert!(search().revision > 0, "a call that lists points gives the revision");
}

/// A server that has restarted makes no indexes until something changes. Making a space ready does not
/// wait for that for ever.
#[test]
fn a_space_is_made_ready_whatever_the_server_says_of_its_indexes() {
    let Some(server) = server::server() else { return };
    let name = collection(server, 3, &json!({}));
    let store = adopt(server, &name).unwrap();
    store.create_space(&new_space(), Provenance::Native).unwrap();
    drop(store);
    // The proxy replaces the collection's status by the one that the server says in such a state.
    let ready = |status: &str| {
        let url = server::replaced(&server.url, "\"status\":\"green\"", status);
        let store = QdrantStore::open(&QdrantAddress::new(&url), &options(&name), Some("old")).unwrap();
        (store.is_ready(NEW), store.prepare(NEW, &|_, _| true))
    };
    let (is_ready, prepared) = ready("\"status\":\"red\"  ");
    let error = prepared.unwrap_err();
    assert_eq!(is_ready, Ok(false));
    assert!(
        error.to_string().contains("red") && error.to_string().contains("start the server again"),
        "{error}"
    );
}
