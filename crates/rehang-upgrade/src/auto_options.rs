//! Options of the whole way of an upgrade, which [`Upgrade::auto`](crate::Upgrade::auto) takes.

use rehang_core::curve::Metric;
use rehang_core::verdict::is_below;
use rehang_core::{Error, Result};
use rehang_fit::{Method, Within};
use serde::Serialize;

use crate::learn::forecast::Forecast;
use crate::learn::pairs::PairsOptions;

/// Way of an upgrade: with a map or without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Everything is embedded, then searches switch. Nothing is mapped.
    Plain,
    /// A map fills the new space, searches switch when that pays, and items are re-embedded worst first.
    Mapped,
}

/// Condition that the forecast has to meet from the switch on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum SwitchIf {
    /// Quality is at least that of doing nothing, and no other metric is
    /// [below it](Forecast::worthwhile_from) with its whole range.
    #[default]
    DoingNothing,
    /// Quality is at least this, in the unit of the forecast's metric (percent).
    AtLeast(f64),
}

impl std::str::FromStr for SwitchIf {
    type Err = Error;

    /// Reads `>= doing nothing`, or a number as in `>= 70`.
    fn from_str(text: &str) -> Result<Self> {
        let refusal = || {
            Error::option(
                "switch_if",
                text,
                "\">= doing nothing\", or a quality in percent such as \">= 70\"",
            )
        };
        let line = text.trim().strip_prefix(">=").ok_or_else(refusal)?.trim();
        if line == "doing nothing" {
            return Ok(Self::DoingNothing);
        }
        let value: f64 = line.parse().map_err(|_| refusal())?;
        if value.is_finite() { Ok(Self::AtLeast(value)) } else { Err(refusal()) }
    }
}

impl SwitchIf {
    /// Finds the share of native items from which on the forecast stays at or above the line; `None` where it
    /// never does, or where the line was not measured.
    pub fn passes_at(self, forecast: &Forecast) -> Option<f64> {
        match self {
            Self::DoingNothing => forecast.worthwhile_from(),
            Self::AtLeast(line) => forecast.stays_from(|value| !is_below(value, line)),
        }
    }
}

/// Options of [`Upgrade::auto`](crate::Upgrade::auto).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AutoOptions {
    /// Options of drawing pairs. Their limits hold for everything that is embedded, their `budget` for
    /// all steps together.
    pub pairs: PairsOptions,
    /// Method of the map.
    pub method: Method,
    /// Time that the choice among maps may take; `None` for as long as it takes.
    pub within: Option<Within>,
    /// Whether to go on after the plan.
    pub go: bool,
    /// Whether to serve fused searches instead of embedding first, where the switch is not worth it yet.
    pub fused: bool,
    /// Condition under which the switch is worth it.
    pub switch_if: SwitchIf,
    /// Metric that the order of the backfill is chosen for; `None` leaves the order as it is.
    pub order_for: Option<Metric>,
    /// Way of the upgrade; `None` for the one that [is shorter](crate::Upgrade::ways).
    pub way: Option<Way>,
}

#[cfg(test)]
mod tests {
    use super::SwitchIf;

    #[test]
    fn a_condition_of_the_switch_is_read_as_people_write_it() {
        assert_eq!(">= doing nothing".parse::<SwitchIf>().unwrap(), SwitchIf::DoingNothing);
        assert_eq!(" >=70.5 ".parse::<SwitchIf>().unwrap(), SwitchIf::AtLeast(70.5));
        for bad in ["", "70", "> 70", ">= much", ">= nan"] {
            assert!(bad.parse::<SwitchIf>().is_err(), "{bad}");
        }
    }
}
