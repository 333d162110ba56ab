//! All tests of galleries in PostgreSQL, as one program: they share one server.

mod adoption;
mod application;
mod conformance;
mod costs;
mod frozen;
mod history;
mod ignored;
mod notes;
mod oracle;
mod paid;
mod partitions;
#[cfg(unix)]
mod pooler;
mod refusals;
mod release;
mod strangers;
mod surroundings;
mod wide;

#[cfg(unix)]
#[path = "../server/pooler.rs"]
mod bouncer;
#[path = "../server/mod.rs"]
mod server;
