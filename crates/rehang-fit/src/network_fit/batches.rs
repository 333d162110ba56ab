//! Which pairs a step sees, and what is done to them before.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang::{Matrix, Pairs};

use super::NetworkParameters;
use crate::network::{Inputs, Preparation};

/// Pairs as the network sees them: old vectors and side information prepared, new vectors as they are.
#[derive(Debug, Clone)]
pub(crate) struct Data<'a> {
    pub old: Matrix,
    pub side: Option<Matrix>,
    pub new: &'a Matrix,
    /// One label a pair; −1 for all where there are none.
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
    /// Copies the named pairs.
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

    /// Mixes and blurs the batch as the parameters say.
    ///
    /// Mixup (Zhang et al. 2018): row i becomes `λ·row i + (1 − λ)·row j`, inputs and targets alike, with j from a
    /// permutation and `λ ~ Beta(α, α)` turned so that row i keeps at least half.
    pub(crate) fn disturb(&mut self, parameters: &NetworkParameters, generator: &mut ChaCha8Rng) {
        if parameters.mixup > 0.0 && self.rows > 1 {
            let partners = permutation(self.rows, generator);
            let shares: Vec<f32> = (0..self.rows)
                .map(|_| {
                    let share = beta(parameters.mixup, generator);
                    share.max(1.0 - share) as f32
                })
                .collect();
            for rows in [&mut self.old, &mut self.side, &mut self.new] {
                let width = rows.len() / self.rows;
                let before = rows.clone();
                for (row, (&partner, &share)) in partners.iter().zip(&shares).enumerate() {
                    for column in 0..width {
                        let at = row * width + column;
                        rows[at] = share * before[at] + (1.0 - share) * before[partner * width + column];
                    }
                }
            }
        }
        if parameters.input_noise > 0.0 {
            for value in self.old.iter_mut().chain(&mut self.side) {
                *value += parameters.input_noise * normal(generator);
            }
        }
    }
}

/// The generator of one epoch: a stream of its own, so that a resumed fit needs to know the epoch only.
pub(crate) fn epoch_generator(seed: u64, epoch: usize) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    // Stream 0 drew the initial weights.
    generator.set_stream(1 + epoch as u64);
    generator
}

/// `0..count` in random order (Fisher and Yates).
pub(crate) fn permutation(count: usize, generator: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, generator.random_range(0..=last as u64) as usize);
    }
    order
}

/// Cuts an epoch into steps. BatchNorm has no variance over one row, so a single pair left over joins the step before.
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

/// A draw from Beta(α, α) for α in (0, 1] (Jöhnk 1964).
fn beta(alpha: f64, generator: &mut ChaCha8Rng) -> f64 {
    loop {
        let first = generator.random::<f64>().powf(1.0 / alpha);
        let second = generator.random::<f64>().powf(1.0 / alpha);
        // Both powers underflow to 0 for a tiny α; such a draw decides nothing and is drawn again.
        if first + second > 0.0 && first + second <= 1.0 {
            return first / (first + second);
        }
    }
}

/// A draw from the standard normal distribution (Box and Muller 1958).
fn normal(generator: &mut ChaCha8Rng) -> f32 {
    let radius = (-2.0 * (1.0 - generator.random::<f64>()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * generator.random::<f64>()).cos()) as f32
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
    fn draws_have_the_right_moments() {
        let mut generator = epoch_generator(1, 0);
        let n = 20_000;
        let normals: Vec<f64> = (0..n).map(|_| f64::from(normal(&mut generator))).collect();
        let mean = normals.iter().sum::<f64>() / f64::from(n);
        let variance = normals.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04);
        // Beta(α, α) has mean ½ and variance 1/(4·(2α + 1)).
        let betas: Vec<f64> = (0..n).map(|_| beta(0.4, &mut generator)).collect();
        let mean = betas.iter().sum::<f64>() / f64::from(n);
        let variance = betas.iter().map(|x| (x - 0.5).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 7.2).abs() < 0.01);
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
