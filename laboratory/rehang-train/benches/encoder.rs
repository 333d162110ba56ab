//! Training steps of encoders on the processor: forward pass, mean squared error, backward pass and a step of
//! gradient descent with momentum 0.9, on one batch of 128 images of 3 × 32 × 32 that are embedded in 128
//! coordinates.
//!
//! `cargo bench -p rehang-train --bench encoder -- write ENCODER FILE` writes weights, batch and targets for
//! `laboratory/bench/encoder/rival.py`; `-- run ENCODER THREADS STEPS` prints one JSON line: the vectors'
//! norm before the first step, the norm of its gradient, the loss of the first and of the third step, wall
//! and CPU seconds of each step after the first. ENCODER is `cnn-small` or `resnet18`. The driver is
//! `laboratory/bench/encoder/run.sh`.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::collections::HashMap;
use std::time::Instant;

use rayon::prelude::*;
use rehang_core::Result;
use rehang_fit::network::State;
use rehang_train::encoder::{EncoderArchitecture, Graph, ImagePooling, Mode, Passes, Resnet, Shape, Stem};
use safetensors::tensor::{Dtype, TensorView};

const ROWS: usize = 128;
const SHAPE: Shape = Shape { channels: 3, height: 32, width: 32 };
const OUTPUTS: usize = 128;
const RATE: f32 = 0.01;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Cargo's own `--bench` stands behind all other arguments.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (input, target) = (numbers(ROWS * SHAPE.size(), 1), numbers(ROWS * OUTPUTS, 2));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", encoder, path] => {
            let step = TrainingStep::new(&architecture(encoder)?, SHAPE, ROWS, 1)?;
            let mut tensors = vec![
                ("input".to_owned(), vec![ROWS, 3, 32, 32], &input[..]),
                ("target".to_owned(), vec![ROWS, OUTPUTS], &target[..]),
            ];
            for parameter in &step.graph().parameters {
                let values = &step.parameters()[parameter.range.clone()];
                tensors.push((parameter.name.clone(), parameter.shape.clone(), values));
            }
            let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
                .into_iter()
                .map(|(name, shape, values)| {
                    (name, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
                })
                .collect();
            let mut views = HashMap::new();
            for (name, shape, bytes) in &bytes {
                views.insert(name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?);
            }
            safetensors::serialize_to_file(views, None, path.as_ref())?;
        }
        ["run", encoder, threads, steps] => {
            let (threads, steps): (usize, usize) = (threads.parse()?, steps.parse()?);
            let architecture = architecture(encoder)?;
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let line = pool.install(|| -> Result<String> {
                let mut step = TrainingStep::new(&architecture, SHAPE, ROWS, 1)?;
                let vectors = norm(&step.embed(&input)?);
                let first = step.step(&input, &target, RATE)?;
                let gradient = norm(step.gradient());
                let (mut wall, mut cpu, mut third) = (Vec::new(), Vec::new(), 0.0);
                for number in 1..=steps.max(2) {
                    let (start, start_cpu) = (Instant::now(), cpu_seconds());
                    let loss = step.step(&input, &target, RATE)?;
                    wall.push(start.elapsed().as_secs_f64());
                    cpu.push(cpu_seconds() - start_cpu);
                    third = if number == 2 { loss } else { third };
                }
                Ok(format!(
                    "{{\"who\":\"rehang\",\"encoder\":\"{encoder}\",\"threads\":{threads},\"rows\":{ROWS},\"vectors\":{vectors:.9},\
                     \"gradient\":{gradient:.9},\"first\":{first:.9},\"third\":{third:.9},\"wall\":{wall:?},\"cpu\":{cpu:?}}}"
                ))
            })?;
            println!("{line}");
        }
        _ => {
            return Err("usage: write ENCODER FILE | run ENCODER THREADS STEPS".into());
        }
    }
    Ok(())
}

/// Decay of the sum of gradients in a step.
const MOMENTUM: f32 = 0.9;

/// An encoder that learns to give one fixed target for one fixed batch, on the processor: forward pass, mean
/// squared error, backward pass, and a step of gradient descent with momentum 0.9.
struct TrainingStep {
    graph: Graph,
    passes: Passes,
    state: State,
    rows: usize,
    gradient: Vec<f32>,
    velocity: Vec<f32>,
}

impl TrainingStep {
    /// Makes an encoder with weights drawn from `seed`, before its first step on batches of `rows` rows.
    fn new(architecture: &EncoderArchitecture, input: Shape, rows: usize, seed: u64) -> Result<Self> {
        let graph = architecture.graph(input)?;
        Ok(Self {
            passes: Passes::new(&graph),
            state: graph.initial(seed),
            rows,
            gradient: vec![0.0; graph.parameter_count()],
            velocity: vec![0.0; graph.parameter_count()],
            graph,
        })
    }

    /// Gives the graph of the encoder; its parameters tell what [`parameters`](Self::parameters) holds.
    fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Gives all parameters in the graph's order.
    fn parameters(&self) -> &[f32] {
        &self.state.parameters
    }

    /// Gives the gradient of the last step, in the graph's order.
    fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// Embeds a batch with the running statistics of BatchNorm: vectors `[rows, outputs]`.
    fn embed(&mut self, input: &[f32]) -> Result<Vec<f32>> {
        self.passes.forward(&mut self.state, input, self.rows, Mode::Evaluation)
    }

    /// Takes one step towards `target [rows, outputs]` with the given rate; gives the mean squared error
    /// before it.
    fn step(&mut self, input: &[f32], target: &[f32], rate: f32) -> Result<f64> {
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

fn architecture(name: &str) -> std::result::Result<EncoderArchitecture, String> {
    match name {
        "cnn-small" => Ok(EncoderArchitecture::CnnSmall { width: 32, outputs: OUTPUTS }),
        "resnet18" => Ok(EncoderArchitecture::Resnet18(Resnet {
            stem: Stem::Cifar,
            pooling: ImagePooling::Average,
            outputs: OUTPUTS,
        })),
        _ => Err(format!("encoder {name} is not measured; cnn-small and resnet18 are")),
    }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

/// Draws numbers in ±1 from a fixed generator.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Counts CPU seconds of all threads of this process so far, from the scheduler's account in nanoseconds.
fn cpu_seconds() -> f64 {
    let tasks = fs_err::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs_err::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|account| account.split_whitespace().next()?.parse::<f64>().ok())
        .map(|nanoseconds| nanoseconds / 1e9)
        .sum()
}
