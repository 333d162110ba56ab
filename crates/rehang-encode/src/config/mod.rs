//! The `[encoder]` part of a configuration.

mod command;
mod http;
pub(crate) mod keys;
mod onnx;
mod table;

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

pub use command::{CommandConfig, CommandFormat};
pub use http::HttpConfig;
pub use onnx::{
    ImageFilter, ImageInput, ImageLayout, ImageResize, OnnxConfig, OnnxInput, Pooling, TextInput, VectorInput,
};
pub use table::TableConfig;

/// Encoder of a configuration: `kind`, and the keys of that kind. An unknown key is an error that names it.
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
#[allow(clippy::large_enum_variant, reason = "a configuration has two at most")]
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

    /// Makes the configuration that queries are embedded with: the same model, with `query_prefix`,
    /// `query_input_type` and `query_program` in the place of the keys for items.
    ///
    /// A key that is not set for queries is as for items. The image of a query may lie anywhere: the person
    /// who asks names it, and no item of the gallery does.
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
        /// Puts the value for queries, if there is one, into the place of the value for items.
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
