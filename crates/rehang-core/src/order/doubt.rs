//! The orders by a classifier's doubt about every item (RACT eq. 9–11).

use super::policy::{Definition, Evidence, HeadUse, Order, Page, probabilities};
use crate::error::Result;

type Ordered = fn(&Evidence<'_>) -> Result<Order>;
type Scored = fn(&Page<'_>) -> Result<Vec<f64>>;

pub(super) static LEAST_CONFIDENCE: Definition =
    doubt(|of| ordered(of, least_confidence), |page| scores(page, least_confidence));

pub(super) static MARGIN: Definition = doubt(|of| ordered(of, margin), |page| scores(page, margin));

pub(super) static ENTROPY: Definition = doubt(|of| ordered(of, entropy), |page| scores(page, entropy));

const fn doubt(order: Ordered, scores: Scored) -> Definition {
    Definition {
        about: "goes where a classifier is least sure of its answer",
        is_evaluation_only: false,
        head: HeadUse::Needed,
        order,
        scores,
        arrange: None,
    }
}

/// Orders a gallery by a measure of class probabilities.
fn ordered(evidence: &Evidence<'_>, measure: fn(&[f64]) -> f64) -> Result<Order> {
    let needed = || evidence.needed("a classifier head and vectors it classifies");
    let (head, vectors) = evidence.input.classified.ok_or_else(needed)?;
    evidence.expect_items("vectors to classify", vectors.rows())?;
    Order::by_scores(probabilities(head, vectors, measure)?, "class probabilities")
}

/// Scores a page by a measure of class probabilities, or by σ² without a head.
pub(super) fn scores(page: &Page<'_>, measure: fn(&[f64]) -> f64) -> Result<Vec<f64>> {
    match page.head {
        Some(head) => probabilities(head, page.vectors, measure),
        None => Ok(page.by_sigma()),
    }
}

/// `1 − p¹`.
pub(super) fn least_confidence(probabilities: &[f64]) -> f64 {
    1.0 - best_two(probabilities).0
}

/// `1 − (p¹ − p²)`.
pub(super) fn margin(probabilities: &[f64]) -> f64 {
    let (first, second) = best_two(probabilities);
    1.0 - (first - second)
}

/// `−Σ p ln p`.
pub(super) fn entropy(probabilities: &[f64]) -> f64 {
    probabilities.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

/// The two largest probabilities; the second is 0 where there is one class only.
fn best_two(probabilities: &[f64]) -> (f64, f64) {
    probabilities.iter().fold(
        (0.0, 0.0),
        |(first, second), &p| {
            if p > first { (p, first) } else { (first, f64::max(second, p)) }
        },
    )
}
