//! Stores of live galleries: the [`Store`] contract and what keeps it.
//!
//! A store holds items and, for every space of the gallery, at most one vector an item, with its provenance. It knows
//! nothing of how vectors are made. The contract is the trait [`Store`].

mod check;
mod contract;
mod exact;
mod memory;

pub use contract::{
    Counts, Failure, Filter, Found, Item, ItemKey, ItemWrite, NewVector, Outcome, Record, Revision, Scan,
    Select, SpaceRecord, Store, VectorRecord, VectorWrite,
};
pub use memory::MemoryStore;
