//! `rehang thresholds`: floors of searches, carried over to the new model.

use rehang_core::Result;
use rehang_core::report::{FloorAt, Floors};
use rehang_upgrade::Upgrade;

use super::{Exit, end_at_ctrl_c};
use crate::arguments::ThresholdsArguments;
use crate::bar::with_bar;

pub fn run(arguments: &ThresholdsArguments, json: bool) -> Result<Exit> {
    let upgrade = Upgrade::open(&arguments.config.config)?;
    let floors = with_bar(|progress| {
        end_at_ctrl_c(progress);
        upgrade.thresholds(&arguments.floors, progress)
    })?;
    Exit::Done.print(json, &floors, &text(&floors))
}

/// Writes a line for each floor.
pub fn text(floors: &Floors) -> String {
    let mut text = format!(
        "floors    what lets as many answers through as today, by {} queries; of a native gallery by {} held-out items\n          {:>8}{:>16}{:>36}{:>36}\n",
        floors.queries, floors.natives, "today", "answers a query", "at the switch", "all native"
    );
    let at = |at: Option<FloorAt>| match at {
        None => "too few answers to say".to_owned(),
        Some(at) => {
            format!("{:.3} ({:.3}–{:.3}), {:.0} % change", at.floor, at.low, at.high, 100.0 * at.changed)
        }
    };
    for row in &floors.rows {
        let (adapted, native) = (at(row.adapted), at(row.native));
        text += &format!("          {:>8.3}{:>16.1}{adapted:>36}{native:>36}\n", row.today, row.answers);
    }
    text
}
