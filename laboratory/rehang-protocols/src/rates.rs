//! Rates of false answers, and how many of them a rate allows.

use rehang_core::{Error, Result};

/// Fails for a rate that is not above 0 and at most 1.
pub(crate) fn check_rates(name: &str, rates: &[f64]) -> Result<()> {
    if rates.is_empty() {
        return Err(Error::missing(format!("at least one {name}"), "the protocol"));
    }
    match rates.iter().find(|&&rate| !(rate > 0.0 && rate <= 1.0)) {
        Some(rate) => Err(Error::option(name, rate, "above 0 and at most 1, for example 0.0001")),
        None => Ok(()),
    }
}

/// Counts how many of `total` may be accepted at `rate`: the largest a with `a / total ≤ rate`.
pub(crate) fn allowed(rate: f64, total: usize) -> usize {
    // rate·total may round to either side of a whole number; the division is what is documented.
    let fits = |count: usize| count as f64 / total as f64 <= rate;
    let mut count = ((rate * total as f64).floor() as usize).min(total);
    while count > 0 && !fits(count) {
        count -= 1;
    }
    while count < total && fits(count + 1) {
        count += 1;
    }
    count
}
