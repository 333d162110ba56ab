//! precision@k: the share of the k nearest items that are right answers.

use super::definition::{Definition, Depth, Head, Measured, Needs};

pub(super) static PRECISION: Definition = Definition {
    id: "precision",
    name: "Precision",
    about: |depth| format!("Share of relevant items among the {depth} nearest."),
    needs: Needs::Answers,
    depth: Depth::Asked,
    place: 3,
    is_primary: true,
    measured: Measured::Head(|depth| Box::new(Precision { depth })),
};

struct Precision {
    depth: usize,
}

impl Head for Precision {
    fn sum(&self, ranks: &[f64], _gains: &[f64]) -> f64 {
        ranks.len() as f64
    }

    fn best(&self, _gains: &[f64]) -> f64 {
        self.depth as f64
    }
}
