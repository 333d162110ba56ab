//! Tests of the service over real connections: a whole upgrade by requests alone, roles, faults of requests,
//! operations whose service has gone, and what the document of the routes says.

#[path = "it/faults.rs"]
mod faults;
#[path = "it/follow.rs"]
mod follow;
#[path = "it/kill.rs"]
mod kill;
#[path = "it/limits.rs"]
mod limits;
#[path = "../../rehang-postgres/tests/server/mod.rs"]
mod postgres_server;
#[path = "../../rehang-qdrant/tests/server/mod.rs"]
mod qdrant_server;
#[path = "it/stores.rs"]
mod stores;
#[path = "../../rehang-encode/tests/common/stub.rs"]
mod stub;
#[path = "it/tls.rs"]
mod tls;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rehang_core::{Distance, Matrix, Progress, Provenance, Space};
use rehang_encode::EncoderConfig;
use rehang_serve::{ServeOptions, serve};
use rehang_sqlite::SqliteStore;
use rehang_store::{Filter, ItemWrite, Ledger, NewVector};
use rehang_upgrade::{Configuration, Location, Upgrade};
use serde_json::{Value, json};

const ITEMS: usize = 400;
const OLD: usize = 12;
const NEW: usize = 16;

/// Makes the vector of an item by a model: a class, and some noise of its own.
fn vector(item: usize, width: usize) -> Vec<f32> {
    let wave = |number: usize| (number as f32 * 12.9898).sin() * 43758.547 % 1.0;
    (0..width).map(|axis| wave(item % 20 * 31 + axis) + 0.2 * wave(item * 57 + axis + 7)).collect()
}

/// Label of an item, by its class.
fn label(item: usize) -> String {
    format!("class {}", item % 20)
}

/// Writes the new model's vectors of some items into a folder, where they are not yet, and configures the
/// encoder that looks them up: sources are rows.
fn table(folder: &Path, items: usize) -> EncoderConfig {
    let vectors = folder.join("new.npy");
    if !vectors.exists() {
        let rows = Matrix::new(NEW, (0..items).flat_map(|item| vector(item, NEW)).collect()).unwrap();
        rehang_files::write_matrix(&vectors, &rows, None).unwrap();
    }
    serde_json::from_value(json!({ "kind": "table", "vectors": vectors.display().to_string() })).unwrap()
}

/// Makes a gallery of some items in a file, where there is none yet, and configures its upgrade.
fn configured(folder: &Path, items: usize) -> Configuration {
    let file = folder.join("gallery.db");
    let space = |name: &str, width| Space::new(name, width, Distance::Cosine, false);
    if !file.exists() {
        let store = SqliteStore::create(&file).unwrap();
        store.create_space(&space("old", OLD), Provenance::Old).unwrap();
        let write = |item: usize| {
            let old = NewVector::from_model("old", vector(item, OLD), Provenance::Old);
            let (label, source) = (Some(label(item)), Some(item.to_string()));
            ItemWrite { label, ..ItemWrite::new(format!("i{item}"), source, vec![old]) }
        };
        store.put(&(0..items).map(write).collect::<Vec<_>>()).unwrap();
    }
    let configuration =
        Configuration::new(Location::file(&file), space("old", OLD), space("new", NEW)).unwrap();
    configuration.with_encoder(table(folder, items))
}

/// Makes a gallery where there is none yet, and opens its upgrade.
fn upgrade(folder: &Path) -> Upgrade {
    Upgrade::new(configured(folder, ITEMS)).unwrap()
}

/// Token of a name in the file that [`tokens`] writes.
fn token(name: &str) -> String {
    format!("{name:-<16}")
}

/// Writes a file of tokens by their names and roles.
fn tokens(folder: &Path, all: &[(&str, &str)]) -> PathBuf {
    let line = |(name, role): &(&str, &str)| {
        format!("[[token]]\nname = \"{name}\"\nrole = \"{role}\"\ntoken = \"{}\"\n", token(name))
    };
    let path = folder.join("tokens.toml");
    fs_err::write(&path, all.iter().map(line).collect::<String>()).unwrap();
    path
}

/// Longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_mins(2);

/// Waits until a condition holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = rehang_clock::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Service under test, in a thread, and what asks it.
struct Served {
    client: Client,
    stop: Progress,
    thread: JoinHandle<rehang_core::Result<()>>,
}

/// Sender of requests to a service.
struct Client {
    address: SocketAddr,
    agent: ureq::Agent,
}

/// Answer to a request. `body` is null where the text is no JSON.
struct Answered {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Value,
    text: String,
}

impl Served {
    fn start(folder: &Path, change: impl FnOnce(&mut ServeOptions)) -> Self {
        Self::of(upgrade(folder), change)
    }

