//! All steps of an upgrade as one command: doctor → pairs → fit → report → plan, then start → switch → run;
//! or, where everything is embedded sooner than a map is made, doctor → plan, then start → run → switch.
//!
//! No step is remembered: the gallery and the files of the upgrade say which one is next. So the same call
//! goes on after any death, and after anything that a person did by hand in between.

use rehang_core::finding::Severity;
use rehang_core::{Error, Progress, Result};
use rehang_encode::Encoder;
use rehang_fit::{FitAnswer, Method, OrderChoice};
use rehang_store::{Counts, find_space};
use serde::Serialize;
use serde_json::{Value, json};

use crate::auto_options::{AutoOptions, SwitchIf, Way};
use crate::configuration::Planned;
use crate::doctor::{Examination, examine_store};
use crate::learn::asked::{self, Asked};
use crate::learn::fit;
use crate::learn::forecast::{Forecast, share_of};
use crate::learn::pairs::{Enough, PairsDrawn, PairsOptions};
use crate::learn::report::{Asking, UpgradeReport};
use crate::live::backfill::{Ending, Request};
use crate::live::limits::RunOptions;
use crate::live::sample;
use crate::live::until::{Until, reaches};
use crate::observe::expect_going;
use crate::places::index::prepare_index;
use crate::record::{Phase, Recorded, Serving, UpgradeRecord};
use crate::setup::{expect_between, has_same_plan};
use crate::upgrade::{Outlook, PairsFiles, Run, Upgrade};
use crate::verbs::{Started, Switched};
use crate::way::{PROBE_ITEMS, WayReason, Ways, misses_too_many};

/// A step of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Draw pairs: [`Upgrade::pairs`].
    Pairs,
    /// Fit an adapter on the pairs: [`Upgrade::fit`].
    Fit,
    /// Choose the order of the backfill for a metric: [`Upgrade::choose_order`].
    Order,
    /// Measure the adapter on held-out pairs: [`Upgrade::report`].
    Report,
    /// Fill the new space ([`Upgrade::start`]), or create it where nothing is mapped
    /// ([`Upgrade::start_plain`]).
    Start,
    /// Re-embed before the switch, until it is worth it, or everything where nothing is
    /// mapped: [`Upgrade::run`].
    Backfill,
    /// Let searches go to the new model: [`Upgrade::switch`].
    Switch,
    /// Re-embed after the switch: [`Upgrade::run`].
    Run,
    /// Let backfills go on that a person has paused or stopped: [`Upgrade::resume`]. It comes before
    /// the step that would embed next, and only a person takes it.
    Resume,
}

impl Step {
    /// Every step of the way, in the order in which they are taken.
    pub const ALL: [Self; 8] = [
        Self::Pairs,
        Self::Fit,
        Self::Order,
        Self::Report,
        Self::Start,
        Self::Backfill,
        Self::Switch,
        Self::Run,
    ];
}

/// Reason why [`Upgrade::auto`] goes no farther.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "why")]
pub enum Halt {
    /// Nothing is left to embed, and searches go to the new model. Only a person finishes the upgrade.
    #[serde(rename = "home")]
    NothingToEmbed,
    /// The share of native items that was asked for is reached.
    Reached,
    /// The next step would fill the new space, which was not asked for.
    BeforeStart,
    /// The examination of the gallery found problems that need attention first.
    #[serde(rename = "ill")]
    NeedsAttention,
    /// More than one item in a hundred has no vector in the new space, and cannot be embedded. After the
    /// switch of a plain upgrade no search would find them.
    #[serde(rename = "lacking")]
    TooManyMissing,
    /// Held-out pairs are too few to say what the upgrade would buy.
    TooFewPairs,
    /// The quality of doing nothing was not measured, so nothing says whether the switch pays.
    NotMeasured,
    /// The report says that its numbers are not to be relied on.
    Unreliable,
    /// The forecast reaches the line that the switch was to have at no share of native items, or only at one
    /// that cannot be reached.
    NotWorthwhile,
    /// The upgrade was rolled back, by a person who had a reason.
    RolledBack,
    /// The upgrade is finished, and nothing is left to embed.
    Finished,
    /// A backfill ended before it was done.
    Ended {
        /// Why the backfill ended.
        ending: Ending,
    },
}

/// Next step of an upgrade, or the reason why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    /// The step to take next.
    Step(Step),
    /// No step is next, for this reason.
    Halt(Halt),
}

