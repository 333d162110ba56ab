//! Recorded values and derivatives, as automatic differentiation (burn 0.22.1) gave them before the
//! derivatives were written by hand. They show that nothing changed.

use super::super::heads::HeadForm;
use super::super::method::{InfluenceSet, NewClasses};
use super::both_heads::both_heads;
use super::classification::classification;
use super::contrastive::{Contrast, Negatives, contrastive};
use super::focal_distillation::{FocalForm, focal_distillation};
use super::forward_adaptive::forward_adaptive;
use super::head_distillation::head_distillation;
use super::influence::influence;
use super::regression::regression;
use super::selective::{RowWeighting, SelectionLogits, selective};
use super::tests::{Plain, frozen};
use super::triplet::triplet;
use super::vector_distance::vector_distance;
use super::*;
use crate::finite_differences::numbers;
use serde_json::json;

const ARCFACE: HeadForm = HeadForm::ArcFace { scale: 4.0, margin: 0.3 };

/// Sizes of batches, and the labels of their rows.
struct Sizes {
    labels: Vec<usize>,
    of_old: Vec<bool>,
    d_old: usize,
    d_new: usize,
    /// Coordinates of new vectors that are narrower than the old ones.
    narrow: usize,
    classes: usize,
    old_classes: usize,
}

impl Sizes {
    /// Takes the sizes of [`Plain::usual`].
    fn usual() -> Self {
        let Plain { labels, of_old, .. } = Plain::usual();
        Self { labels, of_old, d_old: 4, d_new: 5, narrow: 3, classes: 3, old_classes: 2 }
    }

    fn larger() -> Self {
        let labels = vec![3, 0, 1, 4, 2, 0, 0, 3, 1, 1, 4, 2, 3];
        let of_old = (0..labels.len()).map(|row| row % 3 != 1).collect();
        Self { labels, of_old, d_old: 6, d_new: 8, narrow: 5, classes: 5, old_classes: 3 }
    }

    fn plain(&self, d_new: usize) -> Plain {
        let rows = self.labels.len();
        Plain {
            labels: self.labels.clone(),
            of_old: self.of_old.clone(),
            new: numbers(rows * d_new, 1),
            old: numbers(rows * self.d_old, 2),
            adapted: numbers(rows * d_new, 3),
            sister: None,
            head: numbers(self.classes * d_new, 4),
            widths: [self.d_old, d_new],
            form: HeadForm::Softmax,
        }
    }
}

