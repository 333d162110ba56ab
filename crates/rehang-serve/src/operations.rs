//! Long verbs as operations: asked for by one request, followed by others, and recorded in the gallery, so that
//! another service goes on with what a dead one has begun.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rehang_core::{Error, Progress, ProgressSnapshot, Result};
use rehang_fit::Method;
use rehang_store::Store;
use rehang_upgrade::{Ending, Enough, PairsFiles, PairsOptions, Recorded, RunOptions, Serving, Upgrade};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::addresses::Addresses;
use crate::events::{Events, value};
use crate::problem::ProblemDetails;

/// Documents of the gallery that hold the operations and the trail.
const OPERATIONS: &str = "operations of the service";
const TRAIL: &str = "trail of the service";
/// Number of operations that are kept after their end, in any case and for their keys, and of entries of the
/// trail.
const OPERATIONS_MAX: usize = 50;
const OPERATIONS_WITH_KEYS_MAX: usize = 1000;
const TRAIL_MAX: usize = 1000;
/// Time that an operation with a key is kept after its end, at least.
const KEY_KEPT_MS: u64 = 3_600_000;
/// Largest number of bytes of an option that is a text.
const TEXT_BYTES_MAX: usize = 100;
/// Number of operations that one service carries out at the same time.
const AT_ONCE_MAX: usize = 8;
/// Time between two tries to record the end of an operation.
const RECORD_EVERY: Duration = Duration::from_secs(2);
/// Time after which an operation whose service was not heard of is taken up by another one.
const HEARD_WITHIN_MS: u64 = 30_000;

rehang_core::named! {
    /// Verb that takes a while.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum LongVerb ("verb") {
        /// Draws pairs.
        Pairs = "pairs",
        /// Fits a map.
        Fit = "fit",
        /// Makes the report.
        Report = "report",
        /// Fills the new space.
        Start = "start",
        /// Lets searches go to the new space.
        Switch = "switch",
        /// Re-embeds items.
        Run = "run",
        /// Asks whether another map pays.
        Refit = "refit",
        /// Makes a bridge, or takes it away.
        Bridge = "bridge",
        /// Lets searches go back.
        Rollback = "rollback",
        /// Drops the old space.
        Finish = "finish",
    }
}

impl LongVerb {
    /// Whether the same verb goes on where a process died in it. The others are over in a moment, and a
    /// person looks at the status before asking again.
    fn goes_on(self) -> bool {
        !matches!(self, Self::Switch | Self::Rollback | Self::Bridge)
    }
}

/// Options of a verb; each verb has its own, and refuses the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerbOptions {
    /// `pairs`: items of the sample at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<usize>,
    /// `fit`: name of the method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `start`: embed everything and map nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain: Option<bool>,
    /// `switch`: `mixed`, `fused` or `either`; by default what is proven to find more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub serving: Option<Serving>,
    /// `switch`, `finish`: whatever the forecast, or what is left, says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anyway: Option<bool>,
    /// `run`: how far it goes, such as `"40%"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// `run`, `pairs`: items a second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// `run`, `pairs`: items that become native at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<u64>,
    /// `bridge`: take it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off: Option<bool>,
    /// `resume`: try failed items again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_failed: Option<bool>,
    /// `resume`: put native vectors back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub re_embed: Option<bool>,
}

impl VerbOptions {
    /// Fails where an option is given that the verb does not take, and where a text is too long.
    ///
    /// # Errors
    ///
    /// An invalid option.
    pub fn expect_only(&self, verb: &str) -> Result<()> {
        let taken: &[&str] = match verb {
            "pairs" => &["items", "rate", "budget"],
            "fit" => &["method"],
            "start" => &["plain"],
            "switch" => &["serving", "anyway"],
            "run" => &["until", "rate", "budget"],
            "bridge" => &["off"],
            "finish" => &["anyway"],
            "resume" => &["retry_failed", "re_embed"],
            _ => &[],
        };
        let options = value(self)?;
        let all = options.as_object().into_iter().flatten();
        let mut texts = all.filter_map(|(name, option)| Some((name, option.as_str()?)));
        if let Some((name, text)) = texts.find(|(_, text)| text.len() > TEXT_BYTES_MAX) {
            let length = format!("a text of {} bytes", text.len());
            return Err(Error::option(name, length, format!("at most {TEXT_BYTES_MAX}")));
        }
        let other =
            options.as_object().into_iter().flatten().find(|(name, _)| !taken.contains(&name.as_str()));
        match other {
            Some((name, value)) => Err(Error::option(name, value, format!("left out for {verb}"))),
            None => Ok(()),
        }
    }

