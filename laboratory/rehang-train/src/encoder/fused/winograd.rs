//! Minimal filtering of Winograd, F(4 × 4, 3 × 3), for 3 × 3 convolutions with stride 1 (Lavin and Gray
//! 2015): a tile of 4 × 4 outputs takes 36 multiplications for each pair of channels where the definition
//! takes 144.
//!
//! ```text
//! V = Bᵀ d B      of every 6 × 6 tile d of the input, tiles overlapping by two
//! U = G g Gᵀ      of every 3 × 3 window g
//! M = V · U       36 matrix products [tiles, inputs] · [inputs, outputs], one for each place in a tile
//! z = Aᵀ M A      of every tile, 4 × 4
//! ```
//!
//! The backward pass is the transpose of every line: `dM = A dz Aᵀ`, `dU = Vᵀ · dM`, `dV = dM · Uᵀ`,
//! `dg = Gᵀ dU G`, and `dd = B dV Bᵀ` added where tiles overlap. With channels last, every transform is a sum
//! of rows of numbers: along one axis a whole line of the image at a time, along the other all channels of a
//! position.
//!
//! In f32 results differ from the definition's by about 1e-6 of their scale (a test demands 1e-5).

use rayon::prelude::*;
use rehang_core::vectorised;
use rehang_fit::network::product::{Operand, multiply};

use super::super::graph::{Shape, Sliding};
use super::convolution::Finish;
use super::shared::{Disjoint, Scratch, grown, with_scratch};

/// Number of places in a tile.
const PLACES: usize = 36;
/// Number of outputs along a side of a tile.
const SIDE: usize = 4;
/// Number of tiles of a group whose transforms fit a core's own cache with few channels.
const GROUP_TILES: usize = 64;
/// Number of tiles of a group where transformed weights are so many that reading them must serve more tiles.
const LARGE_GROUP_TILES: usize = 256;
/// Number of transformed weights from which they are many.
const MANY_WEIGHTS: usize = PLACES * 128 * 192;
/// Number of transformed weights up to which parts of the batch sum gradients of their own.
const FEW_WEIGHTS: usize = PLACES * 64 * 128;
/// Number of parts of the batch that sum gradients of their own.
const GRADIENT_PARTS: usize = 8;

/// Convolution by minimal filtering, and its transformed weights.
#[derive(Debug, Clone)]
pub(super) struct Winograd {
    input: Shape,
    output: Shape,
    padding: usize,
    /// Number of tiles along the height and the width of an image.
    tiles: (usize, usize),
    /// Transformed weights U, `[36, inputs, outputs]`.
    weights: Vec<f32>,
}

impl Winograd {
    /// Takes windows, channels and planes for which transforms cost less than they save; `None` for all
    /// others.
    pub(super) fn new(input: Shape, output: Shape, window: Sliding) -> Option<Self> {
        let tiles = (output.height.div_ceil(SIDE), output.width.div_ceil(SIDE));
        let saves = 9 * output.height * output.width >= 2 * PLACES * tiles.0 * tiles.1;
        let has_channels = input.channels >= 8 && output.channels >= 8;
        (window.side == 3 && window.stride == 1 && window.padding <= 2 && saves && has_channels)
            .then(|| Self { input, output, padding: window.padding, tiles, weights: Vec::new() })
    }

    /// Transforms weights `[9, inputs, outputs]`.
    pub(super) fn prepare(&mut self, packed: &[f32]) {
        let (inputs, outputs) = (self.input.channels, self.output.channels);
        self.weights.resize(PLACES * inputs * outputs, 0.0);
        let weights = Disjoint::new(&mut self.weights);
        (0..inputs).into_par_iter().for_each(|channel| {
            with_scratch(18 * outputs, |scratch| {
                let planes = Planes { numbers: &weights, plane: inputs * outputs, channels: outputs };
                enter_weights(packed, inputs, outputs, channel, scratch, planes);
            });
        });
    }

