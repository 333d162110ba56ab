//! Requests: each reads its body, calls the library and writes the answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Path, Query as Parameters, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use rehang_core::{Error, Matrix, Space};
use rehang_store::{Filter, Item, find_space};
use rehang_upgrade::{Put, Query, Request as RunRequest, SearchAnswer, Searched};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::access::{COOKIE, Caller, SESSION_SECONDS};
use crate::events::{PushedEvent, value};
use crate::operations::{LongVerb, VerbOptions};
use crate::page;
use crate::problem::ProblemDetails;
use crate::service::Service;

type Shared = State<Arc<Service>>;
type Answer<T = Json<Value>> = Result<T, ProblemDetails>;

/// Largest number of neighbours, and of queries, that one search asks for.
const K_MAX: usize = 1000;
const QUERIES_MAX: usize = 1000;
/// Largest number of answers to all queries together, so that one request holds no gigabyte.
const ANSWERS_MAX: usize = 100_000;
/// Largest number of labels, and of fields, that a filter has.
const FILTERED_MAX: usize = 1000;
/// Header whose value makes a repeated request the same operation.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// JSON body whose faults are problems; an empty one is the default.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: for<'a> Deserialize<'a> + Default> FromRequest<S> for Body<T> {
    type Rejection = ProblemDetails;

    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemDetails> {
        // A verb without options needs no body; a client may send an empty one in chunks.
        if request.headers().get(header::CONTENT_TYPE).is_none() {
            let bytes = Bytes::from_request(request, state).await;
            let bytes = bytes.map_err(|rejection| {
                ProblemDetails::new(rejection.status(), "too-large", rejection.body_text())
            })?;
            let untyped = "the body has no Content-Type; send application/json";
            let is_empty = bytes.is_empty().then(T::default).map(Self);
            return is_empty
                .ok_or_else(|| ProblemDetails::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", untyped));
        }
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(of_body(&rejection)),
        }
    }
}

fn of_body(rejection: &JsonRejection) -> ProblemDetails {
    let kind = match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => "too-large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "not-json",
        _ => "wrong-body",
    };
    // Text that is no JSON at all is as unprocessable as JSON of another shape.
    let status = match rejection.status() {
        StatusCode::BAD_REQUEST => StatusCode::UNPROCESSABLE_ENTITY,
        status => status,
    };
    ProblemDetails::new(status, kind, rejection.body_text())
}

/// Search by vectors of one model or several, or by texts.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchBody {
    /// Queries, embedded by every model that the application has: `{"SPACE": [[…], …]}`. Those that
    /// the search needs are used, so the request stays right at every stage.
    vectors: BTreeMap<String, Vec<Vec<f32>>>,
    /// Queries as texts, in the place of vectors; the models of the configuration embed them.
    texts: Vec<String>,
    /// Ids of items whose pictures are the queries, in the place of vectors; the models of the configuration
    /// embed them.
    items: Vec<String>,
    /// Whether the old model's answers are wanted too; for texts and items.
    before: bool,
    /// Neighbours of each query, 1 to 1,000; 10 by default.
    k: Option<usize>,
    /// Labels of which an item needs one.
    labels: Vec<String>,
    /// Fields of the payload with the values that an item needs.
    payload: Map<String, Value>,
}

