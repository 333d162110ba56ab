//! Crops, shifts, turns and mirror images as one map from pixels to where they are taken from.
//!
//! One map means one interpolation: an image that is cropped, turned and shifted is blurred once, not three
//! times. Whole shifts and mirror images have weights of exactly 0 and 1, so they change no value at all.

use super::augmentation::Border;

/// Map from a pixel at `(x, y)` of the varied image to where it is taken from:
/// `(a x + b y + c, d x + e y + f)`, with whole numbers at the centres of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Map {
    x: [f32; 3],
    y: [f32; 3],
}

impl Map {
    pub(super) const IDENTITY: Self = Self { x: [1.0, 0.0, 0.0], y: [0.0, 1.0, 0.0] };

    /// Mirrors an image of `width` pixels.
    pub(super) fn flip(width: usize) -> Self {
        Self { x: [-1.0, 0.0, width as f32 - 1.0], ..Self::IDENTITY }
    }

    /// Takes pixels from `right` and `down` of where they are.
    pub(super) fn shift(right: f32, down: f32) -> Self {
        Self { x: [1.0, 0.0, right], y: [0.0, 1.0, down] }
    }

    /// Stretches the part `[left, left + part_width) × [top, top + part_height)` to `width × height`.
    pub(super) fn crop(
        (left, top): (f32, f32),
        (part_width, part_height): (f32, f32),
        (width, height): (usize, usize),
    ) -> Self {
        let stretch = |first: f32, part: f32, whole: usize| {
            let step = part / whole as f32;
            // Pixel i covers [i, i + 1), and its centre is at i + ½ of the whole.
            (step, first + 0.5 * step - 0.5)
        };
        let ((step_x, x), (step_y, y)) =
            (stretch(left, part_width, width), stretch(top, part_height, height));
        Self { x: [step_x, 0.0, x], y: [0.0, step_y, y] }
    }

    /// Turns by `radians` and grows by `scale` about the middle.
    pub(super) fn turn(radians: f32, scale: f32, (width, height): (usize, usize)) -> Self {
        let (middle_x, middle_y) = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
        // The map goes from the varied image to the source, so it turns back and shrinks.
        let (sine, cosine) = (radians.sin() / scale, radians.cos() / scale);
        Self {
            x: [cosine, sine, middle_x - cosine * middle_x - sine * middle_y],
            y: [-sine, cosine, middle_y + sine * middle_x - cosine * middle_y],
        }
    }

    /// Takes this map's source through `then`: first `self` is applied to a pixel of the result, then `then`.
    pub(super) fn then(self, then: Self) -> Self {
        let through = |[a, b, c]: [f32; 3]| {
            [a * self.x[0] + b * self.y[0], a * self.x[1] + b * self.y[1], a * self.x[2] + b * self.y[2] + c]
        };
        Self { x: through(then.x), y: through(then.y) }
    }

    fn at(self, x: f32, y: f32) -> (f32, f32) {
        let apply = |[a, b, c]: [f32; 3]| a * x + b * y + c;
        (apply(self.x), apply(self.y))
    }

    /// Passes an image, `[channels, height, width]`, through the map: each pixel is mixed from the four
    /// nearest.
    ///
    /// Places are found once for all channels, and pixels whose four neighbours lie inside skip the border:
    /// that is most of an image, and several times as fast.
    pub(super) fn apply(
        self,
        image: &[u8],
        (width, height): (usize, usize),
        border: Border,
        out: &mut [f32],
    ) {
        let plane = width * height;
        for y in 0..height {
            for x in 0..width {
                let (from_x, from_y) = self.at(x as f32, y as f32);
                let (left, top) = (floor(from_x), floor(from_y));
                let (right_share, lower_share) = (from_x - left as f32, from_y - top as f32);
                let inside = left >= 0 && top >= 0 && left + 1 < width as i64 && top + 1 < height as i64;
                let at = y * width + x;
                if inside {
                    let first = top as usize * width + left as usize;
                    for (pixels, out) in image.chunks_exact(plane).zip(out[at..].iter_mut().step_by(plane)) {
                        let two =
                            |at: usize| mix(f32::from(pixels[at]), f32::from(pixels[at + 1]), right_share);
                        *out = mix(two(first), two(first + width), lower_share);
                    }
                } else {
                    let columns = [border.place(left, width), border.place(left + 1, width)];
                    let rows = [border.place(top, height), border.place(top + 1, height)];
                    for (pixels, out) in image.chunks_exact(plane).zip(out[at..].iter_mut().step_by(plane)) {
                        let value = |row: Option<usize>, column: Option<usize>| {
                            row.zip(column).map_or(0.0, |(y, x)| f32::from(pixels[y * width + x]))
                        };
                        let two = |row| mix(value(row, columns[0]), value(row, columns[1]), right_share);
                        *out = mix(two(rows[0]), two(rows[1]), lower_share);
                    }
                }
            }
        }
    }
}

