//! Access to the service: tokens with roles, sessions of the dashboard, and where a browser's request may come
//! from.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, header};
use rehang_core::{Error, Result};
use ring::hmac;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::ProblemDetails;
use crate::wrong_tokens::WrongTokens;

/// Rights of a token; each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenRole {
    /// Searches, and sees how things stand.
    Read,
    /// Writes and deletes items too.
    Write,
    /// Carries out the verbs of an upgrade too.
    Operate,
}

/// A token with its name in the trail.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    name: String,
    role: TokenRole,
    #[serde(rename = "token")]
    secret: String,
}

/// File of tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    token: Vec<Token>,
}

/// Shortest token that is taken.
const TOKEN_CHARACTERS_MIN: usize = 16;
/// Name of the cookie of a session.
pub const COOKIE: &str = "rehang_session";
/// Header that a request which changes something carries beside the cookie.
pub const CSRF: &str = "x-rehang-csrf";
/// Seconds that a session lasts.
pub const SESSION_SECONDS: u64 = 12 * 3600;
/// Largest number of sessions that are kept as signed out.
const SIGNED_OUT_MAX: usize = 10_000;
/// Names by which a machine calls itself.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Person or program that asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Caller {
    /// Name of the token.
    pub name: String,
    /// Role of the token.
    pub role: TokenRole,
    /// Value of the header that changes need beside a cookie; empty without a session.
    pub csrf: String,
}

/// Session of a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Session {
    /// Time when it ends, in seconds since 1970.
    ends: u64,
    /// Place of its token among all tokens.
    place: usize,
    /// Random number, so that who signs in again is not out with the session before.
    number: u64,
}

/// Tokens that are taken, and names that the service is called by.
pub struct Access {
    tokens: Vec<Token>,
    /// Names of this machine and its address.
    own: Vec<String>,
    /// Names that the operator gives it besides.
    named: Vec<String>,
    /// Key that tokens are compared under, so that a comparison takes as long whatever differs.
    key: hmac::Key,
    wrong_tokens: WrongTokens,
    /// Sessions that were signed out before their end, and a time: all that end until then are out too.
    signed_out: Mutex<(BTreeSet<Session>, u64)>,
}

