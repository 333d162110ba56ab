//! CMC top-k: 1 for a query with a right answer among the k nearest items.

use super::definition::{Definition, Depth, Measured, Needs};

pub(super) static TOP: Definition = Definition {
    id: "top",
    name: "Top",
    about: |depth| match depth {
        1 => "Share of queries whose nearest item is relevant.".into(),
        5 => "Share of queries with a relevant item among the five nearest.".into(),
        depth => format!("Share of queries with a relevant item among the {depth} nearest."),
    },
    needs: Needs::Answers,
    depth: Depth::Fixed(&[1, 5]),
    place: 2,
    is_primary: true,
    measured: Measured::Found,
};