    /// Computes `out = x ∗ w`; every image of `out` is given to `finish`.
    pub(super) fn forward(
        &self,
        rows: usize,
        input: &[f32],
        out: &mut [f32],
        finish: Finish<'_>,
        shared: &mut Vec<f32>,
    ) {
        let (inputs, outputs) = (self.input.channels, self.output.channels);
        let size = self.output.size();
        let is_large = self.weights.len() >= MANY_WEIGHTS;
        let images = self.group_images(is_large);
        let group = |number: usize, out: &mut [f32], buffer: &mut [f32]| {
            let tiles = out.len() / size * self.image_tiles();
            let (v, m) = buffer.split_at_mut(PLACES * tiles * inputs);
            {
                let v = Disjoint::new(v);
                let v = Planes { numbers: &v, plane: tiles * inputs, channels: inputs };
                each(out.len() / size, is_large, |index| {
                    let image = &input[(number * images + index) * self.input.size()..][..self.input.size()];
                    self.with_lines(inputs, |lines| {
                        enter(
                            image,
                            self.input,
                            self.padding,
                            self.tiles,
                            index * self.image_tiles(),
                            lines,
                            v,
                        );
                    });
                });
            }
            let m = Disjoint::new(&mut m[..PLACES * tiles * outputs]);
            each(PLACES, is_large, |place| {
                // SAFETY: every place has a part of its own.
                let m = unsafe { m.part(place * tiles * outputs..(place + 1) * tiles * outputs) };
                let v = Operand::rows(&v[place * tiles * inputs..], inputs);
                let u = Operand::rows(&self.weights[place * inputs * outputs..], outputs);
                multiply((tiles, outputs, inputs), (m, outputs), v, u, false, 1);
            });
            let m = Planes { numbers: &m, plane: tiles * outputs, channels: outputs };
            let count = out.len() / size;
            let out = Disjoint::new(out);
            each(count, is_large, |index| {
                // SAFETY: every image has a part of its own.
                let image = unsafe { out.part(index * size..(index + 1) * size) };
                self.with_lines(outputs, |lines| {
                    leave(image, self.output, self.tiles, index * self.image_tiles(), lines, m);
                });
                finish(number * images + index, (number * images + index) * size, image);
            });
        };
        let length = PLACES * images.min(rows) * self.image_tiles() * (inputs + outputs);
        let out = &mut out[..rows * size];
        if is_large {
            let shared = grown(shared, length);
            for (number, out) in out.chunks_mut(images * size).enumerate() {
                group(number, out, shared);
            }
        } else {
            out.par_chunks_mut(images * size)
                .enumerate()
                .for_each(|(number, out)| with_scratch(length, |buffer| group(number, out, buffer)));
        }
    }

