//! Mean average precision: `1/P · Σ_i i / r_i` over all P right answers.

use super::definition::{Definition, Depth, Measured, Needs};

pub(super) static MAP: Definition = Definition {
    id: "map",
    name: "mAP",
    about: |_| "Mean average precision: how high all relevant items rank, averaged over the queries.".into(),
    needs: Needs::Answers,
    depth: Depth::All,
    place: 1,
    is_primary: true,
    measured: Measured::Precision,
};
