//! Products of a matrix with packed weights, with bias and ReLU applied while the numbers are in registers.
//!
//! One product computes `C = A·Wᵀ + b` for `A` `[rows, inputs]` and `W` `[outputs, inputs]`. Weights are
//! packed once: tiles of [`TILE`] outputs, inside a tile input after input, so that the inner loop reads them
//! in order.
//!
//! # Bits
//!
//! Every output is one chain `fma(a_last, w_last, … fma(a_1, w_1, fma(a_0, w_0, b)))` in the order of the
//! inputs, whichever instruction set computes it and wherever the row stands. So a row's result depends
//! neither on its batch, nor on the number of threads, nor on the processor. (The plain path of an x86
//! processor without FMA rounds twice a step and may differ in the last bits.)

use crate::processor::Processor;

/// Number of outputs that are computed side by side: four AVX-512 registers.
pub(super) const TILE: usize = 64;

/// Number of floats in one 64-byte line. Tiles are cut into lines where the outputs do not fill a whole tile.
const LINE: usize = 16;

/// Number of inputs that one pass over a tile takes. The tile's 256 KiB of weights then stay in the second
/// cache while the rows go by, and the sums are loaded and stored only once in 1,024 steps.
const DEPTH: usize = 1024;

/// Number of inputs by which weights are prefetched, so that they arrive from the second cache in time.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 8;

/// One 64-byte line of weights. It makes a `Vec` of lines aligned for the widest loads.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Weights and bias of one product in the order in which the kernel reads them.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    /// Instruction set that multiplies; this machine has it.
    processor: Processor,
    inputs: usize,
    outputs: usize,
    /// Weights, tile after tile `[inputs, width]`. `width` is [`TILE`] except for the last tile, which is cut
    /// to whole lines.
    weights: Vec<Line>,
    /// Bias, padded with zeros to whole lines.
    bias: Vec<Line>,
}

/// Value that the sums begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// The bias of each output.
    Bias,
    /// The present content of the output, to which an earlier slice of the inputs has been added.
    Output,
    /// The present content of the output, plus the bias.
    OutputPlusBias,
}

/// Rows of numbers in a longer buffer: row `r` begins at `r · stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsRef<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> RowsRef<'a> {
    /// Makes rows that begin at every multiple of `stride` in `data`.
    pub(super) fn new(data: &'a [f32], stride: usize) -> Self {
        Self { data, stride }
    }

    /// The first `width` numbers of a row.
    pub(super) fn row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.data[row * self.stride..row * self.stride + width]
    }
}

impl Packed {
    /// Packs a weight given number by number, `weight(output, input)`, and its bias `[outputs]`.
    pub(super) fn new(
        outputs: usize,
        inputs: usize,
        weight: impl Fn(usize, usize) -> f32,
        bias: &[f32],
    ) -> Self {
        debug_assert_eq!(bias.len(), outputs);
        let lines = outputs.div_ceil(LINE);
        let mut weights = Vec::with_capacity(lines * inputs);
        for tile in (0..outputs).step_by(TILE) {
            let width = tile_width(outputs, tile);
            for input in 0..inputs {
                for line in (tile..tile + width).step_by(LINE) {
                    weights.push(Line(std::array::from_fn(|lane| {
                        let output = line + lane;
                        if output < outputs { weight(output, input) } else { 0.0 }
                    })));
                }
            }
        }
        let bias = (0..lines)
            .map(|line| {
                Line(std::array::from_fn(|lane| bias.get(line * LINE + lane).copied().unwrap_or(0.0)))
            })
            .collect();
        Self { processor: Processor::detect(), inputs, outputs, weights, bias }
    }

