//! Limits of a backfill: those of a configuration, and those that a caller asks for in their place.

use rehang_core::{Error, Result};
use rehang_encode::Encoder;
use serde::Deserialize;

use crate::live::until::{Until, expect_until, parse_until};

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

/// Table `[run]` of a configuration.
#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunPart {
    batch: Option<usize>,
    workers: Option<usize>,
    rate: Option<toml::Value>,
    budget: Option<u64>,
    until: Option<toml::Value>,
    attempts: Option<u32>,
    refusals: Option<usize>,
    /// Seconds that a lease lasts.
    lease: Option<u64>,
}

impl RunPart {
    /// Reads the limits that the table sets; all others are the defaults.
    pub(crate) fn limits(&self) -> Result<Limits> {
        let defaults = Limits::default();
        let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let seconds = self.lease.map(|lease| at_least_one("[run] lease", lease));
        Ok(Limits {
            batch: at_least_one("[run] batch", self.batch.unwrap_or(defaults.batch))?,
            workers: at_least_one("[run] workers", self.workers.unwrap_or(defaults.workers))?,
            attempts: at_least_one("[run] attempts", self.attempts.unwrap_or(defaults.attempts))?,
            refusals: at_least_one("[run] refusals", self.refusals.unwrap_or(defaults.refusals))?,
            lease_ms: seconds.transpose()?.map_or(defaults.lease_ms, |lease| lease.saturating_mul(1000)),
            rate: self.rate.as_ref().map(|rate| parse_rate("[run] rate", &text(rate))).transpose()?,
            until: parse_until("[run] until", &self.until.as_ref().map_or("all".to_owned(), text))?,
            budget: self.budget,
            ..defaults
        })
    }

    /// Whether the table says how many items go to the encoder together.
    pub(crate) fn says_batch(&self) -> bool {
        self.batch.is_some()
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

impl RunOptions {
    /// Puts what is asked for in the place of the limits that are configured. A batch that nobody asks for is
    /// rounded up to whole calls of the encoder, unless the configuration `says_batch`.
    pub(crate) fn over(&self, configured: Limits, says_batch: bool, encoder: &dyn Encoder) -> Result<Limits> {
        let mut limits = configured;
        limits.follow = self.follow;
        limits.budget = self.budget.or(limits.budget);
        limits.rate = self.rate.map(expect_rate).transpose()?.or(limits.rate);
        limits.until = self.until.map(expect_until).transpose()?.unwrap_or(limits.until);
        if let Some(workers) = self.workers {
            limits.workers = at_least_one("workers", workers)?;
        }
        limits.batch = match self.batch {
            Some(batch) => at_least_one("batch", batch)?,
            None if says_batch => limits.batch,
            None => {
                // The batch is made of whole calls: items left over would be a request of their own.
                let at_once = encoder.bulk_max().unwrap_or_else(|| encoder.batch_max()).max(1);
                limits.batch.div_ceil(at_once).saturating_mul(at_once)
            }
        };
        Ok(limits)
    }
}

/// Declares the fields of `RunOptions` for all faces: gives them to a macro of the `face`, in the groups in
/// which verbs take them. Each has its help, its name, the type of what people write, and a word for a value.
#[doc(hidden)]
#[macro_export]
macro_rules! run_options {
    ($face:ident) => {
        $face! {
            /// Limits of a verb that embeds.
            RunLimits {
                /// Make at most this many items native in this run.
                budget: Option<u64> = "N",
                /// Embed at most this many items a second (or a minute: 300/min), by all processes at work
                /// together.
                rate: Option<String> = "N/s",
                /// Batches that are embedded at the same time.
                workers: Option<usize> = "N",
                /// Items of a batch [default: 64, or as many as the encoder takes at once if that is more].
                batch: Option<usize> = "N",
            }

            /// End of a backfill.
            RunExtent {
                /// End when this share of all items is native (0.3, or 30%); or at "98% of new", where the
                /// forecast says that this much of the new model's quality is reached, by the cautious end of
                /// its range; or where a further unit of money (an hour) is forecast to bring less than so
                /// many points ("worth 0.01/$", "worth 0.5/h"); or go on until nothing is left.
                until: Option<String> = "SHARE|98% of new|worth POINTS/$|all",
            }

            /// Choices that a run and the whole way of an upgrade have.
            RunChoices {
                /// Keep the map as it is, instead of asking at 10 % and 40 % native whether fitting it again
                /// pays.
                no_refit: bool,
            }

            /// Choices that a run alone has.
            RunAlone {
                /// Stay when nothing is left: adapt whatever comes within a second, and embed it as the
                /// limits allow. Of several followers one adapts, the others stand by. A pause, a stop, a
                /// rollback or a spent budget ends its embedding until that is over, and not the follower;
                /// SIGTERM or Ctrl-C ends it in order (exit code 0), and so does the release of the gallery.
                follow: bool,
            }
        }
    };
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

fn expect_rate(rate: f64) -> Result<f64> {
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

    /// Takes the options apart by the names that the faces get.
    macro_rules! every_option {
        ($($(#[$about:meta])* $group:ident {
            $($(#[$help:meta])* $name:ident: $written:ty $(= $value:tt)?,)*
        })*) => {
            let RunOptions { $($($name: _),*),* } = RunOptions::default();
        };
    }

    /// Options that the declaration lacks are an error of the compiler here.
    #[test]
    fn faces_get_every_option_of_a_run() {
        run_options!(every_option);
    }

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
