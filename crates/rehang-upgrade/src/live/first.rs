//! Puts the items that searches return most first in the queue of a backfill.
//!
//! An order knows the gallery, and nothing of what is asked. A log of what searches returned does. Its items
//! go before all others of the order, the largest `times returned · σ²` first (measured in
//! `laboratory/bench/orders`): items that are asked for count, and a vector that the adapter is sure of gains
//! little. They keep that place, whatever adapter or order comes next, behind new and changed items and the
//! sample that a run measures on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use fs_err::File;
use rehang_core::{Error, Provenance, Result, Space};
use rehang_store::{Ledger, Priority, QueueBand};
use serde::Serialize;

use crate::live::fill::PAGE_ITEMS_MAX;
use crate::observe::{Observer, expect_going};
use crate::record::{Phase, Recorded};
use crate::setup::expect_between;

/// Number of ids that an error names where the gallery has none of a log's.
const EXAMPLES: usize = 3;

/// Counts of items by what [`put_first`] did with them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PutFirst {
    /// Items that now come first.
    pub placed: u64,
    /// Items that are native, and need nothing.
    pub native: u64,
    /// Items that come before the placed ones already: new and changed ones, or those that wait for
    /// their first vector.
    pub before: u64,
    /// Items that were changed meanwhile, which puts them first too.
    pub changed: u64,
    /// Ids of the log that the gallery does not have.
    pub unknown: u64,
}

/// Reads a log of what searches returned, one id a line: an id counts as often as it stands there. Space
/// around it and empty lines do not count.
///
/// # Errors
///
/// I/O, and corrupt where it is no UTF-8.
pub fn read_returned(log: &Path) -> Result<BTreeMap<String, u64>> {
    let file = File::open(log).map_err(|error| Error::io("open", log, &error))?;
    let mut times = BTreeMap::new();
    for (line, read) in BufReader::new(file).lines().enumerate() {
        let read =
            read.map_err(|error| Error::corrupt(log.display(), format!("line {}: {error}", line + 1)))?;
        let id = read.trim();
        if !id.is_empty() {
            *times.entry(id.to_owned()).or_default() += 1;
        }
    }
    Ok(times)
}

/// Puts items to the front of a live upgrade's queue by `times` that searches returned them, the largest
/// `times · σ²` first. Items that an earlier log placed keep their places among these, but for those
/// that this log has too.
///
/// # Errors
///
/// Not found where there is no upgrade; a wrong phase where it fills nothing yet or is over; a conflict where
/// it is between other spaces; not found where the gallery has none of the ids; superseded where another plan
/// begins meanwhile; those of the store.
pub fn put_first(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    times: &BTreeMap<String, u64>,
    observer: &dyn Observer,
) -> Result<PutFirst> {
    let record = Recorded::expect(store)?.record;
    expect_between(store, &record, old, new)?;
    let epoch = match (record.phase, record.epoch) {
        (Phase::Filling | Phase::Filled, Some(epoch)) => epoch,
        (phase, _) => {
            return Err(Error::wrong_phase(format!("the upgrade of {}", store.name()), phase.name()));
        }
    };
    let ids: Vec<&str> = times.keys().map(String::as_str).collect();
    let (mut done, mut ranked) = (PutFirst::default(), Vec::new());
    for page in ids.chunks(PAGE_ITEMS_MAX) {
        expect_going(observer)?;
        let items: Vec<_> = store
            .get(page)?
            .into_iter()
            .zip(page)
            .filter_map(|(item, id)| Some((item?, times[*id])))
            .collect();
        done.unknown += (page.len() - items.len()) as u64;
        let keys: Vec<_> = items.iter().map(|(item, _)| item.key).collect();
        for ((item, times), vector) in items.into_iter().zip(store.vectors(&new.name, &keys)?) {
            match vector {
                Some(vector) if vector.provenance == Provenance::Native => done.native += 1,
                Some(vector) if vector.priority.is_none_or(|place| place.band < QueueBand::NewOrChanged) => {
                    // Old vectors that serve as they are have no σ²: the log alone ranks them.
                    let score = times as f64 * f64::from(vector.sigma2.unwrap_or(1.0));
                    ranked.push((score, item.key, item.revision));
                }
                _ => done.before += 1,
            }
        }
    }
    if done.unknown == ids.len() as u64 && !ids.is_empty() {
        let examples = ids.iter().take(EXAMPLES).map(|id| format!("{id:?}")).collect::<Vec<_>>().join(", ");
        return Err(Error::not_found("any item of the log", examples, store.name()));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    // Places below 0 are behind those of the sample that a run measures on.
    let places: Vec<_> = ranked
        .iter()
        .enumerate()
        .map(|(rank, (_, key, revision))| {
            (*key, *revision, Priority::new(QueueBand::Sample, -1.0 - rank as f64))
        })
        .collect();
    for page in places.chunks(PAGE_ITEMS_MAX) {
        expect_going(observer)?;
        done.placed += store.set_priorities(&new.name, epoch, page)? as u64;
    }
    done.changed = places.len() as u64 - done.placed;
    Ok(done)
}
