//! The core of rehang: spaces and vectors, adapters and how to apply them, orders, exact backfilling curves.
//!
//! This crate knows no file format, no deep-learning framework, no database, no network and no clock, and it
//! prints nothing.

pub mod adapter;
pub mod bridge;
mod catch_panic;
pub mod check;
mod clusters;
pub mod comparison;
pub mod copies;
pub mod curve;
mod error;
pub mod finding;
mod forked;
mod fusion;
pub mod gains;
mod head;
mod length;
mod named;
pub mod order;
mod pairs;
mod printable;
mod processor;
mod progress;
mod remedy;
pub mod report;
mod sameness;
mod semaphore;
mod space;
pub mod statistics;
mod vectors;
pub mod verdict;

pub use adapter::Adapter;
pub use bridge::Bridge;
pub use catch_panic::catch_panic;
pub use clusters::{Clusters, class_means, k_means};
pub use error::{Error, ErrorKind, Party, Result, one_of};
pub use finding::{Finding, FindingCode, Severity};
pub use forked::in_parallel;
pub use fusion::Fusion;
pub use head::{Head, HeadKind};
pub use length::{NORMALISED_TOLERANCE, norm, normalise, squared_distance};
pub use pairs::Pairs;
pub use printable::printable;
pub use processor::Processor;
pub use progress::{Progress, ProgressSnapshot};
pub use remedy::{Remedy, Verb, Wording};
pub use sameness::{DIFFERENCE_MAX, NOISE_TIMES, difference, difference_in_words};
pub use semaphore::{Permit, Semaphore};
pub use space::{Distance, Space};
pub use vectors::{Labels, Matrix, Provenance, Vectors, distinct};
pub use verdict::Verdict;
