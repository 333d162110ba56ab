//! Limits of a backfill: those of a configuration, and those that a caller asks for in their place.

use rehang_core::{Error, Result};

use crate::live::until::Until;

/// Limits of a backfill.
///
/// | name | default | purpose | range |
/// |---|---|---|---|
/// | `batch` | 64 | items that go to the encoder together | 1… |
/// | `workers` | 1 | batches that are encoded at the same time | 1… |
/// | `rate` | none | items a second, at most, by all workers together | above 0 |
/// | `budget` | none | items that this run makes native, at most | 0… |
/// | `until` | all | share of native items at which it ends | 0–1 |
/// | `attempts` | 3 | attempts an item has before it is listed as failed | 1… |
/// | `refusals` | 100 | items refused for good before any success: then the run ends and lists none | 1… |
/// | `rest_ms` | 1000 | rest of an item after a failed attempt, doubled with each further one | 0… |
/// | `lease_ms` | 30 000 | how long items stay a worker's that is not heard of; renewed after a third | 1… |
/// | `follow` | false | whether it stays at the end, adapts what comes and embeds it within other limits | |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Items that go to the encoder together.
    pub batch: usize,
    /// Batches that are encoded at the same time.
    pub workers: usize,
    /// Items a second, at most, by all workers together that keep to it: those at work take equal parts.
    pub rate: Option<f64>,
    /// Items that this run makes native, at most.
    pub budget: Option<u64>,
    /// How far the backfill goes.
    pub until: Until,
    /// Attempts an item has before it is listed as failed.
    pub attempts: u32,
    /// Items that are refused for good, before the first success, after which the run stops: an encoder that
    /// refuses everything says nothing about the items.
    pub refusals: usize,
    /// Rest of an item after its first failed attempt, in milliseconds.
    pub rest_ms: u64,
    /// How long items stay this worker's after it was heard of last, in milliseconds. Others wait that long
    /// for the items that a dead worker held.
    pub lease_ms: u64,
    /// Whether the backfill stays when nothing is left. A follower adapts what comes or changes, and embeds
    /// it as the other limits allow. Only an interruption and the end of the upgrade end it; where anything
    /// else would end another backfill, it embeds nothing for the time being.
    pub follow: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch: 64,
            workers: 1,
            rate: None,
            budget: None,
            until: Until::All,
            attempts: 3,
            refusals: 100,
            rest_ms: 1000,
            lease_ms: 30_000,
            follow: false,
        }
    }
}

/// Limits that a caller asks for, for one run; those that are `None` stay as the configuration has them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunOptions {
    /// Items that this run makes native, at most.
    pub budget: Option<u64>,
    /// Items a second, at most; above 0.
    pub rate: Option<f64>,
    /// How far the run goes.
    pub until: Option<Until>,
    /// Batches that are encoded at the same time, 1 or more.
    pub workers: Option<usize>,
    /// Items that go to the encoder together, 1 or more.
    pub batch: Option<usize>,
    /// Whether the map stays as it is: nothing is kept for measuring, and no [refit](crate::refit()) is begun
    /// or continued.
    pub no_refit: bool,
    /// Whether the run stays when nothing is left ([`Limits::follow`]).
    pub follow: bool,
}

/// Returns a count that is 1 or more, and refuses any other.
pub(crate) fn at_least_one<T: PartialEq + From<u8> + std::fmt::Display>(
    parameter: &str,
    value: T,
) -> Result<T> {
    if value == T::from(0) { Err(Error::option(parameter, value, "1 or more")) } else { Ok(value) }
}

fn is_rate(rate: f64) -> bool {
    rate > 0.0 && rate.is_finite()
}

pub(crate) fn expect_rate(rate: f64) -> Result<f64> {
    if is_rate(rate) { Ok(rate) } else { Err(Error::option("rate", rate, "items a second above 0")) }
}

/// Reads a rate in items a second: `5`, `5/s`, `300/min` or `1000/h`.
///
/// # Errors
///
/// An invalid option, named as the parameter, for anything else, and for rates that are not above 0.
pub fn parse_rate(parameter: &str, text: &str) -> Result<f64> {
    let expected = "items a second above 0, such as 5/s, or 300/min, or 1000/h";
    let wrong = || Error::option(parameter, text, expected);
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    if is_rate(number) { Ok(number / seconds) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        assert_eq!(parse_rate("rate", "5/s").unwrap(), 5.0);
        assert_eq!(parse_rate("rate", "300/min").unwrap(), 5.0);
        assert_eq!(parse_rate("rate", "2.5").unwrap(), 2.5);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(expect_rate(rate).is_err(), "{rate}");
        }
        for bad in ["0/s", "-1", "x", "1/fortnight", "nan", "inf"] {
            assert!(parse_rate("rate", bad).is_err(), "{bad}");
        }
    }
}
