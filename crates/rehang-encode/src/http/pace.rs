//! Pace: how fast requests may follow each other, and how long to wait after one that failed.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use ureq::http::HeaderMap;

use crate::meter::lock;

const MINUTE: f64 = 60.0;
/// Shortest wait of a refusal for a limit by the minute; a shorter one is for a moment's load.
const RATE_WAIT_SECONDS: f64 = 5.0;
/// Factor by which a learnt rate grows where nothing was refused for `RATE_HOLDS_SECONDS`.
const RATE_GROWTH: f64 = 1.25;
const RATE_HOLDS_SECONDS: f64 = 180.0;
/// Wait after the first failure, without jitter; it doubles with each failure up to `BACKOFF_MAX_SECONDS`.
const BACKOFF_FIRST_SECONDS: f64 = 0.5;
const BACKOFF_MAX_SECONDS: f64 = 60.0;

/// Pace of requests: each gets its moment. Requests and tokens are spread evenly over their minute, so that
/// no minute has more than its limit, wherever it is taken to begin.
pub(super) struct Pace {
    requests_per_minute: Option<f64>,
    tokens_per_minute: Option<f64>,
    next: Mutex<Next>,
}

/// Seconds of the clock from which on the next request is within each limit.
#[derive(Default)]
struct Next {
    request: f64,
    token: f64,
    /// End of the pause that the service asked everybody for.
    pause: f64,
    /// Moments of the last minute at which the service gave vectors.
    served: VecDeque<f64>,
    /// Requests a minute that the service has taken before it refused more, and since when.
    learnt: Option<(f64, f64)>,
}

impl Next {
    fn forget_before(&mut self, time: f64) {
        while self.served.front().is_some_and(|at| *at < time) {
            self.served.pop_front();
        }
    }
}

impl Pace {
    pub(super) fn new(requests_per_minute: Option<f64>, tokens_per_minute: Option<f64>) -> Self {
        Self { requests_per_minute, tokens_per_minute, next: Mutex::default() }
    }

    /// Reserves the moment at which a request of so many tokens may be sent.
    pub(super) fn reserve(&self, now: Duration, tokens: u64) -> Duration {
        let mut next = lock(&self.next);
        let start = now.as_secs_f64().max(next.request).max(next.token).max(next.pause);
        if let Some((rate, since)) = next.learnt
            && start - since > RATE_HOLDS_SECONDS
        {
            // The limit may have been somebody else's load.
            next.learnt = Some((rate * RATE_GROWTH, start));
        }
        let learnt = next.learnt.map(|(rate, _)| rate);
        let limit = self.requests_per_minute.into_iter().chain(learnt).reduce(f64::min);
        if let Some(limit) = limit {
            next.request = start + MINUTE / limit;
        }
        if let Some(limit) = self.tokens_per_minute {
            next.token = start + MINUTE * tokens as f64 / limit;
        }
        Duration::try_from_secs_f64(start).unwrap_or(Duration::MAX)
    }

    /// Replaces the tokens that were reserved by those that were used.
    pub(super) fn correct(&self, reserved: u64, used: u64) {
        if let Some(limit) = self.tokens_per_minute {
            lock(&self.next).token += MINUTE * (used as f64 - reserved as f64) / limit;
        }
    }

    /// Notes a request that the service has given vectors for.
    pub(super) fn served(&self, now: Duration) {
        let mut next = lock(&self.next);
        next.served.push_back(now.as_secs_f64());
        next.forget_before(now.as_secs_f64() - MINUTE);
    }

    /// Notes a refusal for a limit, with a wait until a moment. If the wait is as for a limit by the minute,
    /// a minute has room for as many requests as the last one had.
    pub(super) fn refused(&self, now: Duration, until: Duration) {
        let mut next = lock(&self.next);
        let now = now.as_secs_f64();
        next.forget_before(now - MINUTE);
        let rate = next.served.len() as f64;
        if rate >= 1.0 && until.as_secs_f64() - now >= RATE_WAIT_SECONDS {
            let least = next.learnt.map_or(rate, |(before, _)| before.min(rate));
            next.learnt = Some((least, now));
        }
        next.pause = next.pause.max(until.as_secs_f64());
    }

    /// Holds every later request back until a moment.
    pub(super) fn pause_until(&self, time: Duration) {
        let mut next = lock(&self.next);
        next.pause = next.pause.max(time.as_secs_f64());
    }

