//! Objectives that compatible training minimises: one file for each, its formula on top.
//!
//! An objective sees one [`Batch`] and gives its [`Loss`]: one number, and its derivatives with respect to
//! the new vectors, to ψ's output and to the new head; never to the old model, whose vectors and head are
//! constants. A method is a weighted list of objectives (see [`crate::compatible::TrainingMethod`]). Products
//! of matrices are in single precision, sums over a row in double; all have a fixed order, whatever the
//! number of threads.
//!
//! `v = φ_new(x)`, `o = φ_old(x)`, `ω` the weights of a head, `B` the batch. Where old and new differ in
//! width, `v` is cut to its first `d_old` coordinates, or filled up with zeros (BCT §3.6).

pub(crate) mod both_heads;
pub(crate) mod classification;
pub(crate) mod contrastive;
mod cosines;
pub(crate) mod focal_distillation;
pub(crate) mod forward_adaptive;
pub(crate) mod head_distillation;
pub(crate) mod influence;
pub(crate) mod regression;
pub(crate) mod selective;
pub(crate) mod triplet;
pub(crate) mod vector_distance;

#[cfg(test)]
mod recorded;
#[cfg(test)]
pub(crate) mod tests;

use rehang_core::Matrix;

use super::heads::{HeadGradient, HeadWeights};

/// Batch, as all objectives see it.
pub(crate) struct Batch {
    /// Class of every row.
    pub labels: Vec<usize>,
    /// Whether the old model was trained on the row; false where that is not known.
    pub of_old: Vec<bool>,
    /// New vectors φ_new(x), `[B, d_new]`, as they come out of the encoder.
    pub new: Matrix,
    /// Old vectors φ_old(x), `[B, d_old]`, constants; empty for methods without an old model.
    pub old: Matrix,
    /// Old vector φ_old of another row of each row's class, drawn for this batch, `[B, d_old]`, for methods
    /// that take their positives so.
    pub sister: Option<Matrix>,
    /// Adapted vectors ψ(φ_old(x)), `[B_ψ, d_new]`, for methods that train a forward-adaptive head.
    pub adapted: Option<Matrix>,
    /// Class of every row of `adapted`: those of the batch, or of a batch that is drawn for ψ alone.
    pub adapted_labels: Vec<usize>,
    /// The new head.
    pub head: HeadWeights,
}

/// Value of an objective on a batch, and its derivatives with respect to whatever learns; `None` where
/// nothing flows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loss {
    pub value: f64,
    /// Derivative with respect to the new vectors, `[B, d_new]`.
    pub new: Option<Matrix>,
    /// Derivative with respect to ψ's output, `[B_ψ, d_new]`.
    pub adapted: Option<Matrix>,
    /// Derivative with respect to the new head.
    pub head: Option<HeadGradient>,
    /// Measure of the batch that the objective tells beside its value: its name and number.
    pub measure: Option<(&'static str, f64)>,
}

impl Loss {
    /// Adds another loss times `factor`, value and derivatives.
    pub(crate) fn add(&mut self, factor: f32, other: Self) {
        self.value += f64::from(factor) * other.value;
        add_matrix(&mut self.new, factor, other.new);
        add_matrix(&mut self.adapted, factor, other.adapted);
        if let Some(other) = other.head {
            let zeros = || HeadGradient {
                weight: Matrix::zeros(other.weight.rows(), other.weight.columns()),
                bias: vec![0.0; other.bias.len()],
            };
            let head = self.head.get_or_insert_with(zeros);
            add(head.weight.as_mut_slice(), factor, other.weight.as_slice());
            add(&mut head.bias, factor, &other.bias);
        }
    }
}

fn add_matrix(sum: &mut Option<Matrix>, factor: f32, other: Option<Matrix>) {
    if let Some(other) = other {
        let sum = sum.get_or_insert_with(|| Matrix::zeros(other.rows(), other.columns()));
        add(sum.as_mut_slice(), factor, other.as_slice());
    }
}

/// Adds numbers times `factor` to others.
pub(crate) fn add(sum: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// Term of a loss.
pub(crate) struct Objective {
    /// Name in progress and reports.
    pub name: &'static str,
    of: Box<dyn Fn(&Batch) -> Loss + Send + Sync>,
}

impl Objective {
    fn new(name: &'static str, of: impl Fn(&Batch) -> Loss + Send + Sync + 'static) -> Self {
        Self { name, of: Box::new(of) }
    }

    /// Computes the value on a batch and the derivatives there.
    pub(crate) fn evaluate(&self, batch: &Batch) -> Loss {
        (self.of)(batch)
    }
}

/// Gives the weights of a mean over the rows that count: 1 over their number for each, 0 for all others.
pub(crate) fn shares(counts: &[bool]) -> Vec<f32> {
    let number = counts.iter().filter(|&&count| count).count().max(1) as f32;
    counts.iter().map(|&count| if count { 1.0 / number } else { 0.0 }).collect()
}
