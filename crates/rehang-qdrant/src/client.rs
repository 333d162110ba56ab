//! Requests to the server, sent again while it is away: every request of ours may arrive twice, but for a change that is sent once.

use std::fmt;
use std::time::Duration;

use rehang::{Error, ErrorKind, Result};
use rehang_store::{ItemKey, clock};
use serde::Serialize;
use serde_json::{Value, json};
use ureq::Agent;

use crate::address::QdrantAddress;
use crate::points::{Point, id_of};

/// How long a call tries to reach a server that is away, as while it starts again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest that a connection may take to come about, and a request with its answer: an index over all points takes minutes.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const REQUEST_MAX: Duration = Duration::from_mins(10);
/// The longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 1 << 30;
/// Points of one page of a scroll, without and with vectors.
pub(crate) const PAGE: usize = 1_000;
const PAGE_WITH_VECTORS: usize = 256;

/// What of a point comes along.
#[derive(Debug, Clone, Default)]
pub(crate) struct With {
    /// `true`, `false` or a list of fields.
    pub(crate) payload: Value,
    /// Names of vectors.
    pub(crate) vectors: Vec<String>,
}

pub(crate) struct Client {
    agent: Agent,
    base: String,
    key: Option<String>,
}

impl Client {
    /// Reads the address; asks nothing yet.
    pub(crate) fn new(address: &QdrantAddress) -> Result<Self> {
        let base = address.base()?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(REQUEST_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .user_agent(concat!("rehang/", env!("CARGO_PKG_VERSION")));
        if address.is_loopback() {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().into(), base, key: address.key().map(str::to_owned) })
    }

    /// The server, for people.
    pub(crate) fn name(&self) -> String {
        format!("Qdrant at {}", self.base)
    }

