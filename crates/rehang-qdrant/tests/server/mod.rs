//! A real Qdrant for tests: the server at `REHANG_QDRANT_URL`, or else the program at the path
//! `REHANG_QDRANT`, started on free ports in a temporary folder.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "tests wait for a server, and let time pass while it is away")]
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rehang_qdrant::QdrantAddress;
use serde_json::{Value, json};

pub struct Server {
    pub url: String,
    process: Option<Child>,
    ports: (u16, u16),
    folder: Option<tempfile::TempDir>,
}

impl Server {
    /// Starts a server of the test's own, which the test may kill; it wants a key where one is given. `None`
    /// where there is no program.
    pub fn start(key: Option<&str>) -> Option<Self> {
        Self::start_with(key, &[])
    }

    /// Starts a server of the test's own with settings, given as variables of its environment.
    pub fn start_with(key: Option<&str>, settings: &[(&str, &str)]) -> Option<Self> {
        let program = std::env::var("REHANG_QDRANT").ok()?;
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ports = (free(), free());
        let folder = tempfile::Builder::new().prefix("rehang-qdrant-").tempdir().unwrap();
        let mut server =
            Self { url: format!("http://127.0.0.1:{}", ports.0), process: None, ports, folder: Some(folder) };
        server.launch(&program, key, settings);
        Some(server)
    }

    fn launch(&mut self, program: &str, key: Option<&str>, settings: &[(&str, &str)]) {
        let folder: &Path = self.folder.as_ref().unwrap().path();
        // The shell ends the server when the process that asked for it ends, in whatever way: the
        // shell's input ends then.
        let mut command = Command::new("sh");
        command
            .args(["-c", "\"$0\" >/dev/null 2>&1 </dev/null & echo $!; cat >/dev/null; kill -9 $!", program])
            .current_dir(folder)
            .env("QDRANT__STORAGE__STORAGE_PATH", folder.join("storage"))
            .env("QDRANT__STORAGE__SNAPSHOTS_PATH", folder.join("snapshots"))
            .env("QDRANT__SERVICE__HOST", "127.0.0.1")
            .env("QDRANT__SERVICE__HTTP_PORT", self.ports.0.to_string())
            .env("QDRANT__SERVICE__GRPC_PORT", self.ports.1.to_string())
            .env("QDRANT__TELEMETRY_DISABLED", "true")
            .env("QDRANT__LOG_LEVEL", "ERROR")
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(key) = key {
            command.env("QDRANT__SERVICE__API_KEY", key).env("QDRANT__SERVICE__JWT_RBAC", "true");
        }
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        // The shell prints the server's process number as soon as the server runs.
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.process = Some(process);
        for _ in 0..600 {
            if ureq::get(format!("{}/readyz", self.url)).call().is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{program} does not answer at {}", self.url);
    }

    /// Ends the server as a power switch would end the process, and starts it again on the
    /// same folder after a while.
    pub fn kill_and_restart(&mut self, after: Duration) {
        self.kill();
        std::thread::sleep(after);
        self.launch(&std::env::var("REHANG_QDRANT").unwrap(), None, &[]);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            drop(process.wait());
        }
    }

    pub fn address(&self) -> QdrantAddress {
        QdrantAddress::new(&self.url)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server that all tests of a program share; `None` where there is none, and then a line says
/// that tests are skipped.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let found = SERVER.get_or_init(|| match std::env::var("REHANG_QDRANT_URL") {
        Ok(url) => Some(Server { url, process: None, ports: (0, 0), folder: None }),
        Err(_) => Server::start(None),
    });
    if found.is_none() {
        skipped();
    }
    found.as_ref()
}

pub fn skipped() {
    eprintln!(
        "SKIPPED: no Qdrant: set REHANG_QDRANT_URL to a server of 1.18 or later, or REHANG_QDRANT to the program of one"
    );
}

/// The name of a collection that no other test uses.
pub fn fresh(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}_{name}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Sends a plain request, as an application does.
pub fn send(url: &str, method: &str, path: &str, body: &Value) -> Value {
    try_send(url, method, path, body).unwrap()
}

