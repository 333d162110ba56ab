//! `rehang upgrade pairs`, `fit`, `order`, `bridge`, `refit` and `report`: what is learned from pairs.

use rehang_core::Result;
use rehang_fit::{BridgeRow, OrderChoice};
use rehang_upgrade::{Bridged, Enough, PairsDrawn, PairsFiles, PairsOptions, Refit, RunOptions};
use serde_json::json;

use super::backfill::{ending_text, spent_text};
use super::shared::open;
use crate::arguments::upgrade::{
    AskedFiles, SampleSize, UpgradeBridgeArguments, UpgradeConfig, UpgradeFitArguments,
    UpgradeOrderArguments, UpgradePairsArguments, UpgradeReportArguments,
};
use crate::bar::with_bar;
use crate::commands::{self, Exit, end_at_ctrl_c, one_decimal, say_findings};

pub fn pairs(arguments: &UpgradePairsArguments, json: bool) -> Result<Exit> {
    let SampleSize { items, worth, asked: ref query_files } = arguments.sample;
    let run = arguments.limits.fill(RunOptions { no_refit: true, ..RunOptions::default() })?;
    let options = PairsOptions { items, worth, run };
    let files = PairsFiles { folder: arguments.out.as_deref(), ..asked_files(query_files) };
    let upgrade = open(&arguments.config)?;
    let drawn = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.pairs(&options, &files, None, progress)
    })?;
    say_findings(&drawn.findings);
    let next = match drawn.enough {
        Enough::Ended(_) => "",
        _ if upgrade.configuration().names_adapter() => "Next: `rehang upgrade report`.\n",
        _ => "Next: `rehang upgrade fit`.\n",
    };
    let text = pairs_text(&drawn, options.worth) + next;
    Exit::done_if(drawn.is_complete()).print(json, &drawn, &text)
}

/// Gives the files of queries and clicks as the library takes them.
pub fn asked_files(files: &AskedFiles) -> PairsFiles<'_> {
    PairsFiles { folder: None, queries: files.queries.as_deref(), clicks: files.clicks.as_deref() }
}

pub fn pairs_text(drawn: &PairsDrawn, worth: f64) -> String {
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
    if let Some(message) = &drawn.encoder_said {
        text += &format!("The encoder says: {message}.\n");
    }
    text += &spent_text("Spent", drawn.spent.money, drawn.spent.tokens);
    if let Some(queries) = drawn.queries {
        text += &format!("{queries} queries are embedded by both models.\n");
    }
    if let Some(clicks) = drawn.clicks {
        text += &format!("{} clicks say what is right.", clicks.kept);
        let unused_clicks = [
            (clicks.unknown_items, "of items that are not in this gallery"),
            (clicks.unknown_queries, "of queries that are not in --queries"),
        ];
        for (count, what) in unused_clicks.into_iter().filter(|(count, _)| *count > 0) {
            text += &format!(" {count} more are {what}.");
        }
        text += "\n";
    }
    if let Some(first) = drawn.queries_left_out.first() {
        text += &format!("{} queries are left out; the first: {first}.\n", drawn.queries_left_out.len());
    }
    if let Some(folder) = &drawn.folder {
        text += &format!("Written to {}.\n", folder.display());
    }
    text
}

pub fn refit(arguments: &UpgradeConfig, json: bool) -> Result<Exit> {
    let upgrade = open(arguments)?;
    let answer = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.refit(progress)
    })?;
    commands::say_findings(&answer.findings());
    Exit::Done.print(json, &answer, &refit_text(&answer))
}

/// Says in a line what a refit was found to be worth, and whether it was taken.
pub fn refit_text(refit: &Refit) -> String {
    let gain = &refit.gain;
    let asked_at =
        refit.asked_at.map_or_else(String::new, |share| format!(" (asked at {:.0} %)", 100.0 * share));
    let what = format!(
        "squared error {:.4} → {:.4} (± {:.4}) on {} items kept for measuring, with a map of {} pairs at {} native items{asked_at}",
        gain.before, gain.after, gain.spread, gain.items, refit.pairs, refit.native
    );
    if refit.taken {
        format!("Refitted: {what}. Adapted vectors are made anew by it.\n")
    } else {
        format!("No refit: {what}. It is not worth making adapted vectors anew.\n")
    }
}

