//! Encoders: from an item's source to its vector.
//!
//! An [`Encoder`] is an ONNX model, an HTTP endpoint, a command or a table of vectors, which [`open`] makes from the
//! `[encoder]` part of a configuration; or a [`Function`] of the process. It knows nothing of stores. Each checks the width of what comes back and that it
//! lies in its space.

mod check;
mod clock;
mod command;
mod config;
mod contract;
#[doc(hidden)]
pub mod doors;
mod fingerprint;
mod function;
mod http;
mod meter;
mod onnx;
mod table;

pub use command::{CommandConfig, CommandFormat};
pub use config::{EncoderConfig, open};
pub use contract::{Answer, Encoder, Input, ItemFailure, Reads, Spent};
pub use function::Function;
pub use http::HttpConfig;
pub use onnx::{
    ImageFilter, ImageInput, ImageLayout, ImageResize, OnnxConfig, OnnxInput, Pooling, TextInput, VectorInput,
};
pub use table::TableConfig;
