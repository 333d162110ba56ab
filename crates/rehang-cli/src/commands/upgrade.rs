//! `rehang upgrade …`: the verbs of a live upgrade. Each is a call of the library and a sentence about what
//! happened.

mod backfill;
mod learn;
mod plan;
mod shared;
mod status;
mod steps;

use rehang_core::Result;
use rehang_core::report::percent_rounded_up;
use rehang_upgrade::{
    AutoOptions, Ending, Halt, Next, PairsOptions, Phase, Request, RunOptions, Step, StepResult, Upgrade, Way,
};
use serde_json::{Value, json};

use self::backfill::{ending_text, run_text};
use self::learn::{order_text, pairs_text};
use self::plan::{plan_text, ways_text};
use self::shared::open;
pub use self::shared::{bytes, duration};
use self::steps::{start_text, switch_text};
use super::{Exit, end_at_ctrl_c, say_findings, warn};
use crate::arguments::upgrade::{AskedFiles, SampleSize, UpgradeAutoArguments, UpgradeCommand};
use crate::bar::with_bar;

/// Runs one of the verbs.
pub fn run(arguments: &UpgradeCommand, json: bool) -> Result<Exit> {
    match arguments {
        UpgradeCommand::Auto(auto) => run_auto(auto, json),
        UpgradeCommand::Pairs(pairs) => learn::pairs(pairs, json),
        UpgradeCommand::Fit(fit) => learn::fit(fit, json),
        UpgradeCommand::Order(order) => learn::order(order, json),
        UpgradeCommand::Bridge(bridge) => learn::bridge(bridge, json),
        UpgradeCommand::Report(report) => learn::report(report, json),
        UpgradeCommand::Plan(plan) => plan::plan(plan, json),
        UpgradeCommand::Start(config) => steps::start(config, json),
        UpgradeCommand::Switch(switch) => steps::switch(switch, json),
        UpgradeCommand::Run(run) => backfill::run(run, json),
        UpgradeCommand::First(first) => steps::first(first, json),
        UpgradeCommand::Refit(config) => learn::refit(config, json),
        UpgradeCommand::Status(status) => status::status(status, json),
        UpgradeCommand::Pause(config) => steps::request(config, Request::Pause, json),
        UpgradeCommand::Resume(resume) => steps::resume(resume, json),
        UpgradeCommand::Stop(config) => steps::request(config, Request::Stop, json),
        UpgradeCommand::Rollback(config) => steps::rollback(config, json),
        UpgradeCommand::Finish(config) => steps::finish(config, json),
    }
}

