//! A server that speaks S3 for tests: the Python package `moto[server]`, on loopback.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../../../rehang-postgres/tests/server/python.rs"]
mod python;

use std::process::Child;
use std::sync::{Arc, OnceLock};

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;

/// Python program that serves a bucket until its input ends.
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
    /// Starts a server with a bucket named `bucket`. A strict server answers none of its keys from then on.
    ///
    /// # Errors
    /// The words of Python.
    pub fn start(is_strict: bool) -> Result<Self, String> {
        let strict: &[(&str, &str)] = if is_strict { &[("INITIAL_NO_AUTH_ACTION_COUNT", "1")] } else { &[] };
        let (endpoint, process) = python::start(START, None, strict)?;
        Ok(Self { endpoint, _process: process })
    }

    /// Opens the bucket.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new().with_endpoint(&self.endpoint).with_allow_http(true);
        let builder = builder.with_access_key_id("key").with_secret_access_key("secret");
        drop(rustls::crypto::ring::default_provider().install_default());
        Arc::new(builder.with_bucket_name("bucket").build().unwrap())
    }

    /// Variables that a process needs in order to find the server.
    pub fn environment(&self) -> [(&'static str, &str); 4] {
        [
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ]
    }
}

/// The one server of all tests; `None` where there is none. Its absence is printed, and is a failure where
/// `REHANG_MOTO=required`.
pub fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    let found = SERVER.get_or_init(|| Server::start(false));
    let how = "no object store: set REHANG_PYTHON to a Python with the package moto[server]";
    python::found(found, "REHANG_MOTO", how)
}
