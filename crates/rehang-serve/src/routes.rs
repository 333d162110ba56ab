//! Table of the routes, with what each needs: the router, the checks of roles and the OpenAPI document are made
//! of it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Extension, Json, Router};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::access::{Caller, TokenRole};
use crate::api::{self, Alive, Body, CancelAsked, ItemBody, Listed, Me, SearchBody, ShownItem, SignIn};
use crate::connections::Peer;
use crate::operations::{LongVerb, Trailed, VerbOperation, VerbOptions};
use crate::page;
use crate::problem::ProblemDetails;
use crate::service::{AskedService, Service, ShownStatus};
use crate::wrong_tokens::network;

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Headers by their names, with what each says.
type Headers = &'static [(&'static str, &'static str)];

/// A route, with the role that it needs; `None` for everybody.
pub struct Route {
    pub method: &'static str,
    pub path: String,
    pub role: Option<TokenRole>,
    summary: &'static str,
    /// Object whose fields are the parameters of the query.
    query: Option<SchemaOf>,
    /// Headers that the handler reads.
    reads: Headers,
    /// Body, and whether a request needs it.
    body: Option<(SchemaOf, bool)>,
    /// Status of an answer that is no problem.
    status: StatusCode,
    /// Kind of the answer's content, and its schema; `None` for an answer without content.
    answer: Option<(&'static str, SchemaOf)>,
    /// Headers of the answer.
    sends: Headers,
    /// Meaning of 304, where the route answers so.
    unchanged: Option<&'static str>,
    handler: MethodRouter,
}

fn route(
    (method, path): (&'static str, impl Into<String>),
    role: impl Into<Option<TokenRole>>,
    summary: &'static str,
    handler: MethodRouter,
) -> Route {
    Route {
        method,
        path: path.into(),
        role: role.into(),
        summary,
        query: None,
        reads: &[],
        body: None,
        status: StatusCode::NO_CONTENT,
        answer: None,
        sends: &[],
        unchanged: None,
        handler,
    }
}

impl Route {
    /// Adds the parameters of the query.
    fn asks<T: JsonSchema>(mut self) -> Self {
        self.query = Some(T::json_schema);
        self
    }

    /// Adds headers that the handler reads.
    fn reads(mut self, headers: Headers) -> Self {
        self.reads = headers;
        self
    }

    /// Adds a body that may be left out.
    fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some((SchemaGenerator::subschema_for::<T>, false));
        self
    }

    /// Adds a body that every request needs.
    fn needs<T: JsonSchema>(mut self) -> Self {
        self.body = Some((SchemaGenerator::subschema_for::<T>, true));
        self
    }

    /// Adds JSON of a type as the answer.
    fn gives<T: JsonSchema>(self) -> Self {
        self.gives_as("application/json", SchemaGenerator::subschema_for::<T>)
    }

    /// Adds text that is no JSON as the answer.
    fn gives_text(self, kind: &'static str) -> Self {
        self.gives_as(kind, SchemaGenerator::subschema_for::<String>)
    }

    /// Adds JSON of another schema than a type's as the answer.
    fn gives_json(self, schema: SchemaOf) -> Self {
        self.gives_as("application/json", schema)
    }

    /// Adds an answer by its kind of content and its schema.
    fn gives_as(mut self, kind: &'static str, schema: SchemaOf) -> Self {
        (self.status, self.answer) = (StatusCode::OK, Some((kind, schema)));
        self
    }

    /// Makes the answer one that comes before the work is done.
    fn accepts(mut self) -> Self {
        self.status = StatusCode::ACCEPTED;
        self
    }

    /// Adds headers of the answer.
    fn sends(mut self, headers: Headers) -> Self {
        self.sends = headers;
        self
    }

    /// Adds the answer without content for what the caller has already.
    fn or_unchanged(mut self, meaning: &'static str) -> Self {
        self.unchanged = Some(meaning);
        self
    }

    /// Makes the name of the route in the document: its method and path.
    fn operation_id(&self) -> String {
        let words = self.path.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words = words.filter(|word| !word.is_empty());
        std::iter::once(self.method).chain(words).collect::<Vec<_>>().join("_").to_lowercase()
    }

    /// Describes the route in the document. `requests` and `answers` keep the schemas that it refers to.
    fn described(&self, requests: &mut SchemaGenerator, answers: &mut SchemaGenerator) -> Value {
        let mut parameters = Vec::new();
        if self.path.contains("{id}") {
            let text = json!({ "type": "string" });
            parameters.push(json!({ "name": "id", "in": "path", "required": true, "schema": text }));
        }
        if let Some(query) = self.query {
            let query = query(requests);
            let fields = query.get("properties").and_then(Value::as_object);
            for (name, schema) in fields.into_iter().flatten() {
                parameters.push(json!({ "name": name, "in": "query", "schema": schema }));
            }
        }
        for (name, meaning) in self.reads {
            let mut parameter = header_of(meaning);
            (parameter["name"], parameter["in"]) = (json!(name), json!("header"));
            parameters.push(parameter);
        }
        let sent = self.sends.iter().map(|(name, meaning)| ((*name).to_owned(), header_of(meaning)));
        let sent: Map<String, Value> = sent.collect();
        let mut answered = json!({ "description": "What was asked for", "headers": sent });
        if let Some((kind, schema)) = self.answer {
            answered["content"] = json!({ kind: { "schema": schema(answers) } });
        }
        let mut responses = json!({ "default": { "$ref": "#/components/responses/Problem" } });
        responses[self.status.as_str()] = answered;
        if let Some(meaning) = self.unchanged {
            responses["304"] = json!({ "description": meaning, "headers": sent });
        }
        let mut described = json!({
            "operationId": self.operation_id(),
            "summary": self.summary,
            "parameters": parameters,
            "responses": responses,
            "security": if self.role.is_some() { json!([{ "token": [] }]) } else { json!([]) },
        });
        if let Some(role) = self.role {
            described["description"] = json!(format!("Needs the role {}.", json!(role)));
        }
        if let Some((schema, is_needed)) = self.body {
            let content = json!({ "application/json": { "schema": schema(requests) } });
            described["requestBody"] = json!({ "required": is_needed, "content": content });
        }
        described
    }
}

/// Describes a header of a request or an answer.
fn header_of(meaning: &str) -> Value {
    json!({ "description": meaning, "schema": { "type": "string" } })
}

/// Describes JSON of a type of the library, with the names of some fields that are always there.
fn of_library(name: &str, fields: &[&str]) -> Schema {
    let documented = format!("JSON of `{name}`, whose documentation describes all fields.");
    json_schema!({ "type": "object", "description": documented, "required": fields })
}

/// Headers of an item, of a session, and of an operation.
const ETAG: Headers = &[("ETag", "The revision of the item, in quotation marks")];
const SET_COOKIE: Headers = &[("Set-Cookie", "The session, or its end")];
const IDEMPOTENCY: Headers = &[(
    api::IDEMPOTENCY_KEY,
    "The same key of a token gives the same operation: up to 255 visible characters of ASCII",
)];
/// Meaning of a header that a write refuses, and all such headers.
const NO_PRECONDITION: &str = "A write takes no precondition: with this header it is answered with 412";
const NO_PRECONDITIONS: Headers = &[
    ("If-Match", NO_PRECONDITION),
    ("If-None-Match", NO_PRECONDITION),
    ("If-Unmodified-Since", NO_PRECONDITION),
];

/// Lists all routes.
pub fn routes() -> Vec<Route> {
    let mut all = vec![
        route(("GET", "/"), None, "The dashboard", get(async || page::html())).gives_text("text/html"),
        route(("GET", "/page.js"), None, "Its script", get(async || page::script()))
            .gives_text("text/javascript"),
        route(("GET", "/page.css"), None, "Its looks", get(async || page::style())).gives_text("text/css"),
        route(("GET", "/healthz"), None, "Whether the process is alive", get(api::alive)).gives::<Alive>(),
        route(("GET", "/readyz"), None, "Whether the gallery answers", get(api::ready)).gives::<Alive>(),
        route(("GET", "/openapi.json"), None, "This document", get(async || Json(&*DOCUMENT)))
            .gives::<Map<String, Value>>(),
        route(("POST", "/session"), None, "Sign in, by a cookie", post(api::sign_in))
            .needs::<SignIn>()
            .sends(SET_COOKIE),
        route(("DELETE", "/session"), None, "Sign out", delete(api::sign_out)).sends(SET_COOKIE),
        route(("GET", "/metrics"), TokenRole::Read, "Metrics for Prometheus", get(api::metrics))
            .gives_text("text/plain"),
        route(("GET", "/v1/me"), TokenRole::Read, "Who asks", get(api::me)).gives::<Me>(),
        route(("GET", "/v1/status"), TokenRole::Read, "How the upgrade stands", get(api::status))
            .gives::<ShownStatus<'static>>(),
        route(("GET", "/v1/plan"), TokenRole::Read, "What the upgrade would take", get(api::plan))
            .gives_json(|_| of_library("rehang_upgrade::Outlook", &["order", "estimate", "forecast"])),
        route(("GET", "/v1/curve.svg"), TokenRole::Read, "The forecast as a picture", get(api::curve))
            .gives_text("image/svg+xml"),
        route(
            ("GET", "/v1/failures"),
            TokenRole::Read,
            "Items that could not be embedded",
            get(api::failures),
        )
        .asks::<Listed>()
        .gives_json(|_| {
            let failure = of_library("rehang_store::Failure", &["id", "reason"]);
            json_schema!({ "type": "array", "items": failure })
        }),
        route(("GET", "/v1/trail"), TokenRole::Read, "Who changed what", get(api::trail))
            .asks::<Listed>()
            .gives::<Vec<Trailed>>(),
        route(("GET", "/v1/events"), TokenRole::Read, "Changes as they come", get(api::events))
            .gives_text("text/event-stream"),
        route(
            ("POST", "/v1/search"),
            TokenRole::Read,
            "The nearest items, at every stage",
            post(api::search),
        )
        .needs::<SearchBody>()
        .gives_json(|_| {
            of_library("rehang_upgrade::Searched", &["space", "spaces", "bridged", "k", "results"])
        }),
        route(("GET", "/v1/items/{id}"), TokenRole::Read, "An item", get(api::get_item))
            .reads(&[("If-None-Match", "`ETag`s, or `*`: where the item has one of them, the answer is 304")])
            .gives::<ShownItem>()
            .sends(ETAG)
            .or_unchanged("The item is as it was"),
        route(
            ("GET", "/v1/items/{id}/picture"),
            TokenRole::Read,
            "The picture that an item's source names",
            get(api::picture),
        )
        .gives_as("image/*", |_| json_schema!({ "description": "A PNG, JPEG, GIF or WebP file" })),
        route(("PUT", "/v1/items/{id}"), TokenRole::Write, "Write an item", put(api::put_item))
            .reads(NO_PRECONDITIONS)
            .takes::<ItemBody>()
            .gives_json(|_| of_library("rehang_upgrade::PutItem", &["id", "revision", "removed_from"]))
            .sends(ETAG),
        route(("DELETE", "/v1/items/{id}"), TokenRole::Write, "Delete an item", delete(api::delete_item))
            .reads(NO_PRECONDITIONS),
        route(
            ("GET", "/v1/operations"),
            TokenRole::Read,
            "Operations, the newest first",
            get(api::operations),
        )
        .gives::<Vec<VerbOperation>>(),
        route(("GET", "/v1/operations/{id}"), TokenRole::Read, "An operation", get(api::operation))
            .gives::<VerbOperation>(),
        route(
            ("POST", "/v1/operations/{id}/cancel"),
            TokenRole::Operate,
            "Stop an operation",
            post(api::cancel),
        )
        .gives::<CancelAsked>(),
        route(("GET", "/v1/doctor"), TokenRole::Operate, "What is wrong with the gallery", get(api::doctor))
            .gives_json(|_| of_library("rehang_upgrade::Examination", &["gallery", "bad", "findings"])),
    ];
    for verb in LongVerb::ALL {
        let begin =
            async move |Extension(service): Extension<AskedService>,
                        Extension(caller): Extension<Caller>,
                        headers: HeaderMap,
                        body: Body| { api::begin(service, caller, verb, headers, body).await };
        let path = format!("/v1/upgrade/{}", verb.name());
        let begins =
            route(("POST", path), TokenRole::Operate, "A verb, as an operation to follow", post(begin))
                .reads(IDEMPOTENCY)
                .takes::<VerbOptions>()
                .gives::<VerbOperation>()
                .accepts()
                .sends(&[("Location", "Where to follow the operation")]);
        all.push(begins);
    }
    let requested: SchemaOf = |_| of_library("rehang_upgrade::Requested", &["request", "before"]);
    let resumed: SchemaOf = |_| of_library("rehang_upgrade::Resumed", &["request", "retried", "put_back"]);
    let at_once = [
        ("pause", post(api::pause), requested),
        ("stop", post(api::stop), requested),
        ("resume", post(api::resume), resumed),
    ];
    all.extend(at_once.map(|(verb, handler, answer)| {
        let path = format!("/v1/upgrade/{verb}");
        route(("POST", path), TokenRole::Operate, "A verb, carried out at once", handler)
            .takes::<VerbOptions>()
            .gives_json(answer)
    }));
    all
}

/// Makes the router of a service.
pub fn router(service: &Arc<Service>) -> Router {
    let mut router = Router::new();
    for Route { path, role, handler, .. } in routes() {
        let guarded = from_fn_with_state((Arc::clone(service), role, path.clone()), guard);
        router = router.route(&path, handler.layer(guarded));
    }
    let nowhere = async |uri: Uri| {
        let path = uri.path();
        ProblemDetails::not_found(format!("there is no path {path:?}; GET /openapi.json lists all"))
    };
    router
        .fallback(nowhere)
        .method_not_allowed_fallback(async || {
            ProblemDetails::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "the route has other methods; /openapi.json lists all",
            )
        })
        .layer(from_fn(expect_one_host))
        .layer(from_fn(close_after_refusal))
}

