//! Distances, and the order and the worth of answers, for those who write a store.

use rehang::Distance;

use crate::contract::Found;

/// [`Distance::between`] two vectors, rounded once.
///
/// A store that has its vectors at hand gives this one, so two of them with the same vectors give the same numbers. A database on a
/// server measures by itself, and rounds in its own way.
pub fn distance(kind: Distance, query: &[f32], vector: &[f32]) -> f32 {
    kind.between(query, vector) as f32
}

/// The order of an answer: nearest first, ties by key.
pub fn by_distance<K: Ord>(left: &(f32, K), right: &(f32, K)) -> std::cmp::Ordering {
    left.0.total_cmp(&right.0).then(left.1.cmp(&right.1))
}

/// Share of the true nearest that searches found, over pairs of what an exact search gave and what was found; among equally near ones any will
/// do. 1 where there was nothing to find.
pub fn share_found<'a>(searches: impl Iterator<Item = (&'a Vec<Found>, &'a Vec<Found>)>) -> f64 {
    let (mut hits, mut all) = (0, 0);
    for (exact, found) in searches {
        let farthest = exact.last().map_or(f32::NEG_INFINITY, |last| last.distance);
        hits += found.iter().filter(|hit| hit.distance <= farthest).count().min(exact.len());
        all += exact.len();
    }
    if all == 0 { 1.0 } else { hits as f64 / all as f64 }
}