    fn of(upgrade: Upgrade, change: impl FnOnce(&mut ServeOptions)) -> Self {
        let mut options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
        change(&mut options);
        let stop = Progress::default();
        let (listens, listening) = mpsc::channel();
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            serve(upgrade, &options, &ends, |address| listens.send(address).unwrap())
        });
        Self { client: Client::new(listening.recv().unwrap()), stop, thread }
    }

    fn end(self) {
        self.stop.cancel();
        self.thread.join().unwrap().unwrap();
    }
}

impl Deref for Served {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        Self { address, agent }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>, headers: &[(&str, &str)]) -> Answered {
        self.send(method, path, body.map(ToString::to_string), headers)
    }

    /// Sends a body as it is.
    fn send(&self, method: &str, path: &str, body: Option<String>, headers: &[(&str, &str)]) -> Answered {
        let uri = format!("http://{}{path}", self.address);
        let mut request = ureq::http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sent = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                self.agent.run(request.body(body).unwrap())
            }
            None => self.agent.run(request.body(()).unwrap()),
        };
        let mut response = sent.unwrap();
        let named = response.headers().iter();
        let headers =
            named.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        let text = response.body_mut().read_to_string().unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answered { status: response.status().as_u16(), headers, body, text }
    }

    /// Opens a stream of events, by a request with some lines of headers more; gives its first line, and what
    /// comes after it.
    fn listen(&self, headers: &str) -> (String, BufReader<TcpStream>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.address).unwrap();
        let (mut stream, mut line) = (BufReader::new(stream), String::new());
        stream.read_line(&mut line).unwrap();
        (line, stream)
    }

    fn get(&self, path: &str) -> Value {
        let answered = self.ask("GET", path, None, &[]);
        assert_eq!(answered.status, 200, "{path}: {}", answered.text);
        answered.body
    }

    /// Sends 3000 bytes of the 4000 of a search, with some lines of headers more, until they have taken room
    /// as `is_full` sees. They find none themselves where a large body has it at that moment.
    fn send_half(&self, headers: &str, is_full: impl Fn() -> bool) -> TcpStream {
        let head = format!("{headers}Content-Type: application/json\r\nContent-Length: 4000\r\n");
        let begun = " ".repeat(3000);
        let slow = (0..100).find_map(|_| {
            let mut slow = TcpStream::connect(self.address).unwrap();
            write!(slow, "POST /v1/search HTTP/1.1\r\nHost: {}\r\n{head}\r\n{begun}", self.address).unwrap();
            (0..50).any(|_| is_full()).then_some(slow)
        });
        slow.expect("there is no room for more")
    }

    /// Asks for a verb, and waits until its operation has ended.
    fn carry_out(&self, verb: &str, options: &Value) -> Value {
        let asked = self.ask("POST", &format!("/v1/upgrade/{verb}"), Some(options), &[]);
        assert_eq!(asked.status, 202, "{verb}: {}", asked.text);
        self.ended(&asked.headers["location"])
    }

    fn ended(&self, location: &str) -> Value {
        let mut operation = Value::Null;
        wait_for(location, || {
            operation = self.get(location);
            operation["state"] != "running"
        });
        operation
    }

    /// Counts the items that the new model has embedded.
    fn native(&self) -> usize {
        self.get("/v1/status")["counts"]["native"].as_u64().unwrap() as usize
    }

    /// Ids that a search finds for the vectors of one item by both models.
    fn found(&self, item: usize, k: usize) -> Vec<String> {
        let body = json!({ "vectors": { "old": [vector(item, OLD)], "new": [vector(item, NEW)] }, "k": k });
        let answered = self.ask("POST", "/v1/search", Some(&body), &[]);
        assert_eq!(answered.status, 200, "{}", answered.text);
        let hits = answered.body["results"][0].as_array().unwrap();
        hits.iter().map(|hit| hit["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_whole_upgrade_by_requests_alone() {
    let folder = tempfile::tempdir().unwrap();
    whole_upgrade(&|| upgrade(folder.path()), "i");
}

/// Takes a gallery through its upgrade by requests. `open` opens it, as another process does; the id of an
/// item is its number after a `letter`.
fn whole_upgrade(open: &dyn Fn() -> Upgrade, letter: &str) {
    let (served, seventh) = (Served::of(open(), |_| {}), format!("{letter}7"));
    let none = served.ask("GET", "/v1/status", None, &[]);
    assert_eq!(none.status, 404, "there is no upgrade");
    let begins = "`POST /v1/upgrade/start` begins one, after `POST /v1/upgrade/pairs`";
    assert!(none.body["remedy"].as_str().unwrap().starts_with(begins), "{}", none.text);
    assert_eq!(served.found(7, 1), [&*seventh]);
    let refused = served.carry_out("switch", &json!({}));
    assert_eq!((&refused["state"], &refused["problem"]["status"]), (&json!("refused"), &json!(422)));
    assert!(refused["problem"]["remedy"].as_str().unwrap().contains("/v1/upgrade/pairs"), "{refused}");
    for (verb, options) in [
        ("pairs", json!({ "items": 200 })),
        ("fit", json!({ "method": "ridge" })),
        ("report", json!({})),
        ("start", json!({})),
        ("switch", json!({ "serving": "mixed", "anyway": true })),
    ] {
        let operation = served.carry_out(verb, &options);
        assert_eq!(operation["state"], "done", "{operation}");
    }
    let by_new = Matrix::new(NEW, vector(7, NEW)).unwrap();
    let gallery = open().gallery();
    let answer = gallery.search(&[("new", &by_new)], 10, &Filter::default()).unwrap();
    let expected: Vec<&str> = answer.found[0].iter().map(|hit| hit.id.as_str()).collect();
    assert_eq!(served.found(7, 10), expected, "as the library finds it");
    let status = served.get("/v1/status");
    assert_eq!((&status["serving"], &status["phase"]), (&json!("new"), &json!("filled")));
    assert_eq!(status["serves_new"], true);
    assert!(status["verdict"].as_str().unwrap().starts_with("mAP is forecast at"), "{status}");
    assert!(served.ask("GET", "/v1/curve.svg", None, &[]).text.starts_with("<svg "));

    let paused = served.ask("POST", "/v1/upgrade/pause", None, &[]);
    assert_eq!((paused.status, &paused.body["request"]), (200, &json!("pause")));
    assert_eq!(served.get("/v1/status")["next"], json!({ "step": "resume" }));
    assert_eq!(served.ask("POST", "/v1/upgrade/resume", None, &[]).status, 200);
    let run = served.carry_out("run", &json!({}));
    assert_eq!(run["state"], "done", "{run}");
    assert_eq!(served.get("/v1/status")["counts"]["native"], ITEMS);
    let metrics = served.ask("GET", "/metrics", None, &[]);
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let metrics = metrics.text;
    let searched = "rehang_searches_total{stage=\"old\"} 1";
    let asked = "rehang_requests_total{route=\"/v1/search\",status=\"200\"} 2";
    assert!(metrics.contains(searched) && metrics.contains(asked), "{metrics}");
    assert_eq!(served.carry_out("finish", &json!({}))["state"], "done");
    assert_eq!(served.found(7, 1), [&*seventh]);

    let trail = served.get("/v1/trail");
    let verb = |entry: &Value| entry["what"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    let verbs: Vec<String> = trail.as_array().unwrap().iter().map(verb).collect();
    let expected = "finish run resume pause switch start report fit pairs switch";
    assert_eq!(verbs.join(" "), expected);
    let (before, after) = (&trail[4]["before"], &trail[4]["after"]);
    assert_eq!((before, after), (&json!("filled, old serves"), &json!("filled, new serves")));
    served.end();
}

#[test]
fn an_item_is_written_read_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let path = "/v1/items/a%20b%2Fc";
    let vectors = json!({ "old": vector(3, OLD) });
    let body = json!({ "source": "3", "label": "a", "payload": { "n": 1 }, "vectors": vectors });
    let put = served.ask("PUT", path, Some(&body), &[]);
    assert_eq!(put.status, 200, "{}", put.text);
    let item = served.ask("GET", path, None, &[]);
    let shown = json!({ "id": "a b/c", "source": "3", "label": "a", "payload": { "n": 1 }, "revision": put.body["revision"] });
    assert_eq!(item.body, shown);
    let tag = &item.headers["etag"];
    assert_eq!(&put.headers["etag"], tag);
    let asked_with = |known: &str| served.ask("GET", path, None, &[("if-none-match", known)]).status;
    let others = "W/\"0-0\" , \"a,*\"";
    for known in
        [tag.clone(), format!("W/{tag}"), format!("{others},{tag}"), format!("{others}, W/{tag}"), "*".into()]
    {
        assert_eq!(asked_with(&known), 304, "{known}");
    }
    for unknown in [others, tag.trim_matches('"'), "\"*\""] {
        assert_eq!(asked_with(unknown), 200, "{unknown}");
    }
    let two = served.found(3, 2);
    assert!(two.contains(&"a b/c".to_owned()) && two.contains(&"i3".to_owned()), "{two:?}");
    let filtered = json!({ "vectors": { "old": [vector(3, OLD)] }, "payload": { "n": 1 } });
    let hits = served.ask("POST", "/v1/search", Some(&filtered), &[]).body;
    assert_eq!(hits["results"][0].as_array().unwrap().len(), 1);
    // No store compares and writes in one step, so a condition is refused rather than half kept.
    for condition in [("if-match", tag.as_str()), ("if-none-match", "*"), ("if-match", "*")] {
        for (method, body) in [("PUT", Some(&body)), ("DELETE", None)] {
            let refused = served.ask(method, path, body, &[condition]);
            assert_eq!((refused.status, &refused.body["kind"]), (412, &json!("precondition")), "{method}");
        }
    }
    assert_eq!(served.ask("GET", path, None, &[]).body, shown, "nothing of it was written");
    assert_eq!(served.ask("DELETE", path, None, &[]).status, 204);
    assert_eq!(served.ask("DELETE", path, None, &[]).status, 404);
    assert_eq!(served.ask("GET", path, None, &[]).status, 404);
    served.end();
}

#[test]
fn every_route_needs_its_role() {
    const ROLES: [&str; 3] = ["read", "write", "operate"];
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        options.tokens = Some(tokens(folder.path(), &ROLES.map(|role| (role, role))));
        options.limits.wrong_tokens = 1000;
    });
    let listed = served.ask("GET", "/openapi.json", None, &[]).body;
    let mut checked = 0;
    for (path, methods) in listed["paths"].as_object().unwrap() {
        for (method, route) in methods.as_object().unwrap() {
            let (method, path) = (method.to_uppercase(), path.replace("{id}", "nothing"));
            let described = route["description"].as_str().unwrap_or_default();
            let needed = ROLES.iter().position(|role| described.contains(role));
            // No route takes this body, so that nothing is carried out.
            let body = (method != "GET" && method != "DELETE").then(|| json!({ "no such field": 1 }));
            let ask = |token: Option<&str>| {
                let given = token.map(|token| format!("Bearer {token}"));
                let headers: Vec<_> = given.iter().map(|given| ("authorization", given.as_str())).collect();
                let answered = served.ask(&method, &path, body.as_ref(), &headers);
                let is_closed = answered.headers.get("connection").is_some_and(|value| value == "close");
                let is_unread = matches!(answered.status, 401 | 403);
                assert!(
                    !is_unread || is_closed || body.is_none(),
                    "{method} {path}: the next request is lost"
                );
                answered.status
            };
            for wrong in [None, Some("0123456789abcdef")] {
                let status = ask(wrong);
                let is_session = path == "/session" && method == "POST";
                assert!(is_session || (status == 401) == needed.is_some(), "{method} {path}: {status}");
            }
            // Events have no end.
            for (rank, role) in ROLES.iter().enumerate().filter(|_| path != "/v1/events") {
                let status = ask(Some(&token(role)));
                let is_refused = needed.is_some_and(|needed| rank < needed);
                assert_eq!(status == 403, is_refused, "{method} {path} as {role}: {status}");
                assert!(status != 401 && status != 500, "{method} {path} as {role}: {status}");
                checked += 1;
            }
        }
    }
    assert!(checked > 90, "{checked}");
    served.end();
}

