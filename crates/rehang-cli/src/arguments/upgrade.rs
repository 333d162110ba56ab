//! Arguments of `rehang upgrade`.

use std::path::PathBuf;

use clap::Subcommand;
use rehang_upgrade::{PairsOptions, RunOptions};

/// The verbs of an upgrade, in the order of their use.
#[derive(Debug, Subcommand)]
pub enum UpgradeCommand {
    /// Go the whole way from where the upgrade is: doctor, pairs, fit, report, plan; with --yes on to start,
    /// switch and run. Where re-embedding everything takes ten minutes at most, the plain way: plan; with
    /// --yes on to start, run and switch, and nothing is mapped. The same command goes on after any death. It
    /// never finishes.
    Auto(UpgradeAutoArguments),
    /// Draw pairs: embed a random sample of the gallery with the new model, until more would not teach an
    /// adapter much. They are kept as vectors of the new model, so no item is paid for twice.
    Pairs(UpgradePairsArguments),
    /// Fit an adapter on the gallery's own pairs and keep it for the upgrade.
    Fit(UpgradeFitArguments),
    /// Choose which items are re-embedded first, for a metric: by what held-out pairs find in each order.
    /// Where [order] policy is "auto" in the configuration, the next start follows it.
    Order(UpgradeOrderArguments),
    /// Let new queries search the old gallery as it is, over a bridge that is fitted on the gallery's own
    /// pairs: no vector is written. Where held-out pairs do not prove that it finds more, there is none.
    Bridge(UpgradeBridgeArguments),
    /// Measure the adapter on the pairs that were held out: what the upgrade would buy.
    Report(UpgradeReportArguments),
    /// Say what the upgrade would do, how long it takes and what it costs; changes nothing.
    Plan(UpgradePlanArguments),
    /// Fill the new space with adapted vectors; searches stay where they are. Repeat it to go on after a
    /// crash, to catch up, or with another adapter or order.
    Start(UpgradeStartArguments),
    /// Let searches go to the new space, in one atomic step.
    Switch(UpgradeSwitchArguments),
    /// Re-embed items worst first, until a limit is met or nothing is left, also after `finish`. Kill it
    /// whenever you like; run it again.
    Run(UpgradeRunArguments),
    /// Re-embed first what people search: items by how often a log says that searches returned them, times
    /// their σ².
    First(UpgradeFirstArguments),
    /// Ask whether fitting the map again, on all that is native by now, pays; where it does, make all adapted
    /// vectors anew. A run asks by itself at 10 % and 40 % native.
    Refit(UpgradeConfig),
    /// How the upgrade stands.
    Status(UpgradeStatusArguments),
    /// Ask a running backfill to finish its batches and end; `resume` allows the next one.
    Pause(UpgradeConfig),
    /// Allow backfills again after pause or stop.
    Resume(UpgradeResumeArguments),
    /// End the backfill where it is: what is adapted stays adapted.
    Stop(UpgradeConfig),
    /// Let searches go back to the old space, at once. The new vectors are kept.
    Rollback(UpgradeConfig),
    /// Drop the old space for good. There is no way back after it; what is still adapted then is embedded by
    /// a later `run`.
    Finish(UpgradeFinishArguments),
}

