//! Image files, decoded whole or not at all, in a bounded memory. `rehang-train` compiles this very file to
//! read its examples, so that an encoder meets in service what it was trained on.

use std::io::Cursor;

use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageDecoder as _, ImageFormat, ImageReader, RgbImage};
use rehang_core::Semaphore;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Bytes that all images of an encoder, or of a folder, may take together while they are decoded and scaled.
/// A small file may be a picture of any size, so this is asked for before anything is allocated.
pub(crate) const DECODING_BYTES_MAX: usize = 1 << 30;

/// Longest side of a scaled image: a picture with the proportions of a thread is stretched rather than grown
/// without bound.
const SCALED_SIDE_MAX: f64 = 65_536.0;

/// Computes the width and height that an image is scaled to before the middle of the second size is cut out.
///
/// The shorter side is scaled to `shorter_side`, or else until the image covers that size. The longer side is
/// rounded down, as by torchvision; rounding never makes a side too short for the cut.
pub(crate) fn covering(
    (from_width, from_height): (u32, u32),
    (width, height): (u32, u32),
    shorter_side: Option<usize>,
) -> (u32, u32) {
    let (from_width, from_height) = (f64::from(from_width), f64::from(from_height));
    let factor = match shorter_side {
        Some(side) => side as f64 / from_width.min(from_height),
        None => (f64::from(width) / from_width).max(f64::from(height) / from_height),
    };
    let side =
        |from: f64, least: u32| ((from * factor + 1e-6).floor().min(SCALED_SIDE_MAX) as u32).max(least);
    (side(from_width, width), side(from_height, height))
}