    /// Computes dw as `[9, inputs, outputs]` in the scratch's weights, and writes dx (or adds it where
    /// `accumulate`) if it is asked for.
    pub(super) fn backward(
        &self,
        rows: usize,
        input: &[f32],
        output_gradient: &[f32],
        input_gradient: Option<(&mut [f32], bool)>,
        scratch: &mut Scratch,
    ) {
        let (inputs, outputs) = (self.input.channels, self.output.channels);
        let weights = self.weights.len();
        let is_parted = weights <= FEW_WEIGHTS;
        let parts = if is_parted { GRADIENT_PARTS } else { 1 };
        let part_images = rows.div_ceil(parts);
        let images = self.group_images(!is_parted).min(part_images);
        let length = PLACES * images * self.image_tiles() * (inputs + outputs);
        let gradient = grown(&mut scratch.sums, parts * weights);
        let accumulate = input_gradient.as_ref().is_some_and(|(_, accumulate)| *accumulate);
        let input_gradient = input_gradient.map(|(gradient, _)| Disjoint::new(gradient));
        let group = |first: usize, count: usize, buffer: &mut [f32], du: &mut [f32]| {
            let tiles = count * self.image_tiles();
            let (v, m) = buffer.split_at_mut(PLACES * tiles * inputs);
            let (v, m) = (Disjoint::new(v), Disjoint::new(&mut m[..PLACES * tiles * outputs]));
            let v_planes = Planes { numbers: &v, plane: tiles * inputs, channels: inputs };
            let m_planes = Planes { numbers: &m, plane: tiles * outputs, channels: outputs };
            each(count, !is_parted, |index| {
                let tile = index * self.image_tiles();
                let image = &input[(first + index) * self.input.size()..][..self.input.size()];
                self.with_lines(inputs, |lines| {
                    enter(image, self.input, self.padding, self.tiles, tile, lines, v_planes);
                });
                let image = &output_gradient[(first + index) * self.output.size()..][..self.output.size()];
                self.with_lines(outputs, |lines| {
                    enter_gradient(image, self.output, self.tiles, tile, lines, m_planes);
                });
            });
            let du = Disjoint::new(du);
            each(PLACES, !is_parted, |place| {
                // SAFETY: every place has parts of its own.
                let (v, m, du) = unsafe {
                    (
                        v.part(place * tiles * inputs..(place + 1) * tiles * inputs),
                        m.part(place * tiles * outputs..(place + 1) * tiles * outputs),
                        du.part(place * inputs * outputs..(place + 1) * inputs * outputs),
                    )
                };
                let m = Operand::rows(m, outputs);
                multiply((inputs, outputs, tiles), (du, outputs), Operand::columns(v, inputs), m, true, 1);
                if input_gradient.is_some() {
                    // V has been used; dV takes its room.
                    let u = Operand::columns(&self.weights[place * inputs * outputs..], outputs);
                    multiply((tiles, inputs, outputs), (v, inputs), m, u, false, 1);
                }
            });
            if let Some(input_gradient) = &input_gradient {
                each(count, !is_parted, |index| {
                    let start = (first + index) * self.input.size();
                    // SAFETY: every image has a part of its own.
                    let image = unsafe { input_gradient.part(start..start + self.input.size()) };
                    if !accumulate {
                        image.fill(0.0);
                    }
                    let tile = index * self.image_tiles();
                    self.with_lines(inputs, |lines| {
                        leave_gradient(image, self.input, self.padding, self.tiles, tile, lines, v_planes);
                    });
                });
            }
        };
        let part = |number: usize, buffer: &mut [f32], du: &mut [f32]| {
            du.fill(0.0);
            let (mut first, end) = (number * part_images, ((number + 1) * part_images).min(rows));
            while first < end {
                let count = images.min(end - first);
                group(first, count, buffer, du);
                first += count;
            }
        };
        if is_parted {
            gradient
                .par_chunks_exact_mut(weights)
                .enumerate()
                .for_each(|(number, du)| with_scratch(length, |buffer| part(number, buffer, du)));
            let (sum, others) = gradient.split_at_mut(weights);
            let block = inputs * outputs;
            sum.par_chunks_exact_mut(block).enumerate().for_each(|(place, sum)| {
                for other in others.chunks_exact(weights) {
                    for (sum, value) in sum.iter_mut().zip(&other[place * block..]) {
                        *sum += value;
                    }
                }
            });
        } else {
            part(0, grown(&mut scratch.shared, length), gradient);
        }
        {
            let du = Disjoint::new(&mut gradient[..weights]);
            let du = Planes { numbers: &du, plane: inputs * outputs, channels: outputs };
            let target = Disjoint::new(grown(&mut scratch.weights, 9 * inputs * outputs));
            (0..inputs).into_par_iter().for_each(|channel| {
                with_scratch(18 * outputs, |scratch| {
                    leave_weights(&target, inputs, outputs, channel, scratch, du);
                });
            });
        }
    }

    fn image_tiles(&self) -> usize {
        self.tiles.0 * self.tiles.1
    }

