//! Requests: each reads its body, calls the library and writes the answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::{FromRequest, Path, Query as Parameters, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use rehang_core::{Error, ErrorKind, Matrix, Space};
use rehang_store::{Filter, Item, Revision, find_space, rounded_number};
use rehang_upgrade::{Put, Query, Request as RunRequest, Searched};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::access::{COOKIE, Caller, SESSION_SECONDS};
use crate::addresses::name_of;
use crate::answers::{Written, json_text, json_text_within, until_sent};
use crate::connections::Peer;
use crate::events::{PushedEvent, value};
use crate::operations::{LongVerb, VerbOptions};
use crate::page;
use crate::problem::ProblemDetails;
use crate::service::{AskedService, Service};
use crate::turns::Held;

type Shared = Extension<AskedService>;
type Answer<T = Json<Value>> = Result<T, ProblemDetails>;

/// Largest number of neighbours, of queries, and of queries to embed, that one search asks for.
const K_MAX: usize = 1000;
const QUERIES_MAX: usize = 256;
const SOURCES_MAX: usize = 32;
/// Largest number of answers to all queries together, so that one request holds no gigabyte.
const ANSWERS_MAX: usize = 100_000;
/// Largest answer to a search: each item's source is in it as often as the item is found.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Largest number of labels, and of fields, that a filter has.
const FILTERED_MAX: usize = 1000;
/// Largest payload as it is written: small values take up to a hundred times as much once they are read.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Largest number of lists, objects and texts in a body: each takes some memory beside what stands in it.
const PARTS_MAX: usize = 30_000;
/// Header whose value makes a repeated request the same operation, and the longest value.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const KEY_BYTES_MAX: usize = 255;
/// Largest body of who has shown no token yet, which holds one.
const TOKEN_BYTES_MAX: usize = 4096;

/// JSON body as it came; one that is left out is `{}`. All its bytes are there before the request waits for
/// its turn, since whoever sends slowly must hold none. They are read in it, since large ones take a while.
pub struct Body {
    text: Vec<u8>,
    /// Room that it takes among all bodies.
    _room: Held,
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ProblemDetails;

    async fn from_request(request: Request, _: &S) -> Result<Self, ProblemDetails> {
        let not_json =
            |detail: &str| ProblemDetails::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", detail);
        let kind = request.headers().get(header::CONTENT_TYPE);
        let is_typed = kind.is_some();
        if kind.is_some_and(|kind| !is_json(kind)) {
            return Err(not_json("the body has another Content-Type; send application/json"));
        }
        let service = request.extensions().get::<AskedService>().cloned();
        let service =
            service.ok_or_else(|| ProblemDetails::defect("the request", "a route without turns"))?;
        let is_known = request.extensions().get::<Caller>().is_some();
        let bytes_max = if is_known { service.limits.body } else { TOKEN_BYTES_MAX };
        let reading = async {
            let (mut text, mut room) = (Vec::new(), service.room(0)?);
            let mut chunks = request.into_body().into_data_stream();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|error| wrong_body(error.to_string()))?;
                if text.len() + chunk.len() > bytes_max {
                    let detail = format!("the body has more than {bytes_max} bytes");
                    return Err(ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail));
                }
                // Strangers take no room from the others: all that they can send is little.
                if is_known {
                    room.merge(service.room(chunk.len())?);
                }
                text.extend_from_slice(&chunk);
            }
            Ok::<_, ProblemDetails>((text, room))
        };
        let seconds = service.limits.seconds;
        let too_slow = |_| {
            let detail = format!("the body has not come within {seconds} seconds");
            ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
        };
        let outcome = tokio::time::timeout(Duration::from_secs(seconds), reading).await;
        let (mut text, room) = outcome.map_err(too_slow)??;
        if !is_typed && !text.is_empty() {
            return Err(not_json("the body has no Content-Type; send application/json"));
        }
        // A verb without options needs no body; a client may send an empty one, typed or in chunks.
        if text.is_empty() {
            text = b"{}".to_vec();
        }
        Ok(Self { text, _room: room })
    }
}

