//! For `bench/encoder`: one training step at a time, from weights and on inputs that another program can repeat.

use rayon::prelude::*;
use rehang::Result;
use rehang_fit::network::State;

use super::fused::FusedPasses;
use super::{Architecture, Graph, Mode, Passes, Shape};

/// Decay of the sum of gradients in a step.
const MOMENTUM: f32 = 0.9;

/// An encoder that learns to give one fixed target for one fixed batch, on the processor: forward pass, mean squared
/// error, backward pass, and a step of gradient descent with momentum 0.9.
pub struct TrainingStep {
    graph: Graph,
    passes: FusedPasses,
    state: State,
    rows: usize,
    gradient: Vec<f32>,
    velocity: Vec<f32>,
}

impl TrainingStep {
    /// An encoder with weights drawn from `seed`, before its first step on batches of `rows` rows.
    ///
    /// # Errors
    ///
    /// Those of [`Architecture::graph`].
    pub fn new(architecture: &Architecture, input: Shape, rows: usize, seed: u64) -> Result<Self> {
        let graph = architecture.graph(input)?;
        Ok(Self {
            passes: FusedPasses::new(&graph),
            state: graph.initial(seed),
            rows,
            gradient: vec![0.0; graph.parameter_count()],
            velocity: vec![0.0; graph.parameter_count()],
            graph,
        })
    }

    /// The encoder; its parameters tell what [`parameters`](Self::parameters) holds.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// All parameters in the graph's order.
    pub fn parameters(&self) -> &[f32] {
        &self.state.parameters
    }

    /// The gradient of the last step, in the same order.
    pub fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// Vectors `[rows, outputs]` of a batch with the running statistics of BatchNorm.
    ///
    /// # Errors
    ///
    /// An `input` of another size than `rows` rows.
    pub fn embed(&mut self, input: &[f32]) -> Result<Vec<f32>> {
        self.passes.forward(&mut self.state, input, self.rows, Mode::Evaluation)
    }

    /// One step towards `target [rows, outputs]` with the given rate; gives the mean squared error before it.
    ///
    /// # Errors
    ///
    /// An `input` or `target` of another size than `rows` rows.
    pub fn step(&mut self, input: &[f32], target: &[f32], rate: f32) -> Result<f64> {
        let mut vectors = self.passes.forward(&mut self.state, input, self.rows, Mode::Training)?;
        let count = vectors.len() as f64;
        let mut loss = 0.0;
        for (value, &target) in vectors.iter_mut().zip(target) {
            let difference = *value - target;
            loss += f64::from(difference) * f64::from(difference) / count;
            *value = 2.0 * difference / count as f32;
        }
        self.gradient.par_chunks_mut(1 << 16).for_each(|gradient| gradient.fill(0.0));
        self.passes.backward(&self.state, &vectors, &mut self.gradient)?;
        self.velocity
            .par_chunks_mut(1 << 16)
            .zip(self.state.parameters.par_chunks_mut(1 << 16))
            .zip(self.gradient.par_chunks(1 << 16))
            .for_each(|((velocity, parameters), gradient)| {
                for ((velocity, parameter), gradient) in velocity.iter_mut().zip(parameters).zip(gradient) {
                    *velocity = MOMENTUM * *velocity + gradient;
                    *parameter -= rate * *velocity;
                }
            });
        Ok(loss)
    }
}
