//! Contract of every encoder.

use std::fmt;

use rehang_core::finding::Finding;
use rehang_core::{Result, Space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Item as an encoder is given it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input<'a> {
    /// The item's id.
    pub id: &'a str,
    /// Source that is embedded: a text, a path, a URL.
    pub source: &'a str,
    /// Data that the application keeps beside the item.
    pub payload: &'a Value,
}

/// Reason why one item could not be embedded. The others of its batch are not touched by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemFailure {
    /// Failure after which another attempt may succeed: the program died of it, the service fails at it while
    /// it serves others.
    Temporary(String),
    /// Failure after which no attempt will succeed: the source is gone, the image is damaged, the service
    /// refuses this text.
    Permanent(String),
    /// No attempt: before the item's turn came, a budget was spent, a key expired, the service was gone, or
    /// other items brought the program down. It is no failure of the item, which waits as before.
    Untried(String),
}

impl ItemFailure {
    /// Words that say what happened.
    pub fn reason(&self) -> &str {
        match self {
            Self::Temporary(reason) | Self::Permanent(reason) | Self::Untried(reason) => reason,
        }
    }
}

impl fmt::Display for ItemFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

/// Kind of sources that an encoder reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Texts only: a path would be embedded as the words that it consists of.
    Texts,
    /// Paths of images only.
    Images,
    /// Any sources that the application stores; only the encoder itself knows.
    Anything,
}

/// Vector of an item, or why it has none.
pub type Answer = Result<Vec<f32>, ItemFailure>;

/// Amount that an encoder has used so far.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Items sent, retries included.
    pub items: u64,
    /// Tokens, where the encoder knows of tokens.
    pub tokens: u64,
    /// Money, in the unit of the configuration's price.
    pub money: f64,
}

impl std::ops::Add for Spent {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            items: self.items + more.items,
            tokens: self.tokens + more.tokens,
            money: self.money + more.money,
        }
    }
}

impl std::ops::Sub for Spent {
    type Output = Self;

    /// Subtracts without going below zero: tokens that were reserved and not used are put back.
    fn sub(self, less: Self) -> Self {
        Self {
            items: self.items.saturating_sub(less.items),
            tokens: self.tokens.saturating_sub(less.tokens),
            money: (self.money - less.money).max(0.0),
        }
    }
}

/// Encoder: it turns sources into vectors of one space. It may be called from several threads at once.
pub trait Encoder: Send + Sync {
    /// The space that the encoder's vectors live in.
    fn space(&self) -> &Space;

    /// Kind of sources that the encoder reads.
    fn reads(&self) -> Reads {
        Reads::Anything
    }

    /// Whether the encoder's vectors depend on [`Input::source`] alone, whatever the item's id and payload
    /// are: equal sources need be embedded only once.
    fn reads_source_alone(&self) -> bool {
        false
    }

    /// Number of inputs that one call should have, so that everything the encoder can do at once is done at
    /// once.
    fn batch_max(&self) -> usize;

    /// Embeds a batch: one vector or one failure an input, in order. Every vector is finite, as wide as the
    /// space, and of length 1 where the space says so. An empty batch gives an empty answer. Where some items
    /// were tried, the others may be [`ItemFailure::Untried`]; a call that can try none gives the error.
    ///
    /// # Errors
    ///
    /// Reasons that stop the whole run because no item can succeed: wrong credentials
    /// ([`rehang_core::Error::is_unauthorised`]), an encoder of another width, a program that cannot be started, a
    /// service that answers no request or asks for a long wait. A budget that is spent
    /// ([`rehang_core::Error::is_budget_spent`]) ends a backfill in an orderly way.
    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>>;

    /// Number of inputs that one call of [`Encoder::encode_in_bulk`] should have, where it hands them to a
    /// service that may take a day for them. `None` for an encoder that answers at once.
    ///
    /// No more items are taken in hand than are sent then, and a process that ends meanwhile says nothing
    /// against its items.
    fn bulk_max(&self) -> Option<usize> {
        None
    }

    /// Embeds a batch as [`Encoder::encode`] does, for items that nobody waits for: the answers may take as
    /// long as [`Encoder::bulk_max`] says.
    ///
    /// Once some answers are there, the others may be [`ItemFailure::Untried`] though their items are sent:
    /// the next call that has these items takes up what was sent.
    ///
    /// # Errors
    ///
    /// As [`Encoder::encode`].
    fn encode_in_bulk(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.encode(inputs)
    }

