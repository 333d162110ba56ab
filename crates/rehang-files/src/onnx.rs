//! Networks as data, and as ONNX files: any runtime of ONNX, on any device, can do what an encoder or an
//! adapter does.
//!
//! ONNX is a protocol buffer. The few messages that a feed-forward network needs are written here directly,
//! field by field, as <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto> numbers them. The batch
//! dimension is left open and called `batch`.

use rehang_core::Matrix;
use std::fmt;

/// Version of the ONNX file format that is written.
const IR_VERSION: u64 = 8;
/// Version of the operator set that is written.
const OPERATOR_SET: u64 = 17;
/// Number by which ONNX names single precision, for example in the attribute `to` of a `Cast`.
pub const TYPE_F32: i64 = 1;
/// Number by which ONNX names whole numbers of 64 bits.
pub const TYPE_I64: i64 = 7;
/// Number by which ONNX names double precision.
pub const TYPE_F64: i64 = 11;

/// A value of an operator's attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A number.
    Float(f32),
    /// A whole number.
    Integer(i64),
    /// Whole numbers.
    Integers(Vec<i64>),
}

/// Numbers of a constant.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Single-precision numbers.
    Floats(Vec<f32>),
    /// Whole numbers: counts, axes.
    Integers(Vec<i64>),
}

/// Constant value in a network.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// Name of the constant.
    pub name: String,
    /// Shape of the constant; empty for a single number.
    pub shape: Vec<usize>,
    /// Numbers of the constant, row after row.
    pub numbers: Numbers,
}

/// One operator of a network.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Operator {
    /// Kind of the operator in ONNX: `Gemm`, `Relu`, …
    pub kind: String,
    /// Names of the operator's inputs.
    pub inputs: Vec<String>,
    /// Names of the operator's outputs.
    pub outputs: Vec<String>,
    /// Names and values of the operator's attributes.
    pub attributes: Vec<(String, Attribute)>,
}

/// Input or output of a network: single-precision numbers, `[batch, shape…]`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Port {
    /// Name of the input or output.
    pub name: String,
    /// Shape without the batch dimension.
    pub shape: Vec<usize>,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} [batch", self.name)?;
        for length in &self.shape {
            write!(f, ", {length}")?;
        }
        f.write_str("]")
    }
}

/// A network: operators in the order of their work.
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_files::onnx::Network;
///
/// // y = relu(x Wᵀ + b), 2 inputs, 3 outputs.
/// let mut network = Network::new("encoder");
/// let pixels = network.input("pixels", &[2]);
/// let weight = Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0])?;
/// let layer = network.dense(&pixels, &weight, &[0.0, 0.0, -1.0]);
/// let output = network.operator("Relu", &[&layer], &[]);
/// network.output("vector", &output, &[3]);
/// assert_eq!(&network.to_bytes()[..2], [8, 8]);
/// assert_eq!(network.nodes.len(), 3);
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Network {
    /// Name of the network.
    pub name: String,
    /// Inputs of the network.
    pub inputs: Vec<Port>,
    /// Constants of the network.
    pub constants: Vec<Constant>,
    /// Operators of the network, each after those whose outputs it takes.
    pub nodes: Vec<Operator>,
    /// Outputs of the network.
    pub outputs: Vec<Port>,
    /// Metadata that the file holds beside the network, by key.
    pub metadata: Vec<(String, String)>,
    /// Number of names that were made up so far.
    names: usize,
}