#[test]
fn what_is_wrong_with_a_request_is_said_as_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| options.limits.body = 4000);
    let of = |answered: Answered| {
        assert_eq!(answered.headers["content-type"], "application/problem+json", "{}", answered.text);
        assert_eq!(answered.body["status"], answered.status);
        assert!(answered.body["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
        format!("{} {}", answered.status, answered.body["kind"].as_str().unwrap())
    };
    let search = |body: Value| of(served.ask("POST", "/v1/search", Some(&body), &[]));
    assert_eq!(search(json!({})), "422 invalid-option");
    assert_eq!(search(json!({ "vectors": { "old": [[1.0]] } })), "422 width-mismatch");
    assert_eq!(search(json!({ "vectors": { "new": [vector(1, NEW)] } })), "422 missing-input");
    assert_eq!(search(json!({ "vectors": { "old": [[1.0], []] } })), "422 invalid-option");
    assert_eq!(search(json!({ "texts": ["a"], "k": 0 })), "422 invalid-option");
    assert_eq!(search(json!({ "vektors": {} })), "422 wrong-body");
    assert_eq!(search(json!([{}, ["a"]])), "422 wrong-body");
    assert_eq!(search(json!({ "texts": ["a".repeat(5000)] })), "413 too-large");
    let name = "a".repeat(3000);
    let long = served.ask("POST", "/v1/search", Some(&json!({ name: 1 })), &[]);
    assert!(long.status == 422 && long.text.len() < 1500, "{}", long.text);
    let ask =
        |method: &str, path: &str, headers: &[(&str, &str)]| of(served.ask(method, path, None, headers));
    assert_eq!(ask("POST", "/v1/search", &[("content-type", "text/plain")]), "415 not-json");
    assert_eq!(ask("POST", "/v1/upgrade/pause", &[("content-type", "application/json")]), "404 not-found");
    assert_eq!(ask("GET", "/v1/nothing", &[]), "404 not-found");
    for (path, said) in [
        ("/v1/nothing", "there is no path \"/v1/nothing\"; GET /openapi.json lists all"),
        ("/v1/items/a%20b", "the gallery has no item \"a b\""),
        ("/v1/operations/7", "there is no operation \"7\"; /v1/operations lists what is kept"),
    ] {
        let missing = served.ask("GET", path, None, &[]);
        assert_eq!((missing.status, &missing.body["detail"]), (404, &json!(said)));
    }
    assert_eq!(ask("PUT", "/v1/status", &[]), "405 method");
    assert_eq!(ask("GET", "/v1/status", &[("host", "evil.example")]), "403 forbidden");
    assert_eq!(ask("GET", "/v1/status", &[("origin", "https://evil.example")]), "403 forbidden");
    assert_eq!(ask("POST", "/v1/upgrade/pause", &[]), "404 not-found");
    let other = served.ask("POST", "/v1/upgrade/run", Some(&json!({ "anyway": true })), &[]);
    assert_eq!(of(other), "422 invalid-option");
    served.end();
}

#[test]
fn the_same_key_is_the_same_operation() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let ask = |verb: &str, options: Value| {
        served.ask("POST", &format!("/v1/upgrade/{verb}"), Some(&options), &[("idempotency-key", "k1")])
    };
    let first = ask("pairs", json!({ "items": 100 }));
    let again = ask("pairs", json!({ "items": 100 }));
    assert_eq!((first.status, again.status, &first.body["id"]), (202, 202, &again.body["id"]));
    assert_eq!(ask("pairs", json!({ "items": 200 })).status, 409);
    assert_eq!(ask("fit", json!({})).status, 409);
    assert_eq!(served.ended(&first.headers["location"])["state"], "done");
    assert_eq!(served.get("/v1/operations").as_array().unwrap().len(), 1);
    served.end();
}

