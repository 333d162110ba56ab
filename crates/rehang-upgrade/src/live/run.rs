//! Backfill loop: the one place that performs what [`Backfill`] decides. It reads worst first, lets workers
//! embed, and writes conditionally.

mod catching_up;
mod counting;
mod leases;
mod patience;
mod settling;
mod setup;
mod unwritten;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::thread;
use std::time::Duration;

use rehang_core::{Error, ErrorKind, Provenance, Remedy, Result};
use rehang_encode::{ItemFailure, Spent};
use rehang_store::{
    ALONE_AFTER, Claimed, Item, ItemKey, Ledger, Record, Revision, Scan, Select, VectorWrite, WriteOutcome,
};
use serde::Serialize;

use crate::live::backfill::{Action, Attempt, Backfill, Ending, Event, Request, Tally};
use crate::live::equal::{Copied, Embedded, Sources, split_by_source};
use crate::live::estimate::keep_rate;
use crate::live::faults::Place;
use crate::live::fill::written_of;
use crate::live::health::{SigmaHealth, health_of};
use crate::live::identity::{expect_same_on_account, remember_unvouched};
use crate::live::manners;
use crate::live::sample;
use crate::live::spending;
use crate::live::turn::Turn;
use crate::live::until::{Until, reaches};
use crate::live::unvouched::UnvouchedDocuments;
use crate::observe::{Observation, Observer};
use crate::places::index::prepare_index;
use crate::record::{Phase, Recorded, UpgradeRecord};

pub(crate) use counting::Counted;
pub use setup::{BackfillScope, BackfillSetup};

use catching_up::{CATCH_UP_MAX_MS, CatchUp};
use counting::GalleryCounts;
use leases::Leases;
use patience::{Patience, WAIT_MAX};
use settling::{Settling, forget_handicap};
use unwritten::Unwritten;
use workers::{Done, EncodedBatch, Job, SentBatch, Workers};

/// Workers in a row that ended with an item in hand, after which it is listed as failed. The last ones had
/// nothing else in hand.
const LISTED_AFTER: u32 = ALONE_AFTER + 2;
/// Items of the queue that are looked at to see whether one from before the backfill waits.
const QUEUE_PAGE: usize = 1000;
/// Bytes of a reason that are kept for a failed item.
const REASON_BYTES_MAX: usize = 1024;

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
/// the encoder does not [vouch for](rehang_encode::Encoder::is_vouched_for) yet lie in documents of the
/// gallery meanwhile. The next call embeds one of eight of these again, and takes the others where the new
/// vectors are those that lie there. While a worker's batch is written, a second worker keeps the encoder
/// busy; an only worker leaves it idle.
///
/// To an encoder that [reads the source alone](rehang_encode::Encoder::reads_source_alone), equal sources are
/// sent once: the other items that have one get its vector. This includes sources of earlier runs, for the
/// first 16,384 native items.
///
/// Items that fail are tried again, then listed; they never stop the others. An item that ends the process
/// itself (out of memory, say) cannot be caught. After two such ends, each of the items in hand is embedded
/// alone, and an item with which two more processes end is listed.
///
/// Several processes may run at once, on one machine or many: each leases what it works on, so no item is
/// embedded twice unless a process dies. Where others hold all that is left, it waits for them; items of a
/// dead process are taken over when its lease has run out ([`Limits::lease_ms`](crate::Limits::lease_ms)).
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

