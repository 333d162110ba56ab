//! Address of a folder in an object store: `s3://bucket/prefix`.

use std::fmt;
use std::str::FromStr;

use rehang_core::{Error, Result};

const EXPECTED: &str = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
                        abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, without a key or a password in it";

/// A place in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// Provider whose object store the address is in.
    pub scheme: Scheme,
    /// The bucket; for Azure the container, and the account where it is named.
    pub container: String,
    /// Beginning of the objects' names, without slashes at either end.
    pub prefix: String,
}

/// Provider of an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// S3, and services that speak its language.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure, with the scheme that its addresses are written with.
    Azure(&'static str),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The refusal repeats the scheme alone, since the rest may hold a password.
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let refused = || Error::option("an address", format!("{scheme}://…"), EXPECTED);
        let after_scheme = text.get(scheme.len() + 3..).filter(|_| !scheme.is_empty()).ok_or_else(refused)?;
        let (container, prefix) = after_scheme.split_once('/').unwrap_or((after_scheme, ""));
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
    /// The address of the whole bucket.
    pub fn root(&self) -> String {
        let scheme = match self.scheme {
            Scheme::S3 => "s3",
            Scheme::Google => "gs",
            Scheme::Azure(scheme) => scheme,
        };
        format!("{scheme}://{}", self.container)
    }

    /// Makes the error for settings, or a prefix, that cannot be.
    pub fn refused(&self, error: impl fmt::Display) -> Error {
        Error::corrupt(format!("the settings of {self}"), error)
    }

    /// Variables of the environment that hold the credentials, for people.
    pub fn credentials(&self) -> &'static str {
        match self.scheme {
            Scheme::S3 => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            Scheme::Google => "GOOGLE_SERVICE_ACCOUNT, the file of a key,",
            Scheme::Azure(_) => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        }
    }
}