#[test]
fn what_a_service_leaves_another_one_goes_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let store = upgrade(folder.path()).shared_store();
    // Three operations of a service that died long ago, in the middle.
    let left = |id: &str, verb: &str| {
        json!({
            "id": id, "verb": verb, "options": {}, "asked_by": "anybody", "server": "gone", "began_ms": 1,
            "heard_ms": 2, "state": "running",
        })
    };
    let mut cancelled = left("c", "fit");
    cancelled["cancelled"] = json!(true);
    let text = json!([left("a", "pairs"), left("b", "switch"), cancelled]).to_string();
    store.set_document("operations of the service", None, &text).unwrap();
    let served = Served::start(folder.path(), |_| {});
    let pairs = served.ended("/v1/operations/a");
    assert_eq!((&pairs["state"], pairs["server"] == "gone"), (&json!("done"), false), "{pairs}");
    let switch = served.ended("/v1/operations/b");
    assert_eq!(switch["state"], "interrupted", "nobody switches without being asked again: {switch}");
    assert_eq!(served.ended("/v1/operations/c")["state"], "cancelled", "somebody asked it to stop");
    served.end();
}

#[test]
fn a_run_that_a_stop_leaves_goes_on_within_its_budget_and_one_that_is_cancelled_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    for (verb, options) in
        [("pairs", json!({ "items": 100 })), ("fit", json!({ "method": "ridge" })), ("start", json!({}))]
    {
        assert_eq!(served.carry_out(verb, &options)["state"], "done");
    }
    let native = |served: &Served| served.get("/v1/status")["counts"]["native"].as_u64().unwrap();
    let until = |served: &Served, count: u64| {
        while native(served) < count {
            std::thread::yield_now();
        }
    };
    let run = json!({ "budget": 60, "rate": 40 });
    let asked = served.ask("POST", "/v1/upgrade/run", Some(&run), &[]);
    let location = asked.headers["location"].clone();
    until(&served, 101);
    let runs = |served: &Served| -> Vec<Value> {
        let trail = served.get("/v1/trail");
        let is_run = |entry: &&Value| entry["what"].as_str().unwrap().starts_with("run ");
        trail.as_array().unwrap().iter().filter(is_run).cloned().collect()
    };
    let began = runs(&served);
    assert_eq!((began.len(), &began[0]["after"]), (1, &Value::Null), "who began it is known at once");
    served.end();
    let served = Served::start(folder.path(), |_| {});
    let operation = served.ended(&location);
    let ended = runs(&served);
    assert_eq!((ended.len(), &ended[0]["at_ms"]), (1, &began[0]["at_ms"]), "nobody asked twice");
    assert_eq!(ended[0]["after"], "filled, old serves");
    assert_eq!((&operation["state"], native(&served)), (&json!("done"), 160), "{operation}");

    let asked = served.ask("POST", "/v1/upgrade/run", Some(&json!({ "rate": 2 })), &[]);
    let location = asked.headers["location"].clone();
    until(&served, 161);
    // Operations that have ended since make no room by the one that runs.
    for _ in 0..60 {
        assert_eq!(served.carry_out("bridge", &json!({ "off": true }))["state"], "done");
    }
    assert_eq!(served.ask("POST", &format!("{location}/cancel"), None, &[]).status, 200);
    assert_eq!(served.ended(&location)["state"], "cancelled");
    assert_eq!(runs(&served)[0]["problem"], "cancelled");
    let cancel = &served.get("/v1/trail")[0];
    let what = format!("cancel {}", location.rsplit('/').next().unwrap());
    assert_eq!((&cancel["who"], &cancel["what"]), (&json!("anybody"), &json!(what)));
    assert!(native(&served) < ITEMS as u64);
    assert_eq!(served.ask("POST", &format!("{location}/cancel"), None, &[]).status, 409);
    served.end();
    let served = Served::start(folder.path(), |_| {});
    assert_eq!(served.get(&location)["state"], "cancelled", "the next service says so too");
    let document = served.get("/openapi.json");
    let states = document["components"]["schemas"]["OperationState"].to_string();
    assert!(states.contains("\"cancelled\""), "{states}");
    served.end();
}

