//! Encoders: from images or feature vectors to vectors of a space.
//!
//! An [`EncoderArchitecture`] names an encoder; its [`Graph`] is the list of operations that everything else
//! reads: the [`Passes`], the files, the export.

mod architecture;
mod export;
mod file;
mod fused;
mod graph;
#[cfg(test)]
mod tests;

pub use architecture::{EncoderArchitecture, ImagePooling, Resnet, Stem};
pub use file::TrainedEncoder;
pub(crate) use file::{embed_rows, expect_shape, shape_of, take_weights};
pub use fused::{Mode, Passes};
pub(crate) use graph::normal;
pub use graph::{
    GENERALISED_MEAN_MINIMUM, Graph, GraphNode, Operation, Parameter, Role, Shape, Sliding, Statistics,
};
