//! Measures products of the size of a fit's: faer in double and in single precision beside gemm in single.
//!
//! `cargo bench -p rehang-fit --bench products -- [ROWS [OLD [NEW]]]`; by default 2,000 pairs of 1,536 →
//! 3,072. They run in turns, and medians of five are printed. Each is compared with the first in double
//! precision, and its distance from that one is printed.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use gemm::Parallelism;

const TURNS: usize = 5;

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let size = |place: usize, usual: usize| asked.get(place).copied().unwrap_or(usual);
    let (rows, old, new) = (size(0, 2000), size(1, 1536), size(2, 3072));
    println!("| product | faer f64, s | faer f32, s | gemm f32, s | f32 off by: faer | gemm |");
    println!("|---|--:|--:|--:|--:|--:|");
    // The Gram matrix of the old vectors, and the moments with the new ones.
    measure("old oldᵀ", (rows, old, rows));
    measure("oldᵀ new", (old, rows, new));
}

/// Returns a number between −1 and 1, the same for the same place.
fn value(row: usize, column: usize, which: usize) -> f64 {
    let mixed = (row * 7919 + column * 104_729 + which * 1_299_709) % 20_011;
    mixed as f64 / 10_005.5 - 1.0
}

fn measure(name: &str, (rows, depth, columns): (usize, usize, usize)) {
    let (left, right) = (
        Mat::from_fn(rows, depth, |row, column| value(row, column, 0)),
        Mat::from_fn(depth, columns, |row, column| value(row, column, 1)),
    );
    let (left32, right32) = (
        Mat::from_fn(rows, depth, |row, column| left[(row, column)] as f32),
        Mat::from_fn(depth, columns, |row, column| right[(row, column)] as f32),
    );
    let mut double = Mat::<f64>::zeros(rows, columns);
    let mut single = Mat::<f32>::zeros(rows, columns);
    let mut by_gemm = Mat::<f32>::zeros(rows, columns);
    let mut seconds = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let began = Instant::now();
        matmul(double.as_mut(), Accum::Replace, &left, &right, 1.0, Par::rayon(0));
        seconds[0].push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        matmul(single.as_mut(), Accum::Replace, &left32, &right32, 1.0, Par::rayon(0));
        seconds[1].push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        let (step, left_step, right_step) = (by_gemm.col_stride(), left32.col_stride(), right32.col_stride());
        // SAFETY: the three matrices have `rows`, `depth` and `columns` as told, columns lie `…_step` apart
        // and rows next to each other; the target is borrowed mutably and is none of the others.
        unsafe {
            gemm::gemm(
                rows,
                columns,
                depth,
                by_gemm.as_ptr_mut(),
                step,
                1,
                false,
                left32.as_ptr(),
                left_step,
                1,
                right32.as_ptr(),
                right_step,
                1,
                0.0_f32,
                1.0_f32,
                false,
                false,
                false,
                Parallelism::Rayon(0),
            );
        }
        seconds[2].push(began.elapsed().as_secs_f64());
    }
    let off = |of: &Mat<f32>| {
        let (mut most, mut largest) = (0.0_f64, 0.0_f64);
        for column in 0..columns {
            for row in 0..rows {
                most = most.max((f64::from(of[(row, column)]) - double[(row, column)]).abs());
                largest = largest.max(double[(row, column)].abs());
            }
        }
        most / largest
    };
    let (of_faer, of_gemm) = (off(&single), off(&by_gemm));
    assert!(of_faer < 1e-4 && of_gemm < 1e-4, "{name}: {of_faer} {of_gemm}");
    let [a, b, c] = seconds.map(|mut all| {
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    });
    println!(
        "| {name}, {rows} × {depth} × {columns} | {a:.3} | {b:.3} | {c:.3} | {of_faer:.0e} | {of_gemm:.0e} |"
    );
}
