//! Random names that no two writers share. What is stored or found never depends on them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are given once, on any machine: 128 bits that the system drew, and a count.
#[derive(Debug)]
pub(crate) struct Tokens {
    drawn: String,
    given: AtomicU64,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let bits = || RandomState::new().hash_one(0_u8);
        Self { drawn: format!("{:016x}{:016x}", bits(), bits()), given: AtomicU64::new(0) }
    }

    /// The next name.
    pub(crate) fn next(&self) -> String {
        format!("{}-{}", self.drawn, self.given.fetch_add(1, Ordering::Relaxed))
    }
}
