//! Every kind of file: written and read back, damaged and refused, and folders of them.

#[path = "../../../rehang-core/tests/adapters/mod.rs"]
mod adapters;
#[path = "../folders/mod.rs"]
mod folders;
mod samples;

mod adapter_file;
mod bad_files;
mod bridge_file;
mod files;
mod given;
mod lists;
mod partitions;
mod thresholds;