    fn run(&self) -> Result<RunOptions> {
        let until = self.until.as_deref().map(str::parse).transpose()?;
        Ok(RunOptions { until, rate: self.rate, budget: self.budget, ..RunOptions::default() })
    }
}

rehang_core::named! {
    /// State that an operation is in.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum OperationState ("state") {
        /// Carried out now; where its service dies, another one goes on with it.
        Running = "running",
        /// Carried out; `result` is the verb's.
        Done = "done",
        /// Refused or failed; `problem` says why.
        Refused = "refused",
        /// Ended by a person, who asked it to stop.
        Cancelled = "cancelled",
        /// Ended by the death of its service, in a verb that does not go on by itself.
        Interrupted = "interrupted",
    }
}

/// Verb that was asked for, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerbOperation {
    /// Name of the operation.
    pub id: String,
    /// Verb that is carried out.
    pub verb: LongVerb,
    /// Options of the verb.
    pub options: VerbOptions,
    /// Name of the token that asked for it.
    pub asked_by: String,
    /// `Idempotency-Key` of the request, where it had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Service that carries it out.
    pub server: String,
    /// Time when it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Time when its service was heard of last.
    pub heard_ms: u64,
    /// Time when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// State that it is in.
    pub state: OperationState,
    /// Whether somebody asked it to stop.
    #[serde(default)]
    pub cancelled: bool,
    /// Items that were native when it began, for a budget that holds also where another service goes on.
    #[serde(default)]
    pub began_native: u64,
    /// Stage of the work.
    #[serde(default)]
    pub stage: String,
    /// Units of the stage that are done.
    #[serde(default)]
    pub done: u64,
    /// All units of the stage; 0 where their number is not known.
    #[serde(default)]
    pub total: u64,
    /// Result of the verb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Reason why it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ProblemDetails>,
}

/// Counts operations by their state.
pub fn by_state(all: &[VerbOperation]) -> Vec<(&'static str, usize)> {
    let count = |state| all.iter().filter(|operation| operation.state == state).count();
    OperationState::ALL.map(|state| (state.name(), count(state))).into()
}

impl VerbOperation {
    fn is_at(&mut self, snapshot: &ProgressSnapshot) {
        self.stage.clone_from(&snapshot.stage);
        (self.done, self.total) = (snapshot.done, snapshot.total);
    }
}

/// Entry of the trail: a change of the upgrade that somebody asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trailed {
    /// Time when it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the token that asked.
    pub who: String,
    /// Verb, with its options.
    pub what: String,
    /// Operation that carries it out, for a verb that takes a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Upgrade before: its phase, and the space that served.
    pub before: String,
    /// Upgrade after; none while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Reason why it was refused or failed, or that it was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Operations of a gallery, and those of them that this service carries out.
pub struct Operations {
    upgrade: Arc<Upgrade>,
    server: String,
    at_work: Mutex<BTreeMap<String, Progress>>,
    is_leaving: AtomicBool,
    events: Events,
    addresses: Arc<Addresses>,
}

