//! Opening: from a configuration to its encoder.

use std::path::Path;

#[cfg(not(all(feature = "http", feature = "onnx")))]
use rehang_core::ErrorKind;
use rehang_core::{Result, Space};

use crate::command::Command;
use crate::config::EncoderConfig;
use crate::contract::Encoder;
#[cfg(feature = "http")]
use crate::http::Http;
#[cfg(feature = "onnx")]
use crate::onnx::Onnx;
use crate::table::Table;
use crate::watched::Watched;

/// Opens the encoder of a configuration for a space. Relative paths are relative to `base`, the folder of the
/// configuration file.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::MissingFeature`] for a kind that this build leaves out;
/// [`rehang_core::ErrorKind::InvalidOption`] and [`rehang_core::ErrorKind::MissingInput`] for keys that cannot be;
/// [`rehang_core::ErrorKind::Io`] and [`rehang_core::ErrorKind::Corrupt`] for files that cannot be read;
/// [`rehang_core::ErrorKind::WidthMismatch`] where the width is known beforehand and is not the space's. A program
/// is started and an endpoint is asked with the first batch.
pub fn open(config: &EncoderConfig, space: &Space, base: &Path) -> Result<Box<dyn Encoder>> {
    Ok(match config {
        EncoderConfig::Table(config) => Box::new(Table::open(config, space, base)?),
        EncoderConfig::Command(config) => {
            let command = Box::new(Command::open(config, space, base)?);
            if command.may_drift() { Box::new(Watched::new(command)) } else { command }
        }
        #[cfg(feature = "http")]
        EncoderConfig::Http(config) => {
            Box::new(Http::open(&config.seen_from(base), space)?.with_batches(base)?)
        }
        #[cfg(not(feature = "http"))]
        EncoderConfig::Http(_) => return Err(ErrorKind::MissingFeature { feature: "http" }.into()),
        #[cfg(feature = "onnx")]
        EncoderConfig::Onnx(config) => Box::new(Onnx::open(config, space, base)?),
        #[cfg(not(feature = "onnx"))]
        EncoderConfig::Onnx(_) => return Err(ErrorKind::MissingFeature { feature: "onnx" }.into()),
    })
}