    /// The `result` of an answer.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &impl Serialize) -> Result<Value> {
        let answer = self.answer(method, path, body)?;
        answer.get("result").cloned().ok_or_else(|| Error::corrupt(self.name(), "an answer without a result"))
    }

    /// The whole answer, from the first attempt that gets one.
    pub(crate) fn answer(&self, method: &str, path: &str, body: &impl Serialize) -> Result<Value> {
        self.answer_within(PATIENCE, method, path, body)
    }

    /// The same with a patience of its own; with none the request is sent once.
    fn answer_within(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Value> {
        let body = serde_json::to_vec(body).map_err(|error| Error::corrupt("a request", error))?;
        let began = clock::now();
        let mut pause = Duration::from_millis(20);
        loop {
            let detail = match self.send(method, path, &body) {
                Ok((status @ (408 | 429 | 500..), said)) => format!("{status}: {}", said_of(&said)),
                Ok((200..300, said)) => {
                    return serde_json::from_slice(&said)
                        .map_err(|error| Error::corrupt(format!("an answer of {}", self.name()), error));
                }
                Ok((status, said)) => return Err(self.refused(status, &said_of(&said))),
                Err(error) => error.to_string(),
            };
            if began.elapsed() >= patience {
                return Err(ErrorKind::Unavailable { service: self.name(), detail }.into());
            }
            clock::wait(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> std::result::Result<(u16, Vec<u8>), ureq::Error> {
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
        Ok((status, response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec()?))
    }

    /// What the server said, in the words of this library.
    fn refused(&self, status: u16, said: &str) -> Error {
        let service = self.name();
        match status {
            401 | 403 => ErrorKind::Unauthorised { service, detail: said.to_owned() }.into(),
            404 => Error::not_found("point or collection", said, service),
            409 => Error::conflict(service, said),
            _ => Error::corrupt(service, format!("{status}: {said}")),
        }
    }

    /// One page of points by id, from an id on.
    fn page(&self, collection: &str, body: &Value) -> Result<(Vec<Point>, Value)> {
        let mut result = self.ask("POST", &format!("/collections/{collection}/points/scroll"), body)?;
        let points = Point::list(result["points"].take(), &self.name())?;
        Ok((points, result["next_page_offset"].take()))
    }

    /// The first points that pass a filter, by id, and how many more of that page cannot be items. Both are of one moment.
    pub(crate) fn first_page(&self, collection: &str, filter: &Value) -> Result<(Vec<Point>, u64)> {
        let body = json!({"filter": filter, "limit": PAGE, "with_payload": false});
        let mut result = self.ask("POST", &format!("/collections/{collection}/points/scroll"), &body)?;
        let all = result["points"].as_array().map_or(0, Vec::len);
        let points = Point::list(result["points"].take(), &self.name())?;
        let others = all.saturating_sub(points.len());
        Ok((points, others as u64))
    }

    /// Points that pass a filter, by id, after a key, at most `limit`; `each` is given page by page and says whether to go on.
    pub(crate) fn each_page(
        &self,
        collection: &str,
        filter: &Value,
        after: Option<ItemKey>,
        limit: usize,
        with: &With,
        each: &mut dyn FnMut(Vec<Point>) -> Result<bool>,
    ) -> Result<()> {
        let mut offset = match after {
            Some(key) if key.bits() == u128::MAX => return Ok(()),
            Some(key) => id_of(ItemKey::new(key.bits() + 1)),
            None => Value::Null,
        };
        let size = if with.vectors.is_empty() { PAGE } else { PAGE_WITH_VECTORS };
        let mut left = limit;
        while left > 0 {
            let body = json!({
                "filter": filter, "offset": offset, "limit": left.min(size), "with_payload": with.payload,
                "with_vector": with.vectors,
            });
            let (points, next) = self.page(collection, &body)?;
            left -= points.len().min(left);
            if points.is_empty() || !each(points)? || next.is_null() {
                break;
            }
            offset = next;
        }
        Ok(())
    }

    /// The same in one list.
    pub(crate) fn scroll(
        &self,
        collection: &str,
        filter: &Value,
        after: Option<ItemKey>,
        limit: usize,
        with: &With,
    ) -> Result<Vec<Point>> {
        let mut all = Vec::new();
        self.each_page(collection, filter, after, limit, with, &mut |points| {
            all.extend(points);
            Ok(true)
        })?;
        Ok(all)
    }

    /// Points in the order of a payload number: the largest first, equal ones by key.
    pub(crate) fn scroll_down(
        &self,
        collection: &str,
        filter: &Value,
        by: &str,
        limit: usize,
        with: &With,
    ) -> Result<Vec<Point>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let body = json!({
            "filter": filter, "limit": limit, "with_payload": with.payload, "with_vector": with.vectors,
            "order_by": {"key": by, "direction": "desc"},
        });
        let (mut points, _) = self.page(collection, &body)?;
        points.sort_by(|a, b| b.order_value.total_cmp(&a.order_value).then(a.key.cmp(&b.key)));
        points.dedup_by_key(|point| point.key);
        let Some(last) = points.last().map(|point| point.order_value).filter(|_| points.len() >= limit)
        else {
            return Ok(points);
        };
        // Of equal ones at its border the server gives any: they are read again, by key.
        points.retain(|point| point.order_value > last);
        let equal = json!({"must": [filter, {"key": by, "range": {"gte": last, "lte": last}}]});
        points.extend(self.scroll(collection, &equal, None, limit - points.len(), with)?);
        Ok(points)
    }

    /// Points by key; those that are not there are left out.
    pub(crate) fn retrieve(
        &self,
        collection: &str,
        keys: impl Iterator<Item = ItemKey>,
        with: &With,
    ) -> Result<Vec<Point>> {
        let ids: Vec<Value> = keys.map(id_of).collect();
        let mut found = Vec::new();
        for ids in ids.chunks(PAGE) {
            let body = json!({"ids": ids, "with_payload": with.payload, "with_vector": with.vectors});
            let answer = self.ask("POST", &format!("/collections/{collection}/points"), &body)?;
            found.extend(Point::list(answer, &self.name())?);
        }
        Ok(found)
    }

    /// How many points pass a filter.
    pub(crate) fn count(&self, collection: &str, filter: &Value) -> Result<u64> {
        let body = json!({"filter": filter, "exact": true});
        let answer = self.ask("POST", &format!("/collections/{collection}/points/count"), &body)?;
        answer["count"].as_u64().ok_or_else(|| Error::corrupt(self.name(), "a count that is no number"))
    }

    /// Changes that the server makes one after the other; others' may come in between. The last one goes to all shards: it is about a
    /// filter, or the only one. Returns when they can be seen.
    pub(crate) fn change(&self, collection: &str, operations: &[Value]) -> Result<()> {
        self.change_within(PATIENCE, collection, operations)
    }

    /// The same, sent once: of what fails any part may have been applied, and none is applied twice.
    pub(crate) fn change_once(&self, collection: &str, operations: &[Value]) -> Result<()> {
        self.change_within(Duration::ZERO, collection, operations)
    }

    fn change_within(&self, patience: Duration, collection: &str, operations: &[Value]) -> Result<()> {
        let Some((last, before)) = operations.split_last() else { return Ok(()) };
        let path = |wait: bool| format!("/collections/{collection}/points/batch?wait={wait}");
        if !before.is_empty() {
            // A server that is to wait does so for each operation by itself, which takes several times as long. Each shard applies its
            // operations in turn, so those before the last one are applied when that one is.
            self.answer_within(patience, "POST", &path(false), &json!({"operations": before}))?;
        }
        self.answer_within(patience, "POST", &path(true), &json!({"operations": [last]})).map(drop)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.base).finish()
    }
}

/// The words of a refusal.
fn said_of(said: &[u8]) -> String {
    let value: Value = serde_json::from_slice(said).unwrap_or_default();
    let words = value["status"]["error"].as_str().map(str::to_owned);
    let text = words.unwrap_or_else(|| String::from_utf8_lossy(said).trim().to_owned());
    text.chars().take(500).collect()
}
