//! Options of a service, and limits on its requests.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Options of [`serve`](crate::serve()).
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address that the service listens on; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Names that the service is called by beside its address, as a proxy or a DNS name has it.
    pub hosts: Vec<String>,
    /// File of tokens with their roles; `None` is for loopback alone.
    pub tokens: Option<PathBuf>,
    /// Files of the certificate chain and of its key, in PEM, for TLS. They are read again when they change.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether the service follows the gallery too, as `run --follow` does, from the switch on.
    pub follow: bool,
    /// Limits on requests.
    pub limits: ServeLimits,
}

impl ServeOptions {
    /// Options for an address, with every other one left at its default.
    pub fn new(listen: SocketAddr) -> Self {
        let limits = ServeLimits::default();
        Self { listen, hosts: Vec::new(), tokens: None, certificate: None, follow: false, limits }
    }
}

/// Limits on requests, so that no queue grows without end.
///
/// Turns to ask the gallery, places to wait and room for bodies are there three times: for routes without a
/// role, for those of the role `read`, and for all others. Where there are several tokens, each may have half.
///
/// | Name | Default | Purpose |
/// |---|---|---|
/// | `body` | 8 MiB | bytes of a body; more is answered with 413; bodies that wait have `at_once + waiting` times as many together, and more are answered with 503 |
/// | `seconds` | 30 | how long a body may come (then 408), a request waits for its turn (503: nothing is done) and its work is waited for (504: a change goes on) |
/// | `at_once` | 16 | requests that ask the gallery at the same time |
/// | `waiting` | 64 | requests that wait for one of these; more are answered with 503 |
/// | `rate` | none | requests a second of one token; more are answered with 429 |
/// | `streams` | 64 | streams of events that are open at the same time; more are answered with 503 |
/// | `wrong_tokens` | 10 | wrong tokens of one address in a minute; more are answered with 429, a right one never |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServeLimits {
    /// Bytes of a request's body, at most.
    pub body: usize,
    /// Seconds that a body, a turn and the work may take each, and a connection to send its head.
    pub seconds: u64,
    /// Requests that ask the gallery at the same time.
    pub at_once: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests a second of one token, at most.
    pub rate: Option<f64>,
    /// Streams of events that are open at the same time.
    pub streams: usize,
    /// Wrong tokens of one address in a minute.
    pub wrong_tokens: usize,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            body: 8 << 20,
            seconds: 30,
            at_once: 16,
            waiting: 64,
            rate: None,
            streams: 64,
            wrong_tokens: 10,
        }
    }
}