#[test]
fn what_changes_is_told_to_who_listens() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let (status, stream) = served.listen("");
    assert!(status.contains("200"), "{status}");
    let mut lines = stream.lines().map(Result::unwrap);
    let operation = served.carry_out("pairs", &json!({ "items": 100 }));
    let told: Vec<Value> = lines
        .by_ref()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .filter(|event: &Value| event["id"] == operation["id"])
        .take_while(|event| event["state"] == "running")
        .collect();
    assert!(!told.is_empty(), "its begin was told, and then its end");
    // An open stream does not hold the service.
    served.end();
}

#[test]
fn a_number_that_would_be_rounded_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let vectors = json!({ "old": vector(3, OLD) });
    let put = |number: &str| {
        let body = format!(r#"{{"source": "3", "payload": {{"n": {number}}}, "vectors": {vectors}}}"#);
        served.send("PUT", "/v1/items/a", Some(body), &[])
    };
    let exact = put("18446744073709551615");
    assert_eq!(exact.status, 200, "{}", exact.text);
    assert_eq!(served.get("/v1/items/a")["payload"], json!({ "n": u64::MAX }));
    let queries = json!({ "old": [vector(3, OLD)] });
    let search = format!(r#"{{"vectors": {queries}, "payload": {{"n": 18446744073709551616}}}}"#);
    for refused in [put("18446744073709551616"), served.send("POST", "/v1/search", Some(search), &[])] {
        assert_eq!((refused.status, &refused.body["kind"]), (422, &json!("invalid-option")));
        let expected = "payload cannot be \"18446744073709551616\"; expected whole numbers of 64 bits; write a longer one as a text, in quotes";
        assert_eq!(refused.body["detail"], expected);
    }
    // Coordinates are rounded in any case.
    let long = json!(vector(3, OLD - 1)).to_string().replacen('[', "[-9223372036854775809,", 1);
    let search = format!(r#"{{"vectors": {{"old": [{long}]}}, "payload": {{"n": 1}}}}"#);
    let searched = served.send("POST", "/v1/search", Some(search), &[]);
    assert_eq!(searched.status, 200, "{}", searched.text);
    served.end();
}

#[test]
fn a_body_that_comes_slowly_takes_room_and_no_turn() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        (options.limits.at_once, options.limits.waiting, options.limits.body) = (1, 0, 4000);
    });
    // All bodies together may have 4000 bytes, and this one keeps 3000 of them.
    let large = || served.send("POST", "/v1/search", Some(" ".repeat(2000)), &[]);
    let slow = served.send_half("", || large().status == 503);
    assert_eq!(large().headers["retry-after"], "1");
    assert_eq!(served.found(7, 1), ["i7"], "there is room for a smaller one, and a turn");
    drop(slow);
    assert!((0..1000).any(|_| large().status == 422), "the room is free again");
    served.end();
}

