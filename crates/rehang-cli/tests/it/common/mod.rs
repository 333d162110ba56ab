//! Folders in which the real binary runs, and what kills it there.

pub mod deaths;
mod place;
pub mod upgrade;

pub use place::{Place, demo, demo_gallery, faults_of_refusal, waves, words};

/// The program that is tested.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_rehang");
