//! BatchNorm, ReLU and dropout in two passes forward and two backward.
//!
//! Over a batch of `n` rows, per column: `x̂ = (z − μ)/√(var + ε)`, `a = max(γ·x̂ + β, 0)`. While statistics
//! are live, `μ` and `var` (divided by `n`) are the batch's own and the running ones move by a tenth towards
//! `μ` and the unbiased variance (divided by `n − 1`), as PyTorch does; once frozen, they are the running
//! ones.
//!
//! Backward, with `dy` the gradient before ReLU: `dβ = Σ dy`, `dγ = Σ dy·x̂`, and
//! `dz = γ/√(var + ε)·(dy − dβ/n − x̂·dγ/n)` while live, `γ/√(var + ε)·dy` once frozen.

use rayon::prelude::*;
use rehang_core::vectorised;

use super::product::Window;

/// Number that is added to a variance before its root is taken.
pub const EPSILON: f64 = 1e-5;
/// Factor by which running statistics move towards those of a batch.
const MOMENTUM: f64 = 0.1;
/// Number of rows of one task.
const ROWS: usize = 64;

/// Dropout of one layer in one step: unit `i` of the batch is dropped where the hash of `i` falls below a
/// threshold.
///
/// The backward pass needs no mask: a dropped unit is 0 after ReLU, and a unit that is 0 passes no gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mask {
    key: u64,
    threshold: u32,
    /// Factor of kept units: 1/(1 − rate).
    pub keep_scale: f32,
}

impl Mask {
    /// Mask that drops nothing.
    pub(crate) const NONE: Self = Self { key: 0, threshold: 0, keep_scale: 1.0 };

    /// Returns a mask that drops units at `rate` (below 1), different for every key.
    pub(crate) fn new(rate: f32, key: u64) -> Self {
        let threshold = (f64::from(rate) * f64::from(u32::MAX)) as u32;
        Self { key, threshold, keep_scale: 1.0 / (1.0 - rate) }
    }

    /// Zeroes the dropped units of a row whose first unit has number `first` in the batch, and scales the
    /// rest.
    pub(crate) fn apply(self, row: &mut [f32], first: usize) {
        for (unit, value) in row.iter_mut().enumerate() {
            let hash = mix(self.key ^ (first + unit) as u64);
            *value = if (hash >> 32) as u32 >= self.threshold { *value * self.keep_scale } else { 0.0 };
        }
    }
}

/// Hashes a number by the finaliser of SplitMix64 (Steele, Lea, Flood 2014): neighbouring inputs give
/// unrelated outputs.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Scratch of one layer: per-chunk sums and the statistics that the backward pass needs again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Statistics {
    /// Two sums a column, chunk after chunk.
    partial: Vec<f64>,
    /// Two sums a column over all chunks.
    sums: Vec<f64>,
    /// μ of the last forward pass.
    mean: Vec<f32>,
    /// 1/√(var + ε) of the last forward pass.
    inverse_deviation: Vec<f32>,
    /// Factors of the pass at hand, three for each column.
    factors: Vec<f32>,
}

impl Statistics {
    pub(crate) fn new(columns: usize, rows: usize) -> Self {
        Self {
            partial: vec![0.0; 2 * columns * rows.div_ceil(ROWS)],
            sums: vec![0.0; 2 * columns],
            mean: vec![0.0; columns],
            inverse_deviation: vec![0.0; columns],
            factors: vec![0.0; 3 * columns],
        }
    }

    /// Adds the chunks' sums in their order.
    fn collect(&mut self, chunks: usize) {
        let width = self.sums.len();
        self.sums.fill(0.0);
        for chunk in 0..chunks {
            for (sum, &part) in self.sums.iter_mut().zip(&self.partial[chunk * width..]) {
                *sum += part;
            }
        }
    }
}

/// Running statistics of one layer.
pub(crate) struct Running<'a> {
    pub mean: &'a mut [f32],
    pub variance: &'a mut [f32],
}

