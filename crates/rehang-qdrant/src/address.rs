//! Address of a Qdrant server, with the key that the server asks for.

use std::fmt;
use std::path::{Path, PathBuf};

use rehang_core::{Error, Result};

/// The address of a Qdrant server, with its key if it wants one. The key is never shown.
///
/// ```
/// use rehang_qdrant::QdrantAddress;
///
/// let address = QdrantAddress::new("https://qdrant.example:6333").with_key(Some("secret".into()));
/// assert!(!format!("{address:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct QdrantAddress {
    url: String,
    key: Option<String>,
    plain_http: bool,
    request_max: usize,
    root_certificates: Option<PathBuf>,
}

/// Bytes of the largest request where nothing else is said: a little less than the 32 MiB that a
/// server takes by default.
const REQUEST_MAX: usize = 30 << 20;

impl QdrantAddress {
    /// Makes the address of a server from its URL: `http://` or `https://`, a host, and a port.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key: None,
            plain_http: false,
            request_max: REQUEST_MAX,
            root_certificates: None,
        }
    }

    /// Adds the key that the server asks for.
    #[must_use]
    pub fn with_key(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }

    /// Says whether the key may be sent over `http://` to another machine, where it can be read on the way.
    #[must_use]
    pub fn with_plain_http(self, plain_http: bool) -> Self {
        Self { plain_http, ..self }
    }

    /// Sets how many bytes a request may have, 30 MiB by default: a proxy before the server may take fewer
    /// than the server does. Writes are split. Documents of the gallery are sent whole: some hundred
    /// kilobytes at most, beside what waits for a comparison.
    #[must_use]
    pub fn with_request_max(self, bytes: usize) -> Self {
        Self { request_max: bytes, ..self }
    }

    /// Names a file in the PEM format with authorities that are trusted besides the system's.
    #[must_use]
    pub fn with_root_certificates(self, file: Option<PathBuf>) -> Self {
        Self { root_certificates: file, ..self }
    }

    pub(crate) fn root_certificates(&self) -> Option<&Path> {
        self.root_certificates.as_deref()
    }

    pub(crate) fn request_max(&self) -> usize {
        self.request_max
    }

    /// Returns the URL without a slash at its end, and refuses one that cannot be an address
    /// or would show the key.
    pub(crate) fn base(&self) -> Result<String> {
        let base = self.url.trim().trim_end_matches('/');
        let wanted =
            "http:// or https:// with a host and a port, and no name or key in it: http://127.0.0.1:6333";
        let after_scheme = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://"));
        let is_address = after_scheme.is_some_and(|text| {
            !text.is_empty() && text.is_ascii() && !text.contains(['@', '?', '#', ' ', '"', '<', '>', '\\'])
        });
        if !is_address || base.parse::<ureq::http::Uri>().is_err() {
            // An address with a name in it may hold a password too.
            let shown = if base.contains('@') { "an address with '@'" } else { base };
            return Err(Error::option("url", shown, wanted));
        }
        if let Some(key) = &self.key {
            if base.starts_with("http://") && !self.is_loopback() && !self.plain_http {
                return Err(Error::option(
                    "url",
                    base,
                    "an address with https://, since the key can be read on its way to this one; plain_http = true sends it all the same",
                ));
            }
            if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Error::option(
                    "the key",
                    "text that no header can carry",
                    "one word of plain characters",
                ));
            }
        }
        Ok(base.to_owned())
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Whether the server is on this machine, so that no proxy and no reader is in between.
    pub(crate) fn is_loopback(&self) -> bool {
        rehang_connect::is_loopback(self.url.trim())
    }
}

impl fmt::Debug for QdrantAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = if self.url.contains('@') { "…" } else { &self.url };
        f.debug_struct("QdrantAddress")
            .field("url", &shown)
            .field("has_key", &self.key.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_in_the_clear_to_this_machine_or_where_that_is_wanted() {
        let base = |url: &str, plain_http| {
            QdrantAddress::new(url).with_key(Some("word".into())).with_plain_http(plain_http).base()
        };
        assert!(base("http://qdrant:6333", false).unwrap_err().to_string().contains("plain_http"));
        for (url, plain_http) in
            [("http://qdrant:6333/", true), ("https://qdrant:6333", false), ("http://localhost:1", false)]
        {
            assert_eq!(base(url, plain_http).unwrap(), url.trim_end_matches('/'));
        }
    }
}
