//! Fused searches: native vectors by the new query alone, all others by both models together.
//!
//! Where an adapter is weak, an adapted vector knows less than the old vector and the old query did; where it
//! is good, it knows more. A fused search judges an item that is not native by both distances in one
//! ([`Fusion`]), on the scale of adapted distances, which native ones share. Held-out pairs decided how much
//! each distance counts. The adapted one counts nothing where nothing is proven, so that with nothing native
//! the fused search is the old search then. With everything native it is the search of the new space.
//!
//! Candidates come from both spaces. An item that neither gave is farther by both models than the last one
//! that each gave, and a fused distance rises with both. So where the `k`-th item that was found is nearer
//! than that bound, the answer is exact (Fagin, Lotem and Naor 2003, the threshold algorithm). Otherwise both
//! spaces are read further.

use std::collections::BTreeMap;

use rehang_core::{Fusion, Matrix, Provenance, Result};
use rehang_store::{Filter, Found, FusedSpaces, ItemKey, Store};

use crate::record::UpgradeRecord;

/// Finds the `k` nearest items of each query, ties by key, as [`Gallery::search`](crate::Gallery::search)
/// gives them while an upgrade serves fused searches. `old` and `new` are the same queries by both models.
///
/// An item that becomes native meanwhile is found once: old vectors are read first and native ones last, and
/// where both reads have the item the native one counts.
///
/// A provenance that the filter speaks of is that of the new space; an item without a vector there counts as
/// [`Provenance::Old`], whichever provenance its vector has in the old space, and is judged by that alone.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn search(
    store: &dyn Store,
    record: &UpgradeRecord,
    fusion: &Fusion,
    (old, new): (&Matrix, &Matrix),
    k: usize,
    filter: &Filter,
) -> Result<Vec<Vec<Found>>> {
    let spaces =
        FusedSpaces { old: &record.old, new: &record.new, old_handicap: record.old_handicap, fusion };
    if let Some(answers) = store.search_fused(&spaces, (old, new), k, filter)? {
        return Ok(answers);
    }
    let passes = |provenance| filter.provenances.is_empty() || filter.provenances.contains(&provenance);
    let fused: Vec<Provenance> =
        [Provenance::Old, Provenance::Adapted].into_iter().filter(|provenance| passes(*provenance)).collect();
    let first = k.saturating_mul(Fusion::CANDIDATES_PER_HIT).max(Fusion::CANDIDATES_MIN);
    let all_queries: Vec<usize> = (0..new.rows()).collect();
    let mut answers = vec![Vec::new(); new.rows()];
    let (mut open, mut depth) = (all_queries, first);
    while !open.is_empty() {
        let (by_old, by_new) = (old.select(&open), new.select(&open));
        let candidates = if fused.is_empty() {
            vec![Candidates::default(); open.len()]
        } else {
            candidates(store, record, fusion, (&by_old, &by_new), depth, (&fused, filter))?
        };
        // Natives are read last: read first, they would miss an item that becomes native before its old
        // vector is looked at and dropped.
        let natives = if passes(Provenance::Native) {
            let filter = Filter { provenances: vec![Provenance::Native], ..filter.clone() };
            store.search(&record.new.name, &by_new, k, &filter)?
        } else {
            vec![Vec::new(); open.len()]
        };
        let mut still = Vec::new();
        for ((query, Candidates { hits, bound }), natives) in open.into_iter().zip(candidates).zip(natives) {
            let mut by_key = hits;
            for native in natives {
                by_key.insert(native.key, (f64::from(native.distance), native));
            }
            let mut nearest: Vec<(f64, Found)> = by_key.into_values().collect();
            nearest.sort_by(|(a, x), (b, y)| a.total_cmp(b).then(x.key.cmp(&y.key)));
            nearest.truncate(k);
            let is_exact = bound.is_none_or(|bound| nearest.len() == k && nearest[k - 1].0 <= bound);
            if !is_exact && depth < Fusion::CANDIDATES_MAX.max(first) {
                still.push(query);
            } else {
                answers[query] = nearest.into_iter().map(|(_, hit)| hit).collect();
            }
        }
        (open, depth) = (still, depth.saturating_mul(Fusion::FURTHER));
    }
    Ok(answers)
}

