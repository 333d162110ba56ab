//! Schedules the learning rate over the time of a fit.

/// Pace at which the learning rate goes from its warm-up to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// One rate for a whole epoch (the published recipe): `rate·(e + 1)/w` in the `w` epochs of warm-up, then
    /// `rate·(1 + cos(π·(e − w)/(E − w)))/2`, with epochs `e` counted from 0 and `E` of them.
    Epoch,
    /// A new rate with every step, by the same formula with time measured in epochs and fractions of them.
    Step,
}

/// Schedule of the learning rate: linear warm-up, then half a cosine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Schedule {
    /// Largest rate.
    pub rate: f64,
    /// Number of epochs of the whole fit.
    pub epochs: usize,
    /// Number of epochs of warm-up.
    pub warm_up_epochs: f64,
    /// Pace at which the rate changes.
    pub pace: Pace,
}

impl Schedule {
    /// Returns the rate of step `step` (of `steps`) in epoch `epoch`, all counted from 0.
    pub(crate) fn rate(&self, epoch: usize, step: usize, steps: usize) -> f64 {
        let unit = match self.pace {
            Pace::Epoch => 1.0,
            Pace::Step => 1.0 / steps.max(1) as f64,
        };
        let time = epoch as f64 + if self.pace == Pace::Step { step as f64 * unit } else { 0.0 };
        if time < self.warm_up_epochs {
            return self.rate * ((time + unit) / self.warm_up_epochs).min(1.0);
        }
        let epochs_left = self.epochs as f64 - self.warm_up_epochs;
        if epochs_left <= 0.0 {
            return self.rate;
        }
        0.5 * (1.0 + (std::f64::consts::PI * (time - self.warm_up_epochs) / epochs_left).cos()) * self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_schedule_warms_up_in_fifths_and_ends_near_zero() {
        let schedule = Schedule { rate: 5e-4, epochs: 80, warm_up_epochs: 5.0, pace: Pace::Epoch };
        assert!((schedule.rate(0, 3, 9) - 1e-4).abs() < 1e-12);
        assert!((schedule.rate(4, 0, 9) - 5e-4).abs() < 1e-12);
        assert!((schedule.rate(5, 0, 9) - 5e-4).abs() < 1e-12);
        // Half-way between epoch 5 and epoch 80 the cosine stands at one half.
        let between = 0.5 * (schedule.rate(42, 0, 9) + schedule.rate(43, 0, 9));
        assert!((between - 2.5e-4).abs() < 1e-8);
        assert!(schedule.rate(79, 0, 9) < 3e-7);
    }

    #[test]
    fn a_rate_per_step_never_jumps() {
        let schedule = Schedule { rate: 1.0, epochs: 10, warm_up_epochs: 0.5, pace: Pace::Step };
        let rates: Vec<f64> = (0..200).map(|t| schedule.rate(t / 20, t % 20, 20)).collect();
        assert!(rates.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 0.11));
        assert!(rates[0] > 0.0 && rates[199] < 1e-3);
    }
}
