//! Shared things of tasks: slices that several of them write, and buffers.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Slice of which tasks write parts that do not overlap, where those parts are not simply its chunks.
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

    /// Gives a part of the slice.
    ///
    /// # Safety
    ///
    /// No two parts that are alive at a time may overlap.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that parts do not overlap")]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the range lies inside the slice, and by the caller's promise no other part that is alive
        // overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Buffers that convolutions use one after the other, each as large as the largest needs it.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    /// Weights or their gradient in another order.
    pub weights: Vec<f32>,
    /// Numbers of a part of a batch that all threads read.
    pub shared: Vec<f32>,
    /// Sums of gradients.
    pub sums: Vec<f32>,
}

/// Gives `length` numbers of a buffer that grows as needed; what they hold at first is arbitrary.
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
    // Taken out, so that `work` may ask for more scratch (and then gets fresh memory) without a double
    // borrow.
    let mut scratch = SCRATCH.take();
    let result = work(grown(&mut scratch, length));
    SCRATCH.set(scratch);
    result
}
