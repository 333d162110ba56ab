//! Verbs of an upgrade over HTTP: searches and writes that are right at every stage, the steps of an upgrade
//! as operations to follow, metrics, and a dashboard.
//!
//! This crate is a face: a request is a call of [`rehang_upgrade::Upgrade`] or [`rehang_upgrade::Gallery`].
//! Nothing else here listens, or knows axum; every verb runs on a thread of its own. What a service records
//! (operations and the trail of changes) lies in the gallery, so that several services of one gallery see
//! the same, and each goes on with what a dead one has begun.

mod access;
mod addresses;
mod answers;
mod api;
mod connections;
mod events;
mod metrics;
mod operations;
mod options;
mod page;
mod problem;
mod routes;
mod service;
mod tls;
mod turns;
mod wrong_tokens;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rehang_core::{Error, ErrorKind, Progress, Result};
use rehang_upgrade::Upgrade;
use tokio::net::TcpListener;

pub use access::TokenRole;
use connections::Connections;
pub use options::{ServeLimits, ServeOptions};
pub use problem::ProblemDetails;
use service::Service;
use tls::Certificate;

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
const CERTIFICATES_LOOK: Duration = Duration::from_secs(5);

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
    let served = runtime.block_on(listen(&service, options, stop, listening));
    service.stop();
    // A request that hangs in a database or at an encoder does not hold the process.
    runtime.shutdown_timeout(LOOK);
    for thread in served? {
        // A panic was reported by its thread.
        drop(thread.join());
    }
    Ok(())
}

/// Listens until the service is to end; gives the threads beside it.
async fn listen(
    service: &Arc<Service>,
    options: &ServeOptions,
    stop: &Progress,
    listening: impl FnOnce(SocketAddr) + Send,
) -> Result<Vec<JoinHandle<()>>> {
    let address = options.listen;
    let taken = |error: std::io::Error| -> Error {
        ErrorKind::Unavailable { service: format!("the address {address}"), detail: error.to_string() }.into()
    };
    let certificate = options.certificate.as_ref().map(Certificate::read).transpose()?;
    let listener = TcpListener::bind(address).await.map_err(taken)?;
    let local = listener.local_addr().map_err(taken)?;
    let background = service.spawn_background(options.follow);
    listening(local);
    let app = routes::router(service);
    let head = Duration::from_secs(options.limits.seconds);
    let connections = Connections::new(listener, certificate.clone(), app, head);
    let mut looked = rehang_clock::now();
    let mut reading: Option<tokio::task::JoinHandle<()>> = None;
    let until_stopped = async {
        while stop.check().is_ok() {
            tokio::time::sleep(LOOK).await;
            if let Some(certificate) = &certificate
                && looked.elapsed() >= CERTIFICATES_LOOK
                && reading.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
            {
                looked = rehang_clock::now();
                let certificate = Arc::clone(certificate);
                // However long a file takes, connections are taken meanwhile.
                reading = Some(tokio::task::spawn_blocking(move || certificate.read_again()));
            }
        }
        service.begins_to_stop();
    };
    connections.serve(until_stopped, GRACE).await;
    Ok(background)
}
