//! Evaluates the network and its loss in loops of `f64` that one can believe by looking. The gradients of the
//! fused passes are compared with differences of these, parameter by parameter.

use std::ops::Range;

use rehang_core::{Head, HeadKind, Matrix};

use super::{
    Batch, LossParameters, NetworkParameters, Objective, Snapshot, Stage, Step, Trainer, UncertaintyLoss,
};
use crate::adam::{Adam, WeightDecay};
use crate::network::{Architecture, Dropout, LayerKind, Layout, Source, State, VARIANCE_EPSILON, Widths};
use crate::objectives::squared::SquaredScale;
use crate::tests::finite_differences::numbers;

const WIDTHS: Widths = Widths { old: 9, new: 7, side: None };

/// Total variance of the new vectors.
const VARIANCE: f64 = 1.9;

/// Inputs of the loops that stay the same however the parameters move.
struct Reference<'a> {
    layout: &'a Layout,
    loss: &'a LossParameters,
    batch: &'a Batch,
    step: Step,
    /// Running statistics, where those of the batch are not live.
    state: &'a State,
}

/// Loss and uncertainty of one row of a batch.
struct Row {
    /// Loss L before uncertainty.
    plain: f64,
    /// Log variance s = log σ²; 0 without ψ.
    log_variance: f64,
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

fn length(row: &[f64]) -> f64 {
    dot(row, row).sqrt()
}

impl Reference<'_> {
    /// Computes raw outputs row by row, and mean and variance of every column before `BatchNorm`.
    fn outputs(&self, parameters: &[f64]) -> (Vec<Vec<f64>>, Vec<(f64, f64)>) {
        let (rows, widths) = (self.batch.rows, self.layout.widths);
        let split =
            |values: &[f32], width: usize| -> Vec<Vec<f64>> { values.chunks(width).map(wide).collect() };
        let old = split(&self.batch.old, widths.old);
        let side = split(&self.batch.side, widths.side.unwrap_or(1));
        let mut nodes = vec![vec![Vec::new(); rows]; self.layout.nodes.len()];
        let mut moments = Vec::new();
        for (number, layer) in self.layout.layers.iter().enumerate() {
            let input = match layer.source {
                Source::Old => &old,
                Source::Side => &side,
                Source::Node(node) => &nodes[node],
            };
            let weight = &parameters[layer.weight.clone()];
            let mut z: Vec<Vec<f64>> = input
                .iter()
                .map(|row| weight.chunks(layer.inputs).map(|weight| dot(weight, row)).collect())
                .collect();
            let shift = &parameters[layer.shift.clone()];
            if layer.kind == LayerKind::Output {
                for (row, out) in z.iter().zip(&mut nodes[layer.target]) {
                    out.resize(layer.outputs, 0.0);
                    for ((out, z), shift) in out.iter_mut().zip(row).zip(shift) {
                        *out += f64::from(layer.gain) * (z + shift);
                    }
                }
                continue;
            }
            let scale = &parameters[layer.scale.clone()];
            let dropout_factors = self.step.dropout.factors(number, rows * layer.outputs);
            for column in 0..layer.outputs {
                let mean = z.iter().map(|row| row[column]).sum::<f64>() / rows as f64;
                let variance = z.iter().map(|row| (row[column] - mean).powi(2)).sum::<f64>() / rows as f64;
                moments.push((mean, variance));
                let place = layer.statistics.start + column;
                let (mean, variance) = if self.step.live {
                    (mean, variance)
                } else {
                    (self.state.running_mean[place].into(), self.state.running_variance[place].into())
                };
                for (number, row) in z.iter_mut().enumerate() {
                    let normalised = (row[column] - mean) / (variance + VARIANCE_EPSILON).sqrt();
                    let active = (scale[column] * normalised + shift[column]).max(0.0);
                    row[column] = active * f64::from(dropout_factors[number * layer.outputs + column]);
                }
            }
            // Outputs of layers that write to one node stand side by side, in their order.
            nodes[layer.target].iter_mut().zip(z).for_each(|(out, row)| out.extend(row));
        }
        (nodes.swap_remove(self.layout.output), moments)
    }

