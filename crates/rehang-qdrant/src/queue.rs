//! The queue of a backfill: which items wait for a vector and in which order, and which items
//! a sample is drawn from.

use std::collections::BTreeSet;

use rehang_core::{Provenance, Result};
use rehang_store::{Among, FirstKeys, ItemKey, QueueBand};
use serde_json::{Value, json};

use crate::filters::{all_of, has_id, is, is_empty, none_of};
use crate::handle::{DrawnKeys, Handle};
use crate::items::has_source;
use crate::payload::REVISION;
use crate::points::Point;
use crate::scroll::With;
use crate::slot::SpaceSlot;

/// Builds a filter for items that the backfill can take: with a source and without a failure.
pub(crate) fn queueable(space: &SpaceSlot) -> [Value; 2] {
    [has_source(true), is_empty(&space.path("f"))]
}

/// Gives the queue of the backfill, part by part, until `visit` has enough. First come items that lack a
/// vector, by key; then those with a place, by band and score; then those without one, by key. A part is
/// about as long as `wanted`, then longer and longer. Items of `held` are left out. Each item is given once,
/// although one that gets its vector or its place meanwhile is met in two lists.
pub(crate) fn walk_queue(
    handle: &Handle,
    space: &SpaceSlot,
    with: &With,
    wanted: usize,
    held: &[ItemKey],
    visit: &mut dyn FnMut(Vec<Point>) -> Result<bool>,
) -> Result<()> {
    let collection = handle.collection();
    let mut seen_keys = BTreeSet::new();
    let mut visit =
        |points: Vec<Point>| visit(points.into_iter().filter(|point| seen_keys.insert(point.key)).collect());
    let queueable = |space: &SpaceSlot| {
        let mut conditions = queueable(space).to_vec();
        if !held.is_empty() {
            conditions.push(none_of([has_id(held.iter().copied())]));
        }
        conditions
    };
    let adapted = || space.made_by(&[Provenance::Adapted]);
    let mut goes_on = wanted > 0;
    let lacking = [queueable(space), vec![space.lacking()]].concat();
    if goes_on {
        handle.client.each_page(collection, &all_of(lacking), None, usize::MAX, with, &mut |points| {
            goes_on = visit(points)?;
            Ok(goes_on)
        })?;
    }
    for band in (0..QueueBand::ALL.len()).rev() {
        let filter = [queueable(space), vec![adapted(), is(&space.path("b"), band)]].concat();
        let mut limit = wanted;
        while goes_on {
            let points = handle.client.scroll_down(
                collection,
                &all_of(filter.clone()),
                &space.path("q"),
                limit,
                with,
            )?;
            let is_last = points.len() < limit;
            goes_on = visit(points)?;
            if is_last {
                break;
            }
            limit = limit.saturating_mul(4);
        }
    }
    let unranked = [queueable(space), vec![adapted(), is_empty(&space.path("b"))]].concat();
    if goes_on {
        handle.client.each_page(collection, &all_of(unranked), None, usize::MAX, with, &mut visit)?;
    }
    Ok(())
}

/// Builds a filter for the items that a sample is drawn from.
pub(crate) fn among(space: &SpaceSlot, among: Among) -> Value {
    match among {
        Among::All => none_of([is_empty(REVISION)]),
        Among::Adapted => space.made_by(&[Provenance::Adapted]),
        Among::Embeddable => {
            let [sourced, not_failed] = queueable(space);
            let waits = all_of([sourced, not_failed, space.waiting()]);
            json!({"should": [waits, space.made_by(&[Provenance::Native])]})
        }
    }
}

/// Draws the first keys of a shuffle, and counts how many keys are in it. It passes over all ids, since the
/// server cannot order by a hash of them. Where no keys are wanted, it only counts.
pub(crate) fn first_of_shuffle(
    handle: &Handle,
    space: &SpaceSlot,
    of: Among,
    seed: u64,
    size: usize,
) -> Result<(Vec<ItemKey>, u64)> {
    let filter = among(space, of);
    if size == 0 {
        return Ok((Vec::new(), handle.client.count(handle.collection(), &filter)?));
    }
    let mut first = FirstKeys::new(seed, size);
    let (collection, with) = (handle.collection(), With::default());
    handle.client.each_page(collection, &filter, None, usize::MAX, &with, &mut |points| {
        for point in points {
            first.take(point.key);
        }
        Ok(true)
    })?;
    Ok(first.keys())
}

/// Returns the items of a sample that wait for a vector, in the sample's order. Drawing is a pass
/// over all ids. So claims use what was drawn until all of it is native, and only then look for
/// items that have come since.
pub(crate) fn waiting_in_sample(
    handle: &Handle,
    space: &SpaceSlot,
    drawn: &mut DrawnKeys,
    seed: u64,
    size: usize,
) -> Result<Vec<ItemKey>> {
    let sample = Some((space.slot, seed, size));
    if drawn.sample == sample {
        let waiting = waiting_of(handle, space, &drawn.keys)?;
        if !waiting.is_empty() {
            return Ok(waiting);
        }
    }
    (drawn.keys, _) = first_of_shuffle(handle, space, Among::Embeddable, seed, size)?;
    drawn.sample = sample;
    waiting_of(handle, space, &drawn.keys)
}

/// Keeps the items that wait for a vector, in their order.
fn waiting_of(handle: &Handle, space: &SpaceSlot, keys: &[ItemKey]) -> Result<Vec<ItemKey>> {
    let mut waiting = queueable(space).to_vec();
    waiting.extend([space.waiting(), has_id(keys.iter().copied())]);
    let points =
        handle.client.scroll(handle.collection(), &all_of(waiting), None, usize::MAX, &With::default())?;
    let still_waiting: BTreeSet<ItemKey> = points.into_iter().map(|point| point.key).collect();
    Ok(keys.iter().copied().filter(|key| still_waiting.contains(key)).collect())
}
