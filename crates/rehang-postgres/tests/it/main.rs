//! All tests of galleries in PostgreSQL, as one program: they share one server.

mod application;
mod conformance;
mod oracle;
mod refusals;
mod strangers;

#[path = "../server/mod.rs"]
mod server;
