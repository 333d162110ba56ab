//! `rehang upgrade start`, `first`, `switch`, `pause`, `stop`, `resume`, `rollback` and `finish`: one step
//! each.

use rehang_core::Result;
use rehang_upgrade::{Location, PutFirst, Request, Serving, Started, Switched, Upgrade};

use super::plan::WITHOUT_ADAPTER;
use super::shared::open;
use crate::arguments::upgrade::{
    UpgradeConfig, UpgradeFinishArguments, UpgradeFirstArguments, UpgradeResumeArguments,
    UpgradeStartArguments, UpgradeSwitchArguments,
};
use crate::bar::with_bar;
use crate::commands::{Exit, end_at_ctrl_c, say_findings, warn};

/// Sentence that is said where backfills are allowed again.
const MAY_GO_ON: &str = "Backfills may go on: `rehang upgrade run`.\n";
/// Sentence that is said where the search index was made anew, since most of its vectors were replaced.
pub const INDEXED: &str = "The search index was made again.\n";

pub fn start(arguments: &UpgradeStartArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let started = with_bar(|progress| {
        end_at_ctrl_c(progress);
        if arguments.plain { upgrade.start_plain(progress) } else { upgrade.start(progress) }
    })?;
    Exit::Done.print(json, &started, &start_text(&upgrade, &started)?)?;
    Ok(warn(&started.findings))
}

pub fn start_text(upgrade: &Upgrade, started: &Started) -> Result<String> {
    let configuration = upgrade.configuration();
    let new = upgrade.new_space()?;
    let mut text = if started.plain {
        let embeds =
            format!("`rehang upgrade run` embeds {} items there, and nothing is mapped", started.lacking);
        format!("{new} is made: {embeds}.\n")
    } else if started.as_they_are {
        format!("{} OLD vectors stand in {new} as they are.\n{WITHOUT_ADAPTER}", started.adapted)
    } else {
        format!("{} vectors adapted into {new}.\n", started.adapted)
    };
    if started.replanned {
        text += "The upgrade was under way: adapted vectors were made again, native ones kept.\n";
    }
    if started.lacking > 0 && !started.plain {
        text += &format!(
            "{} items have no vector in the new space: they have no old one, or were written meanwhile. The backfill takes them first.\n",
            started.lacking
        );
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

pub fn first(arguments: &UpgradeFirstArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let put = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.put_first(&arguments.log, progress)
    })?;
    let PutFirst { placed, native, before, changed, unknown } = put;
    let mut text = format!(
        "{placed} items of the log come first now: those that were returned most, and that the adapter is least sure of.\n"
    );
    let counts = [
        (native, "native already"),
        (before, "before these anyway"),
        (changed, "changed meanwhile, and first by that"),
        (unknown, "not in this gallery"),
    ];
    let phrases: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !phrases.is_empty() {
        text += &format!("Not placed: {}.\n", phrases.join(", "));
    }
    Exit::Done.print(json, &put, &text)
}

pub fn switch(arguments: &UpgradeSwitchArguments, json: bool) -> Result<Exit> {
    let options = [(arguments.fused, Serving::Fused), (arguments.mixed, Serving::Mixed)];
    let serving = options.into_iter().find_map(|(is_asked, serving)| is_asked.then_some(serving));
    let (switched, findings) = open(&arguments.config)?.switch(serving, arguments.anyway)?;
    warn(&findings);
    let text = switch_text(&switched);
    Exit::done_if(switched.lacking == switched.came).print(json, &switched, &text)
}

pub fn switch_text(switched: &Switched) -> String {
    let mut text = format!("Searches go to {:?} now.\n", switched.serving);
    text += match switched.serving_as {
        Serving::Mixed => "",
        Serving::Fused => {
            "They are fused: each needs its query by both models (`rehang search --text` with [encoder] and [old.encoder], or `--vectors NEW --old-vectors OLD`).\n"
        }
        Serving::Either => {
            "Those that come with their query by both models find more (`rehang search --text` with [encoder] and [old.encoder], or `--vectors NEW --old-vectors OLD`); `--mixed` turns this off.\n"
        }
    };
    let items_left = switched.lacking - switched.came;
    if items_left > 0 {
        text += &format!(
            "{items_left} items have no vector there yet and are not found until `rehang upgrade run` embeds them.\n"
        );
    }
    if switched.came > 0 {
        text += &format!("{} items came meanwhile and have none there yet.\n", switched.came);
    }
    text += "What is written from now on with an old vector alone is found by `rehang upgrade run --follow`, within a second.\n";
    text
}

pub fn request(arguments: &UpgradeConfig, request: Request, json: bool) -> Result<Exit> {
    let requested = open(arguments)?.request(request)?;
    let text = match request {
        Request::Pause => "Running backfills end after the batches they have in hand.\n",
        Request::Stop => "The backfill stays where it is; what is adapted stays adapted.\n",
        Request::Run => MAY_GO_ON,
    };
    Exit::Done.print(json, &requested, text)
}

pub fn resume(arguments: &UpgradeResumeArguments, json: bool) -> Result<Exit> {
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

pub fn rollback(arguments: &UpgradeConfig, json: bool) -> Result<Exit> {
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

pub fn finish(arguments: &UpgradeFinishArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    say_findings(&upgrade.before_finish()?);
    let done = with_bar(|progress| upgrade.finish(arguments.anyway, progress))?;
    let mut text = format!(
        "Space {:?} is gone. {} items are native, {} are adapted.\n",
        done.dropped, done.counts.native, done.counts.adapted
    );
    if done.indexed {
        text += INDEXED;
    }
    if done.lacking > 0 {
        text += &format!("{} items have no vector at all: no search finds them.\n", done.lacking);
    }
    if done.to_embed() > 0 {
        text += &format!("{} items with a source wait for `rehang upgrade run`.\n", done.to_embed());
    }
    // Vectors of a collection are the application's to drop.
    if !matches!(upgrade.configuration().gallery, Location::Collection(_)) {
        text += "`rehang gallery compact` gives the disk the room back that it took.\n";
    }
    text += &remarks_text(&upgrade)?;
    Exit::done_if(done.lacking == 0).print(json, &done, &text)
}

/// Gives the remarks of the store, such as what a release will do to an application, one a line.
pub fn remarks_text(upgrade: &Upgrade) -> Result<String> {
    Ok(upgrade.remarks()?.iter().map(|remark| format!("· {remark}\n")).collect())
}
