//! Graph of an encoder, a list of operations: the one description that is trained, embedded with, written to
//! a file and exported.
//!
//! Node 0 is the input. Every other node reads nodes before it, and the last node is the vector. Parameters
//! are named ranges of one flat vector, so that an optimiser is one pass, a checkpoint is a copy, and a file
//! is a list of names.

use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_fit::network::{State, draw_uniform};

/// Shape of one row at a node: `channels` planes of `height` × `width` numbers (a vector has 1 × 1 planes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of planes, or of coordinates of a vector.
    pub channels: usize,
    /// Number of rows of a plane.
    pub height: usize,
    /// Number of columns of a plane.
    pub width: usize,
}

impl Shape {
    /// Counts the numbers of one row; the largest count there is where they are more.
    pub fn size(self) -> usize {
        product(&[self.channels, self.height, self.width])
    }
}

/// Parameter: its name in files, its shape there, and where it lies in the flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Name, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// Shape in files; a convolution's is `[outputs, inputs, height, width]`.
    pub shape: Vec<usize>,
    /// Place in the flat vector.
    pub range: Range<usize>,
    /// Role, which decides how the parameter starts.
    pub role: Role,
}

/// Role of a parameter. Weight decay is the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Weight of a convolution; starts normal with variance `2/(outputs·height·width)` (He et al. 2015,
    /// fan-out).
    Convolution,
    /// Weight of a dense layer with so many inputs; starts uniform in ±1/√inputs.
    Dense,
    /// Bias of a dense layer with so many inputs; starts uniform in ±1/√inputs.
    Bias {
        /// Inputs of its layer.
        inputs: usize,
    },
    /// γ of BatchNorm; starts at 1.
    Scale,
    /// β of BatchNorm; starts at 0.
    Shift,
}

/// Running mean and variance of one BatchNorm: a name in files and a range of the two flat vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// Name, such as `layer1.0.bn1`; files hold `….running_mean` and `….running_var`.
    pub name: String,
    /// Place in both vectors.
    pub range: Range<usize>,
}

/// Way in which a square window moves over planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sliding {
    /// Side of the window.
    pub side: usize,
    /// Step between windows.
    pub stride: usize,
    /// Rows and columns of padding on every side: zeros for a convolution, never the largest for a maximum.
    pub padding: usize,
}

impl Sliding {
    /// Counts the windows along `length` numbers.
    pub fn count(self, length: usize) -> usize {
        (length + 2 * self.padding - self.side) / self.stride + 1
    }
}

/// Node without its shape: what it does with the node that it reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphNode {
    /// Node that is read; of no meaning for the input.
    pub input: usize,
    /// Operation on the node that is read.
    pub operation: Operation,
}

/// Operation of a node; numbers of nodes, parameters and statistics are places in their lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    /// The input as it is.
    Input,
    /// Cross-correlation without bias.
    Convolution {
        /// Place of the weight `[outputs, inputs, side, side]`.
        weight: usize,
        /// Window of the convolution.
        window: Sliding,
    },
    /// BatchNorm over rows and positions: `γ·(x − μ)/√(var + 1e-5) + β`.
    Normalisation {
        /// Place of γ.
        scale: usize,
        /// Place of β.
        shift: usize,
        /// Place of the running μ and var.
        statistics: usize,
    },
    /// Rectified value, max(x, 0).
    Relu,
    /// Sum with another node of the same shape.
    Sum {
        /// Second summand.
        other: usize,
    },
    /// Largest number of every window.
    MaximumPool {
        /// The window.
        window: Sliding,
    },
    /// Mean of every plane: `[c, h, w] → [c]`.
    AveragePool,
    /// Generalised mean of every plane (GeM, Radenović et al. 2018): `(mean max(x, 1e-6)³)^(1/3)`.
    GeneralisedMeanPool,
    /// Planes as one vector: `[c, h, w] → [c·h·w]`.
    Flatten,
    /// Dense layer `W x + b` on vectors, W `[outputs, inputs]`.
    Dense {
        /// Place of W.
        weight: usize,
        /// Place of b.
        bias: usize,
    },
}

