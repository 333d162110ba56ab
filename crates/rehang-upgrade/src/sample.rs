//! The items that the scale of merged searches is learned from: a random sample of the gallery.
//!
//! What an upgrade re-embeds first is what the adapter, and often the old model, is worst at. A scale learned from that takes the
//! old model for worse than it is, and puts native items before its best answers. So every item that is native or can become so
//! has a place in a shuffle that depends on its key alone. Items without a source, and those that the encoder gave up, have none:
//! with many of them, no beginning of the shuffle would ever be native. While merged searches serve, the beginning of the shuffle is
//! re-embedded before everything else, in its order; and the scale is learned from the beginning of the shuffle, as far as that
//! is native, whatever else is.

use std::collections::{BTreeMap, BTreeSet};

use rehang::{Provenance, Result};
use rehang_store::{ItemKey, Record, Scan, Select, Store};

use crate::fill::{SAMPLE_FIRST, shuffled};

/// Items at the beginning of the shuffle that are re-embedded first, at most, and at most half of all that are in it.
const FIRST: usize = 200;
/// Items of one page; they come without vectors.
const PAGE: usize = 2048;
/// The same in every upgrade, so that an order planned anew with another seed does not begin another sample.
const SEED: u64 = 0x5ca1_ab1e;
/// The share of the sample that has to be native: an item that changed, or that fails a while, does not end it.
const NATIVE_SHARE: f64 = 0.9;

/// The beginning of the shuffle.
struct Drawn {
    /// The first items, as they stand in the space.
    first: Vec<Record>,
    /// How many the shuffle has in all.
    of: usize,
}

/// The first items of the shuffle, at most `count`.
fn shuffle(store: &dyn Store, space: &str, count: usize) -> Result<Drawn> {
    let mut first: BTreeMap<(u64, ItemKey), Record> = BTreeMap::new();
    let (mut of, mut after) = (0, None);
    loop {
        let records = store.scan(&Scan::new(space, Select::All, PAGE).after(after))?;
        let Some(last) = records.last() else {
            return Ok(Drawn { first: first.into_values().collect(), of });
        };
        // No more failures than items lie between two keys.
        let failures = store.failures(space, after, records.len())?;
        let failed: BTreeSet<ItemKey> = failures.into_iter().map(|failure| failure.key).collect();
        after = Some(last.item.key);
        for record in records {
            let can_be = record.item.source.is_some() && !failed.contains(&record.item.key);
            if !can_be && !is_native(&record) {
                continue;
            }
            of += 1;
            // Positive numbers sort as their bits do.
            let place = shuffled(SEED, record.item.key).to_bits();
            first.insert((place, record.item.key), record);
            if first.len() > count {
                first.pop_last();
            }
        }
    }
}

fn is_native(record: &Record) -> bool {
    record.state.as_ref().is_some_and(|state| state.provenance == Provenance::Native)
}

/// Puts what of the sample is still adapted to the front of the queue, behind what the application changed.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn first_in_queue(store: &dyn Store, new: &str) -> Result<()> {
    let drawn = shuffle(store, new, FIRST)?;
    let places: Vec<_> = drawn
        .first
        .iter()
        .take(drawn.of / 2)
        .enumerate()
        .filter_map(|(rank, record)| {
            let state = record.state.as_ref()?;
            let waits = state.provenance == Provenance::Adapted
                && state.priority.is_none_or(|priority| priority < SAMPLE_FIRST);
            waits.then_some((record.item.key, record.item.revision, SAMPLE_FIRST + (FIRST - rank) as f64))
        })
        .collect();
    store.set_priorities(new, &places)?;
    Ok(())
}

/// The native items of the sample: of the longest beginning of the shuffle that is native but for a tenth, at most `count`
/// items. Those that only the new model has seen are no part of it.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn native(store: &dyn Store, old: &str, new: &str, count: usize) -> Result<Vec<ItemKey>> {
    let drawn = shuffle(store, new, count)?.first;
    let keys: Vec<ItemKey> = drawn.iter().map(|record| record.item.key).collect();
    let in_old = store.provenances(old, &keys)?;
    let (mut seen, mut native, mut kept) = (0, Vec::new(), 0);
    for (record, _) in drawn.iter().zip(in_old).filter(|(_, in_old)| in_old.is_some()) {
        seen += 1;
        if is_native(record) {
            native.push(record.item.key);
        }
        if native.len() as f64 >= NATIVE_SHARE * f64::from(seen) {
            kept = native.len();
        }
    }
    native.truncate(kept);
    Ok(native)
}
