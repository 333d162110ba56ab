//! Trains the two encoders of the demo on the UCI digits and embeds every image with both.
//!
//! The old encoder is what a gallery of some years ago would have: it sees the image at a quarter of its pixels, has
//! few units, and learned five of the ten digits. The new one sees every pixel and learned all ten. Both learn only
//! from the images with role 0; the gallery of the demo is made of images with role 1, which neither has seen.

use burn_tensor::activation::{log_softmax, relu};
use burn_tensor::{Device, Tensor, TensorData};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang::{Matrix, Result};
use rehang_files::onnx::{Attribute, Network};
use rehang_files::{AtomicFile, VectorSource};

/// Share of the images that the encoders and the adapter may learn from.
const TRAINING_SHARE: f64 = 0.4;
/// The old encoder learned the digits below this one.
const OLD_CLASSES: usize = 5;
const CLASSES: usize = 10;
const SEED: u64 = 7;

/// An encoder `x → relu(x W₁ + b₁) W₂ + b₂` with a linear head on top, as plain numbers.
struct Encoder {
    inputs: usize,
    hidden: usize,
    outputs: usize,
    classes: usize,
    parameters: [Vec<f32>; 6],
}

/// Writes `demo/{role,old,new,head_weight,head_bias}.npy` and `demo/{old,new}_encoder.onnx` from
/// `demo/{images,label}.npy`.
pub fn run() -> Result<()> {
    let images = rehang_files::read_matrix(&VectorSource::parse("demo/images.npy")?)?;
    let labels = rehang_files::read_labels(&VectorSource::parse("demo/label.npy")?)?;
    let mut shuffled: Vec<usize> = (0..images.rows()).collect();
    shuffled.shuffle(&mut ChaCha8Rng::seed_from_u64(SEED));
    let training = &shuffled[..(images.rows() as f64 * TRAINING_SHARE) as usize];
    let mut role = vec![1; images.rows()];
    for &row in training {
        role[row] = 0;
    }

    let pixels = Matrix::from_fn(images.rows(), 64, |row, column| images.row(row)[column] / 16.0);
    // Every coarse pixel is the mean of a 2 x 2 block of fine ones.
    let coarse = Matrix::from_fn(images.rows(), 16, |row, column| {
        let corner = (column / 4) * 16 + (column % 4) * 2;
        [0, 1, 8, 9].iter().map(|offset| pixels.row(row)[corner + offset]).sum::<f32>() / 4.0
    });
    let known: Vec<usize> =
        training.iter().copied().filter(|&row| (labels[row] as usize) < OLD_CLASSES).collect();

    let old = train(&coarse.select(&known), &pick(&labels, &known), 12, 8, OLD_CLASSES, 60);
    let new = train(&pixels.select(training), &pick(&labels, training), 96, 32, CLASSES, 300);
    rehang_files::write_matrix("demo/old.npy", &embed(&old, &coarse), None)?;
    rehang_files::write_matrix("demo/new.npy", &embed(&new, &pixels), None)?;
    AtomicFile::write("demo/old_encoder.onnx", to_onnx(&old, 2))?;
    AtomicFile::write("demo/new_encoder.onnx", to_onnx(&new, 1))?;
    let [.., head_weight, head_bias] = &new.parameters;
    // burn keeps weights as [inputs, outputs]; a head file is [classes, d].
    let weight = Matrix::from_fn(CLASSES, new.outputs, |class, column| head_weight[column * CLASSES + class]);
    rehang_files::write_matrix("demo/head_weight.npy", &weight, None)?;
    rehang_files::write_f32("demo/head_bias.npy", head_bias)?;
    rehang_files::write_labels("demo/role.npy", &role)?;
    Ok(())
}