/// Backfills as [`backfill`] does, and tells `counted` what it counts.
pub(crate) fn backfill_beside(
    setup: &BackfillSetup<'_>,
    observer: &dyn Observer,
    is_compared: bool,
    counted: Option<&Counted<'_>>,
) -> Result<Summary> {
    let BackfillSetup { store, encoder, limits, clock, worker, .. } = *setup;
    let record = Recorded::expect(store)?.record;
    setup.expect_may_begin(&record)?;
    let filler = setup.filler(&record)?;
    let space = record.new.name.as_str();
    let learnt_text = manners::recall(store, space, encoder)?;
    let reported = if is_compared {
        spending::share(store, &record, encoder, encoder.spent())?
    } else {
        expect_same_on_account(store, &record, encoder)?
    };
    let began = store.newest_revision()?;
    // Items that an earlier process of this name still held are free: it ended without a word.
    store.renew(space, worker, Duration::ZERO)?;
    let documents = UnvouchedDocuments::open(store, space, record.new.dimension)?;
    let patience = Patience { clock, observer, is_endless: limits.follow };
    thread::scope(|scope| {
        let mut run = Run {
            setup,
            record: &record,
            space,
            observer,
            patience,
            leases: Leases::new(setup, space, patience),
            workers: Workers::start(scope, setup),
            settling: Settling::start(scope, setup, space, observer),
            turn: Turn::default(),
            catch_up: CatchUp::new(filler, record.adapter.clone()),
            counts: GalleryCounts::new(counted),
            rolled_back: matches!(record.phase, Phase::RolledBack | Phase::Abandoned),
            is_stage_shown: false,
            claimed: BTreeMap::new(),
            sources: None,
            copied: 0,
            unwritten: Unwritten::default(),
            documents,
            reported,
            learnt_text,
            fatal: None,
            began,
            began_ms: clock.now_ms(),
        };
        let summary = run.go();
        if summary.is_err() && run.workers.are_busy() {
            // Nobody takes in what is at the encoder any more, and nobody would hear a wish to end.
            encoder.interrupt();
        }
        if summary.is_err() && limits.follow && is_gone(store) {
            return Ok(run.released());
        }
        run.leave(summary)
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

/// Shortens a reason, for a list that may have a million of them.
fn start_of(reason: &str) -> String {
    let cut = reason.floor_char_boundary(REASON_BYTES_MAX);
    if cut == reason.len() { reason.to_owned() } else { format!("{}…", &reason[..cut]) }
}

/// Place of an action among those that are due together. Batches that came back are written before their
/// workers get the next one, so that a worker never holds more than one batch that a death would cost.
/// Everything else can wait until the workers have something to do.
fn rank(action: &Action) -> u8 {
    match action {
        Action::Write { .. } | Action::WriteAgain { .. } | Action::RecordFailures(_) => 0,
        Action::Encode { .. } => 1,
        _ => 2,
    }
}

/// Write of the vector of an item, with the squared error of the adapted vector that it replaces.
fn native_write((record, vector): (&Record, Vec<f32>)) -> VectorWrite {
    let adapted = record.vector.as_ref().filter(|before| before.provenance == Provenance::Adapted);
    let squared_error = adapted
        .map(|adapted| rehang_core::squared_distance(&adapted.vector, &vector) as f32)
        .filter(|error| error.is_finite());
    VectorWrite { squared_error, ..VectorWrite::native(&record.item, vector) }
}

/// A backfill while it runs.
struct Run<'a> {
    setup: &'a BackfillSetup<'a>,
    /// Record of the upgrade as it was when the backfill began.
    record: &'a UpgradeRecord,
    space: &'a str,
    observer: &'a dyn Observer,
    patience: Patience<'a>,
    leases: Leases<'a>,
    workers: Workers<'a>,
    settling: Settling,
    /// Turn to adapt what comes, which one of several followers has.
    turn: Turn,
    catch_up: CatchUp,
    counts: GalleryCounts<'a>,
    /// Whether the upgrade was rolled back at the last look.
    rolled_back: bool,
    /// Whether the observer knows the stage.
    is_stage_shown: bool,
    /// Items that were claimed and wait for an encoder, by key.
    claimed: BTreeMap<ItemKey, Record>,
    /// Sources and the items that have their vectors, where a source alone makes a vector: from the first
    /// batch on.
    sources: Option<Sources>,
    /// Items that got the vector of another item so far.
    copied: u64,
    unwritten: Unwritten,
    /// Documents where unvouched vectors lie meanwhile, beside those of other workers.
    documents: UnvouchedDocuments<'a>,
    /// Spending of the encoder when the store was told last.
    reported: Spent,
    /// Text of what encoders have learnt of their service, as the store holds it.
    learnt_text: Option<String>,
    /// First error that no item can overcome.
    fatal: Option<Error>,
    /// Newest revision when the backfill began.
    began: Revision,
    began_ms: u64,
}

impl Run<'_> {
    /// Goes on until the pure part ends: feeds it the events, and performs its actions.
    fn go(&mut self) -> Result<Summary> {
        let is_in_bulk = self.setup.encoder.bulk_max().is_some();
        if is_in_bulk {
            self.leases.outwait_the_dead()?;
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
            let renewed = self.leases.renew();
            self.or_drain(renewed)?;
            events.extend(self.unwritten.release_vouched(self.setup.encoder));
            let (next, mut actions) = state.step(self.setup.clock.now_ms(), event);
            state = next;
            self.settling.show_rest(&state, self.counts.written, self.observer);
            actions.sort_by_key(rank);
            for action in actions {
                match action {
                    Action::WaitUntil(time) => wait_until = Some(time),
                    Action::End(ending) => return self.end(&state, ending),
                    action => self.perform(action, &state, &mut events)?,
                }
            }
        }
    }

    /// Performs an action, and queues the events that answer it. The loop itself waits and ends.
    fn perform(&mut self, action: Action, state: &Backfill, events: &mut VecDeque<Event>) -> Result<()> {
        match action {
            Action::Look => events.push_back(self.look(state)?),
            Action::Claim { limit } => events.push_back(self.claim(limit, state)?),
            Action::Release { keys } => {
                let released = self.leases.give_back(&keys);
                self.or_drain(released)?;
            }
            Action::Encode { batch, keys } => events.extend(self.encode(batch, &keys)),
            Action::Vouch => self.ask_to_vouch(),
            Action::Write { batch } => self.write(batch, events)?,
            Action::WriteAgain { batch, keys } => {
                self.unwritten.gather_untaken(batch, &keys);
                self.write(batch, events)?;
            }
            Action::RecordFailures(attempts) => self.record_failures(attempts)?,
            Action::GiveUp(key) => self.give_up(key),
            Action::Refuse(refused) => self.refuse(&refused),
            Action::WaitUntil(_) | Action::End(_) => {}
        }
        Ok(())
    }

    /// Waits for a worker, for time to pass, or for a wish to end.
    fn next_event(&mut self, until: Option<u64>, events: &mut VecDeque<Event>) -> Result<Event> {
        let now_ms = self.setup.clock.now_ms();
        let wait =
            until.map_or(WAIT_MAX, |time| Duration::from_millis(time.saturating_sub(now_ms)).min(WAIT_MAX));
        match self.workers.wait(wait)? {
            Some(Done::Encoded(batch)) => self.take_answer(batch),
            Some(Done::Vouched(answer)) => {
                events.extend(self.take_comparison(answer)?);
                Ok(Event::Tick)
            }
            None => Ok(Event::Tick),
        }
    }

    /// Keeps an error of the store for the end while batches are at the encoder: they are paid for, so they
    /// are waited for and written first. A decision of another process ends the run at once.
    fn or_drain<T>(&mut self, answer: Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error)
                if (self.workers.are_busy() || self.unwritten.has_unvouched())
                    && !(error.is_conflict() || error.is_cancelled()) =>
            {
                self.fatal.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Looks how the upgrade stands, catches up, and shows how far the backfill is.
    fn look(&mut self, state: &Backfill) -> Result<Event> {
        let last_claim_was_empty = state.last_claim_was_empty();
        let answer = self.patience.ask(|| self.look_once(last_claim_was_empty));
        let event = self.or_drain(answer)?.unwrap_or(Event::Looked {
            items: self.counts.items,
            native_before: self.counts.native_before,
            request: Request::Run,
            rolled_back: false,
            is_over: false,
            others: 0,
            waits: true,
        });
        if self.fatal.is_none()
            && let Event::Looked { items, native_before, .. } = event
        {
            self.show(state, items, native_before)?;
        }
        Ok(event)
    }

    /// Looks how the upgrade stands, and catches up. Where the last claim was empty, a follower also asks
    /// whether anything waits.
    fn look_once(&mut self, last_claim_was_empty: bool) -> Result<Event> {
        let BackfillSetup { store, encoder, limits, .. } = *self.setup;
        let record = Recorded::expect(store)?.record;
        let is_back = matches!(record.phase, Phase::RolledBack | Phase::Abandoned);
        let is_other = !record.is_between(&self.record.old.name, &self.record.new.name);
        if is_other || (is_back && !self.rolled_back && !limits.follow) {
            return Ok(Event::Looked {
                items: self.counts.items,
                native_before: self.counts.native_before,
                request: record.request,
                rolled_back: true,
                is_over: is_other,
                others: 0,
                waits: false,
            });
        }
        self.rolled_back = is_back;
        self.adapt_what_came(&record)?;
        let waits = self.anything_waits(last_claim_was_empty)?;
        if waits {
            self.share_spending()?;
        }
        if let Some(what) = encoder.awaits() {
            self.observer.observe(&Observation::Awaits { what: &what });
        }
        self.counts.count_if_due(self.setup, self.space, self.catch_up.items)?;
        let others = if limits.rate.is_some() { self.leases.count_others()? } else { 0 };
        Ok(Event::Looked {
            items: self.counts.items,
            native_before: self.counts.native_before,
            request: record.request,
            rolled_back: is_back && limits.follow,
            is_over: false,
            others,
            waits,
        })
    }

    /// Catches up with items that came or changed, where that is due. Of several followers, one does.
    fn adapt_what_came(&mut self, record: &UpgradeRecord) -> Result<()> {
        let BackfillSetup { store, limits, clock, worker, .. } = *self.setup;
        let adapts = !limits.follow || self.turn.take(store, worker, clock.now_ms())?;
        if adapts && self.catch_up.is_due(clock.now_ms()) {
            self.catch_up_for(record, CATCH_UP_MAX_MS)?;
        }
        Ok(())
    }

    /// Adapts items that came or changed meanwhile, for `longest_ms` at most.
    fn catch_up_for(&mut self, record: &UpgradeRecord, longest_ms: u64) -> Result<()> {
        self.catch_up.go_on(self.setup, self.observer, record, self.rolled_back, longest_ms)
    }

    /// Whether anything waits in the queue. The store is asked only by a follower whose last claim was empty.
    fn anything_waits(&mut self, last_claim_was_empty: bool) -> Result<bool> {
        if !self.setup.limits.follow || !last_claim_was_empty {
            return Ok(true);
        }
        // Items without a vector come first.
        let beginning = Scan::new(self.space, Select::Queued, 1).without_contents();
        let next = self.setup.store.scan(&beginning)?;
        self.turn.note_lacking(next.first().is_some_and(|first| first.state.is_none()));
        Ok(!next.is_empty())
    }

    /// Tells the store what this worker has used and learnt, and the encoder what other workers have.
    fn share_spending(&mut self) -> Result<()> {
        let BackfillSetup { store, encoder, .. } = *self.setup;
        self.reported = spending::share(store, self.record, encoder, self.reported)?;
        manners::keep(store, self.space, encoder, &mut self.learnt_text)
    }

    /// Shows the observer how far the backfill is, and before that, once, how far it goes.
    fn show(&mut self, state: &Backfill, items: u64, native_before: i64) -> Result<()> {
        if !self.is_stage_shown {
            self.is_stage_shown = true;
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

    /// Claims items and takes them in hand.
    fn claim(&mut self, limit: usize, state: &Backfill) -> Result<Event> {
        let answer = self.leases.claim(limit);
        let mut claimed = self.or_drain(answer)?.unwrap_or_default();
        // Another worker has died since this one began; what it held may lie in documents by now.
        if claimed.lost > 0 && claimed.records.iter().all(|record| self.documents.find(record).is_none()) {
            let looked = self.patience.ask(|| self.documents.look());
            self.or_drain(looked)?;
        }
        if claimed.records.is_empty() && state.holds_nothing() {
            claimed.held_by_others += self.leases.give_back_unknown()?;
        }
        self.observer.reach(Place::BackfillClaimed)?;
        self.take(claimed)
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
    fn is_late(&self, claimed: &[Record]) -> Result<bool> {
        let BackfillSetup { store, scope, limits, .. } = *self.setup;
        let began = self.began;
        let is_late = |record: &Record| record.item.source_revision > began;
        if limits.follow || scope.is_sample() || claimed.is_empty() || !claimed.iter().all(is_late) {
            return Ok(false);
        }
        let queue = Scan::new(self.space, Select::Queued, QUEUE_PAGE).without_contents();
        let waiting = self.patience.ask(|| store.scan(&queue))?;
        Ok(waiting.len() < QUEUE_PAGE && waiting.iter().all(is_late))
    }

    /// Gives a batch to a worker. Returns the event of a batch of which nothing has to be sent.
    fn encode(&mut self, batch: u64, keys: &[ItemKey]) -> Option<Event> {
        let mut sent: Vec<Record> = keys.iter().filter_map(|key| self.claimed.remove(key)).collect();
        let mut copies = Vec::new();
        if self.setup.encoder.reads_source_alone() {
            let earlier_vectors = match self.earlier_vectors(&sent) {
                Ok(vectors) => vectors,
                Err(error) => return Some(self.fail(batch, error)),
            };
            (sent, copies) = split_by_source(sent, earlier_vectors);
            if sent.is_empty() {
                let receipt = self.setup.encoder.receipt();
                return Some(self.sort_answers(batch, sent, Vec::new(), copies, receipt));
            }
        }
        let unvouched_vectors = sent.iter().map(|record| self.documents.find(record)).collect();
        self.workers.give(Job::Encode(SentBatch { batch, sent, copies, unvouched_vectors }));
        None
    }

    /// Returns the vectors of items whose source was embedded before, in the order of the items.
    fn earlier_vectors(&mut self, records: &[Record]) -> Result<Vec<Option<Vec<f32>>>> {
        let BackfillSetup { store, .. } = *self.setup;
        let sources = match self.sources.take() {
            Some(sources) => sources,
            None => self.patience.ask(|| Sources::of_natives(store, self.space))?,
        };
        let embedded: Vec<Option<Embedded>> = records.iter().map(|record| sources.find(record)).collect();
        self.sources = Some(sources);
        let unwritten = |embedded| self.unwritten.find(embedded);
        let mut vectors: Vec<_> = embedded.iter().map(|embedded| embedded.and_then(unwritten)).collect();
        let written: Vec<(usize, Embedded)> = embedded
            .into_iter()
            .enumerate()
            .filter_map(|(place, embedded)| {
                embedded.filter(|_| vectors[place].is_none()).map(|embedded| (place, embedded))
            })
            .collect();
        if written.is_empty() {
            return Ok(vectors);
        }
        let keys: Vec<ItemKey> = written.iter().map(|(_, embedded)| embedded.key).collect();
        let stored_vectors = self.patience.ask(|| store.vectors(self.space, &keys))?;
        for ((place, embedded), vector) in written.into_iter().zip(stored_vectors) {
            vectors[place] = vector.filter(|vector| embedded.has(vector)).map(|vector| vector.vector);
        }
        Ok(vectors)
    }

    /// Takes the encoder's answer to a batch, and returns its event.
    fn take_answer(&mut self, encoded: EncodedBatch) -> Result<Event> {
        let EncodedBatch { batch, sent, copies, answer, receipt } = encoded;
        self.observer.reach(Place::BackfillEncoded)?;
        let (answers, compared_documents) = match answer {
            Ok(answer) => answer,
            Err(error) => return Ok(self.fail(batch, error)),
        };
        self.documents.compared(&compared_documents);
        // A batch of which nothing was tried would be given back for ever, and nothing would come of it.
        if let Some(Err(failure)) = answers.first()
            && answers.iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_))))
        {
            return Ok(self.fail(batch, Error::conflict("the encoder tried no item", failure)));
        }
        let event = self.sort_answers(batch, sent, answers, copies, receipt);
        if matches!(event, Event::Unvouched { .. }) {
            self.observer.reach(Place::BackfillUnvouched)?;
        }
        Ok(event)
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
        let (mut vectors, mut failures) = (Vec::with_capacity(sent.len() + copies.len()), Vec::new());
        if let Some(sources) = &mut self.sources {
            let embedded = sent.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            embedded.for_each(|(record, _)| sources.remember(record));
        }
        for (record, answer) in sent.into_iter().zip(answers).chain(copies) {
            match answer {
                Ok(vector) => vectors.push((record, vector)),
                // The item is not to blame: it waits in the store as before.
                Err(ItemFailure::Untried(_)) => {}
                Err(failure) => failures.push(Attempt {
                    key: record.item.key,
                    revision: record.item.source_revision,
                    failure,
                }),
            }
        }
        if vectors.is_empty() || self.setup.encoder.is_vouched_for(receipt) {
            self.unwritten.keep(batch, vectors);
            return Event::Encoded { batch, failures };
        }
        // A batch that the store does not take into a document is lost with a death, like one in hand.
        drop(self.documents.keep(batch, &vectors));
        self.unwritten.keep_unvouched(batch, vectors, receipt, failures);
        Event::Unvouched { batch }
    }

    /// Asks the encoder to vouch for what is unvouched.
    fn ask_to_vouch(&mut self) {
        // All batches may be vouched for by now, and events that say so be on their way.
        if self.unwritten.has_unvouched() {
            self.unwritten.note_question();
            self.workers.give(Job::Vouch);
        }
    }

    /// Decides on unvouched batches after the encoder was asked to vouch for some, and returns their events.
    fn take_comparison(&mut self, answer: Result<()>) -> Result<Vec<Event>> {
        // An encoder that cannot be asked says nothing against itself.
        let is_silent = |error: &Error| {
            error.is_retryable() || error.is_budget_spent() || error.is_unauthorised() || error.is_cancelled()
        };
        match answer {
            Err(error) if !is_silent(&error) => return Ok(self.throw_unvouched_away(&error)),
            Err(error) => self.keep_uncompared(error)?,
            Ok(()) => {}
        }
        Ok(self.unwritten.release_asked())
    }

    /// Throws all unvouched batches away, since the encoder has become another one, and returns their events.
    fn throw_unvouched_away(&mut self, error: &Error) -> Vec<Event> {
        let mut events = Vec::new();
        for batch in self.unwritten.throw_unvouched_away() {
            self.documents.let_go(batch);
            events.push(self.fail(batch, error.clone()));
        }
        events
    }

    /// Lets unvouched vectors be written that the encoder could not be asked about, since nothing speaks
    /// against them: the next run compares them first.
    fn keep_uncompared(&mut self, error: Error) -> Result<()> {
        let ids = self.unwritten.count_uncompared();
        self.patience.ask(|| remember_unvouched(self.setup.store, self.space, &ids))?;
        if !(error.is_cancelled() || self.observer.wants_stop() || self.is_waited_out(&error)) {
            self.fatal.get_or_insert(error);
        }
        Ok(())
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

    /// Writes the vectors of a batch, and queues the events that say what became of each.
    fn write(&mut self, batch: u64, events: &mut VecDeque<Event>) -> Result<()> {
        let (records, vectors): (Vec<Record>, Vec<Vec<f32>>) = self.unwritten.take(batch).into_iter().unzip();
        let writes: Vec<VectorWrite> = records.iter().zip(vectors).map(native_write).collect();
        let outcomes = self.patience.ask(|| self.setup.store.write_vectors(self.space, None, &writes))?;
        self.counts.written += written_of(&outcomes);
        self.documents.let_go(batch);
        self.documents.written(writes.iter().map(|write| write.key));
        self.observer.reach(Place::BackfillWritten)?;
        let untaken = self.untaken(&records, &outcomes)?;
        if !untaken.is_empty() {
            events.push_back(Event::Untaken { batch, keys: untaken.iter().copied().collect() });
        }
        let mut units = 0;
        let mut outcomes_by_key = Vec::with_capacity(outcomes.len());
        for ((record, write), outcome) in records.into_iter().zip(writes).zip(outcomes) {
            if untaken.contains(&write.key) {
                self.unwritten.keep_untaken(record, write.vector);
            } else {
                units += u64::from(outcome == WriteOutcome::Written);
                outcomes_by_key.push((write.key, outcome));
            }
        }
        self.observer.observe(&Observation::Advanced { units });
        events.push_back(Event::Written { batch, outcomes: outcomes_by_key });
        Ok(())
    }

    /// Returns items whose vectors were not written, although the items are unchanged and wait for a vector.
    fn untaken(&self, records: &[Record], outcomes: &[WriteOutcome]) -> Result<BTreeSet<ItemKey>> {
        let BackfillSetup { store, .. } = *self.setup;
        let is_open =
            |outcome: &WriteOutcome| matches!(outcome, WriteOutcome::Changed | WriteOutcome::AlreadyThere);
        let open =
            || records.iter().zip(outcomes).filter(|(_, outcome)| is_open(outcome)).map(|(record, _)| record);
        let ids: Vec<&str> = open().map(|record| record.item.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let keys: Vec<ItemKey> = open().map(|record| record.item.key).collect();
        let (items_now, provenances) =
            self.patience.ask(|| Ok((store.get(&ids)?, store.provenances(self.space, &keys)?)))?;
        let waits = |(record, (item, made_by)): (&Record, (Option<Item>, Option<Provenance>))| {
            let is_same = item.is_some_and(|item| {
                item.key == record.item.key && item.source_revision == record.item.source_revision
            });
            (is_same && matches!(made_by, None | Some(Provenance::Adapted))).then_some(record.item.key)
        };
        Ok(open().zip(items_now.into_iter().zip(provenances)).filter_map(waits).collect())
    }

    /// Lists items as failed, each with the beginning of its reason.
    fn record_failures(&mut self, attempts: Vec<Attempt>) -> Result<()> {
        let failures: Vec<(ItemKey, Revision, String)> = attempts
            .into_iter()
            .map(|attempt| (attempt.key, attempt.revision, start_of(attempt.failure.reason())))
            .collect();
        let recorded = self.patience.ask(|| self.setup.store.record_failures(self.space, &failures));
        self.or_drain(recorded)?;
        self.observer.reach(Place::FailuresRecorded)
    }

    /// Keeps the error for the end that the store does not take the vector of an item.
    fn give_up(&mut self, key: ItemKey) {
        let detail = format!(
            "it has not taken the vector of item {:?} for ten minutes, though the item is what it was: a trigger or a rule of the \
             application has the write ignored (the doctor looks for one), or a transaction has been at the item for so long. \
             Nothing was paid for twice",
            self.unwritten.untaken_id(key)
        );
        self.fatal.get_or_insert(Error::conflict(self.setup.store.name(), detail));
    }

    /// Keeps the error for the end that the encoder refuses everything.
    fn refuse(&mut self, refused: &[Attempt]) {
        let first_reason =
            refused.first().map_or_else(String::new, |attempt| start_of(attempt.failure.reason()));
        let detail = format!(
            "it refused each of the first {} items for good, so something is wrong with it or with all sources; none of them \
             is listed as failed. The first: {first_reason}",
            refused.len()
        );
        self.fatal.get_or_insert(Error::conflict("the encoder", detail));
    }

    /// Ends the backfill: nothing is in hand any more.
    fn end(&mut self, state: &Backfill, ending: Ending) -> Result<Summary> {
        let BackfillSetup { store, encoder, limits, clock, .. } = *self.setup;
        // Spending is shared after an error too: what was embedded until then is paid for.
        let shared = self.patience.ask(|| self.share_spending());
        let (ending, encoder_message) = match self.fatal.take() {
            None => (ending, None),
            Some(error) if error.is_budget_spent() => (Ending::EncoderBudgetSpent, Some(error.to_string())),
            Some(error) => {
                let natives = format!(
                    "the backfill ended after {} items were made native, which are kept",
                    state.tally.native
                );
                return Err(error.context(natives + &self.unwritten.doubts()));
            }
        };
        self.observer.observe(&Observation::Backfilled { tally: state.tally });
        shared?;
        self.end_catch_up(ending)?;
        // The time does not include the flush, which may look at indexes for a while.
        let worked_ms = clock.now_ms() - self.began_ms;
        // A follower spends most of its time waiting, and so does a batch API: their rates say nothing.
        if !limits.follow && encoder.bulk_max().is_none() {
            keep_rate(store, self.space, state.tally.native, worked_ms, &limits);
        }
        let indexed = self.prepare_index()?;
        // Other workers may have done what this one has not counted yet, all that was left included.
        let counts = self.patience.ask(|| store.counts(self.space))?;
        self.counts.tell(&counts);
        if counts.adapted == 0 {
            self.patience.ask(|| forget_handicap(store))?;
        }
        let ending = match (ending, limits.until) {
            (Ending::NothingLeft, Until::Fraction(share)) if reaches(&counts, share) => {
                Ending::ReachedFraction
            }
            (ending, _) => ending,
        };
        let summary = self.summary(ending, encoder_message, state.tally, (counts.items, counts.native));
        Ok(Summary { indexed, sigma: health_of(store, self.space)?, ..summary })
    }

    /// Ends a catch-up that stopped halfway, where no later look will continue it and nothing waits for this
    /// one.
    fn end_catch_up(&mut self, ending: Ending) -> Result<()> {
        let is_over = matches!(
            ending,
            Ending::NothingLeft | Ending::ReachedFraction | Ending::SpentBudget | Ending::EncoderBudgetSpent
        );
        if is_over && self.catch_up.is_halfway() {
            let record = Recorded::expect(self.setup.store)?.record;
            self.patience.ask(|| self.catch_up_for(&record, u64::MAX))?;
        }
        Ok(())
    }

    /// Makes the search index ready and returns whether it had to be made: by the end, all vectors that it
    /// was made of may have been replaced. A stop is not kept waiting for a new one. The index of a sample
    /// would be made again when the space is filled.
    fn prepare_index(&self) -> Result<bool> {
        let BackfillSetup { store, scope, .. } = *self.setup;
        if self.observer.wants_stop() || scope.is_sample() {
            return Ok(false);
        }
        match prepare_index(store, self.space, self.observer) {
            Err(error) if error.is_cancelled() => Ok(false),
            outcome => outcome,
        }
    }

    /// Leaves the gallery to other workers. Leases are given back after an error too: others need not wait
    /// for them to run out.
    fn leave(&mut self, summary: Result<Summary>) -> Result<Summary> {
        let BackfillSetup { store, worker, .. } = *self.setup;
        match self.observer.reach(Place::BackfillEnded) {
            Ok(()) => {
                self.turn.leave(store);
                self.documents.tidy();
                let released = store.release(self.space, worker, None);
                summary.and_then(|summary| released.map(|_| summary))
            }
            Err(death) => summary.and(Err(death)),
        }
    }

    /// Summarises what a follower did until its gallery was released; the store cannot be asked any more.
    fn released(&self) -> Summary {
        let native = self.counts.native();
        self.summary(
            Ending::Released,
            None,
            Tally { native: self.counts.written, ..Tally::default() },
            (self.counts.items.max(native), native),
        )
    }

    /// Summarises what this process knows; the caller gives the number of items of the gallery and of its
    /// native ones.
    fn summary(
        &self,
        ending: Ending,
        encoder_message: Option<String>,
        done: Tally,
        (items, native): (u64, u64),
    ) -> Summary {
        Summary {
            ending,
            encoder_said: encoder_message,
            done,
            items,
            native,
            copied: self.copied,
            caught_up: self.catch_up.items,
            indexed: false,
            spent: self.setup.encoder.spent(),
            elapsed_ms: self.setup.clock.now_ms() - self.began_ms,
            encoder_busy_ms: self.workers.busy_ms(),
            sigma: None,
        }
    }
}
