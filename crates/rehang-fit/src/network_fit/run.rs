//! Runs the training loop.

use std::path::Path;

use rehang_core::adapter::Uncertainty;
use rehang_core::{Error, ErrorKind, Matrix, Pairs, Progress, Result};

use super::batches::{Data, epoch_generator, permutation, steps};
use super::checkpoint::{self, Checkpoint};
use super::{
    Batch, EpochLoss, FittedNetwork, NetworkParameters, Objective, Snapshot, Stage, Step, Trainer,
    UncertaintyLoss,
};
use crate::adam::Adam;
use crate::linear_algebra::column_means;
use crate::network::{Architecture, Dropout, Layout, Preparation, State, Widths, Workspace, fold};
use crate::objectives::squared::{SquaredScale, total_variance};
use crate::schedule::Schedule;

/// Fits a network to pairs: old `[n, d_old]` (and side `[n, d_side]`) → new `[n, d_new]`.
///
/// `held_out` pairs are looked at after every epoch, for the history and for the early stop; they are never
/// learned from. With side information in `pairs`, a mixer network reads it in its second branch; a residual
/// network ignores it.
///
/// With a `checkpoint` path the state is written there every [`NetworkParameters::checkpoint_every`] epochs,
/// and a fit that finds one goes on from it. Once the fit is done the file stays; the caller removes it.
///
/// # Errors
///
/// [`ErrorKind::WidthMismatch`] and [`ErrorKind::MissingInput`] for a head, a skip, labels, held-out pairs or
/// side information that do not fit; [`ErrorKind::InvalidOption`] for fewer than two pairs, or for new
/// vectors that are all equal where the loss is relative to their variance; [`ErrorKind::Diverged`] with the
/// step (counted from 0) at which the loss left the finite numbers (the last checkpoint is kept);
/// [`ErrorKind::Corrupt`] and [`ErrorKind::InvalidOption`] for a checkpoint that is damaged or of another
/// fit; [`ErrorKind::Cancelled`] where `progress` was told to cancel.
pub fn fit_network(
    pairs: &Pairs,
    held_out: Option<&Pairs>,
    parameters: &NetworkParameters,
    progress: &Progress,
    checkpoint: Option<&Path>,
) -> Result<FittedNetwork> {
    parameters.check_with(pairs, held_out)?;
    let fit = Fit::new(pairs, parameters)?;
    let data = Data::new(pairs, &fit.old, fit.side.as_ref());
    let identity = checkpoint::identity(pairs, held_out, parameters);
    let held_out = held_out.map(|held_out| Data::new(held_out, &fit.old, fit.side.as_ref()));
    let mut progress_so_far = match checkpoint {
        Some(path) if path.exists() => checkpoint::read(path, &identity, &fit.layout)?,
        _ => Checkpoint::new(fit.initial(parameters)),
    };
    progress.begin("fitting", "epochs", parameters.epochs as u64);
    progress.advance(progress_so_far.history.len() as u64);
    train(&fit, parameters, &data, held_out.as_ref(), &mut progress_so_far, progress, checkpoint, &identity)?;

    let last = progress_so_far.history.len() - 1;
    let (state, best_epoch) = match progress_so_far.best {
        Some((state, epoch)) if parameters.early_stop.is_some() => (state, epoch),
        _ => (progress_so_far.snapshot.state, last),
    };
    // The loss of the last step says nothing about what that step did to the weights.
    if !state.parameters.iter().chain(&state.running_variance).all(|value| value.is_finite()) {
        let steps =
            (last + 1) * steps(&permutation(data.len(), &mut epoch_generator(0, 0)), parameters.batch).len();
        return Err(ErrorKind::Diverged { what: "the weights".into(), step: steps }.into());
    }
    let psi = fit.layout.uncertainty.clone().map(|range| {
        let (weight, bias) = state.parameters[range].split_at(fit.layout.widths.new);
        Uncertainty::Linear { weight: weight.to_vec(), bias: bias[0] }
    });
    let mut map = fold(&fit.layout, &state, &fit.old, fit.side.as_ref())?;
    // The skip did not learn; into standardised coordinates and back would cost a rounding.
    map.skip.clone_from(&parameters.skip);
    Ok(FittedNetwork { map, psi, history: progress_so_far.history, best_epoch })
}

