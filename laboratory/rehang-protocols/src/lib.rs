//! How compatible models are compared in the literature: retrieval between models, faces and landmarks.
//!
//! This crate belongs to the laboratory, in which methods of papers are measured: no part of an upgrade needs
//! it.
//!
//! - Retrieval between models, [`compatibility`]: every metric of [`rehang_core::curve`], along upgrades too (BCT,
//!   RACT, DMU).
//! - Templates, [`templates`] (BCT §3.1).
//! - 1:1 verification, [`verification`]: TAR@FAR; the first template by the new model, the second by the old
//!   (BCT §3.1, §3.3).
//! - 1:N open-set search, [`identification`]: TPIR@FPIR (printed TNIR in BCT's tables), rank-1, rank-5 (BCT
//!   §3.1, §3.3).
//! - Landmarks, [`landmarks`](mod@landmarks): mAP@100; mAP of revisited Oxford and Paris, Easy, Medium, Hard
//!   (RACT §5.1, DMU §4.1).
//!
//! The protocols of faces and landmarks know no models: each takes the vectors of the two sides, so that any
//! of them fills a [`compatibility::CrossMatrix`]. Where the two sides differ in width, the querying side is
//! made to fit ([`rehang_core::Matrix::at_width`]). All values are percent.
//!
//! Beside them stand the verbs that read what they need from files: [`cross`], [`refresh`] and [`sequence`]
//! for retrieval, [`verify`] and [`identify`] for faces, [`landmarks()`].

pub mod compatibility;
pub mod identification;
pub mod landmarks;
mod rates;
pub mod templates;
mod verbs;
pub mod verification;

pub use verbs::{
    CrossAnswer, FaceFiles, GalleryResults, IdentificationAnswer, IdentificationFiles, LandmarkAnswer,
    LandmarkFiles, LandmarkTruth, MeasuredLandmarks, MeasuredOn, ModelFiles, RefreshAnswer, RefreshInOrder,
    RefreshLine, SequenceAnswer, SequenceFiles, SetupMetrics, Table, VerificationAnswer, VerificationRate,
    cross, identify, landmarks, refresh, sequence, tpir_name, verify,
};
