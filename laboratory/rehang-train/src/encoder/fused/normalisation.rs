//! Normalisation by BatchNorm with what follows it: a residual that is added, and ReLU.
//!
//! Per channel, over all rows and positions of a batch: `y = max(γ·(z − μ)/√(var + ε) + β + residual, 0)`.
//! The moments of `z` are summed while a convolution's output is still in the cache. So a forward pass reads
//! `z` once more and a backward pass twice: for the two sums that `dγ` and `dβ` are, and for
//! `dz = γ/√(var + ε)·(dy − dβ/n − x̂·dγ/n)`.
//!
//! Sums over eight positions are taken in f32 and those sums are added in f64, chunk after chunk.

use std::ops::Range;

use rayon::prelude::*;
use rehang_core::vectorised;
use rehang_fit::network::{State, VARIANCE_EPSILON as EPSILON};

use super::shared::Disjoint;

/// Share by which running statistics move towards those of a batch.
const MOMENTUM: f64 = 0.1;
/// Most numbers of one task.
const TASK: usize = 1 << 14;

/// BatchNorm of one node, and what is done in the same pass.
#[derive(Debug, Clone)]
pub(super) struct Normalisation {
    scale: Range<usize>,
    shift: Range<usize>,
    statistics: Range<usize>,
    /// Node that is added before ReLU.
    pub residual: Option<usize>,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Partial sums, two a channel, part after part.
    partial: Vec<f64>,
    mean: Vec<f32>,
    /// Inverse deviations 1/√(var + ε).
    inverse: Vec<f32>,
    /// Factor and summand that `z` gets.
    line: Line,
}

/// Line `slope·z + intercept`, per channel.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    pub slope: Vec<f32>,
    pub intercept: Vec<f32>,
}

impl Normalisation {
    pub(super) fn new(scale: Range<usize>, shift: Range<usize>, statistics: Range<usize>) -> Self {
        let channels = scale.len();
        Self {
            scale,
            shift,
            statistics,
            residual: None,
            relu: false,
            partial: Vec::new(),
            mean: vec![0.0; channels],
            inverse: vec![0.0; channels],
            line: Line { slope: vec![0.0; channels], intercept: vec![0.0; channels] },
        }
    }

    pub(super) fn channels(&self) -> usize {
        self.scale.len()
    }

