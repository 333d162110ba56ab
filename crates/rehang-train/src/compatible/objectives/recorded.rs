//! Values and derivatives as automatic differentiation (burn 0.22.1) gave them before the derivatives were written by hand: recorded
//! numbers, so that it stays seen that nothing changed.

use super::super::heads::HeadForm;
use super::super::method::{InfluenceSet, NewClasses};
use super::both_heads::both_heads;
use super::classification::classification;
use super::contrastive::{Contrast, Negatives, contrastive};
use super::focal_distillation::focal_distillation;
use super::forward_adaptive::forward_adaptive;
use super::head_distillation::head_distillation;
use super::influence::influence;
use super::regression::regression;
use super::selective::{Selection, selective};
use super::tests::{Plain, frozen};
use super::triplet::triplet;
use super::vector_distance::vector_distance;
use super::*;
use crate::finite_differences::numbers;

const ARCFACE: HeadForm = HeadForm::ArcFace { scale: 4.0, margin: 0.3 };

/// Every objective and every form of it, each by a name.
fn cases() -> Vec<(String, Plain, Objective)> {
    let forms = [
        HeadForm::Softmax,
        HeadForm::NormalisedSoftmax { scale: 4.0 },
        HeadForm::CosFace { scale: 4.0, margin: 0.3 },
        ARCFACE,
    ];
    let old = |classes: usize, form| frozen(&numbers(classes * 4, 9), 4, form);
    let mut cases: Vec<(String, Plain, Objective)> = Vec::new();
    let mut add = |name: String, plain: Plain, objective: Objective| cases.push((name, plain, objective));
    let usual = Plain::usual;
    let drawn = || Plain { sister: Some(numbers(6 * 4, 8)), ..Plain::usual() };
    for (number, form) in forms.into_iter().enumerate() {
        let plain = Plain { form, ..usual() };
        add(format!("classification {number}"), plain.clone(), classification(0.1));
        add(format!("forward-adaptive {number}"), plain.clone(), forward_adaptive());
        add(format!("both-heads {number}"), plain.clone(), both_heads(old(2, form)));
        add(format!("distillation {number}"), plain.clone(), head_distillation(old(2, form), 2.0));
        add(format!("focal {number}"), plain, focal_distillation(old(2, form), 1.0, 5.0, 2.0));
    }
    for form in [HeadForm::Softmax, ARCFACE] {
        for set in [InfluenceSet::New, InfluenceSet::Old] {
            for new_classes in [NewClasses::LeaveOut, NewClasses::Distillation] {
                let name = format!("influence {form:?} {set:?} {new_classes:?}");
                add(name, usual(), influence(old(2, form), set, new_classes));
            }
        }
        for selection in [Selection::Entropy, Selection::LeastConfidence, Selection::Even] {
            add(format!("selective {form:?} {selection:?}"), usual(), selective(old(2, form), selection));
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
        let selection = Selection::Entropy;
        add(format!("regression {stop_gradient}"), usual(), regression(None, selection, stop_gradient));
        let head = Some(old(2, HeadForm::Softmax));
        add(format!("regression {stop_gradient} head"), usual(), regression(head, selection, stop_gradient));
    }
    add("distance".into(), usual(), vector_distance());
    let narrow = Plain {
        new: numbers(6 * 3, 1),
        adapted: numbers(6 * 3, 3),
        head: numbers(3 * 3, 4),
        widths: [4, 3],
        ..usual()
    };
    add("distance narrow".into(), narrow.clone(), vector_distance());
    add(
        "contrast narrow".into(),
        narrow.clone(),
        contrastive(Negatives::OldAndNew, Contrast::new(0.5, Some(0.7), None)),
    );
    add("selective narrow".into(), narrow, selective(old(2, ARCFACE), Selection::Entropy));
    cases
}

/// Name, value, and the derivatives with respect to new vectors, ψ's output and the new head, each along one direction.
const RECORDED: &[(&str, [f64; 4])] = &[];

#[test]
fn values_and_derivatives_are_those_of_automatic_differentiation() {
    let cases = cases();
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
