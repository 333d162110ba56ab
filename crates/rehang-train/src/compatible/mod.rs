//! Compatible training: a new encoder whose vectors can be searched against the old gallery at once.
//!
//! A [`Method`] is a weighted list of objectives (one file each in `objectives`); [`train`] runs it. What is trained on is
//! [`crate::examples`], what comes out is an [`crate::encoder::Encoder`] and, where the method trains one (DMU), the map ψ
//! as an ordinary adapter.

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
pub use method::{InfluenceSet, Method, NewClasses, RactForm};
pub use objectives::selective::Selection;
pub use old::{OldHead, OldModel, OldSource};
pub use optimiser::{OptimiserKind, RateSchedule};
pub use trainer::{EpochRecord, Trained, TrainingParameters, TrainingSet, train};
pub(crate) use trainer::{unless_diverged, warnings as training_warnings};
