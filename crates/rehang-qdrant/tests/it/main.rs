//! All tests of galleries in Qdrant, as one program: they share one server.

mod application;
mod conformance;
mod refusals;
mod strict;
mod twin;

#[path = "../server/mod.rs"]
mod server;
#[path = "../../../rehang-connect/tests/tls/mod.rs"]
mod tls;
