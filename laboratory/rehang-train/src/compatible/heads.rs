//! Classification heads while they train: logits with a margin on the true class, and cross-entropy.
//!
//! With a vector `v`, weights `w_k` and bias `b_k` of class `k`, cosines `c_k = ⟨v/‖v‖, w_k/‖w_k‖⟩`, scale
//! `s`, margin `m` and the true class `y`:
//!
//! ```text
//! softmax              z_k = ⟨v, w_k⟩ + b_k
//! normalised softmax   z_k = s·c_k                                          (Wang et al. 2017)
//! CosFace              z_k = s·(c_k − m·1[k = y])                           (Wang et al. 2018, equation 4)
//! ArcFace              z_k = s·cos(arccos c_k + m·1[k = y])                 (Deng et al. 2019, equation 3; DMU equation 1)
//! L = −Σ_k t_k·log softmax(z)_k        t_k = (1 − ε)·1[k = y] + ε/classes   (label smoothing ε)
//! ∂L/∂z_k = softmax(z)_k − t_k
//! ```
//!
//! Classes are those that the head is taught: the ones of the training set.
//!
//! Beyond `π − m` ArcFace's cosine would rise again; there, as is usual, `z_y = s·(c_y − m·sin m)`.

use rayon::prelude::*;
use rehang_core::{Error, Head, HeadKind, Matrix, Result, norm};
use rehang_fit::network::column_sums;
use rehang_fit::objectives::arcface::with_margin;
use rehang_fit::objectives::cross_entropy::cross_entropy_row;
use serde::{Deserialize, Serialize};

use super::rows::{Unit, as_wide_as, products, weighted_sums, weighted_sums_down};

/// Form of a head's logits.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "form", deny_unknown_fields)]
pub enum HeadForm {
    /// `⟨v, w⟩ + b`.
    #[default]
    Softmax,
    /// Scaled cosines.
    NormalisedSoftmax {
        /// Scale s, above 0.
        #[serde(default = "usual_scale")]
        scale: f32,
    },
    /// Scaled cosines with a margin on the true class's cosine.
    #[serde(rename = "cosface")]
    CosFace {
        /// Scale s, above 0.
        #[serde(default = "usual_scale")]
        scale: f32,
        /// Margin m, 0 or more.
        #[serde(default = "usual_cosine_margin")]
        margin: f32,
    },
    /// Scaled cosines with a margin on the true class's angle.
    #[serde(rename = "arcface")]
    ArcFace {
        /// Scale s, above 0.
        #[serde(default = "usual_scale")]
        scale: f32,
        /// Margin m in radians, 0 or more and below 1.6.
        #[serde(default = "usual_angle_margin")]
        margin: f32,
    },
}

fn usual_scale() -> f32 {
    30.0
}

fn usual_cosine_margin() -> f32 {
    0.35
}

fn usual_angle_margin() -> f32 {
    0.3
}

impl HeadForm {
    /// Whether logits are made of cosines.
    pub fn is_cosine(self) -> bool {
        self.scale().is_some()
    }

    /// Gives the factor of the cosines, where logits are made of cosines.
    fn scale(self) -> Option<f32> {
        match self {
            Self::Softmax => None,
            Self::NormalisedSoftmax { scale } | Self::CosFace { scale, .. } | Self::ArcFace { scale, .. } => {
                Some(scale)
            }
        }
    }

    /// Gives what stands for the true class's cosine, and its derivative with respect to that cosine.
    fn with_margin(self, cosine: f32) -> (f32, f32) {
        match self {
            Self::Softmax | Self::NormalisedSoftmax { .. } => (cosine, 1.0),
            Self::CosFace { margin, .. } => (cosine - margin, 1.0),
            Self::ArcFace { margin, .. } => with_margin(cosine, margin),
        }
    }

    /// Fails where nothing could be learned with such a head: a scale that is not a finite number above 0, or
    /// a margin that is not a finite number from 0 on, for `ArcFace` below 1.6 (about a right angle). A
    /// margin of 0 is none.
    ///
    /// `table` is how the error calls the head: `head` or `old.head`.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`].
    pub fn check(self, table: &str) -> Result<()> {
        let usual = (f32::INFINITY, "a finite number, 0 or more");
        let (scale, margin, (limit, rule)) = match self {
            Self::Softmax => return Ok(()),
            Self::NormalisedSoftmax { scale } => (scale, 0.0, usual),
            Self::CosFace { scale, margin } => (scale, margin, usual),
            Self::ArcFace { scale, margin } => {
                (scale, margin, (1.6, "radians, 0 or more and below 1.6 (28.6 degrees are 0.5)"))
            }
        };
        if !scale.is_finite() || scale <= 0.0 {
            return Err(Error::option(format!("{table}.scale"), scale, "a finite number above 0"));
        }
        if !(0.0..limit).contains(&margin) {
            return Err(Error::option(format!("{table}.margin"), margin, rule));
        }
        Ok(())
    }
}

