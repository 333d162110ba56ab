//! Distances, the order of the hits of a search, and the share of true neighbours that searches find: for
//! those who write a store.

use rehang_core::Distance;

use crate::contract::Found;

/// Returns [`Distance::between`] two vectors, rounded once, to 32 bits.
///
/// A store that has its vectors at hand gives this distance, so two stores with the same vectors give the
/// same numbers. A database on a server measures by itself, and rounds in its own way.
pub fn distance(kind: Distance, query: &[f32], vector: &[f32]) -> f32 {
    kind.between(query, vector) as f32
}

/// Orders hits of a search: nearest first, ties by key.
pub fn by_distance<K: Ord>(left: &(f32, K), right: &(f32, K)) -> std::cmp::Ordering {
    left.0.total_cmp(&right.0).then(left.1.cmp(&right.1))
}

/// Share of the true nearest neighbours that searches found; 1 where there was nothing to find.
///
/// Each search is a pair: the hits of an exact search, and the hits that were found. Among equally near
/// neighbours any will do.
pub fn share_found<'a>(searches: impl Iterator<Item = (&'a Vec<Found>, &'a Vec<Found>)>) -> f64 {
    let (mut hits, mut all) = (0, 0);
    for (exact, approximate) in searches {
        let farthest = exact.last().map_or(f32::NEG_INFINITY, |last| last.distance);
        hits += approximate.iter().filter(|hit| hit.distance <= farthest).count().min(exact.len());
        all += exact.len();
    }
    if all == 0 { 1.0 } else { hits as f64 / all as f64 }
}
