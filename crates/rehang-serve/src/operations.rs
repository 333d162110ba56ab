//! Long verbs as operations: asked for by one request, followed by others, and recorded in the gallery, so that
//! another service goes on with what a dead one has begun.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rehang_core::{Error, Progress, Result};
use rehang_fit::Method;
use rehang_store::Store;
use rehang_upgrade::{PairsFiles, PairsOptions, RunOptions, Serving, Upgrade};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::problem::ProblemDetails;

/// Documents of the gallery that hold the operations and the trail.
const OPERATIONS: &str = "operations of the service";
const TRAIL: &str = "trail of the service";
/// Number of operations that are kept, and of entries of the trail.
const OPERATIONS_MAX: usize = 50;
const TRAIL_MAX: usize = 1000;
/// Number of operations that one service carries out at the same time.
const AT_ONCE_MAX: usize = 8;
/// Time after which an operation whose service was not heard of is taken up by another one.
const HEARD_WITHIN_MS: u64 = 30_000;

/// Verb that takes a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LongVerb {
    Pairs,
    Fit,
    Report,
    Start,
    Switch,
    Run,
    Refit,
    Bridge,
    Rollback,
    Finish,
}

impl LongVerb {
    pub const ALL: [Self; 10] = [
        Self::Pairs,
        Self::Fit,
        Self::Report,
        Self::Start,
        Self::Switch,
        Self::Run,
        Self::Refit,
        Self::Bridge,
        Self::Rollback,
        Self::Finish,
    ];

    pub fn name(self) -> String {
        json!(self).as_str().unwrap_or_default().to_owned()
    }

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
    /// Fails where an option is given that the verb does not take.
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
        let options = serde_json::to_value(self).map_err(|error| Error::corrupt("the options", error))?;
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

/// State that an operation is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// Carried out now; where its service dies, another one goes on with it.
    Running,
    /// Carried out; `result` is the verb's.
    Done,
    /// Refused or failed; `problem` says why.
    Refused,
    /// Ended by a person, or by the death of its service in a verb that does not go on by itself.
    Interrupted,
}

impl OperationState {
    const ALL: [(&'static str, Self); 4] = [
        ("running", Self::Running),
        ("done", Self::Done),
        ("refused", Self::Refused),
        ("interrupted", Self::Interrupted),
    ];
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

/// Entry of the trail: a change of the upgrade that somebody asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trailed {
    /// Time when it ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the token that asked.
    pub who: String,
    /// Verb, with its options.
    pub what: String,
    /// Upgrade before: its phase, and the space that served.
    pub before: String,
    /// Upgrade after.
    pub after: String,
    /// Reason why it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Operations of a gallery, and those of them that this service carries out.
pub struct Operations {
    upgrade: Arc<Upgrade>,
    server: String,
    at_work: Mutex<BTreeMap<String, Progress>>,
    is_leaving: AtomicBool,
}

impl Operations {
    pub fn new(upgrade: Arc<Upgrade>, server: String) -> Arc<Self> {
        Arc::new(Self { upgrade, server, at_work: Mutex::default(), is_leaving: AtomicBool::new(false) })
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

    /// Counts the operations by their state.
    pub fn by_state(&self) -> Result<Vec<(&'static str, usize)>> {
        let all = self.list()?;
        let count = |state| all.iter().filter(|operation| operation.state == state).count();
        Ok(OperationState::ALL.map(|(name, state)| (name, count(state))).into())
    }

    /// Begins an operation, or finds the one that was asked for with the same key.
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
        options.expect_only(&verb.name())?;
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
            stage: String::new(),
            done: 0,
            total: 0,
            result: None,
            problem: None,
        };
        if self.at_work().len() >= AT_ONCE_MAX {
            let detail = format!("{AT_ONCE_MAX} operations are under way here");
            return Err(Error::conflict("another operation", detail));
        }
        let mut earlier = None;
        update(self.store(), OPERATIONS, OPERATIONS_MAX, |all: &mut Vec<VerbOperation>| {
            let has_key = |other: &&VerbOperation| other.key.is_some() && other.key == operation.key;
            earlier = all.iter().find(has_key).cloned();
            if earlier.is_none() {
                all.insert(0, operation.clone());
            }
            earlier.is_none()
        })?;
        match earlier {
            Some(earlier) if (earlier.verb, &earlier.options) == (verb, &operation.options) => Ok(earlier),
            Some(earlier) => {
                let detail = format!("operation {} has it, with other options or another verb", earlier.id);
                Err(Error::conflict("the Idempotency-Key", detail))
            }
            None => {
                self.spawn(operation.clone());
                Ok(operation)
            }
        }
    }

    /// Asks a running operation of this service to stop; whether there is one.
    pub fn cancel(&self, id: &str) -> bool {
        self.at_work().get(id).map(Progress::cancel).is_some()
    }

    /// Asks all operations of this service to stop. They are left as running: another service, or this one
    /// when it comes again, goes on with them.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
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
        let operations = Arc::clone(self);
        std::thread::spawn(move || operations.carry_out(&operation, &progress));
    }

