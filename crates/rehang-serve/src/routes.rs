//! Table of the routes, with what each needs: the router, the checks of roles and the OpenAPI document are made
//! of it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Extension, Json, Router};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::access::{Caller, TokenRole};
use crate::api::{self, Body, ItemBody, SearchBody, SignIn};
use crate::operations::{LongVerb, Trailed, VerbOperation, VerbOptions};
use crate::options::ServeLimits;
use crate::page;
use crate::problem::ProblemDetails;
use crate::service::Service;

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A route, with the role that it needs; `None` for everybody.
pub struct Route {
    pub method: &'static str,
    pub path: String,
    pub role: Option<TokenRole>,
    summary: &'static str,
    body: Option<SchemaOf>,
    answer: Option<SchemaOf>,
    handler: MethodRouter<Arc<Service>>,
}

fn route(
    (method, path): (&'static str, impl Into<String>),
    role: impl Into<Option<TokenRole>>,
    summary: &'static str,
    handler: MethodRouter<Arc<Service>>,
) -> Route {
    Route { method, path: path.into(), role: role.into(), summary, body: None, answer: None, handler }
}

impl Route {
    fn takes<T: schemars::JsonSchema>(mut self) -> Self {
        self.body = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    fn gives<T: schemars::JsonSchema>(mut self) -> Self {
        self.answer = Some(SchemaGenerator::subschema_for::<T>);
        self
    }
}

/// Lists all routes.
pub fn routes() -> Vec<Route> {
    let mut all = vec![
        route(("GET", "/"), None, "The dashboard", get(async || page::html())),
        route(("GET", "/page.js"), None, "Its script", get(async || page::script())),
        route(("GET", "/page.css"), None, "Its looks", get(async || page::style())),
        route(("GET", "/healthz"), None, "Whether the process is alive", get(api::alive)),
        route(("GET", "/readyz"), None, "Whether the gallery answers", get(api::ready)),
        route(("GET", "/openapi.json"), None, "This document", get(async || Json(openapi()))),
        route(("POST", "/session"), None, "Sign in, by a cookie", post(api::sign_in)).takes::<SignIn>(),
        route(("DELETE", "/session"), None, "Sign out", delete(api::sign_out)),
        route(("GET", "/metrics"), TokenRole::Read, "Metrics for Prometheus", get(api::metrics)),
        route(("GET", "/v1/me"), TokenRole::Read, "Who asks", get(api::me)),
        route(("GET", "/v1/status"), TokenRole::Read, "How the upgrade stands", get(api::status)),
        route(("GET", "/v1/plan"), TokenRole::Read, "What the upgrade would take", get(api::plan)),
        route(("GET", "/v1/curve.svg"), TokenRole::Read, "The forecast as a picture", get(api::curve)),
        route(
            ("GET", "/v1/failures"),
            TokenRole::Read,
            "Items that could not be embedded",
            get(api::failures),
        ),
        route(("GET", "/v1/trail"), TokenRole::Read, "Who changed what", get(api::trail))
            .gives::<Vec<Trailed>>(),
        route(("GET", "/v1/events"), TokenRole::Read, "Changes as they come", get(api::events)),
        route(
            ("POST", "/v1/search"),
            TokenRole::Read,
            "The nearest items, at every stage",
            post(api::search),
        )
        .takes::<SearchBody>(),
        route(("GET", "/v1/items/{id}"), TokenRole::Read, "An item", get(api::get_item)),
        route(
            ("GET", "/v1/items/{id}/picture"),
            TokenRole::Read,
            "The picture that an item's source names",
            get(api::picture),
        ),
        route(("PUT", "/v1/items/{id}"), TokenRole::Write, "Write an item", put(api::put_item))
            .takes::<ItemBody>(),
        route(("DELETE", "/v1/items/{id}"), TokenRole::Write, "Delete an item", delete(api::delete_item)),
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
        ),
        route(("GET", "/v1/doctor"), TokenRole::Operate, "What is wrong with the gallery", get(api::doctor)),
    ];
    for verb in LongVerb::ALL {
        let begin = async move |State(service): State<Arc<Service>>,
                                Extension(caller): Extension<Caller>,
                                headers: HeaderMap,
                                Body(options): Body<VerbOptions>| {
            api::begin(service, caller, verb, headers, options).await
        };
        let path = format!("/v1/upgrade/{}", verb.name());
        let begins =
            route(("POST", path), TokenRole::Operate, "A verb, as an operation to follow", post(begin));
        all.push(begins.takes::<VerbOptions>().gives::<VerbOperation>());
    }
    let at_once = [("pause", post(api::pause)), ("stop", post(api::stop)), ("resume", post(api::resume))];
    all.extend(at_once.map(|(verb, handler)| {
        let path = format!("/v1/upgrade/{verb}");
        route(("POST", path), TokenRole::Operate, "A verb, carried out at once", handler)
            .takes::<VerbOptions>()
    }));
    all
}

/// Makes the router of a service.
pub fn router(service: &Arc<Service>, limits: ServeLimits) -> Router {
    let mut router = Router::new();
    for Route { path, role, handler, .. } in routes() {
        let guarded = from_fn_with_state((Arc::clone(service), role, path.clone()), guard);
        router = router.route(&path, handler.layer(guarded));
    }
    let nowhere = async || ProblemDetails::not_found("there is no such route; /openapi.json lists all");
    router
        .fallback(nowhere)
        .method_not_allowed_fallback(async || {
            ProblemDetails::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "the route has other methods; /openapi.json lists all",
            )
        })
        .layer(DefaultBodyLimit::max(limits.body))
        .with_state(Arc::clone(service))
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
    let (mut response, who) = match admitted(&service, role, &request) {
        Ok(caller) => {
            let who = caller.as_ref().map(|caller| caller.name.clone()).unwrap_or_default();
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            // A body that never comes would hold its request for ever. Events have no end.
            let limit = Duration::from_secs(2 * service.limits.seconds + 1);
            let answered = tokio::time::timeout(limit, next.run(request)).await;
            (answered.unwrap_or_else(|_| ProblemDetails::busy().into_response()), who)
        }
        Err(problem) => (problem.into_response(), String::new()),
    };
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
) -> Result<Option<Caller>, ProblemDetails> {
    let Some(role) = role else { return Ok(None) };
    let caller = service.access.caller(request.method(), request.headers())?;
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

/// Makes the OpenAPI document of all routes.
pub fn openapi() -> Value {
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let problem = json!({ "description": "What went wrong", "content": {
        "application/problem+json": { "schema": generator.subschema_for::<ProblemDetails>() } } });
    let mut paths = Map::new();
    for Route { method, path, role, summary, body, answer, .. } in routes() {
        let is_long = answer.is_some() && path.starts_with("/v1/upgrade/");
        let mut answered = json!({ "description": "What was asked for" });
        if let Some(schema) = answer {
            answered["content"] = json!({ "application/json": { "schema": schema(&mut generator) } });
        }
        let is_empty = method == "DELETE" || path == "/session";
        let status = if is_long {
            "202"
        } else if is_empty {
            "204"
        } else {
            "200"
        };
        let mut described = json!({
            "summary": summary,
            "responses": { status: answered, "default": problem },
            "security": if role.is_some() { json!([{ "token": [] }]) } else { json!([]) },
        });
        if let Some(role) = role {
            described["description"] = json!(format!("Needs the role {}.", json!(role)));
        }
        if let Some(schema) = body {
            described["requestBody"] =
                json!({ "content": { "application/json": { "schema": schema(&mut generator) } } });
        }
        if path.contains("{id}") {
            described["parameters"] =
                json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        let of_path = paths.entry(path).or_insert_with(|| json!({}));
        of_path[method.to_lowercase()] = described;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "rehang",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Searches, writes and the steps of an upgrade of a vector gallery.",
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}
