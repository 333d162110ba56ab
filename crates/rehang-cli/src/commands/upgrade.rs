//! `rehang upgrade …`: the verbs of a live upgrade, each a call of the library and a sentence about what happened.

use std::io::Write as _;
use std::time::Duration;

use rehang::report::percent_rounded_up;
use rehang::{Remedy, Result};
use rehang_store::Store;
use rehang_upgrade::{
    AutoOptions, Basis, Clock, Ending, Enough, Estimate, Forecast, Halt, Left, Next, Outlook, PairsDrawn,
    PairsFiles, PairsOptions, Phase, Request, Run, RunOptions, Serving, SigmaHealth, Started, Status, Step,
    Switched, SystemClock, Taken, Upgrade, left, parse_rate, parse_until,
};
use serde::ser::{Error as _, Serialize, SerializeSeq, Serializer};
use serde_json::{Value, json};

use super::{Exit, end_at_ctrl_c, one_decimal, warn, written};
use crate::arguments::{
    self, RunLimits, SampleSize, UpgradeAutoArguments, UpgradeConfig, UpgradeFitArguments,
    UpgradePairsArguments, UpgradePlanArguments, UpgradeReportArguments, UpgradeResumeArguments,
    UpgradeRunArguments, UpgradeStatusArguments, UpgradeSwitchArguments,
};
use crate::bar::with_bar;
use crate::wording;

/// Time between two lines of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Items that a status lists for people.
const LISTED: usize = 20;
/// What is said where backfills are allowed again.
const MAY_GO_ON: &str = "Backfills may go on: `rehang upgrade run`.\n";
/// Items that are read at a time where all are listed.
const LIST_PAGE: usize = 1000;

/// Runs one of the verbs.
pub fn run(arguments: &arguments::UpgradeCommand, json: bool) -> Result<Exit> {
    use arguments::UpgradeCommand as Verb;
    match arguments {
        Verb::Auto(auto) => run_auto(auto, json),
        Verb::Pairs(pairs) => run_pairs(pairs, json),
        Verb::Fit(fit) => run_fit(fit, json),
        Verb::Report(report) => run_report(report, json),
        Verb::Plan(plan) => run_plan(plan, json),
        Verb::Start(config) => run_start(config, json),
        Verb::Switch(switch) => run_switch(switch, json),
        Verb::Run(run) => run_backfill(run, json),
        Verb::Status(status) => run_status(status, json),
        Verb::Pause(config) => run_request(config, Request::Pause, json),
        Verb::Resume(resume) => run_resume(resume, json),
        Verb::Stop(config) => run_request(config, Request::Stop, json),
        Verb::Rollback(config) => run_rollback(config, json),
        Verb::Finish(config) => run_finish(config, json),
    }
}

fn open(arguments: &UpgradeConfig) -> Result<Upgrade> {
    Upgrade::open(&arguments.config)
}

fn run_auto(arguments: &UpgradeAutoArguments, json: bool) -> Result<Exit> {
    let SampleSize { items, worth, ref queries } = arguments.sample;
    let run = run_options(&arguments.limits, arguments.until.as_deref())?;
    let asked = AutoOptions {
        pairs: PairsOptions { items, worth, run },
        method: arguments.method.parse()?,
        go: arguments.yes,
        merged: arguments.merged,
        switch_if: arguments.switch_if.parse()?,
    };
    let upgrade = open(&arguments.config)?;
    if arguments.dry_run {
        return dry_run(&upgrade, &asked, arguments, json);
    }
    let files = PairsFiles { folder: None, queries: queries.as_deref() };
    let (mut steps, mut all_done) = (Vec::new(), true);
    let halt = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.auto(&asked, &files, None, progress, |taken| {
            let (name, value, text, done) = taken_text(&upgrade, taken, &asked)?;
            all_done &= done;
            if json {
                steps.push(json!({ "step": name, "result": value }));
                return Ok(());
            }
            Exit::Done.print(false, &value, &format!("── {name}\n{text}\n")).map(drop)
        })
    })?;
    let (text, is_done) = halt_text(halt, &upgrade)?;
    let value = json!({ "steps": steps, "halt": halt });
    Exit::done_if(all_done && is_done).print(json, &value, &text)
}

