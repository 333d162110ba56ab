//! Connections of a service: taken one by one, with a limit on how many there are and on how long each may
//! take to say what it wants.

use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use futures_util::future::select;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Sleep;

use crate::tls::Certificate;

/// Largest number of connections at the same time; more wait to be taken.
const CONNECTIONS_MAX: usize = 4096;
/// Time that a handshake of TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Rest after a connection could not be taken, as where the process has no file descriptor left.
const REST: Duration = Duration::from_millis(100);

/// Address that a request came from; each request has it as an extension.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Source of connections, and what answers them.
pub struct Connections {
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    app: Router,
    /// Time that the head of a request may take.
    head: Duration,
}

impl Connections {
    pub fn new(
        listener: TcpListener,
        certificate: Option<Arc<Certificate>>,
        app: Router,
        head: Duration,
    ) -> Self {
        Self { listener, certificate, app, head }
    }

    /// Serves connections until `until` is over; requests that are under way have `grace` then.
    pub async fn serve(self, until: impl Future<Output = ()>, grace: Duration) {
        let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        let taking = async {
            loop {
                // The semaphore is never closed.
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                let Ok((stream, address)) = self.listener.accept().await else {
                    tokio::time::sleep(REST).await;
                    continue;
                };
                // An answer waits for no other one to share its packet; where that is refused it comes later.
                drop(stream.set_nodelay(true));
                let (app, head, watcher) = (self.app.clone(), self.head, graceful.watcher());
                let peer = Peer(address.ip());
                let acceptor = self.certificate.as_ref().map(|certificate| certificate.acceptor());
                tokio::spawn(async move {
                    let _held = place;
                    match acceptor {
                        None => answer(stream, peer, app, head, watcher).await,
                        Some(acceptor) => {
                            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
                            if let Ok(Ok(stream)) = handshake {
                                answer(stream, peer, app, head, watcher).await;
                            }
                        }
                    }
                });
            }
        };
        select(pin!(taking), pin!(until)).await;
        drop(self.listener);
        drop(tokio::time::timeout(grace, graceful.shutdown()).await);
    }
}

/// Stream that ends with an error where the other end takes nothing for a while: an answer that nobody reads
/// would hold its connection and its memory for ever.
struct Taken<S> {
    stream: S,
    within: Duration,
    /// Time when the write that waits has waited for long enough.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if written.is_ready() {
            self.ends = None;
            return written;
        }
        let ends = self.ends.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.within)));
        ends.as_mut().poll(context).map(|()| Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watched(context, shut)
    }
}

/// Answers the requests of a connection. The head of a request, and each part of an answer, may take `head`.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    app: Router,
    head: Duration,
    watcher: Watcher,
) {
    let app = TowerToHyperService::new(app);
    let with_peer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .serve_connection(TokioIo::new(Taken { stream, within: head, ends: None }), with_peer);
    // An error is of the other end, which hears of it.
    drop(watcher.watch(connection).await);
}
