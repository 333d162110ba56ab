//! Verbs of an upgrade over HTTP: searches and writes that are right at every stage, the steps of an upgrade
//! as operations to follow, metrics, and a dashboard.
//!
//! This crate is a face: a request is a call of [`rehang_upgrade::Upgrade`] or [`rehang_upgrade::Gallery`].
//! tokio and axum are here and nowhere else; every verb runs on a thread of its own. What a service records
//! (operations and the trail of changes) lies in the gallery, so that several services of one gallery see
//! the same, and each goes on with what a dead one has begun.

mod access;
mod api;
mod metrics;
mod operations;
mod page;
mod problem;
mod routes;
mod service;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use rehang_core::{Error, ErrorKind, Progress, Result};
use rehang_upgrade::Upgrade;

pub use access::Role;
pub use problem::Problem;
use service::Service;

/// Options of [`serve`].
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
    /// Whether the service follows the gallery too, as `run --follow` does.
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
/// | Name | Default | Purpose |
/// |---|---|---|
/// | `body` | 8 MiB | bytes of a body; more is answered with 413 |
/// | `seconds` | 30 | how long a request may take; longer is answered with 503 |
/// | `at_once` | 16 | requests that ask the gallery at the same time |
/// | `waiting` | 64 | requests that wait for one of these; more are answered with 503 |
/// | `rate` | none | requests a second of one token; more are answered with 429 |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServeLimits {
    /// Bytes of a request's body, at most.
    pub body: usize,
    /// Seconds that a request may take, and a connection to send its head.
    pub seconds: u64,
    /// Requests that ask the gallery at the same time.
    pub at_once: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests a second of one token, at most.
    pub rate: Option<f64>,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self { body: 8 << 20, seconds: 30, at_once: 16, waiting: 64, rate: None }
    }
}

/// Writes the log of a service on stderr, as text or as lines of JSON. `RUST_LOG` says how much of it; by
/// default notes of rehang, and warnings of everything else.
pub fn log_to_stderr(json: bool) {
    use tracing_subscriber::{EnvFilter, fmt};

    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,rehang_serve=info"));
    let log = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error says that the process has a log already.
    if json { drop(log.json().try_init()) } else { drop(log.try_init()) }
}

/// Time that requests which are under way have when the service ends.
const GRACE: Duration = Duration::from_secs(10);
/// Time between two looks whether the service is to end, and whether certificates have changed.
const LOOK: Duration = Duration::from_millis(100);
const CERTIFICATES_LOOK: Duration = Duration::from_mins(1);

/// Serves an upgrade until `stop` is [cancelled](Progress::cancel). `listening` is told the address.
///
/// Requests that are under way are answered first, and what is at an encoder is written. Operations are left
/// as running: the next service of the gallery goes on with them.
///
/// # Errors
///
/// Unavailable where the address cannot be listened on; corrupt for a certificate, a key or a file of tokens
/// that is none; an invalid option where other machines could ask without a token.
pub fn serve(
    upgrade: Upgrade,
    options: &ServeOptions,
    stop: &Progress,
    listening: impl FnOnce(SocketAddr) + Send,
) -> Result<()> {
    let service = Service::new(upgrade, options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::io("start threads for", "the service", &error))?;
    let background = service.spawn_background(options.follow);
    let served = runtime.block_on(listen(&service, options, stop, listening));
    service.stop();
    for thread in background {
        // A panic was reported by its thread.
        drop(thread.join());
    }
    served
}

async fn listen(
    service: &Arc<Service>,
    options: &ServeOptions,
    stop: &Progress,
    listening: impl FnOnce(SocketAddr) + Send,
) -> Result<()> {
    let address = options.listen;
    let taken = |error: std::io::Error| -> Error {
        ErrorKind::Unavailable { service: format!("the address {address}"), detail: error.to_string() }.into()
    };
    let listener = std::net::TcpListener::bind(address).map_err(taken)?;
    listener.set_nonblocking(true).map_err(taken)?;
    let tls = match &options.certificate {
        Some(files) => Some((tls_config(files).await?, files.clone())),
        None => None,
    };
    listening(listener.local_addr().map_err(taken)?);
    let handle = Handle::new();
    let ending =
        tokio::spawn(end_when_stopped(handle.clone(), stop.clone(), Arc::clone(service), tls.clone()));
    let app = routes::router(service, options.limits).into_make_service();
    let served = match tls {
        None => axum_server::from_tcp(listener).map_err(taken)?.handle(handle).serve(app).await,
        Some((config, _)) => {
            axum_server::from_tcp_rustls(listener, config).map_err(taken)?.handle(handle).serve(app).await
        }
    };
    ending.abort();
    served.map_err(taken)
}

/// Ends the server in order when it is asked to, and reads certificates again that have changed.
async fn end_when_stopped(
    handle: Handle<SocketAddr>,
    stop: Progress,
    service: Arc<Service>,
    tls: Option<(RustlsConfig, (PathBuf, PathBuf))>,
) {
    let (mut looked, mut stamp) = (rehang_clock::now(), tls.as_ref().map(|(_, files)| changed(files)));
    while stop.check().is_ok() {
        tokio::time::sleep(LOOK).await;
        let Some((config, files)) = &tls else { continue };
        if looked.elapsed() < CERTIFICATES_LOOK {
            continue;
        }
        looked = rehang_clock::now();
        let stamp_now = Some(changed(files));
        if stamp_now != stamp {
            stamp = stamp_now;
            match config.reload_from_pem_file(&files.0, &files.1).await {
                Ok(()) => tracing::info!(certificate = %files.0.display(), "read again"),
                Err(error) => tracing::error!(certificate = %files.0.display(), %error, "the old one stays"),
            }
        }
    }
    service.begins_to_stop();
    handle.graceful_shutdown(Some(GRACE));
}

/// Returns when both files of a certificate were changed last.
fn changed((chain, key): &(PathBuf, PathBuf)) -> [Option<std::time::SystemTime>; 2] {
    [chain, key].map(|path| fs_err::metadata(path).and_then(|of| of.modified()).ok())
}

async fn tls_config((chain, key): &(PathBuf, PathBuf)) -> Result<RustlsConfig> {
    // An error where one is installed already, which serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    RustlsConfig::from_pem_file(chain, key)
        .await
        .map_err(|error| Error::corrupt(format!("{} or {}", chain.display(), key.display()), error))
}