/// Refuses a request that names several hosts: a proxy may have looked at another one of them. The host of a
/// target in absolute form counts, and `Host` does not (RFC 9112).
async fn expect_one_host(mut request: Request, next: Next) -> Response {
    if request.headers().get_all(header::HOST).iter().count() > 1 {
        let detail = "the request has more than one Host";
        return ProblemDetails::new(StatusCode::BAD_REQUEST, "wrong-request", detail).into_response();
    }
    if let Some(authority) = request.uri().authority() {
        // Text that no header can have is no name of this service either.
        let host = HeaderValue::from_str(authority.as_str()).unwrap_or(HeaderValue::from_static(""));
        request.headers_mut().insert(header::HOST, host);
    }
    next.run(request).await
}

/// Says that the connection ends with the answer where a request is refused before its body was read: it ends
/// then, and a client that sent its next request there would get no answer.
async fn close_after_refusal(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_empty = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0");
    let has_body = !is_empty || headers.contains_key(header::TRANSFER_ENCODING);
    let mut response = next.run(request).await;
    let status = response.status();
    let is_read = status == StatusCode::UNPROCESSABLE_ENTITY || status == StatusCode::CONFLICT;
    if has_body && !is_read && (status.is_client_error() || status.is_server_error()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Header with the name of a request, which the log has too.
const REQUEST_ID: &str = "x-request-id";

/// Checks who asks, how often and for what, and counts and logs the answer.
async fn guard(
    State((service, role, path)): State<(Arc<Service>, Option<TokenRole>, String)>,
    mut request: Request,
    next: Next,
) -> Response {
    let (began, method) = (rehang_clock::now(), request.method().clone());
    let number = service.next_request();
    let id = format!("{:x}-{number:x}", rehang_clock::unix_ms());
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let address = request.extensions().get::<Peer>().map_or(unknown, |peer| peer.0);
    let (mut response, who) = match admitted(&service, role, &request, address) {
        Ok(caller) => {
            let who = caller.as_ref().map(|caller| caller.name.clone()).unwrap_or_default();
            let sharer = if caller.is_some() { who.clone() } else { network(address).to_string() };
            request.extensions_mut().insert(AskedService::new(&service, role, &method, sharer));
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            (next.run(request).await, who)
        }
        Err(problem) => (problem.into_response(), String::new()),
    };
    if let Some(problem) = response.extensions_mut().remove::<ProblemDetails>() {
        response = problem.logged(&format!("request {id}"), &service.addresses).into_response();
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    if response.status().is_client_error()
        && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"))
    {
        response = reworded(response).await;
    }
    let status = response.status().as_u16();
    service.metrics.answered(&path, status);
    let ms = began.elapsed().as_secs_f64() * 1000.0;
    tracing::info!(request = id, %method, path, status, who, ms, "answered");
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Makes a problem of a refusal in plain words, as of a path or a parameter that cannot be read.
async fn reworded(response: Response) -> Response {
    let status = response.status();
    let words = axum::body::to_bytes(response.into_body(), 1000).await.unwrap_or_default();
    ProblemDetails::new(status, "wrong-request", String::from_utf8_lossy(&words)).into_response()
}

/// Finds who asks, where the route is not for everybody.
fn admitted(
    service: &Service,
    role: Option<TokenRole>,
    request: &Request,
    address: IpAddr,
) -> Result<Option<Caller>, ProblemDetails> {
    let Some(role) = role else { return Ok(None) };
    let caller = service.access.caller(request.method(), request.headers(), address)?;
    if caller.role < role {
        let roles = json!([caller.role, role]);
        return Err(ProblemDetails::forbidden(format!(
            "the token's role is {}, and {} is needed",
            roles[0], roles[1]
        )));
    }
    if !service.may_ask(&caller.name) {
        return Err(ProblemDetails::too_many("the token asks too often"));
    }
    Ok(Some(caller))
}

/// OpenAPI document, which is made when it is first asked for: everybody may ask.
static DOCUMENT: LazyLock<Value> = LazyLock::new(openapi);

/// Makes the OpenAPI document of all routes.
fn openapi() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    // Requests may leave fields out that are always written.
    let mut requests = settings.clone().for_deserialize().into_generator();
    let mut answers = settings.for_serialize().into_generator();
    let mut paths = Map::new();
    for route in routes() {
        let described = route.described(&mut requests, &mut answers);
        let of_path = paths.entry(route.path).or_insert_with(|| json!({}));
        of_path[route.method.to_lowercase()] = described;
    }
    let problem = json!({
        "description": "What went wrong: 4xx is the caller's to change, 502 a fault of the encoder or of the \
            gallery's database, 503 what does not answer now, and 500 any other fault. No address is named; \
            the service's log has the whole error, under the name that `detail` ends with",
        "headers": { "Retry-After": header_of("Seconds to wait before asking again, with 429 and 503") },
        "content": { "application/problem+json": { "schema": answers.subschema_for::<ProblemDetails>() } },
    });
    let mut schemas = requests.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "rehang",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Searches, writes and the steps of an upgrade of a vector gallery.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": { "Problem": problem },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}
