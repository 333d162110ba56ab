//! Requests to the server, which are sent again while it is away. So every request may arrive twice, except a
//! change that is [sent once](Client::change_once).

use std::fmt;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use rehang_connect::{Connection, OwnRoots, environment};
use rehang_core::{Error, ErrorKind, Party, Result};
use serde::Serialize;
use serde_json::{Value, json};
use ureq::Agent;

use crate::address::QdrantAddress;

/// How long a call tries to reach a server that is away, for example while it restarts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest that a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The longest that a request may take with its answer: an index over all points takes minutes.
const REQUEST_MAX: Duration = Duration::from_mins(10);
/// Bytes of a request beside the things that it lists: mostly its filter, which names
/// one page of ids at most.
const HEAD: usize = 64 << 10;
const REQUEST_MIN: usize = 4 * HEAD;
/// The longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 1 << 30;
/// Points of one page of a scroll without vectors.
pub(crate) const PAGE: usize = 1_000;

pub(crate) struct Client {
    agent: Agent,
    /// Route to the server; it knows who is to blame for a request that reached nobody.
    connection: Connection,
    base: String,
    key: Option<String>,
    /// Bytes that a request may have at most.
    request_max: usize,
    /// Points that a page may have at most, by the collection's strict mode.
    pub(crate) page_max: usize,
}

impl Client {
    /// Reads the address. Sends nothing yet.
    pub(crate) fn new(address: &QdrantAddress) -> Result<Self> {
        let base = address.base()?;
        if address.request_max() < REQUEST_MIN {
            let expected = format!("{REQUEST_MIN} bytes or more: a page of ids is named in one request");
            return Err(Error::option("[gallery] request_max", address.request_max(), expected));
        }
        let own_roots = OwnRoots { key: "[gallery] root_certificates", file: address.root_certificates() };
        let connection = Connection::to(&base, &own_roots, &environment)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(REQUEST_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .user_agent(concat!("rehang/", env!("CARGO_PKG_VERSION")));
        let (key, request_max) = (address.key().map(str::to_owned), address.request_max());
        let agent = connection.configure(config).build().into();
        Ok(Self { agent, connection, base, key, request_max, page_max: usize::MAX })
    }

    /// Returns the name of the server in messages.
    pub(crate) fn name(&self) -> String {
        format!("Qdrant at {}", self.base)
    }

    /// Sends a request and returns the `result` of its answer.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &impl Serialize) -> Result<Value> {
        let answer = self.answer(method, path, body)?;
        answer.get("result").cloned().ok_or_else(|| Error::corrupt(self.name(), "an answer without a result"))
    }

    /// Sends a request until an attempt gets an answer, and returns the whole answer.
    pub(crate) fn answer(&self, method: &str, path: &str, body: &impl Serialize) -> Result<Value> {
        self.answer_within(PATIENCE, method, path, body)
    }

