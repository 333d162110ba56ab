//! What every encoder does.

use std::fmt;

use rehang::finding::Finding;
use rehang::{Result, Space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an encoder is given of an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input<'a> {
    /// The item's id.
    pub id: &'a str,
    /// What is embedded: a text, a path, a URL.
    pub source: &'a str,
    /// Whatever the application keeps beside the item.
    pub payload: &'a Value,
}

/// Why one item could not be embedded. The others of its batch are not touched by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemFailure {
    /// Another attempt may succeed: the program died of it, the service fails at it while it serves others.
    Temporary(String),
    /// No attempt will: the source is gone, the image is damaged, the service refuses this text.
    Permanent(String),
    /// The item was not tried: before its turn came, a budget was spent, a key expired, the service was gone, or other items
    /// brought the program down. That is no attempt and no failure of the item, which waits as before.
    Untried(String),
}

impl ItemFailure {
    /// What happened, in words.
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

/// What the sources of an encoder are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Texts only: a path would be embedded as the words that it consists of.
    Texts,
    /// Paths of images only.
    Images,
    /// Whatever the application stores; only the encoder itself knows.
    Anything,
}

/// The vector of an item, or why it has none.
pub type Answer = Result<Vec<f32>, ItemFailure>;

/// What an encoder has used so far.
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

    /// What is left is never below zero: tokens that were reserved and not used are put back.
    fn sub(self, less: Self) -> Self {
        Self {
            items: self.items.saturating_sub(less.items),
            tokens: self.tokens.saturating_sub(less.tokens),
            money: (self.money - less.money).max(0.0),
        }
    }
}

/// Turns sources into vectors of one space. May be called from several threads at once.
pub trait Encoder: Send + Sync {
    /// The space its vectors live in.
    fn space(&self) -> &Space;

    /// What its sources are.
    fn reads(&self) -> Reads {
        Reads::Anything
    }

    /// Whether its vectors depend on [`Input::source`] alone, whatever the item's id and payload are: equal sources need be embedded only once.
    fn reads_source_alone(&self) -> bool {
        false
    }

    /// The inputs that one call should have, so that everything the encoder can do at once is done at once.
    fn batch_max(&self) -> usize;

    /// Embeds a batch: one vector or one failure an input, in order. Every vector is finite, as wide as the space, and of
    /// length 1 where the space says so. An empty batch gives an empty answer. Where some items were tried, the others may
    /// be [`ItemFailure::Untried`]; a call that can try none gives the error.
    ///
    /// # Errors
    ///
    /// What stops the whole run because no item can succeed: wrong credentials ([`rehang::Error::is_unauthorised`]), an
    /// encoder of another width, a program that cannot be started, a service that answers no request or asks for a long
    /// wait. A budget that is spent ([`rehang::Error::is_budget_spent`]) ends a backfill in an orderly way.
    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>>;

    /// The inputs that one call of [`Encoder::encode_in_bulk`] should have, where it hands them to a service that may take a day for them: no
    /// more are taken in hand than are sent then, and a process that ends meanwhile says nothing against its items. `None` for an
    /// encoder that answers at once.
    fn bulk_max(&self) -> Option<usize> {
        None
    }

    /// As [`Encoder::encode`], for items that nobody waits for: the answers may take as long as [`Encoder::bulk_max`] says. Once some are
    /// there, the others may be [`ItemFailure::Untried`] though they are sent: the next call that has them takes up what was sent.
    ///
    /// # Errors
    ///
    /// As [`Encoder::encode`].
    fn encode_in_bulk(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.encode(inputs)
    }

    /// What its calls wait for, in words, where that takes hours.
    fn awaits(&self) -> Option<String> {
        None
    }

    /// What its vectors depend on, as a short text: the model's files and the keys that change a vector. Two encoders with the same
    /// text give the same vectors. `None` where that cannot be known, as behind a service or a program; a backfill then embeds some
    /// items again and compares.
    ///
    /// # Errors
    ///
    /// What the system says where a file cannot be read any more.
    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// What is known of the model without asking it, as a short text: its [fingerprint](Encoder::fingerprint), or else the keys that change
    /// a vector. Another text is another model. Where there is no fingerprint, the same text may be another model, too.
    ///
    /// # Errors
    ///
    /// As [`Encoder::fingerprint`].
    fn configured(&self) -> Result<String> {
        Ok(self.fingerprint()?.unwrap_or_default())
    }

    /// What it has used so far.
    fn spent(&self) -> Spent;

    /// What is doubtful about its vectors so far: texts that are longer than is read of them, a text whose vector is another one each time or
    /// beside other texts. Empty where it noticed nothing.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Tells the encoder what workers on other machines and earlier runs have used, since they share its budgets. An encoder without
    /// budgets does nothing.
    fn note_others(&self, _spent: Spent) {}

    /// What it has learnt of its service that spares another process the asking, as a short text for [`Encoder::recall`]: how many texts a
    /// request may have, say. `None` where there is nothing of the kind.
    fn learnt(&self) -> Option<String> {
        None
    }

    /// Takes what an encoder of another process has [learnt](Encoder::learnt). What is of another service, or cannot be read, is passed
    /// over.
    fn recall(&self, _learnt: &str) {}

    /// A number for the vectors that it has handed out so far, for [`Encoder::is_vouched_for`]: it is compared with itself now and then, and
    /// what came after the last comparison may be of another model.
    fn receipt(&self) -> u64 {
        0
    }

    /// Whether the vectors of a [receipt](Encoder::receipt) are of the model of the beginning: it was compared with itself after they had
    /// come. An encoder that cannot become another one vouches for all. What is not vouched for yet is not to be kept.
    fn is_vouched_for(&self, receipt: u64) -> bool {
        receipt == 0
    }

    /// Compares itself now, also after an [interruption](Encoder::interrupt), where vectors that it has handed out wait for that: what is
    /// there afterwards is vouched for.
    ///
    /// # Errors
    ///
    /// A conflict where it has become another one. What keeps it from being asked: nothing is known of these vectors then.
    fn vouch(&self) -> Result<()> {
        Ok(())
    }

    /// Whether it compares itself with itself from call to call, and says so where it has become another one. What keeps one encoder for
    /// several backfills need not compare it again then.
    fn watches_itself(&self) -> bool {
        false
    }

    /// Ends the waits of the calls under way (for the service's pace, before another attempt) and those of later ones: what is not
    /// embedded by then comes back [`ItemFailure::Untried`]. An encoder that never waits for long does nothing.
    fn interrupt(&self) {}
}

/// What a model may refuse a text for, as far as it can be seen beforehand: that it is blank, or holds a NUL character.
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