    /// Makes room for the moments of so many parts; part `i` writes at `2·channels·i`.
    pub(super) fn moments(&mut self, parts: usize) -> Disjoint<'_, f64> {
        self.partial.resize(2 * self.channels() * parts, 0.0);
        Disjoint::new(&mut self.partial)
    }

    /// Takes the moments of `z` where no convolution has done it.
    pub(super) fn take_moments(&mut self, z: &[f32]) {
        let channels = self.channels();
        let task = task(channels);
        let parts = z.len().div_ceil(task);
        self.partial.resize(2 * channels * parts, 0.0);
        self.partial
            .par_chunks_exact_mut(2 * channels)
            .zip(z.par_chunks(task))
            .for_each(|(sums, z)| moments(z, channels, sums));
    }

    /// Adds the parts' moments in their order, and moves the running statistics.
    pub(super) fn settle(&mut self, positions: usize, state: &mut State) {
        let channels = self.channels();
        let sums = collect(&self.partial, channels);
        let n = positions as f64;
        for channel in 0..channels {
            let mean = sums[channel] / n;
            let variance = (sums[channels + channel] / n - mean * mean).max(0.0);
            // `max` takes the other number for NaN; a divergence must be seen.
            let variance = if mean.is_nan() { mean } else { variance };
            let inverse = 1.0 / (variance + EPSILON).sqrt();
            self.mean[channel] = mean as f32;
            self.inverse[channel] = inverse as f32;
            let unbiased = variance * n / (n - 1.0).max(1.0);
            let towards = |old: &mut f32, new: f64| {
                *old = (f64::from(*old) * (1.0 - MOMENTUM) + new * MOMENTUM) as f32;
            };
            let at = self.statistics.start + channel;
            towards(&mut state.running_mean[at], mean);
            towards(&mut state.running_variance[at], unbiased);
            let slope = state.parameters[self.scale.start + channel] * inverse as f32;
            self.line.slope[channel] = slope;
            self.line.intercept[channel] = state.parameters[self.shift.start + channel] - mean as f32 * slope;
        }
    }

    /// Computes the line of the running statistics.
    pub(super) fn running_line(&self, state: &State) -> Line {
        let mut line = Line::default();
        for channel in 0..self.channels() {
            let at = self.statistics.start + channel;
            let inverse = 1.0 / (f64::from(state.running_variance[at]) + EPSILON).sqrt();
            let slope = state.parameters[self.scale.start + channel] * inverse as f32;
            line.slope.push(slope);
            line.intercept
                .push(state.parameters[self.shift.start + channel] - state.running_mean[at] * slope);
        }
        line
    }

    /// Computes the second pass: `out = max(slope·z + intercept + residual, 0)`.
    pub(super) fn apply(&self, z: &[f32], residual: Option<&[f32]>, out: &mut [f32]) {
        let task = task(self.channels());
        out.par_chunks_mut(task).zip(z.par_chunks(task)).enumerate().for_each(|(number, (out, z))| {
            let residual = residual.map(|residual| &residual[number * task..]);
            self.line.apply(z, residual, self.relu, out);
        });
    }

    /// Turns the gradient of `out` into that of `z`, and adds dγ and dβ to `parameters`.
    ///
    /// Without a residual, `gradient` becomes dz. With one, it becomes the residual's gradient and `dz` is
    /// written.
    pub(super) fn backward(
        &mut self,
        state: &State,
        z: &[f32],
        out: &[f32],
        gradient: &mut [f32],
        dz: Option<&mut [f32]>,
        parameters: &mut [f32],
    ) {
        let channels = self.channels();
        let task = task(channels);
        let gated_by_output = self.relu && self.residual.is_some();
        let mut partial = std::mem::take(&mut self.partial);
        partial.resize(2 * channels * z.len().div_ceil(task), 0.0);
        partial
            .par_chunks_exact_mut(2 * channels)
            .zip(gradient.par_chunks_mut(task))
            .zip(z.par_chunks(task))
            .enumerate()
            .for_each(|(number, ((sums, gradient), z))| {
                if gated_by_output {
                    gate(gradient, &out[number * task..]);
                }
                let relu = self.relu && !gated_by_output;
                reduce(gradient, z, &self.line.slope, &self.line.intercept, relu, &self.mean, sums);
            });
        let sums = collect(&partial, channels);
        self.partial = partial;
        let n = (z.len() / channels) as f64;
        let (mut linear, mut constant) = (vec![0.0; channels], vec![0.0; channels]);
        for channel in 0..channels {
            let inverse = f64::from(self.inverse[channel]);
            let (shift_sum, scale_sum) = (sums[channel], sums[channels + channel] * inverse);
            parameters[self.shift.start + channel] += shift_sum as f32;
            parameters[self.scale.start + channel] += scale_sum as f32;
            let factor = f64::from(state.parameters[self.scale.start + channel]) * inverse;
            // dz = slope·dy + linear·z + constant, with x̂ written out as (z − μ)·inverse.
            let through_scale = -factor * inverse * scale_sum / n;
            linear[channel] = through_scale as f32;
            constant[channel] =
                (-factor * shift_sum / n - through_scale * f64::from(self.mean[channel])) as f32;
        }
        let relu = self.relu && !gated_by_output;
        let Line { slope, intercept } = &self.line;
        if let Some(dz) = dz {
            dz.par_chunks_mut(task).zip(gradient.par_chunks(task)).zip(z.par_chunks(task)).for_each(
                |((dz, gradient), z)| {
                    dz.copy_from_slice(gradient);
                    through(dz, z, slope, intercept, relu, &linear, &constant);
                },
            );
        } else {
            gradient
                .par_chunks_mut(task)
                .zip(z.par_chunks(task))
                .for_each(|(gradient, z)| through(gradient, z, slope, intercept, relu, &linear, &constant));
        }
    }
}