    /// Width of the input rows.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of the output rows.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Computes outputs `range` of `rows` rows into the first columns of `output`'s rows.
    ///
    /// `range` begins at a multiple of [`TILE`] and ends at another or at the number of outputs. Only the
    /// columns asked for are written; whatever stands behind them in a row stays.
    pub(super) fn multiply(
        &self,
        input: RowsRef<'_>,
        rows: usize,
        range: std::ops::Range<usize>,
        output: &mut [f32],
        output_stride: usize,
        begin: Begin,
        relu: bool,
    ) {
        if rows == 0 || range.is_empty() {
            return;
        }
        // The kernels below use pointers. These four checks ensure that every access of theirs lies inside
        // the buffers.
        assert!(range.start.is_multiple_of(TILE) && range.end <= self.outputs, "columns begin at a tile");
        assert!(range.end == self.outputs || range.end.is_multiple_of(TILE), "columns end at a tile");
        assert!(
            (rows - 1) * input.stride + self.inputs <= input.data.len(),
            "input rows lie inside their buffer"
        );
        assert!(
            (rows - 1) * output_stride + range.len() <= output.len(),
            "output rows lie inside their buffer"
        );
        let task = Task {
            packed: self,
            input: input.data.as_ptr(),
            input_stride: input.stride,
            rows,
            first: range.start,
            last: range.end,
            output: output.as_mut_ptr(),
            output_stride,
            begin,
            relu,
        };
        // SAFETY: the asserts above, and `Processor` names an instruction set only after it was detected.
        unsafe {
            match self.processor {
                #[cfg(target_arch = "x86_64")]
                Processor::Avx512 => avx512::run(&task),
                #[cfg(target_arch = "x86_64")]
                Processor::Avx2 => avx2::run(&task),
                Processor::Plain => plain::run(&task),
            }
        }
    }
}

/// Width of the tile that begins at output `tile`, in whole lines.
fn tile_width(outputs: usize, tile: usize) -> usize {
    (outputs - tile).min(TILE).next_multiple_of(LINE)
}

/// One checked product: all that a kernel needs.
struct Task<'a> {
    packed: &'a Packed,
    input: *const f32,
    input_stride: usize,
    rows: usize,
    first: usize,
    last: usize,
    output: *mut f32,
    output_stride: usize,
    begin: Begin,
    relu: bool,
}

/// A block of the output with everything that a micro kernel reads: a slice of the inputs, a few rows, a few
/// lines of outputs.
#[derive(Clone, Copy)]
struct Block {
    /// First input of the first row.
    input: *const f32,
    input_stride: usize,
    /// Weights of the first input and output; the next input's are `weight_stride` further.
    weights: *const f32,
    weight_stride: usize,
    depth: usize,
    bias: *const f32,
    output: *mut f32,
    output_stride: usize,
    /// Number of columns of the block that exist; the rest is padding of the last line.
    columns: usize,
    start: Begin,
    relu: bool,
}

impl Task<'_> {
    /// Cuts the product into blocks of at most `rows_step` rows and `columns_step` outputs. All rows of a
    /// tile's slice come one after the other, while its weights are near. `micro(rows, columns, block)`
    /// computes one block.
    ///
    /// # Safety
    ///
    /// The task's buffers hold what [`Packed::multiply`] checks.
    #[inline]
    unsafe fn for_each_block(
        &self,
        rows_step: usize,
        columns_step: usize,
        micro: impl Fn(usize, usize, Block),
    ) {
        let inputs = self.packed.inputs;
        let weights = self.packed.weights.as_ptr().cast::<f32>();
        let bias = self.packed.bias.as_ptr().cast::<f32>();
        for tile in (self.first..self.last).step_by(TILE) {
            let width = tile_width(self.packed.outputs, tile);
            let mut slice = 0;
            loop {
                let depth = (inputs - slice).min(DEPTH);
                let start = if slice == 0 { self.begin } else { Begin::Output };
                let relu = self.relu && slice + depth == inputs;
                for part in (0..width).step_by(columns_step) {
                    let columns = (width - part).min(columns_step);
                    let existing = (self.last - tile - part).min(columns);
                    for row in (0..self.rows).step_by(rows_step) {
                        let rows = (self.rows - row).min(rows_step);
                        // SAFETY: all of these lie inside the buffers that the caller vouches for.
                        let block = unsafe {
                            Block {
                                input: self.input.add(row * self.input_stride + slice),
                                input_stride: self.input_stride,
                                weights: weights.add(tile * inputs + slice * width + part),
                                weight_stride: width,
                                depth,
                                bias: bias.add(tile + part),
                                output: self.output.add(row * self.output_stride + tile - self.first + part),
                                output_stride: self.output_stride,
                                columns: existing,
                                start,
                                relu,
                            }
                        };
                        micro(rows, columns, block);
                    }
                }
                slice += depth;
                if slice >= inputs {
                    break;
                }
            }
        }
    }
}

