//! Encoders: from an item's source to its vector.
//!
//! An [`Encoder`] is an ONNX model, an HTTP endpoint, a command or a table of vectors, which [`open`] makes
//! from the `[encoder]` part of a configuration; or a [`Function`] of the process. An encoder knows nothing
//! of stores. Each one checks the width of the vectors that come back, and that they lie in its space.
//!
//! Features: `http` brings services, `onnx` models that run in this process, and `tokenizers` those among
//! them that read texts. Every configuration is read without them; [`open`] names the feature that an encoder
//! needs.

#![cfg_attr(
    not(all(feature = "http", feature = "tokenizers")),
    allow(
        dead_code,
        reason = "what the kinds of encoders share is not all used where one of them is left out"
    )
)]

mod ceiling;
mod check;
mod command;
mod config;
mod contract;
#[doc(hidden)]
pub mod doors;
mod fingerprint;
mod function;
#[cfg(feature = "http")]
mod http;
mod json;
mod learnt;
mod lengths;
mod meter;
#[cfg(feature = "onnx")]
mod onnx;
mod open;
mod picture;
mod reading;
mod resized;
mod rider;
mod source;
mod table;
mod watched;

pub use config::{
    CommandConfig, CommandFormat, EncoderConfig, HttpConfig, ImageFilter, ImageInput, ImageLayout,
    ImageResize, OnnxConfig, OnnxInput, Pooling, TableConfig, TextInput, VectorInput,
};
pub use contract::{Answer, Encoder, Input, ItemFailure, Reads, Spent, peculiar};
pub use function::Function;
pub use lengths::Lengths;
pub use open::open;
pub use picture::PictureFile;
pub use reading::Cut;
pub use resized::Resized;
pub use watched::Watched;
