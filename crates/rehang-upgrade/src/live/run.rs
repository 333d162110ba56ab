//! Backfill loop: the one place that performs what [`Backfill`] decides. It reads worst first, lets workers
//! embed, and writes conditionally.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{mem, thread};

use rehang_clock::Clock;
use rehang_core::adapter::Adapter;
use rehang_core::{Error, ErrorKind, Provenance, Remedy, Result, Space, in_parallel};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_store::{
    ALONE_AFTER, AtWork, Claimed, Counts, Item, ItemKey, Ledger, Queue, Record, Revision, Scan, Select,
    Store, VectorWrite, WriteOutcome,
};
use serde::Serialize;

use crate::kept;
use crate::learn::health::{SigmaHealth, health_of};
use crate::live::backfill::{Action, Attempt, Backfill, Ending, Event, Request, Tally};
use crate::live::equal::{Copied, Embedded, Sources, split_by_source};
use crate::live::estimate::keep_rate;
use crate::live::faults::Place;
use crate::live::fill::{Filler, written_of};
use crate::live::held::{Answers, Found, HeldDocuments, encode_rest};
use crate::live::identity::{expect_same_on_account, remember_unvouched};
use crate::live::limits::Limits;
use crate::live::manners;
use crate::live::sample;
use crate::live::spending;
use crate::live::turn::Turn;
use crate::live::until::{Until, reaches};
use crate::observe::{Observation, Observer};
use crate::record::{Phase, Recorded, UpgradeRecord};
use crate::serve::index::prepare_index;
use crate::setup::{UpgradeSetup, expect_adapter, mismatch, upgrade_of};

/// Longest wait for anything: after it, the loop looks whether it was asked to end.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Milliseconds between two counts of the gallery, since counting a large one takes a while; in between, what
/// was written is added.
const COUNT_EVERY_MS: u64 = 5000;
/// Factor by which the rest after a count is at least longer than the count: each worker counts, and of a
/// hundred million items that takes seconds.
const COUNT_RESTS: u64 = 20;
/// Factor by which the rest after a catch-up is longer than the catch-up, so that it never takes most of a
/// run: it pages through all items that lack a vector, also those that can never be adapted.
const CATCH_UP_RESTS: u64 = 10;
/// Longest time of one catch-up: batches that came back wait for it, leases run, and a bulk import would keep
/// it busy for ever.
const CATCH_UP_MAX_MS: u64 = 1000;
/// Time for which a store that is not available is asked again: vectors that are paid for wait for it
/// meanwhile.
const STORE_PATIENCE_MS: u64 = 600_000;
/// Rest before a store that was not available is asked again. A follower, which asks for ever, rests twice as
/// long each time, up to `STORE_RESTS_MAX`.
const STORE_RESTS: Duration = Duration::from_secs(1);
const STORE_RESTS_MAX: Duration = Duration::from_secs(15);
/// Workers in a row that ended with an item in hand, after which it is listed as failed. The last ones had
/// nothing else in hand.
const LISTED_AFTER: u32 = ALONE_AFTER + 2;
/// Items of the queue that are looked at to see whether one from before the backfill waits.
const QUEUE_PAGE: usize = 1000;
/// Bytes of a reason that are kept for a failed item.
const REASON_BYTES_MAX: usize = 1024;

/// Items of a gallery that a backfill embeds.
#[derive(Debug, Clone, Copy)]
pub enum BackfillScope<'a> {
    /// All items, worst first. With the adapter, items that come or change meanwhile are adapted, so that
    /// searches find them at once. It is `None` in a [plain](UpgradeRecord::is_plain) upgrade, where such
    /// items are embedded first, and once the upgrade is finished, since no old vector is left that it could
    /// adapt.
    Gallery(Option<&'a Adapter>),
    /// Random sample of so many items, native ones among them: the [pairs](crate::PairsDrawn), drawn before
    /// any adapter is known. Nothing is adapted.
    Sample(usize),
}

impl BackfillScope<'_> {
    fn queue(self) -> Queue {
        match self {
            Self::Gallery(_) => Queue::All,
            Self::Sample(size) => sample::queue(size),
        }
    }
}

/// Inputs of a backfill.
pub struct BackfillSetup<'a> {
    /// Gallery to backfill.
    pub store: &'a dyn Store,
    /// Encoder of the new model.
    pub encoder: &'a dyn Encoder,
    /// Items to embed.
    pub scope: BackfillScope<'a>,
    /// Limits on how far and how fast it goes.
    pub limits: Limits,
    /// Clock that all times are taken from.
    pub clock: &'a dyn Clock,
    /// Name of this worker (host, process and a random part, say), under which its items are leased. No two
    /// at a time may share one: a run that begins gives back what an earlier one of its name still held.
    pub worker: &'a str,
}

/// Result of a backfill.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Reason why the backfill ended.
    pub ending: Ending,
    /// Message of the encoder where [`Ending::EncoderBudgetSpent`] ended the backfill: which budget, and how
    /// far it went.
    pub encoder_said: Option<String>,
    /// Items, by what became of them.
    pub done: Tally,
    /// Items of the gallery.
    pub items: u64,
    /// Native items of the gallery, at the end.
    pub native: u64,
    /// Items that got the vector of another one, whose source is the same: nothing was sent for them.
    pub copied: u64,
    /// Items that were caught up with on the way.
    pub caught_up: u64,
    /// Whether the search index of the new space was made again at the end.
    pub indexed: bool,
    /// Items, tokens and money that the encoder used.
    pub spent: Spent,
    /// Milliseconds that the backfill took, by its clock.
    pub elapsed_ms: u64,
    /// Milliseconds that batches were at the encoder, summed over batches: `workers · elapsed_ms` if the
    /// encoder was never idle.
    pub encoder_busy_ms: u64,
    /// Health of σ²: held against the true errors of the items that were backfilled last; `None` before there
    /// are enough.
    pub sigma: Option<SigmaHealth>,
}

