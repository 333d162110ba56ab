//! Workers of a run: threads that ask the encoder, each for one batch at a time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use rehang_clock::Clock;
use rehang_core::{Error, Result, in_parallel};
use rehang_encode::{Encoder, Input};
use rehang_store::Record;

use super::setup::BackfillSetup;
use crate::live::equal::Copied;
use crate::live::unvouched::{Answers, Found, encode_rest};

/// Question of the loop to a worker, which asks the encoder.
pub(super) enum Job {
    /// Embed a batch.
    Encode(SentBatch),
    /// Ask the encoder whether it still is the same model.
    Vouch,
}

/// Batch that goes to the encoder.
pub(super) struct SentBatch {
    pub batch: u64,
    /// Items that the encoder is asked for.
    pub sent: Vec<Record>,
    /// Items that get the vector of another one.
    pub copies: Vec<(Record, Copied)>,
    /// Unvouched vectors of the sent items that lie in documents, in the order of the items.
    pub unvouched_vectors: Vec<Option<Found>>,
}

/// Answer of the encoder.
pub(super) enum Done {
    /// A batch has come back.
    Encoded(EncodedBatch),
    /// Result of comparing the encoder with itself.
    Vouched(Result<()>),
}

/// Batch that comes back from the encoder, with the receipt for its vectors.
pub(super) struct EncodedBatch {
    pub batch: u64,
    /// Items that the encoder was asked for; `answer` is in their order.
    pub sent: Vec<Record>,
    /// Items that get the vector of another one.
    pub copies: Vec<(Record, Copied)>,
    pub answer: Result<Answers>,
    pub receipt: u64,
}

/// Workers of one run. They end when this is dropped.
pub(super) struct Workers<'a> {
    clock: &'a dyn Clock,
    jobs: Sender<Job>,
    results: Receiver<Done>,
    /// Number of jobs at the encoder.
    at_encoder: usize,
    /// Time up to which `busy_ms` is counted.
    busy_since_ms: u64,
    /// Milliseconds that jobs were at the encoder, summed over jobs.
    busy_ms: u64,
}

impl<'env> Workers<'env> {
    /// Starts the workers of a setup.
    pub fn start<'scope>(scope: &'scope Scope<'scope, 'env>, setup: &BackfillSetup<'env>) -> Self {
        let BackfillSetup { encoder, limits, clock, .. } = *setup;
        let (jobs, to_do) = channel::<Job>();
        let (done, results) = channel::<Done>();
        let to_do = Arc::new(Mutex::new(to_do));
        for _ in 0..limits.workers.max(1) {
            let (to_do, done) = (Arc::clone(&to_do), done.clone());
            scope.spawn(move || in_parallel(move || work(encoder, &to_do, &done)));
        }
        Self { clock, jobs, results, at_encoder: 0, busy_since_ms: 0, busy_ms: 0 }
    }

    /// Gives a job to the worker that is free first.
    pub fn give(&mut self, job: Job) {
        self.count_busy();
        self.at_encoder += 1;
        // Sending succeeds: the workers live as long as this loop, and end when the channel is dropped.
        drop(self.jobs.send(job));
    }

    /// Waits for an answer of the encoder, and not longer than `longest`; `None` where none came.
    ///
    /// # Errors
    ///
    /// A conflict where the workers died.
    pub fn wait(&mut self, longest: Duration) -> Result<Option<Done>> {
        if self.at_encoder == 0 {
            self.clock.wait(longest);
            return Ok(None);
        }
        match self.results.recv_timeout(longest) {
            Ok(done) => {
                self.count_busy();
                self.at_encoder -= 1;
                Ok(Some(done))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::conflict("a worker of the backfill", "it died; this is a defect of the encoder"))
            }
        }
    }

    /// Whether a job is at the encoder.
    pub fn are_busy(&self) -> bool {
        self.at_encoder > 0
    }

    /// Milliseconds that jobs were at the encoder, summed over jobs: up to when one came or went last.
    pub fn busy_ms(&self) -> u64 {
        self.busy_ms
    }

    /// Counts the time since a job came or went.
    fn count_busy(&mut self) {
        let now_ms = self.clock.now_ms();
        self.busy_ms += (now_ms - self.busy_since_ms) * self.at_encoder as u64;
        self.busy_since_ms = now_ms;
    }
}

/// Does jobs until there are no more.
fn work(encoder: &dyn Encoder, to_do: &Mutex<Receiver<Job>>, done: &Sender<Done>) {
    loop {
        // The lock is held while waiting: the other workers wait for it instead of for the channel.
        let job = to_do.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let result = match job {
            Ok(Job::Encode(batch)) => Done::Encoded(encode(encoder, batch)),
            Ok(Job::Vouch) => Done::Vouched(encoder.vouch()),
            Err(_) => return,
        };
        if done.send(result).is_err() {
            return;
        }
    }
}

/// Asks the encoder for the vectors of a batch.
fn encode(encoder: &dyn Encoder, batch: SentBatch) -> EncodedBatch {
    let SentBatch { batch, sent, copies, unvouched_vectors } = batch;
    let answer = encode_rest(encoder, &inputs_of(&sent), unvouched_vectors);
    EncodedBatch { batch, sent, copies, answer, receipt: encoder.receipt() }
}

/// Inputs that items give an encoder; an item without a source gives an empty one.
fn inputs_of(records: &[Record]) -> Vec<Input<'_>> {
    records
        .iter()
        .map(|record| Input {
            id: &record.item.id,
            source: record.item.source.as_deref().unwrap_or_default(),
            payload: &record.item.payload,
        })
        .collect()
}
