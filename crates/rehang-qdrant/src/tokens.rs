//! Random names that no two writers share, and the random part of revisions.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Source of names that are given once, on any machine: 128 bits that the system drew, and a count.
#[derive(Debug)]
pub(crate) struct Tokens {
    drawn: String,
    count: AtomicU64,
}

/// Draws bits of the system that nobody can guess.
pub(crate) fn random_bits() -> u64 {
    RandomState::new().hash_one(0_u8)
}

impl Tokens {
    pub(crate) fn new() -> Self {
        Self { drawn: format!("{:016x}{:016x}", random_bits(), random_bits()), count: AtomicU64::new(0) }
    }

    /// Returns the next name.
    pub(crate) fn next(&self) -> String {
        format!("{}-{}", self.drawn, self.count.fetch_add(1, Ordering::Relaxed))
    }
}
