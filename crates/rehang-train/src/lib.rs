//! Fits rehang's adapters: closed forms, FCT and FastFill, and the uncertainty of each.

pub mod closed_form;
pub mod folds;
pub mod geometry;
pub mod head_fit;
pub mod kernel_ridge;
mod linear_algebra;
mod optimise;
mod outputs;
pub mod pseudo_classes;
#[cfg(test)]
mod test_data;
