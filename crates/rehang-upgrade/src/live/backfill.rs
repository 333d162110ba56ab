//! The brain of a backfill: what is read, embedded and written next, and when it ends.
//!
//! [`Backfill::step`] is pure: a state and an event go in, a state and a list of actions come out. It
//! knows item keys and times, no vectors, no store, no encoder, no clock. [`crate::live::run`] performs the
//! actions and feeds the events.
//!
//! ```text
//!            Look ──▶ Looked          how many items are native, is a pause or a stop asked for
//!           Claim ──▶ Claimed         the next items, worst first, leased to this worker
//! ready ──▶ Encode ──▶ Encoded        one batch a worker
//!                      Unvouched      the encoder is not compared with itself yet; Vouch asks for that
//!            Write ──▶ Written        conditional, one transaction a batch; what is not taken is written again
//! ```
//!
//! A [follower](Limits::follow) goes on looking when nothing is left, and claims when a look says that
//! something waits. A pause, a rollback or a spent budget, which ends another backfill, only keeps a follower
//! from beginning anything until it is over.

mod batches;
mod claims;
mod events;
mod looks;
mod rests;

use std::collections::BTreeSet;
use std::mem;

use rehang_store::{ItemKey, WriteOutcome};

use crate::live::limits::Limits;
use crate::live::until::Until;

pub use events::{Action, Attempt, Ending, Event, Request, Tally};

use batches::Batches;
use claims::Claims;
use looks::{Look, Looks};
use rests::{EncoderRest, FailedItems, UntakenItems};

/// The state of a backfill.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Backfill {
    limits: Limits,
    /// Whether no more items are taken in hand than are sent.
    is_in_bulk: bool,
    /// Whether nothing new may begin: Ctrl-C, or an error that no item can overcome.
    interrupted: bool,
    looks: Looks,
    claims: Claims,
    batches: Batches,
    encoder_rest: EncoderRest,
    failed_items: FailedItems,
    untaken_items: UntakenItems,
    /// Items that were refused for good before the encoder gave the first vector: they are
    /// listed once it has.
    refused: Vec<Attempt>,
    /// Whether the encoder has given a vector in this run.
    has_given_a_vector: bool,
    /// Time at which the rate lets the next batch go.
    next_send_ms: u64,
    /// Counts of what was done.
    pub tally: Tally,
    ended: bool,
}

impl Backfill {
    /// Makes a backfill that has not begun.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Sets whether the encoder may take a day for a batch ([`rehang_encode::Encoder::bulk_max`]): nothing is
    /// claimed ahead for so long.
    #[must_use]
    pub(crate) fn in_bulk(self, is_in_bulk: bool) -> Self {
        Self { is_in_bulk, ..self }
    }

    /// Takes in an event at a time (milliseconds of any clock that does not go back), and gives the state and
    /// the actions that follow from it.
    #[must_use]
    pub fn step(mut self, now_ms: u64, event: Event) -> (Self, Vec<Action>) {
        let mut actions = Vec::new();
        self.take_in(now_ms, event, &mut actions);
        self.decide(now_ms, &mut actions);
        self.keep_what_was_claimed_again(&mut actions);
        (self, actions)
    }

    /// Takes items out of releases that are in hand once more: an item that was changed is free in the store,
    /// so a claim gives it again while its former content is at the encoder. Where the lease of the new claim
    /// were given back with the former one, another worker would embed the item too.
    fn keep_what_was_claimed_again(&self, actions: &mut Vec<Action>) {
        if !actions.iter().any(|action| matches!(action, Action::Release { .. })) {
            return;
        }
        let in_hand: BTreeSet<ItemKey> = self.in_hand().collect();
        actions.retain_mut(|action| {
            let Action::Release { keys } = action else { return true };
            keys.retain(|key| !in_hand.contains(key));
            !keys.is_empty()
        });
    }

    /// Number of native items of the gallery, as far as this backfill knows.
    fn native(&self) -> u64 {
        let native_before = self.looks.last.native_before;
        u64::try_from(native_before.saturating_add_unsigned(self.tally.native)).unwrap_or(0)
    }

    /// Number of native items that the backfill works towards.
    pub fn target(&self) -> u64 {
        self.limits.until.target(self.looks.last.items)
    }

