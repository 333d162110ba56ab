//! Connections of a service: taken one by one, with a limit on how many there are and on how long each may
//! take to say what it wants.

use std::future::Future;
use std::io::IoSlice;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

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
/// Time that a connection has for its handshake, and for the head of each request, where it has taken one of
/// the last places: idle ones then make room for whoever asks. Nobody is turned away by address, since all
/// callers behind a proxy share one.
const SHORT: Duration = Duration::from_secs(2);
/// Bytes of an answer that the other end takes in a second at least, once the time of a write has passed.
const TAKEN_A_SECOND: f64 = 10_000.0;
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
    /// Number of connections at the same time.
    places: usize,
}

impl Connections {
    pub fn new(
        listener: TcpListener,
        certificate: Option<Arc<Certificate>>,
        app: Router,
        head: Duration,
    ) -> Self {
        Self { listener, certificate, app, head, places: CONNECTIONS_MAX }
    }

    /// Serves connections until `until` is over; requests that are under way have `grace` then.
    pub async fn serve(self, until: impl Future<Output = ()>, grace: Duration) {
        let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(self.places)));
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
                let (app, watcher) = (self.app.clone(), graceful.watcher());
                let is_short = places.available_permits() < self.places / 4;
                let handshake = if is_short { SHORT } else { HANDSHAKE };
                let head = if is_short { SHORT.min(self.head) } else { self.head };
                let within = Within { head, write: self.head };
                let peer = Peer(address.ip());
                let acceptor = self.certificate.as_ref().map(|certificate| certificate.acceptor());
                tokio::spawn(async move {
                    let _held = place;
                    match acceptor {
                        None => answer(stream, peer, app, within, watcher).await,
                        Some(acceptor) => {
                            let stream = tokio::time::timeout(handshake, acceptor.accept(stream)).await;
                            if let Ok(Ok(stream)) = stream {
                                answer(stream, peer, app, within, watcher).await;
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

/// Time limits of a connection.
#[derive(Clone, Copy)]
struct Within {
    /// Time that the head of a request may take.
    head: Duration,
    /// Time that the other end may take nothing of an answer.
    write: Duration,
}

/// Stream that ends with an error where the other end takes nothing for a while, or too little for longer: an
/// answer that nobody reads would hold its connection and its memory for ever.
struct Taken<S> {
    stream: S,
    within: Duration,
    /// Time when the answer that is being written began, and bytes of it that were taken since.
    answer: Option<(Instant, usize)>,
    /// Time when the write that waits has waited for long enough.
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    fn new(stream: S, within: Duration) -> Self {
        Self { stream, within, answer: None, ends: None }
    }

    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if written.is_ready() {
            self.ends = None;
            return written;
        }
        let (now, within) = (rehang_clock::now(), self.within);
        let (began, bytes) = *self.answer.get_or_insert((now, 0));
        let ends = self.ends.get_or_insert_with(|| {
            // A client that takes little again and again has as long as all its bytes may take.
            let of_bytes = Duration::from_secs_f64(bytes as f64 / TAKEN_A_SECOND);
            let rest = within.saturating_add(of_bytes).saturating_sub(now.duration_since(began));
            Box::pin(tokio::time::sleep(rest.min(within)))
        });
        ends.as_mut().poll(context).map(|()| Err(std::io::ErrorKind::TimedOut.into()))
    }

    /// Watches a write, and counts what is taken of the answer.
    fn counted(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<std::io::Result<usize>>,
    ) -> Poll<std::io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            let answer = self.answer.get_or_insert_with(|| (rehang_clock::now(), 0));
            answer.1 = answer.1.saturating_add(*bytes);
        }
        self.watched(context, written)
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
        self.counted(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.counted(context, written)
    }

    /// Says what the stream says: an answer is then written as it is, and not copied first, so that it keeps
    /// its place until it is sent.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // An answer is flushed when all of it is written.
        if flushed.is_ready() {
            self.answer = None;
        }
        self.watched(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watched(context, shut)
    }
}

/// Answers the requests of a connection.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    app: Router,
    within: Within,
    watcher: Watcher,
) {
    let app = TowerToHyperService::new(app);
    let with_peer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(within.head)
        .serve_connection(TokioIo::new(Taken::new(stream, within.write)), with_peer);
    // An error is of the other end, which hears of it.
    drop(watcher.watch(connection).await);
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;

    use axum::routing::get;

    use super::*;

    /// Stream that takes one byte at a time, and after a while each.
    struct Slow(Pin<Box<Sleep>>);

    const A_WHILE: Duration = Duration::from_millis(5);

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            std::task::ready!(self.0.as_mut().poll(context));
            self.0 = Box::pin(tokio::time::sleep(A_WHILE));
            Poll::Ready(Ok(1))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn an_answer_that_is_taken_byte_by_byte_has_an_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let outcome = runtime.block_on(async {
            let slow = Slow(Box::pin(tokio::time::sleep(A_WHILE)));
            let mut taken = Taken::new(slow, 20 * A_WHILE);
            for _ in 0..10_000 {
                std::future::poll_fn(|context| Pin::new(&mut taken).poll_write(context, b"answer")).await?;
            }
            Ok::<(), std::io::Error>(())
        });
        assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }

    #[test]
    fn idle_connections_make_room_for_who_asks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(async || "here"));
        let mut connections = Connections::new(listener, None, app, Duration::from_hours(1));
        connections.places = 4;
        let (ends, end) = tokio::sync::oneshot::channel::<()>();
        let serves = std::thread::spawn(move || {
            runtime.block_on(connections.serve(async { drop(end.await) }, Duration::ZERO));
        });
        let idle: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut asks = TcpStream::connect(address).unwrap();
        asks.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
        asks.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut first = String::new();
        BufReader::new(asks).read_line(&mut first).unwrap();
        assert_eq!(first, "HTTP/1.1 200 OK\r\n");
        drop((idle, ends));
        serves.join().unwrap();
    }
}
