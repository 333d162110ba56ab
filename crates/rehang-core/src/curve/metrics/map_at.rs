//! mAP@k: `1/min(P, k) · Σ_{r_i ≤ k} i / r_i` (Google Landmarks v2).

use super::definition::{Definition, Depth, Head, Measured, Needs};

pub(super) static MAP_AT: Definition = Definition {
    id: "map",
    name: "mAP",
    about: |depth| format!("Mean average precision over the {depth} nearest items."),
    needs: Needs::Answers,
    depth: Depth::Asked,
    place: 5,
    is_primary: false,
    measured: Measured::Head(|depth| Box::new(MapAt { depth })),
};

struct MapAt {
    depth: usize,
}

impl Head for MapAt {
    fn sum(&self, ranks: &[f64], _gains: &[f64]) -> f64 {
        ranks.iter().enumerate().map(|(index, &rank)| (index + 1) as f64 / rank).sum()
    }

    fn best(&self, gains: &[f64]) -> f64 {
        gains.len().min(self.depth) as f64
    }
}