/// Makes every objective and every form of it, each by a name.
fn cases(sizes: &Sizes) -> Vec<(String, Plain, Objective)> {
    let forms = [
        HeadForm::Softmax,
        HeadForm::NormalisedSoftmax { scale: 4.0 },
        HeadForm::CosFace { scale: 4.0, margin: 0.3 },
        ARCFACE,
    ];
    let old = |form| frozen(&numbers(sizes.old_classes * sizes.d_old, 9), sizes.d_old, form);
    let mut cases: Vec<(String, Plain, Objective)> = Vec::new();
    let mut add = |name: String, plain: Plain, objective: Objective| cases.push((name, plain, objective));
    let usual = || sizes.plain(sizes.d_new);
    let drawn = || Plain { sister: Some(numbers(sizes.labels.len() * sizes.d_old, 8)), ..usual() };
    for (number, form) in forms.into_iter().enumerate() {
        let plain = Plain { form, ..usual() };
        add(format!("classification {number}"), plain.clone(), classification(0.1));
        add(format!("forward-adaptive {number}"), plain.clone(), forward_adaptive());
        add(format!("both-heads {number}"), plain.clone(), both_heads(old(form)));
        add(format!("distillation {number}"), plain.clone(), head_distillation(old(form), 2.0));
        let focal = |of| focal_distillation(old(form), of, 1.0, 5.0, 2.0);
        add(format!("focal {number}"), plain.clone(), focal(FocalForm::Probabilities));
        add(format!("focal-features {number}"), plain, focal(FocalForm::Features));
    }
    for form in [HeadForm::Softmax, ARCFACE] {
        for set in [InfluenceSet::New, InfluenceSet::Old] {
            for new_classes in [NewClasses::LeaveOut, NewClasses::Distillation] {
                let name = format!("influence {form:?} {set:?} {new_classes:?}");
                add(name, usual(), influence(old(form), set, new_classes));
            }
        }
        for selection in [RowWeighting::Entropy, RowWeighting::LeastConfidence, RowWeighting::Even] {
            for (kind, logits) in
                [("selective", SelectionLogits::Head), ("selective-bare", SelectionLogits::InnerProducts)]
            {
                let objective = selective(old(form), selection, logits, None);
                add(format!("{kind} {form:?} {selection:?}"), usual(), objective);
            }
        }
    }
    for hardest in [None, Some(2)] {
        for negatives in [Negatives::Old, Negatives::OldAndNew, Negatives::Split { eta: 0.6 }] {
            let objective = || contrastive(negatives, Contrast::new(0.5, Some(0.7), hardest));
            add(format!("contrast {negatives:?} {hardest:?}"), usual(), objective());
            add(format!("contrast {negatives:?} {hardest:?} drawn"), drawn(), objective());
        }
        for new_negatives in [false, true] {
            add(
                format!("triplets {new_negatives} {hardest:?}"),
                usual(),
                triplet(new_negatives, 0.8, hardest),
            );
            add(
                format!("triplets {new_negatives} {hardest:?} drawn"),
                drawn(),
                triplet(new_negatives, 0.8, hardest),
            );
        }
    }
    for stop_gradient in [false, true] {
        let selection = RowWeighting::Entropy;
        add(format!("regression {stop_gradient}"), usual(), regression(None, selection, stop_gradient));
        let head = Some(old(HeadForm::Softmax));
        add(format!("regression {stop_gradient} head"), usual(), regression(head, selection, stop_gradient));
    }
    add("distance".into(), usual(), vector_distance());
    let narrow = sizes.plain(sizes.narrow);
    add("distance narrow".into(), narrow.clone(), vector_distance());
    let focal = focal_distillation(old(HeadForm::Softmax), FocalForm::Features, 1.0, 5.0, 2.0);
    add("focal-features narrow".into(), narrow.clone(), focal);
    add(
        "contrast narrow".into(),
        narrow.clone(),
        contrastive(Negatives::OldAndNew, Contrast::new(0.5, Some(0.7), None)),
    );
    add(
        "selective narrow".into(),
        narrow,
        selective(old(ARCFACE), RowWeighting::Entropy, SelectionLogits::Head, None),
    );
    cases
}