pub async fn search(State(service): Shared, Body(body): Body<SearchBody>) -> Answer {
    let k = body.k.unwrap_or(10);
    if !(1..=K_MAX).contains(&k) {
        return Err(Error::option("k", k, "from 1 to 1000").into());
    }
    let others = [body.texts.len(), body.items.len()];
    let queries = body.vectors.values().map(Vec::len).chain(others).max().unwrap_or(0);
    let is_left_out = [body.vectors.is_empty(), body.texts.is_empty(), body.items.is_empty()];
    let kinds = is_left_out.into_iter().filter(|is_empty| !is_empty).count();
    if !(1..=QUERIES_MAX).contains(&queries) || kinds != 1 {
        let expected = "from 1 to 1000 `vectors` by space, or as many `texts` or `items`, of one kind alone";
        return Err(Error::option("queries", queries, expected).into());
    }
    if k * queries > ANSWERS_MAX {
        let expected = "at most 100,000 answers to all queries together: fewer queries, or a smaller `k`";
        return Err(Error::option("queries", queries, expected).into());
    }
    if body.labels.len().max(body.payload.len()) > FILTERED_MAX {
        return Err(Error::option(
            "labels",
            body.labels.len(),
            "a filter of at most 1000 `labels` and fields",
        )
        .into());
    }
    let answer = service
        .blocking(move |service| {
            let filter = Filter {
                labels: body.labels,
                payload: body.payload.into_iter().collect(),
                provenances: Vec::new(),
            };
            let began = rehang_clock::now();
            let (answer, before) = if body.vectors.is_empty() {
                let mut queries: Vec<Query> = body.texts.into_iter().map(Query::Text).collect();
                queries.extend(pictures(service, &body.items)?);
                let encoders = |space: &Space| service.encoder(space);
                service.gallery.search_source(&queries, &encoders, k, &filter, body.before)?
            } else {
                let matrices = body.vectors.into_iter().map(|(space, rows)| {
                    let rows = matrix(&space, rows)?;
                    Ok((space, rows))
                });
                let matrices = matrices.collect::<rehang_core::Result<Vec<(String, Matrix)>>>()?;
                let by_space: Vec<_> = matrices.iter().map(|(space, rows)| (space.as_str(), rows)).collect();
                (service.gallery.search(&by_space, k, &filter)?, None)
            };
            service.metrics.searched(service.stage(&answer), answer.found.len(), began.elapsed());
            found(service, answer, before, k)
        })
        .await;
    if answer.as_ref().is_err_and(|problem| problem.status >= 500) {
        service.metrics.search_failed();
    }
    answer.map(Json)
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

/// Writes an answer as the library does, with the sources of what was found.
fn found(
    service: &Service,
    answer: SearchAnswer,
    before: Option<SearchAnswer>,
    k: usize,
) -> rehang_core::Result<Value> {
    let mut sources = BTreeMap::new();
    if before.is_some() {
        let all = std::iter::once(&answer).chain(&before).flat_map(|answer| answer.found.iter().flatten());
        let ids: Vec<&str> = all.map(|hit| hit.id.as_str()).collect();
        let items = service.upgrade.store().get(&ids)?.into_iter().flatten();
        sources.extend(items.filter_map(|item| Some((item.id, item.source?))));
    }
    let space = answer.spaces.last().cloned().unwrap_or_default();
    value(&Searched { space, k, answer, before, sources, without_index: Vec::new() })
}

/// Item as it is put: fields that are left out stay as they were.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ItemBody {
    /// Text, path or URL that the item is embedded from.
    source: Option<String>,
    /// Class, tag or group.
    label: Option<String>,
    /// Anything that is kept beside the item.
    payload: Option<Value>,
    /// Vectors made from this very content, by space.
    vectors: BTreeMap<String, Vec<f32>>,
}