    /// Sends a request again until `patience` is over; with no patience the request is sent once.
    fn answer_within(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Value> {
        self.insist(patience, method, path, body).map_err(|error| error.blame(Party::Database))
    }

    /// Sends a request as [`Client::answer_within`] does; its errors blame no party.
    fn insist(&self, patience: Duration, method: &str, path: &str, body: &impl Serialize) -> Result<Value> {
        let body = serde_json::to_vec(body).map_err(|error| Error::corrupt("a request", error))?;
        if body.len() > self.request_max {
            let expected = format!("{} or more: one that cannot be split has that many bytes", body.len());
            return Err(Error::option("[gallery] request_max", self.request_max, expected));
        }
        let began = rehang_clock::now();
        let mut pause = Duration::from_millis(20);
        loop {
            let mut wait = pause;
            let detail = match self.send(method, path, &body) {
                Ok((status @ (408 | 429 | 500..), answer, retry_after)) => {
                    wait = retry_after.unwrap_or(pause).min(patience);
                    format!("{status}: {}", said_of(&answer))
                }
                Ok((200..300, answer, _)) => {
                    return serde_json::from_slice(&answer)
                        .map_err(|error| Error::corrupt(format!("an answer of {}", self.name()), error));
                }
                Ok((status, answer, _)) => {
                    let refusal = said_of(&answer);
                    // A server says it with 400, a proxy before it with 413.
                    if status == 413 || refusal.contains("is larger than allowed") {
                        return Err(self.too_large(body.len(), &refusal));
                    }
                    if status != 400 || !is_full(&refusal) {
                        return Err(self.refused(status, &refusal));
                    }
                    refusal
                }
                Err(error) => match self.connection.blame(&error) {
                    Some(blamed) => return Err(blamed),
                    None => error.to_string(),
                },
            };
            if began.elapsed() >= patience {
                return Err(ErrorKind::Unavailable { service: self.name(), detail }.into());
            }
            rehang_clock::wait(wait);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends one request and returns the status, the body, and the wait that a server asks for when
    /// its limits are reached.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> std::result::Result<(u16, Vec<u8>, Option<Duration>), ureq::Error> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("api-key", key);
        }
        let mut response = if body == b"null" {
            self.agent.run(request.body(())?)?
        } else {
            self.agent.run(request.body(body)?)?
        };
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec()?;
        Ok((status, body, retry_after.map(Duration::from_secs)))
    }

    fn too_large(&self, bytes: usize, refusal: &str) -> Error {
        let expected = format!(
            "smaller: {}, or a proxy before it, took no request of {bytes} bytes ({refusal})",
            self.name()
        );
        Error::option("[gallery] request_max", self.request_max, expected)
    }

    /// How many things of `bytes` bytes fit into a request, one at least.
    pub(crate) fn room_for(&self, bytes: usize) -> usize {
        (self.request_max.saturating_sub(HEAD) / bytes.max(1)).max(1)
    }

    /// Turns a refusal of the server into an error in the words of this library.
    fn refused(&self, status: u16, refusal: &str) -> Error {
        let service = self.name();
        match status {
            401 | 403 => ErrorKind::Unauthorised { service, detail: refusal.to_owned() }.into(),
            404 => Error::not_found("point or collection", refusal, service),
            409 => Error::conflict(service, refusal),
            400 if refusal.contains("Not existing vector name") => {
                let why = format!(
                    "a vector that the gallery goes by is not in the collection any more ({refusal}); adopt the gallery once more, which makes it anew, \
                     or says what else to do where it is the application's"
                );
                Error::conflict(service, why)
            }
            _ => Error::corrupt(service, format!("{status}: {refusal}")),
        }
    }

    /// Makes an index of a payload field in each part of the collection that has none. No search of the
    /// application's asks for the field, so graphs get no further links for it.
    pub(crate) fn index(&self, collection: &str, field: &str, kind: &str) -> Result<()> {
        let schema = json!({"type": kind, "on_disk": true, "enable_hnsw": false});
        let body = json!({"field_name": field, "field_schema": schema});
        self.ask("PUT", &format!("/collections/{collection}/index?wait=true"), &body).map(drop)
    }

    /// Counts the points that pass a filter.
    pub(crate) fn count(&self, collection: &str, filter: &Value) -> Result<u64> {
        let body = json!({"filter": filter, "exact": true});
        let answer = self.ask("POST", &format!("/collections/{collection}/points/count"), &body)?;
        answer["count"].as_u64().ok_or_else(|| Error::corrupt(self.name(), "a count that is no number"))
    }

    /// Sends changes, which the server makes one after the other; changes of others may come in
    /// between. The last one goes to all shards: it has a filter, or is the only one. Returns when
    /// the changes can be seen.
    pub(crate) fn change(&self, collection: &str, operations: &[Value]) -> Result<()> {
        self.change_within(PATIENCE, collection, operations)
    }

    /// Sends changes once. Where that fails, any part may have been applied, and none is applied twice.
    pub(crate) fn change_once(&self, collection: &str, operations: &[Value]) -> Result<()> {
        self.change_within(Duration::ZERO, collection, operations)
    }

    fn change_within(&self, patience: Duration, collection: &str, operations: &[Value]) -> Result<()> {
        let Some((last, before)) = operations.split_last() else { return Ok(()) };
        let path = |wait: bool| format!("/collections/{collection}/points/batch?wait={wait}");
        // A server that is told to wait does so for each operation by itself, which takes several
        // times as long. Each shard applies its operations in turn, so the earlier ones are
        // applied when the last one is.
        let bytes = before.iter().map(|operation| operation.to_string().len() + 1).max();
        for some in before.chunks(self.room_for(bytes.unwrap_or(0))) {
            self.answer_within(patience, "POST", &path(false), &json!({"operations": some}))?;
        }
        self.answer_within(patience, "POST", &path(true), &json!({"operations": [last]})).map(drop)
    }
}

/// Makes some calls at once, each in a thread of its own, and returns their results in
/// the order of the calls.
pub(crate) fn at_once<T: Send, R: Send>(
    of: impl IntoIterator<Item = T>,
    call: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = of.into_iter().map(|argument| scope.spawn(move || call(argument))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.base).finish()
    }
}

/// Whether a refusal is about room that somebody can make: memory of the machine, or a limit of
/// the collection's strict mode that is reached. The client sends such a request again, since
/// its content was paid for.
fn is_full(refusal: &str) -> bool {
    let is_over_a_limit = ["Max ", "limit of", "reached"].iter().all(|word| refusal.contains(word));
    is_over_a_limit || refusal.contains("Resident memory usage is at")
}

/// Takes the words of a refusal out of its body.
fn said_of(answer: &[u8]) -> String {
    let value: Value = serde_json::from_slice(answer).unwrap_or_default();
    let words = value["status"]["error"].as_str().map(str::to_owned);
    let text = words.unwrap_or_else(|| String::from_utf8_lossy(answer).trim().to_owned());
    text.chars().take(500).collect()
}
