//! The same network through burn's automatic differentiation, for other devices.

use rehang::{ErrorKind, Result};

use crate::fit::{Device, NetworkParameters, Snapshot, Trainer};
use crate::network::Layout;

/// A trainer on one of burn's devices.
pub(crate) fn trainer(
    _layout: &Layout,
    _parameters: &NetworkParameters,
    _variance: f64,
    _snapshot: Snapshot,
    _device: Device,
) -> Result<Box<dyn Trainer>> {
    Err(ErrorKind::MissingFeature { feature: "wgpu" }.into())
}
