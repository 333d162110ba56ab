//! The order `class-mean`: by the distance of h(o) to the mean of its class, farthest first (λ-orthogonality,
//! arXiv 2509.16664, partial backfilling). Without labels, the mean of its k-means cluster takes the place of
//! the class.

use super::policy::{Arrangement, Definition, Evidence, HeadUse, Order, Page, distances_to_nearest};
use crate::clusters::{class_means, k_means};
use crate::error::Result;
use crate::length::squared_distance;
use crate::progress::Progress;
use crate::vectors::{Matrix, distinct};

/// Rounds of k-means.
const CLUSTER_ROUNDS: usize = 15;
/// Number of items for which there is one cluster. The clusters are coarse, as classes are; their number has
/// bounds.
const CLUSTER_ITEMS: usize = 30;
const CLUSTERS_MIN: usize = 2;
const CLUSTERS_MAX: usize = 256;

pub(super) static CLASS_MEAN: Definition = Definition {
    about: "goes by the distance to the mean of an item's class, or of its cluster, the farthest first",
    is_evaluation_only: false,
    head: HeadUse::None,
    order: |evidence| {
        let vectors = evidence.vectors("adapted vectors")?;
        let distances = match evidence.input.classes {
            Some(classes) => {
                evidence.expect_items("classes", classes.len())?;
                distances_to_means(vectors, classes)
            }
            None => distances_to_nearest(vectors, &centres(evidence, vectors)?),
        };
        Order::by_scores(distances, "distances to class means")
    },
    // The places of the centres are not known before the whole gallery is adapted.
    scores: |page: &Page<'_>| Ok(page.by_sigma()),
    arrange: Some(|evidence| {
        let vectors = evidence.vectors("adapted vectors")?;
        Ok(Arrangement::FarFrom(centres(evidence, vectors)?))
    }),
};

/// Computes the centres of the clusters, `[k, d]`.
fn centres(evidence: &Evidence<'_>, vectors: &Matrix) -> Result<Matrix> {
    let count = (vectors.rows() / CLUSTER_ITEMS).clamp(CLUSTERS_MIN, CLUSTERS_MAX);
    let count = evidence.input.clusters.unwrap_or(count);
    let alone = Progress::default();
    let progress = evidence.input.progress.unwrap_or(&alone);
    Ok(k_means(vectors, count, CLUSTER_ROUNDS, evidence.input.seed, progress)?.centres)
}

/// Computes the distance of every vector to the mean of its class, `[n]`; 0 for a vector whose class is not
/// known (negative).
fn distances_to_means(vectors: &Matrix, classes: &[i64]) -> Vec<f64> {
    let names = distinct(classes.iter().copied());
    let of_item: Vec<Option<usize>> = classes.iter().map(|class| names.binary_search(class).ok()).collect();
    let means = class_means(vectors, &of_item, names.len());
    let distance = |(row, class): (usize, &Option<usize>)| {
        class.map_or(0.0, |class| squared_distance(vectors.row(row), means.row(class)).sqrt())
    };
    of_item.iter().enumerate().map(distance).collect()
}
