//! Batch API on the loopback, as OpenAI documents it: files, batches and their list, and `/v1/embeddings`
//! beside them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::stub::{Reply, Seen, Stub, good_of};

/// Batches of a page of the list, fewer than are asked for.
const PAGE: usize = 2;

/// End of a batch: its status, and the lines of its files.
pub struct Over {
    pub status: &'static str,
    pub output: Vec<Value>,
    pub errors: Vec<Value>,
    /// Errors of the batch itself.
    pub said: Value,
}

/// Line of a batch: its `custom_id`, and its text.
pub type Line = (String, String);

type Model = dyn Fn(&str) -> Vec<f32> + Send + Sync;
type Happening = Box<dyn FnOnce() + Send>;
type Fate = dyn Fn(usize, &[Line]) -> Over + Send + Sync;

/// Request at which a process dies.
#[derive(Clone, Copy)]
pub struct Death {
    /// Requests that are answered before the death.
    pub after: usize,
    /// Whether the request at which the process dies is heard.
    pub is_heard: bool,
}

#[derive(Default)]
pub struct Books {
    pub files: BTreeMap<String, String>,
    pub batches: Vec<Value>,
    /// Times that each text was sent in a batch that was created.
    pub sent: BTreeMap<String, usize>,
    /// Requests of the present process.
    requests: usize,
    death: Option<Death>,
    /// Questions about a batch that is not over yet.
    pub polls: usize,
    /// Questions about each batch.
    pub asked: BTreeMap<String, usize>,
    pub has_no_list: bool,
    /// Answer to the next request for a batch, and when the batch is created.
    pub bad_creation: Option<(Reply, Created)>,
    /// Event while the next request that begins so (`POST /v1/files`) is under way.
    pub meanwhile: Option<(&'static str, Happening)>,
    /// Files that were deleted.
    pub deleted: Vec<String>,
    /// Request for a batch that is not created yet.
    late: Option<Seen>,
    /// Faults of the files that batches give, at the next questions for one.
    pub bad_files: Vec<BadFile>,
}

/// Time at which a batch is created whose request got an error for an answer: never, at once, or when its
/// file is to be deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Created {
    Never,
    AtOnce,
    Late,
}

/// Fault of a file.
#[derive(Clone, Copy)]
pub enum BadFile {
    /// The answer to the question about its batch does not name the file.
    Unnamed,
    Missing,
    /// File of which only the first lines are there, so many.
    Short(usize),
}

pub struct Desk {
    pub stub: Stub,
    books: Arc<(Mutex<Books>, Condvar)>,
}