impl Body {
    /// Reads what it says.
    ///
    /// # Errors
    ///
    /// 422 for what is no JSON, or JSON of another shape.
    fn read<T: for<'a> Deserialize<'a>>(&self) -> Result<T, ProblemDetails> {
        // A list would be taken for fields in their order.
        if self.text.trim_ascii_start().first() == Some(&b'[') {
            return Err(wrong_body("the body is a list; send an object".into()));
        }
        if parts(&self.text) > PARTS_MAX {
            let detail = format!("the body has more than {PARTS_MAX} lists, objects and texts");
            return Err(wrong_body(detail));
        }
        let read = Json::<T>::from_bytes(&self.text);
        read.map(|Json(body)| body).map_err(|rejection| wrong_body(rejection.body_text()))
    }

    /// Refuses a payload with a whole number that would be rounded: rounded, it would find or store another
    /// value.
    fn expect_exact(&self) -> rehang_core::Result<()> {
        /// Payload as it is written.
        #[derive(Default, Deserialize)]
        struct WithPayload<'a> {
            #[serde(borrow)]
            payload: Option<&'a RawValue>,
        }
        let WithPayload { payload } = serde_json::from_slice(&self.text).unwrap_or_default();
        payload.and_then(|payload| rounded_number(payload.get())).map_or(Ok(()), |number| {
            let expected = "whole numbers of 64 bits; write a longer one as a text, in quotes";
            Err(Error::option("payload", number, expected))
        })
    }
}

fn wrong_body(detail: String) -> ProblemDetails {
    ProblemDetails::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong-body", detail)
}

/// Counts the lists, objects and texts of JSON.
fn parts(json: &[u8]) -> usize {
    let (mut parts, mut is_text, mut is_escaped) = (0, false, false);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => {
                is_text = !is_text;
                parts += usize::from(is_text);
            }
            b'[' | b'{' if !is_text => parts += 1,
            _ => {}
        }
    }
    parts
}

/// Reads a payload, where its text is not too long: whatever JSON it is, it may be in there.
fn read_payload<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<T, D::Error> {
    let text = Box::<RawValue>::deserialize(from)?;
    if text.get().len() > PAYLOAD_BYTES_MAX {
        return Err(D::Error::custom(format!("more than {PAYLOAD_BYTES_MAX} bytes")));
    }
    serde_json::from_str(text.get()).map_err(D::Error::custom)
}

/// Whether a content type is JSON, or made of it, as `application/problem+json` is.
fn is_json(content_type: &HeaderValue) -> bool {
    let text = content_type.to_str().unwrap_or_default();
    let name = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    name.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
}

/// Search by vectors of one model or several, or by texts.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchBody {
    /// Queries, embedded by every model that the application has: `{"SPACE": [[…], …]}`. Those that
    /// the search needs are used, so the request stays right at every stage. At most 256 by a model.
    vectors: BTreeMap<String, Vec<Vec<f32>>>,
    /// Queries as texts, in the place of vectors; the models of the configuration embed them. At most 32.
    texts: Vec<String>,
    /// Ids of items whose pictures are the queries, in the place of vectors; the models of the configuration
    /// embed them. At most 32.
    items: Vec<String>,
    /// Whether the old model's answers are wanted too; for texts and items.
    before: bool,
    /// Neighbours of each query, 1 to 1,000; 10 by default. An answer of more than 16 MiB is refused.
    k: Option<usize>,
    /// Labels of which an item needs one.
    labels: Vec<String>,
    /// Fields of the payload with the values that an item needs; at most 64 KiB.
    #[serde(deserialize_with = "read_payload")]
    payload: Map<String, Value>,
}

