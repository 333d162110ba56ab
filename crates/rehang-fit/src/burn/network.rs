//! The same network and losses in burn, differentiated automatically.
//!
//! It is the path to other devices, and the twin that the fused passes are compared with: a test loads the same
//! weights into both and asserts that the gradient of every parameter agrees. The formulas are those of
//! [`crate::network`] and [`crate::objectives`]; they are written once more here, in tensors, and nothing is shared
//! but the layout and the random masks.

use burn_tensor::activation::{log_softmax, relu};
use burn_tensor::{Device as BurnDevice, Gradients, Tensor};
use rehang::{HeadKind, Result};

use super::{read, tensor, unit, with_angular_margin};
use crate::adam::{Adam, BETA_1, BETA_2, EPSILON, WeightDecay};
use crate::network::{Dropout, LayerKind, Layout, Source, State};
use crate::network_fit::{
    Batch, Device, LossParameters, NetworkParameters, Snapshot, Stage, Step, Trainer, UncertaintyLoss,
};
use crate::objectives::squared::SquaredScale;

/// Added to a variance before its root is taken.
const VARIANCE_EPSILON: f32 = crate::network::VARIANCE_EPSILON as f32;

/// A trainer on one of burn's devices.
///
/// # Errors
///
/// [`rehang::ErrorKind::MissingFeature`] where this build leaves the device out.
pub(crate) fn trainer(
    layout: &Layout,
    parameters: &NetworkParameters,
    variance: f64,
    snapshot: &Snapshot,
    device: Device,
) -> Result<Box<dyn Trainer>> {
    Ok(Box::new(BurnTrainer::new(layout, parameters, variance, snapshot, super::device(device)?)))
}

/// One tensor of parameters: where it lies in the flat vector, its shape there, and whether it learns.
#[derive(Debug, Clone)]
struct Part {
    begin: usize,
    rows: usize,
    columns: usize,
    /// Whether decoupled decay shrinks it.
    matrix: bool,
    trained: bool,
}

/// The parameters as tensors, in the layout's order: `weight, scale, shift` for a block, `weight, shift` for an
/// output layer, and ψ's weight and bias at the end.
fn parts(layout: &Layout) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |begin, rows, columns, matrix, trained| {
        parts.push(Part { begin, rows, columns, matrix, trained });
    };
    for (number, layer) in layout.layers.iter().enumerate() {
        let trained = Some(number) != layout.skip;
        add(layer.weight.start, layer.outputs, layer.inputs, true, trained);
        for range in [&layer.scale, &layer.shift].into_iter().filter(|range| !range.is_empty()) {
            add(range.start, 1, layer.outputs, false, trained);
        }
    }
    if let Some(range) = &layout.uncertainty {
        let columns = layout.widths.new;
        add(range.start, 1, columns, false, true);
        add(range.start + columns, 1, 1, false, true);
    }
    parts
}

/// Steps by burn.
pub(crate) struct BurnTrainer {
    layout: Layout,
    loss: LossParameters,
    decay: WeightDecay,
    variance: f32,
    device: BurnDevice,
    parts: Vec<Part>,
    values: Vec<Tensor<2>>,
    first: Vec<Tensor<2>>,
    second: Vec<Tensor<2>>,
    steps: u64,
    /// Running mean and variance, one pair for each block.
    running: Vec<(Tensor<2>, Tensor<2>)>,
    /// Head weight `[classes, d]` and bias `[1, classes]`.
    head: Option<(Tensor<2>, Tensor<2>, HeadKind)>,
}

/// What a forward pass leaves for the backward pass.
struct Pass {
    leaves: Vec<Tensor<2>>,
    /// Mean of the objective over the rows.
    total: Tensor<2>,
    /// Sum over the rows of the objective.
    loss: f64,
    running: Vec<(Tensor<2>, Tensor<2>)>,
}