fn run_auto(arguments: &UpgradeAutoArguments, json: bool) -> Result<Exit> {
    let SampleSize { items, worth, asked: ref query_files } = arguments.sample;
    let files = learn::asked_files(query_files);
    let run = arguments.extent.fill(arguments.limits.fill(RunOptions::default())?)?;
    let run = arguments.choices.fill(run)?;
    let options = AutoOptions {
        pairs: PairsOptions { items, worth, run },
        method: arguments.method.parse()?,
        within: arguments.within.as_deref().map(str::parse).transpose()?,
        go: arguments.yes,
        fused: arguments.fused,
        switch_if: arguments.switch_if.parse()?,
        order_for: arguments.order_for.as_deref().map(str::parse).transpose()?,
        way: match (arguments.plain, arguments.mapped) {
            (true, _) => Some(Way::Plain),
            (_, true) => Some(Way::Mapped),
            _ => None,
        },
    };
    let upgrade = open(&arguments.config)?;
    if arguments.dry_run {
        return dry_run(&upgrade, &options, arguments, json);
    }
    let (mut steps, mut all_done) = (Vec::new(), true);
    let halt = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.auto(&options, &files, None, progress, |taken| {
            let (name, value, text, done) = taken_text(&upgrade, taken, &options)?;
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

/// Gives the name of a step that was taken, its result as data and in words, and whether it left nothing to a
/// person.
fn taken_text(
    upgrade: &Upgrade,
    taken: &StepResult<'_>,
    options: &AutoOptions,
) -> Result<(&'static str, Value, String, bool)> {
    let (name, mut value) = taken.result()?;
    let (text, done) = match *taken {
        StepResult::Examined(examined) => {
            let (text, worded) = super::doctor::said(examined);
            value = worded;
            (text, examined.bad == 0)
        }
        StepResult::Ways(ways) => (ways_text(ways), true),
        StepResult::Pairs(pairs) => {
            say_findings(&pairs.findings);
            (pairs_text(pairs, options.pairs.worth), pairs.is_complete())
        }
        StepResult::Fit(answer) => {
            super::fit::say(answer);
            (super::fit::text(answer), super::fit::outcome(answer) == Exit::Done)
        }
        StepResult::Order(choice) => (order_text(choice), choice.is_some()),
        StepResult::Report(reported) => {
            super::report::write(&reported.report, &reported.findings, &[])?;
            let text = super::report::verdict(&reported.report);
            (text, super::report::outcome(&reported.report) == Exit::Done)
        }
        StepResult::Plan(outlook) => {
            warn(&outlook.findings());
            (plan_text(outlook), true)
        }
        StepResult::Start(started) => {
            warn(&started.findings);
            (start_text(upgrade, started)?, true)
        }
        StepResult::Switch(switched) => {
            let status = upgrade.status(0)?;
            // Items without a vector at the switch of a plain upgrade are embedded after it; its end says
            // which are left.
            (switch_text(switched), switched.lacking == 0 || status.plain)
        }
        StepResult::Run(run) => {
            say_findings(&run.findings);
            (run_text(run), run.is_complete())
        }
    };
    Ok((name, value, text, done))
}

/// Says why no step is next, and whether that end is what was asked for.
fn halt_text(halt: Halt, upgrade: &Upgrade) -> Result<(String, bool)> {
    let config = upgrade.configuration().path.display();
    Ok(match halt {
        Halt::NothingToEmbed | Halt::Finished => {
            let status = upgrade.status(0)?;
            let failed = status.counts.failed;
            let mut text = if failed > 0 {
                format!("{failed} items could not be embedded: `rehang upgrade status` lists them.\n")
            } else {
                String::new()
            };
            let unfound = if status.plain { status.without_vector } else { 0 };
            let next = upgrade.next(&AutoOptions { way: Some(Way::Plain), ..AutoOptions::default() }, false)?;
            let came = unfound > 0 && matches!(next, Next::Step(Step::Backfill | Step::Run | Step::Resume));
            if came {
                text += &format!(
                    "{unfound} items came meanwhile: no search finds them until `rehang upgrade run` embeds them, or `rehang upgrade run \
                     --follow`, which stays.\n"
                );
            } else if unfound > 0 {
                text += &format!("No search finds {unfound} items: `rehang upgrade status` lists them.\n");
            }
            text += match halt {
                Halt::Finished if came => "The upgrade is finished.\n",
                Halt::Finished => {
                    "The upgrade is finished, and nothing is left to embed. What comes without a vector of the new model waits for `rehang upgrade \
                     run`.\n"
                }
                _ if came => "`rehang upgrade finish` drops the old space for good; until then `rehang upgrade rollback` goes back.\n",
                _ => {
                    "Nothing more is to be embedded. `rehang upgrade finish` drops the old space for good; until then `rehang upgrade rollback` \
                     goes back.\n"
                }
            };
            (text, failed == 0 && unfound == 0)
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
        Halt::NeedsAttention => ("The gallery needs attention first.\n".into(), false),
        Halt::TooManyMissing => {
            let status = upgrade.status(0)?;
            let text = format!(
                "Nothing is switched: no search would find {} of {} items, which cannot be embedded (`rehang upgrade status` lists them). \
                 `rehang upgrade switch --anyway` goes on by hand; `rehang upgrade auto --mapped` maps those that have an old vector.\n",
                status.counts.lacking, status.counts.items
            );
            (text, false)
        }
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
            "The forecast never is what --switch-if asks for. Searches stay with the old model; `--fused`, or `rehang upgrade switch \
             --anyway` by hand, goes on.\n"
                .into(),
            false,
        ),
        Halt::RolledBack => {
            let verb = match upgrade.status(0)?.phase {
                // The upgrade was rolled back while its space was being filled.
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

/// Prints the steps that are left, as the commands that a person would type, and does nothing.
fn dry_run(
    upgrade: &Upgrade,
    options: &AutoOptions,
    arguments: &UpgradeAutoArguments,
    json: bool,
) -> Result<Exit> {
    let steps_left = upgrade.steps_left(options, &learn::asked_files(&arguments.sample.asked))?;
    let next = match steps_left.next {
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
    let (extent, limits) = (arguments.extent.words(), arguments.limits.words());
    let choices = arguments.choices.words();
    let until: Vec<&str> = extent.iter().map(String::as_str).collect();
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    let run: Vec<&str> = limits.iter().copied().chain(choices.iter().map(String::as_str)).collect();
    let first = steps_left.switch_from.map(|from| format!("{}%", percent_rounded_up(from)));
    let first = first.as_deref().map_or_else(Vec::new, |share| vec!["--until", share]);
    let AskedFiles { queries, clicks } = &arguments.sample.asked;
    let query_paths = [("--queries", queries), ("--clicks", clicks)];
    let query_paths: Vec<(&str, String)> = query_paths
        .iter()
        .filter_map(|(option, path)| Some((*option, path.as_ref()?.display().to_string())))
        .collect();
    let queries: Vec<&str> = query_paths.iter().flat_map(|(option, path)| [*option, path.as_str()]).collect();
    let (items, worth) = (options.pairs.items.to_string(), options.pairs.worth.to_string());
    let mut commands = Vec::new();
    for step in &steps_left.steps {
        let words = match step {
            Step::Pairs => {
                [vec!["pairs", "--items", &items, "--worth", &worth], queries.clone(), limits.clone()]
                    .concat()
            }
            Step::Fit => {
                let within = arguments.within.as_deref();
                [
                    vec!["fit", "--method", &arguments.method],
                    within.map_or_else(Vec::new, |within| vec!["--within", within]),
                ]
                .concat()
            }
            Step::Order => {
                let metric = arguments.order_for.as_deref();
                [vec!["order"], metric.map_or_else(Vec::new, |metric| vec!["--for", metric])].concat()
            }
            Step::Report => vec!["report"],
            Step::Start => {
                commands.push(command(&["plan"]));
                if steps_left.way == Way::Plain { vec!["start", "--plain"] } else { vec!["start"] }
            }
            Step::Backfill => [vec!["run"], first.clone(), run.clone()].concat(),
            Step::Switch if options.fused => vec!["switch", "--fused"],
            Step::Switch => vec!["switch"],
            Step::Run => [vec!["run"], until.clone(), run.clone()].concat(),
            Step::Resume => vec!["resume"],
        };
        commands.push(command(&words));
    }
    let mut text = commands.join("\n") + "\n";
    if steps_left.may_be_plain {
        text += "A few items are embedded first. Where they say that re-embedding everything takes ten minutes at most, `start --plain`, `run` and `switch` \
                 are all that is done.\n";
    }
    if steps_left.may_backfill_first {
        text += "Where the forecast is below --switch-if, `rehang upgrade run --until SHARE` comes before the switch.\n";
    }
    Exit::Done.print(json, &json!({ "commands": commands, "next": next }), &text)
}