impl SearchBody {
    /// Checks how much is asked for; gives the number of neighbours of each query.
    fn neighbours(&self) -> rehang_core::Result<usize> {
        let k = self.k.unwrap_or(10);
        if !(1..=K_MAX).contains(&k) {
            return Err(Error::option("k", k, "from 1 to 1000"));
        }
        let sources = self.texts.len().max(self.items.len());
        let queries = self.vectors.values().map(Vec::len).max().unwrap_or(0).max(sources);
        let is_left_out = [self.vectors.is_empty(), self.texts.is_empty(), self.items.is_empty()];
        let kinds = is_left_out.into_iter().filter(|is_empty| !is_empty).count();
        if !(1..=QUERIES_MAX).contains(&queries) || sources > SOURCES_MAX || kinds != 1 {
            let expected =
                "from 1 to 256 `vectors` by space, or from 1 to 32 `texts` or `items`, of one kind alone";
            return Err(Error::option("queries", queries, expected));
        }
        if k * queries > ANSWERS_MAX {
            let expected = "at most 100,000 answers to all queries together: fewer queries, or a smaller `k`";
            return Err(Error::option("queries", queries, expected));
        }
        if self.labels.len().max(self.payload.len()) > FILTERED_MAX {
            let expected = "a filter of at most 1000 `labels` and fields";
            return Err(Error::option("labels", self.labels.len(), expected));
        }
        Ok(k)
    }
}

pub async fn search(Extension(service): Shared, sent: Body) -> Answer<Written> {
    let answer = service
        .in_place(move |service| {
            let body: SearchBody = sent.read()?;
            if !body.payload.is_empty() {
                sent.expect_exact()?;
            }
            drop(sent);
            let k = body.neighbours()?;
            let filter = Filter {
                labels: body.labels,
                payload: body.payload.into_iter().collect(),
                provenances: Vec::new(),
            };
            let began = rehang_clock::now();
            let has_sources = body.vectors.is_empty();
            let answers = if has_sources {
                let mut queries: Vec<Query> = body.texts.into_iter().map(Query::Text).collect();
                queries.extend(pictures(service, &body.items)?);
                let encoders = |space: &Space| service.encoder(space);
                let answers = service.gallery.search_source(&queries, &encoders, k, &filter, body.before);
                answers
                    .inspect_err(|error| service.let_go_of_encoders(error))
                    .map_err(|error| naming_item(error, &body.items, &queries))?
            } else {
                let matrices = body.vectors.into_iter().map(|(space, rows)| {
                    let rows = matrix(&space, rows)?;
                    Ok((space, rows))
                });
                let matrices = matrices.collect::<rehang_core::Result<Vec<(String, Matrix)>>>()?;
                let by_space: Vec<_> = matrices.iter().map(|(space, rows)| (space.as_str(), rows)).collect();
                (service.gallery.search(&by_space, k, &filter)?, None)
            };
            let answer = &answers.0;
            service.metrics.searched(service.stage(answer), answer.found.len(), began.elapsed());
            let searched = Searched::new(service.upgrade.store(), k, answers, has_sources)?;
            json_text_within(ANSWER_BYTES_MAX, &searched)?.ok_or_else(|| {
                let expected = "fewer neighbours or queries: the answer would have more than 16 MiB";
                Error::option("k", k, expected).into()
            })
        })
        .await;
    if answer.as_ref().is_err_and(|problem| problem.status >= 500) {
        service.metrics.search_failed();
    }
    answer.map(Written::new)
}

/// Makes queries of the pictures of items.
fn pictures(service: &Service, ids: &[String]) -> rehang_core::Result<Vec<Query>> {
    let items = service.upgrade.store().get(&ids.iter().map(String::as_str).collect::<Vec<_>>())?;
    let query = |(id, item): (&String, Option<Item>)| {
        let picture = item.and_then(|item| service.upgrade.configuration().picture(&item.source?));
        let query = picture.map(|picture| Query::Image(picture.path));
        query.ok_or_else(|| Error::option("items", id, "an item that has a picture"))
    };
    ids.iter().zip(items).map(query).collect()
}

