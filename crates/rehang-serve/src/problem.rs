//! Errors as problem details (RFC 9457), with kind and remedy.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rehang_core::{Error, ErrorKind, Party, Verb, Wording};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::addresses::Addresses;

/// Reason why a request failed, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemDetails {
    /// Words of the status. There is no `type`: the kind tells problems apart.
    pub title: Box<str>,
    /// HTTP status.
    pub status: u16,
    /// Sentence about what happened and where. Where the service, its encoder or its database is at fault, it
    /// says which, and names the request or the operation under which the log has the whole error.
    pub detail: String,
    /// Kind of the error, as a word.
    pub kind: String,
    /// Way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Box<str>>,
    /// Whole error, where it is for the log alone.
    #[serde(skip)]
    cause: Option<Box<str>>,
    /// Value that the detail quotes and that the caller may have given, empty where it quotes none. Only a
    /// detail that is a sentence of the library has one, since that may name addresses.
    #[serde(skip)]
    quoted: Option<Box<str>>,
    /// Seconds after which the request may come again, where they are not [`RETRY_AFTER`].
    #[serde(skip)]
    retry_after: Option<u16>,
}

/// Largest number of characters of a detail: it may quote a request, which may be large.
const DETAIL_CHARACTERS_MAX: usize = 1000;
/// Seconds after which a request that was turned away may come again.
const RETRY_AFTER: u16 = 1;

impl ProblemDetails {
    pub(crate) fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        Self {
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            detail: detail.into(),
            kind: kind.into(),
            remedy: None,
            cause: None,
            quoted: None,
            retry_after: None,
        }
    }

    pub(crate) fn unauthorised() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorised", "no token that is taken came with the request")
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    pub(crate) fn too_many(detail: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many", detail)
    }

    /// Problem of work that ended in a panic.
    pub(crate) fn defect(work: &str, panic: impl std::fmt::Display) -> Self {
        let detail = format!("{work} ended in a defect of rehang; the log has it");
        let problem = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "defect", detail);
        Self { cause: Some(panic.to_string().into()), ..problem }
    }

    pub(crate) fn busy() -> Self {
        let detail = "as many requests as may wait are waiting, and nothing was done for this one";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    }

    /// Problem of a reading that takes longer than a request may.
    pub(crate) fn unanswered(seconds: u64) -> Self {
        let detail = format!("the gallery, or an encoder, did not answer within {seconds} seconds");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "unanswered", detail)
    }

    /// Problem of a change that has begun and takes longer than a request may.
    pub(crate) fn goes_on(seconds: u64) -> Self {
        let detail = format!(
            "it has begun and goes on after {seconds} seconds; the item, /v1/operations and /v1/trail tell its end"
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, "goes-on", detail)
    }

    /// Problem of a gallery that cannot be read, for whoever watches the service without a token.
    pub(crate) fn unready(error: &Error) -> Self {
        let detail = "the gallery cannot be read now; the service's log says why";
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
        Self { cause: Some(error.worded(&OfService).into()), ..problem }
    }

    /// Sets the seconds after which the request may come again.
    pub(crate) fn retry_after(self, seconds: u16) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Takes addresses out of the detail, which are for the log alone.
    pub(crate) fn without_addresses(mut self, addresses: &Addresses) -> Self {
        if let Some(quoted) = self.quoted.take() {
            self.detail = addresses.hidden(&self.detail, &quoted);
        }
        self
    }

    /// Leaves the rest of a long detail out.
    pub(crate) fn short(mut self) -> Self {
        if let Some((end, _)) = self.detail.char_indices().nth(DETAIL_CHARACTERS_MAX) {
            self.detail.replace_range(end.., "…");
        }
        self
    }

    /// Writes what is for the log alone into the log, and takes it out of the answer. Where that is the whole
    /// error, the answer says under which name it stands there.
    pub(crate) fn logged(self, name: &str, addresses: &Addresses) -> Self {
        let detail = self.detail.clone();
        let mut problem = self.without_addresses(addresses);
        if problem.detail != detail {
            tracing::info!(detail = &*detail, "{name} is answered without addresses");
        }
        if let Some(cause) = problem.cause.take() {
            tracing::error!(cause = &*cause, "{name} failed");
            problem.detail = format!("{}, under {name}", problem.detail);
        }
        problem
    }
}

/// Words of the service for verbs.
struct OfService;