    fn group_images(&self, is_large: bool) -> usize {
        let tiles = if is_large { LARGE_GROUP_TILES } else { GROUP_TILES };
        (tiles / self.image_tiles()).max(1)
    }

    /// Gives `work` room for six lines of padded positions between the two steps of a transform, one line of
    /// zeros and six lines that are written and never read.
    fn with_lines(&self, channels: usize, work: impl FnOnce(&mut [f32])) {
        let lines = 13 * line_length(self.tiles.1, channels);
        LINES.with_borrow_mut(|buffer| {
            if buffer.len() < lines {
                buffer.resize(lines, 0.0);
            }
            work(&mut buffer[..lines]);
        });
    }
}

thread_local! {
    static LINES: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Runs `work` for every number below `count`, in parallel or not.
fn each(count: usize, parallel: bool, work: impl Fn(usize) + Sync + Send) {
    if parallel {
        (0..count).into_par_iter().for_each(work);
    } else {
        (0..count).for_each(work);
    }
}

/// Counts the numbers of one line of padded positions; two positions more than tiles cover, for the overlap.
fn line_length(tiles: usize, channels: usize) -> usize {
    (SIDE * tiles + 2) * channels
}

/// Matrices `[tiles, channels]`, 36 one after the other.
#[derive(Clone, Copy)]
struct Planes<'a> {
    numbers: &'a Disjoint<'a, f32>,
    plane: usize,
    channels: usize,
}

impl Planes<'_> {
    /// Gives all channels of one tile in one plane.
    ///
    /// # Safety
    ///
    /// No other reference to them may be alive.
    #[inline(always)]
    #[allow(clippy::inline_always, clippy::mut_from_ref, reason = "as for `Disjoint::part`")]
    unsafe fn at(&self, place: usize, tile: usize) -> &mut [f32] {
        let start = place * self.plane + tile * self.channels;
        // SAFETY: the caller's promise.
        unsafe { self.numbers.part(start..start + self.channels) }
    }
}

/// Cuts six lines off a buffer.
#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version of the loops below")]
fn six(lines: &mut [f32], length: usize) -> [&mut [f32]; 6] {
    let mut lines = lines.chunks_exact_mut(length);
    std::array::from_fn(|_| lines.next().unwrap_or_default())
}

/// Defines a function that maps numbers of some slices to numbers of others, place by place.
macro_rules! mapped {
    ($name:ident: $($input:ident)* => $($output:ident)*; $operator:tt $(let $part:ident = $sum:expr;)* [$($value:expr),*]) => {
        #[inline(always)]
        #[allow(clippy::inline_always, reason = "the body must be compiled inside each version of the loops below")]
        fn $name(length: usize, $($input: &[f32],)* $($output: &mut [f32],)*) {
            $(let $input = &$input[..length];)*
            $(let $output = &mut $output[..length];)*
            for index in 0..length {
                $(let $input = $input[index];)*
                $(let $part = $sum;)*
                $($output[index] $operator $value;)*
            }
        }
    };
}

