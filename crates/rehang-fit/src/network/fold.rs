//! Turns a trained network into the artefact's map: BatchNorm, standardisation and gain folded into weights
//! and biases.

use std::ops::Range;

use rehang_core::adapter::{Dense, InputScaling, Map, SecondBranch};
use rehang_core::{Matrix, Result, normalise};

use super::normalisation::EPSILON;
use super::{Layer, LayerKind, Layout, Source, State};
use crate::objectives::squared::mean_row;

/// Preparation of a vector before the network sees it: `(scaled(x) − mean)/deviation`, coordinate by
/// coordinate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preparation {
    pub scaling: InputScaling,
    /// Mean of every coordinate, `[d]`; empty where nothing is standardised.
    pub mean: Vec<f32>,
    /// Deviation of every coordinate, `[d]`, all positive; empty where nothing is standardised.
    pub deviation: Vec<f32>,
}

impl Preparation {
    /// Returns a preparation that only scales.
    pub(crate) fn scaling_only(scaling: InputScaling) -> Self {
        Self { scaling, mean: Vec::new(), deviation: Vec::new() }
    }

    /// Measures mean and deviation of every (scaled) coordinate. A constant coordinate gets the deviation 1.
    pub(crate) fn measured(scaling: InputScaling, rows: &Matrix) -> Self {
        let scaled = Self::scaling_only(scaling).apply(rows);
        let n = scaled.rows().max(1) as f64;
        let mean = mean_row(&scaled);
        let mut variance = vec![0.0_f64; scaled.columns()];
        for row in 0..scaled.rows() {
            for ((variance, &mean), &value) in variance.iter_mut().zip(&mean).zip(scaled.row(row)) {
                *variance += (f64::from(value) - mean).powi(2) / n;
            }
        }
        let largest = variance.iter().copied().fold(0.0, f64::max);
        let deviation = variance
            .into_iter()
            // A coordinate that hardly moves carries rounding noise; blowing it up to variance 1 would feed
            // the noise.
            .map(|variance| if variance > 1e-10 * largest { variance.sqrt() as f32 } else { 1.0 })
            .collect();
        Self { scaling, mean: mean.into_iter().map(|mean| mean as f32).collect(), deviation }
    }

    /// Prepares rows.
    pub(crate) fn apply(&self, rows: &Matrix) -> Matrix {
        let mut rows = rows.clone();
        for row in 0..rows.rows() {
            let row = rows.row_mut(row);
            if self.scaling == InputScaling::UnitLength {
                normalise(row);
            }
            for ((value, &mean), &deviation) in row.iter_mut().zip(&self.mean).zip(&self.deviation) {
                *value = (*value - mean) / deviation;
            }
        }
        rows
    }

    /// Turns a layer on scaled vectors into the same layer on prepared ones.
    pub(crate) fn enter(&self, layer: &Dense) -> Dense {
        self.change(layer, |weight, mean, deviation| (weight * deviation, weight * mean))
    }

    /// Turns a layer on prepared vectors into the same layer on scaled ones.
    pub(crate) fn leave(&self, layer: &Dense) -> Dense {
        self.change(layer, |weight, mean, deviation| (weight / deviation, -weight / deviation * mean))
    }

    fn change(&self, layer: &Dense, change: impl Fn(f64, f64, f64) -> (f64, f64)) -> Dense {
        let mut layer = layer.clone();
        if self.mean.is_empty() {
            return layer;
        }
        for output in 0..layer.weight.rows() {
            let mut bias = f64::from(layer.bias[output]);
            for (input, weight) in layer.weight.row_mut(output).iter_mut().enumerate() {
                let (changed, moved) =
                    change(f64::from(*weight), f64::from(self.mean[input]), f64::from(self.deviation[input]));
                *weight = changed as f32;
                bias += moved;
            }
            layer.bias[output] = bias as f32;
        }
        layer
    }
}

/// Puts a BatchNorm into the layer before it: `scale`, `shift` and running mean and variance of every output.
pub fn fold_normalisation(layer: &mut Dense, [scale, shift, mean, variance]: [&[f32]; 4]) {
    for (output, bias) in layer.bias.iter_mut().enumerate() {
        let slope = f64::from(scale[output]) / (f64::from(variance[output]) + EPSILON).sqrt();
        for weight in layer.weight.row_mut(output) {
            *weight = (f64::from(*weight) * slope) as f32;
        }
        let centred = f64::from(*bias) - f64::from(mean[output]);
        *bias = (centred * slope + f64::from(shift[output])) as f32;
    }
}

/// Returns a layer as an adapter has it: BatchNorm with its running statistics, or the gain, inside of weight
/// and bias.
fn folded(layer: &Layer, state: &State) -> Result<Dense> {
    let parameters = |range: &Range<usize>| &state.parameters[range.clone()];
    let weight = Matrix::new(layer.inputs, parameters(&layer.weight).to_vec())?;
    let (shift, relu) = (parameters(&layer.shift), layer.kind == LayerKind::Block);
    let mut dense = Dense { weight, bias: vec![0.0; layer.outputs], relu };
    match layer.kind {
        LayerKind::Block => {
            let statistics = layer.statistics.clone();
            let (mean, variance) =
                (&state.running_mean[statistics.clone()], &state.running_variance[statistics]);
            fold_normalisation(&mut dense, [parameters(&layer.scale), shift, mean, variance]);
        }
        LayerKind::Output => {
            let gain = f64::from(layer.gain);
            let times = |value: f32| (f64::from(value) * gain) as f32;
            dense.weight.as_mut_slice().iter_mut().for_each(|weight| *weight = times(*weight));
            dense.bias = shift.iter().map(|&shift| times(shift)).collect();
        }
    }
    Ok(dense)
}

/// Returns the whole network as a map on unprepared vectors.
pub(crate) fn fold(
    layout: &Layout,
    state: &State,
    old: &Preparation,
    side: Option<&Preparation>,
) -> Result<Map> {
    let dense = |number: usize| -> Result<Dense> {
        let layer = &layout.layers[number];
        let plain = folded(layer, state)?;
        Ok(match (layer.source, side) {
            (Source::Old, _) => old.leave(&plain),
            (Source::Side, Some(side)) => side.leave(&plain),
            _ => plain,
        })
    };
    let stack = |range: std::ops::Range<usize>| range.map(dense).collect::<Result<Vec<Dense>>>();
    let second = match &layout.second {
        Some((input, range)) => Some(SecondBranch { input: *input, layers: stack(range.clone())? }),
        None => None,
    };
    Ok(Map {
        input: old.scaling,
        branch: stack(layout.branch.clone())?,
        second,
        mixer: stack(layout.mixer.clone())?,
        skip: None,
        kernel: None,
        per_kind: None,
    })
}