/// A step that was taken: its name, its result as data and in words, and whether it left nothing to a person.
fn taken_text(
    upgrade: &Upgrade,
    taken: &Taken<'_>,
    asked: &AutoOptions,
) -> Result<(&'static str, Value, String, bool)> {
    let (name, mut value) = taken.result()?;
    let (text, done) = match *taken {
        Taken::Examined(examined) => {
            let (text, worded) = super::doctor::said(examined);
            value = worded;
            (text, examined.bad == 0)
        }
        Taken::Pairs(pairs) => (pairs_text(pairs, asked.pairs.worth), pairs.is_complete()),
        Taken::Fit(answer) => {
            super::fit::say(answer);
            (super::fit::text(answer), super::fit::outcome(answer) == Exit::Done)
        }
        Taken::Report(made) => {
            super::report::write(&made.report, &made.findings, &[])?;
            let text = format!("{}Report: {}\n", super::report::verdict(&made.report), made.path.display());
            (text, super::report::outcome(&made.report) == Exit::Done)
        }
        Taken::Plan(outlook) => {
            warn(&outlook.warnings());
            (plan_text(upgrade, outlook), true)
        }
        Taken::Start(started) => {
            warn(&started.warnings);
            (start_text(upgrade, started)?, true)
        }
        Taken::Switch(switched) => {
            (switch_text(switched, upgrade.status(0)?.serving_as), switched.lacking == 0)
        }
        Taken::Run(run) => (run_text(run), run.is_complete()),
    };
    Ok((name, value, text, done))
}

/// What an encoder has used, in a line; nothing where it takes no money.
fn spent_text(what: &str, money: f64, tokens: u64) -> String {
    if money > 0.0 { format!("{what}: {money:.4} for {tokens} tokens\n") } else { String::new() }
}

/// Why the way ends here, and whether that is what was asked for.
fn halt_text(halt: Halt, upgrade: &Upgrade) -> Result<(String, bool)> {
    let config = upgrade.configuration().path.display();
    Ok(match halt {
        Halt::Home => {
            let failed = upgrade.status(0)?.counts.failed;
            let mut text = if failed > 0 {
                format!("{failed} items could not be embedded: `rehang upgrade status` lists them.\n")
            } else {
                String::new()
            };
            text += "Nothing more is to be embedded. `rehang upgrade finish` drops the old space for good; until then `rehang upgrade \
                     rollback` goes back.\n";
            (text, failed == 0)
        }
        Halt::Reached => (
            "As much is native as was asked for. The same command without --until, or `rehang upgrade run`, goes on.\n".into(),
            true,
        ),
        Halt::Unreliable => (
            "The report says why its numbers are not to be relied on, so nothing is switched. `rehang upgrade switch` goes on by hand.\n"
                .into(),
            false,
        ),
        Halt::BeforeStart => {
            let serving = upgrade.store().serving()?.unwrap_or_else(|| "nothing".into());
            (format!("Searches go to {serving:?}. To go on: rehang upgrade auto --yes --config {config}\n"), true)
        }
        Halt::Finished => ("The upgrade is finished.\n".into(), true),
        Halt::Ill => ("The gallery needs attention first.\n".into(), false),
        Halt::TooFewPairs => (
            "Too few pairs are held out to say what the upgrade would buy, so nothing is switched. More `--items` draw more, where the \
             gallery has them; `rehang upgrade start` goes on by hand.\n"
                .into(),
            false,
        ),
        Halt::NotMeasured => (
            "What doing nothing is worth was not measured, so nothing says whether the switch pays. `rehang upgrade switch` goes on by \
             hand.\n"
                .into(),
            false,
        ),
        Halt::NotWorthwhile => (
            "The forecast never is what --switch-if asks for. Searches stay with the old model; `--merged`, or `rehang upgrade switch \
             --anyway` by hand, goes on.\n"
                .into(),
            false,
        ),
        Halt::RolledBack => {
            let verb = match upgrade.status(0)?.phase {
                // It was rolled back while it was being filled.
                Phase::Abandoned => "start",
                _ => "switch",
            };
            (format!("The upgrade was rolled back; `rehang upgrade {verb}` goes back to it by hand.\n"), false)
        }
        Halt::Ended { ending } => {
            let next = match ending {
                Ending::SpentBudget => " The same command goes on.",
                Ending::EncoderBudgetSpent => " With a larger one, the same command goes on.",
                Ending::Stopped => " After `rehang upgrade resume`, the same command goes on.",
                _ => "",
            };
            (format!("It ended because {}.{next}\n", ending_text(ending)), !ending.is_early())
        }
    })
}