impl Access {
    /// Reads tokens from a file, `[[token]]` with `name`, `role` and `token`. Without one, only a service
    /// that listens on loopback is allowed, and everybody there may do everything. `wrong_tokens` is how many
    /// of them an address has in a minute before it is told to wait.
    ///
    /// # Errors
    ///
    /// I/O errors; corrupt for a file that is no such TOML, that has no token, or one that is too short or
    /// there twice; an invalid option where other machines could ask without a token.
    pub fn open(
        tokens: Option<&Path>,
        listen: IpAddr,
        hosts: &[String],
        wrong_tokens: usize,
    ) -> Result<Self> {
        let tokens = match tokens {
            None if !listen.is_loopback() => {
                return Err(Error::option(
                    "listen",
                    listen,
                    "an address of loopback, such as 127.0.0.1, where no `tokens` are given",
                ));
            }
            None => Vec::new(),
            Some(path) => read_tokens(path)?,
        };
        let mut own_names: Vec<String> = OWN_NAMES.iter().map(|&name| name.to_owned()).collect();
        if !listen.is_unspecified() {
            own_names.push(listen.to_string());
        }
        let named = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        let random = ring::rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random)
            .map_err(|_| Error::corrupt("the system's source of random numbers", "it gives none"))?;
        let wrong_tokens = WrongTokens::new(wrong_tokens);
        Ok(Self { tokens, own: own_names, named, key, wrong_tokens, signed_out: Mutex::default() })
    }

    /// Whether there are several tokens.
    pub fn has_several(&self) -> bool {
        self.tokens.len() > 1
    }

    /// Finds who asks. A request of another site's page is refused, and so is one by cookie that changes
    /// something without the header of its session.
    ///
    /// # Errors
    ///
    /// 401 without a token or session that is taken, and 429 where the address has had too many wrong ones;
    /// 403 for another host, another origin, or a header that is missing.
    pub fn caller(
        &self,
        method: &Method,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Caller, ProblemDetails> {
        self.expect_own_page(headers)?;
        if self.tokens.is_empty() {
            return Ok(Caller { name: "anybody".into(), role: TokenRole::Operate, csrf: String::new() });
        }
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            let token = value.to_str().ok().and_then(bearer);
            let token = token.and_then(|given| self.token(given)).ok_or_else(|| self.refusal(address))?;
            return Ok(Caller { name: token.name.clone(), role: token.role, csrf: String::new() });
        }
        let cookie = cookie(headers).ok_or_else(ProblemDetails::unauthorised)?;
        // A session is signed with its token, so a wrong one may be a guess at it.
        let (session, token) = self.session(cookie).ok_or_else(|| self.refusal(address))?;
        if session.ends <= now() || self.is_signed_out(&session) {
            return Err(ProblemDetails::unauthorised());
        }
        let csrf = signed(&token.secret, &format!("csrf {cookie}"));
        let is_safe = matches!(*method, Method::GET | Method::HEAD);
        let csrf_sent = headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !is_safe && !self.is_equal(csrf_sent, &csrf) {
            return Err(ProblemDetails::forbidden(format!(
                "a change by cookie needs the header {CSRF} of its session"
            )));
        }
        Ok(Caller { name: token.name.clone(), role: token.role, csrf })
    }

    /// Refuses what names another host, as a page does whose name was bound to this address, and what comes
    /// from a page of another site.
    ///
    /// # Errors
    ///
    /// 403.
    pub fn expect_own_page(&self, headers: &HeaderMap) -> Result<(), ProblemDetails> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = text(header::HOST).unwrap_or_default();
        if !authority(host).is_some_and(|name| self.own.contains(&name) || self.named.contains(&name)) {
            let refused =
                format!("this service is not called {host:?}; `--host` says what it is called besides");
            return Err(ProblemDetails::forbidden(refused));
        }
        // A page of another port of this machine is another site; a proxy's name may come with any port.
        let is_ours = |origin: &str| {
            let place = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
            place.is_some_and(|place| {
                place.eq_ignore_ascii_case(host)
                    || authority(place).is_some_and(|name| self.named.contains(&name))
            })
        };
        if text(header::ORIGIN).is_some_and(|origin| !is_ours(origin)) {
            return Err(ProblemDetails::forbidden("a page of another site asks"));
        }
        Ok(())
    }

    /// Begins a session for a token; gives the token's name and the cookie's value.
    ///
    /// # Errors
    ///
    /// 401 for a token that is not taken; 429 where the address has had too many of them; 500 without random
    /// numbers.
    pub fn sign_in(&self, token: &str, address: IpAddr) -> Result<(&str, String), ProblemDetails> {
        let token = self.token(token).ok_or_else(|| self.refusal(address))?;
        let ends = now() + SESSION_SECONDS;
        let place = self.tokens.iter().position(|other| other.name == token.name).unwrap_or(0);
        let random = ring::rand::generate::<[u8; 8]>(&ring::rand::SystemRandom::new())
            .map_err(|_| ProblemDetails::defect("the session", "the system gives no random number"))?;
        let session = format!("{place}.{ends}.{}", u64::from_be_bytes(random.expose()));
        let tag = signed(&token.secret, &session);
        Ok((token.name.as_str(), format!("{session}.{tag}")))
    }

    /// Whether a session was signed out.
    fn is_signed_out(&self, session: &Session) -> bool {
        let (sessions, until) = &*self.signed_out.lock().unwrap_or_else(PoisonError::into_inner);
        session.ends <= *until || sessions.contains(session)
    }

    /// Ends the session of a request's cookie, for all clients that have the cookie still.
    pub fn sign_out(&self, headers: &HeaderMap) {
        let Some((session, _)) = cookie(headers).and_then(|cookie| self.session(cookie)) else { return };
        let (sessions, until) = &mut *self.signed_out.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(session);
        // None comes back: where there is no room for one, all that are as old are out.
        if sessions.len() > SIGNED_OUT_MAX
            && let Some(first) = sessions.pop_first()
        {
            *until = first.ends;
        }
    }

    /// Counts a wrong token; gives the problem that answers it.
    fn refusal(&self, address: IpAddr) -> ProblemDetails {
        self.wrong_tokens.refusal(address, rehang_clock::now())
    }

    /// Finds the session that a cookie is signed for, and its token.
    fn session(&self, cookie: &str) -> Option<(Session, &Token)> {
        let (text, tag) = cookie.rsplit_once('.')?;
        let (place, rest) = text.split_once('.')?;
        let (ends, number) = rest.split_once('.')?;
        let (ends, place, number) = (ends.parse().ok()?, place.parse().ok()?, number.parse().ok()?);
        let session = Session { ends, place, number };
        let token = self.tokens.get(session.place)?;
        self.is_equal(tag, &signed(&token.secret, text)).then_some((session, token))
    }

    /// Finds a token; every one is compared, so that the time tells nothing.
    fn token(&self, given: &str) -> Option<&Token> {
        self.tokens
            .iter()
            .fold(None, |found, token| if self.is_equal(given, &token.secret) { Some(token) } else { found })
    }

    fn is_equal(&self, given: &str, wanted: &str) -> bool {
        let tag = hmac::sign(&self.key, wanted.as_bytes());
        hmac::verify(&self.key, given.as_bytes(), tag.as_ref()).is_ok()
    }
}