/// Backfills: re-embeds items worst first until a limit is met, a pause, a stop or a rollback is asked for,
/// or nothing is left. It may be begun on an upgrade that is rolled back, and for a
/// [sample](BackfillScope::Sample) before there is any adapter. On a [finished](crate::finish) upgrade it
/// embeds what the finish has left and what came since. A rollback while it runs ends it after the batches in
/// hand; a finish does not end it. A spent budget of the encoder is an orderly end, and no error.
///
/// Whatever kills it, the next call goes on from the store. A worker gets its next batch when its last one is
/// written. So a death costs at most `batch` items a worker, which the next call embeds again. Vectors that
/// the encoder does not [vouch for](Encoder::is_vouched_for) yet lie in documents of the gallery meanwhile.
/// The next call embeds one of eight of these again, and takes the others where the new vectors are those
/// that lie there. While a worker's batch is written, a second worker keeps the encoder busy; an only worker
/// leaves it idle.
///
/// To an encoder that [reads the source alone](Encoder::reads_source_alone), equal sources are sent once: the
/// other items that have one get its vector. This includes sources of earlier runs, for the first 16,384
/// native items.
///
/// Items that fail are tried again, then listed; they never stop the others. An item that ends the process
/// itself (out of memory, say) cannot be caught. After two such ends, each of the items in hand is embedded
/// alone, and an item with which two more processes end is listed.
///
/// Several processes may run at once, on one machine or many: each leases what it works on, so no item is
/// embedded twice unless a process dies. Where others hold all that is left, it waits for them; items of a
/// dead process are taken over when its lease has run out ([`Limits::lease_ms`]).
///
/// # Errors
///
/// A conflict where the upgrade is not filled, is paused or stopped, or is filled by another adapter; missing
/// input without an adapter before the finish; mismatch where the encoder is of another space, its name
/// included; a conflict where it gives other vectors than the natives that are there. All four come before
/// anything is written. What the encoder says that no item can overcome, after everything that is done was
/// written. What the store says.
pub fn backfill(setup: &BackfillSetup<'_>, observer: &dyn Observer) -> Result<Summary> {
    backfill_compared(setup, observer, false)
}

/// Backfills as [`backfill`] does. An encoder that this process has compared already (`is_compared`) is not
/// compared again with the natives that are there.
pub(crate) fn backfill_compared(
    setup: &BackfillSetup<'_>,
    observer: &dyn Observer,
    is_compared: bool,
) -> Result<Summary> {
    backfill_beside(setup, observer, is_compared, None)
}

/// Hears the counts of the gallery whenever a backfill has counted it.
pub(crate) type Counted<'a> = dyn Fn(&Counts) + Sync + 'a;

/// Backfills as [`backfill`] does, and tells `counted` what it counts.
pub(crate) fn backfill_beside(
    setup: &BackfillSetup<'_>,
    observer: &dyn Observer,
    is_compared: bool,
    counted: Option<&Counted<'_>>,
) -> Result<Summary> {
    let record = Recorded::expect(setup.store)?.record;
    let name = setup.store.name();
    let is_sample = matches!(setup.scope, BackfillScope::Sample(_));
    match record.phase {
        Phase::Filled | Phase::RolledBack => {}
        Phase::Sampling | Phase::Abandoned if is_sample => {}
        Phase::Finished if !is_sample => {}
        phase @ Phase::Finished => return Err(Error::wrong_phase(upgrade_of(setup.store), phase.name())),
        phase @ (Phase::Sampling | Phase::Filling | Phase::Abandoned) => {
            return Err(
                Error::wrong_phase(upgrade_of(setup.store), phase.name()).advise(Remedy::ContinueFilling)
            );
        }
    }
    let held_up = match record.request {
        // A follower waits until the pause or the stop is over.
        _ if setup.limits.follow => None,
        Request::Run => None,
        Request::Pause => Some("paused"),
        Request::Stop => Some("stopped"),
    };
    if let Some(how) = held_up {
        return Err(Error::wrong_phase(format!("the backfill of {name}"), how).advise(Remedy::ResumeBackfill));
    }
    let encodes = setup.encoder.space();
    let identity = |space: &Space| (space.name.clone(), space.dimension, space.distance);
    if identity(encodes) != identity(&record.new) {
        return Err(mismatch(&record.new, encodes).context("the encoder"));
    }
    let mut filler = None;
    if let BackfillScope::Gallery(adapter) = setup.scope
        && record.phase != Phase::Finished
    {
        let recorded_setup =
            UpgradeSetup { old: &record.old, new: &record.new, adapter, order: record.order };
        expect_adapter(setup.store, &record, &recorded_setup)?;
        filler = recorded_setup.filler(record.order)?;
        if let Some(adapter) = adapter
            && record.phase == Phase::Filled
        {
            kept::keep_adapter(setup.store, &record.adapter, adapter)?;
            let epoch = record.epoch.unwrap_or_default();
            setup.store.keep_map(&record.new.name, Some((epoch, &record.adapter, adapter)))?;
        }
    }
    let kept = manners::recall(setup.store, &record.new.name, setup.encoder)?;
    let told = if is_compared {
        spending::share(setup.store, &record, setup.encoder, setup.encoder.spent())?
    } else {
        expect_same_on_account(setup.store, &record, setup.encoder)?
    };
    let began = setup.store.newest_revision()?;
    // Items that an earlier process of this name still held are free: it ended without a word.
    setup.store.renew(&record.new.name, setup.worker, Duration::ZERO)?;
    let documents = HeldDocuments::open(setup.store, &record.new.name, record.new.dimension)?;
    let (jobs, to_do) = channel::<Job>();
    let (done, results) = channel::<Done>();
    let to_do = Arc::new(Mutex::new(to_do));
    let space = record.new.name.as_str();
    thread::scope(|scope| {
        for _ in 0..setup.limits.workers.max(1) {
            let (to_do, done) = (Arc::clone(&to_do), done.clone());
            scope.spawn(move || in_parallel(move || work(setup.encoder, &to_do, &done)));
        }
        drop(done);
        let (rested, rests) = channel::<()>();
        if setup.limits.follow {
            scope.spawn(move || in_parallel(move || settle(setup.store, space, &rests, observer)));
        }
        let mut run = Run {
            setup,
            record: &record,
            space,
            turn: Turn::default(),
            rested,
            resting: None,
            rolled_back: matches!(record.phase, Phase::RolledBack | Phase::Abandoned),
            filler,
            adapter: record.adapter.clone(),
            counted,
            observer,
            shown: false,
            jobs,
            results,
            records: BTreeMap::new(),
            sources: None,
            copies: BTreeMap::new(),
            copied: 0,
            claimed: BTreeMap::new(),
            vectors: BTreeMap::new(),
            held: BTreeMap::new(),
            documents,
            asked: Vec::new(),
            withheld: 0,
            unvouched: 0,
            untaken: BTreeMap::new(),
            at_encoder: 0,
            catch_up_from_ms: 0,
            catch_up_after: None,
            count_from_ms: 0,
            counts: (0, 0),
            written: 0,
            caught_up: 0,
            counted_at: None,
            settled: 0,
            told,
            kept,
            fatal: None,
            began,
            began_ms: setup.clock.now_ms(),
            busy_since_ms: 0,
            busy_ms: 0,
            renewed_ms: setup.clock.now_ms(),
        };
        let summary = run.go();
        if summary.is_err() && setup.limits.follow && is_gone(setup.store) {
            return Ok(run.released());
        }
        match observer.reach(Place::BackfillEnded) {
            // Leases are given back after an error too: others need not wait for them to run out.
            Ok(()) => {
                run.turn.leave(setup.store);
                run.documents.tidy();
                let released = setup.store.release(&record.new.name, setup.worker, None);
                summary.and_then(|summary| released.map(|_| summary))
            }
            Err(death) => summary.and(Err(death)),
        }
    })
}

