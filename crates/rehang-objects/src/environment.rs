//! Opening an object store with what the process's environment says of it.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, ObjectStore};
use rehang_connect::environment;
use rehang_core::Result;

use crate::address::{Address, Scheme};
use crate::connector::Connector;
use crate::refusal::server_words;

/// Idle time after which a connection is not used again: nothing looks after connections while vectors are
/// computed.
const IDLE: &str = "5s";

/// Opens the store of an address, with the credentials, the region and the endpoint that the environment
/// names.
pub fn open(address: &Address) -> Result<Arc<dyn ObjectStore>> {
    // Every connection of the process uses one implementation of TLS, which cannot be installed twice. Where
    // another part of the process has installed it before, this call fails, and that changes nothing.
    drop(rustls::crypto::ring::default_provider().install_default());
    let refused = |error: object_store::Error| {
        address.refused(format!("{}; the environment needs {}", server_words(&error), address.credentials()))
    };
    let connector = Connector::from_environment(&environment)?;
    let (root, idle) = (address.root(), ClientConfigKey::PoolIdleTimeout);
    Ok(match address.scheme {
        Scheme::S3 => {
            let mut builder = AmazonS3Builder::from_env().with_config(AmazonS3ConfigKey::Client(idle), IDLE);
            // An endpoint that is written with http:// is used without TLS: someone chose it so.
            let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
            if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
                builder = builder.with_allow_http(true);
            }
            Arc::new(builder.with_url(root).with_http_connector(connector).build().map_err(refused)?)
        }
        Scheme::Google => {
            let builder =
                GoogleCloudStorageBuilder::from_env().with_config(GoogleConfigKey::Client(idle), IDLE);
            Arc::new(builder.with_url(root).with_http_connector(connector).build().map_err(refused)?)
        }
        Scheme::Azure(_) => {
            let builder = MicrosoftAzureBuilder::from_env().with_config(AzureConfigKey::Client(idle), IDLE);
            Arc::new(builder.with_url(root).with_http_connector(connector).build().map_err(refused)?)
        }
    })
}
