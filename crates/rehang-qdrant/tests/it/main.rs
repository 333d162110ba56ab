//! All tests of galleries in Qdrant, as one program: they share one server.

mod application;
mod conformance;
mod refusals;
mod twin;

#[path = "../../../rehang-store/tests/histories/mod.rs"]
mod histories;

#[path = "../server/mod.rs"]
mod server;
