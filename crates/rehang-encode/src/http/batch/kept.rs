//! What a process knows of batches: those of its journal, and how far each is.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::Answer;

/// Fields of a batch's metadata: which encoder it is of, and the journal's name for it.
pub(super) const OF: &str = "rehang";
pub(super) const OWN: &str = "rehang_batch";
/// So few texts are asked for directly: a day is long for the last ones, and for one that is tried again.
pub(super) const FEW: usize = 16;
/// Texts of a batch that are embedded directly, too: both must give the same vectors.
pub(super) const WITNESSES: usize = 4;
pub(super) const DAY_MS: u64 = 86_400_000;

/// What a text is called at the service: of what its vector depends on.
pub(super) type Id = u128;

pub(super) fn name_of(id: Id) -> String {
    format!("{id:032x}")
}

pub(super) fn id_of(name: &str) -> Option<Id> {
    (name.len() == 32).then(|| Id::from_str_radix(name, 16).ok())?
}

/// A batch as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    /// The encoder that it is of.
    pub(super) of: String,
    /// The journal's name for it.
    pub(super) own: String,
    /// The service's name for it, once that is known.
    pub(super) batch: Option<String>,
    /// The service's name for the file of its texts.
    pub(super) file: String,
    /// When it was sent, in milliseconds since 1970; 0 where only the service knows, and does not say.
    pub(super) at_ms: u64,
    /// Tokens that it was reckoned to take.
    pub(super) tokens: u64,
    /// Whether the budget's account was told what it was reckoned to take. A process that died before leaves that to the next one.
    pub(super) is_told: bool,
    /// Whether tokens that it took beside these are counted.
    #[serde(default)]
    pub(super) is_counted: bool,
    /// Its texts, in the order of its lines; once it is over, those that it has vectors of. One without texts stays, so that the list does not
    /// bring it back.
    pub(super) texts: Vec<String>,
}

impl Sent {
    pub(super) fn counted(&self) -> Counted {
        Counted { items: self.texts.len() as u64, tokens: self.tokens, told: 0 }
    }
}

/// How far a batch is, as this process knows.
pub(super) enum Stage {
    /// The service is asked for it at this moment.
    Asked,
    /// This process has sent it.
    Own,
    /// Another one has.
    Others,
    /// It is over.
    Over {
        /// What came of it and is not handed out yet.
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

/// What of a batch is in this process's count.
pub(super) struct Counted {
    pub(super) items: u64,
    pub(super) tokens: u64,
    /// How often the account was brought up since.
    pub(super) told: u8,
}

/// A batch that has texts of ours.
pub(super) struct Batch {
    pub(super) sent: Sent,
    pub(super) stage: Stage,
    /// `None` where another process counts it.
    pub(super) counted: Option<Counted>,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether what processes before had not told the account of was counted.
    pub(super) is_read: bool,
    pub(super) batches: BTreeMap<Arc<str>, Batch>,
    pub(super) of_text: HashMap<Id, Arc<str>>,
    /// Requests that are done, and all, of the batches that are waited for.
    pub(super) awaited: BTreeMap<Arc<str>, (u64, u64)>,
}

impl State {
    pub(super) fn add(&mut self, sent: Sent, stage: Stage, counted: Option<Counted>) {
        let own: Arc<str> = sent.own.as_str().into();
        for id in sent.texts.iter().filter_map(|text| id_of(text)) {
            // Of two batches with a text, the later one has it because the earlier one gave nothing for it. The list has the later one first.
            let later = |other: &Arc<str>| {
                self.batches.get(other).is_some_and(|other| other.sent.at_ms >= sent.at_ms)
            };
            if !self.of_text.get(&id).is_some_and(later) {
                self.of_text.insert(id, Arc::clone(&own));
            }
        }
        self.batches.insert(own, Batch { sent, stage, counted });
    }
}

/// The batches of one encoder.
pub(in crate::http) struct Batches {
    pub(super) folder: PathBuf,
    /// What vectors depend on beside the text.
    pub(super) of: String,
    pub(super) poll: Duration,
    /// Texts of a batch at most: fewer after a refusal.
    pub(super) most: AtomicUsize,
    /// Whether the service takes parameters beside the file, as Voyage does, and not in its lines.
    pub(super) is_voyage: AtomicBool,
    pub(super) sent: AtomicU64,
    /// Held while the journal is read and texts are sent: no two calls send the same ones.
    pub(super) turn: Mutex<()>,
    pub(super) state: Mutex<State>,
}