/// Names an item in the place of its picture, where an encoder refuses that. `queries` are the pictures of
/// the items with these `ids`, in order.
fn naming_item(error: Error, ids: &[String], queries: &[Query]) -> Error {
    let ErrorKind::InvalidOption { option, value, expected } = error.kind() else { return error };
    let is_its_picture = |(_, query): &(&String, &Query)| {
        option == "images" && matches!(query, Query::Image(path) if path.display().to_string() == *value)
    };
    match ids.iter().zip(queries).find(is_its_picture) {
        Some((id, _)) => Error::option("items", id, expected),
        None => error,
    }
}

/// Makes a matrix of the rows that a body has for a space.
fn matrix(space: &str, rows: Vec<Vec<f32>>) -> rehang_core::Result<Matrix> {
    let width = rows.first().map_or(0, Vec::len);
    if width == 0 || rows.iter().any(|row| row.len() != width) {
        return Err(Error::option("vectors", space, "rows of one length, which is not 0"));
    }
    let matrix = Matrix::new(width, rows.into_iter().flatten().collect())?;
    matrix.check_finite(space)?;
    Ok(matrix)
}

/// Item as it is put: fields that are left out stay as they were.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ItemBody {
    /// Text, path or URL that the item is embedded from.
    source: Option<String>,
    /// Class, tag or group.
    label: Option<String>,
    /// Anything that is kept beside the item; at most 64 KiB.
    #[serde(deserialize_with = "read_payload")]
    payload: Option<Value>,
    /// Vectors made from this very content, by space.
    vectors: BTreeMap<String, Vec<f32>>,
}

pub async fn put_item(
    Extension(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    sent: Body,
) -> Answer<Response> {
    expect_no_precondition(&headers)?;
    let put = service
        .in_turn(move |service| {
            let ItemBody { source, label, payload, vectors } = sent.read()?;
            if payload.is_some() {
                sent.expect_exact()?;
            }
            drop(sent);
            let put = Put { id, source, label, payload, vectors: vectors.into_iter().collect() };
            let began = rehang_clock::now();
            let put = rehang_upgrade::put(service.upgrade.store(), &service.gallery, &put)?;
            service.metrics.wrote(began.elapsed());
            Ok(put)
        })
        .await?;
    let tag = etag(&json!(put.revision));
    Ok(([(header::ETAG, tag)], Json(value(&put)?)).into_response())
}

/// Item as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ShownItem {
    /// Name that the application gave it.
    id: String,
    /// Text, path or URL that the item is embedded from; null where it is gone.
    source: Option<String>,
    /// Class, tag or group; null where it has none.
    label: Option<String>,
    /// Fields that are kept beside the item.
    payload: Value,
    /// Number that changes with the content, as in the `ETag`.
    revision: Revision,
}

