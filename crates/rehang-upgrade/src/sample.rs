//! A random sample of the gallery: the items that pairs are drawn from, and that a refit measures on.
//!
//! An upgrade re-embeds first the items that the adapter, and often the old model, is worst at, so that what is native says little of
//! the others. So every item that is native or can become so has a
//! place in a shuffle that depends on its key alone. Items without a source, and those that the encoder gave up, have none: with
//! many of them, no beginning of the shuffle would ever be native.

use rehang::{Provenance, Result};
use rehang_store::{
    Among, Epoch, ItemKey, Ledger, PAIRS_SEED, Priority, Queue, QueueBand, Record, Sample, shuffled,
};

use crate::fill::NEW_OR_CHANGED;

/// The share of the sample that has to be native: an item that changed, or that fails a while, does not end it.
pub(crate) const NATIVE_SHARE: f64 = 0.9;

/// The first items of the shuffle, as they stand in the space.
fn beginning(space: &str, size: usize) -> Sample {
    Sample { space: space.into(), among: Among::Embeddable, seed: PAIRS_SEED, size, vectors_of: None }
}

/// The queue of a backfill of the first items of the shuffle.
pub(crate) fn queue(size: usize) -> Queue {
    Queue::Sample { seed: PAIRS_SEED, size }
}

/// How many of the first items of the shuffle are not native yet.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn waiting(store: &dyn Ledger, space: &str, size: usize) -> Result<u64> {
    let drawn = store.sample(&beginning(space, size))?.records;
    Ok(drawn.iter().filter(|record| !is_native(record)).count() as u64)
}

/// Items that are in the shuffle: native ones, and those that can become so.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn embeddable(store: &dyn Ledger, space: &str) -> Result<u64> {
    Ok(store.sample(&beginning(space, 0))?.of)
}

/// Some of a gallery's items, drawn at random: at most `items`, the same as long as they are there. With their vectors of a space, or
/// without.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn some(
    store: &dyn Ledger,
    space: &str,
    items: usize,
    vectors_of: Option<&str>,
) -> Result<Vec<Record>> {
    let sample = Sample {
        space: space.into(),
        among: Among::All,
        seed: PAIRS_SEED,
        size: items,
        vectors_of: vectors_of.map(Into::into),
    };
    Ok(store.sample(&sample)?.records)
}

pub(crate) fn is_native(record: &Record) -> bool {
    record.state.as_ref().is_some_and(|state| state.provenance == Provenance::Native)
}

/// The place of an item in the shuffle, from 0 to 1.
pub(crate) fn place(record: &Record) -> f64 {
    place_of(record.item.key)
}

/// The place of a key in the shuffle, from 0 to 1.
pub(crate) fn place_of(key: ItemKey) -> f64 {
    shuffled(PAIRS_SEED, key)
}

/// The first items of the shuffle, as they stand in the space.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn first(store: &dyn Ledger, new: &str, size: usize) -> Result<Vec<Record>> {
    Ok(store.sample(&beginning(new, size))?.records)
}

/// Puts what of a random sample of the gallery is still adapted to the front of the queue, in its order: behind what came or changed during the upgrade,
/// unless that is more than the sample itself. A gallery that is growing fast would else be measured on when nearly all of it is native.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn place_first(
    store: &dyn Ledger,
    new: &str,
    epoch: Epoch,
    records: &[Record],
    items: u64,
) -> Result<()> {
    let adapted = || {
        records.iter().enumerate().filter_map(|(rank, record)| {
            let state = record.state.as_ref().filter(|state| state.provenance == Provenance::Adapted)?;
            Some((rank, record, state.priority))
        })
    };
    let came = adapted().filter(|(.., place)| *place == Some(NEW_OR_CHANGED)).count();
    // As the sample, so the gallery.
    let has_grown = came as f64 * items as f64 > (records.len() * records.len()) as f64;
    let band = if has_grown { QueueBand::NewOrChanged } else { QueueBand::Sample };
    let places: Vec<_> = adapted()
        .filter_map(|(rank, record, before)| {
            let place = Priority::new(band, (records.len() - rank) as f64);
            let waits =
                before.is_none_or(|before| before.band < band || (has_grown && before == NEW_OR_CHANGED));
            waits.then_some((record.item.key, record.item.revision, place))
        })
        .collect();
    store.set_priorities(new, epoch, &places)?;
    Ok(())
}

/// The native items of the sample: of the longest beginning of the shuffle that is native but for a tenth, at most `count`
/// items. Those that only the new model has seen are no part of it.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn natives(store: &dyn Ledger, old: &str, new: &str, count: usize) -> Result<Vec<Record>> {
    let drawn = store.sample(&beginning(new, count))?.records;
    let keys: Vec<ItemKey> = drawn.iter().map(|record| record.item.key).collect();
    let in_old = store.provenances(old, &keys)?;
    let (mut seen, mut native, mut kept) = (0, Vec::new(), 0);
    for (record, _) in drawn.into_iter().zip(in_old).filter(|(_, in_old)| in_old.is_some()) {
        seen += 1;
        if is_native(&record) {
            native.push(record);
        }
        if native.len() as f64 >= NATIVE_SHARE * f64::from(seen) {
            kept = native.len();
        }
    }
    native.truncate(kept);
    Ok(native)
}