impl GraphNode {
    /// Lists the nodes that are read.
    pub fn inputs(&self) -> impl Iterator<Item = usize> {
        let (first, second) = match self.operation {
            Operation::Input => (None, None),
            Operation::Sum { other } => (Some(self.input), Some(other)),
            _ => (Some(self.input), None),
        };
        first.into_iter().chain(second)
    }
}

/// Number that smaller ones count as in [`Operation::GeneralisedMeanPool`], so that its root has a finite
/// slope.
pub const GENERALISED_MEAN_MINIMUM: f32 = 1e-6;

/// Encoder: what it computes, and what its parameters are called.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// Nodes in the order of their work; node 0 is the input, the last one the vector.
    pub nodes: Vec<GraphNode>,
    /// Shape of one row at every node.
    pub shapes: Vec<Shape>,
    /// All parameters, in the order of the flat vector.
    pub parameters: Vec<Parameter>,
    /// All BatchNorm statistics, in the order of the flat vectors.
    pub statistics: Vec<Statistics>,
}

impl Graph {
    /// Makes a graph that is nothing but its input.
    pub fn new(input: Shape) -> Self {
        Self {
            nodes: vec![GraphNode { input: 0, operation: Operation::Input }],
            shapes: vec![input],
            parameters: Vec::new(),
            statistics: Vec::new(),
        }
    }

    /// Shape of one input row.
    pub fn input(&self) -> Shape {
        self.shapes[0]
    }

    /// Coordinates of the vector: the width of the last node.
    pub fn outputs(&self) -> usize {
        self.shapes[self.shapes.len() - 1].size()
    }

    /// Number of parameters.
    ///
    /// ```
    /// use rehang_train::encoder::{Graph, Shape};
    ///
    /// let mut graph = Graph::new(Shape { channels: 8, height: 1, width: 1 });
    /// graph.dense(0, "fc", 3);
    /// assert_eq!((graph.parameter_count(), graph.outputs()), (27, 3));
    /// ```
    pub fn parameter_count(&self) -> usize {
        self.parameters.last().map_or(0, |parameter| parameter.range.end)
    }

    /// Counts the numbers in each of the two vectors of running statistics.
    pub fn statistics_count(&self) -> usize {
        self.statistics.last().map_or(0, |statistics| statistics.range.end)
    }

    /// Adds a convolution without bias; gives its node.
    pub fn convolution(&mut self, input: usize, name: &str, outputs: usize, window: Sliding) -> usize {
        let shape = self.shapes[input];
        let weight = self.parameter(
            format!("{name}.weight"),
            vec![outputs, shape.channels, window.side, window.side],
            Role::Convolution,
        );
        let (height, width) = (window.count(shape.height), window.count(shape.width));
        self.node(
            input,
            Operation::Convolution { weight, window },
            Shape { channels: outputs, height, width },
        )
    }

    /// Adds BatchNorm; gives its node.
    pub fn normalisation(&mut self, input: usize, name: &str) -> usize {
        let channels = self.shapes[input].channels;
        let scale = self.parameter(format!("{name}.weight"), vec![channels], Role::Scale);
        let shift = self.parameter(format!("{name}.bias"), vec![channels], Role::Shift);
        let start = self.statistics_count();
        let range = start..start.saturating_add(channels);
        self.statistics.push(Statistics { name: name.to_owned(), range });
        let statistics = self.statistics.len() - 1;
        self.node(input, Operation::Normalisation { scale, shift, statistics }, self.shapes[input])
    }

    /// Adds max(x, 0); gives its node.
    pub fn relu(&mut self, input: usize) -> usize {
        self.node(input, Operation::Relu, self.shapes[input])
    }

    /// Adds the sum of two nodes of one shape; gives its node.
    pub fn sum(&mut self, left: usize, right: usize) -> usize {
        assert_eq!(self.shapes[left], self.shapes[right], "a sum needs two nodes of one shape");
        self.node(left, Operation::Sum { other: right }, self.shapes[left])
    }

