//! Pools, and planes to and from vectors; all with channels last, one row a task.

use rayon::prelude::*;
use rehang_core::vectorised;

use super::super::graph::{GENERALISED_MEAN_MINIMUM, Shape, Sliding};

/// Takes the largest number of every window; `places` gets which number of its window that was (the first of
/// equal ones).
pub(super) fn maximum(
    input_shape: Shape,
    output_shape: Shape,
    window: Sliding,
    input: &[f32],
    out: &mut [f32],
    places: &mut [u16],
) {
    out.par_chunks_mut(output_shape.size())
        .zip(places.par_chunks_mut(output_shape.size()))
        .zip(input.par_chunks(input_shape.size()))
        .for_each(|((out, places), input)| {
            for_each_cell(input_shape, output_shape, window, |cell, square, position, is_first| {
                let channels = input_shape.channels;
                let out = &mut out[cell * channels..][..channels];
                let places = &mut places[cell * channels..][..channels];
                let input = &input[position * channels..][..channels];
                if is_first {
                    out.copy_from_slice(input);
                    places.fill(square);
                } else {
                    larger(input, square, out, places);
                }
            });
        });
}

/// Adds the gradient of every maximum to where it came from.
pub(super) fn maximum_backward(
    input_shape: Shape,
    output_shape: Shape,
    window: Sliding,
    gradient: &[f32],
    places: &[u16],
    input_gradient: &mut [f32],
) {
    input_gradient
        .par_chunks_mut(input_shape.size())
        .zip(gradient.par_chunks(output_shape.size()))
        .zip(places.par_chunks(output_shape.size()))
        .for_each(|((input_gradient, gradient), places)| {
            for_each_cell(input_shape, output_shape, window, |cell, square, position, _| {
                let channels = input_shape.channels;
                let gradient = &gradient[cell * channels..][..channels];
                let places = &places[cell * channels..][..channels];
                add_where(gradient, places, square, &mut input_gradient[position * channels..][..channels]);
            });
        });
}

/// Computes the mean of every plane.
pub(super) fn average(shape: Shape, input: &[f32], out: &mut [f32]) {
    let factor = 1.0 / (shape.height * shape.width) as f32;
    out.par_chunks_mut(shape.channels).zip(input.par_chunks(shape.size())).for_each(|(out, input)| {
        out.fill(0.0);
        add_rows(input, out);
        for value in out {
            *value *= factor;
        }
    });
}

/// Adds the gradient of every mean to its plane.
pub(super) fn average_backward(shape: Shape, gradient: &[f32], input_gradient: &mut [f32]) {
    let factor = 1.0 / (shape.height * shape.width) as f32;
    input_gradient.par_chunks_mut(shape.size()).zip(gradient.par_chunks(shape.channels)).for_each(
        |(input_gradient, gradient)| {
            for row in input_gradient.chunks_exact_mut(shape.channels) {
                for (sum, value) in row.iter_mut().zip(gradient) {
                    *sum += factor * value;
                }
            }
        },
    );
}

/// Computes `(mean max(x, 1e-6)³)^(1/3)` of every plane.
pub(super) fn generalised_mean(shape: Shape, input: &[f32], out: &mut [f32]) {
    let factor = 1.0 / (shape.height * shape.width) as f32;
    out.par_chunks_mut(shape.channels).zip(input.par_chunks(shape.size())).for_each(|(out, input)| {
        out.fill(0.0);
        add_cubes(input, out);
        for value in out {
            *value = (*value * factor).cbrt();
        }
    });
}