// Bᵀ of six numbers.
mapped! { b_transposed: d0 d1 d2 d3 d4 d5 => o0 o1 o2 o3 o4 o5; =
    let even = d4 - 4.0 * d2;
    let odd = d3 - 4.0 * d1;
    let near = d4 - d2;
    let far = 2.0 * (d3 - d1);
    [4.0 * d0 - 5.0 * d2 + d4, even + odd, even - odd, near + far, near - far, 4.0 * d1 - 5.0 * d3 + d5]
}
// B of six numbers, added.
mapped! { b_added: v0 v1 v2 v3 v4 v5 => o0 o1 o2 o3 o4 o5; +=
    let sum = v1 + v2;
    let difference = v2 - v1;
    let far_sum = v3 + v4;
    let far_difference = 2.0 * (v4 - v3);
    [
        4.0 * v0,
        4.0 * difference + far_difference + 4.0 * v5,
        -5.0 * v0 - 4.0 * sum - far_sum,
        -difference - far_difference - 5.0 * v5,
        v0 + sum + far_sum,
        v5
    ]
}
// Aᵀ of six numbers.
mapped! { a_transposed: m0 m1 m2 m3 m4 m5 => o0 o1 o2 o3; =
    let sum = m1 + m2;
    let difference = m1 - m2;
    let far_sum = m3 + m4;
    let far_difference = m3 - m4;
    [
        m0 + sum + far_sum,
        difference + 2.0 * far_difference,
        sum + 4.0 * far_sum,
        difference + 8.0 * far_difference + m5
    ]
}
// A of four numbers.
mapped! { a: y0 y1 y2 y3 => o0 o1 o2 o3 o4 o5; =
    let even = y0 + y2;
    let odd = y1 + y3;
    let far_even = y0 + 4.0 * y2;
    let far_odd = 2.0 * y1 + 8.0 * y3;
    [y0, even + odd, even - odd, far_even + far_odd, far_even - far_odd, y3]
}
// G of three numbers.
mapped! { g: w0 w1 w2 => o0 o1 o2 o3 o4 o5; =
    let outer = w0 + w2;
    let far = w0 + 4.0 * w2;
    [
        w0 / 4.0,
        (outer + w1) * (-1.0 / 6.0),
        (outer - w1) * (-1.0 / 6.0),
        (far + 2.0 * w1) * (1.0 / 24.0),
        (far - 2.0 * w1) * (1.0 / 24.0),
        w2
    ]
}
// Gᵀ of six numbers.
mapped! { g_transposed: u0 u1 u2 u3 u4 u5 => o0 o1 o2; =
    let sum = (u1 + u2) * (-1.0 / 6.0);
    let difference = (u2 - u1) * (1.0 / 6.0);
    let far_sum = (u3 + u4) * (1.0 / 24.0);
    let far_difference = (u3 - u4) * (1.0 / 12.0);
    [u0 / 4.0 + sum + far_sum, difference + far_difference, sum + 4.0 * far_sum + u5]
}

vectorised! {
    /// Computes V of one image, into the tiles from `first` on.
    fn enter(
        image: &[f32],
        shape: Shape,
        padding: usize,
        tiles: (usize, usize),
        first: usize,
        lines: &mut [f32],
        planes: Planes<'_>,
    ) {
        let channels = shape.channels;
        let length = line_length(tiles.1, channels);
        let width = shape.width * channels;
        lines[..7 * length].fill(0.0);
        let (lines, zeros) = lines.split_at_mut(6 * length);
        let zeros = &zeros[..length];
        for down in 0..tiles.0 {
            let line = |row: usize| {
                let y = (SIDE * down + row).checked_sub(padding).filter(|&y| y < shape.height);
                y.map_or(zeros, |y| &image[y * width..(y + 1) * width])
            };
            let [t0, t1, t2, t3, t4, t5] = six(lines, length).map(|line| &mut line[padding * channels..]);
            b_transposed(width, line(0), line(1), line(2), line(3), line(4), line(5), t0, t1, t2, t3, t4, t5);
            for across in 0..tiles.1 {
                let tile = first + down * tiles.1 + across;
                for (row, line) in lines.chunks_exact(length).enumerate() {
                    let at = |column: usize| &line[(SIDE * across + column) * channels..];
                    // SAFETY: the six parts lie in different planes, and every tile is visited once.
                    let [o0, o1, o2, o3, o4, o5] =
                        std::array::from_fn(|column| unsafe { planes.at(6 * row + column, tile) });
                    b_transposed(channels, at(0), at(1), at(2), at(3), at(4), at(5), o0, o1, o2, o3, o4, o5);
                }
            }
        }
    }
}

