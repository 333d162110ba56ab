//! Galleries in the collection where they already live: Qdrant, over its REST interface.
//!
//! [`QdrantStore`] keeps the contracts of [`rehang_store`] on an application's own points, item by item:
//! Qdrant has no transactions. `docs/trust.md` says what it promises beside the other stores,
//! `docs/qdrant.md` what an application has to do, and `docs/reference/qdrant.md` how a vector is written.

mod address;
mod adoption;
mod chunks;
mod claims;
mod client;
mod collection;
mod doctor;
mod filters;
mod handle;
mod ids;
mod indexes;
mod items;
mod leases;
mod meta;
mod pages;
mod payload;
mod points;
mod queue;
mod release;
mod scroll;
mod search;
mod slot;
mod spaces;
mod store;
mod tokens;
mod vectors;

pub use address::QdrantAddress;
pub use collection::CollectionOptions;
pub use store::QdrantStore;