impl Operations {
    pub fn new(
        upgrade: Arc<Upgrade>,
        server: String,
        events: Events,
        addresses: Arc<Addresses>,
    ) -> Arc<Self> {
        let (at_work, is_leaving) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { upgrade, server, at_work, is_leaving, events, addresses })
    }

    fn store(&self) -> &dyn Store {
        self.upgrade.store()
    }

    /// Lists all operations that are kept, the newest first.
    pub fn list(&self) -> Result<Vec<VerbOperation>> {
        Ok(read::<VerbOperation>(self.store(), OPERATIONS)?.1)
    }

    pub fn find(&self, id: &str) -> Result<Option<VerbOperation>> {
        Ok(self.list()?.into_iter().find(|operation| operation.id == id))
    }

    /// Lists the trail, the newest entry first.
    pub fn trail(&self) -> Result<Vec<Trailed>> {
        Ok(read(self.store(), TRAIL)?.1)
    }

    /// Begins an operation, or finds the one that the same token has asked for with the same key.
    ///
    /// # Errors
    ///
    /// An invalid option; a conflict where as many operations run as may, or the key was another verb's.
    pub fn begin(
        self: &Arc<Self>,
        verb: LongVerb,
        options: VerbOptions,
        asked_by: &str,
        key: Option<String>,
    ) -> Result<VerbOperation> {
        options.expect_only(verb.name())?;
        let now_ms = rehang_clock::unix_ms();
        let operation = VerbOperation {
            id: format!("{now_ms:x}-{:08x}", rand_u32()),
            verb,
            options,
            asked_by: asked_by.to_owned(),
            key,
            server: self.server.clone(),
            began_ms: now_ms,
            heard_ms: now_ms,
            ended_ms: None,
            state: OperationState::Running,
            cancelled: false,
            began_native: self.native(),
            stage: String::new(),
            done: 0,
            total: 0,
            result: None,
            problem: None,
        };
        let (mut earlier, mut is_full) = (None, false);
        update(self.store(), OPERATIONS, keep_running, |all: &mut Vec<VerbOperation>| {
            let has_key = |other: &&VerbOperation| {
                let is_of_key = other.key.is_some() && other.key == operation.key;
                is_of_key && other.asked_by == operation.asked_by
            };
            earlier = all.iter().find(has_key).cloned();
            let is_own = |other: &&VerbOperation| {
                other.state == OperationState::Running && other.server == self.server
            };
            is_full = earlier.is_none() && all.iter().filter(is_own).count() >= AT_ONCE_MAX;
            let begins = earlier.is_none() && !is_full;
            if begins {
                all.insert(0, operation.clone());
            }
            begins
        })?;
        if is_full {
            let detail = format!("{AT_ONCE_MAX} operations are under way here");
            return Err(Error::conflict("another operation", detail));
        }
        match earlier {
            Some(earlier) if (earlier.verb, &earlier.options) == (verb, &operation.options) => Ok(earlier),
            Some(earlier) => {
                let detail = format!("operation {} has it, with other options or another verb", earlier.id);
                Err(Error::conflict("the Idempotency-Key", detail))
            }
            None => {
                self.tell(&operation)?;
                self.spawn(operation.clone());
                Ok(operation)
            }
        }
    }

    /// Asks a running operation to stop, whichever service carries it out; whether there is one.
    pub fn cancel(&self, id: &str) -> Result<bool> {
        let mut is_there = false;
        update(self.store(), OPERATIONS, keep_running, |all: &mut Vec<VerbOperation>| {
            let is_it = |other: &&mut VerbOperation| other.id == id && other.state == OperationState::Running;
            let wanted = all.iter_mut().find(is_it);
            is_there = wanted.is_some();
            wanted.map(|operation| operation.cancelled = true).is_some()
        })?;
        if let Some(progress) = self.at_work().get(id) {
            progress.cancel();
        }
        Ok(is_there)
    }

    /// Counts the items that are native; 0 before there is a new space.
    fn native(&self) -> u64 {
        let new = &self.upgrade.configuration().new.name;
        self.store().counts(new).map_or(0, |counts| counts.native)
    }

    /// Asks all operations of this service to stop. They are left as running: another service, or this one
    /// when it comes again, goes on with them.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        self.at_work().values().for_each(Progress::cancel);
    }

    /// Whether an operation is under way here.
    pub fn is_at_work(&self) -> bool {
        !self.at_work().is_empty()
    }

    fn at_work(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Progress>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(self: &Arc<Self>, operation: VerbOperation) {
        let progress = Progress::default();
        self.at_work().insert(operation.id.clone(), progress.clone());
        // An operation that begins while the service ends is left to the next one.
        if self.is_leaving.load(Ordering::SeqCst) {
            progress.cancel();
        }
        let operations = Arc::clone(self);
        std::thread::spawn(move || {
            operations.carry_out(&operation, &progress);
            operations.at_work().remove(&operation.id);
        });
    }

    /// Tells who listens of an operation that has changed.
    fn tell(&self, operation: &VerbOperation) -> Result<()> {
        self.events.send("operation", &self.addresses.value(operation)?)
    }

    fn carry_out(&self, operation: &VerbOperation, progress: &Progress) {
        let what = format!("{} {}", operation.verb.name(), json!(operation.options));
        let began = self.trail_begins(operation, &what);
        let verb = || carry_out(&self.upgrade, operation, self.native(), progress);
        let defect = |_| Err(ProblemDetails::defect("the verb", "a panic, which its thread has reported"));
        let outcome = catch_unwind(AssertUnwindSafe(verb)).map_or_else(defect, Ok);
        let is_cancelled = matches!(&outcome, Ok(Err(error)) if error.is_cancelled());
        let (state, result, problem_details) = match outcome {
            Ok(Ok(result)) => (OperationState::Done, Some(result), None),
            Ok(Err(error)) if error.is_cancelled() => (OperationState::Cancelled, None, None),
            Ok(Err(error)) => (OperationState::Refused, None, Some(ProblemDetails::from(error))),
            Err(defect) => (OperationState::Refused, None, Some(defect)),
        };
        let id = &operation.id;
        let logged = |problem: ProblemDetails| problem.logged(&format!("operation {id}"), &self.addresses);
        let problem_details = problem_details.map(logged);
        let problem = problem_details.as_ref().map(|problem| problem.detail.clone());
        let who = &operation.asked_by;
        let recorded = self.find(id).ok().flatten();
        let is_anothers = recorded.as_ref().is_some_and(|recorded| recorded.server != self.server);
        // Whoever comes next goes on with what a stopping service leaves.
        let is_asked_to_end = recorded.is_some_and(|recorded| recorded.cancelled);
        let is_left =
            is_cancelled && (is_anothers || (self.is_leaving.load(Ordering::SeqCst) && !is_asked_to_end));
        match &problem {
            Some(problem) => tracing::warn!(operation = id, who, what, problem, "refused"),
            None if is_left => tracing::info!(operation = id, who, what, "left to the next service"),
            None if is_cancelled => tracing::info!(operation = id, who, what, "cancelled"),
            None => tracing::info!(operation = id, who, what, "done"),
        }
        // The trail first: whoever sees that an operation has ended finds it there.
        let trailed = match problem.as_deref() {
            _ if is_left => Ok(()),
            None if is_cancelled => self.trail_ends(id, Some("cancelled")),
            problem => self.trail_ends(id, problem),
        };
        let mut told = None;
        let mut record = || {
            update(self.store(), OPERATIONS, keep_running, |all: &mut Vec<VerbOperation>| {
                let is_own = |other: &&mut VerbOperation| other.id == *id && other.server == self.server;
                let Some(own) = all.iter_mut().find(is_own) else { return false };
                if is_left {
                    own.heard_ms = 0;
                    return true;
                }
                own.ended_ms = Some(rehang_clock::unix_ms());
                own.is_at(&progress.snapshot());
                (own.state, own.result, own.problem) = (state, result.clone(), problem_details.clone());
                told = Some(own.clone());
                true
            })
        };
        // An end that cannot be written now is written later: without it, the verb would be carried out again.
        let mut ended = record();
        while let Err(error) = &ended
            && !self.is_leaving.load(Ordering::SeqCst)
        {
            tracing::error!(operation = id, %error, "its end cannot be recorded yet");
            rehang_clock::wait(RECORD_EVERY);
            ended = record();
        }
        let ended = ended.and_then(|_| told.map_or(Ok(()), |told| self.tell(&told)));
        for error in [began, trailed, ended].into_iter().filter_map(Result::err) {
            tracing::error!(operation = id, %error, "what became of it is not recorded");
        }
    }

    /// Writes an operation into the trail when it begins; one that another service began stands there.
    fn trail_begins(&self, operation: &VerbOperation, what: &str) -> Result<()> {
        let entry = Trailed {
            at_ms: operation.began_ms,
            who: operation.asked_by.clone(),
            what: what.to_owned(),
            operation: Some(operation.id.clone()),
            before: self.stands(),
            after: None,
            problem: None,
        };
        self.change_trail(|all| {
            let is_new = all.iter().all(|other| other.operation != entry.operation);
            if is_new {
                all.insert(0, entry.clone());
            }
            is_new
        })
    }

    fn trail_ends(&self, id: &str, problem: Option<&str>) -> Result<()> {
        let after = self.stands();
        self.change_trail(|all| {
            let entry = all.iter_mut().find(|entry| entry.operation.as_deref() == Some(id));
            let ends = |entry: &mut Trailed| {
                (entry.after, entry.problem) = (Some(after.clone()), problem.map(str::to_owned));
            };
            entry.map(ends).is_some()
        })
    }

    fn change_trail(&self, change: impl FnMut(&mut Vec<Trailed>) -> bool) -> Result<()> {
        update(self.store(), TRAIL, |all| all.truncate(TRAIL_MAX), change).map(drop)
    }

    /// Writes an entry of the trail for a verb that is over at once; `before` is what [`Operations::stands`]
    /// gave.
    pub fn note(&self, who: &str, what: String, before: String, problem: Option<String>) -> Result<()> {
        let entry = Trailed {
            at_ms: rehang_clock::unix_ms(),
            who: who.to_owned(),
            what,
            operation: None,
            before,
            after: Some(self.stands()),
            problem,
        };
        self.change_trail(|all| {
            all.insert(0, entry.clone());
            true
        })
    }

    /// Says in a few words how the upgrade stands.
    pub fn stands(&self) -> String {
        let recorded = Recorded::read(self.store()).ok().flatten();
        let phase = recorded.map(|recorded| recorded.record.phase.name());
        let serving = self.store().serving().ok().flatten();
        format!("{}, {} serves", phase.unwrap_or("no upgrade"), serving.as_deref().unwrap_or("nothing"))
    }

    /// Says that this service is there and how far its operations are, and takes up what services that are
    /// gone have left. Gives all operations.
    pub fn tend(self: &Arc<Self>) -> Result<Vec<VerbOperation>> {
        if self.is_leaving.load(Ordering::SeqCst) {
            return self.list();
        }
        let now_ms = rehang_clock::unix_ms();
        let snapshots: BTreeMap<String, _> =
            self.at_work().iter().map(|(id, progress)| (id.clone(), progress.snapshot())).collect();
        let (mut changed, mut to_carry_out) = (Vec::new(), Vec::new());
        let looks_over = |operation: &VerbOperation| {
            operation.state == OperationState::Running
                && !snapshots.contains_key(&operation.id)
                && now_ms.saturating_sub(operation.heard_ms) > HEARD_WITHIN_MS
        };
        let all = update(self.store(), OPERATIONS, keep_running, |all: &mut Vec<VerbOperation>| {
            (changed, to_carry_out) = (Vec::new(), Vec::new());
            for operation in all.iter_mut().filter(|operation| operation.state == OperationState::Running) {
                if let Some(snapshot) = snapshots.get(&operation.id) {
                    let is_lost = operation.server != self.server;
                    if (is_lost || operation.cancelled)
                        && let Some(progress) = self.at_work().get(&operation.id)
                    {
                        progress.cancel();
                    }
                    if is_lost {
                        continue;
                    }
                    operation.heard_ms = now_ms;
                    operation.is_at(snapshot);
                } else if looks_over(operation) && operation.verb.goes_on() && !operation.cancelled {
                    operation.server.clone_from(&self.server);
                    operation.heard_ms = now_ms;
                    to_carry_out.push(operation.clone());
                } else if looks_over(operation) {
                    let (cancelled, interrupted) = (OperationState::Cancelled, OperationState::Interrupted);
                    operation.state = if operation.cancelled { cancelled } else { interrupted };
                    operation.ended_ms = Some(now_ms);
                } else {
                    continue;
                }
                changed.push(operation.clone());
            }
            !changed.is_empty()
        })?;
        for operation in to_carry_out {
            tracing::info!(operation = operation.id, "goes on here, since its service is gone");
            self.spawn(operation);
        }
        for operation in &changed {
            let why = match operation.state {
                OperationState::Cancelled => Some("cancelled"),
                OperationState::Interrupted => Some("its service is gone"),
                OperationState::Running | OperationState::Done | OperationState::Refused => None,
            };
            if why.is_some() {
                self.trail_ends(&operation.id, why)?;
            }
            self.tell(operation)?;
        }
        Ok(all)
    }
}

