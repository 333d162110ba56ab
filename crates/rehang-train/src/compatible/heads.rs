//! Classification heads while they train: logits with a margin on the true class, and cross-entropy.
//!
//! With a vector `v`, weights `w_k` and bias `b_k` of class `k`, cosines `c_k = ⟨v/‖v‖, w_k/‖w_k‖⟩`, scale `s`, margin `m`
//! and the true class `y`:
//!
//! ```text
//! softmax              z_k = ⟨v, w_k⟩ + b_k
//! normalised softmax   z_k = s·c_k                                          (Wang et al. 2017)
//! CosFace              z_k = s·(c_k − m·1[k = y])                           (Wang et al. 2018, equation 4)
//! ArcFace              z_k = s·cos(arccos c_k + m·1[k = y])                 (Deng et al. 2019, equation 3; DMU equation 1)
//! L = −Σ_k t_k·log softmax(z)_k        t_k = (1 − ε)·1[k = y] + ε/classes   (label smoothing ε)
//! ```
//!
//! Classes are those that the head is taught: the ones of the training set.
//!
//! Beyond `π − m` ArcFace's cosine would rise again; there, as is usual, `z_y = s·(c_y − m·sin m)`.

use burn_tensor::activation::log_softmax;
use burn_tensor::{Device, Tensor};
use rehang::{Error, Head, HeadKind, Matrix, Result, norm};
use rehang_fit::burn::{tensor, with_angular_margin};
use serde::{Deserialize, Serialize};

use super::objectives::{NEVER, as_wide_as, unit};

/// How a head makes logits.
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
        self != Self::Softmax
    }

    /// Fails where nothing could be learned with such a head: a scale that is not a finite number above 0, or a margin that
    /// is not a finite number from 0 on, for `ArcFace` below 1.6 (about a right angle). A margin of 0 is none.
    ///
    /// `table` is how the error calls the head: `head` or `old.head`.
    ///
    /// # Errors
    ///
    /// [`rehang::ErrorKind::InvalidOption`].
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

/// A head as tensors.
#[derive(Debug, Clone)]
pub(crate) struct HeadTensors {
    /// `[classes, d]`.
    pub weight: Tensor<2>,
    /// `[1, classes]`; zeros for heads of cosines.
    pub bias: Tensor<2>,
    pub form: HeadForm,
    /// Where rows of some classes alone teach the head: which.
    pub taught: Option<Taught>,
}

/// The classes that a head is taught. All others, which only the old head knows, take no part in its losses: nothing would
/// ever draw their weights to anything (RACT equation 7 sums over the classes of the new training set).
#[derive(Debug, Clone)]
pub(crate) struct Taught {
    /// 1 for these classes, 0 for the others, `[1, classes]`.
    is_taught: Tensor<2>,
    count: usize,
}

impl Taught {
    /// None where all are.
    pub(crate) fn new(is_taught: &[bool], device: &Device) -> Option<Self> {
        let count = is_taught.iter().filter(|&&taught| taught).count();
        let values: Vec<f32> = is_taught.iter().map(|&taught| f32::from(u8::from(taught))).collect();
        let count_all = is_taught.len();
        (count < count_all).then(|| Self { is_taught: tensor(&values, [1, count_all], device), count })
    }
}

impl HeadTensors {
    /// A constant head.
    pub(crate) fn frozen(weight: &Matrix, bias: &[f32], form: HeadForm, device: &Device) -> Self {
        let (classes, d) = (weight.rows(), weight.columns());
        Self {
            weight: tensor(weight.as_slice(), [classes, d], device),
            bias: tensor(bias, [1, classes], device),
            form,
            taught: None,
        }
    }

    /// Number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Logits `[B, classes]` without a margin: what the head says of vectors whose class is not known.
    pub(crate) fn logits(&self, vectors: &Tensor<2>) -> Tensor<2> {
        let vectors = as_wide_as(vectors.clone(), self.weight.dims()[1]);
        match self.form {
            HeadForm::Softmax => vectors.matmul(self.weight.clone().transpose()) + self.bias.clone(),
            HeadForm::NormalisedSoftmax { scale }
            | HeadForm::CosFace { scale, .. }
            | HeadForm::ArcFace { scale, .. } => self.cosines(vectors).mul_scalar(scale),
        }
    }

    /// As [`HeadTensors::logits`], with classes that the head is not taught so far down that they are never chosen.
    pub(crate) fn logits_of_taught(&self, vectors: &Tensor<2>) -> Tensor<2> {
        self.without_untaught(self.logits(vectors))
    }

    fn without_untaught(&self, logits: Tensor<2>) -> Tensor<2> {
        match &self.taught {
            None => logits,
            Some(taught) => logits + taught.is_taught.clone().sub_scalar(1.0).mul_scalar(-NEVER),
        }
    }

    /// Logits with the margin on each row's true class; rows of a class that the head does not know get none.
    pub(crate) fn logits_with_margin(&self, vectors: &Tensor<2>, labels: &[usize]) -> Tensor<2> {
        let (scale, margin) = match self.form {
            HeadForm::Softmax | HeadForm::NormalisedSoftmax { .. } => return self.logits(vectors),
            HeadForm::CosFace { scale, margin } | HeadForm::ArcFace { scale, margin } => (scale, margin),
        };
        let cosines = self.cosines(as_wide_as(vectors.clone(), self.weight.dims()[1])).clamp(-1.0, 1.0);
        let is_true = self.one_hot(labels, &vectors.device());
        if matches!(self.form, HeadForm::CosFace { .. }) {
            return (cosines - is_true.mul_scalar(margin)).mul_scalar(scale);
        }
        with_angular_margin(&cosines, is_true, margin).mul_scalar(scale)
    }