impl Line {
    /// Computes `out = max(slope·z + intercept + residual, 0)` on part of a batch.
    pub(super) fn apply(&self, z: &[f32], residual: Option<&[f32]>, relu: bool, out: &mut [f32]) {
        match residual {
            Some(residual) => apply_with(z, &self.slope, &self.intercept, residual, relu, out),
            None => apply(z, &self.slope, &self.intercept, relu, out),
        }
    }

    /// Computes `z = max(slope·z + intercept + residual, 0)` in place, on part of a batch.
    pub(super) fn apply_in_place(&self, z: &mut [f32], residual: Option<&[f32]>, relu: bool) {
        match residual {
            Some(residual) => apply_with_in_place(z, &self.slope, &self.intercept, residual, relu),
            None => apply_in_place(z, &self.slope, &self.intercept, relu),
        }
    }
}

/// Counts the numbers of one task: whole positions.
fn task(channels: usize) -> usize {
    (TASK / channels).max(1) * channels
}

fn collect(partial: &[f64], channels: usize) -> Vec<f64> {
    let mut sums = vec![0.0; 2 * channels];
    for part in partial.chunks_exact(2 * channels) {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
    }
    sums
}

/// Rectifies a value, max(value, 0), so that NaN stays NaN: a divergence must be seen, not rectified away.
#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version of the loops below")]
fn rectified(value: f32, relu: bool) -> f32 {
    if relu && value <= 0.0 { 0.0 } else { value }
}

/// Gives the number above which ReLU passes gradients.
fn floor(relu: bool) -> f32 {
    if relu { 0.0 } else { f32::NEG_INFINITY }
}

vectorised! {
    /// Sums `z` and its squares over the positions of a part.
    pub(super) fn moments(z: &[f32], channels: usize, sums: &mut [f64]) {
        sums.fill(0.0);
        let (first, second) = sums.split_at_mut(channels);
        let mut blocks = z.chunks_exact(8 * channels);
        for block in &mut blocks {
            let rows: [&[f32]; 8] = std::array::from_fn(|row| &block[row * channels..][..channels]);
            for channel in 0..channels {
                let v: [f32; 8] = std::array::from_fn(|row| rows[row][channel]);
                let sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
                let squares = ((v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]))
                    + ((v[4] * v[4] + v[5] * v[5]) + (v[6] * v[6] + v[7] * v[7]));
                first[channel] += f64::from(sum);
                second[channel] += f64::from(squares);
            }
        }
        for row in blocks.remainder().chunks_exact(channels) {
            for ((&value, first), second) in row.iter().zip(first.iter_mut()).zip(second.iter_mut()) {
                let value = f64::from(value);
                *first += value;
                *second += value * value;
            }
        }
    }
}

vectorised! {
    fn apply(z: &[f32], slope: &[f32], intercept: &[f32], relu: bool, out: &mut [f32]) {
        let channels = slope.len();
        let intercept = &intercept[..channels];
        for (z, out) in z.chunks_exact(channels).zip(out.chunks_exact_mut(channels)) {
            for channel in 0..channels {
                out[channel] = rectified(z[channel] * slope[channel] + intercept[channel], relu);
            }
        }
    }
}

vectorised! {
    fn apply_with(
        z: &[f32],
        slope: &[f32],
        intercept: &[f32],
        residual: &[f32],
        relu: bool,
        out: &mut [f32],
    ) {
        let channels = slope.len();
        let intercept = &intercept[..channels];
        let rows = z.chunks_exact(channels).zip(residual.chunks_exact(channels));
        for ((z, residual), out) in rows.zip(out.chunks_exact_mut(channels)) {
            for channel in 0..channels {
                let value = z[channel] * slope[channel] + intercept[channel] + residual[channel];
                out[channel] = rectified(value, relu);
            }
        }
    }
}

vectorised! {
    fn apply_in_place(z: &mut [f32], slope: &[f32], intercept: &[f32], relu: bool) {
        let channels = slope.len();
        let intercept = &intercept[..channels];
        for z in z.chunks_exact_mut(channels) {
            for channel in 0..channels {
                z[channel] = rectified(z[channel] * slope[channel] + intercept[channel], relu);
            }
        }
    }
}

