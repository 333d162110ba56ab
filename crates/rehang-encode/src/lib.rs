//! Encoders: from an item's source to its vector.
//!
//! An [`Encoder`] is an ONNX model, an HTTP endpoint, a command or a table of vectors; [`open`] makes one from the
//! `[encoder]` part of a configuration. It knows nothing of stores. Each checks the width of what comes back and that it
//! lies in its space.

mod contract;

pub use contract::{Encoder, Input, ItemFailure, Spent};
