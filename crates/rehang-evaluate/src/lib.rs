//! Measures what an upgrade is worth, from the files that users have.
//!
//! - [`order()`] says which items to re-embed first.
//! - [`curve()`] says what every percent of re-embedding buys.
//! - [`report()`] says which adapter and order to take.
//! - [`floors()`] says where an application's floors lie by the new model.
//! - [`identify()`] says which model made which vectors.
//!
//! Every verb is one function: a plain struct of files and settings in, a value out that serialises. Progress
//! and cancel come by [`rehang_core::Progress`]. What readers should know beside the numbers is returned as
//! [`rehang_core::finding::Finding`]s; nothing is printed. Messages name parameters by the fields of these
//! structs, between backticks.

mod answers;
mod curve;
mod floors;
mod guards;
mod identify;
mod order;
mod queries;
mod report;
mod sizes;
pub mod study;
mod whole;

pub use answers::{AnswerFiles, Answers};
pub use curve::{CurveAnswer, CurveFiles, LEVEL, Points, TABLE, check_grid, curve, further};
pub use floors::{FloorsInput, floors};
pub use identify::{
    Candidate, Identified, IdentifyFiles, KindsFound, Maker, ModelFound, Nearness, Origin, identify,
    identify_alone, identify_vectors, nearness,
};
pub use order::{OrderFiles, Ordered, order};
pub use report::{GalleryJudgements, ReportFiles, Reported, report};
