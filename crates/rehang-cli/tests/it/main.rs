//! The command line as people and scripts call it: every test starts the real binary.

#![allow(clippy::duplicate_mod, reason = "servers of other crates' tests bring what they share along")]

mod common;
#[path = "../../../rehang-encode/tests/common/desk.rs"]
mod desk;
#[cfg(feature = "objects")]
#[path = "../../../rehang-objects/tests/server/mod.rs"]
mod object_server;
#[path = "../../../rehang-postgres/tests/server/mod.rs"]
mod postgres_server;
#[path = "../../../rehang-qdrant/tests/server/mod.rs"]
mod qdrant_server;
#[path = "../../../rehang-encode/tests/common/stub.rs"]
mod stub;

mod auto;
mod bad_input;
mod batches;
mod bench;
mod chaos;
mod clicks;
mod folder;
mod kill;
mod large;
mod live;
mod manual;
mod no_room;
mod objects;
mod pages;
mod postgres;
mod qdrant;
mod search;
#[cfg(all(unix, feature = "serve"))]
mod serve;
mod surface;
mod texts;