vectorised! {
    /// Computes z of one image from M in the tiles from `first` on.
    fn leave(
        image: &mut [f32],
        shape: Shape,
        tiles: (usize, usize),
        first: usize,
        lines: &mut [f32],
        planes: Planes<'_>,
    ) {
        let channels = shape.channels;
        let length = line_length(tiles.1, channels);
        let width = shape.width * channels;
        let (lines, spare) = lines.split_at_mut(7 * length);
        for (down, image) in image.chunks_mut(SIDE * width).enumerate() {
            for across in 0..tiles.1 {
                let tile = first + down * tiles.1 + across;
                for (row, line) in lines.chunks_exact_mut(length).take(6).enumerate() {
                    // SAFETY: the six parts lie in different planes, and only this image's task visits its
                    // tiles.
                    let m: [&[f32]; 6] = std::array::from_fn(|column| unsafe { &*planes.at(6 * row + column, tile) });
                    let (o0, rest) = line[SIDE * across * channels..].split_at_mut(channels);
                    let (o1, rest) = rest.split_at_mut(channels);
                    let (o2, o3) = rest.split_at_mut(channels);
                    a_transposed(channels, m[0], m[1], m[2], m[3], m[4], m[5], o0, o1, o2, o3);
                }
            }
            let mut t = lines.chunks_exact(length);
            let t: [&[f32]; 6] = std::array::from_fn(|_| t.next().unwrap_or_default());
            // Lines beyond the image go to the spare lines.
            let mut out = image.chunks_exact_mut(width).chain(spare.chunks_exact_mut(length));
            let [o0, o1, o2, o3] = std::array::from_fn(|_| out.next().unwrap_or_default());
            a_transposed(width, t[0], t[1], t[2], t[3], t[4], t[5], o0, o1, o2, o3);
        }
    }
}

vectorised! {
    /// Computes dM of one image's dz, into the tiles from `first` on.
    fn enter_gradient(
        image: &[f32],
        shape: Shape,
        tiles: (usize, usize),
        first: usize,
        lines: &mut [f32],
        planes: Planes<'_>,
    ) {
        let channels = shape.channels;
        let length = line_length(tiles.1, channels);
        let width = shape.width * channels;
        lines[..7 * length].fill(0.0);
        let (lines, zeros) = lines.split_at_mut(6 * length);
        let zeros = &zeros[..length];
        for down in 0..tiles.0 {
            let line = |row: usize| {
                let y = SIDE * down + row;
                if y < shape.height { &image[y * width..(y + 1) * width] } else { zeros }
            };
            let [t0, t1, t2, t3, t4, t5] = six(lines, length);
            a(width, line(0), line(1), line(2), line(3), t0, t1, t2, t3, t4, t5);
            for across in 0..tiles.1 {
                let tile = first + down * tiles.1 + across;
                for (row, line) in lines.chunks_exact(length).enumerate() {
                    let at = |column: usize| &line[(SIDE * across + column) * channels..];
                    // SAFETY: the six parts lie in different planes, and every tile is visited once.
                    let [o0, o1, o2, o3, o4, o5] =
                        std::array::from_fn(|column| unsafe { planes.at(6 * row + column, tile) });
                    a(channels, at(0), at(1), at(2), at(3), o0, o1, o2, o3, o4, o5);
                }
            }
        }
    }
}

