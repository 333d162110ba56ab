//! A graph in burn's tensors, differentiated automatically: the path to other devices, and the twin that the fused
//! passes are compared with.

use burn_tensor::activation::relu;
use burn_tensor::module::{batch_norm, batch_norm_train, conv2d, max_pool2d};
use burn_tensor::ops::{ConvOptions, MaxPoolOptions};
use burn_tensor::{Device as BurnDevice, Tensor};
use rehang::{Error, Result};
use rehang_fit::burn::{read, tensor};
use rehang_fit::network::{State, VARIANCE_EPSILON};

use super::graph::{GENERALISED_MEAN_MINIMUM, Graph, Node, Operation, Sliding};
use super::pass::{Mode, Passes};

/// How far running statistics move towards those of a batch.
const MOMENTUM: f32 = 0.1;

/// Passes by burn on one of its devices.
pub(crate) struct TensorPasses {
    graph: Graph,
    device: BurnDevice,
    /// The leaves and the output of the last forward pass in training.
    kept: Option<(Vec<Tensor<1>>, Tensor<2>)>,
}

impl TensorPasses {
    pub(crate) fn new(graph: Graph, device: BurnDevice) -> Self {
        Self { graph, device, kept: None }
    }

    fn tensor<const D: usize>(&self, values: &[f32], shape: [usize; D]) -> Tensor<D> {
        tensor(values, shape, &self.device)
    }

    /// The output `[rows, outputs]`; statistics in training are left in `state`.
    fn run(
        &self,
        state: &mut State,
        leaves: &[Tensor<1>],
        input: Tensor<4>,
        mode: Mode,
    ) -> Result<Tensor<2>> {
        let rows = input.dims()[0];
        let mut nodes: Vec<Option<Tensor<4>>> = vec![None; self.graph.nodes.len()];
        nodes[0] = Some(input);
        let shape_of = |parameter: usize| -> [usize; 4] {
            let shape = &self.graph.parameters[parameter].shape;
            [shape[0], shape[1], shape[2], shape[3]]
        };
        // A node is given away with its last reading, so that evaluation keeps only what is still needed.
        let mut readings: Vec<usize> = self.graph.readers().iter().map(Vec::len).collect();
        for (number, &Node { input, operation }) in self.graph.nodes.iter().enumerate() {
            let mut take = |node: usize| {
                readings[node] -= 1;
                let value = if readings[node] == 0 { nodes[node].take() } else { nodes[node].clone() };
                value.ok_or_else(|| Error::option("encoder", format!("node {node}"), "nodes in order"))
            };
            let output = match operation {
                Operation::Input => continue,
                Operation::Convolution { weight, window: Sliding { stride, padding, .. } } => {
                    let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
                    conv2d(take(input)?, leaves[weight].clone().reshape(shape_of(weight)), None, options)
                }
                Operation::Normalisation { scale, shift, statistics } => {
                    let input = take(input)?;
                    let range = self.graph.statistics[statistics].range.clone();
                    let (scale, shift) = (leaves[scale].clone(), leaves[shift].clone());
                    match mode {
                        Mode::Training => {
                            let [_, _, height, width] = input.dims();
                            let count = (rows * height * width) as f32;
                            let trained = batch_norm_train(input, scale, shift, VARIANCE_EPSILON);
                            let unbiased = count / (count - 1.0).max(1.0);
                            let move_on = |running: &mut [f32], batch: Vec<f32>, factor: f32| {
                                for (running, batch) in running.iter_mut().zip(batch) {
                                    *running += MOMENTUM * (factor * batch - *running);
                                }
                            };
                            move_on(&mut state.running_mean[range.clone()], read(trained.mean)?, 1.0);
                            move_on(&mut state.running_variance[range], read(trained.variance)?, unbiased);
                            trained.output
                        }
                        Mode::Evaluation => {
                            let mean = self.tensor(&state.running_mean[range.clone()], [range.len()]);
                            let variance = self.tensor(&state.running_variance[range.clone()], [range.len()]);
                            batch_norm(input, scale, shift, mean, variance, VARIANCE_EPSILON)
                        }
                    }
                }
                Operation::Relu => relu(take(input)?),
                Operation::Sum { other } => take(input)? + take(other)?,
                Operation::MaximumPool { window } => {
                    let options = MaxPoolOptions::new([window.side; 2])
                        .with_stride([window.stride; 2])
                        .with_padding([window.padding; 2]);
                    max_pool2d(take(input)?, options)
                }
                Operation::AveragePool => take(input)?.mean_dim(3).mean_dim(2),
                Operation::GeneralisedMeanPool => {
                    let positive = take(input)?.clamp_min(GENERALISED_MEAN_MINIMUM);
                    let cubes = positive.clone() * positive.clone() * positive;
                    cubes.mean_dim(3).mean_dim(2).powf_scalar(1.0 / 3.0)
                }
                Operation::Flatten => {
                    let size = self.graph.shapes[number].channels;
                    take(input)?.reshape([rows, size, 1, 1])
                }
                Operation::Dense { weight, bias } => {
                    let shape = &self.graph.parameters[weight].shape;
                    let (outputs, inputs) = (shape[0], shape[1]);
                    let product = take(input)?
                        .reshape([rows, inputs])
                        .matmul(leaves[weight].clone().reshape([outputs, inputs]).transpose());
                    (product + leaves[bias].clone().reshape([1, outputs])).reshape([rows, outputs, 1, 1])
                }
            };
            nodes[number] = Some(output);
            if readings[number] == 0 && number + 1 < self.graph.nodes.len() {
                nodes[number] = None;
            }
        }
        let last = nodes.pop().flatten();
        let last =
            last.ok_or_else(|| Error::option("encoder", "an empty graph", "at least one operation"))?;
        Ok(last.reshape([rows, self.graph.outputs()]))
    }
}

impl Passes for TensorPasses {
    fn forward(&mut self, state: &mut State, input: &[f32], rows: usize, mode: Mode) -> Result<Vec<f32>> {
        let shape = self.graph.input();
        let input = self.tensor(input, [rows, shape.channels, shape.height, shape.width]);
        let leaves = self.graph.parameters.iter().map(|parameter| {
            let leaf = self.tensor(&state.parameters[parameter.range.clone()], [parameter.range.len()]);
            if mode == Mode::Training { leaf.autodiff().require_grad() } else { leaf }
        });
        let leaves: Vec<Tensor<1>> = leaves.collect();
        let input = if mode == Mode::Training { input.autodiff() } else { input };
        let output = self.run(state, &leaves, input, mode)?;
        if mode == Mode::Evaluation {
            return read(output);
        }
        let values = read(output.clone().inner())?;
        self.kept = Some((leaves, output));
        Ok(values)
    }

    fn backward(&mut self, _: &State, gradient: &[f32], parameters: &mut [f32]) -> Result<()> {
        let Some((leaves, output)) = self.kept.take() else {
            return Err(Error::option(
                "backward",
                "before a forward pass",
                "a forward pass in training first",
            ));
        };
        let gradient = self.tensor(gradient, output.dims());
        let mut gradients = (output * gradient).sum().backward();
        for (parameter, leaf) in self.graph.parameters.iter().zip(&leaves) {
            let Some(gradient) = leaf.grad_remove(&mut gradients) else { continue };
            for (sum, value) in parameters[parameter.range.clone()].iter_mut().zip(read(gradient)?) {
                *sum += value;
            }
        }
        Ok(())
    }
}