    /// Moment until which every request is held back at the service's wish; 0 where it never asked.
    pub(super) fn paused_until(&self) -> Duration {
        Duration::from_secs_f64(lock(&self.next).pause)
    }
}

/// Waits between attempts: exponential, with jitter so that callers who failed together do not return
/// together.
pub(super) struct Backoff(Mutex<ChaCha8Rng>);

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha8Rng::seed_from_u64(seed)))
    }

    /// Draws the wait after so many failures (from 1): `0.5 s · 2^(failures − 1)`, at most 60 s, times a
    /// number of `[0.5, 1)`.
    pub(super) fn wait(&self, failures: u32) -> Duration {
        let longest =
            (BACKOFF_FIRST_SECONDS * 2f64.powi(failures.min(32) as i32 - 1)).min(BACKOFF_MAX_SECONDS);
        let unit = f64::from(lock(&self.0).next_u32()) / (f64::from(u32::MAX) + 1.0);
        Duration::from_secs_f64(longest * (0.5 + unit / 2.0))
    }
}

/// Reads the wait that a `Retry-After` asks for: seconds, or a date. A date counts from the `Date` of the
/// same answer, so that neither side's clock has to be right.
pub(super) fn retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let moment = |text: &str| httpdate::parse_http_date(text).ok();
    // A moment that is past asks for no wait.
    Some(moment(value)?.duration_since(moment(date?)?).unwrap_or_default())
}

/// Reads the wait that the headers of an answer ask for.
pub(super) fn wait_asked(headers: &HeaderMap) -> Option<Duration> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    header("retry-after-ms")
        .and_then(retry_after_ms)
        .or_else(|| header("retry-after").and_then(|value| retry_after(value, header("date"))))
}

/// Reads the wait that a `retry-after-ms` of Azure asks for.
fn retry_after_ms(value: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(value.trim().parse::<f64>().ok()? / 1000.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_are_seconds_or_dates() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        let seconds = |value, date| retry_after(value, date).map(|wait| wait.as_secs_f64());
        assert_eq!(seconds("7", None), Some(7.0));
        assert_eq!(seconds(" 0.25", None), Some(0.25));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT", date), Some(30.0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:00 GMT", date), Some(0.0));
        assert_eq!(seconds("Mon, 07 Nov 1994 08:49:37 GMT", date), Some(86400.0));
        assert_eq!(retry_after_ms("1500"), Some(Duration::from_millis(1500)));
        assert_eq!((retry_after_ms("-1"), retry_after_ms("soon")), (None, None));
        for nonsense in ["-1", "NaN", "inf", "1e300", "soon", "Sun, 06 Nov 1994 25:00:00 GMT"] {
            assert_eq!(seconds(nonsense, date), None, "{nonsense}");
        }
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT", None), None);
    }

    #[test]
    fn backoff_doubles_up_to_a_minute_and_repeats_with_its_seed() {
        let waits = |seed| {
            let backoff = Backoff::new(seed);
            (1..12).map(|failures| backoff.wait(failures).as_secs_f64()).collect::<Vec<_>>()
        };
        for (at, wait) in waits(3).into_iter().enumerate() {
            let longest = (0.5 * 2f64.powi(at as i32)).min(60.0);
            assert!(wait >= longest / 2.0 && wait < longest, "{at}: {wait}");
        }
        assert_eq!(waits(3), waits(3));
        assert_ne!(waits(3), waits(4));
    }

    proptest! {
        /// No 60 seconds hold more requests or tokens than their limit and one request more, whatever is
        /// asked for.
        #[test]
        fn no_minute_has_more_than_its_limit(
            requests in proptest::collection::vec((0u32..5000, 1u64..400), 1..60),
        ) {
            let (request_limit, token_limit) = (20.0, 1000.0);
            let pace = Pace::new(Some(request_limit), Some(token_limit));
            let mut now = Duration::ZERO;
            let mut sent: Vec<(f64, f64)> = Vec::new();
            for (later, tokens) in requests {
                now = pace.reserve(now + Duration::from_millis(later.into()), tokens);
                sent.push((now.as_secs_f64(), tokens as f64));
            }
            for &(start, _) in &sent {
                let minute: Vec<f64> =
                    sent.iter().filter(|(at, _)| *at >= start && *at < start + 59.999).map(|(_, n)| *n).collect();
                prop_assert!(minute.len() as f64 <= request_limit);
                // The last request begins within the minute; its tokens reach into the next.
                prop_assert!(minute[..minute.len() - 1].iter().sum::<f64>() <= token_limit);
            }
        }
    }
}