pub async fn put_item(
    State(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(body): Body<ItemBody>,
) -> Answer<Response> {
    if headers.contains_key(header::IF_MATCH) || headers.contains_key(header::IF_NONE_MATCH) {
        let detail = "a write takes no preconditions: the last one counts";
        return Err(ProblemDetails::new(StatusCode::PRECONDITION_FAILED, "precondition", detail));
    }
    let ItemBody { source, label, payload, vectors } = body;
    let put = Put { id, source, label, payload, vectors: vectors.into_iter().collect() };
    let put = service
        .blocking(move |service| {
            let began = rehang_clock::now();
            let put = rehang_upgrade::put(service.upgrade.store(), &service.gallery, &put)?;
            service.metrics.wrote(began.elapsed());
            Ok(put)
        })
        .await?;
    let tag = etag(&json!(put.revision));
    Ok(([(header::ETAG, tag)], Json(value(&put)?)).into_response())
}

pub async fn get_item(
    State(service): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    let item =
        service.blocking(move |service| Ok(service.upgrade.store().get(&[&id])?.into_iter().next())).await?;
    let item = item.flatten().ok_or_else(|| ProblemDetails::not_found("the gallery has no such item"))?;
    let tag = etag(&json!(item.revision));
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| *known == tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let Item { id, source, label, payload, revision, .. } = item;
    let shown =
        json!({ "id": id, "source": source, "label": label, "payload": payload, "revision": revision });
    Ok(([(header::ETAG, tag)], Json(shown)).into_response())
}

/// Sends the picture that an item's source names. Browsers show it on the service's own pages alone, and take
/// it for nothing else.
pub async fn picture(State(service): Shared, Path(id): Path<String>) -> Answer<Response> {
    let read = service.blocking(move |service| {
        let item = service.upgrade.store().get(&[&id])?.into_iter().next().flatten();
        Ok(item.and_then(|item| service.upgrade.configuration().picture(&item.source?)))
    });
    let none = "the item has no picture: a PNG, JPEG, GIF or WebP file of at most 16 MiB, in the folder that sources are seen from";
    let picture = read.await?.ok_or_else(|| ProblemDetails::not_found(none))?;
    let headers = [
        (header::CONTENT_TYPE, picture.media_type),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    Ok((headers, picture.bytes).into_response())
}

pub async fn delete_item(State(service): Shared, Path(id): Path<String>) -> Answer<StatusCode> {
    let deleted = service.blocking(move |service| service.gallery.delete(&[&id])).await?;
    if deleted == 0 {
        return Err(ProblemDetails::not_found("the gallery has no such item"));
    }
    Ok(StatusCode::NO_CONTENT)
}

fn etag(revision: &Value) -> String {
    format!("\"{}\"", revision.to_string().trim_matches('"'))
}

pub async fn status(State(service): Shared) -> Answer {
    service.blocking(Service::status).await.map(Json)
}

pub async fn plan(State(service): Shared) -> Answer {
    service.blocking(|service| value(&service.upgrade.plan(0)?)).await.map(Json)
}

pub async fn curve(State(service): Shared) -> Answer<Response> {
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

pub async fn doctor(State(service): Shared) -> Answer {
    service
        .blocking(|service| {
            let configuration = service.upgrade.configuration();
            let examined = rehang_upgrade::examine(&configuration.gallery, Some(configuration), false)?;
            value(&examined)
        })
        .await
        .map(Json)
}

/// How many entries of a list are wanted.
#[derive(Debug, Deserialize)]
pub struct Listed {
    limit: Option<usize>,
}

pub async fn failures(State(service): Shared, Parameters(listed): Parameters<Listed>) -> Answer {
    let limit = listed.limit.unwrap_or(100).min(1000);
    service.blocking(move |service| value(&service.upgrade.status(limit)?.failures)).await.map(Json)
}

pub async fn trail(State(service): Shared, Parameters(listed): Parameters<Listed>) -> Answer {
    let limit = listed.limit.unwrap_or(100);
    let entries = service.blocking(move |service| {
        let mut all = service.operations.trail()?;
        all.truncate(limit);
        value(&all)
    });
    entries.await.map(Json)
}

pub async fn operations(State(service): Shared) -> Answer {
    service.blocking(|service| value(&service.operations.list()?)).await.map(Json)
}

pub async fn operation(State(service): Shared, Path(id): Path<String>) -> Answer {
    let operation = service.blocking(move |service| service.operations.find(&id)).await?;
    let operation = operation.ok_or_else(|| ProblemDetails::not_found("there is no such operation"))?;
    Ok(Json(value(&operation)?))
}

pub async fn cancel(State(service): Shared, Path(id): Path<String>) -> Answer {
    let cancelling = service.blocking(move |service| {
        let is_asked = service.operations.cancel(&id)?;
        Ok((is_asked, service.operations.find(&id)?))
    });
    let (is_asked, operation) = cancelling.await?;
    let operation = operation.ok_or_else(|| ProblemDetails::not_found("there is no such operation"))?;
    if !is_asked {
        return Err(Error::conflict(format!("operation {}", operation.id), "it has ended").into());
    }
    Ok(Json(json!({ "id": operation.id, "asked": true })))
}

/// Asks for a verb that takes a while.
pub async fn begin(
    service: Arc<Service>,
    caller: Caller,
    verb: LongVerb,
    headers: HeaderMap,
    options: VerbOptions,
) -> Answer<Response> {
    let key = headers.get(IDEMPOTENCY_KEY).map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    let operation =
        service.blocking(move |service| service.operations.begin(verb, options, &caller.name, key)).await?;
    let location = format!("/v1/operations/{}", operation.id);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(value(&operation)?)).into_response())
}

pub async fn pause(state: Shared, caller: Extension<Caller>, options: Body<VerbOptions>) -> Answer {
    request(state, caller, options, RunRequest::Pause, "pause").await
}

pub async fn stop(state: Shared, caller: Extension<Caller>, options: Body<VerbOptions>) -> Answer {
    request(state, caller, options, RunRequest::Stop, "stop").await
}

pub async fn resume(state: Shared, caller: Extension<Caller>, options: Body<VerbOptions>) -> Answer {
    request(state, caller, options, RunRequest::Run, "resume").await
}

/// Carries out a verb that is over in a moment, and notes it in the trail.
async fn request(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    Body(options): Body<VerbOptions>,
    request: RunRequest,
    name: &'static str,
) -> Answer {
    let outcome = service.blocking(move |service| {
        options.expect_only(name)?;
        let before = service.operations.stands();
        let outcome = match request {
            RunRequest::Run => {
                let flag = |flag: Option<bool>| flag.unwrap_or(false);
                let (retry, re_embed) = (flag(options.retry_failed), flag(options.re_embed));
                let resumed = service.upgrade.resume(retry, re_embed, &rehang_upgrade::Unobserved);
                resumed.and_then(|resumed| value(&resumed))
            }
            _ => service.upgrade.request(request).and_then(|requested| value(&requested)),
        };
        let problem = outcome.as_ref().err().map(ToString::to_string);
        let what = format!("{name} {}", json!(options));
        service.operations.note(&caller.name, what, before, problem)?;
        outcome
    });
    outcome.await.map(Json)
}

pub async fn me(State(service): Shared, Extension(caller): Extension<Caller>) -> Answer {
    let mut shown = value(&caller)?;
    shown["gallery"] = json!(service.upgrade.store().name());
    Ok(Json(shown))
}

/// Token that a session of the dashboard begins with.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SignIn {
    /// Token of the file of tokens.
    token: String,
}

