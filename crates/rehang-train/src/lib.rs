//! Fits rehang's adapters: closed forms, FCT and FastFill, and the uncertainty of each.

mod auto;
pub mod closed_form;
pub mod folds;
pub mod geometry;
pub mod guards;
pub mod head_fit;
pub mod kendall;
pub mod kernel_ridge;
mod linear_algebra;
mod method;
mod nearest;
mod optimise;
mod outputs;
pub mod pseudo_classes;
#[cfg(test)]
mod real_data;
mod retrieval;
#[cfg(test)]
mod test_data;
pub mod uncertainty;

pub use auto::{
    Candidate, FitParameters, Fitted, FittedMap, OwnEvidence, Selection, SelectionRow,
    closed_form_candidates, fit, fit_with,
};
pub use method::Method;
