//! Networks that adapters are made of: a forward and a backward pass fused for this one family, on the `gemm`
//! crate.
//!
//! ```text
//! block(x)  = dropout(max(BatchNorm(W x), 0))             W [outputs, inputs], no bias
//! output(x) = gain·(W x + b)
//! raw(o)    = output(blocks(concat(blocks(o), blocks(o or side)))) + skip(o)
//! ```
//!
//! All parameters live in one flat vector and all their gradients in another, so that the optimiser is one
//! pass and a checkpoint is a copy. Buffers are allocated once per fit.
//!
//! # Threads and bits
//!
//! Every pass works on fixed chunks of rows and adds partial sums in a fixed order: the same numbers come out
//! for any number of threads.

mod architecture;
mod fold;
mod normalisation;
mod pass;
pub mod product;

pub use crate::linear_algebra::column_sums;
pub use architecture::{Architecture, Widths};
pub(crate) use architecture::{Layer, LayerKind, Layout, Source};
pub use fold::fold_normalisation;
pub(crate) use fold::{Preparation, fold};
pub use normalisation::EPSILON as VARIANCE_EPSILON;
pub(crate) use pass::{Dropout, Inputs, Workspace};

use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The numbers that a fit changes.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// All parameters, in the layout's order.
    pub parameters: Vec<f32>,
    /// BatchNorm's running means, in the layout's order.
    pub running_mean: Vec<f32>,
    /// BatchNorm's running variances.
    pub running_variance: Vec<f32>,
}

impl State {
    /// Draws PyTorch's default initialisation: weights and biases uniform in ±1/√inputs (Kaiming with a =
    /// √5), BatchNorm with weight 1, bias 0, running mean 0 and running variance 1. Numbers come from ChaCha8
    /// with the given seed.
    pub(crate) fn initial(layout: &Layout, seed: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let mut parameters = vec![0.0; layout.parameter_count];
        for layer in &layout.layers {
            let mut draw = |range: Range<usize>| {
                draw_uniform(&mut parameters[range], layer.inputs, &mut generator);
            };
            draw(layer.weight.clone());
            match layer.kind {
                LayerKind::Block => parameters[layer.scale.clone()].fill(1.0),
                LayerKind::Output => draw(layer.shift.clone()),
            }
        }
        if let Some(head) = &layout.uncertainty {
            draw_uniform(&mut parameters[head.clone()], layout.widths.new, &mut generator);
        }
        Self {
            parameters,
            running_mean: vec![0.0; layout.statistics_count],
            running_variance: vec![1.0; layout.statistics_count],
        }
    }
}

/// Draws numbers evenly from `±1/√inputs`, as PyTorch's layers begin.
pub fn draw_uniform(values: &mut [f32], inputs: usize, generator: &mut ChaCha8Rng) {
    let bound = 1.0 / (inputs.max(1) as f32).sqrt();
    for value in values {
        *value = bound * (2.0 * generator.random::<f32>() - 1.0);
    }
}