/// What is left to do, as commands.
fn dry_run(
    upgrade: &Upgrade,
    asked: &AutoOptions,
    arguments: &UpgradeAutoArguments,
    json: bool,
) -> Result<Exit> {
    let files = PairsFiles { folder: None, queries: arguments.sample.queries.as_deref() };
    let anew = upgrade.anew(asked, &files)?.map(Next::Step);
    let step = match anew.map_or_else(|| upgrade.next(asked, false), Ok)? {
        Next::Step(step) => step,
        Next::Halt(halt) => {
            let (text, is_done) = halt_text(halt, upgrade)?;
            return Exit::done_if(is_done).print(json, &json!({ "commands": [], "halt": halt }), &text);
        }
    };
    let config = upgrade.configuration().path.display().to_string();
    let command = |words: &[&str]| {
        super::report::shell_line(["upgrade"].iter().chain(words).chain(&["--config", &config]))
    };
    let until = arguments.until.as_deref().map_or_else(Vec::new, |until| vec!["--until", until]);
    let limits = limit_words(&arguments.limits);
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    let first = match step {
        Step::Backfill => upgrade.passes_at(asked)?.map(|from| format!("{}%", percent_rounded_up(from))),
        _ => None,
    };
    let first = first.as_deref().map_or_else(Vec::new, |share| vec!["--until", share]);
    let queries = arguments.sample.queries.as_ref().map(|path| path.display().to_string());
    let queries = queries.as_deref().map_or_else(Vec::new, |queries| vec!["--queries", queries]);
    let (items, worth) = (asked.pairs.items.to_string(), asked.pairs.worth.to_string());
    let is_named = upgrade.configuration().names_adapter();
    let mut commands = Vec::new();
    for (of, words) in [
        (
            Step::Pairs,
            [vec!["pairs", "--items", &items, "--worth", &worth], queries, limits.clone()].concat(),
        ),
        (Step::Fit, vec!["fit", "--method", &arguments.method]),
        (Step::Report, vec!["report"]),
        (Step::Start, vec!["plan"]),
        (Step::Start, vec!["start"]),
        (Step::Backfill, [vec!["run"], first.clone(), limits.clone()].concat()),
        (Step::Switch, if asked.merged { vec!["switch", "--merged"] } else { vec!["switch"] }),
        (Step::Run, [vec!["run"], until, limits.clone()].concat()),
    ] {
        let is_idle = (of == Step::Fit && is_named) || (of == Step::Backfill && first.is_empty());
        if of >= step && !is_idle {
            commands.push(command(&words));
        }
    }
    let mut text = commands.join("\n") + "\n";
    if step <= Step::Start && !asked.merged {
        text += "Where the forecast is below --switch-if, `rehang upgrade run --until SHARE` comes before the switch.\n";
    }
    Exit::Done.print(json, &json!({ "commands": commands, "next": step }), &text)
}

fn run_pairs(arguments: &UpgradePairsArguments, json: bool) -> Result<Exit> {
    let SampleSize { items, worth, ref queries } = arguments.sample;
    let options = PairsOptions { items, worth, run: run_options(&arguments.limits, None)? };
    let files = PairsFiles { folder: arguments.out.as_deref(), queries: queries.as_deref() };
    let upgrade = open(&arguments.config)?;
    let drawn = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.pairs(&options, &files, None, progress)
    })?;
    let next = match drawn.enough {
        Enough::Ended(_) => "",
        _ if upgrade.configuration().names_adapter() => "Next: `rehang upgrade report`.\n",
        _ => "Next: `rehang upgrade fit`.\n",
    };
    let text = pairs_text(&drawn, options.worth) + next;
    Exit::done_if(drawn.is_complete()).print(json, &drawn, &text)
}

fn pairs_text(drawn: &PairsDrawn, worth: f64) -> String {
    let mut text = String::new();
    for (place, step) in drawn.steps.iter().enumerate() {
        text += &format!("{} items: {} embedded, {} pairs", step.items, step.embedded, step.pairs);
        text += &match &step.learned {
            // An earlier call has measured it.
            None if place + 1 < drawn.steps.len() => "\n".to_owned(),
            None => "; too few to say what more would bring\n".to_owned(),
            Some(learned) => format!(
                "; {} at the switch {}, the last doubling brought {:+.1}, the next is expected to bring {:.1} ± {:.1}\n",
                learned.criterion,
                learned.points.last().map_or("–".into(), |point| one_decimal(point.1)),
                learned.gain,
                learned.next,
                learned.spread
            ),
        };
    }
    let why = match drawn.enough {
        Enough::Learned => format!("one more doubling is not expected to bring {worth} points"),
        Enough::Asked => "there are as many as were asked for".into(),
        Enough::WholeGallery => "the sample is all of the gallery that can be embedded".into(),
        Enough::Ended(ending) => ending_text(ending).into(),
    };
    let (pairs, held_out) = (drawn.pairs, drawn.held_out);
    text += &format!("{pairs} pairs, {held_out} of them held out. No more are drawn because {why}.\n");
    if drawn.failed > 0 {
        text += &format!(
            "{} items could not be embedded: `rehang upgrade status` lists them; others took their place.\n",
            drawn.failed
        );
    }
    if let Some(said) = &drawn.encoder_said {
        text += &format!("The encoder says: {said}.\n");
    }
    text += &spent_text("Spent", drawn.spent.money, drawn.spent.tokens);
    if let Some(queries) = drawn.queries {
        text += &format!("{queries} queries are embedded by both models.\n");
    }
    if let Some(first) = drawn.queries_left_out.first() {
        text += &format!("{} queries are left out; the first: {first}.\n", drawn.queries_left_out.len());
    }
    if let Some(folder) = &drawn.folder {
        text += &format!("Written to {}.\n", folder.display());
    }
    text
}

