//! What tests of several modules share, and those on real vectors.

pub(crate) mod finite_differences;
mod real_data;
pub(crate) mod test_data;
