//! Losses that adapters are fitted with, one file each, with the formula on top.
//!
//! Every loss works on a batch of rows: it adds each row's value to `values` and the derivative of that value
//! with respect to the row to `gradient`. Means over the batch, weights and uncertainty come afterwards
//! ([`likelihood`]), so that a loss stays a function of one row.

pub mod arcface;
pub mod cross_entropy;
pub mod likelihood;
pub mod squared;
pub mod unit;
