//! A collection of Qdrant is upgraded while an application writes it by plain requests, while workers are
//! killed (`kill -9`) in turn, and while the server itself is killed and starts again: see
//! `common/deaths.rs`.

#![cfg(unix)]

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::deaths::{self, Act, D_OLD, ITEMS, Row, Served, model, model_of};
use crate::qdrant_server;

/// The tag's part of the new space, which is the second one that was made.
const NEW: &str = "rehang_tag.s2.p";

/// All points with a new vector and what the tag says of it, by plain requests. A point without a revision
/// has changed since.
fn rows(url: &str) -> Vec<Row> {
    let body = json!({"limit": 10 * ITEMS, "with_payload": true, "with_vector": true});
    let points = qdrant_server::send(url, "POST", "/collections/notes/points/scroll", &body)["points"].take();
    let row = |point: &Value| {
        let payload = &point["payload"];
        let said =
            || payload["rehang_tag"]["s2"]["p"].as_str().filter(|said| ["adapted", "native"].contains(said));
        let provenance = payload["rehang"].as_u64().and_then(|_| said()).map(str::to_owned);
        let vector = serde_json::from_value(point["vector"]["second"].clone()).unwrap();
        let text = payload["body"].as_str().unwrap().to_owned();
        assert!(text.starts_with(&format!("{} ", point["id"])), "{point}");
        let old = serde_json::from_value(point["vector"]["embedding"].clone()).unwrap();
        Row { text, old, vector: provenance.as_ref().and(vector), provenance }
    };
    points.as_array().unwrap().iter().map(row).collect()
}

/// Does what an application does, by plain requests; gives `false` where the server was away.
fn act(url: &str, act: Act) -> bool {
    let these = |number: usize| json!({"must": [{"has_id": [number]}]});
    let (method, path, body) = match act {
        Act::Put(number, version) => {
            let vector = &model(number, version)[..D_OLD];
            let payload = json!({"body": format!("{number} {version}"), "seen": 0});
            (
                "PUT",
                "",
                json!({"points": [{"id": number, "vector": {"embedding": vector}, "payload": payload}]}),
            )
        }
        Act::Text(number, version) => {
            let payload = json!({"body": format!("{number} {version}"), "rehang": null});
            ("POST", "/payload", json!({"payload": payload, "filter": these(number)}))
        }
        Act::NoVector(number) => {
            ("POST", "/vectors/delete", json!({"vector": ["embedding"], "filter": these(number)}))
        }
        Act::Delete(number) => ("POST", "/delete", json!({"points": [number]})),
        Act::Touch => {
            let some: Vec<usize> = (0..50).collect();
            ("POST", "/payload", json!({"payload": {"seen": 1}, "filter": {"must": [{"has_id": some}]}}))
        }
        // The server takes nothing back.
        Act::Undone => return true,
        Act::Search(number) => {
            let filter = json!({"must": [{"key": NEW, "match": {"any": ["adapted", "native"]}}], "must_not": [{"is_empty": {"key": "rehang"}}]});
            let body = json!({"query": model(number, 0), "using": "second", "limit": 5, "filter": filter});
            ("POST", "/query", body)
        }
    };
    qdrant_server::try_send(url, method, &format!("/collections/notes/points{path}?wait=true"), &body).is_ok()
}

#[test]
fn a_collection_is_upgraded_whatever_dies_while_an_application_writes_it() {
    let Some(mut own) = qdrant_server::Server::start(None) else { return qdrant_server::skipped() };
    let url = own.url.clone();
    qdrant_server::collection(&url, "notes", D_OLD);
    let place = deaths::place(&format!(
        "kind = \"qdrant\"\nurl = {url:?}\ncollection = \"notes\"\nsource = \"body\"\nvector = \"embedding\""
    ));
    let served = Served {
        act: &mut |what| act(&url, what),
        rows: &|| rows(&url),
        restart: &mut || own.kill_and_restart(Duration::from_millis(200)),
    };
    deaths::upgrade_among_deaths(&place, served);
    place.finish(&["gallery", "release", "--yes"]);
    let body = json!({"limit": 10 * ITEMS, "with_payload": true, "with_vector": true});
    let left = qdrant_server::send(&url, "POST", "/collections/notes/points/scroll", &body);
    for point in left["points"].as_array().unwrap() {
        let payload = point["payload"].as_object().unwrap();
        assert!(payload.keys().all(|field| ["body", "seen"].contains(&field.as_str())), "{payload:?}");
        let vector: Vec<f32> = serde_json::from_value(point["vector"]["second"].clone()).unwrap();
        assert_eq!(vector, model_of(payload["body"].as_str().unwrap()));
    }
    let collections = qdrant_server::send(&url, "GET", "/collections", &Value::Null);
    assert_eq!(collections["collections"], json!([{"name": "notes"}]), "nothing of ours is left beside it");
}