vectorised! {
    /// Adds dx of one image from dV in the tiles from `first` on.
    fn leave_gradient(
        image: &mut [f32],
        shape: Shape,
        padding: usize,
        tiles: (usize, usize),
        first: usize,
        lines: &mut [f32],
        planes: Planes<'_>,
    ) {
        let channels = shape.channels;
        let length = line_length(tiles.1, channels);
        let width = shape.width * channels;
        let (lines, spare) = lines.split_at_mut(7 * length);
        for down in 0..tiles.0 {
            lines[..6 * length].fill(0.0);
            for across in 0..tiles.1 {
                let tile = first + down * tiles.1 + across;
                for (row, line) in lines.chunks_exact_mut(length).take(6).enumerate() {
                    // SAFETY: the six parts lie in different planes, and only this image's task visits its
                    // tiles.
                    let v: [&[f32]; 6] = std::array::from_fn(|column| unsafe { &*planes.at(6 * row + column, tile) });
                    let [o0, o1, o2, o3, o4, o5] = six(&mut line[SIDE * across * channels..], channels);
                    b_added(channels, v[0], v[1], v[2], v[3], v[4], v[5], o0, o1, o2, o3, o4, o5);
                }
            }
            let mut t = lines.chunks_exact(length);
            let t: [&[f32]; 6] = std::array::from_fn(|_| t.next().map_or(&[][..], |t| &t[padding * channels..]));
            // Lines beyond the image go to the spare lines: first those above it, last those below it.
            let above = padding.saturating_sub(SIDE * down).min(6);
            let (above_lines, below_lines) = spare.split_at_mut(above * length);
            let from = ((SIDE * down).saturating_sub(padding) * width).min(image.len());
            let mut out = above_lines
                .chunks_exact_mut(length)
                .chain(image[from..].chunks_exact_mut(width))
                .chain(below_lines.chunks_exact_mut(length));
            let [o0, o1, o2, o3, o4, o5] = std::array::from_fn(|_| out.next().unwrap_or_default());
            b_added(width, t[0], t[1], t[2], t[3], t[4], t[5], o0, o1, o2, o3, o4, o5);
        }
    }
}

vectorised! {
    /// Computes U of one input channel.
    fn enter_weights(
        packed: &[f32],
        inputs: usize,
        outputs: usize,
        channel: usize,
        scratch: &mut [f32],
        planes: Planes<'_>,
    ) {
        let window = |row: usize, column: usize| &packed[((3 * row + column) * inputs + channel) * outputs..];
        // Along the columns of the window first: three columns of six numbers each.
        for (column, scratch) in scratch.chunks_exact_mut(6 * outputs).enumerate() {
            let [t0, t1, t2, t3, t4, t5] = six(scratch, outputs);
            g(outputs, window(0, column), window(1, column), window(2, column), t0, t1, t2, t3, t4, t5);
        }
        for row in 0..6 {
            let at = |column: usize| &scratch[(6 * column + row) * outputs..];
            // SAFETY: the six parts lie in different planes, and every channel is visited once.
            let [o0, o1, o2, o3, o4, o5] =
                std::array::from_fn(|column| unsafe { planes.at(6 * row + column, channel) });
            g(outputs, at(0), at(1), at(2), o0, o1, o2, o3, o4, o5);
        }
    }
}

vectorised! {
    /// Computes dw of one input channel, as `[9, inputs, outputs]`.
    fn leave_weights(
        target: &Disjoint<'_, f32>,
        inputs: usize,
        outputs: usize,
        channel: usize,
        scratch: &mut [f32],
        planes: Planes<'_>,
    ) {
        for (row, scratch) in scratch.chunks_exact_mut(3 * outputs).enumerate() {
            // SAFETY: the six parts lie in different planes, and only this channel's task visits it.
            let u: [&[f32]; 6] = std::array::from_fn(|column| unsafe { &*planes.at(6 * row + column, channel) });
            let (o0, rest) = scratch.split_at_mut(outputs);
            let (o1, o2) = rest.split_at_mut(outputs);
            g_transposed(outputs, u[0], u[1], u[2], u[3], u[4], u[5], o0, o1, o2);
        }
        for column in 0..3 {
            let at = |row: usize| &scratch[(3 * row + column) * outputs..];
            let [o0, o1, o2] = std::array::from_fn(|row| {
                let start = ((3 * row + column) * inputs + channel) * outputs;
                // SAFETY: the three parts do not overlap, and every channel is visited once.
                unsafe { target.part(start..start + outputs) }
            });
            g_transposed(outputs, at(0), at(1), at(2), at(3), at(4), at(5), o0, o1, o2);
        }
    }
}
