//! Wrong tokens, counted by the address that they come from.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::problem::ProblemDetails;

/// Time in which the wrong tokens of an address are counted.
const MINUTE: Duration = Duration::from_mins(1);
/// Largest number of addresses that are counted at the same time.
const ADDRESSES_MAX: usize = 4096;

/// Counts of wrong tokens, so that a client which goes on with one is told to wait, and the log names it. A
/// right token is not asked about here: everybody behind a proxy has its address.
pub struct WrongTokens {
    /// Wrong tokens of an address in a minute that are answered like a single one.
    most: usize,
    /// Wrong tokens of each address, and when its minute began.
    counts: Mutex<BTreeMap<IpAddr, (usize, Instant)>>,
}

impl WrongTokens {
    pub fn new(most: usize) -> Self {
        Self { most, counts: Mutex::default() }
    }

    /// Counts a wrong token; gives the problem that answers it: 401, or 429 until the minute is over. While the
    /// table is full, any other address has to wait too.
    pub fn refusal(&self, address: IpAddr, now: Instant) -> ProblemDetails {
        let address = network(address);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= ADDRESSES_MAX && !counts.contains_key(&address) {
            counts.retain(|_, (_, began)| now.duration_since(*began) < MINUTE);
            if counts.len() >= ADDRESSES_MAX {
                return too_many(MINUTE);
            }
        }
        let (count, began) = counts.entry(address).or_insert((0, now));
        if now.duration_since(*began) >= MINUTE {
            (*count, *began) = (0, now);
        }
        *count = count.saturating_add(1);
        if *count <= self.most {
            return ProblemDetails::unauthorised();
        }
        if *count == self.most + 1 {
            tracing::warn!(%address, "many wrong tokens came from there");
        }
        too_many(MINUTE.saturating_sub(now.duration_since(*began)))
    }
}

fn too_many(left: Duration) -> ProblemDetails {
    let problem = ProblemDetails::too_many("too many wrong tokens came from this address");
    problem.retry_after(left.as_secs() as u16 + 1)
}

/// Returns what is counted as one address: of IPv6 the first 64 bits, since one machine may have all others.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => Ipv6Addr::from(u128::from(six) & (u128::MAX << 64)).into(),
        four @ IpAddr::V4(_) => four,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_has_some_wrong_tokens_a_minute() {
        let (wrong_tokens, began) = (WrongTokens::new(2), rehang_clock::now());
        let status = |address: &str, seconds: u64| {
            let now = began + Duration::from_secs(seconds);
            wrong_tokens.refusal(address.parse().unwrap(), now).status
        };
        let same = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8::2", "2001:db8::1"];
        assert_eq!(same.map(|address| status(address, 0)), [401, 401, 429, 429]);
        assert_eq!(["2001:db8:0:1::1", "10.0.0.1"].map(|other| status(other, 0)), [401, 401]);
        assert_eq!((status("2001:db8::1", 59), status("2001:db8::1", 60)), (429, 401));
    }

    #[test]
    fn no_more_addresses_are_counted_than_may_be() {
        let (wrong_tokens, now) = (WrongTokens::new(1), rehang_clock::now());
        let refusal =
            |number: usize, now| wrong_tokens.refusal(Ipv4Addr::from(number as u32).into(), now).status;
        for number in 0..ADDRESSES_MAX {
            assert_eq!(refusal(number, now), 401);
        }
        assert_eq!(refusal(ADDRESSES_MAX, now), 429);
        assert_eq!(wrong_tokens.counts.lock().unwrap().len(), ADDRESSES_MAX);
        assert_eq!(refusal(ADDRESSES_MAX, now + MINUTE), 401);
        assert_eq!(wrong_tokens.counts.lock().unwrap().len(), 1);
    }
}
