//! Maps with a formula: do-nothing, Procrustes, ridge and low-rank.
//!
//! Each takes pairs `(o, v)`, o `[n, d_old]` and v `[n, d_new]`, and gives an affine map `o → W o + b` as a
//! [`Map`] without ReLU. Every learned adapter is compared with these maps: below about ten thousand pairs
//! they are hard to beat. All are deterministic to the byte for any number of threads, need one pass over the
//! pairs in blocks, and accept zero rows, constant columns and fewer pairs than coordinates. Their memory is
//! the pairs and a few `d × d` matrices; with fewer pairs than coordinates, the pairs' products with each
//! other are decomposed in place of `d × d` matrices.
//!
//! | module | map | fitted | use it when |
//! |---|---|---|---|
//! | [`do_nothing`] | truncation or zero-padding | nothing | the new model was trained to be compatible |
//! | [`procrustes`] | a rotation about the means (× scale) | `d_old·d_new` | pairs are few |
//! | [`ridge`] | any affine map, with a penalty | `d_old·d_new` | the default |
//! | [`low_rank`] | ridge, through r dimensions | `r·(d_old + d_new)` | the new space is wider than its content |

pub mod do_nothing;
pub mod low_rank;
pub mod procrustes;
pub mod ridge;

use std::collections::BTreeMap;

use faer::{Mat, MatRef};
use rayon::prelude::*;
use rehang_core::adapter::{Dense, InputScaling, Map};
use rehang_core::{Matrix, Pairs, Result};

use crate::linear_algebra::Moments;

/// Result of a closed form: the map and the choices that were made on the way.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ClosedForm {
    /// Map, `[n, d_old] → [n, d_new]`.
    pub map: Map,
    /// Choices by name, for the adapter's record.
    pub choices: BTreeMap<String, String>,
}

/// Lists the scalings of an old vector to try before the linear part: raw and unit length, of which the one
/// with the smaller estimated error is kept. Raw alone where all vectors have length 1 already, or the one
/// that is `fixed`.
fn scalings(pairs: &Pairs, fixed: Option<InputScaling>) -> Vec<InputScaling> {
    match fixed {
        Some(scaling) => vec![scaling],
        None if pairs.old().space().normalised => vec![InputScaling::AsIs],
        None => vec![InputScaling::AsIs, InputScaling::UnitLength],
    }
}

/// Fits once for every scaling to try and keeps the fit with the smaller error; the first one where errors
/// are equal.
fn best_scaling<T: Send>(
    pairs: &Pairs,
    fixed: Option<InputScaling>,
    fit: impl Fn(&Moments) -> Result<(f64, T)> + Sync,
) -> Result<(InputScaling, T)> {
    best(pairs, fixed, |scaling| {
        fit(&Moments::from_pairs(pairs.old().matrix(), pairs.new_vectors().matrix(), None, scaling))
    })
}

/// Keeps the best scaling as [`best_scaling`] does, for fits that need no moments.
fn best<T: Send>(
    pairs: &Pairs,
    fixed: Option<InputScaling>,
    fit: impl Fn(InputScaling) -> Result<(f64, T)> + Sync,
) -> Result<(InputScaling, T)> {
    let mut best: Option<(f64, InputScaling, T)> = None;
    let fits: Vec<_> =
        scalings(pairs, fixed).into_par_iter().map(|scaling| (scaling, fit(scaling))).collect();
    for (scaling, fitted) in fits {
        let (error, fitted) = fitted?;
        if best.as_ref().is_none_or(|(smallest, _, _)| error < *smallest) {
            best = Some((error, scaling, fitted));
        }
    }
    let (_, scaling, fitted) = best.expect("at least one scaling is tried");
    Ok((scaling, fitted))
}

/// Names a scaling as an adapter's record does.
fn scaling_name(scaling: InputScaling) -> String {
    match scaling {
        InputScaling::AsIs => "as-is".into(),
        InputScaling::UnitLength => "unit-length".into(),
    }
}

/// Makes a layer `y = wᵀ x + b` from `w [inputs, outputs]` in `f64`.
fn layer(w: MatRef<'_, f64>, bias: &[f64]) -> Dense {
    let weight = Matrix::from_fn(w.ncols(), w.nrows(), |output, input| w[(input, output)] as f32);
    Dense { weight, bias: bias.iter().map(|&value| value as f32).collect(), relu: false }
}

/// Returns the bias that carries the mean of x to the mean of y: `mean_y − wᵀ mean_x`.
pub(crate) fn centring_bias(mean_x: &[f64], mean_y: &[f64], w: &Mat<f64>) -> Vec<f64> {
    (0..w.ncols())
        .map(|output| {
            let image: f64 = (0..w.nrows()).map(|input| w[(input, output)] * mean_x[input]).sum();
            mean_y[output] - image
        })
        .collect()
}