crate::vectorised! {
    /// `⟨a, b⟩` in double precision: eight sums side by side, joined in a fixed order.
    ///
    /// A product of two single-precision numbers is exact in double precision. So wider instructions, fused
    /// or not, give the same bits.
    pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
        let mut sums = [0.0_f64; 8];
        let ((a_lines, a_rest), (b_lines, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
        for (x, y) in a_lines.iter().zip(b_lines) {
            for lane in 0..8 {
                sums[lane] += f64::from(x[lane]) * f64::from(y[lane]);
            }
        }
        let rest_sum: f64 = a_rest.iter().zip(b_rest).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        sums.iter().sum::<f64>() + rest_sum
    }
}

/// Calls `micro::<ROWS, LINES>` for the row and line counts of a block.
#[cfg(target_arch = "x86_64")]
macro_rules! dispatch {
    ($micro:ident, $rows:expr, $lines:expr, $block:expr, [$($r:literal),*]) => {
        match ($rows, $lines) {
            $(
                ($r, 1) => $micro::<$r, 1>($block),
                ($r, 2) => $micro::<$r, 2>($block),
                ($r, 3) => $micro::<$r, 3>($block),
                ($r, _) => $micro::<$r, 4>($block),
            )*
            _ => unreachable!("blocks have at most as many rows as were asked for"),
        }
    };
}

/// 64 outputs × 6 rows in 24 of the 32 registers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __mmask16, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_fmadd_ps, _mm512_load_ps,
        _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_ps, _mm512_set1_ps, _mm512_setzero_ps,
    };

    use super::{AHEAD, Begin, Block, LINE, TILE, Task};

    /// # Safety
    ///
    /// As [`Task::for_each_block`]; the processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn run(task: &Task<'_>) {
        // SAFETY: passed on to the caller.
        unsafe {
            task.for_each_block(6, TILE, |rows, columns, block| {
                dispatch!(micro, rows, columns / LINE, block, [1, 2, 3, 4, 5, 6]);
            });
        }
    }

    /// # Safety
    ///
    /// `block` lies inside its task's matrices, with `ROWS` rows and `LINES` lines of columns; the processor
    /// has AVX-512F.
    #[target_feature(enable = "avx512f")]
    unsafe fn micro<const ROWS: usize, const LINES: usize>(block: Block) {
        // SAFETY: masks keep every access to inputs and outputs inside the block's existing columns; weights
        // and bias are padded to whole lines.
        unsafe {
            let mask: [__mmask16; LINES] = std::array::from_fn(|line| {
                let existing = block.columns.saturating_sub(line * LINE).min(LINE);
                ((1_u32 << existing) - 1) as __mmask16
            });
            let mut sums = [[_mm512_setzero_ps(); LINES]; ROWS];
            for row in 0..ROWS {
                for line in 0..LINES {
                    let bias = _mm512_load_ps(block.bias.add(line * LINE));
                    let output = block.output.add(row * block.output_stride).wrapping_add(line * LINE);
                    sums[row][line] = match block.start {
                        Begin::Bias => bias,
                        Begin::Output => _mm512_maskz_loadu_ps(mask[line], output),
                        Begin::OutputPlusBias => {
                            _mm512_add_ps(_mm512_maskz_loadu_ps(mask[line], output), bias)
                        }
                    };
                }
            }
            let mut weights = block.weights;
            for input in 0..block.depth {
                let ahead = weights.wrapping_add(AHEAD * block.weight_stride);
                let mut w = [_mm512_setzero_ps(); LINES];
                for line in 0..LINES {
                    // A prefetch behind the end of the weights does nothing.
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * LINE).cast());
                    w[line] = _mm512_load_ps(weights.add(line * LINE));
                }
                for row in 0..ROWS {
                    let a = _mm512_set1_ps(*block.input.add(row * block.input_stride + input));
                    for line in 0..LINES {
                        sums[row][line] = _mm512_fmadd_ps(a, w[line], sums[row][line]);
                    }
                }
                weights = weights.add(block.weight_stride);
            }
            // `max` returns its second operand for a NaN, so an overflow is not hidden as a zero.
            let floor = _mm512_setzero_ps();
            for row in 0..ROWS {
                for line in 0..LINES {
                    let output = block.output.add(row * block.output_stride).wrapping_add(line * LINE);
                    let sum = sums[row][line];
                    let sum = if block.relu { _mm512_max_ps(floor, sum) } else { sum };
                    _mm512_mask_storeu_ps(output, mask[line], sum);
                }
            }
        }
    }
}

