//! Batches for the tests of all objectives.

use super::*;
use crate::compatible::heads::HeadForm;
use crate::finite_differences::{check, numbers};
use rehang_fit::burn::read;

/// Rows of a batch as plain numbers, from which batches are made.
#[derive(Clone)]
pub(crate) struct Plain {
    pub labels: Vec<usize>,
    pub of_old: Vec<bool>,
    pub new: Vec<f32>,
    pub old: Vec<f32>,
    pub adapted: Vec<f32>,
    /// Old vectors of other rows of the classes, where positives are drawn.
    pub sister: Option<Vec<f32>>,
    pub head: Vec<f32>,
    pub widths: [usize; 2],
    pub form: HeadForm,
}

impl Plain {
    /// Six rows of three classes.
    pub(crate) fn usual() -> Self {
        Self {
            labels: vec![0, 1, 2, 0, 1, 1],
            of_old: vec![true, false, true, true, true, false],
            new: numbers(6 * 5, 1),
            old: numbers(6 * 4, 2),
            adapted: numbers(6 * 5, 3),
            sister: None,
            head: numbers(3 * 5, 4),
            widths: [4, 5],
            form: HeadForm::Softmax,
        }
    }

    /// Two rows of two classes on the axes, so that every cosine is 0 or 1: the new vectors stand apart, the old
    /// ones together.
    pub(crate) fn on_axes() -> Self {
        Self {
            labels: vec![0, 1],
            of_old: vec![true; 2],
            new: vec![2.0, 0.0, 0.0, 3.0],
            old: vec![1.0, 0.0, 5.0, 0.0],
            adapted: vec![1.0; 4],
            sister: None,
            head: vec![1.0; 4],
            widths: [2, 2],
            form: HeadForm::Softmax,
        }
    }

    /// The batch, and its leaves: new, adapted, weight of the head.
    pub(crate) fn batch(&self) -> (Batch, [Tensor<2>; 3]) {
        let device = Device::flex();
        let n = self.labels.len();
        let leaf = |values: &[f32], rows: usize| tensor(values, [rows, values.len() / rows], &device);
        let tracked = |values: &[f32], rows: usize| leaf(values, rows).autodiff().require_grad();
        let classes = self.head.len() / self.widths[1];
        let leaves = [tracked(&self.new, n), tracked(&self.adapted, n), tracked(&self.head, classes)];
        let [new, adapted, weight] = leaves.clone();
        let bias = Tensor::zeros([1, classes], &device);
        let batch = Batch {
            labels: self.labels.clone(),
            of_old: self.of_old.clone(),
            new,
            old: leaf(&self.old, n),
            sister: self.sister.as_ref().map(|sister| leaf(sister, n)),
            adapted: Some(adapted),
            adapted_labels: self.labels.clone(),
            head: HeadTensors { weight, bias, form: self.form, taught: None },
        };
        (batch, leaves)
    }

    pub(crate) fn value(&self, objective: &Objective) -> f64 {
        f64::from(read(objective.loss(&self.batch().0)).unwrap()[0])
    }

    /// Gradients of new, adapted and the head's weight; zeros where nothing flows.
    pub(crate) fn gradients(&self, objective: &Objective) -> [Vec<f32>; 3] {
        let (batch, leaves) = self.batch();
        let mut gradients = objective.loss(&batch).backward();
        leaves.map(|leaf| {
            let count = leaf.dims().iter().product();
            leaf.grad_remove(&mut gradients).map_or(vec![0.0; count], |found| read(found).unwrap())
        })
    }

    /// Compares every derivative with central differences.
    pub(crate) fn check(&self, objective: &Objective) {
        let [new, adapted, head] = self.gradients(objective);
        let value = |change: &dyn Fn(&mut Self)| {
            let mut plain = self.clone();
            change(&mut plain);
            plain.value(objective)
        };
        check(&self.new, &new, 1e-2, |at| value(&|plain| plain.new = at.to_vec()));
        check(&self.adapted, &adapted, 1e-2, |at| value(&|plain| plain.adapted = at.to_vec()));
        check(&self.head, &head, 1e-2, |at| value(&|plain| plain.head = at.to_vec()));
    }
}

/// A frozen head on old vectors.
pub(crate) fn frozen(weight: &[f32], d: usize, form: HeadForm) -> HeadTensors {
    let rows = weight.len() / d;
    let device = Device::flex();
    HeadTensors {
        weight: tensor(weight, [rows, d], &device),
        bias: Tensor::zeros([1, rows], &device),
        form,
        taught: None,
    }
}

#[test]
fn rows_are_cut_or_filled_up() {
    let rows: Tensor<2> = Tensor::from_data([[1.0f32, 2.0, 3.0]], &Device::flex());
    assert_eq!(read(as_wide_as(rows.clone(), 2)).unwrap(), [1.0, 2.0]);
    assert_eq!(read(as_wide_as(rows, 4)).unwrap(), [1.0, 2.0, 3.0, 0.0]);
}

#[test]
fn large_logits_do_not_overflow() {
    let rows: Tensor<2> = Tensor::from_data([[1000.0f32, 1000.0]], &Device::flex());
    assert!((read(log_sum_exp(rows)).unwrap()[0] - 1000.6931).abs() < 1e-3);
}