/// Line of an output file: a text was embedded.
pub fn answered(id: &str, vector: &[f32]) -> Value {
    let data = json!([{"object": "embedding", "index": 0, "embedding": vector}]);
    let body = json!({"object": "list", "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}});
    json!({"id": "batch_req_1", "custom_id": id, "response": {"status_code": 200, "request_id": "r", "body": body}, "error": null})
}

/// Line of an error file: the service refused this request.
pub fn refused(id: &str, status: u16, message: &str) -> Value {
    let body = json!({"error": {"message": message, "type": "invalid_request_error", "code": null}});
    json!({"id": "batch_req_2", "custom_id": id, "response": {"status_code": status, "request_id": "r", "body": body}, "error": null})
}

/// Line of an error file: the request was not executed in time.
pub fn expired(id: &str) -> Value {
    let message = "This request could not be executed before the completion window expired.";
    json!({"id": "batch_req_3", "custom_id": id, "response": null, "error": {"code": "batch_expired", "message": message}})
}

/// Ends a batch with an answer to every line, in another order than it was asked.
pub fn completed(lines: &[Line], model: impl Fn(&str) -> Vec<f32>) -> Over {
    let output = lines.iter().rev().map(|(id, text)| answered(id, &model(text))).collect();
    Over { status: "completed", output, errors: vec![], said: Value::Null }
}

impl Desk {
    /// Starts a service of a model, whose batches end as `fate` says of each (from 0) and its lines.
    pub fn start(
        model: impl Fn(&str) -> Vec<f32> + Send + Sync + 'static,
        fate: impl Fn(usize, &[Line]) -> Over + Send + Sync + 'static,
    ) -> Self {
        let books: Arc<(Mutex<Books>, Condvar)> = Arc::default();
        lock(&books.0).polls = 1;
        let own = Arc::clone(&books);
        let stub = Stub::start(move |_, seen| {
            let request = format!("{} {}", seen.method, seen.path);
            let meanwhile = lock(&own.0).meanwhile.take_if(|(beginning, _)| request.starts_with(*beginning));
            if let Some((_, happens)) = meanwhile {
                happens();
            }
            let reply = reply(&mut lock(&own.0), seen, &model, &fate);
            own.1.notify_all();
            reply
        });
        Self { stub, books }
    }

    /// Starts a service whose batches all complete.
    pub fn good(model: impl Fn(&str) -> Vec<f32> + Send + Sync + Clone + 'static) -> Self {
        let of_batch = model.clone();
        Self::start(model, move |_, lines| completed(lines, &of_batch))
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books.0)
    }

    /// Waits until the service's books are so.
    pub fn wait_until(&self, is_so: impl Fn(&Books) -> bool) {
        let waited = self.books.1.wait_while(self.books(), |books| !is_so(books));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets another process come, which dies at the given request.
    pub fn next_process(&self, death: Option<Death>) {
        let mut books = self.books();
        (books.requests, books.death) = (0, death);
        books.asked.clear();
    }

    /// Number of requests of the present process.
    pub fn requests(&self) -> usize {
        self.books().requests
    }

    /// Texts that were asked for directly.
    pub fn direct(&self) -> Vec<String> {
        let seen = self.stub.seen();
        seen.iter().filter(|seen| seen.path == "/v1/embeddings").flat_map(Seen::texts).collect()
    }

    /// Largest number of times that one text was sent in batches.
    pub fn most_sent(&self) -> usize {
        self.books().sent.values().copied().max().unwrap_or(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reply(books: &mut Books, seen: &Seen, model: &Model, fate: &Fate) -> Reply {
    let number = books.requests;
    if let Some(Death { after, is_heard }) = books.death
        && number >= after
    {
        if number == after && is_heard {
            books.requests += 1;
            answer(books, seen, model, fate);
        }
        return Reply::Close;
    }
    books.requests += 1;
    answer(books, seen, model, fate)
}

fn answer(books: &mut Books, seen: &Seen, model: &Model, fate: &Fate) -> Reply {
    let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
    match (seen.method.as_str(), &parts[..]) {
        ("POST", ["embeddings"]) => Reply::Body(good_of(seen, model, |_| {})),
        ("POST", ["files"]) => {
            let id = format!("file-{}", books.files.len());
            books.files.insert(id.clone(), file_of(seen));
            Reply::Body(json!({"id": id, "object": "file", "purpose": "batch"}).to_string())
        }
        ("GET", ["files", id, "content"]) => {
            let bad = if id.starts_with("output") { books.bad_files.pop() } else { None };
            let lines = match bad {
                Some(BadFile::Missing) => return missing(id),
                Some(BadFile::Short(lines)) => lines,
                _ => usize::MAX,
            };
            let Some(file) = books.files.get(*id) else { return missing(id) };
            Reply::Body(file.split_inclusive('\n').take(lines).collect())
        }
        ("DELETE", ["files", id]) => {
            if let Some(late) = books.late.take() {
                answer(books, &late, model, fate);
            }
            // The file's content stays in the books.
            books.deleted.push((*id).to_owned());
            Reply::Body(json!({"id": id, "object": "file", "deleted": true}).to_string())
        }
        ("POST", ["batches"]) if books.bad_creation.is_some() => {
            let (reply, created) = books.bad_creation.take().unwrap();
            match created {
                Created::AtOnce => drop(answer(books, seen, model, fate)),
                Created::Late => books.late = Some(seen.clone()),
                Created::Never => {}
            }
            reply
        }
        ("POST", ["batches"]) => {
            let file = seen.body["input_file_id"].as_str().unwrap_or_default();
            assert_eq!(
                (&seen.body["endpoint"], &seen.body["completion_window"]),
                (&json!("/v1/embeddings"), &json!("24h"))
            );
            let Some(content) = books.files.get(file) else { return missing(file) };
            let lines = lines_of(content);
            let ids: BTreeSet<&String> = lines.iter().map(|(id, _)| id).collect();
            assert_eq!(ids.len(), lines.len(), "no custom_id twice");
            for (_, text) in &lines {
                *books.sent.entry(text.clone()).or_default() += 1;
            }
            let batch = json!({
                "id": format!("batch_{}", books.batches.len()), "object": "batch", "endpoint": "/v1/embeddings", "errors": null,
                "input_file_id": file, "status": "validating", "output_file_id": null, "error_file_id": null,
                "request_counts": {"total": lines.len(), "completed": 0, "failed": 0}, "metadata": seen.body["metadata"],
            });
            books.batches.push(batch.clone());
            Reply::Body(batch.to_string())
        }
        ("GET", ["batches"]) if books.has_no_list => missing("batches"),
        ("GET", ["batches"]) => {
            let after = query.split('&').find_map(|pair| pair.strip_prefix("after="));
            let newest: Vec<&Value> = books.batches.iter().rev().collect();
            let from =
                after.map_or(0, |after| 1 + newest.iter().position(|batch| batch["id"] == after).unwrap());
            let page: Vec<&Value> = newest[from..].iter().copied().take(PAGE).collect();
            let has_more = from + page.len() < newest.len();
            Reply::Body(json!({"object": "list", "data": page, "has_more": has_more}).to_string())
        }
        ("GET", ["batches", id]) => {
            let Some(number) = books.batches.iter().position(|batch| batch["id"] == *id) else {
                return missing(id);
            };
            let asked = books.asked.entry((*id).to_owned()).or_default();
            *asked += 1;
            let is_over = *asked > books.polls;
            let is_known = books.batches[number]["status"] != "validating"
                && books.batches[number]["status"] != "in_progress";
            if !is_over {
                books.batches[number]["status"] = "in_progress".into();
            } else if !is_known {
                end(books, number, fate);
            }
            let mut batch = books.batches[number].clone();
            if is_over && matches!(books.bad_files.last(), Some(BadFile::Unnamed)) {
                books.bad_files.pop();
                batch["output_file_id"] = Value::Null;
            }
            Reply::Body(batch.to_string())
        }
        _ => missing(&seen.path),
    }
}

fn end(books: &mut Books, number: usize, fate: &Fate) {
    let file = books.batches[number]["input_file_id"].as_str().unwrap().to_owned();
    let lines = lines_of(&books.files[&file]);
    let over = fate(number, &lines);
    let is_answered = |(id, _): &&Line| over.output.iter().any(|line| line["custom_id"] == **id);
    let completed = lines.iter().filter(is_answered).count();
    let batch = &mut books.batches[number];
    batch["status"] = over.status.into();
    batch["errors"] = over.said;
    batch["request_counts"] = json!({"total": over.output.len() + over.errors.len(), "completed": completed, "failed": over.errors.len()});
    for (name, lines) in [("output", over.output), ("error", over.errors)] {
        if !lines.is_empty() {
            let id = format!("{name}-{number}");
            batch[format!("{name}_file_id")] = id.as_str().into();
            let lines: Vec<String> = lines
                .iter()
                .map(|line| line.as_str().map_or_else(|| line.to_string(), str::to_owned))
                .collect();
            books.files.insert(id, lines.join("\n") + "\n");
        }
    }
}

/// Reads the lines of an input file.
fn lines_of(content: &str) -> Vec<Line> {
    content
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&line["method"], &line["url"]), (&json!("POST"), &json!("/v1/embeddings")));
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            (word(&line["custom_id"]), word(&line["body"]["input"][0]))
        })
        .collect()
}

/// Takes the file out of a form.
fn file_of(seen: &Seen) -> String {
    let kind = seen.header("content-type").unwrap();
    let boundary = kind.split_once("boundary=").unwrap().1;
    let form = String::from_utf8(seen.bytes.clone()).unwrap();
    let parts: Vec<&str> = form.split(&format!("--{boundary}")).collect();
    assert!(parts[1].contains("name=\"purpose\"\r\n\r\nbatch\r\n"), "{}", parts[1]);
    let (head, content) = parts[2].split_once("\r\n\r\n").unwrap();
    assert!(head.contains("name=\"file\"; filename="), "{head}");
    content.strip_suffix("\r\n").unwrap().to_owned()
}

fn missing(what: &str) -> Reply {
    Reply::Status(404, vec![], json!({"error": {"message": format!("no such thing as {what}")}}).to_string())
}