/// Whether the gallery was released, or is being released.
fn is_gone(store: &dyn Ledger) -> bool {
    let is_missing = |error: Error| {
        matches!(error.remedy(), Some(Remedy::AdoptTable | Remedy::ReleaseAgain))
            || matches!(error.kind(), ErrorKind::NotFound { what, .. } if what == "upgrade")
    };
    Recorded::expect(store).is_err_and(is_missing)
}

/// Observer of work beside a follower: it says no more than whether a stop is wanted, since such work has no
/// progress bar of its own.
struct Beneath<'a>(&'a dyn Observer);

impl Observer for Beneath<'_> {
    fn wants_stop(&self) -> bool {
        self.0.wants_stop()
    }
}

/// Settles a follower's writes each time that is wished, as the end of another backfill would: makes the
/// index, and forgets the handicap where nothing is adapted any more. It runs beside the follower, so that
/// items that come meanwhile do not wait.
fn settle(store: &dyn Store, space: &str, wishes: &Receiver<()>, observer: &dyn Observer) {
    while wishes.recv().is_ok() {
        // Searches are right without an index, and the doctor says what is wrong with it.
        drop(prepare_index(store, space, &Beneath(observer)));
        if store.counts(space).is_ok_and(|counts| counts.adapted == 0) {
            drop(forget_handicap(store));
        }
    }
}

/// Sets the handicap to 0 once the last adapted vector of a finished upgrade is native. Searches then add
/// nothing and look for nothing apart: no adapted vector comes after the finish.
fn forget_handicap(store: &dyn Ledger) -> Result<()> {
    let mut recorded = Recorded::expect(store)?;
    if !recorded.record.dropped {
        return Ok(());
    }
    match recorded.change(store, |record| record.handicap = 0.0) {
        // A change meanwhile leaves it to the next run.
        Err(error) if error.is_changed_meanwhile() => Ok(()),
        outcome => outcome,
    }
}

/// Question of the loop to a worker, which asks the encoder.
enum Job {
    /// Embed a batch; `found` has the vectors of it that lie in documents.
    Encode { batch: u64, records: Arc<Vec<Record>>, found: Vec<Option<Found>> },
    /// Ask the encoder whether it still is the same model.
    Vouch,
}

/// Answer of the encoder.
enum Done {
    /// Vectors of a batch, with the receipt for them.
    Encoded { batch: u64, answer: Result<Answers>, receipt: u64 },
    /// Result of comparing the encoder with itself.
    Vouched(Result<()>),
}

fn work(encoder: &dyn Encoder, to_do: &Mutex<Receiver<Job>>, done: &Sender<Done>) {
    loop {
        // The lock is held while waiting: the other workers wait for it instead of for the channel.
        let job = to_do.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let (batch, records, found) = match job {
            Ok(Job::Encode { batch, records, found }) => (batch, records, found),
            Ok(Job::Vouch) if done.send(Done::Vouched(encoder.vouch())).is_ok() => continue,
            Ok(Job::Vouch) | Err(_) => return,
        };
        let inputs: Vec<Input<'_>> = records
            .iter()
            .map(|record| Input {
                id: &record.item.id,
                source: record.item.source.as_deref().unwrap_or_default(),
                payload: &record.item.payload,
            })
            .collect();
        let answer = encode_rest(encoder, &inputs, found);
        let receipt = encoder.receipt();
        if done.send(Done::Encoded { batch, answer, receipt }).is_err() {
            return;
        }
    }
}

/// Shortens a reason, for a list that may have a million of them.
fn start_of(reason: &str) -> String {
    let cut = reason.floor_char_boundary(REASON_BYTES_MAX);
    if cut == reason.len() { reason.to_owned() } else { format!("{}…", &reason[..cut]) }
}

struct Run<'a> {
    setup: &'a BackfillSetup<'a>,
    /// Record of the upgrade as it was when the backfill began.
    record: &'a UpgradeRecord,
    space: &'a str,
    /// Turn to adapt what comes, which one of several followers has.
    turn: Turn,
    /// Channel that tells when a follower rests, and what it wrote may be settled.
    rested: Sender<()>,
    /// Reason why a follower embedded nothing when the observer was told last.
    resting: Option<Ending>,
    /// Whether the upgrade was rolled back at the last look.
    rolled_back: bool,
    /// Filler that adapts what came or changed meanwhile.
    filler: Option<Filler>,
    /// Fingerprint of the filler's adapter.
    adapter: String,
    counted: Option<&'a Counted<'a>>,
    observer: &'a dyn Observer,
    /// Whether the observer knows the stage.
    shown: bool,
    jobs: Sender<Job>,
    results: Receiver<Done>,
    /// Items at the encoder, by batch.
    records: BTreeMap<u64, Arc<Vec<Record>>>,
    /// Sources and the items that have their vectors, where a source alone makes a vector: from the first
    /// batch on.
    sources: Option<Sources>,
    /// Items of the batches at the encoder that need not be sent, by batch.
    copies: BTreeMap<u64, Vec<(Record, Copied)>>,
    /// Items that got the vector of another item so far.
    copied: u64,
    /// Items that were claimed and wait for an encoder, by key.
    claimed: BTreeMap<ItemKey, Record>,
    /// Vectors that wait to be written, by batch.
    vectors: BTreeMap<u64, Vec<(Record, Vec<f32>)>>,
    /// Batches of `vectors` that the encoder does not vouch for yet, with the receipt for each and its items
    /// without a vector.
    held: BTreeMap<u64, (u64, Vec<Attempt>)>,
    /// Documents where the vectors of held batches lie meanwhile, beside those of other workers.
    documents: HeldDocuments<'a>,
    /// Held batches that the encoder was asked to vouch for.
    asked: Vec<u64>,
    /// Vectors that were thrown away, since the encoder has become another one.
    withheld: usize,
    /// Vectors that were written though the encoder could not be compared with itself.
    unvouched: usize,
    /// Vectors that the store has not taken yet, with their items.
    untaken: BTreeMap<ItemKey, (Record, Vec<f32>)>,
    at_encoder: usize,
    /// Time from which the next catch-up may begin.
    catch_up_from_ms: u64,
    /// Item where the last catch-up stopped, if it did not come to the end.
    catch_up_after: Option<ItemKey>,
    /// Time from which the gallery may be counted again.
    count_from_ms: u64,
    /// Items of the gallery, and its native ones less those that this run made. The second is below 0 where
    /// these were changed since.
    counts: (u64, i64),
    /// Items that this run made native.
    written: u64,
    caught_up: u64,
    /// Items made native, and items caught up with, when a follower counted the gallery last.
    counted_at: Option<(u64, u64)>,
    /// Items that this run had made native when they were settled last.
    settled: u64,
    /// Spending of the encoder when the store was told last.
    told: Spent,
    /// Text of what encoders have learnt of their service, as the store holds it.
    kept: Option<String>,
    fatal: Option<Error>,
    /// Newest revision when the backfill began.
    began: Revision,
    began_ms: u64,
    busy_since_ms: u64,
    busy_ms: u64,
    /// Time when the leases were renewed last.
    renewed_ms: u64,
}

