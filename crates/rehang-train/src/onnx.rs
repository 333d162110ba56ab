//! Writes a network as an ONNX file, so that a trained encoder runs anywhere.
//!
//! ONNX is a protocol buffer; the few messages that a feed-forward network needs are written here directly, field by field,
//! as <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto> numbers them. The batch dimension is left open and called
//! `batch`.

use rehang::Matrix;

/// Version of the ONNX file format that is written.
const IR_VERSION: u64 = 8;
/// Version of the operator set that is written.
const OPERATOR_SET: u64 = 17;
const TYPE_F32: u64 = 1;

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

/// A network that is being written: operators in the order of their work.
///
/// ```
/// use rehang::Matrix;
/// use rehang_train::onnx::Network;
///
/// // y = relu(x Wᵀ + b), 2 inputs, 3 outputs.
/// let mut network = Network::new("pixels", &[2]);
/// let weight = Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0])?;
/// let layer = network.dense("pixels", &weight, &[0.0, 0.0, -1.0]);
/// let output = network.operator("Relu", &[&layer], &[]);
/// let bytes = network.finish(&output, 3);
/// assert_eq!(&bytes[..2], [8, 8]);
/// # Ok::<(), rehang::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Network {
    nodes: Vec<Vec<u8>>,
    constants: Vec<Vec<u8>>,
    input: Vec<u8>,
    names: usize,
}

impl Network {
    /// A network with one input `[batch, shape…]` of single-precision numbers.
    pub fn new(input: &str, shape: &[usize]) -> Self {
        Self { input: value_info(input, shape), ..Self::default() }
    }

    /// Adds a constant of single-precision numbers; gives its name.
    pub fn constant(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = self.fresh("constant");
        let mut tensor = Message::default();
        for &length in shape {
            tensor.integer(1, length as u64);
        }
        tensor.integer(2, TYPE_F32);
        tensor.bytes(8, name.as_bytes());
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensor.bytes(9, &raw);
        self.constants.push(tensor.0);
        name
    }

    /// Adds an operator with one output; gives the output's name.
    pub fn operator(&mut self, kind: &str, inputs: &[&str], attributes: &[(&str, Attribute)]) -> String {
        let output = self.fresh(&kind.to_lowercase());
        let mut node = Message::default();
        for input in inputs {
            node.bytes(1, input.as_bytes());
        }
        node.bytes(2, output.as_bytes());
        node.bytes(3, output.as_bytes());
        node.bytes(4, kind.as_bytes());
        for (name, value) in attributes {
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
        self.nodes.push(node.0);
        output
    }

    /// Adds `y = x Wᵀ + b` with weight `[outputs, inputs]` and bias `[outputs]`; gives the output's name.
    pub fn dense(&mut self, input: &str, weight: &Matrix, bias: &[f32]) -> String {
        let weight = self.constant(&[weight.rows(), weight.columns()], weight.as_slice());
        let bias = self.constant(&[bias.len()], bias);
        self.operator("Gemm", &[input, &weight, &bias], &[("transB", Attribute::Integer(1))])
    }

    /// The bytes of the file: the value named `output`, `[batch, width]`, is what the network gives, under the name `vector`.
    pub fn finish(mut self, output: &str, width: usize) -> Vec<u8> {
        let mut node = Message::default();
        node.bytes(1, output.as_bytes());
        node.bytes(2, b"vector");
        node.bytes(4, b"Identity");
        self.nodes.push(node.0);
        let mut graph = Message::default();
        for node in &self.nodes {
            graph.bytes(1, node);
        }
        graph.bytes(2, b"encoder");
        for constant in &self.constants {
            graph.bytes(5, constant);
        }
        graph.bytes(11, &self.input);
        graph.bytes(12, &value_info("vector", &[width]));
        let mut operators = Message::default();
        operators.bytes(1, b"");
        operators.integer(2, OPERATOR_SET);
        let mut model = Message::default();
        model.integer(1, IR_VERSION);
        model.bytes(2, b"rehang");
        model.bytes(3, env!("CARGO_PKG_VERSION").as_bytes());
        model.bytes(7, &graph.0);
        model.bytes(8, &operators.0);
        model.0
    }

    fn fresh(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }
}

/// A value `[batch, shape…]` of single-precision numbers.
fn value_info(name: &str, shape: &[usize]) -> Vec<u8> {
    let mut dimensions = Message::default();
    let mut batch = Message::default();
    batch.bytes(2, b"batch");
    dimensions.bytes(1, &batch.0);
    for &length in shape {
        let mut dimension = Message::default();
        dimension.integer(1, length as u64);
        dimensions.bytes(1, &dimension.0);
    }
    let mut tensor = Message::default();
    tensor.integer(1, TYPE_F32);
    tensor.bytes(2, &dimensions.0);
    let mut kind = Message::default();
    kind.bytes(1, &tensor.0);
    let mut info = Message::default();
    info.bytes(1, name.as_bytes());
    info.bytes(2, &kind.0);
    info.0
}

/// A message of a protocol buffer, field after field.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// A whole number, in 7-bit groups, the lowest first.
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