pub async fn get_item(
    Extension(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    let ((tag, shown), place) = service
        .in_place(move |service| {
            let item = service.upgrade.store().get(&[&id])?.into_iter().next().flatten();
            let Item { id, source, label, payload, revision, .. } = item.ok_or_else(|| no_item(&id))?;
            let tag = etag(&json!(revision));
            if is_known(&headers, &tag) {
                return Ok((tag, None));
            }
            let shown = json_text(&ShownItem { id, source, label, payload, revision })?;
            Ok((tag, Some(shown)))
        })
        .await?;
    let tag = [(header::ETAG, tag)];
    let Some(shown) = shown else { return Ok((StatusCode::NOT_MODIFIED, tag).into_response()) };
    Ok((tag, Written::new((shown, place))).into_response())
}

/// Sends the picture that an item's source names. Browsers show it on the service's own pages alone, and take
/// it for nothing else.
pub async fn picture(Extension(service): Shared, Path(id): Path<String>) -> Answer<Response> {
    let read = service.in_place(move |service| {
        let item = service.upgrade.store().get(&[&id])?.into_iter().next().flatten();
        Ok(item.and_then(|item| service.upgrade.configuration().picture(&item.source?)))
    });
    let none = "the item has no picture: a PNG, JPEG, GIF or WebP file of at most 16 MiB, in the folder that sources are seen from";
    let (picture, place) = read.await?;
    let picture = picture.ok_or_else(|| ProblemDetails::not_found(none))?;
    let headers = [
        (header::CONTENT_TYPE, picture.media_type),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    Ok((headers, until_sent((picture.bytes, place))).into_response())
}

pub async fn delete_item(
    Extension(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<StatusCode> {
    expect_no_precondition(&headers)?;
    let delete = service.in_turn(move |service| match service.gallery.delete(&[&id])? {
        0 => Err(no_item(&id)),
        _ => Ok(StatusCode::NO_CONTENT),
    });
    delete.await
}

fn no_item(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("the gallery has no item {id:?}"))
}

fn expect_no_precondition(headers: &HeaderMap) -> Result<(), ProblemDetails> {
    let conditions = [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_UNMODIFIED_SINCE];
    if conditions.iter().any(|name| headers.contains_key(name)) {
        let detail = "a write takes no preconditions: the last one counts";
        return Err(ProblemDetails::new(StatusCode::PRECONDITION_FAILED, "precondition", detail));
    }
    Ok(())
}

/// Whether `If-None-Match` has a tag among its own, by the weak comparison of RFC 9110: `*` has every one.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let all = headers.get_all(header::IF_NONE_MATCH).into_iter();
    let mut fields = all.filter_map(|field| field.to_str().ok());
    let has_tag = |field: &str| {
        // A comma within a tag parts it in two, of which neither is within quotes.
        let mut tags = field.split(',').map(str::trim);
        tags.any(|known| known.strip_prefix("W/").unwrap_or(known) == tag)
    };
    fields.any(|field| field.trim() == "*" || has_tag(field))
}

fn etag(revision: &Value) -> String {
    format!("\"{}\"", revision.to_string().trim_matches('"'))
}

pub async fn status(Extension(service): Shared) -> Answer<Written> {
    service.answer(|service| Ok(service.status()?)).await
}

pub async fn plan(Extension(service): Shared) -> Answer<Written> {
    service.answer(|service| Ok(service.addresses.value(&service.upgrade.plan(0)?)?)).await
}

pub async fn curve(Extension(service): Shared) -> Answer<Response> {
    let drawn = service
        .blocking(|service| {
            let (status, forecast) = (service.upgrade.status(0)?, service.upgrade.forecast()?);
            Ok(forecast.map(|forecast| page::chart(&status, &forecast)))
        })
        .await?;
    let drawn = drawn.ok_or_else(|| ProblemDetails::not_found("there is no report, and so no forecast"))?;
    let headers = [(header::CONTENT_TYPE, "image/svg+xml"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, drawn).into_response())
}

pub async fn doctor(Extension(service): Shared) -> Answer<Written> {
    service
        .answer(|service| {
            let configuration = service.upgrade.configuration();
            let examined = rehang_upgrade::examine(&configuration.gallery, Some(configuration), false)?;
            Ok(service.addresses.value(&examined)?)
        })
        .await
}

/// How many entries of a list are wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Listed {
    /// Entries at most; more than 1,000 are never given.
    limit: usize,
}

impl Default for Listed {
    fn default() -> Self {
        Self { limit: 100 }
    }
}

pub async fn failures(Extension(service): Shared, Parameters(listed): Parameters<Listed>) -> Answer<Written> {
    let limit = listed.limit.min(1000);
    let failures =
        service.answer(move |service| Ok(service.addresses.value(&service.read_status(limit)?.failures)?));
    failures.await
}

pub async fn trail(Extension(service): Shared, Parameters(listed): Parameters<Listed>) -> Answer<Written> {
    let entries = service.answer(move |service| {
        let mut all = service.operations.trail()?;
        all.truncate(listed.limit);
        Ok(service.addresses.value(&all)?)
    });
    entries.await
}

pub async fn operations(Extension(service): Shared) -> Answer<Written> {
    service.answer(|service| Ok(service.addresses.value(&service.operations.list()?)?)).await
}

pub async fn operation(Extension(service): Shared, Path(id): Path<String>) -> Answer<Written> {
    let operation = service.answer(move |service| {
        let operation = service.operations.find(&id)?;
        let operation = operation.ok_or_else(|| no_operation(&id))?;
        Ok(service.addresses.value(&operation)?)
    });
    operation.await
}

fn no_operation(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("there is no operation {id:?}; /v1/operations lists what is kept"))
}

