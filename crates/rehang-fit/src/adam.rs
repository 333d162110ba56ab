//! Adam, in one pass over the parameters.
//!
//! With gradient `g`, parameter `w`, step `t` counted from 1:
//!
//! ```text
//! coupled decay:    g ← g + decay·w                 (the published recipe; PyTorch's Adam)
//! decoupled decay:  w ← w − rate·decay·w            (AdamW)
//! m ← β₁·m + (1 − β₁)·g        v ← β₂·v + (1 − β₂)·g²
//! w ← w − rate / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)
//! ```
//!
//! β₁ = 0.9, β₂ = 0.999, ε = 1e-8, as PyTorch has them.

use std::ops::Range;

use rayon::prelude::*;
use rehang_core::vectorised;

/// Factor by which the mean of the gradient keeps its value at each step.
const BETA_1: f32 = 0.9;
/// Factor by which the mean of the squared gradient keeps its value at each step.
const BETA_2: f32 = 0.999;
/// Number that is added to the root of the second moment.
const EPSILON: f32 = 1e-8;

/// Number of parameters that one task updates; it is fixed, so that results do not depend on the number of
/// threads.
const CHUNK: usize = 1 << 15;

/// Way in which weights are pulled towards zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightDecay {
    /// `decay·w` is added to the gradient of every parameter, BatchNorm and biases included (the published
    /// recipe).
    Coupled(f32),
    /// Weight matrices shrink by `rate·decay` a step, whatever their gradient; biases and BatchNorm do not
    /// (AdamW).
    Decoupled(f32),
}

/// A part of the parameters that is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Places of the parameters in the flat vector.
    pub range: Range<usize>,
    /// Whether the group is a weight matrix (decoupled decay shrinks matrices only).
    pub matrix: bool,
}

/// The running moments of Adam, one pair for each parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Adam {
    /// Running mean of the gradient.
    pub first: Vec<f32>,
    /// Running mean of the squared gradient.
    pub second: Vec<f32>,
    /// Number of steps done.
    pub steps: u64,
}

impl Adam {
    /// Returns moments at zero for `count` parameters.
    pub fn new(count: usize) -> Self {
        Self { first: vec![0.0; count], second: vec![0.0; count], steps: 0 }
    }

    /// Takes one step on the parameters of `groups`; all others stay as they are.
    pub fn step(
        &mut self,
        groups: &[Group],
        parameters: &mut [f32],
        gradient: &[f32],
        rate: f64,
        decay: WeightDecay,
    ) {
        self.steps += 1;
        let steps = self.steps as f64;
        let first_correction = 1.0 - f64::from(BETA_1).powf(steps);
        let second_correction = (1.0 - f64::from(BETA_2).powf(steps)).sqrt();
        for group in groups {
            let (coupled, shrink) = match decay {
                WeightDecay::Coupled(decay) => (decay, 1.0),
                WeightDecay::Decoupled(decay) if group.matrix => (0.0, 1.0 - rate * f64::from(decay)),
                WeightDecay::Decoupled(_) => (0.0, 1.0),
            };
            let factors = Factors {
                coupled,
                shrink: shrink as f32,
                rate: (rate / first_correction) as f32,
                scale: (1.0 / second_correction) as f32,
            };
            let range = group.range.clone();
            parameters[range.clone()]
                .par_chunks_mut(CHUNK)
                .zip(self.first[range.clone()].par_chunks_mut(CHUNK))
                .zip(self.second[range.clone()].par_chunks_mut(CHUNK))
                .zip(gradient[range].par_chunks(CHUNK))
                .for_each(|(((parameters, first), second), gradient)| {
                    update(parameters, first, second, gradient, factors);
                });
        }
    }
}

/// Factors of one step that all parameters of a group share.
#[derive(Clone, Copy)]
struct Factors {
    coupled: f32,
    shrink: f32,
    rate: f32,
    scale: f32,
}

vectorised! {
    fn update(parameters: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32], factors: Factors) {
        let moments = first.iter_mut().zip(second.iter_mut());
        for ((parameter, (first, second)), &gradient) in parameters.iter_mut().zip(moments).zip(gradient) {
            let gradient = gradient + factors.coupled * *parameter;
            *first += (1.0 - BETA_1) * (gradient - *first);
            *second = BETA_2 * *second + (1.0 - BETA_2) * (gradient * gradient);
            let step = factors.rate * *first / (second.sqrt() * factors.scale + EPSILON);
            *parameter = *parameter * factors.shrink - step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with PyTorch 2.15: `Adam([w], lr=0.1, weight_decay=0.01)` from (1, −2) with gradients (0.5,
    /// −1), (0.25, 3).
    #[test]
    fn coupled_decay_steps_as_pytorch_does() {
        let mut adam = Adam::new(2);
        let mut w = vec![1.0, -2.0];
        let groups = [Group { range: 0..2, matrix: true }];
        adam.step(&groups, &mut w, &[0.5, -1.0], 0.1, WeightDecay::Coupled(0.01));
        // In the first step m/√v is the sign of the gradient, whatever its size.
        assert!((w[0] - 0.9).abs() < 1e-6 && (w[1] + 1.9).abs() < 1e-6);
        adam.step(&groups, &mut w, &[0.25, 3.0], 0.1, WeightDecay::Coupled(0.01));
        assert!((w[0] - 0.806_555).abs() < 1e-6 && (w[1] + 1.948_727).abs() < 1e-6);
    }

    #[test]
    fn decoupled_decay_shrinks_matrices_only_and_frozen_parameters_stay() {
        let mut adam = Adam::new(3);
        let mut w = vec![1.0, 1.0, 1.0];
        let groups = [Group { range: 0..1, matrix: true }, Group { range: 1..2, matrix: false }];
        adam.step(&groups, &mut w, &[0.0; 3], 0.1, WeightDecay::Decoupled(0.5));
        assert_eq!(w, [0.95, 1.0, 1.0]);
    }
}