/// Adds `x²/(n·y²)` times the gradient of every generalised mean `y` of `n` numbers to the numbers `x` that
/// count.
pub(super) fn generalised_mean_backward(
    shape: Shape,
    input: &[f32],
    out: &[f32],
    gradient: &[f32],
    input_gradient: &mut [f32],
) {
    let factor = 1.0 / (shape.height * shape.width) as f32;
    input_gradient
        .par_chunks_mut(shape.size())
        .zip(input.par_chunks(shape.size()))
        .zip(out.par_chunks(shape.channels).zip(gradient.par_chunks(shape.channels)))
        .for_each(|((input_gradient, input), (out, gradient))| {
            for (sums, input) in
                input_gradient.chunks_exact_mut(shape.channels).zip(input.chunks_exact(shape.channels))
            {
                for channel in 0..shape.channels {
                    let x = input[channel];
                    if x >= GENERALISED_MEAN_MINIMUM || x.is_nan() {
                        let ratio = x / out[channel];
                        sums[channel] += factor * ratio * ratio * gradient[channel];
                    }
                }
            }
        });
}

/// Turns planes one after the other into channels last.
pub(super) fn channels_last(shape: Shape, input: &[f32], out: &mut [f32]) {
    let positions = shape.height * shape.width;
    out.par_chunks_mut(shape.size()).zip(input.par_chunks(shape.size())).for_each(|(out, input)| {
        for (channel, plane) in input.chunks_exact(positions).enumerate() {
            for (out, &value) in out[channel..].iter_mut().step_by(shape.channels).zip(plane) {
                *out = value;
            }
        }
    });
}

/// Turns channels last into planes one after the other, which is how a row of planes is a vector.
pub(super) fn channels_first(shape: Shape, input: &[f32], out: &mut [f32]) {
    let positions = shape.height * shape.width;
    out.par_chunks_mut(shape.size()).zip(input.par_chunks(shape.size())).for_each(|(out, input)| {
        for (channel, plane) in out.chunks_exact_mut(positions).enumerate() {
            for (out, &value) in plane.iter_mut().zip(input[channel..].iter().step_by(shape.channels)) {
                *out = value;
            }
        }
    });
}

/// Calls `visit(cell of the output, number within the window, position in the input, whether it is the
/// first)` for every number of every window of one row's planes.
fn for_each_cell(
    input: Shape,
    output: Shape,
    window: Sliding,
    mut visit: impl FnMut(usize, u16, usize, bool),
) {
    let Sliding { side, stride, padding } = window;
    for line in 0..output.height {
        for column in 0..output.width {
            let mut is_first = true;
            for row in 0..side {
                let Some(y) = (line * stride + row).checked_sub(padding).filter(|&y| y < input.height) else {
                    continue;
                };
                for offset in 0..side {
                    let x = (column * stride + offset).checked_sub(padding).filter(|&x| x < input.width);
                    if let Some(x) = x {
                        let cell = line * output.width + column;
                        visit(cell, (row * side + offset) as u16, y * input.width + x, is_first);
                        is_first = false;
                    }
                }
            }
        }
    }
}

vectorised! {
    fn larger(input: &[f32], square: u16, out: &mut [f32], places: &mut [u16]) {
        for ((&value, out), place) in input.iter().zip(out).zip(places) {
            // NaN is the largest: a divergence must be seen.
            let is_larger = value > *out || value.is_nan();
            *out = if is_larger { value } else { *out };
            *place = if is_larger { square } else { *place };
        }
    }
}

vectorised! {
    fn add_where(gradient: &[f32], places: &[u16], square: u16, input_gradient: &mut [f32]) {
        for ((&gradient, &place), sum) in gradient.iter().zip(places).zip(input_gradient) {
            *sum += if place == square { gradient } else { 0.0 };
        }
    }
}

vectorised! {
    fn add_rows(input: &[f32], out: &mut [f32]) {
        for row in input.chunks_exact(out.len()) {
            for (sum, value) in out.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

vectorised! {
    fn add_cubes(input: &[f32], out: &mut [f32]) {
        for row in input.chunks_exact(out.len()) {
            for (sum, &value) in out.iter_mut().zip(row) {
                let value = if value < GENERALISED_MEAN_MINIMUM { GENERALISED_MEAN_MINIMUM } else { value };
                *sum += value * value * value;
            }
        }
    }
}
