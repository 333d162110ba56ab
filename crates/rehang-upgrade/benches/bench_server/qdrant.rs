//! A collection of Qdrant.

use std::thread;
use std::time::{Duration, Instant};

use rehang::Provenance;
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{Examined, Ledger, Problem, Store};
use serde_json::{Value, json};
use ureq::Agent;

use crate::{Application, D_NEW, D_OLD, Server, space, vector};

/// Points of one request.
const POINTS: usize = 256;

pub struct Qdrant {
    agent: Agent,
    address: String,
}

impl Qdrant {
    pub fn new(address: String) -> Self {
        Self { agent: Agent::new_with_defaults(), address }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/collections/{path}", self.address))
            .header("content-type", "application/json");
        let mut answer = match body {
            Value::Null => self.agent.run(request.body(()).unwrap()),
            body => self.agent.run(request.body(body.to_string()).unwrap()),
        }
        .unwrap();
        let body = answer.body_mut().read_to_vec().unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()["result"].take()
    }

    fn open(&self) -> QdrantStore {
        let options = CollectionOptions {
            collection: "documents".into(),
            source: Some("body".into()),
            vector: Some("embedding".into()),
            ..CollectionOptions::default()
        };
        let address = QdrantAddress::new(&self.address);
        let store = QdrantStore::adopt(&address, &options, Some("old"), &|_, _| true).unwrap();
        store.create_space(&space("old", D_OLD), Provenance::Old).unwrap();
        store
    }
}

fn point(id: usize, text: usize) -> Value {
    json!({"id": id, "vector": {"embedding": vector(text, D_OLD)}, "payload": {"body": format!("text {text}")}})
}

impl Server for Qdrant {
    fn make(&self, name: &str, rows: usize) {
        let vectors = json!({"vectors": {"embedding": {"size": D_OLD, "distance": "Cosine"}}});
        self.send("PUT", name, &vectors);
        for first in (0..rows).step_by(POINTS) {
            let points: Vec<Value> = (first..rows.min(first + POINTS)).map(|row| point(row, row)).collect();
            self.send("PUT", &format!("{name}/points?wait=true"), &json!({"points": points}));
        }
    }

    /// The server makes its indexes by itself.
    fn index(&self) {}

    fn remove(&self, name: &str) {
        self.send("DELETE", name, &Value::Null);
    }

    fn count(&self) -> u64 {
        self.send("POST", "documents/points/count", &json!({"exact": true}))["count"].as_u64().unwrap()
    }

    /// Until no optimizer is at work.
    fn rest(&self, name: &str) {
        while self.send("GET", name, &Value::Null)["status"] != "green" {
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn fill_bare(&self, vectors: &[Vec<f32>]) -> f64 {
        let began = Instant::now();
        let dense = json!({"dense": {"size": D_NEW, "distance": "Cosine"}});
        self.send("PUT", "bare/vectors/new?wait=true", &dense);
        for (page, vectors) in vectors.chunks(POINTS).enumerate() {
            let of = |(at, vector): (usize, &Vec<f32>)| json!({"id": page * POINTS + at, "vector": {"new": vector}});
            let points: Vec<Value> = vectors.iter().enumerate().map(of).collect();
            self.send("PUT", "bare/points/vectors?wait=true", &json!({"points": points}));
        }
        began.elapsed().as_secs_f64()
    }

    fn adopt(&self) -> Box<dyn Store> {
        Box::new(self.open())
    }

    fn check(&self) -> Vec<Problem> {
        self.open().check().unwrap()
    }

    fn release(&self) {
        self.open().release().unwrap();
    }

    fn application(&self) -> Box<dyn Application + '_> {
        Box::new(Requests(self))
    }
}

/// By plain requests.
struct Requests<'a>(&'a Qdrant);

impl Application for Requests<'_> {
    fn write(&mut self, at: usize, rows: usize) {
        let row = (at * 7919) % rows;
        let write = |method, path: &str, body| {
            self.0.send(method, &format!("documents/points{path}?wait=true"), &body);
        };
        match at % 4 {
            0 => write("PUT", "", json!({"points": [point(rows + at, at)]})),
            1 => write("PUT", "", json!({"points": [point(row, at)]})),
            2 => {
                let payload = json!({"body": format!("text {at}"), "rehang": null});
                let this = json!({"must": [{"has_id": [row]}]});
                write("POST", "/payload", json!({"payload": payload, "filter": this}));
            }
            _ => write("POST", "/delete", json!({"points": [row]})),
        }
    }

    fn search(&mut self, at: usize, to_new: bool) -> usize {
        let (using, d) = if to_new { ("new", D_NEW) } else { ("embedding", D_OLD) };
        let of_now = json!({
            "must": [{"key": "rehang_tag.s2.p", "match": {"any": ["adapted", "native"]}}],
            "must_not": [{"is_empty": {"key": "rehang"}}],
        });
        let filter = if to_new { of_now } else { Value::Null };
        let body = json!({"query": vector(at, d), "using": using, "limit": 10, "filter": filter});
        self.0.send("POST", "documents/points/query", &body)["points"].as_array().unwrap().len()
    }
}