fn run_fit(arguments: &UpgradeFitArguments, json: bool) -> Result<Exit> {
    let method = arguments.method.parse()?;
    let upgrade = open(&arguments.config)?;
    let answer = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.fit(method, progress)
    })?;
    super::fit::say(&answer);
    let text = super::fit::text(&answer) + "Next: `rehang upgrade report`, or `rehang upgrade start`.\n";
    super::fit::outcome(&answer).print(json, &answer.to_json(), &text)
}

fn run_report(arguments: &UpgradeReportArguments, json: bool) -> Result<Exit> {
    super::report::expect_outputs(&arguments.out)?;
    let upgrade = open(&arguments.config)?;
    let made = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.report(progress)
    })?;
    super::report::write(&made.report, &made.findings, &arguments.out)?;
    let text = format!("{}Report: {}\n", super::report::verdict(&made.report), made.path.display());
    let value = json!({ "report": made.path, "reports": arguments.out, "data": made.report });
    super::report::outcome(&made.report).print(json, &value, &text)
}

fn run_plan(arguments: &UpgradePlanArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let outlook = upgrade.plan(arguments.probe)?;
    Exit::Done.print(json, &outlook, &plan_text(&upgrade, &outlook))?;
    Ok(warn(&outlook.warnings()))
}

fn plan_text(upgrade: &Upgrade, outlook: &Outlook) -> String {
    let Outlook { plan, estimate, forecast, .. } = outlook;
    let mut text = format!(
        "{}\n  from {}\n  to   {}\n\nstart   writes {} {} ({} of vectors beside the gallery's own)\n{}run     \
         re-embeds up to {} items, {} first\n",
        plan.gallery,
        plan.old,
        plan.new,
        plan.to_adapt,
        if plan.as_they_are { "OLD vectors as they are" } else { "adapted vectors" },
        bytes(plan.bytes),
        if plan.as_they_are && plan.to_adapt > 0 { WITHOUT_ADAPTER } else { "" },
        plan.to_embed,
        upgrade.configuration().order.policy,
    );
    if plan.without_source > 0 {
        text += &format!("        {} items have no source: they stay adapted\n", plan.without_source);
    }
    if plan.to_embed > 0 {
        text += &estimate_text(estimate, plan.to_embed);
    }
    text += "switch  one step; rollback undoes it at any time before finish\n";
    text + &forecast_text(forecast.as_ref())
}

/// What the report on held-out pairs says.
fn forecast_text(forecast: Option<&Forecast>) -> String {
    let Some(forecast) = forecast else {
        return "\nforecast  none, so nothing is known of the quality. `rehang upgrade report` makes one on pairs of the gallery that the adapter was \
                not fitted on; or [forecast] names the JSON of a `rehang report` on other pairs\n"
            .into();
    };
    let today = forecast.do_nothing.map_or("not measured".into(), one_decimal);
    let mut text = format!(
        "\nforecast  {} of {} on {} held-out items, searched among themselves ({})\n          do nothing {today}, at the switch {}",
        forecast.metric,
        forecast.curve,
        forecast.items,
        forecast.source,
        one_decimal(forecast.start)
    );
    for (share, value) in &forecast.curve_at {
        text += &format!(", {:.0} % native {}", 100.0 * share, one_decimal(*value));
    }
    text += match (forecast.do_nothing, forecast.passes_at_percent()) {
        (None, _) => "\n".into(),
        (_, Some(percent)) if percent <= 0.0 => "\n          above doing nothing from the switch on\n".into(),
        (_, Some(percent)) => format!(
            "\n          above doing nothing from {} % native on: before it, `switch` refuses, and merged searches help\n",
            one_decimal(percent)
        ),
        (_, None) => "\n          never above doing nothing: this adapter does not pay with mixed searches\n".to_owned(),
    }
    .as_str();
    text
}