#[test]
fn answers_that_nobody_takes_are_not_held_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| options.limits.seconds = 1);
    let mut idle = TcpStream::connect(served.address).unwrap();
    let asked = format!("GET /page.js HTTP/1.1\r\nHost: {}\r\n\r\n", served.address);
    // The client asks until answers fill all buffers, and then until the service ends the connection.
    let is_ended = (0..1_000_000).any(|_| idle.write_all(asked.as_bytes()).is_err());
    assert!(is_ended);
    assert_eq!(served.found(7, 1), ["i7"]);
    served.end();
}

#[test]
fn what_fails_inside_is_said_in_the_log_alone() {
    const TRAIL: &str = "trail of the service";
    let folder = tempfile::tempdir().unwrap();
    let store = upgrade(folder.path()).shared_store();
    let served = Served::start(folder.path(), |_| {});
    fs_err::write(folder.path().join("new.npy"), "no matrix").unwrap();
    let refused = served.carry_out("pairs", &json!({ "items": 100 }));
    assert_eq!(refused["problem"]["status"], 500, "{refused}");
    let detail = format!(
        "the encoder failed, which the service's operator can mend; the service's log says why, under operation {}",
        refused["id"].as_str().unwrap()
    );
    assert_eq!(refused["problem"]["detail"], detail);
    assert_eq!(served.get("/v1/trail")[0]["problem"], detail);

    let version = store.document(TRAIL).unwrap().map(|(version, _)| version);
    store.set_document(TRAIL, version, "no list").unwrap();
    let failed = served.ask("GET", "/v1/trail", None, &[]);
    let detail =
        format!("the service failed; its log says why, under request {}", failed.headers["x-request-id"]);
    let expected =
        json!({ "title": "Internal Server Error", "status": 500, "detail": detail, "kind": "corrupt" });
    assert_eq!(failed.body, expected);
    served.end();
}

