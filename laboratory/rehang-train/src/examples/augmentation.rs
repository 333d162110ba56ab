//! Augmentation: rows as numbers of the encoder, varied while it is trained.

use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::dataset::{ExampleInputs, Images, SIDE_MAX};
use super::draws::{Purpose, generator};
use super::geometry::Map;
use super::normalisation::Normalisation;
use crate::encoder::normal;

/// Least share of the area that a crop may have: a hundredth of each side.
const AREA_MIN: f32 = 1e-4;

/// Bounds of ratios and growths: beyond them nothing is left of an image, and coordinates leave the exact
/// numbers.
const GROWTH: [f32; 2] = [0.01, 100.0];

/// Variation of rows while an encoder is trained. The default varies nothing.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `crop_padding` | 0 | images are shifted by up to this many pixels either way, both ways | 0 to 16384 |
/// | `border` | `"zero"` | outside of the image: black, mirror image, edge | `zero`, `reflect`, `edge` |
/// | `resized_crop` | none | a random part, stretched to the whole | see [`ResizedCrop`] |
/// | `affine` | none | a small random turn, shift and growth | see [`Affine`] |
/// | `flip` | 0 | probability of the mirror image, left for right | 0 to 1 |
/// | `colour` | none | random brightness, contrast, saturation | see [`ColourJitter`] |
/// | `noise` | 0 | standard deviation of normal noise on vectors, after normalisation | ≥ 0 |
/// | `dropout` | 0 | probability of 0 for each coordinate; others are divided by 1 − it | 0 to below 1 |
///
/// Parts for images are errors for vectors, and the other way round: silence there would be a variation that
/// never happens. The order for images is crop, affine, shift, flip, colours.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Augmentation {
    /// Shift of images in pixels: a random crop of the padded image.
    pub crop_padding: usize,
    /// Pixels that stand outside of an image.
    pub border: Border,
    /// Random part of an image, stretched to the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resized_crop: Option<ResizedCrop>,
    /// Random turn, shift and growth, all small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affine: Option<Affine>,
    /// Probability of the mirror image.
    pub flip: f64,
    /// Random brightness, contrast and saturation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub colour: Option<ColourJitter>,
    /// Standard deviation of the noise on vectors.
    pub noise: f32,
    /// Probability that a coordinate of a vector is dropped.
    pub dropout: f32,
}

/// Pixels that stand outside of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Border {
    /// Black.
    #[default]
    Zero,
    /// The mirror image, which does not repeat the edge itself.
    Reflect,
    /// The nearest pixel of the image.
    Edge,
}

/// A random part of an image, stretched to the whole.
///
/// Its share of the area is drawn from `scale`, its ratio of width to height (relative to the image's own)
/// from `ratio` on a logarithmic scale; a part that does not fit is drawn again, and after ten draws the
/// whole image stands in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResizedCrop {
    /// Least and largest share of the area, from 0.0001 to 1; 0.08 to 1 by default.
    pub scale: [f32; 2],
    /// Least and largest ratio of width to height, from 0.01 to 100; ¾ to 4⁄3 by default.
    pub ratio: [f32; 2],
}

/// A random turn, shift and growth about the middle of an image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Affine {
    /// Largest turn in degrees: turns are drawn from −`rotation` to `rotation`; 0 by default, at most 180.
    pub rotation: f32,
    /// Largest shift in shares of the sides: shifts are drawn from −`translation` to `translation`; 0 by
    /// default, at most 1.
    pub translation: f32,
    /// Least and largest growth, from 0.01 to 100; 1 and 1 by default.
    pub scale: [f32; 2],
}

/// Random colours. Each factor is drawn from `1 − value` (not below 0) to `1 + value`; the result stays in 0
/// to 255.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ColourJitter {
    /// Spread of the factor that pixels are multiplied by.
    pub brightness: f32,
    /// Spread of the factor that differences from the image's mean grey are multiplied by.
    pub contrast: f32,
    /// Spread of the factor that differences from each pixel's own grey are multiplied by; for images of
    /// three channels only.
    pub saturation: f32,
}