/// Image file whose head was read: nothing of its pixels' size is allocated yet.
pub(crate) enum Picture<'a> {
    /// JPEG, decoded by the library behind `image`, but strictly: damage is an error there, and would be grey
    /// pixels otherwise.
    Jpeg(Box<zune_jpeg::JpegDecoder<ZCursor<&'a [u8]>>>),
    /// Image that its own tag turns whoever reads it, as Pillow does with TIFF alone.
    Turned(Box<dyn image::ImageDecoder + 'a>),
    Other(Box<dyn image::ImageDecoder + 'a>),
}

/// Quarter turn and mirroring that the orientation tag of an image asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(Orientation);

impl Turn {
    pub(crate) const NONE: Self = Self(Orientation::NoTransforms);

    /// Size that an image of this size has after the turn.
    pub(crate) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        match self.0 {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => (height, width),
            Orientation::NoTransforms
            | Orientation::Rotate180
            | Orientation::FlipHorizontal
            | Orientation::FlipVertical => (width, height),
        }
    }
}

impl<'a> Picture<'a> {
    /// Reads the head of an image file. The format is read from the bytes: files are misnamed often, and a
    /// PNG called .jpg is a good image.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let reader = reader.map_err(|error| error.to_string())?;
        let picture = if reader.format() == Some(ImageFormat::Jpeg) {
            Self::open_jpeg(bytes)?
        } else {
            let is_turned = reader.format() == Some(ImageFormat::Tiff);
            let decoder = Box::new(reader.into_decoder().map_err(|error| error.to_string())?);
            if is_turned { Self::Turned(decoder) } else { Self::Other(decoder) }
        };
        let (width, height) = picture.size();
        if width == 0 || height == 0 {
            return Err("it has no pixels".into());
        }
        Ok(picture)
    }

    fn open_jpeg(bytes: &'a [u8]) -> Result<Self, String> {
        expect_end(bytes)?;
        let options = DecoderOptions::default()
            .set_strict_mode(true)
            .set_max_width(usize::from(u16::MAX))
            .set_max_height(usize::from(u16::MAX));
        let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(|error| error.to_string())?;
        let colours = match decoder.input_colorspace() {
            Some(ColorSpace::Luma) => ColorSpace::Luma,
            _ => ColorSpace::RGB,
        };
        decoder.set_options(decoder.options().jpeg_set_out_colorspace(colours));
        Ok(Self::Jpeg(Box::new(decoder)))
    }

    /// Width and height in pixels.
    pub(crate) fn size(&self) -> (u32, u32) {
        match self {
            Self::Jpeg(decoder) => {
                decoder.dimensions().map_or((0, 0), |(width, height)| (width as u32, height as u32))
            }
            Self::Turned(decoder) | Self::Other(decoder) => decoder.dimensions(),
        }
    }

    /// Decides how the image is to be turned: as its orientation tag says, where that is to be followed or
    /// the format asks for it in any case. Also says whether there is a tag that is not followed.
    ///
    /// A tag that cannot be read asks for nothing.
    pub(crate) fn turn(&mut self, is_followed: bool) -> (Turn, bool) {
        let tag = match self {
            Self::Jpeg(decoder) => decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif)),
            Self::Turned(decoder) | Self::Other(decoder) => decoder.orientation().ok(),
        };
        let tagged_turn = tag.map_or(Turn::NONE, Turn);
        if is_followed || matches!(self, Self::Turned(_)) {
            (tagged_turn, false)
        } else {
            (Turn::NONE, tagged_turn != Turn::NONE)
        }
    }

    /// Decodes the pixels, grey where there is one channel and red, green and blue otherwise, turned, scaled
    /// and then cut to the middle.
    pub(crate) fn fitted(
        self,
        turn: Turn,
        channels: usize,
        scaled: (u32, u32),
        (width, height): (u32, u32),
        filter: FilterType,
        memory: &Semaphore,
    ) -> Result<DynamicImage, String> {
        let _room = memory.acquire_many(self.bytes_needed(turn, scaled.1)?);
        let decoded = self.decode()?;
        // Colours come first and the size second: this is the order of the common libraries, and the size is
        // then the cheaper step.
        let mut image = match channels {
            1 => DynamicImage::ImageLuma8(decoded.into_luma8()),
            _ => DynamicImage::ImageRgb8(decoded.into_rgb8()),
        };
        image.apply_orientation(turn.0);
        if (image.width(), image.height()) != scaled {
            image = image.resize_exact(scaled.0, scaled.1, filter);
        }
        if scaled == (width, height) {
            return Ok(image);
        }
        let middle =
            |side: u32, part: u32| ((f64::from(side) - f64::from(part)) / 2.0).round_ties_even() as u32;
        Ok(image.crop_imm(middle(scaled.0, width), middle(scaled.1, height), width, height))
    }

    /// Bytes that decoding and then scaling to a height may take; fails for more than there are for all
    /// images.
    fn bytes_needed(&self, turn: Turn, scaled_height: u32) -> Result<usize, String> {
        let (width, height) = turn.size(self.size());
        // The first of two passes of scaling changes the height, with four numbers of four bytes a pixel.
        let scaling = u64::from(width) * u64::from(scaled_height) * 16;
        // Turning by a quarter makes a copy.
        let turning = if turn == Turn::NONE { 0 } else { u64::from(width) * u64::from(height) * 3 };
        let bytes = self.bytes().saturating_add(scaling).saturating_add(turning);
        usize::try_from(bytes).ok().filter(|&bytes| bytes <= DECODING_BYTES_MAX).ok_or_else(|| {
            format!(
                "decoding its {width} × {height} pixels takes {bytes} bytes of memory; at most {DECODING_BYTES_MAX} are given"
            )
        })
    }

    /// Bytes that decoding may take, with the copy in other colours.
    fn bytes(&self) -> u64 {
        let (width, height) = self.size();
        let pixels = u64::from(width) * u64::from(height);
        match self {
            // A progressive JPEG is kept as coefficients of two bytes until its end.
            Self::Jpeg(decoder) => {
                let components = decoder.info().map_or(4, |info| u64::from(info.components));
                pixels * (2 * components + 3 + 3)
            }
            Self::Turned(decoder) | Self::Other(decoder) => decoder.total_bytes().saturating_add(pixels * 3),
        }
    }

    fn decode(self) -> Result<DynamicImage, String> {
        let mut decoder = match self {
            Self::Jpeg(decoder) => decoder,
            Self::Turned(decoder) | Self::Other(decoder) => {
                return DynamicImage::from_decoder(decoder).map_err(|error| error.to_string());
            }
        };
        let pixels = decoder.decode().map_err(|error| error.to_string())?;
        let (width, height) = Self::Jpeg(decoder).size();
        let image = if pixels.len() as u64 == u64::from(width) * u64::from(height) {
            GrayImage::from_raw(width, height, pixels).map(DynamicImage::ImageLuma8)
        } else {
            RgbImage::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8)
        };
        image.ok_or_else(|| "it has another number of pixels than it says".into())
    }
}

/// Fails where a JPEG file ends before its end marker: decoders fill up with grey what was cut off from the
/// last rows.
fn expect_end(bytes: &[u8]) -> Result<(), String> {
    const END: u8 = 0xD9;
    // Behind the start marker comes a marker and its segment, or a marker alone; behind the start of a scan
    // its data.
    let mut bytes_left = bytes.get(2..).unwrap_or_default();
    while let [_, tail @ ..] = bytes_left {
        // Bytes that are no marker are the data of a scan, where 0xFF is followed by 0, or filling.
        let &[0xFF, marker @ (1..=0xFE), ref behind @ ..] = bytes_left else {
            bytes_left = tail;
            continue;
        };
        bytes_left = match marker {
            END => return Ok(()),
            0x01 | 0xD0..=0xD8 => behind,
            _ => {
                let &[high, low, ..] = behind else { break };
                let length = usize::from(u16::from_be_bytes([high, low]));
                behind.get(length.max(2)..).unwrap_or_default()
            }
        };
    }
    Err("it is cut off: it ends before its end marker".into())
}
