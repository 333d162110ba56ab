//! Galleries in the table where they already live: PostgreSQL with pgvector.
//!
//! [`PostgresStore`] keeps the contracts of [`rehang_store`] on an application's own table. The database is
//! the only coordinator: any number of workers on any number of machines may come and go.

mod address;
mod adoption;
mod bridge;
mod claims;
mod client;
mod connection;
mod dependents;
mod doctor;
mod front;
mod fused;
mod guard;
mod handle;
mod hold;
mod ignored;
mod items;
mod locks;
mod map;
mod matrices;
mod nearest;
mod pages;
mod paid;
mod parameter;
mod partitions;
mod pgvector;
mod queue;
mod reading;
mod release;
mod row_security;
mod schema;
mod search;
mod serving;
mod spaces;
mod store;
mod table;
mod trigger_function;
mod values;
mod vectors;

pub use hold::Hold;
pub use store::PostgresStore;
pub use table::TableOptions;
