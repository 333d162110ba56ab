//! Images as a model reads them.

mod picture;

use std::path::Path;

use image::imageops::FilterType;
use rehang_core::{Error, Result, Semaphore};
use rehang_files::{LFS_POINTER, is_lfs_pointer};
use rten::Dimension;

use super::model::{fixed, shown};
use crate::config::keys::at_least_one;
use crate::config::{ImageFilter, ImageInput, ImageLayout, ImageResize};
use crate::contract::ItemFailure;
pub(super) use picture::DECODING_BYTES_MAX;
use picture::{Picture, covering};

/// Largest side of a model's image; anything above is a slip of the keyboard.
const SIDE_MAX: usize = 1 << 14;

impl ImageInput {
    /// Checks the keys against each other and against the shape that the model reads.
    pub(super) fn check(&self, model_shape: &[Dimension], model: &str) -> Result<()> {
        for (key, side) in [("width", self.width), ("height", self.height)] {
            at_least_one(key, side)?;
            if side > SIDE_MAX {
                return Err(Error::option(key, side, format!("at most {SIDE_MAX}")));
            }
        }
        if !matches!(self.channels, 1 | 3) {
            return Err(Error::option("channels", self.channels, "1 for grey or 3 for colours"));
        }
        for (key, values) in [("mean", &self.mean), ("std", &self.std)] {
            let count_fits = matches!(values.len(), 0 | 1) || values.len() == self.channels;
            let divides = key == "mean" || values.iter().all(|&value| value != 0.0);
            if !count_fits || !divides || values.iter().any(|value| !value.is_finite()) {
                return Err(Error::option(
                    key,
                    format!("{values:?}"),
                    format!("one number, or one for each of {} channels; no std is 0", self.channels),
                ));
            }
        }
        if let Some(side) = self.shorter_side {
            if self.resize == ImageResize::Exact {
                return Err(Error::option(
                    "shorter_side",
                    side,
                    "no such key without resize = \"shorter-side-crop\"",
                ));
            }
            if side < self.width.max(self.height) || side > SIDE_MAX {
                let least = self.width.max(self.height);
                return Err(Error::option(
                    "shorter_side",
                    side,
                    format!("a number from {least} to {SIDE_MAX}"),
                ));
            }
        }
        let reads = self.shape();
        let fits = model_shape.is_empty()
            || (model_shape.len() == 4
                && reads.iter().enumerate().all(|(at, &side)| {
                    fixed(model_shape, at + 1).is_none_or(|fixed_side| fixed_side == side)
                }));
        if !fits {
            return Err(Error::option(
                "input",
                format!("[batch, {}, {}, {}]", reads[0], reads[1], reads[2]),
                format!("what {model} reads: {}; set width, height, channels and layout", shown(model_shape)),
            ));
        }
        Ok(())
    }

    /// Shape of one image as the model reads it.
    pub(super) fn shape(&self) -> [usize; 3] {
        match self.layout {
            ImageLayout::Nchw => [self.channels, self.height, self.width],
            ImageLayout::Nhwc => [self.height, self.width, self.channels],
        }
    }

    /// Reads an image file as the numbers of the model, and says whether it has an orientation tag that was
    /// not followed.
    pub(super) fn pixels(
        &self,
        bytes: &[u8],
        path: &Path,
        memory: &Semaphore,
    ) -> Result<(Vec<f32>, bool), ItemFailure> {
        let refused = |error: String| {
            ItemFailure::Permanent(format!("{} is no image that can be read: {error}", path.display()))
        };
        if is_lfs_pointer(bytes) {
            return Err(refused(LFS_POINTER.into()));
        }
        let mut picture = Picture::open(bytes).map_err(refused)?;
        let (turn, has_unfollowed_tag) = picture.turn(self.exif_orientation == Some(true));
        let size = (self.width as u32, self.height as u32);
        let scaled = match self.resize {
            ImageResize::Exact => size,
            ImageResize::ShorterSideCrop => covering(turn.size(picture.size()), size, self.shorter_side),
        };
        let fitted =
            picture.fitted(turn, self.channels, scaled, size, self.filter(), memory).map_err(refused)?;
        Ok((self.numbers(fitted.as_bytes()), has_unfollowed_tag))
    }

    fn filter(&self) -> FilterType {
        match self.filter {
            ImageFilter::Nearest => FilterType::Nearest,
            ImageFilter::Bilinear => FilterType::Triangle,
            ImageFilter::Bicubic => FilterType::CatmullRom,
            ImageFilter::Lanczos => FilterType::Lanczos3,
        }
    }

    /// Converts bytes of pixels, `[height, width, channels]`, to the numbers of the model.
    fn numbers(&self, bytes: &[u8]) -> Vec<f32> {
        let at_channel = |values: &[f32], channel: usize, default| match values {
            [] => default,
            [value] => *value,
            values => values[channel],
        };
        let value = |byte: u8, channel: usize| {
            let byte = if self.invert { 255 - byte } else { byte };
            (f32::from(byte) / 255.0 - at_channel(&self.mean, channel, 0.0))
                / at_channel(&self.std, channel, 1.0)
        };
        match self.layout {
            ImageLayout::Nhwc => {
                bytes.iter().enumerate().map(|(at, &byte)| value(byte, at % self.channels)).collect()
            }
            ImageLayout::Nchw => (0..self.channels)
                .flat_map(|channel| {
                    bytes[channel..].iter().step_by(self.channels).map(move |&byte| (byte, channel))
                })
                .map(|(byte, channel)| value(byte, channel))
                .collect(),
        }
    }
}
