//! Graphs on the processor: forward and backward passes written by hand over the `gemm` crate.
//!
//! A graph becomes a list of steps. A convolution takes the BatchNorm behind it along, and BatchNorm the
//! residual and the ReLU behind itself, so that planes are read and written as rarely as possible: memory,
//! not arithmetic, is what such passes wait for. Inside, planes lie with their channels last.
//!
//! # Threads and bits
//!
//! Tasks are cut by sizes alone and partial sums are added in a fixed order: the same numbers come out for
//! any number of threads.

mod convolution;
mod dense;
mod normalisation;
mod pooling;
mod shared;
#[cfg(test)]
mod tests;
mod winograd;

use std::ops::Range;

use rayon::prelude::*;
use rehang_core::{Error, Result};
use rehang_fit::network::State;
use rehang_fit::network::product::{self, Window};

use super::graph::{Graph, GraphNode, Operation, Shape, Sliding};
use convolution::Convolution;
use normalisation::Normalisation;
use shared::Scratch;

/// Statistics that BatchNorm uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Statistics of the batch itself, and the running ones move a tenth towards them (unbiased variance, as
    /// PyTorch does). What the backward pass needs is kept.
    Training,
    /// Running statistics; nothing is kept.
    Evaluation,
}

/// A graph made ready to run, with buffers that are allocated once for a size of batch.
#[derive(Debug, Clone)]
pub struct Passes {
    shapes: Vec<Shape>,
    parameter_count: usize,
    steps: Vec<Step>,
    /// Number of the last step that reads each node in an evaluation.
    last_reader: Vec<usize>,
    /// Values that the last forward pass in training left at every node.
    values: Vec<Vec<f32>>,
    /// Number of rows of that pass; none before it.
    rows: Option<usize>,
    /// Buffers that are free.
    free: Vec<Vec<f32>>,
    scratch: Scratch,
}

/// Operations that are run at once.
#[derive(Debug, Clone)]
struct Step {
    kind: Kind,
    /// Node that the step reads.
    input: usize,
    /// Node whose value the step makes.
    output: usize,
}

#[derive(Debug, Clone)]
enum Kind {
    Convolution {
        /// Place of the weight among the parameters.
        weight: Range<usize>,
        convolution: Box<Convolution>,
        /// BatchNorm behind it, and the node between them.
        normalisation: Option<(usize, Box<Normalisation>)>,
        /// Whether an evaluation has prepared other weights since the last forward pass in training.
        stale: bool,
    },
    Normalisation {
        normalisation: Box<Normalisation>,
    },
    Relu,
    Sum {
        other: usize,
    },
    MaximumPool {
        window: Sliding,
        places: Vec<u16>,
    },
    AveragePool,
    GeneralisedMeanPool,
    Flatten,
    Dense {
        weight: Range<usize>,
        bias: Range<usize>,
    },
}

