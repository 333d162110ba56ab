//! Folders in which the real binary runs.

#[allow(dead_code, reason = "the other command line's tests kill it, too")]
#[path = "../../../../../crates/rehang-cli/tests/it/common/place.rs"]
mod place;

pub use place::{Place, demo, demo_gallery, faults_of_refusal, waves, words};

/// The program that is tested.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_rehang-lab");
