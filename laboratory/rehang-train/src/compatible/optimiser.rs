//! Stochastic gradient descent and Adam on the parts of a model, and the rates of the papers.

use rehang_fit::adam::{Adam, Group, WeightDecay};
use serde::{Deserialize, Serialize};

/// Kind of optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum OptimiserKind {
    /// `u ← momentum·u + (g + decay·w)`, `w ← w − rate·u`, as PyTorch's SGD (BCT, DMU).
    Sgd {
        /// Momentum, 0 or more and below 1; the papers use 0.9.
        #[serde(default = "usual_momentum")]
        momentum: f32,
    },
    /// Adam with β = (0.9, 0.999), ε = 1e-8 and coupled decay, as PyTorch's Adam (RACT).
    Adam {},
}

fn usual_momentum() -> f32 {
    0.9
}

/// Course of the learning rate over the epochs, after a linear warm-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum RateSchedule {
    /// Half a cosine from the full rate to zero (DMU).
    Cosine {},
    /// The rate times `factor` at each of the epochs (RACT: 30 and 60 of 90, a tenth; BCT: 8, 12, 14 of 16).
    Steps {
        /// Epochs at which the rate falls, counted from 0.
        at: Vec<usize>,
        /// Factor that the rate is multiplied by, above 0.
        #[serde(default = "a_tenth")]
        factor: f64,
    },
    /// Constant rate.
    Constant {},
}

fn a_tenth() -> f64 {
    0.1
}

impl RateSchedule {
    /// Computes the rate of a step; `time` is measured in epochs and fractions of them.
    ///
    /// ```
    /// use rehang_train::compatible::RateSchedule;
    ///
    /// let steps = RateSchedule::Steps { at: vec![30, 60], factor: 0.1 };
    /// assert_eq!(steps.rate(0.01, 90, 0.0, 29.9), 0.01);
    /// assert!((steps.rate(0.01, 90, 0.0, 60.0) - 0.0001).abs() < 1e-12);
    /// assert!((RateSchedule::Cosine {}.rate(0.1, 30, 1.0, 0.5) - 0.05).abs() < 1e-12);
    /// assert!(RateSchedule::Cosine {}.rate(0.1, 30, 1.0, 29.99) < 1e-6);
    /// ```
    pub fn rate(&self, rate: f64, epochs: usize, warm_up_epochs: f64, time: f64) -> f64 {
        if time < warm_up_epochs {
            return rate * (time / warm_up_epochs).max(1e-3);
        }
        match self {
            Self::Constant {} => rate,
            Self::Steps { at, factor } => {
                rate * factor.powi(at.iter().filter(|&&epoch| time >= epoch as f64).count() as i32)
            }
            Self::Cosine {} => {
                let rest = (epochs as f64 - warm_up_epochs).max(f64::MIN_POSITIVE);
                0.5 * rate * (1.0 + (std::f64::consts::PI * (time - warm_up_epochs) / rest).cos())
            }
        }
    }
}

/// Running state of an optimiser on one part of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Moments {
    Sgd { momentum: f32, velocity: Vec<f32> },
    Adam(Adam),
}

impl Moments {
    pub(crate) fn new(kind: OptimiserKind, count: usize) -> Self {
        match kind {
            OptimiserKind::Sgd { momentum } => Self::Sgd { momentum, velocity: vec![0.0; count] },
            OptimiserKind::Adam {} => Self::Adam(Adam::new(count)),
        }
    }

    /// Takes one step on all parameters of the part; decay is added to the gradient of every one of them.
    pub(crate) fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f64, decay: f32) {
        match self {
            Self::Sgd { momentum, velocity } => {
                let rate = rate as f32;
                for ((parameter, velocity), &gradient) in
                    parameters.iter_mut().zip(velocity.iter_mut()).zip(gradient)
                {
                    *velocity = *momentum * *velocity + (gradient + decay * *parameter);
                    *parameter -= rate * *velocity;
                }
            }
            Self::Adam(adam) => {
                let groups = [Group { range: 0..parameters.len(), matrix: true }];
                adam.step(&groups, parameters, gradient, rate, WeightDecay::Coupled(decay));
            }
        }
    }

    /// Gives the running vectors, one or two.
    pub(crate) fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        match self {
            Self::Sgd { velocity, .. } => vec![velocity],
            Self::Adam(adam) => vec![&mut adam.first, &mut adam.second],
        }
    }

    /// Gives the number of steps that are counted, where the optimiser counts them.
    pub(crate) fn steps(&mut self) -> Option<&mut u64> {
        match self {
            Self::Sgd { .. } => None,
            Self::Adam(adam) => Some(&mut adam.steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of PyTorch 2.15: `SGD([w], lr=0.1, momentum=0.9, weight_decay=0.01)` from (1, −2) with
    /// gradients (0.5, −1), (0.25, 3): velocities 0.51, −1.02 and 0.7185…, 2.0613….
    #[test]
    fn momentum_steps_as_pytorch_does() {
        let mut moments = Moments::new(OptimiserKind::Sgd { momentum: 0.9 }, 2);
        let mut w = vec![1.0, -2.0];
        moments.step(&mut w, &[0.5, -1.0], 0.1, 0.01);
        assert!((w[0] - 0.949).abs() < 1e-6 && (w[1] + 1.898).abs() < 1e-6);
        moments.step(&mut w, &[0.25, 3.0], 0.1, 0.01);
        assert!((w[0] - (0.949 - 0.1 * (0.459 + 0.25 + 0.00949))).abs() < 1e-6);
        assert!((w[1] - (-1.898 - 0.1 * (-0.918 + 3.0 - 0.01898))).abs() < 1e-6);
    }
}
