//! Stores of live galleries: the contracts [`Ledger`] and [`Index`], and the checks and tools that every
//! store shares.
//!
//! A ledger holds the truth: items and, for every space of the gallery, at most one vector an item, with its
//! provenance; who works on what; and the documents of an upgrade. An index searches one space and is
//! derived. A [`Store`] is both. None of them knows how vectors are made. The crate `rehang-store-tests`
//! proves that a store keeps the contracts.

pub mod check;
mod contract;
pub mod exact;
mod examined;
mod files;
mod lease;
mod numbers;
mod shuffle;

pub use check::expect_space;
pub use contract::{
    ALONE_AFTER, Among, AtWork, Claimed, Counts, Document, Drawn, Epoch, Failure, Filter, Found, FusedSpaces,
    Index, Item, ItemKey, ItemWrite, Ledger, NewVector, Priority, Queue, QueueBand, Record, Revision, Sample,
    Scan, Select, SpaceRecord, Store, VectorRecord, VectorWrite, WriteOutcome, find_space,
};
pub use exact::share_found;
pub use examined::{Examined, IndexHealth, IndexKind, Problem, Released, TableFindings};
pub use files::Files;
pub use lease::{LeaseClock, ManualLeaseClock, SystemLeaseClock, lease_end};
pub use numbers::rounded_number;
pub use shuffle::{FirstKeys, PAIRS_SEED, shuffled};
