//! Matrix products by one thread, and the two helpers that let many tasks share buffers.
//!
//! Passes cut a batch into tasks of fixed size and every task multiplies alone: panels of one convolution are too
//! small to be worth cutting further, and the bits of a result cannot depend on how many threads there are.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use gemm::{Parallelism, gemm};

/// A matrix inside a slice: element (r, c) lies at `r·row_step + c·column_step`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    row_step: usize,
    column_step: usize,
}

impl<'a> Matrix<'a> {
    /// Rows begin `step` numbers after each other.
    pub(super) fn rows(data: &'a [f32], step: usize) -> Self {
        Self { data, row_step: step, column_step: 1 }
    }

    /// Columns begin `step` numbers after each other.
    pub(super) fn columns(data: &'a [f32], step: usize) -> Self {
        Self { data, row_step: 1, column_step: step }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        (rows - 1) * self.row_step + (columns - 1) * self.column_step < self.data.len()
    }
}

/// `out[rows, columns] = left[rows, depth] · right[depth, columns]`, added to `out` where `accumulate`; rows of `out`
/// begin `step` numbers after each other. `threads` of the current pool work on it; one is right inside a task.
pub(super) fn multiply(
    (rows, columns, depth): (usize, usize, usize),
    (out, step): (&mut [f32], usize),
    left: Matrix<'_>,
    right: Matrix<'_>,
    accumulate: bool,
    threads: usize,
) {
    if rows == 0 || columns == 0 || depth == 0 {
        assert!(depth > 0 || accumulate, "a product over nothing");
        return;
    }
    assert!(columns <= step && (rows - 1) * step + columns <= out.len());
    assert!(left.holds(rows, depth) && right.holds(depth, columns));
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: all three matrices lie inside their slices by the assertions above; `out` is borrowed mutably, its rows
    // do not overlap, and it overlaps neither operand.
    unsafe {
        gemm(
            rows,
            columns,
            depth,
            out.as_mut_ptr(),
            1,
            step as isize,
            accumulate,
            left.data.as_ptr(),
            left.column_step as isize,
            left.row_step as isize,
            right.data.as_ptr(),
            right.column_step as isize,
            right.row_step as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A slice of which tasks write parts that do not overlap, where those parts are not simply its chunks.
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are only given out by `part`, whose caller promises that no two of them overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// A part of the slice.
    ///
    /// # Safety
    ///
    /// No two parts that are alive at a time may overlap.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that parts do not overlap")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range lies inside the slice, and by the caller's promise no other part that is alive overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Buffers that convolutions use one after the other, each as large as the largest needs it.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    /// Weights or their gradient in another order.
    pub weights: Vec<f32>,
    /// What all threads read of a part of a batch.
    pub shared: Vec<f32>,
    /// Sums of gradients.
    pub sums: Vec<f32>,
}

/// `length` numbers of a buffer that grows as needed; what they hold at first is arbitrary.
pub(super) fn grown(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with `length` numbers of this thread's own; what they hold at first is arbitrary.
pub(super) fn with_scratch<R>(length: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    // Taken out, so that `work` may ask for more scratch (and then gets fresh memory) without a double borrow.
    let mut scratch = SCRATCH.take();
    let result = work(grown(&mut scratch, length));
    SCRATCH.set(scratch);
    result
}
