//! Tests of live upgrades from outside, as one program. Random histories (`tests/model.rs`) are a program of
//! their own: their full disks are a limit of the whole process.

mod between;
mod bridge;
mod common;
mod cut;
mod directions;
mod equal;
mod faults;
mod first;
mod follow;
mod forecast;
mod full_disk;
mod fuse;
mod models;
mod plain_way;
mod refit;
mod run;
#[cfg(feature = "postgres")]
#[path = "../../../rehang-postgres/tests/server/mod.rs"]
mod server;
mod service;
mod source;
#[cfg(feature = "postgres")]
mod sql;
#[path = "../../../rehang-encode/tests/common/stub.rs"]
mod stub;
