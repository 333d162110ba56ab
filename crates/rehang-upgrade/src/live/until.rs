//! End of a backfill, and the share of a gallery that is native by now: the one place that makes counts of
//! shares.

use rehang_core::{Error, Result};
use rehang_store::Counts;
use serde::{Deserialize, Serialize};

/// End of a backfill: how far it goes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Until {
    /// Ends when nothing is left that can be embedded.
    All,
    /// Ends when this share of all items is native (0–1).
    Fraction(f64),
    /// Ends when the gallery has 98 % of the quality that the new model gives on everything, by the cautious
    /// end of what the forecast says of each share. [`Upgrade::run`](crate::Upgrade::run) replaces it by the
    /// share where that is so; a bare backfill knows no forecast and goes on to the end.
    Enough,
    /// Ends when a further unit buys less than so many points of the forecast's metric: the share at which
    /// the forecast quality less that price is largest. [`Upgrade::run`](crate::Upgrade::run) replaces it by
    /// that share, as it does [`Until::Enough`].
    Worth {
        /// Points of the metric that a unit has to bring, above 0.
        points: f64,
        /// Unit that re-embedding is paid in.
        unit: Unit,
    },
}

/// Unit that re-embedding is paid in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Money of the configuration's price.
    Money,
    /// Hours of all workers together.
    Hours,
}

impl Unit {
    /// Returns the unit's name for people: `hour`, or `unit of money`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Money => "unit of money",
            Self::Hours => "hour",
        }
    }

    const ALL: [Self; 2] = [Self::Money, Self::Hours];

    /// Returns the sign that people write for the unit behind `worth 0.5/`.
    pub(crate) fn sign(self) -> char {
        match self {
            Self::Money => '$',
            Self::Hours => 'h',
        }
    }
}

impl Until {
    /// Returns how many native items are asked for in a gallery of so many items. Rounded up: 0.3 of 10 items
    /// is 3, of 11 items 4. Backfill, switch and [`Upgrade::auto`](crate::Upgrade::auto) all compare counts
    /// with it: the share that so many items make may be a hair below the one that was asked for.
    pub fn target(self, items: u64) -> u64 {
        match self {
            Self::All | Self::Enough | Self::Worth { .. } => items,
            Self::Fraction(fraction) => (fraction * items as f64 - 1e-9).ceil().max(0.0) as u64,
        }
    }
}

impl std::str::FromStr for Until {
    type Err = Error;

    /// Reads what [`parse_until`] reads, as the option `until`.
    fn from_str(text: &str) -> Result<Self> {
        parse_until("until", text)
    }
}

/// Returns the share of all items that is native, 0–1; 1 for an empty gallery.
pub(crate) fn native_share(counts: &Counts) -> f64 {
    if counts.items == 0 { 1.0 } else { counts.native as f64 / counts.items as f64 }
}

/// Whether at least a share of all items is native.
pub(crate) fn reaches(counts: &Counts, share: f64) -> bool {
    counts.native >= Until::Fraction(share).target(counts.items)
}

fn is_share(share: f64) -> bool {
    (0.0..=1.0).contains(&share)
}

pub(crate) fn expect_until(until: Until) -> Result<Until> {
    match until {
        Until::Fraction(share) if !is_share(share) => {
            Err(Error::option("until", share, "a share of the gallery from 0 to 1"))
        }
        until => Ok(until),
    }
}

/// Text that people write for [`Until::Enough`]: [`rehang_core::curve::ENOUGH`] of what the new model gives.
pub(crate) const ENOUGH: &str = "98% of new";

/// Reads how far a backfill goes: `all`, a share such as `0.3`, or `30%`, or `98% of new`, or `worth 0.01/$`
/// (`worth 0.5/h`), which are the points that a unit of money (an hour) has to bring.
///
/// # Errors
///
/// An invalid option, named as the parameter, for anything else, and for shares beyond 0 to 1.
pub fn parse_until(parameter: &str, text: &str) -> Result<Until> {
    let wrong = || {
        let expected =
            format!("all, a share from 0 to 1 such as 0.3 or 30%, {ENOUGH:?}, or \"worth POINTS/$\" (/h)");
        Error::option(parameter, text, expected)
    };
    if text == "all" {
        return Ok(Until::All);
    }
    if text == ENOUGH {
        return Ok(Until::Enough);
    }
    if let Some(price) = text.strip_prefix("worth ") {
        let unit = Unit::ALL.into_iter().find(|unit| price.ends_with(unit.sign())).ok_or_else(wrong)?;
        let points = price.trim_end_matches(unit.sign()).strip_suffix('/').ok_or_else(wrong)?;
        let points = points.trim().parse::<f64>().map_err(|_| wrong())?;
        let is_price = points.is_finite() && points > 0.0;
        return if is_price { Ok(Until::Worth { points, unit }) } else { Err(wrong()) };
    }
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0,
        None => text.parse().map_err(|_| wrong())?,
    };
    if is_share(share) { Ok(Until::Fraction(share)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_people_write_them() {
        assert_eq!(parse_until("until", "30%").unwrap(), Until::Fraction(0.3));
        assert_eq!(parse_until("until", "all").unwrap(), Until::All);
        assert_eq!(parse_until("until", "98% of new").unwrap(), Until::Enough);
        assert_eq!(ENOUGH, format!("{:.0}% of new", 100.0 * rehang_core::curve::ENOUGH));
        for share in [-0.1, 30.0, f64::NAN] {
            assert!(expect_until(Until::Fraction(share)).is_err(), "{share}");
        }
        assert_eq!(
            parse_until("until", "worth 0.001/$").unwrap(),
            Until::Worth { points: 0.001, unit: Unit::Money }
        );
        assert_eq!(
            parse_until("until", "worth 2 /h").unwrap(),
            Until::Worth { points: 2.0, unit: Unit::Hours }
        );
        let bad_prices = ["worth 0/$", "worth -1/h", "worth nan/h", "worth 3", "worth 3/€", "worth inf/$"];
        for bad in ["1.5", "-0.1", "130%", "most", "nan", "90% of new"].into_iter().chain(bad_prices) {
            assert!(parse_until("until", bad).is_err(), "{bad}");
        }
    }
}
