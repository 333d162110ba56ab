//! A server that speaks S3 for tests: the Python package `moto[server]`, on loopback.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;

/// Serves a bucket until its input ends.
const START: &str = r#"
import logging, sys
import boto3
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").disabled = True
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
endpoint = "http://%s:%d" % server.get_host_and_port()
boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key",
             aws_secret_access_key="secret").create_bucket(Bucket="bucket")
print(endpoint, flush=True)
sys.stdin.read()
"#;

pub struct Server {
    pub endpoint: String,
    _process: Child,
}

impl Server {
    /// A server with a bucket named `bucket`. A strict one answers none of its keys from then on.
    ///
    /// # Errors
    /// What Python said.
    pub fn start(is_strict: bool) -> Result<Self, String> {
        let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut command = Command::new(&python);
        if is_strict {
            command.env("INITIAL_NO_AUTH_ACTION_COUNT", "1");
        }
        let mut process = command
            .args(["-W", "ignore", "-c", START])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{python}: {error}"))?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut stderr = process.stderr.take().unwrap();
        if line.is_empty() {
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            return Err(said);
        }
        // A pipe that nobody reads would be full one day.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Ok(Self { endpoint: line.trim().into(), _process: process })
    }

    /// The bucket.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new().with_endpoint(&self.endpoint).with_allow_http(true);
        let builder = builder.with_access_key_id("key").with_secret_access_key("secret");
        drop(rustls::crypto::ring::default_provider().install_default());
        Arc::new(builder.with_bucket_name("bucket").build().unwrap())
    }

    /// What a process needs to know of it.
    pub fn environment(&self) -> [(&'static str, &str); 4] {
        [
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ]
    }
}

/// The server of all tests; `None` where there is none, which is said, and is a failure where `REHANG_MOTO=required`.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let found = SERVER.get_or_init(|| Server::start(false));
    if let Err(said) = found {
        let how = "no object store: set REHANG_PYTHON to a Python with the package moto[server]";
        assert!(std::env::var("REHANG_MOTO").is_err(), "{how}\n{said}");
        eprintln!("skipped: {how}");
    }
    found.as_ref().ok()
}
