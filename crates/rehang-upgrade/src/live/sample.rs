//! Random sample of the gallery: the items that pairs are drawn from, and that a refit measures on.
//!
//! An upgrade re-embeds first the items that the adapter, and often the old model, is worst at, so its native
//! items say little of the others. So every item that is native or can become so has a place in a shuffle
//! that depends on its key alone. Items without a source, and those that the encoder gave up, have none: with
//! many of them, no beginning of the shuffle would ever be native.

use rehang_core::{Provenance, Result};
use rehang_store::{Among, Epoch, ItemKey, Ledger, PAIRS_SEED, Priority, Queue, QueueBand, Record, Sample};

use crate::live::fill::NEW_OR_CHANGED;

/// Share of some items that has to be native for these to stand for all: an item that changed, or that fails
/// for a while, does not end that.
pub(crate) const NATIVE_SHARE: f64 = 0.9;

/// Share of a sample that has to be native where the sample is told from the rest by that.
const DRAWN_SHARE: f64 = 0.7;

/// Describes the first items of the shuffle, as they stand in a space.
fn beginning(space: &str, size: usize) -> Sample {
    Sample { space: space.into(), among: Among::Embeddable, seed: PAIRS_SEED, size, vectors_of: None }
}

/// Returns the queue of a backfill of the first items of the shuffle.
pub(crate) fn queue(size: usize) -> Queue {
    Queue::Sample { seed: PAIRS_SEED, size }
}

/// Counts the first items of the shuffle that are not native yet.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn waiting(store: &dyn Ledger, space: &str, size: usize) -> Result<u64> {
    let drawn = store.sample(&beginning(space, size))?.records;
    Ok(drawn.iter().filter(|record| !is_native(record)).count() as u64)
}

/// Counts the items that are in the shuffle: native ones, and those that can become so.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn embeddable(store: &dyn Ledger, space: &str) -> Result<u64> {
    Ok(store.sample(&beginning(space, 0))?.drawn_from)
}

/// Draws at most `items` items of a gallery at random, the same ones as long as they are there. With their
/// vectors of the space `vectors_of`, if one is named.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn draw(
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

/// Returns the first items of the shuffle, as they stand in the space.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn first_of_shuffle(store: &dyn Ledger, new: &str, size: usize) -> Result<Vec<Record>> {
    Ok(store.sample(&beginning(new, size))?.records)
}

/// Moves those of a random sample that are still adapted to the front of the queue, in the sample's order.
/// They come behind items that came or changed during the upgrade, unless these are more than the sample
/// itself. Otherwise a gallery that grows fast would be measured on when nearly all of it is native.
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
    let new_or_changed = adapted().filter(|(.., place)| *place == Some(NEW_OR_CHANGED)).count();
    // The share of the gallery that came is taken to be that of the sample.
    let has_grown = new_or_changed as f64 * items as f64 > (records.len() * records.len()) as f64;
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

/// Returns the native items of the sample, which is the beginning of the shuffle that [is
/// native](end_of_native), at most `count` items of it. Items that only the new model has seen are left out.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn natives(store: &dyn Ledger, old: &str, new: &str, count: usize) -> Result<Vec<Record>> {
    let drawn = store.sample(&beginning(new, count))?.records;
    let keys: Vec<ItemKey> = drawn.iter().map(|record| record.item.key).collect();
    let in_old = store.provenances(old, &keys)?;
    let mut records: Vec<Record> =
        drawn.into_iter().zip(in_old).filter_map(|(record, in_old)| in_old.map(|_| record)).collect();
    let end = end_of_native(&records.iter().map(is_native).collect::<Vec<_>>());
    records.truncate(end);
    records.retain(is_native);
    Ok(records)
}

/// Returns where the native beginning of the shuffle ends. It ends at the last item, where nearly all are
/// native. Otherwise it ends where the items before are most unlike the rest, by the likelihood of two
/// shares. Seven of ten items before have to be native: some items of a sample change after it was drawn, and
/// of the others some are native, too.
fn end_of_native(native: &[bool]) -> usize {
    let all = native.iter().filter(|native| **native).count();
    if all as f64 >= NATIVE_SHARE * native.len() as f64 {
        return native.len();
    }
    // The logarithm of the likelihood that so many of so many are native.
    let fits = |native: usize, of: usize| {
        let (native, of) = (native as f64, of as f64);
        let part = |count: f64| if count == 0.0 { 0.0 } else { count * (count / of).ln() };
        part(native) + part(of - native)
    };
    let (mut natives_so_far, mut best) = (0, (0, f64::NEG_INFINITY));
    for (before, is_native) in native.iter().enumerate() {
        let looked_at = before + 1;
        natives_so_far += usize::from(*is_native);
        let share = natives_so_far as f64 / looked_at as f64;
        let (natives_left, items_left) = (all - natives_so_far, native.len() - looked_at);
        // Two shares fit better than one in any case. Where they do so by chance alone, the beginning ends at
        // the last item.
        let chance = if items_left == 0 { (looked_at as f64).ln() } else { 0.0 };
        let fits = fits(natives_so_far, looked_at) + fits(natives_left, items_left) + chance;
        let is_more = natives_so_far * items_left >= natives_left * looked_at;
        if share >= DRAWN_SHARE && is_more && fits > best.1 {
            best = (looked_at, fits);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `first` marks, all native except every `but`-th, and then `then` marks, of which every
    /// `every`-th is native.
    fn drawn(first: usize, but: usize, then: usize, every: usize) -> Vec<bool> {
        let before = (0..first).map(|at| at % but != 0);
        before.chain((0..then).map(|at| at % every == every - 1)).collect()
    }

    #[test]
    fn a_sample_that_changes_stays_the_sample() {
        // None, a twentieth, a seventh and a fourth of the sample have changed; of the others none, a tenth
        // and a third are native.
        for but in [usize::MAX, 20, 7, 4] {
            for every in [usize::MAX, 10, 3] {
                let end = end_of_native(&drawn(600, but, 3000, every));
                assert_eq!(end, 600, "but every {but}, then every {every}: {end}");
            }
        }
        // Where no more than the sample is looked at, all of it is the beginning.
        for but in [20, 7, 4] {
            assert_eq!(end_of_native(&drawn(600, but, 0, 1)), 600, "but every {but}");
        }
        // Older natives that did not change are no sample by themselves.
        assert_eq!(
            end_of_native(
                &drawn(600, usize::MAX, 1400, 1)
                    .iter()
                    .enumerate()
                    .map(|(at, native)| *native && (at < 600 || at % 14 > 0))
                    .collect::<Vec<_>>()
            ),
            2000
        );
        // Where all are native, all are the beginning; where nothing was drawn, next to nothing is.
        assert_eq!(end_of_native(&[true; 50]), 50);
        assert_eq!(end_of_native(&[false; 50]), 0);
        assert_eq!(end_of_native(&[]), 0);
        assert!(end_of_native(&drawn(0, 1, 3000, 3)) <= 3);
    }
}
