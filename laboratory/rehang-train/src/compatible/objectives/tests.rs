//! Batches for the tests of all objectives.

use super::focal_distillation::FocalForm;
use super::*;
use crate::compatible::heads::HeadForm;
use crate::compatible::method::{InfluenceSet, NewClasses};
use crate::finite_differences::{check, numbers};

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
    /// Makes six rows of three classes.
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

    /// Makes two rows of two classes on the axes, so that every cosine is 0 or 1: the new vectors stand
    /// apart, the old ones together.
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

    pub(crate) fn batch(&self) -> Batch {
        let n = self.labels.len();
        let rows = |values: &[f32], rows: usize| {
            Matrix::new(values.len().checked_div(rows).unwrap_or(self.widths[1]), values.to_vec()).unwrap()
        };
        let weight = Matrix::new(self.widths[1], self.head.clone()).unwrap();
        let bias = vec![0.0; weight.rows()];
        Batch {
            labels: self.labels.clone(),
            of_old: self.of_old.clone(),
            new: rows(&self.new, n),
            old: rows(&self.old, n),
            sister: self.sister.as_ref().map(|sister| rows(sister, n)),
            adapted: Some(rows(&self.adapted, n)),
            adapted_labels: self.labels.clone(),
            head: HeadWeights::new(weight, bias, self.form),
        }
    }

    pub(crate) fn value(&self, objective: &Objective) -> f64 {
        objective.evaluate(&self.batch()).value
    }

    /// Gives the gradients of new, adapted and the head's weight; zeros where nothing flows.
    pub(crate) fn gradients(&self, objective: &Objective) -> [Vec<f32>; 3] {
        let loss = objective.evaluate(&self.batch());
        let data_or_zeros = |gradient: Option<Matrix>, values: &[f32]| {
            gradient.map_or_else(|| vec![0.0; values.len()], Matrix::into_data)
        };
        let head = loss.head.map(|head| head.weight);
        [
            data_or_zeros(loss.new, &self.new),
            data_or_zeros(loss.adapted, &self.adapted),
            data_or_zeros(head, &self.head),
        ]
    }

    /// Compares every derivative with differences of the value.
    pub(crate) fn check(&self, objective: &Objective) {
        let [new, adapted, head] = self.gradients(objective);
        let value = |change: &dyn Fn(&mut Self)| {
            let mut plain = self.clone();
            change(&mut plain);
            plain.value(objective)
        };
        check(&self.new, &new, TOLERANCE, |at| value(&|plain| plain.new = at.to_vec()));
        check(&self.adapted, &adapted, TOLERANCE, |at| value(&|plain| plain.adapted = at.to_vec()));
        check(&self.head, &head, TOLERANCE, |at| value(&|plain| plain.head = at.to_vec()));
    }
}

/// Tolerance between a derivative and the differences, which are of single precision.
pub(crate) const TOLERANCE: f64 = 2e-3;

/// Makes a frozen head on old vectors.
pub(crate) fn frozen(weight: &[f32], d: usize, form: HeadForm) -> HeadWeights {
    let weight = Matrix::new(d, weight.to_vec()).unwrap();
    let bias = vec![0.0; weight.rows()];
    HeadWeights::new(weight, bias, form)
}

/// Makes every objective, with its usual options, beside an old head of two classes.
fn all() -> Vec<Objective> {
    let old_head = || frozen(&numbers(2 * 4, 9), 4, HeadForm::Softmax);
    let contrast =
        |negatives| contrastive::contrastive(negatives, contrastive::Contrast::new(0.5, None, Some(2)));
    let selection = selective::RowWeighting::Entropy;
    vec![
        classification::classification(0.1),
        both_heads::both_heads(old_head()),
        contrast(contrastive::Negatives::OldAndNew),
        contrast(contrastive::Negatives::Split { eta: 0.5 }),
        focal_distillation::focal_distillation(old_head(), FocalForm::Features, 1.0, 5.0, 2.0),
        focal_distillation::focal_distillation(old_head(), FocalForm::Probabilities, 1.0, 5.0, 2.0),
        forward_adaptive::forward_adaptive(),
        head_distillation::head_distillation(old_head(), 2.0),
        influence::influence(old_head(), InfluenceSet::New, NewClasses::Distillation),
        regression::regression(Some(old_head()), selection, false),
        selective::selective(old_head(), selection, selective::SelectionLogits::Head, None),
        triplet::triplet(true, 0.8, Some(2)),
        vector_distance::vector_distance(),
    ]
}

/// A zero vector has no direction: where cosines count it has no derivative, and nothing becomes infinite.
#[test]
fn zero_rows_stay_finite() {
    for form in [HeadForm::Softmax, HeadForm::ArcFace { scale: 4.0, margin: 0.3 }] {
        let mut plain = Plain { form, ..Plain::usual() };
        for rows in [&mut plain.new, &mut plain.old, &mut plain.adapted, &mut plain.head] {
            rows[..5].fill(0.0);
        }
        for objective in all() {
            let name = objective.name;
            assert!(plain.value(&objective).is_finite(), "{name}");
            assert!(plain.gradients(&objective).iter().flatten().all(|value| value.is_finite()), "{name}");
        }
    }
}

#[test]
fn no_rows_cost_nothing() {
    let none =
        Plain { labels: vec![], of_old: vec![], new: vec![], old: vec![], adapted: vec![], ..Plain::usual() };
    for objective in all() {
        assert_eq!(none.value(&objective), 0.0, "{}", objective.name);
    }
}

#[test]
fn equal_rows_and_a_single_class_agree_with_finite_differences() {
    // Rows 0 and 3 are of one class; here they are one row twice, and the hardest negatives tie.
    let mut twice = Plain::usual();
    let (new, old) = (twice.new[..5].to_vec(), twice.old[..4].to_vec());
    twice.new[15..20].copy_from_slice(&new);
    twice.old[12..16].copy_from_slice(&old);
    let single = Plain { labels: vec![1; 6], ..Plain::usual() };
    for objective in all() {
        // Which of two equal negatives is the nearer one changes with the least step.
        if !["contrast", "triplets"].contains(&objective.name) {
            twice.check(&objective);
        }
        single.check(&objective);
    }
}

#[test]
fn the_same_bits_come_out_for_any_number_of_threads() {
    let (rows, d) = (160, 70);
    let plain = Plain {
        labels: (0..rows).map(|row| row % 50).collect(),
        of_old: vec![true; rows],
        new: numbers(rows * d, 1),
        old: numbers(rows * 4, 2),
        adapted: numbers(rows * d, 3),
        sister: None,
        head: numbers(50 * d, 4),
        widths: [4, d],
        form: HeadForm::ArcFace { scale: 8.0, margin: 0.3 },
    };
    for objective in all() {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (plain.value(&objective), plain.gradients(&objective)))
        };
        let one = run(1);
        assert!(run(2) == one && run(3) == one, "{}", objective.name);
    }
}