/// Time and money, as far as they are known.
fn estimate_text(estimate: &Estimate, items: u64) -> String {
    const MEASURES: &str = "--probe 32 embeds some items now to measure it";
    let mut text = match (estimate.seconds, estimate.basis) {
        (Some(seconds), Some(basis)) => {
            let (about, why) = match basis {
                Basis::Probe => {
                    let embedded = estimate.probed_items.unwrap_or(0) - estimate.failed.unwrap_or(0);
                    ("about", format!("as measured on {embedded} items"))
                }
                Basis::EarlierRun => ("about", "as an earlier run of this gallery had".to_owned()),
                Basis::Limits => ("at least", format!("which the limits allow ({MEASURES})")),
            };
            let rate = if seconds > 0.0 { items as f64 / seconds } else { 0.0 };
            format!("        {about} {} at {rate:.1} items a second, {why}\n", duration(seconds))
        }
        _ => format!("        how long it takes is not known ({MEASURES})\n"),
    };
    text += &match (estimate.tokens, estimate.money) {
        (Some(tokens), Some(money)) => {
            format!("        about {tokens} tokens, {money:.2} in the unit of the configured price\n")
        }
        (Some(tokens), None) => format!("        about {tokens} tokens; no price is configured\n"),
        (None, Some(money)) => format!("        about {money:.2} in the unit of the configured price\n"),
        (None, None) => String::new(),
    };
    if let Some(budget) = estimate.budget_items.filter(|budget| *budget < items) {
        text += &format!("        the budget of [encoder] ends a run after about {budget} items\n");
    }
    text
}

/// Where nothing maps old vectors into the new space.
const WITHOUT_ADAPTER: &str = "        there is no adapter: this is right only for a model that was trained to search old vectors; for any other, `rehang \
                               upgrade pairs` and `rehang upgrade fit` come before `start`\n";
/// Where most of its vectors were replaced.
const INDEXED: &str = "The search index was made again.\n";

fn run_start(arguments: &UpgradeConfig, json: bool) -> Result<Exit> {
    let upgrade = open(arguments)?;
    let started = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.start(progress)
    })?;
    Exit::Done.print(json, &started, &start_text(&upgrade, &started)?)?;
    Ok(warn(&started.warnings))
}

fn start_text(upgrade: &Upgrade, started: &Started) -> Result<String> {
    let configuration = upgrade.configuration();
    let new = upgrade.new_space()?;
    let mut text = if started.as_they_are {
        format!("{} OLD vectors stand in {new} as they are.\n{WITHOUT_ADAPTER}", started.adapted)
    } else {
        format!("{} vectors adapted into {new}.\n", started.adapted)
    };
    if started.replanned {
        text += "The upgrade was under way: adapted vectors were made again, native ones kept.\n";
    }
    if started.lacking > 0 {
        text += &format!("{} items have no old vector; the backfill takes them first.\n", started.lacking);
    }
    if let Some(recall) = started.recall {
        text +=
            &format!("Its search index is made and finds {:.1} % of the true nearest 10.\n", 100.0 * recall);
    }
    if upgrade.store().serving()?.as_deref() == Some(configuration.old.name.as_str()) {
        text += "Searches still go to the old space: `rehang upgrade switch` changes that.\n";
    }
    Ok(text)
}

fn run_switch(arguments: &UpgradeSwitchArguments, json: bool) -> Result<Exit> {
    let serving = if arguments.merged { Serving::Merged } else { Serving::Mixed };
    let (switched, warnings) = open(&arguments.config)?.switch(serving, arguments.anyway)?;
    warn(&warnings);
    let text = switch_text(&switched, serving);
    Exit::done_if(switched.lacking == 0).print(json, &switched, &text)
}

fn switch_text(switched: &Switched, serving: Serving) -> String {
    let mut text = format!("Searches go to {:?} now.\n", switched.serving);
    if serving == Serving::Merged {
        text += "They are merged: each needs its query by both models (`rehang search --text` with [encoder] and [old.encoder], or `--vectors NEW --old-vectors OLD`).\n";
    }
    if switched.lacking > 0 {
        text += &format!(
            "{} items have no vector there yet and are not found until `rehang upgrade run` embeds them.\n",
            switched.lacking
        );
    }
    text
}

/// The limits as a person types them.
fn limit_words(limits: &RunLimits) -> Vec<String> {
    let given = [
        ("--budget", limits.budget.map(|budget| budget.to_string())),
        ("--rate", limits.rate.clone()),
        ("--workers", limits.workers.map(|workers| workers.to_string())),
        ("--batch", limits.batch.map(|batch| batch.to_string())),
    ];
    given.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).flatten().collect()
}

