//! Ceiling: how many texts a request may have, learnt from what a service refuses, and tried again with more
//! in time.
//!
//! A service may refuse much for a day. After many full requests, one has twice as many texts. Where that is
//! refused, the next try comes after twice as many full requests. A service that never refused anything is
//! asked nothing for it.

use serde::{Deserialize, Serialize};

/// Full requests before the first try.
const FULL_BEFORE_TRY: u32 = 1000;
/// Step in which full requests are kept, so that what is kept changes seldom.
const FULL_STEP: u32 = 100;
/// Largest number of times that the wait is doubled.
const DOUBLED_MAX: u32 = 10;

/// Ceiling of one service, as far as its refusals have shown it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    /// Most texts that the service takes in a request, where it refused more.
    #[serde(default, rename = "texts_max", skip_serializing_if = "Option::is_none")]
    most: Option<usize>,
    /// Number of times that `most` was raised: what was learnt before a raise says nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    raised: u32,
    /// Tries in a row that the service refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    refused: u32,
    /// Requests with as many texts as they may have, since the last try or since `most` was learnt.
    #[serde(default, skip_serializing_if = "is_zero")]
    full: u32,
    /// Texts of the try that is under way.
    #[serde(skip)]
    tries: Option<usize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Ceiling {
    /// Most texts that the service takes in a request, as far as refusals have shown.
    pub(crate) fn most(&self) -> usize {
        self.most.unwrap_or(usize::MAX)
    }

    /// Whether a request of so many texts is the try that is under way.
    pub(crate) fn is_try(&self, texts: usize) -> bool {
        self.tries == Some(texts)
    }

    /// Texts of the next try, `batch` at most; `None` where it is not time for one.
    pub(crate) fn next_try(&self, batch: usize) -> Option<usize> {
        let most = self.most.filter(|most| *most < batch)?;
        let is_due = self.full >= FULL_BEFORE_TRY << self.refused.min(DOUBLED_MAX);
        (is_due && self.tries.is_none()).then_some(most.saturating_mul(2).min(batch))
    }

    pub(crate) fn begin_try(&mut self, texts: usize) {
        self.tries = Some(texts);
    }

    /// Notes that a try has come to an end, whatever became of it.
    pub(crate) fn end_try(&mut self) {
        self.tries = None;
        self.full = 0;
    }

    /// Notes that the service has embedded a request of so many texts, where `seats` were the most for it, of
    /// a `batch`.
    pub(crate) fn took(&mut self, texts: usize, seats: usize, batch: usize) {
        let Some(most) = self.most else { return };
        if texts > most {
            *self = Self {
                most: Some(texts).filter(|texts| *texts < batch),
                raised: self.raised + 1,
                ..Self::default()
            };
        } else if texts >= seats {
            self.full = self.full.saturating_add(1);
        }
    }

    /// Notes that the service has refused a request of so many texts and embedded each part of it, of `part`
    /// texts at most.
    pub(crate) fn refused(&mut self, texts: usize, part: usize) {
        if self.is_try(texts) {
            self.refused += 1;
            if part > self.most() {
                // The service said how many it takes.
                *self = Self { most: Some(part), raised: self.raised + 1, ..self.clone() };
            }
        } else if part < self.most() {
            *self = Self { most: Some(part.max(1)), full: 0, ..self.clone() };
        }
    }

    /// Takes what another process has learnt: its number where it was raised since, else the lower one of
    /// both.
    pub(crate) fn take(&mut self, other: &Self) {
        let most = other.most.map(|most| most.max(1));
        if other.raised > self.raised {
            *self = Self { most, tries: self.tries, ..other.clone() };
        } else if other.raised == self.raised {
            self.most = Some(self.most().min(most.unwrap_or(usize::MAX))).filter(|most| *most < usize::MAX);
            self.refused = self.refused.max(other.refused);
            self.full = self.full.max(other.full);
        }
    }

    /// Copies the ceiling as it is kept for other processes.
    pub(crate) fn kept(&self) -> Self {
        Self { full: self.full / FULL_STEP * FULL_STEP, tries: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes requests until a try comes, and gives their number and the texts of the try.
    fn until_try(ceiling: &mut Ceiling, batch: usize) -> (u32, usize) {
        for full in 0.. {
            if let Some(texts) = ceiling.next_try(batch) {
                ceiling.begin_try(texts);
                return (full, texts);
            }
            ceiling.took(ceiling.most(), ceiling.most(), batch);
        }
        unreachable!()
    }

    #[test]
    fn it_waits_twice_as_long_after_each_try_that_is_refused() {
        let mut ceiling = Ceiling::default();
        assert_eq!(ceiling.next_try(64), None, "a service that takes all is asked nothing");
        ceiling.refused(64, 10);
        for wait in [1000, 2000, 4000] {
            assert_eq!(until_try(&mut ceiling, 64), (wait, 20));
            ceiling.refused(20, 10);
            ceiling.end_try();
            assert_eq!(ceiling.most(), 10);
        }
        for (texts, most) in [(20, 20), (40, 40), (64, usize::MAX)] {
            assert_eq!(until_try(&mut ceiling, 64).1, texts);
            ceiling.took(texts, 0, 64);
            ceiling.end_try();
            assert_eq!(ceiling.most(), most);
        }
        assert_eq!(ceiling.next_try(64), None);
    }

    #[test]
    fn what_was_raised_is_not_lowered_by_what_others_knew_before() {
        let mut slow = Ceiling::default();
        slow.refused(64, 10);
        let mut raised = slow.clone();
        until_try(&mut raised, 64);
        raised.took(20, 0, 64);
        raised.end_try();
        let of_slow = slow.clone();
        slow.take(&raised.kept());
        raised.take(&of_slow);
        assert_eq!((slow.most(), raised.most()), (20, 20));
        // The latest refusal counts.
        slow.refused(20, 5);
        raised.take(&slow.kept());
        assert_eq!(raised.most(), 5);
    }
}
