//! Runs one batch through the network, forward and backward, in buffers that are allocated once.

use rayon::prelude::*;

use super::normalisation::{self, Mask, Running, Statistics, mix};
use super::product;
use super::{Layer, LayerKind, Layout, Source, State};
use crate::linear_algebra::column_sums;

/// Dropout of a whole network in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    /// Share of units that are dropped after every block, below 1.
    pub rate: f32,
    /// Key of the masks, a number that differs from step to step.
    pub key: u64,
}

impl Dropout {
    /// Dropout that drops nothing.
    pub(crate) const NONE: Self = Self { rate: 0.0, key: 0 };

    /// Returns the factor of every unit of one layer's batch: 0, or 1/(1 − rate).
    #[cfg(test)]
    pub(crate) fn factors(self, layer: usize, count: usize) -> Vec<f32> {
        let mut factors = vec![1.0; count];
        if self.rate > 0.0 {
            self.mask(layer).apply(&mut factors, 0);
        }
        factors
    }

    fn mask(self, layer: usize) -> Mask {
        if self.rate > 0.0 { Mask::new(self.rate, mix(self.key ^ mix(layer as u64))) } else { Mask::NONE }
    }
}

/// Inputs of a batch: prepared rows, with room for more rows behind them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Old vectors, `[rows, d_old]`.
    pub old: &'a [f32],
    /// Side information, `[rows, d_side]`; empty where there is none.
    pub side: &'a [f32],
}

/// Buffers of one batch.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    capacity: usize,
    /// Activations of every node.
    nodes: Vec<Vec<f32>>,
    /// Gradients of the activations.
    gradients: Vec<Vec<f32>>,
    /// Products of every block before BatchNorm.
    products: Vec<Vec<f32>>,
    statistics: Vec<Statistics>,
    /// Whether batch statistics were live in the last forward pass; `dropout` is the dropout of that pass.
    live: bool,
    dropout: Dropout,
}

impl Workspace {
    /// Allocates buffers for batches of up to `capacity` rows.
    pub(crate) fn new(layout: &Layout, capacity: usize) -> Self {
        let block = |layer: &Layer| if layer.kind == LayerKind::Block { layer.outputs } else { 0 };
        let nodes: Vec<Vec<f32>> = layout.nodes.iter().map(|width| vec![0.0; width * capacity]).collect();
        Self {
            capacity,
            gradients: nodes.clone(),
            nodes,
            products: layout.layers.iter().map(|layer| vec![0.0; block(layer) * capacity]).collect(),
            statistics: layout.layers.iter().map(|layer| Statistics::new(block(layer), capacity)).collect(),
            live: false,
            dropout: Dropout::NONE,
        }
    }

    /// Returns the number of rows that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns raw outputs of the last forward pass, `[rows, d_new]` with room for more rows behind them, and
    /// the place for their gradient, which is written before the backward pass.
    pub(crate) fn output_and_gradient(&mut self, layout: &Layout) -> (&[f32], &mut [f32]) {
        (&self.nodes[layout.output], &mut self.gradients[layout.output])
    }