    /// Cross-entropy of every row, `[B, 1]`; 0 for rows of a class that the head does not know.
    pub(crate) fn cross_entropy(&self, vectors: &Tensor<2>, labels: &[usize], smoothing: f32) -> Tensor<2> {
        let logits = self.without_untaught(self.logits_with_margin(vectors, labels));
        let log_probabilities = log_softmax(logits, 1);
        let classes = self.taught.as_ref().map_or(self.classes(), |taught| taught.count);
        let is_true = self.one_hot(labels, &vectors.device());
        let known = is_true.clone().sum_dim(1).mul_scalar(smoothing / classes as f32);
        let smoothed = match &self.taught {
            None => known,
            Some(taught) => known.matmul(taught.is_taught.clone()),
        };
        let wanted = is_true.mul_scalar(1.0 - smoothing) + smoothed;
        (log_probabilities * wanted).sum_dim(1).neg()
    }

    /// Whether the head has a class.
    pub(crate) fn knows(&self, label: usize) -> bool {
        label < self.classes()
    }

    /// 1 at each row's true class, `[B, classes]`.
    pub(crate) fn one_hot(&self, labels: &[usize], device: &Device) -> Tensor<2> {
        let classes = self.classes();
        let mut values = vec![0.0; labels.len() * classes];
        for (row, &label) in labels.iter().enumerate().filter(|(_, label)| self.knows(**label)) {
            values[row * classes + label] = 1.0;
        }
        tensor(&values, [labels.len(), classes], device)
    }

    fn cosines(&self, vectors: Tensor<2>) -> Tensor<2> {
        unit(vectors).matmul(unit(self.weight.clone()).transpose())
    }
}

/// An old head with a weight for every class that it does not know: the mean of the class's old vectors, each scaled to
/// length 1 (BCT §2.5, "synthesised classifier weights"). Under a softmax head the mean is scaled to the mean length of
/// the head's own weights, so that logits of old and of synthesised classes are of one size; its bias is the head's mean.
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
    use rehang_fit::burn::read;

    fn head(form: HeadForm) -> HeadTensors {
        let weight = Matrix::new(2, vec![1.0, 0.0, 0.0, 2.0]).unwrap();
        HeadTensors::frozen(&weight, &[0.0, 0.0], form, &Device::flex())
    }

    fn losses(form: HeadForm, vector: [f32; 2], label: usize, smoothing: f32) -> f32 {
        let vectors = Tensor::<2>::from_data([vector], &Device::flex());
        read(head(form).cross_entropy(&vectors, &[label], smoothing)).unwrap()[0]
    }

    #[test]
    fn every_form_computed_by_hand() {
        // ⟨v, w⟩ = (3, 8); cosines (0.6, 0.8).
        let ln = |difference: f64| (1.0 + difference.exp()).ln() as f32;
        let near = |left: f32, right: f32| assert!((left - right).abs() < 1e-4, "{left} {right}");
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
            let of = |rows: &[f32], taught: &[bool]| {
                let weight = Matrix::new(2, rows.to_vec()).unwrap();
                let head = HeadTensors::frozen(&weight, &vec![0.0; rows.len() / 2], form, &Device::flex());
                HeadTensors { taught: Taught::new(taught, &Device::flex()), ..head }
            };
            let two = of(&[1.0, 0.2, 0.1, 2.0], &[true, true]);
            assert!(two.taught.is_none());
            // The third class, which would be chosen, is the old head's alone.
            let three = of(&[1.0, 0.2, 0.1, 2.0, 30.0, 40.0], &[true, true, false]);
            let vectors = Tensor::<2>::from_data([[3.0f32, 4.0], [1.0, -1.0]], &Device::flex());
            let loss = |head: &HeadTensors| read(head.cross_entropy(&vectors, &[1, 0], 0.1)).unwrap();
            for (left, right) in loss(&two).into_iter().zip(loss(&three)) {
                assert!((left - right).abs() < 1e-5, "{form:?}: {left} {right}");
            }
            let logits = read(three.logits_of_taught(&vectors)).unwrap();
            assert!(logits[2] < logits[0].min(logits[1]) && logits[5] < logits[3].min(logits[4]));
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
        let wide = Tensor::<2>::from_data([[3.0f32, 4.0, 100.0]], &Device::flex());
        let narrow = Tensor::<2>::from_data([[3.0f32, 4.0]], &Device::flex());
        let head = head(HeadForm::Softmax);
        assert_eq!(read(head.logits(&wide)).unwrap(), read(head.logits(&narrow)).unwrap());
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
        let vectors: Vec<f32> = numbers(2 * 9, 5);
        let vectors: Tensor<2> = tensor(&vectors, [9, 2], &Device::flex());
        let labels = [0, 1, 0, 1, 0, 1, 0, 1, 0];
        let plain = head(HeadForm::NormalisedSoftmax { scale: 8.0 }).cross_entropy(&vectors, &labels, 0.0);
        for form in
            [HeadForm::CosFace { scale: 8.0, margin: 0.2 }, HeadForm::ArcFace { scale: 8.0, margin: 0.2 }]
        {
            let loss = read(head(form).cross_entropy(&vectors, &labels, 0.0)).unwrap();
            let plain = read(plain.clone()).unwrap();
            assert!(loss.iter().zip(&plain).all(|(loss, plain)| loss > plain));
        }
    }
}
