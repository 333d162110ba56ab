//! `rehang identify`.

use std::fmt::Write;

use rehang_core::Result;
use rehang_evaluate::{Identified, IdentifyFiles, Origin, identify};
use rehang_files::NamedFile;
use rehang_upgrade::{IdentifiedSpace, IdentifyOptions, Upgrade};

use super::{Exit, end_at_ctrl_c, say_findings};
use crate::arguments::library::options;
use crate::arguments::vectors::IdentifyArguments;
use crate::bar::with_bar;

/// Says which model made which vectors.
pub fn run(arguments: &IdentifyArguments, json: bool) -> Result<Exit> {
    if let Some(config) = &arguments.config {
        let upgrade = Upgrade::open(config)?;
        let options = options!(IdentifyOptions { space, items, output } from arguments);
        let identified = with_bar(|progress| {
            end_at_ctrl_c(progress);
            upgrade.identify(&options, progress)
        })?;
        say_findings(&identified.found.findings);
        return Exit::done_if(identified.found.origin.is_sound()).print(
            json,
            &identified,
            &of_space(&identified),
        );
    }
    let models =
        arguments.models.iter().map(|text| NamedFile::parse("models", text)).collect::<Result<_>>()?;
    let files =
        options!(IdentifyFiles { vectors, new, join, rows, seed, output } from arguments, models: models);
    let identified = with_bar(|progress| identify(&files, progress))?;
    say_findings(&identified.findings);
    Exit::done_if(identified.origin.is_sound()).print(json, &identified, &said(&identified))
}

fn of_space(of: &IdentifiedSpace) -> String {
    /// Items that are named.
    const NAMED: usize = 10;
    let mut text = said(&of.found);
    if let Some(share) = of.found.unseen_share.filter(|_| of.found.origin == Origin::OneModel) {
        let _ = writeln!(
            text,
            "Of {} random vectors of {:?}: a share of others above {:.1} % would have been seen, in 95 of 100 cases.",
            of.found.compared,
            of.space,
            100.0 * share
        );
    }
    if of.adapted > 0 {
        let _ = writeln!(
            text,
            "{} more vectors of {:?} were made by an adapter, so no model made them, and they were not looked at.",
            of.adapted, of.space
        );
    }
    for (id, what) in of.others.iter().take(NAMED) {
        let _ = writeln!(text, "  {id}: {what}");
    }
    if of.others.len() > NAMED {
        let _ = writeln!(text, "  and {} more", of.others.len() - NAMED);
    }
    text
}

fn said(identified: &Identified) -> String {
    let count = identified.compared;
    let main = identified.main().map_or("", |main| &identified.models[main].model);
    let mut text = match (identified.origin, identified.by) {
        (Origin::OneModel, _) => format!("All {count} vectors are of {main:?}.\n"),
        (Origin::Mixed, "models") => format!("{count} vectors are not of one model: {main:?} made most.\n"),
        (Origin::Mixed, _) => format!("{count} vectors are of two kinds, as of two models.\n"),
        (Origin::Near, _) => format!(
            "None of {count} vectors is one of {main:?}, and most are nearly: another prompt, or another version of it.\n"
        ),
        (Origin::Unknown, "models") => "None of these models made any of the vectors.\n".into(),
        (Origin::Unknown, _) => "Nothing can be said of so few vectors without models.\n".into(),
        (Origin::NoSign, "pairs") => format!(
            "No sign of two models in {count} pairs. Of two text models a half or a fifth is seen, and mostly a tenth.\n"
        ),
        (Origin::NoSign, _) => format!(
            "No sign of two models in {count} vectors. Two that share axes are not seen without models: another prompt, another version, \
             mostly another model of one family.\n"
        ),
    };
    for model in &identified.models {
        let _ = write!(text, "  {}: {} made", model.model, model.made);
        if model.near > 0 {
            let _ = write!(text, ", {} nearly", model.near);
        }
        if let Some([middle, most]) = model.difference {
            let _ = write!(text, "; difference {middle:.1e} in the middle, {most:.1e} at most");
        }
        if !model.changes.is_empty() {
            let _ = write!(text, "; {}", model.changes.join(", "));
        }
        text += "\n";
    }
    if identified.none > 0 {
        let _ = writeln!(text, "  none of these: {}", identified.none);
    }
    if let Some(kinds) = &identified.kinds {
        if let Some(small) = kinds.small {
            let _ = writeln!(text, "  the smaller kind: {small}");
        }
        let what = if identified.by == "pairs" {
            "part of all that is nearer than a neighbour of the other kind"
        } else {
            "kinship of the kinds"
        };
        let _ = writeln!(text, "  {what}: {:.2}; within a kind {:.2}", kinds.across, kinds.within);
    }
    if let Some(list) = &identified.list {
        let _ = writeln!(text, "Those that are not as most are stand in {}", list.display());
    }
    text
}
