//! Convolutions of planes with channels last: the window of every output position is copied into a row of a
//! matrix (for 1 × 1 windows with stride 1 the planes are that matrix already), and the rest is matrix
//! products.
//!
//! ```text
//! z = columns(x) · W        columns [positions, side·side·inputs], W [side·side·inputs, outputs]
//! dW = columns(x)ᵀ · dz
//! dx = scattered(dz · Wᵀ)   the reverse of columns: every number is added to where it was copied from
//! ```

use rayon::prelude::*;
use rehang_fit::network::product::{Operand, multiply};

use super::super::graph::{Shape, Sliding};
use super::shared::{Disjoint, Scratch, grown, with_scratch};
use super::winograd::Winograd;

/// Number of columns' numbers that one task makes at a time; with its share of weights they stay in a core's
/// own cache.
const TASK_COLUMNS: usize = 1 << 17;
/// Number of rows below which a product spends its time reading weights.
const TASK_POSITIONS: usize = 96;
/// Number of columns' numbers that all tasks together make before a weight gradient multiplies them.
const SHARED_COLUMNS: usize = 1 << 20;
/// Number of parts of a weight gradient that are summed or written apart from each other.
const GRADIENT_PARTS: usize = 8;
/// Number of channels that are reordered together: as many as a cache line has room for.
const BLOCK: usize = 16;
/// Number of rows of W from which parts of a weight gradient are parts of its rows; below, they are sums over
/// parts of the batch.
const MANY_WEIGHT_ROWS: usize = 256;

/// Convolution and its weights in the order that products need.
#[derive(Debug, Clone)]
pub(super) struct Convolution {
    input: Shape,
    output: Shape,
    window: Sliding,
    /// Weights W, where columns are made.
    packed: Vec<f32>,
    /// Minimal filtering, where it is the faster way.
    winograd: Option<Winograd>,
}

/// Callback for a finished part of the output: the number of the part, where it begins (in numbers), the
/// part.
pub(super) type Finish<'a> = &'a (dyn Fn(usize, usize, &mut [f32]) + Sync);

impl Convolution {
    pub(super) fn new(input: Shape, output: Shape, window: Sliding) -> Self {
        Self { input, output, window, packed: Vec::new(), winograd: Winograd::new(input, output, window) }
    }

    #[cfg(test)]
    pub(super) fn is_filtered(&self) -> bool {
        self.winograd.is_some()
    }

    #[cfg(test)]
    pub(super) fn without_filtering(self) -> Self {
        Self { winograd: None, ..self }
    }

    /// Reorders weights `[outputs, inputs, side, side]` for the passes that follow.
    pub(super) fn prepare(&mut self, weight: &[f32], scratch: &mut Scratch) {
        let (inputs, outputs, squares) = self.sizes();
        let buffer = if self.winograd.is_some() { &mut scratch.weights } else { &mut self.packed };
        let buffer = grown(buffer, weight.len());
        let packed = Disjoint::new(buffer);
        (0..inputs).into_par_iter().step_by(BLOCK).for_each(|first| {
            let last = (first + BLOCK).min(inputs);
            for block in (0..outputs).step_by(BLOCK) {
                for channel in first..last {
                    for square in 0..squares {
                        let start = (square * inputs + channel) * outputs;
                        // SAFETY: every input channel has parts of its own.
                        let packed =
                            unsafe { packed.part(start + block..start + (block + BLOCK).min(outputs)) };
                        for (packed, output) in packed.iter_mut().zip(block..) {
                            *packed = weight[(output * inputs + channel) * squares + square];
                        }
                    }
                }
            }
        });
        if let Some(winograd) = &mut self.winograd {
            winograd.prepare(buffer);
        }
    }

    /// Counts the parts in which [`forward`](Self::forward) finishes the output of `rows` rows.
    pub(super) fn parts(&self, rows: usize) -> usize {
        if self.winograd.is_some() { rows } else { (rows * self.output.height).div_ceil(self.task_lines()) }
    }

    /// Computes `out = x ∗ w`; every part of `out` is given to `finish` while it is in the cache.
    pub(super) fn forward(
        &self,
        rows: usize,
        input: &[f32],
        out: &mut [f32],
        finish: Finish<'_>,
        scratch: &mut Scratch,
    ) {
        if let Some(winograd) = &self.winograd {
            winograd.forward(rows, input, out, finish, &mut scratch.shared);
            return;
        }
        let (_, outputs, _) = self.sizes();
        let (depth, width) = (self.depth(), self.output.width);
        let part = self.task_lines() * width * outputs;
        let out = &mut out[..rows * self.output.size()];
        out.par_chunks_mut(part).enumerate().for_each(|(number, out)| {
            let positions = out.len() / outputs;
            self.with_columns(input, number * self.task_lines(), positions / width, |columns| {
                let weight = Operand::rows(&self.packed, outputs);
                let columns = Operand::rows(columns, depth);
                multiply((positions, outputs, depth), (out, outputs), columns, weight, false, 1);
            });
            finish(number, number * part, out);
        });
    }