pub async fn sign_in(
    State(service): Shared,
    headers: HeaderMap,
    Body(SignIn { token }): Body<SignIn>,
) -> Answer<Response> {
    service.access.expect_own_page(&headers)?;
    if !service.may_ask("signing in") {
        return Err(ProblemDetails::too_many("too many try to sign in"));
    }
    let value = service.access.sign_in(&token)?;
    let cookie = set_cookie(&service, &value, SESSION_SECONDS);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

pub async fn sign_out(State(service): Shared, headers: HeaderMap) -> Answer<Response> {
    service.access.expect_own_page(&headers)?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(&service, "", 0))]).into_response())
}

fn set_cookie(service: &Service, value: &str, seconds: u64) -> String {
    let secure = if service.is_by_tls { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Tells what changes as it changes; first of all how the upgrade stands.
pub async fn events(
    State(service): Shared,
) -> Answer<Sse<impl Stream<Item = Result<sse::Event, Infallible>> + use<>>> {
    let receiver = service.events.listen();
    let first = match service.blocking(Service::status).await {
        Ok(status) => Some(PushedEvent { name: "status", data: status.to_string().into() }),
        Err(problem) if problem.status == StatusCode::NOT_FOUND.as_u16() => None,
        Err(problem) => return Err(problem),
    };
    let stream = futures_util::stream::unfold(
        (receiver, first, service),
        |(mut receiver, mut first, service)| async {
            loop {
                if service.is_stopping() {
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
                return Some((Ok(told), (receiver, first, service)));
            }
        },
    );
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// Time between two looks of a stream of events at whether the service ends.
const EVENTS_LOOK: std::time::Duration = std::time::Duration::from_millis(500);

pub async fn metrics(State(service): Shared) -> Answer<Response> {
    let text = service.metrics.text().map_err(|error| Error::corrupt("the metrics", error))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

pub async fn alive() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

pub async fn ready(State(service): Shared) -> Answer {
    if service.is_stopping() {
        return Err(ProblemDetails::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "the service is about to end",
        ));
    }
    service
        .blocking(|service| {
            let name = &service.upgrade.configuration().old.name;
            find_space(service.upgrade.store(), name).map(drop)
        })
        .await?;
    Ok(Json(json!({ "status": "ok" })))
}