    /// Runs the first `rows` rows of `inputs` through the network.
    ///
    /// With `live` statistics BatchNorm uses the batch's own and moves the running ones; else it uses the
    /// running ones.
    pub(crate) fn forward(
        &mut self,
        layout: &Layout,
        state: &mut State,
        inputs: Inputs<'_>,
        rows: usize,
        live: bool,
        dropout: Dropout,
    ) {
        assert!(rows <= self.capacity);
        (self.live, self.dropout) = (live, dropout);
        for (number, layer) in layout.layers.iter().enumerate() {
            let weight = &state.parameters[layer.weight.clone()];
            let shift = &state.parameters[layer.shift.clone()];
            // A layer never writes the node that it reads, so its target can be taken out meanwhile.
            let mut target = std::mem::take(&mut self.nodes[layer.target]);
            let input = (source(&self.nodes, inputs, layer.source), product::Window::dense(layer.inputs));
            match layer.kind {
                LayerKind::Block => {
                    let mut z = std::mem::take(&mut self.products[number]);
                    let dense = product::Window::dense(layer.outputs);
                    product::forward(rows, input, weight, (&mut z, dense), 1.0, false);
                    let mut running = Running {
                        mean: &mut state.running_mean[layer.statistics.clone()],
                        variance: &mut state.running_variance[layer.statistics.clone()],
                    };
                    normalisation::forward(
                        rows,
                        &z,
                        (&state.parameters[layer.scale.clone()], shift),
                        &mut running,
                        live,
                        dropout.mask(number),
                        &mut self.statistics[number],
                        (&mut target, layer.window),
                    );
                    self.products[number] = z;
                }
                LayerKind::Output => {
                    let accumulate = Some(number) == layout.skip;
                    product::forward(
                        rows,
                        input,
                        weight,
                        (&mut target, layer.window),
                        layer.gain,
                        accumulate,
                    );
                    target[..rows * layer.outputs].par_chunks_mut(64 * layer.outputs).for_each(|rows| {
                        for row in rows.chunks_exact_mut(layer.outputs) {
                            for (value, &shift) in row.iter_mut().zip(shift) {
                                *value += layer.gain * shift;
                            }
                        }
                    });
                }
            }
            self.nodes[layer.target] = target;
        }
    }

    /// Carries the gradient of the raw outputs back to every parameter: writes (not adds) into `gradient`.
    ///
    /// `inputs` and `rows` are those of the forward pass. The skip does not learn: its part of `gradient`
    /// keeps what it holds. The caller writes ψ's part.
    pub(crate) fn backward(
        &mut self,
        layout: &Layout,
        state: &State,
        inputs: Inputs<'_>,
        rows: usize,
        gradient: &mut [f32],
    ) {
        for (number, layer) in layout.layers.iter().enumerate().rev() {
            if Some(number) == layout.skip {
                continue;
            }
            let mut output_gradient = std::mem::take(&mut self.gradients[layer.target]);
            match layer.kind {
                LayerKind::Block => {
                    // Scale and shift lie next to each other, the scale first.
                    let (scale, shift) =
                        gradient[layer.scale.start..layer.shift.end].split_at_mut(layer.outputs);
                    normalisation::backward(
                        rows,
                        &self.products[number],
                        &self.nodes[layer.target],
                        &state.parameters[layer.scale.clone()],
                        self.live,
                        self.dropout.mask(number),
                        &mut self.statistics[number],
                        (&mut output_gradient, layer.window),
                        (scale, shift),
                    );
                }
                LayerKind::Output => {
                    let sums = column_sums(&output_gradient[..rows * layer.outputs], layer.outputs);
                    for (out, sum) in gradient[layer.shift.clone()].iter_mut().zip(sums) {
                        *out = (f64::from(layer.gain) * sum) as f32;
                    }
                }
            }
            let input_window = product::Window::dense(layer.inputs);
            product::weight_gradient(
                rows,
                (&output_gradient, layer.window),
                (source(&self.nodes, inputs, layer.source), input_window),
                &mut gradient[layer.weight.clone()],
                layer.gain,
                false,
            );
            if let Source::Node(node) = layer.source {
                product::input_gradient(
                    rows,
                    (&output_gradient, layer.window),
                    &state.parameters[layer.weight.clone()],
                    (&mut self.gradients[node], input_window),
                    layer.gain,
                    false,
                );
            }
            self.gradients[layer.target] = output_gradient;
        }
    }
}

fn source<'a>(nodes: &'a [Vec<f32>], inputs: Inputs<'a>, source: Source) -> &'a [f32] {
    match source {
        Source::Old => inputs.old,
        Source::Side => inputs.side,
        Source::Node(node) => &nodes[node],
    }
}
