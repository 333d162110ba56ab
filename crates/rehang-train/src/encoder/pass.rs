//! What every way to run a graph can do: a forward pass and a backward pass.

use rehang::Result;
use rehang_fit::Device;
use rehang_fit::network::State;

use super::Graph;
use super::fused::FusedPasses;
use super::tensors::TensorPasses;

/// Which statistics BatchNorm uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The batch's own, and the running ones move a tenth towards them (unbiased variance, as PyTorch does). What the
    /// backward pass needs is kept.
    Training,
    /// The running ones; nothing is kept.
    Evaluation,
}

/// A graph made ready to run on one device.
pub trait Passes {
    /// Vectors `[rows, outputs]` of inputs `[rows, channels, height, width]`, both row-major.
    ///
    /// # Errors
    ///
    /// An `input` of another size than `rows` rows.
    fn forward(&mut self, state: &mut State, input: &[f32], rows: usize, mode: Mode) -> Result<Vec<f32>>;

    /// Adds the gradient of every parameter to `parameters` (in the order of [`State::parameters`]), given the
    /// gradient `[rows, outputs]` of the vectors of the last forward pass in [`Mode::Training`].
    ///
    /// # Errors
    ///
    /// A gradient of another size, or no such pass before.
    fn backward(&mut self, state: &State, gradient: &[f32], parameters: &mut [f32]) -> Result<()>;
}

/// The passes of a graph on a device: fused ones on the processor, burn's on all others.
///
/// # Errors
///
/// [`rehang::ErrorKind::MissingFeature`] for a device that this build leaves out.
pub fn passes(graph: &Graph, device: Device) -> Result<Box<dyn Passes>> {
    Ok(match device {
        Device::Cpu => Box::new(FusedPasses::new(graph)),
        _ => Box::new(TensorPasses::new(graph.clone(), rehang_fit::burn::device(device)?)),
    })
}
