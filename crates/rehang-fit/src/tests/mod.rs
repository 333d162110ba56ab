//! Helpers of several modules' tests, and tests on real vectors.

pub(crate) mod finite_differences;
mod real_data;
pub(crate) mod test_data;
