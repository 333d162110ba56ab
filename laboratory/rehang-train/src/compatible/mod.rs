//! Compatible training: a new encoder whose vectors can be searched against the old gallery at once.
//!
//! A [`TrainingMethod`] is a weighted list of objectives (one file each in `objectives`); [`train`] runs it.
//! It trains on [`crate::examples`]. Out come a [`crate::encoder::TrainedEncoder`] and, where the method
//! trains one (DMU), the map ψ as an ordinary adapter.

mod adapter;
mod checkpoint;
pub mod heads;
mod method;
mod objectives;
mod old;
mod optimiser;
mod rows;
#[cfg(test)]
mod tests;
mod trainer;

pub use heads::HeadForm;
pub use method::{InfluenceSet, NewClasses, RactForm, TrainingMethod};
pub use objectives::focal_distillation::FocalForm;
pub use objectives::selective::{RowWeighting, SelectionLogits};
pub use old::{OldHead, OldModel, OldSource};
pub use optimiser::{OptimiserKind, RateSchedule};
pub use trainer::{EpochSummary, Trained, TrainingParameters, TrainingSet, train};
pub(crate) use trainer::{unless_diverged, warnings as training_warnings};
