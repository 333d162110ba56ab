//! Batches that a process knows: those of its journal, and how far each is.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::Answer;

/// Field of a batch's metadata that says which encoder it is of. `OWN` has the journal's name for it.
pub(super) const OF: &str = "rehang";
pub(super) const OWN: &str = "rehang_batch";
/// Number of texts up to which they are asked for directly: a day is long for the last ones, and for one that
/// is tried again.
pub(super) const FEW: usize = 16;
/// Texts of a batch that are embedded directly, too: both must give the same vectors.
pub(super) const WITNESSES: usize = 4;
pub(super) const DAY_MS: u64 = 86_400_000;

/// Id by which the service knows a text: a hash of all that its vector depends on.
pub(super) type Id = u128;

pub(super) fn name_of(id: Id) -> String {
    format!("{id:032x}")
}

pub(super) fn id_of(name: &str) -> Option<Id> {
    (name.len() == 32).then(|| Id::from_str_radix(name, 16).ok())?
}

/// Batch as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    /// Fingerprint of the encoder that the batch is of.
    #[serde(rename = "of")]
    pub(super) encoder: String,
    /// The journal's name for the batch.
    pub(super) own: String,
    /// The service's name for the batch, once that is known.
    pub(super) batch: Option<String>,
    /// The service's name for the file of the batch's texts.
    pub(super) file: String,
    /// Time at which the batch was sent, in milliseconds since 1970; 0 where only the service knows, and does
    /// not say.
    pub(super) at_ms: u64,
    /// Tokens that the batch was reckoned to take.
    pub(super) tokens: u64,
    /// Whether the budget's account was told what the batch was reckoned to take. A process that died before
    /// leaves that to the next one.
    pub(super) is_told: bool,
    /// Whether tokens that the batch took beside these are counted.
    #[serde(default)]
    pub(super) is_counted: bool,
    /// Texts of the batch, in the order of its lines; once it is over, those that it has vectors of. A batch
    /// without texts stays, so that the list does not bring it back.
    pub(super) texts: Vec<String>,
}

impl Sent {
    pub(super) fn counted(&self) -> Counted {
        Counted { items: self.texts.len() as u64, tokens: self.tokens, told: 0 }
    }
}

/// Stage of a batch, as far as this process knows.
pub(super) enum Stage {
    /// Batch that the service is asked for at this moment.
    Asked,
    /// Batch that this process has sent.
    Own,
    /// Batch that another process has sent.
    Others,
    /// Batch that is over.
    Over {
        /// Answers of the batch that are not handed out yet.
        answers: HashMap<Id, Answer>,
        /// Whether some of its vectors were compared with what the service gives directly.
        is_compared: bool,
    },
}

impl Stage {
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over { .. })
    }
}

/// Part of this process's count that is for a batch.
pub(super) struct Counted {
    pub(super) items: u64,
    pub(super) tokens: u64,
    /// Times that the account was brought up to date since.
    pub(super) told: u8,
}

/// Batch that has texts of ours.
pub(super) struct Batch {
    pub(super) sent: Sent,
    pub(super) stage: Stage,
    /// Amount that this process counts for the batch; `None` where another process counts it.
    pub(super) counted: Option<Counted>,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether the journal was read, and batches counted that earlier processes had not told the account of.
    pub(super) is_read: bool,
    pub(super) batches: BTreeMap<Arc<str>, Batch>,
    pub(super) of_text: HashMap<Id, Arc<str>>,
    /// Requests of each awaited batch that are done, and all of them.
    pub(super) awaited: BTreeMap<Arc<str>, (u64, u64)>,
}

impl State {
    pub(super) fn add(&mut self, sent: Sent, stage: Stage, counted: Option<Counted>) {
        let own_name: Arc<str> = sent.own.as_str().into();
        for id in sent.texts.iter().filter_map(|text| id_of(text)) {
            // Where two batches have a text, the later one has it because the earlier one gave nothing for
            // it. The list has the later one first.
            let later = |other: &Arc<str>| {
                self.batches.get(other).is_some_and(|other| other.sent.at_ms >= sent.at_ms)
            };
            if !self.of_text.get(&id).is_some_and(later) {
                self.of_text.insert(id, Arc::clone(&own_name));
            }
        }
        self.batches.insert(own_name, Batch { sent, stage, counted });
    }
}

/// Batches of one encoder.
pub(in crate::http) struct Batches {
    pub(super) folder: PathBuf,
    /// Fingerprint of what vectors depend on beside the text.
    pub(super) encoder: String,
    pub(super) poll: Duration,
    /// Largest number of texts of a batch: smaller after a refusal.
    pub(super) most: AtomicUsize,
    /// Whether the service takes parameters beside the file, as Voyage does, and not in its lines.
    pub(super) is_voyage: AtomicBool,
    pub(super) sent: AtomicU64,
    /// Lock that is held while the journal is read and texts are sent: no two calls send the same ones.
    pub(super) turn: Mutex<()>,
    pub(super) state: Mutex<State>,
}