impl Default for ResizedCrop {
    fn default() -> Self {
        Self { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }
}

impl Default for Affine {
    fn default() -> Self {
        Self { rotation: 0.0, translation: 0.0, scale: [1.0, 1.0] }
    }
}

impl Augmentation {
    /// Fails for values out of range, and for parts that rows of this kind cannot have.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`].
    pub fn check(&self, inputs: &ExampleInputs) -> Result<()> {
        let within = |option: &str, value: f32, least: f32, most: f32| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::option(option, value, format!("a number from {least} to {most}")))
        };
        let range = |option: &str, [least, most]: [f32; 2], [lower, upper]: [f32; 2]| {
            if lower <= least && least <= most && most <= upper {
                return Ok(());
            }
            Err(Error::option(
                option,
                format!("{least} to {most}"),
                format!("two numbers from {lower} to {upper}, the smaller one first"),
            ))
        };
        if self.crop_padding > SIDE_MAX {
            return Err(Error::option(
                "crop_padding",
                self.crop_padding,
                format!("a number from 0 to {SIDE_MAX}"),
            ));
        }
        within("flip", self.flip as f32, 0.0, 1.0)?;
        within("noise", self.noise, 0.0, f32::MAX)?;
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::option("dropout", self.dropout, "a number from 0 to below 1"));
        }
        if let Some(crop) = self.resized_crop {
            range("resized_crop.scale", crop.scale, [AREA_MIN, 1.0])?;
            range("resized_crop.ratio", crop.ratio, GROWTH)?;
        }
        if let Some(affine) = self.affine {
            within("affine.rotation", affine.rotation, 0.0, 180.0)?;
            within("affine.translation", affine.translation, 0.0, 1.0)?;
            range("affine.scale", affine.scale, GROWTH)?;
        }
        if let Some(colour) = self.colour {
            for (option, value) in [
                ("colour.brightness", colour.brightness),
                ("colour.contrast", colour.contrast),
                ("colour.saturation", colour.saturation),
            ] {
                within(option, value, 0.0, f32::MAX)?;
            }
        }
        let misplaced: &[(&str, bool)] = match inputs {
            ExampleInputs::Images(images) => &[
                ("noise", self.noise > 0.0),
                ("dropout", self.dropout > 0.0),
                (
                    "colour.saturation",
                    images.channels == 1 && self.colour.is_some_and(|colour| colour.saturation > 0.0),
                ),
            ],
            ExampleInputs::Features(_) => &[
                ("crop_padding", self.crop_padding > 0),
                ("resized_crop", self.resized_crop.is_some()),
                ("affine", self.affine.is_some()),
                ("flip", self.flip > 0.0),
                ("colour", self.colour.is_some()),
            ],
        };
        match misplaced.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => {
                let rows = match inputs {
                    ExampleInputs::Images(images) if images.channels == 1 => "grey images",
                    ExampleInputs::Images(_) => "images",
                    ExampleInputs::Features(_) => "vectors",
                };
                Err(Error::option(*option, "given", format!("no such part for {rows}")))
            }
        }
    }
}

/// Makes batches of numbers: varied, or as they are for an evaluation, and normalised either way.
#[derive(Debug, Clone)]
pub struct Augmenter {
    augmentation: Augmentation,
    normalisation: Normalisation,
    seed: u64,
}

impl Augmenter {
    /// Makes an augmenter for rows like `inputs`.
    ///
    /// # Errors
    ///
    /// As [`Augmentation::check`] and [`Normalisation::check`].
    pub fn new(
        augmentation: Augmentation,
        normalisation: Normalisation,
        inputs: &ExampleInputs,
        seed: u64,
    ) -> Result<Self> {
        augmentation.check(inputs)?;
        normalisation.check(inputs)?;
        Ok(Self { augmentation, normalisation, seed })
    }

    /// Gives an augmenter of the same normalisation without any variation: for evaluations and embeddings.
    #[must_use]
    pub fn evaluation(&self) -> Self {
        Self {
            augmentation: Augmentation::default(),
            normalisation: self.normalisation.clone(),
            seed: self.seed,
        }
    }

