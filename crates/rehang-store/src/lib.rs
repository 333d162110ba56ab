//! Stores of live galleries: the [`Store`] contract and what keeps it.
//!
//! A store holds items and, for every space of the gallery, at most one vector an item, with its provenance. It knows
//! nothing of how vectors are made. The contract is the trait [`Store`]; [`conformance`] proves that a store keeps it.

mod check;
pub mod conformance;
mod contract;
mod exact;
mod memory;
mod sqlite;

pub use contract::{
    Counts, Failure, Filter, Found, Item, ItemKey, ItemWrite, NewVector, Outcome, Record, Revision, Scan,
    Select, SpaceRecord, Store, VectorRecord, VectorWrite, expect_space, find_space,
};
pub use memory::MemoryStore;
pub use sqlite::{IndexHealth, IndexKind, Problem, SearchOptions, SqliteStore};
