//! Fits a network: `fct`, `fastfill-reference`, `fastfill` and `residual-mlp`.
//!
//! ```
//! use rehang_core::{Distance, Matrix, Pairs, Progress, Vectors};
//! use rehang_fit::network_fit::{NetworkParameters, fit_network};
//! use rehang_fit::network::Architecture;
//!
//! // Sixty items; the new model's vectors are the old ones turned by a right angle.
//! let old = Matrix::from_fn(60, 2, |item, axis| ((item * (7 + 4 * axis)) % 13) as f32 / 13.0 - 0.5);
//! let new = Matrix::from_fn(60, 2, |item, axis| if axis == 0 { -old.row(item)[1] } else { old.row(item)[0] });
//! let old = Vectors::measured("old", Distance::L2, old, "old vectors")?;
//! let new = Vectors::measured("new", Distance::L2, new, "new vectors")?;
//! let pairs = Pairs::new(old, new, None, None)?;
//!
//! let parameters = NetworkParameters {
//!     architecture: Architecture::Mixer { hidden: 32, branch_factor: 2 },
//!     batch: 20,
//!     learning_rate: 5e-3,
//!     ..NetworkParameters::fct()
//! };
//! let fitted = fit_network(&pairs, None, &parameters, &Progress::default(), None)?;
//! assert_eq!(fitted.history.len(), 80);
//! assert!(fitted.history[79].training < 0.05 * fitted.history[0].training);
//! # Ok::<(), rehang_core::Error>(())
//! ```
//!
//! # Same seed, same bytes
//!
//! Initial weights, the order of the pairs, and dropout are functions of the seed and of the epoch; every sum
//! has a fixed order. So a fit gives the same map for any number of threads, and a fit that was stopped and
//! resumed from its checkpoint gives the map of one that was not.

mod average;
mod batches;
#[doc(hidden)]
pub mod bench;
mod checkpoint;
mod objective;
mod parameters;
#[cfg(test)]
mod reference;
mod run;
mod trainer;

pub use average::average_maps;
pub use parameters::{LossParameters, NetworkParameters, UncertaintyLoss};
pub use run::fit_network;

pub(crate) use batches::Batch;
pub(crate) use checkpoint::identity;
pub(crate) use objective::{Objective, Stage, uncertainty_of};
pub(crate) use trainer::{Snapshot, Step, Trainer};

#[cfg(test)]
mod tests;

use rehang_core::adapter::{Map, Uncertainty};

/// Losses of one epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct EpochLoss {
    /// Mean over the pairs of the loss that was minimised, measured batch by batch while the weights moved.
    pub training: f64,
    /// Mean of L (before uncertainty) over the held-out pairs after the epoch, with running statistics.
    pub held_out: Option<f64>,
}

/// A fitted network, with the history of its losses.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FittedNetwork {
    /// Map, with BatchNorm and standardisation folded in.
    pub map: Map,
    /// ψ, where it was trained. It estimates `log L` for the loss that was minimised, which is the squared
    /// error only up to the loss's unit and its discriminative part.
    pub psi: Option<Uncertainty>,
    /// Losses by epoch.
    pub history: Vec<EpochLoss>,
    /// Epoch of the weights: the last one, or the best one under early stop.
    pub best_epoch: usize,
}