/// What a verb that embeds is asked for.
fn run_options(limits: &RunLimits, until: Option<&str>) -> Result<RunOptions> {
    Ok(RunOptions {
        budget: limits.budget,
        rate: limits.rate.as_deref().map(|text| parse_rate("rate", text)).transpose()?,
        until: until.map(|text| parse_until("until", text)).transpose()?,
        workers: limits.workers,
        batch: limits.batch,
    })
}

fn run_backfill(arguments: &UpgradeRunArguments, json: bool) -> Result<Exit> {
    let options = run_options(&arguments.limits, arguments.until.as_deref())?;
    let upgrade = open(&arguments.config)?;
    let run = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.run(&options, None, progress)
    })?;
    Exit::done_if(run.is_complete()).print(json, &run, &run_text(&run))
}

/// Why a backfill ended.
fn ending_text(ending: Ending) -> &'static str {
    match ending {
        Ending::NothingLeft => "nothing is left that can be embedded",
        Ending::ReachedFraction => "the wanted share is native",
        Ending::SpentBudget => "the budget of this run is used",
        Ending::Paused => "a pause was asked for (`rehang upgrade resume` lets it go on)",
        Ending::Stopped => "a stop was asked for",
        Ending::RolledBack => "the upgrade was rolled back meanwhile; what was made native is kept",
        Ending::EncoderBudgetSpent => "a budget of the encoder is spent",
        Ending::Interrupted => "it was interrupted; run it again to go on",
    }
}

fn run_text(run: &Run) -> String {
    let (summary, failed) = (&run.summary, run.failed_in_all);
    let why = ending_text(summary.ending);
    let share = if summary.items == 0 { 100.0 } else { 100.0 * summary.native as f64 / summary.items as f64 };
    let mut text = format!(
        "{} items made native in {}; {} of {} are native now ({share:.1} %). It ended because {why}.\n",
        summary.done.native,
        duration(summary.elapsed_ms as f64 / 1000.0),
        summary.native,
        summary.items
    );
    if summary.indexed {
        text += INDEXED;
    }
    if let Some(share) = run.share_missed() {
        text += &format!(
            "Less than the {:.1} % asked for are native: the other items have no source, or failed.\n",
            100.0 * share
        );
    }
    if let Some(said) = &summary.encoder_said {
        text += &format!("The encoder says: {said}.\n");
    }
    if summary.caught_up > 0 {
        text += &format!("{} items that came or changed meanwhile were caught up with.\n", summary.caught_up);
    }
    if failed > 0 {
        text += &format!("{failed} items could not be embedded: `rehang upgrade status` lists them.\n");
    }
    text += &spent_text("Spent", summary.spent.money, summary.spent.tokens);
    if let Some(sigma) = summary.sigma.filter(|sigma| sigma.alarm) {
        text += &format!("{}\n{}\n", sigma_text(&sigma), alarm());
    }
    text
}

fn run_status(arguments: &UpgradeStatusArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let clock = SystemClock::start();
    let mut before: Option<(u64, u64)> = None;
    loop {
        let status = upgrade.status(arguments.failures)?;
        // What is wrong with the configuration is for the next verb to say.
        let stands = Stands { status: &status, next: upgrade.next(&AutoOptions::default(), false).ok() };
        let now = clock.now_ms();
        let rate = before.map(|(time, native)| {
            status.counts.native.saturating_sub(native) as f64 * 1000.0 / (now - time).max(1) as f64
        });
        before = Some((now, status.counts.native));
        let over = !arguments.watch || status.phase == Phase::Finished || status.fraction >= 1.0;
        if json && over {
            // Every item that is left, as it is read: there may be millions.
            print_with_lists(upgrade.store(), &stands)?;
        } else {
            let mut text = status_text(&stands, rate);
            if over {
                text += &lists_text(&upgrade, &status)?;
            }
            Exit::Done.print(json, &stands, &text)?;
        }
        if over {
            let alarm = status.sigma.is_some_and(|sigma| sigma.alarm);
            let doubtful = alarm || status.counts.failed > 0;
            return Ok(Exit::done_if(!doubtful));
        }
        clock.wait(WATCH_EVERY);
    }
}