/// Carries out the verb of an operation; `native` items are so by now.
fn carry_out(
    upgrade: &Upgrade,
    operation: &VerbOperation,
    native: u64,
    progress: &Progress,
) -> Result<Value> {
    let mut options = operation.options.clone();
    // A budget holds for all services that carry the operation out.
    let spent = native.saturating_sub(operation.began_native);
    options.budget = options.budget.map(|budget| budget.saturating_sub(spent));
    let flag = |flag: Option<bool>| flag.unwrap_or(false);
    match operation.verb {
        LongVerb::Pairs => {
            let mut pairs = PairsOptions { run: options.run()?, ..PairsOptions::default() };
            pairs.items = options.items.unwrap_or(pairs.items);
            let drawn = upgrade.pairs(&pairs, &PairsFiles::default(), None, progress)?;
            if drawn.enough == Enough::Ended(Ending::Interrupted) {
                progress.check()?;
            }
            value(&drawn)
        }
        LongVerb::Fit => {
            let method = options.method.as_deref().map_or(Ok(Method::default()), str::parse)?;
            Ok(upgrade.fit(method, None, progress)?.to_json())
        }
        LongVerb::Report => {
            let reported = upgrade.report(progress)?;
            let warnings: Vec<String> = reported.findings.iter().map(ToString::to_string).collect();
            Ok(json!({ "warnings": warnings }))
        }
        LongVerb::Start if flag(options.plain) => value(&upgrade.start_plain(progress)?),
        LongVerb::Start => value(&upgrade.start(progress)?),
        LongVerb::Switch => {
            let (switched, findings) = upgrade.switch(options.serving, flag(options.anyway))?;
            let warnings: Vec<String> = findings.iter().map(ToString::to_string).collect();
            Ok(json!({ "switched": value(&switched)?, "warnings": warnings }))
        }
        LongVerb::Run => {
            let run = upgrade.run(&options.run()?, None, progress)?;
            // Whether it was cancelled or left is for the caller to tell.
            if run.summary.ending == Ending::Interrupted {
                progress.check()?;
            }
            value(&run)
        }
        LongVerb::Refit => value(&upgrade.refit(progress)?),
        LongVerb::Bridge if flag(options.off) => value(&upgrade.remove_bridge()?),
        LongVerb::Bridge => value(&upgrade.bridge(progress)?),
        LongVerb::Rollback => value(&upgrade.rollback()?),
        LongVerb::Finish => value(&upgrade.finish(flag(options.anyway), progress)?),
    }
}

