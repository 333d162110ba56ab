//! Batches in hand: which items are at the encoder, wait until it vouches for their vectors, or are being
//! written.

use std::collections::BTreeMap;

use rehang_store::ItemKey;

/// Batches of a backfill, each with the keys of its items. The loop has their vectors.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Batches {
    /// Number of the next batch.
    next: u64,
    /// Batches at the encoder.
    pub encoding: BTreeMap<u64, Vec<ItemKey>>,
    /// Batches whose vectors the encoder does not vouch for yet, and was not asked to.
    unvouched: BTreeMap<u64, Vec<ItemKey>>,
    /// Batches whose vectors are being written.
    writing: BTreeMap<u64, Vec<ItemKey>>,
}

impl Batches {
    /// Begins a batch that goes to the encoder, and returns its number.
    pub fn encode(&mut self, keys: Vec<ItemKey>) -> u64 {
        let batch = self.begin();
        self.encoding.insert(batch, keys);
        batch
    }

    /// Begins a batch of vectors that are written again, and returns its number.
    pub fn write_again(&mut self, keys: Vec<ItemKey>) -> u64 {
        let batch = self.begin();
        self.write(batch, keys);
        batch
    }

    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Keeps a batch that came back until the encoder vouches for its vectors.
    pub fn keep_unvouched(&mut self, batch: u64) {
        self.unvouched.extend(self.encoding.remove_entry(&batch));
    }

    /// Takes the unvouched batches to be at the encoder, which is asked to vouch for them; returns whether
    /// there are any.
    pub fn ask_to_vouch(&mut self) -> bool {
        let has_any = !self.unvouched.is_empty();
        self.encoding.append(&mut self.unvouched);
        has_any
    }

    /// Removes a batch that is at the encoder or unvouched, and returns its items.
    pub fn remove(&mut self, batch: u64) -> Option<Vec<ItemKey>> {
        self.encoding.remove(&batch).or_else(|| self.unvouched.remove(&batch))
    }

    /// Notes items of a batch whose vectors are being written.
    pub fn write(&mut self, batch: u64, keys: Vec<ItemKey>) {
        self.writing.insert(batch, keys);
    }

    /// Leaves out items of a batch that is being written.
    pub fn leave_out(&mut self, batch: u64, keys: &[ItemKey]) {
        if let Some(writing) = self.writing.get_mut(&batch) {
            writing.retain(|key| !keys.contains(key));
        }
    }

    /// Ends a batch that was written, and returns its items.
    pub fn end(&mut self, batch: u64) -> Vec<ItemKey> {
        self.writing.remove(&batch).unwrap_or_default()
    }

    /// Whether no batch is in hand.
    pub fn is_empty(&self) -> bool {
        self.none_is_awaited() && self.unvouched.is_empty()
    }

    /// Whether no batch is at the encoder or being written.
    pub fn none_is_awaited(&self) -> bool {
        self.encoding.is_empty() && self.writing.is_empty()
    }

    /// Items of all batches.
    pub fn keys(&self) -> impl Iterator<Item = ItemKey> + '_ {
        let batches = self.encoding.values().chain(self.unvouched.values()).chain(self.writing.values());
        batches.flatten().copied()
    }
}