impl Wording for OfService {
    fn imperative(&self) -> &'static str {
        "ask for"
    }

    fn verb(&self, verb: Verb) -> String {
        let request = match verb {
            Verb::Start => "POST /v1/upgrade/start",
            Verb::Status => "GET /v1/status",
            Verb::Switch => "POST /v1/upgrade/switch",
            Verb::SwitchFused => "POST /v1/upgrade/switch {\"serving\": \"fused\"}",
            Verb::SwitchAnyway => "POST /v1/upgrade/switch {\"anyway\": true}",
            Verb::Rollback => "POST /v1/upgrade/rollback",
            Verb::Resume => "POST /v1/upgrade/resume",
            Verb::ReEmbed => "POST /v1/upgrade/resume {\"re_embed\": true}",
            Verb::Run => "POST /v1/upgrade/run",
            Verb::RunUntil { percent } => {
                return format!("`POST /v1/upgrade/run {{\"until\": \"{percent:.1}%\"}}`");
            }
            Verb::FinishAnyway => "POST /v1/upgrade/finish {\"anyway\": true}",
            Verb::Pause => "POST /v1/upgrade/pause",
            Verb::Report => "POST /v1/upgrade/report",
            Verb::Pairs => "POST /v1/upgrade/pairs",
            Verb::Fit => "POST /v1/upgrade/fit",
            Verb::Bridge => "POST /v1/upgrade/bridge",
            Verb::Put => "PUT /v1/items/ID",
            // The command line does the rest, where the service runs.
            Verb::Follow => "rehang serve --follow",
            Verb::Adopt => "rehang gallery adopt",
            Verb::ReleaseWithAdapted => "rehang gallery release --with-adapted",
            Verb::Release => "rehang gallery release",
            Verb::ReleaseAnyway => "rehang gallery release --yes --anyway",
            Verb::Identify => "rehang identify",
            Verb::DropSpace => "rehang gallery drop-space",
            Verb::Compact => "rehang gallery compact",
            Verb::Index => "rehang gallery index",
            Verb::Repair => "rehang doctor --repair",
        };
        format!("`{request}`")
    }
}

