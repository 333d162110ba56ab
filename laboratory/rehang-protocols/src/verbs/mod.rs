//! The verbs: files and settings in, a value out that serialises.

mod faces;
mod landmarks;
mod models;
mod retrieval;

pub use faces::{
    FaceFiles, GalleryResults, IdentificationAnswer, IdentificationFiles, VerificationAnswer,
    VerificationRate, identify, tpir_name, verify,
};
pub use landmarks::{
    LandmarkAnswer, LandmarkFiles, LandmarkTruth, MeasuredLandmarks, SetupMetrics, landmarks,
};
pub use models::Table;
pub use retrieval::{
    CrossAnswer, MeasuredOn, ModelFiles, RefreshAnswer, RefreshInOrder, RefreshLine, SequenceAnswer,
    SequenceFiles, cross, refresh, sequence,
};
