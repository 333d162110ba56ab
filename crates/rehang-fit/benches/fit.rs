//! Measures epochs of the FCT-size adapter (128 → 128, 5.7 M parameters) on 16,384 pairs, batch 1024.
//!
//! `cargo bench -p rehang-fit --bench fit -- write FILE` writes pairs, initial weights and the order of the
//! first epoch for `bench/fit/rival.py`; `-- run THREADS EPOCHS` prints one JSON line: loss of the first
//! epoch, wall and CPU seconds of each epoch after it. The driver is `bench/fit/run.sh`.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::collections::HashMap;
use std::time::Instant;

use rehang_core::{Distance, Matrix, Pairs, Result, Vectors};
use rehang_fit::network_fit::NetworkParameters;
use rehang_fit::network_fit::bench::EpochByEpoch;
use safetensors::tensor::{Dtype, TensorView};

const PAIRS: usize = 16_384;
const WIDTH: usize = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo bench` appends its own argument behind all others.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let pairs = pairs()?;
    let parameters = NetworkParameters::fct();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", path] => {
            let fit = EpochByEpoch::new(&pairs, parameters.clone())?;
            let order: Vec<f32> = fit.order(0).into_iter().map(|index| index as f32).collect();
            let tensors = [
                ("old", pairs.old().matrix().as_slice()),
                ("new", pairs.new_vectors().matrix().as_slice()),
                ("parameters", fit.initial_parameters()),
                ("order", &order),
            ];
            let bytes: Vec<(&str, Vec<u8>)> = tensors
                .iter()
                .map(|(name, values)| (*name, values.iter().flat_map(|value| value.to_le_bytes()).collect()))
                .collect();
            let mut views = HashMap::new();
            for (name, bytes) in &bytes {
                views.insert(*name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)?);
            }
            safetensors::serialize_to_file(views, None, path.as_ref())?;
        }
        ["run", threads, epochs] => {
            let (threads, epochs): (usize, usize) = (threads.parse()?, epochs.parse()?);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let line = pool.install(|| -> Result<String> {
                let mut fit = EpochByEpoch::new(&pairs, parameters.clone())?;
                let loss = fit.epoch(0)?;
                let (mut wall, mut cpu) = (Vec::new(), Vec::new());
                for epoch in 1..=epochs {
                    let (start, start_cpu) = (Instant::now(), cpu_seconds());
                    fit.epoch(epoch)?;
                    wall.push(start.elapsed().as_secs_f64());
                    cpu.push(cpu_seconds() - start_cpu);
                }
                Ok(format!(
                    "{{\"who\":\"rehang\",\"threads\":{threads},\"loss\":{loss:.9},\"wall\":{wall:?},\"cpu\":{cpu:?}}}"
                ))
            })?;
            println!("{line}");
        }
        _ => return Err("usage: write FILE | run THREADS EPOCHS".into()),
    }
    Ok(())
}

/// Returns the CPU seconds of this process so far, user and system, from the kernel's account (ticks of 10
/// ms).
fn cpu_seconds() -> f64 {
    let stat = fs_err::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<f64> = after_name.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // The state is a letter and is skipped above, so utime and stime (fields 14 and 15) stand at 10 and 11.
    fields.get(10..12).map_or(0.0, |ticks| (ticks[0] + ticks[1]) / 100.0)
}

/// Makes pairs from a fixed generator: the new vectors are a bent mixture of the old ones.
fn pairs() -> Result<Pairs> {
    let mut state = 1_u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let old = Matrix::from_fn(PAIRS, WIDTH, |_, _| number());
    let new = Matrix::from_fn(PAIRS, WIDTH, |row, column| {
        let old = old.row(row);
        (old[column] + old[(column + 7) % WIDTH] * old[(column * 5 + 1) % WIDTH]).tanh()
    });
    Pairs::new(
        Vectors::measured("old", Distance::L2, old, "old vectors")?,
        Vectors::measured("new", Distance::L2, new, "new vectors")?,
        None,
        None,
    )
}