/// Name, value, and the derivatives with respect to new vectors, ψ's output and the new head, each along one
/// direction.
#[rustfmt::skip]
const RECORDED: &[(&str, [f64; 4])] = &[
    ("classification 0", [1.2511493, 0.1906390, 0.0000000, -0.2611682]),
    ("forward-adaptive 0", [1.0921923, 0.0000000, 0.1079032, -0.2404181]),
    ("both-heads 0", [1.2569907, 0.2925339, 0.0000000, 0.0241652]),
    ("distillation 0", [0.0238142, 0.0244565, 0.0000000, 0.0000000]),
    ("focal 0", [0.1861344, 0.1710854, 0.0000000, 0.6588581]),
    ("classification 1", [1.5661149, 0.5884750, 0.0000000, -0.8697995]),
    ("forward-adaptive 1", [1.9482840, 0.0000000, 0.6667365, -1.7184319]),
    ("both-heads 1", [1.4265051, 0.7983599, 0.0000000, -0.0654585]),
    ("distillation 1", [0.1514933, 0.1357541, 0.0000000, 0.0000000]),
    ("focal 1", [1.3897502, 0.8391141, 0.0000000, 3.7779131]),
    ("classification 2", [2.2553775, 0.6234793, 0.0000000, -1.4701151]),
    ("forward-adaptive 2", [2.7313766, 0.0000000, 0.7204272, -1.8498621]),
    ("both-heads 2", [2.3830268, 0.9168652, 0.0000000, -0.0786906]),
    ("distillation 2", [0.1514933, 0.1357541, 0.0000000, 0.0000000]),
    ("focal 2", [1.3897502, 0.8391141, 0.0000000, 3.7779131]),
    ("classification 3", [2.1136134, 0.5556191, 0.0000000, -1.4856590]),
    ("forward-adaptive 3", [2.6667683, 0.0000000, 0.6607665, -1.5501689]),
    ("both-heads 3", [2.3128221, 0.8719324, 0.0000000, -0.0718004]),
    ("distillation 3", [0.1514933, 0.1357541, 0.0000000, 0.0000000]),
    ("focal 3", [1.3897502, 0.8391141, 0.0000000, 3.7779131]),
    ("influence Softmax New LeaveOut", [0.6565899, 0.0589163, 0.0000000, 0.0000000]),
    ("influence Softmax New Distillation", [0.5506006, 0.0562970, 0.0000000, 0.0000000]),
    ("influence Softmax Old LeaveOut", [0.5254934, -0.0234325, 0.0000000, 0.0000000]),
    ("influence Softmax Old Distillation", [0.3992837, -0.0067742, 0.0000000, 0.0000000]),
    ("selective Softmax Entropy", [0.6567768, 0.0595431, 0.0000000, 0.0000000]),
    ("selective Softmax LeastConfidence", [0.6338945, 0.0373827, 0.0000000, 0.0000000]),
    ("selective Softmax Even", [0.6565899, 0.0589163, 0.0000000, 0.0000000]),
    ("influence ArcFace { scale: 4.0, margin: 0.3 } New LeaveOut", [1.2854805, 0.4290487, 0.0000000, 0.0000000]),
    ("influence ArcFace { scale: 4.0, margin: 0.3 } New Distillation", [1.0738633, 0.3553877, 0.0000000, 0.0000000]),
    ("influence ArcFace { scale: 4.0, margin: 0.3 } Old LeaveOut", [0.9339520, 0.1596065, 0.0000000, 0.0000000]),
    ("influence ArcFace { scale: 4.0, margin: 0.3 } Old Distillation", [0.7044082, 0.1164755, 0.0000000, 0.0000000]),
    ("selective ArcFace { scale: 4.0, margin: 0.3 } Entropy", [1.2880244, 0.4262146, 0.0000000, 0.0000000]),
    ("selective ArcFace { scale: 4.0, margin: 0.3 } LeastConfidence", [1.1115845, 0.3280318, 0.0000000, 0.0000000]),
    ("selective ArcFace { scale: 4.0, margin: 0.3 } Even", [1.2854805, 0.4290487, 0.0000000, 0.0000000]),
    ("contrast Old None", [2.1864526, -0.3907466, 0.0000000, 0.0000000]),
    ("contrast Old None drawn", [2.1599870, -0.3101654, 0.0000000, 0.0000000]),
    ("contrast OldAndNew None", [2.5912800, -0.3441240, 0.0000000, 0.0000000]),
    ("contrast OldAndNew None drawn", [2.6797733, -0.2567827, 0.0000000, 0.0000000]),
    ("contrast Split { eta: 0.6 } None", [3.2267427, -0.5765490, 0.0000000, 0.0000000]),
    ("contrast Split { eta: 0.6 } None drawn", [3.2571952, -0.4267970, 0.0000000, 0.0000000]),
    ("triplets false None", [0.9405850, -0.2155463, 0.0000000, 0.0000000]),
    ("triplets false None drawn", [0.9550542, -0.1517133, 0.0000000, 0.0000000]),
    ("triplets true None", [1.7797391, -0.4206517, 0.0000000, 0.0000000]),
    ("triplets true None drawn", [1.8266921, -0.3590677, 0.0000000, 0.0000000]),
    ("contrast Old Some(2)", [2.1006687, -0.3961245, 0.0000000, 0.0000000]),
    ("contrast Old Some(2) drawn", [2.0518930, -0.3016487, 0.0000000, 0.0000000]),
    ("contrast OldAndNew Some(2)", [2.4454677, -0.3191116, 0.0000000, 0.0000000]),
    ("contrast OldAndNew Some(2) drawn", [2.5230711, -0.2269099, 0.0000000, 0.0000000]),
    ("contrast Split { eta: 0.6 } Some(2)", [3.0007222, -0.5372120, 0.0000000, 0.0000000]),
    ("contrast Split { eta: 0.6 } Some(2) drawn", [3.0049040, -0.3621985, 0.0000000, 0.0000000]),
    ("triplets false Some(2)", [1.3284500, -0.2600276, 0.0000000, 0.0000000]),
    ("triplets false Some(2) drawn", [1.3593515, -0.1629752, 0.0000000, 0.0000000]),
    ("triplets true Some(2)", [2.3867433, -0.3475037, 0.0000000, 0.0000000]),
    ("triplets true Some(2) drawn", [2.4711175, -0.2707258, 0.0000000, 0.0000000]),
    ("regression false", [1.8906898, -0.1512850, -0.2791558, 0.0000000]),
    ("regression false head", [1.8892148, -0.1521933, -0.2791558, 0.0000000]),
    ("regression true", [1.8906898, -0.1355818, -0.2791558, 0.0000000]),
    ("regression true head", [1.8892148, -0.1364901, -0.2791558, 0.0000000]),
    ("distance", [3.2255080, 0.9594200, 0.0000000, 0.0000000]),
    ("distance narrow", [2.1422496, 0.4894960, 0.0000000, 0.0000000]),
    ("contrast narrow", [1.8927578, -0.1349354, 0.0000000, 0.0000000]),
    ("selective narrow", [2.7208612, 0.0558834, 0.0000000, 0.0000000]),
];