vectorised! {
    fn apply_with_in_place(
        z: &mut [f32],
        slope: &[f32],
        intercept: &[f32],
        residual: &[f32],
        relu: bool,
    ) {
        let channels = slope.len();
        let intercept = &intercept[..channels];
        for (z, residual) in z.chunks_exact_mut(channels).zip(residual.chunks_exact(channels)) {
            for channel in 0..channels {
                let value = z[channel] * slope[channel] + intercept[channel] + residual[channel];
                z[channel] = rectified(value, relu);
            }
        }
    }
}

vectorised! {
    /// Stops the gradient where ReLU's output is not positive.
    pub(super) fn gate(gradient: &mut [f32], out: &[f32]) {
        for (gradient, &out) in gradient.iter_mut().zip(out) {
            *gradient = if out <= 0.0 { 0.0 } else { *gradient };
        }
    }
}

vectorised! {
    /// Sums `dy` and `dy·(z − μ)` over the positions of a part, where `dy` has passed ReLU.
    fn reduce(
        gradient: &[f32],
        z: &[f32],
        slope: &[f32],
        intercept: &[f32],
        relu: bool,
        mean: &[f32],
        sums: &mut [f64],
    ) {
        let channels = slope.len();
        sums.fill(0.0);
        let (first, second) = sums.split_at_mut(channels);
        let (intercept, mean) = (&intercept[..channels], &mean[..channels]);
        let floor = floor(relu);
        let mut blocks = gradient.chunks_exact(8 * channels);
        let mut z_blocks = z.chunks_exact(8 * channels);
        for (block, z) in (&mut blocks).zip(&mut z_blocks) {
            let rows: [&[f32]; 8] = std::array::from_fn(|row| &block[row * channels..][..channels]);
            let z: [&[f32]; 8] = std::array::from_fn(|row| &z[row * channels..][..channels]);
            for channel in 0..channels {
                let (slope, intercept, mean) = (slope[channel], intercept[channel], mean[channel]);
                // Loads come first and without a condition: else the loop is not turned into vector
                // instructions.
                let dy: [f32; 8] = std::array::from_fn(|row| rows[row][channel]);
                let z: [f32; 8] = std::array::from_fn(|row| z[row][channel]);
                let dy: [f32; 8] = std::array::from_fn(|row| {
                    if z[row] * slope + intercept <= floor { 0.0 } else { dy[row] }
                });
                let p: [f32; 8] = std::array::from_fn(|row| dy[row] * (z[row] - mean));
                let sum = ((dy[0] + dy[1]) + (dy[2] + dy[3])) + ((dy[4] + dy[5]) + (dy[6] + dy[7]));
                let products = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
                first[channel] += f64::from(sum);
                second[channel] += f64::from(products);
            }
        }
        let rest = blocks.remainder().chunks_exact(channels).zip(z_blocks.remainder().chunks_exact(channels));
        for (row, z) in rest {
            for channel in 0..channels {
                let z = z[channel];
                let stopped = z * slope[channel] + intercept[channel] <= floor;
                let passed = if stopped { 0.0 } else { row[channel] };
                first[channel] += f64::from(passed);
                second[channel] += f64::from(passed) * f64::from(z - mean[channel]);
            }
        }
    }
}

vectorised! {
    /// Computes `dz = slope·dy + linear·z + constant`, in place of the gradient before ReLU.
    fn through(
        gradient: &mut [f32],
        z: &[f32],
        slope: &[f32],
        intercept: &[f32],
        relu: bool,
        linear: &[f32],
        constant: &[f32],
    ) {
        let channels = slope.len();
        let floor = floor(relu);
        let (intercept, linear, constant) = (&intercept[..channels], &linear[..channels], &constant[..channels]);
        for (gradient, z) in gradient.chunks_exact_mut(channels).zip(z.chunks_exact(channels)) {
            for channel in 0..channels {
                let z = z[channel];
                let stopped = z * slope[channel] + intercept[channel] <= floor;
                let passed = if stopped { 0.0 } else { gradient[channel] };
                gradient[channel] = slope[channel] * passed + linear[channel] * z + constant[channel];
            }
        }
    }
}
