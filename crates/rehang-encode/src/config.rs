//! The `[encoder]` part of a configuration.

use std::path::{Path, PathBuf};

use rehang::{Error, Result, Space};
use serde::{Deserialize, Serialize};

use crate::command::{Command, CommandConfig};
use crate::contract::Encoder;
use crate::http::{Http, HttpConfig};
use crate::onnx::{Onnx, OnnxConfig, OnnxInput};
use crate::table::{Table, TableConfig};

/// How sources become vectors: `kind`, and the keys of that kind. An unknown key is an error that names it.
///
/// ```
/// use rehang_encode::EncoderConfig;
///
/// let config: EncoderConfig = serde_json::from_str(r#"{"kind": "table", "vectors": "new.npy"}"#).unwrap();
/// assert!(matches!(config, EncoderConfig::Table(_)));
/// let error = serde_json::from_str::<EncoderConfig>(r#"{"kind": "table", "vektors": "new.npy"}"#).unwrap_err();
/// assert!(error.to_string().contains("unknown field `vektors`"));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum EncoderConfig {
    /// Vectors that are already computed, in a file.
    Table(TableConfig),
    /// A program that reads items and writes vectors.
    Command(CommandConfig),
    /// An embedding endpoint that speaks OpenAI's protocol.
    Http(HttpConfig),
    /// An ONNX model, run in this process.
    Onnx(OnnxConfig),
}

impl EncoderConfig {
    /// Whether vectors are scaled to length 1.
    pub fn normalises(&self) -> bool {
        match self {
            Self::Table(config) => config.normalise,
            Self::Command(config) => config.normalise,
            Self::Http(config) => config.normalise,
            Self::Onnx(config) => config.normalise,
        }
    }

    /// The service whose tokens cost time and money; `None` for encoders that count no tokens.
    pub fn service(&self) -> Option<&HttpConfig> {
        match self {
            Self::Http(config) => Some(config),
            Self::Table(_) | Self::Command(_) | Self::Onnx(_) => None,
        }
    }

    /// The configuration that queries are embedded with: the same model, with what it is given of queries (`query_prefix`,
    /// `query_input_type`, `query_program`) in the place of what it is given of items. What the configuration does not say of queries
    /// is as for items. The image of a query may lie anywhere: the person who asks names it, and no item of the gallery does.
    ///
    /// # Errors
    ///
    /// Invalid option for a table, which holds vectors of items only.
    ///
    /// ```
    /// use rehang_encode::EncoderConfig;
    ///
    /// let text = r#"{"kind": "http", "url": "http://localhost", "model": "e5", "prefix": "passage: ", "query_prefix": "query: "}"#;
    /// let items: EncoderConfig = serde_json::from_str(text).unwrap();
    /// let EncoderConfig::Http(queries) = items.for_queries().unwrap() else { panic!() };
    /// assert_eq!(queries.prefix, "query: ");
    /// ```
    pub fn for_queries(&self) -> Result<Self> {
        /// Puts what is said of queries, if anything, into the place of what is said of items.
        fn put<T>(queries: &mut Option<T>, items: &mut T) {
            if let Some(value) = queries.take() {
                *items = value;
            }
        }
        let mut config = self.clone();
        match &mut config {
            Self::Table(_) => {
                let expected = "\"onnx\", \"http\" or \"command\": a table holds vectors of items and can embed no query";
                return Err(Error::option("kind", "table", expected));
            }
            Self::Command(config) => put(&mut config.query_program, &mut config.program),
            Self::Http(config) => {
                put(&mut config.query_prefix, &mut config.prefix);
                config.input_type = config.query_input_type.take().or(config.input_type.take());
            }
            Self::Onnx(config) => match &mut config.input {
                OnnxInput::Text(text) => put(&mut text.query_prefix, &mut text.prefix),
                OnnxInput::Image(_) => config.outside_root = true,
                OnnxInput::Vector(_) => {}
            },
        }
        Ok(config)
    }
}

/// Opens the encoder of a configuration for a space. Relative paths are relative to `base`, the folder of the
/// configuration file.
///
/// # Errors
///
/// [`rehang::ErrorKind::InvalidOption`] and [`rehang::ErrorKind::MissingInput`] for keys that cannot be;
/// [`rehang::ErrorKind::Io`] and [`rehang::ErrorKind::Corrupt`] for files that cannot be read;
/// [`rehang::ErrorKind::WidthMismatch`] where the width is known beforehand and is not the space's. A program is started and
/// an endpoint is asked with the first batch.
pub fn open(config: &EncoderConfig, space: &Space, base: &Path) -> Result<Box<dyn Encoder>> {
    Ok(match config {
        EncoderConfig::Table(config) => Box::new(Table::open(config, space, base)?),
        EncoderConfig::Command(config) => Box::new(Command::open(config, space, base)?),
        EncoderConfig::Http(config) => Box::new(Http::open(config, space)?),
        EncoderConfig::Onnx(config) => Box::new(Onnx::open(config, space, base)?),
    })
}

/// A path of the configuration, seen from the folder of its file.
pub(crate) fn resolve(base: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = base.join(path);
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}

/// The number that a key has where the configuration does not name it.
pub(crate) fn number<const N: u16, T: From<u16>>() -> T {
    T::from(N)
}

/// Fails unless a count is at least 1.
pub(crate) fn at_least_one(key: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::option(key, value, "a whole number from 1"));
    }
    Ok(())
}

/// Fails unless a number is finite and above 0.
pub(crate) fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::option(key, value, "a number above 0"))
}

/// A number of seconds from a configuration: above 0 and at most a day, so that a deadline can be computed.
pub(crate) fn seconds(key: &str, value: f64) -> Result<std::time::Duration> {
    const DAY: f64 = 86400.0;
    if value > 0.0 && value <= DAY {
        return Ok(std::time::Duration::from_secs_f64(value));
    }
    Err(Error::option(key, value, "seconds above 0 and at most 86400, a day"))
}
