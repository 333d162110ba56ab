//! `rehang upgrade run`: the backfill.

use rehang_core::Result;
use rehang_upgrade::{Ending, Run, RunOptions, Until};

use super::learn::refit_text;
use super::shared::{duration, open};
use super::status::{alarm, sigma_text};
use super::steps::INDEXED;
use crate::arguments::upgrade::UpgradeRunArguments;
use crate::bar::with_bar;
use crate::commands::{Exit, end_at_ctrl_c, say_findings};

pub fn run(arguments: &UpgradeRunArguments, json: bool) -> Result<Exit> {
    let UpgradeRunArguments { config, extent, choices, alone, limits } = arguments;
    let options = extent.fill(limits.fill(RunOptions::default())?)?;
    let options = alone.fill(choices.fill(options)?)?;
    let upgrade = open(config)?;
    let run = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.run(&options, None, progress)
    })?;
    say_findings(&run.findings);
    Exit::done_if(run.is_complete()).print(json, &run, &run_text(&run))
}

/// Says why a backfill ended.
pub fn ending_text(ending: Ending) -> &'static str {
    match ending {
        Ending::NothingLeft => "nothing is left that can be embedded",
        Ending::ReachedFraction => "the wanted share is native",
        Ending::SpentBudget => "the budget of this run is used",
        Ending::Paused => "a pause was asked for (`rehang upgrade resume` lets it go on)",
        Ending::Stopped => "a stop was asked for",
        Ending::RolledBack => "the upgrade was rolled back meanwhile; what was made native is kept",
        Ending::EncoderBudgetSpent => "a budget of the encoder is spent",
        Ending::Interrupted => "it was interrupted; run it again to go on",
        Ending::Dismissed => "it was asked to; what comes from now on waits for the next follower or run",
        Ending::Released => "the gallery was released",
    }
}

pub fn run_text(run: &Run) -> String {
    let (summary, failed) = (&run.summary, run.failed_in_all);
    let why = match (summary.ending, run.asked_until) {
        (Ending::ReachedFraction, Until::Worth { points, unit }) => {
            format!("a further {} is forecast to bring less than {points} points from here on", unit.name())
        }
        (Ending::ReachedFraction, Until::Enough) => {
            "98 % of the new model's quality is forecast from this share on".to_owned()
        }
        (ending, _) => ending_text(ending).to_owned(),
    };
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
    if let Some(message) = &summary.encoder_said {
        text += &format!("The encoder says: {message}.\n");
    }
    if summary.copied > 0 {
        text += &format!("{} of them have the source of another item, and cost nothing.\n", summary.copied);
    }
    if summary.caught_up > 0 {
        text += &format!("{} items that came or changed meanwhile were caught up with.\n", summary.caught_up);
    }
    for refit in &run.refits {
        text += &refit_text(refit);
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

/// Says in a line what an encoder has used; empty where it takes no money.
pub fn spent_text(what: &str, money: f64, tokens: u64) -> String {
    if money > 0.0 { format!("{what}: {money:.4} for {tokens} tokens\n") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use rehang_encode::Spent;
    use rehang_upgrade::{Summary, Tally, Unit};

    use super::*;

    #[test]
    fn a_run_says_where_the_share_that_was_asked_for_was_missed() {
        let summary = Summary {
            ending: Ending::NothingLeft,
            encoder_said: None,
            done: Tally::default(),
            items: 10,
            native: 5,
            copied: 0,
            caught_up: 0,
            indexed: false,
            spent: Spent::default(),
            elapsed_ms: 0,
            encoder_busy_ms: 0,
            sigma: None,
        };
        let run = |until| {
            let (refits, findings) = (Vec::new(), Vec::new());
            Run { summary: summary.clone(), failed_in_all: 0, refits, findings, until, asked_until: until }
        };
        let text = |until| run_text(&run(until));
        assert!(text(Until::Fraction(0.8)).contains("Less than the 80.0 % asked for"));
        assert!(!text(Until::All).contains("asked for"));
        let until = |asked_until| {
            let summary = Summary { ending: Ending::ReachedFraction, ..summary.clone() };
            run_text(&Run { summary, asked_until, ..run(Until::Fraction(0.5)) })
        };
        let worth = until(Until::Worth { points: 0.5, unit: Unit::Hours });
        assert!(
            worth.contains("because a further hour is forecast to bring less than 0.5 points"),
            "{worth}"
        );
        assert!(until(Until::Enough).contains("because 98 % of the new model's quality"));
        assert!(until(Until::Fraction(0.5)).contains("because the wanted share is native"));
    }
}