impl Network {
    /// Makes a network without inputs and operators.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds an input `[batch, shape…]` and returns its name.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> String {
        self.inputs.push(Port { name: name.into(), shape: shape.into() });
        name.into()
    }

    /// Adds a constant of single-precision numbers and returns its name.
    pub fn constant(&mut self, shape: &[usize], values: &[f32]) -> String {
        self.constant_of(shape, Numbers::Floats(values.into()))
    }

    /// Adds a list of whole numbers and returns its name.
    pub fn integers(&mut self, values: &[i64]) -> String {
        self.constant_of(&[values.len()], Numbers::Integers(values.into()))
    }

    /// Adds a single whole number and returns its name.
    pub fn integer(&mut self, value: i64) -> String {
        self.constant_of(&[], Numbers::Integers(vec![value]))
    }

    fn constant_of(&mut self, shape: &[usize], numbers: Numbers) -> String {
        let name = self.fresh("constant");
        self.constants.push(Constant { name: name.clone(), shape: shape.into(), numbers });
        name
    }

    /// Adds an operator with one output and returns the output's name.
    pub fn operator(&mut self, kind: &str, inputs: &[&str], attributes: &[(&str, Attribute)]) -> String {
        let [output] = self.operators(kind, inputs, attributes);
        output
    }

    /// Adds an operator with several outputs and returns their names.
    pub fn operators<const N: usize>(
        &mut self,
        kind: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute)],
    ) -> [String; N] {
        let outputs = std::array::from_fn(|_| self.fresh(&kind.to_lowercase()));
        self.nodes.push(Operator {
            kind: kind.into(),
            inputs: inputs.iter().copied().map(Into::into).collect(),
            outputs: outputs.to_vec(),
            attributes: attributes.iter().map(|(name, value)| ((*name).into(), value.clone())).collect(),
        });
        outputs
    }

    /// Adds `y = x Wᵀ + b` with weight `[outputs, inputs]` and bias `[outputs]`, and returns the output's
    /// name.
    pub fn dense(&mut self, input: &str, weight: &Matrix, bias: &[f32]) -> String {
        let weight = self.constant(&[weight.rows(), weight.columns()], weight.as_slice());
        let bias = self.constant(&[bias.len()], bias);
        self.operator("Gemm", &[input, &weight, &bias], &[("transB", Attribute::Integer(1))])
    }

    /// Makes a value, `[batch, shape…]`, an output of the network under a name of its own.
    pub fn output(&mut self, name: &str, value: &str, shape: &[usize]) {
        self.nodes.push(Operator {
            kind: "Identity".into(),
            inputs: vec![value.into()],
            outputs: vec![name.into()],
            attributes: Vec::new(),
        });
        self.outputs.push(Port { name: name.into(), shape: shape.into() });
    }

    /// Serialises the network to the bytes of an ONNX file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut graph = Message::default();
        for node in &self.nodes {
            graph.bytes(1, &node.message().0);
        }
        graph.bytes(2, self.name.as_bytes());
        for constant in &self.constants {
            graph.bytes(5, &constant.message().0);
        }
        for input in &self.inputs {
            graph.bytes(11, &input.message().0);
        }
        for output in &self.outputs {
            graph.bytes(12, &output.message().0);
        }
        let mut operators = Message::default();
        operators.bytes(1, b"");
        operators.integer(2, OPERATOR_SET);
        let mut model = Message::default();
        model.integer(1, IR_VERSION);
        model.bytes(2, b"rehang");
        model.bytes(3, env!("CARGO_PKG_VERSION").as_bytes());
        model.bytes(7, &graph.0);
        model.bytes(8, &operators.0);
        for (key, value) in &self.metadata {
            let mut entry = Message::default();
            entry.bytes(1, key.as_bytes());
            entry.bytes(2, value.as_bytes());
            model.bytes(14, &entry.0);
        }
        model.0
    }

    fn fresh(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }
}

impl Operator {
    fn message(&self) -> Message {
        let mut node = Message::default();
        for input in &self.inputs {
            node.bytes(1, input.as_bytes());
        }
        for output in &self.outputs {
            node.bytes(2, output.as_bytes());
        }
        node.bytes(3, self.outputs[0].as_bytes());
        node.bytes(4, self.kind.as_bytes());
        for (name, value) in &self.attributes {
            let mut attribute = Message::default();
            attribute.bytes(1, name.as_bytes());
            match value {
                Attribute::Float(value) => {
                    attribute.float(2, *value);
                    attribute.integer(20, 1);
                }
                Attribute::Integer(value) => {
                    attribute.integer(3, *value as u64);
                    attribute.integer(20, 2);
                }
                Attribute::Integers(values) => {
                    for value in values {
                        attribute.integer(8, *value as u64);
                    }
                    attribute.integer(20, 7);
                }
            }
            node.bytes(5, &attribute.0);
        }
        node
    }
}

impl Constant {
    fn message(&self) -> Message {
        let mut tensor = Message::default();
        for &length in &self.shape {
            tensor.integer(1, length as u64);
        }
        let (kind, raw): (i64, Vec<u8>) = match &self.numbers {
            Numbers::Floats(values) => {
                (TYPE_F32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
            Numbers::Integers(values) => {
                (TYPE_I64, values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
        };
        tensor.integer(2, kind as u64);
        tensor.bytes(8, self.name.as_bytes());
        tensor.bytes(9, &raw);
        tensor
    }
}

impl Port {
    fn message(&self) -> Message {
        let mut dimensions = Message::default();
        let mut batch = Message::default();
        batch.bytes(2, b"batch");
        dimensions.bytes(1, &batch.0);
        for &length in &self.shape {
            let mut dimension = Message::default();
            dimension.integer(1, length as u64);
            dimensions.bytes(1, &dimension.0);
        }
        let mut tensor = Message::default();
        tensor.integer(1, TYPE_F32 as u64);
        tensor.bytes(2, &dimensions.0);
        let mut kind = Message::default();
        kind.bytes(1, &tensor.0);
        let mut info = Message::default();
        info.bytes(1, self.name.as_bytes());
        info.bytes(2, &kind.0);
        info
    }
}

/// A message of a protocol buffer, field after field.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// Writes a field of a whole number, in 7-bit groups, the lowest first.
    fn integer(&mut self, field: u64, value: u64) {
        self.group(field << 3);
        self.group(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.group(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.group(field << 3 | 2);
        self.group(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn group(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
