//! Trains encoders whose vectors are compatible with an old model's: data, graphs, methods, whole
//! comparisons.
//!
//! [`examples`] is what they learn from, [`encoder`] what they are, [`compatible`] how they are trained,
//! [`contest`] what that is worth beside the adapters of [`rehang_fit`]. [`train_files`], [`embed_files`] and
//! [`compare_files`] do all of it by a configuration file.

pub mod compatible;
mod configuration;
pub mod contest;
pub mod encoder;
pub mod examples;
mod files;
#[cfg(test)]
#[path = "../../../crates/rehang-fit/src/tests/finite_differences.rs"]
mod finite_differences;
pub mod protocols;

pub use configuration::DataPart;
pub use files::{
    CompareFiles, EmbedAnswer, EmbedFiles, ExportAnswer, TrainAnswer, TrainFiles, compare_files, embed_files,
    export_onnx, train_files,
};
