//! The protocols by which compatible models are compared in the literature: faces and landmarks.
//!
//! | protocol | module | metric | source |
//! |---|---|---|---|
//! | templates | [`templates`] | – | BCT §3.2 |
//! | 1:1 verification | [`verification`] | TAR@FAR; the first template by the new model, the second by the old | BCT §3.2 |
//! | 1:N open-set search | [`identification`] | TPIR@FPIR (printed TNIR in BCT's tables), rank-1, rank-5 | BCT §3.2 |
//! | landmarks | [`landmarks`] | mAP@100; mAP of revisited Oxford and Paris, Easy, Medium, Hard | RACT §5.1, DMU §5.1 |
//!
//! None of these protocols knows about models or files: each takes the vectors of the two sides, so that any of them fills a [`crate::compatibility::CrossMatrix`]. Where the two
//! sides differ in width, the querying side is made to fit ([`crate::compatibility::at_width`]). All values are percent.

pub mod identification;
pub mod landmarks;
pub mod templates;
pub mod verification;

use crate::error::{Error, Result};

/// Fails for a rate that is not above 0 and at most 1.
fn check_rates(name: &str, rates: &[f64]) -> Result<()> {
    if rates.is_empty() {
        return Err(Error::missing(format!("at least one {name}"), "the protocol"));
    }
    match rates.iter().find(|&&rate| !(rate > 0.0 && rate <= 1.0)) {
        Some(rate) => Err(Error::option(name, rate, "above 0 and at most 1, for example 0.0001")),
        None => Ok(()),
    }
}

/// How many of `total` may be accepted at `rate`: the largest a with `a / total ≤ rate`.
fn allowed(rate: f64, total: usize) -> usize {
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
