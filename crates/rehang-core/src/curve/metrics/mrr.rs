//! MRR@k: `1 / r_1` where the first right answer has rank `r_1 ≤ k`, else 0.

use super::definition::{Definition, Depth, Head, Measured, Needs};

pub(super) static MRR: Definition = Definition {
    id: "mrr",
    name: "MRR",
    about: |depth| {
        format!("Mean reciprocal rank of the first relevant item, 0 where none is among the {depth} nearest.")
    },
    needs: Needs::Answers,
    depth: Depth::Asked,
    place: 6,
    is_primary: false,
    measured: Measured::Head(|_| Box::new(Mrr)),
};

struct Mrr;

impl Head for Mrr {
    fn sum(&self, ranks: &[f64], _gains: &[f64]) -> f64 {
        ranks.first().map_or(0.0, |rank| 1.0 / rank)
    }

    fn best(&self, _gains: &[f64]) -> f64 {
        1.0
    }
}
