//! The laboratory's command line as people and scripts call it: every test starts the real binary.

mod common;

mod evaluate;
mod surface;
mod training;
