//! Runs a fit epoch by epoch for `bench/fit`, from weights and in an order that another program can repeat.

use rehang_core::{Pairs, Progress, Result};

use super::batches::{Data, epoch_generator, permutation};
use super::run::{Fit, run_epoch};
use super::trainer::Trainer;
use super::{Batch, NetworkParameters, Objective, Snapshot};

/// A fit that is run epoch by epoch on the CPU.
pub struct EpochByEpoch<'a> {
    parameters: NetworkParameters,
    data: Data<'a>,
    initial: Snapshot,
    trainer: Trainer,
    batch: Batch,
}

impl<'a> EpochByEpoch<'a> {
    /// Prepares a fit before its first step.
    pub fn new(pairs: &'a Pairs, parameters: NetworkParameters) -> Result<Self> {
        parameters.check_with(pairs, None)?;
        let fit = Fit::new(pairs, &parameters)?;
        let data = Data::new(pairs, &fit.old, fit.side.as_ref());
        let initial = fit.initial(&parameters);
        let capacity = (parameters.batch + 1).min(data.len());
        let objective = Objective::new(&parameters.loss, fit.variance, fit.layout.widths.new, capacity);
        let trainer = Trainer::new(&fit.layout, &parameters, objective, capacity, initial.clone());
        Ok(Self { parameters, data, initial, trainer, batch: Batch::default() })
    }

    /// Returns the initial parameters, layer after layer: weight, then BatchNorm's weight and bias or the
    /// layer's bias.
    pub fn initial_parameters(&self) -> &[f32] {
        &self.initial.state.parameters
    }

    /// Returns the order of the pairs in an epoch.
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        permutation(self.data.len(), &mut epoch_generator(self.parameters.seed, epoch))
    }

    /// Runs an epoch and returns its mean loss.
    pub fn epoch(&mut self, epoch: usize) -> Result<f64> {
        let progress = Progress::default();
        run_epoch(&mut self.trainer, &self.parameters, &self.data, &mut self.batch, epoch, &progress)
    }
}