/// Reads a list that a document holds, with its version.
fn read<T: for<'a> Deserialize<'a>>(store: &dyn Store, name: &str) -> Result<(Option<u64>, Vec<T>)> {
    let Some((version, text)) = store.document(name)? else { return Ok((None, Vec::new())) };
    let all = serde_json::from_str(&text).map_err(|error| Error::corrupt(name, error))?;
    Ok((Some(version), all))
}

/// Drops the operations that ended first, where there are too many; those that run stay, and for a while those
/// that may be asked for again by their keys.
fn keep_running(all: &mut Vec<VerbOperation>) {
    let mut ends: Vec<u64> = all.iter().filter_map(|operation| operation.ended_ms).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    let Some(&too_old) = ends.get(OPERATIONS_MAX) else { return };
    let forgotten = rehang_clock::unix_ms().saturating_sub(KEY_KEPT_MS);
    let too_old_for_keys = ends.get(OPERATIONS_WITH_KEYS_MAX).map_or(forgotten, |&end| end.max(forgotten));
    all.retain(|operation| {
        let last = if operation.key.is_some() { too_old.min(too_old_for_keys) } else { too_old };
        operation.ended_ms.is_none_or(|end| end > last)
    });
}

/// Changes a list that a document holds, again where another process was faster; it is left as it is where
/// `change` gives false. Gives the list as it lies there then.
fn update<T: Serialize + for<'a> Deserialize<'a>>(
    store: &dyn Store,
    name: &str,
    shorten: impl Fn(&mut Vec<T>),
    mut change: impl FnMut(&mut Vec<T>) -> bool,
) -> Result<Vec<T>> {
    loop {
        let (version, mut all) = read::<T>(store, name)?;
        if !change(&mut all) {
            return Ok(all);
        }
        shorten(&mut all);
        let text = serde_json::to_string(&all).map_err(|error| Error::corrupt(name, error))?;
        match store.set_document(name, version, &text) {
            Err(error) if error.is_changed_meanwhile() => {}
            outcome => return outcome.map(|_| all),
        }
    }
}

