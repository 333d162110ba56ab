//! A real pgbouncer before the server of the tests: `REHANG_PGBOUNCER_PROGRAM`, or the one on the path.
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postgres::Config;
use postgres::config::Host;

/// Pooler in transaction mode; it ends when this is dropped.
pub struct Pooler {
    port: u16,
    process: Child,
    _folder: tempfile::TempDir,
}

/// Finds the program of the pooler. Where there is none, a line says so, and it is a failure where
/// `REHANG_PGBOUNCER=required`.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("REHANG_PGBOUNCER_PROGRAM").map(PathBuf::from);
    let usual = [
        "/usr/sbin/pgbouncer",
        "/usr/bin/pgbouncer",
        "/usr/local/bin/pgbouncer",
        "/opt/homebrew/bin/pgbouncer",
    ];
    let found = named.or_else(|| usual.map(PathBuf::from).into_iter().find(|path| path.exists()));
    if found.is_none() {
        let how = "no pgbouncer: apt-get install pgbouncer, or REHANG_PGBOUNCER_PROGRAM";
        assert!(std::env::var("REHANG_PGBOUNCER").is_err(), "{how}");
        eprintln!("skipped: {how}");
    }
    found
}

impl Pooler {
    /// Starts a pooler with two sessions of the server for everybody, and with more
    /// lines in its configuration.
    pub fn before(address: &str, more: &str) -> Option<Self> {
        let program = program()?;
        let config: Config = address.parse().unwrap();
        let host = match &config.get_hosts()[0] {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let user = config.get_user().unwrap();
        let password =
            config.get_password().map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
        let in_file = password.clone();
        let password = if password.is_empty() { String::new() } else { format!(" password={password}") };
        let own = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs_err::write(at("users"), format!("\"{user}\" \"{in_file}\"\n")).unwrap();
        let version = Command::new(&program).arg("--version").output().unwrap();
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()).unwrap_or(0);
        // Earlier versions know no named statements at all.
        let no_statements = if minor >= 21 { "max_prepared_statements = 0" } else { "" };
        let text = format!(
            "[databases]\n* = host={host} port={port} user={user}{password}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {own}\nunix_socket_dir =\nauth_type = any\nauth_file = {}\n\
             pool_mode = transaction\ndefault_pool_size = 2\nquery_wait_timeout = 30\n{no_statements}\n{more}\nlogfile = {}\n",
            at("users"),
            at("log")
        );
        fs_err::write(at("ini"), text).unwrap();
        // The pooler refuses to run as root, and reaches a socket as the owner of its folder.
        let owner = match &config.get_hosts()[0] {
            Host::Tcp(_) => 65_534,
            Host::Unix(folder) => fs_err::metadata(folder).unwrap().uid(),
        };
        fs_err::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.starts_with(b"0\n"));
        let mut command = if is_root {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={owner}"), "--regid=65534", "--clear-groups"]).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        let process = command.arg(at("ini")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut pooler = Self { port: own, process, _folder: folder };
        while TcpStream::connect(("127.0.0.1", own)).is_err() {
            assert!(pooler.process.try_wait().unwrap().is_none(), "pgbouncer ended ({version})");
            rehang_clock::wait(Duration::from_millis(5));
        }
        Some(pooler)
    }

    /// Rewrites the address of a database to go through the pooler.
    pub fn through(&self, address: &str) -> String {
        let config: Config = address.parse().unwrap();
        let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        format!("postgresql://{user}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