/// Parts of a fit that are fixed from its first step to its last.
pub(crate) struct Fit {
    pub layout: Layout,
    pub old: Preparation,
    pub side: Option<Preparation>,
    pub variance: f64,
    mean: Vec<f32>,
}

impl Fit {
    pub(crate) fn new(pairs: &Pairs, parameters: &NetworkParameters) -> Result<Self> {
        let new = pairs.new_vectors().matrix();
        let variance = total_variance(new);
        let relative = parameters.loss.squared == SquaredScale::RelativeToVariance || parameters.standardise;
        // Equal rows leave a rounding error of their mean behind.
        let square = new.norms().iter().map(|norm| norm * norm).sum::<f64>() / new.rows() as f64;
        if relative && variance <= 1e-12 * square {
            return Err(Error::option("new vectors", "all equal", "vectors that differ"));
        }
        let with_side = matches!(parameters.architecture, Architecture::Mixer { .. });
        let side = pairs.side().filter(|_| with_side);
        let prepare = |scaling, rows: &Matrix| {
            if parameters.standardise {
                Preparation::measured(scaling, rows)
            } else {
                Preparation::scaling_only(scaling)
            }
        };
        let widths =
            Widths { old: pairs.old().dimension(), new: new.columns(), side: side.map(Matrix::columns) };
        let gain = if parameters.standardise { (variance / widths.new as f64).sqrt() as f32 } else { 1.0 };
        let with_uncertainty = parameters.loss.uncertainty != UncertaintyLoss::Off;
        let with_skip = parameters.skip.is_some();
        Ok(Self {
            layout: Layout::new(parameters.architecture, widths, gain, with_skip, with_uncertainty),
            old: prepare(parameters.input, pairs.old().matrix()),
            side: side.map(|side| prepare(rehang_core::adapter::InputScaling::AsIs, side)),
            variance,
            mean: column_means(new).into_iter().map(|mean| mean as f32).collect(),
        })
    }

    /// Returns the state before the first step.
    pub(crate) fn initial(&self, parameters: &NetworkParameters) -> Snapshot {
        let mut state = State::initial(&self.layout, parameters.seed);
        let last = &self.layout.layers[self.layout.mixer.end - 1];
        if let Architecture::ResidualMlp { .. } = parameters.architecture {
            state.parameters[last.weight.clone()].fill(0.0);
            state.parameters[last.shift.clone()].fill(0.0);
        }
        if parameters.standardise && parameters.skip.is_none() {
            for (bias, &mean) in state.parameters[last.shift.clone()].iter_mut().zip(&self.mean) {
                *bias = mean / last.gain;
            }
        }
        if let (Some(skip), Some(number)) = (&parameters.skip, self.layout.skip) {
            let layer = &self.layout.layers[number];
            let entered = self.old.enter(skip);
            state.parameters[layer.weight.clone()].copy_from_slice(entered.weight.as_slice());
            state.parameters[layer.shift.clone()].copy_from_slice(&entered.bias);
        }
        if let (Some(range), UncertaintyLoss::Joint { warm_up_epochs, .. }) =
            (&self.layout.uncertainty, parameters.loss.uncertainty)
            && warm_up_epochs > 0
        {
            // With a warm-up ψ starts from "every item alike" instead of PyTorch's random layer.
            state.parameters[range.clone()].fill(0.0);
        }
        let adam = Adam::new(self.layout.parameter_count);
        Snapshot { state, adam }
    }
}