/// The first few of what cannot come home, for people.
fn lists_text(upgrade: &Upgrade, status: &Status) -> Result<String> {
    let mut text = String::new();
    // The record of a rollback comes before searches go back.
    let is_taken_back = matches!(status.phase, Phase::RolledBack | Phase::Abandoned)
        && status.serving.as_ref() == Some(&upgrade.configuration().old.name);
    let mut lists = vec![
        (Left::WithoutSource, Some(status.counts.without_source), "without a source"),
        (
            Left::WithoutVector,
            Some(status.without_vector),
            "without any vector; no search finds them until they are embedded",
        ),
    ];
    if is_taken_back {
        // How many is not known: counting reads all of the old space.
        let words = "without an old vector; no search finds them until the application writes one";
        lists.push((Left::WithoutOldVector, None, words));
    }
    for (what, count, words) in lists {
        if count == Some(0) {
            continue;
        }
        let (ids, next) = left(upgrade.store(), what, None, LISTED)?;
        if ids.is_empty() {
            continue;
        }
        text += &format!("  {words}:\n");
        for id in &ids {
            text += &format!("    {id}\n");
        }
        let more = count.map(|count| count.saturating_sub(ids.len() as u64));
        if next.is_some() && more != Some(0) {
            let more = more.map_or_else(|| "more".to_owned(), |more| format!("{more} more"));
            text += &format!("    … and {more}; --json lists all\n");
        }
    }
    Ok(text)
}

/// A status with what is next on the way.
#[derive(serde::Serialize)]
struct Stands<'a> {
    #[serde(flatten)]
    status: &'a Status,
    next: Option<Next>,
}

/// A status with the ids of everything that cannot come home, in memory for one page of them.
#[derive(serde::Serialize)]
struct WithLists<'a> {
    #[serde(flatten)]
    stands: &'a Stands<'a>,
    items_without_source: Ids<'a>,
    items_without_vector: Ids<'a>,
    items_without_old_vector: Ids<'a>,
}

/// Ids that are read while they are written.
struct Ids<'a> {
    store: &'a dyn Store,
    what: Left,
}

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut after = None;
        loop {
            let (ids, next) = left(self.store, self.what, after, LIST_PAGE).map_err(S::Error::custom)?;
            for id in &ids {
                list.serialize_element(id)?;
            }
            if next.is_none() {
                return list.end();
            }
            after = next;
        }
    }
}

fn print_with_lists(store: &dyn Store, stands: &Stands<'_>) -> Result<()> {
    let ids = |what| Ids { store, what };
    let whole = WithLists {
        stands,
        items_without_source: ids(Left::WithoutSource),
        items_without_vector: ids(Left::WithoutVector),
        items_without_old_vector: ids(Left::WithoutOldVector),
    };
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let outcome = serde_json::to_writer(&mut stdout, &whole)
        .map_err(|error| match error.io_error_kind() {
            Some(kind) => std::io::Error::from(kind),
            None => std::io::Error::other(error.to_string()),
        })
        .and_then(|()| writeln!(stdout).and_then(|()| stdout.flush()));
    written(outcome)
}

fn status_text(stands: &Stands<'_>, rate: Option<f64>) -> String {
    let status = stands.status;
    let counts = &status.counts;
    let mut text = format!(
        "{}: {}\n  from {}\n  to   {}\n  searches go to {:?}\n  {} of {} items are native ({:.1} %), {} adapted, {} wait to be \
         caught up with\n",
        status.gallery,
        status.phase.name(),
        status.old,
        status.new,
        status.serving.as_deref().unwrap_or("nothing"),
        counts.native,
        counts.items,
        100.0 * status.fraction,
        counts.adapted,
        status.lag,
    );
    text += &way_text(stands.next);
    match status.request {
        Request::Run => {}
        Request::Pause => text += "  paused: `rehang upgrade resume` lets backfills go on\n",
        Request::Stop => text += "  stopped: `rehang upgrade resume` lets backfills go on\n",
    }
    if let Some(rate) = rate
        && rate > 0.0
    {
        let left = (counts.items - counts.native).saturating_sub(counts.without_source + counts.failed);
        text += &format!("  {rate:.1} items a second, {} left\n", duration(left as f64 / rate));
    }
    text += &spent_text("  spent by all runs", status.spent.money, status.spent.tokens);
    for worker in &status.at_work {
        let left = duration(worker.left_ms as f64 / 1000.0);
        text += &format!("  {} works on {} items, leased for {left}\n", worker.worker, worker.items);
    }
    if counts.without_source > 0 {
        text += &format!("  {} items have no source: they stay adapted\n", counts.without_source);
    }
    if let Some(sigma) = &status.sigma {
        text += &format!("  {}\n", sigma_text(sigma));
        if sigma.alarm {
            text += &format!("  {}\n", alarm());
        }
    }
    if counts.failed > 0 {
        text += &format!("  {} items could not be embedded:\n", counts.failed);
        for failure in &status.failures {
            text += &format!("    {}: {}\n", failure.id, failure.reason);
        }
    }
    text
}