    /// Words for what the encoder's calls wait for, where that takes hours.
    fn awaits(&self) -> Option<String> {
        None
    }

    /// Short text for everything that the vectors depend on: the model's files and the keys that change a
    /// vector. Two encoders with the same text give the same vectors.
    ///
    /// `None` where that cannot be known, as behind a service or a program; a backfill then embeds some items
    /// again and compares.
    ///
    /// # Errors
    ///
    /// What the system says where a file cannot be read any more.
    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Short text for what is known of the model without asking it: its [fingerprint](Encoder::fingerprint),
    /// or else the keys that change a vector.
    ///
    /// Another text is another model. Where there is no fingerprint, the same text may be another model, too.
    ///
    /// # Errors
    ///
    /// As [`Encoder::fingerprint`].
    fn configured(&self) -> Result<String> {
        Ok(self.fingerprint()?.unwrap_or_default())
    }

    /// Amount that the encoder has used so far.
    fn spent(&self) -> Spent;

    /// Findings about the vectors so far that are doubtful; empty where the encoder noticed nothing.
    ///
    /// Some texts may be longer than what is read of them, or a text may have another vector each time or
    /// beside other texts.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Tells the encoder how much workers on other machines and earlier runs have used, since they share its
    /// budgets. An encoder without budgets does nothing.
    fn note_others(&self, _spent: Spent) {}

    /// Short text for what the encoder has learnt of its service, which spares another process the asking,
    /// for [`Encoder::recall`]. It says how many texts a request may have, for one. `None` where there is
    /// nothing of the kind.
    fn learnt(&self) -> Option<String> {
        None
    }

    /// Takes in the text that an encoder of another process has [learnt](Encoder::learnt). A text about
    /// another service, or one that cannot be read, is passed over.
    fn recall(&self, _learnt: &str) {}

    /// Number for the vectors that the encoder has handed out so far, for [`Encoder::is_vouched_for`].
    ///
    /// The encoder is compared with itself now and then, and vectors that came after the last comparison may
    /// be of another model.
    fn receipt(&self) -> u64 {
        0
    }

    /// Whether the vectors of a [receipt](Encoder::receipt) are of the model of the beginning: the encoder
    /// was compared with itself after they had come.
    ///
    /// An encoder that cannot become another one vouches for all. Vectors that are not vouched for yet are
    /// not to be kept.
    fn is_vouched_for(&self, receipt: u64) -> bool {
        receipt == 0
    }

    /// Compares the encoder with itself now, also after an [interruption](Encoder::interrupt), where vectors
    /// that it has handed out wait for that. All vectors that are there afterwards are vouched for.
    ///
    /// # Errors
    ///
    /// A conflict where the encoder has become another one. The reason where it cannot be asked: nothing is
    /// known of these vectors then.
    fn vouch(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the encoder compares itself with itself from call to call, and says so where it has become
    /// another one. A caller that keeps one encoder for several backfills need not compare it again then.
    fn watches_itself(&self) -> bool {
        false
    }

    /// Ends the waits of the calls under way (for the service's pace, before another attempt) and those of
    /// later ones. Items that are not embedded by then come back [`ItemFailure::Untried`], and a call that has
    /// tried none gives the error [`rehang_core::ErrorKind::Cancelled`]. An encoder that never waits for long
    /// does nothing.
    fn interrupt(&self) {}
}

/// Reason why a model may refuse a text, as far as it can be seen beforehand: the text is blank, or holds a
/// NUL character.
///
/// ```
/// assert_eq!(rehang_encode::peculiar(" \n"), Some("its source is blank"));
/// assert_eq!(rehang_encode::peculiar("a\0b"), Some("its source has a NUL character (U+0000)"));
/// assert_eq!(rehang_encode::peculiar("a text"), None);
/// ```
pub fn peculiar(text: &str) -> Option<&'static str> {
    if text.trim().is_empty() {
        Some("its source is blank")
    } else if text.contains('\0') {
        Some("its source has a NUL character (U+0000)")
    } else {
        None
    }
}
