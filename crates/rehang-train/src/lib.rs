//! Trains encoders whose vectors are compatible with an old model's: data, graphs, methods, whole comparisons.
//!
//! [`examples`] is what they learn from, [`encoder`] what they are, [`compatible`] how they are trained,
//! [`contest`] what that is worth beside the adapters of [`rehang_fit`].

pub mod compatible;
pub mod contest;
pub mod encoder;
pub mod examples;
#[cfg(test)]
#[path = "../../rehang-fit/src/finite_differences.rs"]
mod finite_differences;
pub mod onnx;
