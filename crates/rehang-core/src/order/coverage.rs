//! The order `coverage`: first items that cover the gallery, then items where the map is in doubt.

use super::doubt::{entropy, margin, scores};
use super::policy::{Arrangement, Definition, Evidence, HeadUse, Order, probabilities};
use crate::clusters::weighted_k_means;
use crate::error::Result;
use crate::length::squared_distance;
use crate::progress::Progress;

/// Rounds of k-means.
const CLUSTER_ROUNDS: usize = 15;
/// Number of items of which one covers: the divisor that gives the number of clusters.
pub const ITEMS_PER_COVER: usize = 10;
/// Most clusters of a gallery that is ordered as a whole.
const CLUSTERS_MAX: usize = 2048;

pub(super) static COVERAGE: Definition = Definition {
    about: "covers the gallery first, then goes where the map is in doubt",
    is_evaluation_only: false,
    head: HeadUse::Own,
    order: |evidence| {
        let count = evidence.input.items.div_ceil(ITEMS_PER_COVER).min(CLUSTERS_MAX);
        cover_then_dig(evidence, evidence.input.clusters.unwrap_or(count)).map(Order::by_places)
    },
    scores: |page| scores(page, dig),
    arrange: Some(|evidence| {
        let count = evidence.input.items.div_ceil(ITEMS_PER_COVER);
        let mut order = cover_then_dig(evidence, count)?;
        order.truncate(count);
        Ok(Arrangement::First(order))
    }),
};

/// Computes the dig score: entropy times margin.
fn dig(probabilities: &[f64]) -> f64 {
    entropy(probabilities) * margin(probabilities)
}

/// Sorts items by dig score, with those that are nearest to the centres of `count` weighted clusters first.
fn cover_then_dig(evidence: &Evidence<'_>, count: usize) -> Result<Vec<usize>> {
    let vectors = evidence.vectors("vectors to cover")?;
    let scores = match evidence.input.classified {
        Some((head, classified)) => {
            evidence.expect_items("vectors to classify", classified.rows())?;
            probabilities(head, classified, dig)?
        }
        None => evidence.values(evidence.input.sigma, "a classifier head or predicted errors σ²")?,
    };
    let ranked = Order::by_scores(scores, "dig scores")?;
    // σ² may be 0 for all items, and weights must not all be 0.
    let smallest = ranked.scores.iter().copied().fold(0.0, f64::max) * 1e-6 + f64::MIN_POSITIVE;
    let weights: Vec<f64> = ranked.scores.iter().map(|&score| score.max(smallest)).collect();
    let alone = Progress::default();
    let progress = evidence.input.progress.unwrap_or(&alone);
    let clusters = weighted_k_means(vectors, &weights, count, CLUSTER_ROUNDS, evidence.input.seed, progress)?;
    let mut nearest: Vec<Option<(f64, usize)>> = vec![None; clusters.centres.rows()];
    for (item, &cluster) in clusters.of_item.iter().enumerate() {
        let distance = squared_distance(vectors.row(item), clusters.centres.row(cluster as usize));
        let best = &mut nearest[cluster as usize];
        if best.is_none_or(|(smallest, _)| distance < smallest) {
            *best = Some((distance, item));
        }
    }
    let mut covers = vec![false; vectors.rows()];
    for (_, item) in nearest.into_iter().flatten() {
        covers[item] = true;
    }
    let covers = &covers;
    let part = |wanted: bool| ranked.permutation.iter().copied().filter(move |&item| covers[item] == wanted);
    Ok(part(true).chain(part(false)).collect())
}
