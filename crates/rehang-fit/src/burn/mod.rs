//! Work on burn's devices: fitting a network there, and what the training of encoders shares with it.
//!
//! The passes on the processor need none of this; a build without the feature `burn` leaves it out.

mod network;

use burn_tensor::{Device as BurnDevice, Tensor, TensorData};
use rehang::{Error, Result};

use crate::network_fit::Device;
pub(crate) use network::trainer;

/// Squared lengths below this count as it, so that a zero row has a finite derivative.
const SQUARE_MINIMUM: f32 = 1e-24;

/// burn's device of a name; [`Device::Cpu`] is burn's own processor device here, as [`Device::Flex`] is.
///
/// # Errors
///
/// [`rehang::ErrorKind::MissingFeature`] where this build leaves the device out.
pub fn device(device: Device) -> Result<BurnDevice> {
    match device {
        Device::Cpu | Device::Flex => Ok(BurnDevice::flex()),
        #[cfg(feature = "wgpu")]
        Device::Wgpu => Ok(BurnDevice::wgpu(burn_tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "cuda")]
        Device::Cuda => Ok(BurnDevice::cuda(burn_tensor::DeviceIndex::Default)),
        #[cfg(not(all(feature = "wgpu", feature = "cuda")))]
        left_out => Err(left_out.missing_feature()),
    }
}

/// A tensor of numbers in row-major order.
pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &BurnDevice) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// Cosines with ArcFace's margin on the angle of the true class (`is_true`, one-hot): `cos(θ + margin)`, and beyond the angle at
/// which that would rise again a line.
pub fn with_angular_margin(cosines: &Tensor<2>, is_true: Tensor<2>, margin: f32) -> Tensor<2> {
    let sines = cosines.clone().square().neg().add_scalar(1.0).clamp_min(1e-6).sqrt();
    let turned = cosines.clone().mul_scalar(margin.cos()) - sines.mul_scalar(margin.sin());
    let limit = (std::f32::consts::PI - margin).cos();
    let beyond = cosines.clone().detach().lower_equal_elem(limit).float();
    let guard = cosines.clone().sub_scalar(margin * margin.sin());
    let with_margin = turned.clone() + (guard - turned) * beyond;
    cosines.clone() + (with_margin - cosines.clone()) * is_true
}

/// The numbers of a tensor, in row-major order.
///
/// # Errors
///
/// [`rehang::ErrorKind::Corrupt`] where the device gives none.
pub fn read<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    let data = tensor.try_into_data_as::<f32>();
    data.map_err(|error| format!("{error:?}"))
        .and_then(|data| data.try_to_vec::<f32>().map_err(|error| format!("{error:?}")))
        .map_err(|detail| Error::corrupt("results of the training device", detail))
}

/// Rows scaled to length 1; a zero row stays zero.
pub fn unit(rows: Tensor<2>) -> Tensor<2> {
    let squares = rows.clone().square().sum_dim(1).clamp_min(SQUARE_MINIMUM);
    rows / squares.sqrt()
}

#[cfg(all(test, not(feature = "wgpu")))]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_left_out_names_its_feature() {
        assert!(device(Device::Wgpu).unwrap_err().is_missing_feature());
    }
}