/// Numbers of a head while objectives are evaluated.
#[derive(Debug, Clone)]
pub(crate) struct HeadWeights {
    /// Weights, `[classes, d]`.
    pub weight: Matrix,
    /// Biases, `[classes]`; zeros for heads of cosines.
    pub bias: Vec<f32>,
    pub form: HeadForm,
    /// Numbers of the classes that the head is taught, ascending. All others, which only the old head knows,
    /// take no part in its losses: nothing would ever draw their weights to anything (RACT equation 7 sums
    /// over the classes of the new training set).
    pub taught: Vec<usize>,
}

/// Derivative with respect to a head.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeadGradient {
    /// Derivative with respect to the weights, `[classes, d]`.
    pub weight: Matrix,
    /// Derivative with respect to the biases, `[classes]`; zeros for heads of cosines.
    pub bias: Vec<f32>,
}

impl HeadWeights {
    /// Takes a head all of whose classes take part.
    pub(crate) fn new(weight: Matrix, bias: Vec<f32>, form: HeadForm) -> Self {
        Self { taught: (0..weight.rows()).collect(), weight, bias, form }
    }

    /// Gives a copy of the head with bare inner products for logits: cosines without their scale, or products
    /// without a bias.
    pub(crate) fn bare(&self) -> Self {
        let form = if self.form.is_cosine() { HeadForm::NormalisedSoftmax { scale: 1.0 } } else { self.form };
        Self { form, bias: vec![0.0; self.bias.len()], ..self.clone() }
    }

    /// Number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.weight.rows()
    }

    /// Whether the head has a class.
    pub(crate) fn knows(&self, label: usize) -> bool {
        label < self.classes()
    }

    /// Computes the head's logits of vectors whose class is not known, without a margin.
    pub(crate) fn pass(&self, vectors: &Matrix) -> HeadPass<'_> {
        self.pass_with_margin(vectors, &[])
    }

    /// Computes the head's logits as [`HeadWeights::pass`] does, but with the margin on each row's true
    /// class. Rows of a class that the head does not know get none.
    pub(crate) fn pass_with_margin(&self, vectors: &Matrix, labels: &[usize]) -> HeadPass<'_> {
        let width = vectors.columns();
        let vectors = as_wide_as(vectors, self.weight.columns());
        let Some(scale) = self.form.scale() else {
            let mut logits = products(&vectors, &self.weight);
            for row in 0..logits.rows() {
                for (logit, bias) in logits.row_mut(row).iter_mut().zip(&self.bias) {
                    *logit += bias;
                }
            }
            return HeadPass { head: self, logits, width, read: Read::Products { vectors } };
        };
        let (vectors, weights) = (Unit::from_rows(&vectors), Unit::from_rows(&self.weight));
        let mut logits = products(&vectors.rows, &weights.rows);
        let mut true_slopes = vec![1.0; labels.len()];
        for (row, (&label, slope)) in labels.iter().zip(&mut true_slopes).enumerate() {
            if self.knows(label) {
                let cosine = &mut logits.row_mut(row)[label];
                (*cosine, *slope) = self.form.with_margin(cosine.clamp(-1.0, 1.0));
            }
        }
        logits.as_mut_slice().iter_mut().for_each(|logit| *logit *= scale);
        let labels = labels.to_vec();
        HeadPass { head: self, logits, width, read: Read::Cosines { vectors, weights, labels, true_slopes } }
    }

    /// Counts rows whose largest logit, among the classes that the head is taught, is the true class's.
    pub(crate) fn right(&self, vectors: &Matrix, labels: &[usize]) -> usize {
        let pass = self.pass(vectors);
        let is_right = |(row, &label): (usize, &usize)| {
            let logits = pass.logits.row(row);
            self.knows(label) && self.taught.iter().all(|&other| logits[other] <= logits[label])
        };
        labels.iter().enumerate().filter(|row| is_right(*row)).count()
    }
}