    /// Computes L of a row.
    fn plain(&self, raw: &[f64], number: usize) -> f64 {
        let d = self.layout.widths.new;
        let target = wide(&self.batch.new[number * d..(number + 1) * d]);
        let squares = raw.iter().zip(&target).map(|(h, v)| (h - v).powi(2)).sum::<f64>();
        let squared = match self.loss.squared {
            SquaredScale::Sum => squares,
            SquaredScale::MeanOverCoordinates => squares / d as f64,
            SquaredScale::RelativeToVariance => squares / VARIANCE,
            SquaredScale::OneMinusCosine => 1.0 - dot(raw, &target) / (length(raw) * length(&target)),
        };
        let plain = f64::from(self.loss.squared_weight) * squared;
        let Some(head) = self.loss.head.as_ref().filter(|_| self.loss.discriminative_weight > 0.0) else {
            return plain;
        };
        let label = usize::try_from(self.batch.labels[number]).ok();
        let Some(label) = label.filter(|&label| label < head.classes()) else { return plain };
        let rows = (0..head.classes()).map(|class| wide(head.weight().row(class)));
        let cosine = |row: &[f64]| dot(raw, row) / (length(raw) * length(row));
        let logits: Vec<f64> = rows
            .enumerate()
            .map(|(class, row)| match head.kind() {
                HeadKind::Softmax => {
                    let divisor = if self.loss.on_sphere { length(raw) } else { 1.0 };
                    dot(raw, &row) / divisor + f64::from(head.bias()[class])
                }
                HeadKind::CosFace { scale, margin } => {
                    let margin = if class == label { margin } else { 0.0 };
                    f64::from(scale) * (cosine(&row) - f64::from(margin))
                }
                HeadKind::ArcFace { scale, margin } => {
                    let (angle, margin) = (cosine(&row).acos(), f64::from(margin));
                    let beyond = angle >= std::f64::consts::PI - margin;
                    f64::from(scale)
                        * match (class == label, beyond) {
                            (false, _) => angle.cos(),
                            (true, false) => (angle + margin).cos(),
                            (true, true) => angle.cos() - margin * margin.sin(),
                        }
                }
            })
            .collect();
        let smoothing = match head.kind() {
            HeadKind::Softmax => f64::from(self.loss.label_smoothing),
            HeadKind::ArcFace { .. } | HeadKind::CosFace { .. } => 0.0,
        };
        let total = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let mean = logits.iter().map(|logit| total - logit).sum::<f64>() / logits.len() as f64;
        let loss = (1.0 - smoothing) * (total - logits[label]) + smoothing * mean;
        plain + f64::from(self.loss.discriminative_weight) * loss
    }

    fn rows(&self, parameters: &[f64]) -> Vec<Row> {
        let (outputs, _) = self.outputs(parameters);
        let row = |(number, raw): (usize, &Vec<f64>)| {
            let log_variance = self.layout.uncertainty.clone().map_or(0.0, |range| {
                let psi = &parameters[range];
                dot(&psi[..raw.len()], raw) + psi[raw.len()]
            });
            Row { plain: self.plain(raw, number), log_variance }
        };
        outputs.iter().enumerate().map(row).collect()
    }

    /// Sums over the batch the loss that is shown, or, in a warm-up, the loss that h learns from.
    ///
    /// `start` are the rows before any parameter moved. Where s is beyond its bound and its loss would push
    /// it further out it is held there; where the loss asks for it back it is free.
    fn sum(&self, parameters: &[f64], start: &[Row], of_h: bool) -> f64 {
        let rows = self.rows(parameters);
        let UncertaintyLoss::Joint { loss_weight, log_weight, bound, .. } = self.loss.uncertainty else {
            return rows.iter().map(|row| row.plain).sum();
        };
        let [a, b, bound] = [loss_weight, log_weight, bound].map(f64::from);
        let weighed = |(row, start): (&Row, &Row)| {
            if of_h && self.step.stage == Stage::WarmUp {
                return a * row.plain;
            }
            let held = start.log_variance.clamp(-bound, bound);
            let slope = b - a * (-held).exp() * start.plain;
            let outwards =
                (start.log_variance <= -bound && slope > 0.0) || (start.log_variance >= bound && slope < 0.0);
            let s = held + if outwards { 0.0 } else { row.log_variance - start.log_variance };
            a * (-s).exp() * row.plain + b * s
        };
        rows.iter().zip(start).map(weighed).sum()
    }
}