#[test]
fn values_and_derivatives_are_those_of_automatic_differentiation() {
    let cases = cases(&Sizes::usual());
    // Two objectives came later; their derivatives are held against finite differences.
    let is_old =
        |name: &str| !["focal-features", "selective-bare"].iter().any(|later| name.starts_with(later));
    let cases: Vec<_> = cases.into_iter().filter(|(name, ..)| is_old(name)).collect();
    assert_eq!(cases.len(), RECORDED.len());
    for ((name, plain, objective), (recorded, expected)) in cases.into_iter().zip(RECORDED) {
        assert_eq!(name, *recorded);
        let along = |(part, gradient): (usize, Vec<f32>)| {
            let direction = numbers(gradient.len(), 50 + part as u32);
            gradient.iter().zip(direction).map(|(&g, u)| f64::from(g) * f64::from(u)).sum::<f64>()
        };
        let derivatives = plain.gradients(&objective).into_iter().enumerate().map(along);
        for (received, expected) in std::iter::once(plain.value(&objective)).chain(derivatives).zip(expected)
        {
            assert!(
                (received - expected).abs() < 2e-5 * (1.0 + expected.abs()),
                "{name}: {received} for {expected}"
            );
        }
    }
}

/// Values and whole derivatives of every case, on two batches of [`numbers`], are those of
/// `crates/rehang-python/tests/losses.json`, which the losses of `rehang.torch` are compared with.
#[test]
fn the_losses_for_pytorch_are_compared_with_these() {
    let batch = |sizes: &Sizes| {
        let cases = cases(sizes).into_iter().map(|(name, plain, objective)| {
            let [new, adapted, head] = plain.gradients(&objective);
            let some =
                |slopes: Vec<f32>| if slopes.iter().all(|&slope| slope == 0.0) { vec![] } else { slopes };
            let slopes = json!({ "new": some(new), "adapted": some(adapted), "head": some(head) });
            json!({ "name": name, "value": plain.value(&objective), "slopes": slopes })
        });
        json!({
            "labels": sizes.labels, "of_old": sizes.of_old, "d_old": sizes.d_old, "d_new": sizes.d_new, "narrow": sizes.narrow,
            "classes": sizes.classes, "old_classes": sizes.old_classes, "cases": cases.collect::<Vec<_>>(),
        })
    };
    let made = json!([batch(&Sizes::usual()), batch(&Sizes::larger())]);
    crate::finite_differences::expect_recorded("losses.json", &made);
}