/// Gives the largest whole number that is not above. `f32::floor` is a call into the C library on processors
/// that the compiler cannot assume SSE 4.1 of.
fn floor(value: f32) -> i64 {
    let towards_zero = value as i64;
    towards_zero - i64::from(towards_zero as f32 > value)
}

/// Computes `(1 − share) · first + share · second`; exactly the first where the share is 0, since both are
/// finite.
fn mix(first: f32, second: f32, share: f32) -> f32 {
    first + share * (second - first)
}

impl Border {
    /// Finds the pixel in `0..side` that stands for the place `at`; `None` for black.
    fn place(self, at: i64, side: usize) -> Option<usize> {
        let side = side as i64;
        if (0..side).contains(&at) {
            return Some(at as usize);
        }
        match self {
            Self::Zero => None,
            Self::Edge => Some(at.clamp(0, side - 1) as usize),
            Self::Reflect => {
                // The image and its mirror image without the two edges, over and over.
                let period = (2 * (side - 1)).max(1);
                let inside = at.rem_euclid(period);
                Some(if inside < side { inside } else { period - inside } as usize)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(map: Map, plane: &[u8], size: (usize, usize), border: Border) -> Vec<f32> {
        let mut out = vec![0.0; plane.len()];
        map.apply(plane, size, border, &mut out);
        out
    }

    #[test]
    fn whole_shifts_and_mirror_images_are_exact() {
        let plane = [10, 20, 30, 40, 50, 60];
        let size = (3, 2);
        let shifted = |border| through(Map::shift(2.0, 0.0), &plane, size, border);
        assert_eq!(shifted(Border::Zero), [30.0, 0.0, 0.0, 60.0, 0.0, 0.0]);
        assert_eq!(shifted(Border::Edge), [30.0, 30.0, 30.0, 60.0, 60.0, 60.0]);
        assert_eq!(shifted(Border::Reflect), [30.0, 20.0, 10.0, 60.0, 50.0, 40.0]);
        let flipped = through(Map::flip(3), &plane, size, Border::Zero);
        assert_eq!(flipped, [30.0, 20.0, 10.0, 60.0, 50.0, 40.0]);
        assert_eq!(Map::flip(3).then(Map::flip(3)), Map::IDENTITY);
        assert_eq!(Map::crop((0.0, 0.0), (3.0, 2.0), size), Map::IDENTITY);
        assert_eq!(Map::turn(0.0, 1.0, size), Map::IDENTITY);
    }

    #[test]
    fn a_reflection_goes_on_for_ever_and_a_single_pixel_is_its_own() {
        let places: Vec<_> = (-5..8).map(|at| Border::Reflect.place(at, 3).unwrap()).collect();
        assert_eq!(places, [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]);
        assert!((-3..4).all(|at| Border::Reflect.place(at, 1) == Some(0)));
    }

    #[test]
    fn a_quarter_turn_moves_every_pixel_once() {
        // Counter-clockwise in the mathematician's axes is clockwise where y points down.
        let plane = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let turned =
            through(Map::turn(std::f32::consts::FRAC_PI_2, 1.0, (3, 3)), &plane, (3, 3), Border::Edge);
        for (value, expected) in turned.iter().zip([7.0, 4.0, 1.0, 8.0, 5.0, 2.0, 9.0, 6.0, 3.0]) {
            assert!((value - expected).abs() < 1e-4, "{turned:?}");
        }
    }

    #[test]
    fn a_crop_is_stretched_by_mixing_neighbours() {
        // The middle half of a ramp, grown to the whole: centres at 1.25, 1.75, 2.25, 2.75 in pixels' places
        // less ½.
        let out = through(Map::crop((1.0, 0.0), (2.0, 1.0), (4, 1)), &[0, 40, 80, 120], (4, 1), Border::Zero);
        assert_eq!(out, [30.0, 50.0, 70.0, 90.0]);
    }
}