/// Lists the place of each tensor of parameters that learns.
fn parts(layout: &Layout) -> Vec<Range<usize>> {
    let layers = layout.layers.iter().enumerate().filter(|(number, _)| Some(*number) != layout.skip);
    let places = layers.flat_map(|(_, layer)| [&layer.weight, &layer.scale, &layer.shift]);
    places.chain(&layout.uncertainty).filter(|range| !range.is_empty()).cloned().collect()
}

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

/// Lists every loss, so that each of its derivatives is compared.
fn losses() -> Vec<LossParameters> {
    let head = |kind| {
        let weight = Matrix::new(WIDTHS.new, numbers(4 * WIDTHS.new, 5)).unwrap();
        Some(Head::new(weight, Some(numbers(4, 6)), kind).unwrap())
    };
    let base = LossParameters { discriminative_weight: 0.5, ..NetworkParameters::fct().loss };
    let bounded = UncertaintyLoss::Joint { loss_weight: 0.5, log_weight: 0.4, bound: 0.2, warm_up_epochs: 0 };
    let cosines = |kind| LossParameters {
        squared: SquaredScale::RelativeToVariance,
        head: head(kind),
        uncertainty: bounded,
        ..base.clone()
    };
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
        cosines(HeadKind::ArcFace { scale: 8.0, margin: 0.4 }),
        cosines(HeadKind::CosFace { scale: 8.0, margin: 0.4 }),
    ]
}

fn trainer(layout: &Layout, parameters: &NetworkParameters, rows: usize, start: &Snapshot) -> Trainer {
    let objective = Objective::new(&parameters.loss, VARIANCE, layout.widths.new, rows);
    Trainer::new(layout, parameters, objective, rows, start.clone())
}

#[test]
fn every_gradient_agrees_with_finite_differences_of_the_loops() {
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
                let mut state = State::initial(&layout, 4);
                // Values away from the initial 0 and 1 show mistakes.
                for (value, noise) in state.running_mean.iter_mut().zip(numbers(layout.statistics_count, 11))
                {
                    *value = 0.1 * noise;
                }
                for layer in &layout.layers {
                    let scales = &mut state.parameters[layer.scale.clone()];
                    let noise = numbers(scales.len(), 12);
                    scales.iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.3 * noise);
                }
                let start = Snapshot { state, adam: Adam::new(layout.parameter_count) };
                let mut trainer = trainer(&layout, &parameters(loss.clone(), architecture), rows, &start);
                let step = Step { rate: 1e-3, live, dropout: Dropout { rate, key: 77 }, stage };
                let batch = batch(rows, side);
                let (total, gradient) = trainer.differentiate(&batch, step);
                let gradient = wide(gradient);

                let state = &start.state;
                let reference = Reference { layout: &layout, loss: &loss, batch: &batch, step, state };
                let mut at = wide(&state.parameters);
                let before = reference.rows(&at);
                let expected = reference.sum(&at, &before, false);
                assert!((total - expected).abs() < 1e-3, "{architecture:?}: {total} for {expected}");
                for range in parts(&layout) {
                    let of_h = Some(&range) != layout.uncertainty.as_ref();
                    let mut slope = |direction: &[(usize, f64)]| {
                        let mut moved = |step: f64| {
                            for &(index, along) in direction {
                                at[index] += step * along;
                            }
                            let sum = reference.sum(&at, &before, of_h) / rows as f64;
                            for &(index, along) in direction {
                                at[index] -= step * along;
                            }
                            sum
                        };
                        (moved(1e-6) - moved(-1e-6)) / 2e-6
                    };
                    let size =
                        gradient[range.clone()].iter().fold(1e-4_f64, |size, value| size.max(value.abs()));
                    // Some parameters are compared one by one, and all of them together.
                    for index in range.clone().step_by(range.len().div_ceil(3)) {
                        let (received, expected) = (gradient[index], slope(&[(index, 1.0)]));
                        assert!(
                            (expected - received).abs() < 1e-3 * size,
                            "{index} in {range:?} of {architecture:?}: {received}, by differences {expected}"
                        );
                    }
                    let along: Vec<(usize, f64)> =
                        range.clone().zip(wide(&numbers(range.len(), 13))).collect();
                    let received: f64 = along.iter().map(|&(index, along)| gradient[index] * along).sum();
                    let all: f64 = along.iter().map(|&(index, along)| (gradient[index] * along).abs()).sum();
                    let expected = slope(&along);
                    assert!(
                        (expected - received).abs() < 1e-3 * all.max(1e-4),
                        "{range:?} of {architecture:?}: {received}, by differences {expected}"
                    );
                }
                if live {
                    let (_, moments) = reference.outputs(&at);
                    let after = &trainer.snapshot().state;
                    let unbiased = rows as f64 / (rows as f64 - 1.0);
                    let moved = |before: f32, batch: f64| 0.9 * f64::from(before) + 0.1 * batch;
                    for (place, (mean, variance)) in moments.into_iter().enumerate() {
                        let mean = moved(state.running_mean[place], mean);
                        let variance = moved(state.running_variance[place], unbiased * variance);
                        assert!((f64::from(after.running_mean[place]) - mean).abs() < 1e-5);
                        assert!((f64::from(after.running_variance[place]) - variance).abs() < 1e-5);
                    }
                }
            }
        }
    }
}

