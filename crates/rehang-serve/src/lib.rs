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
mod options;
mod page;
mod problem;
mod routes;
mod service;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rehang_core::{Error, ErrorKind, Progress, Result};
use rehang_upgrade::Upgrade;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use access::TokenRole;
pub use options::{ServeLimits, ServeOptions};
pub use problem::ProblemDetails;
use service::Service;
use tls::{Certificate, TlsListener};

/// Writes the log of a service on stderr, as text or as lines of JSON. `RUST_LOG` says how much of it; by
/// default notes of rehang, and warnings of everything else.
pub fn log_to_stderr(json: bool) {
    use tracing_subscriber::{EnvFilter, fmt};

    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,rehang_serve=info"));
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(is_terminal);
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
    let certificate = options.certificate.as_ref().map(Certificate::read).transpose()?;
    let listener = TcpListener::bind(address).await.map_err(taken)?;
    listening(listener.local_addr().map_err(taken)?);
    let (ends, mut ended) = watch::channel(false);
    let ending = tokio::spawn(end_when_stopped(stop.clone(), Arc::clone(service), certificate.clone(), ends));
    let app = routes::router(service, options.limits);
    let mut asked_to_end = ended.clone();
    let shut_down = async move { drop(asked_to_end.wait_for(|ends| *ends).await) };
    let serving = async {
        match certificate {
            None => axum::serve(listener, app).with_graceful_shutdown(shut_down).await,
            Some(certificate) => {
                let listener = TlsListener::new(listener, certificate).map_err(std::io::Error::other)?;
                axum::serve(listener, app).with_graceful_shutdown(shut_down).await
            }
        }
    };
    // Who holds a connection open does not hold the service.
    let overdue = async {
        drop(ended.wait_for(|ends| *ends).await);
        tokio::time::sleep(GRACE).await;
    };
    let served = tokio::select! {
        served = serving => served,
        () = overdue => Ok(()),
    };
    ending.abort();
    served.map_err(taken)
}

/// Ends the server in order when it is asked to, and reads certificates again that have changed.
async fn end_when_stopped(
    stop: Progress,
    service: Arc<Service>,
    certificate: Option<Arc<Certificate>>,
    ends: watch::Sender<bool>,
) {
    let mut looked = rehang_clock::now();
    while stop.check().is_ok() {
        tokio::time::sleep(LOOK).await;
        if let Some(certificate) = &certificate
            && looked.elapsed() >= CERTIFICATES_LOOK
        {
            looked = rehang_clock::now();
            certificate.read_again();
        }
    }
    service.begins_to_stop();
    ends.send_replace(true);
    // The channel has to last until the server has heard.
    ends.closed().await;
}