    fn carry_out(&self, operation: &VerbOperation, progress: &Progress) {
        let before = self.stands();
        let outcome = carry_out(&self.upgrade, operation.verb, &operation.options, progress);
        let is_cancelled = outcome.as_ref().is_err_and(Error::is_cancelled);
        let problem = outcome.as_ref().err().map(ToString::to_string);
        let (state, result, problem_details) = match outcome {
            Ok(result) => (OperationState::Done, Some(result), None),
            Err(error) if error.is_cancelled() => (OperationState::Interrupted, None, None),
            Err(error) => (OperationState::Refused, None, Some(ProblemDetails::from(error))),
        };
        let id = &operation.id;
        let what = format!("{} {}", operation.verb.name(), json!(operation.options));
        if let Some(problem) = &problem {
            tracing::warn!(operation = id, who = operation.asked_by, what, problem, "refused");
        } else {
            tracing::info!(operation = id, who = operation.asked_by, what, "done");
        }
        let ended = update(self.store(), OPERATIONS, OPERATIONS_MAX, |all: &mut Vec<VerbOperation>| {
            let Some(own) = all.iter_mut().find(|other| other.id == *id && other.server == self.server)
            else {
                return false;
            };
            // Whoever comes next goes on with what a stopping service leaves.
            if is_cancelled && self.is_leaving.load(Ordering::Relaxed) {
                own.heard_ms = 0;
                return true;
            }
            own.ended_ms = Some(rehang_clock::unix_ms());
            (own.state, own.result, own.problem) = (state, result.clone(), problem_details.clone());
            true
        });
        let trailed = self.note(&operation.asked_by, what, before, problem);
        for error in [ended, trailed].into_iter().filter_map(Result::err) {
            tracing::error!(operation = id, %error, "what became of it is not recorded");
        }
        self.at_work().remove(id);
    }

    /// Writes an entry of the trail; `before` is what [`Operations::stands`] gave.
    pub fn note(&self, who: &str, what: String, before: String, problem: Option<String>) -> Result<()> {
        let (at_ms, after) = (rehang_clock::unix_ms(), self.stands());
        let entry = Trailed { at_ms, who: who.to_owned(), what, before, after, problem };
        update(self.store(), TRAIL, TRAIL_MAX, |all: &mut Vec<Trailed>| {
            all.insert(0, entry.clone());
            true
        })
    }

    /// Says in a few words how the upgrade stands.
    pub fn stands(&self) -> String {
        let phase = self.upgrade.status(0).ok().map(|status| status.phase.name());
        let serving = self.store().serving().ok().flatten();
        format!("{}, {} serves", phase.unwrap_or("no upgrade"), serving.as_deref().unwrap_or("nothing"))
    }

