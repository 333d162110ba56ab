//! A service that speaks TLS itself: over `https` alone, and with whichever certificate its files have.
//!
//! The first certificate is the one of `rehang-connect`'s tests, which an authority has signed. The renewed
//! one is signed by its own key: it was made by `openssl ca` for these tests alone, and lasts until 2120 too.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rehang_core::Progress;
use rehang_serve::{ServeOptions, serve};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::{PATIENCE, Served, upgrade, wait_for};

const AUTHORITY: &str = include_str!("../../../rehang-connect/tests/certificates/authority.pem");
const FIRST: [&str; 2] = [
    include_str!("../../../rehang-connect/tests/certificates/server.pem"),
    include_str!("../../../rehang-connect/tests/certificates/server.key"),
];
const RENEWED: [&str; 2] = [include_str!("renewed.pem"), include_str!("renewed.key")];

/// Reads a certificate.
fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Names the files of a certificate and of its key.
fn files(folder: &Path) -> [PathBuf; 2] {
    ["chain.pem", "key.pem"].map(|name| folder.join(name))
}

/// Writes the first certificate and its key, as of long ago: two writes may come within one tick of a file's
/// time. Gives both paths.
fn write_first(folder: &Path) -> (PathBuf, PathBuf) {
    let [chain, key] = files(folder);
    for (path, pem) in [&chain, &key].into_iter().zip(FIRST) {
        fs_err::write(path, pem).unwrap();
        let file = fs_err::OpenOptions::new().write(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    (chain, key)
}

/// Asks a service over TLS whether it is alive. Gives the first line of its answer, and its certificate.
fn ask(address: SocketAddr) -> (String, CertificateDer<'static>) {
    let mut roots = RootCertStore::empty();
    for pem in [AUTHORITY, RENEWED[0]] {
        roots.add(certificate(pem)).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = String::new();
    BufReader::new(&mut stream).read_line(&mut first).unwrap();
    (first, stream.conn.peer_certificates().unwrap()[0].clone())
}

#[test]
fn it_answers_by_its_certificate_and_takes_a_renewed_one_while_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = write_first(folder.path());
    let named = (chain.clone(), key.clone());
    let served = Served::start(folder.path(), |options| options.certificate = Some(named));
    let answered = ("HTTP/1.1 200 OK\r\n".to_owned(), certificate(FIRST[0]));
    assert_eq!(ask(served.address), answered);

    // Without TLS nothing is answered, whatever the path.
    let mut plain = TcpStream::connect(served.address).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut said = Vec::new();
    // The connection may be reset.
    drop(plain.read_to_end(&mut said));
    assert!(!said.windows(5).any(|bytes| bytes == b"HTTP/"), "{said:?}");

    for (path, pem) in [&chain, &key].into_iter().zip(RENEWED) {
        fs_err::write(path, pem).unwrap();
    }
    let renewed = certificate(RENEWED[0]);
    // Whoever asks meanwhile is answered, by the one certificate or by the other.
    wait_for("the renewed certificate", || ask(served.address).1 == renewed);
    assert_eq!(ask(served.address).1, renewed);
    served.end();
}

#[cfg(unix)]
#[test]
fn what_is_no_file_keeps_no_certificate_from_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = write_first(folder.path());
    let named = (chain.clone(), key.clone());
    let served = Served::start(folder.path(), |options| options.certificate = Some(named));
    let replace = |path: &Path, put: &dyn Fn(&Path)| {
        fs_err::remove_file(path).unwrap();
        put(path);
    };
    // A pipe that nobody writes to, and a device that has no end.
    replace(&chain, &|path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    });
    replace(&key, &|path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap());
    let refused = |chain: &Path, key: &Path| {
        let mut options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
        options.certificate = Some((chain.to_path_buf(), key.to_path_buf()));
        let outcome = serve(upgrade(folder.path()), &options, &Progress::default(), |_| {
            panic!("nobody listens with them");
        });
        outcome.unwrap_err().to_string()
    };
    assert!(refused(&chain, &key).contains("it is no file"));
    assert!(refused(&key, &chain).contains("it is no file"));
    assert_eq!(ask(served.address).1, certificate(FIRST[0]));

    replace(&chain, &|path: &Path| fs_err::write(path, "#".repeat((1 << 20) + 1)).unwrap());
    replace(&key, &|path: &Path| fs_err::write(path, RENEWED[1]).unwrap());
    assert!(refused(&chain, &key).contains("more than 1 MiB"));
    fs_err::write(&chain, RENEWED[0]).unwrap();
    let renewed = certificate(RENEWED[0]);
    wait_for("the renewed certificate", || ask(served.address).1 == renewed);
    served.end();
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [chain, key] = files(folder.path());
    fs_err::write(&chain, FIRST[0]).unwrap();
    fs_err::write(&key, RENEWED[1]).unwrap();
    let mut options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
    options.certificate = Some((chain.clone(), key));
    let refused = serve(upgrade(folder.path()), &options, &Progress::default(), |_| {
        panic!("nobody listens with them");
    });
    let said = refused.unwrap_err().to_string();
    assert!(said.contains(&chain.display().to_string()), "{said}");
}
