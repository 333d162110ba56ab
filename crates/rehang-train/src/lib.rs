//! Fits rehang's adapters: closed forms, FCT and FastFill, and the uncertainty of each.

mod auto;
mod burn_network;
pub mod closed_form;
pub mod comparison;
pub mod compatible;
pub mod encoder;
pub mod examples;
pub mod fit;
pub mod folds;
pub mod geometry;
pub mod guards;
pub mod handicap;
pub mod head_fit;
pub mod kernel_ridge;
mod linear_algebra;
mod method;
mod nearest;
pub mod network;
pub mod networks;
pub mod objectives;
pub mod onnx;
mod optimise;
mod optimiser;
mod outputs;
pub mod pseudo_classes;
#[cfg(test)]
mod real_data;
mod retrieval;
mod schedule;
#[cfg(test)]
mod test_data;
pub mod uncertainty;
mod vectorised;

pub use auto::{
    Candidate, FitParameters, Fitted, FittedMap, OwnEvidence, Selection, SelectionRow,
    closed_form_candidates, fit, fit_with,
};
pub use handicap::{HandicapChoice, HandicapRow};
pub use method::Method;
pub use networks::{LossParts, NetworkOptions, UncertaintySource, fit_adapter};
pub use optimiser::WeightDecay;
pub use schedule::Pace;