/// Returns the name in `NAME:PORT`, in lower case and without a dot at its end; `None` where it is none.
fn authority(host: &str) -> Option<String> {
    let authority: Authority = host.parse().ok()?;
    let port = authority.as_str().strip_prefix(authority.host())?;
    // RFC 3986 lets a port be empty.
    if !matches!(port, "" | ":") && authority.port_u16().is_none() {
        return None;
    }
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    Some(name.trim_end_matches('.').to_ascii_lowercase())
}

fn read_tokens(path: &Path) -> Result<Vec<Token>> {
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("open", path, &error))?;
    let wrong = |detail: String| Error::corrupt(path.display(), detail);
    let tokens = toml::from_str::<TokensFile>(&text).map_err(|error| wrong(told(&text, &error)))?.token;
    if tokens.is_empty() {
        return Err(wrong("it has no [[token]]".into()));
    }
    for (place, token) in tokens.iter().enumerate() {
        if token.secret.chars().count() < TOKEN_CHARACTERS_MIN {
            let detail =
                format!("the token {:?} has fewer than {TOKEN_CHARACTERS_MIN} characters", token.name);
            return Err(wrong(detail));
        }
        let is_again = |other: &Token| other.name == token.name || other.secret == token.secret;
        if tokens[..place].iter().any(is_again) {
            return Err(wrong(format!("the token {:?} is there twice, by its name or itself", token.name)));
        }
    }
    Ok(tokens)
}

/// Words the fault of a file of tokens by its line, without the line itself: secrets stand there.
fn told(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| 1 + before.matches('\n').count());
    // A message that quotes a value may quote a token.
    let is_quoting = error.message().contains("invalid type") || error.message().contains("unknown variant");
    let fault = if is_quoting {
        "a token has a name, a role (read, write or operate) and a token, each a text"
    } else {
        error.message()
    };
    format!("line {line}: {fault}")
}

/// Time of day, in seconds since 1970.
fn now() -> u64 {
    rehang_clock::unix_ms() / 1000
}