/// Operation that was asked to stop.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CancelAsked {
    /// Name of the operation.
    id: String,
    /// Whether it was asked; its state says when it has ended.
    asked: bool,
}

pub async fn cancel(
    Extension(service): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    let cancelling = service.in_turn(move |service| {
        let before = service.operations.stands();
        if service.operations.cancel(&id)? {
            note(service, &caller, &format!("cancel {id}"), before, None);
            return Ok(CancelAsked { id, asked: true });
        }
        let operation = service.operations.find(&id)?;
        let operation = operation.ok_or_else(|| no_operation(&id))?;
        Err(Error::conflict(format!("operation {}", operation.id), "it has ended").into())
    });
    Ok(Json(value(&cancelling.await?)?))
}

/// Asks for a verb that takes a while.
pub async fn begin(
    service: AskedService,
    caller: Caller,
    verb: LongVerb,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter().map(HeaderValue::as_bytes);
    let (key, another) = (keys.next(), keys.next());
    let is_sane =
        |key: &[u8]| (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    if another.is_some() || key.is_some_and(|key| !is_sane(key)) {
        let detail = format!("send one Idempotency-Key, of 1 to {KEY_BYTES_MAX} visible characters of ASCII");
        return Err(ProblemDetails::new(StatusCode::BAD_REQUEST, "wrong-request", detail));
    }
    let key = key.map(|key| String::from_utf8_lossy(key).into_owned());
    let operation = service
        .in_turn(move |service| {
            let options: VerbOptions = body.read()?;
            Ok(service.operations.begin(verb, options, &caller.name, key)?)
        })
        .await?;
    let location = format!("/v1/operations/{}", operation.id);
    let shown = service.addresses.value(&operation)?;
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(shown)).into_response())
}

pub async fn pause(state: Shared, caller: Extension<Caller>, body: Body) -> Answer {
    request(state, caller, body, RunRequest::Pause, "pause").await
}

pub async fn stop(state: Shared, caller: Extension<Caller>, body: Body) -> Answer {
    request(state, caller, body, RunRequest::Stop, "stop").await
}

pub async fn resume(state: Shared, caller: Extension<Caller>, body: Body) -> Answer {
    request(state, caller, body, RunRequest::Run, "resume").await
}

/// Carries out a verb that is over in a moment, and notes it in the trail.
async fn request(
    Extension(service): Shared,
    Extension(caller): Extension<Caller>,
    body: Body,
    request: RunRequest,
    name: &'static str,
) -> Answer {
    let outcome = service.in_turn(move |service| {
        let options: VerbOptions = body.read()?;
        options.expect_only(name)?;
        let before = service.operations.stands();
        let outcome = if request == RunRequest::Run {
            let flag = |flag: Option<bool>| flag.unwrap_or(false);
            let (retry, re_embed) = (flag(options.retry_failed), flag(options.re_embed));
            let resumed = service.upgrade.resume(retry, re_embed, &rehang_upgrade::Unobserved);
            resumed.and_then(|resumed| service.addresses.value(&resumed))
        } else {
            let requested = service.upgrade.request(request);
            requested.and_then(|requested| service.addresses.value(&requested))
        };
        let outcome = outcome.map_err(ProblemDetails::from);
        let told = |problem: &ProblemDetails| problem.clone().without_addresses(&service.addresses).detail;
        let problem = outcome.as_ref().err().map(told);
        note(service, &caller, &format!("{name} {}", json!(options)), before, problem);
        outcome
    });
    outcome.await.map(Json)
}

