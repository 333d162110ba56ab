//! Loss of a batch: its parts put together, and their derivative with respect to the raw outputs.

use std::ops::Range;

use rayon::prelude::*;
use rehang_core::{Head, HeadKind};

use super::parameters::{LossParameters, UncertaintyLoss};
use crate::network::product::{self, Window};
use crate::objectives::arcface::{arcface_row, cosface_row};
use crate::objectives::cross_entropy::cross_entropy_row;
use crate::objectives::likelihood::weigh;
use crate::objectives::squared::squared_error;
use crate::objectives::unit::{through_unit, unit_rows};

/// Stage of a fit: whether ψ only follows, or counts in the loss of h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// h learns from the plain loss; ψ, where there is one, follows without touching h.
    WarmUp,
    /// h learns from the whole of equation (5), and so from ψ too.
    Joint,
}

/// Loss of a batch with its buffers, for batches of up to a fixed number of rows.
#[derive(Debug, Clone)]
pub(crate) struct Objective {
    parameters: LossParameters,
    /// Total variance of the new vectors of the pairs.
    variance: f64,
    d: usize,
    head: Option<Head>,
    values: Vec<f32>,
    unit: Vec<f32>,
    unit_gradient: Vec<f32>,
    norms: Vec<f32>,
    logits: Vec<f32>,
}

impl Objective {
    pub(crate) fn new(parameters: &LossParameters, variance: f64, d: usize, capacity: usize) -> Self {
        let head = parameters.frozen_head();
        let wide = if head.is_some() { capacity * d } else { 0 };
        let logits = head.as_ref().map_or(0, |head| head.classes() * capacity);
        Self {
            parameters: parameters.clone(),
            variance,
            d,
            head,
            values: vec![0.0; capacity],
            unit: vec![0.0; wide],
            unit_gradient: vec![0.0; wide],
            norms: vec![0.0; capacity],
            logits: vec![0.0; logits],
        }
    }

    /// Computes L of every row (before uncertainty) and its derivative with respect to the raw output,
    /// `[rows, d]`.
    ///
    /// Rows are the first `labels.len()` (or `targets.len()/d`) of `outputs`.
    pub(crate) fn plain(
        &mut self,
        outputs: &[f32],
        targets: &[f32],
        labels: &[i64],
        gradient: &mut [f32],
    ) -> &[f32] {
        let d = self.d;
        let rows = targets.len() / d;
        let (outputs, gradient) = (&outputs[..rows * d], &mut gradient[..rows * d]);
        gradient.fill(0.0);
        let values = &mut self.values[..rows];
        values.fill(0.0);
        if self.parameters.squared_weight > 0.0 {
            let (scale, weight) = (self.parameters.squared, self.parameters.squared_weight);
            squared_error(outputs, targets, d, scale, self.variance, weight, values, gradient);
        }
        let Some(head) = &self.head else { return &self.values[..rows] };
        let (kind, classes, head_weight) = (head.kind(), head.classes(), head.weight().as_slice());
        let on_sphere = self.parameters.on_sphere || kind.scale().is_some();
        let head_inputs: &[f32] = if on_sphere {
            unit_rows(outputs, d, &mut self.unit, &mut self.norms);
            &self.unit[..rows * d]
        } else {
            outputs
        };
        let (wide, tall) = (Window::dense(d), Window::dense(classes));
        product::forward(rows, (head_inputs, wide), head_weight, (&mut self.logits, tall), 1.0, false);
        let smoothing = self.parameters.label_smoothing;
        let weight = self.parameters.discriminative_weight;
        self.logits[..rows * classes]
            .par_chunks_exact_mut(classes)
            .zip(values.par_iter_mut())
            .zip(&labels[..rows])
            .with_min_len(32)
            .for_each(|((logits, value), &label)| {
                let Some(label) = usize::try_from(label).ok().filter(|&label| label < classes) else {
                    logits.fill(0.0);
                    return;
                };
                let loss = match kind {
                    HeadKind::Softmax => {
                        for (logit, &bias) in logits.iter_mut().zip(head.bias()) {
                            *logit += bias;
                        }
                        cross_entropy_row(logits, label, smoothing)
                    }
                    HeadKind::ArcFace { scale, margin } => arcface_row(logits, label, scale, margin),
                    HeadKind::CosFace { scale, margin } => cosface_row(logits, label, scale, margin),
                };
                *value += (f64::from(weight) * loss) as f32;
            });
        if on_sphere {
            let unit_gradient = &mut self.unit_gradient;
            product::input_gradient(
                rows,
                (&self.logits, tall),
                head_weight,
                (unit_gradient, wide),
                weight,
                false,
            );
            through_unit(&self.unit[..rows * d], &self.norms, unit_gradient, d, gradient);
        } else {
            product::input_gradient(rows, (&self.logits, tall), head_weight, (gradient, wide), weight, true);
        }
        &self.values[..rows]
    }