/// Signs a text with a token.
fn signed(token: &str, text: &str) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes()), text.as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the token of `Bearer TOKEN`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get(header::COOKIE)?.to_str().ok()?;
    all.split(';').find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let all = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        all.chain([(header::HOST, "127.0.0.1:7878".parse().unwrap())]).collect()
    }

    fn access(text: &str) -> Result<Access> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        fs_err::write(&path, text).unwrap();
        Access::open(Some(&path), HERE, &["Search.Example".into()], 10)
    }

    const TOKENS: &str = r#"
        [[token]]
        name = "app"
        role = "read"
        token = "0123456789abcdef"
        [[token]]
        name = "ops"
        role = "operate"
        token = "fedcba9876543210"
    "#;

    #[test]
    fn a_token_is_told_from_all_others() {
        let access = access(TOKENS).unwrap();
        let ask = |value: &str| access.caller(&Method::POST, &headers(&[("authorization", value)]), HERE);
        assert_eq!(ask("Bearer 0123456789abcdef").unwrap().role, TokenRole::Read);
        assert_eq!(ask("Bearer fedcba9876543210").unwrap().name, "ops");
        for wrong in ["Bearer 0123456789abcdeg", "Bearer ", "0123456789abcdef", "Bearer 0123456789abcdef0"] {
            assert_eq!(ask(wrong).unwrap_err().status, 401, "{wrong}");
        }
        assert_eq!(access.caller(&Method::GET, &headers(&[]), HERE).unwrap_err().status, 401);
    }

    #[test]
    fn a_session_reads_by_its_cookie_and_changes_with_its_header_alone() {
        let access = access(TOKENS).unwrap();
        let (name, value) = access.sign_in("fedcba9876543210", HERE).unwrap();
        assert_eq!(name, "ops");
        let cookie = format!("other=1; {COOKIE}={value}");
        let ask = |method: &Method, csrf: &str| {
            access.caller(method, &headers(&[("cookie", &cookie), (CSRF, csrf)]), HERE)
        };
        let caller = ask(&Method::GET, "").unwrap();
        assert_eq!((caller.name.as_str(), caller.role), ("ops", TokenRole::Operate));
        assert_eq!(ask(&Method::POST, "").unwrap_err().status, 403);
        assert!(ask(&Method::POST, &caller.csrf).is_ok());
        // Another end, or another token, needs another tag.
        let tag = value.rsplit_once('.').unwrap().1;
        for forged in [format!("1.99999999999.{tag}"), format!("0.{}", value.split_once('.').unwrap().1)] {
            let cookie = format!("{COOKIE}={forged}");
            assert_eq!(
                access.caller(&Method::GET, &headers(&[("cookie", &cookie)]), HERE).unwrap_err().status,
                401
            );
        }
        assert!(access.sign_in("fedcba987654321", HERE).is_err());
        access.sign_out(&headers(&[("cookie", &cookie)]));
        assert_eq!(ask(&Method::GET, "").unwrap_err().status, 401, "whoever kept the cookie is out");
        // Within the same second, too.
        let again = format!("{COOKIE}={}", access.sign_in("fedcba9876543210", HERE).unwrap().1);
        assert!(access.caller(&Method::GET, &headers(&[("cookie", &again)]), HERE).is_ok());
    }

    #[test]
    fn of_many_sessions_that_are_signed_out_none_comes_back() {
        let access = access(TOKENS).unwrap();
        let sign_in = || format!("{COOKIE}={}", access.sign_in("0123456789abcdef", HERE).unwrap().1);
        let out: Vec<String> = (0..=SIGNED_OUT_MAX).map(|_| sign_in()).collect();
        for cookie in &out {
            access.sign_out(&headers(&[("cookie", cookie)]));
        }
        let is_out = |cookie: &String| {
            let caller = access.caller(&Method::GET, &headers(&[("cookie", cookie)]), HERE);
            caller.is_err_and(|problem| problem.status == 401)
        };
        assert!(out.iter().all(is_out));
    }

    #[test]
    fn a_session_ends_by_itself() {
        let access = access(TOKENS).unwrap();
        let status = |ends: u64| {
            let session = format!("1.{ends}.7");
            let tag = signed("fedcba9876543210", &session);
            let cookie = format!("{COOKIE}={session}.{tag}");
            let caller = access.caller(&Method::GET, &headers(&[("cookie", &cookie)]), HERE);
            caller.map_or_else(|problem| problem.status, |_| 200)
        };
        assert_eq!([now() + 60, now()].map(status), [200, 401]);
    }

    #[test]
    fn other_names_and_other_sites_are_refused() {
        let access = access(TOKENS).unwrap();
        let host = |name: &str| {
            let mut given = headers(&[]);
            given.insert(header::HOST, name.parse().unwrap());
            access.expect_own_page(&given).is_ok()
        };
        for own in ["localhost:7878", "127.0.0.1:", "[::1]:7878", "search.example", "localhost."] {
            assert!(host(own), "{own}");
        }
        for other in ["evil.example", "", "127.0.0.1.evil.example", "localhost:evil.example", "[::1"] {
            assert!(!host(other), "{other}");
        }
        let origin = |name: &str| access.expect_own_page(&headers(&[("origin", name)])).is_ok();
        assert!(origin("https://search.example") && origin("http://127.0.0.1:7878"));
        for other in ["https://evil.example", "null", "http://localhost:3000", "x://127.0.0.1:7878"] {
            assert!(!origin(other), "{other}");
        }
    }

    #[test]
    fn a_file_of_tokens_is_refused_with_its_fault() {
        let said = |text: &str| access(text).err().unwrap().to_string();
        assert!(said("").contains("token"));
        assert!(said("token = []").contains("no [[token]]"));
        let open_quote = said("[[token]]\nname = \"a\"\ntoken = \"secretsecretsecret\n");
        assert!(open_quote.contains("line 3") && !open_quote.contains("secret"), "{open_quote}");
        for quoting in ["role = \"secretsecretsecret\"", "role = \"read\"\ntoken = 1234567890123456"] {
            let fault = said(&format!("[[token]]\nname = \"a\"\n{quoting}\n"));
            assert!(
                !fault.contains("secret") && !fault.contains("123456") && fault.contains("line"),
                "{fault}"
            );
        }
        let short = said("[[token]]\nname = \"a\"\nrole = \"read\"\ntoken = \"short\"");
        assert!(short.contains("fewer than 16") && !short.contains("short\""), "{short}");
        assert!(said(&TOKENS.replace("fedcba9876543210", "0123456789abcdef")).contains("twice"));
        let open = Access::open(None, "0.0.0.0".parse().unwrap(), &[], 10);
        assert!(open.err().unwrap().to_string().contains("loopback"));
    }
}