/// Makes arguments of the options of a run.
macro_rules! of_runs {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$help:meta])* $field:ident: $type:ty $(= $value:tt)?,)*
    })*) => {
        $(arguments! {
            $(#[$about])*
            $name => ..RunOptions { $($(#[$help])* $field: $type = [long $(, value_name = $value)?],)* }
        })*
    };
}
rehang_upgrade::run_options!(of_runs);

arguments! {
    /// File in which the upgrade is written down.
    UpgradeConfig {
        /// Configuration of the upgrade.
        config: PathBuf = [long, value_name = "FILE", default_value = "rehang.toml"],
    }

    /// Options of `rehang upgrade auto`.
    UpgradeAutoArguments {
        config: UpgradeConfig = [flatten],
        /// Go on after the plan: fill the new space, switch, and re-embed.
        yes: bool = [long],
        /// Embed everything, then switch: nothing is mapped, fitted or measured.
        plain: bool = [long, conflicts_with = "mapped"],
        /// Map first, also where re-embedding everything is the shorter way.
        mapped: bool = [long],
        /// Print what is left to do as the commands that a person would type, and do nothing.
        dry_run: bool = [long],
        /// Switch where the forecast is at least this from then on, and re-embed first until it is: ">= doing
        /// nothing", or a quality in percent such as ">= 70".
        switch_if: String = [long, value_name = "CONDITION", default_value = ">= doing nothing"],
        /// Serve fused searches where the switch is not worth it yet, instead of re-embedding first. Searches
        /// then need both queries.
        fused: bool = [long],
        /// The map: auto compares them as they would serve.
        method: String = [long, value_name = "METHOD", default_value = "auto"],
        /// Keep the best map of those that can be tried within this time (60s, 5min), closed forms first; the
        /// others are named.
        within: Option<String> = [long, value_name = "TIME"],
        /// Choose the order of the backfill for a metric, as `rehang upgrade order` does, before the report.
        order_for: Option<String> = [long = "for", value_name = "METRIC"],
        sample: SampleSize = [flatten],
        extent: RunExtent = [flatten],
        choices: RunChoices = [flatten],
        /// Limits; the budget is over all steps.
        limits: RunLimits = [flatten],
    }

    /// How many pairs are drawn.
    SampleSize {
        /// Items of the sample, at most: it begins with 250 and is doubled.
        items: usize = [long, value_name = "N", default_value_t = PairsOptions::default().items],
        /// Go on while one more doubling is expected to bring this many points of agreement; 0 draws all
        /// --items.
        worth: f64 = [long, value_name = "POINTS", default_value_t = PairsOptions::default().worth],
        asked: AskedFiles = [flatten],
    }

    /// Queries of people, and what they take from the answers.
    AskedFiles {
        /// Queries as people ask them, one JSON object a line: {"text": "…"} or {"image": "FILE"}, with an
        /// "id" where --clicks names it. Both models embed them ([old.encoder] too), and the map is chosen
        /// and forecast by them.
        queries: Option<PathBuf> = [long, value_name = "FILE"],
        /// Clicks, which are what people took from the answers: CSV with the columns query, item and weight
        /// or position, or JSON lines with these fields. Choice and forecast then go by nDCG@10 of the
        /// clicks. Without --queries, the queries of the clicks are texts.
        clicks: Option<PathBuf> = [long, value_name = "FILE"],
    }

    /// Options of `rehang upgrade pairs`.
    UpgradePairsArguments {
        config: UpgradeConfig = [flatten],
        sample: SampleSize = [flatten],
        /// Write the pairs into this folder too: old.npy, new.npy, ids.txt, held-out.npy, labels.npy.
        out: Option<PathBuf> = [long, value_name = "FOLDER"],
        limits: RunLimits = [flatten],
    }

    /// Options of `rehang upgrade fit`.
    UpgradeFitArguments {
        config: UpgradeConfig = [flatten],
        /// The map: auto compares them as they would serve.
        method: String = [long, value_name = "METHOD", default_value = "auto"],
        /// Keep the best map of those that can be tried within this time (60s, 5min), closed forms first; the
        /// others are named.
        within: Option<String> = [long, value_name = "TIME"],
        /// Write the adapter to this file too.
        out: Option<PathBuf> = [short = 'o', long, value_name = "FILE"],
    }

    /// Options of `rehang upgrade order`.
    UpgradeOrderArguments {
        config: UpgradeConfig = [flatten],
        /// Metric that has to be good on the way: map, top1, top5 and others by label, agreement@10 without
        /// labels [default: what a fit goes by].
        order_for: Option<String> = [long = "for", value_name = "METRIC"],
    }

    /// Options of `rehang upgrade bridge`.
    UpgradeBridgeArguments {
        config: UpgradeConfig = [flatten],
        /// Take the bridge away: queries go to the old space as they are again.
        off: bool = [long],
    }

    /// Options of `rehang upgrade first`.
    UpgradeFirstArguments {
        config: UpgradeConfig = [flatten],
        /// Ids of items that searches returned, one a line, as often as they were returned.
        log: PathBuf = [value_name = "LOG"],
    }

    /// Options of `rehang upgrade report`.
    UpgradeReportArguments {
        config: UpgradeConfig = [flatten],
        asked: AskedFiles = [flatten],
        /// Report to write (.html, .md or .json) beside the one that the gallery keeps; repeatable.
        out: Vec<PathBuf> = [short, long, value_name = "FILE"],
    }

    /// Options of `rehang upgrade plan`.
    UpgradePlanArguments {
        config: UpgradeConfig = [flatten],
        /// Embed this many items now, to measure the encoder's rate (it costs what embedding them costs;
        /// nothing is written).
        probe: usize = [long, value_name = "ITEMS", default_value_t = 0],
    }

    /// Options of `rehang upgrade start`.
    UpgradeStartArguments {
        config: UpgradeConfig = [flatten],
        /// Make the new space alone: everything is embedded there by `run`, and nothing mapped.
        plain: bool = [long],
    }

    /// Options of `rehang upgrade switch`.
    UpgradeSwitchArguments {
        config: UpgradeConfig = [flatten],
        /// Judge what is not native by both models together, as much by each as held-out pairs found best:
        /// better around the switch, and safe for weak adapters. Searches then need both queries. Without
        /// this and `--mixed`, those that have both are judged so where the fit has proven that it finds
        /// more.
        fused: bool = [long, conflicts_with = "mixed"],
        /// Search by the new model's queries alone, whatever the fit has proven.
        mixed: bool = [long],
        /// Switch although the forecast says that it would serve worse than doing nothing, or the search
        /// index is not ready, or more than one item in a hundred of a plain upgrade has no vector yet.
        anyway: bool = [long],
    }

    /// Options of `rehang upgrade finish`.
    UpgradeFinishArguments {
        config: UpgradeConfig = [flatten],
        /// Finish although items with a source are not native yet, or have nothing but an old vector.
        anyway: bool = [long],
    }

    /// Options of `rehang upgrade resume`.
    UpgradeResumeArguments {
        config: UpgradeConfig = [flatten],
        /// Try the items again that are listed as failed.
        retry_failed: bool = [long],
        /// Put native vectors back to adapted ones, so that the next run embeds their items again: after a
        /// change of [encoder] that gives other vectors.
        re_embed: bool = [long],
    }

    /// Options of `rehang upgrade run`.
    UpgradeRunArguments {
        config: UpgradeConfig = [flatten],
        extent: RunExtent = [flatten],
        choices: RunChoices = [flatten],
        alone: RunAlone = [flatten],
        limits: RunLimits = [flatten],
    }

    /// Options of `rehang upgrade status`.
    UpgradeStatusArguments {
        config: UpgradeConfig = [flatten],
        /// Say it again every second until Ctrl-C or the end of the upgrade; with --json, one object a line.
        watch: bool = [long],
        /// How many failures to list.
        failures: usize = [long, value_name = "N", default_value_t = 10],
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    #[test]
    fn limits_become_options_of_a_run_and_can_be_typed_again() {
        let line = ["--budget", "7", "--rate", "300/min", "--workers", "2"];
        let command = RunLimits::augment_args(Command::new("limits").no_binary_name(true));
        let limits = RunLimits::from_arg_matches(&command.get_matches_from(line)).unwrap();
        assert_eq!(limits.words(), line);
        let options = RunAlone { follow: true }.fill(limits.fill(RunOptions::default()).unwrap()).unwrap();
        let (budget, rate, workers) = (Some(7), Some(5.0), Some(2));
        assert_eq!(options, RunOptions { budget, rate, workers, follow: true, ..RunOptions::default() });
        assert_eq!(RunChoices { no_refit: true }.words(), ["--no-refit"]);
    }
}