#[test]
fn no_more_streams_are_open_than_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| options.limits.streams = 1);
    let (status, stream) = served.listen("");
    assert!(status.contains("200"), "{status}");
    let (status, _) = served.listen("");
    assert!(status.contains("503"), "{status}");
    assert_eq!(served.ask("GET", "/v1/events", None, &[]).headers["retry-after"], "1");
    drop(stream);
    assert!((0..1000).any(|_| served.listen("").0.contains("200")), "its place is free again");
    served.end();
}

#[test]
fn an_address_with_many_wrong_tokens_waits_and_its_right_ones_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        options.tokens = Some(tokens(folder.path(), &[("ops", "operate")]));
        options.limits.wrong_tokens = 3;
    });
    let me = |name: &str, value: &str| served.ask("GET", "/v1/me", None, &[(name, value)]);
    let sign_in = |token: &str| served.ask("POST", "/session", Some(&json!({ "token": token })), &[]);
    let wrong = || {
        [
            me("authorization", "Bearer 0123456789abcdeg"),
            me("cookie", "rehang_session=0.99999999999.00"),
            sign_in("0123456789abcdeg"),
        ]
    };
    assert_eq!(wrong().map(|refused| refused.status), [401; 3]);
    for refused in wrong() {
        assert_eq!(refused.status, 429, "{}", refused.text);
        let seconds: u64 = refused.headers["retry-after"].parse().unwrap();
        assert!((1..=61).contains(&seconds), "{seconds}");
    }
    assert_eq!(served.ask("GET", "/v1/me", None, &[]).status, 401, "no token is none that is wrong");
    assert_eq!(me("authorization", &format!("Bearer {}", token("ops"))).status, 200);
    assert_eq!(sign_in(&token("ops")).status, 204);
    assert_eq!(sign_in(&"a".repeat(5000)).status, 413, "a token is no longer than that");
    served.end();
}

/// Document of the routes, which answers are held against.
struct Document(Value);

impl Document {
    /// Follows a reference to what it names.
    fn resolved<'a>(&'a self, part: &'a Value) -> &'a Value {
        let Some(reference) = part["$ref"].as_str() else { return part };
        let named = self.0.pointer(reference.trim_start_matches('#'));
        named.unwrap_or_else(|| panic!("{reference} names nothing"))
    }

    /// Checks that every reference in a part names something.
    fn expect_references(&self, part: &Value) {
        self.resolved(part);
        match part {
            Value::Array(all) => all.iter().for_each(|inner| self.expect_references(inner)),
            Value::Object(fields) => fields.values().for_each(|inner| self.expect_references(inner)),
            _ => {}
        }
    }

    /// Checks that JSON has all fields that its schema requires.
    fn expect_fields(&self, schema: &Value, json: &Value) {
        let schema = self.resolved(schema);
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(json.get(name.as_str().unwrap()).is_some(), "{name} is not in {json}");
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(inner) = json.get(name) {
                self.expect_fields(schema, inner);
            }
        }
        for inner in json.as_array().into_iter().flatten() {
            self.expect_fields(&schema["items"], inner);
        }
    }

    /// Checks that an answer has the status, the kind of content, the fields and the headers that are
    /// described.
    fn expect_answer(&self, method: &str, path: &str, answered: &Answered) {
        let status = answered.status.to_string();
        let is_problem = answered.status >= 400;
        let described = if is_problem { "default" } else { status.as_str() };
        let responses = &self.0["paths"][path][method.to_lowercase()]["responses"];
        let response = self.resolved(&responses[described]);
        assert!(response.is_object(), "{method} {path}: {status} {}", answered.text);
        let content = response["content"].as_object().and_then(|contents| contents.iter().next());
        let kind = answered.headers.get("content-type").map(|kind| kind.split(';').next().unwrap());
        assert_eq!(content.map(|(kind, _)| kind.as_str()), kind, "{method} {path}: {status}");
        if let Some((_, content)) = content {
            self.expect_fields(&content["schema"], &answered.body);
        }
        let headers = response["headers"].as_object().filter(|_| !is_problem);
        for (name, _) in headers.into_iter().flatten() {
            assert!(answered.headers.contains_key(&name.to_lowercase()), "{method} {path}: {name}");
        }
    }
}