pub fn fit(arguments: &UpgradeFitArguments, json: bool) -> Result<Exit> {
    let method = arguments.method.parse()?;
    let within = arguments.within.as_deref().map(str::parse).transpose()?;
    let upgrade = open(&arguments.config)?;
    let mut answer = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.fit(method, within, progress)
    })?;
    if let Some(out) = &arguments.out {
        answer.write(out)?;
    }
    commands::fit::say(&answer);
    let text = commands::fit::text(&answer) + "Next: `rehang upgrade report`, or `rehang upgrade start`.\n";
    commands::fit::outcome(&answer).print(json, &answer.to_json(), &text)
}

pub fn order(arguments: &UpgradeOrderArguments, json: bool) -> Result<Exit> {
    let metric = arguments.order_for.as_deref().map(str::parse).transpose()?;
    let upgrade = open(&arguments.config)?;
    let choice = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.choose_order(metric, progress)
    })?;
    let text = order_text(choice.as_ref());
    Exit::done_if(choice.is_some()).print(json, &json!({ "choice": choice }), &text)
}

/// Says what each order is worth, and which one is followed.
pub fn order_text(choice: Option<&OrderChoice>) -> String {
    let Some(choice) = choice else {
        return "No order was chosen: too few pairs to hold any out. `rehang upgrade pairs` draws more.\n"
            .into();
    };
    let mut text = format!(
        "Area of {} on held-out pairs while they become native ({} splits, adapted by {}), in percent:\n",
        choice.criterion, choice.splits, choice.method
    );
    for row in &choice.rows {
        let areas: Vec<String> =
            row.areas.iter().map(|of| format!("{} {}", of.gallery, one_decimal(of.area))).collect();
        text += &format!("  {:<10} {}\n", row.policy.name(), areas.join(", "));
    }
    text + &format!("The order is {:?} from the next `rehang upgrade start` on.\n", choice.policy().name())
}

pub fn bridge(arguments: &UpgradeBridgeArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    if arguments.off {
        let bridged = upgrade.remove_bridge()?;
        return Exit::Done.print(json, &bridged, "Queries go to the old space as they are.\n");
    }
    let bridged = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.bridge(progress)
    })?;
    Exit::Done.print(json, &bridged, &bridged_text(&bridged))
}

fn bridged_text(bridged: &Bridged) -> String {
    let Some(choice) = &bridged.choice else {
        return "No bridge: too few pairs to prove that one finds more than doing nothing. Queries go to the old space as they are.\n".into();
    };
    let queries = choice.queries.map_or(String::new(), |queries| format!(", asked by {queries} queries"));
    let searched = match (choice.others, choice.held_out) {
        (0, (known, left_out)) => {
            format!("On held-out pairs ({known} of known classes, {left_out} of classes left out)")
        }
        (others, _) => format!("Among {others} items that are no pairs"),
    };
    let mut text =
        format!("{searched}, {} splits{queries}, {} in percent:\n", choice.splits, choice.criterion);
    let row = |name: &str, row: &BridgeRow| {
        format!("  {name:<22} {:>6}  {}\n", one_decimal(row.quality), commands::fit::gains(&row.gains))
    };
    text += &format!("  {:<22} {:>6}\n", "do nothing", one_decimal(choice.do_nothing));
    if let Some(chosen) = choice.kept_row() {
        text += &row("bridge", chosen);
    }
    if let Some(alone) =
        choice.without_old().filter(|_| choice.kept_row().is_none_or(|chosen| chosen.share < 1.0))
    {
        text += &row("the new query alone", alone);
    }
    text += &match choice.kept_row() {
        None => {
            "No bridge: none is proven to be above doing nothing. Queries go to the old space as they are.\n"
                .to_owned()
        }
        Some(chosen) if chosen.share >= 1.0 => {
            "New queries search the old gallery over the bridge now, and the old model may be switched off.\n"
                .to_owned()
        }
        Some(chosen) => format!(
            "Queries search the old gallery over the bridge now: {:.0} % by the new model, {:.0} % by the old one. Each needs both.\n",
            100.0 * chosen.share,
            100.0 * (1.0 - chosen.share)
        ),
    };
    if bridged.bridge.is_some() {
        text += "`rehang upgrade bridge --off` takes it away; so do a switch and a rollback.\n";
    }
    text
}

pub fn report(arguments: &UpgradeReportArguments, json: bool) -> Result<Exit> {
    commands::report::expect_outputs(&arguments.out)?;
    let upgrade = open(&arguments.config)?;
    let reported = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.report_by(&asked_files(&arguments.asked), progress)
    })?;
    commands::report::write(&reported.report, &reported.findings, &arguments.out)?;
    let value = json!({ "reports": arguments.out, "data": reported.report });
    commands::report::outcome(&reported.report).print(
        json,
        &value,
        &commands::report::verdict(&reported.report),
    )
}