impl BurnTrainer {
    fn new(
        layout: &Layout,
        parameters: &NetworkParameters,
        variance: f64,
        snapshot: &Snapshot,
        device: BurnDevice,
    ) -> Self {
        let parts = parts(layout);
        let rows = |values: &[f32], rows: usize, columns: usize| {
            tensor(&values[..rows * columns], [rows, columns], &device)
        };
        let split = |flat: &[f32]| -> Vec<Tensor<2>> {
            parts.iter().map(|part| rows(&flat[part.begin..], part.rows, part.columns)).collect()
        };
        let running = layout
            .layers
            .iter()
            .filter(|layer| layer.kind == LayerKind::Block)
            .map(|layer| {
                let column = |values: &[f32]| rows(&values[layer.statistics.start..], 1, layer.outputs);
                (column(&snapshot.state.running_mean), column(&snapshot.state.running_variance))
            })
            .collect();
        let head = parameters.loss.frozen_head().map(|head| {
            let (classes, d) = (head.classes(), head.dimension());
            (rows(head.weight().as_slice(), classes, d), rows(head.bias(), 1, classes), head.kind())
        });
        Self {
            values: split(&snapshot.state.parameters),
            first: split(&snapshot.adam.first),
            second: split(&snapshot.adam.second),
            steps: snapshot.adam.steps,
            layout: layout.clone(),
            loss: parameters.loss.clone(),
            decay: parameters.weight_decay,
            variance: variance as f32,
            parts,
            running,
            head,
            device,
        }
    }

    /// Loss of a batch with the graph behind it.
    fn forward(&self, batch: &Batch, step: Step) -> Result<Pass> {
        let rows = batch.rows;
        let leaves: Vec<Tensor<2>> = self
            .values
            .iter()
            .zip(&self.parts)
            .map(|(value, part)| {
                let leaf = value.clone().autodiff();
                if part.trained { leaf.require_grad() } else { leaf }
            })
            .collect();
        let (raw, running) = self.network(batch, step, &leaves);
        let plain = self.plain(batch, raw.clone());
        let a_only = |loss_weight: f32| plain.clone().mul_scalar(loss_weight);
        let (objective, shown) = match self.loss.uncertainty {
            UncertaintyLoss::Off => (plain.clone(), plain.clone()),
            UncertaintyLoss::Joint { loss_weight, log_weight, bound, .. } => {
                let psi = &leaves[leaves.len() - 2..];
                let log_variance = |raw: Tensor<2>| (raw * psi[0].clone()).sum_dim(1) + psi[1].clone();
                let weighed = |log_variance: Tensor<2>, plain: Tensor<2>| {
                    let clamped = guarded(log_variance, &plain, loss_weight, log_weight, bound);
                    clamped.clone().neg().exp() * plain.mul_scalar(loss_weight)
                        + clamped.mul_scalar(log_weight)
                };
                match step.stage {
                    Stage::Joint => {
                        let both = weighed(log_variance(raw), plain.clone());
                        (both.clone(), both)
                    }
                    Stage::WarmUp => {
                        let follows = weighed(log_variance(raw.detach()), plain.clone().detach());
                        (a_only(loss_weight) + follows.clone(), follows)
                    }
                }
            }
        };
        let loss = read(shown.inner())?.into_iter().map(f64::from).sum();
        let total = objective.sum_dim(0).div_scalar(rows as f32);
        Ok(Pass { leaves, total, loss, running })
    }