/// Logits of a batch by a head, and the way back from them to derivatives.
pub(crate) struct HeadPass<'a> {
    head: &'a HeadWeights,
    /// Logits, `[B, classes]`.
    pub logits: Matrix,
    /// Number of coordinates of the vectors as they came.
    width: usize,
    read: Read,
}

/// Numbers that the logits were made of.
enum Read {
    /// Products with the vectors, which are as wide as the weights.
    Products { vectors: Matrix },
    /// Cosines of vectors and weights, both at length 1. `true_slopes` are the derivatives of each row's
    /// cosine under its margin; there are none, and no labels, where no margin is taken.
    Cosines { vectors: Unit, weights: Unit, labels: Vec<usize>, true_slopes: Vec<f32> },
}

impl HeadPass<'_> {
    /// Computes `Σ weight·L` over the rows and its derivative with respect to the logits. A row of a class
    /// that the head is not taught counts nothing.
    ///
    /// `weights` is `[B]`, `smoothing` ε.
    pub(crate) fn cross_entropy(&self, labels: &[usize], smoothing: f32, weights: &[f32]) -> (f64, Matrix) {
        let taught = &self.head.taught;
        let mut slopes = Matrix::zeros(self.logits.rows(), self.logits.columns());
        let values: Vec<f64> = slopes
            .as_mut_slice()
            .par_chunks_mut(self.head.classes().max(1))
            .zip(self.logits.as_slice().par_chunks(self.head.classes().max(1)))
            .zip(labels.par_iter().zip(weights))
            .with_min_len(16)
            .map(|((slopes, logits), (label, &weight))| {
                let Some(place) = taught.binary_search(label).ok().filter(|_| weight != 0.0) else {
                    return 0.0;
                };
                let mut of_taught: Vec<f32> = taught.iter().map(|&class| logits[class]).collect();
                let loss = cross_entropy_row(&mut of_taught, place, smoothing);
                for (&class, slope) in taught.iter().zip(of_taught) {
                    slopes[class] = weight * slope;
                }
                f64::from(weight) * loss
            })
            .collect();
        (values.into_iter().sum(), slopes)
    }

    /// Computes the derivative with respect to the vectors, from that with respect to the logits.
    pub(crate) fn to_vectors(&self, slopes: &Matrix) -> Matrix {
        let gradient = match &self.read {
            Read::Products { .. } => weighted_sums(slopes, &self.head.weight),
            Read::Cosines { vectors, weights, .. } => {
                vectors.backward(&weighted_sums(&self.to_cosines(slopes), &weights.rows))
            }
        };
        as_wide_as(&gradient, self.width)
    }

    /// Computes the derivative with respect to the head, from that with respect to the logits.
    pub(crate) fn to_head(&self, slopes: &Matrix) -> HeadGradient {
        match &self.read {
            Read::Products { vectors } => {
                let bias = column_sums(slopes.as_slice(), self.head.classes());
                let bias = bias.into_iter().map(|sum| sum as f32).collect();
                HeadGradient { weight: weighted_sums_down(slopes, vectors), bias }
            }
            Read::Cosines { vectors, weights, .. } => {
                let weight = weights.backward(&weighted_sums_down(&self.to_cosines(slopes), &vectors.rows));
                HeadGradient { weight, bias: vec![0.0; self.head.classes()] }
            }
        }
    }

    /// Computes the derivative with respect to the cosines: logits are these times the scale, but for the
    /// margin.
    fn to_cosines(&self, slopes: &Matrix) -> Matrix {
        let scale = self.head.form.scale().unwrap_or(1.0);
        let mut cosines = slopes.clone();
        cosines.as_mut_slice().iter_mut().for_each(|slope| *slope *= scale);
        if let Read::Cosines { labels, true_slopes, .. } = &self.read {
            for (row, (&label, slope)) in labels.iter().zip(true_slopes).enumerate() {
                if self.head.knows(label) {
                    cosines.row_mut(row)[label] *= slope;
                }
            }
        }
        cosines
    }
}

