//! Tests of stores of live galleries, for any store, one of another repository too.
//!
//! [`conformance`] is a suite that proves the contracts of [`rehang_store`]. [`MemoryStore`] keeps them to
//! the letter, and [`histories`] are random calls that a store and this twin must answer alike. This crate is
//! a dev-dependency: nothing that is shipped has it.

pub mod conformance;
pub mod histories;
mod memory;

pub use memory::MemoryStore;