fn rand_u32() -> u32 {
    use std::hash::{BuildHasher, RandomState};

    RandomState::new().hash_one(0_u8) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_with_a_key_is_kept_for_an_hour_where_there_is_room() {
        let now_ms = rehang_clock::unix_ms();
        let ended = |ended_ms: u64, key: Option<&str>| -> VerbOperation {
            let operation = json!({
                "id": ended_ms.to_string(), "verb": "bridge", "options": {}, "asked_by": "ops", "key": key,
                "server": "here", "began_ms": 1, "heard_ms": 1, "ended_ms": ended_ms, "state": "done",
            });
            serde_json::from_value(operation).unwrap()
        };
        let kept = |keyed: u64, others: u64| {
            let others = (0..others).map(|number| ended(now_ms - number, None));
            let keyed = [keyed, now_ms - KEY_KEPT_MS - 1].map(|end| ended(end, Some("k")));
            let mut all: Vec<_> = others.chain(keyed).collect();
            keep_running(&mut all);
            let keys = all.iter().filter(|operation| operation.key.is_some()).count();
            (keys, all.len() - keys)
        };
        let earlier = now_ms - KEY_KEPT_MS / 2;
        assert_eq!(kept(earlier, 60), (1, 50));
        assert_eq!(kept(earlier, 1001), (0, 50));
    }
}