    /// Adds dw to `gradient`, `[outputs, inputs, side, side]`, and writes dx into `input_gradient` if it is
    /// asked for (or adds it where the flag is set).
    pub(super) fn backward(
        &self,
        rows: usize,
        input: &[f32],
        output_gradient: &[f32],
        gradient: &mut [f32],
        input_gradient: Option<(&mut [f32], bool)>,
        scratch: &mut Scratch,
    ) {
        if let Some(winograd) = &self.winograd {
            winograd.backward(rows, input, output_gradient, input_gradient, scratch);
            self.add_gradient(&scratch.weights, gradient);
            return;
        }
        self.weight_gradient(rows, input, output_gradient, gradient, scratch);
        if let Some((input_gradient, accumulate)) = input_gradient {
            self.input_gradient(rows, output_gradient, input_gradient, accumulate);
        }
    }

    fn weight_gradient(
        &self,
        rows: usize,
        input: &[f32],
        output_gradient: &[f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let size = self.packed.len();
        if self.depth() < MANY_WEIGHT_ROWS {
            let sums = grown(&mut scratch.sums, GRADIENT_PARTS * size);
            self.gradient_over_parts_of_the_batch(rows, input, output_gradient, sums);
        } else {
            let sums = grown(&mut scratch.sums, size);
            self.gradient_over_parts_of_rows(rows, input, output_gradient, sums, &mut scratch.shared);
        }
        self.add_gradient(&scratch.sums, gradient);
    }

    fn input_gradient(
        &self,
        rows: usize,
        output_gradient: &[f32],
        input_gradient: &mut [f32],
        accumulate: bool,
    ) {
        let (_, outputs, _) = self.sizes();
        let depth = self.depth();
        let (height, width) = (self.output.height, self.output.width);
        let images = TASK_POSITIONS.div_ceil(height * width);
        let transposed = Operand::columns(&self.packed, outputs);
        input_gradient[..rows * self.input.size()]
            .par_chunks_mut(images * self.input.size())
            .zip(output_gradient[..rows * self.output.size()].par_chunks(images * self.output.size()))
            .for_each(|(input_gradient, output_gradient)| {
                if self.is_pointwise() {
                    let positions = output_gradient.len() / outputs;
                    let left = Operand::rows(output_gradient, outputs);
                    let size = (positions, depth, outputs);
                    multiply(size, (input_gradient, depth), left, transposed, accumulate, 1);
                    return;
                }
                if !accumulate {
                    input_gradient.fill(0.0);
                }
                let task = self.task_lines() * width * outputs;
                for (number, output_gradient) in output_gradient.chunks(task).enumerate() {
                    let positions = output_gradient.len() / outputs;
                    with_scratch(positions * depth, |columns| {
                        let left = Operand::rows(output_gradient, outputs);
                        multiply((positions, depth, outputs), (columns, depth), left, transposed, false, 1);
                        self.scatter(columns, number * self.task_lines(), input_gradient);
                    });
                }
            });
    }

    /// Counts channels in, channels out, and positions of the window.
    fn sizes(&self) -> (usize, usize, usize) {
        (self.input.channels, self.output.channels, self.window.side * self.window.side)
    }

    /// Counts the rows of W.
    fn depth(&self) -> usize {
        self.input.channels * self.window.side * self.window.side
    }

    fn is_pointwise(&self) -> bool {
        self.window == Sliding { side: 1, stride: 1, padding: 0 }
    }

    /// Counts the lines of output positions of one task.
    fn task_lines(&self) -> usize {
        let width = self.output.width;
        TASK_POSITIONS.div_ceil(width).max(TASK_COLUMNS / (width * self.depth()))
    }

    /// Runs `work` with the columns of some lines of the batch; a line is a row of output positions.
    fn with_columns(&self, input: &[f32], first_line: usize, lines: usize, work: impl FnOnce(&[f32])) {
        let line = self.output.width * self.depth();
        if self.is_pointwise() {
            work(&input[first_line * line..(first_line + lines) * line]);
        } else {
            with_scratch(lines * line, |columns| {
                self.gather(input, first_line, columns);
                work(columns);
            });
        }
    }

    /// Copies windows into columns, line after line.
    fn gather(&self, input: &[f32], first_line: usize, columns: &mut [f32]) {
        let depth = self.depth();
        let run = self.window.side * self.input.channels;
        for (line, columns) in (first_line..).zip(columns.chunks_exact_mut(self.output.width * depth)) {
            for (x, column) in columns.chunks_exact_mut(depth).enumerate() {
                for (row, column) in column.chunks_exact_mut(run).enumerate() {
                    if let Some((from, to, length)) = self.run(line, x, row) {
                        column[..to].fill(0.0);
                        column[to..to + length].copy_from_slice(&input[from..from + length]);
                        column[to + length..].fill(0.0);
                    } else {
                        column.fill(0.0);
                    }
                }
            }
        }
    }

    /// Adds columns to where [`gather`](Self::gather) copied them from.
    fn scatter(&self, columns: &[f32], first_line: usize, input: &mut [f32]) {
        let depth = self.depth();
        let run = self.window.side * self.input.channels;
        for (line, columns) in (first_line..).zip(columns.chunks_exact(self.output.width * depth)) {
            for (x, column) in columns.chunks_exact(depth).enumerate() {
                for (row, column) in column.chunks_exact(run).enumerate() {
                    if let Some((from, to, length)) = self.run(line, x, row) {
                        for (sum, value) in input[from..from + length].iter_mut().zip(&column[to..]) {
                            *sum += value;
                        }
                    }
                }
            }
        }
    }

    /// Finds where row `row` of the window at position `x` of a line lies in the planes. It begins at the
    /// first number there, at the second in the window's row, and the third says how many numbers it has; the
    /// rest is padding.
    fn run(&self, line: usize, x: usize, row: usize) -> Option<(usize, usize, usize)> {
        let (image, line) = (line / self.output.height, line % self.output.height);
        let Sliding { side, stride, padding } = self.window;
        let Shape { channels, height, width } = self.input;
        let y = (line * stride + row).checked_sub(padding).filter(|&y| y < height)?;
        // In coordinates of the padded plane, the window covers x·stride .. x·stride + side.
        let first = (x * stride).max(padding);
        let last = (x * stride + side).min(padding + width);
        let length = last.checked_sub(first).filter(|&length| length > 0)?;
        let from = ((image * height + y) * width + first - padding) * channels;
        Some((from, (first - x * stride) * channels, length * channels))
    }

    fn gradient_over_parts_of_the_batch(
        &self,
        rows: usize,
        input: &[f32],
        output_gradient: &[f32],
        sums: &mut [f32],
    ) {
        let (_, outputs, _) = self.sizes();
        let (depth, width) = (self.depth(), self.output.width);
        let lines = rows * self.output.height;
        let part_lines = lines.div_ceil(GRADIENT_PARTS);
        sums.par_chunks_exact_mut(depth * outputs).enumerate().for_each(|(part, sums)| {
            sums.fill(0.0);
            let (mut line, end) = (part * part_lines, ((part + 1) * part_lines).min(lines));
            while line < end {
                let count = self.task_lines().min(end - line);
                let positions = count * width;
                self.with_columns(input, line, count, |columns| {
                    let left = Operand::columns(columns, depth);
                    let right = Operand::rows(&output_gradient[line * width * outputs..], outputs);
                    multiply((depth, outputs, positions), (sums, outputs), left, right, true, 1);
                });
                line += count;
            }
        });
        let (first, others) = sums.split_at_mut(depth * outputs);
        for other in others.chunks_exact(depth * outputs) {
            for (sum, part) in first.iter_mut().zip(other) {
                *sum += part;
            }
        }
    }

    fn gradient_over_parts_of_rows(
        &self,
        rows: usize,
        input: &[f32],
        output_gradient: &[f32],
        sums: &mut [f32],
        shared: &mut Vec<f32>,
    ) {
        let (_, outputs, _) = self.sizes();
        let (depth, width) = (self.depth(), self.output.width);
        let lines = rows * self.output.height;
        let chunk = if self.is_pointwise() { lines } else { (SHARED_COLUMNS / (width * depth)).max(1) };
        let part_rows = depth.div_ceil(GRADIENT_PARTS).next_multiple_of(16);
        let mut line = 0;
        while line < lines {
            let count = chunk.min(lines - line);
            let positions = count * width;
            let columns = if self.is_pointwise() {
                &input[..positions * depth]
            } else {
                let columns = grown(shared, positions * depth);
                columns
                    .par_chunks_exact_mut(width * depth)
                    .enumerate()
                    .for_each(|(number, columns)| self.gather(input, line + number, columns));
                columns
            };
            sums.par_chunks_mut(part_rows * outputs).enumerate().for_each(|(part, sums)| {
                let left = Operand::columns(&columns[part * part_rows..], depth);
                let right = Operand::rows(&output_gradient[line * width * outputs..], outputs);
                let size = (sums.len() / outputs, outputs, positions);
                multiply(size, (sums, outputs), left, right, line > 0, 1);
            });
            line += count;
        }
    }

    /// Adds dW in the order of W to dw in the order of files.
    fn add_gradient(&self, sums: &[f32], gradient: &mut [f32]) {
        let (inputs, outputs, squares) = self.sizes();
        gradient.par_chunks_mut(BLOCK * inputs * squares).enumerate().for_each(|(block, gradient)| {
            for channel in 0..inputs {
                for square in 0..squares {
                    let sums = &sums[(square * inputs + channel) * outputs + block * BLOCK..];
                    let column = gradient[channel * squares + square..].iter_mut().step_by(inputs * squares);
                    for (gradient, sum) in column.zip(sums) {
                        *gradient += sum;
                    }
                }
            }
        });
    }
}
