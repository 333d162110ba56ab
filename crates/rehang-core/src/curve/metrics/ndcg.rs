//! nDCG@k: `Σ_{r_i ≤ k} gain_i / log2(r_i + 1)` over its largest possible value (linear gain, as trec_eval).

use super::definition::{Definition, Depth, Head, Measured, Needs};

pub(super) static NDCG: Definition = Definition {
    id: "ndcg",
    name: "nDCG",
    about: |depth| format!("Normalised discounted cumulative gain of the {depth} nearest items."),
    needs: Needs::Judgements,
    depth: Depth::Asked,
    place: 0,
    is_primary: true,
    measured: Measured::Head(|depth| {
        Box::new(Ndcg { discounts: (0..=depth).map(|rank| 1.0 / ((rank + 1) as f64).log2()).collect() })
    }),
};

struct Ndcg {
    /// `1 / log2(rank + 1)` by rank, up to the depth.
    discounts: Vec<f64>,
}

impl Head for Ndcg {
    fn sum(&self, ranks: &[f64], gains: &[f64]) -> f64 {
        ranks.iter().zip(gains).map(|(&rank, gain)| gain * self.discounts[rank as usize]).sum()
    }

    fn best(&self, gains: &[f64]) -> f64 {
        gains.iter().zip(&self.discounts[1..]).map(|(gain, discount)| gain * discount).sum()
    }
}