/// Computes `a = dropout(max(BatchNorm(z), 0))`: from `z [n, columns]` into a window of `out`.
pub(crate) fn forward(
    rows: usize,
    z: &[f32],
    (scale, shift): (&[f32], &[f32]),
    running: &mut Running<'_>,
    live: bool,
    mask: Mask,
    statistics: &mut Statistics,
    (out, window): (&mut [f32], Window),
) {
    let columns = window.columns;
    if live {
        let chunks = rows.div_ceil(ROWS);
        z[..rows * columns]
            .par_chunks(ROWS * columns)
            .zip(statistics.partial.par_chunks_mut(2 * columns))
            .for_each(|(z, sums)| add_moments(z, columns, sums));
        statistics.collect(chunks);
        let n = rows as f64;
        for column in 0..columns {
            let mean = statistics.sums[column] / n;
            // Sums are in f64, so the difference of two squares loses nothing that an f32 could show.
            let variance = (statistics.sums[columns + column] / n - mean * mean).max(0.0);
            statistics.mean[column] = mean as f32;
            statistics.inverse_deviation[column] = (1.0 / (variance + EPSILON).sqrt()) as f32;
            let unbiased = variance * n / (n - 1.0).max(1.0);
            let towards = |old: f32, new: f64| (f64::from(old) * (1.0 - MOMENTUM) + new * MOMENTUM) as f32;
            running.mean[column] = towards(running.mean[column], mean);
            running.variance[column] = towards(running.variance[column], unbiased);
        }
    } else {
        statistics.mean.copy_from_slice(running.mean);
        for (inverse, &variance) in statistics.inverse_deviation.iter_mut().zip(running.variance.iter()) {
            *inverse = (1.0 / (f64::from(variance) + EPSILON).sqrt()) as f32;
        }
    }
    let (slope, intercept) = statistics.factors.split_at_mut(columns);
    for column in 0..columns {
        slope[column] = scale[column] * statistics.inverse_deviation[column];
        intercept[column] = shift[column] - statistics.mean[column] * slope[column];
    }
    let (slope, intercept) = (&*slope, &intercept[..columns]);
    let out = &mut out[..rows * window.stride];
    out.par_chunks_mut(ROWS * window.stride)
        .zip(z[..rows * columns].par_chunks(ROWS * columns))
        .enumerate()
        .for_each(|(chunk, (out, z))| {
            activate(z, slope, intercept, mask, chunk * ROWS * columns, out, window);
        });
}

/// Turns the gradient of the activations into that of `z`, in place, and writes dγ and dβ.
pub(crate) fn backward(
    rows: usize,
    z: &[f32],
    activations: &[f32],
    scale: &[f32],
    live: bool,
    mask: Mask,
    statistics: &mut Statistics,
    (gradient, window): (&mut [f32], Window),
    (scale_gradient, shift_gradient): (&mut [f32], &mut [f32]),
) {
    let columns = window.columns;
    let chunks = rows.div_ceil(ROWS);
    let gradient = &mut gradient[..rows * window.stride];
    let activations = &activations[..rows * window.stride];
    let z = &z[..rows * columns];
    {
        let (mean, inverse) = (&statistics.mean, &statistics.inverse_deviation);
        gradient
            .par_chunks_mut(ROWS * window.stride)
            .zip(activations.par_chunks(ROWS * window.stride))
            .zip(z.par_chunks(ROWS * columns))
            .zip(statistics.partial.par_chunks_mut(2 * columns))
            .for_each(|(((gradient, activations), z), sums)| {
                rectify(gradient, activations, z, mean, inverse, mask.keep_scale, window, sums);
            });
    }
    statistics.collect(chunks);
    let n = rows as f64;
    let (slope, constant_and_linear) = statistics.factors.split_at_mut(columns);
    let (constant, linear) = constant_and_linear.split_at_mut(columns);
    for column in 0..columns {
        let (shift_sum, scale_sum) = (statistics.sums[column], statistics.sums[columns + column]);
        shift_gradient[column] = shift_sum as f32;
        scale_gradient[column] = scale_sum as f32;
        let inverse = f64::from(statistics.inverse_deviation[column]);
        let factor = f64::from(scale[column]) * inverse;
        slope[column] = factor as f32;
        // dz = slope·dy + linear·z + constant, with x̂ written out as (z − μ)·inverse.
        let through_scale = if live { -factor * inverse * scale_sum / n } else { 0.0 };
        let through_mean = if live { -factor * shift_sum / n } else { 0.0 };
        linear[column] = through_scale as f32;
        constant[column] = (through_mean - through_scale * f64::from(statistics.mean[column])) as f32;
    }
    let (slope, constant, linear) = (&*slope, &*constant, &*linear);
    gradient
        .par_chunks_mut(ROWS * window.stride)
        .zip(z.par_chunks(ROWS * columns))
        .for_each(|(gradient, z)| through(gradient, z, slope, constant, linear, window));
}