    /// Takes in an event, with the actions that it asks for by itself.
    fn take_in(&mut self, now_ms: u64, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Begin => self.claims.last_was_empty = false,
            Event::Tick => self.claims.pass_time(now_ms, self.limits.follow),
            Event::Interrupt => self.interrupted = true,
            Event::Looked { items, native_before, request, rolled_back, is_over, others, waits } => {
                let look = Look { items, native_before, request, rolled_back, is_over, others };
                self.looks.take_in(now_ms, look);
                self.claims.note_look(now_ms, waits);
            }
            Event::Claimed { keys, held_by_others, alone, late } => {
                self.claims.take_in(now_ms, keys, held_by_others, alone, late);
            }
            Event::GivenUp(attempt) => {
                (self.claims.is_claiming, self.claims.last_was_empty) = (false, false);
                self.record_failures(vec![attempt], actions);
            }
            Event::Encoded { batch, failures } => self.take_in_answers(now_ms, batch, failures, actions),
            Event::Unvouched { batch } => {
                self.batches.keep_unvouched(batch);
                self.looks.count_batch();
            }
            Event::Returned { batch } => {
                self.batches.remove(batch);
                self.interrupted = true;
            }
            Event::Declined { batch, for_good } => {
                actions.extend(self.batches.remove(batch).map(|keys| Action::Release { keys }));
                self.encoder_rest.begin(now_ms, for_good);
                self.claims.last_was_empty = false;
            }
            Event::Written { batch, outcomes } => self.take_in_outcomes(batch, outcomes, actions),
            Event::Untaken { batch, keys } => self.take_in_untaken(now_ms, batch, keys, actions),
        }
    }

    /// Takes in the encoder's answers to a batch: what has a vector is written, what failed rests or is given
    /// up.
    fn take_in_answers(
        &mut self,
        now_ms: u64,
        batch: u64,
        failures: Vec<Attempt>,
        actions: &mut Vec<Action>,
    ) {
        self.encoder_rest.note_answer();
        let Some(keys) = self.batches.remove(batch) else { return };
        let failed: BTreeSet<ItemKey> = failures.iter().map(|attempt| attempt.key).collect();
        let embedded: Vec<ItemKey> = keys.into_iter().filter(|key| !failed.contains(key)).collect();
        // Vectors that are paid for are made safe first.
        if !embedded.is_empty() {
            self.has_given_a_vector = true;
            self.batches.write(batch, embedded);
            actions.push(Action::Write { batch });
        }
        let given_up = self.rest_or_give_up(now_ms, failures);
        self.list_given_up(given_up, actions);
        self.looks.count_batch();
    }

    /// Sends failed items to rest; gives back those that have no attempt left.
    fn rest_or_give_up(&mut self, now_ms: u64, failures: Vec<Attempt>) -> Vec<Attempt> {
        let rests = |attempt: &Attempt| self.failed_items.rest(now_ms, attempt, &self.limits);
        let (resting, given_up): (Vec<Attempt>, Vec<Attempt>) = failures.into_iter().partition(rests);
        self.tally.retried += resting.len() as u64;
        given_up
    }

    /// Lists items that are given up. Refusals wait until the encoder has given a vector: an encoder that
    /// refuses everything says nothing about the items, and ends the backfill.
    fn list_given_up(&mut self, mut given_up: Vec<Attempt>, actions: &mut Vec<Action>) {
        if self.has_given_a_vector {
            self.record_failures(given_up, actions);
            self.list_refused(actions);
            return;
        }
        self.refused.extend(given_up.extract_if(.., |attempt| attempt.is_permanent()));
        self.record_failures(given_up, actions);
        if self.refused.len() >= self.limits.refusals {
            actions.push(Action::Refuse(mem::take(&mut self.refused)));
            self.interrupted = true;
        }
    }

    /// Lists items that were refused before the encoder gave a vector.
    fn list_refused(&mut self, actions: &mut Vec<Action>) {
        let refused = mem::take(&mut self.refused);
        self.record_failures(refused, actions);
    }

    /// Lists items as failed, and counts them.
    fn record_failures(&mut self, failed: Vec<Attempt>, actions: &mut Vec<Action>) {
        if !failed.is_empty() {
            self.tally.failed += failed.len() as u64;
            actions.push(Action::RecordFailures(failed));
        }
    }

    /// Takes in what became of the vectors of a batch; the items that had none are released.
    fn take_in_outcomes(
        &mut self,
        batch: u64,
        outcomes: Vec<(ItemKey, WriteOutcome)>,
        actions: &mut Vec<Action>,
    ) {
        let written: BTreeSet<ItemKey> = outcomes.iter().map(|(key, _)| *key).collect();
        let mut untried = self.batches.end(batch);
        untried.retain(|key| !written.contains(key));
        if !untried.is_empty() {
            actions.push(Action::Release { keys: untried });
        }
        for (key, outcome) in outcomes {
            self.failed_items.forget(key);
            self.untaken_items.forget(key);
            match outcome {
                WriteOutcome::Written => self.tally.native += 1,
                WriteOutcome::Deleted | WriteOutcome::Changed | WriteOutcome::AlreadyThere => {
                    self.tally.overtaken += 1;
                }
            }
        }
        self.claims.last_was_empty = false;
    }

    /// Takes in vectors that the store has not taken: they are written again after a rest, unless the
    /// backfill ends. It ends where one of them was not taken for too long.
    fn take_in_untaken(&mut self, now_ms: u64, batch: u64, keys: Vec<ItemKey>, actions: &mut Vec<Action>) {
        self.batches.leave_out(batch, &keys);
        for key in keys {
            if self.is_ending() {
                self.untaken_items.forget(key);
            } else if !self.untaken_items.rest(now_ms, key, self.limits.rest_ms) {
                self.interrupted = true;
                actions.push(Action::GiveUp(key));
            }
        }
    }

    /// Decides what is done next, by what is in hand and by the time.
    fn decide(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        if self.ended {
            return;
        }
        if let Some(ending) = self.ending() {
            self.wind_up(ending, actions);
            return;
        }
        self.write_again(now_ms, actions);
        self.release(now_ms, actions);
        if self.has_nothing_left(now_ms) {
            self.ended = true;
            self.list_refused(actions);
            actions.push(Action::End(Ending::NothingLeft));
            return;
        }
        if self.looks.begin_if_due(now_ms, self.limits.follow) {
            actions.push(Action::Look);
        }
        if !self.looks.has_looked {
            return;
        }
        self.send(now_ms, actions);
        self.claim(now_ms, actions);
        self.vouch_or_wait(now_ms, actions);
    }

    /// Ends the backfill once nothing is under way. Batches at the encoder are paid for: they are waited for
    /// and written. Items that only wait go back.
    fn wind_up(&mut self, ending: Ending, actions: &mut Vec<Action>) {
        self.claims.ready.clear();
        self.write_again(u64::MAX, actions);
        if self.batches.encoding.is_empty() && self.vouch(actions) {
            return;
        }
        if self.awaits_nothing() {
            self.ended = true;
            actions.push(Action::End(ending));
        }
    }

    /// Writes vectors again that the store has not taken, where their rest is over at `until_ms`.
    fn write_again(&mut self, until_ms: u64, actions: &mut Vec<Action>) {
        let keys = self.untaken_items.take_due(until_ms);
        if !keys.is_empty() {
            let batch = self.batches.write_again(keys.clone());
            actions.push(Action::WriteAgain { batch, keys });
        }
    }

    /// Releases items that wait for an encoder where nothing may begin, and failed items whose rest is over.
    fn release(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        // Only a follower comes here while nothing may begin.
        if !self.may_begin(now_ms) && !self.claims.ready.is_empty() {
            actions.push(Action::Release { keys: self.claims.give_back() });
        }
        let rested = self.failed_items.end_rests(now_ms);
        if !rested.is_empty() {
            self.claims.last_was_empty = false;
            actions.push(Action::Release { keys: rested });
        }
    }

    /// Whether the backfill is over: the last claim came back empty, no item rests, and no other worker holds
    /// any. Another look would only ask for another claim, without end where both are slow.
    fn has_nothing_left(&self, now_ms: u64) -> bool {
        self.claims.are_done()
            && !self.limits.follow
            && !self.looks.is_looking
            && self.in_hand().next().is_none()
            && self.next_time(now_ms).is_none()
    }

    /// Sends batches to idle workers, as the rate allows.
    fn send(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        if self.in_hand().next().is_none() {
            self.claims.alone = None;
        }
        while self.batches.encoding.len() < self.limits.workers
            && !self.store_takes_too_little()
            && !self.claims.ready.is_empty()
            && now_ms >= self.next_send_ms
        {
            let company = self.claims.company();
            if company == 0 && !self.batches.is_empty() {
                break;
            }
            let count = self.batch_items().min(company.max(1));
            let keys: Vec<ItemKey> = self.claims.ready.drain(..count).collect();
            if let Some(rate) = self.rate() {
                let pause_ms = (count as f64 * 1000.0 / rate).ceil() as u64;
                self.next_send_ms = self.next_send_ms.max(now_ms).saturating_add(pause_ms);
            }
            let batch = self.batches.encode(keys.clone());
            actions.push(Action::Encode { batch, keys });
        }
    }

    /// Claims items, so that one batch a worker is ready and no worker waits for the store.
    fn claim(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let idle = self.limits.workers.saturating_sub(self.batches.encoding.len());
        let ahead = self.batch_items() * if self.is_in_bulk { idle } else { self.limits.workers };
        let limit = ahead.saturating_sub(self.claims.ready.len()).min(self.room());
        let may_claim = self.may_begin(now_ms) && self.claims.may_go_on() && !self.store_takes_too_little();
        if may_claim && limit > 0 {
            self.claims.is_claiming = true;
            actions.push(Action::Claim { limit });
        }
    }

    /// Lets the encoder be compared with itself where no further batch can be begun in which it could be;
    /// otherwise waits, where only time is missing.
    fn vouch_or_wait(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let is_idle = self.claims.company() == 0 || self.store_takes_too_little();
        let may_vouch = is_idle && !self.claims.is_claiming && self.batches.encoding.is_empty();
        if may_vouch && self.vouch(actions) {
            return;
        }
        if self.awaits_nothing() {
            let next_look = self.limits.follow.then(|| self.looks.next_ms(self.limits.follow));
            let next = self.next_time(now_ms).into_iter().chain(next_look).min();
            actions.extend(next.map(Action::WaitUntil));
        } else if !self.claims.ready.is_empty() && now_ms < self.next_send_ms {
            actions.push(Action::WaitUntil(self.next_send_ms));
        }
    }

    /// Lets the encoder be compared with itself where batches wait for that, which count as being at the
    /// encoder again. Gives whether any did.
    fn vouch(&mut self, actions: &mut Vec<Action>) -> bool {
        let has_any = self.batches.ask_to_vouch();
        if has_any {
            actions.push(Action::Vouch);
        }
        has_any
    }

    /// Whether nobody has to answer: neither the store nor the encoder.
    fn awaits_nothing(&self) -> bool {
        !self.claims.is_claiming && !self.looks.is_looking && self.batches.none_is_awaited()
    }

    /// Whether the store takes so little that no vector is paid for which it would not take either.
    fn store_takes_too_little(&self) -> bool {
        self.untaken_items.count() >= self.limits.refusals
    }

    /// Whether batches may go to the encoder, as far as requests, limits and the encoder itself say.
    fn may_begin(&self, now_ms: u64) -> bool {
        self.why_nothing_begins().is_none() && self.encoder_rest.is_over(now_ms)
    }

    /// Reason why the backfill ends, if it does: a follower stays though nothing new may begin, unless it was
    /// asked to end or there is nothing to follow.
    fn ending(&self) -> Option<Ending> {
        let ends = !self.limits.follow || self.interrupted || self.looks.last.is_over;
        self.why_nothing_begins().filter(|_| ends)
    }

    /// Whether the backfill ends as soon as everything in hand is written.
    pub fn is_ending(&self) -> bool {
        self.ending().is_some()
    }

    /// Reason why a follower embeds nothing at this moment, which would end another backfill;
    /// `None` while it embeds.
    pub fn why_idle(&self) -> Option<Ending> {
        let is_idle =
            self.claims.last_was_empty && self.in_hand().next().is_none() && self.failed_items.is_empty();
        self.why_nothing_begins().or(is_idle.then_some(Ending::NothingLeft)).filter(|_| self.limits.follow)
    }

    /// Whether the last claim gave nothing, and nothing is known to have come since.
    pub fn last_claim_was_empty(&self) -> bool {
        self.claims.last_was_empty
    }

    /// Reason why nothing new may begin, if there is one.
    fn why_nothing_begins(&self) -> Option<Ending> {
        if self.interrupted {
            return Some(if self.limits.follow { Ending::Dismissed } else { Ending::Interrupted });
        }
        if self.looks.last.rolled_back {
            return Some(Ending::RolledBack);
        }
        match self.looks.last.request {
            Request::Pause => return Some(Ending::Paused),
            Request::Stop => return Some(Ending::Stopped),
            Request::Run => {}
        }
        if !self.looks.has_looked {
            return None;
        }
        if matches!(self.limits.until, Until::Fraction(_)) && self.native() >= self.target() {
            return Some(Ending::ReachedFraction);
        }
        if self.limits.budget.is_some_and(|budget| self.tally.native >= budget) {
            return Some(Ending::SpentBudget);
        }
        self.encoder_rest.has_spent_budget.then_some(Ending::EncoderBudgetSpent)
    }

    /// Time at which something can be begun again, if only time is missing.
    fn next_time(&self, now_ms: u64) -> Option<u64> {
        if !self.claims.ready.is_empty() && now_ms < self.next_send_ms {
            return Some(self.next_send_ms);
        }
        let rests = self.failed_items.ends_ms().chain(self.untaken_items.ends_ms());
        rests.chain(self.claims.again_for_others_ms()).min()
    }

    /// Items a second that this worker may embed: its part of the rate that all workers share.
    fn rate(&self) -> Option<f64> {
        self.limits.rate.map(|rate| rate / (self.looks.last.others + 1) as f64)
    }

    /// Number of items of a batch; a low rate makes batches small, so that items flow instead
    /// of coming in bursts.
    fn batch_items(&self) -> usize {
        let by_rate = self.rate().map_or(usize::MAX, |rate| rate.ceil().max(1.0) as usize);
        self.limits.batch.min(by_rate).max(1)
    }

    /// How many items may still be taken in hand.
    fn room(&self) -> usize {
        let in_hand = self.in_hand().count() as u64;
        let of_target = match self.limits.until {
            Until::All | Until::Enough | Until::Worth { .. } => u64::MAX,
            Until::Fraction(_) => self.target().saturating_sub(self.native() + in_hand),
        };
        let of_budget =
            self.limits.budget.map_or(u64::MAX, |budget| budget.saturating_sub(self.tally.native + in_hand));
        usize::try_from(of_target.min(of_budget)).unwrap_or(usize::MAX)
    }

    /// Whether no item is leased to this worker, as far as it knows.
    pub fn holds_nothing(&self) -> bool {
        self.in_hand().next().is_none() && self.failed_items.ends_ms().next().is_none()
    }

    /// Items that are ready, in a batch, or wait to be written again.
    fn in_hand(&self) -> impl Iterator<Item = ItemKey> + '_ {
        self.claims.ready.iter().copied().chain(self.batches.keys()).chain(self.untaken_items.resting())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use rehang_encode::ItemFailure;

    use super::*;

    /// A world with a queue of items, an encoder that fails where told, and a clock that jumps.
    struct World {
        queue: Vec<ItemKey>,
        held: BTreeSet<ItemKey>,
        native: Vec<ItemKey>,
        failed: Vec<ItemKey>,
        refused: Vec<ItemKey>,
        /// Items below this one fail for good.
        hopeless: u64,
        /// How often each item fails before it succeeds; `u32::MAX` for ever.
        flaky: BTreeMap<ItemKey, u32>,
        now_ms: u64,
        encoded: Vec<ItemKey>,
        batches: BTreeMap<u64, Vec<ItemKey>>,
        at_once_max: usize,
        request: Request,
        rolled_back: bool,
        others: u64,
        /// How often the store does not take the vector of an item; `u32::MAX` for ever.
        untaken: BTreeMap<ItemKey, u32>,
        given_up: Vec<ItemKey>,
        written: u32,
        /// Batches that the encoder hands out before it is compared with itself.
        holds: usize,
        unvouched: Vec<Event>,
        vouched: u32,
    }

    impl World {
        fn with_items(items: u64) -> Self {
            Self {
                queue: keys(0..items),
                held: BTreeSet::new(),
                native: Vec::new(),
                failed: Vec::new(),
                refused: Vec::new(),
                hopeless: 0,
                flaky: BTreeMap::new(),
                now_ms: 0,
                encoded: Vec::new(),
                batches: BTreeMap::new(),
                at_once_max: 0,
                request: Request::Run,
                rolled_back: false,
                others: 0,
                untaken: BTreeMap::new(),
                given_up: Vec::new(),
                written: 0,
                holds: 0,
                unvouched: Vec::new(),
                vouched: 0,
            }
        }

        /// Performs actions, one event after the other, until the end; encoders answer last-in, first-out.
        fn run(&mut self, limits: Limits) -> (Backfill, Ending) {
            let items = self.queue.len() as u64;
            let mut events = VecDeque::from([Event::Begin]);
            let mut at_encoder: Vec<Event> = Vec::new();
            let mut state = Backfill::new(limits);
            for _ in 0..100_000 {
                let event = events.pop_front().or_else(|| at_encoder.pop()).unwrap_or(Event::Tick);
                let (next, actions) = state.step(self.now_ms, event);
                state = next;
                for action in actions {
                    match action {
                        Action::Look => {
                            events.push_back(Event::Looked {
                                items,
                                native_before: 0,
                                request: self.request,
                                rolled_back: self.rolled_back,
                                is_over: false,
                                others: self.others,
                                waits: !self.queue.is_empty(),
                            });
                        }
                        Action::Claim { limit } => {
                            let free = self.queue.iter().filter(|key| !self.held.contains(key));
                            let keys: Vec<ItemKey> = free.take(limit).copied().collect();
                            self.held.extend(&keys);
                            events.push_back(claimed(keys));
                        }
                        Action::Release { keys } => {
                            for key in keys {
                                assert!(self.held.remove(&key), "{key} is not its to give back");
                            }
                        }
                        Action::Encode { batch, keys } => {
                            let mut failures = Vec::new();
                            for &key in &keys {
                                self.encoded.push(key);
                                let left = self.flaky.entry(key).or_default();
                                if key < ItemKey::from(self.hopeless) {
                                    let failure = ItemFailure::Permanent("no such file".into());
                                    failures.push(Attempt { key, revision: 1, failure });
                                } else if *left > 0 {
                                    *left = left.saturating_sub(u32::from(*left != u32::MAX));
                                    let failure = ItemFailure::Temporary("no answer".into());
                                    failures.push(Attempt { key, revision: 1, failure });
                                }
                            }
                            let failed: Vec<ItemKey> = failures.iter().map(|f| f.key).collect();
                            let good = keys.into_iter().filter(|key| !failed.contains(key)).collect();
                            self.batches.insert(batch, good);
                            let encoded = Event::Encoded { batch, failures };
                            if self.unvouched.len() < self.holds {
                                self.unvouched.push(encoded);
                                at_encoder.push(Event::Unvouched { batch });
                            } else {
                                at_encoder.extend(self.unvouched.drain(..).chain([encoded]));
                            }
                            self.at_once_max = self.at_once_max.max(at_encoder.len());
                        }
                        Action::Vouch => {
                            self.vouched += u32::from(!self.unvouched.is_empty());
                            at_encoder.append(&mut self.unvouched);
                        }
                        Action::Write { batch } | Action::WriteAgain { batch, .. } => {
                            let keys = match action {
                                Action::WriteAgain { keys, .. } => keys,
                                _ => self.batches.remove(&batch).unwrap(),
                            };
                            self.written += 1;
                            let mut is_untaken = |key: &ItemKey| {
                                let left = self.untaken.entry(*key).or_default();
                                let is_untaken = *left > 0;
                                *left = left.saturating_sub(u32::from(*left != u32::MAX));
                                is_untaken
                            };
                            let (untaken, keys): (Vec<ItemKey>, Vec<ItemKey>) =
                                keys.into_iter().partition(|key| is_untaken(key));
                            if !untaken.is_empty() {
                                events.push_back(Event::Untaken { batch, keys: untaken });
                            }
                            self.queue.retain(|key| !keys.contains(key));
                            self.native.extend(&keys);
                            let outcomes = keys.into_iter().map(|key| (key, WriteOutcome::Written)).collect();
                            events.push_back(Event::Written { batch, outcomes });
                        }
                        Action::GiveUp(key) => self.given_up.push(key),
                        Action::RecordFailures(attempts) => {
                            self.failed.extend(attempts.iter().map(|attempt| attempt.key));
                            self.queue.retain(|key| !self.failed.contains(key));
                        }
                        Action::Refuse(attempts) => {
                            self.refused.extend(attempts.iter().map(|attempt| attempt.key));
                        }
                        Action::WaitUntil(time) => {
                            if events.is_empty() && at_encoder.is_empty() {
                                self.now_ms = self.now_ms.max(time);
                            }
                        }
                        Action::End(ending) => return (state, ending),
                    }
                }
            }
            panic!("the backfill never ended: {state:?}");
        }
    }

    fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<ItemKey> {
        numbers.into_iter().map(ItemKey::from).collect()
    }

    fn claimed(keys: Vec<ItemKey>) -> Event {
        Event::Claimed { keys, held_by_others: 0, alone: false, late: false }
    }

    /// Unvouched vectors are written whatever ends a run, once the encoder vouches for them, and
    /// nothing waits for ever.
    #[test]
    fn what_is_unvouched_is_written_when_the_encoder_vouches_for_it() {
        for (holds, workers) in [(1, 1), (3, 1), (3, 2), (100, 1), (100, 3)] {
            let all = Limits { batch: 3, workers, rest_ms: 100, ..Limits::default() };
            for (limits, native, ending) in [
                (all, 19, Ending::NothingLeft),
                (Limits { budget: Some(13), ..all }, 13, Ending::SpentBudget),
                (Limits { until: Until::Fraction(0.5), ..all }, 10, Ending::ReachedFraction),
                (Limits { rate: Some(5.0), ..all }, 19, Ending::NothingLeft),
            ] {
                let mut world = World { holds, ..World::with_items(20) };
                world.flaky = [(ItemKey::from(4), 1), (ItemKey::from(6), u32::MAX)].into();
                let (state, ended) = world.run(limits);
                assert_eq!((ended, state.tally.native), (ending, native), "{holds} unvouched, {limits:?}");
                assert!(world.unvouched.is_empty() && world.vouched <= 8, "{} times", world.vouched);
            }
            let mut world = World { holds, request: Request::Pause, ..World::with_items(20) };
            assert_eq!(world.run(all).1, Ending::Paused);
        }
    }

    #[test]
    fn everything_becomes_native_once_and_in_order() {
        let mut world = World::with_items(10);
        let (state, ending) = world.run(Limits { batch: 3, ..Limits::default() });
        assert_eq!(ending, Ending::NothingLeft);
        assert_eq!(world.encoded, keys(0..10));
        assert_eq!(state.tally, Tally { native: 10, ..Tally::default() });
    }

    /// A batch may be away for a day, and the next ones need not be leased meanwhile.
    #[test]
    fn nothing_is_claimed_ahead_of_an_encoder_that_takes_a_day() {
        for (is_in_bulk, ahead) in [(false, true), (true, false)] {
            let limits = Limits { batch: 3, workers: 2, ..Limits::default() };
            let looked = Event::Looked {
                items: 20,
                native_before: 0,
                request: Request::Run,
                rolled_back: false,
                is_over: false,
                others: 0,
                waits: true,
            };
            let (state, _) = Backfill::new(limits).in_bulk(is_in_bulk).step(0, Event::Begin);
            let (state, actions) = state.step(0, looked);
            assert!(actions.contains(&Action::Claim { limit: 6 }), "{actions:?}");
            let (state, actions) = state.step(0, claimed(keys(0..6)));
            assert_eq!(state.batches.encoding.len(), 2);
            assert_eq!(
                actions.iter().any(|action| matches!(action, Action::Claim { .. })),
                ahead,
                "{actions:?}"
            );
            let (_, actions) = state.step(1, Event::Encoded { batch: 0, failures: vec![] });
            assert!(ahead || actions.contains(&Action::Claim { limit: 3 }), "{actions:?}");
        }
    }

    #[test]
    fn an_empty_gallery_is_done_at_once() {
        assert_eq!(World::with_items(0).run(Limits::default()).1, Ending::NothingLeft);
    }

    #[test]
    fn budget_and_fraction_are_met_exactly_with_many_workers() {
        for workers in 1..5 {
            for batch in [1, 4, 7, 100] {
                let limits = Limits { batch, workers, budget: Some(13), ..Limits::default() };
                let mut world = World::with_items(50);
                assert_eq!(world.run(limits).1, Ending::SpentBudget);
                assert_eq!(world.encoded.len(), 13);
                let limits = Limits { batch, workers, until: Until::Fraction(0.33), ..Limits::default() };
                let mut world = World::with_items(50);
                assert_eq!(world.run(limits).1, Ending::ReachedFraction);
                assert_eq!((world.encoded.len(), world.native.len()), (17, 17));
                assert!(world.at_once_max <= workers);
            }
        }
    }

    #[test]
    fn a_failing_item_is_tried_again_after_a_rest_then_listed() {
        let mut world = World::with_items(5);
        world.flaky = BTreeMap::from([(1.into(), 2), (3.into(), u32::MAX)]);
        let (state, ending) = world.run(Limits { batch: 2, attempts: 3, rest_ms: 100, ..Limits::default() });
        assert_eq!(ending, Ending::NothingLeft);
        assert_eq!(world.failed, keys([3]));
        assert_eq!(world.native.len(), 4);
        // Two rests: 100 ms and 200 ms.
        assert!(world.now_ms >= 300, "{}", world.now_ms);
        assert_eq!(state.tally, Tally { native: 4, failed: 1, retried: 4, overtaken: 0 });
    }

    #[test]
    fn an_encoder_that_refuses_everything_stops_the_run_and_no_item_is_listed() {
        let limits = Limits { batch: 4, refusals: 10, ..Limits::default() };
        let mut world = World::with_items(1000);
        world.hopeless = 1000;
        let (state, ending) = world.run(limits);
        assert_eq!((ending, world.refused.len(), world.failed.len()), (Ending::Interrupted, 12, 0));
        assert_eq!(state.tally, Tally::default());
        // An encoder that gives a vector sooner may refuse items, and these are listed.
        let mut world = World::with_items(1000);
        world.hopeless = 9;
        let (state, ending) = world.run(limits);
        assert_eq!((ending, world.refused.len()), (Ending::NothingLeft, 0));
        world.failed.sort();
        assert_eq!(world.failed, keys(0..9));
        assert_eq!((state.tally.native, state.tally.failed), (991, 9));
        // And the last few items of a gallery may all be refused.
        let mut world = World::with_items(9);
        world.hopeless = 9;
        assert_eq!(world.run(limits).1, Ending::NothingLeft);
        assert_eq!(world.failed, keys(0..9));
    }

    #[test]
    fn what_the_store_does_not_take_is_written_again_and_embedded_once() {
        let mut world = World::with_items(20);
        world.untaken = BTreeMap::from([(3.into(), 1), (7.into(), 4), (19.into(), 2)]);
        let (state, ending) = world.run(Limits { batch: 4, rest_ms: 100, ..Limits::default() });
        assert_eq!((ending, world.encoded.len()), (Ending::NothingLeft, 20));
        assert_eq!(state.tally, Tally { native: 20, ..Tally::default() });
        assert!(world.now_ms >= 1500, "four rests, each twice as long: {}", world.now_ms);
        assert_eq!(world.given_up, []);
    }

    #[test]
    fn a_store_that_takes_nothing_ends_the_run_and_costs_no_more_than_what_it_refuses_at_first() {
        for (untaken, paid) in [(1000, 100), (1, 1000)] {
            let mut world = World::with_items(1000);
            world.untaken = (0..untaken).map(|key| (ItemKey::from(key), u32::MAX)).collect();
            let limits = Limits { batch: 4, workers: 2, ..Limits::default() };
            let (state, ending) = world.run(limits);
            assert_eq!((ending, world.given_up.len()), (Ending::Interrupted, 1));
            assert!((paid..=paid + 16).contains(&world.encoded.len()), "{} embedded", world.encoded.len());
            assert_eq!(state.tally.native, 1000_u64.saturating_sub(untaken));
            assert!((600_000..700_000).contains(&world.now_ms), "{}", world.now_ms);
            assert!(world.written < 2000, "with rests between: {}", world.written);
        }
    }

    #[test]
    fn failures_do_not_use_up_the_budget() {
        let mut world = World::with_items(10);
        world.flaky = BTreeMap::from([(0.into(), u32::MAX), (1.into(), u32::MAX)]);
        let limits = Limits { batch: 2, attempts: 1, budget: Some(4), ..Limits::default() };
        assert_eq!(world.run(limits).1, Ending::SpentBudget);
        assert_eq!(world.native, keys([2, 3, 4, 5]));
    }

    #[test]
    fn a_rate_spreads_items_over_time() {
        let mut world = World::with_items(20);
        world.run(Limits { batch: 64, rate: Some(5.0), ..Limits::default() });
        // 20 items at 5 a second: the last batch of 5 goes after 3 seconds.
        assert_eq!(world.now_ms, 3000);
        // Four workers share the rate: 20 items at 5/4 a second, one at a time from two that go together.
        let mut shared = World::with_items(20);
        shared.others = 3;
        shared.run(Limits { batch: 64, rate: Some(5.0), ..Limits::default() });
        assert_eq!(shared.now_ms, 14_400);
    }

    #[test]
    fn a_pause_begins_nothing_new() {
        let mut world = World::with_items(10);
        world.request = Request::Pause;
        assert_eq!(world.run(Limits::default()).1, Ending::Paused);
        assert!(world.encoded.is_empty());
    }

    #[test]
    fn a_rollback_begins_nothing_new() {
        let mut world = World::with_items(10);
        world.rolled_back = true;
        assert_eq!(world.run(Limits::default()).1, Ending::RolledBack);
        assert!(world.encoded.is_empty());
    }

    fn looked(items: u64, native_before: i64, request: Request) -> Event {
        let (rolled_back, is_over, others, waits) = (false, false, 0, true);
        Event::Looked { items, native_before, request, rolled_back, is_over, others, waits }
    }

    #[test]
    fn a_pause_is_noticed_within_a_second_however_slow_the_rate_is() {
        let state = Backfill::new(Limits { rate: Some(0.125), ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(9, 0, Request::Run));
        let (state, actions) = state.step(0, claimed(keys([1])));
        assert_eq!(actions[0], Action::Encode { batch: 0, keys: keys([1]) });
        let (state, _) = state.step(0, claimed(keys([2])));
        let (state, _) = state.step(10, Event::Encoded { batch: 0, failures: vec![] });
        let written = Event::Written { batch: 0, outcomes: vec![(1.into(), WriteOutcome::Written)] };
        let (state, actions) = state.step(10, written);
        assert_eq!(actions, [Action::WaitUntil(8000)]);
        let (state, actions) = state.step(900, Event::Tick);
        assert_eq!(actions, [Action::WaitUntil(8000)]);
        let (state, actions) = state.step(1000, Event::Tick);
        assert_eq!(actions[0], Action::Look);
        let (_, actions) = state.step(1000, looked(9, 0, Request::Pause));
        assert_eq!(actions, [Action::End(Ending::Paused)]);
    }

    #[test]
    fn a_store_that_is_slower_than_the_looks_does_not_keep_it_from_ending() {
        let state = Backfill::new(Limits::default());
        let (state, _) = state.step(0, Event::Begin);
        let (state, actions) = state.step(5000, looked(9, 0, Request::Run));
        assert!(matches!(actions[..], [Action::Claim { .. }]), "{actions:?}");
        let (_, actions) = state.step(10_000, claimed(keys([])));
        assert_eq!(actions, [Action::End(Ending::NothingLeft)]);
    }

    #[test]
    fn an_item_is_held_while_it_rests_and_given_back_after() {
        let state = Backfill::new(Limits { batch: 1, rest_ms: 100, ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(1, 0, Request::Run));
        let (state, _) = state.step(0, claimed(keys([1])));
        let (state, _) = state.step(0, claimed(vec![]));
        let failure = ItemFailure::Temporary("busy".into());
        let failures = vec![Attempt { key: 1.into(), revision: 1, failure }];
        let (state, actions) = state.step(0, Event::Encoded { batch: 0, failures });
        assert_eq!(actions, [Action::WaitUntil(100)]);
        let (state, actions) = state.step(50, Event::Tick);
        assert_eq!(actions, [Action::Claim { limit: 1 }], "others may have come meanwhile");
        // The item's rest ends during the claim, which it was held back from.
        let (state, actions) = state.step(120, claimed(vec![]));
        let release = Action::Release { keys: keys([1]) };
        assert_eq!(actions, [release, Action::Claim { limit: 1 }]);
        let (_, actions) = state.step(120, claimed(keys([1])));
        assert_eq!(actions[0], Action::Encode { batch: 1, keys: keys([1]) });
    }

    #[test]
    fn what_the_encoder_did_not_try_is_given_back() {
        let state = Backfill::new(Limits { batch: 3, ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(4, 0, Request::Run));
        let (state, _) = state.step(0, claimed(keys([7, 8, 9])));
        let (state, _) = state.step(0, claimed(vec![]));
        let (state, _) = state.step(0, Event::Encoded { batch: 0, failures: vec![] });
        let written = Event::Written { batch: 0, outcomes: vec![(8.into(), WriteOutcome::Written)] };
        let (_, actions) = state.step(0, written);
        assert_eq!(actions[0], Action::Release { keys: keys([7, 9]) });
    }

    /// The store frees an item that changes, so that a claim may give it to the worker that has it in hand.
    #[test]
    fn an_item_that_is_claimed_again_is_embedded_once_more_and_stays_leased() {
        let state = Backfill::new(Limits { batch: 1, workers: 2, ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(9, 0, Request::Run));
        let encode = |batch, number: u64| Action::Encode { batch, keys: keys([number]) };
        let (state, actions) = state.step(0, claimed(keys([7, 8, 9])));
        assert_eq!(actions, [encode(0, 7), encode(1, 8), Action::Claim { limit: 1 }]);
        let (state, actions) = state.step(0, claimed(keys([9])));
        assert_eq!(actions, [Action::Claim { limit: 1 }], "9 waits already");
        let (state, _) = state.step(0, claimed(keys([8])));
        let (state, actions) = state.step(0, Event::Encoded { batch: 0, failures: vec![] });
        assert_eq!(actions[..2], [Action::Write { batch: 0 }, encode(2, 9)]);
        let (state, actions) = state.step(0, Event::Encoded { batch: 1, failures: vec![] });
        assert_eq!(actions[..2], [Action::Write { batch: 1 }, encode(3, 8)]);
        let (_, actions) = state.step(0, Event::Written { batch: 1, outcomes: vec![] });
        assert!(!actions.contains(&Action::Release { keys: keys([8]) }), "8 is at the encoder as it is now");
    }

    #[test]
    fn it_claims_nothing_after_items_that_came_since_it_began() {
        for held_by_others in [0, 4] {
            let state = Backfill::new(Limits { batch: 2, rest_ms: 100, ..Limits::default() });
            let (state, _) = state.step(0, Event::Begin);
            let (state, _) = state.step(0, looked(4, 0, Request::Run));
            let late = Event::Claimed { keys: keys([3]), held_by_others, alone: false, late: true };
            let (state, actions) = state.step(0, late);
            assert_eq!(actions, [Action::Encode { batch: 0, keys: keys([3]) }]);
            let (state, _) = state.step(10, Event::Encoded { batch: 0, failures: vec![] });
            let written = Event::Written { batch: 0, outcomes: vec![(3.into(), WriteOutcome::Written)] };
            let (_, actions) = state.step(20, written);
            assert_eq!(actions, [Action::End(Ending::NothingLeft)], "{held_by_others} held by others");
        }
    }

    #[test]
    fn it_waits_for_what_others_hold_since_they_may_die() {
        let state = Backfill::new(Limits { batch: 2, ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(4, 0, Request::Run));
        let (state, actions) =
            state.step(0, Event::Claimed { keys: vec![], held_by_others: 4, alone: false, late: false });
        assert_eq!(actions, [Action::WaitUntil(500)]);
        let (state, actions) = state.step(400, Event::Tick);
        assert_eq!(actions, [Action::WaitUntil(500)], "not at every tick");
        let (state, actions) = state.step(500, Event::Tick);
        assert_eq!(actions, [Action::Claim { limit: 2 }]);
        // One of the others has died, another one goes on.
        let (state, actions) =
            state.step(500, Event::Claimed { keys: keys([3]), held_by_others: 2, alone: false, late: false });
        assert_eq!(actions[0], Action::Encode { batch: 0, keys: keys([3]) });
        let (state, _) =
            state.step(500, Event::Claimed { keys: vec![], held_by_others: 2, alone: false, late: false });
        let (state, _) = state.step(600, Event::Encoded { batch: 0, failures: vec![] });
        let written = Event::Written { batch: 0, outcomes: vec![(3.into(), WriteOutcome::Written)] };
        let (state, actions) = state.step(600, written);
        assert_eq!(actions, [Action::Claim { limit: 2 }]);
        let (_, actions) = state.step(600, claimed(vec![]));
        assert_eq!(actions, [Action::End(Ending::NothingLeft)]);
    }

    #[test]
    fn what_workers_ended_with_is_embedded_with_nothing_else_in_hand() {
        let state = Backfill::new(Limits { batch: 2, workers: 2, ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(9, 0, Request::Run));
        let (state, actions) = state.step(0, claimed(keys([1, 2, 3])));
        let encode = |batch, numbers: &[u64]| Action::Encode { batch, keys: keys(numbers.iter().copied()) };
        assert_eq!(actions[..2], [encode(0, &[1, 2]), encode(1, &[3])]);
        let alone = Event::Claimed { keys: keys([4]), held_by_others: 0, alone: true, late: false };
        let (state, actions) = state.step(0, alone);
        assert_eq!(actions, [], "it waits, and nothing is claimed behind it");
        let written = |batch, numbers: &[u64]| Event::Written {
            batch,
            outcomes: numbers.iter().map(|&key| (key.into(), WriteOutcome::Written)).collect(),
        };
        let (state, _) = state.step(0, Event::Encoded { batch: 1, failures: vec![] });
        let (state, actions) = state.step(0, written(1, &[3]));
        assert_eq!(actions, []);
        let (state, _) = state.step(0, Event::Encoded { batch: 0, failures: vec![] });
        let (state, actions) = state.step(0, written(0, &[1, 2]));
        assert_eq!(actions, [encode(2, &[4])]);
        let (state, _) = state.step(0, Event::Encoded { batch: 2, failures: vec![] });
        let (state, actions) = state.step(0, written(2, &[4]));
        assert_eq!(actions, [Action::Claim { limit: 4 }], "and then the others");
        // An item that is not tried again is listed, and the queue goes on.
        let attempt =
            Attempt { key: 5.into(), revision: 1, failure: ItemFailure::Permanent("it ends workers".into()) };
        let (state, actions) = state.step(0, Event::GivenUp(attempt.clone()));
        assert_eq!(actions, [Action::RecordFailures(vec![attempt]), Action::Claim { limit: 4 }]);
        assert_eq!(state.tally, Tally { native: 4, failed: 1, ..Tally::default() });
    }

    #[test]
    fn a_follower_stays_and_claims_only_where_a_look_says_that_something_waits() {
        let look = |waits| {
            let (request, rolled_back, is_over, others) = (Request::Run, false, false, 0);
            Event::Looked { items: 4, native_before: 0, request, rolled_back, is_over, others, waits }
        };
        let state = Backfill::new(Limits { batch: 2, follow: true, ..Limits::default() });
        let (state, actions) = state.step(0, Event::Begin);
        assert_eq!(actions, [Action::Look]);
        let (state, actions) = state.step(0, look(true));
        assert_eq!(actions, [Action::Claim { limit: 2 }]);
        let (mut state, actions) = state.step(0, claimed(vec![]));
        assert_eq!((actions, state.why_idle()), (vec![Action::WaitUntil(500)], Some(Ending::NothingLeft)));
        for tick in 1..5 {
            let (next, actions) = state.step(tick * 100, Event::Tick);
            assert_eq!(actions, [Action::WaitUntil(500)]);
            state = next;
        }
        let (state, actions) = state.step(500, Event::Tick);
        assert_eq!(actions, [Action::Look]);
        let (state, actions) = state.step(500, look(false));
        assert_eq!(actions, [Action::WaitUntil(1000)]);
        let (state, _) = state.step(1000, Event::Tick);
        let (state, actions) = state.step(1000, look(true));
        assert_eq!((actions, state.why_idle()), (vec![Action::Claim { limit: 2 }], None));
        // Items in hand go back where the follower may embed no more, and an interrupt ends it.
        let (state, actions) = state.step(1000, claimed(keys([1, 2, 3])));
        assert_eq!(actions[0], Action::Encode { batch: 0, keys: keys([1, 2]) });
        let (state, _) = state.step(1000, claimed(vec![]));
        let paused = Event::Looked {
            items: 4,
            native_before: 0,
            request: Request::Pause,
            rolled_back: false,
            is_over: false,
            others: 0,
            waits: true,
        };
        let (state, actions) = state.step(1100, paused);
        assert_eq!(
            (&actions[0], state.why_idle()),
            (&Action::Release { keys: keys([3]) }, Some(Ending::Paused))
        );
        let (state, actions) = state.step(1200, Event::Encoded { batch: 0, failures: vec![] });
        assert_eq!(actions[0], Action::Write { batch: 0 });
        let outcomes = keys([1, 2]).into_iter().map(|key| (key, WriteOutcome::Written)).collect();
        let (state, _) = state.step(1200, Event::Written { batch: 0, outcomes });
        let (_, actions) = state.step(1300, Event::Interrupt);
        assert_eq!(actions, [Action::End(Ending::Dismissed)]);
    }

    #[test]
    fn items_that_the_application_takes_back_are_made_up_for() {
        let limits = Limits { batch: 2, until: Until::Fraction(0.5), ..Limits::default() };
        let state = Backfill::new(limits);
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(4, 0, Request::Run));
        let (state, _) = state.step(0, claimed(keys([1, 2])));
        let (state, _) = state.step(0, Event::Encoded { batch: 0, failures: vec![] });
        // One of the two was changed right after it was written, which the look comes to see first.
        let (state, _) = state.step(0, looked(4, -1, Request::Run));
        let written = vec![(1.into(), WriteOutcome::Written), (2.into(), WriteOutcome::Written)];
        let (state, actions) = state.step(0, Event::Written { batch: 0, outcomes: written });
        assert_eq!((state.native(), state.looks.last.items), (1, 4));
        assert!(matches!(actions[..], [Action::Claim { limit: 1 }]), "{actions:?}");
    }

    #[test]
    fn what_is_at_the_encoder_is_written_before_an_interrupted_run_ends() {
        let state = Backfill::new(Limits { batch: 2, ..Limits::default() });
        let (state, _) = state.step(0, Event::Begin);
        let (state, _) = state.step(0, looked(4, 0, Request::Run));
        let (state, actions) = state.step(0, claimed(keys([7, 8])));
        assert_eq!(actions[0], Action::Encode { batch: 0, keys: keys([7, 8]) });
        let (state, _) = state.step(0, claimed(keys([])));
        let (state, actions) = state.step(0, Event::Interrupt);
        assert_eq!(actions, []);
        let (state, actions) = state.step(0, Event::Encoded { batch: 0, failures: vec![] });
        assert_eq!(actions, [Action::Write { batch: 0 }]);
        let written = vec![(7.into(), WriteOutcome::Written), (8.into(), WriteOutcome::Changed)];
        let (state, actions) = state.step(0, Event::Written { batch: 0, outcomes: written });
        assert_eq!(actions, [Action::End(Ending::Interrupted)]);
        assert_eq!(state.tally, Tally { native: 1, overtaken: 1, ..Tally::default() });
    }
}
