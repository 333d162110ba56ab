//! Times the exact curve on clustered synthetic vectors, and can write them for another program to read.
//!
//! ```text
//! cargo run --release -p rehang --example bench_curve -- [ITEMS] [WIDTH] [CLASSES] [DIRECTORY]
//! ```
//!
//! Prints one JSON object. With a directory, the inputs are written there as `.npy` first.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use rehang::curve::{CurveInput, CurveOptions, MAP, Relevance, TOP1, TOP5, curve};
use rehang::order::{OrderInput, Policy, order};
use rehang::{Distance, Matrix, Progress, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (items, width, classes) = (number(0, 10_000), number(1, 128), number(2, 100));

    // Class centres with noise around them; the adapter adds noise of its own, so that mAP starts lower than it ends.
    let mut normal = normal_numbers(1);
    let centres = Matrix::from_fn(classes, width, |_, _| normal());
    let labels: Vec<i64> = (0..items).map(|item| (item % classes) as i64).collect();
    let native =
        Matrix::from_fn(items, width, |row, column| centres.row(row % classes)[column] + 1.8 * normal());
    let adapted = Matrix::from_fn(items, width, |row, column| native.row(row)[column] + 1.2 * normal());
    let order = order(Policy::Random, &OrderInput { items, seed: 1, ..OrderInput::default() })?.permutation;

    if let Some(directory) = arguments.get(3) {
        let directory = Path::new(directory);
        let (table, list) = (format!("({items}, {width})"), format!("({items},)"));
        let floats = |matrix: &Matrix| -> Vec<u8> {
            matrix.as_slice().iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        write_npy(&directory.join("new.npy"), "<f4", &table, &floats(&native))?;
        write_npy(&directory.join("adapted.npy"), "<f4", &table, &floats(&adapted))?;
        let integers =
            |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
        write_npy(&directory.join("labels.npy"), "<i8", &list, &integers(&labels))?;
        let order: Vec<i64> = order.iter().map(|&item| item as i64).collect();
        write_npy(&directory.join("order.npy"), "<i8", &list, &integers(&order))?;
    }

    let input = CurveInput {
        native: &native,
        adapted: &adapted,
        order: &order,
        queries: None,
        relevance: Relevance::Labels { gallery: &labels, queries: None },
        distance: Distance::L2,
        handicap: 0.0,
        groups: None,
        do_nothing: None,
    };
    let begin = Instant::now();
    let made = curve(&input, &CurveOptions::default(), &Progress::default())?;
    let seconds = begin.elapsed().as_secs_f64();
    let grid = made.lines[MAP].grid(22);
    let result = serde_json::json!({
        "items": items,
        "width": width,
        "classes": classes,
        "threads": rayon::current_num_threads(),
        "seconds": seconds,
        "area": { "top1": made.lines[TOP1].area(), "top5": made.lines[TOP5].area(), "map": made.lines[MAP].area() },
        "grid": {
            "cuts": grid.cuts,
            "top1": made.lines[TOP1].grid(22).values,
            "top5": made.lines[TOP5].grid(22).values,
            "map": grid.values,
        },
        "negative_flips_at_the_end": made.flips[TOP1].negative[items],
    });
    println!("{result}");
    Ok(())
}

/// Standard normal numbers: sums of twelve uniform ones, which is all that a benchmark needs.
fn normal_numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        let mut sum = -6.0;
        for _ in 0..12 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            sum += (state >> 40) as f32 / 16777216.0;
        }
        sum
    }
}

/// An array in numpy's format, version 1.0.
fn write_npy(path: &Path, kind: &str, shape: &str, data: &[u8]) -> Result<()> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    // The header is filled up with blanks and a line feed so that the numbers begin at a multiple of 64 bytes.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(padded as u16).to_le_bytes());
    bytes.extend_from_slice(format!("{header:<width$}\n", width = padded - 1).as_bytes());
    bytes.extend_from_slice(data);
    fs_err::File::create(path)
        .and_then(|mut file| file.write_all(&bytes))
        .map_err(|error| rehang::Error::io("write", path, &error))
}