    /// Raw outputs `[rows, d_new]` and the running statistics after the batch.
    fn network(
        &self,
        batch: &Batch,
        step: Step,
        leaves: &[Tensor<2>],
    ) -> (Tensor<2>, Vec<(Tensor<2>, Tensor<2>)>) {
        let widths = self.layout.widths;
        let rows = batch.rows;
        let old = tensor(&batch.old, [rows, widths.old], &self.device).autodiff();
        let side = widths.side.map(|width| tensor(&batch.side, [rows, width], &self.device).autodiff());
        // A node's columns arrive in the order of its layers, so they are put side by side as they come.
        let mut nodes: Vec<Option<Tensor<2>>> = vec![None; self.layout.nodes.len()];
        let mut running = self.running.clone();
        let (mut next, mut block) = (0, 0);
        for (number, layer) in self.layout.layers.iter().enumerate() {
            let input = match layer.source {
                Source::Old => old.clone(),
                Source::Side => side.clone().unwrap_or_else(|| old.clone()),
                Source::Node(node) => nodes[node].clone().unwrap_or_else(|| old.clone()),
            };
            let product = input.matmul(leaves[next].clone().transpose());
            let output = match layer.kind {
                LayerKind::Output => {
                    next += 2;
                    (product + leaves[next - 1].clone()).mul_scalar(layer.gain)
                }
                LayerKind::Block => {
                    next += 3;
                    block += 1;
                    let (scale, shift) = (leaves[next - 2].clone(), leaves[next - 1].clone());
                    let normalised = normalise(product, &mut running[block - 1], rows, step.live);
                    let active = relu(normalised * scale + shift);
                    match self.mask(step.dropout, number, rows, layer.outputs) {
                        Some(mask) => active * mask,
                        None => active,
                    }
                }
            };
            let target = &mut nodes[layer.target];
            *target = Some(match (target.take(), layer.kind) {
                (None, _) => output,
                (Some(before), LayerKind::Block) => Tensor::cat(vec![before, output], 1),
                (Some(before), LayerKind::Output) => before + output,
            });
        }
        let raw = nodes[self.layout.output].take().unwrap_or(old);
        (raw, running)
    }

    /// The fused passes' own dropout mask, as factors.
    fn mask(&self, dropout: Dropout, layer: usize, rows: usize, columns: usize) -> Option<Tensor<2>> {
        (dropout.rate > 0.0)
            .then(|| tensor(&dropout.factors(layer, rows * columns), [rows, columns], &self.device))
    }

    /// L of every row, `[rows, 1]`.
    fn plain(&self, batch: &Batch, raw: Tensor<2>) -> Tensor<2> {
        let (rows, d) = (batch.rows, self.layout.widths.new);
        let target = tensor(&batch.new, [rows, d], &self.device);
        let squared = match self.loss.squared {
            SquaredScale::MeanOverCoordinates => {
                (raw.clone() - target).square().sum_dim(1).div_scalar(d as f32)
            }
            SquaredScale::RelativeToVariance => {
                (raw.clone() - target).square().sum_dim(1).div_scalar(self.variance)
            }
            SquaredScale::OneMinusCosine => {
                (unit(raw.clone()) * unit(target)).sum_dim(1).neg().add_scalar(1.0)
            }
        };
        let plain = squared.mul_scalar(self.loss.squared_weight);
        let Some((weight, bias, kind)) = &self.head else { return plain };
        let classes = weight.dims()[0];
        let smoothing = match kind {
            HeadKind::Softmax => self.loss.label_smoothing,
            HeadKind::ArcFace { .. } | HeadKind::CosFace { .. } => 0.0,
        };
        // Rows of unknown labels are all zero in both, so they have no discriminative part.
        let (mut wanted, mut is_true) = (vec![0.0; rows * classes], vec![0.0; rows * classes]);
        for (row, &label) in batch.labels.iter().enumerate() {
            if let Some(label) = usize::try_from(label).ok().filter(|&label| label < classes) {
                wanted[row * classes..(row + 1) * classes].fill(smoothing / classes as f32);
                wanted[row * classes + label] += 1.0 - smoothing;
                is_true[row * classes + label] = 1.0;
            }
        }
        let wanted = tensor(&wanted, [rows, classes], &self.device);
        let logits = match *kind {
            HeadKind::Softmax => {
                let seen = if self.loss.on_sphere { unit(raw) } else { raw };
                seen.matmul(weight.clone().transpose()) + bias.clone()
            }
            HeadKind::ArcFace { scale, margin } => {
                let cosines = unit(raw).matmul(weight.clone().transpose()).clamp(-1.0, 1.0);
                let is_true = tensor(&is_true, [rows, classes], &self.device);
                with_angular_margin(&cosines, is_true, margin).mul_scalar(scale)
            }
            HeadKind::CosFace { scale, margin } => {
                let cosines = unit(raw).matmul(weight.clone().transpose()).clamp(-1.0, 1.0);
                let is_true = tensor(&is_true, [rows, classes], &self.device);
                (cosines - is_true.mul_scalar(margin)).mul_scalar(scale)
            }
        };
        let loss = (log_softmax(logits, 1) * wanted).sum_dim(1).neg();
        plain + loss.mul_scalar(self.loss.discriminative_weight)
    }