/// Makes an old head with a weight for every class that it does not know: the mean of the class's old
/// vectors, each scaled to length 1 (BCT §2.5, "synthesised classifier weights"). Under a softmax head the
/// mean is scaled to the mean length of the head's own weights, so that logits of old and of synthesised
/// classes are of one size; its bias is the head's mean.
///
/// `old` `[n, d_old]`, `labels` `[n]`; classes are numbered as the new model's.
pub(crate) fn synthesised(head: &Head, old: &Matrix, labels: &[usize], classes: usize) -> Result<Head> {
    let d = head.dimension();
    let mut sums = vec![vec![0.0_f64; d]; classes];
    let mut counts = vec![0_usize; classes];
    for (row, &label) in labels.iter().enumerate() {
        let vector = old.row(row);
        let length = norm(vector);
        if label >= classes || length == 0.0 {
            continue;
        }
        counts[label] += 1;
        for (sum, &value) in sums[label].iter_mut().zip(vector) {
            *sum += f64::from(value) / length;
        }
    }
    let weight = head.weight();
    let known = head.classes();
    let mean_length = (0..known).map(|row| norm(weight.row(row))).sum::<f64>() / known as f64;
    let mean_bias = head.bias().iter().sum::<f32>() / known as f32;
    let (mut rows, mut bias) = (weight.as_slice().to_vec(), head.bias().to_vec());
    for class in known..classes {
        let length = sums[class].iter().map(|sum| sum * sum).sum::<f64>().sqrt();
        let factor = match head.kind() {
            HeadKind::Softmax if length > 0.0 => mean_length / length,
            _ => 1.0 / counts[class].max(1) as f64,
        };
        rows.extend(sums[class].iter().map(|sum| (sum * factor) as f32));
        bias.push(if head.kind() == HeadKind::Softmax { mean_bias } else { 0.0 });
    }
    Head::new(Matrix::new(d, rows)?, Some(bias), head.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finite_differences::numbers;

    fn head(form: HeadForm) -> HeadWeights {
        HeadWeights::new(Matrix::new(2, vec![1.0, 0.0, 0.0, 2.0]).unwrap(), vec![0.0, 0.0], form)
    }

    /// The loss of every row.
    fn losses(head: &HeadWeights, vectors: &[f32], labels: &[usize], smoothing: f32) -> Vec<f64> {
        let vectors = Matrix::new(2, vectors.to_vec()).unwrap();
        let pass = head.pass_with_margin(&vectors, labels);
        let mut only = vec![0.0; labels.len()];
        let loss = |row: usize| {
            only.fill(0.0);
            only[row] = 1.0;
            pass.cross_entropy(labels, smoothing, &only).0
        };
        (0..labels.len()).map(loss).collect()
    }

    #[test]
    fn every_form_computed_by_hand() {
        // ⟨v, w⟩ = (3, 8); cosines (0.6, 0.8).
        let ln = |difference: f64| (1.0 + difference.exp()).ln();
        let near = |left: f64, right: f64| assert!((left - right).abs() < 1e-4, "{left} {right}");
        let losses = |form: HeadForm, vector: [f32; 2], label: usize, smoothing: f32| {
            losses(&head(form), &vector, &[label], smoothing)[0]
        };
        near(losses(HeadForm::Softmax, [3.0, 4.0], 1, 0.0), ln(3.0 - 8.0));
        near(losses(HeadForm::NormalisedSoftmax { scale: 10.0 }, [3.0, 4.0], 1, 0.0), ln(6.0 - 8.0));
        let cosface = HeadForm::CosFace { scale: 10.0, margin: 0.35 };
        near(losses(cosface, [3.0, 4.0], 1, 0.0), ln(6.0 - 4.5));
        // θ = π/3 with m = π/6 gives cos(π/2) = 0; the other class has cosine √3/2.
        let arcface = HeadForm::ArcFace { scale: 10.0, margin: std::f32::consts::PI / 6.0 };
        near(losses(arcface, [0.5, 0.75_f32.sqrt()], 0, 0.0), ln(5.0 * 3.0_f64.sqrt()));
        // Smoothing: 0.9 of the true class's loss and 0.05 of each.
        let (first, second) = (ln(8.0 - 3.0), ln(3.0 - 8.0));
        near(losses(HeadForm::Softmax, [3.0, 4.0], 1, 0.1), 0.95 * second + 0.05 * first);
        // A class that the head does not know has no loss.
        near(losses(HeadForm::Softmax, [3.0, 4.0], 2, 0.1), 0.0);
    }

    #[test]
    fn classes_that_are_not_taught_take_no_part() {
        for form in [HeadForm::Softmax, HeadForm::ArcFace { scale: 4.0, margin: 0.3 }] {
            let with_rows = |rows: &[f32], taught: &[usize]| {
                let weight = Matrix::new(2, rows.to_vec()).unwrap();
                let head = HeadWeights::new(weight, vec![0.0; rows.len() / 2], form);
                HeadWeights { taught: taught.to_vec(), ..head }
            };
            let two = with_rows(&[1.0, 0.2, 0.1, 2.0], &[0, 1]);
            // The third class, which would be chosen, is the old head's alone.
            let three = with_rows(&[1.0, 0.2, 0.1, 2.0, 30.0, 40.0], &[0, 1]);
            let vectors = [3.0, 4.0, 1.0, -1.0];
            let loss = |head: &HeadWeights| losses(head, &vectors, &[1, 0], 0.1);
            for (left, right) in loss(&two).into_iter().zip(loss(&three)) {
                assert!((left - right).abs() < 1e-5, "{form:?}: {left} {right}");
            }
            let vectors = Matrix::new(2, vectors.to_vec()).unwrap();
            assert_eq!(three.right(&vectors, &[1, 0]), 2);
            assert_eq!(HeadWeights::new(three.weight, three.bias, form).right(&vectors, &[1, 0]), 1);
        }
    }

    #[test]
    fn scales_and_margins_that_teach_nothing_are_refused() {
        let good = [
            HeadForm::Softmax,
            HeadForm::NormalisedSoftmax { scale: 0.1 },
            HeadForm::CosFace { scale: 30.0, margin: 1.8 },
            HeadForm::ArcFace { scale: 64.0, margin: 0.0 },
            HeadForm::ArcFace { scale: 64.0, margin: 1.5 },
        ];
        assert!(good.iter().all(|form| form.check("head").is_ok()));
        let refused = |form: HeadForm, option: &str| {
            let error = form.check("old.head").unwrap_err().to_string();
            assert!(error.contains(option), "{form:?}: {error}");
        };
        for scale in [0.0, -30.0, f32::NAN, f32::INFINITY] {
            refused(HeadForm::NormalisedSoftmax { scale }, "old.head.scale");
            refused(HeadForm::CosFace { scale, margin: 0.3 }, "old.head.scale");
            refused(HeadForm::ArcFace { scale, margin: 0.3 }, "old.head.scale");
        }
        for margin in [-0.1, f32::NAN, f32::INFINITY] {
            refused(HeadForm::CosFace { scale: 30.0, margin }, "old.head.margin");
            refused(HeadForm::ArcFace { scale: 30.0, margin }, "old.head.margin");
        }
        refused(HeadForm::ArcFace { scale: 30.0, margin: 28.6 }, "radians");
    }

    #[test]
    fn wide_vectors_are_cut_for_a_narrow_head() {
        let wide = Matrix::new(3, vec![3.0, 4.0, 100.0]).unwrap();
        let narrow = Matrix::new(2, vec![3.0, 4.0]).unwrap();
        let head = head(HeadForm::Softmax);
        assert_eq!(head.pass(&wide).logits, head.pass(&narrow).logits);
    }

    #[test]
    fn synthesised_weights_are_means_of_unit_vectors() {
        let weight = Matrix::new(2, vec![3.0, 0.0, 0.0, 3.0]).unwrap();
        let old = Matrix::new(2, vec![5.0, 0.0, 0.0, 2.0, 1.0, 1.0]).unwrap();
        let arcface = HeadKind::ArcFace { scale: 30.0, margin: 0.3 };
        let head = Head::new(weight.clone(), None, arcface).unwrap();
        let more = synthesised(&head, &old, &[2, 2, 0], 3).unwrap();
        assert_eq!(more.weight().row(0), [3.0, 0.0]);
        assert_eq!(more.weight().row(2), [0.5, 0.5]);
        let softmax = Head::new(weight, Some(vec![1.0, 2.0]), HeadKind::Softmax).unwrap();
        let more = synthesised(&softmax, &old, &[2, 2, 0], 3).unwrap();
        let row = more.weight().row(2);
        assert!((row[0].hypot(row[1]) - 3.0).abs() < 1e-5 && (more.bias()[2] - 1.5).abs() < 1e-6);
        assert_eq!(synthesised(&softmax, &old, &[0, 0, 0], 2).unwrap(), softmax);
    }

    #[test]
    fn margins_only_ever_cost() {
        let vectors = numbers(2 * 9, 5);
        let labels = [0, 1, 0, 1, 0, 1, 0, 1, 0];
        let plain = losses(&head(HeadForm::NormalisedSoftmax { scale: 8.0 }), &vectors, &labels, 0.0);
        for form in
            [HeadForm::CosFace { scale: 8.0, margin: 0.2 }, HeadForm::ArcFace { scale: 8.0, margin: 0.2 }]
        {
            let loss = losses(&head(form), &vectors, &labels, 0.0);
            assert!(loss.iter().zip(&plain).all(|(loss, plain)| loss > plain));
        }
    }
}
