//! Times the exact curve on clustered synthetic vectors, and can write them for another program to read.
//!
//! ```text
//! cargo bench -p rehang-files --bench curve -- [ITEMS] [WIDTH] [CLASSES] [DIRECTORY]
//! ```
//!
//! Prints one JSON object. With a directory, the inputs are written there as `.npy` first.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::path::Path;
use std::time::Instant;

use rehang_core::curve::{CurveInput, CurveOptions, MAP, Relevance, TOP1, TOP5, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::{Distance, Matrix, Progress, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |place: usize, default: usize| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (items, width, classes) = (number(0, 10_000), number(1, 128), number(2, 100));

    // Class centres with noise around them. The adapter adds noise of its own, so mAP starts lower than it
    // ends.
    let mut normal = normal_numbers(1);
    let centres = Matrix::from_fn(classes, width, |_, _| normal());
    let labels: Vec<i64> = (0..items).map(|item| (item % classes) as i64).collect();
    let native =
        Matrix::from_fn(items, width, |row, column| centres.row(row % classes)[column] + 1.8 * normal());
    let adapted = Matrix::from_fn(items, width, |row, column| native.row(row)[column] + 1.2 * normal());
    let order = order(Policy::Random, &OrderInput { items, seed: 1, ..OrderInput::default() })?.permutation;

    if let Some(directory) = arguments.get(3) {
        let directory = Path::new(directory);
        rehang_files::write_matrix(directory.join("new.npy"), &native, None)?;
        rehang_files::write_matrix(directory.join("adapted.npy"), &adapted, None)?;
        rehang_files::write_labels(directory.join("labels.npy"), &labels)?;
        rehang_files::write_order(directory.join("order.npy"), &order)?;
    }

    let input = CurveInput::new(
        &native,
        &adapted,
        &order,
        Relevance::Labels { gallery: &labels, queries: None },
        Distance::L2,
    );
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
