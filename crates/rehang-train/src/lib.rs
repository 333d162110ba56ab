//! Fits rehang's adapters: closed forms, FCT and FastFill, and the uncertainty of each.

pub mod closed_form;
pub mod folds;
pub mod geometry;
pub mod head_fit;
pub mod kendall;
mod linear_algebra;
mod nearest;
mod optimise;
mod outputs;
pub mod pseudo_classes;
#[cfg(test)]
mod test_data;
pub mod uncertainty;