/// Items of one query that are not native, with their fused distances.
#[derive(Debug, Clone, Default)]
struct Candidates {
    hits: BTreeMap<ItemKey, (f64, Found)>,
    /// Fused distance below which no item outside `hits` lies; `None` where there is no other item.
    bound: Option<f64>,
}

/// Reads the `depth` first items of both spaces, each judged by the vectors of both.
fn candidates(
    store: &dyn Store,
    record: &UpgradeRecord,
    fusion: &Fusion,
    (old, new): (&Matrix, &Matrix),
    depth: usize,
    (fused, filter): (&[Provenance], &Filter),
) -> Result<Vec<Candidates>> {
    let (old_space, new_space) = (&record.old, &record.new);
    // The filter speaks of provenances in the new space, which the old one does not know.
    let everywhere = Filter { provenances: Vec::new(), ..filter.clone() };
    let by_old = store.search_handicapped(&old_space.name, old, depth, &everywhere, record.old_handicap)?;
    let adapted = Filter { provenances: vec![Provenance::Adapted], ..filter.clone() };
    let by_new = if fused.contains(&Provenance::Adapted) {
        store.search(&new_space.name, new, depth, &adapted)?
    } else {
        vec![Vec::new(); new.rows()]
    };
    let mut answers = Vec::with_capacity(by_old.len());
    for (query, (by_old, by_new)) in by_old.into_iter().zip(by_new).enumerate() {
        // A list that is not full names all that there are.
        let last =
            |hits: &[Found]| hits.last().filter(|_| hits.len() >= depth).map(|hit| f64::from(hit.distance));
        // An item in no list is in the old space all the same, and so no nearer there than
        // the last of its list.
        let bound = last(&by_old).map(|old| {
            let alone = fusion.distance(old, None);
            last(&by_new).map_or(alone, |adapted| fusion.distance(old, Some(adapted)).min(alone))
        });
        let mut hits_by_key: BTreeMap<ItemKey, Found> = BTreeMap::new();
        for hit in by_old.into_iter().chain(by_new) {
            hits_by_key.entry(hit.key).or_insert(hit);
        }
        let keys: Vec<ItemKey> = hits_by_key.keys().copied().collect();
        let in_old = store.vectors(&old_space.name, &keys)?;
        let in_new = store.vectors(&new_space.name, &keys)?;
        let mut hits = BTreeMap::new();
        for ((key, hit), (before, now)) in hits_by_key.into_iter().zip(in_old.into_iter().zip(in_new)) {
            let provenance = now.as_ref().map_or(Provenance::Old, |now| now.provenance);
            let revision = now.as_ref().or(before.as_ref()).map(|vector| vector.revision);
            let Some(revision) = revision.filter(|_| fused.contains(&provenance)) else { continue };
            let by_old = before.filter(|before| old_space.distance.can_place(&before.vector)).map(|before| {
                let away = old_space.distance.between(old.row(query), &before.vector);
                let is_adapted = before.provenance == Provenance::Adapted;
                away + if is_adapted { record.old_handicap } else { 0.0 }
            });
            let by_new = now
                .filter(|now| new_space.distance.can_place(&now.vector))
                .map(|now| new_space.distance.between(new.row(query), &now.vector));
            let away = match (by_old, by_new) {
                (Some(old), by_new) => fusion.distance(old, by_new),
                // The item's old vector is gone: adapted distances are on the scale of fused ones.
                (None, Some(adapted)) => adapted + f64::from(fusion.handicap),
                (None, None) => continue,
            };
            hits.insert(key, (away, Found { distance: away as f32, provenance, revision, ..hit }));
        }
        answers.push(Candidates { hits, bound });
    }
    Ok(answers)
}
