//! The embedded gallery: one SQLite file is the only truth; search indexes beside it are made from it, and
//! made again.
//!
//! [`SqliteStore`] keeps the contracts of [`rehang_store`] for any number of threads and processes.
//! `docs/store.md` explains the file to applications that write through plain SQL.

mod claims;
mod connection;
mod doctor;
mod exact;
mod fairness;
mod graph;
mod ignored;
mod index;
mod items;
mod keeper;
mod metric;
mod options;
mod pages;
mod paid;
mod queue;
mod schema;
mod search;
mod spaces;
mod store;
mod trouble;
mod values;
mod vectors;

pub use options::SearchOptions;
pub use store::SqliteStore;
