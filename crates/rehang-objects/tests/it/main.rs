//! Folders of object stores pass the tests of all folders.

#[path = "../../../rehang-files/tests/folders/mod.rs"]
#[allow(dead_code, reason = "folders of this machine are run elsewhere")]
mod folders;
#[path = "../server/mod.rs"]
mod server;

mod memory;
mod s3;
