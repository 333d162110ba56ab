//! Equal sources: each is embedded once, and every item that has it gets that vector.
//!
//! The item that has the vector of a source is remembered by a hash of the source that nobody can
//! make two texts of. The vector itself lies in the gallery, and is taken from there only while its
//! item is what it was.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;

use rehang_core::{Provenance, Result};
use rehang_store::{ItemKey, Ledger, Record, Revision, Scan, Select, VectorRecord};
use sha2::{Digest as _, Sha256};

/// Number of latest sources that are remembered at least; at most twice as many are.
const REMEMBERED: usize = 1 << 17;
/// Natives of earlier runs that are remembered: as many as the largest sample of pairs has, and some.
const EARLIER_NATIVES_MAX: usize = 1 << 14;
/// Natives of earlier runs that are read at a time.
const PAGE: usize = 1 << 10;

pub(crate) type Hash = [u8; 32];

/// An item that has the vector of its source, and the revision that it had then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Embedded {
    pub(crate) key: ItemKey,
    revision: Revision,
}

impl Embedded {
    pub(crate) fn from_record(record: &Record) -> Self {
        Self { key: record.item.key, revision: record.item.revision }
    }

    /// Whether a vector is still the one of the source: native, of an item that nobody has written since.
    pub(crate) fn has(&self, vector: &VectorRecord) -> bool {
        vector.provenance == Provenance::Native && vector.revision == self.revision
    }
}

/// Origin of the vector of an item that is not sent to the encoder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Copied {
    /// The vector of the sent item at this place, which has the same source.
    Sent(usize),
    /// A vector that was embedded before.
    Vector(Vec<f32>),
}

/// Splits a batch into the items that are sent to the encoder, each of another source, and the others.
/// `earlier_vectors` are those from before, in order.
pub(crate) fn split_by_source(
    records: Vec<Record>,
    earlier_vectors: Vec<Option<Vec<f32>>>,
) -> (Vec<Record>, Vec<(Record, Copied)>) {
    let (mut sent, mut copied) = (Vec::<Record>::new(), Vec::new());
    let mut places: HashMap<Option<String>, usize> = HashMap::new();
    for (record, earlier_vector) in records.into_iter().zip(earlier_vectors) {
        if let Some(vector) = earlier_vector {
            copied.push((record, Copied::Vector(vector)));
            continue;
        }
        match places.entry(record.item.source.clone()) {
            Entry::Occupied(place) => copied.push((record, Copied::Sent(*place.get()))),
            Entry::Vacant(place) => {
                place.insert(sent.len());
                sent.push(record);
            }
        }
    }
    (sent, copied)
}

/// Memory of which item has the vector of which source.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    young: HashMap<Hash, Embedded>,
    old: HashMap<Hash, Embedded>,
}

impl Sources {
    /// Reads the sources of the native items of a space, of as many as are remembered.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) fn of_natives(store: &dyn Ledger, space: &str) -> Result<Self> {
        let mut sources = Self::default();
        let mut natives_left = EARLIER_NATIVES_MAX;
        let mut walk = Some(Scan::new(space, Select::Provenance(Provenance::Native), PAGE));
        while let Some(page) = walk.filter(|_| natives_left > 0) {
            let records = store.scan(&page)?;
            walk = page.following(&records);
            for record in records.iter().take(natives_left) {
                sources.remember(record);
            }
            natives_left -= natives_left.min(records.len());
        }
        Ok(sources)
    }

    /// Remembers that an item has the vector of its source.
    pub(crate) fn remember(&mut self, record: &Record) {
        let Some(source) = &record.item.source else { return };
        if self.young.len() >= REMEMBERED {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(hash(source), Embedded::from_record(record));
    }

    /// Finds the item that is remembered to have the vector of an item's source.
    pub(crate) fn find(&self, record: &Record) -> Option<Embedded> {
        let hash = hash(record.item.source.as_ref()?);
        self.young.get(&hash).or_else(|| self.old.get(&hash)).copied()
    }
}

/// Hashes a source, which is remembered by the hash.
pub(crate) fn hash(source: &str) -> Hash {
    Sha256::digest(source.as_bytes()).into()
}