    /// Adam's update of every trained part.
    fn update(&mut self, leaves: &[Tensor<2>], gradients: &mut Gradients, rate: f64) {
        self.steps += 1;
        let steps = self.steps as f64;
        let rate_now = (rate / (1.0 - f64::from(BETA_1).powf(steps))) as f32;
        let scale = (1.0 / (1.0 - f64::from(BETA_2).powf(steps)).sqrt()) as f32;
        for (number, part) in self.parts.iter().enumerate().filter(|(_, part)| part.trained) {
            let Some(gradient) = leaves[number].grad_remove(gradients) else { continue };
            let value = self.values[number].clone();
            let (gradient, shrink) = match self.decay {
                WeightDecay::Coupled(decay) => (gradient + value.clone().mul_scalar(decay), 1.0),
                WeightDecay::Decoupled(decay) if part.matrix => (gradient, 1.0 - rate as f32 * decay),
                WeightDecay::Decoupled(_) => (gradient, 1.0),
            };
            let first = self.first[number].clone();
            let first = first.clone() + (gradient.clone() - first).mul_scalar(1.0 - BETA_1);
            let second =
                self.second[number].clone().mul_scalar(BETA_2) + gradient.square().mul_scalar(1.0 - BETA_2);
            let step = first.clone().mul_scalar(rate_now)
                / second.clone().sqrt().mul_scalar(scale).add_scalar(EPSILON);
            self.values[number] = value.mul_scalar(shrink) - step;
            (self.first[number], self.second[number]) = (first, second);
        }
    }
}

impl Trainer for BurnTrainer {
    fn step(&mut self, batch: &Batch, step: Step) -> Result<f64> {
        let Pass { leaves, total, loss, running } = self.forward(batch, step)?;
        let mut gradients = total.backward();
        self.update(&leaves, &mut gradients, step.rate);
        if step.live {
            self.running = running;
        }
        Ok(loss)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let count = self.layout.parameter_count;
        let join = |tensors: &[Tensor<2>]| -> Result<Vec<f32>> {
            let mut flat = vec![0.0; count];
            for (part, tensor) in self.parts.iter().zip(tensors) {
                let values = read(tensor.clone())?;
                flat[part.begin..part.begin + values.len()].copy_from_slice(&values);
            }
            Ok(flat)
        };
        let (mut running_mean, mut running_variance) = (Vec::new(), Vec::new());
        for (mean, variance) in &self.running {
            running_mean.extend(read(mean.clone())?);
            running_variance.extend(read(variance.clone())?);
        }
        Ok(Snapshot {
            state: State { parameters: join(&self.values)?, running_mean, running_variance },
            adam: Adam { first: join(&self.first)?, second: join(&self.second)?, steps: self.steps },
        })
    }
}

/// `x̂` of one block, and its running statistics moved on where they are live.
fn normalise(z: Tensor<2>, running: &mut (Tensor<2>, Tensor<2>), rows: usize, live: bool) -> Tensor<2> {
    if !live {
        return (z - running.0.clone()) / running.1.clone().add_scalar(VARIANCE_EPSILON).sqrt();
    }
    let mean = z.clone().mean_dim(0);
    let centred = z - mean.clone();
    let variance = centred.clone().square().mean_dim(0);
    let unbiased = rows as f32 / (rows as f32 - 1.0).max(1.0);
    running.0 = running.0.clone().mul_scalar(0.9) + mean.inner().mul_scalar(0.1);
    running.1 = running.1.clone().mul_scalar(0.9) + variance.clone().inner().mul_scalar(0.1 * unbiased);
    centred / variance.add_scalar(VARIANCE_EPSILON).sqrt()
}