/// Sends a plain request to a server that may be away.
pub fn try_send(url: &str, method: &str, path: &str, body: &Value) -> Result<Value, ureq::Error> {
    send_with_key(url, "", method, path, body)
}

/// Sends a request with a key of the server.
///
/// # Errors
/// Where no answer came.
pub fn send_with_key(
    url: &str,
    key: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, ureq::Error> {
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("{url}{path}"))
        .header("api-key", key)
        .header("content-type", "application/json");
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut response = match body {
        Value::Null => agent.run(request.body(()).unwrap())?,
        body => agent.run(request.body(body.to_string()).unwrap())?,
    };
    let answer: Value = serde_json::from_slice(&response.body_mut().read_to_vec()?).unwrap();
    assert_eq!(answer["status"], "ok", "{method} {path}: {answer}");
    Ok(answer["result"].clone())
}

/// Starts a proxy of the server and returns its address. Once, before a request that begins with `request`
/// reaches the server, it does something.
pub fn before(url: &str, request: String, happens: impl FnOnce() + Send + 'static) -> String {
    proxy(url, request, false, happens)
}

/// Starts a proxy of the server and returns its address. Once, when a request that begins with `request` is
/// answered, it does something and ends the connection instead of passing the answer on.
pub fn instead_of_answer(url: &str, request: String, happens: impl FnOnce() + Send + 'static) -> String {
    proxy(url, request, true, happens)
}

fn proxy(
    url: &str,
    request: String,
    instead_of_answer: bool,
    happens: impl FnOnce() + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = url.trim_start_matches("http://").to_owned();
    let happens = Arc::new(Mutex::new(Some(happens)));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let (request, happens) = (request.clone(), Arc::clone(&happens));
            let happens_once = move || {
                let happens = happens.lock().unwrap().take();
                let is_first = happens.is_some();
                if let Some(happens) = happens {
                    happens();
                }
                is_first
            };
            let (asked, answered) = (Arc::new(AtomicBool::new(false)), happens_once.clone());
            let is_asked = Arc::clone(&asked);
            std::thread::spawn(move || {
                let mut bytes = [0; 1 << 13];
                while let Ok(count @ 1..) = answers.read(&mut bytes) {
                    if is_asked.swap(false, Ordering::SeqCst) && answered() {
                        back.shutdown(Shutdown::Both).unwrap();
                        return;
                    }
                    if back.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
            std::thread::spawn(move || {
                let mut bytes = [0; 1 << 13];
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    if bytes[..count].starts_with(request.as_bytes()) {
                        if instead_of_answer {
                            asked.store(true, Ordering::SeqCst);
                        } else {
                            happens_once();
                        }
                    }
                    server.write_all(&bytes[..count]).unwrap();
                }
            });
        }
    });
    address
}

/// Makes a collection with an old vector `embedding` of a width, by Euclid's distance.
pub fn collection(url: &str, name: &str, width: usize) {
    let vectors = json!({"vectors": {"embedding": {"size": width, "distance": "Euclid"}}});
    send(url, "PUT", &format!("/collections/{name}"), &vectors);
}

/// Starts a proxy of the server and returns its address. In the server's answers it replaces some
/// bytes by as many others.
pub fn replaced(url: &str, said: &'static str, instead: &str) -> String {
    replaced_until(url, said, instead, None)
}

/// Starts a proxy as [`replaced`] does, which stops replacing when a request comes that begins with `until`.
pub fn replaced_until(url: &str, said: &'static str, instead: &str, until: Option<&'static str>) -> String {
    assert_eq!(said.len(), instead.len(), "an answer keeps its length");
    let instead = instead.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = url.trim_start_matches("http://").to_owned();
    let is_over = Arc::new(AtomicBool::new(false));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let ends = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    if until.is_some_and(|until| bytes[..count].starts_with(until.as_bytes())) {
                        ends.store(true, Ordering::SeqCst);
                    }
                    server.write_all(&bytes[..count]).unwrap();
                }
            });
            let (instead, is_over) = (instead.clone(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = answers.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    let is_over = is_over.load(Ordering::SeqCst);
                    let text = if is_over { text.into_owned() } else { text.replace(said, &instead) };
                    if back.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}