impl Passes {
    /// Plans the steps of a graph; buffers come with the first batch.
    pub fn new(graph: &Graph) -> Self {
        let steps = plan(graph);
        let mut last_reader = vec![0; graph.nodes.len()];
        for (number, step) in steps.iter().enumerate() {
            for node in step.inputs().chain([step.output]) {
                last_reader[node] = number;
            }
        }
        // The vector is read when all steps are done.
        last_reader[graph.nodes.len() - 1] = usize::MAX;
        Self {
            shapes: graph.shapes.clone(),
            parameter_count: graph.parameter_count(),
            steps,
            last_reader,
            values: vec![Vec::new(); graph.nodes.len()],
            rows: None,
            free: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    fn output(&self) -> usize {
        self.shapes.len() - 1
    }

    /// Runs all steps, reading node 0 from `values`.
    fn run_steps(&mut self, state: &mut State, values: &mut [Vec<f32>], rows: usize, mode: Mode) {
        for number in 0..self.steps.len() {
            let step = &mut self.steps[number];
            let mut out = std::mem::take(&mut values[step.output]);
            let size = rows * self.shapes[step.output].size();
            if mode == Mode::Evaluation {
                out = take(&mut self.free, size);
            } else {
                out.resize(size, 0.0);
            }
            step.forward(&self.shapes, state, values, &mut out, rows, mode, &mut self.scratch);
            values[step.output] = out;
            if mode == Mode::Evaluation {
                for input in self.steps[number].inputs() {
                    if self.last_reader[input] == number {
                        self.free.push(std::mem::take(&mut values[input]));
                    }
                }
            }
        }
    }

    /// Computes vectors `[rows, outputs]` of inputs `[rows, channels, height, width]`, both row-major.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`] for an `input` of another size than `rows` rows, or parameters of
    /// another encoder.
    pub fn forward(&mut self, state: &mut State, input: &[f32], rows: usize, mode: Mode) -> Result<Vec<f32>> {
        let size = rows * self.shapes[0].size();
        if input.len() != size {
            return Err(Error::option(
                "input",
                format!("{} numbers for {rows} rows", input.len()),
                format!("{size} numbers, {} a row", self.shapes[0].size()),
            ));
        }
        check_parameters(state.parameters.len(), self.parameter_count)?;
        if mode == Mode::Training {
            self.rows = Some(rows);
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        let training = mode == Mode::Training;
        let mut values =
            if training { std::mem::take(&mut self.values) } else { vec![Vec::new(); self.shapes.len()] };
        let mut first = if training { std::mem::take(&mut values[0]) } else { take(&mut self.free, size) };
        first.resize(size, 0.0);
        pooling::channels_last(self.shapes[0], input, &mut first);
        values[0] = first;
        self.run_steps(state, &mut values, rows, mode);
        let shape = self.shapes[self.output()];
        let mut vectors = vec![0.0; rows * shape.size()];
        pooling::channels_first(shape, &values[self.output()], &mut vectors);
        if training {
            self.values = values;
        } else {
            self.free.extend(values.into_iter().filter(|buffer| buffer.capacity() > 0));
        }
        Ok(vectors)
    }

    /// Adds the gradient of every parameter to `parameters` (in the order of [`State::parameters`]), given
    /// the gradient `[rows, outputs]` of the vectors of the last forward pass in [`Mode::Training`].
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`] for a gradient of another size; [`rehang_core::ErrorKind::Conflict`]
    /// without such a pass before.
    pub fn backward(&mut self, state: &State, gradient: &[f32], parameters: &mut [f32]) -> Result<()> {
        let Some(rows) = self.rows else {
            return Err(Error::conflict(
                "backward pass",
                "no forward pass in training came before; run one first",
            ));
        };
        let shape = self.shapes[self.output()];
        if gradient.len() != rows * shape.size() {
            return Err(Error::option(
                "gradient",
                format!("{} numbers", gradient.len()),
                format!("{} numbers, {} for each of the {rows} rows", rows * shape.size(), shape.size()),
            ));
        }
        check_parameters(state.parameters.len(), self.parameter_count)?;
        check_parameters(parameters.len(), self.parameter_count)?;
        if rows == 0 {
            return Ok(());
        }
        let mut gradients =
            Gradients { nodes: vec![None; self.shapes.len()], free: std::mem::take(&mut self.free) };
        let mut last = take(&mut gradients.free, gradient.len());
        pooling::channels_last(shape, gradient, &mut last);
        gradients.nodes[self.output()] = Some(last);
        for step in self.steps.iter_mut().rev() {
            if let Some(gradient) = gradients.nodes[step.output].take() {
                let scratch = &mut self.scratch;
                step.backward(
                    &self.shapes,
                    state,
                    &self.values,
                    gradient,
                    &mut gradients,
                    parameters,
                    scratch,
                );
            }
        }
        self.free = gradients.free;
        self.free.extend(gradients.nodes.into_iter().flatten());
        Ok(())
    }
}

/// Gradients of nodes that still have to be passed on.
struct Gradients {
    nodes: Vec<Option<Vec<f32>>>,
    free: Vec<Vec<f32>>,
}

impl Gradients {
    /// Takes the gradient of a node, and says whether something has been added to it; else it holds anything.
    fn open(&mut self, node: usize, size: usize) -> (Vec<f32>, bool) {
        match self.nodes[node].take() {
            Some(gradient) => (gradient, true),
            None => (take(&mut self.free, size), false),
        }
    }

    /// Adds to a node's gradient by `work`, which gets `gradient` and what is there, or zeros.
    fn add_by(
        &mut self,
        node: usize,
        size: usize,
        gradient: Vec<f32>,
        work: impl FnOnce(&[f32], &mut [f32]),
    ) {
        let (mut sum, is_started) = self.open(node, size);
        if !is_started {
            sum.fill(0.0);
        }
        work(&gradient, &mut sum);
        self.nodes[node] = Some(sum);
        self.free.push(gradient);
    }

    /// Adds a whole gradient to a node's; the gradient of the input is never asked for.
    fn add(&mut self, node: usize, gradient: Vec<f32>) {
        match &mut self.nodes[node] {
            _ if node == 0 => self.free.push(gradient),
            Some(sum) => {
                sum.par_chunks_mut(1 << 14).zip(gradient.par_chunks(1 << 14)).for_each(|(sum, gradient)| {
                    for (sum, gradient) in sum.iter_mut().zip(gradient) {
                        *sum += gradient;
                    }
                });
                self.free.push(gradient);
            }
            empty => *empty = Some(gradient),
        }
    }
}

/// Takes a buffer of a size that holds anything: the smallest free one that is large enough, or a new one.
fn take(free: &mut Vec<Vec<f32>>, size: usize) -> Vec<f32> {
    let best = (0..free.len())
        .filter(|&index| free[index].capacity() >= size)
        .min_by_key(|&index| free[index].capacity());
    let mut buffer = best.map_or_else(Vec::new, |index| free.swap_remove(index));
    buffer.resize(size, 0.0);
    buffer
}

fn check_parameters(count: usize, expected: usize) -> Result<()> {
    if count == expected {
        return Ok(());
    }
    Err(Error::option(
        "parameters",
        format!("{count} numbers"),
        format!("the {expected} numbers of this encoder"),
    ))
}

impl Step {
    /// Lists the nodes whose values the step reads.
    fn inputs(&self) -> impl Iterator<Item = usize> + use<> {
        let beside = match &self.kind {
            Kind::Convolution { normalisation: Some((_, normalisation)), .. }
            | Kind::Normalisation { normalisation } => normalisation.residual,
            Kind::Sum { other } => Some(*other).filter(|other| *other != self.input),
            _ => None,
        };
        beside.into_iter().chain([self.input])
    }

    fn forward(
        &mut self,
        shapes: &[Shape],
        state: &mut State,
        values: &mut [Vec<f32>],
        out: &mut [f32],
        rows: usize,
        mode: Mode,
        scratch: &mut Scratch,
    ) {
        let (input, output_shape) = (self.input, shapes[self.output]);
        match &mut self.kind {
            Kind::Convolution { weight, convolution, normalisation, stale } => {
                convolution.prepare(&state.parameters[weight.clone()], scratch);
                *stale = mode == Mode::Evaluation;
                let positions = rows * output_shape.height * output_shape.width;
                match (normalisation, mode) {
                    (None, _) => convolution.forward(rows, &values[input], out, &|_, _, _| (), scratch),
                    (Some((between, normalisation)), Mode::Training) => {
                        let mut z = std::mem::take(&mut values[*between]);
                        z.resize(out.len(), 0.0);
                        let channels = normalisation.channels();
                        let sums = normalisation.moments(convolution.parts(rows));
                        let finish = |part: usize, _: usize, z: &mut [f32]| {
                            // SAFETY: every part has its own number.
                            let sums = unsafe { sums.part(2 * channels * part..2 * channels * (part + 1)) };
                            normalisation::moments(z, channels, sums);
                        };
                        convolution.forward(rows, &values[input], &mut z, &finish, scratch);
                        normalisation.settle(positions, state);
                        let residual = normalisation.residual.map(|node| &values[node][..]);
                        normalisation.apply(&z, residual, out);
                        values[*between] = z;
                    }
                    (Some((_, normalisation)), Mode::Evaluation) => {
                        let line = normalisation.running_line(state);
                        let residual = normalisation.residual.map(|node| &values[node][..]);
                        let finish = |_: usize, start: usize, z: &mut [f32]| {
                            let residual = residual.map(|residual| &residual[start..]);
                            line.apply_in_place(z, residual, normalisation.relu);
                        };
                        convolution.forward(rows, &values[input], out, &finish, scratch);
                    }
                }
            }
            Kind::Normalisation { normalisation } => {
                let z = &values[input][..];
                let residual = normalisation.residual.map(|node| &values[node][..]);
                if mode == Mode::Training {
                    normalisation.take_moments(z);
                    normalisation.settle(z.len() / normalisation.channels(), state);
                    normalisation.apply(z, residual, out);
                } else {
                    let relu = normalisation.relu;
                    normalisation.running_line(state).apply(z, residual, relu, out);
                }
            }
            Kind::Relu => {
                out.copy_from_slice(&values[input]);
                normalisation::gate(out, &values[input]);
            }
            Kind::Sum { other } => {
                for ((out, left), right) in out.iter_mut().zip(&values[input]).zip(&values[*other]) {
                    *out = left + right;
                }
            }
            Kind::MaximumPool { window, places } => {
                // An evaluation must leave the places of the last pass in training alone.
                let mut others = Vec::new();
                let places = if mode == Mode::Training { places } else { &mut others };
                places.resize(out.len(), 0);
                pooling::maximum(shapes[input], output_shape, *window, &values[input], out, places);
            }
            Kind::AveragePool => pooling::average(shapes[input], &values[input], out),
            Kind::GeneralisedMeanPool => {
                pooling::generalised_mean(shapes[input], &values[input], out);
            }
            Kind::Flatten => pooling::channels_first(shapes[input], &values[input], out),
            Kind::Dense { weight, bias } => {
                let (weight, bias) = (&state.parameters[weight.clone()], &state.parameters[bias.clone()]);
                let vectors = as_vectors(shapes[input], &values[input]);
                dense::forward(rows, &vectors, weight, bias, out);
            }
        }
    }

    fn backward(
        &mut self,
        shapes: &[Shape],
        state: &State,
        values: &[Vec<f32>],
        mut gradient: Vec<f32>,
        gradients: &mut Gradients,
        parameters: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let input = self.input;
        let rows = gradient.len() / shapes[self.output].size();
        let size = |node: usize| rows * shapes[node].size();
        let out = &values[self.output];
        match &mut self.kind {
            Kind::Convolution { weight, convolution, normalisation, stale } => {
                if *stale {
                    convolution.prepare(&state.parameters[weight.clone()], scratch);
                    *stale = false;
                }
                if let Some((between, normalisation)) = normalisation {
                    let z = &values[*between];
                    gradient =
                        normalisation_backward(normalisation, state, z, out, gradient, gradients, parameters);
                }
                let weight_gradient = &mut parameters[weight.clone()];
                if input == 0 {
                    convolution.backward(rows, &values[0], &gradient, weight_gradient, None, scratch);
                } else {
                    let (mut target, is_started) = gradients.open(input, size(input));
                    let wanted = Some((&mut target[..], is_started));
                    convolution.backward(rows, &values[input], &gradient, weight_gradient, wanted, scratch);
                    gradients.nodes[input] = Some(target);
                }
                gradients.free.push(gradient);
            }
            Kind::Normalisation { normalisation } => {
                let z = &values[input];
                let dz =
                    normalisation_backward(normalisation, state, z, out, gradient, gradients, parameters);
                gradients.add(input, dz);
            }
            Kind::Relu => {
                normalisation::gate(&mut gradient, out);
                gradients.add(input, gradient);
            }
            Kind::Sum { other } => {
                let mut copy = take(&mut gradients.free, gradient.len());
                copy.copy_from_slice(&gradient);
                gradients.add(input, copy);
                gradients.add(*other, gradient);
            }
            Kind::Dense { weight, bias } => {
                let (inputs, outputs) = (weight.len() / bias.len(), bias.len());
                // Weight and bias lie next to each other, the weight first.
                let (weight_gradient, bias_gradient) =
                    parameters[weight.start..bias.end].split_at_mut(inputs * outputs);
                let vectors = as_vectors(shapes[input], &values[input]);
                dense::parameter_gradient(rows, &vectors, &gradient, weight_gradient, bias_gradient);
                if input != 0 {
                    let mut target = take(&mut gradients.free, size(input));
                    let weight = &state.parameters[weight.clone()];
                    let (narrow, wide) = (Window::dense(outputs), Window::dense(inputs));
                    product::input_gradient(
                        rows,
                        (&gradient, narrow),
                        weight,
                        (&mut target, wide),
                        1.0,
                        false,
                    );
                    if shapes[input].height * shapes[input].width > 1 {
                        let mut planes = take(&mut gradients.free, size(input));
                        pooling::channels_last(shapes[input], &target, &mut planes);
                        std::mem::swap(&mut planes, &mut target);
                        gradients.free.push(planes);
                    }
                    gradients.add(input, target);
                }
                gradients.free.push(gradient);
            }
            Kind::Flatten => {
                let mut target = take(&mut gradients.free, size(input));
                pooling::channels_last(shapes[input], &gradient, &mut target);
                gradients.add(input, target);
                gradients.free.push(gradient);
            }
            Kind::MaximumPool { window, places } => {
                let (from, to) = (shapes[input], shapes[self.output]);
                gradients.add_by(input, size(input), gradient, |gradient, target| {
                    pooling::maximum_backward(from, to, *window, gradient, places, target);
                });
            }
            Kind::AveragePool => gradients.add_by(input, size(input), gradient, |gradient, target| {
                pooling::average_backward(shapes[input], gradient, target);
            }),
            Kind::GeneralisedMeanPool => {
                gradients.add_by(input, size(input), gradient, |gradient, target| {
                    let values = &values[input];
                    pooling::generalised_mean_backward(shapes[input], values, out, gradient, target);
                });
            }
        }
    }
}

/// Passes a gradient back through BatchNorm and what it took along; gives dz.
fn normalisation_backward(
    normalisation: &mut Normalisation,
    state: &State,
    z: &[f32],
    out: &[f32],
    mut gradient: Vec<f32>,
    gradients: &mut Gradients,
    parameters: &mut [f32],
) -> Vec<f32> {
    let Some(residual) = normalisation.residual else {
        normalisation.backward(state, z, out, &mut gradient, None, parameters);
        return gradient;
    };
    let mut dz = take(&mut gradients.free, gradient.len());
    normalisation.backward(state, z, out, &mut gradient, Some(&mut dz), parameters);
    gradients.add(residual, gradient);
    dz
}

/// Gives rows as a dense layer reads them: planes one after the other.
fn as_vectors(shape: Shape, values: &[f32]) -> std::borrow::Cow<'_, [f32]> {
    if shape.height * shape.width == 1 {
        return values.into();
    }
    let mut vectors = vec![0.0; values.len()];
    pooling::channels_first(shape, values, &mut vectors);
    vectors.into()
}

/// Joins operations into steps.
fn plan(graph: &Graph) -> Vec<Step> {
    let range = |parameter: usize| graph.parameters[parameter].range.clone();
    let readers = graph.readers();
    // Finds the only reader of a node that nothing else looks at.
    let only_reader = |node: usize| match readers[node][..] {
        [reader] => Some((reader, graph.nodes[reader])),
        _ => None,
    };
    let mut steps = Vec::new();
    // Steps that have taken later nodes along. Each waits at the place of the last of these nodes.
    let mut taken: Vec<Option<Step>> = vec![None; graph.nodes.len()];
    // Sums that BatchNorm has taken along on its way to ReLU.
    let mut passed = vec![false; graph.nodes.len()];
    for (node, &GraphNode { input, operation }) in graph.nodes.iter().enumerate() {
        let is_behind = !matches!(operation, Operation::Normalisation { .. });
        if let Some(step) = taken[node].take_if(|_| is_behind) {
            steps.push(step);
            continue;
        }
        let kind = match operation {
            Operation::Input => continue,
            Operation::Convolution { weight, window } => {
                let convolution = Convolution::new(graph.shapes[input], graph.shapes[node], window);
                let kind = Kind::Convolution {
                    weight: range(weight),
                    convolution: Box::new(convolution),
                    normalisation: None,
                    stale: true,
                };
                if let Some((reader, GraphNode { operation: Operation::Normalisation { .. }, .. })) =
                    only_reader(node)
                {
                    taken[reader] = Some(Step { kind, input, output: reader });
                    continue;
                }
                kind
            }
            Operation::Normalisation { scale, shift, statistics } => {
                let statistics = graph.statistics[statistics].range.clone();
                let mut normalisation = Normalisation::new(range(scale), range(shift), statistics);
                let mut end = node;
                if let Some((reader, GraphNode { input: left, operation: Operation::Sum { other: right } })) =
                    only_reader(end)
                    && left != right
                    && taken[reader].is_none()
                    && !passed[reader]
                {
                    normalisation.residual = Some(if left == node { right } else { left });
                    end = reader;
                }
                if let Some((reader, GraphNode { operation: Operation::Relu, .. })) = only_reader(end) {
                    normalisation.relu = true;
                    passed[end] = end != node;
                    end = reader;
                }
                let normalisation = Box::new(normalisation);
                let step = match taken[node].take() {
                    Some(Step {
                        kind: Kind::Convolution { weight, convolution, stale, .. },
                        input: from,
                        ..
                    }) => {
                        let normalisation = Some((input, normalisation));
                        let kind = Kind::Convolution { weight, convolution, normalisation, stale };
                        Step { kind, input: from, output: end }
                    }
                    _ => Step { kind: Kind::Normalisation { normalisation }, input, output: end },
                };
                if end == node {
                    steps.push(step);
                } else {
                    taken[end] = Some(step);
                }
                continue;
            }
            _ if passed[node] => continue,
            Operation::Relu => Kind::Relu,
            Operation::Sum { other } => Kind::Sum { other },
            Operation::MaximumPool { window } => Kind::MaximumPool { window, places: Vec::new() },
            Operation::AveragePool => Kind::AveragePool,
            Operation::GeneralisedMeanPool => Kind::GeneralisedMeanPool,
            Operation::Flatten => Kind::Flatten,
            Operation::Dense { weight, bias } => Kind::Dense { weight: range(weight), bias: range(bias) },
        };
        steps.push(Step { kind, input, output: node });
    }
    steps
}