/// `s` clamped to ±`bound`; its gradient passes unless it would push `s` further out (see
/// [`crate::objectives::likelihood`]).
fn guarded(s: Tensor<2>, plain: &Tensor<2>, loss_weight: f32, log_weight: f32, bound: f32) -> Tensor<2> {
    let value = s.clone().inner();
    let clamped = value.clone().clamp(-bound, bound);
    let slope =
        (clamped.clone().neg().exp() * plain.clone().inner()).mul_scalar(-loss_weight).add_scalar(log_weight);
    let below = value.clone().lower_equal_elem(-bound).bool_and(slope.clone().greater_elem(0.0));
    let above = value.clone().greater_equal_elem(bound).bool_and(slope.lower_elem(0.0));
    let free = (below.float() + above.float()).neg().add_scalar(1.0);
    (s - value) * free + clamped
}

#[cfg(test)]
mod tests {
    use rehang::{Head, Matrix};

    use super::*;
    use crate::network::{Architecture, Widths};
    use crate::network_fit::{FusedTrainer, Objective};
    use crate::tests::finite_differences::numbers;

    const WIDTHS: Widths = Widths { old: 9, new: 7, side: None };

    fn batch(rows: usize, side: bool) -> Batch {
        Batch {
            rows,
            old: numbers(rows * WIDTHS.old, 1),
            side: if side { numbers(rows * 3, 2) } else { Vec::new() },
            new: numbers(rows * WIDTHS.new, 3),
            labels: (0..rows as i64).map(|row| row % 6 - 1).collect(),
        }
    }

    fn parameters(loss: LossParameters, architecture: Architecture) -> NetworkParameters {
        NetworkParameters { architecture, loss, ..NetworkParameters::fct() }
    }

    /// Every loss, so that each of its derivatives is compared.
    fn losses() -> Vec<LossParameters> {
        let head = |kind| {
            let weight = Matrix::new(WIDTHS.new, numbers(4 * WIDTHS.new, 5)).unwrap();
            Some(Head::new(weight, Some(numbers(4, 6)), kind).unwrap())
        };
        let base = LossParameters { discriminative_weight: 0.5, ..NetworkParameters::fct().loss };
        let bounded =
            UncertaintyLoss::Joint { loss_weight: 0.5, log_weight: 0.4, bound: 0.2, warm_up_epochs: 0 };
        let arcface = HeadKind::ArcFace { scale: 8.0, margin: 0.4 };
        vec![
            LossParameters { discriminative_weight: 0.0, ..base.clone() },
            LossParameters {
                head: head(HeadKind::Softmax),
                uncertainty: UncertaintyLoss::REFERENCE,
                ..base.clone()
            },
            LossParameters {
                squared: SquaredScale::OneMinusCosine,
                head: head(HeadKind::Softmax),
                on_sphere: true,
                uncertainty: bounded,
                ..base.clone()
            },
            LossParameters {
                squared: SquaredScale::RelativeToVariance,
                head: head(arcface),
                uncertainty: bounded,
                ..base
            },
        ]
    }