/// 16 outputs × 6 rows in 12 of the 16 registers.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_fmadd_ps, _mm256_load_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_set1_ps,
        _mm256_setzero_ps, _mm256_storeu_ps,
    };

    use super::{Begin, Block, LINE, Task};

    /// # Safety
    ///
    /// As [`Task::for_each_block`]; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run(task: &Task<'_>) {
        // SAFETY: passed on to the caller.
        unsafe {
            task.for_each_block(6, LINE, |rows, _, block| match rows {
                1 => micro::<1>(block),
                2 => micro::<2>(block),
                3 => micro::<3>(block),
                4 => micro::<4>(block),
                5 => micro::<5>(block),
                _ => micro::<6>(block),
            });
        }
    }

    /// # Safety
    ///
    /// `block` lies inside its task's matrices, with `ROWS` rows; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn micro<const ROWS: usize>(block: Block) {
        // SAFETY: rows with less than a whole line of columns go through `edge`, which is a line long;
        // weights and bias are padded to whole lines.
        unsafe {
            let is_whole_line = block.columns == LINE;
            let mut edge = [[0.0_f32; LINE]; ROWS];
            if !is_whole_line && block.start != Begin::Bias {
                for row in 0..ROWS {
                    let output = block.output.add(row * block.output_stride);
                    std::ptr::copy_nonoverlapping(output, edge[row].as_mut_ptr(), block.columns);
                }
            }
            let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
            for row in 0..ROWS {
                let output = if is_whole_line {
                    block.output.add(row * block.output_stride)
                } else {
                    edge[row].as_mut_ptr()
                };
                for half in 0..2 {
                    let bias = _mm256_load_ps(block.bias.add(half * 8));
                    sums[row][half] = match block.start {
                        Begin::Bias => bias,
                        Begin::Output => _mm256_loadu_ps(output.add(half * 8)),
                        Begin::OutputPlusBias => _mm256_add_ps(_mm256_loadu_ps(output.add(half * 8)), bias),
                    };
                }
            }
            let mut weights = block.weights;
            for input in 0..block.depth {
                let w = [_mm256_load_ps(weights), _mm256_load_ps(weights.add(8))];
                for row in 0..ROWS {
                    let a = _mm256_set1_ps(*block.input.add(row * block.input_stride + input));
                    for half in 0..2 {
                        sums[row][half] = _mm256_fmadd_ps(a, w[half], sums[row][half]);
                    }
                }
                weights = weights.add(block.weight_stride);
            }
            // `max` returns its second operand for a NaN, so an overflow is not hidden as a zero.
            let floor = _mm256_setzero_ps();
            for row in 0..ROWS {
                let output = if is_whole_line {
                    block.output.add(row * block.output_stride)
                } else {
                    edge[row].as_mut_ptr()
                };
                for half in 0..2 {
                    let sum = sums[row][half];
                    let sum = if block.relu { _mm256_max_ps(floor, sum) } else { sum };
                    _mm256_storeu_ps(output.add(half * 8), sum);
                }
            }
            if !is_whole_line {
                for row in 0..ROWS {
                    let output = block.output.add(row * block.output_stride);
                    std::ptr::copy_nonoverlapping(edge[row].as_ptr(), output, block.columns);
                }
            }
        }
    }
}