vectorised! {
    fn add_moments(z: &[f32], columns: usize, sums: &mut [f64]) {
        sums.fill(0.0);
        let (first, second) = sums.split_at_mut(columns);
        for row in z.chunks_exact(columns) {
            for ((&value, first), second) in row.iter().zip(first.iter_mut()).zip(second.iter_mut()) {
                let value = f64::from(value);
                *first += value;
                *second += value * value;
            }
        }
    }
}

vectorised! {
    fn activate(
        z: &[f32],
        slope: &[f32],
        intercept: &[f32],
        mask: Mask,
        first_unit: usize,
        out: &mut [f32],
        window: Window,
    ) {
        let columns = window.columns;
        for (row, (z, out)) in z.chunks_exact(columns).zip(out.chunks_mut(window.stride)).enumerate() {
            let out = &mut out[window.offset..window.offset + columns];
            for ((out, &z), (&slope, &intercept)) in out.iter_mut().zip(z).zip(slope.iter().zip(intercept)) {
                let value = z * slope + intercept;
                // The comparison keeps NaN as NaN: a divergence must be seen, not rectified away.
                *out = if value <= 0.0 { 0.0 } else { value };
            }
            if mask.threshold > 0 {
                mask.apply(out, first_unit + row * columns);
            }
        }
    }
}

vectorised! {
    fn rectify(
        gradient: &mut [f32],
        activations: &[f32],
        z: &[f32],
        mean: &[f32],
        inverse: &[f32],
        keep_scale: f32,
        window: Window,
        sums: &mut [f64],
    ) {
        let columns = window.columns;
        sums.fill(0.0);
        let (shift_sums, scale_sums) = sums.split_at_mut(columns);
        let rows = gradient.chunks_mut(window.stride).zip(activations.chunks(window.stride)).zip(z.chunks_exact(columns));
        for ((gradient, activations), z) in rows {
            let gradient = &mut gradient[window.offset..window.offset + columns];
            let activations = &activations[window.offset..window.offset + columns];
            let (z, mean, inverse) = (&z[..columns], &mean[..columns], &inverse[..columns]);
            let (shift_sums, scale_sums) = (&mut shift_sums[..columns], &mut scale_sums[..columns]);
            for column in 0..columns {
                let passed = if activations[column] > 0.0 { gradient[column] * keep_scale } else { 0.0 };
                gradient[column] = passed;
                let normalised = (z[column] - mean[column]) * inverse[column];
                shift_sums[column] += f64::from(passed);
                scale_sums[column] += f64::from(passed) * f64::from(normalised);
            }
        }
    }
}

vectorised! {
    fn through(gradient: &mut [f32], z: &[f32], slope: &[f32], constant: &[f32], linear: &[f32], window: Window) {
        let columns = window.columns;
        for (gradient, z) in gradient.chunks_mut(window.stride).zip(z.chunks_exact(columns)) {
            let gradient = &mut gradient[window.offset..window.offset + columns];
            let (z, slope) = (&z[..columns], &slope[..columns]);
            let (constant, linear) = (&constant[..columns], &linear[..columns]);
            for column in 0..columns {
                gradient[column] = slope[column] * gradient[column] + linear[column] * z[column] + constant[column];
            }
        }
    }
}
