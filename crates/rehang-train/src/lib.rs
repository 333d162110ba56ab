//! Fits rehang's adapters: closed forms, FCT and FastFill, and the uncertainty of each.

#[cfg(test)]
mod burn_network;
pub mod closed_form;
pub mod fit;
pub mod folds;
pub mod geometry;
pub mod head_fit;
mod kendall;
pub mod kernel_ridge;
mod linear_algebra;
mod nearest;
pub mod network;
pub mod objectives;
mod optimise;
mod optimiser;
mod outputs;
pub mod pseudo_classes;
mod schedule;
#[cfg(test)]
mod test_data;
pub mod uncertainty;
mod vectorised;

pub use optimiser::WeightDecay;
pub use schedule::Pace;
