//! Fits rehang's adapters: closed forms, FCT and FastFill, and the uncertainty of each.
//!
//! This crate knows pairs and returns adapters: no encoders, no store, no command line. [`fit_adapter`] is
//! the one call that does everything. It holds pairs out, fits every method that is asked for on the others,
//! compares each with doing nothing, and keeps the best. From out-of-fold residuals it learns how wrong the
//! map is on each item.
//!
//! ```
//! use rehang_core::{Distance, Matrix, Pairs, Progress, Vectors, adapter};
//! use rehang_fit::geometry::GeometryKind;
//! use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};
//!
//! // Two hundred items; the new model's vectors are the old ones turned by a right angle.
//! let old = Matrix::from_fn(200, 2, |item, axis| ((item * (17 + 24 * axis)) % 101) as f32 / 101.0 - 0.5);
//! let new = Matrix::from_fn(200, 2, |item, axis| if axis == 0 { -old.row(item)[1] } else { old.row(item)[0] });
//! let old = Vectors::measured("old", Distance::L2, old, "old vectors")?;
//! let new = Vectors::measured("new", Distance::L2, new, "new vectors")?;
//! let pairs = Pairs::new(old, new, None, None)?;
//!
//! let (method, geometry) = (Method::Procrustes, Some(GeometryKind::Raw));
//! let parameters = FitParameters { method, geometry, ..FitParameters::default() };
//! let fitted = fit_adapter(&pairs, None, &parameters, &NetworkOptions::default(), &Progress::default())?;
//! let adapted = adapter::apply(&fitted.adapter, pairs.old(), None, &Progress::default())?;
//! let (found, wanted) = (adapted.vectors.matrix().row(17), pairs.new_vectors().matrix().row(17));
//! assert!((found[0] - wanted[0]).abs() < 1e-3 && (found[1] - wanted[1]).abs() < 1e-3);
//!
//! // The table of the comparison: turning the vectors is worth more than leaving them as they are.
//! let table = fitted.selection.unwrap();
//! assert!(table.rows[table.kept.unwrap()].start > table.rows[0].start);
//! # Ok::<(), rehang_core::Error>(())
//! ```

pub mod adam;
mod auto;
mod bridge;
mod candidate;
pub mod closed_form;
mod compare;
mod files;
pub mod folds;
mod fusion;
mod fusion_choice;
pub mod geometry;
pub mod guards;
pub mod handicap;
pub mod head_fit;
pub mod kernel_ridge;
mod kinds;
mod kinship;
mod lbfgs;
mod learned;
mod learning_curve;
mod left_out;
mod linear_algebra;
mod lower_bounds;
mod method;
pub mod network;
pub mod network_fit;
pub mod objectives;
mod order_choice;
mod others;
mod parameters;
mod per_kind;
pub mod pseudo_classes;
pub mod refit;
mod residuals;
mod retrieval;
mod same;
mod schedule;
mod task;
#[cfg(test)]
mod tests;
mod traits;
pub mod uncertainty_fit;
mod within;

pub use adam::WeightDecay;
pub use auto::Fitted;
pub use bridge::{BridgeChoice, BridgeRow, FittedBridge, SHARES, fit_bridge, fit_bridge_of};
pub use compare::{Selection, SelectionRow};
pub use files::{FitAnswer, FitFiles, fit_files};
pub use fusion_choice::{FusionChoice, FusionRow};
pub use handicap::{HandicapChoice, HandicapRow};
pub use kinds::{KINDS_MIN, Kinds};
pub use kinship::{KINSHIP_MIN, KINSHIP_WIDTH_MIN, Kinship, kinship, kinship_of_any};
pub use learned::{LossParts, NetworkOptions, UncertaintySource, fit_adapter, fit_map_only};
pub use learning_curve::{LearningCurve, learning_curve};
pub use lower_bounds::{HeldOutGain, HeldOutGallery};
pub use method::Method;
pub use order_choice::{ORDERS, OrderArea, OrderChoice, OrderRow, choose_order};
pub use parameters::{FitParameters, FitQueries, OtherItems};
pub use residuals::kinds_of_pairs;
pub use schedule::Pace;
pub use traits::{Trait, TraitValues};
pub use within::Within;