/// Runs the epochs that are left, and leaves the end state in `so_far`.
fn train(
    fit: &Fit,
    parameters: &NetworkParameters,
    data: &Data<'_>,
    held_out: Option<&Data<'_>>,
    so_far: &mut Checkpoint,
    progress: &Progress,
    checkpoint: Option<&Path>,
    identity: &str,
) -> Result<()> {
    if so_far.is_finished(parameters) {
        return Ok(());
    }
    let capacity = (parameters.batch + 1).min(data.len());
    let objective = Objective::new(&parameters.loss, fit.variance, fit.layout.widths.new, capacity);
    let mut trainer =
        Trainer::new(&fit.layout, parameters, objective.clone(), capacity, so_far.snapshot.clone());
    let mut evaluation = held_out.map(|held_out| Evaluation {
        data: held_out,
        workspace: Workspace::new(&fit.layout, capacity),
        objective,
        batch: Batch::default(),
    });
    let mut batch = Batch::default();
    while !so_far.is_finished(parameters) {
        let epoch = so_far.history.len();
        let training = run_epoch(&mut trainer, parameters, data, &mut batch, epoch, progress)?;
        let mut line = EpochLoss { training, held_out: None };
        if let Some(evaluation) = &mut evaluation {
            let mut state = trainer.snapshot().state.clone();
            let loss = evaluation.mean_loss(&fit.layout, &mut state);
            line.held_out = Some(loss);
            if parameters.early_stop.is_some() && so_far.is_better(loss) {
                so_far.best = Some((state, epoch));
            }
        }
        so_far.history.push(line);
        let done = so_far.is_finished(parameters);
        let write = checkpoint.filter(|_| done || (epoch + 1).is_multiple_of(parameters.checkpoint_every));
        if done || write.is_some() {
            so_far.snapshot = trainer.snapshot().clone();
        }
        if let Some(path) = write {
            checkpoint::write(path, identity, so_far)?;
        }
        progress.note(match line.held_out {
            Some(held_out) => format!("loss {:.5}, held out {held_out:.5}", line.training),
            None => format!("loss {:.5}", line.training),
        });
        progress.advance(1);
    }
    Ok(())
}

/// Runs all steps of one epoch. Returns the mean of the loss that was minimised.
pub(crate) fn run_epoch(
    trainer: &mut Trainer,
    parameters: &NetworkParameters,
    data: &Data<'_>,
    batch: &mut Batch,
    epoch: usize,
    progress: &Progress,
) -> Result<f64> {
    let schedule = Schedule {
        rate: parameters.learning_rate,
        epochs: parameters.epochs,
        warm_up_epochs: parameters.warm_up_epochs,
        pace: parameters.pace,
    };
    let warm_up = match parameters.loss.uncertainty {
        UncertaintyLoss::Joint { warm_up_epochs, .. } => warm_up_epochs,
        UncertaintyLoss::Off => 0,
    };
    let mut generator = epoch_generator(parameters.seed, epoch);
    let order = permutation(data.len(), &mut generator);
    let steps = steps(&order, parameters.batch);
    let mut sum = 0.0;
    for (number, indices) in steps.iter().enumerate() {
        progress.check()?;
        batch.gather(data, indices);
        let step_number = epoch * steps.len() + number;
        let step = Step {
            rate: schedule.rate(epoch, number, steps.len()),
            live: epoch < parameters.freeze_statistics_from,
            dropout: Dropout {
                rate: parameters.dropout,
                key: parameters.seed ^ ((step_number as u64) << 20),
            },
            stage: if epoch < warm_up { Stage::WarmUp } else { Stage::Joint },
        };
        let loss = trainer.step(batch, step);
        if !loss.is_finite() {
            return Err(ErrorKind::Diverged { what: "the loss".into(), step: step_number }.into());
        }
        sum += loss;
    }
    Ok(sum / data.len() as f64)
}

/// Held-out pairs, and the buffers that measure them.
struct Evaluation<'a> {
    data: &'a Data<'a>,
    workspace: Workspace,
    objective: Objective,
    batch: Batch,
}

impl Evaluation<'_> {
    /// Returns the mean of L over the pairs, with running statistics and without dropout.
    fn mean_loss(&mut self, layout: &Layout, state: &mut State) -> f64 {
        let order: Vec<usize> = (0..self.data.len()).collect();
        let capacity = self.workspace.capacity();
        let mut sum = 0.0;
        for indices in order.chunks(capacity) {
            self.batch.gather(self.data, indices);
            self.workspace.forward(layout, state, self.batch.inputs(), indices.len(), false, Dropout::NONE);
            let (outputs, gradient) = self.workspace.output_and_gradient(layout);
            let values = self.objective.plain(outputs, &self.batch.new, &self.batch.labels, gradient);
            sum += values.iter().map(|&value| f64::from(value)).sum::<f64>();
        }
        sum / self.data.len() as f64
    }
}
