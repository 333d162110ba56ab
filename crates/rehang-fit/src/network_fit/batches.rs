//! Batches: which pairs a step sees, and how they are prepared.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::{Matrix, Pairs};

use crate::network::{Inputs, Preparation};

/// Pairs as the network sees them: old vectors and side information prepared, new vectors as they are.
#[derive(Debug, Clone)]
pub(crate) struct Data<'a> {
    pub old: Matrix,
    pub side: Option<Matrix>,
    pub new: &'a Matrix,
    /// Label of every pair; −1 for all where there are none.
    pub labels: Vec<i64>,
}

impl<'a> Data<'a> {
    pub(crate) fn new(pairs: &'a Pairs, old: &Preparation, side: Option<&Preparation>) -> Self {
        Self {
            old: old.apply(pairs.old().matrix()),
            side: side.zip(pairs.side()).map(|(preparation, side)| preparation.apply(side)),
            new: pairs.new_vectors().matrix(),
            labels: pairs.labels().map_or_else(|| vec![-1; pairs.len()], <[i64]>::to_vec),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.new.rows()
    }
}

/// The pairs of one step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    pub rows: usize,
    pub old: Vec<f32>,
    pub side: Vec<f32>,
    pub new: Vec<f32>,
    pub labels: Vec<i64>,
}

impl Batch {
    /// Copies the named pairs into the batch.
    pub(crate) fn gather(&mut self, data: &Data<'_>, indices: &[usize]) {
        fn copy(rows: &Matrix, indices: &[usize], out: &mut Vec<f32>) {
            out.clear();
            for &index in indices {
                out.extend_from_slice(rows.row(index));
            }
        }
        self.rows = indices.len();
        copy(&data.old, indices, &mut self.old);
        copy(data.new, indices, &mut self.new);
        if let Some(side) = &data.side {
            copy(side, indices, &mut self.side);
        }
        self.labels.clear();
        self.labels.extend(indices.iter().map(|&index| data.labels[index]));
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs { old: &self.old, side: &self.side }
    }
}

/// Returns the generator of one epoch: a stream of its own, so that a resumed fit needs to know the epoch
/// only.
pub(crate) fn epoch_generator(seed: u64, epoch: usize) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    // Stream 0 drew the initial weights.
    generator.set_stream(1 + epoch as u64);
    generator
}

/// Returns `0..count` in random order (Fisher and Yates).
pub(crate) fn permutation(count: usize, generator: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, generator.random_range(0..=last as u64) as usize);
    }
    order
}

/// Cuts an epoch into steps. BatchNorm has no variance over one row, so a single pair left over joins the
/// step before.
pub(crate) fn steps(order: &[usize], batch: usize) -> Vec<&[usize]> {
    let mut steps: Vec<&[usize]> = order.chunks(batch).collect();
    if steps.len() > 1 && steps.last().is_some_and(|last| last.len() == 1) {
        steps.pop();
        let begin = (steps.len() - 1) * batch;
        if let Some(last) = steps.last_mut() {
            *last = &order[begin..];
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_pair_left_over_joins_the_step_before() {
        let order: Vec<usize> = (0..9).collect();
        let lengths = |batch| steps(&order, batch).iter().map(|step| step.len()).collect::<Vec<_>>();
        assert_eq!(lengths(4), [4, 5]);
        assert_eq!(lengths(5), [5, 4]);
        assert_eq!(lengths(8), [9]);
        assert_eq!(lengths(20), [9]);
        assert_eq!(steps(&order, 4).concat(), order);
    }

    #[test]
    fn a_permutation_holds_every_index_once_and_epochs_differ() {
        let first = permutation(100, &mut epoch_generator(3, 0));
        let second = permutation(100, &mut epoch_generator(3, 1));
        assert_ne!(first, second);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(first, permutation(100, &mut epoch_generator(3, 0)));
    }
}