    /// The normalisation.
    pub fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }

    /// Puts the named rows into `out`, replacing what was there: `[rows, channels, height, width]`, or
    /// `[rows, coordinates]`.
    ///
    /// The variation of a row is a function of the seed, the epoch, the row and the view. A loss that
    /// compares two variations of one row asks for the views 0 and 1.
    ///
    /// # Panics
    ///
    /// For a row that is not there, or for rows of another kind than the augmenter was made for.
    pub fn batch(
        &self,
        inputs: &ExampleInputs,
        rows: &[usize],
        epoch: usize,
        view: usize,
        out: &mut Vec<f32>,
    ) {
        let width = inputs.width();
        out.clear();
        out.resize(rows.len() * width, 0.0);
        out.par_chunks_mut(width.max(1)).zip(rows).for_each(|(out, &row)| {
            let mut random = self.generator(epoch, row, view);
            match inputs {
                ExampleInputs::Images(images) => self.image(images, row, &mut random, out),
                ExampleInputs::Features(features) => self.features(features.row(row), &mut random, out),
            }
        });
    }

    fn generator(&self, epoch: usize, row: usize, view: usize) -> ChaCha8Rng {
        let mut random = generator(self.seed, Purpose::View, [epoch as u64, row as u64]);
        // Views are streams of one key: they share nothing.
        random.set_stream(view as u64);
        random
    }

    fn image(&self, images: &Images, row: usize, random: &mut ChaCha8Rng, out: &mut [f32]) {
        let size = (images.width, images.height);
        let map = self.map(size, random);
        let plane = images.width * images.height;
        let pixels = images.image(row);
        if map == Map::IDENTITY {
            for (out, &pixel) in out.iter_mut().zip(pixels) {
                *out = f32::from(pixel);
            }
        } else {
            map.apply(pixels, size, self.augmentation.border, out);
        }
        if let Some(colour) = &self.augmentation.colour {
            colour.apply(plane, random, out);
        }
        for (channel, out) in out.chunks_exact_mut(plane).enumerate() {
            self.normalisation.pixels(channel, out);
        }
    }

    /// Draws the map that says where pixels are taken from. Every part draws its numbers whether or not
    /// another part is on.
    fn map(&self, (width, height): (usize, usize), random: &mut ChaCha8Rng) -> Map {
        let mut map = Map::IDENTITY;
        if random.random::<f64>() < self.augmentation.flip {
            map = map.then(Map::flip(width));
        }
        if self.augmentation.crop_padding > 0 {
            let padding = self.augmentation.crop_padding as i64;
            let mut pixels = || random.random_range(-padding..=padding) as f32;
            let (right, down) = (pixels(), pixels());
            map = map.then(Map::shift(right, down));
        }
        if let Some(affine) = self.augmentation.affine {
            let turn = between(random, [-affine.rotation, affine.rotation]).to_radians();
            let growth = between(random, affine.scale);
            let mut part =
                |side: usize| between(random, [-affine.translation, affine.translation]) * side as f32;
            let (right, down) = (part(width), part(height));
            map = map.then(Map::shift(right, down)).then(Map::turn(turn, growth, (width, height)));
        }
        if let Some(crop) = self.augmentation.resized_crop {
            map = map.then(crop.draw((width, height), random));
        }
        map
    }

    fn features(&self, row: &[f32], random: &mut ChaCha8Rng, out: &mut [f32]) {
        let Augmentation { noise, dropout, .. } = self.augmentation;
        for (column, (out, &value)) in out.iter_mut().zip(row).enumerate() {
            *out = self.normalisation.coordinate(column, value);
        }
        if noise > 0.0 {
            for value in &mut *out {
                *value += noise * normal(random) as f32;
            }
        }
        if dropout > 0.0 {
            for value in out {
                *value = if random.random::<f32>() < dropout { 0.0 } else { *value / (1.0 - dropout) };
            }
        }
    }
}

impl ResizedCrop {
    fn draw(self, (width, height): (usize, usize), random: &mut ChaCha8Rng) -> Map {
        const DRAWS: usize = 10;
        for _ in 0..DRAWS {
            let share = between(random, self.scale);
            let ratio = between(random, self.ratio.map(f32::ln)).exp();
            let (part_width, part_height) = ((share * ratio).sqrt(), (share / ratio).sqrt());
            // Rounding alone must not refuse the whole image.
            if part_width > 1.0 + 1e-6 || part_height > 1.0 + 1e-6 {
                continue;
            }
            let sides = (part_width.min(1.0) * width as f32, part_height.min(1.0) * height as f32);
            let left = between(random, [0.0, width as f32 - sides.0]);
            let top = between(random, [0.0, height as f32 - sides.1]);
            return Map::crop((left, top), sides, (width, height));
        }
        Map::IDENTITY
    }
}

impl ColourJitter {
    /// Changes one image of bytes' scale, `[channels, plane]`: brightness, then contrast, then saturation.
    fn apply(self, plane: usize, random: &mut ChaCha8Rng, image: &mut [f32]) {
        let mut factor = |value: f32| between(random, [(1.0 - value).max(0.0), 1.0 + value]);
        let (brightness, contrast, saturation) =
            (factor(self.brightness), factor(self.contrast), factor(self.saturation));
        let bound = |value: f32| value.clamp(0.0, 255.0);
        if brightness != 1.0 {
            for value in &mut *image {
                *value = bound(*value * brightness);
            }
        }
        if contrast != 1.0 {
            let mean = (0..plane).map(|at| f64::from(grey(image, plane, at))).sum::<f64>() / plane as f64;
            let mean = mean as f32;
            for value in &mut *image {
                *value = bound(mean + contrast * (*value - mean));
            }
        }
        if saturation != 1.0 {
            for at in 0..plane {
                let grey = grey(image, plane, at);
                for value in image[at..].iter_mut().step_by(plane) {
                    *value = bound(grey + saturation * (*value - grey));
                }
            }
        }
    }
}

/// Computes the grey of one pixel: luma of ITU-R BT.601 for three channels, the value itself for one.
fn grey(image: &[f32], plane: usize, at: usize) -> f32 {
    if image.len() == plane {
        return image[at];
    }
    0.299 * image[at] + 0.587 * image[plane + at] + 0.114 * image[2 * plane + at]
}

/// Draws a number of a range, evenly; exactly its bound where both bounds are the same.
fn between(random: &mut impl Rng, [least, most]: [f32; 2]) -> f32 {
    least + random.random::<f32>() * (most - least)
}