#[test]
fn the_document_describes_every_route_and_what_it_gives() {
    const IDS: &str = "delete_session delete_v1_items_id get get_healthz get_metrics get_openapi_json \
        get_page_css get_page_js get_readyz get_v1_curve_svg get_v1_doctor get_v1_events get_v1_failures \
        get_v1_items_id get_v1_items_id_picture get_v1_me get_v1_operations get_v1_operations_id \
        get_v1_plan get_v1_status get_v1_trail post_session post_v1_operations_id_cancel post_v1_search \
        post_v1_upgrade_bridge post_v1_upgrade_finish post_v1_upgrade_fit post_v1_upgrade_pairs \
        post_v1_upgrade_pause \
        post_v1_upgrade_refit post_v1_upgrade_report post_v1_upgrade_resume post_v1_upgrade_rollback \
        post_v1_upgrade_run post_v1_upgrade_start post_v1_upgrade_stop post_v1_upgrade_switch \
        put_v1_items_id";
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let document = Document(served.get("/openapi.json"));
    document.expect_references(&document.0);
    let mut ids = Vec::new();
    for (path, methods) in document.0["paths"].as_object().unwrap() {
        for (method, route) in methods.as_object().unwrap() {
            ids.push(route["operationId"].as_str().unwrap());
            let parameters = route["parameters"].as_array().unwrap();
            let has_id = parameters.iter().any(|parameter| parameter["in"] == "path");
            assert_eq!(has_id, path.contains("{id}"), "{method} {path}");
            // Whoever takes a body refuses this one.
            let strange = json!({ "no such field": 1 });
            let is_taken = (method == "post" || method == "put") && {
                let path = path.replace("{id}", "nothing");
                served.ask(&method.to_uppercase(), &path, Some(&strange), &[]).body["kind"] == "wrong-body"
            };
            assert_eq!(route["requestBody"].is_object(), is_taken, "{method} {path}");
        }
    }
    ids.sort_unstable();
    assert_eq!(ids.join(" "), IDS, "programs call routes by these names");

    let ask = |method: &str, path: &str, id: &str, body: Option<&Value>, headers: &[(&str, &str)]| {
        let answered = served.ask(method, &path.replace("{id}", id), body, headers);
        document.expect_answer(method, path, &answered);
        answered
    };
    let begun = ask("POST", "/v1/upgrade/pairs", "", Some(&json!({ "items": 100 })), &[]);
    assert_eq!(served.ended(&begun.headers["location"])["state"], "done");
    let operation = begun.body["id"].as_str().unwrap();
    for (path, id) in [
        ("/", ""),
        ("/page.js", ""),
        ("/page.css", ""),
        ("/healthz", ""),
        ("/readyz", ""),
        ("/openapi.json", ""),
        ("/metrics", ""),
        ("/v1/me", ""),
        ("/v1/status", ""),
        ("/v1/failures", ""),
        ("/v1/trail", ""),
        ("/v1/operations", ""),
        ("/v1/operations/{id}", operation),
        ("/v1/items/{id}", "i7"),
    ] {
        assert_eq!(ask("GET", path, id, None, &[]).status, 200, "{path}");
    }
    let body = json!({ "vectors": { "old": [vector(7, OLD)] }, "k": 3 });
    assert_eq!(ask("POST", "/v1/search", "", Some(&body), &[]).status, 200);
    let body = json!({ "source": "7", "vectors": { "old": vector(7, OLD) } });
    let put = ask("PUT", "/v1/items/{id}", "a", Some(&body), &[]);
    assert_eq!(put.status, 200, "{}", put.text);
    let known = [("if-none-match", put.headers["etag"].as_str())];
    assert_eq!(ask("GET", "/v1/items/{id}", "a", None, &known).status, 304);
    assert_eq!(ask("PUT", "/v1/items/{id}", "a", Some(&body), &known).status, 412);
    assert_eq!(ask("DELETE", "/v1/items/{id}", "a", None, &[]).status, 204);
    assert_eq!(ask("DELETE", "/v1/items/{id}", "a", None, &[]).status, 404);
    assert_eq!(ask("DELETE", "/session", "", None, &[]).status, 204);
    // Answers of these routes may be a problem before there is a map.
    for path in ["/v1/plan", "/v1/curve.svg", "/v1/doctor"] {
        ask("GET", path, "", None, &[]);
    }
    for path in ["/v1/upgrade/pause", "/v1/upgrade/stop", "/v1/upgrade/resume", "/v1/operations/{id}/cancel"]
    {
        ask("POST", path, operation, None, &[]);
    }
    served.end();
}
