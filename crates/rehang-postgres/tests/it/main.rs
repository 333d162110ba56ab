//! All tests of galleries in PostgreSQL, as one program: they share one server.

mod application;
mod conformance;
mod costs;
mod frozen;
mod oracle;
mod refusals;
mod strangers;
mod surroundings;

#[path = "../server/mod.rs"]
mod server;