    /// Says that this service is there and how far its operations are, and takes up what services that are
    /// gone have left. Gives those that changed.
    pub fn tend(self: &Arc<Self>) -> Result<Vec<VerbOperation>> {
        let now_ms = rehang_clock::unix_ms();
        let snapshots: BTreeMap<String, _> =
            self.at_work().iter().map(|(id, progress)| (id.clone(), progress.snapshot())).collect();
        let (mut changed, mut to_carry_out) = (Vec::new(), Vec::new());
        let looks_over = |operation: &VerbOperation| {
            operation.state == OperationState::Running
                && !snapshots.contains_key(&operation.id)
                && now_ms.saturating_sub(operation.heard_ms) > HEARD_WITHIN_MS
        };
        let all = self.list()?;
        let is_told =
            |operation: &VerbOperation| snapshots.contains_key(&operation.id) || looks_over(operation);
        if !all.iter().any(is_told) {
            return Ok(changed);
        }
        update(self.store(), OPERATIONS, OPERATIONS_MAX, |all: &mut Vec<VerbOperation>| {
            (changed, to_carry_out) = (Vec::new(), Vec::new());
            for operation in all.iter_mut().filter(|operation| operation.state == OperationState::Running) {
                if let Some(snapshot) = snapshots.get(&operation.id) {
                    operation.heard_ms = now_ms;
                    operation.stage.clone_from(&snapshot.stage);
                    (operation.done, operation.total) = (snapshot.done, snapshot.total);
                } else if looks_over(operation) && operation.verb.goes_on() {
                    operation.server.clone_from(&self.server);
                    operation.heard_ms = now_ms;
                    to_carry_out.push(operation.clone());
                } else if looks_over(operation) {
                    operation.state = OperationState::Interrupted;
                    operation.ended_ms = Some(now_ms);
                } else {
                    continue;
                }
                changed.push(operation.clone());
            }
            true
        })?;
        for operation in to_carry_out {
            tracing::info!(operation = operation.id, "goes on here, since its service is gone");
            self.spawn(operation);
        }
        Ok(changed)
    }
}

/// Carries out a verb.
fn carry_out(upgrade: &Upgrade, verb: LongVerb, options: &VerbOptions, progress: &Progress) -> Result<Value> {
    let flag = |flag: Option<bool>| flag.unwrap_or(false);
    match verb {
        LongVerb::Pairs => {
            let mut pairs = PairsOptions { run: options.run()?, ..PairsOptions::default() };
            pairs.items = options.items.unwrap_or(pairs.items);
            value(&upgrade.pairs(&pairs, &PairsFiles::default(), None, progress)?)
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
        LongVerb::Run => value(&upgrade.run(&options.run()?, None, progress)?),
        LongVerb::Refit => value(&upgrade.refit(progress)?),
        LongVerb::Bridge if flag(options.off) => value(&upgrade.remove_bridge()?),
        LongVerb::Bridge => value(&upgrade.bridge(progress)?),
        LongVerb::Rollback => value(&upgrade.rollback()?),
        LongVerb::Finish => value(&upgrade.finish(flag(options.anyway), progress)?),
    }
}

pub fn value(result: &impl Serialize) -> Result<Value> {
    serde_json::to_value(result).map_err(|error| Error::corrupt("the result", error))
}

/// Reads a list that a document holds, with its version.
fn read<T: for<'a> Deserialize<'a>>(store: &dyn Store, name: &str) -> Result<(Option<u64>, Vec<T>)> {
    let Some((version, text)) = store.document(name)? else { return Ok((None, Vec::new())) };
    let all = serde_json::from_str(&text).map_err(|error| Error::corrupt(name, error))?;
    Ok((Some(version), all))
}

/// Changes a list that a document holds, again where another process was faster; it is left as it is where
/// `change` gives false.
fn update<T: Serialize + for<'a> Deserialize<'a>>(
    store: &dyn Store,
    name: &str,
    most: usize,
    mut change: impl FnMut(&mut Vec<T>) -> bool,
) -> Result<()> {
    loop {
        let (version, mut all) = read::<T>(store, name)?;
        if !change(&mut all) {
            return Ok(());
        }
        all.truncate(most);
        let text = serde_json::to_string(&all).map_err(|error| Error::corrupt(name, error))?;
        match store.set_document(name, version, &text) {
            Err(error) if error.is_changed_meanwhile() => {}
            outcome => return outcome.map(drop),
        }
    }
}

fn rand_u32() -> u32 {
    use std::hash::{BuildHasher, RandomState};

    RandomState::new().hash_one(0_u8) as u32
}