/// The way, with the place where the upgrade is.
fn way_text(next: Option<Next>) -> String {
    let at = match next {
        Some(Next::Step(Step::Pairs)) => "pairs",
        Some(Next::Step(Step::Fit)) => "fit",
        Some(Next::Step(Step::Report)) => "report",
        Some(Next::Step(Step::Start)) => "start",
        Some(
            Next::Step(Step::Switch | Step::Backfill) | Next::Halt(Halt::NotWorthwhile | Halt::NotMeasured),
        ) => "switch",
        Some(Next::Step(Step::Run) | Next::Halt(Halt::Reached)) => "run",
        Some(Next::Halt(Halt::Home)) => "finish",
        _ => return String::new(),
    };
    let steps = ["pairs", "fit", "report", "start", "switch", "run", "finish"];
    let marked = steps.map(|step| if step == at { format!("[{step}]") } else { step.to_owned() });
    format!("  next: {}\n", marked.join(" → "))
}

/// What is said where σ² and the true errors disagree.
fn alarm() -> String {
    format!(
        "ALARM: σ² and the true errors disagree, in scale or in order. The worst may not go first: {}.",
        wording::remedy(&Remedy::FitAgain)
    )
}

/// σ² beside the true errors.
fn sigma_text(sigma: &SigmaHealth) -> String {
    format!(
        "σ² of the last {} backfilled items: mean {:.4}, true squared error {:.4}, τ {}",
        sigma.items,
        sigma.mean_sigma2,
        sigma.mean_squared_error,
        sigma.tau.map_or("–".into(), |tau| format!("{tau:.2}"))
    )
}

fn run_request(arguments: &UpgradeConfig, request: Request, json: bool) -> Result<Exit> {
    let requested = open(arguments)?.request(request)?;
    let text = match request {
        Request::Pause => "Running backfills end after the batches they have in hand.\n",
        Request::Stop => "The backfill stays where it is; what is adapted stays adapted.\n",
        Request::Run => MAY_GO_ON,
    };
    Exit::Done.print(json, &requested, text)
}

fn run_resume(arguments: &UpgradeResumeArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let resumed = with_bar(|progress| upgrade.resume(arguments.retry_failed, arguments.re_embed, progress))?;
    let mut text = MAY_GO_ON.to_owned();
    if resumed.retried > 0 {
        text += &format!("{} failed items will be tried again.\n", resumed.retried);
    }
    if resumed.put_back > 0 {
        text += &format!("{} native items are adapted again and will be embedded again.\n", resumed.put_back);
    }
    Exit::Done.print(json, &resumed, &text)
}

fn run_rollback(arguments: &UpgradeConfig, json: bool) -> Result<Exit> {
    let back = open(arguments)?.rollback()?;
    let mut text = format!(
        "Searches go to {:?} again. The new vectors are kept; `rehang upgrade switch` goes back to them.\n",
        back.serving
    );
    if back.without_old_vector > 0 {
        text += &format!(
            "{} items have no old vector (they were written since the switch) and are not found until the application writes one \
             (`rehang upgrade status --json` lists all): {} …\n",
            back.without_old_vector,
            back.examples.join(", ")
        );
    }
    Exit::done_if(back.without_old_vector == 0).print(json, &back, &text)
}

fn run_finish(arguments: &UpgradeConfig, json: bool) -> Result<Exit> {
    let upgrade = open(arguments)?;
    let done = with_bar(|progress| upgrade.finish(progress))?;
    let mut text = format!(
        "Space {:?} is gone. {} items are native, {} stay adapted.\n",
        done.dropped, done.counts.native, done.counts.adapted
    );
    if done.indexed {
        text += INDEXED;
    }
    if done.lacking > 0 {
        text += &format!("{} items have no vector at all: no search finds them.\n", done.lacking);
    }
    text += "`rehang gallery compact` gives the disk the room back that it took.\n";
    Exit::done_if(done.lacking == 0).print(json, &done, &text)
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use rehang_encode::Spent;
    use rehang_upgrade::{Summary, Tally, Until};

    use super::*;

    #[test]
    fn a_run_says_where_the_share_that_was_asked_for_was_missed() {
        let summary = Summary {
            ending: Ending::NothingLeft,
            encoder_said: None,
            done: Tally::default(),
            items: 10,
            native: 5,
            caught_up: 0,
            indexed: false,
            spent: Spent::default(),
            elapsed_ms: 0,
            encoder_busy_ms: 0,
            sigma: None,
        };
        let text = |until| run_text(&Run { summary: summary.clone(), failed_in_all: 0, until });
        assert!(text(Until::Fraction(0.8)).contains("Less than the 80.0 % asked for"));
        assert!(!text(Until::All).contains("asked for"));
    }
}
