//! Demo data: trains the two encoders of the demo on the UCI digits and embeds every image with both.
//!
//! The old encoder is what a gallery of some years ago would have: it sees the image at a quarter of its
//! pixels, has few units, and learned five of the ten digits. The new one sees every pixel and learned all
//! ten. Both learn only from the images with role 0. The gallery of the demo is made of images with role 1,
//! which neither has seen.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::{Matrix, Result};
use rehang_files::onnx::{Attribute, Network};
use rehang_files::{AtomicFile, VectorSource};
use rehang_fit::objectives::cross_entropy::cross_entropy_row;
use rehang_train::encoder::{Graph, Mode, Passes, Shape};

/// Share of the images that the encoders and the adapter may learn from.
const TRAINING_SHARE: f64 = 0.4;
/// The old encoder learned the digits below this one.
const OLD_CLASSES: usize = 5;
const CLASSES: usize = 10;
const SEED: u64 = 7;

/// Layer: weight `[outputs, inputs]` and bias.
type Layer = (Matrix, Vec<f32>);

/// Encoder `x → relu(W₂ relu(W₁ x + b₁) + b₂)` with a linear head on top.
struct Encoder {
    hidden: Layer,
    vector: Layer,
    head: Layer,
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

    let old = train(&coarse.select(&known), &pick(&labels, &known), 12, 8, OLD_CLASSES, 60)?;
    let new = train(&pixels.select(training), &pick(&labels, training), 96, 32, CLASSES, 300)?;
    rehang_files::write_matrix("demo/old.npy", &embed(&old, &coarse), None)?;
    rehang_files::write_matrix("demo/new.npy", &embed(&new, &pixels), None)?;
    AtomicFile::write("demo/old_encoder.onnx", to_onnx(&old, 2))?;
    AtomicFile::write("demo/new_encoder.onnx", to_onnx(&new, 1))?;
    let (head_weight, head_bias) = &new.head;
    rehang_files::write_matrix("demo/head_weight.npy", head_weight, None)?;
    rehang_files::write_f32("demo/head_bias.npy", head_bias)?;
    rehang_files::write_labels("demo/role.npy", &role)?;
    Ok(())
}

/// Writes the encoder as a network from images `[batch, 1, 8, 8]` (pixels from 0 to 1) to vectors; it sees
/// means of blocks of `block` x `block` pixels.
fn to_onnx(encoder: &Encoder, block: i64) -> Vec<u8> {
    let mut network = Network::new("encoder");
    network.input("pixels", &[1, 8, 8]);
    let sides = Attribute::Integers(vec![block, block]);
    let seen =
        network.operator("AveragePool", &["pixels"], &[("kernel_shape", sides.clone()), ("strides", sides)]);
    let flat = network.operator("Flatten", &[&seen], &[]);
    let (weight, bias) = &encoder.hidden;
    let hidden = network.dense(&flat, weight, bias);
    let hidden = network.operator("Relu", &[&hidden], &[]);
    let (weight, bias) = &encoder.vector;
    let output = network.dense(&hidden, weight, bias);
    let output = network.operator("Relu", &[&output], &[]);
    network.output("vector", &output, &[weight.rows()]);
    network.to_bytes()
}

fn pick(labels: &[i64], rows: &[usize]) -> Vec<i64> {
    rows.iter().map(|&row| labels[row]).collect()
}

/// Trains an encoder by full-batch gradient descent with momentum on the cross-entropy of the head.
fn train(
    inputs: &Matrix,
    labels: &[i64],
    hidden: usize,
    outputs: usize,
    classes: usize,
    steps: usize,
) -> Result<Encoder> {
    let mut graph = Graph::new(Shape { channels: inputs.columns(), height: 1, width: 1 });
    let mut node = 0;
    for (name, width) in [("hidden", hidden), ("vector", outputs)] {
        node = graph.dense(node, name, width);
        node = graph.relu(node);
    }
    graph.dense(node, "head", classes);
    let mut state = graph.initial(SEED);
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    for parameter in &graph.parameters {
        // A bias is drawn as a weight of one input and starts at 0.
        let columns = parameter.shape[0];
        let rows = parameter.shape.get(1).copied().unwrap_or(1);
        let bound = if rows == 1 { 0.0 } else { (6.0 / rows as f32).sqrt() };
        let values = &mut state.parameters[parameter.range.clone()];
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            values[column * rows + row] = random.random_range(-1.0..=1.0) * bound;
        }
    }
    let mut passes = Passes::new(&graph);
    let mut velocity = vec![0.0; graph.parameter_count()];
    let mut gradient = velocity.clone();
    for _ in 0..steps {
        let mut logits = passes.forward(&mut state, inputs.as_slice(), labels.len(), Mode::Training)?;
        for (logits, &label) in logits.chunks_exact_mut(classes).zip(labels) {
            cross_entropy_row(logits, label as usize, 0.0);
            for slope in &mut *logits {
                *slope /= labels.len() as f32;
            }
        }
        gradient.fill(0.0);
        passes.backward(&state, &logits, &mut gradient)?;
        for ((parameter, velocity), &gradient) in
            state.parameters.iter_mut().zip(&mut velocity).zip(&gradient)
        {
            *velocity = 0.9 * *velocity + gradient;
            *parameter -= 0.1 * *velocity;
        }
    }
    let numbers = |parameter: usize| state.parameters[graph.parameters[parameter].range.clone()].to_vec();
    let layer = |number: usize| -> Result<Layer> {
        let inputs = graph.parameters[2 * number].shape[1];
        Ok((Matrix::new(inputs, numbers(2 * number))?, numbers(2 * number + 1)))
    };
    Ok(Encoder { hidden: layer(0)?, vector: layer(1)?, head: layer(2)? })
}

/// Embeds every input: `[n, outputs]`.
///
/// The head reads the embedding through a ReLU, and so does the gallery: penultimate features, as models ship
/// them.
fn embed(encoder: &Encoder, inputs: &Matrix) -> Matrix {
    let through = |(weight, bias): &Layer, inputs: &Matrix| {
        Matrix::from_fn(inputs.rows(), weight.rows(), |row, unit| {
            let products = inputs.row(row).iter().zip(weight.row(unit));
            (products.map(|(x, w)| x * w).sum::<f32>() + bias[unit]).max(0.0)
        })
    };
    through(&encoder.vector, &through(&encoder.hidden, inputs))
}
