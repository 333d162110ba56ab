//! A server on this machine that speaks TLS. Its certificate is for `localhost`, signed by an authority that
//! nobody trusts. Both certificates are for tests alone, were made by `openssl ca`, and last until 2120.

#![allow(dead_code, reason = "the tests of several crates include this, and not all use all of it")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const AUTHORITY: &str = include_str!("../certificates/authority.pem");
const CERTIFICATE: &str = include_str!("../certificates/server.pem");
const KEY: &str = include_str!("../certificates/server.key");

/// A connection over TLS.
pub type Stream = StreamOwned<ServerConnection, TcpStream>;

/// A TLS server that ends with the process.
pub struct TlsServer {
    /// Port of the server on this machine.
    pub port: u16,
    connections: Arc<AtomicUsize>,
}

impl TlsServer {
    /// Starts a server of HTTP. Its body is what `answer` makes of the first line and the body of a request,
    /// with status 200.
    pub fn http(answer: impl Fn(&str, &[u8]) -> String + Send + Sync + 'static) -> Self {
        Self::start(move |stream| {
            let mut stream = BufReader::new(secure(stream)?);
            loop {
                let mut first = String::new();
                if stream.read_line(&mut first)? == 0 {
                    return Ok(());
                }
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line)?;
                    let line = line.trim().to_ascii_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap_or(0);
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body)?;
                let said = answer(first.trim(), &body);
                let whole = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{said}", said.len());
                stream.get_mut().write_all(whole.as_bytes())?;
                stream.get_mut().flush()?;
            }
        })
    }

    /// Starts a server that calls `serve` with each connection.
    pub fn start(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                // A client that trusts nobody ends the connection.
                thread::spawn(move || drop(serve(stream)));
            }
        });
        Self { port, connections }
    }

    /// Address of the server, with the name that is in its certificate.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Number of connections that came so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Takes a connection through its TLS handshake.
pub fn secure(stream: TcpStream) -> io::Result<Stream> {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate], key))
        .unwrap();
    let connection = ServerConnection::new(Arc::new(config)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.conn.complete_io(&mut stream.sock)?;
    Ok(stream)
}

/// Writes the authority's certificate into a folder and returns its file.
pub fn authority(folder: &Path) -> PathBuf {
    let path = folder.join("authority.pem");
    fs_err::write(&path, AUTHORITY).unwrap();
    path
}