    /// Adds the largest number of every window; gives its node.
    pub fn maximum_pool(&mut self, input: usize, window: Sliding) -> usize {
        let Shape { channels, height, width } = self.shapes[input];
        let shape = Shape { channels, height: window.count(height), width: window.count(width) };
        self.node(input, Operation::MaximumPool { window }, shape)
    }

    /// Adds the mean of every plane; gives its node.
    pub fn average_pool(&mut self, input: usize) -> usize {
        let channels = self.shapes[input].channels;
        self.node(input, Operation::AveragePool, Shape { channels, height: 1, width: 1 })
    }

    /// Adds the generalised mean of every plane; gives its node.
    pub fn generalised_mean_pool(&mut self, input: usize) -> usize {
        let channels = self.shapes[input].channels;
        self.node(input, Operation::GeneralisedMeanPool, Shape { channels, height: 1, width: 1 })
    }

    /// Adds the planes as one vector; gives its node.
    pub fn flatten(&mut self, input: usize) -> usize {
        let channels = self.shapes[input].size();
        self.node(input, Operation::Flatten, Shape { channels, height: 1, width: 1 })
    }

    /// Adds `W x + b`; gives its node.
    pub fn dense(&mut self, input: usize, name: &str, outputs: usize) -> usize {
        let inputs = self.shapes[input].size();
        let weight = self.parameter(format!("{name}.weight"), vec![outputs, inputs], Role::Dense);
        let bias = self.parameter(format!("{name}.bias"), vec![outputs], Role::Bias { inputs });
        let shape = Shape { channels: outputs, height: 1, width: 1 };
        self.node(input, Operation::Dense { weight, bias }, shape)
    }

    /// Draws parameters and running statistics for the start of a training, from ChaCha8 with the given seed;
    /// [`Role`] says how each starts. Running means start at 0, running variances at 1.
    pub fn initial(&self, seed: u64) -> State {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let mut parameters = vec![0.0; self.parameter_count()];
        for parameter in &self.parameters {
            let values = &mut parameters[parameter.range.clone()];
            match parameter.role {
                Role::Convolution => {
                    let fan_out = parameter.shape[0] * parameter.shape[2] * parameter.shape[3];
                    let deviation = (2.0 / fan_out as f64).sqrt();
                    for value in values {
                        *value = (deviation * normal(&mut generator)) as f32;
                    }
                }
                Role::Dense => draw_uniform(values, parameter.shape[1], &mut generator),
                Role::Bias { inputs } => draw_uniform(values, inputs, &mut generator),
                Role::Scale => values.fill(1.0),
                Role::Shift => values.fill(0.0),
            }
        }
        State {
            parameters,
            running_mean: vec![0.0; self.statistics_count()],
            running_variance: vec![1.0; self.statistics_count()],
        }
    }

    /// Lists the nodes that read each node, once for every time.
    pub(crate) fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers = vec![Vec::new(); self.nodes.len()];
        for (number, node) in self.nodes.iter().enumerate() {
            node.inputs().for_each(|input| readers[input].push(number));
        }
        readers
    }

    fn node(&mut self, input: usize, operation: Operation, shape: Shape) -> usize {
        self.nodes.push(GraphNode { input, operation });
        self.shapes.push(shape);
        self.nodes.len() - 1
    }

    fn parameter(&mut self, name: String, shape: Vec<usize>, role: Role) -> usize {
        let start = self.parameter_count();
        let range = start..start.saturating_add(product(&shape));
        self.parameters.push(Parameter { name, shape, range, role });
        self.parameters.len() - 1
    }
}

/// Multiplies sizes; gives the largest number there is where the product is beyond that, which no tensor and
/// no memory holds.
fn product(sizes: &[usize]) -> usize {
    sizes.iter().copied().fold(1, usize::saturating_mul)
}

/// Draws a standard normal number (Box and Muller 1958).
pub(crate) fn normal(generator: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - generator.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * generator.random::<f64>()).cos()
}
