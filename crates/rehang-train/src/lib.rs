//! Fits rehang's adapters: networks (FCT, FastFill), with hand-written gradients on the CPU.

mod burn_network;
pub mod fit;
pub mod network;
pub mod objectives;
mod optimiser;
mod schedule;
mod vectorised;

pub use optimiser::WeightDecay;
pub use schedule::Pace;
