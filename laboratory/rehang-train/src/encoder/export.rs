//! ONNX files of encoders, for any runtime.
//!
//! The input is called `pixels` `[batch, channels, height, width]` and holds pixels from 0 to 1 (or
//! `features` `[batch, coordinates]` as they are); the encoder's own normalisation is part of the file. The
//! output is called `vector` `[batch, d]`.

use rehang_core::{Matrix, Result};
use rehang_files::onnx::{Attribute, Network};
use rehang_fit::network::VARIANCE_EPSILON;

use super::graph::{GENERALISED_MEAN_MINIMUM, GraphNode, Operation, Sliding};
use super::{Graph, TrainedEncoder};

impl TrainedEncoder {
    /// Writes the bytes of an ONNX file (operator set 17).
    ///
    /// # Errors
    ///
    /// As [`TrainedEncoder::graph`].
    pub fn to_onnx(&self) -> Result<Vec<u8>> {
        let graph = self.graph()?;
        let shape = self.input;
        let is_vector = shape.height * shape.width == 1;
        let (name, sides) = if is_vector {
            ("features", vec![shape.channels])
        } else {
            ("pixels", vec![shape.channels, shape.height, shape.width])
        };
        let mut network = Network::new("encoder");
        network.input(name, &sides);
        let channel = if is_vector { vec![1, shape.channels] } else { vec![1, shape.channels, 1, 1] };
        let mean = network.constant(&channel, &self.normalisation.mean);
        let deviation = network.constant(&channel, &self.normalisation.std);
        let centred = network.operator("Sub", &[name, &mean], &[]);
        let input = network.operator("Div", &[&centred, &deviation], &[]);
        let output = write(&graph, &self.state, input, &mut network)?;
        network.output("vector", &output, &[graph.outputs()]);
        Ok(network.to_bytes())
    }
}

/// Writes every operation after the input; gives the name of the last value.
fn write(
    graph: &Graph,
    state: &rehang_fit::network::State,
    input: String,
    network: &mut Network,
) -> Result<String> {
    let mut names = vec![input];
    for (&GraphNode { input, operation }, shape) in graph.nodes.iter().zip(&graph.shapes).skip(1) {
        let constant = |network: &mut Network, parameter: usize| {
            let parameter = &graph.parameters[parameter];
            network.constant(&parameter.shape, &state.parameters[parameter.range.clone()])
        };
        let sliding = |window: Sliding| {
            let two = |value: usize| Attribute::Integers(vec![value as i64; 2]);
            [
                ("kernel_shape", two(window.side)),
                ("strides", two(window.stride)),
                ("pads", Attribute::Integers(vec![window.padding as i64; 4])),
            ]
        };
        let name = match operation {
            Operation::Input => names[0].clone(),
            Operation::Convolution { weight, window } => {
                let weight = constant(network, weight);
                network.operator("Conv", &[&names[input], &weight], &sliding(window))
            }
            Operation::Normalisation { scale, shift, statistics } => {
                let range = graph.statistics[statistics].range.clone();
                let (scale, shift) = (constant(network, scale), constant(network, shift));
                let mean = network.constant(&[range.len()], &state.running_mean[range.clone()]);
                let variance = network.constant(&[range.len()], &state.running_variance[range]);
                let epsilon = [("epsilon", Attribute::Float(VARIANCE_EPSILON as f32))];
                let inputs: [&str; 5] = [&names[input], &scale, &shift, &mean, &variance];
                network.operator("BatchNormalization", &inputs, &epsilon)
            }
            Operation::Relu => network.operator("Relu", &[&names[input]], &[]),
            Operation::Sum { other } => network.operator("Add", &[&names[input], &names[other]], &[]),
            Operation::MaximumPool { window } => {
                network.operator("MaxPool", &[&names[input]], &sliding(window))
            }
            Operation::AveragePool => {
                let pooled = network.operator("GlobalAveragePool", &[&names[input]], &[]);
                network.operator("Flatten", &[&pooled], &[])
            }
            Operation::GeneralisedMeanPool => {
                let minimum = network.constant(&[], &[GENERALISED_MEAN_MINIMUM]);
                let (three, third) = (network.constant(&[], &[3.0]), network.constant(&[], &[1.0 / 3.0]));
                let positive = network.operator("Max", &[&names[input], &minimum], &[]);
                let cubes = network.operator("Pow", &[&positive, &three], &[]);
                let mean = network.operator("GlobalAveragePool", &[&cubes], &[]);
                let root = network.operator("Pow", &[&mean, &third], &[]);
                network.operator("Flatten", &[&root], &[])
            }
            Operation::Flatten => network.operator("Flatten", &[&names[input]], &[]),
            Operation::Dense { weight, bias } => {
                let numbers = |parameter: usize| &state.parameters[graph.parameters[parameter].range.clone()];
                let inputs = graph.parameters[weight].shape[1];
                let matrix = Matrix::new(inputs, numbers(weight).to_vec())?;
                debug_assert_eq!(matrix.rows(), shape.channels);
                network.dense(&names[input], &matrix, numbers(bias))
            }
        };
        names.push(name);
    }
    Ok(names.pop().unwrap_or_default())
}