/// Notes in the trail what a caller has changed at once. What cannot be noted is in the log: it is carried out
/// all the same.
fn note(service: &Service, caller: &Caller, what: &str, before: String, problem: Option<String>) {
    if let Err(error) = service.operations.note(&caller.name, what.to_owned(), before, problem) {
        tracing::error!(what, who = caller.name, %error, "what became of it is not recorded");
    }
}

/// Name and role of the caller, and the gallery that is asked.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Me {
    #[serde(flatten)]
    caller: Caller,
    /// Name of the gallery, without its place.
    gallery: String,
}

pub async fn me(Extension(service): Shared, Extension(caller): Extension<Caller>) -> Answer {
    let gallery = name_of(&service.upgrade.configuration().gallery);
    Ok(Json(value(&Me { caller, gallery })?))
}

/// Token that a session of the dashboard begins with.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SignIn {
    /// Token of the file of tokens.
    token: String,
}

pub async fn sign_in(
    Extension(service): Shared,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    service.access.expect_own_page(&headers)?;
    let SignIn { token } = body.read()?;
    let (name, value) = service.access.sign_in(&token, peer.0)?;
    if !service.may_ask(name) {
        return Err(ProblemDetails::too_many("the token asks too often"));
    }
    let cookie = set_cookie(&service, &value, SESSION_SECONDS);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

pub async fn sign_out(Extension(service): Shared, headers: HeaderMap) -> Answer<Response> {
    service.access.expect_own_page(&headers)?;
    service.access.sign_out(&headers);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(&service, "", 0))]).into_response())
}

fn set_cookie(service: &Service, value: &str, seconds: u64) -> String {
    let secure = if service.is_by_tls { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Tells what changes as it changes; first of all how the upgrade stands. The stream ends with the session of
/// who listens, and keeps its place until it is dropped.
pub async fn events(
    Extension(service): Shared,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Answer<Sse<impl Stream<Item = Result<sse::Event, Infallible>> + use<>>> {
    let place = service.stream()?;
    let receiver = service.events.listen();
    let first = match service.blocking(Service::status).await {
        Ok(status) => Some(PushedEvent { name: "status", data: status.to_string().into() }),
        Err(problem) if problem.status == StatusCode::NOT_FOUND.as_u16() => None,
        Err(problem) => return Err(problem),
    };
    let stream = futures_util::stream::unfold(
        (receiver, first, service, headers, place),
        move |(mut receiver, mut first, service, headers, place)| async move {
            loop {
                let is_out = service.access.caller(&Method::GET, &headers, peer.0).is_err();
                if is_out || service.is_stopping() {
                    return None;
                }
                let event = match first.take() {
                    Some(event) => event,
                    None => match tokio::time::timeout(EVENTS_LOOK, receiver.recv()).await {
                        Ok(Ok(event)) => event,
                        // Who is too slow hears of the next change.
                        Err(_) | Ok(Err(RecvError::Lagged(_))) => continue,
                        Ok(Err(RecvError::Closed)) => return None,
                    },
                };
                let told = sse::Event::default().event(event.name).data(&*event.data);
                return Some((Ok(told), (receiver, first, service, headers, place)));
            }
        },
    );
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// Time between two looks of a stream of events at whether it is to end.
const EVENTS_LOOK: Duration = Duration::from_millis(500);

pub async fn metrics(Extension(service): Shared) -> Answer<Response> {
    let text = service.metrics.text().map_err(|error| Error::corrupt("the metrics", error))?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Sign of life.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Alive {
    /// The word `ok`.
    status: &'static str,
}

pub async fn alive() -> Json<Alive> {
    Json(Alive { status: "ok" })
}

pub async fn ready(Extension(service): Shared) -> Answer<Json<Alive>> {
    if service.is_stopping() {
        return Err(ProblemDetails::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "the service is about to end",
        ));
    }
    service
        .in_turn(|service| {
            let name = &service.upgrade.configuration().old.name;
            let read = find_space(service.upgrade.store(), name).map(drop);
            read.map_err(|error| ProblemDetails::unready(&error))
        })
        .await?;
    Ok(alive().await)
}
