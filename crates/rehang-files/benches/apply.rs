//! Speed at which adapters are applied, beside the machine's own rate of matrix multiplication.
//!
//! `bench/apply/run.sh` runs this program beside its rivals. One process answers many requests, so that
//! rounds of all contestants can alternate within seconds. A line `NAME ROWS` on standard input runs a round
//! and prints a line of JSON with wall-clock and processor seconds. `WRITE FOLDER` writes the weights, the
//! old vectors and the answers.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::{
    Adapter, Applier, BranchInput, Dense, InputScaling, Map, SecondBranch, Uncertainty,
};
use rehang_core::{Distance, Matrix, Space};
use serde_json::json;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Weights of the usual initial size, so that activations neither vanish nor explode.
fn dense(random: &mut ChaCha8Rng, inputs: usize, outputs: usize, relu: bool) -> Dense {
    let bound = (6.0 / inputs as f32).sqrt();
    let weight = Matrix::from_fn(outputs, inputs, |_, _| random.random_range(-bound..bound));
    let bias = (0..outputs).map(|_| random.random_range(-0.1..0.1)).collect();
    Dense { weight, bias, relu }
}

fn chain(random: &mut ChaCha8Rng, widths: &[usize], last_relu: bool) -> Vec<Dense> {
    (1..widths.len())
        .map(|at| dense(random, widths[at - 1], widths[at], last_relu || at + 1 < widths.len()))
        .collect()
}

/// The FCT adapter at 128 coordinates, and the widest head of DMU, each with a linear σ head.
fn adapters() -> Vec<(&'static str, Adapter)> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let fct = Map {
        input: InputScaling::AsIs,
        branch: chain(&mut random, &[128, 256, 256], true),
        second: Some(SecondBranch {
            input: BranchInput::Old,
            layers: chain(&mut random, &[128, 256, 256], true),
        }),
        mixer: chain(&mut random, &[512, 2048, 2048, 128], false),
        skip: None,
        kernel: None,
        per_kind: None,
    };
    let dmu =
        Map::from_layers(InputScaling::AsIs, chain(&mut random, &[1024, 1024, 1024, 1024, 1024], false));
    [("fct", fct, 128), ("dmu", dmu, 1024)]
        .into_iter()
        .map(|(name, map, width)| {
            let weight = (0..width).map(|_| random.random_range(-0.05..0.05)).collect();
            let space = |name| Space::new(name, width, Distance::L2, false);
            let uncertainty = Uncertainty::Linear { weight, bias: 0.1 };
            (name, Adapter::new(space("old"), space("new"), map, uncertainty))
        })
        .collect()
}

/// Floating-point operations of one row.
fn operations(adapter: &Adapter) -> f64 {
    let map = &adapter.map;
    let second = map.second.iter().flat_map(|second| &second.layers);
    let layers = map.branch.iter().chain(second).chain(&map.mixer);
    layers.map(|layer| 2.0 * layer.weight.as_slice().len() as f64).sum()
}

fn old_vectors(rows: usize, width: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    (0..rows * width).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// Seconds of processor time of this process, all threads together, as Linux counts them.
fn processor_seconds() -> f64 {
    // Every thread has its own file; the first number in it is nanoseconds on a processor.
    let threads = fs_err::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanoseconds = |text: String| text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    let all: f64 = threads
        .filter_map(|thread| {
            fs_err::read_to_string(thread.path().join("schedstat")).ok().and_then(nanoseconds)
        })
        .sum();
    all * 1e-9
}

/// Runs one round and measures it.
fn measured(work: impl FnOnce()) -> (f64, f64) {
    let (wall, processor) = (Instant::now(), processor_seconds());
    work();
    (wall.elapsed().as_secs_f64(), processor_seconds() - processor)
}

/// Square single-precision products by the `gemm` crate: the machine's rate, in the same number of threads.
struct SquareProducts {
    size: usize,
    left: Vec<f32>,
    right: Vec<f32>,
    product: Vec<f32>,
}

impl SquareProducts {
    fn new(size: usize) -> Self {
        let (left, right) = (old_vectors(size, size), old_vectors(size, size));
        Self { size, left, right, product: vec![0.0; size * size] }
    }

    fn run(&mut self) {
        let (size, stride) = (self.size, self.size as isize);
        let threads = rayon::current_num_threads();
        let parallelism =
            if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
        // SAFETY: all three buffers hold size × size numbers.
        unsafe {
            gemm::gemm(
                size,
                size,
                size,
                self.product.as_mut_ptr(),
                stride,
                1,
                false,
                self.left.as_ptr(),
                stride,
                1,
                self.right.as_ptr(),
                stride,
                1,
                0.0_f32,
                1.0_f32,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

fn write(folder: &Path, adapters: &[(&'static str, Adapter)], rows: usize) -> Outcome {
    for (name, adapter) in adapters {
        rehang_files::adapter_file::save(adapter, folder.join(format!("{name}.safetensors")))?;
        let applier = Applier::new(adapter)?;
        let old = old_vectors(rows, applier.d_old());
        let mut vectors = vec![0.0; rows * applier.d_new()];
        let (mut variance, mut raw_norms) = (vec![0.0; rows], vec![0.0; rows]);
        applier.apply_rows(0, &old, None, &mut vectors, &mut variance, &mut raw_norms)?;
        for (what, values) in [("old", &old), ("vectors", &vectors), ("variance", &variance)] {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            fs_err::write(folder.join(format!("{name}.{what}.f32")), bytes)?;
        }
    }
    Ok(())
}

fn main() -> Outcome {
    let adapters = adapters();
    let appliers = adapters
        .iter()
        .map(|(name, adapter)| Ok((*name, Applier::new(adapter)?, operations(adapter))))
        .collect::<rehang_core::Result<Vec<_>>>()?;
    let mut squares = SquareProducts::new(4096 + 16);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, argument] = words[..] else { return Err(format!("{line:?} is no request").into()) };
        if name == "WRITE" {
            write(Path::new(argument), &adapters, 512)?;
            println!("{}", json!({ "written": argument }));
        } else if name == "sgemm" {
            let rounds: usize = argument.parse()?;
            let (wall, processor) = measured(|| (0..rounds).for_each(|_| squares.run()));
            let operations = 2.0 * (squares.size as f64).powi(3) * rounds as f64;
            println!("{}", json!({ "wall": wall, "processor": processor, "operations": operations }));
        } else {
            let rows: usize = argument.parse()?;
            let (_, applier, operations) =
                appliers.iter().find(|applier| applier.0 == name).ok_or("no such adapter")?;
            let old = old_vectors(rows, applier.d_old());
            // NaN rather than zeros: zeros would get their memory from the system while the clock runs. A
            // stream reuses its buffers.
            let mut vectors = vec![f32::NAN; rows * applier.d_new()];
            let (mut variance, mut raw_norms) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
            let mut outcome = Ok(());
            let (wall, processor) = measured(|| {
                outcome = applier.apply_rows(0, &old, None, &mut vectors, &mut variance, &mut raw_norms);
            });
            outcome?;
            let operations = operations * rows as f64;
            println!("{}", json!({ "wall": wall, "processor": processor, "operations": operations }));
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
