//! Measures what an upgrade is worth, from the files that users have: which items to re-embed first ([`order()`]), what every
//! percent of re-embedding buys ([`curve()`]), and which adapter and order to take ([`report()`]); and what compatible models are
//! worth to each other ([`cross`], [`refresh`], [`sequence`], [`verify`], [`identify`], [`landmarks()`]).
//!
//! Every verb is one function: a plain struct of files and settings in, a value out that serialises, progress and cancel by
//! [`rehang::Progress`]. What readers should know beside the numbers is returned as [`rehang::finding::Finding`]s; nothing is
//! printed. Messages name parameters by the fields of these structs, between backticks.

mod answers;
mod curve;
mod faces;
mod guards;
mod landmarks;
mod models;
mod order;
mod report;
mod retrieval;
pub mod study;

pub use answers::AnswerFiles;
pub use curve::{CurveAnswer, CurveFiles, LEVEL, Points, TABLE, curve, further};
pub use faces::{
    FaceFiles, GalleryResults, IdentificationAnswer, IdentificationFiles, VerificationAnswer,
    VerificationRate, identify, tpir_name, verify,
};
pub use landmarks::{
    LandmarkAnswer, LandmarkFiles, LandmarkTruth, MeasuredLandmarks, SetupMetrics, landmarks,
};
pub use models::{NamedFile, Table};
pub use order::{OrderFiles, Ordered, order};
pub use report::{ReportFiles, Reported, report};
pub use retrieval::{
    CrossAnswer, MeasuredOn, ModelFiles, RefreshAnswer, RefreshInOrder, RefreshLine, SequenceAnswer,
    SequenceFiles, cross, refresh, sequence,
};