    /// Sums the objective over a batch. It writes the derivative of its mean with respect to the raw outputs
    /// into `gradient`.
    ///
    /// `uncertainty` is ψ, where it is trained: its parameters `[d + 1]`, weight and bias, and the place for
    /// the derivative with respect to them.
    pub(crate) fn evaluate(
        &mut self,
        outputs: &[f32],
        targets: &[f32],
        labels: &[i64],
        stage: Stage,
        uncertainty: Option<(&[f32], &mut [f32])>,
        gradient: &mut [f32],
    ) -> f64 {
        let d = self.d;
        let rows = targets.len() / d;
        self.plain(outputs, targets, labels, gradient);
        let values = &self.values[..rows];
        let share = 1.0 / rows as f32;
        let (UncertaintyLoss::Joint { loss_weight, log_weight, bound, .. }, Some((psi, psi_gradient))) =
            (self.parameters.uncertainty, uncertainty)
        else {
            gradient[..rows * d].iter_mut().for_each(|value| *value *= share);
            return values.iter().map(|&value| f64::from(value)).sum();
        };
        let mut objective = 0.0;
        let mut sums = vec![0.0_f64; d + 1];
        for ((output, gradient), &value) in
            outputs.chunks_exact(d).zip(gradient.chunks_exact_mut(d)).zip(values)
        {
            let weighed = weigh(value, log_variance(psi, output), loss_weight, log_weight, bound);
            let pull = weighed.log_variance_slope * share;
            let (factor, through) = match stage {
                Stage::WarmUp => (loss_weight * share, 0.0),
                Stage::Joint => (weighed.loss_slope * share, pull),
            };
            objective += weighed.value;
            for (coordinate, gradient) in gradient.iter_mut().enumerate() {
                *gradient = factor * *gradient + through * psi[coordinate];
                sums[coordinate] += f64::from(pull) * f64::from(output[coordinate]);
            }
            sums[d] += f64::from(pull);
        }
        for (gradient, sum) in psi_gradient.iter_mut().zip(sums) {
            *gradient = sum as f32;
        }
        objective
    }
}

/// Computes `s = ⟨ψ, h⟩ + β` of one raw output; ψ is `[d + 1]` with β last.
pub(crate) fn log_variance(psi: &[f32], output: &[f32]) -> f32 {
    let product: f64 = psi.iter().zip(output).map(|(&psi, &output)| f64::from(psi) * f64::from(output)).sum();
    (product + f64::from(psi[output.len()])) as f32
}

/// Borrows ψ's parameters and the place of their gradient out of the flat vectors; `None` without ψ.
pub(crate) fn uncertainty_of<'a>(
    range: Option<&Range<usize>>,
    parameters: &'a [f32],
    gradient: &'a mut [f32],
) -> Option<(&'a [f32], &'a mut [f32])> {
    range.map(|range| (&parameters[range.clone()], &mut gradient[range.clone()]))
}

#[cfg(test)]
mod tests {
    use rehang_core::Head;

    use rehang_core::Matrix;

    use super::*;
    use crate::objectives::squared::SquaredScale;
    use crate::tests::finite_differences::{check, numbers};

    fn head(kind: HeadKind, d: usize, classes: usize) -> Head {
        let weight = Matrix::new(d, numbers(d * classes, 21)).unwrap();
        Head::new(weight, Some(numbers(classes, 22)), kind).unwrap()
    }

    #[test]
    fn the_whole_objective_agrees_with_finite_differences() {
        let (d, rows, classes) = (5, 4, 3);
        let labels = [0, 2, -1, 7];
        let targets = numbers(rows * d, 31);
        let outputs = numbers(rows * d, 32);
        let psi = numbers(d + 1, 33);
        let heads = [
            HeadKind::Softmax,
            HeadKind::ArcFace { scale: 4.0, margin: 0.3 },
            HeadKind::CosFace { scale: 4.0, margin: 0.3 },
        ];
        for kind in heads {
            for on_sphere in [false, true] {
                for uncertainty in [UncertaintyLoss::Off, UncertaintyLoss::REFERENCE] {
                    let parameters = LossParameters {
                        squared: SquaredScale::RelativeToVariance,
                        squared_weight: 0.8,
                        discriminative_weight: 0.6,
                        head: Some(head(kind, d, classes)),
                        label_smoothing: 0.1,
                        on_sphere,
                        uncertainty,
                    };
                    let mut objective = Objective::new(&parameters, 1.7, d, rows);
                    let mut run = |outputs: &[f32], psi: &[f32]| -> (f64, Vec<f32>, Vec<f32>) {
                        let (mut gradient, mut psi_gradient) = (vec![0.0; rows * d], vec![0.0; d + 1]);
                        let loss = objective.evaluate(
                            outputs,
                            &targets,
                            &labels,
                            Stage::Joint,
                            Some((psi, &mut psi_gradient)),
                            &mut gradient,
                        );
                        (loss / rows as f64, gradient, psi_gradient)
                    };
                    let (_, gradient, psi_gradient) = run(&outputs, &psi);
                    check(&outputs, &gradient, 2e-3, |at| run(at, &psi).0);
                    check(&psi, &psi_gradient, 2e-3, |at| run(&outputs, at).0);
                }
            }
        }
    }

