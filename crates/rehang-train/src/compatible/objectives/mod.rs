//! What compatible training minimises: one file for each objective, its formula on top.
//!
//! An objective sees one [`Batch`] and gives one number, `[1]`, whose derivative flows into the new vectors, into ψ's
//! output and into the new head; never into the old model, whose vectors and head are constants. A method is a weighted
//! list of objectives (see [`crate::compatible::Method`]).
//!
//! `v = φ_new(x)`, `o = φ_old(x)`, `ω` the weights of a head, `B` the batch. Where old and new differ in width, `v`
//! is cut to its first `d_old` coordinates, or filled up with zeros (BCT, appendix).

pub(crate) mod both_heads;
pub(crate) mod classification;
pub(crate) mod contrastive;
pub(crate) mod focal_distillation;
pub(crate) mod forward_adaptive;
pub(crate) mod head_distillation;
pub(crate) mod influence;
pub(crate) mod regression;
pub(crate) mod selective;
pub(crate) mod triplet;
pub(crate) mod vector_distance;

#[cfg(test)]
pub(crate) mod tests;

use burn_tensor::{Device, Tensor};
use rehang_fit::burn::tensor;

use super::heads::HeadTensors;
pub(crate) use rehang_fit::burn::unit;

/// One batch, as all objectives see it.
pub(crate) struct Batch {
    /// Class of every row.
    pub labels: Vec<usize>,
    /// Whether the old model was trained on the row; false where that is not known.
    pub of_old: Vec<bool>,
    /// φ_new(x), `[B, d_new]`, as it comes out of the encoder.
    pub new: Tensor<2>,
    /// φ_old(x), `[B, d_old]`, a constant; empty `[B, 0]` for methods without an old model.
    pub old: Tensor<2>,
    /// φ_old of another row of each row's class, drawn for this batch, `[B, d_old]`, for methods that take their positives so.
    pub sister: Option<Tensor<2>>,
    /// ψ(φ_old(x)), `[B_ψ, d_new]`, for methods that train a forward-adaptive head.
    pub adapted: Option<Tensor<2>>,
    /// Class of every row of `adapted`: those of the batch, or of a batch that is drawn for ψ alone.
    pub adapted_labels: Vec<usize>,
    /// The new head.
    pub head: HeadTensors,
}

/// One term of a loss.
pub(crate) struct Objective {
    /// Its name in progress and reports.
    pub name: &'static str,
    value: Box<dyn Fn(&Batch) -> Tensor<1>>,
    measure: Option<Measure>,
}

/// What an objective says of a batch beside its value, and how that is called.
type Measure = (&'static str, Box<dyn Fn(&Batch) -> f64>);

impl Objective {
    fn new(name: &'static str, value: impl Fn(&Batch) -> Tensor<1> + 'static) -> Self {
        Self { name, value: Box::new(value), measure: None }
    }

    fn measuring(self, name: &'static str, of: impl Fn(&Batch) -> f64 + 'static) -> Self {
        Self { measure: Some((name, Box::new(of))), ..self }
    }

    /// What it says of a batch beside its value, by name.
    pub(crate) fn measured(&self, batch: &Batch) -> Option<(&'static str, f64)> {
        self.measure.as_ref().map(|(name, of)| (*name, of(batch)))
    }

    /// Its value on a batch, `[1]`.
    pub(crate) fn loss(&self, batch: &Batch) -> Tensor<1> {
        (self.value)(batch)
    }
}

/// Takes the place of a logit that must not count.
pub(crate) const NEVER: f32 = -1e9;

/// The first `width` coordinates of every row, or the row and zeros.
pub(crate) fn as_wide_as(rows: Tensor<2>, width: usize) -> Tensor<2> {
    let [n, d] = rows.dims();
    match d.cmp(&width) {
        std::cmp::Ordering::Equal => rows,
        std::cmp::Ordering::Greater => rows.narrow(1, 0, width),
        std::cmp::Ordering::Less => {
            let zeros = Tensor::zeros([n, width - d], &rows.device());
            Tensor::cat(vec![rows, zeros], 1)
        }
    }
}

/// 1 where row and column are of one class, `[B, B]`; the diagonal is 1.
pub(crate) fn same_class(labels: &[usize], device: &Device) -> Tensor<2> {
    let n = labels.len();
    let values: Vec<f32> = labels
        .iter()
        .flat_map(|row| labels.iter().map(move |column| if row == column { 1.0 } else { 0.0 }))
        .collect();
    tensor(&values, [n, n], device)
}

/// The scalar product of every row with the same row of another matrix, `[B, 1]`.
pub(crate) fn rowwise(left: Tensor<2>, right: Tensor<2>) -> Tensor<2> {
    (left * right).sum_dim(1)
}

/// log Σ exp over every row, `[B, 1]`, without overflow.
pub(crate) fn log_sum_exp(rows: Tensor<2>) -> Tensor<2> {
    let largest = rows.clone().detach().max_dim(1);
    (rows - largest.clone()).exp().sum_dim(1).log() + largest
}

/// The rows for which `counts` holds, the others 0: `[B, 1] × [B] → [B, 1]`.
pub(crate) fn only(values: Tensor<2>, counts: &[bool]) -> Tensor<2> {
    let counts: Vec<f32> = counts.iter().map(|&count| f32::from(u8::from(count))).collect();
    let counts = tensor(&counts, [counts.len(), 1], &values.device());
    values * counts
}

/// Σ weight·value over rows: `[B, 1] × [B] → [1]`.
pub(crate) fn weighted(values: Tensor<2>, weights: &[f32]) -> Tensor<1> {
    let weights = tensor(weights, [weights.len(), 1], &values.device());
    (values * weights).sum()
}

/// The mean over the rows for which `counts` holds, or 0 where none does.
pub(crate) fn mean_over(values: Tensor<2>, counts: impl Iterator<Item = bool>) -> Tensor<1> {
    let counts: Vec<bool> = counts.collect();
    let number = counts.iter().filter(|&&count| count).count().max(1) as f32;
    let weights: Vec<f32> = counts.iter().map(|&count| if count { 1.0 / number } else { 0.0 }).collect();
    weighted(values, &weights)
}