/// The encoder as a network from images `[batch, 1, 8, 8]` (pixels from 0 to 1) to vectors; it sees means of blocks of
/// `block` x `block` pixels.
fn to_onnx(encoder: &Encoder, block: i64) -> Vec<u8> {
    let [w1, b1, w2, b2, ..] = &encoder.parameters;
    // burn keeps weights as [inputs, outputs]; a dense layer here is [outputs, inputs].
    let transposed = |weight: &[f32], inputs: usize, outputs: usize| {
        Matrix::from_fn(outputs, inputs, |output, input| weight[input * outputs + output])
    };
    let mut network = Network::new("encoder");
    network.input("pixels", &[1, 8, 8]);
    let sides = Attribute::Integers(vec![block, block]);
    let seen =
        network.operator("AveragePool", &["pixels"], &[("kernel_shape", sides.clone()), ("strides", sides)]);
    let flat = network.operator("Flatten", &[&seen], &[]);
    let hidden = network.dense(&flat, &transposed(w1, encoder.inputs, encoder.hidden), b1);
    let hidden = network.operator("Relu", &[&hidden], &[]);
    let output = network.dense(&hidden, &transposed(w2, encoder.hidden, encoder.outputs), b2);
    let output = network.operator("Relu", &[&output], &[]);
    network.output("vector", &output, &[encoder.outputs]);
    network.to_bytes()
}

fn pick(labels: &[i64], rows: &[usize]) -> Vec<i64> {
    rows.iter().map(|&row| labels[row]).collect()
}

/// Full-batch gradient descent with momentum on the cross-entropy of the head.
fn train(
    inputs: &Matrix,
    labels: &[i64],
    hidden: usize,
    outputs: usize,
    classes: usize,
    steps: usize,
) -> Encoder {
    let device = Device::flex().autodiff();
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let shapes = [
        [inputs.columns(), hidden],
        [1, hidden],
        [hidden, outputs],
        [1, outputs],
        [outputs, classes],
        [1, classes],
    ];
    let mut parameters = shapes.map(|[rows, columns]| {
        let bound = if rows == 1 { 0.0 } else { (6.0 / rows as f32).sqrt() };
        let start: Vec<f32> = (0..rows * columns).map(|_| random.random_range(-1.0..=1.0) * bound).collect();
        Tensor::<2>::from_data(TensorData::new(start, [rows, columns]), &device).require_grad()
    });
    let x = Tensor::<2>::from_data(
        TensorData::new(inputs.as_slice().to_vec(), [inputs.rows(), inputs.columns()]),
        &device,
    );
    let targets = Matrix::from_fn(labels.len(), classes, |row, class| f32::from(labels[row] == class as i64));
    let y = Tensor::<2>::from_data(TensorData::new(targets.into_data(), [labels.len(), classes]), &device);
    let mut velocity: [Option<Tensor<2>>; 6] = Default::default();
    for _ in 0..steps {
        let [w1, b1, w2, b2, w3, b3] = parameters.clone();
        let embedding = relu(x.clone().matmul(w1) + b1).matmul(w2) + b2;
        let logits = relu(embedding).matmul(w3) + b3;
        let loss = (log_softmax(logits, 1) * y.clone()).sum().neg() / labels.len() as f32;
        let gradients = loss.backward();
        for (parameter, velocity) in parameters.iter_mut().zip(&mut velocity) {
            let Some(gradient) = parameter.grad(&gradients) else { continue };
            let gradient = gradient.inner();
            let next = match velocity.take() {
                Some(previous) => previous * 0.9 + gradient,
                None => gradient,
            };
            *parameter = Tensor::from_inner(parameter.clone().inner() - next.clone() * 0.1).require_grad();
            *velocity = Some(next);
        }
    }
    let parameters = parameters
        .map(|tensor| tensor.into_data().try_to_vec::<f32>().expect("parameters are 32-bit floats"));
    Encoder { inputs: inputs.columns(), hidden, outputs, classes, parameters }
}

/// The embedding of every input: `[n, outputs]`.
fn embed(encoder: &Encoder, inputs: &Matrix) -> Matrix {
    let [w1, b1, w2, b2, ..] = &encoder.parameters;
    debug_assert_eq!(encoder.inputs, inputs.columns());
    debug_assert_eq!(encoder.parameters[5].len(), encoder.classes);
    let hidden = Matrix::from_fn(inputs.rows(), encoder.hidden, |row, unit| {
        let x = inputs.row(row);
        let sum: f32 = (0..x.len()).map(|input| x[input] * w1[input * encoder.hidden + unit]).sum();
        (sum + b1[unit]).max(0.0)
    });
    // The head reads the embedding through a ReLU, and so does the gallery: penultimate features, as models ship them.
    Matrix::from_fn(inputs.rows(), encoder.outputs, |row, unit| {
        let x = hidden.row(row);
        let sum: f32 = (0..x.len()).map(|input| x[input] * w2[input * encoder.outputs + unit]).sum();
        (sum + b2[unit]).max(0.0)
    })
}
