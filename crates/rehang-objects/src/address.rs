//! Where a folder lies: `s3://bucket/prefix`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, ObjectStore};
use rehang::{Error, Result};

use crate::refusal::said;

const EXPECTED: &str = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
                        abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, without a key or a password in it";

/// Connections that were idle for longer are not used again: nothing looks after them while vectors are computed.
const IDLE: &str = "5s";

/// A place in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    scheme: Scheme,
    /// The bucket; for Azure the container, and the account where it is named.
    pub container: String,
    /// What the names of the objects begin with, without slashes at its ends.
    pub prefix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    S3,
    Google,
    Azure(&'static str),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // What may be a password is not said.
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let refused = || Error::option("an address", format!("{scheme}://…"), EXPECTED);
        let rest = text.get(scheme.len() + 3..).filter(|_| !scheme.is_empty()).ok_or_else(refused)?;
        let (container, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let scheme = match scheme {
            "s3" | "s3a" => Scheme::S3,
            "gs" => Scheme::Google,
            "az" | "azure" | "adl" => Scheme::Azure("az"),
            "abfs" | "abfss" => Scheme::Azure("abfss"),
            _ => return Err(refused()),
        };
        let may_name_account = scheme == Scheme::Azure("abfss");
        let is_plain =
            |c: char| c.is_ascii_alphanumeric() || "-._$".contains(c) || (may_name_account && c == '@');
        if container.is_empty() || !container.chars().all(is_plain) {
            return Err(refused());
        }
        Ok(Self { scheme, container: container.into(), prefix: prefix.trim_matches('/').into() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root())?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl Address {
    /// The whole bucket.
    fn root(&self) -> String {
        let scheme = match self.scheme {
            Scheme::S3 => "s3",
            Scheme::Google => "gs",
            Scheme::Azure(scheme) => scheme,
        };
        format!("{scheme}://{}", self.container)
    }

    /// The error for settings, or a prefix, that cannot be.
    pub fn refused(&self, error: impl fmt::Display) -> Error {
        Error::corrupt(format!("the settings of {self}"), error)
    }

    /// What the environment has to say, for people.
    pub fn credentials(&self) -> &'static str {
        match self.scheme {
            Scheme::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            Scheme::Google => "GOOGLE_SERVICE_ACCOUNT, the file of a key,",
            Scheme::Azure(_) => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        }
    }

    /// Opens the store with what the environment says of it.
    pub fn store(&self) -> Result<Arc<dyn ObjectStore>> {
        // TLS is that of the rest of the process; it stands already where another part was first.
        drop(rustls::crypto::ring::default_provider().install_default());
        let refused = |error: object_store::Error| {
            self.refused(format!("{}; the environment needs {}", said(&error), self.credentials()))
        };
        let (root, idle) = (self.root(), ClientConfigKey::PoolIdleTimeout);
        Ok(match self.scheme {
            Scheme::S3 => {
                let mut builder =
                    AmazonS3Builder::from_env().with_config(AmazonS3ConfigKey::Client(idle), IDLE);
                // Who writes http:// there means it.
                let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
                if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
                    builder = builder.with_allow_http(true);
                }
                Arc::new(builder.with_url(root).build().map_err(refused)?)
            }
            Scheme::Google => {
                let builder =
                    GoogleCloudStorageBuilder::from_env().with_config(GoogleConfigKey::Client(idle), IDLE);
                Arc::new(builder.with_url(root).build().map_err(refused)?)
            }
            Scheme::Azure(_) => {
                let builder =
                    MicrosoftAzureBuilder::from_env().with_config(AzureConfigKey::Client(idle), IDLE);
                Arc::new(builder.with_url(root).build().map_err(refused)?)
            }
        })
    }
}