/// Plain loops over one line of outputs and up to four rows, for every other processor. The compiler turns
/// them into the vector instructions of the target (NEON on aarch64).
mod plain {
    use super::{Begin, Block, LINE, Task};

    /// # Safety
    ///
    /// As [`Task::for_each_block`].
    pub(super) unsafe fn run(task: &Task<'_>) {
        // SAFETY: passed on to the caller.
        unsafe {
            task.for_each_block(4, LINE, |rows, _, block| match rows {
                1 => micro::<1>(block),
                2 => micro::<2>(block),
                3 => micro::<3>(block),
                _ => micro::<4>(block),
            });
        }
    }

    /// `a·b + c`, rounded once where the target has such an instruction. In an x86 build without it (the
    /// choice is made when compiling), rounding once would be a slow call into the C library.
    #[inline]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(all(target_arch = "x86_64", not(target_feature = "fma"))) {
            a * b + c
        } else {
            a.mul_add(b, c)
        }
    }

    /// # Safety
    ///
    /// `block` lies inside its task's matrices, with `ROWS` rows.
    unsafe fn micro<const ROWS: usize>(block: Block) {
        // SAFETY: only existing columns of the output are touched; weights and bias are padded to whole
        // lines.
        unsafe {
            let mut sums = [[0.0_f32; LINE]; ROWS];
            for row in 0..ROWS {
                for lane in 0..LINE {
                    let bias = *block.bias.add(lane);
                    let exists = lane < block.columns;
                    let output = if exists && block.start != Begin::Bias {
                        *block.output.add(row * block.output_stride + lane)
                    } else {
                        0.0
                    };
                    sums[row][lane] = match block.start {
                        Begin::Bias => bias,
                        Begin::Output => output,
                        Begin::OutputPlusBias => output + bias,
                    };
                }
            }
            let mut weights = block.weights;
            for input in 0..block.depth {
                let w = &*weights.cast::<[f32; LINE]>();
                for row in 0..ROWS {
                    let a = *block.input.add(row * block.input_stride + input);
                    for lane in 0..LINE {
                        sums[row][lane] = multiply_add(a, w[lane], sums[row][lane]);
                    }
                }
                weights = weights.add(block.weight_stride);
            }
            for row in 0..ROWS {
                for lane in 0..block.columns {
                    let sum = sums[row][lane];
                    // A NaN is not below 0, so an overflow is not hidden as a zero.
                    let sum = if block.relu && sum < 0.0 { 0.0 } else { sum };
                    *block.output.add(row * block.output_stride + lane) = sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes numbers between −1 and 1 without a generator: fractional parts of multiples of the golden ratio.
    fn numbers(count: usize, offset: usize) -> Vec<f32> {
        (0..count)
            .map(|at| (((at + offset) as f64 * 0.618_033_988_749_895).fract() * 2.0 - 1.0) as f32)
            .collect()
    }

    #[test]
    fn every_instruction_set_agrees_with_plain_loops_and_touches_nothing_else() {
        const MARK: f32 = 77.0;
        for (rows, inputs, outputs) in [
            (1, 1, 1),
            (2, 3, 5),
            (5, 7, 16),
            (6, 64, 17),
            (7, 191, 64),
            (13, 193, 65),
            (12, 1025, 130),
            (8, 5, 600),
        ] {
            let (input, weight, bias) =
                (numbers(rows * inputs, 1), numbers(outputs * inputs, 9), numbers(outputs, 5));
            let packed = Packed::new(outputs, inputs, |output, at| weight[output * inputs + at], &bias);
            for begin in [Begin::Bias, Begin::OutputPlusBias] {
                for relu in [false, true] {
                    let mut first: Option<Vec<f32>> = None;
                    for set in Processor::available() {
                        let stride = outputs + 3;
                        let mut output = vec![MARK; rows * stride];
                        let rows_in = RowsRef::new(&input, inputs);
                        let packed = Packed { processor: set, ..packed.clone() };
                        packed.multiply(rows_in, rows, 0..outputs, &mut output, stride, begin, relu);
                        for row in 0..rows {
                            for column in 0..stride {
                                let received = output[row * stride + column];
                                if column >= outputs {
                                    assert_eq!(received, MARK, "{set:?} wrote behind its columns");
                                    continue;
                                }
                                let sum: f64 = (0..inputs)
                                    .map(|at| {
                                        f64::from(input[row * inputs + at])
                                            * f64::from(weight[column * inputs + at])
                                    })
                                    .sum();
                                let sum = sum
                                    + f64::from(bias[column])
                                    + if begin == Begin::Bias { 0.0 } else { f64::from(MARK) };
                                let expected = if relu { sum.max(0.0) } else { sum };
                                let error = (f64::from(received) - expected).abs();
                                assert!(
                                    error < 2e-5 * sum.abs().max(10.0),
                                    "{set:?} {rows}x{inputs}x{outputs}: {received} for {expected}"
                                );
                            }
                        }
                        // The plain path of a build without FMA rounds twice a step; all others agree in
                        // bits.
                        let rounds_once = set != Processor::Plain
                            || cfg!(any(not(target_arch = "x86_64"), target_feature = "fma"));
                        match &first {
                            None => first = Some(output),
                            Some(first) if rounds_once => {
                                assert_eq!(*first, output, "{set:?} gives other bits");
                            }
                            Some(_) => {}
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn some_columns_are_the_same_as_all_of_them() {
        let (rows, inputs, outputs) = (9, 33, 150);
        let (input, weight, bias) =
            (numbers(rows * inputs, 2), numbers(outputs * inputs, 3), numbers(outputs, 4));
        let packed = Packed::new(outputs, inputs, |output, at| weight[output * inputs + at], &bias);
        let rows_in = RowsRef::new(&input, inputs);
        let mut all_outputs = vec![0.0; rows * outputs];
        packed.multiply(rows_in, rows, 0..outputs, &mut all_outputs, outputs, Begin::Bias, false);
        for range in [0..64, 64..128, 128..150, 64..150] {
            let mut part = vec![0.0; rows * range.len()];
            packed.multiply(rows_in, rows, range.clone(), &mut part, range.len(), Begin::Bias, false);
            for row in 0..rows {
                let expected = &all_outputs[row * outputs..][range.clone()];
                assert_eq!(part[row * range.len()..(row + 1) * range.len()], *expected, "{range:?}");
            }
        }
    }

    #[test]
    fn a_relu_keeps_a_nan_visible() {
        for set in Processor::available() {
            let packed = Packed::new(1, 2, |_, _| 1.0, &[0.0]);
            let (input, mut output) = ([f32::INFINITY, f32::NEG_INFINITY], [0.0]);
            let packed = Packed { processor: set, ..packed.clone() };
            packed.multiply(RowsRef::new(&input, 2), 1, 0..1, &mut output, 1, Begin::Bias, true);
            assert!(output[0].is_nan(), "{set:?}");
        }
    }

    #[test]
    fn dots_of_any_length_agree_with_the_plain_sum() {
        for length in 0..40 {
            let a: Vec<f32> = (0..length).map(|i| i as f32 * 0.5 - 3.0).collect();
            let b: Vec<f32> = (0..length).map(|i| 2.0 - i as f32).collect();
            let plain: f64 = a.iter().zip(&b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            assert_eq!(dot(&a, &b), plain);
        }
    }
}