impl Run<'_> {
    fn go(&mut self) -> Result<Summary> {
        let is_in_bulk = self.setup.encoder.bulk_max().is_some();
        if is_in_bulk {
            self.outwait_the_dead()?;
        }
        let mut state = Backfill::new(self.setup.limits).in_bulk(is_in_bulk);
        let mut events = VecDeque::from([Event::Begin]);
        let mut interrupted = false;
        let mut wait_until = None;
        loop {
            if !interrupted && (self.observer.wants_stop() || self.fatal.is_some()) {
                interrupted = true;
                // Calls that only wait at the encoder need not be waited for.
                self.setup.encoder.interrupt();
                events.push_back(Event::Interrupt);
            }
            let event = match events.pop_front() {
                Some(event) => event,
                None => self.next_event(wait_until.take(), &mut events)?,
            };
            let renewed = self.renew();
            self.or_drain(renewed)?;
            events.extend(self.vouched());
            let (next, mut actions) = state.step(self.setup.clock.now_ms(), event);
            state = next;
            self.show_rest(&state);
            // Batches that came back are written before their workers get the next one, so that a worker
            // never holds more than one batch that a death would cost. Everything else can wait until the
            // workers have something to do.
            actions.sort_by_key(|action| match action {
                Action::Write { .. } | Action::WriteAgain { .. } | Action::RecordFailures(_) => 0,
                Action::Encode { .. } => 1,
                _ => 2,
            });
            for action in actions {
                match action {
                    Action::Look => {
                        let last_claim_was_empty = state.last_claim_was_empty();
                        let looked = self.patiently(|run| run.look(last_claim_was_empty));
                        let event = self.or_drain(looked)?.unwrap_or(Event::Looked {
                            items: self.counts.0,
                            native_before: self.counts.1,
                            request: Request::Run,
                            rolled_back: false,
                            is_over: false,
                            others: 0,
                            waits: true,
                        });
                        if let (Event::Looked { items, native_before, .. }, None) = (&event, &self.fatal) {
                            self.show(&state, *items, *native_before)?;
                        }
                        events.push_back(event);
                    }
                    Action::Claim { limit } => {
                        let claimed = self.claim(limit);
                        let mut claimed = self.or_drain(claimed)?.unwrap_or_default();
                        // Another worker has died since this one began; what it held may lie in documents by
                        // now.
                        if claimed.lost > 0
                            && claimed.records.iter().all(|record| self.documents.find(record).is_none())
                        {
                            let looked = self.patiently(|run| run.documents.look());
                            self.or_drain(looked)?;
                        }
                        if claimed.records.is_empty() && state.holds_nothing() {
                            claimed.held_by_others += self.give_back_unknown()?;
                        }
                        self.observer.reach(Place::BackfillClaimed)?;
                        events.push_back(self.take(claimed)?);
                    }
                    Action::Release { keys } => {
                        let released = self.patiently(|run| {
                            run.setup.store.release(run.space, run.setup.worker, Some(&keys))
                        });
                        self.or_drain(released)?;
                    }
                    Action::Encode { batch, keys } => events.extend(self.encode(batch, &keys)),
                    // All batches may be vouched for by now, and events that say so be on their way.
                    Action::Vouch if self.held.is_empty() => {}
                    Action::Vouch => {
                        self.asked = self.held.keys().copied().collect();
                        self.ask(Job::Vouch);
                    }
                    Action::Write { batch } | Action::WriteAgain { batch, .. } => {
                        if let Action::WriteAgain { keys, .. } = action {
                            let again = keys.iter().filter_map(|key| self.untaken.remove(key)).collect();
                            self.vectors.insert(batch, again);
                        }
                        let outcomes = self.write(batch, &mut events)?;
                        let is_written = |outcome: &WriteOutcome| *outcome == WriteOutcome::Written;
                        let units = outcomes.iter().filter(|(_, outcome)| is_written(outcome)).count() as u64;
                        self.observer.observe(&Observation::Advanced { units });
                        events.push_back(Event::Written { batch, outcomes });
                    }
                    Action::RecordFailures(attempts) => {
                        let failures: Vec<_> = attempts
                            .into_iter()
                            .map(|attempt| {
                                (attempt.key, attempt.revision, start_of(attempt.failure.reason()))
                            })
                            .collect();
                        let recorded =
                            self.patiently(|run| run.setup.store.record_failures(run.space, &failures));
                        self.or_drain(recorded)?;
                        self.observer.reach(Place::FailuresRecorded)?;
                    }
                    Action::GiveUp(key) => {
                        let id = self
                            .untaken
                            .get(&key)
                            .map_or_else(|| key.to_string(), |(record, _)| record.item.id.clone());
                        let detail = format!(
                            "it has not taken the vector of item {id:?} for ten minutes, though the item is what it was: a trigger or a rule of the \
                             application has the write ignored (the doctor looks for one), or a transaction has been at the item for so long. \
                             Nothing was paid for twice"
                        );
                        self.fatal.get_or_insert(Error::conflict(self.setup.store.name(), detail));
                    }
                    Action::Refuse(refused) => {
                        let first = refused
                            .first()
                            .map_or_else(String::new, |attempt| start_of(attempt.failure.reason()));
                        let detail = format!(
                            "it refused each of the first {} items for good, so something is wrong with it or with all sources; none of them \
                             is listed as failed. The first: {first}",
                            refused.len()
                        );
                        self.fatal.get_or_insert(Error::conflict("the encoder", detail));
                    }
                    Action::WaitUntil(time) => wait_until = Some(time),
                    Action::End(ending) => return self.end(&state, ending),
                }
            }
        }
    }

    /// Waits until the leases of workers that died have run out, one lease long at most: what they had sent
    /// in bulk comes first. Otherwise this run would send the same amount again beside it.
    fn outwait_the_dead(&mut self) -> Result<()> {
        let BackfillSetup { clock, limits, worker, .. } = *self.setup;
        let until_ms = clock.now_ms().saturating_add(limits.lease_ms);
        while clock.now_ms() < until_ms && !self.observer.wants_stop() {
            let at_work = self.patiently(|run| run.setup.store.at_work(run.space))?;
            if at_work.iter().all(|other| other.worker == worker) {
                break;
            }
            clock.wait(WAIT_MAX);
        }
        Ok(())
    }

    /// Keeps an error of the store for the end while batches are at the encoder: they are paid for, so they
    /// are waited for and written first. A decision of another process ends the run at once.
    fn or_drain<T>(&mut self, answer: Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error)
                if (self.at_encoder > 0 || !self.held.is_empty())
                    && !(error.is_conflict() || error.is_cancelled()) =>
            {
                self.fatal.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn claim(&mut self, limit: usize) -> Result<Claimed> {
        self.patiently(|run| {
            let BackfillSetup { store, scope, worker, .. } = run.setup;
            store.claim(run.space, scope.queue(), worker, limit, run.lease())
        })
    }

    /// Gives back items that are leased to this worker without its knowing, because a connection broke before
    /// the answer to a claim came. Returns how many there were. They count as held until another claim finds
    /// them free: the answer to the release may be lost as well, and a transaction of a broken connection may
    /// still be open.
    fn give_back_unknown(&mut self) -> Result<u64> {
        let (space, worker) = (self.space, self.setup.worker);
        let at_work = self.patiently(|run| run.setup.store.at_work(space))?;
        let Some(own) = at_work.into_iter().find(|at_work| at_work.worker == worker) else { return Ok(0) };
        self.patiently(|run| run.setup.store.release(space, worker, None))?;
        Ok(own.items)
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.setup.limits.lease_ms)
    }

    /// Renews the leases, after a third of their time has passed.
    fn renew(&mut self) -> Result<()> {
        let now = self.setup.clock.now_ms();
        if now.saturating_sub(self.renewed_ms) < self.setup.limits.lease_ms / 3 {
            return Ok(());
        }
        self.patiently(|run| run.setup.store.renew(run.space, run.setup.worker, run.lease()))?;
        self.renewed_ms = now;
        Ok(())
    }

    /// Asks the store, again and again where it is not available: a transaction of another process that takes
    /// ten seconds must not cost vectors that are paid for.
    fn patiently<T>(&mut self, mut ask: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let BackfillSetup { clock, limits, .. } = *self.setup;
        let observer = self.observer;
        let began = clock.now_ms();
        let mut rest = STORE_RESTS;
        loop {
            match ask(self) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unavailable { .. })
                        && !observer.wants_stop()
                        && (limits.follow || clock.now_ms() - began < STORE_PATIENCE_MS) =>
                {
                    clock.sleep_until(clock.now() + rest, &|| observer.wants_stop());
                    if limits.follow {
                        rest = (2 * rest).min(STORE_RESTS_MAX);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Summarises what a follower did until its gallery was released; the store cannot be asked any more.
    fn released(&self) -> Summary {
        let native = u64::try_from(self.counts.1).unwrap_or(0) + self.written;
        self.summary(
            Ending::Released,
            None,
            Tally { native: self.written, ..Tally::default() },
            (self.counts.0.max(native), native),
        )
    }

    /// Summarises what this process knows; the caller gives the number of items of the gallery and of its
    /// native ones.
    fn summary(
        &self,
        ending: Ending,
        encoder_said: Option<String>,
        done: Tally,
        (items, native): (u64, u64),
    ) -> Summary {
        let encoder = self.setup.encoder;
        Summary {
            ending,
            encoder_said,
            done,
            items,
            native,
            copied: self.copied,
            caught_up: self.caught_up,
            indexed: false,
            spent: encoder.spent(),
            elapsed_ms: self.setup.clock.now_ms() - self.began_ms,
            encoder_busy_ms: self.busy_ms,
            sigma: None,
        }
    }

    fn end(&mut self, state: &Backfill, ending: Ending) -> Result<Summary> {
        // Spending is shared after an error too: what was embedded until then is paid for.
        let shared = self.patiently(Self::share_spending);
        let (ending, encoder_said) = match self.fatal.take() {
            None => (ending, None),
            Some(error) if error.is_budget_spent() => (Ending::EncoderBudgetSpent, Some(error.to_string())),
            Some(error) => {
                let mut done = format!(
                    "the backfill ended after {} items were made native, which are kept",
                    state.tally.native
                );
                if self.withheld > 0 {
                    done += &format!(
                        "; {} items that it embedded after the encoder was last found to be the same model stay as they were",
                        self.withheld
                    );
                }
                if self.unvouched > 0 {
                    done += &format!(
                        "; after the last {} of them the encoder could not be compared with itself, which the next run does first",
                        self.unvouched
                    );
                }
                return Err(error.context(done));
            }
        };
        self.observer.observe(&Observation::Backfilled { tally: state.tally });
        shared?;
        let is_over = matches!(
            ending,
            Ending::NothingLeft | Ending::ReachedFraction | Ending::SpentBudget | Ending::EncoderBudgetSpent
        );
        // No later look will continue the catch-up, and nothing waits for this one.
        if is_over && self.catch_up_after.is_some() {
            let record = Recorded::expect(self.setup.store)?.record;
            self.patiently(|run| run.catch_up(&record, u64::MAX))?;
        }
        // The time does not include the flush, which may look at indexes for a while.
        let worked_ms = self.setup.clock.now_ms() - self.began_ms;
        // A follower spends most of its time waiting, and so does a batch API: their rates say nothing.
        if !self.setup.limits.follow && self.setup.encoder.bulk_max().is_none() {
            keep_rate(self.setup.store, self.space, state.tally.native, worked_ms, &self.setup.limits);
        }
        // By the end, all vectors that an index was made of may have been replaced. A stop is not kept
        // waiting for a new one. The index of a sample would be made again when the space is filled.
        let indexed = if self.observer.wants_stop() || matches!(self.setup.scope, BackfillScope::Sample(_)) {
            false
        } else {
            match prepare_index(self.setup.store, self.space, self.observer) {
                Err(error) if error.is_cancelled() => false,
                made => made?,
            }
        };
        // Other workers may have done what this one has not counted yet, all that was left included.
        let counts = self.patiently(|run| run.setup.store.counts(run.space))?;
        if let Some(counted) = self.counted {
            counted(&counts);
        }
        if counts.adapted == 0 {
            self.patiently(|run| forget_handicap(run.setup.store))?;
        }
        let ending = match (ending, self.setup.limits.until) {
            (Ending::NothingLeft, Until::Fraction(share)) if reaches(&counts, share) => {
                Ending::ReachedFraction
            }
            (ending, _) => ending,
        };
        let known = self.summary(ending, encoder_said, state.tally, (counts.items, counts.native));
        Ok(Summary { indexed, sigma: health_of(self.setup.store, self.space)?, ..known })
    }

    /// Waits for a worker, for time to pass, or for a wish to end.
    fn next_event(&mut self, until: Option<u64>, events: &mut VecDeque<Event>) -> Result<Event> {
        let now = self.setup.clock.now_ms();
        let wait =
            until.map_or(WAIT_MAX, |time| Duration::from_millis(time.saturating_sub(now)).min(WAIT_MAX));
        if self.at_encoder == 0 {
            self.setup.clock.wait(wait);
            return Ok(Event::Tick);
        }
        match self.results.recv_timeout(wait) {
            Ok(Done::Encoded { batch, answer, receipt }) => self.take_back(batch, answer, receipt),
            Ok(Done::Vouched(answer)) => {
                self.count_busy();
                self.at_encoder -= 1;
                events.extend(self.vouched_by(answer)?);
                Ok(Event::Tick)
            }
            Err(RecvTimeoutError::Timeout) => Ok(Event::Tick),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::conflict("a worker of the backfill", "it died; this is a defect of the encoder"))
            }
        }
    }

    /// Looks how the upgrade stands, and catches up. Where the last claim was empty, a follower also asks
    /// whether anything waits.
    fn look(&mut self, last_claim_was_empty: bool) -> Result<Event> {
        let follows = self.setup.limits.follow;
        let record = Recorded::expect(self.setup.store)?.record;
        let is_back = matches!(record.phase, Phase::RolledBack | Phase::Abandoned);
        let is_other = !record.is_between(&self.record.old.name, &self.record.new.name);
        if is_other || (is_back && !self.rolled_back && !follows) {
            return Ok(Event::Looked {
                items: self.counts.0,
                native_before: self.counts.1,
                request: record.request,
                rolled_back: true,
                is_over: is_other,
                others: 0,
                waits: false,
            });
        }
        self.rolled_back = is_back;
        let BackfillSetup { store, clock, worker, .. } = *self.setup;
        let adapts = !follows || self.turn.take(store, worker, clock.now_ms())?;
        if adapts && clock.now_ms() >= self.catch_up_from_ms {
            self.catch_up(&record, CATCH_UP_MAX_MS)?;
        }
        let waits = !follows || !last_claim_was_empty || {
            // Items without a vector come first.
            let next = Scan::new(self.space, Select::WorstFirst, 1).without_contents();
            let next = store.scan(&next)?;
            self.turn.note_lacking(next.first().is_some_and(|first| first.state.is_none()));
            !next.is_empty()
        };
        if waits {
            self.share_spending()?;
        }
        if let Some(what) = self.setup.encoder.awaits() {
            self.observer.observe(&Observation::Awaits { what: &what });
        }
        let now = clock.now_ms();
        // An idle follower counts nothing: it need not know what it has not changed.
        let may_differ = !follows || self.counted_at != Some((self.written, self.caught_up));
        if may_differ && now >= self.count_from_ms {
            self.counted_at = Some((self.written, self.caught_up));
            let counts = self.setup.store.counts(self.space)?;
            // Writes of this run are counted apart: a look may come between a write and the event that tells
            // of it.
            self.counts = (counts.items, counts.native as i64 - self.written as i64);
            if let Some(counted) = self.counted {
                counted(&counts);
            }
            let counted = self.setup.clock.now_ms();
            self.count_from_ms = (now + COUNT_EVERY_MS).max(counted + COUNT_RESTS * (counted - now));
        }
        let others = match self.setup.limits.rate {
            Some(_) => {
                let is_other = |at_work: &AtWork| at_work.worker != self.setup.worker;
                self.setup.store.at_work(self.space)?.into_iter().filter(is_other).count() as u64
            }
            None => 0,
        };
        let (items, native_before) = self.counts;
        let (request, rolled_back, is_over) = (record.request, is_back && follows, false);
        Ok(Event::Looked { items, native_before, request, rolled_back, is_over, others, waits })
    }

    /// Tells the observer that a follower has begun or ceased to rest. When one begins, its writes are
    /// settled.
    fn show_rest(&mut self, state: &Backfill) {
        let rests = state.why_idle();
        if rests == self.resting || state.is_ending() {
            return;
        }
        self.resting = rests;
        self.observer.observe(&Observation::Rests { because: rests });
        if rests.is_some() && self.written > self.settled {
            self.settled = self.written;
            // Sending succeeds: the thread lives as long as this loop.
            self.rested.send(()).ok();
        }
    }

    /// Adapts items that came or changed meanwhile, from where the last catch-up ended, for `longest_ms` at
    /// most.
    fn catch_up(&mut self, record: &UpgradeRecord, longest_ms: u64) -> Result<()> {
        if self.filler.is_none() {
            return Ok(());
        }
        // Searches may still go to the new space after a rollback that died.
        let is_filled =
            record.phase == Phase::Filled || (self.rolled_back && record.is_served(self.setup.store)?);
        if !is_filled {
            return Ok(());
        }
        if record.adapter != self.adapter {
            // The map was fitted again meanwhile. Where the new one is not at hand, items that lack a vector
            // are the next to be embedded, and wait for that.
            let Some(adapter) = kept::adapter(self.setup.store, &record.adapter)? else {
                if self.setup.limits.follow {
                    // A follower without the map would leave new items for nobody to find.
                    let plan = UpgradeRecord { adapter: self.adapter.clone(), ..record.clone() };
                    return Recorded::expect_planned(self.setup.store, &plan).map(drop);
                }
                return Ok(());
            };
            self.filler = Some(Filler::new(&adapter, &record.old.name, &record.new.name, record.order)?);
            self.adapter.clone_from(&record.adapter);
        }
        let Some(filler) = &self.filler else { return Ok(()) };
        let (clock, observer) = (self.setup.clock, self.observer);
        let began = clock.now_ms();
        let epoch = record.epoch.unwrap_or_default();
        let may_go_on = || clock.now_ms() - began < longest_ms && !observer.wants_stop();
        let after = &mut self.catch_up_after;
        let found = match filler.catch_up_from(self.setup.store, epoch, after, &may_go_on, observer) {
            Ok(items) => items,
            // The upgrade was planned anew since the record was read: the process that did so catches up.
            Err(error) if error.is_superseded() => 0,
            Err(error) => return Err(error),
        };
        self.caught_up += found;
        if found > 0 {
            observer.observe(&Observation::CaughtUp { items: found });
        }
        let ended = clock.now_ms();
        // As long as items come faster than they are caught up with, the next look continues at once.
        let rests = if found > 0 && self.catch_up_after.is_some() { 0 } else { CATCH_UP_RESTS };
        self.catch_up_from_ms = ended + rests * ended.saturating_sub(began);
        Ok(())
    }

    /// Tells the store what this worker has used and learnt, and the encoder what other workers have.
    fn share_spending(&mut self) -> Result<()> {
        let BackfillSetup { store, encoder, .. } = self.setup;
        self.told = spending::share(*store, self.record, *encoder, self.told)?;
        manners::keep(*store, self.space, *encoder, &mut self.kept)
    }

    fn show(&mut self, state: &Backfill, items: u64, native_before: i64) -> Result<()> {
        if !self.shown {
            self.shown = true;
            let native = u64::try_from(native_before).unwrap_or(0);
            let limits = self.setup.limits;
            let to_go = match (self.setup.scope, limits.until) {
                (BackfillScope::Sample(size), _) => sample::waiting(self.setup.store, self.space, size)?,
                (BackfillScope::Gallery(_), until) => until.target(items).saturating_sub(native),
            };
            let total = limits.budget.map_or(to_go, |budget| budget.min(to_go));
            self.observer.observe(&Observation::Began { stage: "re-embedding", unit: "items", total });
        }
        self.observer.observe(&Observation::Backfilled { tally: state.tally });
        Ok(())
    }

    /// Takes claimed items in hand, except an item with which worker after worker has ended.
    fn take(&mut self, claimed: Claimed) -> Result<Event> {
        let Claimed { records, held_by_others, mut lost } = claimed;
        if self.setup.encoder.bulk_max().is_some() {
            // A process that ends in a day of waiting was not ended by a text that lies at a service.
            lost = 0;
        }
        if let ([record], LISTED_AFTER..) = (&records[..], lost) {
            let reason = format!(
                "{lost} workers in a row ended without a word, or were not heard of for the time of a lease, with this item in hand, the \
                 last {} of them with nothing else; it may be what ends them",
                LISTED_AFTER - ALONE_AFTER
            );
            let (key, revision) = (record.item.key, record.item.source_revision);
            return Ok(Event::GivenUp(Attempt { key, revision, failure: ItemFailure::Permanent(reason) }));
        }
        let keys = records.iter().map(|record| record.item.key).collect();
        let late = self.is_late(&records);
        let late = self.or_drain(late)?.unwrap_or(false);
        self.claimed.extend(records.into_iter().map(|record| (record.item.key, record)));
        Ok(Event::Claimed { keys, held_by_others, alone: lost >= ALONE_AFTER, late })
    }

    /// Whether everything that waits has come since the backfill began. The queue is asked only where all
    /// claimed items have; it answers by its first page, so a longer queue counts as not late.
    fn is_late(&mut self, claimed: &[Record]) -> Result<bool> {
        let began = self.began;
        let is_late = |record: &Record| record.item.source_revision > began;
        let is_gallery = matches!(self.setup.scope, BackfillScope::Gallery(_));
        if self.setup.limits.follow || !is_gallery || claimed.is_empty() || !claimed.iter().all(is_late) {
            return Ok(false);
        }
        let queue = Scan::new(self.space, Select::WorstFirst, QUEUE_PAGE).without_contents();
        let waiting = self.patiently(|run| run.setup.store.scan(&queue))?;
        Ok(waiting.len() < QUEUE_PAGE && waiting.iter().all(is_late))
    }

    /// Gives a batch to a worker. Returns the event of a batch of which nothing has to be sent.
    fn encode(&mut self, batch: u64, keys: &[ItemKey]) -> Option<Event> {
        let mut records: Vec<Record> = keys.iter().filter_map(|key| self.claimed.remove(key)).collect();
        if self.setup.encoder.reads_source_alone() {
            let known = match self.known(&records) {
                Ok(known) => known,
                Err(error) => return Some(self.fail(batch, error)),
            };
            let (sent, copies) = split_by_source(records, known);
            if sent.is_empty() {
                return Some(self.sort_answers(
                    batch,
                    Vec::new(),
                    Vec::new(),
                    copies,
                    self.setup.encoder.receipt(),
                ));
            }
            records = sent;
            self.copies.insert(batch, copies);
        }
        let found = records.iter().map(|record| self.documents.find(record)).collect();
        let records = Arc::new(records);
        self.records.insert(batch, Arc::clone(&records));
        self.ask(Job::Encode { batch, records, found });
        None
    }

    /// Returns the vectors of items whose source was embedded before, in the order of the items.
    fn known(&mut self, records: &[Record]) -> Result<Vec<Option<Vec<f32>>>> {
        let sources = match self.sources.take() {
            Some(sources) => sources,
            None => self.patiently(|run| Sources::of_natives(run.setup.store, run.space))?,
        };
        let before: Vec<Option<Embedded>> = records.iter().map(|record| sources.find(record)).collect();
        self.sources = Some(sources);
        let unwritten = |before: Embedded| {
            let mut unwritten = self.vectors.values().flatten();
            let found = unwritten.find(|(record, _)| Embedded::from_record(record) == before);
            found.map(|(_, vector)| vector.clone())
        };
        let mut known: Vec<_> = before.iter().map(|before| before.and_then(unwritten)).collect();
        let asked: Vec<(usize, Embedded)> = before
            .into_iter()
            .enumerate()
            .filter_map(|(at, before)| before.filter(|_| known[at].is_none()).map(|before| (at, before)))
            .collect();
        if asked.is_empty() {
            return Ok(known);
        }
        let keys: Vec<ItemKey> = asked.iter().map(|(_, before)| before.key).collect();
        let there = self.patiently(|run| run.setup.store.vectors(run.space, &keys))?;
        for ((at, before), vector) in asked.into_iter().zip(there) {
            known[at] = vector.filter(|vector| before.has(vector)).map(|vector| vector.vector);
        }
        Ok(known)
    }

    fn ask(&mut self, job: Job) {
        self.count_busy();
        self.at_encoder += 1;
        // Sending succeeds: the workers live as long as this loop, and end when the channel is dropped.
        drop(self.jobs.send(job));
    }

    /// Takes the held batches that the encoder vouches for by now, and returns their events.
    fn vouched(&mut self) -> Vec<Event> {
        let encoder = self.setup.encoder;
        let vouched = self.held.extract_if(.., |_, (receipt, _)| encoder.is_vouched_for(*receipt));
        vouched.map(|(batch, (_, failures))| Event::Encoded { batch, failures }).collect()
    }

    /// Decides on held batches after the encoder was asked to vouch for some, and returns their events.
    fn vouched_by(&mut self, answer: Result<()>) -> Result<Vec<Event>> {
        let asked = mem::take(&mut self.asked);
        // An encoder that cannot be asked says nothing against itself.
        let is_silent = |error: &Error| {
            error.is_retryable() || error.is_budget_spent() || error.is_unauthorised() || error.is_cancelled()
        };
        if let Err(error) = &answer
            && !is_silent(error)
        {
            let held = mem::take(&mut self.held);
            let held = held.into_keys().map(|batch| {
                self.withheld += self.vectors.remove(&batch).map_or(0, |vectors| vectors.len());
                self.documents.let_go(batch);
                self.fail(batch, error.clone())
            });
            return Ok(held.collect());
        }
        if let Err(error) = answer {
            // The vectors are paid for, and nothing speaks against them.
            let ids =
                |batch| self.vectors.get(batch).into_iter().flatten().map(|(record, _)| &record.item.id);
            let ids: Vec<String> = asked.iter().flat_map(ids).cloned().collect();
            self.unvouched += ids.len();
            self.patiently(|run| remember_unvouched(run.setup.store, run.space, &ids))?;
            if !(error.is_cancelled() || self.observer.wants_stop() || self.is_waited_out(&error)) {
                self.fatal.get_or_insert(error);
            }
        }
        let there = asked.into_iter().filter_map(|batch| Some((batch, self.held.remove(&batch)?.1)));
        Ok(there.map(|(batch, failures)| Event::Encoded { batch, failures }).collect())
    }

    fn take_back(&mut self, batch: u64, answer: Result<Answers>, receipt: u64) -> Result<Event> {
        self.count_busy();
        self.at_encoder -= 1;
        self.observer.reach(Place::BackfillEncoded)?;
        let Some(records) = self.records.remove(&batch) else { return Ok(Event::Tick) };
        let records = Arc::try_unwrap(records).unwrap_or_else(|shared| shared.to_vec());
        let copies = self.copies.remove(&batch).unwrap_or_default();
        match answer {
            Ok((answers, compared)) => {
                self.documents.compared(&compared);
                // A batch of which nothing was tried would be given back for ever, and nothing would come of
                // it.
                if let Some(Err(failure)) = answers.first()
                    && answers.iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_))))
                {
                    return Ok(self.fail(batch, Error::conflict("the encoder tried no item", failure)));
                }
                let event = self.sort_answers(batch, records, answers, copies, receipt);
                if matches!(event, Event::Held { .. }) {
                    self.observer.reach(Place::BackfillHeld)?;
                }
                Ok(event)
            }
            Err(error) => Ok(self.fail(batch, error)),
        }
    }

    /// Sorts the items of a batch into vectors and failures. The items that were sent have answers, in order.
    /// Returns the event of the batch.
    fn sort_answers(
        &mut self,
        batch: u64,
        sent: Vec<Record>,
        answers: Vec<Result<Vec<f32>, ItemFailure>>,
        copies: Vec<(Record, Copied)>,
        receipt: u64,
    ) -> Event {
        let copy = |(record, copied)| match copied {
            Copied::Sent(place) => (record, answers[place].clone()),
            Copied::Vector(vector) => (record, Ok(vector)),
        };
        let copies: Vec<_> = copies.into_iter().map(copy).collect();
        self.copied += copies.iter().filter(|(_, answer)| answer.is_ok()).count() as u64;
        let (mut good, mut failures) = (Vec::with_capacity(sent.len() + copies.len()), Vec::new());
        if let Some(sources) = &mut self.sources {
            let embedded = sent.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            embedded.for_each(|(record, _)| sources.remember(record));
        }
        for (record, answer) in sent.into_iter().zip(answers).chain(copies) {
            match answer {
                Ok(vector) => good.push((record, vector)),
                // The item is not to blame: it waits in the store as before.
                Err(ItemFailure::Untried(_)) => {}
                Err(failure) => failures.push(Attempt {
                    key: record.item.key,
                    revision: record.item.source_revision,
                    failure,
                }),
            }
        }
        let waits = !(good.is_empty() || self.setup.encoder.is_vouched_for(receipt));
        self.vectors.insert(batch, good);
        if waits {
            // A batch that the store does not take into a document is lost with a death, like one in hand.
            drop(self.documents.keep(batch, &self.vectors[&batch]));
            self.held.insert(batch, (receipt, failures));
            return Event::Held { batch };
        }
        Event::Encoded { batch, failures }
    }

    fn count_busy(&mut self) {
        let now = self.setup.clock.now_ms();
        self.busy_ms += (now - self.busy_since_ms) * self.at_encoder as u64;
        self.busy_since_ms = now;
    }

    /// Whether an error of the encoder is over in a while, or keeps a follower from nothing but embedding.
    fn is_waited_out(&self, error: &Error) -> bool {
        self.setup.limits.follow && (error.is_retryable() || error.is_budget_spent())
    }

    /// Keeps the first error that no item can overcome; no item is to blame, so none is recorded as failed.
    /// An interruption that was asked for is no error.
    fn fail(&mut self, batch: u64, error: Error) -> Event {
        if !self.observer.wants_stop() && self.is_waited_out(&error) {
            self.observer.observe(&Observation::EncoderAway { error: &error });
            return Event::Declined { batch, for_good: error.is_budget_spent() };
        }
        if !(error.is_cancelled() || self.observer.wants_stop()) {
            // An error that says that the encoder is another one is worth more than one about how an answer
            // failed to come.
            self.fatal =
                self.fatal.take().filter(|first| first.is_conflict() || !error.is_conflict()).or(Some(error));
        }
        Event::Returned { batch }
    }

    /// Writes the vectors of a batch and returns what became of each. Vectors that the store has not taken
    /// are left out: an event tells of them.
    fn write(&mut self, batch: u64, events: &mut VecDeque<Event>) -> Result<Vec<(ItemKey, WriteOutcome)>> {
        let (records, vectors): (Vec<Record>, Vec<Vec<f32>>) =
            self.vectors.remove(&batch).unwrap_or_default().into_iter().unzip();
        let write = |(record, vector): (&Record, Vec<f32>)| {
            let adapted = record.vector.as_ref().filter(|before| before.provenance == Provenance::Adapted);
            let squared_error = adapted
                .map(|adapted| rehang_core::squared_distance(&adapted.vector, &vector) as f32)
                .filter(|error| error.is_finite());
            VectorWrite { squared_error, ..VectorWrite::native(&record.item, vector) }
        };
        let writes: Vec<VectorWrite> = records.iter().zip(vectors).map(write).collect();
        let outcomes = self.patiently(|run| run.setup.store.write_vectors(run.space, None, &writes))?;
        self.written += written_of(&outcomes);
        self.documents.let_go(batch);
        self.documents.written(writes.iter().map(|write| write.key));
        self.observer.reach(Place::BackfillWritten)?;
        let not_taken = self.not_taken(&records, &outcomes)?;
        if !not_taken.is_empty() {
            events.push_back(Event::NotTaken { batch, keys: not_taken.iter().copied().collect() });
        }
        let mut told = Vec::with_capacity(outcomes.len());
        for ((record, write), outcome) in records.into_iter().zip(writes).zip(outcomes) {
            if not_taken.contains(&write.key) {
                self.untaken.insert(write.key, (record, write.vector));
            } else {
                told.push((write.key, outcome));
            }
        }
        Ok(told)
    }

    /// Returns items whose vectors were not written, although the items are unchanged and wait for a vector.
    fn not_taken(&mut self, records: &[Record], outcomes: &[WriteOutcome]) -> Result<BTreeSet<ItemKey>> {
        let is_open =
            |outcome: &WriteOutcome| matches!(outcome, WriteOutcome::Changed | WriteOutcome::AlreadyThere);
        let open =
            || records.iter().zip(outcomes).filter(|(_, outcome)| is_open(outcome)).map(|(record, _)| record);
        let ids: Vec<&str> = open().map(|record| record.item.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let keys: Vec<ItemKey> = open().map(|record| record.item.key).collect();
        let (there, made_by) = self.patiently(|run| {
            Ok((run.setup.store.get(&ids)?, run.setup.store.provenances(run.space, &keys)?))
        })?;
        let waits = |(record, (there, made_by)): (&Record, (Option<Item>, Option<Provenance>))| {
            let is_same = there.is_some_and(|there| {
                there.key == record.item.key && there.source_revision == record.item.source_revision
            });
            (is_same && matches!(made_by, None | Some(Provenance::Adapted))).then_some(record.item.key)
        };
        Ok(open().zip(there.into_iter().zip(made_by)).filter_map(waits).collect())
    }
}
