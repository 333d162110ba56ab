//! Unwritten vectors: a run has them, and the gallery has not yet. They wait to be written, for the encoder
//! to vouch for them, or for the store to take them.

use std::collections::BTreeMap;
use std::mem;

use rehang_encode::Encoder;
use rehang_store::{ItemKey, Record};

use crate::live::backfill::{Attempt, Event};
use crate::live::equal::Embedded;

/// Item with the vector that the encoder gave for it.
pub(super) type Embedding = (Record, Vec<f32>);

/// Batch that came back from the encoder.
struct Batch {
    vectors: Vec<Embedding>,
    /// Receipt and failed attempts, as long as the encoder does not vouch for the vectors.
    unvouched: Option<(u64, Vec<Attempt>)>,
}

/// Vectors of a run that are not written yet. [`Backfill`](crate::Backfill) knows their keys, and says when
/// they are written.
#[derive(Default)]
pub(super) struct Unwritten {
    batches: BTreeMap<u64, Batch>,
    /// Vectors that the store has not taken though their items are what they were, by item.
    untaken: BTreeMap<ItemKey, Embedding>,
    /// Unvouched batches that the encoder was asked to vouch for.
    asked_batches: Vec<u64>,
    /// Vectors that were thrown away, since the encoder has become another one.
    thrown_away: usize,
    /// Vectors that were released though the encoder could not be compared with itself.
    uncompared: usize,
}

impl Unwritten {
    /// Keeps the vectors of a batch until they are written.
    pub fn keep(&mut self, batch: u64, vectors: Vec<Embedding>) {
        if !vectors.is_empty() {
            self.batches.insert(batch, Batch { vectors, unvouched: None });
        }
    }

    /// Keeps the vectors of a batch that the encoder does not vouch for yet, with the receipt for them and
    /// the batch's items without a vector.
    pub fn keep_unvouched(
        &mut self,
        batch: u64,
        vectors: Vec<Embedding>,
        receipt: u64,
        failures: Vec<Attempt>,
    ) {
        self.batches.insert(batch, Batch { vectors, unvouched: Some((receipt, failures)) });
    }

    /// Whether the encoder has yet to vouch for any batch.
    pub fn has_unvouched(&self) -> bool {
        self.batches.values().any(|batch| batch.unvouched.is_some())
    }

    /// Releases the batches that the encoder vouches for by now, and returns their events.
    pub fn release_vouched(&mut self, encoder: &dyn Encoder) -> Vec<Event> {
        let mut events = Vec::new();
        for (&batch, Batch { unvouched, .. }) in &mut self.batches {
            let vouched = unvouched.take_if(|(receipt, _)| encoder.is_vouched_for(*receipt));
            events.extend(vouched.map(|(_, failures)| Event::Encoded { batch, failures }));
        }
        events
    }

    /// Notes that the encoder is asked to vouch for the batches that are unvouched at this moment.
    pub fn note_question(&mut self) {
        let unvouched_batches = self.batches.iter().filter(|(_, batch)| batch.unvouched.is_some());
        self.asked_batches = unvouched_batches.map(|(batch, _)| *batch).collect();
    }

    /// Releases the batches that the encoder was asked to vouch for, and returns the events of those that
    /// were still unvouched.
    pub fn release_asked(&mut self) -> Vec<Event> {
        let asked_batches = mem::take(&mut self.asked_batches);
        let release = |batch: u64| {
            let (_, failures) = self.batches.get_mut(&batch)?.unvouched.take()?;
            Some(Event::Encoded { batch, failures })
        };
        asked_batches.into_iter().filter_map(release).collect()
    }

    /// Counts the vectors that the encoder was asked to vouch for as not compared, and returns the ids of
    /// their items.
    pub fn count_uncompared(&mut self) -> Vec<String> {
        let batches = self.asked_batches.iter().filter_map(|batch| self.batches.get(batch));
        let ids: Vec<String> =
            batches.flat_map(|batch| &batch.vectors).map(|(record, _)| record.item.id.clone()).collect();
        self.uncompared += ids.len();
        ids
    }

    /// Throws all unvouched batches away, and returns their numbers.
    pub fn throw_unvouched_away(&mut self) -> Vec<u64> {
        self.asked_batches.clear();
        let mut numbers = Vec::new();
        for (number, batch) in self.batches.extract_if(.., |_, batch| batch.unvouched.is_some()) {
            self.thrown_away += batch.vectors.len();
            numbers.push(number);
        }
        numbers
    }

    /// Finds the vector that waits to be written for an item as it was embedded.
    pub fn find(&self, embedded: Embedded) -> Option<Vec<f32>> {
        let mut vectors = self.batches.values().flat_map(|batch| &batch.vectors);
        let embedding = vectors.find(|(record, _)| Embedded::from_record(record) == embedded);
        embedding.map(|(_, vector)| vector.clone())
    }

    /// Takes the vectors of a batch, to write them.
    pub fn take(&mut self, batch: u64) -> Vec<Embedding> {
        self.batches.remove(&batch).map_or_else(Vec::new, |batch| batch.vectors)
    }

    /// Keeps a vector that the store has not taken.
    pub fn keep_untaken(&mut self, record: Record, vector: Vec<f32>) {
        self.untaken.insert(record.item.key, (record, vector));
    }

    /// Makes a batch of vectors that the store has not taken, to write them again.
    pub fn gather_untaken(&mut self, batch: u64, keys: &[ItemKey]) {
        let vectors = keys.iter().filter_map(|key| self.untaken.remove(key)).collect();
        self.keep(batch, vectors);
    }

    /// Id of an item whose vector the store has not taken, or else its key in words.
    pub fn untaken_id(&self, key: ItemKey) -> String {
        self.untaken.get(&key).map_or_else(|| key.to_string(), |(record, _)| record.item.id.clone())
    }

    /// Says which vectors an encoder that could not be compared has cost or left in doubt, to be put behind
    /// an error; empty where there are none.
    pub fn doubts(&self) -> String {
        let mut doubts = String::new();
        if self.thrown_away > 0 {
            doubts += &format!(
                "; {} items that it embedded after the encoder was last found to be the same model stay as they were",
                self.thrown_away
            );
        }
        if self.uncompared > 0 {
            doubts += &format!(
                "; after the last {} of them the encoder could not be compared with itself, which the next run does first",
                self.uncompared
            );
        }
        doubts
    }
}
