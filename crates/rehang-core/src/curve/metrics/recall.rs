//! recall@k: the share of right answers with `r_i ≤ k`.

use super::definition::{Definition, Depth, Head, Measured, Needs};

pub(super) static RECALL: Definition = Definition {
    id: "recall",
    name: "Recall",
    about: |depth| format!("Share of the relevant items that are among the {depth} nearest."),
    needs: Needs::Judgements,
    depth: Depth::Asked,
    place: 4,
    is_primary: false,
    measured: Measured::Head(|_| Box::new(Recall)),
};

struct Recall;

impl Head for Recall {
    fn sum(&self, ranks: &[f64], _gains: &[f64]) -> f64 {
        ranks.len() as f64
    }

    fn best(&self, gains: &[f64]) -> f64 {
        gains.len() as f64
    }
}