/// Steps that are left of an upgrade; see [`Upgrade::steps_left`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StepsLeft {
    /// Next step, or the reason why there is none.
    pub next: Next,
    /// Way of the upgrade that the steps belong to.
    pub way: Way,
    /// Whether the way may still become the plain one: a few items are embedded first, which say
    /// how long all take.
    pub may_be_plain: bool,
    /// Steps from the next one on; empty where no step is next.
    pub steps: Vec<Step>,
    /// Share of native items at which a backfill before the switch ends, where that backfill is next.
    pub switch_from: Option<f64>,
    /// Whether a backfill before the switch may still become necessary, which is not
    /// settled before the start.
    pub may_backfill_first: bool,
}

/// A step that was taken, with its result.
#[derive(Debug)]
pub enum StepResult<'a> {
    /// The gallery was examined.
    Examined(&'a Examination),
    /// The ways were compared: what embedding everything takes, and which way is taken.
    Ways(&'a Ways),
    /// Pairs were drawn.
    Pairs(&'a PairsDrawn),
    /// An adapter was fitted.
    Fit(&'a FitAnswer),
    /// The order of the backfill was chosen; `None` where there are too few pairs.
    Order(Option<&'a OrderChoice>),
    /// The adapter was measured.
    Report(&'a UpgradeReport),
    /// The rest was planned: what comes next, and what it costs.
    Plan(&'a Outlook),
    /// The new space was filled.
    Start(&'a Started),
    /// Searches go to the new model.
    Switch(&'a Switched),
    /// Items were re-embedded.
    Run(&'a Run),
}

impl StepResult<'_> {
    /// Returns the step's name, which is that of its verb, and its result as data.
    ///
    /// # Errors
    ///
    /// A result that is no JSON.
    pub fn result(&self) -> Result<(&'static str, Value)> {
        fn data(result: &impl Serialize) -> Result<Value> {
            serde_json::to_value(result).map_err(|error| Error::corrupt("the result", error))
        }
        Ok(match *self {
            Self::Examined(examined) => ("doctor", data(examined)?),
            Self::Ways(ways) => ("way", data(ways)?),
            Self::Pairs(pairs) => ("pairs", data(pairs)?),
            Self::Fit(answer) => ("fit", answer.to_json()),
            Self::Order(choice) => ("order", data(&choice)?),
            Self::Report(_) => ("report", json!({})),
            Self::Plan(outlook) => ("plan", data(outlook)?),
            Self::Start(started) => ("start", data(started)?),
            Self::Switch(switched) => ("switch", data(switched)?),
            Self::Run(run) => ("run", data(run)?),
        })
    }
}

impl Upgrade {
    /// Finds the next step of this upgrade, under `options`. `drawn` says that the pairs were drawn
    /// as asked: the gallery does not record how many were wanted, and drawing them again costs nothing.
    /// [`Step::Resume`] is next where a pause or a stop holds a step that embeds.
    ///
    /// # Errors
    ///
    /// A conflict where another upgrade of the gallery is under way; as
    /// [`Configuration::planned`](crate::Configuration::planned) and
    /// [`Configuration::forecast`](crate::Configuration::forecast); those of the store.
    pub fn next(&self, options: &AutoOptions, drawn: bool) -> Result<Next> {
        // No step is taken here, so the record is read once for all that follows.
        let recorded = UpgradeRecord::read(self.store())?;
        let next = self.next_unless_held(recorded.as_ref(), options, drawn)?;
        Ok(if self.is_held(recorded.as_ref(), next) { Next::Step(Step::Resume) } else { next })
    }

    /// Whether a pause or a stop keeps a step from being taken.
    fn is_held(&self, recorded: Option<&UpgradeRecord>, next: Next) -> bool {
        let embeds = matches!(next, Next::Step(Step::Pairs | Step::Backfill | Step::Run));
        embeds && self.concerned(recorded).is_some_and(|record| record.request != Request::Run)
    }

    /// Returns the record of an upgrade, where it is this one or keeps this one from beginning.
    fn concerned<'a>(&self, recorded: Option<&'a UpgradeRecord>) -> Option<&'a UpgradeRecord> {
        let (old, new) = (&self.configuration().old.name, &self.configuration().new.name);
        recorded.filter(|record| record.is_live() || record.is_between(old, new))
    }

    /// Finds the next step as [`Upgrade::next`], whether or not backfills are paused or stopped.
    fn next_unless_held(
        &self,
        recorded: Option<&UpgradeRecord>,
        options: &AutoOptions,
        drawn: bool,
    ) -> Result<Next> {
        let (store, configuration) = (self.store(), self.configuration());
        let (old, new) = (&configuration.old, &configuration.new);
        let record = self.concerned(recorded);
        if let Some(record) = record {
            expect_between(store, record, old, new)?;
        }
        let phase = record.map(|record| record.phase);
        match phase {
            Some(Phase::Finished) => return self.next_after_finish(options),
            Some(Phase::RolledBack | Phase::Abandoned) => return Ok(Next::Halt(Halt::RolledBack)),
            _ => {}
        }
        if self.way(recorded, options)? == Way::Plain {
            return self.next_plain(record);
        }
        let is_known =
            configuration.names_adapter() || fit::fitted_from(store, recorded, &new.name)?.is_some();
        // The record of a plain upgrade names no adapter, like that of an upgrade that only
        // has its pairs so far.
        let is_before_start = record.is_none_or(|record| record.adapter.is_empty());
        if !is_known && is_before_start {
            return Ok(Next::Step(if drawn { Step::Fit } else { Step::Pairs }));
        }
        let planned = configuration.planned_from(store, recorded)?;
        let forecast = configuration.forecast(store, &planned)?;
        if is_before_start {
            let is_fitted = !configuration.names_adapter();
            let map = planned.adapter.as_deref().filter(|_| is_fitted);
            if let Some(map) = map
                && !asked::is_by_queries(store, map, (old, new))?
            {
                return Ok(Next::Step(Step::Fit));
            }
            let chosen = fit::chosen_order(store, &new.name)?.and_then(|chosen| chosen.metric);
            if options.order_for.is_some_and(|metric| chosen != Some(metric.id())) {
                return Ok(Next::Step(Step::Order));
            }
            if forecast.is_none() {
                let is_enough = || -> Result<bool> {
                    Ok(is_fitted && Asking::read(store, old, new)?.pairs.may_be_reported())
                };
                return Ok(Next::Step(if drawn || is_enough()? { Step::Report } else { Step::Pairs }));
            }
        }
        let Some(record) = record.filter(|record| record.phase == Phase::Filled) else {
            return Ok(Next::Step(Step::Start));
        };
        if !has_same_plan(record, &planned.setup()) {
            return Ok(Next::Step(Step::Start));
        }
        self.next_after_start(record, options, &planned, forecast.as_ref())
    }

    /// Finds the next step of an upgrade that is filled by its map, as [`Upgrade::next`], given its record.
    fn next_after_start(
        &self,
        record: &UpgradeRecord,
        options: &AutoOptions,
        planned: &Planned,
        forecast: Option<&Forecast>,
    ) -> Result<Next> {
        let (store, new) = (self.store(), &self.configuration().new.name);
        let counts = store.counts(new)?;
        let is_left = sample::embeddable(store, new)? > counts.native;
        if store.serving()?.as_ref() != Some(new) {
            let Some(forecast) = forecast else {
                // Where all is native, nothing has to be forecast.
                return Ok(if is_left { Next::Halt(Halt::NotMeasured) } else { Next::Step(Step::Switch) });
            };
            if !forecast.is_reliable {
                return Ok(Next::Halt(Halt::Unreliable));
            }
            return Ok(match options.switch_if.passes_at(forecast) {
                Some(from) if reaches(&counts, from) => Next::Step(Step::Switch),
                _ if options.fused => Next::Step(Step::Switch),
                Some(_) if is_left => Next::Step(Step::Backfill),
                None if options.switch_if == SwitchIf::DoingNothing && forecast.do_nothing.is_none() => {
                    Next::Halt(Halt::NotMeasured)
                }
                _ => Next::Halt(Halt::NotWorthwhile),
            });
        }
        let until = options.pairs.run.until.unwrap_or(self.configuration().limits.until);
        let until = share_of(until, forecast, || self.cost_of_all(record, planned))?;
        let is_reached = matches!(until, Until::Fraction(wanted) if reaches(&counts, wanted));
        Ok(match (is_left, is_reached) {
            (false, _) => Next::Halt(Halt::NothingToEmbed),
            (true, true) => Next::Halt(Halt::Reached),
            (true, false) => Next::Step(Step::Run),
        })
    }

    /// Finds the next step of a plain upgrade, as [`Upgrade::next`]. `record` is that of the
    /// upgrade, if it has begun.
    fn next_plain(&self, record: Option<&UpgradeRecord>) -> Result<Next> {
        let (store, new) = (self.store(), &self.configuration().new.name);
        if !record.is_some_and(|record| record.phase == Phase::Filled && record.is_plain()) {
            return Ok(Next::Step(Step::Start));
        }
        let serves = store.serving()?.as_ref() == Some(new);
        Ok(match (serves, self.is_all_native()?) {
            (true, false) => Next::Step(Step::Run),
            (true, true) => Next::Halt(Halt::NothingToEmbed),
            (false, false) => Next::Step(Step::Backfill),
            (false, true) if misses_too_many(&store.counts(new)?) => Next::Halt(Halt::TooManyMissing),
            (false, true) => Next::Step(Step::Switch),
        })
    }

    /// Finds the next step of a finished upgrade: embedding what is left with a source, adapted or without a
    /// vector, also what came since.
    fn next_after_finish(&self, options: &AutoOptions) -> Result<Next> {
        let (store, new) = (self.store(), &self.configuration().new.name);
        let counts = store.counts(new)?;
        if sample::embeddable(store, new)? <= counts.native {
            return Ok(Next::Halt(Halt::Finished));
        }
        let until = options.pairs.run.until.unwrap_or(self.configuration().limits.until);
        let is_reached = matches!(until, Until::Fraction(wanted) if reaches(&counts, wanted));
        Ok(if is_reached { Next::Halt(Halt::Reached) } else { Next::Step(Step::Run) })
    }

    /// Takes all steps, from where the upgrade is: it examines the gallery, draws pairs, fits, measures and
    /// plans. Where it is asked to go on, it starts, embeds first or switches as the forecast says, and
    /// re-embeds. Where the plain way is [shorter](Upgrade::ways), everything is embedded, then searches
    /// switch, and nothing is fitted or measured. It never finishes. It calls `tell` after every step.
    ///
    /// # Errors
    ///
    /// An invalid option where the plain way is asked for together with options that only a map has. As the
    /// verbs of the steps. What was done stays, and the next call goes on.
    pub fn auto(
        &self,
        options: &AutoOptions,
        files: &PairsFiles<'_>,
        encoder: Option<&dyn Encoder>,
        progress: &Progress,
        mut tell: impl FnMut(&StepResult<'_>) -> Result<()>,
    ) -> Result<Halt> {
        options.expect_of_its_way(files)?;
        if options.order_for.is_some() {
            self.expect_order_is_chosen()?;
        }
        let mut walk = Walk {
            upgrade: self,
            options: *options,
            files,
            encoder,
            progress,
            tell: &mut tell,
            drawn: false,
            embedded: 0,
            is_planned: false,
            backfilled: None,
            lacking: u64::MAX,
            to_repeat: self.step_to_repeat(options, files)?,
        };
        if let Some(halt) = walk.examine()? {
            return Ok(halt);
        }
        if let Some(halt) = walk.choose_way()? {
            return Ok(halt);
        }
        loop {
            match walk.next_step()? {
                Next::Halt(halt) => return Ok(halt),
                Next::Step(step) => {
                    if let Some(halt) = walk.take(step)? {
                        return Ok(halt);
                    }
                }
            }
        }
    }

    /// Lists the steps that are left, as far as they are known before they are taken. Reads only.
    ///
    /// # Errors
    ///
    /// What is wrong with the file of queries; as [`Upgrade::next`].
    pub fn steps_left(&self, options: &AutoOptions, files: &PairsFiles<'_>) -> Result<StepsLeft> {
        options.expect_of_its_way(files)?;
        let again = self.step_to_repeat(options, files)?.map(Next::Step);
        let ways = self.ways(options, files)?;
        let (way, may_be_plain) = (ways.way, ways.needs_probe());
        let options = &AutoOptions { way: Some(way), ..*options };
        let recorded = UpgradeRecord::read(self.store())?;
        let next = again.map_or_else(|| self.next_unless_held(recorded.as_ref(), options, false), Ok)?;
        let Next::Step(first) = next else {
            let (steps, switch_from, may_backfill_first) = (Vec::new(), None, false);
            return Ok(StepsLeft { next, way, may_be_plain, steps, switch_from, may_backfill_first });
        };
        let is_plain = way == Way::Plain;
        let switch_from = if first == Step::Backfill { self.passes_at(options)? } else { None };
        let is_left = |step: &Step| match step {
            _ if *step < first => false,
            Step::Run if is_plain => first == Step::Run,
            _ if is_plain => true,
            Step::Fit => !self.configuration().names_adapter(),
            Step::Order => options.order_for.is_some(),
            Step::Backfill => switch_from.is_some(),
            _ => true,
        };
        let resume = self.is_held(recorded.as_ref(), next).then_some(Step::Resume);
        let next = resume.map_or(next, Next::Step);
        let steps = resume.into_iter().chain(Step::ALL.into_iter().filter(is_left)).collect();
        let may_backfill_first = first <= Step::Start && !options.fused && !is_plain;
        Ok(StepsLeft { next, way, may_be_plain, steps, switch_from, may_backfill_first })
    }

    /// Finds the step that was taken before and has to be taken again, if there is one. Before the start
    /// that is drawing pairs, where other queries are given than the map was chosen by, or a fit, where
    /// another method is asked for than the map has. The steps that follow from either are
    /// [next](Upgrade::next) after it.
    ///
    /// # Errors
    ///
    /// What is wrong with the file of queries; as [`Configuration::planned`](crate::Configuration::planned);
    /// those of the store.
    fn step_to_repeat(&self, options: &AutoOptions, files: &PairsFiles<'_>) -> Result<Option<Step>> {
        let (store, configuration) = (self.store(), self.configuration());
        let record = UpgradeRecord::read(store)?;
        let record = record.as_ref().filter(|record| record.phase == Phase::Sampling);
        if record.is_none() || options.way == Some(Way::Plain) || !configuration.has_adapter(store, record)? {
            return Ok(None);
        }
        let spaces = (&configuration.old, &configuration.new);
        let query_log = Asked::read(files.queries, files.clicks)?;
        if let Some(query_log) = query_log
            && !asked::is_kept(store, &query_log, spaces)?
        {
            return Ok(Some(Step::Pairs));
        }
        let Some(adapter) = configuration.planned_from(store, record)?.adapter else { return Ok(None) };
        let method = &adapter.training.method;
        let is_named = configuration.names_adapter();
        let is_other = !is_named && options.method != Method::Auto && options.method.name() != method;
        Ok(is_other.then_some(Step::Fit))
    }

    /// Reads the pairs whose items would be the queries of a report.
    fn forecast_queries(&self) -> Result<Asking> {
        let configuration = self.configuration();
        Asking::read(self.store(), &configuration.old, &configuration.new)
    }

    /// Whether no forecast is needed: the file names no adapter, everything is native, and too few pairs are
    /// held out to forecast anything. So nothing is left to map either.
    fn needs_no_forecast(&self) -> Result<bool> {
        Ok(!self.configuration().names_adapter()
            && self.is_all_native()?
            && !self.forecast_queries()?.pairs.may_be_reported())
    }

    /// Finds the share of native items from which on the switch is worth it.
    ///
    /// # Errors
    ///
    /// As [`Configuration::planned`](crate::Configuration::planned) and
    /// [`Configuration::forecast`](crate::Configuration::forecast).
    fn passes_at(&self, options: &AutoOptions) -> Result<Option<f64>> {
        let planned = self.configuration().planned_ongoing(self.store())?;
        let forecast = self.configuration().forecast(self.store(), &planned)?;
        Ok(forecast.and_then(|forecast| options.switch_if.passes_at(&forecast)))
    }
}

/// Walk through the steps of an upgrade, as [`Upgrade::auto`] takes them. A method that takes one returns why
/// the walk ends there; `None` where it goes on.
struct Walk<'a> {
    upgrade: &'a Upgrade,
    /// Options as they were asked for, with the way that was chosen.
    options: AutoOptions,
    files: &'a PairsFiles<'a>,
    encoder: Option<&'a dyn Encoder>,
    progress: &'a Progress,
    tell: &'a mut dyn FnMut(&StepResult<'_>) -> Result<()>,
    /// Whether the pairs were drawn as asked.
    drawn: bool,
    /// Items that were embedded by all steps together.
    embedded: u64,
    /// Whether the plan was told.
    is_planned: bool,
    /// Ending of the last backfill before the switch.
    backfilled: Option<Ending>,
    /// Items that lacked a vector when a plain upgrade went back from the switch to its backfill.
    lacking: u64,
    /// Step that has to be taken again.
    to_repeat: Option<Step>,
}

impl Walk<'_> {
    /// Whether nothing is mapped, as far as that is known.
    fn is_plain(&self) -> bool {
        self.options.way == Some(Way::Plain)
    }

    /// Limits of what a step embeds. No run of these steps follows: each has to end, so that the next step
    /// can be found.
    fn run_options(&self) -> RunOptions {
        let run = self.options.pairs.run;
        let budget = run.budget.map(|budget| budget.saturating_sub(self.embedded));
        RunOptions { budget, follow: false, ..run }
    }

    /// Examines a gallery in which nothing has begun.
    fn examine(&mut self) -> Result<Option<Halt>> {
        let (store, configuration) = (&*self.upgrade.store, self.upgrade.configuration());
        if find_space(self.upgrade.store(), &configuration.new.name)?.is_some() {
            return Ok(None);
        }
        let examination = examine_store(&configuration.gallery, store, Some(configuration), false, false)?;
        (self.tell)(&StepResult::Examined(&examination))?;
        let has_problem = examination.findings.iter().any(|finding| finding.severity == Severity::Problem);
        Ok(has_problem.then_some(Halt::NeedsAttention))
    }

    /// Chooses the way, for which a few items may have to be embedded first.
    fn choose_way(&mut self) -> Result<Option<Halt>> {
        let mut ways = self.upgrade.ways(&self.options, self.files)?;
        if ways.needs_probe() {
            // Items that are embedded for the probe stay native.
            let options = PairsOptions { items: PROBE_ITEMS, ..self.options.pairs };
            let pairs = self.upgrade.pairs(&options, &PairsFiles::default(), self.encoder, self.progress)?;
            self.embedded += pairs.steps.iter().map(|step| step.embedded).sum::<u64>();
            if let Enough::Ended(ending) = pairs.enough {
                (self.tell)(&StepResult::Pairs(&pairs))?;
                return Ok(Some(Halt::Ended { ending }));
            }
            ways = self.upgrade.ways(&self.options, self.files)?;
        }
        if !matches!(ways.because, WayReason::Asked | WayReason::Begun) {
            (self.tell)(&StepResult::Ways(&ways))?;
        }
        self.options.way = Some(ways.way);
        Ok(None)
    }

    /// Finds the step to take, or the reason why there is none.
    fn next_step(&mut self) -> Result<Next> {
        let next = if let Some(step) = self.to_repeat.take() {
            Next::Step(step)
        } else {
            // A verb that a pause holds is refused by itself, and says how it goes on.
            let recorded = UpgradeRecord::read(self.upgrade.store())?;
            self.upgrade.next_unless_held(recorded.as_ref(), &self.options, self.drawn)?
        };
        // Items that came during the backfill do not keep the switch waiting: a run embeds them after it.
        let is_backfilled = self.backfilled == Some(Ending::ReachedFraction)
            || (self.is_plain() && self.backfilled.is_some());
        Ok(if next == Next::Step(Step::Backfill) && is_backfilled { Next::Step(Step::Switch) } else { next })
    }

    /// Takes a step, where it was asked to go so far.
    fn take(&mut self, step: Step) -> Result<Option<Halt>> {
        let (upgrade, progress, is_plain) = (self.upgrade, self.progress, self.is_plain());
        if step == Step::Start && !self.is_planned {
            (self.tell)(&StepResult::Plan(&upgrade.plan_of(is_plain)?))?;
            self.is_planned = true;
        }
        if step >= Step::Start && !self.options.go {
            return Ok(Some(Halt::BeforeStart));
        }
        match step {
            Step::Pairs => return self.draw_pairs(),
            Step::Fit => {
                let answer = upgrade.fit(self.options.method, self.options.within, progress)?;
                (self.tell)(&StepResult::Fit(&answer))?;
            }
            Step::Order => {
                let choice = upgrade.choose_order(self.options.order_for, progress)?;
                (self.tell)(&StepResult::Order(choice.as_ref()))?;
                return Ok(choice.is_none().then_some(Halt::TooFewPairs));
            }
            Step::Report => {
                if !upgrade.forecast_queries()?.pairs.may_be_reported() {
                    return Ok(Some(Halt::TooFewPairs));
                }
                (self.tell)(&StepResult::Report(&upgrade.report(progress)?))?;
            }
            Step::Start => {
                let started =
                    if is_plain { upgrade.start_plain(progress)? } else { upgrade.start(progress)? };
                (self.tell)(&StepResult::Start(&started))?;
            }
            Step::Switch => return self.switch(),
            Step::Backfill | Step::Run => return self.embed(step),
            // Only a person lets backfills go on.
            Step::Resume => return Ok(Some(Halt::Ended { ending: Ending::Paused })),
        }
        Ok(None)
    }

    /// Draws pairs. Where these show that nothing is left to map, the way becomes the plain one.
    fn draw_pairs(&mut self) -> Result<Option<Halt>> {
        let (upgrade, configuration) = (self.upgrade, self.upgrade.configuration());
        let options = PairsOptions { run: self.run_options(), ..self.options.pairs };
        let pairs = upgrade.pairs(&options, self.files, self.encoder, self.progress)?;
        (self.tell)(&StepResult::Pairs(&pairs))?;
        let embedded_now = pairs.steps.iter().map(|step| step.embedded).sum::<u64>();
        self.embedded += embedded_now;
        if let Enough::Ended(ending) = pairs.enough {
            return Ok(Some(Halt::Ended { ending }));
        }
        self.drawn = true;
        if upgrade.needs_no_forecast()? {
            self.options.way = Some(Way::Plain);
            return Ok(None);
        }
        let is_fitted = fit::fitted(upgrade.store(), &configuration.new.name)?.is_some();
        // The map that is there was fitted on fewer pairs.
        if embedded_now > 0 && is_fitted && !configuration.names_adapter() {
            self.to_repeat = Some(Step::Fit);
        }
        Ok(None)
    }

    /// Switches searches, unless a plain upgrade has to embed more items first.
    fn switch(&mut self) -> Result<Option<Halt>> {
        let (upgrade, store) = (self.upgrade, self.upgrade.store());
        let new = &self.upgrade.configuration().new.name;
        let counts = store.counts(new)?;
        if self.is_plain() && misses_too_many(&counts) {
            let embeddable = sample::embeddable(store, new)?;
            let never = counts.items.saturating_sub(embeddable).min(counts.lacking);
            if misses_too_many(&Counts { lacking: never, ..counts }) {
                return Ok(Some(Halt::TooManyMissing));
            }
            // Items that came during the backfill are embedded first, as long as each round leaves fewer of
            // them.
            if counts.lacking < self.lacking {
                (self.lacking, self.backfilled) = (counts.lacking, None);
                return Ok(None);
            }
        }
        let is_mixed = upgrade.passes_at(&self.options)?.is_some_and(|from| reaches(&counts, from));
        // Searches need both queries only where that was asked for, also if the share fell since the step was
        // chosen: an application that knows nothing of it gives no query of the old model.
        let serving = (self.options.fused && !is_mixed).then_some(Serving::Fused);
        // An earlier process may have died, or been stopped, while it made the index.
        prepare_index(store, new, self.progress)?;
        expect_going(self.progress)?;
        // Whether the switch is worth it was decided above.
        (self.tell)(&StepResult::Switch(&upgrade.switch(serving, true)?.0))?;
        Ok(None)
    }

    /// Embeds items, before the switch or after it. A run that came to its end is not begun again: where an
    /// application writes on, no run would be the last.
    fn embed(&mut self, step: Step) -> Result<Option<Halt>> {
        let until = match step {
            _ if self.is_plain() => Some(Until::All),
            Step::Run => self.options.pairs.run.until,
            _ => self.upgrade.passes_at(&self.options)?.map(Until::Fraction),
        };
        let options = RunOptions { until, ..self.run_options() };
        let run = self.upgrade.run(&options, self.encoder, self.progress)?;
        (self.tell)(&StepResult::Run(&run))?;
        self.embedded += run.summary.done.native;
        let ending = run.summary.ending;
        if !matches!(ending, Ending::NothingLeft | Ending::ReachedFraction) {
            return Ok(Some(Halt::Ended { ending }));
        }
        if step == Step::Backfill {
            self.backfilled = Some(ending);
            return Ok(None);
        }
        let is_finished = Recorded::expect(self.upgrade.store())?.record.phase == Phase::Finished;
        Ok(Some(match ending {
            Ending::ReachedFraction => Halt::Reached,
            _ if is_finished => Halt::Finished,
            _ => Halt::NothingToEmbed,
        }))
    }
}
