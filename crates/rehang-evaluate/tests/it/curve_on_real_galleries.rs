//! Compares the 22-point grid on real galleries with a brute force that sorts every ranking.
//!
//! The galleries lie beside the project (`../shared/data`) and are not part of it; without them the tests say
//! so and pass.

#![allow(clippy::print_stdout, reason = "a test says that it is skipped")]

use std::path::{Path, PathBuf};

use rehang_core::curve::{
    CurveInput, CurveOptions, MAP, Metric, Qrels, Relevance, TOP1, TOP5, curve, evaluate,
};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::{Distance, Matrix, Progress};
use rehang_files::qrels::read_qrels;
use rehang_files::{VectorSource, read_ids, read_labels, read_matrix};

/// Returns the path of a file of the data beside the project, or `None` with a message.
fn data(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there", path.display());
    None
}

fn matrix(path: &Path) -> Matrix {
    read_matrix(&VectorSource::path(path)).unwrap()
}

fn labels(path: &Path) -> Vec<i64> {
    read_labels(&VectorSource::path(path)).unwrap()
}

/// Computes top-1, top-5 and mAP in percent of a gallery that is its own query set, by sorting every ranking.
fn brute_force(queries: &Matrix, gallery: &Matrix, labels: &[i64]) -> [f64; 3] {
    let mut sums = [0.0; 4];
    for query in 0..queries.rows() {
        let distance = |item: usize| -> f64 {
            let pairs = queries.row(query).iter().zip(gallery.row(item));
            pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
        };
        let mut ranked: Vec<(f64, usize)> =
            (0..gallery.rows()).filter(|&item| item != query).map(|item| (distance(item), item)).collect();
        ranked.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let ranks: Vec<f64> = ranked
            .iter()
            .enumerate()
            .filter(|(_, (_, item))| labels[*item] == labels[query])
            .map(|(place, _)| (place + 1) as f64)
            .collect();
        if ranks.is_empty() {
            continue;
        }
        let precision: f64 = ranks.iter().enumerate().map(|(place, rank)| (place + 1) as f64 / rank).sum();
        sums[0] += f64::from(u8::from(ranks[0] <= 1.0));
        sums[1] += f64::from(u8::from(ranks[0] <= 5.0));
        sums[2] += precision / ranks.len() as f64;
        sums[3] += 1.0;
    }
    [sums[0], sums[1], sums[2]].map(|sum| 100.0 * sum / sums[3])
}

/// Makes a gallery before the backfill: the native vectors, the more disturbed the farther down the row.
fn disturbed(native: &Matrix) -> Matrix {
    let scale = native.norms().iter().sum::<f64>() / native.rows() as f64 / (native.columns() as f64).sqrt();
    let mut state = 1_u64;
    Matrix::from_fn(native.rows(), native.columns(), |row, column| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        native.row(row)[column] + ((state >> 40) as f32 / 8388608.0 - 1.0) * scale as f32
    })
}

fn check(native: &Matrix, labels: &[i64], distance: Distance) {
    let adapted = disturbed(native);
    let items = native.rows();
    let order =
        order(Policy::Random, &OrderInput { items, seed: 4, ..OrderInput::default() }).unwrap().permutation;
    let input = CurveInput::new(
        native,
        &adapted,
        &order,
        Relevance::Labels { gallery: labels, queries: None },
        distance,
    );
    let made = curve(&input, &CurveOptions::default(), &Progress::default()).unwrap();
    let grids = [TOP1, TOP5, MAP].map(|metric| made.lines[metric].grid(22));
    for (point, &cut) in grids[0].cuts.iter().enumerate() {
        let mut gallery = adapted.clone();
        for &item in &order[..cut] {
            gallery.row_mut(item).copy_from_slice(native.row(item));
        }
        let expected = brute_force(native, &gallery, labels);
        for (grid, expected) in grids.iter().zip(expected) {
            assert!(
                (grid.values[point] - expected).abs() < 1e-6,
                "cut {cut}: {} {expected}",
                grid.values[point]
            );
        }
    }
}

#[test]
fn digits_agree_at_all_22_points() {
    let Some(path) = data("toy_digits/new.npy") else { return };
    let rows: Vec<usize> = (0..500).collect();
    let labels = labels(&path.with_file_name("label.npy"));
    check(&matrix(&path).select(&rows), &labels[..500], Distance::L2);
}

#[test]
fn omniglot_agrees_at_all_22_points() {
    let Some(path) = data("img_omniglot/seen_new.npy") else { return };
    check(&matrix(&path), &labels(&path.with_file_name("seen_label.npy")), Distance::L2);
}

#[test]
fn judged_documents_give_the_published_numbers() {
    let Some(path) = data("ir_cisi/docs_new.npy") else { return };
    let folder = path.parent().unwrap();
    let ids = |name: &str| read_ids(&VectorSource::path(folder.join(name))).unwrap().unwrap();
    let (queries, documents) = (ids("queries.jsonl"), ids("corpus.jsonl"));
    let qrels = Qrels::new(read_qrels(folder.join("qrels.tsv"), &queries, &documents).unwrap()).unwrap();
    let options = CurveOptions {
        metrics: vec![Metric::ndcg_at(10), Metric::recall_at(100)],
        ..CurveOptions::default()
    };
    let result = evaluate(
        &matrix(&path),
        Some(&matrix(&folder.join("queries_new.npy"))),
        Relevance::Judgements(&qrels),
        Distance::Cosine,
        &options,
        &Progress::default(),
    )
    .unwrap();
    // The folder's own README: nDCG@10 42.07, recall@100 47.07, mAP 24.86, P@1 47.37.
    let rounded = |value: f64| (100.0 * value).round() / 100.0;
    assert_eq!(rounded(result.values[Metric::ndcg_at(10)]), 42.07);
    assert_eq!(rounded(result.values[Metric::recall_at(100)]), 47.07);
    assert_eq!((rounded(result.values[MAP]), rounded(result.values[TOP1])), (24.86, 47.37));
}
