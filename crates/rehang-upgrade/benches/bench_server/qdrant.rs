//! A collection of Qdrant.

use std::thread;
use std::time::{Duration, Instant};

use rehang_core::Provenance;
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{Examined, Ledger, Problem, Store};
use serde_json::{Value, json};
use ureq::Agent;

use crate::{Application, Server, d_new, d_old, space, vector};

/// Points of one request.
const POINTS: usize = 256;

pub struct Qdrant {
    agent: Agent,
    address: String,
}

impl Qdrant {
    pub fn new(address: String) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).build();
        Self { agent: config.into(), address }
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
        let (status, body) = (answer.status(), answer.body_mut().read_to_vec().unwrap());
        assert!(status.is_success(), "{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Value>(&body).unwrap()["result"].take()
    }

    /// Points a second for writes that promise more and more, each step what stands before it and one thing
    /// more: what the rate of a fill goes to.
    pub fn promises(&self, rows: usize) {
        const STEPS: [&str; 6] = [
            "vectors alone",
            "and the old vectors are read",
            "and of each is said who made it, its σ² and its place in the queue",
            "and these have indexes",
            "and both only where the write has reserved the point",
            "and the writer reads back what was written",
        ];
        let vectors: Vec<Vec<f32>> = (0..rows).map(|row| vector(row, d_new())).collect();
        for turn in 0..2 {
            for (step, name) in STEPS.iter().enumerate() {
                self.make("bare", rows);
                self.rest("bare");
                let dense = json!({"dense": {"size": d_new(), "distance": "Cosine"}});
                self.send("PUT", "bare/vectors/new?wait=true", &dense);
                if step >= 3 {
                    for (field, kind) in [("p", "keyword"), ("q", "float"), ("b", "integer")] {
                        let index = json!({"field_name": format!("tag.s.{field}"), "field_schema": kind});
                        self.send("PUT", "bare/index?wait=true", &index);
                    }
                }
                let began = Instant::now();
                for (page, vectors) in vectors.chunks(POINTS).enumerate() {
                    self.write_page(step, page, vectors);
                }
                println!("turn {turn}: {:.0} rows/s: {name}", rows as f64 / began.elapsed().as_secs_f64());
                self.remove("bare");
            }
        }
    }

    fn write_page(&self, step: usize, page: usize, vectors: &[Vec<f32>]) {
        let ids: Vec<usize> = (0..vectors.len()).map(|at| page * POINTS + at).collect();
        let (name, key) = (format!("write {page}"), "tag.s");
        let reserved = json!({"key": "tag.s.k", "match": {"value": name}});
        if step >= 1 {
            let page = json!({"ids": ids, "with_vector": ["embedding"], "with_payload": true});
            self.send("POST", "bare/points", &page);
        }
        if step >= 4 {
            let free = json!({"must": [{"has_id": ids}, {"is_empty": {"key": "tag.s.k"}}]});
            let mark = json!({"payload": {"p": "pending", "k": name}, "key": key, "filter": free});
            self.send("POST", "bare/points/payload?wait=true", &mark);
            self.send("POST", "bare/points", &json!({"ids": ids, "with_payload": true}));
        }
        let point = |(id, vector): (&usize, &Vec<f32>)| json!({"id": id, "vector": {"new": vector}});
        let points: Vec<Value> = ids.iter().zip(vectors).map(point).collect();
        let filter = if step >= 4 { json!({"must": [reserved]}) } else { Value::Null };
        self.send(
            "PUT",
            "bare/points/vectors?wait=true",
            &json!({"points": points, "update_filter": filter}),
        );
        if step >= 2 {
            let said = ids.iter().map(|id| {
                let score = (*id as f64 * 0.618).fract();
                let payload = json!({"p": "adapted", "w": name, "k": null, "b": 0, "q": score, "v": score});
                if step >= 4 {
                    let filter = json!({"must": [{"has_id": [id]}, reserved]});
                    json!({"set_payload": {"payload": payload, "key": key, "filter": filter}})
                } else {
                    json!({"set_payload": {"payload": payload, "key": key, "points": [id]}})
                }
            });
            let mut said: Vec<Value> = said.collect();
            let last = said.pop();
            // As the library does: only the last operation is waited for.
            self.send("POST", "bare/points/batch?wait=false", &json!({"operations": said}));
            self.send("POST", "bare/points/batch?wait=true", &json!({"operations": [last]}));
        }
        if step >= 5 {
            let found = self.send("POST", "bare/points", &json!({"ids": ids, "with_payload": true}));
            let found = found.as_array().unwrap();
            assert!(found.iter().all(|point| point["payload"]["tag"]["s"]["w"] == name.as_str()));
        }
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
        store.create_space(&space("old", d_old()), Provenance::Old).unwrap();
        store
    }
}

fn point(id: usize, text: usize) -> Value {
    json!({"id": id, "vector": {"embedding": vector(text, d_old())}, "payload": {"body": format!("text {text}")}})
}

impl Server for Qdrant {
    fn make(&self, name: &str, rows: usize) {
        let vectors = json!({"vectors": {"embedding": {"size": d_old(), "distance": "Cosine"}}});
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

    /// Waits until no optimizer is at work.
    fn rest(&self, name: &str) {
        while self.send("GET", name, &Value::Null)["status"] != "green" {
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn fill_bare(&self, vectors: &[Vec<f32>]) -> f64 {
        let began = Instant::now();
        let dense = json!({"dense": {"size": d_new(), "distance": "Cosine"}});
        self.send("PUT", "bare/vectors/new?wait=true", &dense);
        for (page, vectors) in vectors.chunks(POINTS).enumerate() {
            let point = |(at, vector): (usize, &Vec<f32>)| json!({"id": page * POINTS + at, "vector": {"new": vector}});
            let points: Vec<Value> = vectors.iter().enumerate().map(point).collect();
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
        self.open().release(false).unwrap();
    }

    fn application(&self) -> Box<dyn Application + '_> {
        Box::new(Requests(self))
    }
}

/// Application that writes by plain requests.
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
        let (using, d) = if to_new { ("new", d_new()) } else { ("embedding", d_old()) };
        let of_now = json!({
            "must": [{"key": "rehang_tag.s2.p", "match": {"any": ["adapted", "native"]}}],
            "must_not": [{"is_empty": {"key": "rehang"}}],
        });
        let filter = if to_new { of_now } else { Value::Null };
        let body = json!({"query": vector(at, d), "using": using, "limit": 10, "filter": filter});
        self.0.send("POST", "documents/points/query", &body)["points"].as_array().unwrap().len()
    }
}