    #[test]
    fn every_gradient_of_the_fused_passes_is_that_of_automatic_differentiation() {
        let rows = 33;
        let mixer = Architecture::Mixer { hidden: 20, branch_factor: 2 };
        let residual = Architecture::ResidualMlp { hidden: 16, layers: 2 };
        for loss in losses() {
            for (architecture, side, skip) in
                [(mixer, false, false), (mixer, true, false), (residual, false, true)]
            {
                for (live, rate, stage) in
                    [(true, 0.0, Stage::Joint), (true, 0.25, Stage::WarmUp), (false, 0.25, Stage::Joint)]
                {
                    let widths = Widths { side: side.then_some(3), ..WIDTHS };
                    let uncertain = loss.uncertainty != UncertaintyLoss::Off;
                    let layout = Layout::new(architecture, widths, 0.8, skip, uncertain);
                    let parameters = parameters(loss.clone(), architecture);
                    let mut state = State::initial(&layout, 4);
                    // Away from the initial 0 and 1, where mistakes would not show.
                    for (value, noise) in
                        state.running_mean.iter_mut().zip(numbers(layout.statistics_count, 11))
                    {
                        *value = 0.1 * noise;
                    }
                    for layer in &layout.layers {
                        let scales = &mut state.parameters[layer.scale.clone()];
                        let noise = numbers(scales.len(), 12);
                        scales.iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.3 * noise);
                    }
                    let start = Snapshot { state, adam: Adam::new(layout.parameter_count) };
                    let objective = Objective::new(&loss, 1.9, widths.new, rows);
                    let mut fused = FusedTrainer::new(&layout, &parameters, objective, rows, start.clone());
                    let twin = BurnTrainer::new(&layout, &parameters, 1.9, &start, BurnDevice::flex());
                    let step = Step { rate: 1e-3, live, dropout: Dropout { rate, key: 77 }, stage };
                    let batch = batch(rows, side);
                    let (expected_loss, fused_gradient) = fused.differentiate(&batch, step);
                    let pass = twin.forward(&batch, step).unwrap();
                    assert!((pass.loss - expected_loss).abs() < 1e-3);
                    let mut gradients = pass.total.backward();
                    for (part, leaf) in twin.parts.iter().zip(&pass.leaves).filter(|(part, _)| part.trained) {
                        let expected = read(leaf.grad_remove(&mut gradients).unwrap()).unwrap();
                        let received = &fused_gradient[part.begin..part.begin + expected.len()];
                        let size = expected.iter().fold(1e-4_f32, |size, value| size.max(value.abs()));
                        for (expected, received) in expected.iter().zip(received) {
                            assert!(
                                (expected - received).abs() < 1e-3 * size,
                                "{part:?} of {architecture:?}: {received}, automatically {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn steps_on_burns_device_follow_the_fused_ones() {
        let rows = 40;
        let architecture = Architecture::Mixer { hidden: 20, branch_factor: 2 };
        for decay in [WeightDecay::Coupled(1e-2), WeightDecay::Decoupled(1e-2)] {
            let loss = losses().remove(1);
            let layout = Layout::new(architecture, WIDTHS, 1.0, false, true);
            let parameters =
                NetworkParameters { weight_decay: decay, ..parameters(loss.clone(), architecture) };
            let start =
                Snapshot { state: State::initial(&layout, 4), adam: Adam::new(layout.parameter_count) };
            let objective = Objective::new(&loss, 1.9, WIDTHS.new, rows);
            let mut fused = FusedTrainer::new(&layout, &parameters, objective, rows, start.clone());
            let mut twin = trainer(&layout, &parameters, 1.9, &start, Device::Flex).unwrap();
            for live in [true, true, false] {
                let step = Step { rate: 1e-3, live, dropout: Dropout::NONE, stage: Stage::Joint };
                fused.step(&batch(rows, false), step).unwrap();
                twin.step(&batch(rows, false), step).unwrap();
            }
            let (fused, twin) = (fused.snapshot().unwrap(), twin.snapshot().unwrap());
            let near = |left: &[f32], right: &[f32], tolerance: f32| {
                left.iter().zip(right).all(|(left, right)| (left - right).abs() < tolerance)
            };
            assert!(near(&fused.state.running_mean, &twin.state.running_mean, 1e-4));
            assert!(near(&fused.state.running_variance, &twin.state.running_variance, 1e-4));
            // Adam's first steps go by the sign of the gradient; where that is all but 0, they may differ in full.
            let apart = fused.state.parameters.iter().zip(&twin.state.parameters);
            let apart = apart.filter(|(fused, twin)| (**fused - **twin).abs() > 1e-4).count();
            assert!(apart * 100 < layout.parameter_count, "{apart} of {}", layout.parameter_count);
            assert_eq!(twin.adam.steps, 3);
        }
    }
}
