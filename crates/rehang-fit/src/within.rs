//! Limits how long the choice among methods may take.

use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::{Error, Progress, Result};

use crate::method::Method;

/// Time within which methods are to be tried and the best of them kept. Which methods are tried then depends
/// on how fast the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within(Duration);

impl FromStr for Within {
    type Err = Error;

    /// Reads a time such as `90`, `90s`, `5min` or `1h`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::option("within", text, "a time, such as 60s, 5min or 1h");
        let digits = text.trim().trim_end_matches(|unit: char| unit.is_alphabetic() || unit.is_whitespace());
        let number: f64 = digits.parse().map_err(|_| wrong())?;
        let seconds = match text.trim()[digits.len()..].trim() {
            "" | "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let within = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        Ok(Self(within))
    }
}

/// Deadline of a choice: when it began, and how long it may take; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadline(Option<(Instant, Within)>);

impl Deadline {
    /// Starts the time of a choice now.
    pub(crate) fn begin(within: Option<Within>) -> Self {
        Self(within.map(|within| (rehang_clock::now(), within)))
    }

    /// Returns the time that is left; `None` where the choice may take as long as it does.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|(began, within)| within.0.saturating_sub(began.elapsed()))
    }
}

/// Writes a time for people.
pub(crate) fn duration_text(seconds: f64) -> String {
    if seconds < 100.0 { format!("about {seconds:.0} s") } else { format!("about {:.0} min", seconds / 60.0) }
}

/// Tries a method that takes `needed` seconds by an estimate, if there is one, as long as there is time left.
///
/// # Errors
///
/// A spent budget where more is needed than is left, or all of it was used; errors of the work.
pub(crate) fn while_it_lasts<T>(
    method: Method,
    (time_left, needed): (Option<Duration>, Option<f64>),
    progress: &Progress,
    work: impl FnOnce(&Progress) -> Result<T>,
) -> Result<T> {
    let Some(time_left) = time_left else { return work(progress) };
    if time_left.is_zero() || needed.is_some_and(|needed| needed > time_left.as_secs_f64()) {
        let needed =
            needed.map_or_else(String::new, |needed| format!("{} to fit, and ", duration_text(needed)));
        let detail = format!("{needed}{:.0} s of the time given are left", time_left.as_secs_f64());
        return Err(Error::budget_spent(method, detail));
    }
    let part = progress.part();
    let outcome = thread::scope(|scope| {
        let (over, wait) = channel::<()>();
        let timed = &part;
        scope.spawn(move || {
            if wait.recv_timeout(time_left) == Err(RecvTimeoutError::Timeout) {
                timed.cancel();
            }
        });
        let outcome = work(&part);
        drop(over);
        outcome
    });
    outcome.map_err(|error| {
        if error.is_cancelled() && progress.check().is_ok() {
            let detail =
                format!("ended after the {:.0} s that were left of the time given", time_left.as_secs_f64());
            return Error::budget_spent(method, detail);
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let seconds = |text: &str| text.parse::<Within>().map(|within| within.0.as_secs_f64());
        for (text, expected) in [("90", 90.0), ("60s", 60.0), ("1.5 min", 90.0), ("1h", 3600.0), ("0", 0.0)] {
            assert_eq!(seconds(text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "s", "-1s", "1day", "nan", "inf", "1e300h"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_out_of_time_is_ended_and_said_and_a_stop_is_one_still() {
        let progress = Progress::default();
        let endless = |progress: &Progress| -> Result<()> {
            loop {
                progress.check()?;
                thread::yield_now();
            }
        };
        let time_left = Some(Duration::from_millis(1));
        let error = while_it_lasts(Method::Fct, (time_left, None), &progress, endless).unwrap_err();
        assert!(error.is_budget_spent() && progress.check().is_ok(), "{error}");
        let error = while_it_lasts(Method::Fct, (time_left, Some(70.0)), &progress, |_| Ok(())).unwrap_err();
        assert!(error.is_budget_spent() && error.to_string().contains("about 70 s to fit"), "{error}");
        while_it_lasts(Method::Fct, (None, Some(70.0)), &progress, |_| Ok(())).unwrap();
        progress.cancel();
        let error = while_it_lasts(Method::Fct, (time_left, None), &progress, endless).unwrap_err();
        assert!(error.is_cancelled(), "{error}");
    }
}