#[test]
fn a_step_is_that_of_adam_on_the_gradient_and_the_skip_stays() {
    let rows = 40;
    let architecture = Architecture::ResidualMlp { hidden: 16, layers: 2 };
    for decay in [WeightDecay::Coupled(1e-2), WeightDecay::Decoupled(1e-2)] {
        let layout = Layout::new(architecture, WIDTHS, 1.0, true, true);
        let parameters =
            NetworkParameters { weight_decay: decay, ..parameters(losses().remove(1), architecture) };
        let start = Snapshot { state: State::initial(&layout, 4), adam: Adam::new(layout.parameter_count) };
        let mut trained = trainer(&layout, &parameters, rows, &start);
        let mut w = wide(&start.state.parameters);
        let (mut first, mut second) = (vec![0.0; w.len()], vec![0.0; w.len()]);
        for (count, live) in [(1, true), (2, true), (3, false)] {
            let rate = 1e-3;
            let step = Step { rate, live, dropout: Dropout::NONE, stage: Stage::Joint };
            let batch = batch(rows, false);
            let gradient = {
                let mut twin = trainer(&layout, &parameters, rows, trained.snapshot());
                wide(twin.differentiate(&batch, step).1)
            };
            trained.step(&batch, step);
            for range in parts(&layout) {
                let is_matrix = layout.layers.iter().any(|layer| layer.weight == range);
                for index in range {
                    let (gradient, shrink) = match decay {
                        WeightDecay::Coupled(decay) => (gradient[index] + f64::from(decay) * w[index], 1.0),
                        WeightDecay::Decoupled(decay) if is_matrix => {
                            (gradient[index], 1.0 - rate * f64::from(decay))
                        }
                        WeightDecay::Decoupled(_) => (gradient[index], 1.0),
                    };
                    first[index] = 0.9 * first[index] + 0.1 * gradient;
                    second[index] = 0.999 * second[index] + 0.001 * gradient * gradient;
                    let mean = first[index] / (1.0 - 0.9_f64.powi(count));
                    let deviation = (second[index] / (1.0 - 0.999_f64.powi(count))).sqrt();
                    w[index] = w[index] * shrink - rate * mean / (deviation + 1e-8);
                }
            }
            let Snapshot { state, adam } = trained.snapshot();
            assert_eq!(adam.steps, count as u64);
            for (received, expected) in state.parameters.iter().zip(&w) {
                assert!((f64::from(*received) - expected).abs() < 1e-5, "{received} for {expected}");
            }
        }
    }
}