impl From<Error> for ProblemDetails {
    fn from(mut error: Error) -> Self {
        let sentence = error.worded(&OfService);
        let remedy = error.take_remedy().map(|remedy| remedy.worded(&OfService).into());
        let status = match error.kind() {
            ErrorKind::Unavailable { .. } | ErrorKind::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Corrupt { .. } | ErrorKind::Io { .. } | ErrorKind::Diverged { .. } => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            ErrorKind::BudgetSpent { .. } => StatusCode::CONFLICT,
            _ if error.is_unauthorised() || error.party().is_some() => StatusCode::BAD_GATEWAY,
            ErrorKind::NotFound { .. } => StatusCode::NOT_FOUND,
            _ if error.is_conflict() => StatusCode::CONFLICT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let kind = kebab(&format!("{:?}", error.kind()));
        // Errors from inside may quote a statement, a key of the configuration, or an answer of a store or of
        // an encoder.
        let is_for_the_log = status.is_server_error() && !error.is_cancelled();
        let problem = if is_for_the_log {
            Self { cause: Some(sentence.into()), ..Self::new(status, &kind, fault(&error, status)) }
        } else {
            let quoted = match error.kind() {
                ErrorKind::InvalidOption { value, .. } => format!("{value:?}"),
                _ => String::new(),
            };
            let sentence = error.worded(&OfService);
            Self { quoted: Some(quoted.into()), ..Self::new(status, &kind, sentence) }
        };
        Self { remedy, ..problem }
    }
}

/// Says whose fault an error is that is not the caller's, and who can do something about it.
fn fault(error: &Error, status: StatusCode) -> String {
    let (who, whose) = match error.party() {
        Some(Party::Encoder) => ("the encoder", "the service's"),
        Some(Party::Database) => ("the gallery's database", "the service's"),
        None if status == StatusCode::INTERNAL_SERVER_ERROR => ("the service", "its"),
        None => ("what the service needs", "the service's"),
    };
    let what = match error.kind() {
        ErrorKind::Unavailable { .. } => "does not answer now, so ask again later",
        ErrorKind::Unauthorised { .. } => {
            "refused the service's credentials, which the service's operator can set right"
        }
        _ if error.party().is_some() => "failed, which the service's operator can mend",
        _ => "failed",
    };
    format!("{who} {what}; {whose} log says why")
}

/// Writes the name at the start of a value's debug form in lower case, with a dash before each capital.
fn kebab(debug: &str) -> String {
    let name = debug.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    let mut word = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Who knows the request's id takes it from there, for the log.
        let unlogged = (self.cause.is_some() || self.quoted.is_some()).then(|| self.clone());
        let waits = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let retry_after = self.retry_after.unwrap_or(RETRY_AFTER);
        let mut response = (status, Json(self.short())).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if waits {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(problem) = unlogged {
            response.extensions_mut().insert(problem);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use rehang_core::{Distance, Remedy, Space};
    use rehang_upgrade::{Configuration, Location};

    use super::*;

    /// Log that keeps what is written into it.
    #[derive(Clone, Default)]
    struct KeptLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for KeptLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Gives the problem of an error as a caller gets it, and what the log says of it.
    fn logged(problem: ProblemDetails) -> (ProblemDetails, String) {
        let space = |name: &str| Space::new(name, 2, Distance::Cosine, false);
        let configuration =
            Configuration::new(Location::file("data/g.db"), space("old"), space("new")).unwrap();
        let addresses = Addresses::new(&configuration, "data/g.db");
        let log = KeptLog::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let problem =
            tracing::subscriber::with_default(subscriber, || problem.logged("request 7", &addresses));
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        (problem, text)
    }

    #[test]
    fn an_error_of_the_store_is_for_the_log_alone() {
        let error = Error::corrupt("PostgreSQL at db", "syntax error at \"FROM\" (42601)");
        let (problem, text) = logged(error.into());
        assert_eq!((problem.status, problem.kind.as_str()), (500, "corrupt"));
        assert_eq!(problem.detail, "the service failed; its log says why, under request 7");
        assert!(text.contains("request 7 failed") && text.contains("42601"), "{text}");
        let shown = serde_json::to_string(&ProblemDetails::from(Error::corrupt("a", "SELECT"))).unwrap();
        assert!(!shown.contains("SELECT"), "{shown}");
    }

    #[test]
    fn a_fault_of_an_encoder_or_a_database_says_whose_it_is_and_no_address() {
        let service = || "m at https://gpu.lan/v1".to_owned();
        let down = || ErrorKind::Unavailable { service: service(), detail: "no route".into() };
        let refused = ErrorKind::Unauthorised { service: service(), detail: "status 401".into() };
        for (error, status, kind, said) in [
            (
                Error::from(down()).blame(Party::Encoder),
                503,
                "unavailable",
                "the encoder does not answer now, so ask again later; the service's log says why",
            ),
            (
                Error::from(down()),
                503,
                "unavailable",
                "what the service needs does not answer now, so ask again later; the service's log says why",
            ),
            (
                Error::from(refused).blame(Party::Encoder),
                502,
                "unauthorised",
                "the encoder refused the service's credentials, which the service's operator can set right; \
                 the service's log says why",
            ),
            (
                Error::not_found("embedding endpoint", "m", "https://gpu.lan/v1").blame(Party::Encoder),
                502,
                "not-found",
                "the encoder failed, which the service's operator can mend; the service's log says why",
            ),
            (
                Error::option("root", "/srv/gpu.lan", "a folder").blame(Party::Encoder),
                502,
                "invalid-option",
                "the encoder failed, which the service's operator can mend; the service's log says why",
            ),
            (
                Error::conflict("PostgreSQL at gpu.lan/shop", "a column is gone").blame(Party::Database),
                502,
                "conflict",
                "the gallery's database failed, which the service's operator can mend; the service's log \
                 says why",
            ),
        ] {
            let whole = error.to_string();
            let (problem, text) = logged(error.into());
            assert_eq!((problem.status, problem.kind.as_str()), (status, kind), "{whole}");
            assert_eq!(problem.detail, format!("{said}, under request 7"));
            assert!(text.contains("request 7 failed") && text.contains("gpu.lan"), "{text}");
        }
        let (problem, text) = logged(ProblemDetails::unready(&down().into()));
        assert!(problem.status == 503 && !problem.detail.contains("gpu.lan"), "{problem:?}");
        assert!(problem.detail.ends_with(", under request 7") && text.contains("gpu.lan"), "{text}");
    }

    #[test]
    fn what_is_the_callers_is_said_in_words_without_addresses() {
        let spent = Error::budget_spent("the budget of the encoder", "budget_items has no room");
        for (error, status, said) in [
            (
                Error::wrong_phase("the upgrade of data/g.db", "filling"),
                409,
                "the upgrade of the gallery is filling",
            ),
            (
                Error::not_found("upgrade", "started", "data/g.db"),
                404,
                "there is no upgrade \"started\" in the gallery",
            ),
            (
                Error::option("items", "/shop/1", "one that its encoder takes: /srv/1.png is no picture"),
                422,
                "items cannot be \"/shop/1\"; expected one that its encoder takes: … is no picture",
            ),
            (spent.blame(Party::Encoder), 409, "the budget of the encoder: budget_items has no room"),
        ] {
            let whole = error.to_string();
            let (problem, text) = logged(error.into());
            assert_eq!((problem.status, problem.detail.as_str()), (status, said));
            assert_eq!(text.contains("answered without addresses"), whole != said, "{text}");
        }
    }

    #[test]
    fn errors_say_their_kind_their_status_and_the_next_request() {
        let of = |error: Error| {
            let problem = ProblemDetails::from(error);
            (problem.status, problem.kind)
        };
        assert_eq!(of(Error::wrong_phase("the upgrade", "filled")), (409, "wrong-phase".into()));
        assert_eq!(of(Error::option("k", 0, "1 or more")), (422, "invalid-option".into()));
        assert_eq!(of(Error::not_found("item", "a", "the gallery")), (404, "not-found".into()));
        let large = ProblemDetails::from(Error::option("items", "ä".repeat(5000), "one that is there"));
        assert_eq!(large.short().detail.chars().count(), DETAIL_CHARACTERS_MAX + 1);
        let advised = ProblemDetails::from(Error::conflict("x", "y").advise(Remedy::DrawPairs));
        assert!(advised.remedy.unwrap().contains("/v1/upgrade/pairs"));
    }
}