    #[test]
    fn unknown_labels_have_no_discriminative_part() {
        let parameters = LossParameters {
            squared: SquaredScale::MeanOverCoordinates,
            squared_weight: 0.0,
            discriminative_weight: 1.0,
            head: Some(head(HeadKind::Softmax, 2, 3)),
            label_smoothing: 0.0,
            on_sphere: false,
            uncertainty: UncertaintyLoss::Off,
        };
        let mut objective = Objective::new(&parameters, 1.0, 2, 3);
        let mut gradient = vec![9.0; 6];
        let values = objective.plain(&[0.5; 6], &[0.0; 6], &[-1, 3, 1], &mut gradient).to_vec();
        assert_eq!(values[..2], [0.0, 0.0]);
        assert_eq!(gradient[..4], [0.0; 4]);
        assert!(values[2] > 0.0);
    }

    #[test]
    fn in_the_warm_up_psi_learns_and_does_not_touch_h() {
        let mut parameters = super::super::NetworkParameters::fct().loss;
        parameters.uncertainty = UncertaintyLoss::BOUNDED;
        let mut objective = Objective::new(&parameters, 1.0, 2, 1);
        let (mut gradient, mut psi_gradient) = ([0.0; 2], [0.0; 3]);
        let psi = [0.0, 0.0, 0.0];
        let uncertainty = Some((&psi[..], &mut psi_gradient[..]));
        objective.evaluate(&[2.0, 0.0], &[0.0, 0.0], &[-1], Stage::WarmUp, uncertainty, &mut gradient);
        // L = 4/2, half of whose derivative (2, 0) is what h sees; s has slope ½ − ½·2.
        assert_eq!(gradient, [1.0, 0.0]);
        assert_eq!(psi_gradient, [-1.0, 0.0, -0.5]);
    }
    /// Compares with `crates/rehang-python/tests/fastfill.json`, which the loss of `rehang.torch` is compared
    /// with: L, the whole objective and its derivatives, for every unit, head and stage.
    #[test]
    fn the_loss_for_pytorch_is_compared_with_these() {
        let (d, rows, classes, variance) = (6, 9, 4, 1.7);
        let labels: Vec<i64> = vec![0, 3, -1, 2, 9, 1, 1, 0, 2];
        let (targets, outputs) = (numbers(rows * d, 31), numbers(rows * d, 32));
        // Some of its s lie beyond the narrow bound.
        let psi: Vec<f32> = numbers(d + 1, 33).into_iter().map(|value| 0.8 * value).collect();
        let bounded =
            UncertaintyLoss::Joint { loss_weight: 0.5, log_weight: 0.4, bound: 0.3, warm_up_epochs: 0 };
        let heads = [
            None,
            Some(("softmax", HeadKind::Softmax)),
            Some(("arcface", HeadKind::ArcFace { scale: 4.0, margin: 0.3 })),
            Some(("cosface", HeadKind::CosFace { scale: 4.0, margin: 0.3 })),
        ];
        let uncertainties =
            [("off", UncertaintyLoss::Off), ("reference", UncertaintyLoss::REFERENCE), ("bounded", bounded)];
        let mut cases = Vec::new();
        for squared in SquaredScale::ALL {
            for of in heads {
                for on_sphere in [false, true] {
                    for (uncertainty, loss) in uncertainties {
                        for (warm_up, stage) in [(false, Stage::Joint), (true, Stage::WarmUp)] {
                            let parameters = LossParameters {
                                squared,
                                squared_weight: 0.8,
                                discriminative_weight: if of.is_some() { 0.6 } else { 0.0 },
                                head: of.map(|(_, kind)| head(kind, d, classes)),
                                label_smoothing: 0.1,
                                on_sphere,
                                uncertainty: loss,
                            };
                            let skipped = (of.is_none() && on_sphere) || (uncertainty == "off" && warm_up);
                            if skipped {
                                continue;
                            }
                            let mut objective = Objective::new(&parameters, variance, d, rows);
                            let (mut slopes, mut psi_slopes) = (vec![0.0; rows * d], vec![0.0; d + 1]);
                            let learned = (uncertainty != "off").then_some((&psi[..], &mut psi_slopes[..]));
                            let sum =
                                objective.evaluate(&outputs, &targets, &labels, stage, learned, &mut slopes);
                            let plain = objective
                                .plain(&outputs, &targets, &labels, &mut vec![0.0; rows * d])
                                .to_vec();
                            cases.push(serde_json::json!({
                                "squared": squared.name(), "head": of.map(|(name, _)| name), "on_sphere": on_sphere,
                                "uncertainty": uncertainty, "warm_up": warm_up, "plain": plain, "value": sum / rows as f64,
                                "adapted": slopes, "psi": psi_slopes,
                            }));
                        }
                    }
                }
            }
        }
        let computed = serde_json::json!({
            "d": d, "rows": rows, "classes": classes, "variance": variance, "labels": labels, "cases": cases,
        });
        crate::tests::finite_differences::expect_recorded("fastfill.json", &computed);
    }
}
